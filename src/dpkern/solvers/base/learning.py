"""Whether a run has learnt anything, as far as its released numbers tell."""

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Fewer rounds tell nothing apart.
_LEAST_ROUNDS = 12

# Of the squared norm of the gradient; runs that learn leave less than a tenth.
_MOST_LEFT = 0.5

STANDS_STILL = (
    "little learnt, as far as the releases tell: the released gradients did not shrink from the "
    "first rounds to the last; take larger steps (step_size) or more rounds, and give features "
    "of very different scales a feature_range"
)


class NothingLearntWarning(UserWarning):
    """The released gradients of a run say that its model is hardly better than its start."""


class LearningWatch:
    """Means of the released gradients over the first and the last quarter of the rounds.

    It reads released vectors only, so what it finds is post-processing. The noise of one release is
    estimated by differences of successive ones, and taken off the squared norms of the means.

    Parameters
    ----------
    rounds : int
        Rounds of the run.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds, self._quarter, self._seen = rounds, rounds // 4, 0
        self._first, self._last, self._variance = np.zeros(0), np.zeros(0), 0.0
        self._before: FloatArray | None = None

    def see(self, gradient: FloatArray) -> None:
        """The released gradient mapping of the next round."""
        if self._rounds < _LEAST_ROUNDS:
            return
        g = gradient.ravel()
        if self._before is None:
            self._first, self._last = np.zeros((2, g.size))
        else:
            moved = g - self._before
            self._variance += 0.5 * float(moved @ moved)
        self._before = g.copy()
        if self._seen < self._quarter:
            self._first += g
        if self._seen >= self._rounds - self._quarter:
            self._last += g
        self._seen += 1

    def finding(self) -> str:
        """What must be said to the user; empty where something was learnt, or nothing is known."""
        if self._seen < max(self._rounds, _LEAST_ROUNDS):
            return ""
        noise = self._variance / (self._seen - 1) / self._quarter  # in the mean of a quarter
        first, last = (self._squared(g) - noise for g in (self._first, self._last))
        visible = first > 4.0 * noise * math.sqrt(2.0 / self._first.size)  # four deviations
        return STANDS_STILL if visible and last > _MOST_LEFT * first else ""

    def _squared(self, total: FloatArray) -> float:
        mean = total / self._quarter
        return float(mean @ mean)
