"""Estimates with standard errors: what they are, what they rest on, and that their intervals hold.

Neighbours, audits, certificates and bits are those of every solver (test_add_remove, test_audit,
test_all_runs, test_released_bits).
"""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import scipy
from cases import few_seeds, for_each
from makers import BUDGET, replay_releases
from threadpoolctl import threadpool_limits

import dpkern as dpk
from dpkern.models.losses import get_loss
from dpkern.plotting import ForestRow, plot_forest
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.releases import estimation
from dpkern.solvers.releases.estimation import (
    Estimation,
    are_hidden,
    labels_of_normal,
    least_known,
    likeliest,
)
from dpkern.solvers.releases.estimation_sums import Margins, Rows, Scores, Slack

LOSSES = {
    "logistic": "logistic",
    "huber": dpk.losses.Huber(0.5),
    "squared": "squared",
    "poisson": dpk.losses.Poisson(math.log(0.001), math.log(4.0), max_target=8.0),
    "gamma": dpk.losses.Gamma(math.log(0.2), math.log(4.0), max_target=2.0),
    "negative_binomial": dpk.losses.NegativeBinomial(1.0, max_target=8.0),
    "probit": "probit",
    "cloglog": dpk.losses.ComplementaryLogLog(0.5),
}
# Margins are a + b z, of z within 2 of 0, so that they are within these bounds.
MARGINS = dict.fromkeys(("poisson", "negative_binomial"), (math.log(0.5), 1.0))
MARGINS |= {"gamma": (math.log(0.5), 1.0 / 6.0), "cloglog": (-1.0, 0.5)}
LABELS, MEANS = ("logistic", "probit", "cloglog"), ("poisson", "gamma", "negative_binomial")
PROBABILITIES = {
    "logistic": scipy.special.expit,
    "probit": scipy.stats.norm.cdf,
    "cloglog": lambda z: -np.expm1(-np.exp(z)),
}
each_loss = for_each("name", LOSSES)


def records(name, n=4000, seed=0, p=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, p))
    z = X @ np.linspace(0.8, -0.5, p) - 0.3
    return X, np.minimum(responses(name, z, rng), 8.0)  # of counts the bound


def responses(name, z, rng):
    """Targets, of `MARGINS` of z."""
    a, b = MARGINS.get(name, (0.0, 1.0))
    if name in LABELS:
        return np.where(rng.random(len(z)) < PROBABILITIES[name](a + b * z), 1.0, -1.0)
    means = np.exp(a + b * z)
    if name == "gamma":
        return rng.gamma(8.0, means / 8.0)
    if name == "negative_binomial":
        means = means * rng.gamma(1.0, 1.0, len(z))
    if name in MEANS:
        return rng.poisson(means).astype(float)
    return z + 0.4 * rng.standard_normal(len(z))


def silo_data(name, X, y, **options):
    task = {"task": "classification", "classes": (-1.0, 1.0)}
    if name not in LABELS:
        task = {"task": "regression"} | ({} if name in MEANS else {"target_bound": 3.0})
    options = {"intercept": True, "feature_range": (-1.0, 1.0)} | task | options
    return dpk.SiloData(X, y, [0, len(y)], **options)


def fit(name, X, y, budget=BUDGET, rng=0, **options):
    how = {
        k: options.pop(k)
        for k in ("neighbours", "public_size", "clip", "l2", "rounds")
        if k in options
    }
    data = silo_data(name, X, y, **options)
    return dpk.solve("auto", data, budget=budget, loss=LOSSES[name], rng=rng, inference=True, **how)


LARGE = dpk.Budget(epsilon=4.0, delta=1e-6)


def z_scores(result, truth):
    """Errors of estimates over their standard errors, the intercept first."""
    return [
        (row.estimate - v) / row.std_error for row, v in zip(result.summary(), truth, strict=True)
    ]


# ---------------------------------------------------------------------------- without a budget


def reference(name, X, y, weight=1.0, offset=0.0):
    """The M-estimate and its sandwich covariance, in NumPy."""
    A, w = np.column_stack([X, np.ones(len(X))]), np.zeros(X.shape[1] + 1)
    w = np.linalg.lstsq(A, y)[0] if name in ("huber", "squared") else w
    for _ in range(50):
        z = A @ w + offset
        if name == "logistic":
            p = scipy.special.expit(z)
            s, q = p - (y + 1.0) / 2.0, p * (1.0 - p)
        elif name == "poisson":
            s, q = np.exp(z) - y, np.exp(z)
        elif name == "gamma":
            s, q = 1.0 - y * np.exp(-z), y * np.exp(-z)
        elif name == "negative_binomial":
            m = np.exp(z)
            s, q = (m - y) / (1.0 + m), (1.0 + y) * m / (1.0 + m) ** 2
        elif name == "probit":
            ratio = scipy.stats.norm.pdf(z) / scipy.stats.norm.cdf(y * z)
            s, q = -y * ratio, ratio * (ratio + y * z)
        elif name == "cloglog":
            h = np.exp(z)
            g = h / np.expm1(h)
            s, q = np.where(y > 0.0, -g, h), np.where(y > 0.0, g * (h + g - 1.0), h)
        else:
            limit = 0.5 if name == "huber" else math.inf
            s, q = np.clip(z - y, -limit, limit), (np.abs(z - y) <= limit) * 1.0
        s, q = weight * s, weight * q
        J = (A.T * q) @ A
        w = w - np.linalg.solve(J, A.T @ s)
    inverse = np.linalg.inv(J)
    return w, inverse @ (A.T * s**2) @ A @ inverse


@each_loss
def test_without_a_budget_estimates_are_the_usual_ones(name):
    X, y = records(name)
    result = fit(name, X, y, budget=None)
    w, covariance = reference(name, X, y)
    np.testing.assert_allclose(result.w, w, rtol=1e-9)
    np.testing.assert_allclose(result.inference.covariance, covariance, rtol=1e-6, atol=1e-12)
    assert not result.inference.noise.any()
    assert not result.inference.lost.any()


@each_loss
def test_weights_and_offsets_of_records_are_those_of_the_estimate(name):
    X, y = records(name, n=40_000)
    rng = np.random.default_rng(1)
    weight, offset = rng.uniform(0.1, 2.0, len(y)), rng.uniform(-0.5, 0.5, len(y))
    of_records = {"weight": weight, "max_weight": 2.0, "margin_offset": offset}
    result = fit(name, X, y, budget=None, **of_records)
    w, covariance = reference(name, X, y, weight, offset)
    np.testing.assert_allclose(result.w, w, rtol=1e-9)
    np.testing.assert_allclose(result.inference.covariance, covariance, rtol=1e-6, atol=1e-12)
    private = fit(name, X, y, budget=dpk.Budget(epsilon=8.0, delta=1e-6), **of_records)
    errors = np.sqrt(np.diag(private.inference.covariance))
    assert np.all(np.abs(private.w - w) < 4.0 * errors)
    growth = np.mean(errors / np.sqrt(np.diag(covariance)))
    assert 0.95 < growth < 1.5


@each_loss
def test_much_budget_gives_the_same_with_little_noise(name):
    X, y = records(name, n=40_000)
    with pytest.warns(dpk.privacy.BudgetWarning):
        result = fit(name, X, y, budget=dpk.Budget(mu=30.0))
    w, covariance = reference(name, X, y)
    np.testing.assert_allclose(result.w, w, atol=0.3 * np.sqrt(np.diag(covariance)).max())
    np.testing.assert_allclose(np.diag(result.inference.covariance), np.diag(covariance), rtol=0.1)
    noise = np.diag(result.inference.noise) / np.diag(covariance)
    assert np.all((noise > 0.0) & (noise < 0.1))


# ------------------------------------------------------------------------------ what is released


@pytest.fixture
def replay(monkeypatch):
    return replay_releases(monkeypatch, GaussianSum, GaussianHessian)


def moved(total, other):
    steps = (total - other).ravel().tolist()
    return sum((Fraction(step) ** 2 for step in steps), Fraction(0))


def extremes(name, d, rng):
    """Rows and targets that move sums the most, or that might leave their bounds."""
    rows = [np.zeros(d), np.ones(d), -np.ones(d), np.full(d, 1e300), np.full(d, 1e-300)]
    rows += [rng.choice([-1.0, 1.0], d), 10.0 ** rng.uniform(-9, 9) * rng.standard_normal(d)]
    y = rng.choice([-1.0, 1.0]) * (1.0 if name in LABELS else 10.0 ** rng.uniform(-3, 6))
    offset = rng.choice([0.0, -1.0, 1.0, 40.0, -1e3, 1e300, -1e300])
    return rows[rng.integers(len(rows))], y, rng.choice([0.0, 1e-9, 0.5, 1.0]), offset


@few_seeds(10, 40)
@pytest.mark.parametrize(
    ("name", "neighbours", "weighted"),
    [
        (name, neighbours, weighted)
        for name in LOSSES
        for neighbours in ("replace_one", "add_remove")
        for weighted in (False, True)
        if name in list(LOSSES)[:4] or weighted == (neighbours == "add_remove")
    ],
)
def test_no_record_moves_a_sum_by_more_than_is_charged(replay, name, neighbours, weighted, seeds):
    """All releases at the same released numbers, in rational arithmetic."""
    made, replayed = replay
    how = {"row_bound": 1.5, "feature_range": None}
    if neighbours == "add_remove":
        how |= {"neighbours": neighbours, "public_size": 60}
    largest = {}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        n = 60 if seed % 2 else 2  # a record beside one, or among others
        X, y = records(name, n=n, seed=seed)
        i = int(rng.integers(n))
        beside = np.column_stack([rng.uniform(0.0, 1.0, n), rng.uniform(-1.0, 1.0, n)])
        own = X, y, beside[:, 0], beside[:, 1]
        X[i], y[i], *beside[i] = extremes(name, X.shape[1], rng)
        other = [given.copy() for given in own]
        for given, value in zip(other, extremes(name, X.shape[1], rng), strict=True):
            given[i] = value
        if neighbours == "add_remove":
            other = [np.delete(given, i, axis=0) for given in own]
        budget, sums = dpk.Budget(mu=10.0 ** rng.uniform(-1.0, 0.7)), []
        replayed.clear()
        for rows, targets, w, offset in (own, other):
            made.clear()
            of_records = {"weight": w, "max_weight": 1.0, "margin_offset": offset}
            of_records = of_records if weighted else {}
            fit(name, rows, targets, budget=budget, rng=seed, **how, **of_records)
            sums.append(list(made))
            replayed[:] = [released for *_, released in sums[0]]
        for (what, total, sensitivity, _), (_, other, _, _) in zip(*sums, strict=True):
            share = moved(total, other) / Fraction(sensitivity) ** 2
            assert share <= 1, what
            largest[what] = max(largest.get(what, 0), share)
    # Scores of these are as long as they can be at the ends of margins alone.
    least = Fraction(1, 10_000 if name in ("gamma", "negative_binomial") else 200)
    assert len(seeds) < 40 or all(share > least for share in largest.values()), largest


@each_loss
def test_scores_and_curvatures_reach_their_bounds_and_no_more(name):
    """Those that their sums are divided by, before any is cut to its length."""
    loss = get_loss(LOSSES[name])
    margins = [*np.linspace(-8.0, 8.0, 1601), 1e9, -1e9, 1e300, -1e300]
    margins += [getattr(loss, bound, 0.0) for bound in ("low", "high")]
    z = np.repeat(np.array(margins + [-z for z in margins]), 4)
    y = np.tile([-1.0, 1.0, -1.0, 1.0] if name in LABELS else [0.0, 1.0, 8.0, -1e300], len(z) // 4)
    data = silo_data(name, np.zeros((len(z), 1)), y, intercept=False, margin_offset=z)
    s, q = Scores(Margins(np.ones(1), 1), loss, 0.5)(data)
    if name in ("squared", "huber"):
        assert np.abs(s).max() == 0.5
        assert q.max() == 1.0
        return
    assert q.min() >= 0.0
    assert 0.99 * loss.smoothness < q.max() <= loss.smoothness
    assert 0.99 * loss.lipschitz < np.abs(s).max() <= loss.lipschitz


def test_scores_of_least_squares_are_bounded_with_their_rows():
    """Short rows have larger residuals, so that scores are as long as the bound, and no longer."""
    rng, C, k = np.random.default_rng(0), 2.0, 0.5
    X = rng.standard_normal((4_000, 3)) * 10.0 ** rng.uniform(-6.0, 6.0, (4_000, 1))
    y = rng.standard_normal(4_000) * 10.0 ** rng.uniform(-4.0, 12.0, 4_000)
    data = silo_data("squared", X, y, intercept=False, feature_range=None, row_bound=math.inf)
    rows = Rows(np.eye(3), C, 1)
    scores = Scores(Margins(np.zeros(3), 1), get_loss("squared"), k, Slack(rows, C, 1))
    (U, f), (s, q) = rows(data), scores(data)
    lengths = [np.linalg.norm(U, axis=1) * np.abs(v) for v in (f * s / k, f * data.y / k)]
    assert lengths[0].max() <= C * (1.0 + 1e-14)
    within = lengths[1] <= C * (1.0 - 1e-14)
    assert 0.2 < within.mean() < 0.9
    np.testing.assert_array_equal(s[within], -data.y[within])
    np.testing.assert_array_equal(q, within)
    np.testing.assert_allclose(lengths[0][~within], C, rtol=1e-14)
    assert np.abs(s).max() > 4 * k


def test_few_directions_are_known_by_twice_the_floor():
    for values, hidden in (
        ([0.1, 0.1, 5.0, 5.0], 4),
        ([0.1, 0.1, 6.0, 6.0], 2),
        ([0.1, 5.0, 5.0, 5.0], 1),
        ([3.0, 3.0, 5.0, 5.0], 0),
    ):
        assert np.sum(are_hidden(np.array(values), 3.0)) == hidden


def test_least_squares_keep_the_means_of_skewed_errors():
    """Residuals cut to four deviations would move the intercept by two standard errors."""
    scores = []
    for k in range(8):
        rng = np.random.default_rng(k)
        X = rng.uniform(-1.0, 1.0, (50_000, 3))
        errors = np.exp(0.8 * rng.standard_normal(len(X))) - math.exp(0.32)
        y = np.clip(X @ [1.0, -0.5, 0.3] + errors, -60.0, 60.0)
        budget = dpk.Budget(epsilon=3.0, delta=1e-6)
        result = fit("squared", X, y, budget=budget, rng=k, target_bound=60.0)
        scores.append(z_scores(result, [0.0, 1.0, -0.5, 0.3]))
    assert np.abs(np.mean(scores, axis=0)).max() < 1.2


def test_a_row_is_whitened_by_itself_to_the_bit(replay):
    """In any order of the records, as sums are the same bits."""
    made, replayed = replay
    X, y = records("huber", n=333)
    fit("huber", X, y)
    first = list(made)
    replayed[:] = [released for *_, released in first]
    made.clear()
    order = np.random.default_rng(1).permutation(len(X))
    fit("huber", X[order], y[order])
    for (what, total, *_), (_, other, *_) in zip(first, made, strict=True):
        np.testing.assert_array_equal(total, other, err_msg=what)


def test_sums_are_those_of_numpy(replay):
    """Of scores and curvatures at the first steps, from the released means and moments."""
    made, _ = replay
    X, y = records("logistic", n=3000)
    result = fit("logistic", X, y, budget=dpk.Budget(mu=1.0), clip=1.6)
    sums = {}
    for what, total, _, released in made:
        sums.setdefault(what.removeprefix("inference: sum of "), []).append((total, released))
    A, n = np.column_stack([X, np.ones(len(X))]), len(X)
    C = result.parameters["clip"]
    (total, released), *_ = sums["rows"]
    np.testing.assert_allclose(total, A.sum(axis=0), atol=1e-2)
    centred = np.eye(4)
    centred[-1, :-1] = -released[:-1] / released[-1]
    W, R = centred, math.sqrt(4.0)
    releases = result.privacy.releases
    for what, bound in (
        ("outer products of rows", R),
        ("outer products of whitened rows", max(C, 1.25 * 2.0)),
    ):
        U = A @ W
        f = np.minimum(1.0, bound**2 / np.sum(U**2, axis=1))
        ((total, released),) = sums[what]
        np.testing.assert_allclose(total[0], (U.T * f) @ U, rtol=1e-3, atol=1e-2)
        values, vectors = np.linalg.eigh(released[0] / n)
        (std,) = (r.std for r in releases if r.what.endswith(what))
        seen = np.maximum(values, 2.0 * std * math.sqrt(8.0) / n)
        W = W @ (vectors / np.sqrt(seen)) @ vectors.T
    U = A @ W
    f = np.minimum(1.0, C**2 / np.sum(U**2, axis=1))
    (total, _), *_ = sums["scores"]
    assert f.min() < 0.6
    np.testing.assert_allclose(total, (0.5 - (y + 1.0) / 2.0) * f @ U, rtol=1e-3, atol=1e-2)
    (total, _), *_ = sums["curvatures"]
    assert total[0].trace() == pytest.approx(np.sum(f * np.sum(U**2, axis=1)), rel=0.1)
    assert dpk.verify(result.privacy.to_dict()).ok


def test_threads_of_blas_change_no_bit():
    """Those of parties of a federation, which have other numbers of cores."""
    found, (X, y) = [], records("logistic", n=300, p=160)
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(fit("logistic", X, y, rounds=4))
    assert found[0].w.tobytes() == found[1].w.tobytes()
    assert found[0].inference == found[1].inference


# ------------------------------------------------------------------------------------ intervals


@pytest.mark.statistical
@each_loss
def test_intervals_cover_and_p_values_are_uniform(name):
    """Of 300 draws of responses and noise: the third coefficient is 0."""
    w, level = np.array([0.7, -0.5, 0.0]), -0.3
    epsilon, n = (4.0, 12_000) if name in (*MEANS, "probit", "cloglog") else (1.0, 6000)
    a, b = MARGINS.get(name, (0.0, 1.0))
    level, w = a + b * level, b * w
    rng, scores, p_values = np.random.default_rng(0), [], []
    X = rng.uniform(-1.0, 1.0, (n, 3))
    for k in range(300):
        z = (X @ w + level - a) / b
        # Counts have more variance than the likelihood's.
        more = np.log(rng.gamma(2.0, 0.5, len(X))) if name == "poisson" else 0.0
        y = responses(name, z + more, rng)
        result = fit(name, X, y, budget=dpk.Budget(epsilon=epsilon, delta=1e-6), rng=k)
        scores.append(z_scores(result, [level, *w]))
        p_values.append(result.summary()[3].p_value)
    covered = np.abs(scores) <= 1.96
    assert 0.93 <= covered.mean() <= 0.975
    assert covered.mean(axis=0).min() >= 0.90
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_a_column_that_another_determines_has_no_standard_error():
    X, y = records("logistic", n=20_000)
    X = np.column_stack([X, X[:, 0]])
    result = fit("logistic", X, y)
    rows = {row.name: row for row in result.summary()}
    assert math.isnan(rows["x0"].std_error)
    assert math.isnan(rows["x3"].p_value)
    assert rows["x1"].std_error < 0.2
    assert any("no standard error" in note for note in result.summary().notes)


@for_each("name", ["logistic", "huber", "poisson"])
def test_what_has_not_converged_has_no_standard_errors(name):
    """Risks of nearly 0 or 1, and targets that are far beyond the loss's quadratic part."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (50_000, 4))
    z = X @ [1.0, -0.5, 0.3, 0.0] - 4.0
    bound = {}
    if name == "logistic":
        y = np.where(rng.random(len(X)) < scipy.special.expit(15.0 * z + 60.0), 1.0, -1.0)
    elif name == "poisson":
        y = rng.poisson(np.minimum(np.exp(15.0 * z + 55.0), 4.0))
    else:
        y, bound = 50.0 * z + rng.standard_normal(len(X)), {"target_bound": 1000.0}
    summaries = [fit(name, X, y, budget=LARGE, rng=k, **bound).summary() for k in range(5)]
    assert sum(math.isnan(row.std_error) for s in summaries for row in s) >= 20


def rare(a=-4.0, w=(1.0, -0.5, 0.3, 0.0), n=50_000, draws=5):
    """Draws of an outcome of a few per cent, and the coefficients, the intercept first."""
    rng, truth = np.random.default_rng(0), np.array([a, *w])
    X = rng.uniform(-1.0, 1.0, (n, 4))
    for _ in range(draws):
        risks = scipy.special.expit(X @ truth[1:] + a)
        yield X, np.where(rng.random(n) < risks, 1.0, -1.0), truth


@for_each("outcome", [1.0, -1.0])
def test_rare_outcomes_have_standard_errors(outcome):
    """The rare one is coded by 1 or by -1."""
    for k, (X, y, truth) in enumerate(rare()):
        assert (
            np.abs(z_scores(fit("logistic", X, outcome * y, LARGE, k), outcome * truth)).max() < 4
        )


@for_each(
    ("name", "loss", "a"),
    [("probit", "probit", 2.0), ("cloglog", dpk.losses.ComplementaryLogLog(-1.0), -4.0)],
)
def test_rare_labels_of_other_links_have_standard_errors(name, loss, a):
    rng, truth = np.random.default_rng(0), np.array([a, 0.6, -0.4, 0.2])
    X = rng.uniform(-1.0, 1.0, (50_000, 3))
    p = PROBABILITIES[name](X @ truth[1:] + a)
    for k in range(5):
        data = silo_data(name, X, np.where(rng.random(len(X)) < p, 1.0, -1.0))
        result = dpk.solve("auto", data, budget=LARGE, loss=loss, rng=k, inference=True)
        assert np.abs(z_scores(result, truth)).max() < 4.0


@for_each("n", [300, 3000])
@each_loss
def test_without_a_budget_all_have_errors(name, n):
    """Those of Huber's loss too, whose residuals pass delta from one step to the next."""
    for seed in range(3):
        X, y = records(name, n, seed)
        rows = fit(name, X, y, budget=None).summary()
        assert all(math.isfinite(row.std_error) for row in rows)


@for_each("name", ["logistic", "huber", "squared", "poisson"])
def test_columns_that_others_determine_leave_the_rest_as_it_is(name):
    """Indicators of all categories beside an intercept, one of them rare, and a column twice."""
    X, y = records(name, p=2)
    level = np.random.default_rng(1).integers(0, 3, len(X))
    level[:2], y[:2] = 3, [1.0, -1.0] if name == "logistic" else y[:2]
    levels = np.eye(4)[level]
    result, few = (
        fit(name, np.column_stack(columns), y, budget=None)
        for columns in ((X, levels, X[:, 0]), (X, levels[:, 1:]))
    )
    assert np.abs(result.w).max() < 10.0
    rows = {row.name: row for row in result.summary()}
    determined = {name for name, row in rows.items() if math.isnan(row.std_error)}
    assert determined == {"intercept", "x0", "x2", "x3", "x4", "x5", "x6"}
    of_few = {row.name: row for row in few.summary()}
    assert rows["x1"].estimate == pytest.approx(of_few["x1"].estimate, rel=1e-6)
    assert rows["x1"].std_error == pytest.approx(of_few["x1"].std_error, rel=1e-6)
    (between,) = result.summary(contrasts={"1 to 0": {"x3": 1.0, "x2": -1.0}})
    assert between.estimate == pytest.approx(of_few["x2"].estimate, rel=1e-6)
    assert between.std_error == pytest.approx(of_few["x2"].std_error, rel=1e-6)


def test_a_category_of_one_label_leaves_the_others_their_errors():
    """Its coefficient has no estimate: it goes on by one with every step."""
    X, y = records("logistic", p=2)
    y[:40] = -1.0
    X = np.column_stack([X, np.arange(len(X)) < 40])
    rows = {row.name: row for row in fit("logistic", X, y, budget=None).summary()}
    assert {name for name, row in rows.items() if math.isnan(row.std_error)} == {"x2"}
    others = np.ascontiguousarray(X[40:, :2])
    rest = {row.name: row for row in fit("logistic", others, y[40:], budget=None).summary()}
    for name, row in rest.items():
        assert rows[name].estimate == pytest.approx(row.estimate, rel=1e-6)
        assert rows[name].std_error == pytest.approx(row.std_error, rel=1e-6)


@for_each("name", ["logistic", "huber", "squared", "poisson", "probit"])
def test_auto_without_a_budget_ends_at_the_minimiser(name):
    X, y = records(name)
    data, how = silo_data(name, X, y), {"loss": LOSSES[name], "budget": None}
    result = dpk.solve("auto", data, **how)
    w, _ = reference(name, X, y)
    np.testing.assert_allclose(result.w, w, rtol=1e-9)
    assert dpk.solve("auto", data, trust="silo", **how).solver == "gradient_descent"
    wide = silo_data(name, np.hstack([X] * 50), y)
    assert dpk.solve("auto", wide, rounds=2, **how).solver == "gradient_descent"
    assert dpk.solve("auto", wide, **how).solver == "gradient_descent"


def test_squared_scores_are_bounded_where_noise_takes_the_trace_of_curvatures():
    J, Q = np.diag([-300.0, -200.0, 440.0]), np.diag([-900.0, 100.0, 1600.0])
    assert np.abs(estimation._shrunk(Q, 700.0, J)).max() < 1e4


def test_steps_that_have_not_come_to_an_end_have_no_errors():
    data = skewed("poisson", 0)
    how = {"loss": OF_SKEWED["poisson"], "budget": None, "inference": True}
    few, many = (dpk.solve("auto", data, rounds=rounds, **how).summary() for rounds in (4, 25))
    assert all(math.isnan(row.std_error) for row in few)
    assert "more rounds" in str(few)
    assert not any(math.isnan(row.std_error) for row in many)


# Margins a + b x of each loss, with x = 1 in a few records and near -1 in others.
SKEWED = {
    "logistic": (-0.85, 2.2),
    "probit": (-0.5, 1.2),
    "cloglog": (-1.5, 0.9),
    "poisson": (-0.45, 1.1),
    "gamma": (-0.4, 0.8),
    "negative_binomial": (-0.45, 0.8),
}
OF_SKEWED = LOSSES | {
    "poisson": dpk.losses.Poisson(math.log(0.05), math.log(9.0), max_target=9.0),
    "gamma": dpk.losses.Gamma(math.log(0.2), math.log(4.0), max_target=8.0),
    "negative_binomial": dpk.losses.NegativeBinomial(1.0, max_target=20.0),
}


def skewed(name, seed, n=50_000):
    """Records of which 5 % are far from all others in their one column."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random(n) < 0.05, 14.0, rng.choice([0.0] * 7 + [1.0, 2.0], n)) / 7.0 - 1.0
    a, b = SKEWED[name]
    level, unit = MARGINS.get(name, (0.0, 1.0))
    y = responses(name, (a + b * x - level) / unit, rng)
    task = {"task": "classification", "classes": (-1.0, 1.0)}
    task = task if name in LABELS else {"task": "regression"}
    how = {"feature_range": (-1.0, 1.0), "intercept": True, **task}
    return dpk.SiloData(x[:, np.newaxis], y, [0, n], **how)


@for_each("epsilon", [1.0, 3.0, 10.0, None])
@for_each("name", SKEWED)
def test_a_few_records_far_from_others_do_not_make_steps_diverge(name, epsilon):
    """Newton's method without bounds of its steps goes to 10^9 and farther here."""
    budget = None if epsilon is None else dpk.Budget(epsilon=epsilon, delta=1e-6)
    for seed in range(3):
        data = skewed(name, seed)
        how = {"budget": budget, "loss": OF_SKEWED[name], "inference": True}
        result = dpk.solve("auto", data, rng=seed, **how)
        errors = np.array([row.estimate for row in result.summary()]) - SKEWED[name]
        assert np.abs(errors).max() < 0.5
        z = np.array(z_scores(result, SKEWED[name]))
        if epsilon is None:
            assert np.abs(z).max() < 4.5
        else:
            assert not np.any(np.abs(z) > 4.5)


@for_each("name", MEANS)
def test_means_of_small_exposures_are_reached(name):
    """From the mean target, which is a third of what it is for an exposure of 1."""
    rng, truth = np.random.default_rng(0), np.array([math.log(0.5), 0.4, -0.2, 0.0])
    X = rng.uniform(-1.0, 1.0, (60_000, 3))
    offset = np.log(rng.choice([0.1, 0.2, 1.0], len(X)))
    loss = dpk.losses.Gamma(math.log(0.02), 0.0, 2.0) if name == "gamma" else LOSSES[name]
    means = np.exp(X @ truth[1:] + truth[0] + offset)
    for k in range(5):
        y = rng.gamma(8.0, means / 8.0) if name == "gamma" else rng.poisson(means) * 1.0
        data = silo_data(name, X, y, margin_offset=offset)
        result = dpk.solve("auto", data, budget=LARGE, loss=loss, rng=k, inference=True)
        assert np.abs(z_scores(result, truth)).max() < 4.0


def test_settings_of_counts_are_those_of_every_log_link():
    """Of a silo by itself, and of the only one."""
    X, y = records("negative_binomial")
    found = [
        dpk.solve(
            "auto", silo_data("negative_binomial", X, y), budget=BUDGET, rng=0, inference=True,
            loss=LOSSES[name], trust=trust,
        ).parameters["clip"]
        for name in ("negative_binomial", "poisson") for trust in ("central", "silo")
    ]  # fmt: skip
    assert len(set(found)) == 1


@pytest.mark.statistical
def test_intervals_of_rare_outcomes_cover():
    """Of 200 draws of an outcome of 2 per cent."""
    z = [
        z_scores(fit("logistic", X, y, LARGE, k), truth)
        for k, (X, y, truth) in enumerate(rare(draws=200))
    ]
    answered = np.isfinite(z)
    assert answered.mean() >= 0.95
    covered = (np.abs(z) <= 1.96)[answered]
    assert 0.92 <= covered.mean() <= 0.98


@for_each(("a", "s"), [(0.3, 0.2), (-4.0, 1.0), (2.0, 1.4)])
@for_each("name", LABELS)
def test_the_start_is_the_model_of_normal_rows(name, a, s):
    p = PROBABILITIES[name]

    def moment(power):
        def of(z):
            return z**power * p(a + s * z) * math.exp(-z * z / 2.0)

        return scipy.integrate.quad(of, -12.0, 12.0)[0] / math.sqrt(2.0 * math.pi)

    found = labels_of_normal(get_loss(name).probability, moment(0), moment(1))
    assert found == pytest.approx((a, s), abs=0.01)


def test_noise_is_for_rows_as_long_as_they_can_be():
    """A larger bound of whitened rows than any has changes nothing."""
    X, y = records("logistic", n=40_000)
    found = [fit("logistic", X, y, clip=clip).inference for clip in (12.0, 120.0)]
    assert not any(one.weighted for one in found)
    stds = [np.sqrt(np.diag(one.noise)) for one in found]
    np.testing.assert_allclose(*stds, rtol=0.1)


def test_weights_move_the_estimate_of_a_wrong_model_little():
    """Of a cubic, fitted by a line: a bound of 3.2 d would move it by three standard errors."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (10_000, 3)) * rng.choice([0.3, 1.0], (10_000, 1), p=[0.8, 0.2])
    y = X @ [1.0, -0.5, 0.0] + 1.5 * X[:, 0] ** 3 + 0.4 * rng.standard_normal(len(X))
    truth = [row.estimate for row in fit("huber", X, y, budget=None).summary()]
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    scores = [z_scores(fit("huber", X, y, budget=budget, rng=k), truth) for k in range(20)]
    assert np.abs(np.mean(scores, axis=0)).max() < 2.3


def test_methods_say_what_standard_errors_are():
    text = fit("logistic", *records("logistic")).methods()
    assert "No gradient was clipped" in text
    assert "clipped to the norm" not in text
    said = "Records far from the others have weights below 1"
    far, none = (fit("logistic", *records("logistic"), clip=clip) for clip in (1.0, 40.0))
    assert far.inference.weighted
    assert said in far.methods()
    assert not none.inference.weighted
    assert said not in none.methods()


def test_few_records_have_no_standard_errors():
    X, y = records("logistic", n=200)
    summary = fit("logistic", X, y).summary()
    assert all(math.isnan(row.std_error) and math.isnan(row.low) for row in summary)
    assert "nan" not in str(summary)


def test_few_directions_among_many_unknown_have_no_errors():
    """Of levels in 1000 records: what is seen of them depends on coefficients that are not."""
    rng, shares = np.random.default_rng(0), np.array([8.0, 4.0, 2.0, 1.0, 1.0]) / 16.0
    answered = []
    for k in range(20):
        X = (rng.choice(5, 1000, p=shares)[:, np.newaxis] == np.arange(4)).astype(float)
        y = np.where(rng.random(1000) < scipy.special.expit(X @ [1.0, -0.5, 0.3, -1.0]), 1.0, -1.0)
        budget, how = dpk.Budget(epsilon=0.3, delta=1e-6), {"row_bound": math.sqrt(2.0)}
        result = fit("logistic", X, y, budget=budget, rng=k, feature_range=None, **how)
        answered += [math.isfinite(row.std_error) for row in result.summary()]
    assert not any(answered)


@for_each("stds", [0.4, 1.0, 1.7, 2.5, 5.9, 6.5, 40.0])
def test_an_eigenvalue_above_the_floor_is_the_likeliest_one(stds):
    """Of a normal variable that is seen only above a floor: found by its likelihood."""
    floor, std = 10.0, 2.0
    value = floor + stds * std

    def loss(mean):
        seen = scipy.stats.norm.logsf(floor, mean, std)
        return seen - scipy.stats.norm.logpdf(value, mean, std)

    best = scipy.optimize.minimize_scalar(loss, bounds=(0.0, value + 1.0), method="bounded").x
    (found,) = likeliest(np.array([value]), floor, std)
    assert found == pytest.approx(best, abs=0.02)
    assert found <= value
    assert likeliest(np.array([floor]), floor, std) == 0.2 * floor  # positive


@pytest.mark.parametrize(("hidden", "r"), [(1, 20), (2, 5), (5, 20), (20, 20)])
def test_directions_without_curvature_are_hidden_whatever_the_others(hidden, r):
    """Of 500 draws of noise on curvatures of which some are 0, fewer than 1 in 50 answers one."""
    rng, std, true = np.random.default_rng(0), 2.0, np.zeros(r)
    true[hidden:] = np.linspace(20.0, 300.0, r - hidden)
    answered = 0
    for _ in range(500):
        E = rng.standard_normal((r, r)) * std / math.sqrt(2.0)
        values = np.linalg.eigvalsh(np.diag(true) + (E + E.T) / math.sqrt(2.0))
        answered += values[hidden - 1] >= least_known(values, std)
    assert answered < 10
    assert least_known(np.append(7.0, true[1:] + 100.0), std) < 7.0  # 3.5 stds beside large ones


def rare_level(draws):
    """Draws of indicators, the fourth of a level in which 28 of 640 have the event."""
    rng = np.random.default_rng(0)
    level = rng.choice(5, 10_000, p=np.array([8.0, 4.0, 2.0, 1.0, 1.0]) / 16.0)
    X = (level[:, np.newaxis] == np.arange(4)).astype(float)
    risks = scipy.special.expit(X @ [0.5, 0.0, -1.8, -2.7] - 0.36)
    for k in range(draws):
        y = np.where(rng.random(len(X)) < risks, 1.0, -1.0)
        budget, how = dpk.Budget(epsilon=1.0, delta=1e-6), {"row_bound": math.sqrt(2.0)}
        yield fit("logistic", X, y, budget=budget, rng=k, feature_range=None, **how)


def test_standard_errors_hold_how_curvatures_move(monkeypatch):
    """Where they move with the error of theta, of a rare level, and hardly elsewhere."""
    found = []
    for part in (0.5, 0.0):
        monkeypatch.setattr(estimation, "_OF_MOVES", part)
        found.append([[row.std_error for row in result.summary()] for result in rare_level(40)])
    more = np.nanmean(np.divide(*found), axis=0)
    assert more[-1] > 1.08
    assert more[:-1].max() < 1.04


@each_loss
def test_steps_go_to_the_mean_of_the_last_ends(name, monkeypatch):
    """By precision, from the third step on where noise explains the score."""
    went, step = [], Estimation.step

    def spied(self, t, theta):
        g, direction = yield from step(self, t, theta)
        went.append((theta, g, self._k, self._mu_of_scores[t], self._J, theta - direction))
        return g, direction

    monkeypatch.setattr(Estimation, "step", spied)
    fit(name, *records(name, n=20_000), budget=dpk.Budget(epsilon=3.0, delta=1e-6))
    means = []
    for before, last in pairwise(went[1:]):
        J, end = last[4], last[5]
        ends = [theta - np.linalg.solve(J, g) for theta, g, *_ in (before, last)]
        precisions = [(mu / k) ** 2 for _, _, k, mu, *_ in (before, last)]
        mean = np.average(ends, axis=0, weights=precisions)
        means.append(np.allclose(end, mean, rtol=1e-6))
        assert means[-1] or np.allclose(end, ends[1], rtol=1e-6)
    assert means[-1]


@pytest.mark.statistical
def test_intervals_cover_where_curvatures_are_hardly_seen():
    """Of 100 draws of indicators, one of a rare level, whose curvature is 2 norms of the noise."""
    rng = np.random.default_rng(0)
    level = rng.choice(5, 10_000, p=np.array([8.0, 4.0, 2.0, 1.0, 1.0]) / 16.0)
    X, w = (level[:, np.newaxis] == np.arange(4)).astype(float), np.array([1.0, -0.5, 0.3, -1.0])
    scores = []
    for k in range(100):
        y = X @ w + 0.3 + 0.75 * rng.standard_normal(len(X))
        how = {"feature_range": None, "row_bound": math.sqrt(2.0), "target_bound": 8.0}
        data = silo_data("huber", X, y, **how)
        budget, loss = dpk.Budget(epsilon=0.3, delta=1e-6), dpk.losses.Huber(1.0)
        result = dpk.solve("auto", data, budget=budget, loss=loss, rng=k, inference=True)
        scores.append(z_scores(result, [0.3, *w]))
    answered = np.isfinite(scores)
    assert answered.mean() >= 0.6
    assert 0.92 <= (np.abs(scores) <= 1.96)[answered].mean() <= 0.99


@pytest.mark.statistical
def test_intervals_cover_where_noise_spreads_all_curvatures():
    """Of 20 columns of a small part of their range, whose curvatures are ten stds of the noise."""
    rng = np.random.default_rng(0)
    X, w = (
        np.minimum(rng.gamma(3.0, 1.0, (10_000, 19)) / 15.0, 2.0) - 1.0,
        np.linspace(1.0, -1.0, 19),
    )
    scores = []
    for k in range(30):
        y = 2.0 * X @ w + 0.75 * rng.standard_normal(len(X))
        budget = dpk.Budget(epsilon=3.0, delta=1e-6)
        result = fit("squared", X, y, budget=budget, rng=k, target_bound=8.0)
        scores.append(z_scores(result, [0.0, *(2.0 * w)]))
    answered = np.isfinite(scores)
    assert answered.mean() >= 0.8
    assert 0.945 <= (np.abs(scores) <= 1.96)[answered].mean() <= 0.99


@for_each("name", ["logistic", "huber"])
def test_standard_errors_are_near_those_with_exact_curvatures(name, monkeypatch):
    """Within 10 % of an oracle that has the same noise on scores alone."""
    X, y = records(name, n=20_000)
    w, ratios, estimate = fit(name, X, y, budget=None).w, [], Estimation.estimate

    def compared(releases):
        found, inference = yield from estimate(releases)
        U, f = releases._rows(releases._data)
        s, q = releases._scores(w)(releases._data)
        J = (U.T * (f * q)) @ U
        Q = (U.T * (f**2 * (q if name == "logistic" else s**2))) @ U
        noise = 1.0 / sum(1.0 / std**2 for *_, std in releases._seen)
        half = releases.W @ np.linalg.inv(J)
        oracle = half @ (Q + noise * np.eye(len(Q))) @ half.T
        ratios.append(np.sqrt(np.diag(inference.covariance) / np.diag(oracle)))
        return found, inference

    monkeypatch.setattr(Estimation, "estimate", compared)
    for k in range(6):
        fit(name, X, y, budget=dpk.Budget(epsilon=2.0, delta=1e-6), rng=k)
    assert 0.9 < np.mean(ratios) < 1.1


# ------------------------------------------------------------------------------------- the table

SCHEMA = dpk.Schema.from_dict(
    {
        "dpkern_schema": 1,
        "columns": [
            {"name": "age", "kind": "number", "lo": 20, "hi": 90},
            {"name": "group", "kind": "category", "categories": ["a", "b", "c"]},
            {"name": "sex", "kind": "category", "categories": ["f", "m"]},
            {"name": "dead", "kind": "target", "classes": ["no", "yes"]},
        ],
    }
)


def people(n=30_000):
    rng = np.random.default_rng(0)
    age, group, sex = rng.uniform(20, 90, n), rng.choice(list("abc"), n), rng.choice(["f", "m"], n)
    z = 0.04 * (age - 55.0) + 0.6 * (group == "b") - 0.4 * (group == "c") + 0.3 * (sex == "m")
    dead = np.where(rng.random(n) < scipy.special.expit(z), "yes", "no")
    return {"age": age, "group": group, "sex": sex, "dead": dead}


@for_each("intercept", [True, False])
def test_categories_are_compared_with_the_first_one(intercept):
    table = people()
    data = SCHEMA.silo_data(table, 1, intercept=intercept)
    how = {"budget": None, "inference": True}
    result = dpk.solve("auto", data, **how)
    summary = {row.name: row for row in result.summary()}
    design = [table["age"], table["group"] == "b", table["group"] == "c", table["sex"] == "m"]
    X = np.column_stack(design)
    y = np.where(table["dead"] == "yes", 1.0, -1.0)
    w, covariance = reference("logistic", X, y)
    names = ["age", "group: b, for a", "group: c, for a", "sex: m, for f", "intercept"]
    for name, value, variance in zip(names, w, np.diag(covariance), strict=True):
        assert summary[name].estimate == pytest.approx(value, rel=1e-6)
        assert summary[name].std_error == pytest.approx(math.sqrt(variance), rel=1e-6)
    difference = {"group: b, for a": 1.0, "group: c, for a": -1.0}
    (row,) = result.summary(contrasts={"b for c": difference}, level=0.9)
    assert row.estimate == pytest.approx(w[1] - w[2], rel=1e-6)
    variance = covariance[1, 1] + covariance[2, 2] - 2.0 * covariance[1, 2]
    assert row.std_error == pytest.approx(math.sqrt(variance), rel=1e-6)
    assert row.high - row.estimate == pytest.approx(1.6448536 * row.std_error, rel=1e-6)
    private = dpk.solve("auto", data, budget=BUDGET, inference=True, rng=0).summary()
    for row in private:
        assert abs(row.estimate - summary[row.name].estimate) < 5.0 * row.std_error


@for_each("rare", ["a", "b", ""])
def test_a_rare_first_level_is_said(rare):
    """Where it is the first, and the noise or the sampling makes all differences uncertain."""
    table = people()
    dropped = (table["group"] == rare) & (np.random.default_rng(1).random(30_000) > 0.01)
    table = {name: values[~dropped] for name, values in table.items()}
    data = SCHEMA.silo_data(table, 1)
    result = dpk.solve("auto", data, budget=BUDGET, inference=True, rng=0)
    said = [note for note in result.summary().notes if "list another level first" in note]
    assert len(said) == (rare == "a")
    if said:
        assert said[0].startswith("differences of group are from a,")
        assert "such as b," in said[0] or "such as c," in said[0]
    contrasts = {"c for b": {"group: c, for a": 1.0, "group: b, for a": -1.0}}
    assert not any("another level" in one for one in result.summary(contrasts=contrasts).notes)


def test_a_summary_shows_ratios_and_survives_a_file(tmp_path):
    X, y = records("logistic")
    result = fit("logistic", X, y)
    text = str(result.summary())
    assert "odds ratio" in text
    assert text.splitlines()[1].startswith("intercept")
    result.save(tmp_path / "model.npz")
    read = dpk.load(tmp_path / "model.npz")
    assert read.inference == result.inference
    assert str(read.summary()) == text
    assert text.splitlines()[0] in str(read)
    assert "<table>" in read.summary()._repr_html_()
    assert "ratio" not in str(fit("squared", *records("squared")).summary())


@for_each(
    ("name", "ratio", "model"),
    [
        ("poisson", "rate ratio", "Poisson regression"),
        ("gamma", "ratio of means", "gamma regression"),
        ("negative_binomial", "rate ratio", "negative binomial regression"),
        ("probit", "", "probit regression"),
        ("cloglog", "hazard ratio", "complementary log-log regression"),
    ],
)
def test_a_summary_says_what_ratios_are(name, ratio, model, tmp_path):
    result = fit(name, *records(name), budget=None)
    assert result.summary().ratios == ratio
    assert ("ratio" in str(result.summary())) == bool(ratio)
    assert f"We fitted {model}" in result.methods()
    result.save(tmp_path / "model.npz")
    assert str(dpk.load(tmp_path / "model.npz").summary()) == str(result.summary())


@for_each(
    ("call", "message"),
    [
        (lambda r: r.summary(level=1.0), "level must lie strictly between 0 and 1"),
        (lambda r: r.summary(contrasts={"a": {"x9": 1.0}}), "names no coefficient 'x9'"),
        (lambda r: r.summary(contrasts=["x0"]), "contrasts must map labels"),
        (lambda r: r.summary(contrasts={"a": "x0"}), r"contrasts\['a'\] must map names"),
        (lambda r: r.summary(contrasts={1: {"x0": 1.0}}), "contrasts must have text as labels"),
        (lambda r: r.summary(contrasts={"a": {0: 1.0}}), "names no coefficient 0"),
        (lambda r: r.summary(contrasts={"a": {"x0": math.nan}}), r"contrasts\['a'\]\['x0'\] must"),
    ],
)
def test_wrong_arguments_of_a_summary_are_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(fit("logistic", *records("logistic", n=500)))


@pytest.mark.filterwarnings("ignore::dpkern.data.validation.ScaleWarning")
def test_what_has_no_standard_errors_is_refused_before_any_release(tmp_path):
    X, y = records("logistic", n=300)
    data = silo_data("logistic", X, y)
    several = dpk.SiloData(X, np.arange(300) % 3, [0, 300], task="multiclass", classes=(0, 1, 2))
    persons = silo_data("logistic", X, y, person=np.arange(300) // 2, max_records=2)
    bare = dpk.SiloData(X, y, [0, 300], task="classification", classes=(-1.0, 1.0), intercept=True)
    unbounded = silo_data("huber", *records("huber", n=300), target_bound=None)
    counts = silo_data("poisson", *records("poisson", n=300))
    without = silo_data("poisson", *records("poisson", n=300), intercept=False)
    bare_hazards = silo_data("cloglog", X, y, intercept=False)
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=9.0, delta=1e-4)
    for records_, name, how, message in (
        (data, "gradient_descent", {}, "inference must be False with the solver"),
        (several, "auto", {}, "more than two classes"),
        (persons, "auto", {}, "without persons"),
        (bare, "auto", {}, "row_bound"),
        (without, "auto", {"loss": LOSSES["poisson"]}, "data must be with an intercept"),
        (counts, "auto", {"loss": "poisson"}, "loss must be with a max_target"),
        (counts, "auto", {"loss": dpk.losses.Poisson(0.0, 80.0, 8.0)}, "targets of 1e.30 at most"),
        (counts, "auto", {"loss": dpk.losses.Poisson(0.0, 1.0, 1e300)}, "targets of 1e.30 at most"),
        (counts, "auto", {"loss": "gamma"}, "loss must be with a max_target"),
        (counts, "auto", {"loss": "negative_binomial"}, "loss must be with a max_target"),
        (counts, "auto", {"loss": dpk.losses.Gamma(-99.0, 0.0, 9.0)}, "targets of 1e.30 at most"),
        (bare_hazards, "auto", {"loss": "cloglog"}, "data must be with an intercept"),
        (counts, "auto", {"loss": "probit"}, "loss 'probit' is for classification"),
        (unbounded, "auto", {}, "target_bound"),
        (data, "auto", {"loss": "smoothed_hinge"}, "loss must be 'logistic' or 'squared'"),
        (data, "auto", {"loss": "squared_hinge"}, "or 'cloglog' or 'probit' in newton_inference"),
        (data, "auto", {"l1": 0.1}, "l1 must be absent .*or fit without inference=True"),
        (data, "auto", {"rounds": 3}, "rounds must be at least 4"),
        (data, "auto", {"inference": "yes"}, "inference must be True or False"),
    ):
        how = {"inference": True, "accountant": accountant, "budget": BUDGET} | how
        with pytest.raises((TypeError, ValueError), match=message):
            dpk.solve(name, records_, **how)
    assert not accountant.entries
    with pytest.raises(ValueError, match="has no standard errors: fit with inference=True"):
        dpk.solve("auto", data, budget=BUDGET).summary()


@each_loss
def test_a_fit_of_the_fewest_steps_has_a_true_certificate(name):
    result = fit(name, *records(name), rounds=4)
    assert dpk.verify(result.privacy.to_dict()).ok


@for_each(
    "loss",
    [
        dpk.losses.Poisson(0.0, 68.0, max_target=1e-300),
        dpk.losses.Gamma(-30.0, 300.0, max_target=1e16),
        dpk.losses.NegativeBinomial(1e-6, max_target=1e29),
    ],
)
def test_noise_that_hides_counts_by_many_powers_of_ten_ends_no_run(loss):
    """Of means up to 1e29 and of long rows: what is released has squares beyond doubles."""
    X, y = records("poisson", n=10)
    for seed in range(10):
        how = {"budget": dpk.Budget(mu=1e-6), "loss": loss, "rng": seed, "inference": True}
        data = silo_data("poisson", X, y, feature_range=None, row_bound=1e40)
        result = dpk.solve("auto", data, **how)
        assert np.isfinite(result.w).all()
        assert all(math.isnan(row.std_error) for row in result.summary())


def test_a_summary_with_l2_says_that_it_is_penalised():
    X, y = records("logistic")
    notes = [fit("logistic", X, y, l2=l2).summary().notes for l2 in (0.0, 0.1)]
    assert ["l2" in " ".join(lines) for lines in notes] == [False, True]


def test_a_forest_plot_shows_what_noise_adds(tmp_path):
    pytest.importorskip("matplotlib")
    X, y = records("logistic", n=20_000)
    summary = fit("logistic", np.column_stack([X, X[:, 0]]), y).summary()
    (axes,) = summary.plot(tmp_path / "forest.png").axes
    assert (tmp_path / "forest.png").stat().st_size > 1000
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"x{j}, per 1" for j in range(4)
    ]
    lines = [np.array(line.get_xdata()) for line in axes.lines if line.get_linewidth() > 1.5]
    whole, without = lines[0], lines[1]
    row = summary[2]
    assert math.isnan(summary[1].std_error)  # and is not drawn
    np.testing.assert_allclose(np.log(whole), [row.low, row.high], rtol=1e-9)
    share = np.diff(np.log(without)) / np.diff(np.log(whole))
    assert share**2 == pytest.approx(1.0 - (row.noise_std / row.std_error) ** 2)
    with pytest.raises(ValueError, match="needs a coefficient beside the intercept"):
        fit("squared", *records("squared", p=1)).summary(contrasts={}).plot()


def test_a_forest_plot_is_per_steps_of_the_declared_range(tmp_path):
    pytest.importorskip("matplotlib")
    summary = dpk.solve("auto", SCHEMA.silo_data(people()), budget=None, inference=True).summary()
    (axes,) = summary.plot().axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    age = summary[1]
    assert labels[0] == "age, per 10"
    assert labels[1:] == [row.name for row in summary[2:]]
    values = [math.exp(10.0 * value) for value in (age.estimate, age.low, age.high)]
    lines = [np.array(line.get_xdata()) for line in axes.lines if line.get_linewidth() > 1.5]
    np.testing.assert_allclose(lines[0], values[1:], rtol=1e-9)
    shown = [text.get_text() for text in axes.texts]
    assert f"{values[0]:.3g} ({values[1]:.3g} to {values[2]:.3g})" in shown
    assert "odds ratio (95 % interval)" in shown


def test_a_forest_plot_without_an_interval_is_refused_with_the_reason(tmp_path):
    pytest.importorskip("matplotlib")
    summary = fit("logistic", *records("logistic", n=300), budget=dpk.Budget(mu=0.01)).summary()
    assert not summary.has_intervals
    with pytest.raises(ValueError, match="needs a coefficient with an interval: no standard error"):
        summary.plot(tmp_path / "forest.png")
    assert not list(tmp_path.iterdir())


@for_each("high", [1.3, 2.2, 4.6, 5.5, 7.0, 9.0, 60.0])
def test_the_axis_of_ratios_has_a_tick_at_no_effect(high, tmp_path):
    pytest.importorskip("matplotlib")
    row = ForestRow("x", math.sqrt(high), (0.95, high), (1.0, high), "")
    path = tmp_path / "forest.png"
    (axes,) = plot_forest([row], path, axis="odds ratio", level=0.95, ratios=True).axes
    low, top = axes.get_xlim()
    assert 1.0 in [tick for tick in axes.get_xticks().tolist() if low <= tick <= top]


def test_a_selection_has_no_intervals_and_is_refused_uncharged(tmp_path):
    from dpkern.estimators import DPLogisticRegression, PrivateSearchCV

    X, y = records("logistic", n=300)
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=9.0, delta=1e-4)
    data, how = silo_data("logistic", X, y), {"budget": BUDGET, "accountant": accountant}
    for own in ({"solver": "newton_inference"}, {"solver": "ridge", "inference": True}):
        with pytest.raises(ValueError, match="in a selection: intervals of the best"):
            dpk.select({"l2": [0.1, 1.0]}, data, **own, **how)
    bounds = {"classes": [-1.0, 1.0], "feature_range": (-1.0, 1.0), "accountant": accountant}
    model = DPLogisticRegression(inference=True, **bounds)
    with pytest.raises(ValueError, match="inference must be False in a selection"):
        PrivateSearchCV(model, {"C": [1.0, 10.0]}).fit(X, y)
    choice = {"inference": [False, True]}
    with pytest.raises(ValueError, match="inference must be False in a selection"):
        PrivateSearchCV(DPLogisticRegression(**bounds), choice).fit(X, y)
    assert not accountant.entries
    chosen = dpk.select([{"solver": "gradient_descent", "rounds": 2}], data, budget=BUDGET, rng=0)
    with pytest.raises(ValueError, match="intervals after a selection are not covered"):
        chosen.result.summary()


def test_estimators_have_a_summary():
    from dpkern.estimators import (
        DPGammaRegressor,
        DPLogisticRegression,
        DPPoissonRegressor,
        DPRidge,
    )

    X, y = records("logistic")
    how = {"feature_range": (-1.0, 1.0), "random_state": 0, "inference": True}
    model = DPLogisticRegression(classes=[-1.0, 1.0], **how).fit(X, y)
    assert len(model.result_.summary()) == 4
    assert model.score(X, y) > 0.6
    X, y = records("poisson")
    counts = DPPoissonRegressor(
        max_target=8, mean_range=(1e-3, 4.0), epsilon=8.0, max_weight=1.0, **how
    )
    counts.fit(X, y, exposure=np.ones(len(y)), sample_weight=np.ones(len(y)))
    assert counts.result_.summary().ratios == "rate ratio"
    assert counts.score(X, y) > 0.05
    X, y = records("gamma")
    costs = DPGammaRegressor(max_target=2, mean_range=(0.2, 4.0), epsilon=8.0, **how).fit(X, y)
    assert costs.result_.summary().ratios == "ratio of means"
    with pytest.raises(ValueError, match="max_target must be given"):
        DPGammaRegressor(**how).fit(X, y)
    X, y = records("squared")
    assert len(DPRidge(target_bound=3.0, **how).fit(X, y).result_.summary()) == 4
