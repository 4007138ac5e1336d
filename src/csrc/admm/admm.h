/* ADMM on records: u_i <- (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i, where a_i is record i's
 * effective row and t_i its prox along it at v_i = 2 z - u_i (scalar_prox.h), u_i = common_i +
 * scale_i a_i (Cyffers, Bellet, Basu 2023).
 *
 * What is summed or sent is a vector s a_i, clamped and rounded as in gridsum.h, of norm at most
 * `bound`: C' there also covers three roundings of gamma C itself. */
#pragma once

#include "core/dpk.h"

/* data->m is 1, as silos do not matter here. */
typedef struct {
    double prox_step, relaxation; /* gamma, lam */
    double prox_bound;            /* gamma C */
    double bound;                 /* gamma C, 2 lam gamma C, or that of changes */
    double grid;                  /* or 0: no clip and no grid */
    double *from;                 /* (dpk_padded(d),) the point of the margins: 2 z - common, or 2 z
                                   * where every record has its own common */
    double *to;                   /* (dpk_padded(d),) 2 lam z */
    int shared;                   /* whether all records have one common */
    double *common;               /* (d,) or (stored rows, d) */
    double *scale;                /* (stored rows,), or NULL: common is u itself */
    const uint32_t *key;          /* (8,) of the messages' release, or NULL: no noise */
    uint32_t purpose;
    double sigma;
} dpk_sweep;

/* Records of a block, when they have vectors of their own. */
static inline intptr_t dpk_sweep_rows(intptr_t d) {
    const intptr_t rows = 2048 / d & ~(intptr_t)7;
    return d > 8192 ? 1 : rows < 8 ? 8 : rows > 64 ? 64 : rows;
}

/* X: (n, d) the points V + t a, may be V itself; t: (n,). V is sweep->common, sweep->from zeros. */
dpk_status dpk_loss_prox(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                         const dpk_sum *sum, double *X, double *t);

/* S: (d,) sum of the rounded scale_i a_i with the new scales. sum->grid and sum->partial as for
 * gradients (glm.h). */
dpk_status dpk_sweep_shared(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                            const dpk_sum *sum, double *S);

/* S: (d,) sum of the rounded changes of scale_i a_i; P: (d,) sum of the changes of common_i.
 * plain: as sum, but without a grid and with other work space. */
dpk_status dpk_sweep_per_user(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                              const dpk_sum *sum, const dpk_sum *plain, double *S, double *P);

/* M: (d,) sum of the changes of common_i, which are u_i here. plain: as above; space: (n_threads,
 * dpk_thread_stride(dpk_sweep_rows(d) * d)). */
dpk_status dpk_sweep_public(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                            const dpk_sum *plain, double *space, double *M);
