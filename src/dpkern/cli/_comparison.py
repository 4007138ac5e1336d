"""The runs of a comparison: several solvers over several budgets, on the same records."""

import argparse
import contextlib
import math
import statistics
import sys
import typing
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from dpkern._threads import resolve_threads, usable_cores
from dpkern.cli import _arguments, _output
from dpkern.cli._output import Line, one_line
from dpkern.data import SiloData
from dpkern.models.losses import LOSS_OF_TASK, get_loss
from dpkern.plotting import CompareRow
from dpkern.privacy import Budget, Certificate, compose_sequential
from dpkern.solvers import Objective, SolverResult, solve, solve_many

_USELESS = 100.0  # an epsilon of all runs together from which on it is not worth a line
_FEW = 8  # solvers and trust models that one process is done with before others have started


@dataclass(frozen=True)
class _Task:
    """A solver under a trust model, to run with several budgets."""

    solver: str
    trust: str
    budgets: Sequence[Budget | None]
    draws: int
    first: int  #: number of its first run
    rng: Sequence[int] | None
    parameters: dict[str, Any]

    @property
    def runs(self) -> int:
        return len(self.budgets) * self.draws


@dataclass
class _Ran:
    """What came of a task."""

    task: _Task
    rows: list[CompareRow] = field(default_factory=list)
    certificates: list[Certificate] = field(default_factory=list)
    warned: list[warnings.WarningMessage] = field(default_factory=list)
    error: Exception | None = None


@dataclass
class _Runner:
    """Runs solvers on the same training data, and scores them on the same test records."""

    data: SiloData
    test: tuple[Any, Any]
    loss: str
    penalty: Any
    minima: dict[Objective, float] = field(default_factory=dict)

    def run(self, task: _Task) -> _Ran:
        """Return a row of every budget, or what the solver raised; in any process."""
        ran = _Ran(task)
        with warnings.catch_warnings(record=True) as ran.warned:
            warnings.simplefilter("always", UserWarning)
            try:
                self._run(task, ran)
            except (ValueError, TypeError) as error:
                ran.error = error
        return ran

    def _run(self, task: _Task, ran: _Ran) -> None:
        how = {"draws": task.draws, "rng": task.rng, **task.parameters}
        results = solve_many(task.solver, self.data, budgets=task.budgets, **how)
        if task.budgets[0] is not None:  # spent, whatever scoring says
            ran.certificates = [result.privacy for result in results]
        for i, budget in enumerate(task.budgets):
            row = results[i * task.draws : (i + 1) * task.draws]
            scores = [_output.score(result, *self.test) for result in row]
            areas = [_output.area(result, *self.test) for result in row]
            known = [area for area in areas if area is not None]
            ran.rows.append(
                CompareRow(
                    solver=task.solver,
                    trust="-" if budget is None else task.trust,
                    epsilon=math.inf if budget is None else typing.cast(float, budget.epsilon),
                    score=statistics.fmean(scores),
                    score_se=_standard_error(scores),
                    gap=statistics.fmean(self._gap(result) for result in row),
                    seconds=statistics.fmean(result.timing["total"] for result in row),
                    area=_mean(areas),
                    area_se=_standard_error(known),
                    log_loss=_mean(_output.log_loss(result, *self.test) for result in row),
                )
            )

    def _gap(self, result: SolverResult) -> float:
        """Return J(w) - min J on the training data, which is not private."""
        parameters = result.parameters
        objective = Objective(
            self.data,
            get_loss(self.loss),
            penalty=self.penalty if parameters["penalty"] is not None else None,
            **{k: parameters[k] for k in ("l2", "l1", "weights", "penalize_intercept")},
        )
        if objective not in self.minima:
            self.minima[objective] = objective.minimum()[1]
        return objective.value(result.w) - self.minima[objective]


def _standard_error(scores: Sequence[float]) -> float:
    return _output.spread(scores) / math.sqrt(max(len(scores), 1))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


class Comparison:
    """The plan of a comparison, and what has run of it."""

    def __init__(
        self,
        data: SiloData,
        test: tuple[Any, Any],
        given: dict[str, Any],
        arguments: argparse.Namespace,
    ) -> None:
        self._data, self._arguments, self.draws = data, arguments, arguments.draws
        self.common: dict[str, Any] = {"loss": LOSS_OF_TASK[data.task]} | given
        self._runner = _Runner(data, test, self.common["loss"], given.get("penalty"))
        self._ran: list[_Ran] = []

    def _parameters(self, solver: str, trust: str) -> dict[str, Any]:
        settable = _arguments.settable(solver)
        return {k: v for k, v in self.common.items() if k in settable} | {"trust": trust}

    def plan(
        self, variants: dict[str, list[tuple[str, str]]], budgets: list[Budget]
    ) -> list[_Task]:
        """A row without noise, then one for every variant and budget; reads no record.

        A variant that refuses the task or a parameter is left out with a remark; where nothing is
        left of an entry that the user has named, or nothing at all, this is an error.
        """
        empty = without_records(self._data)
        able: dict[tuple[str, str], None] = {}
        remarks: dict[str, None] = {}
        for entry, pairs in variants.items():
            refusals: list[Exception] = []
            for solver, trust in pairs:
                try:
                    for budget in (None, *budgets):
                        _check(solver, empty, budget, self._parameters(solver, trust))
                except (ValueError, TypeError) as error:
                    refusals.append(error)
                    remarks[f"left out: {solver} under {trust} trust: {self._said(error)}"] = None
                else:
                    able[solver, trust] = None
            if len(refusals) == len(pairs) and self._arguments.solvers is not None:
                raise ValueError(f"--solvers {entry}: {one_line(refusals[0])}")
        for text in remarks:
            _output.remark(text)
        if not able:
            raise ValueError("no solver takes these data and parameters")
        tasks = [self._task(*next(iter(able)), [None], 1)]
        for solver, trust in able:
            first = sum(task.runs for task in tasks)
            tasks.append(self._task(solver, trust, budgets, self.draws, first))
        return tasks

    def _task(
        self, solver: str, trust: str, budgets: Sequence[Budget | None], draws: int, first: int = 0
    ) -> _Task:
        """Return a task whose runs have the numbers from `first` on, and so seeds of their own."""
        parameters, seed = self._parameters(solver, trust), self._arguments.noise_seed
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in parameters.items()}
        numbers = range(first, first + len(budgets) * draws)
        rng = None if seed is None else [seed + i for i in numbers]
        return _Task(solver, trust, budgets, draws, first, rng, parameters)

    def _said(self, error: Exception) -> str:
        return _arguments.in_options(one_line(error), self._arguments)

    def run(self, tasks: list[_Task]) -> None:
        """Run every task of the plan, and add its rows or a failure."""
        from joblib import Parallel, delayed
        from tqdm import tqdm

        # One process per core where kernels take one thread each.
        one_thread = resolve_threads(None, self._data.n * self._data.d) == 1
        jobs = min(usable_cores(), len(tasks)) if one_thread and len(tasks) > _FEW else 1
        parallel = Parallel(jobs, return_as="generator_unordered", batch_size=1)
        found = parallel(delayed(self._runner.run)(task) for task in tasks)
        total, interval = sum(task.runs for task in tasks), 0.1 if sys.stderr.isatty() else 5.0
        with tqdm(total=total, unit="run", leave=False, mininterval=interval) as bar:
            for ran in found:
                self._ran.append(ran)
                bar.set_description(f"{ran.task.solver}, {ran.task.trust}", refresh=False)
                bar.update(ran.task.runs)
                for one in {one.category: one for one in ran.warned}.values():
                    warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

    @property
    def _in_order(self) -> list[_Ran]:
        return sorted(self._ran, key=lambda ran: ran.task.first)

    @property
    def rows(self) -> list[CompareRow]:
        """The rows of the tasks that have ended, in the order of the plan."""
        return [row for ran in self._in_order for row in ran.rows]

    @property
    def failures(self) -> list[str]:
        """What the solvers raised."""
        return [
            f"{ran.task.solver} under {ran.task.trust} trust: "
            + "; ".join([self._said(ran.error), *getattr(ran.error, "__notes__", ())])
            for ran in self._in_order
            if ran.error is not None
        ]

    def privacy_lines(self) -> list[Line]:
        certificates = [one for ran in self._in_order for one in ran.certificates]
        runs = len(certificates)
        if not runs:
            return [("privacy", "no noisy run has ended")]
        together = compose_sequential(*certificates)
        delta = self._arguments.delta
        spent = f"together {_output.epsilon_text(together, delta)}"
        if together.epsilon(delta) > _USELESS:
            spent = "together they protect hardly anything: publish one run at most"
        lines = [
            ("privacy", "each run alone keeps the epsilon of its row;"),
            ("", f"the {runs} noisy runs read the same training records and compose:"),
            ("", spent),
            (
                "",
                "the row without noise, the training objective and its gap are non-private "
                "diagnostics,",
            ),
            ("", "and so is the test score about the test records: compare on data that allow it"),
        ]
        if together.noise != "os":
            lines.append(("noise", together.noise))
        return lines


class _Begun(Exception):
    pass


def _begun(*_: object) -> NoReturn:
    raise _Begun


def _check(solver: str, data: SiloData, budget: Budget | None, parameters: dict[str, Any]) -> None:
    """Raise the errors of a run before its second round; `data` are `without_records`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(_Begun):
            solve(solver, data, budget=budget, rng=0, callback=_begun, **parameters)


def without_records(data: SiloData) -> SiloData:
    """Return data with the public parameters of `data` and zero rows."""
    from scipy.sparse import csr_array

    y = np.zeros(data.n) if data.task == "regression" else np.resize([-1.0, 1.0], data.n)
    return SiloData(
        csr_array((data.n, data.n_features), dtype=data.X.dtype),
        y,
        data.offsets,
        intercept=data.intercept,
        row_bound=None if math.isinf(data.row_bound) else data.row_bound,
        feature_range=data.feature_range,
        task=data.task,
    )
