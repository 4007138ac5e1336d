/* Products of rows of any length, which are read from memory once more for their sum. */
#pragma once

#include "gpu/record.h"

/* Steps of sixteen columns that are asked for at once. */
enum { AHEAD = 8 };

/* What each lane adds to squares and products: in doubles, or in two chains of floats. */
typedef struct {
    double square[LANES], product[LANES];
    float squares[2][LANES], products[2][LANES];
} lane_sums;

/* Adds AHEAD steps of a row from column `first` on, `whole` ones or those before column `end`. */
DPK_INLINE void add_steps(int whole, int single, const dpk_data *data, int64_t row, int64_t first,
                          int64_t end, const double *w, lane_sums *sums) {
    entry x[AHEAD][LANES];
    EACH(step, AHEAD) EACH_LANE {
        const int64_t k = first + LANE + TEAM * step;
        x[step][L] = (entry)(whole || k < end ? entry_of(data, row, k) : 0.0);
    }
    EACH(step, AHEAD) EACH_LANE {
        const int64_t k = first + LANE + TEAM * step;
        const entry xk = x[step][L];
        const double wk = w && (whole || k < end) ? w[k] : 0.0;
        if (single) {
            float *const square = sums->squares[step % 2], *const product =
                                                               sums->products[step % 2];
            square[L] = fmaf((float)xk, (float)xk, square[L]);
            product[L] = fmaf((float)xk, (float)wk, product[L]);
        } else {
            sums->square[L] = DPK_FMA((double)xk, (double)xk, sums->square[L]);
            if (w)
                sums->product[L] = DPK_FMA((double)xk, wk, sums->product[L]);
        }
    }
}

/* x . w, where w is not NULL, and x . x over the columns from `begin` to `end` of a row, from
 * memory; in single precision where `single`. */
DPK_INLINE void stream_row(int single, const dpk_data *data, int64_t row, int64_t begin,
                           int64_t end, const double *w, double *product, double *square) {
    lane_sums sums;
    float f[2][LANES];
    double v[2][LANES];
    EACH_LANE sums.square[L] = sums.product[L] = 0.0;
    EACH_LANE sums.squares[0][L] = sums.squares[1][L] = 0.0F;
    EACH_LANE sums.products[0][L] = sums.products[1][L] = 0.0F;
    int64_t first = begin;
    for (; first + AHEAD * TEAM <= end; first += AHEAD * TEAM)
        add_steps(1, single, data, row, first, end, w, &sums);
    if (first < end)
        add_steps(0, single, data, row, first, end, w, &sums);
    EACH_LANE v[0][L] = sums.square[L], v[1][L] = sums.product[L];
    EACH_LANE f[0][L] = sums.squares[0][L] + sums.squares[1][L];
    EACH_LANE f[1][L] = sums.products[0][L] + sums.products[1][L];
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
