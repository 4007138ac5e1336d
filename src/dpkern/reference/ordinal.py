"""Sums of clipped gradients of the loss at all thresholds between ordered classes."""

import math

import numpy as np

from dpkern.reference.clip import drop_in, round_to_grid, silo_grids
from dpkern.reference.glm import _stored_rows
from dpkern.reference.loss import block


@drop_in
def ordinal_gradient(
    data,
    w,
    *,
    classes,
    unit=1.0,
    loss="logistic",
    clip,
    grid=None,
    silo_weight=None,
    rows=None,
    saturate=False,
):
    p = data.X.shape[1]
    d = p + classes - 1
    models, sums = np.broadcast_to(w, (data.m, d)), np.empty((data.m, d))
    for j, q in enumerate(silo_grids(grid, data.m)):
        V, square, ratio, (y, weight, offset) = _stored_rows(data, rows, j)
        z = ratio * (V @ models[j, :p]) + offset
        slopes = np.column_stack(
            [
                weight * block(loss, np.where(y > k, 1.0, -1.0), z - unit * models[j, p + k])[1]
                for k in range(classes - 1)
            ]
        )
        a = ratio * slopes.sum(axis=1)
        slopes *= unit
        with np.errstate(all="ignore"):
            length = a * np.sqrt(square + p * 2.0**-240)
            G = np.sqrt(length**2 + np.sum(slopes**2, axis=1) + d * 2.0**-240)
            inner = (clip - 0.5 * (q or 0.0) * math.sqrt(d)) * (1.0 - (d + 16) * 2.0**-52)
            f = np.where(np.isfinite(G), np.where(inner >= G, 1.0, inner / G), 0.0)
        f = f[:, None] * (1.0 if silo_weight is None else silo_weight[j])
        kept = f[:, 0] > 0.0
        g = np.hstack([f * a[:, None] * V, -f * slopes])[kept]
        sums[j] = np.sum(round_to_grid(g, q), axis=0)
        if saturate and q is not None:
            sums[j] = np.clip(sums[j], -(2.0**52) * q, 2.0**52 * q)
    return sums
