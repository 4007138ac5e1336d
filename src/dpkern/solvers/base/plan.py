"""The plan of a run: everything that is decided before the first record is read.

`resolve` completes the arguments of a solver from public numbers of the data. Nothing is written
to a plan afterwards, and nothing in it depends on a record.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dpkern._numbers import LARGEST, positive
from dpkern._typing import FloatArray
from dpkern._warn import warn
from dpkern.models.losses import Custom
from dpkern.privacy import Budget, split_budget
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.privacy.mechanisms.channel import Shares
from dpkern.privacy.sampling.amplification import AMPLIFIES
from dpkern.privacy.sensitivity.grids import MAX_RECORDS
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import AUTO, StepSize
from dpkern.solvers.base.persons import PersonBound, person_bound
from dpkern.solvers.base.recalibration import recalibration_share
from dpkern.solvers.base.settings import REPEATS, resolve_settings

if TYPE_CHECKING:  # declaration imports this module
    from dpkern.solvers.base.declaration import Declaration

# Squares and products of numbers of these sizes are doubles; penalties may be 0 or nearly so.
_LEAST = 1 / LARGEST
_DIVIDED_BY = (
    *("row_bound", "target_bound", "clip", "hess_clip", "person_clip"),
    *("step_size", "prox_step", "relaxation"),
)
# Largest norm of a model, as a power of two, without noise; that is far from doubling it so often.
_MOST_DOUBLINGS = 400.0
# Bytes of public history and of step sizes that a step keeps, and how many steps are refused.
_STEP_BYTES, _MOST_STEPS = 96, 1 << 26
# Entries of records that are read in a second, steps made in one, and hours that are warned of.
_ENTRIES, _STEPS, _HOURS = 2.0**29, 2.0**15, 1.0


class LongRunWarning(UserWarning):
    """A run will take hours, by its public numbers."""


@dataclass(frozen=True, eq=False)
class RunPlan:
    """What was decided of a run.

    Attributes
    ----------
    declaration : Declaration
        Of the solver.
    arguments : mapping
        All arguments but the data, checked, with every "auto" replaced, and whether the line of
        targets is released; read-only.
    budget : Budget or None
        Of one record, where persons have the given one by the group bound, and without what the
        recalibration takes where both are Gaussian DP.
    recalibration_mu : float or None
        The budget of the recalibration, 0 where it follows from public numbers; None for a run
        without one.
    line_mu : float
        That of the line of targets after the run; 0 for a run without one.
    persons : PersonBound or None
        How people with several records are protected.
    shares : Shares or None
        How silos share the noise of their sums; None where an aggregator adds it.
    charge : Bound or None
        What the run may spend, for its accountant; None without one.
    updates : int
        Number of public models that follow from one another: rounds, unless the solver differs.
    step_sizes : ndarray of shape (updates, local_steps)
        Public step sizes; empty for a solver that has none.
    solver, trust, neighbours, rounds, local_steps
        Name of the solver, and these arguments; 1 where the solver does not have the last two.
    sizes_are_hidden : bool
        Whether numbers of records are private, so that only exact sums may depend on them.
    paper : bool
        Whether the noise is calibrated by the paper's formula.
    """

    declaration: "Declaration"
    arguments: Mapping[str, Any]
    budget: Budget | None
    persons: PersonBound | None
    shares: Shares | None
    charge: Bound | None
    updates: int
    recalibration_mu: float | None = None
    line_mu: float = 0.0
    step_sizes: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    solver: str = field(init=False)
    trust: str = field(init=False)
    neighbours: str = field(init=False)
    sizes_are_hidden: bool = field(init=False)
    paper: bool = field(init=False)
    rounds: int = field(init=False)
    local_steps: int = field(init=False)

    def __post_init__(self) -> None:
        given = self.arguments
        self.step_sizes.setflags(write=False)
        for name, value in {
            "solver": self.declaration.name,
            "trust": given["trust"],
            "neighbours": given["neighbours"],
            "sizes_are_hidden": given["neighbours"] == "add_remove",
            "paper": given["calibration"] == "paper",
            "rounds": given.get("rounds", 1),
            "local_steps": given.get("local_steps", 1),
        }.items():
            object.__setattr__(self, name, value)

    def replace_arguments(self, **values: Any) -> Self:
        """Return the plan with other values of arguments; an array of equal numbers becomes one."""
        for name, value in values.items():
            if isinstance(value, np.ndarray) and (numbers := np.unique(value)).size == 1:
                values[name] = float(numbers[0])
        return replace(self, arguments=MappingProxyType({**self.arguments, **values}))

    @property
    def options(self) -> dict[str, Any]:
        """The solver's own arguments."""
        return {name: self.arguments[name] for name in self.declaration.options}

    @cached_property
    def clip(self) -> float:
        """Clip norm of per-record gradients; infinite by default without a budget."""
        clip: float | None = self.arguments["clip"]
        if clip is None and self.budget is not None:
            raise ValueError(
                "clip must be given with a budget: the l2 bound of one record's gradient; 'auto' "
                "needs a linear model, a row_bound and a loss with a bounded second derivative"
            )
        if clip == math.inf and self.budget is not None:
            raise ValueError("clip must be finite with a budget, got inf")
        return math.inf if clip is None else clip

    @cached_property
    def person_clip(self) -> float | None:
        """Clip norm of the sum of a person's clipped gradients; None: records are clipped alone."""
        return None if self.persons is None else self.persons.clip_of(self.clip)

    @property
    def claimed(self) -> dict[str, float] | None:
        """The guarantee that a paper's calibration claims; None for the sound one."""
        if self.budget is None or not self.paper:
            return None
        if self.budget.epsilon is None or self.budget.delta is None:
            raise ValueError("calibration='paper' needs a budget given as epsilon and delta")
        return {"epsilon": self.budget.epsilon, "delta": self.budget.delta}

    def mu_of_one(self, releases: int) -> float | None:
        """Return the budget of one of so many equal releases; None without a budget."""
        if self.budget is None:
            return None
        return float(split_budget(self.budget.mu, (1.0,), (releases,))[0])


#: Completes the plan of a solver that derives more of its arguments from others.
Resolver = Callable[[RunPlan, Objective], RunPlan]


def resolve(
    declaration: "Declaration",
    objective: Objective,
    budget: Budget | None,
    arguments: Mapping[str, Any],
) -> RunPlan:
    """Return the plan of a run of a solver with these arguments, or raise by public numbers."""
    check_budget(budget, or_none=True)
    given = {**arguments, "budget": budget}
    persons = _persons(declaration, objective, given)
    given["person_clip"] = None if persons is None else persons.clip
    if declaration.penalties == "l2" and (objective.l1 or objective.other):
        name = "l1" if given["l1"] else "penalty"
        other = "l2, or take another solver"
        if declaration.estimates:
            other = "l2, or fit without inference=True"
        raise ValueError(
            f"{name} must be absent in {declaration.name}, which takes l2 alone: take {other}"
        )
    _check_neighbours(objective, given)
    shares = _shares(declaration, objective, given)
    given["colluding"] = None if shares is None else shares.colluding
    if budget is not None:
        budget.warn_of_few_records(objective.n)
    refuse_sizes(objective, given)
    of_settings = budget if persons is None else persons.budget_of_settings
    of_record = budget if persons is None else persons.budget
    recalibration_mu, line_mu, share = None, 0.0, None
    if given["recalibrate"] and given["clip"] == AUTO:
        share = recalibration_share(declaration, objective, of_record, persons, given)
    given["recalibrate"] = share is not None and share.value > 0.0
    given["line_of_targets"] = share is not None and share.line > 0.0
    if share is not None and not share.value:
        recalibration_mu = 0.0
    elif of_record is not None and share is not None:
        rest, recalibration_mu, line_mu = share.split(of_record.mu)
        of_settings = Budget.part(rest)
        if declaration.gaussian:  # or the solver finds what is left by itself
            of_record = of_settings
    given = resolve_settings(declaration.settings, objective, of_settings, given)
    announce_length(objective, {k: given[k] for k in REPEATS if isinstance(given.get(k), int)})
    plan = RunPlan(
        declaration,
        MappingProxyType(given),
        budget=of_record,
        recalibration_mu=recalibration_mu,
        line_mu=line_mu,
        persons=persons,
        shares=None if budget is None else shares,
        charge=_charge(declaration, given),
        updates=given.get("rounds", 1),
    )
    return declaration.resolve(plan, objective)


def _persons(
    declaration: "Declaration", objective: Objective, given: Mapping[str, Any]
) -> PersonBound | None:
    """Return how people with several records are protected, None where nobody has several."""
    persons, clip = objective.data.persons, given["person_clip"]
    if persons is not None:
        return person_bound(declaration, persons, given["budget"], given)
    if clip not in (None, AUTO):
        raise ValueError(f"person_clip must be left out for data without person, got {clip!r}")
    return None


def _check_neighbours(objective: Objective, given: Mapping[str, Any]) -> None:
    """Check the further conditions of add/remove neighbours."""
    hidden = given["neighbours"] == "add_remove"
    if hidden == (objective.public_size is None):
        raise ValueError(
            "public_size must be given with neighbours='add_remove', and only then: numbers of "
            f"records that are not the data's own; got {given['public_size']!r} with "
            f"neighbours={given['neighbours']!r}"
        )
    if not hidden:
        return
    if given["calibration"] == "paper":
        raise ValueError("neighbours='add_remove' needs calibration='sound'")
    if isinstance(objective.loss, Custom):
        raise ValueError(
            "neighbours='add_remove' needs a loss of the table: what a custom one returns for "
            "a record may depend on those before it"
        )
    if objective.data.n >= MAX_RECORDS:
        raise ValueError("neighbours='add_remove' needs fewer than 2^31 records")


def _shares(
    declaration: "Declaration", objective: Objective, given: Mapping[str, Any]
) -> Shares | None:
    """Return how silos share the noise, None where they do not.

    Raises
    ------
    ValueError
        When the solver, its trust model or calibration has no shares, or a federation lacks what
        it needs.
    """
    data, party, t = objective.data, objective.data.party, given["colluding"]
    if party is None and t is None:
        return None
    where = "colluding" if party is None else "a federation"
    if not declaration.federated:
        raise ValueError(
            f"{where} needs a solver whose releases are sums over silos or messages of silos, "
            f"which those of {declaration.name} are not"
        )
    if party is not None and given["budget"] is None:
        raise ValueError("budget must be given in a federation, where all that is sent has noise")
    if party is not None and given["monitor"] == "train":
        raise ValueError("monitor must be None or public records in a federation, got 'train'")
    if given["calibration"] == "paper":
        raise ValueError(f"{where} needs calibration='sound'")
    return Shares.of(data.m, given["trust"], t, party)


def _charge(declaration: "Declaration", given: Mapping[str, Any]) -> Bound | None:
    """Return what a run may spend: mu where it is Gaussian DP, else its budget as it stands.

    Raises
    ------
    ValueError
        When the run would release something that its certificate does not count.
    """
    # Of a person, where the run's own is that of a record.
    accountant, budget = given["accountant"], given["budget"]
    if accountant is None:
        return None
    if budget is None:
        raise ValueError("budget must be given with an accountant, got None: nothing is certified")
    if given["calibration"] == "paper":
        raise ValueError("calibration must be 'sound' with an accountant, got 'paper'")
    if given["monitor"] == "train":
        raise ValueError(
            "monitor must be None or public records with an accountant, got 'train', whose history "
            "no certificate counts"
        )
    n_draws = accountant.assumed_draws
    secret = given.get("sampling") == AMPLIFIES[given["neighbours"]] and given["trust"] != "shuffle"
    if declaration.gaussian and not secret:
        return Bound.of_budget(budget, n_draws)
    if budget.epsilon is not None:
        return Bound(epsilon=budget.epsilon, delta=budget.delta)
    if not declaration.gaussian:
        raise ValueError(f"budget must be given as epsilon and delta in {declaration.name}")
    return Bound(mu=budget.mu, n_draws=n_draws)  # as if every record had been used


def require_convex_loss(plan: RunPlan, objective: Objective, why: str) -> None:
    """Raise ValueError for a loss that is not convex, with the reason `why`."""
    if not objective.phi.convex:
        raise ValueError(f"loss must be convex in {plan.solver}, got {objective.phi.name!r}: {why}")


# -------------------------------------------------------------------------------- step sizes


def resolve_step_sizes(
    plan: RunPlan, objective: Objective, *, theorem: float | None = None
) -> RunPlan:
    """Return the plan with its public step sizes, if the solver has them.

    If `theorem` is given, "theorem" means equal steps theorem / beta, beta being the smoothness of
    the objective.
    """
    if "step_size" not in plan.declaration.options:
        return plan
    value, shape = plan.arguments["step_size"], (plan.updates, plan.local_steps)
    if theorem is not None and isinstance(value, str) and value == "theorem":
        beta = 1.0 / auto_step(objective, "step_size", "theorem")
        eta = np.full(shape, theorem / beta)
    else:
        eta = step_sizes(plan, objective)
    plan = replace(plan, step_sizes=within_doubles(eta, objective, plan.arguments))
    if isinstance(value, str) and np.all(eta == eta.flat[0]):
        return plan.replace_arguments(step_size=eta)
    return plan


def resolve_number(plan: RunPlan, objective: Objective, name: str) -> RunPlan:
    """Return the plan with the argument `name` a number, where "auto" means 1 / (L + l2)."""
    value = plan.arguments[name]
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"{name} must be a number or 'auto', got {value!r}")
        value = auto_step(objective, name)
    return plan.replace_arguments(**{name: positive(name, value)})


def auto_step(objective: Objective, name: str, value: str = "auto") -> float:
    """Return 1 / (L + l2), L including the curvature of a smooth penalty, for argument `name`."""
    unbounded = math.isinf(objective.data.row_bound)
    if math.isinf(objective.loss.smoothness) and not (unbounded and objective.scale):
        raise ValueError(
            f"{name}={value!r} needs a loss with a bounded second derivative, which "
            f"{objective.loss.name!r} is not: give {name} a number"
        )
    if not math.isfinite(objective.smoothness):
        raise ValueError(
            f"{name}={value!r} needs a bound of the rows: give the data a row_bound=R, or "
            f"{name}=NUMBER"
        )
    return 1.0 / objective.smoothness


def step_sizes(plan: RunPlan, objective: Objective) -> FloatArray:
    """Return the public step sizes of all updates, shape (updates, local_steps).

    "auto", where no rule has replaced it (settings.py), is 1 / (L + l2), L including the curvature
    of a smooth penalty; "theorem" is 2 / (l2 (t + gamma)), t = 1, 2, ...,
    gamma = max(8 (L + l2) / l2 - 1, local_steps) (Huang, utility theorem).
    """
    step_size: StepSize = plan.arguments["step_size"]
    shape, steps = (plan.updates, plan.local_steps), plan.updates * plan.local_steps
    if isinstance(step_size, str):
        smoothness = objective.smoothness
        if step_size not in ("auto", "theorem"):
            raise ValueError(
                f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
            )
        auto = auto_step(objective, "step_size", step_size)
        if step_size == "auto":
            return np.full(shape, auto)
        if objective.l2 == 0.0 or not objective.penalized.all():
            raise ValueError(
                "step_size='theorem' needs l2 > 0 on every coordinate: give l2, and "
                "penalize_intercept=True beside an intercept"
            )
        if not objective.phi.convex:
            raise ValueError(
                f"step_size='theorem' needs a convex loss, which {objective.phi.name!r} is not"
            )
        if objective.smooth is not None and not objective.smooth.convex:
            raise ValueError(
                f"step_size='theorem' needs a convex penalty, which {objective.smooth.name!r} is "
                "not"
            )
        gamma = max(8.0 * smoothness / objective.l2 - 1.0, float(plan.local_steps))
        t = np.arange(1.0, steps + 1.0)
        return (2.0 / (objective.l2 * (t + gamma))).reshape(shape)
    if step_size is None or isinstance(step_size, bool):
        raise TypeError(
            f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
        )
    try:
        eta = np.asarray(step_size, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("step_size holds an entry that is no number") from None
    if eta.shape not in ((), (steps,)):
        raise ValueError(f"step_size must be one number or {steps}, one a step, got {eta.shape}")
    if not (np.all(np.isfinite(eta)) and np.all(eta > 0.0)):
        raise ValueError(f"step_size must be positive and finite, got {step_size!r}")
    return np.broadcast_to(eta, (steps,)).reshape(shape).copy()


# ------------------------------------------------------------------- sizes and lengths


def refuse_sizes(objective: Objective, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a number whose square or product with another is no double."""
    data, other = objective.data, objective.other
    sizes = {"row_bound": data.row_bound, "target_bound": data.target_bound}
    sizes |= {"l2": objective.l2, "l1": objective.l1}
    if other is not None:
        sizes["penalty"] = other.strength
    for name, value in {**given, **sizes}.items():
        if not isinstance(value, float) or value in (0.0, math.inf) or math.isnan(value):
            continue
        least = _LEAST if name in _DIVIDED_BY else 0.0
        if not least <= value <= LARGEST:
            raise ValueError(
                f"{name} must be between {least:g} and {LARGEST:g}, so that its square is a "
                f"double, got {value!r}: take other units"
            )


def within_doubles(
    eta: FloatArray,
    objective: Objective,
    settings: Mapping[str, Any],
    *,
    pull: float | None = None,
) -> FloatArray:
    """Return step sizes (updates, local_steps) that models within doubles follow, or raise.

    The gradients of records are clipped, so that models grow with their sum, and geometrically by
    steps longer than 2 / c, c the `pull`, by default of the penalties. Without a clip norm nothing
    is known.
    """
    clip, beta = settings["clip"], settings.get("momentum", 0.0)
    if not isinstance(clip, float) or clip == math.inf:
        return eta
    c = objective.pull if pull is None else pull
    factors = np.abs(1.0 - eta * c)
    longer = factors > 1.0
    doublings = float(np.sum(np.log2(factors[longer] * (1.0 + 2.0 * beta))))
    doublings += max(0.0, math.log2(float(np.sum(eta)) * clip))
    if not doublings <= _MOST_DOUBLINGS:
        most = "smaller"
        if longer.any():
            most = f"at most 2 / {c:g}, beyond which far models grow"
        raise ValueError(
            f"step_size must be {most}, got {float(eta.max()):g}: {eta.size} steps could reach "
            f"models of norm 2^{doublings:.0f}"
        )
    return eta


def announce_length(objective: Objective, repeats: Mapping[str, int]) -> None:
    """Raise ValueError for more steps than memory holds, and warn of a run of hours."""
    steps = math.prod(repeats.values())
    hours = steps * (objective.n * objective.dim / _ENTRIES + 1.0 / _STEPS) / 3600.0
    said = " x ".join(f"{name}={value}" for name, value in repeats.items() if value > 1)
    if steps > _MOST_STEPS:
        raise ValueError(
            f"{' x '.join(repeats)} must be at most {_MOST_STEPS}, got {said}: that many steps "
            f"take about {steps * _STEP_BYTES / 2**30:.3g} GiB and {hours:.3g} hours"
        )
    if hours > _HOURS:
        warn(f"{said} may take about {hours:.3g} hours of one core", LongRunWarning)
