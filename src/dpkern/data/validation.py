"""Validation of records and of their public parameters.

Kernels and solvers do not validate these again. Messages about records name counts, never values.

In the canonical format of CSR rows the column indices of a row increase strictly, so that no entry
is stored twice. The norm of a row is then that of its stored values, which the clip norm relies on.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dpkern._numbers import counted, positive, real, refuse_unknown
from dpkern.data.frames import frame_matrix, is_frame, listed, refuse_names_twice, refuse_times

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from dpkern.data.schema import Schema

Float64Array = NDArray[np.float64]
Floats = tuple[float, ...]
FeatureRange = tuple[ArrayLike, ArrayLike] | Mapping[str, tuple[float, float]] | None
TargetBound = float | Sequence[float] | None
Matrix = Union[NDArray[Any], "csr_array"]
Task = Literal["classification", "regression", "multiclass"]

MAX_FEATURES = 2**31 - 1  # column indices are int32

WIDTH_READ = (
    "the number of features was read from the records, as the largest index in them, and assumed "
    "to be public; n_features= declares it to the reader"
)


class RowOptions(TypedDict, total=False):
    """The arguments of `SiloData` that its other constructors share."""

    intercept: bool
    row_bound: float | None
    target_bound: TargetBound
    feature_range: FeatureRange
    task: Task | None
    classes: ArrayLike | None
    feature_names: Sequence[str] | None
    schema: "Schema | None"
    person: Any
    max_records: int | None
    weight: Any
    max_weight: float | None
    margin_offset: Any


FLOATS = (np.dtype(np.float32), np.dtype(np.float64))

_FAR_APART = 100.0
SCALES = (
    "columns of X are on scales far apart, and no feature_range was stated: small columns will "
    "hardly count, and a model may learn nothing; state public bounds, from a handbook or the form "
    "and not from these records (this check read them without noise: a non-private diagnostic)"
)

_BLOCK_BYTES = 4 << 20  # size of the blocks in which rows are read, to limit the memory of memmaps
_BLOCK_ENTRIES = 1 << 16  # stored entries, and rows, of a block of sparse rows


def checked_matrix(X: Any) -> tuple[Matrix, bool]:
    """Return X in the form that kernels read, and whether its arrays are copies."""
    sparse = is_sparse(X)
    if not sparse and (not isinstance(X, np.ndarray) or isinstance(X, np.ma.MaskedArray)):
        raise TypeError(
            "X must be a NumPy array or a scipy.sparse CSR matrix, got a "
            f"{type(X).__name__}: pass np.asarray(X, dtype=float), or use SiloData.split, "
            "from_groups or from_silos, which take data frames"
        )
    rows = checked_csr(X) if sparse else X.view(np.ndarray)
    if X.dtype not in FLOATS:
        raise TypeError(
            f"X must be float32 or float64, got dtype {X.dtype}: pass X.astype(np.float64)"
        )
    if X.ndim != 2 or 0 in X.shape:
        raise ValueError(f"X must have shape (N, n_features), neither of them 0, got {X.shape}")
    if sparse:
        return canonical(rows, X.dtype, owned=False)
    if not (X.flags.c_contiguous and X.flags.aligned):
        raise ValueError(
            "X must be C-contiguous and aligned, as it is never copied: pass "
            "np.require(X, requirements=('C', 'A'))"
        )
    return rows, False


def float_dtype(X: Matrix) -> np.dtype[Any]:
    """Return the dtype in which kernels read X: its own, or float64 for other numbers."""
    return X.dtype if X.dtype in FLOATS else np.dtype(np.float64)


def numeric_matrix(X: ArrayLike) -> Matrix:
    """Return X as an array, or as the validated arrays of a CSR matrix, of any real dtype."""
    refuse_misread(X)
    if is_sparse(X):
        return checked_csr(X)
    if is_frame(X):
        return frame_matrix(X)
    X = np.asarray(X)
    if X.dtype.kind not in "fiub":
        raise TypeError(f"X must be real numbers, got dtype {X.dtype}")
    if X.ndim != 2:
        raise ValueError(f"X must have shape (n, n_features), got {X.shape}")
    return X


def refuse_misread(X: Any) -> None:
    """Raise for what NumPy and scikit-learn would read as other numbers in silence, or not say."""
    if is_sparse(X):
        return
    if isinstance(X, np.ma.MaskedArray):
        raise TypeError("X must be an array without mask, got a masked one: fill or drop values")
    if isinstance(X, Mapping):
        raise TypeError(
            "X must be an array, a CSR matrix or a data frame, got a mapping: pass "
            "pandas.DataFrame(X), or describe the columns by a dpkern.Schema"
        )
    if is_frame(X):
        refuse_names_twice(X)
        refuse_times(X)
        return
    try:
        array = np.asarray(X) if isinstance(X, list | tuple) else X
    except ValueError:
        raise ValueError("X must have rows of one length, got rows of several") from None
    if isinstance(X, Iterator):
        raise TypeError("X must be an array, got a generator or another iterator: pass list(X)")
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if kind in ("m", "M", "S", "U", "V"):
        got = "dates or durations: encode them (as days since a public date, say)"
        if kind not in ("m", "M"):
            got = "text or records: encode it (one-hot, say), or describe it by a dpkern.Schema"
        raise TypeError(f"X must be real numbers, got {got}")


def checked_offsets(offsets: ArrayLike, n: int) -> NDArray[np.int64]:
    refuse_length("offsets", offsets, range(2, n + 2))
    given = np.asarray(offsets)
    if given.dtype.kind not in "iu":
        raise TypeError(f"offsets must be integers, got dtype {given.dtype}")
    if given.ndim != 1 or len(given) < 2:
        raise ValueError(f"offsets must have shape (m + 1,) with m at least 1, got {given.shape}")
    if given[0] != 0 or given[-1] != n:
        raise ValueError(
            f"offsets must go from 0 to the number of records, {n}, got {given[0]} to {given[-1]}"
        )
    checked = given.astype(np.int64)
    decreases = checked[1:] < checked[:-1]  # differences could overflow
    if decreases.any():
        raise ValueError(f"offsets must increase, got a fall after entry {np.argmax(decreases)}")
    empty = checked[1:] == checked[:-1]
    if empty.any():
        raise ValueError(
            f"offsets must give every silo a record, got {np.count_nonzero(empty)} of {len(empty)} "
            f"silos that are empty, the first of them silo {np.argmax(empty)}"
        )
    return checked


def refuse_length(name: str, values: Any, lengths: range) -> None:
    """Raise if a sequence has a wrong length, before NumPy allocates an array of that length."""
    try:
        found = len(values)
    except TypeError:
        return
    if not isinstance(values, str | bytes) and found not in lengths:
        least, most = lengths[0], lengths[-1]
        many = f"{least}" if least == most else f"{least} to {most}"
        raise ValueError(f"{name} must have {many} entries, got {found}")


def public_bounds(
    feature_range: FeatureRange,
    n_features: int,
    names: Sequence[str] | None = None,
    *,
    argument: str = "feature_range",
) -> list[NDArray[Any]]:
    """Return the lower and upper bounds of the features, each a number or an array."""
    if isinstance(feature_range, Mapping):
        feature_range = _in_order(feature_range, names, argument)
    if not isinstance(feature_range, tuple | list) or len(feature_range) != 2:
        raise TypeError(
            f"{argument} must be a pair (lo, hi), or a mapping of names of columns to pairs, got "
            f"a {type(feature_range).__name__}"
        )
    bounds = []
    for name, given in zip(("lo", "hi"), feature_range, strict=True):
        refuse_length(f"{argument} {name}", given, range(n_features, n_features + 1))
        values = np.asarray(given)
        if values.dtype.kind not in "fiu":
            raise TypeError(f"{argument} {name} must be numbers, got dtype {values.dtype}")
        if values.shape not in ((), (n_features,)):
            raise ValueError(
                f"{argument} {name} must be a number or have shape ({n_features},), got shape "
                f"{values.shape}"
            )
        bounds.append(values)
    return bounds


def _in_order(
    ranges: Mapping[str, tuple[float, float]], names: Sequence[str] | None, argument: str
) -> tuple[list[float], list[float]]:
    """Return the pairs of a mapping in the order of the columns, as (lo, hi)."""
    if names is None:
        raise TypeError(
            f"{argument} must be a pair (lo, hi) where columns have no names, got a mapping: "
            "pass a data frame, or feature_names"
        )
    refuse_unknown(argument, ranges, names)
    if missing := [name for name in names if name not in ranges]:
        raise ValueError(f"{argument} must have every column, got none for {listed(missing)}")
    lo: list[float] = []
    hi: list[float] = []
    for name in names:
        pair = ranges[name]
        if not isinstance(pair, Sequence | np.ndarray) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f"{argument} of column {name!r} must be (lo, hi), got {pair!r}")
        for bound, value in zip((lo, hi), pair, strict=True):
            bound.append(real(f"{argument} of column {name!r}", value))
    return lo, hi


def checked_options(
    options: RowOptions, names: tuple[str, ...] | None, n_features: int
) -> RowOptions:
    """Return the options with a frame's column names; check sizes before records are copied."""
    named: RowOptions = {"feature_names": names, **options}
    if (feature_range := options.get("feature_range")) is not None:
        public_bounds(feature_range, n_features, named["feature_names"])
    return named


def affine(
    feature_range: FeatureRange,
    n_features: int,
    *,
    scale_only: bool,
    names: Sequence[str] | None = None,
    argument: str = "feature_range",
) -> tuple[tuple[Float64Array, Float64Array] | None, Floats | None, Floats | None]:
    """Return lower and upper bounds, scale and shift of the features.

    Bounds that are numbers are not repeated in memory, nor are the floats of scale and shift.
    """
    if feature_range is None:
        return None, None, None
    given = public_bounds(feature_range, n_features, names, argument=argument)
    lo, hi = (values.astype(np.float64) for values in given)
    with np.errstate(all="ignore"):  # reported below
        scale, shift = 2.0 / (hi - lo), -(lo + hi) / (hi - lo)
        good = (lo < hi) & np.isfinite(lo) & np.isfinite(hi) & (scale > 0.0)
        good &= np.isfinite(scale) & np.isfinite(shift)
    bounds = np.broadcast_to(lo, n_features), np.broadcast_to(hi, n_features)
    if not good.all():
        k = np.argmin(good)
        least, most = (float(bound[k]) for bound in bounds)
        raise ValueError(
            f"{argument} must be finite with lo < hi and a distance that a double can hold, got "
            f"({least!r}, {most!r}) for feature {int(k) if names is None else names[int(k)]!r}"
        )
    repeats = 1 if np.ndim(scale) else n_features
    factor, offset = (tuple(np.ravel(a).tolist()) * repeats for a in (scale, shift))
    return bounds, factor, None if scale_only else offset


def public_row_bound(row_bound: float | None, d: int, unscaled: bool) -> float:
    """Return R, by default sqrt(d), the norm of d features of size 1 and the constant."""
    if row_bound is not None:
        return positive("row_bound", row_bound, or_infinite=True)
    return math.inf if unscaled else math.sqrt(d)


def in_columns(counts: Mapping[int, int], names: Sequence[str] | None) -> str:
    """Return the first columns with their counts, for a message."""
    columns = sorted(counts)
    found = [f"{counts[k]} in column {int(k) if names is None else names[k]!r}" for k in columns]
    more = f" and others in {counted(len(found) - 3, 'column')} more" if len(found) > 3 else ""
    return f"({', '.join(found[:3])}{more})"


def refuse_non_finite(
    X: Matrix, scale: Any, shift: Any, names: tuple[str, ...] | None = None
) -> None:
    """Raise if X, or X mapped by the feature range, is not finite; works in blocks of rows."""
    scale, shift = (None if a is None else np.asarray(a) for a in (scale, shift))
    bad_rows = bad_mapped = 0
    bad_columns: Counter[int] = Counter()
    for part, row, column in _entries(X):
        finite = np.isfinite(part)
        if not finite.all():
            place = np.nonzero(~finite)[1] if row is None else column[~finite]
            bad_columns.update(dict(zip(*np.unique(place, return_counts=True), strict=True)))
            bad_rows += _rows_with(~finite, row)
        elif scale is not None:
            # An infinite coordinate times a derivative of 0 would be NaN in a sum.
            with np.errstate(over="ignore"):
                mapped = part * scale[column]
                if shift is not None:
                    mapped += shift[column]
            bad_mapped += _rows_with(~np.isfinite(mapped), row)
    if bad_rows:
        raise ValueError(
            f"X must be finite, got {not_finite(bad_columns.total())} in {bad_rows} of "
            f"{counted(X.shape[0], 'row')} {in_columns(bad_columns, names)}"
        )
    if bad_mapped:
        raise ValueError(
            "X must be finite when mapped by feature_range, got other values in "
            f"{counted(bad_mapped, 'row')}"
        )


def not_finite(number: int) -> str:
    return counted(number, "NaN or infinite value")


class ScaleWarning(UserWarning):
    """Columns are on scales far apart, or targets of unknown size, and no bounds were stated."""


def far_apart(X: Any) -> bool:
    """Return whether largest values of columns differ by more than 100 x in the first 1000 rows.

    This reads records without noise: a non-private diagnostic, for their holder.
    """
    part, _, column = next(_entries(X[:1000]))
    if is_sparse(X):
        stored, place = np.unique(column, return_inverse=True)
        largest = np.zeros(len(stored))
        np.maximum.at(largest, place, np.abs(part))
    else:
        largest = np.maximum(part.max(axis=0), -part.min(axis=0))
    largest = largest[np.isfinite(largest) & (largest > 0.0)]
    return bool(len(largest)) and bool(largest.max() / _FAR_APART > largest.min())


def _entries(X: Any) -> Iterator[tuple[NDArray[Any], Any, Any]]:
    """Yield blocks of whole rows as values, rows and columns; (matrix, None, all) if dense."""
    if not is_sparse(X):
        for rows in blocks(len(X), X.dtype.itemsize * X.shape[1]):
            yield X[rows], None, slice(None)
        return
    n, start = X.shape[0], 0
    while start < n:  # a row longer than a block is a block of its own
        end = int(np.searchsorted(X.indptr, X.indptr[start] + _BLOCK_ENTRIES, side="right")) - 1
        stop = min(max(end, start + 1), start + _BLOCK_ENTRIES, n)
        stored = slice(X.indptr[start], X.indptr[stop])
        row = np.repeat(np.arange(start, stop), np.diff(X.indptr[start : stop + 1]))
        yield X.data[stored], row, X.indices[stored]
        start = stop


def _rows_with(bad: NDArray[np.bool_], row: NDArray[np.intp] | None) -> int:
    return int(np.count_nonzero(bad.any(axis=1))) if row is None else len(np.unique(row[bad]))


def blocks(n: int, row_bytes: int) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // max(1, row_bytes))
    return (slice(start, min(start + step, n)) for start in range(0, n, step))


def frozen_matrix(X: Any) -> Matrix:
    """Return a read-only view of an array or of canonical rows."""
    if not is_sparse(X):
        return frozen(X)
    arrays = frozen(X.data), frozen(X.indices), frozen(X.indptr)
    view = csr_of(*arrays, X.shape, width_is_read=has_width_read(X))
    view.has_canonical_format = True
    return view


def frozen(a: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view."""
    view = a.view()
    view.flags.writeable = False
    return view


def no_buffer(a: NDArray[Any]) -> bool:
    """Return whether an array owns its memory, or views bytes, instead of a caller's buffer."""
    while isinstance(a.base, np.ndarray):
        a = a.base
    return a.base is None or isinstance(a.base, bytes)


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an empty array that is aligned to a cache line."""
    size = math.prod(shape) * dtype.itemsize
    space = np.empty(size + 64, dtype=np.uint8)
    skip = -space.ctypes.data % 64
    return space[skip : skip + size].view(dtype).reshape(shape)


def is_sparse(X: ArrayLike) -> bool:
    """Return whether X is a scipy.sparse matrix or array, without importing scipy."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(X))


def has_width_read(X: Any) -> bool:
    """Return whether a reader has found the number of columns of X in the records."""
    return getattr(X, "width_is_read", False)


def csr_of(
    data: NDArray[Any],
    indices: NDArray[Any],
    indptr: NDArray[Any],
    shape: tuple[int, int],
    *,
    width_is_read: bool = False,
) -> "csr_array":
    """Return a matrix of these very arrays, whose format is not known to be canonical.

    The constructor of scipy would convert indices and indptr to one dtype. `width_is_read` says
    that the number of columns is the largest index in the records.
    """
    from dpkern.data.read_only_csr import ReadOnlyCsr, UndeclaredWidthCsr

    X = (UndeclaredWidthCsr if width_is_read else ReadOnlyCsr)(shape, dtype=data.dtype)
    X.indices, X.indptr, X.data = indices, indptr, data
    return X


def checked_csr(X: Any) -> "csr_array":
    """Validate X and return its arrays, uncopied except for an indptr of another dtype."""
    if X.format != "csr":
        raise TypeError(f"sparse X must be CSR, got a {type(X).__name__}: pass X.tocsr()")
    if X.dtype.kind not in "fiub":
        raise TypeError(f"X must be real numbers, got dtype {X.dtype}")
    if len(X.shape) != 2:
        raise ValueError(f"X must have shape (n, n_features), got {X.shape}")
    n, n_features = X.shape
    if n_features > MAX_FEATURES:
        raise ValueError(f"X must have at most {MAX_FEATURES} features, got {n_features}")
    data, indices, indptr = (np.asarray(a) for a in (X.data, X.indices, X.indptr))
    # scipy does not validate the arrays it is given, and the kernels rely on this.
    valid = indptr.shape == (n + 1,) and data.ndim == indices.ndim == 1
    valid = valid and indptr.dtype.kind == indices.dtype.kind == "i" and indptr[0] == 0
    valid = valid and bool(np.all(indptr[1:] >= indptr[:-1]))
    if valid:
        nnz = int(indptr[-1])
        valid = nnz <= min(len(data), len(indices))
        data, indices = data[:nnz], indices[:nnz]
        valid = valid and (nnz == 0 or (indices.min() >= 0 and indices.max() < n_features))
    if not valid:
        raise ValueError(
            "X must be valid CSR, got indices and indptr that do not fit its shape: see what "
            "X.check_format() says"
        )
    width = np.int32 if indptr.dtype == np.int32 else np.int64
    indptr = np.require(indptr, width, ("C", "A"))
    return csr_of(data, indices, indptr, (n, n_features), width_is_read=has_width_read(X))


def canonical(X: "csr_array", dtype: DTypeLike, *, owned: bool) -> tuple["csr_array", bool]:
    """Return rows in canonical format with int32 indices, and whether their arrays are own copies.

    X is new, so that it carries no flag of a caller's. Its arrays are overwritten if they are
    `owned`, and copied only if they must change otherwise.
    """
    if not X.has_canonical_format:
        X = X.astype(dtype, copy=not owned)
        X.sum_duplicates()
        owned = True
    data = np.require(X.data, dtype, ("C", "A"))
    indices = np.require(X.indices, np.int32, ("C", "A"))
    width_is_read = has_width_read(X)
    return csr_of(data, indices, X.indptr, X.shape, width_is_read=width_is_read), owned
