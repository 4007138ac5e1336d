/* The users of a round are shared by the threads; what follows has d coordinates, and is done by
 * one of them. */
#include "admm/rounds.h"
#include "noise/gaussian.h"
#include "simd/finite.h"

dpk_status dpk_prox_sweep(const dpk_data *data, const dpk_loss *loss, const dpk_sweep *sweep,
                          const dpk_sum *sum, const dpk_sum *plain, double *space, const double *z,
                          double *S, double *P) {
    const double lam = sweep->relaxation, keep = 1.0 - 2.0 * lam;
    const intptr_t d = data->d;
    if (dpk_all_finite(d, z) != DPK_OK)
        return DPK_ERR_NOT_FINITE;
    for (intptr_t k = 0; k < d; k++) {
        sweep->from[k] = 2.0 * z[k];
        sweep->to[k] = (2.0 * lam) * z[k];
    }
    if (!sweep->scale)
        return dpk_sweep_public(data, loss, sweep, sum, space, S);
    if (!sweep->shared)
        return dpk_sweep_per_user(data, loss, sweep, sum, plain, S, P);
    for (intptr_t k = 0; k < d; k++)
        sweep->from[k] -= sweep->common[k];
    const dpk_status status = dpk_sweep_shared(data, loss, sweep, sum, S);
    for (intptr_t k = 0; k < d; k++)
        sweep->common[k] = keep * sweep->common[k] + sweep->to[k];
    return status;
}

/* z = prox_{gamma r}(zhat); scratch: (d,). */
static void take_prox(const dpk_admm *run, intptr_t d, const double *zhat, double *scratch,
                      double *z) {
    const intptr_t p = run->penalized;
    for (intptr_t k = 0; k < d; k++)
        z[k] = k < p ? zhat[k] / run->shrink : zhat[k];
    for (int i = 0; i < 2; i++)
        if (run->prox[i].apply)
            run->prox[i].apply(0, p, z, run->prox[i].gamma, run->prox[i].params, scratch, z);
}

/* S += noise, a release; noise: (d,). */
static dpk_status release(const dpk_admm *run, const uint32_t *key, const dpk_sum *sum, intptr_t d,
                          double *noise, double *S) {
    if (dpk_all_finite(d, S) != DPK_OK)
        return DPK_ERR_NOT_FINITE;
    if (!key)
        return DPK_OK;
    const dpk_status status = dpk_gaussian(key, run->purpose, 1, d, &run->sigma, sum->grid,
                                           DPK_PATH_FAST, sum->n_threads, noise);
    for (intptr_t k = 0; k < d; k++)
        S[k] += noise[k];
    return status;
}

dpk_status dpk_admm_rounds(const dpk_data *data, const dpk_loss *loss, const dpk_admm *run,
                           const dpk_sweep *sweep, const dpk_sum *sum, const dpk_sum *plain,
                           double *space, const double *zhat, double *out) {
    const intptr_t d = data->d;
    double *const z = run->work, *const S = z + d, *const P = S + d, *const noise = P + d;
    int64_t offsets[2] = {0, data->offsets[1]}, tasks[2] = {0, sum->first_task[1]};
    dpk_data users = *data;
    dpk_sweep turn = *sweep;
    dpk_sum exact = *sum, in_float = *plain;
    users.offsets = offsets;
    exact.first_task = in_float.first_task = tasks;
    turn.sigma = run->sigma;
    turn.purpose = run->purpose;
    for (intptr_t t = 0; t < run->rounds; t++, out += d) {
        const uint32_t *const key = run->key ? run->key + 8 * t : NULL;
        if (run->bounds) {
            users.rows = data->rows + run->bounds[t];
            offsets[1] = run->bounds[t + 1] - run->bounds[t];
            tasks[1] = (offsets[1] + sum->task_rows - 1) / sum->task_rows;
            if (tasks[1] < sum->n_threads)
                exact.n_threads = in_float.n_threads = tasks[1] > 1 ? (int)tasks[1] : 1;
            else
                exact.n_threads = in_float.n_threads = sum->n_threads;
        }
        if (dpk_all_finite(d, zhat) != DPK_OK)
            return DPK_ERR_NOT_FINITE;
        take_prox(run, d, zhat, S, z);
        if (!sweep->scale)
            turn.key = key;
        dpk_status status = dpk_prox_sweep(&users, loss, &turn, &exact, &in_float, space, z, S, P);
        if (status == DPK_OK && sweep->scale)
            status = release(run, key, &exact, d, noise, S);
        if (status != DPK_OK)
            return status;
        for (intptr_t k = 0; k < d; k++) {
            if (sweep->shared)
                out[k] = sweep->common[k] + S[k] / run->n;
            else
                out[k] = zhat[k] + (sweep->scale ? P[k] + S[k] : S[k]) / run->n;
        }
        zhat = out;
    }
    return DPK_OK;
}
