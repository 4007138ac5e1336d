"""Many runs of one solver on the same records, in lock-step."""

import inspect
import itertools
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern._numbers import aligned, count, figure, rounded_up
from dpkern._typing import FloatArray
from dpkern.data import SiloData
from dpkern.privacy import Budget, Certificate, compose_sequential
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.solvers.base.backends import Request, answer
from dpkern.solvers.base.declaration import Solver
from dpkern.solvers.base.outcome import plain
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run, begin


@dataclass(frozen=True, eq=False)
class Results(Sequence[SolverResult]):
    """The results of `dpkern.solve_many`: a sequence of results, and a table of their settings.

    Attributes
    ----------
    settings : tuple of dict
        The budget, the arguments that vary, the number of the draw and the seed of every run.
    results : tuple of SolverResult
        The result of every run, each with a certificate of its own.
    """

    settings: tuple[dict[str, Any], ...]
    results: tuple[SolverResult, ...]

    @overload
    def __getitem__(self, i: int) -> SolverResult: ...
    @overload
    def __getitem__(self, i: slice) -> "Results": ...
    def __getitem__(self, i: int | slice) -> "SolverResult | Results":
        if isinstance(i, slice):
            return Results(self.settings[i], self.results[i])
        return self.results[i]

    def __len__(self) -> int:
        return len(self.results)

    @cached_property
    def privacy(self) -> Certificate:
        """The certificate of all runs together, which is what releasing all of them costs."""
        return compose_sequential(*(result.privacy for result in self.results))

    def scores(self, X: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Return `SolverResult.score` of every run on these records."""
        return np.array([result.score(X, y) for result in self.results])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary per run: its settings in plain values, and its "result"."""
        return [
            {name: plain(value) for name, value in row.items()} | {"result": result}
            for row, result in zip(self.settings, self.results, strict=True)
        ]

    def __str__(self) -> str:
        rows = [{**row, "rounds": r.n_rounds} for row, r in zip(self.settings, self, strict=True)]
        shown = [name for name in (rows or [{}])[0] if any(row[name] is not None for row in rows)]
        lines = aligned([shown, *([figure(row[name]) for name in shown] for row in rows)])
        return "\n".join([*lines, "", self._cost()])

    __repr__ = __str__

    def _cost(self) -> str:
        if not self:
            return "0 runs"
        together, runs = self.privacy, f"{len(self)} runs"
        if not together.states_something:
            return f"{runs}: together they certify nothing"
        delta = together.stated_delta or 1e-6
        most = "" if together.bound == "exact" else "at most "
        seeded = "" if together.noise == "os" else f" ({together.noise})"
        # A row's budget is no guarantee where a paper's calibration claims it.
        return (
            f"{runs}: each alone has the guarantee of its certificate; releasing all of them costs "
            f"{most}epsilon {rounded_up(together.epsilon(delta), 6)} at delta {delta:g}{seeded}"
        )


def solve_many(
    solver: Solver,
    data: SiloData,
    *,
    budgets: Budget | Sequence[Budget | None] | None,
    draws: int = 1,
    rng: int | Sequence[int] | None = None,
    **arguments: Any,
) -> Results:
    """Run a solver many times on the same records, in fewer passes over them.

    All runs advance in lock-step, and gradients at up to 128 models, 32 of more than 1024
    coordinates, are computed in one pass over the records, as are the Hessians of sparse records at
    up to 8 models of at most 2048 coordinates. This serves sums of linear models over all records
    with a finite clip norm: released gradients, and the Hessians of `local_newton`, whose
    directions are computed for several runs in parallel. Sampled batches, hidden local steps,
    differences of gradients, the sweeps of `admm`, other models and custom losses are computed for
    each run by itself.

    Parameters
    ----------
    name : str
        The solver; "auto" takes the one that suits the trust model.
    data : SiloData
        N records in m silos.
    budgets : Budget, None or sequence of these
        Budgets of one run.
    draws : int
        Number of runs with each combination of settings.
    rng : int, sequence of int or None
        None is the operating system's entropy. An int is the seed of a seed for every run; a
        sequence holds one seed for every run.
    **arguments
        As in `solve`. An argument that is a list varies: there is a run for every combination of
        the values of all lists. One value that is a sequence, such as the step size of every round,
        is a tuple or an array. A callback and a progress bar are not offered.

    Returns
    -------
    results : Results
        One result per run, budgets varying slowest and draws fastest. Every result, with its
        certificate, is the one that `solve` gives with the same seed; `results.privacy` is the
        certificate of all of them together, since each run reads the same records.

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; arguments are checked before any release.
        An error after that has notes of what every run had released, those included that ended.

    Examples
    --------
    >>> runs = dpkern.solve_many(
    ...     "gradient_descent", data, clip=[0.5, 1.0], draws=3,
    ...     budgets=[dpkern.Budget(epsilon=e, delta=1e-5) for e in (0.5, 1.0)],
    ... )
    >>> print(runs)
    """
    for name in ("callback", "progress"):
        if arguments.get(name):
            raise TypeError(f"{name} must be left out in solve_many, whose runs are simultaneous")
    if isinstance(arguments.get("accountant"), list):
        raise TypeError("accountant must be one Accountant for all runs, got a list")
    each = list(budgets) if isinstance(budgets, Sequence) else [budgets]
    varying = {name: value for name, value in arguments.items() if isinstance(value, list)}
    for name, values in {"budgets": each, **varying}.items():
        if not values:
            raise ValueError(f"{name} must hold at least one value, got none")
    settings = [
        {**_stated(budget), **dict(zip(varying, values, strict=True)), "draw": draw}
        for budget, *values, draw in itertools.product(
            each, *varying.values(), range(count("draws", draws))
        )
    ]
    chosen = [row for row in each for _ in range(len(settings) // len(each))]
    for row, seed in zip(settings, _seeds(rng, len(settings)), strict=True):
        row["rng"] = seed
    declaration = solver.declaration
    with ExitStack() as stack:
        runs = []
        for row, budget in zip(settings, chosen, strict=True):
            own = {name: row[name] for name in (*varying, "rng")}
            parameters = declaration.complete({**arguments, **own})
            run = stack.enter_context(begin(declaration, data, budget, parameters))
            run.in_lockstep = True
            runs.append((run, solver.algorithm(run, **run.plan.options)))
            stack.callback(runs[-1][1].close)
        for run, _ in runs:
            if run.charge is not None:  # the first release charges all of them, or none
                run.charge.together = [other.charge for other, _ in runs if other.charge]
        try:
            return Results(tuple(settings), tuple(_finish_together(runs)))
        except BaseException as error:
            released = Counter(run.released for run, _ in runs if run.released)
            for text, times in released.items():
                error.add_note(f"{text}, in each of {times} of {len(runs)} runs")
            raise


def _stated(budget: Budget | None) -> dict[str, float | None]:
    """Return a budget as it was stated."""
    check_budget(budget, name="budgets", or_none=True)
    if budget is None:
        return {"epsilon": None, "delta": None, "mu": None}
    given = budget.epsilon is not None
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "mu": None if given else budget.mu,
    }


def _seeds(rng: object, runs: int) -> Iterator[int | None]:
    """Return the seed of every run."""
    if rng is None:
        return itertools.repeat(None, runs)
    if isinstance(rng, Sequence | np.ndarray):
        if len(rng) != runs:
            raise ValueError(f"rng must hold one seed per run, {runs}, got {len(rng)}")
        return iter([count("rng", seed, least=0) for seed in rng])
    seed = count("rng", rng, least=0)
    states = (np.random.SeedSequence([seed, i]) for i in range(runs))
    return (int(state.generate_state(1, np.uint64)[0]) for state in states)


def many_signature() -> inspect.Signature:
    """Return the signature of `dpkern.solve_many`, which takes the name of the solver."""
    solver, *others = inspect.signature(solve_many).parameters.values()
    return inspect.Signature([solver.replace(name="name", annotation=str), *others])


def _finish_together(
    runs: Sequence[tuple[Run, Coroutine[Request, FloatArray | None, SolverResult]]],
) -> list[SolverResult]:
    """Return the results of runs, which all advance until each asks for a sum.

    Those with fewer rounds end earlier.
    """
    results: dict[int, SolverResult] = {}
    waiting: dict[int, Request] = {}

    def advance(i: int, found: FloatArray | None) -> None:
        run, algorithm = runs[i]
        try:
            if found is None:
                run.start_clock()
            waiting[i] = algorithm.send(found)
        except StopIteration as stop:
            results[i] = stop.value
        except Exception as error:
            results[i] = run.ended_by(error)

    def serve(batch: list[int]) -> None:
        requests = [waiting.pop(i) for i in batch]
        try:
            found = dict(zip(batch, answer(requests), strict=True))
        except Exception as error:
            if not all(runs[i][0].has_model for i in batch):
                raise  # and no run says that it returns a model
            results.update({i: runs[i][0].ended_by(error) for i in batch})
            return
        for i in batch:
            advance(i, found.pop(i))
        # The sums of a pass are used before the next one, which limits how many are in memory.
        own = {i: waiting[i] for i in batch if i in waiting and not waiting[i].reads_records}
        for part in _passes(own):
            serve(part)

    for i in range(len(runs)):
        advance(i, None)
    while waiting:
        for batch in _passes(waiting):
            serve(batch)
    return [results[i] for i in range(len(runs))]


def _passes(waiting: dict[int, Request]) -> list[list[int]]:
    """Return the requests of every pass over the records."""
    passes: list[list[int]] = []
    kinds: dict[object, list[int]] = {}
    for i, request in waiting.items():
        kind = request.kind
        if kind is None:
            passes.append([i])
            continue
        batch = kinds.get(kind, [])
        if not batch or len(batch) == request.most:
            batch = kinds[kind] = []
            passes.append(batch)
        batch.append(i)
    return passes
