"""``dpkern predict``: labels from a saved model."""

import argparse
import csv
import io
import sys

from dpkern.cli._arguments import add_column_arguments
from dpkern.cli._data import columns, labels_fit
from dpkern.cli._output import metric, refuse_output, score
from dpkern.io import read_records, replacing
from dpkern.solvers import load

HELP = "predict labels with a saved model"


def add_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="what fit --out has saved")
    add("data", metavar="DATA", help="records, with labels or without")
    add("--out", metavar="FILE", help="where to write (default: standard output)")
    what = "write CSV with columns label and decision_value instead of a label per line"
    add("--decision-values", action="store_true", help=what)
    add_column_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        refuse_output(arguments.out, arguments.model, arguments.data)
    model = load(arguments.model)
    if arguments.decision_values and model.classes is None:
        raise ValueError("--decision-values is for classification; this model predicts numbers")
    X, y = read_records(
        arguments.data,
        **columns(arguments),
        n_features=model.transform.n_features,
        feature_names=model.feature_names,
    )
    labels = [str(label) for label in model.predict(X).tolist()]
    lines = [f"{label}\n" for label in labels]
    if arguments.decision_values:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(("label", "decision_value"))
        table.writerows(zip(labels, model.decision_function(X).tolist(), strict=True))
        lines = [text.getvalue()]
    if arguments.out is None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    else:
        with replacing(arguments.out) as file:
            file.writelines(line.encode() for line in lines)
        print(f"{len(labels)} predictions in {arguments.out}")
    if y is None:
        return
    # Predictions may be piped into another program, so that remarks go to standard error.
    stream = sys.stderr if arguments.out is None else sys.stdout
    if not labels_fit(y, model.classes):
        print("no score: the labels there are not those of the model", file=stream)
        return
    task = "regression" if model.classes is None else "classification"
    of = "" if arguments.target is None else f" of {arguments.target}"
    print(f"{metric(task)}{of} {score(model, X, y):.4f} on {len(y)} labelled records", file=stream)
