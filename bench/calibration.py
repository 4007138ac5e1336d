"""How much processor time the calibration of the noise takes, for every solver.

`python -m bench.calibration` prints a table in Markdown, in milliseconds, the least of two: what
whole runs of 1000 rounds, or 100 with 100 silos, spend in the functions that fix sensitivities,
grids and deviations (`CALIBRATING`), with every sampler and trust that a solver offers, where all
rounds have the same step size and where each has its own. Results are cached, so that every run has
other step sizes. Data are tiny.
"""

import contextlib
import functools
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import dpkern as dpk
from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.privacy.mechanisms.last_iterate import LastIterate
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.mechanisms.perturbed_minimiser import PerturbedMinimiser
from dpkern.privacy.sensitivity.local_runs import LocalRuns
from dpkern.solvers import SOLVERS
from dpkern.solvers.releases import means
from dpkern.solvers.releases.local_runs import HiddenSteps, LocalSteps

ROUNDS, LOCAL_STEPS, D, BATCH = {3: 1000, 100: 100}, 10, 5, 10  # rounds by silos
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
GOAL = 200.0  # milliseconds
FEW = (200, 200, 300)
MANY = tuple(range(200, 300))  # silos of 100 sizes
# Solvers that have no `rounds`.
LENGTHS: dict[str, dict[str, Any]] = {
    "wd_dp": {"local_steps": 1000},
    "output_perturbation": {"l2": 0.1},
    "objective_perturbation": {},
    "ridge": {},
}
RUNS = 2


# What runs calibrate by; of calls within calls the outermost counts.
CALIBRATING: tuple[tuple[Any, str], ...] = (
    (means, "allocate"),
    (means, "sampled_scale"),
    (GaussianSum, "__init__"),
    (GaussianMessages, "__init__"),
    (GaussianMessages, "_calibrate"),
    (GaussianHessian, "__init__"),
    (BinomialSum, "__init__"),
    (LastIterate, "__init__"),
    (LastIterate, "_calibrate"),
    (PerturbedMinimiser, "__init__"),
    (LocalSteps, "local_runs"),
    (HiddenSteps, "_bounds"),
    *((LocalRuns, name) for name in ("__post_init__", "sensitivities", "hidden_states")),
)


def data(sizes: tuple[int, ...]) -> dpk.SiloData:
    rng = np.random.default_rng(0)
    parts = []
    for n in sizes:
        X = rng.standard_normal((n, D))
        parts.append((X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)))
    return dpk.SiloData.from_silos(parts, row_bound=3.0)


def calibrating(solver: str, options: dict[str, Any], records: dpk.SiloData) -> float:
    """Return the milliseconds that a run spends in the functions that calibrate."""
    depth, total = 0, 0

    def timed(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            nonlocal depth, total
            depth, start = depth + 1, time.thread_time_ns()
            try:
                return function(*arguments, **keywords)
            finally:
                depth -= 1
                total += time.thread_time_ns() - start if depth == 0 else 0

        return wrapper

    with contextlib.ExitStack() as stack:
        for owner, name in CALIBRATING:
            stack.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        dpk.solve(solver, records, budget=BUDGET, clip=1.0, **options)
    return 1e-6 * total


def more_cases(sizes: tuple[int, ...]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield ways of hidden local steps that are not the default of their trust."""
    hidden = {"rounds": ROUNDS[len(sizes)], "local_steps": LOCAL_STEPS, "trust": "silo"}
    in_turn = {"noise": "round", "sampling": "cyclic", "batch_size": BATCH}
    yield "local_sgd", "silo", 'cyclic, noise "round"', hidden | in_turn
    last = {"accounting": "last_iterate", "l2": 0.1}
    yield "federated_gd", "silo", 'accounting "last_iterate"', hidden | last


def cases(sizes: tuple[int, ...]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield a solver, its trust, its sampling, and options without steps."""
    for solver, function in SOLVERS.items():
        declaration = function.declaration
        for trust in declaration.trusts:
            options: dict[str, Any] = {
                "trust": trust,
                **LENGTHS.get(solver, {"rounds": ROUNDS[len(sizes)]}),
            }
            local = "local_steps" in declaration.own and solver in ("federated_gd", "local_sgd")
            if trust == "silo" and solver == "admm":
                options["users"] = "silos"
            if not declaration.samplers:
                more = {"local_steps": LOCAL_STEPS} if local else {}
                yield solver, trust, "", options | more
            for sampling in declaration.samplers:
                one_pass: dict[str, Any] = (
                    {"rounds": min(sizes) // BATCH} if sampling == "one_pass" else {}
                )
                if one_pass and local:
                    one_pass["local_steps"] = 1
                more: dict[str, Any] = (
                    {"sampling": sampling} if len(declaration.samplers) > 1 else {}
                )
                more |= {} if sampling == "full" else {"batch_size": BATCH}
                if sampling == "poisson":
                    more |= {"neighbours": "add_remove", "public_size": sizes}
                if local and sampling != "one_pass":
                    more["local_steps"] = LOCAL_STEPS
                yield solver, trust, sampling, options | more | one_pass


def steps(solver: str, options: dict[str, Any], vary: float, *, equal: bool) -> dict[str, Any]:
    """Return step sizes, the same in every round or all different; nothing if it takes none."""
    own = SOLVERS[solver].declaration.own
    if "step_size" not in own or solver in ("fixed_point", "output_perturbation"):
        return {}
    rounds, K = options.get("rounds", 1), options.get("local_steps", 1)
    t = np.zeros(rounds) if equal else np.arange(rounds) / rounds
    if solver == "wd_dp" and not equal:
        t, K = np.arange(K) / K, 1
    return {"step_size": np.repeat(0.01 * (1.0 + vary) / (1.0 + t), K)}


def row(solver: str, options: dict[str, Any], records: dpk.SiloData) -> tuple[float, float | None]:
    """Return milliseconds with equal steps, and with steps of their own, if it takes any."""
    found: tuple[list[float], list[float]] = [], []
    for i in range(RUNS):
        for own in (0, 1):
            given = steps(solver, options, 1e-3 * (2 * i + own), equal=not own)
            if given or not own:
                found[own].append(calibrating(solver, options | given, records))
    return min(found[0]), min(found[1], default=None)


def main() -> None:
    warnings.simplefilter("ignore")
    records = {sizes: data(sizes) for sizes in (FEW, MANY)}
    first = {"rounds": 2, "sampling": "without_replacement", "batch_size": 5}
    calibrating("minibatch_sgd", first, records[FEW])  # modules that are imported when first used
    found: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    for sizes in (FEW, MANY):
        for solver, trust, sampling, options in (*cases(sizes), *more_cases(sizes)):
            try:
                equal, own = row(solver, options, records[sizes])
            except (TypeError, ValueError):  # not offered together
                continue
            print(f"{solver}, {trust}, {sampling}, {len(sizes)}: {equal:.1f}, {own}", flush=True)
            found.setdefault((solver, sampling), {}).setdefault(trust, []).extend((equal, own))
    print(table(found))
    worst = [v for trusts in found.values() for one in trusts.values() for v in one if v]
    print(f"\nThe longest takes {max(worst):.0f} ms; the goal is {GOAL:.0f} ms.")


def table(found: dict[tuple[str, str], dict[str, list[float | None]]]) -> str:
    """Return a row for each solver and sampling, with the trusts in words."""
    heads = ("3 silos, 1000 rounds", "own steps", "100 silos, 100 rounds", "own steps")
    lines = [f"| solver | sampling | {' | '.join(heads)} |", "|---" * 6 + "|"]
    for (solver, sampling), trusts in found.items():
        cells = []
        for column in range(4):
            texts = []
            for trust, values in trusts.items():
                value = values[column] if column < len(values) else None
                if value is not None:
                    texts.append(f"{trust} {value:.1f}" if value < 10.0 else f"{trust} {value:.0f}")
            cells.append(", ".join(texts))
        lines.append(f"| `{solver}` | {sampling} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
