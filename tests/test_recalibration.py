"""Recalibration: what is released, when, and what probabilities and warnings follow."""

import math
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import scipy
from cases import for_each, mark_slow
from makers import fail_at_call, spy_on_calls
from parties import Study

import dpkern as dpk
from dpkern import kernels
from dpkern.privacy import BudgetWarning
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms import gaussian_sum, perturbed_minimiser
from dpkern.privacy.sensitivity.local_runs import LARGEST_DRAW
from dpkern.solvers.base import calibration, first_model, recalibration, target_line
from dpkern.solvers.base import recalibration as module
from dpkern.solvers.base.calibration import Calibration, Temperature
from dpkern.solvers.base.coefficients import CoefficientNoise
from dpkern.solvers.base.first_model import MEAN
from dpkern.solvers.base.outcome import NothingLearntWarning
from dpkern.solvers.base.recalibration import (
    RATES,
    RESIDUALS,
    SCORES,
    SIZES,
    TEMPERATURE,
)
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.target_line import LINE_OF_TARGETS, TargetLine
from dpkern.solvers.releases import minimiser

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
LINE = {RATES: (0.7072, 1), SIZES: (0.5, 1), SCORES: (1.04, 2), RESIDUALS: (1.008, 1)}


def records(n=4000, m=1, rate=0.2, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    z = X @ [2.0, -1.0, 0.5, 0.0] + math.log(rate / (1.0 - rate))
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-z))).astype(int)
    how = {"feature_range": (-1.0, 1.0), "intercept": True, "classes": [0, 1], "seed": 0}
    return dpk.SiloData.split(X, y, m=m, **(how | options))


def released(result):
    return {r.what: r for r in result.privacy.releases if r.what.startswith("recalibration")}


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each(("trust", "m"), [("central", 1), ("central", 3), ("silo", 3)])
@for_each("solver", ["gradient_descent", "local_newton", "federated_gd"])
def test_releases_have_their_sensitivity_and_the_budget(solver, trust, m, neighbours):
    size = {} if neighbours == "replace_one" else {"public_size": [4000 // m] * m}
    data = records(m=m)
    result = dpk.solve(
        solver, data, budget=BUDGET, rng=1, trust=trust, neighbours=neighbours, **size
    )
    unit = 2.0 if neighbours == "replace_one" else 1.0
    found = released(result)
    assert tuple(found) == tuple(LINE)
    for what, (C, times) in LINE.items():
        sensitivities = np.atleast_1d(found[what].sensitivity)
        assert np.array_equal(sensitivities, [unit * C] * (m if trust == "silo" else 1))
        assert found[what].times == times
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    assert dpk.verify(result.privacy.to_dict())
    values = result.privacy.to_dict()
    values["releases"] = [r for r in values["releases"] if r["what"] != RESIDUALS]
    assert not dpk.verify(values)


def test_sums_are_those_of_numpy():
    data = records(n=300, m=2)
    u = np.random.default_rng(1).uniform(-1.0, 1.0, 300)
    V = np.column_stack([u, u * u])
    grid = np.array([2.0**-40, 2.0**-39])
    found = gaussian_sum.sum_vectors(lambda rows: V[rows], 2, data.offsets.tolist(), 2.0, grid)
    expected = np.add.reduceat(V, data.offsets[:-1])
    assert np.allclose(found, expected, rtol=0.0, atol=1e-9)
    assert np.array_equal(found / grid[:, np.newaxis], np.round(found / grid[:, np.newaxis]))


def test_parts_of_the_records_have_the_same_sums(monkeypatch):
    data = records(n=1000)
    runs = []
    for size in (1 << 20, 7):
        monkeypatch.setattr(gaussian_sum, "_ENTRIES", size)
        runs.append(dpk.solve("gradient_descent", data, budget=BUDGET, rng=1))
    assert runs[0].calibration == runs[1].calibration


def test_what_the_releases_sum_up_is_what_their_names_say(monkeypatch):
    """Without noise they are sums over the records, and the last makes the mean risk the rate."""
    calls = spy_on_calls(monkeypatch, gaussian_sum, "sum_vectors")
    data = records(n=20_000)
    result = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=6.0), rng=1)
    line, y = result.calibration, data.y
    margins = data.transform.margins(data.X, result.w)
    u = np.clip((margins - line.centre) / line.unit, -1.0, 1.0)
    rates = np.array([1.0 / (1.0 + np.exp(-0.5 * margins)) - 0.5, y / 2]).sum(axis=1)
    assert np.allclose(calls[0].result[0], rates, atol=1e-3)
    size = np.abs(margins - line.centre) / (np.linalg.norm(result.w) * data.row_bound)
    assert 0.0 < calls[1].result[0] + 0.5 * data.n <= np.sqrt(size).sum()
    p = result.predict_proba(data.X)[:, 1]
    assert abs(p.sum() - (y > 0).sum()) < 20.0
    slope, offset = np.polynomial.polynomial.polyfit(u, result.decision_function(data.X), 1)[::-1]
    assert (slope, offset) == pytest.approx((line.slope, line.offset))


def test_a_calibration_is_close_to_the_best_line():
    from sklearn.linear_model import LogisticRegression

    data = records(n=50_000)
    result = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=5.0), rng=1)
    line = result.calibration
    margins = data.transform.margins(data.X, result.w)
    u = np.clip((margins - line.centre) / line.unit, -1.0, 1.0)
    best = LogisticRegression(C=1e9).fit(u[:, np.newaxis], data.y)
    assert line.slope == pytest.approx(float(best.coef_[0, 0]), rel=0.1)
    assert line.offset == pytest.approx(float(best.intercept_[0]), abs=0.1)
    assert line.slope_error < 0.1 * line.slope


@for_each(
    "how",
    [
        {"clip": 1.0},
        {"recalibrate": False},
        {"loss": "smoothed_hinge"},
        {"penalty": dpk.penalties.L2Ball(3.0)},
        {"monitor": "train"},
        {"trust": "shuffle", "solver": "minibatch_sgd"},
        {"sampling": "without_replacement", "solver": "minibatch_sgd"},
        {"calibration": "paper"},
        {"budget": None},
    ],
)
def test_other_runs_have_none_and_say_so(how):
    how = {"solver": "gradient_descent", "budget": BUDGET, "rng": 1, "rounds": 5, **how}
    result = dpk.solve(how.pop("solver"), records(5000), **how)
    assert result.calibration is None
    assert not released(result)
    assert result.parameters["recalibrate"] is False
    assert result.privacy.declared["recalibrate"] is False


@pytest.mark.parametrize(
    "neighbours", mark_slow(["replace_one", "add_remove"], ["add_remove"], pytest.mark.proof)
)
def test_a_perturbed_objective_keeps_the_budget_with_all(tmp_path, neighbours):
    data = records(5000)
    size = {"public_size": [5000]} if neighbours == "add_remove" else {}
    how = {"budget": BUDGET, "rng": 1, "neighbours": neighbours, **size}
    accountant = dpk.Accountant(tmp_path / "budget", epsilon=1.0, delta=1e-6, neighbours=neighbours)
    result = dpk.solve("objective_perturbation", data, accountant=accountant, **how)
    assert tuple(released(result)) == tuple(LINE)
    assert 0.99 <= result.privacy.epsilon(1e-6) <= 1.0
    assert dpk.verify(result.privacy.to_dict())
    with pytest.raises(dpk.BudgetSpentError):
        dpk.solve("objective_perturbation", data, accountant=accountant, **how)
    values = result.privacy.to_dict()
    values["releases"] = [r for r in values["releases"] if r["what"] != SIZES]
    assert not dpk.verify(values)


def test_persons_by_the_group_bound_are_covered():
    data = records(8000, person=np.arange(8000) // 2, max_records=2)
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1)
    assert tuple(released(result)) == tuple(LINE)
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    clipped = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, person_clip=1.5)
    assert clipped.calibration is None


@for_each("solver", ["gradient_descent", "ridge"])
def test_a_large_budget_warns_where_it_was_made_alone(solver):
    with pytest.warns(BudgetWarning):
        budget = dpk.Budget(mu=13.0)
    data = records(8000, person=np.arange(8000) // 2, max_records=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        dpk.solve(solver, data, budget=budget, rng=1)


@for_each("solver", ["gradient_descent", "local_newton", "objective_perturbation"])
def test_few_records_have_a_temperature_of_public_numbers(solver, tmp_path):
    """Nothing is released for it, no label changes, and other records have the same."""
    data, other = records(200), records(200, seed=1)
    result, without = (
        dpk.solve(solver, data, budget=BUDGET, rng=1, recalibrate=r) for r in (True, False)
    )
    power = 200 * BUDGET.mu
    assert result.calibration.temperature == pytest.approx(2.0 * (100.0 / power) ** 0.25)
    assert result.calibration == dpk.solve(solver, other, budget=BUDGET, rng=1).calibration
    assert result.privacy.releases == without.privacy.releases
    assert np.array_equal(result.w, without.w)
    assert np.array_equal(result.predict(data.X), without.predict(data.X))
    scores = without.decision_function(data.X) / result.calibration.temperature
    assert np.allclose(result.decision_function(data.X), scores, rtol=1e-15)
    assert "nothing was released" in str(result)
    assert "Scores were divided by" in result.methods()
    assert result.privacy.declared["temperature"] == result.calibration.temperature
    result.save(tmp_path / "model.npz")
    assert dpk.load(tmp_path / "model.npz").calibration == result.calibration
    assert dpk.verify(tmp_path / "model.npz").ok
    replace(result, calibration=Temperature(1.5, 0.0)).save(tmp_path / "other.npz")
    assert "temperature" in str(dpk.verify(tmp_path / "other.npz"))


def test_few_records_of_several_classes_have_a_temperature_of_public_numbers():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (500, 3)), rng.integers(0, 3, 500)
    how = {"row_bound": math.sqrt(3.0), "task": "multiclass", "classes": [0, 1, 2]}
    found = dpk.solve("auto", dpk.SiloData(X, y, [0, 500], **how), budget=BUDGET, rng=1)
    assert found.calibration.temperature == pytest.approx(math.sqrt(300.0 / (500 * BUDGET.mu)))
    assert not released(found)


def test_few_records_have_better_probabilities_by_the_temperature():
    """Of noise alone they are worse than those of a coin, and far worse without it."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (2000, 10)), rng.integers(0, 2, 2000)
    data = dpk.SiloData(X[:300], y[:300], [0, 300], row_bound=math.sqrt(10.0), classes=[0, 1])
    budget = dpk.Budget(epsilon=0.5, delta=1e-6)

    def log_loss(recalibrate):
        runs = dpk.solve_many(
            "auto", data, budgets=budget, draws=20, rng=1, recalibrate=recalibrate
        )
        z = np.array([run.decision_function(X) for run in runs])
        return float(np.logaddexp(0.0, -(2.0 * y - 1.0) * z).mean())

    assert log_loss(True) < 0.75 * log_loss(False)


def test_a_run_that_fails_has_the_temperature_of_its_last_model(monkeypatch):
    fail_at_call(monkeypatch, kernels, "glm_gradient", 4)
    with pytest.warns(UserWarning, match="MemoryError"):
        result = dpk.solve("local_newton", records(200), budget=BUDGET, rng=1)
    assert result.calibration.temperature > 2.0
    assert dpk.verify(result.privacy.to_dict())


def test_shares_depend_on_public_numbers_alone():
    """On other records of the same sizes everything but coefficients and line is equal."""
    first, second = (
        dpk.solve("gradient_descent", records(seed=s), budget=BUDGET, rng=1) for s in (0, 1)
    )
    assert first.privacy.releases == second.privacy.releases
    assert first.calibration != second.calibration


def test_predictions_follow_the_line_and_keep_the_order(tmp_path):
    data = records()
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1)
    z = result.decision_function(data.X)
    margins = data.transform.margins(data.X, result.w)
    assert np.array_equal(z, result.calibration.apply(margins))
    assert np.array_equal(result.predict(data.X), (z > 0.0).astype(int))
    assert np.all(np.diff(z[np.argsort(margins)]) >= 0.0)
    p = result.predict_proba(data.X)[:, 1]
    assert np.allclose(p, 1.0 / (1.0 + np.exp(-z)))
    result.save(tmp_path / "model.npz")
    read = dpk.load(tmp_path / "model.npz")
    assert read == result
    assert np.array_equal(read.decision_function(data.X), z)


def test_runs_in_lockstep_have_the_line_of_runs_alone():
    data = records(m=2)
    runs = dpk.solve_many("auto", data, budgets=BUDGET, draws=3, rng=[1, 2, 3])
    for seed, run in zip((1, 2, 3), runs, strict=True):
        assert run == dpk.solve("auto", data, budget=BUDGET, rng=seed)


def test_shares_of_noise_give_a_line():
    result = dpk.solve("gradient_descent", records(m=4), budget=BUDGET, rng=1, colluding=1)
    assert tuple(released(result)) == tuple(LINE)
    assert dpk.verify(result.privacy.to_dict())


@pytest.mark.statistical
@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_mean_risk_is_the_rate(rate):
    data = records(20_000, rate=rate)
    true = (data.y > 0).mean()
    runs = dpk.solve_many("auto", data, budgets=BUDGET, draws=20, rng=0)
    errors = [abs(run.predict_proba(data.X)[:, 1].mean() - true) for run in runs]
    assert np.mean(errors) <= max(0.1 * true, 12.0 / (data.n * BUDGET.mu))


def told(data, epsilon):
    """Of ten runs, how many warn that little was learnt."""
    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    runs = dpk.solve_many("gradient_descent", data, budgets=budget, draws=10, rng=0)
    return sum(bool(run.calibration.finding) for run in runs)


@for_each("epsilon", [1.0, 10.0])
def test_labels_without_any_relation_are_told(epsilon):
    """At epsilon 10 the slope is many standard errors of the noise: labels agree by chance."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (3000, 30)), rng.integers(0, 2, 3000)
    data = dpk.SiloData.split(X, y, m=1, feature_range=(-1.0, 1.0), classes=[0, 1], seed=0)
    assert told(data, epsilon) >= 8
    with pytest.warns(NothingLearntWarning, match="little learnt"):
        dpk.solve("gradient_descent", data, budget=BUDGET, rng=0)


def test_a_slope_that_the_noise_hides_is_not_called_a_slope():
    finding = Calibration(1.0, 1.1, 0.0, 1.0, math.inf).finding
    assert "no slope" in finding
    assert "inf" not in finding.replace("information", "")
    assert "slope of 1.1" in Calibration(1.1, 0.0, 0.0, 1.0, 0.9).finding


def test_what_was_learnt_is_not_told_to_be_nothing():
    assert told(records(), 1.0) == 0
    # The noise leaves less to chance than 200 columns do.
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (2000, 200))
    z = X @ rng.standard_normal(200)
    y = (rng.random(2000) < scipy.special.expit(2.0 * z / z.std())).astype(int)
    data = dpk.SiloData.split(X, y, m=1, feature_range=(-1.0, 1.0), classes=[0, 1], seed=0)
    assert told(data, 1.0) <= 2


def test_a_line_of_zero_margins_is_finite():
    data = records()
    line = Calibration(1.0, -2.0, 0.0, 1.0, 0.1)
    assert np.array_equal(line.apply(np.array([-9.0, 0.0, 9.0])), [-3.0, -2.0, -1.0])
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, rounds=1, step_size=1e-50)
    assert np.isfinite(result.predict_proba(data.X)).all()


@for_each("row_bound", [2.0, 10.0, 50.0])
def test_the_scale_is_that_of_margins_and_not_of_their_bound(row_bound):
    data = records(20_000, rate=0.05, feature_range=None, row_bound=row_bound)
    result = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=5.0), rng=1)
    line = result.calibration
    margins = data.transform.margins(data.X, result.w)
    risk = (1.0 / (1.0 + np.exp(-0.5 * margins))).mean()
    assert line.centre == pytest.approx(2.0 * math.log(risk / (1.0 - risk)), rel=0.05)
    z = np.abs(margins - line.centre)
    assert line.unit == pytest.approx(2.4 * np.sqrt(z).mean() ** 2, rel=0.05)
    # Margins beyond the scale count as at it.
    ends = line.apply(line.centre + line.unit * np.array([-9.0, -1.0, 1.0, 9.0]))
    assert ends == pytest.approx(line.offset + line.slope * np.array([-1.0, -1.0, 1.0, 1.0]))


@for_each("solver", ["gradient_descent", "local_newton", "prox_sgd"])
@for_each("l2", [0.0, 0.1])
def test_few_rare_labels_have_no_worse_risks_than_their_rate(solver, l2):
    """Without a line the log loss is above that of the rate by 0.07 to 0.12 in four."""
    test = records(20_000, rate=0.05, seed=1)
    rate = float(np.mean(test.y > 0.0))
    most = -rate * np.log(rate) - (1.0 - rate) * np.log(1.0 - rate) + 0.01
    few = records(1000, rate=0.05)
    runs = dpk.solve_many(solver, few, budgets=BUDGET, draws=20, rng=3, l2=l2)
    z = [run.decision_function(test.X) for run in runs]
    losses = [np.mean(np.logaddexp(0.0, -test.y * odds)) for odds in z]
    assert np.mean(losses) < most + 3.0 * np.std(losses) / np.sqrt(20)
    assert np.mean([np.mean((odds > 0.0) == (test.y > 0.0)) for odds in z]) > 1.0 - rate - 0.01


def test_rare_labels_in_many_columns_have_no_worse_risks_than_their_rate():
    """A model of 50 columns agrees by chance with the labels of 40 records out of 1000."""
    X = np.random.default_rng(5).uniform(-1.0, 1.0, (21_000, 50))
    y = np.random.default_rng(6).random(21_000) < 0.04
    how = {"feature_range": (-1.0, 1.0), "intercept": True, "classes": [False, True], "seed": 0}
    few = dpk.SiloData.split(X[:1000], y[:1000], m=1, **how)
    runs = dpk.solve_many("gradient_descent", few, budgets=BUDGET, draws=20, rng=3)
    rate, signs = float(y[1000:].mean()), np.where(y[1000:], 1.0, -1.0)
    entropy = -rate * math.log(rate) - (1.0 - rate) * math.log(1.0 - rate)
    losses = [np.mean(np.logaddexp(0.0, -signs * run.decision_function(X[1000:]))) for run in runs]
    assert np.mean(losses) < entropy + 0.015


@for_each("row_bound", [2.0, 20.0])
def test_a_bound_far_above_the_rows_costs_no_accuracy(row_bound):
    """Log odds are near those of the best line, whatever norm was declared for the rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    data = records(50_000, rate=0.1, feature_range=None, row_bound=row_bound)
    result = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=0.3), rng=1)
    z = data.transform.margins(data.X, result.w)[:, np.newaxis]
    best = LogisticRegression(C=1e9).fit(z, data.y).predict_proba(z)
    losses = [log_loss(data.y, p) for p in (result.predict_proba(data.X), best)]
    assert losses[0] < losses[1] + 0.005


def test_a_slope_of_noise_keeps_the_order():
    scale = calibration.Scale(1000.0, 1.0, 0.5)
    for _ in range(2):
        scale.improve(1000.0, 250.0, 1.0)
    assert scale.slope >= 0.5 * math.exp(-2.0)


def test_an_offset_that_noise_explains_is_not_taken():
    for std, share in ((1e-3, 1.0), (30.0, 0.5), (1e4, 0.01)):
        odds = calibration.LogOdds(1000.0, 100.0, 70.0, std, 0.5)
        risk, rate = (math.log(p / (1.0 - p)) for p in (0.6, 0.57))
        if std < 1.0:
            assert odds.offset == pytest.approx(rate)
        assert abs(odds.offset - 0.5 * odds.centre) <= share * (risk - rate) + 1e-6
    odds = calibration.LogOdds(1000.0, 0.0, 0.0, 10.0, 0.5)
    odds.improve(100.0, 90.0, 1e-3)
    assert odds.offset == pytest.approx(-100.0 / 215.0)
    before = odds.offset
    odds.improve(100.0, 90.0, 1e6)
    assert odds.offset == pytest.approx(before, abs=1e-3)


# --------------------------------------------------------------------------- whatever records are


def vectors_of(data, w):
    """The vectors of the four releases at a model, whose lines are those of sums of ones."""
    seen = {}

    class Recorded(module._Line):
        def _release(self, what, clip, mu, vectors, dim):
            seen[what] = vectors(data)(slice(0, data.n)), clip
            return np.ones(dim), 1.0

    run = type("Run", (), {"objective": type("Objective", (), {"n": 203, "data": data})})
    Recorded(run, module.Margins(w, None), 1.5, 1.0).calibration(38, 200.0)
    return seen


@for_each("kind", ["dense", "single", "sparse", "range"])
def test_vectors_are_of_one_record_wherever_it_lies(kind):
    from scipy import sparse

    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (203, 37))
    X[:4] *= np.array([[1e-310], [1e-160], [0.0], [1e300 if kind == "dense" else 1.0]])
    y, order = rng.integers(0, 2, 203), rng.permutation(203)[:150]
    X = X.astype(np.float32) if kind == "single" else X
    how = {"feature_range": (-1.0, 1.0)} if kind == "range" else {"row_bound": 2.0}
    w = rng.normal(size=38)

    def of(rows, offsets):
        held = sparse.csr_array(X[rows]) if kind == "sparse" else X[rows]
        data = dpk.SiloData(held, y[rows], offsets, classes=[0, 1], intercept=True, **how)
        return vectors_of(data, w)

    first, second = of(np.arange(203), [0, 203]), of(order, [0, 7, 60, 61, 150])
    for what, (V, clip) in first.items():
        assert V[order].tobytes() == second[what][0].tobytes()
        assert np.linalg.norm(V, axis=1).max() <= clip


def test_one_record_moves_a_sum_by_its_clip_norm_at_most():
    rng, q, clip = np.random.default_rng(0), 2.0**-31, module._SCORES_CLIP
    for n in (1, 6, 7, 8, 14, 30):
        V = rng.normal(size=(n + 1, 4)) * 10.0 ** rng.uniform(-3, 3, (n + 1, 1))
        more = np.insert(V[:n], rng.integers(n + 1), V[n], axis=0)
        one, two = (
            gaussian_sum.sum_vectors(lambda rows, U=U: U[rows], 4, (0, len(U)), clip, np.array([q]))
            for U in (V[:n], more)
        )
        pairs = zip(one.ravel().tolist(), two.ravel().tolist(), strict=True)
        assert sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs) <= Fraction(clip) ** 2


@for_each("size", [1e-310, 1e-160, 0.0, 1e300])
def test_no_record_makes_numpy_raise(size):
    """An error would end the run, and tell that the record is there."""
    plain = records()
    X = np.array(plain.X)
    X[0] = size
    data = dpk.SiloData.split(X, plain.y, m=1, row_bound=2.0, classes=[-1.0, 1.0], seed=0)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, step_size=1.0)
    assert tuple(released(result)) == tuple(LINE)


def test_any_sums_give_a_finite_line_within_its_bounds():
    rng = np.random.default_rng(0)

    def numbers(k):
        sizes = 10.0 ** rng.uniform(*[(-3.0, 3.0), (0.0, 8.0), (-308.0, 308.0)][rng.integers(3)], k)
        return rng.choice([-1.0, 0.0, 1.0], k) * sizes

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        for _ in range(1000):
            n, unit = 10.0 ** rng.uniform(1.0, 8.0), 10.0 ** rng.uniform(-160.0, 160.0)
            std = n * 10.0 ** rng.uniform(-20.0, 0.0, 3)
            odds, scale = (
                calibration.LogOdds(n, *numbers(2), std[0], 0.5),
                calibration.Scale(n, unit, 0.5),
            )
            for _ in range(2):
                scale.improve(*numbers(2), std[1])
            odds.improve(*numbers(2), std[2])
            assert 0.5 * math.exp(-2.0) <= scale.slope <= 0.5 * math.exp(2.0)
            assert max(abs(odds.offset), 0.5 * abs(odds.centre)) <= 20.0
            assert scale.slope_error > 0.0  # infinite where no slope is seen


@for_each("release", [1, 2, 4])
def test_a_run_that_fails_in_its_line_has_a_valid_certificate(monkeypatch, release):
    fail_at_call(monkeypatch, gaussian_sum, "sum_vectors", release)
    with pytest.warns(UserWarning, match="MemoryError"):
        result = dpk.solve("gradient_descent", records(), budget=BUDGET, rng=1)
    assert result.calibration is None
    assert sum(r.times for r in released(result).values()) == release - 1
    assert dpk.verify(result.privacy.to_dict())


@for_each("trust", ["central", "silo"])
def test_parties_have_the_line_of_one_process(trust):
    data, how = records(m=4), {"budget": BUDGET, "rounds": 3, "trust": trust}
    colluding = 1 if trust == "central" else None
    expected = dpk.solve("gradient_descent", data, rng=7, colluding=colluding, **how)
    study = Study(data, colluding=1)
    study.run("gradient_descent", **how)
    assert study.failures == [None] * 5
    for found in study.results:
        assert found.calibration == expected.calibration is not None
        assert found.privacy.releases == expected.privacy.releases


def test_certificates_with_other_releases_of_a_line_are_refused():
    """With figures and a digest that agree with the releases."""
    privacy = dpk.solve("gradient_descent", records(), budget=BUDGET, rng=1).privacy
    *first, sizes, scores, residuals = privacy.releases

    def verifies(*line, **declared):
        ledger = Ledger()
        for r in (*first, *line):
            ledger.append(replace(r, times=1), r.times)
        kept = {
            name: getattr(privacy, name)
            for name in ("trust", "noise", "neighbours", "notes", "at_delta")
        }
        made = dpk.Certificate.from_ledger(
            ledger, declared={**privacy.declared, **declared}, **kept
        )
        return dpk.verify(made.to_dict()).ok

    line = sizes, scores, residuals
    assert verifies(*line)
    assert not verifies()
    for i, r in enumerate(line):
        others = line[:i], line[i + 1 :]
        assert not verifies(*others[0], *others[1])
        assert not verifies(*others[0], replace(r, sensitivity=r.sensitivity / 2.0), *others[1])
        assert not verifies(*others[0], replace(r, times=r.times + 1), *others[1])
    assert not verifies(sizes, replace(scores, times=3), residuals)
    assert not verifies(sizes, replace(scores, per_record=1), residuals)
    assert not verifies(*line, recalibrate=False)
    assert not verifies(*line, ended_after=3)
    # Those of other tasks, which are fewer.
    rates = first.pop()
    assert rates.what == RATES
    assert not verifies(sizes, replace(scores, what=TEMPERATURE))
    assert not verifies(replace(rates, what=MEAN, dim=1, sensitivity=2.0))


# ------------------------------------------------------------------------- the mean of targets


def targets(n=3000, m=1, middle=6.0, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    y = np.clip(middle + X @ [1.0, -0.5, 0.0, 0.0] + 0.5 * rng.standard_normal(n), -10.0, 10.0)
    how = {"feature_range": (-1.0, 1.0), "intercept": True, "task": "regression"}
    return dpk.SiloData.split(X, y, m=m, target_bound=10.0, seed=0, **(how | options))


def test_a_solver_that_leaves_its_first_release_out_is_refused(monkeypatch):
    """Else a part of the budget would be charged for a release that is never made."""
    monkeypatch.setattr(Run, "first_model", lambda run: run.objective.start())
    with pytest.raises(RuntimeError, match=r"gradient_descent must begin with run.first_model\(\)"):
        dpk.solve("gradient_descent", targets(), budget=BUDGET, loss="squared", rng=1)
    data = targets(intercept=False)  # which have none
    dpk.solve("gradient_descent", data, budget=BUDGET, loss="squared", rng=1)


ITERATIVE = (
    "gradient_descent", "federated_gd", "wd_dp", "output_perturbation", "local_newton",
    "double_noise_newton", "ridge", "admm", "fixed_point", "prox_sgd", "prox_svrg", "prox_pl_svrg",
    "spider", "minibatch_sgd", "local_sgd", "localized_sgd", "objective_perturbation",
)  # fmt: skip


@for_each("solver", ITERATIVE)
def test_every_solver_begins_at_the_released_mean_and_ends_with_a_line(solver):
    result = dpk.solve(solver, targets(), budget=BUDGET, rng=1, loss="squared")
    mean, *_, sizes, line = result.privacy.releases
    expected = ((MEAN, 1.0), (SIZES, 0.5), (LINE_OF_TARGETS, 0.7072))
    for release, (what, clip) in zip((mean, sizes, line), expected, strict=True):
        assert (release.what, release.times) == (what, 1)
        assert float(np.max(release.sensitivity)) == 2.0 * clip
    assert result.intercept == pytest.approx(6.0, abs=0.25)
    assert result.calibration is None
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    assert dpk.verify(result.privacy.to_dict()).ok


@for_each(
    "how",
    [
        {"mode": "federated", "participation": 100},
        {"mode": "token", "trust": "local"},
        {"users": "silos", "trust": "silo"},
        {"users": "silos"},
    ],
)
def test_a_consensus_of_changes_begins_at_zero(how):
    """Of which the states of users do: an offset between the two would never be lost."""
    result = dpk.solve("admm", targets(n=400, m=4), budget=BUDGET, rng=0, loss="squared", **how)
    assert MEAN not in [r.what for r in result.privacy.releases]
    assert abs(result.intercept) < 50.0


@for_each("solver", ["gradient_descent", "ridge", "local_sgd"])
def test_no_target_decides_whether_a_run_fails(solver):
    for target in (1e-310, 0.0):
        y = np.array([target] + [0.0] * 99)
        data = dpk.SiloData(
            np.ones((100, 1)), y, [0, 100], row_bound=2.0, target_bound=10.0, task="regression",
            intercept=True,
        )  # fmt: skip
        with np.errstate(under="raise"):
            dpk.solve(solver, data, budget=BUDGET, loss="squared", rng=0)


def test_what_the_numbers_refuse_is_refused_before_the_mean(tmp_path):
    accountant = dpk.Accountant(tmp_path / "budget", epsilon=2.0, delta=1e-5)
    X = np.random.default_rng(0).uniform(-0.1, 0.1, (60, 50))
    data = dpk.SiloData(
        X, X[:, 0], [0, 60], row_bound=1.5, target_bound=10.0, task="regression", intercept=True
    )
    how = {"budget": dpk.Budget(epsilon=0.5, delta=1e-6), "added_l2": 1e12, "rng": 0}
    with pytest.raises(ValueError, match="no grid serves") as error:
        dpk.solve("objective_perturbation", data, accountant=accountant, loss="squared", **how)
    assert not getattr(error.value, "__notes__", [])
    assert len(accountant.entries) == 0


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each(("trust", "m"), [("central", 3), ("silo", 3)])
def test_the_mean_of_targets_has_the_sensitivity_of_their_bound(trust, m, neighbours):
    data = targets(m=m)
    size = {"public_size": data.sizes.tolist()} if neighbours == "add_remove" else {}
    how = {"trust": trust, "neighbours": neighbours, **size}
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, loss="squared", **how)
    (mean,) = [r for r in result.privacy.releases if r.what == MEAN]
    unit = 2.0 if neighbours == "replace_one" else 1.0
    assert np.array_equal(np.atleast_1d(mean.sensitivity), [unit] * (m if trust == "silo" else 1))
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    assert dpk.verify(result.privacy.to_dict())


@for_each(
    "how",
    [
        {"clip": 1.0},
        {"recalibrate": False},
        {"monitor": "train"},
        {"budget": None},
        {"data": {"intercept": False}},
        {"data": {"target_bound": None}},
    ],
)
def test_other_regressions_release_no_mean(how):
    data = {"target_bound": 10.0, **how.pop("data", {})}
    if data["target_bound"] is None:
        del data["target_bound"]
        how = {"clip": 1.0, **how}
        given = dpk.SiloData.split(
            np.ones((300, 1)), np.ones(300), m=1, seed=0, task="regression", row_bound=2.0
        )
    else:
        given = targets(**{k: v for k, v in data.items() if k != "target_bound"})
    how = {"budget": BUDGET, "rng": 1, "rounds": 5, "loss": "squared", **how}
    result = dpk.solve("gradient_descent", given, **how)
    assert MEAN not in [r.what for r in result.privacy.releases]


def test_a_mean_that_noise_explains_is_not_taken():
    run = type("Run", (), {"objective": type("Objective", (), {"n": 1000, "data": targets(n=10)})})
    for total, std, expected in ((100.0, 100.0, 0.5), (100.0, 1.0, 0.9999), (1e300, 1.0, 10.0)):
        mean = first_model._TargetMean(run, 1.0, None)
        sums = np.array([total]), std
        mean._release = lambda *_, sums=sums: sums
        assert mean.find(10.0) == pytest.approx(expected, rel=1e-4)


def test_the_linear_term_is_bounded_with_its_public_part(monkeypatch):
    bounds, kept = [], perturbed_minimiser.Minimisation
    monkeypatch.setattr(
        perturbed_minimiser, "Minimisation",
        lambda **how: bounds.append(how["linear_bound"]) or kept(**how),
    )  # fmt: skip
    result = dpk.solve("objective_perturbation", targets(), budget=BUDGET, rng=1, loss="squared")
    (linear,) = [r for r in result.privacy.releases if r.what.startswith("random linear")]
    random = LARGEST_DRAW * math.sqrt(5.0) * linear.std
    added = 10.0 * 3000.0 * result.parameters["added_l2"]  # of the longest first model
    assert bounds[0] >= random + added


def test_the_budget_beside_a_perturbed_objective_is_rounded_up(monkeypatch):
    splits = spy_on_calls(monkeypatch, recalibration.Share, "split")
    made = spy_on_calls(monkeypatch, minimiser, "PerturbedMinimiser")
    for epsilon in (1.0, 1.1, 1.2, 1.3, 1.4):
        budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
        dpk.solve("objective_perturbation", targets(n=900), budget=budget, rng=1, loss="squared")
    for split, call in zip(splits, made, strict=True):
        _, mean, line = map(Fraction, split.result)
        beside = Fraction(call.how["beside"]) ** 2
        assert mean**2 + line**2 <= beside <= (mean**2 + line**2) * (1 + Fraction(1, 1 << 50))


def skewed_targets(n, bound=7.0):
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (n, 4)), rng.exponential(1.5, n)
    y = np.clip(X @ [1.0, -0.5, 0.0, 0.0] + y - 2.0, -bound, bound)
    how = {"feature_range": (-1.0, 1.0), "intercept": True, "task": "regression"}
    return dpk.SiloData(X, y, [0, n], target_bound=bound, **how)


def test_targets_that_are_not_symmetric_have_their_mean():
    """Clipped gradients have the level of a median, and miss the mean."""
    data = skewed_targets(20_000)
    means = []
    for recalibrate in (True, False):
        how = {"recalibrate": recalibrate, "loss": "squared", "rng": 0}
        found = dpk.solve("gradient_descent", data, budget=BUDGET, **how)
        means.append(float(np.mean(data.y - data.X @ found.w[:-1] - found.w[-1])))
    assert abs(means[0]) < 0.12 < 0.2 < means[1]


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each(("trust", "m"), [("central", 1), ("silo", 3)])
def test_the_line_of_targets_has_the_sensitivities_that_are_stated(trust, m, neighbours):
    data = targets(m=m)
    size = {"public_size": data.sizes.tolist()} if neighbours == "add_remove" else {}
    how = {"trust": trust, "neighbours": neighbours, **size}
    result = dpk.solve("gradient_descent", data, budget=BUDGET, rng=1, loss="squared", **how)
    sizes, level = result.privacy.releases[-2:]
    unit = 2.0 if neighbours == "replace_one" else 1.0
    for release, what, clip in ((sizes, SIZES, 0.5), (level, LINE_OF_TARGETS, 0.7072)):
        assert release.what == what
        assert np.array_equal(np.atleast_1d(release.sensitivity), [clip * unit] * m)
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    assert dpk.verify(result.privacy.to_dict()).ok


def test_a_level_that_claims_less_or_is_left_out_is_found():
    result = dpk.solve("gradient_descent", targets(), budget=BUDGET, rng=1, loss="squared")
    privacy, (*others, sizes, level) = result.privacy, result.privacy.releases
    half = replace(level, sensitivity=0.5 * level.sensitivity)
    for line, ok in (([sizes, level], True), ([sizes, half], False), ([sizes], False), ([], False)):
        ledger = Ledger()
        for r in (*others, *line):
            ledger.append(replace(r, times=1), r.times)
        names = ("trust", "noise", "neighbours", "notes", "at_delta")
        kept = {name: getattr(privacy, name) for name in names}
        made = dpk.Certificate.from_ledger(ledger, declared=privacy.declared, **kept)
        assert dpk.verify(made.to_dict()).ok == ok


@for_each("how", [{"loss": dpk.losses.Huber(1.0)}, {"budget": dpk.Budget(epsilon=0.1, delta=1e-6)}])
def test_other_runs_release_no_line(how):
    """Of other losses, whose level is no mean, and with few records."""
    how = {"budget": BUDGET, "loss": "squared", "rounds": 5, "rng": 1, **how}
    result = dpk.solve("gradient_descent", targets(), **how)
    assert [r.what for r in result.privacy.releases if "residuals" in r.what] == []
    assert MEAN in [r.what for r in result.privacy.releases]


@for_each(
    ("record", "expected"),
    [
        ((30.0, 0.0), (0.5, 0.0)),
        ((0.0, 30.0), (-0.5, -0.5)),
        ((2.0, 1.0), (0.1, 0.1 * 2.0 / 4.0)),
        ((0.0, -4.0), (0.4, -0.5)),
        ((1.0, math.nan), (0.0, 0.0)),
    ],
)
def test_residuals_are_cut_to_parts_of_the_bound(record, expected):
    """To half of it for the level, a quarter for the slope, by predictions in units of 4."""
    y, z = (np.array([v]) for v in record)
    part = type("Part", (), {"y": y, "offsets": np.array([0, 1])})
    scaled = recalibration.Scaled(lambda part: z, 0.0, 4.0)
    vectors = target_line._residuals(10.0, scaled, part)(slice(0, 1))
    assert vectors[0] == pytest.approx(expected)
    assert np.linalg.norm(vectors) <= 0.7072


def test_predictions_that_are_noise_shrink_to_the_mean_of_targets():
    """Of targets that hardly depend on 50 columns, and only of these."""
    scores = []
    for signal in (0.3, 0.9):
        rng = np.random.default_rng(3)
        X, w = rng.uniform(-1.0, 1.0, (11_000, 50)), rng.standard_normal(50)
        z = X @ w / (X @ w).std()
        y = signal * z + math.sqrt(1.0 - signal**2) * rng.standard_normal(11_000)
        how = {"row_bound": math.sqrt(51.0), "intercept": True, "task": "regression"}
        data = dpk.SiloData(X[:1000], y[:1000], [0, 1000], target_bound=6.0, **how)
        found = []
        for run in range(8):
            result = dpk.solve("gradient_descent", data, budget=BUDGET, loss="squared", rng=run)
            error = np.mean((result.predict(X[1000:]) - y[1000:]) ** 2)
            found.append(1.0 - error / y[1000:].var())
        scores.append(np.mean(found))
    assert scores[0] == pytest.approx(-0.06, abs=0.01)  # without the slope -0.30
    assert scores[1] == pytest.approx(0.50, abs=0.01)


@for_each("bound", [1e-300, 1.0, 1e300])
@for_each("largest", [0.0, 5e-324, 1e300, math.inf, math.nan])
def test_no_slope_is_told_of_predictions_that_the_noise_hides(bound, largest):
    data = type("Data", (), {"target_bound": bound, "n": 300})
    run = type("Run", (), {"objective": type("Objective", (), {"data": data, "n": 300})})
    line = target_line._Line(run, 1.0, None)
    line._release = lambda what, clip, mu, vectors, dim: (np.array([60.0, -60.0][:dim]), 30.0)
    found = line.find(lambda part: np.zeros(300), largest, 0.0)
    assert 0.0 <= found.slope <= 1.0
    if largest == 5e-324:
        assert found.slope == pytest.approx(0.8, abs=1e-5)


def test_the_scale_of_predictions_is_of_their_distance_from_the_mean(monkeypatch):
    finds = spy_on_calls(monkeypatch, target_line._Line, "find")
    dpk.solve("gradient_descent", targets(middle=8.0), budget=BUDGET, loss="squared", rng=1)
    _, _, farthest, centre = finds[0].given
    assert centre > 7.0
    assert farthest < 4.0


@for_each("error", [0.001, 0.3])
def test_the_slope_of_gaussian_predictions_is_found(error):
    """Up to what is assumed to be cut of residuals; the error is of the root of their sizes."""
    rng = np.random.default_rng(0)
    n, bound = 100_000, 10.0
    z = 0.1 * rng.standard_normal(n)
    part = type("Part", (), {"y": 0.4 * z, "offsets": np.array([0, n])})
    data = type("Data", (), {"target_bound": bound, "n": n})
    run = type("Run", (), {"objective": type("Objective", (), {"data": data, "n": n})})
    line, root = target_line._Line(run, 1.0, None), np.sqrt(np.abs(z)).mean()
    line._root = lambda mu, vectors: (root, error * root)
    line._release = lambda what, clip, mu, vectors, dim: (
        vectors(part)(slice(0, n)).sum(axis=0), 1e-3,
    )  # fmt: skip
    found = line.find(lambda part: z, 1.0, 0.0)
    assert found.slope == pytest.approx(1.0 - 0.6 / 0.9, abs=0.03)


@for_each(
    ("slope", "level", "expected"),
    [(1.0, 0.5, (2.0, 3.5)), (0.5, 0.0, (1.0, 3.5)), (0.0, 1.0, (0.0, 4.0))],
)
def test_a_line_moves_predictions_about_the_first_mean(slope, level, expected):
    noise = CoefficientNoise(0.1, 0.3, proved=True)
    w, known = TargetLine(4.0, slope, level, 0.4).applied(np.array([2.0, 3.0]), noise)
    assert w == pytest.approx(expected)
    assert known.std == pytest.approx(0.1 * slope)
    assert known.intercept_std == pytest.approx(math.hypot(0.3 * slope, 0.4))
    assert not known.proved


def test_units_of_targets_that_double_double_the_model():
    models = []
    for scale in (1.0, 8.0):
        data = targets()
        other = dpk.SiloData(
            data.X, data.y * scale, [0, data.n], task="regression", target_bound=10.0 * scale,
            intercept=True, feature_range=(-1.0, 1.0),
        )  # fmt: skip
        result = dpk.solve("gradient_descent", other, budget=BUDGET, rng=1, loss="squared")
        models.append(result.w / scale)
    assert np.array_equal(*models)


def test_the_added_penalty_is_one_of_the_distance_from_the_first_model():
    """With as strong a penalty as a small budget asks for, the intercept stays near the mean."""
    budget = dpk.Budget(epsilon=0.3, delta=1e-6)
    data = targets(n=600)
    result = dpk.solve("objective_perturbation", data, budget=budget, rng=2, loss="squared")
    assert result.parameters["added_l2"] > 0.3  # a quarter of the offset would be lost from 0
    assert result.intercept == pytest.approx(6.0, abs=1.5)


@pytest.mark.filterwarnings("ignore:mu must be at most 6")
@pytest.mark.parametrize(
    ("solver", "how"),
    [
        ("wd_dp", {}),
        ("wd_dp", {"trust": "silo"}),
        ("wd_dp", {"trust": "silo", "accounting": "last_iterate"}),
        ("output_perturbation", {"loss": dpk.losses.Huber(50.0)}),
        ("output_perturbation", {"trust": "silo"}),
    ],
)
def test_hidden_steps_penalise_the_distance_from_the_first_model(monkeypatch, solver, how):
    """With little noise a run ends at the minimiser of this: one of |w| has an intercept of 5.5."""
    firsts, first = [], Run.first_model
    monkeypatch.setattr(Run, "first_model", lambda run: firsts.append(first(run)) or firsts[-1])
    data, given = targets(), {"loss": "squared", **how}
    budget = dpk.Budget(mu=1e4)
    result = dpk.solve(solver, data, budget=budget, rng=1, l2=0.1, step_size=0.2, **given)
    X = np.column_stack([data.X, np.ones(data.n)])
    H, g = X.T @ X / data.n + 0.1 * np.eye(5), X.T @ (data.y - firsts[0][-1]) / data.n
    assert firsts[0][-1] == pytest.approx(6.0, abs=0.1)
    assert np.allclose(result.w, firsts[0] + np.linalg.solve(H, g), atol=0.02)
    assert np.array_equal(data.y, targets().y)
    assert dpk.verify(result.privacy.to_dict())


@pytest.mark.parametrize("accounting", ["sound", "last_iterate"])
def test_steps_that_no_sensitivity_covers_are_refused_before_the_mean(accounting):
    x = np.random.default_rng(0).uniform(-0.1, 0.1, (200, 1))
    data = dpk.SiloData(
        x, 1e30 * x[:, 0], [0, 200], task="regression", intercept=True, row_bound=0.24,
        target_bound=1e30,
    )  # fmt: skip
    how = {"trust": "silo", "accounting": "last_iterate"} if accounting == "last_iterate" else {}
    with pytest.raises(ValueError, match="a model of norm beyond") as caught:
        dpk.solve(
            "wd_dp", data, budget=BUDGET, rng=0, loss="squared", l2=1e-3, local_steps=3, **how
        )
    assert not getattr(caught.value, "__notes__", ())
