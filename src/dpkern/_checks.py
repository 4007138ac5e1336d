"""Checks of data at the door: the only place where they are validated.

Kernels and solvers trust what comes from here. Messages about records name counts, never values.
"""

import math
import numbers
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._csr import Csr, is_sparse, row_blocks

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Float64Array = NDArray[np.float64]
FeatureRange = tuple[ArrayLike, ArrayLike] | None
Matrix = Union[NDArray[Any], "csr_array"]
Task = Literal["classification", "regression", "multiclass"]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

_BLOCK_BYTES = 4 << 20  # rows are read in blocks of about this size, so that a memmap stays on disk


def checked_matrix(X: Any) -> tuple[NDArray[Any] | Csr, bool]:
    """X in the form that kernels read, and whether its arrays are new ones."""
    if is_sparse(X):
        return _checked_csr(X)
    if not isinstance(X, np.ndarray) or isinstance(X, np.ma.MaskedArray):
        raise TypeError(
            f"X is a {type(X).__name__}; it must be a NumPy array or a scipy.sparse CSR matrix: "
            "pass np.asarray(X, dtype=float)"
        )
    _refuse_dtype(X)
    if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"X has shape {X.shape}; it must be (N, n_features), neither of them 0")
    if not (X.flags.c_contiguous and X.flags.aligned):
        raise ValueError(
            "X is not C-contiguous and aligned, and is never copied: pass np.ascontiguousarray(X)"
        )
    return X.view(np.ndarray), False


def _checked_csr(X: Any) -> tuple[Csr, bool]:
    stored = Csr.checked(X)
    _refuse_dtype(X)
    if 0 in stored.shape:
        raise ValueError(f"X has shape {X.shape}; it must be (N, n_features), neither of them 0")
    return stored.canonical(X.dtype, owned=False)


def _refuse_dtype(X: Any) -> None:
    if X.dtype not in FLOATS:
        raise TypeError(
            f"X has dtype {X.dtype}; it must be float32 or float64: pass X.astype(np.float64)"
        )


def numeric_matrix(X: ArrayLike) -> NDArray[Any] | Csr:
    """X as an array, or as the checked arrays of a CSR matrix, of any real dtype."""
    if is_sparse(X):
        return Csr.checked(X)
    if isinstance(X, np.ma.MaskedArray):
        raise TypeError("X is a masked array; fill or drop the masked values")
    X = np.asarray(X)
    if X.dtype.kind not in "fiub":
        raise TypeError(f"X has dtype {X.dtype}; it must be real numbers")
    if X.ndim != 2:
        raise ValueError(f"X has shape {X.shape}; it must be (n, n_features)")
    return X


def records(X: ArrayLike, y: ArrayLike) -> tuple[NDArray[Any] | Csr, NDArray[Any]]:
    rows = numeric_matrix(X)
    return rows, labels(y, len(rows))


def pair(j: int, silo: Any) -> tuple[ArrayLike, ArrayLike]:
    if not isinstance(silo, tuple | list) or len(silo) != 2:
        raise TypeError(f"silos[{j}] is a {type(silo).__name__}; it must be a pair (X, y)")
    return silo[0], silo[1]


def labels(y: ArrayLike, n: int, name: str = "y") -> NDArray[Any]:
    """y as an array of n numbers, booleans or strings, without missing or non-finite values."""
    if isinstance(y, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array; fill or drop the masked values")
    y = np.asarray(y)
    if y.dtype.kind in "OT":  # what pandas and NumPy make of strings
        if all(isinstance(v, str) for v in y.flat):
            y = y.astype(str)
        elif all(isinstance(v, numbers.Real) for v in y.flat):
            y = y.astype(np.float64)
    if y.dtype.kind not in "fiubUS":
        raise TypeError(f"{name} has dtype {y.dtype}; it must be all real numbers or all strings")
    if y.shape != (n,):
        raise ValueError(f"{name} has shape {y.shape}; it must be ({n},), one per row of X")
    if y.dtype.kind == "f":
        bad = n - np.count_nonzero(np.isfinite(y))
        if bad:
            raise ValueError(f"{name} holds {bad} non-finite values in {n} records")
    return y


def targets(
    y: NDArray[Any], task: Task | None, classes: ArrayLike | None = None
) -> tuple[Float64Array, Task, NDArray[Any] | None]:
    """The task, y as float64 (a new array), and the labels when it has some."""
    if task not in (None, "classification", "regression", "multiclass"):
        raise ValueError(
            f"task is {task!r}; it must be 'classification', 'regression' or 'multiclass'"
        )
    if (task == "multiclass") != (classes is not None):
        raise ValueError(
            f"classes is {'missing' if classes is None else 'given'} and task is {task!r}; "
            "task='multiclass' needs the public labels, and only that takes them"
        )
    if classes is not None:
        known = _known(y, classes)
        return _number(y, known).astype(np.float64), "multiclass", known
    if task == "regression":
        if y.dtype.kind in "US":
            raise TypeError("y holds strings; regression needs real numbers")
        return y.astype(np.float64), task, None
    if y.dtype.kind in "fi" and _all_signs(y):
        return y.astype(np.float64), "classification", np.array([-1, 1], dtype=y.dtype)
    two = _at_most_two(y)
    if two is not None and len(two) == 2:
        return np.where(y == two[1], 1.0, -1.0), "classification", two
    if task is None and two is None and y.dtype.kind == "f":
        return y.astype(np.float64), "regression", None
    found = "more than two distinct values" if two is None else f"{len(two)} distinct value"
    raise ValueError(
        f"y holds {found} of dtype {y.dtype}; classification needs exactly two labels (or -1 and "
        "+1), more of them need task='multiclass' and classes, whole-number targets "
        "task='regression'"
    )


def _known(y: NDArray[Any], classes: ArrayLike) -> NDArray[Any]:
    if np.ndim(classes) != 1:
        raise ValueError(f"classes must be the list of labels, such as range(10), got {classes!r}")
    known = labels(classes, np.size(classes), name="classes")
    if len(known) < 2 or len(np.unique(known)) < len(known):
        raise ValueError(
            f"classes is {known.tolist()}; it must hold at least two labels, once each"
        )
    if (known.dtype.kind in "US") != (y.dtype.kind in "US"):
        raise TypeError("classes and y must both hold strings or both numbers")
    return known


def _number(y: NDArray[Any], known: NDArray[Any]) -> NDArray[np.intp]:
    """Where in `known` each label stands. Numbers that labels of the data had among themselves
    would be private: with the only record of a label, those of many others change."""
    order = np.argsort(known)
    place = np.searchsorted(known, y, sorter=order)
    number = order[np.minimum(place, len(known) - 1)]
    other = np.count_nonzero(known[number] != y)
    if other:
        raise ValueError(f"y holds {other} labels that are not in classes")
    return number


def _all_signs(y: NDArray[Any]) -> bool:
    return all(np.all(np.abs(y[rows]) == 1) for rows in blocks(len(y), y.itemsize))


def _at_most_two(y: NDArray[Any]) -> NDArray[Any] | None:
    """The distinct values of y, sorted, or None when there are more than two; y is not sorted."""
    second = y[:0]
    for rows in blocks(len(y), y.itemsize):
        others = y[rows][y[rows] != y[0]]
        second = others[:1] if not len(second) else second
        if np.any(others != second):
            return None
    return np.sort(np.concatenate((y[:1], second)))


def checked_offsets(offsets: ArrayLike, n: int) -> NDArray[np.int64]:
    given = np.asarray(offsets)
    if given.dtype.kind not in "iu":
        raise TypeError(f"offsets have dtype {given.dtype}; they must be integers")
    if given.ndim != 1 or len(given) < 2:
        raise ValueError(f"offsets have shape {given.shape}; it must be (m + 1,) with m at least 1")
    if given[0] != 0 or given[-1] != n:
        raise ValueError(
            f"offsets go from {given[0]} to {given[-1]}; they must go from 0 to the number of "
            f"records, {n}"
        )
    checked = given.astype(np.int64)
    falls = checked[1:] < checked[:-1]  # not by differences, which could wrap around
    if falls.any():
        raise ValueError(f"offsets decrease after entry {np.argmax(falls)}; they must increase")
    empty = checked[1:] == checked[:-1]
    if empty.any():
        raise ValueError(
            f"{np.count_nonzero(empty)} of {len(empty)} silos are empty, the first of them silo "
            f"{np.argmax(empty)}; every silo must hold a record"
        )
    return checked


def affine(
    feature_range: FeatureRange, n_features: int, *, scale_only: bool
) -> tuple[tuple[Float64Array, Float64Array] | None, Float64Array | None, Float64Array | None]:
    if feature_range is None:
        return None, None, None
    if not isinstance(feature_range, tuple | list) or len(feature_range) != 2:
        raise TypeError("feature_range must be a pair (lo, hi)")
    bounds = []
    for name, given in zip(("lo", "hi"), feature_range, strict=True):
        values = np.asarray(given)
        if values.dtype.kind not in "fiu":
            raise TypeError(f"feature_range {name} has dtype {values.dtype}; it must be numbers")
        if values.shape not in ((), (n_features,)):
            raise ValueError(
                f"feature_range {name} has shape {values.shape}; it must be a number or have shape "
                f"({n_features},)"
            )
        bounds.append(np.full(n_features, values, dtype=np.float64))
    lo, hi = bounds
    with np.errstate(all="ignore"):  # the next line reports whatever went wrong
        scale, shift = 2.0 / (hi - lo), -(lo + hi) / (hi - lo)
        good = (lo < hi) & np.isfinite(lo) & np.isfinite(hi) & (scale > 0.0)
        good &= np.isfinite(scale) & np.isfinite(shift)
    if not good.all():
        k = np.argmin(good)
        raise ValueError(
            f"feature_range of feature {k} is ({float(lo[k])!r}, {float(hi[k])!r}); lo and hi must "
            f"be finite, lo < hi, and their distance neither 0 nor infinite in floating point"
        )
    return (frozen(lo), frozen(hi)), frozen(scale), None if scale_only else frozen(shift)


def refuse_non_finite(X: NDArray[Any] | Csr, scale: Any, shift: Any) -> None:
    """Raise when X, or X mapped by the feature range, is not finite; read a block at a time."""
    scale, shift = (None if a is None else np.asarray(a) for a in (scale, shift))
    bad_values = bad_rows = bad_mapped = 0
    for part, row, column in _entries(X):
        finite = np.isfinite(part)
        if not finite.all():
            bad_values += finite.size - np.count_nonzero(finite)
            bad_rows += _rows_with(~finite, row)
        elif scale is not None:
            # An infinite coordinate times a clipped-away derivative of 0 would be NaN in a sum.
            with np.errstate(over="ignore"):
                mapped = part * scale[column]
                if shift is not None:
                    mapped += shift[column]
            bad_mapped += _rows_with(~np.isfinite(mapped), row)
    if bad_values:
        raise ValueError(f"X holds {bad_values} non-finite values in {bad_rows} of {len(X)} rows")
    if bad_mapped:
        raise ValueError(f"X overflows when mapped by feature_range in {bad_mapped} rows")


def _entries(X: NDArray[Any] | Csr) -> Iterator[tuple[NDArray[Any], Any, Any]]:
    """Blocks of whole rows: their values, and the row and column of each.

    In a dense block these are a matrix, None, and all columns.
    """
    if isinstance(X, Csr):
        for rows in row_blocks(X.indptr):
            row, column, values = X.block(rows)
            yield values, row, column
    else:
        for rows in blocks(len(X), X.dtype.itemsize * X.shape[1]):
            yield X[rows], None, slice(None)


def _rows_with(bad: NDArray[np.bool_], row: NDArray[np.intp] | None) -> int:
    return int(np.count_nonzero(bad.any(axis=1))) if row is None else len(np.unique(row[bad]))


def blocks(n: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def frozen_matrix(X: NDArray[Any] | Csr) -> Matrix:
    """The same memory, read-only, as an array or a csr_array."""
    if isinstance(X, Csr):
        return Csr(frozen(X.data), frozen(X.indices), frozen(X.indptr), X.n_features).to_scipy()
    return frozen(X)


def frozen(a: NDArray[Any]) -> NDArray[Any]:
    """A read-only view of the same memory."""
    view = a.view()
    view.flags.writeable = False
    return view


def no_buffer(a: NDArray[Any]) -> bool:
    """Whether the memory of an array is NumPy's own or that of bytes, not a caller's buffer."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a.base is None or isinstance(a.base, bytes)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array from the start of a cache line on, where kernels read it fastest."""
    size = math.prod(shape) * dtype.itemsize
    space = np.empty(size + 64, dtype=np.uint8)
    skip = -space.ctypes.data % 64
    return space[skip : skip + size].view(dtype).reshape(shape)
