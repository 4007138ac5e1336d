/* Products of matrices in register tiles, C = start + A B, B in panels.
 *
 * An entry of C is a chain of fused multiply-adds, the contracted index rising: its bits depend on
 * no tile, no neighbour and no place in the matrix, and are those of every machine with a fused
 * multiply-add. That is why forward passes use this and no BLAS: a record's gradient must not
 * depend on the records beside it. Panel p of a matrix holds its columns 8 p .. 8 p + 8, row after
 * row, the last one filled up: what a tile reads is then one stretch of memory, on few pages. */
#pragma once

#include <string.h>
#include "core/variants.h"
#include "simd/simd.h"

/* Rows of a tile: three registers a row, and what else a step needs, fill the register file. */
enum { TILE_ROWS = WIDTH == 8 ? 8 : 4 };

/* Rows of B that stay in the L1 cache while A passes. */
enum { STEPS = 192 };

/* c (TILE_ROWS, wide WIDTH) = start + A B over n steps, wide = last + 1. a: A, `down` from one row
 * to the next and `along` from one column to the next; b0, b1, b2: what the tile's registers read
 * of B; start: row length lds, 0 for one row, or NULL for zeros; c: row length ldc. */
DPK_INLINE void product_tile(int last, intptr_t n, const double *a, intptr_t down, intptr_t along,
                             const double *b0, const double *b1, const double *b2,
                             const double *start, intptr_t lds, double *c, intptr_t ldc) {
    const int wide = last + 1;
    vec sum[TILE_ROWS][3];
    EACH(r, TILE_ROWS)
    EACH(v, wide) sum[r][v] = start ? VEC_LOAD_ANY(start + r * lds + v * WIDTH) : VEC_SET(0.0);
    for (intptr_t t = 0; t < 8 * n; t += 8, a += along) {
        const vec y0 = VEC_LOAD(b0 + t);
        const vec y1 = wide > 1 ? VEC_LOAD(b1 + t) : y0;
        const vec y2 = wide > 2 ? VEC_LOAD(b2 + t) : y0;
        EACH(r, TILE_ROWS) {
            const vec x = VEC_SET(a[r * down]);
            sum[r][0] = VEC_FMA(x, y0, sum[r][0]);
            if (wide > 1)
                sum[r][1] = VEC_FMA(x, y1, sum[r][1]);
            if (wide > 2)
                sum[r][2] = VEC_FMA(x, y2, sum[r][2]);
        }
    }
    EACH(r, TILE_ROWS) EACH(v, wide) VEC_STORE_ANY(c + r * ldc + v * WIDTH, sum[r][v]);
}

DEFINE_VARIANTS(3, product_tile,
                (intptr_t n, const double *a, intptr_t down, intptr_t along, const double *b0,
                 const double *b1, const double *b2, const double *start, intptr_t lds, double *c,
                 intptr_t ldc),
                n, a, down, along, b0, b1, b2, start, lds, c, ldc)

/* Where register v of the rows of a matrix is, panels with stride `panel`. */
static inline const double *register_of(const double *b, intptr_t panel, intptr_t v) {
    return b + v * WIDTH / 8 * panel + v * WIDTH % 8;
}

/* C = start + A B. Rows of A and C are read and written up to the next multiple of TILE_ROWS,
 * columns of C to one of eight; a: (rows, n); b: (n, columns), panels with stride `panel`; start:
 * one row, or NULL. */
static inline void multiply(intptr_t rows, intptr_t columns, intptr_t n, const double *a,
                            intptr_t lda, const double *b, intptr_t panel, const double *start,
                            double *c, intptr_t ldc) {
    const intptr_t count = dpk_padded(columns) / WIDTH;
    for (intptr_t v = 0; v < count; v += 3) {
        const intptr_t wide = count - v < 3 ? count - v : 3, k = v * WIDTH;
        const double *const b0 = register_of(b, panel, v), *const b1 = register_of(b, panel, v + 1),
                            *const b2 = register_of(b, panel, v + 2);
        for (intptr_t r = 0; r < rows; r += TILE_ROWS)
            product_tile_variants[wide - 1](n, a + r * lda, lda, 1, b0, b1, b2,
                                            start ? start + k : start, 0, c + r * ldc + k, ldc);
    }
}

/* C += A^T B for three registers of columns of B from number v on, or what is left; C has rows of
 * its own length, and is read and written nowhere else. a: (n, rows), b: (n, columns), in panels;
 * c: (rows, columns). */
static inline void add_strip(intptr_t rows, intptr_t columns, intptr_t n, const double *a,
                             intptr_t a_panel, const double *b, intptr_t b_panel, intptr_t v,
                             double *c) {
    const intptr_t left = columns - v * WIDTH, width = left < 3 * WIDTH ? left : 3 * WIDTH;
    const intptr_t number = (width - 1) / WIDTH;
    _Alignas(64) double part[TILE_ROWS * 3 * WIDTH] = {0.0};
    for (intptr_t t = 0; t < n; t += STEPS) {
        const intptr_t steps = n - t < STEPS ? n - t : STEPS;
        const double *const from = b + 8 * t, *const b0 = register_of(from, b_panel, v),
                            *const b1 = register_of(from, b_panel, v + 1),
                            *const b2 = register_of(from, b_panel, v + 2);
        for (intptr_t r = 0; r < rows; r += TILE_ROWS) {
            const intptr_t height = rows - r < TILE_ROWS ? rows - r : TILE_ROWS;
            const double *const at = a + r / 8 * a_panel + 8 * t + r % 8;
            double *const corner = c + r * columns + v * WIDTH;
            if (height == TILE_ROWS && width == 3 * WIDTH) {
                product_tile_variants[number](steps, at, 1, 8, b0, b1, b2, corner, columns, corner,
                                              columns);
                continue;
            }
            for (intptr_t i = 0; i < height; i++)
                memcpy(part + i * 3 * WIDTH, corner + i * columns, (size_t)width * sizeof(double));
            product_tile_variants[number](steps, at, 1, 8, b0, b1, b2, part, 3 * WIDTH, part,
                                          3 * WIDTH);
            for (intptr_t i = 0; i < height; i++)
                memcpy(corner + i * columns, part + i * 3 * WIDTH, (size_t)width * sizeof(double));
        }
    }
}
