/* Rounds of private consensus ADMM on records (admm.h):
 *
 *     z = prox_{gamma r}(zhat),    u_i <- u_i + 2 lam (x_i - z) for the users i of the round,
 *     zhat <- mean of u, from a release.
 *
 * Hidden states release a sum with noise, users of a public one send noisy messages. */
#pragma once

#include "admm/admm.h"

/* A prox with its step, and the strength of its penalty in it. */
typedef struct {
    dpk_prox_fn *apply; /* or NULL: none */
    double gamma;
    const double *params;
} dpk_prox_step;

typedef struct {
    intptr_t rounds;
    const int64_t *bounds; /* (rounds + 1,) the users of round t are data->rows[bounds[t]] up to
                            * data->rows[bounds[t + 1]], or NULL: everybody in every round */
    double n;              /* number of all users */
    double shrink;         /* 1 + gamma l2: completing the square leaves v / shrink */
    intptr_t penalized;    /* r acts on the coordinates before this one */
    dpk_prox_step prox[2]; /* one after the other */
    const uint32_t *key;   /* (rounds, 8) of the releases, or NULL: no noise */
    uint32_t purpose;
    double sigma; /* of the noise on the sum, or on every message */
    double *work; /* (4, d) */
} dpk_admm;

/* One sweep at z: (d,), which writes sweep->from, sweep->to and the state. S, P: (d,) as in admm.h,
 * M in S, and P of a state per user alone. sum: with the grid of hidden states, without one for
 * public ones; plain: for a state per user, and space: for a public one, as in admm.h.
 * DPK_ERR_NOT_FINITE: z is not. */
dpk_status dpk_prox_sweep(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                          const dpk_sum *sum, const dpk_sum *plain, double *space, const double *z,
                          double *S, double *P);

/* zhat: (d,) the start; out: (rounds, d) zhat after every round. The other arguments are as above,
 * work space for the round with the most users. DPK_ERR_NOT_FINITE: a zhat overflowed. */
dpk_status dpk_admm_rounds(const dpk_data *data, const dpk_loss *loss, const dpk_admm *run,
                           const dpk_sweep *sweep, const dpk_sum *sum, const dpk_sum *plain,
                           double *space, const double *zhat, double *out);
