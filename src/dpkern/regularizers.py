"""Regularisers: names, parameters and bounds of what the compiled tables compute.

A regulariser g has unit strength here; the caller scales it. It acts in one of two ways:

- by its prox (`REGULARIZERS`): ``kernels.prox(name, v, gamma, **parameters)`` is
  argmin_x gamma g(x) + |x - v|^2 / 2, gamma a step size times a strength;
- by its gradient (`SMOOTH`): g(x) = f(|x|) is differentiable, and local runs and solvers add
  strength f'(|x|) / |x| x to the gradient of the data.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

from dpkern._numbers import real


@dataclass(frozen=True)
class Regularizer(ABC):
    """A regulariser g; the fields of a subclass are its parameters, in the order in which C reads.

    Attributes
    ----------
    name : str
        The key in `REGULARIZERS` or `SMOOTH`.
    convex : bool
        Whether g is convex. A convex g has a non-expansive prox, so that it adds no factor to a
        contraction bound.
    """

    name: ClassVar[str]
    convex: ClassVar[bool] = True

    @property
    def params(self) -> tuple[float, ...]:
        """Parameters as handed to C."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def parameters(self) -> dict[str, float]:
        """Parameters by name, as ``kernels.prox`` takes them."""
        return asdict(self)

    @property
    @abstractmethod
    def strong_convexity(self) -> float:
        """Smallest curvature: the largest c, below 0 without convexity, for which
        g - c |x|^2 / 2 is convex.
        """

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient of g; ``inf`` where g has a kink."""


@dataclass(frozen=True)
class L1(Regularizer):
    """g(x) = |x|_1."""

    name = "l1"
    strong_convexity = 0.0
    smoothness = math.inf


@dataclass(frozen=True)
class L2Squared(Regularizer):
    """g(x) = |x|^2 / 2."""

    name = "l2_squared"
    strong_convexity = 1.0
    smoothness = 1.0


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """g(x) = l1_ratio |x|_1 + (1 - l1_ratio) |x|^2 / 2 (Zou and Hastie 2005).

    Parameters
    ----------
    l1_ratio : float, default=0.5
        Share of the l1 norm, between 0 and 1; scikit-learn's parameter.
    """

    l1_ratio: float = 0.5

    name = "elastic_net"

    def __post_init__(self) -> None:
        value = real("l1_ratio", self.l1_ratio)
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"l1_ratio is {value!r}; it must be between 0 and 1")
        object.__setattr__(self, "l1_ratio", value)

    @property
    def strong_convexity(self) -> float:
        """The share of the squared norm."""
        return 1.0 - self.l1_ratio

    @property
    def smoothness(self) -> float:
        """Finite only where the l1 norm is absent."""
        return 1.0 if self.l1_ratio == 0.0 else math.inf


@dataclass(frozen=True)
class SmoothRegularizer(Regularizer):
    """A differentiable g(x) = f(|x|) with 0 <= f'(r) / r <= `smoothness` for every r."""

    @abstractmethod
    def value(self, r: float) -> float:
        """f(r), r >= 0."""

    @abstractmethod
    def coefficient(self, r: float) -> float:
        """f'(r) / r, so that the gradient of g is this times x; its limit at r = 0."""


@dataclass(frozen=True)
class PL(SmoothRegularizer):
    """g(x) = |x|^2 + 3 sin^2 |x|: not convex, but every stationary point is the minimum 0.

    With |g'|^2 / 2 >= g / 32, the Polyak-Lojasiewicz inequality (Karimi, Nutini, Schmidt 2016,
    section 2.2). The eigenvalues of its Hessian are f''(r) = 2 + 6 cos 2r and f'(r) / r.
    """

    name = "pl"
    convex = False
    strong_convexity = -4.0
    smoothness = 8.0

    def value(self, r: float) -> float:
        """r^2 + 3 sin^2 r."""
        return r * r + 3.0 * math.sin(r) ** 2

    def coefficient(self, r: float) -> float:
        """2 + 3 sin(2 r) / r."""
        return 2.0 + 3.0 * math.sin(2.0 * r) / r if r > 0.0 else 8.0


#: Those with a compiled prox.
REGULARIZERS: dict[str, type[Regularizer]] = {
    regularizer.name: regularizer for regularizer in (L1, L2Squared, ElasticNet)
}

#: Those that act by their gradient.
SMOOTH: dict[str, type[SmoothRegularizer]] = {PL.name: PL}


def get_regularizer(regularizer: str | Regularizer) -> Regularizer:
    """The regulariser behind a name, which stands for its default parameters, or behind itself.

    Raises
    ------
    ValueError
        When the name is unknown; the message lists the known ones.
    TypeError
        When it is neither a name nor a Regularizer.
    """
    if isinstance(regularizer, Regularizer):
        return regularizer
    if not isinstance(regularizer, str):
        raise TypeError(f"a regularizer is a name or a Regularizer, got {regularizer!r}")
    known = REGULARIZERS | SMOOTH
    if regularizer not in known:
        raise ValueError(
            f"the regularizer is {regularizer!r}; it must be one of {', '.join(known)}"
        )
    return known[regularizer]()


def get_smooth(regularizer: str | Regularizer) -> SmoothRegularizer:
    """The same for one that acts by its gradient.

    Raises
    ------
    TypeError, ValueError
        As `get_regularizer`, and when it acts by its prox; the message lists the smooth ones.
    """
    found = get_regularizer(regularizer)
    if not isinstance(found, SmoothRegularizer):
        raise ValueError(
            f"regularizer is {found.name!r}, which acts by its prox; it must be a smooth one: "
            f"{', '.join(SMOOTH)} (l2 and l1 are parameters of their own)"
        )
    return found
