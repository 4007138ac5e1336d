"""Weights of records, and offsets of their margins."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import positive
from dpkern.data.validation import Float64Array, RowOptions

_OF_RECORDS = ("weight", "margin_offset")  #: options with a value for each record
BESIDE_ROWS = ("row_norms", "record_weight", "margin_offset")  #: attributes that have one, or None


def record_weights(
    weight: ArrayLike | None, max_weight: float | None, n: int
) -> Float64Array | None:
    """Return weights in units of the largest one, or None without any."""
    if weight is None and max_weight is not None:
        raise ValueError(f"max_weight must be left out without weight, got {max_weight!r}")
    if weight is None:
        return None
    if max_weight is None:
        raise ValueError("max_weight must be given with weight: the public bound of a weight")
    values, most = values_of_records("weight", weight, n), positive("max_weight", max_weight)
    if negative := int(np.count_nonzero(values < 0.0)):
        raise ValueError(f"weight must be at least 0, got {negative} negative of {n}")
    return np.minimum(values, most) / most


def margin_offsets(margin_offset: ArrayLike | None, n: int) -> Float64Array | None:
    """Return offsets of margins as an array of their own."""
    return None if margin_offset is None else values_of_records("margin_offset", margin_offset, n)


def values_of_records(name: str, values: ArrayLike, n: int) -> Float64Array:
    """Return a finite number for each of n records, as a copy; errors show no entry."""
    given = np.asarray(values)
    if given.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be real numbers, got dtype {given.dtype}")
    if given.shape != (n,):
        raise ValueError(f"{name} must have shape ({n},), a number a record, got {given.shape}")
    copied = np.array(given, dtype=np.float64)
    if bad := int(np.count_nonzero(~np.isfinite(copied))):
        raise ValueError(
            f"{name} must be finite, got {bad} of {n} that are not: drop these records"
        )
    return copied


def log_exposures(exposure: ArrayLike, n: int) -> Float64Array:
    """Return the logs of exposures, as offsets of margins."""
    values = values_of_records("exposure", exposure, n)
    if bad := int(np.count_nonzero(values <= 0.0)):
        raise ValueError(f"exposure must be positive, got {bad} of {n} that are not: drop these")
    return np.log(values)


def in_order(options: RowOptions, order: NDArray[np.int64], n: int) -> RowOptions:
    """Return options with what belongs to records, of n, in the order of the rows."""
    given = cast(dict[str, Any], options)
    moved = {
        name: values_of_records(name, given[name], n)[order]
        for name in _OF_RECORDS
        if given.get(name) is not None
    }
    return cast(RowOptions, given | moved)


def joined_weights(options: RowOptions, sizes: Sequence[int]) -> RowOptions:
    """Return options with what belongs to records joined from one sequence per silo."""
    given = cast(dict[str, Any], options)
    found = {
        name: _joined(name, given[name], sizes)
        for name in _OF_RECORDS
        if given.get(name) is not None
    }
    return cast(RowOptions, given | found)


def _joined(name: str, silos: Any, sizes: Sequence[int]) -> Float64Array:
    given = list(silos)
    if len(given) != len(sizes):
        raise ValueError(
            f"{name} must hold the values of the rows of each of {len(sizes)} silos, got "
            f"{len(given)}"
        )
    pairs = zip(given, sizes, strict=True)
    return np.concatenate([values_of_records(name, own, n) for own, n in pairs])


def chosen(values: Float64Array | None, order: NDArray[np.int64]) -> Float64Array | None:
    """Return the values of the records in this order, or None without values."""
    return None if values is None else values[order]
