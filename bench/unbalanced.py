"""The area under the ROC curve from few records of which few are positive, by all solvers.

    python -m bench.unbalanced [--draws N] [--epsilon E]

2 000 records in 8 columns of designs of `bench.defaults`, one of nine positive, by default at
epsilon 0.1 with delta 1e-6: every draw has coefficients, records and noise of its own. And the
1 904 people of METABRIC in DPKERN_DATA, of whom a random fifth are the test set of a draw; the
label is whether they died. Printed are means over draws, the best first, and by how much the best
is ahead of "auto", with its standard error over the draws that both share.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.defaults import DELTA, Problem, problem
from bench.survival import read_metabric
from bench.utility_text import wrapped
from dpkern import Budget, solve
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared

_DESIGNS, _COLUMNS, _RECORDS = ("uniform", "skewed", "correlated"), 8, 2_000


def _problems(draws: int) -> Iterator[tuple[str, Iterator[Problem]]]:
    for design in _DESIGNS:
        how = design, "unbalanced", _COLUMNS, _RECORDS
        yield design, (problem(*how, k) for k in range(draws))
    yield "metabric", _of_people(draws)


def _of_people(draws: int) -> Iterator[Problem]:
    people, rng = read_metabric(Path(os.environ["DPKERN_DATA"])), np.random.default_rng(0)
    y = np.where(people.event, 1.0, -1.0)
    for _ in range(draws):
        test, rest = np.split(rng.permutation(len(y)), [len(y) // 5])
        parts = people.X[rest], y[rest], people.X[test], y[test]
        yield Problem(*parts, float(np.hypot(people.bound, 1.0)))


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--epsilon", type=float, default=0.1)
    options = parser.parse_args()
    budget = Budget(epsilon=options.epsilon, delta=DELTA)
    for name, problems in _problems(options.draws):
        areas: dict[str, list[float]] = {solver: [] for solver in ("auto", *compared(SOLVERS))}
        for k, one in enumerate(problems):
            data = one.data("unbalanced", len(one.y))
            for solver, found in areas.items():
                how = {} if solver in ("auto", "ridge") else {"loss": "logistic"}
                w = solve(solver, data, budget=budget, rng=k, **how).w
                found += one.scores("unbalanced", w[np.newaxis])["AUC"]
        means = {solver: float(np.mean(found)) for solver, found in areas.items()}
        order = sorted(means, key=lambda solver: -means[solver])
        ahead = np.subtract(areas[order[0]], areas["auto"])
        error = ahead.std() / len(ahead) ** 0.5
        said = ", ".join(f"`{solver}` {means[solver]:.3f}" for solver in order)
        print(wrapped(f"{name}: the best ahead by {ahead.mean():.3f} +- {error:.3f}: {said}"))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
