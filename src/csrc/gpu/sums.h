/* Sums of clipped gradients and of clipped vectors on a GPU, with the bits of rows/ and glm/ on
 * every CPU that has fused multiply-adds.
 *
 * Sums are integers, steps of the grid (gridsum.h), which no order changes; what one record adds is
 * computed as on the CPU: products in sixteen lanes (rows/dots.h), or in 32 of floats
 * (rows/single.h), the loss of models/loss.h, the bounds of gridsum.h. The compiler must contract
 * nothing, round quotients and roots correctly, and keep denormal numbers. */
#pragma once

#include "gpu/kept.h"
#include "gpu/streamed.h"

/* Columns whose squares are summed by themselves (rows/clip.c). */
enum { CHUNK = 4096 };

/* out: (MODELS, m, d) += sums in steps of the grids, for d <= 16 STEPS; the models of a silo are
 * all in single precision or all in double. A row is read once. */
KERNEL glm_sums(GLM, uint64_t *out) {
    GLM_OF_ARGUMENTS;
    EACH_BLOCK(t, n_tasks) EACH_TEAM(team) {
        if (single_rows(&of.data, clip[0], grid[tasks[t].j]))
            add_records(1, &of, tasks[t], team, out);
        else
            add_records(0, &of, tasks[t], team, out);
    }
}

/* out: (MODELS, n) for each record, n the end of the last task, and for rows of any length: what
 * its row is multiplied with; or its margin or loss. */
enum { FACTORS, MARGINS, LOSSES };

KERNEL glm_factors(GLM, int64_t wanted, int64_t n, double *out) {
    GLM_OF_ARGUMENTS;
    const dpk_data *const data = &of.data;
    EACH_BLOCK(t, n_tasks) {
        const int64_t j = tasks[t].j, end = tasks[t].end;
        terms of_model[MOST_MODELS];
        EACH(model, MODELS) of_model[model] = terms_of(&of, model, j);
        EACH_GROUP(first, tasks[t].begin, end) EACH_TEAM(team) {
            const int64_t i = first + team;
            const int64_t row = stored_row(data, i < end ? i : tasks[t].begin);
            const label record = label_of(&of, row);
            EACH(model, MODELS) {
                const double *const w_j = w + model * stride + j * w_stride;
                const terms own = of_model[model];
                double product, square;
                stream_whole_row(wanted == FACTORS && own.single, data, row, w_j, &product,
                                 &square);
                if (i >= end)
                    continue;
                if (wanted != FACTORS) {
                    const double ratio = row_ratio(data, row_norm(0, data, square));
                    const double z = margin_of(&of, &record, ratio * (product + own.bias));
                    out[i] = wanted == LOSSES ? loss_at(&of, 0, &record, z) : z;
                } else {
                    const double norm = row_norm(own.single, data, square);
                    out[model * n + i] = factor_of(&of, &own, &record, norm, product);
                }
            }
        }
    }
}

/* out: (n, chunks) squares of the chunks of vectors. Arguments that are not read are those of
 * records. */
KERNEL chunk_squares(GLM, int64_t chunks, double *out) {
    GLM_OF_ARGUMENTS;
    const dpk_data *const data = &of.data;
    EACH_BLOCK(t, n_tasks) {
        const terms own = terms_of(&of, 0, tasks[t].j);
        const int64_t begin = tasks[t].begin * chunks, end = tasks[t].end * chunks;
        EACH_GROUP(first, begin, end) EACH_TEAM(team) {
            const int64_t i = first + team < end ? first + team : begin;
            const int64_t row = i / chunks, k = i % chunks * CHUNK;
            double square;
            if (own.single) /* of one chunk */
                stream_whole_row(1, data, row, NULL, NULL, &square);
            else
                stream_row(0, data, row, k, k + CHUNK < p ? k + CHUNK : p, NULL, NULL, &square);
            if (first + team < end)
                out[i] = square;
        }
    }
}

/* out: (n,) what each vector is multiplied with, from the squares of its chunks. */
KERNEL clip_factors(GLM, int64_t chunks, const double *squares, double *out) {
    GLM_OF_ARGUMENTS;
    EACH_BLOCK(t, n_tasks) {
        const terms own = terms_of(&of, 0, tasks[t].j);
        EACH_THREAD(i, tasks[t].begin, tasks[t].end) {
            double square = 0.0;
            for (int64_t c = 0; c < chunks; c++)
                square += squares[i * chunks + c];
            const double norm = row_norm(own.single, &of.data, square);
            out[i] = clamp_scalar(1.0, factor_limit(own.clip, norm));
        }
    }
}

/* The sums of MODELS models in the columns k, k + THREADS, ... of a strip. */
typedef struct {
    uint64_t acc[MOST_MODELS][COLUMNS];
    int64_t added[MOST_MODELS];
} strip;

/* Adds `count` records from `first` on, all columns being before p if the strip is `whole`;
 * factors: (MODELS, n). */
DPK_INLINE void add_to_strip(int whole, int count, const dpk_data *data, const terms *own,
                             int64_t k, int64_t first, int64_t n, const double *factors,
                             strip *sums) {
    entry x[RECORDS][COLUMNS];
    EACH(r, count) {
        const int64_t row = stored_row(data, first + r);
        EACH(c, COLUMNS) {
            const int64_t at = k + c * THREADS;
            x[r][c] = (entry)(whole || at < data->p ? entry_of(data, row, at) : 1.0);
        }
    }
    EACH(r, count) EACH(i, MODELS) {
        const double s = factors[i * n + first + r];
        if (s == 0.0) /* the row may not be finite */
            continue;
        sums->added[i]++;
        EACH(c, COLUMNS)
        sums->acc[i][c] += steps_of(own[i].single, &own[i], s, (double)x[r][c]);
    }
}

DPK_INLINE void add_task_to_strip(int whole, const dpk_data *data, const terms *own, int64_t k,
                                  gpu_task task, int64_t n, const double *factors, strip *sums) {
    int64_t first = task.begin;
    for (; first + RECORDS <= task.end; first += RECORDS)
        add_to_strip(whole, RECORDS, data, own, k, first, n, factors, sums);
    for (; first < task.end; first++)
        add_to_strip(whole, 1, data, own, k, first, n, factors, sums);
}

/* out: (MODELS, m, d) += sums in steps of the grids of factors (MODELS, n) times rows. A thread has
 * a strip of columns. */
KERNEL add_columns(GLM, int64_t n, const double *factors, uint64_t *out) {
    GLM_OF_ARGUMENTS;
    const dpk_data *const data = &of.data;
    EACH_BLOCK(t, n_tasks) {
        const gpu_task task = tasks[t];
        terms own[MOST_MODELS];
        EACH(i, MODELS) own[i] = terms_of(&of, i, task.j);
        EACH_STRIP(k, data->d) {
            strip sums;
            EACH(i, MODELS) {
                sums.added[i] = 0;
                EACH(c, COLUMNS) sums.acc[i][c] = 0;
            }
            if (k + (COLUMNS - 1) * THREADS < p)
                add_task_to_strip(1, data, own, k, task, n, factors, &sums);
            else
                add_task_to_strip(0, data, own, k, task, n, factors, &sums);
            EACH(i, MODELS) EACH(c, COLUMNS) {
                const int64_t at = k + c * THREADS;
                if (at < data->d)
                    ATOMIC_ADD(out + (i * m + task.j) * data->d + at,
                               sums.acc[i][c] - excess_of(own[i].single, &own[i], sums.added[i]));
            }
        }
    }
}

/* out: (n_tasks,) sums of values (n,) over the records of tasks, in their order. */
KERNEL sum_values(GLM, const double *values, double *out) {
    (void)X, (void)y, (void)scale, (void)shift, (void)rows, (void)p, (void)intercept;
    (void)row_bound, (void)m, (void)w, (void)stride, (void)w_stride, (void)clip, (void)grid;
    (void)weight, (void)params, (void)record_weight, (void)margin_offset;
    EACH_THREAD(t, 0, n_tasks) {
        double total = 0.0;
        for (int64_t i = tasks[t].begin; i < tasks[t].end; i++)
            total += values[i];
        out[t] = total;
    }
}
