"""The last-iterate mechanism: noise on every local iterate, of which only the last is seen."""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy.guarantees.rounding import ratio_down, ratio_up, round_up, sqrt_up, times
from dpkern.privacy.mechanisms.channel import Channel, largest_norm
from dpkern.privacy.sensitivity.grids import choose_message_grid, noise_std, round_to_grid
from dpkern.privacy.sensitivity.local_runs import LocalRuns


class LastIterate:
    """The last of K noisy local iterates of every silo, with iterates on a grid.

        theta <- round_q(clamp(step(theta))) + round_q(sigma N),   K times,

    which is round_q of a grid point plus a real Gaussian. From a common iterate, one step has the
    sensitivity s_j = eta (2 C / n_j + 2 tau_j) + 8 u W + 2 q sqrt(d); from two iterates, c times
    their distance is added. The proof of Bok, Su, Altschuler (2024) needs only these two bounds:
    the last iterate alone has mu = (s_j / sigma) f(c, K), f being `last_iterate_factor`; `mu` is
    the budget of one call. The steps of `runs` are equal, with every coordinate penalised.
    """

    def __init__(self, channel: Channel, *, mu: float, runs: LocalRuns) -> None:
        if len(set(runs.step_sizes)) > 1:
            raise ValueError(
                "step_size must be one number with accounting='last_iterate', got "
                f"{runs.step_sizes}"
            )
        self._channel, self._mu = channel, mu
        # Rounds are alike, and silos of one size.
        self._calibrated = lru_cache(maxsize=4096)(self._calibrate)
        self._reached = lru_cache(maxsize=4096)(runs.noisy_iterate_bound)
        eta, clip = runs.step_sizes[0].as_integer_ratio(), runs.clip.as_integer_ratio()
        self._step = times(eta, clip)
        self._runs, self._factor = runs, last_iterate_factor(runs.contraction, len(runs.step_sizes))

    def largest_std(self, start: float) -> float:
        """Return the largest std of the noise of a step, over silos, from |w| <= start."""
        return max(self._calibrated(n, start)[1] for n in set(self._runs.sizes))

    def release(
        self, w: FloatArray, start: float, step: Callable[[FloatArray, int], FloatArray]
    ) -> FloatArray:
        """Record the release and return the last iterates (m, d) of K steps from the public w.

        `start` bounds |w|, and step(theta, t) is one noiseless local step of every silo.
        """
        runs, K = self._runs, len(self._runs.step_sizes)
        found = {n: self._calibrated(n, start) for n in set(runs.sizes)}
        D, sigma, grid, reach = zip(*(found[n] for n in runs.sizes), strict=True)
        entry = self._channel.describe(
            what=f"last of {K} noisy local iterates (sensitivity includes the steps before)",
            sensitivity=D,
            std=sigma,
            grid=grid,
            dim=runs.dim,
            draws=K * runs.dim * len(runs.sizes),
        )
        self._channel.ledger.append(entry)
        q, std = np.array(grid), self._channel.own(np.array(sigma))
        theta = np.broadcast_to(w, (len(q), runs.dim))
        for t in range(K):
            iterate = round_to_grid(step(theta, t), q[:, np.newaxis], 2.0**50)
            theta = iterate + kernels.gaussian(iterate.shape, std, grid=q, rng=self._channel.stream)
        most = [largest_norm(W, s, runs.dim) for W, s in zip(reach, sigma, strict=True)]
        return self._channel.seen(self._channel.messages(theta, entry.what, most), None, sigma)

    def _calibrate(self, n: int, start: float) -> tuple[float, float, float, float]:
        """Return D = s f(c, K), sigma = D / mu, both rounded up, q and W of a silo of n records."""
        runs = self._runs
        a, b = self._step
        nominal = ratio_up(2 * a, n * b)
        # An upper bound of the std, as `step_sensitivity` is at most 5/4 of the nominal one.
        guess = 2.0 * nominal * self._factor / self._mu
        if guess == math.inf:
            raise ValueError(f"mu must be so large that the noise is a double, got {self._mu!r}")
        # One W for all silos of similar noise.
        W = self._reached(start, math.ldexp(1.0, min(math.frexp(guess)[1], 1023)))
        grid = choose_message_grid(sensitivity=nominal, sigma=guess, bound=W, dim=runs.dim)
        s = runs.step_sensitivity(n, W, grid)
        D = ratio_up(*times(s, self._factor.as_integer_ratio()))
        return D, noise_std(D, self._mu), grid, W


def last_iterate_factor(c: Fraction, steps: int) -> float:
    """Return sqrt((1 - c^K) / (1 + c^K) (1 + c) / (1 - c)), rounded up, for 0 <= c < 1.

    A run of K noisy steps, of which only the last iterate is seen, has this factor times the mu of
    one step (Bok, Su, Altschuler 2024, "Shifted interpolation for differential privacy").
    """
    a, b = round_up(c).as_integer_ratio()
    if a >= b:
        raise ValueError(
            "accounting must be 'last_iterate' only with local steps that contract, got others: it "
            "takes a penalty on every coordinate and a step_size below 2 / (largest curvature)"
        )
    power, base, exponent = (1, 1), (a, b), steps
    while exponent:  # c^K rounded down, since the factor decreases in c^K
        if exponent & 1:
            power = ratio_down(*times(power, base)).as_integer_ratio()
        base = ratio_down(*times(base, base)).as_integer_ratio()
        exponent >>= 1
    n, d = power
    return sqrt_up(Fraction((d - n) * (b + a), (d + n) * (b - a)))
