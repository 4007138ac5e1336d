"""Releases of Gaussian mechanisms: charged before the first, certified after the last."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern._numbers import count
from dpkern.privacy.accountant.accountant import CHARGED, Accountant
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.certificate.certificate import Certificate, start_time
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.persons import budget_of_a_record, for_a_person, unit_of
from dpkern.privacy.guarantees.gdp import Budget, check_budget
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel, Shares
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from dpkern.party import Party


_PUBLIC_SIZE = (
    "add or remove: a declared number of records stands for that of the data, which is private; "
    "taken as public that there are fewer than 2^31"
)


def stated_size(public_size: int | None, neighbours: str) -> int | None:
    """Return the number that stands for that of the records, None where theirs is public."""
    add_remove = neighbours == "add_remove"
    if add_remove != (public_size is not None):
        need = "given" if add_remove else "None"
        raise ValueError(f"public_size must be {need} with neighbours {neighbours!r}")
    return None if public_size is None else count("public_size", public_size)


def size_notes(stated: int | None) -> tuple[str, ...]:
    """Return what a certificate says of a number that `stated_size` returns."""
    return () if stated is None else (_PUBLIC_SIZE,)


class ChargedReleases:
    """Releases of Gaussian mechanisms that have a budget together.

    `max_records` is the number of records of a person that is protected, None for one record. With
    `shares` silos share the noise of a sum; with a `party` other processes hold the other silos.
    """

    def __init__(
        self,
        budget: Budget,
        accountant: Accountant | None,
        *,
        neighbours: str,
        max_records: int | None = None,
        trust: str = "central",
        shares: Shares | None = None,
        party: Party | None = None,
    ) -> None:
        check_budget(budget)
        if not isinstance(accountant, Accountant | None):
            raise TypeError(f"accountant must be an Accountant, got {type(accountant).__name__}")
        self._budget, self._accountant, self._max_records = budget, accountant, max_records
        self._neighbours, self._ledger = neighbours, Ledger(self._before_first_release)
        self._trust, self._shares, self._party = trust, shares, party
        self._charge: Any = None

    @property
    def record_mu(self) -> float:
        """The budget of one record, which all releases have together."""
        return budget_of_a_record(self._budget, self._max_records or 1).mu

    @contextmanager
    def charged(self, what: str, n_draws: int, rng: int | NoiseStream | None) -> Iterator[Channel]:
        """Charge the accountant, and yield the channel of the releases."""
        stream = rng if isinstance(rng, NoiseStream) else NoiseStream(rng)
        self._noise, self._started = stream.kind, start_time()
        if self._accountant is not None:
            bound, seeded = Bound.of_budget(self._budget, n_draws), stream.kind != "os"
            unit = "one record" if self._max_records is None else unit_of(self._max_records)
            self._charge = self._accountant.begin(
                what, bound, neighbours=self._neighbours, seeded=seeded, unit=unit
            )
        seen_by, how = SEEN_BY[self._trust], (self._neighbours, self._shares, self._party)
        self._channel = Channel(self._ledger, stream, seen_by, *how)
        try:
            with np.errstate(all="ignore"):  # what is raised between releases tells of a record
                yield self._channel
        except BaseException:
            if self._charge is not None and not len(self._ledger):
                self._charge.withdraw()
            raise
        finally:
            if stream is not rng:
                stream.wipe()

    def _before_first_release(self) -> None:
        """Charge the releases, and wait until all parties have: who fails costs others nothing."""
        if self._charge is not None:
            self._charge.make()
        if self._party is not None:
            self._party.ready()

    def certificate(
        self,
        declared: Mapping[str, Any],
        *,
        sources: Mapping[str, str],
        notes: Sequence[str] = (),
        model: str | None = None,
    ) -> Certificate:
        """Return the certificate of all releases, and settle the charge."""
        privacy = Certificate.from_ledger(
            self._ledger,
            trust=self._trust,
            noise=self._noise,
            neighbours=self._neighbours,
            declared=dict(declared),
            at_delta=self._budget.delta,
            model=model,
            started=self._started,
            sources=dict(sources),
            notes=(
                *notes,
                *self._channel.notes,
                *(() if self._charge is None else (CHARGED,)),
            ),
        )
        if self._max_records is not None:
            privacy = for_a_person(privacy, self._max_records, divided=True)
        if self._charge is not None:
            self._charge.settle(privacy)
        return privacy
