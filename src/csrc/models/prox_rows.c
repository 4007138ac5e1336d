/* Rows, or pieces of rows where the prox is separable, in parallel. */
#include "core/tasks.h"
#include "models/prox_rows.h"
#include "core/gridsum.h"
#include "simd/finite.h"
#include "simd/simd.h"

/* A piece of PIECE coordinates stays in the L1 cache between its check and its prox. From STREAMED
 * doubles (64 MiB) on results do not stay in cache: non-temporal stores, which do not read the
 * memory first, write them, and inputs are prefetched AHEAD doubles early. */
enum { PIECE = 1024, STREAMED = 1 << 23, AHEAD = 256 };

/* Prefetches the n doubles from v + AHEAD on, maybe past the end. */
static void prefetch_ahead(intptr_t n, const double *v) {
    for (intptr_t k = 0; k < n; k += 8)
        __builtin_prefetch((const void *)((uintptr_t)v + (uintptr_t)(AHEAD + k) * sizeof *v));
}

static void stream(intptr_t n, const double *x, double *out) {
    intptr_t k = 0;
    for (; k < n && (uintptr_t)(out + k) % 64; k++)
        out[k] = x[k];
    for (; k + 8 <= n; k += 8)
        f8_stream(out + k, f8_load(x + k));
    for (; k < n; k++)
        out[k] = x[k];
    stream_end();
}

dpk_status dpk_prox_rows(intptr_t m, intptr_t d, const double *v, dpk_prox_fn *prox, int separable,
                         double gamma, const double *params, double *scratch, int n_threads,
                         double *out) {
    const intptr_t piece = separable && d > PIECE ? PIECE : d;
    const intptr_t per_row = (d + piece - 1) / piece;
    const int streamed = separable && m * d >= STREAMED && out != v;
    int finite = 1;
#pragma omp parallel for schedule(static) num_threads(n_threads) if (n_threads > 1)                \
    reduction(&& : finite)
    for (int64_t t = 0; t < m * per_row; t++) {
        const intptr_t first = t % per_row * piece, n = d - first < piece ? d - first : piece;
        const intptr_t at = t / per_row * d + first;
        double result[PIECE];
        if (streamed)
            prefetch_ahead(n, v + at);
        finite = dpk_all_finite(n, v + at) == DPK_OK && finite;
        prox(first, n, v + at, gamma, params,
             scratch ? scratch + thread_number() * dpk_thread_stride(d) : NULL,
             streamed ? result : out + at);
        if (streamed)
            stream(n, result, out + at);
    }
    return finite ? DPK_OK : DPK_ERR_NOT_FINITE;
}
