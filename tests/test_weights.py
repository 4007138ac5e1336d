"""Weights of records, offsets of margins, and regressions with a log link."""

import math
import pickle

import numpy as np
import pytest
import scipy
import sklearn
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st
from makers import BUDGET, assert_refused, fail_at_call
from scipy.stats import norm
from sklearn.linear_model import GammaRegressor, LogisticRegression, PoissonRegressor
from sklearn.metrics import balanced_accuracy_score, mean_poisson_deviance
from sklearn.model_selection import cross_val_score

import dpkern as dpk
from dpkern import kernels
from dpkern.cli import main
from dpkern.estimators import (
    DPGammaRegressor,
    DPLinearSVC,
    DPLogisticRegression,
    DPPoissonRegressor,
)
from dpkern.models.losses import ComplementaryLogLog, Gamma, NegativeBinomial, Poisson
from dpkern.solvers import SOLVERS, Objective
from dpkern.solvers.base.calibration import LogMeans
from dpkern.solvers.base.outcome import RunEndedWarning
from dpkern.solvers.base.recalibration import LEVEL, _Level


def make_counts(n=4000, d=3, seed=0, most=8.0):
    """Rows, counts of a known rate, exposures and weights."""
    rng = np.random.default_rng(seed)
    X, exposure = rng.uniform(-1.0, 1.0, (n, d)), rng.uniform(0.2, 1.0, n)
    y = rng.poisson(exposure * np.exp(X @ np.linspace(1.0, -0.5, d) - 0.5))
    return X, np.minimum(y, most), exposure, rng.uniform(0.0, 3.0, n)


def counts_of_silos(**options):
    X, y, exposure, weight = make_counts(900)
    how = {"task": "regression", "intercept": True, "row_bound": 2.0}
    how |= {"margin_offset": np.log(exposure), "weight": weight, "max_weight": 2.0}
    return dpk.SiloData(X, y, [0, 200, 900], **how | options)


LOSS = Poisson(-5.0, 2.0, 8.0)


def test_losses_of_counts_refuse_labels_of_two_classes():
    data = dpk.SiloData(np.eye(4), [0, 1, 0, 1], [0, 4], row_bound=1.0)  # read as labels -1 and 1
    for loss in (LOSS, Gamma(-5.0, 2.0, 8.0), NegativeBinomial(1.0, 8.0)):
        message = "is for regression, the data's task is 'classification': build the data with"
        assert_refused(message, dpk.solve, "gradient_descent", data, budget=BUDGET, loss=loss)


def test_weights_are_in_units_of_the_largest_and_follow_their_records():
    X, y, exposure, weight = make_counts(60)
    how = {"task": "regression", "weight": weight, "max_weight": 2.0, "margin_offset": exposure}
    data = dpk.SiloData.split(X, y, 3, seed=1, **how)
    order = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in data.X]
    np.testing.assert_array_equal(data.record_weight, np.minimum(weight[order] / 2.0, 1.0))
    np.testing.assert_array_equal(data.margin_offset, exposure[order])
    groups = np.arange(60) % 4
    by_group = dpk.SiloData.from_groups(X, y, groups, **how)
    np.testing.assert_array_equal(
        by_group.margin_offset, exposure[np.argsort(groups, kind="stable")]
    )
    names = ("weight", "margin_offset")
    joined = dpk.SiloData.from_silos(
        [(X[:20], y[:20]), (X[20:], y[20:])],
        **how | {name: [how[name][:20], how[name][20:]] for name in names},
    )
    np.testing.assert_array_equal(joined.margin_offset, exposure)
    part = joined.part(np.array([5, 3, 40]), np.array([0, 1, 3]))
    np.testing.assert_array_equal(part.margin_offset, exposure[[5, 3, 40]])
    np.testing.assert_array_equal(part.record_weight, joined.record_weight[[5, 3, 40]])
    again = pickle.loads(pickle.dumps(joined))
    np.testing.assert_array_equal(again.record_weight, joined.record_weight)
    assert not again.record_weight.flags.writeable
    assert "weight, margin_offset" in repr(joined)


def test_weights_of_persons_follow_their_rows():
    X, y, exposure, weight = make_counts(60)
    person = np.arange(60) // 3
    how = {"task": "regression", "weight": weight, "max_weight": 3.0, "margin_offset": exposure}
    for make in (
        lambda **more: dpk.SiloData(X, y, [0, 60], **more),
        lambda **more: dpk.SiloData.split(X, y, 2, seed=0, **more),
        lambda **more: dpk.SiloData.from_groups(X, y, person % 2, **more),
    ):
        data = make(person=person, max_records=2, **how)
        order = [int(np.flatnonzero((row == X).all(axis=1))[0]) for row in data.X]
        assert len(order) == 40
        np.testing.assert_array_equal(data.margin_offset, exposure[order])
        np.testing.assert_array_equal(data.record_weight, weight[order] / 3.0)


@for_each(
    ("options", "said"),
    [
        ({"weight": [1.0, 2.0]}, r"weight must have shape \(4,\), a number a record, got \(2,\)"),
        ({"weight": [1, 1, -1, 1]}, "weight must be at least 0, got 1 negative of 4"),
        ({"weight": [1, 1, math.nan, 1]}, "weight must be finite, got 1 of 4 that are not"),
        ({"weight": np.ones(4), "max_weight": None}, "max_weight must be given with weight"),
        ({"weight": None}, "max_weight must be left out without weight, got 1.0"),
        ({"max_weight": 0.0}, "max_weight must be positive and finite, got 0.0"),
        ({"margin_offset": [1, 1, math.inf, 1]}, "margin_offset must be finite, got 1 of 4"),
        ({"margin_offset": 1.0}, r"margin_offset must have shape \(4,\)"),
    ],
)
def test_bad_weights_and_offsets_are_named(options, said):
    how = {"weight": np.ones(4), "max_weight": 1.0, "task": "regression"} | options
    assert_refused(said, dpk.SiloData, np.ones((4, 2)), np.arange(4.0), [0, 4], **how)


@pytest.mark.filterwarnings("ignore:no target_bound was stated")
@for_each("solver", sorted(SOLVERS))
def test_solvers_read_weights_or_refuse_them_before_a_release(solver, tmp_path):
    data, declared = counts_of_silos(), SOLVERS[solver].declaration
    ledger = dpk.Accountant(tmp_path / "ledger.json", epsilon=2.0, delta=1e-5)
    how = {"budget": BUDGET, "loss": LOSS, "rng": 0}
    if solver == "local_sgd":
        how |= {"trust": "silo", "noise": "step"}
    if not declared.weights:
        with pytest.raises(ValueError, match="data must have neither weight nor margin_offset"):
            dpk.solve(solver, data, accountant=ledger, **how)
        assert not ledger.entries
        return
    light = counts_of_silos(weight=np.zeros(900), max_weight=1.0)
    result, other = (dpk.solve(solver, d, **how) for d in (data, light))
    assert not np.array_equal(result.w, other.w)
    assert dpk.solve(solver, data, **how) == result
    assert result.privacy.declared["max_weight"] == 2.0
    assert result.privacy.epsilon(BUDGET.delta) <= 1.0 + 1e-9


@for_each(
    ("solver", "how"),
    [
        ("federated_gd", {"local_steps": 3}),
        ("local_sgd", {"local_steps": 3, "trust": "central"}),
    ],
)
def test_hidden_local_steps_refuse_them_before_a_release(solver, how, tmp_path):
    """The rounding of a margin with a far offset is more than their sensitivity allows for."""
    ledger = dpk.Accountant(tmp_path / "ledger.json", epsilon=2.0, delta=1e-5)
    X, y, exposure, _ = make_counts(300)
    labels = np.where(y > 0.0, 1.0, -1.0)
    data = dpk.SiloData(X, labels, [0, 90, 300], row_bound=2.0, margin_offset=exposure)
    with pytest.raises(ValueError, match="neither weight nor margin_offset for hidden local steps"):
        dpk.solve(solver, data, budget=BUDGET, accountant=ledger, rng=0, **how)
    assert not ledger.entries


def test_a_log_link_takes_targets_without_the_middle_of_their_bounds():
    X, y, _, _ = make_counts(400)
    how = {"task": "regression", "intercept": True, "row_bound": 2.0}
    pair, number = (
        dpk.SiloData(X, y, [0, 400], target_bound=bound, **how) for bound in ((0.0, 8.0), 8.0)
    )
    run = {"budget": BUDGET, "loss": Poisson(-5.0, 2.0), "rng": 0}
    first, second = (dpk.solve("gradient_descent", data, **run) for data in (pair, number))
    np.testing.assert_array_equal(first.w, second.w)
    assert first.privacy.declared["loss"]["max_target"] == 8.0
    assert first.calibration.level != 0.0
    said = "target_bound must be a number or None with the loss 'poisson'"
    assert_refused(said, Objective, pair, LOSS)


COLUMNS = [
    {"name": "age", "kind": "number", "lo": 0, "hi": 10},
    {"name": "claims", "kind": "target", "lo": 0, "hi": 3},
    {"name": "years", "kind": "exposure", "lo": 0.1, "hi": 2},
    {"name": "w", "kind": "weight", "lo": 0, "hi": 4},
]


@pytest.mark.filterwarnings("ignore:X has values out of range")
def test_schemas_have_columns_of_weights_and_exposures(tmp_path, capsys):
    schema = dpk.Schema.from_dict({"dpkern_schema": 1, "columns": COLUMNS})
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(0, 10, 500), "claims": rng.poisson(0.5, 500).astype(float)}
    table |= {"years": rng.uniform(0.0, 1.0, 500), "w": rng.uniform(0.0, 8.0, 500)}
    data = schema.silo_data(table)
    np.testing.assert_array_equal(
        np.sort(data.record_weight), np.sort(np.clip(table["w"] / 4, 0, 1))
    )
    years = np.clip(table["years"], 0.1, 2.0)
    np.testing.assert_allclose(np.sort(data.margin_offset), np.sort(np.log(years)))
    assert dpk.Schema.from_dict(schema.to_dict()) == schema
    table["w"][7] = math.nan
    assert_refused("column 'w' must hold the weight of every record", schema.silo_data, table)
    table["w"][7] = 1.0
    for column, said in (
        (COLUMNS[2] | {"lo": 0}, "lo of column 'years' must be above 0, got 0"),
        (COLUMNS[3] | {"lo": -1}, "lo of column 'w' must be at least 0, got -1"),
        ({"name": "w", "kind": "weight"}, "null or nothing for lo and hi of w"),
    ):
        columns = [c for c in COLUMNS if c["name"] != column["name"]] + [column]
        made = {"dpkern_schema": 1, "columns": columns}
        assert_refused(said, dpk.Schema.from_dict, made)
    schema.save(tmp_path / "schema.json")
    rows = zip(*table.values(), strict=True)
    lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "claims.csv").write_text("\n".join(lines))
    files = [str(tmp_path / "claims.csv"), "--schema", str(tmp_path / "schema.json")]
    how = [
        "--epsilon",
        "2",
        "--delta",
        "1e-5",
        "--set",
        "loss=poisson",
        "--out",
        str(tmp_path / "model.npz"),
    ]
    assert main(["fit", *files, *how]) == 0
    model = dpk.load(tmp_path / "model.npz")
    assert model.privacy.declared["max_weight"] == 4.0
    assert model.privacy.declared["loss"]["max_target"] == 3.0
    assert np.all(model.predict(table) > 0.0)


def test_weights_are_repeated_records_and_zeros_are_none():
    X, y, exposure, _ = make_counts(300)
    times = np.random.default_rng(1).integers(0, 4, 300)
    how = {"task": "regression", "intercept": True, "row_bound": 3.0}
    offset = np.log(exposure)
    weighted = dpk.SiloData(X, y, [0, 300], weight=times, max_weight=4, margin_offset=offset, **how)
    rows = np.repeat(np.arange(300), times)
    repeated = dpk.SiloData(X[rows], y[rows], [0, len(rows)], margin_offset=offset[rows], **how)
    for loss in (LOSS, NegativeBinomial(0.5, 8.0), dpk.losses.Huber(0.3)):
        light, _ = Objective(weighted, loss, l2=1e-3 * len(rows) / (4 * 300)).minimum()
        heavy, _ = Objective(repeated, loss, l2=1e-3).minimum()
        np.testing.assert_allclose(light, heavy, rtol=0, atol=2e-6)


def test_without_a_budget_regressions_are_scikit_learns():
    """With exposures y / exposure is scikit-learn's target, and the exposure its weight."""
    X, y, exposure, weight = make_counts(2000)
    how = {"row_bound": 5.0, "intercept": True, "task": "regression"}
    options = {"tol": 1e-12, "max_iter": 10_000, "solver": "newton-cholesky"}
    data = dpk.SiloData(X, y, [0, 2000], margin_offset=np.log(exposure), **how)
    ours, _ = Objective(data, Poisson(-9.0, 5.0), l2=0.01, penalize_intercept=False).minimum()
    mean = exposure.mean()  # scikit-learn divides the loss by the sum of weights
    theirs = PoissonRegressor(alpha=0.01 / mean, **options)
    theirs.fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(ours, [*theirs.coef_, theirs.intercept_], atol=1e-8)
    costs = np.random.default_rng(3).gamma(2.0, np.exp(X[:, 0]))
    data = dpk.SiloData(X, costs, [0, 2000], weight=weight, max_weight=3.0, **how)
    ours, _ = Objective(data, Gamma(-9.0, 9.0, 1e3), l2=0.01, penalize_intercept=False).minimum()
    theirs = GammaRegressor(alpha=0.03 / weight.mean(), **options)
    theirs.fit(X, costs, sample_weight=weight)
    np.testing.assert_allclose(ours, [*theirs.coef_, theirs.intercept_], atol=1e-8)
    labels = np.where(y > 0.0, 1.0, -1.0)
    data = dpk.SiloData(X, labels, [0, 2000], weight=weight, max_weight=3.0, **how | {"task": None})
    ours, _ = Objective(data, dpk.losses.Logistic(), l2=0.01, penalize_intercept=False).minimum()
    theirs = LogisticRegression(C=1.0 / (3.0 * 0.01 * 2000), tol=1e-12, solver="newton-cholesky")
    theirs.fit(X, labels, sample_weight=weight)
    np.testing.assert_allclose(ours, [*theirs.coef_[0], theirs.intercept_[0]], atol=1e-8)


def make_rare(n=20_000):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    rare = rng.random(n) < scipy.special.expit(2.0 * X[:, 0] - 3.0)
    return X, np.where(rare, "yes", "no"), rng.uniform(0.5, 2.0, n)


@for_each("kind", [DPLogisticRegression, DPLinearSVC])
def test_weights_of_classes_are_those_of_their_records(kind):
    X, y, weight = make_rare()
    how = {"feature_range": (-1.0, 1.0), "classes": ["no", "yes"], "random_state": 0, "C": 1e6}
    of_class = kind(1.0, 1e-6, class_weight={"yes": 8.0}, **how).fit(X, y)
    of_record = kind(1.0, 1e-6, max_weight=8.0, **how)
    of_record.fit(X, y, sample_weight=np.where(y == "yes", 8.0, 1.0))
    np.testing.assert_array_equal(of_class.coef_, of_record.coef_)
    theirs = LogisticRegression(C=1e6, class_weight={"yes": 8.0}).fit(X, y)
    found = [balanced_accuracy_score(y, model.predict(X)) for model in (of_class, theirs)]
    assert found[0] > found[1] - 0.02
    both = kind(1.0, 1e-6, class_weight={"yes": 8.0}, max_weight=2.0, **how)
    both.fit(X, y, sample_weight=weight)
    assert both.privacy_.declared["max_weight"] == 16.0


@for_each(
    ("given", "said"),
    [
        ("balanced", "class_weight must be a dictionary of public weights"),
        ({"maybe": 1.0}, r"class_weight must be of the classes \['no', 'yes'\], got \['maybe'\]"),
        ({"yes": -1.0}, r"class_weight\['yes'\] must be finite and at least 0, got -1.0"),
        ({"yes": 0.0, "no": 0.0}, "class_weight must have a positive weight"),
    ],
)
def test_bad_weights_of_classes_are_refused_uncharged(given, said, tmp_path):
    X, y, _ = make_rare(300)
    ledger = dpk.Accountant(tmp_path / "ledger.json", epsilon=2.0, delta=1e-5)
    how = {"feature_range": (-1.0, 1.0), "accountant": ledger, "delta": 1e-6}
    model = DPLogisticRegression(class_weight=given, classes=["no", "yes"], **how)
    with pytest.raises(ValueError, match=said):
        model.fit(X, y)
    several = DPLogisticRegression(class_weight={0: 2.0}, classes=[0, 1, 2], **how)
    with pytest.raises(ValueError, match="class_weight must be None for more than two classes"):
        several.fit(X, np.arange(300) % 3)
    for other in ("aaa", "zzz"):  # before and beyond the classes
        model.set_params(class_weight={"yes": 2.0})
        with pytest.raises(ValueError, match="y must hold labels of classes only, got 1 other"):
            model.fit(X, np.where(np.arange(300) == 3, other, y))
    assert not ledger.entries


def test_a_complementary_log_log_fit_is_its_maximum_likelihood():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (3000, 2))
    hazard = np.exp(X @ [0.8, -0.4] - 2.0)
    y = np.where(rng.random(3000) < -np.expm1(-hazard), 1.0, -1.0)
    data = dpk.SiloData(X, y, [0, 3000], intercept=True, row_bound=2.0)
    ours, _ = Objective(data, ComplementaryLogLog(high=3.0)).minimum()

    def deviance(w):
        h = np.exp(X @ w[:2] + w[2])
        return -np.mean(np.where(y > 0.0, np.log(-np.expm1(-h)), -h))

    theirs = scipy.optimize.minimize(deviance, np.zeros(3), method="Nelder-Mead", tol=1e-10)
    np.testing.assert_allclose(ours, theirs.x, atol=2e-4)
    np.testing.assert_allclose(ours, [0.8, -0.4, -2.0], atol=0.3)


def test_a_probit_fit_is_its_maximum_likelihood_and_predicts_it():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (3000, 2))
    z = X @ [0.8, -0.4] - 0.5
    y = z + rng.normal(size=3000) > 0.0
    data = dpk.SiloData(X, y, [0, 3000], intercept=True, row_bound=2.0)
    result = dpk.solve("gradient_descent", data, budget=None, loss="probit", rounds=2000)

    def deviance(w):
        return -np.mean(norm.logcdf(data.y * (X @ w[:2] + w[2])))

    theirs = scipy.optimize.minimize(deviance, np.zeros(3), tol=1e-12).x
    np.testing.assert_allclose(result.w, theirs, atol=1e-5)
    np.testing.assert_allclose(result.w, [0.8, -0.4, -0.5], atol=0.2)
    p = result.predict_proba(X)
    np.testing.assert_allclose(p[:, 1], norm.cdf(X @ result.coef + result.intercept), rtol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert result.coefficients().unit == "margin"


def test_a_log_link_predicts_means_within_its_bounds_and_files_keep_them(tmp_path):
    data, far = counts_of_silos(), np.array([[1e3, 0.0, 0.0], [-1e3, 0.0, 0.0]])
    for budget in (None, BUDGET):
        result = dpk.solve("gradient_descent", data, budget=budget, loss=LOSS, rng=0, rounds=50)
        result.save(tmp_path / "model.npz")
        again = dpk.load(tmp_path / "model.npz")
        assert isinstance(again.calibration, LogMeans)
        np.testing.assert_array_equal(again.predict(data.X), result.predict(data.X))
        level = result.calibration.level
        assert (level == 0.0) == (budget is None)
        z = np.clip(kernels.glm_margins(data, result.w) - data.margin_offset, -5.0, 2.0)
        np.testing.assert_allclose(result.predict(data.X), np.exp(z + level), rtol=1e-12)
        wide = dpk.solve("gradient_descent", data, budget=budget, loss=LOSS, rng=0, rounds=50)
        assert np.all(wide.predict(far) <= math.exp(2.0 + level) * (1.0 + 1e-12))
        if budget is not None:
            assert dpk.verify(result.privacy.to_dict())
            edited = result.privacy.to_dict()
            edited["releases"] = [r for r in edited["releases"] if r["what"] != LEVEL]
            assert not dpk.verify(edited)


def test_the_level_makes_the_mean_prediction_that_of_the_records():
    X, y, _, _ = make_counts(20_000)
    data = dpk.SiloData(X, y, [0, 20_000], intercept=True, row_bound=2.0, task="regression")
    shares = []
    for seed in range(10):
        result = dpk.solve(
            "gradient_descent", data, budget=BUDGET, loss=LOSS, rng=seed, clip="auto"
        )
        shares.append(result.predict(X).mean() / y.mean())
    assert abs(np.mean(shares) - 1.0) < 0.03
    assert np.std(shares) < 0.06
    off = dpk.solve("gradient_descent", data, budget=BUDGET, loss=LOSS, rng=0, recalibrate=False)
    assert off.calibration.level == 0.0


@given(
    y=st.floats(allow_nan=False, allow_infinity=False),
    x=st.floats(allow_nan=False, allow_infinity=False),
    offset=st.floats(-1e300, 1e300),
    weight=st.floats(0.0, 1e300),
)
def test_no_record_adds_more_to_a_level_than_its_clip_norm(y, x, offset, weight):
    X = np.array([[x], [0.5]])
    data = dpk.SiloData(
        X, np.array([y, 1.0]), [0, 2], task="regression", row_bound=1.0, weight=[weight, 1.0],
        max_weight=3.0, margin_offset=[offset, 0.0], feature_range=(-1.0, 1.0),
    )  # fmt: skip
    seen, plain = [], _Level._release

    def release(self, what, clip, mu, vectors, dim):
        assert clip == 0.7072
        seen.append(vectors(data)(slice(0, 2)))
        return plain(self, what, clip, mu, vectors, dim)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Level, "_release", release)
        dpk.solve("gradient_descent", data, budget=BUDGET, loss=LOSS, rng=0, rounds=2)
    (vectors,) = seen
    assert np.all(np.linalg.norm(vectors, axis=1) <= 0.7072)
    assert np.all(np.isfinite(vectors))


def test_estimators_of_counts_learn_with_their_defaults():
    X, y, exposure, weight = make_counts(20_000)
    truth = np.exp(X @ [1.0, 0.25, -0.5] - 0.5)
    how = {"feature_range": (-1.0, 1.0), "random_state": 0, "max_target": 8.0}
    model = DPPoissonRegressor(1.0, 1e-6, **how).fit(X, y, exposure=exposure)
    assert np.corrcoef(model.predict(X), truth)[0, 1] > 0.99
    means = model.predict(X) * exposure
    constant = exposure * (y.sum() / exposure.sum())
    explained = 1.0 - mean_poisson_deviance(y, means) / mean_poisson_deviance(y, constant)
    assert model.score(X, y, exposure=exposure) == pytest.approx(explained)
    assert abs(model.predict(X).mean() / truth.mean() - 1.0) < 0.1
    weighted = DPPoissonRegressor(1.0, 1e-6, max_weight=2.0, **how)
    weighted.fit(X, y, exposure=exposure, sample_weight=weight)
    assert weighted.privacy_.declared["max_weight"] == 2.0
    np.testing.assert_allclose(weighted.coef_, [1.0, 0.25, -0.5], atol=0.2)
    costs = np.random.default_rng(1).gamma(2.0, 100.0 * truth)
    model = DPGammaRegressor(
        1.0, 1e-6, **how | {"max_target": 2000.0, "mean_range": (10.0, 1000.0)}
    )
    assert model.fit(X, costs).score(X, costs) > 0.1
    assert model.score(X, costs * exposure, exposure=exposure) == pytest.approx(
        model.score(X, costs)
    )
    np.testing.assert_allclose(model.coef_, [1.0, 0.25, -0.5], atol=0.2)


@pytest.mark.parametrize(
    ("loss", "bounds"),
    [
        ("poisson", (0.0002, 0.2)),
        ("gamma", (0.002, 0.2)),
        (Poisson(-8.0, 3.0), (math.exp(-8.0), math.exp(3.0))),
    ],
)
def test_bounds_of_means_follow_from_that_of_targets_unless_stated(loss, bounds):
    X, y, *_ = make_counts(400)
    data = dpk.SiloData(
        X, y / 40.0, [0, 400], task="regression", intercept=True, row_bound=2.0, target_bound=0.2
    )
    result = dpk.solve("gradient_descent", data, budget=BUDGET, loss=loss, rng=0, rounds=2)
    of_run = result.privacy.declared["loss"]
    found = (math.exp(of_run["low"]), math.exp(of_run["high"]), of_run["max_target"])
    np.testing.assert_allclose(found, (*bounds, 0.2), rtol=1e-12)


@for_each("make", [Poisson, Gamma])
@for_each("most", [5e-324, 1e-129, 1e-128, 1.0, 1e131, 1.7e308])
def test_bounds_of_means_are_within_those_of_a_loss_for_any_targets(make, most):
    loss = make.of_targets(most)
    assert loss.max_target == most
    assert -300.0 <= loss.low < loss.high <= 300.0


@pytest.mark.parametrize("unit", [1.0, 1000.0])
@pytest.mark.parametrize("make", [DPPoissonRegressor, DPGammaRegressor])
def test_means_are_learnt_in_any_unit_from_a_bound_of_targets(make, unit):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (20_000, 3))
    truth = unit * np.exp(X @ [1.0, 0.25, -0.5])
    y = np.minimum(rng.gamma(3.0, truth / 3.0), 10.0 * unit)
    how = {"feature_range": (-1.0, 1.0), "random_state": 0, "max_target": 10.0 * unit}
    means = make(1.0, 1e-6, **how).fit(X, y).predict(X)
    assert np.abs(np.log(means / truth)).mean() < 0.15


def test_negative_binomial_counts_have_the_level_of_means():
    X, y, exposure, _ = make_counts(20_000)
    data = dpk.SiloData(
        X, y, [0, 20_000], task="regression", intercept=True, row_bound=2.0, target_bound=8.0,
        margin_offset=np.log(exposure),
    )  # fmt: skip
    result = dpk.solve("auto", data, budget=BUDGET, loss="negative_binomial", rng=0)
    assert result.privacy.declared["clip"] == pytest.approx(2.0)
    assert abs((exposure * result.predict(X)).sum() / y.sum() - 1.0) < 0.05
    np.testing.assert_allclose(result.coef, [1.0, 0.25, -0.5], atol=0.3)


def test_weights_and_exposures_are_routed_and_checked():
    X, y, exposure, weight = make_counts(200)
    model = DPPoissonRegressor(max_weight=3.0, feature_range=(-1.0, 1.0), random_state=0)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = model.set_fit_request(exposure=True, sample_weight=True)
        assert routed.get_metadata_routing().fit.requests["exposure"] is True
        routed.set_score_request(exposure=True, sample_weight=True)
        given = {"exposure": exposure, "sample_weight": weight}
        assert len(cross_val_score(routed, X, y, cv=2, error_score="raise", params=given)) == 2
    for name, value, said in (
        ("exposure", exposure[:5], r"exposure must have shape \(200,\)"),
        ("exposure", 0.0 * exposure, "exposure must be positive, got 200 of 200"),
        ("sample_weight", -weight, "weight must be at least 0"),
    ):
        assert_refused(said, model.fit, X, y, **{name: value})
    assert_refused("y must be at least 0", model.fit, X, -y - 1.0)
    assert_refused("TypeError: y must be real numbers", model.fit, X, np.where(y > 0.0, "a", "b"))
    assert_refused("max_target must be given", DPGammaRegressor().fit, X, y + 1.0)
    assert_refused("y must be positive", DPGammaRegressor(max_target=3.0).fit, X, 0.0 * y)
    bad = DPPoissonRegressor(mean_range=(2.0, 1.0))
    assert_refused("mean_range must have 0 < lo < hi", bad.fit, X, y)
    labels = np.where(y > 0.0, 1, 0)
    first, second = (
        DPLogisticRegression(max_weight=3.0, random_state=0).fit(X, labels, sample_weight=w)
        for w in (weight, 2.0 * weight)
    )
    assert not np.array_equal(first.coef_, second.coef_)
    assert first.result_.calibration is None


@for_each("loss", [LOSS, Gamma(-5.0, 2.0, 8.0), NegativeBinomial(1.0, 8.0)])
def test_a_log_link_refuses_targets_that_are_shifted(loss):
    said = "target_bound must be a number or None with the loss"
    assert_refused(said, Objective, counts_of_silos(target_bound=(0.0, 8.0)), loss)
    for bound in (8.0, (-8.0, 8.0)):
        np.testing.assert_array_equal(counts_of_silos(target_bound=bound).y, counts_of_silos().y)
        Objective(counts_of_silos(target_bound=bound), loss)


def test_weights_far_above_the_largest_one_do_not_overflow():
    with np.errstate(all="raise"):
        data = counts_of_silos(weight=np.full(900, 1e300), max_weight=1e-10)
    assert np.all(data.record_weight == 1.0)


def test_a_level_that_is_all_noise_is_small():
    X, y, _, _ = make_counts(4000)
    data = dpk.SiloData(X, y, [0, 4000], intercept=True, row_bound=2.0, task="regression")
    levels = []
    for seed in range(12):
        loss = Poisson(-5.0, 2.0, 1e6)
        result = dpk.solve(
            "gradient_descent", data, budget=BUDGET, loss=loss, rng=seed, rounds=3, clip="auto"
        )
        levels.append(result.calibration.level)
    assert 0.0 in levels
    assert np.mean(levels) < 1.0


@for_each("most", [5e-324, 1e300, 1.7e308])
@for_each("bounds", [(-300.0, 300.0), (-300.0, -299.0), (-5.0, 2.0)])
def test_levels_of_extreme_bounds_are_numbers(most, bounds):
    X, y, _, _ = make_counts(300)
    data = dpk.SiloData(X, y, [0, 300], intercept=True, row_bound=2.0, task="regression")
    how = {"budget": BUDGET, "rng": 0, "rounds": 3, "step_size": 1e-3, "clip": "auto"}
    result = dpk.solve("gradient_descent", data, loss=Poisson(*bounds, most), **how)
    assert abs(result.calibration.level) <= 3.0
    means = result.predict(X)
    assert np.all((means >= 0.0) & np.isfinite(means))


@pytest.mark.usefixtures("round_by_round")
def test_a_run_of_a_log_link_that_fails_predicts_means(monkeypatch):
    fail_at_call(monkeypatch, kernels, "glm_gradient", 4)
    data = counts_of_silos()
    with pytest.warns(RunEndedWarning):
        result = dpk.solve("gradient_descent", data, budget=BUDGET, loss=LOSS, rng=0, rounds=9)
    assert result.calibration == LogMeans.of(LOSS)
    assert np.all(result.predict(data.X) > 0.0)


def test_a_gamma_loss_of_tiny_targets_has_a_curvature_bound():
    loss = Gamma(299.0, 300.0, 5e-324)
    assert 0.0 < loss.smoothness < 1e-300
    dpk.solve("gradient_descent", counts_of_silos(), budget=BUDGET, loss=loss, rng=0, rounds=2)


def test_coefficients_of_a_log_link_are_of_the_log_of_means():
    result = dpk.solve("gradient_descent", counts_of_silos(), budget=BUDGET, loss=LOSS, rng=0)
    assert result.coefficients().note.startswith("coefficients are those of the log of means")


@for_each("loss", ["poisson", "gamma", "negative_binomial"])
def test_targets_of_a_log_link_have_an_upper_end_above_0(loss):
    said = "target_bound must have an upper end above 0 with the loss"
    data = counts_of_silos(target_bound=(-5.0, -1.0))
    assert_refused(said, dpk.solve, "auto", data, budget=BUDGET, loss=loss)
