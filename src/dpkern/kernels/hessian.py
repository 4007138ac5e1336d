"""Exact sums of clipped per-record Hessians of generalised linear models."""

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern import _core
from dpkern._numbers import count, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import (
    Data,
    FloatArray,
    compiled_loss,
    in_blocks,
    is_custom,
    models,
    one_by_one,
    output,
    several_models,
    silo_weights,
)
from dpkern.kernels._blocks import at_once, hessian_steps, rounded_once
from dpkern.kernels.grids import hessian_row_grid, product_grids
from dpkern.models.losses import Loss, get_loss

# Coordinates of the longest models that share a pass: every thread, and every silo, then has eight
# sums of d (d + 1) / 2 doubles each, about 128 MiB.
_SHARED_DIM = 2048


def glm_hessian(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss,
    hess_clip: float,
    curvature: str = "hessian",
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    records: int | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Return the sum of clipped per-record Hessians h x x^T over each silo, exact on a grid.

    A record's effective row x is rounded to integers k = rint(t x / q), with h = max(phi''(z), 0)
    and t = min(sqrt(h), ((sqrt(B) - q sqrt(d) / 2) (1 - (d + 16) 2^-52)) / |x|); its Hessian is
    q^2 k k^T. The step q is `hessian_row_grid` of all N records, or of `records`.

    Parameters
    ----------
    data, w, loss, silo_weight, out, n_threads
        As in `dpkern.kernels`; rows are multiplied by the square roots of `silo_weight`. A phi''
        that is negative or NaN, or not finite for a custom loss, counts as 0.
    hess_clip : float
        Clip norm B > 0 of a record's Hessian in Frobenius norm: h <= B / |x|^2. Infinity disables
        clipping and grid.
    curvature : {"hessian", "upper_bound"}
        "upper_bound" puts the curvature of the least quadratic majorant of phi that touches it at z
        in the place of phi''(z): (phi'(z) - phi'(c)) / (z - c) where phi' is odd about c, such as
        tanh(z/2) / (2 z) of the logistic loss, and sup phi'' of the squared hinge. It is at least
        phi''(z). A custom loss has none.
    grid : float or array_like, shape (m,), optional
        Power of two >= q^2, one for all silos or one per silo, to which the exact sum is rounded
        once, ties to even: the grid of the noise. None means q^2, without rounding.
    records : int, optional
        Number of records for the choice of q if N is not public; N must be below 2^11 times it.
        With more records, entries of the sum saturate at +-2^52 q^2 before they are rounded to
        `grid`; without `grid` they are rounded to doubles.

    Returns
    -------
    sums : ndarray, shape (m, d, d)
        Float64, symmetric, every entry a multiple of the silo's grid. Under a finite `hess_clip` a
        record whose norm overflows counts as zero.

    Notes
    -----
    Sensitivity in Frobenius norm: replacing one record changes its silo's sum by at most sqrt(2) B
    and no other silo's, exactly, for the doubles returned; adding or removing one by at most B. A
    coarser grid adds ``grid * d``. Before that rounding the sums are positive semi-definite.
    """
    w = models(data, w)
    compiled = compiled_loss(loss)
    if curvature == "upper_bound" and not is_custom(loss):
        compiled = compiled.majorant()
    elif curvature != "hessian":
        raise ValueError(
            "curvature must be 'hessian', or 'upper_bound' of a loss of the table, got "
            f"{curvature!r}"
        )
    hess_clip = positive("hess_clip", hess_clip, or_infinite=True)
    n = _exact_records(data, records)
    row_grid, grids = _row_grid(data, n, hess_clip, grid)
    weights = silo_weights(silo_weight, data.m)
    out = output(out, (data.m, data.d, data.d))
    if (blocks := in_blocks(data)) is not None:
        how = hess_clip, row_grid, weights, n, n_threads
        (sums,) = blocks.totals(
            [partial(hessian_steps, w, get_loss(loss), curvature == "upper_bound", *how)]
        )
        out[:] = rounded_once(sums, row_grid, grids) if row_grid else sums
        return out
    threads = resolve_threads(n_threads, data.n * data.d * (1 + data.d // 16))
    _core.glm_hessian(data, w, compiled, hess_clip, row_grid, grids, weights, n, out, threads)
    return out


def glm_hessians(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss,
    hess_clip: ArrayLike,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    records: int | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return the sums of `glm_hessian` at k models, of sparse data in one pass for eight of them.

    Of dense data each is a pass by itself, since the products that take the time are not shared.
    So is each model of more than 2048 coordinates, as the sums of eight take much memory.

    Parameters
    ----------
    data, loss, silo_weight, n_threads
        As in `dpkern.kernels`.
    w : array_like, shape (k, d) or (k, m, d)
        k models, each one for all silos or one per silo.
    hess_clip : float or array_like, shape (k,)
        Clip norm B of every model, all of them finite or all infinite.
    grid : float or array_like, shape (k,) or (k, m), optional
        Grid of every model, for all silos or per silo, as in `glm_hessian`.
    records : int, optional
        As in `glm_hessian`.
    out : ndarray, shape (k, m, d, d), optional
        Output array, float64 and C-contiguous.

    Returns
    -------
    sums : ndarray, shape (k, m, d, d)
        Every bit is the one that `glm_hessian` gives for the model, its clip norm and its grid, as
        is the sensitivity of ``sums[i]``.
    """
    points, clips, each = several_models(data, w, "hess_clip", hess_clip, grid)
    k, d = len(points), data.d
    out = output(out, (k, data.m, d, d))
    shared = hasattr(data.X, "indptr") and d <= _SHARED_DIM and not is_custom(loss)
    if in_blocks(data) is not None:
        how: dict[str, Any] = {"loss": loss, "silo_weight": silo_weight}
        how |= {"records": records, "n_threads": n_threads}
        models_of = zip(points, clips.tolist(), each, strict=True)
        calls = [partial(glm_hessian, w=w, hess_clip=B, grid=q, **how) for w, B, q in models_of]
        out[:] = at_once(data, calls)
        return out
    if k < 2 or math.isinf(clips[0]) or not shared:
        # fmt: off
        return one_by_one(
            glm_hessian, data, points, {"hess_clip": clips.tolist(), "grid": each}, out, loss=loss,
            silo_weight=silo_weight, records=records, n_threads=n_threads,
        )
        # fmt: on
    compiled = compiled_loss(loss)
    n = _exact_records(data, records)
    steps, grids = np.empty(k), None if grid is None else np.empty((k, data.m))
    for i, (own, q) in enumerate(zip(clips.tolist(), each, strict=True)):
        steps[i], found = _row_grid(data, n, own, q)
        if grids is not None:
            grids[i] = found
    weights = silo_weights(silo_weight, data.m)
    threads = resolve_threads(n_threads, data.n * d)
    rows = points.reshape(-1, d)
    _core.glm_hessians(data, rows, compiled, clips, steps, grids, weights, n, out, threads)
    return out


def _exact_records(data: Data, records: int | None) -> int:
    """Return the number of records for the choice of a grid."""
    n = data.n if records is None else count("records", records)
    if data.n >= n << 11:
        raise ValueError(f"records must be above a 2^11-th of the number of records, got {n}")
    return n


def _row_grid(
    data: Data, n: int, hess_clip: float, grid: ArrayLike | None
) -> tuple[float, FloatArray | None]:
    """Return the step of the rows, 0 for floating-point sums, and the grids of the sums."""
    return product_grids(
        "hess_clip", hess_clip, grid, data.m, lambda: hessian_row_grid(n, hess_clip, data.d)
    )
