"""Solvers on the command line: the arguments that it sets, and defaults of its own."""

from dataclasses import replace

from dpkern._numbers import is_number, parse_number
from dpkern.models.penalties import PENALTIES, SMOOTH, Constraint, GroupLasso, make_penalty
from dpkern.models.terms import Penalty, PenaltySum
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import CHOSEN
from dpkern.solvers.base.options import SHARED, Option, kind_of

# The command line gives the records, the budget and the noise in options of its own, and shows
# progress itself.
NOT_SETTABLE = ("data", "budget", "model", "accountant", "rng", "progress", "callback")
AUTO = "auto"


def options(solver: str) -> dict[str, Option]:
    """Return the arguments that the command line can set, by name.

    Those of "auto" are those of the solvers that it may take, which refuse each other's.
    """
    if solver == AUTO:
        found: dict[str, Option] = {}
        for name in reversed(CHOSEN):
            found |= options(name)
        return found
    declared = SOLVERS[solver].declaration
    absent = NOT_SETTABLE + (("l1", "penalty") if declared.penalties == "l2" else ())
    found = {k: v for k, v in (SHARED | declared.own).items() if k not in absent}
    for name, values in declared.offers.items():
        found[name] = replace(found[name], kind=kind_of(values))
    return found


# The forms that the command line takes: group_lasso has more parameters than a strength.
_PENALTIES = {
    name: name if issubclass(kind, Constraint) else f"{name}:STRENGTH"
    for name, kind in (PENALTIES | SMOOTH).items()
    if kind is not GroupLasso
}


def penalty_of(text: str) -> Penalty:
    """Parse a penalty such as "pl:0.01" or "elastic_net:0.1+l2_squared:0.001"."""
    terms = []
    for part in text.split("+"):
        name, _, strength = part.partition(":")
        form = _PENALTIES.get(name, "")
        if not form or (strength and (form == name or not is_number(strength))):
            raise ValueError(
                f"penalty must be {' or '.join(_PENALTIES.values())} on the command line, or a sum "
                f"of these with +, got {part!r}; others need Python"
            )
        terms.append(make_penalty(name, {"strength": parse_number(strength)} if strength else {}))
    return PenaltySum(tuple(terms))
