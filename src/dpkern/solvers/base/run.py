"""One run of a solver: stream, ledger, clock, public history, certificate."""

import dataclasses
import math
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import positive
from dpkern.data import SiloData, is_sparse
from dpkern.models.losses import Custom
from dpkern.models.oracles import Oracle
from dpkern.privacy import Budget, Certificate, NoiseStream, split_budget
from dpkern.privacy.channel import SEEN_BY, Channel
from dpkern.privacy.ledger import Ledger
from dpkern.privacy.mechanisms.grids import MAX_RECORDS
from dpkern.solvers.base.learning import LearningWatch, NothingLearntWarning
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.outcome import declared, notes_on_data, plain
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.steps import auto_step, step_sizes

if TYPE_CHECKING:  # which makes runs
    from dpkern.solvers.base.declaration import Declaration

FloatArray = NDArray[np.float64]


class Clock:
    """Adds the seconds inside a `with` to seconds[part]; those of a failure are not counted."""

    __slots__ = ("_begin", "_part", "_seconds")

    def __init__(self, seconds: dict[str, float], part: str) -> None:
        self._seconds, self._part = seconds, part

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._seconds[self._part] += time.perf_counter() - self._begin


class Run(AbstractContextManager["Run"]):
    """What every solver does around its loop.

    Parameters
    ----------
    declaration : Declaration
        Of the solver.
    data : SiloData
        The records.
    budget : Budget or None
        Of the whole run.
    parameters : dict
        All other arguments by name, completed and checked by the declaration.

    Attributes
    ----------
    trust : str
        Who is believed.
    objective : Objective
        Of the run, in terms of public numbers.
    rounds, local_steps : int
        Released aggregations, and local steps between two of them; 1 where a solver has none.
    ledger : Ledger
        What was released.
    stream : NoiseStream
        Where all noise and all samples come from.
    history : dict of list
        One public number per round.

    Raises
    ------
    TypeError, ValueError
        When an argument does not fit the data or the others.
    """

    def __init__(
        self,
        declaration: "Declaration",
        data: SiloData,
        budget: Budget | None,
        parameters: dict[str, Any],
    ) -> None:
        if not isinstance(data, SiloData):
            raise TypeError(f"data must be a SiloData, got {type(data).__name__}")
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget or None, got {type(budget).__name__}")
        self.declaration, self.budget = declaration, budget
        self.parameters = {**parameters, "budget": budget}
        model = parameters["model"]
        shared = ("penalty", "l2", "l1", "weights", "penalize_intercept", "public_size")
        self.objective = Objective(
            data,
            parameters["loss"] if model is None else model,
            n_threads=parameters["n_threads"],
            **{name: parameters[name] for name in shared},
        )
        self.trust: str = parameters["trust"]
        self.neighbours: str = parameters["neighbours"]
        self.rounds: int = parameters.get("rounds", 1)
        self.local_steps: int = parameters.get("local_steps", 1)
        self._check_neighbours()
        self.monitor = _monitor(parameters["monitor"], self.objective)
        self.ledger = Ledger()
        self.history: dict[str, list[float]] = {"step_size": [], "gradient_norm": []}
        rng = parameters["rng"]
        self._owns_stream = not isinstance(rng, NoiseStream)
        self.stream = NoiseStream(rng) if self._owns_stream else rng
        self._learning = LearningWatch(self.rounds)
        self._seconds = {"kernels": 0.0, "noise": 0.0}
        self._begin = time.perf_counter()

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
                "clip must be given with a budget: the l2 bound of one record's gradient"
            )
        if clip == math.inf and self.budget is not None:
            raise ValueError("clip must be finite with a budget, got inf")
        return math.inf if clip is None else clip

    @property
    def sizes_are_hidden(self) -> bool:
        """Whether numbers of records are private: nothing may depend on them but exact sums."""
        return self.neighbours == "add_remove"

    def channel(self, trust: str | None = None) -> Channel:
        """Return where mechanisms release to: who sees it under `trust`, by default the run's."""
        seen_by = SEEN_BY[self.trust if trust is None else trust]
        return Channel(self.ledger, self.stream, seen_by, self.neighbours)

    def _check_neighbours(self) -> None:
        """Add/remove neighbours: what else a run needs for them.

        Raises
        ------
        ValueError
            When public_size is there without "add_remove", or is not with it; with "add_remove"
            under the papers' calibrations, for a custom loss, whose last bit may depend on where
            in a block a record stands, and from 2^31 records on.
        """
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

    def resolve(self, **values: float | FloatArray) -> None:
        """Put the numbers that arguments came to in their place; equal ones become one."""
        for name, value in values.items():
            numbers = np.unique(value)
            self.parameters[name] = float(numbers[0]) if numbers.size == 1 else value

    def step_sizes(self, theorem: float | None = None) -> FloatArray:
        """The argument `step_size` as public numbers, shape (rounds, local_steps).

        theorem: what "theorem" divides by beta, the smoothness of the objective, in methods whose
        theorem takes equal steps.
        """
        value, shape = self.parameters["step_size"], (self.rounds, self.local_steps)
        if theorem is not None and isinstance(value, str) and value == "theorem":
            beta = 1.0 / auto_step(self.objective, "step_size", "theorem")
            found = np.full(shape, theorem / beta)
        else:
            found = step_sizes(value, self.rounds, self.objective, self.local_steps)
        if isinstance(value, str) and np.all(found == found.flat[0]):
            self.resolve(step_size=found)
        return found

    def number_or_auto(self, name: str) -> float:
        """The argument `name`, a positive number or "auto", which stands for 1 / (L + l2)."""
        value = self.parameters[name]
        if isinstance(value, str):
            if value != "auto":
                raise ValueError(f"{name} must be a number or 'auto', got {value!r}")
            value = auto_step(self.objective, name)
        number = positive(name, value)
        self.parameters[name] = number
        return number

    def mu_of_one(self, releases: int) -> float | None:
        """Budget of one of so many equal releases; None without a budget."""
        if self.budget is None:
            return None
        return float(split_budget(self.budget.mu, (1.0,), (releases,))[0])

    @property
    def paper(self) -> bool:
        """Whether the noise is that of the paper's formula."""
        return bool(self.parameters["calibration"] == "paper")

    def needs_convex_loss(self, why: str) -> None:
        """Refuse a loss that is not convex.

        Raises
        ------
        ValueError
            Naming the loss, and why.
        """
        if not self.objective.phi.convex:
            raise ValueError(
                f"loss must be convex in {self.solver}, got {self.objective.phi.name!r}: {why}"
            )

    @property
    def claimed(self) -> dict[str, float] | None:
        """What a paper's calibration claims for this budget; None unless it was asked for."""
        if self.budget is None or not self.paper:
            return None
        if self.budget.epsilon is None or self.budget.delta is None:
            raise ValueError("calibration='paper' needs a budget given as epsilon and delta")
        return {"epsilon": self.budget.epsilon, "delta": self.budget.delta}

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
        if error is not None and len(self.ledger):
            # Whoever sees the failure has learnt something from these, and no certificate says so.
            error.add_note("released before the failure: " + "; ".join(map(str, self.ledger)))

    def clock(self, part: str) -> Clock:
        """Count the seconds inside as those of "kernels" or "noise"."""
        return Clock(self._seconds, part)

    def numbered_rounds(self) -> Iterator[int]:
        """0, 1, ..., rounds - 1, with a progress bar when asked for."""
        if not self.parameters["progress"]:
            return iter(range(self.rounds))
        from tqdm import tqdm

        return iter(tqdm(range(self.rounds), desc=self.solver, unit="round", leave=False))

    def record(self, t: int, w: FloatArray, step: float, gradient: FloatArray) -> None:
        """Keep the public numbers of round t: step and norm of the released gradient mapping."""
        self.history["step_size"].append(float(step))
        flat = gradient.ravel()
        self.history["gradient_norm"].append(math.sqrt(flat @ flat))
        self._learning.see(gradient)
        if self.monitor is not None:
            self.history.setdefault("objective", []).append(self.monitor.value(w))
            if self.monitor.data.task != "regression":
                self.history.setdefault("accuracy", []).append(self.monitor.accuracy(w))
        callback = self.parameters["callback"]
        if callback is not None:
            callback(t, self.ledger.releases[-1])

    def result(
        self,
        w: FloatArray,
        *,
        bound: str = "exact",
        notes: tuple[str, ...] = (),
        claimed: dict[str, float] | None = None,
        settled: int = 1,
    ) -> SolverResult:
        """The model w with the certificate of everything that the ledger holds.

        `claimed` are a paper's figures where they are no epsilon and delta; `settled` is how many
        of the last gradients must be small for a run that converged.
        """
        data, loss = self.objective.data, self.objective.loss
        certificate = Certificate.from_ledger(
            self.ledger,
            trust=self.trust,
            noise=self.stream.kind,
            neighbours=self.neighbours,
            declared=declared(self),
            claimed=self.claimed if claimed is None else claimed,
            bound=bound,
            notes=(*notes, *notes_on_data(self)),
            at_delta=None if self.budget is None else self.budget.delta,
        )
        total = time.perf_counter() - self._begin
        python = total - sum(self._seconds.values())
        norms = self.history["gradient_norm"]
        converged = len(norms) >= settled and max(norms[-settled:]) <= 1e-6
        return SolverResult(
            solver=self.solver,
            coef=w.copy() if isinstance(loss, Oracle) else w[: data.n_features].copy(),
            intercept=float(w[-1]) if data.intercept else 0.0,
            classes_=data.classes_,
            converged=converged,
            n_rounds=self.rounds,
            parameters={name: plain(value) for name, value in self.parameters.items()},
            history=self.history,
            privacy=certificate,
            timing={**self._seconds, "python": python, "total": total},
            message=self._message(converged),
            transform=data.transform,
            loss=loss.name,
            oracle=loss if isinstance(loss, Oracle) else None,
            feature_names=data.feature_names,
        )

    def _message(self, converged: bool) -> str:
        """How the run ended; warns where the releases say that nothing was learnt."""
        steps = "" if self.local_steps == 1 else f" of {self.local_steps} local steps"
        message = f"ran its {self.rounds} round{'s' if self.rounds > 1 else ''}{steps}"
        finding = "" if converged else self._learning.finding()
        if not finding:
            return message
        warnings.warn(f"{self.solver}: {finding}", NothingLearntWarning, stacklevel=5)
        return f"{message}; {finding}"


def _values(data: SiloData) -> Any:
    return data.X.data if is_sparse(data.X) else data.X


def _monitor(monitor: Any, objective: Objective) -> Objective | None:
    """The objective to keep in the history; the run's own where the training data are asked for."""
    data = objective.data
    if monitor is None:
        return None
    if isinstance(monitor, str) and monitor == "train":
        return objective
    if not isinstance(monitor, SiloData):
        raise TypeError("monitor must be None, 'train' or a SiloData of public records")
    if monitor.d != data.d:
        raise ValueError(f"monitor has {monitor.d} coordinates, the data {data.d}")
    if np.may_share_memory(_values(monitor), _values(data)):
        raise ValueError(
            "monitor shares memory with the training data; it must hold public records, or be "
            "'train', which the certificate names"
        )
    try:
        return dataclasses.replace(objective, data=monitor, public_size=None)
    except ValueError as error:
        raise ValueError(f"monitor does not fit: {error}") from None
