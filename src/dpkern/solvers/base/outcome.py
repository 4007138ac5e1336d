"""Declarations and notes about a run that its result and its certificate contain."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern._warn import warn
from dpkern.data.notes import LABELS_READ, TASK_READ, WIDTH_READ
from dpkern.models.oracles import Oracle
from dpkern.models.terms import PenaltySum, Term
from dpkern.privacy import Budget, BudgetWarning, Certificate
from dpkern.privacy.certificate.identity import NOT_STATED, READ
from dpkern.privacy.certificate.report import release_lines
from dpkern.privacy.guarantees.budget import LARGEST_USUAL_EPSILON
from dpkern.privacy.sampling.amplification import WITHOUT_REPLACEMENT
from dpkern.solvers.base.learning import NothingLearntWarning
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.settings import UNBOUNDED_TARGETS

if TYPE_CHECKING:  # run imports this module
    from dpkern.solvers.base.run import Run

HIDDEN_SIZES = (
    "add or remove: declared sizes stand for those of the data; taken as public that no silo is "
    "empty and that there are fewer than 2^31 records"
)
SPLIT = (
    "add or remove: which silo holds a record is as the data have it, and the records that two "
    "neighbours share are in the same silos; splitting one record more afresh ({}) would move many"
)
OF_ITS_OWN = (
    "taken as true of the model {!r}: the gradient that it gives for a record depends on this "
    "record{} and public numbers alone, not on other records{}"
)

ENDED_AFTER = "ended_after"  # the declared number of updates of a run that an error ended
ENDED = (
    "the run ended after update {}, by an error: taken as true that the error depended neither on "
    "the records nor on what was released; where it may have on what was released, the guarantee "
    "is that of all rounds of the run{}; where it may have on the records, there is none"
)


class RunEndedWarning(UserWarning):
    """A run ended by an error after some releases, and returns the model that it had."""


def notes_on_data(run: "Run") -> tuple[str, ...]:
    """Return the certificate's notes on the data and the model of a run."""
    plan, data, loss = run.plan, run.objective.data, run.objective.loss
    notes: list[str] = []
    if plan.sizes_are_hidden and plan.budget is not None:
        notes += [HIDDEN_SIZES]
        if data.partition != "given":
            notes += [SPLIT.format(repr(data.partition))]
    notes += [*run.channel().notes, *data.notes]
    if isinstance(loss, Oracle) and not loss.compiled and plan.budget is not None:
        varies = plan.sizes_are_hidden or plan.arguments["sampling"] == WITHOUT_REPLACEMENT
        place = ("", ", nor on its place in the batch") if varies else (", its place", "")
        notes += [OF_ITS_OWN.format(loss.name, *place)]
    if run.ended is not None:
        given, most = plan.arguments["budget"], ""
        if given is not None and not plan.paper:
            figures = {"epsilon": given.epsilon, "delta": given.delta}
            figures = {"mu": given.mu} if given.epsilon is None else figures
            most = f", its budget of {' and '.join(f'{k} {v:g}' for k, v in figures.items())}"
        notes += [ENDED.format(run.updates, most)]
    if run.monitor is run.objective:
        notes += ["what history holds of the monitor is a non-private diagnostic on training data"]
    return tuple(notes)


def ending(run: "Run", certificate: Certificate, finding: str) -> str:
    """Describe how a run ended; warn of what its releases suggest, if there is a finding.

    Warns too where more than the budget was spent, as the sampling error of huge epsilons is.
    """
    plan = run.plan
    if run.ended is not None:
        said, text = f"ended after update {run.updates} by {type(run.ended).__name__}", ""
        if str(run.ended):  # which may quote records, and so is not in what is saved
            text = f": {run.ended}"
        made = f"this model is returned, released were: {'; '.join(release_lines(run.ledger))}"
        warn(f"{plan.solver} {said}{text}; {made}", RunEndedWarning)
        return said
    _warn_of_more_than_the_budget(run, certificate)
    steps = "" if plan.local_steps == 1 else f" of {plan.local_steps} local steps"
    message = f"ran its {plan.rounds} round{'s' if plan.rounds > 1 else ''}{steps}"
    if not finding:
        return message
    own = [name for name in ("step_size", "prox_step", "trace_coeff") if name in plan.arguments]
    finding, budget = finding.format(" or ".join(own)), plan.arguments["budget"]
    data = run.objective.data
    if run.objective.has_units and not math.isfinite(data.target_bound):
        finding = f"little learnt, as far as the releases tell: {UNBOUNDED_TARGETS}"
    spent = f"mu {budget.mu:g}" if budget.epsilon is None else f"epsilon {budget.epsilon:g}"
    where = f"{plan.solver} under {plan.trust} trust at {spent}"
    warn(f"{where}: {finding}", NothingLearntWarning)
    return f"{message}; {finding}"


def declared(run: "Run") -> dict[str, Any]:
    """Return what the guarantee assumes to be public, that is, not computed from the records."""
    plan, objective, data = run.plan, run.objective, run.objective.data
    given, sizes, monitor = plan.arguments, objective.public_size, None
    if run.monitor is not None:
        public = run.monitor is not objective
        monitor = f"{run.monitor.data.n} public records" if public else "train"
    options = plan.declaration.own | SHARED
    values = {k: given[k] for k, option in options.items() if option.declared}
    if plan.declaration.samplers:
        values["sampling"] = given["sampling"]
    values |= {"l2": objective.l2, "l1": objective.l1, "penalty": objective.other}
    if run.ended is not None:
        values[ENDED_AFTER] = run.updates
    if (persons := plan.persons) is not None:
        values |= {"max_records": persons.max_records, "person_clip": persons.clip}
    if given["colluding"] is not None:
        values["colluding"] = given["colluding"]
    if math.isfinite(data.target_bound):
        values["target_bound"] = data.target_bound
    if data.transform.target_middle:
        values["target_middle"] = data.transform.target_middle
    if data.max_weight is not None:
        values["max_weight"] = data.max_weight
    if data.margin_offset is not None:
        values["margin_offset"] = True
    if data.schema is not None:
        values["schema"] = data.schema.digest
    values |= {
        "clip": math.inf if given["clip"] is None else given["clip"],
        "sizes": data.sizes if sizes is None else sizes,
        "n_features": data.n_features,
        "partition": data.partition,
        "task": data.task,
        "intercept": data.intercept,
        "row_bound": data.row_bound,
        "feature_range": data.feature_range is not None,
        "sparse": data.is_sparse,
        "labels": None if data.classes is None else [str(c) for c in data.classes],
        "monitor": monitor,
    }
    return {name: plain(value) for name, value in values.items()}


def sources(run: "Run") -> dict[str, str]:
    """Return where the bounds and the labels are from that the guarantee takes as public."""
    data = run.objective.data
    stated = NOT_STATED if data.schema is None else f"schema {data.schema.digest[:19]}"
    bounds = {
        "feature_range": data.feature_range is not None or data.schema is not None,
        "row_bound": math.isfinite(data.row_bound),
        "target_bound": math.isfinite(data.target_bound),
        "max_weight": data.max_weight is not None,
        "labels": data.classes is not None,
    }
    read = {"labels": LABELS_READ, "task": TASK_READ, "n_features": WIDTH_READ}
    found = {name: stated for name, is_declared in bounds.items() if is_declared}
    if run.plan.persons is not None:
        found["max_records"] = NOT_STATED
    return found | {name: READ for name, note in read.items() if note in data.notes}


def plain(value: Any) -> Any:
    """Convert an argument to numbers, strings, lists and dicts."""
    declaration = getattr(value, "declaration", None)
    if isinstance(declaration, str | dict):
        return declaration if len(declaration) > 1 else value.name
    if isinstance(value, PenaltySum):
        return [plain(term) for term in value.terms]
    if isinstance(value, Term):
        parameters = {"strength": value.strength, **value.parameters}
        return {"name": value.name, **{k: plain(v) for k, v in parameters.items()}}
    if isinstance(value, Budget):
        return {"mu": value.mu, "epsilon": value.epsilon, "delta": value.delta}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def _warn_of_more_than_the_budget(run: "Run", certificate: Certificate) -> None:
    budget = run.plan.arguments["budget"]
    if run.plan.paper or budget is None or (budget.epsilon or 0.0) <= LARGEST_USUAL_EPSILON:
        return
    epsilon = certificate.epsilon(budget.delta) if certificate.states_something else math.inf
    if epsilon > budget.epsilon * (1.0 + 1e-6):
        warn(
            f"the certificate states epsilon {epsilon:.6g} at delta {budget.delta:g}, more than "
            f"the budget's {budget.epsilon:g}: at so large an epsilon the sampling error of "
            "2^-100 per draw of noise counts; state a smaller epsilon, or a larger delta",
            BudgetWarning,
        )
