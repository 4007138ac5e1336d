"""Concentrated differential privacy of noise that is not Gaussian: conversions and guarantee.

A run is (rho, delta_0)-concentrated here when, for every pair of neighbours with outcome
distributions P and Q and privacy loss L = log P/Q, an event E with P(E) >= 1 - delta_0 has

    E_P[exp((alpha - 1) L); E] <= exp((alpha - 1) alpha rho)    for all alpha > 1.

Then P(S) - exp(epsilon) Q(S) <= delta_0 + delta(epsilon; rho) for all S, with

    delta(epsilon; rho) = min over alpha > 1 of
        exp((alpha - 1) (alpha rho - epsilon)) (1 - 1/alpha)^(alpha - 1) / alpha,

as P(S, E) - exp(epsilon) Q(S, E) <= E_P[1 - exp(epsilon - L); E, L > epsilon], and 1 - exp(-x) is
at most exp((alpha - 1) x) times the two last factors (Canonne, Kamath, Steinke 2020, "The discrete
Gaussian for differential privacy", for delta_0 = 0). Adaptive composition adds rho and delta_0: the
expectation of a product, on the intersection of the events, is taken from the last factor to the
first. rho-zCDP (Bun and Steinke 2016) is the case delta_0 = 0; a Gaussian release is that with
rho = mu^2 / 2.
"""

import math
from dataclasses import dataclass
from typing import Self

from dpkern._numbers import not_negative, positive, probability
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.rounding import bisect

# Conservative error bound of a computed exponent, relative to the sum of its absolute terms.
_ERROR = 2.0**-44
_LARGEST_ORDER = 1e15


def zcdp_delta(rho: float, epsilon: float) -> float:
    """Return delta(epsilon; rho) of the module's definition, rounded up and at most 1.

    Parameters
    ----------
    rho : float
        Above 0; infinity allowed.
    epsilon : float
        Finite and >= 0.
    """
    rho = positive("rho", rho, or_infinite=True)
    epsilon = not_negative("epsilon", epsilon)
    if rho == math.inf:
        return 1.0
    # The exponent is convex in alpha; the derivative is (2 alpha - 1) rho - epsilon +
    # log(1 - 1/alpha). Every alpha gives a valid delta, so its error does not matter.
    high = min(_LARGEST_ORDER, (epsilon + 1.0) / (2.0 * rho) + 2.5)
    alpha = bisect(
        lambda a: (2.0 * a - 1.0) * rho - epsilon + math.log1p(-1.0 / a) > 0.0,
        math.nextafter(1.0, 2.0),
        high,
    )[1]
    terms = (
        (alpha - 1.0) * alpha * rho,
        -(alpha - 1.0) * epsilon,
        (alpha - 1.0) * math.log1p(-1.0 / alpha),
        -math.log(alpha),
    )
    exponent = math.fsum(terms) + _ERROR * math.fsum(map(abs, terms))
    return min(1.0, math.nextafter(math.exp(min(exponent, 0.0)) * (1.0 + 2.0**-50), math.inf))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon with delta(epsilon; rho) <= delta, rounded up.

    Parameters
    ----------
    rho : float
        Above 0; infinity allowed.
    delta : float
        In (0, 1).
    """
    rho, delta = positive("rho", rho, or_infinite=True), probability("delta", delta)
    if rho == math.inf:
        return math.inf
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    # An upper bound is rho + 2 sqrt(rho log(1/delta)), which ignores the two last factors.
    high = 1.001 * (rho + 2.0 * math.sqrt(-rho * math.log(delta)))
    while high < math.inf and zcdp_delta(rho, high) > delta:
        high *= 2.0
    if high == math.inf:
        return math.inf
    return bisect(lambda epsilon: zcdp_delta(rho, epsilon) <= delta, 0.0, high)[1]


def zcdp_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho with delta(epsilon; rho) <= delta, rounded down.

    Parameters
    ----------
    epsilon : float
        Finite and above 0.
    delta : float
        In (0, 1).
    """
    epsilon, delta = positive("epsilon", epsilon), probability("delta", delta)
    high = 1.0 + epsilon
    while zcdp_delta(high, epsilon) <= delta:
        high *= 2.0
    return bisect(lambda rho: zcdp_delta(rho, epsilon) > delta, 5e-324, high)[0]


@dataclass(frozen=True, kw_only=True)
class ConcentratedDP(Guarantee):
    """Zero-concentrated DP of noise that is not all Gaussian, with finite rho > 0.

    It holds on an event whose complement the error of the draws covers (`guarantees.binomial`).
    """

    name = "concentrated"

    rho: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rho", positive("rho", self.rho))

    def delta(self, epsilon: float) -> float:
        return zcdp_delta(self.rho, epsilon)

    def epsilon(self, delta: float) -> float:
        return zcdp_epsilon(self.rho, delta)

    def group(self, r: int) -> Self:
        if r > 1:
            raise ValueError(
                f"r must be 1 without a mu, as under shuffle trust, got {r}: concentrated DP is "
                "certified for one record"
            )
        return self
