"""The constants of the prediction of `dpkern.plan`, fitted to cells, and how well it predicts.

Fitted are A and p of the excess risk least + A (d^q / x)^p, for every solver, to the cells of its
defaults on the sets whose `fitting` is "yes" in utility_sets.py, by least absolute deviations of
logarithms. q and least are shared by all solvers: their table of shares with one of those sets left
out at a time is what they are chosen by. Other sets only judge.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from bench.utility_sets import SETS
from bench.utility_text import Cells, Row, percent, table
from dpkern import Budget
from dpkern.planning import FORM, entries_of_a_run, excess_risk, expected_seconds
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared

FACTOR, SECONDS_FACTOR = 3.0, 2.0  # within which a prediction counts as right
_LEAST_TOLD, _LEAST_FITTED = 0.002, 0.001
_FORMS = [(of_d, least) for of_d in (0.5, 0.75, 1.0) for least in (0.0, 0.002, 0.004, 0.006)]
_GROUPS = {"fitted": ("yes",), "others": ("looked at", "no")}
_SPARSE = "sparse"

Constants = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Measured:
    """A cell: the excess risk of a solver's defaults, and the numbers that it is predicted from."""

    name: str
    solver: str
    epsilon: float
    d: int
    x: float
    excess: float
    error: float

    @property
    def told(self) -> float:
        """Below this the draws do not tell it from zero: two standard errors or 0.2 points."""
        return max(2.0 * self.error, _LEAST_TOLD)

    def agrees(self, predicted: float) -> bool:
        """Whether a prediction counts as right.

        It is within the factor of what was measured; where that is below `told`, the prediction
        only has to be below `told` times the factor.
        """
        if self.excess < self.told:
            return predicted <= FACTOR * self.told
        return self.excess / FACTOR <= predicted <= FACTOR * self.excess


Pairs = list[tuple[Measured, float]]


def measured(auto: Cells, facts: dict[str, Row], delta: float) -> list[Measured]:
    """Cells as what is to be predicted."""
    found = []
    for (name, solver, epsilon), row in auto.items():
        fact, mu = facts[name], Budget(epsilon=epsilon, delta=delta).mu
        excess = fact["no_privacy"] - row["accuracy"]
        numbers = fact["d"], fact["n"] * mu, excess, row["error"]
        found.append(Measured(name, solver, epsilon, *numbers))
    return found


def power_law(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Return A and p of y = A x^p with the least absolute deviations of log y."""
    line, target = np.c_[np.ones(len(x)), np.log(x)], np.log(y)
    weights = np.ones(len(x))
    for _ in range(200):
        found = np.linalg.lstsq(line * weights[:, np.newaxis], target * weights, rcond=None)[0]
        weights = 1.0 / np.sqrt(np.maximum(np.abs(target - line @ found), 0.05))
    return float(np.exp(found[0])), float(found[1])


def fit(cells: Iterable[Measured], form: tuple[float, float] = FORM) -> Constants:
    """Return A and p of every solver that has two cells or more, to two digits."""
    by_solver: dict[str, list[Measured]] = {}
    for cell in cells:
        by_solver.setdefault(cell.solver, []).append(cell)
    of_d, least = form
    constants = {}
    for solver in compared(SOLVERS):
        here = by_solver.get(solver, [])
        if len(here) > 1:
            ratios = np.array([cell.d**of_d / cell.x for cell in here])
            above = [max(cell.excess, cell.told) - least for cell in here]
            scale, power = power_law(ratios, np.maximum(above, _LEAST_FITTED))
            constants[solver] = float(f"{scale:.2g}"), round(power, 2)
    return constants


def fit_times(seconds: Iterable[Row], facts: dict[str, Row]) -> Constants:
    """Return passes and microseconds of Python, to two digits, by least relative squares."""
    by_solver: dict[str, list[list[float]]] = {}
    for row in seconds:
        fact, solver, unit = facts[row["set"]], row["solver"], row["seconds"]
        entries = entries_of_a_run(solver, fact["n"], fact["d"], row["steps"])
        terms = [entries * row["pace"] / unit, row["steps"] * 1e-6 / unit]
        by_solver.setdefault(solver, []).append(terms)
    constants = {}
    for solver in compared(SOLVERS):
        here = np.array(by_solver.get(solver, []))
        if len(here) > 1:
            passes, python = nnls(here, np.ones(len(here)))[0]
            constants[solver] = float(f"{passes:.2g}"), float(f"{python:.2g}")
    return constants


def fitted_on(cell: Measured) -> bool:
    return SETS[cell.name].fitting == "yes"


def predictions(
    cells: Iterable[Measured], constants: Constants, form: tuple[float, float] = FORM
) -> Pairs:
    """Cells of the solvers that have constants, with what these predict."""
    return [
        (cell, excess_risk(cell.d, cell.x, constants[cell.solver], form))
        for cell in cells
        if cell.solver in constants
    ]


def share(pairs: Pairs) -> float:
    """Share of right predictions."""
    return float(np.mean([cell.agrees(predicted) for cell, predicted in pairs]))


def left_out(cells: list[Measured], form: tuple[float, float]) -> float:
    """Share of right predictions on each set, of constants fitted on the other ones."""
    pairs: Pairs = []
    for name in dict.fromkeys(cell.name for cell in cells):
        constants = fit([cell for cell in cells if cell.name != name], form)
        pairs += predictions([cell for cell in cells if cell.name == name], constants, form)
    return share(pairs)


def declared(field: str) -> Constants:
    """A field of the declarations of the solvers that have it, "error" or "seconds"."""
    values = {name: getattr(SOLVERS[name].declaration, field) for name in compared(SOLVERS)}
    return {name: value for name, value in values.items() if value is not None}


def lines_for_declarations(field: str, constants: Constants) -> str:
    """The field as it stands in the declaration of every solver."""
    lines = [f"{solver}: {field}=({a}, {b})," for solver, (a, b) in constants.items()]
    return "\n".join([f"{field}, in the declarations of solvers:", *lines])


def fitted(cells: list[Measured], seconds: Cells, facts: dict[str, Row]) -> str:
    """The constants, how well they predict, and the form by sets left out."""
    times = fit_times([row for row in seconds.values() if _group(row) == "fitted"], facts)
    here = [cell for cell in cells if fitted_on(cell)]
    constants = fit(here)
    forms = [
        [f"{of_d:g}", f"{least:g}", percent(left_out(here, (of_d, least)))]
        for of_d, least in _FORMS
    ]
    head = ["q", "least", f"percent within a factor of {FACTOR:g} on sets left out"]
    return "\n".join(
        [
            lines_for_declarations("error", constants),
            lines_for_declarations("seconds", times),
            "\n" + table(head, forms),
            table(*shares(predictions(cells, constants))),
            table(*times_shares(seconds, facts, times)),
        ]
    )


def shares(pairs: Pairs) -> tuple[list[str], list[list[str]]]:
    """Percent of right predictions by solver, on sets that were fitted on and on others."""
    head = ["solver", *_GROUPS]
    solvers = dict.fromkeys(cell.solver for cell, _ in pairs)
    body = []
    for solver in [*(name for name in SOLVERS if name in solvers), None]:
        row = [f"`{solver}`" if solver else "all"]
        for fitting in _GROUPS.values():
            own = [
                (cell, predicted)
                for cell, predicted in pairs
                if SETS[cell.name].fitting in fitting and solver in (None, cell.solver)
            ]
            row.append(f"{100.0 * share(own):.0f} % of {len(own)}" if own else "")
        body.append(row)
    return head, body


def how_good(auto: Cells, seconds: Cells, facts: dict[str, Row], delta: float) -> str:
    """A sentence on how often the plan's predictions are right."""
    of_d, least = FORM
    every = shares(predictions(measured(auto, facts, delta), declared("error")))[1][-1]
    said = (
        "it predicts the excess risk of every solver's defaults, test error above that without "
        f"privacy, as {least:g} + A (d^{of_d:g} / (n mu))^p, and is right within a factor of "
        f"{FACTOR:g} in {_of_groups(every[1:])}."
    )
    if seconds:
        within = times_shares(seconds, facts, declared("seconds"))[1][-1][3:5]
        said += f" Its seconds are right within a factor of {SECONDS_FACTOR:g} in "
        said += f"{_of_groups(within)} (dense records, epsilon 1)."
    return said


def _of_groups(shown: list[str]) -> str:
    """Shares of right predictions on the sets that were fitted on, and on others."""
    names = ("cells of the sets marked *yes*", "of the others")
    return " and ".join(f"{text} {name}" for text, name in zip(shown, names, strict=True) if text)


def times_shares(
    seconds: Cells, facts: dict[str, Row], constants: Constants
) -> tuple[list[str], list[list[str]]]:
    """Medians of measured and expected seconds, and the share of sets where they are close."""
    body, every = [], []
    for solver in (name for name in SOLVERS if name in constants):
        times = []
        for (name, own, _), row in seconds.items():
            if own == solver:
                numbers = facts[name]["n"], facts[name]["d"], row["steps"], row["pace"]
                expected = expected_seconds(solver, *numbers, constants[solver])
                times.append((_group(row), row["seconds"], expected))
        medians = [
            f"{np.median([time[k] for time in times if time[0] != _SPARSE]):.2g}" for k in (1, 2)
        ]
        body.append([f"`{solver}`", *medians, *_within(times)])
        every += times
    body.append(["all", "", "", *_within(every)])
    return ["solver", "measured", "expected", *_GROUPS, _SPARSE], body


def _group(row: Row) -> str:
    if row["sparse"]:
        return _SPARSE
    return next(k for k, which in _GROUPS.items() if SETS[row["set"]].fitting in which)


def _within(times: list[tuple[str, float, float]]) -> list[str]:
    texts = []
    for group in (*_GROUPS, _SPARSE):
        ratios = np.array([expected / own for k, own, expected in times if k == group])
        right = (ratios <= SECONDS_FACTOR) & (ratios >= 1.0 / SECONDS_FACTOR)
        texts.append(f"{100.0 * right.mean():.0f} % of {len(right)}" if len(right) else "")
    return texts
