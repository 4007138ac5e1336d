"""Privacy amplification by secret samples of the records.

Two combinations of neighbour relation and sampling are certified:

    replace_one   batches of fixed size without replacement
    add_remove    Poisson batches (Koskela, Jalko, Honkela 2020)

A release of sensitivity D with noise std s has the noise multiplier s / D in both; D is the
sensitivity under the relation. With rate g, mu = D / s, P = N(mu, 1) and Q = N(0, 1), a Poisson
batch has the pair (g P + (1 - g) Q, Q) where the record is removed and the reverse where it is
added. Of a batch of fixed size both directions, for any pair of neighbours, are bounded by the
profile that takes the first pair where it is larger, for losses above 0, and the mirror image below
(Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function", AISTATS
2022). docs/proofs/sampling.md has the proof, and that of the numbers computed here.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self, TypeAlias

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern.privacy.guarantees.gdp import gdp_delta_upper, gdp_epsilon, gdp_mu
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.sampling.loss_distributions import (
    Composition,
    Losses,
    Pair,
    Part,
    directed,
    interval_of,
    symmetric,
)
from dpkern.privacy.sampling.loss_mixtures import Ladder, Mixtures

WITHOUT_REPLACEMENT, POISSON = "without_replacement", "poisson"

#: The sampling that is certified for each neighbour relation.
AMPLIFIES = {"replace_one": WITHOUT_REPLACEMENT, "add_remove": POISSON}

# Multipliers are rounded down to so many bits, so that releases of one budget share an event.
_BITS = 40
# Up to so many releases of one rate with different noise have losses of their own.
_FEW_ROWS = 32
# With less noise, or a larger expected privacy loss of all releases, epsilon is useless, and a
# privacy loss distribution would take minutes and gigabytes.
_LEAST_MULTIPLIER = 0.25
_LARGEST_LOSS = 64.0


@dataclass(frozen=True)
class Sampled:
    """One Gaussian release about a secret sample of a silo's records."""

    method: str | None  # None where all records were used
    batch: int  # expected for Poisson batches
    size: int
    multiplier: float  # std over sensitivity

    @classmethod
    def of(cls, sampling: Mapping[str, Any] | None, silo: int, multiplier: float) -> Self:
        """Return the release of one silo, given the sampling of its `Release`."""
        multiplier = _rounded_down(multiplier)
        if sampling is None or sampling["batch_sizes"][silo] == sampling["sizes"][silo]:
            return cls(None, 1, 1, multiplier)
        batch, size = sampling["batch_sizes"][silo], sampling["sizes"][silo]
        return cls(sampling["method"], batch, size, multiplier)


#: The releases about one silo's records, with their counts.
Events: TypeAlias = frozenset[tuple[Sampled, int]]


#: Releases in an order in which those of two silos are compared.
_Sorted: TypeAlias = tuple[tuple[float, float, int, str], ...]
#: Rate, mu and number of equal releases.
Row: TypeAlias = tuple[float, float, int]


def _rounded_down(multiplier: float) -> float:
    mantissa, exponent = math.frexp(multiplier)
    return math.ldexp(math.floor(mantissa * 2.0**_BITS), exponent - _BITS)


def sampled_epsilon(events: Events, delta: float, neighbours: str) -> float:
    """Return an epsilon of composed releases, rounded up.

    It is infinite if it would be useless. A sampling that is not certified for the neighbour
    relation raises ValueError.
    """
    if _is_useless(events):
        return math.inf
    return _epsilon(_composed(events, neighbours), delta)


def _epsilon(composed: "_Composed", delta: float) -> float:
    if isinstance(composed, float):
        return gdp_epsilon(composed, delta)
    return max(one.epsilon(delta) for one in composed)


def sampled_delta(events: Events, epsilon: float, neighbours: str) -> float:
    """Return the delta at `epsilon` >= 0, 1 for infinity; the rest is as for `sampled_epsilon`."""
    if _is_useless(events):
        return 1.0
    composed = _composed(events, neighbours)
    if isinstance(composed, float):
        return gdp_delta_upper(composed, epsilon)
    return max(one.delta(epsilon) for one in composed)


def costliest(silos: Iterable[Events]) -> frozenset[Events]:
    """Return the sets of releases of which no other one surely costs as much, for every delta.

    What a release costs grows with its rate and falls with its multiplier.
    """
    kept: list[tuple[Events, _Sorted]] = []
    for events, rows in sorted(((e, _sorted(e)) for e in silos), key=lambda pair: pair[1]):
        if not any(_covers(other, rows) for _, other in kept):
            kept.append((events, rows))
    return frozenset(events for events, _ in kept)


def _sorted(events: Events) -> _Sorted:
    """Return multipliers, rates negated, counts negated and methods, the costliest first."""
    rows = ((e.multiplier, -e.batch / e.size, -times, e.method or "") for e, times in events)
    return tuple(sorted(rows))


def _covers(first: _Sorted, second: _Sorted) -> bool:
    """Whether each release of the second is one of the first with no more noise, or less secrecy.

    Full batches, of rate 1, cost the most.
    """
    return len(first) == len(second) and all(
        all(x <= y for x, y in zip(a[:3], b[:3], strict=True)) and a[3] in ("", b[3])
        for a, b in zip(first, second, strict=True)
    )


def _is_useless(events: Events) -> bool:
    if any(event.multiplier < _LEAST_MULTIPLIER for event, _ in events):
        return True
    loss = 0.0
    for event, times in events:
        rate, square = event.batch / event.size, event.multiplier**-2
        # D(q N(1, s^2) + (1 - q) N(0, s^2) | N(0, s^2)) is at most q / (2 s^2), and log(1 + chi^2).
        loss += times * min(rate / 2.0 * square, math.log1p(rate**2 * math.expm1(square)))
    return loss > _LARGEST_LOSS


#: The mu of releases about all records, or the compositions of which the larger figure counts.
_Composed: TypeAlias = float | tuple[Composition, ...]


@functools.lru_cache(maxsize=32)
def _composed(events: Events, neighbours: str) -> _Composed:
    return _made(events, neighbours)


def _made(events: Events, neighbours: str) -> _Composed:
    sampled = [(event, times) for event, times in events if event.method is not None]
    for event, _ in sampled:
        if event.method != AMPLIFIES[neighbours]:
            raise ValueError(
                f"sampling must be {AMPLIFIES[neighbours]!r} for {neighbours!r} neighbours, got "
                f"{event.method!r}"
            )
    squares = sum(
        (times / Fraction(e.multiplier) ** 2 for e, times in events if e.method is None),
        Fraction(0),
    )
    if not sampled:
        return sqrt_up(squares)
    # In the order of a sum whose last digits do not depend on that of a set.
    rows = [(*_parameters(event), times) for event, times in sorted(sampled, key=repr)]
    few, ladders = _laddered(rows)
    moments = [(_square(rate, mu, neighbours), times) for rate, mu, times in few]
    for rate, ladder in ladders:
        squares_of_rungs = np.array([_square(rate, mu, neighbours) for mu in ladder.rungs])
        moments.append((ladder.mixed(squares_of_rungs), 1))
    full = sqrt_up(squares)
    if squares:
        moments.append((full**2, 1))

    def one(removed: bool, interval: float, rate: float, mu: float, times: int = 1) -> Losses:
        if neighbours == "replace_one":
            return symmetric(rate, mu, interval, times)
        return directed(rate, mu, interval, times, removed=removed)

    def parts(removed: bool, interval: float) -> list[Part]:
        found: list[Part] = [one(removed, interval, *row) for row in few]
        for rate, ladder in ladders:
            found.append(Mixtures(ladder, functools.partial(one, removed, interval, rate)))
        return found + ([symmetric(1.0, full, interval, 1)] if squares else [])

    directions = (True,) if neighbours == "replace_one" else (True, False)
    interval = interval_of(moments, sum(times for *_, times in rows) + bool(squares))
    return tuple(Composition(functools.partial(parts, way), interval) for way in directions)


def _laddered(rows: list[Row]) -> tuple[list[Row], list[tuple[float, Ladder]]]:
    """Return the rows that have losses of their own, and ladders of the others by their rate."""
    of_rate: dict[float, list[Row]] = {}
    for row in rows:
        of_rate.setdefault(row[0], []).append(row)
    ladders = {}
    for rate, found in of_rate.items():
        if len(found) > _FEW_ROWS:
            ladder = Ladder([(mu, times) for _, mu, times in found])
            if 2 * len(ladder.rungs) <= len(found):
                ladders[rate] = ladder
    return [row for row in rows if row[0] not in ladders], list(ladders.items())


def _parameters(event: Sampled) -> tuple[float, float]:
    """Return a release's rate and its mu, both rounded up."""
    rate = min(1.0, math.nextafter(event.batch / event.size, 1.0))
    return rate, round_up(1 / Fraction(event.multiplier))


def _square(rate: float, mu: float, neighbours: str) -> float:
    """Return an estimate of the mean square of a release's loss."""
    pair, replaced = Pair(rate, mu), neighbours == "replace_one"
    return (2.0 if replaced else 1.0) * pair.square(positive=replaced)


@functools.lru_cache(maxsize=256)  # runs of a study and of an audit have the same few
def sampled_scale(
    events: Events, epsilon: float, delta: float, neighbours: str, *, least: float = 0.0
) -> float:
    """Return the factor by which secret samples allow all multipliers to be reduced.

    The multipliers of `events` spend the budget when samples are charged in full. The factor is
    about a relative 1e-4 above the optimum, 1 where sampling gains nothing, and at least `least`,
    such as the factor of another silo.
    """

    def scaled(log_factor: float) -> Events:
        found: Counter[Sampled] = Counter()
        for event, times in events:
            multiplier = _rounded_down(event.multiplier * math.exp(log_factor))
            found[replace(event, multiplier=multiplier)] += times
        return frozenset(found.items())

    def excess(log_factor: float) -> float:
        """Return log of the epsilon that is spent over that of the budget."""
        trial = scaled(log_factor)
        spent = math.inf if _is_useless(trial) else _epsilon(_made(trial, neighbours), delta)
        return math.log(min(max(spent, 1e-300), 1e300) / epsilon)

    if least > 0.0 and excess(math.log(least)) <= 0.0:
        return least
    found = _central_limit(scaled, gdp_mu(epsilon, delta), neighbours)
    # The excess falls by about the change of the logarithm, times at most a few.
    low, high, slope = -math.inf, 0.0, -1.0
    previous: tuple[float, float] | None = None
    for _ in range(60):
        value = excess(found)
        if value <= 0.0:
            high = found
            if value > -1e-4 or found - low < 1e-5:
                break
        else:
            low = found
            if low >= 0.0:
                return 1.0
        if previous is not None and found != previous[0]:
            secant = (value - previous[1]) / (found - previous[0])
            slope = secant if -8.0 < secant < -0.1 else slope
        previous = found, value
        step = found - (value + 4e-5) / slope
        step = min(max(step, found - 2.0), found + 0.5, 0.0)
        found = step if low < step < high or step == 0.0 > low else 0.5 * (max(low, -99.0) + high)
    return math.exp(high)


def _central_limit(scaled: Any, mu: float, neighbours: str) -> float:
    """Return the logarithm of the factor with which losses have the variance of mu-GDP."""

    def excess(log_factor: float) -> float:
        total = 0.0
        for event, times in scaled(log_factor):
            if event.method is None:
                total += times / event.multiplier**2
            else:
                total += times * _square(*_parameters(event), neighbours)
        return 0.5 * math.log(total) - math.log(mu)

    low = 0.0
    while low > -16.0 and excess(low) < 0.0:
        low -= 1.0
    if low == 0.0:
        return 0.0
    found: float = scipy.optimize.brentq(excess, low, low + 1.0, xtol=1e-3, disp=False)
    return min(found, 0.0)
