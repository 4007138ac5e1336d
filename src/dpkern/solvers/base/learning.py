"""Tests, by post-processing of releases, of whether a run has learnt anything, or diverged."""

import math

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Fewer rounds are too few for the test.
_LEAST_ROUNDS = 12

# Ratio of last to first squared gradient norm; it is below a tenth for runs that learn.
_LARGEST_RATIO = 0.5

# Ratio of mean squared gradient norms, last quarter to the least of those before it, from which
# gradients have grown: runs that hold their level, noise or not, stay below 2.5. Among few
# numbers noise alone reaches it, and the ratio must be one that it exceeds this seldom.
_GROWN, _FALSE_ALARMS, _LEAST_GROWING = 4.0, 1e-6, 8

GREW = (
    "the released gradients grew towards the last rounds: steps are too long, and the model may "
    "have diverged; take an l2 penalty, smaller steps ({}) or a larger budget"
)

NO_PROGRESS = (
    "little learnt, as far as the releases tell: the released gradients did not shrink from the "
    "first rounds to the last; take larger steps ({}) or more rounds, and give features "
    "of very different scales a feature_range"
)


class NothingLearntWarning(UserWarning):
    """By its released gradients, a run's model is no better than its starting point, or worse."""


class LearningWatch:
    """Compares the released gradients of the quarters of the rounds.

    Has the mean of squared norms grown towards the last quarter, steps were too long: noise adds
    the same to all of them. Else it compares the means of the first and the last quarter.

    It reads releases only, so that its finding is post-processing. The noise variance is estimated
    from differences of successive releases, and subtracted from the squared norms of the means. Is
    the noise of successive gradients not `independent`, there is no finding.
    """

    def __init__(self, rounds: int, *, independent: bool = True) -> None:
        rounds = rounds if independent else 0
        self._rounds, self._quarter, self._seen, self._dim = rounds, rounds // 4, 0, 0
        self._first, self._last, self._variance = np.zeros(0), np.zeros(0), 0.0
        self._previous: FloatArray | None = None
        self._squares: list[float] = []

    def add(self, gradients: FloatArray) -> None:
        """Add the released gradient mappings of the next rounds, shape (rounds, d)."""
        if self._rounds >= _LEAST_GROWING:
            self._squares += np.einsum("ij,ij->i", gradients, gradients).tolist()
            self._dim = gradients.shape[1]
        if self._rounds < _LEAST_ROUNDS:
            return
        if self._previous is None:
            self._first, self._last = np.zeros((2, gradients.shape[1]))
            self._previous = gradients[0]
        changes = [gradients[:1] - self._previous]
        if len(gradients) > 1:
            changes.append(gradients[1:] - gradients[:-1])
        for change in changes:  # not by BLAS, whose threads would wait for busy cores
            self._variance += 0.5 * float(np.einsum("ij,ij->", change, change))
        self._previous = gradients[-1].copy()
        seen, self._seen = self._seen, self._seen + len(gradients)
        if seen < self._quarter:
            self._first += np.add.reduce(gradients[: self._quarter - seen])
        last = self._rounds - self._quarter
        if self._seen > last:
            self._last += np.add.reduce(gradients[max(0, last - seen) :])

    def finding(self) -> str:
        """Return the warning to the user, with a place for the option of steps, or nothing."""
        if self._grew():
            return GREW
        if self._seen < max(self._rounds, _LEAST_ROUNDS):
            return ""
        noise = self._variance / (self._seen - 1) / self._quarter  # in the mean of a quarter
        first, last = (self._squared(g) - noise for g in (self._first, self._last))
        error = 4.0 * noise * math.sqrt(2.0 / self._first.size)  # four deviations
        return NO_PROGRESS if first > error and last > _LARGEST_RATIO * first + error else ""

    def _grew(self) -> bool:
        if len(self._squares) < max(self._rounds, _LEAST_GROWING):
            return False
        k = self._quarter
        *before, last = (math.fsum(self._squares[i * k :][:k]) for i in (0, 1, 2, -1))
        freedom = self._dim * k
        ratio = max(_GROWN, float(scipy.special.fdtri(freedom, freedom, 1.0 - _FALSE_ALARMS)))
        return last > ratio * min(before) > 0.0

    def _squared(self, total: FloatArray) -> float:
        mean = total / self._quarter
        return float(mean @ mean)
