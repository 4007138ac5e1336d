"""What a run says of itself: its model, declarations and notes of its certificate, and its end.

Whether it has learnt anything, or diverged, is tested by post-processing of releases.
"""

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap
from numpy.typing import NDArray

from dpkern._json import with_lists
from dpkern._typing import FloatArray
from dpkern._warn import warn
from dpkern.data import Schema, Transform
from dpkern.data.labels import LABELS_READ, TASK_READ
from dpkern.data.validation import WIDTH_READ
from dpkern.models.oracles import Oracle
from dpkern.models.terms import PenaltySum, Term
from dpkern.privacy import Budget, BudgetWarning, Certificate
from dpkern.privacy.certificate.certificate import NOT_STATED, READ
from dpkern.privacy.certificate.report import release_lines
from dpkern.privacy.guarantees.gdp import LARGEST_USUAL_EPSILON
from dpkern.privacy.sampling.amplification import WITHOUT_REPLACEMENT
from dpkern.solvers.base.calibration import (
    Calibration,
    Temperature,
)
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.recalibration import usual_temperature
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

# Fewer rounds are too few for the test of whether a run has learnt anything.
_LEAST_ROUNDS = 12

# Ratio of last to first squared gradient norm; it is below a tenth for runs that learn.
_LARGEST_RATIO = 0.5

# Ratio of mean squared gradient norms, last quarter to the least of those before it, from which
# gradients have grown: runs that hold their level, noise or not, stay below 2.5. Among few
# numbers noise alone reaches it, and the ratio must be one that it exceeds this seldom. The same
# holds of every round of the last three quarters and the first few, or norms grew by so many
# deviations of those that they ended with.
_GROWN, _FALSE_ALARMS, _LEAST_GROWING, _CLEAR = 4.0, 1e-6, 8, 10.0

# Numbers that are looked at together: a look takes as long as a round of few records does.
_AT_ONCE = 4096

GREW = (
    "the released gradients grew and did not fall again: steps are too long, and the model may "
    "have diverged; take an l2 penalty, smaller steps ({}) or a larger budget"
)

NO_PROGRESS = (
    "little learnt, as far as the releases tell: the released gradients did not shrink from the "
    "first rounds to the last; take larger steps ({}) or more rounds, and give features "
    "of very different scales a feature_range"
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
    if given["line_of_targets"]:
        values["line_of_targets"] = True
    if (temperature := usual_temperature(run)) is not None:
        values["temperature"] = temperature
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


def stored_model(
    *,
    coef: NDArray[np.float64],
    intercept: float,
    classes: NDArray[Any] | None,
    transform: Transform,
    loss: str,
    oracle: Oracle | None,
    feature_names: tuple[str, ...] | None,
    schema: Schema | None,
    calibration: Calibration | Temperature | None,
) -> dict[str, Any]:
    """Return the parts of a model that predictions follow from, for its file and its digest."""
    values = {
        "intercept": intercept,
        "classes": None if classes is None else classes.tolist(),
        "transform": _values(transform),
        "loss": loss,
        "oracle": None if oracle is None else oracle.declaration,
        "feature_names": feature_names,
        "schema": None if schema is None else schema.to_dict(),
        "calibration": None if calibration is None else _values(calibration),
    }
    return {"coef": coef, **with_lists(values)}


def _values(found: Transform | Calibration | Temperature) -> dict[str, Any]:
    """Return the fields of a dataclass that has no other one in them, without copies."""
    return {field.name: getattr(found, field.name) for field in fields(found)}


def plain(value: Any) -> Any:
    """Convert an argument to numbers, strings, lists and dicts."""
    if value is None or type(value) in (bool, int, float, str):  # most are
        return value
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
    if isinstance(value, int | float | str):
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


class NothingLearntWarning(UserWarning):
    """By its released gradients, a run's model is no better than its starting point, or worse."""


class LearningWatch:
    """Compares the released gradients of the quarters of the rounds.

    Has the mean of squared norms grown towards the last quarter, steps were too long: noise adds
    the same to all of them. So they were where norms grew in the first rounds, up to the clip norm,
    and stayed there, in every round of the last three quarters. Else it compares the means of the
    first and the last quarter.

    It reads releases only, so that its finding is post-processing. The noise variance is estimated
    from differences of successive releases, and subtracted from the squared norms of the means. Is
    the noise of successive gradients not `independent`, there is no finding.
    """

    def __init__(self, rounds: int, *, independent: bool = True) -> None:
        rounds = rounds if independent else 0
        self._rounds, self._quarter, self._seen, self._dim = rounds, rounds // 4, 0, 0
        self._first, self._last, self._variance = np.zeros(0), np.zeros(0), 0.0
        self._previous: FloatArray | None = None
        self._squares: list[float] = []
        self._waiting: list[FloatArray] = []
        self._numbers = 0

    def add(self, gradients: FloatArray) -> None:
        """Add the released gradient mappings of the next rounds, shape (rounds, d)."""
        if self._rounds < _LEAST_GROWING:
            return
        self._numbers += gradients.size
        if self._numbers < _AT_ONCE:
            self._waiting.append(gradients.copy())
        else:
            self._look_at_waiting()
            self._look(gradients)

    def _look_at_waiting(self) -> None:
        if self._waiting:
            self._look(np.concatenate(self._waiting))
        self._waiting.clear()
        self._numbers = 0

    def _look(self, gradients: FloatArray) -> None:
        self._squares += np.einsum("ij,ij->i", gradients, gradients).tolist()
        self._dim = gradients.shape[1]
        if self._rounds < _LEAST_ROUNDS:
            return
        if self._previous is None:
            self._first, self._last = np.zeros((2, gradients.shape[1]))
            self._previous = gradients[0]
        changes = [gradients[:1] - self._previous]
        if len(gradients) > 1:
            changes.append(gradients[1:] - gradients[:-1])
        for change in changes:  # not by BLAS, whose threads would wait for busy cores
            self._variance += 0.5 * float(np.einsum("ij,ij->", change, change))
        self._previous = gradients[-1].copy()
        seen, self._seen = self._seen, self._seen + len(gradients)
        if seen < self._quarter:
            self._first += np.add.reduce(gradients[: self._quarter - seen])
        last = self._rounds - self._quarter
        if self._seen > last:
            self._last += np.add.reduce(gradients[max(0, last - seen) :])

    def finding(self) -> str:
        """Return the warning to the user, with a place for the option of steps, or nothing."""
        self._look_at_waiting()
        if self._grew():
            return GREW
        if self._seen < max(self._rounds, _LEAST_ROUNDS):
            return ""
        noise = self._variance / (self._seen - 1) / self._quarter  # in the mean of a quarter
        first, last = (self._squared(g) - noise for g in (self._first, self._last))
        error = 4.0 * noise * math.sqrt(2.0 / self._first.size)  # four deviations
        return NO_PROGRESS if first > error and last > _LARGEST_RATIO * first + error else ""

    def _grew(self) -> bool:
        if len(self._squares) < max(self._rounds, _LEAST_GROWING):
            return False
        squares, k = np.array(self._squares), self._quarter
        *before, last = (float(squares[i * k :][:k].sum()) for i in (0, 1, 2, -1))
        if last > self._ratio(k, k) * min(before) > 0.0:
            return True
        norms = np.sqrt(squares[k:])
        least, changes = float(norms.min()), np.diff(norms)
        level, n = least - _CLEAR * math.sqrt(0.5 * float(np.mean(changes * changes))), 1
        while n < k:
            first = float(squares[:n].mean())
            ratio = _GROWN if math.sqrt(first) < level else self._ratio(1, n)
            if least * least > ratio * first > 0.0:
                return True
            n *= 2
        return False

    def _ratio(self, rounds: int, before: int) -> float:
        """Return the ratio of two means over so many rounds from which the first is the larger."""
        freedom = self._dim * rounds, self._dim * before
        return max(_GROWN, float(scipy.special.fdtri(*freedom, 1.0 - _FALSE_ALARMS)))

    def _squared(self, total: FloatArray) -> float:
        mean = total / self._quarter
        return float(mean @ mean)
