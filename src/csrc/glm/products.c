/* Dense rows are multiplied in register tiles, sparse ones entry by entry. */
#include "glm/products.h"
#include "core/tasks.h"
#include "rows/block.h"
#include "rows/effective.h"
#include "simd/product.h"

/* The columns of the matrix, (count, d), in panels of eight. */
static void pack_panels(intptr_t d, intptr_t count, const double *w, double *panels) {
    for (intptr_t i = 0; i < dpk_padded(count); i++)
        for (intptr_t k = 0; k < d; k++)
            panels[(i / 8 * d + k) * 8 + i % 8] = i < count ? w[i * d + k] : 0.0;
}

DPK_INLINE void multiply_entries(row_kind kind, const dpk_data *data, int64_t i, intptr_t wide,
                                 const double *panels, double *z) {
    const int64_t stored = data->rows ? data->rows[i] : i;
    const row x = row_at(kind, data, stored);
    const double ratio = ratio_of_square(data, square_of(kind, data, stored));
    for (intptr_t k = 0; k < wide; k += 8) {
        f8 sum = f8_zero();
        for (intptr_t t = 0; t < x.n + data->intercept; t++) {
            intptr_t column;
            const double entry = ratio * sparse_entry(kind, data, &x, t, &column);
            sum = f8_fma(f8_set(entry), f8_load(panels + k * data->d + 8 * column), sum);
        }
        f8_store(z + k, sum);
    }
}

/* Products of the n records from `first` on; x: (n, dpk_row_stride(d)) work space, z: (n, wide),
 * both of a multiple of eight rows. */
DPK_INLINE void multiply_records(row_kind kind, const dpk_data *shared, int64_t first, intptr_t n,
                                 intptr_t count, const double *panels, double *x, double *z) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    const intptr_t d = data->d, width = dpk_row_stride(d), wide = dpk_padded(count);
    if (kind & ROW_SPARSE) {
        for (intptr_t r = 0; r < n; r++)
            multiply_entries(kind, data, first + r, wide, panels, z + r * wide);
        return;
    }
    for (intptr_t r = 0; r < n; r++)
        load_row(kind, data, first + r, x + r * width);
    for (intptr_t r = n; r % TILE_ROWS; r++)
        memset(x + r * width, 0, (size_t)d * sizeof *x);
    multiply(n, count, d, x, width, panels, 8 * d, NULL, z, wide);
}

DEFINE_FOR_KINDS(static void multiply_block, data, 8, multiply_records,
                 (const dpk_data *data, int64_t first, intptr_t n, intptr_t count,
                  const double *panels, double *x, double *z),
                 data, first, n, count, panels, x, z)

static void products_task(const dpk_data *data, intptr_t count, const double *panels,
                          const dpk_sum *sum, double *scratch, int64_t t, double *out) {
    const intptr_t rows = dpk_products_rows(data->d), wide = dpk_padded(count);
    const task u = task_number(data, sum, t);
    double *const z = scratch + thread_number() * dpk_products_block(data->d, count);
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        multiply_block(data, i, n, count, panels, z + rows * wide, z);
        for (intptr_t r = 0; r < n; r++)
            memcpy(out + (i + r) * count, z + r * wide, (size_t)count * sizeof *out);
    }
}

dpk_status dpk_glm_products(const dpk_data *data, intptr_t count, const double *w,
                            const dpk_sum *sum, double *scratch, double *out) {
    double *const blocks = scratch + data->d * dpk_padded(count);
    pack_panels(data->d, count, w, scratch);
    EACH_TASK(sum->first_task[data->m], products_task(data, count, scratch, sum, blocks, t, out));
    return DPK_OK;
}
