/* Clipped gradients of a block of records: margins, one evaluation of the loss, factors clamped to
 * the clip bound, then the rows are added while they are in cache. */
#include "glm/sum_gradients.h"
#include "core/variants.h"
#include "glm/wide_rows.h"
#include "models/evaluate.h"
#include "rows/load.h"

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
    evaluate(loss, n, b->y, z, NULL, s, NULL);
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

DPK_INLINE void sum_rows(row_kind kind, const dpk_data *shared, const double *w,
                         const dpk_loss *loss, const dpk_earlier *earlier, double M, double clip,
                         double weight, int64_t begin, int64_t end, int streamed, double *acc) {
    /* A local copy: the compiler need not reload its fields after every store. */
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
            evaluate(loss, n, b.y, b.z, NULL, b.s, NULL);
            /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
            if (earlier)
                subtract_earlier(kind, data, loss, earlier, i, n, &b);
            clamp_factors(clip, n, b.norm, earlier ? NULL : b.ratio, b.s);
            for (intptr_t r = 0; r < n; r++)
                b.s[r] *= weight;
            /* Where both gradients are clipped a difference is 0, which no branch predictor
             * foresees: leaving such dense rows out costs more than adding them. */
            added += add_rows(kind, data, M, earlier && !(kind & ROW_SPARSE), n, &b, acc);
        }
    if (M != 0.0)
        remove_magic(data->d, added, M, (int64_t *)(void *)acc);
}

DPK_INLINE void sum_gradients(row_kind kind, const dpk_data *data, const double *w,
                              const dpk_loss *loss, double M, double clip, double weight,
                              int64_t begin, int64_t end, int streamed, double *acc) {
    sum_rows(kind, data, w, loss, NULL, M, clip, weight, begin, end, streamed, acc);
}

DPK_INLINE void sum_differences(row_kind kind, const dpk_data *data, const double *w,
                                const dpk_loss *loss, const dpk_earlier *earlier, double M,
                                double clip, double weight, int64_t begin, int64_t end,
                                int streamed, double *acc) {
    const dpk_earlier own = *earlier;
    sum_rows(kind, data, w, loss, &own, M, clip, weight, begin, end, streamed, acc);
}

DEFINE_FOR_KINDS(8, sum_gradients,
                 (const dpk_data *data, const double *w, const dpk_loss *loss, double M,
                  double clip, double weight, int64_t begin, int64_t end, int streamed,
                  double *acc),
                 data, w, loss, M, clip, weight, begin, end, streamed, acc)
DEFINE_FOR_KINDS(8, sum_differences,
                 (const dpk_data *data, const double *w, const dpk_loss *loss,
                  const dpk_earlier *earlier, double M, double clip, double weight, int64_t begin,
                  int64_t end, int streamed, double *acc),
                 data, w, loss, earlier, M, clip, weight, begin, end, streamed, acc)

void dpk_sum_gradients(const dpk_data *data, const double *w, const dpk_loss *loss,
                       const dpk_earlier *earlier, double M, double clip, double weight,
                       int64_t begin, int64_t end, int streamed, double *acc) {
    const row_kind kind = kind_of(data);
    if (earlier)
        sum_differences_variants[kind](data, w, loss, earlier, M, clip, weight, begin, end,
                                       streamed, acc);
    else
        sum_gradients_variants[kind](data, w, loss, M, clip, weight, begin, end, streamed, acc);
}
