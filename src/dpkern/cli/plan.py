"""``dpkern plan``: what a budget buys, before any record is read."""

import argparse
import math
from pathlib import Path
from typing import Any, NamedTuple

from dpkern._numbers import positive
from dpkern.cli import _arguments, _data, _output
from dpkern.cli._arguments import Project
from dpkern.data import Schema
from dpkern.data.labels import target_bounds
from dpkern.models.losses import LOSS_OF_TASK, LOSSES
from dpkern.planning import plan
from dpkern.privacy import Budget
from dpkern.privacy.accountant.accountant import Accountant

HELP = "settings, noise, error and time of every solver, from public numbers alone"
_SAID_BY_SCHEMA = ("features", "row_bound", "classes", "target_bound", "no_intercept")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    size = _arguments.count
    add("--records", type=size, required=True, metavar="N", help="number of records")
    what = "public description of the columns, for the number of coefficients, bounds and the task"
    add("--schema", metavar="FILE.json", help=what)
    what = "number of encoded features, every level of a category being one, in place of --schema"
    add("--features", type=size, metavar="P", help=what)
    add("--epsilon", type=float, required=True, help="budget of one run")
    add("--delta", type=float, required=True, help="well below 1 / (number of records)")
    bound = "of a record, without the constant (default: sqrt(features), for features in [-1, 1])"
    add("--row-bound", type=float, metavar="R", help=bound)
    add("--silos", type=size, default=1, metavar="M", help="number of silos (default: 1)")
    add("--trust", choices=("central", "silo"), default="central", help="default: central")
    relation = ("replace_one", "add_remove")
    add("--neighbours", choices=relation, default=relation[0], help=f"default: {relation[0]}")
    what = "default: logistic, or squared where the schema has a real target"
    add("--loss", choices=LOSSES, help=what)
    add("--classes", type=size, metavar="K", help="number of classes (default: 2)")
    _arguments.add_mean_range(parser)
    bound = "of |y|, or LO,HI of y, for losses of targets (default: 1)"
    add("--target-bound", type=_arguments.target_bound, metavar="B", help=bound)
    how = "how silos on their own machines reach each other: seconds count their messages"
    add("--transport", choices=("processes", "flower", "mpyc"), help=how)
    add("--inference", action="store_true", help="by how much standard errors grow")
    rate = "share of one of two labels, or mean count, if it is known, for --inference"
    add("--rate", type=float, metavar="P", help=rate)
    add("--no-intercept", action="store_true", help="no constant beside the features")
    add("--plot", metavar="FILE.png", help="predicted error over epsilon and over the records")


class _Columns(NamedTuple):
    """What a plan needs of the columns, which is public."""

    d: int  #: coefficients of one output, with the constant
    row_bound: float  #: with the constant
    loss: str
    n_classes: int
    target_bound: Any
    lines: list[_output.Line]  #: what is said of them


def _given_columns(arguments: argparse.Namespace) -> _Columns:
    """Return what options say of the columns."""
    if arguments.features is None:
        raise _arguments.UsageError("give --schema FILE.json, or --features P")
    constant, bound = not arguments.no_intercept, math.sqrt(arguments.features)
    if arguments.row_bound is not None:
        bound = positive("row_bound", arguments.row_bound)
    loss, classes = arguments.loss or "logistic", arguments.classes or 2
    d, bound = arguments.features + constant, math.sqrt(bound**2 + constant)
    return _Columns(d, bound, loss, classes, arguments.target_bound, [])


def _columns_of_schema(arguments: argparse.Namespace) -> _Columns:
    """Return what a schema says of the columns."""
    _data.refuse_options(arguments, _SAID_BY_SCHEMA, "--schema says it")
    schema = Schema.load(arguments.schema)
    if schema.target is None:
        raise ValueError(f'{arguments.schema} must hold a column of kind "target", got none')
    if schema.intervals is not None:
        raise ValueError(f"{arguments.schema} has times to an event, of which there is no plan")
    if arguments.inference and schema.person is not None:
        why = "standard errors take the records of a person for independent"
        raise ValueError(f"--inference must be left out with a column of kind person: {why}")
    options, classes = schema.options(), schema.classes
    several = classes is not None and len(classes) > 2  # whose models have constants of their own
    constant = several or options["intercept"]
    d, bound, loss = schema.n_features + constant, options["row_bound"], arguments.loss
    assert bound is not None
    if loss is None:
        loss = LOSS_OF_TASK["regression" if classes is None else "classification"]
    counted = f"{schema.n_features} encoded features, every level of a category being one"
    counted += f"{', and the constant' * constant}: {d} coefficients"
    return _Columns(
        d,
        math.sqrt(bound**2 + several),
        loss,
        2 if classes is None else len(classes),
        options["target_bound"],
        [("schema", f"{Path(arguments.schema).name}, {counted}")],
    )


def run(arguments: argparse.Namespace) -> None:
    read = _given_columns if arguments.schema is None else _columns_of_schema
    columns = read(arguments)
    targets, most = columns.target_bound, math.inf
    if LOSSES[columns.loss].log_link and targets is not None:
        largest, middle = target_bounds(targets)
        targets, most = 1.0, largest + middle
    how = {
        "budget": Budget(epsilon=arguments.epsilon, delta=arguments.delta),
        "row_bound": columns.row_bound,
        "loss": _arguments.with_mean_range(arguments, columns.loss, most),
        "m": arguments.silos,
        "trust": arguments.trust,
        "neighbours": arguments.neighbours,
        "n_classes": columns.n_classes,
        "target_bound": 1.0 if targets is None else targets,
        "transport": arguments.transport,
        "inference": arguments.inference,
        "rate": arguments.rate,
    }
    if arguments.plot is not None:
        _output.refuse_picture(arguments.plot, arguments.schema)
    project = Project.read()
    found = plan(arguments.records, columns.d, **how)
    if columns.lines:
        _output.print_lines(columns.lines)
    print(found)
    if project.ledger is not None and Path(project.ledger).exists():
        spent = _output.ledger_text(Accountant(project.ledger))
        _output.print_lines([*project.lines, ("ledger", spent)])
    if arguments.plot is not None:
        found.plot(arguments.plot)
        print(f"\npicture: {arguments.plot}")
