"""Sums of clipped per-record gradients of multilayer perceptrons, on integer-valued factors."""

import math
from itertools import pairwise

import numpy as np

from dpkern.reference.clip import silo_grids
from dpkern.reference.glm import _stored_rows
from dpkern.reference.hessian import row_grid
from dpkern.reference.loss import block


def mlp_size(n_features, layers):
    return sum(out * (inputs + 1) for inputs, out in pairwise([n_features, *layers]))


def _softmax_deltas(y, z):
    with np.errstate(over="ignore", invalid="ignore"):
        e = np.exp(z - z.max(axis=1, keepdims=True))
    delta = e / e.sum(axis=1, keepdims=True)
    delta[np.arange(len(y)), np.maximum(y, 0.0).astype(int)] -= 1.0
    return delta


def _pairs(X, y, params, sizes, activation, loss):
    """Of every layer the derivatives delta and the inputs [a, 1]: a record's gradient is the outer
    product of its rows."""
    matrices, begin = [], 0
    for inputs, out in pairwise(sizes):
        matrices.append(params[begin : begin + out * (inputs + 1)].reshape(out, inputs + 1))
        begin += out * (inputs + 1)
    one = np.ones((len(X), 1))
    inputs, slopes = [np.hstack([X, one])], []
    with np.errstate(over="ignore", invalid="ignore"):
        for W in matrices[:-1]:
            z = inputs[-1] @ W.T
            a = np.tanh(z) if activation == "tanh" else np.where(z < 0.0, 0.0, z)
            slopes.append(1.0 - a**2 if activation == "tanh" else (z > 0.0) * 1.0)
            inputs.append(np.hstack([a, one]))
        z = inputs[-1] @ matrices[-1].T
        delta = _softmax_deltas(y, z) if loss == "softmax" else block(loss, y, z[:, 0])[1][:, None]
        deltas = [delta]
        for W, slope in zip(matrices[:0:-1], slopes[::-1], strict=True):
            deltas.insert(0, (deltas[0] @ W[:, :-1]) * slope)
    return list(zip(deltas, inputs, strict=True))


def _norm(v):
    return np.sqrt(np.sum(v**2, axis=1) + v.shape[1] * 2.0**-240)


def _silo_sum(layers, clip, weight, q):
    """layers: for every layer a list of pairs (delta, a), whose outer products are added."""
    with np.errstate(all="ignore"):
        lengths = [sum(_norm(delta) * _norm(a) for delta, a in pairs) for pairs in layers]
        norm = np.sqrt(np.sum(np.square(lengths), axis=0))
        s = weight * np.where(norm <= clip, 1.0, clip / norm)
    kept = np.isfinite(norm) & (s >= 2.0**-500)
    s, sums = s[kept, None], []
    for pairs in layers:
        total = 0.0
        for delta, a in pairs:
            delta, a = delta[kept], a[kept]
            if q:
                t = np.sqrt(s) * np.sqrt(_norm(delta) / _norm(a))[:, None]
                total = total + np.trunc(s / t * delta / q).T @ np.trunc(t * a / q)
            else:
                total = total + (s * delta).T @ a
        sums.append(np.ravel(total))
    return np.concatenate(sums)


def _sums(data, points, layers, activation, loss, clip, grid, silo_weight, rows, records, out):
    sizes = [data.X.shape[1], *layers]
    points = [np.broadcast_to(p, (data.m, mlp_size(sizes[0], layers))) for p in points]
    out = np.empty(points[0].shape) if out is None else out
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    n = len(data.y) if rows is None else max(len(data.y), len(rows[0]))
    q = row_grid(n if records is None else 32 * records, clip)
    inner = clip if math.isinf(clip) else clip * (1.0 - (sum(sizes) + 16) * 2.0**-50)
    for j in range(data.m):
        V, _, ratio, y = _stored_rows(data, rows, j)
        found = [_pairs(ratio[:, None] * V, y, p[j], sizes, activation, loss) for p in points]
        if len(found) == 1:
            blocks = [[pair] for pair in found[0]]
        else:
            with np.errstate(invalid="ignore"):
                blocks = [
                    [(delta - delta_old, a), (delta_old, a - a_old)]
                    for (delta, a), (delta_old, a_old) in zip(*found, strict=True)
                ]
            blocks[0] = blocks[0][:1]
        total = _silo_sum(blocks, inner, weight[j], q)
        step = silo_grids(grid, data.m)[j]
        if step is not None and q:
            total = np.rint(total * (q * q / step)) * (step / (q * q))
        out[j] = total * (q * q) if q else total
    return out


def mlp_gradient(
    data,
    params,
    *,
    layers,
    activation,
    loss,
    clip,
    grid=None,
    silo_weight=None,
    rows=None,
    records=None,
    out=None,
    n_threads=None,
):
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out)
    return _sums(data, [params], *how)


def mlp_difference(
    data,
    params_new,
    params_old,
    *,
    layers,
    activation,
    loss,
    clip,
    grid=None,
    silo_weight=None,
    rows=None,
    records=None,
    out=None,
    n_threads=None,
):
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out)
    return _sums(data, [params_new, params_old], *how)
