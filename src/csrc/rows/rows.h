/* Rows as kernels read them, dense or sparse, in float or double, under a feature range.
 *
 * The kind of row is a constant where these functions are called, so that each kind has its own
 * loop without a branch; and `data` a local copy, whose fields need not be reloaded after every
 * store. */
#pragma once

#include "core/gridsum.h"
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
    const f8 one = f8_with(f8_zero(), left, data->intercept ? 1.0 : 0.0);
    return f8_or(entries(kind, data, x, k, left), one);
}
