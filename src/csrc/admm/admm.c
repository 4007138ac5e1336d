/* Sweeps over blocks of records: margins, one prox along each row, then the sums, while the rows of
 * a block are in cache. */
#include "core/tasks.h"
#include "admm/admm.h"
#include "rows/block.h"
#include "noise/gaussian.h"
#include "admm/own_rows.h"
#include "models/scalar_prox.h"

/* Norms |a| of the effective rows and the equations of the block's n records, where scale a is the
 * part of u that the margins do not contain; scale: (n,) or NULL: 0. clip: inner bound of the
 * prox. */
static void equations(const block *b, intptr_t n, const double *scale, double clip, double *length,
                      scalar_equations *e) {
    for (intptr_t i = 0; i < n; i++) {
        const double a = b->ratio[i] * b->norm[i], A = a * a, s = scale ? scale[i] : 0.0;
        const double lim = factor_limit(clip, a), m = DPK_FMA(-s, A, b->z[i]);
        const int useful = A <= DBL_MAX && fabs(m) <= DBL_MAX;
        length[i] = a;
        e->y[i] = b->y[i];
        e->A[i] = useful ? A : 0.0;
        e->m[i] = useful ? m : 0.0;
        e->lim[i] = !useful ? 0.0 : lim < DBL_MAX ? lim : DBL_MAX;
        e->t[i] = s; /* the solution once the state has converged */
    }
}

/* s: (n,) factors on effective rows, clamped to bound / |a|; factor: (n,) those on stored rows. */
static void clamp_prox_factors(const block *b, intptr_t n, double bound, const double *length,
                               double *s, double *factor) {
    int bounded = 0;
    for (intptr_t i = 0; i < n; i++) {
        s[i] = clamp_scalar(s[i], factor_limit(bound, length[i]));
        factor[i] = s[i];
        bounded |= b->ratio[i] != 1.0;
    }
    /* The product is rounded, so the clamp comes last. */
    for (intptr_t i = 0; bounded && i < n; i++)
        factor[i] = clamp_scalar(s[i] * b->ratio[i], factor_limit(bound, b->norm[i]));
}

static void loss_prox_task(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                           const dpk_sum *sum, int64_t k, double *X, double *t) {
    const double clip = inner_bound(sweep->prox_bound, 0.0, data->d);
    const intptr_t rows = dpk_sweep_rows(data->d);
    const task u = task_number(data, sum, k);
    double length[DPK_BLOCK];
    scalar_equations e;
    block b;
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        dpk_load_own(data, sweep->from, sweep->common, i, n, &b);
        for (intptr_t r = 0; r < n; r++)
            b.z[r] = -b.z[r]; /* a . (0 - V) */
        equations(&b, n, NULL, clip, length, &e);
        scalar_prox(loss, sweep->prox_step, n, &e, NULL);
        clamp_prox_factors(&b, n, clip, length, e.t, b.s);
        memcpy(t + i, e.t, (size_t)n * sizeof(double));
        const row_move move = {.keep = 1.0, .v = sweep->common, .out = X};
        dpk_move_rows(data, &move, n, b.row, b.s);
    }
}

dpk_status dpk_loss_prox(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                         const dpk_sum *sum, double *X, double *factor) {
    EACH_TASK(sum->first_task[1], loss_prox_task(data, loss, sweep, sum, t, X, factor));
    return DPK_OK;
}

/* Records of a block: as many as the L1 cache holds; half as many where rows come from memory, so
 * that the next block can be prefetched while this one is solved (see also add_dense in sums.h). */
static intptr_t shared_rows(const dpk_data *data, int streamed) {
    const intptr_t rows = dpk_sweep_rows(data->d) / (streamed ? 2 : 1) & ~(intptr_t)7;
    return data->indptr || rows < 8 ? dpk_sweep_rows(data->d) : rows;
}

/* A block prefetches six shares, since two steps are usual. plan_prefetch adds one share for every
 * 8 KiB. */
enum { SHARES = 5 };

static void shared_task(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                        const dpk_sum *sum, int64_t k) {
    const double lam = sweep->relaxation, keep = 1.0 - 2.0 * lam, M = magic(sweep->grid);
    const double clip = inner_bound(sweep->bound, sweep->grid, data->d);
    const int streamed = dpk_streamed(data, data->offsets[1] / sum->n_threads);
    const intptr_t rows = shared_rows(data, streamed);
    const task u = task_number(data, sum, k);
    double *const acc = sum->partial + k * dpk_thread_stride(data->d);
    double length[DPK_BLOCK], s[DPK_BLOCK];
    int64_t added = 0;
    scalar_equations e;
    block b;
    memset(acc, 0, (size_t)dpk_padded(data->d) * sizeof(double));
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        double *const scale = sweep->scale + i;
        dpk_load_block(data, sweep->from, i, n, (later_rows){0}, &b);
        prefetch_plan next = plan_prefetch(data, i + n, rows_left(i + n, u.end, rows), SHARES);
        prefetch_share(&next);
        equations(&b, n, scale, clip, length, &e);
        prefetch_share(&next);
        scalar_prox(loss, sweep->prox_step, n, &e, &next);
        prefetch_share(&next);
        for (intptr_t r = 0; r < n; r++)
            s[r] = DPK_FMA(keep, scale[r], 2.0 * lam * clamp_scalar(e.t[r], e.lim[r]));
        clamp_prox_factors(&b, n, clip, length, s, b.s);
        memcpy(scale, s, (size_t)n * sizeof(double));
        prefetch_share(&next);
        dpk_add_rows(data, M, 0, (later_rows){0}, n, &b, acc, &added);
    }
    if (M != 0.0)
        remove_magic(data->d, added, M, (int64_t *)(void *)acc);
}

dpk_status dpk_sweep_shared(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                            const dpk_sum *sum, double *S) {
    EACH_TASK(sum->first_task[1], shared_task(data, loss, sweep, sum, t));
    sum_partials(sum, 1, data->d, S);
    return DPK_OK;
}

static void per_user_task(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                          const dpk_sum *sum, const dpk_sum *plain, int64_t k) {
    const double lam = sweep->relaxation, keep = 1.0 - 2.0 * lam, M = magic(sweep->grid);
    const double clip = inner_bound(sweep->bound, sweep->grid, data->d);
    const double prox_clip = inner_bound(sweep->prox_bound, sweep->grid, data->d);
    const intptr_t rows = dpk_sweep_rows(data->d), d = data->d;
    const task u = task_number(data, sum, k);
    double *const acc = sum->partial + k * dpk_thread_stride(d);
    double *const moved = plain->partial + k * dpk_thread_stride(d);
    double length[DPK_BLOCK], scale[DPK_BLOCK], s[DPK_BLOCK];
    int64_t added = 0;
    scalar_equations e;
    block b;
    memset(acc, 0, (size_t)dpk_padded(d) * sizeof(double));
    memset(moved, 0, (size_t)d * sizeof(double));
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        dpk_load_own(data, sweep->from, sweep->common, i, n, &b);
        for (intptr_t r = 0; r < n; r++)
            scale[r] = sweep->scale[b.row[r]];
        equations(&b, n, scale, prox_clip, length, &e);
        scalar_prox(loss, sweep->prox_step, n, &e, NULL);
        for (intptr_t r = 0; r < n; r++)
            s[r] = 2.0 * lam * (clamp_scalar(e.t[r], e.lim[r]) - scale[r]);
        clamp_prox_factors(&b, n, clip, length, s, b.s);
        for (intptr_t r = 0; r < n; r++) {
            sweep->scale[b.row[r]] = scale[r] + s[r];
            double *const c = sweep->common + b.row[r] * d;
            for (intptr_t l = 0; l < d; l++) {
                moved[l] += DPK_FMA(-2.0 * lam, c[l], sweep->to[l]);
                c[l] = DPK_FMA(keep, c[l], sweep->to[l]);
            }
        }
        dpk_add_rows(data, M, 0, (later_rows){0}, n, &b, acc, &added);
    }
    if (M != 0.0)
        remove_magic(d, added, M, (int64_t *)(void *)acc);
}

dpk_status dpk_sweep_per_user(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                              const dpk_sum *sum, const dpk_sum *plain, double *S, double *P) {
    EACH_TASK(sum->first_task[1], per_user_task(data, loss, sweep, sum, plain, t));
    sum_partials(sum, 1, data->d, S);
    sum_partials(plain, 1, data->d, P);
    return DPK_OK;
}

static void public_task(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                        const dpk_sum *sum, double *space, int64_t k) {
    const double lam = sweep->relaxation, grid = sweep->grid;
    const double clip = inner_bound(sweep->bound, grid, data->d);
    const double prox_clip = inner_bound(sweep->prox_bound, grid, data->d);
    const intptr_t rows = dpk_sweep_rows(data->d), d = data->d;
    const task u = task_number(data, sum, k);
    double *const message = space + thread_number() * dpk_thread_stride(rows * d);
    double *const moved = sum->partial + k * dpk_thread_stride(d);
    const row_move move = {
        .keep = 1.0 - 2.0 * lam,
        .to = sweep->to,
        .M = magic(grid),
        .message = sweep->key || data->indptr ? message : NULL,
        .v = sweep->common,
        .out = sweep->common,
        .moved = moved,
    };
    double length[DPK_BLOCK], s[DPK_BLOCK];
    scalar_equations e;
    block b;
    memset(moved, 0, (size_t)dpk_padded(d) * sizeof(double));
    for (int64_t i = u.begin; i < u.end; i += rows) {
        const intptr_t n = rows_left(i, u.end, rows);
        dpk_load_own(data, sweep->from, sweep->common, i, n, &b);
        equations(&b, n, NULL, prox_clip, length, &e);
        scalar_prox(loss, sweep->prox_step, n, &e, NULL);
        for (intptr_t r = 0; r < n; r++)
            s[r] = 2.0 * lam * clamp_scalar(e.t[r], e.lim[r]);
        clamp_prox_factors(&b, n, clip, length, s, b.s);
        if (sweep->key) {
            dpk_gaussian_silos(sweep->key, sweep->purpose, b.row, n, d, sweep->sigma, grid,
                               DPK_PATH_FAST, message);
        } else if (data->indptr) {
            memset(message, 0, (size_t)(n * d) * sizeof(double));
        }
        dpk_move_rows(data, &move, n, b.row, b.s);
    }
}

dpk_status dpk_sweep_public(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                            const dpk_sum *sum, double *space, double *total) {
    EACH_TASK(sum->first_task[1], public_task(data, loss, sweep, sum, space, t));
    sum_partials(sum, 1, data->d, total);
    return DPK_OK;
}
