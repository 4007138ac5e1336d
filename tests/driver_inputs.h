/* Inputs of the driver, and buffers of exactly the stated size. */
#pragma once

#include <stdlib.h>
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
