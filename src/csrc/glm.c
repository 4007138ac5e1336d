/* Generalised linear models: one fused pass over X per call, a cache-sized block of rows at a time:
 * margins of the block, one call of the loss, then accumulation of the clipped gradients. */
#include "glm.h"
#include "gridsum.h"
#include "simd.h"

dpk_glm_margins_fn DPK_FN(dpk_glm_margins);
dpk_glm_losses_fn DPK_FN(dpk_glm_losses);
dpk_glm_gradient_fn DPK_FN(dpk_glm_gradient);

/* A block of records: what margins and accumulation share. */
typedef struct {
    const void *x[DPK_GLM_BLOCK]; /* rows: of X, in its type, or [scale x + shift] in double */
    double y[DPK_GLM_BLOCK];      /* labels */
    double z[DPK_GLM_BLOCK];      /* margins of the effective rows */
    double norm[DPK_GLM_BLOCK];   /* upper bound of |[scale x + shift, 1]| */
    double ratio[DPK_GLM_BLOCK];  /* r = min(1, row_bound / norm) */
    double loss[DPK_GLM_BLOCK];   /* derivative or value of the loss */
} block;

/* Row of record i: X itself, or in `mapped` (p,) the row under the feature map. */
static inline const void *row_of(const dpk_data *data, int64_t i, double *restrict mapped) {
    const intptr_t p = data->p, first = i * p;
    if (!data->scale)
        return data->x_is_float32 ? (const void *)((const float *)data->X + first)
                                  : (const void *)((const double *)data->X + first);
    for (intptr_t k = 0; k < p; k++) {
        const double x = data->x_is_float32 ? ((const float *)data->X)[first + k]
                                            : ((const double *)data->X)[first + k];
        mapped[k] = DPK_FMA(data->scale[k], x, data->shift[k]);
    }
    return mapped;
}

static inline int rows_are_float32(const dpk_data *data) {
    return data->x_is_float32 && !data->scale;
}

/* Rows, labels, margins, norms and scalings of the records first .. first + n of one silo. */
static void load_block(const dpk_data *data, const double *w, int64_t first, intptr_t n,
                       double *scratch, block *b) {
    const intptr_t p = data->p, d = data->d;
    const double bias = data->intercept ? w[p] : 0.0, one = data->intercept ? 1.0 : 0.0;
    for (intptr_t i = 0; i < n; i++) {
        const int64_t row = data->rows ? data->rows[first + i] : first + i;
        const void *x = b->x[i] = row_of(data, row, scratch + i * p);
        b->y[i] = data->y[row];
        b->z[i] = rows_are_float32(data) ? f8_dot_and_square_f32(p, x, w, &b->norm[i])
                                         : f8_dot_and_square_f64(p, x, w, &b->norm[i]);
    }
    for (intptr_t i = 0; i < n; i++) {
        const double norm = norm_up(b->norm[i] + one, d);
        b->norm[i] = norm;
        b->ratio[i] = norm > data->row_bound ? data->row_bound / norm : 1.0;
        b->z[i] = b->ratio[i] * (b->z[i] + bias);
    }
}

/* Add the clipped gradients of n records to `part` (d,); returns how many were added. */
static int64_t add_block(const dpk_data *data, const dpk_sum *sum, intptr_t j, intptr_t n,
                         double clip, const block *b, double *part) {
    const intptr_t p = data->p;
    const double weight = sum->silo_weight ? sum->silo_weight[j] : 1.0;
    const void *x[DPK_GLM_BLOCK];
    double s[DPK_GLM_BLOCK];
    intptr_t count = 0;
    /* The gradient in the stored row is (r phi') x: clip with the stored row's norm. */
    for (intptr_t i = 0; i < n; i++)
        s[i] = weight * clamp_scalar(b->loss[i] * b->ratio[i], factor_limit(clip, b->norm[i]));
    /* Rows without a gradient are left out; among them are all that are not finite. */
    for (intptr_t i = 0; i < n; i++)
        if (s[i] != 0.0) {
            s[count] = s[i];
            x[count++] = b->x[i];
        }
    if (sum->grid) {
        const double M = magic(sum->grid[j]);
        int64_t *const acc = (int64_t *)(void *)part;
        if (rows_are_float32(data))
            add_rows_on_grid_f32(p, count, s, x, M, acc);
        else
            add_rows_on_grid_f64(p, count, s, x, M, acc);
        if (data->intercept)
            for (intptr_t r = 0; r < count; r++)
                acc[p] = (int64_t)((uint64_t)acc[p] + (uint64_t)bits_of(s[r] + M));
    } else {
        if (rows_are_float32(data))
            add_rows_f32(p, count, s, x, part);
        else
            add_rows_f64(p, count, s, x, part);
        if (data->intercept)
            for (intptr_t r = 0; r < count; r++)
                part[p] += s[r];
    }
    return count;
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

static inline double *thread_scratch(const dpk_data *data, const dpk_sum *sum) {
    return sum->scratch + thread_number() * dpk_glm_scratch(data);
}

dpk_status DPK_FN(dpk_glm_margins)(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_sum *sum, double *z) {
    const int64_t n_tasks = sum->first_task[data->m];
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        double *const scratch = thread_scratch(data, sum);
        block b;
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(data->p)) {
            const intptr_t n = rows_left(i, u.end, data->p);
            load_block(data, w + u.j * w_stride, i, n, scratch, &b);
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
        double *const scratch = thread_scratch(data, sum);
        double total = 0.0;
        block b;
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(data->p)) {
            const intptr_t n = rows_left(i, u.end, data->p);
            load_block(data, w + u.j * w_stride, i, n, scratch, &b);
            loss(n, b.y, b.z, b.loss, NULL, NULL, params);
            for (intptr_t r = 0; r < n; r++)
                total += b.loss[r];
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
        const double clip = inner_clip(sum, u.j, d);
        double *const scratch = thread_scratch(data, sum), *const part = sum->partial + t * d;
        int64_t added = 0;
        block b;
        memset(part, 0, (size_t)d * sizeof(double));
        for (int64_t i = u.begin; i < u.end; i += dpk_glm_block_rows(p)) {
            const intptr_t n = rows_left(i, u.end, p);
            load_block(data, w + u.j * w_stride, i, n, scratch, &b);
            loss(n, b.y, b.z, NULL, b.loss, NULL, params);
            added += add_block(data, sum, u.j, n, clip, &b, part);
        }
        if (sum->grid)
            remove_magic(d, added, magic(sum->grid[u.j]), (int64_t *)(void *)part);
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
