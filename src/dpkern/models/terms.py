"""Base classes of penalties: a term, which is strength times g(x), and a sum of terms."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import not_negative
from dpkern._typing import FloatArray


class Penalty(ABC):
    """A penalty, a constraint, or a sum of them (`PenaltySum`); penalties add with ``+``."""

    @property
    @abstractmethod
    def terms(self) -> tuple["Term", ...]:
        """The terms of the sum."""

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

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
        The terms of the sum.
    """

    terms: tuple["Term", ...] = ()


@dataclass(frozen=True, eq=False)
class Term(Penalty):
    """A single penalty, strength times g(x); other fields of a subclass are parameters of g.

    Terms are equal if their class, strengths and parameters are.

    Attributes
    ----------
    name : str
        Key in `PENALTIES` or `SMOOTH`.
    strength : float
        Factor of g; 1 for a constraint.
    convex : bool
        Whether g is convex. A convex g has a nonexpansive prox.
    separable : bool
        Whether g is a sum over coordinates, so that its prox is computed for each of them.
    """

    name: ClassVar[str]
    convex: ClassVar[bool] = True
    separable: ClassVar[bool] = False
    strength: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "strength", not_negative("strength", self.strength))

    @property
    def terms(self) -> tuple["Term", ...]:
        """The term itself."""
        return (self,)

    @cached_property
    def params(self) -> FloatArray:
        """Parameters in the layout of ``prox.h``; at least one number."""
        return np.array([*self.parameters.values()] or [0.0], dtype=np.float64)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of g by name, without the strength."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "strength"}

    @property
    def size(self) -> int | None:
        """Number of coordinates d of x; None if it is arbitrary."""
        return None

    @property
    def largest_gamma(self) -> float:
        """The largest gamma for which the prox of g has exactly one value at every v.

        It is ``inf`` for a convex g, and otherwise -1 / c with the smallest curvature c < 0 of g:
        gamma g(x) + |x - v|^2 / 2 is strictly convex in x for gamma < -1 / c. For larger gamma some
        supporting hyperplane touches the graph of gamma g + |x|^2 / 2 twice, and its slope is a v
        with two minimisers.
        """
        return math.inf if self.convex else -1.0 / self.strong_convexity

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """Smallest curvature of g: the largest c for which g - c |x|^2 / 2 is convex."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient of g; ``inf`` if g is not smooth."""

    @abstractmethod
    def __call__(self, x: FloatArray) -> float:
        """Return g(x), x of shape (d,); for a constraint 0 or, beyond `FEASIBLE`, infinity."""

    def __str__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        texts = [f"{given.pop('strength'):g}"] if "strength" in given else []
        texts += [f"{k}={np.array2string(np.asarray(v), threshold=8)}" for k, v in given.items()]
        return f"{type(self).__name__}({', '.join(texts)})"

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
    """Return a number or a vector as an array of shape (k,) without NaN."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or array.ndim > 1 or not array.size:
        raise TypeError(f"{name} must be a number or a vector of numbers, got {value!r}")
    if np.isnan(array).any():
        raise ValueError(f"{name} must not be NaN")
    return np.atleast_1d(array.astype(np.float64))


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
