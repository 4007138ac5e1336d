"""How much processor time a run takes until its first release.

`python -m bench.calibration` prints milliseconds, the least and the most of three, for every
solver, sampler and number of rounds, and for local runs whose rounds all have steps of their own.
Data are tiny, so that what is left is the calibration of the noise; hidden local steps before the
first release are in it.
"""

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np

import dpkern as dpk
from dpkern.privacy.ledger import Ledger

SIZES, D = (200, 200, 300), 5
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
ROUNDS = (10, 100, 1000, 10_000)


class _FirstRelease(Exception):
    pass


def data() -> dpk.SiloData:
    rng = np.random.default_rng(0)
    parts = []
    for n in SIZES:
        X = rng.standard_normal((n, D))
        parts.append((X, np.where(X[:, 0] + rng.standard_normal(n) > 0.0, 1.0, -1.0)))
    return dpk.SiloData.from_silos(parts, row_bound=3.0)


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a solver, a description and options."""
    poisson = {"neighbours": "add_remove", "public_size": SIZES, "sampling": "poisson"}
    fixed = {"sampling": "without_replacement"}
    for rounds in ROUNDS:
        for solver in ("minibatch_sgd", "local_sgd", "spider", "prox_svrg"):
            taken = [("without_replacement", fixed), ("poisson", poisson), ("full", {})]
            for name, options in taken if solver in ("minibatch_sgd", "local_sgd") else taken[::2]:
                batch = {} if name == "full" else {"batch_size": 10}
                given = {**options, **batch, "rounds": rounds, "step_size": 0.1}
                if solver == "spider":
                    given["refresh_every"] = 5
                yield solver, f"{name}, {rounds} rounds", given
        for solver in ("gradient_descent", "federated_gd", "wd_dp", "local_newton",
                       "double_noise_newton", "admm"):  # fmt: skip
            name = "local_steps" if solver == "wd_dp" else "rounds"
            yield solver, f"{rounds} {name}", {name: rounds}
        yield (
            "wd_dp",
            f"{rounds} local_steps, distinct",
            {
                "local_steps": rounds,
                "step_size": 0.01 / np.sqrt(1.0 + np.arange(rounds)),
            },
        )
    for rounds, steps in ((100, 10), (1000, 10), (10_000, 2), (10, 1000)):
        rows = 0.01 / np.sqrt(1.0 + np.arange(rounds * steps))
        given = {"rounds": rounds, "local_steps": steps, "step_size": rows}
        yield "federated_gd", f"{rounds} x {steps} distinct steps", given


def until_first_release(solver: str, options: dict[str, Any], records: dpk.SiloData) -> float:
    """Return seconds."""

    def stop(*_: Any) -> None:
        raise _FirstRelease

    trust = "silo" if "sampling" in options else "central"
    start = time.thread_time()
    try:
        with mock.patch.object(Ledger, "append", stop):
            dpk.solve(solver, records, budget=BUDGET, clip=1.0, trust=trust, **options)
    except _FirstRelease:
        pass
    return time.thread_time() - start


def main() -> None:
    records = data()
    until_first_release("minibatch_sgd", {"rounds": 2}, records)
    for solver, what, options in cases():
        try:
            taken = []
            for i in range(3):  # another step size, as results are cached
                varied = dict(options)
                if "step_size" in options:
                    varied["step_size"] = options["step_size"] * (1.0 + 1e-3 * i)
                taken.append(until_first_release(solver, varied, records))
        except (TypeError, ValueError) as error:
            print(f"{solver:22}{what:42}{str(error)[:60]}")
            continue
        print(f"{solver:22}{what:42}{1e3 * min(taken):10.1f} {1e3 * max(taken):10.1f}", flush=True)


if __name__ == "__main__":
    main()
