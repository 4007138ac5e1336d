"""The objective of every solver, and what is public about it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import scipy  # whose parts load when they are first used: an import of dpkern is cheap
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count
from dpkern.data import SiloData
from dpkern.models.constraints import Constraint
from dpkern.models.losses import Loss
from dpkern.models.oracles import Oracle
from dpkern.models.penalties import L1, SmoothPenalty, combined
from dpkern.models.terms import Penalty, Term
from dpkern.privacy.mechanisms.grids import MAX_RECORDS

FloatArray = NDArray[np.float64]
PublicSize = int | Sequence[int] | NDArray[np.integer] | None


@dataclass(frozen=True)
class Objective:
    """J(w) = sum_j p_j (1/n_j) sum_i phi(y_i, z_i) + (l2/2) |w|^2 + l1 |w|_1 + strength g(w).

    Parameters
    ----------
    data : SiloData
        The records.
    loss : Loss or Oracle
        phi, or a model that is not linear, whose loss of a record stands for phi.
    penalty : Penalty or None
        See `dpkern.models.penalties`. L2 and PL act by their gradient, the others by their prox, on
        the penalised coordinates. A constraint has no strength: J is infinite where it does not
        hold, by more than the rounding of a projection.
    l2, l1 : float
        Short for L2(l2) and L1(l1), added to the penalty; afterwards the strengths in all.
    weights : {"size", "uniform"}
        p_j = n_j / N or 1 / m.
    penalize_intercept : bool
        Whether the intercept is penalised like the other coordinates.
    public_size : int, sequence of m ints or None
        Numbers that stand for those of records, in p_j and n_j: N, which serves for weights "size",
        or n_j of every silo. None are the true ones.
    n_threads : int or None
        For the kernels.

    Attributes
    ----------
    other : Term or None
        The penalty beside l2 and l1.

    Raises
    ------
    TypeError, ValueError
        When the loss does not fit the task, the terms of the penalty do not go together or are for
        another number of coordinates, or `public_size` does not fit.
    """

    data: SiloData
    loss: Loss | Oracle
    _: KW_ONLY
    penalty: Penalty | None = None
    l2: float = 0.0
    l1: float = 0.0
    weights: Literal["size", "uniform"] = "size"
    penalize_intercept: bool = True
    public_size: PublicSize = None
    n_threads: int | None = None
    other: Term | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if isinstance(self.loss, Oracle):
            if self.data.intercept or not self.penalize_intercept:
                raise ValueError(
                    f"model {self.loss.name!r} has parameters of its own: build the data with "
                    "intercept=False, and leave penalize_intercept as it is"
                )
        elif self.data.task == "multiclass":
            raise ValueError(
                "the data's task is 'multiclass'; a linear model has one output: take "
                "model=dpkern.MLP(hidden=())"
            )
        elif self.loss.task == "classification" and self.data.task != "classification":
            raise ValueError(
                f"loss {self.loss.name!r} is for classification, the data's task is "
                f"{self.data.task!r}"
            )
        l2, l1, other = combined(self.penalty, self.l2, self.l1)
        # The terms are now in l2, l1 and other; a copy with other data must not add them again.
        for name, value in (("penalty", other), ("l2", l2), ("l1", l1), ("other", other)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "public_size", _public_size(self.public_size, self.data.m))
        if other is not None and other.size not in (None, self.n_penalized):
            raise ValueError(
                f"penalty must be for the {self.n_penalized} penalised coordinates, got "
                f"{other.name!r} for {other.size}"
            )

    @property
    def phi(self) -> Loss:
        """The loss of a linear model."""
        if isinstance(self.loss, Oracle):
            raise TypeError(f"the model must be linear, got {self.loss.name!r}")
        return self.loss

    @property
    def n(self) -> int:
        """Number of records, or the public one."""
        if self.public_size is None:
            return self.data.n
        return int(np.sum(self.public_size))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of records of the silos, or the public ones, shape (m,)."""
        if self.public_size is None:
            return self.data.sizes
        if isinstance(self.public_size, int):
            raise ValueError(
                "public_size is one number; trust='silo', weights='uniform' and the stochastic "
                f"solvers need that of each of the {self.data.m} silos"
            )
        return np.array(self.public_size)

    @property
    def smooth(self) -> SmoothPenalty | None:
        """The term that acts by its gradient, beside l2."""
        return self.other if isinstance(self.other, SmoothPenalty) else None

    @cached_property
    def proximal(self) -> Term | None:
        """The term that acts by its prox: l1, or another that is not smooth."""
        if self.l1 > 0.0:
            return L1(self.l1)
        return None if self.smooth is not None else self.other

    @property
    def penalized(self) -> FloatArray:
        """1 for every penalised coordinate, shape (d,)."""
        mask = np.ones(self.dim)
        if self.data.intercept and not self.penalize_intercept:
            mask[-1] = 0.0
        return mask

    @cached_property
    def dim(self) -> int:
        """Number of coordinates of w."""
        if isinstance(self.loss, Oracle):
            return count(f"dim of {self.loss.name!r}", self.loss.dim(self.data))
        return self.data.d

    def start(self) -> FloatArray:
        """Where runs begin, public: 0, or what the model says."""
        return self.loss.start(self.data) if isinstance(self.loss, Oracle) else np.zeros(self.dim)

    @cached_property
    def n_penalized(self) -> int:
        """How many coordinates are penalised: all, or all but the last."""
        return self.dim - (self.data.intercept and not self.penalize_intercept)

    @property
    def data_smoothness(self) -> float:
        """L = phi''max R^2 (1 + 2^-40), R bounding the effective rows; infinity without a bound."""
        if isinstance(self.loss, Oracle):
            return self.loss.smoothness
        return self.loss.smoothness * self.data.row_bound**2 * (1.0 + 2.0**-40)

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient of all that acts by it: L + l2 + that of g."""
        g = self.smooth
        curvature = 0.0 if g is None else g.strength * g.smoothness
        return self.data_smoothness + self.l2 + curvature

    def shares(self) -> FloatArray:
        """p_j, shape (m,)."""
        m = self.data.m
        return self.sizes / self.n if self.weights == "size" else np.full(m, 1.0 / m)

    def record_weights(self) -> FloatArray:
        """p_j / n_j, shape (m,)."""
        m = self.data.m
        return np.full(m, 1.0 / self.n) if self.weights == "size" else 1.0 / (m * self.sizes)

    def record_weight(self) -> float:
        """max_j p_j / n_j: what the largest clipped gradient is multiplied by."""
        return float(self.record_weights().max())

    def silo_weight(self) -> FloatArray | None:
        """(p_j / n_j) / max_k (p_k / n_k), shape (m,); None when all are 1."""
        return None if self.weights == "size" else self.sizes.min() / self.sizes

    def data_value(self, w: FloatArray) -> float:
        """The weighted mean loss. Not private."""
        if isinstance(self.loss, Oracle):
            data = self.data
            values = self.loss.losses(w, data.transform.apply(data.X), data.y)
            return float(np.repeat(self.record_weights(), data.sizes) @ values)
        sums = kernels.glm_losses(self.data, w, loss=self.loss, n_threads=self.n_threads)
        return float(self.record_weights() @ sums)

    def value(self, w: FloatArray) -> float:
        """J(w). Not private."""
        return self.data_value(w) + self.penalty_value(w) + self._proximal_value(w)

    def accuracy(self, w: FloatArray) -> float:
        """Share of the records whose label the model gives. Not private."""
        if isinstance(self.loss, Oracle):
            z = self.loss.outputs(w, self.data.transform.apply(self.data.X))
            labels = z.argmax(axis=1) if z.ndim == 2 else (z > 0.0)
            return float(np.mean(labels == np.maximum(self.data.y, 0.0)))
        z = kernels.glm_margins(self.data, w, n_threads=self.n_threads)
        return float(np.mean((z > 0.0) == (self.data.y > 0.0)))

    def penalty_value(self, w: FloatArray) -> float:
        """(l2/2) |w|^2 + strength g(w) on the penalised coordinates."""
        square = float(np.sum(self.penalized * w**2))
        value = 0.5 * self.l2 * square
        if self.smooth is not None:
            value += self.smooth.strength * self.smooth.value(math.sqrt(square))
        return value

    def penalty_gradient(self, w: FloatArray) -> FloatArray:
        """The gradient of `penalty_value`."""
        coefficient = self.l2
        if self.smooth is not None:
            r = math.sqrt(np.sum(self.penalized * w**2))
            coefficient += self.smooth.strength * self.smooth.coefficient(r)
        return coefficient * self.penalized * w

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        """argmin_x step strength g(x) + |x - v|^2 / 2 on penalised coordinates, g `proximal`."""
        if self.proximal is None:
            return v
        out, p = v.copy(), self.n_penalized
        out[:p] = kernels.prox(self.proximal, v[:p], step)
        return out

    def _proximal_value(self, w: FloatArray) -> float:
        """strength g(w) on the penalised coordinates, g `proximal`; without it for a constraint."""
        if self.proximal is None:
            return 0.0
        g = self.proximal
        value = g(w[: self.n_penalized])
        return value if isinstance(g, Constraint) else g.strength * value

    def full_prox(self, v: FloatArray, step: float) -> FloatArray:
        """argmin_x step r(x) + |x - v|^2 / 2, r all penalties: (l2/2) |x|^2 + l1 |x|_1 + g(x).

        Completing the square takes l2 out. Beside l1 there is no g but a function of |x|: the prox
        of their sum is that of l1 and then that of g (Yu, "On decomposing the proximal map",
        NeurIPS 2013).
        """
        penalized = self.n_penalized
        shrink = 1.0 + step * self.l2
        x, step = v[:penalized] / shrink, step / shrink
        if self.l1 > 0.0:
            x = kernels.prox(L1(self.l1), x, step)
        if self.other is not None:
            x = kernels.prox(self.other, x, step)
        return x if penalized == len(v) else np.append(x, v[penalized:])

    def minimum(self) -> tuple[FloatArray, float]:
        """Minimiser and minimum of J by L-BFGS. Not private.

        With l1 > 0 on the split w = a - b, a, b >= 0, where the objective is smooth. With another g
        that acts by its prox by accelerated proximal steps, to a relative 1e-10 of the step.
        """
        d, l1, mask = self.data.d, self.l1, self.penalized
        weights, loss = self.record_weights(), self.phi

        def smooth(w: FloatArray) -> tuple[float, FloatArray]:
            sums = kernels.glm_gradient(
                self.data, w, loss=loss, clip=math.inf, n_threads=self.n_threads
            )
            value = self.data_value(w) + self.penalty_value(w)
            return value, weights @ sums + self.penalty_gradient(w)

        def split(ab: FloatArray) -> tuple[float, FloatArray]:
            value, g = smooth(ab[:d] - ab[d:])
            bound = l1 * np.concatenate([mask, mask])
            return value + float(bound @ ab), np.concatenate([g, -g]) + bound

        if self.proximal is not None and l1 == 0.0:
            found = _proximal_minimiser(smooth, self.prox, np.zeros(d))
            return found, self.value(found)
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


def _proximal_minimiser(
    smooth: Callable[[FloatArray], tuple[float, FloatArray]],
    prox: Callable[[FloatArray, float], FloatArray],
    w: FloatArray,
) -> FloatArray:
    """FISTA with backtracking (Beck and Teboulle 2009) that restarts where its momentum points
    uphill (O'Donoghue and Candes 2015).
    """
    step, momentum, ahead = 1.0, 1.0, w
    for _ in range(20_000):
        value, g = smooth(ahead)
        while True:
            w_next = prox(ahead - step * g, step)
            moved = w_next - ahead
            bound = value + g @ moved + moved @ moved / (2.0 * step)
            # Differences below rounding decide nothing: without room steps would shrink for ever.
            if smooth(w_next)[0] <= bound + 1e-14 * abs(value):
                break
            step *= 0.5
        if math.sqrt(moved @ moved) <= 1e-10 * step * max(1.0, math.sqrt(g @ g)):
            return w_next
        if moved @ (w_next - w) < 0.0:
            momentum, ahead = 1.0, w_next
        else:
            before, momentum = momentum, 0.5 + math.sqrt(0.25 + momentum**2)
            ahead = w_next + (before - 1.0) / momentum * (w_next - w)
        w = w_next
    return w


def _public_size(size: PublicSize, m: int) -> int | tuple[int, ...] | None:
    """One number, which for one silo is that silo's, or one for each of m silos."""
    if size is None:
        return None
    listed = list(size) if isinstance(size, list | tuple | np.ndarray) else None
    sizes = tuple(count("public_size", n) for n in ([size] if listed is None else listed))
    if max(sizes, default=0) >= MAX_RECORDS:
        raise ValueError(f"public_size is {max(sizes)}; it must be below 2^31")
    if listed is None and m > 1:
        return sizes[0]
    if len(sizes) != m:
        raise ValueError(f"public_size has {len(sizes)} entries; it must have {m}, one per silo")
    return sizes
