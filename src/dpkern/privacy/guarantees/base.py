"""Guarantees of certificates: delta as a function of epsilon.

`GaussianDP` and `ConcentratedDP` are here; `dpkern.privacy.guarantees.selection` and
`dpkern.privacy.guarantees.objective_perturbation` hold those that have neither mu nor rho.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import not_negative, positive, probability
from dpkern.privacy.guarantees.gdp import gdp_delta_upper, gdp_epsilon
from dpkern.privacy.guarantees.rounding import bisect, round_up
from dpkern.privacy.guarantees.zcdp import zcdp_delta, zcdp_epsilon

#: Total variation distance of one draw from the rounded real Gaussian.
DRAW_ERROR = 2.0**-100


#: All guarantees by name.
GUARANTEES: dict[str, "type[Guarantee]"] = {}


@dataclass(frozen=True, kw_only=True)
class Guarantee(ABC):
    """A guarantee for exact noise, as delta at every epsilon."""

    name: ClassVar[str]  #: the guarantee's name in files
    word: ClassVar[str] = ""  #: what a report calls it where it has neither mu nor rho

    def __init_subclass__(cls) -> None:
        GUARANTEES[cls.name] = cls

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return a delta for which (epsilon, delta)-DP holds, rounded up and at most 1."""

    @abstractmethod
    def group(self, r: int) -> Self:
        """Return the guarantee for r records."""

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon with `self.delta(epsilon)` <= delta; infinity if none."""
        delta, high = probability("delta", delta), 1.0
        if self.delta(0.0) <= delta:
            return 0.0
        while self.delta(high) > delta:
            high *= 2.0
            if high > 1e300:
                return math.inf
        return bisect(lambda epsilon: self.delta(epsilon) <= delta, 0.0, high)[1]

    def turning_point(self, error: float) -> float:
        """Return an epsilon beyond which delta + (1 + exp(epsilon)) error may grow, error > 0.

        Any value is valid. This one, where the correction equals delta, has at most twice the
        least sum.
        """
        high = 1.0 - math.log(error)
        return bisect(lambda e: self.delta(e) <= error * math.exp(e), 0.0, high)[1]


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


#: What stands for no guarantee.
NO_GUARANTEE = GaussianDP(mu=math.inf)
