"""Exact sums of clipped vectors, and what all twins share."""

import functools
import math

import numpy as np


def drop_in(twin):
    """Give a twin the arguments of its kernel that change no result: `out` and `n_threads`."""

    @functools.wraps(twin)
    def called(*arguments, out=None, n_threads=None, **named):
        result = twin(*arguments, **named)
        if out is None:
            return result
        out[...] = result
        return out

    return called


def round_to_grid(v, grid):
    return v if grid is None else np.rint(v / grid) * grid


def clip_limit(square, dim, *, clip, grid):
    """Return C' / norm_up, the largest factor on a vector with this sum of squares."""
    q = 0.0 if grid is None else grid
    inner = (clip - 0.5 * q * math.sqrt(dim)) * (1.0 - (dim + 16) * 2.0**-52)
    norm = np.sqrt(square + dim * 2.0**-240)
    if math.isinf(clip):
        return np.full_like(norm, math.inf)
    return np.where(np.isfinite(norm), inner / norm, 0.0)


def clipped_sum(s, V, lim, grid, weight=1.0):
    """Return the sum of weight clamp(s, -lim, lim) v; NaN counts as 0, and lim = 0 omits v."""
    s = weight * np.where(np.isnan(s), 0.0, np.clip(s, -lim, lim))
    return np.sum(round_to_grid(s[lim > 0, None] * V[lim > 0], grid), axis=0)


def silo_grids(grid, m):
    return [None] * m if grid is None else np.broadcast_to(grid, (m,))


@drop_in
def clip_and_sum(G, *, clip, offsets=None, grid=None):
    offsets = [0, len(G)] if offsets is None else offsets
    sums = []
    for j, q in enumerate(silo_grids(grid, len(offsets) - 1)):
        V = np.asarray(G[offsets[j] : offsets[j + 1]], dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.sum(V**2, axis=1)
        lim = clip_limit(square, G.shape[1], clip=clip, grid=q)
        sums.append(clipped_sum(np.ones(len(V)), V, lim, q))
    return np.array(sums)
