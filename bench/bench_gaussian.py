"""Exactly rounded Gaussian noise beside NumPy's floating-point normals, thread for thread.

NumPy's draws are floating-point numbers from a generator that is not cryptographic: the rival
gives neither of the two things that the kernel is for. A draw takes 64 bits of the stream: the rate
of ChaCha20 alone is the limit.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import NoiseStream, _core, kernels
from dpkern.kernels import installation

WORDS = 128  # of a chunk of the stream
GOALS = {"v4": {"numpy": 4.0}, "v3": {"numpy": 1.7}}


def setup(n: int, log_ratio: int, isa: str) -> tuple[Contenders, None]:
    rng, stream = np.random.Generator(np.random.PCG64()), NoiseStream()
    out = np.empty(n)
    ours = partial(kernels.gaussian, n, 2.0**log_ratio, grid=1.0, rng=stream, out=out)
    one = partial(ours, n_threads=1)

    in_use = _core.isa()

    def on_isa(call: Callable[[], object]) -> np.ndarray:
        _core._use_isa(isa)
        call()
        _core._use_isa(in_use)
        return out

    words = np.empty(-(-n // WORDS) * WORDS, dtype=np.uint64)
    stream_alone = partial(_core.chacha20_chunks, bytes(32), 0, 0, words)
    contenders: Contenders = {
        "dpkern": one if isa == in_use else partial(on_isa, one),
        "numpy": partial(rng.standard_normal, n, out=out),
        "chacha20": partial(on_isa, stream_alone),
    }
    if isa == in_use and installation.info()["n_threads"] > 1:
        contenders["all threads"] = ours
    return contenders, None


def setup_matrix(d: int) -> tuple[Contenders, None]:
    rng, stream = np.random.Generator(np.random.PCG64()), NoiseStream()
    out = np.empty((1, d, d))

    def symmetric() -> np.ndarray:
        upper = np.triu(rng.standard_normal((d, d)))
        return (upper + upper.T) * np.sqrt(0.5)

    return {
        "dpkern": partial(kernels.goe, 1, d, 1.0, rng=stream, out=out, n_threads=1),
        "numpy": symmetric,
    }, None


def cases(quick: bool) -> list[Case]:
    sizes = [(100_000, 26)] if quick else [(1_000, 26), *((1_000_000, r) for r in (20, 26, 32))]
    vectors = []
    for isa in [name for name in _core.isa_names() if name == _core.isa() or name == "v3"]:
        for n, r in sizes:
            if n < 10_000 and isa != _core.isa():
                continue
            goals = GOALS.get(isa, {}) if n >= 10_000 else {}
            made = partial(setup, n, r, isa)
            size = f"{n}, 2^{r} steps"
            limits = {"chacha20": n}
            vectors.append(
                Case(f"gaussian {isa}", size, made, n, "draws", None, goals, limits=limits)
            )
    d = 100 if quick else 362
    draws = d * (d + 1) // 2
    return [*vectors, Case("goe", f"{d} x {d}", partial(setup_matrix, d), draws, "draws", None)]


test_speed = speed_test(cases, ["dpkern", "numpy", "chacha20"])
