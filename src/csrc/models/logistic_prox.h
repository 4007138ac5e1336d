/* Steps towards the prox of the logistic loss along one record's row (scalar_prox.h).
 *
 * f(t) = t + gamma phi'(m + t A), B = gamma A. With e = exp(-|z|) and D = (1 + e)^3 its value and
 * its first two derivatives are N / D, P / D and Q A / D, where N, P and Q need no division, since
 * phi' is e or 1 over 1 + e up to its sign, phi'' = e / (1 + e)^2 and phi''' = -+ e (1 - e) / (1 +
 * e)^3. Chebyshev's step of third order is s = r (1 + h), r = f / f' = N / P, h = r f'' / (2 f') =
 * (A r) (Q / P) / 2. Here h is clamped to [-1/2, 1/2] and t - s to [-lim, lim].
 *
 * Stopping criterion. |phi'''|, |phi''''| <= phi'' give |f''| <= A f' and |f'''| <= A^2 f' e^(A
 * |s|) between t and t - s. For A |s| <= 1/4 Taylor's theorem leaves |f(t - s)| <= (0.65 + 0.19)
 * A^2 |s|^3 f', and f' decreases by at most a third: t - s is within 1.3 A^2 |s|^3 of the root. If
 * clamping leaves a step of length c, either the step was shorter than 2 c or the root lies beyond
 * lim. So A |c| <= 1/8 and A^2 |c|^3 <= 2^-44 |t| leave a relative error below 11 2^-44. */
#pragma once

#include <math.h>
#include "simd/vmath.h"

/* A dpk_solver_step_fn. */
static int64_t logistic_step(intptr_t n, const double *y, const double *m, const double *A,
                             const double *lim, double gamma, double *t, double *open) {
    int64_t still = 0;
    for (intptr_t i = 0; i < n; i++) {
        const double z = DPK_FMA(t[i], A[i], m[i]), yz = y[i] * z, B = gamma * A[i];
        const double e = exp_negative(-fabs(yz)), one = 1.0 + e, square = one * one;
        const double other = yz >= 0.0 ? e : 1.0;
        const double N = DPK_FMA(t[i], square * one, -(gamma * y[i]) * (other * square));
        const double P = DPK_FMA(B, e * one, square * one);
        const double Q = -copysign(B, z) * (e * (1.0 - e));
        const double inverse = 1.0 / P, r = N * inverse;
        double h = 0.5 * (A[i] * r) * (Q * inverse);
        h = h < 0.5 ? h : 0.5;
        h = h > -0.5 ? h : -0.5;
        double c = t[i] - DPK_FMA(r, h, r);
        c = c < lim[i] ? c : lim[i];
        c = c > -lim[i] ? c : -lim[i];
        const double step = fabs(c - t[i]), margin = A[i] * step;
        double after = (margin * margin) * step <= 0x1p-44 * fabs(c) ? 0.0 : open[i];
        after = margin <= 0.125 ? after : open[i];
        after = P <= 0x1p1000 ? after : open[i]; /* else its inverse may be 0 */
        t[i] = open[i] != 0.0 ? c : t[i];
        open[i] = after;
    }
    for (intptr_t i = 0; i < n; i++)
        still |= bits_of(open[i]);
    return still;
}
