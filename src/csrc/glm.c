/* Generalised linear models: one fused pass over X per call, a cache-sized block of rows at a time:
 * margins of the block, one call of the loss, then accumulation of the clipped gradients. */
#include "glm.h"
#include "gridsum.h"
#include "simd.h"

dpk_glm_margins_fn DPK_FN(dpk_glm_margins);
dpk_glm_losses_fn DPK_FN(dpk_glm_losses);
dpk_glm_gradient_fn DPK_FN(dpk_glm_gradient);

/* A block of records: what margins and accumulation share. Arrays hold dpk_glm_block_rows(p). */
typedef struct {
    double *rows;  /* (block, p) rows in double, where X does not hold them so */
    double *y;     /* labels */
    double *z;     /* margins of the effective rows */
    double *ratio; /* r = min(1, row_bound / norm) */
    double *norm;  /* upper bound of |[scale x + shift, 1]| */
    double *d1;    /* derivative or value of the loss */
} block;

static block block_in(double *scratch, intptr_t p) {
    const intptr_t b = dpk_glm_block_rows(p);
    return (block){scratch + 5 * b, scratch,         scratch + b,
                   scratch + 2 * b, scratch + 3 * b, scratch + 4 * b};
}

static inline int64_t stored_row(const dpk_data *data, int64_t i) {
    return data->rows ? data->rows[i] : i;
}

/* Features of record i in double: X itself where it can be read in place, else `copy` (p,). */
static inline const double *features(const dpk_data *data, int64_t i, double *restrict copy) {
    const intptr_t p = data->p;
    const int64_t row = stored_row(data, i);
    const double *x = (const double *)data->X + row * p;
    if (data->x_is_float32) {
        const float *x32 = (const float *)data->X + row * p;
        for (intptr_t k = 0; k < p; k++)
            copy[k] = x32[k];
        x = copy;
    } else if (!data->scale) {
        return x;
    }
    if (data->scale)
        for (intptr_t k = 0; k < p; k++)
            copy[k] = DPK_FMA(data->scale[k], x[k], data->shift[k]);
    return copy;
}

/* Labels, margins, norms and scalings of the records first .. first + n of one silo. */
static void load_block(const dpk_data *data, const double *w, int64_t first, intptr_t n, block b) {
    const intptr_t p = data->p, d = data->d;
    for (intptr_t i = 0; i < n; i++) {
        double square;
        const double *x = features(data, first + i, b.rows + i * p);
        double dot = f8_dot_and_square(p, x, w, &square);
        if (data->intercept) {
            dot += w[p];
            square += 1.0;
        }
        b.y[i] = data->y[stored_row(data, first + i)];
        b.norm[i] = norm_up(square, d);
        b.ratio[i] = b.norm[i] > data->row_bound ? data->row_bound / b.norm[i] : 1.0;
        b.z[i] = b.ratio[i] * dot;
    }
}

/* Records begin .. end of task t, which all lie in silo j. */
typedef struct {
    intptr_t j;
    int64_t begin, end;
} task;

static task task_number(const dpk_data *data, const dpk_sum *sum, int64_t t) {
    const intptr_t j = silo_of_task(sum->first_task, data->m, t);
    const int64_t begin = data->offsets[j] + (t - sum->first_task[j]) * DPK_TASK_ROWS;
    const int64_t end = begin + DPK_TASK_ROWS, silo_end = data->offsets[j + 1];
    return (task){j, begin, end < silo_end ? end : silo_end};
}

static inline intptr_t rows_left(int64_t i, int64_t end, intptr_t p) {
    const intptr_t b = dpk_glm_block_rows(p);
    return end - i < b ? (intptr_t)(end - i) : b;
}

dpk_status DPK_FN(dpk_glm_margins)(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_sum *sum, double *z) {
    const int64_t n_tasks = sum->first_task[data->m];
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        const block b =
            block_in(sum->scratch + thread_number() * dpk_glm_scratch(data->p), data->p);
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(data->p)) {
            const intptr_t n = rows_left(i, u.end, data->p);
            load_block(data, w + u.j * w_stride, i, n, b);
            memcpy(z + i, b.z, (size_t)n * sizeof(double));
        }
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_losses)(const dpk_data *data, const double *w, intptr_t w_stride,
                                  dpk_loss_fn *loss, void *params, const dpk_sum *sum,
                                  double *out) {
    const int64_t n_tasks = sum->first_task[data->m];
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        const block b =
            block_in(sum->scratch + thread_number() * dpk_glm_scratch(data->p), data->p);
        double total = 0.0;
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(data->p)) {
            const intptr_t n = rows_left(i, u.end, data->p);
            load_block(data, w + u.j * w_stride, i, n, b);
            loss(n, b.y, b.z, b.d1, NULL, NULL, params);
            for (intptr_t r = 0; r < n; r++)
                total += b.d1[r];
        }
        sum->partial[t] = total;
    }
    sum_partials(sum, data->m, 1, out);
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_gradient)(const dpk_data *data, const double *w, intptr_t w_stride,
                                    dpk_loss_fn *loss, void *params, const dpk_sum *sum,
                                    double *out) {
    const intptr_t p = data->p, d = data->d;
    const int64_t n_tasks = sum->first_task[data->m];
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        const block b = block_in(sum->scratch + thread_number() * dpk_glm_scratch(p), p);
        const double clip = inner_clip(sum, u.j, d);
        const double weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0;
        int64_t added = 0;
        double *part = sum->partial + t * d;
        memset(part, 0, (size_t)d * sizeof(double));
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(p)) {
            const intptr_t n = rows_left(i, u.end, p);
            load_block(data, w + u.j * w_stride, i, n, b);
            loss(n, b.y, b.z, NULL, b.d1, NULL, params);
            for (intptr_t r = 0; r < n; r++) {
                /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
                const double lim = factor_limit(clip, b.norm[r]);
                const double s = weight * clamp_scalar(b.d1[r] * b.ratio[r], lim);
                if (s == 0.0)
                    continue;
                added++;
                const double *x = data->x_is_float32 || data->scale
                                      ? b.rows + r * p
                                      : (const double *)data->X + stored_row(data, i + r) * p;
                const double one = 1.0;
                if (sum->grid) {
                    add_on_grid(p, s, x, M, (int64_t *)(void *)part);
                    if (data->intercept)
                        add_on_grid(1, s, &one, M, (int64_t *)(void *)part + p);
                } else {
                    add_float(p, s, x, part);
                    if (data->intercept)
                        add_float(1, s, &one, part + p);
                }
            }
        }
        if (sum->grid)
            remove_magic(d, added, M, (int64_t *)(void *)part);
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
