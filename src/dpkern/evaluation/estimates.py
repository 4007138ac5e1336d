"""Statistics and their intervals from the released sums of a description: post-processing.

Intervals are those of a normal distribution with the variance of the noise, which is known, and of
the sampling of the records; those of shares solve for the share in the latter (Wilson's), those of
quantiles reach to edges of bins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from dpkern._typing import FloatArray
from dpkern.evaluation.columns import MISSING, Block, unit_of
from dpkern.evaluation.figures import FEWEST, wilson

_QUANTILES = (0.25, 0.5, 0.75)
_HIDDEN = 4.0  # a variance of fewer stds of its noise is not shown
_HALF = 2.0  # the std of the count of a bin, of which the coordinate is 1/2


class Statistic(NamedTuple):
    """A statistic of a column, with its interval.

    Of a share below five standard deviations of the noise of its count, a standard deviation that
    noise hides, and a mean or quantile that may be anywhere in the range, the value is not a
    number, and the interval stands.
    """

    column: str
    statistic: str
    level: str
    value: float
    low: float
    high: float
    noise_std: float
    records: float | None = None


@dataclass(frozen=True)
class Total:
    """A number of records, and the variance of its noise, 0 where it is public."""

    n: float
    variance: float


@dataclass(frozen=True)
class Estimator:
    """Statistics from sums with noise of the variance `v`; `z` deviations on either side."""

    v: float
    z: float
    total: Total

    def of_block(self, block: Block, sums: FloatArray) -> Iterator[Statistic]:
        """Yield the statistics of a column, or of a pair."""
        if block.column is not None:
            yield from self._of_number(block, sums)
        elif len(block.names) == 1:
            yield from self._of_categories(block, sums)
        else:
            yield from self._of_pairs(block, sums)

    def bins(self, block: Block, sums: FloatArray) -> FloatArray:
        """Return the counts of records in the bins of a number, which add up to all present."""
        present = self._present(block, sums)
        cells = _HALF * sums[2 : 2 + len(block.cells[0])]
        return self._projected(cells, _HALF**2 * self.v, present)[0]

    def _present(self, block: Block, sums: FloatArray) -> Total:
        if not block.can_be_missing:
            return Total(max(self.total.n, 1.0), self.total.variance)
        n = max(self.total.n - float(sums[-1]), 1.0)
        return Total(n, self.total.variance + self.v)

    @staticmethod
    def _projected(cells: FloatArray, v: float, total: Total) -> tuple[FloatArray, float]:
        """Return counts that add up to what is known of the total, and what each takes of it."""
        gain = v / (len(cells) * v + total.variance)
        return cells + gain * (total.n - cells.sum()), gain

    def _share(
        self, names: tuple[str, str, str], count: float, of: float, variance: float, shown: bool
    ) -> Statistic:
        """Return a share of `of` records, and its noise, with Wilson's interval."""
        p = count / of
        low, high = map(float, wilson(p, of, variance, self.z))
        value = min(max(p, 0.0), 1.0) if shown else math.nan
        return Statistic(*names, value, low, high, math.sqrt(variance), count)

    def _of_categories(self, block: Block, sums: FloatArray) -> Iterator[Statistic]:
        ((name,), (labels,)), v = (block.names, block.cells), self.v
        total = Total(max(self.total.n, 1.0), self.total.variance)
        counts, gain = self._projected(sums, v, total)
        own = v * ((1.0 - gain) ** 2 + (len(counts) - 1) * gain**2)
        std = math.sqrt(own + total.variance * gain**2)
        for label, count in zip(labels, counts.tolist(), strict=True):
            variance = (own + total.variance * (gain - count / total.n) ** 2) / total.n**2
            names, shown = (name, "share", label), count >= FEWEST * std
            yield self._share(names, count, total.n, variance, shown)

    def _of_pairs(self, block: Block, sums: FloatArray) -> Iterator[Statistic]:
        """Yield shares of the second column's cells among the records of each of the first's."""
        rows, columns = block.cells
        std = math.sqrt(self.v)
        for label, counts in zip(rows, sums.reshape(len(rows), len(columns)), strict=True):
            of, K = float(counts.sum()), len(columns)
            for other, count in zip(columns, counts.tolist(), strict=True):
                names = (block.title, "share", f"{label}: {other}")
                if of < FEWEST * std * math.sqrt(K):
                    yield Statistic(*names, math.nan, 0.0, 1.0, math.inf, count)
                    continue
                p = count / of
                variance = self.v * ((1.0 - p) ** 2 + (K - 1) * p * p) / of**2
                yield self._share(names, count, of, variance, count >= FEWEST * std)

    def _of_number(self, block: Block, sums: FloatArray) -> Iterator[Statistic]:
        (name,), v, z = block.names, self.v, self.z
        edges = cast(FloatArray, block.edges)
        middle, half = unit_of(edges)
        present = self._present(block, sums)
        n, of_n = present.n, present.variance
        counts = self.bins(block, sums)
        mean, square = 2.0 * float(sums[0]) / n, float(sums[1]) / n
        variance = square + 0.5 - mean**2
        spread = min(max(variance, 0.0), 1.0)
        noise = (4.0 * v + mean**2 * of_n) / n**2
        width = z * math.sqrt(noise + spread / n)
        ends = (min(max(mean + side, -1.0), 1.0) for side in (0.0, -width, width))
        value, low, high = (middle + half * end for end in ends)
        value = _seen(value, low, high, edges)
        yield Statistic(name, "mean", "", value, low, high, half * math.sqrt(noise), n)
        noise = (v * (1.0 + 16.0 * mean**2) + of_n * (2.0 * mean**2 - square) ** 2) / n**2
        width = z * math.sqrt(noise + max(_fourth(counts, edges, mean, spread) - spread**2, 0) / n)
        low, high = (half * math.sqrt(min(max(variance + w, 0.0), 1.0)) for w in (-width, width))
        shown = variance >= _HIDDEN * math.sqrt(noise)
        value = half * math.sqrt(spread) if shown else math.nan
        std = half * math.sqrt(noise / spread) / 2.0 if shown else math.inf
        yield Statistic(name, "standard deviation", "", value, low, high, std, n)
        for p in _QUANTILES:
            yield self._quantile(name, p, counts, edges, present)
        if block.can_be_missing:
            names, count, of = (name, "share", MISSING), float(sums[-1]), max(self.total.n, 1.0)
            own = (v + self.total.variance * (count / of) ** 2) / of**2
            yield self._share(names, count, of, own, count >= FEWEST * math.sqrt(v))

    def _quantile(
        self, name: str, p: float, counts: FloatArray, edges: FloatArray, present: Total
    ) -> Statistic:
        """Return a quantile, by interpolation in its bin; the interval reaches to edges."""
        K, v, n = len(counts), _HALF**2 * self.v, present.n
        j = np.arange(K + 1)
        gain = v / (K * v + present.variance)
        F = np.insert(np.cumsum(counts), 0, 0.0) / n
        of_cells = v * (j * (1.0 - j * gain) ** 2 + (K - j) * (j * gain) ** 2)
        noise = (of_cells + present.variance * (j * gain - F) ** 2) / n**2
        noise[[0, -1]], F[0], F[-1] = 0.0, 0.0, 1.0
        within = np.clip(F, 0.0, 1.0)
        width = self.z * np.sqrt(noise + within * (1.0 - within) / n)
        low = float(edges[max(int(np.argmax(F + width >= p)) - 1, 0)])
        high = float(edges[min(int(np.flatnonzero(F - width <= p)[-1]) + 1, K)])
        rising = np.maximum.accumulate(within)
        b = int(np.searchsorted(rising, p)) - 1
        share, left = rising[b + 1] - rising[b], float(edges[b + 1] - edges[b])
        value = float(edges[b]) + left * float((p - rising[b]) / share)
        std = left * float(np.sqrt(noise[b : b + 2].mean()) / share)
        value = _seen(value, low, high, edges)
        return Statistic(name, f"{100 * p:g} % quantile", "", value, low, high, std, n)


def _seen(value: float, low: float, high: float, edges: FloatArray) -> float:
    """Return the value unless its interval is the whole range, which says nothing of it."""
    return math.nan if low <= edges[0] and high >= edges[-1] else value


def _fourth(counts: FloatArray, edges: FloatArray, mean: float, variance: float) -> float:
    """Return the fourth central moment by the kurtosis of the bins, at most what is possible."""
    middle, half = unit_of(edges)
    u = (edges - middle) / half
    weights = np.maximum(counts, 0.0) / max(float(np.maximum(counts, 0.0).sum()), 1.0)
    centre, h = 0.5 * (u[1:] + u[:-1]), 0.5 * np.diff(u)
    c = centre - weights @ centre
    square = float(weights @ (c**2 + h**2 / 3.0))
    kurtosis = float(weights @ (c**4 + 2.0 * c**2 * h**2 + h**4 / 5.0)) / max(square**2, 1e-300)
    return min(kurtosis * variance**2, (1.0 + abs(mean)) ** 2 * variance)
