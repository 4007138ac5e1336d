"""Tests, by post-processing of releases, of whether a run has learnt anything, or diverged."""

import math

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._typing import FloatArray

# Fewer rounds are too few for the test.
_LEAST_ROUNDS = 12

# Ratio of last to first squared gradient norm; it is below a tenth for runs that learn.
_LARGEST_RATIO = 0.5

# Ratio of mean squared gradient norms, last quarter to the least of those before it, from which
# gradients have grown: runs that hold their level, noise or not, stay below 2.5. Among few
# numbers noise alone reaches it, and the ratio must be one that it exceeds this seldom. The same
# holds of every round of the last three quarters and the first few, or norms grew by so many
# deviations of those that they ended with.
_GROWN, _FALSE_ALARMS, _LEAST_GROWING, _CLEAR = 4.0, 1e-6, 8, 10.0

# Numbers that are looked at together: a look takes as long as a round of few records does.
_AT_ONCE = 4096

GREW = (
    "the released gradients grew and did not fall again: steps are too long, and the model may "
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
    the same to all of them. So they were where norms grew in the first rounds, up to the clip norm,
    and stayed there, in every round of the last three quarters. Else it compares the means of the
    first and the last quarter.

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
        self._waiting: list[FloatArray] = []
        self._numbers = 0

    def add(self, gradients: FloatArray) -> None:
        """Add the released gradient mappings of the next rounds, shape (rounds, d)."""
        if self._rounds < _LEAST_GROWING:
            return
        self._numbers += gradients.size
        if self._numbers < _AT_ONCE:
            self._waiting.append(gradients.copy())
        else:
            self._look_at_waiting()
            self._look(gradients)

    def _look_at_waiting(self) -> None:
        if self._waiting:
            self._look(np.concatenate(self._waiting))
        self._waiting.clear()
        self._numbers = 0

    def _look(self, gradients: FloatArray) -> None:
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
        self._look_at_waiting()
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
        squares, k = np.array(self._squares), self._quarter
        *before, last = (float(squares[i * k :][:k].sum()) for i in (0, 1, 2, -1))
        if last > self._ratio(k, k) * min(before) > 0.0:
            return True
        norms = np.sqrt(squares[k:])
        least, changes = float(norms.min()), np.diff(norms)
        level, n = least - _CLEAR * math.sqrt(0.5 * float(np.mean(changes * changes))), 1
        while n < k:
            first = float(squares[:n].mean())
            ratio = _GROWN if math.sqrt(first) < level else self._ratio(1, n)
            if least * least > ratio * first > 0.0:
                return True
            n *= 2
        return False

    def _ratio(self, rounds: int, before: int) -> float:
        """Return the ratio of two means over so many rounds from which the first is the larger."""
        freedom = self._dim * rounds, self._dim * before
        return max(_GROWN, float(scipy.special.fdtri(*freedom, 1.0 - _FALSE_ALARMS)))

    def _squared(self, total: FloatArray) -> float:
        mean = total / self._quarter
        return float(mean @ mean)
