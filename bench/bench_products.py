"""glm_products beside the matrix product of NumPy, whose bits of a row depend on its neighbours.

Rows have norm 1 or so and are bounded by 2, so that dpkern finds the norm of each on the way.
"""

from functools import partial

import numpy as np

from bench.bench_glm import records
from bench.bench_sparse import PER_ROW, N, a9a
from bench.cases import DGEMM, Case, Contenders, dgemm
from bench.speed import speed_test
from dpkern import SiloData, kernels


def setup(n: int, d: int) -> tuple[Contenders, None]:
    X, y, _ = records(n, d)
    W = np.random.default_rng(1).standard_normal((d, d))
    ours, theirs = np.empty((n, d)), np.empty((n, d))
    data = SiloData(X, y, [0, n], row_bound=2.0)
    return {
        "dpkern": partial(kernels.glm_products, data, W, out=ours),
        "numpy": partial(np.matmul, X, W, out=theirs),
        "dgemm": dgemm(),
    }, None


def setup_sparse() -> tuple[Contenders, None]:
    X, y = a9a()
    W = np.random.default_rng(1).standard_normal((X.shape[1], X.shape[1]))
    data = SiloData.from_silos([(X, y)])
    return {
        "dpkern": partial(kernels.glm_products, data, W),
        "scipy": lambda: X @ W,
        "dgemm": dgemm(),
    }, None


def cases(quick: bool) -> list[Case]:
    sizes = [(1_000, 20), (1_000, 128)] if quick else [(50_000, 20), (50_000, 128)]
    how = {"unit": "F", "limits": DGEMM}
    found = [
        Case(
            "glm_products",
            f"{n} x {d}, {d} columns",
            partial(setup, n, d),
            2.0 * n * d * d,
            goals={"numpy": 1.0},
            **how,
        )
        for n, d in sizes
    ]
    work = 2.0 * N * PER_ROW * 123
    return [*found, Case("csr products", "a9a, 123 columns", setup_sparse, work, **how)]


test_speed = speed_test(cases, ["dpkern", "numpy", "scipy", "dgemm"])
