"""Operators R of the noisy fixed-point iteration, each with the release that its data need.

A solution of the problem is a fixed point u = R(u), or a function of it. The noise eta of the
iteration is what the noise on the released quantity becomes on its way through R.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import positive
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers._gradient import NoisyMeanGradient
from dpkern.solvers._run import Run
from dpkern.solvers._users import CentralUsers

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Declared:
    """An operator R given by a Python function, with what is believed about it.

    Parameters
    ----------
    function : callable
        function(u) -> R(u), both of shape (d,). It reads the records of the run and public numbers,
        and keeps nothing between calls.
    sensitivity : float
        Declared bound of |R(u) - R'(u)| in l2 norm over all u, R' being R with one record replaced,
        for the doubles returned; finite and above 0. Believed, and named on the certificate.
    name : str
        What the certificate calls it.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described.
    """

    function: Callable[[FloatArray], ArrayLike] = field(repr=False)
    sensitivity: float
    name: str = "declared operator"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function is a {type(self.function).__name__}; it must be callable")
        object.__setattr__(self, "sensitivity", positive("sensitivity", self.sensitivity))
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name is {self.name!r}; it must be a string that is not empty")


class Operator(ABC):
    """R with noise.

    Attributes
    ----------
    scale : float
        What divides u - R(u) so that it becomes a gradient mapping.
    """

    scale: float = 1.0

    @abstractmethod
    def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """Release what R needs at the public u, and return u + lam (R(u) + eta - u)."""

    def model(self, u: FloatArray) -> FloatArray:
        """The model that u stands for."""
        return u


class Gradient(Operator):
    """R(u) = u - step (grad J(u) + noise): noise on the sum of clipped gradients."""

    def __init__(self, run: Run, *, step: float, mu: float | None) -> None:
        self._objective, self.scale = run.objective, step
        self._gradient = NoisyMeanGradient(run, trust="central", mu=mu)

    def __call__(self, u: FloatArray) -> FloatArray:
        """R(u), noise included."""
        return u - self.scale * (self._gradient(u) + self._objective.penalty_gradient(u))

    def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """The sum of clipped gradients is what is released."""
        return u + lam * (self(u) - u)


class ProximalGradient(Gradient):
    """R(u) = prox_{step h}( u - step (grad J(u) + noise) ), h what acts by its prox, J the rest."""

    def __call__(self, u: FloatArray) -> FloatArray:
        """R(u), noise included."""
        return self._objective.prox(super().__call__(u), self.scale)


class LionsMercier(Operator):
    """ADMM: R = R_{gamma f} R_{gamma r} on u = (u_1, ..., u_n), R_g = 2 prox_g - I.

    What the iteration holds is mean(u): the u_i themselves are hidden, and the noise is on the sum
    of them. The relaxation is the users', who apply it before anything is released.
    """

    def __init__(self, run: Run, *, prox_step: float, mu: float | None) -> None:
        self._objective, self._gamma = run.objective, prox_step
        self._users = CentralUsers(run, prox_step=prox_step, mu=mu)
        self.scale = 2.0 * prox_step

    def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """mean(u) + lam (mean(R(u)) + eta - mean(u)), all users relaxed alike."""
        return self._users(0, u, self.model(u), lam)

    def model(self, u: FloatArray) -> FloatArray:
        """z = prox_{gamma r}(mean(u))."""
        return self._objective.full_prox(u, self._gamma)


class FromFunction(Operator):
    """round_q(clamp(R(u))) + Z for a declared R, of sensitivity D + q sqrt(d).

    R(u) and not its difference to u is rounded: a subtraction would round once more.
    """

    def __init__(self, run: Run, *, declared: Declared, mu: float | None) -> None:
        self._run, self._declared = run, declared
        self._mechanism = GaussianMessages(
            run.channel("central"),
            what=f"value of {declared.name}",
            dim=run.objective.data.d,
            mu=mu,
        )

    def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """R(u) is what is released."""
        with self._run.clock("kernels"):
            value = np.asarray(self._declared.function(u.copy()), dtype=np.float64)
        if value.shape != u.shape:
            raise ValueError(
                f"{self._declared.name} returned shape {value.shape}; it must return {u.shape}"
            )
        with self._run.clock("noise"):
            # bound 0: the grid is as coarse as the noise allows, and clamps what lies 2^50 of its
            # steps away.
            released = self._mechanism.release(
                value[np.newaxis], sensitivity=[self._declared.sensitivity], bound=0.0
            )
        return u + lam * (released - u)
