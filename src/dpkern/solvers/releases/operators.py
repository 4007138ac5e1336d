"""Operators R of the noisy fixed-point iteration, with their releases.

A solution of the problem is a fixed point u = R(u), or a function of it. The noise eta of the
iteration is the noise on the release, propagated through R.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import count, positive
from dpkern._typing import FloatArray
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import check_choice
from dpkern.solvers.base.plan import RunPlan, require_convex_loss, resolve_number, within_doubles
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.admm_records import CentralUsers, at_most_half
from dpkern.solvers.releases.gradient import NoisyMeanGradient


@dataclass(frozen=True)
class Declared:
    """An operator R given by a Python function, with its declared sensitivity.

    Parameters
    ----------
    function : callable
        function(u) -> R(u), both of shape (d,). It depends on the records of the run and public
        numbers only, and keeps no state between calls.
    sensitivity : float
        Bound of |R(u) - R'(u)| in l2 norm over all u, R' being R with one record replaced, for the
        doubles returned; finite and above 0. It is not checked, which the certificate states.
    name : str
        Name of the operator in the certificate.

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described.
    """

    function: Callable[[FloatArray], ArrayLike] = field(repr=False)
    sensitivity: float
    name: str = "declared operator"

    @property
    def declaration(self) -> dict[str, Any]:
        """Name and sensitivity, for results and certificates."""
        return {"name": self.name, "sensitivity": self.sensitivity}

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"function must be callable, got {type(self.function).__name__}")
        object.__setattr__(self, "sensitivity", positive("sensitivity", self.sensitivity))
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"name must be a string that is not empty, got {self.name!r}")


def check_operator(name: str, value: object) -> object:
    """Check that an operator is one of the names or a `Declared`."""
    if not isinstance(value, Declared):
        check_choice(name, value, ("proximal_gradient", "gradient", "coordinate", "admm"))
    return value


class Operator(ABC):
    """An operator R with noise.

    Attributes
    ----------
    scale : float
        Factor for which (u - R(u)) / scale is a gradient mapping.
    """

    scale: float = 1.0

    @abstractmethod
    async def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """Make the release of R at the public u, and return u + lam (R(u) + eta - u)."""

    def model(self, u: FloatArray) -> FloatArray:
        """Return the model for u."""
        return u


class ProximalGradient(Operator):
    """R(u) = prox_{step h}( u - step (grad J(u) + noise) ), h the proximal penalty, J the rest."""

    def __init__(self, run: Run, *, step: float, mu: float | None) -> None:
        self._objective, self.scale = run.objective, step
        self._gradient = NoisyMeanGradient(run, mu=mu)

    async def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """Release the sum of clipped gradients."""
        g = await self._gradient(u) + self._objective.penalty_gradient(u)
        return u + lam * (self._objective.prox(u - self.scale * g, self.scale) - u)


class LionsMercier(Operator):
    """ADMM: R = R_{gamma f} R_{gamma r} on u = (u_1, ..., u_n), R_g = 2 prox_g - I.

    The iterate is mean(u): the u_i themselves are hidden, and the noise is on their sum. The users
    apply the relaxation before the release.
    """

    def __init__(self, run: Run, *, prox_step: float, mu: float | None) -> None:
        self._objective, self._gamma = run.objective, prox_step
        self._users = CentralUsers(run, prox_step, mu=mu)
        self.scale = 2.0 * prox_step

    async def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """Return mean(u) + lam (mean(R(u)) + eta - mean(u))."""
        return await self._users(0, u, self.model(u), lam)

    def model(self, u: FloatArray) -> FloatArray:
        """Return z = prox_{gamma r}(mean(u))."""
        return self._objective.full_prox(u, self._gamma)


class FromFunction(Operator):
    """round_q(clamp(R(u))) + Z for a declared R, of sensitivity D + q sqrt(d).

    R(u) is rounded instead of R(u) - u, since the subtraction would round once more.
    """

    def __init__(self, run: Run, *, declared: Declared, mu: float | None) -> None:
        self._run, self._declared = run, declared
        self._mechanism = GaussianMessages(
            run.channel("central"),
            what=f"value of {declared.name}",
            dim=run.objective.data.d,
            mu=mu,
        )

    async def relaxed(self, u: FloatArray, lam: float) -> FloatArray:
        """Release R(u)."""
        with self._run.clock("kernels"):
            value = np.asarray(self._declared.function(u.copy()), dtype=np.float64)
        if value.shape != u.shape:
            raise ValueError(
                f"operator must return shape {u.shape}, got {value.shape} of {self._declared.name}"
            )
        with self._run.clock("noise"):
            # With bound 0 the noise alone determines the grid, and values saturate at 2^50 steps.
            released = self._mechanism.release(
                value[np.newaxis], sensitivity=[self._declared.sensitivity], bound=0.0
            )
        return u + lam * (released - u)


def resolve_operator(plan: RunPlan, objective: Objective) -> RunPlan:
    """Return the plan with the operator's step, its blocks and its relaxations resolved."""
    operator = plan.arguments["operator"]
    if operator == "admm":
        if plan.arguments["weights"] != "size":
            raise ValueError("weights must be 'size' for operator='admm', got 'uniform'")
        require_convex_loss(plan, objective, "its prox is taken")
        plan = resolve_number(plan, objective, "prox_step")
    elif operator == "gradient" and objective.proximal is not None:
        g = objective.proximal.name
        raise ValueError(f"operator='gradient' has no prox, by which {g!r} acts: take another")
    elif not isinstance(operator, Declared):
        plan = resolve_number(plan, objective, "step_size")
        eta = np.full((plan.rounds, 1), plan.arguments["step_size"])
        within_doubles(eta, objective, plan.arguments)
    sizes = block_sizes(plan, objective.data.d)
    blocks = sizes.tolist() if np.ndim(plan.arguments["blocks"]) else len(sizes)
    return plan.replace_arguments(relaxation=_relaxations(plan), blocks=blocks)


def choose_operator(run: Run, mu: float | None) -> Operator:
    """Return the run's operator, with a budget mu for every release."""
    operator, given = run.plan.arguments["operator"], run.plan.arguments
    if isinstance(operator, Declared):
        return FromFunction(run, declared=operator, mu=mu)
    if operator == "admm":
        return LionsMercier(run, prox_step=given["prox_step"], mu=mu)
    return ProximalGradient(run, step=given["step_size"], mu=mu)


def _relaxations(plan: RunPlan) -> FloatArray:
    """Return lam_k of all rounds, or of every one."""
    lions_mercier, value = plan.arguments["operator"] == "admm", plan.arguments["relaxation"]
    if value is None:
        value = 0.5 if lions_mercier else 1.0
    lam = np.asarray(value)
    if lam.dtype.kind not in "fiu":
        raise TypeError(f"relaxation must be a number or a sequence of numbers, got {value!r}")
    if lam.shape not in ((), (plan.rounds,)):
        raise ValueError(
            f"relaxation must be one number or {plan.rounds}, one a round, got shape {lam.shape}"
        )
    if not (np.all(lam > 0.0) and np.all(lam <= 1.0)):
        raise ValueError(f"relaxation must lie in (0, 1], got {value!r}")
    if lions_mercier:
        at_most_half(plan, float(lam.max()))
    return lam.astype(np.float64)


def block_sizes(plan: RunPlan, d: int) -> NDArray[np.int64]:
    """Return the sizes of the consecutive blocks of u."""
    operator, blocks = plan.arguments["operator"], plan.arguments["blocks"]
    if operator == "admm":
        if blocks not in (None, 1) or plan.arguments["activation"] != 1.0:
            raise ValueError(
                "operator='admm' has one block, always active: for users that take part in turn "
                "there are the modes of solver admm"
            )
        blocks = 1
    if blocks is None:
        blocks = d if operator == "coordinate" else 1
    if np.ndim(blocks):
        sizes = np.array([count("a block's size", size) for size in blocks], dtype=np.int64)
        if sizes.sum() != d:
            raise ValueError(f"blocks must add up to d = {d}, got {sizes.sum()}")
        return sizes
    number = count("blocks", blocks)
    if number > d:
        raise ValueError(f"blocks must be at most d = {d}, got {number}")
    return np.diff(np.arange(number + 1) * d // number)
