/* A few records at a time, which fill the vectors of the loss and of the scalar work, while the
 * rows of the next block are prefetched. Results do not depend on the size of a block. */
#pragma once

#include "core/dpk.h"
#include "rows/later.h"
#include "rows/prefetch.h"

#define DPK_BLOCK 64

typedef struct {
    int64_t row[DPK_BLOCK];  /* stored rows */
    double y[DPK_BLOCK];     /* labels */
    double z[DPK_BLOCK];     /* margins of the effective rows */
    double norm[DPK_BLOCK];  /* upper bound of |[scale x + shift, 1]| */
    double ratio[DPK_BLOCK]; /* r = min(1, row_bound / norm) */
    double s[DPK_BLOCK];     /* value or derivative of the loss, then factor of the stored row */
} block;

static inline intptr_t rows_left(int64_t i, int64_t end, intptr_t rows) {
    return end - i < rows ? (intptr_t)(end - i) : rows;
}

/* Few records have offsets or weights: what reads them is no part of the loops of those without. */
static __attribute__((noinline)) void add_stored(const double *values, intptr_t n,
                                                 const int64_t *row, double *to) {
    for (intptr_t i = 0; i < n; i++)
        to[i] += values[row[i]];
}

static __attribute__((noinline)) void multiply_by_stored(const double *values, intptr_t n,
                                                         const int64_t *row, double *to) {
    for (intptr_t i = 0; i < n; i++)
        to[i] *= values[row[i]];
}

/* z: (n,) margins of the stored rows (n,), plus their offsets. */
DPK_INLINE void add_margin_offsets(const dpk_data *data, intptr_t n, const int64_t *row,
                                   double *z) {
    if (data->margin_offset)
        add_stored(data->margin_offset, n, row, z);
}

/* s: (n,) values or derivatives of the loss at the stored rows (n,), times their weights. */
DPK_INLINE void weigh_records(const dpk_data *data, intptr_t n, const int64_t *row, double *s) {
    if (data->record_weight)
        multiply_by_stored(data->record_weight, n, row, s);
}

/* Leaves out the rows with s = 0, and returns how many are left; only `s` and `row` follow. */
static inline intptr_t leave_out_zeros(intptr_t n, block *b) {
    intptr_t count = 0;
    for (intptr_t i = 0; i < n; i++) {
        b->s[count] = b->s[i];
        b->row[count] = b->row[i];
        count += b->s[i] != 0.0;
    }
    return count;
}

/* Rows, labels, margins, norms and scalings of the records first .. first + n, n <= DPK_BLOCK;
 * w: (d,); later: n / 2 dense rows that are fetched meanwhile. */
void dpk_load_block(const dpk_data *data, const double *w, int64_t first, intptr_t n,
                    later_rows later, block *b);

/* z: (n,) x . w of the rows of these numbers (n,). w: (p,). */
void dpk_dots(const dpk_data *data, const double *w, intptr_t n, const int64_t *rows, double *z);

/* Labels and stored rows, and margins of the effective rows along two vectors, of the records first
 * .. first + n: z = x . w with its offset, and dz = x . p while the row is in the L1 cache. w, p:
 * (d,); y, z, dz, row: (n,); next: prefetched in shares, one for some 8 KiB of rows. */
void dpk_load_line(const dpk_data *data, const double *w, const double *p, int64_t first,
                   intptr_t n, prefetch_plan *next, double *y, double *z, double *dz, int64_t *row);

/* norm: (end - begin,) upper bounds of |[scale x + shift, 1]| of the stored rows begin .. end. */
void dpk_row_norms(const dpk_data *data, int64_t begin, int64_t end, double *norm);

/* to: (end - begin, p) the dense rows begin .. end as kernels use them: in doubles, mapped. */
void dpk_map_rows(const dpk_data *data, int64_t begin, int64_t end, double *to);

/* acc += s times the block's n rows, rounded, as steps of the grid in integers with one M in for
 * each row that is counted in `added`, or in floating point where M is 0. Changes `row` and `s` of
 * the block. with_zeros: finite dense rows whose s is 0 may be added; later: as above; acc:
 * (dpk_padded(d),). */
void dpk_add_rows(const dpk_data *data, double M, int with_zeros, later_rows later, intptr_t n,
                  block *b, double *acc, int64_t *added);
