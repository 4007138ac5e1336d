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
        double *row = sum->scratch + thread_number() * dpk_clip_scratch(d);
        double *part = sum->partial + t * d;
        memset(part, 0, (size_t)d * sizeof(double));
        for (int64_t i = begin; i < end; i++) {
            const double *g = (const double *)G + i * d;
            if (g_is_float32) {
                const float *g32 = (const float *)G + i * d;
                for (intptr_t k = 0; k < d; k++)
                    row[k] = g32[k];
                g = row;
            }
            const double s = clamp_scalar(1.0, factor_limit(clip, norm_up(f8_square(d, g), d)));
            if (s == 0.0)
                continue;
            added++;
            if (sum->grid)
                add_on_grid(d, s, g, M, (int64_t *)(void *)part);
            else
                add_float(d, s, g, part);
        }
        if (sum->grid)
            remove_magic(d, added, M, (int64_t *)(void *)part);
    }
    sum_partials(sum, m, d, out);
    return DPK_OK;
}
