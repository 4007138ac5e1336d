"""Ordered classes."""

from __future__ import annotations  # help() then shows type aliases by name

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from dpkern.data.labels import declared_labels
from dpkern.estimators.base import WithProbabilities, documented, with_errors
from dpkern.estimators.linear import l2_of
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.solvers import SolverResult


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPOrdinalClassifier(WithProbabilities):
    """A differentially private linear model of ordered classes, such as ratings or stages.

    Minimises (1/n) sum_i sum_k log(1 + exp(-s_ik (x_i . w - theta_k))) + |w|^2 / (2 C n), with s_ik
    = 1 where the class of record i is above threshold k and -1 else: a logistic loss at each of the
    thresholds between classes, all with the same coefficients w (the "all-threshold" loss; losses
    are changed where their gradient is clipped). It is not the likelihood of the cumulative logit,
    and estimates the same coefficients where that model holds; `form` has the likelihood.

    Parameters
    ----------
    classes : sequence, optional
        The public labels **in their order**, the lowest first: ["mild", "moderate", "severe"].
        `classes_` and the columns of `predict_proba` have this order, where scikit-learn's scores
        of probabilities sort labels: take numbers for these. Without `classes` they are read from
        the labels, and are in the order of numbers or the alphabet.
    C : float
        Inverse of the strength of the penalty; thresholds have none.
    form : {"thresholds", "likelihood"}
        The loss: "likelihood" is that of the cumulative logit (proportional odds), which needs more
        records, about as many as standard errors do (the solver `newton_inference`).
    inference : bool
        Whether coefficients and thresholds have standard errors: ``result_.summary()`` is their
        table, with odds ratios, and nothing is clipped (the solver `newton_inference`).

    Attributes
    ----------
    classes_ : ndarray of shape (K,), in their order
    coef_ : ndarray of shape (n_features,)
        In units of the features as given: log odds of a higher class for one unit more. Rows beyond
        the row bound are shortened before the product, in `predict` too.
    thresholds_ : ndarray of shape (K - 1,)
        x . coef - thresholds[k] are the log odds of a class above classes_[k]. In order, at least
        0.01 apart.

    Notes
    -----
    Released are the counts of the classes, at which the thresholds start, and what the solver
    releases: see its documentation and the text of `privacy_`. `predict` returns the most probable
    class.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkern.estimators import DPOrdinalClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1.0, 1.0, (20_000, 2))
    >>> y = np.digitize(2.0 * X[:, 0] + rng.logistic(size=20_000), [-1.0, 1.0])
    >>> how = {"feature_range": (-1.0, 1.0), "classes": [0, 1, 2], "random_state": 0}
    >>> model = DPOrdinalClassifier(3.0, 1e-6, **how).fit(X, y)
    >>> bool(np.abs(model.thresholds_ - [-1.0, 1.0]).max() < 0.3)
    True
    """

    C: float = 1.0
    form: str = "thresholds"
    inference: bool = False

    _two_as_several: ClassVar[bool] = True

    def _declared_classes(self) -> NDArray[Any]:
        if isinstance(self.classes, set | frozenset):
            raise TypeError("classes must be a list of the labels in their order, got a set")
        return declared_labels(self.classes)

    def _model(self, n: int) -> dict[str, Any]:
        kinds = {"thresholds": AllThreshold, "likelihood": CumulativeLogit}
        if not isinstance(self.form, str) or self.form not in kinds:
            raise ValueError(f"form must be 'thresholds' or 'likelihood', got {self.form!r}")
        errors = with_errors(self.inference)
        return {"model": kinds[self.form](), "l2": l2_of(self.C, n), **errors}

    def _set_fitted(self, result: SolverResult) -> None:
        model, transform = cast(AllThreshold, result.oracle), result.transform
        coef, thresholds = model.parts(result.w, transform.n_features)
        if transform.shift is not None:
            thresholds = thresholds - coef @ np.asarray(transform.shift)
        scale = 1.0 if transform.scale is None else np.asarray(transform.scale)
        self.coef_, self.thresholds_ = coef * scale, thresholds

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # of classes in no order, as in its checks
        return tags
