"""Estimates of ordered classes, by the sum of logistic losses at their thresholds.

With C, W and f as in `dpkern.solvers.newton_inference`, the mean row m and u = W^T (x - m), the
margin of a record at threshold k is u . t - e_k tau_k, theta = (t, tau). Its score is
f (a u, -e_0 g_0, ..., -e_(T-1) g_(T-1)), g_k the derivatives of the logistic losses and a their
sum, and its curvature the sum over k of f h_k v_k v_k^T, v_k = (u, -e_k d_k) with unit vectors d_k
and h_k = |g_k| (1 - |g_k|).
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
from dpkern.models.ordinal import AllThreshold
from dpkern.solvers.base import Run
from dpkern.solvers.base.inference import constant_combinations
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.releases.estimation import CURVATURES, OF_RESIDUALS, Estimation
from dpkern.solvers.releases.estimation_sums import (
    OfBlock,
    RecordRows,
    Rows,
    Sum,
    Thresholds,
    Waiting,
    margins_of,
)

CLASSES = "inference: sum of indicators of ordered classes"
# The longest unit of a threshold, over C: noise is for rows of this length, too.
_LONGEST_UNIT = 0.5


class OrderedEstimation(Estimation):
    """The estimate of ordered classes from all records of a run, and its covariance."""

    def __init__(self, run: Run, steps: int, *, n: int, clip: float) -> None:
        super().__init__(run, steps, n=n, clip=clip)
        self._model = cast(AllThreshold, run.objective.loss)
        self._T = self._model.classes(self._data) - 1
        self._likely = False
        self._centre = np.zeros(self._data.d)

    @staticmethod
    def _loss_of(objective: Objective) -> Loss:
        return Logistic()

    @property
    def _is_centred(self) -> bool:
        return True

    def start(self) -> Waiting[FloatArray]:
        """Release geometry and counts of classes, and return theta of the model of these rates."""
        objective, n, T = self._run.objective, self._n, self._T
        W, J, self._stretch = yield from self._geometry()
        counts = partial(class_vectors, T + 1)
        total, std = yield Sum(CLASSES, counts, T + 1, 1.0, self._mus[OF_RESIDUALS])
        counted = np.maximum(total, max(0.5 * std, 1e-9 * n))
        at = self._model.start_at(self._data, counted)[len(W) :] * self._model.stated_unit
        self._above = scipy.special.expit(-at)
        h = self._above * (1.0 - self._above)
        e = np.minimum(self._stretch * np.sqrt(h.sum() / h), _LONGEST_UNIT * self._C)
        self._at = Thresholds(tuple(e.tolist()))
        self._rows, self._bound = self._rows_of(W, self._C), 1.0
        if math.isfinite(self._C):  # sums are of vectors and rows no longer than 1
            self._k = math.sqrt((T * self._C) ** 2 + float(e @ e))
            self._top = 0.25 * T * (self._C**2 + float(e.max()) ** 2)
        # The model of theta: x.w less its thresholds is u.t - e tau.
        constants = np.tile(self._centre @ W, (T, 1))
        lower = np.hstack([constants, np.diag(e)]) / self._model.stated_unit
        self.W = np.vstack([np.hstack([W, np.zeros((len(W), T))]), lower])
        penalty = objective.l2 * n * objective.penalized
        self._penalty = (self.W.T * penalty) @ self.W
        self._J = n * scipy.linalg.block_diag(h.sum() * J, np.diag(e * e * h)) + self._penalty
        self._std = 0.0
        return np.append(np.zeros(W.shape[1]), at / e)

    def _squares_of_model(self, J: FloatArray) -> FloatArray:
        """Return them by the rates of the classes, where rows say nothing of the class."""
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
        return _Scores(w, self._model.stated_unit, self._T, self._threads)

    def _curvatures(self, scores: OfBlock, mu: float | None) -> Sum:
        rows = partial(_curvature_rows, self._rows, scores, self._top)
        how = len(self._J), self._bound, mu
        return Sum(CURVATURES, rows, *how, outer=True, thresholds=self._at)

    def _vectors(self, scores: OfBlock) -> RecordRows:
        return partial(_score_vectors, self._rows, scores, self._at.units, self._k)

    def _squares(self, scores: OfBlock, top: float) -> RecordRows:
        return self._vectors(scores)


class _Scores(OfBlock):
    """g_k and h_k of every record at w, times its weight, (n, T)."""

    @staticmethod
    def _of(
        part: Data, w: FloatArray, unit: float, T: int, n_threads: int | None
    ) -> tuple[FloatArray, FloatArray]:
        p, y, weight = len(w) - T, part.y, part.record_weight
        z = margins_of(part, np.ascontiguousarray(w[:p]), n_threads)
        G = np.empty((len(z), T))
        for k in range(T):
            side = np.where(y > k, 1.0, -1.0)
            G[:, k] = loss_derivatives(side, z - unit * w[p + k], loss="logistic")
        H = np.abs(G) * (1.0 - np.abs(G))
        if weight is None:
            return G, H
        return G * weight[:, np.newaxis], H * weight[:, np.newaxis]


def class_vectors(classes: int, part: Data) -> tuple[FloatArray, FloatArray]:
    """Return the indicators of the classes of records, (n, K)."""
    found = np.arange(classes) == np.maximum(part.y, 0.0)[:, np.newaxis]
    return found.astype(np.float64), np.ones(len(found))


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
