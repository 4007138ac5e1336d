"""Margin losses: names, parameters and bounds of what the compiled loss table computes.

A loss is a function phi(y, z) of the label y and the margin z = x.w (+ intercept). The formulas
themselves live in the C loss table and in the NumPy twins; this module only says what a solver and
a certificate need to know. The bounds are over all real z and all labels that the loss's task
allows, and derivatives are with respect to z.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

from dpkern._numbers import positive


@dataclass(frozen=True)
class Loss(ABC):
    """A margin loss; the fields of a subclass are its parameters, in the order in which C reads.

    Attributes
    ----------
    name : str
        The key in `LOSSES`, and what the keyword ``loss=`` accepts.
    task : {"classification", "regression"}
        What the label means. Classification losses need labels -1 and +1; regression losses take
        any real label, -1 and +1 included.
    convex : bool
        Whether phi is convex in z. Clipping per-record gradients keeps a convex loss convex, and
        bounds the gradient of any loss: convexity decides what a run finds, not what it reveals.
    """

    name: ClassVar[str]
    task: ClassVar[str]
    convex: ClassVar[bool] = True

    @property
    def params(self) -> tuple[float, ...]:
        """Parameters as handed to C."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """Supremum of the absolute first derivative; ``inf`` when there is none."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Supremum of the absolute second derivative; ``inf`` when there is none."""


@dataclass(frozen=True)
class Logistic(Loss):
    """phi(y, z) = log(1 + exp(-y z))."""

    name = "logistic"
    task = "classification"
    lipschitz = 1.0
    smoothness = 0.25


@dataclass(frozen=True)
class Squared(Loss):
    """phi(y, z) = (z - y)^2 / 2."""

    name = "squared"
    task = "regression"
    lipschitz = math.inf
    smoothness = 1.0


@dataclass(frozen=True)
class Huber(Loss):
    """The squared loss with linear tails (Huber 1964, section 4).

    phi(y, z) = r^2 / 2 for |r| <= delta and delta (|r| - delta/2) beyond, with r = z - y.

    Parameters
    ----------
    delta : float, default=1.0
        Where the quadratic becomes linear; positive and finite.
    """

    delta: float = 1.0

    name = "huber"
    task = "regression"
    smoothness = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", positive("delta", self.delta))

    @property
    def lipschitz(self) -> float:
        """The slope of the linear part."""
        return self.delta


@dataclass(frozen=True)
class SmoothedHinge(Loss):
    """The hinge max(0, 1 - y z) with its corner replaced by a quadratic of width h.

    phi(y, z) = 0 for y z >= 1, (1 - y z)^2 / (2 h) for 1 - h < y z < 1, and 1 - y z - h/2 below
    (Rennie and Srebro 2005, for h = 1).

    Parameters
    ----------
    h : float, default=1.0
        Width of the quadratic part; positive and finite, and so is 1/h.
    """

    h: float = 1.0

    name = "smoothed_hinge"
    task = "classification"
    lipschitz = 1.0

    def __post_init__(self) -> None:
        h = positive("h", self.h)
        if math.isinf(1.0 / h):
            raise ValueError(f"h is {h!r}; it must be large enough for 1/h to be finite")
        object.__setattr__(self, "h", h)

    @property
    def smoothness(self) -> float:
        """The curvature of the quadratic part."""
        return 1.0 / self.h


@dataclass(frozen=True)
class SquaredHinge(Loss):
    """phi(y, z) = max(0, 1 - y z)^2 / 2."""

    name = "squared_hinge"
    task = "classification"
    lipschitz = math.inf
    smoothness = 1.0


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss for loss in (Logistic, Squared, Huber, SmoothedHinge, SquaredHinge)
}


def get_loss(loss: str | Loss) -> Loss:
    """The loss object behind what a user passes as ``loss=``.

    Parameters
    ----------
    loss : str or Loss
        A name in `LOSSES`, which stands for the loss with its default parameters, or a loss object,
        which is returned as it is.

    Raises
    ------
    ValueError
        When the name is unknown; the message lists the known ones.
    TypeError
        When `loss` is neither a name nor a loss object.
    """
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(f"loss is {loss!r}; it must be a name or an instance of dpkern.losses.Loss")
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}; it must be one of {', '.join(LOSSES)}")
    return LOSSES[loss]()
