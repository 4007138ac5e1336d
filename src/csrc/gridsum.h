/* Exact sums of clipped vectors on a grid q = 2^e: sum_i rint(s_i x_i / q), times q at the end.
 *
 * With M = 1.5 * 2^52 q and |v| <= 2^51 q, the bit pattern of v + M, read as an integer, is that of
 * M plus rint(v / q). Adding patterns as integers and subtracting n bits(M) at the end is exact
 * modulo 2^64, so the sum depends on no order, thread or vector width, and its sensitivity is the
 * one of the rounded vectors (Casacuberta, Shoemate, Vadhan, Wagaman 2022 show what goes wrong
 * in floating-point sums). Without a grid the same memory holds plain floating-point sums.
 *
 * Why |v|_2 <= C for every rounded record v. Each coordinate is within q / 2 of s x_k, or of its
 * rounding in the baseline, so |v| <= |s| |x| (1 + u) + q sqrt(d) / 2 with u = 2^-53. The computed
 * square loses at most one rounding per term of a lane, one for joining two lanes, one per level of
 * the tree, one for the intercept, one for the d 2^-240 and, in the baseline, one for the product:
 * ceil(p / 16) + 7. Its root halves these and adds one. The quotient clip / norm adds one, clip
 * three (its root, its difference, its product; its second factor is exact), the baseline's s x_k
 * one. That makes d / 32 + 11 roundings of u at most, and the factor 1 - (d + 16) 2^-52 makes room
 * for 2 d + 32. The other scalars (row ratio, silo weight <= 1) come before the clamp or cannot
 * lengthen. What denormals or flush-to-zero take from the square, at most 2^-1022 per operation, is
 * far below d 2^-240; what they take from s x_k is far below the unused roundings, as q >= 2^-400.
 */
#ifndef DPK_GRIDSUM_H
#define DPK_GRIDSUM_H

#include <float.h>
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

/* Clip bound that leaves room for rounding to the grid (q sqrt(d) / 2) and for the roundings
 * counted above. Infinity stays infinity. Callers have checked that q sqrt(d) <= C / 32. */
static inline double inner_bound(double clip, double q, intptr_t d) {
    return (clip - 0.5 * q * sqrt((double)d)) * (1.0 - (double)(d + 16) * 0x1p-52);
}

static inline double inner_clip(const dpk_sum *sum, intptr_t j, intptr_t d) {
    return inner_bound(sum->clip, sum->grid ? sum->grid[j] : 0.0, d);
}

/* Largest factor on a vector of this norm. A vector whose norm overflows or is NaN is left out of
 * clipped sums: 0 * infinity would put a NaN, and its bit pattern, into the sum. */
static inline double factor_limit(double clip, double norm) {
    if (clip == HUGE_VAL)
        return HUGE_VAL;
    return norm <= DBL_MAX ? clip / norm : 0.0;
}

/* |result| <= lim whatever s is: NaN becomes 0, infinities become +-lim. */
static inline double clamp_scalar(double s, double lim) {
    s = s > lim ? lim : s;
    s = s < -lim ? -lim : s;
    return s == s ? s : 0.0;
}

/* r = min(1, row_bound / norm): what a stored row is scaled by. */
static inline double row_ratio(const dpk_data *data, double norm) {
    return norm > data->row_bound ? data->row_bound / norm : 1.0;
}

/* Takes the bits of M out again after `count` rows were added. acc: (n,). */
static inline void remove_magic(intptr_t n, int64_t count, double M, int64_t *acc) {
    const uint64_t excess = (uint64_t)count * (uint64_t)bits_of(M);
    for (intptr_t k = 0; k < n; k++)
        acc[k] = (int64_t)((uint64_t)acc[k] - excess);
}

/* Coordinates that one thread adds up over the tasks of a silo. */
#define DPK_SUMMED_AT_ONCE 4096

/* out[j] = sum over the tasks of silo j, whose rows of sum->partial (n_tasks, dpk_apart(d)) hold
 * multiples of the grid as integers, or doubles without a grid. out: (m, d). */
static inline void sum_partials(const dpk_sum *sum, intptr_t m, intptr_t d, double *out) {
    const intptr_t width = dpk_apart(d), pieces = (d + DPK_SUMMED_AT_ONCE - 1) / DPK_SUMMED_AT_ONCE;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(sum->n_threads) if (sum->n_threads > 1 && m * pieces > 1)
    for (intptr_t b = 0; b < m * pieces; b++) {
        const intptr_t j = b / pieces, begin = b % pieces * DPK_SUMMED_AT_ONCE;
        const intptr_t n = d - begin < DPK_SUMMED_AT_ONCE ? d - begin : DPK_SUMMED_AT_ONCE;
        const int64_t first = sum->first_task[j], end = sum->first_task[j + 1];
        double *sj = out + j * d + begin, *partial = sum->partial + first * width + begin;
        if (first < end && sum->grid) {
            int64_t *acc = (int64_t *)(void *)partial;
            for (int64_t t = 1; t < end - first; t++)
                for (intptr_t k = 0; k < n; k++)
                    acc[k] += acc[t * width + k];
            for (intptr_t k = 0; k < n; k++)
                sj[k] = (double)acc[k] * sum->grid[j];
        } else {
            memset(sj, 0, (size_t)n * sizeof(double));
            for (int64_t t = 0; t < end - first; t++)
                for (intptr_t k = 0; k < n; k++)
                    sj[k] += partial[t * width + k];
        }
    }
}

/* Records begin .. end of a unit of work, which all lie in silo j. */
typedef struct {
    intptr_t j;
    int64_t begin, end;
} task;

/* Task t of data->m silos: the j with first_task[j] <= t < first_task[j + 1]. */
static inline task task_number(const dpk_data *data, const dpk_sum *sum, int64_t t) {
    intptr_t j = 0, above = data->m;
    while (above - j > 1) {
        const intptr_t mid = j + (above - j) / 2;
        if (sum->first_task[mid] <= t)
            j = mid;
        else
            above = mid;
    }
    const int64_t begin = data->offsets[j] + (t - sum->first_task[j]) * sum->task_rows;
    const int64_t end = begin + sum->task_rows, silo_end = data->offsets[j + 1];
    return (task){j, begin, end < silo_end ? end : silo_end};
}

static inline int thread_number(void);
static inline int thread_count(void); /* of the team */
#ifdef _OPENMP
#include <omp.h>
static inline int thread_number(void) { return omp_get_thread_num(); }
static inline int thread_count(void) { return omp_get_num_threads(); }
#else
static inline int thread_number(void) { return 0; }
static inline int thread_count(void) { return 1; }
#endif

#endif
