/* Sums of a block of dense rows times their factors at several models: of patterns on the grid, or
 * in chains where those give the same (gridsum.h). */
#pragma once

#include "core/gridsum.h"
#include "core/variants.h"
#include "simd/simd.h"

/* Models and vectors of columns of a tile of sums; and rows and models of a tile of margins in
 * single precision. Those of doubles have four rows and two models. */
enum { TILE = WIDTH == 8 ? 4 : 2, VECTORS = WIDTH >= 4 ? 2 : 1 };

/* Vectors of a tile of chains: more, as each chain waits for its last sum. */
#if WIDTH == 8
#define CHAINED 4
#else
#define CHAINED 3
#endif

/* acc += round(s x) over n rows, for TILE models and `last` + 1 vectors of columns. */
DPK_INLINE void add_tile(int last, intptr_t n, intptr_t width, intptr_t wide, const double *x,
                         const double *s, const double *M, double *acc) {
    const int vectors = last + 1;
    i8 sum[TILE * VECTORS];
    f8 magic_number[TILE];
    EACH(i, TILE) {
        magic_number[i] = f8_set(M[i]);
        EACH(v, vectors)
        sum[i * VECTORS + v] = i8_load((const int64_t *)(const void *)(acc + i * width + 8 * v));
    }
    for (intptr_t r = 0; r < n; r++, x += width, s += wide) {
        f8 factor[TILE];
        EACH(i, TILE) factor[i] = f8_keep(f8_set(s[i]));
        EACH(v, vectors) {
            const f8 a = f8_keep(f8_load(x + 8 * v));
            EACH(i, TILE)
            sum[i * VECTORS + v] =
                i8_add_bits(sum[i * VECTORS + v], f8_fma(factor[i], a, magic_number[i]));
        }
    }
    EACH(i, TILE)
    EACH(v, vectors)
    i8_store((int64_t *)(void *)(acc + i * width + 8 * v), sum[i * VECTORS + v]);
}
DEFINE_VARIANTS(2, add_tile,
                (intptr_t n, intptr_t width, intptr_t wide, const double *x, const double *s,
                 const double *M, double *acc),
                n, width, wide, x, s, M, acc)

/* The same in chains (gridsum.h), for `last` + 1 of CHAINED vectors. */
DPK_INLINE void chain_tile(int last, intptr_t n, intptr_t width, intptr_t wide, const double *x,
                           const double *s, const double *M, double *acc) {
    const int vectors = last + 1;
    f8 sum[TILE * CHAINED];
    EACH(i, TILE)
    EACH(v, vectors) sum[i * CHAINED + v] = f8_set(M[i]);
    for (intptr_t r = 0; r < n; r++, x += width, s += wide) {
        f8 factor[TILE];
        EACH(i, TILE) factor[i] = f8_keep(f8_set(s[i]));
        EACH(v, vectors) {
            const f8 a = f8_keep(f8_load(x + 8 * v));
            EACH(i, TILE) sum[i * CHAINED + v] = f8_fma(factor[i], a, sum[i * CHAINED + v]);
        }
    }
    EACH(i, TILE) {
        const i8 others = i8_set((uint64_t)(n - 1) * (uint64_t)bits_of(M[i])); /* of n rows' M */
        EACH(v, vectors) {
            int64_t *const to = (int64_t *)(void *)(acc + i * width + 8 * v);
            i8_store(to, i8_add(i8_add_bits(i8_load(to), sum[i * CHAINED + v]), others));
        }
    }
}
DEFINE_VARIANTS(CHAINED, chain_tile,
                (intptr_t n, intptr_t width, intptr_t wide, const double *x, const double *s,
                 const double *M, double *acc),
                n, width, wide, x, s, M, acc)

/* Vectors of the next tile, `most` at most: tiles have about as many. */
static inline intptr_t tile_vectors(intptr_t columns, intptr_t most) {
    const intptr_t vectors = (columns + 7) / 8, tiles = (vectors + most - 1) / most;
    return (vectors + tiles - 1) / tiles;
}
