"""Column names and values of data frames of pandas, polars and similar libraries.

Neither library is imported: a frame is an object with ``columns`` and ``dtypes``.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import counted
from dpkern.kernels._blocks import place_columns


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def column_names(X: Any) -> tuple[str, ...] | None:
    """Return a frame's column names; None if X is no frame, or its columns are numbered."""
    names = tuple(X.columns) if is_frame(X) else ()
    return names if names and all(isinstance(name, str) for name in names) else None


def table_columns(X: Any) -> dict[str, Any] | None:
    """Return the columns of raw records by name; None if X is no table with names.

    X is a frame, a mapping of names to columns, or a list of mappings, of which an absent key is a
    missing value.
    """
    if isinstance(X, Mapping):
        columns = dict(X)
    elif is_frame(X):
        refuse_names_twice(X)
        columns = {name: X[name] for name in X.columns}
    elif isinstance(X, list | tuple) and X and all(isinstance(row, Mapping) for row in X):
        columns = {name: [row.get(name) for row in X] for name in dict.fromkeys(chain(*X))}
    else:
        return None
    if not all(isinstance(name, str) for name in columns):
        raise TypeError("X must have strings as names of its columns, got others")
    return columns


def refuse_names_twice(X: Any) -> None:
    """Raise ValueError for a frame in which a column's name comes again."""
    twice = [name for name, times in Counter(X.columns).items() if times > 1]
    if twice:
        raise ValueError(
            f"X must have columns with distinct names, got {listed(twice)} twice: rename or drop "
            "columns"
        )


def refuse_shuffled(X: Any, y: Any) -> None:
    """Raise ValueError for a series with the index of the frame X in another order."""
    rows: Any = getattr(X, "index", None)
    labels: Any = getattr(y, "index", None)
    if not is_frame(X) or not hasattr(rows, "equals") or not hasattr(labels, "equals"):
        return  # neither of pandas
    if not rows.equals(labels) and rows.sort_values().equals(labels.sort_values()):
        raise ValueError(
            "y must have the index of X in its order, got another order: pass y.loc[X.index]"
        )


def refuse_times(X: Any) -> None:
    """Raise TypeError for a frame with a column of dates or durations."""
    for name, dtype in zip(X.columns, X.dtypes, strict=True):
        temporal = getattr(dtype, "is_temporal", None)  # of polars
        if getattr(dtype, "kind", "") in ("m", "M") or (temporal is not None and temporal()):
            raise TypeError(
                f"column {name!r} of X must be numbers, got dtype {dtype}: encode it (as days "
                "since a public date, say) or drop it"
            )


def checked_names(names: Sequence[str], n_features: int) -> tuple[str, ...]:
    """Return given feature names as a tuple; raise unless they are n_features distinct strings."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"feature_names must be a sequence of strings, got {names!r}")
    if len(names) != n_features or len(set(names)) < len(names):
        raise ValueError(
            f"feature_names must be {n_features} distinct names, one per column of X, got "
            f"{len(set(names))} distinct ones among {len(names)}"
        )
    return tuple(names)


def refuse_other_names(
    names: tuple[str, ...] | None,
    expected: tuple[str, ...] | None,
    what: str = "X",
    cure: str = "drop them",
) -> None:
    """Raise ValueError unless the columns have the expected names and order, if both are known.

    `cure` says what to do about columns that the model does not have.
    """
    if names is None or expected is None or names == expected:
        return
    missing = list((Counter(expected) - Counter(names)).elements())
    unknown = list((Counter(names) - Counter(expected)).elements())
    if not missing and not unknown:
        k = next(k for k, name in enumerate(expected) if names[k] != name)
        raise ValueError(
            f"{what} must have the columns of the model in their order: column {k} must be "
            f"{expected[k]!r}, got {names[k]!r}; the order differs"
        )
    found = "got all of them"
    if missing:
        found, cure = f"got {len(names)}; missing {listed(missing)}", ""
    if unknown:
        found += f"; unknown {listed(unknown)}" + (f": {cure}" if cure else "")
    raise ValueError(f"{what} must have the {len(expected)} columns of the model, {found}")


def listed(names: Sequence[str]) -> str:
    """Return the first five names, quoted, and how many follow."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(map(repr, names[:5])) + more


def frame_matrix(X: Any) -> NDArray[Any]:
    """Return the values of a frame, booleans as 0 and 1: float32 if all columns are, else float64.

    Columns that are not numeric, or have missing values, NaN included, are refused by name.
    """
    n, p = X.shape
    columns = [X.iloc[:, k] if hasattr(X, "iloc") else X[:, k] for k in range(p)]
    single = p > 0 and all(str(column.dtype).lower() == "float32" for column in columns)
    out = np.empty((n, p), np.float32 if single else np.float64)
    for k, (name, column) in enumerate(zip(X.columns, columns, strict=True)):
        if not is_numeric(column.dtype):
            raise TypeError(
                f"column {name!r} of X must be numbers, got dtype {column.dtype}: encode it "
                "(one-hot, say) or drop it"
            )
        missing = _missing(column)
        if not missing:
            out[:, k] = column.to_numpy()
            missing = int(np.count_nonzero(np.isnan(out[:, k])))
        if missing:
            raise ValueError(
                f"column {name!r} of X must have no missing values, got {missing} in "
                f"{counted(n, 'row')}: "
                "fill them or drop the rows"
            )
    return out


def is_numeric(dtype: Any) -> bool:
    """Return whether a dtype of pandas, NumPy or polars is numeric or boolean."""
    if hasattr(dtype, "kind"):
        return dtype.kind in "fiub"
    return bool(dtype.is_numeric()) or str(dtype) == "Boolean"


def is_missing(value: object) -> bool:
    """Return whether a Python object stands for a missing value: None, NA, NaT or NaN."""
    named = value is None or type(value).__name__ in ("NAType", "NaTType")
    return named or (isinstance(value, float) and value != value)


def _missing(column: Any) -> int:
    """Return the number of missing values other than NaN."""
    if hasattr(column, "null_count"):
        return int(column.null_count())
    return 0 if isinstance(column.dtype, np.dtype) else int(column.isna().sum())


def side_by_side(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return columns of numbers as rows, in float32 if they all are, or in float64."""
    single = all(column.dtype == np.float32 for column in columns)
    return place_columns(columns, np.dtype(np.float32 if single else np.float64))
