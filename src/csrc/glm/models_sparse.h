/* A block of sparse rows at several models: for every entry vectors of eight models, since all
 * models have their number of a column together in memory. Models are taken four vectors at a time
 * from margins to sums, so that of some hundred columns these numbers stay in the L1 cache; two
 * vectors at a time where registers are few. */
#pragma once

#include "core/variants.h"
#include "glm/models_factors.h"

/* Number `l` of the lanes of `dot` (dots.h): the terms t = l (mod 16) of the products of a sparse
 * row with 8 `groups` models. In a short row there is one term at most. */
DPK_INLINE void sparse_lane(row_kind kind, const dpk_data *data, const row *x, int is_short,
                            intptr_t l, int groups, const double *w, intptr_t stride, f8 *lane) {
    EACH(g, groups) lane[g] = f8_zero();
    for (intptr_t t = l; t < x->n; t += 16) {
        intptr_t column;
        const f8 entry = f8_set(sparse_entry(kind, data, x, t, &column));
        EACH(g, groups) lane[g] = f8_fma(entry, f8_load(w + column * stride + 8 * g), lane[g]);
        if (is_short)
            break;
    }
}

DPK_INLINE void add_lanes(row_kind kind, const dpk_data *data, const row *x, int is_short,
                          int groups, const double *w, intptr_t stride, double *z) {
    f8 sum[4][4];
    EACH(l, 4) {
        f8 lane[4][4];
        EACH(k, 4)
        sparse_lane(kind, data, x, is_short, l + 4 * k, groups, w, stride, lane[k]);
        EACH(g, groups)
        sum[l][g] = f8_add(f8_add(lane[0][g], lane[2][g]), f8_add(lane[1][g], lane[3][g]));
    }
    EACH(g, groups)
    f8_store(z + 8 * g, f8_add(f8_add(sum[0][g], sum[2][g]), f8_add(sum[1][g], sum[3][g])));
}

/* Products of a sparse row with 8 `groups` models, their lanes added in the order of f8_sum. */
DPK_INLINE void sparse_dots(row_kind kind, const dpk_data *data, const row *x, int groups,
                            const double *w, intptr_t stride, double *z) {
    if (x->n <= 16)
        add_lanes(kind, data, x, 1, groups, w, stride, z);
    else
        add_lanes(kind, data, x, 0, groups, w, stride, z);
}

/* Products of n rows with the models. */
DPK_INLINE void multiply(row_kind kind, int groups, const dpk_data *shared, intptr_t n,
                         const block *b, const dpk_gradients_memory *own, intptr_t stride) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    for (intptr_t r = 0; r < n; r++) {
        const row x = row_at(kind, data, b->row[r]);
        sparse_dots(kind, data, &x, groups, own->w, stride, own->z + r * 8 * groups);
    }
}

/* Whether all entries of a row are one number, as those of categories are: it is rounded once. */
DPK_INLINE int has_one_value(row_kind kind, const dpk_data *data, const row *x) {
    intptr_t column, t = 0;
    unsigned differ = 0;
    if (kind & ROW_MAPPED || x->n < 2)
        return 0;
    const f8 first = f8_set(sparse_entry(kind, data, x, 0, &column));
    for (; t + 8 <= x->n; t += 8)
        differ |= f8_differ(entries(kind, data, x, t, 8), first);
    if (t < x->n)
        differ |= f8_differ(entries(kind, data, x, t, x->n & 7), first) << (8 - (x->n & 7)) & 0xff;
    return !differ;
}

/* round(s x) of entry t of a row for 8 `groups` models, in steps of the grid. Which entries a row
 * has differs from row to row, so that M is taken out again at once. */
DPK_INLINE intptr_t round_entry(row_kind kind, int groups, const dpk_data *data, const row *x,
                                intptr_t t, const f8 *factor, const f8 *M, i8 *steps) {
    intptr_t column;
    const f8 entry = f8_set(sparse_entry(kind, data, x, t, &column));
    EACH(g, groups)
    steps[g] = i8_subtract(i8_bits(f8_fma(factor[g], entry, M[g])), i8_bits(M[g]));
    return column;
}

DPK_INLINE void add_steps(int groups, const i8 *steps, int64_t *sum) {
    EACH(g, groups) i8_store(sum + 8 * g, i8_add(i8_load(sum + 8 * g), steps[g]));
}

/* acc += round(s x) over n rows. */
DPK_INLINE void add_up(row_kind kind, int groups, const dpk_data *shared, intptr_t n,
                       const block *b, const dpk_gradients_memory *own, intptr_t stride) {
    const dpk_data copy = *shared, *const data = &copy;
    int64_t *const acc = (int64_t *)(void *)own->acc;
    f8 M[4];
    EACH(g, groups) M[g] = f8_load(own->M + 8 * g);
    for (intptr_t r = 0; r < n; r++) {
        const row x = row_at(kind, data, b->row[r]);
        f8 factor[4];
        i8 steps[4];
        intptr_t t = 0;
        if (!(b->norm[r] <= DBL_MAX))
            continue;
        EACH(g, groups) factor[g] = f8_load(own->s + 8 * (r * groups + g));
        if (has_one_value(kind, data, &x)) {
            (void)round_entry(kind, groups, data, &x, 0, factor, M, steps);
            for (; t < x.n; t++)
                add_steps(groups, steps, acc + x.at[t] * stride);
        }
        for (; t < x.n + data->intercept; t++) {
            const intptr_t column = round_entry(kind, groups, data, &x, t, factor, M, steps);
            add_steps(groups, steps, acc + column * stride);
        }
    }
}

/* One function for so many vectors and each form of a sparse row, its kind but for ROW_SPARSE: a
 * single one would spill registers. */
#define SPARSE_FUNCTION(name, groups)                                                              \
    DPK_INLINE void name##_by_##groups(int form, const dpk_data *data, intptr_t n, const block *b, \
                                       const dpk_gradients_memory *own, intptr_t stride) {         \
        name(form | ROW_SPARSE, groups, data, n, b, own, stride);                                  \
    }                                                                                              \
    DEFINE_VARIANTS(4, name##_by_##groups,                                                         \
                    (const dpk_data *data, intptr_t n, const block *b,                             \
                     const dpk_gradients_memory *own, intptr_t stride),                            \
                    data, n, b, own, stride)
SPARSE_FUNCTION(multiply, 1)
SPARSE_FUNCTION(multiply, 2)
SPARSE_FUNCTION(add_up, 1)
SPARSE_FUNCTION(add_up, 2)
#if WIDTH == 8
SPARSE_FUNCTION(multiply, 4)
SPARSE_FUNCTION(add_up, 4)
#endif

typedef void sparse_function(const dpk_data *, intptr_t, const block *,
                             const dpk_gradients_memory *, intptr_t);
/* For 8, 16 and, where there are registers, 32 models. */
#if WIDTH == 8
enum { SPARSE_MODELS = 32 };
static sparse_function *const *const multiply_by[] = {
    multiply_by_1_variants, multiply_by_2_variants, multiply_by_4_variants};
static sparse_function *const *const add_up_by[] = {add_up_by_1_variants, add_up_by_2_variants,
                                                    add_up_by_4_variants};
#else
enum { SPARSE_MODELS = 16 };
static sparse_function *const *const multiply_by[] = {multiply_by_1_variants,
                                                      multiply_by_2_variants};
static sparse_function *const *const add_up_by[] = {add_up_by_1_variants, add_up_by_2_variants};
#endif

static inline void sparse_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                                double weight, intptr_t n, block *b,
                                const dpk_gradients_memory *all) {
    const int form = kind & ~ROW_SPARSE;
    const intptr_t stride = all->wide;
    for (intptr_t i = 0; i < stride;) {
        dpk_gradients_memory own = *all;
        own.wide = stride - i >= SPARSE_MODELS ? SPARSE_MODELS : stride - i >= 16 ? 16 : 8;
        own.w += i, own.acc += i, own.bias += i, own.clip += i, own.M += i;
        multiply_by[own.wide / 16][form](data, n, b, &own, stride);
        find_model_factors(data, loss, weight, n, b, &own);
        add_up_by[own.wide / 16][form](data, n, b, &own, stride);
        i += own.wide;
    }
}
