"""Lowy, Ghafelebashi, Razaviyayn 2023: private non-convex learning without a trusted server.

    python examples/papers/isrl_spider.py [--quick] [--out DIR] [--splits N]
    python examples/papers/isrl_spider.py mnist_12_25 [--quick]

Commands are wisconsin, mnist, mnist_25_50, mnist_12_25 and mnist_12_50 (12 of 25 silos, 25 or 50
rounds), convex and bound; none means the first five.

Two of the paper's problems, each a multilayer perceptron across silos that trust nobody: the
Wisconsin diagnostic set in 2 silos of one class each, and MNIST, odd or even, in 25 silos that hold
one even and one odd digit each. MNIST comes from the folder in the environment variable
DPKERN_DATA; without it only the first is run. SPIDER, minibatch SGD and local SGD: test error for
every budget over repeated splits into training and test records, with sound accounting and with the
paper's noise, and without noise; of MNIST with sound accounting also more rounds and fewer silos in
each. convex is a convex problem: logistic regression on a9a in 10 silos, from the same
folder, where differences of gradients take half the noise. bound runs SPIDER on MNIST at the q
and R of Theorem 3.1, and its bound beside what is measured. docs/papers/isrl_spider.md discusses
the outcome.

Nothing is tuned on private records. For every method and level of the budget, the setting is taken
that does best on public ones: MNIST's test file in as many silos of the same size, made-up records
in place of the Wisconsin ones, and a9a's test file. MNIST's 50 features are the first principal
components of the test file, which is declared public and used in no test; private are records of
its other file. The convex problem's settings are those of the least training objective.
"""

import argparse
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import public_sets
from public_sets import mnist_features
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk
from dpkern import datasets
from dpkern.papers import bounds, diagnostics
from dpkern.solvers import Objective

EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)
LEVELS = (1.0, 4.0, 15.0)  # the budgets that settings are chosen at: each serves those nearby
FEATURES = 50  # of MNIST
PER_DIGIT = 774  # records of a digit in a silo: a seventh of the rarest digit's
TRAIN = 0.8

NOISE = ("clip", "smoothness", "refresh_share")  # settings that do nothing without a budget

Setting = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training records in silos, and test records, for a perceptron or, without hidden units, for
    logistic regression."""

    train: dpk.SiloData
    X_test: Any
    y_test: np.ndarray
    hidden: int | None
    options: Setting = field(default_factory=dict)

    @property
    def delta(self) -> float:
        return float(self.train.sizes.min()) ** -2.0

    @functools.cached_property
    def objective(self) -> Objective:
        """The convex training objective, without penalties."""
        return Objective(self.train, dpk.losses.get_loss("logistic"), weights="uniform")

    @functools.cached_property
    def minimum(self) -> tuple[np.ndarray, float]:
        return self.objective.minimum()

    def error(self, result: dpk.SolverResult) -> float:
        return 1.0 - result.score(self.X_test, self.y_test)

    def gap(self, result: dpk.SolverResult) -> float | None:
        """The training objective above its minimum, where there is only one."""
        return None if self.hidden else self.objective.value(result.w) - self.minimum[1]

    def least_error(self) -> float:
        """The test error of the minimiser."""
        w = self.minimum[0]
        predicted = np.where(self.X_test @ w[:-1] + w[-1] > 0.0, *self.train.classes[::-1])
        return float(np.mean(predicted != self.y_test))

    def badness(self, result: dpk.SolverResult) -> float:
        """What settings are chosen by."""
        gap = self.gap(result)
        return self.error(result) if gap is None else gap


def federation(
    silos: Iterable[tuple[np.ndarray, np.ndarray]], hidden: int, rng: np.random.Generator
) -> Problem:
    """Every silo split into training and test records."""
    train, test = [], []
    for X, y in silos:
        order = rng.permutation(len(y))
        cut = round(TRAIN * len(y))
        train.append((X[order[:cut]], y[order[:cut]]))
        test.append((X[order[cut:]], y[order[cut:]]))
    data = dpk.SiloData.from_silos(train, task="multiclass", classes=[0, 1])
    return Problem(
        data, np.concatenate([X for X, _ in test]), np.hstack([y for _, y in test]), hidden
    )


def wisconsin(seed: int) -> Problem:
    table = datasets.wisconsin_table()
    lo, hi = datasets.wisconsin_feature_range()
    X = (2.0 * table.X - (hi + lo)) / (hi - lo)
    silos = [(X[table.y == k], table.y[table.y == k]) for k in (0, 1)]
    return federation(silos, 5, np.random.default_rng(seed))


def made_up(seed: int) -> Problem:
    """Two classes of 30 features in the Wisconsin problem's place, of its sizes.

    Features share a factor, as measures of size do, and differ in how much they say.
    """
    rng = np.random.default_rng(1000 + seed)
    says, shares = rng.uniform(0.0, 0.25, 30), rng.uniform(0.0, 0.15, 30)
    silos = []
    for k, n in enumerate((212, 357)):
        X = -0.5 - (2 * k - 1) * says + shares * rng.standard_normal((n, 1))
        X += 0.2 * rng.standard_normal((n, 30))
        silos.append((np.clip(X, -1.0, 1.0), np.full(n, k)))
    return federation(silos, 5, rng)


@functools.cache
def digits(part: str) -> tuple[np.ndarray, ...]:
    """The records of every digit, as features."""
    F, y = mnist_features(part, FEATURES)
    return tuple(F[y == k] for k in range(10))


PAIRS = tuple(itertools.product(range(5), repeat=2))  # of silos: digits 2 i and 2 j + 1


def pairs(seed: int) -> Problem:
    """25 silos of an even and an odd digit; no record is in two of them."""
    rng = np.random.default_rng(seed)
    shuffled = [rng.permutation(F) for F in digits("train")]
    silos = []
    for i, j in PAIRS:
        chunks = [
            shuffled[digit][turn * PER_DIGIT : (turn + 1) * PER_DIGIT]
            for digit, turn in ((2 * i, j), (2 * j + 1, i))
        ]
        silos.append((np.concatenate(chunks), np.repeat([0, 1], PER_DIGIT)))
    return federation(silos, 64, rng)


def public_pairs(seed: int) -> Problem:
    """As many silos of as many public records; the five silos of a digit have the same ones."""
    rng = np.random.default_rng(seed)
    n = round(TRAIN * PER_DIGIT)
    shuffled = [rng.permutation(F) for F in digits("t10k")]
    silos = [
        (np.concatenate([shuffled[2 * i][:n], shuffled[2 * j + 1][:n]]), np.repeat([0, 1], n))
        for i, j in PAIRS
    ]
    train = dpk.SiloData.from_silos(silos, task="multiclass", classes=[0, 1])
    rest = [F[n:] for F in shuffled]
    labels = np.concatenate([np.full(len(F), digit % 2) for digit, F in enumerate(rest)])
    return Problem(train, np.concatenate(rest), labels, 64)


N_SILOS, OF_A_SILO = 10, 1238  # of a9a, and records in each: as many as of MNIST


def a9a_part(private: bool, seed: int) -> Problem:
    """Logistic regression on records of a9a's training file, or of its public test file."""
    task = public_sets.load("a9a")
    X, y = (task.X, task.y) if private else (task.X_test, task.y_test)
    order = np.random.default_rng(seed).permutation(len(y))
    here, rest = order[: N_SILOS * OF_A_SILO], order[N_SILOS * OF_A_SILO :]
    offsets = OF_A_SILO * np.arange(N_SILOS + 1)
    # 14 of 123 features are 1, and the intercept.
    options = {"row_bound": float(np.sqrt(15.0)), "intercept": True}
    return Problem(dpk.SiloData(X[here], y[here], offsets, **options), X[rest], y[rest], None)


@dataclass(frozen=True)
class Method:
    """A solver and the grid of its settings."""

    solver: str
    grid: dict[str, tuple[Any, ...]]

    def settings(self, private: bool) -> Iterator[Setting]:
        grid = {k: v for k, v in self.grid.items() if private or k not in NOISE}
        for values in itertools.product(*grid.values()):
            yield dict(zip(grid, values, strict=True))


def solve(
    problem: Problem, solver: str, setting: Setting, epsilon: float | None, seed: int
) -> dpk.SolverResult:
    """One run; seeded, so that the figures can be repeated."""
    options = problem.options | setting
    smoothness = options.pop("smoothness", np.inf)
    if problem.hidden:
        options["model"] = dpk.MLP(hidden=(problem.hidden,), seed=seed, smoothness=smoothness)
    return dpk.solve(
        solver,
        problem.train,
        budget=None if epsilon is None else dpk.Budget(epsilon=epsilon, delta=problem.delta),
        weights="uniform",
        trust="silo",
        rng=seed,
        n_threads=1,
        **options,
    )


STEPS = {"clip": (0.1, 0.3, 1.0), "step_size": (0.3, 1.0, 3.0, 10.0)}
LONG_STEPS = {"clip": (2.0, 8.0), "step_size": (1.0, 2.0, 4.0, 8.0)}
LINEAR_STEPS = {"clip": (0.5, 1.0, 2.0, 4.0), "step_size": (0.25, 0.5, 1.0, 2.0, 4.0)}
GUESSES = {"smoothness": (0.3, 1.0)}  # of perceptrons; of a linear model it is known


def methods(steps: dict[str, tuple[Any, ...]], **guesses: tuple[Any, ...]) -> dict[str, Method]:
    """Of each solver; local steps are shorter, and SPIDER with refresh_every 1 is minibatch SGD."""
    local = steps | {"step_size": tuple(step / 2.0 for step in steps["step_size"])}
    share = {"refresh_share": (0.5, 0.95)}
    spider = steps | {"refresh_every": (2, 4)} | guesses | share
    return {
        "SPIDER": Method("spider", spider),
        "minibatch SGD": Method("minibatch_sgd", steps),
        "local SGD": Method("local_sgd", local | {"local_steps": (2, 5)}),
    }


@dataclass(frozen=True)
class Experiment:
    """A private problem and public ones like it, the methods' grids, and the number of splits."""

    private: Callable[[int], Problem]
    public: Callable[[int], Problem]
    n_public: int
    methods: dict[str, Method]
    splits: int
    options: Setting
    epsilons: tuple[float, ...] = EPSILONS
    printed: bool = True


WISCONSIN, MNIST = "Wisconsin diagnostic", "MNIST, odd or even"
CONVEX = tuple(f"a9a, logistic regression, {rounds} rounds" for rounds in (25, 100))
# Two updates in a round: the grid has shorter steps too.
TWO_STEPS = LONG_STEPS | {"step_size": (0.25, 0.5, *LONG_STEPS["step_size"])}
OF_MNIST = methods(LONG_STEPS, **GUESSES) | {
    "SPIDER, alternate": Method(
        "spider", TWO_STEPS | {"variant": ("alternate",), "refresh_share": (0.5, 0.95)}
    )
}
EXPERIMENTS = {
    WISCONSIN: Experiment(wisconsin, made_up, 10, methods(STEPS, **GUESSES), 50, {"rounds": 25}),
    MNIST: Experiment(pairs, public_pairs, 1, methods(LONG_STEPS, **GUESSES), 8, {"rounds": 25}),
} | {
    f"MNIST, {available} of 25 silos, {rounds} rounds": Experiment(
        *(pairs, public_pairs, 1, OF_MNIST, 4),
        options={"rounds": rounds, "participation": available},
        epsilons=(0.75, 3.0, 12.0),
        printed=False,
    )
    for available, rounds in ((25, 50), (12, 25), (12, 50))
}
EXPERIMENTS |= {
    panel: Experiment(
        functools.partial(a9a_part, True),
        functools.partial(a9a_part, False),
        *(2, methods(LINEAR_STEPS), 20),
        options={"rounds": rounds},
        epsilons=(0.75, 1.5, 3.0, 6.0, 12.0),
        printed=False,
    )
    for panel, rounds in zip(CONVEX, (25, 100), strict=True)
}


def chosen(method: Method, epsilon: float | None, public: list[Problem], quick: bool) -> Setting:
    """The setting of the grid that does best on public problems."""

    def error(setting: Setting) -> float:
        runs = (
            p.badness(solve(p, method.solver, setting, epsilon, seed))
            for seed, p in enumerate(public)
        )
        return float(np.mean(list(runs)))

    return min(list(method.settings(epsilon is not None))[:: 40 if quick else 1], key=error)


def level(epsilon: float) -> float:
    """The budget that its settings are chosen at."""
    return min(LEVELS, key=lambda chosen_at: abs(np.log(epsilon / chosen_at)))


def measure(
    panel: str,
    name: str,
    solver: str,
    setting: Setting,
    epsilon: float | None,
    private: list[Problem],
) -> Point:
    """Means and deviations over splits, each with a start and noise of its own."""
    runs = [solve(p, solver, setting, epsilon, seed) for seed, p in enumerate(private)]
    errors = [p.error(run) for p, run in zip(private, runs, strict=True)]
    gaps = [gap for p, run in zip(private, runs, strict=True) if (gap := p.gap(run)) is not None]
    delta, certificate = private[0].delta, runs[0].privacy
    return Point(
        panel=panel,
        metric="test error",
        optimum=np.nan,
        method=name,
        x=np.inf if epsilon is None else epsilon,
        draws=len(runs),
        score=float(np.mean(errors)),
        score_sd=float(np.std(errors, ddof=min(1, len(errors) - 1))),
        gap=float(np.mean(gaps)) if gaps else None,
        gap_sd=float(np.std(gaps, ddof=min(1, len(gaps) - 1))) if gaps else None,
        epsilon=np.inf if epsilon is None else epsilon,
        delta=delta,
        certified=certificate.epsilon(delta),
        bound=certificate.bound,
    )


def points_of(panel: str, splits: int | None, quick: bool) -> list[Point]:
    """Every method without noise, and for every budget with sound and with printed noise."""
    experiment = EXPERIMENTS[panel]
    splits = splits or (2 if quick else experiment.splits)
    public, private = (
        [replace(problem(seed), options=experiment.options) for seed in range(number)]
        for problem, number in (
            (experiment.public, 1 if quick else experiment.n_public),
            (experiment.private, splits),
        )
    )
    budgets: list[float | None] = [None, *experiment.epsilons[:: 6 if quick else 1]]
    points, settings = [], {}
    for (name, method), epsilon in tqdm(
        list(itertools.product(experiment.methods.items(), budgets)), desc=panel, unit="point"
    ):
        at = None if epsilon is None else level(epsilon)
        if (name, at) not in settings:
            settings[name, at] = chosen(method, at, public, quick)
        setting = settings[name, at]
        points.append(measure(panel, name, method.solver, setting, epsilon, private))
        if epsilon is not None and experiment.printed:
            setting = setting | {"calibration": "paper"}
            label = f"{name}, printed"
            points.append(measure(panel, label, method.solver, setting, epsilon, private))
    print(f"\n{panel}, chosen on public records:")
    for (name, at), setting in settings.items():
        budget = "no noise" if at is None else f"epsilon near {at:g}"
        print(f"  {name}, {budget}: " + ", ".join(f"{k} {v}" for k, v in setting.items()))
    if private[0].hidden:
        least = min(p.score for p in points if p.method == "minibatch SGD" and p.x == np.inf)
    else:
        least = float(np.mean([problem.least_error() for problem in private]))
    return [replace(point, optimum=least) for point in points]


COMMANDS: dict[str, tuple[str, ...]] = {
    "wisconsin": (WISCONSIN,),
    "mnist": (MNIST,),
    **{
        f"mnist_{available}_{rounds}": (f"MNIST, {available} of 25 silos, {rounds} rounds",)
        for available, rounds in ((25, 50), (12, 25), (12, 50))
    },
    "convex": CONVEX,
    "bound": (),
}
LIPSCHITZ, SMOOTHNESS = 2.0, 1.0  # of Theorem 3.1: the clip norm, and a guess


def show_bound(splits: int, epsilons: tuple[float, ...]) -> None:
    """SPIDER and minibatch SGD at the settings of Theorem 3.1: |prox-gradient|^2 and test error."""
    print(f"MNIST, Theorem 3.1, L = 2, beta = 1, {splits} splits. NOT PRIVATE.")
    heads = ("epsilon", "q", "R", "below", "Theorem 3.1", "at w_0", "SPIDER", "minibatch")
    print("".join(f"{head:>12}" for head in heads) + f"{'test errors':>20}")
    for epsilon in epsilons:
        rows = []
        for seed in range(splits):
            p = pairs(seed)
            model = dpk.MLP(hidden=(p.hidden,), seed=seed, smoothness=SMOOTHNESS)
            J = Objective(p.train, model, weights="uniform")
            w, m, n = J.start(), p.train.m, int(p.train.sizes.min())
            public = {
                "clip": LIPSCHITZ, "smoothness": SMOOTHNESS, "dim": J.dim, "n": n, "m": m,
                "epsilon": epsilon, "delta": p.delta, "gap": J.value(w),
            }  # fmt: skip
            q, R, eta = bounds.choose_spider(**public)
            how = {"clip": LIPSCHITZ, "step_size": eta, "rounds": R, "returns": "last"}
            spider = {"smoothness": SMOOTHNESS, "refresh_every": q}
            runs = [
                solve(p, "spider", how | spider, epsilon, seed),
                solve(p, "minibatch_sgd", how, epsilon, seed),
            ]
            squares = [diagnostics.measure_prox_gradient(J, v, eta) ** 2 for v in
                       (w, *(run.w for run in runs))]  # fmt: skip
            keys = ("clip", "dim", "m", "n", "epsilon")
            below = bounds.bound_gradient_below(trust="silo", **{k: public[k] for k in keys})
            errors = [100.0 * p.error(run) for run in runs]
            rows.append([q, R, below, bounds.bound_spider(**public), *squares, *errors])
        means = np.mean(rows, axis=0)
        cells = "".join(f"{value:12.3g}" for value in (epsilon, *means[:7]))
        print(f"{cells}{means[7]:11.1f} % {means[8]:6.1f} %")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Lowy, Ghafelebashi, Razaviyayn 2023 (SPIDER), sound and as printed."
    )
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--out", type=Path, default=Path("isrl_spider_results"), metavar="DIR")
    parser.add_argument("--splits", type=int, metavar="N", help="50, 8 and 4, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, a minute")
    arguments = parser.parse_args()
    if arguments.splits is not None and arguments.splits < 1:
        parser.error(f"--splits is {arguments.splits}; it must be at least 1")
    if unknown := [name for name in arguments.commands if name not in COMMANDS]:
        parser.error(f"there is no command {unknown[0]!r}; it must be among {', '.join(COMMANDS)}")
    commands = arguments.commands or [c for c in COMMANDS if c not in ("convex", "bound")]
    if not arguments.commands and not os.environ.get("DPKERN_DATA"):
        print("without MNIST: the environment variable DPKERN_DATA is not set")
        commands = ["wisconsin"]
    start = time.perf_counter()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        points = [
            point
            for command in commands
            for panel in COMMANDS[command]
            for point in points_of(panel, arguments.splits, arguments.quick)
        ]
        if points:
            print_tables("SPIDER", "epsilon", points)
            stem = "_".join(["spider", *arguments.commands])
            save(arguments.out / stem, "SPIDER", "epsilon", points)
        if "bound" in commands:
            show_bound(arguments.splits or 2, (0.75,) if arguments.quick else (0.75, 3.0))
    except OSError as error:
        print(f"isrl_spider.py: {error}", file=sys.stderr)
        return 2
    print(f"\n{time.perf_counter() - start:.0f} s; JSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
