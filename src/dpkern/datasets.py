"""Readers of data files, and the Wisconsin diagnostic set with declared public feature ranges."""

import bz2
import csv
import gzip
import io
import itertools
import lzma
import math
import os
import re
import zipfile
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dpkern._checks import Float64Array, Matrix
from dpkern._csr import Csr, is_sparse
from dpkern._numbers import count
from dpkern.data import How, Rng, SiloData

_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_LIBSVM_SUFFIXES = (".svm", ".libsvm", ".t")
_LIBSVM_LINE = re.compile(rb"[^\s,:]+(\s+(qid|\d+):[^\s,:]+)+")
_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
# Where at most this share of the entries is stored, CSR takes less than half the memory (12 bytes
# an entry, and 8 a row), and a kernel less time. The choice is public: certificates state it.
_SPARSE_SHARE = 0.25
_SNIFFED_LINES = 50  # a record without any non-zero feature is a bare label, so look further


@dataclass(frozen=True, eq=False)
class Table:
    """What a data file holds.

    Attributes
    ----------
    X : ndarray (C-contiguous) or csr_array of shape (N, n_features), float32 or float64
    y : ndarray of shape (N,)
        Whole numbers as int64, other numbers as float64, the rest as strings.
    groups : ndarray of shape (N,), or None
        The silo of each record, int64 or strings.
    feature_names : tuple of str, or None
    """

    X: Matrix
    y: NDArray[Any]
    groups: NDArray[Any] | None = None
    feature_names: tuple[str, ...] | None = None


# The Wisconsin diagnostic set. Bounds are the minimum and maximum columns of the summary statistics
# printed in scikit-learn's description of the set (sklearn.datasets.load_breast_cancer, "Summary
# Statistics"; the set itself is doi 10.24432/C5DW2B), rounded outward to round numbers by hand.
# They are published numbers, written here once; nothing is computed from the records at run time.
_WISCONSIN_RANGES: dict[str, tuple[float, float]] = {
    "mean radius": (5.0, 30.0),
    "mean texture": (5.0, 40.0),
    "mean perimeter": (40.0, 200.0),
    "mean area": (100.0, 3000.0),
    "mean smoothness": (0.05, 0.2),
    "mean compactness": (0.0, 0.4),
    "mean concavity": (0.0, 0.5),
    "mean concave points": (0.0, 0.25),
    "mean symmetry": (0.1, 0.4),
    "mean fractal dimension": (0.04, 0.1),
    "radius error": (0.0, 3.0),
    "texture error": (0.0, 5.0),
    "perimeter error": (0.0, 25.0),
    "area error": (0.0, 600.0),
    "smoothness error": (0.0, 0.04),
    "compactness error": (0.0, 0.15),
    "concavity error": (0.0, 0.4),
    "concave points error": (0.0, 0.06),
    "symmetry error": (0.0, 0.08),
    "fractal dimension error": (0.0, 0.03),
    "worst radius": (5.0, 40.0),
    "worst texture": (10.0, 50.0),
    "worst perimeter": (50.0, 300.0),
    "worst area": (100.0, 5000.0),
    "worst smoothness": (0.05, 0.25),
    "worst compactness": (0.0, 1.2),
    "worst concavity": (0.0, 1.5),
    "worst concave points": (0.0, 0.3),
    "worst symmetry": (0.1, 0.7),
    "worst fractal dimension": (0.05, 0.25),
}


def wisconsin_feature_range() -> tuple[Float64Array, Float64Array]:
    """Declared public bounds (lo, hi) of the 30 features, each of shape (30,)."""
    lo, hi = np.array(list(_WISCONSIN_RANGES.values())).T
    return lo.copy(), hi.copy()


def wisconsin_table() -> Table:
    """The records of the Wisconsin diagnostic set: 569 x 30, label 0 malignant and 1 benign.

    scikit-learn's own copy is read; nothing is downloaded.
    """
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return Table(np.ascontiguousarray(X), y.astype(np.int64), None, tuple(_WISCONSIN_RANGES))


def load_wisconsin(*, m: int = 8, how: How = "even", rng: Rng = 0, **options: Any) -> SiloData:
    """The Wisconsin diagnostic set, split over silos, with its declared public feature ranges.

    Parameters
    ----------
    m : int, default=8
        Number of silos.
    how : str, default="even"
        See `SiloData.split`.
    rng : numpy.random.Generator, int or None, default=0
        Randomness of the split.
    **options
        Further arguments of `SiloData.split`, such as ``intercept`` and ``row_bound``.

    Returns
    -------
    SiloData
        569 records, 30 features mapped to [-1, 1]; +1 is benign (357 records), -1 malignant (212).
    """
    table = wisconsin_table()
    options.setdefault("feature_range", wisconsin_feature_range())
    return SiloData.split(table.X, table.y, m, how=how, rng=rng, **options)


def train_test_split(
    X: ArrayLike, y: ArrayLike, *, test_fraction: float = 0.2, rng: Rng = 0
) -> tuple[Matrix, NDArray[Any], Matrix, NDArray[Any]]:
    """Divide records at random into a training and a test part.

    Parameters
    ----------
    X : array_like or CSR matrix of shape (N, n_features)
    y : array_like of shape (N,)
    test_fraction : float, default=0.2
        Between 0 and 1; round(test_fraction * N) records are for testing, at least 1 and at most
        N - 1.
    rng : numpy.random.Generator, int or None, default=0
        Randomness of the division, which is by records and not by labels.

    Returns
    -------
    X_train, y_train, X_test, y_test : ndarray
        The parts of X are sparse where X is.
    """
    rows: Matrix = X if is_sparse(X) else np.asarray(X)
    n, y = rows.shape[0], np.asarray(y)
    if n != len(y) or n < 2:
        raise ValueError(
            f"X has {n} rows and y {len(y)} entries; they must agree and be at least 2"
        )
    if not 0.0 < test_fraction < 1.0:
        raise ValueError(f"test_fraction is {test_fraction!r}; it must be between 0 and 1")
    order = np.random.default_rng(rng).permutation(n)
    n_test = min(max(round(test_fraction * n), 1), n - 1)
    test, train = np.sort(order[:n_test]), np.sort(order[n_test:])
    return rows[train], y[train], rows[test], y[test]


def read_table(
    path: str | os.PathLike[str],
    *,
    target: str | int | None = None,
    silo_column: str | int | None = None,
    header: bool | None = None,
    n_features: int | None = None,
    feature_names: tuple[str, ...] | None = None,
    dtype: DTypeLike = np.float64,
) -> Table:
    """Read LIBSVM or CSV text, plain or compressed (.gz, .bz2, .xz), or an .npz archive.

    The suffixes .svm, .libsvm and .t (before .gz and the like) mean LIBSVM, .npz means an archive
    with the arrays X, y and, if there are silos, groups. Any other text is LIBSVM when its lines
    look like ``label index:value ...``, and comma-separated values otherwise.

    LIBSVM text gives a CSR matrix where at most a quarter of the entries is written down, and an
    ndarray otherwise. In an archive, X may stand in CSR form, as the arrays that
    `scipy.sparse.save_npz` writes: ``np.savez(path, y=y, format="csr", shape=X.shape, data=X.data,
    indices=X.indices, indptr=X.indptr)``. It is kept so.

    Parameters
    ----------
    path : str or path
    target : str or int, optional
        CSV only: the column of y, by name or index (negative ones count from the end). The default
        is the last column.
    silo_column : str or int, optional
        CSV only: the column that says which silo a record belongs to.
    header : bool, optional
        CSV only: whether the first row holds column names. By default it does when some field of
        it is not a number while the field below is.
    n_features : int, optional
        Columns that X must have. LIBSVM rows are padded with zeros (an absent feature is a zero
        there), and refused when they have features beyond; other formats raise when the number
        differs.
    feature_names : tuple of str, optional
        Names that a CSV header, where there is one, must give to the features, in this order.
    dtype : dtype, default=float64
        Of X: float32 or float64.

    Returns
    -------
    Table

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        When there is no such file.
    ValueError
        When the file is empty, damaged, in no known format, ragged, or has missing or non-numeric
        features. The message names the file, the line and the column, and never a value.
    """
    columns = (target, silo_column, header)
    return _read(Path(path), *columns, n_features, feature_names, dtype, labelled=True)


def read_records(
    path: str | os.PathLike[str],
    *,
    n_features: int,
    target: str | int | None = None,
    silo_column: str | int | None = None,
    header: bool | None = None,
    feature_names: tuple[str, ...] | None = None,
    dtype: DTypeLike = np.float64,
) -> tuple[Matrix, NDArray[Any] | None]:
    """Read records to predict, whose labels may be missing.

    Without `target`, a CSV file with as many columns as there are features holds no labels, and one
    with a column more holds them in its last column. An archive may lack y. LIBSVM text always
    has labels, if only placeholders.

    Parameters
    ----------
    path, target, silo_column, header, feature_names, dtype
        As for `read_table`; the silo column is left out.
    n_features : int
        Columns that X must have; LIBSVM rows are padded to them.

    Returns
    -------
    X : ndarray or csr_array of shape (N, n_features)
        As `read_table` gives it.
    y : ndarray of shape (N,), or None

    Raises
    ------
    FileNotFoundError, IsADirectoryError, ValueError
        As `read_table`.
    """
    columns = (target, silo_column, header)
    table = _read(Path(path), *columns, n_features, feature_names, dtype, labelled=False)
    return table.X, table.y if len(table.y) else None


def read_feature_range(
    path: str | os.PathLike[str], *, feature_names: tuple[str, ...] | None = None
) -> tuple[Float64Array, Float64Array]:
    """Read public bounds of features: CSV rows ``lo,hi``, or ``name,lo,hi``, one per feature.

    A first row whose last two fields are not numbers is a header.

    Parameters
    ----------
    path : str or path
        Plain or compressed as for `read_table`.
    feature_names : tuple of str, optional
        When the rows have names, put them into this order.

    Returns
    -------
    lo, hi : ndarray of shape (n_features,), float64

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        When there is no such file.
    ValueError
        When a row has other fields, or names do not match `feature_names`.
    """
    path = Path(path)
    rows = list(_csv_rows(path))
    if rows and len(rows[0][1]) in (2, 3) and not any(map(_is_number, rows[0][1][-2:])):
        rows = rows[1:]
    if not rows:
        raise ValueError(f"{path}: no rows; every feature needs a row lo,hi or name,lo,hi")
    width = len(rows[0][1])
    for line, fields in rows:
        if width not in (2, 3) or len(fields) != width or not all(map(_is_number, fields[-2:])):
            raise ValueError(
                f"{path}, line {line}: expected lo,hi or name,lo,hi with numbers, as in every row"
            )
    bounds = np.array([[float(field) for field in fields[-2:]] for _, fields in rows])
    if width == 3 and feature_names is not None:
        names = [fields[0] for _, fields in rows]
        problems = {
            "no row for": list(Counter(feature_names) - Counter(names)),
            "no feature for the rows": list(Counter(names) - Counter(feature_names)),
        }
        if any(problems.values()):
            found = "; ".join(f"{what} {_some(of)}" for what, of in problems.items() if of)
            raise ValueError(f"{path}: each feature needs exactly one row; {found}")
        bounds = bounds[[names.index(name) for name in feature_names]]
    return bounds[:, 0].copy(), bounds[:, 1].copy()


def _read(
    path: Path,
    target: str | int | None,
    silo_column: str | int | None,
    header: bool | None,
    n_features: int | None,
    feature_names: tuple[str, ...] | None,
    dtype: DTypeLike,
    labelled: bool,
) -> Table:
    """`read_table`; where labels are not needed, y has no entries when there are none."""
    if n_features is not None:
        n_features = count("n_features", n_features)
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise TypeError(f"dtype is {dtype!r}; it must be float32 or float64")
    csv_only = {"target": target, "silo_column": silo_column, "header": header}
    if path.suffix.lower() == ".npz":
        _refuse_options(path, "an .npz archive", csv_only)
        return _read_npz(path, n_features, dtype, labelled)
    if _looks_like_libsvm(path):
        _refuse_options(path, "LIBSVM text", csv_only)
        return _read_libsvm(path, n_features, dtype)
    expected = (n_features, feature_names)
    return _read_csv(path, target, silo_column, header, *expected, dtype, labelled)


def _refuse_options(path: Path, kind: str, options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise ValueError(f"{path} is {kind}; {', '.join(given)} can be given for CSV only")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The decompressed bytes; what a damaged archive raises becomes one ValueError."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        raise ValueError(f"{path}: .zip is not read; use .gz, .bz2 or .xz")
    opener = _OPENERS.get(suffix, open)
    path.stat()  # a missing file is reported as such, before anything else
    try:
        with cast(BinaryIO, opener(path, "rb")) as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # the system's own refusal
            raise
        raise ValueError(f"{path} is damaged or not a {suffix} file") from error


def _looks_like_libsvm(path: Path) -> bool:
    with _opened(path) as stream:
        lines = (line.partition(b"#")[0].strip() for line in stream)
        found = [line for line, _ in zip(filter(None, lines), range(_SNIFFED_LINES), strict=False)]
    if not found:
        raise ValueError(f"{path} is empty")
    inner = path.with_suffix("") if path.suffix.lower() in _OPENERS else path
    if inner.suffix.lower() in _LIBSVM_SUFFIXES:
        return True
    return any(_LIBSVM_LINE.fullmatch(line) for line in found)


def _read_libsvm(path: Path, n_features: int | None, dtype: DTypeLike) -> Table:
    from sklearn.datasets import load_svmlight_file

    try:
        with _opened(path) as stream:
            # The format counts from 1; guessing would shift a file whose first column is empty.
            rows, y = load_svmlight_file(stream, dtype=np.float64, zero_based=False)
            rows.check_format()
    except ValueError:
        # scikit-learn's message quotes the data and names no line, so look for the line here.
        line = _first_bad_libsvm_line(path)
        if line is None:
            raise
        raise ValueError(
            f"{path}, line {line}: expected 'label index:value ...' with numbers and increasing "
            "indices from 1"
        ) from None
    if n_features is None:
        n_features = rows.shape[1]
    elif rows.shape[1] > n_features:
        _refuse_features(path, rows.shape[1], n_features)
    rows.resize((len(y), n_features))
    X = rows.astype(dtype, copy=False)
    sparse = X.nnz <= _SPARSE_SHARE * len(y) * n_features
    return Table(_canonical(X, dtype) if sparse else X.toarray(), _tidy_numbers(y))


def _canonical(X: Any, dtype: DTypeLike) -> Matrix:
    return Csr.checked(X).canonical(dtype, owned=False)[0].to_scipy()


def _first_bad_libsvm_line(path: Path) -> int | None:
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            tokens = line.partition(b"#")[0].split()
            last = 0
            for position, token in enumerate(tokens):
                index, colon, value = token.rpartition(b":")
                if position and index == b"qid":
                    continue
                if bool(position) != bool(colon) or not _is_number(value):
                    return number
                if position:
                    if not index.isdigit() or int(index) <= last:
                        return number
                    last = int(index)
    return None


def _read_npz(path: Path, n_features: int | None, dtype: DTypeLike, labelled: bool) -> Table:
    path.stat()
    if not path.is_dir() and not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is damaged or not an .npz archive")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in ("X", "y", "groups") if name in archive}
            stored_as = archive.get("format")
    except (ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged, or not an .npz archive of plain arrays") from error
    if "X" not in arrays and stored_as is not None:
        arrays["X"] = _read_csr(path, str(stored_as.astype(str)), dtype)
    needed = ("X", "y") if labelled else ("X",)
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"{path} has no array {' and '.join(missing)}; it must hold {' and '.join(needed)}, "
            "where the arrays of scipy.sparse.save_npz may take the place of X"
        )
    X = arrays["X"]
    if X.dtype.kind not in "fiub" or X.ndim != 2:
        raise ValueError(
            f"{path}: X has dtype {X.dtype} and shape {X.shape}; it must be numbers of shape "
            "(N, n_features)"
        )
    for name in ("y", "groups"):
        if name in arrays and arrays[name].shape != X.shape[:1]:
            raise ValueError(
                f"{path}: {name} has shape {arrays[name].shape}; it must be ({X.shape[0]},), one "
                "per row of X"
            )
    _refuse_features(path, X.shape[1], n_features)
    y = arrays.get("y", np.empty(0))
    rows = X if is_sparse(X) else np.ascontiguousarray(X, dtype)
    return Table(rows, y, arrays.get("groups"))


def _read_csr(path: Path, stored_as: str, dtype: DTypeLike) -> Matrix:
    from scipy.sparse import load_npz

    if stored_as != "csr":
        raise ValueError(f"{path} holds a sparse matrix as {stored_as!r}; save X.tocsr()")
    try:
        return _canonical(load_npz(path), dtype)
    except (KeyError, TypeError, ValueError) as error:  # whose messages may quote the data
        raise ValueError(
            f"{path} is damaged, or its arrays are no CSR matrix of numbers"
        ) from error


def _refuse_features(
    path: Path,
    found: int,
    n_features: int | None,
    names: tuple[str, ...] | None = None,
    expected: tuple[str, ...] | None = None,
) -> None:
    """Raise when the number of features, or where both are known their names, is another."""
    other = None
    if names is not None and expected is not None:
        pairs = enumerate(itertools.zip_longest(names, expected))
        other = next(((k, *pair) for k, pair in pairs if pair[0] != pair[1]), None)
    if n_features in (None, found) and other is None:
        return
    message = f"{path} has {found} features; expected {n_features or found}"
    if other is not None:
        k, name, wanted = other
        message += f"; the first name that differs is {name!r} of feature {k}, expected {wanted!r}"
    raise ValueError(message)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped fields of every row that is not blank."""
    with _opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, skipinitialspace=True, strict=True)
        try:
            for fields in reader:
                if any(fields) or len(fields) > 1:
                    yield reader.line_num, [field.strip() for field in fields]
        except UnicodeDecodeError:
            raise ValueError(
                f"{path}, after line {reader.line_num}: not UTF-8 text; expected LIBSVM or CSV text"
            ) from None
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def _read_csv(
    path: Path,
    target: str | int | None,
    silo_column: str | int | None,
    header: bool | None,
    n_features: int | None,
    feature_names: tuple[str, ...] | None,
    dtype: DTypeLike,
    labelled: bool,
) -> Table:
    rows = _csv_rows(path)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty")
    second = next(rows, None)
    if header is None:
        header = _is_header(first[1], None if second is None else second[1])
    names = first[1] if header else None
    width = len(first[1])
    if width < 2 and labelled:
        raise ValueError(
            f"{path}, line {first[0]}: one column; expected comma-separated features and a target"
        )
    n_others = width - (silo_column is not None)
    y_column = None
    if target is not None:
        y_column = _column(path, "target", target, names, width)
    elif labelled or n_others != n_features:
        y_column = width - 1
    g_column = None
    if silo_column is not None:
        g_column = _column(path, "silo_column", silo_column, names, width)
        if g_column == y_column:
            raise ValueError(f"{path}: target and silo_column are both column {y_column}")
    columns = [k for k in range(width) if k not in (y_column, g_column)]
    if not columns:
        raise ValueError(f"{path}: no feature is left beside target and silo_column")
    found = None if names is None else tuple(names[k] for k in columns)
    _refuse_features(path, len(columns), n_features, found, feature_names)

    def pending() -> Iterator[tuple[int, list[str]]]:
        if not header:
            yield first
        if second is not None:
            yield second
        yield from rows

    values, y, groups = array("d"), list[str](), list[str]()
    for line, fields in pending():
        if len(fields) != width:
            raise ValueError(
                f"{path}, line {line}: {len(fields)} fields; the first row has {width}"
            )
        try:
            row = [float(fields[k]) for k in columns]
        except ValueError:
            row = [_value(path, line, k, fields[k], names) for k in columns]
        values.extend(row)
        if y_column is not None:
            y.append(fields[y_column])
        if g_column is not None:
            groups.append(fields[g_column])
    if not values:
        raise ValueError(f"{path} holds a header and no records")
    X = np.array(values, dtype=dtype).reshape(-1, len(columns))
    missing = [
        np.isnan(X),
        *(_missing(column)[:, np.newaxis] for column in (y, groups) if column),
    ]
    n_missing = sum(int(np.count_nonzero(part)) for part in missing)
    if n_missing:
        n_rows = np.count_nonzero(np.hstack(missing).any(axis=1))
        raise ValueError(
            f"{path}: {n_missing} values are missing (empty, ?, NA, NaN, null) in {n_rows} of "
            f"{len(X)} rows; fill them or drop the rows first"
        )
    return Table(
        X,
        _tidy(y),
        _tidy(groups) if groups else None,
        found,
    )


def _value(path: Path, line: int, k: int, field: str, names: list[str] | None) -> float:
    if _is_number(field):
        return float(field)
    if field.lower() in _MISSING:
        return math.nan
    label = f"column {k} (from 0)" if names is None else f"column {names[k]!r}"
    raise ValueError(
        f"{path}, line {line}: {label} is not a number; features must be numbers: encode or drop "
        "the column, or name it as target or silo_column"
    ) from None


def _missing(texts: list[str]) -> NDArray[np.bool_]:
    """Which entries of a target or silo column are missing; beside words "NA" may be one too."""
    others = [text for text in texts if text.lower() not in _MISSING]
    words = _MISSING if others and all(map(_is_number, others)) else {"", "?"}
    return np.array([text.lower() in words for text in texts])


def _is_header(first: list[str], second: list[str] | None) -> bool:
    if second is None:
        return not any(map(_is_number, first))
    return any(
        _is_number(below) and not _is_number(above) and above.lower() not in _MISSING
        for above, below in zip(first, second, strict=False)
    )


def _column(path: Path, option: str, wanted: str | int, names: list[str] | None, width: int) -> int:
    if isinstance(wanted, str):
        if names is not None and wanted in names:
            if names.count(wanted) > 1:
                raise ValueError(f"{path}: {option} {wanted!r} names {names.count(wanted)} columns")
            return names.index(wanted)
        if not re.fullmatch(r"-?\d+", wanted):
            known = "there is no header" if names is None else f"columns are {', '.join(names)}"
            raise ValueError(f"{path}: {option} is {wanted!r}, which is no column: {known}")
    index = int(wanted)
    if not -width <= index < width:
        raise ValueError(f"{path}: {option} is {index}; there are {width} columns, counted from 0")
    return index % width


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _tidy(texts: list[str]) -> NDArray[Any]:
    """Whole numbers as int64, other numbers as float64, the rest as they are."""
    try:
        return _tidy_numbers(np.array([float(text) for text in texts]))
    except ValueError:
        return np.array(texts)


def _tidy_numbers(values: Float64Array) -> NDArray[Any]:
    whole = np.abs(values) <= 2.0**53
    whole &= values == np.round(values)
    return values.astype(np.int64) if whole.all() else values
