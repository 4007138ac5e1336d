/* Phi^-1(U) in doubles, a vector at a time: two rational fits and the bounds of their errors.
 *
 * With p = min(U, 1 - U) = (n + f) 2^-64, u = U - 1/2 and v = 1/4 - u^2 = p (1 - p), the fits are
 *     coarse, p >= 2^-7:   x = u A(v) / B(v)
 *     fine,   p >= 2^-30: |x| = s C(s) / D(s), s = -ln(2 p)
 * with positive coefficients: no cancellation. gaussian_table.py evaluates the bounds, with product
 * and sum rounded apart, so that they hold with or without fused multiply-add. e = 2^-53, phi the
 * density.
 *
 * Coarse error: u is within 2 e, which moves x by 2 e / phi(x); v is low or high by e / 4, times
 * dx/dv at fixed u; sigma A, the polynomials, one product and the quotient are rounded; the fit.
 *
 * Fine error: n + 1/2 as a double, 2 e relative, and up to 1/2 from what was not read, move x by
 * dp / phi(x), and p / phi(x) <= 1.2534: 0.63 / n per draw, the rest below. With p = m 2^-a,
 * m in [sqrt(1/2), sqrt(2)), -ln p = a ln 2 - ln m and ln m = 2 atanh(t), t = (m - 1) / (m + 1),
 * |t| < 0.172: t has relative error 2 e, the series is cut at 0.2 e, ln m is within 2 e absolute;
 * a ln 2 within 1.5 e relative, ln 2 within e / 2, two subtractions 1 e each: in all s is within
 * (3.5 |ln p| + 5) e. A negative s can only be such an error at p = 1/2 and counts as 0. */
#pragma once

#include "noise/gaussian_table.h"
#include "simd/simd.h"

/* c[0] + c[1] x + ... + c[count - 1] x^(count - 1): pairs, then Horner's rule in x^2. */
DPK_INLINE vf polynomial(int count, const double *c, vf x) {
    const vf x2 = x * x;
    int i = (count - 1) & ~1;
    vf sum = i + 1 < count ? fma_v(splat(c[i + 1]), x, splat(c[i])) : splat(c[i]);
    while (i -= 2, i >= 0)
        sum = fma_v(sum, x2, fma_v(splat(c[i + 1]), x, splat(c[i])));
    return sum;
}
#define POLYNOMIAL(c, x) polynomial(sizeof(c) / sizeof(c)[0], c, x)

/* Below it u A(v) / B(v) does not hold: 2^-7 (1 - 2^-7), and what v may be low by. */
#define V_SPLIT (0x1.fcp-8 + 0x1p-40)
/* Of n: below, what was not read of U matters too much. */
#define N_FAR 0x1p34
#define LN_2 0x1.62e42fefa39efp-1

static const double ATANH[] = {1.0,        1.0 / 3.0,  1.0 / 5.0,  1.0 / 7.0,
                               1.0 / 9.0,  1.0 / 11.0, 1.0 / 13.0, 1.0 / 15.0,
                               1.0 / 17.0, 1.0 / 19.0, 1.0 / 21.0, 1.0 / 23.0};

/* r |x| from p 2^64. */
static inline vf fine(vf p, double ratio) {
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000;
    const vu shifted = (vu)p + (one - sqrt_half);
    const vf m = (vf)((shifted & 0x000fffffffffffff) + sqrt_half);
    /* The exponent field as a double: the low bits of 2^52 + field. */
    const vf field = (vf)(shifted >> 52 | 0x4330000000000000) - 0x1p52;
    const vf t = (m - 1.0) / (m + 1.0);
    const vf log_m = (t + t) * POLYNOMIAL(ATANH, t * t);
    const vf above = ((64.0 + 1023.0 - field) * LN_2 - log_m) - LN_2;
    const vf s = (vf)((vu)above & (vu)(above > 0.0));
    return s * ratio * POLYNOMIAL(FINE_C, s) / POLYNOMIAL(FINE_D, s);
}
