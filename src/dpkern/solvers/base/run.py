"""One run of a solver: noise stream, ledger, timing, public history and certificate."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from dpkern._numbers import positive
from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.models.losses import Custom
from dpkern.models.oracles import Oracle
from dpkern.privacy import Budget, Certificate, NoiseStream, split_budget
from dpkern.privacy.accountant.accountant import CHARGED, Accountant
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.report import release_lines
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.sensitivity.grids import MAX_RECORDS
from dpkern.solvers.base.charging import charge_of
from dpkern.solvers.base.clock import Clock
from dpkern.solvers.base.interrupts import CALL_ENTRIES, interruptible
from dpkern.solvers.base.learning import LearningWatch
from dpkern.solvers.base.lockstep import Request
from dpkern.solvers.base.monitor import monitored
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.outcome import declared, ending, notes_on_data, plain
from dpkern.solvers.base.persons import person_bound
from dpkern.solvers.base.reach import within_doubles
from dpkern.solvers.base.recalibration import Calibration, recalibrate, recalibration_share
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.settings import settled
from dpkern.solvers.base.sharing import shares_of
from dpkern.solvers.base.steps import auto_step, step_sizes
from dpkern.stream import PublicDraws

if TYPE_CHECKING:  # declaration imports this module
    from dpkern.solvers.base.declaration import Declaration


# Compiled rounds between two looks at signals: numbers in the models, beside the entries of the
# records that they read; and a few where others are waited for.
_CHUNK_NUMBERS, _ROUNDS_IN_LOCKSTEP = 1 << 19, 32


class Run(AbstractContextManager["Run"]):
    """Everything that every solver needs around its loop.

    `parameters` are all arguments but data and budget, completed and checked by the declaration.

    Attributes
    ----------
    objective : Objective
        Objective of the run.
    persons : PersonBound or None
        How people with several records are protected.
    budget : Budget or None
        Of one record, where persons have the given one by the group bound.
    rounds, local_steps : int
        Number of aggregations, and of local steps between two of them; 1 by default.
    updates : int
        Number of public models that follow from one another: rounds, unless a solver sets it.
    ledger : Ledger
        All releases so far.
    stream, public : NoiseStream
        Source of all noise and all samples; and of what is drawn at random and public.
    shares : Shares or None
        How silos share the noise of their sums; None where an aggregator adds it.
    history : dict of list
        One public number per update.
    bound, notes, claim, settled : str, tuple of str, dict or None, int
        What the solver's certificate says beside its releases, how it bounds them, a paper's claim
        that is not an epsilon and delta, and how many last gradients must be small for
        convergence.
    in_lockstep : bool
        Whether other runs on the same records are made at the same time.
    """

    in_lockstep = False

    def __init__(
        self,
        declaration: "Declaration",
        data: SiloData,
        budget: Budget | None,
        parameters: dict[str, Any],
    ) -> None:
        if not isinstance(data, SiloData):
            raise TypeError(f"data must be a SiloData, got {type(data).__name__}")
        if data.device is not None and not declaration.on_card and parameters["model"] is None:
            raise ValueError(
                f"data must be in the memory of the CPU in {declaration.name}, got records on a "
                "card, where gradient_descent, minibatch_sgd and others run (docs/gpu.md): use the "
                "SiloData before to_device"
            )
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(
                "budget must be dpkern.Budget(epsilon=..., delta=...) or None, got "
                f"{type(budget).__name__}"
            )
        self.declaration, self.parameters = declaration, {**parameters, "budget": budget}
        self.persons = persons = person_bound(declaration, data, budget, self.parameters)
        self.budget = budget if persons is None else persons.budget
        self.accountant: Accountant | None = parameters["accountant"]
        model = parameters["model"]
        shared = ("penalty", "l2", "l1", "weights", "penalize_intercept", "public_size")
        self.objective = Objective(
            data,
            parameters["loss"] if model is None else model,
            n_threads=parameters["n_threads"],
            **{name: parameters[name] for name in shared},
        )
        if declaration.penalties == "l2" and (self.objective.l1 or self.objective.other):
            given = "l1" if parameters["l1"] else "penalty"
            raise ValueError(f"{given} must be absent in {self.solver}, which takes l2 alone")
        self.trust: str = parameters["trust"]
        self.neighbours: str = parameters["neighbours"]
        self._check_neighbours()
        self.shares = shares_of(self)
        if budget is not None:
            budget.warn_of_few_records(self.objective.n)
        self.given_mu = math.inf if self.budget is None else self.budget.mu
        self.recalibration_mu: float | None = None
        of_settings = budget if persons is None else persons.budget_of_settings
        share = recalibration_share(self)
        self.parameters["recalibrate"] = share > 0.0
        if share > 0.0:
            shares, times = (1.0 - share, share), (1, 1)
            rest, self.recalibration_mu = split_budget(self.given_mu, shares, times)
            self.budget = of_settings = Budget(mu=rest)
        rule = declaration.settings
        self.parameters = settled(rule, self.objective, of_settings, self.parameters)
        self.rounds: int = self.parameters.get("rounds", 1)
        self.local_steps: int = self.parameters.get("local_steps", 1)
        self.updates = self.rounds
        self.monitor = monitored(parameters["monitor"], self.objective)
        self.charge = charge_of(self)
        self.ledger = Ledger(self._before_first_release)
        self.history: dict[str, list[float]] = {"step_size": [], "gradient_norm": []}
        rng = parameters["rng"]
        self._owns_stream = not isinstance(rng, NoiseStream)
        self.stream = NoiseStream(rng) if self._owns_stream else rng
        public = (self.stream if data.party is None else data.party).public
        self.public = self.stream if public is None else PublicDraws(public, self.stream)
        self.bound, self.notes, self.settled = "exact", cast(tuple[str, ...], ()), 1
        self.claim: dict[str, float] | None = None
        self.kept: tuple[int, FloatArray] | None = None
        self._in_callback, self.ended = False, cast(Exception | None, None)
        self._learning = LearningWatch(self.rounds, independent="refresh_every" not in parameters)
        self._seconds = {"kernels": 0.0, "noise": 0.0}
        self.start_clock()

    @property
    def solver(self) -> str:
        """Name of the solver."""
        return self.declaration.name

    @property
    def clip(self) -> float:
        """Clip norm of per-record gradients; infinite by default without a budget."""
        clip: float | None = self.parameters["clip"]
        if clip is None and self.budget is not None:
            raise ValueError(
                "clip must be given with a budget: the l2 bound of one record's gradient; 'auto' "
                "needs a linear model, a row_bound and a loss with a bounded second derivative"
            )
        if clip == math.inf and self.budget is not None:
            raise ValueError("clip must be finite with a budget, got inf")
        return math.inf if clip is None else clip

    @property
    def person_clip(self) -> float | None:
        """Clip norm of the sum of a person's clipped gradients; None: records are clipped alone."""
        return None if self.persons is None else self.persons.clip_of(self.clip)

    @property
    def sizes_are_hidden(self) -> bool:
        """Whether numbers of records are private, so that only exact sums may depend on them."""
        return self.neighbours == "add_remove"

    def channel(self, trust: str | None = None) -> Channel:
        """Return the channel of releases under a trust model, by default that of the run."""
        seen_by, party = SEEN_BY[self.trust if trust is None else trust], self.objective.data.party
        shares = self.shares if seen_by == SEEN_BY["central"] else None
        return Channel(self.ledger, self.stream, seen_by, self.neighbours, shares, party)

    def _check_neighbours(self) -> None:
        """Check the further conditions of add/remove neighbours."""
        if self.sizes_are_hidden == (self.objective.public_size is None):
            raise ValueError(
                "public_size must be given with neighbours='add_remove', and only then: numbers of "
                f"records that are not the data's own; got {self.parameters['public_size']!r} with "
                f"neighbours={self.neighbours!r}"
            )
        if not self.sizes_are_hidden:
            return
        if self.paper:
            raise ValueError("neighbours='add_remove' needs calibration='sound'")
        if isinstance(self.objective.loss, Custom):
            raise ValueError(
                "neighbours='add_remove' needs a loss of the table: what a custom one returns for "
                "a record may depend on those before it"
            )
        if self.objective.data.n >= MAX_RECORDS:
            raise ValueError("neighbours='add_remove' needs fewer than 2^31 records")

    @property
    def options(self) -> dict[str, Any]:
        """The solver's own arguments."""
        return {name: self.parameters[name] for name in self.declaration.options}

    def resolve(self, **values: float | FloatArray) -> None:
        """Replace arguments by their resolved numbers; an array of equal numbers becomes one."""
        for name, value in values.items():
            numbers = np.unique(value)
            self.parameters[name] = float(numbers[0]) if numbers.size == 1 else value

    def step_sizes(self, theorem: float | None = None) -> FloatArray:
        """Return the public step sizes, shape (updates, local_steps).

        If `theorem` is given, "theorem" means equal steps theorem / beta, beta being the smoothness
        of the objective.
        """
        value, shape = self.parameters["step_size"], (self.updates, self.local_steps)
        if theorem is not None and isinstance(value, str) and value == "theorem":
            beta = 1.0 / auto_step(self.objective, "step_size", "theorem")
            found = np.full(shape, theorem / beta)
        else:
            found = step_sizes(value, self.updates, self.objective, self.local_steps)
        if isinstance(value, str) and np.all(found == found.flat[0]):
            self.resolve(step_size=found)
        return within_doubles(found, self.objective, self.parameters)

    def number_or_auto(self, name: str) -> float:
        """Return the argument `name`, a positive number or "auto", which means 1 / (L + l2)."""
        value = self.parameters[name]
        if isinstance(value, str):
            if value != "auto":
                raise ValueError(f"{name} must be a number or 'auto', got {value!r}")
            value = auto_step(self.objective, name)
        self.parameters[name] = number = positive(name, value)
        return number

    def mu_of_one(self, releases: int) -> float | None:
        """Return the budget of one of so many equal releases; None without a budget."""
        if self.budget is None:
            return None
        return float(split_budget(self.budget.mu, (1.0,), (releases,))[0])

    @property
    def paper(self) -> bool:
        """Whether the noise is calibrated by the paper's formula."""
        return bool(self.parameters["calibration"] == "paper")

    def needs_convex_loss(self, why: str) -> None:
        """Raise ValueError for a loss that is not convex, with the reason `why`."""
        if not self.objective.phi.convex:
            raise ValueError(
                f"loss must be convex in {self.solver}, got {self.objective.phi.name!r}: {why}"
            )

    @property
    def claimed(self) -> dict[str, float] | None:
        """The guarantee that a paper's calibration claims; None for the sound one."""
        if self.budget is None or not self.paper:
            return None
        if self.budget.epsilon is None or self.budget.delta is None:
            raise ValueError("calibration='paper' needs a budget given as epsilon and delta")
        return {"epsilon": self.budget.epsilon, "delta": self.budget.delta}

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

    def start_clock(self) -> None:
        """Begin to measure the time of the run."""
        self._begin = time.perf_counter()

    async def sums(
        self, kernel: Callable[..., FloatArray], w: FloatArray, **how: Any
    ) -> FloatArray:
        """Return the sums of a kernel over the run's records at the models w.

        In lock-step the run waits here for the others (`dpkern.solvers.base.lockstep`).
        """
        return await self.computed(kernel, self.objective.data, w, **how)

    async def computed(
        self, kernel: Callable[..., FloatArray], *given: Any, **how: Any
    ) -> FloatArray:
        """Return the result of a kernel, for which the run waits in lock-step."""
        how["n_threads"] = self.objective.n_threads
        if not self.in_lockstep:
            with self.clock("kernels"):
                return interruptible(kernel, *given, **how)
        request, begin = Request(kernel, given, how), time.perf_counter()
        found = await request
        self._seconds["kernels"] += request.seconds
        self._begin += time.perf_counter() - begin - request.seconds
        return found

    def clock(self, part: str) -> Clock:
        """Return a context manager that adds its duration to "kernels" or "noise"."""
        return Clock(self._seconds, part)

    def numbered_rounds(self, done: int = 0) -> Iterator[int]:
        """Iterate over the updates done, ..., updates - 1, with a progress bar if requested."""
        with self._progress_bar(self.updates - done) as bar:
            for t in range(done, self.updates):
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
        rounds = max(1, min(rounds, _ROUNDS_IN_LOCKSTEP if self.in_lockstep else self.rounds))
        with self._progress_bar(len(steps)) as bar:
            for first in range(0, len(steps), rounds):
                part = steps[first : first + rounds]
                yield part
                if bar is not None:
                    bar.update(len(part))

    def _progress_bar(self, rounds: int) -> AbstractContextManager[Any]:
        """Return a progress bar of so many rounds as a context manager, or None in its place."""
        if not (self.parameters["progress"] and rounds) or sys.stderr is None:
            return nullcontext()
        from tqdm import tqdm

        return tqdm(total=rounds, desc=self.solver, unit="round", leave=False)

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at every round: a callback, a monitor or an audit."""
        watching = self.parameters["callback"], self.monitor, self.stream.transcript
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
        callback = self.parameters["callback"]
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
        (self.updates, w), self.ended = self.kept, error
        try:
            return self._result(w)
        except Exception:
            raise error from None

    def result(self, w: FloatArray) -> SolverResult:
        """Return the model w, recalibrated, with the certificate of everything in the ledger."""
        self.keep(w)
        return self._result(w, recalibrate(self, w))

    def _result(self, w: FloatArray, calibration: Calibration | None = None) -> SolverResult:
        data, loss = self.objective.data, self.objective.loss
        certificate = Certificate.from_ledger(
            self.ledger,
            trust=self.trust,
            noise=self.stream.kind,
            neighbours=self.neighbours,
            declared=declared(self),
            claimed=self.claimed if self.claim is None else self.claim,
            bound=self.bound,
            notes=(*self.notes, *notes_on_data(self), *(() if self.charge is None else (CHARGED,))),
            at_delta=None if self.budget is None else self.parameters["budget"].delta,
        )
        if self.persons is not None:
            certificate = self.persons.certificate(certificate)
        if self.charge is not None and self.ended is None:
            self.charge.settle(certificate)
        total = time.perf_counter() - self._begin
        norms = self.history["gradient_norm"]
        converged = len(norms) >= self.settled and max(norms[-self.settled :]) <= 1e-6
        converged = converged and self.ended is None
        finding = "" if converged or self.budget is None or self.ended else self._learning.finding()
        if calibration is not None:
            finding = calibration.finding
        return SolverResult(
            solver=self.solver,
            coef=w.copy() if isinstance(loss, Oracle) else w[: data.n_features].copy(),
            intercept=float(w[-1]) if data.intercept else 0.0,
            classes=data.classes,
            converged=converged,
            n_rounds=self.updates,
            parameters={name: plain(value) for name, value in self.parameters.items()},
            history=self.history,
            privacy=certificate,
            timing={**self._seconds, "python": total - sum(self._seconds.values()), "total": total},
            message=ending(self, certificate, finding),
            transform=data.transform,
            loss=loss.name,
            oracle=loss if isinstance(loss, Oracle) else None,
            feature_names=data.feature_names,
            schema=data.schema,
            calibration=calibration,
        )
