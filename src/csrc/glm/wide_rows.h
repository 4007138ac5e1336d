/* Clipped gradients of wide rows, record by record: a row that comes from memory is read once, and
 * the loss of one record is evaluated while the next row is loaded. */
#ifndef DPK_WIDE_ROWS_H
#define DPK_WIDE_ROWS_H

#include "models/evaluate.h"
#include "rows/load.h"

/* (n,) what is known of the earlier point's margins, of the records from `first` on, n <=
 * DPK_BLOCK; space: (n,) where they are gathered. */
DPK_INLINE const double *known_margins(const dpk_data *data, const dpk_earlier *earlier,
                                       int64_t first, intptr_t n, double *space) {
    if (!data->rows)
        return earlier->z + first;
    for (intptr_t i = 0; i < n; i++)
        space[i] = earlier->z[data->rows[first + i]];
    return space;
}

/* A record of a wide row by itself. */
typedef struct {
    int64_t row;
    double z, norm;
    double earlier; /* product with the earlier point, whose margin is not known */
} record;

/* earlier: NULL, or the point of a difference; copy: where the row goes in doubles, or NULL. */
DPK_INLINE record load_record(row_kind kind, const dpk_data *data, const double *w,
                              const dpk_earlier *earlier, int64_t i, double *copy) {
    record one = {data->rows ? data->rows[i] : i, 0.0, 0.0, 0.0};
    if (data->norm) {
        one.norm = data->norm[one.row];
        one.z = dot(kind, data, one.row, w, NULL, copy);
    } else {
        one.z = dot(kind, data, one.row, w, &one.norm, copy);
        one.norm = norm_up(one.norm + intercept_of(data), data->d);
    }
    if (earlier && !earlier->z)
        one.earlier = dot(kind, data, one.row, earlier->w, NULL, NULL);
    return one;
}

/* s: (n,) derivatives at the known margins of the earlier point, of the records from `first` on, n
 * <= DPK_BLOCK: they depend on no margin that is still to be computed, and cost less in a block
 * than each by itself. */
DPK_INLINE void known_derivatives(const dpk_data *data, const dpk_loss *loss,
                                  const dpk_earlier *earlier, int64_t first, intptr_t n,
                                  double *s) {
    double y[DPK_BLOCK], z[DPK_BLOCK];
    for (intptr_t i = 0; i < n; i++)
        y[i] = data->y[data->rows ? data->rows[first + i] : first + i];
    evaluate(loss, n, y, known_margins(data, earlier, first, n, z), NULL, s, NULL);
}

/* The records begin .. end one by one; the next one's row is loaded while the loss of this one is
 * evaluated. Returns how many were added. copies: (2, dpk_padded(p)) where rows that are not plain
 * doubles are kept as such between margin and sum, or NULL. */
DPK_INLINE int64_t add_wide(row_kind kind, const dpk_data *data, const double *w,
                            const dpk_loss *loss, const dpk_earlier *earlier, double M, double clip,
                            double weight, int64_t begin, int64_t end, double *copies,
                            double *acc) {
    const double bias = data->intercept ? w[data->p] : 0.0;
    const double earlier_bias =
        earlier && !earlier->z && data->intercept ? earlier->w[data->p] : 0.0;
    const intptr_t width = dpk_padded(data->p);
    double known[DPK_BLOCK]; /* derivatives at the earlier point */
    int64_t added = 0;
    record next = load_record(kind, data, w, earlier, begin, copies);
    for (int64_t i = begin; i < end; i++) {
        const record one = next;
        const int parity = (int)((i - begin) & 1);
        const double y = data->y[one.row], ratio = row_ratio(data, one.norm);
        const double z = ratio * (one.z + bias);
        double s = ratio * evaluate_slope(loss, y, z);
        if (earlier) {
            const double lim = factor_limit(earlier->clip, one.norm);
            const intptr_t k = (i - begin) % DPK_BLOCK;
            if (earlier->z && k == 0)
                known_derivatives(data, loss, earlier, i, rows_left(i, end, DPK_BLOCK), known);
            const double there =
                earlier->z ? known[k]
                           : evaluate_slope(loss, y, ratio * (one.earlier + earlier_bias));
            s = clamp_without_branch(s, lim) - clamp_without_branch(ratio * there, lim);
            if (earlier->z_new)
                earlier->z_new[i] = z;
        }
        s = weight * clamp_without_branch(s, factor_limit(clip, one.norm));
        if (i + 1 < end)
            next = load_record(kind, data, w, earlier, i + 1,
                               copies ? copies + (1 - parity) * width : NULL);
        /* Zeros as in blocks (sum_gradients). */
        if (earlier ? one.norm <= DBL_MAX || s != 0.0 : s != 0.0) {
            row x = row_at(kind, data, one.row);
            if (copies)
                x.x = copies + parity * width;
            add_dense(copies ? 0 : kind, data, 1, &s, &x, M, acc);
            added++;
        }
    }
    return added;
}

/* Rows longer than this are converted twice: their copies would not stay in the first cache. */
enum { COPIED = 1024 };

DPK_INLINE int64_t add_wide_rows(row_kind kind, const dpk_data *data, const double *w,
                                 const dpk_loss *loss, const dpk_earlier *earlier, double M,
                                 double clip, double weight, int64_t begin, int64_t end,
                                 double *acc) {
    if (!(kind & (ROW_FLOAT32 | ROW_MAPPED)) || data->p > COPIED)
        return add_wide(kind, data, w, loss, earlier, M, clip, weight, begin, end, NULL, acc);
    _Alignas(64) double copies[2 * COPIED];
    return add_wide(kind, data, w, loss, earlier, M, clip, weight, begin, end, copies, acc);
}

#endif
