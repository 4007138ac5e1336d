"""``dpkern info``: the installation, and the options of a solver."""

import argparse
import re

from dpkern import kernels
from dpkern.cli import _solvers
from dpkern.cli._output import print_lines, say
from dpkern.models.losses import LOSSES
from dpkern.solvers import SOLVERS

HELP = "what this installation runs on, or the options of a solver"


def add_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    parser.add_argument(
        "solver", metavar="SOLVER", nargs="?", choices=SOLVERS, help="list its options"
    )


def run(arguments: argparse.Namespace) -> None:
    if arguments.solver is not None:
        say(option_text(arguments.solver))
        return
    facts = kernels.info()
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
        ]
    )


def option_text(solver: str) -> str:
    """Return a line for each option of a solver: one sentence, the type, the default."""
    lines = [
        f"  {name:<18}  {_first_sentence(one.doc)}. {one.kind}; default: {one.default}"
        for name, one in _solvers.options(solver).items()
    ]
    return "\n".join(
        [f"options of {solver} (--set NAME=VALUE where --help lists no --NAME):", *lines]
    )


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;]) ", text)[0].rstrip(".;")
