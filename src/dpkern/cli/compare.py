"""``dpkern compare``: several solvers over several budgets on one split."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkern._numbers import aligned, did_you_mean
from dpkern.cli import _arguments, _data, _output
from dpkern.cli._arguments import Project
from dpkern.cli._comparison import Comparison
from dpkern.cli._output import print_lines
from dpkern.data import SiloData, train_test_split
from dpkern.plotting import CompareRow, plot_compare
from dpkern.privacy import Budget
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import chosen, compared
from dpkern.solvers.base.options import SHARED

HELP = "compare solvers over budgets on one split"
_DRAWS = 5
_LISTED = 8  # solvers in the table, unless all are asked for
_RARE = 0.8  # from which share of the larger class on accuracy hardly tells solvers apart
_PLOT = "dpkern-compare.png"
_TRUST = str(SHARED["trust"].default)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "data",
        metavar="DATA",
        nargs="?",
        help="records (default: the Wisconsin diagnostic set)",
    )
    what = "NAME or NAME:TRUST, separated by commas (default: all for central trust)"
    add("--solvers", type=_arguments.list_of(str), metavar="A,B", help=what)
    add(
        "--epsilons",
        type=_arguments.list_of(float),
        default=[0.5, 1.0, 2.0, 4.0],
        metavar="E,F",
        help="budgets of one run (default: 0.5,1,2,4)",
    )
    add("--delta", type=float, default=1e-5, help="of every run (default: 1e-5)")
    what = "compare under every trust model, and print every row and figure"
    add("--all", action="store_true", help=what)
    runs = f"runs per row (default: {_DRAWS})"
    add("--draws", type=_arguments.count, default=_DRAWS, metavar="R", help=runs)
    add = parser.add_mutually_exclusive_group().add_argument
    add("--test-share", type=float, default=0.2, metavar="SHARE", help="default: 0.2")
    add("--test", metavar="FILE", help="test records, in place of a share")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--plot", default=_PLOT, metavar="FILE.png", help=f"default: {_PLOT}")
    add("--no-plot", action="store_true")
    _arguments.add_data_arguments(parser, silos=4)
    _arguments.add_solver_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    variants = _entries(arguments)
    given = _given(arguments, variants)
    budgets = [Budget(epsilon=epsilon, delta=arguments.delta) for epsilon in arguments.epsilons]
    if not arguments.no_plot:
        _output.refuse_picture(
            arguments.plot,
            *(arguments.data, arguments.test, arguments.feature_range, arguments.schema),
        )

    if arguments.data is not None:
        Project.read().ledger_for(None, needed=False)
    source = _data.read_source(arguments)
    data, test, split = _held_out(source, arguments)
    if data.task == "multiclass":
        raise ValueError(
            "compare must have two classes or a regression, got several classes or times to an "
            "event: fit has models for them"
        )
    comparison = Comparison(data, test, given, arguments)
    plan = comparison.plan(variants, budgets)

    stated = [f"{name} {_output.shown(value)}" for name, value in comparison.common.items()]
    print_lines(
        [
            *_data.data_lines(source, data, arguments),
            ("test", split),
            ("parameters", f"{', '.join(stated)}; else the solvers' own (dpkern info SOLVER)"),
            ("draws", f"{comparison.draws} runs per row, each with fresh noise"),
        ]
    )
    judged = _judged(data.task, test[1])
    if judged.by_area and judged.majority is not None:
        share = f"as the larger class has {100.0 * judged.majority:.0f} % of the test records"
        why = f"area under the ROC curve (AUC), {share}: accuracy hardly tells solvers apart"
        print_lines([("score", why)])
    try:
        comparison.run(plan)
    finally:
        # Finished rows have spent their budget, and are printed even if the rest fails.
        if comparison.rows:
            print()
            if arguments.all:
                _print_table(comparison.rows, _output.metric(data.task), judged.majority)
            else:
                _print_summary(judged.rows(comparison.rows), judged)
        print()
        print_lines(comparison.privacy_lines())
    if comparison.failures:
        failed = len(comparison.failures)
        raise ValueError(f"{failed} of the solvers failed: {comparison.failures[0]}")
    rows = judged.rows(comparison.rows)
    if not arguments.no_plot:
        _draw(rows, judged, arguments, f"{source.name}, {split}")
    print_lines([("answer", _answer(rows, judged))])


def _entries(arguments: argparse.Namespace) -> dict[str, list[tuple[str, str]]]:
    """Return (solver, trust) of every entry that is asked for, else of all that are compared."""
    entries = arguments.solvers or compared(SOLVERS)
    variants = {entry: _variants(entry) for entry in entries}
    if arguments.all or arguments.solvers:
        return variants
    return {name: [(name, _TRUST)] for name in entries if (name, _TRUST) in variants[name]}


def _given(
    arguments: argparse.Namespace, variants: dict[str, list[tuple[str, str]]]
) -> dict[str, Any]:
    """Return the parameters that are set for all solvers which have them."""
    solvers = dict.fromkeys(solver for pairs in variants.values() for solver, _ in pairs)
    known = dict.fromkeys(name for solver in solvers for name in _arguments.settable(solver))
    if any(item.partition("=")[0] == "trust" for item in arguments.set):
        raise ValueError("trust cannot be set here; name it as in --solvers gradient_descent:silo")
    return _arguments.given_parameters(arguments, known, "these solvers")


def _variants(entry: str) -> list[tuple[str, str]]:
    """(solver, trust) of NAME:TRUST; of NAME every trust that is offered, but for "shuffle".

    Its coins take far more time than Gaussian noise.
    """
    name, colon, trust = entry.partition(":")
    if name not in SOLVERS:
        close = did_you_mean(name, SOLVERS) or f"; choose from {', '.join(SOLVERS)}"
        raise ValueError(f"--solvers: there is no {name!r}{close}")
    offered = SOLVERS[name].declaration.trusts
    if colon and trust not in offered:
        known = " or ".join(offered)
        raise ValueError(f"--solvers: trust of {name} must be {known}, got {trust!r}")
    return [(name, trust)] if colon else [(name, t) for t in offered if t != "shuffle"]


def _held_out(
    source: _data.Source, arguments: argparse.Namespace
) -> tuple[SiloData, tuple[Any, Any], str]:
    """Return training data, test records, and a line that describes the split."""
    table = source.table
    if arguments.test is not None:
        data = _data.silo_data(source, None, arguments)
        test = _data.read_test(arguments, table, data)
        return data, test, f"{len(test[1])} records of {Path(arguments.test).name}"
    numbers = np.arange(len(table.y))
    rows, _, held_out, _ = train_test_split(
        numbers, numbers, test_fraction=arguments.test_share, seed=arguments.seed
    )
    data = _data.silo_data(source, rows, arguments)
    test = table.X[held_out], table.y[held_out]
    if not _data.labels_fit(test[1], data.classes):
        raise ValueError("the training part lacks a label that the test part has")
    text = f"{len(test[1])} of {len(numbers)} records held out at random (seed {arguments.seed})"
    return data, test, text


@dataclass(frozen=True)
class _Judged:
    """The score that solvers are judged by."""

    name: str
    level: tuple[str, float] | None  #: what no feature gives; None where less is better
    by_area: bool = False
    majority: float | None = None  #: share of the largest class of the test records

    def rows(self, rows: Sequence[CompareRow]) -> list[CompareRow]:
        """Return the rows with that score."""
        if not self.by_area:
            return list(rows)
        return [
            replace(row, score=row.area, score_se=row.area_se)
            for row in rows
            if row.area is not None
        ]


def _judged(task: str, labels: Any) -> _Judged:
    """Return the score of a task, which is the area where accuracy hardly tells solvers apart."""
    title = f"test {_output.metric(task)}"
    if task == "regression":
        return _Judged(title, None)
    majority = float(np.unique(labels, return_counts=True)[1].max() / len(labels))
    if not _RARE < majority < 1.0:
        return _Judged(title, ("majority class", majority), majority=majority)
    return _Judged("test AUC", ("chance", 0.5), by_area=True, majority=majority)


def _print_summary(rows: Sequence[CompareRow], judged: _Judged) -> None:
    """Print a line for each of the best solvers and the default one, and a column per budget."""
    exact, noisy = _split(rows)
    scores = {(row.solver, row.trust, row.epsilon): _score_text(row) for row in noisy}
    epsilons = sorted({row.epsilon for row in noisy})
    table = [("solver", "trust", *(f"epsilon {epsilon:g}" for epsilon in epsilons))]
    kept = _ranked(rows, judged, _LISTED)
    for name, trust in kept:
        table.append((name, trust, *(scores.get((name, trust, e), "-") for e in epsilons)))
    table += [("no privacy", "-", *[_score_text(row)] * len(epsilons)) for row in exact]
    if judged.level is not None:
        name, level = judged.level
        table.append((name, "-", *[f"{level:.4f}"] * len(epsilons)))
    print("\n".join(aligned(table)))
    others = len(_ranked(rows, judged, None)) - len(kept)
    more = f"; {others} solvers more by --all" if others else ""
    print(f"({judged.name}, mean +- its standard error over the draws{more})")


def _split(rows: Sequence[CompareRow]) -> tuple[list[CompareRow], list[CompareRow]]:
    """Return the rows without noise, and those with it."""
    exact = [row for row in rows if math.isinf(row.epsilon)]
    return exact, [row for row in rows if not math.isinf(row.epsilon)]


def _defaults(rows: Sequence[CompareRow]) -> list[tuple[str, str]]:
    """Return the solver that "auto" is under every trust model of some rows."""
    trusts = dict.fromkeys(row.trust for row in _split(rows)[1])
    return [(chosen(trust), trust) for trust in trusts]


def _asked(noisy: Sequence[CompareRow]) -> float:
    """Return the budget that the answer is about: the one nearest to 1."""
    return min((row.epsilon for row in noisy), key=lambda epsilon: abs(math.log(epsilon)))


def _ranked(rows: Sequence[CompareRow], judged: _Judged, most: int | None) -> list[tuple[str, str]]:
    """Return at most so many solvers and trust models, the default ones among them.

    The best at the budget of the answer is the first.
    """
    noisy = _split(rows)[1]
    epsilon = _asked(noisy) if noisy else 1.0
    here = [row for row in noisy if row.epsilon == epsilon]
    here.sort(key=lambda row: -row.score if judged.level is not None else row.score)
    names, defaults = [(row.solver, row.trust) for row in here], _defaults(rows)
    kept = sorted(names, key=lambda pair: pair not in defaults)[:most]
    return [pair for pair in names if pair in kept]


def _drawn(rows: Sequence[CompareRow], judged: _Judged, most: int | None) -> list[CompareRow]:
    """Return the rows of a picture, in the order of the table."""
    exact, noisy = _split(rows)
    kept = _ranked(rows, judged, most)
    noisy = [row for row in noisy if (row.solver, row.trust) in kept]
    return exact + sorted(noisy, key=lambda row: kept.index((row.solver, row.trust)))


def _draw(
    rows: Sequence[CompareRow], judged: _Judged, arguments: argparse.Namespace, title: str
) -> None:
    """Draw the rows, and print where."""
    try:
        plot_compare(
            _drawn(rows, judged, None if arguments.all else _LISTED),
            arguments.plot,
            metric=judged.name,
            title=title,
            level=judged.level,
            defaults=_defaults(rows),
        )
    except ImportError:
        drawn = "none: matplotlib is missing; pip install 'dpkern[plot]'"
    else:
        drawn = arguments.plot
    print_lines([("plot", drawn)])


def _answer(rows: Sequence[CompareRow], judged: _Judged) -> str:
    """Return the solver to take, and what privacy costs with it at the budget nearest to 1."""
    (exact, *_), noisy = _split(rows)
    epsilon, sign = _asked(noisy), 1.0 if judged.level is not None else -1.0
    here = {(row.solver, row.trust): row for row in noisy if row.epsilon == epsilon}
    best = max(here.values(), key=lambda row: sign * row.score)
    default = next((here[pair] for pair in _defaults(rows) if pair in here), best)
    known = (0.0 if math.isnan(row.score_se) else row.score_se for row in (best, default))
    if sign * (best.score - default.score) <= 3.0 * math.hypot(*known):
        best = default  # others are as good, to the noise of the draws
    name = best.solver if best.trust == _TRUST else f"{best.solver} under {best.trust} trust"
    figures = f"{judged.name} {best.score:.3g} in place of {exact.score:.3g}"
    if judged.level is None:
        return f"{name}; at epsilon {epsilon:g} it has the {figures} without privacy"
    if best.score <= judged.level[1]:
        than = "chance" if judged.by_area else "the larger class"
        return (
            f"none; at epsilon {epsilon:g} no solver is better than {than}: take more "
            "records or a larger epsilon"
        )
    points = 100.0 * (exact.score - best.score)
    cost = f"costs {points:.1f} points" if points >= 0.05 else "costs nothing that shows"
    return f"{name}; at epsilon {epsilon:g} it {cost} against no privacy ({figures})"


def _score_text(row: CompareRow) -> str:
    return f"{row.score:.4f}" + ("" if math.isnan(row.score_se) else f" +- {row.score_se:.4f}")


def _print_table(rows: Sequence[CompareRow], metric: str, majority: float | None) -> None:
    """Print a line for each row, and one for the largest class of the test records."""
    table: list[tuple[str, ...]] = [
        ("solver", "trust", "epsilon", f"test {metric}", "AUC", "log loss", "gap", "seconds")
    ]
    for row in rows:
        epsilon = "no noise" if math.isinf(row.epsilon) else f"{row.epsilon:g}"
        gap = f"{round(row.gap, 4) + 0.0:.4f}"  # avoids -0.0000
        more = ["-" if value is None else f"{value:.4f}" for value in (row.area, row.log_loss)]
        table.append(
            (row.solver, row.trust, epsilon, _score_text(row), *more, gap, f"{row.seconds:.3f}")
        )
    if majority is not None:
        table.append(("majority class", "-", "-", f"{majority:.4f}", *"----"))
    # Numbers have neither area nor log loss.
    columns = range(8) if majority is not None else (0, 1, 2, 3, 6, 7)
    print("\n".join(aligned([[cells[k] for k in columns] for cells in table])))
