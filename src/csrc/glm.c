/* Generalised linear models: one fused pass over X per call, in units of work that lie in one silo
 * each. */
#include "glm.h"
#include "block.h"
#include "gridsum.h"

extern dpk_load_block_fn DPK_FN(dpk_load_block);
extern dpk_row_norms_fn DPK_FN(dpk_row_norms);
extern dpk_sum_gradients_fn DPK_FN(dpk_sum_gradients);
extern dpk_sum_differences_fn DPK_FN(dpk_sum_differences);
dpk_glm_norms_fn DPK_FN(dpk_glm_norms);
dpk_glm_margins_fn DPK_FN(dpk_glm_margins);
dpk_glm_losses_fn DPK_FN(dpk_glm_losses);
dpk_glm_gradient_fn DPK_FN(dpk_glm_gradient);
dpk_glm_difference_fn DPK_FN(dpk_glm_difference);

#define PARALLEL                                                                                   \
    "omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)"

dpk_status DPK_FN(dpk_glm_norms)(const dpk_data *data, const dpk_sum *sum, double *norm) {
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        DPK_FN(dpk_row_norms)(data, u.begin, u.end, norm + u.begin);
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_margins)(const dpk_data *data, const double *w, intptr_t w_stride,
                                   const dpk_sum *sum, double *z) {
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        block b;
        for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
            const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
            DPK_FN(dpk_load_block)(data, w + u.j * w_stride, i, n, &b);
            memcpy(z + i, b.z, (size_t)n * sizeof(double));
        }
    }
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_losses)(const dpk_data *data, const double *w, intptr_t w_stride,
                                  const dpk_loss *loss, const dpk_sum *sum, double *out) {
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        double total = 0.0;
        block b;
        for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
            const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
            DPK_FN(dpk_load_block)(data, w + u.j * w_stride, i, n, &b);
            loss->block(n, b.y, b.z, b.s, NULL, NULL, loss->params);
            for (intptr_t r = 0; r < n; r++)
                total += b.s[r];
        }
        sum->partial[t * dpk_apart(1)] = total;
    }
    sum_partials(sum, data->m, 1, out);
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_gradient)(const dpk_data *data, const double *w, intptr_t w_stride,
                                    const dpk_loss *loss, const dpk_sum *sum, double *out) {
    const intptr_t d = data->d;
    const int streamed = dpk_streamed(data, data->offsets[data->m] / sum->n_threads);
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        const double weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0;
        DPK_FN(dpk_sum_gradients)(data, w + u.j * w_stride, loss, M, inner_clip(sum, u.j, d),
                                  weight, u.begin, u.end, streamed,
                                  sum->partial + t * dpk_apart(d));
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}

dpk_status DPK_FN(dpk_glm_difference)(const dpk_data *data, const double *w_new,
                                      intptr_t new_stride, const double *w_old, intptr_t old_stride,
                                      const dpk_loss *loss, const dpk_earlier *earlier,
                                      const dpk_sum *sum, double *out) {
    const intptr_t d = data->d;
    const int streamed = dpk_streamed(data, data->offsets[data->m] / sum->n_threads);
    _Pragma(PARALLEL) for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        const double weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0;
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0;
        dpk_earlier own = *earlier;
        own.w = w_old + u.j * old_stride;
        DPK_FN(dpk_sum_differences)(data, w_new + u.j * new_stride, loss, &own, M,
                                    inner_clip(sum, u.j, d), weight, u.begin, u.end, streamed,
                                    sum->partial + t * dpk_apart(d));
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
