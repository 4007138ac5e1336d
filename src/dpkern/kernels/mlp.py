"""Multilayer perceptrons: exact sums of clipped gradients and of their differences."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import count, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, Rows, Shape
from dpkern.kernels.grids import mlp_factor_grid, product_grids
from dpkern.models.losses import Loss

ACTIVATIONS = ("relu", "tanh")  # in the order of dpk_activation


def mlp_size(n_features: int, layers: Sequence[int]) -> int:
    """Return the number of parameters P of a multilayer perceptron.

    Parameters
    ----------
    n_features : int
        Number of inputs n_0.
    layers : sequence of int
        Sizes n_1, ..., n_L of the hidden layers and of the output.

    Returns
    -------
    P : int
        sum_l n_l (n_(l-1) + 1).
    """
    sizes = [count("n_features", n_features), *_layers(layers)]
    return sum(out * (inputs + 1) for inputs, out in pairwise(sizes))


def mlp_gradient(
    data: Data,
    params: ArrayLike,
    *,
    layers: Sequence[int],
    activation: str,
    loss: str | Loss,
    clip: float,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    records: int | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Sum of clipped per-record gradients of a multilayer perceptron over each silo, exact on a
    grid.

    a_0 is the effective row of a record, z_l = W_l [a_(l-1), 1], a_l = act(z_l) for the hidden
    layers, and the loss is a function of the outputs z_L. A record's gradient in layer l is
    delta_l [a_(l-1), 1]^T; the whole gradient is clipped to norm C, and no per-record gradient is
    stored.

    Parameters
    ----------
    data, clip, grid, silo_weight, rows, out, n_threads
        As in `dpkern.kernels`, and `grid` as in `glm_hessian`; C is the clip norm of the whole
        gradient. The data must have no intercept, since every layer has its own biases.
    params : array_like, shape (P,) or (m, P)
        One model for all silos, or one per silo; P = ``mlp_size(data.n_features, layers)``. A model
        consists of the matrices W_l of shape (n_l, n_(l-1) + 1) in C order, with the bias as the
        last column.
    layers : sequence of int
        Sizes n_1, ..., n_L of the hidden layers and of the output; ``(n_L,)`` has no hidden layer.
    activation : {"relu", "tanh"}
        Activation of the hidden layers. The derivative of relu at 0 is 0.
    loss : str or Loss
        "softmax", cross-entropy of the softmax of all outputs, one for each class, at least 2; or a
        margin loss of one output, see `dpkern.models.losses`.
    records : int, optional
        A public number n for the choice of q if the number of records is not public. Sums of up to
        2^5 n records per silo are exact, and entries of larger ones saturate at +-2^52 q^2 before
        they are rounded to `grid`.

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a record whose
        gradient is not finite, or more than 2^500 times too long, counts as zero.

    Notes
    -----
    Sensitivity: replacing one record changes its silo's sum by at most 2 C in l2 norm over all
    parameters and no other silo's, exactly, for the doubles returned; adding or removing one by at
    most C. A coarser grid adds ``grid * sqrt(P)``. With `records` no error depends on the number of
    records, and q on public numbers only: adding a record changes the exact integer sum by that
    record's term, of norm at most C, and the final clamp of the entries is nonexpansive. Clamping
    partial sums would not suffice, since an added record shifts later records into other parts.

    With s = min(1, C' / G), C' = C (1 - (n_0 + ... + n_L + 16) 2^-50), G an upper bound of the
    norm of the gradient, each delta a^T becomes q^2 k h^T with integer vectors
    k = trunc((s / t) delta / q), h = trunc(t a / q) and t = sqrt(s |delta| / |a|), so that
    |k| |h| q^2 <= s |delta| |a|, as truncation increases no norm. The step q is the finest with
    n ceil(C / q^2) <= 2^52, n = max(N, number of `rows`) or 2^5 `records`, for which sums of n
    records are exact in any order. The norms are computed without per-record gradients as in [1]_.

    A record's term depends neither on other records nor on its position.

    References
    ----------
    .. [1] Goodfellow, "Efficient per-example gradient computations", 2015.
    """
    points = _networks(data, (("params", params),), layers)
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out, n_threads)
    return _sums(data, points, *how)


def mlp_difference(
    data: Data,
    params_new: ArrayLike,
    params_old: ArrayLike,
    *,
    layers: Sequence[int],
    activation: str,
    loss: str | Loss,
    clip: float,
    gradient_clip: float = math.inf,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    records: int | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Sum of clipped per-record differences of the gradient of a multilayer perceptron at two
    points, exact on a grid.

    A record's gradients g(new) and g(old) are clipped to B each, as `mlp_gradient` does, and their
    difference, over all layers together, is scaled to norm C at most.

    Parameters
    ----------
    params_new, params_old : array_like, shape (P,) or (m, P)
        One model for all silos, or one per silo, as in `mlp_gradient`; two of the same shape.
    clip, gradient_clip
        As in `glm_difference`, for the gradients of `mlp_gradient`.
    data, layers, activation, loss, grid, silo_weight, rows, records, out, n_threads
        As in `mlp_gradient`.

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. A gradient that is not finite, or more
        than 2^500 times too long, counts as zero, and so does such a difference under a finite
        clip. Exactly 0 if `params_new` is `params_old`.

    Notes
    -----
    Sensitivity: replacing one record changes its silo's sum by at most 2 C in l2 norm over all
    parameters and no other silo's, exactly, for the doubles returned, for any B; adding or removing
    one by at most C. A coarser grid adds ``grid * sqrt(P)``.

    The norm of a difference never exceeds 2 B. In layer l it is the sum of two outer products,
    U + V, which become integers as in `mlp_gradient`. With D the norm of U + V over all layers, T
    that of |U| + |V|, and R^4 the sum of (sqrt(n_l) + sqrt(n_(l-1) + 1))^4 over all layers but the
    first, s is min(1, C' / max(D, T / 4)) and C' = (C - q sqrt(8 C) R)
    (1 - (2 (n_0 + ... + n_L) + 80) 2^-50), since truncation of U may remove what cancels in V
    (proof in mlp.h). The step q is the finest with n ceil(4 C / q^2) <= 2^52, n as in
    `mlp_gradient`; q sqrt(8 C) R must be at most C / 32.
    """
    points = _networks(data, (("params_new", params_new), ("params_old", params_old)), layers)
    bound = positive("gradient_clip", gradient_clip, or_infinite=True)
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out, n_threads)
    return _sums(data, points, *how, gradient_clip=bound)


def _sums(
    data: Data,
    points: FloatArray,
    layers: Sequence[int],
    activation: str,
    loss: str | Loss,
    clip: float,
    grid: ArrayLike | None,
    silo_weight: ArrayLike | None,
    rows: Rows | None,
    records: int | None,
    out: FloatArray | None,
    n_threads: int | None,
    gradient_clip: float = math.inf,
) -> FloatArray:
    sizes = np.array([data.n_features, *_layers(layers)], dtype=np.intp)
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be {' or '.join(ACTIVATIONS)}, got {activation!r}")
    number = ACTIVATIONS.index(activation)
    compiled = None if loss == "softmax" else checked.compiled_loss(loss)
    _check_outputs(data, int(sizes[-1]), loss)
    clip = positive("clip", clip, or_infinite=True)
    rows, offsets = checked.minibatch(data, rows)
    summed = int(offsets[-1])
    # Not the size of the batch, which is private under Poisson sampling and must not determine q.
    n = max(data.n, summed) if records is None else count("records", records) << 5
    factor_grid = partial(mlp_factor_grid, n, clip, sizes.tolist(), points=len(points))
    unit, grids = product_grids("clip", clip, grid, data.m, factor_grid)
    weights = checked.silo_weights(silo_weight, data.m)
    out = checked.output(out, (data.m, points.shape[2]))
    threads = resolve_threads(n_threads, summed * points.shape[2])

    def add(grids: FloatArray | None, rows: Rows | None) -> None:
        # fmt: off
        _core.mlp_gradient(
            data, points, sizes, number, compiled, clip, gradient_clip, unit, grids, weights, rows,
            out, threads,
        )
        # fmt: on

    largest = 0 if summed <= n else int(np.diff(offsets).max())
    if unit == 0.0 or largest <= n:
        add(grids, rows)
        return out
    # Sums of n records are exact in doubles; larger ones are accumulated in Python integers.
    total = np.zeros(out.shape, dtype=object)
    indices = np.arange(data.n) if rows is None else rows[0]
    for first in range(0, largest, n):
        begins = np.minimum(offsets[:-1] + first, offsets[1:])
        ends = np.minimum(begins + n, offsets[1:])
        parts = [indices[i:j] for i, j in zip(begins, ends, strict=True)]
        add(None, (np.concatenate(parts), np.append(0, np.cumsum(ends - begins))))
        total += (out / unit**2).astype(np.int64)
    whole = np.clip(total, -(1 << 52), 1 << 52).astype(np.float64)
    step = unit**2 if grids is None else grids[:, np.newaxis]
    np.multiply(np.rint(whole * (unit**2 / step)), step, out=out)
    return out


def _layers(layers: Sequence[int]) -> list[int]:
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise TypeError(f"layers must be a sequence of sizes, at least one, got {layers!r}")
    return [count(f"layers[{i}]", size) for i, size in enumerate(layers)]


def _networks(
    data: Data, points: tuple[tuple[str, ArrayLike], ...], layers: Sequence[int]
) -> FloatArray:
    """Return the parameters of all models as (points, 1 or m, P)."""
    checked.require_data(data)
    if data.intercept:
        raise ValueError("data must have no intercept, got one: layers have biases of their own")
    size = mlp_size(data.n_features, layers)
    shapes: tuple[Shape, ...] = (size,), (data.m, size)
    arrays = []
    for name, given in points:
        arrays.append(checked.finite_array(name, given, *shapes))
        shapes = (arrays[0].shape,)
    if len(arrays) == 1:
        return arrays[0].reshape(1, -1, size)
    return np.stack([array.reshape(-1, size) for array in arrays])


def _check_outputs(data: Data, outputs: int, loss: str | Loss) -> None:
    if loss != "softmax":
        if outputs != 1:
            raise ValueError(f"layers must end with 1 for loss = {loss!r}, got {outputs}")
        if data.task == "multiclass":
            raise ValueError(f"loss must be 'softmax' for several classes, got {loss!r}")
        return
    if data.classes is None:
        raise ValueError("loss must be one of real targets for this data, got 'softmax'")
    if outputs != len(data.classes) or outputs < 2:
        raise ValueError(
            f"layers must end with one output for each of the {len(data.classes)} classes, at "
            f"least 2, for loss = 'softmax', got {outputs}"
        )
