"""What a recalibration makes of released sums: a factor of scores, or a line of log odds."""

import math

# The least share of a rate that is told from none.
_LEAST_RATE = 1e-7
# The variance of an offset that the slope may have moved, and the largest move by the last sums.
_OF_OFFSET, _LARGEST_MOVE = 0.05, 2.0
# The error that is likely beforehand of log(1 / temperature), and its largest step.
_PRIOR_ERROR_T, _LARGEST_STEP = 0.5, 1.0


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


class LogOdds:
    """Where the log odds of labels are a line's offset, by released sums alone.

    The centre is the margin of the mean risk at `slope` times the margins, about which slope and
    offset hardly depend on each other. `risks` and `labels` are sums of risks and of labels 0 and 1
    less 1/2, with noise of standard deviation `std`.
    """

    def __init__(self, n: float, risks: float, labels: float, std: float, slope: float) -> None:
        (risk, of_risk), (rate, of_rate) = (_log_odds(x / n, std / n) for x in (risks, labels))
        # A rate that differs from the mean risk by no more than the noise is taken in part.
        move = rate - risk
        self.centre = risk / slope
        self.offset = risk + move**3 / (move**2 + of_risk + of_rate)
        # 4 r (1 - r), r the rate: the information of its labels, 1 where classes are balanced.
        self.balance = math.cosh(0.5 * rate) ** -2
        self._n, self._variance = n, of_rate + _OF_OFFSET

    def improve(self, residual: float, information: float, std: float) -> None:
        """Take the sums of p - y and of p (1 - p) - 1/8 into account, with the Kalman gain."""
        n, residual, information = self._n, float(residual), float(information)
        std = max(std, _LEAST_RATE * n)
        # No less than noise may hide.
        h = max(bounded(information, n) + 0.125 * n, min(std, 0.25 * n), 1e-3 * n)
        gain = self._variance / (self._variance + (std / h) ** 2)
        self.offset -= gain * bounded(bounded(residual, n) / h, _LARGEST_MOVE)


def _log_odds(less_half: float, error: float) -> tuple[float, float]:
    """Return the log odds of a noisy rate, given less 1/2, and their variance by the noise."""
    # No nearer to 0 and 1 than the noise.
    least = min(max(error, _LEAST_RATE), 0.25)
    rate = 0.5 + bounded(less_half, 0.5 - least)
    return math.log(rate / (1.0 - rate)), (max(error, _LEAST_RATE) / (rate * (1.0 - rate))) ** 2


def bounded(value: float, bound: float) -> float:
    """Return the number between -bound and bound that is nearest."""
    return min(max(value, -bound), bound)
