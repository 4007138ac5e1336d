"""Ordered classes: sums of their clipped gradients, probabilities, fits, and what is released."""

import itertools
import math

import numpy as np
import pytest
import scipy
from adversarial import (
    FLUSH,
    ROW_OPTIONS,
    anywhere,
    coarsest_grid,
    one_record,
    random_cases,
    rows,
)
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import BUDGET, assert_refused
from pairwise import pairwise
from scipy.special import expit
from scipy.stats import norm
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.estimators import DPOrdinalClassifier
from dpkern.federated.proposal import Proposal
from dpkern.kernels.grids import finest_grid
from dpkern.models.ordinal import ordered
from dpkern.solvers.base.first_model import CLASSES

K = 5
CLIPS = (1e-3, 1.0, 1.7, 3e5)
MODEL = dpk.AllThreshold()


def ordered_silos(n=3000, p=3, classes=K, *, seed=0, m=1, **options):
    """Records whose log odds of a higher class are linear in the rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, p))
    z = X @ np.linspace(1.5, -1.0, p) + rng.logistic(size=n)
    y = np.digitize(z, np.linspace(-1.5, 1.5, classes - 1))
    how = {"task": "multiclass", "classes": np.arange(classes), "row_bound": 2.0} | options
    return dpk.SiloData(X, y, np.linspace(0, n, m + 1).astype(int), **how)


def with_classes(data, seed=3):
    data.y = np.random.default_rng(seed).integers(-1, K, data.n).astype(float)
    return data


@pairwise("isa", dtype=[np.float32, np.float64], affine=[False, True], csr=[False, True],
          weighted=[False, True], row_bound=[math.inf, 2.0], p=[1, 11, 70],
          how=["plain", "grid", "rows", "weights", "unclipped"])  # fmt: skip
def test_sums_are_those_of_the_reference(make, dtype, affine, csr, weighted, row_bound, p, how):
    data = make(p=p, dtype=dtype, affine=affine, csr=csr, weighted=weighted, row_bound=row_bound)
    w = np.random.default_rng(0).normal(size=(data.m, p + K - 1))
    chosen = np.arange(0, data.n, 3)
    given = {
        "plain": {"clip": 0.7, "grid": 2.0**-30},
        "grid": {"clip": 3.0, "grid": 2.0 ** -np.arange(20.0, 20.0 + data.m)},
        "rows": {"clip": 0.7, "rows": (chosen, np.searchsorted(chosen, data.offsets))},
        "weights": {"clip": 2.0, "silo_weight": [1.0, 0.5, 0.3, 0.0], "grid": 2.0**-30},
        "unclipped": {"clip": math.inf},
    }[how] | {"classes": K, "unit": 1.5}
    with_classes(data)
    ours = kernels.ordinal_gradient(data, w, **given)
    if how == "rows":
        given["grid"] = finest_grid(data.n, 0.7)
    theirs = ref.ordinal_gradient(data, w, **given)
    np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=2.0**-19 if how == "grid" else 1e-7)


def test_two_classes_are_logistic_regression_with_an_intercept(make, bare_records):
    data = make(p=7, row_bound=2.0)
    w, how = np.linspace(-1.0, 1.0, 8), {"clip": math.inf}
    ours = kernels.ordinal_gradient(data, w, classes=2, **how)
    z = kernels.glm_margins(data, w[:7]) - w[7]
    s = kernels.glm.loss_derivatives(data.y, z, loss="logistic")
    each = np.hstack([s[:, None] * (data.X * np.minimum(1, 2 / kernels.glm_norms(data))[:, None]),
                      -s[:, None]])  # fmt: skip
    np.testing.assert_allclose(ours, np.add.reduceat(each, data.offsets[:-1]), rtol=1e-9)


@for_each("flush", [0, FLUSH])
@for_each("options", ROW_OPTIONS.values(), ids=ROW_OPTIONS)
@pytest.mark.usefixtures("isa")
def test_one_record_of_a_class_adds_no_more_than_the_clip(
    flush, options, bare_records, longer, control_bits
):
    options = {**options, "intercept": False}
    hard = rows(64, 513)
    for name, y, clip in itertools.product(hard, (-1.0, 0.0, 2.0, 1e300), CLIPS):
        data = one_record(bare_records, hard[name], y, **options)
        d = data.d + K - 1
        w = np.append(np.full(data.d, 1e200 if y == 2.0 else 0.1), [-3.0, -1.0, 1.0, 3.0])
        for grid, unit in itertools.product((finest_grid(1, clip), coarsest_grid(clip, d)),
                                            (1e-6, 1.0, 1e6)):  # fmt: skip
            for weight in (None, 0.7):
                how = {"clip": clip, "grid": grid, "unit": unit, "silo_weight": weight}
                with control_bits(flush):
                    v = kernels.ordinal_gradient(data, w, classes=K, **how)
                assert not longer(v, grid, clip), name


@given(case=random_cases(n=2), other=st.integers(-1, K - 1), far=st.floats(-50, 50))
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_a_record_moves_the_sum_by_twice_the_clip(case, other, far, bare_records, longer):
    X, _, options, w, clip, _ = case
    options["intercept"] = False
    clip = min(max(clip, 1e-6), 1e6)
    w = np.append(w[: X.shape[1]], far + np.arange(K - 1.0))
    grid = finest_grid(2, clip)
    how = {"classes": K, "clip": clip, "grid": grid, "unit": 3.0}
    sums = []
    for row, label in ((0, 0.0), (1, float(other))):
        pair = np.vstack([X[:1], X[row : row + 1]])
        data = bare_records(pair, np.array([4.0, label]), [0, 2], **options)
        sums.append(kernels.ordinal_gradient(data, w, **how))
    assert not longer(sums[1] - sums[0], grid, 2 * clip)


def test_the_charge_is_reached_by_far_records_of_the_ends(bare_records):
    x = np.array([[1.0, 2.0]])
    w, how = np.append([0.0, 0.0], np.zeros(K - 1)), {"classes": K, "clip": 1.0, "unit": 2.0}
    low, high = (
        kernels.ordinal_gradient(bare_records(x, np.array([c]), [0, 1]), w, **how)
        for c in (0.0, K - 1.0)
    )
    assert np.linalg.norm(low - high) == pytest.approx(2.0, rel=1e-6)


@pytest.mark.usefixtures("isa")
def test_what_a_record_of_a_class_adds_depends_on_no_other(make):
    data = with_classes(make(p=13, dtype=np.float32, row_bound=1.0, weighted=True))
    w, how = np.random.default_rng(1).normal(size=13 + K - 1), {"classes": K, "clip": 0.7}
    grid = finest_grid(data.n, 0.7)
    silo = np.searchsorted(data.offsets, np.arange(data.n), side="right") - 1
    alone = 0.0
    for i in range(data.n):
        rows_ = np.array([i]), np.repeat([0, 1], [silo[i] + 1, data.m - silo[i]])
        alone = alone + kernels.ordinal_gradient(data, w, grid=grid, rows=rows_, **how)
    for threads in (1, 3):
        found = kernels.ordinal_gradient(data, w, grid=grid, n_threads=threads, **how)
        np.testing.assert_array_equal(found, alone)


@for_each(
    ("given", "message"),
    [
        ({"classes": 1}, "classes must be at least 2"),
        ({"classes": 65}, "classes must be at most 64, got 65"),
        ({"unit": 0.0}, "unit must be positive"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"w": np.zeros(3)}, "w must have shape"),
        ({"grid": 2.0 * coarsest_grid(1.0, 3 + K - 1)}, "grid must be"),
    ],
)
def test_arguments_of_ordered_classes_are_checked(given, message):
    data = ordered_silos(50)
    how = {"classes": K, "clip": 1.0, **given}
    w = how.pop("w", np.zeros(3 + how["classes"] - 1))
    assert_refused(message, kernels.ordinal_gradient, data, w, **how)


# ------------------------------------------------------------------------------------- fits


def objective(w, X, y, l2):
    """The definition, apart from the package's: the value of the mean loss with its penalty."""
    p = X.shape[1]
    z = X @ w[:p]
    losses = [np.logaddexp(0.0, -np.where(y > k, 1.0, -1.0) * (z - w[p + k])) for k in range(K - 1)]
    return np.mean(np.sum(losses, axis=0)) + 0.5 * l2 * w[:p] @ w[:p]


def test_without_a_budget_the_minimum_is_reached():
    data, l2 = ordered_silos(800), 0.01
    result = dpk.solve("auto", data, budget=None, model=MODEL, l2=l2, rounds=4000)
    found = scipy.optimize.minimize(
        objective, np.zeros(3 + K - 1), (data.X, data.y, l2), method="BFGS", options={"gtol": 1e-9}
    )
    coef, thresholds = result.oracle.parts(result.w, 3)
    ours = np.append(coef, thresholds)
    assert objective(ours, data.X, data.y, l2) <= found.fun + 1e-13
    # To 1e-7 of SciPy's, whose last steps differences of the value do not tell apart.
    for _ in range(3):
        found.x = scipy.optimize.least_squares(
            lambda w: gradient(w, data.X, data.y, l2), found.x, xtol=1e-15, ftol=1e-15, gtol=1e-15
        ).x
    np.testing.assert_allclose(ours, found.x, atol=1e-7)
    assert result.converged


def gradient(w, X, y, l2):
    p = X.shape[1]
    d = expit((X @ w[:p])[:, None] - w[p:]) - (y[:, None] > np.arange(K - 1))
    return np.append(X.T @ d.sum(axis=1) / len(y) + l2 * w[:p], -d.mean(axis=0))


def test_weights_and_offsets_of_ordered_records_enter_the_fit():
    data = ordered_silos(800)
    weight, offset = np.where(np.arange(800) < 400, 2.0, 0.0), np.full(800, 0.3)
    how = {"budget": None, "model": MODEL, "rounds": 3000}
    weighted = ordered_silos(800, weight=weight, max_weight=2.0, margin_offset=offset)
    ours = dpk.solve("minibatch_sgd", weighted, l2=0.005, **how)
    half = dpk.SiloData(
        data.X[:400], data.y[:400], [0, 400], task="multiclass", classes=range(K), row_bound=2.0
    )
    theirs = dpk.solve("minibatch_sgd", half, l2=0.01, **how)
    coef, thresholds = ours.oracle.parts(ours.w, 3)
    np.testing.assert_allclose(coef, theirs.w[:3], atol=1e-5)
    np.testing.assert_allclose(thresholds - 0.3, theirs.oracle.parts(theirs.w, 3)[1], atol=1e-5)
    refused = "data must have neither weight nor margin_offset"
    assert_refused(refused, dpk.solve, "spider", weighted, budget=None, model=MODEL)


@for_each("classes", [2, 3, K])
def test_probabilities_are_differences_of_those_above_thresholds(classes, tmp_path):
    data = ordered_silos(classes=classes)
    result = dpk.solve("auto", data, budget=BUDGET, model=MODEL, rng=0)
    coef, thresholds = result.oracle.parts(result.w, 3)
    above = expit((data.X @ coef)[:, None] - thresholds)
    edges = np.hstack([np.ones((data.n, 1)), above, np.zeros((data.n, 1))])
    p = result.predict_proba(data.X)
    np.testing.assert_allclose(p, -np.diff(edges), atol=1e-12)
    assert result.predict(data.X).tolist() == p.argmax(axis=1).tolist()
    result.save(tmp_path / "model.npz")
    again = dpk.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.predict_proba(data.X), p)
    assert again == result


def test_thresholds_out_of_order_are_moved_to_the_nearest_in_order():
    np.testing.assert_allclose(ordered(np.array([-1.0, 0.0, 2.0])), [-1.0, 0.0, 2.0], rtol=1e-15)
    np.testing.assert_allclose(ordered(np.array([1.0, 0.0, 3.0])), [0.495, 0.505, 3.0])
    assert np.diff(ordered(np.array([1.0, 1.0, 1.0]))) == pytest.approx(0.01)
    model = dpk.AllThreshold(1.0)
    far = model.outputs(np.array([1e3, 2.0, -2.0]), np.array([[1e3], [-1e3], [0.0]]))
    assert np.isfinite(far).all()
    np.testing.assert_allclose(np.exp(far).sum(axis=1), 1.0)


def test_gradients_by_numpy_are_those_of_the_kernel_and_of_the_losses():
    data, w = ordered_silos(20), np.linspace(-1.0, 1.0, 3 + K - 1)
    model = MODEL.stated_for(data)
    assert model.unit == 2.0
    rows_ = data.transform.apply(data.X)
    ours = model.gradients(w, rows_, data.y)
    found = kernels.ordinal_gradient(data, w, classes=K, unit=2.0, clip=math.inf)[0]
    np.testing.assert_allclose(ours.sum(axis=0), found, atol=1e-12)
    for j, step in enumerate(1e-6 * np.eye(len(w))):
        change = model.losses(w + step, rows_, data.y) - model.losses(w - step, rows_, data.y)
        np.testing.assert_allclose(change / 2e-6, ours[:, j], atol=1e-7)


def test_the_stated_curvature_is_that_of_a_record_at_all_thresholds():
    data = ordered_silos(50)
    model = MODEL.stated_for(data)
    x, w = data.row_bound * np.eye(1, 3), 1e-3 * np.eye(1, 3 + K - 1)[0]
    below, above = (model.gradients(point, x, np.ones(1))[0] for point in (-w, w))
    curvature = np.linalg.norm(above - below) / 2e-3
    assert 0.8 * model.scale(data).smoothness < curvature <= model.scale(data).smoothness


def test_a_probit_sum_over_thresholds_is_summed_too():
    data, w = ordered_silos(100), np.linspace(-1.0, 1.0, 3 + K - 1)
    found = kernels.ordinal_gradient(data, w, classes=K, loss=dpk.losses.Probit(8), clip=math.inf)
    z = (data.transform.apply(data.X) @ w[:3])[:, None] - w[3:]
    s = np.where(data.y[:, None] > np.arange(K - 1), 1.0, -1.0)
    theirs = -s * np.exp(norm.logpdf(z) - norm.logcdf(s * z))
    np.testing.assert_allclose(found[0, 3:], -theirs.sum(axis=0), rtol=1e-9)


# ------------------------------------------------------------------------------ what is released


@for_each("trust", ["central", "silo"])
@for_each("neighbours", ["replace_one", "add_remove"])
def test_certificates_count_the_classes_and_the_gradients(trust, neighbours):
    data = ordered_silos(m=3)
    how = {"trust": trust, "neighbours": neighbours, "rounds": 7, "model": MODEL}
    if neighbours == "add_remove":
        how["public_size"] = data.sizes.tolist()
    result = dpk.solve("minibatch_sgd", data, budget=BUDGET, **how)
    values, unit = result.privacy.to_dict(), 2.0 if neighbours == "replace_one" else 1.0
    counts, gradients = values["releases"]
    assert counts["what"] == CLASSES
    assert set(np.ravel(counts["sensitivity"])) == {unit}
    assert (counts["times"], gradients["times"]) == (1, 7)
    assert set(np.ravel(gradients["sensitivity"])) == {unit * result.parameters["clip"]}
    assert (counts["dim"], gradients["dim"]) == (K, 3 + K - 1)
    assert values["declared"]["model"] == {"name": "all_threshold", "unit": 2.0}
    assert dpk.verify(values)
    gradients["dim"] = 3
    assert not dpk.verify(values)
    assert result.privacy.epsilon(BUDGET.delta) <= BUDGET.epsilon


def test_counts_of_classes_differ_by_no_more_than_is_charged():
    """A record's indicators less 1 / K are no longer than 1, and are not clipped."""
    for classes in (2, 3, 64):
        v = np.eye(classes) - 1.0 / classes
        assert np.linalg.norm(v, axis=1).max() <= 1.0
        assert np.linalg.norm(v[0] - v[1]) <= 2.0


def test_the_start_is_at_the_rates_and_a_clip_of_the_user_spends_nothing_on_them():
    data = ordered_silos(20_000)
    how = {"model": MODEL, "rng": 0, "rounds": 1, "step_size": 1e-9}
    result = dpk.solve("minibatch_sgd", data, budget=BUDGET, **how)
    rates = np.bincount(data.y.astype(int)) / data.n
    np.testing.assert_allclose(result.predict_proba(data.X)[0], rates, atol=0.02)
    for more in ({"clip": 1.0}, {"recalibrate": False}):
        plain = dpk.solve("minibatch_sgd", data, budget=BUDGET, **(how | more))
        assert len(plain.privacy.to_dict()["releases"]) == 1
        np.testing.assert_allclose(plain.predict_proba(data.X), 1 / K, atol=1e-6)


def test_parties_can_be_told_of_ordered_classes(tmp_path):
    plan = Proposal("minibatch_sgd", BUDGET, {"model": dpk.AllThreshold(2.0), "rounds": 3})
    assert Proposal.from_json(plan.to_json()).arguments["model"] == dpk.AllThreshold(2.0)


def test_a_federation_has_the_bits_of_the_records_together():
    data = ordered_silos(m=3)
    how = {"budget": BUDGET, "model": MODEL, "rounds": 3, "colluding": 0}
    result = dpk.solve("minibatch_sgd", data, **how)
    assert dpk.verify(result.privacy.to_dict())


@pytest.mark.statistical
@pytest.mark.parametrize("power", [150, 300, 1000])
@pytest.mark.parametrize("classes", [2, 3, K])
def test_predictions_are_not_worse_than_the_rates(classes, power):
    data = ordered_silos(4000, classes=classes)
    rates = np.bincount(data.y.astype(int)) / data.n
    own = np.arange(data.n), data.y.astype(int)
    rows_ = data.transform.apply(data.X)
    losses = [
        -np.log(
            dpk.solve("auto", data, budget=dpk.Budget(mu=power / 4000), model=MODEL, rng=i)
            .predict_proba(rows_)[own]
        ).mean()
        for i in range(20)
    ]  # fmt: skip
    best = -np.log(rates[own[1]]).mean()
    assert np.mean(losses) <= best + 0.01 + 3.0 * np.std(losses) / math.sqrt(20)


@for_each(
    ("options", "solver"),
    [
        ({}, "newton_inference"),
        ({"l2": 1e-3, "draws": 2}, "newton_inference"),
        ({"budgets": dpk.Budget(mu=0.005)}, "minibatch_sgd"),
        ({"clip": 1.0}, "minibatch_sgd"),
        ({"l1": 1e-3}, "minibatch_sgd"),
        ({"rounds": 5}, "minibatch_sgd"),
        ({"trust": "silo"}, "minibatch_sgd"),
    ],
)
def test_auto_takes_newton_steps_where_their_noise_is_small(options, solver):
    data = ordered_silos(20_000)
    runs = dpk.solve_many("auto", data, model=MODEL, rng=0, **{"budgets": BUDGET, **options})
    assert {run.solver for run in runs} == {solver}


def test_columns_that_vary_little_are_learnt():
    """Of which clipped gradients learn 0.62 of what there is."""
    rng = np.random.default_rng(0)
    X = np.minimum(rng.gamma(3.0, 1.0, (20_000, 6)), 30.0) / 15.0 - 1.0
    w = np.array([3.0, -2.0, 1.0, 0.0, -1.0, 2.0])
    y = np.digitize(X @ w + rng.logistic(size=len(X)), [-3.0, -1.0])
    how = {"feature_range": (-1.0, 1.0), "classes": [0, 1, 2], "random_state": 0}
    model = DPOrdinalClassifier(3.0, 1e-6, **how).fit(X, y)
    np.testing.assert_allclose(model.coef_, w, atol=0.6)


# ------------------------------------------------------------------------------- estimator


def labelled(n=20_000):
    data = ordered_silos(n, classes=3)
    return 10.0 * data.X + 5.0, np.array(["low", "middle", "high"])[data.y.astype(int)]


def test_estimators_have_the_classes_in_their_order_and_units_of_the_features():
    X, y = labelled()
    how = {"feature_range": (-5.0, 15.0), "classes": ["low", "middle", "high"], "random_state": 0}
    model = DPOrdinalClassifier(3.0, 1e-6, **how).fit(X, y)
    assert model.classes_.tolist() == ["low", "middle", "high"]
    p, z = model.predict_proba(X), X @ model.coef_
    np.testing.assert_allclose(p[:, 0], expit(model.thresholds_[0] - z), atol=1e-9)
    np.testing.assert_allclose(p[:, 2], expit(z - model.thresholds_[1]), atol=1e-9)
    np.testing.assert_allclose(10.0 * model.coef_, [1.5, 0.25, -1.0], atol=0.25)
    assert model.score(X, y) > 0.55
    assert model.predict(X).tolist() == model.classes_[p.argmax(axis=1)].tolist()
    again = clone(model).fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert dpk.verify(model.privacy_.to_dict())


def test_two_ordered_classes_are_those_of_logistic_regression():
    data = ordered_silos(2000, classes=2)
    result = dpk.solve("auto", data, budget=None, model=MODEL, l2=1.0 / 2000, rounds=3000)
    theirs = LogisticRegression(tol=1e-10).fit(data.X, data.y)
    coef, thresholds = result.oracle.parts(result.w, 3)
    np.testing.assert_allclose(coef, theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(-thresholds, theirs.intercept_, atol=1e-5)


def test_a_unit_of_thresholds_is_positive_and_data_have_classes():
    for unit in (0.0, -1.0, math.inf):
        assert_refused("unit must be positive and finite", dpk.AllThreshold, unit)
    data = dpk.SiloData(np.ones((9, 2)), np.arange(9.0), [0, 9], task="regression", row_bound=2.0)
    assert_refused("data must have classes", dpk.solve, "auto", data, budget=None, model=MODEL)


def test_a_set_of_ordered_classes_is_refused():
    X, y = labelled(100)
    bad = DPOrdinalClassifier(classes={"low", "middle", "high"})
    assert_refused(
        "TypeError: classes must be a list of the labels in their order, got a set", bad.fit, X, y
    )
    bad = DPOrdinalClassifier(fit_intercept=False)
    assert_refused("fit_intercept must be True", bad.fit, X, y)
