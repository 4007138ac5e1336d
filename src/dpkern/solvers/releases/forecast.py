"""By how much privacy will widen standard errors, before any record is read."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpkern.models.losses import BinaryLikelihood, Likelihood, LogLink, Loss, NegativeBinomial
from dpkern.privacy import Budget
from dpkern.solvers.base.objective import PublicNumbers
from dpkern.solvers.base.settings import estimation
from dpkern.solvers.releases.estimation import (
    DEVIATIONS,
    DEVIATIONS_OF_USUAL,
    FLOOR,
    GEOMETRY,
    divided,
)

# Of a loss: k^2 over the mean squared score, and the mean of phi'' over its largest value, of a
# label by its variance: squared scores of Huber's loss with residuals of deviation delta / 1.3.
_SQUARED_BOUND = {"huber": 2.4, "squared": DEVIATIONS**2}
_CURVATURE = {"huber": 0.8, "squared": 1.0}
_OF_VARIANCE = 0.7  # mean variance of a label at its risk, over that at the mean risk
# The least eigenvalue of the covariance of rows, over R^2 / d, and of the curvature over its mean,
# of labels and others: columns that use the stated ranges, and are not far from independent.
_SPREAD, _LEAST = 0.045, (0.5, 0.67)
# Noise beyond which less than 95 % of coefficients are expected to be answered.
_ANSWERED = 0.5


@dataclass(frozen=True)
class Forecast:
    """What `inference=True` is expected to give.

    Attributes
    ----------
    settings : dict
        Bound of whitened rows, and steps.
    growth : float
        Standard errors over those without privacy, of a coefficient in the middle.
    noise_ratio : float
        Norm of the noise of the curvatures over their least eigenvalue. A fit has no standard
        errors beyond 0.67, and nearly all up to 0.5 of what is forecast.
    least_records : int
        From which the ratio is 0.5 at most, at the same budget.
    least_mu : float
        From which it is, with the same records.
    delta : float or None
        At which `least_mu` is told as an epsilon.
    """

    settings: Mapping[str, Any]
    growth: float
    noise_ratio: float
    least_records: int
    least_mu: float
    delta: float | None

    @property
    def is_answered(self) -> bool:
        """Whether standard errors are to be expected."""
        return self.noise_ratio <= _ANSWERED

    def __str__(self) -> str:
        needed = f"{float(f'{self.least_records:.2g}'):.0f} records"
        if not self.is_answered:
            budget = _stated(self.least_mu, self.delta)
            needed = f"about {needed}, or {budget}, would do"
            return f"no standard errors are to be expected at this budget: {needed}"
        return (
            f"standard errors grow by about {self.growth:.2g}\n"
            f"they are to be expected from about {needed} on, at this budget"
        )


@functools.lru_cache(maxsize=64)
def _stated(mu: float, delta: float | None) -> str:
    return f"mu {mu:.2g}" if delta is None else f"epsilon {Budget.part(mu).epsilon_at(delta):.2g}"


def usual_rate(loss: Loss) -> float:
    """Return the share of one of two labels, or the mean count, where none is said."""
    if not isinstance(loss, LogLink | NegativeBinomial):
        return 0.5
    return math.exp(0.5 * (loss.low + loss.high))


def assumed(loss: Loss) -> str:
    """Return what a forecast without a rate assumes of the records; nothing of real targets."""
    if isinstance(loss, LogLink | NegativeBinomial):
        return f"a mean count of {usual_rate(loss):.2g} was assumed: smaller ones need more"
    if loss.task == "classification":
        return "half of the records were assumed to have either label: rare outcomes need more"
    return ""


def forecast(
    numbers: PublicNumbers, loss: Loss, n: int, rate: float, delta: float | None
) -> Forecast:
    """Return what is expected of estimates on n records.

    `rate` of them have the one label, or it is the mean count.
    """
    at = functools.partial(_at, replace(numbers, noise=n * numbers.noise), loss, rate)
    settings, growth, ratio = at(n, numbers.mu)
    records = _least(lambda k: at(k, numbers.mu)[2] <= _ANSWERED)
    mu = 1e-3 * numbers.mu * _least(lambda k: at(n, 1e-3 * numbers.mu * k)[2] <= _ANSWERED)
    return Forecast(settings, growth, ratio, records, mu, delta)


def is_answered(numbers: PublicNumbers, loss: Loss, n: int, rate: float) -> bool:
    """Whether standard errors of estimates on n records are to be expected, as in `forecast`."""
    one = replace(numbers, noise=n * numbers.noise)
    return _at(one, loss, rate, n, numbers.mu)[2] <= _ANSWERED


def _at(
    one: PublicNumbers, loss: Loss, rate: float, n: int, mu: float
) -> tuple[dict[str, Any], float, float]:
    """Return settings, growth and ratio with n records, from the numbers of one."""
    unit = round(one.noise)  # 2 where a record is replaced
    public = replace(one, noise=unit / n, mu=mu)
    settings = estimation(public, {"loss": loss})
    sizes = settings["clip"] ** 2, settings["rounds"]
    return settings, *_expected(public, loss, n, unit, rate, *sizes)


def _least(answers: Callable[[int], bool]) -> int:
    """Return the least number that answers, to a thousandth of it."""
    low, high = 1, 2
    while high < 1 << 50 and not answers(high):
        low, high = high, 2 * high
    while high - low > max(low // 1000, 1):
        middle = (low + high) // 2
        low, high = (low, middle) if answers(middle) else (middle, high)
    return high


@functools.cache
def _divided(loss: Loss, steps: int) -> tuple[Any, ...]:
    """Return the parts of a budget of 1, of which others are multiples."""
    return divided(1.0, loss, intercept=True, steps=steps)


def _expected(
    numbers: PublicNumbers, loss: Loss, n: int, unit: int, rate: float, bound: float, steps: int
) -> tuple[float, float]:
    """Return by how much standard errors grow, and the ratio of noise to curvature.

    `bound` is C^2, and `unit` 2 or 1, the sensitivity of a sum of rows of norm 1. In whitened
    coordinates outer products of rows have the mean 1, or less where the noise hides the geometry.
    """
    d = numbers.dim
    once, curvatures, scores = (
        [mu and mu * numbers.mu for mu in parts] for parts in _divided(loss, steps)
    )
    if isinstance(loss, Likelihood):
        of_labels = isinstance(loss, BinaryLikelihood)
        h = (_OF_VARIANCE if of_labels else 1.0) * loss.information(rate)
        top, q = loss.smoothness, h / loss.lipschitz**2
    else:
        top, q, h = 1.0, 1.0 / _SQUARED_BOUND[loss.name], _CURVATURE[loss.name]
    root = math.sqrt(2.0) if unit == 2 else 1.0
    seen = least = _SPREAD / d
    for norm, mu in ((1.0, once[1]), (max(bound, GEOMETRY**2 * d), once[2])):
        floor = FLOOR * root * norm * math.sqrt(2.0 * d)
        seen = min(seen * n * (mu or math.inf) / floor, 1.0)
    bound = min(bound, seen / least)
    if loss.name == "squared":
        q *= max(bound * (DEVIATIONS / DEVIATIONS_OF_USUAL) ** 2 / d, 1.0)
    J, Q = n * h * seen, n * q * seen
    precisions = [(mu or math.inf) ** 2 / (unit**2 * bound) for mu in scores[-2:]]
    total = (mu**2 for mu in curvatures[-2:] if mu)
    of_curvatures = root * bound * top / math.sqrt(sum(total))
    share = precisions[1] / sum(precisions)
    early = sum((mu or math.inf) ** 2 for mu in scores[-3:-1]) / (unit**2 * bound)
    before = (Q + 1.0 / early) / J**2  # the variance before the last step
    noise = 1.0 / sum(precisions) + share**2 * of_curvatures**2 * 0.5 * (d + 1.0) * before
    ratio = of_curvatures * math.sqrt(2.0 * d) / (_LEAST[loss.name in _SQUARED_BOUND] * J)
    return math.sqrt(1.0 + noise / Q), ratio
