/* Weighted Gram matrices per silo: sum_i h_i x_i x_i^T with h = max(phi''(z), 0), every summand of
 * Frobenius norm at most B, on integer-valued rows.
 *
 * A record's row becomes k = rint(t x / q) with t = min(sqrt(h), (sqrt(B) - q sqrt(d) / 2) / |x|),
 * so |k|^2 q^2 <= B (gridsum.h counts the roundings; here there is one more, that of sqrt(B)).
 * Where n ceil(B / q^2) <= 2^52, n the records of a unit of work, all products and partial sums are
 * integers below 2^53: exact in doubles, in any order, with or without fused operations. Units are
 * added as 64-bit integers, which hold the sum of 2^11 such units. */
#pragma once

#include "core/gridsum.h"

/* Records packed at a time: 3 panels of 8 columns stay in the L1 cache, all panels and the next
 * records in the L2 cache. */
static inline intptr_t dpk_hessian_rows(intptr_t d) {
    const intptr_t rows = 65536 / dpk_padded(d);
    return rows > 112 ? 112 : rows < 32 ? 32 : rows;
}

/* Doubles of one accumulator: the blocks on and below the diagonal. */
static inline intptr_t dpk_hessian_size(intptr_t d) {
    const intptr_t blocks = dpk_padded(d) / 8;
    return blocks * (blocks + 1) / 2 * 64;
}

/* Doubles of one thread's packed records. */
static inline intptr_t dpk_hessian_scratch(intptr_t d) {
    return (dpk_hessian_rows(d) + 1) * dpk_padded(d);
}

/* Factor of a stored row for a second derivative h, in units of q where scale is 1 / q: 0 for rows
 * without a Hessian, among them all that are not finite. */
static inline double dpk_hessian_factor(double h, double ratio, double norm, double clip,
                                        double scale) {
    const double root = sqrt(h > 0.0 && h <= DBL_MAX ? h : 0.0) * ratio;
    return clamp_scalar(root, factor_limit(clip, norm)) * scale;
}

/* A sum of integers in units of `unit`, rounded to doubles or, clamped to 2^52 units before, to the
 * grid `step`. */
static inline double dpk_hessian_entry(int64_t sum, int on_grid, double unit, double step) {
    const double v = clamp_scalar((double)sum, on_grid ? 0x1p52 : HUGE_VAL);
    return rint(v * (unit / step)) * step;
}

/* Factor on a silo's rows, whose square is that on its Hessians. */
static inline double dpk_row_weight(const dpk_sum *sum, intptr_t j) {
    return sum->silo_weight ? sqrt(sum->silo_weight[j]) : 1.0;
}

/* out: (m, d, d) symmetric. row_grid: q, a power of two, or 0 for floating-point sums; sum->clip:
 * B, infinity without q; sum->grid: (m,) powers of two >= q^2, to which the exact sums, clamped to
 * 2^52 q^2, are rounded once, or NULL: they are rounded to doubles; sum->partial: (n_tasks,
 * dpk_thread_stride(dpk_hessian_size(d))); scratch: (sum->n_threads,
 * dpk_thread_stride(dpk_hessian_scratch(d))). Both start at a cache line. data->rows is NULL. */
dpk_status dpk_glm_hessian(const dpk_data *data, const double *w, intptr_t w_stride,
                           const dpk_loss *loss, double row_grid, const dpk_sum *sum,
                           double *scratch, double *out);
