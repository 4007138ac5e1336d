"""The output of the shuffle protocol's analyser: a sum with binomial noise."""

import functools
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import count, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import MAX_DRAWS, FloatArray, Random, real_array, release_of
from dpkern.stream import Purpose

MANY, FEW = 20, 12  # as in shuffle.h: blocks of 2^20 and 2^12 coins are sampled at once


def shuffle_sum(
    V: ArrayLike, *, bound: float, g: int, b: int, rng: Random = None, n_threads: int | None = None
) -> FloatArray:
    """Return the sum of vectors with binomial noise, as the shuffle protocol computes it.

    Every vector's owner encodes each coordinate x as R(t), t = g (x + L) / (2 L), by randomised
    rounding to an adjacent integer with mean t, adds Bin(b, 1/2), and sends that many ones among
    g + b bits labelled with the coordinate. The analyser of the shuffled bits counts the ones of a
    coordinate. The counts are drawn here without the bits, from the same distribution:

        count_k = sum_i R(t_ik) + Bin(N b, 1/2),    sum_k = (L / g) (2 count_k - N (g + b)).

    Parameters
    ----------
    V : array_like, shape (N, d)
        One vector per record, float64, N, d >= 1. Longer ones are scaled down to norm `bound`; one
        whose norm is NaN counts as 0.
    bound : float
        The public clip norm L > 0 of a vector, between 2^-100 and 2^400.
    g : int
        Number of grid steps on [-L, L], at least 1.
    b : int
        Number of coins per vector and coordinate; 0 adds no noise. N (g + b) <= 2^52.
    rng, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    total : ndarray, shape (d,)
        Float64: unbiased for the sum of the clipped vectors, with a variance per coordinate of
        (L / g)^2 N b for the coins and at most (L / g)^2 N for the rounding.

    Notes
    -----
    Sensitivity of the counts, exactly, for the doubles computed: given the other coins and the
    uniform numbers of the rounding, replacing a vector changes them by less than g + sqrt(d) in
    l2 norm and by at most g in each coordinate. The coins of a coordinate have their distribution
    within 2^-143 in total variation.

    References
    ----------
    Lowy, Ghafelebashi, Razaviyayn (2023), Algorithms 4 and 5 (after Cheu, Joseph, Mao, Peng 2021).
    As printed they take b n and L from a sum of N vectors, which is right for one vector only, and
    encode a range of 2 L on g slots of L / g.
    """
    vectors = real_array("V", V)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"V must have shape (N, d), N, d >= 1, got {vectors.shape}")
    n, d = vectors.shape
    bound, g, b = shuffle_parameters(n, d, bound, g, b)
    counts = np.empty(d, dtype=np.int64)
    threads = resolve_threads(n_threads, d * (n + (n * b >> MANY) + 64))
    purposes = Purpose.ROUNDING, Purpose.BINOMIAL
    many, few = (coins_together(k) if n * b >> k else None for k in (MANY, FEW))
    with release_of(rng) as release:
        _core.shuffle_sum(release.key, *purposes, vectors, bound, g, b, many, few, counts, threads)
    return (2 * counts - n * (g + b)) * (bound / g)


@functools.cache
def coins_together(k: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the distribution of |X - 2^(k-1)|, X of Bin(2^k, 1/2), for `dpk_together` (shuffle.h).

    Weights are proportional to binomial coefficients, rounded down to 320 bits, and omitted below
    2^-220 of the largest. The error of T(y) is at most 2^-12 of its last bit, which is rounded
    down.
    """
    half, weights = 1 << (k - 1), [1 << 320]
    while weights[-1] >> 100:
        y = len(weights) - 1
        weights.append(weights[-1] * (half - y) // (half + y + 1))
    sums = list(accumulate(2 * w if y else w for y, w in enumerate(weights)))
    T = [(s << 191) // sums[-1] for s in sums]
    low = (1 << 64) - 1
    top = np.array([t >> 128 for t in T], dtype=np.uint64)
    rest = np.array([[t >> 64 & low, t & low] for t in T], dtype=np.uint64)
    guide = np.searchsorted(top, np.arange(1024, dtype=np.uint64) << np.uint64(53))
    return top, rest.ravel(), guide.astype(np.int64)


def shuffle_parameters(n: int, d: int, bound: float, g: int, b: int) -> tuple[float, int, int]:
    """Validate bound, steps and coins of a sum of n vectors."""
    bound = positive("bound", bound)
    if not 2.0**-100 <= bound <= 2.0**400:
        raise ValueError(f"bound must lie between 2^-100 and 2^400, got {bound!r}")
    g, b = count("g", g), count("b", b, 0)
    if n * (g + b) > 1 << 52:
        raise ValueError(f"n (g + b) must be at most 2^52, got g = {g}, b = {b} and n = {n}")
    if n * b * d > MAX_DRAWS:
        raise ValueError(
            f"n b d must be at most 2^62 coins in one release, got b = {b}, n = {n} and d = {d}"
        )
    return bound, g, b
