/* Generalised linear models: margins z_i = x_i . w, losses and clipped gradients summed per silo.
 *
 * A record's clipped gradient is clamp(phi'(z), -C/|x|, C/|x|) x: the exact gradient of a convex,
 * C-Lipschitz loss when phi is convex (Song, Steinke, Thakkar, Thakurta 2021). */
#pragma once

#include "core/dpk.h"

/* norm: (n,) upper bounds of |[scale x + shift, 1]| of all stored rows; data->rows is NULL. */
dpk_status dpk_glm_norms(const dpk_data *data, const dpk_sum *sum, double *norm);

/* z: (n,) margins in record order. w: model of silo j at w + j * w_stride, (d,) each;
 * w_stride 0 shares one model. */
dpk_status dpk_glm_margins(const dpk_data *data, const double *w, intptr_t w_stride,
                           const dpk_sum *sum, double *z);

/* out: (m,) floating-point sums of the loss over each silo's records. sum->grid is NULL and
 * sum->partial (n_tasks, 8). */
dpk_status dpk_glm_losses(const dpk_data *data, const double *w, intptr_t w_stride,
                          const dpk_loss *loss, const dpk_sum *sum, double *out);

/* out: (m, d) sums of clipped per-record gradients, multiples of sum->grid[j] where given; or,
 * where `earlier` is not NULL, of clipped differences of clipped gradients, those at w minus those
 * at that point. */
dpk_status dpk_glm_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                            const dpk_loss *loss, const dpk_earlier *earlier, const dpk_sum *sum,
                            double *out);
