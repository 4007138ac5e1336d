/* The one place where kernels evaluate a loss, with the guards that a user's function needs. */
#pragma once

#include <float.h>
#include <math.h>
#include <stddef.h>
#include "core/dpk.h"
#include "rows/block.h"

/* a, or 0 where it is not finite. */
DPK_INLINE double finite_part(double a) { return fabs(a) <= DBL_MAX ? a : 0.0; }

/* y, z: (n,); value, d1, d2: (n,) or NULL when not wanted. Outputs of a user's function are NaN
 * until it writes them, so that an entry left out is never another record's number; derivatives d1
 * that are not finite become 0. */
DPK_INLINE void evaluate(const dpk_loss *loss, intptr_t n, const double *y, const double *z,
                         double *value, double *d1, double *d2) {
    double *const wanted[] = {value, d1, d2};
    if (loss->checked)
        for (int k = 0; k < 3; k++)
            for (intptr_t i = 0; wanted[k] && i < n; i++)
                wanted[k][i] = NAN;
    loss->block(n, y, z, value, d1, d2, loss->params);
    if (loss->checked && d1)
        for (intptr_t i = 0; i < n; i++)
            d1[i] = finite_part(d1[i]);
}

/* The derivative d1 of one record. */
DPK_INLINE double evaluate_slope(const dpk_loss *loss, double y, double z) {
    double d1;
    if (loss->slope)
        return loss->slope(y, z, loss->params);
    evaluate(loss, 1, &y, &z, NULL, &d1, NULL);
    return d1;
}

/* The margin z of a stored row with its offset, and its weighted derivative there. */
DPK_INLINE double margin_of(const dpk_data *data, int64_t row, double z) {
    add_margin_offsets(data, 1, &row, &z);
    return z;
}

DPK_INLINE double weighted_slope(const dpk_data *data, const dpk_loss *loss, int64_t row, double y,
                                 double z) {
    double s = evaluate_slope(loss, y, z);
    weigh_records(data, 1, &row, &s);
    return s;
}
