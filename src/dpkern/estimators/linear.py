"""Linear models."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import LARGEST, not_negative, positive
from dpkern.data.labels import target_bounds, values_of_records
from dpkern.estimators.base import (
    PrivateClassifier,
    PrivateRegressor,
    WithProbabilities,
    documented,
    strength,
    with_errors,
)
from dpkern.models.networks import MLP
from dpkern.solvers import SolverResult
from dpkern.solvers.base.coefficients import layers

# The default strength of |w|_1 in units of the targets' bound.
_ALPHA = 1e-3


def l2_of(C: float, n: int) -> float:
    """Return the strength of |w|^2 / 2 in a mean of losses, for 1 / C in their sum."""
    number = positive("C", C, or_infinite=True)
    if number < (least := 1.0 / (LARGEST * n)):
        raise ValueError(f"C must be at least {least:.3g} for {n} records, got {number!r}")
    return 1.0 / (number * n)


@dataclass(eq=False, repr=False, kw_only=True)
class _LinearClassifier(PrivateClassifier):
    """A linear classifier.

    Parameters
    ----------
    C : float
        Inverse of the strength of the penalty.
    class_weight : dict, optional
        Public weights of two classes, 1 where none is given: the weight of a record is that of its
        class, times its `sample_weight`, over the largest one that there may be, which C is for. As
        scikit-learn's but for "balanced", which reads the records. Probabilities are then those of
        weighted records, and have no recalibration.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features), or (K, n_features) for K > 2 classes
        In units of the features as given. Rows beyond the row bound are shortened before the
        product, in `predict` too.
    intercept_ : ndarray of shape (1,) or (K,)
    """

    C: float = 1.0
    class_weight: Mapping[Any, float] | None = None

    def _set_fitted(self, result: SolverResult) -> None:
        ((self.coef_, self.intercept_),) = layers(result)

    def _class_weights(self) -> list[float]:
        """Return the public weights of `classes_`."""
        given = self.class_weight
        if not isinstance(given, Mapping):
            why = ", which reads the records" if isinstance(given, str) else ""
            raise ValueError(
                "class_weight must be a dictionary of public weights such as {label: weight}, by "
                f"shares of the classes that are known without these records, got {given!r}{why}"
            )
        if self._is_several():
            raise ValueError("class_weight must be None for more than two classes")
        if unknown := [label for label in given if label not in self.classes_]:
            raise ValueError(
                f"class_weight must be of the classes {self.classes_.tolist()}, got {unknown}"
            )
        found = [
            not_negative(f"class_weight[{label!r}]", given.get(label, 1.0))
            for label in self.classes_.tolist()
        ]
        if not max(found) > 0.0:
            raise ValueError(f"class_weight must have a positive weight, got {given!r}")
        return found

    def _largest_weight(self, weighted: bool) -> float | None:
        largest = super()._largest_weight(weighted)
        if self.class_weight is None:
            return largest
        return max(self._class_weights()) * (1.0 if largest is None else largest)

    def _weights(self, y: NDArray[Any], sample_weight: Any) -> Any:
        if self.class_weight is None:
            return sample_weight
        first, second = self._class_weights()
        of_class = np.where(y == self.classes_[1], second, first)  # other labels are refused later
        if sample_weight is None:
            return of_class
        return of_class * values_of_records("sample_weight", sample_weight, len(y))


@dataclass(eq=False, repr=False, kw_only=True)
class _LinearRegressor(PrivateRegressor):
    """A linear regression.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        In units of the features as given. Rows beyond the row bound are shortened before the
        product, in `predict` too.
    intercept_ : float
    """

    def _set_fitted(self, result: SolverResult) -> None:
        ((coef, intercept),) = layers(result)
        self.coef_, self.intercept_ = coef[0], float(intercept[0])


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPLogisticRegression(_LinearClassifier, WithProbabilities):
    """Differentially private logistic regression; softmax regression for several classes.

    Minimises (1/n) sum_i loss_i(w) + |w|^2 / (2 C n), the objective of scikit-learn's
    LogisticRegression over C n, where the intercept has a penalty too; losses are changed where
    their gradient is clipped (Huberised).

    Parameters
    ----------
    inference : bool
        Whether coefficients have standard errors, of two classes: `result_.summary()` is their
        table, with odds ratios, and nothing is clipped (the solver `newton_inference`).

    Notes
    -----
    Released is what the solver releases: see its documentation and the text of `privacy_`. The fit
    reads nothing else of the records, but the labels where `classes` are not given.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dpkern.estimators import DPLogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> lo, hi = 0.0, [40, 50, 250, 3000] + [1] * 6 + [5, 5, 30, 600] + [1] * 6 + [
    ...     50, 60, 300, 5000] + [2] * 6
    >>> model = DPLogisticRegression(1.0, 1e-5, feature_range=(lo, hi), classes=[0, 1]).fit(X, y)
    >>> model.privacy_.epsilon(1e-5) <= 1.0
    True
    """

    inference: bool = False

    def _model(self, n: int) -> dict[str, Any]:
        several = self._is_several() and not self.inference  # else refused, by that name
        kind = {"model": MLP(hidden=())} if several else {"loss": "logistic"}
        return {"l2": l2_of(self.C, n), **kind, **with_errors(self.inference)}


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPLinearSVC(_LinearClassifier):
    """A differentially private linear support vector machine for two classes.

    Minimises (1/n) sum_i loss_i(w) + |w|^2 / (2 C n) with the hinge loss, smoothed around its kink.
    """

    def _model(self, n: int) -> dict[str, Any]:
        return {"loss": "smoothed_hinge", "l2": l2_of(self.C, n)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPRidge(_LinearRegressor):
    """Differentially private linear regression with a penalty |w|^2.

    Minimises |y - X w - b|^2 + alpha |w|^2, the objective of scikit-learn's Ridge.

    Parameters
    ----------
    alpha : float
        Strength of the penalty.
    inference : bool
        Whether coefficients have standard errors: `result_.summary()` is their table, and needs a
        target bound (the solver `newton_inference`).

    Notes
    -----
    With a target bound, the solver "auto" is `ridge`, one noisy release of the moments, for n mu
    >= 6000 d^(3/2) (n records, d coefficients), and `gradient_descent` below.
    """

    alpha: float = 1.0
    inference: bool = False

    def _model(self, n: int) -> dict[str, Any]:
        l2 = strength("alpha", self.alpha, most=LARGEST * n) / n
        return {"loss": "squared", "l2": l2, **with_errors(self.inference)}


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPLasso(_LinearRegressor):
    """Differentially private linear regression with a penalty |w|_1.

    Minimises |y - X w - b|^2 / (2 n) + alpha |w|_1, the objective of scikit-learn's Lasso. Features
    are mapped by `feature_range` before, so that the penalty is on coefficients of those.

    Parameters
    ----------
    alpha : float or "auto"
        Strength of the penalty: a thousandth of the targets' bound, or of 1 without one.
    """

    alpha: float | str = "auto"

    def _model(self, n: int) -> dict[str, Any]:
        alpha: Any = self.alpha
        if isinstance(alpha, str) and alpha == "auto":
            bound = 1.0 if self.target_bound is None else target_bounds(self.target_bound)[0]
            alpha = _ALPHA * bound
        return {"loss": "squared", "l1": strength("alpha", alpha)}
