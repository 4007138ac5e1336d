"""The sum that the shuffle protocol's analyser finds, with binomial noise."""

import functools
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import _core
from dpkern._numbers import count, positive
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import MAX_DRAWS, FloatArray, Random, real_array, release_of
from dpkern.stream import Purpose

MANY, FEW = 20, 12  # as in shuffle.h: 2^20 and 2^12 coins are tossed together


def shuffle_sum(
    V: ArrayLike,
    *,
    bound: float,
    g: int,
    b: int,
    rng: Random = None,
    n_threads: int | None = None,
) -> FloatArray:
    """Sum of vectors as the analyser of the shuffle protocol finds it, with binomial noise.

    Every vector's owner encodes each coordinate x of it as R(t), t = g (x + L) / (2 L), rounded to
    one of the two integers beside t so that the mean is t, adds Bin(b, 1/2), and sends that many
    ones among g + b bits labelled with the coordinate. The analyser of the shuffled bits counts
    the ones of a coordinate. The counts are drawn here without the bits, from the same law:

        count_k = sum_i R(t_ik) + Bin(N b, 1/2),    sum_k = (L / g) (2 count_k - N (g + b)).

    2^20 coins at a time, then 2^12, are tossed together, by inversion of their law from a word of
    the stream and as many more as it takes; the last ones are bits of the stream.

    Parameters
    ----------
    V : array_like, shape (N, d)
        One vector a record, float64, N, d >= 1. One longer than `bound` is scaled to it; one whose
        norm is no number counts as 0.
    bound : float
        L > 0, the l2 bound of a vector, between 2^-100 and 2^400. Public.
    g : int
        Steps of the grid on [-L, L], at least 1.
    b : int
        Coins that every vector adds to each coordinate; 0 adds no noise. N (g + b) <= 2^52.
    rng, n_threads
        As in `dpkern.kernels`.

    Returns
    -------
    total : ndarray, shape (d,)
        Float64: unbiased for the sum of the clipped vectors, with a variance per coordinate of
        (L / g)^2 N b for the coins and at most (L / g)^2 N for the rounding.

    Notes
    -----
    Sensitivity of the counts, exactly, for the doubles computed: with the other coins and the
    uniform numbers of the rounding given, replacing a vector moves them by less than g + sqrt(d) in
    l2 norm and by at most g in each coordinate. `dpkern.privacy.BinomialSum` says how many coins
    that takes. The coins of a coordinate follow their law within 2^-143 in total variation.

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
    """Return the law of |X - 2^(k-1)|, X of Bin(2^k, 1/2), as `dpk_together` in shuffle.h has it.

    Weights are in proportion to binomial coefficients, rounded down from 320 bits on, and left out
    below 2^-220 of the largest: all of that moves no T(y) by more than 2^-12 of its last bit, which
    is rounded down.
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
    """Return bound, steps and coins of a sum of n vectors; refuse what is out of range."""
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
