"""How much processor time the calibration of the noise takes, for every solver.

`python -m bench.calibration` prints a table in Markdown, in milliseconds, the least of three, for
every sampler and trust that a solver offers. *First release* is the time until the first release of
a run of 1000 rounds: data are tiny, so that calibration is what is left, with the first round's
hidden steps. *Own steps* is what all rounds take more when each has step sizes of its own. Results
are cached, so that every run has other step sizes.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import dpkern as dpk
from dpkern.privacy.accounting import Sampled, sampled_epsilon
from dpkern.privacy.ledger import Ledger
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.run import Run

ROUNDS, LOCAL_STEPS, D, BATCH = 1000, 10, 5, 10
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
GOAL = 200.0  # milliseconds
FEW = (200, 200, 300)
MANY = tuple(range(200, 300))  # silos of 100 sizes
# Solvers that have no `rounds`.
LENGTHS: dict[str, dict[str, Any]] = {
    "wd_dp": {"local_steps": ROUNDS},
    "output_perturbation": {"l2": 0.1},
    "objective_perturbation": {},
    "ridge": {},
}
RUNS = 3


class _Reached(Exception):
    """Where a time is taken."""


def data(sizes: tuple[int, ...]) -> dpk.SiloData:
    rng = np.random.default_rng(0)
    parts = []
    for n in sizes:
        X = rng.standard_normal((n, D))
        parts.append((X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)))
    return dpk.SiloData.from_silos(parts, row_bound=3.0)


def seconds(
    where: Any, name: str, solver: str, options: dict[str, Any], records: dpk.SiloData
) -> float:
    """Return the processor time of a run until it calls a method."""

    def stop(*_: Any, **__: Any) -> None:
        raise _Reached

    with mock.patch.object(where, name, stop), contextlib.suppress(_Reached):
        start = time.thread_time()
        try:
            dpk.solve(solver, records, budget=BUDGET, clip=1.0, **options)
        finally:
            found = time.thread_time() - start
    return found


def more_cases() -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield ways of hidden local steps that are not the default of their trust."""
    hidden = {"rounds": ROUNDS, "local_steps": LOCAL_STEPS, "trust": "silo"}
    in_turn = {"noise": "round", "sampling": "cyclic", "batch_size": BATCH}
    yield "local_sgd", "silo", 'cyclic, noise "round"', hidden | in_turn
    last = {"accounting": "last_iterate", "l2": 0.1}
    yield "federated_gd", "silo", 'accounting "last_iterate"', hidden | last


def cases(sizes: tuple[int, ...]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield a solver, its trust, its sampling, and options without steps."""
    for solver, function in SOLVERS.items():
        declaration = function.declaration
        for trust in declaration.trusts:
            options: dict[str, Any] = {"trust": trust, **LENGTHS.get(solver, {"rounds": ROUNDS})}
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
    if "step_size" not in own or solver == "fixed_point":
        return {}
    rounds, K = options.get("rounds", 1), options.get("local_steps", 1)
    t = np.zeros(rounds) if equal else np.arange(rounds) / rounds
    if solver == "wd_dp" and not equal:
        t, K = np.arange(K) / K, 1
    return {"step_size": np.repeat(0.01 * (1.0 + vary) / (1.0 + t), K)}


def row(solver: str, options: dict[str, Any], records: dpk.SiloData) -> tuple[float, float | None]:
    """Return milliseconds until the first release, and more with steps of their own, if any."""
    first, own = [], []
    for i in range(RUNS):
        equal, each = (
            options | steps(solver, options, 1e-3 * (2 * i + k), equal=not k) for k in (0, 1)
        )
        minimises = solver == "objective_perturbation"  # before its release, not its calibration
        where, name = (Run, "sums") if minimises else (Ledger, "append")
        first.append(seconds(where, name, solver, each, records))
        hidden = "local_steps" in each and solver != "local_newton"
        if "step_size" in each and options.get("rounds", 1) > 1 and (hidden or records.m < 10):
            times = [seconds(Run, "result", solver, given, records) for given in (equal, each)]
            own.append(times[1] - times[0])
    return 1e3 * min(first), max(0.0, 1e3 * min(own)) if own else None


def main() -> None:
    warnings.simplefilter("ignore")
    records = {sizes: data(sizes) for sizes in (FEW, MANY)}
    for name in ("minibatch_sgd", "federated_gd"):  # modules that are imported when first used
        seconds(Ledger, "append", name, {"rounds": 2}, records[FEW])
    one = frozenset({(Sampled("without_replacement", 1, 9, 3.0), 2)})
    sampled_epsilon(one, 1e-6, "replace_one")
    found: dict[tuple[str, str], dict[str, list[float | None]]] = {}
    for sizes in (FEW, MANY):
        for solver, trust, sampling, options in (*cases(sizes), *more_cases()):
            try:
                first, own = row(solver, options, records[sizes])
            except (TypeError, ValueError):  # not offered together
                continue
            print(f"{solver}, {trust}, {sampling}, {len(sizes)}: {first:.1f}, {own}", flush=True)
            found.setdefault((solver, sampling), {}).setdefault(trust, []).extend((first, own))
    print(table(found))
    worst = [v for trusts in found.values() for one in trusts.values() for v in one if v]
    print(f"\nThe longest takes {max(worst):.0f} ms; the goal is {GOAL:.0f} ms.")


def table(found: dict[tuple[str, str], dict[str, list[float | None]]]) -> str:
    """Return a row for each solver and sampling, with the trusts in words."""
    lines = [
        "| solver | sampling | 3 silos | own steps | 100 silos | own steps |",
        "|---" * 6 + "|",
    ]
    for (solver, sampling), trusts in found.items():
        cells = []
        for column, digits in ((0, 1), (1, 0), (2, 1), (3, 0)):
            texts = []
            for trust, values in trusts.items():
                value = values[column] if column < len(values) else None
                if value is not None and (digits or value >= 1.0):
                    texts.append(f"{trust} {value:.{digits}f}")
            cells.append(", ".join(texts))
        lines.append(f"| `{solver}` | {sampling} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
