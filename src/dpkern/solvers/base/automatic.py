"""Which solver "auto" is, by public numbers alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpkern._numbers import did_you_mean
from dpkern.data import SiloData
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.losses import LOSS_OF_TASK, get_loss
from dpkern.models.networks import MLP
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.party import Remote
from dpkern.privacy import Budget
from dpkern.solvers.base.declaration import Solver
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.public_numbers import public_numbers
from dpkern.solvers.base.settings import moments_suffice

#: What "auto" may be where moments are not exact enough, the solver of most runs first.
CHOSEN = ("gradient_descent", "minibatch_sgd", "admm")
#: The solver of estimates with standard errors.
INFERENCE = "newton_inference"


def compared(solvers: Mapping[str, Solver]) -> list[str]:
    """Return the names of those that are compared by their scores."""
    return [name for name, solver in solvers.items() if not solver.declaration.estimates]


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


def named_solver(
    solvers: Mapping[str, Solver], name: str, data: object, arguments: dict[str, Any]
) -> tuple[Solver, dict[str, Any]]:
    """Return the solver of a name with its arguments.

    "auto" also takes the model that suits the data's task.
    """
    described = data.described if isinstance(data, Remote) else data
    schema = described.schema if isinstance(described, SiloData) else None
    task = described.task if isinstance(described, SiloData) else None
    if name == "auto" and arguments.get("model") is None and "loss" not in arguments:
        times = None if schema is None else schema.intervals
        suits: dict[str, dict[str, Any]] = {
            "regression": {"loss": LOSS_OF_TASK["regression"]},
            "multiclass": {"model": MLP(hidden=()) if times is None else DiscreteHazards(times)},
        }
        arguments = {**arguments, **suits.get(str(task), {})}
    if name == "auto" and isinstance(arguments.get("model"), CumulativeLogit):
        name = INFERENCE
    if "inference" in arguments:
        arguments = {**arguments}
        inference = arguments.pop("inference")
        ordered = isinstance(arguments.get("model"), AllThreshold)
        name = _with_standard_errors(name, None if ordered else task, inference)
    if name == "auto":
        name = chosen(
            arguments.get("trust", "central"),
            arguments.get("model"),
            moments=has_exact_moments(solvers["ridge"], data, arguments),
        )
    if name not in tuple(solvers):  # of any type
        names, close = ", ".join(("auto", *solvers)), did_you_mean(str(name), solvers)
        raise ValueError(f"name must be one of {names}, got {name!r}{close}")
    return solvers[name], arguments


def _with_standard_errors(name: str, task: str | None, inference: object) -> str:
    """Return the solver of standard errors if they are asked for, or raise where there is none."""
    if not isinstance(inference, bool | np.bool_):
        raise TypeError(f"inference must be True or False, got {inference!r}")
    if not inference:
        return name
    if name not in ("auto", INFERENCE):
        raise ValueError(
            f"inference must be False with the solver {name!r}, whose coefficients have no "
            f"standard errors: take 'auto' or {INFERENCE!r}"
        )
    if task == "multiclass":
        raise ValueError(
            "inference must be False for more than two classes, and for times in several "
            "intervals: standard errors are those of two classes, of ordered ones by "
            "model=dpkern.AllThreshold() (dpkern fit --loss ordered), or of targets; fit two "
            "classes at a time, or the event within one interval by the loss 'cloglog'"
        )
    return INFERENCE
