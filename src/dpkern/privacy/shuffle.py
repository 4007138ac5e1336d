"""Noisy sums without a trusted server: the shuffle protocol with binomial noise.

    every vector's owner:  R(t) + Bin(b, 1/2) ones among g + b bits, for each coordinate
    the shuffler:          permutes all labelled bits
    the analyser:          counts the ones of each label, (L / g) (2 count - N (g + b))

(Lowy, Ghafelebashi, Razaviyayn 2023, Algorithms 4 and 5, with their re-centring corrected.) The
shuffled bits tell no more than the counts, S + Bin(N b, 1/2): `BinomialSum` releases sums of many
vectors from that law without the bits. `randomize`, `shuffle` and `analyze` make, move and count
the bits.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern import kernels
from dpkern._numbers import count, positive
from dpkern.privacy._exact import round_up, sqrt_down
from dpkern.privacy.binomial import binomial_rho, shuffle_sensitivity
from dpkern.privacy.ledger import Ledger, Release
from dpkern.stream import NoiseStream, Purpose

FloatArray = NDArray[np.float64]
Labels = NDArray[np.int64]
Bits = NDArray[np.uint8]

_LARGEST_COUNT = 1 << 52


class BinomialSum:
    """Sums of clipped vectors as the shuffle protocol releases them, recorded before they leave.

    Parameters
    ----------
    what : str
        What is released, for the ledger.
    ledger : Ledger
        The run's ledger.
    rng : NoiseStream
        The run's noise stream.
    dim : int
        Coordinates d of a vector.
    n : int
        Vectors N of every release, one a record.
    rho : float, optional
        Budget of ONE release in zero-concentrated DP, finite and above 0: chooses b. Use
        `zcdp_rho(epsilon, delta)` for a run, and split it.
    b : int, optional
        Given coins of every vector in each coordinate. At most one of `rho` and `b`; neither means
        no noise.
    g : int, optional
        Steps of the grid on [-L, L]; by default max(sqrt(N), 8 sqrt(d), sqrt(8 N rho)), rounded
        up: rounding then adds an eighth to the sensitivity at most, and a sixteenth to the variance
        of the noise.
    honest : int, optional
        Vectors whose owners toss their coins and keep them secret, the protected one among them;
        by default all. The guarantee counts no other coins.
    seen_by : str
        Who sees the release, for the ledger.
    sampling, per_record : optional
        As in `GaussianSum`; samples are charged in full.

    Attributes
    ----------
    g, b : int
        Steps and coins; b = 0 without noise.
    coins : int
        Honest coins in every coordinate.
    sensitivity : float
        g + sqrt(d), rounded up: how far replacing a record moves the counts.
    rho : float
        What one release spends, rounded up; infinity without noise.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of its range, or the noise needs more coins than can
        be counted.
    """

    def __init__(
        self,
        *,
        what: str,
        ledger: Ledger,
        rng: NoiseStream,
        dim: int,
        n: int,
        rho: float | None = None,
        b: int | None = None,
        g: int | None = None,
        honest: int | None = None,
        seen_by: str,
        sampling: Mapping[str, Any] | None = None,
        per_record: int | None = None,
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise TypeError(f"ledger is a {type(ledger).__name__}; it must be a Ledger")
        if not isinstance(rng, NoiseStream):
            raise TypeError(f"rng is a {type(rng).__name__}; it must be the run's NoiseStream")
        if rho is not None and b is not None:
            raise ValueError("rho and b were both given; give at most one of them")
        d, n = count("dim", dim), count("n", n)
        honest = n if honest is None else count("honest", honest)
        if honest > n:
            raise ValueError(f"honest is {honest}; it must be at most n = {n}")
        rho = None if rho is None else positive("rho", rho)
        if g is None:
            # N b coins for g^2 / N >= 8 rho make b >= 16: rounding has at most 1/b of the variance.
            g = _ceil_sqrt(max(n, 64 * d, 0 if rho is None else math.ceil(8 * n * Fraction(rho))))
        g = count("g", g)
        self.sensitivity = shuffle_sensitivity(g, d)
        if rho is not None:
            b = _least_coins(rho, self.sensitivity, d, n, g, honest)
        b = 0 if b is None else count("b", b)
        kernels.shuffle_parameters(n, d, 1.0, g, b)

        self._ledger, self._rng, self._shape = ledger, rng, (n, d)
        self.g, self.b, self.coins = g, b, honest * b
        spent = binomial_rho(self.coins, self.sensitivity, d) if b else None
        self.rho = math.inf if spent is None else round_up(spent)
        noise = f", {b} coins from each, {honest} of them honest" if b else ""
        self._release = Release(
            what=f"{what}: counts of {n} vectors in {g} steps{noise}",
            sensitivity=self.sensitivity,
            std=sqrt_down(Fraction(self.coins, 4)) if b else None,
            grid=1.0,
            dim=d,
            seen_by=seen_by,
            coins=self.coins or None,
            sampling=sampling,
            per_record=per_record,
        )

    def release(self, V: ArrayLike, *, bound: float, n_threads: int | None = None) -> FloatArray:
        """Record the release and return the noisy sum.

        Parameters
        ----------
        V : array_like, shape (n, dim)
            One vector a record. One longer than `bound` is scaled to it.
        bound : float
            L, the l2 bound of a vector: public, or a function of what was released. It scales the
            grid and enters no sensitivity.
        n_threads : int, optional
            As in `kernels.shuffle_sum`.

        Returns
        -------
        ndarray, shape (dim,), float64
            With a variance per coordinate of (L / g)^2 N b for the coins and at most (L / g)^2 N
            for the rounding.

        Raises
        ------
        TypeError, ValueError
            `V` or `bound` does not fit. Nothing is drawn or recorded then.
        """
        if np.shape(V) != self._shape:
            raise ValueError(f"V has shape {np.shape(V)}; it must have shape {self._shape}")
        total = kernels.shuffle_sum(
            V, bound=bound, g=self.g, b=self.b, rng=self._rng, n_threads=n_threads
        )
        self._ledger.append(self._release)
        return total


def randomize(
    V: ArrayLike, *, bound: float, g: int, b: int, rng: int | NoiseStream | None = None
) -> Bits:
    """Return the messages of N users: bits of shape (N, d, g + b), labelled by the second axis.

    A user's R(t) + Bin(b, 1/2) ones are the first R(t) bits and the coins. Arguments and errors as
    for `kernels.shuffle_sum`, whose counts follow the same law: for the same release of a stream
    and N b < 4096 these bits have them. For small sizes: N d (g + b) bytes.
    """
    vectors: FloatArray = np.array(V, dtype=np.float64)
    if vectors.ndim != 2 or not vectors.size:
        raise ValueError(f"V must have shape (N, d), N, d >= 1, got {vectors.shape}")
    n, d = vectors.shape
    bound, g, b = kernels.shuffle_parameters(n, d, bound, g, b)
    with np.errstate(all="ignore"):
        norms = np.sqrt(np.square(vectors).sum(axis=1) + d * 2.0**-240)
        factors = np.minimum(1.0, bound * (1.0 - (4 * d + 64) * 2.0**-52) / norms)
    lost = ~np.isfinite(norms)
    vectors[lost], factors[lost] = 0.0, 1.0
    t = (factors[:, np.newaxis] * vectors + bound) * (g / (2.0 * bound))
    whole = np.floor(t)
    stream = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
    with stream.release() as release:
        uniform = (release.words(Purpose.ROUNDING, n * d) >> np.uint64(12)) * 2.0**-52
        rounded = whole + (uniform.reshape(n, d) < t - whole)
        bits = np.empty((n, d, g + b), dtype=np.uint8)
        bits[:, :, :g] = np.arange(g) < rounded[:, :, np.newaxis]
        for k in range(d):
            words = release.words(Purpose.BINOMIAL, -(-n * b // 64), k)
            coins = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
            bits[:, k, g:] = coins[: n * b].reshape(n, b)
    return bits


def shuffle(messages: Bits, *, rng: int | NoiseStream | None = None) -> tuple[Labels, Bits]:
    """Return the labels and the bits of all messages, in one random order.

    The order is that of random words of 64 bits; where two are equal, the first of two messages
    stays the first.
    """
    labels = np.broadcast_to(np.arange(messages.shape[1])[:, np.newaxis], messages.shape).ravel()
    stream = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
    with stream.release() as release:
        order = np.argsort(release.words(Purpose.SHUFFLE, messages.size), kind="stable")
    return labels[order], messages.ravel()[order]


def analyze(
    labels: Labels, bits: Bits, *, n: int, dim: int, bound: float, g: int, b: int
) -> FloatArray:
    """Return the estimate of the sum, shape (dim,), from the shuffled messages of n users."""
    bound, g, b = kernels.shuffle_parameters(n, dim, bound, g, b)
    if len(labels) != n * dim * (g + b) or len(bits) != len(labels):
        raise ValueError(
            f"there are {len(labels)} labels and {len(bits)} bits; {n} users send "
            f"{n * dim * (g + b)}: g + b for each of {dim} coordinates"
        )
    ones = np.bincount(labels[bits != 0], minlength=dim)
    return np.asarray((2 * ones - n * (g + b)) * (bound / g), dtype=np.float64)


def _least_coins(rho: float, sensitivity: float, dim: int, n: int, g: int, honest: int) -> int:
    """The least b with which one release spends at most rho."""
    most = _LARGEST_COUNT // n - g

    def enough(b: int) -> bool:
        spent = binomial_rho(honest * b, sensitivity, dim)
        return spent is not None and spent <= rho

    if most < 1 or not enough(most):
        raise ValueError(
            f"rho is {rho!r}, too small: with g = {g} and {honest} honest vectors of {n} it takes "
            "more coins than the 2^52 that can be counted"
        )
    below, above = 0, most
    while above - below > 1:
        middle = (below + above) // 2
        if enough(middle):
            above = middle
        else:
            below = middle
    return above


def _ceil_sqrt(n: int) -> int:
    return math.isqrt(n - 1) + 1


__all__ = ["BinomialSum", "analyze", "randomize", "shuffle"]
