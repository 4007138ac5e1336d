"""Huang, "A federated algorithm for privacy-preserving empirical risk minimisation".

    python examples/papers/huang.py bound [--quick]
    python examples/papers/huang.py optimal_k [--quick] [--out DIR] [--draws N]

The note has no experiments, but two questions. `bound` puts Theorem 4 beside the measured gap, for
several K, even silos and silos of one label each, with the printed noise. `optimal_k` asks for the
best number K of local steps: the gap after so many rounds of communication under sound accounting,
over numbers of silos, budgets and heterogeneity.

Records are made up, 20 000 of 20 features of falling variance, with rows of norm 1 at most, the
intercept's entry included, so that gradients have norm 1 and nothing is clipped. Gaps and Gamma
read records: NOT PRIVATE.
docs/papers/huang.md discusses the outcome.
"""

import argparse
import functools
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from report import Point, print_tables, save
from tqdm import tqdm

import dpkern as dpk
from dpkern.papers import bounds, diagnostics, noise

DELTA, SEED = 1e-5, 0
L2 = {"bound": 0.05, "optimal_k": 1e-3}
LOCAL_STEPS, BOUND_STEPS = (1, 2, 5, 10, 25), 300
ROUNDS = (1, 3, 10, 30, 100)
SILOS, EPSILONS = (4, 32), (0.1, 1.0)
# Shares of records exchanged between silos of one label each.
SHARES = {"one label a silo": 0.0, "half mixed": 0.5, "even silos": 1.0}


@functools.cache
def records() -> tuple[Any, Any]:
    rng = np.random.default_rng(SEED)
    X = rng.standard_normal((20_000, 20)) / np.sqrt(np.arange(1.0, 21.0)) / 2.0
    z = 3.0 * X @ rng.standard_normal(20) + 0.5
    return X, np.where(rng.random(20_000) < 1.0 / (1.0 + np.exp(-z)), 1, -1)


@functools.cache
def silos(m: int, kind: str) -> dpk.SiloData:
    if kind == "even silos":
        return dpk.SiloData.split(*records(), m, seed=SEED, row_bound=1.0, intercept=True)
    how = {"how": "mixed", "share": SHARES[kind], "seed": SEED}
    return dpk.SiloData.split(*records(), m, row_bound=1.0, intercept=True, **how)


@functools.cache
def objective_of(m: int, kind: str, l2: float) -> tuple[dpk.solvers.Objective, Any, float]:
    """Objective, with its minimiser and minimum. Not private."""
    objective = dpk.solvers.Objective(
        silos(m, kind), dpk.losses.Logistic(), l2=l2, weights="uniform"
    )
    return objective, *objective.minimum()


def gaps(m: int, kind: str, l2: float, epsilon: float, draws: int, **options: Any) -> Any:
    """J(w) - J* of every draw, with the certificate of one."""
    objective, _, least = objective_of(m, kind, l2)
    runs = [
        dpk.solve(
            "federated_gd", silos(m, kind), budget=dpk.Budget(epsilon=epsilon, delta=DELTA),
            clip=1.0, l2=l2, weights="uniform", returns="last", **options,
        )
        for _ in range(draws)
    ]  # fmt: skip
    return np.array([objective.value(run.w) - least for run in runs]), runs[0].privacy


def show_bound(draws: int, quick: bool, out: Path) -> None:
    m, epsilon, l2 = 16, 1.0, L2["bound"]
    std = noise.federated_gd(
        {"epsilon": epsilon, "delta": DELTA}, clip=1.0, smallest=20_000 // m, m=m, steps=BOUND_STEPS
    )
    print(f"T = {BOUND_STEPS}, {m} silos, claimed epsilon {epsilon:g}, {draws} draws. NOT PRIVATE.")
    print(
        f"{'silos':18}{'K':>4}{'Gamma':>10}{'Theorem 4':>12}{'measured gap':>22}{'certified':>11}"
    )
    kinds = ("one label a silo", "even silos")
    for kind, K in itertools.product(kinds, (1, 2, 5) if quick else LOCAL_STEPS):
        objective, w, _ = objective_of(m, kind, l2)
        Gamma = diagnostics.measure_heterogeneity(objective)
        bound = bounds.bound_federated_gd(
            smoothness=objective.smoothness, strength=l2, clip=1.0, dim=21, steps=BOUND_STEPS,
            local_steps=K, square_distance=float(w @ w), heterogeneity=Gamma, std=std,
        )  # fmt: skip
        found, certificate = gaps(
            m, kind, l2, epsilon, draws, rounds=BOUND_STEPS // K, local_steps=K,
            step_size="theorem", calibration="paper",
        )  # fmt: skip
        cell = f"{found.mean():.2e} +- {found.std(ddof=1):.0e}"
        worth = f"{'<= ' if certificate.bound == 'upper' else ''}{certificate.epsilon(DELTA):.3g}"
        print(f"{kind:18}{K:4}{Gamma:10.2g}{bound:12.3g}{cell:>22}{worth:>11}")


def show_optimal_k(draws: int, quick: bool, out: Path) -> None:
    l2, title = L2["optimal_k"], "Local steps"
    points = []
    panels = list(itertools.product(SILOS, EPSILONS, SHARES))[:: 4 if quick else 1]
    cells = list(itertools.product(panels, LOCAL_STEPS, ROUNDS[:: 2 if quick else 1]))
    for (m, epsilon, kind), K, R in tqdm(cells, desc="optimal_k", leave=False):
        objective, _, _ = objective_of(m, kind, l2)
        found, certificate = gaps(
            m, kind, l2, epsilon, draws, rounds=R, local_steps=K,
            step_size=1.0 / objective.smoothness,
        )  # fmt: skip
        points.append(
            Point(
                panel=f"{m} silos, epsilon {epsilon:g}, {kind}", metric="gap", optimum=0.0,
                method=f"K = {K}", x=R, draws=draws, score=float(found.mean()),
                score_sd=float(found.std(ddof=1)), gap=None, gap_sd=None, epsilon=epsilon,
                delta=DELTA, certified=certificate.epsilon(DELTA), bound=certificate.bound,
            )
        )  # fmt: skip
    print_tables(title, "rounds", points)
    print("\nThe least gap, and its K, after so many rounds:")
    for panel in dict.fromkeys(point.panel for point in points):
        least = [
            min((p for p in points if p.panel == panel and p.x == R), key=lambda p: p.score)
            for R in ROUNDS[:: 2 if quick else 1]
        ]
        line = "".join(f"  {p.x:3g}: {p.score:.1e} {p.method:7}" for p in least)
        print(f"  {panel:44}{line}")
    save(out / "huang_optimal_k", title, "rounds", points)


COMMANDS = {"bound": show_bound, "optimal_k": show_optimal_k}


def main() -> int:
    parser = argparse.ArgumentParser(description="Huang: Theorem 4, and the best local steps.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--out", type=Path, default=Path("huang_results"), metavar="DIR")
    parser.add_argument("--draws", type=int, metavar="N", help="10, 2 with --quick; at least 2")
    parser.add_argument("--quick", action="store_true", help="fewer points, less than a minute")
    arguments = parser.parse_args()
    if arguments.draws is not None and arguments.draws < 2:
        parser.error(f"--draws is {arguments.draws}; it must be at least 2")
    start = time.perf_counter()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        draws = arguments.draws or (2 if arguments.quick else 10)
        COMMANDS[arguments.command](draws, arguments.quick, arguments.out)
    except OSError as error:
        print(f"huang.py: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.command}: {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
