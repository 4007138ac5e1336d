/* Rows that stay in registers between their products and their sum: memory is read once. */
#pragma once

#include "gpu/record.h"

/* Rows that a team has in registers: more short ones, as what follows from their products is
 * computed for all at once. Each lane computes for one of them. */
#define ROWS (STEPS <= 4 ? 4 : 2)
#define LANES_OF_ROW (TEAM / (2 * ROWS))
#ifdef __CUDACC_RTC__
#define MOST_ROWS ROWS
#else
#define MOST_ROWS 4
#endif

/* x: the entries of ROWS stored rows. */
DPK_INLINE void keep_rows(const dpk_data *data, const int64_t *row,
                          entry x[MOST_ROWS][MOST_STEPS][LANES]) {
    EACH(r, ROWS) EACH(step, STEPS) EACH_LANE {
        const int64_t k = LANE + TEAM * step; /* beyond p only in the last step */
        const int inside = step < STEPS - 1 || k < data->p;
        x[r][step][L] = (entry)(inside ? entry_of(data, row[r], k) : 0.0);
    }
}

/* What each lane adds to the products of the rows with w, or with themselves where w is NULL: v
 * (ROWS,), with `single` f. */
DPK_INLINE void multiply_rows(int single, entry x[MOST_ROWS][MOST_STEPS][LANES],
                              double w[MOST_STEPS][LANES], double v[][LANES], float f[][LANES]) {
    EACH(r, ROWS) EACH_LANE {
        float a[2] = {0.0F, 0.0F};
        double sum = 0.0;
        EACH(step, STEPS) {
            const entry xk = x[r][step][L];
            if (single)
                a[step % 2] = fmaf((float)xk, w ? (float)w[step][L] : (float)xk, a[step % 2]);
            else
                sum = DPK_FMA((double)xk, w ? w[step][L] : (double)xk, sum);
        }
        if (single)
            f[r][L] = a[0] + a[1];
        else
            v[r][L] = sum;
    }
}

/* Of two products with w and v, or squares where these are NULL, each lane gets those of its row,
 * LANE / LANES_OF_ROW % ROWS. */
DPK_INLINE void two_products(int single, entry x[MOST_ROWS][MOST_STEPS][LANES],
                             double w[MOST_STEPS][LANES], double v[MOST_STEPS][LANES],
                             double *first, double *second) {
    double sum[2 * MOST_ROWS][LANES], other[LANES];
    float f[2 * MOST_ROWS][LANES];
    multiply_rows(single, x, w, sum, f);
    multiply_rows(single, x, v, sum + ROWS, f + ROWS);
    if (single)
        sum_over_single_lanes(2 * ROWS, f, sum);
    else
        sum_over_lanes(2 * ROWS, 8, sum);
    EACH_LANE other[L] = SHUFFLE(sum[0], 8);
    EACH_LANE {
        first[L] = LANE & 8 ? other[L] : sum[0][L];
        second[L] = LANE & 8 ? sum[0][L] : other[L];
    }
}

/* Squares outside the range of floats are computed in doubles, as by single_norms. */
DPK_INLINE void mend_squares(entry x[MOST_ROWS][MOST_STEPS][LANES], double *square) {
    int outside = 0;
    EACH_LANE outside |= outside_of_floats(square[L]);
    if (ANY(outside)) {
        double precise[LANES], again[LANES];
        two_products(0, x, NULL, NULL, precise, again);
        EACH_LANE if (outside_of_floats(square[L])) square[L] = precise[L];
    }
}

/* The sums of MODELS models, all in single precision or all in double, over one team's records of
 * a task: of every TEAMS ROWS records in turn it takes ROWS. Its rows stay in registers; what
 * follows from a row's products is computed by the lanes of this row. */
DPK_INLINE void add_records(int single, const glm *of, gpu_task task, int team, uint64_t *out) {
    const dpk_data *const data = &of->data;
    const int64_t m = of->m, j = task.j;
    uint64_t acc[MOST_MODELS][MOST_STEPS][LANES];
    double w[MOST_MODELS][MOST_STEPS][LANES];
    int64_t added[MOST_MODELS];
    terms own[MOST_MODELS];
    EACH(i, MODELS) {
        added[i] = 0;
        own[i] = terms_of(of, i, j);
        EACH(step, STEPS) EACH_LANE {
            const int64_t k = LANE + TEAM * step;
            acc[i][step][L] = 0;
            w[i][step][L] = k < data->p ? of->w[i * of->stride + j * of->w_stride + k] : 0.0;
        }
    }
    for (int64_t first = task.begin; first < task.end; first += TEAMS * ROWS) {
        const int64_t begin = first + team * ROWS;
        entry x[MOST_ROWS][MOST_STEPS][LANES];
        double square[LANES], product[MOST_MODELS + 1][LANES], norm[LANES];
        label records[LANES];
        int64_t row[MOST_ROWS];
        /* Beyond the end stands a row that counts as nothing. */
        EACH(r, ROWS) row[r] = stored_row(data, begin + r < task.end ? begin + r : task.begin);
        keep_rows(data, row, x);
        EACH_LANE {
            const int64_t record = begin + LANE / LANES_OF_ROW % ROWS;
            records[L] = label_of(of, stored_row(data, record < task.end ? record : task.begin));
        }
        two_products(single, x, w[0], NULL, product[0], square);
        EACH(i, MODELS / 2) {
            const int odd = 2 * i + 1, next = odd + 1 < MODELS ? odd + 1 : odd;
            two_products(single, x, w[odd], w[next], product[odd], product[odd + 1]);
        }
        if (single)
            mend_squares(x, square);
        EACH_LANE norm[L] = row_norm(single, data, square[L]);
        EACH(i, MODELS) {
            double s[LANES];
            EACH_LANE {
                const int there = begin + LANE / LANES_OF_ROW % ROWS < task.end;
                s[L] = there ? factor_of(of, &own[i], &records[L], norm[L], product[i][L]) : 0.0;
            }
            EACH(r, ROWS) {
                const double factor = FROM(s, r * LANES_OF_ROW);
                if (factor == 0.0) /* the row may not be finite */
                    continue;
                added[i]++;
                EACH(step, STEPS) EACH_LANE {
                    const double xk = (double)x[r][step][L];
                    const double v = step < STEPS - 1 ? xk : with_one(data, LANE + TEAM * step, xk);
                    acc[i][step][L] += steps_of(single, &own[i], factor, v);
                }
            }
        }
    }
    EACH(i, MODELS) EACH(step, STEPS) EACH_LANE {
        const int64_t k = LANE + TEAM * step;
        if (k < data->d)
            ATOMIC_ADD(out + (i * m + j) * data->d + k,
                       acc[i][step][L] - excess_of(single, &own[i], added[i]));
    }
}
