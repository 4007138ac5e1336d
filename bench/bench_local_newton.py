"""Whole runs of local_newton: beside the same run on NumPy references, and without noise.

The run without noise truncates nothing as soon as no eigenvalue is below its floor, and so never
needs the eigenvectors that noisy Hessians ask for: "no noise, same floor" has the floor of the
noisy run, which leaves it the same work but for the drawing of noise.
"""

from functools import partial
from typing import Any

import numpy as np

from bench.bench_sparse import a9a
from bench.bench_wd_dp import on_references
from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import Budget, SiloData, solve

BUDGET = Budget(mu=1.0)
SILOS = 50


def setup(rounds: int, dense: bool) -> tuple[Contenders, None]:
    X, y = a9a()
    if dense:
        X = X.toarray()
    data = SiloData.split(X, y, SILOS, how="even", seed=0, row_bound=1.0)
    shared: dict[str, Any] = {"clip": 1.0, "hess_clip": 0.25, "l2": 1e-3, "rounds": rounds}
    shared |= {"rng": 0, "trust": "silo"}
    floor = float(np.max(solve("local_newton", data, budget=BUDGET, **shared).parameters["floor"]))

    def run(budget: Budget | None, **more: float) -> np.ndarray:
        return solve("local_newton", data, budget=budget, **shared, **more).coef

    contenders: Contenders = {
        "dpkern": partial(run, BUDGET),
        "no noise": partial(run, None),
        "no noise, same floor": partial(run, None, floor=floor),
    }
    contenders["twin"] = partial(on_references, contenders["dpkern"])
    return contenders, None


def cases(quick: bool) -> list[Case]:
    rounds = 2 if quick else 10
    return [
        Case(
            "local_newton",
            f"a9a or like it, {SILOS} silos, {rounds} rounds, " + ("dense" if dense else "csr"),
            partial(setup, rounds, dense),
            rounds,
            unit="round",
            goals={"twin": 10.0, "no noise": 1 / 1.15},
            other_work=("no noise", "no noise, same floor"),
        )
        for dense in (False, True)
    ]


test_speed = speed_test(cases, ["dpkern", "no noise", "no noise, same floor", "twin"])
