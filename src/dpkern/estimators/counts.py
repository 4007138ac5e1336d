"""Regressions with a log link: counts, costs and durations."""

from __future__ import annotations  # help() then shows type aliases by name

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from dpkern._numbers import positive
from dpkern._typing import FloatArray
from dpkern.data.dask_parts import in_parts
from dpkern.data.labels import log_exposures, values_of_records
from dpkern.estimators.base import PrivateEstimator, documented, strength, with_errors
from dpkern.models.losses import Gamma, LogLink, Poisson
from dpkern.solvers import SolverResult
from dpkern.solvers.base.coefficients import layers

_MEANS = 1e-3, 10.0


@dataclass(eq=False, repr=False, kw_only=True)
class _LogLinkRegressor(RegressorMixin, PrivateEstimator):
    """A regression of targets y >= 0, of which exp(x.w + intercept) is the mean.

    Parameters
    ----------
    max_target : float, optional
        Public bound of y: larger targets count as this one. Without it the level of all means is
        that of the clipped gradients, which is too low where large targets are rare.
    mean_range : pair (lo, hi), optional
        Public bounds of the means, 0 < lo < hi: predictions are within them, and the fit begins in
        their middle, on a log scale. A factor of 100 around what is usual is enough. By default
        they are from a thousandth of `max_target`, a hundredth of costs, up to it; without a
        `max_target` from 0.001 to 10.
    alpha : float
        Strength of |w|^2 / 2, without the intercept, beside the mean loss.
    inference : bool
        Whether coefficients have standard errors: `result_.summary()` is their table, with ratios
        of means, nothing is clipped (the solver `newton_inference`), and `max_target` is required.
        The noise is in proportion to the larger one of `max_target` and the top of `mean_range`, or
        of gamma regressions to `max_target` over the least mean.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Logs of ratios of means, such as rate ratios, in units of the features as given.
    intercept_ : float
    """

    max_target: float | None = None
    mean_range: Sequence[float] | None = None
    alpha: float = 0.0
    inference: bool = False

    _loss: ClassVar[type[LogLink]]
    _power: ClassVar[int]
    _metadata: ClassVar[tuple[str, ...]] = ("sample_weight", "exposure")
    __metadata_request__fit: ClassVar[dict[str, None]] = {"exposure": None}

    def _check_targets(self, y: NDArray[Any]) -> None:
        if bad := int(np.count_nonzero(values_of_records("y", y, len(y)) < 0.0)):
            raise ValueError(f"y must be at least 0, got {bad} negative of {len(y)} targets")

    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        return {"task": "regression", "intercept": self.fit_intercept}

    def _model(self, n: int) -> dict[str, Any]:
        most = math.inf if self.max_target is None else positive("max_target", self.max_target)
        if self.mean_range is None and most < math.inf:
            loss = self._loss.of_targets(most)
        else:
            means = _MEANS if self.mean_range is None else self.mean_range
            loss = self._loss.of_means(means, most)
        return {
            "loss": loss,
            "l2": strength("alpha", self.alpha),
            "penalize_intercept": not self.fit_intercept,
            **with_errors(self.inference),
        }

    def _set_fitted(self, result: SolverResult) -> None:
        ((coef, intercept),) = layers(result)
        self.coef_, self.intercept_ = coef[0], float(intercept[0])

    @in_parts
    def predict(self, X: ArrayLike) -> FloatArray:
        """Return the predicted means, shape (n,), for an exposure of 1."""
        rows = self._rows(X)
        return self.result_.predict(rows)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Return the share of the deviance that is explained; not private.

        With the exposures of the records, which `fit` got, it is the share over a constant mean for
        an exposure of 1.
        """
        y, means = np.asarray(y), np.asarray(self.predict(X))
        if exposure is not None:
            # A deviance d of power p has d(e y, e m) = e^(2 - p) d(y, m).
            sizes = np.exp(log_exposures(exposure, len(means)))
            y = values_of_records("y", y, len(means)) / sizes
            weights = 1.0 if sample_weight is None else np.asarray(sample_weight)
            sample_weight = weights * sizes ** (2 - self._power)
        return float(d2_tweedie_score(y, means, sample_weight=sample_weight, power=self._power))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # of some hundred records little is learnt
        return tags


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPPoissonRegressor(_LogLinkRegressor):
    """Differentially private regression of counts, by the Poisson likelihood.

    Minimises (1/n) sum_i (exp(z_i) - y_i z_i) + (alpha/2) |w|^2, z = x.w + intercept + log of the
    exposure, as scikit-learn's PoissonRegressor does, which has y / exposure as target and the
    exposure as weight. Counts may be more dispersed than Poisson's: the means are consistent still.

    Notes
    -----
    Released is what the solver releases and, with `max_target`, the sums of targets and means that
    give the level of all means: see the text of `privacy_`.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkern.estimators import DPPoissonRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1.0, 1.0, (20_000, 2))
    >>> y = rng.poisson(0.3 * np.exp(X[:, 0]))
    >>> bounds = {"feature_range": (-1.0, 1.0), "max_target": 5}
    >>> model = DPPoissonRegressor(1.0, 1e-6, random_state=0, **bounds).fit(X, y)
    >>> bool(abs(model.coef_[0] - 1.0) < 0.2)
    True
    """

    _loss = Poisson
    _power = 1


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPGammaRegressor(_LogLinkRegressor):
    """Differentially private regression of costs or durations, by the gamma likelihood.

    Minimises (1/n) sum_i (y_i exp(-z_i) + z_i) + (alpha/2) |w|^2, z = x.w + intercept + log of the
    exposure: what matters is the quotient of a target and its mean. `max_target` is required.
    """

    _loss = Gamma
    _power = 2

    def _check_targets(self, y: NDArray[Any]) -> None:
        super()._check_targets(y)
        if bad := int(np.count_nonzero(np.asarray(y) == 0.0)):
            raise ValueError(f"y must be positive, got {bad} of {len(y)} targets that are not")

    def _options(self, known: NDArray[Any] | None) -> dict[str, Any]:
        if self.max_target is None:
            raise ValueError("max_target must be given: the public bound of y")
        return super()._options(known)
