"""``dpkern evaluate``: scores of a saved model on held-out records, with a guarantee."""

import argparse
from typing import Any, cast

from dpkern.cli import _arguments, _data, _federated, _output
from dpkern.cli._arguments import Project
from dpkern.data import Schema
from dpkern.evaluation import Evaluation, concordance_index, evaluate
from dpkern.evaluation.evaluate import EVALUATE, agreed_arguments
from dpkern.privacy import Budget
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers import SolverResult, load

HELP = "release scores of a saved model on labelled records that it was not fitted on"
_GIVEN = ("threshold", "bins", "neighbours", "public_size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help="what fit --out has saved")
    add("data", metavar="DATA", nargs="?", help="labelled records, not those of the fit")
    add("--threshold", type=float, default=0.5, help="public risk of a positive (default: 0.5)")
    what = "bins of the predicted risk (default: by the number of positives)"
    add("--bins", type=_arguments.count, metavar="B", help=what)
    what = "public bounds of the targets (default: the model's)"
    add("--target-bound", type=_arguments.target_bound, metavar="B", help=what)
    add("--plot", metavar="FILE.png", help="where to draw the calibration curve")
    _arguments.add_release_arguments(parser)
    _arguments.add_project(parser)
    _arguments.add_column_arguments(parser)
    _arguments.add_federated_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.certificate is not None:
        _output.refuse_output(arguments.certificate, arguments.model, arguments.data)
    if arguments.plot is not None:
        _output.refuse_picture(arguments.plot, arguments.model, arguments.data)
    budget, project = Budget(epsilon=arguments.epsilon, delta=arguments.delta), Project.read()
    bound = arguments.target_bound
    given = {
        "target_bound": tuple(bound) if isinstance(bound, list) else bound,
        **{name: getattr(arguments, name) for name in _GIVEN},
    }
    if arguments.federation is not None:
        return _over_silos(arguments, given, budget, project)
    _arguments.refuse_federated(arguments)
    _output.refuse_existing(arguments.certificate)
    texts = project.texts_for(arguments.about)
    ledger = project.ledger_for(arguments.ledger)
    model = load(arguments.model)
    _refuse_plot(arguments, model)
    own = {
        "budget": budget,
        "accountant": None if ledger is None else Accountant(ledger),
        "rng": arguments.noise_seed,
    }
    of_times = model.schema is not None and model.schema.intervals is not None
    if of_times:
        evaluation = _of_times(arguments, model, own)
    else:
        X, y, person = _records(arguments, model)
        own |= {"person": person, "max_records": arguments.max_records}
        evaluation = evaluate(model, X, y, **own, **given)
    say_scores(evaluation)
    _draw(arguments, evaluation)
    privacy = evaluation.privacy.with_names(**texts)
    _output.say_release(arguments, privacy, project.lines, ledger)


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


def _refuse_plot(arguments: argparse.Namespace, model: SolverResult) -> None:
    """Raise ValueError, before any charge, for a picture of a model without risks of classes."""
    if arguments.plot is not None and (model.classes is None or not model.predicts_probabilities):
        raise ValueError("--plot must be left out for a model that has no risks of classes")


def _draw(arguments: argparse.Namespace, evaluation: Evaluation) -> None:
    if arguments.plot is not None:
        try:
            evaluation.plot(arguments.plot)
        except ImportError:
            _output.remark("no picture: matplotlib is missing; pip install 'dpkern[plot]'")


def say_scores(evaluation: Evaluation) -> None:
    """Print the scores; the certificate follows."""
    print("\n".join(str(evaluation).split("\n")[:-1]))


def _over_silos(
    arguments: argparse.Namespace, given: dict[str, Any], budget: Budget, project: Project
) -> None:
    """Evaluate over the silos of a study, which hold the records and charge their accountants."""
    _data.refuse_options(arguments, ("model",), "the study of --federation states it")
    study = _federated.study(arguments, takes=("target_bound",))
    study.check_solver(EVALUATE)
    _refuse_plot(arguments, cast(SolverResult, study.model))
    texts = project.texts_for(arguments.about, study=study.name)
    given = agreed_arguments(cast(SolverResult, study.model), **given)
    if arguments.plan is not None:
        return _federated.propose(study, arguments.plan, EVALUATE, budget, given)
    _federated.rehearse(study, EVALUATE, budget, given)
    silos = _federated.federation(study, arguments)
    evaluation = evaluate(study.model, silos, budget=budget, **given)
    say_scores(evaluation)
    _draw(arguments, evaluation)
    lines = [*project.lines, *_federated.study_lines(study)]
    _output.say_release(arguments, evaluation.privacy.with_names(**texts), lines, None)
    _federated.finish(silos)


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
