/* A few records at a time: margins of all, one call of the loss, then their clipped gradients.
 *
 * Rows share a block, which fills the vectors of the loss and of the scalar work, while the rows of
 * the next block are asked for; a long row is taken by itself. Results do not depend on it. */
#ifndef DPK_BLOCK_H
#define DPK_BLOCK_H

#include <stddef.h>
#include "dpk.h"

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

/* Rows, labels, margins, norms and scalings of the records first .. first + n, n <= DPK_BLOCK;
 * w: (d,). */
typedef void dpk_load_block_fn(const dpk_data *data, const double *w, int64_t first, intptr_t n,
                               block *b);

/* Memory that will be read soon, asked for in equal shares between other work. */
typedef struct {
    const char *next;
    intptr_t left, share; /* bytes */
} ahead;

static inline void ask(ahead *rows) {
    const intptr_t size = rows->share < rows->left ? rows->share : rows->left;
    for (intptr_t k = 0; k < size; k += 64)
        __builtin_prefetch(rows->next + k, 0, 2);
    rows->next += size;
    rows->left -= size;
}

/* Dense rows that are asked for ahead, in bytes: they must stay in the second cache. */
enum { DPK_ASKED_AT_MOST = 1 << 18 };

/* The n records from the first on, which come after those at work, in equal shares: so many, and
 * one for every 8 KiB. */
static inline ahead rows_ahead(const dpk_data *data, int64_t first, intptr_t n, intptr_t shares) {
    const intptr_t size = data->p * (data->x_is_float32 ? 4 : 8);
    if (data->indptr || data->rows || n * size > DPK_ASKED_AT_MOST)
        return (ahead){NULL, 0, 0};
    shares += n * size >> 13;
    return (ahead){(const char *)data->X + first * size, n * size,
                   ((n * size + shares - 1) / shares + 63) / 64 * 64};
}

/* Labels, and margins of the effective rows along two vectors, of the records first .. first + n:
 * z = x . w, and dz = x . p while the row is in the first cache. w, p: (d,); y, z, dz: (n,); next:
 * asked for a share at a time, one for some 8 KiB of rows. */
typedef void dpk_load_line_fn(const dpk_data *data, const double *w, const double *p, int64_t first,
                              intptr_t n, ahead *next, double *y, double *z, double *dz);

/* norm: (end - begin,) upper bounds of |[scale x + shift, 1]| of the stored rows begin .. end. */
typedef void dpk_row_norms_fn(const dpk_data *data, int64_t begin, int64_t end, double *norm);

/* acc = sum over the records begin .. end, weight times the clipped gradient at w, rounded; as
 * steps of the grid in integers where M, its magic number, is not 0. clip: the inner clip bound;
 * streamed: the rows are not in this core's cache (the same bits, another pace); acc:
 * (dpk_padded(d),), of which the first d matter. */
typedef void dpk_sum_gradients_fn(const dpk_data *data, const double *w, const dpk_loss *loss,
                                  double M, double clip, double weight, int64_t begin, int64_t end,
                                  int streamed, double *acc);

/* The same of differences: the gradient at w, clipped to earlier->clip, less that at the earlier
 * point, and the difference clipped. */
typedef void dpk_sum_differences_fn(const dpk_data *data, const double *w, const dpk_loss *loss,
                                    const dpk_earlier *earlier, double M, double clip,
                                    double weight, int64_t begin, int64_t end, int streamed,
                                    double *acc);

/* acc += s times the block's n rows, rounded, as steps of the grid in integers with one M in for
 * each row that is counted in `added`, or in floating point where M is 0. Changes `row` and `s` of
 * the block. acc: (dpk_padded(d),). */
typedef void dpk_add_rows_fn(const dpk_data *data, double M, intptr_t n, block *b, double *acc,
                             int64_t *added);

/* Whether the rows of that many records are too much for a core's own cache, of 1 to 2 MiB. */
static inline int dpk_streamed(const dpk_data *data, int64_t records) {
    return records * data->p * (data->x_is_float32 ? 4 : 8) > 1 << 20;
}

#endif
