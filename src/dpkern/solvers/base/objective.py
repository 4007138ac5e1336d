"""The objective that every solver minimises, and the public numbers of a run.

These numbers are all that settings "auto" may depend on.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count
from dpkern._threads import one_blas_thread, resolve_threads
from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.models.losses import LogLink, Loss
from dpkern.models.oracles import Oracle, record_gradients
from dpkern.models.penalties import L1, L2, Constraint, SmoothPenalty
from dpkern.models.scale import Scale, curvature_of_rows, largest_target, margin_scale
from dpkern.models.terms import Penalty, Term
from dpkern.privacy import Budget
from dpkern.privacy.sensitivity.grids import MAX_RECORDS
from dpkern.solvers.base.options import AUTO

# Of which the gradients of a model that is not linear are in memory together.
_RECORDS = 256
_FAR = 2.0**40  # the norm of a model that is far from all minimisers
PublicSize = int | Sequence[int] | NDArray[np.integer] | None

# Shares of the noise in margins that a model with hidden layers takes, and one of real targets: a
# label is as right where its margin is too large, a real target is not.
_HIDDEN_LAYERS, _REAL_TARGETS = 0.4, 0.04


@dataclass(frozen=True)
class Objective:
    """J(w) = sum_j p_j (1/n_j) sum_i phi(y_i, z_i) + (l2/2) |w|^2 + l1 |w|_1 + strength g(w).

    Parameters
    ----------
    data : SiloData
        The records.
    loss : Loss or Oracle
        phi, or a nonlinear model, whose loss of a record then replaces phi.
    penalty : Penalty or None
        See `dpkern.models.penalties`. L2 and PL enter through their gradient, the others through
        their prox, on the penalised coordinates. A constraint has no strength: J is infinite
        outside the set, up to the rounding error of a projection.
    l2, l1 : float
        Short for L2(l2) and L1(l1), added to the penalty; as attributes, the total strengths.
    weights, penalize_intercept, public_size, n_threads
        As for `dpkern.solve`.

    Attributes
    ----------
    other : Term or None
        The penalty term other than l2 and l1.

    Raises
    ------
    TypeError, ValueError
        When the loss is for another task, the terms of the penalty cannot be combined or have
        another number of coordinates, or `public_size` has another number of entries.
    """

    data: SiloData
    loss: Loss | Oracle
    _: KW_ONLY
    penalty: Penalty | None = None
    l2: float = 0.0
    l1: float = 0.0
    weights: Literal["size", "uniform"] = "size"
    penalize_intercept: bool = AUTO
    public_size: PublicSize = None
    n_threads: int | None = None
    other: Term | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        resolve_threads(self.n_threads, 0)
        if isinstance(self.loss, Oracle):
            if self.data.intercept or self.penalize_intercept is False:
                raise ValueError(
                    f"model {self.loss.name!r} has parameters of its own: build the data with "
                    "intercept=False, and leave penalize_intercept as it is"
                )
            object.__setattr__(self, "loss", self.loss.stated_for(self.data))
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
        elif self.loss.log_link and self.data.task != "regression":
            raise ValueError(
                f"loss {self.loss.name!r} is for regression, the data's task is "
                f"{self.data.task!r}: build the data with task='regression'"
            )
        elif self.loss.log_link and self.data.transform.target_middle != 0.0:
            raise ValueError(
                f"target_bound must be a number or None with the loss {self.loss.name!r}, whose "
                "targets are counts or costs as they are, got a pair, the middle of which is "
                f"subtracted: take {type(self.loss).__name__}(max_target=...)"
            )
        l2, l1, other = _strengths(self.penalty, self.l2, self.l1)
        # A copy with other data (dataclasses.replace) must not add the same terms again.
        for name, value in (("penalty", other), ("l2", l2), ("l1", l1), ("other", other)):
            object.__setattr__(self, name, value)
        if self.penalize_intercept == AUTO:  # what acts on coordinates together is for all of them
            l2_or_l1 = (l2 > 0.0 or l1 > 0.0) and other is None
            of_targets = self.data.intercept and self.has_units and l2_or_l1
            object.__setattr__(self, "penalize_intercept", not of_targets)
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
        """Total number of records, or its public value."""
        if self.public_size is None:
            return self.data.n
        return int(np.sum(self.public_size))

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of records of the silos, or their public values, shape (m,)."""
        if self.public_size is None:
            return self.data.sizes
        if isinstance(self.public_size, int):
            raise ValueError(
                "public_size is one number; trust='silo', weights='uniform' and the stochastic "
                f"solvers need that of each of the {self.data.m} silos"
            )
        return np.array(self.public_size)

    @cached_property
    def smooth(self) -> SmoothPenalty | None:
        """The penalty term other than l2 that enters through its gradient."""
        return self.other if isinstance(self.other, SmoothPenalty) else None

    @cached_property
    def proximal(self) -> Term | None:
        """The penalty term that enters through its prox: l1, or another nonsmooth one."""
        if self.l1 > 0.0:
            return L1(self.l1)
        return None if self.smooth is not None else self.other

    @cached_property
    def penalized(self) -> FloatArray:
        """Mask of the penalised coordinates, 1 or 0, shape (d,)."""
        mask = np.ones(self.dim)
        mask[self.n_penalized :] = 0.0
        mask.setflags(write=False)
        return mask

    @cached_property
    def dim(self) -> int:
        """Number of coordinates of w."""
        if isinstance(self.loss, Oracle):
            return count(f"dim of {self.loss.name!r}", self.loss.dim(self.data))
        return self.data.d

    def start(self) -> FloatArray:
        """Return the public starting point of a run: 0, or that of the model.

        With a log link the intercept is in the middle of the bounds of the log of means.
        """
        if isinstance(self.loss, Oracle):
            return self.loss.start(self.data)
        w = np.zeros(self.dim)
        if isinstance(self.loss, LogLink) and self.data.intercept:
            w[-1] = self.loss.middle
        return w

    @property
    def has_units(self) -> bool:
        """Whether margins are in units of the targets."""
        log_link = isinstance(self.loss, Loss) and self.loss.log_link
        return self.data.task == "regression" and not log_link

    @cached_property
    def n_penalized(self) -> int:
        """Number of penalised coordinates: all, or all but the last ones."""
        if isinstance(self.loss, Oracle):
            return self.dim - self.loss.n_unpenalized(self.data)
        return self.dim - (self.data.intercept and not self.penalize_intercept)

    @property
    def data_smoothness(self) -> float:
        """L = phi''max R^2 (1 + 2^-40), R bounding the effective rows; infinity without a bound."""
        if isinstance(self.loss, Oracle):
            return self.loss.smoothness
        return curvature_of_rows(self.loss.smoothness, self.data.row_bound)

    @property
    def penalty_smoothness(self) -> float:
        """Lipschitz constant of the gradient of the smooth penalties: l2 + that of g."""
        g = self.smooth
        return self.l2 + (0.0 if g is None else g.strength * g.smoothness)

    @property
    def pull(self) -> float:
        """The factor c of the smooth penalties' gradient c w at a far model w."""
        g = self.smooth
        return self.l2 + (0.0 if g is None else g.strength * g.coefficient(_FAR))

    @property
    def smoothness(self) -> float:
        """Lipschitz constant of the gradient of the smooth part: L + that of the penalties."""
        return self.data_smoothness + self.penalty_smoothness

    @property
    def scale(self) -> Scale | None:
        """The sizes of a record's derivatives; None for a model that does not state them."""
        data = self.data
        if isinstance(self.loss, Oracle):
            return self.loss.scale(data)
        target = largest_target(data) if self.has_units else 1.0
        return margin_scale(self.loss, data.row_bound, dim=data.d, target=target)

    def shares(self) -> FloatArray:
        """Return the silo weights p_j, shape (m,)."""
        m = self.data.m
        return self.sizes / self.n if self.weights == "size" else np.full(m, 1.0 / m)

    def record_weights(self) -> FloatArray:
        """Return the record weights p_j / n_j, shape (m,)."""
        m = self.data.m
        return np.full(m, 1.0 / self.n) if self.weights == "size" else 1.0 / (m * self.sizes)

    def record_weight(self) -> float:
        """Return the largest record weight, max_j p_j / n_j."""
        return float(self.record_weights().max())

    def silo_weight(self) -> FloatArray | None:
        """Return (p_j / n_j) / max_k (p_k / n_k), shape (m,), or None if all are 1."""
        return None if self.weights == "size" else self.sizes.min() / self.sizes

    def data_value(self, w: FloatArray) -> float:
        """Return the weighted mean loss, which is not private."""
        if isinstance(self.loss, Oracle):
            data = self.data
            values = self.loss.losses(w.copy(), data.transform.apply(data.X), data.y)
            values = values if data.record_weight is None else data.record_weight * values
            return float(np.repeat(self.record_weights(), data.sizes) @ values)
        sums = kernels.glm_losses(self.data, w, loss=self.loss, n_threads=self.n_threads)
        return float(self.record_weights() @ sums)

    def value(self, w: FloatArray) -> float:
        """Return J(w), which is not private."""
        return self.data_value(w) + self.penalty_value(w) + self._proximal_value(w)

    def accuracy(self, w: FloatArray) -> float:
        """Return the fraction of correctly classified records, which is not private."""
        if isinstance(self.loss, Oracle):
            z = self.loss.outputs(w.copy(), self.data.transform.apply(self.data.X))
            labels = z.argmax(axis=1) if z.ndim == 2 else (z > 0.0)
            return float(np.mean(labels == np.maximum(self.data.y, 0.0)))
        z = kernels.glm_margins(self.data, w, n_threads=self.n_threads)
        return float(np.mean((z > 0.0) == (self.data.y > 0.0)))

    def heterogeneity(self, w: FloatArray | None = None) -> float:
        """Return sum_j p_j |g_j - g|^2 at w, which is not private: how much silos differ.

        g_j is the gradient of silo j's mean loss, not clipped, and g = sum_j p_j g_j. At the
        minimiser of J, which w is by default for a linear model, it is the upsilon_*^2 of Lowy,
        Razaviyayn (2021), (1/m) sum_j |grad J_j(w*)|^2, where penalties are smooth and weights
        uniform. Silos of n records of one distribution have about the variance of a record's
        gradient divided by n.

        It is for public records and for analysis: it has no noise and no certificate, so that no
        setting of a private run may follow from it.
        """
        if w is None:
            if isinstance(self.loss, Oracle):
                raise ValueError(f"w must be given for the model {self.loss.name!r}, got None")
            w = self.minimum()[0]
        p, means = self.shares(), self.silo_gradients(w)
        return float(p @ np.sum((means - p @ means) ** 2, axis=1))

    def silo_gradients(self, w: FloatArray) -> FloatArray:
        """Return the gradients at w of the silos' mean losses, unclipped, (m, dim). Not private."""
        data, point = self.data, np.array(w, dtype=np.float64)
        if isinstance(self.loss, Oracle):
            sums = np.zeros((data.m, self.dim))
            for j, (first, end) in enumerate(pairwise(data.offsets.tolist())):
                for begin in range(first, end, _RECORDS):
                    records = np.arange(begin, min(begin + _RECORDS, end))
                    found = record_gradients(self.loss, data, point, records)
                    sums[j] += found.sum(axis=0, dtype=np.float64)
        else:
            sums = kernels.glm_gradient(
                data, point, loss=self.loss, clip=math.inf, n_threads=self.n_threads
            )
        return sums / data.sizes[:, np.newaxis]

    def penalty_value(self, w: FloatArray) -> float:
        """Return (l2/2) |w|^2 + strength g(w) on the penalised coordinates, g smooth."""
        square = float(np.sum(self.penalized * w**2))
        value = 0.5 * self.l2 * square
        if self.smooth is not None:
            value += self.smooth.strength * self.smooth.value(math.sqrt(square))
        return value

    def penalty_gradient(self, w: FloatArray) -> FloatArray:
        """Return the gradient of `penalty_value`, at a model or at every row."""
        coefficient, g = self.l2, self.smooth
        if g is not None and w.ndim == 2:
            return np.array([self.penalty_gradient(row) for row in w])
        if g is not None:
            r = math.sqrt(np.sum(self.penalized * w**2))
            coefficient += g.strength * g.coefficient(r)
        return coefficient * self.penalized * w

    def prox(self, v: FloatArray, step: float) -> FloatArray:
        """Return the prox of `proximal` at v, or every row, on the penalised coordinates."""
        if self.proximal is None:
            return v
        out, p = v.copy(), self.n_penalized
        out[..., :p] = kernels.prox(self.proximal, v[..., :p], step)
        return out

    def _proximal_value(self, w: FloatArray) -> float:
        """Return the value of `proximal` at w, on the penalised coordinates."""
        if self.proximal is None:
            return 0.0
        g = self.proximal
        value = g(w[: self.n_penalized])
        return value if isinstance(g, Constraint) else g.strength * value

    def full_prox(self, v: FloatArray, step: float) -> FloatArray:
        """Return argmin_x step r(x) + |x - v|^2 / 2, r(x) = (l2/2) |x|^2 + l1 |x|_1 + g(x).

        Completing the square eliminates l2. With l1, g is a function of |x|, so that the prox of
        the sum is the prox of l1 followed by that of g (Yu, "On decomposing the proximal map",
        NeurIPS 2013).
        """
        penalized = self.n_penalized
        shrink = 1.0 + step * self.l2
        x, step = v[:penalized] / shrink, step / shrink
        if self.proximal is not None and self.l1 > 0.0:
            x = kernels.prox(self.proximal, x, step)
        if self.other is not None:
            x = kernels.prox(self.other, x, step)
        return x if penalized == len(v) else np.append(x, v[penalized:])

    @one_blas_thread()  # others would wait for busy cores in every step of L-BFGS
    def minimum(self) -> tuple[FloatArray, float]:
        """Return minimiser and minimum of J by L-BFGS; neither is private.

        For l1 > 0, L-BFGS runs on the split w = a - b, a, b >= 0, where the objective is smooth.
        Other proximal terms are minimised by FISTA, to a relative step of 1e-10.
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
        bounds = [(0.0, None)] * (2 * d)
        found = scipy.optimize.minimize(
            split, np.zeros(2 * d), jac=True, bounds=bounds, options=options, method="L-BFGS-B"
        )
        return found.x[:d] - found.x[d:], float(found.fun)


def _proximal_minimiser(
    smooth: Callable[[FloatArray], tuple[float, FloatArray]],
    prox: Callable[[FloatArray, float], FloatArray],
    w: FloatArray,
) -> FloatArray:
    """FISTA (Beck and Teboulle 2009) with adaptive restarts (O'Donoghue and Candes 2015)."""
    step, momentum, y = 1.0, 1.0, w
    for _ in range(20_000):
        value, g = smooth(y)
        while True:
            w_next = prox(y - step * g, step)
            change = w_next - y
            bound = value + g @ change + change @ change / (2.0 * step)
            # Without a tolerance, rounding errors would shrink the steps for ever.
            if smooth(w_next)[0] <= bound + 1e-14 * abs(value):
                break
            step *= 0.5
        if math.sqrt(change @ change) <= 1e-10 * step * max(1.0, math.sqrt(g @ g)):
            return w_next
        if change @ (w_next - w) < 0.0:
            momentum, y = 1.0, w_next
        else:
            previous, momentum = momentum, 0.5 + math.sqrt(0.25 + momentum**2)
            y = w_next + (previous - 1.0) / momentum * (w_next - w)
        w = w_next
    return w


def _strengths(penalty: Penalty | None, l2: float, l1: float) -> tuple[float, float, Term | None]:
    """Return the total strengths of L2 and L1, and the other term.

    Several other terms are refused, and a nonsmooth one together with L1, since the prox of their
    sum is not known.
    """
    others: list[Term] = []
    for term in () if penalty is None else penalty.terms:
        if isinstance(term, L2):
            l2 += term.strength
        elif isinstance(term, L1):
            l1 += term.strength
        else:
            others.append(term)
    if len(others) > 1:
        names = ", ".join(term.name for term in others)
        raise ValueError(f"penalty must have at most one term beside L2 and L1, got {names}")
    if others and l1 > 0.0 and not isinstance(others[0], SmoothPenalty):
        raise ValueError(
            f"penalty must not have L1 beside {others[0].name!r}: both act by their prox, and the "
            "prox of their sum is another (ElasticNet is L1 and L2 in one)"
        )
    return l2, l1, others[0] if others else None


def _public_size(size: PublicSize, m: int) -> int | tuple[int, ...] | None:
    """Validate public sizes: one number in total, or one for each of m silos."""
    if size is None:
        return None
    listed = list(size) if isinstance(size, list | tuple | np.ndarray) else None
    sizes = tuple(count("public_size", n) for n in ([size] if listed is None else listed))
    if max(sizes, default=0) >= MAX_RECORDS:
        raise ValueError(f"public_size must be below 2^31, got {max(sizes)}")
    if listed is None and m > 1:
        return sizes[0]
    if len(sizes) != m:
        raise ValueError(f"public_size must have {m} entries, one per silo, got {len(sizes)}")
    return sizes


@dataclass(frozen=True)
class PublicNumbers:
    """What settings may depend on.

    Attributes
    ----------
    mu : float
        Budget; infinite without one.
    noise : float
        u, the std of the noise on the mean gradient of one release at C = mu = 1.
    row_bound : float
    curvature : float
        Largest norm of a record's Hessian.
    smoothness : float
        Lipschitz constant of the gradient of the smooth part of the objective.
    slope, dim, convex, hidden_layers, log_link, ordered, several, information
        Those of the model's `Scale`.
    smallest : int
        Number of records of the smallest silo.
    trust : str
    target_bound : float
        Bound of the targets: 1 for labels, infinite where none is stated.
    penalty : float
        Strength of the l2 penalty of all coordinates: 0 where the intercept has none.
    labels : bool
        Whether the targets are labels.
    pull : float
        The factor by which the gradient of the penalties is longer than a far model.
    weighted : bool
        Whether records have weights.
    """

    mu: float
    noise: float
    row_bound: float
    curvature: float
    smoothness: float
    slope: float
    dim: int
    convex: bool
    hidden_layers: bool
    smallest: int
    trust: str
    target_bound: float = 1.0
    penalty: float = 0.0
    labels: bool = True
    pull: float = 0.0
    log_link: bool = False
    ordered: bool = False
    several: bool = False
    information: float = 1.0
    weighted: bool = False

    @classmethod
    def of(
        cls,
        scale: Scale,
        budget: Budget | None,
        *,
        neighbours: str,
        weight: float,
        penalty_smoothness: float,
        **others: Any,
    ) -> "PublicNumbers":
        """Return the numbers of a run with a model of this scale.

        `weight` is that of a record in the mean gradient, or the norm of the silos' weights where
        each of them adds noise.
        """
        return cls(
            mu=math.inf if budget is None else budget.mu,
            noise=(2.0 if neighbours == "replace_one" else 1.0) * weight,
            row_bound=scale.row_bound,
            curvature=scale.smoothness,
            smoothness=scale.smoothness + penalty_smoothness,
            slope=scale.slope,
            dim=scale.dim,
            convex=scale.convex,
            hidden_layers=scale.hidden_layers,
            log_link=scale.log_link,
            ordered=scale.ordered,
            several=scale.several,
            information=scale.information,
            **others,
        )

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of gradients say what is fitted: a small clip norm makes them equal.

        Those of counts say how large means are, and those of weighted labels the weights.
        """
        return self.log_link or (self.weighted and self.labels)

    @property
    def power(self) -> float:
        """n mu, for neighbours that differ by a replaced record, or what equals it of others."""
        return 2.0 * self.mu / self.noise

    @property
    def reach(self) -> float:
        """Clip norm times horizon at which the std of the noise in margins is `margin_noise`."""
        return self.margin_noise * self.mu / (self.row_bound * self.noise)

    @property
    def margin_noise(self) -> float:
        """Std of the noise in margins that a run takes, in the unit of targets."""
        unit = self.target_bound if math.isfinite(self.target_bound) else 1.0
        of_model = _HIDDEN_LAYERS if self.hidden_layers else 1.0
        return of_model * unit * margin_noise(self.dim, labels=self.labels)


def margin_noise(dim: int, *, labels: bool) -> float:
    """Return the std of the noise in margins that a run takes; less in many dimensions."""
    return min(9.0, 50.0 / math.sqrt(dim)) * (1.0 if labels else _REAL_TARGETS)


def public_numbers(
    objective: Objective, budget: Budget | None, trust: str, neighbours: str
) -> PublicNumbers | None:
    """Return the public numbers of a run; None for a model that does not state its scale."""
    scale, data = objective.scale, objective.data
    if scale is None:
        return None
    weights = objective.record_weights() if trust == "silo" else objective.record_weight()
    return PublicNumbers.of(
        scale,
        budget,
        neighbours=neighbours,
        weight=float(np.linalg.norm(weights)),
        penalty_smoothness=objective.penalty_smoothness,
        smallest=smallest_silo(objective),
        trust=trust,
        target_bound=data.target_bound if objective.has_units else 1.0,
        penalty=objective.l2 * float(objective.penalized.min()),
        pull=objective.pull,
        labels=not objective.has_units,
        weighted=data.record_weight is not None,
    )


def smallest_silo(objective: Objective) -> int:
    """Return the public number of records of the smallest silo."""
    sizes = objective.public_size
    return int(np.min(objective.data.sizes if sizes is None else sizes))
