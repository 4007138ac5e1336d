/* The records of a round are shared by the threads; what follows has d coordinates, and is done by
 * one of them. */
#include "glm/descent.h"
#include <math.h>
#include "glm/glm.h"
#include "noise/gaussian.h"
#include "noise/sampling.h"
#include "rows/block.h"
#include "simd/finite.h"

/* Sums of up to 2^52 steps are exact doubles; with those of m silos, saturated before they are
 * added, integers do not overflow. */
#define MOST_STEPS 0x1p52
#define MOST_OF_ALL 0x1p62

static double clamped(double v, double most) { return v < -most ? -most : v > most ? most : v; }

/* V = sum over silos of S (m, d), whose entries are multiples of the grid. */
static void add_silos(intptr_t m, intptr_t d, const double *S, double *V) {
    memcpy(V, S, (size_t)d * sizeof *V);
    for (intptr_t j = 1; j < m; j++)
        for (intptr_t k = 0; k < d; k++)
            V[k] += S[j * d + k];
}

/* As above, for any number of records: both clamps are nonexpansive. */
static void add_saturated(intptr_t m, intptr_t d, const double *S, double grid, double *V) {
    const double most = fmin(MOST_STEPS, MOST_OF_ALL / (double)m);
    for (intptr_t k = 0; k < d; k++) {
        int64_t steps = 0;
        for (intptr_t j = 0; j < m; j++)
            steps += (int64_t)clamped(S[j * d + k] / grid, most);
        V[k] = clamped((double)steps, MOST_STEPS) * grid;
    }
}

/* w <- w + momentum (w - before). */
static void extrapolate(intptr_t d, double momentum, const double *before, double *w) {
    for (intptr_t k = 0; k < d; k++)
        w[k] += momentum * (w[k] - before[k]);
}

/* Round t of model i from its sums; out: (d,), row t of the model's. */
static dpk_status take_round(const dpk_data *data, const dpk_rounds *run, intptr_t i, intptr_t t,
                             double grid, double *w, double *out) {
    const intptr_t d = data->d, at = i * run->rounds + t;
    const uint32_t *const key = run->key + 8 * (at * run->keys + (run->samples != NULL));
    const double *const S = run->sums + i * data->m * d;
    double *const V = run->work, *const noise = run->work + d;
    const double eta = run->step_size[at], l2 = run->l2[i];
    if (run->saturate)
        add_saturated(data->m, d, S, grid, V);
    else
        add_silos(data->m, d, S, V);
    if (run->noisy) {
        const dpk_status status = dpk_gaussian(key, run->purpose, 1, d, run->sigma + i, &grid,
                                               DPK_PATH_FAST, run->noise_threads, noise);
        if (status != DPK_OK)
            return status;
        for (intptr_t k = 0; k < d; k++)
            V[k] += noise[k];
    }
    for (intptr_t k = 0; k < d; k++) {
        const double g = run->scale * V[k] + (k < run->penalized ? l2 : 0.0) * w[k];
        w[k] -= eta * g;
    }
    if (run->prox && dpk_all_finite(d, w) != DPK_OK)
        return DPK_ERR_NOT_FINITE;
    if (run->prox)
        run->prox(0, run->penalized, w, run->gamma[at], run->prox_params, V, w);
    memcpy(out, w, (size_t)d * sizeof *w);
    if (t + 1 == run->rounds)
        return DPK_OK;
    if (run->momentum[i] > 0.0)
        extrapolate(d, run->momentum[i], t ? out - d : run->start + i * d, w);
    return dpk_all_finite(d, w);
}

/* The sample of round t, at its place among those that are drawn with it. */
static dpk_status draw_sample(const dpk_data *data, const dpk_rounds *run, intptr_t t) {
    const dpk_samples *const draw = run->samples;
    const intptr_t m = data->m, at = t % draw->ahead;
    const uint32_t *const key = run->key + 8 * t * run->keys;
    int64_t *const numbers = draw->numbers + at * draw->room;
    int64_t *const bounds = draw->bounds + at * (m + 1);
    if (!draw->counts)
        return dpk_poisson_samples(key, draw->purpose, m, data->offsets, draw->last, numbers,
                                   bounds);
    bounds[0] = 0;
    for (intptr_t j = 0; j < m; j++)
        bounds[j + 1] = bounds[j] + draw->counts[j];
    return dpk_subsets(key, draw->purpose, m, data->offsets, draw->counts,
                       draw->words + at * draw->n_words, numbers);
}

/* The samples of the rounds from t on. */
static dpk_status draw_samples(const dpk_data *data, const dpk_rounds *run, intptr_t t) {
    const intptr_t left = run->rounds - t, most = run->samples->ahead;
    const intptr_t end = t + (left < most ? left : most);
    int worst = DPK_OK;
#pragma omp parallel for schedule(dynamic) num_threads(run->samples->n_threads)                    \
    reduction(max : worst) if (run->samples->n_threads > 1 && end - t > 1)
    for (intptr_t r = t; r < end; r++) {
        const int status = draw_sample(data, run, r);
        worst = status > worst ? status : worst;
    }
    return (dpk_status)worst;
}

/* Sums over the sample of round t at a single model. */
static dpk_status sum_sample(const dpk_data *data, const dpk_loss *loss, const dpk_rounds *run,
                             intptr_t t, const dpk_sum *sum) {
    const dpk_samples *const draw = run->samples;
    const intptr_t m = data->m, at = t % draw->ahead;
    dpk_data batch = *data;
    dpk_sum tasks = *sum;
    if (at == 0) {
        const dpk_status status = draw_samples(data, run, t);
        if (status != DPK_OK)
            return status;
    }
    batch.rows = draw->numbers + at * draw->room;
    batch.offsets = draw->bounds + at * (m + 1);
    tasks.first_task = draw->first_task;
    draw->first_task[0] = 0;
    for (intptr_t j = 0; j < m; j++) {
        const int64_t n = batch.offsets[j + 1] - batch.offsets[j];
        draw->first_task[j + 1] = draw->first_task[j] + (n + sum->task_rows - 1) / sum->task_rows;
    }
    return dpk_glm_gradient(&batch, run->w, 0, loss, NULL, &tasks, run->sums);
}

/* The same records in rows that need no map, and have their norms. */
static dpk_data with_kept_rows(const dpk_data *data, double *rows) {
    const int64_t n = data->offsets[data->m];
    double *const norm = rows + n * data->p;
    dpk_data own = *data;
    dpk_map_rows(data, 0, n, rows);
    own.X = rows;
    own.x_is_float32 = 0;
    own.scale = own.shift = own.norm = NULL;
    dpk_row_norms(&own, 0, n, norm);
    own.norm = norm;
    return own;
}

dpk_status dpk_glm_descent(const dpk_data *shared, const dpk_models *models, const dpk_loss *loss,
                           const dpk_rounds *run, const dpk_sum *sum, double *scratch, double *rows,
                           double *out) {
    const dpk_data own = rows ? with_kept_rows(shared, rows) : *shared, *const data = &own;
    const intptr_t d = data->d;
    dpk_status status = DPK_OK;
    for (intptr_t t = 0; t < run->rounds && status == DPK_OK; t++) {
        if (run->samples)
            status = sum_sample(data, loss, run, t, sum);
        else if (models->count == 1)
            status = dpk_glm_gradient(data, run->w, 0, loss, NULL, sum, run->sums);
        else
            status = dpk_glm_gradients(data, models, loss, sum, scratch, run->sums);
        for (intptr_t i = 0; i < models->count && status == DPK_OK; i++) {
            const double grid = models->grid ? models->grid[i * data->m] : 0.0;
            status = take_round(data, run, i, t, grid, run->w + i * models->stride,
                                out + (i * run->rounds + t) * d);
        }
    }
    return status;
}
