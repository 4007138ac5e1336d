"""What a recalibration makes of released sums: a factor of scores, or a line of log odds."""

import math

import numpy as np

from dpkern._typing import FloatArray

GAMMA = 0.7  #: the factor of u^2 and u among the moments

# What is likely before anything is seen: the relative error of a slope, and offsets.
_PRIOR_ERROR, _PRIOR_OFFSET = 0.5, 0.7
# The least slope: the order of scores never flips; and the largest std of log odds.
_LEAST_SLOPE, _LARGEST_SPREAD = 0.1, 3.0
# Beyond these, slopes and rates say no more, and their squares and quotients are no numbers.
_STEEPEST, _LEAST_RATE, _LARGEST_OFFSET = 1e6, 1e-7, 40.0
# The error that is likely beforehand of log(1 / temperature), and its largest step.
_PRIOR_ERROR_T, _LARGEST_STEP = 0.5, 1.0
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_WEIGHTS /= _WEIGHTS.sum()


class Scale:
    """The factor of scores by released sums alone, its logarithm by a Kalman filter."""

    def __init__(self, n: float, unit: float, slope: float) -> None:
        self.slope = slope
        self._n, self._unit = n, min(max(unit, 1e-100), 1e100)
        self._variance, self._information = _PRIOR_ERROR_T**2, 0.0
        # What is seen without a prior: the precision of slope times unit, and its product with it.
        self._precision, self._seen = 0.0, 0.0

    @property
    def slope_error(self) -> float:
        """Return the slope over how many errors it is from 0, by all sums and no prior."""
        seen = self._seen
        return self.slope * math.sqrt(self._precision) / seen if seen > 0.0 else math.inf

    @property
    def sampling_error(self) -> float:
        """Return the standard error of the slope by the labels of n records.

        By the most information that was seen: confident risks have little on a slope that is clear.
        """
        return 1.0 / (self._unit * math.sqrt(self._information))

    def improve(self, score: float, information: float, std: float) -> None:
        """Take sums of scores and of 2 v - 1/4, v the information in units, into account."""
        n, a = self._n, self.slope * self._unit
        std = max(std, _LEAST_RATE * n)
        score = bounded(score, n)
        seen = 0.5 * (bounded(information, n) + 0.25 * n)
        # No less than noise may hide.
        h = min(math.hypot(max(seen, 0.0), 0.5 * std), 0.25 * n)
        self._information = max(self._information, h)
        self._precision += (h / std) ** 2
        self._seen += h / std * ((a * h - score) / std)
        # The score is a h^2 times the error of the logarithm, with the noise and that of n labels.
        known, unknown = a * h * h * self._variance, (std**2 + h) / a
        change = bounded(self._variance * h * score / (known + unknown), _LARGEST_STEP)
        self._variance *= unknown / (known + unknown)
        # A step shows how far the factor was, and by that how good a linear measurement was.
        self._variance += 0.25 * change**2
        self.slope *= math.exp(-change)


class Discriminant:
    """A line of log odds by released sums alone: a first guess, and its improvements.

    u is taken as normal of its released mean and variance, for the information of the line.
    """

    def __init__(
        self, n: float, moments: FloatArray, std: float, prior: float, offset: float = 0.0
    ) -> None:
        offset = bounded(offset, _LARGEST_OFFSET)
        prior = min(max(prior, _LEAST_SLOPE), _STEEPEST)
        st, stu, suu, su = np.clip(moments, -n, n).tolist()  # at most those of n records
        noise = std / (GAMMA * n)
        # The rate of positives, no nearer to 0 and 1 than the noise.
        rate = 0.5 + bounded(st / n, 0.5 - min(max(std / n, _LEAST_RATE), 0.25))
        mean = bounded(su / n, 1.0)
        seen = max(suu / n - mean * mean, 0.0)
        # No less than noise may hide.
        variance = min(max(math.sqrt(seen**2 + 4.0 * noise**2), 4e-3), 0.6)
        spread = rate * (1.0 - rate)
        product = stu / n - (rate - 0.5) * mean  # of labels and u, less that of their means
        between = bounded(product / spread, 2.0)
        of_product = std / n * math.sqrt(1.0 + mean**2 + ((rate - 0.5) / GAMMA) ** 2)
        within = max(variance - spread * between**2, 0.4 * variance)
        self._n, self._nodes = n, np.clip(mean + math.sqrt(variance) * _NODES, -1.0, 1.0)
        self._most = max(_LARGEST_SPREAD / math.sqrt(variance), prior)
        slope = min(max(between / within, _LEAST_SLOPE), self._most)
        error = (std / (n * max(abs(product), std / n))) ** 2 + (noise / variance) ** 2 + 0.3
        self.slope, P_a = together(slope, slope**2 * error, prior, (_PRIOR_ERROR * prior) ** 2)
        self.offset = math.log(rate / (1.0 - rate)) - self.slope * mean
        for _ in range(50):  # until the mean risk is the rate
            p, weight = self._risks()
            change = float(_WEIGHTS @ p - rate) / max(float(weight.sum()), 1e-4)
            self.offset -= bounded(change, 1.0)
        of_rate = (std / (n * spread)) ** 2 + P_a * mean**2 + 1.0
        prior_error = _PRIOR_OFFSET**2 + (_PRIOR_ERROR * offset) ** 2
        self.offset, P_b = together(self.offset, of_rate, offset, prior_error)
        self._covariance = np.diag([P_a, P_b])
        # What is seen without a prior: the precision of the line, and its product with the line.
        known = (spread * within / of_product) ** 2
        self._precision = np.diag([known, 1e-6])
        self._seen = np.array([known * between / within, 0.0])

    def _risks(self) -> tuple[FloatArray, FloatArray]:
        """Return p at the nodes, and the weights of their information on log odds."""
        z = self.slope * self._nodes + self.offset
        p = np.exp(-np.logaddexp(0.0, -z))
        return p, _WEIGHTS * p * (1.0 - p)

    def _information(self) -> FloatArray:
        """Return n times the expected (u, 1) (u, 1)^T p (1 - p)."""
        rows = np.column_stack([self._nodes, np.ones_like(self._nodes)])
        return self._n * (rows.T * self._risks()[1]) @ rows + 1e-4 * self._n * np.eye(2)

    @property
    def slope_error(self) -> float:
        """Return the slope over how many errors it is from 0, by all sums and no prior."""
        (a, b), (_, c) = self._precision.tolist()
        left = max(a - b * b / c, 0.0)  # the precision of the slope, the offset unknown
        evidence = float(self._seen[0]) - b / c * float(self._seen[1])
        return self.slope * math.sqrt(left) / evidence if evidence > 0.0 < left else math.inf

    @property
    def sampling_error(self) -> float:
        """Return the standard error of the slope by the labels of n records."""
        (a, b), (_, c) = self._information().tolist()
        return 1.0 / math.sqrt(a - b * b / c)

    def improve(self, gradient: FloatArray, std: float) -> None:
        """Take the scores (u, 1) (p - y) / sqrt(2), with noise, into account."""
        self._update(math.sqrt(0.5) * self._information(), gradient, std)

    def move(self, residual: float, std: float) -> None:
        """Take the sum of p - y into account."""
        self._update(self._information()[1:], np.array([residual]), std)

    def _update(self, H: FloatArray, seen: FloatArray, std: float) -> None:
        """Update the line by a linear measurement H (line - true line) + noise (Kalman, 1960)."""
        P, change = self._covariance, np.zeros(2)
        square = max(std, _LEAST_RATE * self._n) ** 2
        seen = np.clip(seen, -self._n, self._n)
        self._precision += H.T @ H / square
        self._seen += H.T @ (H @ [self.slope, self.offset] - seen) / square
        # One number after another, as their noise is independent, and in Joseph's form: no inverse,
        # and a covariance whatever the sums are.
        for h, value in zip(H, seen.tolist(), strict=True):
            gain = P @ h / (h @ P @ h + square)
            change += gain * (value - h @ change)
            rest = np.eye(2) - np.outer(gain, h)
            P = rest @ P @ rest.T + square * np.outer(gain, gain)
        farthest = np.array([1.5 * self._most, 2.0 * _LARGEST_OFFSET])
        change = np.clip(change, -farthest, farthest)
        # A step shows how far the line was, and by that how good a linear measurement was.
        self._covariance = 0.5 * (P + P.T) + 0.25 * np.outer(change, change)
        self.slope = min(max(self.slope - float(change[0]), _LEAST_SLOPE), 1.5 * self._most)
        self.offset = bounded(self.offset - float(change[1]), _LARGEST_OFFSET)


def together(x: float, x_error: float, y: float, y_error: float) -> tuple[float, float]:
    """Return the mean of two numbers, weighted by their precisions, and its variance."""
    total = 1.0 / x_error + 1.0 / y_error
    return (x / x_error + y / y_error) / total, 1.0 / total


def bounded(value: float, bound: float) -> float:
    """Return the number between -bound and bound that is nearest."""
    return min(max(value, -bound), bound)
