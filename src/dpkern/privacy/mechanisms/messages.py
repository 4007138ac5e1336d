"""The Gaussian mechanism on messages that are no grid sums, such as models after local steps.

Messages v_j are first rounded to a grid, V = sum_j round_q(clamp(v_j)) + Z, so that V is again
round_q of an exact sum plus a Gaussian. Rounding may increase distances: with a proved bound D_v of
|v_j - v'_j| for the doubles computed, the sensitivity of V is D_v + q sqrt(d).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy.guarantees.rounding import ratio_up, sqrt_up
from dpkern.privacy.mechanisms.channel import (
    Channel,
    Shares,
    largest_norm,
    require_share,
    share_std,
    total_std,
)
from dpkern.privacy.sensitivity.grids import choose_message_grid, noise_std, round_to_grid


class GaussianMessages:
    """Noisy messages, or their noisy sum; every call records one release and returns it.

    Every message is released with its own noise (`per_silo`), or only their sum. One release has
    the budget `mu`; None adds no noise. `per_record` is the largest number of releases that depend
    on one record, fixed in advance independently of the records: they form one series, whose
    sensitivities may differ (docs/proofs/series.md). Where the channel says that silos share the
    noise, each adds its own to its message before the sum. `random` messages have secret noise
    already, which the transcript of an audit must not show.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        dim: int,
        mu: float | None,
        per_silo: bool = False,
        per_record: int | None = None,
        random: bool = False,
    ) -> None:
        self._channel, self._dim, self._mu, self._random = channel, dim, mu, random
        self._what, self._per_silo, self._root = what, per_silo, sqrt_up(Fraction(dim))
        series = None if per_record is None else channel.ledger.new_series()
        describe = partial(
            channel.describe, what=what, dim=dim, per_record=per_record, series=series
        )
        # Silos and rounds are alike.
        self._calibrated = lru_cache(maxsize=4096)(self._calibrate)
        self._described = lru_cache(maxsize=4096)(describe)

    def release(
        self,
        values: FloatArray,
        *,
        sensitivity: Sequence[float] | None = None,
        bound: float | None = None,
    ) -> FloatArray:
        """Record the release and return the messages (m, d) with noise, or their noisy sum (d,).

        Message j is computed from the records of silo j and public numbers; its `sensitivity` is a
        proved bound of |v_j - v'_j| for neighbouring data sets that differ in silo j, and `bound` a
        public one of every coordinate. Both are required with noise. Larger values saturate at the
        range of the grid, and a NaN counts as 0. Nothing is drawn or recorded when no grid exists.
        """
        channel, m = self._channel, len(values)
        what, shares = self._what, None if self._per_silo else channel.shares
        if self._mu is None or (not self._per_silo and (shares is None or m != shares.silos)):
            channel.require_aggregator(what)
            shares = None
        if self._mu is None:
            D = (math.inf,) * m if self._per_silo else math.inf
            channel.ledger.append(self._described(sensitivity=D, std=None, grid=None))
            exact = values.copy() if self._per_silo else values.sum(axis=0)
            return channel.seen(exact, exact, None)
        if sensitivity is None or bound is None:
            raise ValueError("sensitivity and bound must be given with noise, got None")
        k = 1 if self._per_silo else m
        nominal = tuple(sensitivity) if self._per_silo else (max(sensitivity),)
        D, sigma, grid = zip(*(self._calibrated(v, bound, k) for v in nominal), strict=True)
        steps = 2.0**51 / k if k > 1 else 2.0**50
        rounded = round_to_grid(values, np.array(grid)[:, np.newaxis], steps)
        if self._per_silo:
            return self._release_each(rounded, D, sigma, grid, bound)
        if shares is not None:
            return self._release_shares(rounded, D[0], grid[0], bound, shares)
        channel.ledger.append(self._described(sensitivity=D[0], std=sigma[0], grid=grid[0]))
        total = rounded.sum(axis=0, keepdims=True)
        noisy = self._noisy(total, np.array(sigma), grid)[0]
        return channel.seen(noisy, None if self._random else total, sigma)

    def _release_each(
        self,
        rounded: FloatArray,
        D: tuple[float, ...],
        sigma: tuple[float, ...],
        grid: tuple[float, ...],
        bound: float,
    ) -> FloatArray:
        """Record the release and return the message of every silo with noise of its own."""
        channel = self._channel
        channel.ledger.append(self._described(sensitivity=D, std=sigma, grid=grid))
        noisy = self._noisy(rounded, channel.own(np.array(sigma)), grid)
        reach = bound * math.sqrt(self._dim)
        most = [largest_norm(reach, std, self._dim) for std in sigma]
        return channel.seen(channel.messages(noisy, self._what, most), rounded, sigma)

    def _release_shares(
        self, rounded: FloatArray, D: float, grid: float, bound: float, shares: Shares
    ) -> FloatArray:
        """Record the release and return the sum of all messages, each with a share of the noise."""
        assert self._mu is not None
        channel, m = self._channel, len(rounded)
        honest = shares.silos - shares.colluding
        share = share_std(D, self._mu, honest)
        require_share(share, grid)
        std = total_std(share, honest)
        entry = self._described(sensitivity=D, std=std, grid=grid, draws=m * self._dim)
        channel.ledger.append(entry)
        noisy = self._noisy(rounded, channel.own(np.full(m, share)), (grid,) * m)
        reach = m * bound * math.sqrt(self._dim)
        released = channel.total(noisy, grid, self._what, reach, share)
        return channel.seen(released, rounded.sum(axis=0), std)

    def require_grid(self, sensitivity: float, bound: float) -> None:
        """Raise ValueError where no grid serves a message of this sensitivity and bound."""
        self._calibrated(sensitivity, bound, 1)

    def _noisy(self, rounded: FloatArray, sigma: FloatArray, grid: tuple[float, ...]) -> FloatArray:
        stream = self._channel.stream
        return rounded + kernels.gaussian(rounded.shape, sigma, grid=np.array(grid), rng=stream)

    def _calibrate(self, nominal: float, bound: float, messages: int) -> tuple[float, float, float]:
        """Return D = D_v + q sqrt(d), sigma = D / mu, both rounded up, and q of one message."""
        assert self._mu is not None
        grid = choose_message_grid(
            # The grid adds at most a 32nd to the sensitivity, and so to the noise.
            sensitivity=nominal,
            sigma=1.04 * noise_std(nominal, self._mu),
            bound=bound,
            dim=self._dim,
            messages=messages,
        )
        # nominal + grid root: ratios of whole numbers are quicker than fractions.
        (n, d), (p, q) = nominal.as_integer_ratio(), grid.as_integer_ratio()
        a, b = self._root.as_integer_ratio()
        D = ratio_up(n * q * b + p * a * d, d * q * b)
        return D, noise_std(D, self._mu), grid
