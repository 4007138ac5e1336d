/* Blocks of rows at several models. Dense rows are packed as doubles first, whatever they are
 * stored as: [x, 1], filled up with zeros; tiles of rows and models then share their loads. Sparse
 * rows have vectors of eight models for every entry, since a column of the models is together in
 * memory. `block` of models: `wide` of them, those that were given and others that fill a tile. */
#include "glm/gradients.h"
#include "core/gridsum.h"
#include "core/tasks.h"
#include "core/variants.h"
#include "models/evaluate.h"
#include "rows/load.h"

/* Rows and models of a tile of margins, models and vectors of a tile of sums. */
enum { TILE = WIDTH == 8 ? 4 : 2, VECTORS = WIDTH == 8 ? 2 : 1 };

/* The models of silo j, and zeros where sums will be. */
static void load_models(const dpk_data *data, const dpk_models *models, intptr_t j,
                        const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide, width = own->width, p = data->p;
    for (intptr_t i = 0; i < wide; i++) {
        /* Those that fill a tile are copies of the first. */
        const intptr_t from = i < models->count ? i : 0;
        const double *const w = models->w + from * models->stride + j * models->w_stride;
        const double grid = models->grid[from * data->m + j];
        own->bias[i] = data->intercept ? w[p] : 0.0;
        own->M[i] = magic(grid);
        own->clip[i] = inner_bound(models->clip[from], grid, data->d);
        if (data->indptr)
            for (intptr_t k = 0; k < data->d; k++) {
                own->w[k * wide + i] = w[k];
                own->acc[k * wide + i] = 0.0;
                own->added[k] = 0;
            }
        else {
            memset(own->w + i * width, 0, (size_t)width * sizeof *own->w);
            memcpy(own->w + i * width, w, (size_t)p * sizeof *w);
            memset(own->acc + i * width, 0, (size_t)width * sizeof *own->acc);
        }
    }
}

/* From products with the models in own->z to factors in own->s. */
static void find_factors(const dpk_loss *loss, double weight, intptr_t n, const block *b,
                         const dpk_gradients_memory *own) {
    const intptr_t wide = own->wide;
    for (intptr_t r = 0; r < n; r++)
        for (intptr_t i = 0; i < wide; i += 8) {
            double *const z = own->z + r * wide + i;
            f8_store(z, f8_mul(f8_set(b->ratio[r]), f8_add(f8_load(z), f8_load(own->bias + i))));
            f8_store(own->y + r * wide + i, f8_set(b->y[r]));
        }
    if (!loss->checked)
        evaluate(loss, n * wide, own->y, own->z, NULL, own->s, NULL);
    for (intptr_t i = 0; loss->checked && i < wide; i++) {
        /* What a user's function returns may depend on the records beside one, not on models. */
        double z[DPK_BLOCK], s[DPK_BLOCK];
        for (intptr_t r = 0; r < n; r++)
            z[r] = own->z[r * wide + i];
        evaluate(loss, n, b->y, z, NULL, s, NULL);
        for (intptr_t r = 0; r < n; r++)
            own->s[r * wide + i] = s[r];
    }
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

/* Rows of a block as doubles. A row whose norm overflows has no gradient, and 0 times infinity
 * would be NaN. */
DPK_INLINE void pack_rows(row_kind kind, const dpk_data *data, intptr_t n, const block *b,
                          const dpk_gradients_memory *own) {
    const intptr_t p = data->p;
    for (intptr_t r = 0; r < (n + TILE - 1) / TILE * TILE; r++) {
        double *const to = own->x + r * own->width;
        intptr_t k = 0;
        if (r < n && b->norm[r] <= DBL_MAX) {
            const row x = row_at(kind, data, b->row[r]);
            for (; k + 8 <= p; k += 8)
                f8_store(to + k, entries(kind, data, &x, k, 8));
            if (k < data->d) {
                f8_store(to + k, last_entries(kind, data, &x, k));
                k += 8;
            }
        }
        for (; k < own->width; k += 8)
            f8_store(to + k, f8_zero());
    }
}

/* Products of TILE rows with TILE models, in the lanes and chains of `dot` (rows.h). */
static void margins_tile(intptr_t width, intptr_t wide, const double *x, const double *w,
                         double *z) {
    f8 sum[TILE * TILE];
    for (intptr_t chain = 0; chain < 2; chain++) {
        f8 part[TILE * TILE];
        EACH(t, TILE * TILE) part[t] = f8_zero();
        for (intptr_t k = 8 * chain; k < width; k += 16) {
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

DPK_INLINE void dense_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                            double weight, intptr_t n, const block *b, prefetch_plan *next,
                            const dpk_gradients_memory *own) {
    const intptr_t width = own->width, wide = own->wide;
    pack_rows(kind, data, n, b, own);
    for (intptr_t r = 0; r < n; r += TILE) {
        for (intptr_t i = 0; i < own->count; i += TILE) {
            prefetch_share(next);
            margins_tile(width, wide, own->x + r * width, own->w + i * width,
                         own->z + r * wide + i);
        }
    }
    find_factors(loss, weight, n, b, own);
    for (intptr_t k = 0; k < data->d; k += 8 * VECTORS) {
        const int last = VECTORS > 1 && k + 8 < data->d;
        for (intptr_t i = 0; i < own->count; i += TILE)
            add_tile_variants[last](n, width, wide, own->x + k, own->s + i, own->M + i,
                                    own->acc + i * width + k);
    }
}

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

/* acc += round(s x) over the first `entries` of row r, for 8 `groups` models from number i on. */
DPK_INLINE void add_sparse_row(row_kind kind, const dpk_data *data, const row *x, intptr_t entries,
                               int groups, intptr_t i, intptr_t r,
                               const dpk_gradients_memory *own) {
    f8 factor[4], M[4];
    EACH(g, groups) factor[g] = f8_load(own->s + r * own->wide + i + 8 * g);
    EACH(g, groups) M[g] = f8_load(own->M + i + 8 * g);
    for (intptr_t t = 0; t < entries; t++) {
        intptr_t column;
        const f8 entry = f8_set(sparse_entry(kind, data, x, t, &column));
        int64_t *const bits = (int64_t *)(void *)(own->acc + column * own->wide + i);
        EACH(g, groups)
        i8_store(bits + 8 * g, i8_add_bits(i8_load(bits + 8 * g), f8_fma(factor[g], entry, M[g])));
    }
}

DPK_INLINE void sparse_block(row_kind kind, const dpk_data *data, const dpk_loss *loss,
                             double weight, intptr_t n, const block *b,
                             const dpk_gradients_memory *own) {
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
        intptr_t column;
        for (intptr_t t = 0; t < entries; t++) {
            (void)sparse_entry(kind, data, &x, t, &column);
            own->added[column]++;
        }
        intptr_t i = 0;
        for (; i + 32 <= wide; i += 32)
            add_sparse_row(kind, data, &x, entries, 4, i, r, own);
        for (; i + 16 <= wide; i += 16)
            add_sparse_row(kind, data, &x, entries, 2, i, r, own);
        if (i < wide)
            add_sparse_row(kind, data, &x, entries, 1, i, r, own);
    }
}

DPK_INLINE void sum_rows(row_kind kind, const dpk_data *shared, const dpk_loss *loss, double weight,
                         int64_t begin, int64_t end, const dpk_gradients_memory *own) {
    const dpk_data copy = *shared, *const data = &copy; /* see rows.h */
    block b;
    for (int64_t i = begin; i < end; i += own->rows) {
        const intptr_t n = rows_left(i, end, own->rows);
        load_rows(kind, data, i, n, &b);
        if (kind & ROW_SPARSE)
            sparse_block(kind, data, loss, weight, n, &b, own);
        else {
            prefetch_plan next =
                plan_prefetch(data, i + n, rows_left(i + n, end, own->rows),
                              (n + TILE - 1) / TILE * ((own->count + TILE - 1) / TILE));
            dense_block(kind, data, loss, weight, n, &b, &next, own);
        }
    }
}

DEFINE_FOR_KINDS(static void sum_of_kind, data, 8, sum_rows,
                 (const dpk_data *data, const dpk_loss *loss, double weight, int64_t begin,
                  int64_t end, const dpk_gradients_memory *own),
                 data, loss, weight, begin, end, own)

/* The sums of model i, in steps of its grid, to `out`, (d,). */
static void store_sums(const dpk_data *data, const dpk_gradients_memory *own, intptr_t i,
                       int64_t records, int64_t *out) {
    if (data->indptr) {
        for (intptr_t k = 0; k < data->d; k++)
            out[k] = (int64_t)((uint64_t)bits_of(own->acc[k * own->wide + i]) -
                               (uint64_t)own->added[k] * (uint64_t)bits_of(own->M[i]));
        return;
    }
    memcpy(out, own->acc + i * own->width, (size_t)data->d * sizeof *out);
    remove_magic(data->d, records, own->M[i], out);
}

dpk_status dpk_glm_gradients(const dpk_data *data, const dpk_models *models, const dpk_loss *loss,
                             const dpk_sum *sum, double *scratch, double *out) {
    const intptr_t d = data->d, stride = dpk_thread_stride(d), count = models->count;
    const intptr_t size = dpk_thread_stride(dpk_gradients_scratch(data, count));
    const int64_t n_tasks = sum->first_task[data->m];
    _Pragma(PARALLEL) for (int64_t t = 0; t < n_tasks; t++) {
        const task u = task_number(data, sum, t);
        const dpk_gradients_memory own =
            dpk_gradients_divide(data, count, scratch + thread_number() * size);
        load_models(data, models, u.j, &own);
        sum_of_kind(data, loss, sum->silo_weight ? sum->silo_weight[u.j] : 1.0, u.begin, u.end,
                    &own);
        for (intptr_t i = 0; i < count; i++)
            store_sums(data, &own, i, u.end - u.begin,
                       (int64_t *)(void *)(sum->partial + (i * n_tasks + t) * stride));
    }
    for (intptr_t i = 0; i < count; i++) {
        dpk_sum one = *sum;
        one.grid = models->grid + i * data->m;
        one.partial += i * n_tasks * stride;
        sum_partials(&one, data->m, d, out + i * data->m * d);
    }
    return DPK_OK;
}
