"""Sums over records of functions of a record and of what was released, and their releases.

The records are those of all silos together, or of every silo by itself: then as many computations
wait for the same sums, each of its own silo, which are released at once.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._threads import resolve_threads
from dpkern._typing import FloatArray
from dpkern.data.transform import one_silo
from dpkern.kernels import Data
from dpkern.kernels._blocks import (
    MOST_STEPS,
    Request,
    gradient_steps,
    hessian_steps,
    rounded_once,
    totals,
)
from dpkern.kernels.glm import loss_parts
from dpkern.kernels.grids import hessian_row_grid
from dpkern.models.losses import Likelihood, Loss, get_loss
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum, saturated
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.base import Run
from dpkern.solvers.base.backends import awaited, interruptible

Result = TypeVar("Result")
#: A function of a block that returns a row of each of its records and a factor of it, from this
#: record alone; or, of a sum of vectors, the records themselves, whose effective rows are meant.
RecordRows = Callable[[Data], tuple[Any, FloatArray]]
# Entries of rows that are multiplied together, a cache full.
_ENTRIES = 1 << 17


@dataclass(frozen=True)
class Sum:
    """A sum over records that is to be released, of vectors or of outer products of rows.

    `bound` is that of a vector's or row's norm, and `mu` the budget, None for no noise. With
    `thresholds` a record has several rows, each cut so that the squares of all are `bound`^2.
    """

    what: str
    rows: RecordRows
    dim: int
    bound: float
    mu: float | None
    outer: bool = False
    thresholds: "Thresholds | None" = None


@dataclass(frozen=True)
class Thresholds:
    """The rows (u, -e_k d_k) of a record at thresholds k, with unit vectors d_k and units e_k.

    A record has rows at so many neighbouring thresholds, of which factors are not 0.
    """

    units: tuple[float, ...]
    each: int

    def rows(self, U: FloatArray, factors: FloatArray) -> FloatArray:
        """Return those of rows u (n, r) times factors (n, T), those of a record together."""
        (n, r), T, own = U.shape, len(self.units), np.arange(len(U))
        first = np.minimum(np.argmax(factors != 0.0, axis=1), T - self.each)
        rows = np.zeros((n, self.each, r + T))
        rows[:, :, :r] = U[:, np.newaxis]
        for i in range(self.each):
            k = first + i
            rows[own, i, r + k] = -np.array(self.units)[k]
            rows[:, i] *= factors[own, k, np.newaxis]
        return rows.reshape(n * self.each, r + T)


#: What computes a result from released sums, each with the std of its noise.
Waiting: TypeAlias = Generator[Sum, tuple[FloatArray, float], Result]


class Sums:
    """The releases of a run, of sums over all records or, under silo trust, over every silo's.

    Attributes
    ----------
    sizes : tuple of int
        Public numbers of records of what is summed.
    """

    def __init__(self, run: Run) -> None:
        self._run, data, self._alone = run, run.objective.data, run.plan.trust == "silo"
        sizes = tuple(run.objective.sizes.tolist()) if self._alone else (run.objective.n,)
        self.sizes: tuple[int, ...] = sizes
        self._parts: list[Any] = [data]
        if data.blocks is None and self._alone:
            ends = pairwise(data.offsets.tolist())
            self._parts = [_of_one(data, first, end) for first, end in ends]
        elif data.party is not None:  # which holds the records of one silo
            self._parts = [data.part(slice(0, int(data.offsets[-1])), data.offsets)]

    def __call__(self, waiting: Iterable[Waiting[Result]]) -> list[Result]:
        """Return what the computations do, one of each of `sizes`.

        They wait for as many sums, of the same kinds in the same order.
        """
        computations, answers = list(waiting), list[Any]([None] * len(self.sizes))
        while True:
            asked, results = list[Sum](), list[Result]()
            for one, answer in zip(computations, answers, strict=True):
                try:
                    asked.append(one.send(answer))
                except StopIteration as stop:
                    results.append(stop.value)
            if not asked:
                return results
            answers = self._release(asked)

    def _release(self, asked: Sequence[Sum]) -> list[tuple[FloatArray, float]]:
        """Release a sum of each, and return them with the std of their noise."""
        run, first, k = self._run, asked[0], len(asked)
        bound = math.inf if first.mu is None else first.bound
        shared: Any = {"what": first.what, "dim": first.dim, "sizes": self.sizes, "mu": first.mu}
        mechanism: GaussianHessian | GaussianSum
        if first.outer:
            mechanism = GaussianHessian(run.channel(), hess_clip=bound**2, **shared)
        else:
            mechanism = GaussianSum(run.channel(), clip=bound, **shared)
        with run.clock("kernels"):
            if isinstance(mechanism, GaussianHessian):
                sums = self._outer_products(asked, mechanism, bound**2)
            else:
                sums = self._vectors(asked, mechanism, bound)
        with run.clock("noise"):
            released = mechanism.release(sums if first.outer or len(sums) > 1 else sums[0])
        of_each = released.reshape(k, -1) if not first.outer else released
        return [(one, mechanism.noise_std) for one in of_each]

    def _vectors(self, asked: Sequence[Sum], mechanism: GaussianSum, bound: float) -> FloatArray:
        """Return the exact sums of vectors, of every silo where each adds noise, or in floats."""
        grids, threads = mechanism.grid, self._run.objective.n_threads
        of_each = [None] * len(asked) if grids is None else grids.reshape(len(asked), -1)
        requests = [
            partial(_vector_steps, one.rows, one.dim, bound, own, threads)
            for one, own in zip(asked, of_each, strict=True)
        ]
        sums = np.concatenate(self._totals(requests))
        return sums if grids is None else saturated(sums, grids)

    def _outer_products(
        self, asked: Sequence[Sum], mechanism: GaussianHessian, bound: float
    ) -> FloatArray:
        """Return the exact sums of outer products of rows, rounded once to the noise's grid."""
        objective, many = self._run.objective, asked[0].thresholds
        each = 1 if many is None else many.each
        records, bound = each * (mechanism.records or objective.data.n), bound / each
        q = 0.0 if math.isinf(bound) else hessian_row_grid(records, bound, asked[0].dim)
        by_silo = self._run.plan.shares is not None
        how = asked[0].dim, bound, q, records, by_silo, objective.n_threads
        steps = self._totals(
            [partial(_outer_steps, one.rows, one.thresholds, *how) for one in asked]
        )
        sums = np.concatenate(steps)
        return rounded_once(sums, q, np.full(len(sums), mechanism.grid)) if q else sums

    def _totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        """Return the sums over the records, or over every silo's by one pass over blocks."""
        data = self._run.objective.data
        if data.blocks is None:
            return [ask(part) for ask, part in zip(requests, self._parts, strict=True)]
        if self._alone:
            requests = [partial(_of_silo, j, ask) for j, ask in enumerate(requests)]
        return totals(data, *requests)


def _of_one(data: Any, first: int, end: int) -> Any:
    """Return records as those of one silo."""
    return data.part(slice(first, end), np.array([0, end - first]))


def _of_silo(silo: int, request: Request, block: Any) -> NDArray[Any]:
    first, end = block.offsets[silo : silo + 2].tolist()
    return request(_of_one(block, first, end))


# --- Functions of a record and of what was released, for the records of a block -------------------


class OfBlock(ABC):
    """A function of a block, whose result for the last one is kept."""

    def __init__(self, *given: Any) -> None:
        self._given = given
        self._last: tuple[Data, Any] | None = None

    def __call__(self, part: Data) -> tuple[FloatArray, FloatArray]:
        if self._last is None or self._last[0] is not part:
            with np.errstate(all="ignore"):
                self._last = part, self._of(part, *self._given)
        found: tuple[FloatArray, FloatArray] = self._last[1]
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    @staticmethod
    @abstractmethod
    def _of(part: Data, *given: Any) -> tuple[FloatArray, FloatArray]:
        """Return a row of each record of a block, and a factor of it."""


class Rows(OfBlock):
    """The rows W^T x (n, r), each from its record alone, and their weights.

    A product by BLAS would give a row other bits in another place. They have no offsets. With a
    centre they are W^T x less it.
    """

    @staticmethod
    def _of(
        part: Data,
        W: FloatArray,
        bound: float,
        n_threads: int | None,
        centre: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        U: FloatArray = interruptible(kernels.glm_products, part, W, n_threads=n_threads)
        if centre is not None:
            U -= centre
        if math.isinf(bound):
            return U, np.ones(len(U))
        norms = kernels.glm_norms(one_silo(U), n_threads=n_threads)
        return U, np.minimum(1.0, (bound / norms) ** 2)


class Slack(OfBlock):
    """How many times as long as a row times its weight may be, at least 1, and that weight."""

    @staticmethod
    def _of(
        part: Data, rows: Rows, bound: float, n_threads: int | None
    ) -> tuple[FloatArray, FloatArray]:
        U, f = rows(part)
        return bound / (f * kernels.glm_norms(one_silo(U), n_threads=n_threads)), f


class Margins(OfBlock):
    """The margin of every record at w, with its offset, and its target."""

    @property
    def w(self) -> FloatArray:
        w: FloatArray = self._given[0]
        return w

    @staticmethod
    def _of(part: Data, w: FloatArray, n_threads: int | None) -> tuple[FloatArray, FloatArray]:
        return interruptible(kernels.glm_margins, part, w, n_threads=n_threads), part.y


class Scores(OfBlock):
    """phi' and phi'' of every record at its margin, times its weight.

    Residuals are cut to a limit, or, with the slack of rows, where the record's score is as long as
    that of a row as long as the bound and a residual of the limit.
    """

    @staticmethod
    def _of(
        part: Data, margins: Margins, loss: Loss, limit: float, slack: Slack | None = None
    ) -> tuple[FloatArray, FloatArray]:
        (z, y), weight = margins(part), part.record_weight
        if isinstance(loss, Likelihood):
            _, s, q = loss_parts(y, z, loss)
            q = np.abs(s) * (1.0 - np.abs(s)) if loss.name == "logistic" else q
        else:
            r, most = z - y, limit if slack is None else limit * slack(part)[0]
            s, q = np.clip(r, -most, most), (np.abs(r) <= most).astype(np.float64)
        return (s, q) if weight is None else (s * weight, q * weight)


def cut_rows(rows: Rows, part: Data) -> tuple[FloatArray, FloatArray]:
    U, f = rows(part)
    return U, np.sqrt(f)


def curvature_rows(
    rows: Rows, scores: OfBlock, top: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    """Return rows, and the root of curvatures over the largest, which makes none longer."""
    (U, f), (_, q) = rows(part), scores(part)
    return U, np.sqrt(f * q / top)


def square_rows(rows: Rows, scores: OfBlock, k: float, part: Data) -> tuple[FloatArray, FloatArray]:
    (U, f), (s, _) = rows(part), scores(part)
    return U, f * np.abs(s) / k


def score_vectors(
    rows: Rows, scores: OfBlock, k: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    (U, f), (s, _) = rows(part), scores(part)
    return U, f * s / k


def residual_vectors(margins: Margins, target: float, part: Data) -> tuple[FloatArray, FloatArray]:
    z, y = margins(part)
    with np.errstate(all="ignore"):
        r = z - y
        square: FloatArray = np.minimum(r * r / target**2, 1.0) - 0.5
    return square[:, np.newaxis], np.ones(len(r))


def target_vectors(most: float, part: Data) -> tuple[FloatArray, FloatArray]:
    """Return weighted targets over the largest one, less 1/2, or as they are where none is."""
    weight = np.ones(part.n) if part.record_weight is None else part.record_weight
    if math.isinf(most):
        return part.y[:, np.newaxis], weight
    return (weight * np.clip(part.y / most, 0.0, 1.0) - 0.5)[:, np.newaxis], np.ones(part.n)


def own_rows(part: Data) -> tuple[Any, FloatArray]:
    """Return the records, and 1 of each: no weights of theirs."""
    return part, np.ones(part.n)


def _labelled(rows: Any, chosen: slice, v: FloatArray) -> Data:
    """Return these of the rows as one silo with the labels -v, and nothing else beside them."""
    y = -v[chosen]
    if isinstance(rows, np.ndarray):
        return one_silo(rows[chosen], y=y)
    part = rows.part(chosen, np.array([0, len(y)]))
    names = ("d", "scale", "shift", "intercept", "row_bound", "row_norms")
    return one_silo(part.X, y=y, **{name: getattr(part, name) for name in names})


def _pieces(offsets: Sequence[int], most: int) -> Iterator[tuple[int, slice]]:
    """Yield silos with records of theirs, at most so many."""
    for j, (first, end) in enumerate(pairwise(offsets)):
        for i in range(first, end, most):
            yield j, slice(i, min(i + most, end))


def _vector_steps(
    vectors: RecordRows,
    d: int,
    bound: float,
    grids: FloatArray | None,
    n_threads: int | None,
    part: Data,
) -> NDArray[Any]:
    """Return the sums (k, d) of rows times their factors, of a block, in steps of the grids (k,).

    They are over all records, or over every silo's, and in floats without a grid. At 0 the
    derivative of the squared loss is minus the label.
    """
    U, v = vectors(part)
    threads = resolve_threads(n_threads, len(v) * d)
    w, squared = np.zeros((1, d)), get_loss("squared")
    if grids is None:
        return gradient_steps(w, squared, bound, None, None, threads, _labelled(U, slice(None), v))
    total, most = np.zeros((len(grids), d), np.int64), int(MOST_STEPS * grids.min() / bound)
    offsets = part.offsets.tolist() if len(grids) == part.m else [0, len(v)]
    for j, chosen in _pieces(offsets, most):
        few = _labelled(U, chosen, v)
        steps = partial(gradient_steps, w, squared, bound, grids[j : j + 1], None, threads, few)
        total[j] += awaited(steps, few.n * d)[0]
    return total


def _outer_steps(
    rows: RecordRows,
    thresholds: Thresholds | None,
    d: int,
    bound: float,
    q: float,
    records: int,
    by_silo: bool,
    n_threads: int | None,
    part: Data,
) -> NDArray[Any]:
    """Return the sums (k, d, d) of outer products of the rows of a block, in steps of q^2.

    They are over all records, or over every silo's.
    """
    U, v = rows(part)
    offsets = part.offsets.tolist() if by_silo else [0, len(U)]
    total = np.zeros((len(offsets) - 1, d, d), dtype=np.int64 if q else np.float64)
    how = np.zeros((1, d)), get_loss("squared"), False, bound, q, None, records, n_threads
    each = 1 if thresholds is None else thresholds.each
    most = records if thresholds is None or not q else min(records, max(_ENTRIES // d, 1))
    for j, chosen in _pieces(offsets, max(most // each, 1)):
        own, factor = U[chosen], v[chosen]
        if thresholds is None:
            few = one_silo(own, record_weight=factor * factor)
        else:
            few = one_silo(thresholds.rows(own, factor))
        total[j] += awaited(partial(hessian_steps, *how, few), few.n * d * d)[0]
    return total
