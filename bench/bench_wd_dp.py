"""Whole runs of solvers: beside the same run on NumPy references, and beside the run without noise.

What is left out with the noise is the drawing of it only: the records are clipped in both, and
their sums rounded.
"""

from collections.abc import Callable
from functools import partial
from unittest import mock

import numpy as np

from bench.cases import Case, Contenders, out_of_cache
from bench.speed import speed_test
from dpkern import Budget, SiloData, kernels, reference, solve

BUDGET = Budget(epsilon=1.0, delta=1e-6)


def records(n: int, d: int, m: int) -> SiloData:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) / np.sqrt(d)
    y = np.where(X @ rng.standard_normal(d) > 0.0, 1, -1)
    cuts = np.sort(rng.integers(1, n, m - 1))
    return SiloData(X, y, np.unique([0, *cuts, n]), row_bound=1.0)


def on_references(run: Callable[[], np.ndarray]) -> np.ndarray:
    """The same run with every kernel that has a reference replaced by it."""
    names = ({*reference.__all__} & {*kernels.__all__}) - {"prox"}
    references = {name: getattr(reference, name) for name in names}
    with mock.patch.multiple(kernels, **references):
        return run()


def setup(solver: str, n: int, d: int, with_reference: bool, **parameters: float) -> tuple:
    data = records(n, d, 32)

    def run(budget: Budget | None) -> np.ndarray:
        return solve(solver, data, budget=budget, clip=1.0, l2=1e-3, rng=0, **parameters).coef

    contenders: Contenders = {"dpkern": partial(run, BUDGET), "no noise": partial(run, None)}
    if with_reference:
        contenders["twin"] = partial(on_references, contenders["dpkern"])
    return contenders, out_of_cache() if n >= 500_000 else data.X


def cases(quick: bool) -> list[Case]:
    n, d, steps = (20_000, 54, 10) if quick else (500_000, 54, 50)
    found = []
    for solver, parameters, goals in (
        ("wd_dp", {"local_steps": steps, "step_size": 0.5}, {"twin": 10.0}),
        ("gradient_descent", {"rounds": steps, "step_size": 0.5}, {}),
        ("admm", {"rounds": steps, "prox_step": 0.5}, {}),
    ):
        made = partial(setup, solver, n, d, "twin" in goals, **parameters)
        found.append(
            Case(
                solver,
                f"{n} x {d}, {steps} steps",
                made,
                8 * n * d * steps,
                goals=goals | {"no noise": 1 / 1.02},
                other_work=("no noise",),
                turns=32,  # a difference of two percent is to be seen
            )
        )
    return found


test_speed = speed_test(cases, ["dpkern", "no noise", "twin"])
