"""The guarantee of the best of a random number of runs, and the distribution of that number.

One run is a mu-GDP release of a candidate, its model and its score. K runs are made, K with the
truncated negative binomial distribution (eta, gamma)

    P(K = k) proportional to (1 - gamma)^k Gamma(k + eta) / k!,   k >= 1,

which is logarithmic for eta = 0 and geometric for eta = 1, and the run of the best score alone is
published. With the mean E K of K, a(t) = E K (gamma / (gamma + (1 - gamma) Phi(t)))^(eta + 1), and
P, Q the distributions N(mu, 1), N(0, 1) with densities p, q,

    delta(epsilon) <= integral of max_t (a(t) p - e^epsilon a(t + mu) q)+
                   <= E K delta(epsilon - max_t log(a(t) / a(t + mu)); mu)

(docs/selection.md has the proof). The distribution is that of Papernot and Steinke, "Hyperparameter
tuning with Renyi differential privacy", ICLR 2022, whose bound in Renyi DP is larger.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern._numbers import not_negative, positive, probability, real
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.rounding import bisect, round_up

Point: TypeAlias = tuple[float, float]

#: Bits of the uniform number from which K is drawn, and of the fixed-point probabilities.
UNIFORM_BITS = 192
# The distribution is tabulated up to about 133 / gamma runs.
_LEAST_GAMMA = 2.0**-16
# Relative error bound of the computed mean and of powers of the normal distribution function, of
# which SciPy has 13 correct digits.
_SLACK = 2.0**-38
# Points of the curve from which delta follows.
_POINTS = 2049


@dataclass(frozen=True, kw_only=True)
class Selection(Guarantee):
    """The best of K runs, each mu-GDP, K with the truncated negative binomial distribution.

    Parameters
    ----------
    mu : float
        GDP parameter of one run: candidate, model and score together.
    eta : float
        Shape of the distribution, above -1.
    gamma : float
        Its other parameter, in (0, 1).
    """

    name = "selection"
    word = "selection"

    mu: float
    eta: float
    gamma: float

    def __post_init__(self) -> None:
        positive("mu", self.mu)
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
        """The mean of K, rounded up by a relative 2^-38."""
        return _mean(self.eta, self.gamma) * (1.0 + _SLACK)

    @cached_property
    def _edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return (A_j, s_j) with max_t (a(t) p - a(t + mu) r)+ <= sum_j (A_j p - A_j e^-s_j r)+.

        The maximum is over a curve of points (a(t + mu), a(t)), and is that over its upper hull
        from the origin on, whose edges are the terms of the sum. The hull is of points of the
        curve, enlarged by kappa. With h = phi / (o + Phi), o = gamma / (1 - gamma), whose maximum
        h0 is at -h0 since h' = -h (t + h) and h (t + h) < 1: a'' / a = (eta + 1)^2 h^2 - (eta + 1)
        h', and |h'| <= max(1, h0 T) where phi(T) <= o h0. So a(t) - a(t + mu) r falls by at most
        kappa (a(t) + a(t + mu) r) from its maximum in t to the next point. log(a(t) / a(t + mu))
        falls beyond t = -h0, so that larger t are below the first edge.
        """
        mu, gamma, power = self.mu, self.gamma, self.eta + 1.0
        odds = gamma / (1.0 - gamma)
        h0 = bisect(lambda x: x >= _density(x) / (odds + _normal(-x)), 0.0, 40.0)[1]
        far = math.sqrt(max(1.0, h0**2, -2.0 * math.log(math.sqrt(2.0 * math.pi) * odds * h0)))
        t, step = np.linspace(-h0 + 0.01, -9.0 - mu, _POINTS, retstep=True)
        bend = 1.01 * power * (power * h0**2 + max(1.0, h0 * far))
        kappa = bend * step**2 / 8.0 * math.exp(1.01 * power * h0 * abs(step)) + _SLACK

        top, right = (
            self.mean_runs * (gamma / (gamma + (1.0 - gamma) * scipy.special.ndtr(x))) ** power
            for x in (t, t + mu)
        )
        top = np.append(top, self.mean_runs) * (1.0 + kappa)
        right = np.append(right, right[-1]) * max(0.0, 1.0 - kappa)
        hull = [(0.0, 0.0)]
        for point in zip(right.tolist(), top.tolist(), strict=True):
            while len(hull) > 1 and _turns_up(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        edges = np.diff(np.array(hull), axis=0)
        widths, heights = edges[edges[:, 1] > 0.0].T
        return heights, np.log(heights / np.maximum(widths, 1e-300))

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1.

        Each edge has A_j delta(x; mu), x = epsilon - s_j: the tail Q(z), z = x / mu - mu / 2, times
        1 - R(z + mu) / R(z), R the Mills ratio; 1 for x < 0. Error bounds cover the cancellation.
        """
        heights, shifts = self._edges
        x = not_negative("epsilon", epsilon) - shifts - _SLACK
        z = np.maximum(x, 0.0) / self.mu - 0.5 * self.mu
        of_z, beyond = (scipy.special.erfcx(v / math.sqrt(2.0)) for v in (z, z + self.mu))
        parts = scipy.special.ndtr(-z) * (1.0 - beyond / of_z + 2.0**-44)
        total = float(heights @ np.where(x < 0.0, 1.0, parts))
        return min(1.0, total * (1.0 + 2.0**-38) + 2.0**-1000)

    def group(self, r: int) -> Self:
        """Return the guarantee for r records.

        They may be in the training part and in the other one: (r_1 mu)^2 + (r_2 mu)^2 <= (r mu)^2.
        """
        return replace(self, mu=round_up(r * Fraction(self.mu)))

    def weights(self) -> Iterator[int]:
        """Iterate over numbers proportional to P(K = 1), P(K = 2), ..., in units of 2^-192.

        Each is the one before times (1 - gamma) (k + eta) / (k + 1), rounded down, until it is 0:
        the distribution is within 2^-128 in total variation.
        """
        ratio, eta = 1 - Fraction(self.gamma), Fraction(self.eta)
        weight, k = 1 << UNIFORM_BITS, 1
        while weight:
            yield weight
            weight = weight * ratio.numerator * (k * eta.denominator + eta.numerator)
            weight //= ratio.denominator * eta.denominator * (k + 1)
            k += 1

    def number_of_runs(self, uniform: int) -> int:
        """Return K for a uniform whole number below 2^192."""
        below = uniform * sum(self.weights()) >> UNIFORM_BITS
        for k, weight in enumerate(self.weights(), 1):
            below -= weight
            if below < 0:
                return k
        raise ValueError(f"uniform must be below 2^{UNIFORM_BITS}, got {uniform}")


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


def _normal(x: float) -> float:
    return float(scipy.special.ndtr(x))


def _turns_up(first: Point, second: Point, third: Point) -> bool:
    """Return whether the slope does not fall from the first two to the last two points."""
    (x, y), (x2, y2), (x3, y3) = first, second, third
    return (y2 - y) * (x3 - x2) <= (y3 - y2) * (x2 - x)
