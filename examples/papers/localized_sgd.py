"""Gao, Lowy, Zhou, Wright 2024: localized SGD beside minibatch SGD over silos that trust nobody.

    python examples/papers/localized_sgd.py [--out DIR] [--draws N] [--quick]

Made-up logistic data: m silos of n records each, 20 features of norm at most 1. A silo's labels
follow a model of its own, the common one plus h times another. The excess risk of a run is its
mean loss on as many fresh records as there are in 100 draws, or 200 000, less the least one.

Nothing is tuned on the private problems: for every method and point the setting of a grid is taken
that did best on other problems from the same generator, which stand for public data.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk
from dpkern.solvers import Objective

D, NORM, FRESH = 20, 4.0, 100_000
CLIPS, STEPS, ROUNDS = (0.1, 0.3), (4.0, 16.0, 64.0), (10, 30, 100)
PUBLIC = (101, 102)
Setting = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Records per silo, silos, epsilon, and heterogeneity h."""

    n: int = 1000
    m: int = 10
    epsilon: float = 1.0
    h: float = 0.5


PANELS = {
    "records of a silo": [Place(n=n) for n in (250, 500, 1000, 2000, 4000)],
    "silos": [Place(m=m) for m in (3, 10, 30, 100)],
    "epsilon": [Place(epsilon=e) for e in (0.25, 0.5, 1.0, 2.0, 4.0)],
    "heterogeneity": [Place(h=h) for h in (0.0, 0.5, 1.0, 2.0)],
}
X_OF = {"records of a silo": "n", "silos": "m", "epsilon": "epsilon", "heterogeneity": "h"}


def grid(**more: Any) -> list[Setting]:
    """Settings of every combination."""
    return [dict(zip(more, values, strict=True)) for values in itertools.product(*more.values())]


SHARED: dict[str, Any] = {"clip": CLIPS, "step_size": STEPS, "rounds": ROUNDS}
ENDS: dict[str, Any] = SHARED | {"returns": ("last", "tail")}
PROX: dict[str, Any] = SHARED | {"prox_step": (300.0, 1000.0, 3000.0, 10000.0)}
METHODS: dict[str, tuple[str, list[Setting]]] = {
    "localized SGD, 2 phases": ("localized_sgd", grid(**PROX, phases=(2,))),
    "localized SGD, 4 phases": ("localized_sgd", grid(**PROX, phases=(4,))),
    "the same in 1 phase": ("localized_sgd", grid(**PROX, phases=(1,))),
    "minibatch SGD": ("minibatch_sgd", grid(**ENDS)),
    "gradient descent, momentum": ("gradient_descent", grid(**ENDS, momentum=(0.5, 0.9))),
    "SGD in one pass": ("prox_sgd", grid(**ENDS)),
}


@dataclass(frozen=True, eq=False)
class Problem:
    """Private records, fresh ones, and the least mean loss of these."""

    data: dpk.SiloData
    fresh: Objective
    least: float

    @classmethod
    def of(cls, place: Place, seed: int) -> "Problem":
        rng = np.random.default_rng(seed)
        common = _direction(rng)
        models = [common + place.h * _direction(rng) for _ in range(place.m)]
        data = records(models, place.n, rng)
        fresh = Objective(records(models, FRESH // place.m, rng), dpk.losses.Logistic())
        return cls(data, fresh, fresh.minimum()[1])


def _direction(rng: np.random.Generator) -> np.ndarray:
    w = rng.standard_normal(D)
    return NORM * w / np.linalg.norm(w)


def records(models: list[np.ndarray], n: int, rng: np.random.Generator) -> dpk.SiloData:
    """n records of each of the silos' models."""
    parts = []
    for w in models:
        X = rng.standard_normal((n, D)) / np.sqrt(D)
        X /= np.maximum(1.0, np.linalg.norm(X, axis=1, keepdims=True))
        margins = np.sqrt(D) * (X @ w)
        parts.append((X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-margins)), 1, -1)))
    return dpk.SiloData.from_silos(parts, row_bound=1.0)


def run(p: Problem, place: Place, solver: str, setting: Setting, seed: int) -> dpk.SolverResult:
    """A run under silo trust; its model is taken as it is."""
    budget = dpk.Budget(epsilon=place.epsilon, delta=place.n**-2.0)
    how = {"trust": "silo", "recalibrate": False, "rng": seed}
    return dpk.solve(solver, p.data, budget=budget, **how, **setting)


def excess(p: Problem, place: Place, solver: str, setting: Setting, seed: int) -> float:
    return p.fresh.value(run(p, place, solver, setting, seed).w) - p.least


def points_of(panel: str, draws: int, quick: bool) -> Iterator[Point]:
    """Every method at every place of a panel."""
    for place in PANELS[panel][:: 3 if quick else 1]:
        public = [Problem.of(place, seed) for seed in PUBLIC[: 1 if quick else 2]]
        private = [Problem.of(place, 1000 + seed) for seed in range(draws)]
        for name, (solver, settings) in METHODS.items():
            few = settings[:: 16 if quick else 1]
            means = [np.mean([excess(p, place, solver, one, 1) for p in public]) for one in few]
            best = few[int(np.argmin(means))]
            found = [excess(p, place, solver, best, i) for i, p in enumerate(private)]
            certificate = run(private[0], place, solver, best, 0).privacy
            delta, symbol = place.n**-2.0, X_OF[panel]
            yield Point(
                panel=panel,
                metric="excess risk",
                optimum=np.nan,
                method=name,
                x=float(getattr(place, symbol)),
                draws=draws,
                score=float(np.mean(found)),
                score_sd=float(np.std(found, ddof=min(1, draws - 1))),
                gap=None,
                gap_sd=None,
                epsilon=place.epsilon,
                delta=delta,
                certified=certificate.epsilon(delta),
                bound=certificate.bound,
            )
            chosen = ", ".join(f"{k} {v:g}" if k != "returns" else str(v) for k, v in best.items())
            tqdm.write(f"{symbol} = {getattr(place, symbol):g}, {name}: {chosen}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Gao, Lowy, Zhou, Wright 2024.")
    parser.add_argument("panels", nargs="*", metavar="PANEL", help=", ".join(X_OF.values()))
    parser.add_argument("--out", type=Path, default=Path("localized_sgd_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, and 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, a minute")
    arguments = parser.parse_args()
    draws = (2 if arguments.quick else 10) if arguments.draws is None else arguments.draws
    if draws < 1:
        parser.error(f"--draws is {draws}; it must be at least 1")
    if unknown := set(arguments.panels) - set(X_OF.values()):
        parser.error(f"there is no panel {min(unknown)!r}; it must be among {[*X_OF.values()]}")
    panels = [panel for panel, x in X_OF.items() if x in (arguments.panels or X_OF.values())]
    start = time.perf_counter()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        points = [point for panel in panels for point in points_of(panel, draws, arguments.quick)]
        print_tables("localized SGD", X_OF, points)
        stem = "_".join(["localized_sgd", *arguments.panels])
        save(arguments.out / stem, "Localized SGD", X_OF, points)
    except OSError as error:
        print(f"localized_sgd.py: {error}", file=sys.stderr)
        return 2
    print(f"\n{time.perf_counter() - start:.0f} s; JSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
