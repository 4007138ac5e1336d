/* exp, log1p and tanh as straight lines of arithmetic, so that loops over them become vectors, with
 * the same bits on every machine with a fused multiply-add.
 *
 * Errors are proved below, with or without fused multiply-add, in units in the last place (ulp) of
 * the result: exp_negative and exp_clamped 1.4, expm1_positive 2.5, log1p_unit and
 * log1p_product 2.6, tanh_value 3.2; the largest found against 200 bits are 1.05, 1.95 and 2.59.
 * Relative to the result, in u = 2^-53: exp_negative 1.9, found 1.48. Not a number in, not a number
 * out. */
#pragma once

#include "core/dpk.h"
#ifndef __CUDACC_RTC__
#include <math.h>
#endif

/* c[0] + c[1] x + ... + c[11] x^11, as a tree: its latency, not its length, is what costs. */
DPK_INLINE double polynomial_11(const double c[12], double x) {
    const double x2 = x * x, x4 = x2 * x2;
#define PAIR(i) DPK_FMA(c[i + 1], x, c[i])
    const double low = DPK_FMA(PAIR(2), x2, PAIR(0));
    const double middle = DPK_FMA(PAIR(6), x2, PAIR(4));
    const double high = DPK_FMA(PAIR(10), x2, PAIR(8));
#undef PAIR
    return DPK_FMA(DPK_FMA(high, x4, middle), x4, low);
}

static const double inverse_factorial[12] = {
    1.0 / 2.0,       1.0 / 6.0,        1.0 / 24.0,        1.0 / 120.0,
    1.0 / 720.0,     1.0 / 5040.0,     1.0 / 40320.0,     1.0 / 362880.0,
    1.0 / 3628800.0, 1.0 / 39916800.0, 1.0 / 479001600.0, 1.0 / 6227020800.0};

/* x = k ln 2 + r, k an integer, |r| < 0.3466. */
typedef struct {
    double r, power; /* 2^k, -1022 <= k <= 1023 */
} reduced;

DPK_INLINE reduced reduce(double x) {
    const double magic_number = 0x1.8p52;
    const double shifted = DPK_FMA(x, 0x1.71547652b82fep+0, magic_number); /* 1 / ln 2 */
    const double k = shifted - magic_number;
    /* ln 2 in two parts, the first of 42 bits: its product with k is exact. */
    const double r = DPK_FMA(k, -0x1.ef35793c76730p-45, DPK_FMA(k, -0x1.62e42fefa3800p-1, x));
    const reduced at = {r, double_of((int64_t)(((uint64_t)bits_of(shifted) + 1023) << 52))};
    return at;
}

/* exp(r) - 1: Taylor's polynomial, of which r^14 / 14! < 2^-57 is missing. */
DPK_INLINE double expm1_reduced(double r) {
    return DPK_FMA(r * r, polynomial_11(inverse_factorial, r), r);
}

/* exp(x) = 2^k exp(r) for x <= 0; below -708, where doubles end, as at -708.
 * Error in u, at its worst where r is near -0.3466 and p near 0.707: the sum 1/2, t = p - 1 of
 * magnitude below 1/2 1/4, r itself p / 4, r^2 times the polynomial, 0.054, six roundings (three if
 * fused) 0.33, the missing term 0.06: 1.32, so 1.32 ulp and 1.87 u relative. */
DPK_INLINE double exp_negative(double x) {
    const reduced at = reduce(x < -708.0 ? -708.0 : x);
    return (1.0 + expm1_reduced(at.r)) * at.power;
}

/* exp(x) for any x; beyond -708 and 709, where doubles end, as there. The error is that of
 * exp_negative. */
DPK_INLINE double exp_clamped(double x) {
    const double low = x < -708.0 ? -708.0 : x;
    const reduced at = reduce(low > 709.0 ? 709.0 : low);
    return (1.0 + expm1_reduced(at.r)) * at.power;
}

/* exp(x) - 1 for 0 <= x; above 709 as there.
 * For k = 0 this is t. Error in u, at its worst where k = 1 and the result is near 0.41: x - k ln 2
 * loses 1/4, of which the slope 2 exp(r) makes 0.37, t 1/4 and 0.06 of the polynomial, times 2, the
 * sum 1/4: 1.24, so 2.5 ulp and 3.1 u relative. */
DPK_INLINE double expm1_positive(double x) {
    const reduced at = reduce(x > 709.0 ? 709.0 : x);
    return DPK_FMA(at.power, expm1_reduced(at.r), at.power - 1.0);
}

/* log(1 + e) for 0 <= e <= 1.
 * 1 + e = 2^j (1 + f), |f| < 0.4143, s = f / (2 + f): log(1 + f) = 2 atanh s = f - s (f - R) with
 * R = 2 s^2 / 3 + 2 s^4 / 5 + ..., of which s^26 2 / 27 < 2^-69 is missing.
 * Error in ulp, at its worst where e is between 0.4143 and 0.5: ln 2 as a double 0.42, e - 1 (exact
 * elsewhere) 0.71, f - log_f 1/2, log_f, 0.054, four to five roundings 0.46, the last sum 1/2. */
DPK_INLINE double log1p_unit(double e) {
    static const double coefficient[12] = {2.0 / 3.0,  2.0 / 5.0,  2.0 / 7.0,  2.0 / 9.0,
                                           2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0, 2.0 / 17.0,
                                           2.0 / 19.0, 2.0 / 21.0, 2.0 / 23.0, 2.0 / 25.0};
    const int upper = e > 0x1.a827999fcef32p-2; /* sqrt 2 - 1 */
    const double f = upper ? 0.5 * (e - 1.0) : e;
    const double s = f / (2.0 + f), z = s * s;
    const double log_f = s * (f - z * polynomial_11(coefficient, z));
    return upper ? 0x1.62e42fefa39efp-1 + (f - log_f) : f - log_f;
}

/* log(1 + q) for 0 <= q <= 2^1000.
 * Above 1, 1 + q = 2^k (1 + e): k ln 2 + log(1 + e). Error in ulp there, where the result is below
 * 1 and so e below 0.36: 1 + q 1 (a relative error of u is an absolute one of the logarithm), ln 2
 * as a double 0.21, log(1 + e), below 0.31 and without ln 2 in it, 0.6, the sum 1/2. Above, 1 + q
 * 1/2, the ulp being larger, k ln 2 0.21 (0.66 where k is not a power of two and it is rounded, but
 * then the result is above 2), log(1 + e) 1.3 (0.65), the sum 1/2. */
DPK_INLINE double log1p_product(double q) {
    const int64_t bits = bits_of(1.0 + q);
    const double mantissa = double_of((bits & 0xfffffffffffff) | 0x3ff0000000000000);
    /* 2^52 + exponent as a double, so that no integer need be converted. */
    const double exponent = double_of(bits >> 52 | 0x4330000000000000) - (0x1p52 + 1023.0);
    const double k = q > 1.0 ? exponent : 0.0;
    const double e = q > 1.0 ? mantissa - 1.0 : q;
    return DPK_FMA(k, 0x1.62e42fefa39efp-1, log1p_unit(e));
}

/* tanh(x) = -m / (2 + m) with the sign of x, m = exp(y) - 1, y = -2 |x|.
 * y = k ln 2 + r, t = exp(r) - 1, m = 2^k t + (2^k - 1), which for k = 0 is t.
 * Error in u: y - k ln 2 loses 1/4 (only its last operation rounds), t its r^2 times the
 * polynomial, at most 0.068 of relative error 3.7 u, and its last rounding, 1/4: together 0.5,
 * 0.56 unfused. In a result of 1/4 to 1/2, whose ulp is 1/2 u, at its worst where m is near -0.65:
 * m 2^k 0.63 + 1/2 times the slope 2 / (2 + m)^2 = 1.1, 2 + m 0.36, the quotient 1/4: 1.5, so 3.1
 * ulp. From 0.17 to 1/4 (ulp 1/4 u) 0.73, above 1/2 (ulp u) 2.5, near 1 as m loses 1/2 and has
 * slope 2; below 0.17, where k = 0 and y is exact, 2.3 ulp. */
DPK_INLINE double tanh_value(double x) {
    const double y = -2.0 * fabs(x);
    const reduced at = reduce(y < -64.0 ? -64.0 : y); /* tanh is 1 there, and 2^k - 1 is -1 */
    const double m = DPK_FMA(at.power, expm1_reduced(at.r), at.power - 1.0);
    return copysign(-m / (2.0 + m), x);
}

#define DPK_VMATH_LIST(X)                                                                          \
    X(exp_negative)                                                                                \
    X(exp_clamped)                                                                                 \
    X(expm1_positive)                                                                              \
    X(log1p_unit)                                                                                  \
    X(log1p_product)                                                                               \
    X(tanh_value)
