"""Privacy budgets, and how a budget is split among releases."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Self

from dpkern._numbers import count, positive, probability
from dpkern._warn import warn
from dpkern.privacy.guarantees.gdp import gdp_epsilon, gdp_mu
from dpkern.privacy.guarantees.rounding import round_down, sqrt_down


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


# Share of delta for exact Gaussian noise; the rest covers the draws' distance from real Gaussians,
# (1 + exp(epsilon)) 2^-100 each. Where that exceeds 2^-30 of delta (a delta near 1e-20 or an
# epsilon above 20), the certificate is still valid, but above the budget.
_EXACT_NOISE_SHARE = 1.0 - 2.0**-30


#: Larger budgets cause a warning. A delta of 1e-3 is 1/N for a thousand records; epsilon = 20 lets
#: the odds of any conclusion about a record change by a factor of exp(20); with mu = 6 neighbouring
#: data sets are distinguished with probability Phi(3) = 0.9987.
LARGEST_USUAL_DELTA, LARGEST_USUAL_EPSILON, LARGEST_USUAL_MU = 1e-3, 20.0, 6.0


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
