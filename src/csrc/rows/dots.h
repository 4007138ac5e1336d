/* The products x . w and x . x of rows (rows.h). Their bits do not depend on how many rows are
 * taken together. */
#pragma once

#include "rows/later.h"
#include "rows/rows.h"

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

#if WIDTH >= 4
/* sum[i] = x[i] . w in eight lanes of `count` dense rows and, with `squares`, sum[count + i] =
 * x[i] . x[i]. ahead: of half as many rows. */
DPK_INLINE void dense_chains(row_kind kind, const dpk_data *data, int count, const row *x,
                             const double *w, int squares, const later_lines *ahead, f8 *sum) {
    const intptr_t p = data->p, size = entry_size(kind);
    const int chains = squares ? 2 * count : count;
    f8 a[8], b[8];
    intptr_t k = 0;
    EACH(i, chains) a[i] = b[i] = f8_zero();
#define CHUNK(chain, line, at, left)                                                               \
    do {                                                                                           \
        const f8 wk = f8_keep(f8_load_part(w + (at), left));                                       \
        EACH(i, count) {                                                                           \
            const f8 xk = entries(kind, data, x + i, at, left);                                    \
            chain[i] = f8_fma(xk, wk, chain[i]);                                                   \
            if (line && i < count / 2 && ahead->next[i])                                           \
                prefetch_line(kind, ahead->next[i] + ahead->stride * (at) * size);                 \
            if (squares)                                                                           \
                chain[count + i] = f8_fma(xk, xk, chain[count + i]);                               \
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
    EACH(i, chains) sum[i] = f8_add(a[i], b[i]);
}

/* Eight such sums: out[i] = x . w of row rows[i], i < 8; or, with `squares`, for i < 4 and then
 * out[4 + i] = x . x. Rows are taken together as far as there are registers for their chains.
 * later: from the i-th of them on. */
DPK_INLINE void dense_dots(row_kind kind, const dpk_data *data, const int64_t *rows,
                           const double *w, int squares, const later_rows *later, intptr_t i,
                           double *out) {
    const int count = squares ? 4 : 8, together = WIDTH == 8 ? count : 2;
    f8 sum[8];
    row x[8];
    for (int r = 0; r < count; r++)
        x[r] = row_at(kind, data, rows[r]);
    EACH(r, count / together) {
        const int at = r * together;
        const later_lines ahead = lines_of(later, i + at / 2, together / 2);
        dense_chains(kind, data, together, x + at, w, squares, &ahead, sum + at);
    }
    f8_sum_each(sum, out);
}
#endif

/* z[i] = x . w and, where it is not NULL, square[i] = x . x of the rows rows[i], i < n, with the
 * bits that `dot` gives. later: n / 2 dense rows that are fetched meanwhile. */
DPK_INLINE void dots(row_kind kind, const dpk_data *data, const double *w, intptr_t n,
                     const int64_t *rows, double *square, later_rows later, double *z) {
    intptr_t i = 0;
#if WIDTH >= 4
    if (!(kind & ROW_SPARSE)) {
        if (!square)
            for (; i + 8 <= n; i += 8)
                dense_dots(kind, data, rows + i, w, 0, &later, i / 2, z + i);
        else if (WIDTH == 8)
            for (; i + 4 <= n; i += 4) {
                double both[8];
                dense_dots(kind, data, rows + i, w, 1, &later, i / 2, both);
                memcpy(z + i, both, 4 * sizeof *z);
                memcpy(square + i, both + 4, 4 * sizeof *square);
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
