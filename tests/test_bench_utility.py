"""python -m bench.utility leaves cells and a page that agree, and goes on where it was."""

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dpkern as dpk
from dpkern.solvers import SOLVERS

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


def test_the_page_shows_the_cells_and_is_written_with_its_picture(utility):
    folder, _, _ = utility
    (auto,), (tuned,), (facts,) = (cells(folder, kind) for kind in ("auto", "tuned", "set"))
    page = (folder / "utility.md").read_text()
    assert (folder / "utility.png").read_bytes().startswith(b"\x89PNG")
    shown = [f"{100 * auto['accuracy']:.1f} ± ", f"/ {100 * tuned['accuracy']:.1f} |"]
    shown += [f"| majority class | {100 * facts['majority']:.1f} |", f"| {auto['gap']:.3g} |"]
    shown += [f"{100 * (tuned['accuracy'] - auto['accuracy']):.1f} (wdbc, 1)"]
    assert all(text in page for text in shown)
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
    assert "diffprivlib, best C | not measured |" in (folder / "utility.md").read_text()


def test_accuracies_are_those_of_the_results(bench):
    it = bench("utility_sets").problem("wdbc")
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    runs = dpk.solve_many(SOLVER, it.data, budgets=budget, draws=5, rng=0)
    found = it.accuracies(np.array([result.w for result in runs]))
    np.testing.assert_allclose(found, runs.scores(it.task.X_test, it.task.y_test), rtol=1e-14)


def test_every_solver_has_a_grid_of_at_least_100_settings_in_units_of_public_numbers(bench):
    grids = bench("utility_grids")
    assert set(grids.GRIDS) == set(SOLVERS)
    for grid in grids.GRIDS.values():
        each = grids.settings(grids.in_units(grid, gradient=2.0, smoothness=4.0))
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
