/* Sum per silo of clipped vectors: sum_i min(1, C' / norm_up(g_i)) g_i, C' the clip bound less the
 * room that rounding to the grid takes (gridsum.h). */
#include "clip.h"
#include "gridsum.h"
#include "simd.h"

dpk_status DPK_FN(dpk_clip_and_sum)(intptr_t m, intptr_t d, const void *G, int g_is_float32,
                                    const int64_t *offsets, const dpk_sum *sum, double *out);

dpk_status DPK_FN(dpk_clip_and_sum)(intptr_t m, intptr_t d, const void *G, int g_is_float32,
                                    const int64_t *offsets, const dpk_sum *sum, double *out) {
    const int64_t n_tasks = sum->first_task[m];
#pragma omp parallel for schedule(dynamic) num_threads(sum->n_threads) if (sum->n_threads > 1)
    for (int64_t t = 0; t < n_tasks; t++) {
        const intptr_t j = silo_of_task(sum->first_task, m, t);
        const int64_t begin = offsets[j] + (t - sum->first_task[j]) * DPK_TASK_ROWS;
        const int64_t limit = begin + DPK_TASK_ROWS;
        const int64_t end = limit < offsets[j + 1] ? limit : offsets[j + 1];
        const double clip = inner_clip(sum, j, d);
        const double M = sum->grid ? magic(sum->grid[j]) : 0.0;
        int64_t added = 0;
        double *part = sum->partial + t * d;
        memset(part, 0, (size_t)d * sizeof(double));
        for (int64_t i = begin; i < end; i++) {
            const void *const g = g_is_float32 ? (const void *)((const float *)G + i * d)
                                               : (const void *)((const double *)G + i * d);
            const double square = g_is_float32 ? f8_square_f32(d, g) : f8_square_f64(d, g);
            const double s = clamp_scalar(1.0, factor_limit(clip, norm_up(square, d)));
            if (s == 0.0)
                continue;
            added++;
            if (sum->grid && g_is_float32)
                add_rows_on_grid_f32(d, 1, &s, &g, M, (int64_t *)(void *)part);
            else if (sum->grid)
                add_rows_on_grid_f64(d, 1, &s, &g, M, (int64_t *)(void *)part);
            else if (g_is_float32)
                add_rows_f32(d, 1, &s, &g, part);
            else
                add_rows_f64(d, 1, &s, &g, part);
        }
        if (sum->grid)
            remove_magic(d, added, M, (int64_t *)(void *)part);
    }
    sum_partials(sum, m, d, out);
    return DPK_OK;
}
