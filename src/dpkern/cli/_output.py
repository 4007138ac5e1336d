"""Output of the command line."""

import argparse
import math
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TextIO

import numpy as np

from dpkern._files import refuse_unwritable
from dpkern._numbers import figure, fold, rounded_down, rounded_up
from dpkern.data.validation import Matrix
from dpkern.models.hazards import DiscreteHazards
from dpkern.plotting import require_png
from dpkern.privacy import Certificate
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.certificate.report import report
from dpkern.privacy.mechanisms.concordance import count_pairs
from dpkern.solvers import SolverResult

Line = tuple[str, str]

#: said of every score that reads records without noise
EXACT_SCORE = (
    "scores have no noise: they are for the holder of these records alone, and no certificate "
    "covers them"
)


def refuse_output(path: str, *inputs: str | None) -> None:
    """Raise if `path` cannot be written, or is an input file, before any work."""
    refuse_unwritable(path)
    there = [read for read in (path, *inputs) if read is not None and os.path.exists(read)]
    if path in there and any(os.path.samefile(path, read) for read in there[1:]):
        raise ValueError(f"{path} is read by this command; write to another file")


def refuse_existing(*paths: str | None) -> None:
    """Raise if a file is there that may hold what a budget was spent for."""
    for path in paths:
        if path is not None and os.path.lexists(path):
            raise ValueError(
                f"{path} is there already, and a budget may have been spent for it: name another "
                "file, or move it away"
            )


def refuse_same(arguments: argparse.Namespace) -> None:
    """Raise if a model and a certificate would be written to one file."""
    paths = [p for p in (arguments.out, arguments.certificate) if p is not None]
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError(f"--out and --certificate must be two files, got {paths[0]} for both")


def refuse_picture(path: str, *inputs: str | None) -> None:
    """Raise if a picture cannot be written to `path`, before any work."""
    refuse_output(path, *inputs)
    require_png(path, "--plot")


def print_lines(lines: Sequence[Line]) -> None:
    say("\n".join(f"{name:<13}  {text}" for name, text in lines))


def remark(text: str) -> None:
    """Print a remark to standard error, above a progress bar that is shown there.

    A run goes on where nobody reads it: what was released must end in a model.
    """
    from tqdm import tqdm

    with suppress(OSError), tqdm.external_write_mode(sys.stderr):
        say(f"dpkern: {text}", sys.stderr)


def one_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def say(text: str, stream: TextIO | None = None) -> None:
    """Print, folded at the width of the terminal where one reads it."""
    stream = stream or sys.stdout
    print(fold(text, terminal_width()) if stream.isatty() else text, file=stream)


def saved(
    arguments: argparse.Namespace, result: SolverResult, certificate: Certificate, which: str = ""
) -> list[Line]:
    """Write a model and a certificate to `--out` and `--certificate`, where these are given."""
    lines = []
    if arguments.out is not None:
        result.save(arguments.out)
        lines.append(("saved", f"{arguments.out}{which}"))
    if arguments.certificate is not None:
        certificate.save(arguments.certificate)
        lines.append(("certificate", arguments.certificate))
    return lines


def say_release(
    arguments: argparse.Namespace, certificate: Certificate, lines: list[Line], ledger: str | None
) -> None:
    """Save a certificate where it is asked for, and print it and what is left of a budget."""
    if arguments.certificate is not None:
        certificate.save(arguments.certificate)
        lines.append(("certificate", arguments.certificate))
    if ledger is not None:
        lines.append(("ledger", ledger_text(Accountant(ledger))))
    if lines:
        print_lines(lines)
    say_certificate(certificate)


def say_certificate(certificate: Certificate) -> None:
    """Print a certificate, folded at the width of the terminal where one reads it."""
    print(report(certificate, terminal_width()) if sys.stdout.isatty() else certificate)


def terminal_width() -> int:
    return max(shutil.get_terminal_size().columns, 40)


def shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) if len(value) <= 4 else f"{len(value)} values"
    return figure(value)


def score(result: SolverResult, X: Matrix, y: Any) -> float:
    """Accuracy, concordance of times to an event, or mean squared error."""
    if result.classes is not None:
        return result.score(X, y)
    return float(np.mean((result.predict(X) - y) ** 2))


def area(result: SolverResult, X: Matrix, y: Any) -> float | None:
    """Return the area under the ROC curve of two classes; None where one has no record."""
    if result.classes is None or len(result.classes) != 2:
        return None
    positive = y == result.classes[1]
    pairs = int(positive.sum()) * int((~positive).sum())
    return 0.5 + 0.5 * count_pairs(result.decision_function(X), positive) / pairs if pairs else None


def log_loss(result: SolverResult, X: Matrix, y: Any) -> float | None:
    """Return the mean log loss of predicted probabilities; None where a model has none."""
    if result.classes is None or not result.predicts_probabilities:
        return None
    order = np.argsort(result.classes)
    number = order[np.searchsorted(result.classes, y, sorter=order)]
    of_label = result.predict_proba(X)[np.arange(len(number)), number]
    return float(-np.log(np.maximum(of_label, np.finfo(float).tiny)).mean())


def scores(result: SolverResult, X: Matrix, y: Any) -> dict[str, float]:
    """Return the scores of a model on labelled records by their names, that of `score` first.

    Beside it the area under the ROC curve of two classes and the log loss, or R2 of targets.
    """
    task = "regression" if result.classes is None else "classification"
    found = {metric(task, result.oracle): score(result, X, y)}
    if isinstance(result.oracle, DiscreteHazards):
        return found
    more = {"AUC": area(result, X, y), "log loss": log_loss(result, X, y)}
    if result.classes is None and (variance := float(np.var(y))) > 0.0:
        more["R2"] = 1.0 - found["MSE"] / variance
    return found | {name: value for name, value in more.items() if value is not None}


def metric(task: str, oracle: object = None) -> str:
    if isinstance(oracle, DiscreteHazards):
        return "concordance"
    return "MSE" if task == "regression" else "accuracy"


def spread(scores: Sequence[float]) -> float:
    """Return the standard deviation, NaN for a single number."""
    return statistics.stdev(scores) if len(scores) > 1 else math.nan


def epsilon_text(certificate: Certificate, delta: float) -> str:
    most = "at most " if certificate.bound == "upper" else ""
    mu, epsilon = rounded_up(certificate.mu), certificate.epsilon(delta)
    if certificate.minimiser is not None:
        return f"{most}epsilon {rounded_up(epsilon)} at delta {delta!r}"
    if epsilon == math.inf and certificate.mu < math.inf:
        return f"{most}mu {mu}, which is too large to certify an epsilon at delta {delta!r}"
    return f"{most}mu {mu}, epsilon {rounded_up(epsilon)} at delta {delta!r}"


def ledger_text(accountant: Accountant) -> str:
    spent, left = rounded_up(accountant.spent), rounded_down(accountant.remaining)
    of = f"of epsilon {accountant.epsilon:g} at delta {accountant.delta:g}"
    return f"{os.path.basename(accountant.path)}: {spent} {of} is spent, {left} is left"
