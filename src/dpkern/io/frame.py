"""Raw text by a schema: the columns as text."""

from __future__ import annotations  # help() then shows type aliases by name

import itertools
import os
from pathlib import Path
from typing import NamedTuple

from dpkern.data import Schema
from dpkern.data.frames import listed
from dpkern.io.csv_text import csv_rows, is_header

Frame = dict[str, list[str]]


class Layout(NamedTuple):
    """How the text of a table is laid out, with the names of its columns if it has no header.

    Of these, a file may lack the target.
    """

    names: tuple[str, ...] | None = None
    sep: str | None = None
    comment: str | None = None
    target: str | None = None


def read_frame(path: str | os.PathLike[str], schema: Schema) -> Frame:
    """Read the columns of a delimited text file as text, in the layout that a schema states.

    Parameters
    ----------
    path : str or path
        Plain or compressed (.gz, .bz2, .xz).
    schema : Schema
        With a header, columns are found by their names. Without one, the columns of the file are
        those of the schema, in their order; only the target may be missing.

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
    names = None if schema.header else tuple(column.name for column in schema.columns)
    skipped = {column.name for column in schema.columns if column.kind == "ignore"}
    target = None if schema.target is None else schema.target.name
    frame = read_text(path, Layout(names, schema.sep, schema.comment, target))
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
        names = tuple(name or f"column_{k}" for k, name in enumerate(first[1]))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"{path} must have distinct names in its header, got {listed(twice)} twice"
            )
    else:
        rows = itertools.chain([first], rows)
        if len(first[1]) == len(names) - 1:
            names = tuple(name for name in names if name != layout.target)
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
