"""``dpkern fit``: one solver on one file."""

import argparse
import math
import shutil
import statistics
import sys
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkern._numbers import fold
from dpkern.cli import _arguments, _data, _federated, _output
from dpkern.cli._arguments import Project
from dpkern.cli._output import Line, print_lines
from dpkern.cli.info import option_text
from dpkern.data import SiloData
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.losses import LOSS_OF_TASK
from dpkern.models.networks import MLP
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.models.terms import Penalty
from dpkern.privacy import Budget, compose_sequential
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers import SOLVERS, SolverResult, solve
from dpkern.solvers.base.automatic import chosen, named_solver
from dpkern.solvers.base.coefficients import LISTED, coefficients, has_coefficients
from dpkern.solvers.base.options import SHARED

HELP = "fit a model with one solver and print its certificate"
# The part of its first norm up to which a gradient without noise counts as none.
_CLOSE = 1e-4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", nargs="?", help="training records: LIBSVM, CSV or .npz")
    auto = _arguments.AUTO
    which = f"{', '.join(SOLVERS)} (default: {auto}, that of the trust model and the task)"
    add("--solver", default=auto, choices=(auto, *SOLVERS), metavar="NAME", help=which)
    add("--epsilon", type=float, help="budget; inf means no noise and no guarantee")
    add("--delta", type=float, help="budget, with --epsilon")
    add("--no-privacy", action="store_true", help="the same as --epsilon inf: the usual fit")
    add("--ledger", metavar="FILE", help="accountant's file that is charged (dpkern ledger)")
    add("--inference", action="store_true", help="standard errors, intervals and p-values")
    add("--plot", metavar="FILE.png", help="forest plot of the estimates of --inference")
    add("--trust", help=f"trust model: central, silo, ... (default: {SHARED['trust'].default})")
    add("--test", metavar="FILE", help="labelled records to score the model on")
    add("--out", metavar="MODEL.npz", help="where to save the model")
    what = "where to save the certificate, that of all draws together, which verify reads"
    add("--certificate", metavar="FILE.json", help=what)
    _arguments.add_project(parser)
    runs = "runs with fresh noise (default: 1)"
    add("--draws", type=_arguments.count, default=1, metavar="R", help=runs)
    _arguments.add_data_arguments(parser, silos=1)
    _arguments.add_solver_arguments(parser, ordered=True)
    _arguments.add_mean_range(parser)
    _arguments.add_federated_arguments(parser)
    add = parser.add_argument_group("perceptron, in place of a linear model").add_argument
    sizes = "sizes of the hidden layers; with several classes and without it, softmax regression"
    add("--hidden", type=_arguments.list_of(_arguments.count), metavar="N,N", help=sizes)
    add("--hidden-activation", choices=("relu", "tanh"), help="default: relu")


def describe_solver(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """List the options of the solver that is named in `argv` below those of the command."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--solver", nargs="?")
    chosen = named.parse_known_args(argv)[0].solver
    if chosen in SOLVERS:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = fold(option_text(chosen), shutil.get_terminal_size().columns)


def run(arguments: argparse.Namespace) -> None:
    budget, solver, project = _budget(arguments), arguments.solver, Project.read()
    texts = project.texts_for(arguments.about)
    given = _arguments.given_parameters(arguments, _arguments.settable(solver), solver)
    if (loss := _arguments.with_mean_range(arguments, given.get("loss"))) is not None:
        given["loss"] = loss
    read = (arguments.data, arguments.test, arguments.feature_range, arguments.schema)
    for path in filter(None, (arguments.out, arguments.certificate)):
        _output.refuse_output(path, *read)
    _output.refuse_same(arguments)
    if arguments.plot is not None:
        if not arguments.inference:
            raise _arguments.UsageError("--plot needs --inference, whose estimates it shows")
        if arguments.plan is not None:
            raise _arguments.UsageError("--plot must be left out with --plan, which fits nothing")
        _output.refuse_picture(arguments.plot, *read)
    _output.refuse_existing(arguments.out)
    if arguments.federation is not None:
        return _federated_fit(arguments, given, budget, project)
    _arguments.refuse_federated(arguments)
    ledger = project.ledger_for(arguments.ledger, needed=budget is not None)
    source = _data.read_source(arguments)
    data = _data.silo_data(source, None, arguments)
    lines = [*project.lines, *_data.data_lines(source, data, arguments)]
    test = None
    if arguments.test is not None:
        test = _data.read_test(arguments, source.table, data)
        lines.append(("test", f"{Path(arguments.test).name}, {len(test[1])} records"))
    parameters = _with_model(given, arguments, data)
    draws = arguments.draws
    if budget is None and draws > 1:
        draws = 1
        _output.remark("one run in place of several draws: without noise they are all the same")

    accountant = None if ledger is None else Accountant(ledger)
    if budget is not None and arguments.out is None:
        _output.remark(
            "no --out was given: the model is not kept, and fitting it again costs again"
        )
    parameters |= {"budget": budget, "progress": sys.stderr.isatty()}
    parameters |= {"inference": True} if arguments.inference else {}
    if accountant is not None:
        parameters["accountant"] = accountant
    results = _draws(solver, data, parameters, texts, draws, arguments.noise_seed)
    first, together = results[0], results[0].privacy
    if budget is not None and draws > 1:
        together = compose_sequential(*(result.privacy for result in results))
        spent = _output.epsilon_text(together, typing.cast(float, budget.delta))
        note = f"the first of {draws} draws on the same data, which compose to {spent}"
        first = replace(first, privacy=replace(first.privacy, notes=(*first.privacy.notes, note)))
    which = f" (the first of the {draws} draws)" if draws > 1 else ""
    saved = _output.saved(arguments, first, together, which)
    lines += _result_lines(first, given.get("penalty"), arguments)
    if test is not None:
        lines += _score_lines([_output.scores(result, *test) for result in results])
    lines += [*saved, *_picture_lines(arguments, first, which)]
    if draws > 1:
        lines.append(("privacy", f"{draws} draws read the same data and compose: {spent}"))
        lines.append(("", "the certificate below is that of all of them together"))
    if first.privacy.neighbours == "add_remove":
        lines.append(("", "numbers of records and seconds above are the data's own: keep them"))
    if budget is None:
        lines.append(("privacy", "NONE: this run added no noise and guarantees nothing"))
        lines += _distance_lines(first)
    if accountant is not None:
        lines.append(("ledger", _output.ledger_text(accountant)))
    print_lines(lines)
    _output.say_certificate(together)


def _distance_lines(result: SolverResult) -> list[Line]:
    """Return what a run without noise is short of, by the norms of its gradients."""
    norms = result.history.get("gradient_norm", [])
    if result.inference is not None or len(norms) < 2 or norms[-1] <= _CLOSE * norms[0]:
        return []
    fell = f"the gradient's norm fell from {norms[0]:.2g} to {norms[-1]:.2g}"
    return [("", f"{fell}: --rounds {10 * len(norms)} comes nearer to the minimiser")]


def _draws(
    solver: str,
    data: SiloData,
    parameters: dict[str, Any],
    texts: dict[str, str],
    draws: int,
    seed: int | None,
) -> list[SolverResult]:
    """Return runs with fresh noise; what was released before an error is a note on it."""
    results: list[SolverResult] = []
    try:
        for r in range(draws):
            rng = None if seed is None else seed + r
            results.append(solve(solver, data, rng=rng, **parameters).with_names(**texts))
    except BaseException as error:
        if results:
            error.add_note(f"released before that: all of {len(results)} finished draws")
        raise
    return results


def _federated_fit(
    arguments: argparse.Namespace,
    given: dict[str, Any],
    budget: Budget | None,
    project: Project,
) -> None:
    """Fit over the silos of a study, which hold the records and charge their accountants."""
    if arguments.draws > 1:
        raise ValueError("--draws must be 1 with --federation: a study is one run")
    study = _federated.study(arguments)
    texts = project.texts_for(arguments.about, study=study.name)
    lines = [*project.lines, *_federated.study_lines(study)]
    parameters, solver = _with_model(given, arguments, study.described), arguments.solver
    if arguments.inference:
        asked = {"inference": True, "trust": study.trust, **parameters}
        solver = named_solver(SOLVERS, solver, study.described, asked)[0].declaration.name
    solver = chosen(study.trust, parameters.get("model")) if solver == "auto" else solver
    if arguments.plan is not None:
        return _federated.propose(study, arguments.plan, solver, budget, parameters)
    _federated.rehearse(study, solver, budget, parameters)
    silos = _federated.federation(study, arguments)
    result = solve(
        solver,
        silos,
        budget=budget,
        progress=sys.stderr.isatty(),
        **parameters,
    ).with_names(**texts)
    lines += _result_lines(result, given.get("penalty"), arguments)
    lines += [*_output.saved(arguments, result, result.privacy), *_picture_lines(arguments, result)]
    print_lines(lines)
    _output.say_certificate(result.privacy)
    _federated.finish(silos)


def _with_model(
    given: dict[str, Any], arguments: argparse.Namespace, data: SiloData
) -> dict[str, Any]:
    """Return the parameters with the model of the options and the target, or a loss."""
    hidden, activation = arguments.hidden, arguments.hidden_activation
    if hidden is None and activation is not None:
        raise ValueError("--hidden-activation needs --hidden, the sizes of the hidden layers")
    edges = None if data.schema is None else data.schema.intervals
    if (ordered := _arguments.ORDERED.get(given.get("loss", ""))) is not None:
        if edges is not None or hidden is not None:
            what = "--hidden" if edges is None else "times to an event"
            raise ValueError(f"--loss must be another than {given['loss']} with {what}")
        given = {name: value for name, value in given.items() if name != "loss"}
        return {"model": ordered(), **given}
    if edges is not None:
        if hidden is not None:
            raise ValueError("--hidden must be left out for times to an event, which have hazards")
        given = {"loss": "cloglog", **given}
        return {"model": DiscreteHazards(edges, given.pop("loss")), **given}
    if hidden is None and data.task != "multiclass":
        return {"loss": LOSS_OF_TASK[data.task], **given}
    loss = given.get("loss", "softmax" if data.task != "regression" else LOSS_OF_TASK[data.task])
    model = MLP(hidden or (), activation or "relu", loss)
    return {name: value for name, value in given.items() if name != "loss"} | {"model": model}


def _budget(arguments: argparse.Namespace) -> Budget | None:
    epsilon, delta = arguments.epsilon, arguments.delta
    if arguments.no_privacy:
        if epsilon is not None and epsilon != math.inf:
            raise ValueError("--no-privacy and a finite --epsilon exclude each other")
        return None
    if epsilon is None:
        raise ValueError("give a budget with --epsilon and --delta, or say --no-privacy")
    if epsilon == math.inf:
        return None
    if delta is None:
        raise ValueError("--epsilon needs --delta, well below 1 / (number of records)")
    return Budget(epsilon=epsilon, delta=delta)


def _result_lines(
    result: SolverResult, penalty: Penalty | None, arguments: argparse.Namespace
) -> list[Line]:
    values = {**result.parameters, "penalty": penalty}
    names = ["clip", "l2", "l1", "penalty", "weights", *SOLVERS[result.solver].declaration.own]
    stated = [f"{k} {_output.shown(values[k])}" for k in names if values[k] is not None]
    ended, _, finding = result.message.partition("; ")
    return [
        ("solver", f"{result.solver}, {_model_text(result)}"),
        ("", ", ".join(stated)),
        ("result", f"{ended} in {result.timing['total']:.3g} s"),
        *([("", _arguments.in_options(finding, arguments))] if finding else []),
        *_coefficient_lines(result),
    ]


def _picture_lines(
    arguments: argparse.Namespace, result: SolverResult, which: str = ""
) -> list[Line]:
    """Draw the forest plot that is asked for, where there is an interval to draw."""
    if arguments.plot is None:
        return []
    summary = result.summary()
    if not summary.has_intervals:
        return [("picture", "none was drawn: no coefficient has an interval")]
    try:
        summary.plot(arguments.plot)
    except ImportError:
        return [("picture", "none was drawn: matplotlib is missing; pip install 'dpkern[plot]'")]
    return [("picture", f"{arguments.plot}{which}")]


def _coefficient_lines(result: SolverResult) -> list[Line]:
    if result.inference is not None:
        head, *rest = str(result.summary()).split("\n")
        return [("estimates", head), *(("", line) for line in rest)]
    if not has_coefficients(result.oracle):
        return [("", f"|coef| {np.linalg.norm(result.coef):.4g}")]
    table = coefficients(result, LISTED)
    head, *rest = table.lines()
    return [("coefficients", head), *(("", line) for line in rest), ("", table.note)]


def _model_text(result: SolverResult) -> str:
    if isinstance(result.oracle, DiscreteHazards):
        return f"hazards of {result.oracle.intervals} intervals, link {result.oracle.link}"
    if isinstance(result.oracle, CumulativeLogit):
        return "ordered classes, the likelihood of the cumulative logit"
    if isinstance(result.oracle, AllThreshold):
        return "ordered classes, a logistic loss at each threshold"
    if not isinstance(result.oracle, MLP):
        return f"{result.loss} loss"
    sizes = ", ".join(map(str, result.oracle.hidden))
    hidden = f"hidden layers {sizes} ({result.oracle.activation})" if sizes else "no hidden layer"
    return f"perceptron with {hidden}, {result.oracle.loss} loss"


def _score_lines(scores: list[dict[str, float]]) -> list[Line]:
    lines = []
    for name in scores[0]:
        values = [found[name] for found in scores]
        text = f"{statistics.fmean(values):.4f}"
        if len(values) > 1:
            deviation, draws = _output.spread(values), len(values)
            text += f" +- {deviation:.4f} (mean and standard deviation of {draws} draws)"
        lines.append((f"test {name}", text))
    return [*lines, ("", _output.EXACT_SCORE)]
