"""Sums of the shuffle protocol beside NumPy's rounding and binomial draws, thread for thread.

NumPy draws its binomial numbers by a method in floating point from a generator that is not
cryptographic: the rival's noise is not exact.
"""

import math
from functools import partial

import numpy as np

from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import NoiseStream, kernels, reference
from dpkern.kernels import installation

BOUND = 1.0
# The paper's size: 25 silos of 1 238 records, dimension 50; coins for epsilon = 1, delta = 1e-6.
PAPER = (30_950, 50, 176, 91)


def skilled(
    V: np.ndarray, g: int, b: int, rng: np.random.Generator, uniform: np.ndarray
) -> np.ndarray:
    n, d = V.shape
    norms = np.sqrt(np.einsum("ij,ij->i", V, V))
    t = V * (np.minimum(1.0, BOUND / norms) * (g / (2 * BOUND)))[:, None]
    t += g / 2
    rng.random(out=uniform)
    t += uniform
    np.floor(t, out=t)
    counts = t.sum(axis=0) + rng.binomial(n * b, 0.5, d)
    return (2 * counts - n * (g + b)) * (BOUND / g)


def setup(n: int, d: int, g: int, b: int) -> tuple[Contenders, None]:
    rng, stream = np.random.Generator(np.random.PCG64(0)), NoiseStream()
    V = rng.standard_normal((n, d))
    V *= rng.uniform(0.2, 1.2, (n, 1)) / np.linalg.norm(V, axis=1, keepdims=True)
    ours = partial(kernels.shuffle_sum, V, bound=BOUND, g=g, b=b, rng=stream)
    contenders: Contenders = {
        "dpkern": partial(ours, n_threads=1),
        "numpy": partial(skilled, V, g, b, rng, np.empty_like(V)),
    }
    if n * d * (g + b) < 1 << 24:
        contenders["twin"] = partial(reference.shuffle_sum, V, bound=BOUND, g=g, b=b, rng=stream)
    if installation.info()["n_threads"] > 1:
        contenders["all threads"] = ours
    return contenders, None


def cases(quick: bool) -> list[Case]:
    small = (500, 10, math.isqrt(500), 40)
    return [
        Case(
            "shuffle_sum",
            f"{n} x {d}, g = {g}, b = {b}",
            partial(setup, n, d, g, b),
            n * d,
            "numbers",
            None,
        )
        for n, d, g, b in ([small] if quick else [PAPER, small])
    ]


test_speed = speed_test(cases, ["dpkern", "numpy", "twin"])
