"""The binomial mechanism of the shuffle model, on sums of vectors rounded at random.

The shuffled bits of the protocol (`dpkern.privacy.shuffle.protocol`) reveal no more than their
counts, S + Bin(N b, 1/2), which are sampled here directly.
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
from dpkern.privacy.channel import Channel
from dpkern.privacy.shuffle.binomial import binomial_rho, shuffle_sensitivity

FloatArray = NDArray[np.float64]

_LARGEST_COUNT = 1 << 52


class BinomialSum:
    """Sums of clipped vectors as in the shuffle protocol; every call records one release.

    Parameters
    ----------
    channel : Channel
        Ledger, stream and readers; neighbours differ in one record's value.
    what : str
        Description of the released sum, for the ledger.
    dim : int
        Number of coordinates d of a vector.
    n : int
        Number of vectors N in every release, one per record.
    rho : float, optional
        Budget of ONE release in zero-concentrated DP, finite and above 0, which determines b. The
        total of a run is `zcdp_rho(epsilon, delta)`.
    b : int, optional
        Given number of coins of every vector in each coordinate. At most one of `rho` and `b`;
        neither means no noise.
    g : int, optional
        Number of grid steps on [-L, L]; by default max(sqrt(N), 8 sqrt(d), sqrt(8 N rho)), rounded
        up, for which rounding adds at most an eighth to the sensitivity, and a sixteenth to the
        variance of the noise.
    honest : int, optional
        Number of vectors whose owners follow the protocol and keep their coins secret, including
        the protected one; by default all. The guarantee counts no other coins.
    sampling, per_record : optional
        As for `GaussianSum`; samples are charged in full.

    Attributes
    ----------
    g, b : int
        Numbers of steps and of coins; b = 0 without noise.
    coins : int
        Number of honest coins in every coordinate.
    sensitivity : float
        The l2 sensitivity g + sqrt(d) of the counts, rounded up.
    rho : float
        Cost of one release, rounded up; infinity without noise.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        dim: int,
        n: int,
        rho: float | None = None,
        b: int | None = None,
        g: int | None = None,
        honest: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        per_record: int | None = None,
    ) -> None:
        if rho is not None and b is not None:
            raise ValueError("b must be None where rho is given, got both")
        d, n = count("dim", dim), count("n", n)
        honest = n if honest is None else count("honest", honest)
        if honest > n:
            raise ValueError(f"honest must be at most n = {n}, got {honest}")
        rho = None if rho is None else positive("rho", rho)
        if g is None:
            # g^2 / N >= 8 rho implies b >= 16, and rounding has at most 1/b of the variance.
            g = _ceil_sqrt(max(n, 64 * d, 0 if rho is None else math.ceil(8 * n * Fraction(rho))))
        g = count("g", g)
        self.sensitivity = shuffle_sensitivity(g, d)
        if rho is not None:
            b = _least_coins(rho, self.sensitivity, d, n, g, honest)
        b = 0 if b is None else count("b", b)
        kernels.shuffle_parameters(n, d, 1.0, g, b)

        self._channel, self._shape = channel, (n, d)
        self.g, self.b, self.coins = g, b, honest * b
        spent = binomial_rho(self.coins, self.sensitivity, d) if b else None
        self.rho = math.inf if spent is None else round_up(spent)
        noise = f", {b} coins from each, {honest} of them honest" if b else ""
        self._entry = channel.describe(
            what=f"{what}: counts of {n} vectors in {g} steps{noise}",
            sensitivity=self.sensitivity,
            std=sqrt_down(Fraction(self.coins, 4)) if b else None,
            grid=1.0,
            dim=d,
            coins=self.coins or None,
            sampling=sampling,
            per_record=per_record,
        )

    def release(self, V: ArrayLike, *, bound: float, n_threads: int | None = None) -> FloatArray:
        """Record the release and return the noisy sum.

        Parameters
        ----------
        V : array_like, shape (n, dim)
            One vector per record, scaled down to norm `bound` if it is longer.
        bound : float
            L, the clip norm of a vector: public, or a function of earlier releases. It scales the
            grid and does not affect the sensitivity.
        n_threads : int, optional
            As in `kernels.shuffle_sum`.

        Returns
        -------
        ndarray, shape (dim,), float64
            The noisy sum. The variance per coordinate is (L / g)^2 N b from the coins, plus at most
            (L / g)^2 N from rounding.
        """
        if np.shape(V) != self._shape:
            raise ValueError(f"V must have shape {self._shape}, got {np.shape(V)}")
        total = kernels.shuffle_sum(
            V, bound=bound, g=self.g, b=self.b, rng=self._channel.stream, n_threads=n_threads
        )
        self._channel.ledger.append(self._entry)
        return total


def _least_coins(rho: float, sensitivity: float, dim: int, n: int, g: int, honest: int) -> int:
    """Return the least b with which one release spends at most rho."""
    most = _LARGEST_COUNT // n - g

    def enough(b: int) -> bool:
        spent = binomial_rho(honest * b, sensitivity, dim)
        return spent is not None and spent <= rho

    if most < 1 or not enough(most):
        raise ValueError(
            f"rho must be larger with g = {g} and {honest} honest vectors of {n}, got {rho!r}: it "
            "takes more coins than the 2^52 that can be counted"
        )
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def _ceil_sqrt(n: int) -> int:
    return math.isqrt(n - 1) + 1
