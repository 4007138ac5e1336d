/* Proximal operators prox_{gamma r}(v) = argmin_x gamma r(x) + |x - v|^2 / 2 as block functions.
 *
 * A prox is one function here and one row in DPK_PROX_LIST; its parameters, and whether it takes
 * coordinates one by one, are stated in models/penalties.py. NaN entries remain NaN. */
#pragma once

#include <math.h>
#include "simd/norm.h"

/* A dpk_prox_fn; few of them use all arguments. */
#define PROX(name)                                                                                 \
    static void name##_block(__attribute__((unused)) intptr_t first,                               \
                             __attribute__((unused)) intptr_t n, const double *v,                  \
                             __attribute__((unused)) double gamma,                                 \
                             __attribute__((unused)) const double *params,                         \
                             __attribute__((unused)) double *scratch, double *out)

/* Comparisons compile to vector instructions, fmax to a function call. */
DPK_INLINE double not_below(double x, double lower) { return x < lower ? lower : x; }
DPK_INLINE double not_above(double x, double upper) { return x > upper ? upper : x; }

DPK_INLINE double soft_threshold(double v, double t) {
    return copysign(not_below(fabs(v) - t, 0.0), v);
}

/* r(x) = |x|_1 */
PROX(l1) {
    for (intptr_t k = 0; k < n; k++)
        out[k] = soft_threshold(v[k], gamma);
}

/* r(x) = |x|^2 / 2 */
PROX(l2_squared) {
    for (intptr_t k = 0; k < n; k++)
        out[k] = v[k] / (1.0 + gamma);
}

/* r(x) = a |x|_1 + (1 - a) |x|^2 / 2; params: a */
PROX(elastic_net) {
    const double threshold = gamma * params[0], shrink = 1.0 + gamma * (1.0 - params[0]);
    for (intptr_t k = 0; k < n; k++)
        out[k] = soft_threshold(v[k], threshold) / shrink;
}

/* x >= 0 */
PROX(non_negative) {
    for (intptr_t k = 0; k < n; k++)
        out[k] = not_below(v[k], 0.0);
}

/* lower <= x <= upper; params: count (1 or the row's length), lower (count,), upper (count,) */
PROX(box) {
    const intptr_t count = (intptr_t)params[0];
    const double *lower = params + 1, *upper = lower + count;
    if (count == 1) {
        const double low = *lower, high = *upper;
        for (intptr_t k = 0; k < n; k++)
            out[k] = not_above(not_below(v[k], low), high);
        return;
    }
    for (intptr_t k = 0; k < n; k++)
        out[k] = not_above(not_below(v[k], lower[first + k]), upper[first + k]);
}

/* out = factor (scale v) */
DPK_INLINE void times(intptr_t n, const double *v, double scale, double factor, double *out) {
    for (intptr_t k = 0; k < n; k++)
        out[k] = factor * (scale * v[k]);
}

/* |x| <= radius; params: radius. The relative error of the computed norm is below (n / 32 + 6)
 * 2^-53, that of the result two roundings larger. */
PROX(l2_ball) {
    const safe_norm v_norm = find_safe_norm(n, v);
    if (v_norm.norm > params[0] * v_norm.scale)
        times(n, v, v_norm.scale, params[0] / v_norm.norm, out);
    else
        times(n, v, 1.0, 1.0, out);
}

/* r(x) = sum_g weight_g |x_g| over consecutive groups (Yuan and Lin 2006); params: count, the sizes
 * of the groups (count,), their weights (count,) */
PROX(group_lasso) {
    const intptr_t count = (intptr_t)params[0];
    const double *const size = params + 1, *const weight = size + count;
    for (intptr_t g = 0, k = 0; g < count; k += (intptr_t)size[g++]) {
        const safe_norm own = find_safe_norm((intptr_t)size[g], v + k);
        const double threshold = gamma * weight[g] * own.scale;
        if (own.norm <= threshold)
            times((intptr_t)size[g], v + k, 0.0, 0.0, out + k);
        else
            times((intptr_t)size[g], v + k, 1.0, (own.norm - threshold) / own.norm, out + k);
    }
}

/* Writes the entries of v - shift above `bar` to the front of `kept`, which may be v, and returns
 * their number. */
static intptr_t keep_above(intptr_t n, const double *v, double shift, double bar, double *kept) {
    intptr_t count = 0;
    for (intptr_t k = 0; k < n; k++) {
        const double x = v[k] - shift;
        kept[count] = x;
        count += x > bar;
    }
    return count;
}

/* sum_k (x[k] - bar) */
static double sum_beyond(intptr_t n, const double *x, double bar) {
    f8 a = f8_zero();
    const f8 minus = f8_set(-bar);
    intptr_t k = 0;
    for (; k + 8 <= n; k += 8)
        a = f8_add(a, f8_add(f8_load(x + k), minus));
    double sum = f8_sum(a);
    for (; k < n; k++)
        sum += x[k] - bar;
    return sum;
}

static double largest_of(intptr_t n, const double *v) {
    double lane[8], largest = v[0];
    for (int l = 0; l < 8; l++)
        lane[l] = largest;
    intptr_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int l = 0; l < 8; l++)
            lane[l] = not_below(lane[l], v[k + l]);
    for (int l = 0; l < 8; l++)
        largest = not_below(largest, lane[l]);
    for (; k < n; k++)
        largest = not_below(largest, v[k]);
    return largest;
}

/* x >= 0, sum x = total: x = max(v - max v - bar, 0) at the root of f(bar) = sum x - total; params:
 * total, within 2^-900 .. 2^900; scratch: (n,).
 *
 * The root lies in [-total, 0), so entries below max v - total do not matter, and no sum overflows.
 * f is convex and piecewise linear: from the left Newton's method (Michelot 1986) rises to the root
 * and ends there, and every step divides f times its slope by 4 (Radzik 1992). f and its slope
 * start below n total and n, so that in doubles some log2 n + 27 steps suffice: O(n log n), and
 * O(n) where, as usual, few entries are left after the first. */
PROX(simplex) {
    const double total = params[0], top = largest_of(n, v);
    double bar = -total;
    intptr_t count = keep_above(n, v, top, bar, scratch), before;
    do {
        before = count;
        bar += (sum_beyond(count, scratch, bar) - total) / (double)count;
        count = keep_above(count, scratch, 0.0, bar, scratch);
    } while (count < before);
    /* One step more from close to the root, where the sum, and with it its rounding error, is no
     * larger than the total. */
    bar += (sum_beyond(count, scratch, bar) - total) / (double)count;
    for (intptr_t k = 0; k < n; k++)
        out[k] = not_below((v[k] - top) - bar, 0.0);
}

/* The root s of (1 + 2 gamma) s + 3 gamma sin 2s = r > 0, whose left side is increasing for gamma
 * <= 1/4: Newton's method in a bracket from 0 <= f'(s) <= 8 s and |sin| <= 1. */
static double pl_root(double r, double gamma) {
    const double slope = 1.0 + 2.0 * gamma, wave = 3.0 * gamma;
    double low = not_below((r - wave) / slope, r / (1.0 + 8.0 * gamma));
    double high = not_above((r + wave) / slope, r), s = 0.5 * (low + high);
    for (int i = 0; i < 100; i++) {
        const double excess = slope * s + wave * sin(2.0 * s) - r;
        const double step = excess / (slope + 2.0 * wave * cos(2.0 * s));
        if (fabs(step) <= 0x1p-53 * s)
            break;
        *(excess > 0.0 ? &high : &low) = s;
        s -= step;
        if (!(low < s && s < high))
            s = 0.5 * (low + high);
    }
    return s;
}

/* r(x) = f(|x|), f(s) = s^2 + 3 sin^2 s: x = s v / |v|. For very small |v| the sine equals its
 * argument, for very large |v| it is negligible. */
PROX(pl) {
    const safe_norm own = find_safe_norm(n, v);
    double factor = 1.0 / (1.0 + (own.scale > 1.0 ? 8.0 : 2.0) * gamma);
    if (own.scale == 1.0)
        factor = own.norm > 0.0 ? pl_root(own.norm, gamma) / own.norm : 1.0;
    times(n, v, 1.0, factor, out);
}

#define DPK_PROX_LIST(X)                                                                           \
    X(l1)                                                                                          \
    X(l2_squared)                                                                                  \
    X(elastic_net)                                                                                 \
    X(l2_ball)                                                                                     \
    X(box)                                                                                         \
    X(non_negative)                                                                                \
    X(simplex)                                                                                     \
    X(group_lasso)                                                                                 \
    X(pl)
