/* A silo's steps are run one after the other by one thread, so that its rows stay in cache. */
#include "core/tasks.h"
#include "glm/local_descent.h"
#include <math.h>
#include "glm/sum_gradients.h"
#include "rows/block.h"
#include "noise/chacha20.h"
#include "noise/gaussian.h"
#include "rows/dots.h"

/* A silo's draws in order; `buffer` holds those of the next steps. */
typedef struct {
    const dpk_descent *run;
    uint64_t silo;
    double sigma, grid;
    double *buffer;
    int64_t capacity, end; /* length of buffer; number of all draws */
    int64_t from, to;      /* buffer[0 .. to - from) are the draws from .. to - 1 */
} noise_reader;

/* The draws first .. first + d - 1; `from` and `to` stay multiples of DPK_CHUNK_WORDS, except for
 * the last `to`. */
static const double *next_noise(noise_reader *r, int64_t first, intptr_t d) {
    if (first + d > r->to) {
        const int64_t keep = first - first % DPK_CHUNK_WORDS;
        const int64_t to = keep + r->capacity < r->end ? keep + r->capacity : r->end;
        const uint64_t nonce = (uint64_t)r->run->purpose << 48 | r->silo;
        memmove(r->buffer, r->buffer + (keep - r->from), (size_t)(r->to - keep) * sizeof(double));
        dpk_gaussian_range(r->run->key, nonce, r->to, to, r->sigma, r->grid, DPK_PATH_FAST,
                           r->buffer + (r->to - keep));
        r->from = keep;
        r->to = to;
    }
    return r->buffer + (first - r->from);
}

/* theta <- prox(theta - eta (S / n + pull theta + anchor (theta - start))); S: (d,) steps of the
 * grid as integers, or doubles where grid is 0, overwritten; z: (d,) noise, or NULL. */
static void take_step(const dpk_descent *run, double *S, double grid, const double *z, double n,
                      double eta, intptr_t d, const double *start, double *theta) {
    const int64_t *const steps = (const int64_t *)(const void *)S;
    double pull = run->l2;
    if (run->smooth) {
        const dpk_data model = {.X = theta, .p = run->penalized};
        pull += run->smooth_strength * run->smooth(sqrt(square_of(0, &model, 0)));
    }
    for (intptr_t k = 0; k < d; k++) {
        double g = grid != 0.0 ? (double)steps[k] * grid : S[k];
        if (z)
            g += z[k];
        g = DPK_FMA(k < run->penalized ? pull : 0.0, theta[k], g / n);
        if (run->anchor != 0.0)
            g = DPK_FMA(run->anchor, theta[k] - start[k], g);
        theta[k] = DPK_FMA(-eta, g, theta[k]);
    }
    if (run->prox)
        run->prox(0, run->penalized, theta, eta * run->prox_strength, run->prox_params, S, theta);
}

dpk_status dpk_local_descent(const dpk_data *data, const double *w, intptr_t w_stride,
                             const dpk_loss *loss, const dpk_descent *run, const dpk_sum *sum,
                             const int64_t *order, intptr_t count, double *noise, double *out) {
    const intptr_t d = data->d, capacity = dpk_descent_noise(run, d);
#pragma omp parallel for schedule(dynamic, 1) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (intptr_t i = 0; i < count; i++) {
        const int64_t j = order[i], begin = data->offsets[j];
        const int64_t n = run->batch ? run->batch : data->offsets[j + 1] - begin;
        const double grid = sum->grid ? sum->grid[j] : 0.0, clip = inner_clip(sum, j, d);
        double *const acc = sum->partial + thread_number() * dpk_thread_stride(2 * dpk_padded(d));
        double *const theta = acc + dpk_padded(d);
        noise_reader reader = {
            .run = run,
            .silo = (uint64_t)j,
            .sigma = run->key ? run->sigma[j] : 0.0,
            .grid = grid,
            .buffer = noise + thread_number() * capacity,
            .capacity = capacity,
            .end = run->steps * d,
        };
        const dpk_gradients of = {
            .data = data,
            .w = theta,
            .loss = loss,
            .M = magic(grid),
            .clip = clip,
            .weight = 1.0,
            .streamed = dpk_streamed(data, n),
        };
        memcpy(theta, w + j * w_stride, (size_t)d * sizeof(double));
        for (intptr_t t = 0; t < run->steps; t++) {
            const int64_t first = begin + t * run->batch;
            dpk_sum_gradients(&of, first, first + n, acc);
            take_step(run, acc, grid, run->key ? next_noise(&reader, t * d, d) : NULL, (double)n,
                      run->step_size[t], d, w + j * w_stride, theta);
        }
        memcpy(out + j * d, theta, (size_t)d * sizeof(double));
    }
    return DPK_OK;
}
