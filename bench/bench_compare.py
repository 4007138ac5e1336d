"""`dpkern compare` with its defaults, beside one run after the other in one process."""

import contextlib
import io
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

from bench.cases import Case, Contenders
from bench.speed import speed_test
from dpkern import Budget, SiloData, SolverResult, cli, solve
from dpkern.cli import _comparison


def in_turn(
    solver: str,
    data: SiloData,
    *,
    budgets: Sequence[Budget | None],
    draws: int,
    rng: Sequence[int],
    **arguments: Any,
) -> list[SolverResult]:
    """What solve_many returns, by as many calls of solve."""
    each = [budget for budget in budgets for _ in range(draws)]
    return [
        solve(solver, data, budget=budget, rng=seed, **arguments)
        for budget, seed in zip(each, rng, strict=True)
    ]


def printed(arguments: list[str]) -> int:
    """Compare without the printed lines; the return code."""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        return cli.main(["compare", "--no-plot", "--noise-seed", "0", *arguments])


def one_by_one(arguments: list[str]) -> int:
    one_core = mock.patch.object(_comparison, "usable_cores", return_value=1)
    with one_core, mock.patch.object(_comparison, "solve_many", in_turn):
        return printed(arguments)


def setup(arguments: list[str]) -> tuple[Contenders, None]:
    if printed(["--solvers", "gradient_descent:central", "--draws", "1"]) != 0:
        raise RuntimeError("dpkern compare fails")
    contenders = {"dpkern": partial(printed, arguments), "in turn": partial(one_by_one, arguments)}
    return contenders, None


def cases(quick: bool) -> list[Case]:
    arguments = ["--solvers", "gradient_descent", "--draws", "2"] if quick else []
    made = partial(setup, arguments)
    goals = {} if quick else {"in turn": 2.0}
    return [Case("dpkern compare", "defaults", made, 1, unit="table", goals=goals)]


test_speed = speed_test(cases, ["dpkern", "in turn"])
