/* A few records at a time: margins of all, one call of the loss, then their clipped gradients.
 *
 * One record of a wide row is a block: reading one row after the other, and asking for the next
 * while this one is accumulated, keeps the memory system busiest. Narrow rows share a block, which
 * fills the vectors of the loss and of the scalar work. Results do not depend on it. */
#ifndef DPK_BLOCK_H
#define DPK_BLOCK_H

#include "glm.h"
#include "rows.h"

#define DPK_BLOCK 64
typedef struct {
    row x[DPK_BLOCK];             /* stored rows */
    const char *ahead[DPK_BLOCK]; /* rows that will be wanted soon */
    double y[DPK_BLOCK];          /* labels */
    double z[DPK_BLOCK];          /* margins of the effective rows */
    double norm[DPK_BLOCK];       /* upper bound of |[scale x + shift, 1]| */
    double ratio[DPK_BLOCK];      /* r = min(1, row_bound / norm) */
    double s[DPK_BLOCK]; /* value or derivative of the loss, then factor of the stored row */
} block;

static inline intptr_t block_rows(const dpk_data *data) {
    if (data->indptr)
        return DPK_BLOCK;
    const intptr_t rows = 1024 / data->p & ~(intptr_t)7;
    return rows < 1 ? 1 : rows > DPK_BLOCK ? DPK_BLOCK : rows;
}

static inline intptr_t rows_left(int64_t i, int64_t end, intptr_t rows) {
    return end - i < rows ? (intptr_t)(end - i) : rows;
}

/* Margins of the stored rows, and their squares into `norm`. */
DPK_INLINE void dots(row_kind kind, const dpk_data *data, const double *w, intptr_t n, block *b,
                     int want_squares) {
    intptr_t i = 0;
    for (; i + 8 <= n; i += 8)
        dot_eight(kind, data, b->x + i, w, want_squares ? b->norm + i : NULL, b->z + i);
    for (; i < n; i++)
        b->z[i] = dot(kind, data, b->x + i, w, want_squares ? b->norm + i : NULL);
}

/* Rows, labels, margins, norms and scalings of the records first .. first + n; w: (d,). */
DPK_INLINE void load_block(row_kind kind, const dpk_data *data, const double *w, int64_t first,
                           intptr_t n, block *b) {
    const intptr_t p = data->p, d = data->d;
    const double bias = data->intercept ? w[p] : 0.0, one = data->intercept ? 1.0 : 0.0;
    const int64_t last = data->offsets[data->m] - 1;
    intptr_t i = 0;
    for (i = 0; i < n; i++) {
        const int64_t r = data->rows ? data->rows[first + i] : first + i;
        b->x[i] = row_at(kind, data, r);
        b->y[i] = data->y[r];
        if (data->norm)
            b->norm[i] = data->norm[r];
        if (!(kind & ROW_SPARSE))
            b->ahead[i] = row_ahead(kind, data, first + i, last);
    }
    if (data->norm)
        dots(kind, data, w, n, b, 0);
    else {
        dots(kind, data, w, n, b, 1);
        for (i = 0; i < n; i++)
            b->norm[i] = norm_up(b->norm[i] + one, d);
    }
    for (i = 0; i < n; i++) {
        const double norm = b->norm[i];
        b->ratio[i] = norm > data->row_bound ? data->row_bound / norm : 1.0;
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
    }
}

static inline void derivatives(const dpk_loss *loss, intptr_t n, block *b) {
    if (loss->checked) /* what it does not write must not be another record's */
        for (intptr_t i = 0; i < n; i++)
            b->s[i] = NAN;
    loss->block(n, b->y, b->z, NULL, b->s, NULL, loss->params);
    if (loss->checked)
        for (intptr_t i = 0; i < n; i++)
            b->s[i] = fabs(b->s[i]) <= DBL_MAX ? b->s[i] : 0.0;
}

/* Add the clipped gradients of the block's n records, whose derivatives are in s, to acc (d,);
 * returns how many were added. M: magic number of the grid, or 0 without one; clip: the inner clip
 * bound; weight: that of the silo. */
DPK_INLINE int64_t add_block(row_kind kind, const dpk_data *data, double M, double clip,
                             double weight, intptr_t n, block *b, double *acc) {
    const intptr_t p = data->p;
    intptr_t count = 0, i = 0;
    /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
    for (i = 0; i < n; i++)
        b->s[i] = weight * clamp_scalar(b->s[i] * b->ratio[i], factor_limit(clip, b->norm[i]));
    /* Rows without a gradient are left out; among them are all that are not finite. */
    int zeros = 0;
    for (i = 0; i < n; i++)
        zeros |= b->s[i] == 0.0;
    for (i = 0, count = zeros ? 0 : n; zeros && i < n; i++) {
        b->s[count] = b->s[i];
        b->x[count] = b->x[i];
        count += b->s[i] != 0.0;
    }
    if (kind & ROW_SPARSE)
        for (i = 0; i < count; i++)
            add_sparse(kind, data, b->s[i], b->x + i, M, acc);
    else {
        for (i = 0; i + 4 <= count; i += 4)
            add_dense(kind, data, 4, b->s + i, b->x + i, M, b->ahead + i, acc);
        for (; i < count; i++)
            add_dense(kind, data, 1, b->s + i, b->x + i, M, b->ahead + i, acc);
    }
    if (data->intercept && M != 0.0) {
        int64_t *const bits = (int64_t *)(void *)(acc + p);
        const uint64_t excess = kind & ROW_SPARSE ? (uint64_t)bits_of(M) : 0;
        for (i = 0; i < count; i++)
            *bits = (int64_t)((uint64_t)*bits + (uint64_t)bits_of(b->s[i] + M) - excess);
    } else if (data->intercept) {
        for (i = 0; i < count; i++)
            acc[p] += b->s[i];
    }
    return kind & ROW_SPARSE ? 0 : count;
}

/* A record of a wide row by itself: its margin and norm, then the factor of its stored row. */
typedef struct {
    row x;
    double z, norm;
} record;

DPK_INLINE record load_record(row_kind kind, const dpk_data *data, const double *w, int64_t i) {
    const int64_t r = data->rows ? data->rows[i] : i;
    record one = {row_at(kind, data, r), 0.0, 0.0};
    if (data->norm) {
        one.norm = data->norm[r];
        one.z = dot(kind, data, &one.x, w, NULL);
    } else {
        one.z = dot(kind, data, &one.x, w, &one.norm);
        one.norm = norm_up(one.norm + (data->intercept ? 1.0 : 0.0), data->d);
    }
    return one;
}

DPK_INLINE int64_t add_wide(row_kind kind, const dpk_data *data, const double *w,
                            const dpk_loss *loss, double M, double clip, double weight,
                            int64_t begin, int64_t end, double *acc) {
    const int64_t last = data->offsets[data->m] - 1;
    const double bias = data->intercept ? w[data->p] : 0.0;
    int64_t added = 0;
    record next = load_record(kind, data, w, begin);
    for (int64_t i = begin; i < end; i++) {
        const record one = next;
        const double y = data->y[data->rows ? data->rows[i] : i];
        const double ratio = one.norm > data->row_bound ? data->row_bound / one.norm : 1.0;
        const double z = ratio * (one.z + bias);
        const char *const ahead = row_ahead(kind, data, i + 1, last);
        double s = NAN;
        loss->block(1, &y, &z, NULL, &s, NULL, loss->params);
        if (loss->checked)
            s = fabs(s) <= DBL_MAX ? s : 0.0;
        s = weight * clamp_scalar(s * ratio, factor_limit(clip, one.norm));
        if (i + 1 < end)
            next = load_record(kind, data, w, i + 1);
        if (s == 0.0)
            continue;
        add_dense(kind, data, 1, &s, &one.x, M, &ahead, acc);
        if (data->intercept && M != 0.0) {
            int64_t *const bits = (int64_t *)(void *)(acc + data->p);
            *bits = (int64_t)((uint64_t)*bits + (uint64_t)bits_of(s + M));
        } else if (data->intercept)
            acc[data->p] += s;
        added++;
    }
    return added;
}

/* acc (d,) = sum over the records begin .. end of their clipped gradients at w, as steps of the
 * grid in integers where M is not 0. */
DPK_INLINE void gradient_of(row_kind kind, const dpk_data *data, const double *w,
                            const dpk_loss *loss, double M, double clip, double weight,
                            int64_t begin, int64_t end, block *b, double *acc) {
    const intptr_t rows = block_rows(data);
    int64_t added = 0;
    memset(acc, 0, (size_t)data->d * sizeof(double));
    if (!(kind & ROW_SPARSE) && rows == 1)
        added = add_wide(kind, data, w, loss, M, clip, weight, begin, end, acc);
    else
        for (int64_t i = begin; i < end; i += rows) {
            const intptr_t n = rows_left(i, end, rows);
            load_block(kind, data, w, i, n, b);
            derivatives(loss, n, b);
            added += add_block(kind, data, M, clip, weight, n, b, acc);
        }
    if (M != 0.0)
        remove_magic(data->d, added, M, (int64_t *)(void *)acc);
}

/* A statement for every kind of row, in which KIND is a constant. */
#define FOR_KIND(kind, statement)                                                                  \
    do {                                                                                           \
        switch (kind) {                                                                            \
            FOR_ONE_KIND(0, statement)                                                             \
            FOR_ONE_KIND(1, statement)                                                             \
            FOR_ONE_KIND(2, statement)                                                             \
            FOR_ONE_KIND(3, statement)                                                             \
            FOR_ONE_KIND(4, statement)                                                             \
            FOR_ONE_KIND(5, statement)                                                             \
            FOR_ONE_KIND(6, statement)                                                             \
            FOR_ONE_KIND(7, statement)                                                             \
        }                                                                                          \
    } while (0)
#define FOR_ONE_KIND(number, statement)                                                            \
    case number: {                                                                                 \
        const row_kind KIND = number;                                                              \
        statement;                                                                                 \
        break;                                                                                     \
    }

#endif
