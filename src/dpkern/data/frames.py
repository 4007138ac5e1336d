"""Column names and values of data frames of pandas, polars and similar libraries.

Neither library is imported: a frame is an object with ``columns`` and ``dtypes``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def column_names(X: Any) -> tuple[str, ...] | None:
    """Return a frame's column names; None if X is no frame, or its columns are numbered."""
    names = tuple(X.columns) if is_frame(X) else ()
    return names if names and all(isinstance(name, str) for name in names) else None


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
    names: tuple[str, ...] | None, expected: tuple[str, ...] | None, what: str = "X"
) -> None:
    """Raise ValueError unless the columns have the expected names and order, if both are known."""
    if names is None or expected is None or names == expected:
        return
    if len(names) != len(expected):
        missing = [f"{name!r} is missing" for name in expected if name not in names][:1]
        other = [f"{name!r} is not among them" for name in names if name not in expected][:1]
        raise ValueError(
            f"{what} must have the {len(expected)} columns of the model, got {len(names)}"
            + (f": {', '.join(missing + other)}" if missing or other else "")
        )
    k = next(k for k, pair in enumerate(zip(names, expected, strict=True)) if pair[0] != pair[1])
    order = "; the order differs" if sorted(names) == sorted(expected) else ""
    raise ValueError(
        f"{what} must have the columns of the model in their order: column {k} must be "
        f"{expected[k]!r}, got {names[k]!r}{order}"
    )


def frame_matrix(X: Any) -> NDArray[Any]:
    """Return the values of a frame, booleans as 0 and 1: float32 if all columns are, else float64.

    Columns that are not numeric, or have missing values, NaN included, are refused by name.
    """
    n, p = X.shape
    columns = [X.iloc[:, k] if hasattr(X, "iloc") else X[:, k] for k in range(p)]
    single = p > 0 and all(str(column.dtype).lower() == "float32" for column in columns)
    out = np.empty((n, p), np.float32 if single else np.float64)
    for k, (name, column) in enumerate(zip(X.columns, columns, strict=True)):
        if not _is_numeric(column.dtype):
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
                f"column {name!r} of X must have no missing values, got {missing} in {n} rows: "
                "fill them or drop the rows"
            )
    return out


def _is_numeric(dtype: Any) -> bool:
    """Return whether a dtype of pandas, NumPy or polars is numeric or boolean."""
    if hasattr(dtype, "kind"):
        return dtype.kind in "fiub"
    return bool(dtype.is_numeric()) or str(dtype) == "Boolean"


def _missing(column: Any) -> int:
    """Return the number of missing values other than NaN."""
    if hasattr(column, "null_count"):
        return int(column.null_count())
    return 0 if isinstance(column.dtype, np.dtype) else int(column.isna().sum())
