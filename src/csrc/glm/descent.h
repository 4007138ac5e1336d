/* Rounds of noisy proximal gradient descent on the sum over all silos, for several models at once:
 *
 *     v = w_t + beta (w_t - w_{t-1}),    V = sum_j S_j(v) + Z_t,
 *     w_{t+1} = prox_{gamma_t h}( v - eta_t (scale V + l2 v) ),
 *
 * S_j the sum of clipped gradients of silo j (glm.h, gradients.h) and Z_t the noise of round t.
 * Only V is a release: models and rounds share nothing but the pass over the records. */
#pragma once

#include "glm/gradients.h"

/* Every round's own sample of the records, for a single model (noise/sampling.h). Those of several
 * rounds are drawn at once, by several threads, which they can be as they depend on keys alone:
 * before these rounds, or beside the rounds before, where those take one thread. */
typedef struct {
    const int64_t *counts; /* (m,) sizes of subsets without replacement, or NULL: Poisson samples */
    const uint64_t *last;  /* (m,) of Poisson samples */
    uint32_t purpose;
    intptr_t ahead;      /* rounds whose samples are drawn at once, at least 1 */
    intptr_t places;     /* samples that there is room for: ahead, or beside rounds twice as many */
    int n_threads;       /* that draw them */
    int64_t n_words;     /* work space of the subsets of a round */
    int64_t room;        /* for the records of a sample */
    uint64_t *words;     /* (ahead, n_words) */
    int64_t *numbers;    /* (places, room) */
    int64_t *bounds;     /* (places, m + 1) of the silos in a sample */
    int64_t *first_task; /* (m + 1,) */
} dpk_samples;

typedef struct {
    intptr_t rounds;
    double scale;            /* weight of a record in the mean gradient */
    const double *step_size; /* (count, rounds) eta */
    const double *momentum;  /* (count,) beta */
    const double *start;     /* (count, d) w_0 */
    const double *l2;        /* (count,) */
    intptr_t penalized;      /* l2 and prox act on the coordinates before this one */
    dpk_prox_fn *prox;       /* or NULL */
    const double *gamma;     /* (count, rounds), with the strength of h */
    const double *prox_params;
    const uint32_t *key; /* (count, rounds, keys, 8) of the releases: a round's sample, its noise */
    intptr_t keys;       /* as many of them as there are: 0, 1 or 2 */
    const dpk_samples *samples; /* or NULL: all records in every round */
    int noisy;
    uint32_t purpose;
    const double *sigma; /* (count,) */
    int saturate;        /* entries of the sum over silos stay within 2^52 steps of the grid */
    int noise_threads;
    double *w;    /* (count, models->stride) models->w, the points v: every round overwrites them */
    double *sums; /* (count, m, d) */
    double *work; /* (2, d) */
} dpk_rounds;

/* Doubles of work space for the rows as kernels use them, if they are so few, and the rounds so
 * many, that mapping them once and keeping their norms saves time; else 0. */
static inline intptr_t dpk_kept_rows(const dpk_data *data, int64_t records, intptr_t rounds) {
    const int as_stored = data->norm && !data->scale;
    const int single = data->x_is_float32 && !data->scale; /* sums of another kind (gridsum.h) */
    if (data->indptr || as_stored || single || rounds < 8 || records > (1 << 16) / (data->p + 1))
        return 0;
    return (intptr_t)records * (data->p + 1);
}

/* out: (count, rounds, d) the models after every round. models: one for all silos each, with grids
 * that all silos share, or NULL where a sum->clip of infinity says so; a single one has its clip
 * norm and grids in sum. sum and scratch: as for dpk_glm_gradient where count is 1, else as for
 * dpk_glm_gradients; of samples sum->partial is that of all records. DPK_ERR_NOT_FINITE: a model
 * overflowed, and it is not only the last one. rows: (dpk_kept_rows,), or NULL. */
dpk_status dpk_glm_descent(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                           const dpk_rounds *run, const dpk_sum *sum, double *scratch, double *rows,
                           double *out);
