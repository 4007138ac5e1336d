"""Kang, Liu, Niu, Wang 2021, "Weighted distributed differential privacy ERM", on real data.

    python examples/papers/wd_dp.py figure12 [--quick] [--out DIR] [--draws N]
    python examples/papers/wd_dp.py [--quick] [--sets a9a,wdbc]
    python examples/papers/wd_dp.py bound [--quick] [--sets a9a,wdbc]
    python examples/papers/wd_dp.py --compare a9a

One command for each of the paper's figures 1 to 20, with its axes, under sound accounting:

    figure1 to 5      logistic regression over epsilon: KDD Cup 1999, Adult, Bank, Wisconsin, cards
    figure6 to 8      the first three of these over u = n_max / n_min, at epsilon 0.15, 0.01, 0.01
    figure9 to 11     ridge regression over epsilon, figure12 to 14 over u at epsilon 0.1
    figure15 to 17    the PL objective over epsilon, figure18 to 20 over u at epsilon 0.1

The regression sets of the paper are not here; in their places are Adult (hours a week), Bank (age)
and the diagnostic Wisconsin set (worst radius), so that only shapes can be compared. Without a
command: the tables of docs/papers/wd_dp.md, which discusses the outcome, and beside them what the
papers' own calibrations give. `bound` has Equation (15) and the T that Theorem 3 prescribes beside
measured gaps, `--compare` WD-DP and centralised descent at larger epsilon.

The data come from the folder in the environment variable DPKERN_DATA; `--sets wdbc` needs none.

Everything is fixed before the private records are read: rows are shortened to norm 1, steps have
size 1 / (largest curvature), and there is one parameter set for a task on a data set, the same for
every solver. The sets below were chosen among a few dozen by scores on training records, mostly on
a fifth held out for that; no test record was used. On private data this search would be a leak.
"""

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from public_sets import Task, load
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk
from dpkern.papers import bounds, diagnostics

EPSILONS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.25)
FIXED_EPSILON = 0.1  # where something else varies
COMPARED_EPSILONS = (0.1, 0.5, 1.0)
NO_NOISE = math.inf
LOGISTIC, RIDGE, PL = "logistic", "ridge", "PL"
SEED = 0  # of the split over silos; the noise is always fresh

# T gradient steps, in rounds or in silos; clip norm; penalties.
PARAMETERS: dict[tuple[str, str], dict[str, Any]] = {
    ("a9a", LOGISTIC): {"T": 100, "clip": 0.5, "l2": 1e-4},
    ("adult", LOGISTIC): {"T": 100, "clip": 0.5, "l2": 1e-4},
    ("wisconsin", LOGISTIC): {"T": 10, "clip": 0.5, "l2": 1e-2},
    ("wdbc", LOGISTIC): {"T": 10, "clip": 0.5, "l2": 1e-2},
    ("adult", RIDGE): {"T": 20, "clip": 0.5, "l2": 1e-2},
    ("wdbc", RIDGE): {"T": 10, "clip": 0.25, "l2": 1e-2},
    # The paper's (y - x.w)^2 + |w|^2 + 3 sin^2 |w| is twice this objective.
    ("adult", PL): {"T": 3, "clip": 0.5, "penalty": dpk.penalties.PL(0.5)},
    ("wdbc", PL): {"T": 3, "clip": 0.5, "penalty": dpk.penalties.PL(0.5)},
}
# Parameters of the sets that only the figures have were not chosen, but taken from sets like them.
PARAMETERS |= {
    ("kdd99", LOGISTIC): PARAMETERS["adult", LOGISTIC],
    ("bank", LOGISTIC): PARAMETERS["adult", LOGISTIC],
    ("creditcard", LOGISTIC): PARAMETERS["wisconsin", LOGISTIC],
    ("bank", RIDGE): PARAMETERS["adult", RIDGE],
    ("bank", PL): PARAMETERS["adult", PL],
}
# As in the paper, the small sets have few silos, and sizes less far apart.
SILOS = {"a9a": (32, 8), "adult": (32, 8), "wisconsin": (8,), "wdbc": (8,)}
SMALL = ("wisconsin", "wdbc", "creditcard")
RATIOS, SMALL_RATIOS = (1, 3, 5, 7, 9), (1, 2, 3, 4, 5)
LARGE_DELTA, SMALL_DELTA = 1e-6, 1e-5


@dataclass(frozen=True, eq=False)
class Problem:
    """A task on a data set with its public parameters."""

    set: str
    kind: str
    task: Task

    @property
    def name(self) -> str:
        return f"{self.set} {self.kind}"

    @property
    def delta(self) -> float:
        return SMALL_DELTA if self.set in SMALL else LARGE_DELTA

    @property
    def steps(self) -> int:
        """T."""
        return int(PARAMETERS[self.set, self.kind]["T"])

    @property
    def parameters(self) -> dict[str, Any]:
        """What all solvers are given."""
        loss = "logistic" if self.kind == LOGISTIC else "squared"
        chosen = PARAMETERS[self.set, self.kind]
        return {"loss": loss} | {name: chosen[name] for name in chosen if name != "T"}

    @functools.cache  # noqa: B019 - problems live as long as the process
    def split(self, m: int, how: Any = "even", ratio: int | None = None) -> dpk.SiloData:
        """The training records in m silos; random silos have at least a quarter of the mean."""
        least = len(self.task.y) // (4 * m) if how == "random" else 1
        options = {"how": how, "ratio": ratio, "min_size": least, "seed": SEED}
        return dpk.SiloData.split(
            self.task.X, self.task.y, m, **options, row_bound=1.0, intercept=True
        )

    @functools.cached_property
    def objective(self) -> dpk.solvers.Objective:
        """J of all training records, without clipping."""
        p = self.parameters
        return dpk.solvers.Objective(
            self.split(1),
            dpk.losses.get_loss(p["loss"]),
            penalty=p.get("penalty"),
            l2=p.get("l2", 0.0),
        )

    @functools.cached_property
    def optimum(self) -> tuple[Any, float]:
        """Minimiser and minimum of J. Not private."""
        return self.objective.minimum()

    def score(self, w: Any) -> float:
        """Test accuracy, or mean squared error."""
        data, y = self.split(1), np.asarray(self.task.y_test)
        z = data.transform.margins(self.task.X_test, w)
        if data.classes is None:
            return float(np.mean((z - y) ** 2))
        return float(np.mean(data.classes[(z > 0.0).astype(int)] == y))

    def gap(self, w: Any) -> float:
        """J(w) - min J on the training records. Not private."""
        return self.objective.value(w) - self.optimum[1]


@dataclass(frozen=True)
class Case:
    """A point of a curve: a solver with a budget on one split; `share` of the budget is used."""

    problem: Problem
    panel: str
    x: float
    epsilon: float
    split: tuple[Any, ...]
    method: str
    solver: str
    options: dict[str, Any]
    share: float = 1.0


def measure(case: Case, draws: int) -> Point:
    """Run a case as often as asked for; once without noise."""
    problem, delta = case.problem, case.problem.delta
    budget = None
    if case.epsilon < NO_NOISE:
        budget = dpk.Budget(epsilon=case.share * case.epsilon, delta=case.share * delta)
    data = problem.split(*case.split)
    # Equal steps of 1 / smoothness, as in the papers.
    steps = {"step_size": 1.0 / problem.objective.smoothness}
    parameters = problem.parameters | steps | case.options
    results = [
        dpk.solve(case.solver, data, budget=budget, **parameters)
        for _ in range(draws if budget else 1)
    ]
    scores = [problem.score(result.w) for result in results]
    gaps = [problem.gap(result.w) for result in results]
    return Point(
        panel=case.panel,
        metric="accuracy" if problem.kind == LOGISTIC else "mean squared error",
        optimum=problem.score(problem.optimum[0]),
        method=case.method,
        x=case.x,
        draws=len(results),
        score=statistics.fmean(scores),
        score_sd=float(np.std(scores, ddof=min(1, len(scores) - 1))),
        gap=statistics.fmean(gaps),
        gap_sd=float(np.std(gaps, ddof=min(1, len(gaps) - 1))),
        epsilon=case.epsilon,
        delta=delta,
        certified=results[0].privacy.epsilon(delta),
        bound=results[0].privacy.bound,
    )


# The methods: label, solver, its own options.
Method = tuple[str, str, dict[str, Any]]


def sound_methods(T: int) -> list[Method]:
    return [
        ("centralised", "gradient_descent", {"rounds": T}),
        ("WD-DP", "wd_dp", {"local_steps": T}),
        ("Jayaraman, gradient", "federated_gd", {"rounds": T, "weights": "uniform"}),
        ("Jayaraman, output", "output_perturbation", {"local_steps": T, "weights": "uniform"}),
    ]


def printed_methods(T: int) -> list[Method]:
    """The papers' calibrations. That of Jayaraman's gradient method is Wang's on even silos."""
    paper = {"calibration": "paper"}
    uniform = {"local_steps": T, "weights": "uniform"}
    return [
        ("Wang, printed", "gradient_descent", {"rounds": T} | paper),
        ("WD-DP, printed", "wd_dp", {"local_steps": T} | paper),
        ("Huang, printed", "federated_gd", {"rounds": T} | paper),
        ("Jayaraman output, printed", "output_perturbation", uniform | paper),
    ]


# One function for each figure, in the order of the paper.


def over_epsilon(
    problem: Problem, quick: bool, silos: tuple[int, ...] | None = None
) -> Iterator[Case]:
    """Silos of random sizes."""
    for m in (silos or SILOS[problem.set])[: 1 if quick else None]:
        panel = f"{problem.name}, {m} random silos"
        for epsilon in (*((0.05, 0.25) if quick else EPSILONS), NO_NOISE):
            for method in sound_methods(problem.steps):
                yield Case(problem, panel, epsilon, epsilon, (m, "random"), *method)


def over_ratio(
    problem: Problem,
    quick: bool,
    silos: tuple[int, ...] | None = None,
    epsilon: float = FIXED_EPSILON,
) -> Iterator[Case]:
    """u = n_max / n_min: half of the silos are u times as large as the others."""
    ratios = SMALL_RATIOS if problem.set in SMALL else RATIOS
    for m in (silos or SILOS[problem.set])[: 1 if quick else None]:
        panel = f"{problem.name}, {m} silos, epsilon {epsilon:g}"
        for u in ratios[:: 4 if quick else 1]:
            for method in sound_methods(problem.steps):
                yield Case(problem, panel, u, epsilon, (m, "two_groups", u), *method)


def over_rounds(problem: Problem, quick: bool) -> Iterator[Case]:
    """The T steps cut into rounds of local steps: is one communication enough?"""
    T, m = problem.steps, SILOS[problem.set][0]
    for rounds in (r for r in range(1, T + 1) if T % r == 0 and not (quick and 1 < r < T)):
        options = {"rounds": rounds, "local_steps": T // rounds}
        for epsilon in (FIXED_EPSILON, NO_NOISE):
            label = "no noise" if epsilon == NO_NOISE else f"epsilon {epsilon:g}"
            method = (label, "federated_gd", options)
            panel = f"{problem.name}, {m} random silos"
            yield Case(problem, panel, rounds, epsilon, (m, "random"), *method)


def over_claims(problem: Problem, quick: bool) -> Iterator[Case]:
    """The papers' noise beside the sound one, on even silos, over the epsilon that they claim."""
    T, m = problem.steps, SILOS[problem.set][0]
    panel = f"{problem.name}, {m} even silos"
    # Huang's noise in one round with half of the budget is WD-DP's, without that on the weights.
    no_z_w = {"local_steps": T, "rounds": 1, "calibration": "paper"}
    for epsilon in (0.05, 0.25) if quick else EPSILONS:
        for method in sound_methods(T)[:2] + printed_methods(T):
            yield Case(problem, panel, epsilon, epsilon, (m,), *method)
        without = ("WD-DP, printed, z_w = 0", "federated_gd", no_z_w)
        yield Case(problem, panel, epsilon, epsilon, (m,), *without, share=0.5)


@dataclass(frozen=True)
class Experiment:
    """One figure."""

    title: str
    x_label: str
    kinds: tuple[str, ...]
    cases: Callable[[Problem, bool], Iterator[Case]]


EXPERIMENTS = {
    "epsilon": Experiment("Logistic regression", "epsilon", (LOGISTIC,), over_epsilon),
    "ratio": Experiment("Uneven silos", "u = n_max / n_min", (LOGISTIC,), over_ratio),
    "regression": Experiment("Ridge and PL regression", "epsilon", (RIDGE, PL), over_epsilon),
    "rounds": Experiment("One communication?", "communications", (LOGISTIC,), over_rounds),
    "claims": Experiment("As printed", "claimed epsilon", (LOGISTIC,), over_claims),
}


# The paper's figures: kind, set and what varies.
Varied = Callable[[Problem, bool], Iterator[Case]]
FIGURES: dict[str, tuple[str, str, str, Varied]] = {}
ALL_SILOS, FEW_SILOS, UNEVEN_SILOS = (32, 16, 8, 4, 2), (8, 4, 2), (16, 4, 2)


def add_figure(kind: str, name: str, over: str, varied: Varied) -> None:
    FIGURES[f"figure{len(FIGURES) + 1}"] = (kind, name, over, varied)


for name in ("kdd99", "adult", "bank", "wisconsin", "creditcard"):
    silos = FEW_SILOS if name in SMALL else ALL_SILOS
    add_figure(LOGISTIC, name, "epsilon", functools.partial(over_epsilon, silos=silos))
for name, epsilon in (("kdd99", 0.15), ("adult", 0.01), ("bank", 0.01)):
    varied = functools.partial(over_ratio, silos=UNEVEN_SILOS, epsilon=epsilon)
    add_figure(LOGISTIC, name, "u = n_max / n_min", varied)
for kind in (RIDGE, PL):
    for name in ("adult", "bank", "wdbc"):
        silos = FEW_SILOS if name in SMALL else ALL_SILOS[:3]
        add_figure(kind, name, "epsilon", functools.partial(over_epsilon, silos=silos))
    for name in ("adult", "bank", "wdbc"):
        uneven = functools.partial(over_ratio, silos=UNEVEN_SILOS)
        add_figure(kind, name, "u = n_max / n_min", uneven)


def draw_figure(command: str, draws: int, quick: bool, out: Path) -> None:
    start = time.perf_counter()
    kind, name, over, varied = FIGURES[command]
    problem = Problem(name, kind, load(name, regression=kind != LOGISTIC))
    cases = list(varied(problem, quick))
    points = [measure(case, draws) for case in tqdm(cases, desc=command, leave=False)]
    print_tables(f"{command}, {kind}", over, points)
    save(out / command, f"{kind}, {name}", over, points)
    print(f"{command}: {time.perf_counter() - start:.0f} s")


def show_bound(sets: list[str], draws: int) -> None:
    """Equation (15) for the printed noise, beside the gaps of printed and of sound runs."""
    epsilon = FIXED_EPSILON
    print(f"\nEquation (15), epsilon {epsilon:g}, even silos, {draws} draws. NOT PRIVATE.")
    heads = ("mu / L", "T", "(15)", "gap at 0", "printed", "z_w = 0", "sound", "T of Thm 3")
    print(f"{'':18}" + "".join(f"{head:>11}" for head in heads))
    for name, kind in PARAMETERS:
        if name not in sets:
            continue
        problem = Problem(name, kind, load(name, regression=kind != LOGISTIC))
        J, T, m, delta = problem.objective, problem.steps, SILOS[name][0], problem.delta
        zero = np.zeros(J.dim)
        # With PL's penalty the ratio at 0 is no less than the constant.
        mu = diagnostics.measure_pl(J, zero) if kind == PL else None
        mu = mu or diagnostics.measure_constants(J).strength
        public = {
            "smoothness": J.smoothness, "clip": problem.parameters["clip"], "dim": J.dim,
            "n": problem.split(1).n, "epsilon": epsilon / 2.0, "delta": delta / 2.0,
        }  # fmt: skip
        gap = problem.gap(zero)
        bound = bounds.bound_wd_dp(**public, strength=mu, steps=T, gap=gap)
        no_z_w = {"local_steps": T, "rounds": 1, "calibration": "paper"}
        runs = (
            ("wd_dp", {"local_steps": T, "calibration": "paper"}, 1.0),
            ("federated_gd", no_z_w, 0.5),
            ("wd_dp", {"local_steps": T}, 1.0),
        )
        gaps = [
            measure(Case(problem, "", 0.0, epsilon, (m,), "", solver, options, share), draws).gap
            for solver, options, share in runs
        ]
        values = (mu / J.smoothness, T, bound, gap, *gaps, bounds.choose_wd_dp(**public)[0])
        print(f"{problem.name:18}" + "".join(f"{value:11.2g}" for value in values))


def run_experiments(sets: list[str], draws: int, quick: bool, out: Path) -> None:
    problems = [
        Problem(name, kind, load(name, regression=kind != LOGISTIC))
        for name, kind in PARAMETERS
        if name in sets
    ]
    plan = {
        name: [
            case
            for problem in problems
            if problem.kind in experiment.kinds
            for case in experiment.cases(problem, quick)
        ]
        for name, experiment in EXPERIMENTS.items()
    }
    with tqdm(total=sum(map(len, plan.values())), unit="point") as bar:
        for name, cases in plan.items():
            points, experiment = [], EXPERIMENTS[name]
            for case in cases:
                bar.set_description(f"{case.panel}, {case.method}", refresh=False)
                points.append(measure(case, draws))
                bar.update()
            if points:
                with bar.external_write_mode():
                    print_tables(experiment.title, experiment.x_label, points)
                save(out / name, experiment.title, experiment.x_label, points)


def run_comparison(name: str, draws: int, out: Path) -> None:
    """WD-DP beside centralised gradient descent: the same parameters, budgets and records."""
    problem, m = Problem(name, LOGISTIC, load(name)), SILOS[name][0]
    panel = f"{problem.name}, {m} random silos"
    cases = [
        Case(problem, panel, epsilon, epsilon, (m, "random"), *method)
        for epsilon in (*COMPARED_EPSILONS, NO_NOISE)
        for method in sound_methods(problem.steps)[:2]
    ]
    points = [measure(case, draws) for case in tqdm(cases, unit="point")]
    title = "WD-DP and centralised"
    print_tables(title, "epsilon", points)
    for central, local in zip(points[::2], points[1::2], strict=True):
        error = math.hypot(central.score_sd, local.score_sd) / math.sqrt(central.draws)
        print(
            f"epsilon {central.x:g}: centralised - WD-DP = "
            f"{100 * (central.score - local.score):.2f} points, standard error {100 * error:.2f}"
        )
    save(out / f"compare_{name}", title, "epsilon", points)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kang et al. 2021 (WD-DP) on real data, with sound accounting and as printed."
    )
    most = len(FIGURES)
    parser.add_argument(
        "figures", nargs="*", metavar="FIGURE", help=f"figure1 to figure{most}, bound"
    )
    parser.add_argument("--out", type=Path, default=Path("wd_dp_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, 2 with --quick, 20 to compare")
    parser.add_argument("--quick", action="store_true", help="few points, less than a minute")
    parser.add_argument("--sets", default=",".join(SILOS), help=f"default: {','.join(SILOS)}")
    parser.add_argument("--compare", choices=SILOS, metavar="SET", help="WD-DP and centralised")
    arguments = parser.parse_args()
    sets = arguments.sets.split(",")
    if unknown := [name for name in sets if name not in SILOS]:
        parser.error(f"--sets has {unknown[0]!r}; it must be among {', '.join(SILOS)}")
    if unknown := [name for name in arguments.figures if name not in (*FIGURES, "bound")]:
        parser.error(f"there is no {unknown[0]!r}; figures are figure1 to figure{most}")
    if arguments.draws is not None and arguments.draws < 1:
        parser.error(f"--draws is {arguments.draws}; it must be at least 1")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        if arguments.compare:
            run_comparison(arguments.compare, arguments.draws or 20, arguments.out)
        draws = arguments.draws or (2 if arguments.quick else 10)
        for command in arguments.figures:
            if command == "bound":
                show_bound(sets, draws)
                continue
            draw_figure(command, draws, arguments.quick, arguments.out)
        if not arguments.compare and not arguments.figures:
            run_experiments(sets, draws, arguments.quick, arguments.out)
    except OSError as error:
        print(f"wd_dp.py: {error}", file=sys.stderr)
        return 2
    print(f"\nJSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
