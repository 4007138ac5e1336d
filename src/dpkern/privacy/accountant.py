"""A privacy budget that persists in a file, is charged before a release, and refuses.

Every run is charged in two steps. Before it releases anything, a bound of what it may spend is
appended to the file; after it, its certificate takes the place of the bound. A run that fails, or
whose process dies, keeps its charge. docs/accountant.md has the assumptions.
"""

import functools
import math
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self

from dpkern._numbers import positive, probability
from dpkern.privacy import spending_report
from dpkern.privacy._exact import bisect
from dpkern.privacy.append_only import AppendOnlyFile, Row
from dpkern.privacy.certificate import Certificate
from dpkern.privacy.charges import Charge, Entry, Guarantee, entries_of
from dpkern.privacy.gdp import gdp_epsilon, gdp_mu
from dpkern.privacy.law import DRAW_ERROR
from dpkern.privacy.ledger import text
from dpkern.privacy.persons import units_in
from dpkern.privacy.profiles import Bound, Spending
from dpkern.privacy.spending_report import rounded_down, rounded_up

_KIND, _VERSION = "dpkern accountant", 1
_BUDGET = ("epsilon", "delta", "neighbours", "unit")
# A run that has not ended is taken to make at most so many draws of noise: as many as a share of
# 2^-31 of delta covers, but not more than take hours, nor fewer than small runs make.
_SHARE, _MOST_DRAWS, _LEAST_DRAWS = 2.0**-31, 1 << 40, 1 << 24
#: What a certificate says of a run with an accountant.
CHARGED = "charged to an accountant before the first release"


class BudgetSpentError(RuntimeError):
    """An accountant's budget does not admit a charge; nothing was charged, nothing was released."""


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
    clones are the same accountant. Charges compose by `dpkern.privacy.profiles`, sequentially but
    for those of different parts (`part`).

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
        given = _checked(epsilon, delta, neighbours, unit)
        rows = self._file.rows()
        if not rows and epsilon is None:
            raise FileNotFoundError(f"{path}: no such file; give epsilon and delta to create it")
        if not rows:
            with self._file.writer(create=True) as writer:
                if not writer.rows:  # else another process has been faster
                    values = {"neighbours": "replace_one", "unit": "one record"} | given
                    budget = {name: values[name] for name in _BUDGET}
                    created = {"version": _VERSION, "created": _now(), **budget}
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
        # Rows that have been read, and their charges: certificates take long to read.
        self._known: tuple[list[Row], list[Entry]] = rows[:1], []

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
        guarantee: Guarantee = (
            Bound(mu=mu, rho=rho, epsilon=epsilon, delta=delta)
            if certificate is None
            else self._in_unit(certificate)
        )
        return self.charge_together([(what, guarantee, False)])[0]

    def settle(self, number: int, certificate: Certificate) -> None:
        """Put the certificate of a charge that has ended in the place of its bound."""
        certificate = self._in_unit(certificate)
        with self._file.writer(create=False) as writer:
            open_ = {one.number for one in self._charges(writer.rows) if not one.ended}
            if number not in open_:
                raise ValueError(f"number must be of a charge without a certificate, got {number}")
            row = {"event": "settle", "id": number, "time": _now()}
            writer.append([{**row, "certificate": certificate.to_dict()}])

    def charge_together(self, charges: Sequence[tuple[str, Guarantee, bool]]) -> list[int]:
        """Charge all of these, or none and raise BudgetSpentError; return their numbers."""
        for what, _, _ in charges:
            text("what", what)
        with self._file.writer(create=False) as writer:
            entries = self._charges(writer.rows)
            totals = self._spendings(entries, [one for _, one, _ in charges])
            admitted = all(total.fits(self.epsilon, self.delta) for total in totals)
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
                }
                for number, (what, one, seeded) in zip(numbers, charges, strict=True)
            ]
            if admitted:
                writer.append(rows)
        if not admitted:  # others need not wait for the figures of the message
            raise self._refusal(entries, charges)
        return numbers

    def _refusal(
        self, entries: Sequence[Entry], charges: Sequence[tuple[str, Guarantee, bool]]
    ) -> BudgetSpentError:
        what = charges[0][0] + (f" and {len(charges) - 1} more" if len(charges) > 1 else "")
        asked = Spending.of([one for _, one, _ in charges], self.neighbours).epsilon(self.delta)
        left, spent = rounded_down(self._left(entries)), rounded_up(self._spent(entries))
        of_part = "" if self._part is None else f" of part {self._part!r}"
        return BudgetSpentError(
            f"the budget{of_part} in {os.path.basename(self.path)} has no room for {what}, which "
            f"asked for epsilon {rounded_up(asked)}: {spent} of epsilon {self.epsilon:g} at delta "
            f"{self.delta:g} is spent, and {left} is left for one more Gaussian run; nothing was "
            "charged or released"
        )

    def begin(
        self, what: str, bound: Bound, *, neighbours: str, seeded: bool, unit: str = "one record"
    ) -> Charge:
        """Return the charge of a run that protects this unit, to be made before it releases."""
        self._refuse_relation(neighbours)
        charge = Charge(self, what, seeded, self._records(unit))
        charge.bound(bound)
        return charge

    @property
    def assumed_draws(self) -> int:
        """Number of noise draws that a run is taken to make at most until it has ended."""
        share = self.delta * _SHARE / (1.0 + math.exp(min(self.epsilon, 700.0))) / DRAW_ERROR
        return int(max(_LEAST_DRAWS, min(_MOST_DRAWS, share)))

    def _records(self, unit: str) -> int:
        """Return how many of these units the accountant's has, or raise."""
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
        found = self._charges(self._file.rows())
        return tuple(e for e in found if self._part is None or e.part in (None, self._part))

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates of the charges that have ended."""
        found = (entry.guarantee for entry in self.entries)
        return tuple(one for one in found if isinstance(one, Certificate))

    @property
    def spent(self) -> float:
        """The epsilon that is spent at the accountant's delta, rounded up."""
        return self._spent(self.entries)

    @property
    def remaining(self) -> float:
        """The largest epsilon, at the accountant's delta, of one more Gaussian run."""
        return self._left(self.entries)

    @property
    def remaining_mu(self) -> float:
        """The largest mu of one more Gaussian run, rounded down; 0 where none is admitted."""
        return self._left_mu(self.entries)

    def _charges(self, rows: list[Row]) -> list[Entry]:
        """Return the charges of a file's rows; raise if it is not the file that was opened."""
        if not rows or {name: rows[0].get(name) for name in _BUDGET} != self._budget:
            raise ValueError(f"{self.path} must be the file that was opened; it has been replaced")
        before, known = self._known
        if rows[: len(before)] != before:
            raise ValueError(
                f"{self.path} must hold every charge that was read from it before; it has been "
                "replaced by another, or by an older copy"
            )
        found = entries_of(self.path, rows, known, len(before))
        self._known = rows[:], found
        return found

    def _spendings(self, entries: Sequence[Entry], more: Sequence[Guarantee] = ()) -> set[Spending]:
        """Return what is spent with further guarantees on every part that they concern."""
        parts: set[str | None] = {self._part}
        if self._part is None:
            parts = {entry.part for entry in entries if entry.part is not None} or {None}
        own = {p: [e.guarantee for e in entries if e.part in (None, p)] for p in parts}
        return {Spending.of([*found, *more], self.neighbours) for found in own.values()}

    def _spent(self, entries: Sequence[Entry]) -> float:
        return max(one.epsilon(self.delta) for one in self._spendings(entries))

    def _left_mu(self, entries: Sequence[Entry]) -> float:
        return min(
            _largest_mu(one, self.epsilon, self.delta, self.assumed_draws)
            for one in self._spendings(entries)
        )

    def _left(self, entries: Sequence[Entry]) -> float:
        return gdp_epsilon(self._left_mu(entries), self.delta)

    def _figures(self) -> list[tuple[Entry, float, float, float]]:
        """Return every charge, its own epsilon, and what is spent and left after it."""
        entries, rows = self.entries, []
        for i, entry in enumerate(entries, 1):
            own = Spending.of([entry.guarantee], self.neighbours).epsilon(self.delta)
            rows.append((entry, own, self._spent(entries[:i]), self._left(entries[:i])))
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


@functools.lru_cache(maxsize=256)
def _largest_mu(spending: Spending, epsilon: float, delta: float, n_draws: int) -> float:
    """Return the largest mu that fits beside what is spent, rounded down; 0 if there is none.

    Where not everything is Gaussian it is accurate to a relative 1e-4.
    """

    def exceeds(mu: float) -> bool:
        return not spending.beside(mu, n_draws).fits(epsilon, delta, quick=True)

    high = gdp_mu(epsilon, delta) * (1.0 + 2.0**-40)
    low = 1e-6 * high
    if exceeds(low):
        return 0.0
    if spending.is_gaussian:
        return bisect(exceeds, low, high)[0] if exceeds(high) else high
    while high > low * (1.0 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if exceeds(middle) else (middle, high)
    return low


def _opened(path: str, part: str | None) -> Accountant:
    """Return the accountant of a file that is there."""
    accountant = Accountant(path)
    return accountant if part is None else accountant.part(part)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
