/* Effective rows: [scale x + shift, 1], the 1 only with an intercept, shortened to the row bound.
 */
#pragma once

#include "core/variants.h"
#include "rows/dots.h"

/* What the row of a record is shortened by, from x . x. */
DPK_INLINE double ratio_of_square(const dpk_data *data, double square) {
    const double one = data->intercept ? 1.0 : 0.0;
    return data->row_bound < HUGE_VAL ? row_ratio(data, norm_up(square + one, data->d)) : 1.0;
}

/* The effective row of record i, and zeros up to a multiple of eight; to: (dpk_padded(d),). */
DPK_INLINE void load_row(row_kind kind, const dpk_data *data, int64_t i, double *to) {
    double square;
    const int64_t stored = data->rows ? data->rows[i] : i;
    if (kind & ROW_SPARSE) {
        const row r = row_at(kind, data, stored);
        memset(to, 0, (size_t)dpk_padded(data->p) * sizeof(double));
        for (intptr_t t = 0; t < r.n; t++) {
            intptr_t k;
            const double x = sparse_entry(kind, data, &r, t, &k);
            to[k] = x;
        }
        square = square_of(kind, data, stored);
    } else
        (void)dot(kind, data, stored, NULL, NULL, &square, to);
    if (data->intercept) {
        if (data->p % 8 == 0)
            f8_store(to + data->p, f8_zero());
        to[data->p] = 1.0;
    }
    const double ratio = ratio_of_square(data, square);
    for (intptr_t k = 0; ratio != 1.0 && k < data->d; k++)
        to[k] *= ratio;
}
