"""The Gaussian mechanism on vectors: exact sums of clipped ones, and noise on a grid.

Sums are taken on the CPU, or where vectors lie on a card.
"""

import math
import operator
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels import _card, _gpu
from dpkern.kernels._arguments import (
    FloatArray,
    Random,
    aligned,
    described,
    offsets_of,
    output,
    release_of,
)
from dpkern.kernels.grids import noise_scale, sum_grids
from dpkern.stream import MAX_SILOS, Purpose


class SupportsDLPack(Protocol):
    """An array of another library, such as PyTorch, JAX or CuPy."""

    def __dlpack__(self, *, stream: None = None) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


def clip_and_sum(
    G: NDArray[Any] | SupportsDLPack,
    *,
    clip: float,
    offsets: ArrayLike | None = None,
    grid: ArrayLike | None = None,
    out: FloatArray | None = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Return the sum over each silo of clipped vectors, exact on a grid.

    Parameters
    ----------
    G : ndarray or DLPack array, shape (n, P)
        One vector per record, float32 or float64, sorted by silo. PyTorch tensors without grad, JAX
        arrays and others with ``__dlpack__`` may lie on an NVIDIA card, where they are summed, with
        the same bits (docs/gpu.md). C-contiguous memory is neither copied nor
        converted.
        Float32 vectors of 64 to 4096 numbers are summed in single precision where C <= 2^28 q,
        about.
    clip : float
        Clip norm C > 0: min(1, C / |g|) g. Infinity disables clipping and grid.
    offsets : array_like, shape (m + 1,), optional
        Silo j has the rows offsets[j] to offsets[j + 1]; None means one silo.
    grid, out, n_threads
        As in `dpkern.kernels`, with max(n_j, 2) C <= 2^52 q for the n_j rows of silo j and
        q <= C / (32 sqrt(P)).

    Returns
    -------
    sums : ndarray, shape (m, P)
        Float64, every entry a multiple of the silo's grid. Under a finite clip a vector whose norm
        is NaN or overflows counts as zero, and never raises.

    Notes
    -----
    Sensitivity: replacing one row changes its silo's sum by at most 2 C in l2 norm, exactly, for
    the doubles returned; adding or removing one by at most C.
    """
    vectors = _vectors(G)
    n, dim = vectors.shape
    bounds = offsets_of("offsets", [0, n] if offsets is None else offsets, n)
    clip = positive("clip", clip, or_infinite=True)
    grids = sum_grids(grid, offsets=bounds, dim=dim, clip=clip)
    shape = len(bounds) - 1, dim
    if isinstance(vectors, np.ndarray):
        out = output(out, shape)
        _core.clip_and_sum(vectors, bounds, clip, grids, out, resolve_threads(n_threads, n * dim))
    else:
        own = _card.card_of(_card.device_of(vectors))
        out = own.output(shape) if out is None else output(out, shape)
        _gpu.clip_and_sum(own, vectors, bounds, clip, _gpu.require_grids(grids), out)
    return out


def _vectors(G: object) -> Any:
    """Return `G` as an array for C or of CuPy, copied only if it is strided or misaligned."""
    if not isinstance(G, np.ndarray) and hasattr(G, "__dlpack__"):
        if _card.device_of(G) is not None:
            vectors = _card.on_its_card("G", G)
            if vectors.ndim != 2 or 0 in vectors.shape:
                raise ValueError(f"G must have shape (n, P), n, P >= 1, got {vectors.shape}")
            return vectors
        try:
            G = np.from_dlpack(G)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                "G must lie in the memory of the CPU or on an NVIDIA card, and not require grad "
                f"(PyTorch: G.detach()), got {described(G)}: {error}"
            ) from error
    if not isinstance(G, np.ndarray) or G.dtype not in (np.float32, np.float64):
        raise TypeError(f"G must be a float32 or float64 array, got {described(G)}")
    if G.ndim != 2 or 0 in G.shape:
        raise ValueError(f"G must have shape (n, P), n, P >= 1, got {described(G)}")
    return aligned(G)


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
