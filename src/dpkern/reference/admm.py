"""Proxes of the records' losses, each a number along the record's row, and one ADMM sweep.

A sweep is v = 2 z - u, x = prox of the record's loss at v, u += 2 lam (x - z). With x = v + t a the
state moves to (1 - 2 lam) u + 2 lam z + 2 lam t a.
"""

import numpy as np

from dpkern.reference.clip import clip_limit, clipped_sum, drop_in, round_to_grid
from dpkern.reference.glm import _stored_rows
from dpkern.reference.loss import block
from dpkern.reference.noise import GAUSSIAN, USER, draws, release_key
from dpkern.reference.prox import prox, soft_threshold

STEPS = 200


def effective_rows(data, rows=None):
    """Stored rows [scale x + shift, 1], squared norms, r = min(1, bound / norm), y, r^2 |row|^2."""
    index = np.arange(len(data.y)) if rows is None else rows
    V, square, ratio, (y, *_) = _stored_rows(data, (index, [0, len(index)]), 0)
    with np.errstate(over="ignore", invalid="ignore"):
        length = (ratio * np.sqrt(square + data.d * 2.0**-240)) ** 2
    return V, square, ratio, y, length


def limit(square, ratio, dim, *, bound, grid):
    """Largest factor on an effective row whose vector has norm `bound`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(clip_limit(square, dim, clip=bound, grid=grid) / ratio, posinf=np.inf)


def scalar_prox(loss, y, margin, length, gamma, lim):
    """clamp(t, -lim, lim) for the solutions of t = -gamma phi'(y, margin + t length).

    t + gamma phi' increases with a slope of at least 1: bisection finds its root between any point
    and that point less its value, and Newton's step is taken where it stays between the ends.
    """
    usable = np.isfinite(length) & np.isfinite(margin)
    length, margin = np.where(usable, length, 0.0), np.where(usable, margin, 0.0)

    def residual(t):
        with np.errstate(over="ignore", invalid="ignore"):
            first, second = block(loss, y, margin + t * length)[1:]
            first, second = (np.where(np.isfinite(d), d, 0.0) for d in (first, second))
            value = np.clip(t + gamma * first, -1e308, 1e308)
            return value, 1.0 + gamma * length * np.maximum(second, 0.0)

    start = residual(np.zeros_like(margin))[0]
    low, high = np.minimum(0.0, -start), np.maximum(0.0, -start)
    t = 0.5 * low + 0.5 * high
    for step in range(STEPS):
        value, slope = residual(t)
        low, high = np.where(value <= 0.0, t, low), np.where(value >= 0.0, t, high)
        with np.errstate(over="ignore", invalid="ignore"):
            newton = t - value / slope
        inside = (low < newton) & (newton < high) & (step % 4 < 3)
        new = np.where(inside, newton, 0.5 * low + 0.5 * high)
        if np.array_equal(new, t):
            break
        t = new
    return np.where(usable, np.clip(t, -lim, lim), 0.0)


def loss_prox(data, V, gamma, *, loss, clip, out=None, n_threads=None):
    out = np.empty((len(data.y), data.d)) if out is None else out
    rows, square, ratio, y, length = effective_rows(data)
    with np.errstate(over="ignore", invalid="ignore"):
        margin = ratio * np.sum(rows * V, axis=1)
    lim = limit(square, ratio, data.d, bound=gamma * clip, grid=None)
    t = scalar_prox(loss, y, margin, length, gamma, lim)
    out[:] = V + (t * ratio)[:, np.newaxis] * rows
    return out, t


def _default_grid(n, bound):
    return None if np.isinf(bound) else 2.0 ** np.ceil(np.log2(max(n, 2) * bound) - 52)


@drop_in
def prox_sweep(data, state, z, *, sigma=None, rng=None, **how):
    key = None if sigma is None else release_key(rng)
    return _sweep(data, state, z, sigma=sigma, key=key, **how)


@drop_in
def admm_rounds(
    data, state, zhat, *, rounds, prox_step, l2=0.0, l1=0.0, penalty=None, penalize_intercept=True,
    grid=None, sigma=None, rows=None, rng=None, **how,
):  # fmt: skip
    n, penalized, points = len(data.y), np.ones(data.d, dtype=bool), []
    penalized[-1] = penalize_intercept or not data.intercept
    gamma = prox_step / (1.0 + prox_step * l2)
    how |= {"prox_step": prox_step, "grid": grid}
    for t in range(rounds):
        key = None if sigma is None else release_key(rng, t)
        if rows is not None:
            how["rows"] = rows[0][rows[1][t] : rows[1][t + 1]]
        z = np.where(penalized, zhat / (1.0 + prox_step * l2), zhat)
        z[penalized] = soft_threshold(z[penalized], gamma * l1)
        if penalty is not None:
            z[penalized] = prox(penalty, z[penalized], gamma)
        if state.scale is None:
            zhat = zhat + _sweep(data, state, z, sigma=sigma, key=key, **how) / n
        else:
            S, *public = np.atleast_2d(_sweep(data, state, z, **how))
            if sigma is not None:
                S = S + draws(key, GAUSSIAN, [0], data.d, [sigma], [grid])[0]
            zhat = state.common + S / n if not public else zhat + (public[0] + S) / n
        points.append(zhat)
    return np.array(points)


def _sweep(
    data, state, z, *, loss, clip, prox_step, relaxation, grid=None, sigma=None, change_clip=None,
    rows=None, key=None,
):  # fmt: skip
    gamma, lam = prox_step, relaxation
    z = np.array(z, dtype=np.float64)
    own = np.arange(len(data.y)) if rows is None else np.asarray(rows)
    V, square, ratio, y, length = effective_rows(data, own)
    together, public = state.common.ndim == 1, state.scale is None
    bound = (1.0 if together else 2.0 * lam if public else 4.0 * lam) * gamma * clip
    bound = bound if change_clip is None else change_clip
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
        message += draws(key, USER, own, data.d, [sigma] * n, [grid] * n)
    state.common[own] = moved + message
    return np.sum(state.common[own] - common, axis=0)
