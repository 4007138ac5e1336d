"""Several models in one pass over the records beside as many passes; runs in lock-step."""

from functools import partial
from typing import Any

import numpy as np

from bench.bench_glm import CLIP, records
from bench.bench_sparse import PER_ROW, N, a9a
from bench.cases import DGEMM, Case, Contenders, dgemm
from bench.speed import speed_test
from dpkern import Budget, SiloData, kernels, solve, solve_many
from dpkern.kernels import installation

BUDGETS = [Budget(epsilon=epsilon, delta=1e-6) for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0)]

DRAWS = 20


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
        contenders["dgemm"] = dgemm()
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(contenders["dpkern"], n_threads=1)
    return contenders, None


def setup_runs(make: partial[SiloData], solver: str, rounds: int) -> tuple[Contenders, None]:
    """All draws in lock-step, and one draw of every budget in turn, which is scaled up."""
    data, seeds = make(), range(len(BUDGETS) * DRAWS)
    how: dict[str, Any] = {"clip": 1.0, "rounds": rounds}

    def together() -> list[np.ndarray]:
        results = solve_many(solver, data, budgets=BUDGETS, draws=DRAWS, rng=seeds, **how)
        return [result.coef for result in results[::DRAWS]]

    def in_turn() -> list[np.ndarray]:
        return [
            solve(solver, data, budget=budget, rng=seed, **how).coef
            for budget, seed in zip(BUDGETS, seeds[::DRAWS], strict=True)
        ]

    return {"dpkern": together, "in turn": in_turn}, None


def cases(quick: bool) -> list[Case]:
    big, small = ((20_000, 128), (2_000, 128)) if quick else ((1_000_000, 128), (20_000, 128))
    made = [
        (f"{n} x {d}", partial(dense, n, d), n * d, k, goal)
        for n, d, k, goal in ((*big, 4, 2.5), (*big, 16, 4.0), (*small, 16, 1.0))
    ]
    sparse, flat = partial(of_a9a, sparse=True), partial(of_a9a, sparse=False)
    made += [
        ("a9a, csr", sparse, N * PER_ROW, k, goal) for k, goal in ((4, 1.0), (16, 5.0), (32, 5.0))
    ]
    found = [
        Case(
            "glm_gradients",
            f"{size}, {k} models",
            partial(setup, make, k),
            4.0 * entries * k,
            unit="F",
            goals={"one by one": goal},
            limits=DGEMM if "csr" not in size else {},
        )
        for size, make, entries, k, goal in made
    ]
    n, rounds, few = (20_000, 5, 1) if quick else (500_000, 100, 7)
    runs = [
        (f"{n} x 54", partial(dense, n, 54), "gradient_descent", 10, 4.0),
        ("a9a, csr", sparse, "gradient_descent", rounds, 5.0),
        ("a9a", flat, "gradient_descent", rounds, 2.5),
        ("a9a, csr", sparse, "local_newton", few, 2.5),
    ]
    return found + [
        Case(
            "solve_many",
            f"{size}, {solver}, 100 x {rounds}",
            partial(setup_runs, make, solver, rounds),
            len(BUDGETS) * DRAWS * rounds,
            unit="round",
            goals={"in turn": goal},
            parts={"in turn": 1.0 / DRAWS},
        )
        for size, make, solver, rounds, goal in runs
    ]


test_speed = speed_test(cases, ["dpkern", "one by one", "1 thread", "in turn", "dgemm"])
