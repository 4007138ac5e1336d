"""Many releases of one rate with different noise, as mixtures of a few of its pairs.

The profile of N(mu, 1) and N(0, 1) is a convex function of mu^p for mu <= b and p <= 1 - b^2 / 4,
at every alpha. So a release with a <= mu <= b is dominated by a public coin that chooses mu = a or
mu = b, with probabilities such that the mean of mu^p is that of the release; and so it is where
records are sampled, at one rate (docs/proofs/sampling.md). The losses of the rungs of a ladder then
serve all releases: what is lost is of the second order in their distance, below 1e-3 of epsilon.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dpkern.privacy.sampling.loss_distributions import (
    ComplexArray,
    Cumulants,
    FloatArray,
    Losses,
    power,
)

# Adjacent rungs have a ratio of exp(this / (1 + _NARROWER mu)): far losses grow faster in mu.
_WIDTH, _NARROWER = 1.0 / 16.0, 4.0
# What is taken off a share of the lower rung, for the rounding of its formula.
_SLACK = 2.0**-36

#: What is asked of a rung: mu, to its losses.
Rungs: TypeAlias = Callable[[float], Losses]


class Ladder:
    """Which rungs releases are mixtures of, given mu and the number of each."""

    def __init__(self, rows: Sequence[tuple[float, int]]) -> None:
        mu = np.array([one for one, _ in rows])
        self.numbers = np.array([times for _, times in rows])
        # Rungs are a whole number of steps apart on the scale log(mu) + _NARROWER mu.
        least, largest = float(mu.min()), float(mu.max())
        first, last = (math.log(end) + _NARROWER * end for end in (least, largest))
        rungs = max(2, math.ceil((last - first) / _WIDTH) + 1)
        dense = np.exp(np.linspace(math.log(least), math.log(largest), 64 * rungs))
        scale = np.log(dense) + _NARROWER * dense
        every = np.interp(np.linspace(first, last, rungs), scale, dense)
        every[0], every[-1] = least, largest
        lower = np.clip(np.searchsorted(every, mu, side="right") - 1, 0, rungs - 2)
        used = np.union1d(lower, lower + 1)
        self.rungs: list[float] = every[used].tolist()
        self.lower = np.searchsorted(used, lower)
        a, b = every[lower], every[lower + 1]
        exponents = 1.0 - 0.25 * b**2
        exponents = np.where(exponents < 0.01, np.minimum(exponents, -0.01), exponents)
        with np.errstate(invalid="ignore"):
            shares = (b**exponents - mu**exponents) / (b**exponents - a**exponents)
        self.shares = np.clip(np.nan_to_num(shares) - _SLACK, 0.0, 1.0)

    def mixed(self, values: FloatArray) -> float:
        """Return the sum over releases of the mean of a value of each rung."""
        first, second = values[self.lower], values[self.lower + 1]
        return float((self.numbers * (self.shares * first + (1.0 - self.shares) * second)).sum())


class Mixtures:
    """The losses of all releases on a ladder."""

    def __init__(self, ladder: Ladder, losses: Rungs) -> None:
        self._ladder, self._rungs = ladder, [losses(mu) for mu in ladder.rungs]
        self.times = int(ladder.numbers.sum())

    def all_infinite(self) -> float:
        """Return a bound of the mass of infinity of all releases."""
        return self._ladder.mixed(np.array([rung.infinite for rung in self._rungs]))

    def _tilted(self, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return every release's log moment, and the lower rung's share when it is tilted."""
        of = self._ladder
        first, second = logs[of.lower], logs[of.lower + 1]
        largest = np.maximum(first, second)
        lower = of.shares * np.exp(first - largest)
        total = lower + (1.0 - of.shares) * np.exp(second - largest)
        return np.log(total) + largest, lower / total

    def log_moment_of_all(self, tilt: float) -> float:
        """Return log E[exp(tilt loss); finite] of all releases."""
        logs = np.array([rung.moment(tilt)[0] for rung in self._rungs])
        return float((self._ladder.numbers * self._tilted(logs)[0]).sum())

    def cumulants_of_all(self, tilt: float) -> Cumulants:
        """Return log E[exp(tilt loss); finite] of all releases and its first two derivatives."""
        of = self._ladder
        logs, means, variances = np.array([rung.cumulants(tilt) for rung in self._rungs]).T
        total, share = self._tilted(logs)
        squares = variances + means**2
        mean = share * means[of.lower] + (1.0 - share) * means[of.lower + 1]
        square = share * squares[of.lower] + (1.0 - share) * squares[of.lower + 1]
        sums = [float((of.numbers * one).sum()) for one in (total, mean, square - mean**2)]
        return sums[0], sums[1], sums[2]

    def spectrum_of_all(self, tilt: float, size: int) -> tuple[ComplexArray, float]:
        """Return the transform of the distribution of all releases, tilted, and the sum of T |p|.

        The norm of a mixture is at most the mean of the norms.
        """
        of = self._ladder
        logs = np.array([rung.moment(tilt)[0] for rung in self._rungs])
        share, total, norms = self._tilted(logs)[1], np.ones(size // 2 + 1, dtype=complex), 0.0
        lower = upper = self._rungs[0].spectrum(tilt, size)
        row = np.empty_like(total)
        for k in range(len(self._rungs) - 1):
            here = np.flatnonzero(of.lower == k)
            lower, upper = upper, self._rungs[k + 1].spectrum(tilt, size)
            change = lower[0] - upper[0]
            for i in here.tolist():
                np.multiply(change, share[i], out=row)
                np.add(row, upper[0], out=row)
                total *= power(row, int(of.numbers[i]))
            of_rows = share[here] * lower[1] + (1.0 - share[here]) * upper[1]
            norms += float((of.numbers[here] * of_rows).sum())
        return total, norms
