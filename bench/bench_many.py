"""Several models in one pass over the records beside as many passes; runs in lock-step."""

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest

from bench.bench_glm import CLIP, records
from bench.bench_hessian import PRODUCT, product
from bench.bench_sparse import PER_ROW, N, a9a
from bench.cases import Case, Contenders
from dpkern import Budget, SiloData, kernels, solve, solve_many

BUDGETS = [Budget(epsilon=epsilon, delta=1e-6) for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0)]


def dense(n: int, d: int) -> SiloData:
    X, y, _ = records(n, d)
    return SiloData.from_silos([(X, y)], row_bound=2.0)


def of_a9a(sparse: bool) -> SiloData:
    X, y = a9a()
    return SiloData.from_silos([(X if sparse else X.toarray(), y)], row_bound=4.0)


def setup(make: partial[SiloData], models: int) -> tuple[Contenders, None]:
    data = make()
    w = np.random.default_rng(1).standard_normal((models, data.d)) / 4.0
    one = partial(kernels.glm_gradient, data, clip=CLIP)
    contenders: Contenders = {
        "dpkern": partial(kernels.glm_gradients, data, w, clip=CLIP),
        "one by one": lambda: [one(own) for own in w],
    }
    if isinstance(data.X, np.ndarray):
        A = product(PRODUCT)
        contenders["dgemm"] = partial(np.matmul, A, A)
    if kernels.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(contenders["dpkern"], n_threads=1)
    return contenders, None


def setup_runs(
    make: partial[SiloData], solver: str, rounds: int, draws: int
) -> tuple[Contenders, None]:
    data, runs = make(), len(BUDGETS) * draws
    how: dict[str, Any] = {"clip": 1.0, "rounds": rounds}

    def together() -> list[np.ndarray]:
        results = solve_many(solver, data, budgets=BUDGETS, draws=draws, rng=range(runs), **how)
        return [result.coef for result in results]

    def in_turn() -> list[np.ndarray]:
        return [
            solve(solver, data, budget=BUDGETS[i // draws], rng=i, **how).coef for i in range(runs)
        ]

    def quiet(run: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run()

    return {"dpkern": partial(quiet, together), "in turn": partial(quiet, in_turn)}, None


def cases(quick: bool) -> list[Case]:
    big, small = ((20_000, 128), (2_000, 128)) if quick else ((1_000_000, 128), (20_000, 128))
    made = [
        (f"{n} x {d}", partial(dense, n, d), n * d, k, goal)
        for n, d, k, goal in ((*big, 4, 2.5), (*big, 16, 4.0), (*small, 16, 1.0))
    ]
    sparse, flat = partial(of_a9a, sparse=True), partial(of_a9a, sparse=False)
    made += [("a9a, csr", sparse, N * PER_ROW, k, 5.0) for k in (16, 32)]
    found = [
        Case(
            "glm_gradients",
            f"{size}, {k} models",
            partial(setup, make, k),
            4.0 * entries * k,
            unit="flop",
            goals={"one by one": goal},
            limits={"dgemm": 2.0 * PRODUCT**3} if "csr" not in size else {},
        )
        for size, make, entries, k, goal in made
    ]
    n = 20_000 if quick else 500_000
    runs = [
        (f"{n} x 54", partial(dense, n, 54), "gradient_descent", 20, 4.0),
        ("a9a, csr", sparse, "gradient_descent", 100, 5.0),
        ("a9a", flat, "gradient_descent", 100, 2.5),
        ("a9a, csr", sparse, "local_newton", 7, 2.5),
    ]
    return found + [
        Case(
            "solve_many",
            f"{size}, {solver}, 20 runs",
            partial(setup_runs, make, solver, rounds, 4),
            20 * rounds,
            unit="rounds",
            goals={"in turn": goal},
        )
        for size, make, solver, rounds, goal in runs
    ]


@pytest.mark.parametrize("contender", ["dpkern", "one by one", "1 thread", "in turn", "dgemm"])
@pytest.mark.parametrize("case", cases(quick=False), ids=lambda case: case.name)
def test_speed(case, contender, contenders, benchmark):
    benchmark.group = case.name
    benchmark(contenders(case, contender))
