"""Rounds of noisy proximal gradient descent on the records of all silos, without Python between."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import dpkern.kernels._arguments as checked
from dpkern import _core
from dpkern._numbers import not_negative, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray, Random, several_models
from dpkern.kernels.grids import added_noise, sum_grids
from dpkern.models.losses import Loss
from dpkern.models.terms import Term
from dpkern.stream import Purpose, ReleaseKeys


def glm_descent(
    data: Data,
    w: ArrayLike,
    *,
    loss: str | Loss = "logistic",
    clip: ArrayLike,
    step_size: ArrayLike,
    scale: float,
    momentum: ArrayLike = 0.0,
    before: ArrayLike | None = None,
    l2: ArrayLike = 0.0,
    prox: str | Term | None = None,
    prox_step: ArrayLike | None = None,
    penalize_intercept: bool = True,
    sigma: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    silo_weight: ArrayLike | None = None,
    saturate: bool = False,
    subset_sizes: IntArray | None = None,
    poisson_last: NDArray[np.uint64] | None = None,
    rng: Random | Sequence[Random] = None,
    n_threads: int | None = None,
) -> FloatArray:
    r"""Run T rounds of noisy proximal gradient descent, for one model or several at once.

    For every round, v = w_t + beta (w_t - w_{t-1}), V = sum_j S_j(v) + Z_t with S_j as in
    `glm_gradient`, and w_{t+1} = prox_{gamma_t h}(v - eta_t (scale V + l2 v)).

    Parameters
    ----------
    data, loss, n_threads
        As in `dpkern.kernels`.
    w : array_like, shape (d,) or (k, d)
        The start, or those of k models, for which every round reads the records once.
    clip : float or array_like, shape (k,)
        Clip norm C of every model, all of them finite or all infinite.
    step_size : array_like, shape (T,) or (k, T)
        eta_t of every model, finite and > 0, for T >= 1 rounds.
    scale : float
        Weight of a record in the mean gradient, 1 / N for instance; finite and > 0.
    momentum : float or array_like, shape (k,)
        beta of every model, in [0, 1).
    before : array_like, shape of w, optional
        The models one round before `w`; by default `w` itself.
    l2 : float or array_like, shape (k,)
        Penalty (l2/2) |w|^2 of every model, finite and >= 0.
    prox : str or Term, optional
        A penalty b h or a constraint that is used through its prox, the same for all models.
    prox_step : array_like, shape (T,) or (k, T), optional
        gamma_t / b, finite and >= 0, for a strength that is not the same for all models; by default
        eta_t.
    penalize_intercept : bool
        Whether l2 and `prox` act on the intercept too.
    sigma : float or array_like, shape (k,), optional
        Std of the Gaussian noise on V; finite and >= 0.
    grid : float or array_like, shape (k,), optional
        Grid of V and of the noise, as in `glm_gradient` for the records of all silos together.
    silo_weight, saturate
        As in `glm_gradient`; with `saturate` entries of the sum over silos saturate, too.
    subset_sizes : ndarray, shape (m,), int64, optional
        For a single model: V is the sum over so many records of every silo, which every round draws
        anew without replacement (`dpkern.stream.ReleaseKey.subsets`).
    poisson_last : ndarray, shape (m,), uint64, optional
        In its place, for Poisson samples (`dpkern.stream.ReleaseKey.poisson_samples`).
    rng : None, int >= 0, NoiseStream, or a sequence of k of them
        As in `dpkern.kernels`. Every round uses a release for its samples, if there are any, then
        one for its noise, if there is any.

    Returns
    -------
    models : ndarray, shape (T, d) or (k, T, d)
        The models after every round.

    Notes
    -----
    The models are post-processing of T noisy sums, each of sensitivity 2 C under replacement of one
    record, and C where one is added or removed; amplification by secret samples is up to the
    caller. Bits are those of T rounds of `glm_gradient`, `gaussian` on the sum over silos, and
    `prox`.

    A model that overflows raises ValueError, and the models before it are lost.
    """
    checked.require_data(data)
    start = checked.finite_array("w", w)
    if start.ndim not in (1, 2) or start.shape[-1] != data.d:
        raise ValueError(f"w must have shape ({data.d},) or (k, {data.d}), got {start.shape}")
    k = 1 if start.ndim == 1 else len(start)
    eta, gamma = _steps(step_size, prox_step, k)
    beta, points = _first_points(start, before, momentum)
    factors = checked.per_silo("l2", l2, k)
    for value in factors.tolist():
        not_negative("l2", value)
    number, strength, params = checked.penalty("prox", prox, _core.prox_names())
    penalized = checked.penalized(data, penalize_intercept)
    if prox is not None:
        gamma = gamma * strength
        checked.require_prox(prox, penalized, "prox_step", float(gamma.max()))
    grid = None if grid is None else checked.per_silo("grid", grid, k)
    _, clips, chosen = several_models(data, points, "clip", clip, grid)
    if k > 1 and (math.isinf(clips[0]) or checked.is_custom(loss)):
        raise ValueError("w must be one model where clip is infinite or the loss a custom one")
    drawn = _samples(data, k, subset_sizes, poisson_last)
    n = data.n if subset_sizes is None else int(subset_sizes.sum())
    grids, stds, together = None, None, np.array([0, n])
    if math.isfinite(clips[0]):
        grids = np.empty((k, data.m))
        for i, (own, q) in enumerate(zip(clips.tolist(), chosen, strict=True)):
            q = None if q is None else q[:1]
            grids[i] = sum_grids(q, offsets=together, dim=data.d, clip=own, saturate=saturate)
    if sigma is not None:
        stds = added_noise(sigma, None if grids is None else grids[:, 0].copy(), k)
    weights = checked.silo_weights(silo_weight, data.m)
    rounds = eta.shape[1]
    out = np.empty((k, rounds, data.d))
    # Tiles of eight models take about as long as one model does.
    threads = resolve_threads(n_threads, n * data.d * (1 if k == 1 else (k + 7) // 8))
    # A number is drawn in the time of some twenty entries of the records.
    sampling_threads = resolve_threads(n_threads, 20 * rounds * n)
    releases = rounds * sum(used is not None for used in (stds, *drawn))
    with ExitStack() as stack:
        keys = [stack.enter_context(r).keys for r in _releases(rng, k, releases, start.ndim == 1)]
        # fmt: off
        _core.glm_descent(
            data, points, checked.compiled_loss(loss), clips, grids, weights,
            positive("scale", scale), eta, beta, np.atleast_2d(start), factors, penalized, number,
            gamma, params, keys, Purpose.GAUSSIAN, stds, Purpose.SAMPLING, *drawn, saturate, out,
            threads, sampling_threads, resolve_threads(n_threads, data.d),
        )
        # fmt: on
    return out[0] if start.ndim == 1 else out


def _steps(
    step_size: ArrayLike, prox_step: ArrayLike | None, k: int
) -> tuple[FloatArray, FloatArray]:
    """Return the steps of the gradient and of the prox, shape (k, T)."""
    eta = _rounds("step_size", step_size, k)
    eta = checked.positive_array("step_size", eta, eta.shape)
    gamma = eta if prox_step is None else _rounds("prox_step", prox_step, k)
    if gamma.shape != eta.shape:
        raise ValueError(f"prox_step must have one number for each round, got {gamma.shape[1]}")
    if not np.all(gamma >= 0.0):
        raise ValueError("prox_step must be at least 0, got an entry that is not")
    return eta, gamma


def _first_points(
    start: FloatArray, before: ArrayLike | None, momentum: ArrayLike
) -> tuple[FloatArray, FloatArray]:
    """Return beta of every model, and the points (k, d) of the first round."""
    beta = checked.per_silo("momentum", momentum, len(np.atleast_2d(start)))
    if not np.all((beta >= 0.0) & (beta < 1.0)):
        raise ValueError("momentum must lie in [0, 1), got a number that does not")
    previous = start if before is None else checked.finite_array("before", before)
    if previous.shape != start.shape:
        raise ValueError(f"before must have the shape {start.shape} of w, got {previous.shape}")
    return beta, np.atleast_2d(start + beta[:, np.newaxis] * np.atleast_2d(start - previous))


def _rounds(name: str, value: ArrayLike, k: int) -> FloatArray:
    """Return finite numbers of every round and model, shape (k, T)."""
    array = checked.finite_array(name, value)
    if array.ndim == 1:
        array = np.tile(array, (k, 1))
    if array.ndim != 2 or len(array) != k or not array.shape[1]:
        raise ValueError(f"{name} must have shape (T,) or ({k}, T), T >= 1, got {array.shape}")
    return array


def _samples(
    data: Data, k: int, sizes: IntArray | None, last: NDArray[np.uint64] | None
) -> tuple[IntArray | None, NDArray[np.uint64] | None]:
    """Return the validated arguments `subset_sizes` and `poisson_last`."""
    for name, value, kind in (
        ("subset_sizes", sizes, np.int64),
        ("poisson_last", last, np.uint64),
    ):
        if value is None:
            continue
        if k > 1 or (sizes is not None and last is not None):
            raise ValueError(f"{name} must be None for several models or beside other samples")
        if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (data.m,):
            wanted = f"{np.dtype(kind)} of shape ({data.m},)"
            raise ValueError(f"{name} must be {wanted}, got {checked.described(value)}")
    if sizes is not None and np.any((sizes < 0) | (sizes > np.diff(data.offsets))):
        raise ValueError("subset_sizes must be numbers of a silo's records, got others")
    return sizes, last


def _releases(
    rng: Random | Sequence[Random], k: int, rounds: int, single: bool
) -> Iterator[ReleaseKeys]:
    """Return the keys of the next releases of every model's stream."""
    if not rounds:
        return
    streams: Any = [rng] if single else rng
    if not isinstance(streams, Sequence) or len(streams) != k:
        raise ValueError(f"rng must hold a stream for each of {k} models, got {rng!r}")
    for stream in streams:
        yield checked.releases_of(stream, rounds)
