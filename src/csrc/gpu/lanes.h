/* The machine of the kernels of a GPU, and of the same source on a CPU, for tests.
 *
 * Sixteen threads are a team, which takes a row: lane l of a team has the columns l + 16 step, so
 * that a sum over them has the sixteen lanes, and their tree, of simd.h. A loop over lanes is one
 * thread's own lane on a GPU, and all lanes one after the other on a CPU; so variables of a lane
 * are arrays, of one entry and of sixteen. What follows from a sum over lanes is computed by each
 * lane that has it. A block of threads takes a task, which is a run of records of one silo.
 *
 * On a GPU the constants FLOAT32, MAPPED and WEIGHTED (the kind of records), LOSS, STEPS (of
 * sixteen columns) and MODELS are options of the compiler; on a CPU they are numbers of a launch.
 */
#pragma once

#include "core/dpk.h"

enum { TEAM = 16, TEAMS = 16, THREADS = TEAM * TEAMS };

/* Columns of a thread, and records at once, where a thread has columns of all rows. */
enum { COLUMNS = 4, RECORDS = 4 };

#ifdef __CUDACC_RTC__

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS)
#define UNROLL _Pragma("unroll")
#define LANES 1
#define LANE ((int)(threadIdx.x % TEAM))
#define EACH_BLOCK(t, count) for (int64_t t = blockIdx.x; t < (count); t += gridDim.x)
#define EACH_TEAM(team)                                                                            \
    for (int team = (int)(threadIdx.x / TEAM), team##_end = team + 1; team < team##_end; team++)
/* Numbers first .. count - 1 that the threads of all blocks in y take; those that teams take, of
 * which all threads of a warp take equally many, some of them from count on. */
#define EACH_THREAD(i, first, count)                                                               \
    for (int64_t i = (first) + blockIdx.y * (int64_t)THREADS + threadIdx.x; i < (count);           \
         i += gridDim.y * (int64_t)THREADS)
#define EACH_GROUP(i, first, count)                                                                \
    for (int64_t i = (first) + blockIdx.y * (int64_t)TEAMS; i < (count);                           \
         i += gridDim.y * (int64_t)TEAMS)
/* First columns of a thread that takes COLUMNS of them, THREADS apart. */
#define EACH_STRIP(k, count)                                                                       \
    for (int64_t k = blockIdx.y * (int64_t)(THREADS * COLUMNS) + threadIdx.x; k < (count);         \
         k += gridDim.y * (int64_t)(THREADS * COLUMNS))
#define ANY(condition) __any_sync(0xffffffffU, (condition))
#define SHUFFLE(v, distance) __shfl_xor_sync(0xffffffffU, (v)[0], (distance))
#define FROM(v, number) __shfl_sync(0xffffffffU, (v)[0], (number), TEAM)
#define ATOMIC_ADD(to, value) atomicAdd((unsigned long long *)(to), (unsigned long long)(value))
#define LOAD(p) __ldg(p)
#define ROUND(v) __float2int_rn(v)
#define POINT DPK_PASTE(LOSS, point)
#define MOST_STEPS STEPS
#define MOST_MODELS MODELS
#if FLOAT32 && !MAPPED
typedef float entry;
#else
typedef double entry;
#endif

#else

#define KERNEL void
#define UNROLL
#define LANES TEAM
#define LANE L
#define EACH_BLOCK(t, count) for (int64_t t = 0; t < (count); t++)
#define EACH_TEAM(team) for (int team = 0; team < TEAMS; team++)
#define EACH_THREAD(i, first, count) for (int64_t i = (first); i < (count); i++)
#define EACH_GROUP(i, first, count) for (int64_t i = (first); i < (count); i += TEAMS)
#define EACH_STRIP(k, count)                                                                       \
    for (int64_t k##_first = 0; k##_first < (count); k##_first += THREADS * COLUMNS)               \
        for (int64_t k = k##_first; k < k##_first + THREADS && k < (count); k++)
#define ANY(condition) (condition)
#define SHUFFLE(v, distance) (v)[L ^ (distance)]
#define FROM(v, number) (v)[number]
#define ATOMIC_ADD(to, value) (*(to) += (value))
#define LOAD(p) (*(p))
#define ROUND(v) ((int32_t)rintf(v))
#define FLOAT32 launch.float32
#define MAPPED launch.mapped
#define WEIGHTED launch.weighted
#define STEPS launch.steps
#define MODELS launch.models
#define MOST_STEPS 16
#define MOST_MODELS 4
typedef double entry; /* a float, too */

static struct {
    int float32, mapped, weighted, loss, steps, models;
} launch;

#endif

#define EACH_LANE for (int L = 0; L < LANES; L++)

/* A loop with a constant count, unrolled so that arrays are registers. */
#define EACH(i, count) UNROLL for (int i = 0; i < (count); i++)

/* Numbers of lanes, one array for each of `count` values, a power of two, are summed over lanes in
 * the order of f8_sum: pairs of lanes at distance 8, 4, 2 and 1. Each sum is computed by TEAM /
 * count lanes, as lanes first exchange the values that are not theirs: v[0] of a lane becomes the
 * sum of value LANE / (TEAM / count). */
DPK_INLINE void sum_over_lanes(int count, int distance, double v[][LANES]) {
    UNROLL for (; distance; distance /= 2) {
        const int half = count / 2;
        if (half == 0) {
            double other[LANES];
            EACH_LANE other[L] = SHUFFLE(v[0], distance);
            EACH_LANE v[0][L] += other[L];
            continue;
        }
        EACH(i, half) {
            double theirs[LANES];
            EACH_LANE theirs[L] = LANE & distance ? v[i][L] : v[i + half][L];
            EACH_LANE v[i][L] =
                (LANE & distance ? v[i + half][L] : v[i][L]) + SHUFFLE(theirs, distance);
        }
        count = half;
    }
}

/* The same of floats, in the order of f16_halves: the pairs at distance 8 are added as floats. */
DPK_INLINE void sum_over_single_lanes(int count, float f[][LANES], double v[][LANES]) {
    EACH(i, count / 2) {
        float theirs[LANES];
        EACH_LANE theirs[L] = LANE & 8 ? f[i][L] : f[i + count / 2][L];
        EACH_LANE v[i][L] =
            (double)((LANE & 8 ? f[i + count / 2][L] : f[i][L]) + SHUFFLE(theirs, 8));
    }
    sum_over_lanes(count / 2, 4, v);
}
