"""The line of targets: level and slope of least squares, released after a run.

Clipped gradients end at a median's level, and predict noise of targets that hardly depend on the
features. So with the model w of a run, z_i = x_i . w and c its first model's intercept, the scale s
of predictions is released as that of margins in `recalibration`, and with T the bound of targets,
r_i = (y_i - z_i) / T and u_i = clamp((z_i - c) / s, -1, 1)

    sum_i ( clamp(r_i, -1/2, 1/2), 2 clamp(r_i, -1/4, 1/4) u_i )                       C = 0.7072

says by how much predictions are to be moved, and by what part of them less noise is predicted
(docs/proofs/recalibration.md).
"""

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy import split_budget
from dpkern.privacy.mechanisms.gaussian_sum import Vectors
from dpkern.solvers.base.calibration import bounded
from dpkern.solvers.base.coefficients import CoefficientNoise
from dpkern.solvers.base.recalibration import Margins, Releases, Scaled, unit_of_margins, usable

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.run import Run

# The parts of the share of mu^2 for the scale and for the sums; where residuals are cut in units of
# the bound of targets, for the level and for the slope; and the clip norm, at least half of the
# diagonal of a square.
_SHARES = (0.2, 0.8)
_LEVEL_CLIP, _SLOPE_CLIP, _CLIP = 0.5, 0.25, 0.7072
# The square of the mean root of the sizes of Gaussian predictions, in their standard deviations;
# what is seen of a slope where residuals are cut; and the slope that is likely beforehand, with its
# error. By so small a part of the noise none is told.
_SQUARE_OF_ROOT, _SEEN, _LEAST_SEEN = 0.676, 0.9, 1e-6
_LIKELY, _ERROR = 0.8, 0.4

LINE_OF_TARGETS = "recalibration: sums of residuals, and of these times predictions"
Moved = tuple[FloatArray, CoefficientNoise | None]


class TargetLine(NamedTuple):
    """What predictions z become: centre + slope (z + level - centre)."""

    centre: float
    slope: float
    level: float
    error: float  #: standard deviation of the noise in the level

    def applied(self, w: FloatArray, noise: CoefficientNoise | None) -> Moved:
        """Return the model that predicts so, and what is known of its noise."""
        moved = self.slope * w
        moved[-1] = self.centre + self.slope * (w[-1] + self.level - self.centre)
        if noise is not None:
            std = math.hypot(self.slope * noise.intercept_std, self.error)
            noise = CoefficientNoise(self.slope * noise.std, std, proved=False)
        return moved, noise


def with_line(run: "Run", w: FloatArray, noise: CoefficientNoise | None) -> Moved:
    """Return a model with the level and slope of targets, and what is known of its noise."""
    if not run.plan.line_mu:
        return w, noise
    margins = Margins(w, run.objective.n_threads)
    with np.errstate(all="ignore"):  # an error or a warning would depend on the records
        farthest = float(np.linalg.norm(w[:-1])) * run.objective.data.row_bound
        farthest += abs(float(w[-1]) - run.centre)
        line = _Line(run, run.plan.line_mu, None).find(margins, farthest, run.centre)
        return line.applied(w, noise)


class _Line(Releases):
    """The releases of the line."""

    def find(self, margins: Margins, farthest: float, centre: float) -> TargetLine:
        """Return the line, each of its numbers less what the noise explains.

        No prediction is more than `farthest` away from the centre.
        """
        bound, most = self._run.objective.data.target_bound, usable(farthest)
        mu_u, mu_r = split_budget(self._mu, _SHARES, (1, 1))
        root, error = self._root(mu_u, Scaled(margins, centre, most).sizes)
        scale = unit_of_margins(root, error)
        unit = scale * most
        vectors = partial(_residuals, bound, Scaled(margins, centre, unit))
        (residual, score), std = self._release(LINE_OF_TARGETS, _CLIP, mu_r, vectors, 2)
        std /= self._n
        mean = bounded(float(residual) / self._n, _LEVEL_CLIP)
        # The mean of v clamp(v, -1, 1), of Gaussian v in that unit, is their variance times the
        # share of those that are not cut. The score is the slope less 1 times this.
        v = max(root, error) ** 2 / (_SQUARE_OF_ROOT * scale)
        covariance = v**2 * math.erf(1.0 / (math.sqrt(2.0) * v))
        seen = _SEEN * _LEVEL_CLIP / _SLOPE_CLIP * unit / bound * covariance
        seen = max(seen, _LEAST_SEEN * std)
        gain = _ERROR**2 / (_ERROR**2 + (std / seen) ** 2)
        found = 1.0 + float(score) / self._n / seen
        slope = 0.5 + bounded(_LIKELY + gain * (found - _LIKELY) - 0.5, 0.5)
        return TargetLine(centre, slope, bound * mean**3 / (mean**2 + std**2), bound * std)


def _residuals(bound: float, scaled: Scaled, part: kernels.Data) -> Vectors:
    """Return the vectors of residuals over the bound of targets, cut, and of them times u, cut."""
    shares = np.nan_to_num((part.y[: part.offsets[-1]] - scaled.margins(part)) / bound, nan=0.0)

    def vectors(rows: slice) -> FloatArray:
        short = np.clip(shares[rows], -_SLOPE_CLIP, _SLOPE_CLIP) * (_LEVEL_CLIP / _SLOPE_CLIP)
        level = np.clip(shares[rows], -_LEVEL_CLIP, _LEVEL_CLIP)
        return np.column_stack([level, short * scaled.u(part, rows)])

    return vectors
