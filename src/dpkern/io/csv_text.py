"""Comma-separated values, with a target and perhaps a silo column."""

import csv
import io
import math
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern.io.opening import opened
from dpkern.io.table import Table, is_number, refuse_width, tidy

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})


def csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and stripped fields of every row that is not blank."""
    with opened(path) as stream:
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


def read_csv(
    path: Path,
    target: str | int | None,
    silo_column: str | int | None,
    header: bool | None,
    n_features: int | None,
    dtype: DTypeLike,
    labelled: bool,
) -> Table:
    rows = csv_rows(path)
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
    refuse_width(path, len(columns), n_features)

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
        tidy(y),
        tidy(groups) if groups else None,
        None if names is None else tuple(names[k] for k in columns),
    )


def _value(path: Path, line: int, k: int, field: str, names: list[str] | None) -> float:
    if is_number(field):
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
    words = _MISSING if others and all(map(is_number, others)) else {"", "?"}
    return np.array([text.lower() in words for text in texts])


def _is_header(first: list[str], second: list[str] | None) -> bool:
    if second is None:
        return not any(map(is_number, first))
    return any(
        is_number(below) and not is_number(above) and above.lower() not in _MISSING
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
