"""The prox of one record's loss, for every record: a number along the record's row."""

import numpy as np

from dpkern.reference.clip import clip_limit
from dpkern.reference.glm import _stored_rows
from dpkern.reference.loss import block

STEPS = 200


def effective_rows(data, rows=None):
    """Stored rows [scale x + shift, 1], squared norms, r = min(1, bound / norm), y, r^2 |row|^2."""
    index = np.arange(len(data.y)) if rows is None else rows
    V, square, ratio, y = _stored_rows(data, (index, [0, len(index)]), 0)
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
