/* In blocks of records: margins, one evaluation of the loss for each threshold, factors, rows. */
#include "glm/ordinal.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "models/evaluate.h"
#include "rows/load.h"

typedef struct {
    double clip, steps, weight; /* the inner bound; 1 / grid, or 0 without one */
    double unit;
    double sum[DPK_MOST_THRESHOLDS];
    int64_t whole[DPK_MOST_THRESHOLDS]; /* the same in units of the grid */
} threshold_sums;

/* min(1, clip / norm), or 0 where the norm is not finite. */
DPK_INLINE double shortening(double clip, double norm) {
    const double f = norm <= clip ? 1.0 : clip / norm;
    return norm <= DBL_MAX ? f : 0.0;
}

/* From a block's margins to the factors of its stored rows in b->s; and adds the thresholds' parts,
 * with f for what shortens a record. */
static void find_ordinal_factors(const dpk_data *data, const double *theta, intptr_t thresholds,
                                 const dpk_loss *loss, intptr_t n, block *b, threshold_sums *to) {
    double slope[DPK_MOST_THRESHOLDS][DPK_BLOCK], y[DPK_BLOCK], z[DPK_BLOCK], square[DPK_BLOCK],
        f[DPK_BLOCK];
    memset(b->s, 0, (size_t)n * sizeof *b->s);
    memset(square, 0, (size_t)n * sizeof *square);
    for (intptr_t k = 0; k < thresholds; k++) {
        for (intptr_t i = 0; i < n; i++) {
            y[i] = b->y[i] > (double)k ? 1.0 : -1.0;
            z[i] = b->z[i] - to->unit * theta[k];
        }
        evaluate(loss, n, y, z, NULL, slope[k], NULL);
        weigh_records(data, n, b->row, slope[k]);
        for (intptr_t i = 0; i < n; i++) {
            b->s[i] += slope[k][i];
            slope[k][i] *= to->unit;
            square[i] = DPK_FMA(slope[k][i], slope[k][i], square[i]);
        }
    }
    for (intptr_t i = 0; i < n; i++) {
        b->s[i] *= b->ratio[i]; /* the factor of the stored row */
        const double length = b->s[i] * b->norm[i];
        const double norm = norm_up(length * length + square[i], data->d + thresholds);
        f[i] = to->weight * shortening(to->clip, norm);
        b->s[i] = f[i] > 0.0 ? f[i] * b->s[i] : 0.0;
    }
    for (intptr_t k = 0; k < thresholds; k++)
        for (intptr_t i = 0; i < n; i++) {
            const double part = f[i] > 0.0 ? -f[i] * slope[k][i] : 0.0;
            if (to->steps != 0.0)
                to->whole[k] += (int64_t)rint(part * to->steps);
            else
                to->sum[k] += part;
        }
}

static void ordinal_task(const dpk_data *data, const double *w, intptr_t w_stride,
                         intptr_t thresholds, double unit, const dpk_loss *loss, const dpk_sum *sum,
                         int streamed, int64_t t) {
    const intptr_t p = data->p, d = p + thresholds;
    const task u = task_number(data, sum, t);
    const double grid = sum->grid ? sum->grid[u.j] : 0.0, M = magic(grid);
    const double *const model = w + u.j * w_stride;
    const row_kind kind = kind_of(data);
    const intptr_t fits = block_rows(data, streamed), rows = fits < 4 ? 4 : fits;
    double *const acc = sum->partial + t * dpk_thread_stride(d);
    threshold_sums to = {.clip = inner_bound(sum->clip, grid, d),
                         .steps = grid != 0.0 ? 1.0 / grid : 0.0,
                         .unit = unit,
                         .weight = sum->silo_weight ? sum->silo_weight[u.j] : 1.0};
    int64_t added = 0;
    block b;
    memset(acc, 0, (size_t)dpk_padded(d) * sizeof *acc);
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        later_rows later = later_than(kind, data, i, rows, n);
        dpk_load_block(data, model, i, n, later, &b);
        find_ordinal_factors(data, model + p, thresholds, loss, n, &b, &to);
        skip_half(n, &later);
        dpk_add_rows(data, M, 0, later, n, &b, acc, &added);
    }
    if (M != 0.0)
        remove_magic(p, added, M, (int64_t *)(void *)acc);
    /* Rows are added in whole vectors, which reach beyond p. */
    if (M != 0.0)
        memcpy(acc + p, to.whole, (size_t)thresholds * sizeof *acc);
    else
        memcpy(acc + p, to.sum, (size_t)thresholds * sizeof *acc);
}

dpk_status dpk_ordinal_gradient(const dpk_data *data, const double *w, intptr_t w_stride,
                                intptr_t thresholds, double unit, const dpk_loss *loss,
                                const dpk_sum *sum, double *out) {
    const int streamed = dpk_streamed(data, data->offsets[data->m] / sum->n_threads);
    EACH_TASK(sum->first_task[data->m],
              ordinal_task(data, w, w_stride, thresholds, unit, loss, sum, streamed, t));
    sum_partials(sum, data->m, data->p + thresholds, out);
    return DPK_OK;
}
