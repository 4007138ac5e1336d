"""The guarantee of the best of a random number of runs, and the law of that number.

One run is a mu-GDP release of a candidate, its model and its score. K runs are made, K with the
truncated negative binomial law (eta, gamma)

    P(K = k) proportional to (1 - gamma)^k Gamma(k + eta) / k!,   k >= 1,

which is logarithmic for eta = 0 and geometric for eta = 1, and the run of the best score alone is
published. With E K the mean of K,

    delta(epsilon) <= E K delta(epsilon - epsilon_2; mu),
    epsilon_2 = (eta + 1) max_t log[(a + Phi(t + mu)) / (a + Phi(t))],    a = gamma / (1 - gamma)

(docs/selection.md has the proof). The law is that of Papernot and Steinke, "Hyperparameter tuning
with Renyi differential privacy", ICLR 2022, whose bound in Renyi DP is larger.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import not_negative, probability, real
from dpkern.privacy._exact import bisect
from dpkern.privacy.gdp import gdp_delta_upper

#: Bits of the uniform number from which K is drawn, and of the fixed-point probabilities.
LAW_BITS = 192
# The law is tabulated up to about 133 / gamma runs.
_LEAST_GAMMA = 2.0**-16
# Relative error bound of the computed mean, and absolute one of a computed log ratio (the normal
# distribution function of SciPy has 13 correct digits).
_SLACK = 2.0**-40
_POINTS = 4097


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best of K runs, each mu-GDP, K with the truncated negative binomial law.

    Parameters
    ----------
    mu : float
        GDP parameter of one run: candidate, model and score together.
    eta : float
        Shape of the law, above -1.
    gamma : float
        Its other parameter, in (0, 1).
    """

    mu: float
    eta: float
    gamma: float

    def __post_init__(self) -> None:
        not_negative("mu", self.mu)
        check_eta(self.eta)
        probability("gamma", self.gamma)

    @classmethod
    def of_mean(cls, mean_runs: float, *, eta: float, mu: float) -> Self:
        """Return the selection with K of this mean at most, up to rounding."""
        mean_runs, eta = real("mean_runs", mean_runs), check_eta(eta)
        if not 1.0 < mean_runs < math.inf:
            raise ValueError(f"mean_runs must be finite and above 1, got {mean_runs!r}")
        most = _mean(eta, _LEAST_GAMMA)
        if mean_runs > most:
            raise ValueError(
                f"mean_runs must be at most {most:.6g} for eta {eta:g}, got {mean_runs!r}"
            )
        gamma = bisect(lambda g: _mean(eta, g) <= mean_runs, _LEAST_GAMMA, 1.0)[1]
        return cls(mu=mu, eta=eta, gamma=min(gamma, math.nextafter(1.0, 0.0)))

    @cached_property
    def mean_runs(self) -> float:
        """The mean of K, rounded up by a relative 2^-40."""
        return _mean(self.eta, self.gamma) * (1.0 + _SLACK)

    @cached_property
    def loss(self) -> float:
        """The largest log ratio of the two data sets' E[K F^(K - 1)], epsilon_2, rounded up.

        The log ratio L has the derivative h(t + mu) - h(t), h = phi / (a + Phi), a = gamma /
        (1 - gamma). Since h' = -h (t + h) and h (t + h) < 1, t + h increases and h has one maximum,
        h0 at t0 = -h0, so that L has one maximum, between t0 - mu and t0. There and mu beyond,
        |t + h| <= mu + h0, and |L''| <= 2 h0 (mu + h0) bounds what L may gain between two points.
        """
        mu, gamma = self.mu, self.gamma
        a = gamma / (1.0 - gamma)
        h0 = bisect(lambda x: x >= _density(x) / (a + float(scipy.special.ndtr(-x))), 0.0, 40.0)[1]
        t = -h0 - mu * np.linspace(-0.01, 1.01, _POINTS)
        below, above = (gamma + (1.0 - gamma) * scipy.special.ndtr(s) for s in (t, t + mu))
        best = float(np.log1p((above - below) / below).max())
        spacing = 1.03 * mu / (_POINTS - 1)
        between = 0.25 * spacing**2 * 1.01 * h0 * (1.02 * mu + 1.01 * h0)
        return (self.eta + 1.0) * (best * (1.0 + _SLACK) + between + _SLACK)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1."""
        rest = math.nextafter(not_negative("epsilon", epsilon) - self.loss, -math.inf)
        if rest < 0.0:
            return 1.0
        return min(1.0, self.mean_runs * gdp_delta_upper(self.mu, rest) * (1.0 + 2.0**-50))

    def weights(self) -> Iterator[int]:
        """Iterate over numbers proportional to P(K = 1), P(K = 2), ..., in units of 2^-192.

        Each is the one before times (1 - gamma) (k + eta) / (k + 1), rounded down, until it is 0:
        the law is within 2^-128 in total variation.
        """
        ratio, eta = 1 - Fraction(self.gamma), Fraction(self.eta)
        weight, k = 1 << LAW_BITS, 1
        while weight:
            yield weight
            weight = weight * ratio.numerator * (k * eta.denominator + eta.numerator)
            weight //= ratio.denominator * eta.denominator * (k + 1)
            k += 1

    def number_of_runs(self, uniform: int) -> int:
        """Return K for a uniform whole number below 2^192."""
        below = uniform * sum(self.weights()) >> LAW_BITS
        for k, weight in enumerate(self.weights(), 1):
            below -= weight
            if below < 0:
                return k
        raise ValueError(f"uniform must be below 2^{LAW_BITS}, got {uniform}")


def check_eta(eta: object) -> float:
    """Return eta as a float, or raise unless it is finite and above -1."""
    number = real("eta", eta)
    if not -1.0 < number < math.inf:
        raise ValueError(f"eta must be finite and above -1, got {number!r}")
    return number


def _mean(eta: float, gamma: float) -> float:
    """Return the mean of K, nearest value."""
    log = math.log(gamma) if gamma < 0.5 else math.log1p(gamma - 1.0)
    if log == 0.0:
        return 1.0
    scale = -log if eta == 0.0 else -math.expm1(eta * log) / eta
    return (1.0 - gamma) / gamma / scale


def _density(x: float) -> float:
    return math.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
