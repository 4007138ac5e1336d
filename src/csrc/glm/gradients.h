/* Sums of clipped gradients at several models, in one pass over the records.
 *
 * Margins of a block of rows and sums over them are products of matrices, in register tiles; what
 * is computed for each record, model and coordinate, and so every bit of the sums, is that of
 * dpk_glm_gradient with one model. The loss is one of the table: what a user's function returns may
 * depend on the records of its block, of which other models and other blocks are no part. */
#pragma once

#include "core/dpk.h"

typedef struct {
    intptr_t count;
    const double *w;    /* model i of silo j at w + i * stride + j * w_stride, (d,) each */
    intptr_t stride;    /* from one model to the next */
    intptr_t w_stride;  /* from one silo to the next, or 0: a model is one for all silos */
    const double *clip; /* (count,) finite l2 bounds of one record's gradient */
    const double *grid; /* (count, m) powers of two */
} dpk_models;

/* One thread's work space. Arrays of rows and models have the models of a row together. */
typedef struct {
    intptr_t count, wide;    /* models; and filled up to 4 or whole vectors */
    intptr_t width, rows;    /* row length; rows of a block */
    intptr_t most;           /* rows of a block in single precision, at most */
    double *w, *acc;         /* (wide, width), or by columns, as of sparse rows: (d, wide) */
    double *x;               /* dense: (rows, width) */
    double *y, *z, *s;       /* (rows, wide); sparse: of at most 32 models */
    double *bias, *clip, *M; /* (wide,) M: magic numbers, or steps per unit in single precision */
    int64_t *which;          /* (count,) numbers of the models of a pass */
    int ordinary;            /* whether all clips are of ordinary size (models_factors.h) */
    intptr_t single;         /* most records of a block in single precision, or 0 */
    uint64_t digits;         /* that factors of chained sums must have (gridsum.h), or 0 */
    intptr_t size;           /* doubles of all */
} dpk_gradients_memory;

/* Divides the memory at an address. */
static inline dpk_gradients_memory dpk_gradients_divide(const dpk_data *data, intptr_t count,
                                                        double *memory) {
    const int sparse = data->indptr != NULL;
    dpk_gradients_memory own = {
        .count = count, .wide = dpk_padded(count), .width = dpk_row_stride(data->d)};
    /* Packed rows stay in the L1 cache beside what they are multiplied with. */
    const intptr_t rows = 16384 / (8 * own.width) / 4 * 4;
    own.rows = sparse || rows > 64 ? 64 : rows < 4 ? 4 : rows;
    /* Rows of floats take half of the place. */
    own.most = data->x_is_float32 && !sparse ? 2 * own.rows > 64 ? 64 : 2 * own.rows : own.rows;
    const intptr_t models = dpk_padded(sparse ? data->d * own.wide : own.wide * own.width);
    const intptr_t line = dpk_padded(own.wide);
    const intptr_t values = dpk_padded(own.most * (sparse && own.wide > 32 ? 32 : own.wide));
    double **const arrays[] = {&own.w, &own.acc,  &own.x,    &own.y, &own.z,
                               &own.s, &own.bias, &own.clip, &own.M};
    const intptr_t sizes[] = {
        models, models, sparse ? 0 : own.most * own.width, values, values, values, line, line,
        line,   line};
    for (int k = 0; k < 9; k++) {
        *arrays[k] = memory ? memory + own.size : NULL;
        own.size += sizes[k];
    }
    own.which = memory ? (int64_t *)(void *)(memory + own.size) : NULL;
    own.size += line;
    return own;
}

/* Doubles of one thread's work space. */
static inline intptr_t dpk_gradients_scratch(const dpk_data *data, intptr_t count) {
    return dpk_gradients_divide(data, count, NULL).size;
}

/* out: (count, m, d) multiples of the grids; sum->clip and sum->grid are not read; sum->partial:
 * (count, n_tasks, dpk_thread_stride(d)); scratch: (sum->n_threads, dpk_thread_stride(
 * dpk_gradients_scratch())), both aligned to a cache line. */
dpk_status dpk_glm_gradients(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                             const dpk_sum *sum, double *scratch, double *out);
