"""What predictions are made of: a line of log odds, a temperature, or the level of means."""

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
        Standard error of 1 / temperature, as of the slope of a `Calibration`.
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
        return (
            f"score / {self.temperature:.4g} "
            f"(standard error of 1 / temperature {self.slope_error:.2g})"
        )

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
    def of(cls, loss: Loss, level: float = 0.0) -> "LogMeans | None":
        """Return the log of means at margins, within the loss's bounds; None without a log link."""
        if not loss.log_link:
            return None
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
