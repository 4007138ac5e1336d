/* Every kernel of every instruction set on buffers of exactly the stated size, from two threads at
 * once: what the sanitizers watch. Build it with them as CONTRIBUTING says; it prints one line. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/dispatch.h"

/* Inputs are shared by the threads and never written. */
enum { M = 3, N = 1200, P_MAX = 130, N_WIDTHS = 8 };
/* The last is wide enough for rows to be streamed one by one. */
static const intptr_t WIDTHS[N_WIDTHS] = {1, 7, 13, 19, 25, 31, 37, P_MAX};
static double X64[N * P_MAX], Y[N], SCALE[P_MAX], SHIFT[P_MAX], W[M * (P_MAX + 1) + 1];
static float X32[N * P_MAX];
/* For every width: each third entry of a row, none in each fourth row. */
static struct {
    double *values;
    float *values32;
    int64_t *indptr;
    int32_t *indptr32;
    int32_t *indices;
} SPARSE[N_WIDTHS];
static double POINT[2 * M * 2000];
static const int64_t OFFSETS[M + 1] = {0, 1, 700, N};
enum { TASK_ROWS = 512 };
static const int64_t TASKS[M + 1] = {0, 1, 3, 4}, SILO_TASKS[M + 1] = {0, 1, 2, 3};
static const int64_t ORDER[M] = {1, 2, 0};
static const int64_t ROWS[5] = {0, 5, 5, 699, 1199}, ROW_OFFSETS[M + 1] = {0, 1, 4, 5};
static const int64_t ROW_TASKS[M + 1] = {0, 1, 2, 3};
static const double GRID[M] = {0x1p-30, 0x1p-20, 0x1p-20}, WEIGHT[M] = {1.0, 0.5, 0.25};

static void *buffer(size_t size) {
    void *p = malloc(size ? size : 1);
    if (!p)
        abort();
    return p;
}

/* From the start of a cache line on; of whole ones. */
static double *lines(intptr_t n) {
    void *p = aligned_alloc(64, (size_t)n * sizeof(double));
    if (!p)
        abort();
    return p;
}

static void fill(void) {
    unsigned state = 1;
    for (int i = 0; i < N * P_MAX; i++) {
        state = state * 1664525u + 1013904223u;
        X64[i] = ((double)(state >> 8) / 0x1p23 - 1.0) * (i % 1001 == 0 ? 1e300 : 1.0);
        X32[i] = (float)(i % 1001 == 0 ? 1e30 : X64[i]);
    }
    for (int i = 0; i < N; i++)
        Y[i] = i % 2 ? 1.0 : -1.0;
    for (int k = 0; k < P_MAX; k++)
        SCALE[k] = 0.5, SHIFT[k] = 0.1;
    for (int width = 0; width < N_WIDTHS; width++) {
        const intptr_t p = WIDTHS[width];
        int64_t *const indptr = buffer((N + 1) * sizeof *indptr), n = 0;
        int32_t *const indptr32 = buffer((N + 1) * sizeof *indptr32);
        for (int i = 0; i <= N; n += i % 4 ? (p - i % 3 + 2) / 3 : 0, i++)
            indptr[i] = n, indptr32[i] = (int32_t)n;
        n = indptr[N];
        double *const values = buffer((size_t)n * sizeof *values);
        float *const values32 = buffer((size_t)n * sizeof *values32);
        int32_t *const indices = buffer((size_t)n * sizeof *indices);
        for (int i = 0; i < N; i++)
            for (int64_t t = indptr[i]; t < indptr[i + 1]; t++) {
                indices[t] = (int32_t)(i % 3 + 3 * (t - indptr[i]));
                values[t] = X64[i * p + indices[t]];
                values32[t] = X32[i * p + indices[t]];
            }
        SPARSE[width].values = values, SPARSE[width].values32 = values32;
        SPARSE[width].indptr = indptr, SPARSE[width].indptr32 = indptr32;
        SPARSE[width].indices = indices;
    }
    for (int k = 0; k < M * (P_MAX + 1); k++)
        W[k] = 0.01 * (k % 17 - 8);
    for (int k = 0; k < 2 * M * 2000; k++)
        POINT[k] = 0.01 * (k % 19 - 9);
}

static dpk_loss loss_number(const dpk_kernels *kernels, int number, double *params) {
    dpk_loss loss = kernels->losses[number];
    loss.params = params;
    return loss;
}

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
    const uint32_t key[8] = {1, 2, 3, 4, 5, 6, 7, 8};
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
           *padded = lines(dpk_padded(d)), *space = lines(dpk_thread_stride(dpk_sweep_rows(d) * d));
    const dpk_sum sum = {1.0, clipped ? &grid : NULL, NULL, TASK_ROWS, tasks, partial, 1};
    const dpk_sum in_float = {INFINITY, NULL, NULL, TASK_ROWS, tasks, plain, 1};
    const double bound = clipped ? 1.0 : INFINITY;
    dpk_sweep sweep = {2.0, 0.25, bound, bound, grid, padded, padded, common, scale, NULL, 7, 1.5};
    for (intptr_t k = 0; k < N * d; k++)
        common[k] = 0.01;
    for (intptr_t k = 0; k < N; k++)
        scale[k] = 0.01;
    for (intptr_t k = 0; k < dpk_padded(d); k++)
        padded[k] = 0.02;
    int bad = 0;
    if (!data.rows) {
        bad |= kernels->loss_prox(&data, loss, &sweep, &in_float, common, t);
        bad |= kernels->sweep_shared(&data, loss, &sweep, &sum, out);
    }
    bad |= kernels->sweep_per_user(&data, loss, &sweep, &sum, &in_float, out, out + d);
    bad |= kernels->sweep_public(&data, loss, &sweep, &in_float, space, out);
    if (clipped) {
        sweep.key = key;
        bad |= kernels->sweep_public(&data, loss, &sweep, &in_float, space, out);
    }
    free(common), free(scale), free(t), free(partial), free(plain), free(out), free(padded);
    free(space);
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
    dpk_earlier earlier = {0.5, NULL, NULL, data->rows ? NULL : old};
    for (int i = 0; i < N; i++)
        old[i] = 0.5;
    int bad = kernels->glm_difference(data, W, 0, W + 1, data->d, loss, &earlier, sum, out);
    earlier.z = old;
    earlier.z_new = data->rows ? NULL : new;
    bad |= kernels->glm_difference(data, W, data->d, W, 0, loss, &earlier, sum, out);
    earlier.clip = INFINITY;
    earlier.z_new = data->rows ? NULL : old;
    bad |= kernels->glm_difference(data, W, 0, W, 0, loss, &earlier, sum, out);
    free(old), free(new);
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
        bad |= kernels->glm_gradient(&data, W, data.d, &loss, &sum, out);
        bad |= admm(kernels, data, &loss, n, grid != NULL);
        bad |= difference(kernels, &data, &loss, &sum, out);
        bad |= local(kernels, data, grid, l);
        if (!data.rows)
            bad |= line(kernels, &data, &loss, tasks, grid != NULL);
    }
    if (!data.rows) {
        bad |= hessian(kernels, &data, tasks, grid, 1);
        bad |= kernels->glm_norms(&data, &in_float, norm);
        data.norm = norm;
        bad |= hessian(kernels, &data, tasks, grid, 0);
        const dpk_loss loss = loss_number(kernels, 0, params);
        bad |= kernels->glm_gradient(&data, W, data.d, &loss, &sum, out);
    }
    free(partial), free(norm), free(z), free(sums), free(out);
    return bad;
}

/* Stands for LAPACK: writes to the end of every array that LAPACK may write to. */
static void fill_to(double *a, int n) {
    for (int i = 0; i < n; i++)
        a[i] = 1.0;
}

static void potrf(char *uplo, int *n, double *a, int *lda, int *info) {
    (void)uplo;
    *info = a[0] < 0.0;
    fill_to(a, *n * *lda);
}

static void potrs(char *uplo, int *n, int *nrhs, double *a, int *lda, double *b, int *ldb,
                  int *info) {
    (void)uplo, (void)a, (void)n, (void)lda;
    fill_to(b, *nrhs * *ldb);
    *info = 0;
}

static void sytrd(char *uplo, int *n, double *a, int *lda, double *d, double *e, double *tau,
                  double *work, int *lwork, int *info) {
    (void)uplo;
    fill_to(a, *n * *lda), fill_to(d, *n), fill_to(e, *n - 1), fill_to(tau, *n - 1);
    fill_to(work, *lwork);
    *info = 0;
}

/* Fails where the matrix has an even size, so that the other one is called too. */
static void stemr(char *jobz, char *range, int *n, double *d, double *e, double *vl, double *vu,
                  int *il, int *iu, int *m, double *w, double *z, int *ldz, int *nzc, int *isuppz,
                  int *tryrac, double *work, int *lwork, int *iwork, int *liwork, int *info) {
    (void)jobz, (void)range, (void)vl, (void)vu, (void)il, (void)iu, (void)nzc, (void)tryrac;
    fill_to(d, *n), fill_to(e, *n), fill_to(w, *n), fill_to(z, *n * *ldz), fill_to(work, *lwork);
    for (int i = 0; i < *liwork; i++)
        iwork[i] = 1;
    for (int i = 0; i < 2 * *n; i++)
        isuppz[i] = 1;
    *m = *n;
    *info = *n % 2 == 0 || *lwork < 18 * *n || *liwork < 10 * *n;
}

static void stedc(char *compz, int *n, double *d, double *e, double *z, int *ldz, double *work,
                  int *lwork, int *iwork, int *liwork, int *info) {
    (void)compz;
    fill_to(d, *n), fill_to(e, *n - 1), fill_to(z, *n * *ldz), fill_to(work, *lwork);
    for (int i = 0; i < *liwork; i++)
        iwork[i] = 1;
    *info = *lwork < 1 + 4 * *n + *n * *n;
}

static void ormtr(char *side, char *uplo, char *trans, int *m, int *n, double *a, int *lda,
                  double *tau, double *c, int *ldc, double *work, int *lwork, int *info) {
    (void)side, (void)uplo, (void)trans, (void)m, (void)a, (void)lda, (void)tau;
    fill_to(c, *n * *ldc), fill_to(work, *lwork);
    *info = 0;
}

static void gemv(char *trans, int *m, int *n, double *alpha, double *a, int *lda, double *x,
                 int *incx, double *beta, double *y, int *incy) {
    (void)trans, (void)m, (void)alpha, (void)a, (void)lda, (void)x, (void)incx, (void)beta;
    fill_to(y, *n * *incy);
}

static int newton(const dpk_kernels *kernels) {
    const dpk_lapack lapack = {potrf, potrs, sytrd, stemr, stedc, ormtr, gemv};
    int bad = 0;
    for (intptr_t d = 1; d < 12; d++) {
        double *work = buffer((size_t)dpk_newton_work(d) * 8), *out = buffer((size_t)(M * d) * 8);
        int *iwork = buffer((size_t)dpk_newton_iwork(d) * sizeof(int));
        for (int sign = -1; sign <= 1; sign += 2) {
            double *H = buffer((size_t)(M * d * d) * 8);
            for (intptr_t k = 0; k < M * d * d; k++)
                H[k] = sign;
            bad |= kernels->newton_direction(M, d, H, W, 0.5, &lapack, 1, work, iwork, out);
            free(H);
        }
        free(work), free(iwork), free(out);
    }
    return bad;
}

/* Parameters that every prox can read: a number, bounds -1 and 1, or one group of n. */
static int proxes(const dpk_kernels *kernels, intptr_t n, double *v) {
    double *const scratch = buffer((size_t)dpk_thread_stride(n) * 8);
    int bad = 0;
    for (int r = 0; kernels->proxes[r].name; r++) {
        const char *const name = kernels->proxes[r].name;
        const double group[3] = {1.0, (double)n, 0.5}, box[3] = {1.0, -1.0, 1.0}, one[1] = {0.5};
        const double *const params = !strcmp(name, "group_lasso") ? group
                                     : !strcmp(name, "box")       ? box
                                                                  : one;
        for (int separable = 0; separable <= (r < 2); separable++)
            bad |= (int)kernels->prox_rows(2, n, v, kernels->proxes[r].apply, separable, 0.2,
                                           params, separable ? NULL : scratch, 1, v);
    }
    free(scratch);
    return bad;
}

static int shuffle(const dpk_kernels *kernels) {
    const uint32_t key[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    /* A law of two numbers, the first of which ends in the words that begin like it. */
    const uint64_t top[2] = {(uint64_t)1 << 62, (uint64_t)1 << 63}, rest[4] = {1, 2, 0, 0};
    int64_t guide[DPK_GUIDES];
    for (int i = 0; i < DPK_GUIDES; i++)
        guide[i] = i > DPK_GUIDES / 2;
    const dpk_coin_law law = {top, rest, guide};
    int bad = 0;
    for (int width = 0; width < N_WIDTHS; width++)
        for (int threads = 1; threads < 4; threads++) {
            const intptr_t d = WIDTHS[width], n = threads == 1 ? 1 : N / 5;
            double *V = buffer((size_t)(n * d) * 8),
                   *partial = buffer((size_t)(threads * dpk_thread_stride(d)) * 8);
            int64_t *count = buffer((size_t)d * 8);
            for (intptr_t k = 0; k < n * d; k++)
                V[k] = k % 1001 == 5 ? NAN : X64[k];
            bad |= kernels->shuffle_sum(key, 8, 6, n, d, V, 0.5, 9, 20000 * (threads - 1), &law,
                                        &law, threads, partial, count);
            free(V), free(partial), free(count);
        }
    return bad;
}

/* Vectors of every tail, short ones and long ones, some of them without a norm. */
static int clip(const dpk_kernels *kernels) {
    const int64_t offsets[2] = {0, 7}, tasks[2] = {0, 2};
    int bad = 0;
    for (intptr_t p = 3050; p < 3090; p++)
        for (int narrow = 0; narrow < 2; narrow++) {
            const size_t size = (size_t)(7 * p) * (narrow ? sizeof(float) : sizeof(double));
            void *const X = buffer(size);
            memcpy(X, narrow ? (const void *)X32 : X64, size);
            for (intptr_t i = 3 * p; i < 5 * p; i += p)
                narrow ? (void)(((float *)X)[i] = NAN) : (void)(((double *)X)[i] = NAN);
            double *partial = buffer((size_t)(2 * dpk_thread_stride(p)) * 8),
                   *out = buffer((size_t)p * 8);
            const dpk_sum sum = {1.0, GRID, NULL, 6, tasks, partial, 1};
            const dpk_data vectors = {
                .m = 1, .p = p, .d = p, .X = X, .x_is_float32 = narrow, .offsets = offsets};
            bad |= kernels->clip_and_sum(&vectors, &sum, out);
            free(X), free(partial), free(out);
        }
    return bad;
}

/* Vectors whose columns threads share, of every tail of a chunk's vectors of eight. */
static int clip_wide(const dpk_kernels *kernels) {
    const int64_t offsets[3] = {0, 3, 5}, tasks[3] = {0, 1, 2};
    int bad = 0;
    for (intptr_t p = DPK_WIDE + 1; p < DPK_WIDE + 20; p += 3)
        for (int narrow = 0; narrow < 2; narrow++) {
            const size_t size = (size_t)(5 * p) * (narrow ? sizeof(float) : sizeof(double));
            double *partial = buffer((size_t)(2 * dpk_thread_stride(p)) * 8),
                   *out = buffer((size_t)(2 * p) * 8);
            void *const X = buffer(size);
            memset(X, 0x3c, size);
            memset(X, 0xff, sizeof(double)); /* NaN */
            const dpk_sum sum = {1.0, GRID, NULL, 5, tasks, partial, 1};
            const dpk_data vectors = {
                .m = 2, .p = p, .d = p, .X = X, .x_is_float32 = narrow, .offsets = offsets};
            bad |= kernels->clip_and_sum(&vectors, &sum, out);
            free(X), free(partial), free(out);
        }
    return bad;
}

static int all_kernels(const dpk_kernels *kernels) {
    int bad = 0;
    for (int width = 0; width < N_WIDTHS; width++)
        for (int form = 0; form < 32; form++) {
            const intptr_t p = WIDTHS[width];
            const int narrow = form & 1, mapped = form & 2, one = form & 4, batch = form & 8;
            const int sparse = form & 16;
            dpk_data data = {.m = M,
                             .p = p,
                             .d = p + (one != 0),
                             .X = narrow ? (const void *)X32 : X64,
                             .x_is_float32 = narrow,
                             .y = Y,
                             .rows = batch ? ROWS : NULL,
                             .offsets = batch ? ROW_OFFSETS : OFFSETS,
                             .scale = mapped ? SCALE : NULL,
                             .shift = mapped ? SHIFT : NULL,
                             .row_bound = one ? 2.0 : INFINITY,
                             .intercept = one != 0};
            if (sparse) {
                data.X = narrow ? (const void *)SPARSE[width].values32 : SPARSE[width].values;
                data.indptr_is_int32 = one;
                data.indptr = one ? (const void *)SPARSE[width].indptr32 : SPARSE[width].indptr;
                data.indices = SPARSE[width].indices;
                data.shift = NULL;
            }
            bad |= glm(kernels, data, batch ? 5 : N, batch ? ROW_TASKS : TASKS, GRID);
            bad |= glm(kernels, data, batch ? 5 : N, batch ? ROW_TASKS : TASKS, NULL);
            if (!one)
                bad |= mlp(kernels, data);
            if (sparse)
                continue;
            double *partial = buffer((size_t)(TASKS[M] * dpk_thread_stride(p)) * 8),
                   *out = buffer((size_t)(M * p) * 8);
            const dpk_sum sum = {1.0, GRID, NULL, TASK_ROWS, TASKS, partial, 1};
            const dpk_data vectors = {
                .m = M, .p = p, .d = p, .X = data.X, .x_is_float32 = narrow, .offsets = OFFSETS};
            bad |= kernels->clip_and_sum(&vectors, &sum, out);
            free(partial), free(out);
        }
    for (intptr_t n = 1; n < 5000; n = 3 * n + 1) {
        const uint32_t key[8] = {1, 2, 3, 4, 5, 6, 7, 8};
        const double sigma[2] = {0x1p32, 1.5}, grid[2] = {1.0, 0.25};
        double *out = buffer((size_t)n * 16);
        for (int path = DPK_PATH_FAST; path <= (n < 100 ? DPK_PATH_EXACT : DPK_PATH_FAST); path++)
            bad |= kernels->gaussian(key, 1, 2, n, sigma, grid, (dpk_path)path, 1, out);
        bad |= proxes(kernels, n, out);
        free(out);
    }
    for (intptr_t d = 1; d < 12; d++) {
        double *diagonal = buffer((size_t)(2 * d) * 8), *out = buffer((size_t)(2 * d * d) * 8);
        double *above = buffer((size_t)(d * (d - 1)) * 8);
        for (intptr_t k = 0; k < 2 * d; k++)
            diagonal[k] = 1.0;
        for (intptr_t k = 0; k < d * (d - 1); k++)
            above[k] = 2.0;
        bad |= kernels->goe(2, d, diagonal, above, 1, out);
        free(diagonal), free(above), free(out);
    }
    bad |= clip(kernels);
    bad |= clip_wide(kernels);
    bad |= newton(kernels);
    bad |= shuffle(kernels);
    return bad;
}

static void *run(void *unused) {
    static int good, failed;
    for (int i = 0; dpk_isa(i); i++)
        if (dpk_isa_runs(i) && all_kernels(dpk_isa(i)))
            return &failed;
    (void)unused;
    return &good;
}

int main(void) {
    pthread_t other;
    void *verdict;
    fill();
    if (pthread_create(&other, NULL, run, NULL))
        return 2;
    void *const mine = run(NULL);
    if (pthread_join(other, &verdict) || verdict != mine || dpk_check_rounding(1) != DPK_OK)
        return 1;
    puts("every kernel ran");
    return 0;
}
