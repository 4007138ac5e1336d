"""Guarantees recomputed from plain numbers by mpmath and dp-accounting, for `dpkern verify`.

Nothing of dpkern is imported, so that an error in the ledger, in a guarantee or in a conversion is
not repeated here. The formulas are those of docs/certificate.md, docs/shuffle.md, docs/selection.md
and docs/objective_perturbation.md, by direct integration in place of bounds.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

#: Decimal digits of all numbers, and of integrals, whose errors are far below the tolerances.
DIGITS = 60
_INTEGRAL_DIGITS = 25
#: Total variation distance of one draw of noise from its exact law, as a power of two.
DRAW_BITS = 100
# Beyond these figures are useless, and dpkern states none.
_LEAST_MULTIPLIER, _LARGEST_LOSS = 0.25, 64.0
# Losses are multiples of an interval, this part of the deviation of a release's loss, and of that
# of the total; at most so many of them, for losses of outcomes up to the last.
_OF_ONE, _OF_TOTAL, _MOST_LOSSES, _FAR = 1.0 / 64.0, 1.0 / 1024.0, 1 << 20, 11.0
# The roundings of dp-accounting's sums of probabilities, of which tiny deltas are nothing but.
_OF_DOUBLES = 2.0**-47
AMPLIFIED = {"replace_one": "without_replacement", "add_remove": "poisson"}


@cache
def multiprecision() -> Any:
    """Return mpmath, or raise an error that says how to install it."""
    try:
        import mpmath
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "certificates are verified by mpmath, which is not installed: "
            "pip install 'dpkern[verify]'"
        ) from error
    return mpmath


@lru_cache(maxsize=256)
def binomial_mu(coins: int, sensitivity: float) -> Any:
    """Return the largest step of docs/proofs/shuffle.md times the sensitivity.

    It is that at the end of its thresholds, where tails are continued fractions.
    """
    mp = multiprecision()
    with mp.workdps(DIGITS):
        d, m = mp.mpf(sensitivity), coins
        last = int(mp.floor(m / mp.mpf(2) + mp.sqrt(m * mp.mpf(35004) / 1000) + d)) + 2
        if last > m or (m > 4096 and 2 * (m - last + 1) < last):
            return mp.inf
        return d * (_threshold(m, last) - _threshold(m, last - 1))


def _threshold(m: int, t: int) -> Any:
    """Return z with Phi(-z) = P(Bin(m, 1/2) >= t), by the incomplete beta function."""
    mp = multiprecision()
    a, b, half = mp.mpf(t), mp.mpf(m - t + 1), mp.mpf(1) / 2
    fraction = mp.mpf(1)
    for k in range(400, -1, -1):
        odd = -(a + k) * (a + b + k) * half / ((a + 2 * k) * (a + 2 * k + 1))
        even = (k + 1) * (b - k - 1) * half / ((a + 2 * k + 1) * (a + 2 * k + 2))
        fraction = 1 + odd / (1 + even / fraction)
    log_p = mp.loggamma(m + 1) - mp.loggamma(t + 1) - mp.loggamma(m - t + 1)
    log_tail = log_p - (m + 1) * mp.log(2) - mp.log(fraction)

    def excess(z: Any) -> Any:
        return mp.log(mp.erfc(z / mp.sqrt(2)) / 2) - log_tail

    return mp.findroot(excess, mp.sqrt(max(mp.mpf(1), -2 * log_tail - 6)))


def mean_runs(eta: float, gamma: float) -> Any:
    """Return the mean of the truncated negative binomial distribution."""
    mp = multiprecision()
    g = mp.mpf(gamma)
    scale = -mp.log(g) if eta == 0.0 else (1 - g**eta) / eta
    return (1 - g) / g / scale


@dataclass(frozen=True)
class Guarantee:
    """A guarantee with its parameters, the draws of noise, and releases on secret samples if any.

    `silos` holds, for every silo, the multiset of (method, batch, size, noise multiplier).
    """

    name: str
    parameters: tuple[tuple[str, Any], ...]
    n_draws: int
    silos: tuple[Mapping[tuple[Any, ...], int], ...] = ()
    neighbours: str = "replace_one"

    @property
    def sampled(self) -> tuple[Mapping[tuple[Any, ...], int], ...]:
        """The silos' releases if dp-accounting can take them, else none."""
        return () if any(map(_is_useless, self.silos)) else self.silos

    def delta(self, epsilon: float, enough: float = 0.0) -> Any:
        """Return the least delta at epsilon with the error of the draws, or one below `enough`."""
        mp = multiprecision()
        error = mp.ldexp(self.n_draws, -DRAW_BITS)

        def corrected(e: Any) -> Any:
            return exact_delta(self.name, self.parameters, e) + (1 + mp.exp(e)) * error

        with mp.workdps(DIGITS):
            found = corrected(mp.mpf(epsilon))
            if (
                found > enough and mp.exp(epsilon) * error > found / 1000
            ):  # a smaller epsilon may be better
                found = min(found, corrected(_argmin(corrected, 0.0, epsilon)))
            if self.sampled:
                worst = max(sampled_delta(silo, epsilon, self.neighbours) for silo in self.sampled)
                worst = max(0.0, worst - _OF_DOUBLES)
                found = min(found, worst + (1 + mp.exp(epsilon)) * error)
            return min(found, mp.mpf(1))

    def reduced(self, epsilon: float) -> tuple[float, float, float]:
        """Return an epsilon at which delta must exceed a stated one, and the slack of that delta.

        The slack is a share and a number. A stated figure above it is not what dpkern states.
        Gaussian and concentrated DP are rounded in the last digits. Losses of secret samples are
        rounded to intervals, and their deltas, here and there, are sums of doubles. The law of
        objective perturbation is an upper sum over intervals of chi of (sqrt(k) + 40) / 8192, each
        taken at its upper end; the curve of a selection is enlarged by what it bends between 2 049
        points, 1e-4 of epsilon at usual settings.
        """
        of = dict(self.parameters)
        if self.name == "objective_perturbation":
            width = (math.sqrt(of["directions"]) + 40.0) / 8192.0 * float(of["shift"])
            return epsilon - 1.01 * width - 1e-9, 1e-6, 0.0
        if self.name == "selection":
            return 0.98 * epsilon - 1e-4, 1e-6, 0.0
        if self.sampled:
            return epsilon * (1.0 - 2e-3), 1e-5, 2.0 * _OF_DOUBLES
        return epsilon * (1.0 - 1e-9), 1e-9, 0.0

    def loosest(self) -> "Guarantee":
        """Return the guarantee above which no version of dpkern has stated figures.

        Samples without replacement once had those of Renyi DP, and had to be charged in full where
        these were larger.
        """
        return replace(self, silos=()) if self.neighbours == "replace_one" else self


@lru_cache(maxsize=256)
def exact_delta(name: str, parameters: tuple[tuple[str, Any], ...], epsilon: Any) -> Any:
    """Return the delta of a guarantee for exact noise, epsilon >= 0."""
    of = dict(parameters)
    if name == "gaussian":
        return gaussian_delta(of["mu"], epsilon)
    if name == "concentrated":
        return concentrated_delta(of["rho"], epsilon)
    with multiprecision().workdps(_INTEGRAL_DIGITS):
        if name == "selection":
            return selection_delta(of["mu"], of["eta"], of["gamma"], epsilon)
        return minimiser_delta(of["volume"], of["shift"], of["directions"], of["mu"], epsilon)


def gaussian_delta(mu: Any, x: Any) -> Any:
    """Return Phi(-x/mu + mu/2) - exp(x) Phi(-x/mu - mu/2) for any x; 1 for an infinite mu."""
    mp = multiprecision()
    if mu == 0 or mp.isinf(mu):
        return mp.mpf(1) if mu else max(mp.mpf(0), 1 - mp.exp(x))
    return mp.ncdf(-x / mu + mu / 2) - mp.exp(x) * mp.ncdf(-x / mu - mu / 2)


def concentrated_delta(rho: Any, epsilon: Any) -> Any:
    """Return the least exp((a - 1)(a rho - epsilon)) (1 - 1/a)^(a - 1) / a over a > 1, at most 1.

    (Canonne, Kamath, Steinke 2020, Proposition 12.) The logarithm is convex in a.
    """
    mp = multiprecision()
    low, high = mp.mpf(1), (epsilon + 1) / (2 * rho) + 3
    for _ in range(120):
        a = (low + high) / 2
        slope = (2 * a - 1) * rho - epsilon + mp.log(1 - 1 / a)
        low, high = (low, a) if slope > 0 else (a, high)
    found = mp.exp((a - 1) * (a * rho - epsilon)) * (1 - 1 / a) ** (a - 1) / a
    return min(found, mp.mpf(1))


def minimiser_delta(volume: Any, shift: Any, directions: int, mu: Any, epsilon: Any) -> Any:
    """Return E delta(epsilon - Z; mu), Z = volume + shift chi + shift^2 / 2, by quadrature."""
    mp = multiprecision()
    k, volume, m, mu = directions, mp.mpf(volume), mp.mpf(shift), mp.mpf(mu)
    log_scale = (k / mp.mpf(2) - 1) * mp.log(2) + mp.loggamma(k / mp.mpf(2))
    middle, width = (epsilon - volume - m**2 / 2) / m, mu / m
    least, most = max(mp.mpf(0), mp.sqrt(k) - 14), mp.sqrt(k) + 14

    def integrand(c: Any) -> Any:
        density = mp.exp((k - 1) * mp.log(c) - c * c / 2 - log_scale)
        return density * gaussian_delta(mu, epsilon - (volume + m * c + m**2 / 2))

    edges = [least + (most - least) * j / 20 for j in range(21)]
    edges += [middle + s * j * width for j in (0, 3, 8, 20) for s in (-1, 1)]
    return _integral(integrand, sorted({e for e in edges if least <= e <= most}))


def selection_delta(mu: Any, eta: float, gamma: float, epsilon: Any) -> Any:
    """Return the integral over x of max_t (a(t) p(x) - e^epsilon a(t + mu) q(x))+.

    p and q are the densities of N(mu, 1) and N(0, 1). t is found in floats: any t gives a lower
    bound, and the error is of second order.
    """
    mp = multiprecision()
    m, g = float(mu), float(gamma)
    mean, power = mean_runs(eta, gamma), eta + 1.0

    def log_a(t: float) -> float:  # less a constant
        return -power * math.log(g + (1.0 - g) * 0.5 * math.erfc(-t / math.sqrt(2.0)))

    def log_slope(t: float) -> float:  # log(-a'(t)), less a constant
        return log_a(t) * (1.0 + 1.0 / power) - 0.5 * t * t

    last = float(_argmin(lambda t: log_a(t + m) - log_a(t), -20.0, 8.0))

    def best(target: float) -> float:
        """Return the t at which a(t) p / (a(t + mu) q) e^-epsilon is stationary."""
        low, high = -60.0, last
        for _ in range(50):
            t = 0.5 * (low + high)
            low, high = (low, t) if log_slope(t) - log_slope(t + m) > target else (t, high)
        return low

    def a(t: Any) -> Any:
        return mean * (gamma / (gamma + (1 - mp.mpf(gamma)) * mp.ncdf(t))) ** (eta + 1)

    def integrand(x: Any) -> Any:
        t = best(float(epsilon - mu * x + mp.mpf(mu) ** 2 / 2))
        return max(
            mp.mpf(0),
            a(t) * mp.npdf(x, mu) - mp.exp(epsilon) * a(t + mp.mpf(mu)) * mp.npdf(x),
        )

    first = (epsilon - (log_a(last) - log_a(last + m))) / mu + mp.mpf(mu) / 2
    begin = max(first, mp.mpf(-14))
    return _integral(integrand, [begin + (max(begin, mu) + 14 - begin) * j / 16 for j in range(17)])


def _integral(integrand: Any, edges: Sequence[Any]) -> Any:
    return multiprecision().quad(integrand, edges, method="gauss-legendre", maxdegree=4)


def _argmin(function: Any, low: Any, high: Any) -> Any:
    """Return where a function with one minimum has it, by golden section."""
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    for _ in range(60):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return left if at_left < at_right else right


def _is_useless(events: Mapping[tuple[Any, ...], int]) -> bool:
    loss = 0.0
    for (_, batch, size, multiplier), times in events.items():
        if multiplier < _LEAST_MULTIPLIER:
            return True
        rate, square = batch / size, multiplier**-2
        loss += times * min(rate / 2.0 * square, math.log1p(rate**2 * math.expm1(square)))
    return loss > _LARGEST_LOSS


def sampled_delta(events: Mapping[tuple[Any, ...], int], epsilon: float, neighbours: str) -> float:
    """Return dp-accounting's delta of releases on secret samples of one silo's records."""
    losses = _losses(frozenset(events.items()), neighbours)
    return float(losses.get_delta_for_epsilon(float(epsilon)))


@lru_cache(maxsize=16)
def _losses(events: frozenset[tuple[tuple[Any, ...], int]], neighbours: str) -> Any:
    """Return the privacy loss distribution of all releases."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "secret samples are verified by dp-accounting, which is not installed: "
            "pip install 'dpkern[verify]'"
        ) from error
    rows = []
    for (method, batch, size, multiplier), times in sorted(events, key=repr):
        if not 1 <= batch <= size:
            raise ValueError(f"a batch of {batch!r} of {size!r} records")
        rate = 1.0 if method is None else min(1.0, math.nextafter(batch / size, 1.0))
        rows.append((rate, multiplier, times))
    full = math.sqrt(math.fsum(times / s**2 for rate, s, times in rows if rate == 1.0))
    rows = [row for row in rows if row[0] < 1.0] + ([(1.0, 1.0 / full, 1)] if full else [])
    total = math.sqrt(math.fsum(times * _square(rate, 1.0 / s) for rate, s, times in rows))
    number = sum(times for *_, times in rows)
    largest = max(_largest(rate, 1.0 / s) for rate, s, _ in rows)
    interval = total * max(min(_OF_ONE / math.sqrt(number), _OF_TOTAL), 2.0**-18)
    interval = max(interval, largest / _MOST_LOSSES)
    composed = None
    for rate, multiplier, times in rows:
        if rate == 1.0:
            one = pld.from_gaussian_mechanism(multiplier, value_discretization_interval=interval)
        elif neighbours == "add_remove":
            one = pld.from_gaussian_mechanism(
                multiplier, value_discretization_interval=interval, sampling_prob=rate
            )
        else:
            one = _without_replacement(rate, 1.0 / multiplier, interval)
        one = one if times == 1 else one.self_compose(times)
        composed = one if composed is None else composed.compose(one)
    return composed


def _largest(rate: float, mu: float) -> float:
    return math.log1p(rate * math.expm1(mu * (_FAR + 0.5 * mu)))


def _square(rate: float, mu: float) -> float:
    """Return the mean square loss of a release, by a sum over outcomes."""
    import numpy as np

    z = np.linspace(-_FAR, _FAR + mu, 4001)
    density = rate * np.exp(-0.5 * (z - mu) ** 2) + (1.0 - rate) * np.exp(-0.5 * z**2)
    loss = np.log1p(rate * np.expm1(mu * (z - 0.5 * mu))) if rate < 1.0 else mu * (z - 0.5 * mu)
    return float((loss**2 * density).sum() * (z[1] - z[0]) / math.sqrt(2.0 * math.pi))


def _without_replacement(rate: float, mu: float, interval: float) -> Any:
    """Return the loss distribution whose profile is h of docs/proofs/sampling.md."""
    import numpy as np
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    from scipy.special import ndtr

    places = np.arange(math.ceil(_largest(rate, mu) / interval) + 1)
    excess = np.expm1(places * interval) / rate  # alpha - 1 of the pair without sampling
    z = 0.5 * mu + np.log1p(excess) / mu
    above = np.maximum(rate * (ndtr(mu - z) - (1.0 + excess) * ndtr(-z)), 0.0)
    above = np.minimum.accumulate(above)
    below = -np.expm1(-places * interval) + np.exp(-places * interval) * above
    deltas = np.concatenate([below[:0:-1], above])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, -int(places[-1]), int(places[-1]), np.minimum.accumulate(np.minimum(deltas, 1.0))
    )
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def multiset(events: Sequence[tuple[tuple[Any, ...], int]]) -> Counter[tuple[Any, ...]]:
    """Return the counts of events, equal ones added."""
    found: Counter[tuple[Any, ...]] = Counter()
    for event, times in events:
        found[event] += times
    return found
