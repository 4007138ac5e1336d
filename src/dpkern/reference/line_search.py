"""Losses along a line, one silo at a time."""

import numpy as np

from dpkern.reference.clip import round_to_grid
from dpkern.reference.glm import _silos
from dpkern.reference.loss import block


def line_search(
    data, w, p, *, loss, steps, bound=None, grid=None, saturate=False, out=None, n_threads=None
):
    out = np.empty((data.m, len(steps))) if out is None else out
    for j, ((*_, y, z), (*_, dz)) in enumerate(zip(_silos(data, w), _silos(data, p), strict=True)):
        for k, a in enumerate(steps):
            value = block(loss, y, z - a * dz)[0]
            if bound is None:
                out[j, k] = np.sum(value)
                continue
            q = np.broadcast_to(grid, out.shape)[j, k]
            inner = np.floor(np.broadcast_to(bound, out.shape)[j, k] / q) * q
            with np.errstate(invalid="ignore"):
                decrease = np.clip(block(loss, y, z)[0] - value, -inner, inner)
            total = np.sum(round_to_grid(np.where(np.isnan(decrease), 0.0, decrease), q))
            out[j, k] = np.clip(total, -(2.0**52) * q, 2.0**52 * q) if saturate else total
    return out
