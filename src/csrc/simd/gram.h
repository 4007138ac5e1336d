/* Products of integer-valued rows in panels: acc += K^T K, blocks on and below the diagonal.
 *
 * Panel j holds the columns j WIDTH .. of all records, one after the other. Block (i, j), j <= i,
 * of an accumulator holds H[i WIDTH + r, j WIDTH + c] at c WIDTH + r. */
#ifndef DPK_GRAM_H
#define DPK_GRAM_H

#include "core/variants.h"
#include "simd/simd.h"

enum { BLOCK_SIZE = WIDTH * WIDTH };

/* Where block (i, 0) of an accumulator is. */
static inline intptr_t block_row(intptr_t i) { return i * (i + 1) / 2 * BLOCK_SIZE; }

/* Blocks (i .. i + height, j) += panels i .. i + height times panel j over n records. Later rows,
 * `step` bytes a record, are prefetched meanwhile. a, b: the panels i and j, with this stride; c:
 * block (i, j). */
DPK_INLINE void tile(int last, intptr_t n, const double *a, intptr_t stride, const double *b,
                     intptr_t i, double *c, uintptr_t ahead, uintptr_t step) {
    const int height = last + 1;
    vec sum[3][WIDTH];
    double *at[3] = {c, c + (i + 1) * BLOCK_SIZE, c + (2 * i + 3) * BLOCK_SIZE};
    const double *const a1 = a + stride, *const a2 = a1 + stride;
    EACH(h, height) EACH(k, WIDTH) sum[h][k] = VEC_LOAD(at[h] + k * WIDTH);
    for (intptr_t t = 0; t < n * WIDTH; t += WIDTH, ahead += step) {
        const vec x0 = VEC_LOAD(a + t);
        const vec x1 = height > 1 ? VEC_LOAD(a1 + t) : x0, x2 = height > 2 ? VEC_LOAD(a2 + t) : x0;
        __builtin_prefetch((const void *)ahead, 0, 2);
        __builtin_prefetch(b + t + 16 * WIDTH); /* of this panel, then of the next */
        EACH(k, WIDTH) {
            const vec y = VEC_SET(b[t + k]);
            sum[0][k] = VEC_FMA(x0, y, sum[0][k]);
            if (height > 1)
                sum[1][k] = VEC_FMA(x1, y, sum[1][k]);
            if (height > 2)
                sum[2][k] = VEC_FMA(x2, y, sum[2][k]);
        }
    }
    EACH(h, height) EACH(k, WIDTH) VEC_STORE(at[h] + k * WIDTH, sum[h][k]);
}

DEFINE_VARIANTS(3, tile,
                (intptr_t n, const double *a, intptr_t stride, const double *b, intptr_t i,
                 double *c, uintptr_t ahead, uintptr_t step),
                n, a, stride, b, i, c, ahead, step)

/* acc += products of all panels with those before them, over n records; `bytes` from `ahead` on are
 * prefetched meanwhile. */
static void add_gram(intptr_t d, intptr_t n, const double *panels, intptr_t stride, double *acc,
                     uintptr_t ahead, int64_t bytes) {
    const intptr_t count = (d + WIDTH - 1) / WIDTH;
    intptr_t height;
    /* Some count^2 / 6 tiles; the same line again does no harm, one left out is not missed. */
    const int64_t share = n > 0 ? bytes * 6 / (n * count * (count + 3)) : 0;
    const uintptr_t step = share > 64 ? 64 : (uintptr_t)share;
    for (intptr_t i = 0; i < count; i += height) {
        height = i == 0 && count % 3 ? count % 3 : 3; /* the small tiles where there are fewest */
        for (intptr_t j = 0; j < i + height; j++) {
            const intptr_t first = j > i ? j : i;
            tile_variants[i + height - first - 1](
                n, panels + first * stride, stride, panels + j * stride, first,
                acc + block_row(first) + j * BLOCK_SIZE, ahead, step);
            ahead += step * (uintptr_t)n;
        }
    }
}

#endif
