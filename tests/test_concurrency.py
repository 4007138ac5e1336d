"""Properties of runs in several threads at once, with the GIL or without it.

`tests/test_solvers.py` runs every solver so; here caches are cold and threads start together.
"""

import contextlib
import functools
import gc
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest

import dpkern as dpk
from dpkern.models.penalties import L1
from dpkern.verification import verify

THREADS = 8
RUNS = {
    "gradient_descent": {"rounds": 5},
    "prox_sgd": {"rounds": 5, "batch_size": 50},
    "local_newton": {"rounds": 3, "l2": 0.1, "trust": "silo"},
    "admm": {"rounds": 4, "penalty": L1(0.01)},
}


def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 12))
    return dpk.SiloData(X, np.sign(X @ rng.standard_normal(12)), [0, 250, 600], row_bound=5.0)


def forget():
    """Empty every cache of the package's functions."""
    for found in gc.get_objects():
        # Not isinstance, which asks weak references to what is gone.
        if type(found) is functools._lru_cache_wrapper and found.__module__.startswith("dpkern"):
            found.cache_clear()


def together(call):
    """Return what `call` gives for 0, 1, ..., in threads that start at once with cold caches."""
    start = Barrier(THREADS)

    def wait(i):
        start.wait()
        return call(i)

    forget()
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(wait, range(THREADS)))


@pytest.fixture
def frequent_switches():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("solver", RUNS)
@pytest.mark.usefixtures("frequent_switches")
def test_first_runs_on_the_same_records_are_those_of_one_thread(solver):
    def run(seed, records):
        budget = dpk.Budget(epsilon=2.0, delta=1e-6)
        how = {"clip": 1.0, "step_size": 0.1} | RUNS[solver]
        if solver in ("admm", "local_newton"):
            del how["step_size"]
        found = dpk.solve(solver, records, budget=budget, rng=seed, n_threads=2, **how)
        return found.w, found.privacy.epsilon(1e-6)

    shared = data()
    for seed, (w, epsilon) in enumerate(together(lambda seed: run(seed, shared))):
        alone, same = run(seed, data())
        np.testing.assert_array_equal(w, alone)
        assert epsilon == same


@pytest.mark.usefixtures("frequent_switches")
def test_releases_of_one_stream_are_all_different_in_several_threads():
    stream = dpk.NoiseStream(0)

    def draw(_):
        return [tuple(dpk.kernels.gaussian(4, 100.0, grid=1.0, rng=stream)) for _ in range(50)]

    drawn = [values for thread in together(draw) for values in thread]
    assert len(set(drawn)) == 50 * THREADS


def test_certificates_are_verified_one_at_a_time(monkeypatch):
    """mpmath's precision belongs to the process: another thread would change it half-way."""
    mpmath = pytest.importorskip("mpmath")
    budget = dpk.Budget(epsilon=2.0, delta=1e-6)
    result = dpk.solve("gradient_descent", data(), budget=budget, clip=1.0, rounds=3, rng=0)
    certificate, inside, most = result.privacy.to_dict(), [], []

    @contextlib.contextmanager
    def workdps(digits):
        inside.append(digits)
        time.sleep(0.002)
        most.append(len(inside))
        with mpmath.workdps(digits):
            yield
        inside.pop()

    watched = SimpleNamespace(workdps=workdps)
    monkeypatch.setattr("dpkern.verification.multiprecision", lambda: watched)
    assert all(together(lambda _: verify(certificate)))
    assert most == [1] * THREADS


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled"), reason="Python without a choice of GIL")
def test_importing_the_package_does_not_turn_the_gil_on():
    code = (
        "import sys; off = not sys._is_gil_enabled(); import dpkern; "
        "print(off, not sys._is_gil_enabled())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == after
