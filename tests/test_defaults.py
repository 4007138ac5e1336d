"""What default settings owe to every user; `python -m bench.defaults` has the whole grid."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each, mark_slow

import dpkern as dpk
from bench.defaults import Cell, against, ahead, main, page, problem, worse_with_more
from dpkern.estimators import DPLasso, DPLogisticRegression, DPRidge
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared

LARGEST = 50_000


def rows(solver, task, design, l2, epsilons=(1.0, 10.0), draws=4):
    cells = [
        Cell(design, task, 8, l2, solver, n, epsilon)
        for n in (2_000, LARGEST)
        for epsilon in epsilons
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {cell: cell.row(draws, LARGEST) for cell in cells}


CASES = mark_slow(["auto", *SOLVERS], ["objective_perturbation"], pytest.mark.statistical)


@pytest.mark.parametrize("solver", CASES)
def test_more_records_or_budget_make_no_regression_worse(solver):
    assert not against(rows(solver, "offset", "skewed", 0.0, epsilons=(3.0, 10.0)))


@for_each("solver", ["federated_gd", "prox_pl_svrg"])
def test_few_steps_start_at_the_mean_of_many_targets(solver):
    cells = [Cell("skewed", "offset", 1, 0.0, solver, 10_000, epsilon) for epsilon in (1.0, 10.0)]
    less, more = (np.mean(cell.row(4, 10_000)["scores"]["R2"]) for cell in cells)
    assert more > less - 0.02


@for_each("solver", ["auto", *compared(SOLVERS)])
@for_each(("design", "d"), [("uniform", 50), ("skewed", 100)])
def test_regressions_in_many_columns_beat_the_mean(solver, design, d):
    cell = Cell(design, "offset", d, 0.0, solver, 1_000, 10.0)
    assert not against({cell: cell.row(4, 1_000)})


@for_each("solver", ["auto", *compared(SOLVERS)])
def test_targets_that_hardly_depend_on_the_features_have_their_mean(solver):
    """Without the line of targets R2 of local_newton is -0.26, of double_noise_newton -0.19."""
    cell = Cell("uniform", "weak", 8, 0.0, solver, 1_000, 1.0)
    assert np.mean(cell.row(8, 1_000)["scores"]["R2"]) > -0.08


@for_each("design", ["skewed", "off_centre"])
@for_each("solver", ["auto", *compared(SOLVERS)])
def test_penalties_leave_the_offset_of_targets(solver, design):
    """A penalty of the intercept would make R2 -0.2 here."""
    cell = Cell(design, "offset", 1, 0.1, solver, 10_000, 1.0)
    assert np.mean(cell.row(4, 10_000)["scores"]["R2"]) > 0.0


@for_each(("design", "least"), [("skewed", 0.55), ("off_centre", 0.55), ("one_hot", 0.75)])
def test_regressions_take_as_much_noise_as_is_lost_again(design, least):
    cell = Cell(design, "regression", 50, 0.0, "auto", 10_000, 1.0)
    assert np.mean(cell.row(4, 10_000)["scores"]["R2"]) > least


@for_each("task", ["balanced", "regression"])
def test_penalties_leave_what_was_learnt(task):
    found = rows("auto", task, "uniform", 0.1)
    assert not against(found)
    score = {"balanced": "accuracy", "regression": "R2"}[task]
    best = found[Cell("uniform", task, 8, 0.1, "auto", LARGEST, 10.0)]
    assert np.mean(best["scores"][score]) > best["exact"][score] - 0.02


@for_each(("cell", "least"), [
    (Cell("correlated", "rare", 8, 0.1, "auto", 1_000, 1.0), 0.78),
    (Cell("uniform", "rare", 50, 0.1, "auto", 1_000, 4.0), 0.64),
    (Cell("uniform", "rare", 8, 0.1, "auto", 3_000, 1.0), 0.82),
])  # fmt: skip
def test_few_rare_labels_are_ranked_beside_a_strong_penalty(cell, least):
    assert np.mean(cell.row(16, cell.n)["scores"]["AUC"]) > least


def test_what_gets_worse_with_more_is_found():
    found = rows("gradient_descent", "regression", "uniform", 0.0, epsilons=(3.0,))
    few, many = found
    assert not against(found)
    found[many]["scores"]["R2"] = [score - 0.1 for score in found[few]["scores"]["R2"]]
    assert max(z for z, *_ in worse_with_more(found)) > 3.0
    text, cells = against(found)[0]
    assert "worse with more" in text
    assert cells == [few, many]
    assert text in page(found, found, found)
    found[many]["scores"]["R2"] = [-1.0, -1.1]
    assert any(text.startswith("R2 -1.050") for text, _ in against(found))


def test_what_other_records_do_not_have_is_not_listed():
    found = rows("gradient_descent", "regression", "uniform", 0.0, epsilons=(3.0,))
    _, many = found
    of_others = {**found, many: found[many] | {"scores": {"R2": [-1.0, -1.1]}}}
    assert against(of_others)
    assert "worse with more" not in page(found, of_others, found)


def test_problems_differ_between_draws_and_are_those_of_other_cells():
    few, many = (
        Cell("uniform", "regression", 8, 0.0, "gradient_descent", n, 20.0) for n in (20_000, 40_000)
    )
    together, apart = few.row(8, 20_000), few.row_of_problems(8)
    a, b = (row["scores"]["R2"] for row in (together, apart))
    assert len(a) == len(b)
    assert np.std(b) > 3.0 * np.std(a)
    assert many.row_of_problems(8)["trivial"] == apart["trivial"] != together["trivial"]


def test_a_grid_without_cells_says_why(monkeypatch, tmp_path, capsys):
    words = ["--records", "1000", "--epsilons", "0.1", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["bench.defaults", *words])
    with pytest.raises(SystemExit):
        main()
    assert "no cell is in the grid: n mu is below 150" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_solvers_are_compared_on_the_same_problems():
    """Problems differ by far more than two solvers, of which one is always ahead."""
    cell = Cell("uniform", "rare", 8, 0.0, "auto", 1_000, 10.0)
    facts = {"trivial": {}, "exact": {"AUC": 1.0}}
    scores = [0.5, 0.6, 0.7, 0.8]
    better = [0.53, 0.64, 0.73, 0.84]
    rows = {
        cell: {"scores": {"AUC": scores}} | facts,
        replace(cell, solver="wd_dp"): {"scores": {"AUC": better}} | facts,
    }
    cells, behind, beside = ahead(rows)
    assert (cells, len(behind), len(beside)) == (1, 1, 0)


def test_ridge_on_rare_labels_ranks_better_with_more_budget():
    cells = [Cell("one_hot", "rare", 30, 0.0, "ridge", 50_000, e) for e in (0.3, 1.0, 3.0, 10.0)]
    areas = [np.mean(cell.row(8, 50_000)["scores"]["AUC"]) for cell in cells]
    assert np.all(np.diff(areas) > -0.005)


def regression(n=3_000):
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 8.0, (n, 4))
    return X, X @ [0.5, -0.25, 0.1, 0.0] + 0.3 * rng.standard_normal(n)


@for_each("cls", [DPRidge, DPLasso])
def test_units_of_two_change_no_bit(cls):
    X, y = regression()
    how = {"random_state": 0, "feature_range": (0.0, 8.0), "target_bound": 4.0}
    one = cls(1.0, 1e-6, **how).fit(X, y)
    features = cls(1.0, 1e-6, **how | {"feature_range": (0.0, 64.0)}).fit(8.0 * X, y)
    np.testing.assert_array_equal(features.predict(8.0 * X), one.predict(X))
    targets = cls(1.0, 1e-6, **how | {"target_bound": 1.0}).fit(X, 0.25 * y)
    np.testing.assert_array_equal(targets.predict(X), 0.25 * one.predict(X))


def test_units_of_another_factor_change_no_prediction():
    X, y = regression()
    how = {"random_state": 0, "feature_range": (0.0, 8.0)}
    one = DPRidge(1.0, 1e-6, target_bound=4.0, **how).fit(X, y)
    other = DPRidge(1.0, 1e-6, target_bound=4.0, **how | {"feature_range": (0.0, 24.0)})
    np.testing.assert_allclose(other.fit(3.0 * X, y).predict(3.0 * X), one.predict(X), atol=1e-6)
    labels = DPLogisticRegression(1.0, 1e-6, **how).fit(X, y > y.mean())
    again = DPLogisticRegression(1.0, 1e-6, **how | {"feature_range": (0.0, 24.0)})
    again.fit(3.0 * X, y > y.mean())
    np.testing.assert_allclose(again.predict_proba(3.0 * X), labels.predict_proba(X), atol=1e-6)


def test_bounds_of_targets_centre_them_at_no_cost():
    X, y = regression()
    how = {"random_state": 0, "feature_range": (0.0, 8.0)}
    at_zero = DPRidge(1.0, 1e-6, target_bound=4.0, **how).fit(X, y)
    far = DPRidge(1.0, 1e-6, target_bound=(996.0, 1004.0), **how).fit(X, y + 1000.0)
    np.testing.assert_allclose(far.predict(X) - 1000.0, at_zero.predict(X), atol=1e-6)
    assert far.intercept_ == pytest.approx(at_zero.intercept_ + 1000.0, abs=1e-6)
    assert far.privacy_.declared["target_middle"] == 1000.0
    around = DPRidge(1.0, 1e-6, target_bound=1004.0, **how).fit(X, y + 1000.0)
    assert far.score(X, y + 1000.0) > around.score(X, y + 1000.0)


def test_targets_far_beyond_their_bounds_are_clipped_in_silence():
    X, y = regression()
    how = {"task": "regression", "target_bound": (-1e308, 0.0)}
    data = dpk.SiloData.split(X, np.where(y == y.max(), 1.7e308, y), 1, **how)
    assert np.abs(data.y).max() == data.target_bound == 5e307


def test_predictions_of_a_network_add_the_middle_of_the_targets():
    X, y = regression()
    how = {"model": dpk.MLP(hidden=(2,), loss="squared"), "clip": 1.0, "rounds": 3, "rng": 1}

    def predicted(middle):
        bounds = (middle - 4.0, middle + 4.0)
        shared = {"task": "regression", "target_bound": bounds, "row_bound": 9.0}
        data = dpk.SiloData.split(X, y + middle, 1, **shared)
        budget = dpk.Budget(epsilon=1.0, delta=1e-6)
        return dpk.solve("minibatch_sgd", data, budget=budget, **how).predict(X)

    np.testing.assert_allclose(predicted(1024.0) - 1024.0, predicted(0.0), atol=1e-6)


def test_targets_without_a_bound_are_said():
    X, y = regression()
    with pytest.warns(dpk.data.ScaleWarning, match="no target_bound was stated") as caught:
        found = DPRidge(1.0, 1e-6, feature_range=(0.0, 8.0)).fit(X, 100.0 * y)
    assert "step_size" not in found.result_.message
    assert sum("target_bound" in str(w.message) for w in caught) >= 1


def test_lasso_keeps_what_targets_tell():
    X, y = regression()
    found = DPLasso(3.0, 1e-6, feature_range=(0.0, 8.0), target_bound=4.0, random_state=0)
    assert found.fit(X, y).score(X, y) > 0.8
    small = DPLasso(3.0, 1e-6, feature_range=(0.0, 8.0), target_bound=1.0, random_state=0)
    assert small.fit(X, y / 4.0).score(X, y / 4.0) > 0.8


def test_auto_releases_moments_where_they_are_exact():
    shared = {"task": "regression", "target_bound": 1.0, "row_bound": 2.0}
    rng = np.random.default_rng(0)
    n = 100_000
    data = dpk.SiloData(rng.uniform(-1, 1, (n, 2)), rng.uniform(-1, 1, n), [0, n], **shared)
    power = 6000.0 * 2.0**1.5 / n  # the least mu
    for mu, solver in ((1.01 * power, "ridge"), (0.99 * power, "gradient_descent")):
        budget = dpk.Budget(mu=mu)
        found = dpk.solve("auto", data, budget=budget, rng=0)
        assert found.solver == solver
        assert dpk.plan(n, 2, budget=budget, row_bound=2.0, loss="squared").best.solver == solver
        found = dpk.solve("auto", data, budget=budget, rng=0, l1=0.1)
        assert found.solver == "gradient_descent"
    many = dpk.solve_many("auto", data, budgets=[dpk.Budget(mu=m) for m in (power, 0.1)], rng=0)
    assert {one.solver for one in many} == {"gradient_descent"}


def test_problems_are_drawn_anew_the_same():
    one = problem("one_hot", "rare", 8, 500)
    problem.cache_clear()
    np.testing.assert_array_equal(problem("one_hot", "rare", 8, 500).X, one.X)
    assert 0.02 < np.mean(one.y_test > 0.0) < 0.08
