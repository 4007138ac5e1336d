"""Exact sums of clipped vectors."""

import math

import numpy as np


def round_to_grid(v, grid):
    return v if grid is None else np.rint(v / grid) * grid


def clip_limit(square, dim, *, clip, grid):
    """C' / norm_up: the largest factor on a vector with this sum of squares."""
    q = 0.0 if grid is None else grid
    inner = (clip - 0.5 * q * math.sqrt(dim)) * (1.0 - (dim + 16) * 2.0**-52)
    return inner / np.sqrt(square + dim * 2.0**-240)


def silo_grids(grid, m):
    return [None] * m if grid is None else np.broadcast_to(grid, (m,))


def clip_and_sum(G, *, clip, offsets=None, grid=None, out=None, n_threads=None):
    offsets = [0, len(G)] if offsets is None else offsets
    m, dim = len(offsets) - 1, G.shape[1]
    out = np.empty((m, dim)) if out is None else out
    for j, q in enumerate(silo_grids(grid, m)):
        V = np.asarray(G[offsets[j] : offsets[j + 1]], dtype=np.float64)
        with np.errstate(over="ignore"):
            square = np.sum(V**2, axis=1)
        s = np.minimum(1.0, clip_limit(square, dim, clip=clip, grid=q))
        out[j] = np.sum(round_to_grid(s[:, None] * V, q), axis=0)
    return out
