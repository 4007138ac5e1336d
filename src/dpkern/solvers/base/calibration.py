"""What predictions are made of: a line of log odds, a temperature, or the level of means.

`Scale` and `LogOdds` are how a factor of scores and a line follow from released sums.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpkern._typing import FloatArray
from dpkern.models.losses import LogLink, Loss

# A slope of fewer standard errors is told.
_FEW_ERRORS = 2.0
# Bounds of the log of means of a log link without its own.
_FAR = 300.0

NO_SLOPE = (
    "little learnt, as far as the releases tell: labels depend on the model's scores by a slope of "
    "{:.2g} with a standard error of {:.2g}; take more records, fewer columns or a larger budget"
)
HIDDEN_SLOPE = (
    "little learnt, as far as the releases tell: no slope of labels by the model's scores was "
    "found, the noise hides it; take more records, fewer columns or a larger budget"
)
USUAL = "as is usual with so few records at this budget: nothing was released for it"

# The least share of a rate that is told from none.
_LEAST_RATE = 1e-7
# The variance of an offset that the slope may have moved, and the largest move by the last sums.
_OF_OFFSET, _LARGEST_MOVE = 0.05, 2.0
# The error that is likely beforehand of log(1 / temperature), and its largest step.
_PRIOR_ERROR_T, _LARGEST_STEP = 0.5, 1.0


@dataclass(frozen=True)
class Calibration:
    """The line slope u + offset of log odds, u = clamp((margin - centre) / unit, -1, 1).

    Attributes
    ----------
    slope, offset : float
    centre : float
        c, the model's intercept.
    unit : float
        s, by which margins less the centre are divided.
    slope_error : float
        Standard error of the slope, by the noise, to first order, and by the labels of n records
        that d numbers were fitted to; infinite where no slope is seen.
    """

    slope: float
    offset: float
    centre: float
    unit: float
    slope_error: float

    name: ClassVar[str] = "log odds"

    @property
    def factor(self) -> float:
        """By how much log odds grow with a margin that is not cut."""
        return self.slope / self.unit

    def uncut(self, margins: FloatArray) -> FloatArray:
        """Return log odds for margins as if none were cut."""
        return self.factor * (margins - self.centre) + self.offset

    def apply(self, margins: FloatArray) -> FloatArray:
        """Return log odds for margins of any shape."""
        u = np.clip((margins - self.centre) / self.unit, -1.0, 1.0)
        return self.slope * u + self.offset

    def __str__(self) -> str:
        return (
            f"{self.slope:.4g} u {self.offset:+.4g}, u = (margin {-self.centre:+.4g}) / "
            f"{self.unit:.4g} within 1 "
            f"(standard error of the slope {self.slope_error:.2g})"
        )

    @property
    def finding(self) -> str:
        """What the slope says against the model, or nothing."""
        return _finding(self.slope, self.slope_error)


@dataclass(frozen=True)
class Temperature:
    """The temperature by which scores are divided: they are logits then.

    Attributes
    ----------
    temperature : float
    slope_error : float
        Standard error of 1 / temperature, as of the slope of a `Calibration`; 0 where nothing was
        released for it.
    """

    temperature: float
    slope_error: float

    name: ClassVar[str] = "logits"

    @property
    def factor(self) -> float:
        """By how much logits grow with a score."""
        return 1.0 / self.temperature

    def apply(self, scores: FloatArray) -> FloatArray:
        """Return logits for scores of any shape."""
        return self.factor * scores

    uncut = apply

    def __str__(self) -> str:
        error = f"standard error of 1 / temperature {self.slope_error:.2g}"
        return f"score / {self.temperature:.4g} ({error if self.slope_error else USUAL})"

    @property
    def finding(self) -> str:
        """What the temperature says against the model, or nothing."""
        return _finding(self.factor, self.slope_error)


@dataclass(frozen=True)
class LogMeans(Calibration):
    """The log of means of a model with a log link, as a `Calibration` has log odds.

    Attributes
    ----------
    level : float
        By which the log of means was moved; 0 where nothing was released for it.
    """

    level: float

    name: ClassVar[str] = "log mean"

    @classmethod
    def of(cls, loss: Loss, level: float = 0.0) -> "LogMeans":
        """Return the log of means at margins, within the bounds of a loss with a log link."""
        low, high = (loss.low, loss.high) if isinstance(loss, LogLink) else (-_FAR, _FAR)
        middle, half = 0.5 * (low + high), 0.5 * (high - low)
        return cls(half, middle + level, middle, half, 0.0, level)

    def __str__(self) -> str:
        low, high = (math.exp(min(self.offset + s * self.slope, _FAR)) for s in (-1.0, 1.0))
        return f"margin {self.level:+.4g}, for means from {low:.3g} to {high:.3g}"

    @property
    def finding(self) -> str:
        """Nothing: a level says nothing of the model."""
        return ""


def stored_calibration(values: Mapping[str, float]) -> Calibration | Temperature:
    """Return a calibration from its fields in a file."""
    if "level" in values:
        return LogMeans(**values)
    return Temperature(**values) if "temperature" in values else Calibration(**values)


def _finding(slope: float, error: float) -> str:
    if error == math.inf:
        return HIDDEN_SLOPE
    return "" if slope >= _FEW_ERRORS * error else NO_SLOPE.format(slope, error)


class Scale:
    """The factor of scores by released sums alone, its logarithm by a Kalman filter."""

    def __init__(self, n: float, unit: float, slope: float) -> None:
        self.slope = slope
        self._n, self._unit = n, min(max(unit, 1e-100), 1e100)
        self._variance, self._information = _PRIOR_ERROR_T**2, 0.0
        # What is seen without a prior: the precision of slope times unit, and its product with it.
        self._precision, self._seen = 0.0, 0.0

    @property
    def slope_error(self) -> float:
        """Return the slope over how many errors it is from 0, by all sums and no prior."""
        seen = self._seen
        return self.slope * math.sqrt(self._precision) / seen if seen > 0.0 else math.inf

    @property
    def sampling_error(self) -> float:
        """Return the standard error of the slope by the labels of n records.

        By the most information that was seen: confident risks have little on a slope that is clear.
        """
        return 1.0 / (self._unit * math.sqrt(self._information))

    def improve(self, score: float, information: float, std: float) -> None:
        """Take sums of scores and of 2 v - 1/4, v the information in units, into account."""
        n, a = self._n, self.slope * self._unit
        std = max(std, _LEAST_RATE * n)
        score = bounded(score, n)
        seen = 0.5 * (bounded(information, n) + 0.25 * n)
        # No less than noise may hide.
        h = min(math.hypot(max(seen, 0.0), 0.5 * std), 0.25 * n)
        self._information = max(self._information, h)
        self._precision += (h / std) ** 2
        self._seen += h / std * ((a * h - score) / std)
        # The score is a h^2 times the error of the logarithm, with the noise and that of n labels.
        known, unknown = a * h * h * self._variance, (std**2 + h) / a
        change = bounded(self._variance * h * score / (known + unknown), _LARGEST_STEP)
        self._variance *= unknown / (known + unknown)
        # A step shows how far the factor was, and by that how good a linear measurement was.
        self._variance += 0.25 * change**2
        self.slope *= math.exp(-change)


class LogOdds:
    """Where the log odds of labels are a line's offset, by released sums alone.

    The centre is the margin of the mean risk at `slope` times the margins, about which slope and
    offset hardly depend on each other. `risks` and `labels` are sums of risks and of labels 0 and 1
    less 1/2, with noise of standard deviation `std`.
    """

    def __init__(self, n: float, risks: float, labels: float, std: float, slope: float) -> None:
        (risk, of_risk), (rate, of_rate) = (_log_odds(x / n, std / n) for x in (risks, labels))
        # A rate that differs from the mean risk by no more than the noise is taken in part.
        move = rate - risk
        self.centre = risk / slope
        self.offset = risk + move**3 / (move**2 + of_risk + of_rate)
        # 4 r (1 - r), r the rate: the information of its labels, 1 where classes are balanced.
        self.balance = math.cosh(0.5 * rate) ** -2
        self._n, self._variance = n, of_rate + _OF_OFFSET

    def improve(self, residual: float, information: float, std: float) -> None:
        """Take the sums of p - y and of p (1 - p) - 1/8 into account, with the Kalman gain."""
        n, residual, information = self._n, float(residual), float(information)
        std = max(std, _LEAST_RATE * n)
        # No less than noise may hide.
        h = max(bounded(information, n) + 0.125 * n, min(std, 0.25 * n), 1e-3 * n)
        gain = self._variance / (self._variance + (std / h) ** 2)
        self.offset -= gain * bounded(bounded(residual, n) / h, _LARGEST_MOVE)


def _log_odds(less_half: float, error: float) -> tuple[float, float]:
    """Return the log odds of a noisy rate, given less 1/2, and their variance by the noise."""
    # No nearer to 0 and 1 than the noise.
    least = min(max(error, _LEAST_RATE), 0.25)
    rate = 0.5 + bounded(less_half, 0.5 - least)
    return math.log(rate / (1.0 - rate)), (max(error, _LEAST_RATE) / (rate * (1.0 - rate))) ** 2


def bounded(value: float, bound: float) -> float:
    """Return the number between -bound and bound that is nearest."""
    return min(max(value, -bound), bound)
