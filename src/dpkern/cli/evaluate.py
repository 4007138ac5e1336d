"""``dpkern evaluate``: scores of a saved model on held-out records, with a guarantee."""

import argparse
from typing import Any, cast

from dpkern.cli import _arguments, _data, _output, _project
from dpkern.cli._project import Project
from dpkern.data import Schema
from dpkern.evaluation import Evaluation, concordance_index, evaluate
from dpkern.privacy import Budget
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers import SolverResult, load

HELP = "release scores of a saved model on labelled records that it was not fitted on"


def add_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", help="what fit --out has saved")
    add("data", metavar="DATA", help="labelled records, not those of the fit")
    add("--threshold", type=float, default=0.5, help="public risk of a positive (default: 0.5)")
    what = "bins of the predicted risk (default: by the number of positives)"
    add("--bins", type=_arguments.count, metavar="B", help=what)
    what = "public bounds of the targets (default: the model's)"
    add("--target-bound", type=_arguments.target_bound, metavar="B", help=what)
    _arguments.add_release_arguments(parser)
    _project.add_arguments(parser)
    _arguments.add_column_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.certificate is not None:
        _output.refuse_output(arguments.certificate, arguments.model, arguments.data)
    budget, project = Budget(epsilon=arguments.epsilon, delta=arguments.delta), Project.read()
    texts = project.texts_for(arguments.about)
    ledger = project.ledger_for(arguments.ledger)
    model = load(arguments.model)
    own = {
        "budget": budget,
        "accountant": None if ledger is None else Accountant(ledger),
        "rng": arguments.noise_seed,
    }
    of_times = model.schema is not None and model.schema.intervals is not None
    evaluation = (_of_times if of_times else _of_labels)(arguments, model, own)
    print("\n".join(str(evaluation).split("\n")[:-1]))
    privacy = evaluation.privacy.with_names(**texts)
    _output.say_release(arguments, privacy, project.lines, ledger)


def _of_labels(
    arguments: argparse.Namespace, model: SolverResult, own: dict[str, Any]
) -> Evaluation:
    X, y, person = _records(arguments, model)
    bound = arguments.target_bound
    return evaluate(
        model,
        X,
        y,
        target_bound=tuple(bound) if isinstance(bound, list) else bound,
        threshold=arguments.threshold,
        bins=arguments.bins,
        neighbours=arguments.neighbours,
        public_size=arguments.public_size,
        person=person,
        max_records=arguments.max_records,
        **own,
    )


def _of_times(
    arguments: argparse.Namespace, model: SolverResult, own: dict[str, Any]
) -> Evaluation:
    """Return the concordance of the model's risks, where records are replaced."""
    options = ("bins", "target_bound", "public_size", "max_records", *_data.COLUMN_OPTIONS)
    _data.refuse_options(arguments, options, "times to an event have their concordance alone")
    schema = cast(Schema, model.schema)
    if arguments.neighbours != "replace_one" or schema.person is not None:
        raise ValueError(
            "--neighbours must be replace_one for times to an event, and a person have one record"
        )
    X, frame = _data.read_described(arguments.data, schema)
    with _data.naming(arguments.data, schema):
        time, event = schema.times_and_events(frame)
    return concordance_index(model.predict(X), time, event, **own)


def _records(arguments: argparse.Namespace, model: SolverResult) -> tuple[Any, Any, Any]:
    """Return rows, labels and ids of persons, in the model's columns."""
    path, schema = arguments.data, model.schema
    if schema is not None:
        _data.refuse_options(arguments, _data.COLUMN_OPTIONS, "the model's schema says it")
        X, frame = _data.read_described(path, schema)
        with _data.naming(path, schema):
            y = schema.labels(frame)
            return X, y, None if schema.person is None else schema.persons(frame)
    table = _data.read_labelled(
        path,
        arguments,
        n_features=model.transform.n_features,
        classes=model.classes,
        feature_names=model.feature_names,
    )
    _data.check_model_range(path, table.X, model)
    return table.X, table.y, table.person
