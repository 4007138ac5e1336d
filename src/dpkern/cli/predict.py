"""``dpkern predict``: labels from a saved model."""

import argparse
import csv
import io
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._files import replacing
from dpkern._typing import FloatArray
from dpkern.cli._arguments import add_column_arguments
from dpkern.cli._data import (
    check_model_range,
    columns,
    labels_fit,
    read_described,
    refuse_options,
)
from dpkern.cli._output import EXACT_SCORE, refuse_output, remark, scores
from dpkern.data import Schema
from dpkern.data.validation import Matrix
from dpkern.io import read_records
from dpkern.models.hazards import DiscreteHazards
from dpkern.solvers import SolverResult, load

HELP = "predict labels with a saved model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="what fit --out has saved")
    add("data", metavar="DATA", help="records, with labels or without")
    add("--out", metavar="FILE", help="where to write (default: standard output)")
    what = "write CSV with the label and the decision value, or one of each of several classes"
    add("--decision-values", action="store_true", help=what)
    what = "write CSV with the label and a probability of each class, or of survival to each edge"
    add("--probabilities", action="store_true", help=what)
    add_column_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        refuse_output(arguments.out, arguments.model, arguments.data)
    model = load(arguments.model)
    _refuse_values(arguments, model)
    X, y = _records(arguments, model)
    labels = [str(label) for label in model.predict(X).tolist()]
    lines = _lines(labels, _values(arguments, model, X), model)
    if arguments.out is None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    else:
        with replacing(arguments.out) as file:
            file.writelines(line.encode() for line in lines)
        print(f"{len(labels)} predictions in {arguments.out}")
    if y is not None:
        # Predictions may be piped into another program, so that remarks go to standard error.
        stream = sys.stderr if arguments.out is None else sys.stdout
        text = _score(arguments, model, X, y)
        print(text if text.startswith("no score") else f"{text}\n({EXACT_SCORE})", file=stream)


def _refuse_values(arguments: argparse.Namespace, model: SolverResult) -> None:
    """Raise ValueError for decision values or probabilities of a model that has none."""
    if isinstance(model.oracle, DiscreteHazards) and arguments.decision_values:
        raise ValueError("--decision-values is for classification; this model predicts risks")
    for option in ("decision_values", "probabilities"):
        if getattr(arguments, option) and model.classes is None:
            name = option.replace("_", "-")
            raise ValueError(f"--{name} is for classification; this model predicts numbers")


def _records(
    arguments: argparse.Namespace, model: SolverResult
) -> tuple[Matrix, NDArray[Any] | None]:
    """Return the records of the file as the model takes them, and their labels if it has them."""
    if model.schema is not None:
        refuse_options(
            arguments, ("target", "silo_column", "header", "sep"), "the model's schema says it"
        )
        return _described(arguments.data, model.schema)
    X, y = read_records(
        arguments.data,
        **columns(arguments),
        n_features=model.transform.n_features,
        classes=model.classes,
        feature_names=model.feature_names,
    )
    check_model_range(arguments.data, X, model)
    return X, y


def _values(
    arguments: argparse.Namespace, model: SolverResult, X: Matrix
) -> dict[str, list[float]]:
    """Return the columns beside the label that are asked for, by their names in the file."""
    values: dict[str, list[float]] = {}
    if arguments.decision_values:
        z = model.decision_function(X)
        one = z.ndim == 1
        values |= {"decision_value": z.tolist()} if one else _named("decision_value", z, model)
    if arguments.probabilities and isinstance(model.oracle, DiscreteHazards):
        survival = model.predict_survival_function(X).T
        edges = (f"survival_{edge:g}" for edge in model.oracle.edges)
        values |= {name: column.tolist() for name, column in zip(edges, survival, strict=True)}
    elif arguments.probabilities:
        values |= _named("probability", model.predict_proba(X), model)
    return values


def _lines(labels: list[str], values: dict[str, list[float]], model: SolverResult) -> list[str]:
    """Return a label a line, or CSV where there are values beside it."""
    if not values:
        return [f"{label}\n" for label in labels]
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["risk" if isinstance(model.oracle, DiscreteHazards) else "label", *values])
    table.writerows(zip(labels, *values.values(), strict=True))
    return [text.getvalue()]


def _score(arguments: argparse.Namespace, model: SolverResult, X: Matrix, y: NDArray[Any]) -> str:
    """Return the score on labelled records as a line, or why there is none."""
    if not labels_fit(y, model.classes):
        return "no score: the labels there are not those of the model"
    target = arguments.target
    if model.schema is not None and model.schema.target is not None:
        target = model.schema.target.name
    of = "" if target is None else f" of {target}"
    (name, value), *more = scores(model, X, y).items()
    if np.isnan(value):
        return "no score: no event there is known to be before the time of another"
    others = "".join(f", {name} {value:.4f}" for name, value in more)
    return f"{name}{of} {value:.4f}{others} on {len(y)} labelled records"


def _named(name: str, values: FloatArray, model: SolverResult) -> dict[str, list[float]]:
    """Return the columns of values of all classes, by their names in the file."""
    labels = np.asarray(model.classes).tolist()
    return {
        f"{name}_{label}": column.tolist() for label, column in zip(labels, values.T, strict=True)
    }


def _described(path: str, schema: Schema) -> tuple[Matrix, NDArray[Any] | None]:
    """Return encoded records, and their labels if the file has the target and all are known."""
    X, frame = read_described(path, schema)
    y = None
    if schema.target is not None and schema.target.name in frame:
        try:
            y = schema.labels(frame)
        except ValueError as error:
            remark(f"no score: {error}")
    return X, y
