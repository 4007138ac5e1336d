"""Scores and their intervals from released sums alone: all of it is post-processing.

Released counts are projected to the totals that are known better, which leaves them unbiased. An
interval holds the noise and the sampling of the records: records are drawn anew from the released
table, its negative counts set to 0, the noise is added again, and the spread of the scores gives
the interval of a normal distribution.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np

from dpkern._typing import FloatArray
from dpkern.evaluation.sums import LARGEST_LOG_LOSS

#: A ratio is shown of counts from so many standard deviations of their noise on.
FEWEST = 5.0
_HIDDEN = 4.0  # a variance of fewer stds of the noise
_REPEATS = 1000  # simulated evaluations: the spread is known to 2 %
_RATES = (
    *("accuracy", "sensitivity", "specificity", "rate", "mean_risk", "auc", "brier"),
    "calibration_error",
)
Scores = dict[str, FloatArray]


@dataclass(frozen=True)
class Score:
    """A score, its interval, and the part of the noise in it.

    Attributes
    ----------
    value : float
    low, high : float
        For the population that the records are a sample of.
    noise_std : float
        Standard deviation by the noise alone, for these records.
    """

    value: float
    low: float
    high: float
    noise_std: float


@dataclass(frozen=True)
class Table:
    """Released counts by class and bin, sums of places in bins, and further sums.

    Attributes
    ----------
    cells : ndarray, shape (..., 2, B)
        Numbers of records of the negative and the positive class.
    places : ndarray, shape (..., B)
        Sums of (p - centre) / (4 half widths).
    losses : ndarray, shape (..., 2)
        Sums of (Brier - 1/2) / 2 and log loss / L - 1/2.
    pairs, positives : ndarray, shape (...), or None
        Concordant less discordant pairs, and the number of positives.
    """

    cells: FloatArray
    places: FloatArray
    losses: FloatArray
    pairs: FloatArray | None = None
    positives: FloatArray | None = None


class Binned:
    """Scores of predicted risks from tables: edges, the std of sums, and what else is public.

    `size` is the number of records, None where it is private; `pair_std` are the stds of pairs and
    of positives.
    """

    def __init__(
        self,
        edges: FloatArray,
        std: float,
        threshold: float,
        size: int | None,
        pair_std: tuple[float, float] | None,
    ) -> None:
        self._edges, self._std, self._size, self._pair_std = edges, std, size, pair_std
        self._centre, self._half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        self._first = int(np.searchsorted(edges, threshold))  # bin of positive predictions

    def table_of(self, sums: FloatArray, pairs: tuple[float, float] | None) -> Table:
        """Return the table of released sums, with counts that add up to what is known better."""
        B = len(self._centre)
        cells, places, losses = sums[: 2 * B].reshape(2, B), sums[2 * B : 3 * B], sums[3 * B :]
        return self._projected(Table(cells, places, losses, *map(np.array, pairs or ())))

    def _projected(self, table: Table) -> Table:
        cells, positives, n = table.cells, table.positives, self._size
        if n is None:
            return table
        if positives is None:
            off = n - cells.sum(axis=(-2, -1), keepdims=True)
            return Table(cells + off / (2 * cells.shape[-1]), table.places, table.losses)
        positives = np.clip(positives, 1.0, n - 1.0)
        off = np.stack([n - positives, positives], axis=-1) - cells.sum(axis=-1)
        cells = cells + off[..., np.newaxis] / cells.shape[-1]
        return Table(cells, table.places, table.losses, table.pairs, positives)

    def curve(self, table: Table) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return mean risk, rate of positives and number of records in every bin."""
        n = np.maximum(table.cells.sum(axis=-2), 0.0)
        risk = self._mean_risks(table, n)
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = np.where(n > 0.0, np.clip(table.cells[..., 1, :] / n, 0.0, 1.0), np.nan)
        return risk, rate, n

    def shown_curve(
        self, table: Table, confidence: float
    ) -> tuple[tuple[FloatArray, FloatArray, FloatArray], tuple[FloatArray, FloatArray]]:
        """Return the curve, its rates not numbers where noise hides a bin, and their intervals."""
        risk, rate, n = self.curve(table)
        hidden = n < FEWEST * math.sqrt(2.0) * self._std
        p, of = np.where(hidden, 0.5, rate), np.where(hidden, 1.0, n)
        noise = self._std**2 * (p**2 + (1.0 - p) ** 2) / of**2
        low, high = wilson(p, of, noise, NormalDist().inv_cdf(0.5 + 0.5 * confidence))
        intervals = np.where(hidden, 0.0, low), np.where(hidden, 1.0, high)
        return (risk, np.where(hidden, np.nan, rate), n), intervals

    def roc(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return the rates of false and of true positives, at the edges from 1 down to 0."""
        above = np.cumsum(table.cells[..., ::-1], axis=-1)
        rates = above / np.maximum(above[..., -1:], 1.0)
        rates = np.clip(np.maximum.accumulate(rates, axis=-1), 0.0, 1.0)
        false, true = np.insert(rates, 0, 0.0, axis=-1)
        return false, true

    def scores(self, table: Table) -> Scores:
        """Return the scores of tables; those of a model without risks are there too."""
        negative, positive = table.cells[..., 0, :], table.cells[..., 1, :]
        n0, n1 = (np.maximum(c.sum(axis=-1), 1.0) for c in (negative, positive))
        n, first = n0 + n1, self._first
        true, false = positive[..., first:].sum(axis=-1), negative[..., :first].sum(axis=-1)
        risks = (table.cells.sum(axis=-2) * self._centre + 4.0 * self._half * table.places).sum(-1)
        found = {
            "accuracy": (true + false) / n,
            "sensitivity": true / n1,
            "specificity": false / n0,
            "auc": 0.5 + 0.5 * (self._pairs(table)) / (n1 * n0),
            "rate": n1 / n,
            "mean_risk": risks / n,
            "calibration_error": self._calibration_error(table) / n,
            "brier": 2.0 * table.losses[..., 0] / n + 0.5,
            "log_loss": LARGEST_LOG_LOSS * (table.losses[..., 1] / n + 0.5),
        }
        within = {name: np.clip(found[name], 0.0, 1.0) for name in _RATES}
        return found | within | {"log_loss": np.clip(found["log_loss"], 0.0, LARGEST_LOG_LOSS)}

    def _pairs(self, table: Table) -> FloatArray:
        if table.pairs is not None:
            return table.pairs
        negative, positive = table.cells[..., 0, :], table.cells[..., 1, :]
        below = np.cumsum(negative, axis=-1) - negative
        above = negative.sum(axis=-1, keepdims=True) - negative - below
        # In a bin risks are taken as uniform, and as right.
        inside = self._half / (3.0 * self._centre * (1.0 - self._centre))
        return np.asarray((positive * (below - above + inside * negative)).sum(axis=-1))

    def _calibration_error(self, table: Table) -> FloatArray:
        """Return the sum of |sum of p - y| over the bins, less what noise and chance add to it."""
        off = table.cells[..., 0, :] * self._centre - table.cells[..., 1, :] * (1.0 - self._centre)
        return _seen_errors(off + 4.0 * self._half * table.places, self._variances(table))

    def _variances(self, table: Table) -> FloatArray:
        """Return the variance of the sum of p - y in every bin where risks are right."""
        c, h = self._centre, self._half
        noise = self._std**2 * (c**2 + (1.0 - c) ** 2 + (4.0 * h) ** 2)
        return np.asarray(noise + np.maximum(table.cells.sum(axis=-2), 0.0) * c * (1.0 - c))

    def error_of_right_risks(self, table: Table, n: int, confidence: float) -> float:
        """Return the calibration error that right risks have at most, so often."""
        square = self._variances(table)
        off = np.random.default_rng(0).normal(0.0, np.sqrt(square), (_REPEATS, len(square)))
        return float(np.quantile(_seen_errors(off, square), confidence)) / n

    def _mean_risks(self, table: Table, n: FloatArray) -> FloatArray:
        inside = np.clip(4.0 * table.places / np.maximum(n, 1.0), -1.0, 1.0)
        return np.asarray(self._centre + self._half * inside)

    def calibration_error(self, table: Table) -> float:
        """Return the calibration error of the released curve itself."""
        risk, rate, n = self.curve(table)
        return float(np.nansum(np.abs(risk - rate) * n) / max(n.sum(), 1.0))

    def simulated(self, table: Table, n: int, *, sampled: bool) -> Scores:
        """Return scores of `_REPEATS` evaluations of n records that are drawn from a table.

        Where not `sampled`, the records are the expected ones, and only the noise varies.
        """
        rng, B = np.random.default_rng(0), len(self._centre)
        shares = np.maximum(table.cells, 0.0).ravel()
        shares = shares / shares.sum() if shares.sum() > 0.0 else np.full(2 * B, 0.5 / B)
        expected = np.broadcast_to(n * shares, (_REPEATS, 2 * B))
        exact = rng.multinomial(n, shares, size=_REPEATS) if sampled else expected
        cells = exact.reshape(_REPEATS, 2, B).astype(np.float64)
        of_bin = cells.sum(axis=1)
        risk = self._mean_risks(table, np.maximum(table.cells.sum(axis=0), 0.0))
        places = of_bin * (risk - self._centre) / (4.0 * self._half)
        y = np.array([[0.0], [1.0]])
        brier = (cells * (0.5 * ((risk - y) ** 2 - 0.5))).sum(axis=(1, 2))
        of_label = np.clip(np.where(y == 1.0, risk, 1.0 - risk), np.exp(-LARGEST_LOG_LOSS), 1.0)
        log_loss = (cells * (-np.log(of_label) / LARGEST_LOG_LOSS - 0.5)).sum(axis=(1, 2))
        losses = np.column_stack([brier, log_loss])
        exact_table = Table(cells, places, losses)
        pairs, positives = None, None
        if self._pair_std is not None:
            of_pairs, of_positives = self._pair_std
            pairs = self._pairs(exact_table) + rng.normal(0.0, of_pairs, _REPEATS)
            positives = cells[:, 1].sum(axis=1) + rng.normal(0.0, of_positives, _REPEATS)
        cells = cells + rng.normal(0.0, self._std, cells.shape)
        places = places + rng.normal(0.0, self._std, places.shape)
        losses = losses + rng.normal(0.0, self._std, losses.shape)
        return self.scores(self._projected(Table(cells, places, losses, pairs, positives)))


def wilson(p: Any, n: Any, variance: Any, z: float) -> tuple[FloatArray, FloatArray]:
    """Return intervals of shares p of n records, whose noise has a variance, by Wilson's rule."""
    A, B, C = 1.0 + z * z / n, 2.0 * p + z * z / n, p * p - z * z * variance
    root = np.sqrt(np.maximum(B * B - 4.0 * A * C, 0.0))
    return np.clip((B - root) / (2.0 * A), 0.0, 1.0), np.clip((B + root) / (2.0 * A), 0.0, 1.0)


def _seen_errors(off: FloatArray, square: FloatArray) -> FloatArray:
    """Return the sum over bins of distances, less what their variances add to them."""
    return np.asarray(np.sqrt(np.maximum(off**2 - square, 0.0)).sum(axis=-1))


@dataclass(frozen=True)
class Residuals:
    """Scores of predicted targets from sums: half of the distance of the bounds, the sums' std."""

    bound: float
    std: float

    def scores(self, sums: FloatArray, total: float) -> Scores:
        """Return the scores of sums (..., 4) of so many records."""
        T = self.bound
        r, square, y, y_square = np.moveaxis(sums, -1, 0) / max(total, 1.0)
        mse, variance = square + 0.5, y_square + 0.5 - (2.0 * y) ** 2
        r2 = 1.0 - mse / np.maximum(variance, 1e-12)
        return {"r2": r2, "mse": T * T * mse, "bias": -2.0 * T * r, "variance": T * T * variance}

    def with_intervals(self, sums: FloatArray, total: int, confidence: float) -> dict[str, Score]:
        """Return R2, not a number where noise hides the targets' variance, RMSE and bias."""
        simulate = partial(self.simulated, sums, total)
        found = with_intervals(self.scores(sums, total), simulate, confidence)
        r2, mse, bias, variance = found.values()
        if variance.value < _HIDDEN * variance.noise_std:
            r2 = Score(math.nan, -math.inf, 1.0, math.inf)
        value, low, high = (math.sqrt(max(x, 0.0)) for x in (mse.value, mse.low, mse.high))
        noise = mse.noise_std / (2.0 * value) if value > 0.0 else math.sqrt(mse.noise_std)
        r2 = Score(min(r2.value, 1.0), r2.low, min(r2.high, 1.0), r2.noise_std)
        return {"r2": r2, "rmse": Score(value, low, high, noise), "bias": bias}

    def simulated(self, sums: FloatArray, n: int, *, sampled: bool) -> Scores:
        """Return scores of evaluations of n records, as if residuals and predictions were normal.

        Where not `sampled`, only the noise varies.
        """
        rng, repeated = np.random.default_rng(0), np.broadcast_to(sums, (_REPEATS, 4)).copy()
        if sampled:
            r, square, y, y_square = sums / n
            s_r = max(square + 0.5 - 4.0 * r * r, 0.0)
            s_y = max(y_square + 0.5 - 4.0 * y * y, 0.0)
            s_p = max(s_y - s_r, 0.0)  # of predictions, to which residuals are added
            # Deviations of means and squares of two independent normal numbers.
            of_r, of_p = (np.sqrt(s / n) * rng.standard_normal(_REPEATS) for s in (s_r, s_p))
            draws = rng.standard_normal((3, _REPEATS)) / np.sqrt(n)
            of_rr, of_pp = s_r * np.sqrt(2.0) * draws[0], s_p * np.sqrt(2.0) * draws[1]
            of_both = 2.0 * np.sqrt(s_r * s_p) * draws[2]
            repeated[:, 0] += 0.5 * n * of_r
            repeated[:, 1] += n * (of_rr + 4.0 * r * of_r)
            repeated[:, 2] += 0.5 * n * (of_r + of_p)
            repeated[:, 3] += n * (of_rr + of_pp + of_both + 4.0 * y * (of_r + of_p))
        return self.scores(repeated + rng.normal(0.0, self.std, repeated.shape), n)


def with_intervals(
    found: Scores,
    simulate: Callable[..., Scores],
    confidence: float,
    of_table: dict[str, float] | None = None,
) -> dict[str, Score]:
    """Return scores with their intervals.

    Scores of the simulated table itself, `of_table`, say by how much such a score is wrong in the
    mean, which is taken from it.
    """
    z = NormalDist().inv_cdf(0.5 + 0.5 * confidence)
    by_all, by_noise = simulate(sampled=True), simulate(sampled=False)
    scores = {}
    for name, released in found.items():
        value, width = float(released), z * float(np.std(by_all[name]))
        if of_table is not None and name in of_table:
            value = max(value - float(np.mean(by_all[name])) + of_table[name], 0.0)
            value = min(value, 1.0)
        low, high = value - width, value + width
        if name in _RATES:
            low, high = max(low, 0.0), min(high, 1.0)
        elif name == "log_loss":
            low, high = max(low, 0.0), min(high, LARGEST_LOG_LOSS)
        scores[name] = Score(value, low, high, float(np.std(by_noise[name])))
    return scores
