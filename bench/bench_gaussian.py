"""Draws of exactly rounded Gaussian noise against NumPy's generator, one thread.

NumPy's draws are floating-point numbers from a generator that is not cryptographic: the rival
gives neither of the two things that the kernel is for.
"""

import numpy as np
import pytest

from dpkern import NoiseStream, _core, kernels

N = 1 << 17  # a million bytes: the generators are measured, not the memory
D = 362  # d (d + 1) / 2 is about N / 2


@pytest.fixture(params=_core.isa_names())
def isa(request):
    before = _core.isa()
    _core._use_isa(request.param)
    yield request.param
    _core._use_isa(before)


@pytest.mark.benchmark(group="gaussian")
@pytest.mark.parametrize("log_ratio", [20, 26, 32])
def bench_gaussian(benchmark, isa, log_ratio):
    out, stream = np.empty(N), NoiseStream()
    benchmark.extra_info["draws"] = N
    sigma = 2.0**log_ratio
    benchmark(kernels.gaussian, N, sigma, grid=1.0, rng=stream, out=out, n_threads=1)


@pytest.mark.benchmark(group="gaussian")
def bench_numpy_standard_normal(benchmark):
    out, rng = np.empty(N), np.random.Generator(np.random.PCG64())
    benchmark.extra_info["draws"] = N
    benchmark(rng.standard_normal, out=out)


@pytest.mark.benchmark(group="goe")
def bench_goe(benchmark, isa):
    out, stream = np.empty((1, D, D)), NoiseStream()
    benchmark(kernels.goe, 1, D, 1.0, rng=stream, out=out, n_threads=1)


@pytest.mark.benchmark(group="goe")
def bench_numpy_symmetric(benchmark):
    rng = np.random.Generator(np.random.PCG64())

    def symmetric():
        upper = np.triu(rng.standard_normal((D, D)))
        return (upper + upper.T) * np.sqrt(0.5)

    benchmark(symmetric)
