/* Proximal operators prox_{gamma r}(v) = argmin_x gamma r(x) + |x - v|^2 / 2 as block functions.
 *
 * A prox is one function here and one row in DPK_PROX_LIST; its parameters live in
 * regularizers.py. */
#ifndef DPK_PROX_H
#define DPK_PROX_H

#include <math.h>
#include "dpk.h"

static inline double soft_threshold(double v, double t) {
    return copysign(fmax(fabs(v) - t, 0.0), v);
}

/* r(x) = |x|_1 */
static void l1_block(intptr_t n, const double *v, double gamma, const double *params, double *out) {
    (void)params;
    for (intptr_t k = 0; k < n; k++)
        out[k] = soft_threshold(v[k], gamma);
}

/* r(x) = |x|^2 / 2 */
static void l2_squared_block(intptr_t n, const double *v, double gamma, const double *params,
                             double *out) {
    (void)params;
    for (intptr_t k = 0; k < n; k++)
        out[k] = v[k] / (1.0 + gamma);
}

/* r(x) = a |x|_1 + (1 - a) |x|^2 / 2 with a = l1_ratio */
static void elastic_net_block(intptr_t n, const double *v, double gamma, const double *params,
                              double *out) {
    const double threshold = gamma * params[0], shrink = 1.0 + gamma * (1.0 - params[0]);
    for (intptr_t k = 0; k < n; k++)
        out[k] = soft_threshold(v[k], threshold) / shrink;
}

#define DPK_PROX_LIST(X)                                                                           \
    X(l1)                                                                                          \
    X(l2_squared)                                                                                  \
    X(elastic_net)

#endif
