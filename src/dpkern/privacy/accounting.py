"""Releases about secret samples of the records, by Google's dp-accounting.

Two pairs of neighbours and sampling are certified, and no others:

    replace_one   batches of fixed size without replacement, Renyi DP
                  (Wang, Balle, Kasiviswanathan 2019, Theorem 27)
    add_remove    Poisson batches, privacy loss distributions (Koskela, Jalko, Honkela 2020)

A release of sensitivity D with noise std s has the noise multiplier s / D in either: the Renyi
accountant does not double the sensitivity when a record is replaced, so D is what a replaced
record moves. (dp-accounting's other pairs differ in this; they are not used.)
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import scipy  # whose parts load when they are first used: an import of dpkern is cheap

WITHOUT_REPLACEMENT, POISSON = "without_replacement", "poisson"

#: The sampling that goes with each kind of neighbours.
AMPLIFIES = {"replace_one": WITHOUT_REPLACEMENT, "add_remove": POISSON}

# Multipliers are rounded down to so many bits: releases of one budget share an event then.
_BITS = 40
# What the accountants compute in floating point is enlarged by so much. In the Renyi one's sums for
# samples without replacement terms cancel the more, the larger the multiplier: up to this one they
# keep seven digits, and a larger one, which would be charged too little, counts as this one.
_SLACK = 1e-6
_LARGEST_MULTIPLIER = 256.0
# With less noise, or where the privacy loss of all releases may be above this in the mean, epsilon
# is beyond use, and a privacy loss distribution takes minutes and gigabytes.
_LEAST_MULTIPLIER = 0.25
_LARGEST_LOSS = 64.0


@dataclass(frozen=True)
class Sampled:
    """One Gaussian release about a secret sample of a silo's records.

    Attributes
    ----------
    method : str or None
        `WITHOUT_REPLACEMENT`, `POISSON`, or None where all records were used.
    batch, size : int
        Records of a batch, for "poisson" the expected number, and of the silo.
    multiplier : float
        Noise std over sensitivity.
    """

    method: str | None
    batch: int
    size: int
    multiplier: float

    @classmethod
    def of(cls, sampling: Mapping[str, Any] | None, silo: int, multiplier: float) -> Self:
        """The release of one silo, from what its `Release` says of the sampling."""
        multiplier = _rounded_down(multiplier)
        if sampling is None or sampling["batch_sizes"][silo] == sampling["sizes"][silo]:
            return cls(None, 1, 1, multiplier)
        return cls(
            sampling["method"],
            sampling["batch_sizes"][silo],
            sampling["sizes"][silo],
            multiplier,
        )

    def scaled(self, factor: float) -> Self:
        """The same with another multiplier."""
        return replace(self, multiplier=_rounded_down(self.multiplier * factor))


Events: TypeAlias = frozenset[tuple[Sampled, int]]


def _rounded_down(multiplier: float) -> float:
    mantissa, exponent = math.frexp(multiplier)
    return math.ldexp(math.floor(mantissa * 2.0**_BITS), exponent - _BITS)


def sampled_epsilon(events: Events, delta: float, neighbours: str) -> float:
    """Return the epsilon at `delta` of so many releases of each kind, composed.

    Parameters
    ----------
    events : frozenset of (Sampled, int)
        What was released about one silo's records, and how often.
    delta : float
        In (0, 1).
    neighbours : {"replace_one", "add_remove"}
        With the sampling of `AMPLIFIES` only.

    Returns
    -------
    float
        dp-accounting's figure and a relative 1e-6; infinity where there is next to no privacy.

    Raises
    ------
    ValueError
        When a sampling does not go with the neighbours.
    ModuleNotFoundError
        Without dp-accounting; the message says how to get it.
    """
    if _beyond_use(events):
        return math.inf
    return float(_composed(events, neighbours).get_epsilon(delta)) * (1.0 + _SLACK)


def sampled_delta(events: Events, epsilon: float, neighbours: str) -> float:
    """Return the delta at `epsilon` >= 0, 1 for infinity; the rest is as for `sampled_epsilon`."""
    if _beyond_use(events):
        return 1.0
    return min(1.0, float(_composed(events, neighbours).get_delta(epsilon)) * (1.0 + _SLACK))


def _beyond_use(events: Events) -> bool:
    if any(event.multiplier < _LEAST_MULTIPLIER for event, _ in events):
        return True
    # D(q N(1, s^2) + (1 - q) N(0, s^2) | N(0, s^2)) is at most q / (2 s^2), and log(1 + chi^2).
    means = (
        times * min(rate / 2.0 * square, math.log1p(rate**2 * math.expm1(square)))
        for rate, square, times in (
            (event.batch / event.size, event.multiplier**-2, times) for event, times in events
        )
    )
    return sum(means) > _LARGEST_LOSS


@functools.lru_cache(maxsize=256)
def _composed(events: Events, neighbours: str) -> Any:
    dp, accountant = _accountant(neighbours)
    for event, times in sorted(events, key=repr):
        gaussian = dp.GaussianDpEvent(event.multiplier)
        if event.method is None:
            accountant.compose(gaussian, times)
        elif event.method != AMPLIFIES[neighbours]:
            raise ValueError(
                f"sampling must be {AMPLIFIES[neighbours]!r} for {neighbours!r} neighbours, got "
                f"{event.method!r}"
            )
        elif event.method == POISSON:
            rate = math.nextafter(event.batch / event.size, 1.0)
            accountant.compose(dp.PoissonSampledDpEvent(rate, gaussian), times)
        else:
            gaussian = dp.GaussianDpEvent(min(event.multiplier, _LARGEST_MULTIPLIER))
            accountant.compose(
                dp.SampledWithoutReplacementDpEvent(event.size, event.batch, gaussian), times
            )
    return accountant


def _accountant(neighbours: str) -> tuple[Any, Any]:
    try:
        import dp_accounting as dp
        from dp_accounting import pld, rdp
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "secret samples of the records are accounted for by dp-accounting, which is not "
            "installed: pip install 'dpkern[accounting]'"
        ) from error
    if neighbours == "add_remove":
        relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
        return dp, pld.PLDAccountant(neighboring_relation=relation)
    relation = dp.NeighboringRelation.REPLACE_ONE
    return dp, rdp.RdpAccountant(neighboring_relation=relation)


def sampled_scale(
    events: Events, epsilon: float, delta: float, neighbours: str, *, least: float = 0.0
) -> float:
    """Return how much smaller all multipliers may be than without secret samples.

    Parameters
    ----------
    events : frozenset of (Sampled, int)
        Releases about one silo's records, and how often, with the multipliers that spend the budget
        when samples are charged in full.
    epsilon, delta : float
        The budget.
    neighbours : str
        As in `sampled_epsilon`.
    least : float
        A factor that is wanted at least, such as that of another silo: one look tells whether it
        serves.

    Returns
    -------
    float
        The factor, above the least one by a relative 1e-4 or so; 1 where the accountant has nothing
        better.
    """

    def excess(log_factor: float) -> float:
        scaled: Counter[Sampled] = Counter()
        for event, times in events:
            scaled[event.scaled(math.exp(log_factor))] += times
        spent = sampled_epsilon(frozenset(scaled.items()), delta, neighbours)
        return math.log(min(max(spent, 1e-300), 1e300) / epsilon)

    if least > 0.0 and excess(math.log(least)) <= 0.0:
        return least
    low = high = 0.0
    if excess(high) > 0.0:
        return 1.0
    while excess(low) <= 0.0 and low > -100.0:
        low, high = low - 2.0, low
    found: float = scipy.optimize.brentq(excess, low, high, xtol=1e-4)
    while excess(found) > 0.0:
        found += 1e-4
    return math.exp(min(found, 0.0))
