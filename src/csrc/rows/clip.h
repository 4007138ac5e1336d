/* Sum per silo of vectors clipped to an l2 bound: sum_i min(1, C / |g_i|) g_i, exact on a grid. */
#pragma once

#include "core/dpk.h"

/* On a grid, vectors longer than this are shared by all threads, and a silo is one task. */
#define DPK_WIDE 40960

/* out: (m, p). The vectors are the rows of data->X, dense and without a feature range. */
dpk_status dpk_clip_and_sum(const dpk_data *data, const dpk_sum *sum, double *out);
