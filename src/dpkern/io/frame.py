"""Raw text by a schema: the columns as text."""

from __future__ import annotations  # help() then shows type aliases by name

import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from dpkern._numbers import parse_integer
from dpkern.data import Schema
from dpkern.data.frames import listed
from dpkern.io.csv_text import csv_rows, is_header

Frame = dict[str, list[str]]


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
