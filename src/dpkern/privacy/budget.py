"""Privacy budgets and the exact conversions of Gaussian differential privacy.

A release of sensitivity D with Gaussian noise of standard deviation s is mu-GDP, mu = D/s, and then
(epsilon, delta)-DP exactly for

    delta(epsilon; mu) = Phi(-epsilon/mu + mu/2) - exp(epsilon) Phi(-epsilon/mu - mu/2)

(Dong, Roth, Su 2022, "Gaussian differential privacy", Corollary 2.13; Balle and Wang 2018,
Theorem 8). Adaptive composition adds mu^2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # whose parts load when they are first used: an import of dpkern is cheap

from dpkern._numbers import count, positive, real
from dpkern.privacy._exact import bisect, round_down, sqrt_down

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

# Error of gdp_log_delta, with room to spare: absolute, and relative to its value (the argument of
# the density is rounded once, which its square doubles).
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

    R(x) - R(x + mu) = integral over t > 0 of exp(-x t - t^2/2) (1 - exp(-mu t)): positive, so
    nothing cancels however small mu is.
    """
    scale = max(x, 1.0)
    t = _T / scale
    terms = np.exp(-x * t - 0.5 * t * t) * -np.expm1(-mu * t)
    if mu * _T[-1] < 1e-290 * scale:
        # mu t would lose digits as a denormal; there 1 - exp(-mu t) is mu t to the last bit.
        terms = np.exp(-x * t - 0.5 * t * t) * t
        return math.log(float(terms @ _T_WEIGHTS)) - math.log(scale) + math.log(mu)
    return math.log(float(terms @ _T_WEIGHTS)) - math.log(scale)


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

    Raises
    ------
    TypeError, ValueError
        An argument is no real number or out of its range.

    Notes
    -----
    With x = epsilon/mu - mu/2 (exact, then rounded once) and exp(epsilon) phi(x + mu) = phi(x),

        delta = phi(x) (R(x) - R(x + mu)),   R the Mills ratio.

    For x > -1 the difference is the integral of a positive function; for x <= -1 both parts of
    1 - delta = Phi(x) + phi(x) R(x + mu) are positive and delta is above 0.6.
    """
    mu, epsilon = _mu(mu), _epsilon(epsilon)
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
    mu, epsilon = _mu(mu), _epsilon(epsilon)
    if mu == 0.0:
        return 0.0
    log_delta = gdp_log_delta(mu, epsilon)
    if log_delta > -math.inf:
        log_delta += _LOG_DELTA_ABSOLUTE - _LOG_DELTA_RELATIVE * log_delta
    # exp is good to one unit in the last place; the next double up also serves where it underflows
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

    Raises
    ------
    TypeError, ValueError
        An argument is no real number or out of its range.
    """
    mu, delta = _mu(mu), _delta(delta)
    if mu == math.inf:
        return math.inf

    def reached(epsilon: float) -> bool:
        return gdp_delta_upper(mu, epsilon) <= delta

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

    Raises
    ------
    TypeError, ValueError
        An argument is no real number or out of its range.
    """
    epsilon, delta = _epsilon(epsilon), _delta(delta)

    def exceeded(mu: float) -> bool:
        return gdp_delta_upper(mu, epsilon) > delta

    high = 1.0
    while not exceeded(high):
        high *= 2.0
    return bisect(exceeded, 0.0, high)[0]


def _mu(value: float) -> float:
    mu = real("mu", value)
    if not mu >= 0.0:
        raise ValueError(f"mu is {mu!r}; it must be at least 0")
    return mu


def _epsilon(value: float) -> float:
    epsilon = real("epsilon", value)
    if not 0.0 <= epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon!r}; it must be finite and at least 0")
    return epsilon


def _delta(value: float) -> float:
    delta = real("delta", value)
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta is {delta!r}; it must lie strictly between 0 and 1")
    return delta


def split_budget(
    mu: float, sensitivities: Sequence[float], counts: Sequence[int]
) -> tuple[float, ...]:
    """Split a total mu over families of releases so that the total noise variance is least.

    Parameters
    ----------
    mu : float
        Total GDP budget, finite and above 0.
    sensitivities : sequence of float
        l2 sensitivity D_i of one release of family i, finite and above 0.
    counts : sequence of int
        Number n_i of releases of family i, at least 1.

    Returns
    -------
    tuple of float
        The mu_i of one release of family i: mu_i^2 = mu^2 D_i / sum_j n_j D_j, which minimises
        sum_i n_i (D_i/mu_i)^2 under sum_i n_i mu_i^2 = mu^2. Rounded down: in exact arithmetic
        sum_i n_i mu_i^2 never exceeds mu^2.

    Raises
    ------
    TypeError, ValueError
        An argument is out of range, or the two sequences are empty or of different lengths.
    """
    mu = positive("mu", mu)
    if len(sensitivities) != len(counts) or not len(counts):
        raise ValueError(
            f"sensitivities has {len(sensitivities)} entries and counts {len(counts)}; "
            "both must have the same number, at least one"
        )
    exact = [Fraction(positive("sensitivities", value)) for value in sensitivities]
    number = [count("counts", value) for value in counts]
    total = sum((n * d for n, d in zip(number, exact, strict=True)), Fraction(0))
    return tuple(sqrt_down(Fraction(mu) ** 2 * d / total) for d in exact)


# What a Budget keeps of delta for the noise itself: the rest pays for the draws' distance from
# real Gaussians, (1 + exp(epsilon)) 2^-100 each. Where that is more than 2^-30 of delta (a delta
# near 1e-20 or an epsilon above 20), the certificate is true all the same, and above the budget.
_ROOM = 1.0 - 2.0**-30


@dataclass(frozen=True, init=False)
class Budget:
    """A total privacy budget, stated in exactly one of three ways.

    Parameters
    ----------
    epsilon, delta : float, optional
        Approximate DP, given together: epsilon finite and above 0, delta strictly between 0 and 1.
    mu : float, optional
        Gaussian DP, finite and above 0.
    rho : float, optional
        Zero-concentrated DP, finite and above 0; stands for mu = sqrt(2 rho).

    Attributes
    ----------
    mu : float
        Total GDP budget, always rounded down. From (epsilon, delta) it leaves a 2^-30-th of delta
        for the rounding of the noise.
    epsilon, delta : float or None
        As given.
    rho : float
        As given, else mu^2/2 rounded down.

    Raises
    ------
    TypeError
        An argument is no real number.
    ValueError
        An argument is out of range, or not exactly one form was given.

    Examples
    --------
    >>> round(Budget(epsilon=1.0, delta=1e-6).mu, 4)
    0.2367
    >>> Budget(rho=0.5).mu
    1.0
    """

    epsilon: float | None
    delta: float | None
    mu: float
    rho: float

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        mu: float | None = None,
        rho: float | None = None,
    ) -> None:
        if epsilon is not None and delta is None:
            raise ValueError("epsilon was given without delta; give both, or mu, or rho")
        if delta is not None and epsilon is None:
            raise ValueError("delta was given without epsilon; give both, or mu, or rho")
        if [epsilon, mu, rho].count(None) != 2:
            forms = {"epsilon and delta": epsilon, "mu": mu, "rho": rho}
            given = [form for form, value in forms.items() if value is not None]
            raise ValueError(
                f"a budget is exactly one of (epsilon and delta), mu, rho; "
                f"given: {', '.join(given) or 'none of them'}"
            )
        if epsilon is not None and delta is not None:
            epsilon = positive("epsilon", epsilon)
            delta = _delta(delta)
            mu = gdp_mu(epsilon, delta * _ROOM)
        elif rho is not None:
            rho = positive("rho", rho)
            mu = sqrt_down(2 * Fraction(rho))
        mu = positive("mu", mu)
        if rho is None:
            rho = round_down(Fraction(mu) ** 2 / 2)
        for name, value in (("epsilon", epsilon), ("delta", delta), ("mu", mu), ("rho", rho)):
            object.__setattr__(self, name, value)

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of the whole budget at `delta` in (0, 1), rounded up."""
        return gdp_epsilon(self.mu, delta)

    def delta_at(self, epsilon: float) -> float:
        """Return the delta of the whole budget at `epsilon` >= 0, rounded up."""
        return gdp_delta_upper(self.mu, epsilon)


__all__ = [
    "Budget",
    "gdp_delta",
    "gdp_delta_upper",
    "gdp_epsilon",
    "gdp_log_delta",
    "gdp_mu",
    "split_budget",
]
