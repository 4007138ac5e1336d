"""``dpkern schema``: a draft of the public description of a raw table."""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpkern._files import replacing
from dpkern._numbers import counted, is_number, parse_integer, parse_number
from dpkern.cli import _arguments
from dpkern.cli._code_book import KEYS_OF_BOOK, read_columns, say_mismatches, with_file
from dpkern.cli._data import refuse_options
from dpkern.cli._output import refuse_output, remark
from dpkern.data import Schema
from dpkern.data.schema import MISSING, blanks_of, draft_of, schema_text
from dpkern.io.csv_text import Frame, Layout, has_header, line_of, read_text
from dpkern.io.table import parse_labels

HELP = "draft a public description of a raw table, with blanks for ranges and categories"
# Words that mean a missing value in a column of numbers, which the draft then lists.
_MISSING_WORDS = ("na", "n/a", "nan", "null", "none", "-", "#n/a", "#div/0!", "#value!")
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(([,.' \u00a0\u202f])\d{3})(\2\d{3})*([.,]\d+)?")
_AMOUNT = re.compile(r"[€$£¥]?\s?[+-]?\d+([.,]\d+)*\s?(%|[€$£¥]|EUR|USD|GBP|CHF)?")
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
_EITHER = re.compile(r"[+-]?\d{1,3}(,\d{3})+")
_COMMAS = "pandas' read_csv(..., decimal=',' or thousands=',') reads such a file"
_READS = "pandas' read_csv(..., {}) reads such a file"
_SPELLINGS = (
    (_EITHER, "have digits alone", "commas of decimals or of thousands", _COMMAS),
    (_DECIMAL_COMMA, "have decimal points", "decimal commas", _READS.format("decimal=','")),
    (_THOUSANDS, "have digits alone", "thousands separators", _READS.format("thousands=...")),
    (_DATE, "hold numbers or categories", "dates", "write days since a public date"),
    (_AMOUNT, "have digits alone", "units", "write the unit into the column's name"),
)
_MOST_LISTED = 100  # distinct values; above that a column is hardly a category
_FEW = 20  # distinct numbers of a target that are taken as labels, and texts that are no ids
_NOT_PRIVATE = (
    "WARNING: this draft was made from the records without noise and is not private: names are as "
    "in the header, unless you gave them, and kinds as the values suggest{}. Check every line, and "
    "let nothing stand that you would not know without the records"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="raw records: CSV with a header or without")
    add("--out", metavar="FILE.json", help="where to write (default: standard output)")
    what = "names of the columns of a file without a header (default: column_0, column_1, ...)"
    add("--names", type=_arguments.list_of(str), metavar="A,B", help=what)
    add("--comment", metavar="TEXT", help="skip lines that begin with it")
    what = "call a column of the header, by name or by place from 0, NEW; may be repeated"
    add("--rename", type=_rename, action="append", default=[], metavar="OLD=NEW", help=what)
    what = "whether the event happened at the time in the target: name, or index from 0"
    add("--event", metavar="COLUMN", help=what)
    what = "columns to leave out of the model, by name or by place from 0"
    add("--ignore", type=_arguments.list_of(str), default=[], metavar="A,B", help=what)
    what = (
        "list the categories and labels that the records hold: not private, for those that are "
        "public anyway"
    )
    add("--not-private-categories", action="store_true", help=what)
    what = (
        f"draft from this code book, CSV with the columns {', '.join(KEYS_OF_BOOK)} (categories, "
        "and classes, separated by |), and say what the records hold that it does not provide for"
    )
    add("--code-book", metavar="FILE.csv", help=what)
    _arguments.add_column_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        refuse_output(arguments.out, arguments.data, arguments.code_book)
    book = None
    if arguments.code_book is not None:
        said = ("target", "event", "silo_column", "ignore", "not_private_categories")
        refuse_options(arguments, (n for n in said if getattr(arguments, n)), "the book says it")
        book = read_columns(arguments.code_book)
    layout = _layout(arguments)
    frame = read_text(arguments.data, layout)
    words = _missing_words(frame) if book is None else ()
    columns = _columns(frame, words, layout, arguments) if book is None else with_file(book, frame)
    draft: dict[str, Any] = draft_of(
        list(columns),
        missing=(*MISSING, *words),
        header=layout.names is None,
        sep=arguments.sep,
        comment=arguments.comment,
        **({"rename": dict(layout.rename)} if layout.rename else {}),
    )
    if arguments.out is None:
        sys.stdout.write(schema_text(draft))
    else:
        with replacing(arguments.out) as file:
            file.write(schema_text(draft).encode())
        print(f"draft of {len(frame)} columns in {arguments.out}")
    if book is None:
        listed = "; categories and labels are the records'"
        remark(_NOT_PRIVATE.format(listed if arguments.not_private_categories else ""))
    if blanks := blanks_of(draft["columns"]):
        remark(f"fill in the blanks (null) from a form, a handbook or the law: {blanks}")
    elif book is not None:
        say_mismatches(arguments.data, Schema.from_dict(draft), frame)


def _layout(arguments: argparse.Namespace) -> Layout:
    """Return the layout of the file; whether the first row holds names must be certain."""
    named, width = has_header(Path(arguments.data), arguments.sep, arguments.comment)
    if arguments.names is not None:
        if arguments.header is None and named:
            raise ValueError(
                f"{arguments.data}: the first row looks like names of columns: leave out --names "
                "(--rename OLD=NEW changes one), or say --no-header"
            )
        if arguments.header:
            raise ValueError("--names is for a file without a header; with one, leave it out")
        if arguments.rename:
            raise ValueError("--rename is for a file with a header; --names has all names")
        return Layout(tuple(arguments.names), arguments.sep, arguments.comment)
    if arguments.header is None and not named:
        raise ValueError(
            f"{arguments.data}: the first row does not look like names of columns: give them with "
            "--names A,B,C, or say --no-header (columns are numbered) or --header; lines above "
            "the names must leave the file"
        )
    numbered = tuple(f"column_{k}" for k in range(width))
    names = numbered if arguments.header is False else None
    if names is not None and arguments.rename:
        raise ValueError("--rename is for a file with a header; give --names")
    return Layout(names, arguments.sep, arguments.comment, rename=dict(arguments.rename))


def _rename(text: str) -> tuple[str, str]:
    old, _, new = (part.strip() for part in text.rpartition("="))
    if not old or not new:
        raise argparse.ArgumentTypeError(f"must be OLD=NEW, got {text!r}")
    return old, new


def _missing_words(frame: Frame) -> tuple[str, ...]:
    """Return the words for missing values beside which a column holds numbers alone."""
    found: set[str] = set()
    for fields in frame.values():
        values = set(fields) - set(MISSING)
        words = {text for text in values if text.lower() in _MISSING_WORDS}
        if values > words and all(map(is_number, values - words)):
            found |= words
    return tuple(sorted(found))


def _check_spelling(
    path: str, layout: Layout, name: str, fields: list[str], values: set[str]
) -> None:
    """Raise where numbers are spelt so that each is a category, and say where some text does it."""
    others = {text for text in values if not is_number(text)}
    if not others:
        return
    row = next(k for k, text in enumerate(fields) if text in others)
    where = f"{path}, line {line_of(path, layout, row)}: column {name!r}"
    some = f"{len(others)} of {counted(len(values), 'distinct value')}"
    for pattern, rule, got, cure in _SPELLINGS:
        if all(map(pattern.fullmatch, others)):
            raise ValueError(
                f"{where} must {rule}, got {got} in {some}: {cure}, or leave the column out by "
                "--ignore"
            )
    if 2 * len(others) < len(values):
        remark(
            f"{where} has text there and in {some}, so that it is drafted as a category: mend the "
            'cells, or list the text under "missing" if it means that and make it a number'
        )


def _columns(
    frame: Frame, words: tuple[str, ...], layout: Layout, arguments: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    names = list(frame)
    target = _column("--target", arguments.target or "-1", names)
    if arguments.target is None:
        remark(f"no --target was given: the last column, {target!r}, is taken as the target")
    event = arguments.event
    event = None if event is None else _column("--event", event, names)
    silo = arguments.silo_column
    silo = None if silo is None else _column("--silo-column", silo, names)
    ignored = {_column("--ignore", name, names) for name in arguments.ignore}
    named = arguments.names is None and arguments.header is not False
    if named and names[0] in ("column_0", "Unnamed: 0") and names[0] not in ignored:
        remark(
            f"column 0 is called {names[0]!r}: if it is the row index that pandas' to_csv writes, "
            "leave it out by --ignore 0"
        )
    own = [column for column in (target, event, silo) if column is not None]
    if len({*own}) < len(own) or ignored & {*own}:
        raise ValueError(
            "--target, --event, --silo-column and --ignore must name different columns"
        )
    for name, fields in frame.items():
        if name in ignored or name == silo:
            yield {"name": name, "kind": "silo" if name == silo else "ignore"}
            continue
        values = set(fields) - {*MISSING, *words}
        _check_spelling(arguments.data, layout, name, fields, values)
        number = bool(values) and parse_labels(list(values)).dtype.kind != "U"
        listed = None
        if arguments.not_private_categories and len(values) <= _MOST_LISTED:
            listed = sorted(values, key=lambda text: (parse_number(text), text) if number else text)
        if name == target and event is not None:
            yield {"name": name, "kind": "target", "intervals": None}
        elif name == event and values <= {"0", "1", "False", "True"}:
            yield {"name": name, "kind": "event"}
        elif name == event:
            yield {"name": name, "kind": "event", "classes": listed, "aliases": {}}
        elif name == target and number and len(values) > _FEW:
            yield {"name": name, "kind": "target", "lo": None, "hi": None}
        elif name == target:
            yield {"name": name, "kind": "target", "classes": listed, "aliases": {}}
        elif number:
            range_ = {"lo": None, "hi": None, "scale": "linear", "missing": None}
            yield {"name": name, "kind": "number", **range_}
        else:
            if len(values) == len(fields) > _FEW:
                remark(
                    f"column {name!r} has another text in every record: if it names them, leave it "
                    f"out by --ignore {names.index(name)}"
                )
            rest: dict[str, Any] = {"missing": None, "aliases": {}}
            yield {"name": name, "kind": "category", "categories": listed, **rest}


def _column(option: str, wanted: str, names: list[str]) -> str:
    """Return the column of a name, or of an index."""
    if wanted in names:
        return wanted
    try:
        return names[parse_integer(wanted)]
    except (ValueError, IndexError):
        raise ValueError(
            f"{option} must be one of {', '.join(names)}, or an index from 0, got {wanted!r}"
        ) from None
