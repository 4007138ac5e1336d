"""Composition of pairs of distributions by their privacy losses, never below the truth.

A pair (P, Q) is held as the distribution of its loss log dP/dQ under P on multiples of an interval
h, as masses and the mass of infinity, and dominates the pair that it was made of: the mass of every
interval is divided between its two ends such that both P and Q keep theirs (Doroshenko, Ghazi,
Kamath, Kumar, Manurangsi, "Connect the dots", PoPETs 2022). Compositions of dominating pairs
dominate (Zhu, Dong, Wang 2022, Theorem 10), and

    delta(epsilon) = sum over losses l > epsilon of (1 - exp(epsilon - l)) P(l).

Losses of independent releases add. Their distribution is computed by one FFT of the masses times
exp(lambda l), which is exact up to a relative error where delta is decided; docs/proofs/sampling.md
bounds all errors, and they are added.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern._typing import FloatArray, IntArray

ComplexArray: TypeAlias = NDArray[np.complex128]
Cumulants: TypeAlias = tuple[float, float, float]

# Relative error of a computed tail of the normal distribution at outcomes up to `_FAR` beyond its
# mean; mass beyond that is taken as of infinite loss.
_TAIL_ERROR, _FAR = 2.0**-42, 12.0
# Relative error of a result, for each release and for all.
_ERROR_EACH, _ERROR = 2.0**-38, 2.0**-21
# Units of 2^-53 by which an FFT errs, relative in l2 norm, for each power of two of its length.
_FFT_ERROR = 32.0 * 2.0**-53
# exp(-this) of a tilted distribution is outside of the window of an FFT.
_OUTSIDE = 16.0
# An interval is this part of the total loss's standard deviation, and of the one that a release
# contributes on average, and at least the last part.
_OF_TOTAL, _OF_ONE, _LEAST = 1.0 / 512.0, 1.0 / 20.0, 2.0**-16
# So many intervals from 0 on are used one by one, and beyond they widen by this part.
_DENSE = 256
# Intervals are wider where there would be more of them.
_MOST = 1 << 16
# Steps from a tilt, over the deviation of the tilted distribution, of which the best bounds its
# tails.
_STEPS = tuple(2.0**i for i in range(-8, 6))


class Losses:
    """Masses of multiples of an interval, ascending integers, and of infinity; `times` alike."""

    def __init__(
        self, places: IntArray, masses: FloatArray, infinite: float, times: int, interval: float
    ) -> None:
        kept = masses > 0.0
        self.places, self.masses = places[kept], masses[kept]
        self.losses = self.places * interval
        self.infinite, self.times = infinite, times

    def moment(self, tilt: float) -> tuple[float, FloatArray]:
        """Return log E[exp(tilt loss); finite], and the distribution with these weights."""
        exponents = tilt * self.losses
        largest = float(exponents.max())
        weights = self.masses * np.exp(exponents - largest)
        total = float(weights.sum())
        return math.log(total) + largest, weights / total

    def cumulants(self, tilt: float) -> Cumulants:
        """Return log E[exp(tilt loss); finite] and its two derivatives."""
        one, weights = self.moment(tilt)
        mean = float((weights * self.losses).sum())
        return one, mean, float((weights * (self.losses - mean) ** 2).sum())

    def spectrum(self, tilt: float, size: int) -> tuple[ComplexArray, float]:
        """Return the transform of the tilted masses on a circle, and their l2 norm."""
        weights: FloatArray = np.zeros(size)
        weights += np.bincount(self.places % size, self.moment(tilt)[1], size)
        return scipy.fft.rfft(weights), _norm(weights)

    def all_infinite(self) -> float:
        """Return a bound of the mass of infinity of all releases."""
        return self.times * self.infinite

    def log_moment_of_all(self, tilt: float) -> float:
        """Return log E[exp(tilt loss); finite] of all releases."""
        return self.times * self.moment(tilt)[0]

    def cumulants_of_all(self, tilt: float) -> Cumulants:
        """Return log E[exp(tilt loss); finite] of all releases and its first two derivatives."""
        total, mean, variance = self.cumulants(tilt)
        return self.times * total, self.times * mean, self.times * variance

    def spectrum_of_all(self, tilt: float, size: int) -> tuple[ComplexArray, float]:
        """Return the transform of all releases' distribution, tilted, and T times one's norm."""
        one, norm = self.spectrum(tilt, size)
        return power(one, self.times), self.times * norm


def _places(largest: float, interval: float) -> IntArray:
    """Return 0, 1, 2, ... with gaps that grow in proportion, until beyond a loss."""
    last = max(2, math.ceil(largest / interval))
    dense = min(last, _DENSE)
    steps = max(0, math.ceil(math.log(last / dense) * _DENSE))
    rest = np.ceil(dense * np.exp(np.arange(1, steps + 1) / _DENSE)).astype(np.int64)
    return np.concatenate([np.arange(dense + 1), rest])


class Pair:
    """P = g N(mu, 1) + (1 - g) N(0, 1) and Q = N(0, 1), whose loss increases with the outcome."""

    def __init__(self, rate: float, mu: float) -> None:
        self._g, self._mu = rate, mu

    def outcomes(self, losses: FloatArray) -> FloatArray:
        """Return where the loss is so large; minus infinity below all losses."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log1p(np.maximum(np.expm1(losses) / self._g, -1.0)) / self._mu
        return np.asarray(found + 0.5 * self._mu, dtype=np.float64)

    def loss(self, outcomes: Any) -> FloatArray:
        """Return log dP/dQ at outcomes."""
        exponent = self._mu * (outcomes - 0.5 * self._mu)
        found: FloatArray = np.logaddexp(
            math.log1p(-self._g) if self._g < 1.0 else -math.inf, math.log(self._g) + exponent
        )
        return found

    @functools.cached_property
    def largest(self) -> float:
        """The loss of the farthest outcome that is not taken as infinite."""
        return float(self.loss(_FAR + self._mu))

    def square(self, *, positive: bool) -> float:
        """Return the mean square of the loss under P, or of positive ones; an estimate."""
        z = np.linspace(-_FAR, _FAR + self._mu, 2048)
        density = np.exp(-0.5 * (z - self._mu) ** 2) * self._g
        density += np.exp(-0.5 * z**2) * (1.0 - self._g)
        kept = (z > 0.5 * self._mu) if positive else slice(None)
        total = (self.loss(z[kept]) ** 2 * density[kept]).sum()
        return float(total) * float(z[1] - z[0]) / math.sqrt(2.0 * math.pi)

    def masses(self, places: IntArray, interval: float) -> tuple[FloatArray, FloatArray]:
        """Return P's masses at the places, of losses from the first to the last.

        Errors move mass upwards, as (P, Q) needs it, and downwards, as (Q, P) does.
        """
        g, mu, tail = self._g, self._mu, scipy.special.ndtr
        losses = places.astype(np.float64) * interval
        t = self.outcomes(losses)
        a, b = t[:-1], t[1:]
        upper, upper_p = a + b > 0.0, a + b > 2.0 * mu
        near_q, near_p = tail(np.where(upper, -a, b)), tail(np.where(upper_p, mu - a, b - mu))
        of_q = near_q - tail(np.where(upper, -b, a))
        of_p = near_p - tail(np.where(upper_p, mu - b, a - mu))
        both, ratio = g * of_p + (1.0 - g) * of_q, np.exp(losses[:-1])
        error = _TAIL_ERROR * (g * near_p + (1.0 - g + ratio) * near_q)
        found = []
        for sign in (1.0, -1.0):
            above = both - ratio * of_q + sign * error
            above = np.clip(above / -np.expm1(-np.diff(losses)), 0.0, both)
            masses = np.zeros(len(places))
            masses[:-1] += both - above
            masses[1:] += above
            found.append(masses)
        return found[0], found[1]

    def beyond(self, loss: float) -> tuple[float, float]:
        """Return the probabilities under P and Q of losses above this one."""
        t = float(self.outcomes(np.array(loss)))
        of_q = float(scipy.special.ndtr(-t))
        of_p = self._g * float(scipy.special.ndtr(self._mu - t)) + (1.0 - self._g) * of_q
        return of_p, of_q


def symmetric(rate: float, mu: float, interval: float, times: int) -> Losses:
    """Return the pair whose positive losses are those of (P, Q), and the negative their mirror.

    The loss 0 has the rest, (1 - g) P(|Z| < mu / 2).
    """
    pair = Pair(rate, mu)
    places = _places(pair.largest, interval)
    positive, lowered = pair.masses(places, interval)
    infinite, of_q = pair.beyond(float(places[-1]) * interval)
    mirrored = lowered * np.exp(-interval * places)
    mirrored[-1] += of_q
    rest = (1.0 - rate) * (1.0 - 2.0 * float(scipy.special.ndtr(-0.5 * mu)))
    middle = positive[0] + mirrored[0] + rest
    masses = np.concatenate([mirrored[:0:-1], [middle], positive[1:]])
    return Losses(np.append(-places[:0:-1], places), masses, infinite, times, interval)


def directed(rate: float, mu: float, interval: float, times: int, *, removed: bool) -> Losses:
    """Return (P, Q), or (Q, P), of a mixture with rate < 1."""
    pair = Pair(rate, mu)
    below, above = _places(-math.log1p(-rate) + interval, interval), _places(pair.largest, interval)
    places = np.append(-below[:0:-1], above)
    raised, lowered = pair.masses(places, interval)
    of_p, of_q = pair.beyond(float(places[-1]) * interval)
    if removed:
        return Losses(places, raised, of_p, times, interval)
    masses = lowered * np.exp(-interval * places)
    masses[-1] += of_q
    return Losses(-places[::-1], masses[::-1], 0.0, times, interval)


def interval_of(squares: Sequence[tuple[float, int]], number: int) -> float:
    """Return an interval for so many releases, given sums of mean square losses, each so often."""
    total = math.sqrt(sum(square * times for square, times in squares))
    return total * max(min(_OF_TOTAL, _OF_ONE / math.sqrt(number)), _LEAST)


class Part(Protocol):
    """Some of the releases: `Losses`, or mixtures of them (`sampling.loss_mixtures`)."""

    times: int

    def all_infinite(self) -> float: ...

    def log_moment_of_all(self, tilt: float) -> float: ...

    def cumulants_of_all(self, tilt: float) -> Cumulants: ...

    def spectrum_of_all(self, tilt: float, size: int) -> tuple[ComplexArray, float]: ...


class Composition:
    """The distribution of the sum of independent losses, which a function makes for an interval."""

    def __init__(self, parts: Callable[[float], Sequence[Part]], interval: float) -> None:
        self._of, self._parts, self._h = parts, parts(interval), interval
        self._number = sum(part.times for part in self._parts)
        self._infinite = sum(part.all_infinite() for part in self._parts)
        self._tilted: dict[float, _Tilted] = {}

    def _log_moment(self, tilt: float) -> float:
        return sum(part.log_moment_of_all(tilt) for part in self._parts)

    def _cumulants(self, tilt: float) -> Cumulants:
        """Return log E[exp(tilt loss); finite] and its two derivatives."""
        of_parts = [part.cumulants_of_all(tilt) for part in self._parts]
        total, mean, variance = (sum(values) for values in zip(*of_parts, strict=True))
        return total, mean, variance

    def _tilt_for(self, excess: Any) -> float:
        """Return a power of sqrt(2), or 0, near the root of an increasing function."""
        if excess(0.0) >= 0.0:
            return 0.0
        low, high = -40, 40
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if excess(2.0 ** (middle / 2.0)) < 0.0 else (low, middle)
        return float(2.0 ** (low / 2.0))

    def _tilted_by(self, tilt: float) -> "_Tilted":
        if tilt not in self._tilted:
            self._tilted[tilt] = self._transformed(tilt)
        return self._tilted[tilt]

    def delta(self, epsilon: float) -> float:
        """Return delta at epsilon >= 0, rounded up and at most 1."""
        tilt = self._tilt_for(lambda x: self._cumulants(x)[1] - epsilon)
        return self._tilted_by(tilt).delta(epsilon)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon with at most this delta; infinite where there is none."""

        def excess(tilt: float) -> float:
            total, mean, _ = self._cumulants(tilt)
            return tilt * mean - total + math.log(delta)

        return self._tilted_by(self._tilt_for(excess)).epsilon(delta)

    def _transformed(self, tilt: float) -> "_Tilted":
        total, _, variance = self._cumulants(tilt)
        spread = math.sqrt(max(variance, self._h**2))
        # Chernoff bounds of the tilted distribution: beyond them it has at most exp(-_OUTSIDE).
        high, more = min(
            ((self._log_moment(tilt + by) - total + _OUTSIDE) / by, by)
            for by in (c / spread for c in _STEPS)
        )
        low = max(
            (total - self._log_moment(tilt - c / spread) - _OUTSIDE) * spread / c for c in _STEPS
        )
        first = math.floor(low / self._h)
        if high - low > _MOST * self._h:
            return Composition(self._of, 1.1 * (high - low) / _MOST)._transformed(tilt)
        size = 1 << max(4, (math.ceil(high / self._h) - first).bit_length())
        spectrum: Any = None
        error = 1.0
        for part in self._parts:
            of_part, norms = part.spectrum_of_all(tilt, size)
            error += norms
            spectrum = of_part if spectrum is None else spectrum * of_part
        masses = np.roll(scipy.fft.irfft(spectrum, size), -(first % size))
        losses: FloatArray = (first + np.arange(size, dtype=np.float64)) * self._h
        beyond = self._log_moment(tilt + more) - (tilt + more) * (first + size) * self._h
        return _Tilted(
            tilt,
            total,
            np.maximum(masses, 0.0),
            losses,
            infinite=self._infinite + math.exp(min(0.0, beyond)),
            error=_FFT_ERROR * math.log2(size) * error,
            slack=1.0 + _ERROR + self._number * _ERROR_EACH,
        )


@dataclass(frozen=True)
class _Tilted:
    """The masses of the sum times exp(tilt loss - total), with an error in l2 norm."""

    tilt: float
    total: float
    masses: FloatArray
    losses: FloatArray
    infinite: float
    error: float
    slack: float

    def delta(self, epsilon: float) -> float:
        return self._with_slope(epsilon)[0]

    def _with_slope(self, epsilon: float) -> tuple[float, float]:
        """Return delta, rounded up, and by how much its logarithm falls with epsilon."""
        start = int(np.searchsorted(self.losses, epsilon, side="right"))
        losses = self.losses[start:]
        scales = np.exp(np.minimum(self.total - self.tilt * losses, 700.0))
        weights = -np.expm1(epsilon - losses) * scales
        found = self.infinite + float((weights * self.masses[start:]).sum())
        found = (found + self.error * _norm(weights)) * self.slack
        fall = float((scales * self.masses[start:]).sum()) - found
        return min(1.0, found), fall / found if found > 0.0 else 0.0

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, float(self.losses[-1])
        if self.delta(low) <= delta:
            return 0.0
        if self.delta(high) > delta:
            return math.inf
        # Newton's steps for log delta, which is convex or nearly so, within a bracket.
        found = self._estimate(delta)
        for _ in range(60):
            found = found if low < found < high else 0.5 * (low + high)
            value, slope = self._with_slope(found)
            excess = math.log(max(value, 1e-300) / delta)
            low, high = (found, high) if excess > 0.0 else (low, found)
            if -1e-7 < excess <= 0.0:
                break
            found += (excess + 5e-8) / max(slope, 1e-3)
        return high

    def _estimate(self, delta: float) -> float:
        """Return about where delta is reached, from sums that start at the largest loss."""
        terms = self.masses * np.exp(np.minimum(self.total - self.tilt * self.losses, 700.0))
        upper = np.cumsum(terms[::-1])[::-1]
        lower = np.cumsum((terms * np.exp(-self.losses))[::-1])[::-1]
        target = delta / self.slack - self.infinite
        reached = upper - np.exp(self.losses) * lower <= target
        i = max(1, int(np.argmax(reached & (self.losses >= 0.0))))
        return math.log(max((upper[i] - target) / lower[i], 1.0)) if lower[i] > 0.0 else 0.0


def _norm(values: FloatArray) -> float:
    """Return the l2 norm, without the threads of a BLAS."""
    return math.sqrt(float((values * values).sum()))


def power(base: ComplexArray, times: int) -> ComplexArray:
    """Return base to the power times >= 1, by squaring."""
    found = None
    while times:
        if times & 1:
            found = base if found is None else found * base
        times >>= 1
        if times:
            base = base * base
    assert found is not None
    return found
