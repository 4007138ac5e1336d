"""What a guarantee of a certificate is: delta as a function of epsilon.

`GaussianDP` is in `gdp`, `ConcentratedDP` in `zcdp`; `selection` and `objective_perturbation` hold
those that have neither mu nor rho.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from dpkern._numbers import probability
from dpkern.privacy.guarantees.rounding import bisect

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
