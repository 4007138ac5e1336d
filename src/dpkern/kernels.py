"""Public kernels: validation and documentation of what the compiled core does.

Every kernel returns sums over a silo's records of the clipped data part: no mean, no regulariser.
Callers divide after the release, so that what is noised is an exact sum on a grid.
"""

import functools
import math
import operator
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import count, not_negative, positive
from dpkern._threads import one_blas_thread, resolve_threads, usable_cores
from dpkern.models.losses import Custom, Loss, get_loss
from dpkern.models.penalties import PENALTIES, Term, get_penalty, make_penalty
from dpkern.stream import MAX_SILOS, NoiseStream, Purpose, ReleaseKey

if TYPE_CHECKING:
    from dpkern.data import SiloData

__all__ = [
    "PreparedSweep",
    "ProxState",
    "clip_and_sum",
    "gaussian",
    "glm_difference",
    "glm_gradient",
    "glm_hessian",
    "glm_local_descent",
    "glm_losses",
    "glm_margins",
    "glm_norms",
    "goe",
    "info",
    "line_search",
    "loss_prox",
    "mlp_difference",
    "mlp_gradient",
    "mlp_size",
    "newton_direction",
    "prox",
    "prox_sweep",
    "shuffle_sum",
]

FloatArray = NDArray[np.float64]
Rows = tuple[NDArray[np.int64], NDArray[np.int64]]
Random = int | NoiseStream | None

_FLOAT64 = np.dtype(np.float64)

MAX_DRAWS = 1 << 62
MANY, FEW = 20, 12  # as in shuffle.h: 2^20 and 2^12 coins are tossed together
ACTIVATIONS = ("relu", "tanh")  # in the order of dpk_activation


class SupportsDLPack(Protocol):
    """An array of another library in the memory of the CPU: PyTorch's, JAX's and others'."""

    def __dlpack__(self, *, stream: None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


_core._use_isa(os.environ.get("DPKERN_ISA") or None)

_PROX_NUMBERS = {name: number for number, name in enumerate(_core.prox_names())}


def glm_margins(
    data: "SiloData", w: ArrayLike, *, out: FloatArray | None = None, n_threads: int | None = None
) -> FloatArray:
    """Margins z_i = x_i . w of every record's effective row.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w : array_like, shape (d,) or (m, d)
        One model for all silos, or one per silo.
    out : ndarray, shape (N,), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use.

    Returns
    -------
    z : ndarray, shape (N,)
        Float64, in record order. Not private: one number per record.

    Raises
    ------
    ValueError
        When `w`, `out` or `n_threads` does not fit.
    """
    w = _models(data, w)
    out = _output(out, (data.n,))
    _core.glm_margins(data, w, out, resolve_threads(n_threads, data.X.size))
    return out


def glm_norms(
    data: "SiloData", *, out: FloatArray | None = None, n_threads: int | None = None
) -> FloatArray:
    """Upper bounds of the norms |[scale x + shift, 1]| of all stored rows, before the row bound.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    out : ndarray, shape (N,), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use.

    Returns
    -------
    norms : ndarray, shape (N,)
        sqrt(|[scale x + shift, 1]|^2 + d 2^-240), which denormal rows cannot empty. Float64, in
        record order, the 1 only with an intercept. Not private.

    Raises
    ------
    ValueError
        When `out` or `n_threads` does not fit.
    """
    out = _output(out, (data.n,))
    _core.glm_norms(data, out, resolve_threads(n_threads, data.X.size))
    return out


def loss_values(y: ArrayLike, z: ArrayLike, *, loss: str | Loss) -> FloatArray:
    """The loss phi(y, z) of every label and margin.

    Parameters
    ----------
    y, z : array_like, shape (n,)
        Labels, as `SiloData` holds them, and margins.
    loss : str or Loss
        See `dpkern.models.losses`.

    Returns
    -------
    values : ndarray, shape (n,)
        Float64. Not private.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    """
    return _loss_parts(y, z, loss)[0]


def loss_derivatives(y: ArrayLike, z: ArrayLike, *, loss: str | Loss) -> FloatArray:
    """The derivative phi'(y, z) in z for every label and margin; all else as in `loss_values`."""
    return _loss_parts(y, z, loss)[1]


def _loss_parts(y: ArrayLike, z: ArrayLike, loss: str | Loss) -> FloatArray:
    """Value and first two derivatives, shape (3, n)."""
    targets, margins = _real("y", y), _real("z", z)
    if targets.ndim != 1 or targets.shape != margins.shape:
        raise ValueError(f"y and z must have one shape (n,), got {targets.shape}, {margins.shape}")
    parts = np.empty((3, len(targets)))
    if len(targets):
        _core.loss_block(_loss(loss), targets, margins, *parts)
    return parts


def glm_losses(
    data: "SiloData",
    w: ArrayLike,
    *,
    loss: str | Loss,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Sum of the losses over each silo's records, without regulariser.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w : array_like, shape (d,) or (m, d)
        One model for all silos, or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`.
    out : ndarray, shape (m,), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use.

    Returns
    -------
    sums : ndarray, shape (m,)
        Float64. Not private: a floating-point sum without clipping or noise.

    Raises
    ------
    ValueError
        When an argument does not fit.
    """
    w = _models(data, w)
    compiled = _loss(loss)
    out = _output(out, (data.m,))
    _core.glm_losses(data, w, compiled, out, resolve_threads(n_threads, data.X.size))
    return out


def glm_gradient(
    data: "SiloData",
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
    r"""Sum of clipped per-record gradients over each silo, exact on a grid.

    For every record, clamp(phi'(z), -C'/|x|, C'/|x|) x is rounded to the grid q and then added,
    with C' = (C - q sqrt(d) / 2) (1 - (d + 16) 2^-52).

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w : array_like, shape (d,) or (m, d)
        One model for all silos, or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`.
    clip : float
        Bound C > 0 of a record's gradient in l2 norm. Infinity turns clipping and grid off.
    grid : float or array_like, shape (m,), optional
        Power of two q, one for all silos or one per silo, with max(n_j, 2) C <= 2^52 q for the n_j
        records summed in silo j. None takes the finest on which the sum of all N records is exact
        too. With noise the mechanism passes the grid of the noise.
    silo_weight : array_like, shape (m,), optional
        Factors in [0, 1] on the records of a silo, applied before rounding.
    rows : (indices, offsets), optional
        A minibatch: int64 record indices sorted by silo, and its (m + 1,) int64 offsets. A record
        that occurs r times counts r times, also in the sensitivity.
    saturate : bool
        Where numbers of records are not public: the grid must suit 2 records, and up to 2^10 times
        as many as are said above, and entries of the exact sum beyond 2^52 q become +-2^52 q.
    out : ndarray, shape (m, d), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a record whose
        derivative is NaN or whose norm overflows counts as zero.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, or the grid cannot hold the sum or is coarser than
        C / (32 sqrt(d)).

    Notes
    -----
    Sensitivity: replacing one record moves its silo's sum by at most 2 C in l2 norm and no other
    silo's, exactly, for the doubles returned. Adding or removing a record moves it by at most C.
    A clipped generalised linear gradient is the gradient of a C-Lipschitz loss, convex where phi is
    convex [1]_.

    References
    ----------
    .. [1] Song, Steinke, Thakkar, Thakurta, "Evading the curse of dimensionality in unconstrained
       private GLMs", AISTATS 2021.
    """
    w = _models(data, w)
    compiled = _loss(loss)
    clip = positive("clip", clip, or_infinite=True)
    rows = None if rows is None else _minibatch(data, rows)
    offsets = data.offsets if rows is None else rows[1]
    grids = _grids(grid, offsets=offsets, dim=data.d, clip=clip, saturate=saturate)
    weights = _silo_weights(silo_weight, data.m)
    out = _output(out, (data.m, data.d))
    threads = resolve_threads(n_threads, int(offsets[-1]) * data.d)
    _core.glm_gradient(data, w, compiled, clip, grids, weights, rows, out, threads)
    return _saturated(out, grids[:, np.newaxis]) if saturate and grids is not None else out


def glm_difference(
    data: "SiloData",
    w_new: ArrayLike,
    w_old: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    gradient_clip: float = math.inf,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    rows: Rows | None = None,
    margins: ArrayLike | None = None,
    new_margins: FloatArray | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Sum of clipped per-record differences of gradients over each silo, exact on a grid.

    For every record, with g(z) = clamp(phi'(z), -B/|x|, B/|x|), the vector
    clamp(g(z_new) - g(z_old), -C'/|x|, C'/|x|) x is rounded to the grid q and then added, with
    C' = (C - q sqrt(d) / 2) (1 - (d + 16) 2^-52).

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w_new, w_old : array_like, shape (d,) or (m, d)
        The two points: one model for all silos, or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`.
    clip : float
        Bound C > 0 of a record's difference in l2 norm. Infinity turns its clipping and the grid
        off.
    gradient_clip : float
        Bound B > 0 of each of the two gradients: the `clip` of the `glm_gradient` that the
        differences continue. Infinity: those of the loss itself.
    grid, silo_weight, rows
        As in `glm_gradient`.
    margins : array_like, shape (N,), optional
        Margins at `w_old` of all records in record order, also with `rows`: those of `glm_margins`,
        or the `new_margins` of an earlier call. Then `w_old` is not multiplied with any row. Not
        checked: whatever they are the clip holds, and so does the sensitivity as long as a record's
        margin is a function of this record and of public numbers.
    new_margins : ndarray, shape (N,), optional
        Float64, C order; the margins at `w_new` are written here, without `rows` only. May be
        `margins` itself. Not private.
    out : ndarray, shape (m, d), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, d)
        Float64, every entry a multiple of the silo's grid. A derivative that is NaN counts as 0, as
        does under a finite clip a record whose norm overflows. Exactly 0 where `w_new` is `w_old`.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, or the grid cannot hold the sum or is coarser than
        C / (32 sqrt(d)).

    Notes
    -----
    Sensitivity: replacing one record moves its silo's sum by at most 2 C in l2 norm and no other
    silo's, exactly, for the doubles returned, whatever B and the loss are. Adding or removing a
    record moves it by at most C.

    Why two bounds. SVRG and SPIDER add such differences to a noisy sum of gradients [1]_ that was
    clipped to B. Their estimate follows one objective only where the terms telescope, so both are
    to be gradients of the same loss: that with the derivative g, which is as smooth as phi. A
    difference of unclipped gradients would not fit: the sum of both is the gradient of no loss and
    depends on where the last refresh was. A difference is then at most min(2 B, L |w_new - w_old|)
    long, L the smoothness of phi times the largest |x|^2: a C of that size changes nothing but what
    rounding takes of it, and privacy needs no L. A smaller C buys less noise with bias.
    `glm_gradient` clips to B less half its q sqrt(d), which moves a mean of gradients by less than
    a thousandth of the noise that goes with that q.

    References
    ----------
    .. [1] Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a trusted
       server", AISTATS 2023, Algorithms 1 and 3.
    """
    later, earlier = _models(data, w_new, "w_new"), _models(data, w_old, "w_old")
    compiled = _loss(loss)
    clip = positive("clip", clip, or_infinite=True)
    gradient_clip = positive("gradient_clip", gradient_clip, or_infinite=True)
    rows = None if rows is None else _minibatch(data, rows)
    offsets = data.offsets if rows is None else rows[1]
    grids = _grids(grid, offsets=offsets, dim=data.d, clip=clip)
    weights = _silo_weights(silo_weight, data.m)
    kept = None if margins is None else _real("margins", margins)
    if kept is not None and kept.shape != (data.n,):
        raise ValueError(f"margins must have shape ({data.n},), got {kept.shape}")
    if new_margins is not None:
        if rows is not None:
            raise ValueError("new_margins must be None with rows: it holds those of all records")
        _output(new_margins, (data.n,), "new_margins")
        if (
            kept is not None
            and np.may_share_memory(kept, new_margins)
            and _address(kept) != _address(new_margins)
        ):
            raise ValueError("new_margins must be margins itself or share no memory with it")
    out = _output(out, (data.m, data.d))
    threads = resolve_threads(n_threads, int(offsets[-1]) * data.d)
    _core.glm_difference(
        data,
        later,
        earlier,
        compiled,
        clip,
        gradient_clip,
        grids,
        weights,
        rows,
        kept,
        new_margins,
        out,
        threads,
    )
    return out


def glm_hessian(
    data: "SiloData",
    w: ArrayLike,
    *,
    loss: str | Loss,
    hess_clip: float,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    records: int | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Sum of clipped per-record Hessians h x x^T over each silo, exact on a grid.

    A record's effective row x is rounded to integers k = rint(t x / q), with h = max(phi''(z), 0)
    and t = min(sqrt(h), ((sqrt(B) - q sqrt(d) / 2) (1 - (d + 16) 2^-52)) / |x|); its Hessian is
    q^2 k k^T. The step q is `hessian_row_grid` of all N records, or of as many as are said.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w : array_like, shape (d,) or (m, d)
        One model for all silos, or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`. Where phi'' is negative, NaN, or of a custom loss not finite, it
        counts as 0.
    hess_clip : float
        Bound B > 0 of a record's Hessian in Frobenius norm: h <= B / |x|^2. Infinity turns clipping
        and grid off.
    grid : float or array_like, shape (m,), optional
        Power of two >= q^2, one for all silos or one per silo, to which the exact sum is rounded
        once, ties to even: that of the noise. None is q^2 itself, which rounds nothing.
    silo_weight : array_like, shape (m,), optional
        Factors in [0, 1] on the Hessians of a silo, applied before rounding (their roots to rows).
    records : int, optional
        A number of records to choose q by where N is not public; N must be below 2^11 times it.
        Where entries of the sum of more records leave +-2^52 q^2, they are clamped to that before
        they are rounded to `grid`; without one they are rounded to doubles.
    out : ndarray, shape (m, d, d), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, d, d)
        Float64, symmetric, every entry a multiple of the silo's grid. Under a finite `hess_clip` a
        record whose norm overflows counts as zero.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, `grid` is finer than q^2, or no q serves.

    Notes
    -----
    Sensitivity in Frobenius norm: replacing one record moves its silo's sum by at most sqrt(2) B
    and no other silo's, exactly, for the doubles returned; adding or removing one by at most B. A
    coarser grid adds ``grid * d``. Positive semi-definite before that rounding.
    """
    w = _models(data, w)
    compiled = _loss(loss)
    hess_clip = positive("hess_clip", hess_clip, or_infinite=True)
    n = data.n if records is None else count("records", records)
    if data.n >= n << 11:
        raise ValueError(f"records is {n}; it must be above a 2^11-th of the records, {data.n}")
    row_grid, grids = _product_grids(
        "hess_clip",
        hess_clip,
        grid,
        m=data.m,
        n=n,
        choose=lambda: hessian_row_grid(n, hess_clip, data.d),
    )
    weights = _silo_weights(silo_weight, data.m)
    out = _output(out, (data.m, data.d, data.d))
    threads = resolve_threads(n_threads, data.n * data.d * (1 + data.d // 16))
    _core.glm_hessian(data, w, compiled, hess_clip, row_grid, grids, weights, n, out, threads)
    return out


def glm_local_descent(
    data: "SiloData",
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
    batches: NDArray[np.int64] | None = None,
    silos: NDArray[np.int64] | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""K local (proximal) gradient steps of every silo on its own records.

    For every silo, from w = w_j: g = S(w) / n_j + (l2 + a r'(|w|) / |w|) w + anchor (w - w_j),
    w = prox_{eta_t b h}(w - eta_t g), with S as in `glm_gradient`. A silo's rows stay in cache for
    all its steps. With `batches` S is over those of the step, and n_j their number.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w : array_like, shape (d,) or (m, d)
        One start for all silos, or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`.
    clip : float
        Bound C > 0 of a record's gradient in l2 norm. Infinity turns clipping and grid off.
    steps : int
        Number of steps K >= 1.
    step_size : float or array_like, shape (K,)
        eta_t, finite and > 0.
    l2 : float
        Penalty (l2/2) |w|^2, finite and >= 0.
    anchor : float
        Penalty (anchor/2) |w - w_j|^2 on the distance to the start, finite and >= 0, on all
        coordinates: the steps then go to the prox of the silo's mean loss at w_j.
    smooth : str or Term, optional
        A smooth regulariser r(|w|) and its strength a >= 0, as ("pl", 0.5).
    prox : str or Term, optional
        A regulariser h that acts by its prox, and its strength b >= 0, as ("l1", 0.01); of a
        constraint b is of no effect.
    penalize_intercept : bool
        Whether l2, `smooth` and `prox` act on the intercept too.
    sigma : float or array_like, shape (m,), optional
        Std of the Gaussian noise that is added to S at every step; finite and >= 0.
    grid : float or array_like, shape (m,), optional
        Grid of S and of the noise, as in `glm_gradient`.
    rng : None, int >= 0 or NoiseStream
        Source of the noise, as in `gaussian`. A call with `sigma` takes one release of a stream.
    batches : ndarray, shape (m, K, n), int64, optional
        The n >= 1 records of every step of a silo, its own, in increasing order; None is all.
    silos : ndarray, shape (k,), int64, optional
        Silos that run, in increasing order, at least one; None is all. The others' models are
        their starts.
    out : ndarray, shape (m, d), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use; silos run in parallel. The result does not
        depend on it.

    Returns
    -------
    models : ndarray, shape (m, d)
        Float64. Not private without noise: a model after hidden steps is not on a grid, and how far
        one record moves it is for the caller to bound.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    RuntimeError
        When the stream was wiped or belongs to another process.

    Notes
    -----
    With noise the models are post-processing of K noisy sums per silo, each of sensitivity 2 C
    under replacement of one record. The noise of silo j at step t on coordinate k is draw t d + k
    of ``gaussian((m, K * d), sigma, grid=grid, rng=rng)[j]``.
    """
    w = _models(data, w)
    compiled = _loss(loss)
    clip = positive("clip", clip, or_infinite=True)
    steps = count("steps", steps)
    eta = _step_sizes(step_size, steps)
    l2 = not_negative("l2", l2)
    anchor = not_negative("anchor", anchor)
    smooth_number, smooth_strength, _ = _penalty("smooth", smooth, _core.smooth_names())
    number, strength, params = _penalty("prox", prox, _core.prox_names())
    if not isinstance(penalize_intercept, bool | np.bool_):
        raise TypeError(f"penalize_intercept must be True or False, got {penalize_intercept!r}")
    penalized = data.d - (data.intercept and not penalize_intercept)
    if prox is not None:
        acting = get_penalty(prox)
        _refuse_size("what prox acts on", penalized, acting)
        _refuse_step("step_size times the strength in prox", float(eta.max()) * strength, acting)
    rows, batch = None if batches is None else _batches(data, batches, steps), 0
    offsets = data.offsets
    if rows is not None:
        batch = len(rows[0]) // (data.m * steps)
        offsets = batch * np.arange(data.m + 1)
    grids = _grids(grid, offsets=offsets, dim=data.d, clip=clip)
    if sigma is not None:
        if grids is None:
            raise ValueError("sigma needs a finite clip: noise is for sums on a grid")
        sigma, _ = _noise_scale(sigma, grids, data.m)
        if steps * data.d > MAX_DRAWS:
            raise OverflowError("steps times the model's size must be at most 2^62")
    out = _output(out, (data.m, data.d))
    if silos is None:
        silos = np.arange(data.m)
    else:
        silos = _increasing("silos", silos, "silos", data.m)
        if not len(silos):
            raise ValueError("silos is empty; at least one silo runs")
        out[:] = w
    records = int(np.diff(offsets)[silos].sum())
    threads = resolve_threads(n_threads, steps * records * data.d)
    with _release(rng) if sigma is not None else nullcontext() as release:
        _core.local_descent(
            data,
            w,
            compiled,
            clip,
            grids,
            eta,
            penalized,
            l2,
            anchor,
            smooth_number,
            smooth_strength,
            number,
            strength,
            params,
            None if release is None else release.key,
            Purpose.GAUSSIAN,
            sigma,
            rows,
            batch,
            silos,
            out,
            threads,
        )
    return out


def clip_and_sum(
    G: NDArray[Any] | SupportsDLPack,
    *,
    clip: float,
    offsets: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Sum over each silo of vectors clipped to an l2 bound, exact on a grid.

    Parameters
    ----------
    G : ndarray or DLPack array, shape (n, P)
        Float32 or float64, rows sorted by silo: one vector per record. PyTorch tensors without
        grad, JAX arrays and others that offer ``__dlpack__`` are read where they are in the memory
        of the CPU. C-contiguous memory is not copied, nor made float64.
    clip : float
        Bound C > 0 of a vector's l2 norm: min(1, C / |g|) g. Infinity turns clipping and grid off.
    offsets : array_like, shape (m + 1,), optional
        Silo j holds the rows offsets[j] to offsets[j + 1]; None is one silo.
    grid : float or array_like, shape (m,), optional
        Power of two q with max(n_j, 2) C <= 2^52 q for the n_j rows of silo j; None takes the
        finest on which the sum of all n rows is exact too.
    out : ndarray, shape (m, P), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a vector whose norm
        is NaN or overflows counts as zero, and never raises.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.

    Notes
    -----
    Sensitivity: replacing one row moves its silo's sum by at most 2 C in l2 norm, exactly, for the
    doubles returned; adding or removing one by at most C.
    """
    vectors = _vectors(G)
    n, dim = vectors.shape
    bounds = _offsets(np.array([0, n]) if offsets is None else offsets, n)
    clip = positive("clip", clip, or_infinite=True)
    grids = _grids(grid, offsets=bounds, dim=dim, clip=clip)
    out = _output(out, (len(bounds) - 1, dim))
    _core.clip_and_sum(vectors, bounds, clip, grids, out, resolve_threads(n_threads, n * dim))
    return out


def gaussian(
    shape: int | Sequence[int],
    sigma: ArrayLike,
    *,
    grid: ArrayLike | None = None,
    rng: Random = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Gaussian noise rounded exactly to a grid: q round(sigma N(0, 1) / q).

    Parameters
    ----------
    shape : int or sequence of int
        The last axis holds the coordinates of a silo; the axes before it, flattened to m rows, are
        the silos 0 .. m - 1. One axis alone is silo 0.
    sigma : float or array_like, shape (m,)
        Standard deviation before rounding, finite and >= 0; 0 gives zeros.
    grid : float or array_like, shape (m,), optional
        Power of two q between 2^-400 and 2^400 with sigma <= 2^32 q. None takes the one with
        2^25 < sigma / q <= 2^26: fine enough to forget about, coarse enough that one draw in a
        million needs the slow path. The noise of a sum must have the grid of the sum.
    rng : None, int >= 0 or NoiseStream
        None: the operating system's entropy. An int: reproducible, not private. A call takes one
        release of a stream.
    out : ndarray of that shape, optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    noise : ndarray
        Float64, multiples of the grid.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    RuntimeError
        When the stream was wiped or belongs to another process.

    Notes
    -----
    - Every draw is the correctly rounded Phi^-1 of a uniform real of the key stream, of which
      192 bits are read where it matters; its law is within total variation 2^-100 of the rounded
      Gaussian's.
    - For a sum S that is a multiple of q, S + Z = q round((S + sigma N) / q): post-processing of
      the Gaussian mechanism on the exact sum.
    - Draws depend on the stream's key, the release number, the silo and the coordinate, and on
      nothing else: not on `n_threads`, the instruction set or the length of the last axis.
    """
    sizes = _shape(shape)
    m = math.prod(sizes[:-1])
    sigmas, grids = _noise_scale(sigma, grid, m)
    out = _output(out, sizes)
    threads = resolve_threads(n_threads, out.size)
    with _release(rng) as release:
        rows = out.reshape(m, sizes[-1])
        _core.gaussian(release.key, Purpose.GAUSSIAN, sigmas, grids, rows, threads)
    return out


def goe(
    m: int,
    d: int,
    sigma: ArrayLike,
    *,
    grid: ArrayLike | None = None,
    rng: Random = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Symmetric Gaussian matrices rounded exactly to a grid (Gaussian orthogonal ensemble).

    Parameters
    ----------
    m, d : int
        Number of matrices, one per silo, and their size.
    sigma : float or array_like, shape (m,)
        Standard deviation of the diagonal; above it sigma / sqrt(2), rounded up.
    grid, rng, n_threads
        As in `gaussian`.
    out : ndarray, shape (m, d, d), optional
        Float64, C order; written and returned.

    Returns
    -------
    noise : ndarray, shape (m, d, d)
        Float64, symmetric, multiples of the grid.

    Raises
    ------
    TypeError, ValueError, RuntimeError
        As `gaussian`.

    Notes
    -----
    The density depends on the Frobenius norm only, so for a symmetric sum of Frobenius sensitivity
    D this is the Gaussian mechanism with mu = D / sigma.
    """
    m, d = _shape((m, d))
    sigmas, grids = _noise_scale(sigma, grid, m)
    above_sigmas = np.where(sigmas > 0.0, np.nextafter(sigmas * math.sqrt(0.5), np.inf), 0.0)
    out = _output(out, (m, d, d))
    diagonal, above = np.empty((m, d)), np.empty((m, d * (d - 1) // 2))
    threads = resolve_threads(n_threads, out.size)
    with _release(rng) as release:
        _core.gaussian(release.key, Purpose.GOE_DIAGONAL, sigmas, grids, diagonal, threads)
        _core.gaussian(release.key, Purpose.GOE_OFF_DIAGONAL, above_sigmas, grids, above, threads)
    _core.goe(diagonal, above, out, threads)
    return out


def line_search(
    data: "SiloData",
    w: ArrayLike,
    p: ArrayLike,
    *,
    loss: str | Loss,
    steps: ArrayLike,
    bound: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    saturate: bool = False,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Losses of every silo along the line w - a p, for every candidate step a.

    Margins along w and p are computed once, in one pass over X; a candidate then costs one loss a
    record.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    w, p : array_like, shape (d,) or (m, d)
        Model and direction, one for all silos or one per silo.
    loss : str or Loss
        See `dpkern.models.losses`.
    steps : array_like, shape (k,)
        Candidate steps a, finite.
    bound : array_like, shape (k,) or (m, k), optional
        For a private search: bounds b_a > 0, one per candidate, or per silo and candidate, on one
        record's decrease of the loss.
    grid : float or array_like, shape (k,) or (m, k), optional
        With `bound` only: power of two q, one for all candidates, one per candidate, or one per
        silo and candidate, with max(n_j, 2) b_a <= 2^52 q for the n_j records of every silo and
        q <= b_a / 32. None takes the finest on which the sum of all N records is exact too.
    saturate : bool
        With `bound`, as in `glm_gradient`.
    out : ndarray, shape (m, k), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, k)
        Float64. Without `bound` sum_i phi(y_i, z_i - a dz_i), z = x . w and dz = x . p of the
        effective rows: `glm_losses` at w - a p up to rounding. Not private.
        With `bound` the decreases sum_i round_q(clamp(phi(y_i, z_i) - phi(y_i, z_i - a dz_i),
        -b_a, b_a)), every entry a multiple of its grid; a NaN (infinity less infinity) counts as 0.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.

    Notes
    -----
    Sensitivity of the private sums: one record's term is at most b_a in absolute value, exactly,
    for the doubles returned. Replacing a record moves candidate a of its silo by at most 2 b_a, and
    all candidates by at most 2 |b| in l2 norm; adding or removing one by half of that. For a loss
    whose derivative is clipped to C / |x|, b_a = |a| C |p| clamps nothing but rounding.
    """
    w, p = _models(data, w), _models(data, p, "p")
    compiled = _loss(loss)
    candidates = _real("steps", steps)
    if candidates.ndim != 1 or not candidates.size:
        raise ValueError(f"steps must have shape (k,), k >= 1, got {candidates.shape}")
    if not np.isfinite(candidates).all():
        raise ValueError("steps must be finite")
    bounds = grids = None
    if bound is not None:
        bounds = _per_candidate("bound", bound, (data.m, candidates.size))
        if not (np.all(bounds > 0.0) and np.all(np.isfinite(bounds))):
            raise ValueError("bound must be positive and finite")
        grids = _candidate_grids(grid, offsets=data.offsets, bounds=bounds, saturate=saturate)
    elif grid is not None:
        raise ValueError("grid needs a bound: sums of unbounded losses are not exact")
    out = _output(out, (data.m, candidates.size))
    threads = resolve_threads(n_threads, data.X.size + 8 * data.n * candidates.size)
    _core.line_search(data, w, p, compiled, candidates, bounds, grids, out, threads)
    return _saturated(out, grids) if saturate and grids is not None else out


@dataclass(frozen=True, eq=False)
class ProxState:
    """Auxiliary variables u_i of ADMM, one vector per record: u_i = common_i + scale_i a_i.

    a_i is the record's effective row. `prox_sweep` updates the arrays in place.

    Attributes
    ----------
    common : ndarray, shape (d,) or (N, d)
        Float64, C order. One vector for all records (collapsed), or one per record.
    scale : ndarray, shape (N,), or None
        Float64. None for a public state: then `common` is u itself.

    Notes
    -----
    Collapsed and per-user states are as private as the records are. A public one consists of its
    start and of messages that were sent, and is known to whoever saw them.
    """

    common: FloatArray
    scale: FloatArray | None

    @classmethod
    def collapsed(cls, data: "SiloData", start: ArrayLike) -> Self:
        """All records share `common`, as every record is swept every time; O(N + d) memory.

        Parameters
        ----------
        data : SiloData
            N records.
        start : array_like, shape (d,)
            u_i at the start, for all i. It must not depend on the data.
        """
        return cls(_start(data, start).copy(), np.zeros(data.n))

    @classmethod
    def per_user(cls, data: "SiloData", start: ArrayLike) -> Self:
        """Every record has its own `common`, as records are swept at different times.

        Parameters
        ----------
        data : SiloData
            N records.
        start : array_like, shape (d,)
            u_i at the start, for all i. It must not depend on the data.
        """
        return cls(np.tile(_start(data, start), (data.n, 1)), np.zeros(data.n))

    @classmethod
    def public(cls, data: "SiloData", start: ArrayLike) -> Self:
        """Every record has its own u_i, which its messages make up.

        Parameters
        ----------
        data : SiloData
            N records.
        start : array_like, shape (d,)
            u_i at the start, for all i. It must not depend on the data.
        """
        return cls(np.tile(_start(data, start), (data.n, 1)), None)


def loss_prox(
    data: "SiloData",
    V: ArrayLike,
    gamma: float,
    *,
    loss: str | Loss,
    clip: float,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> tuple[FloatArray, FloatArray]:
    r"""Prox of every record's clipped loss: argmin_x gamma f_i(x) + |x - v_i|^2 / 2.

    f_i(x) = phi(y_i, a_i . x) with a_i the effective row, and x_i = v_i + t_i a_i with t_i the
    solution of t = -gamma phi'(y_i, a_i . v_i + t |a_i|^2), clamped to +-gamma C' / |a_i|.

    Parameters
    ----------
    data : SiloData
        N records.
    V : array_like, shape (N, d)
        One point per record.
    gamma : float
        Step, positive and finite.
    loss : str or Loss
        See `dpkern.models.losses`; convex. A derivative that is not finite counts as 0.
    clip : float
        Bound C > 0 of a record's gradient in l2 norm. Infinity turns clipping off.
    out : ndarray, shape (N, d), optional
        Float64, C order; written and returned as X. It shares no memory with `V`, or is `V`.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    X : ndarray, shape (N, d)
        Float64, in record order. Not private.
    t : ndarray, shape (N,)
        Float64: displacements along the effective rows. Not private.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, or the loss is not convex.

    Notes
    -----
    phi' increases and a clamped increasing function increases, so this is the prox of a convex,
    C-Lipschitz loss [1]_, whose displacement is at most gamma C: C' = C (1 - (d + 16) 2^-52) and
    the clamp is the last operation on t. Before it, t has a relative error of 1e-12 at most, beside
    what the rounding of a_i . v_i makes of it.

    References
    ----------
    .. [1] Song, Steinke, Thakkar, Thakurta, "Evading the curse of dimensionality in unconstrained
       private GLMs", AISTATS 2021.
    """
    points = _real("V", V)
    if points.shape != (data.n, data.d):
        raise ValueError(f"V must have shape ({data.n}, {data.d}), got {points.shape}")
    if not np.isfinite(points).all():
        raise ValueError("V must be finite")
    gamma = positive("gamma", gamma)
    compiled = _loss(_convex(loss))
    bound = _prox_bound(gamma, positive("clip", clip, or_infinite=True), "gamma")
    out = _output(out, (data.n, data.d))
    if out.ctypes.data != points.ctypes.data and np.shares_memory(out, points):
        raise ValueError("out must share no memory with V, or be V")
    t = np.empty(data.n)
    threads = resolve_threads(n_threads, data.n * data.d)
    _core.loss_prox(data, points, gamma, compiled, bound, out, t, threads)
    return out, t


def prox_sweep(
    data: "SiloData",
    state: ProxState,
    z: ArrayLike,
    *,
    loss: str | Loss,
    clip: float,
    prox_step: float,
    relaxation: float,
    grid: float | None = None,
    sigma: float | None = None,
    rows: NDArray[np.int64] | None = None,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray | tuple[FloatArray, FloatArray]:
    r"""One ADMM sweep over records: v_i = 2 z - u_i, u_i += 2 lam (prox_i(v_i) - z).

    With gamma = `prox_step`, lam = `relaxation` and t_i as in `loss_prox` the state moves to
    (1 - 2 lam) u_i + 2 lam z + 2 lam t_i a_i. `state` is updated in place.

    Parameters
    ----------
    data : SiloData
        N records, each a user. Silos do not matter.
    state : ProxState
        Collapsed, per user or public. A sweep that is interrupted leaves it undefined.
    z : array_like, shape (d,)
        The consensus point, finite.
    loss : str or Loss
        See `dpkern.models.losses`; convex. A derivative that is not finite counts as 0.
    clip : float
        Bound C > 0 of a record's gradient in l2 norm. Infinity turns clipping and grid off.
    prox_step : float
        gamma, positive and finite.
    relaxation : float
        lam in (0, 1].
    grid : float, optional
        Power of two q with max(n, 2) b <= 2^52 q, b the bound of one vector (see Returns) and n the
        number of vectors that are summed, 1 for a public state. None takes the finest such. With
        noise the mechanism passes the grid of the noise.
    sigma : float, optional
        For a public state: std of the Gaussian noise on every message, finite and >= 0. None is no
        noise.
    rows : ndarray, shape (k,), optional
        Int64 numbers of the records to sweep, distinct and increasing; all by default. Not for a
        collapsed state.
    rng : None, int >= 0 or NoiseStream
        Source of the noise, as in `gaussian`. A call with `sigma` takes one release of a stream.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    S : ndarray, shape (d,)
        Of a collapsed state: sum_i round_q(s_i a_i) with the new scales
        s_i = clamp((1 - 2 lam) s_i + 2 lam t_i, +-b' / |a_i|), b = gamma C. The mean of u is
        ``state.common + S / N``.
    S, P : ndarrays, shape (d,)
        Of a per-user state: S = sum_i round_q(f_i a_i) with
        f_i = clamp(2 lam (t_i - s_i), +-b' / |a_i|), b = 4 lam gamma C, and the public
        P = sum_i 2 lam (z - common_i), in plain floating point. u has moved by P + S in sum.
    M : ndarray, shape (d,)
        Of a public state: by how much u has moved in sum, in plain floating point. Every record
        sends round_q(f_i a_i) + Z_i, f_i = clamp(2 lam t_i, +-b' / |a_i|) with b = 2 lam gamma C,
        and u_i becomes (1 - 2 lam) u_i + 2 lam z and this message.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, the loss is not convex, or the grid cannot hold the sum or is
        coarser than b / (32 sqrt(d)).
    RuntimeError
        When the stream was wiped or belongs to another process.

    Notes
    -----
    - Sensitivity: replacing one record, at equal state of all others and equal z, moves S by at
      most 2 b in l2 norm and a message by as much, exactly, for the doubles returned: a vector that
      is summed or sent has norm b at most, and depends on its own record and state alone. That
      holds whatever the float error in t_i; b' is b less room for rounding (see `glm_gradient`).
    - P is a function of z's and of who took part in which sweep.
    - Z_i are the draws of `gaussian` with a purpose of their own and record i for its silo: none
      repeats, and none depends on threads or on `rows`.
    - This is the iteration of [1]_ with the noise elsewhere. lam <= 1/2 keeps every u_i within
      gamma C of a point that does not depend on its record.

    References
    ----------
    .. [1] Cyffers, Bellet, Basu, "From noisy fixed-point iterations to private ADMM for centralized
       and federated learning", ICML 2023, algorithms 1 to 3.
    """
    sweep = PreparedSweep(
        data,
        state,
        loss=loss,
        clip=clip,
        prox_step=prox_step,
        grid=grid,
        sigma=sigma,
        n_threads=n_threads,
    )
    return sweep(z, relaxation=relaxation, rows=rows, rng=rng)


class PreparedSweep:
    """`prox_sweep` of one state, again and again: what the calls share is checked and kept.

    A sweep over some hundred records takes less time than the checks of its arguments.

    Parameters
    ----------
    data, state, loss, clip, prox_step, grid, sigma, n_threads
        As for `prox_sweep`.

    Raises
    ------
    TypeError, ValueError
        As `prox_sweep`, from here or from the first call.
    """

    def __init__(
        self,
        data: "SiloData",
        state: ProxState,
        *,
        loss: str | Loss,
        clip: float,
        prox_step: float,
        grid: float | None = None,
        sigma: float | None = None,
        n_threads: int | None = None,
    ) -> None:
        common, self._scale = _state(data, state)
        self._data, self._together = data, common.ndim == 1
        compiled = _loss(_convex(loss))
        self._clip = positive("clip", clip, or_infinite=True)
        self._gamma = positive("prox_step", prox_step)
        if sigma is not None and self._scale is not None:
            raise ValueError("sigma is for a public state: what others release is noised as a sum")
        self._grid, self._sigma, self._n_threads = grid, sigma, n_threads
        limit = _prox_bound(self._gamma, self._clip, "prox_step")
        self._sweeps = _core.Sweeps(data, common, self._scale, compiled, self._gamma, limit)
        self._layout: tuple[float, int] | None = None
        self._std = 0.0

    def __call__(
        self,
        z: ArrayLike,
        *,
        relaxation: float,
        rows: NDArray[np.int64] | None = None,
        rng: Random = None,
    ) -> Any:
        """The next sweep, as `prox_sweep` describes it."""
        data = self._data
        point = _real("z", z)
        if point.shape != (data.d,):
            raise ValueError(f"z must have shape ({data.d},), got {point.shape}")
        lam = positive("relaxation", relaxation)
        if lam > 1.0:
            raise ValueError(f"relaxation is {lam!r}; it must be in (0, 1]")
        if rows is not None:
            if self._together:
                raise ValueError("rows is not for a collapsed state: its records move together")
            rows = _increasing("rows", rows, "records", data.n)
        n = data.n if rows is None else len(rows)
        layout = lam, resolve_threads(self._n_threads, n * data.d)
        if rows is not None or layout != self._layout:
            self._layout = None
            self._lay_out(rows, n, *layout)
            self._layout = None if rows is not None else layout
        if self._sigma is None:
            return self._sweeps.sweep(point, None, Purpose.USER, 0.0)
        with _release(rng) as release:
            return self._sweeps.sweep(point, release.key, Purpose.USER, self._std)

    def _lay_out(self, rows: NDArray[np.int64] | None, n: int, lam: float, n_threads: int) -> None:
        factor = 1.0 if self._together else 4.0 * lam if self._scale is not None else 2.0 * lam
        bound = _prox_bound(factor * self._gamma, self._clip, "prox_step")
        summed = 1 if self._scale is None else n
        offsets = np.array([0, summed])
        grids = _grids(self._grid, offsets=offsets, dim=self._data.d, clip=bound)
        if self._sigma is not None:
            if grids is None:
                raise ValueError("sigma needs a finite clip: noise is for sums on a grid")
            self._std = float(_noise_scale(self._sigma, grids, 1)[0][0])
        grid = 0.0 if grids is None else float(grids[0])
        self._sweeps.lay_out(rows, lam, bound, grid, n_threads)


def mlp_size(n_features: int, layers: Sequence[int]) -> int:
    """Number of parameters P of a multilayer perceptron.

    Parameters
    ----------
    n_features : int
        Inputs.
    layers : sequence of int
        Sizes of the hidden layers and of the output.

    Returns
    -------
    P : int
        sum_l n_l (n_(l-1) + 1), n_0 = n_features.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    """
    sizes = [count("n_features", n_features), *_layers(layers)]
    return sum(out * (inputs + 1) for inputs, out in pairwise(sizes))


def mlp_gradient(
    data: "SiloData",
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
    layers, and the loss is one of the outputs z_L. A record's gradient in layer l is
    delta_l [a_(l-1), 1]^T; over all layers together it is scaled to norm C at most, and no
    per-record gradient is stored.

    Parameters
    ----------
    data : SiloData
        N records in m silos, without intercept: every layer has biases of its own.
    params : array_like, shape (P,) or (m, P)
        One model for all silos, or one per silo; P = ``mlp_size(data.n_features, layers)``. Layer
        after layer the matrix W_l, of shape (n_l, n_(l-1) + 1), by rows; its last column is the
        bias.
    layers : sequence of int
        Sizes n_1, ..., n_L of the hidden layers and of the output; ``(n_L,)`` has no hidden layer.
    activation : {"relu", "tanh"}
        Of the hidden layers. The slope of relu at 0 is 0.
    loss : str or Loss
        "softmax", cross-entropy of the softmax of all outputs, one for each class, at least 2; or a
        margin loss of one output, see `dpkern.models.losses`.
    clip : float
        Bound C > 0 of a record's whole gradient in l2 norm. Infinity turns clipping and grid off.
    grid : float or array_like, shape (m,), optional
        Power of two >= q^2, one for all silos or one per silo, to which the exact sum is rounded
        once, ties to even: that of the noise. None is q^2 itself, which rounds nothing.
    silo_weight : array_like, shape (m,), optional
        Factors in [0, 1] on the gradients of a silo, applied before rounding.
    rows : (indices, offsets), optional
        A minibatch: int64 record indices sorted by silo, and its (m + 1,) int64 offsets. A record
        that occurs r times counts r times, also in the sensitivity.
    records : int, optional
        A number of records to choose q by where N is not public; N may be 2^5 times as large.
    out : ndarray, shape (m, P), optional
        Float64, C order; written and returned.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a record whose
        gradient is not finite, or more than 2^500 times too long, counts as zero.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, `grid` is finer than q^2, or no q serves.

    Notes
    -----
    Sensitivity: replacing one record moves its silo's sum by at most 2 C in l2 norm over all
    parameters and no other silo's, exactly, for the doubles returned; adding or removing one by at
    most C. A coarser grid adds ``grid * sqrt(P)``.

    With s = min(1, C' / G), C' = C (1 - (n_0 + ... + n_L + 16) 2^-50), G an upper bound of the
    norm of the gradient, each delta a^T becomes q^2 k h^T with integer vectors
    k = trunc((s / t) delta / q), h = trunc(t a / q) and t = sqrt(s |delta| / |a|), so that
    |k| |h| q^2 <= s |delta| |a|; truncation lengthens neither. The step q is the finest with
    n ceil(C / q^2) <= 2^52, n = max(N, number of `rows`) or 2^5 `records`: all sums are then exact,
    in any order. Norms without per-record gradients are those of [1]_.

    Activations and derivatives are doubles, summed in a fixed order: a record's part does not
    depend on the records beside it, nor on its place.

    References
    ----------
    .. [1] Goodfellow, "Efficient per-example gradient computations", 2015.
    """
    points = _networks(data, (("params", params),), layers)
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out, n_threads)
    return _mlp(data, points, *how)


def mlp_difference(
    data: "SiloData",
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
    clip : float
        Bound C > 0 of a record's difference in l2 norm. Infinity turns its clipping and the grid
        off.
    gradient_clip : float
        Bound B > 0 of each of the two gradients: the `clip` of the `mlp_gradient` that the
        differences continue. Infinity: those of the loss itself.
    data, layers, activation, loss, grid, silo_weight, rows, records, out, n_threads
        As in `mlp_gradient`.

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. A gradient that is not finite, or more
        than 2^500 times too long, counts as zero, and so does such a difference under a finite
        clip. Exactly 0 where `params_new` is `params_old`.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit, `grid` is finer than q^2, or no q serves.

    Notes
    -----
    Sensitivity: replacing one record moves its silo's sum by at most 2 C in l2 norm over all
    parameters and no other silo's, exactly, for the doubles returned, whatever B is; adding or
    removing one by at most C. A coarser grid adds ``grid * sqrt(P)``.

    Why two bounds: see `glm_difference`. Differences of gradients clipped to B telescope with sums
    of them; no more than 2 B of C is ever used.

    In layer l the difference is U + V with U = (delta - m delta') a^T and
    V = m delta' (a - a' / m)^T, primed at the old point; delta holds the factor that clips to B,
    and m = sqrt(|delta| |a'| / (|delta'| |a|)) keeps U and V as small as the difference. Both
    become integer outer products as in `mlp_gradient`. The norm D of U + V over all layers needs
    scalar products only, |U + V|^2 = |U|^2 + |V|^2 + 2 <U, V>. Truncation shortens U and V, but not
    their sum: it may take from one what cancels in the other. It adds at most q sqrt(8 C) R to a
    record's norm, R^4 the sum of (sqrt(n_l) + sqrt(n_(l-1) + 1))^4 over all layers but the first,
    as long as |U| + |V|, or T over all layers, is at most 4 C after scaling. So
    s = min(1, C' / max(D, T / 4)), C' = (C - q sqrt(8 C) R) (1 - (2 (n_0 + ... + n_L) + 80) 2^-50):
    a record is scaled to less than C where U and V are long and nearly cancel, which takes
    derivatives and inputs that both turn around. The step q is the finest with
    n ceil(4 C / q^2) <= 2^52, n as in `mlp_gradient`; q sqrt(8 C) R must not be above C / 32.
    """
    points = _networks(data, (("params_new", params_new), ("params_old", params_old)), layers)
    bound = positive("gradient_clip", gradient_clip, or_infinite=True)
    how = (layers, activation, loss, clip, grid, silo_weight, rows, records, out, n_threads)
    return _mlp(data, points, *how, gradient_clip=bound)


def _mlp(
    data: "SiloData",
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
        raise ValueError(f"activation is {activation!r}; it must be {' or '.join(ACTIVATIONS)}")
    compiled = None if loss == "softmax" else _loss(loss)
    _check_outputs(data, int(sizes[-1]), loss)
    clip = positive("clip", clip, or_infinite=True)
    rows = None if rows is None else _minibatch(data, rows)
    summed = data.n if rows is None else len(rows[0])
    # Not the size of the batch: under Poisson sampling that is private, and q would tell it.
    n = max(data.n, summed)
    if records is not None:
        if n > count("records", records) << 5:
            raise ValueError(f"records is {records}; it must be at least a 2^5-th of {n}")
        n = records << 5
    unit, grids = _product_grids(
        "clip",
        clip,
        grid,
        m=data.m,
        n=n,
        choose=lambda: mlp_factor_grid(n, clip, sizes.tolist(), points=len(points)),
    )
    weights = _silo_weights(silo_weight, data.m)
    out = _output(out, (data.m, points.shape[2]))
    number = ACTIVATIONS.index(activation)
    threads = resolve_threads(n_threads, summed * points.shape[2])
    _core.mlp_gradient(
        data,
        points,
        sizes,
        number,
        compiled,
        clip,
        gradient_clip,
        unit,
        grids,
        weights,
        rows,
        out,
        threads,
    )
    return out


def newton_direction(
    H: ArrayLike, g: ArrayLike, *, floor: float, n_threads: int | None = None
) -> FloatArray:
    """Newton directions with the Hessian's eigenvalues truncated from below.

    Parameters
    ----------
    H : array_like, shape (m, d, d)
        One symmetric matrix per silo, finite. Its lower triangle is read, and nothing else.
    g : array_like, shape (m, d)
        One vector per silo, finite.
    floor : float
        Least eigenvalue, positive and finite.
    n_threads : int, optional
        None means the cores that the process may use; silos run in parallel, each in one thread of
        LAPACK. The result does not depend on it.

    Returns
    -------
    p : ndarray, shape (m, d)
        p_j = (V max(lam, floor) V^T)^-1 g_j with H_j = V diag(lam) V^T. Float64.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    RuntimeError
        When LAPACK finds no eigenvalues.

    Notes
    -----
    Where a Cholesky factorisation of H - floor I succeeds, no eigenvalue is below the floor, and
    Cholesky of H solves the system; else the eigenvalues are found. In floating point an eigenvalue
    within d u |H| of the floor, u = 2^-53, may be taken for either side of it: a change of H of the
    size that every algorithm makes of it anyway. So |p| <= |g| / floor holds up to the relative
    error that this means, d u |H| / floor.

    While it runs, every BLAS in the process that threadpoolctl knows is limited to one thread.
    """
    H, g = _real("H", H), _real("g", g)
    if H.ndim != 3 or H.shape[1] != H.shape[2] or not H.size:
        raise ValueError(f"H must have shape (m, d, d), m, d >= 1, got {H.shape}")
    m, d = H.shape[:2]
    if d > _core.NEWTON_MAX:
        raise ValueError(f"H is {d} x {d}; it must be at most {_core.NEWTON_MAX}")
    if g.shape != (m, d):
        raise ValueError(f"g must have shape ({m}, {d}), got {g.shape}")
    if not np.isfinite(g).all():
        raise ValueError("g must be finite")
    floor = positive("floor", floor)
    out = np.empty((m, d))
    threads = resolve_threads(n_threads, H.size * d // 8)
    lapack = _lapack()
    with one_blas_thread():
        _core.newton_direction(H, g, floor, lapack, out, threads)
    return out


@functools.cache
def _lapack() -> _core.Lapack:
    """Found when first needed: scipy.linalg takes a while to import."""
    return _core.Lapack()


def prox(
    name: str | Term,
    v: ArrayLike,
    gamma: float,
    *,
    out: FloatArray | None = None,
    n_threads: int | None = None,
    **parameters: Any,
) -> FloatArray:
    """Proximal operator argmin_x gamma r(x) + |x - v|^2 / 2 of a vector, or of every row.

    Parameters
    ----------
    name : str or Term
        A name below, or an object of `dpkern.models.penalties`, which holds its parameters.
    v : array_like, shape (d,) or (m, d)
        Finite.
    gamma : float
        Step >= 0, finite; of no effect on a projection. At most 1/4 for "pl": beyond, some v have
        two minimisers.
    out : ndarray, shape of `v`, optional
        Float64, C order; written and returned; `v` itself or apart from it. A call with `out` is
        several times faster on vectors beyond the caches: new memory is mapped page by page.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.
    **parameters
        The regulariser's own.

    Returns
    -------
    x : ndarray, shape of `v`
        Float64.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit; after a `v` that is not finite `out` is of no use.

    Notes
    -----
    ================  =======================================  ================================
    name              r(x)                                     parameters
    ================  =======================================  ================================
    "l1"              |x|_1
    "l2_squared"      |x|^2 / 2
    "elastic_net"     a |x|_1 + (1 - a) |x|^2 / 2              `l1_ratio` = a in [0, 1]
    "group_lasso"     sum_g weight_g |x_g|                     `groups` (sizes), `weights` or None
    "pl"              |x|^2 + 3 sin^2 |x|
    "l2_ball"         0 where |x| <= radius                    `radius`
    "box"             0 where lower <= x <= upper              `lower`, `upper`: numbers or (d,)
    "non_negative"    0 where x >= 0
    "simplex"         0 where x >= 0 and sum x = total         `total`
    ================  =======================================  ================================

    A vector is cut among threads where r is a sum over coordinates; else the rows of a matrix are.
    Ball, simplex and box are kept up to what `dpkern.models.penalties` states. Norms do not
    overflow.
    """
    penalty = _prox_penalty(name, parameters)
    gamma = not_negative("gamma", gamma) * penalty.strength
    _refuse_step("gamma", gamma, penalty)
    points = _real("v", v)
    if points.ndim not in (1, 2):
        raise ValueError(f"v must have shape (d,) or (m, d), got {points.shape}")
    _refuse_size("v", points.shape[-1], penalty)
    given, out = out is not None, _output(out, points.shape)
    if given and np.may_share_memory(out, points) and _address(out) != _address(points):
        raise ValueError("out overlaps v; it must be v itself or apart from it")
    threads = resolve_threads(n_threads, points.size)
    if points.size:
        # Without parameters per coordinate rows are one long vector where coordinates are apart.
        flat = points.ndim == 1 or (penalty.separable and penalty.size is None)
        shape = (1, points.size) if flat else points.shape
        _core.prox_rows(
            _PROX_NUMBERS[penalty.name],
            penalty.separable,
            penalty.params,
            points.reshape(shape),
            gamma,
            out.reshape(shape),
            threads,
        )
    return out


def shuffle_sum(
    V: ArrayLike,
    *,
    bound: float,
    g: int,
    b: int,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Sum of vectors as the analyser of the shuffle protocol finds it, with binomial noise.

    Every vector's owner encodes each coordinate x of it as R(t), t = g (x + L) / (2 L), rounded to
    one of the two integers beside t so that the mean is t, adds Bin(b, 1/2), and sends that many
    ones among g + b bits labelled with the coordinate. The analyser of the shuffled bits counts
    the ones of a coordinate. The counts are drawn here without the bits, from the same law:

        count_k = sum_i R(t_ik) + Bin(N b, 1/2),    sum_k = (L / g) (2 count_k - N (g + b)).

    2^20 coins at a time, then 2^12, are tossed together, by inversion of their law from a word of
    the stream and as many more as it takes; the last ones are bits of the stream.

    Parameters
    ----------
    V : array_like, shape (N, d)
        One vector a record, float64, N, d >= 1. One longer than `bound` is scaled to it; one whose
        norm is no number counts as 0.
    bound : float
        L > 0, the l2 bound of a vector, between 2^-100 and 2^400. Public.
    g : int
        Steps of the grid on [-L, L], at least 1.
    b : int
        Coins that every vector adds to each coordinate; 0 adds no noise. N (g + b) <= 2^52.
    rng : None, int >= 0 or NoiseStream
        As in `gaussian`; one release.
    n_threads : int, optional
        None means the cores that the process may use. The result does not depend on it.

    Returns
    -------
    total : ndarray, shape (d,)
        Float64: unbiased for the sum of the clipped vectors, with a variance per coordinate of
        (L / g)^2 N b for the coins and at most (L / g)^2 N for the rounding.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit.
    RuntimeError
        When the stream was wiped or belongs to another process.

    Notes
    -----
    Sensitivity of the counts, exactly, for the doubles computed: with the other coins and the
    uniform numbers of the rounding given, replacing a vector moves them by less than g + sqrt(d) in
    l2 norm and by at most g in each coordinate. `dpkern.privacy.BinomialSum` says how many coins
    that takes. The coins of a coordinate follow their law within 2^-143 in total variation.

    References
    ----------
    Lowy, Ghafelebashi, Razaviyayn (2023), Algorithms 4 and 5 (after Cheu, Joseph, Mao, Peng 2021).
    As printed they take b n and L from a sum of N vectors, which is right for one vector only, and
    encode a range of 2 L on g slots of L / g.
    """
    vectors = _real("V", V)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"V must have shape (N, d), N, d >= 1, got {vectors.shape}")
    n, d = vectors.shape
    bound, g, b = shuffle_parameters(n, d, bound, g, b)
    counts = np.empty(d, dtype=np.int64)
    threads = resolve_threads(n_threads, d * (n + (n * b >> MANY) + 64))
    purposes = Purpose.ROUNDING, Purpose.BINOMIAL
    many, few = (coins_together(k) if n * b >> k else None for k in (MANY, FEW))
    with _release(rng) as release:
        _core.shuffle_sum(release.key, *purposes, vectors, bound, g, b, many, few, counts, threads)
    return (2 * counts - n * (g + b)) * (bound / g)


@functools.cache
def coins_together(k: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """The law of |X - 2^(k-1)| for X of Bin(2^k, 1/2), as `dpk_together` in shuffle.h has it.

    Weights are in proportion to binomial coefficients, rounded down from 320 bits on, and left out
    below 2^-220 of the largest: all of that moves no T(y) by more than 2^-12 of its last bit, which
    is rounded down.
    """
    half, weights = 1 << (k - 1), [1 << 320]
    while weights[-1] >> 100:
        y = len(weights) - 1
        weights.append(weights[-1] * (half - y) // (half + y + 1))
    sums = list(accumulate(2 * w if y else w for y, w in enumerate(weights)))
    T = [(s << 191) // sums[-1] for s in sums]
    low = (1 << 64) - 1
    top = np.array([t >> 128 for t in T], dtype=np.uint64)
    rest = np.array([[t >> 64 & low, t & low] for t in T], dtype=np.uint64)
    guide = np.searchsorted(top, np.arange(1024, dtype=np.uint64) << np.uint64(53))
    return top, rest.ravel(), guide.astype(np.int64)


def shuffle_parameters(n: int, d: int, bound: float, g: int, b: int) -> tuple[float, int, int]:
    """Bound, steps and coins of a sum of n vectors, or an error that names the one out of range."""
    bound = positive("bound", bound)
    if not 2.0**-100 <= bound <= 2.0**400:
        raise ValueError(f"bound is {bound!r}; it must lie between 2^-100 and 2^400")
    g, b = count("g", g), count("b", b, 0)
    if n * (g + b) > 1 << 52:
        raise ValueError(
            f"{n} vectors with g = {g} and b = {b} count up to {n * (g + b)}; n (g + b) must be at "
            "most 2^52"
        )
    if n * b * d > MAX_DRAWS:
        raise ValueError(
            f"{n} vectors of {d} coordinates with b = {b} toss more than 2^62 coins in one release"
        )
    return bound, g, b


def info() -> dict[str, Any]:
    """What this installation runs on.

    Returns
    -------
    info : dict
        version, isa (in use), isas (usable here, best first), openmp, n_threads, blas.
    """
    from importlib.metadata import version

    from threadpoolctl import threadpool_info

    blas = [lib["internal_api"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    return {
        "version": version("dpkern"),
        "isa": _core.isa(),
        "isas": _core.isa_names(),
        "openmp": _core.openmp,
        "n_threads": usable_cores() if _core.openmp else 1,
        "blas": sorted(set(blas)),
    }


def flushes_denormals() -> bool:
    """Whether the calling thread takes denormals for zeros, or returns zeros for them.

    Norms of rows that were computed so do not bound the rows that other threads see.
    """
    return _core.flushes_denormals()


def on_grid(sums: FloatArray, grid: float | FloatArray) -> bool:
    """Whether sums (k, ...) are multiples of their grid, one or (k,), within 2^52 steps."""
    grids = np.full(len(sums), grid) if isinstance(grid, float) else grid
    return _core.on_grid(np.ascontiguousarray(sums).reshape(len(sums), -1), grids)


def finest_grid(n: int, clip: float) -> float:
    """The finest power of two q with max(n, 2) C <= 2^52 q, within 2^-400 .. 2^400.

    Sums of n vectors of norm C are exact in doubles on it (and on every coarser one).
    """
    mantissa, exponent = math.frexp(clip)
    numerator = max(n, 2) * int(mantissa * 2.0**53)
    # Smallest e with numerator 2^(exponent - 53) <= 2^(52 + e): a ceiling of log2, in integers.
    e = (numerator - 1).bit_length() + exponent - 53 - 52
    if e > 400:
        raise ValueError(f"clip = {clip!r} with {n} records needs a grid coarser than 2^400")
    return math.ldexp(1.0, max(e, -400))


def hessian_row_grid(n: int, hess_clip: float, dim: int) -> float:
    """The finest power of two q with n ceil(B / q^2) <= 2^52, within 2^-200 .. 2^200.

    Sums of n outer products q^2 k k^T of integer vectors k with |q k|^2 <= B are exact in doubles:
    q^2 is their grid.

    Raises
    ------
    ValueError
        When q sqrt(d) > sqrt(B) / 32, as rounding would take too much of a row, or q would lie
        above 2^200.
    """
    return _factor_grid("hess_clip", n, hess_clip, dim)


def mlp_factor_grid(n: int, clip: float, sizes: Sequence[int], *, points: int = 1) -> float:
    """Power of two q that `mlp_gradient` (``points=1``) and `mlp_difference` (2) round factors to,
    for layers of n_0, ..., n_L = ``sizes`` and n records: q^2 is the grid of their sums.

    Raises
    ------
    ValueError
        When q would lie outside 2^-200 .. 2^200, or take too much of a record: q sqrt(n_l + 1) more
        than sqrt(clip) / 32 for a layer, or q sqrt(8 clip) R more than clip / 32 of a difference.
    """
    dim = max(sizes) + 1
    if points == 1:
        return _factor_grid("clip", n, clip, dim)
    fourth = sum(
        (math.sqrt(out) + math.sqrt(inputs + 1)) ** 4 for inputs, out in pairwise(sizes[1:])
    )
    dim = max(dim, math.ceil(32.0 * math.sqrt(fourth)))
    return _factor_grid("4 * clip", n, min(4.0 * clip, sys.float_info.max), dim)


def _factor_grid(name: str, n: int, bound: float, dim: int) -> float:
    clip, exponent = Fraction(bound), -200
    if n <= 1 << 52:
        # The least e with B <= 4^e floor(2^52 / n): half of a ceiling of log2, in integers.
        ratio = clip / ((1 << 52) // n)
        log2 = ratio.numerator.bit_length() - ratio.denominator.bit_length()
        log2 += ratio > Fraction(2) ** log2
        exponent = max(-(-log2 // 2), -200)
    q = Fraction(2) ** exponent
    if n > 1 << 52 or exponent > 200 or q * q * dim * 1024 > clip:
        raise ValueError(
            f"{name} = {bound!r} with n = {n} records of d = {dim} coordinates has no exact "
            "sum: rows would be rounded to a power of two q between 2^-200 and 2^200 with "
            f"n ceil({name} / q^2) <= 2^52 and q sqrt(d) <= sqrt({name}) / 32"
        )
    return float(q)


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__


def _vectors(G: object) -> NDArray[Any]:
    """`G` as rows that the core can read, copied only where they are strided or misaligned."""
    if not isinstance(G, np.ndarray) and hasattr(G, "__dlpack__"):
        try:
            G = np.from_dlpack(G)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"G, a {_kind(G)}, cannot be read: {error}. It must lie in the memory of the CPU "
                "and not require grad (PyTorch: G.detach().cpu())"
            ) from error
    if not isinstance(G, np.ndarray) or G.dtype not in (np.float32, np.float64):
        raise TypeError(f"G must be a float32 or float64 array, got {_kind(G)}")
    if G.ndim != 2 or 0 in G.shape:
        raise ValueError(f"G must have shape (n, P), n, P >= 1, got {_kind(G)}")
    return np.require(G, requirements=["C", "A"])


def _models(data: "SiloData", w: ArrayLike, name: str = "w") -> FloatArray:
    """`w` as (1, d) or (m, d)."""
    models = _real(name, w)
    if models.shape not in ((data.d,), (data.m, data.d)):
        raise ValueError(
            f"{name} must have shape ({data.d},) or ({data.m}, {data.d}), got {models.shape}"
        )
    if not np.isfinite(models).all():
        raise ValueError(f"{name} must be finite")
    return models.reshape(-1, data.d)


def _layers(layers: Sequence[int]) -> list[int]:
    if not isinstance(layers, Sequence) or isinstance(layers, str) or not layers:
        raise TypeError(f"layers must be a sequence of sizes, at least one, got {layers!r}")
    return [count(f"layers[{i}]", size) for i, size in enumerate(layers)]


def _networks(
    data: "SiloData", points: tuple[tuple[str, ArrayLike], ...], layers: Sequence[int]
) -> FloatArray:
    """Parameters at every point as (points, 1 or m, P)."""
    if data.intercept:
        raise ValueError("data has an intercept; layers have biases of their own: make it without")
    size = mlp_size(data.n_features, layers)
    arrays = [_real(name, given) for name, given in points]
    for (name, _), array in zip(points, arrays, strict=True):
        if array.shape not in ((size,), (data.m, size)) or array.shape != arrays[0].shape:
            raise ValueError(
                f"{name} must have shape ({size},) or ({data.m}, {size}) for layers = "
                f"{tuple(layers)} on {data.n_features} features"
                + f", the same as {points[0][0]}" * (len(points) > 1)
                + f", got {array.shape}"
            )
        if not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite")
    if len(arrays) == 1:
        return arrays[0].reshape(1, -1, size)
    return np.stack([array.reshape(-1, size) for array in arrays])


def _check_outputs(data: "SiloData", outputs: int, loss: str | Loss) -> None:
    if loss != "softmax":
        if outputs != 1:
            raise ValueError(f"layers ends with {outputs}; loss = {loss!r} has 1 output")
        if data.task == "multiclass":
            raise ValueError("data has several classes; loss must be 'softmax'")
        return
    if data.classes_ is None:
        raise ValueError("loss is 'softmax', which needs classes; data has real targets")
    if outputs != len(data.classes_) or outputs < 2:
        raise ValueError(
            f"layers ends with {outputs}; softmax has one output for each of the "
            f"{len(data.classes_)} classes of the data, and at least 2"
        )


def _loss(loss: str | Loss) -> _core.Loss:
    loss = get_loss(loss)
    if isinstance(loss, Custom):
        return _core.Loss.custom(loss.callable)
    return _compiled(loss, _core.isa())


@functools.lru_cache(maxsize=64)
def _compiled(loss: Loss, isa: str) -> _core.Loss:
    """A loss of the table, which is another one for every instruction set."""
    return _core.Loss(_core.loss_names().index(loss.name), _parameters(loss.params))


def _convex(loss: str | Loss) -> Loss:
    checked = get_loss(loss)
    if not checked.convex:
        raise ValueError(
            f"loss is {checked.name!r}, which is not convex: its prox is not a function"
        )
    return checked


def _prox_bound(step: float, clip: float, name: str) -> float:
    """Bound of a vector of length step * clip; it must be a normal double, or infinite as clip."""
    bound = step * clip
    if not bound >= 2.0**-1000 or (math.isinf(bound) and not math.isinf(clip)):
        raise ValueError(f"{name} times clip is {bound!r}; it must be neither 0 nor infinite")
    return bound


def _start(data: "SiloData", value: ArrayLike, name: str = "start") -> FloatArray:
    point = _real(name, value)
    if point.shape != (data.d,):
        raise ValueError(f"{name} must have shape ({data.d},), got {point.shape}")
    if not np.isfinite(point).all():
        raise ValueError(f"{name} must be finite")
    return point


def _state(data: "SiloData", state: ProxState) -> tuple[FloatArray, FloatArray | None]:
    """The arrays of a state, checked: the kernels write to them."""
    if not isinstance(state, ProxState):
        raise TypeError(f"state must be a ProxState, got {_kind(state)}")
    own, shared = (data.n, data.d), (data.d,)
    arrays: dict[str, tuple[object, list[tuple[int, ...]]]] = {
        "common": (state.common, [own] if state.scale is None else [shared, own])
    }
    if state.scale is not None:
        arrays["scale"] = (state.scale, [(data.n,)])
    for name, (array, allowed) in arrays.items():
        if (
            not isinstance(array, np.ndarray)
            or array.dtype != np.float64
            or array.shape not in allowed
            or not array.flags.carray
        ):
            raise ValueError(
                f"state.{name} must be a float64 array, C-contiguous, aligned and writeable, of "
                f"shape {' or '.join(map(str, allowed))}, got {_kind(array)}"
            )
    return state.common, state.scale


def _increasing(name: str, values: NDArray[np.int64], what: str, n: int) -> NDArray[np.int64]:
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"{name} must be an int64 array of shape (k,), got {_kind(values)}")
    values = np.require(values, requirements=["C", "A"])
    if len(values) and (values[0] < 0 or values[-1] >= n or np.any(values[1:] <= values[:-1])):
        raise ValueError(f"{name} must be distinct and increasing {what} in 0 .. {n - 1}")
    return values


def _penalty(
    name: str, value: str | Term | None, compiled: list[str]
) -> tuple[int, float, FloatArray]:
    """Number in the compiled table (-1: none), strength and parameters of a penalty."""
    if value is None:
        return -1, 0.0, _parameters(())
    penalty = get_penalty(value)
    if penalty.name not in compiled:
        raise ValueError(f"{name} must be one of {', '.join(compiled)}, got {penalty.name!r}")
    return compiled.index(penalty.name), penalty.strength, penalty.params


def _prox_penalty(name: str | Term, parameters: dict[str, Any]) -> Term:
    """What `prox` is asked for."""
    which = name.name if isinstance(name, Term) else name
    if which not in PENALTIES:
        raise ValueError(f"name must be one of {', '.join(PENALTIES)}, got {which!r}")
    if isinstance(name, str):
        return make_penalty(name, parameters)
    if parameters:
        raise TypeError(
            f"{', '.join(parameters)} must be absent beside a penalty, which holds its own"
        )
    return name


def _refuse_step(what: str, gamma: float, penalty: Term) -> None:
    if gamma > penalty.largest_gamma:
        raise ValueError(
            f"{what} is {gamma!r}; {penalty.name} needs at most {penalty.largest_gamma}: "
            "beyond, some points have two minimisers"
        )


def _refuse_size(what: str, d: int, penalty: Term) -> None:
    if penalty.size not in (None, d):
        raise ValueError(
            f"{what} has {d} coordinates; the parameters of {penalty.name} are for {penalty.size}"
        )


def _step_sizes(step_size: ArrayLike, steps: int) -> FloatArray:
    eta = _real("step_size", step_size)
    if eta.shape not in ((), (steps,)):
        raise ValueError(f"step_size must be a number or have shape ({steps},), got {eta.shape}")
    if not (np.all(np.isfinite(eta)) and np.all(eta > 0.0)):
        raise ValueError("step_size must be positive and finite")
    return np.ascontiguousarray(np.broadcast_to(eta, (steps,)))


def _parameters(params: Sequence[float]) -> FloatArray:
    """At least one entry, so that there is an address to hand over."""
    return np.array([*params, 0.0])


def _real(name: str, value: ArrayLike) -> FloatArray:
    """`value` as a C-contiguous, aligned float64 array."""
    if type(value) is np.ndarray and value.dtype is _FLOAT64:
        flags = value.flags
        if flags.c_contiguous and flags.aligned:
            return value  # the usual case of a solver's round
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be a rectangular array of numbers") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be real numbers, got {_kind(array)}")
    return np.require(array, np.float64, ["C", "A"])


def _address(array: FloatArray) -> int:
    return array.__array_interface__["data"][0]


def _output(out: FloatArray | None, shape: tuple[int, ...], name: str = "out") -> FloatArray:
    if out is None:
        return np.empty(shape)
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float64
        or out.shape != shape
        or not out.flags.carray
    ):
        raise ValueError(
            f"{name} must be a float64 array, C-contiguous, aligned and writeable, of shape "
            f"{shape}, got {_kind(out)}"
        )
    return out


def _per_silo(name: str, value: ArrayLike, m: int) -> FloatArray:
    if isinstance(value, float):  # the usual case
        return np.array([value]) if m == 1 else np.full(m, value)
    values = _real(name, value)
    if values.shape == (m,):
        return values
    if values.shape != ():
        raise ValueError(f"{name} must be a number or have shape ({m},), got {values.shape}")
    return np.full(m, values)


def _silo_weights(silo_weight: ArrayLike | None, m: int) -> FloatArray | None:
    if silo_weight is None:
        return None
    weights = _per_silo("silo_weight", silo_weight, m)
    if not (np.all(weights >= 0.0) and np.all(weights <= 1.0)):
        raise ValueError("silo_weight must lie in [0, 1]")
    return weights


def _product_grids(
    name: str, bound: float, grid: ArrayLike | None, *, m: int, n: int, choose: Callable[[], float]
) -> tuple[float, FloatArray | None]:
    """Step q of integer-valued factors, 0 for plain float sums, and the grids of the sums of their
    products, None for q^2.

    On grids of q^2 and more the sum over all silos is a double exactly, too.
    """
    if math.isinf(bound):
        if grid is not None:
            raise ValueError(f"grid needs a finite {name}: unbounded sums are not exact")
        return 0.0, None
    q = choose()
    if grid is None:
        return q, None
    grids = _per_silo("grid", grid, m)
    for step in set(grids.tolist()):
        if not _is_grid(step):
            raise ValueError("grid must be a power of two between 2^-400 and 2^400")
        if step < q * q:
            raise ValueError(
                f"grid is {step}; with {name} = {bound!r} and n = {n} records it must be at least "
                f"{q * q}"
            )
    return q, grids


def _grids(
    grid: ArrayLike | None,
    *,
    offsets: NDArray[np.int64],
    dim: int,
    clip: float,
    saturate: bool = False,
) -> FloatArray | None:
    """One grid per silo, checked against the bounds of an exact sum; None for plain float sums.

    A silo's own sum must be a double exactly, so its own number of records decides. Whoever adds
    sums over silos owes max(N, 2) C <= 2^52 q on a common grid: the default keeps it, and a
    mechanism that passes a grid has chosen it so.
    """
    if math.isinf(clip):
        if grid is not None:
            raise ValueError("grid needs a finite clip: sums of unbounded vectors are not exact")
        return None
    if grid is None:
        grids = _per_silo("grid", finest_grid(int(offsets[-1]), clip), len(offsets) - 1)
    else:
        grids = _per_silo("grid", grid, len(offsets) - 1)
        # Silos differ little here, and Python's numbers answer sooner than NumPy's.
        sizes = np.diff(offsets) if len(offsets) > 2 else offsets[1:]
        for q, n in set(zip(grids.tolist(), sizes.tolist(), strict=True)):
            if not _is_grid(q):
                raise ValueError("grid must be a power of two between 2^-400 and 2^400")
            if _exact(n, saturate) * clip > 2.0**52 * q:
                raise ValueError(
                    f"grid is too fine for {n} records with clip = {clip!r}: "
                    f"max({n}, 2) clip must be <= 2^52 grid, got grid = {q}"
                )
    # In both tests one operation rounds, and monotonically: no grid is refused that the reals
    # allow, and none accepted that misses the bound by more than one rounding. Exactness needs
    # 2^53 and the inner clip bound a positive C', so both bounds have that room.
    coarsest = float(grids[0]) if grid is None else max(grids.tolist())
    if coarsest * math.sqrt(dim) > clip / 32.0:
        raise ValueError(
            f"grid is too coarse: grid * sqrt({dim}) must be at most clip / 32 = {clip / 32.0:g}, "
            f"got grid = {coarsest}"
        )
    return grids


def _per_candidate(name: str, value: ArrayLike, shape: tuple[int, int]) -> FloatArray:
    """`value`, of shape (k,) or (m, k), as (m, k)."""
    values = _real(name, value)
    if values.shape not in (shape, shape[1:]):
        raise ValueError(f"{name} must have shape {shape[1:]} or {shape}, got {values.shape}")
    return np.ascontiguousarray(np.broadcast_to(values, shape))


def _candidate_grids(
    grid: ArrayLike | None,
    *,
    offsets: NDArray[np.int64],
    bounds: FloatArray,
    saturate: bool = False,
) -> FloatArray:
    """One grid per silo and candidate, checked as in `_grids` against one record's bound."""
    if grid is None:
        n = int(offsets[-1])
        finest = {b: finest_grid(n, b) for b in set(bounds.ravel().tolist())}
        grids = np.array([[finest[b] for b in row] for row in bounds.tolist()])
    else:
        same = np.ndim(grid) == 0
        shape = (bounds.shape[0], bounds.shape[1])
        grids = _per_candidate("grid", np.full(shape, grid) if same else grid, shape)
    for n, own, limits in zip(np.diff(offsets).tolist(), grids, bounds, strict=True):
        for q, b in zip(own.tolist(), limits.tolist(), strict=True):
            if not _is_grid(q):
                raise ValueError("grid must be a power of two between 2^-400 and 2^400")
            if _exact(n, saturate) * b > 2.0**52 * q:
                raise ValueError(
                    f"grid is too fine for {n} records with bound = {b!r}: "
                    f"max({n}, 2) bound must be <= 2^52 grid, got grid = {q}"
                )
            if q > b / 32.0:
                raise ValueError(f"grid is {q}; it must be at most bound / 32 = {b / 32.0:g}")
    return grids


def _exact(n: int, saturate: bool) -> float:
    """What times one record's bound may not exceed 2^52 steps of the grid.

    A record alone must stay within 2^51 (gridsum.h), and a sum, where it is clamped afterwards,
    within the 2^62 that 64-bit integers hold with room to spare.
    """
    return max(n / 1024 if saturate else n, 2)


def _saturated(out: FloatArray, grids: FloatArray) -> FloatArray:
    """Sums clamped to 2^52 steps; above 2^53 a sum was rounded to a double, which crosses none."""
    most = 2.0**52 * grids
    return np.clip(out, -most, most, out=out)


def _is_grid(q: float) -> bool:
    return 2.0**-400 <= q <= 2.0**400 and math.frexp(q)[0] == 0.5


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        # A tuple by its type first: an abstract class takes longer to ask.
        if type(shape) is tuple or isinstance(shape, Sequence):
            sizes = tuple(map(operator.index, shape))
        else:
            sizes = (operator.index(shape),)
    except TypeError:
        raise TypeError(f"shape must be an int or a sequence of ints, got {shape!r}") from None
    if not sizes or min(sizes) < 0:
        raise ValueError(f"shape must have at least one axis and sizes >= 0, got {shape!r}")
    if math.prod(sizes[:-1]) > MAX_SILOS:
        raise OverflowError(f"shape has more than 2^48 silos: {shape!r}")
    return sizes


def _noise_scale(sigma: ArrayLike, grid: ArrayLike | None, m: int) -> tuple[FloatArray, FloatArray]:
    """`sigma` and the grid of every row, checked against each other.

    Rows have few different scales, and Python's numbers check one in a fraction of NumPy's time:
    a solver asks for noise once a round.
    """
    sigmas = _per_silo("sigma", sigma, m)
    if grid is None:
        grids = np.array([_fine_step(s) for s in sigmas.tolist()])
    else:
        grids = _per_silo("grid", grid, m)
    pairs = list(zip(sigmas.tolist(), grids.tolist(), strict=True))
    for s, q in pairs if len(pairs) == 1 else set(pairs):
        if not 0.0 <= s < math.inf:
            raise ValueError("sigma must be finite and >= 0")
        if not _is_grid(q):
            cause = "grid" if grid is not None else "sigma / 2^26, rounded up to one,"
            raise ValueError(f"{cause} must be a power of two between 2^-400 and 2^400")
        if s > 2.0**32 * q:
            raise ValueError("sigma must be at most 2^32 grid")
    return sigmas, grids


def _fine_step(sigma: float) -> float:
    """The power of two q with 2^25 < sigma / q <= 2^26; 1 where there is no noise to round."""
    if not 0.0 < sigma < math.inf:
        return 1.0
    # sigma = f 2^e, 1/2 <= f < 1; the smallest power of two >= sigma is 2^(e - (f == 1/2)).
    fraction, exponent = math.frexp(sigma)
    return math.ldexp(1.0, exponent - (fraction == 0.5) - 26)


def _release(rng: Random) -> ReleaseKey:
    """One release, for a `with` statement; a stream made for this call is overwritten at once."""
    if isinstance(rng, NoiseStream):
        return rng.release()
    with NoiseStream(rng) as stream:
        return stream.release()


def _offsets(offsets: ArrayLike, n: int, name: str = "offsets") -> NDArray[np.int64]:
    bounds = np.asarray(offsets)
    if bounds.ndim != 1 or bounds.dtype.kind not in "iu" or len(bounds) < 2:
        raise ValueError(f"{name} must be integers of shape (m + 1,), got {_kind(bounds)}")
    bounds = np.require(bounds, dtype=np.int64, requirements=["C", "A"])
    if bounds[0] != 0 or bounds[-1] != n or np.any(np.diff(bounds) < 0):
        raise ValueError(f"{name} must rise from 0 to the number of rows, {n}")
    return bounds


def _batches(data: "SiloData", batches: NDArray[np.int64], steps: int) -> Rows:
    """The records of all steps of all silos, one after the other, and where those of a silo end."""
    m = data.m
    if not isinstance(batches, np.ndarray) or batches.dtype != np.int64 or batches.ndim != 3:
        raise ValueError(
            f"batches must be an int64 array of shape ({m}, {steps}, n), got {_kind(batches)}"
        )
    if batches.shape[:2] != (m, steps) or not batches.shape[2]:
        raise ValueError(
            f"batches must have shape ({m}, {steps}, n) with n >= 1, got {batches.shape}"
        )
    if (
        np.any(batches[..., 0] < data.offsets[:-1, np.newaxis])
        or np.any(batches[..., -1] >= data.offsets[1:, np.newaxis])
        or np.any(batches[..., 1:] <= batches[..., :-1])
    ):
        raise ValueError("batches must hold distinct records of the silo, in increasing order")
    rows = np.require(batches.reshape(-1), requirements=["C", "A"])
    return rows, len(rows) // m * np.arange(m + 1)


def _minibatch(data: "SiloData", rows: Rows) -> Rows:
    if not isinstance(rows, tuple) or len(rows) != 2:
        raise TypeError(f"rows must be a pair (indices, offsets), got {_kind(rows)}")
    indices = np.asarray(rows[0])
    if indices.ndim != 1 or indices.dtype != np.int64:
        raise ValueError(f"rows[0] must be int64 of shape (k,), got {_kind(indices)}")
    indices = np.require(indices, requirements=["C", "A"])
    bounds = _offsets(rows[1], len(indices), "rows[1]")
    if len(bounds) != data.m + 1:
        raise ValueError(f"rows[1] must have shape ({data.m + 1},), got {bounds.shape}")
    silo = np.repeat(np.arange(data.m), np.diff(bounds))
    if np.any(indices < data.offsets[silo]) or np.any(indices >= data.offsets[silo + 1]):
        raise ValueError("rows[0] must hold records of the silo that rows[1] puts them in")
    return indices, bounds
