/* Products of effective rows with the columns of a matrix.
 *
 * Each is a chain of fused multiply-adds over the entries of its row in their order: the bits of a
 * row's products depend on no other row, on no other column, and on no place. */
#pragma once

#include "core/dpk.h"

/* Rows of a block, which stay in the L1 cache: a multiple of eight, those of a tile. */
static inline intptr_t dpk_products_rows(intptr_t d) {
    const intptr_t rows = 16384 / (8 * dpk_row_stride(d)) / 8 * 8;
    return rows < 8 ? 8 : rows > 64 ? 64 : rows;
}

/* Doubles of one thread's work space: a block of rows and of their products. */
static inline intptr_t dpk_products_block(intptr_t d, intptr_t count) {
    return dpk_thread_stride(dpk_products_rows(d) * (dpk_row_stride(d) + dpk_padded(count)));
}

/* Doubles of all threads' work space and of the matrix, which they share. */
static inline intptr_t dpk_products_scratch(intptr_t d, intptr_t count, int n_threads) {
    return d * dpk_padded(count) + n_threads * dpk_products_block(d, count);
}

/* out: (n, count) products of the effective rows of all records with these (count, d), without
 * offsets; scratch: (dpk_products_scratch(),), aligned to a cache line. */
dpk_status dpk_glm_products(const dpk_data *data, intptr_t count, const double *w,
                            const dpk_sum *sum, double *scratch, double *out);
