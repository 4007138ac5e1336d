"""One run of a solver: noise stream, ledger, timing, public history and certificate."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from dpkern._json import model_digest
from dpkern._typing import FloatArray
from dpkern.data import SiloData, is_sparse
from dpkern.data.frames import refuse_other_names
from dpkern.data.silo_data import refuse_other_than_silo_data
from dpkern.kernels._blocks import at_once
from dpkern.models.losses import LogLink, Loss
from dpkern.models.oracles import Oracle
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import CHARGED
from dpkern.privacy.certificate.certificate import start_time
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.persons import unit_of
from dpkern.privacy.certificate.report import release_lines
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.solvers.base.backends import CALL_ENTRIES, Request
from dpkern.solvers.base.calibration import Calibration, LogMeans, Temperature
from dpkern.solvers.base.coefficients import CoefficientNoise
from dpkern.solvers.base.first_model import first_model
from dpkern.solvers.base.inference import Inference
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.outcome import (
    LearningWatch,
    declared,
    ending,
    notes_on_data,
    plain,
    sources,
    stored_model,
)
from dpkern.solvers.base.plan import RunPlan, resolve
from dpkern.solvers.base.recalibration import recalibrate
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.settings import is_auto
from dpkern.solvers.base.target_line import with_line
from dpkern.stream import PublicDraws

if TYPE_CHECKING:  # declaration imports this module
    from dpkern.solvers.base.declaration import Declaration


# Compiled rounds between two looks at signals: numbers in the models, beside the entries of the
# records that they read; and a few where others are waited for.
_CHUNK_NUMBERS, _ROUNDS_IN_LOCKSTEP = 1 << 19, 32


class Run(AbstractContextManager["Run"]):
    """Everything that happens in a run of a plan, around the solver's loop.

    Attributes
    ----------
    plan : RunPlan
        What was decided before.
    objective : Objective
        Objective of the run.
    ledger : Ledger
        All releases so far.
    stream, public : NoiseStream
        Source of all noise and all samples; and of what is drawn at random and public.
    charge : Charge or None
        What the accountant is charged before the first release.
    monitor : Objective or None
        The objective on the monitor's records.
    history : dict of list
        One public number per update.
    bound, notes : str, tuple of str
        How the certificate bounds the releases, "exact" or "upper", and what it says beside them:
        `qualify` adds to both.
    claim, settled : dict or None, int
        A paper's claim that is not an epsilon and delta, and how many last gradients must be small
        for convergence; a solver may set them before its first release.
    started : str
        When the run began, in whole seconds, UTC.
    in_lockstep : bool
        Whether other runs on the same records are made at the same time.
    """

    in_lockstep = False

    def __init__(self, plan: RunPlan, objective: Objective) -> None:
        given = plan.arguments
        self.plan, self.objective, self.started = plan, objective, start_time()
        self.monitor = _resolve_monitor(given["monitor"], objective)
        rng, accountant = given["rng"], given["accountant"]
        self.charge = None
        if accountant is not None:
            persons = plan.persons
            self.charge = accountant.begin(
                plan.solver,
                plan.charge,
                neighbours=plan.neighbours,
                seeded=rng.kind != "os" if isinstance(rng, NoiseStream) else rng is not None,
                unit="one record" if persons is None else unit_of(persons.max_records),
            )
        self.ledger = Ledger(self._before_first_release)
        self.history: dict[str, list[float]] = {"step_size": [], "gradient_norm": []}
        self._owns_stream, self._has_first_model = not isinstance(rng, NoiseStream), False
        self.centre = 0.0  # the first model's intercept
        self.stream = NoiseStream(rng) if self._owns_stream else rng
        public = (self.stream if objective.data.party is None else objective.data.party).public
        self.public = self.stream if public is None else PublicDraws(public, self.stream)
        self.bound, self.notes, self.settled = "exact", cast(tuple[str, ...], ()), 1
        self.claim: dict[str, float] | None = None
        self.kept: tuple[int, FloatArray] | None = None
        self._in_callback, self.ended = False, cast(Exception | None, None)
        self._learning = LearningWatch(plan.rounds, independent=not plan.declaration.differences)
        self._seconds = {"kernels": 0.0, "noise": 0.0}
        self.start_clock()

    def qualify(self, *notes: str, upper: bool = False) -> None:
        """Add notes to the certificate, each of them once, and say whether it is an upper bound."""
        self.notes = tuple(dict.fromkeys((*self.notes, *notes)))
        self.bound = "upper" if upper else self.bound

    @property
    def updates(self) -> int:
        """Number of updates: those of the plan, or of the model that an error left."""
        if self.ended is None or self.kept is None:
            return self.plan.updates
        return self.kept[0]

    def channel(self, trust: str | None = None) -> Channel:
        """Return the channel of releases under a trust model, by default that of the run."""
        plan, party = self.plan, self.objective.data.party
        seen_by = SEEN_BY[plan.trust if trust is None else trust]
        shares = plan.shares if seen_by == SEEN_BY["central"] else None
        return Channel(self.ledger, self.stream, seen_by, plan.neighbours, shares, party)

    def _before_first_release(self) -> None:
        """Charge the run, and wait until all parties have: who fails costs the others nothing."""
        if self.charge is not None:
            self.charge.make()
        if (party := self.objective.data.party) is not None:
            party.ready()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._owns_stream:
            self.stream.wipe()
        if error is not None and self.charge is not None and not len(self.ledger):
            self.charge.withdraw()
        if error is not None and self.released and not self.in_lockstep:
            error.add_note(self.released)

    @property
    def released(self) -> str:
        """What a run that fails has released, and what may have been seen without a certificate."""
        if not len(self.ledger):
            return ""
        # What is summed over parties is in the ledger before they are asked for it.
        most = "" if self.objective.data.party is None else "at most "
        return f"{most}released before the failure: " + "; ".join(release_lines(self.ledger))

    def first_model(self) -> FloatArray:
        """Return the model that the run begins with, of public numbers and of a release."""
        mu, self._has_first_model = self.plan.recalibration_mu, True
        w = self.objective.start() if mu is None else first_model(self, mu)
        self.centre = float(w[-1])
        return w

    def start_clock(self) -> None:
        """Begin to measure the time of the run."""
        self._begin = time.perf_counter()

    async def sums(
        self, kernel: Callable[..., FloatArray], *models: FloatArray, **how: Any
    ) -> FloatArray:
        """Return the sums of a kernel over the run's records at these models."""
        return await self.computed(kernel, self.objective.data, *models, **how)

    async def sums_at_once(self, calls: Sequence[Callable[..., FloatArray]]) -> list[FloatArray]:
        """Return the results of kernels that lack data, by one pass over records in blocks."""

        def kernel(data: SiloData, *, n_threads: int | None) -> Any:
            return at_once(data, [partial(call, n_threads=n_threads) for call in calls])

        found: Any = await self.computed(kernel, self.objective.data)
        return list(found)

    async def computed(
        self, kernel: Callable[..., FloatArray], *given: Any, **how: Any
    ) -> FloatArray:
        """Return the result of a kernel, for which the run waits (`dpkern.solvers.base.backends`).

        What others take meanwhile, in lock-step, is no time of the run.
        """
        how["n_threads"] = self.objective.n_threads
        request, begin = Request(kernel, given, how), time.perf_counter()
        found = await request
        self._seconds["kernels"] += request.seconds
        self._begin += time.perf_counter() - begin - request.seconds
        return found

    @contextmanager
    def clock(self, part: str) -> Iterator[None]:
        """Add the duration of a `with` block to "kernels" or "noise", unless the block fails."""
        begin = time.perf_counter()
        yield
        self._seconds[part] += time.perf_counter() - begin

    def numbered_rounds(self, done: int = 0) -> Iterator[int]:
        """Iterate over the updates done, ..., updates - 1, with a progress bar if requested."""
        with self._progress_bar(self.plan.updates - done) as bar:
            for t in range(done, self.plan.updates):
                yield t
                if bar is not None:
                    bar.update()

    def chunks(self, steps: FloatArray, share: float = 1.0) -> Iterator[FloatArray]:
        """Iterate over parts of one number per round, for compiled rounds between which Ctrl-C,
        the progress bar, and other runs of the lock-step are served; a round reads this share of
        the records.

        A failure shows how many rounds were charged, so that chunks depend on public numbers alone:
        not on how many entries are stored, nor on a private number of records.
        """
        entries = max(1, math.ceil(share * self.objective.n * self.objective.dim))
        rounds = min(CALL_ENTRIES // entries, _CHUNK_NUMBERS // self.objective.dim)
        rounds = max(1, min(rounds, _ROUNDS_IN_LOCKSTEP if self.in_lockstep else self.plan.rounds))
        with self._progress_bar(len(steps)) as bar:
            for first in range(0, len(steps), rounds):
                part = steps[first : first + rounds]
                yield part
                if bar is not None:
                    bar.update(len(part))

    def _progress_bar(self, rounds: int) -> AbstractContextManager[Any]:
        """Return a progress bar of so many rounds as a context manager, or None in its place."""
        if not (self.plan.arguments["progress"] and rounds) or sys.stderr is None:
            return nullcontext()
        from tqdm import tqdm

        return tqdm(total=rounds, desc=self.plan.solver, unit="round", leave=False)

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at every round: a callback, a monitor or an audit."""
        watching = self.plan.arguments["callback"], self.monitor, self.stream.transcript
        return any(one is not None for one in watching)

    @property
    def shows_all_records(self) -> bool:
        """Whether an audit asks for the sums of all records, whatever a secret sample has."""
        transcript = self.stream.transcript
        return transcript is not None and transcript.is_replay

    def proximal_step(self, t: int, w: FloatArray, g: FloatArray, step: float) -> FloatArray:
        """Take and record w = prox_{step h}( w - step (g + penalty gradient at w) )."""
        g = g + self.objective.penalty_gradient(w)
        w_next = self.objective.prox(w - step * g, step)
        self.record(t, w_next, step, (w - w_next) / step)
        return w_next

    def record_rounds(
        self, starts: FloatArray, points: FloatArray, steps: FloatArray, share: float = 1.0
    ) -> None:
        """Record rounds that nobody looks at, from starts to points (T, d), as `record` does.

        A point has moved by step times share times the gradient mapping.
        """
        mappings = (starts - points) / (steps * share)[:, np.newaxis]
        self.history["step_size"] += steps.tolist()
        squares = np.matmul(mappings[:, np.newaxis], mappings[:, :, np.newaxis])  # g @ g of every g
        self.history["gradient_norm"] += np.sqrt(squares.ravel()).tolist()
        self._learning.add(mappings)

    def draw_no_conclusion(self) -> None:
        """Conclude nothing from the recorded gradients, which lag behind the objective's."""
        self._learning = LearningWatch(0)

    def record(self, t: int, w: FloatArray, step: float, gradient: FloatArray) -> None:
        """Append step and norm of the released gradient mapping of round t to the history."""
        self.history["step_size"].append(float(step))
        flat = gradient.ravel()
        self.history["gradient_norm"].append(math.sqrt(flat @ flat))
        self._learning.add(flat[np.newaxis])
        self.keep(w)
        if self.monitor is not None:
            self.history.setdefault("objective", []).append(self.monitor.value(w))
            if self.monitor.data.task != "regression":
                self.history.setdefault("accuracy", []).append(self.monitor.accuracy(w))
        callback = self.plan.arguments["callback"]
        if callback is not None:
            self._in_callback = True
            callback(t, self.ledger.releases[-1])
            self._in_callback = False

    def keep(self, w: FloatArray) -> None:
        """Keep the model after the recorded updates, which is returned where the next one fails."""
        if np.isfinite(w).all():
            self.kept = len(self.history["step_size"]), w.copy()

    @property
    def has_model(self) -> bool:
        """Whether a model is returned where the run fails now.

        What a callback raises is its caller's; what fails before the first model, among parties, of
        which each would return another model, and in an audit has no result.
        """
        alone = self.objective.data.party is None and self.stream.transcript is None
        return self.kept is not None and alone and not self._in_callback

    def ended_by(self, error: Exception) -> SolverResult:
        """Return the last model that was kept, with the certificate of all releases, or raise."""
        if self.kept is None or not self.has_model:
            raise error
        self.ended, w = error, self.kept[1]
        try:
            line = self.log_means if self.plan.recalibration_mu else recalibrate(self, w)
            return self._result(w, line)
        except Exception:
            raise error from None

    def result(
        self,
        w: FloatArray,
        noise: CoefficientNoise | None = None,
        inference: Inference | None = None,
    ) -> SolverResult:
        """Return the model w, recalibrated, with the certificate of everything in the ledger.

        `noise` is what is known of the noise in w by public numbers, `inference` its covariance.
        """
        if self.plan.recalibration_mu is not None and not self._has_first_model:
            raise RuntimeError(
                f"{self.plan.solver} must begin with run.first_model(), which makes the release "
                "that a part of the budget was set aside for"
            )
        self.keep(w)
        w, noise = with_line(self, w, noise)
        return self._result(w, recalibrate(self, w), noise, inference)

    @property
    def log_means(self) -> LogMeans | None:
        """The log of means at margins, which a log link has without any release."""
        loss = self.objective.loss
        return LogMeans.of(loss) if isinstance(loss, Loss) and loss.log_link else None

    def _result(
        self,
        w: FloatArray,
        calibration: Calibration | Temperature | None = None,
        noise: CoefficientNoise | None = None,
        inference: Inference | None = None,
    ) -> SolverResult:
        data, loss = self.objective.data, self.objective.loss
        fitted: dict[str, Any] = {
            "coef": w.copy() if isinstance(loss, Oracle) else w[: data.n_features].copy(),
            "intercept": float(w[-1]) if data.intercept else 0.0,
            "classes": data.classes,
            "transform": data.transform,
            "loss": loss.name,
            "oracle": loss if isinstance(loss, Oracle) else None,
            "feature_names": data.feature_names,
            "schema": data.schema,
            "calibration": calibration,
        }
        certificate = self._certificate(stored_model(**fitted) if np.isfinite(w).all() else None)
        if self.charge is not None and self.ended is None:
            self.charge.settle(certificate)
        total = time.perf_counter() - self._begin
        converged = self._has_converged()
        silent = converged or self.plan.budget is None or self.ended is not None
        finding = "" if silent else self._learning.finding()
        if calibration is not None:
            finding = calibration.finding
        return SolverResult(
            solver=self.plan.solver,
            converged=converged,
            n_rounds=self.updates,
            parameters=plain(dict(self.plan.arguments)),
            history=self.history,
            privacy=certificate,
            timing={**self._seconds, "python": total - sum(self._seconds.values()), "total": total},
            message=ending(self, certificate, finding),
            **fitted,
            noise=noise,
            inference=inference,
        )

    def _certificate(self, model: Mapping[str, Any] | None) -> Certificate:
        """Return the certificate of all releases so far, and of the model that follows from them.

        `model` has all that predicts (`stored_model`); None where it is not finite.
        """
        plan = self.plan
        certificate = Certificate.from_ledger(
            self.ledger,
            trust=plan.trust,
            noise=self.stream.kind,
            neighbours=plan.neighbours,
            declared=declared(self),
            claimed=plan.claimed if self.claim is None else self.claim,
            bound=self.bound,
            notes=(*self.notes, *notes_on_data(self), *(() if self.charge is None else (CHARGED,))),
            at_delta=None if plan.budget is None else plan.arguments["budget"].delta,
            model=None if model is None else model_digest(model),
            started=self.started,
            sources=sources(self),
        )
        return certificate if plan.persons is None else plan.persons.certificate(certificate)

    def _has_converged(self) -> bool:
        """Whether the last released gradients are small, and no error ended the run."""
        norms = self.history["gradient_norm"]
        small = len(norms) >= self.settled and max(norms[-self.settled :]) <= 1e-6
        return small and self.ended is None


def begin(
    declaration: "Declaration", data: SiloData, budget: Budget | None, arguments: dict[str, Any]
) -> Run:
    """Return a run of a solver before its first release, from all arguments."""
    refuse_other_than_silo_data(data)
    model = arguments["model"]
    if data.device is not None and not declaration.on_card and model is None:
        raise ValueError(
            f"data must be in the memory of the CPU in {declaration.name}, got records on a "
            "card, where gradient_descent, minibatch_sgd and others run (docs/gpu.md): use the "
            "SiloData before to_device"
        )
    if data.is_weighted:
        unread = f"{declaration.name}" if not declaration.weights else ""
        unread = "a model that is not linear" if model and not model.reads_weights else unread
        if arguments.get("operator") == "admm":
            unread = "the operator 'admm'"
        if unread:
            raise ValueError(
                f"data must have neither weight nor margin_offset in {unread}, got them: "
                "gradient_descent, local_newton, ridge and others read both"
            )
    if data.blocks is not None and model is not None:
        raise ValueError(
            f"data must be in memory for a model that is not linear ({type(model).__name__}), got "
            "records in blocks: give it a part that fits (docs/blocks.md)"
        )
    if data.blocks is not None and not declaration.in_blocks:
        raise ValueError(
            f"data must be in memory in {declaration.name}, which keeps or draws single records, "
            "got records in blocks: take gradient_descent, federated_gd, local_newton, "
            "double_noise_newton, ridge, newton_inference or objective_perturbation "
            "(docs/blocks.md)"
        )
    shared = ("penalty", "l2", "l1", "weights", "penalize_intercept", "public_size", "n_threads")
    loss = arguments["loss"] if model is None else model
    if isinstance(loss, Loss) and loss.log_link:
        data, loss = _with_given_targets(data, loss)
        arguments = {**arguments, "loss": loss}
    if is_auto(arguments["penalize_intercept"]) and (
        declaration.penalizes_intercept
        or arguments.get("accounting") == "last_iterate"  # which needs steps that contract
        or arguments["calibration"] == "paper"
    ):
        arguments = {**arguments, "penalize_intercept": True}
    objective = Objective(data, loss, **{name: arguments[name] for name in shared})
    arguments = {**arguments, "penalize_intercept": objective.penalize_intercept}
    if model is not None:
        arguments = {**arguments, "model": objective.loss}
    return Run(resolve(declaration, objective, budget, arguments), objective)


def _with_given_targets(data: SiloData, loss: Loss) -> tuple[SiloData, Loss]:
    """Return data and loss of a log link with the targets as given, at most their public bound.

    A loss of which nothing was stated has bounds of means that follow from that of the targets.
    """
    bound, middle = data.target_bound, data.transform.target_middle
    if math.isfinite(bound) and getattr(loss, "max_target", 0.0) == math.inf:
        if not bound + middle > 0.0:
            raise ValueError(
                f"target_bound must have an upper end above 0 with the loss {loss.name!r}, whose "
                f"targets are counts or costs, got {bound + middle}"
            )
        if isinstance(loss, LogLink) and loss == type(loss)():
            loss = loss.of_targets(bound + middle)
        else:
            loss = replace(cast(Any, loss), max_target=bound + middle)
    return data.with_given_targets(), loss


def _resolve_monitor(monitor: Any, objective: Objective) -> Objective | None:
    """Return the objective on the monitor's records, which is the run's own for "train"."""
    data = objective.data
    if monitor is None:
        return None
    if isinstance(monitor, str) and monitor == "train":
        if data.blocks is not None:
            raise ValueError(
                "monitor must be None or public records in memory, got 'train' of blocks"
            )
        return objective
    if not isinstance(monitor, SiloData):
        raise TypeError(
            "monitor must be None, 'train' or a SiloData of public records, got "
            f"{type(monitor).__name__}"
        )
    refuse_other_names(monitor.feature_names, data.feature_names, "monitor")
    if monitor.transform != data.transform:
        raise ValueError(
            "monitor must have the data's number of features, intercept, feature_range and "
            f"row_bound, got {monitor.transform} for {data.transform}"
        )
    # Empty arrays, of sparse rows without entries, share no memory.
    values: list[Any] = [X.data if is_sparse(X) else X for X in (monitor.X, data.X)]
    if monitor.blocks is not None:
        raise ValueError("monitor must hold records in memory, got records in blocks")
    if monitor is data or (data.blocks is None and np.may_share_memory(values[0], values[1])):
        raise ValueError(
            "monitor must hold public records, or be 'train', which the certificate names, got "
            "records in the memory of the training data"
        )
    labels: list[Any] = [monitor.classes, data.classes]
    if not np.array_equal(labels[0], labels[1]):
        raise ValueError(f"monitor must have the classes {data.classes}, got {monitor.classes}")
    return replace(objective, data=monitor, public_size=None)
