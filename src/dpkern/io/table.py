"""The contents of a data file, and common checks and conversions of its readers."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern._numbers import parse_number
from dpkern.data.validation import Float64Array, Matrix, canonical, checked_csr, csr_of

_EXACT = 2.0**53  # up to which doubles tell whole numbers apart
_WHOLE = re.compile(r"[+-]?[0-9]+")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")
_PLAIN = re.compile(r"0|-?[1-9][0-9]*")  # whole numbers as Python writes them


@dataclass(frozen=True, eq=False)
class Table:
    """The contents of a data file.

    Attributes
    ----------
    X : ndarray (C-contiguous) or csr_array of shape (N, n_features), float32 or float64
    y : ndarray of shape (N,)
        Integers as int64, other numbers as float64, the rest as strings; in CSV also numbers with
        leading zeros, such as 01, which are codes.
    groups : ndarray of shape (N,), or None
        The silo of each record, int64 or strings: those of CSV where a leading zero, a sign or a
        point would be lost.
    feature_names : tuple of str, or None
    target : str, or None
        Name or number of the column of y in a CSV file.
    person : ndarray of shape (N,), or None
        The id of the person of each record: strings in CSV, numbers or strings in archives.
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


def canonical_csr(X: Any, dtype: DTypeLike, *, width_is_read: bool = False) -> Matrix:
    rows, _ = canonical(checked_csr(X), dtype, owned=False)
    rows = csr_of(rows.data, rows.indices, rows.indptr, rows.shape, width_is_read=width_is_read)
    if rows.nnz <= np.iinfo(np.int32).max:  # as indices: scipy converts arrays of one dtype only
        rows.indptr = rows.indptr.astype(np.int32)
    return rows


def parse_labels(texts: list[str]) -> NDArray[Any]:
    """Return labels as int64 or float64 where every text spells a number, else the texts.

    A text that its number does not give back is a code and no number: a whole number with a
    leading zero, or with more digits than are held. One of them makes texts of all.
    """
    try:
        values = tidy_numbers(np.array([parse_number(text) for text in texts]))
    except ValueError:
        return np.array(texts)
    whole = [text for text in texts if _WHOLE.fullmatch(text)]
    if any(_LEADING_ZERO.match(text) for text in whole):
        return np.array(texts)
    if np.abs(values).max(initial=0) < _EXACT:
        return values
    if len(whole) == len(texts) and (exact := _integers(texts)) is not None:
        return exact
    return values if all(int(text) == float(text) for text in whole) else np.array(texts)


def parse_groups(texts: list[str]) -> NDArray[Any]:
    """Return names of silos as int64 where that loses nothing of any text, else the texts."""
    exact = _integers(texts) if all(map(_PLAIN.fullmatch, texts)) else None
    return np.array(texts) if exact is None else exact


def _integers(texts: list[str]) -> NDArray[np.int64] | None:
    try:
        return np.array([int(text) for text in texts], dtype=np.int64)
    except OverflowError:
        return None


def tidy_numbers(values: Float64Array) -> NDArray[Any]:
    """Return whole numbers that doubles tell apart as int64."""
    whole = np.abs(values) <= _EXACT
    whole &= values == np.round(values)
    return values.astype(np.int64) if whole.all() else values
