/* A block of records (block.h), read and added up; the kind of row is a constant where these are
 * called (rows.h). */
#pragma once

#include "rows/block.h"
#include "rows/dots.h"
#include "rows/sums.h"

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

/* As dpk_load_block; norms that are neither stored nor requested are 0. */
DPK_INLINE void load_margins(row_kind kind, const dpk_data *data, const double *w, int64_t first,
                             intptr_t n, int with_norms, later_rows later, block *b) {
    const double bias = data->intercept ? w[data->p] : 0.0;
    for (intptr_t i = 0; i < n; i++) {
        const int64_t at = data->rows ? data->rows[first + i] : first + i;
        b->row[i] = at;
        b->y[i] = data->y[at];
        b->norm[i] = data->norm ? data->norm[at] : 0.0;
    }
    if (data->norm || !with_norms)
        dots(kind, data, w, n, b->row, NULL, later, b->z);
    else {
        dots(kind, data, w, n, b->row, b->norm, later, b->z);
        for (intptr_t i = 0; i < n; i++)
            b->norm[i] = norm_up(b->norm[i] + intercept_of(data), data->d);
    }
    find_ratios(data, n, b);
    for (intptr_t i = 0; i < n; i++)
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
    add_margin_offsets(data, n, b->row, b->z);
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

/* As dpk_add_rows; returns how many were added. */
DPK_INLINE int64_t add_rows(row_kind kind, const dpk_data *data, double M, int with_zeros,
                            later_rows later, intptr_t n, block *b, double *acc) {
    const intptr_t count = left_in(with_zeros && !(kind & ROW_SPARSE), n, b);
    intptr_t i = 0;
    if (kind & ROW_SPARSE) {
        for (; i < count; i++)
            add_sparse(kind, data, b->s[i], b->row[i], M, acc);
        return 0;
    }
    for (; i + 4 <= count; i += 4) {
        row x[4];
        for (int r = 0; r < 4; r++)
            x[r] = row_at(kind, data, b->row[i + r]);
        if (later.first) {
            const later_lines lines = lines_of(&later, i / 2, 2);
            add_dense(kind, data, 4, b->s + i, x, &lines, M, acc);
        } else
            add_dense(kind, data, 4, b->s + i, x, NULL, M, acc);
    }
    for (; i < count; i++) {
        const row x = row_at(kind, data, b->row[i]);
        add_dense(kind, data, 1, b->s + i, &x, NULL, M, acc);
    }
    return count;
}

/* What is prefetched of a minibatch, whose rows are not neighbours: the dense rows of n records
 * from `first` on, or of the last n; NULL without a minibatch. */
DPK_INLINE const int64_t *rows_ahead(row_kind kind, const dpk_data *data, int64_t first,
                                     intptr_t n) {
    const int64_t last = data->offsets[data->m] - n;
    return kind & ROW_SPARSE || !data->rows ? NULL : data->rows + (first < last ? first : last);
}

/* What is fetched beside the block of n records from i on: neighbours at a distance, but beside
 * blocks so large that they would be read before; of a minibatch, the n records after the next
 * sixteen or the next block of `rows`, whose labels and norms are fetched here. */
DPK_INLINE later_rows later_than(row_kind kind, const dpk_data *data, int64_t i, intptr_t rows,
                                 intptr_t n) {
    const intptr_t length = data->p * entry_size(kind);
    const int64_t *const sampled = rows_ahead(kind, data, i + (rows < 16 ? 16 : rows), n);
    const char *const X = data->X;
    if (sampled) {
        for (intptr_t r = 0; r < n; r++) {
            __builtin_prefetch(data->y + sampled[r]);
            if (data->norm)
                __builtin_prefetch(data->norm + sampled[r]);
        }
        return (later_rows){X, sampled, length};
    }
    const int none = kind & ROW_SPARSE || rows * length > BLOCK_DISTANCE;
    return (later_rows){none ? NULL : X + i * length + BLOCK_DISTANCE, NULL, length};
}

/* What is left of n such rows after the first half of them. */
DPK_INLINE void skip_half(intptr_t n, later_rows *later) {
    if (later->sampled)
        later->sampled += n / 2;
    else if (later->first)
        later->first += n * later->length / 2;
}
