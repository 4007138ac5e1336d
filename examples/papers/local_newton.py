"""Cao, Guo, Zhang 2023, "Privacy-preserving distributed learning via Newton algorithm".

    python examples/papers/local_newton.py [--out DIR] [--draws N] [--sets a9a,synthetic] [--quick]

a9a and ijcnn1 come from the folder in the environment variable DPKERN_DATA; `--sets synthetic`
needs none. The script repeats the paper's figures in shape: accuracy on test records and training
loss after every round, for several budgets mu, numbers of local steps L and step sizes, under sound
accounting and as printed; and then compares, at equal true privacy, every Newton method here with
gradient descent. docs/papers/local_newton.md discusses the outcome.

Everything is fixed before the private records are read: rows are shortened to norm 1, so that a
gradient has norm 1 and a Hessian norm 1/4 at most and nothing is clipped; steps and floors are the
solvers' defaults where no figure varies them. The training loss is a diagnostic that reads the
records without noise.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from public_sets import Task, load
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk

DELTA = 1e-6
SILOS = {"synthetic": 50, "a9a": 50, "ijcnn1": 50}
# Steps of gradient descent: 1 / (L + l2), L = 1/4 for rows of norm 1 and the logistic loss.
DESCENT = {"step_size": 1.0 / (0.25 + 1e-3)}
# The paper's budgets: of the figures over rounds, and of those with several local steps.
MUS = (1.0, 5.0, 10.0)
LOCAL_MUS = {"synthetic": (1.0, 2.0), "a9a": (2.0, 4.0), "ijcnn1": (1.0, 2.0)}
STEP_MUS = {"synthetic": 1.0, "a9a": 5.0, "ijcnn1": 1.0}
EQUAL_MUS = (0.5, 1.0, 2.0, 5.0, 10.0)
ROUNDS = 10
SEED = 0  # of the synthetic records


def synthetic(n: int = 50_000, n_test: int = 10_000, d: int = 10) -> Task:
    """Gaussian rows and labels of a logistic model, as in the paper's section 4.1."""
    rng = np.random.default_rng(SEED)
    w = rng.uniform(-0.5, 0.5, d)
    X = rng.standard_normal((n + n_test, d))
    y = np.where(rng.random(n + n_test) < 1.0 / (1.0 + np.exp(-X @ w)), 1, -1)
    return Task("label of a logistic model", X[:n], y[:n], X[n:], y[n:])


@dataclass(frozen=True, eq=False)
class Problem:
    """A data set in silos, its test records and its noiseless optimum for a penalty."""

    set: str
    task: Task

    @functools.cached_property
    def train(self) -> dpk.SiloData:
        m = SILOS[self.set]
        return dpk.SiloData.split(self.task.X, self.task.y, m, seed=SEED, row_bound=1.0)

    @functools.cached_property
    def test(self) -> dpk.SiloData:
        X, y = self.task.X_test, self.task.y_test
        return dpk.SiloData(X, y, [0, len(y)], row_bound=1.0)

    @functools.cache  # noqa: B019 - problems live as long as the process
    def optimum(self, l2: float) -> tuple[float, float]:
        """Test accuracy and value of the minimiser of the training objective. Not private."""
        loss = dpk.losses.Logistic()
        w, value = dpk.solvers.Objective(self.train, loss, l2=l2).minimum()
        return dpk.solvers.Objective(self.test, loss, l2=l2).accuracy(w), value


@dataclass(frozen=True)
class Curve:
    """A solver with a budget, shown after every round, or only at the end at place x."""

    problem: Problem
    panel: str
    method: str
    solver: str
    mu: float | None
    options: dict[str, Any]
    x: float | None = None


def measure(curve: Curve, draws: int) -> list[Point]:
    """One point a round: means and deviations over draws of the noise."""
    problem, budget = curve.problem, None if curve.mu is None else dpk.Budget(mu=curve.mu)
    best, least = problem.optimum(curve.options["l2"])
    clip = None if budget is None else 1.0
    scores, gaps = [], []
    # None clips no Hessian of a row of norm 1.
    hess_clip = {"hess_clip": None} if "newton" in curve.solver else {}
    for seed in range(draws if budget else 1):
        # The same noise twice: a run has one monitor.
        tested, trained = (
            dpk.solve(
                curve.solver,
                problem.train,
                budget=budget,
                clip=clip,
                rng=seed,
                monitor=monitor,
                **(hess_clip | curve.options),
            )
            for monitor in (problem.test, "train")
        )
        scores.append(tested.history["accuracy"])
        gaps.append(np.subtract(trained.history["objective"], least))
    certificate = tested.privacy
    return [
        Point(
            panel=curve.panel,
            metric="accuracy",
            optimum=best,
            method=curve.method,
            x=r + 1.0 if curve.x is None else curve.x,
            draws=len(scores),
            score=float(np.mean(score)),
            score_sd=float(np.std(score, ddof=min(1, len(score) - 1))),
            gap=float(np.mean(gap)),
            gap_sd=float(np.std(gap, ddof=min(1, len(gap) - 1))),
            epsilon=np.inf if curve.mu is None else curve.mu,
            delta=DELTA,
            certified=certificate.mu,
            bound=certificate.bound,
        )
        for r, (score, gap) in enumerate(zip(np.transpose(scores), np.transpose(gaps), strict=True))
        if curve.x is None or r + 1 == len(scores[0])
    ]


def over_budgets(problem: Problem, quick: bool) -> Iterator[Curve]:
    """Figures 1 to 3: LocalNewton at three budgets, its noiseless run, and GDP-GD."""
    common = {"rounds": ROUNDS, "l2": 1e-3}
    silo = common | {"trust": "silo"}
    for mu in MUS[:: 2 if quick else 1]:
        yield Curve(problem, problem.set, f"mu = {mu:g}", "local_newton", mu, silo)
    yield Curve(problem, problem.set, "no noise", "local_newton", None, silo)
    yield Curve(problem, problem.set, "GDP-GD, mu = 1", "gradient_descent", 1.0, silo | DESCENT)


def over_local_steps(problem: Problem, quick: bool) -> Iterator[Curve]:
    """Figure 4: one or three Newton steps between two rounds."""
    for mu in LOCAL_MUS[problem.set][:: 2 if quick else 1]:
        for L in (1, 3):
            options = {"rounds": 8, "local_steps": L, "l2": 0.5, "trust": "silo"}
            label = f"L = {L}, mu = {mu:g}"
            yield Curve(problem, problem.set, label, "local_newton", mu, options)


def over_steps(problem: Problem, quick: bool) -> Iterator[Curve]:
    """Figure 5: how steps are chosen, sound and as printed."""
    mu = STEP_MUS[problem.set]
    common = {"rounds": ROUNDS, "l2": 1e-3, "trust": "silo"}
    decay = (0.9 ** np.arange(ROUNDS)).tolist()
    strategies: dict[str, dict[str, Any]] = {
        "fixed, 1": {"step_size": 1.0},
        "decay, 0.9^t": {"step_size": decay},
        "damped": {"step_size": "damped"},
        "private search": {"step_size": "private_search"},
        "damped, printed noise": {"step_size": "damped", "calibration": "paper"},
        "printed search": {"step_size": "paper_search", "calibration": "paper"},
    }
    panel = f"{problem.set}, mu = {mu:g}"
    for label, options in list(strategies.items())[:: 5 if quick else 1]:
        yield Curve(problem, panel, label, "local_newton", mu, common | options)


def over_methods(problem: Problem, quick: bool) -> Iterator[Curve]:
    """After ten rounds, at equal true privacy: does Newton win?"""
    common = {"rounds": ROUNDS, "l2": 1e-3}
    silo, central = common | {"trust": "silo"}, common | {"trust": "central"}
    methods: list[tuple[str, str, dict[str, Any]]] = [
        ("LocalNewton, silo", "local_newton", silo),
        ("GDP-GD, silo", "gradient_descent", silo | DESCENT),
        ("Newton, central", "local_newton", central),
        ("double-noise Newton, add", "double_noise_newton", common),
        ("double-noise Newton, clip", "double_noise_newton", common | {"variant": "clip"}),
        ("gradient descent, central", "gradient_descent", central | DESCENT),
    ]
    for mu in EQUAL_MUS[:: 4 if quick else 1]:
        for method in methods:
            yield Curve(problem, problem.set, method[0], method[1], mu, method[2], x=mu)


@dataclass(frozen=True)
class Experiment:
    """One figure."""

    title: str
    x_label: str
    curves: Callable[[Problem, bool], Iterator[Curve]]


EXPERIMENTS = {
    "budgets": Experiment("LocalNewton", "round", over_budgets),
    "local_steps": Experiment("Local steps", "round", over_local_steps),
    "steps": Experiment("Step sizes", "round", over_steps),
    "methods": Experiment("After ten rounds", "mu", over_methods),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Cao, Guo, Zhang 2023 (GDP-LocalNewton), with sound accounting and as printed."
    )
    parser.add_argument("--out", type=Path, default=Path("local_newton_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, less than a minute")
    parser.add_argument("--sets", default=",".join(SILOS), help=f"default: {','.join(SILOS)}")
    arguments = parser.parse_args()
    sets = arguments.sets.split(",")
    if unknown := [name for name in sets if name not in SILOS]:
        parser.error(f"--sets has {unknown[0]!r}; it must be among {', '.join(SILOS)}")
    if arguments.draws is not None and arguments.draws < 1:
        parser.error(f"--draws is {arguments.draws}; it must be at least 1")
    draws = arguments.draws or (2 if arguments.quick else 10)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        problems = [
            Problem(name, synthetic() if name == "synthetic" else load(name)) for name in sets
        ]
        for name, experiment in EXPERIMENTS.items():
            curves = [c for p in problems for c in experiment.curves(p, arguments.quick)]
            points = [
                point
                for curve in tqdm(curves, desc=experiment.title, unit="curve")
                for point in measure(curve, draws)
            ]
            print_tables(experiment.title, experiment.x_label, points, unit="mu")
            save(arguments.out / name, experiment.title, experiment.x_label, points, unit="mu")
    except OSError as error:
        print(f"local_newton.py: {error}", file=sys.stderr)
        return 2
    print(f"\nJSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
