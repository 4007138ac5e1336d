"""Which solver "auto" is, by public numbers alone."""

from collections.abc import Sequence
from typing import Any

from dpkern.data import SiloData
from dpkern.models.losses import get_loss
from dpkern.privacy import Budget
from dpkern.solvers.base.declaration import Solver
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.public_numbers import public_numbers
from dpkern.solvers.base.settings import moments_suffice

#: What "auto" may be where moments are not exact enough, the solver of most runs first.
CHOSEN = ("gradient_descent", "minibatch_sgd", "admm")


def chosen(trust: object = "central", model: object = None, *, moments: bool = False) -> str:
    """Return the name of the solver that "auto" is, from docs/utility.md.

    `moments` says whether released moments are exact enough (`moments_suffice`).
    """
    if moments:
        return "ridge"
    if trust == "local":
        return "admm"
    return "gradient_descent" if model is None and trust != "shuffle" else "minibatch_sgd"


def has_exact_moments(ridge: Solver, data: object, arguments: dict[str, Any]) -> bool:
    """Whether `ridge` takes the arguments of a run, or of several, and its moments are exact."""
    given = {name: value for name, value in arguments.items() if value is not None}
    budgets = given.pop("budgets", given.pop("budget", None))
    each = budgets if isinstance(budgets, Sequence) else [budgets]
    given.pop("draws", None)
    trust, neighbours = given.get("trust", "central"), given.get("neighbours", "replace_one")
    if (
        not isinstance(data, SiloData)
        or data.task != "regression"
        or data.persons is not None
        or data.device is not None  # which has no Hessians
        or not all(isinstance(budget, Budget) for budget in each)
        or not given.keys() <= (ridge.declaration.own | SHARED).keys()
        or given.get("loss", "squared") != "squared"
        or any(given.get(name) for name in ("model", "penalty", "l1"))
        or any(isinstance(value, list) for name, value in given.items() if name != "public_size")
        or trust not in ridge.declaration.trusts
        or neighbours not in ridge.declaration.neighbours
    ):
        return False
    of_data = {name: given[name] for name in ("weights", "public_size") if name in given}
    objective = Objective(data, get_loss("squared"), **of_data)
    numbers = [public_numbers(objective, budget, trust, neighbours) for budget in each]
    return all(found is not None and moments_suffice(found) for found in numbers)
