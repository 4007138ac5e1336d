"""Code books: a schema from a table of names, kinds, ranges and categories, and what it misses."""

import csv
from collections.abc import Iterator
from typing import Any

from dpkern._numbers import did_you_mean, parse_number, refuse_unknown
from dpkern.cli._data import naming
from dpkern.cli._output import remark
from dpkern.data import Column, Schema
from dpkern.data.column import KEYS, blank_keys, count_averaged, count_outside, outside_text
from dpkern.io.csv_text import Frame

KEYS_OF_BOOK = ("name", "kind", "lo", "hi", "scale", "categories", "missing", "since", "intervals")
_SEPARATOR = "|"


def read_columns(path: str) -> list[dict[str, Any]]:
    """Return the dictionaries of a code book's columns, in which ranges may be blank.

    The book is CSV with a header of `KEYS_OF_BOOK`, of which "name" is needed alone; categories,
    classes and intervals are separated by "|". Without a kind a row with categories is a category,
    any other a number.

    Raises
    ------
    ValueError
        When a row does not describe a column, with its line.
    """
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = [name.strip() for name in reader.fieldnames or ()]
        if "name" not in names:
            raise ValueError(f"{path}, line 1 must hold the column 'name', got {', '.join(names)}")
        refuse_unknown(f"{path}, line 1", names, KEYS_OF_BOOK)
        reader.fieldnames = names
        columns = []
        for row in reader:
            try:
                columns.append(_column(row))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    if not columns:
        raise ValueError(f"{path} must describe a column, got none")
    return columns


def _column(row: dict[str, Any]) -> dict[str, Any]:
    if None in row or None in row.values():
        raise ValueError("a row must have as many fields as the header, got another number")
    told = {key: text.strip() for key, text in row.items() if text.strip()}
    name, listed = told.get("name", ""), told.get("categories")
    kind = told.get("kind", "number" if listed is None else "category")
    if kind not in KEYS:
        known = ", ".join(KEYS)
        raise ValueError(
            f"kind of column {name!r} must be one of {known}, got {kind!r}"
            f"{did_you_mean(kind, KEYS)}"
        )
    keys = KEYS[kind]
    if kind == "target":
        keys = ("classes", "aliases") if listed is not None or "lo" not in told else ("lo", "hi")
        keys = ("intervals",) if "intervals" in told else keys
    elif kind == "event" and listed is None:
        keys = ()
    blank = dict.fromkeys(key for key in keys if key != "since")  # most numbers are no dates
    column: dict[str, Any] = {"name": name, "kind": kind, **blank}
    column |= {"scale": "linear"} if "scale" in keys else {}
    column |= {"aliases": {}} if "aliases" in keys else {}
    for key in told.keys() - {"name", "kind"}:
        to = "classes" if key == "categories" and kind in ("target", "event") else key
        if to not in keys:
            raise ValueError(f"{key} of column {name!r} must be blank, as its kind is {kind!r}")
        column[to] = _value(name, key, told[key], kind)
    return column if blank_keys(kind, column) else Column(**column).to_dict()


def _value(name: str, key: str, text: str, kind: str) -> Any:
    if key == "categories":
        return [part.strip() for part in text.split(_SEPARATOR)]
    if key == "intervals":
        return [_value(name, "lo", part.strip(), kind) for part in text.split(_SEPARATOR)]
    if key in ("lo", "hi") or (key, kind) == ("missing", "number"):
        try:
            return parse_number(text)
        except ValueError:
            raise ValueError(f"{key} of column {name!r} must be a number, got {text!r}") from None
    return text


def with_file(columns: list[dict[str, Any]], frame: Frame) -> Iterator[dict[str, Any]]:
    """Yield the file's columns, those that the book lacks to be ignored, and say what differs."""
    book = {column["name"]: column for column in columns}
    others = [name for name in frame if name not in book]
    absent = [name for name in book if name not in frame]
    if others:
        remark(f"not in the code book, and drafted to be ignored: {', '.join(others)}")
    if absent:
        remark(f"in the code book and not in the file, and left out: {', '.join(absent)}")
    for name in frame:
        yield book.get(name, {"name": name, "kind": "ignore"})


def say_mismatches(path: str, schema: Schema, frame: Frame) -> None:
    """Say which columns hold what the schema does not provide for, and how often, but no value."""
    missing = frozenset(schema.missing)
    counts, averaged = dict[str, tuple[int, int]](), dict[str, int]()
    for column in schema.columns:
        if column.name not in frame or not KEYS[column.kind]:
            continue
        values, name = frame[column.name], column.name
        try:
            with naming(path, schema):
                if column.kind in ("target", "event"):
                    column.labels(values, missing)
                else:
                    column.entries(values, missing, 0)
        except ValueError as error:
            remark(str(error))
            continue
        counts[name] = count_outside(column, values, missing)
        averaged[name] = count_averaged(column, values, missing)
    outside = {name: found for name, found in counts.items() if found[0]}
    if text := outside_text(outside, {name: n for name, n in averaged.items() if n}):
        remark(f"{path} has {text}")
