"""Sums of clipped per-record gradients of multilayer perceptrons, on integer-valued factors."""

import math
from itertools import pairwise

import numpy as np

from dpkern.reference.clip import drop_in, silo_grids
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
    """Return derivatives delta and inputs [a, 1] of every layer; a record's gradient is the outer
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


def _dot(v, w):
    return np.sum(v * w, axis=1)


def _scale(clip, norm):
    with np.errstate(all="ignore"):
        s = np.where(norm <= clip, 1.0, clip / norm)
    return np.where(np.isfinite(norm) & (s >= 2.0**-500), s, 0.0)


def _lengths(layers):
    """Return D and T of mlp.h."""
    with np.errstate(all="ignore"):
        products = [[_norm(delta) * _norm(a) for delta, a in pairs] for pairs in layers]
        total = sum(np.square(sum(p)) for p in products)
        exact = sum(np.square(each) for p in products for each in p)
        for pairs in layers:
            if len(pairs) == 2:
                (delta, a), (delta2, a2) = pairs
                exact = exact + 2.0 * _dot(delta, delta2) * _dot(a, a2)
        exact = np.where(np.isfinite(exact), np.maximum(exact, 0.0), total)
    return np.sqrt(exact), np.sqrt(total)


def _clipped(pairs, clip):
    """Return gradients at one model clipped to B', and which records have a valid one."""
    s = _scale(clip, _lengths([[pair] for pair in pairs])[0])[:, None]
    with np.errstate(invalid="ignore"):
        return [(np.where(s > 0.0, s * delta, 0.0), a) for delta, a in pairs], s > 0.0


def _difference(new, old, clip):
    (new, counts), (old, old_counts) = _clipped(new, clip), _clipped(old, clip)
    layers = []
    for (delta, a), (delta_old, a_old) in zip(new, old, strict=True):
        with np.errstate(all="ignore"):
            m = np.sqrt(_norm(delta) / _norm(delta_old)) * np.sqrt(_norm(a_old) / _norm(a))
            m = np.where(counts & old_counts, np.clip(m, 2.0**-32, 2.0**32)[:, None], 1.0)
            a_old = np.where(old_counts, a_old, np.where(counts, a, 0.0))
            a = np.where(counts, a, a_old)
            layers.append([(delta - m * delta_old, a), (m * delta_old, a - a_old / m)])
    delta, a = new[0]
    layers[0] = [(delta - old[0][0], a)]
    return layers


def _silo_sum(layers, clip, weight, q):
    """layers: for every layer a list of pairs (delta, a), whose outer products are added."""
    length, bound = _lengths(layers)
    s = weight * _scale(clip, np.maximum(length, bound / 4.0))
    kept = s >= 2.0**-500
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


def _inner(clip, sizes, q, points):
    if points == 1 or math.isinf(clip):
        return clip * (1.0 - (sum(sizes) + 16) * 2.0**-50)
    fourth = sum(
        (math.sqrt(out) + math.sqrt(inputs + 1)) ** 4 for inputs, out in pairwise(sizes[1:])
    )
    slack = q * math.sqrt(8.0 * clip) * fourth**0.25
    return (clip - slack) * (1.0 - (2 * sum(sizes) + 80) * 2.0**-50)


def _sums(
    data,
    points,
    *,
    layers,
    activation,
    loss,
    clip,
    gradient_clip=math.inf,
    grid=None,
    silo_weight=None,
    rows=None,
    records=None,
):
    sizes = [data.X.shape[1], *layers]
    points = [np.broadcast_to(p, (data.m, mlp_size(sizes[0], layers))) for p in points]
    sums = np.empty(points[0].shape)
    weight = np.ones(data.m) if silo_weight is None else silo_weight
    n = len(data.y) if rows is None else max(len(data.y), len(rows[0]))
    q = row_grid(n if records is None else 32 * records, clip if len(points) == 1 else 4.0 * clip)
    inner = _inner(clip, sizes, q, len(points))
    for j in range(data.m):
        V, _, ratio, (y, *_) = _stored_rows(data, rows, j)
        found = [_pairs(ratio[:, None] * V, y, p[j], sizes, activation, loss) for p in points]
        if len(found) == 1:
            blocks = [[pair] for pair in found[0]]
        else:
            blocks = _difference(*found, _inner(gradient_clip, sizes, q, 1))
        total = _silo_sum(blocks, inner, weight[j], q)
        if q:  # saturates sums of more records than the grid is for
            total = np.clip(total, -(2.0**52), 2.0**52)
        step = silo_grids(grid, data.m)[j]
        if step is not None and q:
            total = np.rint(total * (q * q / step)) * (step / (q * q))
        sums[j] = total * (q * q) if q else total
    return sums


@drop_in
def mlp_gradient(data, params, **how):
    return _sums(data, [params], **how)


@drop_in
def mlp_difference(data, params_new, params_old, **how):
    return _sums(data, [params_new, params_old], **how)
