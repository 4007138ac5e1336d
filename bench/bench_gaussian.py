"""Exactly rounded Gaussian noise beside NumPy's floating-point normals."""

from functools import partial

import numpy as np
import pytest

from bench.cases import Case, Contenders
from dpkern import kernels


def setup(n: int) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    out = np.empty(n)
    return {
        "dpkern": partial(kernels.gaussian, n, 1.0, rng=0, out=out),
        "numpy": partial(rng.standard_normal, n, out=out),
    }, None


def cases(quick: bool) -> list[Case]:
    sizes = [100_000] if quick else [1_000, 1_000_000, 20_000_000]
    return [
        Case("gaussian", str(n), partial(setup, n), n, unit="draws", tolerance=None) for n in sizes
    ]


@pytest.mark.parametrize("contender", ["dpkern", "numpy"])
@pytest.mark.parametrize("case", cases(quick=False), ids=lambda case: case.name)
def test_speed(case, contender, contenders, benchmark):
    benchmark.group = case.name
    benchmark(contenders(case, contender))
