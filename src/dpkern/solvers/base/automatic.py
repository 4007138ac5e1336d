"""Which solver "auto" is, by public numbers alone."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, cast

import numpy as np

from dpkern._numbers import did_you_mean
from dpkern.data import SiloData
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.losses import ESTIMATED, LOSS_OF_TASK, Loss, get_loss
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.party import Remote
from dpkern.privacy import Budget
from dpkern.solvers.base.declaration import Solver
from dpkern.solvers.base.objective import Objective, PublicNumbers, public_numbers
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.settings import is_auto, moments_suffice, newton_suffices

#: What "auto" may be where moments are not exact enough, the solver of most runs first.
CHOSEN = ("gradient_descent", "minibatch_sgd", "admm")
#: The solver of estimates with standard errors.
INFERENCE = "newton_inference"
# Arguments that say nothing of how a model is fitted, but for l2.
_OF_ANY_RUN = frozenset(("model", "l2", "trust", "neighbours", "public_size", "accountant", "rng"))
_OF_ANY_RUN |= {"n_threads", "progress", "callback"}
# Coefficients up to which Newton steps to the minimiser take no longer than 300 of descent.
_MOST_OF_NEWTON = 128


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
    if arguments.get("model") is not None or arguments.get("loss", "squared") != "squared":
        return False
    names = ridge.declaration.own.keys() | SHARED
    if _is_without_budget(arguments) or not _is_plain(ridge, data, arguments, "regression", names):
        return False
    return _each_suffices(moments_suffice, data, get_loss("squared"), arguments)


def has_exact_newton(newton: Solver, data: object, arguments: dict[str, Any]) -> bool:
    """Whether `newton_inference` ends at the minimiser, without a budget, or is exact enough for
    ordered classes, with settings of its own."""
    model = arguments.get("model")
    if arguments.get("trust", "central") != "central":
        return False
    if _is_without_budget(arguments):
        return model is None and _has_minimiser(newton, data, arguments)
    if not isinstance(model, AllThreshold):
        return False
    if not _is_plain(newton, data, arguments, "multiclass", _OF_ANY_RUN):
        return False
    return _each_suffices(newton_suffices, data, model, arguments)


def _has_minimiser(newton: Solver, data: Any, arguments: dict[str, Any]) -> bool:
    task = str(getattr(data, "task", None))
    loss = arguments.get("loss", LOSS_OF_TASK.get(task))
    return (
        getattr(loss, "name", loss) in ESTIMATED
        and _is_plain(newton, data, arguments, task, _OF_ANY_RUN | {"loss"})
        and data.intercept
        and data.d <= _MOST_OF_NEWTON
    )


def _is_plain(
    solver: Solver, data: object, arguments: dict[str, Any], task: str, names: Set[str]
) -> bool:
    """Whether the data are of this task and in memory, and no others than these are given."""
    given = {k: v for k, v in arguments.items() if v is not None and not is_auto(v)}
    return (
        isinstance(data, SiloData)
        and data.task == task
        and data.persons is None
        and data.device is None  # which has no Hessians
        and given.keys() - {"budget", "budgets", "draws"} <= names
        and not any(given.get(name) for name in ("penalty", "l1"))
        and not any(
            isinstance(value, list)
            for name, value in given.items()
            if name not in ("public_size", "budgets")
        )
        and given.get("trust", "central") in solver.declaration.trusts
        and given.get("neighbours", "replace_one") in solver.declaration.neighbours
    )


def _is_without_budget(arguments: Mapping[str, Any]) -> bool:
    return not all(isinstance(budget, Budget) for budget in _budgets(arguments))


def _budgets(arguments: Mapping[str, Any]) -> Sequence[object]:
    budgets = arguments.get("budgets", arguments.get("budget"))
    return budgets if isinstance(budgets, Sequence) else [budgets]


def _each_suffices(
    suffices: Callable[[PublicNumbers], bool],
    data: Any,
    loss: Loss | Oracle,
    arguments: dict[str, Any],
) -> bool:
    """Whether the public numbers of every budget suffice."""
    of_data = {name: arguments[name] for name in ("weights", "public_size") if name in arguments}
    objective = Objective(data, loss, **of_data)
    trust = arguments.get("trust", "central")
    neighbours = arguments.get("neighbours", "replace_one")
    found = (
        public_numbers(objective, cast(Budget, budget), trust, neighbours)
        for budget in _budgets(arguments)
    )
    return all(numbers is not None and suffices(numbers) for numbers in found)


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
    if name == "auto" and has_exact_newton(solvers[INFERENCE], data, arguments):
        name = INFERENCE
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
