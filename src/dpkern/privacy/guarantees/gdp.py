"""Gaussian differential privacy: its exact conversions, guarantees of certificates, and budgets.

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
from typing import Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import count, not_negative, positive, probability
from dpkern._warn import warn
from dpkern.privacy.guarantees.base import Guarantee
from dpkern.privacy.guarantees.rounding import bisect, round_down, round_up, sqrt_down

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

# Share of delta for exact Gaussian noise; the rest covers the draws' distance from real Gaussians,
# (1 + exp(epsilon)) 2^-100 each. Where that exceeds 2^-30 of delta (a delta near 1e-20 or an
# epsilon above 20), the certificate is still valid, but above the budget.
_EXACT_NOISE_SHARE = 1.0 - 2.0**-30

#: Larger budgets cause a warning. A delta of 1e-3 is 1/N for a thousand records; epsilon = 20 lets
#: the odds of any conclusion about a record change by a factor of exp(20); with mu = 6 neighbouring
#: data sets are distinguished with probability Phi(3) = 0.9987.
LARGEST_USUAL_DELTA, LARGEST_USUAL_EPSILON, LARGEST_USUAL_MU = 1e-3, 20.0, 6.0


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
    """
    mu = positive("mu", mu)
    if len(sensitivities) != len(counts) or not len(counts):
        raise ValueError(
            "sensitivities and counts must have one entry per family each, got "
            f"{len(sensitivities)} and {len(counts)}"
        )
    exact = [Fraction(positive("sensitivities", value)) for value in sensitivities]
    total = sum((count("counts", n) * d for n, d in zip(counts, exact, strict=True)), Fraction(0))
    return tuple(sqrt_down(Fraction(mu) ** 2 * d / total) for d in exact)


class BudgetWarning(UserWarning):
    """A budget is so large that it protects little, or too small for what is asked of it."""


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
        Zero-concentrated DP, finite and above 0; equivalent to mu = sqrt(2 rho) here.

    Attributes
    ----------
    mu : float
        Total GDP budget, rounded down. From (epsilon, delta) it leaves a share 2^-30 of delta for
        the error of the noise sampler.
    epsilon, delta : float or None
        As given.
    rho : float
        As given, else mu^2/2 rounded down.

    Raises
    ------
    TypeError
        When an argument is not a real number.
    ValueError
        When an argument is out of range, or not exactly one form is given.

    Warns
    -----
    BudgetWarning
        When delta is above 1e-3, epsilon above 20 or mu above 6, which protects little; in a run,
        when delta is above 1 / (number of records).

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
            raise ValueError("delta must be given with epsilon, got None; or give mu, or rho")
        if delta is not None and epsilon is None:
            raise ValueError("epsilon must be given with delta, got None; or give mu, or rho")
        if [epsilon, mu, rho].count(None) != 2:
            forms = {"epsilon and delta": epsilon, "mu": mu, "rho": rho}
            given = [form for form, value in forms.items() if value is not None]
            raise ValueError(
                "budget must be exactly one of (epsilon and delta), mu, rho, got "
                f"{', '.join(given) or 'none of them'}"
            )
        if epsilon is not None and delta is not None:
            epsilon = positive("epsilon", epsilon)
            delta = probability("delta", delta)
            mu = gdp_mu(epsilon, delta * _EXACT_NOISE_SHARE)
        elif rho is not None:
            rho = positive("rho", rho)
            mu = sqrt_down(2 * Fraction(rho))
        mu = positive("mu", mu)
        self._set(epsilon, delta, mu, rho)
        self._warn()

    @classmethod
    def part(cls, mu: float) -> Self:
        """Return a part of a budget that was stated, which warned of itself."""
        found = object.__new__(cls)
        found._set(None, None, positive("mu", mu), None)
        return found

    def _set(
        self, epsilon: float | None, delta: float | None, mu: float, rho: float | None
    ) -> None:
        if rho is None:
            rho = round_down(Fraction(mu) ** 2 / 2)
        for name, value in (("epsilon", epsilon), ("delta", delta), ("mu", mu), ("rho", rho)):
            object.__setattr__(self, name, value)

    def _warn(self) -> None:
        """Warn of a budget that protects little."""
        causes = []
        if self.delta is not None and self.delta > LARGEST_USUAL_DELTA:
            causes.append(
                f"delta must be well below 1/N to protect each of N records, got {self.delta!r}: a "
                "mechanism may publish each record with this probability"
            )
        if self.epsilon is not None and self.epsilon > LARGEST_USUAL_EPSILON:
            causes.append(
                f"epsilon must be at most {LARGEST_USUAL_EPSILON:g}, and usually is at most 10, to "
                f"protect much, got {self.epsilon!r}"
            )
        elif self.mu > LARGEST_USUAL_MU:
            causes.append(
                f"mu must be at most {LARGEST_USUAL_MU:g}, and usually is at most 1, to protect "
                f"much, got {self.mu!r}: whether a record was there can be told from the release "
                f"with probability {0.5 * math.erfc(-self.mu / 2.0**1.5):.3g}"
            )
        for cause in causes:
            warn(cause, BudgetWarning)

    def warn_of_few_records(self, n: int) -> None:
        """Warn where delta is above 1 / n, n being a public number of records."""
        if self.delta is not None and self.delta * n > 1.0:
            warn(
                f"delta is {self.delta:g} with {n} records: a run that shows one of them as it is, "
                "drawn at random, would keep that; state a delta well below 1 / n",
                BudgetWarning,
            )

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon of the whole budget at `delta` in (0, 1), rounded up."""
        return gdp_epsilon(self.mu, delta)


def check_budget(budget: object, *, name: str = "budget", or_none: bool = False) -> None:
    """Raise TypeError unless `budget` is a Budget, or None where that is allowed."""
    if not (isinstance(budget, Budget) or (or_none and budget is None)):
        raise TypeError(
            f"{name} must be dpkern.Budget(epsilon=..., delta=...){' or None' * or_none}, got "
            f"{type(budget).__name__}"
        )
