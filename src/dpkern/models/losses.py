"""Margin losses: names, parameters and constants of the compiled loss table.

A loss is a function phi(y, z) of the label y and the margin z = x.w (+ intercept). The formulas are
in the C loss table and in the NumPy reference implementations; this module has the properties that
solvers and certificates need. Bounds are over all real z and all labels that the loss's task
allows, and derivatives are with respect to z.
"""

import ctypes
import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, Field, asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import not_negative, positive, real
from dpkern._typing import FloatArray

__all__ = [
    "ESTIMATED",
    "LOSSES",
    "BinaryLikelihood",
    "ComplementaryLogLog",
    "Custom",
    "Gamma",
    "Huber",
    "Likelihood",
    "LogLink",
    "Logistic",
    "Loss",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "SmoothedHinge",
    "Squared",
    "SquaredHinge",
    "get_loss",
]


# Bounds of margins whose exponentials, and these times targets, are ordinary numbers.
_FAR_MARGIN = 300.0


class Loss(ABC):
    """A margin loss; the fields of a subclass are its parameters, in the order of the C code.

    Attributes
    ----------
    name : str
        Key in `LOSSES`, accepted as ``loss=``.
    task : {"classification", "regression"}
        Classification losses need labels -1 and +1; regression losses accept any real label.
    log_link : bool
        Whether exp(z) is the mean of the label, which is then at least 0.
    convex : bool
        Whether phi is convex in z. Clipping per-record gradients keeps a convex loss convex, and
        bounds the gradient of any loss: convexity matters for utility, not for privacy, except for
        hidden local steps and for objective perturbation.
    kappa : float
        Error bound of the computed derivative: it is within kappa 2^-53 |phi'(y, z)| + 2^-1020 of
        the true one for the doubles y and z, on every instruction set; ``inf`` if rounded terms
        cancel, so that there is no bound. Hidden local steps and objective perturbation need a
        finite one.

    Notes
    -----
    Derivation of kappa: one rounding has a relative error of at most u/(1 + u), u = 2^-53, and the
    product of k of them an error below k u. Products by y = -1 or 1 are exact.

    - squared, huber, squared_hinge: the only rounding is in z - y, or 1 - y z; clamping to an exact
      bound does not increase a relative error. kappa = 1.
    - smoothed_hinge: in addition the division by h is rounded. kappa = 2.
    - logistic: with t = y z and e = exp(-|t|) the derivative is -y e q or -y q, q = 1/(1 + e). The
      computed e has relative error x <= 1.9 u (``vmath.h``; 2^-1020 covers |t| > 708, where e is
      exp(-708)). It contributes x e/(1 + e) to q, and 1 + e and the quotient are rounded: below
      3 u. It contributes x/(1 + e) to e q, and the product is rounded too: below 5 u. kappa = 5.
    - cloglog: of a negative label the derivative is exp(z), below 2 u. Of a positive one it is h /
      (exp(h) - 1), h = exp(z) <= exp(4): 1.9 u of h is 1.9 (1 + h) u of the quotient at most, and
      exp(h) - 1 loses 3.1 u, the reciprocal and the product 1 u each. kappa = 112.
    - probit: with t = y z the derivative is phi / Phi. For t < 0 it is a quotient by a polynomial
      with a condition below 2, within 20 u. For t >= 0 the square in exp(-t^2 / 2) loses 2^-44 =
      512 u where t^2 is above 1024, and all else is below 18 u. kappa = 530.
    - poisson, gamma, negative_binomial: the label is subtracted from a rounded number, so that
      kappa is infinite.
    """

    name: str
    task: str
    log_link: bool = False
    convex: bool = True
    kappa: float
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def params(self) -> tuple[float, ...]:
        """Parameters for the C code."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def declaration(self) -> dict[str, Any]:
        """Name and parameters, for results and certificates."""
        return {"name": self.name, **asdict(self)}

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """Supremum of the absolute first derivative; ``inf`` if it is unbounded."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """Supremum of the absolute second derivative; ``inf`` if it is unbounded."""


class Likelihood(Loss):
    """The negative log-likelihood of a model with bounded derivatives, 0 <= phi''.

    With these bounds, and what a subclass states here, its coefficients have standard errors.

    Attributes
    ----------
    ratio : str
        What the exponential of a coefficient is; empty where it is nothing.
    """

    ratio: ClassVar[str] = ""

    @abstractmethod
    def information(self, mean: float) -> float:
        """Return the mean of phi'' where targets have this mean, or labels this share of 1."""


class BinaryLikelihood(Likelihood):
    """That of labels, by the probability of a positive one."""

    task = "classification"

    @staticmethod
    @abstractmethod
    def probability(z: FloatArray) -> FloatArray:
        """Return the probabilities of positive labels at these margins."""


@dataclass(frozen=True)
class Logistic(BinaryLikelihood):
    """phi(y, z) = log(1 + exp(-y z))."""

    name = "logistic"
    kappa = 5.0
    lipschitz = 1.0
    smoothness = 0.25
    ratio = "odds ratio"

    @staticmethod
    def probability(z: FloatArray) -> FloatArray:
        """Return 1 / (1 + exp(-z))."""
        return np.asarray(scipy.special.expit(z))

    def information(self, mean: float) -> float:
        """Return the variance of a label."""
        return mean * (1.0 - mean)


@dataclass(frozen=True)
class Squared(Loss):
    """phi(y, z) = (z - y)^2 / 2."""

    name = "squared"
    task = "regression"
    kappa = 1.0
    lipschitz = math.inf
    smoothness = 1.0


@dataclass(frozen=True)
class Huber(Loss):
    """The squared loss with linear tails (Huber 1964, section 4).

    phi(y, z) = r^2 / 2 for |r| <= delta and delta (|r| - delta/2) beyond, with r = z - y.

    Parameters
    ----------
    delta : float, default=1.0
        Threshold between the quadratic and the linear part; positive and finite.
    """

    delta: float = 1.0

    name = "huber"
    task = "regression"
    kappa = 1.0
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
    kappa = 2.0
    lipschitz = 1.0

    def __post_init__(self) -> None:
        h = positive("h", self.h)
        if math.isinf(1.0 / h):
            raise ValueError(f"h must be large enough for 1/h to be finite, got {h!r}")
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
    kappa = 1.0
    lipschitz = math.inf
    smoothness = 1.0


@dataclass(frozen=True)
class LogLink(Likelihood):
    """A loss of targets y >= 0 whose mean is exp(z), between public bounds of the log of means.

    Its derivative is that at the margin clamped to [low, high]; so the loss is a straight line
    beyond, stays convex, and has bounded derivatives. Targets outside [0, max_target] count as the
    nearest of these.

    Parameters
    ----------
    low, high : float, default=-8 and 4
        Public bounds of the log of a mean, low < high, within [-300, 300].
    max_target : float, default=inf
        Public bound of the targets; positive. A run with this loss, no argument of which was given,
        takes that of its data, and bounds of means from it (`of_targets`).
    """

    low: float = -8.0
    high: float = 4.0
    max_target: float = math.inf

    task = "regression"
    log_link = True
    kappa = math.inf
    # The largest mean over the least one where only a bound of the targets is known.
    _range_of_means: ClassVar[float] = 1000.0

    def __post_init__(self) -> None:
        low, high = real("low", self.low), real("high", self.high)
        if not -_FAR_MARGIN <= low < high <= _FAR_MARGIN:
            raise ValueError(
                f"low and high must satisfy -300 <= low < high <= 300, got {low!r} and {high!r}"
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        most = positive("max_target", self.max_target, or_infinite=True)
        object.__setattr__(self, "max_target", most)

    @classmethod
    def of_means(cls, mean_range: Any, max_target: float = math.inf) -> Self:
        """Return the loss of these bounds of means (lo, hi), 0 < lo < hi."""
        if not isinstance(mean_range, Sequence | np.ndarray) or len(mean_range) != 2:
            raise ValueError(f"mean_range must be a pair (lo, hi), got {mean_range!r}")
        lo, hi = (real("mean_range", bound) for bound in mean_range)
        if not 1e-100 <= lo < hi <= 1e100:
            raise ValueError(f"mean_range must have 0 < lo < hi, got {mean_range!r}")
        return cls(math.log(lo), math.log(hi), max_target)

    @classmethod
    def of_targets(cls, max_target: float) -> Self:
        """Return the loss of targets up to this bound, and of means from a part of it up to it."""
        high = min(math.log(positive("max_target", max_target)), _FAR_MARGIN)
        low = max(high - math.log(cls._range_of_means), -_FAR_MARGIN)
        return cls(low, max(high, low + 1.0), max_target)

    @property
    def middle(self) -> float:
        """The middle of the bounds of the log of means."""
        return 0.5 * (self.low + self.high)

    @property
    def typical_slope(self) -> float:
        """The size of the derivative at a mean in the middle."""
        return 1.0


@dataclass(frozen=True)
class Poisson(LogLink):
    """phi(y, z) = exp(z) - y z, of counts: the Poisson likelihood.

    The parameters are those of `LogLink`.
    """

    name = "poisson"
    ratio = "rate ratio"

    @property
    def lipschitz(self) -> float:
        """The larger one of exp(high) and the largest target less exp(low)."""
        return max(math.exp(self.high), self.max_target - math.exp(self.low))

    @property
    def smoothness(self) -> float:
        """The largest mean, exp(high)."""
        return math.exp(self.high) * (1.0 + 2.0**-50)

    @property
    def typical_slope(self) -> float:
        """The mean in the middle, and a fifth more; 1, that of a rare event, where this is less."""
        return max(1.0, 1.2 * math.exp(self.middle))

    def information(self, mean: float) -> float:
        """Return the mean."""
        return mean


@dataclass(frozen=True)
class Gamma(LogLink):
    """phi(y, z) = y exp(-z) + z, of costs or durations: the gamma likelihood, whatever its shape.

    The parameters are those of `LogLink`; `max_target` decides the smoothness.
    """

    name = "gamma"
    ratio = "ratio of means"
    _range_of_means = 100.0  # steps are short in proportion to it

    @property
    def lipschitz(self) -> float:
        """The larger one of 1 and the largest target in units of the least mean, less 1."""
        return max(1.0, self.smoothness - 1.0)

    @property
    def smoothness(self) -> float:
        """The largest target in units of the least mean, at least the least normal number."""
        most = self.max_target * math.exp(-self.low) * (1.0 + 2.0**-50)
        return max(most, sys.float_info.min)

    def information(self, mean: float) -> float:
        """Return 1, the mean of a target over its own."""
        return 1.0


@dataclass(frozen=True)
class NegativeBinomial(Likelihood):
    """phi(y, z) = (y + 1/a) log(1 + a exp(z)) - y z, of counts more dispersed than Poisson's.

    The variance of a count of mean m is m + a m^2. Targets outside [0, max_target] count as the
    nearest of these.

    Parameters
    ----------
    dispersion : float, default=1.0
        The public a, from 1e-6 to 1e6.
    max_target : float, default=inf
        Public bound of the counts; positive.
    """

    dispersion: float = 1.0
    max_target: float = math.inf

    name = "negative_binomial"
    task = "regression"
    log_link = True
    low, high = -_FAR_MARGIN, _FAR_MARGIN  # of the log of a mean, which has no bounds here
    typical_slope = 1.0
    ratio = "rate ratio"
    kappa = math.inf

    def __post_init__(self) -> None:
        a = positive("dispersion", self.dispersion)
        if not 1e-6 <= a <= 1e6:
            raise ValueError(f"dispersion must be from 1e-6 to 1e6, got {a!r}")
        object.__setattr__(self, "dispersion", a)
        most = positive("max_target", self.max_target, or_infinite=True)
        object.__setattr__(self, "max_target", most)

    @property
    def lipschitz(self) -> float:
        """The larger one of 1 / dispersion and the largest target."""
        return max(1.0 / self.dispersion, self.max_target)

    @property
    def smoothness(self) -> float:
        """A quarter of 1 / dispersion and the largest target."""
        return 0.25 * (1.0 / self.dispersion + self.max_target) * (1.0 + 2.0**-50)

    def information(self, mean: float) -> float:
        """Return the squared mean over the variance."""
        return mean / (1.0 + self.dispersion * mean)


@dataclass(frozen=True)
class ComplementaryLogLog(BinaryLikelihood):
    """-log P(y), P(1) = 1 - exp(-exp(z)): the complementary log-log link, of discrete hazards.

    exp(z) is the hazard within an interval, in proportional hazards. Of a negative label the loss
    is exp(z) up to z = high, and a straight line beyond.

    Parameters
    ----------
    high : float, default=1.0
        Public bound of the log of hazards, within [-300, 4].
    """

    high: float = 1.0

    name = "cloglog"
    kappa = 112.0
    ratio = "hazard ratio"

    def __post_init__(self) -> None:
        high = real("high", self.high)
        if not -_FAR_MARGIN <= high <= 4.0:
            raise ValueError(f"high must be within [-300, 4], got {high!r}")
        object.__setattr__(self, "high", high)

    @property
    def lipschitz(self) -> float:
        """The larger one of 1, for positive labels, and exp(high)."""
        return max(1.0, math.exp(self.high))

    @property
    def smoothness(self) -> float:
        """The larger one of 0.4126, for positive labels, and exp(high)."""
        return max(0.4126, math.exp(self.high) * (1.0 + 2.0**-50))

    @staticmethod
    def probability(z: FloatArray) -> FloatArray:
        """Return 1 - exp(-exp(z))."""
        return np.asarray(-np.expm1(-np.exp(z)))

    def information(self, mean: float) -> float:
        """Return the square of the hazard times the odds of none."""
        return math.log1p(-mean) ** 2 * (1.0 - mean) / mean


@dataclass(frozen=True)
class Probit(BinaryLikelihood):
    """phi(y, z) = -log Phi(y z): the probit link, of the normal distribution function Phi.

    The probability of the positive label is Phi(z). The derivative of a label on the wrong side
    grows with the margin; so the loss is a straight line below y z = -high.

    Parameters
    ----------
    high : float, default=3.0
        Public bound of margins on the wrong side, positive and at most 8.
    """

    high: float = 3.0

    name = "probit"
    kappa = 530.0

    def __post_init__(self) -> None:
        high = positive("high", self.high)
        if high > 8.0:
            raise ValueError(f"high must be at most 8, got {high!r}")
        object.__setattr__(self, "high", high)

    @property
    def lipschitz(self) -> float:
        """phi / Phi at -high, which is below high + 1 / high."""
        ratio = math.sqrt(2.0 / math.pi) / scipy.special.erfcx(self.high / math.sqrt(2.0))
        return float(ratio) * (1.0 + 2.0**-45)

    @property
    def smoothness(self) -> float:
        """The second derivative at -high, which grows to 1 as high does."""
        return self.lipschitz * (self.lipschitz - self.high) * (1.0 + 2.0**-40)

    @staticmethod
    def probability(z: FloatArray) -> FloatArray:
        """Return Phi(z)."""
        return np.asarray(scipy.special.ndtr(z))

    def information(self, mean: float) -> float:
        """Return the squared density over the variance of a label."""
        density = math.exp(-0.5 * float(scipy.special.ndtri(mean)) ** 2) / math.sqrt(2.0 * math.pi)
        return density**2 / (mean * (1.0 - mean))


LOSSES: dict[str, type[Loss]] = {
    loss.name: loss
    for loss in (
        *(Logistic, Squared, Huber, SmoothedHinge, SquaredHinge),
        *(Poisson, Gamma, NegativeBinomial, ComplementaryLogLog, Probit),
    )
}

#: Losses whose coefficients have standard errors.
ESTIMATED = tuple(
    name for name, kind in LOSSES.items() if issubclass(kind, Likelihood | Squared | Huber)
)

# Names of intptr_t in C, NumPy and Cython, and in ctypes (used by numba), which resolves typedefs.
_INTPTR = ctypes.sizeof(ctypes.c_void_p)
_INTEGERS = {
    **dict.fromkeys(("intptr_t", "ptrdiff_t", "ssize_t", "Py_ssize_t"), _INTPTR),
    **dict.fromkeys(("npy_intp", "intp_t", "__pyx_t_5numpy_intp_t"), _INTPTR),
    **dict.fromkeys(("int64_t", "long long", "longlong", "PY_LONG_LONG"), 8),
    **dict.fromkeys(("int32_t", "int"), 4),
    "long": ctypes.sizeof(ctypes.c_long),
}
_SIGNATURE = "void (intptr_t, double *, double *, double *, double *, double *, void *)"


def _has_signature(found: str) -> bool:
    """Whether a signature in scipy's notation is `_SIGNATURE`, up to const and integer names."""
    outer = re.fullmatch(r"\s*void\s*\((.*)\)\s*", found)
    if not outer:
        return False
    words = (re.findall(r"\w+|\S", argument) for argument in outer[1].split(","))
    first, *pointers = (" ".join(w for w in some if w != "const") for some in words)
    return _INTEGERS.get(first) == _INTPTR and pointers == ["double *"] * 5 + ["void *"]


@dataclass(frozen=True)
class Custom(Loss):
    """A loss computed by a user's compiled function, which the kernels call.

    The function is called for blocks of n records, and has the signature

    ``void (intptr_t n, const double *y, const double *z, double *value, double *d1, double *d2,
    void *params)``

    y and z are the n labels and margins; value, d1 and d2 take the n values, first and second
    derivatives in z, and **each of them is NULL when it is not wanted**. params is the user data of
    the callable.

    Parameters
    ----------
    callable : scipy.LowLevelCallable
        The function: a ``numba.cfunc`` by its ``.ctypes``, a Cython ``cdef`` function, a ctypes or
        cffi function pointer.
    smoothness, lipschitz : float, default=inf
        Suprema of the absolute second and first derivative over all z and all labels of the task;
        positive. ``inf`` means no bound; solvers that need one raise an error.
    convex : bool, default=True
        Whether phi is convex in z for every label.
    kappa : float, default=16
        The computed first derivative is within kappa 2^-53 |phi'| + 2^-1020 of the true one; at
        least 0 and finite. A formula of k operations without cancellation has kappa <= 2 k
        approximately.
    task : {"classification", "regression"}
        "classification" means labels -1 and +1.
    name : str, default="custom"
        Name in results and certificates; not that of a built-in loss.

    Raises
    ------
    TypeError, ValueError
        When an argument is invalid, in particular when the callable has another signature; `n` may
        have any type name of a signed integer as wide as a pointer, and ``const`` is optional.

    Notes
    -----
    The function cannot be checked here, and every certificate states these assumptions:

    - Each derivative is a function of its own label and margin, independent of other records, of
      earlier calls and of the thread, since the sensitivity of a sum relies on it. So the function
      keeps no state, draws no random numbers and writes only to its outputs. Its bits should not
      depend on the position of a record in a block either, as they do for vectorised loops compiled
      with -ffast-math.
    - It is called from several threads at once without the GIL, and must not access Python objects.
      A ctypes callback of a Python function acquires the GIL for every block, which is slow.
    - The bounds, kappa and convexity are true. The clip norm bounds every sum in any case, but step
      sizes, the sensitivity of hidden local steps and the guarantee of objective perturbation are
      computed from them.

    Derivatives that are not finite, or were not written, count as 0.
    """

    callable: "scipy.LowLevelCallable"
    _: KW_ONLY
    smoothness: float = math.inf
    lipschitz: float = math.inf
    convex: bool = True
    kappa: float = 16.0
    task: str = "classification"
    name: str = "custom"

    def __post_init__(self) -> None:
        if not isinstance(self.callable, scipy.LowLevelCallable):
            raise TypeError(
                f"callable must be a scipy.LowLevelCallable, got {type(self.callable).__name__}"
            )
        if not _has_signature(self.callable.signature):
            raise ValueError(
                f"callable must have signature {_SIGNATURE!r}, got {self.callable.signature!r}"
            )
        for bound in ("smoothness", "lipschitz"):
            value = positive(bound, getattr(self, bound), or_infinite=True)
            object.__setattr__(self, bound, value)
        object.__setattr__(self, "kappa", not_negative("kappa", self.kappa))
        if not isinstance(self.convex, bool):
            raise TypeError(f"convex must be True or False, got {self.convex!r}")
        if self.task not in ("classification", "regression"):
            raise ValueError(f"task must be 'classification' or 'regression', got {self.task!r}")
        if not isinstance(self.name, str):
            raise TypeError(f"name must be a string, got {self.name!r}")
        if not self.name or self.name in LOSSES:
            raise ValueError(
                f"name must not be empty or that of a built-in loss, got {self.name!r}"
            )

    @property
    def params(self) -> tuple[float, ...]:
        """Empty, since the callable has its own user data."""
        return ()

    @property
    def declaration(self) -> dict[str, Any]:
        """The assumptions about the function, for results and certificates."""
        names = ("name", "task", "convex", "smoothness", "lipschitz", "kappa")
        declared = {name: getattr(self, name) for name in names}
        return declared | {"custom": "each derivative depends on its own label and margin only"}


#: The loss that a linear model has by default for a task.
LOSS_OF_TASK = {"classification": "logistic", "regression": "squared"}


def get_loss(loss: str | Loss) -> Loss:
    """Return the loss given by name, with default parameters, or as an object."""
    if isinstance(loss, Loss):
        return loss
    if not isinstance(loss, str):
        raise TypeError(f"loss must be a name or a dpkern.models.losses.Loss, got {loss!r}")
    if loss not in LOSSES:
        raise ValueError(
            f"loss must be one of {', '.join(LOSSES)}, got {loss!r} (networks: dpkern.MLP())"
        )
    return LOSSES[loss]()
