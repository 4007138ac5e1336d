"""Charges: the entries of an accountant's file, and the charge of a run in progress."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from dpkern._numbers import not_negative
from dpkern._warn import warn
from dpkern.privacy.accountant.filter import Cost, Costs
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.guarantees.gdp import GaussianDP

if TYPE_CHECKING:  # accountant imports this module
    from dpkern.privacy.accountant.accountant import Accountant

CertificateOrBound: TypeAlias = Certificate | Bound


@dataclass(frozen=True)
class Entry:
    """One charge of an accountant.

    Attributes
    ----------
    number : int
        Its place among the charges, from 1 on.
    time : datetime
        When it was charged.
    what : str
        The solver, or what was released otherwise.
    part : str or None
        The part of the data that it concerns; None for all of them.
    guarantee : Certificate or Bound
        What it is charged: the certificate, or the bound where it did not end.
    seeded : bool
        Whether its noise had a seed, so that the figures are those that fresh noise would give.
    costs : mapping of str to Cost, or None
        What it takes of each split of the budget (`filter`); None where it is of a list that was
        fixed beforehand and takes all.
    by_pair : bool
        Whether it was charged as a pair (epsilon, delta).
    line : tuple of int and str
        Number and check of its line in the file (`Accountant.last_line`).
    """

    number: int
    time: datetime
    what: str
    part: str | None
    guarantee: CertificateOrBound
    seeded: bool
    costs: Costs | None
    by_pair: bool
    line: tuple[int, str]

    @property
    def ended(self) -> bool:
        """Whether its certificate is known."""
        return isinstance(self.guarantee, Certificate)


def entries_of(
    path: str, rows: Sequence[dict[str, Any]], known: Sequence[Entry], read: int
) -> list[Entry]:
    """Return the charges of all rows, of which the first `read`, and their charges, are known.

    Rows that make no sense raise ValueError.
    """
    found = list(known)
    for line, row in enumerate(rows[read:], read + 1):
        try:
            number, settles = row["id"], row["event"] == "settle"
            if settles:
                entry = found[number - 1]
                if entry.ended or number < 1:
                    raise ValueError(f"charge {number} has ended already")
            elif row["event"] != "charge" or number != len(found) + 1:
                raise ValueError(f"event {row['event']!r} with id {number!r}")
            guarantee: CertificateOrBound = (
                Certificate.from_dict(row["certificate"])
                if "certificate" in row
                else Bound.from_dict(row["bound"])
            )
            costs = _read_costs(row["costs"])
            if settles:
                found[number - 1] = replace(entry, guarantee=guarantee, costs=costs)
                continue
            time, seeded = datetime.fromisoformat(row["time"]), bool(row["seeded"])
            how = seeded, costs, is_pair(guarantee), (line, row["check"])
            found.append(Entry(number, time, row["what"], row["data"], guarantee, *how))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} must hold charges and their certificates, line {line} does not: {error}"
            ) from None
    return found


def is_pair(guarantee: CertificateOrBound) -> bool:
    """Return whether a guarantee is a pair (epsilon, delta)."""
    return isinstance(guarantee, Bound) and guarantee.epsilon is not None


def write_costs(costs: Costs | None) -> dict[str, list[float]] | None:
    """Return costs for JSON, without those of splits that cannot have them."""
    if costs is None:
        return None
    rows = {name: list(astuple(cost)) for name, cost in costs.items()}
    return {name: row for name, row in rows.items() if all(map(math.isfinite, row))}


def _read_costs(row: dict[str, list[float]] | None) -> Costs | None:
    if row is None:
        return None
    return {name: Cost(*(not_negative("costs", v) for v in values)) for name, values in row.items()}


@dataclass(frozen=True)
class KeptCharge:
    """The charge of a run that goes on after a restart of its process.

    `line` is that of the charge that an earlier process has made (`Entry.line`), None before it;
    `keep` is called with the line of one that is made.
    """

    line: tuple[int, str] | None
    keep: Callable[[tuple[int, str]], None]


class Charge:
    """The charge of a run: made once, before its first release, and settled by its certificate."""

    def __init__(
        self,
        accountant: "Accountant",
        what: str,
        seeded: bool,
        records: int,
        kept: "KeptCharge | None" = None,
    ) -> None:
        self.accountant, self._what, self._seeded = accountant, what, seeded
        self._records, self._kept, self._is_resumed = records, kept, False
        self._number: int | None = None
        self._process = 0
        self.together: Sequence[Charge] = (self,)

    def bound(self, bound: Bound) -> None:
        """State what the run may spend about one record, before its first release."""
        self._bound = bound.group(self._records)

    def make(self) -> None:
        """Charge this run, and those with it, unless that is done; raise if there is no room."""
        if self._kept is not None and self._number is None and self._kept.line is not None:
            self._resume(self._kept.line)
        if self._number is None and not self._is_resumed:
            asked = [(one._what, one._bound, one._seeded) for one in self.together]
            numbers = self.accountant.charge_together(asked)
            for one, number in zip(self.together, numbers, strict=True):
                one._number, one._process = number, os.getpid()
            if self._kept is not None:
                made = (e.line for e in self.accountant.entries if e.number == numbers[0])
                self._kept.keep(next(made))

    def _resume(self, line: tuple[int, str]) -> None:
        """Take over the charge that an earlier process of this run has made.

        One that was withdrawn, before anything was released, is made anew.
        """
        entry = next((one for one in self.accountant.entries if one.line == line), None)
        is_same = entry is not None and entry.what == self._what
        if entry is None or not is_same or not (entry.ended or entry.guarantee == self._bound):
            raise ValueError(
                f"{self.accountant.path} must have the charge of this run before its restart as "
                f"line {line[0]}, with the check {line[1]}, got another or none: it has been "
                "replaced, by an older copy perhaps; put the newest one back"
            )
        if isinstance(entry.guarantee, Certificate):
            self._is_resumed = bool(entry.guarantee.releases)
        else:
            self._is_resumed, self._number, self._process = True, entry.number, os.getpid()

    def settle(self, certificate: Certificate) -> None:
        """Put the certificate in the place of the bound; where that fails, the bound stands."""
        if self._number is None or self._process != os.getpid():
            return  # a process that was forked during the run says nothing about it
        try:
            self.accountant.settle(self._number, certificate)
        except OSError as error:
            warn(f"the charge of {self._what} stands at its bound: {error}", UserWarning)
        self._number = None

    def withdraw(self) -> None:
        """Settle the charge of a run that has released nothing."""
        if self._is_resumed:  # what the process before this one has released is charged
            return
        self.settle(
            Certificate(
                trust="central",
                noise="os",
                guarantee=GaussianDP(mu=0.0),
                n_draws=0,
                neighbours=self.accountant.neighbours,
                notes=("the run ended before its first release",),
            )
        )
