"""Estimates of ordered classes, by the sum of logistic losses at their thresholds.

With C, W and f as in `dpkern.solvers.newton_inference`, the mean row m and u = W^T (x - m), the
margin of a record at threshold k is u . t - e_k tau_k, theta = (t, tau). Its score is
f (a u, -e_0 g_0, ..., -e_(T-1) g_(T-1)), g_k the derivatives of the logistic losses and a their
sum, and its curvature the sum over k of f h_k v_k v_k^T, v_k = (u, -e_k d_k) with unit vectors d_k
and h_k = |g_k| (1 - |g_k|). Of the likelihood of the cumulative logit g_k is 0 but at the two
thresholds beside the record's class, and -sum_c n_c log(1 - exp(-gap_c)) is added, n_c the released
counts of the classes between two thresholds.
"""

import math
from functools import partial
from typing import cast

import numpy as np
import scipy

from dpkern._typing import FloatArray
from dpkern.kernels import Data
from dpkern.kernels.glm import loss_derivatives
from dpkern.models.losses import Logistic, Loss
from dpkern.models.ordinal import AllThreshold, CumulativeLogit, beside, gap_slopes
from dpkern.solvers.base import Run
from dpkern.solvers.base.inference import constant_combinations
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.releases.estimation import CURVATURES, OF_RESIDUALS, Estimation
from dpkern.solvers.releases.estimation_sums import (
    Margins,
    OfBlock,
    RecordRows,
    Rows,
    Sum,
    Thresholds,
    Waiting,
)

CLASSES = "inference: sum of indicators of ordered classes"
# The longest unit of a threshold, over C: noise is for rows of this length, too.
_LONGEST_UNIT = 0.5
# The least part of a gap that a step leaves, and the shortest gap that standard errors reckon with;
# steps leave one of which squares are doubles.
_LEAST_GAP, _SHORTEST_GAP, _TINY = 0.2, 0.01, 1e-12


class OrderedEstimation(Estimation):
    """The estimate of ordered classes from all records of a run, and its covariance."""

    def __init__(self, run: Run, steps: int, *, n: int, clip: float) -> None:
        super().__init__(run, steps, n=n, clip=clip)
        self._model = cast(AllThreshold, run.objective.loss)
        self._T = self._model.classes(self._data) - 1
        self._is_likelihood = isinstance(self._model, CumulativeLogit)
        self._centre = np.zeros(self._data.d)

    @staticmethod
    def _loss_of(objective: Objective) -> Loss:
        return Logistic()

    @property
    def _is_centred(self) -> bool:
        return True

    def start(self) -> Waiting[FloatArray]:
        """Release geometry and counts of classes, and return theta of the model of these rates."""
        objective, n, T, each = self._run.objective, self._n, self._T, self._each
        W, J, self._stretch = yield from self._geometry()
        self._rows = self._rows_of(W, self._C)
        counts = partial(class_vectors, self._rows, T + 1)
        total, self._std_of_counts = yield Sum(CLASSES, counts, T + 1, 1.0, self._mus[OF_RESIDUALS])
        counted = np.maximum(total, max(0.5 * self._std_of_counts, 1e-9 * n))
        self._between = counted[1:-1]
        at = self._model.start_at(self._data, counted)[len(W) :] * self._model.stated_unit
        self._above = scipy.special.expit(-at)
        h = self._above * (1.0 - self._above)
        if self._is_likelihood:
            h = h * (counted[:-1] + counted[1:]) / counted.sum()
        e = np.minimum(self._stretch * np.sqrt(h.sum() / h), _LONGEST_UNIT * self._C)
        self._at = Thresholds(tuple(e.tolist()), each)
        self._bound = 1.0
        if math.isfinite(self._C):  # sums are of vectors and rows no longer than 1
            self._k = self._longest_score(np.zeros(T - 1))
            self._top = 0.25 * each * (self._C**2 + float(e.max()) ** 2)
        # The model of theta: x.w less its thresholds is u.t - e tau.
        constants = np.tile(self._centre @ W, (T, 1))
        lower = np.hstack([constants, np.diag(e)]) / self._model.stated_unit
        self.W = np.vstack([np.hstack([W, np.zeros((len(W), T))]), lower])
        penalty = objective.l2 * n * objective.penalized
        self._penalty = (self.W.T * penalty) @ self.W
        theta = np.append(np.zeros(W.shape[1]), at / e)
        of_thresholds = counted.sum() * np.diag(e * e * h)
        self._J = scipy.linalg.block_diag(n * h.sum() * J, of_thresholds)
        self._of_rows = scipy.linalg.block_diag(J, np.diag(e * e))
        self._J, self._std = self._J + self._known(theta)[1], 0.0
        return theta

    @property
    def _each(self) -> int:
        """The number of thresholds at which a record has a loss, at most."""
        return min(self._T, 2) if self._is_likelihood else self._T

    def _longest_score(self, slopes: FloatArray) -> float:
        """Return the bound of a record's score, with slopes of its own at gaps."""
        e = np.array(self._at.units)
        if not self._is_likelihood:  # of both ends
            return math.sqrt((self._T * self._C) ** 2 + float(e @ e))
        of_class = (np.abs(gap_slopes(slopes)) + beside(np.arange(self._T + 1.0), self._T)) * e
        return math.sqrt(self._C**2 + float((of_class**2).sum(axis=1).max()))

    # --- The distances of thresholds --------------------------------------------------------

    def _gaps(self, theta: FloatArray) -> FloatArray:
        return np.diff(np.array(self._at.units) * theta[len(theta) - self._T :])

    def _known(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        g, J = super()._known(theta)
        if not self._is_likelihood or self._T == 1:
            return g, J
        slope, D = 1.0 / np.expm1(self._gaps(theta)), self._of_gaps(len(theta))
        curvature = self._between * slope * (1.0 + slope)
        return g - D.T @ (self._between * slope), J + (D.T * curvature) @ D

    def _known_noise(self, theta: FloatArray) -> FloatArray:
        if not self._is_likelihood or self._T == 1:
            return super()._known_noise(theta)
        gaps = np.maximum(self._gaps(theta), _SHORTEST_GAP)
        noisy = (self._std_of_counts / np.expm1(gaps))[:, np.newaxis] * self._of_gaps(len(theta))
        found: FloatArray = noisy.T @ noisy
        return found

    def _of_gaps(self, dim: int) -> FloatArray:
        """Return D, with which D theta are the gaps."""
        D, e = np.zeros((self._T - 1, dim)), np.array(self._at.units)
        D[:, dim - self._T :] = np.diff(np.diag(e), axis=0)
        return D

    def _within(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the direction with which gaps stay above a part of what they are."""
        if not self._is_likelihood or self._T == 1:
            return direction
        least, end = np.maximum(_LEAST_GAP * self._gaps(theta), _TINY), theta - direction
        short = np.maximum(least - self._gaps(end), 0.0)
        moved = np.append(0.0, np.cumsum(short))
        end[len(theta) - self._T :] += (moved - moved.mean()) / np.array(self._at.units)
        return direction if not short.any() else theta - end

    def _squares_of_model(self, J: FloatArray) -> FloatArray:
        """Return them by the rates of the classes, where rows say nothing of the class."""
        if self._is_likelihood:  # where the model holds
            return J
        P, h = self._above, self._above * (1.0 - self._above)
        both, r = np.minimum.outer(P, P) - np.outer(P, P), len(J) - self._T
        root = np.sqrt(np.maximum(np.diag(J)[r:], 0.0) / h)
        Q = J.copy()
        Q[:r, :r] *= both.sum() / h.sum()
        Q[:r, r:] *= both.sum(axis=0) / h
        Q[r:, :r] = Q[:r, r:].T
        Q[r:, r:] = both * np.outer(root, root)
        return Q

    # --- What is released -------------------------------------------------------------------

    def _centred(self) -> Waiting[FloatArray]:
        total = yield from self._sum_rows()
        self._centre = total / self._n
        found: FloatArray = scipy.linalg.null_space(constant_combinations(self._data)[0].T)
        return found

    def _rows_of(self, W: FloatArray, bound: float) -> Rows:
        return Rows(W, bound, self._threads, self._centre @ W)

    def _scores(self, w: FloatArray) -> OfBlock:
        none = np.zeros(0)
        return _Scores(
            w, self._model.stated_unit, self._T, self._is_likelihood, none, self._threads
        )

    def _curvatures(self, scores: OfBlock, mu: float | None) -> Sum:
        rows = partial(_curvature_rows, self._rows, scores, self._top)
        how = len(self._J), self._bound, mu
        return Sum(CURVATURES, rows, *how, outer=True, thresholds=self._at)

    def _vectors(self, scores: OfBlock) -> RecordRows:
        return partial(_score_vectors, self._rows, scores, self._at.units, self._k)

    def _squares(self, theta: FloatArray) -> tuple[RecordRows, float]:
        w, unit, k = self.W @ theta, self._model.stated_unit, self._k
        slopes = np.zeros(0)
        if self._is_likelihood and self._T > 1:  # with what a record adds to the known part
            gaps = np.maximum(self._gaps(theta), _SHORTEST_GAP)
            slopes = 1.0 / np.expm1(gaps)
            k = self._longest_score(slopes) if math.isfinite(self._C) else k
        scores = _Scores(w, unit, self._T, self._is_likelihood, slopes, self._threads)
        return partial(_score_vectors, self._rows, scores, self._at.units, k), k


class _Scores(OfBlock):
    """g_k and h_k of every record at w, times its weight, (n, T)."""

    @staticmethod
    def _of(
        part: Data,
        w: FloatArray,
        unit: float,
        T: int,
        is_likelihood: bool,
        slopes: FloatArray,
        n_threads: int | None,
    ) -> tuple[FloatArray, FloatArray]:
        p, y, weight = len(w) - T, part.y, part.record_weight
        z, _ = Margins(np.ascontiguousarray(w[:p]), n_threads)(part)
        G = np.empty((len(z), T))
        for k in range(T):
            side = np.where(y > k, 1.0, -1.0)
            G[:, k] = loss_derivatives(side, z - unit * w[p + k], loss="logistic")
        H = np.abs(G) * (1.0 - np.abs(G))
        if is_likelihood:
            at = beside(y, T)
            G, H = np.where(at, G, 0.0), np.where(at, H, 0.0)
        if len(slopes):
            G += gap_slopes(slopes)[np.maximum(y, 0.0).astype(np.intp)]
        if weight is None:
            return G, H
        return G * weight[:, np.newaxis], H * weight[:, np.newaxis]


def class_vectors(rows: Rows, classes: int, part: Data) -> tuple[FloatArray, FloatArray]:
    """Return the indicators of the classes of records, (n, K), and the weights of their scores."""
    found, (_, f) = np.arange(classes) == np.maximum(part.y, 0.0)[:, np.newaxis], rows(part)
    return found.astype(np.float64), f if part.record_weight is None else f * part.record_weight


def _curvature_rows(
    rows: Rows, scores: OfBlock, top: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    """Return u, and the roots of f h_k over `top`, factors of the rows at thresholds."""
    (U, f), (_, H) = rows(part), scores(part)
    return U, np.sqrt(f[:, np.newaxis] * H / top)


def _score_vectors(
    rows: Rows, scores: OfBlock, units: tuple[float, ...], k: float, part: Data
) -> tuple[FloatArray, FloatArray]:
    (U, f), (G, _) = rows(part), scores(part)
    a = np.zeros(len(U))
    for column in G.T:
        a += column
    return np.hstack([a[:, np.newaxis] * U, -np.array(units) * G]), f / k
