/* Generalised linear models: one fused pass over X per call, a block of records at a time
 * (block.h): margins of the block, one call of the loss, then accumulation of the clipped
 * gradients. */
#include "glm.h"
#include "block.h"

dpk_glm_norms_fn DPK_FN(dpk_glm_norms);
dpk_glm_margins_fn DPK_FN(dpk_glm_margins);
dpk_glm_losses_fn DPK_FN(dpk_glm_losses);
dpk_glm_gradient_fn DPK_FN(dpk_glm_gradient);

DPK_INLINE void norms_of(row_kind kind, const dpk_data *data, task u, double *norm) {
    const double one = data->intercept ? 1.0 : 0.0;
    for (int64_t i = u.begin; i < u.end; i++) {
        norm[i] = norm_up(square_of(kind, data, i) + one, data->d);
    }
}

DPK_INLINE void margins_of(row_kind kind, const dpk_data *data, const double *w, task u,
                           double *z) {
    block b;
    for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
        const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
        load_block(kind, data, w, i, n, &b);
        memcpy(z + i, b.z, (size_t)n * sizeof(double));
    }
}

DPK_INLINE double losses_of(row_kind kind, const dpk_data *data, const double *w,
                            const dpk_loss *loss, task u) {
    double total = 0.0;
    block b;
    for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
        const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
        load_block(kind, data, w, i, n, &b);
        loss->block(n, b.y, b.z, b.s, NULL, NULL, loss->params);
        for (intptr_t r = 0; r < n; r++)
            total += b.s[r];
    }
    return total;
}

dpk_status DPK_FN(dpk_glm_norms)(const dpk_data *data, const dpk_sum *sum, double *norm) {
    const row_kind kind = kind_of(data);
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        FOR_KIND(kind, norms_of(KIND, data, u, norm));
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_margins)(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_sum *sum, double *z) {
    const row_kind kind = kind_of(data);
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        FOR_KIND(kind, margins_of(KIND, data, w + u.j * w_stride, u, z));
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_losses)(const dpk_data *data, const double *w, intptr_t w_stride,
                                  const dpk_loss *loss, const dpk_sum *sum, double *out) {
    const row_kind kind = kind_of(data);
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        FOR_KIND(kind, sum->partial[8 * t] = losses_of(KIND, data, w + u.j * w_stride, loss, u));
    }
    sum_partials(sum, data->m, 1, out);
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_gradient)(const dpk_data *data, const double *w, intptr_t w_stride,
                                    const dpk_loss *loss, const dpk_sum *sum, double *out) {
    const row_kind kind = kind_of(data);
    const intptr_t d = data->d;
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        const double weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0, clip = inner_clip(sum, u.j, d);
        block b;
        FOR_KIND(kind, gradient_of(KIND, data, w + u.j * w_stride, loss, M, clip, weight, u.begin,
                                   u.end, &b, sum->partial + t * dpk_padded(d)));
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
