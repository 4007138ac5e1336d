"""One run of a solver: stream, ledger, clock, public history, certificate."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dpkern._csr import is_sparse
from dpkern._numbers import count, positive
from dpkern.data import SiloData
from dpkern.losses import Custom, Loss, get_loss
from dpkern.oracles import MLP, Oracle
from dpkern.privacy import Budget, Certificate, NoiseStream, Release, split_budget
from dpkern.privacy.accounting import WITHOUT_REPLACEMENT
from dpkern.privacy.channel import SEEN_BY, Channel
from dpkern.privacy.ledger import Ledger
from dpkern.privacy.mechanisms.grids import MAX_RECORDS
from dpkern.regularizers import Regularizer
from dpkern.solvers._objective import Objective, auto_step
from dpkern.solvers._result import SolverResult

FloatArray = NDArray[np.float64]

_DECLARED = (
    *("loss", "l2", "l1", "regularizer", "rounds", "local_steps", "step_size", "weights"),
    *("penalize_intercept", "hess_clip", "max_step", "floor", "variant"),
    *("mode", "users", "prox_step", "relaxation", "participation", "max_participations", "graph"),
    *("operator", "blocks", "activation"),
    *("sampling", "batch_size", "refresh_every", "restarts", "returns", "noise"),
)

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
Callback = Callable[[int, Release], object]
Monitor = SiloData | Literal["train"] | None


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
    solver : str
        Name in the SOLVERS table.
    data : SiloData
        The records.
    parameters : dict
        All keyword arguments of the solver. Read here: loss, l2, l1 and regularizer (none where a
        solver has none), weights, penalize_intercept, budget, clip, rounds, local_steps (1 where a
        solver has none), neighbours, public_size (none where a solver has none), rng, n_threads,
        progress, callback, monitor. The others are kept for the result.
    needs_clip : bool
        Whether a clip norm is needed with a budget.
    oracles : bool
        Whether the loss may be an Oracle.

    Raises
    ------
    TypeError, ValueError
        When one of them is not what the solvers document.
    """

    def __init__(
        self,
        solver: str,
        data: SiloData,
        parameters: dict[str, Any],
        *,
        needs_clip: bool = True,
        oracles: bool = False,
    ) -> None:
        if not isinstance(data, SiloData):
            raise TypeError(f"data must be a SiloData, got {type(data).__name__}")
        self.solver, self.parameters = solver, parameters
        shared = ("l2", "weights", "penalize_intercept", "n_threads")
        self.objective = Objective(
            data=data,
            loss=_loss(solver, parameters["loss"], oracles),
            l1=parameters.get("l1", 0.0),
            regularizer=parameters.get("regularizer"),
            public_size=parameters.get("public_size"),
            **{k: parameters[k] for k in shared},
        )
        self.budget = _budget(parameters["budget"])
        self.clip = _clip(parameters["clip"], self.budget if needs_clip else None)
        self.rounds = count("rounds", parameters.get("rounds", 1))
        self.local_steps = count("local_steps", parameters.get("local_steps", 1))
        self._monitor = _monitor(parameters["monitor"], self.objective)
        self._progress, self._callback = parameters["progress"], parameters["callback"]
        if self._callback is not None and not callable(self._callback):
            raise TypeError(
                f"callback must be None or callable, got {type(self._callback).__name__}"
            )
        self.ledger = Ledger()
        self.history: dict[str, list[float]] = {"step_size": [], "gradient_norm": []}
        rng = parameters["rng"]
        self._owns_stream = not isinstance(rng, NoiseStream)
        self.stream = NoiseStream(rng) if self._owns_stream else rng
        self._seconds = {"kernels": 0.0, "noise": 0.0}
        self._begin = time.perf_counter()

    def choose(self, name: str, *allowed: str) -> str:
        """The argument `name`, which must be one of `allowed`."""
        value = self.parameters[name]
        if value not in allowed:
            options = " or ".join(map(repr, allowed))
            raise ValueError(f"{name} must be {options} in {self.solver}, got {value!r}")
        return str(value)

    @property
    def neighbours(self) -> str:
        """What neighbouring data sets differ in."""
        return str(self.parameters["neighbours"])

    @property
    def sizes_are_hidden(self) -> bool:
        """Whether numbers of records are private: nothing may depend on them but exact sums."""
        return self.neighbours == "add_remove"

    def choose_neighbours(self) -> None:
        """Check neighbours and public_size, for a solver that releases sums over records only.

        Raises
        ------
        ValueError
            When public_size is there without "add_remove", or is not with it; with "add_remove"
            under the papers' calibrations, for a custom loss, whose last bit may depend on where
            in a block a record stands, and from 2^31 records on.
        """
        self.choose("neighbours", "replace_one", "add_remove")
        if self.sizes_are_hidden == (self.objective.public_size is None):
            raise ValueError(
                "public_size goes with neighbours='add_remove', which needs it: numbers of records "
                f"that are not the data's own; got {self.parameters['public_size']!r} with "
                f"neighbours={self.neighbours!r}"
            )
        if not self.sizes_are_hidden:
            return
        if self.parameters["calibration"] == "paper":
            raise ValueError("neighbours='add_remove' needs calibration='sound'")
        if isinstance(self.objective.loss, Custom):
            raise ValueError(
                "neighbours='add_remove' needs a loss of the table: what a custom one returns for "
                "a record may depend on those before it"
            )
        if self.objective.data.n >= MAX_RECORDS:
            raise ValueError("neighbours='add_remove' needs fewer than 2^31 records")

    def channel(self, trust: str) -> Channel:
        """Where the mechanisms of this run release to those who see it under `trust`."""
        return Channel(self.ledger, self.stream, SEEN_BY[trust], self.neighbours)

    def resolve(self, **values: float | FloatArray) -> None:
        """Put the numbers that arguments came to in their place; equal ones become one."""
        for name, value in values.items():
            numbers = np.unique(value)
            self.parameters[name] = float(numbers[0]) if numbers.size == 1 else value

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

    def only_under(self, trust: str, **argument: str) -> None:
        """Refuse a value of an argument that makes sense under one trust only."""
        ((name, value),) = argument.items()
        if self.parameters[name] == value and self.parameters["trust"] != trust:
            raise ValueError(f"{name}={value!r} needs trust={trust!r} in {self.solver}")

    def mu_of_one(self, releases: int) -> float | None:
        """Budget of one of so many equal releases; None without a budget."""
        if self.budget is None:
            return None
        return float(split_budget(self.budget.mu, (1.0,), (releases,))[0])

    @property
    def claimed(self) -> dict[str, float] | None:
        """What a paper's calibration claims for this budget; None unless it was asked for."""
        if self.budget is None or self.parameters["calibration"] != "paper":
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
        if not self._progress:
            return iter(range(self.rounds))
        from tqdm import tqdm

        return iter(tqdm(range(self.rounds), desc=self.solver, unit="round", leave=False))

    def record(self, t: int, w: FloatArray, step: float, gradient: FloatArray) -> None:
        """Keep the public numbers of round t: step and norm of the released gradient mapping."""
        self.history["step_size"].append(float(step))
        flat = gradient.ravel()
        self.history["gradient_norm"].append(math.sqrt(flat @ flat))
        if self._monitor is not None:
            self.history.setdefault("objective", []).append(self._monitor.value(w))
            if self._monitor.data.task != "regression":
                self.history.setdefault("accuracy", []).append(self._monitor.accuracy(w))
        if self._callback is not None:
            self._callback(t, self.ledger.releases[-1])

    def result(
        self,
        w: FloatArray,
        *,
        trust: str,
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
        if self.sizes_are_hidden and self.budget is not None:
            notes = (*notes, HIDDEN_SIZES)
            if data.partition != "given":
                notes = (*notes, SPLIT.format(repr(data.partition)))
        if data.partition_note is not None:
            notes = (*notes, data.partition_note)
        if isinstance(loss, Oracle) and not isinstance(loss, MLP) and self.budget is not None:
            moves = self.sizes_are_hidden or self.parameters["sampling"] == WITHOUT_REPLACEMENT
            notes = (
                *notes,
                OF_ITS_OWN.format(
                    loss.name,
                    *(("", ", nor on its place in the batch") if moves else (", its place", "")),
                ),
            )
        if self._monitor is self.objective:
            notes = (
                *notes,
                "what history holds of the monitor is a non-private diagnostic on training data",
            )
        certificate = Certificate.from_ledger(
            self.ledger,
            trust=trust,
            noise=self.stream.kind,
            neighbours=self.neighbours,
            declared=self._declared(),
            claimed=self.claimed if claimed is None else claimed,
            bound=bound,
            notes=notes,
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
            message=self._message(),
            transform=data.transform,
            loss=loss.name,
            oracle=loss if isinstance(loss, Oracle) else None,
        )

    def _message(self) -> str:
        steps = "" if self.local_steps == 1 else f" of {self.local_steps} local steps"
        return f"ran its {self.rounds} round{'s' if self.rounds > 1 else ''}{steps}"

    def _declared(self) -> dict[str, Any]:
        """What the guarantee takes as public: it was not computed from the records."""
        data, sizes = self.objective.data, self.objective.public_size
        monitor = None
        if self._monitor is not None:
            public = self._monitor is not self.objective
            monitor = f"{self._monitor.data.n} public records" if public else "train"
        declared = {k: plain(self.parameters[k]) for k in _DECLARED if k in self.parameters}
        return declared | {
            "clip": self.clip,
            "sizes": plain(data.sizes if sizes is None else sizes),
            "n_features": data.n_features,
            "partition": data.partition,
            "task": data.task,
            "intercept": data.intercept,
            "row_bound": data.row_bound,
            "feature_range": data.feature_range is not None,
            "sparse": is_sparse(data.X),
            "labels": None if data.classes_ is None else [str(c) for c in data.classes_],
            "monitor": monitor,
        }


def plain(value: Any) -> Any:
    """An argument as a result and a certificate keep it: numbers, strings, lists, dicts."""
    if isinstance(value, Loss | Oracle):
        return value.declaration
    if isinstance(value, Regularizer):
        return {"name": value.name, **{k: plain(v) for k, v in value.parameters.items()}}
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


def _loss(solver: str, loss: Any, oracles: bool) -> Loss | Oracle:
    if not isinstance(loss, Oracle):
        return get_loss(loss)
    if not oracles:
        raise TypeError(f"loss is the model {loss.name!r}; {solver} is for linear models")
    return loss


def _budget(budget: Any) -> Budget | None:
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget or None, got {type(budget).__name__}")
    return budget


def _clip(clip: Any, budget: Budget | None) -> float:
    if clip is None:
        if budget is not None:
            raise ValueError("clip is needed with a budget: the l2 bound of one record's gradient")
        return math.inf
    return positive("clip", clip, or_infinite=budget is None)


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
