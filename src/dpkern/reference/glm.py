"""Margins, losses and clipped gradients of generalised linear models, one silo at a time."""

import numpy as np

from dpkern.reference.clip import (
    clip_limit,
    clipped_sum,
    drop_in,
    in_single_precision,
    silo_grids,
    single_squares,
)
from dpkern.reference.loss import block


def _stored_rows(data, rows, j):
    """Return [scale x + shift, 1] of silo j, squared norms, r = min(1, bound / norm), and records.

    The records are labels, weights and margin offsets.
    """
    index, offsets = (np.arange(len(data.y)), data.offsets) if rows is None else rows
    own = index[offsets[j] : offsets[j + 1]]
    V = data.X[own]
    V = np.asarray(V.toarray() if hasattr(V, "toarray") else V, dtype=np.float64)
    if data.scale is not None:
        V = data.scale * V
    if data.shift is not None:
        V = V + data.shift
    if data.intercept:
        V = np.hstack([V, np.ones((len(V), 1))])
    with np.errstate(over="ignore", divide="ignore"):
        square = np.sum(V**2, axis=1)
        ratio = np.minimum(1.0, data.row_bound / np.sqrt(square))
    weight = np.ones(len(own)) if data.record_weight is None else data.record_weight[own]
    offset = np.zeros(len(own)) if data.margin_offset is None else data.margin_offset[own]
    return V, square, ratio, (data.y[own], weight, offset)


def _silos(data, w, rows=None, offsets=True):
    """Yield rows, squared norms, ratios, records and margins of every silo's effective rows."""
    models = np.broadcast_to(w, (data.m, data.d))
    for j in range(data.m):
        V, square, ratio, records = _stored_rows(data, rows, j)
        with np.errstate(over="ignore", invalid="ignore"):
            z = ratio * (V @ models[j]) + (records[2] if offsets else 0.0)
        yield V, square, ratio, records, z


def weighted(loss, records, z):
    """Return value, first and second derivative of the loss times the weights of records."""
    y, weight, _ = records
    with np.errstate(invalid="ignore"):
        return tuple(weight * output for output in block(loss, y, z))


def _in_single_precision(data, clip, grid):
    return data.scale is None and in_single_precision(data.X, clip=clip, grid=grid)


@drop_in
def glm_margins(data, w):
    return np.concatenate([z for *_, z in _silos(data, w)])


@drop_in
def glm_products(data, W):
    def products(w):
        return np.concatenate([z for *_, z in _silos(data, w, offsets=False)])

    return np.column_stack([products(w) for w in np.transpose(W)])


@drop_in
def glm_norms(data):
    square = np.concatenate([square for _, square, *_ in _silos(data, np.zeros(data.d))])
    return np.sqrt(square + data.d * 2.0**-240)


@drop_in
def glm_losses(data, w, *, loss):
    return np.array([np.sum(weighted(loss, own, z)[0]) for *_, own, z in _silos(data, w)])


@drop_in
def glm_gradient(
    data, w, *, loss="logistic", clip, grid=None, silo_weight=None, rows=None, saturate=False
):
    sums = np.empty((data.m, data.d))
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    grids = silo_grids(grid, data.m)
    models = np.broadcast_to(w, (data.m, data.d))
    for j, (V, square, ratio, records, z) in enumerate(_silos(data, w, rows)):
        single = _in_single_precision(data, clip, grids[j])
        if single:
            X, own = V[:, : data.X.shape[1]].astype(np.float32), models[j]
            square = single_squares(X, data.intercept)
            with np.errstate(all="ignore"):
                ratio = np.minimum(1.0, data.row_bound / np.sqrt(square))
                z = (X @ own[: X.shape[1]].astype(np.float32)).astype(np.float64)
                z = ratio * (z + (own[-1] if data.intercept else 0.0)) + records[2]
        lim = clip_limit(square, data.d, clip=clip, grid=grids[j], single=single)
        with np.errstate(invalid="ignore"):
            s = ratio * weighted(loss, records, z)[1]
        sums[j] = clipped_sum(s, V, lim, grids[j], weight[j], single)
        if saturate and grids[j] is not None:
            sums[j] = np.clip(sums[j], -(2.0**52) * grids[j], 2.0**52 * grids[j])
    return sums


def each_model(kernel, name, data, w, clip, grid, options):
    """The results of a kernel at k models, which have a clip norm and grids of their own."""
    k = len(w)
    grids = [None] * k
    if grid is not None:
        grids = np.broadcast_to(
            np.reshape(grid, (-1, 1)) if np.ndim(grid) < 2 else grid, (k, data.m)
        )
    clips = np.broadcast_to(clip, k)
    return np.array(
        [
            kernel(data, point, grid=q, **{name: own}, **options)
            for point, own, q in zip(w, clips, grids, strict=True)
        ]
    )


@drop_in
def glm_gradients(data, w, *, clip, grid=None, **options):
    return each_model(glm_gradient, "clip", data, w, clip, grid, options)


@drop_in
def glm_difference(
    data,
    w_new,
    w_old,
    *,
    loss,
    clip,
    gradient_clip=np.inf,
    curvature=np.inf,
    grid=None,
    silo_weight=None,
    rows=None,
    margins=None,
    new_margins=None,
):
    sums = np.empty((data.m, data.d))
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    index, offsets = (np.arange(len(data.y)), data.offsets) if rows is None else rows
    grids = silo_grids(grid, data.m)
    points = zip(_silos(data, w_new, rows), _silos(data, w_old, rows), strict=True)
    for j, ((V, square, ratio, records, z), (*_, before)) in enumerate(points):
        own = index[offsets[j] : offsets[j + 1]]
        if margins is not None:
            before = margins[own]
        longest = np.full_like(z, np.inf)
        if np.isfinite(gradient_clip):
            longest = gradient_clip / np.sqrt(square + data.d * 2.0**-240)
        with np.errstate(invalid="ignore"):
            new, old = (ratio * weighted(loss, records, at)[1] for at in (z, before))
            new, old = (
                np.clip(np.nan_to_num(s, posinf=np.inf, neginf=-np.inf), -longest, longest)
                for s in (new, old)
            )
            s = new - old
        if np.isfinite(curvature):
            with np.errstate(over="ignore", invalid="ignore"):
                most = np.nan_to_num(
                    ratio * curvature * (z - before), posinf=np.inf, neginf=-np.inf
                )
            s = np.clip(s, np.minimum(most, 0.0), np.maximum(most, 0.0))
        single = _in_single_precision(data, clip, grids[j])
        lim = clip_limit(square, data.d, clip=clip, grid=grids[j], single=single)
        sums[j] = clipped_sum(s, V, lim, grids[j], weight[j], single)
        if new_margins is not None:
            new_margins[own] = z
    return sums
