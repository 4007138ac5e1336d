"""Whether the warning that little was learnt is right, and whether mean risks are the rates.

    python -m bench.warning [--sizes N:EPSILON,...] [--draws N]

First the cells of the designs of `bench.defaults` in which most runs with settings "auto" warn
though their probabilities are better than the rate's, or do not warn though they are not: better is
a mean log loss of the draws more than three standard errors below that of the test records' rate.
Then, of ten rates among 20 000 records, the mean distance of the mean risk from the rate.
"""

import argparse
import itertools
import math
import warnings
from typing import Any

import numpy as np
import scipy

import dpkern as dpk
from bench.defaults import DESIGNS, problem
from bench.utility_text import table

DELTA = 1e-6
SIZES = ((1000, 1.0), (2000, 1.0), (2500, 1.0), (8000, 1.0), (1000, 3.0))
RATES = (0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)


def runs_of(data: dpk.SiloData, epsilon: float, draws: int) -> Any:
    """Return runs with default settings."""
    budget = dpk.Budget(epsilon=epsilon, delta=DELTA)
    return dpk.solve_many("auto", data, budgets=budget, draws=draws, rng=3)


def print_warnings(sizes: list[tuple[int, float]], draws: int) -> None:
    """Print the cells in which the warning is wrong, and their number."""
    wrong, count = [], 0
    cells = itertools.product(DESIGNS, ("balanced", "rare"), (1, 8, 50, 200), sizes)
    for design, task, d, (n, epsilon) in cells:
        records = problem(design, task, d, n)
        runs = runs_of(records.data(task, n), epsilon, draws)
        W, lines = np.array([run.w for run in runs]), [run.calibration for run in runs]
        losses = np.array(records.scores(task, W, lines)["log loss"])
        rate = np.mean(records.y_test > 0.0)
        gain = scipy.stats.entropy([rate, 1.0 - rate]) - losses.mean()
        learnt = gain > 3.0 * losses.std(ddof=1) / math.sqrt(draws)
        warned = np.mean([line is not None and bool(line.finding) for line in lines])
        count += 1
        if learnt == (warned > 0.5):
            cell = f"{design}, {task}, d {d}, n {n}, epsilon {epsilon:g}"
            wrong.append([cell, f"{warned:.2f}", f"{gain:.4f}"])
    print(f"The warning is right in {count - len(wrong)} of {count} cells, and not in these:\n")
    print(table(["cell", "warned", "better than the rate by"], wrong))


def print_rates(draws: int) -> None:
    """Print how far mean risks are from rates, and n mu times that."""
    rng, n, rows = np.random.default_rng(0), 20_000, []
    X, w = rng.uniform(-1.0, 1.0, (n, 8)), rng.standard_normal(8)
    z = 1.5 * (X @ w) / np.std(X @ w)
    for rate in RATES:
        offset = scipy.optimize.brentq(
            lambda b, rate=rate: scipy.special.expit(z + b).mean() - rate, -20, 20
        )
        y = (rng.random(n) < scipy.special.expit(z + offset)).astype(int)
        data = dpk.SiloData(X, y, [0, n], classes=[0, 1], intercept=True, feature_range=(-1, 1))
        row = [f"{rate:g}"]
        for epsilon in (0.1, 0.3, 1.0, 3.0):
            risks = [run.predict_proba(X)[:, 1].mean() for run in runs_of(data, epsilon, draws)]
            row.append(f"{np.mean(np.abs(np.array(risks) - y.mean())):.4f}")
        rows.append(row)
    print("\nMean distance of the mean risk from the rate, at epsilon 0.1, 0.3, 1 and 3:\n")
    print(table(["rate", "0.1", "0.3", "1", "3"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", help="numbers of records and epsilons, N:EPSILON,...")
    parser.add_argument("--draws", type=int, default=20)
    given = parser.parse_args()
    sizes = list(SIZES)
    if given.sizes:
        pairs = (part.split(":") for part in given.sizes.split(","))
        sizes = [(int(n), float(epsilon)) for n, epsilon in pairs]
    warnings.simplefilter("ignore")
    print_warnings(sizes, given.draws)
    print_rates(given.draws)


if __name__ == "__main__":
    main()
