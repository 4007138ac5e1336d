"""What every penalty is: a term strength g(x), or a sum of terms."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import not_negative

FloatArray = NDArray[np.float64]


class Penalty(ABC):
    """A penalty, a constraint, or a sum of them (`PenaltySum`); penalties add with ``+``."""

    @property
    @abstractmethod
    def terms(self) -> tuple["Term", ...]:
        """The penalties that this one is the sum of."""

    def __add__(self, other: object) -> "PenaltySum":
        if not isinstance(other, Penalty):
            return NotImplemented
        return PenaltySum((*self.terms, *other.terms))


@dataclass(frozen=True)
class PenaltySum(Penalty):
    """The sum of several penalties.

    Parameters
    ----------
    terms : tuple of Term
        Its terms.
    """

    terms: tuple["Term", ...] = ()


@dataclass(frozen=True, eq=False)
class Term(Penalty):
    """One penalty strength g; the other fields of a subclass are its parameters.

    Two are equal when they are of one class and have equal strengths and parameters.

    Attributes
    ----------
    name : str
        The key in `PENALTIES` or `SMOOTH`.
    strength : float
        What g is multiplied by; 1 for a constraint.
    convex : bool
        Whether g is convex. A convex g has a non-expansive prox, so that it adds no factor to a
        contraction bound.
    separable : bool
        Whether g is a sum over coordinates, so that its prox takes them one by one.
    """

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False
    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", not_negative("strength", self.strength))

    @property
    def terms(self) -> tuple["Term", ...]:
        """Itself."""
        return (self,)

    @cached_property
    def params(self) -> FloatArray:
        """Parameters as C reads them, in the layout that ``prox.h`` states; at least one number."""
        return np.array([*self.parameters.values()] or [0.0], dtype=np.float64)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of g by name, as ``kernels.prox`` takes them; the strength is none of them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "strength"}

    @property
    def size(self) -> int | None:
        """Coordinates d of the points that g takes; None where they may be any number."""
        return None

    @property
    def largest_gamma(self) -> float:
        """Up to it, and no further, gamma g(x) + |x - v|^2 / 2 has one minimiser for every v.

        The sum is strictly convex for gamma c > -1, c the smallest curvature of g. Where
        gamma g + |x|^2 / 2 is not convex, a line that supports it touches it twice: two minimisers,
        for the v that is its slope.
        """
        return math.inf if self.convex else -1.0 / self.strong_convexity

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """Smallest curvature: the largest c, below 0 without convexity, for which
        g - c |x|^2 / 2 is convex; 0 for a constraint.
        """

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient of g; ``inf`` where g has a kink or is infinite."""

    @abstractmethod
    def __call__(self, x: FloatArray) -> float:
        """g(x), x of shape (d,); a constraint is 0 up to `FEASIBLE` outside, then infinite."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Term)
            and type(other) is type(self)
            and other.strength == self.strength
            and np.array_equal(other.params, self.params)
        )

    def __hash__(self) -> int:
        return hash((self.name, self.strength, self.params.tobytes()))


def vector(name: str, value: ArrayLike) -> FloatArray:
    """`value` as numbers of shape (k,), none of them NaN; one number has k = 1."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim > 1 or not array.size:
        raise TypeError(f"{name} must be a number or a vector of numbers, got {value!r}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not be NaN")
    return np.atleast_1d(array.astype(np.float64))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
