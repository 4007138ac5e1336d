"""Releases about records in one place: charged before the first, certified after the last."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpkern.privacy.accountant.accountant import CHARGED, Accountant
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.certificate.identity import start_time
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.persons import budget_of_a_record, for_a_person, unit_of
from dpkern.privacy.guarantees.budget import Budget, check_budget
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.stream import NoiseStream


class CentralReleases:
    """Releases of Gaussian mechanisms that have a budget together, under central trust.

    `max_records` is the number of records of a person that is protected, None for one record.
    """

    def __init__(
        self,
        budget: Budget,
        accountant: Accountant | None,
        *,
        neighbours: str,
        max_records: int | None = None,
    ) -> None:
        check_budget(budget)
        if not isinstance(accountant, Accountant | None):
            raise TypeError(f"accountant must be an Accountant, got {type(accountant).__name__}")
        self._budget, self._accountant, self._max_records = budget, accountant, max_records
        self._neighbours, self._ledger = neighbours, Ledger(None)
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
            bound, seeded = Bound(mu=self._budget.mu, n_draws=n_draws), stream.kind != "os"
            unit = "one record" if self._max_records is None else unit_of(self._max_records)
            self._charge = self._accountant.begin(
                what, bound, neighbours=self._neighbours, seeded=seeded, unit=unit
            )
            self._ledger = Ledger(self._charge.make)
        try:
            with np.errstate(all="ignore"):  # what is raised between releases tells of a record
                yield Channel(self._ledger, stream, SEEN_BY["central"], self._neighbours)
        finally:
            if stream is not rng:
                stream.wipe()

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
            trust="central",
            noise=self._noise,
            neighbours=self._neighbours,
            declared=dict(declared),
            at_delta=self._budget.delta,
            model=model,
            started=self._started,
            sources=dict(sources),
            notes=(*notes, *(() if self._charge is None else (CHARGED,))),
        )
        if self._max_records is not None:
            privacy = for_a_person(privacy, self._max_records, divided=True)
        if self._charge is not None:
            self._charge.settle(privacy)
        return privacy
