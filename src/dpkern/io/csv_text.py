"""Delimited text with a target and optionally a silo column."""

import csv
import io
import itertools
import math
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern._numbers import counted, is_number, parse_integer, parse_number
from dpkern.data.frames import listed, refuse_other_names
from dpkern.data.validation import in_columns
from dpkern.io.files import opened, other_format
from dpkern.io.table import Table, parse_groups, parse_labels, refuse_width

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
_SEPARATORS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")


def csv_rows(
    path: Path, sep: str | None = None, comment: str | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and stripped fields of every row that is not blank.

    The default of `sep` is the one of comma, semicolon, tab and bar that fits the first two lines.
    Lines that begin with `comment` are blank.
    """
    if sep is not None and (not isinstance(sep, str) or len(sep) != 1 or sep in '"\r\n'):
        raise ValueError(f"sep must be one character, and no quote or end of a line, got {sep!r}")
    with opened(path) as stream:
        whole = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        text: Iterator[str] = whole
        if comment is not None:
            text = ("\n" if line.startswith(comment) else line for line in whole)
        line = 0
        try:
            first = list(itertools.islice(text, 2)) if sep is None else []
            sep = _likely_separator(first) if sep is None else sep
            lines = itertools.chain(first, text)
            reader = csv.reader(lines, delimiter=sep, skipinitialspace=True, strict=True)
            for fields in reader:
                line = reader.line_num
                if any(fields) or len(fields) > 1:
                    yield line, [field.strip() for field in fields]
        except UnicodeDecodeError:
            after = f" after line {line}" if line else ""
            raise ValueError(
                f"{path} must be LIBSVM or CSV text, got bytes that are not UTF-8{after}: "
                f"{other_format(path)}"
            ) from None
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {reader.line_num}: {error}; quotes must be closed, and doubled "
                "within a field"
            ) from None


def _likely_separator(lines: list[str]) -> str:
    """Return the separator for which the lines have equally many fields, at least two.

    Among several it is the one with the most numbers, then with the most fields, then the first of
    `_SEPARATORS`, which is also the default.
    """
    best, separator = (0, 0), _SEPARATORS[0]
    for candidate in _SEPARATORS:
        try:
            rows = list(csv.reader(lines, delimiter=candidate, skipinitialspace=True))
        except csv.Error:
            continue
        widths = {len(row) for row in rows if row}
        if len(widths) != 1 or widths == {1}:
            continue
        fields = [field.strip() for field in rows[-1]]
        numbers = sum(map(_resembles_number, fields))
        if (numbers, len(fields)) > best:
            best, separator = (numbers, len(fields)), candidate
    return separator


def _one_column(path: Path, sep: str | None) -> str:
    """Return the end of a message, with the separator that the file seems to have."""
    if sep is None:
        return "between commas, semicolons, tabs or bars (or what sep says), got one column"
    with opened(path) as stream:
        likely = _likely_separator([line.decode() for line in itertools.islice(stream, 2)])
    seems = "" if likely == sep else f": the file seems to have {likely!r}"
    return f"between {sep!r} as sep says, got one column{seems}"


def _resembles_number(field: str) -> bool:
    """Return whether a field is a number, or one in a spelling that is refused."""
    try:
        float(field)
    except ValueError:
        return _has_decimal_comma(field)
    return True


def _has_decimal_comma(field: str) -> bool:
    return _DECIMAL_COMMA.fullmatch(field) is not None


def read_csv(
    path: Path,
    *,
    target: str | int | None,
    silo_column: str | int | None,
    person: str | int | None,
    header: bool | None,
    sep: str | None,
    text: bool,
    n_features: int | None,
    feature_names: tuple[str, ...] | None,
    dtype: DTypeLike,
    labelled: bool,
) -> Table:
    rows = csv_rows(path, sep)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty")
    second = next(rows, None)
    by_place = False
    if header is None:
        header = is_header(first[1], None if second is None else second[1])
        if not header and second is not None and _has_name_above_number(first[1], second[1]):
            raise ValueError(
                f"{path}, line {first[0]} must be said to hold names, by header=True, or to be a "
                "record, by header=False: it holds numbers, and text above numbers"
            )
        by_place = not header and feature_names is not None
        numbers = map(_resembles_number, (*first[1], *(() if second is None else second[1])))
        if second is not None and len(first[1]) > 1 and not any(numbers):
            raise ValueError(
                f"{path}, line {first[0]} must hold the names of the columns above numbers, or "
                f"numbers, got text there and in line {second[0]}: remove lines above the names"
            )
    names = first[1] if header else None
    width = len(first[1])
    if sep is None and second is not None and width == 1 < len(second[1]):
        raise ValueError(
            f"{path}, line {first[0]} must hold as many fields as line {second[0]}, "
            f"{len(second[1])}, got 1: remove lines above the names"
        )
    if width < 2 and (labelled or n_features != 1):
        what = "features and a target" if labelled else f"{n_features} features"
        raise ValueError(f"{path}, line {first[0]} must hold {what} {_one_column(path, sep)}")
    if by_place:
        raise ValueError(
            f"{path} must have a header with the names of the model's columns, got none: add it, "
            f"or say header=False if the features are, in order, {listed(feature_names or ())}"
        )
    n_others = width - (silo_column is not None) - (person is not None)
    y_column = None
    if target is not None:
        y_column = _column(path, "target", target, names, width)
    elif labelled or (n_others != n_features and (names or [""])[-1] not in (feature_names or ())):
        y_column = width - 1
    g_column = p_column = None
    if silo_column is not None:
        g_column = _column(path, "silo_column", silo_column, names, width)
    if person is not None:
        p_column = _column(path, "person", person, names, width)
    own = {"target": y_column, "silo_column": g_column, "person": p_column}
    for (one, k), (other, also) in itertools.combinations(own.items(), 2):
        if k is not None and k == also:
            raise ValueError(f"{path}: {one} and {other} must be two columns, got {k} for both")
    columns = [k for k in range(width) if k not in own.values()]
    if names is not None and 0 in columns and names[0] in ("", "Unnamed: 0"):
        raise ValueError(
            f"{path}: column 0 must be a feature with a name, got {names[0]!r}, which is the row "
            "index that pandas' to_csv writes: write the file with index=False or remove the column"
        )
    guessed = [y_column] if target is None and y_column is not None else []
    if names is not None and (blank := [k for k in (*columns, *guessed) if not names[k]]):
        raise ValueError(
            f"{path}: column {blank[0]} (from 0) must have a name in the header, got none: name "
            "it, or remove the column, as separators at the ends of lines make one"
        )
    if names is not None and (twice := [k for k in columns if names[k] in names[:k]]):
        raise ValueError(
            f"{path} must have distinct names in its header, got {names[twice[0]]!r} twice: rename "
            f"column {twice[0]} (from 0)"
        )
    if not columns:
        raise ValueError(f"{path} must hold a feature beside target and silo_column, got none")
    found_names = None if names is None else tuple(names[k] for k in columns)
    cure = "labels are named by target=NAME, other columns must leave the file"
    refuse_other_names(found_names, feature_names, str(path), cure)
    refuse_width(path, len(columns), n_features)

    values = array("d")
    y, groups, persons = list[str](), list[str](), list[str]()
    texts = [(y_column, y), (g_column, groups), (p_column, persons)]
    others = [(k, column) for k, column in texts if k is not None]
    begin = [row for row in (None if header else first, second) if row is not None]
    for line, fields in itertools.chain(begin, rows):
        if len(fields) != width:
            raise ValueError(
                f"{path}, line {line} must have {width} fields as the first row, got {len(fields)}"
            )
        try:
            row = [float(fields[k]) for k in columns]
            whole = "".join(fields)
            if "_" in whole or not whole.isascii():  # which `float` may take
                row = [parse_number(fields[k]) for k in columns]
        except ValueError:
            row = [_value(path, line, k, fields[k], names, bool(values)) for k in columns]
        values.extend(row)
        for k, column in others:
            column.append(fields[k])
    if not values:
        raise ValueError(f"{path} must hold records, got a header only")
    X = np.array(values, dtype=dtype).reshape(-1, len(columns))
    missing = np.column_stack([np.isnan(X), *(_missing(column) for _, column in others)])
    if missing.any():
        n_rows = np.count_nonzero(missing.any(axis=1))
        order = [*columns, *(k for k, _ in others)]
        counts = {order[k]: int(missing[:, k].sum()) for k in np.flatnonzero(missing.any(axis=0))}
        raise ValueError(
            f"{path} must have no missing values (empty, ?, NA, NaN, null), got "
            f"{np.count_nonzero(missing)} in {n_rows} of {counted(len(X), 'row')} "
            f"{in_columns(counts, names)}: fill them or drop the rows first"
        )
    target_name = None if y_column is None else str(y_column if names is None else names[y_column])
    in_silos = parse_groups(groups) if groups else None
    ids = np.array(persons) if persons else None
    labels = np.array(y) if text else parse_labels(y)
    return Table(X, labels, in_silos, found_names, target_name, ids)


def _value(
    path: Path, line: int, k: int, field: str, names: list[str] | None, after_numbers: bool
) -> float:
    if is_number(field):
        return parse_number(field)
    if field.lower() in _MISSING:
        return math.nan
    label = f"column {k} (from 0)" if names is None else f"column {names[k]!r}"
    if _has_decimal_comma(field):
        also = " or thousands separator" if _THOUSANDS.fullmatch(field) else ""
        raise ValueError(
            f"{path}, line {line}: {label} must have decimal points, got a decimal comma{also}: "
            "pandas' read_csv(..., decimal=',' or thousands=',') reads such a file"
        ) from None
    if after_numbers:
        raise ValueError(
            f"{path}, line {line}: {label} must be a number, got text after numbers: mend the cell "
            "(units, notes, errors of formulas), or remove the row"
        ) from None
    raise ValueError(
        f"{path}, line {line}: {label} must be a number, got text: describe the columns by a "
        "schema, drop this one, name it as target or silo_column, or name another separator of "
        "fields by sep"
    ) from None


def _missing(texts: list[str]) -> NDArray[np.bool_]:
    """Return which labels are missing; among words, "NA" and the like may be labels."""
    others = [text for text in texts if text.lower() not in _MISSING]
    words = _MISSING if others and all(map(is_number, others)) else {"", "?"}
    return np.array([text.lower() in words for text in texts])


def is_header(first: list[str], second: list[str] | None) -> bool:
    """Return whether the first row holds no number, and a name above a number if another follows.

    Features are numbers in every record, so that none of them decides about a file that is read.
    """
    if any(map(_resembles_number, first)):
        return False
    return second is None or _has_name_above_number(first, second)


def _has_name_above_number(first: list[str], second: list[str]) -> bool:
    return any(
        _resembles_number(below) and not _resembles_number(above) and above.lower() not in _MISSING
        for above, below in zip(first, second, strict=False)
    )


def _column(path: Path, option: str, wanted: str | int, names: list[str] | None, width: int) -> int:
    if isinstance(wanted, str):
        if names is not None and wanted in names:
            if names.count(wanted) > 1:
                raise ValueError(
                    f"{path}: {option} must name one column, got {wanted!r}, which names several"
                )
            return names.index(wanted)
        try:
            wanted = parse_integer(wanted)
        except ValueError:
            known = "there is no header" if names is None else f"columns are {', '.join(names)}"
            message = f"{path}: {option} must be a column, got {wanted!r}: {known}"
            raise ValueError(message) from None
    index = int(wanted)
    if not -width <= index < width:
        raise ValueError(f"{path}: {option} must be one of {width} columns from 0, got {index}")
    return index % width
