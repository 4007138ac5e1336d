"""python -m bench.utility leaves cells and a page that agree, and goes on where it was."""

import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import dpkern as dpk
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared

pytestmark = pytest.mark.docs

SOLVER, EPSILON = "gradient_descent", "1"


@pytest.fixture
def bench(source_tree, monkeypatch):
    monkeypatch.syspath_prepend(str(source_tree))
    return lambda name: importlib.import_module(f"bench.{name}")


@pytest.fixture(scope="module")
def utility(source_tree, tmp_path_factory):
    """Run the command on the set that needs no file; the folder, and a function that runs it."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("utility")
    environment = {k: v for k, v in os.environ.items() if k != "DPKERN_DATA"}

    def run(draws, *arguments):
        command = [sys.executable, "-m", "bench.utility", "--sets", "wdbc", "--solvers", SOLVER]
        command += ["--epsilons", EPSILON, "--draws", draws, "--out", folder / "cells"]
        run = subprocess.run(
            [*command, "--page", folder / "utility.md", *arguments],
            cwd=source_tree,
            env=environment | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    return folder, run, run("3")


def cells(folder, kind):
    lines = (folder / "cells" / f"{kind}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def numbers(folder, kind):
    return json.loads((folder / "figures" / "utility.json").read_text())[kind]


def test_the_numbers_and_the_page_show_the_cells(utility):
    folder, _, _ = utility
    (auto,), (tuned,), (facts,) = (cells(folder, kind) for kind in ("auto", "tuned", "set"))
    page = (folder / "utility.md").read_text()
    assert (folder / "figures" / "utility.png").read_bytes().startswith(b"\x89PNG")
    assert f" {100 * auto['accuracy']:.1f} / {100 * tuned['accuracy']:.1f} |" in page
    assert f"| {100 * facts['majority']:.1f} |" in page
    assert f"{100 * (tuned['accuracy'] - auto['accuracy']):.1f} at worst" in page
    (shown,) = numbers(folder, "auto")
    assert all(shown[name] == pytest.approx(auto[name], rel=1e-3) for name in ("gap", "error"))
    assert facts["no_privacy"] > tuned["accuracy"] > facts["majority"]
    assert all(len(line) <= 88 for line in page.splitlines() if not line.startswith("|"))


def test_cells_that_are_there_are_not_computed_again_unless_more_draws_are_wanted(utility):
    folder, run, said = utility
    assert said.count("wdbc gradient_descent 1 ") == 4
    assert "gradient_descent" not in run("3")
    assert run("4").count("wdbc gradient_descent 1 ") == 4
    assert [row["draws"] for row in cells(folder, "auto")] == [3, 4]


def test_a_rival_that_is_not_installed_is_left_out(utility):
    folder, run, _ = utility
    said = run("3", "--rival", f"diffprivlib={sys.executable}")
    assert "diffprivlib failed" in said
    assert not numbers(folder, "rival")
    assert "were not measured here" in (folder / "utility.md").read_text()


def test_accuracies_are_those_of_the_results(bench):
    it = bench("utility_sets").problem("synthetic")
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    runs = dpk.solve_many(SOLVER, it.data, budgets=budget, draws=5, rng=0)
    lines = [result.calibration for result in runs]
    assert None not in lines
    found = it.accuracies(np.array([result.w for result in runs]), lines)
    np.testing.assert_allclose(found, runs.scores(it.task.X_test, it.task.y_test), rtol=1e-14)


def test_every_solver_has_a_grid_of_at_least_100_settings_in_units_of_public_numbers(bench):
    grids = bench("utility_grids")
    assert set(grids.GRIDS) == set(compared(SOLVERS))
    for grid in grids.GRIDS.values():
        each = grids.settings(
            grids.in_units(grid, gradient=2.0, smoothness=4.0, record=0.1, epsilon=1.0)
        )
        assert len(each) >= 100
        assert {row["clip"] for row in each} == {2.0 * share for share in grid["clip"]}
        for step in {"step_size", "prox_step"} & grid.keys():
            assert {row[step] for row in each} == {x / 4.0 for x in grid[step]}


def test_what_is_reported_of_tuned_settings_are_fresh_draws(bench, monkeypatch):
    """With scores that are noise alone, the best mean is above 1/2 and the fresh one is not."""
    module, rng = bench("utility"), np.random.default_rng(0)
    calls = []

    def noise(self, draws, **arguments):
        lists = [v for v in arguments.values() if isinstance(v, list)]
        calls.append((draws, arguments))
        return [], None, 0.5 + 0.1 * rng.standard_normal(draws * int(np.prod([*map(len, lists)])))

    monkeypatch.setattr(module.Runs, "__call__", noise)
    cell = module.Runs("wdbc", SOLVER, 1.0).tuned(40)
    assert cell["selected"] > 0.51
    assert abs(cell["accuracy"] - 0.5) < 4 * cell["error"]
    assert calls[-1] == (40, cell["settings"])


def cell_of(bench, name, solver, epsilon, excess, error=1e-4, d=30, x=100.0):
    return bench("utility_fit").Measured(name, solver, epsilon, d, x, excess, error)


def test_the_fit_finds_the_constants_that_made_the_cells(bench):
    fit, rng = bench("utility_fit"), np.random.default_rng(0)
    true = {"gradient_descent": (0.3, 0.8), "ridge": (0.05, 0.5)}
    cells = []
    for solver, constants in true.items():
        for k in range(40):
            d, x = int(rng.integers(5, 200)), float(np.exp(rng.uniform(4.0, 9.0)))
            excess = fit.excess_risk(d, x, constants)
            excess *= 20.0 if k < 4 else np.exp(0.02 * rng.standard_normal())  # outliers
            cells.append(cell_of(bench, "a9a", solver, 1.0, excess, 1e-6, d, x))
    found = fit.fit(cells)
    assert found.keys() == true.keys()
    for solver, constants in true.items():
        assert found[solver] == pytest.approx(constants, rel=0.15)
    assert fit.share(fit.predictions(cells, found)) == pytest.approx(72 / 80)
    assert fit.share(fit.predictions(cells, dict.fromkeys(true, (50.0, 0.8)))) < 0.2


def test_a_solver_without_constants_is_in_no_prediction(bench, monkeypatch):
    fit, solvers = bench("utility_fit"), dict(bench("utility_fit").SOLVERS)
    solvers["ridge"] = SimpleNamespace(declaration=SimpleNamespace(estimates=False, error=None))
    monkeypatch.setattr(fit, "SOLVERS", solvers)
    cells = [cell_of(bench, "a9a", solver, 1.0, 0.03) for solver in ("ridge", SOLVER)]
    assert [cell for cell, _ in fit.predictions(cells, fit.declared("error"))] == cells[1:]


def test_the_fit_finds_passes_and_seconds_of_python(bench):
    fit = bench("utility_fit")
    true = {"gradient_descent": (1.5, 20.0), "local_newton": (2.0, 300.0), "prox_sgd": (9.0, 50.0)}
    facts = {
        "small": {"n": 500, "d": 10},
        "wide": {"n": 900, "d": 90},
        "long": {"n": 90_000, "d": 40},
    }
    rows = [
        {"set": name, "solver": solver, "steps": 30, "pace": 2e-10}
        | {"seconds": fit.expected_seconds(solver, *fact.values(), 30, 2e-10, constants)}
        for solver, constants in true.items()
        for name, fact in facts.items()
    ]
    found = fit.fit_times(rows, facts)
    assert found.keys() == true.keys()
    for solver, constants in true.items():
        assert found[solver] == pytest.approx(constants)
    one, two, three = (row["seconds"] for row in rows[2::3])
    assert one == pytest.approx(30 * (90_000 * 40 * 1.5 * 2e-10 + 20e-6))
    assert two == pytest.approx(30 * (90_000 * 40 * (1.0 + 0.13 * 40) * 2.0 * 2e-10 + 300e-6))
    assert three == pytest.approx(90_000 * 40 * 9.0 * 2e-10 + 30 * 50e-6)  # one pass


@pytest.mark.parametrize(
    ("excess", "error", "predicted", "right"),
    [
        (0.03, 0.001, 0.0899, True),
        (0.03, 0.001, 0.0901, False),
        (0.03, 0.001, 0.0101, True),
        (0.03, 0.001, 0.0099, False),
        (0.0019, 0.0001, 0.0059, True),  # not told from 0.2 points, and so up to three times them
        (0.0019, 0.0001, 0.0061, False),
        (-0.01, 0.0001, 0.0001, True),
        (0.019, 0.01, 0.059, True),  # nor from two standard errors
        (0.019, 0.01, 0.0001, True),
        (0.021, 0.01, 0.0001, False),
    ],
)
def test_a_prediction_is_right_within_a_factor_or_below_what_draws_tell(
    bench, excess, error, predicted, right
):
    assert cell_of(bench, "a9a", SOLVER, 1.0, excess, error).agrees(predicted) is right


def test_shares_keep_fitted_sets_and_others_apart(bench):
    fit = bench("utility_fit")
    cells = [cell_of(bench, name, SOLVER, 1.0, 0.03) for name in ("a9a", "wdbc", "digits", "mnist")]
    pairs = list(zip(cells, (0.03, 0.2, 0.03, 0.03), strict=True))
    assert fit.shares(pairs)[1] == [
        [f"`{SOLVER}`", "50 % of 2", "100 % of 2"],
        ["all", "50 % of 2", "100 % of 2"],
    ]
    assert [fit.fitted_on(cell) for cell in cells] == [True, True, False, False]


def test_constants_times_1_are_the_rule_and_each_moves_a_setting(bench):
    """On numbers for which every constant of the rule counts somewhere."""
    module, settings = bench("utility_constants"), dpk.solvers.base.settings
    changed = set()
    for dim, mu in ((5, 0.01), (5, 0.3), (5, 5.0), (5, 50.0), (500, 0.01), (500, 3.0)):
        numbers = settings.replace(settings._UNKNOWN, mu=mu, noise=1e-3, dim=dim)
        given = dict.fromkeys(("clip", "momentum", "rounds", "step_size", "returns"), "auto")
        own = settings.descent(numbers, given)
        for constant in module.CONSTANTS:
            same = module.moved(numbers, constant, 1.0)
            assert same == pytest.approx({name: own[name] for name in same})
            for factor in (0.25, 4.0):
                if module.moved(numbers, constant, factor) != pytest.approx(same):
                    changed.add((constant, factor))
    assert len(changed) == 2 * len(module.CONSTANTS)


def test_runs_are_timed_and_compared_with_what_the_plan_expects(utility):
    folder, run, _ = utility
    assert run("3", "--seconds").count(f"wdbc {SOLVER}") == 1
    (row,) = cells(folder, "seconds")
    assert (row["steps"], row["draws"], row["sparse"]) == (300, 3, False)
    assert 0.0 < row["pace"] < 1e-6 < row["seconds"]
    (shown,) = numbers(folder, "seconds")
    assert shown["seconds"] == pytest.approx(row["seconds"], rel=1e-3)
    page = " ".join((folder / "utility.md").read_text().split())
    assert "Its seconds are right within a factor of 2 in" in page


def test_the_fit_is_a_command(utility):
    folder, run, _ = utility
    said = run("2", "--fit")
    assert "error, in the declarations of solvers:" in said
    assert "seconds, in the declarations of solvers:" in said
    assert "| noise in margins: 9 |" in said
    moved = cells(folder, "moved")
    assert len({(row["constant"], row["factor"]) for row in moved}) == len(moved) == 25
