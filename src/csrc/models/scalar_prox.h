/* The prox of a margin loss along one record's row: t = -gamma phi'(y, m + t A), A = |a|^2, m the
 * margin at the start, clamped to [-lim, lim].
 *
 * A loss may have an iteration of its own, which runs first (logistic_prox.h). Equations that it
 * does not solve are solved by Newton's method on g(t) = t / gamma + phi'(m + t A), which is
 * increasing, for a block of records at a time; a step out of the bracket of the nearest points
 * with g < 0 and g > 0 is replaced by one to its midpoint. The result of a lane depends on its own
 * record alone: it is frozen once it is solved, however many steps the other lanes take. A lane
 * that is not solved after NEWTON_STEPS is solved by bisection over the doubles between -lim and
 * lim, which evaluates phi' only and takes at most 64 steps.
 *
 * Stopping criterion. e = 2^-48 is some 30 times the relative change of t by the roundings of g,
 * its slope and the step:
 *   |g| <= e |t| slope: the step is below e |t|;
 *   |g| <= e |m| phi'': the step is below the effect of rounding m + t A.
 * A user's function has no known error bound: its lanes are checked for a change of sign of g
 * between t (1 - 2^-41) and t (1 + 2^-41), and solved by bisection where there is none. */
#pragma once

#include <math.h>
#include "rows/block.h"
#include "core/gridsum.h"
#include "models/evaluate.h"
#include "simd/simd.h"

enum { OWN_STEPS = 8, NEWTON_STEPS = 48 };

/* A block of such equations. lim is finite, and 0 where A or m is not. */
typedef struct {
    double y[DPK_BLOCK], m[DPK_BLOCK], A[DPK_BLOCK], lim[DPK_BLOCK];
    double t[DPK_BLOCK]; /* a starting point, then the solution */
} scalar_equations;

/* The sign of g at t. */
static int sign_at(const dpk_loss *loss, double inverse, const scalar_equations *e, intptr_t i,
                   double t) {
    const double z = DPK_FMA(t, e->A[i], e->m[i]);
    double d1;
    evaluate(loss, 1, &e->y[i], &z, NULL, &d1, NULL);
    const double g = DPK_FMA(t, inverse, finite_part(d1));
    return (g > 0.0) - (g < 0.0);
}

/* Integers in the order of the doubles; -0 and 0 are the same. */
static inline int64_t order_of(double v) {
    return bits_of(v) < 0 ? INT64_MIN - bits_of(v) : bits_of(v);
}
static inline double at_order(int64_t o) { return double_of(o < 0 ? INT64_MIN - o : o); }

static double bisected(const dpk_loss *loss, double inverse, const scalar_equations *e,
                       intptr_t i) {
    int64_t low = order_of(-e->lim[i]), high = order_of(e->lim[i]);
    while (low < high) {
        /* Rounded towards low, so that low = mid + 1 ends the loop. */
        const int64_t mid = low + (int64_t)(((uint64_t)high - (uint64_t)low) >> 1);
        const int sign = sign_at(loss, inverse, e, i, at_order(mid));
        if (sign == 0)
            return at_order(mid);
        if (sign < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return at_order(low);
}

static int changes_sign(const dpk_loss *loss, double inverse, const scalar_equations *e,
                        intptr_t i) {
    const double t = e->t[i], slack = 0x1p-41 * fabs(t), lim = e->lim[i];
    return (t >= lim || sign_at(loss, inverse, e, i, t + slack) >= 0) &&
           (t <= -lim || sign_at(loss, inverse, e, i, t - slack) <= 0);
}

/* One step of all lanes; not 0 while any of them is unsolved. live: (n,) 1 or 0. */
DPK_INLINE int64_t newton_step(double inverse, intptr_t n, const double *d1, const double *d2,
                               scalar_equations *e, double *low, double *high, double *live) {
    int64_t open = 0;
    for (intptr_t i = 0; i < n; i++) {
        const double t = e->t[i], A = e->A[i], lim = e->lim[i];
        const double first = finite_part(d1[i]), second = d2[i] > 0.0 ? d2[i] : 0.0;
        const double slope = DPK_FMA(A, second, inverse), g = DPK_FMA(t, inverse, first);
        double c = t - g / slope;
        c = c > lim ? lim : c;
        c = c > -lim ? c : -lim; /* NaN too */
        const double lo = g < 0.0 ? t : low[i], hi = g > 0.0 ? t : high[i];
        const double enough = DPK_FMA(0x1p-48 * fabs(c), slope, 0x1p-48 * fabs(e->m[i]) * second);
        /* One selection at a time, which the compiler vectorises. */
        double safe = c > lo ? c : 0.5 * lo + 0.5 * hi;
        safe = c < hi ? safe : 0.5 * lo + 0.5 * hi;
        const double before = live[i];
        double after = fabs(g) <= enough ? 0.0 : before;
        after = c == t ? 0.0 : after;
        safe = after != 0.0 ? safe : c;
        e->t[i] = before != 0.0 ? safe : t;
        low[i] = lo;
        high[i] = hi;
        live[i] = after;
    }
    for (intptr_t i = 0; i < n; i++)
        open |= bits_of(live[i]);
    return open;
}

/* Solves the first n equations. next: rows to prefetch, a share before every step, or NULL. */
DPK_INLINE void scalar_prox(const dpk_loss *loss, double gamma, intptr_t n, scalar_equations *e,
                            prefetch_plan *next) {
    const double inverse = 1.0 / gamma < DBL_MAX ? 1.0 / gamma : DBL_MAX;
    double z[DPK_BLOCK], d1[DPK_BLOCK], d2[DPK_BLOCK], low[DPK_BLOCK], high[DPK_BLOCK];
    double live[DPK_BLOCK];
    int64_t open = 1;
    for (intptr_t i = 0; i < n; i++) {
        e->t[i] = loss->constant_curvature ? 0.0 : clamp_scalar(e->t[i], e->lim[i]);
        live[i] = 1.0;
    }
    for (int step = 0; loss->solver_step && open && step < OWN_STEPS; step++) {
        if (next)
            prefetch_share(next);
        open = loss->solver_step(n, e->y, e->m, e->A, e->lim, gamma, e->t, live);
    }
    if (!open)
        return;
    for (intptr_t i = 0; i < n; i++) {
        low[i] = -HUGE_VAL;
        high[i] = HUGE_VAL;
    }
    for (int step = 0; open && step < NEWTON_STEPS; step++) {
        for (intptr_t i = 0; i < n; i++)
            z[i] = DPK_FMA(e->t[i], e->A[i], e->m[i]);
        if (next)
            prefetch_share(next);
        evaluate(loss, n, e->y, z, NULL, d1, d2);
        open = newton_step(inverse, n, d1, d2, e, low, high, live);
        if (loss->constant_curvature) /* one step from t = 0 solves it */
            return;
    }
    if (open || loss->checked)
        for (intptr_t i = 0; i < n; i++)
            if (live[i] != 0.0 || (loss->checked && !changes_sign(loss, inverse, e, i)))
                e->t[i] = bisected(loss, inverse, e, i);
}
