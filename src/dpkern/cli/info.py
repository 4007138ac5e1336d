"""``dpkern info``: the installation, and the options of a solver."""

import argparse

from dpkern._numbers import fold
from dpkern.cli import _arguments
from dpkern.cli._output import print_lines, terminal_width
from dpkern.kernels import installation
from dpkern.models.losses import LOSSES
from dpkern.models.penalties import PENALTIES, SMOOTH
from dpkern.solvers import SOLVERS

HELP = "what this installation runs on, or the options of a solver"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "solver", metavar="SOLVER", nargs="?", choices=SOLVERS, help="list its options"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.solver is not None:
        print(fold(option_text(arguments.solver), min(terminal_width(), 88)))
        return
    facts = installation.info()
    threads = str(facts["n_threads"])
    if not facts["openmp"]:
        threads = "1: built without OpenMP, kernels run serially"
    print_lines(
        [
            ("dpkern", facts["version"]),
            ("instructions", f"{facts['isa']} (usable here: {', '.join(facts['isas'])})"),
            ("threads", threads),
            ("BLAS", ", ".join(facts["blas"]) or "none loaded"),
            ("solvers", ", ".join(SOLVERS)),
            ("losses", ", ".join(LOSSES)),
            ("penalties", ", ".join(PENALTIES | SMOOTH) + " (--set penalty=NAME:STRENGTH)"),
        ]
    )


def option_text(solver: str) -> str:
    """Return what a solver does, and a line for each of its options."""
    summary, *_ = SOLVERS[solver].declaration.summary.split("\n\n")
    lines = [
        f"  {name:<18}  {one.doc} {one.kind}; default: {one.default}"
        for name, one in _arguments.settable(solver).items()
    ]
    head = f"Options of {solver} (--set NAME=VALUE where --help lists no --NAME):"
    return "\n".join([summary, "", head, *lines])
