"""The binomial mechanism of the shuffle model, on sums of vectors rounded at random.

The shuffled bits of the protocol (`mechanisms.shuffle_protocol`) reveal no more than their
counts, S + Bin(N b, 1/2), which are sampled here directly.
"""

import bisect
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern import kernels
from dpkern._numbers import count, positive
from dpkern._typing import FloatArray
from dpkern.kernels.shuffle import shuffle_parameters
from dpkern.privacy.guarantees.binomial import binomial_mu, shuffle_sensitivity
from dpkern.privacy.guarantees.rounding import round_up, sqrt_down
from dpkern.privacy.mechanisms.channel import Channel


class BinomialSum:
    """Sums of clipped vectors as in the shuffle protocol; every call records one release.

    Neighbours differ in the value of one of the n records, each of which has one vector. ONE
    release has the budget `mu` of Gaussian DP, from which b follows, or every vector the given
    number `b` of coins in each coordinate; neither means no noise. `honest` is the number of
    vectors whose owners follow the protocol and keep their coins secret, including the protected
    one, by default all: the guarantee counts no other coins. Samples are charged in full.

    The grid has g steps on [-L, L], by default max(sqrt(N), 8 sqrt(d), 2 sqrt(N) mu), rounded up,
    for which rounding adds at most an eighth to the sensitivity, and a sixteenth to the variance of
    the noise. The attribute `sensitivity` is g + sqrt(d), in l2 norm of the counts, and `mu` the
    cost of one release, both rounded up; `coins` is the number of honest coins in a coordinate.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        dim: int,
        n: int,
        mu: float | None = None,
        b: int | None = None,
        g: int | None = None,
        honest: int | None = None,
        sampling: Mapping[str, Any] | None = None,
        per_record: int | None = None,
    ) -> None:
        if mu is not None and b is not None:
            raise ValueError("b must be None where mu is given, got both")
        d, n = count("dim", dim), count("n", n)
        honest = n if honest is None else count("honest", honest)
        if honest > n:
            raise ValueError(f"honest must be at most n = {n}, got {honest}")
        mu = None if mu is None else positive("mu", mu)
        if g is None:
            # g^2 / N >= 4 mu^2 implies b >= 16, and rounding has at most 1/b of the variance.
            least = max(n, 64 * d, 0 if mu is None else math.ceil(4 * n * Fraction(mu) ** 2))
            g = math.isqrt(least - 1) + 1
        g = count("g", g)
        self.sensitivity = shuffle_sensitivity(g, d)
        if mu is not None:
            b = _least_coins(mu, self.sensitivity, n, g, honest)
        b = 0 if b is None else count("b", b)
        shuffle_parameters(n, d, 1.0, g, b)

        self._channel, self._shape = channel, (n, d)
        self.g, self.b, self.coins = g, b, honest * b
        spent = binomial_mu(self.coins, self.sensitivity) if b else None
        self.mu = math.inf if spent is None else round_up(spent)
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
        """Record the release and return the noisy sum (d,) of the vectors (n, d), by `shuffle_sum`.

        `bound` is L, the clip norm of a vector: public, or a function of earlier releases. It
        scales the grid and does not affect the sensitivity.
        """
        if np.shape(V) != self._shape:
            raise ValueError(f"V must have shape {self._shape}, got {np.shape(V)}")
        total = kernels.shuffle_sum(
            V, bound=bound, g=self.g, b=self.b, rng=self._channel.stream, n_threads=n_threads
        )
        self._channel.ledger.append(self._entry)
        return self._channel.seen(total, None, self._entry.std)


def _least_coins(mu: float, sensitivity: float, n: int, g: int, honest: int) -> int:
    """Return the least b with which one release spends at most mu."""
    most = (1 << 52) // n - g

    def enough(b: int) -> bool:
        spent = binomial_mu(honest * b, sensitivity)
        return spent is not None and spent <= Fraction(mu)

    if most < 1 or not enough(most):
        raise ValueError(
            f"mu must be larger with g = {g} and {honest} honest vectors of {n}, got {mu!r}: it "
            "takes more coins than the 2^52 that can be counted"
        )
    return 1 + bisect.bisect_left(range(1, most), True, key=enough)
