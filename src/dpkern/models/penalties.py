"""Penalties and constraints: strengths, parameters and constants.

A penalty is its strength times g(x). ``L1(0.1)`` is 0.1 |x|_1, ``L2(1e-3) + L1(1e-4)`` is a sum,
and ``Simplex()`` a constraint, which has no strength. Solvers use a penalty either

- through its prox (`PENALTIES`): ``kernels.prox(penalty, v, gamma)`` is
  argmin_x gamma strength g(x) + |x - v|^2 / 2; for a constraint g is the indicator function of the
  set, and the prox is the projection, for any gamma;
- or through its gradient (`SMOOTH`): g(x) = f(|x|) is differentiable, and local runs and solvers
  add strength f'(|x|) / |x| x to the gradient of the data, even if g has a prox as well.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern._numbers import positive, real
from dpkern.models.terms import FloatArray, Penalty, Term, read_only, vector

__all__ = [
    "L1",
    "L2",
    "PENALTIES",
    "PL",
    "Box",
    "Constraint",
    "ElasticNet",
    "GroupLasso",
    "L2Ball",
    "NonNegative",
    "Penalty",
    "Simplex",
    "SmoothPenalty",
    "Term",
    "get_penalty",
    "make_penalty",
]

#: Feasibility tolerance, relative to the size of the constraint; computed projections are within
#: d 2^-52.
FEASIBLE = 1e-9

_LARGEST_GROUP = (1 << 31) - 1


@dataclass(frozen=True, eq=False)
class L1(Term):
    """g(x) = |x|_1; prox: soft thresholding (Parikh and Boyd 2014, section 6.5.2).

    Parameters
    ----------
    strength : float, default=1.0
        Factor of g, finite and at least 0.
    """

    name = "l1"
    separable = True
    strong_convexity = 0.0
    smoothness = math.inf

    def __call__(self, x: FloatArray) -> float:
        return float(np.sum(np.abs(x)))


@dataclass(frozen=True, eq=False)
class L2(Term):
    """g(x) = |x|^2 / 2; prox: v / (1 + gamma).

    Parameters
    ----------
    strength : float, default=1.0
        Factor of g, finite and at least 0.
    """

    name = "l2_squared"
    separable = True
    strong_convexity = 1.0
    smoothness = 1.0

    def __call__(self, x: FloatArray) -> float:
        return 0.5 * float(np.sum(x**2))


@dataclass(frozen=True, eq=False)
class ElasticNet(Term):
    """g(x) = l1_ratio |x|_1 + (1 - l1_ratio) |x|^2 / 2 (Zou and Hastie 2005).

    Parameters
    ----------
    strength : float, default=1.0
        Factor of g, finite and at least 0.
    l1_ratio : float, default=0.5
        Share of the l1 norm, between 0 and 1, as in scikit-learn.
    """

    l1_ratio: float = 0.5

    name = "elastic_net"
    separable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        value = real("l1_ratio", self.l1_ratio)
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"l1_ratio must lie in [0, 1], got {value!r}")
        object.__setattr__(self, "l1_ratio", value)

    @property
    def strong_convexity(self) -> float:
        """The share of the squared norm, which is the smallest curvature."""
        return 1.0 - self.l1_ratio

    @property
    def smoothness(self) -> float:
        """1 without the l1 norm, else ``inf``."""
        return 1.0 if self.l1_ratio == 0.0 else math.inf

    def __call__(self, x: FloatArray) -> float:
        return self.l1_ratio * L1()(x) + (1.0 - self.l1_ratio) * L2()(x)


@dataclass(frozen=True, eq=False)
class GroupLasso(Term):
    """g(x) = sum_g weight_g |x_g| over consecutive groups (Yuan and Lin 2006, equation 2.1).

    Prox: block soft thresholding of every group by gamma weight_g.

    Parameters
    ----------
    strength : float, default=1.0
        Factor of g, finite and at least 0.
    groups : array_like of int
        Sizes of the groups, in order; their sum is d.
    weights : array_like, optional
        One weight >= 0 per group, by default 1. Yuan and Lin take the square roots of the sizes.
    """

    groups: ArrayLike = field(kw_only=True)
    weights: ArrayLike | None = field(default=None, kw_only=True)

    name = "group_lasso"
    strong_convexity = 0.0
    smoothness = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = np.asarray(self.groups)
        if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or not sizes.size or sizes.min() < 1:
            raise ValueError(
                f"groups must be the sizes of one group or more, integers >= 1, got {self.groups!r}"
            )
        if sizes.max() > _LARGEST_GROUP:  # so that their sum is exact
            raise ValueError(f"groups must be below 2^31 each, got {int(sizes.max())}")
        if self.weights is None:
            weights = np.ones(sizes.size)
        else:
            weights = vector("weights", self.weights)
            if weights.shape != sizes.shape or not np.all((weights >= 0.0) & (weights < math.inf)):
                raise ValueError(
                    f"weights must be {sizes.size} finite numbers >= 0, one a group, "
                    f"got {self.weights!r}"
                )
        object.__setattr__(self, "groups", read_only(sizes.astype(np.int64)))
        object.__setattr__(self, "weights", read_only(weights))

    @cached_property
    def params(self) -> FloatArray:
        """The number of groups, their sizes and their weights."""
        sizes, weights = np.asarray(self.groups), np.asarray(self.weights)
        return np.concatenate([[sizes.size], sizes, weights], dtype=np.float64)

    @property
    def size(self) -> int:
        """The sum of the groups' sizes."""
        return int(np.sum(self.groups))

    def __call__(self, x: FloatArray) -> float:
        sizes = np.asarray(self.groups)
        norms = np.sqrt(np.add.reduceat(np.square(x), np.cumsum(sizes) - sizes))
        return float(norms @ np.asarray(self.weights))


@dataclass(frozen=True, eq=False)
class SmoothPenalty(Term):
    """A differentiable g(x) = f(|x|) with 0 <= f'(r) / r <= `smoothness` for every r."""

    def __call__(self, x: FloatArray) -> float:
        return self.value(float(np.linalg.norm(x)))

    @abstractmethod
    def value(self, r: float) -> float:
        """Return f(r), r >= 0."""

    @abstractmethod
    def coefficient(self, r: float) -> float:
        """Return f'(r) / r, or its limit at r = 0, so that the gradient of g is this times x."""


@dataclass(frozen=True, eq=False)
class PL(SmoothPenalty):
    """g(x) = |x|^2 + 3 sin^2 |x|: not convex, but every stationary point is the minimum 0.

    It satisfies the Polyak-Lojasiewicz inequality |g'|^2 / 2 >= g / 32 (Karimi, Nutini, Schmidt
    2016, section 2.2). The eigenvalues of its Hessian are f''(r) = 2 + 6 cos 2r and f'(r) / r. The
    prox (Kang et al. use the gradient) is s v / |v| with s + gamma f'(s) = |v|, whose left side is
    increasing for gamma <= 1/4.

    Parameters
    ----------
    strength : float, default=1.0
        Factor of g, finite and at least 0.
    """

    name = "pl"
    convex = False
    strong_convexity = -4.0
    smoothness = 8.0

    def value(self, r: float) -> float:
        """Return r^2 + 3 sin^2 r."""
        return r * r + 3.0 * math.sin(r) ** 2

    def coefficient(self, r: float) -> float:
        """Return 2 + 3 sin(2 r) / r."""
        return 2.0 + 3.0 * math.sin(2.0 * r) / r if r > 0.0 else 8.0


@dataclass(frozen=True, eq=False)
class Constraint(Term):
    """A convex set: g is its indicator function, and the prox is the projection onto it."""

    strength: float = field(default=1.0, init=False)
    strong_convexity = 0.0
    smoothness = math.inf

    @abstractmethod
    def violation(self, x: FloatArray) -> float:
        """Return the constraint violation of x relative to the size of the set; 0 inside."""

    def __call__(self, x: FloatArray) -> float:
        return 0.0 if self.violation(x) <= FEASIBLE else math.inf


@dataclass(frozen=True, eq=False)
class L2Ball(Constraint):
    """The constraint |x| <= radius; the prox is the projection.

    Parameters
    ----------
    radius : float, default=1.0
        Finite and above 0. Computed projections have norm at most (1 + (d / 32 + 8) 2^-53) radius.
    """

    radius: float = 1.0

    name = "l2_ball"

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", positive("radius", self.radius))

    def violation(self, x: FloatArray) -> float:
        """Return max(0, |x| - radius) / radius."""
        return max(0.0, float(np.linalg.norm(x / self.radius)) - 1.0)


@dataclass(frozen=True, eq=False)
class Box(Constraint):
    """The constraint lower <= x <= upper elementwise; computed projections are exactly feasible.

    Parameters
    ----------
    lower, upper : float or array_like, shape (d,), default=0.0 and 1.0
        Bounds with lower <= upper; -inf as lower or inf as upper means no bound.
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
        """The number of bounds, the lower bounds and the upper bounds."""
        lower, upper = np.ravel(self.lower), np.ravel(self.upper)
        return np.concatenate([[lower.size], lower, upper], dtype=np.float64)

    @property
    def size(self) -> int | None:
        """Number of bounds; None if both are single numbers."""
        return len(self.lower) if isinstance(self.lower, np.ndarray) else None

    def violation(self, x: FloatArray) -> float:
        """Return the largest violation of a bound b, relative to max(|b|, 1)."""
        nearest = np.clip(x, self.lower, self.upper)
        return float(np.max(np.abs(x - nearest) / np.maximum(np.abs(nearest), 1.0), initial=0.0))


@dataclass(frozen=True, eq=False)
class NonNegative(Constraint):
    """The constraint x >= 0 elementwise, without parameters; projections are exactly feasible."""

    name = "non_negative"
    separable = True

    def violation(self, x: FloatArray) -> float:
        """Return the largest distance of an entry below 0."""
        return float(np.max(-x, initial=0.0))


@dataclass(frozen=True, eq=False)
class Simplex(Constraint):
    """The constraint x >= 0, sum x = total; projection after Duchi et al. 2008, Michelot 1986.

    Parameters
    ----------
    total : float, default=1.0
        Between 2^-900 and 2^900. Computed projections have entries >= 0 and the sum `total` up to
        d 2^-52 total.
    """

    total: float = 1.0

    name = "simplex"

    def __post_init__(self) -> None:
        total = real("total", self.total)
        if not 2.0**-900 <= total <= 2.0**900:
            raise ValueError(f"total must lie between 2^-900 and 2^900, got {total!r}")
        object.__setattr__(self, "total", total)

    def violation(self, x: FloatArray) -> float:
        """Return the larger violation of the two conditions, relative to the total."""
        off = abs(float(np.sum(x)) - self.total)
        return max(off, float(np.max(-x, initial=0.0))) / self.total


#: Penalties with a compiled prox.
PENALTIES: dict[str, type[Term]] = {
    penalty.name: penalty
    for penalty in (
        *(L1, L2, ElasticNet, GroupLasso, PL),
        *(L2Ball, Box, NonNegative, Simplex),
    )
}

#: Penalties that solvers use through their gradient.
SMOOTH: dict[str, type[SmoothPenalty]] = {PL.name: PL}


def make_penalty(name: str, parameters: Mapping[str, Any], argument: str = "penalty") -> Term:
    """Return the penalty of this name and these parameters; errors about it name `argument`."""
    known = PENALTIES | SMOOTH
    if name not in known:
        raise ValueError(f"{argument} must be one of {', '.join(known)}, got {name!r}")
    takes = {f.name: f for f in fields(known[name]) if f.init}
    for parameter in parameters:
        if parameter not in takes:
            raise TypeError(
                f"{name} has no parameter {parameter!r}; it takes {', '.join(takes) or 'none'}"
            )
    for f in takes.values():
        if f.default is MISSING and f.name not in parameters:
            raise TypeError(f"{name} needs the parameter {f.name}")
    return known[name](**parameters)


def get_penalty(penalty: str | Term, argument: str = "penalty") -> Term:
    """Return a penalty given by name, with default parameters, or as a Term."""
    if isinstance(penalty, Term):
        return penalty
    if not isinstance(penalty, str):
        raise TypeError(f"{argument} must be a name or a Term, got {penalty!r}")
    return make_penalty(penalty, {}, argument)
