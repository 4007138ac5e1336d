"""Models of ordered classes."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern._numbers import positive
from dpkern.kernels.glm import loss_derivatives, loss_values
from dpkern.kernels.ordinal import MOST_CLASSES
from dpkern.models.oracles import FloatArray, Oracle
from dpkern.models.scale import Scale, curvature_of_rows

if TYPE_CHECKING:
    from dpkern.data import SiloData


# Least gap between thresholds in predictions.
_GAP = 0.01


def ordered(thresholds: FloatArray) -> FloatArray:
    """Return the nearest thresholds that grow by `_GAP` at least, by isotonic regression."""
    steps = _GAP * np.arange(len(thresholds))
    return np.asarray(scipy.optimize.isotonic_regression(thresholds - steps).x + steps)


@dataclass(frozen=True)
class AllThreshold(Oracle):
    """Ordered classes by a logistic loss at each of the K - 1 thresholds between them.

    With classes c = 0, ..., K - 1 in their order, coefficients w and thresholds theta, the loss of
    a record is

        sum_k log(1 + exp(-s_k (x . w - e theta_k))),    s_k = 1 where c > k and -1 else,

    the "all-threshold" loss of Rennie and Srebro, "Loss functions for preference levels", 2005. It
    is convex. Each sigmoid(x . w - e theta_k) estimates the probability of a class above k, as if
    "above k" were the label of a logistic regression, all with the same w. That is the model of the
    cumulative logit (proportional odds), estimated otherwise than by its likelihood: where the
    model holds, both have the same limit.

    Parameters are w and theta, without an intercept. Penalties are on w alone.

    Parameters
    ----------
    unit : float, optional
        The public unit e of thresholds, by default the row bound, or 1 without one: noise moves
        thresholds and margins alike then.
    """

    unit: float | None = None

    name = "all_threshold"
    compiled = True
    reads_weights = True

    def __post_init__(self) -> None:
        if self.unit is not None:
            object.__setattr__(self, "unit", positive("unit", self.unit))

    def classes(self, data: "SiloData") -> int:
        """Return the number K of classes."""
        if data.classes is None:
            raise ValueError("data must have classes for ordered classes, got a regression")
        if len(data.classes) > MOST_CLASSES:
            raise ValueError(f"classes must be at most {MOST_CLASSES}, got {len(data.classes)}")
        return len(data.classes)

    def stated_for(self, data: "SiloData") -> "AllThreshold":
        bound = data.row_bound
        return self if self.unit else replace(self, unit=bound if math.isfinite(bound) else 1.0)

    def dim(self, data: "SiloData") -> int:
        return data.n_features + self.classes(data) - 1

    def n_unpenalized(self, data: "SiloData") -> int:
        return self.classes(data) - 1

    def start(self, data: "SiloData") -> FloatArray:
        """Return w = 0 and the thresholds of classes that are equally frequent."""
        return self.start_at(data, np.ones(self.classes(data)))

    def start_at(self, data: "SiloData", counts: FloatArray) -> FloatArray:
        """Return w = 0 and the thresholds of positive numbers of records of the classes."""
        below = np.cumsum(counts)[:-1]
        above = np.cumsum(counts[::-1])[::-1][1:]
        return np.append(np.zeros(data.n_features), np.log(below / above) / self.stated_unit)

    def scale(self, data: "SiloData") -> Scale:
        """Return the scale of w and theta together.

        The slope is the mean of the absolute derivative by the margin where K classes are equally
        frequent, K / 4 of an even number, and thresholds have the part that they have for a record
        of the first class. With v_k = (x, -e d_k), d_k
        unit vectors, the Hessian is at most sum_k v_k v_k^T / 4, of norm ((K - 1) |x|^2 + e^2) / 4.
        """
        T = self.classes(data) - 1
        above = np.arange(1.0, T + 1.0) / (T + 1.0)
        of_thresholds = self.stated_unit * math.sqrt(float(above @ above)) * 2.0 / T
        bound = math.hypot(data.row_bound, of_thresholds)
        longest = math.hypot(data.row_bound, self.stated_unit / math.sqrt(T))
        smoothness = curvature_of_rows(0.25 * T, longest)
        return Scale(bound, 0.25 * (T + 1), smoothness, self.dim(data), ordered=True)

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        """Return the gradients by NumPy; the solvers use clipped sums of the kernels instead."""
        slopes = self._at_thresholds(loss_derivatives, w, X, y)
        of_rows = slopes.sum(axis=0)[:, np.newaxis] * (X.toarray() if hasattr(X, "toarray") else X)
        return np.hstack([of_rows, -self.stated_unit * slopes.T])

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        return np.asarray(self._at_thresholds(loss_values, w, X, y).sum(axis=0))

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        """Return the logarithms of the classes' probabilities, (k, K); of two the log odds, (k,).

        Noise may leave thresholds out of order: the nearest ones with gaps of at least 0.01 are
        taken, which are no further from the minimiser's, if these have such gaps.
        """
        coef, thresholds = self.parts(w, X.shape[1])
        z = np.asarray(X @ coef)[:, np.newaxis] - thresholds
        if z.shape[1] == 1:
            return z[:, 0]
        # P(k) = sigmoid(z_(k-1)) sigmoid(-z_k) (1 - exp(z_k - z_(k-1)))
        edge = np.zeros((len(z), 1))
        above, below = -np.logaddexp(0.0, -z), -np.logaddexp(0.0, z)
        between = np.log(-np.expm1(np.diff(z)))
        parts = (np.hstack([edge, above]), np.hstack([below, edge]), edge, between, edge)
        return np.asarray(parts[0] + parts[1] + np.hstack(parts[2:]))

    def parts(self, w: FloatArray, n_features: int) -> tuple[FloatArray, FloatArray]:
        """Return the coefficients, and the thresholds that predictions have, in order."""
        return w[:n_features].copy(), ordered(self.stated_unit * w[n_features:])

    @property
    def stated_unit(self) -> float:
        """The unit e of thresholds, 1 where none is stated."""
        return 1.0 if self.unit is None else self.unit

    @property
    def declaration(self) -> dict[str, Any]:
        return {"name": self.name, "unit": self.stated_unit}

    def _at_thresholds(self, of: Any, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        p = X.shape[1]
        z = np.asarray(X @ w[:p], dtype=np.float64)
        pairs = [
            (np.where(y > k, 1.0, -1.0), z - theta)
            for k, theta in enumerate(self.stated_unit * w[p:])
        ]
        return np.array([of(s, t, loss="logistic") for s, t in pairs])


@dataclass(frozen=True)
class CumulativeLogit(AllThreshold):
    """Ordered classes by the likelihood of the cumulative logit, or proportional odds.

    The log odds of a class above k are x . w - e theta_k, and the loss of a record is minus the log
    of the probability of its class (McCullagh, "Regression models for ordinal data", 1980). As

        sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)),

    it is that of `AllThreshold` at the two thresholds beside the class alone, plus -log(1 -
    exp(-gap)), gap the distance of these, which depends on the class and no row. Thus the
    derivatives by the margin are within 1, and what grows without bound as two thresholds come near
    each other is a sum over the counts of the classes. It is fitted by `newton_inference` alone.
    """

    name = "cumulative_logit"

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        found = super().gradients(w, X, y)
        found[:, X.shape[1] :] -= self.stated_unit * self._of_gaps(w, X, y, slopes=True)
        return found

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        return super().losses(w, X, y) + self._of_gaps(w, X, y, slopes=False)

    def _of_gaps(self, w: FloatArray, X: NDArray[Any], y: FloatArray, slopes: bool) -> FloatArray:
        gaps = np.diff(self.stated_unit * w[X.shape[1] :])
        T, c = len(gaps) + 1, np.maximum(y, 0.0).astype(np.intp)
        with np.errstate(all="ignore"):
            if not slopes:
                return np.concatenate([[0.0], -np.log(-np.expm1(-gaps)), [0.0]])[c]
            return gap_slopes(1.0 / np.expm1(gaps))[c] if T > 1 else np.zeros((len(y), T))

    def _at_thresholds(self, of: Any, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        found = super()._at_thresholds(of, w, X, y)
        return np.where(beside(y, len(found)).T, found, 0.0)


def beside(y: FloatArray, thresholds: int) -> NDArray[np.bool_]:
    """Return which thresholds are beside the classes of records, (n, T)."""
    c, k = np.maximum(y, 0.0)[:, np.newaxis], np.arange(thresholds)
    found: NDArray[np.bool_] = (k == c) | (k == c - 1.0)
    return found


def gap_slopes(slopes: FloatArray) -> FloatArray:
    """Return what slopes at the gaps of T thresholds add to derivatives there, by class, (K, T)."""
    T = len(slopes) + 1
    found = np.zeros((T + 1, T))
    for c, slope in enumerate(slopes, start=1):
        found[c, c - 1 : c + 1] = -slope, slope
    return found
