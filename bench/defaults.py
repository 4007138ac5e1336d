"""Whether the defaults of every solver get better with more records and more budget.

    python -m bench.defaults [--solvers A,B] [--designs A,B] [--tasks A,B] [--columns 8,50]
        [--records 1000,10000] [--epsilons 1,10] [--l2 0,0.1] [--draws N] [--small]
        [--out DIR] [--page FILE.md]

Synthetic records whose ranges are declared, and default settings but for the named l2. Every cell
is one line of JSON in --out, and one that is there is not computed again; after a change of the
rules the folder is deleted. Without options the whole grid is computed, small numbers of records
first, which takes many hours: all cells in which n mu is at least 150, up to 800 000 entries of a
design, and up to 8 000 000 without a penalty and from epsilon 1 on, where time is long and the
minimum is near. --small is the grid that the page of a change is made of. Where there are more than
25 000 records draws are fewer, as they differ by less: 200 000 over the records, and two at least.
Then the cells of --out that break a requirement are found:

1. more records, or more budget, make the mean score worse (z > 3, by Holm's correction over all
   pairs that are compared), and worse than that of the exact minimiser of the same objective on all
   records, where n mu >= 150 in both cells;
2. a score below that of the trivial predictor: R2 < -0.02 for n mu >= 150 and n mu >= 30 T / sd(y),
   accuracy below that of the larger class by more than a point beyond three standard errors, log
   loss above that of the rate by more than 0.01 beyond three standard errors.

Draws of a cell share their records and the coefficients behind them, of which some are luckier than
others. So what is found is measured again in up to 64 draws, each of a problem of its own, with the
same problems in all cells of a design, and listed if it is found again.
"""

import argparse
import functools
import itertools
import json
import math
import operator
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from bench.utility_text import table, wrapped
from dpkern import Budget, SiloData, solve_many
from dpkern.models.losses import get_loss
from dpkern.solvers import SOLVERS, Objective
from dpkern.solvers.base.automatic import compared
from dpkern.solvers.base.calibration import Calibration

FloatArray = NDArray[np.float64]

DELTA = 1e-6
LEAST = 150.0  # the least n mu from which requirements hold
_TEST = 20_000
_RECORDS = (1_000, 10_000, 100_000, 1_000_000)
_EPSILONS = (0.1, 1.0, 10.0)
_COLUMNS = (1, 8, 50, 200)
_L2 = (0.0, 1e-3, 1e-1)
# Entries of a design up to which there are cells of every l2 and epsilon, and of those without a
# penalty and with this least epsilon.
_LARGE, _LARGEST, _EPSILON_OF_LARGE = 800_000, 8_000_000, 1.0
_RECORDS_OF_DRAWS = 200_000
# Draws, each of a problem of its own, of what is measured again, and of how many records together.
_AGAIN, _RECORDS_OF_AGAIN = 64, 4_000_000


def _uniform(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return rng.uniform(-1.0, 1.0, (n, d))


def _skewed(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return np.minimum(rng.gamma(3.0, 1.0, (n, d)), 30.0) / 15.0 - 1.0


def _correlated(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    shared = rng.standard_normal((n, 1))
    return np.clip((0.9 * shared + math.sqrt(0.19) * rng.standard_normal((n, d))) / 4.0, -1.0, 1.0)


def _off_centre(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    return rng.uniform(0.6, 1.0, (n, d))


def _one_hot(rng: np.random.Generator, n: int, d: int) -> FloatArray:
    """Indicators of up to ten levels each, the rarest of one record in several hundred."""
    X, first = np.zeros((n, d)), 0
    while first < d:
        levels = min(10, d - first)
        shares = 2.0 ** -np.arange(levels)
        drawn = rng.choice(levels, n, p=shares / shares.sum())
        X[np.arange(n), first + drawn] = 1.0
        first += levels
    return X


_Draw = Callable[[np.random.Generator, int, int], FloatArray]
DESIGNS: dict[str, _Draw] = {
    "uniform": _uniform,
    "skewed": _skewed,
    "correlated": _correlated,
    "off_centre": _off_centre,
    "one_hot": _one_hot,
}
TASKS = ("balanced", "rare", "regression", "offset", "weak")
_REGRESSIONS = ("regression", "offset", "weak")
# The bound of targets is six of their deviations; the correlation of targets and their means.
_DEVIATION, _SIGNAL, _WEAK_SIGNAL, _MIDDLE = 1.0 / 6.0, 0.9, 0.3, 0.5


@dataclass(frozen=True)
class Problem:
    """Training records, of which smaller cells take the first, and test records."""

    X: FloatArray
    y: FloatArray
    X_test: FloatArray
    y_test: FloatArray
    row_bound: float

    def data(self, task: str, n: int) -> SiloData:
        options: dict[str, Any] = {"row_bound": self.row_bound, "intercept": True}
        if task in _REGRESSIONS:
            options |= {"task": "regression", "target_bound": 1.0}
        else:
            options |= {"task": "classification", "classes": (-1.0, 1.0)}
        return SiloData(self.X[:n], self.y[:n], [0, n], **options)

    def scores(
        self, task: str, W: FloatArray, lines: Sequence[Calibration | None] = ()
    ) -> dict[str, list[float]]:
        """Return the test scores of every row of W, whose margins have these lines of log odds."""
        Z = self.X_test @ W[:, :-1].T + W[:, -1]
        for k, line in enumerate(lines):
            if line is not None:
                Z[:, k] = line.apply(Z[:, k])
        y = self.y_test[:, np.newaxis]
        if task in _REGRESSIONS:
            return {"R2": (1.0 - np.mean((y - Z) ** 2, axis=0) / np.var(y)).tolist()}
        ranks = scipy.stats.rankdata(Z, axis=0)
        positive = self.y_test > 0.0
        n1, n0 = int(positive.sum()), int((~positive).sum())
        area = (ranks[positive].sum(axis=0) - n1 * (n1 + 1) / 2) / (n1 * n0)
        return {
            "accuracy": np.mean((Z > 0.0) == positive[:, np.newaxis], axis=0).tolist(),
            "AUC": area.tolist(),
            "log loss": np.mean(np.logaddexp(0.0, -y * Z), axis=0).tolist(),
        }


@functools.lru_cache(maxsize=1)
def problem(design: str, task: str, d: int, n: int, *draw: int) -> Problem:
    """Draw records of a design and their targets, of a linear or logistic model."""
    seed = " ".join(map(str, (design, task, d, *draw)))
    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    w = rng.standard_normal(d)
    X_test = DESIGNS[design](rng, _TEST, d)
    z = X_test @ w
    middle, deviation = float(z.mean()), float(z.std()) or 1.0

    def targets(X: FloatArray) -> FloatArray:
        z = (X @ w - middle) / deviation
        if task in _REGRESSIONS:
            signal = _WEAK_SIGNAL if task == "weak" else _SIGNAL
            noise = math.sqrt(1.0 - signal**2) * rng.standard_normal(len(X))
            y = _DEVIATION * (signal * z + noise) + (0.0 if task == "regression" else _MIDDLE)
            return np.clip(y, -1.0, 1.0)
        rate = {"balanced": 0.5, "unbalanced": 0.11}.get(task, 0.05)
        # Logits of a normal law with deviation 2 have this mean for the stated rate.
        logits = 2.0 * z + math.log(rate / (1.0 - rate)) * math.sqrt(1.0 + 4.0 * math.pi / 8.0)
        return np.where(rng.random(len(X)) < scipy.special.expit(logits), 1.0, -1.0)

    y_test = targets(X_test)
    X = DESIGNS[design](rng, n, d)
    groups = math.ceil(d / 10)
    bound = math.sqrt((groups if design == "one_hot" else d) + 1.0)
    return Problem(X, targets(X), X_test, y_test, bound)


@functools.cache
def minimiser_scores(
    design: str, task: str, d: int, l2: float, n: int, *draw: int
) -> dict[str, list[float]]:
    """Return the test scores of the exact minimiser on n records."""
    found = problem(design, task, d, n, *draw)
    loss = get_loss("squared" if task in _REGRESSIONS else "logistic")
    w, _ = Objective(found.data(task, n), loss, l2=l2).minimum()
    return found.scores(task, w[np.newaxis])


@functools.cache
def _mu(epsilon: float) -> float:
    return Budget(epsilon=epsilon, delta=DELTA).mu


@dataclass(frozen=True)
class Cell:
    """One mean of the grid."""

    design: str
    task: str
    d: int
    l2: float
    solver: str
    n: int
    epsilon: float

    def __str__(self) -> str:
        place = f"{self.design}, {self.task}, d {self.d}, l2 {self.l2:g}"
        return f"`{self.solver}`, {place}, n {self.n:g}, epsilon {self.epsilon:g}"

    @property
    def place(self) -> tuple[str, str, int]:
        """Of cells with the same records."""
        return self.design, self.task, self.d

    @property
    def power(self) -> float:
        """n times mu."""
        return self.n * _mu(self.epsilon)

    def row(self, draws: int, largest: int) -> dict[str, Any]:
        """Return test scores of draws with the same records, the first of the largest cell's.

        Beside them those of the minimiser of the objective on all of these records, and public
        facts of the test records: the larger class and its log loss, or T / sd(y).
        """
        return {"scores": self._scores(draws, largest)} | self._facts(largest)

    def row_of_problems(self, draws: int) -> dict[str, Any]:
        """Return the same of draws that have a problem of their own each, facts in their means."""
        scores, facts = [], []
        for k in range(draws):
            scores.append(self._scores(1, self.n, k))
            facts.append(self._facts(self.n, k))
        row: dict[str, Any] = {"scores": {name: [s[name][0] for s in scores] for name in scores[0]}}
        for kind in facts[0]:
            names = facts[0][kind]
            row[kind] = {name: float(np.mean([f[kind][name] for f in facts])) for name in names}
        return row

    def _scores(self, draws: int, largest: int, *draw: int) -> dict[str, list[float]]:
        found = problem(*self.place, largest, *draw)
        loss = "squared" if self.task in _REGRESSIONS else "logistic"
        arguments: dict[str, Any] = {} if self.solver in ("auto", "ridge") else {"loss": loss}
        results = solve_many(
            self.solver,
            found.data(self.task, self.n),
            budgets=Budget(epsilon=self.epsilon, delta=DELTA),
            draws=draws,
            rng=zlib.crc32(repr(self).encode()) + sum(draw),
            l2=self.l2,
            **arguments,
        )
        lines = [result.calibration for result in results]
        return found.scores(self.task, np.array([result.w for result in results]), lines)

    def _facts(self, largest: int, *draw: int) -> dict[str, dict[str, float]]:
        scores = minimiser_scores(*self.place, self.l2, largest, *draw)
        exact = {name: values[0] for name, values in scores.items()}
        y = problem(*self.place, largest, *draw).y_test
        if self.task in _REGRESSIONS:
            return {"trivial": {"spread": float(1.0 / y.std())}, "exact": exact}
        rate = float(np.mean(y > 0.0))
        entropy = -rate * math.log(rate) - (1.0 - rate) * math.log(1.0 - rate)
        trivial = {"larger class": max(rate, 1.0 - rate), "rate's log loss": entropy}
        return {"trivial": trivial, "exact": exact}


def _moments(scores: list[float]) -> tuple[float, float]:
    """Return mean and standard error."""
    a = np.asarray(scores)
    return float(a.mean()), float(a.std(ddof=1) / math.sqrt(len(a)))


def _error_of_difference(scores: list[float], others: list[float]) -> float:
    """Return the standard error of the difference of means, in pairs as draws share problems."""
    if len(scores) == len(others):
        return _moments([a - b for a, b in zip(scores, others, strict=True)])[1]
    return math.hypot(_moments(scores)[1], _moments(others)[1])


_Rows = dict[Cell, dict[str, Any]]
_SCORE = {"balanced": "accuracy", "rare": "AUC"} | dict.fromkeys(_REGRESSIONS, "R2")


def worse_with_more(rows: _Rows) -> Iterator[tuple[float, str, list[Cell]]]:
    """Yield z and a sentence for neighbouring cells with more records, or more budget."""
    for name in ("n", "epsilon"):
        by_others: dict[Cell, list[Cell]] = {}
        for cell in sorted(rows, key=operator.attrgetter(name)):
            if cell.power >= LEAST:
                by_others.setdefault(replace(cell, **{name: 0}), []).append(cell)
        pairs = map(itertools.pairwise, by_others.values())
        for cell, other in itertools.chain.from_iterable(pairs):
            score = _SCORE[cell.task]
            lists = [rows[c]["scores"][score] for c in (cell, other)]
            a, b = (_moments(scores)[0] for scores in lists)
            # Records are the same in all draws: what differs by them is no noise of draws.
            error = math.hypot(_error_of_difference(*lists), 0.002)
            text = f"{cell}: {score} {a:.3f}, and {b:.3f} with {name} {getattr(other, name):g}"
            yield (min(a, rows[other]["exact"][score]) - b) / error, text, [cell, other]


_Found = tuple[str, list[Cell]]


def against(rows: _Rows) -> list[_Found]:
    """Return a sentence for every requirement that is broken, and the cells that break it."""
    found = sorted(worse_with_more(rows), key=operator.itemgetter(0), reverse=True)
    broken: list[_Found] = []
    for i, (z, text, pair) in enumerate(found):  # Holm: the i-th largest of m has m - i tests
        bound = max(3.0, float(scipy.special.ndtri(1.0 - 0.00135 / (len(found) - i))))
        if z <= bound:
            break
        broken.append((f"worse with more, z {z:.1f}: {text}", pair))
    losses: dict[tuple[int, float], list[tuple[float, float, Cell]]] = {}
    larger_class: dict[tuple[str, int, int, float], list[tuple[float, float, Cell]]] = {}
    for cell, row in rows.items():
        if cell.power < LEAST:
            continue
        if cell.task in _REGRESSIONS:
            mean, error = _moments(row["scores"]["R2"])
            if cell.power >= 30.0 * row["trivial"]["spread"] and mean < -0.02 - 3.0 * error:
                broken.append((f"R2 {mean:.3f} +- {error:.3f}: {cell}", [cell]))
        else:
            mean, error = _moments(row["scores"]["accuracy"])
            larger = row["trivial"]["larger class"]
            if mean < larger - 0.01 - 3.0 * error:
                key = cell.design, cell.d, cell.n, cell.epsilon
                larger_class.setdefault(key, []).append((mean, larger, cell))
            mean, error = _moments(row["scores"]["log loss"])
            of_rate = row["trivial"]["rate's log loss"]
            # Least squares predict no log odds.
            if cell.solver != "ridge" and mean > of_rate + 0.01 + 3.0 * error:
                losses.setdefault((cell.n, cell.epsilon), []).append((mean, of_rate, cell))
    for cells in larger_class.values():
        mean, larger, cell = min(cells, key=lambda c: c[0])
        text = f"accuracy in {len(cells)} cells, least {mean:.3f}, larger class {larger:.3f}"
        broken.append((f"{text}: {cell}", [c for *_, c in cells]))
    for (n, epsilon), cells in losses.items():
        mean, of_rate, cell = max(cells, key=lambda c: c[0] - c[1])
        text = (
            f"log loss in {len(cells)} cells with n {n:g}, epsilon {epsilon:g} (n mu "
            f"{cell.power:.0f}), most {mean:.3f}, the rate's {of_rate:.3f}: {cell}"
        )
        broken.append((text, [c for *_, c in cells]))
    return broken


def ahead(rows: _Rows) -> tuple[int, list[_Found], list[_Found]]:
    """Return the number of cells, and sentences where a solver of the same loss is ahead of "auto".

    By more than 2 points beyond three standard errors, of the best of all, which chance favours;
    first where the exact minimiser of the objective is so far ahead too, then where it is not.
    """
    scores: dict[Cell, dict[str, list[float]]] = {}
    for cell, row in rows.items():
        if cell.power >= LEAST and (cell.solver != "ridge" or cell.task in _REGRESSIONS):
            place = replace(cell, solver="auto")
            scores.setdefault(place, {})[cell.solver] = row["scores"][_SCORE[cell.task]]
    scores = {cell: found for cell, found in scores.items() if "auto" in found}
    said: tuple[list[tuple[float, _Found]], list[tuple[float, _Found]]] = [], []
    for cell, found in scores.items():
        best = max(found, key=lambda solver: _moments(found[solver])[0])
        (a, s), (b, _) = _moments(found["auto"]), _moments(found[best])
        least = 0.02 + 3.0 * _error_of_difference(found["auto"], found[best])
        if b - a > least:
            exact, score = rows[cell]["exact"][_SCORE[cell.task]], _SCORE[cell.task]
            text = f"{cell}: {score} {a:.3f}, {b:.3f} of `{best}`, {exact:.3f} of the minimiser"
            pair = [cell, replace(cell, solver=best)]
            said[exact - a <= 0.02 + 3.0 * s].append((a - b, (text, pair)))
    key = operator.itemgetter(0)
    behind, beside = ([found for _, found in sorted(part, key=key)] for part in said)
    return len(scores), behind, beside


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    for design, task, d, l2, solver, n, epsilon in itertools.product(
        options.designs,
        options.tasks,
        options.columns,
        options.l2,
        options.solvers,
        options.records,
        options.epsilons,
    ):
        cell = Cell(design, task, d, l2, solver, n, epsilon)
        most = _LARGEST if l2 == 0.0 and epsilon >= _EPSILON_OF_LARGE else _LARGE
        possible = d > 1 or design != "one_hot"
        if possible and n * d <= most and cell.power >= LEAST:
            yield cell


def _read(path: Path) -> _Rows:
    rows: _Rows = {}
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[Cell(**row.pop("cell"))] = row
    return rows


def _split(kind: type) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",")]


_HOW = """\
`python -m bench.defaults`, from the source tree: every solver with default settings on synthetic
records in {columns} columns with declared ranges ({designs}), {draws} draws of a cell
at least. The table has means over the designs and over l2 = {l2}: accuracy where the classes are
balanced, the area under the ROC curve where one record of twenty is positive, and R2 for targets
around 0 and around half of their bound, three standard deviations away from 0. Of the variance of
targets the features explain 81 %, and 9 % of weak ones, around half of the bound.

A requirement is broken where more records or more budget make a mean worse (z > 3 by Holm's
correction) and worse than the exact minimiser's, where R2 is below that of the mean, accuracy below
that of the larger class, or log loss above the rate's; each where n mu >= {least:g}. Draws of a
cell share their records and the coefficients behind them, by whose signs noise can even help. So
what is found is measured again, with up to {again} draws, each of which has records and
coefficients of its own, and is listed if it is found again.
"""

_AGAINST = """\
In {cells} cells, in {columns} columns, a requirement is broken {found} times. With a problem of its
own in every draw this is left:
"""


_AHEAD = """\
`plan` and `solve` take "auto" first. Another solver of the same loss is ahead of it by more than 2
points, beyond three standard errors, in {found} of the {cells} cells in which n mu is at least 150.
Measured again, that solver and the exact minimiser of the objective are so in {behind}:
"""
_BESIDE = """\
In {beside} more another solver is and the minimiser is not: what gains by not minimising the
objective that was asked for is no better choice.
"""


def found_in(rows: _Rows) -> tuple[list[Cell], list[Cell]]:
    """Return the cells that break a requirement, and those where another solver is ahead."""
    _, behind, beside = ahead(rows)
    lists = against(rows), [*behind, *beside]
    broken, better = ([cell for _, cells in found for cell in cells] for found in lists)
    return broken, better


def page(rows: _Rows, everything: _Rows, again: _Rows) -> str:
    """Return a table of mean scores for every task, and what breaks a requirement.

    What is found in `everything` is listed as far as `again` has it too.
    """

    def values(name: str) -> str:
        return ", ".join(f"`{v}`" if isinstance(v, str) else f"{v:g}" for v in _values(rows, name))

    draws = min(len(scores) for row in rows.values() for scores in row["scores"].values())
    shown = {name: values(field) for name, field in _SHOWN.items()}
    how = _HOW.format(**shown, draws=draws, least=LEAST, again=_AGAIN)
    parts = ["# Whether defaults get better with more\n", *map(wrapped, how.split("\n\n"))]
    sizes, epsilons, tasks = (_values(rows, name) for name in ("n", "epsilon", "task"))
    body = []
    for solver in _values(rows, "solver"):
        line = [f"`{solver}`"]
        for task, epsilon in itertools.product(tasks, epsilons):
            means = [_mean(rows, task=task, solver=solver, epsilon=epsilon, n=n) for n in sizes]
            line.append(" / ".join(means))
        body.append(line)
    head = [f"{_TITLES[task]}, {epsilon:g}" for task, epsilon in itertools.product(tasks, epsilons)]
    listed = ", ".join(f"{n:g}" for n in sizes)
    parts.append(f"By task and epsilon, with {listed} records:\n")
    parts.append(table(["solver", *head], body))
    broken, better = ({cell: again[cell] for cell in cells} for cells in found_in(everything))
    counts: dict[str, int] = {"cells": len(everything), "found": len(against(everything))}
    columns = ", ".join(f"{d:g}" for d in sorted(_values(everything, "d")))
    parts += ["## Against a requirement\n", wrapped(_AGAINST.format(columns=columns, **counts))]
    parts += [_listed(against(broken)), "## Where `plan` does not name the best\n"]
    counts["cells"], *of_grid = ahead(everything)
    _, behind, beside = ahead(better)
    counts |= {"found": sum(map(len, of_grid)), "behind": len(behind), "beside": len(beside)}
    parts += [wrapped(_AHEAD.format(**counts)), _listed(behind)]
    if beside:
        parts += [wrapped(_BESIDE.format(**counts)), _listed(beside)]
    return "\n".join(parts)


def _listed(found: list[_Found]) -> str:
    text = "\n".join(f"- {sentence}" for sentence, _ in found) or "None."
    return f"{text}\n"


_SHOWN = {"columns": "d", "designs": "design", "l2": "l2"}
_TITLES = {
    "balanced": "accuracy",
    "rare": "area",
    "regression": "R2 around 0",
    "offset": "R2 off 0",
    "weak": "R2 weak",
}


def _mean(rows: _Rows, **key: Any) -> str:
    """Return the mean score of the cells with these values."""
    means = [
        _moments(row["scores"][_SCORE[cell.task]])[0]
        for cell, row in rows.items()
        if all(getattr(cell, name) == value for name, value in key.items())
    ]
    return f"{np.mean(means):.3f}" if means else "-"


def _values(rows: _Rows, name: str) -> list[Any]:
    return list(dict.fromkeys(getattr(cell, name) for cell in rows))


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--solvers", type=_split(str), default=["auto", *compared(SOLVERS)])
    parser.add_argument("--designs", type=_split(str), default=list(DESIGNS))
    parser.add_argument("--tasks", type=_split(str), default=list(TASKS))
    parser.add_argument("--columns", type=_split(int), default=list(_COLUMNS))
    parser.add_argument("--records", type=_split(int), default=list(_RECORDS))
    parser.add_argument("--epsilons", type=_split(float), default=list(_EPSILONS))
    parser.add_argument("--l2", type=_split(float), default=list(_L2))
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("build/defaults"))
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.small:
        options.designs = ["skewed", "correlated", "one_hot"]
        options.columns, options.records = [8], [1_000, 10_000, 100_000]
        options.l2, options.epsilons = [0.0, 0.1], [1.0, 10.0]
    largest: dict[tuple[str, str, int], int] = {}
    if not (wanted := sorted(_cells(options), key=lambda cell: cell.n)):
        parser.error(
            f"no cell is in the grid: n mu is below {LEAST:g}, or there are too many entries"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    for cell in wanted:
        largest[cell.place] = max(largest.get(cell.place, 0), cell.n)
    rows = _measure(wanted, options.out / "cells.jsonl", options.draws, largest)
    for cell in rows:
        largest[cell.place] = max(largest.get(cell.place, 0), cell.n)
    cells = sorted(dict.fromkeys(itertools.chain(*found_in(rows))), key=lambda cell: cell.place)
    again = _measure(cells, options.out / "again.jsonl", _AGAIN)
    text = page({cell: rows[cell] for cell in wanted}, rows, again)
    if options.page is not None:
        options.page.write_text(text)
    print(text)


def _measure(
    cells: Sequence[Cell], path: Path, draws: int, largest: Mapping[Any, int] | None = None
) -> _Rows:
    """Return the rows of a file, to which those that it lacks of these cells are added.

    Draws have the first of the largest cell's records, or without it problems of their own.
    """
    rows = _read(path)
    for cell in cells:
        if cell not in rows:
            enough = (_RECORDS_OF_AGAIN if largest is None else _RECORDS_OF_DRAWS) // cell.n
            fewer = min(draws, max(2, enough))
            if largest is None:
                rows[cell] = cell.row_of_problems(fewer)
            else:
                rows[cell] = cell.row(fewer, largest[cell.place])
            with path.open("a") as file:
                file.write(json.dumps({"cell": vars(cell), **rows[cell]}) + "\n")
    return rows


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
