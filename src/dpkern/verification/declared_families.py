"""Releases of one description, as a run's declaration has them, for `dpkern verify`.

Of `dpkern verify`, and thus without an import of the ledger, the certificate and the guarantees.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpkern.verification.plain_releases import as_list

Values = Mapping[str, Any]
Rows = Sequence[Sequence[float]]

#: How the description of counts with binomial noise ends.
COUNTS = re.compile(
    r"(.*): counts of (\d+) vectors in (\d+) steps, (\d+) coins from each, (\d+) of them honest"
)
#: The share by which a sensitivity may exceed that of real arithmetic: by the rounding of sums.
SUMS = 1.01


def summed(release: Values) -> str:
    """Return the description of a release, without the numbers of counts."""
    found = COUNTS.fullmatch(str(release["what"]))
    return str(release["what"]) if found is None else found[1]


@dataclass(frozen=True)
class Family:
    """All releases of one description in a run.

    Attributes
    ----------
    what : str
    times : pair of int
        Least and largest number of repetitions together.
    least : sequence of sequences of float, or a function of a release, or None
        Least sensitivity of every message, in one row for all repetitions or in one for each, in
        any order; None where it is not known or compared elsewhere.
    most : float or None
        A sensitivity is at most so many times the least one, of any size for None.
    dim : int or None
        Number of coordinates; None where it is not known.
    charged : int or None
        Least number of repetitions that a record is charged for; None for all.
    draws : int or None
        Number of draws of a coordinate that a release states, None where it states none, 0 where
        that is not known.
    messages : int or None
        Number of silos that send a message each; None for one about all the data.
    active : tuple of int
        Numbers of messages that are sent, one a repetition, where it is not always all.
    vectors : pair of int or None
        Under a shuffler, the least and the largest number of vectors that are counted.
    unknown : tuple of str
        What is taken as stated.
    ended : bool
        Whether the run may have ended before a record was charged as often as it is else.
    """

    what: str
    times: tuple[int, int]
    least: Rows | Callable[[Values], Sequence[float]] | None
    most: float | None = SUMS
    dim: int | None = None
    charged: int | None = None
    draws: int | None = None
    messages: int | None = None
    active: tuple[int, ...] = ()
    vectors: tuple[int, int] | None = None
    unknown: tuple[str, ...] = ()
    ended: bool = False

    def at_most(self) -> "Family":
        """Return the releases of a run that ended early."""
        found = replace(self, times=(0, self.times[1]), ended=True)
        if self.least is None or callable(self.least) or len(self.least) == 1:
            return found
        return replace(found, least=None, unknown=(*self.unknown, "sensitivity"))

    def wrong(self, releases: Sequence[Values]) -> Iterator[str]:
        """Yield the name of every number of the releases that contradicts the declaration."""
        times = sum(r["times"] for r in releases)
        if not self.times[0] <= times <= self.times[1]:
            yield "repetitions"
        charged = times if self.charged is None else self.charged
        if _charged(releases) < (min(times, charged) if self.ended else charged):
            yield "repetitions that depend on a record"
        if any(self.dim not in (None, r["dim"]) for r in releases):
            yield "coordinates"
        of_one = self.draws
        if of_one != 0 and any(
            r["draws"] != (None if of_one is None else of_one * r["dim"]) for r in releases
        ):
            yield "draws"
        if not (all(map(self._is_sent, releases)) and self._are_sent(releases)):
            yield "messages of silos"
        elif not self._follow(releases, times):
            yield "sensitivity"
        if self.vectors is not None and not all(map(self._is_counted, releases)):
            yield "counts"

    def _is_sent(self, release: Values) -> bool:
        """Whether the release has a message of every silo that sends one, or is about all data."""
        sensitivity = release["sensitivity"]
        if not isinstance(sensitivity, list):
            return self.messages in (None, 1)  # that of a single silo is about all data
        sent = sum(d > 0.0 for d in sensitivity)
        return len(sensitivity) == self.messages and sent in (self.active or (self.messages,))

    def _are_sent(self, releases: Sequence[Values]) -> bool:
        """Whether as many releases as declared, or at most, have each number of messages."""
        sent = Counter[int]()
        for r in releases if self.active else ():
            sent[sum(d > 0.0 for d in as_list(r["sensitivity"]))] += r["times"]
        declared = Counter(self.active)
        return sent <= declared if self.ended else sent == declared

    def _is_counted(self, release: Values) -> bool:
        """Whether the counts of a shuffler are of these vectors, and as many coins as described."""
        found = COUNTS.fullmatch(release["what"])
        if found is None or self.vectors is None:
            return False
        n, g, b, honest = map(int, found.groups()[1:])
        D, d = release["sensitivity"], release["dim"]
        # The grid is as fine as rounding at random needs, whatever the budget.
        right = self.vectors[0] <= n <= self.vectors[1] and g**2 >= max(n, 64 * d)
        right = right and 1 <= honest <= n and release["coins"] == honest * b
        return bool(right and 0.0 <= D - (g + math.sqrt(d)) * (1.0 - 1e-12) <= 1e-9 * D)

    def _follow(self, releases: Sequence[Values], times: int) -> bool:
        """Whether all sensitivities are as large as the least ones, and hardly larger."""
        if self.least is None:
            return True
        if callable(self.least) or len(self.least) == 1:
            pairs = [
                (d, one)
                for r in releases
                for d, one in zip(
                    as_list(r["sensitivity"]),
                    self.least(r) if callable(self.least) else self.least[0],
                    strict=True,
                )
                if d > 0.0 or not self.active
            ]
        elif len(self.least) != times:
            return False
        else:
            stated = [as_list(r["sensitivity"]) for r in releases for _ in range(r["times"])]
            pairs = [
                pair
                for of_one, least in zip(
                    zip(*stated, strict=True), zip(*self.least, strict=True), strict=True
                )
                for pair in zip(sorted(of_one), sorted(least), strict=True)
            ]
        return all(
            one * (1.0 - 1e-9) <= d and (self.most is None or d <= one * self.most)
            for d, one in pairs
        )


def _charged(releases: Sequence[Values]) -> int:
    """Return how many repetitions a record is charged for."""
    series: dict[int, list[Values]] = {}
    alone = 0
    for r in releases:
        if r.get("series") is not None:
            series.setdefault(r["series"], []).append(r)
        else:
            alone += r["times"] if r["per_record"] is None else min(r["times"], r["per_record"])
    return alone + sum(
        min(sum(r["times"] for r in of), max(r["per_record"] for r in of)) for of in series.values()
    )
