"""Time to an event: discrete hazards."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.data.dask_parts import in_parts, is_dask
from dpkern.estimators.base import (
    MODEL_IN_MEMORY,
    PrivateEstimator,
    documented,
    strength,
)
from dpkern.models.hazards import DiscreteHazards, cells_of, checked_edges, concordance
from dpkern.solvers import SolverResult
from dpkern.solvers.base.coefficients import layers


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPDiscreteHazards(PrivateEstimator):
    """Differentially private regression of a time to an event, by hazards of intervals.

    Minimises the mean over people of -log likelihood, times sample_weight / max_weight if weights
    are given, plus (alpha/2) |w|^2 over all parameters: within each public interval the event has
    the probability h_k(x), link(h_k(x)) = theta_k + x . coef, as long as a person is at risk. A
    person counts as one record, whatever the follow-up.

    Parameters
    ----------
    intervals : sequence of K + 1 floats
        Public edges of K intervals of time, increasing from 0 or more, such as (0, 30, 90, 365).
        Events after the last edge count as none; a time of censoring within an interval counts as
        its nearer edge. Each interval should be long enough for some hundred events.
    link : {"cloglog", "logistic"}
        "cloglog" is proportional hazards of the unknown times within intervals, as Cox's model
        has; "logistic" has proportional odds of h_k.
    clip : float or "auto"
        The clip norm of a person's gradient, over all intervals together. "auto" is the norm that a
        person with the event, the longest row and no cumulative hazard has.
    fit_intercept : bool
        Must be True: hazards of intervals have a level.
    alpha : float
        Strength of |w|^2 / 2 beside the mean loss.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Logs of hazard ratios (of odds ratios of hazards with "logistic"), in units of the features
        as given.
    hazard_ratios_ : dict of str to float
        exp(coef) by the names of the features, x0, x1 and so on without names.
    baseline_ : ndarray of shape (K,)
        Links of the hazards of a row of zeros.

    Notes
    -----
    Released is what the solver releases: see the text of `privacy_`. Whether and when people had
    the event or were lost is in no setting, error or certificate.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkern.estimators import DPDiscreteHazards
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1.0, 1.0, (5_000, 2))
    >>> time = 100.0 * rng.exponential(np.exp(-X[:, 0]))
    >>> y = np.column_stack([np.minimum(time, 150.0), time <= 150.0])
    >>> model = DPDiscreteHazards(
    ...     1.0, 1e-6, intervals=(0, 25, 50, 100, 150), feature_range=(-1, 1), random_state=0
    ... ).fit(X, y)
    >>> bool(abs(model.coef_[0] - 1.0) < 0.2)
    True
    >>> model.predict_survival_function(X[:1]).shape
    (1, 5)
    """

    intervals: Sequence[float] | None = None
    link: str = "cloglog"
    alpha: float = 0.0

    def _data(
        self, X: Any, y: Any, silos: Any, person: Any, metadata: Mapping[str, Any]
    ) -> SiloData:
        if self.intervals is None:
            raise ValueError("intervals must be given: public edges of intervals of time")
        if self.fit_intercept is not True:
            raise ValueError(f"fit_intercept must be True, got {self.fit_intercept!r}")
        if is_dask(X):
            raise TypeError(MODEL_IN_MEMORY)
        self._hazards = DiscreteHazards(checked_edges("intervals", self.intervals), self.link)
        cells = cells_of(*_time_and_event(y), self._hazards.edges)
        return super()._data(X, cells, silos, person, metadata)

    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        cells = np.arange(2 * self._hazards.intervals + 1)
        return {"task": "multiclass", "classes": cells, "intercept": False}

    def _model(self, n: int) -> dict[str, Any]:
        return {"model": self._hazards, "l2": strength("alpha", self.alpha)}

    def _set_fitted(self, result: SolverResult) -> None:
        ((coef, level),) = layers(result)
        self.coef_ = coef[0]
        self.baseline_ = self._hazards.log_hazards(result.w)
        self.baseline_ += level[0] - self._hazards.level(result.w)
        names = result.feature_names or [f"x{j}" for j in range(len(self.coef_))]
        ratios = np.exp(self.coef_).tolist()
        self.hazard_ratios_ = dict(zip(names, ratios, strict=True))

    @in_parts
    def predict(self, X: ArrayLike) -> FloatArray:
        """Return risk scores, shape (n,): logs of hazard ratios to an effective row of zeros."""
        return self.result_.predict(self._rows(X))

    @in_parts
    def predict_survival_function(self, X: ArrayLike) -> FloatArray:
        """Return the probabilities of no event up to each edge, shape (n, K + 1)."""
        return self.result_.predict_survival_function(self._rows(X))

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return Harrell's concordance of risk scores and times; not private."""
        return concordance(*_time_and_event(y), self.predict(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _time_and_event(y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return times and events of y: a structured array, as scikit-survival has it, or columns."""
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None and len(names) == 2:
        event = [name for name in names if y.dtype[name].kind == "b"]
        if len(event) == 1:
            (time,) = (name for name in names if name not in event)
            return y[time], y[event[0]]
    columns = np.asarray(y)
    if columns.dtype == object and columns.ndim == 2:
        columns = columns.astype(np.float64)
    if names is not None or columns.ndim != 2 or columns.shape[1] != 2:
        raise ValueError(
            "y must have two columns, time and event, or be a structured array with a field of "
            f"type bool and one of numbers, got shape {columns.shape}"
        )
    return columns[:, 0], columns[:, 1]
