"""The command line: ``dpkern fit``, ``predict``, ``compare`` and others, a module each.

Each is a module of its own. Whatever a user can get wrong ends as one line on standard error and
exit status 2.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version

from dpkern.cli import (
    audit,
    certificate,
    compare,
    describe,
    evaluate,
    example,
    export,
    federation,
    fit,
    info,
    ledger,
    plan,
    predict,
    schema,
    silo,
    verify,
)
from dpkern.cli._arguments import Parser, UsageError, in_options
from dpkern.cli._output import one_line, remark
from dpkern.data import ScaleWarning
from dpkern.federated.links import FederationError
from dpkern.party import ImplausibleError
from dpkern.privacy.accountant.accountant import BudgetSpentError

_ERRORS = (
    *(ValueError, TypeError, OSError, ModuleNotFoundError, ImportError),
    *(BudgetSpentError, FederationError, ImplausibleError),
)
_COMMANDS = {
    **{"fit": fit, "predict": predict, "evaluate": evaluate, "compare": compare, "plan": plan},
    **{"describe": describe, "schema": schema, "ledger": ledger, "verify": verify},
    **{"audit": audit, "info": info, "certificate": certificate, "example": example},
    **{"export": export},
    **{"silo": silo, "federation": federation},
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, 1 when a certificate does not verify or is refuted by an audit, 2 after a
        user's error or when a row of a comparison failed, 130 after Ctrl-C, 141 when the reader of
        standard output is gone.
    """
    arguments = argparse.Namespace()
    _open_closed_streams()
    try:
        arguments = _parsed(list(sys.argv[1:] if argv is None else argv))
        with warnings.catch_warnings():
            # Warnings of the library are printed like all other remarks.
            warnings.simplefilter("once", UserWarning)
            warnings.simplefilter("ignore", ScaleWarning)  # said with the options' names, once
            warnings.showwarning = lambda message, *_: remark(
                f"warning: {in_options(one_line(message), arguments)}"
            )
            status = _COMMANDS[arguments.command].run(arguments)
        sys.stdout.flush()
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except KeyboardInterrupt as stop:
        _complain("interrupted", stop)
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except _ERRORS as error:
        text = one_line(error)
        said = text if isinstance(error, UsageError) else in_options(text, arguments)
        _complain(f"error: {said}", error)
        return 2
    return status or 0


def _complain(text: str, error: BaseException) -> None:
    """Print the error, and the releases before it."""
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, say, which the error is about
        _drop_output()
    remark(text)
    for note in getattr(error, "__notes__", ()):
        remark(note)


def _open_closed_streams() -> None:
    """Open standard streams that are closed, as under a daemon: what is printed is lost.

    Otherwise a file that is opened next, such as the model, could have their numbers.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    """Lose what is printed: the interpreter flushes at exit again, which must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="dpkern",
        description="Differentially private empirical risk minimisation across silos.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dpkern {version('dpkern')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers: dict[str, Parser] = {}
    named = next((word for word in argv if not word.startswith("-")), None)
    for name, command in _COMMANDS.items():
        text = f"{command.HELP[0].upper()}{command.HELP[1:]}."
        parsers[name] = commands.add_parser(
            name, help=command.HELP, description=text, allow_abbrev=False
        )
        if name == named:
            command.add_arguments(parsers[name])
    if named == "fit":
        fit.describe_solver(parsers[named], argv)
    arguments, rest = parser.parse_known_args(argv)
    parsers[arguments.command].refuse_unknown(rest, argv)
    return arguments
