/* One fused pass over X per call, in tasks of consecutive records of one silo. */
#include "glm/glm.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "glm/sum_gradients.h"
#include "models/evaluate.h"
#include "rows/block.h"

static void norms_task(const dpk_data *data, const dpk_sum *sum, int64_t t, double *norm) {
    const task u = task_number(data, sum, t);
    dpk_row_norms(data, u.begin, u.end, norm + u.begin);
}

dpk_status dpk_glm_norms(const dpk_data *data, const dpk_sum *sum, double *norm) {
    EACH_TASK(sum->first_task[data->m], norms_task(data, sum, t, norm));
    return DPK_OK;
}

static void margins_task(const dpk_data *data, const double *w, intptr_t w_stride,
                         const dpk_sum *sum, int64_t t, double *z) {
    const task u = task_number(data, sum, t);
    block b;
    for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
        const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
        dpk_load_block(data, w + u.j * w_stride, i, n, (later_rows){0}, &b);
        memcpy(z + i, b.z, (size_t)n * sizeof(double));
    }
}

dpk_status dpk_glm_margins(const dpk_data *data, const double *w, intptr_t w_stride,
                           const dpk_sum *sum, double *z) {
    EACH_TASK(sum->first_task[data->m], margins_task(data, w, w_stride, sum, t, z));
    return DPK_OK;
}

static void losses_task(const dpk_data *data, const double *w, intptr_t w_stride,
                        const dpk_loss *loss, const dpk_sum *sum, int64_t t) {
    const task u = task_number(data, sum, t);
    double total = 0.0;
    block b;
    for (int64_t i = u.begin; i < u.end; i += DPK_BLOCK) {
        const intptr_t n = rows_left(i, u.end, DPK_BLOCK);
        dpk_load_block(data, w + u.j * w_stride, i, n, (later_rows){0}, &b);
        evaluate(loss, n, b.y, b.z, b.s, NULL, NULL);
        weigh_records(data, n, b.row, b.s);
        for (intptr_t r = 0; r < n; r++)
            total += b.s[r];
    }
    sum->partial[t * dpk_thread_stride(1)] = total;
}

dpk_status dpk_glm_losses(const dpk_data *data, const double *w, intptr_t w_stride,
                          const dpk_loss *loss, const dpk_sum *sum, double *out) {
    EACH_TASK(sum->first_task[data->m], losses_task(data, w, w_stride, loss, sum, t));
    sum_partials(sum, data->m, 1, out);
    return DPK_OK;
}

static void gradient_task(const dpk_data *data, const double *w, intptr_t w_stride,
                          const dpk_loss *loss, const dpk_earlier *earlier, const dpk_sum *sum,
                          int streamed, int64_t t) {
    const intptr_t d = data->d;
    const task u = task_number(data, sum, t);
    const double grid = sum->grid ? sum->grid[u.j] : 0.0;
    dpk_gradients of = {
        .data = data,
        .w = w + u.j * w_stride,
        .loss = loss,
        .M = magic(grid),
        .clip = inner_bound(sum->clip, grid, d),
        .weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0,
        .streamed = streamed,
        .single = single_rows(data, sum->clip, grid),
        .steps = 1.0 / grid,
    };
    if (of.single)
        of.clip = inner_bound_single(sum->clip, grid, d);
    dpk_earlier own;
    if (earlier) {
        own = *earlier;
        own.w += u.j * own.w_stride;
        of.earlier = &own;
    }
    dpk_sum_gradients(&of, u.begin, u.end, sum->partial + t * dpk_thread_stride(d));
}

dpk_status dpk_glm_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                            const dpk_loss *loss, const dpk_earlier *earlier, const dpk_sum *sum,
                            double *out) {
    const int streamed = dpk_streamed(data, data->offsets[data->m] / sum->n_threads);
    EACH_TASK(sum->first_task[data->m],
              gradient_task(data, w, w_stride, loss, earlier, sum, streamed, t));
    sum_partials(sum, data->m, data->d, out);
    return DPK_OK;
}
