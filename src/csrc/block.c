/* Sums over records, a block at a time, for every kind of row. */
#include "block.h"
#include "kinds.h"
#include "rows.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

dpk_load_block_fn DPK_FN(dpk_load_block);
dpk_load_line_fn DPK_FN(dpk_load_line);
dpk_row_norms_fn DPK_FN(dpk_row_norms);
dpk_add_rows_fn DPK_FN(dpk_add_rows);
dpk_sum_gradients_fn DPK_FN(dpk_sum_gradients);
dpk_sum_differences_fn DPK_FN(dpk_sum_differences);

static inline double intercept_of(const dpk_data *data) { return data->intercept ? 1.0 : 0.0; }

/* Records of a block: 8 KiB of rows, which the first cache holds beside the next ones on their way,
 * and at least as many as share their vectors. Long rows that come from afar are blocks by
 * themselves: then the memory rests least. Floats cost more work per byte, which blocks save. */
static inline intptr_t block_rows(const dpk_data *data, int streamed) {
    if (data->indptr)
        return DPK_BLOCK;
    const intptr_t bytes = data->p * (data->x_is_float32 ? 4 : 8);
    if (bytes > 8192 || (streamed && bytes >= (data->x_is_float32 ? 4096 : 1024)))
        return 1;
    const intptr_t rows = 8192 / bytes & ~(intptr_t)7;
    return rows < 8 ? 8 : rows > DPK_BLOCK ? DPK_BLOCK : rows;
}

/* Rows, labels, margins, norms and scalings of the records first .. first + n; w: (d,). Norms that
 * are neither kept nor asked for are 0. */
DPK_INLINE void load_block(row_kind kind, const dpk_data *data, const double *w, int64_t first,
                           intptr_t n, int with_norms, block *b) {
    const double bias = data->intercept ? w[data->p] : 0.0;
    if (data->rows) {
        for (intptr_t i = 0; i < n; i++) {
            b->row[i] = data->rows[first + i];
            b->y[i] = data->y[b->row[i]];
            b->norm[i] = data->norm ? data->norm[b->row[i]] : 0.0;
        }
    } else {
        for (intptr_t i = 0; i < n; i++) {
            b->row[i] = first + i;
            b->y[i] = data->y[first + i];
            b->norm[i] = data->norm ? data->norm[first + i] : 0.0;
        }
    }
    if (data->norm || !with_norms)
        dots(kind, data, w, n, b->row, NULL, b->z);
    else {
        dots(kind, data, w, n, b->row, b->norm, b->z);
        for (intptr_t i = 0; i < n; i++)
            b->norm[i] = norm_up(b->norm[i] + intercept_of(data), data->d);
    }
    int bounded = 0;
    for (intptr_t i = 0; i < n; i++)
        bounded |= b->norm[i] > data->row_bound;
    /* Divisions cost more than all else: only where there is something to scale. */
    for (intptr_t i = 0; i < n; i++)
        b->ratio[i] = 1.0;
    for (intptr_t i = 0; bounded && i < n; i++)
        b->ratio[i] = row_ratio(data, b->norm[i]);
    for (intptr_t i = 0; i < n; i++)
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
}

/* So few rows at a time that they are in the first cache still for their second product. */
DPK_INLINE void load_line(row_kind kind, const dpk_data *shared, const double *w, const double *p,
                          int64_t first, intptr_t n, ahead *next, double *y, double *z,
                          double *dz) {
    const dpk_data own = *shared, *const data = &own; /* nobody else's: not read again and again */
    const double bias = data->intercept ? p[data->p] : 0.0;
    const intptr_t rows = block_rows(data, 0);
    const int bounded = data->row_bound <= DBL_MAX;
    block b;
    for (intptr_t i = 0; i < n; i += rows) {
        const intptr_t some = rows_left(i, n, rows);
        load_block(kind, data, w, first + i, some, bounded, &b);
        ask(next);
        dots(kind, data, p, some, b.row, NULL, dz + i);
        for (intptr_t r = 0; r < some; r++) {
            y[i + r] = b.y[r];
            z[i + r] = b.z[r];
            dz[i + r] = b.ratio[r] * (dz[i + r] + bias);
        }
    }
}

/* s: (n,) derivatives at y, z. */
DPK_INLINE void derivatives(const dpk_loss *loss, intptr_t n, const double *y, const double *z,
                            double *s) {
    if (loss->checked) /* what it does not write must not be another record's */
        for (intptr_t i = 0; i < n; i++)
            s[i] = NAN;
    loss->block(n, y, z, NULL, s, NULL, loss->params);
    if (loss->checked)
        for (intptr_t i = 0; i < n; i++)
            s[i] = fabs(s[i]) <= DBL_MAX ? s[i] : 0.0;
}

DPK_INLINE double slope(const dpk_loss *loss, double y, double z) {
    if (loss->slope)
        return loss->slope(y, z, loss->params);
    double s;
    derivatives(loss, 1, &y, &z, &s);
    return s;
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

/* From the derivatives in b->s to the differences of clipped ones, as factors of the stored rows.
 */
DPK_INLINE void subtract_earlier(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                                 const dpk_earlier *earlier, int64_t first, intptr_t n, block *b) {
    double space[DPK_BLOCK], s[DPK_BLOCK];
    const double *z = space, clip = earlier->clip;
    int long_ones = 0;
    if (earlier->z)
        z = known_margins(data, earlier, first, n, space);
    else {
        const double bias = data->intercept ? earlier->w[data->p] : 0.0;
        dots(kind, data, earlier->w, n, b->row, NULL, space);
        for (intptr_t i = 0; i < n; i++)
            space[i] = b->ratio[i] * (space[i] + bias);
    }
    derivatives(loss, n, b->y, z, s);
    if (earlier->z_new)
        memcpy(earlier->z_new + first, b->z, (size_t)n * sizeof *b->z);
    for (intptr_t i = 0; i < n; i++) {
        b->s[i] *= b->ratio[i];
        s[i] *= b->ratio[i];
        long_ones |=
            !certainly_short(b->s[i], b->norm[i], clip) | !certainly_short(s[i], b->norm[i], clip);
    }
    /* One division for both. */
    if (long_ones)
        for (intptr_t i = 0; i < n; i++) {
            const double lim = factor_limit(clip, b->norm[i]);
            b->s[i] = clamp_scalar(b->s[i], lim);
            s[i] = clamp_scalar(s[i], lim);
        }
    for (intptr_t i = 0; i < n; i++)
        b->s[i] -= s[i];
}

/* Add s times the block's n rows to acc; returns how many were added. M: magic number of the grid,
 * or 0 without one; with_zeros: also where s is 0, if the row is finite. Changes `row` and `s` of
 * the block. */
DPK_INLINE int64_t add_rows(row_kind kind, const dpk_data *data, double M, int with_zeros,
                            intptr_t n, block *b, double *acc) {
    intptr_t count = n, i = 0;
    int leave_out = 0;
    for (i = 0; i < n; i++)
        leave_out |= with_zeros ? !(b->norm[i] <= DBL_MAX) : b->s[i] == 0.0;
    /* Rows without a gradient are left out; among them are all that are not finite. */
    if (leave_out)
        for (i = 0, count = 0; i < n; i++) {
            b->s[count] = b->s[i];
            b->row[count] = b->row[i];
            count += b->s[i] != 0.0;
        }
    if (kind & ROW_SPARSE) {
        for (i = 0; i < count; i++)
            add_sparse(kind, data, b->s[i], b->row[i], M, acc);
        return 0;
    }
    for (i = 0; i + 4 <= count; i += 4) {
        row x[4];
        for (int r = 0; r < 4; r++)
            x[r] = row_at(kind, data, b->row[i + r]);
        add_dense(kind, data, 4, b->s + i, x, M, acc);
    }
    for (; i < count; i++) {
        const row x = row_at(kind, data, b->row[i]);
        add_dense(kind, data, 1, b->s + i, &x, M, acc);
    }
    return count;
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

/* s: (n,) derivatives at the known margins of the earlier point, of the records from `first` on,
 * n <= DPK_BLOCK: they wait for nothing, and many at a time cost less than each by itself. */
DPK_INLINE void known_derivatives(const dpk_data *data, const dpk_loss *loss,
                                  const dpk_earlier *earlier, int64_t first, intptr_t n,
                                  double *s) {
    double y[DPK_BLOCK], z[DPK_BLOCK];
    for (intptr_t i = 0; i < n; i++)
        y[i] = data->y[data->rows ? data->rows[first + i] : first + i];
    derivatives(loss, n, y, known_margins(data, earlier, first, n, z), s);
}

/* clamp_scalar without a branch: it would be guessed wrong for every other record that is clipped,
 * and the rows on their way would have to start again. */
DPK_INLINE double clamp_without_branch(double s, double lim) {
#if defined(__SSE2__)
    const __m128d upper = _mm_set_sd(lim), lower = _mm_set_sd(-lim);
    const __m128d v = _mm_max_sd(lower, _mm_min_sd(upper, _mm_set_sd(s)));
    return _mm_cvtsd_f64(_mm_and_pd(v, _mm_cmpord_sd(v, v)));
#else
    return clamp_scalar(s, lim);
#endif
}

/* The records begin .. end one by one; the margin of the next is on its way while the loss of this
 * one is waited for. Returns how many were added. copies: (2, dpk_padded(p)) where rows that are
 * not plain doubles are kept as such between margin and sum, or NULL. */
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
        double s = ratio * slope(loss, y, z);
        if (earlier) {
            const double lim = factor_limit(earlier->clip, one.norm);
            const intptr_t k = (i - begin) % DPK_BLOCK;
            if (earlier->z && k == 0)
                known_derivatives(data, loss, earlier, i, rows_left(i, end, DPK_BLOCK), known);
            const double there =
                earlier->z ? known[k] : slope(loss, y, ratio * (one.earlier + earlier_bias));
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

/* Longer rows than these are converted twice: the copies would not stay in the first cache. */
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

/* Of gradients; of differences where `earlier` is not NULL. */
DPK_INLINE void sum_gradients(row_kind kind, const dpk_data *shared, const double *w,
                              const dpk_loss *loss, const dpk_earlier *earlier, double M,
                              double clip, double weight, int64_t begin, int64_t end, int streamed,
                              double *acc) {
    /* A copy that nobody else sees: what it says need not be read again after every store. */
    const dpk_data own = *shared, *const data = &own;
    const intptr_t rows = block_rows(data, streamed);
    int64_t added = 0;
    block b;
    memset(acc, 0, (size_t)dpk_padded(data->d) * sizeof(double));
    if (!(kind & ROW_SPARSE) && rows == 1)
        added = add_wide_rows(kind, data, w, loss, earlier, M, clip, weight, begin, end, acc);
    else
        for (int64_t i = begin; i < end; i += rows) {
            const intptr_t n = rows_left(i, end, rows);
            load_block(kind, data, w, i, n, 1, &b);
            derivatives(loss, n, b.y, b.z, b.s);
            /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
            if (earlier)
                subtract_earlier(kind, data, loss, earlier, i, n, &b);
            clamp_factors(clip, n, b.norm, earlier ? NULL : b.ratio, b.s);
            for (intptr_t r = 0; r < n; r++)
                b.s[r] *= weight;
            /* Where both gradients are clipped a difference is 0, which nobody can guess: to leave
             * such dense rows out costs more than to add them. */
            added += add_rows(kind, data, M, earlier && !(kind & ROW_SPARSE), n, &b, acc);
        }
    if (M != 0.0)
        remove_magic(data->d, added, M, (int64_t *)(void *)acc);
}

DPK_INLINE void row_norms(row_kind kind, const dpk_data *data, int64_t begin, int64_t end,
                          double *norm) {
    for (int64_t i = begin; i < end; i++)
        norm[i - begin] = norm_up(square_of(kind, data, i) + intercept_of(data), data->d);
}

#define BLOCK_FUNCTIONS(number, kind)                                                              \
    OWN_CODE load_block_##number(const dpk_data *data, const double *w, int64_t first, intptr_t n, \
                                 block *b) {                                                       \
        load_block(kind, data, w, first, n, 1, b);                                                 \
    }                                                                                              \
    OWN_CODE load_line_##number(const dpk_data *data, const double *w, const double *p,            \
                                int64_t first, intptr_t n, ahead *next, double *y, double *z,      \
                                double *dz) {                                                      \
        load_line(kind, data, w, p, first, n, next, y, z, dz);                                     \
    }                                                                                              \
    OWN_CODE row_norms_##number(const dpk_data *data, int64_t begin, int64_t end, double *norm) {  \
        row_norms(kind, data, begin, end, norm);                                                   \
    }                                                                                              \
    OWN_CODE add_rows_##number(const dpk_data *data, double M, intptr_t n, block *b, double *acc,  \
                               int64_t *added) {                                                   \
        const dpk_data own = *data;                                                                \
        *added += add_rows(kind, &own, M, 0, n, b, acc);                                           \
    }                                                                                              \
    OWN_CODE sum_gradients_##number(const dpk_data *data, const double *w, const dpk_loss *loss,   \
                                    double M, double clip, double weight, int64_t begin,           \
                                    int64_t end, int streamed, double *acc) {                      \
        sum_gradients(kind, data, w, loss, NULL, M, clip, weight, begin, end, streamed, acc);      \
    }                                                                                              \
    OWN_CODE sum_differences_##number(const dpk_data *data, const double *w, const dpk_loss *loss, \
                                      const dpk_earlier *earlier, double M, double clip,           \
                                      double weight, int64_t begin, int64_t end, int streamed,     \
                                      double *acc) {                                               \
        const dpk_earlier own = *earlier;                                                          \
        sum_gradients(kind, data, w, loss, &own, M, clip, weight, begin, end, streamed, acc);      \
    }
FOR_EACH_KIND(BLOCK_FUNCTIONS)

void DPK_FN(dpk_load_block)(const dpk_data *data, const double *w, int64_t first, intptr_t n,
                            block *b) {
    OF_KIND(load_block, kind_of(data))(data, w, first, n, b);
}

void DPK_FN(dpk_load_line)(const dpk_data *data, const double *w, const double *p, int64_t first,
                           intptr_t n, ahead *next, double *y, double *z, double *dz) {
    OF_KIND(load_line, kind_of(data))(data, w, p, first, n, next, y, z, dz);
}

void DPK_FN(dpk_row_norms)(const dpk_data *data, int64_t begin, int64_t end, double *norm) {
    OF_KIND(row_norms, kind_of(data))(data, begin, end, norm);
}

void DPK_FN(dpk_add_rows)(const dpk_data *data, double M, intptr_t n, block *b, double *acc,
                          int64_t *added) {
    OF_KIND(add_rows, kind_of(data))(data, M, n, b, acc, added);
}

void DPK_FN(dpk_sum_gradients)(const dpk_data *data, const double *w, const dpk_loss *loss,
                               double M, double clip, double weight, int64_t begin, int64_t end,
                               int streamed, double *acc) {
    OF_KIND(sum_gradients, kind_of(data))
    (data, w, loss, M, clip, weight, begin, end, streamed, acc);
}

void DPK_FN(dpk_sum_differences)(const dpk_data *data, const double *w, const dpk_loss *loss,
                                 const dpk_earlier *earlier, double M, double clip, double weight,
                                 int64_t begin, int64_t end, int streamed, double *acc) {
    OF_KIND(sum_differences, kind_of(data))
    (data, w, loss, earlier, M, clip, weight, begin, end, streamed, acc);
}
