"""Translation of the library's messages to the options of the command line."""

import argparse
import re

from dpkern.cli import _solvers
from dpkern.solvers import SOLVERS

# Arguments of readers and of `SiloData`; those of solvers come from the solvers.
_OF_DATA = (
    *("target", "silo_column", "header", "sep", "row_bound", "feature_range", "task"),
    *("epsilon", "delta"),
)
_RENAMED = {"how": "--split", "m": "--silos", "test_fraction": "--test-share", "path": "--out"}
_PHRASES = {
    "task='multiclass' and classes": "Python (SiloData of task multiclass, and its classes)",
    "what sep says": "what --sep says",
    "fields by sep": "fields by --sep",
    "intercept=False": "--no-intercept",
    "intercept=True": "a fit without --no-intercept",
}
# Where an argument whose name is a common word is named, and not the word meant.
_BEFORE = r"(?:^|(?<=; )|(?<=needs ))"
_AFTER = r"(?= is | must | needs | goes | beside | has | was | holds | '|[,;.]|$)"


class UsageError(ValueError):
    """An error of the command line itself, which needs no translation."""


def in_options(message: str, arguments: argparse.Namespace) -> str:
    """The message with options of this command in place of the library's arguments.

    >>> in_options("clip is 0; prox_step='auto' needs row_bound", argparse.Namespace(clip=0))
    '--clip is 0; --set prox_step=auto needs --row-bound'
    """
    solver_options = {name for solver in SOLVERS for name in _solvers.options(solver)}
    options = {name: f"--set {name}" for name in solver_options if not hasattr(arguments, name)}
    flags = {*_OF_DATA, *solver_options} - options.keys()
    options |= {name: f"--{name.replace('_', '-')}" for name in flags} | _RENAMED
    if hasattr(arguments, "epsilons"):
        options |= {"epsilon": "--epsilons", "trust": "--solvers NAME:TRUST", "path": "--plot"}
    plain = "|".join(name for name in options if "_" not in name)
    compound = "|".join(sorted((n for n in options if "_" in n), key=len, reverse=True))
    value = r"(?:'(?P<text>[^']*)'|(?P<bare>[-+\w.]+))"

    def option(match: re.Match[str]) -> str:
        if match["phrase"]:
            return _PHRASES[match["phrase"]]
        if match["key"] is None:
            return options[match["plain"] or match["compound"]]
        flag, given = options[match["key"]], match["text"] or match["bare"]
        if flag.endswith(":TRUST"):
            return flag.replace("TRUST", given)
        return f"{flag}{'=' if flag.startswith('--set') else ' '}{given}"

    return re.sub(
        rf"(?P<phrase>{'|'.join(map(re.escape, _PHRASES))})"
        rf"|(?<![\w/.'-])(?<!--set )(?P<key>{plain}|{compound})={value}"
        rf"|{_BEFORE}(?P<plain>{plain}){_AFTER}"
        rf"|(?<![\w/.'-])(?<!--set )(?P<compound>{compound})(?![\w/]|\.\w)",
        option,
        message,
    )
