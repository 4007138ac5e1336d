/* Clipped gradients of a block of records: margins, one evaluation of the loss, factors clamped to
 * the clip bound, then the rows are added while they are in cache. Wide rows are taken one at a
 * time: a row that comes from memory is read once, and the loss of one record is evaluated while
 * the next row is loaded. */
#include "glm/sum_gradients.h"
#include "core/variants.h"
#include "models/evaluate.h"
#include "rows/load.h"
#include "rows/single.h"

/* (n,) the known margins at the earlier point of the records from `first` on, n <= DPK_BLOCK;
 * space: (n,) where they are gathered. */
DPK_INLINE const double *known_margins(const dpk_data *data, const dpk_earlier *earlier,
                                       int64_t first, intptr_t n, double *space) {
    if (!data->rows)
        return earlier->z + first;
    for (intptr_t i = 0; i < n; i++)
        space[i] = earlier->z[data->rows[first + i]];
    return space;
}

/* s, brought to between 0 and that part of the difference of margins which a convex loss of this
 * curvature reaches; a NaN among the margins makes it 0. No branches: loops of this are
 * vectorised. docs/proofs/differences.md */
DPK_INLINE double between_margins(double curvature, double ratio, double z, double before,
                                  double s) {
    const double most = ratio * curvature * (z - before);
    const double above = most > 0.0 ? most : 0.0, below = most < 0.0 ? most : 0.0;
    s = s > above ? above : s;
    return s < below ? below : s;
}

/* A record of a wide row by itself. */
typedef struct {
    int64_t row;
    double z, norm;
    double earlier; /* product with the earlier point, whose margin is not known */
} record;

/* earlier: NULL, or the point of a difference; copy: NULL, or where to store the row as doubles. */
DPK_INLINE record load_record(row_kind kind, const dpk_data *data, const double *w,
                              const dpk_earlier *earlier, int64_t i, double *copy) {
    record one = {data->rows ? data->rows[i] : i, 0.0, 0.0, 0.0};
    if (data->norm) {
        one.norm = data->norm[one.row];
        one.z = dot(kind, data, one.row, w, NULL, NULL, copy);
    } else {
        one.z = dot(kind, data, one.row, w, NULL, &one.norm, copy);
        one.norm = norm_up(one.norm + intercept_of(data), data->d);
    }
    if (earlier && !earlier->z)
        one.earlier = dot(kind, data, one.row, earlier->w, NULL, NULL, NULL);
    return one;
}

/* s: (n,) derivatives at the known margins of the earlier point, of the records from `first` on, n
 * <= DPK_BLOCK: they depend on no margin that is still to be computed, and one call for a block is
 * faster than one for each. */
DPK_INLINE void known_derivatives(const dpk_data *data, const dpk_loss *loss,
                                  const dpk_earlier *earlier, int64_t first, intptr_t n,
                                  double *s) {
    double y[DPK_BLOCK], z[DPK_BLOCK];
    int64_t row[DPK_BLOCK];
    for (intptr_t i = 0; i < n; i++) {
        row[i] = data->rows ? data->rows[first + i] : first + i;
        y[i] = data->y[row[i]];
    }
    evaluate(loss, n, y, known_margins(data, earlier, first, n, z), NULL, s, NULL);
    weigh_records(data, n, row, s);
}

/* The records begin .. end one by one; the next one's row is loaded while the loss of this one is
 * evaluated. Returns how many were added. copies: (2, dpk_padded(p)) where rows that are not plain
 * doubles are kept as such between margin and sum, or NULL. */
DPK_INLINE int64_t add_wide(row_kind kind, const dpk_gradients *of, const dpk_earlier *earlier,
                            int64_t begin, int64_t end, double *copies, double *acc) {
    const dpk_data *const data = of->data;
    const double *const w = of->w;
    const double bias = data->intercept ? w[data->p] : 0.0;
    const double earlier_bias =
        earlier && !earlier->z && data->intercept ? earlier->w[data->p] : 0.0;
    const intptr_t width = dpk_padded(data->p);
    const int64_t distance = 2 + PREFETCH_DISTANCE / (data->p * entry_size(kind));
    double known[DPK_BLOCK]; /* derivatives at the earlier point */
    int64_t added = 0;
    record next = load_record(kind, data, w, earlier, begin, copies);
    for (int64_t i = begin; i < end; i++) {
        const record one = next;
        const int parity = (int)((i - begin) & 1);
        const double y = data->y[one.row], ratio = row_ratio(data, one.norm);
        const double z = margin_of(data, one.row, ratio * (one.z + bias));
        double s = ratio * weighted_slope(data, of->loss, one.row, y, z);
        if (earlier) {
            const double lim = factor_limit(earlier->clip, one.norm);
            const intptr_t k = (i - begin) % DPK_BLOCK;
            if (earlier->z && k == 0)
                known_derivatives(data, of->loss, earlier, i, rows_left(i, end, DPK_BLOCK), known);
            const double before =
                earlier->z ? earlier->z[one.row]
                           : margin_of(data, one.row, ratio * (one.earlier + earlier_bias));
            const double there =
                earlier->z ? known[k] : weighted_slope(data, of->loss, one.row, y, before);
            s = clamp_without_branch(s, lim) - clamp_without_branch(ratio * there, lim);
            if (earlier->curvature < HUGE_VAL)
                s = between_margins(earlier->curvature, ratio, z, before, s);
            if (earlier->z_new)
                earlier->z_new[i] = z;
        }
        s = of->weight * clamp_without_branch(s, factor_limit(of->clip, one.norm));
        if (i + 1 < end)
            next = load_record(kind, data, w, earlier, i + 1,
                               copies ? copies + (1 - parity) * width : NULL);
        /* Zeros are skipped or added as in blocks (sum_rows). */
        if (earlier ? one.norm <= DBL_MAX || s != 0.0 : s != 0.0) {
            const int64_t *const ahead = rows_ahead(kind, data, i + distance, 1);
            row x = row_at(kind, data, one.row);
            if (ahead)
                x.ahead = (uintptr_t)element(kind, data->X, *ahead * data->p);
            if (copies)
                x.x = copies + parity * width;
            add_dense(copies ? 0 : kind, data, 1, &s, &x, NULL, of->M, acc);
            added++;
        }
    }
    return added;
}

/* Rows longer than this are converted twice: their copies would not stay in the L1 cache. */
enum { COPIED = 1024 };

DPK_INLINE int64_t add_wide_rows(row_kind kind, const dpk_gradients *what,
                                 const dpk_earlier *earlier, int64_t begin, int64_t end,
                                 double *acc) {
    const dpk_data own = *what->data; /* local copies: see rows.h */
    dpk_gradients of = *what;
    of.data = &own;
    if (!(kind & (ROW_FLOAT32 | ROW_MAPPED)) || own.p > COPIED)
        return add_wide(kind, &of, earlier, begin, end, NULL, acc);
    _Alignas(64) double copies[2 * COPIED];
    return add_wide(kind, &of, earlier, begin, end, copies, acc);
}

DPK_INLINE void add_wide_gradients(row_kind kind, const dpk_gradients *of, int64_t begin,
                                   int64_t end, double *acc, int64_t *added) {
    *added = add_wide_rows(kind, of, NULL, begin, end, acc);
}

DPK_INLINE void add_wide_differences(row_kind kind, const dpk_gradients *of, int64_t begin,
                                     int64_t end, double *acc, int64_t *added) {
    const dpk_earlier own = *of->earlier;
    *added = add_wide_rows(kind, of, &own, begin, end, acc);
}

DEFINE_FOR_KINDS(static void wide_gradients, of->data, 4, add_wide_gradients,
                 (const dpk_gradients *of, int64_t begin, int64_t end, double *acc, int64_t *added),
                 of, begin, end, acc, added)
DEFINE_FOR_KINDS(static void wide_differences, of->data, 4, add_wide_differences,
                 (const dpk_gradients *of, int64_t begin, int64_t end, double *acc, int64_t *added),
                 of, begin, end, acc, added)

/* From derivatives in b->s to the differences of clipped ones, as factors of the stored rows. */
static void subtract_earlier(const dpk_data *data, const dpk_loss *loss, const dpk_earlier *earlier,
                             int64_t first, intptr_t n, block *b) {
    double space[DPK_BLOCK], s[DPK_BLOCK];
    const double *z = space, clip = earlier->clip;
    int long_ones = 0;
    if (earlier->z)
        z = known_margins(data, earlier, first, n, space);
    else {
        const double bias = data->intercept ? earlier->w[data->p] : 0.0;
        dpk_dots(data, earlier->w, n, b->row, space);
        for (intptr_t i = 0; i < n; i++)
            space[i] = b->ratio[i] * (space[i] + bias);
        add_margin_offsets(data, n, b->row, space);
    }
    evaluate(loss, n, b->y, z, NULL, s, NULL);
    weigh_records(data, n, b->row, s);
    for (intptr_t i = 0; i < n; i++) {
        b->s[i] *= b->ratio[i];
        s[i] *= b->ratio[i];
        long_ones |=
            !certainly_short(b->s[i], b->norm[i], clip) | !certainly_short(s[i], b->norm[i], clip);
    }
    /* One division serves both clamps. */
    if (long_ones)
        for (intptr_t i = 0; i < n; i++) {
            const double lim = factor_limit(clip, b->norm[i]);
            b->s[i] = clamp_scalar(b->s[i], lim);
            s[i] = clamp_scalar(s[i], lim);
        }
    for (intptr_t i = 0; i < n; i++)
        b->s[i] -= s[i];
    if (earlier->curvature < HUGE_VAL)
        for (intptr_t i = 0; i < n; i++)
            b->s[i] = between_margins(earlier->curvature, b->ratio[i], b->z[i], z[i], b->s[i]);
    if (earlier->z_new) /* which may be where z is */
        memcpy(earlier->z_new + first, b->z, (size_t)n * sizeof *b->z);
}

/* From a block's rows and margins to the factors of its rows. */
static void find_factors(const dpk_gradients *of, int64_t first, intptr_t n, block *b) {
    const dpk_earlier *const earlier = of->earlier;
    evaluate(of->loss, n, b->y, b->z, NULL, b->s, NULL);
    weigh_records(of->data, n, b->row, b->s);
    /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
    if (earlier)
        subtract_earlier(of->data, of->loss, earlier, first, n, b);
    clamp_factors(of->clip, n, b->norm, earlier ? NULL : b->ratio, b->s);
    for (intptr_t r = 0; r < n; r++)
        b->s[r] *= of->weight;
}

static int64_t add_blocks(const dpk_gradients *of, int64_t begin, int64_t end, intptr_t rows,
                          double *acc) {
    const dpk_data *const data = of->data;
    const row_kind kind = kind_of(data);
    int64_t added = 0;
    block b;
    for (int64_t i = begin; i < end; i += rows) {
        const intptr_t n = rows_left(i, end, rows);
        later_rows later = later_than(kind, data, i, rows, n);
        dpk_load_block(data, of->w, i, n, later, &b);
        find_factors(of, i, n, &b);
        /* Where both gradients are clipped a difference is 0, which is hard to predict: a branch
         * that leaves such dense rows out takes longer than adding them. */
        skip_half(n, &later);
        dpk_add_rows(data, of->M, of->earlier != NULL, later, n, &b, acc, &added);
    }
    return added;
}

static void sum_rows(const dpk_gradients *of, int64_t begin, int64_t end, double *acc) {
    const dpk_data *const data = of->data;
    const intptr_t rows = block_rows(data, of->streamed);
    int64_t added = 0;
    memset(acc, 0, (size_t)dpk_padded(data->d) * sizeof(double));
    if (rows > 1)
        added = add_blocks(of, begin, end, rows, acc);
    else if (of->earlier)
        wide_differences(of, begin, end, acc, &added);
    else
        wide_gradients(of, begin, end, acc, &added);
    if (of->M != 0.0)
        remove_magic(data->d, added, of->M, (int64_t *)(void *)acc);
}

/* The same in single precision. Differences need margins in double precision, as the derivatives
 * that are subtracted may be close, and may be at margins that are stored. */
DPK_INLINE void sum_single(const dpk_gradients *what, const dpk_earlier *earlier, int64_t begin,
                           int64_t end, int64_t *acc) {
    const dpk_data own = *what->data, *const data = &own;
    dpk_gradients copy = *what;
    copy.data = data;
    const dpk_gradients *const of = &copy;
    const intptr_t rows = single_block(data, of->single);
    const double bias = data->intercept ? of->w[data->p] : 0.0;
    _Alignas(64) float w[SINGLE_COLUMNS];
    block b;
    for (intptr_t k = 0; k < data->p && !earlier; k++)
        w[k] = (float)of->w[k];
    memset(acc, 0, (size_t)data->d * sizeof *acc);
    for (int64_t i = begin; i < end; i += rows) {
        const intptr_t n = rows_left(i, end, rows);
        const float *const far = single_far(data, i);
        if (earlier)
            load_margins(ROW_FLOAT32, data, of->w, i, n, 1,
                         (later_rows){(const char *)far, NULL, 4 * data->p}, &b);
        else
            single_load(data, w, bias, far, i, n, &b);
        find_factors(of, i, n, &b);
        const intptr_t left = left_in(earlier != NULL, n, &b);
        single_add(data, of->steps, rows_ahead(ROW_FLOAT32, data, i + 2 * rows, n),
                   far ? far + n * data->p / 2 : NULL, left, &b, acc);
    }
}

SINGLE_FUNCTION void single_gradients(const dpk_gradients *of, int64_t begin, int64_t end,
                                      int64_t *acc) {
    sum_single(of, NULL, begin, end, acc);
}

SINGLE_FUNCTION void single_differences(const dpk_gradients *of, int64_t begin, int64_t end,
                                        int64_t *acc) {
    const dpk_earlier own = *of->earlier;
    sum_single(of, &own, begin, end, acc);
}

void dpk_sum_gradients(const dpk_gradients *of, int64_t begin, int64_t end, double *acc) {
    if (of->single && of->earlier)
        single_differences(of, begin, end, (int64_t *)(void *)acc);
    else if (of->single)
        single_gradients(of, begin, end, (int64_t *)(void *)acc);
    else
        sum_rows(of, begin, end, acc);
}
