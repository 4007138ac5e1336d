"""Values outside what a column declares: how many there are, for the holder of the records."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from dpkern._numbers import counted
from dpkern.data.column import OTHER, Column

_LISTED = 10  # columns
FEWEST = 10  # of fewer values outside, as of a single record to predict, nothing is refused


def count_outside(column: Column, values: Any, missing: frozenset[str]) -> tuple[int, int]:
    """Return how many values are out of range or not listed, and how many are not missing.

    Labels are not counted: one that is not listed is an error.
    """
    if column.lo is not None and column.hi is not None:
        x = column.to_numbers(values, missing)
        outside = (x < column.lo) | (x > column.hi)
        return int(np.count_nonzero(outside)), int(np.count_nonzero(~np.isnan(x)))
    if column.categories is None:
        return 0, 0
    codes = column.to_codes(values, missing, column.categories, absent=-2)
    return int(np.count_nonzero(codes == -1)), int(np.count_nonzero(codes != -2))


def count_averaged(column: Column, values: Any, missing: frozenset[str]) -> int:
    """Return how many missing values have the average of categories, as nothing else is stated."""
    if column.categories is None or column.missing is not None:
        return 0
    codes = column.to_codes(values, missing, column.categories, absent=-2)
    return int(np.count_nonzero(codes == -2))


def count_misspelt(column: Column, values: Any, missing: frozenset[str]) -> int:
    """Return how many values differ from a category or alias by case or spaces alone."""
    if column.categories is None:
        return 0
    known = {_folded(name) for name in (*column.categories, *column.aliases)}
    spelt = [
        value if isinstance(value, str) and _folded(value) in known else "" for value in values
    ]
    return count_outside(column, spelt, missing | {""})[0]


def _folded(text: str) -> str:
    return "".join(text.split()).casefold()


def outside_text(counts: Mapping[str, tuple[int, int]], averaged: Mapping[str, int]) -> str:
    """Return what the holder of the records is told of these counts, nothing where all are 0."""
    outside = [f"{bad} of {present} in column {name!r}" for name, (bad, present) in counts.items()]
    missing = [f"{counted(n, 'value')} in column {name!r}" for name, n in averaged.items()]
    parts = [
        f"values {text}: {', '.join(found[:_LISTED])}"
        + (f", and some in {len(found) - _LISTED} columns more" if len(found) > _LISTED else "")
        for text, found in (
            ("out of range or in no category", outside),
            ("missing that are coded as the average of the categories", missing),
        )
        if found
    ]
    note = "(counted without noise: for the holder of the records alone)"
    if outside:
        note += (
            "; those out of range count as its nearest end, and those in no category as the "
            'average of the categories, or as "other" where that is one'
        )
    return f"{'; '.join(parts)} {note}" if parts else ""


def refuse_outside(column: Column, outside: int, present: int, misspelt: int = 0) -> None:
    """Raise ValueError if most values of a column are outside, and not only a few are.

    So many as a few are too many of those that differ from a category by case or spaces alone.
    """
    if misspelt >= FEWEST:
        first = cast(Any, column.categories)[0]
        raise ValueError(
            f"column {column.name!r} must hold its categories or aliases, got {misspelt} of "
            f"{present} values that differ from one by case or spaces alone: state these spellings "
            f'in the aliases of the column, as in {{"SPELLING": "{first}"}}'
        )
    if outside < FEWEST or 2 * outside <= present:
        return
    if column.categories is None:
        raise ValueError(
            f"column {column.name!r} must be in its range, {column.lo:g} to {column.hi:g}, got "
            f"{outside} of {present} values outside: state the range in the unit of the records"
        )
    if OTHER not in column.categories:
        raise ValueError(
            f"column {column.name!r} must hold its categories or aliases, got {outside} of "
            f"{present} values that are neither: state the spellings of the records, or list "
            f'"{OTHER}" among the categories if most values are others'
        )
