"""One ADMM sweep over records: v = 2 z - u, x = prox of the record's loss at v, u += 2 lam (x - z).

With x = v + t a the state moves to (1 - 2 lam) u + 2 lam z + 2 lam t a.
"""

import numpy as np

from dpkern.reference.clip import clip_limit, clipped_sum, round_to_grid
from dpkern.reference.loss_prox import effective_rows, limit, scalar_prox
from dpkern.reference.noise import USER, draws, release_key


def _default_grid(n, bound):
    return None if np.isinf(bound) else 2.0 ** np.ceil(np.log2(max(n, 2) * bound) - 52)


def prox_sweep(
    data,
    state,
    z,
    *,
    loss,
    clip,
    prox_step,
    relaxation,
    grid=None,
    sigma=None,
    rows=None,
    rng=None,
    n_threads=None,
):
    gamma, lam = prox_step, relaxation
    z = np.array(z, dtype=np.float64)
    own = np.arange(len(data.y)) if rows is None else np.asarray(rows)
    V, square, ratio, y, length = effective_rows(data, own)
    together, public = state.common.ndim == 1, state.scale is None
    bound = (1.0 if together else 2.0 * lam if public else 4.0 * lam) * gamma * clip
    grid = _default_grid(1 if public else len(own), bound) if grid is None else grid
    lim = limit(square, ratio, data.d, bound=bound, grid=grid)
    stored_lim = clip_limit(square, data.d, clip=bound, grid=grid)

    common = state.common if together else state.common[own]
    scale = np.zeros(len(own)) if public else state.scale[own]
    with np.errstate(over="ignore", invalid="ignore"):
        margin = ratio * np.sum(V * (2.0 * z - common), axis=1) - scale * length
    t_lim = limit(square, ratio, data.d, bound=gamma * clip, grid=grid)
    t = scalar_prox(loss, y, margin, length, gamma, t_lim)

    if together:
        scale = np.clip((1.0 - 2.0 * lam) * scale + 2.0 * lam * t, -lim, lim)
        state.scale[:] = scale
        state.common[:] = (1.0 - 2.0 * lam) * common + 2.0 * lam * z
        return clipped_sum(scale * ratio, V, stored_lim, grid)

    moved = (1.0 - 2.0 * lam) * common + 2.0 * lam * z
    step = np.clip(2.0 * lam * (t - scale), -lim, lim)
    if not public:
        state.scale[own] = scale + step
        state.common[own] = moved
        shift = np.sum(2.0 * lam * (z - common), axis=0)
        return clipped_sum(step * ratio, V, stored_lim, grid), shift
    message = np.zeros_like(V)
    kept = stored_lim > 0.0
    factor = np.clip(step * ratio, -stored_lim, stored_lim)[kept, np.newaxis]
    message[kept] = round_to_grid(factor * V[kept], grid)
    if sigma is not None:
        n = len(own)
        message += draws(release_key(rng), USER, own, data.d, [sigma] * n, [grid] * n)
    state.common[own] = moved + message
    return np.sum(state.common[own] - common, axis=0)
