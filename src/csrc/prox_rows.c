/* Rows, or pieces of rows where a prox takes coordinates one by one, in parallel. */
#include "prox_rows.h"
#include "gridsum.h"
#include "simd.h"

dpk_prox_rows_fn DPK_FN(dpk_prox_rows);

/* Coordinates of a piece: it stays in L1 between its check and its prox. */
enum { PIECE = 1024 };

static int all_finite(intptr_t n, const double *v) {
    f8 a = f8_zero();
    for (intptr_t k = 0; k < n; k += 8) {
        const f8 x = n - k < 8 ? f8_load_first(v + k, n - k) : f8_load(v + k);
        a = f8_fma(x, f8_zero(), a); /* NaN and infinity leave NaN */
    }
    return f8_sum(a) == 0.0;
}

dpk_status DPK_FN(dpk_prox_rows)(intptr_t m, intptr_t d, const double *v, dpk_prox_fn *prox,
                                 int separable, double gamma, const double *params, double *scratch,
                                 int n_threads, double *out) {
    const intptr_t piece = separable && d > PIECE ? PIECE : d;
    const intptr_t per_row = (d + piece - 1) / piece;
    int finite = 1;
#pragma omp parallel for schedule(static) num_threads(n_threads) if (n_threads > 1)                \
    reduction(&& : finite)
    for (int64_t t = 0; t < m * per_row; t++) {
        const intptr_t first = t % per_row * piece, n = d - first < piece ? d - first : piece;
        const intptr_t at = t / per_row * d + first;
        finite = all_finite(n, v + at) && finite;
        prox(first, n, v + at, gamma, params,
             scratch ? scratch + thread_number() * dpk_apart(d) : NULL, out + at);
    }
    return finite ? DPK_OK : DPK_ERR_NOT_FINITE;
}
