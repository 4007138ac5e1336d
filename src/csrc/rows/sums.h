/* acc += s x of rows (rows.h), on a grid (gridsum.h) or in floating point. */
#pragma once

#include "rows/later.h"
#include "rows/rows.h"

/* The entries k .. k + 8 of the sum of `add_dense`, or the last `left` < 8 with the intercept's. */
DPK_INLINE void add_entries(row_kind kind, const dpk_data *data, int count, intptr_t k,
                            intptr_t left, const f8 *factor, const row *x, const later_lines *ahead,
                            int on_grid, f8 M, double *acc) {
    const intptr_t size = entry_size(kind);
    int64_t *const bits = (int64_t *)(void *)acc;
    i8 sum = i8_load(bits + k);
    f8 float_sum = f8_load(acc + k);
    EACH(i, count) {
        const f8 xk =
            left == 8 ? entries(kind, data, x + i, k, 8) : last_entries(kind, data, x + i, k);
        if (ahead && i < count / 2)
            __builtin_prefetch(ahead->next[i] + ahead->stride * k * size);
        else if (!ahead && (left == 8 || data->rows))
            __builtin_prefetch((const void *)(x[i].ahead + (uintptr_t)(k * size)));
        if (on_grid)
            sum = i8_add_bits(sum, f8_fma(factor[i], xk, M));
        else
            float_sum = f8_fma(factor[i], xk, float_sum);
    }
    if (on_grid)
        i8_store(bits + k, sum);
    else
        f8_store(acc + k, float_sum);
}

DPK_INLINE void add_in_columns(row_kind kind, const dpk_data *data, int count, const double *s,
                               const row *r, const later_lines *ahead, int on_grid, double M,
                               double *acc) {
    const intptr_t p = data->p;
    const f8 magic_number = f8_set(M);
    f8 factor[4];
    row x[4];
    intptr_t k = 0;
    EACH(i, count) {
        factor[i] = f8_set(s[i]);
        x[i] = r[i];
    }
    for (; k + 8 <= p; k += 8)
        add_entries(kind, data, count, k, 8, factor, x, ahead, on_grid, magic_number, acc);
    if (k < data->d)
        add_entries(kind, data, count, k, p & 7, factor, x, ahead, on_grid, magic_number, acc);
}

/* acc += sum_i s[i] [x, 1][i] over `count` dense rows x, at most 4 and a constant, the 1 only with
 * an intercept; acc: (dpk_padded(d),) patterns on the grid of magic number M, to which
 * each row adds the bits of M, or doubles where M is 0. ahead: of half as many rows, or NULL, and
 * what follows each row is prefetched. */
DPK_INLINE void add_dense(row_kind kind, const dpk_data *data, int count, const double *s,
                          const row *r, const later_lines *ahead, double M, double *acc) {
    if (M != 0.0)
        add_in_columns(kind, data, count, s, r, ahead, 1, M, acc);
    else
        add_in_columns(kind, data, count, s, r, ahead, 0, M, acc);
}

/* The same for one sparse row. Which entries a row has differs from row to row, so the M is taken
 * out again at once. */
DPK_INLINE void add_sparse(row_kind kind, const dpk_data *data, double s, int64_t i, double M,
                           double *acc) {
    const row r = row_at(kind, data, i);
    int64_t *const bits = (int64_t *)(void *)acc;
    const uint64_t excess = (uint64_t)bits_of(M);
    for (intptr_t t = 0; t < r.n + data->intercept; t++) {
        intptr_t k;
        const double x = sparse_entry(kind, data, &r, t, &k);
        if (M != 0.0)
            bits[k] = (int64_t)((uint64_t)bits[k] + (uint64_t)bits_of(DPK_FMA(s, x, M)) - excess);
        else
            acc[k] = DPK_FMA(s, x, acc[k]);
    }
}
