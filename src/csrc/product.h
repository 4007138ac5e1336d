/* Products of row-major matrices in register tiles, C = start + A B.
 *
 * An entry of C is a chain of fused multiply-adds, the contracted index rising: its bits depend on
 * no tile, no neighbour and no place in the matrix, and are those of every machine with a fused
 * multiply-add. That is why forward passes use this and no BLAS: a record's gradient must not
 * depend on the records beside it. Rows of B, C and `start` begin at a multiple of WIDTH. */
#ifndef DPK_PRODUCT_H
#define DPK_PRODUCT_H

#include "registers.h"

/* Rows of a tile: three registers a row, and what else a step needs, fill the register file. */
enum { TALL = WIDTH == 8 ? 8 : 4 };

/* c (TALL, wide WIDTH) = start + A B over n steps. A at step t: a + t along, one row `down` after
 * the other; b: (n, wide WIDTH) of row length ldb; start: row length lds, 0 for one row, or NULL
 * for zeros; c: row length ldc. */
typedef void product_fn(intptr_t n, const double *a, intptr_t stride, const double *b, intptr_t ldb,
                        const double *start, intptr_t lds, double *c, intptr_t ldc);

DPK_INLINE void product_tile(int wide, intptr_t n, const double *a, intptr_t down, intptr_t along,
                             const double *b, intptr_t ldb, const double *start, intptr_t lds,
                             double *c, intptr_t ldc) {
    vec sum[TALL][3];
    EACH(r, TALL)
    EACH(v, wide) sum[r][v] = start ? VEC_LOAD(start + r * lds + v * WIDTH) : VEC_SET(0.0);
    for (intptr_t t = 0; t < n; t++, a += along, b += ldb) {
        const vec y0 = VEC_LOAD(b);
        const vec y1 = wide > 1 ? VEC_LOAD(b + WIDTH) : y0;
        const vec y2 = wide > 2 ? VEC_LOAD(b + 2 * WIDTH) : y0;
        EACH(r, TALL) {
            const vec x = VEC_SET(a[r * down]);
            sum[r][0] = VEC_FMA(x, y0, sum[r][0]);
            if (wide > 1)
                sum[r][1] = VEC_FMA(x, y1, sum[r][1]);
            if (wide > 2)
                sum[r][2] = VEC_FMA(x, y2, sum[r][2]);
        }
    }
    EACH(r, TALL) EACH(v, wide) VEC_STORE(c + r * ldc + v * WIDTH, sum[r][v]);
}

/* Functions of their own: in a larger one the sums would not all stay in registers. `plain` takes A
 * by rows, `transposed` by columns; stride: from one row, or column, to the next. */
#define PRODUCT(wide)                                                                              \
    static __attribute__((noinline)) void plain_##wide(                                            \
        intptr_t n, const double *a, intptr_t stride, const double *b, intptr_t ldb,               \
        const double *start, intptr_t lds, double *c, intptr_t ldc) {                              \
        product_tile(wide, n, a, stride, 1, b, ldb, start, lds, c, ldc);                           \
    }                                                                                              \
    static __attribute__((noinline)) void transposed_##wide(                                       \
        intptr_t n, const double *a, intptr_t stride, const double *b, intptr_t ldb,               \
        const double *start, intptr_t lds, double *c, intptr_t ldc) {                              \
        product_tile(wide, n, a, 1, stride, b, ldb, start, lds, c, ldc);                           \
    }
PRODUCT(1)
PRODUCT(2)
PRODUCT(3)

static product_fn *const plain_tiles[] = {plain_1, plain_2, plain_3};
static product_fn *const transposed_tiles[] = {transposed_1, transposed_2, transposed_3};

/* Registers of the strip of columns that begins at register v of `count`: 3, and fewer once. */
static inline intptr_t strip_width(intptr_t v, intptr_t count) {
    return v == 0 && count % 3 ? count % 3 : 3;
}

/* C = start + A B. Rows of A and C are read and written up to the next multiple of TALL, columns
 * of B and C to one of eight; a: (rows, n); start: one row, or NULL. */
static void multiply(intptr_t rows, intptr_t columns, intptr_t n, const double *a, intptr_t lda,
                     const double *b, intptr_t ldb, const double *start, double *c, intptr_t ldc) {
    const intptr_t count = dpk_padded(columns) / WIDTH;
    intptr_t wide;
    for (intptr_t v = 0; v < count; v += wide) {
        const intptr_t k = v * WIDTH;
        wide = strip_width(v, count);
        for (intptr_t r = 0; r < rows; r += TALL)
            plain_tiles[wide - 1](n, a + r * lda, lda, b + k, ldb, start ? start + k : start, 0,
                                  c + r * ldc + k, ldc);
    }
}

/* C += A^T B for the columns v WIDTH .. of B, `wide` registers of them; C has rows of its own
 * length, and is read and written nowhere else. a: (n, rows) up to a multiple of TALL; b: (n,
 * columns) up to one of WIDTH; c: (rows, columns). */
static void add_strip(intptr_t rows, intptr_t columns, intptr_t n, const double *a, intptr_t lda,
                      const double *b, intptr_t ldb, intptr_t v, intptr_t wide, double *c) {
    const intptr_t left = columns - v * WIDTH;
    const intptr_t width = left < wide * WIDTH ? left : wide * WIDTH;
    _Alignas(64) double part[TALL * 3 * WIDTH] = {0.0};
    for (intptr_t r = 0; r < rows; r += TALL) {
        const intptr_t height = rows - r < TALL ? rows - r : TALL;
        double *const corner = c + r * columns + v * WIDTH;
        for (intptr_t i = 0; i < height; i++)
            memcpy(part + i * 3 * WIDTH, corner + i * columns, (size_t)width * sizeof(double));
        transposed_tiles[wide - 1](n, a + r, lda, b + v * WIDTH, ldb, part, 3 * WIDTH, part,
                                   3 * WIDTH);
        for (intptr_t i = 0; i < height; i++)
            memcpy(corner + i * columns, part + i * 3 * WIDTH, (size_t)width * sizeof(double));
    }
}

#endif
