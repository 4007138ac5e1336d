/* A block of records (block.h), read and added up; the kind of row is a constant where these are
 * called (rows.h). */
#pragma once

#include "rows/block.h"
#include "rows/rows.h"

DPK_INLINE double intercept_of(const dpk_data *data) { return data->intercept ? 1.0 : 0.0; }

/* Records of a block: 8 KiB of rows, which fit in the L1 cache beside the next ones that are
 * being loaded, and at least as many as fill the vectors of the loss. Long rows from memory are
 * blocks of one, which has most loads outstanding. Rows of floats take more work per byte, which
 * blocks save. */
static inline intptr_t block_rows(const dpk_data *data, int streamed) {
    if (data->indptr)
        return DPK_BLOCK;
    const intptr_t bytes = data->p * (data->x_is_float32 ? 4 : 8);
    if (bytes > 8192 || (streamed && bytes >= (data->x_is_float32 ? 4096 : 1024)))
        return 1;
    const intptr_t rows = 8192 / bytes & ~(intptr_t)7;
    return rows < 8 ? 8 : rows > DPK_BLOCK ? DPK_BLOCK : rows;
}

/* What rows that have these norms are scaled by. Divisions take longer than all else: only where
 * there is something to scale. */
DPK_INLINE void find_ratios(const dpk_data *data, intptr_t n, block *b) {
    int bounded = 0;
    for (intptr_t i = 0; i < n; i++)
        bounded |= b->norm[i] > data->row_bound;
    for (intptr_t i = 0; i < n; i++)
        b->ratio[i] = 1.0;
    for (intptr_t i = 0; bounded && i < n; i++)
        b->ratio[i] = row_ratio(data, b->norm[i]);
}

/* As dpk_load_block without margins. */
DPK_INLINE void load_rows(row_kind kind, const dpk_data *data, int64_t first, intptr_t n,
                          block *b) {
    for (intptr_t i = 0; i < n; i++) {
        const int64_t at = data->rows ? data->rows[first + i] : first + i;
        b->row[i] = at;
        b->y[i] = data->y[at];
        b->norm[i] = data->norm ? data->norm[at]
                                : norm_up(square_of(kind, data, at) + intercept_of(data), data->d);
    }
    find_ratios(data, n, b);
}

/* As dpk_load_block; norms that are neither stored nor requested are 0. ahead: as for `dots`. */
DPK_INLINE void load_margins(row_kind kind, const dpk_data *data, const double *w, int64_t first,
                             intptr_t n, int with_norms, const char *ahead, block *b) {
    const double bias = data->intercept ? w[data->p] : 0.0;
    for (intptr_t i = 0; i < n; i++) {
        const int64_t at = data->rows ? data->rows[first + i] : first + i;
        b->row[i] = at;
        b->y[i] = data->y[at];
        b->norm[i] = data->norm ? data->norm[at] : 0.0;
    }
    if (data->norm || !with_norms)
        dots(kind, data, w, n, b->row, NULL, ahead, b->z);
    else {
        dots(kind, data, w, n, b->row, b->norm, ahead, b->z);
        for (intptr_t i = 0; i < n; i++)
            b->norm[i] = norm_up(b->norm[i] + intercept_of(data), data->d);
    }
    find_ratios(data, n, b);
    for (intptr_t i = 0; i < n; i++)
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
}

DPK_INLINE void load_block(row_kind kind, const dpk_data *data, const double *w, int64_t first,
                           intptr_t n, const char *ahead, block *b) {
    load_margins(kind, data, w, first, n, 1, ahead, b);
}

/* Whether a factor is certain to be within its limit, so that the clamp would do nothing. */
DPK_INLINE int certainly_short(double s, double norm, double clip) {
    return fabs(s) * norm <= clip * (1.0 - 0x1p-50);
}

/* s: (n,) factors of rows that have these norms, times ratio (n,) where that is not NULL, clamped
 * so that no product is longer than clip. */
DPK_INLINE void clamp_factors(double clip, intptr_t n, const double *norm, const double *ratio,
                              double *s) {
    int long_ones = 0;
    for (intptr_t i = 0; i < n; i++) {
        if (ratio)
            s[i] *= ratio[i];
        long_ones |= !certainly_short(s[i], norm[i], clip);
    }
    if (long_ones)
        for (intptr_t i = 0; i < n; i++)
            s[i] = clamp_scalar(s[i], factor_limit(clip, norm[i]));
}

/* Leaves out rows without a gradient, among them all that are not finite, and returns how many
 * are left. with_zeros: finite rows whose s is 0 may stay. */
DPK_INLINE intptr_t left_in(int with_zeros, intptr_t n, block *b) {
    int leave_out = 0;
    for (intptr_t r = 0; r < n; r++)
        leave_out |= with_zeros ? !(b->norm[r] <= DBL_MAX) : b->s[r] == 0.0;
    return leave_out ? leave_out_zeros(n, b) : n;
}

/* As dpk_add_rows; returns how many were added. with_zeros: as above; sampled: (n,) dense rows of a
 * minibatch that are prefetched, or NULL; ahead: n / 2 other rows, of which that many are as are
 * added, or NULL. */
DPK_INLINE int64_t add_rows(row_kind kind, const dpk_data *data, double M, int with_zeros,
                            const int64_t *sampled, const char *ahead, intptr_t n, block *b,
                            double *acc) {
    const intptr_t count = left_in(with_zeros, n, b), length = data->p * entry_size(kind);
    intptr_t i = 0;
    if (kind & ROW_SPARSE) {
        for (; i < count; i++)
            add_sparse(kind, data, b->s[i], b->row[i], M, acc);
        return 0;
    }
    for (; i + 4 <= count; i += 4) {
        row x[4];
        for (int r = 0; r < 4; r++) {
            x[r] = row_at(kind, data, b->row[i + r]);
            if (sampled) {
                x[r].ahead = (uintptr_t)element(kind, data->X, sampled[i + r] * data->p);
                __builtin_prefetch(data->y + sampled[i + r]);
                if (data->norm)
                    __builtin_prefetch(data->norm + sampled[i + r]);
            }
        }
        if (ahead)
            add_dense(kind, data, 4, b->s + i, x, ahead + i / 2 * length, M, acc);
        else
            add_dense(kind, data, 4, b->s + i, x, NULL, M, acc);
    }
    for (; i < count; i++) {
        const row x = row_at(kind, data, b->row[i]);
        add_dense(kind, data, 1, b->s + i, &x, NULL, M, acc);
    }
    return count;
}
