/* Kernels over records, of every form of data. */
#pragma once

#include <math.h>
#include "driver_inputs.h"
#include "driver_products.h"

/* Steps on all records, or, of a minibatch, each on two records of its own. */
static int local(const dpk_kernels *kernels, dpk_data data, const double *grid, int number) {
    const int64_t rows[18] = {0,   0,   0, 0,   0,   0,    699,  1,    5,
                              698, 699, 2, 700, 701, 1199, 1100, 1198, 1199};
    const int64_t offsets[M + 1] = {0, 6, 12, 18};
    const int batch = data.rows ? 2 : 0;
    if (batch)
        data.rows = rows, data.offsets = offsets;
    const uint32_t key[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const double eta[3] = {0.5, 0.25, 0.125}, sigma[M] = {1.0, 0.5, 0.0}, prox_params[1] = {0.5};
    double params[4] = {1.0, 0.0, 0.0, 0.0};
    const dpk_loss loss = loss_number(kernels, number, params);
    const dpk_descent run = {3,
                             eta,
                             batch,
                             data.p,
                             0.1,
                             0.2,
                             kernels->smooths[0].factor,
                             0.5,
                             kernels->proxes[0].apply,
                             0.1,
                             prox_params,
                             grid ? key : NULL,
                             1,
                             sigma};
    double *acc = buffer((size_t)dpk_thread_stride(2 * dpk_padded(data.d)) * 8),
           *out = buffer((size_t)(M * data.d) * 8);
    double *noise = buffer((size_t)dpk_descent_noise(&run, data.d) * 8);
    const dpk_sum sum = {grid ? 1.0 : INFINITY, grid, NULL, N, SILO_TASKS, acc, 1};
    const int bad =
        (int)kernels->local_descent(&data, W, 0, &loss, &run, &sum, ORDER, M, noise, out);
    free(acc), free(out), free(noise);
    return bad;
}

static int line(const dpk_kernels *kernels, const dpk_data *data, const dpk_loss *loss,
                const int64_t *tasks, int bounded) {
    const double step[3] = {0.5, 1.0, -2.0};
    const double bound[M * 3] = {1.0, 0.3, 7.0, 1.0, 0.3, 7.0, 1.0, 0.3, 7.0};
    const double grid[M * 3] = {0x1p-20, 0x1p-30, 0x1p-20, 0x1p-20, 0x1p-30,
                                0x1p-20, 0x1p-20, 0x1p-30, 0x1p-20};
    double *partial = buffer((size_t)(tasks[M] * dpk_thread_stride(3)) * 8),
           *out = buffer(M * 3 * 8);
    const dpk_sum sum = {INFINITY, NULL, NULL, TASK_ROWS, tasks, partial, 1};
    const dpk_search search = {3, step, bounded ? bound : NULL, bounded ? grid : NULL};
    const int bad = (int)kernels->line_search(data, W, data->d, W, 0, loss, &search, &sum, out);
    free(partial), free(out);
    return bad;
}

/* Both kernels of ADMM; of a minibatch, whose records are distinct, those with states of their own.
 */
static int admm(const dpk_kernels *kernels, dpk_data data, const dpk_loss *loss, int64_t n,
                int clipped) {
    const uint32_t key[16] = {1, 2, 3, 4, 5, 6, 7, 8};
    const int64_t rows[4] = {0, 5, 699, 1199};
    const int64_t offsets[2] = {0, data.rows ? 4 : n}, tasks[2] = {0, data.rows ? 1 : 3};
    const intptr_t d = data.d, wide = tasks[1] * dpk_thread_stride(d);
    const double grid = clipped ? 0x1p-20 : 0.0;
    if (data.rows)
        data.rows = rows;
    data.m = 1;
    data.offsets = offsets;
    double *common = buffer((size_t)(N * d) * 8), *scale = buffer(N * 8), *t = buffer(N * 8),
           *partial = lines(wide), *plain = lines(wide), *out = buffer((size_t)(2 * d) * 8),
           *z = buffer((size_t)d * 8), *work = buffer((size_t)(4 * d) * 8),
           *padded = lines(dpk_padded(d)), *to = lines(dpk_padded(d)),
           *space = lines(dpk_thread_stride(dpk_sweep_rows(d) * d));
    const dpk_sum sum = {1.0, clipped ? &grid : NULL, NULL, TASK_ROWS, tasks, partial, 1};
    const dpk_sum in_float = {INFINITY, NULL, NULL, TASK_ROWS, tasks, plain, 1};
    const double bound = clipped ? 1.0 : INFINITY;
    dpk_sweep sweep = {2.0, 0.25, bound, bound, grid, padded, to, 0, common, scale, NULL, 7, 1.5};
    const double prox_params[1] = {0.5};
    const int64_t half = offsets[1] / 2, bounds[3] = {0, half, offsets[1]};
    dpk_admm run = {2,    bounds, N,
                    1.5,  data.p, {{NULL, 0.0, NULL}, {kernels->proxes[0].apply, 0.1, prox_params}},
                    NULL, 7,      1.5,
                    work};
    for (intptr_t k = 0; k < N * d; k++)
        common[k] = 0.01;
    for (intptr_t k = 0; k < N; k++)
        scale[k] = 0.01;
    for (intptr_t k = 0; k < dpk_padded(d); k++)
        padded[k] = 0.02;
    for (intptr_t k = 0; k < d; k++)
        z[k] = 0.03;
    int bad = 0;
    if (!data.rows)
        bad |= kernels->loss_prox(&data, loss, &sweep, &in_float, common, t);
    /* One common, states per user, public ones. */
    for (int kind = data.rows ? 1 : 0; kind < 3; kind++) {
        sweep.shared = kind == 0;
        sweep.scale = kind == 2 ? NULL : scale;
        const dpk_sum *const used = kind == 2 ? &in_float : &sum;
        run.bounds = data.rows ? bounds : NULL;
        for (int noisy = 0; noisy <= clipped; noisy++) {
            run.key = noisy ? key : NULL;
            bad |= kernels->admm_rounds(&data, loss, &run, &sweep, used, &in_float, space, z, out);
        }
    }
    free(common), free(scale), free(t), free(partial), free(plain), free(out), free(padded);
    free(space), free(to), free(z), free(work);
    return bad;
}

static int hessian(const dpk_kernels *kernels, const dpk_data *data, const int64_t *tasks,
                   const double *grid, int number) {
    double params[4] = {1.0, 0.0, 0.0, 0.0};
    dpk_loss loss = loss_number(kernels, number, params);
    loss.checked = number % 2;
    double *partial = lines(tasks[M] * dpk_thread_stride(dpk_hessian_size(data->d))),
           *scratch = lines(dpk_thread_stride(dpk_hessian_scratch(data->d))),
           *out = buffer((size_t)(M * data->d * data->d) * 8);
    const dpk_sum sum = {grid ? 1.0 : INFINITY, grid, WEIGHT, TASK_ROWS, tasks, partial, 1};
    const int bad = (int)kernels->glm_hessian(data, W, data->d, &loss, grid ? 0x1p-20 : 0.0, &sum,
                                              scratch, out);
    free(partial), free(scratch), free(out);
    return bad;
}

/* Without margins and with them, of all stored rows; those of the later point beside and in place.
 */
static int difference(const dpk_kernels *kernels, const dpk_data *data, const dpk_loss *loss,
                      const dpk_sum *sum, double *out) {
    double *const old = buffer(N * 8), *const new = buffer(N * 8);
    dpk_earlier earlier = {0.5, 0.25, W + 1, data->d, NULL, data->rows ? NULL : old};
    for (int i = 0; i < N; i++)
        old[i] = 0.5;
    int bad = kernels->glm_gradient(data, W, 0, loss, &earlier, sum, out);
    earlier.z = old;
    earlier.z_new = data->rows ? NULL : new;
    bad |= kernels->glm_gradient(data, W, data->d, loss, &earlier, sum, out);
    earlier.clip = earlier.curvature = INFINITY;
    earlier.z_new = data->rows ? NULL : old;
    bad |= kernels->glm_gradient(data, W, 0, loss, &earlier, sum, out);
    free(old), free(new);
    return bad;
}

static int hessians(const dpk_kernels *kernels, const dpk_data *data, const dpk_loss *loss,
                    const dpk_models *models, const int64_t *tasks) {
    const intptr_t d = data->d, size = dpk_thread_stride(8 * dpk_hessians_size(d));
    double row_grid[9], *partial = lines(tasks[M] * size),
                        *scratch = lines(dpk_hessians_scratch(d)),
                        *out = buffer((size_t)(models->count * M * d * d) * 8);
    const dpk_sum sum = {0.0, NULL, WEIGHT, TASK_ROWS, tasks, partial, 1};
    for (int i = 0; i < 9; i++)
        row_grid[i] = 0x1p-20;
    const int bad = (int)kernels->glm_hessians(data, models, loss, row_grid, &sum, scratch, out);
    free(partial), free(scratch), free(out);
    return bad;
}

/* Models of all silos and of each, more than fill a vector and fewer. */
static int gradients(const dpk_kernels *kernels, const dpk_data *data, const dpk_loss *loss,
                     const int64_t *tasks) {
    const double clip[9] = {1.0, 0.5, 2.0, 1.0, 1.0, 0.25, 1.0, 1.0, 3.0};
    double grid[9 * M];
    int bad = 0;
    for (int i = 0; i < 9 * M; i++)
        grid[i] = 0x1p-20;
    for (intptr_t count = 1; count <= 9; count += 4) {
        const intptr_t size = dpk_gradients_scratch(data, count);
        double *partial = buffer((size_t)(count * tasks[M] * dpk_thread_stride(data->d)) * 8),
               *scratch = lines(size), *out = buffer((size_t)(count * M * data->d) * 8);
        const dpk_sum sum = {0.0, NULL, WEIGHT, TASK_ROWS, tasks, partial, 1};
        const dpk_models models = {count, W,   count > 2 ? 1 : data->d, count > 2 ? 0 : 1,
                                   clip,  grid};
        bad |= (int)kernels->glm_gradients(data, &models, loss, &sum, scratch, out);
        if (data->indptr && !data->rows)
            bad |= hessians(kernels, data, loss, &models, tasks);
        free(partial), free(scratch), free(out);
    }
    return bad | products(kernels, data, tasks);
}

/* Persons of one record up to many, few of whom are short enough. */
static int persons(const dpk_kernels *kernels, const dpk_data *data, const dpk_loss *loss,
                   const double *grid) {
    int64_t offsets[N + 1] = {0}, silos[M + 1] = {0}, tasks[M + 1] = {0}, n = 0;
    for (int j = 0; j < M; j++) {
        for (int64_t size = 1; offsets[n] < OFFSETS[j + 1]; size = 2 * size % 307, n++) {
            const int64_t end = offsets[n] + size;
            offsets[n + 1] = end < OFFSETS[j + 1] ? end : OFFSETS[j + 1];
        }
        silos[j + 1] = n;
        tasks[j + 1] = tasks[j] + (n - silos[j] + 2) / 3;
    }
    double *partial = buffer((size_t)(tasks[M] * dpk_thread_stride(data->d)) * 8),
           *scratch = lines(dpk_persons_scratch(data)), *out = buffer((size_t)(M * data->d) * 8);
    const dpk_sum sum = {1.0, grid, WEIGHT, 3, tasks, partial, 1};
    int bad = 0;
    for (int64_t few = 0; few <= 2; few += 2) {
        const dpk_persons people = {silos, offsets, few ? 2.0 : 0.5, few};
        bad |=
            (int)kernels->glm_person_gradient(data, W, data->d, loss, &people, &sum, scratch, out);
    }
    free(partial), free(scratch), free(out);
    return bad;
}

/* Four ordered classes. */
static int ordinal(const dpk_kernels *kernels, const dpk_data *data) {
    const intptr_t d = data->p + 3;
    double params[4] = {1.0, 0.0, 0.0, 0.0};
    const dpk_loss loss = loss_number(kernels, 0, params);
    const int64_t *const tasks = data->rows ? ROW_TASKS : TASKS;
    double *w = buffer((size_t)d * 8), *out = buffer((size_t)(M * d) * 8),
           *partial = buffer((size_t)(tasks[M] * dpk_thread_stride(d)) * 8);
    int bad = 0;
    memset(w, 0, (size_t)d * 8);
    for (int grid = 0; grid < 2; grid++) {
        const dpk_sum sum = {1.0, grid ? GRID : NULL, NULL, TASK_ROWS, tasks, partial, 1};
        bad |= (int)kernels->ordinal_gradient(data, w, 0, 3, 2.0, &loss, &sum, out);
    }
    free(w), free(out), free(partial);
    return bad;
}

/* One layer and three, gradients and differences, models of one kind and of each silo. */
static int mlp(const dpk_kernels *kernels, dpk_data data) {
    static const int64_t blocks[M + 1] = {0, 1, 12, 20};
    double params[4] = {1.0, 0.0, 0.0, 0.0};
    dpk_loss loss = loss_number(kernels, 0, params);
    loss.checked = 1;
    const int64_t *const tasks = data.rows ? ROW_TASKS : blocks;
    const intptr_t sizes[2][4] = {{data.p, 9, 8, 3}, {data.p, 1, 0, 0}};
    int bad = 0;
    for (int form = 0; form < 8; form++) {
        const intptr_t *const size = sizes[form & 1], models = form & 2 ? M : 1;
        const double *const grid = form % 3 ? GRID : NULL;
        dpk_layer layers[3];
        dpk_mlp net = {.depth = form & 1 ? 1 : 3,
                       .activation = form & 2 ? DPK_TANH : DPK_RELU,
                       .loss = form & 1 ? &loss : NULL,
                       .points = form & 4 ? 2 : 1,
                       .gradient_clip = grid ? 0.5 : INFINITY};
        dpk_mlp_layout(size, layers, &net);
        const intptr_t capacity = dpk_mlp_capacity(dpk_mlp_batch(&net, tasks[M], 1));
        const intptr_t n_scratch = dpk_thread_stride(dpk_mlp_scratch(&net));
        double *weights = lines(net.points * models * net.n_weights), *scratch = lines(n_scratch),
               *factors = lines(capacity * net.n_factors),
               *out = buffer((size_t)(M * net.n_params) * 8);
        const dpk_sum sum = {grid ? 1.0 : INFINITY, grid, WEIGHT, DPK_MLP_BLOCK, tasks, NULL, 1};
        for (intptr_t k = 0; k < n_scratch; k++)
            scratch[k] = 0.0;
        bad |= (int)kernels->mlp_gradient(&data, &net, POINT, models, grid ? 0x1p-20 : 0.0, &sum,
                                          weights, scratch, factors, out);
        free(weights), free(scratch), free(factors), free(out);
    }
    return bad;
}

static int glm(const dpk_kernels *kernels, dpk_data data, int64_t n, const int64_t *tasks,
               const double *grid) {
    double params[4] = {1.0, 0.0, 0.0, 0.0};
    const size_t wide = (size_t)(tasks[M] * dpk_thread_stride(data.d)) * sizeof(double);
    double *partial = buffer(wide), *norm = buffer(N * 8), *z = buffer((size_t)n * 8),
           *sums = buffer(M * 8), *out = buffer((size_t)(M * data.d) * 8);
    const dpk_sum sum = {grid ? 1.0 : INFINITY, grid, WEIGHT, TASK_ROWS, tasks, partial, 1};
    const dpk_sum in_float = {INFINITY, NULL, NULL, TASK_ROWS, tasks, partial, 1};
    int bad = kernels->glm_margins(&data, W, data.d, &sum, z);
    for (int l = 0; kernels->losses[l].name; l++) {
        dpk_loss loss = loss_number(kernels, l, params);
        if (l % 2) /* as a user's function */
            loss = (dpk_loss){.block = loss.block, .params = params, .checked = 1};
        bad |= kernels->glm_losses(&data, W, 0, &loss, &in_float, sums);
        bad |= kernels->glm_gradient(&data, W, data.d, &loss, NULL, &sum, out);
        bad |= grid && l == 0 ? gradients(kernels, &data, &loss, tasks) : 0;
        bad |= admm(kernels, data, &loss, n, grid != NULL);
        bad |= difference(kernels, &data, &loss, &sum, out);
        bad |= local(kernels, data, grid, l);
        if (!data.rows && grid)
            bad |= persons(kernels, &data, &loss, grid);
        if (!data.rows)
            bad |= line(kernels, &data, &loss, tasks, grid != NULL);
    }
    if (!data.rows) {
        bad |= hessian(kernels, &data, tasks, grid, 1);
        bad |= kernels->glm_norms(&data, &in_float, norm);
        data.norm = norm;
        bad |= hessian(kernels, &data, tasks, grid, 0);
        const dpk_loss loss = loss_number(kernels, 0, params);
        bad |= kernels->glm_gradient(&data, W, data.d, &loss, NULL, &sum, out);
    }
    free(partial), free(norm), free(z), free(sums), free(out);
    return bad;
}
