"""The sets of bench.utility, with row bounds that are declared, not read off the records."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from dpkern import SiloData
from dpkern.data import train_test_split
from dpkern.models.losses import get_loss
from dpkern.solvers import Objective
from dpkern.solvers.base.calibration import Calibration
from examples.papers import public_sets
from examples.papers.public_sets import Task


@dataclass(frozen=True)
class Set:
    """A set with its declared row bound, and why that bound holds."""

    name: str
    load: Callable[[], Task]
    row_bound: float
    bound: str
    fitting: str  # whether the constants of the rules were fitted on it: yes, looked at, no


@dataclass(frozen=True)
class Problem:
    """Training records with intercept in one silo, test records, and what needs no privacy."""

    data: SiloData
    task: Task
    majority: float
    optimum: float
    minimiser: NDArray[np.float64]

    def objective(self) -> Objective:
        return Objective(self.data, get_loss("logistic"))

    def accuracies(
        self, models: NDArray[np.float64], lines: Sequence[Calibration | None] = ()
    ) -> NDArray[np.float64]:
        """Test accuracy of every row of `models`, as `SolverResult.score` computes it.

        `lines` are those of log odds, where models have one.
        """
        positive = np.asarray(self.task.y_test) == self.data.classes[1]
        found = []
        for rows in np.array_split(np.arange(len(models)), max(1, len(models) // 64)):
            margins = np.asarray(self.task.X_test @ models[rows, :-1].T) + models[rows, -1]
            for k, line in enumerate(lines[rows[0] : rows[-1] + 1]):
                if line is not None:
                    margins[:, k] = line.apply(margins[:, k])
            found.append(np.mean((margins > 0.0) == positive[:, None], axis=0))
        return np.concatenate(found)

    def gaps(self, models: NDArray[np.float64]) -> list[float]:
        """The training objective above its minimum, at every row of `models`."""
        objective = self.objective()
        return [objective.value(w) - self.optimum for w in models]


def _mnist() -> Task:
    (X, y), (X_test, y_test) = (public_sets.mnist(part) for part in ("train", "t10k"))
    return Task("odd digit", X.astype(np.float32), y % 2, X_test.astype(np.float32), y_test % 2)


def _digits() -> Task:
    table = load_digits()
    parts = train_test_split(table.data / 16.0, table.target % 2, seed=public_sets.SEED)
    return Task("odd digit", *parts)


def _synthetic() -> Task:
    """Features uniform in [-1, 1], labels of law 1 / (1 + exp(-x.w)), w a Gaussian vector."""
    rng, n, d = np.random.default_rng(0), 20_000, 40
    X, w = rng.uniform(-1.0, 1.0, (2 * n, d)), rng.standard_normal(d)
    y = np.where(rng.uniform(size=2 * n) * (1.0 + np.exp(-X @ w)) < 1.0, 1, -1)
    return Task("label of a logistic model", X[:n], y[:n], X[n:], y[n:])


def _public(name: str) -> Callable[[], Task]:
    return functools.partial(public_sets.load, name)


_SCALED = "longer rows are scaled down to it"
SETS = {
    it.name: it
    for it in (
        Set("a9a", _public("a9a"), math.sqrt(14), "14 of 123 features are 1", "yes"),
        Set("adult", _public("adult"), math.sqrt(12), "5 features in [0, 1], 7 of 43 are 1", "yes"),
        Set("wdbc", _public("wdbc"), math.sqrt(30), "30 features in [-1, 1]", "yes"),
        Set("wisconsin", _public("wisconsin"), 3.0, "9 features in [-1, 1]", "yes"),
        Set("ijcnn1", _public("ijcnn1"), math.sqrt(22), "22 features in [-1, 1]", "looked at"),
        Set("ijcnn1_tight", _public("ijcnn1"), 2.0, _SCALED, "looked at"),
        Set("digits", _digits, 8.0, "64 features in [0, 1]", "no"),
        Set("synthetic", _synthetic, math.sqrt(40), "40 features in [-1, 1]", "no"),
        Set("mnist", _mnist, 10.0, _SCALED, "looked at"),
    )
}


@functools.lru_cache(maxsize=1)
def problem(name: str) -> Problem:
    """Read a set and minimise its objective without noise."""
    it = SETS[name]
    task = it.load()
    data = SiloData.split(task.X, task.y, m=1, row_bound=it.row_bound, intercept=True, seed=0)
    found = Problem(data, task, _majority(task.y_test), math.nan, np.zeros(data.d))
    minimiser, optimum = found.objective().minimum()
    return Problem(data, task, found.majority, optimum, minimiser)


def _majority(y: NDArray[np.float64]) -> float:
    return float(np.unique(y, return_counts=True)[1].max() / len(y))
