"""How a run protects people with several records: the group bound, or a clip of a person's sum.

Group bound: the run has the budget mu / k for one record, and so mu for a person with at most k
(`dpkern.privacy.certificate.persons`). It holds for every solver whose certificate is Gaussian DP.

Clip of a person's sum, in solvers that release sums of clipped gradients over all records: with C
the clip norm of a record, the sum of a person's gradients is clipped to c C, exactly on the grid
(`glm_person_gradient`), before the sums of persons are added. Replacing all values of a
person's records then changes the sum over the records by at most 2 c C, and the run has the budget
mu for persons, with noise for this sensitivity. It needs that a person's records are in one silo,
since the sums of two silos would be clipped by themselves.

The group bound has noise for 2 k C. With c = k the clip of a sum does nothing, as no sum is longer
than k C, and the noise is the same; a smaller c has less noise in proportion. By default c is the
median number of records of a person, so that half of all persons are never clipped, wherever their
gradients point; that number is public. Where it is k, the group bound is taken.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpkern._numbers import positive
from dpkern.data.persons import Persons
from dpkern.models.losses import Custom
from dpkern.privacy import Budget, Certificate
from dpkern.privacy.certificate.persons import budget_of_a_record, for_a_person
from dpkern.privacy.guarantees.rounding import round_up
from dpkern.privacy.sampling.amplification import POISSON, WITHOUT_REPLACEMENT
from dpkern.solvers.base.options import AUTO

if TYPE_CHECKING:  # declaration imports run, which imports this module
    from dpkern.solvers.base.declaration import Declaration

_WHEN = (
    "gradient_descent, federated_gd with one local step and minibatch_sgd on full batches, for "
    "linear models with a loss of the table, neighbours 'replace_one', silos that divide no person "
    "and records in memory"
)


@dataclass(frozen=True)
class PersonBound:
    """The bound of a run.

    Attributes
    ----------
    max_records : int
        k, the largest number of a person's records.
    clip : float or None
        c, the largest norm of a person's sum in clip norms of one record; None: the group bound.
    given : Budget or None
        The budget of a person.
    """

    max_records: int
    clip: float | None
    given: Budget | None

    def clip_of(self, clip: float) -> float | None:
        """Return the clip norm of a person's sum for that of a record; None: sums of records."""
        if self.clip is None or clip == math.inf:
            return None
        return round_up(Fraction(self.clip) * Fraction(clip))

    @property
    def budget(self) -> Budget | None:
        """The budget of a run: of a record by the group bound, else of a person."""
        if self.given is None or self.clip is not None:
            return self.given
        return budget_of_a_record(self.given, self.max_records)

    @property
    def budget_of_settings(self) -> Budget | None:
        """The budget with which a run for one record would have the same noise."""
        if self.given is None or self.clip is None:
            return self.budget
        return budget_of_a_record(self.given, self.clip)

    def certificate(self, certificate: Certificate) -> Certificate:
        """Return the certificate for a person."""
        return for_a_person(certificate, self.max_records, divided=self.clip is None)


def person_bound(
    declaration: "Declaration", persons: Persons, budget: Budget | None, given: Mapping[str, Any]
) -> PersonBound:
    """Return the bound for the persons of data that have them; raise if none is proved."""
    clip = given["person_clip"]
    if budget is not None:
        _refuse_without_group_guarantee(declaration, given)
    in_sums = persons.offsets is not None and _sums_records(declaration, given)
    if clip is not None and clip != AUTO:
        if not in_sums:
            raise ValueError(f"person_clip must be None or 'auto' but for {_WHEN}, got {clip!r}")
        clip = positive("person_clip", clip)
        if clip > persons.max_records:
            raise ValueError(
                f"person_clip must be at most max_records, {persons.max_records}, beyond which "
                f"it clips nothing, got {clip!r}"
            )
    elif clip == AUTO:
        typical = persons.typical
        less = in_sums and typical is not None and typical < persons.max_records
        clip = float(typical) if less and typical is not None and budget is not None else None
    return PersonBound(persons.max_records, clip, budget)


def _sums_records(declaration: "Declaration", given: Mapping[str, Any]) -> bool:
    """Return whether the run releases sums of clipped gradients over all records, and no more."""
    expected = {
        "neighbours": ("replace_one",),
        "model": (None,),
        "local_steps": (1, AUTO),
        "accounting": ("composition",),
        "sampling": ("full",),
        "participation": (None,),
    }
    fits = all(given.get(name, values[0]) in values for name, values in expected.items())
    return declaration.person_sums and fits and not isinstance(given["loss"], Custom)


def _refuse_without_group_guarantee(declaration: "Declaration", given: Mapping[str, Any]) -> None:
    """Raise where the guarantee for one record is not that of Gaussian DP, as groups need."""
    if not declaration.gaussian:
        raise ValueError(
            f"data must be without person in {declaration.name}, which is not Gaussian DP: take "
            "another solver"
        )
    for name, refused, why in (
        ("trust", ("shuffle",), "its budgets are for one record; `privacy.group` restates one"),
        ("calibration", ("paper",), "papers claim figures for one record"),
        ("sampling", (WITHOUT_REPLACEMENT, POISSON), "what secret samples save is for one record"),
    ):
        value = given.get(name)
        if value in refused:
            raise ValueError(f"{name} must not be {value!r} for data with person: {why}")
