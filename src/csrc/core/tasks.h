/* Units of parallel work: records of one silo each, their partial sums, and the threads that they
 * run on. */
#pragma once

#include <string.h>
#include "core/dpk.h"

/* Before a loop over the tasks of a call, with a variable `sum` in scope. */
#define PARALLEL                                                                                   \
    "omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)"

#ifdef _OPENMP
#include <omp.h>
static inline int thread_number(void) { return omp_get_thread_num(); }
static inline int thread_count(void) { return omp_get_num_threads(); } /* of the team */
#else
static inline int thread_number(void) { return 0; }
static inline int thread_count(void) { return 1; }
#endif

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

/* `call`, in which t is one of `count` tasks, for all of them, with a variable `sum` in scope. One
 * thread works without a team: to make a team of one takes half a microsecond. */
#define EACH_TASK(count, call)                                                                     \
    do {                                                                                           \
        const int64_t tasks = (count);                                                             \
        if (sum->n_threads > 1 && tasks > 1) {                                                     \
            _Pragma(PARALLEL) for (int64_t t = 0; t < tasks; t++) call;                            \
        } else                                                                                     \
            for (int64_t t = 0; t < tasks; t++)                                                    \
                call;                                                                              \
    } while (0)

/* Coordinates that one thread adds up over the tasks of a silo. */
#define DPK_SUMMED_AT_ONCE 4096

/* Piece t of out: that of silo t / pieces. */
static inline void sum_piece(const dpk_sum *sum, intptr_t pieces, intptr_t d, int64_t t,
                             double *out) {
    const intptr_t width = dpk_thread_stride(d), j = t / pieces;
    const intptr_t begin = t % pieces * DPK_SUMMED_AT_ONCE;
    const intptr_t n = d - begin < DPK_SUMMED_AT_ONCE ? d - begin : DPK_SUMMED_AT_ONCE;
    const int64_t first = sum->first_task[j], end = sum->first_task[j + 1];
    double *sj = out + j * d + begin, *partial = sum->partial + first * width + begin;
    if (first < end && sum->grid) {
        int64_t *acc = (int64_t *)(void *)partial;
        for (int64_t i = 1; i < end - first; i++)
            for (intptr_t k = 0; k < n; k++)
                acc[k] += acc[i * width + k];
        for (intptr_t k = 0; k < n; k++)
            sj[k] = (double)acc[k] * sum->grid[j];
    } else {
        memset(sj, 0, (size_t)n * sizeof(double));
        for (int64_t i = 0; i < end - first; i++)
            for (intptr_t k = 0; k < n; k++)
                sj[k] += partial[i * width + k];
    }
}

/* out[j] = sum over the tasks of silo j, whose rows of sum->partial (n_tasks, dpk_thread_stride(d))
 * hold multiples of the grid as integers, or doubles without a grid. out: (m, d). */
static inline void sum_partials(const dpk_sum *sum, intptr_t m, intptr_t d, double *out) {
    const intptr_t pieces = (d + DPK_SUMMED_AT_ONCE - 1) / DPK_SUMMED_AT_ONCE;
    EACH_TASK(m * pieces, sum_piece(sum, pieces, d, t, out));
}
