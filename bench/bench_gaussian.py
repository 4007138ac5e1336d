"""Exactly rounded Gaussian noise beside NumPy's floating-point normals.

NumPy's draws are floating-point numbers from a generator that is not cryptographic: the rival
gives neither of the two things that the kernel is for.
"""

from functools import partial

import numpy as np
import pytest

from bench.cases import Case, Contenders
from dpkern import NoiseStream, kernels


def setup(n: int, log_ratio: int) -> tuple[Contenders, None]:
    rng, stream = np.random.Generator(np.random.PCG64()), NoiseStream()
    out = np.empty(n)
    ours = partial(kernels.gaussian, n, 2.0**log_ratio, grid=1.0, rng=stream, out=out)
    return {"dpkern": ours, "numpy": partial(rng.standard_normal, n, out=out)}, None


def setup_matrix(d: int) -> tuple[Contenders, None]:
    rng, stream = np.random.Generator(np.random.PCG64()), NoiseStream()
    out = np.empty((1, d, d))

    def symmetric() -> np.ndarray:
        upper = np.triu(rng.standard_normal((d, d)))
        return (upper + upper.T) * np.sqrt(0.5)

    return {
        "dpkern": partial(kernels.goe, 1, d, 1.0, rng=stream, out=out),
        "numpy": symmetric,
    }, None


def cases(quick: bool) -> list[Case]:
    sizes = [(100_000, 26)] if quick else [(1_000, 26), *((1_000_000, r) for r in (20, 26, 32))]
    vectors = [
        Case("gaussian", f"{n}, 2^{r} steps", partial(setup, n, r), n, unit="draws", tolerance=None)
        for n, r in sizes
    ]
    d = 100 if quick else 362
    draws = d * (d + 1) // 2
    matrix = Case("goe", f"{d} x {d}", partial(setup_matrix, d), draws, "draws", tolerance=None)
    return [*vectors, matrix]


@pytest.mark.parametrize("contender", ["dpkern", "numpy"])
@pytest.mark.parametrize("case", cases(quick=False), ids=lambda case: case.name)
def test_speed(case, contender, contenders, benchmark):
    benchmark.group = case.name
    benchmark(contenders(case, contender))
