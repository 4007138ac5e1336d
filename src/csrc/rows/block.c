/* Blocks of records for every kind of row. */
#include "rows/block.h"
#include "core/variants.h"
#include "rows/load.h"

/* Rows at a time: few enough to be in the L1 cache still for their second product. */
DPK_INLINE void load_line(row_kind kind, const dpk_data *shared, const double *w, const double *p,
                          int64_t first, intptr_t n, prefetch_plan *next, double *y, double *z,
                          double *dz, int64_t *row) {
    const dpk_data own = *shared, *const data = &own; /* see rows.h */
    const double bias = data->intercept ? p[data->p] : 0.0;
    const intptr_t rows = block_rows(data, 0);
    const int bounded = data->row_bound <= DBL_MAX;
    block b;
    for (intptr_t i = 0; i < n; i += rows) {
        const intptr_t some = rows_left(i, n, rows);
        load_margins(kind, data, w, first + i, some, bounded, (later_rows){0}, &b);
        prefetch_share(next);
        dots(kind, data, p, some, b.row, NULL, (later_rows){0}, dz + i);
        for (intptr_t r = 0; r < some; r++) {
            y[i + r] = b.y[r];
            z[i + r] = b.z[r];
            dz[i + r] = b.ratio[r] * (dz[i + r] + bias);
            row[i + r] = b.row[r];
        }
    }
}

DPK_INLINE void row_norms(row_kind kind, const dpk_data *data, int64_t begin, int64_t end,
                          double *norm) {
    for (int64_t i = begin; i < end; i++)
        norm[i - begin] = norm_up(square_of(kind, data, i) + intercept_of(data), data->d);
}

DPK_INLINE void map_rows(row_kind kind, const dpk_data *shared, int64_t begin, int64_t end,
                         double *to) {
    const dpk_data own = *shared, *const data = &own; /* see rows.h */
    const intptr_t p = data->p;
    for (int64_t i = begin; i < end; i++, to += p) {
        const row x = row_at(kind, data, i);
        double last[8];
        intptr_t k = 0;
        for (; k + 8 <= p; k += 8)
            f8_store(to + k, entries(kind, data, &x, k, 8));
        if (k == p)
            continue;
        f8_store(last, entries(kind, data, &x, k, p & 7));
        memcpy(to + k, last, (size_t)(p & 7) * sizeof *to);
    }
}

DPK_INLINE void load_block(row_kind kind, const dpk_data *shared, const double *w, int64_t first,
                           intptr_t n, later_rows later, block *b) {
    const dpk_data own = *shared; /* see rows.h */
    load_margins(kind, &own, w, first, n, 1, later, b);
}

DPK_INLINE void products(row_kind kind, const dpk_data *shared, const double *w, intptr_t n,
                         const int64_t *rows, double *z) {
    const dpk_data own = *shared;
    dots(kind, &own, w, n, rows, NULL, (later_rows){0}, z);
}

DPK_INLINE void add_block(row_kind kind, const dpk_data *shared, double M, int with_zeros,
                          later_rows later, intptr_t n, block *b, double *acc, int64_t *added) {
    const dpk_data own = *shared;
    *added += add_rows(kind, &own, M, with_zeros, later, n, b, acc);
}

DEFINE_FOR_KINDS(void dpk_load_block, data, 8, load_block,
                 (const dpk_data *data, const double *w, int64_t first, intptr_t n,
                  later_rows later, block *b),
                 data, w, first, n, later, b)
DEFINE_FOR_KINDS(void dpk_dots, data, 8, products,
                 (const dpk_data *data, const double *w, intptr_t n, const int64_t *rows,
                  double *z),
                 data, w, n, rows, z)
DEFINE_FOR_KINDS(void dpk_load_line, data, 8, load_line,
                 (const dpk_data *data, const double *w, const double *p, int64_t first, intptr_t n,
                  prefetch_plan *next, double *y, double *z, double *dz, int64_t *row),
                 data, w, p, first, n, next, y, z, dz, row)
DEFINE_FOR_KINDS(void dpk_row_norms, data, 8, row_norms,
                 (const dpk_data *data, int64_t begin, int64_t end, double *norm), data, begin, end,
                 norm)
DEFINE_FOR_KINDS(void dpk_map_rows, data, 4, map_rows,
                 (const dpk_data *data, int64_t begin, int64_t end, double *to), data, begin, end,
                 to)
DEFINE_FOR_KINDS(void dpk_add_rows, data, 8, add_block,
                 (const dpk_data *data, double M, int with_zeros, later_rows later, intptr_t n,
                  block *b, double *acc, int64_t *added),
                 data, M, with_zeros, later, n, b, acc, added)
