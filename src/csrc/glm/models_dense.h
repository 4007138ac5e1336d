/* A block of dense rows at several models. Whatever they are stored as, rows are packed as doubles
 * first: [x, 1], filled up with zeros. Tiles of rows and models then share their loads. */
#pragma once

#include "core/variants.h"
#include "glm/models_factors.h"

/* Rows and models of a tile of margins, models and vectors of a tile of sums. */
enum { TILE = WIDTH == 8 ? 4 : 2, VECTORS = WIDTH == 8 ? 2 : 1 };

/* One row as doubles; returns x . x, with the bits that `dot` (rows.h) gives, where `squared`. */
DPK_INLINE double pack_row(row_kind kind, const dpk_data *data, int64_t at, int squared,
                           double *to) {
    const row x = row_at(kind, data, at);
    const intptr_t p = data->p;
    f8 square[2] = {f8_zero(), f8_zero()};
    intptr_t k = 0;
    for (; k + 8 <= p; k += 8) {
        const f8 v = entries(kind, data, &x, k, 8);
        f8_store(to + k, v);
        if (squared)
            square[k / 8 % 2] = f8_fma(v, v, square[k / 8 % 2]);
    }
    if (k < p && squared) {
        const f8 v = entries(kind, data, &x, k, p & 7);
        square[k / 8 % 2] = f8_fma(v, v, square[k / 8 % 2]);
    }
    if (k < data->d)
        f8_store(to + k, last_entries(kind, data, &x, k));
    return squared ? f8_sum(f8_add(square[0], square[1])) : 0.0;
}

/* Rows of a block as doubles, and what load_rows (load.h) loads. A row whose norm overflows has no
 * gradient, and 0 times infinity would be NaN. */
DPK_INLINE void pack_rows(row_kind kind, const dpk_data *data, int64_t first, intptr_t n, block *b,
                          prefetch_plan *next, const dpk_gradients_memory *own) {
    const intptr_t width = own->width, used = dpk_padded(data->d);
    for (intptr_t r = 0; r < (n + TILE - 1) / TILE * TILE; r++) {
        double *const to = own->x + r * width;
        prefetch_share(next);
        if (r < n) {
            const int64_t at = data->rows ? data->rows[first + r] : first + r;
            b->row[r] = at;
            b->y[r] = data->y[at];
            if (data->norm) {
                b->norm[r] = data->norm[at];
                (void)pack_row(kind, data, at, 0, to);
            } else
                b->norm[r] = norm_up(pack_row(kind, data, at, 1, to) + intercept_of(data), data->d);
        }
        if (r >= n || !(b->norm[r] <= DBL_MAX))
            memset(to, 0, (size_t)used * sizeof *to);
    }
    find_ratios(data, n, b);
}

/* Products of `used` columns of TILE rows with TILE models, in the lanes and chains of `dot`
 * (rows.h). */
static void margins_tile(intptr_t used, intptr_t width, intptr_t wide, const double *x,
                         const double *w, double *z) {
    f8 sum[TILE * TILE];
    for (intptr_t chain = 0; chain < 2; chain++) {
        f8 part[TILE * TILE];
        EACH(t, TILE * TILE) part[t] = f8_zero();
        for (intptr_t k = 8 * chain; k < used; k += 16) {
            f8 a[TILE];
            EACH(r, TILE) a[r] = f8_load(x + r * width + k);
            EACH(i, TILE) {
                const f8 wk = f8_load(w + i * width + k);
                EACH(r, TILE) part[r * TILE + i] = f8_fma(a[r], wk, part[r * TILE + i]);
            }
        }
        EACH(t, TILE * TILE) sum[t] = chain ? f8_add(sum[t], part[t]) : part[t];
    }
#if WIDTH == 8
    double all[16];
    f8_sum_each(sum, all);
    f8_sum_each(sum + 8, all + 8);
    EACH(r, TILE) memcpy(z + r * wide, all + r * TILE, TILE * sizeof *z);
#else
    EACH(r, TILE) EACH(i, TILE) z[r * wide + i] = f8_sum(sum[r * TILE + i]);
#endif
}

/* acc += round(s x) over n rows, for TILE models and `last` + 1 vectors of columns. */
DPK_INLINE void add_tile(int last, intptr_t n, intptr_t width, intptr_t wide, const double *x,
                         const double *s, const double *M, double *acc) {
    const int vectors = last + 1;
    i8 sum[TILE * VECTORS];
    f8 magic_number[TILE];
    EACH(i, TILE) {
        magic_number[i] = f8_set(M[i]);
        EACH(v, vectors)
        sum[i * VECTORS + v] = i8_load((const int64_t *)(const void *)(acc + i * width + 8 * v));
    }
    for (intptr_t r = 0; r < n; r++, x += width, s += wide) {
        f8 a[VECTORS];
        EACH(v, vectors) a[v] = f8_load(x + 8 * v);
        EACH(i, TILE) {
            const f8 factor = f8_set(s[i]);
            EACH(v, vectors)
            sum[i * VECTORS + v] =
                i8_add_bits(sum[i * VECTORS + v], f8_fma(factor, a[v], magic_number[i]));
        }
    }
    EACH(i, TILE)
    EACH(v, vectors)
    i8_store((int64_t *)(void *)(acc + i * width + 8 * v), sum[i * VECTORS + v]);
}
DEFINE_VARIANTS(2, add_tile,
                (intptr_t n, intptr_t width, intptr_t wide, const double *x, const double *s,
                 const double *M, double *acc),
                n, width, wide, x, s, M, acc)

/* So often is a share of the next rows prefetched in a block of n rows. */
static inline intptr_t prefetched_shares(const dpk_data *data, intptr_t n, intptr_t count) {
    const intptr_t rows = (n + TILE - 1) / TILE, models = (count + TILE - 1) / TILE;
    return rows * TILE + (rows + (data->d + 8 * VECTORS - 1) / (8 * VECTORS)) * models;
}

DPK_INLINE void dense_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                            double weight, int64_t first, intptr_t n, prefetch_plan *next,
                            const dpk_gradients_memory *own) {
    const intptr_t width = own->width, wide = own->wide;
    block b;
    pack_rows(kind, data, first, n, &b, next, own);
    for (intptr_t r = 0; r < n; r += TILE) {
        for (intptr_t i = 0; i < own->count; i += TILE) {
            prefetch_share(next);
            margins_tile(dpk_padded(data->p), width, wide, own->x + r * width, own->w + i * width,
                         own->z + r * wide + i);
        }
    }
    find_factors(loss, weight, n, &b, own);
    for (intptr_t k = 0; k < data->d; k += 8 * VECTORS) {
        const int last = VECTORS > 1 && k + 8 < data->d;
        for (intptr_t i = 0; i < own->count; i += TILE) {
            prefetch_share(next);
            add_tile_variants[last](n, width, wide, own->x + k, own->s + i, own->M + i,
                                    own->acc + i * width + k);
        }
    }
}
