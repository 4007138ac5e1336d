"""Whether the defaults of counts, costs, ordered classes and hazards get better with more.

    python -m bench.families [--families A,B] [--records N,N] [--draws N]

Synthetic records of two designs with eight columns, and default settings. Printed are, for each
cell, the mean over draws of records and noise of the deviance that is explained over the constant,
as a share of what the true model explains, on 20 000 other records, with its standard error. Then
the cells that break a requirement, of those with n mu >= 150: a share below 0, of log losses of
classes or intervals by a loss of 0.01, and by more than three standard errors, or one below that of
fewer records or less budget, by more than three of theirs.
docs/counts.md has what it printed.
"""

import argparse
import itertools
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from bench.coverage import DESIGNS, FloatArray
from bench.defaults import LEAST
from dpkern import Budget
from dpkern.estimators import (
    DPDiscreteHazards,
    DPGammaRegressor,
    DPOrdinalClassifier,
    DPPoissonRegressor,
)

_COLUMNS, _TEST, _DELTA = 8, 20_000, 1e-6
_EDGES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
_OF_CLASSES = ("ordinal", "hazards")
_THRESHOLDS = np.array([-1.5, 0.0, 1.5])

# Of a family: targets at z, the private estimator, the loss of its predictions, and the true ones.
Draw = Callable[[np.random.Generator, FloatArray], Any]


def _counts(rng: np.random.Generator, z: FloatArray) -> FloatArray:
    return np.minimum(rng.poisson(0.5 * np.exp(z)), 8.0)


def _costs(rng: np.random.Generator, z: FloatArray) -> FloatArray:
    return np.minimum(rng.gamma(2.0, 0.5 * np.exp(z)), 8.0)


def _ordered(rng: np.random.Generator, z: FloatArray) -> FloatArray:
    noise = rng.logistic(size=(len(z), 1))
    return (z[:, np.newaxis] + noise > _THRESHOLDS).sum(axis=1)


def _times(rng: np.random.Generator, z: FloatArray) -> FloatArray:
    time = 8.0 * rng.exponential(np.exp(-z))
    return np.column_stack([np.minimum(time, _EDGES[-1]), time < _EDGES[-1]])


def _cells(y: FloatArray) -> Any:
    return np.where(y[:, 1] > 0.0, np.floor(y[:, 0]), len(_EDGES) - 1).astype(int)


def _of_mean(power: int) -> Callable[[FloatArray, FloatArray], FloatArray]:
    def losses(y: FloatArray, mean: FloatArray) -> FloatArray:
        return mean - y * np.log(mean) if power == 1 else y / mean + np.log(mean)

    return losses


def _of_classes(y: Any, p: FloatArray) -> FloatArray:
    return -np.log(np.maximum(p[np.arange(len(y)), y], 1e-12))


def _differences(survival: FloatArray) -> FloatArray:
    return -np.diff(survival, axis=1, prepend=1.0, append=0.0)


def _true_ordered(z: FloatArray) -> FloatArray:
    return _differences(scipy.special.expit(z[:, np.newaxis] - _THRESHOLDS))


def _true_times(z: FloatArray) -> FloatArray:
    return _differences(np.exp(-np.outer(np.exp(z), _EDGES[1:]) / 8.0))


FAMILIES: dict[str, tuple[Draw, Callable[..., Any], Any, Any, Any]] = {
    "poisson": (
        _counts,
        lambda **how: DPPoissonRegressor(max_target=8.0, mean_range=(0.01, 5.0), **how),
        _of_mean(1),
        lambda model, X: model.predict(X),
        lambda z: 0.5 * np.exp(z),
    ),
    "gamma": (
        _costs,
        lambda **how: DPGammaRegressor(max_target=8.0, mean_range=(0.1, 10.0), **how),
        _of_mean(2),
        lambda model, X: model.predict(X),
        np.exp,
    ),
    "ordinal": (
        _ordered,
        lambda **how: DPOrdinalClassifier(classes=[0, 1, 2, 3], **how),
        _of_classes,
        lambda model, X: model.predict_proba(X),
        _true_ordered,
    ),
    "hazards": (
        _times,
        lambda **how: DPDiscreteHazards(intervals=_EDGES, **how),
        lambda y, p: _of_classes(_cells(y), p),
        lambda model, X: _differences(model.predict_survival_function(X)[:, -len(_EDGES) + 1 :]),
        _true_times,
    ),
}


def share(family: str, design: str, n: int, epsilon: float, seed: int) -> tuple[float, float]:
    """Return what one private fit explains, as a share of what the true model explains, and 0.01 of
    the loss of classes as such a share."""
    draw, make, losses, predict, true = FAMILIES[family]
    rng = np.random.default_rng([zlib.crc32(design.encode()), seed])
    w = rng.standard_normal(_COLUMNS)
    X = DESIGNS[design](rng, n + _TEST, _COLUMNS)
    z = X @ w
    z = 0.6 * (z - z.mean()) / z.std()
    y = draw(rng, z)
    how: dict[str, Any] = {"feature_range": (-1.0, 1.0), "random_state": seed}
    model = make(epsilon=epsilon, delta=_DELTA, **how).fit(X[:n], y[:n])
    X, y, z = X[n:], y[n:], z[n:]
    if family in _OF_CLASSES:
        cells = _cells(y) if family == "hazards" else y
        constant = np.tile(np.bincount(cells, minlength=true(z).shape[1]) / len(y), (len(y), 1))
    else:
        constant = np.full(len(y), y.mean())
    of_constant, of_model, of_truth = (
        float(np.mean(losses(y, found))) for found in (constant, predict(model, X), true(z))
    )
    gain = of_constant - of_truth
    return (of_constant - of_model) / gain, 0.01 / gain if family in _OF_CLASSES else 0.0


def broken(found: dict[tuple[str, str, int, float], tuple[float, float, float]]) -> list[str]:
    """Return the cells that break a requirement."""
    said = []
    for (family, design, n, epsilon), (mean, error, allowed) in found.items():
        if n * Budget(epsilon=epsilon, delta=_DELTA).mu < LEAST:
            continue
        name = f"{family}, {design}, n {n}, epsilon {epsilon:g}: {mean:.3f}"
        if mean < -allowed - 3.0 * error:
            said.append(f"{name} is worse than the constant")
        for (*kind, fewer, less), (other, its_error, _) in found.items():
            smaller = fewer <= n and less <= epsilon and (fewer, less) != (n, epsilon)
            if (
                kind == [family, design]
                and smaller
                and fewer * Budget(epsilon=less, delta=_DELTA).mu >= LEAST
                and mean < other - 3.0 * float(np.hypot(error, its_error))
            ):
                said.append(f"{name} is worse than n {fewer}, epsilon {less:g}: {other:.3f}")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--records", default="1000,10000,100000")
    parser.add_argument("--draws", type=int, default=5)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    records = [int(n) for n in given.records.split(",")]
    found = {}
    grid = itertools.product(given.families.split(","), ("one_hot", "skewed"), records)
    for (family, design, n), epsilon in itertools.product(grid, (0.3, 1.0, 3.0)):
        each = [share(family, design, n, epsilon, seed) for seed in range(given.draws)]
        shares, allowed = np.array(each).T
        error = float(np.std(shares, ddof=1) / np.sqrt(len(shares)))
        found[family, design, n, epsilon] = float(shares.mean()), error, float(allowed.mean())
        print(f"{family} {design} {n} {epsilon:g} {np.mean(shares):.3f} +- {error:.3f}", flush=True)
    print("\n".join(broken(found) or ["no requirement is broken"]))


if __name__ == "__main__":
    main()
