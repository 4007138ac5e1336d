/* Exact sums of clipped vectors on a grid q = 2^e: sum_i rint(s_i x_i / q), times q at the end.
 *
 * With M = 1.5 * 2^52 q and |v| <= 2^51 q, the bit pattern of v + M, read as an integer, is that of
 * M plus rint(v / q). Adding patterns as integers and subtracting n bits(M) at the end is exact
 * modulo 2^64, so the sum depends on no order, thread or vector width, and its sensitivity is the
 * one of the rounded vectors (Casacuberta, Shoemate, Vadhan, Wagaman 2022 show what goes wrong
 * in floating-point sums). Without a grid the same memory holds plain floating-point sums. */
#ifndef DPK_GRIDSUM_H
#define DPK_GRIDSUM_H

#include <math.h>
#include <string.h>
#include "dpk.h"

static inline int64_t bits_of(double v) {
    int64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static inline double magic(double grid) { return 0x1.8p52 * grid; }

/* Upper bound of |x| from the computed sum of squares; not emptied by denormals: a row
 * (3, 4)e-170 has computed square 0. */
static inline double norm_up(double square, intptr_t d) {
    return sqrt(square + (double)d * 0x1p-240);
}

/* Clip bound that leaves room for rounding to the grid (q sqrt(d) / 2) and for the roundings of
 * norm, quotient and product (at most d + 16 of them). Infinity stays infinity. */
static inline double inner_clip(const dpk_sum *sum, intptr_t j, intptr_t d) {
    const double q = sum->grid ? sum->grid[j] : 0.0;
    return (sum->clip - 0.5 * q * sqrt((double)d)) * (1.0 - (double)(d + 16) * 0x1p-52);
}

/* |result| <= lim whatever s is: NaN becomes 0, infinities become +-lim. */
static inline double clamp_scalar(double s, double lim) {
    s = s > lim ? lim : s;
    s = s < -lim ? -lim : s;
    return s == s ? s : 0.0;
}

/* acc += s x on the grid of magic number M, as integers. x: (n,); acc: (n,). */
static inline void add_on_grid(intptr_t n, double s, const double *restrict x, double M,
                               int64_t *restrict acc) {
    for (intptr_t k = 0; k < n; k++)
        acc[k] = (int64_t)((uint64_t)acc[k] + (uint64_t)bits_of(DPK_FMA(s, x[k], M)));
}

static inline void add_float(intptr_t n, double s, const double *restrict x, double *restrict acc) {
    for (intptr_t k = 0; k < n; k++)
        acc[k] = DPK_FMA(s, x[k], acc[k]);
}

/* out[j] = sum over the tasks of silo j, each of which holds `sum->partial` rows (n_tasks, d).
 * offsets: (m + 1,) records per silo; out: (m, d). */
static inline void sum_partials(const dpk_sum *sum, const int64_t *offsets, intptr_t m, intptr_t d,
                                double *out) {
#pragma omp parallel for schedule(static) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (intptr_t j = 0; j < m; j++) {
        double *sj = out + j * d;
        memset(sj, 0, (size_t)d * sizeof(double));
        if (sum->grid) {
            int64_t *acc = (int64_t *)(void *)sj;
            for (int64_t t = sum->first_task[j]; t < sum->first_task[j + 1]; t++) {
                const int64_t *part = (const int64_t *)(const void *)(sum->partial + t * d);
                for (intptr_t k = 0; k < d; k++)
                    acc[k] = (int64_t)((uint64_t)acc[k] + (uint64_t)part[k]);
            }
            const uint64_t offset =
                (uint64_t)(offsets[j + 1] - offsets[j]) * (uint64_t)bits_of(magic(sum->grid[j]));
            for (intptr_t k = 0; k < d; k++)
                sj[k] = (double)(int64_t)((uint64_t)acc[k] - offset) * sum->grid[j];
        } else {
            for (int64_t t = sum->first_task[j]; t < sum->first_task[j + 1]; t++)
                for (intptr_t k = 0; k < d; k++)
                    sj[k] += sum->partial[t * d + k];
        }
    }
}

/* The silo that task t belongs to: the j with first_task[j] <= t < first_task[j + 1]. */
static inline intptr_t silo_of_task(const int64_t *first_task, intptr_t m, int64_t t) {
    intptr_t lo = 0, hi = m;
    while (hi - lo > 1) {
        const intptr_t mid = lo + (hi - lo) / 2;
        if (first_task[mid] <= t)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static inline int thread_number(void);
#ifdef _OPENMP
#include <omp.h>
static inline int thread_number(void) { return omp_get_thread_num(); }
#else
static inline int thread_number(void) { return 0; }
#endif

#endif
