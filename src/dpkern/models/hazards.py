"""Discrete hazards of a time to an event, with a person as the record."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import real
from dpkern._typing import FloatArray
from dpkern.kernels.glm import loss_derivatives, loss_values
from dpkern.models.losses import ComplementaryLogLog, Logistic
from dpkern.models.oracles import Oracle
from dpkern.models.scale import Scale, curvature_of_rows

if TYPE_CHECKING:
    from dpkern.data import SiloData

# The column of ones that all intervals have, and the one that each has of its own: a departure of a
# single interval from the level of all is learnt by the square of the second.
_LEVEL, _OF_INTERVAL = 1.0, 0.5
_LINKS = {"cloglog": ComplementaryLogLog(1.0), "logistic": Logistic()}
# The sum over intervals of a person's second derivatives that settings reckon with: a cumulative
# hazard of 1, as long hazards are clipped.
_CURVATURE = 2.5


def checked_edges(name: str, edges: object) -> tuple[float, ...]:
    """Return public edges of intervals of time, increasing from 0 or more; at least two."""
    if isinstance(edges, str) or not isinstance(edges, Sequence | np.ndarray):
        raise TypeError(f"{name} must be a sequence of times, got {type(edges).__name__}")
    found = tuple(real(name, edge) for edge in edges)
    if len(found) < 2 or found[0] < 0.0 or min(np.diff(found)) <= 0.0:
        raise ValueError(f"{name} must be two or more increasing times from 0 on, got {found!r}")
    return found


def cells_of(time: ArrayLike, event: ArrayLike, edges: Sequence[float]) -> NDArray[np.int64]:
    """Return the cell of each person: the interval of the event, or the intervals at risk.

    Of K intervals (edges[k], edges[k + 1]], an event in interval k is cell k, and one before
    edges[0] is in the first interval. A person without an event who was at risk for j whole
    intervals, from 0 to K, is cell K + j: a time of censoring within an interval counts as its
    nearer end, and an event after the last edge is no event.

    Parameters
    ----------
    time : array_like of shape (n,)
        Time of the event or of censoring, from 0 on.
    event : array_like of shape (n,), bool, or 0 and 1
        Whether the event happened at that time.
    edges : sequence of K + 1 floats
        Public.

    Returns
    -------
    ndarray of shape (n,), int64, from 0 to 2 K
    """
    t, e = times_and_events(time, event)
    points, K = np.asarray(edges, dtype=np.float64), len(edges) - 1
    happened = e & (t <= points[-1])
    interval = np.clip(np.searchsorted(points, t, side="left") - 1, 0, K - 1)
    middles = 0.5 * (points[1:] + points[:-1])
    whole = np.searchsorted(middles, t, side="right")
    return np.where(happened, interval, K + whole).astype(np.int64)


def times_and_events(
    time: ArrayLike, event: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return times from 0 on, and whether each is that of an event; errors show no value."""
    t, e = np.asarray(time), np.asarray(event)
    if t.ndim != 1 or t.dtype.kind not in "fiu":
        raise TypeError(f"time must be numbers of shape (n,), got {t.dtype} of shape {t.shape}")
    if e.shape != t.shape or e.dtype.kind not in "fiub":
        raise TypeError(
            f"event must be True or False for each time, shape {t.shape}, got {e.dtype} of shape "
            f"{e.shape}"
        )
    t = t.astype(np.float64)
    for name, bad, need in (
        ("time", ~(np.isfinite(t) & (t >= 0.0)), "finite and not negative"),
        ("event", ~np.isin(e, (0, 1)), "True or False, or 1 or 0"),
    ):
        if bad.any():
            count = int(np.count_nonzero(bad))
            raise ValueError(f"{name} must be {need}, got {count} of {len(t)} that are not")
    return t, e.astype(bool)


def concordance(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> float:
    """Return Harrell's concordance: how often the earlier event has the higher risk. Not private.

    Pairs are comparable if the earlier time is that of an event; equal risks count as one half.
    """
    agreeing, pairs = comparable_pairs(time, event, risk)
    if not pairs:
        raise ValueError("time and event must have a comparable pair of people, got none")
    return 0.5 + 0.5 * agreeing / pairs


def comparable_pairs(time: ArrayLike, event: ArrayLike, risk: ArrayLike) -> tuple[int, int]:
    """Return the concordant less the discordant pairs of people, and the comparable ones."""
    t, e = times_and_events(time, event)
    r = np.asarray(risk)
    if r.shape != t.shape or r.dtype.kind not in "fiub" or not np.isfinite(r).all():
        raise ValueError(f"risk must be finite numbers of shape {t.shape}, one for each time")
    # Later times first, and of equal ones those without an event, which come after it.
    order = np.lexsort((e, -t))
    t, e = t[order], e[order]
    ranks = np.unique(r[order], return_inverse=True)[1].reshape(t.shape).astype(np.int64)
    new = np.append(True, (np.diff(t) != 0.0) | np.diff(e)) if len(t) else np.empty(0, bool)
    later = np.maximum.accumulate(np.where(new, np.arange(len(t)), 0))[e]
    below, up_to = (_count_below(ranks, later, ranks[e] + side) for side in (0, 1))
    return int((below + up_to - later).sum()), int(later.sum())


def _count_below(
    values: NDArray[np.int64], ends: NDArray[np.int64], most: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many of values[:end] are below each number, by a wavelet matrix."""
    first, last, found = np.zeros_like(ends), ends, np.zeros_like(ends)
    largest = max(int(most.max(initial=0)), int(values.max(initial=0)))
    for bit in reversed(range(largest.bit_length())):
        is_one = (values >> bit & 1).astype(bool)
        zeros = np.append(0, np.cumsum(~is_one))
        of_first, of_last, goes = zeros[first], zeros[last], (most >> bit & 1).astype(bool)
        found = found + np.where(goes, of_last - of_first, 0)
        first = np.where(goes, zeros[-1] + first - of_first, of_first)
        last = np.where(goes, zeros[-1] + last - of_last, of_last)
        values = np.concatenate([values[~is_one], values[is_one]])
    return found


@dataclass(frozen=True)
class DiscreteHazards(Oracle):
    """Hazards of K public intervals of time, of people with a time to an event.

    The hazard h_k of interval k, the probability of the event in it without one before, has
    link(h_k) = theta_k + x.beta. The loss of a person is the sum over the intervals in which it was
    at risk, the last of which may have the event; intervals after that count nothing, so that
    follow-up is as private as everything else of a person, whose gradient is clipped as one.

    Parameters
    ----------
    edges : sequence of K + 1 floats
        Public edges of the intervals, increasing from 0 or more.
    link : {"cloglog", "logistic"}
        "cloglog" is proportional hazards with grouped times; "logistic" proportional odds of the
        hazards.

    Notes
    -----
    Weights of records are read, and margin offsets are not. Labels are the cells of
    `dpkern.models.hazards.cells_of`, of the classes range(2 K + 1). The parameters are beta and K
    numbers g, of which theta = start + (0.5 I + u 1 1^T) g, with u such that the square of the
    matrix is 0.25 I + 1 1^T: the level of all intervals is learnt as an intercept, and departures
    from it more slowly.
    """

    edges: tuple[float, ...]
    link: str = "cloglog"

    name = "discrete_hazards"
    compiled = True
    reads_weights = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", checked_edges("edges", self.edges))
        if self.link not in _LINKS:
            raise ValueError(f"link must be 'cloglog' or 'logistic', got {self.link!r}")

    @property
    def unit(self) -> tuple[str, str]:
        """What x.beta adds to, and what its differences are logs of."""
        if self.link == "cloglog":
            return "log hazard", "hazard ratios"
        return "log odds", "odds ratios of the hazards"

    @property
    def intervals(self) -> int:
        """K."""
        return len(self.edges) - 1

    def dim(self, data: "SiloData") -> int:
        cells = 0 if data.classes is None else len(data.classes)
        if data.task != "multiclass" or cells != 2 * self.intervals + 1:
            raise ValueError(
                f"data must have the {2 * self.intervals + 1} cells of {self.intervals} intervals "
                "as classes, as dpkern.models.hazards.cells_of numbers them"
            )
        if data.margin_offset is not None:
            raise ValueError("data must have no margin_offset for hazards of intervals, got one")
        stated = None if data.schema is None else data.schema.intervals
        if stated not in (None, self.edges):
            raise ValueError(
                f"edges must be the intervals of the schema, {stated}, got {self.edges}"
            )
        return data.n_features + self.intervals

    def scale(self, data: "SiloData") -> Scale:
        bound = math.hypot(data.row_bound, _LEVEL, _OF_INTERVAL)
        smoothness = curvature_of_rows(_CURVATURE, bound)
        return Scale(bound, 1.0, smoothness, data.n_features + 1, log_link=True)

    def log_hazards(self, w: FloatArray) -> FloatArray:
        """Return theta, shape (K,): the links of the hazards of a row of zeros."""
        K = self.intervals
        g = w[len(w) - K :]
        half = 0.5 ** (1.0 / K)  # in each interval, if half of all people have the event
        start = math.log(-math.log(half)) if self.link == "cloglog" else math.log(1.0 / half - 1.0)
        return start + _OF_INTERVAL * g + self._mixing * g.sum()

    def level(self, w: FloatArray) -> float:
        """Return the log of the sum over intervals of exp(theta), a cumulative hazard."""
        return float(np.logaddexp.reduce(self.log_hazards(w)))

    @property
    def _mixing(self) -> float:
        K = self.intervals
        return (math.sqrt(_OF_INTERVAL**2 + K * _LEVEL**2) - _OF_INTERVAL) / K

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):  # an error or a warning would depend on the records
            X, z, label, at_risk = self._of_intervals(w, X, y)
            d1 = loss_derivatives(label.ravel(), z.ravel(), loss=_LINKS[self.link]).reshape(z.shape)
            d1 = np.where(at_risk, d1, 0.0)
            s = d1.sum(axis=1)
            shared = (self._mixing * s)[:, np.newaxis]
            return np.hstack([s[:, np.newaxis] * X, _OF_INTERVAL * d1 + shared])

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        _, z, label, at_risk = self._of_intervals(w, X, y)
        values = loss_values(label.ravel(), z.ravel(), loss=_LINKS[self.link]).reshape(z.shape)
        return np.where(at_risk, values, 0.0).sum(axis=1)

    def _of_intervals(
        self, w: FloatArray, X: Any, y: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]:
        """Return rows, and of each person and interval margin, label and whether it is at risk."""
        K, cell, k = self.intervals, y.astype(np.int64)[:, np.newaxis], np.arange(self.intervals)
        X = np.ascontiguousarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64)
        z = self.risks(w, X)[:, np.newaxis] + self.log_hazards(w)
        at_risk = np.where(cell < K, k <= cell, k < cell - K)
        return X, z, np.where(k == cell, 1.0, -1.0), at_risk

    def risks(self, w: FloatArray, X: Any) -> FloatArray:
        """Return x.beta of every row, shape (n,), each from its row alone."""
        X = X.toarray() if hasattr(X, "toarray") else X
        return (X * w[: X.shape[1]]).sum(axis=1)

    def survival(self, w: FloatArray, X: Any) -> FloatArray:
        """Return the probabilities of no event up to each edge, shape (n, K + 1)."""
        events = np.cumsum(np.exp(self.outputs(w, X)[:, : self.intervals]), axis=1)
        return np.clip(1.0 - np.insert(events, 0, 0.0, axis=1), 0.0, 1.0)

    def concordance(self, cells: ArrayLike, risk: ArrayLike) -> float:
        """Return the concordance of risks and times known up to their interval; not private.

        It is NaN without a comparable pair.
        """
        cell, K = np.asarray(cells), self.intervals
        agreeing, pairs = comparable_pairs(np.where(cell < K, cell + 1, cell - K), cell < K, risk)
        return 0.5 + 0.5 * agreeing / pairs if pairs else math.nan

    def outputs(self, w: FloatArray, X: Any) -> FloatArray:
        """Return logs of the probabilities of all cells, without censoring, shape (n, 2 K + 1).

        Cells of censoring before the last edge have probability 0.
        """
        z, K = self.risks(w, X)[:, np.newaxis] + self.log_hazards(w), self.intervals
        none, event = (
            -loss_values(np.full(z.size, side), z.ravel(), loss=_LINKS[self.link]).reshape(z.shape)
            for side in (-1.0, 1.0)
        )
        after = np.cumsum(none, axis=1)
        found = np.full((len(z), 2 * K + 1), -np.inf)
        found[:, :K] = event + after - none
        found[:, -1] = after[:, -1]
        return found

    @property
    def declaration(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}
