"""Local (proximal) gradient descent of every silo on its own records."""

from contextlib import nullcontext

import numpy as np
from numpy.typing import ArrayLike

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import count, not_negative, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import MAX_DRAWS, Data, FloatArray, IntArray, Random, Rows
from dpkern.kernels.grids import added_noise, sum_grids
from dpkern.models.losses import Loss
from dpkern.models.terms import Term
from dpkern.stream import Purpose


def glm_local_descent(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    steps: int,
    step_size: ArrayLike,
    l2: float = 0.0,
    anchor: float = 0.0,
    smooth: str | Term | None = None,
    prox: str | Term | None = None,
    penalize_intercept: bool = True,
    sigma: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    rng: Random = None,
    batches: IntArray | None = None,
    silos: IntArray | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Run K local (proximal) gradient steps of every silo on its own records.

    For every silo, from w = w_j: g = S(w) / n_j + (l2 + a r'(|w|) / |w|) w + anchor (w - w_j),
    w = prox_{eta_t b h}(w - eta_t g), with S as in `glm_gradient`. A silo's rows stay in cache for
    all its steps. With `batches`, S and n_j are those of the step's batch.

    Parameters
    ----------
    data, loss, clip, rng, out, n_threads
        As in `dpkern.kernels`. Silos run in parallel. Only a call with `sigma` uses a release of a
        stream.
    w : array_like, shape (d,) or (m, d)
        One start for all silos, or one per silo.
    steps : int
        Number of steps K >= 1.
    step_size : float or array_like, shape (K,)
        eta_t, finite and > 0.
    l2 : float
        Penalty (l2/2) |w|^2, finite and >= 0.
    anchor : float
        Penalty (anchor/2) |w - w_j|^2 on the distance to the start, finite and >= 0, on all
        coordinates, with which the steps converge to the prox of the silo's mean loss at w_j.
    smooth : str or Term, optional
        A differentiable penalty a r(|w|), such as dpkern.penalties.PL(0.5).
    prox : str or Term, optional
        A penalty b h or a constraint that is used through its prox, such as
        dpkern.penalties.L1(0.01).
    penalize_intercept : bool
        Whether l2, `smooth` and `prox` act on the intercept too.
    sigma : float or array_like, shape (m,), optional
        Std of the Gaussian noise added to S at every step; finite and >= 0.
    grid : float or array_like, shape (m,), optional
        Grid of S and of the noise, as in `glm_gradient`.
    batches : ndarray, shape (m, K, n), int64, optional
        Indices of the silo's n >= 1 records in every step, in increasing order; None means all.
        Those of silos that do not run are not read.
    silos : ndarray, shape (k,), int64, optional
        Indices of the silos that run, in increasing order, at least one; None means all. The models
        of the others are their starts.

    Returns
    -------
    models : ndarray, shape (m, d)
        Float64. Not private without noise: a model after hidden steps is not on a grid, and its
        sensitivity is up to the caller.

    Notes
    -----
    With noise the models are post-processing of K noisy sums per silo, each of sensitivity 2 C
    under replacement of one record. The noise of silo j at step t on coordinate k is draw t d + k
    of ``gaussian((m, K * d), sigma, grid=grid, rng=rng)[j]``.
    """
    w = checked.models(data, w)
    compiled = checked.compiled_loss(loss)
    clip = positive("clip", clip, or_infinite=True)
    steps = count("steps", steps)
    eta = checked.positive_array("step_size", step_size, (steps,), ())
    l2, anchor = not_negative("l2", l2), not_negative("anchor", anchor)
    acting, smooth_strength, _ = checked.penalty("smooth", smooth, _core.smooth_names())
    number, strength, params = checked.penalty("prox", prox, _core.prox_names())
    penalized = checked.penalized(data, penalize_intercept)
    if prox is not None:
        checked.require_prox(prox, penalized, "step_size", float(eta.max()) * strength)
    chosen = None if silos is None else checked.increasing("silos", silos, data.m)
    rows, batch = (None, 0) if batches is None else _batches(data, batches, steps, chosen)
    offsets = data.offsets if rows is None else batch * np.arange(data.m + 1)
    grids = sum_grids(grid, offsets=offsets, dim=data.d, clip=clip)
    if sigma is not None:
        sigma = added_noise(sigma, grids, data.m)
        if steps * data.d > MAX_DRAWS:
            raise OverflowError(f"steps must be at most 2^62 / {data.d}, got {steps}")
    out = checked.output(out, (data.m, data.d))
    if chosen is None:
        chosen = np.arange(data.m)
    else:
        if not len(chosen):
            raise ValueError("silos must hold at least one silo, got none")
        out[:] = w
    records = int((offsets[1:] - offsets[:-1])[chosen].sum())
    threads = resolve_threads(n_threads, steps * records * data.d)
    with checked.release_of(rng) if sigma is not None else nullcontext() as release:
        key = None if release is None else release.key
        # fmt: off
        _core.local_descent(
            data, w, compiled, clip, grids, eta, penalized, l2, anchor, acting, smooth_strength,
            number, strength, params, key, Purpose.GAUSSIAN, sigma, rows, batch, chosen, out,
            threads,
        )
        # fmt: on
    return out


def _batches(data: Data, batches: IntArray, steps: int, silos: IntArray | None) -> tuple[Rows, int]:
    """Return the records of all steps of all silos with the silos' offsets, and a batch's size.

    Those of silos that do not run are not read.
    """
    m = data.m
    if (
        not isinstance(batches, np.ndarray)
        or batches.dtype != np.int64
        or batches.ndim != 3
        or batches.shape[:2] != (m, steps)
        or not batches.shape[2]
    ):
        raise ValueError(
            f"batches must be an int64 array of shape ({m}, {steps}, n), n >= 1, got "
            f"{checked.described(batches)}"
        )
    used = slice(None) if silos is None else silos
    read, first, last = batches[used], data.offsets[:-1][used], data.offsets[1:][used]
    if (
        np.any(read[..., 0] < first[:, np.newaxis])
        or np.any(read[..., -1] >= last[:, np.newaxis])
        or np.any(read[..., 1:] <= read[..., :-1])
    ):
        raise ValueError(
            "batches must hold distinct records of the silo, in increasing order, got others"
        )
    rows = checked.aligned(batches.reshape(-1))
    return (rows, len(rows) // m * np.arange(m + 1)), batches.shape[2]
