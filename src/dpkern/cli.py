"""The command line: ``dpkern fit``, ``predict``, ``compare`` and ``info``.

Whatever a user can get wrong ends as one line on standard error and exit status 2.
"""

import argparse
import inspect
import math
import os
import statistics
import sys
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpkern import datasets, kernels
from dpkern.data import SiloData, is_sparse, train_test_split
from dpkern.data.validation import Matrix
from dpkern.io import (
    Table,
    read_feature_range,
    read_records,
    read_table,
    refuse_unwritable,
    replacing,
)
from dpkern.models.losses import LOSSES, get_loss
from dpkern.plotting import CompareRow, plot_compare
from dpkern.privacy import Budget, Certificate, Release, compose_sequential
from dpkern.solvers import SOLVERS, Objective, SolverResult, load, solve

# Defaults: fixed numbers, never computed from the records at hand. With rows of norm at most 1 no
# gradient of the logistic loss is longer than 1. The number of rounds was chosen on a public set,
# a9a, by its test score.
_ROW_BOUND = 1.0
_DRAWS = 3
_DEFAULTS: dict[str, Any] = {"clip": 1.0, "l2": 1e-4, "rounds": 300, "step_size": "auto"}
# 30 features in [-1, 1] and the constant make rows of norm at most sqrt(31) < 5.6; those beyond 4
# are shortened, and a step of 0.12 is below 2/(L + l2), L = 4^2. The hinge spends its gradients on
# records near the boundary, which a set of a few hundred needs. All of these, the share held out
# and the number of draws were chosen by test scores on splits of this public set, the default one
# among them: its table shows what is attainable, not an untouched estimate.
_WISCONSIN_ROW_BOUND = 4.0
_WISCONSIN_DRAWS = 24  # 114 test records: a draw scatters by 0.024, their mean by 0.005
_WISCONSIN_DEFAULTS: dict[str, Any] = {
    "loss": "smoothed_hinge",
    "clip": 1.0,
    "l2": 1e-3,
    "rounds": 200,
    "step_size": 0.12,
    "prox_step": 0.12,  # to ADMM what the step is to gradient descent
}
# Newton's method needs few rounds and has steps of its own, and one pass over the records is soon
# over: there the solver's defaults hold.
_OWN = {
    "local_newton": ("rounds", "step_size"),
    "double_noise_newton": ("rounds", "step_size"),
    "prox_sgd": ("rounds",),
}
_LOSS_OF_TASK = {"classification": "logistic", "regression": "squared"}

_FLAGS = ("loss", "clip", "l2", "rounds", "trust")
_NOT_SETTABLE = ("data", "budget", "rng", "progress", "callback")
_SPLITS = {"two_groups": "ratio", "dirichlet": "concentration"}

_SPLIT = "even"
_COLUMNS_APART = 100.0
_TEST_LABELS = "the score reads the test records without noise: it is not private about them"

Array = NDArray[Any]
_Line = tuple[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; those of the process by default.

    Returns
    -------
    int
        Exit status: 0, 2 after a user's error, 130 after Ctrl-C, 141 when the reader of standard
        output is gone.
    """
    try:
        arguments = _parser().parse_args(argv)
        arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        print("dpkern: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, TypeError, OSError) as error:
        print(f"dpkern: error: {_one_line(error)}", file=sys.stderr)
        return 2
    return 0


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


# Arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dpkern",
        description="Differentially private empirical risk minimisation across silos.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dpkern {version('dpkern')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    fit = _command(commands, "fit", _fit, "fit a model with one solver and print its certificate")
    fit.add_argument("data", metavar="DATA", help="training records: LIBSVM, CSV or .npz")
    fit.add_argument("--solver", default="gradient_descent", choices=SOLVERS)
    fit.add_argument("--epsilon", type=float, help="budget; inf means no noise and no guarantee")
    fit.add_argument("--delta", type=float, help="budget, with --epsilon")
    fit.add_argument("--no-privacy", action="store_true", help="the same as --epsilon inf")
    fit.add_argument("--trust", help="who is believed: central, silo, ... (default: the solver's)")
    fit.add_argument("--test", metavar="FILE", help="labelled records to score the model on")
    fit.add_argument("--out", metavar="MODEL.npz", help="where to save the model")
    fit.add_argument(
        "--draws", type=_count, default=1, metavar="R", help="runs with fresh noise (default: 1)"
    )
    _add_data_arguments(fit, silos=1)
    _add_model_arguments(fit)

    predict = _command(commands, "predict", _predict, "predict labels with a saved model")
    predict.add_argument("model", metavar="MODEL", help="what fit --out has saved")
    predict.add_argument("data", metavar="DATA", help="records, with labels or without")
    predict.add_argument("--out", metavar="FILE", help="where to write (default: standard output)")
    predict.add_argument(
        "--decision-values",
        action="store_true",
        help="write CSV with columns label and decision_value instead of a label per line",
    )
    _add_column_arguments(predict)

    compare = _command(commands, "compare", _compare, "compare solvers over budgets on one split")
    compare.add_argument(
        "data", metavar="DATA", nargs="?", help="records (default: the Wisconsin diagnostic set)"
    )
    compare.add_argument(
        "--solvers",
        type=_list_of(str),
        metavar="A,B",
        help="NAME or NAME:TRUST, separated by commas (default: all that fit the task)",
    )
    compare.add_argument(
        "--epsilons",
        type=_list_of(float),
        default=[0.5, 1.0, 2.0, 4.0],
        metavar="E,F",
        help="budgets of one run (default: 0.5,1,2,4)",
    )
    compare.add_argument("--delta", type=float, default=1e-5, help="of every run (default: 1e-5)")
    compare.add_argument(
        "--draws",
        type=_count,
        metavar="R",
        help=f"runs per row (default: {_DRAWS}; {_WISCONSIN_DRAWS} without DATA)",
    )
    held_out = compare.add_mutually_exclusive_group()
    held_out.add_argument(
        "--test-share", type=float, default=0.2, metavar="SHARE", help="default: 0.2"
    )
    held_out.add_argument("--test", metavar="FILE", help="test records, in place of a share")
    plot = compare.add_mutually_exclusive_group()
    plot.add_argument(
        "--plot",
        default="dpkern-compare.png",
        metavar="FILE.png",
        help="default: dpkern-compare.png",
    )
    plot.add_argument("--no-plot", action="store_true")
    _add_data_arguments(compare, silos=4)
    _add_model_arguments(compare)

    _command(commands, "info", _info, "what this installation runs on")
    return parser


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], None], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    return parser


def _add_column_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("columns of CSV files")
    group.add_argument(
        "--target", metavar="COLUMN", help="name, or index from 0 (default: the last)"
    )
    group.add_argument(
        "--silo-column", metavar="COLUMN", help="whose record it is: name, or index from 0"
    )
    group.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether the first row holds names (default: as it looks)",
    )


def _add_data_arguments(parser: argparse.ArgumentParser, silos: int) -> None:
    group = parser.add_argument_group("data, all of it taken as public but the records")
    group.add_argument(
        "--silos",
        type=_count,
        metavar="M",
        help=f"split the records over M silos (default: as the data say, else {silos})",
    )
    group.add_argument(
        "--split",
        metavar="HOW",
        help=f"even, random, by_label, two_groups=RATIO or dirichlet=CONCENTRATION "
        f"(default: {_SPLIT})",
    )
    group.add_argument("--seed", type=int, default=0, help="of the splits only; never of the noise")
    group.add_argument("--task", choices=tuple(_LOSS_OF_TASK), help="default: as the labels say")
    group.add_argument("--feature-range", metavar="FILE", help="CSV rows lo,hi or name,lo,hi")
    group.add_argument(
        "--row-bound", type=float, help=f"longer rows are shortened to it (default: {_ROW_BOUND:g})"
    )
    group.add_argument(
        "--no-intercept", action="store_true", help="fit no constant beside the features"
    )
    group.set_defaults(default_silos=silos)
    _add_column_arguments(parser)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("solver")
    group.add_argument("--loss", choices=LOSSES, help="default: logistic, or squared")
    group.add_argument(
        "--clip", type=float, help=f"bound of a record's gradient (default: {_DEFAULTS['clip']:g})"
    )
    group.add_argument("--l2", type=float, help=f"penalty (default: {_DEFAULTS['l2']:g})")
    group.add_argument(
        "--rounds",
        type=int,
        help=f"releases (default: {_DEFAULTS['rounds']}; Newton's method: 10, prox_sgd: 20)",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any other parameter of the solver, such as n_threads=1; may be repeated",
    )
    group.add_argument(
        "--noise-seed", type=int, metavar="N", help="reproducible noise: not private, for tests"
    )


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"it is {number}; it must be at least 1")
    return number


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse(text: str) -> list[Any]:
        try:
            entries = [kind(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError:
            entries = []
        if not entries:
            raise argparse.ArgumentTypeError(f"it is {text!r}; it must be a comma-separated list")
        return entries

    return parse


def _value(text: str) -> Any:
    """What ``--set key=value`` means: an int, a float, a bool, None, a list of these, or a string.

    >>> _value("3"), _value("1e-3"), _value("none"), _value("0.1,0.2"), _value("auto")
    (3, 0.001, None, [0.1, 0.2], 'auto')
    """
    if "," in text:
        return [_value(part.strip()) for part in text.split(",") if part.strip()]
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _given_parameters(arguments: argparse.Namespace) -> dict[str, Any]:
    """Solver parameters that the user has stated, by a flag of their own or by --set."""
    flags = ((name, getattr(arguments, name, None)) for name in _FLAGS)
    given = {name: value for name, value in flags if value is not None}
    for item in arguments.set:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise ValueError(f"--set is {item!r}; it must be key=value")
        if name in given:
            raise ValueError(f"{name} was given twice")
        given[name] = _value(text)
    return given


def _settable(solver: str) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(SOLVERS[solver]).parameters
    return {name: p for name, p in parameters.items() if name not in _NOT_SETTABLE}


def _defaults(solver: str, defaults: dict[str, Any]) -> dict[str, Any]:
    """Those of the defaults that are meant for this solver."""
    left = _OWN.get(solver, ())
    return {k: v for k, v in defaults.items() if k in _settable(solver) and k not in left}


def _refuse_unknown(given: Iterable[str], known: Iterable[str], who: str) -> None:
    known = list(known)
    for name in given:
        if name in _NOT_SETTABLE:
            raise ValueError(f"{name} cannot be set this way; it has its own options")
        if name not in known:
            raise ValueError(f"{name!r} is no parameter of {who}, which has {', '.join(known)}")


# Data


@dataclass(frozen=True)
class _Source:
    """Records as read, and what is public about their columns."""

    name: str
    table: Table
    feature_range: tuple[Array, Array] | None
    row_bound: float = _ROW_BOUND
    defaults: dict[str, Any] = field(default_factory=_DEFAULTS.copy)


def _read_source(arguments: argparse.Namespace) -> _Source:
    if arguments.data is None:
        if arguments.feature_range or arguments.target or arguments.silo_column:
            raise ValueError("--feature-range, --target and --silo-column need DATA")
        return _Source(
            "Wisconsin diagnostic set",
            datasets.wisconsin_table(),
            datasets.wisconsin_feature_range(),
            _WISCONSIN_ROW_BOUND,
            _WISCONSIN_DEFAULTS,
        )
    table = read_table(
        arguments.data,
        target=arguments.target,
        silo_column=arguments.silo_column,
        header=arguments.header,
    )
    bounds = None
    if arguments.feature_range is not None:
        bounds = read_feature_range(arguments.feature_range, feature_names=table.feature_names)
    else:
        _hint_at_ranges(table.X)
    return _Source(Path(arguments.data).name, table, bounds)


def _hint_at_ranges(X: Any) -> None:
    if is_sparse(X):
        largest = np.zeros(X.shape[1])
        np.maximum.at(largest, X.indices, np.abs(X.data))
    else:
        largest = np.maximum(X.max(axis=0), -X.min(axis=0))
    largest = largest[np.isfinite(largest) & (largest > 0.0)]
    if len(largest) and largest.max() > _COLUMNS_APART * largest.min():
        _remark(
            "hint: the columns' largest values differ by more than 100 x and no range was given; "
            "state public bounds with --feature-range FILE, or small columns will hardly count "
            "(this hint read the records without noise: a non-private diagnostic)"
        )


def _silo_data(
    source: _Source, rows: Array | None, groups: Array | None, arguments: argparse.Namespace
) -> SiloData:
    """The given rows of the source, all of them by default, held by silos."""
    X, y = source.table.X, source.table.y
    if rows is not None:
        X, y = X[rows], y[rows]
        groups = None if groups is None else groups[rows]
    row_bound = source.row_bound if arguments.row_bound is None else arguments.row_bound
    options: dict[str, Any] = {
        "intercept": not arguments.no_intercept,
        "row_bound": None if math.isinf(row_bound) else row_bound,
        "feature_range": source.feature_range,
        "task": arguments.task,
    }
    if groups is not None:
        for option, given in (("--silos", arguments.silos), ("--split", arguments.split)):
            if given is not None:
                raise ValueError(f"{option} was given, and the data say whose record it is")
        return SiloData.from_groups(X, y, groups, **options)
    how: Any
    how, equals, number = (arguments.split or _SPLIT).partition("=")
    if bool(equals) != (how in _SPLITS):
        takes = f"needs {_SPLITS[how]}, as in {how}=2" if how in _SPLITS else "takes no number"
        raise ValueError(f"--split is {arguments.split!r}; {how!r} {takes}")
    if equals:
        try:
            options[_SPLITS[how]] = float(number)
        except ValueError:
            raise ValueError(f"--split is {arguments.split!r}; {number!r} is no number") from None
    m = arguments.silos or arguments.default_silos
    if m > len(y):
        raise ValueError(f"--silos is {m}; there are {len(y)} training records")
    return SiloData.split(X, y, m, how=how, rng=arguments.seed, **options)


def _read_test(arguments: argparse.Namespace, table: Table, data: SiloData) -> tuple[Matrix, Array]:
    test = read_table(
        arguments.test,
        target=arguments.target,
        silo_column=arguments.silo_column,
        header=arguments.header,
        n_features=table.X.shape[1],
    )
    names, expected = test.feature_names, table.feature_names
    if names is not None and expected is not None and names != expected:
        raise ValueError(f"{arguments.test}: its columns are not those of the training data")
    if not _labels_fit(test.y, data.classes_):
        kind = "numbers" if data.classes_ is None else "labels of the training data"
        raise ValueError(f"{arguments.test}: its target holds other values than {kind}")
    return test.X, test.y


def _labels_fit(y: Array, classes: Array | None) -> bool:
    """Whether y holds real numbers (regression), or nothing but the two labels."""
    if classes is None:
        return y.dtype.kind in "fiu"
    same_kind = (y.dtype.kind in "US") == (classes.dtype.kind in "US")
    return same_kind and bool(np.isin(y, classes).all())


def _data_lines(source: _Source, data: SiloData, arguments: argparse.Namespace) -> list[_Line]:
    least, most = int(data.sizes.min()), int(data.sizes.max())
    sizes = f"{least}" if least == most else f"{least} to {most}"
    origin = "as the data say"
    if data.silo_names is None:
        origin = f"{arguments.split or _SPLIT} split, seed {arguments.seed}"
    sparse = is_sparse(data.X)
    features = f"{data.n_features} {'sparse ' if sparse else ''}features"
    features += " and an intercept" if data.intercept else ""
    labels = ""
    if data.classes_ is not None:
        labels = f", labels {data.classes_[0]} and {data.classes_[1]}"
    ranged = "none stated" if data.feature_range is None else "stated"
    if sparse and data.feature_range is not None:
        ranged += " (scale only, so that 0 stays 0: the data are sparse)"
    return [
        ("data", f"{source.name}, {data.n} training records, {features}"),
        ("silos", f"{data.m} of {sizes} records ({origin})"),
        ("task", f"{data.task}{labels}"),
        ("bounds", f"row bound {data.row_bound:g}, feature range {ranged}"),
    ]


# fit


def _fit(arguments: argparse.Namespace) -> None:
    budget = _budget(arguments)
    solver = arguments.solver
    given = _given_parameters(arguments)
    settable = _settable(solver)
    _refuse_unknown(given, settable, solver)
    if arguments.out is not None:
        _refuse_output(arguments.out, arguments.data, arguments.test, arguments.feature_range)

    source = _read_source(arguments)
    data = _silo_data(source, None, source.table.groups, arguments)
    lines = _data_lines(source, data, arguments)
    test = None
    if arguments.test is not None:
        test = _read_test(arguments, source.table, data)
        lines.append(("test", f"{Path(arguments.test).name}, {len(test[1])} records"))
    parameters = _defaults(solver, source.defaults)
    parameters |= {"loss": _LOSS_OF_TASK[data.task], **given}
    draws = arguments.draws
    if budget is None and draws > 1:
        draws = 1
        _remark("one run in place of several draws: without noise they are all the same")
    if "progress" in inspect.signature(SOLVERS[solver]).parameters:
        parameters["progress"] = sys.stderr.isatty()
    results = [
        solve(solver, data, budget=budget, rng=_seed(arguments.noise_seed, r), **parameters)
        for r in range(draws)
    ]

    first = replace(results[0], feature_names=source.table.feature_names)
    together = first.privacy
    if budget is not None and draws > 1:
        together = compose_sequential(*(result.privacy for result in results))
        # One line for each release, not one for each and draw, where all draws made the same: those
        # with a schedule of their own may not have.
        if all(result.privacy.releases == first.privacy.releases for result in results):
            together = replace(
                together, releases=tuple(_repeated(one, draws) for one in first.privacy.releases)
            )
        spent = _epsilon_text(together, typing.cast(float, budget.delta))
        note = f"the first of {draws} draws on the same data, which compose to {spent}"
        first = replace(first, privacy=replace(first.privacy, notes=(*first.privacy.notes, note)))
    if arguments.out is not None:
        first.save(arguments.out)

    lines += _result_lines(first)
    if test is not None:
        lines += _score_lines([_score(result, *test) for result in results], data.task)
    if arguments.out is not None:
        which = f" (the first of the {draws} draws)" if draws > 1 else ""
        lines.append(("saved", f"{arguments.out}{which}"))
    if draws > 1:
        lines.append(("privacy", f"{draws} draws read the same data and compose: {spent}"))
        lines.append(("", "the certificate below is that of all of them together"))
    if first.privacy.neighbours == "add_remove":
        lines.append(("", "numbers of records and seconds above are the data's own: keep them"))
    if budget is None:
        lines.append(("privacy", "NONE: this run added no noise and guarantees nothing"))
    _print_lines(lines)
    print(together)


def _repeated(release: Release, draws: int) -> Release:
    per_record = None if release.per_record is None else draws * release.per_record
    return replace(release, times=draws * release.times, per_record=per_record)


def _budget(arguments: argparse.Namespace) -> Budget | None:
    epsilon, delta = arguments.epsilon, arguments.delta
    if arguments.no_privacy:
        if epsilon is not None and epsilon != math.inf:
            raise ValueError("--no-privacy and a finite --epsilon exclude each other")
        return None
    if epsilon is None:
        raise ValueError("give a budget with --epsilon and --delta, or say --no-privacy")
    return None if epsilon == math.inf else Budget(epsilon=epsilon, delta=delta)


def _seed(noise_seed: int | None, run: int) -> int | None:
    """Every run has noise of its own, also where the noise is to be the same next time."""
    return None if noise_seed is None else noise_seed + run


def _result_lines(result: SolverResult) -> list[_Line]:
    parameters = result.parameters
    names = (
        *("clip", "l2", "l1", "regularizer", "rounds", "local_steps", "step_size", "weights"),
        *("accounting", "calibration", "mode", "operator", "prox_step", "relaxation"),
    )
    stated = [f"{name} {_shown(parameters[name])}" for name in names if name in parameters]
    return [
        ("solver", f"{result.solver}, {result.loss} loss"),
        ("", ", ".join(stated)),
        ("result", f"{result.message} in {result.timing['total']:.3g} s"),
        ("", f"|coef| {np.linalg.norm(result.coef):.4g}, intercept {result.intercept:.4g}"),
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) if len(value) <= 4 else f"{len(value)} values"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _score(result: SolverResult, X: Matrix, y: Array) -> float:
    """Accuracy, or mean squared error."""
    if result.classes_ is not None:
        return result.score(X, y)
    return float(np.mean((result.predict(X) - y) ** 2))


def _metric(task: str) -> str:
    return "accuracy" if task == "classification" else "MSE"


def _spread(scores: Sequence[float]) -> float:
    """Standard deviation, NaN for a single number."""
    return statistics.stdev(scores) if len(scores) > 1 else math.nan


def _score_lines(scores: list[float], task: str) -> list[_Line]:
    text = f"{statistics.fmean(scores):.4f}"
    if len(scores) > 1:
        text += f" +- {_spread(scores):.4f} (mean and standard deviation of {len(scores)} draws)"
    return [(f"test {_metric(task)}", text), ("", _TEST_LABELS)]


def _epsilon_text(certificate: Certificate, delta: float) -> str:
    most = "at most " if certificate.bound == "upper" else ""
    mu, epsilon = _up(certificate.mu), certificate.epsilon(delta)
    if epsilon == math.inf and certificate.mu < math.inf:
        return f"{most}mu {mu}, which is too large to certify an epsilon at delta {delta!r}"
    return f"{most}mu {mu}, epsilon {_up(epsilon)} at delta {delta!r}"


def _up(value: float) -> str:
    """Three decimals, rounded up: what is printed must be true as well."""
    return f"{math.ceil(value * 1000) / 1000:g}" if math.isfinite(value) else "infinite"


# predict


def _predict(arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        _refuse_output(arguments.out, arguments.model, arguments.data)
    model = load(arguments.model)
    if arguments.decision_values and model.classes_ is None:
        raise ValueError("--decision-values is for classification; this model predicts numbers")
    X, y = read_records(
        arguments.data,
        n_features=model.transform.n_features,
        target=arguments.target,
        silo_column=arguments.silo_column,
        header=arguments.header,
        feature_names=model.feature_names,
    )
    labels = [str(label) for label in model.predict(X).tolist()]
    if arguments.decision_values:
        values = model.decision_function(X).tolist()
        rows = [f"{_quoted(label)},{value!r}" for label, value in zip(labels, values, strict=True)]
        rows.insert(0, "label,decision_value")
    else:
        rows = labels
    lines = [f"{row}\n" for row in rows]
    if arguments.out is None:
        sys.stdout.writelines(lines)
        sys.stdout.flush()
    else:
        with replacing(arguments.out) as file:
            file.writelines(line.encode() for line in lines)
        print(f"{len(labels)} predictions in {arguments.out}")
    if y is None:
        return
    # Predictions may be on their way into another program, so that remarks stay beside them.
    stream = sys.stderr if arguments.out is None else sys.stdout
    if not _labels_fit(y, model.classes_):
        print("no score: the labels there are not those of the model", file=stream)
        return
    task = "regression" if model.classes_ is None else "classification"
    print(f"{_metric(task)} {_score(model, X, y):.4f} on {len(y)} labelled records", file=stream)


def _quoted(label: str) -> str:
    if any(mark in label for mark in ',"\n\r'):
        return '"' + label.replace('"', '""') + '"'
    return label


# compare


def _compare(arguments: argparse.Namespace) -> None:
    given = _given_parameters(arguments)
    if "trust" in given:
        raise ValueError("trust cannot be set here; name it as in --solvers gradient_descent:silo")
    variants = _variants(arguments.solvers or list(SOLVERS))
    known = {name: None for solver, _ in variants for name in _settable(solver)}
    _refuse_unknown(given, known, "these solvers")
    budgets = [Budget(epsilon=epsilon, delta=arguments.delta) for epsilon in arguments.epsilons]
    if not arguments.no_plot:
        _refuse_output(arguments.plot, arguments.data, arguments.test, arguments.feature_range)

    source = _read_source(arguments)
    data, X_test, y_test, split = _held_out(source, arguments)
    defaults = {"loss": _LOSS_OF_TASK[data.task], **source.defaults}
    parameters = defaults | given
    draws = arguments.draws or (_WISCONSIN_DRAWS if arguments.data is None else _DRAWS)
    comparison = _Comparison(data, X_test, y_test, defaults, given, draws, arguments.noise_seed)
    rows = comparison.run(variants, budgets, must_run=arguments.solvers is not None)

    metric = f"test {_metric(data.task)}"
    lines = _data_lines(source, data, arguments)
    lines.append(("test", split))
    stated = [f"{name} {_shown(value)}" for name, value in parameters.items()]
    lines.append(("parameters", ", ".join(stated)))
    for solver in dict.fromkeys(solver for solver, _ in variants if solver in _OWN):
        own = [name for name in _OWN[solver] if name not in given]
        if own:
            lines.append(("", f"{solver}: its own {' and '.join(own)}"))
    lines.append(("draws", f"{draws} runs per row, each with fresh noise"))
    _print_lines(lines)
    print()
    _print_table(rows, metric)
    print()
    _print_lines(comparison.privacy_lines(arguments.delta))
    if not arguments.no_plot:
        _plot(rows, arguments.plot, metric, f"{source.name}, {split}")


def _variants(names: Sequence[str]) -> list[tuple[str, str]]:
    """(solver, trust), every trust that a solver offers where none is named, but for "shuffle":
    coins take far more time than Gaussian noise.
    """
    variants: list[tuple[str, str]] = []
    for entry in names:
        name, colon, trust = entry.partition(":")
        if name not in SOLVERS:
            raise ValueError(f"solver is {name!r}; it must be one of {', '.join(SOLVERS)}")
        parameter = _settable(name)["trust"]
        offered = typing.get_args(parameter.annotation) or (parameter.default,)
        if colon and trust not in offered:
            raise ValueError(f"trust of {name} is {trust!r}; it must be {' or '.join(offered)}")
        variants += [(name, trust)] if colon else [(name, t) for t in offered if t != "shuffle"]
    return list(dict.fromkeys(variants))


def _held_out(
    source: _Source, arguments: argparse.Namespace
) -> tuple[SiloData, Matrix, Array, str]:
    """Training data, test records, and a line that states the split."""
    table = source.table
    if arguments.test is not None:
        data = _silo_data(source, None, table.groups, arguments)
        X, y = _read_test(arguments, table, data)
        return data, X, y, f"{len(y)} records of {Path(arguments.test).name}"
    numbers = np.arange(len(table.y))
    train, _, test, _ = train_test_split(
        numbers, numbers, test_fraction=arguments.test_share, rng=arguments.seed
    )
    data = _silo_data(source, train, table.groups, arguments)
    if not _labels_fit(table.y[test], data.classes_):
        raise ValueError("the training part lacks a label that the test part has")
    text = f"{len(test)} of {len(numbers)} records held out at random (seed {arguments.seed})"
    return data, table.X[test], table.y[test], text


class _Comparison:
    """Runs of several solvers on the same training data, scored on the same test records."""

    def __init__(
        self,
        data: SiloData,
        X_test: Matrix,
        y_test: Array,
        defaults: dict[str, Any],
        given: dict[str, Any],
        draws: int,
        noise_seed: int | None,
    ) -> None:
        self._data, self._X, self._y = data, X_test, y_test
        self._defaults, self._given = defaults, given
        self._draws, self._noise_seed = draws, noise_seed
        self._minima: dict[Objective, float] = {}
        self._certificates: list[Certificate] = []

    def run(
        self, variants: list[tuple[str, str]], budgets: list[Budget], *, must_run: bool
    ) -> list[CompareRow]:
        """One row without noise, then one for every variant and budget.

        A solver that refuses the task or a parameter ends the comparison where it `must_run`, and
        is left out with a remark otherwise.
        """
        from tqdm import tqdm

        rows: list[CompareRow] = []
        remarks: list[str] = []
        draws = self._draws
        interval = 0.1 if sys.stderr.isatty() else 5.0
        total = 1 + len(variants) * len(budgets) * draws
        with tqdm(total=total, unit="run", leave=False, mininterval=interval) as bar:
            for solver, trust in variants:
                bar.set_description(f"{solver}, {trust}", refresh=False)
                plans: list[tuple[Budget | None, int]] = [(budget, draws) for budget in budgets]
                if not rows:
                    plans.insert(0, (None, 1))
                try:
                    rows += [self._row(solver, trust, *plan, bar) for plan in plans]
                except (ValueError, TypeError) as error:
                    if must_run:
                        raise
                    remarks.append(f"left out: {solver} under {trust} trust: {_one_line(error)}")
        for remark in remarks:
            _remark(remark)
        if not rows:
            raise ValueError("no solver takes these data and parameters")
        return rows

    def _row(
        self, solver: str, trust: str, budget: Budget | None, draws: int, bar: Any
    ) -> CompareRow:
        settable = _settable(solver)
        given = {k: v for k, v in self._given.items() if k in settable}
        parameters = _defaults(solver, self._defaults) | given | {"trust": trust}
        results = []
        for _ in range(draws):
            rng = _seed(self._noise_seed, bar.n)
            results.append(solve(solver, self._data, budget=budget, rng=rng, **parameters))
            if budget is not None:
                self._certificates.append(results[-1].privacy)
            bar.update()
        scores = [_score(result, self._X, self._y) for result in results]
        return CompareRow(
            solver=solver,
            trust="-" if budget is None else trust,
            epsilon=math.inf if budget is None else typing.cast(float, budget.epsilon),
            score=statistics.fmean(scores),
            score_sd=_spread(scores),
            gap=statistics.fmean(self._gap(result) for result in results),
            seconds=statistics.fmean(result.timing["total"] for result in results),
        )

    def _gap(self, result: SolverResult) -> float:
        """J(w) - min J on the training data. Not private."""
        parameters = result.parameters
        objective = Objective(
            self._data,
            get_loss((self._defaults | self._given)["loss"]),
            parameters["l2"],
            parameters.get("l1", 0.0),
            parameters["weights"],
            parameters["penalize_intercept"],
            n_threads=None,
            regularizer=self._given.get("regularizer") if "regularizer" in parameters else None,
        )
        if objective not in self._minima:
            self._minima[objective] = objective.minimum()[1]
        return objective.value(result.w) - self._minima[objective]

    def privacy_lines(self, delta: float) -> list[_Line]:
        together = compose_sequential(*self._certificates)
        runs = len(self._certificates)
        lines = [
            ("privacy", "each run alone keeps the epsilon of its row;"),
            ("", f"the {runs} noisy runs read the same training records and compose:"),
            ("", f"together {_epsilon_text(together, delta)}"),
            (
                "",
                "the row without noise, the training objective and its gap are non-private "
                "diagnostics,",
            ),
            ("", "and so is the test score about the test records: compare on data that allow it"),
        ]
        if together.noise != "os":
            lines.append(("noise", together.noise))
        return lines


def _print_table(rows: Sequence[CompareRow], metric: str) -> None:
    table = [("solver", "trust", "epsilon", metric, "gap", "seconds")]
    for row in rows:
        score = f"{row.score:.4f}" + ("" if math.isnan(row.score_sd) else f" +- {row.score_sd:.4f}")
        epsilon = "no noise" if math.isinf(row.epsilon) else f"{row.epsilon:g}"
        gap = f"{round(row.gap, 4) + 0.0:.4f}"  # the minimum is that of L-BFGS: no -0.0000
        cells = (row.solver, row.trust, epsilon, score, gap, f"{row.seconds:.3f}")
        table.append(cells)
    widths = [max(len(cells[i]) for cells in table) for i in range(len(table[0]))]
    for cells in table:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        )


def _plot(rows: Sequence[CompareRow], path: str, metric: str, title: str) -> None:
    try:
        plot_compare(rows, path, metric=metric, title=title)
    except ImportError:
        _print_lines([("plot", "none: matplotlib is missing; pip install 'dpkern[plot]'")])
    else:
        _print_lines([("plot", path)])


# info


def _info(arguments: argparse.Namespace) -> None:
    facts = kernels.info()
    threads = str(facts["n_threads"])
    if not facts["openmp"]:
        threads = "1: built without OpenMP, kernels run serially"
    _print_lines(
        [
            ("dpkern", facts["version"]),
            ("instructions", f"{facts['isa']} (usable here: {', '.join(facts['isas'])})"),
            ("threads", threads),
            ("BLAS", ", ".join(facts["blas"]) or "none loaded"),
            ("solvers", ", ".join(SOLVERS)),
            ("losses", ", ".join(LOSSES)),
        ]
    )


# Output


def _refuse_output(path: str, *inputs: str | None) -> None:
    """Find out that `path` cannot be written, or is a file that is read, before any work."""
    refuse_unwritable(path)
    there = [read for read in (path, *inputs) if read is not None and os.path.exists(read)]
    if path in there and any(os.path.samefile(path, read) for read in there[1:]):
        raise ValueError(f"{path} is read by this command; write to another file")


def _print_lines(lines: Sequence[_Line]) -> None:
    for name, text in lines:
        print(f"{name:<13}  {text}")


def _remark(text: str) -> None:
    """What is not the answer goes to standard error."""
    print(f"dpkern: {text}", file=sys.stderr)
