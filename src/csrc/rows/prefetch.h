/* Software prefetch of the rows that come after those at work: spread evenly over the work, as a
 * core has few requests open at a time and a burst of them would stall it; and line by line in the
 * order of memory, whatever rows and columns are at work (docs/performance.md). */
#pragma once

#include <stddef.h>
#include "core/dpk.h"

/* Memory that will be read soon, fetched in equal shares. */
typedef struct {
    const char *next;
    intptr_t left, share; /* bytes */
} prefetch_plan;

static inline void prefetch_share(prefetch_plan *plan) {
    const intptr_t size = plan->share < plan->left ? plan->share : plan->left;
    for (intptr_t k = 0; k < size; k += 64)
        __builtin_prefetch(plan->next + k, 0, 2);
    plan->next += size;
    plan->left -= size;
}

/* Bytes of dense rows that are prefetched at most: they must stay in the L2 cache. */
enum { PREFETCH_LIMIT = 1 << 18 };

/* The n records from the first on in equal shares: `shares` of them, and one more per 8 KiB. */
static inline prefetch_plan plan_prefetch(const dpk_data *data, int64_t first, intptr_t n,
                                          intptr_t shares) {
    const intptr_t size = data->p * (data->x_is_float32 ? 4 : 8);
    if (data->indptr || data->rows || n * size > PREFETCH_LIMIT)
        return (prefetch_plan){NULL, 0, 0};
    shares += n * size >> 13;
    return (prefetch_plan){(const char *)data->X + first * size, n * size,
                           ((n * size + shares - 1) / shares + 63) / 64 * 64};
}

/* Whether the rows of that many records are too much for a core's own cache, of 1 to 2 MiB. */
static inline int dpk_streamed(const dpk_data *data, int64_t records) {
    return records * data->p * (data->x_is_float32 ? 4 : 8) > 1 << 20;
}
