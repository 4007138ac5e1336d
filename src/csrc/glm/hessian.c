/* Weighted Gram matrices: rows are packed as integers in panels of WIDTH columns, and products of
 * panels are added to square blocks on and below the diagonal.
 *
 * Panel j holds the columns j WIDTH .. of all records, one after the other. Block (i, j), j <= i,
 * of an accumulator holds H[i WIDTH + r, j WIDTH + c] at c WIDTH + r. */
#include "core/tasks.h"
#include "glm/hessian.h"
#include "rows/block.h"
#include "core/variants.h"
#include "models/evaluate.h"
#include "rows/rows.h"

enum { BLOCK_SIZE = WIDTH * WIDTH };

/* Offset of block (i, 0) in an accumulator. */
static inline intptr_t block_row(intptr_t i) { return i * (i + 1) / 2 * BLOCK_SIZE; }

/* Blocks (i .. i + height, j) += panels i .. i + height times panel j over n records. Later rows,
 * `step` bytes a record, are prefetched meanwhile. a, b: the panels i and j, with this stride; c:
 * block (i, j). */
DPK_INLINE void tile(int last, intptr_t n, const double *a, intptr_t stride, const double *b,
                     intptr_t i, double *c, uintptr_t ahead, uintptr_t step) {
    const int height = last + 1;
    vec sum[3][WIDTH];
    double *at[3] = {c, c + (i + 1) * BLOCK_SIZE, c + (2 * i + 3) * BLOCK_SIZE};
    const double *const a1 = a + stride, *const a2 = a1 + stride;
    EACH(h, height) EACH(k, WIDTH) sum[h][k] = VEC_LOAD(at[h] + k * WIDTH);
    for (intptr_t t = 0; t < n * WIDTH; t += WIDTH, ahead += step) {
        const vec x0 = VEC_LOAD(a + t);
        const vec x1 = height > 1 ? VEC_LOAD(a1 + t) : x0, x2 = height > 2 ? VEC_LOAD(a2 + t) : x0;
        __builtin_prefetch((const void *)ahead, 0, 2);
        __builtin_prefetch(b + t + 16 * WIDTH); /* of this panel, then of the next */
        EACH(k, WIDTH) {
            const vec y = VEC_SET(b[t + k]);
            sum[0][k] = VEC_FMA(x0, y, sum[0][k]);
            if (height > 1)
                sum[1][k] = VEC_FMA(x1, y, sum[1][k]);
            if (height > 2)
                sum[2][k] = VEC_FMA(x2, y, sum[2][k]);
        }
    }
    EACH(h, height) EACH(k, WIDTH) VEC_STORE(at[h] + k * WIDTH, sum[h][k]);
}

DEFINE_VARIANTS(3, tile,
                (intptr_t n, const double *a, intptr_t stride, const double *b, intptr_t i,
                 double *c, uintptr_t ahead, uintptr_t step),
                n, a, stride, b, i, c, ahead, step)

/* acc += products of all panels with those before them, over n records; `bytes` from `ahead` on are
 * prefetched meanwhile. */
static void add_gram(intptr_t d, intptr_t n, const double *panels, intptr_t stride, double *acc,
                     uintptr_t ahead, int64_t bytes) {
    const intptr_t count = (d + WIDTH - 1) / WIDTH;
    intptr_t height;
    /* There are about count^2 / 6 tiles; a line prefetched twice or left out does no harm. */
    const int64_t share = n > 0 ? bytes * 6 / (n * count * (count + 3)) : 0;
    const uintptr_t step = share > 64 ? 64 : (uintptr_t)share;
    for (intptr_t i = 0; i < count; i += height) {
        height = i == 0 && count % 3 ? count % 3 : 3; /* the small tiles where there are fewest */
        for (intptr_t j = 0; j < i + height; j++) {
            const intptr_t first = j > i ? j : i;
            tile_variants[i + height - first - 1](
                n, panels + first * stride, stride, panels + j * stride, first,
                acc + block_row(first) + j * BLOCK_SIZE, ahead, step);
            ahead += step * (uintptr_t)n;
        }
    }
}

/* Panels of n <= DPK_BLOCK dense records: factor[i] [x, 1][i], rounded to integers where M, 1.5 *
 * 2^52, is not 0. */
DPK_INLINE void pack(row_kind kind, const dpk_data *data, intptr_t n, const int64_t *rows,
                     const double *factor, double M, double *to, intptr_t stride) {
    const intptr_t p = data->p;
    const f8 magic_number = f8_set(M), minus = f8_set(-M);
    for (intptr_t i = 0; i < n; i++, to += WIDTH) {
        const row x = row_at(kind, data, rows[i]);
        const f8 f = f8_set(factor[i]);
        double *at = to;
        intptr_t k = 0;
        for (; k + 8 <= p; k += 8, at += 8 / WIDTH * stride)
            f8_store_registers(
                at, stride, f8_add(f8_fma(f, entries(kind, data, &x, k, 8), magic_number), minus));
        if (k < data->d) {
            const f8 v = last_entries(kind, data, &x, k);
            f8_store_registers(at, stride, f8_add(f8_fma(f, v, magic_number), minus));
        }
    }
}

DEFINE_FOR_KINDS(static void pack_rows, data, 4, pack,
                 (const dpk_data *data, intptr_t n, const int64_t *rows, const double *factor,
                  double M, double *to, intptr_t stride),
                 data, n, rows, factor, M, to, stride)

/* acc += the outer product of one sparse record; value, at: (d,) work space. */
static void add_outer(const dpk_data *data, double factor, int64_t i, double M, double *value,
                      intptr_t *at, double *acc) {
    const row_kind kind = kind_of(data);
    const row x = row_at(kind, data, i);
    for (intptr_t t = 0; t < x.n + data->intercept; t++) {
        intptr_t k;
        const double entry = sparse_entry(kind, data, &x, t, &k), v = DPK_FMA(factor, entry, M) - M;
        value[t] = v;
        at[t] = k / WIDTH * BLOCK_SIZE + k % WIDTH * WIDTH;
        double *const to = acc + block_row(k / WIDTH) + k % WIDTH;
        for (intptr_t u = 0; u <= t; u++)
            to[at[u]] = DPK_FMA(v, value[u], to[at[u]]);
    }
}

/* b->s: factors of the n stored rows, in units of q where M is not 0. Leaves out those that are 0,
 * among them all that are not finite, and returns how many remain. */
static intptr_t factors(const dpk_data *data, const dpk_loss *loss, double clip, double scale,
                        intptr_t n, block *b) {
    evaluate(loss, n, b->y, b->z, NULL, NULL, b->s);
    weigh_records(data, n, b->row, b->s);
    for (intptr_t i = 0; i < n; i++)
        b->s[i] = dpk_hessian_factor(b->s[i], b->ratio[i], b->norm[i], clip, scale);
    return leave_out_zeros(n, b);
}

/* Accumulator of the records begin .. end. scale: applied to every factor; M: 1.5 * 2^52 or 0. */
static void sum_of_task(const dpk_data *data, const double *w, const dpk_loss *loss, double clip,
                        double scale, double M, int64_t begin, int64_t end, double *scratch,
                        double *acc) {
    const intptr_t d = data->d, most = dpk_hessian_rows(d);
    const intptr_t stride = (most + 1) * WIDTH; /* a power of two would map lines to few sets */
    const int64_t bytes = data->p * (data->x_is_float32 ? 4 : 8);
    /* Rows that the L1 cache still holds when they are packed. */
    const intptr_t fit = bytes > 2048 ? 8 : 16384 / bytes, upto = fit < 64 ? fit : 64;
    const intptr_t rows = upto < most ? upto : most;
    block b;
    memset(acc, 0, (size_t)dpk_hessian_size(d) * sizeof(double));
    for (int64_t i = begin; i < end;) {
        intptr_t filled = 0;
        /* Blocks begin at fixed records, whatever those before them hold, since the last bit of a
         * user's loss may depend on a record's position in its block. */
        while (i < end && filled + rows <= most) {
            const intptr_t n = rows_left(i, end, rows);
            dpk_load_block(data, w, i, n, (later_rows){0}, &b);
            const intptr_t count = factors(data, loss, clip, scale, n, &b);
            i += n;
            if (data->indptr)
                for (intptr_t r = 0; r < count; r++)
                    add_outer(data, b.s[r], b.row[r], M, scratch,
                              (intptr_t *)(void *)(scratch + dpk_padded(d)), acc);
            else {
                pack_rows(data, count, b.row, b.s, M, scratch + filled * WIDTH, stride);
                filled += count;
            }
        }
        if (filled)
            add_gram(d, filled, scratch, stride, acc, (uintptr_t)data->X + (uintptr_t)(i * bytes),
                     (end - i < most ? end - i : most) * bytes);
    }
}

/* Rows and columns of silo j that belong to panel i: sums of its tasks, rounded, times `unit`. Sums
 * of integers are added as 64-bit integers: the sum of a task is exact in doubles, but that of all
 * tasks need not be. Before rounding to a coarser grid it is clamped to 2^52, and so exact. */
static void finish(const dpk_sum *sum, double unit, intptr_t j, intptr_t i, intptr_t d,
                   double *out) {
    const intptr_t width = dpk_thread_stride(dpk_hessian_size(d)),
                   rows = rows_left(i * WIDTH, d, WIDTH);
    const double step = sum->grid ? sum->grid[j] : unit;
    for (intptr_t k = 0; k <= i; k++) {
        double total[BLOCK_SIZE] = {0.0};
        int64_t whole[BLOCK_SIZE] = {0};
        for (int64_t t = sum->first_task[j]; t < sum->first_task[j + 1]; t++) {
            const double *const part = sum->partial + t * width + block_row(i) + k * BLOCK_SIZE;
            for (int e = 0; unit != 0.0 && e < BLOCK_SIZE; e++)
                whole[e] += (int64_t)part[e];
            for (int e = 0; unit == 0.0 && e < BLOCK_SIZE; e++)
                total[e] += part[e];
        }
        for (int e = 0; unit != 0.0 && e < BLOCK_SIZE; e++)
            total[e] = dpk_hessian_entry(whole[e], sum->grid != NULL, unit, step);
        for (intptr_t r = 0; r < rows; r++)
            for (intptr_t c = 0; c < WIDTH && k * WIDTH + c <= i * WIDTH + r; c++) {
                const intptr_t row = i * WIDTH + r, column = k * WIDTH + c;
                out[row * d + column] = out[column * d + row] = total[c * WIDTH + r];
            }
    }
}

static void hessian_task(const dpk_data *data, const double *w, intptr_t w_stride,
                         const dpk_loss *loss, double row_grid, const dpk_sum *sum, int64_t t,
                         double *scratch) {
    const intptr_t d = data->d;
    const double M = row_grid != 0.0 ? magic(1.0) : 0.0;
    const double clip = inner_bound(sqrt(sum->clip), row_grid, d);
    const task u = task_number(data, sum, t);
    const double weight = dpk_row_weight(sum, u.j);
    sum_of_task(data, w + u.j * w_stride, loss, clip, row_grid != 0.0 ? weight / row_grid : weight,
                M, u.begin, u.end,
                scratch + thread_number() * dpk_thread_stride(dpk_hessian_scratch(d)),
                sum->partial + t * dpk_thread_stride(dpk_hessian_size(d)));
}

dpk_status dpk_glm_hessian(const dpk_data *data, const double *w, intptr_t w_stride,
                           const dpk_loss *loss, double row_grid, const dpk_sum *sum,
                           double *scratch, double *out) {
    const intptr_t d = data->d, panels = (d + WIDTH - 1) / WIDTH;
    EACH_TASK(sum->first_task[data->m],
              hessian_task(data, w, w_stride, loss, row_grid, sum, t, scratch));
    EACH_TASK(data->m * panels, finish(sum, row_grid * row_grid, t / panels,
                                       panels - 1 - t % panels, d, out + t / panels * d * d));
    return DPK_OK;
}
