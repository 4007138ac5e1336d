"""Cyffers, Bellet, Basu 2023, the Lasso: private ADMM beside the proximal gradient method.

    python examples/papers/lasso_admm.py [--out DIR] [--draws N] [--quick]
    python examples/papers/lasso_admm.py --bound

1000 records of 64 Gaussian features, 8 coefficients from U(0, 1) and label noise of deviation 0.1,
as in the authors' experiment: 800 to train on and 200 held out. The objective is
|X w - y|^2 / n + alpha |w|_1, on the held-out records and after the last round; the authors
report the least value over iterations, which reads those records at every iteration.

Beside sound noise there is that of the paper's formula, and that of the authors' code, which is
another one, both at the settings that the authors found best.

Nothing is tuned on the private problem. For every method and budget, the setting of the authors'
grid is taken that did best on other problems from the same generator, which stand for public data;
alpha is 2 s sqrt(2 log(d) / n) with the label noise s, a public number as well.

With --bound: Equation (1) and the table's utility row beside measured distances to the minimiser.
"""

import argparse
import functools
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk
from dpkern.papers import bounds, diagnostics, noise

DELTA = 1e-6
EPSILONS = np.geomspace(0.01, 5.0, 7).tolist()
N, N_TRAIN, D, NON_ZEROS, LABEL_NOISE = 1000, 800, 64, 8, 0.1
ALPHA = 2.0 * LABEL_NOISE * float(np.sqrt(2.0 * np.log(D) / N_TRAIN))
PRIVATE, PUBLIC = 18, (101, 102)  # seeds of the problem and of those the settings are chosen on
USERS = 100  # of a federated round

ROUNDS = (10, 100, 1000)
CLIPS = (1.6, 4.0, 13.0)
RELAXATIONS = (0.05, 0.136, 0.368, 0.5)  # the authors' last one, 1, has no guarantee
PROX_STEPS = np.logspace(-1.0, 2.0, 6).tolist()
# On the mean: the authors' eta, 0.1 to 10, multiplies the sum over 100 records divided by 1000.
STEP_SIZES = np.logspace(-2.0, 0.0, 5).tolist()
# What the authors found best.
THEIRS = {"rounds": 1000, "clip": 1.6, "relaxation": 0.464159, "prox_step": 1.584893}

Setting = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Problem:
    """Training records, and held-out ones with their labels."""

    train: dpk.SiloData
    X_test: np.ndarray
    y_test: np.ndarray
    alpha: float = ALPHA

    @functools.cached_property
    def best(self) -> np.ndarray:
        """The minimiser of the training objective. Not private."""
        how = {"rounds": 2000, "prox_step": 1.0, "l1": 0.5 * self.alpha}
        return solve(self.train, "admm", how, None, 0).coef

    def held_out(self, w: np.ndarray) -> float:
        residual = self.X_test @ w - self.y_test
        return float(np.mean(residual**2) + self.alpha * np.abs(w).sum())

    def objective(self, w: np.ndarray) -> float:
        """What is minimised: half of the objective on the training records. Not private."""
        residual = self.train.X @ w - self.train.y
        return float(0.5 * np.mean(residual**2) + 0.5 * self.alpha * np.abs(w).sum())


def problem(seed: int) -> Problem:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    w = np.zeros(D)
    w[rng.permutation(D)[:NON_ZEROS]] = rng.uniform(0.0, 1.0, NON_ZEROS)
    y = X @ w + LABEL_NOISE * rng.standard_normal(N)
    train = dpk.SiloData(X[:N_TRAIN], y[:N_TRAIN], [0, N_TRAIN])
    return Problem(train, X[N_TRAIN:], y[N_TRAIN:])


@dataclass(frozen=True)
class Method:
    """A solver with what is fixed, and the grid of the rest."""

    solver: str
    fixed: Setting
    grid: dict[str, tuple[float, ...] | list[float]]

    def settings(self) -> Iterator[Setting]:
        for values in itertools.product(*self.grid.values()):
            yield self.fixed | dict(zip(self.grid, values, strict=True))


SHARED = {"rounds": ROUNDS, "clip": CLIPS}
ADMM = SHARED | {"relaxation": RELAXATIONS, "prox_step": PROX_STEPS}
PROXIMAL = {"operator": "proximal_gradient"}
SAMPLED = {"mode": "federated", "participation": USERS}
METHODS = {
    "ADMM, central": Method("admm", {"mode": "central"}, ADMM),
    "ADMM, federated": Method("admm", SAMPLED, ADMM),
    "DP-prox-SGD": Method("fixed_point", PROXIMAL, SHARED | {"step_size": STEP_SIZES}),
}
MODES = {"central": {"mode": "central"}, "federated": SAMPLED}


def claimed_for_code(mode: str, epsilon: float) -> float:
    """The epsilon for which the paper's formula has the noise of the authors' code for `epsilon`.

    Their std on the message of a user is lam sigma, sigma = 2 C^2 T / (rho n^2): in the unit of a
    variance, without the prox step, and with the n of all records.
    """
    C, gamma, T = THEIRS["clip"], THEIRS["prox_step"], THEIRS["rounds"]
    rho = noise.admm_rho({"epsilon": epsilon, "delta": DELTA})
    of_code = 2.0 * C**2 * T / (rho * N**2)
    how = {"mode": mode, "clip": C, "prox_step": gamma, "n": N_TRAIN, "rounds": T, "most": T}
    printed = noise.admm({"epsilon": epsilon, "delta": DELTA}, **how)
    rho *= (printed / of_code) ** 2
    return float(rho + 2.0 * np.sqrt(rho * np.log(1.0 / DELTA)))


def solve(
    data: dpk.SiloData, solver: str, setting: Setting, epsilon: float | None, seed: int
) -> dpk.SolverResult:
    """One run; seeded, so that the figures can be repeated."""
    return dpk.solve(
        solver,
        data,
        loss="squared",
        budget=None if epsilon is None else dpk.Budget(epsilon=epsilon, delta=DELTA),
        rng=seed,
        n_threads=1,
        **{"l1": 0.5 * ALPHA} | setting,
    )


def chosen(method: Method, epsilon: float, public: list[Problem], quick: bool) -> Setting:
    """The setting of the grid that does best on public problems."""

    def loss(setting: Setting) -> float:
        runs = (
            (p, solve(p.train, method.solver, setting, epsilon, seed))
            for seed, p in enumerate(public)
        )
        return float(np.mean([p.held_out(result.coef) for p, result in runs]))

    return min(list(method.settings())[:: 37 if quick else 1], key=loss)


def measure(
    name: str,
    solver: str,
    setting: Setting,
    epsilon: float,
    private: Problem,
    draws: int,
    claimed: float | None = None,
) -> Point:
    """Means and deviations over draws of the noise, which is that for `claimed` if given."""
    spent = epsilon if claimed is None else claimed
    runs = [solve(private.train, solver, setting, spent, seed) for seed in range(draws)]
    scores = [private.held_out(run.coef) for run in runs]
    gaps = [private.objective(run.coef) - private.objective(private.best) for run in runs]
    certificate = runs[0].privacy
    return Point(
        panel="Lasso",
        metric="held-out objective",
        optimum=private.held_out(private.best),
        method=name,
        x=epsilon,
        draws=draws,
        score=float(np.mean(scores)),
        score_sd=float(np.std(scores, ddof=min(1, draws - 1))),
        gap=float(np.mean(gaps)),
        gap_sd=float(np.std(gaps, ddof=min(1, draws - 1))),
        epsilon=epsilon,
        delta=DELTA,
        certified=certificate.epsilon(DELTA),
        bound=certificate.bound,
    )


def show_bounds(draws: int) -> None:
    """Equation (1) for the proximal gradient method, whose contraction is known, and the table."""
    data, best, rounds = problem(PRIVATE).train, problem(PRIVATE).best, 100
    objective = dpk.solvers.Objective(data, dpk.losses.Squared(), l1=0.5 * ALPHA)
    constants = diagnostics.measure_constants(objective)
    step = 2.0 / (constants.strength + constants.smoothness)
    tau = 1.0 - step * constants.strength
    print(f"|u - u*|^2 after {rounds} rounds, {draws} draws, tau = {tau:.3f}. NOT PRIVATE.")
    print(f"{'epsilon':>8}{'Equation (1)':>14}{'measured':>20}{'table':>12}{'ADMM':>20}")
    start = float(best @ best)
    for epsilon in EPSILONS:
        how = {"rounds": rounds, "clip": 13.0, "step_size": step, **PROXIMAL}
        runs = [solve(data, "fixed_point", how, epsilon, seed) for seed in range(draws)]
        admm = {"mode": "central", "rounds": rounds, "clip": 13.0, "prox_step": 1.0}
        rivals = [solve(data, "admm", admm, epsilon, seed) for seed in range(draws)]
        std = step * max(float(r.std) for r in runs[0].privacy.releases) / N_TRAIN
        first = bounds.bound_fixed_point(
            iterations=rounds, contraction=tau, dim=D, std=std, square_distance=start
        )
        # ADMM's own contraction is not known; that of gradients stands for it.
        order = 1.0 + 2.0 * np.log(1.0 / DELTA) / epsilon
        row = bounds.bound_admm(
            mode="central", dim=D, order=order, epsilon=epsilon / 2.0, clip=13.0, prox_step=1.0,
            contraction=tau, n=N_TRAIN,
        )  # fmt: skip
        cells = [
            np.array([np.sum((run.coef - best) ** 2) for run in found]) for found in (runs, rivals)
        ]
        shown = [f"{c.mean():.2g} +- {c.std(ddof=1):.1g}" for c in cells]
        print(f"{epsilon:8.2g}{first:14.3g}{shown[0]:>20}{row:12.3g}{shown[1]:>20}")
    print(f"|w* - 0|^2 = {start:.2g}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Cyffers, Bellet, Basu 2023 (private ADMM): the Lasso, sound and as printed."
    )
    parser.add_argument("--out", type=Path, default=Path("lasso_admm_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="few points, less than a minute")
    parser.add_argument("--bound", action="store_true", help="bounds beside measured distances")
    arguments = parser.parse_args()
    if arguments.draws is not None and arguments.draws < 1:
        parser.error(f"--draws is {arguments.draws}; it must be at least 1")
    draws = arguments.draws or (2 if arguments.quick else 10)
    if arguments.bound:
        show_bounds(max(draws, 2))
        return 0
    private, public = problem(PRIVATE), [problem(seed) for seed in PUBLIC]
    epsilons = EPSILONS[::3] if arguments.quick else EPSILONS
    points, settings = [], {}
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        for name, epsilon in tqdm(list(itertools.product(METHODS, epsilons)), unit="point"):
            method = METHODS[name]
            setting = chosen(method, epsilon, public, arguments.quick)
            settings[name, epsilon] = setting
            points.append(measure(name, method.solver, setting, epsilon, private, draws))
        for mode, epsilon in itertools.product(MODES, epsilons):
            setting = MODES[mode] | THEIRS | {"calibration": "paper"}
            for kind, claimed in (("printed", epsilon), ("code", claimed_for_code(mode, epsilon))):
                name = f"ADMM, {mode}, {kind}"
                found = measure(name, "admm", setting, epsilon, private, draws, claimed)
                points.append(found)
        print_tables("Lasso", "epsilon", points)
        print("\nchosen on public problems:")
        for (name, epsilon), setting in settings.items():
            grid = ", ".join(f"{key} {setting[key]:.3g}" for key in METHODS[name].grid)
            print(f"  {name}, epsilon {epsilon:.3g}: {grid}")
        save(arguments.out / "lasso", "Lasso", "epsilon", points)
    except OSError as error:
        print(f"lasso_admm.py: {error}", file=sys.stderr)
        return 2
    print(f"\nJSON and figures are in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
