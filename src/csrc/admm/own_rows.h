/* Records with a vector v_i each: margins a_i . (w - v_i), and steps of v_i along the rows. */
#pragma once

#include "rows/block.h"

/* As dpk_load_block, of margins against w - v; w: (dpk_padded(d),); v: (stored rows, d). */
void dpk_load_own(const dpk_data *data, const double *w, const double *v, int64_t first, intptr_t n,
                  block *b);

/* v <- keep v + to + round(s x) + message. */
typedef struct {
    double keep;
    const double *to; /* (dpk_padded(d),) or NULL: zeros */
    double M;         /* magic number of the grid that s x is rounded to, or 0 */
    double *message;  /* (n, d) on that grid; s x is added to it where rows are sparse; or NULL */
    const double *v;  /* (stored rows, d) */
    double *out;      /* (stored rows, d), may be v */
    double *moved;    /* (dpk_padded(d),) the sum of the changes is added to it; or NULL */
} row_move;

/* For the n stored rows row[i], and s[i] x their rows [scale x + shift, 1]; a row with s = 0 is not
 * read. */
void dpk_move_rows(const dpk_data *data, const row_move *move, intptr_t n, const int64_t *row,
                   const double *s);
