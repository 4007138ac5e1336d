"""The channel of releases: ledger, noise stream, readers, neighbour relation and parties."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import positive
from dpkern.party import ImplausibleError, Party
from dpkern.privacy.certificate.ledger import Ledger, Release
from dpkern.privacy.guarantees.rounding import sqrt_down, sqrt_up
from dpkern.stream import NoiseStream

#: Who sees a release, by the trust model.
SEEN_BY = {
    "central": "whoever sees the aggregate of a round",
    "silo": "whoever sees a silo's message",
    "shuffle": "whoever sees the shuffled messages of a round",
    "local": "everybody: a user is believed by itself alone",
}
STATED_SIZES = (
    "add or remove: the study states the silos' numbers of records, which tell by themselves "
    "whether one is there; the guarantee is for what the run releases"
)
OTHER_SILOS = (
    "silos in processes of their own: what one of them states of its noise rests on itself; taken "
    "as true of the others that they draw theirs from their operating systems"
)
SHARED_NOISE = (
    "noise by shares: stds are those of the noise of all silos but {} of the {}, which may pool "
    "all that they know with whoever sees the sums; a silo that looks at a sum is such a one"
)

# The norm of d standard normal draws exceeds sqrt(d) by so much with probability exp(-40) at most:
# in a million releases with less than 1e-11.
_DEVIATIONS = 9.0
_ROUNDING = 1.05  # factor that covers rounding to grids, which adds at most 1/32 to a bound


# Below this many grid steps the rounded shares of several silos no longer add up to one rounded
# Gaussian within the sampler's own error.
LEAST_SHARE_STEPS = 8.0


def largest_norm(bound: float, std: float, dim: int) -> float:
    """Return the largest plausible norm of a vector of norm up to `bound` plus such noise."""
    return _ROUNDING * (bound + std * (math.sqrt(dim) + _DEVIATIONS))


@dataclass(frozen=True)
class Shares:
    """How silos add noise to their sum: each its own share, of which t silos may know theirs.

    The noise that counts is that of the others, so that a share has 1/(m - t) of its variance.
    """

    silos: int  #: m
    colluding: int  #: t, silos that may pool what they know with whoever sees the sum

    @classmethod
    def of(cls, silos: int, trust: str, colluding: int | None, party: Party | None) -> Self | None:
        """Return how silos share the noise under a trust model, or None where they do not.

        Raises
        ------
        ValueError
            When they cannot, or `colluding` is not what a study states.
        """
        t, where = colluding, "colluding" if party is None else "a federation"
        if party is None and t is None:
            return None
        if trust == "silo":
            if t is not None:
                raise ValueError(
                    "colluding needs trust='central': a silo's message has its own noise"
                )
            return None
        if trust != "central":
            raise ValueError(f"{where} needs trust 'central' or 'silo', got {trust!r}")
        if party is not None and t not in (None, party.colluding):
            raise ValueError(f"colluding must be that of the study, {party.colluding}, got {t}")
        t = t if party is None else party.colluding
        if t is None:
            raise ValueError("colluding must be a number in a study with trust 'central', got None")
        if t >= silos:
            raise ValueError(f"colluding must be below the {silos} silos, got {t}")
        return cls(silos, int(t))


def share_std(sensitivity: float, mu: float, honest: int) -> float:
    """Return the std of each of so many shares whose sum has the budget mu, rounded up."""
    least = Fraction(sensitivity) / Fraction(positive("mu", mu))
    std = sqrt_up(least**2 / honest)
    # total_std rounds down, and mu computed from it must not exceed the budget.
    while std < math.inf and Fraction(total_std(std, honest)) < least:
        std = math.nextafter(std, math.inf)
    if std == math.inf:
        raise ValueError(f"mu must be so large that the noise is a double, got {mu!r}")
    return std


def require_share(std: float, grid: float) -> None:
    """Raise ValueError for a share of noise that is too small for its grid."""
    if std < LEAST_SHARE_STEPS * grid:
        raise ValueError(
            f"sigma of a share must be at least {LEAST_SHARE_STEPS:.0f} grid steps, the common "
            f"grid being {grid!r}, got {std!r}"
        )


def total_std(std: float, honest: int) -> float:
    """Return the std of a sum of so many equal shares, rounded down."""
    return sqrt_down(honest * Fraction(std) ** 2)


@dataclass(frozen=True)
class Channel:
    """The common parameters of all mechanisms of a run that release to the same readers.

    The stream cannot be a seed, from which every mechanism would draw the same noise. With `shares`
    a sum over silos is the total of noisy ones; without them an aggregator adds the noise. With a
    `party`, other processes hold the other silos.
    """

    ledger: Ledger
    stream: NoiseStream
    seen_by: str
    neighbours: str = "replace_one"
    shares: Shares | None = None
    party: Party | None = None

    def __post_init__(self) -> None:
        for name, kind in (("ledger", Ledger), ("stream", NoiseStream)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
        if self.neighbours not in ("replace_one", "add_remove"):
            raise ValueError(
                f"neighbours must be 'replace_one' or 'add_remove', got {self.neighbours!r}"
            )

    @property
    def add_remove(self) -> bool:
        """Whether neighbours differ in one added record, so that numbers of records are private."""
        return self.neighbours == "add_remove"

    @property
    def notes(self) -> list[str]:
        """What a certificate says of silos in other processes, and of noise by shares."""
        party, shares, notes = self.party, self.shares, list[str]()
        if party is not None:
            notes += [*([STATED_SIZES] if self.add_remove else []), OTHER_SILOS]
        if shares is not None:
            notes += [SHARED_NOISE.format(shares.colluding, shares.silos)]
            if party is not None and party.note is not None:
                notes += [party.note]
        if party is not None and party.ledgers is not None:
            notes += [party.ledgers]
        return notes

    def describe(self, **fields: Any) -> Release:
        """Return the release with these fields that the readers of this channel see."""
        # Whoever believes the shuffler alone has no aggregator that adds noise.
        noised_by_aggregator = fields.get("std") is not None and fields.get("coins") is None
        if self.seen_by == SEEN_BY["shuffle"] and noised_by_aggregator:
            raise ValueError("trust must not be 'shuffle' for a sum with Gaussian noise")
        return Release(**{"seen_by": self.seen_by, **fields})

    def own(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one number per silo, such as a std, with 0 for silos in other processes."""
        if self.party is None:
            return numbers
        held = np.zeros_like(numbers)
        if self.party.silo is not None:
            held[self.party.silo] = numbers[self.party.silo]
        return held

    def total(
        self, noisy: NDArray[np.float64], grid: float, what: str, bound: float, std: float
    ) -> NDArray[np.float64]:
        """Return the sum of the noisy sums (m, ...) of silos, which are on the grid.

        Its readers see nothing else of these. It is recorded already, as all that is returned here.
        A sum over other processes must be plausible: `bound` is that of the norm of the exact one,
        and `std` that of a silo's noise on a coordinate.
        """
        steps = (noisy / grid).astype(np.int64).sum(axis=0)
        if self.party is None:
            return steps * grid
        steps = self.party.total(steps, f"{what}, grid {grid!r}")
        total = np.multiply(steps, grid, dtype=np.float64)
        most = largest_norm(bound, math.sqrt(len(noisy)) * std, total.size)
        if not (norm := float(np.linalg.norm(total))) <= most:
            raise ImplausibleError(
                f"the {what} of all silos must have a norm of at most {most:.3g}, got {norm:.3g}: "
                "a silo, or the coordinator, has sent something else, and masks hide which; the "
                "study ends"
            )
        return total

    def messages(
        self, noisy: NDArray[np.float64], what: str, most: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the noisy message of every silo, shape (m, ...).

        Those of other processes must be plausible: `most` are the largest norms (`largest_norm`).
        """
        if self.party is None:
            return noisy
        rows, names = self.party.messages(noisy, what), self.party.silos
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.linalg.norm(rows.reshape(len(rows), -1), axis=1)
        for j, (norm, largest) in enumerate(zip(norms.tolist(), most, strict=True)):
            if not norm <= min(largest, sys.float_info.max):
                raise ImplausibleError(
                    f"{names[j] if names else f'silo {j}'}: its {what} must have a norm of at most "
                    f"{largest:.3g}, got {norm:.3g}: it has sent something else; the study ends"
                )
        return rows

    def seen(
        self,
        released: NDArray[np.float64],
        exact: NDArray[np.float64] | None,
        std: ArrayLike | None,
        sampling: Any = None,
    ) -> NDArray[np.float64]:
        """Return the released sums, which an audit keeps in a transcript with the exact ones.

        `exact` is None where that is not known, and `std` one of all numbers or one per message.
        """
        transcript = self.stream.transcript
        if transcript is None:
            return released
        return transcript.passed(released, exact, std, dict(sampling or {}))

    def require_aggregator(self, what: str) -> None:
        """Raise RuntimeError where nobody has the records of all silos, to release what they say.

        That is so where silos are in several processes.
        """
        if self.party is not None:
            raise RuntimeError(f"nobody can release the {what}: no party has all records")
