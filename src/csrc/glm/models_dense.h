/* A block of dense rows at several models. Whatever they are stored as, rows are packed as doubles,
 * [x, 1] filled up with zeros, before or while the first two models are multiplied. Tiles of rows
 * and models share their loads. */
#pragma once

#include "glm/models_factors.h"
#include "glm/models_sums.h"

/* What load_rows (load.h) loads of row r, but for its norm where that is not stored. */
DPK_INLINE void load_label(const dpk_data *data, int64_t first, intptr_t r, block *b) {
    const int64_t at = data->rows ? data->rows[first + r] : first + r;
    b->row[r] = at;
    b->y[r] = data->y[at];
    b->norm[r] = data->norm ? data->norm[at] : 0.0;
}

#if WIDTH == 8
/* chain += eight columns of four rows times those of two models. */
DPK_INLINE void add_columns(const f8 a[4], const double *w, intptr_t width, f8 chain[8]) {
    const f8 first = f8_load(w), second = f8_load(w + width);
    EACH(r, 4) {
        chain[2 * r] = f8_fma(a[r], first, chain[2 * r]);
        chain[2 * r + 1] = f8_fma(a[r], second, chain[2 * r + 1]);
    }
}

DPK_INLINE void add_packed(const double *x, const double *w, intptr_t width, f8 chain[8]) {
    f8 a[4];
    EACH(r, 4) a[r] = f8_keep(f8_load(x + r * width));
    add_columns(a, w, width, chain);
}

/* z: (4, wide) the sums of both chains, in the order of f8_sum. */
DPK_INLINE void store_pair(const f8 sum[8], const f8 other[8], intptr_t wide, double *z) {
    double all[8];
    f8 both[8];
    EACH(t, 8) both[t] = f8_add(sum[t], other[t]);
    f8_sum_each(both, all);
    EACH(r, 4) memcpy(z + r * wide, all + 2 * r, 2 * sizeof *z);
}

/* Products of `used` columns of four rows with the models from the third on, two at a time, in the
 * lanes and chains of `dot` (dots.h). */
static void multiply_four(intptr_t used, intptr_t width, intptr_t wide, intptr_t count,
                          const double *x, const double *models, prefetch_plan *next, double *z) {
    for (intptr_t i = 2; i < count; i += 2) {
        const double *const w = models + i * width;
        f8 sum[8], other[8];
        EACH(t, 8) sum[t] = other[t] = f8_zero();
        intptr_t k = 0;
        prefetch_share(next);
        for (; k + 16 <= used; k += 16) {
            add_packed(x + k, w + k, width, sum);
            add_packed(x + k + 8, w + k + 8, width, other);
        }
        if (k < used)
            add_packed(x + k, w + k, width, sum);
        store_pair(sum, other, wide, z + i);
    }
}

/* Eight columns of four rows from k on, or the last `left` < 8 and what follows them: packed, added
 * to a chain of products and, with `squared`, to one of squares. */
DPK_INLINE void pack_columns(row_kind kind, const dpk_data *data, const row x[4], intptr_t k,
                             intptr_t left, const double *w, intptr_t width, int squared,
                             double *to, f8 chain[8], f8 squares[4]) {
    f8 v[4];
    EACH(r, 4) {
        v[r] = entries(kind, data, x + r, k, left);
        f8_store(to + r * width + k, left < 8 ? last_entries(kind, data, x + r, k) : v[r]);
        if (squared)
            squares[r] = f8_fma(v[r], v[r], squares[r]);
    }
    add_columns(v, w + k, width, chain);
}

/* Products of four rows with two models while the rows are read, in whatever form they are stored,
 * and packed: reading them takes longer than either. square: NULL, or x . x with the bits of
 * `dot`. */
DPK_INLINE void pack_four(row_kind kind, const dpk_data *data, const int64_t *at, const double *w,
                          intptr_t width, intptr_t wide, prefetch_plan *next, double *to, double *z,
                          double *square) {
    const intptr_t p = data->p;
    const int squared = square != NULL;
    row x[4];
    f8 sum[8], other[8], squares[8];
    intptr_t k = 0;
    EACH(r, 4) x[r] = row_at(kind, data, at[r]);
    EACH(t, 8) sum[t] = other[t] = squares[t] = f8_zero();
    for (; k + 16 <= p; k += 16) {
        prefetch_share(next);
        pack_columns(kind, data, x, k, 8, w, width, squared, to, sum, squares);
        pack_columns(kind, data, x, k + 8, 8, w, width, squared, to, other, squares + 4);
    }
    if (k + 8 <= p) {
        pack_columns(kind, data, x, k, 8, w, width, squared, to, sum, squares);
        k += 8;
        if (k < p)
            pack_columns(kind, data, x, k, p & 7, w, width, squared, to, other, squares + 4);
    } else if (k < p)
        pack_columns(kind, data, x, k, p & 7, w, width, squared, to, sum, squares);
    if (p % 8 == 0 && p < data->d) /* the 1 of the intercept begins a vector */
        EACH(r, 4) f8_store(to + r * width + p, last_entries(kind, data, x + r, p));
    store_pair(sum, other, wide, z);
    if (squared) {
        double all[8];
        EACH(r, 4) squares[r] = f8_add(squares[r], squares[4 + r]);
        f8_sum_each(squares, all);
        memcpy(square, all, 4 * sizeof *square);
    }
}

/* Rows of a block as doubles, what load_rows loads, and the rows' products with the models. A row
 * whose norm overflows has no gradient, and 0 times infinity would be NaN. */
DPK_INLINE void multiply_rows(row_kind kind, const dpk_data *data, int64_t first, intptr_t n,
                              block *b, prefetch_plan *next, const dpk_gradients_memory *own) {
    const intptr_t width = own->width, wide = own->wide, used = dpk_padded(data->p);
    for (intptr_t r = 0; r < n; r += 4) {
        double *const x = own->x + r * width, *const z = own->z + r * wide;
        const intptr_t left = n - r < 4 ? n - r : 4;
        int64_t at[4];
        double square[4];
        for (intptr_t i = 0; i < 4; i++) {
            if (i < left)
                load_label(data, first, r + i, b);
            at[i] = b->row[i < left ? r + i : r];
        }
        if (data->norm)
            pack_four(kind, data, at, own->w, width, wide, next, x, z, NULL);
        else
            pack_four(kind, data, at, own->w, width, wide, next, x, z, square);
        for (intptr_t i = 0; i < left && !data->norm; i++)
            b->norm[r + i] = norm_up(square[i] + intercept_of(data), data->d);
        for (intptr_t i = 0; i < left; i++)
            if (!(b->norm[r + i] <= DBL_MAX))
                memset(x + i * width, 0, (size_t)dpk_padded(data->d) * sizeof *x);
    }
    for (intptr_t r = 0; r < n; r += 4)
        multiply_four(used, width, wide, own->count, own->x + r * width, own->w, next,
                      own->z + r * wide);
    find_ratios(data, n, b);
}

/* So often is a share of the next rows prefetched while n rows are multiplied. */
static inline intptr_t shares_of_products(const dpk_data *data, intptr_t n, intptr_t count) {
    return (n + 3) / 4 * (data->p / 16 + (count - 1) / 2);
}
#else
/* Eight columns of a row from k on, or the last `left` < 8 of them, packed and squared. */
DPK_INLINE void pack_columns(row_kind kind, const dpk_data *data, const row *x, intptr_t k,
                             intptr_t left, int squared, double *to, f8 *square) {
    const f8 v = entries(kind, data, x, k, left);
    if (left == 8)
        f8_store(to + k, v);
    if (squared)
        *square = f8_fma(v, v, *square);
}

/* One row as doubles; returns x . x, with the bits that `dot` (dots.h) gives, where `squared`. */
DPK_INLINE double pack_row(row_kind kind, const dpk_data *data, int64_t at, int squared,
                           double *to) {
    const row x = row_at(kind, data, at);
    const intptr_t p = data->p;
    f8 square = f8_zero(), other = f8_zero();
    intptr_t k = 0;
    for (; k + 16 <= p; k += 16) {
        pack_columns(kind, data, &x, k, 8, squared, to, &square);
        pack_columns(kind, data, &x, k + 8, 8, squared, to, &other);
    }
    if (k + 8 <= p) {
        pack_columns(kind, data, &x, k, 8, squared, to, &square);
        k += 8;
        if (k < p)
            pack_columns(kind, data, &x, k, p & 7, squared, to, &other);
    } else if (k < p)
        pack_columns(kind, data, &x, k, p & 7, squared, to, &square);
    if (k < data->d)
        f8_store(to + k, last_entries(kind, data, &x, k));
    return squared ? f8_sum(f8_add(square, other)) : 0.0;
}

/* Products of `used` columns of four rows with all models, two at a time, in the lanes and chains
 * of `dot`, a register of a chain at a time: eight sums and what they are made of are all in
 * registers. */
static void multiply_four(intptr_t used, intptr_t width, intptr_t wide, intptr_t count,
                          const double *x, const double *models, prefetch_plan *next, double *z) {
    for (intptr_t i = 0; i < count; i += 2) {
        const double *const w = models + i * width;
        f8 both[8];
        double all[8];
        prefetch_share(next);
        EACH_PART for (intptr_t chain = 0; chain < 2; chain++) {
            vf sum[8];
            EACH(t, 8) sum[t] = splat(0.0);
            for (intptr_t k = 8 * chain + r * LANES; k < used; k += 16) {
                const vf first = vf_keep(VEC_LOAD_ANY(w + k));
                const vf second = vf_keep(VEC_LOAD_ANY(w + width + k));
                EACH(j, 4) {
                    const vf a = vf_keep(VEC_LOAD_ANY(x + j * width + k));
                    sum[2 * j] = fma_v(a, first, sum[2 * j]);
                    sum[2 * j + 1] = fma_v(a, second, sum[2 * j + 1]);
                }
            }
            EACH(t, 8) both[t].part[r] = chain ? both[t].part[r] + sum[t] : sum[t];
        }
        f8_sum_each(both, all);
        EACH(j, 4) memcpy(z + j * wide + i, all + 2 * j, 2 * sizeof *z);
    }
}

/* Rows of a block as doubles, what load_rows loads, and then the rows' products with the models; a
 * row whose norm overflows has no gradient. */
DPK_INLINE void multiply_rows(row_kind kind, const dpk_data *data, int64_t first, intptr_t n,
                              block *b, prefetch_plan *next, const dpk_gradients_memory *own) {
    const intptr_t width = own->width, wide = own->wide, used = dpk_padded(data->d);
    for (intptr_t r = 0; r < (n + 3) / 4 * 4; r++) {
        double *const to = own->x + r * width;
        prefetch_share(next);
        if (r < n) {
            load_label(data, first, r, b);
            const double square = pack_row(kind, data, b->row[r], !data->norm, to);
            if (!data->norm)
                b->norm[r] = norm_up(square + intercept_of(data), data->d);
        }
        if (r >= n || !(b->norm[r] <= DBL_MAX))
            memset(to, 0, (size_t)used * sizeof *to);
    }
    for (intptr_t r = 0; r < n; r += 4)
        multiply_four(dpk_padded(data->p), width, wide, own->count, own->x + r * width, own->w,
                      next, own->z + r * wide);
    find_ratios(data, n, b);
}

static inline intptr_t shares_of_products(const dpk_data *data, intptr_t n, intptr_t count) {
    const intptr_t fours = (n + 3) / 4;
    (void)data;
    return fours * (4 + (count + 1) / 2);
}
#endif

/* So often is a share of the next rows prefetched in a block of n rows. */
static inline intptr_t prefetched_shares(const dpk_data *data, intptr_t n,
                                         const dpk_gradients_memory *own) {
    const intptr_t most = 8 * (own->digits ? CHAINED : VECTORS);
    return shares_of_products(data, n, own->count) +
           (data->d + most - 1) / most * ((own->count + TILE - 1) / TILE);
}

DPK_INLINE void dense_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                            double weight, int64_t first, intptr_t n, prefetch_plan *next,
                            const dpk_gradients_memory *own) {
    const intptr_t width = own->width, wide = own->wide;
    block b;
    multiply_rows(kind, data, first, n, &b, next, own);
    find_model_factors(data, loss, weight, n, &b, own);
    const int chained = own->digits && have_digits(n, own);
    for (intptr_t k = 0, vectors; k < data->d; k += 8 * vectors) {
        vectors = tile_vectors(data->d - k, chained ? CHAINED : VECTORS);
        for (intptr_t i = 0; i < own->count; i += TILE) {
            double *const acc = own->acc + i * width + k;
            prefetch_share(next);
            if (chained)
                chain_tile_variants[vectors - 1](n, width, wide, own->x + k, own->s + i, own->M + i,
                                                 acc);
            else
                add_tile_variants[vectors - 1](n, width, wide, own->x + k, own->s + i, own->M + i,
                                               acc);
        }
    }
}
