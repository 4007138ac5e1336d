"""Exact sums of clipped vectors, and what all references share."""

import functools
import math

import numpy as np


def drop_in(kernel):
    """Give a reference the arguments of its kernel that change no result: `out` and `n_threads`."""

    @functools.wraps(kernel)
    def called(*arguments, out=None, n_threads=None, **named):
        result = kernel(*arguments, **named)
        if out is None:
            return result
        out[...] = result
        return out

    return called


def round_to_grid(v, grid):
    return v if grid is None else np.rint(v / grid) * grid


def in_single_precision(X, *, clip, grid):
    """Return whether rows, without a feature range, are summed in single precision."""
    return (
        isinstance(X, np.ndarray)
        and X.dtype == np.float32
        and 64 <= X.shape[1] <= 4096
        and grid is not None
        and (2**31 - 1) * grid / clip >= 8
    )


def single_squares(X, intercept):
    """Return upper bounds of |[x, 1]|^2 from squares in single precision, where they are floats."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = np.sum(X**2, axis=1).astype(np.float64)
        outside = ~((square >= 2.0**-60) & (square <= 2.0**100))
        square[outside] = np.sum(X[outside].astype(np.float64) ** 2, axis=1)
    return square * (1.0 + (X.shape[1] / 32 + 8) * 2.0**-24) + intercept


def clip_limit(square, dim, *, clip, grid, single=False):
    """Return C' / norm_up, the largest factor on a vector with this sum of squares."""
    q = 0.0 if grid is None else grid * (1.0 + single * 2.0**-20)
    inner = (clip - 0.5 * q * math.sqrt(dim)) * (1.0 - (dim + 16) * 2.0**-52)
    inner *= 1.0 - single * 2.0**-22
    norm = np.sqrt(square + dim * 2.0**-240)
    if math.isinf(clip):
        return np.full_like(norm, math.inf)
    return np.where(np.isfinite(norm), inner / norm, 0.0)


def clipped_sum(s, V, lim, grid, weight=1.0, single=False):
    """Return the sum of weight clamp(s, -lim, lim) v; NaN counts as 0, and lim = 0 omits v."""
    s = weight * np.where(np.isnan(s), 0.0, np.clip(s, -lim, lim))
    s, V = s[lim > 0, None], V[lim > 0]
    if single:
        t = np.clip(s / grid, -(2.0**127), 2.0**127).astype(np.float32)
        return np.sum(np.rint(t * V.astype(np.float32)), axis=0, dtype=np.float64) * grid
    return np.sum(round_to_grid(s * V, grid), axis=0)


def silo_grids(grid, m):
    return [None] * m if grid is None else np.broadcast_to(grid, (m,))


@drop_in
def clip_and_sum(G, *, clip, offsets=None, grid=None):
    offsets = [0, len(G)] if offsets is None else offsets
    sums = []
    for j, q in enumerate(silo_grids(grid, len(offsets) - 1)):
        V, single = G[offsets[j] : offsets[j + 1]], in_single_precision(G, clip=clip, grid=q)
        if single:
            square = single_squares(V, 0.0)
        else:
            V = np.asarray(V, dtype=np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                square = np.sum(V**2, axis=1)
        lim = clip_limit(square, G.shape[1], clip=clip, grid=q, single=single)
        sums.append(clipped_sum(np.ones(len(V)), V, lim, q, single=single))
    return np.array(sums)
