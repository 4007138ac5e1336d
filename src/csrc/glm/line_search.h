/* Losses along a line: sums over records of phi(y, z - a dz) for every candidate step a, where z is
 * the margin at w and dz that of the direction p; X is read once. */
#pragma once

#include "core/dpk.h"

typedef struct {
    intptr_t count;      /* candidate steps */
    const double *step;  /* (count,) */
    const double *bound; /* (m, count) clamp of one record's decrease, or NULL: sums of losses */
    const double *grid;  /* (m, count) powers of two, 2^51 grid >= bound; given with bound */
} dpk_search;

/* data->rows is NULL. w, direction: those of silo j at w + j * w_stride and direction + j *
 * direction_stride, (d,) each. out: (m, count) floating-point sums of the losses at w - step *
 * direction; or, with a bound, exact sums of clamped, rounded decreases phi(z) - phi(z - step dz).
 * sum->grid is NULL and sum->partial (n_tasks, dpk_thread_stride(count)). */
dpk_status dpk_line_search(const dpk_data *data, const double *w, intptr_t w_stride,
                           const double *direction, intptr_t direction_stride, const dpk_loss *loss,
                           const dpk_search *search, const dpk_sum *sum, double *out);
