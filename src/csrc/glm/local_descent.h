/* Local (proximal) gradient descent: every silo runs K steps on its own records and its own model,
 *
 *     g = S(w) / n + (l2 + strength f'(|w|) / |w|) w + anchor (w - w_start),
 *     w <- prox_{eta_t r}(w - eta_t g),
 *
 * S the sum of clipped gradients (glm.h) of all its n records, or of the n records of the step's
 * batch, with or without noise at every step. */
#pragma once

#include "core/dpk.h"

typedef struct {
    intptr_t steps;
    const double *step_size; /* (steps,) */
    intptr_t batch;          /* n where silos hold steps * n records, n for each step; else 0 */
    intptr_t penalized;      /* l2, regulariser and prox act on the coordinates before this one */
    double l2;
    double anchor;         /* on all coordinates; 0: none */
    dpk_smooth_fn *smooth; /* or NULL */
    double smooth_strength;
    dpk_prox_fn *prox; /* or NULL */
    double prox_strength;
    const double *prox_params;
    const uint32_t *key; /* (8,) of the noise's release, or NULL: no noise */
    uint32_t purpose;
    const double *sigma; /* (m,) std of the noise on S */
} dpk_descent;

/* Doubles of noise that a thread buffers. */
static inline intptr_t dpk_descent_noise(const dpk_descent *run, intptr_t d) {
    return run->key ? (d + 1023) / 1024 * 1024 + 2048 : 0;
}

/* w: start of silo j at w + j * w_stride; order: (count,) the silos that run, those with most work
 * first; noise: (n_threads, dpk_descent_noise()); sum->partial: (n_threads, dpk_thread_stride(2
 * dpk_padded(d))); out: (m, d) the models after the last step, the others left as they are. Draw
 * t d + k of silo j is the noise on coordinate k at step t. */
dpk_status dpk_local_descent(const dpk_data *data, const double *w, intptr_t w_stride,
                             const dpk_loss *loss, const dpk_descent *run, const dpk_sum *sum,
                             const int64_t *order, intptr_t count, double *noise, double *out);
