/* The records of a round are shared by the threads, unless they are few; what follows has d
 * coordinates, and is done by one of them. */
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

/* Round t's place among the samples that are there. */
static intptr_t place_of(const dpk_samples *draw, intptr_t t) { return t % draw->places; }

static dpk_status draw_sample(const dpk_data *data, const dpk_rounds *run, intptr_t t) {
    const dpk_samples *const draw = run->samples;
    const intptr_t m = data->m, at = place_of(draw, t);
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
                       draw->words + t % draw->ahead * draw->n_words, numbers);
}

/* Sums over the sample of round t at a single model. */
static dpk_status sum_sample(const dpk_data *data, const dpk_loss *loss, const dpk_rounds *run,
                             intptr_t t, const dpk_sum *sum) {
    const dpk_samples *const draw = run->samples;
    const intptr_t m = data->m, at = place_of(draw, t);
    dpk_data batch = *data;
    dpk_sum tasks = *sum;
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

/* A run's arguments, as they are given to dpk_glm_descent. */
typedef struct {
    const dpk_data *data;
    const dpk_models *models;
    const dpk_loss *loss;
    const dpk_rounds *run;
    const dpk_sum *sum;
    double *scratch, *out;
} whole_run;

/* The rounds from t to before `end`. */
static dpk_status take_rounds(const whole_run *of, intptr_t t, intptr_t end) {
    const dpk_models *const models = of->models;
    const dpk_data *const data = of->data;
    const dpk_rounds *const run = of->run;
    dpk_status status = DPK_OK;
    for (; t < end && status == DPK_OK; t++) {
        if (run->samples)
            status = sum_sample(data, of->loss, run, t, of->sum);
        else if (models->count == 1)
            status = dpk_glm_gradient(data, run->w, 0, of->loss, NULL, of->sum, run->sums);
        else
            status = dpk_glm_gradients(data, models, of->loss, of->sum, of->scratch, run->sums);
        for (intptr_t i = 0; i < models->count && status == DPK_OK; i++) {
            const double grid = models->grid ? models->grid[i * data->m] : 0.0;
            status = take_round(data, run, i, t, grid, run->w + i * models->stride,
                                of->out + (i * run->rounds + t) * data->d);
        }
    }
    return status;
}

/* The rounds from t to before `end`, and the samples of the next ones: beside them, by all threads
 * but the one that takes the rounds and helps when it is done, or after them. */
static dpk_status take_and_draw(const whole_run *of, intptr_t t, intptr_t end) {
    const dpk_rounds *const run = of->run;
    const intptr_t left = run->rounds - end, ahead = run->samples->ahead;
    const intptr_t last = end + (left < ahead ? left : ahead);
    const int beside = run->samples->places > ahead;
    const dpk_status status = beside ? DPK_OK : take_rounds(of, t, end);
    int worst = status;
#pragma omp parallel num_threads(run->samples->n_threads)                                          \
    reduction(max : worst) if (run -> samples->n_threads > 1 && last - end > 1)
    {
#pragma omp master
        if (beside)
            worst = take_rounds(of, t, end);
#pragma omp for schedule(dynamic) nowait
        for (intptr_t r = end; r < last; r++) {
            const int drawn = draw_sample(of->data, run, r);
            worst = drawn > worst ? drawn : worst;
        }
    }
    return (dpk_status)worst;
}

dpk_status dpk_glm_descent(const dpk_data *shared, const dpk_models *models, const dpk_loss *loss,
                           const dpk_rounds *run, const dpk_sum *sum, double *scratch, double *rows,
                           double *out) {
    const dpk_data own = rows ? with_kept_rows(shared, rows) : *shared;
    const whole_run of = {&own, models, loss, run, sum, scratch, out};
    if (!run->samples)
        return take_rounds(&of, 0, run->rounds);
    const intptr_t rounds = run->rounds, ahead = run->samples->ahead;
    dpk_status status = take_and_draw(&of, 0, 0);
    for (intptr_t t = 0; t < rounds && status == DPK_OK; t += ahead)
        status = take_and_draw(&of, t, rounds - t < ahead ? rounds : t + ahead);
    return status;
}
