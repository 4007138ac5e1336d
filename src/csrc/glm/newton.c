/* Newton directions: Cholesky of H - floor I; where it succeeds nothing is truncated and Cholesky
 * of H solves H p = g, else p = V max(lam, floor)^-1 V^T g, H = V diag(lam) V^T.
 *
 * Roundings. Cholesky of H - floor I succeeds in doubles only if H - floor I + E is positive
 * definite for some |E| <= c u |H|, c of the order of d^2 in the worst case and d or less in
 * practice (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorems 10.3 and
 * 10.7). So eigenvalues of H below floor - c u |H| are never missed; one within c u |H| of the
 * floor may count as on either side of it, which is an error of that size in H, as eigenvalues from
 * any algorithm and the solution with H have anyway. */
#include <float.h>
#include <math.h>
#include "core/tasks.h"
#include "core/gridsum.h"
#include "glm/newton.h"

/* LAPACK stores columns: its upper triangle is the lower one here. */
static char UPPER = 'U', LEFT = 'L', TRANSPOSED = 'T', PLAIN = 'N', WANTED = 'V', ABOVE = 'V',
            ALL = 'A', TRIDIAGONAL = 'I';

/* A = scale H - shift I, its lower triangle. */
static void load(intptr_t d, const double *H, double scale, double shift, double *A) {
    for (intptr_t i = 0; i < d; i++) {
        for (intptr_t k = 0; k <= i; k++)
            A[i * d + k] = scale * H[i * d + k];
        A[i * d + i] -= shift;
    }
}

/* Power of two that brings the largest entry of the lower triangle, and the floor, to 1/2 .. 1:
 * LAPACK's intermediate results then neither overflow nor underflow. NaN where H is not finite.
 * Absolute values of doubles are ordered like their bit patterns, and a maximum of integers
 * vectorises. */
static double scale_of(intptr_t d, const double *H, double floor) {
    int64_t largest = bits_of(floor);
    for (intptr_t i = 0; i < d; i++)
        for (intptr_t k = 0; k <= i; k++) {
            const int64_t size = bits_of(H[i * d + k]) & INT64_MAX;
            largest = size > largest ? size : largest;
        }
    if (largest > bits_of(DBL_MAX))
        return NAN;
    int exponent;
    (void)frexp(double_of(largest), &exponent);
    return ldexp(1.0, exponent < -1020 ? 1020 : -exponent);
}

static int factor(const dpk_lapack *lapack, int n, double *A) {
    int info;
    lapack->dpotrf(&UPPER, &n, A, &n, &info);
    return info == 0;
}

/* How many eigenvalues of a tridiagonal matrix are above the floor, by the signs of its pivots
 * (Sylvester's law of inertia). */
static intptr_t count_above(intptr_t d, const double *diagonal, const double *beside,
                            double floor) {
    double pivot = 1.0;
    intptr_t count = 0;
    for (intptr_t k = 0; k < d; k++) {
        pivot = diagonal[k] - floor - (k > 0 ? beside[k - 1] * beside[k - 1] / pivot : 0.0);
        pivot = fabs(pivot) > DBL_MIN ? pivot : -DBL_MIN;
        count += pivot > 0.0;
    }
    return count;
}

/* Eigenvalues and rows of eigenvectors of a tridiagonal matrix, at least those above the floor, by
 * relatively robust representations (Dhillon and Parlett 2004), or, where these fail, by divide and
 * conquer. copy, rest: (2 d,) and (d^2 + 64 d + 1,) work space. Returns how many, or -1. */
static intptr_t eigenvectors(const dpk_lapack *lapack, int n, double *diagonal, double *beside,
                             double floor, double *lam, double *Z, double *copy, double *rest,
                             int *iwork) {
    const intptr_t d = n;
    int lwork = (int)(d * d + 64 * d + 1), liwork = 10 * n, all = 5 * n + 3, robust = 1, none = 0;
    int found, info;
    /* No entry exceeds 1, and so no eigenvalue exceeds d. Where a feature is absent many
     * eigenvalues equal the floor up to rounding; they are left out, because a cluster takes long.
     * Those that were counted lie in the interval in spite of rounding: with an empty interval
     * dstemr would read memory that was never written. */
    const double slack = 0x1p-48 * (double)d;
    double below = floor + 0.5 * slack, above = 2.0 * (double)d;
    const intptr_t count = count_above(d, diagonal, beside, floor + slack);
    if (count == 0)
        return 0;
    /* Bisection is for a few of them: dqds finds all faster than bisection finds an eighth. */
    char *const range = count <= d / 8 ? &ABOVE : &ALL;
    memcpy(copy, diagonal, (size_t)d * sizeof(double));
    memcpy(copy + d, beside, (size_t)d * sizeof(double));
    lapack->dstemr(&WANTED, range, &n, diagonal, beside, &below, &above, &none, &none, &found, lam,
                   Z, &n, &n, iwork + 10 * d, &robust, rest, &lwork, iwork, &liwork, &info);
    if (info == 0)
        return found;
    lapack->dstedc(&TRIDIAGONAL, &n, copy, copy + d, Z, &n, rest, &lwork, iwork, &all, &info);
    memcpy(lam, copy, (size_t)d * sizeof(double));
    return info == 0 ? n : -1;
}

/* x = (V max(lam, floor) V^T)^-1 x = x / floor + sum_k (1 / lam_k - 1 / floor) v_k (v_k . x) over
 * lam_k > floor. A: H (d, d), overwritten. The vectors of the tridiagonal form T = Q^T H Q = Z lam
 * Z^T suffice: V = Q Z is applied as two factors and never formed. */
static int solve_truncated(const dpk_lapack *lapack, int n, double *A, double floor, double *work,
                           int *iwork, double *x) {
    const intptr_t d = n;
    double *const Z = work, *const lam = Z + d * d, *const diagonal = lam + d,
                  *const beside = diagonal + d, *const tau = beside + d, *const c = tau + d,
                  *const copy = c + d, *const rest = copy + 2 * d;
    double zero = 0.0, unit = 1.0, share = 1.0 / floor;
    int lwork = (int)(d * d + 64 * d + 1), one = 1, info;
    int least =
        1; /* a single vector gains nothing from blocked reflections, which need more work space */
    lapack->dsytrd(&UPPER, &n, A, &n, diagonal, beside, tau, rest, &lwork, &info);
    int found = (int)eigenvectors(lapack, n, diagonal, beside, floor, lam, Z, copy, rest, iwork);
    if (found < 0)
        return 0;
    lapack->dormtr(&LEFT, &UPPER, &TRANSPOSED, &n, &one, A, &n, tau, x, &n, rest, &least, &info);
    if (found > 0) {
        lapack->dgemv(&TRANSPOSED, &n, &found, &unit, Z, &n, x, &one, &zero, c, &one);
        for (intptr_t k = 0; k < found; k++)
            c[k] *= lam[k] > floor ? 1.0 / lam[k] - share : 0.0;
        lapack->dgemv(&PLAIN, &n, &found, &unit, Z, &n, c, &one, &share, x, &one);
    } else
        for (intptr_t k = 0; k < d; k++)
            x[k] *= share;
    lapack->dormtr(&LEFT, &UPPER, &PLAIN, &n, &one, A, &n, tau, x, &n, rest, &least, &info);
    return 1;
}

/* One silo; work: (dpk_newton_work(d),). */
static dpk_status direction(intptr_t d, const double *H, const double *g, double floor,
                            const dpk_lapack *lapack, double *work, int *iwork, double *p) {
    const double scale = scale_of(d, H, floor);
    if (scale != scale)
        return DPK_ERR_NOT_FINITE;
    /* A floor that underflows beside H must not become 0, a divisor. */
    const double scaled_floor = fmax(scale * floor, DBL_MIN);
    double *const A = work, *const rest = work + d * d;
    int n = (int)d, one = 1, info;
    memcpy(p, g, (size_t)d * sizeof(double));
    load(d, H, scale, scaled_floor, A);
    int definite = factor(lapack, n, A);
    if (definite) {
        load(d, H, scale, 0.0, A);
        definite = factor(lapack, n, A);
    }
    if (definite)
        lapack->dpotrs(&UPPER, &n, &one, A, &n, p, &n, &info);
    else {
        load(d, H, scale, 0.0, A);
        if (!solve_truncated(lapack, n, A, scaled_floor, rest, iwork, p))
            return DPK_ERR_NO_CONVERGENCE;
    }
    for (intptr_t k = 0; k < d; k++)
        p[k] *= scale;
    return DPK_OK;
}

dpk_status dpk_newton_direction(intptr_t m, intptr_t d, const double *H, const double *g,
                                double floor, const dpk_lapack *lapack, int n_threads, double *work,
                                int *iwork, double *out) {
    int worst = DPK_OK;
#pragma omp parallel for schedule(dynamic) num_threads(n_threads) if (n_threads > 1)               \
    reduction(max : worst)
    for (intptr_t j = 0; j < m; j++) {
        const intptr_t thread = thread_number();
        const int status = (int)direction(d, H + j * d * d, g + j * d, floor, lapack,
                                          work + thread * dpk_newton_work(d),
                                          iwork + thread * dpk_newton_iwork(d), out + j * d);
        worst = status > worst ? status : worst;
    }
    return (dpk_status)worst;
}
