/* Sums of clipped gradients, or of clipped differences of them, over consecutive records. */
#pragma once

#include "core/dpk.h"

/* What is summed over the records of a silo. */
typedef struct {
    const dpk_data *data;
    const double *w; /* (d,) */
    const dpk_loss *loss;
    const dpk_earlier *earlier; /* whose gradient, both clipped to earlier->clip first, is
                                 * subtracted, then the difference is clipped; or NULL */
    double M;                   /* magic number of the grid, or 0 */
    double clip;                /* the inner clip bound */
    double weight;
    int streamed;    /* the rows are not in this core's cache: other loads, same bits */
    intptr_t single; /* most records of a block in single precision (single_rows), or 0 */
    double steps;    /* 1 / grid there */
} dpk_gradients;

/* acc = sum over the records begin .. end, weight times the clipped gradient at w, rounded; where
 * there is a grid, as integers in units of it. acc: (dpk_padded(d),), of which the first d
 * matter. */
void dpk_sum_gradients(const dpk_gradients *of, int64_t begin, int64_t end, double *acc);
