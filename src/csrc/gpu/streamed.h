/* Products of rows of any length, which are read from memory once more for their sum. */
#pragma once

#include "gpu/record.h"

/* Steps of sixteen columns that are asked for at once. */
enum { AHEAD = 8 };

/* x . w, where w is not NULL, and x . x over the columns from `begin` to `end` of a row, from
 * memory; in single precision where `single`. */
DPK_INLINE void stream_row(int single, const dpk_data *data, int64_t row, int64_t begin,
                           int64_t end, const double *w, double *product, double *square) {
    float a[2][LANES], aa[2][LANES], f[2][LANES];
    double v[2][LANES]; /* squares, products */
    EACH_LANE a[0][L] = a[1][L] = aa[0][L] = aa[1][L] = 0.0F;
    EACH_LANE v[0][L] = v[1][L] = 0.0;
    for (int64_t first = begin; first < end; first += AHEAD * TEAM) {
        const int whole = first + AHEAD * TEAM <= end;
        double x[AHEAD][LANES];
        UNROLL for (int step = 0; step < AHEAD; step++) EACH_LANE {
            const int64_t k = first + LANE + TEAM * step;
            x[step][L] = whole || k < end ? entry_of(data, row, k) : 0.0;
        }
        UNROLL for (int step = 0; step < AHEAD; step++) EACH_LANE {
            const int64_t k = first + LANE + TEAM * step;
            const double xk = x[step][L], wk = w && (whole || k < end) ? w[k] : 0.0;
            if (single) {
                aa[step % 2][L] = fmaf((float)xk, (float)xk, aa[step % 2][L]);
                a[step % 2][L] = fmaf((float)xk, (float)wk, a[step % 2][L]);
            } else {
                v[0][L] = DPK_FMA(xk, xk, v[0][L]);
                if (w)
                    v[1][L] = DPK_FMA(xk, wk, v[1][L]);
            }
        }
    }
    EACH_LANE f[0][L] = aa[0][L] + aa[1][L];
    EACH_LANE f[1][L] = a[0][L] + a[1][L];
    if (single)
        sum_over_single_lanes(2, f, v);
    else
        sum_over_lanes(w ? 2 : 1, 8, v);
    *square = FROM(v[0], 0);
    if (w)
        *product = FROM(v[0], 8);
}

/* The same of a whole row, and the square as single_norms takes it. */
DPK_INLINE void stream_whole_row(int single, const dpk_data *data, int64_t row, const double *w,
                                 double *product, double *square) {
    double precise;
    stream_row(single, data, row, 0, data->p, w, product, square);
    const int outside = single && outside_of_floats(*square);
    if (ANY(outside)) {
        stream_row(0, data, row, 0, data->p, NULL, NULL, &precise);
        *square = outside ? precise : *square;
    }
}
