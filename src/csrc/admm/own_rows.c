/* One row and one vector at a time, for every kind of row. */
#include "admm/own_rows.h"
#include "core/variants.h"
#include "rows/dots.h"

DPK_INLINE void load_own(row_kind kind, const dpk_data *shared, const double *w, const double *v,
                         int64_t first, intptr_t n, block *b) {
    const dpk_data own = *shared, *const data = &own; /* see rows.h */
    for (intptr_t i = 0; i < n; i++) {
        const int64_t at = data->rows ? data->rows[first + i] : first + i;
        const double *const vi = v + at * data->d;
        double square;
        b->row[i] = at;
        b->y[i] = data->y[at];
        b->z[i] = dot(kind, data, at, w, vi, data->norm ? NULL : &square, NULL);
        if (data->intercept)
            b->z[i] += w[data->p] - vi[data->p];
        b->norm[i] =
            data->norm ? data->norm[at] : norm_up(square + (data->intercept ? 1.0 : 0.0), data->d);
    }
    for (intptr_t i = 0; i < n; i++) {
        b->ratio[i] = row_ratio(data, b->norm[i]);
        b->z[i] *= b->ratio[i];
    }
}

DPK_INLINE void move_dense(row_kind kind, const dpk_data *data, const row_move *move, int64_t at,
                           double s, const double *message) {
    const intptr_t d = data->d;
    const row x = row_at(kind, data, at);
    const double *const v = move->v + at * d;
    double *const out = move->out + at * d;
    const f8 keep = f8_set(move->keep), factor = f8_set(s), M = f8_set(move->M);
    const f8 minus = f8_set(-1.0), minus_M = f8_set(-move->M);
    for (intptr_t k = 0; k < d; k += 8) {
        const intptr_t left = d - k < 8 ? d - k : 8;
        f8 step = message ? f8_load_part(message + k, left) : f8_zero();
        if (s != 0.0) {
            const f8 xk =
                data->p - k >= 8 ? entries(kind, data, &x, k, 8) : last_entries(kind, data, &x, k);
            if (move->M != 0.0)
                step = f8_add(step, f8_add(f8_fma(factor, xk, M), minus_M));
            else
                step = f8_fma(factor, xk, step);
        }
        const f8 old = f8_load_part(v + k, left);
        const f8 new = f8_add(move->to ? f8_fma(keep, old, f8_load(move->to + k)) : old, step);
        if (left == 8)
            f8_store(out + k, new);
        else {
            double last[8];
            f8_store(last, new);
            memcpy(out + k, last, (size_t)left * sizeof(double));
        }
        if (move->moved)
            f8_store(move->moved + k, f8_add(f8_load(move->moved + k), f8_fma(minus, old, new)));
    }
}

/* message += round(s x), or += s x without a grid. */
DPK_INLINE void add_to_message(row_kind kind, const dpk_data *data, int64_t at, double s, double M,
                               double *message) {
    const row r = row_at(kind, data, at);
    for (intptr_t t = 0; t < r.n + data->intercept; t++) {
        intptr_t k;
        const double x = sparse_entry(kind, data, &r, t, &k);
        message[k] = M != 0.0 ? message[k] + (DPK_FMA(s, x, M) - M) : DPK_FMA(s, x, message[k]);
    }
}

DPK_INLINE void move_rows(row_kind kind, const dpk_data *shared, const row_move *move, intptr_t n,
                          const int64_t *row, const double *s) {
    const dpk_data own = *shared, *const data = &own;
    const intptr_t d = data->d;
    for (intptr_t i = 0; i < n; i++) {
        double *const message = move->message ? move->message + i * d : NULL;
        if (!(kind & ROW_SPARSE)) {
            move_dense(kind, data, move, row[i], s[i], message);
            continue;
        }
        if (message) {
            if (s[i] != 0.0)
                add_to_message(kind, data, row[i], s[i], move->M, message);
            move_dense(0, data, move, row[i], 0.0, message);
        } else {
            double *const out = move->out + row[i] * d;
            memmove(out, move->v + row[i] * d, (size_t)d * sizeof(double));
            if (s[i] != 0.0)
                add_to_message(kind, data, row[i], s[i], 0.0, out);
        }
    }
}

DEFINE_FOR_KINDS(void dpk_load_own, data, 8, load_own,
                 (const dpk_data *data, const double *w, const double *v, int64_t first, intptr_t n,
                  block *b),
                 data, w, v, first, n, b)
DEFINE_FOR_KINDS(void dpk_move_rows, data, 8, move_rows,
                 (const dpk_data *data, const row_move *move, intptr_t n, const int64_t *row,
                  const double *s),
                 data, move, n, row, s)
