/* Kernels over vectors: proxes, shuffled sums, clipped sums; and samples. */
#pragma once

#include <math.h>
#include <string.h>
#include "driver_inputs.h"

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

/* Of no number, of all, of few in a bitmap and in a hash table, and of a silo that is silent. */
static int samples(const dpk_kernels *kernels) {
    const uint32_t key[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    int bad = 0;
    for (int64_t n = 1; n < 1 << 20; n = 3 * n + 1)
        for (int64_t k = 1; k <= n; k = 5 * k + n / 400) {
            const int64_t offsets[5] = {0, n, n, 2 * n, 3 * n}, counts[4] = {k, 0, n - n / 2, n};
            const int64_t few[4] = {k, 0, 0, k};
            const uint64_t last[4] = {UINT64_MAX, UINT64_MAX, 0, UINT64_MAX / 3};
            int64_t most = dpk_subset_words(n, k), bounds[5];
            uint64_t *work = buffer((size_t)most * 8);
            int64_t *out = buffer((size_t)(2 * k) * 8);
            bad |= kernels->subsets(key, 4, 4, offsets, few, work, out);
            free(work), free(out);
            if (most < (n + 63) / 64)
                most = (n + 63) / 64;
            work = buffer((size_t)most * 8), out = buffer((size_t)(k + n - n / 2 + n) * 8);
            bad |= kernels->subsets(key, 4, 4, offsets, counts, work, out);
            free(work), free(out);
            out = buffer((size_t)(3 * n) * 8);
            bad |= kernels->poisson_samples(key, 4, 4, offsets, last, out, bounds);
            free(out);
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
