/* Every kernel of every instruction set on buffers of exactly the stated size, from two threads at
 * once: what the sanitizers watch. Build it with them as CONTRIBUTING says; it prints one line. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "driver_inputs.h"
#include "driver_newton.h"
#include "driver_records.h"
#include "driver_vectors.h"

/* Looking for races is slow: it makes do with the widths 19 and 130, and each pair of flags. */
#ifdef __SANITIZE_THREAD__
enum { WIDTH_STEP = 4, FORM_STEP = 3 };
#else
enum { WIDTH_STEP = 1, FORM_STEP = 1 };
#endif

static int all_kernels(const dpk_kernels *kernels) {
    int bad = 0;
    for (int width = WIDTH_STEP - 1; width < N_WIDTHS; width += WIDTH_STEP)
        for (int form = 0; form < 32; form += FORM_STEP) {
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
            if (p == 19) { /* weights and offsets, which are any numbers here */
                dpk_data weighted = data;
                weighted.record_weight = weighted.margin_offset = Y;
                bad |= glm(kernels, weighted, batch ? 5 : N, batch ? ROW_TASKS : TASKS, GRID);
            }
            if (!one)
                bad |= mlp(kernels, data) | ordinal(kernels, &data);
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
    bad |= samples(kernels);
    return bad;
}

static void *run(void *unused) {
    static int good, failed;
    for (int i = 0; dpk_isa(i); i++)
        if (all_kernels(dpk_isa(i)))
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
