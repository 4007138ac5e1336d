"""Newton directions by eigendecomposition, and losses along a line, one silo at a time."""

import numpy as np

from dpkern.reference.clip import drop_in, round_to_grid
from dpkern.reference.glm import _silos, weighted


@drop_in
def newton_direction(H, g, *, floor):
    p = np.empty(np.shape(g))
    for j, (matrix, gradient) in enumerate(zip(H, g, strict=True)):
        lam, V = np.linalg.eigh(matrix, UPLO="L")
        p[j] = V @ ((V.T @ gradient) / np.maximum(lam, floor))
    return p


@drop_in
def line_search(data, w, p, *, loss, steps, bound=None, grid=None, saturate=False):
    sums = np.empty((data.m, len(steps)))
    points = zip(_silos(data, w), _silos(data, p, offsets=False), strict=True)
    for j, ((*_, records, z), (*_, dz)) in enumerate(points):
        for k, a in enumerate(steps):
            value = weighted(loss, records, z - a * dz)[0]
            if bound is None:
                sums[j, k] = np.sum(value)
                continue
            q = np.broadcast_to(grid, sums.shape)[j, k]
            inner = np.floor(np.broadcast_to(bound, sums.shape)[j, k] / q) * q
            with np.errstate(invalid="ignore"):
                decrease = np.clip(weighted(loss, records, z)[0] - value, -inner, inner)
            total = np.sum(round_to_grid(np.where(np.isnan(decrease), 0.0, decrease), q))
            sums[j, k] = np.clip(total, -(2.0**52) * q, 2.0**52 * q) if saturate else total
    return sums
