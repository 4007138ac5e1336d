/* Sums of clipped gradients of ordered classes: a margin loss at every threshold between them.
 *
 * A record of class c = 0, ..., T has the loss sum_k phi(s_k, x . w - e theta_k), s_k = 1 where c >
 * k and -1 else, over T thresholds theta_k in the unit e. With a = sum_k phi'_k its gradient is
 * (a x, -e phi'_0, ..., -e phi'_(T-1)), all of which is clipped to one norm C.
 *
 * Why |v|_2 <= C for every rounded record v, in D = p + T coordinates. The factor is f = min(1, C'
 * / G), C' the inner bound of gridsum.h for D, and G the root of (a |x|)^2 + sum_k (e phi'_k)^2 + D
 * 2^-240 for the doubles a and e phi'_k, whatever their errors. The norm of x loses at most d / 32
 * + 11 roundings of u (gridsum.h), the sum over thresholds T - 1, of which the root halves the
 * effect, and a |x|, the squares, their sum, the root, f, f a, f e phi'_k and the weight ten: below
 * 2 D + 32, which C' covers. A record whose G is not finite is left out. */
#pragma once

#include "core/dpk.h"

enum { DPK_MOST_THRESHOLDS = 63 };

/* out: (m, p + thresholds), multiples of sum->grid[j] where given. w: (p + thresholds,) of silo j
 * at w + j * w_stride; data->d is p. Labels are classes, -1 being class 0, too; unit: e. */
dpk_status dpk_ordinal_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                                intptr_t thresholds, double unit, const dpk_loss *loss,
                                const dpk_sum *sum, double *out);
