/* Factors of a block of rows at several models, from the rows' products with them. */
#pragma once

#include "core/gridsum.h"
#include "glm/gradients.h"
#include "models/evaluate.h"
#include "rows/load.h"

/* From products of n rows with the models to margins z, and the labels y of each: (n, wide). */
static inline void find_margins(intptr_t n, intptr_t wide, const block *b, const double *bias,
                                double *y, double *z) {
    for (intptr_t r = 0; r < n; r++)
        for (intptr_t i = 0; i < wide; i += 8) {
            double *const at = z + r * wide + i;
            f8_store(at, f8_mul(f8_set(b->ratio[r]), f8_add(f8_load(at), f8_load(bias + i))));
            f8_store(y + r * wide + i, f8_set(b->y[r]));
        }
}

/* From products with the models in own->z to factors in own->s. */
static inline void find_factors(const dpk_loss *loss, double weight, intptr_t n, const block *b,
                                const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide;
    find_margins(n, wide, b, own->bias, own->y, own->z);
    evaluate(loss, n * wide, own->y, own->z, NULL, own->s, NULL);
    for (intptr_t r = 0; r < n; r++)
        for (intptr_t i = 0; i < wide; i += 8) {
            /* As factor_limit (gridsum.h), of finite bounds. */
            const f8 lim = b->norm[r] <= DBL_MAX
                               ? f8_div(f8_load(own->clip + i), f8_set(b->norm[r]))
                               : f8_zero();
            double *const s = own->s + r * wide + i;
            const f8 slope = f8_mul(f8_set(b->ratio[r]), f8_load(s));
            f8_store(s, f8_mul(f8_set(weight), f8_clamp(slope, lim)));
        }
}
