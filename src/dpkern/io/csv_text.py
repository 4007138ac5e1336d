"""Delimited text: a table with a target and optionally a silo column, or columns by a schema."""

import csv
import io
import itertools
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from dpkern._files import opened, other_format
from dpkern._numbers import counted, is_number, parse_integer, parse_number
from dpkern.data import Schema
from dpkern.data.frames import listed, refuse_other_names
from dpkern.data.validation import in_columns
from dpkern.io.table import Table, parse_groups, parse_labels, refuse_width

_Row: TypeAlias = tuple[int, list[str]]  # number of its line, and its fields

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
_SEPARATORS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")

Frame = dict[str, list[str]]


def csv_rows(path: Path, sep: str | None = None, comment: str | None = None) -> Iterator[_Row]:
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


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file hold what, by their numbers from 0.

    Attributes
    ----------
    width : int
        Number of columns.
    names : list of str, or None
        Names of all columns, if the file has a header.
    features : list of int
    target, silo, person : int or None
    """

    width: int
    names: list[str] | None
    features: list[int]
    target: int | None
    silo: int | None
    person: int | None

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return None if self.names is None else tuple(self.names[k] for k in self.features)

    @property
    def target_name(self) -> str | None:
        """Name of the target, or its number as text."""
        if self.target is None:
            return None
        return str(self.target if self.names is None else self.names[self.target])


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
    """Return the table of a CSV file; arguments are those of `dpkern.io.read_records`.

    With `text` labels stay as they are written. Only a `labelled` file has a target where none is
    named.
    """
    rows = csv_rows(path, sep)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty")
    second = next(rows, None)
    has_names = _holds_names(path, first, second) if header is None else header
    by_place = header is None and not has_names and feature_names is not None
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
    names = first[1] if has_names else None
    n_others = width - (silo_column is not None) - (person is not None)
    ends_in_feature = (names or [""])[-1] in (feature_names or ())
    takes_last = target is None and (labelled or (n_others != n_features and not ends_in_feature))
    columns = _columns(path, names, width, -1 if takes_last else target, silo_column, person)
    _check_names(path, columns, [*columns.features, width - 1] if takes_last else columns.features)
    cure = "labels are named by target=NAME, other columns must leave the file"
    refuse_other_names(columns.feature_names, feature_names, str(path), cure)
    refuse_width(path, len(columns.features), n_features)
    begin = [row for row in (None if has_names else first, second) if row is not None]
    return _table(path, itertools.chain(begin, rows), columns, dtype, text=text)


def _holds_names(path: Path, first: _Row, second: _Row | None) -> bool:
    """Return whether the first row holds the names of columns; raise where that is unclear."""
    found = is_header(first[1], None if second is None else second[1])
    if second is None:
        return found
    if not found and _has_name_above_number(first[1], second[1]):
        raise ValueError(
            f"{path}, line {first[0]} must be said to hold names, by header=True, or to be a "
            "record, by header=False: it holds numbers, and text above numbers"
        )
    if len(first[1]) > 1 and not any(map(_resembles_number, (*first[1], *second[1]))):
        raise ValueError(
            f"{path}, line {first[0]} must hold the names of the columns above numbers, or "
            f"numbers, got text there and in line {second[0]}: remove lines above the names"
        )
    return found


def _columns(
    path: Path,
    names: list[str] | None,
    width: int,
    target: str | int | None,
    silo_column: str | int | None,
    person: str | int | None,
) -> _Columns:
    """Return the columns of the features, which are all others, and of what is named."""
    named = {"target": target, "silo_column": silo_column, "person": person}
    own = {
        option: None if wanted is None else _column(path, option, wanted, names, width)
        for option, wanted in named.items()
    }
    for (one, k), (other, also) in itertools.combinations(own.items(), 2):
        if k is not None and k == also:
            raise ValueError(f"{path}: {one} and {other} must be two columns, got {k} for both")
    features = [k for k in range(width) if k not in own.values()]
    return _Columns(width, names, features, own["target"], own["silo_column"], own["person"])


def _check_names(path: Path, columns: _Columns, named: list[int]) -> None:
    """Raise ValueError unless features have distinct names, where the file has a header.

    The columns `named` need one, the last column among them that is taken as the target.
    """
    names, features = columns.names, columns.features
    if names is not None and 0 in features and names[0] in ("", "Unnamed: 0"):
        raise ValueError(
            f"{path}: column 0 must be a feature with a name, got {names[0]!r}, which is the row "
            "index that pandas' to_csv writes: write the file with index=False or remove the column"
        )
    if names is not None and (blank := [k for k in named if not names[k]]):
        raise ValueError(
            f"{path}: column {blank[0]} (from 0) must have a name in the header, got none: name "
            "it, or remove the column, as separators at the ends of lines make one"
        )
    if names is not None and (twice := [k for k in features if names[k] in names[:k]]):
        raise ValueError(
            f"{path} must have distinct names in its header, got {names[twice[0]]!r} twice: rename "
            f"column {twice[0]} (from 0)"
        )
    if not features:
        raise ValueError(f"{path} must hold a feature beside target and silo_column, got none")


def _table(
    path: Path, rows: Iterator[_Row], columns: _Columns, dtype: DTypeLike, *, text: bool
) -> Table:
    """Return the records of the rows; raise where a field is no number, or missing."""
    values, features, names = array("d"), columns.features, columns.names
    y, groups, persons = list[str](), list[str](), list[str]()
    texts = [(columns.target, y), (columns.silo, groups), (columns.person, persons)]
    others = [(k, column) for k, column in texts if k is not None]
    for line, fields in rows:
        if len(fields) != columns.width:
            raise ValueError(
                f"{path}, line {line} must have {columns.width} fields as the first row, got "
                f"{len(fields)}"
            )
        try:
            row = [float(fields[k]) for k in features]
            whole = "".join(fields)
            if "_" in whole or not whole.isascii():  # which `float` may take
                row = [parse_number(fields[k]) for k in features]
        except ValueError:
            row = [_value(path, line, k, fields[k], names, bool(values)) for k in features]
        values.extend(row)
        for k, column in others:
            column.append(fields[k])
    if not values:
        raise ValueError(f"{path} must hold records, got a header only")
    X = np.array(values, dtype=dtype).reshape(-1, len(features))
    missing = np.column_stack([np.isnan(X), *(_missing(column) for _, column in others)])
    if missing.any():
        n_rows = np.count_nonzero(missing.any(axis=1))
        order = [*features, *(k for k, _ in others)]
        counts = {order[k]: int(missing[:, k].sum()) for k in np.flatnonzero(missing.any(axis=0))}
        raise ValueError(
            f"{path} must have no missing values (empty, ?, NA, NaN, null), got "
            f"{np.count_nonzero(missing)} in {n_rows} of {counted(len(X), 'row')} "
            f"{in_columns(counts, names)}: fill them or drop the rows first"
        )
    in_silos = parse_groups(groups) if groups else None
    ids = np.array(persons) if persons else None
    labels = np.array(y) if text else parse_labels(y)
    return Table(X, labels, in_silos, columns.feature_names, columns.target_name, ids)


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


class Layout(NamedTuple):
    """How the text of a table is laid out, with the names of its columns if it has no header.

    Of these, a file may lack all targets. `rename` has the columns of a header, by name or by place
    from 0, that are called otherwise.
    """

    names: tuple[str, ...] | None = None
    sep: str | None = None
    comment: str | None = None
    targets: tuple[str, ...] = ()
    rename: Mapping[str, str] = MappingProxyType({})


def layout_of(schema: Schema) -> Layout:
    """Return the layout of files that a schema describes."""
    names = None if schema.header else tuple(column.name for column in schema.columns)
    targets = tuple(column.name for column in (schema.target, schema.event) if column)
    return Layout(names, schema.sep, schema.comment, targets, schema.rename)


def read_frame(path: str | os.PathLike[str], schema: Schema) -> Frame:
    """Read the columns of a delimited text file as text, in the layout that a schema states.

    Parameters
    ----------
    path : str or path
        Plain or compressed (.gz, .bz2, .xz).
    schema : Schema
        With a header, columns are found by their names. Without one, the columns of the file are
        those of the schema, in their order; only the target, with its event, may be missing.

    Returns
    -------
    dict of list of str
        The fields of each column, without spaces around them; columns of kind "ignore" are left
        out.

    Raises
    ------
    FileNotFoundError, IsADirectoryError
        When there is no such file.
    ValueError
        When the file is empty, damaged or ragged, or its columns are others than the schema's. No
        message contains a value of a record.
    """
    if not isinstance(schema, Schema):
        raise TypeError(
            f"schema must be a dpkern.Schema, such as dpkern.Schema.load(PATH), got {schema!r}"
        )
    skipped = {column.name for column in schema.columns if column.kind == "ignore"}
    frame = read_text(path, layout_of(schema))
    return {name: fields for name, fields in frame.items() if name not in skipped}


def has_header(path: Path, sep: str | None, comment: str | None) -> tuple[bool, int]:
    """Return whether the first row seems to hold names, and its number of fields."""
    begin = [fields for _, fields in itertools.islice(csv_rows(path, sep, comment), 2)]
    if not begin:
        raise ValueError(f"{path} is empty")
    return is_header(begin[0], begin[1] if len(begin) > 1 else None), len(begin[0])


def read_text(path: str | os.PathLike[str], layout: Layout) -> Frame:
    """Read the columns of a delimited text file as text; the first row holds the names by default.

    A column whose name is blank is called column_K, K its place from 0.

    Raises
    ------
    FileNotFoundError, IsADirectoryError, ValueError
        As for `read_frame`.
    """
    path, names = Path(path), layout.names
    rows = csv_rows(path, layout.sep, layout.comment)
    first = next(rows, None)
    if first is None:
        raise ValueError(f"{path} is empty")
    if names is None:
        blank = tuple(name or f"column_{k}" for k, name in enumerate(first[1]))
        names = _renamed(path, blank, layout.rename)
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            k = len(names) - 1 - names[::-1].index(twice[0])
            raise ValueError(
                f"{path} must have distinct names in its header, got {listed(twice)} twice: dpkern "
                f"schema --rename {k}=NAME renames the one in place {k}"
            )
    else:
        rows = itertools.chain([first], rows)
        if len(first[1]) == len(names) - len(layout.targets):
            names = tuple(name for name in names if name not in layout.targets)
    fields_of: list[list[str]] = [[] for _ in names]
    same: dict[str, str] = {}  # equal fields share their memory
    for line, fields in rows:
        if len(fields) != len(names):
            raise ValueError(
                f"{path}, line {line} must have {len(names)} fields, one for each column, got "
                f"{len(fields)}"
            )
        for column, field in zip(fields_of, fields, strict=True):
            column.append(same.setdefault(field, field))
    if not fields_of[0]:
        raise ValueError(f"{path} must hold records, got a header only")
    return dict(zip(names, fields_of, strict=True))


def line_of(path: str | os.PathLike[str], layout: Layout, row: int) -> int:
    """Return the line of a record, from 1, at which it ends where fields hold ends of lines."""
    rows = csv_rows(Path(path), layout.sep, layout.comment)
    return next(itertools.islice(rows, row + (layout.names is None), None))[0]


def _renamed(path: Path, names: tuple[str, ...], rename: Mapping[str, str]) -> tuple[str, ...]:
    found = list(names)
    for old, new in rename.items():
        places = [k for k, name in enumerate(names) if name == old]
        if not places:
            with suppress(ValueError, IndexError):
                places = [range(len(names))[parse_integer(old)]]
        if len(places) != 1:
            why = f"places {', '.join(map(str, places))} have it" if places else listed(names)
            raise ValueError(
                f"{path}: rename must have names of single columns, or places from 0, got {old!r}: "
                f"{why}"
            )
        found[places[0]] = new
    return tuple(found)
