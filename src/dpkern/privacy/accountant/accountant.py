"""A privacy budget that persists in a file, is charged before a release, and refuses.

Every run is charged in two steps. Before it releases anything, a bound of what it may spend is
appended to the file; after it, its certificate takes the place of the bound. A run that fails, or
whose process dies, keeps its charge. docs/accountant.md has the assumptions.
"""

import math
import os
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from dpkern._numbers import positive, probability, rounded_down, rounded_up
from dpkern.privacy.accountant import spending_report
from dpkern.privacy.accountant.append_only import AppendOnlyFile, Row
from dpkern.privacy.accountant.charges import (
    CertificateOrBound,
    Charge,
    Entry,
    KeptCharge,
    entries_of,
    is_pair,
    write_costs,
)
from dpkern.privacy.accountant.filter import Cost, Costs, Filter
from dpkern.privacy.accountant.profiles import Bound, Spending
from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.certificate.ledger import text
from dpkern.privacy.certificate.persons import units_in
from dpkern.privacy.guarantees.base import DRAW_ERROR
from dpkern.privacy.guarantees.gdp import gdp_epsilon

_KIND, _VERSION = "dpkern accountant", 2
_BUDGET = ("epsilon", "delta", "neighbours", "unit")
# A run that has not ended is taken to make at most so many draws of noise: as many as a share of
# 2^-31 of delta covers, but not more than take hours, nor fewer than runs make. A budget must cover
# the fewest by a share of 2^-10 of delta.
_SHARE, _MOST_DRAWS, _LEAST_DRAWS, _LARGEST_SHARE = 2.0**-31, 1 << 40, 1 << 24, 2.0**-10
#: What a certificate says of a run with an accountant.
CHARGED = "charged to an accountant before the first release"


class BudgetSpentError(RuntimeError):
    """An accountant's budget does not admit a charge; nothing was charged, nothing was released."""

    #: What others are told, without the budget's figures.
    public_reason = "its ledger has no room for this plan"


class Accountant:
    """A privacy budget in a file, charged by every run that is given it.

    Parameters
    ----------
    path : str or path-like
        The file: created, or opened if it is there, in which case figures that are given must be
        its own. ``Accountant(path)`` opens a file.
    epsilon, delta : float, optional
        The budget of everything that is charged, together.
    neighbours : {"replace_one", "add_remove"}, optional
        The neighbour relation of all runs; "replace_one" by default.
    unit : str, optional
        The unit of privacy, "one record" by default. With "one person with 3 records", runs that
        protect a record are charged as for a group of three (`Certificate.group`).

    Raises
    ------
    ValueError
        When a figure is out of range, or another than that of the file; when the file is no
        accountant's, or was edited or damaged.
    FileNotFoundError
        When there is no file and no budget.

    Notes
    -----
    Read of the records is nothing; written are the guarantees, with what the certificates declare
    as public. Threads and processes may charge one file at the same time. Copies, pickles and
    clones are the same accountant. Charges compose sequentially, but for those of different parts
    (`part`), and may be chosen by earlier results: `accountant.filter` is the filter that
    admits them. A list that is fixed beforehand composes exactly, if it is charged together and is
    all that is ever charged (`charge_together`).

    Examples
    --------
    >>> accountant = dpkern.Accountant("study.json", epsilon=3.0, delta=1e-6)
    >>> budget = dpkern.Budget(epsilon=1.0, delta=1e-6)
    >>> result = dpkern.solve("auto", data, budget=budget, accountant=accountant)
    >>> print(accountant)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        neighbours: str | None = None,
        unit: str | None = None,
    ) -> None:
        self._file, self._part = AppendOnlyFile(path, _KIND), None
        self._kept: KeptCharge | None = None
        given = _checked(epsilon, delta, neighbours, unit)
        rows = self._file.rows()
        if not rows and epsilon is None:
            found = "cut off in its first line, or empty; restore it from a copy, or"
            found = found if os.path.exists(path) else "no such file;"
            cure = "give epsilon and delta to create it (dpkern ledger FILE --epsilon E --delta D)"
            raise FileNotFoundError(f"{path}: {found} {cure}")
        if not rows:
            with self._file.writer(create=True) as writer:
                if not writer.rows:  # else another process has been faster
                    values = {"neighbours": "replace_one", "unit": "one record"} | given
                    budget = {name: values[name] for name in _BUDGET}
                    # Checks are told to others (`last_line`), who cannot try what lines may say.
                    created = {"version": _VERSION, "created": _now(), **budget}
                    created["salt"] = secrets.token_hex(16)
                    writer.append([{"format": _KIND, **created}])
                rows = writer.rows
        head = rows[0]
        if head.get("version") != _VERSION:
            raise ValueError(
                f"{path} must be of version {_VERSION}, which this dpkern reads, got "
                f"{head.get('version')!r}"
            )
        for name, value in given.items():
            if value != head[name]:
                raise ValueError(
                    f"{name} must be that of {path}, {head[name]!r}, got {value!r}: a budget "
                    "is not changed; leave the figures out to open the file, or name another one"
                )
        self._budget = {name: head[name] for name in _BUDGET}
        # Rows that have been read or written, and their charges, as certificates take long to read;
        # one tuple for this accountant and its parts.
        self._known: list[tuple[list[Row], list[Entry]]] = [(rows[:1], [])]

    @property
    def path(self) -> str:
        """The file."""
        return self._file.path

    @property
    def epsilon(self) -> float:
        """The epsilon of the whole budget."""
        return float(self._budget["epsilon"])

    @property
    def delta(self) -> float:
        """The delta of the whole budget, at which all figures are stated."""
        return float(self._budget["delta"])

    @property
    def neighbours(self) -> str:
        """The neighbour relation."""
        return str(self._budget["neighbours"])

    @property
    def unit(self) -> str:
        """The unit of privacy."""
        return str(self._budget["unit"])

    def part(self, name: str) -> Self:
        """Return the accountant of a part of the data, which has its charges in the same file.

        Nobody has records in two parts, by the caller's declaration: charges of different parts
        compose in parallel, and the total is the largest over the parts, each with the charges
        that are of no part.
        """
        text("name", name)
        if self._part is not None:
            raise ValueError(f"name must be that of a part of all data, this is {self._part!r}")
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.__dict__["_part"] = name
        return found

    def resuming(self, kept: KeptCharge) -> Self:
        """Return this accountant for one run, whose charge an earlier process may have made."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.__dict__["_kept"] = kept
        return found

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _opened, (self.path, self._part)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Accountant):
            return NotImplemented
        return (self.path, self._part) == (other.path, other._part)

    def __hash__(self) -> int:
        return hash((self.path, self._part))

    # ------------------------------------------------------------------ charging

    def charge(
        self,
        what: str,
        certificate: Certificate | None = None,
        *,
        mu: float | None = None,
        rho: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> int:
        """Charge something before it is released outside of dpkern; return its number.

        Parameters
        ----------
        what : str
            What is released, for people.
        certificate : Certificate, optional
            Its guarantee; or exactly one of the following, for one unit of this accountant.
        mu, rho : float, optional
            Parameter of Gaussian or of zero-concentrated DP.
        epsilon, delta : float, optional
            Of approximate DP, given together; delta may be 0.

        Raises
        ------
        BudgetSpentError
            When the budget does not admit it. Nothing is charged then.
        """
        figures = (mu, rho, epsilon, delta)
        if certificate is not None and figures != (None,) * 4:
            raise ValueError("mu, rho, epsilon and delta must be None beside a certificate")
        guarantee: CertificateOrBound = (
            Bound(mu=mu, rho=rho, epsilon=epsilon, delta=delta)
            if certificate is None
            else self._in_unit(certificate)
        )
        return self.charge_together([(what, guarantee, False)])[0]

    def settle(self, number: int, certificate: Certificate) -> None:
        """Put the certificate of a charge that has ended in the place of its bound."""
        certificate = self._in_unit(certificate)
        with self._file.writer(create=False) as writer:
            entries = self._charges(writer.rows)
            entry = next((e for e in entries if e.number == number and not e.ended), None)
            if entry is None:
                raise ValueError(f"number must be of a charge without a certificate, got {number}")
            costs: Costs | None = None
            is_unused = certificate.mu == 0.0 and not certificate.releases
            if entry.costs is not None or is_unused:  # what takes all stays, unless it is unused
                filter_, spending = self._filter(entries), self._composed([certificate])
                others = [e for e in entries if e is not entry and e.part in (None, entry.part)]
                costs = filter_.costs(spending, self._sums(filter_, others), entry.costs)
            row = {"event": "settle", "id": number, "time": _now(), "costs": write_costs(costs)}
            writer.append([{**row, "certificate": certificate.to_dict()}])
            self._charges(writer.rows)  # so that it misses this line if it is undone

    def charge_together(self, charges: Sequence[tuple[str, CertificateOrBound, bool]]) -> list[int]:
        """Charge all of these, or none and raise BudgetSpentError; return their numbers.

        Where nothing was charged before and the filter has no room, they are admitted as a list
        that was fixed beforehand, if its exact composition keeps to the budget; it then takes all.
        """
        for what, _, _ in charges:
            text("what", what)
        if not charges:
            return []
        with self._file.writer(create=False) as writer:
            entries = self._charges(writer.rows)
            costs, admitted = self._admit(entries, [one for _, one, _ in charges])
            numbers = [len(entries) + i for i in range(1, len(charges) + 1)]
            rows = [
                {
                    "event": "charge",
                    "id": number,
                    "time": _now(),
                    "what": what,
                    "data": self._part,
                    ("certificate" if isinstance(one, Certificate) else "bound"): one.to_dict(),
                    "seeded": seeded,
                    "costs": write_costs(cost),
                }
                for number, (what, one, seeded), cost in zip(numbers, charges, costs, strict=True)
            ]
            if admitted:
                writer.append(rows)
                self._charges(writer.rows)
        if not admitted:  # others need not wait for the figures of the message
            raise self._refusal(entries, charges, costs)
        return numbers

    def _admit(
        self, entries: Sequence[Entry], asked: Sequence[CertificateOrBound]
    ) -> tuple[list[Costs | None], bool]:
        """Return the costs of further charges, and whether the budget has room for them."""
        filter_, costs = self._filter(entries, asked), list[Costs | None]()
        sums = before = [self._sums(filter_, own) for own in self._parts(entries)]
        for guarantee in asked:
            # A charge for several parts costs the same in each: by the largest sums.
            most = {name: Cost.largest(one[name] for one in sums) for name in sums[0]}
            cost = filter_.costs(self._composed([guarantee]), most)
            costs.append(cost)
            sums = [filter_.sums([one, cost]) for one in sums]
        if all(map(filter_.admits, sums)):
            return costs, True
        nothing = not any(cost.is_something for one in before for cost in one.values())
        if nothing and self._composed(asked).fits(self.epsilon, self.delta):
            return [None for _ in asked], True
        return costs, False

    def _refusal(
        self,
        entries: Sequence[Entry],
        charges: Sequence[tuple[str, CertificateOrBound, bool]],
        costs: Sequence[Costs | None],
    ) -> BudgetSpentError:
        what = charges[0][0] + (f" and {len(charges) - 1} more" if len(charges) > 1 else "")
        filter_ = self._filter(entries, [one for _, one, _ in charges])
        asked = filter_.spent(filter_.sums(costs))
        left, spent = rounded_down(self._left(entries)), rounded_up(self._spent(entries))
        asked_for = f"epsilon {rounded_up(asked)}"
        stated = getattr(charges[0][1], "stated", None) if len(charges) == 1 else None
        if stated is not None and stated[1] != self.delta:
            there = f"{rounded_up(asked)} at the ledger's delta {self.delta:g}"
            asked_for = f"epsilon {stated[0]:g} at delta {stated[1]:g}, which is {there}"
        of_part = "" if self._part is None else f" of part {self._part!r}"
        return BudgetSpentError(
            f"the budget{of_part} in {os.path.basename(self.path)} has no room for {what}, which "
            f"asked for {asked_for}: {spent} of epsilon {self.epsilon:g} at delta "
            f"{self.delta:g} is spent, and {left} is left for one more Gaussian run; nothing was "
            "charged or released"
        )

    def begin(
        self, what: str, bound: Bound, *, neighbours: str, seeded: bool, unit: str = "one record"
    ) -> Charge:
        """Return the charge of a run that protects this unit, to be made before it releases."""
        self._refuse_relation(neighbours)
        charge = Charge(self, what, seeded, self._records(unit), self._kept)
        charge.bound(bound)
        return charge

    @property
    def assumed_draws(self) -> int:
        """Number of noise draws that a run is taken to make at most until it has ended."""
        share = self.delta * _SHARE / (1.0 + math.exp(min(self.epsilon, 700.0))) / DRAW_ERROR
        return int(max(_LEAST_DRAWS, min(_MOST_DRAWS, share)))

    def _records(self, unit: str) -> int:
        """Return the number of these units in one of the accountant's, or raise."""
        found = units_in(self.unit, unit)
        if found is None:
            raise ValueError(f"unit must be that of the accountant, {self.unit!r}, got {unit!r}")
        return found

    def _refuse_relation(self, neighbours: str) -> None:
        if neighbours != self.neighbours:
            raise ValueError(
                f"neighbours must be those of the accountant, {self.neighbours!r}, got "
                f"{neighbours!r}"
            )

    def _in_unit(self, certificate: Certificate) -> Certificate:
        """Return the certificate for the accountant's unit, or raise."""
        if not isinstance(certificate, Certificate):
            raise TypeError(f"certificate must be a Certificate, got {type(certificate).__name__}")
        self._refuse_relation(certificate.neighbours)
        records = self._records(certificate.unit)
        return certificate if records == 1 else certificate.group(records)

    # ------------------------------------------------------------------ figures

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All charges; of a part, its own and those of no part."""
        found = self._read()
        return tuple(e for e in found if self._part is None or e.part in (None, self._part))

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates of the charges that have ended."""
        found = (entry.guarantee for entry in self.entries)
        return tuple(one for one in found if isinstance(one, Certificate))

    @property
    def spent(self) -> float:
        """The epsilon of all charges at the accountant's delta, rounded up.

        It is that of charges that were fixed beforehand. Where results have chosen what to charge,
        and when to look, what holds is the epsilon of the whole budget.
        """
        return self._spent(self._read())

    @property
    def remaining(self) -> float:
        """The largest epsilon, at the accountant's delta, of one more Gaussian run."""
        return self._left(self._read())

    @property
    def remaining_mu(self) -> float:
        """The largest mu of one more Gaussian run, rounded down; 0 where none is admitted."""
        return self._left_mu(self._read())

    @property
    def last_line(self) -> tuple[int, str]:
        """Number and check of the file's last line, which nobody can undo without another having
        the same number.

        The silos of a study tell them to one another, and certificates have them.
        """
        rows = self._file.rows()
        self._charges(rows)
        return len(rows), rows[-1]["check"]

    def has_line(self, line: tuple[int, str]) -> bool:
        """Return whether the file has a line that was its last one before (`last_line`)."""
        number, check = line
        return any(row["check"] == check for row in self._file.rows()[number - 1 : number])

    def _read(self) -> list[Entry]:
        """Return all charges in the file."""
        known = self._known[0]  # as it was before the file is read: another thread may read more
        return self._charges(self._file.rows(), known)

    def _charges(
        self, rows: list[Row], known: tuple[list[Row], list[Entry]] | None = None
    ) -> list[Entry]:
        """Return the charges of a file's rows; raise if it is not the file that was opened."""
        if not rows or {name: rows[0].get(name) for name in _BUDGET} != self._budget:
            raise ValueError(f"{self.path} must be the file that was opened; it has been replaced")
        before, entries = known or self._known[0]
        if rows[: len(before)] != before:
            raise ValueError(
                f"{self.path} must hold every charge that was read from it before; it has been "
                "replaced by another, or by an older copy"
            )
        found = entries_of(self.path, rows, entries, len(before))
        if len(rows) >= len(self._known[0][0]):
            self._known[0] = rows[:], found
        return found

    def _filter(self, entries: Sequence[Entry], asked: Sequence[CertificateOrBound] = ()) -> Filter:
        """Return the filter of a file with all these charges, or of what is asked for first."""
        first = entries[0].by_pair if entries else any(map(is_pair, asked[:1]))
        return Filter(self.epsilon, self.delta, first)

    def _composed(self, guarantees: Iterable[CertificateOrBound]) -> Spending:
        return Spending.of(guarantees, self.neighbours)

    def _parts(self, entries: Sequence[Entry]) -> list[list[Entry]]:
        """Return the charges of every part that this accountant concerns."""
        parts: set[str | None] = {self._part}
        if self._part is None:
            parts = {entry.part for entry in entries if entry.part is not None} or {None}
        return [[e for e in entries if e.part in (None, part)] for part in parts]

    def _sums(self, filter_: Filter, entries: Sequence[Entry]) -> Costs:
        """Return the summed costs, in each split, of charges about the same records."""
        return filter_.sums(entry.costs for entry in entries)

    def _spent(self, entries: Sequence[Entry]) -> float:
        filter_ = self._filter(entries)
        return max(self._spent_by(filter_, own) for own in self._parts(entries))

    def _spent_by(self, filter_: Filter, entries: Sequence[Entry]) -> float:
        if any(entry.costs is None for entry in entries):
            return self._composed(entry.guarantee for entry in entries).epsilon(self.delta)
        return filter_.spent(self._sums(filter_, entries))

    def _left_mu(self, entries: Sequence[Entry]) -> float:
        filter_ = self._filter(entries)
        sums = (self._sums(filter_, own) for own in self._parts(entries))
        return min(filter_.room(one, self.assumed_draws) for one in sums)

    def _left(self, entries: Sequence[Entry]) -> float:
        return gdp_epsilon(self._left_mu(entries), self.delta)

    def _figures(self) -> list[tuple[Entry, float, float, float]]:
        """Return every charge, its own epsilon, and what is spent and left after it."""
        entries, rows = self._read(), []
        filter_ = self._filter(entries)
        for i, entry in enumerate(entries, 1):
            if self._part is None or entry.part in (None, self._part):
                own, before = self._spent_by(filter_, [entry]), entries[:i]
                rows.append((entry, own, self._spent(before), self._left(before)))
        return rows

    def _state(self) -> str:
        of_part = "" if self._part is None else f", part {self._part!r}"
        return (
            f"{os.path.basename(self.path)}{of_part}: epsilon {self.epsilon:g} at delta "
            f"{self.delta:g} for {self.unit}, neighbours {self.neighbours}"
        )

    def __str__(self) -> str:
        return spending_report.as_text(self._state(), self._figures(), self._left(()))

    def _repr_html_(self) -> str:
        return spending_report.as_html(self._state(), self._figures(), self._left(()))

    def __repr__(self) -> str:
        of_part = "" if self._part is None else f".part({self._part!r})"
        return f"Accountant({self.path!r}){of_part}"

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a figure of what is spent and left after every charge; needs matplotlib.

        It is written as a PNG where a path is given.
        """
        rows, left = self._figures(), self._left(())
        return spending_report.plot(self._state(), rows, left, path, budget=self.epsilon)


def _checked(
    epsilon: float | None, delta: float | None, neighbours: str | None, unit: str | None
) -> dict[str, Any]:
    """Return the figures that are given."""
    if (epsilon is None) != (delta is None):
        raise ValueError("epsilon and delta must be given together, got one of them")
    given: dict[str, Any] = {}
    if epsilon is not None and delta is not None:
        given = {"epsilon": positive("epsilon", epsilon), "delta": probability("delta", delta)}
        largest = math.log(_LARGEST_SHARE * given["delta"] / _LEAST_DRAWS / DRAW_ERROR)
        if given["epsilon"] > largest - 0.01:
            raise ValueError(
                f"epsilon must be at most {largest - 0.01:.2f} at delta {delta:g}, got "
                f"{epsilon:g}: above it delta does not cover the rounding of noise"
            )
    if neighbours is not None:
        if neighbours not in ("replace_one", "add_remove"):
            raise ValueError(
                f"neighbours must be 'replace_one' or 'add_remove', got {neighbours!r}"
            )
        given["neighbours"] = neighbours
    if unit is not None:
        text("unit", unit)
        given["unit"] = unit
    return given


def _opened(path: str, part: str | None) -> Accountant:
    """Return the accountant of a file that is there."""
    accountant = Accountant(path)
    return accountant if part is None else accountant.part(part)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
