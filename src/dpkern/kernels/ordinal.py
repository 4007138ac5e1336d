"""Sums of clipped gradients of ordered classes."""

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import count, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, Rows, in_blocks, on_device
from dpkern.kernels.grids import saturated, sum_grids
from dpkern.models.losses import Loss

MOST_CLASSES = 64


def ordinal_gradient(
    data: Data,
    w: ArrayLike,
    *,
    classes: int,
    unit: float = 1.0,
    loss: str | Loss = "logistic",
    clip: float,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    saturate: bool = False,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Return the sum of clipped per-record gradients of the loss at all thresholds over each silo.

    A record of class c has the loss sum_k phi(s_k, x . w - e theta_k), s_k = 1 where c > k and -1
    else, over the K - 1 thresholds between K ordered classes (Rennie and Srebro 2005). Its gradient
    is (sum_k phi'_k x, -e phi'_0, ..., -e phi'_(K-2)), all of which is clipped to one norm C.

    Parameters
    ----------
    data, clip, silo_weight, rows, out, n_threads
        As in `dpkern.kernels`; labels are classes counted from 0, and there is no intercept.
    w : array_like, shape (d,) or (m, d)
        Coefficients, then thresholds, d = n_features + K - 1; one model for all silos, or one each.
    classes : int
        K, from 2 to 64.
    unit : float
        The unit e of thresholds: the larger it is, the less of the noise they have.
    loss : str or Loss
        A loss phi of two classes.
    grid, saturate
        As in `glm_gradient`.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid. A record whose gradient is not finite
        counts as zero.

    Notes
    -----
    Sensitivity: replacing one record changes its silo's sum by at most 2 C in l2 norm over
    coefficients and thresholds together, and no other silo's, exactly, for the doubles returned;
    adding or removing one by at most C (src/csrc/glm/ordinal.h has the proof).
    """
    checked.require_data(data)
    if data.intercept:
        raise ValueError("data must have no intercept, got one: thresholds are the constants")
    if on_device(data) is not None or in_blocks(data) is not None:
        raise ValueError(
            "data must be in the memory of the CPU for ordered classes, got a card's or blocks"
        )
    K = count("classes", classes, least=2)
    if K > MOST_CLASSES:
        raise ValueError(f"classes must be at most {MOST_CLASSES}, got {K}")
    d = data.n_features + K - 1
    model = checked.finite_array("w", w, (d,), (data.m, d)).reshape(-1, d)
    clip = positive("clip", clip, or_infinite=True)
    rows, offsets = checked.minibatch(data, rows)
    grids = sum_grids(grid, offsets=offsets, dim=d, clip=clip, saturate=saturate)
    weights = checked.silo_weights(silo_weight, data.m)
    out = checked.output(out, (data.m, d))
    compiled = checked.compiled_loss(loss)
    threads = resolve_threads(n_threads, int(offsets[-1]) * (data.n_features + 8 * K))
    _core.ordinal_gradient(
        data, model, positive("unit", unit), compiled, clip, grids, weights, rows, out, threads
    )
    return saturated(out, grids[:, np.newaxis]) if saturate and grids is not None else out
