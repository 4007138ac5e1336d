/* A prox on every row of a matrix: x_i = prox_{gamma r}(v_i). */
#pragma once

#include "core/dpk.h"

/* v, out: (m, d), may be the same array; separable: whether the prox acts on each coordinate alone;
 * params: in the layout of the prox; scratch: (n_threads, dpk_thread_stride(d)), or NULL where it
 * is separable. DPK_ERR_NOT_FINITE where v is not finite, and then out is meaningless. */
dpk_status dpk_prox_rows(intptr_t m, intptr_t d, const double *v, dpk_prox_fn *prox, int separable,
                         double gamma, const double *params, double *scratch, int n_threads,
                         double *out);
