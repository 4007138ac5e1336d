"""Gaussian vectors and symmetric matrices, rounded exactly to a grid."""

import math
import operator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpkern import _core
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import FloatArray, Random, output, release_of
from dpkern.kernels.grids import noise_scale
from dpkern.stream import MAX_SILOS, Purpose


def gaussian(
    shape: int | Sequence[int],
    sigma: ArrayLike,
    *,
    grid: ArrayLike | None = None,
    rng: Random = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return Gaussian noise rounded exactly to a grid: q round(sigma N(0, 1) / q).

    Parameters
    ----------
    shape : int or sequence of int
        The last axis is that of the coordinates of a silo; the axes before it, flattened to m rows,
        are the silos 0 .. m - 1. A single axis means silo 0.
    sigma : float or array_like, shape (m,)
        Standard deviation before rounding, finite and >= 0; 0 gives zeros.
    grid : float or array_like, shape (m,), optional
        Power of two q between 2^-400 and 2^400 with sigma <= 2^32 q. None means the one with
        2^25 < sigma / q <= 2^26, for which about one draw in a million needs the exact fallback.
        The noise of a sum must have the grid of the sum.
    rng, out, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    noise : ndarray
        Float64, multiples of the grid.

    Notes
    -----
    - Every draw is the correctly rounded Phi^-1 of a uniform real of the key stream, of which up to
      192 bits are read; its distribution is within total variation 2^-100 of the rounded Gaussian.
    - For a sum S that is a multiple of q, S + Z = q round((S + sigma N) / q) is a post-processing
      of the Gaussian mechanism on the exact sum.
    - Draws depend on the stream's key, the release number, the silo and the coordinate only.
    """
    sizes = _shape(shape)
    m = math.prod(sizes[:-1])
    sigmas, grids = noise_scale(sigma, grid, m)
    out = output(out, sizes)
    threads = resolve_threads(n_threads, out.size)
    with release_of(rng) as release:
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
    """Return symmetric Gaussian matrices rounded exactly to a grid (Gaussian orthogonal ensemble).

    Parameters
    ----------
    m, d : int
        Number of matrices, one per silo, and their size.
    sigma : float or array_like, shape (m,)
        Standard deviation of the diagonal; off the diagonal it is sigma / sqrt(2), rounded up.
    grid, rng, out, n_threads
        As in `gaussian`.

    Returns
    -------
    noise : ndarray, shape (m, d, d)
        Float64, symmetric, multiples of the grid.

    Notes
    -----
    The density depends on the Frobenius norm only, so for a symmetric sum of Frobenius sensitivity
    D this is the Gaussian mechanism with mu = D / sigma.
    """
    m, d = _shape((m, d))
    sigmas, grids = noise_scale(sigma, grid, m)
    above_sigmas = np.where(sigmas > 0.0, np.nextafter(sigmas * math.sqrt(0.5), np.inf), 0.0)
    out = output(out, (m, d, d))
    diagonal, above = np.empty((m, d)), np.empty((m, d * (d - 1) // 2))
    threads = resolve_threads(n_threads, out.size)
    with release_of(rng) as release:
        _core.gaussian(release.key, Purpose.GOE_DIAGONAL, sigmas, grids, diagonal, threads)
        _core.gaussian(release.key, Purpose.GOE_OFF_DIAGONAL, above_sigmas, grids, above, threads)
    _core.goe(diagonal, above, out, threads)
    return out


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    # isinstance with an abstract class is slower.
    axes = shape if type(shape) is tuple or isinstance(shape, Sequence) else (shape,)
    try:
        sizes = tuple(map(operator.index, axes))
    except TypeError:
        raise TypeError(f"shape must be an int or a sequence of ints, got {shape!r}") from None
    if not sizes or min(sizes) < 0:
        raise ValueError(f"shape must have at least one axis and sizes >= 0, got {shape!r}")
    if math.prod(sizes[:-1]) > MAX_SILOS:
        raise OverflowError(f"shape must have at most 2^48 silos, got {shape!r}")
    return sizes
