/* Blocks of dense rows of floats in single precision: margins, and sums on a grid as 32-bit
 * integers, which are widened at the end of a block. */
#pragma once

#include "rows/block.h"
#include "rows/load.h"

/* Rows whose sums are finished together, and rows at a time before that: there are registers for as
 * many chains. */
enum { SINGLE_DOTS = 4, SINGLE_CHAINS = WIDTH == 8 ? 4 : 1 };

/* Floats of a block's rows, which stay in the L1 cache beside the next block's; and distances of
 * prefetches: into the L1 cache from a row that is added, and into the L2 cache. What the L2 cache
 * gets is asked for line by line in the order of memory, half of it while a block is multiplied and
 * half while it is added (prefetch.h); it is a block ahead at least. */
enum {
    SINGLE_BLOCK = WIDTH == 8 ? 4096 : 2048,
    SINGLE_NEAR = SINGLE_BLOCK,
    SINGLE_FAR = 6144,
};

/* A function whose loops read memory begins a line of the instruction cache: some other places cost
 * half as much time again. */
#define SINGLE_FUNCTION static __attribute__((noinline, aligned(64)))

/* What the L2 cache gets while the block that begins with record `first` is at work, or NULL: rows
 * of a minibatch are no neighbours. */
static inline const float *single_far(const dpk_data *data, int64_t first) {
    const intptr_t least = 8 * data->p, far = least < SINGLE_FAR ? SINGLE_FAR : least;
    return data->rows ? NULL : (const float *)data->X + first * data->p + far;
}

/* Records of a block, `most` at most. */
static inline intptr_t single_block(const dpk_data *data, intptr_t most) {
    const intptr_t rows = SINGLE_BLOCK / data->p & ~(intptr_t)7;
    return rows < 8 ? 8 : rows > most ? most : rows;
}

/* Upper bounds of |[x, 1]| from squares that were computed in floats. */
DPK_INLINE void single_norms(const dpk_data *data, intptr_t n, block *b) {
    const double one = intercept_of(data);
    int outside = 0;
    for (intptr_t i = 0; i < n; i++)
        outside |= outside_of_floats(b->norm[i]);
    for (intptr_t i = 0; outside && i < n; i++)
        if (outside_of_floats(b->norm[i]))
            b->norm[i] = square_of(ROW_FLOAT32, data, b->row[i]);
    for (intptr_t i = 0; i < n; i++)
        b->norm[i] = norm_up_single(data, b->norm[i], one);
}

/* sums[i] = x[i] . w, where w is not NULL, and squares[i] = x[i] . x[i], i < SINGLE_CHAINS, but for
 * the last three additions. w: (p,); far: (lines * p,) is prefetched, or NULL. */
DPK_INLINE void single_chains(intptr_t p, int lines, const float *far, const float *const *x,
                              const float *w, f8 *sums, f8 *squares) {
    f16 a[SINGLE_CHAINS], b[SINGLE_CHAINS], aa[SINGLE_CHAINS], bb[SINGLE_CHAINS];
    EACH(i, SINGLE_CHAINS) a[i] = b[i] = aa[i] = bb[i] = f16_zero();
#define ADD_TERMS(sum, square, k, left)                                                            \
    do {                                                                                           \
        const f16 wk = w ? f16_load_part(w + (k), left) : f16_zero();                              \
        EACH(i, SINGLE_CHAINS) {                                                                   \
            const f16 xk = f16_keep(f16_load_part(x[i] + (k), left));                              \
            if (i < lines)                                                                         \
                __builtin_prefetch(far + lines * (k) + 16 * i, 0, 2);                              \
            if (w)                                                                                 \
                sum[i] = f16_fma(xk, wk, sum[i]);                                                  \
            square[i] = f16_fma(xk, xk, square[i]);                                                \
        }                                                                                          \
    } while (0)
    intptr_t k = 0;
    for (; k + 32 <= p; k += 32) {
        ADD_TERMS(a, aa, k, 16);
        ADD_TERMS(b, bb, k + 16, 16);
    }
    if (k + 16 <= p) {
        ADD_TERMS(a, aa, k, 16);
        k += 16;
        if (k < p)
            ADD_TERMS(b, bb, k, p & 15);
    } else if (k < p) {
        ADD_TERMS(a, aa, k, p & 15);
    }
#undef ADD_TERMS
    EACH(i, SINGLE_CHAINS) {
        sums[i] = f16_halves(f16_add(a[i], b[i]));
        squares[i] = f16_halves(f16_add(aa[i], bb[i]));
    }
}

/* z[i] = x[i] . w, where w is not NULL, and square[i] = x[i] . x[i], i < SINGLE_DOTS. w: (p,); far:
 * (SINGLE_DOTS / 2, p) is prefetched in the order of memory, or NULL. */
DPK_INLINE void single_dots(intptr_t p, const float *far, const float *const *x, const float *w,
                            double *z, double *square) {
    f8 sums[2 * SINGLE_DOTS];
    double all[2 * SINGLE_DOTS];
    EACH(group, SINGLE_DOTS / SINGLE_CHAINS) {
        const int i = group * SINGLE_CHAINS, lines = (SINGLE_CHAINS + 1) / 2;
        if (far && i % 2 == 0)
            single_chains(p, lines, far + i / 2 * p, x + i, w, sums + i, sums + SINGLE_DOTS + i);
        else
            single_chains(p, 0, NULL, x + i, w, sums + i, sums + SINGLE_DOTS + i);
    }
    f8_sum_each(sums, all);
    if (w)
        memcpy(z, all, SINGLE_DOTS * sizeof *z);
    memcpy(square, all + SINGLE_DOTS, SINGLE_DOTS * sizeof *square);
}

/* Numbers and norms of the records first .. first + n, n <= DPK_BLOCK, and products with w where it
 * is not NULL; norms that are stored are not read, as they are others. w: (p,); far: the first half
 * of what is prefetched beside n rows, or NULL. */
SINGLE_FUNCTION void single_products(const dpk_data *data, const float *w, const float *far,
                                     int64_t first, intptr_t n, block *b) {
    for (intptr_t i = 0; i < n; i++)
        b->row[i] = data->rows ? data->rows[first + i] : first + i;
    for (intptr_t i = 0; i < n; i += SINGLE_DOTS) {
        const float *x[SINGLE_DOTS];
        /* The last rows are filled up with copies; blocks have room for their results. */
        for (int r = 0; r < SINGLE_DOTS; r++)
            x[r] = (const float *)data->X + b->row[i + r < n ? i + r : n - 1] * data->p;
        single_dots(data->p, far ? far + i / 2 * data->p : NULL, x, w, b->z + i, b->norm + i);
    }
    single_norms(data, n, b);
}

/* As load_margins, with margins and norms in single precision. w: (p,), or NULL: no margins; bias:
 * of the intercept; far: as for single_products. */
DPK_INLINE void single_load(const dpk_data *data, const float *w, double bias, const float *far,
                            int64_t first, intptr_t n, block *b) {
    single_products(data, w, far, first, n, b);
    for (intptr_t i = 0; i < n; i++)
        b->y[i] = data->y[b->row[i]];
    find_ratios(data, n, b);
    for (intptr_t i = 0; w && i < n; i++)
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
    if (w)
        add_margin_offsets(data, n, b->row, b->z);
}

/* acc += sum over n rows of the integers nearest to t x, for `vectors` vectors of columns from k
 * on, of which the last has `left` <= 16 columns. ahead: (n,) rows that the L1 cache gets; far:
 * (n / 2, p) what the L2 cache gets, of which it is the share beside these columns, or NULL. */
DPK_INLINE void single_columns(int vectors, intptr_t left, intptr_t k, intptr_t n, const float *far,
                               const float *const *x, const float *const *ahead, const float *t,
                               int64_t *acc) {
    i16 sum[4];
    const float *line = far ? far + k * n / 2 : NULL;
    EACH(v, 4) sum[v] = i16_zero();
    for (intptr_t r = 0; r < n; r++) {
        const f16 factor = f16_set(t[r]);
        const float *const here = x[r] + k, *const there = ahead[r] + k;
        if (line) { /* for every two vectors, and of an odd number at every second row */
            const intptr_t more = vectors & r & 1;
            EACH(v, vectors / 2) __builtin_prefetch(line + 16 * v, 0, 2);
            if (more)
                __builtin_prefetch(line + 16 * (vectors / 2), 0, 2);
            line += 16 * (vectors / 2 + more);
        }
        EACH(v, vectors) {
            __builtin_prefetch(there + 16 * v);
            sum[v] = i16_add_product(sum[v], factor,
                                     f16_load_part(here + 16 * v, v < vectors - 1 ? 16 : left));
        }
    }
    EACH(v, vectors) i16_add_to(acc + k + 16 * v, sum[v], v < vectors - 1 ? 16 : left);
}

/* acc += the integers nearest to s / q [x, 1] over the block's n rows, steps = 1 / q. Rows that are
 * not finite must have been left out. ahead: (n,) rows of a minibatch that are prefetched, or NULL;
 * far: the second half of what is prefetched beside n other rows, or NULL; acc: (d,). */
DPK_INLINE void single_add(const dpk_data *data, double steps, const int64_t *ahead,
                           const float *far, intptr_t n, const block *b, int64_t *acc) {
    const intptr_t p = data->p, distance = 2 * p < SINGLE_NEAR ? SINGLE_NEAR : 2 * p;
    const float *const X = data->X, *x[DPK_BLOCK], *next[DPK_BLOCK];
    float t[DPK_BLOCK] = {0.0F};
    intptr_t k = 0;
    for (intptr_t r = 0; r < n; r++) {
        x[r] = X + b->row[r] * p;
        next[r] = ahead ? X + ahead[r] * p : x[r] + distance;
        t[r] = single_factor(b->s[r], steps);
    }
    for (; k + 64 <= p; k += 64)
        single_columns(4, 16, k, n, far, x, next, t, acc);
    if (p - k > 48)
        single_columns(4, p - k - 48, k, n, far, x, next, t, acc);
    else if (p - k > 32)
        single_columns(3, p - k - 32, k, n, far, x, next, t, acc);
    else if (p - k > 16)
        single_columns(2, p - k - 16, k, n, far, x, next, t, acc);
    else if (p > k)
        single_columns(1, p - k, k, n, far, x, next, t, acc);
    if (data->intercept) {
        i16 ones = {0};
        int64_t lane[16] = {0};
        for (intptr_t r = 0; r < n; r += 16)
            ones = i16_add_product(ones, f16_load(t + r), f16_set(1.0F));
        i16_add_to(lane, ones, 16);
        for (int l = 0; l < 16; l++)
            acc[p] += lane[l];
    }
}
