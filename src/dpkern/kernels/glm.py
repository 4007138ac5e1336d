"""Generalised linear models: margins, losses, and exact sums of clipped gradients.

A record's loss is phi(y_i, z_i) with the margin z_i = x_i . w of its effective row x_i.
"""

import math
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, Rows, one_by_one, several_models
from dpkern.kernels._blocks import add_gradients, block_losses
from dpkern.kernels._gpu import require_grids
from dpkern.kernels.grids import saturated, sum_grids
from dpkern.models.losses import Loss, get_loss


def glm_margins(
    data: Data, w: ArrayLike, *, out: FloatArray | None = None, n_threads: int | None = None
) -> FloatArray:
    """Return the margins z_i = x_i . w of every record's effective row.

    Parameters
    ----------
    data, w, out, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    z : ndarray, shape (N,)
        Float64, in record order; not private.
    """
    w = checked.models(data, w)
    out = checked.output(out, (data.n,))
    if (device := checked.on_device(data)) is not None:
        device.glm_margins(w, out)
    else:
        _core.glm_margins(data, w, out, resolve_threads(n_threads, data.X.size))
    return out


def glm_products(
    data: Data, W: ArrayLike, *, out: FloatArray | None = None, n_threads: int | None = None
) -> FloatArray:
    """Return the products of every record's effective row with the columns of a matrix.

    Parameters
    ----------
    data, out, n_threads
        As in `dpkern.kernels`.
    W : array_like, shape (d, k)
        The matrix, of at least one column.

    Returns
    -------
    U : ndarray, shape (N, k)
        Without margin offsets, not private. Each is a chain of fused multiply-adds in the order of
        its row's entries: its bits depend on this row and column alone, wherever they stand.
    """
    checked.require_data(data)
    columns = checked.finite_array("W", W)
    if columns.ndim != 2 or len(columns) != data.d or not columns.size:
        raise ValueError(f"W must have shape ({data.d}, k) with k >= 1, got {columns.shape}")
    out = checked.output(out, (data.n, columns.shape[1]))
    threads = resolve_threads(n_threads, data.X.size * (columns.shape[1] + 7) // 8)
    _core.glm_products(data, np.ascontiguousarray(columns.T), out.reshape(-1), threads)
    return out


def glm_norms(
    data: Data, *, out: FloatArray | None = None, n_threads: int | None = None
) -> FloatArray:
    """Return upper bounds of the norms |[scale x + shift, 1]| of all rows, before the row bound.

    Parameters
    ----------
    data, out, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    norms : ndarray, shape (N,)
        sqrt(|[scale x + shift, 1]|^2 + d 2^-240), which is positive for denormal rows too. The 1 is
        present only with an intercept. Float64, in record order; not private.
    """
    checked.require_data(data)
    out = checked.output(out, (data.n,))
    _core.glm_norms(data, out, resolve_threads(n_threads, data.X.size))
    return out


def loss_values(y: ArrayLike, z: ArrayLike, *, loss: str | Loss) -> FloatArray:
    """Return the loss phi(y, z) of every label and margin.

    Parameters
    ----------
    y, z : array_like, shape (n,)
        Labels as in `SiloData`, and margins.
    loss
        As in `dpkern.kernels`.

    Returns
    -------
    values : ndarray, shape (n,)
        Float64; not private.
    """
    return loss_parts(y, z, loss)[0]


def loss_derivatives(y: ArrayLike, z: ArrayLike, *, loss: str | Loss) -> FloatArray:
    """Return the derivative phi'(y, z) in z for every label and margin, as in `loss_values`."""
    return loss_parts(y, z, loss)[1]


def loss_parts(y: ArrayLike, z: ArrayLike, loss: str | Loss) -> FloatArray:
    """Return the value and the first two derivatives in z, as in `loss_values`, shape (3, n)."""
    targets, margins = checked.real_array("y", y), checked.real_array("z", z)
    if targets.ndim != 1 or targets.shape != margins.shape:
        raise ValueError(f"y and z must have one shape (n,), got {targets.shape}, {margins.shape}")
    parts = np.empty((3, len(targets)))
    if len(targets):
        _core.loss_block(checked.compiled_loss(loss), targets, margins, *parts)
    return parts


def glm_losses(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return the sum of the losses over each silo's records, without penalties.

    Parameters
    ----------
    data, w, loss, out, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    sums : ndarray, shape (m,)
        Float64 sums without clipping or noise; not private.
    """
    w = checked.models(data, w)
    out = checked.output(out, (data.m,))
    if (device := checked.on_device(data)) is not None:
        device.glm_losses(w, get_loss(loss), out)
    elif (blocks := checked.in_blocks(data)) is not None:
        out[:] = blocks.totals([partial(block_losses, w, get_loss(loss), n_threads)])[0]
    else:
        compiled = checked.compiled_loss(loss)
        _core.glm_losses(data, w, compiled, out, resolve_threads(n_threads, data.X.size))
    return out


def glm_gradient(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss = "logistic",
    clip: float,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    saturate: bool = False,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Return the sum of clipped per-record gradients over each silo, exact on a grid.

    For every record, clamp(phi'(z), -C'/|x|, C'/|x|) x is rounded to the grid q and then added,
    with C' = (C - q sqrt(d) / 2) (1 - (d + 16) 2^-52). Dense float32 rows of 64 to 4096 columns,
    without a feature range, are taken in single precision where C <= 2^28 q, about: margins and
    products are then floats, and C' is less by 2^-22 C and 2^-20 q sqrt(d) / 2.

    Parameters
    ----------
    data, w, loss, clip, silo_weight, rows, out, n_threads
        As in `dpkern.kernels`.
    grid : float or array_like, shape (m,), optional
        As in `dpkern.kernels`, with max(n_j, 2) C <= 2^52 q for the n_j records summed in silo j
        and q <= C / (32 sqrt(d)).
    saturate : bool
        For private numbers of records: the condition on the grid is for max(n_j / 2^10, 2) records
        instead, and entries of the exact sum saturate at +-2^52 q.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a record whose
        derivative is NaN or whose norm overflows counts as zero.

    Notes
    -----
    Sensitivity: replacing one record changes its silo's sum by at most 2 C in l2 norm and no other
    silo's, exactly, for the doubles returned. Adding or removing a record changes it by at most C.
    This is true with `saturate` too: the exact sum of any accepted number of records fits into
    64-bit integers, and the final clamp of its entries is nonexpansive.

    A clipped generalised linear gradient is the gradient of a C-Lipschitz loss, convex where phi is
    convex [1]_.

    References
    ----------
    .. [1] Song, Steinke, Thakkar, Thakurta, "Evading the curse of dimensionality in unconstrained
       private GLMs", AISTATS 2021.
    """
    w = checked.models(data, w)
    clip = positive("clip", clip, or_infinite=True)
    rows, offsets = checked.minibatch(data, rows)
    grids = sum_grids(grid, offsets=offsets, dim=data.d, clip=clip, saturate=saturate)
    weights = checked.silo_weights(silo_weight, data.m)
    out = checked.output(out, (data.m, data.d))
    if (device := checked.on_device(data)) is not None:
        one = w[np.newaxis], get_loss(loss), np.array([clip]), require_grids(grids)[np.newaxis]
        device.glm_gradients(*one, weights, rows, out[np.newaxis])
    elif (blocks := checked.in_blocks(data)) is not None:
        one_model = w[np.newaxis], get_loss(loss), [clip], [grids]
        add_gradients(blocks, *one_model, weights, rows, n_threads, out[np.newaxis])
    else:
        compiled = checked.compiled_loss(loss)
        threads = resolve_threads(n_threads, int(offsets[-1]) * data.d)
        _core.glm_gradient(data, w, compiled, clip, grids, weights, rows, out, threads)
    return saturated(out, grids[:, np.newaxis]) if saturate and grids is not None else out


def glm_gradients(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss = "logistic",
    clip: ArrayLike,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    saturate: bool = False,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return the sums of `glm_gradient` at k models, for which the records are read once.

    For a custom loss each model is a pass by itself, as what it returns for a record may depend on
    the records that it is called with.

    Parameters
    ----------
    data, loss, silo_weight, rows, n_threads
        As in `dpkern.kernels`.
    w : array_like, shape (k, d) or (k, m, d)
        k models, each one for all silos or one per silo.
    clip : float or array_like, shape (k,)
        Clip norm C of every model, all of them finite or all infinite.
    grid : float or array_like, shape (k,) or (k, m), optional
        Grid of every model, for all silos or per silo, as in `glm_gradient`.
    saturate : bool
        As in `glm_gradient`.
    out : ndarray, shape (k, m, d), optional
        Output array, float64 and C-contiguous.

    Returns
    -------
    sums : ndarray, shape (k, m, d)
        Every bit is the one that `glm_gradient` gives for the model, its clip norm and its grid, as
        is the sensitivity of ``sums[i]``.
    """
    points, clips, each = several_models(data, w, "clip", clip, grid)
    k = len(points)
    out = checked.output(out, (k, data.m, data.d))
    if k < 2 or math.isinf(clips[0]) or checked.is_custom(loss):
        # fmt: off
        return one_by_one(
            glm_gradient, data, points, {"clip": clips.tolist(), "grid": each}, out, loss=loss,
            silo_weight=silo_weight, rows=rows, saturate=saturate, n_threads=n_threads,
        )
        # fmt: on
    rows, offsets = checked.minibatch(data, rows)
    grids = np.empty((k, data.m))
    for i, (own, q) in enumerate(zip(clips.tolist(), each, strict=True)):
        grids[i] = sum_grids(q, offsets=offsets, dim=data.d, clip=own, saturate=saturate)
    weights = checked.silo_weights(silo_weight, data.m)
    if (device := checked.on_device(data)) is not None:
        by_model = points.reshape(k, -1, data.d)
        device.glm_gradients(by_model, get_loss(loss), clips, grids, weights, rows, out)
    elif (blocks := checked.in_blocks(data)) is not None:
        models = points.reshape(k, -1, data.d), get_loss(loss), clips.tolist(), list(grids)
        add_gradients(blocks, *models, weights, rows, n_threads, out)
    else:
        compiled = checked.compiled_loss(loss)
        # Tiles of eight models take about as long as one model does.
        threads = resolve_threads(n_threads, int(offsets[-1]) * data.d * (k + 7) // 8)
        flat = points.reshape(-1, data.d)
        _core.glm_gradients(data, flat, compiled, clips, grids, weights, rows, out, threads)
    return saturated(out, grids[:, :, np.newaxis]) if saturate else out


def glm_difference(
    data: Data,
    w_new: ArrayLike,
    w_old: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    gradient_clip: float = math.inf,
    curvature: float = math.inf,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    margins: ArrayLike | None = None,
    new_margins: FloatArray | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Return the sum of clipped per-record differences of gradients over each silo, on a grid.

    For every record, with g(z) = clamp(phi'(z), -B/|x|, B/|x|), the difference g(z_new) - g(z_old)
    is first brought to between 0 and h (z_new - z_old), h the `curvature`, then clamped to C'/|x|;
    its product with x is rounded to the grid q and added, C' = (C - q sqrt(d) / 2) (1 - (d + 16)
    2^-52).

    Parameters
    ----------
    data, loss, silo_weight, rows, out, n_threads
        As in `dpkern.kernels`.
    w_new, w_old : array_like, shape (d,) or (m, d)
        The two models, each one for all silos or one per silo.
    clip, grid
        As in `glm_gradient`, C being the clip norm of a record's difference.
    gradient_clip : float
        Clip norm B > 0 of each of the two gradients, which is the `clip` of the `glm_gradient` to
        which the differences are added. Infinity means unclipped gradients.
    curvature : float
        Bound h > 0 of phi'' of a convex loss, for which the bound on differences of derivatives
        changes nothing, up to rounding. Infinity bounds nothing.
    margins : array_like, shape (N,), optional
        Margins at `w_old` of all records in record order, also with `rows`, from `glm_margins` or
        from `new_margins` of an earlier call. They are not checked: the sensitivity 2 C is
        valid as long as a record's margin is a function of this record and of public numbers.
    new_margins : ndarray, shape (N,), optional
        Output array for the margins at `w_new`, float64 and C-contiguous, only without `rows`; it
        may be `margins` itself. Not private.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid. A derivative that is NaN counts as 0, as
        does, under a finite clip, a record whose norm overflows. Exactly 0 if `w_new` is `w_old`.

    Notes
    -----
    Sensitivity: replacing one record changes its silo's sum by at most 2 C in l2 norm and no other
    silo's, exactly, for the doubles returned, for any B and loss. Adding or removing a record
    changes it by at most C.

    SVRG and SPIDER add such differences to a noisy sum of gradients that was clipped to B [1]_.
    The terms telescope only if both are gradients of the same loss, with the derivative g, which is
    as smooth as phi. The norm of a difference is then at most min(2 B, L |w_new - w_old|), L the
    smoothness of phi times the largest |x|^2. A C of that size clips nothing, up to rounding;
    privacy does not rely on L. A smaller C trades bias for less noise.

    With a `curvature` h and margins of these models, each record's vector is in the ball of
    diameter b = h R^2 |w_new - w_old| around the middle of 0 and h R^2 (w_new - w_old), R the bound
    of the rows, up to terms of rounding: replacing one record changes the sum by b at most
    (docs/proofs/differences.md; `dpkern.privacy.sensitivity.differences`).

    References
    ----------
    .. [1] Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a trusted
       server", AISTATS 2023, Algorithms 1 and 3.
    """
    later, earlier = checked.models(data, w_new, "w_new"), checked.models(data, w_old, "w_old")
    compiled = checked.compiled_loss(loss)
    clip = positive("clip", clip, or_infinite=True)
    gradient_clip = positive("gradient_clip", gradient_clip, or_infinite=True)
    curvature = positive("curvature", curvature, or_infinite=True)
    rows, offsets = checked.minibatch(data, rows)
    grids = sum_grids(grid, offsets=offsets, dim=data.d, clip=clip)
    weights = checked.silo_weights(silo_weight, data.m)
    old_margins = None if margins is None else checked.real_array("margins", margins, (data.n,))
    if new_margins is not None:
        if rows is not None:
            raise ValueError("new_margins must be None with rows, got an array for all records")
        checked.writeable("new_margins", new_margins, (data.n,))
        if old_margins is not None:
            checked.require_no_overlap("new_margins", new_margins, "margins", old_margins)
    out = checked.output(out, (data.m, data.d))
    threads = resolve_threads(n_threads, int(offsets[-1]) * data.d)
    # fmt: off
    _core.glm_difference(
        data, later, earlier, compiled, clip, gradient_clip, curvature, grids, weights, rows,
        old_margins, new_margins, out, threads,
    )
    # fmt: on
    return out
