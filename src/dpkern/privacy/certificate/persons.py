"""Guarantees for a person with at most k records, from those for one record.

Neighbours differ in all values of one person's records (or, with "add_remove", in the presence of
all of them), of which there are at most k, in any silos. Between the two data sets there is a path
of at most k steps that each change one record. A mechanism that is mu-GDP for one record, in
whichever silo it is, is mu-GDP along each step, and so (k mu)-GDP along the path (Dong, Roth, Su,
"Gaussian differential privacy", 2022, Theorem 2.14). What is mu-GDP here is the mechanism as a
whole, with the messages of all silos and rounds: that silos compose in parallel, by the maximum,
is part of the claim for one record, and is not used a second time. For comparison, r_j records in
silo j with mu_j give (sum_j (r_j mu_j)^2)^(1/2), which is at most (sum_j r_j) max_j mu_j.

So a run with the budget mu / k for a record has the budget mu for a person.
"""

import re
from dataclasses import replace
from fractions import Fraction

from dpkern.privacy.certificate.certificate import Certificate
from dpkern.privacy.guarantees.gdp import Budget
from dpkern.privacy.guarantees.rounding import round_down

PUBLIC = (
    "taken as public: which records are one person's, and how many they are; neighbours differ in "
    "all values of one person's records"
)
HIDDEN = "add or remove: neighbours differ in the presence of all of one person's records"


def budget_of_a_record(budget: Budget, records: float) -> Budget:
    """Return the budget of one record, of which so many have the given one together."""
    if records == 1:
        return budget
    mu = round_down(Fraction(budget.mu) / Fraction(records))
    if mu == 0.0:
        raise ValueError(f"max_records must leave a budget for a record, got {records!r}")
    return Budget.part(mu)


def for_a_person(certificate: Certificate, max_records: int, *, divided: bool) -> Certificate:
    """Return the certificate for a person with at most so many records.

    `divided` says that the given one is for one record, and not for a person already.
    """
    if divided:
        certificate = certificate.group(max_records)
    public = PUBLIC if certificate.neighbours == "replace_one" else HIDDEN
    return replace(
        certificate,
        unit=unit_of(max_records),
        notes=(*certificate.notes, public),
        at_delta=certificate.stated_delta,
    )


def unit_of(max_records: int) -> str:
    """Return the unit of a certificate for a person."""
    return f"one person with at most {max_records} record{'' if max_records == 1 else 's'}"


_UNIT = re.compile(r"one person with (?:at most )?([1-9]\d*) records?")


def units_in(own: str, unit: str) -> int | None:
    """Return the number of units `unit` that change with one unit `own`; None if unknown.

    A record that changes is one of a person's, who is protected with all of them.
    """
    of_own, of_unit = _UNIT.fullmatch(own), _UNIT.fullmatch(unit)
    if unit == own or (of_unit and own == "one record"):
        return 1
    if of_own and of_unit and of_own[1] == of_unit[1]:
        return 1
    return int(of_own[1]) if of_own and unit == "one record" else None
