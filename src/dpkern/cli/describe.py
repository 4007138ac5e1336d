"""``dpkern describe``: summary statistics of a table, with a guarantee."""

import argparse
import csv
import io

from dpkern._files import replacing
from dpkern.cli import _arguments, _data, _output
from dpkern.cli._arguments import Project
from dpkern.data import Schema
from dpkern.evaluation import Statistic, describe
from dpkern.io import read_frame
from dpkern.privacy import Budget
from dpkern.privacy.accountant.accountant import Accountant

HELP = "release summary statistics of a raw table that a schema describes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="raw records")
    add("--schema", metavar="FILE.json", required=True, help="their public description")
    what = "columns that are described (default: all numbers and categories, and the target)"
    add("--columns", type=_arguments.list_of(str), metavar="A,B", help=what)
    what = "shares of B's levels among the records of A's; may be repeated"
    add("--cross", type=_pair, action="append", default=[], metavar="A:B", help=what)
    add("--out", metavar="FILE.csv", help="where to save the table")
    _arguments.add_release_arguments(parser)
    _arguments.add_project(parser)


def run(arguments: argparse.Namespace) -> None:
    for path in filter(None, (arguments.out, arguments.certificate)):
        _output.refuse_output(path, arguments.data, arguments.schema)
    _output.refuse_same(arguments)
    _output.refuse_existing(arguments.out, arguments.certificate)
    budget, project = Budget(epsilon=arguments.epsilon, delta=arguments.delta), Project.read()
    texts = project.texts_for(arguments.about)
    ledger = project.ledger_for(arguments.ledger)
    schema = Schema.load(arguments.schema)
    frame = read_frame(arguments.data, schema)
    with _data.naming(arguments.data, schema):
        description = describe(
            frame,
            schema,
            budget=budget,
            columns=arguments.columns,
            cross_tables=arguments.cross,
            neighbours=arguments.neighbours,
            public_size=arguments.public_size,
            max_records=arguments.max_records,
            accountant=None if ledger is None else Accountant(ledger),
            rng=arguments.noise_seed,
        )
    lines = project.lines
    print(description)
    if arguments.out is not None:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows([Statistic._fields, *description.shown])
        with replacing(arguments.out) as file:
            file.write(text.getvalue().encode())
        lines.append(("saved", arguments.out))
    privacy = description.privacy.with_names(**texts)
    _output.say_release(arguments, privacy, lines, ledger)


def _pair(text: str) -> tuple[str, str]:
    first, colon, second = (part.strip() for part in text.partition(":"))
    if not (first and colon and second):
        raise argparse.ArgumentTypeError(f"must be A:B, two names of columns, got {text!r}")
    return first, second
