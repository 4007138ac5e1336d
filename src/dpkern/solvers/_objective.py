"""The objective of every solver, and what is public about it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy  # whose parts load when they are first used: an import of dpkern is cheap
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import not_negative
from dpkern.data import SiloData
from dpkern.losses import Loss

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """J(w) = sum_j p_j (1/n_j) sum_i phi(y_i, z_i) + (l2/2) |w|^2 + l1 |w|_1.

    Parameters
    ----------
    data : SiloData
        The records.
    loss : Loss
        phi.
    l2, l1 : float
        Penalties >= 0.
    weights : {"size", "uniform"}
        p_j = n_j / N or 1 / m.
    penalize_intercept : bool
        Whether the intercept is penalised like the other coordinates.
    n_threads : int or None
        For the kernels.

    Raises
    ------
    ValueError
        When the loss does not fit the task, or a penalty is negative or not finite.
    """

    data: SiloData
    loss: Loss
    l2: float
    l1: float
    weights: Literal["size", "uniform"]
    penalize_intercept: bool
    n_threads: int | None

    def __post_init__(self) -> None:
        if self.loss.task == "classification" and self.data.task != "classification":
            raise ValueError(
                f"loss {self.loss.name!r} is for classification, the data's task is "
                f"{self.data.task!r}"
            )
        for name in ("l2", "l1"):
            not_negative(name, getattr(self, name))
        if not isinstance(self.penalize_intercept, bool | np.bool_):
            raise TypeError(
                f"penalize_intercept must be True or False, got {self.penalize_intercept!r}"
            )
        if self.weights not in ("size", "uniform"):
            raise ValueError(f"weights must be 'size' or 'uniform', got {self.weights!r}")

    @property
    def penalized(self) -> FloatArray:
        """1 for every penalised coordinate, shape (d,)."""
        mask = np.ones(self.data.d)
        if self.data.intercept and not self.penalize_intercept:
            mask[-1] = 0.0
        return mask

    @property
    def data_smoothness(self) -> float:
        """L = phi''max R^2 (1 + 2^-40), R bounding the effective rows; infinity without a bound."""
        return self.loss.smoothness * self.data.row_bound**2 * (1.0 + 2.0**-40)

    def record_weight(self) -> float:
        """max_j p_j / n_j: what the largest clipped gradient is multiplied by."""
        smallest = int(self.data.sizes.min())
        return 1.0 / self.data.n if self.weights == "size" else 1.0 / (self.data.m * smallest)

    def silo_weight(self) -> FloatArray | None:
        """(p_j / n_j) / max_k (p_k / n_k), shape (m,); None when all are 1."""
        if self.weights == "size":
            return None
        return self.data.sizes.min() / self.data.sizes

    def data_value(self, w: FloatArray) -> float:
        """The weighted mean loss. Not private."""
        sums = kernels.glm_losses(self.data, w, loss=self.loss, n_threads=self.n_threads)
        return float(np.sum(self.data.weights(self.weights) * sums / self.data.sizes))

    def value(self, w: FloatArray) -> float:
        """J(w). Not private."""
        penalty = 0.5 * self.l2 * np.sum(self.penalized * w**2)
        return self.data_value(w) + float(penalty + self.l1 * np.sum(self.penalized * np.abs(w)))

    def l2_gradient(self, w: FloatArray) -> FloatArray:
        """Gradient of (l2/2) |w|^2 on the penalised coordinates."""
        return self.l2 * self.penalized * w

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        """argmin_x step l1 |x|_1 + |x - v|^2 / 2 on the penalised coordinates."""
        if self.l1 == 0.0:
            return v
        return np.where(self.penalized > 0.0, kernels.prox("l1", v, step * self.l1), v)

    def minimum(self) -> tuple[FloatArray, float]:
        """Minimiser and minimum of J by L-BFGS. Not private.

        With l1 > 0 on the split w = a - b, a, b >= 0, where the objective is smooth.
        """
        d, l1, mask = self.data.d, self.l1, self.penalized
        weights = self.data.weights(self.weights) / self.data.sizes

        def smooth(w: FloatArray) -> tuple[float, FloatArray]:
            sums = kernels.glm_gradient(
                self.data, w, loss=self.loss, clip=math.inf, n_threads=self.n_threads
            )
            penalty = 0.5 * self.l2 * float(np.sum(mask * w**2))
            return self.data_value(w) + penalty, weights @ sums + self.l2_gradient(w)

        def split(ab: FloatArray) -> tuple[float, FloatArray]:
            value, g = smooth(ab[:d] - ab[d:])
            bound = l1 * np.concatenate([mask, mask])
            return value + float(bound @ ab), np.concatenate([g, -g]) + bound

        options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 1e-15, "gtol": 1e-10, "maxcor": 30}
        if l1 == 0.0:
            found = scipy.optimize.minimize(
                smooth, np.zeros(d), jac=True, options=options, method="L-BFGS-B"
            )
            return found.x, float(found.fun)
        found = scipy.optimize.minimize(
            split,
            np.zeros(2 * d),
            jac=True,
            bounds=[(0.0, None)] * (2 * d),
            options=options,
            method="L-BFGS-B",
        )
        return found.x[:d] - found.x[d:], float(found.fun)


def step_sizes(
    step_size: float | str | Sequence[float] | FloatArray,
    rounds: int,
    objective: Objective,
) -> FloatArray:
    """Public step sizes of all rounds.

    Parameters
    ----------
    step_size : float, sequence of `rounds` floats, "auto" or "theorem"
        "auto" is 1 / (L + l2); "theorem" is 2 / (l2 (t + gamma)), t = 1, 2, ...,
        gamma = max(8 (L + l2) / l2 - 1, 1) (Huang, utility theorem, with aggregation every step).
        Both need a row bound and a smooth loss, "theorem" l2 > 0 and a convex one.
    rounds : int
        Number of steps.
    objective : Objective
        Gives L and l2.

    Returns
    -------
    eta : ndarray, shape (rounds,)

    Raises
    ------
    TypeError, ValueError
        When a condition does not hold or a step is not a positive and finite number.
    """
    if isinstance(step_size, str):
        smoothness = objective.data_smoothness + objective.l2
        if step_size not in ("auto", "theorem"):
            raise ValueError(
                f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
            )
        if math.isinf(objective.loss.smoothness):
            raise ValueError(
                f"step_size={step_size!r} needs a loss with a bounded second derivative, which "
                f"{objective.loss.name!r} is not: give step_size a number"
            )
        if not math.isfinite(smoothness):
            raise ValueError(
                f"step_size={step_size!r} needs the smoothness of the loss: give the data a "
                "row_bound, or give step_size a number"
            )
        if step_size == "auto":
            return np.full(rounds, 1.0 / smoothness)
        if objective.l2 == 0.0 or not objective.penalized.all():
            raise ValueError("step_size='theorem' needs l2 > 0 on every coordinate")
        if not objective.loss.convex:
            raise ValueError(
                f"step_size='theorem' needs a convex loss, which {objective.loss.name!r} is not"
            )
        gamma = max(8.0 * smoothness / objective.l2 - 1.0, 1.0)
        t = np.arange(1.0, rounds + 1.0)
        return 2.0 / (objective.l2 * (t + gamma))
    if step_size is None or isinstance(step_size, bool):
        raise TypeError(
            f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
        )
    try:
        eta = np.asarray(step_size, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("step_size holds an entry that is no number") from None
    if eta.shape not in ((), (rounds,)):
        raise ValueError(f"step_size must be one number or {rounds}, one a round; got {eta.shape}")
    if not (np.all(np.isfinite(eta)) and np.all(eta > 0.0)):
        raise ValueError("step_size must be positive and finite")
    return np.broadcast_to(eta, (rounds,)).copy()
