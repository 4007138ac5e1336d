/* Rows as kernels read them, dense or sparse, in float or double, under a feature range: the
 * products x . w and x . x, and acc += s x, on a grid (gridsum.h) or in floating point.
 *
 * The kind of row is a constant where these functions are called, so that each kind has its own
 * loop without a branch; and `data` a local copy, whose fields need not be reloaded after every
 * store. */
#pragma once

#include "core/gridsum.h"
#include "rows/later.h"
#include "simd/simd.h"

/* Flags, combined by |. */
typedef int row_kind;
enum {
    ROW_FLOAT32 = 1,
    ROW_MAPPED = 2, /* scale x + shift; of sparse rows scale x */
    ROW_SPARSE = 4,
};

/* Prefetch distance from a dense row that is added, in bytes (1 to 16 KiB were tried); at least two
 * rows. */
#define PREFETCH_DISTANCE 8192

/* The stored entries of one row: n values of features 0 .. n - 1, or of features at[0 .. n - 1]. */
typedef struct {
    const void *x;
    const int32_t *at;
    intptr_t n;
    uintptr_t ahead; /* address to prefetch; of a row of a minibatch, its own */
} row;

static inline row_kind kind_of(const dpk_data *data) {
    return (data->x_is_float32 ? ROW_FLOAT32 : 0) | (data->scale ? ROW_MAPPED : 0) |
           (data->indptr ? ROW_SPARSE : 0);
}

DPK_INLINE const void *element(row_kind kind, const void *x, int64_t i) {
    return kind & ROW_FLOAT32 ? (const void *)((const float *)x + i)
                              : (const void *)((const double *)x + i);
}

DPK_INLINE intptr_t entry_size(row_kind kind) { return kind & ROW_FLOAT32 ? 4 : 8; }

/* A line of later rows beside products; of floats for the L2 cache, as single.h asks far ahead. */
DPK_INLINE void prefetch_line(row_kind kind, const char *line) {
    if (kind & ROW_FLOAT32)
        __builtin_prefetch(line, 0, 2);
    else
        __builtin_prefetch(line);
}

DPK_INLINE row row_at(row_kind kind, const dpk_data *data, int64_t i) {
    if (kind & ROW_SPARSE) {
        const int32_t *const p32 = data->indptr;
        const int64_t *const p64 = data->indptr;
        const int64_t first = data->indptr_is_int32 ? p32[i] : p64[i];
        const int64_t end = data->indptr_is_int32 ? p32[i + 1] : p64[i + 1];
        return (row){element(kind, data->X, first), data->indices + first, (intptr_t)(end - first),
                     0};
    }
    const void *const x = element(kind, data->X, i * data->p);
    const intptr_t two = 2 * data->p * entry_size(kind);
    const intptr_t ahead = data->rows ? 0 : two < PREFETCH_DISTANCE ? PREFETCH_DISTANCE : two;
    return (row){x, NULL, data->p, (uintptr_t)x + (uintptr_t)ahead};
}

/* Entry t of a sparse row, or the 1 of the intercept for t = n; column: where it belongs. */
DPK_INLINE double sparse_entry(row_kind kind, const dpk_data *data, const row *r, intptr_t t,
                               intptr_t *column) {
    *column = t < r->n ? r->at[t] : data->p;
    if (t == r->n)
        return 1.0;
    const double x = kind & ROW_FLOAT32 ? ((const float *)r->x)[t] : ((const double *)r->x)[t];
    return kind & ROW_MAPPED ? x * data->scale[*column] : x;
}

/* Eight entries of a row from k on, or its last `left` < 8 and zeros. Here and below the compiler
 * knows which: `left` is 8 or, k being a multiple of 8, what is left of n, n & 7. */
DPK_INLINE f8 entries(row_kind kind, const dpk_data *data, const row *r, intptr_t k,
                      intptr_t left) {
    const void *const x = element(kind, r->x, k);
    const f8 v = !(kind & ROW_FLOAT32) ? f8_load_part(x, left)
                 : left < 8            ? f8_load32_first(x, left)
                                       : f8_load32(x);
    if (!(kind & ROW_MAPPED))
        return v;
    return kind & ROW_SPARSE ? f8_mul(f8_gather_part(data->scale, r->at + k, left), v)
                             : f8_fma(f8_load_part(data->scale + k, left), v,
                                      f8_load_part(data->shift + k, left));
}

/* The last entries of [x, 1], x a dense row; the 1 only with an intercept. */
DPK_INLINE f8 last_entries(row_kind kind, const dpk_data *data, const row *x, intptr_t k) {
    const intptr_t left = data->p & 7;
    const f8 v = entries(kind, data, x, k, left);
    return data->intercept ? f8_with(v, left, 1.0) : v;
}

/* The entries of w beside the `entries` of a row. */
DPK_INLINE f8 weights(row_kind kind, const double *w, const row *r, intptr_t k, intptr_t left) {
    return kind & ROW_SPARSE ? f8_gather_part(w, r->at + k, left) : f8_load_part(w + k, left);
}

/* Eight terms of the sums of `dot` from k on, or the last `left` < 8, in one of two chains. */
DPK_INLINE void add_terms(row_kind kind, const dpk_data *data, const row *r, intptr_t k,
                          intptr_t left, const double *w, const double *v, int with_square,
                          double *copy, f8 *sum, f8 *squares) {
    const f8 x = entries(kind, data, r, k, left);
    if (w) {
        f8 wk = weights(kind, w, r, k, left);
        if (v)
            wk = f8_fma(f8_set(-1.0), weights(kind, v, r, k, left), wk);
        *sum = f8_fma(x, wk, *sum);
    }
    if (with_square)
        *squares = f8_fma(x, x, *squares);
    if (copy)
        f8_store(copy + k, x);
}

/* x . w, or x . (w - v) where v is not NULL either, and x . x where `square` is not; w, v: (p,). x
 * itself, in doubles, goes to `copy` (dpk_padded(n),) where that is not NULL. */
DPK_INLINE double dot(row_kind kind, const dpk_data *data, int64_t i, const double *w,
                      const double *v, double *square, double *copy) {
    f8 a = f8_zero(), b = f8_zero(), aa = f8_zero(), bb = f8_zero();
    const row stored = row_at(kind, data, i), *const r = &stored;
    const intptr_t n = r->n;
    const int both = square != NULL;
    intptr_t k = 0;
    for (; k + 16 <= n; k += 16) {
        add_terms(kind, data, r, k, 8, w, v, both, copy, &a, &aa);
        add_terms(kind, data, r, k + 8, 8, w, v, both, copy, &b, &bb);
    }
    if (k + 8 <= n) {
        add_terms(kind, data, r, k, 8, w, v, both, copy, &a, &aa);
        k += 8;
        if (k < n)
            add_terms(kind, data, r, k, n & 7, w, v, both, copy, &b, &bb);
    } else if (k < n) {
        add_terms(kind, data, r, k, n & 7, w, v, both, copy, &a, &aa);
    }
    if (square)
        *square = f8_sum(f8_add(aa, bb));
    return f8_sum(f8_add(a, b));
}

/* x . x, with the bits that `dot` gives. */
DPK_INLINE double square_of(row_kind kind, const dpk_data *data, int64_t i) {
    double square;
    (void)dot(kind, data, i, NULL, NULL, &square, NULL);
    return square;
}

#if WIDTH == 8
/* Eight such sums at a time, as there are registers for as many chains: out[i] = x . w of row
 * rows[i], i < 8; or, with `squares`, for i < 4 and then out[4 + i] = x . x. ahead:
 * of half as many rows. */
DPK_INLINE void dense_dots(row_kind kind, const dpk_data *data, const int64_t *rows,
                           const double *w, int squares, const later_lines *ahead, double *out) {
    const int count = squares ? 4 : 8;
    const intptr_t p = data->p, size = entry_size(kind);
    f8 a[8], b[8];
    row x[8];
    intptr_t k = 0;
    for (int i = 0; i < count; i++)
        x[i] = row_at(kind, data, rows[i]);
    for (int i = 0; i < 8; i++)
        a[i] = b[i] = f8_zero();
#define CHUNK(sum, line, at, left)                                                                 \
    do {                                                                                           \
        const f8 wk = f8_load_part(w + (at), left);                                                \
        _Pragma("GCC unroll 8") for (int i = 0; i < count; i++) {                                  \
            const f8 xk = entries(kind, data, x + i, at, left);                                    \
            sum[i] = f8_fma(xk, wk, sum[i]);                                                       \
            if (line && i < count / 2 && ahead->next[i])                                           \
                prefetch_line(kind, ahead->next[i] + ahead->stride * (at) * size);                 \
            if (squares)                                                                           \
                sum[4 + i] = f8_fma(xk, xk, sum[4 + i]);                                           \
        }                                                                                          \
    } while (0)
    /* A line is sixteen floats. */
    for (; k + 16 <= p; k += 16) {
        CHUNK(a, 1, k, 8);
        CHUNK(b, size == 8, k + 8, 8);
    }
    if (k + 8 <= p) {
        CHUNK(a, 1, k, 8);
        k += 8;
        if (k < p)
            CHUNK(b, size == 8, k, p & 7);
    } else if (k < p) {
        CHUNK(a, 1, k, p & 7);
    }
#undef CHUNK
    for (int i = 0; i < 8; i++)
        a[i] = f8_add(a[i], b[i]);
    f8_sum_each(a, out);
}
#endif

/* z[i] = x . w and, where it is not NULL, square[i] = x . x of the rows rows[i], i < n, with the
 * bits that `dot` gives. later: n / 2 dense rows that are fetched meanwhile. */
DPK_INLINE void dots(row_kind kind, const dpk_data *data, const double *w, intptr_t n,
                     const int64_t *rows, double *square, later_rows later, double *z) {
    intptr_t i = 0;
#if WIDTH == 8
    if (!(kind & ROW_SPARSE)) {
        if (square)
            for (; i + 4 <= n; i += 4) {
                double both[8];
                const later_lines lines = lines_of(&later, i / 2, 2);
                dense_dots(kind, data, rows + i, w, 1, &lines, both);
                memcpy(z + i, both, 4 * sizeof *z);
                memcpy(square + i, both + 4, 4 * sizeof *square);
            }
        else
            for (; i + 8 <= n; i += 8) {
                const later_lines lines = lines_of(&later, i / 2, 4);
                dense_dots(kind, data, rows + i, w, 0, &lines, z + i);
            }
    }
#endif
    for (; i < n; i++) {
        if (later.first && i % 2 == 0) {
            const char *const next = later_row(&later, i / 2);
            for (intptr_t k = 0; k < later.length; k += 64)
                prefetch_line(kind, next + k);
        }
        z[i] = dot(kind, data, rows[i], w, NULL, square ? square + i : NULL, NULL);
    }
}

/* The entries k .. k + 8 of the sum of `add_dense`, or the last `left` < 8 with the intercept's. */
DPK_INLINE void add_entries(row_kind kind, const dpk_data *data, int count, intptr_t k,
                            intptr_t left, const f8 *factor, const row *x, const later_lines *ahead,
                            double M, double *acc) {
    const intptr_t size = entry_size(kind);
    const f8 magic_number = f8_set(M);
    int64_t *const bits = (int64_t *)(void *)acc;
    i8 sum = i8_load(bits + k);
    f8 float_sum = f8_load(acc + k);
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) {
        const f8 xk =
            left == 8 ? entries(kind, data, x + i, k, 8) : last_entries(kind, data, x + i, k);
        if (ahead && i < count / 2)
            __builtin_prefetch(ahead->next[i] + ahead->stride * k * size);
        else if (!ahead && (left == 8 || data->rows))
            __builtin_prefetch((const void *)(x[i].ahead + (uintptr_t)(k * size)));
        if (M != 0.0)
            sum = i8_add_bits(sum, f8_fma(factor[i], xk, magic_number));
        else
            float_sum = f8_fma(factor[i], xk, float_sum);
    }
    if (M != 0.0)
        i8_store(bits + k, sum);
    else
        f8_store(acc + k, float_sum);
}

/* acc += sum_i s[i] [x, 1][i] over `count` dense rows x, at most 4 and a constant, the 1 only with
 * an intercept; acc: (dpk_padded(d),) patterns on the grid of magic number M, to which
 * each row adds the bits of M, or doubles where M is 0. ahead: of half as many rows, or NULL, and
 * what follows each row is prefetched. */
DPK_INLINE void add_dense(row_kind kind, const dpk_data *data, int count, const double *s,
                          const row *r, const later_lines *ahead, double M, double *acc) {
    const intptr_t p = data->p;
    f8 factor[4];
    row x[4];
    intptr_t k = 0;
    for (int i = 0; i < count; i++) {
        factor[i] = f8_set(s[i]);
        x[i] = r[i];
    }
    for (; k + 8 <= p; k += 8)
        add_entries(kind, data, count, k, 8, factor, x, ahead, M, acc);
    if (k < data->d)
        add_entries(kind, data, count, k, p & 7, factor, x, ahead, M, acc);
}

/* The same for one sparse row. Which entries a row has differs from row to row, so the M is taken
 * out again at once. */
DPK_INLINE void add_sparse(row_kind kind, const dpk_data *data, double s, int64_t i, double M,
                           double *acc) {
    const row r = row_at(kind, data, i);
    int64_t *const bits = (int64_t *)(void *)acc;
    const uint64_t excess = (uint64_t)bits_of(M);
    for (intptr_t t = 0; t < r.n + data->intercept; t++) {
        intptr_t k;
        const double x = sparse_entry(kind, data, &r, t, &k);
        if (M != 0.0)
            bits[k] = (int64_t)((uint64_t)bits[k] + (uint64_t)bits_of(DPK_FMA(s, x, M)) - excess);
        else
            acc[k] = DPK_FMA(s, x, acc[k]);
    }
}
