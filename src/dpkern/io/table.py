"""The contents of a data file, and common checks and conversions of its readers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern.data.csr import canonical, checked_csr
from dpkern.data.validation import Float64Array, Matrix


@dataclass(frozen=True, eq=False)
class Table:
    """The contents of a data file.

    Attributes
    ----------
    X : ndarray (C-contiguous) or csr_array of shape (N, n_features), float32 or float64
    y : ndarray of shape (N,)
        Integers as int64, other numbers as float64, the rest as strings.
    groups : ndarray of shape (N,), or None
        The silo of each record, int64 or strings.
    feature_names : tuple of str, or None
    target : str, or None
        Name or number of the column of y in a CSV file.
    person : ndarray of shape (N,), or None
        The id of the person of each record, numbers or strings.
    """

    X: Matrix
    y: NDArray[Any]
    groups: NDArray[Any] | None = None
    feature_names: tuple[str, ...] | None = None
    target: str | None = None
    person: NDArray[Any] | None = None


def refuse_width(path: Path, found: int, n_features: int | None) -> None:
    if n_features is not None and found != n_features:
        raise ValueError(f"{path} must have {n_features} features, got {found}")


def canonical_csr(X: Any, dtype: DTypeLike) -> Matrix:
    rows, _ = canonical(checked_csr(X), dtype, owned=False)
    if rows.nnz <= np.iinfo(np.int32).max:  # as indices: scipy converts arrays of one dtype only
        rows.indptr = rows.indptr.astype(np.int32)
    return rows


def is_number(text: str | bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def tidy(texts: list[str]) -> NDArray[Any]:
    """Convert integers to int64 and other numbers to float64; return the rest as strings."""
    try:
        return tidy_numbers(np.array([float(text) for text in texts]))
    except ValueError:
        return np.array(texts)


def tidy_numbers(values: Float64Array) -> NDArray[Any]:
    whole = np.abs(values) <= 2.0**53
    whole &= values == np.round(values)
    return values.astype(np.int64) if whole.all() else values
