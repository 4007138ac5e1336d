"""Test accuracy with settings "auto", beside the same solvers tuned on the test set and rivals.

    python -m bench.utility [--sets A,B] [--solvers A,B] [--epsilons E,F] [--draws N]
        [--no-tuning] [--rival diffprivlib=PYTHON] [--rival opacus=PYTHON] [--regression]
        [--perceptron] [--seconds] [--fit] [--out DIR] [--page FILE.md]

Every cell is one line of JSON in --out, and a cell that is there is not computed again: a run that
was interrupted goes on; after a change of the rules, all files but tuned.jsonl, set.jsonl,
rival.jsonl and perceptron.jsonl are deleted. Then the numbers of the page are written from all
lines (figures/utility.json beside it), and from these the page and its picture. The sets come from
the folder in the environment variable DPKERN_DATA.

With --seconds, single runs of `dpkern.solve` are timed instead, one after another: on a machine
that does nothing else. With --fit, the constants of the prediction of `dpkern.plan` are fitted to
the cells and printed, and the constants of the rule of gradient_descent are moved one by one.

A solver is tuned in three steps, so that its best settings have as many draws as are needed to tell
them apart: two draws of every setting of its grid (utility_grids.py), four more of the best
quarter, and of the five that are best then up to --draws. The one with the best mean over its draws
is run again with fresh draws, whose mean is what is reported: the maximum over noise does not
count, but the test set does.
"""

import argparse
import functools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from bench import (
    utility_constants,
    utility_fit,
    utility_page,
    utility_perceptron,
    utility_regression,
)
from bench.probabilities import measure
from bench.utility_grids import GRIDS, in_units, settings
from bench.utility_sets import SETS, Problem, problem
from bench.utility_text import latest
from dpkern import Budget, SiloData, SolverResult, solve, solve_many
from dpkern.data import is_sparse
from dpkern.data.validation import ScaleWarning
from dpkern.planning import seconds_of_an_entry
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared
from dpkern.solvers.base.objective import PublicNumbers, public_numbers
from dpkern.solvers.base.outcome import NothingLearntWarning

DELTA = 1e-6
EPSILONS = [0.1, 0.5, 1.0, 3.0]
RIVALS = ("diffprivlib", "opacus")
TIMED = 1.0  # epsilon
_TIMES = 3
_FIRST, _SECOND, _LAST = 2, 6, 5  # draws of every setting, of the best quarter; settings at the end
# Arguments of runs with other defaults for the rest, of the solver that the page shows first.
VARIANTS: dict[str, Callable[[SiloData], dict[str, Any]]] = {
    "add_remove": lambda data: {"neighbours": "add_remove", "public_size": data.n},
}
_ROOT = Path(__file__).parents[1]


class Lines:
    """Cells that have been computed, by kind, as files of JSON lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        path = self._folder / f"{kind}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def has(self, kind: str, draws: int, **key: Any) -> bool:
        """Whether there is such a cell of at least as many draws."""
        return any(
            row["draws"] >= draws and all(row[name] == value for name, value in key.items())
            for row in self.rows(kind)
        )

    def add(self, kind: str, row: dict[str, Any]) -> None:
        with (self._folder / f"{kind}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")


def mean_and_error(scores: NDArray[np.float64]) -> dict[str, float]:
    error = float(scores.std(ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else math.nan
    return {"accuracy": float(scores.mean()), "error": error}


class Runs:
    """Runs of one solver on one set at one budget; all have seeds of their own."""

    def __init__(self, name: str, solver: str, epsilon: float) -> None:
        self.problem, self._solver = problem(name), solver
        self._budget = Budget(epsilon=epsilon, delta=DELTA)
        self._seed = zlib.crc32(f"{name} {solver} {epsilon}".encode())

    def __call__(
        self, draws: int, **arguments: Any
    ) -> tuple[Sequence[SolverResult], NDArray[np.float64], NDArray[np.float64]]:
        """Return results, their models and their test accuracies."""
        self._seed += 1
        results = solve_many(
            self._solver,
            self.problem.data,
            budgets=self._budget,
            draws=draws,
            rng=self._seed,
            **arguments,
        )
        models = np.array([result.w for result in results])
        lines = [result.calibration for result in results]
        return results, models, self.problem.accuracies(models, lines)

    def auto(self, draws: int, **arguments: Any) -> dict[str, Any]:
        """The cell of the solver's own defaults."""
        results, models, scores = self(draws, **arguments)
        used = {name: results[0].parameters[name] for name in GRIDS[self._solver]}
        gap = float(np.mean(self.problem.gaps(models)))
        return mean_and_error(scores) | {"gap": gap, "settings": used}

    def probabilities(self, draws: int) -> dict[str, Any]:
        """The cell of the probabilities that the defaults predict, and those of the minimum."""
        results, _, scores = self(draws)
        test, minimum = self.problem.task, self.problem.minimiser
        positive = np.asarray(test.y_test) == self.problem.data.classes[1]
        rows = [measure(result.predict_proba(test.X_test)[:, 1], positive) for result in results]
        margins = np.asarray(test.X_test @ minimum[:-1]) + minimum[-1]
        named, rate = ("log_loss", "calibration_error", "", "area"), positive.mean()
        cell = dict(zip(named, np.mean(rows, axis=0).tolist(), strict=True))
        best = dict(zip(named, measure(1.0 / (1.0 + np.exp(-margins)), positive), strict=True))
        cell |= {f"no_privacy_{name}": value for name, value in best.items()}
        of_rate = -rate * math.log(rate) - (1.0 - rate) * math.log(1.0 - rate)
        return mean_and_error(scores) | cell | {"log_loss_of_rate": of_rate}

    def numbers(self) -> PublicNumbers:
        found = public_numbers(self.problem.objective(), self._budget, "central", "replace_one")
        assert found is not None  # the model is linear
        return found

    def tuned(self, draws: int) -> dict[str, Any]:
        """The cell of the best settings of the grid."""
        numbers = self.numbers()
        gradient, smoothness = numbers.row_bound * numbers.slope, numbers.smoothness
        assert self._budget.epsilon is not None
        grid = in_units(
            GRIDS[self._solver],
            gradient=gradient,
            smoothness=smoothness,
            record=1.0 / self.problem.data.n,
            epsilon=self._budget.epsilon,
        )
        each = settings(grid)
        scores = [list(row) for row in self(_FIRST, **grid)[2].reshape(len(each), _FIRST)]

        def best(count: int) -> list[int]:
            order = np.argsort([-np.mean(row) for row in scores], kind="stable")
            return [int(i) for i in order[:count]]

        for count, enough in ((len(each) // 4, _SECOND), (_LAST, draws)):
            for i in best(count):
                if enough > len(scores[i]):
                    scores[i] += list(self(enough - len(scores[i]), **each[i])[2])
        longest = max(map(len, scores))
        chosen = max(
            (i for i, row in enumerate(scores) if len(row) == longest),
            key=lambda i: np.mean(scores[i]),
        )
        fresh = mean_and_error(self(draws, **each[chosen])[2])
        found = {"selected": float(np.mean(scores[chosen])), "grid": len(each)}
        units = settings(GRIDS[self._solver])[chosen]
        return fresh | found | {"settings": each[chosen], "in_units": units}


def solver_cells(lines: Lines, options: argparse.Namespace) -> None:
    """Every solver with its own settings and tuned, set by set."""
    cells = (
        (kind, name, solver, epsilon)
        for name in options.sets
        for kind in ("tuned", "auto", "probabilities", *VARIANTS)
        for solver in options.solvers
        for epsilon in options.epsilons
        if kind in ("tuned", "auto") or solver == utility_page.SHOWN
        if kind != "tuned" or not options.no_tuning
    )
    for kind, name, solver, epsilon in cells:
        key = {"set": name, "solver": solver, "epsilon": epsilon}
        if lines.has(kind, options.draws, **key):
            continue
        begin, runs = time.perf_counter(), Runs(name, solver, epsilon)
        if kind == "tuned":
            cell = runs.tuned(options.draws)
        elif kind == "probabilities":
            cell = runs.probabilities(options.draws)
        else:
            given = VARIANTS[kind](runs.problem.data) if kind in VARIANTS else {}
            cell = runs.auto(options.draws, **given)
        lines.add(kind, key | {"draws": options.draws} | cell)
        said = f"{name} {solver} {epsilon:g} {kind} {100 * cell['accuracy']:.2f}"
        print(f"{said}, {time.perf_counter() - begin:.0f} s", flush=True)


def steps_of(solver: str, numbers: PublicNumbers, used: dict[str, Any], budget: Budget) -> int:
    """Steps of a run with these settings; what one reads of the records, the plan knows."""
    passes = SOLVERS[solver].declaration.settings(numbers, {**used, "budget": budget}).get("passes")
    return passes or used.get("rounds", 1) * (used.get("local_steps") or 1)


def seconds_cells(lines: Lines, options: argparse.Namespace) -> None:
    """Time of single runs, one after another, and of a gradient, from which the plan derives it."""
    budget = Budget(epsilon=TIMED, delta=DELTA)
    for name in options.sets:
        for solver in options.solvers:
            key = {"set": name, "solver": solver, "epsilon": TIMED}
            if lines.has("seconds", _TIMES, **key):
                continue
            data, times = problem(name).data, []
            for seed in range(_TIMES):
                begin = time.perf_counter()
                used = solve(solver, data, budget=budget, rng=seed).parameters
                times.append(time.perf_counter() - begin)
            cell = {
                "steps": steps_of(solver, Runs(name, solver, TIMED).numbers(), used, budget),
                "sparse": is_sparse(data.X),
                "pace": seconds_of_an_entry(data.n, data.d),
            }
            lines.add(
                "seconds", key | {"draws": _TIMES, "seconds": statistics.median(times)} | cell
            )
            print(f"{name} {solver} {statistics.median(times):.2g} s", flush=True)


def moved_cells(lines: Lines, options: argparse.Namespace) -> None:
    """`gradient_descent` with one constant of its rule moved, on the sets that are fitted on."""
    for name in options.sets:
        for epsilon in options.epsilons if SETS[name].fitting == "yes" else []:
            for constant, factor in utility_constants.variations():
                key = {"set": name, "solver": utility_page.SHOWN, "epsilon": epsilon}
                key |= {"constant": constant, "factor": factor}
                if lines.has("moved", options.draws, **key):
                    continue
                runs = Runs(name, utility_page.SHOWN, epsilon)
                how = utility_constants.moved(runs.numbers(), constant, factor)
                cell = mean_and_error(runs(options.draws, **how)[2])
                lines.add("moved", key | {"draws": options.draws} | cell)
                print(f"{name} {epsilon:g} {constant} times {factor:g}", flush=True)


def fit_constants(lines: Lines, options: argparse.Namespace) -> None:
    """Print the constants of the prediction, and what moving those of the rule does."""
    facts = {row["set"]: row for row in lines.rows("set")}
    cells = utility_fit.measured(latest(lines.rows("auto")), facts, DELTA)
    print(utility_fit.fitted(cells, latest(lines.rows("seconds")), facts))
    moved_cells(lines, options)
    print(utility_constants.sensitivity(lines.rows("moved")))


def other_cells(lines: Lines, options: argparse.Namespace) -> None:
    """Regression and the perceptron, each as a whole."""
    makers: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "regression": utility_regression.cells,
        "perceptron": functools.partial(utility_perceptron.cells, DELTA),
    }
    for kind, make in makers.items():
        if getattr(options, kind) and not lines.rows(kind):
            for row in make():
                lines.add(kind, row)
                print(f"{kind} {row['set']} {row['epsilon']:g}", flush=True)


def set_cells(lines: Lines, names: Iterable[str]) -> None:
    """What needs no privacy: the majority class and the minimiser of the objective."""
    for name in names:
        if not lines.has("set", 1, set=name):
            it = problem(name)
            found = {"n": it.data.n, "d": it.data.d, "row_bound": it.data.row_bound}
            found |= {"test": len(it.task.y_test), "majority": it.majority, "minimum": it.optimum}
            found["no_privacy"] = float(it.accuracies(it.minimiser[np.newaxis])[0])
            lines.add("set", {"set": name, "draws": 1} | found)


def rival_cells(lines: Lines, options: argparse.Namespace) -> None:
    """Every rival in the interpreter that has it."""
    for rival, python in options.rival:
        for name in options.sets:
            left = [
                epsilon
                for epsilon in options.epsilons
                if not lines.has(
                    "rival", options.rival_draws, set=name, solver=rival, epsilon=epsilon
                )
            ]
            for row in rival_rows(rival, python, problem(name), left, options.rival_draws):
                lines.add("rival", {"set": name, "solver": rival} | row)
                print(f"{name} {rival} {row['epsilon']:g} {100 * row['accuracy']:.2f}", flush=True)


def rival_rows(
    rival: str, python: str, it: Problem, epsilons: list[float], draws: int
) -> Iterator[dict[str, Any]]:
    """Run utility_rivals.py elsewhere, on files with the same records."""
    if not epsilons:
        return
    with tempfile.TemporaryDirectory() as folder:
        parts = {"X": it.task.X, "X_test": it.task.X_test}
        dense = {k: X.toarray() if scipy.sparse.issparse(X) else X for k, X in parts.items()}
        labels = {"y": it.task.y, "y_test": it.task.y_test}
        positive = {k: np.asarray(y) == it.data.classes[1] for k, y in labels.items()}
        np.savez(Path(folder, "records.npz"), **dense, **positive)
        request = {"rival": rival, "epsilons": epsilons, "delta": DELTA, "draws": draws}
        request |= {"row_bound": it.data.row_bound, "records": str(Path(folder, "records.npz"))}
        command = [python, str(_ROOT / "bench" / "utility_rivals.py"), json.dumps(request)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                yield json.loads(line)
        if process.returncode:
            print(f"{rival} failed in {python}: exit status {process.returncode}", flush=True)


def _names(known: Iterable[str]) -> Any:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                wanted = ", ".join(known)
                raise argparse.ArgumentTypeError(f"must be among {wanted}, got {name!r}")
        return names

    return parse


def _rival(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if name not in RIVALS or not equals:
        wanted = " or ".join(RIVALS)
        raise argparse.ArgumentTypeError(f"must be NAME=PYTHON with {wanted}, got {text!r}")
    return name, python


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.utility", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--sets", type=_names(SETS), default=list(SETS), metavar="A,B")
    add("--solvers", type=_names(SOLVERS), default=compared(SOLVERS), metavar="A,B")
    epsilons = {"type": lambda text: [float(e) for e in text.split(",")], "default": EPSILONS}
    add("--epsilons", **epsilons, metavar="E,F")
    add("--draws", type=int, default=20, metavar="N", help="of every cell (default: 20)")
    add("--no-tuning", action="store_true", help="leave out the grids, which take hours")
    add("--rival", type=_rival, action="append", default=[], metavar="NAME=PYTHON")
    add("--rival-draws", type=int, default=5, metavar="N", help="default: 5")
    add("--regression", action="store_true", help="ridge beside AdaSSP")
    add("--perceptron", action="store_true", help="a perceptron on MNIST")
    add("--seconds", action="store_true", help="time single runs, and nothing else")
    add("--fit", action="store_true", help="fit the constants, and nothing else")
    add("--out", type=Path, default=_ROOT / "bench" / "results" / "utility", metavar="DIR")
    add("--page", type=Path, default=utility_page.PAGE, metavar="FILE.md")
    options = parser.parse_args()

    for kind in (NothingLearntWarning, ScaleWarning):
        warnings.simplefilter("ignore", kind)
    lines = Lines(options.out)
    set_cells(lines, options.sets)
    if options.fit:
        return fit_constants(lines, options)
    if options.seconds:
        seconds_cells(lines, options)
    else:
        solver_cells(lines, options)
        rival_cells(lines, options)
        other_cells(lines, options)
    rows = {kind: lines.rows(kind) for kind in utility_page.KINDS}
    utility_page.write_numbers(options.page, utility_page.numbers(rows, DELTA))
    utility_page.write(options.page)
    print(f"written to {options.page}")


if __name__ == "__main__":
    sys.exit(main())
