"""Wang 2018, "Revisiting differentially private linear regression": AdaSSP, ridge and "auto".

    python examples/papers/ridge.py [--draws N] [--sets adult,wdbc,...]

Mean squared errors on test records at delta = 1e-6. All methods have the same records, bounds of
rows and of targets, neighbour relation (one record is replaced) and budget. "auto" is what
`dpkern.solve` takes of itself, clipped gradients with momentum. AdaSSP is Algorithm 2
of the paper with the sensitivities of this relation: once with the paper's noise, three releases of
epsilon/3 and delta/3 each, and once with three releases of mu^2/3 each, which is less noise for the
same guarantee. Its noise is that of NumPy, so that it is no release that could be made.

The shares of the budget and the prior of ridge were chosen on wisconsin and on the synthetic sets
of the first group; adult and wdbc were looked at meanwhile. Those of the second group were not,
until one of them, binary, showed that the passes of the posterior mean have to be damped to settle.
None of these sets served to choose the settings of "auto" for real targets.
"""

import argparse
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from public_sets import Task, load

import dpkern as dpk

EPSILONS, DELTA = (0.1, 0.5, 1.0, 3.0), 1e-6
SEED = 0  # of the records of synthetic sets and of AdaSSP's noise; that of ridge is fresh
REAL = {"adult": math.sqrt(12.0), "wdbc": math.sqrt(21.0), "wisconsin": 3.0}  # row bounds
# Records, features, law of the features, std of the noise of targets.
CHOSEN_ON = {
    "sphere_2000": (2000, 10, "sphere", 0.05),
    "power_20000": (20_000, 30, "power", 0.05),
    "power_5000": (5000, 100, "power", 0.05),
    "unrelated": (10_000, 20, "unrelated", 0.15),
}
JUDGED_ON = {
    "correlated": (10_000, 25, "correlated", 0.1),
    "binary": (30_000, 40, "binary", 0.2),
    "heavy_tails": (20_000, 15, "heavy_tails", 0.1),
    "sphere_8000": (8000, 60, "sphere", 0.1),
}
Array = np.ndarray[Any, np.dtype[np.float64]]


def synthetic(n: int, d: int, law: str, noise: float, n_test: int = 5000) -> Task:
    """Targets w.x + noise of std `noise`, w.x of std 0.3, clipped to [-1, 1].

    "sphere": uniform on the unit sphere. "power": feature k of std k^-3/4, shortened to norm 1.
    "correlated": normal features of correlation 0.9^|i - j|, shortened to norm sqrt(d). "binary":
    feature k is 1 with probability 1 / (k + 1). "heavy_tails": Student's t with 3 degrees of
    freedom, shortened to norm 2 sqrt(d). "unrelated": as "sphere", and w = 0. Then all rows are
    divided by the bound of their norms.
    """
    rng = np.random.default_rng((SEED, n, d))
    X = rng.standard_normal((n + n_test, d))
    w, bound = rng.standard_normal(d), 1.0
    if law == "power":
        X *= np.arange(1, d + 1) ** -0.75
    elif law == "correlated":
        distance = np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
        X, bound = X @ np.linalg.cholesky(0.9**distance).T, math.sqrt(d)
    elif law == "binary":
        X = (rng.random(X.shape) < 1.0 / np.arange(2, d + 2)).astype(np.float64)
        bound = math.sqrt(d / 2.0)
    elif law == "heavy_tails":
        X, bound = rng.standard_t(3, X.shape), 2.0 * math.sqrt(d)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    if law in ("sphere", "unrelated"):
        X /= norms
    else:
        X *= np.minimum(1.0, bound / np.maximum(norms, 1e-300)) / bound
    signal = X @ w
    y = 0.0 if law == "unrelated" else 0.3 / signal.std() * (signal - signal.mean())
    y = np.clip(y + noise * rng.standard_normal(len(X)), -1.0, 1.0)
    return Task(law, X[:n], y[:n], X[n:], y[n:])


def adassp(
    G: Array,
    g: Array,
    *,
    R: float,
    target_bound: float,
    budget: dpk.Budget,
    rng: np.random.Generator,
    paper: bool = True,
    replaced: bool = True,
) -> Array:
    """Algorithm 2 of Wang 2018 (rho = 0.05), of G = X^T X and g = X^T y.

    Rows of X have norm at most R, and |y| <= target_bound.

    Multipliers sqrt(log(6/delta)) / (epsilon/3) of the sensitivities, which are R^2, R^2 and R B
    for a record that is added, and R^2, sqrt(2) R^2 and 2 R B for one that is replaced; without
    `paper` they are sqrt(3) / mu. The least eigenvalue is lowered by log(6/delta) / (epsilon/3)
    R^2, or three stds.
    """
    d, rho = len(g), 0.05
    if paper:
        tail = math.log(6.0 / budget.delta) / (budget.epsilon / 3.0)
        s = tail / math.sqrt(math.log(6.0 / budget.delta))
    else:
        s = math.sqrt(3.0) / budget.mu
        tail = 3.0 * s
    two, root = (2.0, math.sqrt(2.0)) if replaced else (1.0, 1.0)
    least = np.linalg.eigvalsh(G)[0] + (s * rng.standard_normal() - tail) * R**2
    bound = math.sqrt(d * math.log(2.0 * d**2 / rho)) * root * s * R**2
    ridge = max(0.0, bound - max(least, 0.0))
    noise = np.triu(rng.standard_normal((d, d))) * root * s * R**2
    g = g + two * s * R * target_bound * rng.standard_normal(d)
    return np.linalg.solve(G + noise + np.triu(noise, 1).T + ridge * np.eye(d), g)


def tasks(names: list[str]) -> Iterator[tuple[str, Task, float, bool]]:
    """Name, records, row bound and intercept of every set."""
    laws = CHOSEN_ON | JUDGED_ON
    for name in names:
        if name in REAL:
            yield name, load(name, regression=True), REAL[name], True
        else:
            yield name, synthetic(*laws[name]), 1.0, False


def errors(task: Task, R: float, intercept: bool, draws: int) -> Iterator[tuple[float, ...]]:
    """Epsilon, and mean test errors: AdaSSP with both noises, ridge, "auto", without privacy."""
    offsets, rng = [0, len(task.y)], np.random.default_rng(SEED)
    how = {"row_bound": R, "target_bound": 1.0, "intercept": intercept, "task": "regression"}
    data = dpk.SiloData(np.ascontiguousarray(task.X), task.y, offsets, **how)
    rows, test = data.transform.apply(task.X), data.transform.apply(task.X_test)
    sums = rows.T @ rows, rows.T @ data.y

    squares = test.T @ test / len(test), test.T @ task.y_test / len(test)
    mean_square = float(np.mean(task.y_test**2))

    def error(w: Array) -> float:
        return float(w @ squares[0] @ w - 2.0 * w @ squares[1]) + mean_square

    exact = error(dpk.solve("ridge", data, budget=None).w)
    for epsilon in EPSILONS:
        budget = dpk.Budget(epsilon=epsilon, delta=DELTA)
        known = {"R": R, "target_bound": 1.0, "budget": budget, "rng": rng}
        found = [
            [
                error(adassp(*sums, paper=True, **known)),
                error(adassp(*sums, paper=False, **known)),
                error(dpk.solve("ridge", data, budget=budget).w),
                error(dpk.solve("auto", data, budget=budget).w),
            ]
            for _ in range(draws)
        ]
        yield epsilon, *np.mean(found, axis=0).tolist(), exact


def main() -> None:
    """Print a table of every set."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--sets", default=",".join([*REAL, *CHOSEN_ON, *JUDGED_ON]))
    arguments = parser.parse_args()
    print("set           epsilon   AdaSSP  AdaSSP, mu    ridge     auto  no privacy     mean")
    for name, task, R, intercept in tasks(arguments.sets.split(",")):
        mean = float(np.mean((task.y_test - task.y.mean()) ** 2))
        for epsilon, *found in errors(task, R, intercept, arguments.draws):
            paper, sharp, ours, auto, exact = found
            row = f"{paper:8.5f}  {sharp:10.5f} {ours:8.5f} {auto:8.5f}  {exact:10.5f} {mean:8.5f}"
            print(f"{name:14}{epsilon:7g} {row}", flush=True)


if __name__ == "__main__":
    main()
