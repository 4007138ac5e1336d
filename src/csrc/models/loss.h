/* Margin losses phi(y, z) as block functions: value, d1 = dphi/dz, d2 = d^2 phi/dz^2.
 *
 * A loss is one point function here and one row in DPK_LOSS_LIST; its parameters and bounds are in
 * losses.py. Labels of classification losses are -1 or +1. In units of 2^-53 the relative error of
 * d1 is at most kappa, which losses.py proves, and that of value and d2 at most 8 except at jumps
 * of d2 and where terms cancel. */
#pragma once

#include "core/dpk.h"
#include "simd/vmath.h"

/* log(1 + exp(-y z)) */
static inline void logistic_point(double y, double z, const double *params, double *value,
                                  double *d1, double *d2) {
    const double t = y * z;
    const double e = exp_negative(-fabs(t));
    const double upper = 1.0 / (1.0 + e), lower = e * upper; /* expit(|t|), expit(-|t|) */
    const double other = t >= 0.0 ? e : 1.0; /* no branch: signs of t are hard to predict */
    (void)params;
    *value = log1p_unit(e) + (t < 0.0 ? -t : 0.0);
    *d1 = -y * (other * upper);
    *d2 = upper * lower;
}

static void logistic_parts(intptr_t n, const double *y, const double *z, double *plain,
                           double *factor, const void *params) {
    (void)params;
    for (intptr_t i = 0; i < n; i++) {
        const double t = y[i] * z[i];
        plain[i] = t < 0.0 ? -t : 0.0;
        factor[i] = exp_negative(-fabs(t));
    }
}

/* (z - y)^2 / 2 */
static inline void squared_point(double y, double z, const double *params, double *value,
                                 double *d1, double *d2) {
    const double r = z - y;
    (void)params;
    *value = 0.5 * r * r;
    *d1 = r;
    *d2 = 1.0;
}

/* r^2 / 2 for |r| <= delta, delta (|r| - delta / 2) beyond, r = z - y */
static inline void huber_point(double y, double z, const double *params, double *value, double *d1,
                               double *d2) {
    const double delta = params[0], r = z - y, a = fabs(r);
    *value = a <= delta ? 0.5 * r * r : delta * (a - 0.5 * delta);
    *d1 = r > delta ? delta : r < -delta ? -delta : r; /* a NaN margin stays NaN */
    *d2 = a <= delta ? 1.0 : 0.0;
}

/* The hinge max(0, 1 - y z) with its corner replaced by a quadratic of width h. */
static inline void smoothed_hinge_point(double y, double z, const double *params, double *value,
                                        double *d1, double *d2) {
    const double h = params[0], a = 1.0 - y * z;
    const double inside =
        a > 0.0 ? a < h ? a : h : 0.0; /* distance from the flat side, at most h */
    *value = a <= h ? 0.5 * inside * inside / h : a - 0.5 * h;
    *d1 = -y * (inside / h);
    *d2 = a > 0.0 && a < h ? 1.0 / h : 0.0;
}

/* max(0, 1 - y z)^2 / 2 */
static inline void squared_hinge_point(double y, double z, const double *params, double *value,
                                       double *d1, double *d2) {
    const double margin = 1.0 - y * z, a = margin > 0.0 ? margin : 0.0;
    (void)params;
    *value = 0.5 * a * a;
    *d1 = -y * a;
    *d2 = a > 0.0 ? 1.0 : 0.0;
}

DPK_INLINE double clamp_between(double low, double high, double a) {
    a = a < low ? low : a;
    return a > high ? high : a; /* NaN stays NaN */
}

/* exp(z) - y z, y between 0 and params[2], between the margins params[0] and params[1]; beyond them
 * it goes on as a straight line. */
static inline void poisson_point(double y, double z, const double *params, double *value,
                                 double *d1, double *d2) {
    const double at = clamp_between(params[0], params[1], z), mean = exp_clamped(at);
    const double count = clamp_between(0.0, params[2], y);
    *value = mean - count * at + (mean - count) * (z - at);
    *d1 = mean - count;
    *d2 = at == z ? mean : 0.0;
}

/* y exp(-z) + z, likewise. */
static inline void gamma_point(double y, double z, const double *params, double *value, double *d1,
                               double *d2) {
    const double at = clamp_between(params[0], params[1], z);
    const double ratio = clamp_between(0.0, params[2], y) * exp_clamped(-at);
    *value = ratio + at + (1.0 - ratio) * (z - at);
    *d1 = 1.0 - ratio;
    *d2 = at == z ? ratio : 0.0;
}

/* log(s), 2^-500 <= s <= 2^500, whose relative error has no bound near s = 1 */
DPK_INLINE double log_of(double s) {
    return s >= 1.0 ? log1p_product(s - 1.0) : -log1p_product(1.0 / s - 1.0);
}

/* (y + 1 / a) log(1 + a exp(z)) - y z, a = params[0], y between 0 and params[1] */
static inline void negative_binomial_point(double y, double z, const double *params, double *value,
                                           double *d1, double *d2) {
    const double a = params[0], count = clamp_between(0.0, params[1], y);
    const double e = exp_negative(-fabs(z));
    const int upper = z > 0.0;
    const double sum = upper ? a + e : 1.0 + a * e, slope = upper ? 1.0 - count * e : e - count;
    const double log_term = upper ? z + log_of(sum) : log1p_product(a * e);
    *value = (count + 1.0 / a) * log_term - count * z;
    *d1 = slope / sum;
    *d2 = (1.0 + a * count) * (e / (sum * sum));
}

/* -log P(y), P(1) = 1 - exp(-exp(z)), the complementary log-log link; for y = -1 a straight line
 * above the margin params[0]. */
static inline void cloglog_point(double y, double z, const double *params, double *value,
                                 double *d1, double *d2) {
    const double at = clamp_between(-500.0, y < 0.0 ? params[0] : 4.0, z);
    const double hazard = exp_clamped(at), odds = 1.0 / expm1_positive(hazard);
    const double g = hazard * odds, h = hazard;
    /* Bernoulli's series where the difference would cancel. */
    const double series =
        h *
        (0.5 + h * (1.0 / 12.0 +
                    h * h * (-1.0 / 720.0 + h * h * (1.0 / 30240.0 + h * h * (-1.0 / 1209600.0)))));
    const double curvature = g * (h < 0.125 ? series : h + g - 1.0);
    const int inside = at == z;
    *value = y < 0.0 ? hazard + hazard * (z - at) : log1p_product(odds) - (at < z ? 0.0 : z - at);
    *d1 = y < 0.0 ? hazard : -g;
    *d2 = !inside ? 0.0 : y < 0.0 ? hazard : curvature > 0.0 ? curvature : 0.0;
}

/* Mills' ratio (1 - Phi(x)) / phi(x), 0 <= x <= 40, times 1 + x: a polynomial of degree 23 in t =
 * (x - 4) / (x + 4), within 2^-54 of it. */
DPK_INLINE double mills_numerator(double x) {
    static const double low[12] = {
        0x1.2eea40b9abcabp+0,   -0x1.f06f3d0b9e639p-3,  0x1.1f7901bed4322p-5,
        0x1.25a4eb031c3f9p-4,   -0x1.4a947b618f275p-4,  0x1.704e20a1a2af9p-5,
        -0x1.9ae19ffa4ab28p-7,  -0x1.775d4eba273bep-11, 0x1.c89d7d5882310p-10,
        -0x1.f0662d4f8fe7ep-13, -0x1.cdd32e1529b2bp-13, 0x1.bed3ddad9c5aap-15};
    static const double high[12] = {
        0x1.1e88c20934d76p-15,  -0x1.20adfb2f6c11ap-17, -0x1.b78b766d40b01p-18,
        0x1.1032d6ddbadefp-20,  0x1.7380e63af4fa8p-20,  0x1.eadf6cd6e2779p-29,
        -0x1.2b2f1f2920641p-22, -0x1.aca67275fbc64p-25, 0x1.7e7198588fe49p-25,
        0x1.0ded9b408ccfbp-26,  -0x1.0f82f8accef77p-28, -0x1.1457fcf660d8bp-29};
    const double t = (x - 4.0) / (x + 4.0), t2 = t * t, t4 = t2 * t2;
    return DPK_FMA(polynomial_11(high, t), t4 * t4 * t4, polynomial_11(low, t));
}

/* -log Phi(t), t = y z, and a straight line below t = -params[0], params[0] at most 8. */
static inline void probit_point(double y, double z, const double *params, double *value, double *d1,
                                double *d2) {
    const double t = y * z, at = t < -params[0] ? -params[0] : t; /* NaN stays NaN */
    const double u = fabs(at), x = u > 40.0 ? 40.0 : u;
    const double numerator = mills_numerator(x), mills = numerator / (1.0 + x);
    const double density = exp_negative(-0.5 * (at * at)) * 0x1.9884533d43651p-2; /* phi(at) */
    const double tail = density * mills, inside = 1.0 - tail;
    const double g = at < 0.0 ? (1.0 + x) / numerator : density / inside; /* phi / Phi */
    const double upper = log1p_unit(tail / inside);
    const double lower = 0.5 * (x * x) + 0x1.d67f1c864beb5p-1 - log_of(mills); /* log sqrt(2 pi) */
    const double curvature = g * (g + at);
    *value = (at < 0.0 ? lower : upper) - (at == t ? 0.0 : g * (t - at));
    *d1 = -y * g;
    *d2 = at == t && curvature > 0.0 ? curvature : 0.0;
}

/* Majorants: h(y, z) with phi(y, z + t) <= phi(y, z) + phi'(y, z) t + h t^2 / 2 for all t, in d2 of
 * a block function that writes nothing else. About some c the losses are an even function f(|z -
 * c|) and a linear one, and f'(u) / u does not increase: then h = f'(u) / u, u = |z - c|, is the
 * least (Jaakkola and Jordan 2000; de Leeuw and Lange 2009). Where no such c exists h is sup phi''.
 */
static inline double logistic_majorant(double y, double z, const double *params) {
    const double u = fabs(z), a = u < 0x1p-500 ? 0x1p-500 : u; /* c = 0; NaN stays NaN */
    (void)y, (void)params;
    return tanh_value(0.5 * a) / (2.0 * a);
}

static inline double squared_majorant(double y, double z, const double *params) {
    (void)y, (void)z, (void)params;
    return 1.0;
}

static inline double huber_majorant(double y, double z, const double *params) {
    const double u = fabs(z - y);
    return u <= params[0] ? 1.0 : params[0] / u;
}

static inline double smoothed_hinge_majorant(double y, double z, const double *params) {
    const double h = params[0], u = 2.0 * fabs(1.0 - y * z - 0.5 * h); /* c where 1 - y c = h / 2 */
    return 1.0 / (u < h ? h : u);
}

static inline double squared_hinge_majorant(double y, double z, const double *params) {
    return squared_majorant(y, z, params);
}

/* Bounds of phi''. */
static inline double poisson_majorant(double y, double z, const double *params) {
    (void)y, (void)z;
    return exp_clamped(params[1]);
}

static inline double gamma_majorant(double y, double z, const double *params) {
    (void)z;
    return clamp_between(0.0, params[2], y) * exp_clamped(-params[0]);
}

static inline double negative_binomial_majorant(double y, double z, const double *params) {
    (void)z;
    return 0.25 * (clamp_between(0.0, params[1], y) + 1.0 / params[0]);
}

static inline double cloglog_majorant(double y, double z, const double *params) {
    (void)z;
    return y < 0.0 ? exp_clamped(params[0]) : 0.4126;
}

static inline double probit_majorant(double y, double z, const double *params) {
    double value, slope, curvature; /* which grows to that of the last margin */
    (void)y, (void)z;
    probit_point(1.0, -params[0], params, &value, &slope, &curvature);
    return curvature;
}

#define DPK_LOSS_LIST(X)                                                                           \
    X(logistic)                                                                                    \
    X(squared)                                                                                     \
    X(huber)                                                                                       \
    X(smoothed_hinge)                                                                              \
    X(squared_hinge)                                                                               \
    X(poisson)                                                                                     \
    X(gamma)                                                                                       \
    X(negative_binomial)                                                                           \
    X(cloglog)                                                                                     \
    X(probit)

#ifndef DPK_GPU
/* The functions of a loss that kernels call. There is one loop for each set of requested outputs,
 * so that the compiler removes the computation of the others. */
#define DPK_DEFINE_LOSS(name)                                                                      \
    static double name##_slope(double y, double z, const void *params) {                           \
        double v, g, h;                                                                            \
        name##_point(y, z, params, &v, &g, &h);                                                    \
        return g;                                                                                  \
    }                                                                                              \
    DPK_INLINE void name##_loop(intptr_t n, const double *y, const double *z, double *value,       \
                                double *d1, double *d2, const void *params) {                      \
        double v, g, h;                                                                            \
        for (intptr_t i = 0; i < n; i++) {                                                         \
            name##_point(y[i], z[i], params, &v, &g, &h);                                          \
            if (value)                                                                             \
                value[i] = v;                                                                      \
            if (d1)                                                                                \
                d1[i] = g;                                                                         \
            if (d2)                                                                                \
                d2[i] = h;                                                                         \
        }                                                                                          \
    }                                                                                              \
    static void name##_block(intptr_t n, const double *y, const double *z, double *value,          \
                             double *d1, double *d2, void *params) {                               \
        if (d1 && !value && !d2)                                                                   \
            name##_loop(n, y, z, NULL, d1, NULL, params);                                          \
        else if (d2 && !value && !d1)                                                              \
            name##_loop(n, y, z, NULL, NULL, d2, params);                                          \
        else if (d1 && d2 && !value)                                                               \
            name##_loop(n, y, z, NULL, d1, d2, params);                                            \
        else                                                                                       \
            name##_loop(n, y, z, value, d1, d2, params);                                           \
    }                                                                                              \
    static void name##_majorants(intptr_t n, const double *y, const double *z, double *value,      \
                                 double *d1, double *d2, void *params) {                           \
        (void)value, (void)d1;                                                                     \
        for (intptr_t i = 0; i < n; i++)                                                           \
            d2[i] = name##_majorant(y[i], z[i], params);                                           \
    }

DPK_LOSS_LIST(DPK_DEFINE_LOSS)
#endif
