/* Exact sums of clipped vectors on a grid q = 2^e: sum_i rint(s_i x_i / q), times q at the end.
 *
 * With M = 1.5 * 2^52 q and |v| <= 2^51 q, the bit pattern of v + M, read as an integer, is that of
 * M plus rint(v / q). Adding patterns as integers and subtracting n bits(M) at the end is exact
 * modulo 2^64, so the sum depends on no order, thread or vector width, and its sensitivity is the
 * one of the rounded vectors (Casacuberta, Shoemate, Vadhan, Wagaman 2022 show what goes wrong in
 * floating-point sums). Without a grid the same memory holds plain floating-point sums.
 *
 * Why |v|_2 <= C for every rounded record v. Each coordinate is within q / 2 of s x_k, or of its
 * rounding in the baseline, so |v| <= |s| |x| (1 + u) + q sqrt(d) / 2 with u = 2^-53. The computed
 * square loses at most one rounding per term of a lane, one for joining two lanes, one per level of
 * the tree, one for the intercept, one for the d 2^-240 and, in the baseline, one for the product:
 * ceil(p / 16) + 7. Its root halves these and adds one. The quotient clip / norm adds one, clip
 * three (its root, its difference, its product; its second factor is exact), the baseline's s x_k
 * one. That makes d / 32 + 11 roundings of u at most, and the factor 1 - (d + 16) 2^-52 covers 2 d
 * + 32. The other scalars (row ratio, record and silo weight <= 1) come before the clamp or cannot
 * lengthen.
 * What denormals or flush-to-zero take from the square, at most 2^-1022 per operation, is far below
 * d 2^-240; what they take from s x_k is far below the unused roundings, as q >= 2^-400.
 *
 * In single precision (single_rows) a record adds rint(t x_k), t = s / q as a float and t x_k as
 * one. Where t x_k is not a normal float it rounds to 0. Otherwise |t x_k| <= |t| |x_k| (1 + h), h
 * = 2^-24, and |t| <= |s| / q (1 + h) + 2^-150, as t may be denormal; clamping t to 2^127 shortens
 * it. With |x|_2 <= 2^128 sqrt(d), |v| <= |s| |x| (1 + h)^2 + q sqrt(d) (1/2 + 2^-22 (1 + h)), so q
 * counts (1 + 2^-20) times, and (1 + h)^2 (1 - 2^-22) < 1. The two more roundings of clip are among
 * the unused ones. x_k = 1 of the intercept is a float, too. */
#pragma once

#include "core/dpk.h"
#ifdef __CUDACC_RTC__
#define DBL_MAX 0x1.fffffffffffffp1023
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000)
#else
#include <float.h>
#include <math.h>
#endif

static inline double magic(double grid) { return 0x1.8p52 * grid; }

/* Most records of a chain of fused multiply-adds acc = s x + acc from M on, one instruction in
 * place of two: a record moves a coordinate by clip / q + 1 steps at most, so acc keeps the
 * exponent of M, and rounding it to a double rounds s x to the grid. But where s x is in the middle
 * of two points, acc becomes the even one, and what the record adds is a function of the others.
 * Only records that have no such product are chained (chain_digits). */
static inline int64_t chained_rows(double clip, double q) {
    return (int64_t)(0x1p51 / (clip / q + 1.0));
}

/* Last digits of s, of which one must be 1 in chains of that many records, at most: its last 1 is
 * then at most 2^-53 rows |s|, and that of s x_k, as |s x_k| <= clip, at most q / 4. The middle of
 * two points has q / 2. With a denormal s, s x_k is far below q: rows whose squares overflow have
 * s = 0. */
static inline uint64_t chain_digits(int64_t rows) {
    uint64_t digits = 0;
    while ((int64_t)(2 * digits + 1) < rows)
        digits = 2 * digits + 1;
    return digits;
}

/* Upper bound of |x| from the computed sum of squares; which underflow does not make 0: a row
 * (3, 4)e-170 has computed square 0. */
static inline double norm_up(double square, intptr_t d) {
    return sqrt(square + (double)d * 0x1p-240);
}

/* The inner clip bound: less by rounding to the grid (q sqrt(d) / 2) and by the roundings counted
 * above. Infinity stays infinity. Callers have checked that q sqrt(d) <= C / 32. */
static inline double inner_bound(double clip, double q, intptr_t d) {
    return (clip - 0.5 * q * sqrt((double)d)) * (1.0 - (double)(d + 16) * 0x1p-52);
}

static inline double inner_clip(const dpk_sum *sum, intptr_t j, intptr_t d) {
    return inner_bound(sum->clip, sum->grid ? sum->grid[j] : 0.0, d);
}

/* The same where s x is computed in floats. */
static inline double inner_bound_single(double clip, double q, intptr_t d) {
    return inner_bound(clip, (1.0 + 0x1p-20) * q, d) * (1.0 - 0x1p-22);
}

/* Shortest and longest rows, and fewest records of a block, that are summed in single precision;
 * of shorter rows the scalars take the time. */
enum { SINGLE_FEWEST = 64, SINGLE_COLUMNS = 4096, SINGLE_ROWS = 8 };

/* Records that can be added as 32-bit integers, as a rounded vector has at most clip / q steps in a
 * coordinate; 0 where sums are in double precision. A function of public numbers: the kind of
 * rows, their length, clip and grid. */
static inline intptr_t single_rows(const dpk_data *data, double clip, double q) {
    const int fits = data->p >= SINGLE_FEWEST && data->p <= SINGLE_COLUMNS;
    if (!data->x_is_float32 || data->indptr || data->scale || !fits)
        return 0;
    const double rows = 0x7fffffff * q / clip;
    return rows < SINGLE_ROWS ? 0 : rows < 64.0 ? (intptr_t)rows / SINGLE_ROWS * SINGLE_ROWS : 64;
}

/* Upper bound of |[x, 1]|, the 1 or 0 as `one`, from x . x in floats: of p terms in 32 lanes, so
 * with at most p / 32 + 4 roundings of 2^-24 (5 in the baseline). */
static inline double norm_up_single(const dpk_data *data, double square, double one) {
    return norm_up(square * (1.0 + ((double)data->p / 32.0 + 8.0) * 0x1p-24) + one, data->d);
}

/* Squares that are computed in doubles instead. */
static inline int outside_of_floats(double square) {
    return !(square >= 0x1p-60 && square <= 0x1p100);
}

/* s in steps of the grid, as a float that is finite. */
static inline float single_factor(double s, double steps) {
    s *= steps;
    return (float)(s > 0x1p127 ? 0x1p127 : s < -0x1p127 ? -0x1p127 : s);
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

/* Subtracts the bits of M that `count` added rows have left. acc: (n,). */
static inline void remove_magic(intptr_t n, int64_t count, double M, int64_t *acc) {
    const uint64_t excess = (uint64_t)count * (uint64_t)bits_of(M);
    for (intptr_t k = 0; k < n; k++)
        acc[k] = (int64_t)((uint64_t)acc[k] - excess);
}
