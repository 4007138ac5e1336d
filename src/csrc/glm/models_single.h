/* A block of dense rows of floats at several models in single precision, as models_dense.h does in
 * doubles: own->w and own->x hold floats, own->acc sums in steps of the grid. */
#pragma once

#include "core/variants.h"
#include "glm/models_dense.h"
#include "rows/single.h"

/* Floats of a row or a model, whose place holds as many doubles as dpk_row_stride(d). */
static inline intptr_t single_width(intptr_t d) { return (d + 15) / 16 * 16 | 16; }

/* Rows [x, 1] of a block, filled up with zeros; a row whose norm overflows has no gradient. */
static void single_pack(const dpk_data *data, intptr_t n, const block *b, float *to) {
    const intptr_t p = data->p, width = single_width(data->d);
    memset(to, 0, (size_t)((n + TILE - 1) / TILE * TILE * width) * sizeof *to);
    for (intptr_t r = 0; r < n; r++, to += width)
        if (b->norm[r] <= DBL_MAX) {
            memcpy(to, (const float *)data->X + b->row[r] * p, (size_t)p * sizeof *to);
            if (data->intercept)
                to[p] = 1.0F;
        }
}

/* Products of TILE rows with TILE models, in the lanes and chains of single_dots. */
static void single_margins(intptr_t width, intptr_t wide, const float *x, const float *w,
                           double *z) {
    f16 sum[TILE * TILE];
    double all[TILE * TILE < 8 ? 8 : TILE * TILE];
    f8 halves[TILE * TILE < 8 ? 8 : TILE * TILE];
    for (intptr_t chain = 0; chain < 2; chain++) {
        f16 part[TILE * TILE];
        EACH(t, TILE * TILE) part[t] = f16_zero();
        for (intptr_t k = 16 * chain; k < width; k += 32) {
            f16 a[TILE];
            EACH(r, TILE) a[r] = f16_keep(f16_load(x + r * width + k));
            EACH(i, TILE) {
                const f16 wk = f16_keep(f16_load(w + i * width + k));
                EACH(r, TILE) part[r * TILE + i] = f16_fma(a[r], wk, part[r * TILE + i]);
            }
        }
        EACH(t, TILE * TILE) sum[t] = chain ? f16_add(sum[t], part[t]) : part[t];
    }
    for (int t = TILE * TILE; t < 8; t++)
        halves[t] = f8_zero();
    EACH(t, TILE * TILE) halves[t] = f16_halves(sum[t]);
    for (int t = 0; t < TILE * TILE; t += 8)
        f8_sum_each(halves + t, all + t);
    EACH(r, TILE) memcpy(z + r * wide, all + r * TILE, TILE * sizeof *z);
}

/* acc += the integers nearest to t x over n rows, for TILE models and `last` + 1 vectors of
 * columns, of which the last has `left` columns. */
DPK_INLINE void single_tile(int last, intptr_t n, intptr_t left, intptr_t width, intptr_t stride,
                            intptr_t wide, const float *x, const float *t, int64_t *acc) {
    const int vectors = last + 1;
    i16 sum[TILE * VECTORS];
    EACH(i, TILE * VECTORS) sum[i] = i16_zero();
    for (intptr_t r = 0; r < n; r++, x += width, t += wide) {
        f16 a[VECTORS];
        EACH(v, vectors) a[v] = f16_keep(f16_load(x + 16 * v));
        EACH(i, TILE) {
            const f16 factor = f16_set(t[i]);
            EACH(v, vectors)
            sum[i * VECTORS + v] = i16_add_product(sum[i * VECTORS + v], factor, a[v]);
        }
    }
    EACH(i, TILE)
    EACH(v, vectors)
    i16_add_to(acc + i * stride + 16 * v, sum[i * VECTORS + v], v < last ? 16 : left);
}
DEFINE_VARIANTS(2, single_tile,
                (intptr_t n, intptr_t left, intptr_t width, intptr_t stride, intptr_t wide,
                 const float *x, const float *t, int64_t *acc),
                n, left, width, stride, wide, x, t, acc)

static void single_block_of_models(const dpk_data *data, const dpk_loss *loss, double weight,
                                   intptr_t n, block *b, prefetch_plan *next,
                                   const dpk_gradients_memory *own) {
    const intptr_t d = data->d, width = single_width(d), wide = own->wide;
    float *const x = (float *)(void *)own->x, *const t = (float *)(void *)own->y;
    const float *const w = (const float *)(const void *)own->w;
    single_pack(data, n, b, x);
    for (intptr_t r = 0; r < n; r += TILE)
        for (intptr_t i = 0; i < own->count; i += TILE) {
            prefetch_share(next);
            single_margins(width, wide, x + r * width, w + i * width, own->z + r * wide + i);
        }
    find_model_factors(data, loss, weight, n, b, own);
    for (intptr_t r = 0; r < n; r++)
        for (intptr_t i = 0; i < wide; i++)
            t[r * wide + i] = single_factor(own->s[r * wide + i], own->M[i]);
    for (intptr_t k = 0; k < d; k += 16 * VECTORS) {
        const int last = VECTORS > 1 && k + 16 < d;
        const intptr_t left = d - k - 16 * last < 16 ? d - k - 16 * last : 16;
        for (intptr_t i = 0; i < own->count; i += TILE)
            single_tile_variants[last](n, left, width, own->width, wide, x + k, t + i,
                                       (int64_t *)(void *)(own->acc + i * own->width + k));
    }
}
