"""Validation and conversion of the arguments that several kernels share.

The returned arrays are valid for C: contiguous, aligned, and of the right type and shape.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import positive
from dpkern._typing import FloatArray, IntArray
from dpkern.models.losses import Custom, Loss, get_loss
from dpkern.models.penalties import get_penalty
from dpkern.models.terms import Term
from dpkern.stream import NoiseStream, ReleaseKey, ReleaseKeys

if TYPE_CHECKING:
    from dpkern.kernels._blocks import BlockSource
    from dpkern.kernels._gpu import DeviceRows

Rows = tuple[IntArray, IntArray]
Random = int | NoiseStream | None
Shape = tuple[int, ...]

MAX_DRAWS = 1 << 62


@dataclass(frozen=True, match_args=False)  # so that its attributes are read only
class Data(Protocol):
    """What kernels read of records in m silos, as of a `dpkern.SiloData`.

    Silo j has the records offsets[j] to offsets[j + 1] of X (n, n_features) and y (n,). An
    effective row, of length d, is shift + scale x with a constant 1 for the intercept, shortened to
    `row_bound`; its norm before that may be kept in `row_norms`. A record's loss is that of its
    margin plus `margin_offset`, times `record_weight` in [0, 1]. `device` are the same records on a
    card, `blocks` those that are not in memory, and `classes` the labels.
    """

    X: Any
    y: FloatArray
    offsets: IntArray
    m: int
    n: int
    n_features: int
    d: int
    intercept: bool
    row_bound: float
    scale: FloatArray | None
    shift: FloatArray | None
    row_norms: FloatArray | None
    record_weight: FloatArray | None
    margin_offset: FloatArray | None
    task: Literal["classification", "regression", "multiclass"]
    classes: NDArray[Any] | None
    device: "DeviceRows | None"
    blocks: "BlockSource | None"


_FLOAT64 = np.dtype(np.float64)


def on_device(data: Data) -> "DeviceRows | None":
    """Return the records of `data` on a card, or None."""
    device: DeviceRows | None = getattr(data, "device", None)
    return device


def in_blocks(data: Data) -> "BlockSource | None":
    """Return the blocks of `data`, or None for records in memory."""
    blocks: BlockSource | None = getattr(data, "blocks", None)
    return blocks


def described(value: object) -> str:
    """Return type and shape of an argument for messages, which must not show entries."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__


def real_array(name: str, value: ArrayLike, *shapes: Shape) -> FloatArray:
    """Return `value` as a C-contiguous, aligned float64 array of one of the shapes, if any.

    It is copied only if necessary.
    """
    if (
        type(value) is np.ndarray
        and value.dtype is _FLOAT64
        and (flags := value.flags).c_contiguous
        and flags.aligned
    ):
        array: FloatArray = value  # fast path
    else:
        try:
            given = np.asarray(value)
        except ValueError:
            raise ValueError(
                f"{name} must be a rectangular array of numbers, got a ragged one"
            ) from None
        if given.dtype.kind not in "fiu":
            raise TypeError(f"{name} must be real numbers, got {described(given)}")
        array = aligned(given, np.float64)
    if shapes and array.shape not in shapes:
        wanted = "be a number or " * (() in shapes) + "have shape "
        wanted += " or ".join(str(shape) for shape in shapes if shape)
        raise ValueError(f"{name} must {wanted}, got {array.shape}")
    return array


def aligned(array: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """Return `array` contiguous and aligned, copied only if necessary."""
    if (
        type(array) is np.ndarray
        and dtype in (None, array.dtype)
        and (flags := array.flags).c_contiguous
        and flags.aligned
    ):
        return array  # fast path
    return np.require(array, dtype, ["C", "A"])


def finite_array(name: str, value: ArrayLike, *shapes: Shape) -> FloatArray:
    """Return `value` as `real_array` does; raise ValueError unless every entry is finite."""
    array = real_array(name, value, *shapes)
    if not _core.all_finite(array.reshape(-1)):
        raise ValueError(f"{name} must be finite, got NaN or infinity among its entries")
    return array


def positive_array(name: str, value: ArrayLike, shape: Shape, *shapes: Shape) -> FloatArray:
    """Return positive, finite numbers of one of the shapes, repeated to the first of them."""
    array = real_array(name, value, shape, *shapes)
    if array.size and not 0.0 < array.min() <= array.max() < np.inf:
        raise ValueError(f"{name} must be positive and finite, got an entry that is not")
    return array if array.shape == shape else np.ascontiguousarray(np.broadcast_to(array, shape))


def writeable(name: str, value: object, *shapes: Shape) -> FloatArray:
    """Validate an array that a kernel writes to, and that therefore cannot be converted."""
    if (
        not isinstance(value, np.ndarray)
        or value.dtype != np.float64
        or value.shape not in shapes
        or not value.flags.carray
    ):
        raise ValueError(
            f"{name} must be a float64 array, C-contiguous, aligned and writeable, of shape "
            f"{' or '.join(map(str, shapes))}, got {described(value)}"
        )
    return value


def output(out: FloatArray | None, shape: Shape) -> FloatArray:
    """Return the validated argument `out`, or a new array of this shape."""
    return np.empty(shape) if out is None else writeable("out", out, shape)


def require_no_overlap(name: str, array: FloatArray, other_name: str, other: FloatArray) -> None:
    """Raise ValueError if two contiguous arrays overlap, unless they begin at one address."""
    if np.may_share_memory(array, other) and array.ctypes.data != other.ctypes.data:
        raise ValueError(
            f"{name} must be {other_name} itself or share no memory with it, got one that overlaps"
        )


def require_data(data: Data) -> None:
    """Raise TypeError for anything but records in silos."""
    if not hasattr(data, "offsets"):
        raise TypeError(f"data must be a SiloData, got {type(data).__name__}")


def models(data: Data, w: ArrayLike, name: str = "w") -> FloatArray:
    """Return one model for all silos as (1, d), or one model per silo as (m, d)."""
    require_data(data)
    return finite_array(name, w, (data.d,), (data.m, data.d)).reshape(-1, data.d)


def several_models(
    data: Data, w: ArrayLike, name: str, clip: ArrayLike, grid: ArrayLike | None
) -> tuple[FloatArray, FloatArray, Sequence[FloatArray | None]]:
    """Return k models (k, d) or (k, m, d), the clip norms (k,), and the argument grid of each."""
    require_data(data)
    points = finite_array("w", w)
    if points.ndim not in (2, 3) or points.shape[1:] not in ((data.d,), (data.m, data.d)):
        raise ValueError(
            f"w must have shape (k, {data.d}) or (k, {data.m}, {data.d}), got {points.shape}"
        )
    k = len(points)
    clips = real_array(name, clip, (), (k,))
    clips = clips if clips.shape else np.full(k, clips)
    for value in clips.tolist():
        positive(name, value, or_infinite=True)
    if len(set(np.isfinite(clips).tolist())) > 1:
        raise ValueError(f"{name} must be finite for all models or for none, got both")
    if grid is None:
        return points, clips, [None] * k
    grids = real_array("grid", grid, (), (k,), (k, data.m))
    grids = grids if grids.ndim == 2 else grids.reshape(-1, 1)
    return points, clips, list(np.broadcast_to(grids, (k, data.m)).copy())


def one_by_one(
    kernel: Callable[..., FloatArray],
    data: Data,
    points: FloatArray,
    own: dict[str, Sequence[Any]],
    out: FloatArray,
    **common: Any,
) -> FloatArray:
    """Write the sums of a kernel for one model at each of k models to out[0], ..., out[k - 1].

    `own` holds k values, one of each model, of an argument.
    """
    for point, sums, *values in zip(points, out, *own.values(), strict=True):
        kernel(data, point, out=sums, **dict(zip(own, values, strict=True)), **common)
    return out


def per_silo(name: str, value: ArrayLike, m: int) -> FloatArray:
    """Return one number for all silos, or one per silo, as (m,)."""
    if isinstance(value, float):  # fast path
        return np.array([value]) if m == 1 else np.full(m, value)
    values = real_array(name, value, (), (m,))
    return values if values.shape else np.full(m, values)


def silo_weights(silo_weight: ArrayLike | None, m: int) -> FloatArray | None:
    """Return the factors of the silos as (m,), or None without factors."""
    if silo_weight is None:
        return None
    weights = per_silo("silo_weight", silo_weight, m)
    if not (np.all(weights >= 0.0) and np.all(weights <= 1.0)):
        raise ValueError("silo_weight must lie in [0, 1], got an entry outside of it")
    return weights


def is_custom(loss: str | Loss) -> bool:
    """Return whether a loss is a user's function."""
    return isinstance(loss, Custom)


def compiled_loss(loss: str | Loss) -> _core.Loss:
    """Return the compiled form of a loss."""
    loss = get_loss(loss)
    if isinstance(loss, Custom):
        return _core.Loss.custom(loss.callable)
    return _loss_of_table(loss, _core.isa())


@functools.lru_cache(maxsize=64)
def _loss_of_table(loss: Loss, isa: str) -> _core.Loss:
    """Return a loss of the table for the instruction set in use."""
    return _core.Loss(_core.loss_names().index(loss.name), _parameters(loss.params))


def penalty(
    name: str, value: str | Term | None, compiled: list[str]
) -> tuple[int, float, FloatArray]:
    """Return index in the compiled table (-1 for None), strength and parameters of a penalty."""
    if value is None:
        return -1, 0.0, _parameters(())
    found = get_penalty(value, name)
    if found.name not in compiled:
        raise ValueError(f"{name} must be one of {', '.join(compiled)}, got {found.name!r}")
    return compiled.index(found.name), found.strength, found.params


def _parameters(params: Sequence[float]) -> FloatArray:
    """Return the parameters with an additional entry, so that the array is not empty."""
    return np.array([*params, 0.0])


def require_step(name: str, gamma: float, penalty: Term) -> None:
    """Raise ValueError if the step of a prox is so large that minimisers are not unique."""
    if gamma > penalty.largest_gamma:
        raise ValueError(
            f"{name} must be at most {penalty.largest_gamma} for {penalty.name}, got "
            f"{gamma!r}: beyond, some points have two minimisers"
        )


def require_size(name: str, d: int, penalty: Term) -> None:
    """Raise ValueError if points and parameters of the penalty have different sizes."""
    if penalty.size not in (None, d):
        raise ValueError(
            f"{name} must have {penalty.size} coordinates, as many as the parameters of "
            f"{penalty.name}, got {d}"
        )


def require_prox(prox: str | Term, size: int, step: str, gamma: float) -> None:
    """Validate a prox on `size` coordinates of w; gamma: the largest step times its strength."""
    term = get_penalty(prox)
    require_size("the part of w that prox acts on", size, term)
    require_step(f"{step} times the strength of prox", gamma, term)


def penalized(data: Data, penalize_intercept: bool) -> int:
    """Return the number of coordinates on which penalties act: all, or all but the intercept."""
    if not isinstance(penalize_intercept, bool | np.bool_):
        raise TypeError(f"penalize_intercept must be True or False, got {penalize_intercept!r}")
    return data.d - (data.intercept and not penalize_intercept)


def release_of(rng: Random) -> ReleaseKey:
    """Return one release as a context manager; a stream made for this call is wiped at once."""
    if isinstance(rng, NoiseStream):
        return rng.release()
    with NoiseStream(rng) as stream:
        return stream.release()


def releases_of(rng: Random, count: int) -> ReleaseKeys:
    """Return so many releases as `release_of` does."""
    if isinstance(rng, NoiseStream):
        return rng.releases(count)
    with NoiseStream(rng) as stream:
        return stream.releases(count)


def offsets_of(name: str, offsets: ArrayLike, n: int, m: int | None = None) -> IntArray:
    """Return validated offsets of the silos (m, or any number) in n rows."""
    bounds = np.asarray(offsets)
    if (
        bounds.ndim != 1
        or bounds.dtype.kind not in "iu"
        or len(bounds) < 2
        or m not in (None, len(bounds) - 1)
    ):
        shape = "(m + 1,)" if m is None else f"({m + 1},)"
        raise ValueError(f"{name} must be integers of shape {shape}, got {described(bounds)}")
    bounds = aligned(bounds, np.int64)
    if bounds[0] != 0 or bounds[-1] != n or (bounds[1:] < bounds[:-1]).any():
        raise ValueError(f"{name} must rise from 0 to the number of rows, got other offsets")
    return bounds


def minibatch(data: Data, rows: Rows | None) -> tuple[Rows | None, IntArray]:
    """Return the validated argument `rows`, and the silos' offsets in it or in the data.

    The records must be in the silos of the offsets.
    """
    if rows is None:
        return None, data.offsets
    if not isinstance(rows, tuple) or len(rows) != 2:
        raise TypeError(f"rows must be a pair (indices, offsets), got {described(rows)}")
    indices = np.asarray(rows[0])
    if indices.ndim != 1 or indices.dtype != np.int64:
        raise ValueError(f"rows[0] must be int64 of shape (k,), got {described(indices)}")
    indices = aligned(indices)
    bounds = offsets_of("rows[1]", rows[1], len(indices), data.m)
    if not _core.in_silos(indices, bounds, data.offsets):
        raise ValueError("rows[0] must hold records of the silos of rows[1], got others")
    return (indices, bounds), bounds


def increasing(name: str, values: IntArray, n: int) -> IntArray:
    """Validate distinct, increasing indices out of 0 .. n - 1."""
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype != np.int64:
        raise ValueError(f"{name} must be an int64 array of shape (k,), got {described(values)}")
    values = aligned(values)
    if len(values) and (values[0] < 0 or values[-1] >= n or np.any(values[1:] <= values[:-1])):
        raise ValueError(f"{name} must be distinct and increasing in 0 .. {n - 1}, got others")
    return values


def increasing_parts(name: str, values: Rows, n: int, parts: int) -> Rows:
    """Validate (indices, bounds), indices out of 0 .. n - 1 that increase within every part."""
    if not isinstance(values, tuple) or len(values) != 2:
        raise TypeError(f"{name} must be a pair (indices, bounds), got {described(values)}")
    indices = values[0]
    if not isinstance(indices, np.ndarray) or indices.ndim != 1 or indices.dtype != np.int64:
        raise ValueError(f"{name}[0] must be int64 of shape (k,), got {described(indices)}")
    indices = aligned(indices)
    bounds = offsets_of(f"{name}[1]", values[1], len(indices), parts)
    rises = indices[1:] > indices[:-1]
    rises[bounds[(bounds > 0) & (bounds < len(indices))] - 1] = True
    if not rises.all() or (len(indices) and (indices.min() < 0 or indices.max() >= n)):
        raise ValueError(
            f"{name}[0] must be distinct and increasing in 0 .. {n - 1} within a part, got others"
        )
    return indices, bounds
