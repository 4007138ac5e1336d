"""Privacy amplification by secret samples of the records, by Google's dp-accounting.

Two combinations of neighbour relation and sampling are certified:

    replace_one   batches of fixed size without replacement, Renyi DP
                  (Wang, Balle, Kasiviswanathan 2019, Theorem 27)
    add_remove    Poisson batches, privacy loss distributions (Koskela, Jalko, Honkela 2020)

A release of sensitivity D with noise std s has the noise multiplier s / D in both: the Renyi
accountant does not double the sensitivity for replaced records, so that D is the sensitivity under
replacement. (dp-accounting's other combinations differ in this; they are not used.)
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import scipy  # submodules load lazily, which keeps the import of dpkern cheap

WITHOUT_REPLACEMENT, POISSON = "without_replacement", "poisson"

#: The sampling that is certified for each neighbour relation.
AMPLIFIES = {"replace_one": WITHOUT_REPLACEMENT, "add_remove": POISSON}

# Multipliers are rounded down to so many bits, so that releases of one budget share an event.
_BITS = 40
# Relative error bound of the accountants' floating-point results. The Renyi accountant's sums for
# samples without replacement suffer cancellation for large multipliers: up to the largest here they
# have seven correct digits, and larger ones, which would be charged too little, are reduced to it.
_SLACK = 1e-6
_LARGEST_MULTIPLIER = 256.0
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


def _rounded_down(multiplier: float) -> float:
    mantissa, exponent = math.frexp(multiplier)
    return math.ldexp(math.floor(mantissa * 2.0**_BITS), exponent - _BITS)


def sampled_epsilon(events: Events, delta: float, neighbours: str) -> float:
    """Return dp-accounting's epsilon of composed releases, enlarged by a relative 1e-6.

    It is infinite if it would be useless. A sampling that is not certified for the neighbour
    relation raises ValueError.
    """
    if _is_useless(events):
        return math.inf
    return float(_composed(events, neighbours).get_epsilon(delta)) * (1.0 + _SLACK)


def sampled_delta(events: Events, epsilon: float, neighbours: str) -> float:
    """Return the delta at `epsilon` >= 0, 1 for infinity; the rest is as for `sampled_epsilon`."""
    if _is_useless(events):
        return 1.0
    return min(1.0, float(_composed(events, neighbours).get_delta(epsilon)) * (1.0 + _SLACK))


def _is_useless(events: Events) -> bool:
    if any(event.multiplier < _LEAST_MULTIPLIER for event, _ in events):
        return True
    loss = 0.0
    for event, times in events:
        rate, square = event.batch / event.size, event.multiplier**-2
        # D(q N(1, s^2) + (1 - q) N(0, s^2) | N(0, s^2)) is at most q / (2 s^2), and log(1 + chi^2).
        loss += times * min(rate / 2.0 * square, math.log1p(rate**2 * math.expm1(square)))
    return loss > _LARGEST_LOSS


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
    relations = dp.NeighboringRelation
    if neighbours == "add_remove":
        return dp, pld.PLDAccountant(neighboring_relation=relations.ADD_OR_REMOVE_ONE)
    return dp, rdp.RdpAccountant(neighboring_relation=relations.REPLACE_ONE)


def sampled_scale(
    events: Events, epsilon: float, delta: float, neighbours: str, *, least: float = 0.0
) -> float:
    """Return the factor by which secret samples allow all multipliers to be reduced.

    The multipliers of `events` spend the budget when samples are charged in full. The factor is
    about a relative 1e-4 above the optimum, 1 where sampling gains nothing, and at least `least`,
    such as the factor of another silo.
    """

    def excess(log_factor: float) -> float:
        scaled: Counter[Sampled] = Counter()
        for event, times in events:
            multiplier = _rounded_down(event.multiplier * math.exp(log_factor))
            scaled[replace(event, multiplier=multiplier)] += times
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
