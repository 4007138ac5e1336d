/* Sums of clipped gradients in which the records of a person are clipped together, too. */
#pragma once

#include "core/dpk.h"

/* Persons of all silos; a person's records are consecutive and in one silo. */
typedef struct {
    const int64_t *silos;   /* (m + 1,) silo j has the persons silos[j] .. silos[j + 1] */
    const int64_t *offsets; /* person i has the records offsets[i] .. offsets[i + 1] */
    double clip;            /* l2 bound of the sum over one person's records */
    int64_t few;            /* so many records, each within sum->clip, have a sum within clip */
} dpk_persons;

/* Numbers of one thread's work space: a person's sum; of sparse rows, its entries beside it. */
static inline intptr_t dpk_persons_scratch(const dpk_data *data) {
    return data->indptr ? 3 * dpk_padded(data->d) : dpk_padded(data->d);
}

/* out: (m, d) multiples of sum->grid[j]: sums over persons of the sum of their clipped gradients,
 * scaled down to clip and rounded towards zero where it is longer. Tasks are of sum->task_rows
 * persons, and data->rows is NULL. scratch: (sum->n_threads, dpk_thread_stride(
 * dpk_persons_scratch())). */
dpk_status dpk_glm_person_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_loss *loss, const dpk_persons *persons,
                                   const dpk_sum *sum, double *scratch, double *out);
