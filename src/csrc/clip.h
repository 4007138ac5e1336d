/* Sum per silo of vectors clipped to an l2 bound: sum_i min(1, C / |g_i|) g_i, exactly on a grid.
 */
#ifndef DPK_CLIP_H
#define DPK_CLIP_H

#include "dpk.h"

/* G: (n, d) rows sorted by silo, float or double; offsets: (m + 1,); out: (m, d). */
typedef dpk_status dpk_clip_and_sum_fn(intptr_t m, intptr_t d, const void *G, int g_is_float32,
                                       const int64_t *offsets, const dpk_sum *sum, double *out);

#endif
