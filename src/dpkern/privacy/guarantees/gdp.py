"""Gaussian differential privacy: its exact conversions, and the guarantee of certificates.

A release of sensitivity D with Gaussian noise of standard deviation s is mu-GDP, mu = D/s, and then
(epsilon, delta)-DP exactly for

    delta(epsilon; mu) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)

(Dong, Roth, Su 2022, "Gaussian differential privacy", Corollary 2.13; Balle and Wang 2018,
Theorem 8). Adaptive composition adds mu^2.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import not_negative, probability
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.rounding import bisect, round_up

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

# Conservative error bounds of gdp_log_delta, absolute and relative to its value (the rounding error
# of the density's argument doubles in its square).
_LOG_DELTA_ABSOLUTE = 2.0**-44
_LOG_DELTA_RELATIVE = 2.0**-50

# Nodes of the double exponential rule t = exp(s - exp(-s)) on (0, infinity), trapezoidal in s:
# from t = 1e-18, below which no integrand used here has weight, to t = 90.
_STEP = 0.05
_S = np.arange(-3.7, 4.5 + _STEP / 2, _STEP)
_T = np.exp(_S - np.exp(-_S))
_T_WEIGHTS = _STEP * _T * (1.0 + np.exp(-_S))


def _log_mills_difference(x: float, mu: float) -> float:
    """Return log(R(x) - R(x + mu)), R = Q/phi the Mills ratio, for x > -1.

    R(x) - R(x + mu) is the integral over t > 0 of exp(-x t - t^2/2) (1 - exp(-mu t)), which has no
    cancellation for any mu.
    """
    scale = max(x, 1.0)
    t = _T / scale
    # Where mu t would be denormal, 1 - exp(-mu t) equals mu t to double precision.
    tiny = mu * _T[-1] < 1e-290 * scale
    terms = np.exp(-x * t - 0.5 * t * t) * (t if tiny else -np.expm1(-mu * t))
    integral = math.log(float(terms @ _T_WEIGHTS)) - math.log(scale)
    return integral + math.log(mu) if tiny else integral


def gdp_log_delta(mu: float, epsilon: float) -> float:
    """Return log(delta) of a mu-GDP mechanism at epsilon, nearest value.

    Parameters
    ----------
    mu : float
        GDP parameter, >= 0, infinity allowed.
    epsilon : float
        Finite and >= 0.

    Returns
    -------
    float
        log(delta(epsilon; mu)); -inf for mu = 0. The absolute error is below
        2^-44 + 2^-50 |log(delta)|, so delta itself has a relative error below 1e-12 down to 1e-300.

    Notes
    -----
    With x = epsilon/mu - mu/2 (exact, then rounded once) and exp(epsilon) phi(x + mu) = phi(x),

        delta = phi(x) (R(x) - R(x + mu)),   R the Mills ratio.

    For x > -1 the difference is the integral of a positive function; for x <= -1 both parts of
    1 - delta = Phi(x) + phi(x) R(x + mu) are positive and delta is above 0.6.
    """
    return _log_delta(not_negative("mu", mu, or_infinite=True), not_negative("epsilon", epsilon))


def _log_delta(mu: float, epsilon: float) -> float:
    if mu == 0.0:
        return -math.inf
    if mu == math.inf:
        return 0.0
    exact_mu = Fraction(mu)
    try:
        x = float(Fraction(epsilon) / exact_mu - exact_mu / 2)
    except OverflowError:  # |x| above the largest double
        return -math.inf if epsilon > mu else 0.0
    if x > -1.0:
        return _log_mills_difference(x, mu) - 0.5 * x * x - _HALF_LOG_2PI
    mills = math.sqrt(0.5 * math.pi) * float(scipy.special.erfcx((x + mu) / math.sqrt(2.0)))
    density = math.exp(-0.5 * x * x - _HALF_LOG_2PI)
    return math.log1p(-(float(scipy.special.ndtr(x)) + density * mills))


def gdp_delta(mu: float, epsilon: float) -> float:
    """Return delta of a mu-GDP mechanism at epsilon, nearest value.

    Parameters, errors and accuracy as for `gdp_log_delta`; 0 where delta underflows.
    """
    return math.exp(gdp_log_delta(mu, epsilon))


def gdp_delta_upper(mu: float, epsilon: float) -> float:
    """Return a double >= delta(epsilon; mu), larger by less than 2e-12 of it where delta > 1e-300.

    Parameters and errors as for `gdp_log_delta`.
    """
    return _delta_upper(not_negative("mu", mu, or_infinite=True), not_negative("epsilon", epsilon))


def _delta_upper(mu: float, epsilon: float) -> float:
    log_delta = _log_delta(mu, epsilon)
    if mu == 0.0:
        return 0.0
    if log_delta > -math.inf:
        log_delta += _LOG_DELTA_ABSOLUTE - _LOG_DELTA_RELATIVE * log_delta
    # exp has an error of at most one unit in the last place; nextafter also covers underflow.
    value = math.exp(min(0.0, log_delta)) * (1.0 + 2.0**-51)
    return min(1.0, math.nextafter(value, math.inf))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which a mu-GDP mechanism is (epsilon, delta)-DP, rounded up.

    Parameters
    ----------
    mu : float
        GDP parameter, >= 0, infinity allowed.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        An epsilon >= 0 for which delta(epsilon; mu) <= delta is certain; infinity if mu is.
    """
    mu, delta = not_negative("mu", mu, or_infinite=True), probability("delta", delta)
    if mu == math.inf:
        return math.inf

    def reached(epsilon: float) -> bool:
        return _delta_upper(mu, epsilon) <= delta

    if mu == 0.0 or reached(0.0):
        return 0.0
    # Phi(-x) <= exp(-x^2/2) puts the answer below mu^2/2 + mu sqrt(2 log(1/delta)) up to rounding.
    high = 1.001 * mu * (0.5 * mu + math.sqrt(-2.0 * math.log(delta)))
    while high < math.inf and not reached(high):
        high *= 2.0
    return bisect(reached, 0.0, high)[1] if high < math.inf else math.inf


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-DP, rounded down.

    Parameters
    ----------
    epsilon : float
        Finite and >= 0.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        The lower end of a bisection: delta(epsilon; mu) <= delta is certain.
    """
    epsilon, delta = not_negative("epsilon", epsilon), probability("delta", delta)

    def exceeded(mu: float) -> bool:
        return _delta_upper(mu, epsilon) > delta

    high = 1.0
    while not exceeded(high):
        high *= 2.0
    return bisect(exceeded, 0.0, high)[0]


@dataclass(frozen=True, kw_only=True)
class GaussianDP(Guarantee):
    """Gaussian DP with parameter mu >= 0; infinity means that there is no guarantee."""

    name = "gaussian"

    mu: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "mu", not_negative("mu", self.mu, or_infinite=True))

    @property
    def rho(self) -> float:
        """The parameter of concentrated DP that follows, mu^2/2 rounded up."""
        return self.mu if self.mu == math.inf else round_up(Fraction(self.mu) ** 2 / 2)

    def delta(self, epsilon: float) -> float:
        return gdp_delta_upper(self.mu, epsilon)

    def epsilon(self, delta: float) -> float:
        return gdp_epsilon(self.mu, delta)

    def group(self, r: int) -> Self:
        """Return r mu, rounded up."""
        return self if self.mu == math.inf else type(self)(mu=round_up(r * Fraction(self.mu)))

    def turning_point(self, error: float) -> float:
        """Return the exact one.

        As functions of exp(epsilon), delta(epsilon; mu) has the derivative
        -Phi(-epsilon/mu - mu/2), and the correction the derivative `error`.
        """
        return max(0.0, self.mu * (-float(scipy.special.ndtri(error)) - 0.5 * self.mu))


#: What stands for no guarantee.
NO_GUARANTEE = GaussianDP(mu=math.inf)
