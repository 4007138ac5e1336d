"""``dpkern plan``: what a budget buys, before any record is read."""

import argparse
import math
from pathlib import Path

from dpkern._numbers import positive
from dpkern.cli import _arguments, _output
from dpkern.cli._project import Project
from dpkern.data.labels import target_bounds
from dpkern.models.losses import LOSSES
from dpkern.planning import plan
from dpkern.privacy import Budget
from dpkern.privacy.accountant.accountant import Accountant

HELP = "settings, noise, error and time of every solver, from public numbers alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    size = _arguments.count
    add("--records", type=size, required=True, metavar="N", help="number of records")
    add("--features", type=size, required=True, metavar="P", help="number of features")
    add("--epsilon", type=float, required=True, help="budget of one run")
    add("--delta", type=float, required=True, help="well below 1 / (number of records)")
    bound = "of a record, without the constant (default: sqrt(features), for features in [-1, 1])"
    add("--row-bound", type=float, metavar="R", help=bound)
    add("--silos", type=size, default=1, metavar="M", help="number of silos (default: 1)")
    add("--trust", choices=("central", "silo"), default="central", help="default: central")
    relation = ("replace_one", "add_remove")
    add("--neighbours", choices=relation, default=relation[0], help=f"default: {relation[0]}")
    add("--loss", choices=LOSSES, default="logistic", help="default: logistic")
    add("--classes", type=size, default=2, metavar="K", help="number of classes (default: 2)")
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


def run(arguments: argparse.Namespace) -> None:
    intercept = not arguments.no_intercept
    bound = math.sqrt(arguments.features)
    if arguments.row_bound is not None:
        bound = positive("row_bound", arguments.row_bound)
    targets, most = arguments.target_bound, math.inf
    targets = 1.0 if targets is None else targets
    if LOSSES[arguments.loss].log_link and arguments.target_bound is not None:
        largest, middle = target_bounds(targets)
        targets, most = 1.0, largest + middle
    loss = _arguments.with_mean_range(arguments, arguments.loss, most)
    how = {
        "budget": Budget(epsilon=arguments.epsilon, delta=arguments.delta),
        "row_bound": math.sqrt(bound**2 + intercept),
        "loss": loss,
        "m": arguments.silos,
        "trust": arguments.trust,
        "neighbours": arguments.neighbours,
        "n_classes": arguments.classes,
        "target_bound": targets,
        "transport": arguments.transport,
        "inference": arguments.inference,
        "rate": arguments.rate,
    }
    if arguments.plot is not None:
        _output.refuse_picture(arguments.plot)
    project = Project.read()
    found = plan(arguments.records, arguments.features + intercept, **how)
    print(found)
    if project.ledger is not None and Path(project.ledger).exists():
        spent = _output.ledger_text(Accountant(project.ledger))
        _output.print_lines([*project.lines, ("ledger", spent)])
    if arguments.plot is not None:
        found.plot(arguments.plot)
        print(f"\npicture: {arguments.plot}")
