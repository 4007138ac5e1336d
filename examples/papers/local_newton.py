"""Cao, Guo, Zhang 2023, "Privacy-preserving distributed learning via Newton algorithm".

    python examples/papers/local_newton.py figure1 [--quick] [--sound] [--sets a9a,synthetic]

One command for each of the paper's figures, with its axes:

    figure1, figure2    training loss, test accuracy over rounds for budgets mu, and GDP-GD
    figure3             one and three local steps
    figure4, figure5    strategies for the step: synthetic records; a9a and ijcnn1

and two for what the paper does not show: `truncation` (the loss for several levels at which
eigenvalues are truncated) and `baselines` (Newton's methods and gradient descent with and without
momentum, at equal true privacy). Several commands may be named; none means all.

The figures are in the paper's own setting: rows as they are, nothing clipped, the printed noise,
steps of at most alpha* = 0.03 by the printed search, eigenvalues truncated at 1e-3. The paper does
not state its bounds of gradients and Hessians: here they are those of the largest row. `--sound`
repeats them under sound accounting, with rows shortened to norm 1, and steps and truncation by the
solver's defaults. docs/papers/local_newton.md discusses the outcome.

a9a and ijcnn1 come from the folder in the environment variable DPKERN_DATA, and so does covtype
where its file is there (`--sets covtype`); `--sets synthetic` needs none. Training loss and gap
read the records without noise: a diagnostic, NOT PRIVATE.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from public_sets import Task, covtype, load
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk

DELTA = 1e-6
M = 50  # silos
SEED = 0  # of the synthetic records and of the split
ROUNDS = 10
MUS = (1.0, 5.0, 10.0)
ALPHA = 0.03  # alpha*
TRUNCATION = 1e-3
# The largest norms of rows: 14 attributes of a9a are one; 4 of 50 000 Gaussian rows are longer.
LARGEST = {"synthetic": 6.0, "a9a": math.sqrt(14.0), "ijcnn1": 2.0, "covtype": math.sqrt(12.0)}
DEFAULT_SETS = ("synthetic", "a9a", "ijcnn1")
LOCAL_MUS = {"synthetic": (1.0, 2.0), "a9a": (2.0, 4.0), "ijcnn1": (1.0, 2.0)}
STEP_MUS = {"synthetic": (1.0, 5.0), "a9a": (5.0, 10.0), "ijcnn1": (1.0, 5.0)}
EQUAL_MUS = (0.5, 1.0, 2.0, 5.0, 10.0)
Options = dict[str, Any]


def synthetic(n: int = 50_000, n_test: int = 10_000, d: int = 10) -> Task:
    """Gaussian rows and labels of a logistic model, as in the paper's section 3."""
    rng = np.random.default_rng(SEED)
    w = rng.uniform(-0.5, 0.5, d)
    X = rng.standard_normal((n + n_test, d))
    y = np.where(rng.random(n + n_test) < 1.0 / (1.0 + np.exp(-X @ w)), 1, -1)
    return Task("label of a logistic model", X[:n], y[:n], X[n:], y[n:])


SPECIAL = {"synthetic": synthetic, "covtype": covtype}


@dataclass(frozen=True, eq=False)
class Problem:
    """A data set in silos, its test records and its noiseless optimum for a penalty."""

    set: str
    task: Task
    sound: bool

    @property
    def bound(self) -> float:
        """Of rows: longer ones are shortened."""
        return 1.0 if self.sound else LARGEST[self.set]

    @functools.cached_property
    def train(self) -> dpk.SiloData:
        how = {"seed": SEED, "row_bound": self.bound}
        return dpk.SiloData.split(self.task.X, self.task.y, M, **how)

    @functools.cached_property
    def test(self) -> dpk.SiloData:
        X, y = self.task.X_test, self.task.y_test
        return dpk.SiloData(X, y, [0, len(y)], row_bound=self.bound)

    @functools.cache  # noqa: B019 - problems live as long as the process
    def objective(self, l2: float) -> dpk.solvers.Objective:
        return dpk.solvers.Objective(self.train, dpk.losses.Logistic(), l2=l2)

    @functools.cache  # noqa: B019 - problems live as long as the process
    def optimum(self, l2: float) -> tuple[float, float]:
        """Test accuracy and value of the minimiser of the training objective. Not private."""
        w, value = self.objective(l2).minimum()
        return self.accuracy(w), value

    def accuracy(self, w: Any) -> float:
        return dpk.solvers.Objective(self.test, dpk.losses.Logistic()).accuracy(w)


@dataclass(frozen=True)
class Curve:
    """A solver with a budget, shown after every round, or only at the end at place x."""

    problem: Problem
    panel: str
    method: str
    solver: str
    mu: float | None
    options: Options
    x: float | None = None


def measure(curve: Curve, draws: int, shown: str) -> list[Point]:
    """One point a round: means and deviations over draws of the noise.

    `shown` is "accuracy" of test records, the "training loss", or "gap" for accuracy and gap.
    """
    problem, budget = curve.problem, None if curve.mu is None else dpk.Budget(mu=curve.mu)
    best, least = problem.optimum(curve.options["l2"])
    bounds: Options = {"clip": problem.bound if budget else None}
    if curve.solver == "local_newton":
        bounds["hess_clip"] = problem.bound**2 / 4.0 if budget else None
    elif curve.solver == "double_noise_newton":
        bounds["hess_clip"] = None  # clips no Hessian of a row of norm 1
    scores, gaps = [], []
    for seed in range(draws if budget else 1):
        run = functools.partial(
            dpk.solve, curve.solver, problem.train, budget=budget, rng=seed,
            **(bounds | curve.options),
        )  # fmt: skip
        if curve.x is not None:
            result = run()
            scores.append([problem.accuracy(result.w)])
            gaps.append([problem.objective(curve.options["l2"]).value(result.w) - least])
            continue
        if shown != "training loss":
            result = run(monitor=problem.test)
            scores.append(result.history["accuracy"])
        if shown != "accuracy":
            result = run(monitor="train")
            gaps.append(np.subtract(result.history["objective"], least if shown == "gap" else 0.0))
    loss = shown == "training loss"
    main, other = (gaps, None) if loss else (scores, gaps or None)
    certificate = result.privacy
    mean, sd = np.mean(main, axis=0), np.std(main, axis=0, ddof=min(1, len(main) - 1))
    if other:
        gap, gap_sd = np.mean(other, axis=0), np.std(other, axis=0, ddof=min(1, len(other) - 1))
    return [
        Point(
            panel=curve.panel,
            metric=shown if loss else "accuracy",
            optimum=least if loss else best,
            method=curve.method,
            x=r + 1.0 if curve.x is None else curve.x,
            draws=len(main),
            score=float(mean[r]),
            score_sd=float(sd[r]),
            gap=float(gap[r]) if other else None,
            gap_sd=float(gap_sd[r]) if other else None,
            epsilon=np.inf if curve.mu is None else curve.mu,
            delta=DELTA,
            certified=certificate.mu,
            bound=certificate.bound,
        )
        for r in range(len(mean))
    ]


def newton(problem: Problem, mu: float | None, **options: Any) -> Options:
    """Options of LocalNewton: the paper's, or the solver's defaults under sound accounting."""
    common: Options = {"rounds": ROUNDS, "l2": 1e-3, "trust": "silo"}
    if not problem.sound:
        common |= {"step_size": ALPHA, "floor": TRUNCATION}
        if mu is not None:
            search = {"step_size": "paper_search", "max_step": ALPHA, "calibration": "paper"}
            common |= search
    return common | options


def descent(problem: Problem, **options: Any) -> Options:
    """GDP-GD: the same step as LocalNewton in the paper, 1 / (largest curvature) otherwise."""
    step = 1.0 / (0.25 + 1e-3) if problem.sound else ALPHA
    plain = {"rounds": ROUNDS, "l2": 1e-3, "trust": "silo", "step_size": step}
    return plain | {"momentum": 0.0, "returns": "last"} | options


def over_budgets(problem: Problem, quick: bool) -> Iterator[Curve]:
    """LocalNewton at three budgets, its noiseless run, and GDP-GD."""
    for mu in (*MUS[:: 2 if quick else 1], None):
        label = "no noise" if mu is None else f"mu = {mu:g}"
        yield Curve(problem, problem.set, label, "local_newton", mu, newton(problem, mu))
    gd = descent(problem)
    yield Curve(problem, problem.set, "GDP-GD, mu = 1", "gradient_descent", 1.0, gd)


def over_local_steps(problem: Problem, quick: bool) -> Iterator[Curve]:
    """One or three Newton steps between two rounds, l2 = 0.5."""
    for mu in LOCAL_MUS.get(problem.set, (1.0, 2.0))[:: 2 if quick else 1]:
        for L in (1, 3):
            options = newton(problem, mu, rounds=8, local_steps=L, l2=0.5)
            label = f"L = {L}, mu = {mu:g}"
            yield Curve(problem, problem.set, label, "local_newton", mu, options)


def over_steps(problem: Problem, quick: bool) -> Iterator[Curve]:
    """The search, a fixed step and decaying steps alpha* r^t."""
    times = np.arange(ROUNDS)
    for mu in STEP_MUS.get(problem.set, (1.0, 5.0))[:: 2 if quick else 1]:
        decays = (0.9, 0.1) if problem.set == "a9a" else (0.5, 0.1)
        if problem.sound:
            rules: dict[str, Options] = {
                "fixed, 1": {"step_size": 1.0},
                "decay, 0.9^t": {"step_size": (0.9**times).tolist()},
                "damped": {"step_size": "damped"},
                "private search": {"step_size": "private_search"},
                "damped, printed noise": {"step_size": "damped", "calibration": "paper"},
            }
        else:
            rules = {"search": {}, "fixed, 0.03": {"step_size": ALPHA}}
            for r in decays:
                rules[f"decay, 0.03 x {r:g}^t"] = {"step_size": (ALPHA * r**times).tolist()}
        panel = f"{problem.set}, mu = {mu:g}"
        for label, rule in rules.items():
            yield Curve(problem, panel, label, "local_newton", mu, newton(problem, mu, **rule))


def over_truncations(problem: Problem, quick: bool) -> Iterator[Curve]:
    """The levels at which eigenvalues are truncated: why the order of the budgets turns."""
    for floor in (1e-3, 0.5) if quick else (1e-3, 1e-2, 0.05, 0.5):
        for mu in (*MUS, None):
            label = "no noise" if mu is None else f"mu = {mu:g}"
            options = newton(problem, mu, floor=floor)
            panel = f"{problem.set}, truncated at {floor:g}"
            yield Curve(problem, panel, label, "local_newton", mu, options)


def over_baselines(problem: Problem, quick: bool) -> Iterator[Curve]:
    """After ten rounds, at equal true privacy: where does Newton win?"""
    defaults = {"rounds": ROUNDS, "l2": 1e-3}
    silo = defaults | {"trust": "silo"}
    central = {"trust": "central"}
    automatic = silo | {"clip": "auto"}
    methods: list[tuple[str, str, Options]] = [
        ("LocalNewton, silo", "local_newton", silo),
        ("GDP-GD, silo", "gradient_descent", descent(problem)),
        ("momentum 0.9, silo", "gradient_descent", descent(problem, momentum=0.9)),
        ("descent, defaults, silo", "gradient_descent", automatic),
        ("Newton, central", "local_newton", defaults | central),
        ("double-noise Newton, add", "double_noise_newton", defaults),
        ("double-noise Newton, clip", "double_noise_newton", defaults | {"variant": "clip"}),
        ("descent, central", "gradient_descent", descent(problem, **central)),
        ("momentum 0.9, central", "gradient_descent", descent(problem, momentum=0.9, **central)),
    ]
    for mu in EQUAL_MUS[:: 4 if quick else 1]:
        for label, solver, options in methods:
            yield Curve(problem, problem.set, label, solver, mu, options, x=mu)


@dataclass(frozen=True)
class Figure:
    """What a command draws: `shown` in the paper's setting; sound runs show accuracy and gap."""

    title: str
    shown: str
    curves: Callable[[Problem, bool], Iterator[Curve]]
    sets: tuple[str, ...] | None = None
    x_label: str = "round"


FIGURES = {
    "figure1": Figure("Training loss", "training loss", over_budgets),
    "figure2": Figure("Test accuracy", "accuracy", over_budgets),
    "figure3": Figure("Local steps", "training loss", over_local_steps),
    "figure4": Figure("Step sizes, synthetic", "training loss", over_steps, ("synthetic",)),
    "figure5": Figure("Step sizes", "training loss", over_steps, ("a9a", "ijcnn1")),
    "truncation": Figure("Truncation", "training loss", over_truncations, ("a9a",)),
    "baselines": Figure("After ten rounds", "gap", over_baselines, x_label="mu"),
}


def draw_figure(name: str, sets: list[str], arguments: argparse.Namespace) -> None:
    figure = FIGURES[name]
    sound = arguments.sound or name == "baselines"
    shown = "gap" if sound else figure.shown
    chosen = [s for s in sets if figure.sets is None or s in (*figure.sets, "covtype")]
    if not chosen:
        print(f"{name}: none of its sets {figure.sets} is in --sets")
        return
    start, draws = time.perf_counter(), arguments.draws or (2 if arguments.quick else 10)
    curves = [c for s in chosen for c in figure.curves(problem_of(s, sound), arguments.quick)]
    points = [
        point
        for curve in tqdm(curves, desc=name, unit="curve", leave=False)
        for point in measure(curve, draws, shown)
    ]
    title = f"{figure.title}, {'sound' if sound else 'as printed'}"
    print_tables(title, figure.x_label, points, unit="mu")
    stem = f"{name}_sound" if arguments.sound else name
    save(arguments.out / stem, title, figure.x_label, points, unit="mu")
    print(f"{name}: {time.perf_counter() - start:.0f} s; losses and gaps are NOT PRIVATE")


@functools.cache
def problem_of(name: str, sound: bool) -> Problem:
    return Problem(name, SPECIAL[name]() if name in SPECIAL else load(name), sound)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Cao, Guo, Zhang 2023 (GDP-LocalNewton), as printed and with sound accounting."
    )
    parser.add_argument("figures", nargs="*", metavar="COMMAND", help=", ".join(FIGURES))
    parser.add_argument("--out", type=Path, default=Path("local_newton_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer points, less than a minute")
    parser.add_argument("--sound", action="store_true", help="rows of norm 1, sound accounting")
    default = ",".join(DEFAULT_SETS)
    parser.add_argument("--sets", default=default, help=f"of {', '.join(LARGEST)}; {default}")
    arguments = parser.parse_args()
    sets = arguments.sets.split(",")
    if unknown := [name for name in sets if name not in LARGEST]:
        parser.error(f"--sets has {unknown[0]!r}; it must be among {', '.join(LARGEST)}")
    if unknown := [name for name in arguments.figures if name not in FIGURES]:
        parser.error(f"there is no command {unknown[0]!r}; it must be among {', '.join(FIGURES)}")
    if arguments.draws is not None and arguments.draws < 1:
        parser.error(f"--draws is {arguments.draws}; it must be at least 1")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name in arguments.figures or FIGURES:
            draw_figure(name, sets, arguments)
    except OSError as error:
        print(f"local_newton.py: {error}", file=sys.stderr)
        return 2
    print(f"\nJSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
