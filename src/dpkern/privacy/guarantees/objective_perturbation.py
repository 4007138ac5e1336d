"""The guarantee of the minimiser of an objective with a random linear term.

Chaudhuri, Monteleoni, Sarwate, "Differentially private empirical risk minimization", JMLR 2011;
Kifer, Smith, Thakurta, "Private convex empirical risk minimization", COLT 2012; the form with an
approximate minimiser is after Iyengar et al., "Towards practical differentially private convex
optimization", S&P 2019 (AMP), and the privacy loss after Redberg, Koskela, Wang, "Improving the
privacy and practicality of objective perturbation", NeurIPS 2023. For

    w* = argmin sum_i l_i(w) + r(w) + b . w,    b ~ N(0, s^2 I),

convex losses l_i of a margin, C-Lipschitz and with curvature at most L, and a public penalty r of
curvature at least Lambda > 0, the noise is a function of the minimiser, b = -sum grad l_i - grad r.
So w* has the density of b there times the determinant of the Hessian A. A record that is replaced
changes A by a matrix of rank one in each data set, the determinant by a factor of at most
1 + L / Lambda, and b by at most 2 C in the span of two rows, which are fixed before b is drawn. The
privacy loss is at most

    Z = log(1 + L / Lambda) + m chi_k + m^2 / 2,    m = 2 C / s,  k = 2  (replaced),
                                                    m = C / s,    k = 1  (added or removed),

chi_k the length of a standard normal vector of k coordinates, of b in that span. Released is not w*
but V, which given w* is mu-GDP: whoever computes w up to a distance of tau adds Gaussian noise for
it. With delta(x; mu) that of Gaussian DP, for x below 0 too,

    delta(epsilon) <= E delta(epsilon - Z; mu)

(docs/objective_perturbation.md has the proof).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import count, not_negative, positive, probability
from dpkern._typing import FloatArray
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.rounding import bisect, round_up, sqrt_up

# Relative error bounds of the computed tail of chi and of delta(x; mu), for which SciPy has 13
# correct digits of the functions that they are made of.
_TAIL_SLACK, _DELTA_SLACK = 2.0**-36, 2.0**-36
# The lengths chi at which the integrand is taken, up to sqrt(k) + 40: beyond is less than e^-800.
_POINTS, _REACH = 8193, 40.0
# Largest mu for which Mills ratios do not overflow; beyond, delta is taken to be 1.
_LARGEST_MU = 64.0


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Guarantee):
    """The guarantee of a released neighbourhood of the minimiser.

    Parameters
    ----------
    volume : float
        Bound of the logarithm of the determinants' quotient, log(1 + L / Lambda) for one record.
    shift : float
        m, the distance that a record moves b by, in units of the std of b.
    directions : int
        k, the number of rows that span this change.
    mu : float
        GDP parameter of the release, given the exact minimiser.
    """

    name = "objective_perturbation"
    word = "minimiser"

    volume: float
    shift: float
    directions: int
    mu: float

    def __post_init__(self) -> None:
        not_negative("volume", self.volume)
        positive("shift", self.shift)
        count("directions", self.directions)
        positive("mu", self.mu)

    @classmethod
    def within(
        cls, epsilon: float, delta: float, *, volume: float, directions: int, mu: float
    ) -> Self:
        """Return the guarantee with the largest shift, so the least noise, that keeps a budget."""
        epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
        return cls(
            volume=volume,
            shift=_largest_shift(epsilon, delta, volume, directions, mu),
            directions=directions,
            mu=mu,
        )

    def group(self, r: int) -> Self:
        """Return the guarantee for r records: determinants multiply, changes of b add up.

        Given the minimisers, r records move other releases r times as far as one does, those on
        disjoint records too.
        """
        return type(self)(
            volume=round_up(r * Fraction(self.volume)),
            shift=round_up(r * Fraction(self.shift)),
            directions=r * self.directions,
            mu=round_up(r * Fraction(self.mu)),
        )

    @classmethod
    def sequential(cls, guarantees: Sequence[Self], mu: float) -> Self:
        """Return the guarantee of several minimisers and of a mu-GDP release on the same records.

        The b of different minimisers are independent, so that losses Z add up, of which
        m_1 chi_1 + m_2 chi_2 <= (m_1^2 + m_2^2)^(1/2) chi, chi of k_1 + k_2 coordinates.
        """
        squares = (Fraction(mu) ** 2, *(Fraction(g.mu) ** 2 for g in guarantees))
        return cls(
            volume=round_up(sum((Fraction(g.volume) for g in guarantees), Fraction(0))),
            shift=sqrt_up(sum((Fraction(g.shift) ** 2 for g in guarantees), Fraction(0))),
            directions=sum(g.directions for g in guarantees),
            mu=sqrt_up(sum(squares, Fraction(0))),
        )

    @classmethod
    def parallel(cls, guarantees: Sequence[Self], mu: float) -> Self:
        """Return the guarantee of the same on disjoint records: each parameter's largest value."""
        return cls(
            volume=max(g.volume for g in guarantees),
            shift=max(g.shift for g in guarantees),
            directions=max(g.directions for g in guarantees),
            mu=max(mu, *(g.mu for g in guarantees)),
        )

    @cached_property
    def _intervals(self) -> tuple[FloatArray, FloatArray]:
        """Return probabilities of intervals of chi, rounded up, and Z at their upper ends.

        What lies beyond the last interval has an infinite Z.
        """
        ends = np.linspace(0.0, math.sqrt(self.directions) + _REACH, _POINTS)
        tail = scipy.special.gammaincc(0.5 * self.directions, 0.5 * ends**2)
        probabilities = np.append(tail[:-1] - tail[1:], tail[-1]) + 2.0 * _TAIL_SLACK * tail
        loss = (self.volume + self.shift * (ends[1:] + 0.5 * self.shift)) * (1.0 + 2.0**-49)
        return probabilities, np.append(loss, math.inf)

    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1.

        delta(epsilon - Z; mu) increases with chi, so that its values at the upper ends of intervals
        give an upper sum of its mean: at most that of a Z that is larger by a 200th of m.
        """
        probabilities, loss = self._intervals
        with np.errstate(under="ignore"):
            parts = _delta(not_negative("epsilon", epsilon) - loss, self.mu)
            total = float(probabilities @ parts)
        return min(1.0, total * (1.0 + 2.0**-38) + 2.0**-1000)


# Runs of a study have few different budgets, and a bisection takes a tenth of a second.
@lru_cache(maxsize=256)
def _largest_shift(
    epsilon: float, delta: float, volume: float, directions: int, mu: float
) -> float:
    def exceeded(shift: float) -> bool:
        guarantee = ObjectivePerturbation(volume=volume, shift=shift, directions=directions, mu=mu)
        return guarantee.delta(epsilon) > delta

    least, most = 1e-9 * epsilon, 2.0 * epsilon
    if exceeded(least):
        raise ValueError(
            "added_l2 must be larger for this budget, got one with which the curvature of a record "
            f"alone costs {volume:.6g} of epsilon {epsilon:g}"
        )
    while not exceeded(most):
        most *= 2.0
    return bisect(exceeded, least, most)[0]


def _delta(x: FloatArray, mu: float) -> FloatArray:
    """Return delta(x; mu) of Gaussian DP for any x, rounded up.

    For x >= 0 the tail Q(z), z = x / mu - mu / 2, times 1 - R(z + mu) / R(z), R the Mills ratio;
    for x < 0, 1 - e^x + e^x delta(-x; mu), as the two sides of Gaussian DP are symmetric.
    """
    if mu > _LARGEST_MU:
        return np.ones(x.shape)
    size = np.abs(x) * (1.0 - 2.0**-50)
    finite = size < math.inf
    z = np.where(finite, size, 0.0) / mu - 0.5 * mu
    of_z, beyond = (scipy.special.erfcx(v / math.sqrt(2.0)) for v in (z, z + mu))
    # The tail's argument has errors of some units of x / mu, which the tail multiplies by z.
    error = _DELTA_SLACK + 2.0**-48 * (1.0 + z * z)
    at_size = scipy.special.ndtr(-z) * (1.0 - beyond / of_z + 2.0**-44) * (1.0 + error)
    at_size = np.where(finite & (error < 1.0), at_size, 0.0)
    below = np.where(x < 0.0, x, 0.0)
    negative = -np.expm1(below) + np.exp(below) * at_size + 2.0**-48
    return np.minimum(1.0, np.where(x < 0.0, negative, at_size))
