"""How much processor time the calibration of the noise takes, for every solver.

`python -m bench.calibration` prints a table in Markdown, in milliseconds, the least of three: the
time until the first release of a run of 1000 rounds, with every sampler and trust that a solver
offers, and what it takes more over all rounds when each has step sizes of its own. Data are tiny,
so that calibration is what is left; hidden local steps before the first release are in it. Results
are cached, so that every run has other step sizes.
"""

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import dpkern as dpk
from dpkern.privacy.accounting import Sampled, sampled_epsilon
from dpkern.privacy.ledger import Ledger
from dpkern.solvers import SOLVERS

ROUNDS, LOCAL_STEPS, D, BATCH = 1000, 10, 5, 10
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
GOAL = 200.0  # milliseconds
FEW = (200, 200, 300)
MANY = tuple(range(200, 300))  # silos of 100 sizes
# Solvers that have no `rounds`, or take so long for as many that they have fewer.
LENGTHS: dict[str, dict[str, int]] = {
    "wd_dp": {"local_steps": ROUNDS},
    "output_perturbation": {},
    "objective_perturbation": {},
    "ridge": {},
}
RUNS = 3


class _FirstRelease(Exception):
    pass


def data(sizes: tuple[int, ...]) -> dpk.SiloData:
    rng = np.random.default_rng(0)
    parts = []
    for n in sizes:
        X = rng.standard_normal((n, D))
        parts.append((X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)))
    return dpk.SiloData.from_silos(parts, row_bound=3.0)


def seconds(call: Callable[[], Any]) -> float:
    """Return the processor time of a call that may end at the first release."""
    start = time.thread_time()
    with contextlib.suppress(_FirstRelease):
        call()
    return time.thread_time() - start


def until_first_release(solver: str, options: dict[str, Any], records: dpk.SiloData) -> float:
    def stop(*_: Any) -> None:
        raise _FirstRelease

    with mock.patch.object(Ledger, "append", stop):
        return seconds(lambda: dpk.solve(solver, records, budget=BUDGET, clip=1.0, **options))


def cases(sizes: tuple[int, ...]) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield a solver, its trust, its sampling, and options without steps."""
    for solver, function in SOLVERS.items():
        declaration = function.declaration
        for trust in declaration.trusts:
            options: dict[str, Any] = {"trust": trust, **LENGTHS.get(solver, {"rounds": ROUNDS})}
            local = "local_steps" in declaration.own and solver not in ("wd_dp", "admm")
            if trust == "silo" and solver == "admm":
                options["users"] = "silos"
            if not declaration.samplers:
                more = {"local_steps": LOCAL_STEPS} if local else {}
                yield solver, trust, "", options | more
            for sampling in declaration.samplers:
                one_pass = {"rounds": min(sizes) // BATCH} if sampling == "one_pass" else {}
                more = {"sampling": sampling} if len(declaration.samplers) > 1 else {}
                more |= {} if sampling == "full" else {"batch_size": BATCH}
                if sampling == "poisson":
                    more |= {"neighbours": "add_remove", "public_size": sizes}
                if local and sampling != "one_pass":
                    more["local_steps"] = LOCAL_STEPS
                yield solver, trust, sampling, options | more | one_pass


def steps(solver: str, options: dict[str, Any], vary: float, *, equal: bool) -> dict[str, Any]:
    """Return step sizes, the same in every round or all different; nothing if it takes none."""
    if "step_size" not in SOLVERS[solver].declaration.own:
        return {}
    rounds, K = options.get("rounds", 1), options.get("local_steps", 1)
    t = np.zeros(rounds) if equal else np.arange(rounds) / rounds
    rows = np.repeat(0.01 * (1.0 + vary) / (1.0 + t), K)
    return {"step_size": rows if "step_size" in SOLVERS[solver].declaration.own else None}


def row(solver: str, options: dict[str, Any], records: dpk.SiloData) -> tuple[float, float | None]:
    """Return milliseconds until the first release, and more with steps of their own, if any."""
    first, own = [], []
    for i in range(RUNS):
        vary = [options | steps(solver, options, 1e-3 * (2 * i + k), equal=not k) for k in (0, 1)]
        first.append(until_first_release(solver, vary[1], records))
        if vary[1].keys() != options.keys() and options.get("rounds", 1) > 1:
            runs = [
                seconds(lambda o=o: dpk.solve(solver, records, budget=BUDGET, clip=1.0, **o))  # type: ignore[misc]
                for o in vary
            ]
            own.append(runs[1] - runs[0])
    return 1e3 * min(first), 1e3 * min(own) if own else None


def main() -> None:
    warnings.simplefilter("ignore")
    records, worst = {sizes: data(sizes) for sizes in (FEW, MANY)}, 0.0
    for name in ("minibatch_sgd", "federated_gd"):  # modules that are imported when first used
        until_first_release(name, {"rounds": 2}, records[FEW])
    sampled_epsilon(
        frozenset({(Sampled("without_replacement", 1, 9, 3.0), 2)}), 1e-6, "replace_one"
    )
    print("| solver | trust | sampling | silos | first release | own steps |")
    print("|---|---|---|---|---|---|")
    for sizes in (FEW, MANY):
        for solver, trust, sampling, options in cases(sizes):
            try:
                first, own = row(solver, options, records[sizes])
            except (TypeError, ValueError) as error:
                print(f"<!-- {solver}, {trust}, {sampling}: {error} -->", flush=True)
                continue
            shown = "" if own is None else f"{max(own, 0.0):.0f}"
            line = f"| {solver} | {trust} | {sampling} | {len(sizes)} | {first:.1f} | {shown} |"
            print(line, flush=True)
            worst = max(worst, first + max(own or 0.0, 0.0))
    print(f"<!-- the longest: {worst:.0f} ms; the goal: {GOAL:.0f} ms -->")


if __name__ == "__main__":
    main()
