/* Sum per silo of clipped vectors: sum_i min(1, C' / norm_up(g_i)) g_i, C' the clip bound less the
 * room that rounding to the grid takes (gridsum.h). */
#include "clip.h"
#include "rows.h"

dpk_clip_and_sum_fn DPK_FN(dpk_clip_and_sum);

DPK_INLINE void clip_rows(row_kind kind, const dpk_data *shared, double M, double clip,
                          int64_t begin, int64_t end, double *acc) {
    const dpk_data own = *shared, *const data = &own; /* nobody else's: not read again and again */
    int64_t added = 0;
    memset(acc, 0, (size_t)dpk_padded(data->p) * sizeof(double));
    for (int64_t i = begin; i < end; i++) {
        const double norm = norm_up(square_of(kind, data, i), data->p);
        const double s = clamp_scalar(1.0, factor_limit(clip, norm));
        if (s == 0.0)
            continue;
        const row g = row_at(kind, data, i);
        add_dense(kind, data, 1, &s, &g, M, acc);
        added++;
    }
    if (M != 0.0)
        remove_magic(data->p, added, M, (int64_t *)(void *)acc);
}

dpk_status DPK_FN(dpk_clip_and_sum)(const dpk_data *data, const dpk_sum *sum, double *out) {
    const intptr_t d = data->p;
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < sum->first_task[data->m]; t++) {
        const task u = task_number(data, sum, t);
        const double M = sum->grid ? magic(sum->grid[u.j]) : 0.0, clip = inner_clip(sum, u.j, d);
        double *const acc = sum->partial + t * dpk_apart(d);
        if (data->x_is_float32)
            clip_rows(ROW_FLOAT32, data, M, clip, u.begin, u.end, acc);
        else
            clip_rows(0, data, M, clip, u.begin, u.end, acc);
    }
    sum_partials(sum, data->m, d, out);
    return DPK_OK;
}
