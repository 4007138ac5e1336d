"""Standard errors of ordered classes: what they are, what is released, and that intervals hold."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from cases import few_seeds, for_each
from makers import BUDGET, assert_refused, replay_releases
from scipy.special import expit

import dpkern as dpk
from dpkern.cli import main
from dpkern.estimators import DPOrdinalClassifier
from dpkern.models.ordinal import CumulativeLogit
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.releases import estimation, ordered_estimation

CUTS = np.array([-1.0, 0.2, 1.0])
SLOPES = np.array([1.5, -1.0, 0.5])
TRUTH = np.append(CUTS, SLOPES)
MODELS = {"all": dpk.AllThreshold(), "likelihood": CumulativeLogit()}
each_model = for_each("form", MODELS)


def records(n=4000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3))
    return X, np.digitize(X @ SLOPES + rng.logistic(size=n), CUTS)


def ordered_data(X, y, **options):
    how = {"task": "multiclass", "classes": range(4), "feature_range": (-1.0, 1.0)} | options
    return dpk.SiloData(X, y, [0, len(y)], **how)


def fit(X, y, budget=BUDGET, **how):
    names = ("neighbours", "public_size", "clip", "l2", "rounds", "colluding", "rng")
    solved = {name: how.pop(name) for name in names if name in how}
    solved = {"rng": 0, "inference": True, "model": how.pop("model", MODELS["all"])} | solved
    data = how.pop("data", None)
    data = ordered_data(X, y, **how) if data is None else data
    return dpk.solve("auto", data, budget=budget, **solved)


def reference(X, y, weight=1.0, offset=0.0, l2=0.0):
    """The minimiser of the sum of logistic losses and its sandwich covariance, thresholds first."""
    T, p = len(CUTS), X.shape[1]
    b, w = np.zeros(T + p), np.broadcast_to(weight, len(y))
    rows = [np.hstack([np.tile(-np.eye(T)[k], (len(X), 1)), X]) for k in range(T)]
    penalty = l2 * len(y) * np.append(np.zeros(T), np.ones(p))
    for _ in range(40):
        each = [expit(V @ b + offset) for V in rows]
        scores = sum(
            (w * (q - (y > k)))[:, None] * V
            for k, (q, V) in enumerate(zip(each, rows, strict=True))
        )
        J = sum((V.T * (w * q * (1.0 - q))) @ V for q, V in zip(each, rows, strict=True)) + np.diag(
            penalty
        )
        b = b - np.linalg.solve(J, scores.sum(axis=0) + penalty * b)
    inverse = np.linalg.inv(J)
    return b, inverse @ (scores.T @ scores) @ inverse


def likelihood_scores(b, X, y, offset=0.0):
    """The gradients of minus the log of the probabilities of the classes, thresholds first."""
    ends, z = np.concatenate([[-np.inf], b[: len(CUTS)], [np.inf]]), X @ b[len(CUTS) :] + offset
    upper, lower = expit(ends[y + 1] - z), expit(ends[y] - z)
    p, slopes = upper - lower, (upper * (1.0 - upper), lower * (1.0 - lower))
    found = np.zeros((len(y), len(CUTS)))
    for i, slope, sign in ((y, slopes[0], -1.0), (y - 1, slopes[1], 1.0)):
        inside = (i >= 0) & (i < len(CUTS))
        found[np.flatnonzero(inside), i[inside]] += (sign * slope / p)[inside]
    return np.hstack([found, ((slopes[0] - slopes[1]) / p)[:, None] * X])


def likelihood_reference(X, y, weight=1.0, offset=0.0, l2=0.0):
    """The same by the likelihood."""
    w = np.broadcast_to(weight, len(y))
    penalty = l2 * len(y) * np.append(np.zeros(len(CUTS)), np.ones(X.shape[1]))

    def total(b):
        return w @ likelihood_scores(b, X, y, offset) + penalty * b

    b = scipy.optimize.root(total, TRUTH, tol=1e-14).x
    steps = 1e-5 * np.eye(len(b))
    inverse = np.linalg.inv([(total(b + h) - total(b - h)) / 2e-5 for h in steps])
    scores = w[:, None] * likelihood_scores(b, X, y, offset)
    return b, inverse @ (scores.T @ scores) @ inverse


REFERENCES = {"all": reference, "likelihood": likelihood_reference}


@each_model
@pytest.mark.parametrize("case", ["plain", "weighted", "penalised"])
def test_without_a_budget_estimates_and_errors_are_those_of_the_sandwich(case, form):
    X, y = records()
    rng, more, given = np.random.default_rng(1), {}, {}
    if case == "weighted":
        more = {"weight": rng.uniform(0.0, 1.0, len(y)), "offset": rng.uniform(-1.0, 1.0, len(y))}
        given = {"weight": more["weight"], "max_weight": 1.0, "margin_offset": more["offset"]}
    elif case == "penalised":
        more = given = {"l2": 0.05}
    b, V = REFERENCES[form](X, y, **more)
    summary = fit(X, y, budget=None, model=MODELS[form], **given).summary()
    np.testing.assert_allclose([row.estimate for row in summary], b, atol=1e-9)
    np.testing.assert_allclose([row.std_error for row in summary], np.sqrt(np.diag(V)), rtol=1e-8)


@each_model
def test_much_budget_gives_the_same_with_little_noise(form):
    X, y = records(20_000)
    b, V = REFERENCES[form](X, y)
    summary = fit(X, y, budget=dpk.Budget(mu=6.0), model=MODELS[form]).summary()
    np.testing.assert_allclose([row.estimate for row in summary], b, atol=0.01)
    np.testing.assert_allclose([row.std_error for row in summary], np.sqrt(np.diag(V)), rtol=0.03)


@each_model
def test_weights_of_far_rows_leave_the_model_what_it_is(form):
    """Scores, curvatures and counts of a record have the same weight."""
    X, y = records(40_000)
    result = fit(X, y, budget=dpk.Budget(mu=6.0), clip=1.0, model=MODELS[form])
    assert "have weights below 1" in str(result.summary())
    z = [(row.estimate - v) / row.std_error for row, v in zip(result.summary(), TRUTH, strict=True)]
    assert np.abs(z).max() < 4.0


# ------------------------------------------------------------------------------ what is released


@pytest.fixture
def replay(monkeypatch):
    return replay_releases(monkeypatch, GaussianSum, GaussianHessian)


def extremes(rng):
    """A row, class, weight and offset that move sums the most, or that might leave their bounds."""
    rows = [np.zeros(3), np.ones(3), -np.ones(3), np.full(3, 1e300), np.full(3, 1e-300)]
    rows += [rng.choice([-1.0, 1.0], 3), 10.0 ** rng.uniform(-9, 9) * rng.standard_normal(3)]
    offset = rng.choice([0.0, -1.0, 1.0, 40.0, -40.0, 1e300, -1e300])
    return rows[rng.integers(len(rows))], rng.integers(4), rng.choice([0.0, 0.5, 1.0]), offset


@few_seeds(15, 60)
@each_model
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove"])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_record_moves_a_sum_by_more_than_is_charged(replay, neighbours, weighted, form, seeds):
    """All releases at the same released numbers, in rational arithmetic."""
    made, replayed = replay
    how = {"row_bound": 1.5, "feature_range": None, "neighbours": neighbours}
    how["model"] = MODELS[form]
    how |= {"public_size": 60} if neighbours == "add_remove" else {}
    largest = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n = 60 if seed % 2 else 2  # a record beside one, or among others
        X, y = records(n, seed)
        i, own = int(rng.integers(n)), [X, y, rng.uniform(0.0, 1.0, n), rng.uniform(-1.0, 1.0, n)]
        other = [given.copy() for given in own]
        for given in (own, other):
            for values, value in zip(given, extremes(rng), strict=True):
                values[i] = value
        if neighbours == "add_remove":
            other = [np.delete(given, i, axis=0) for given in own]
        budget, sums = dpk.Budget(mu=10.0 ** rng.uniform(-1.0, 0.7)), []
        replayed.clear()
        for rows, classes, w, offset in (own, other):
            made.clear()
            more = {"weight": w, "max_weight": 1.0, "margin_offset": offset} if weighted else {}
            fit(rows, classes, budget, **how, **more)
            sums.append(list(made))
            replayed[:] = [released for *_, released in made]
        for (what, total, sensitivity, _), (_, other, _, _) in zip(*sums, strict=True):
            steps = [Fraction(step) for step in (total - other).ravel().tolist()]
            share = sum((step**2 for step in steps), Fraction(0)) / Fraction(sensitivity) ** 2
            assert share <= 1, what
            largest[what] = max(largest.get(what, 0), share)
    tight = all(share > Fraction(1, 100) for share in largest.values())
    assert tight or len(seeds) < 60, largest


@each_model
def test_rows_at_thresholds_are_cut_whatever_they_are(replay, monkeypatch, form):
    """All of a record together, to the norm that is charged."""
    made, _ = replay
    rows = ordered_estimation._curvature_rows

    def longer(*given):
        U, factors = rows(*given)
        return U, 1e3 * factors

    monkeypatch.setattr(ordered_estimation, "_curvature_rows", longer)
    X, y = records()
    fit(X, y, model=MODELS[form])
    traces = [
        np.trace(total[0]) / len(X) for what, total, *_ in made if what.endswith("curvatures")
    ]
    ends = np.mean((y == 0) | (y == 3)) if form == "likelihood" else 0.0  # with one row of two
    assert all(0.99 < trace + 0.5 * ends <= 1.0 for trace in traces), traces


@each_model
def test_sums_depend_on_no_order_of_the_records(replay, form):
    made, _ = replay
    X, y = records(333)
    fit(X, y, model=MODELS[form])
    first, order = list(made), np.random.default_rng(1).permutation(len(X))
    made.clear()
    fit(X[order], y[order], model=MODELS[form])
    for (what, total, *_), (_, other, *_) in zip(first, made, strict=True):
        np.testing.assert_array_equal(total, other, err_msg=what)


@each_model
@for_each("neighbours", ["replace_one", "add_remove"])
def test_certificates_have_every_release(neighbours, form):
    X, y = records(500)
    how = {} if neighbours == "replace_one" else {"public_size": 500}
    with pytest.warns(dpk.privacy.BudgetWarning, match="classes of like sizes were assumed"):
        result = fit(X, y, neighbours=neighbours, rounds=4, model=MODELS[form], **how)
    values, unit = result.privacy.to_dict(), 2.0 if neighbours == "replace_one" else 1.0
    of = {
        release["what"].removeprefix("inference: sum of "): release
        for release in values["releases"]
    }
    assert of["indicators of ordered classes"]["sensitivity"] == unit
    assert (of["scores"]["dim"], of["curvatures"]["dim"], of["rows"]["dim"]) == (6, 21, 3)
    assert of["scores"]["sensitivity"] == unit
    assert of["curvatures"]["sensitivity"] >= math.sqrt(unit)
    assert dpk.verify(values).ok
    of["curvatures"]["sensitivity"] *= 0.9
    assert not dpk.verify(values).ok
    assert result.privacy.epsilon(BUDGET.delta) <= BUDGET.epsilon


def test_silos_share_the_noise():
    X, y = records(3000)
    data = dpk.SiloData(
        X, y, [0, 1000, 1800, 3000], task="multiclass", classes=range(4), feature_range=(-1.0, 1.0)
    )
    budget = dpk.Budget(mu=6.0)
    result = fit(X, y, budget, data=data, colluding=1)
    together = fit(X, y, budget)
    np.testing.assert_allclose(result.w, together.w, atol=0.05)
    assert dpk.verify(result.privacy.to_dict()).ok
    assert_refused("trust must be 'central'", dpk.solve, "auto", data, budget=budget,
                   model=dpk.AllThreshold(), inference=True, trust="silo")  # fmt: skip


# ------------------------------------------------------------------------------------ intervals


@pytest.mark.statistical
@each_model
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_intervals_of_ordered_classes_cover(epsilon, form):
    inside, budget = [], dpk.Budget(epsilon=epsilon, delta=1e-6)
    for i in range(150):
        found = fit(*records(20_000, 100 + i), budget=budget, rng=i, model=MODELS[form])
        summary = found.summary()
        inside.append([row.low < v < row.high for row, v in zip(summary, TRUTH, strict=True)])
    assert 0.92 <= np.mean(inside) <= 0.98
    assert np.mean(inside, axis=0).min() >= 0.88


def test_squared_scores_are_those_of_the_rates_where_rows_say_nothing(monkeypatch):
    """What they are drawn to where they are mostly noise."""
    X, _ = records(60_000)
    y, seen = np.random.default_rng(1).choice(4, 60_000, p=[0.1, 0.2, 0.5, 0.2]), []
    shrunk = estimation._shrunk

    def spied(Q, std, of_model):
        seen.append((Q, of_model))
        return shrunk(Q, std, of_model)

    monkeypatch.setattr(estimation, "_shrunk", spied)
    fit(X, y, budget=None)
    ((Q, of_model),) = seen
    np.testing.assert_allclose(of_model * Q.trace() / of_model.trace(), Q, atol=0.02 * Q.max())


@each_model
def test_few_records_have_no_standard_errors_and_are_warned_of(form):
    X, y = records(300)
    with pytest.warns(dpk.privacy.BudgetWarning, match="no standard errors are to be expected"):
        result = fit(X, y, model=MODELS[form])
    assert all(math.isnan(row.std_error) for row in result.summary())


def test_noise_in_counts_is_in_the_standard_errors():
    """Of the likelihood: a cell between two near thresholds has a count with much noise."""
    ends, budget = [], dpk.Budget(mu=0.4)
    for i in range(40):
        rng = np.random.default_rng(i)
        X = rng.uniform(-1.0, 1.0, (20_000, 1))
        y = np.digitize(X[:, 0] + rng.logistic(size=len(X)), [0.0, 0.04])
        data = dpk.SiloData(
            X, y, [0, len(y)], task="multiclass", classes=range(3), feature_range=(-1.0, 1.0)
        )
        result = fit(X, y, budget, data=data, rng=i, model=MODELS["likelihood"])
        ((gap),) = result.summary(contrasts={"gap": {"1 | 2": 1.0, "0 | 1": -1.0}})
        ends.append(((gap.estimate - 0.04) / gap.std_error, gap.noise_std / gap.std_error))
    z, share = np.array(ends).T
    assert 0.6 < np.sqrt(np.mean(z**2)) < 1.4
    assert np.median(share) > 0.5


def test_thresholds_of_the_likelihood_stay_in_order(monkeypatch):
    """Whatever the noise, in every round."""
    seen, within = [], ordered_estimation.OrderedEstimation._within

    def spied(self, theta, direction):
        found = within(self, theta, direction)
        seen.append(self._gaps(theta - found).min() / self._gaps(theta).min())
        return found

    X, y = records(400)
    monkeypatch.setattr(ordered_estimation.OrderedEstimation, "_within", spied)
    for seed in range(5):
        with pytest.warns(dpk.privacy.BudgetWarning):
            result = fit(X, y, model=MODELS["likelihood"], rng=seed)
        assert np.isfinite(result.w).all()
    assert min(seen) >= 0.2 * (1.0 - 1e-9)
    assert min(seen) < 0.21


def test_the_likelihood_is_the_probability_of_the_class():
    X, y = records(50)
    data, w = ordered_data(X, y), np.append(SLOPES, CUTS)
    model = CumulativeLogit().stated_for(data)
    w[3:] /= model.stated_unit
    log_p = model.outputs(w, X)[np.arange(50), y]
    np.testing.assert_allclose(model.losses(w, X, data.y), -log_p, atol=1e-12)
    found = model.gradients(w, X, data.y)
    for j, step in enumerate(1e-6 * np.eye(len(w))):
        change = model.losses(w + step, X, data.y) - model.losses(w - step, X, data.y)
        np.testing.assert_allclose(change / 2e-6, found[:, j], atol=1e-7)


def test_two_classes_by_the_likelihood_are_logistic_regression():
    X, y = records()
    z = np.where(y > 1, 1, 0)
    data = dpk.SiloData(
        X, z, [0, 4000], task="multiclass", classes=(0, 1), feature_range=(-1.0, 1.0)
    )
    ours = fit(X, z, None, data=data, model=MODELS["likelihood"]).summary()
    plain = dpk.SiloData(X, z, [0, 4000], task="classification", classes=(0, 1), intercept=True,
                         feature_range=(-1.0, 1.0))  # fmt: skip
    theirs = dpk.solve("auto", plain, budget=None, inference=True).summary()
    signs = [-1.0, 1.0, 1.0, 1.0]
    expected = [sign * row.estimate for sign, row in zip(signs, theirs, strict=True)]
    np.testing.assert_allclose([row.estimate for row in ours], expected, atol=1e-9)


def test_the_likelihood_is_fitted_by_its_solver_alone():
    X, y = records(200)
    data, how = ordered_data(X, y), {"budget": None, "model": CumulativeLogit()}
    assert dpk.solve("auto", data, **how).solver == "newton_inference"
    assert_refused("TypeError: model must be AllThreshold\\(\\) for ordered classes in prox_sgd",
                   dpk.solve, "prox_sgd", data, **how)  # fmt: skip
    bad = DPOrdinalClassifier(form="cumulative", classes=range(4), feature_range=(-1.0, 1.0))
    assert_refused("form must be 'thresholds' or 'likelihood'", bad.fit, X, y)


# --------------------------------------------------------------------------------- what is shown

SCHEMA = {
    "dpkern_schema": 1,
    "columns": [
        {"name": "age", "kind": "number", "lo": 20, "hi": 90},
        {"name": "smoker", "kind": "category", "categories": ["no", "former", "yes"]},
        {"name": "stage", "kind": "target", "classes": ["mild", "moderate", "severe"]},
    ],
}


def patients(n=20_000):
    rng = np.random.default_rng(0)
    age, smoker = rng.uniform(20.0, 90.0, n), rng.choice(["no", "former", "yes"], n)
    z = 0.04 * (age - 60.0) + 0.3 * (smoker == "former") + 0.7 * (smoker == "yes")
    stage = np.digitize(z + rng.logistic(size=n), [-0.5, 1.5])
    return {"age": age, "smoker": smoker, "stage": np.array(["mild", "moderate", "severe"])[stage]}


def test_a_meta_analysis_of_ordered_classes_is_of_one_form():
    data, results = dpk.Schema.from_dict(SCHEMA).silo_data(patients()), {}
    for form, model in MODELS.items():
        how = {"budget": BUDGET, "model": model, "inference": True}
        results[form] = [dpk.solve("auto", data, rng=i, **how) for i in range(2)]
        found = dpk.meta_analysis(results[form])
        assert found.constants == ("mild | moderate", "moderate | severe")
        assert found.ratios == "odds ratio"
    assert_refused(
        r"results\[1\] must have the loss of results\[0\], 'all_threshold', got 'cumulative_logit'",
        dpk.meta_analysis, [results["all"][0], results["likelihood"][0]],
    )  # fmt: skip


@each_model
def test_a_summary_has_thresholds_and_odds_ratios_in_units(tmp_path, form):
    data, model = dpk.Schema.from_dict(SCHEMA).silo_data(patients()), MODELS[form]
    result = dpk.solve("auto", data, budget=BUDGET, model=model, inference=True, rng=0)
    summary = result.summary()
    assert [row.name for row in summary] == [
        *("mild | moderate", "moderate | severe"),
        *("age", "smoker: former, for no", "smoker: yes, for no"),
    ]
    truth = np.array([1.9, 3.9, 0.04, 0.3, 0.7])
    errors = [(row.estimate - v) / row.std_error for row, v in zip(summary, truth, strict=True)]
    assert np.abs(errors).max() < 4.0
    assert summary.ratios == "odds ratio"
    assert ("not the likelihood" in str(summary)) == (form == "all")
    text = {"all": "at all thresholds", "likelihood": "a cumulative logit"}
    assert text[form] in result.methods()
    # The probabilities of a record follow from the table.
    row = {"age": np.array([50.0]), "smoker": np.array(["yes"])}
    b = {one.name: one.estimate for one in summary}
    z = 50.0 * b["age"] + b["smoker: yes, for no"]
    mild = expit(b["mild | moderate"] - z)
    assert result.predict_proba(row)[0, 0] == pytest.approx(mild, abs=1e-9)
    contrast = {
        "per 10 years": {"age": 10.0},
        "between": {"moderate | severe": 1, "mild | moderate": -1},
    }
    ten, between = result.summary(contrasts=contrast)
    assert ten.std_error == pytest.approx(10.0 * summary[2].std_error)
    assert between.std_error < math.hypot(summary[0].std_error, summary[1].std_error)
    result.save(tmp_path / "model.npz")
    assert str(dpk.load(tmp_path / "model.npz").summary()) == str(summary)
    drawn = {tick.get_text() for tick in summary.plot().axes[0].get_yticklabels()}
    assert not {"mild | moderate", "moderate | severe"} & drawn


def test_the_command_line_fits_ordered_classes(tmp_path, capsys):
    columns, schema = patients(3000), tmp_path / "schema.json"
    schema.write_text(json.dumps(SCHEMA))
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(columns), *lines]))
    how = [str(tmp_path / "a.csv"), "--schema", str(schema), "--epsilon", "8", "--delta", "1e-6"]
    assert main(["fit", *how, "--loss", "ordered", "--inference", "--noise-seed", "1"]) == 0
    assert "mild | moderate" in capsys.readouterr().out
    assert main(["fit", *how, "--loss", "cumulative_logit", "--noise-seed", "1"]) == 0
    assert "the likelihood of the cumulative logit" in capsys.readouterr().out
    assert main(["fit", *how, "--loss", "ordered", "--noise-seed", "1"]) == 0
    assert "a logistic loss at each threshold" in capsys.readouterr().out
    assert main(["fit", *how, "--inference", "--noise-seed", "1"]) != 0
    assert "--loss ordered" in capsys.readouterr().err
    assert main(["fit", *how, "--loss", "ordered", "--hidden", "3"]) != 0
    assert "--loss must be another than ordered with --hidden" in capsys.readouterr().err


@for_each("form", ["thresholds", "likelihood"])
def test_estimators_of_ordered_classes_have_a_summary(form):
    X, y = records()
    how = {"classes": range(4), "feature_range": (-1.0, 1.0), "random_state": 0, "form": form}
    model = DPOrdinalClassifier(8.0, 1e-6, inference=True, **how).fit(X, y)
    summary = model.result_.summary()
    assert [row.name for row in summary] == ["0 | 1", "1 | 2", "2 | 3", "x0", "x1", "x2"]
    np.testing.assert_allclose(model.thresholds_, [row.estimate for row in summary[:3]])
    np.testing.assert_allclose(model.coef_, [row.estimate for row in summary[3:]])
    bad = DPOrdinalClassifier(inference="yes", **how)
    assert_refused("TypeError: inference must be True or False", bad.fit, X, y)
