"""Exact sums of given vectors, clipped per record, on the CPU or where they lie on a card."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import positive
from dpkern._threads import resolve_threads
from dpkern.kernels import _card, _gpu
from dpkern.kernels._arguments import FloatArray, aligned, described, offsets_of, output
from dpkern.kernels.grids import sum_grids


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
