"""The first model of a run, of public numbers and of one release of targets or ordered classes.

What is summed, and why, is with the other releases in `recalibration`.
"""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.models.ordinal import AllThreshold
from dpkern.privacy.mechanisms.gaussian_sum import Vectors
from dpkern.solvers.base.calibration import bounded
from dpkern.solvers.base.recalibration import Releases

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.run import Run

MEAN = "sum of targets over their bound"
CLASSES = "recalibration: counts of ordered classes"


def first_model(run: "Run", mu: float) -> FloatArray:
    """Return the first model of a run, public: of a released mean of targets, or released rates.

    `mu` is the budget of the recalibration.
    """
    objective = run.objective
    loss, data, w = objective.loss, objective.data, objective.start()
    with np.errstate(all="ignore"):  # an error or a warning would depend on the records
        if isinstance(loss, AllThreshold):
            counts, std = _Counts(run, mu, None).find(loss.classes(data))
            return loss.start_at(data, np.maximum(counts, 0.5 * std))
        if objective.has_units:
            w[-1] = _TargetMean(run, mu, None).find(data.target_bound)
    return w


class _TargetMean(Releases):
    """The release of the mean of targets."""

    def find(self, bound: float) -> float:
        """Return it, less what the noise explains."""
        (total,), std = self._release(MEAN, 1.0, self._mu, partial(_targets, bound), 1)
        mean, error = bounded(float(total) / self._n, 1.0), std / self._n
        return bound * mean * (mean**2 / (mean**2 + error**2))


def _targets(bound: float, part: kernels.Data) -> Vectors:
    """Return the vectors of targets over their bound."""
    return lambda rows: np.clip(part.y[rows] / bound, -1.0, 1.0)[:, np.newaxis]


@dataclass(frozen=True)
class _Indicators:
    """The indicators of the classes of records, less 1 / K."""

    classes: int

    def vectors(self, part: kernels.Data) -> Vectors:
        k = np.arange(self.classes)
        of_one = (k[:, np.newaxis] == k) - 1.0 / self.classes
        return lambda rows: of_one[np.maximum(part.y[rows], 0.0).astype(np.intp)]


class _Counts(Releases):
    """The release of the counts of classes."""

    def find(self, classes: int) -> tuple[FloatArray, float]:
        """Return the noisy counts, and the std of their noise."""
        vectors = _Indicators(classes).vectors
        sums, std = self._release(CLASSES, 1.0, self._mu, vectors, classes)
        return sums + self._n / classes, std
