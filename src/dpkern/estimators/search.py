"""Private selection in the shape of scikit-learn's searches."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid, ParameterSampler
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dpkern._numbers import refuse_unknown
from dpkern.data import SiloData
from dpkern.data.labels import target_bounds
from dpkern.estimators.base import PrivateClassifier, PrivateEstimator
from dpkern.privacy import Certificate
from dpkern.selection import SelectionResult, select
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import chosen
from dpkern.solvers.base.options import SHARED, check_choice

# Scores of labels in `dpkern.select`, by their names in scikit-learn.
_SCORES = {"accuracy": "accuracy", "roc_auc": "auc", "neg_log_loss": "log_loss"}
# Candidates that stand for distributions, many times the usual number of runs.
_DRAWN = 256
# Parameters of an estimator that are the same for all runs on the same records.
_FIXED = (
    "solver_params",
    *("epsilon", "delta", "row_bound", "feature_range", "fit_intercept", "classes", "class_weight"),
    "target_bound",
    *(
        "trust",
        "neighbours",
        "public_size",
        "max_records",
        "accountant",
        "random_state",
        "n_jobs",
        "verbose",
    ),
)


def _has(name: str) -> Any:
    def check(search: PrivateSearchCV) -> bool:
        return hasattr(search.estimator, name)

    return available_if(check)


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
    """Choose parameters privately: the best of a random number of fits, at the price of few.

    A grid search shows scores of every candidate, and each fit costs its whole budget. Here a
    random number of fits is made with parameters drawn at random, each scored on records that it
    was not trained on, and only the best of them is shown: `dpkern.select`, whose documentation has
    the guarantee. The estimator's epsilon and delta are the budget of the whole search.

    Parameters
    ----------
    estimator : DPLogisticRegression, DPLinearSVC, DPMLPClassifier, DPRidge or DPLasso
        With trust "central" and neighbours "replace_one".
    distributions : dict or list of dict
        Lists of values, or distributions with the method ``rvs`` of ``scipy.stats``, by the names
        of parameters of the estimator ("C", "alpha", "clip", "solver", "hidden_layer_sizes", ...)
        or of its solver's own options ("rounds", ...). Public.
    mean_runs : float, default=30
        Mean of the random number of fits.
    eta : float, default=5
        Shape of the distribution of this number: see `dpkern.select`.
    holdout : float, default=0.2
        Share of the records that score the fits and train none.
    scoring : {"accuracy", "roc_auc", "neg_log_loss"}, optional
        What the best fit of a classifier has: the accuracy by default.

    Attributes
    ----------
    best_estimator_ : estimator
        The published fit, on the records that were not held out.
    best_params_ : dict
        Its parameters among those of `distributions`.
    best_score_ : float
        Its noisy score on the records held out: that of `scoring`, or, for regression, minus the
        mean of squared errors. As the best of several noisy numbers it is too good.
    privacy_ : Certificate
        The guarantee of the search.
    result_ : SelectionResult

    Examples
    --------
    >>> from scipy.stats import loguniform
    >>> from dpkern.estimators import DPLogisticRegression, PrivateSearchCV
    >>> search = PrivateSearchCV(
    ...     DPLogisticRegression(1.0, 1e-6, classes=[0, 1]),
    ...     {"C": loguniform(1e-4, 1e2), "rounds": [30, 100, 300]},
    ... )
    """

    def __init__(
        self,
        estimator: PrivateEstimator,
        distributions: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        mean_runs: float = 30.0,
        eta: float = 5.0,
        holdout: float = 0.2,
        scoring: str | None = None,
    ) -> None:
        self.estimator = estimator
        self.distributions = distributions
        self.mean_runs = mean_runs
        self.eta = eta
        self.holdout = holdout
        self.scoring = scoring

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        silos: ArrayLike | None = None,
        person: ArrayLike | None = None,
        **refused: Any,
    ) -> Self:
        """Make the search; the arguments are those of the estimator's fit.

        Raises
        ------
        TypeError, ValueError
            When an argument or a parameter is not as described; the message names it.
        SelectionError
            When every fit failed.
        """
        if not isinstance(self.estimator, PrivateEstimator):
            raise TypeError(
                f"estimator must be one of dpkern.estimators, got {type(self.estimator).__name__}"
            )
        first = clone(self.estimator)
        score = _score(first, self.scoring)
        data = first._data(X, y, silos, person, refused)
        sets = self._parameter_sets(first)
        candidates = [self._arguments(first, parameters, data) for parameters in sets]
        found = select(
            candidates,
            data,
            budget=first._budget(),
            mean_runs=self.mean_runs,
            eta=self.eta,
            holdout=self.holdout,
            accountant=first.accountant,
            rng=first._seed(),
            **score,
        )
        self.result_: SelectionResult = found
        self.best_params_ = sets[candidates.index(found.settings)]
        factor = -2.0 if not isinstance(first, PrivateClassifier) else 1.0
        self.best_score_ = (-1.0 if self.scoring == "neg_log_loss" else factor) * found.score
        best = first.set_params(**_split(first, self.best_params_))
        self.best_estimator_ = best._finish(found.result)
        self.privacy_: Certificate = best.privacy_
        for name in ("classes_", "n_features_in_", "feature_names_in_"):
            if hasattr(best, name):
                setattr(self, name, getattr(best, name))
        return self

    def _parameter_sets(self, estimator: PrivateEstimator) -> list[dict[str, Any]]:
        """Return the candidates' parameters; those of distributions are drawn without records."""
        spaces = self.distributions
        spaces = [spaces] if isinstance(spaces, Mapping) else list(spaces)
        options = {name for solver in SOLVERS.values() for name in solver.declaration.own}
        names = [*estimator.get_params(), *SHARED, *sorted(options)]
        for name in {name for space in spaces for name in space}:
            refuse_unknown("distributions", [name], names)
            if name in _FIXED:
                raise ValueError(
                    f"distributions must not hold {name!r}, which all fits of a search share: set "
                    "it on the estimator"
                )
        every_list = not any(hasattr(v, "rvs") for space in spaces for v in space.values())
        if every_list and len(ParameterGrid(spaces)) <= _DRAWN:
            found = ParameterGrid(spaces)
        else:
            seed = check_random_state(estimator.random_state)
            found = ParameterSampler(spaces, _DRAWN, random_state=seed)
        return [
            {name: v.item() if isinstance(v, np.generic) else v for name, v in parameters.items()}
            for parameters in found
        ]

    def _arguments(
        self, estimator: PrivateEstimator, parameters: dict[str, Any], data: SiloData
    ) -> dict[str, Any]:
        """Return the arguments of `dpkern.select` for one candidate."""
        one = clone(estimator).set_params(**_split(estimator, parameters))
        if isinstance(estimator, PrivateClassifier):
            one.classes_ = estimator.classes_
        arguments = one._arguments(data)
        for name in ("progress", "accountant"):  # of the search, not of one fit
            del arguments[name]
        named = one.solver
        if named == "auto":
            named = chosen(one.trust, arguments.get("model"))
        return {"solver": named, **arguments}

    @_has("predict")
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the predictions of the best estimator."""
        return self._best().predict(X)

    @_has("decision_function")
    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the decision values of the best estimator."""
        return self._best().decision_function(X)

    @_has("predict_proba")
    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the probabilities of the best estimator."""
        return self._best().predict_proba(X)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return the accuracy, or R^2, of the best estimator on labelled rows."""
        return float(self._best().score(X, y))

    def _best(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), self.estimator.__sklearn_tags__()
        for name in ("estimator_type", "target_tags", "classifier_tags", "regressor_tags"):
            setattr(tags, name, getattr(own, name))
        tags.input_tags = own.input_tags
        return tags


def _split(estimator: PrivateEstimator, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters of the estimator, what it has no name for being the solver's."""
    names = estimator.get_params()
    own = {name: value for name, value in parameters.items() if name not in names}
    rest = {name: value for name, value in parameters.items() if name in names}
    return rest | {"solver_params": {**(estimator.solver_params or {}), **own}}


def _score(estimator: PrivateEstimator, scoring: str | None) -> dict[str, Any]:
    """Return what makes a fit the best: a score of labels, or squared errors within the bound."""
    if isinstance(estimator, PrivateClassifier):
        check_choice("scoring", scoring or "accuracy", _SCORES)
        return {"score": _SCORES[scoring or "accuracy"]}
    if scoring is not None:
        raise ValueError(f"scoring must be None for a regression, got {scoring!r}")
    if not hasattr(estimator, "target_bound"):
        raise TypeError(
            "estimator must be a classifier, DPRidge or DPLasso for a search, which has no score "
            f"of means, got {type(estimator).__name__}: dpkern.select takes a loss as score"
        )
    if estimator.target_bound is None:
        raise ValueError("target_bound must be given to the estimator of a search, got None")
    # Errors between two targets within the bound are at most twice the bound.
    bound, _ = target_bounds(estimator.target_bound)
    return {"score": "squared", "score_bound": 2.0 * bound**2}
