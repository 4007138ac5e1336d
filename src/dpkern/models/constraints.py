"""Constraints: convex sets, whose prox is the projection onto them."""

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import positive, real
from dpkern.models.terms import Term, read_only, vector

FloatArray = NDArray[np.float64]

#: How far from a constraint, relative to its size, a point still counts as feasible: computed
#: projections are within d 2^-52.
FEASIBLE = 1e-9


@dataclass(frozen=True, eq=False)
class Constraint(Term):
    """A convex set: g is 0 on it and infinite elsewhere, the prox the projection onto it."""

    strength: float = field(default=1.0, init=False)
    strong_convexity = 0.0
    smoothness = math.inf

    @abstractmethod
    def violation(self, x: FloatArray) -> float:
        """How far x lies outside, relative to the size of what bounds it; 0 inside."""

    def __call__(self, x: FloatArray) -> float:
        """0, or infinity where the violation exceeds `FEASIBLE`."""
        return 0.0 if self.violation(x) <= FEASIBLE else math.inf


@dataclass(frozen=True, eq=False)
class L2Ball(Constraint):
    """|x| <= radius.

    Parameters
    ----------
    radius : float, default=1.0
        Finite and above 0. Computed projections are no longer than (1 + (d / 32 + 8) 2^-53) radius.
    """

    radius: float = 1.0

    name = "l2_ball"

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("radius", self.radius))

    def violation(self, x: FloatArray) -> float:
        """(|x| - radius) / radius."""
        return max(0.0, float(np.linalg.norm(x / self.radius)) - 1.0)


@dataclass(frozen=True, eq=False)
class Box(Constraint):
    """lower <= x <= upper, coordinate by coordinate; computed projections lie inside exactly.

    Parameters
    ----------
    lower, upper : float or array_like, shape (d,), default=0.0 and 1.0
        lower <= upper; -inf below or inf above is no bound.
    """

    lower: ArrayLike = 0.0
    upper: ArrayLike = 1.0

    name = "box"
    separable = True

    def __post_init__(self) -> None:
        lower, upper = vector("lower", self.lower), vector("upper", self.upper)
        if lower.size != upper.size and 1 not in (lower.size, upper.size):
            raise ValueError(
                f"lower and upper must be numbers or have one length, got {lower.size} and "
                f"{upper.size}"
            )
        if not (np.all(lower <= upper) and np.all(lower < math.inf) and np.all(upper > -math.inf)):
            raise ValueError("lower must be at most upper, lower below inf and upper above -inf")
        if np.ndim(self.lower) == np.ndim(self.upper) == 0:
            object.__setattr__(self, "lower", float(lower[0]))
            object.__setattr__(self, "upper", float(upper[0]))
            return
        lower, upper = np.broadcast_arrays(lower, upper)
        object.__setattr__(self, "lower", read_only(lower.copy()))
        object.__setattr__(self, "upper", read_only(upper.copy()))

    @cached_property
    def params(self) -> FloatArray:
        """The number of lower bounds, these, and the upper ones."""
        lower, upper = np.ravel(self.lower), np.ravel(self.upper)
        return np.concatenate([[lower.size], lower, upper], dtype=np.float64)

    @property
    def size(self) -> int | None:
        """The number of bounds; None of a pair of numbers."""
        return len(self.lower) if isinstance(self.lower, np.ndarray) else None

    def violation(self, x: FloatArray) -> float:
        """The largest distance from a bound, relative to it where that is beyond 1."""
        nearest = np.clip(x, self.lower, self.upper)
        return float(np.max(np.abs(x - nearest) / np.maximum(np.abs(nearest), 1.0), initial=0.0))


@dataclass(frozen=True, eq=False)
class NonNegative(Constraint):
    """x >= 0, coordinate by coordinate; computed projections lie inside exactly."""

    name = "non_negative"
    separable = True

    def violation(self, x: FloatArray) -> float:
        """The largest distance below 0."""
        return float(np.max(-x, initial=0.0))


@dataclass(frozen=True, eq=False)
class Simplex(Constraint):
    """x >= 0 and sum x = total; projection after Duchi et al. 2008 and Michelot 1986.

    Parameters
    ----------
    total : float, default=1.0
        Between 2^-900 and 2^900. Computed projections have entries >= 0 and the sum up to
        d 2^-52 total.
    """

    total: float = 1.0

    name = "simplex"

    def __post_init__(self) -> None:
        total = real("total", self.total)
        if not 2.0**-900 <= total <= 2.0**900:
            raise ValueError(f"total is {total!r}; it must be between 2^-900 and 2^900")
        object.__setattr__(self, "total", total)

    def violation(self, x: FloatArray) -> float:
        """The larger of both, relative to the total."""
        off = abs(float(np.sum(x)) - self.total)
        return max(off, float(np.max(-x, initial=0.0))) / self.total
