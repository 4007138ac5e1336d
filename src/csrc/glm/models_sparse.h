/* A block of sparse rows at several models: for every entry vectors of eight models, since all
 * models have their number of a column together in memory. */
#pragma once

#include "glm/models_factors.h"

/* Number `l` of the lanes of `dot` (rows.h): the terms t = l (mod 16) of the products of a sparse
 * row with 8 `groups` models. */
DPK_INLINE void sparse_lane(row_kind kind, const dpk_data *data, const row *x, intptr_t l,
                            int groups, const double *w, intptr_t wide, f8 *lane) {
    EACH(g, groups) lane[g] = f8_zero();
    for (intptr_t t = l; t < x->n; t += 16) {
        intptr_t column;
        const f8 entry = f8_set(sparse_entry(kind, data, x, t, &column));
        EACH(g, groups) lane[g] = f8_fma(entry, f8_load(w + column * wide + 8 * g), lane[g]);
    }
}

/* Products of a sparse row with 8 `groups` models, their lanes added in the order of f8_sum. */
DPK_INLINE void sparse_dots(row_kind kind, const dpk_data *data, const row *x, int groups,
                            const double *w, intptr_t wide, double *z) {
    f8 sum[4][4];
    EACH(l, 4) {
        f8 lane[4][4];
        EACH(k, 4) sparse_lane(kind, data, x, l + 4 * k, groups, w, wide, lane[k]);
        EACH(g, groups)
        sum[l][g] = f8_add(f8_add(lane[0][g], lane[2][g]), f8_add(lane[1][g], lane[3][g]));
    }
    EACH(g, groups)
    f8_store(z + 8 * g, f8_add(f8_add(sum[0][g], sum[2][g]), f8_add(sum[1][g], sum[3][g])));
}

/* acc += round(s x) over the first `entries` of row r, for 8 `groups` models from number i on; the
 * first models count the entries of columns. */
DPK_INLINE void add_sparse_row(row_kind kind, const dpk_data *data, const row *x, intptr_t entries,
                               int groups, intptr_t i, intptr_t r,
                               const dpk_gradients_memory *own) {
    /* Copies, which need not be reloaded after every store. */
    const intptr_t wide = own->wide;
    double *const acc = own->acc + i;
    int64_t *const added = own->added;
    f8 factor[4], M[4];
    EACH(g, groups) factor[g] = f8_load(own->s + r * wide + i + 8 * g);
    EACH(g, groups) M[g] = f8_load(own->M + i + 8 * g);
    for (intptr_t t = 0; t < entries; t++) {
        intptr_t column;
        const f8 entry = f8_set(sparse_entry(kind, data, x, t, &column));
        int64_t *const bits = (int64_t *)(void *)(acc + column * wide);
        EACH(g, groups)
        i8_store(bits + 8 * g, i8_add_bits(i8_load(bits + 8 * g), f8_fma(factor[g], entry, M[g])));
        if (i == 0)
            added[column]++;
    }
}

DPK_INLINE void sparse_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                             double weight, intptr_t n, block *b, const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide;
    for (intptr_t r = 0; r < n; r++) {
        const row x = row_at(kind, data, b->row[r]);
        double *const z = own->z + r * wide;
        intptr_t i = 0;
        for (; i + 32 <= wide; i += 32)
            sparse_dots(kind, data, &x, 4, own->w + i, wide, z + i);
        for (; i + 16 <= wide; i += 16)
            sparse_dots(kind, data, &x, 2, own->w + i, wide, z + i);
        if (i < wide)
            sparse_dots(kind, data, &x, 1, own->w + i, wide, z + i);
    }
    find_factors(loss, weight, n, b, own);
    for (intptr_t r = 0; r < n; r++) {
        const row x = row_at(kind, data, b->row[r]);
        const intptr_t entries = b->norm[r] <= DBL_MAX ? x.n + data->intercept : 0;
        intptr_t i = 0;
        for (; i + 32 <= wide; i += 32)
            add_sparse_row(kind, data, &x, entries, 4, i, r, own);
        for (; i + 16 <= wide; i += 16)
            add_sparse_row(kind, data, &x, entries, 2, i, r, own);
        if (i < wide)
            add_sparse_row(kind, data, &x, entries, 1, i, r, own);
    }
}
