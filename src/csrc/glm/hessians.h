/* Weighted Gram matrices of sparse records at several models in one pass: for every pair of entries
 * vectors of eight models. They are those of dpk_glm_hessian with one model, to the last bit, as
 * its sums of integers are exact in any order. */
#pragma once

#include "glm/gradients.h"

/* Doubles of one model's sums: the entries on and below the diagonal, row after row. */
static inline intptr_t dpk_hessians_size(intptr_t d) { return d * (d + 1) / 2; }

/* Doubles of one thread's work space: models and the integer entries of a row, eight of each. */
static inline intptr_t dpk_hessians_scratch(intptr_t d) { return 16 * d + dpk_padded(d); }

/* out: (count, m, d, d) symmetric. models->clip: finite bounds B; models->grid: (count, m) powers
 * of two >= q^2, or NULL: the exact sums are rounded to doubles; row_grid: (count,) powers of two
 * q. sum->partial: (n_tasks, dpk_thread_stride(8 dpk_hessians_size(d))); scratch: (sum->n_threads,
 * dpk_thread_stride(dpk_hessians_scratch(d))), both aligned to a cache line. The data are sparse,
 * data->rows is NULL, and a task has as many records as a sum is exact of. */
dpk_status dpk_glm_hessians(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                            const double *row_grid, const dpk_sum *sum, double *scratch,
                            double *out);
