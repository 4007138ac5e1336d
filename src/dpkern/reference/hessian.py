"""Sums of clipped per-record Hessians h x x^T, on integer-valued rows."""

import math

import numpy as np

from dpkern.reference.clip import clip_limit, drop_in, silo_grids
from dpkern.reference.glm import _silos, each_model, weighted
from dpkern.reference.loss import majorant


def row_grid(n, hess_clip):
    """Return the finest power of two q with n ceil(B / q^2) <= 2^52; 0 if B is infinite."""
    if math.isinf(hess_clip):
        return 0.0
    q = 2.0 ** max(math.frexp(hess_clip)[1] // 2 - 40, -200)
    while n * math.ceil(hess_clip / q**2) > 2**52:
        q *= 2.0
    return q


@drop_in
def glm_hessian(
    data, w, *, loss, hess_clip, curvature="hessian", grid=None, silo_weight=None, records=None
):
    sums = np.empty((data.m, data.d, data.d))
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    q = row_grid(records or len(data.y), hess_clip)
    for j, (V, square, ratio, records, z) in enumerate(_silos(data, w)):
        lim = clip_limit(square, data.d, clip=math.sqrt(hess_clip), grid=q)
        with np.errstate(invalid="ignore"):
            second = weighted(loss, records, z)[2]
            if curvature == "upper_bound":
                second = records[1] * majorant(loss, records[0], z)
            h = np.maximum(np.nan_to_num(second, nan=0.0, posinf=np.inf), 0.0)
            t = np.sqrt(h) * ratio
        s = math.sqrt(weight[j]) * np.where(np.isnan(t), 0.0, np.minimum(t, lim))
        K = s[s > 0.0, None] * V[s > 0.0]
        if q:
            K = np.rint(K / q)
        H = K.T @ K
        step = silo_grids(grid, data.m)[j]
        if step is not None:
            H = np.rint(np.clip(H, -(2.0**52), 2.0**52) * (q * q / step)) * (step / (q * q))
        sums[j] = H * (q * q) if q else H
    return sums


@drop_in
def glm_hessians(data, w, *, hess_clip, grid=None, **options):
    return each_model(glm_hessian, "hess_clip", data, w, hess_clip, grid, options)
