"""Times to events: a person is one record, and its follow-up is as private as the rest of it."""

import math
import re
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each
from scipy.linalg import sqrtm
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import dpkern as dpk
from dpkern import kernels
from dpkern.cli import main
from dpkern.estimators import DPDiscreteHazards
from dpkern.evaluation import concordance_index, survival
from dpkern.evaluation.survival import _counts
from dpkern.models.hazards import DiscreteHazards, cells_of, comparable_pairs, concordance
from dpkern.models.oracles import check_gradients
from dpkern.privacy import NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.concordance import release_comparable
from dpkern.solvers import Objective

EDGES = (0.0, 1.0, 2.0, 4.0)
K = len(EDGES) - 1
BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
with warnings.catch_warnings(action="ignore"):
    LARGE = dpk.Budget(mu=1e3)


def people(n=400, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    time = 2.5 * rng.exponential(np.exp(-X[:, 0]))
    lost = rng.exponential(8.0, n)
    return X, np.minimum(time, lost), time <= lost


def hazard_data(X, time, event, edges=EDGES, **options):
    classes = list(range(2 * len(edges) - 1))
    y = cells_of(time, event, edges)
    bounds = {"feature_range": (-1.0, 1.0), "task": "multiclass", "classes": classes}
    return dpk.SiloData(X, y, [0, len(X)], **bounds, **options)


def expanded(X, cells):
    """Rows of people and intervals at risk, one by one, with their labels."""
    rows = []
    for x, cell in zip(X, cells, strict=True):
        last = cell if cell < K else cell - K - 1
        rows += [(*x, *np.eye(K)[k], float(cell == k)) for k in range(last + 1)]
    return np.array(rows)


def mean_loss(parameters, rows, n, link):
    z = rows[:, :-1] @ parameters
    if link == "logistic":
        return (np.logaddexp(0.0, z) - rows[:, -1] * z).sum() / n
    return np.where(rows[:, -1] == 1.0, -np.log(-np.expm1(-np.exp(z))), np.exp(z)).sum() / n


def public_map(d, link):
    """The matrix and shift from parameters to (beta, theta)."""
    M = np.eye(d + K)
    M[d:, d:] = np.real(sqrtm(0.25 * np.eye(K) + 1.0))
    half = 0.5 ** (1.0 / K)
    start = np.zeros(d + K)
    start[d:] = math.log(-math.log(half)) if link == "cloglog" else -math.log(half / (1.0 - half))
    return M, start


def test_cells_are_intervals_and_whole_intervals_at_risk():
    times = [0.0, 0.5, 1.0, 1.01, 4.0, 4.5, 0.0, 0.49, 0.5, 1.0, 2.9, 3.1, 9.0]
    events = [1] * 6 + [0] * 7
    expected = [0, 0, 0, 1, 2, K + 3, K, K, K + 1, K + 1, K + 2, K + 3, K + 3]
    assert cells_of(times, events, EDGES).tolist() == expected
    assert cells_of([3.0, 3.0], [True, False], (5.0, 6.0, 7.0)).tolist() == [0, 2]


@for_each("link", ["cloglog", "logistic"])
def test_gradients_are_those_of_the_rows_at_risk(link):
    X, time, event = people(40)
    cells, model = cells_of(time, event, EDGES), DiscreteHazards(EDGES, link)
    M, start = public_map(2, link)
    w = 0.3 * np.random.default_rng(1).standard_normal(2 + K)
    losses, G = (f(w, X, cells.astype(float)) for f in (model.losses, model.gradients))
    np.testing.assert_allclose(model.log_hazards(w), (start + M @ w)[2:], rtol=1e-14)
    for i in range(len(X)):
        rows = expanded(X[i : i + 1], cells[i : i + 1])
        if not len(rows):
            assert losses[i] == 0.0
            assert not G[i].any()
            continue
        steps = 1e-6 * np.eye(len(w))
        points = [w, *(w + steps), *(w - steps)]
        first, *moved = (mean_loss(start + M @ v, rows, 1, link) for v in points)
        np.testing.assert_allclose(losses[i], first, rtol=1e-12)
        slopes = np.subtract(*np.split(np.array(moved), 2)) / 2e-6
        np.testing.assert_allclose(G[i], slopes, atol=1e-8)


@pytest.mark.parametrize("link", ["cloglog", "logistic"])
def test_without_a_budget_it_is_the_exact_minimiser(link):
    X, time, event = people()
    model = DiscreteHazards(EDGES, link)
    data = hazard_data(X, time, event)
    result = dpk.solve("auto", data, model=model, budget=None, rounds=2000, step_size=0.7)
    rows = expanded(X, cells_of(time, event, EDGES))
    how = {"args": (rows, len(X), link), "method": "BFGS", "options": {"gtol": 1e-9}}
    exact = minimize(mean_loss, np.full(2 + K, -0.5), **how)
    exact = minimize(mean_loss, exact.x, jac="3-point", **how).x
    np.testing.assert_allclose(result.w[:2], exact[:2], atol=1e-7)
    np.testing.assert_allclose(model.log_hazards(result.w), exact[2:], atol=1e-7)


@for_each("sparse", [False, True])
def test_gradients_depend_on_their_own_person(sparse):
    X, time, event = people(300, 40)
    data = hazard_data(X, time, event)
    if sparse:
        from scipy.sparse import csr_array

        y, classes = cells_of(time, event, EDGES), list(range(2 * K + 1))
        kept = csr_array(np.where(np.abs(X) < 0.2, X, 0.0))
        data = dpk.SiloData(kept, y, [0, 300], row_bound=2.0, task="multiclass", classes=classes)
    check_gradients(DiscreteHazards(EDGES), data, trials=10)


def test_neighbours_of_other_follow_up_stay_within_the_charge():
    X, time, event = people(50)
    data, rng = hazard_data(X, time, event), np.random.default_rng(2)
    how = {"model": DiscreteHazards(EDGES), "budget": BUDGET, "rng": 7, "step_size": 1.0}
    how |= {"rounds": 1, "returns": "last", "clip": 0.8}
    base, largest = dpk.solve("auto", data, **how), 0.0
    (release,) = base.privacy.releases
    assert release.sensitivity >= 1.6
    for exit_time, has_event in [(0.0, 1), (0.0, 0), (1.5, 1), (2.0, 0), (4.0, 1), (9.0, 0)]:
        for x in (np.ones(2), -np.ones(2), rng.uniform(-1.0, 1.0, 2)):
            rows, t, e = X.copy(), time.copy(), event.copy()
            rows[3], t[3], e[3] = x, exit_time, has_event
            other = dpk.solve("auto", hazard_data(rows, t, e), **how)
            assert other.privacy.releases == base.privacy.releases
            # The seeded noise is the same, so that models differ by sums alone.
            largest = max(largest, 50.0 * np.linalg.norm(other.w - base.w))
    assert 0.8 < largest <= release.sensitivity


def test_people_with_a_weight_of_zero_count_nothing():
    X, time, event = people()
    kept, model = np.random.default_rng(0).random(400) < 0.6, DiscreteHazards(EDGES)
    weighted = hazard_data(X, time, event, weight=5.0 * kept, max_weight=5.0)
    check_gradients(model, weighted, trials=5)
    alone = hazard_data(X[kept], time[kept], event[kept])
    how = {"model": model, "budget": None, "step_size": 0.7}
    some = dpk.solve("auto", alone, rounds=1000, **how)
    all_of_them = dpk.solve("auto", weighted, rounds=2000, **how)
    np.testing.assert_allclose(all_of_them.w, some.w, atol=1e-7)
    of_all, of_some = Objective(weighted, model), Objective(alone, model)
    share, w = kept.mean(), 0.3 * some.w
    assert of_all.data_value(w) == pytest.approx(share * of_some.data_value(w))
    np.testing.assert_allclose(of_all.silo_gradients(w), share * of_some.silo_gradients(w))


def test_neighbours_of_other_weights_stay_within_the_charge():
    X, time, event = people(50)
    weight = np.random.default_rng(4).uniform(0.0, 3.0, 50)
    how = {"model": DiscreteHazards(EDGES), "budget": BUDGET, "rng": 7, "step_size": 1.0}
    how |= {"rounds": 1, "returns": "last", "clip": 0.8}
    moved, ones = [], np.ones(2)
    for x, own, exit_time in ((ones, 3.0, 9.0), (-ones, 1e9, 0.0), (ones, 0.0, 9.0)):
        rows, w, t, e = X.copy(), weight.copy(), time.copy(), event.copy()
        rows[3], w[3], t[3], e[3] = x, own, exit_time, exit_time == 0.0
        data = hazard_data(rows, t, e, weight=w, max_weight=3.0)
        result = dpk.solve("auto", data, **how)
        moved.append(result.w)
        (release,) = result.privacy.releases
    distances = [50.0 * np.linalg.norm(a - b) for a in moved for b in moved]
    assert 0.8 < max(distances) <= release.sensitivity


@for_each("size", [1e-310, 1e-160, 1e300])
def test_no_record_of_hazards_makes_numpy_raise(size):
    """An error would end the run, and tell that the record is there."""
    X, time, event = people(50)
    X[3], weight = size, np.ones(50)
    weight[3] = min(size, 1.0)
    how = {"task": "multiclass", "classes": list(range(2 * K + 1)), "row_bound": 1.0}
    how |= {"weight": weight, "max_weight": 1.0}
    data = dpk.SiloData(X, cells_of(time, event, EDGES), [0, 50], **how)
    how = {"model": DiscreteHazards(EDGES), "budget": BUDGET, "rng": 7, "rounds": 3}
    expected = dpk.solve("auto", data, **how)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert dpk.solve("auto", data, **how) == expected


def test_offsets_of_margins_are_refused_before_a_release():
    X, time, event = people(50)
    data = hazard_data(X, time, event, margin_offset=time)
    with pytest.raises(ValueError, match="data must have no margin_offset for hazards"):
        dpk.solve("auto", data, model=DiscreteHazards(EDGES), budget=BUDGET)


def test_far_margins_give_bounded_sums():
    X, time, event = people(50)
    model, cells = DiscreteHazards(EDGES), cells_of(time, event, EDGES).astype(float)
    for w in (np.full(2 + K, 1e3), np.full(2 + K, -1e3), np.full(2 + K, 1e200)):
        with np.errstate(all="raise"):
            G = model.gradients(w, X, cells)
        total = kernels.clip_and_sum(G[:1], clip=1.0, grid=2.0**-30)[0]
        assert np.linalg.norm(total) <= 1.0


def test_certificates_say_nothing_of_follow_up():
    X, time, event = people(60)
    early, nobody = np.full(60, 0.2), np.zeros(60, dtype=bool)
    fits = [
        DPDiscreteHazards(intervals=EDGES, feature_range=(-1, 1), random_state=1).fit(
            X, np.column_stack([t, e])
        )
        for t, e in ((time, event), (early, ~nobody), (early, nobody))
    ]
    assert len({str(fit.privacy_.declared) for fit in fits}) == 1
    assert len({str(fit.privacy_.releases) for fit in fits}) == 1
    assert len({str(fit.result_.parameters) for fit in fits}) == 1
    assert not any("taken as true of the model" in note for note in fits[0].privacy_.notes)


def test_errors_name_counts_and_no_times():
    X, time, event = people(20)
    model = DPDiscreteHazards(intervals=EDGES, feature_range=(-1, 1))
    for bad, text in ((math.nan, "finite and not negative, got 1 of 20"), (-777.0, "got 1 of 20")):
        t = time.copy()
        t[4] = bad
        with pytest.raises(ValueError, match=text) as caught:
            model.fit(X, np.column_stack([t, event]))
        assert "777" not in str(caught.value)
    with pytest.raises(ValueError, match="event must be True or False, or 1 or 0, got 20 of 20"):
        model.fit(X, np.column_stack([time, event + 3]))
    with pytest.raises(ValueError, match="y must have two columns, time and event"):
        model.fit(X, time)
    with pytest.raises(ValueError, match="intervals must be given"):
        DPDiscreteHazards().fit(X, np.column_stack([time, event]))
    for edges in ((0.0,), (0.0, 0.0), (1.0, 0.5), (-1.0, 2.0)):
        with pytest.raises(ValueError, match="edges must be two or more increasing times"):
            DiscreteHazards(edges)
    with pytest.raises(ValueError, match="link must be 'cloglog' or 'logistic', got 'probit'"):
        DiscreteHazards(EDGES, "probit")
    data = dpk.SiloData(X, event, [0, 20], row_bound=1.0)
    with pytest.raises(ValueError, match="data must have the 7 cells of 3 intervals"):
        dpk.solve("auto", data, model=DiscreteHazards(EDGES), budget=BUDGET)


def test_concordance_is_that_of_all_pairs():
    rng = np.random.default_rng(3)
    t, e, s = rng.integers(1, 9, 80), rng.random(80) < 0.6, rng.integers(0, 6, 80)
    pairs = concordant = 0.0
    for i in np.flatnonzero(e):
        later = (t > t[i]) | ((t == t[i]) & ~e)
        pairs += later.sum()
        concordant += (s[i] > s[later]).sum() + 0.5 * (s[i] == s[later]).sum()
    assert concordance(t, e, s) == pytest.approx(concordant / pairs, rel=1e-14)
    assert comparable_pairs(t, e, s) == (2 * concordant - pairs, pairs)
    with pytest.raises(ValueError, match="comparable pair"):
        concordance([1.0, 2.0], [False, False], [0.0, 1.0])


def test_survival_functions_are_those_of_the_hazards(tmp_path):
    X, time, event = people(2000)
    y = np.array(list(zip(event, time, strict=True)), dtype=[("event", "?"), ("time", "f8")])
    range_ = ([-1.0, -1.0], [1.0, 3.0])
    how = {"intervals": EDGES, "feature_range": range_, "random_state": 1}
    for link in ("cloglog", "logistic"):
        model = DPDiscreteHazards(20.0, 1e-6, link=link, **how).fit(X, y)
        z = (X @ model.coef_)[:, np.newaxis] + model.baseline_
        stays = np.exp(-np.exp(z)) if link == "cloglog" else 1.0 / (1.0 + np.exp(z))
        S = model.predict_survival_function(X)
        np.testing.assert_allclose(S[:, 1:], np.cumprod(stays, axis=1), atol=1e-12)
        assert np.all(S[:, 0] == 1.0)
        ratio = dict(zip(("x0", "x1"), np.exp(model.coef_), strict=True))
        assert model.hazard_ratios_ == pytest.approx(ratio)
        assert np.ptp(model.predict(X) - X @ model.coef_) < 1e-12
        assert model.score(X, y) == concordance(time, event, model.predict(X))
        assert abs(model.coef_[0] - 1.0) < 0.3 or link == "logistic"
        rows = {row.name: row.coefficient for row in model.result_.coefficients()}
        assert rows["x0"] == pytest.approx(model.coef_[0])
        total = np.logaddexp.reduce(model.baseline_)
        assert rows["intercept"] == pytest.approx(total, rel=1e-12)
        assert f"by the link {link}" in model.result_.methods()
        path = tmp_path / "model.npz"
        model.result_.save(path)
        loaded = dpk.load(path)
        np.testing.assert_array_equal(loaded.predict(X), model.result_.predict(X))
        assert re.search("hazard|odds", loaded.coefficients().unit)


def test_estimator_takes_part_in_scikit_learn():
    X, time, event = people(600)
    y = np.column_stack([time, event])
    model = DPDiscreteHazards(5.0, intervals=EDGES, feature_range=(-1, 1), random_state=0)
    pipe = make_pipeline(FunctionTransformer(), clone(model))
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.6
    assert model.set_params(alpha=0.1).get_params()["alpha"] == 0.1
    silos = np.arange(600) % 2
    fit = clone(model).fit(X, y, silos=silos)
    assert fit.privacy_.declared["sizes"] == (300, 300)
    with pytest.raises(ValueError, match="max_weight must be given with sample_weight"):
        model.fit(X, y, sample_weight=np.ones(600))
    weighted = clone(model).set_params(max_weight=2.0).fit(X, y, sample_weight=np.full(600, 2.0))
    np.testing.assert_array_equal(weighted.coef_, clone(model).fit(X, y).coef_)


def curves_of(time, event, edges=EDGES, **options):
    how = {"edges": edges, "budget": BUDGET, "rng": 1} | options
    return dpk.survival_curve(time, event, **how)


def kaplan_meier(time, event, edges):
    survival, hazard, found = 1.0, 0.0, [(1.0, 0.0)]
    for edge, previous in zip(edges[1:], edges[:-1], strict=True):
        at_risk = np.count_nonzero(time > previous)
        h = np.count_nonzero(event & (time > previous) & (time <= edge)) / at_risk
        survival, hazard = survival * (1.0 - h), hazard - math.log(1.0 - h)
        found.append((survival, hazard))
    return np.array(found)


@for_each("neighbours", ["replace_one", "add_remove"])
def test_curves_tend_to_those_without_noise(neighbours):
    rng = np.random.default_rng(0)
    time, event = rng.integers(1, 7, 900).astype(float), rng.random(900) < 0.6
    group, edges = rng.choice(["a", "b"], 900, p=[0.7, 0.3]), range(7)
    how = {"neighbours": neighbours, "budget": LARGE}
    if neighbours == "add_remove":
        how["public_size"] = 1000
    curves = curves_of(time, event, edges, groups=group, levels=["b", "a"], **how)
    assert list(curves.curves) == ["b", "a"]
    for name, c in curves.curves.items():
        t, e = time[group == name], event[group == name]
        S, H = kaplan_meier(t, e, edges).T
        np.testing.assert_allclose(c.survival, S, atol=1e-3)
        np.testing.assert_allclose(c.hazard, H, atol=1e-2)
        at_risk = [np.count_nonzero(t > k) for k in range(6)]
        np.testing.assert_allclose(c.at_risk[:6], at_risk, atol=0.1)
    together = curves_of(time, event, edges, **how)["all"]
    np.testing.assert_allclose(together.survival, kaplan_meier(time, event, edges)[:, 0], atol=1e-3)


@for_each("neighbours", ["replace_one", "add_remove"])
def test_tables_of_neighbours_stay_within_the_charge(neighbours):
    _, time, event = people(60)

    def table(t, e, groups):
        cells = cells_of(t, e, EDGES) + (2 * K + 1) * np.asarray(groups)
        sums, ledger = _counts(cells, 2 * (2 * K + 1)), Ledger(None)
        channel = Channel(ledger, NoiseStream(3), SEEN_BY["central"], neighbours)
        return sums.release(channel, (0, len(t)), (60,), 0.5)[0], ledger.releases[0].sensitivity

    group = np.arange(60) % 2
    base, charged = table(time, event, group)
    exact = math.sqrt(2.0) if neighbours == "replace_one" else 1.0
    assert exact < charged < 1.001 * exact
    moved = []
    for exit_time in (0.0, 0.4, 1.0, 3.9, 4.0, 99.0):
        for has_event in (False, True):
            t, e = np.append(time[:-1], exit_time), np.append(event[:-1], has_event)
            g = np.append(group[:-1], 0)
            if neighbours == "add_remove":
                t, e, g = (np.append(x, x[-1]) for x in (t, e, g))
                t[-2], e[-2], g[-2] = time[-1], event[-1], group[-1]
            moved.append(np.linalg.norm(table(t, e, g.astype(int))[0] - base))
    assert 0.9 < max(moved) <= charged


def test_curves_say_what_they_rest_on(tmp_path):
    _, time, event = people(300)
    account = dpk.Accountant(tmp_path / "study.ledger", epsilon=1.1, delta=1e-5)
    curves = curves_of(time, event, rng=None, accountant=account)
    privacy = curves.privacy
    assert privacy.epsilon(1e-6) <= 1.0
    assert len(privacy.releases) == 1
    assert privacy.declared == {"edges": EDGES, "groups": ("all",), "size": 300}
    others = curves_of(np.zeros(300), np.ones(300)).privacy
    assert (others.declared, others.releases) == (privacy.declared, privacy.releases)
    privacy.save(tmp_path / "curves.json")
    assert dpk.verify(tmp_path / "curves.json")
    with pytest.raises(dpk.BudgetSpentError):
        curves_of(time, event, rng=None, accountant=account)
    assert "spent epsilon" in str(curves)
    assert "<table" in curves._repr_html_()


def test_curves_end_where_noise_hides_who_is_at_risk():
    _, time, event = people(300)
    edges = (*EDGES, 30.0, 60.0)
    c = curves_of(np.minimum(time, 29.0), event, edges)["all"]
    assert np.all(np.isfinite(c.survival[:3]))
    assert np.isnan(c.survival[-1])
    assert (c.low[-1], c.band_low[-1], c.hazard_high[-1]) == (0.0, 0.0, math.inf)
    shown = c.survival[np.isfinite(c.survival)]
    assert np.all(np.diff(shown) <= 0.0)
    assert np.all((c.low <= c.high) & (c.band_low <= c.low) & (c.band_high >= c.high))
    with np.errstate(all="raise"):
        nobody = curves_of(np.zeros(2), np.zeros(2))["all"]
        concordance_index(time, time, event, budget=BUDGET, rng=1)
    assert np.isfinite(nobody.low).all()


def test_wrong_curves_are_refused_before_a_release(tmp_path):
    _, time, event = people(30)
    account = dpk.Accountant(tmp_path / "study.ledger", epsilon=1.0, delta=1e-5)
    for options, text in (
        ({"edges": (1.0, 1.0)}, "edges must be two or more increasing times"),
        ({"edges": np.arange(3000.0)}, "at most 4000 cells"),
        ({"groups": ["a"] * 30}, "levels must be given with groups"),
        ({"groups": ["a"] * 30, "levels": ["a", "a"]}, "two or more distinct groups"),
        ({"groups": ["z"] * 30, "levels": ["a", "b"]}, "got 30 of 30 others"),
        ({"groups": [1] * 30, "levels": ["a", "b"]}, "got 30 of 30 others"),
        ({"neighbours": "add_remove"}, "public_size must be given"),
        ({"confidence": 1.0}, "confidence must lie strictly"),
    ):
        with pytest.raises(ValueError, match=text) as caught:
            curves_of(time, event, accountant=account, **options)
        assert "'z'" not in str(caught.value)
    with pytest.raises(ValueError, match="time must hold at least one person"):
        curves_of(np.zeros(0), np.zeros(0, dtype=bool))
    with pytest.raises(TypeError, match="event must be True or False for each time"):
        curves_of(time, event[:-1])
    assert not account.entries


def test_curves_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    _, time, event = people(300)
    path = tmp_path / "curve.png"
    curves_of(time, event, groups=np.arange(300) % 2, levels=[0, 1]).plot(path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("n", "budget", "how"),
    [
        (5000, dpk.Budget(epsilon=1.0, delta=1e-6), {}),
        (1000, dpk.Budget(epsilon=0.5, delta=1e-6), {}),
        (2000, dpk.Budget(epsilon=10.0, delta=1e-6), {"groups": 2}),
        (3000, dpk.Budget(epsilon=1.0, delta=1e-6), {"neighbours": "add_remove"}),
    ],
)
def test_bands_cover_the_curve_of_the_population(n, budget, how):
    rng, edges, runs = np.random.default_rng(5), np.linspace(0.0, 6.0, 9), 400
    S, inside, at_edges, options = np.exp(-0.2 * edges), 0, 0, dict(how)
    for r in range(runs):
        times = rng.exponential(5.0, n)
        lost = np.minimum(rng.uniform(0.0, 9.0, n), 6.0)
        if "groups" in how:
            options |= {"groups": rng.integers(0, 2, n), "levels": [0, 1]}
        if "neighbours" in how:
            options["public_size"] = n
        curves = curves_of(
            np.minimum(times, lost), times <= lost, edges, budget=budget, rng=r, **options
        )
        c = next(iter(curves.curves.values()))
        inside += np.all((c.band_low <= S) & (c.band_high >= S))
        at_edges += np.mean(((c.low <= S) & (c.high >= S))[1:])
    # Standard error 1.1 % of bands, less of means over edges.
    assert 0.92 < inside / runs < 0.98
    assert 0.93 < at_edges / runs < 0.97


# the command line

SCHEMA = dpk.Schema(
    [
        dpk.data.Column("age", "number", lo=0, hi=100),
        dpk.data.Column("years", "target", intervals=EDGES),
        dpk.data.Column("state", "event", classes=["alive", "dead"]),
    ]
)
FIT = ["--epsilon", "3", "--delta", "1e-6", "--noise-seed", "1", "--rounds", "20"]


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder with a schema and raw records, and returns what it says."""
    monkeypatch.chdir(tmp_path)
    X, time, event = people(600)
    SCHEMA.save("schema.json")
    rows = zip(50.0 + 50.0 * X[:, 0], time, np.where(event, "dead", "alive"), strict=True)
    lines = ["age,years,state", *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")

    def run(*words, code=0):
        assert main([*words]) == code, capsys.readouterr().err
        return capsys.readouterr()

    return run


def test_times_in_a_file_become_a_model_and_its_risks(command):
    shutil.copy("people.csv", "test.csv")
    fit = ["fit", "people.csv", "--schema", "schema.json", *FIT, "--test", "test.csv"]
    out, _ = command(*fit, "--out", "m.npz")
    assert "target         years: times to an event, 3 intervals from 0 to 4" in out
    assert "hazards of 3 intervals, link cloglog" in out
    frame = dpk.io.read_frame("people.csv", SCHEMA)
    data, model = SCHEMA.silo_data(frame, seed=0), DiscreteHazards(EDGES)
    budget = dpk.Budget(epsilon=3.0, delta=1e-6)
    expected = dpk.solve("auto", data, model=model, budget=budget, rng=1, rounds=20)
    assert dpk.load("m.npz") == expected
    assert dpk.solve("auto", data, budget=budget, rng=1, rounds=20) == expected
    time, event = SCHEMA.times_and_events(frame)
    cells, risk = cells_of(time, event, EDGES), expected.predict(frame)
    ends = np.where(cells < K, cells + 1, cells - K)
    score = expected.score(frame, SCHEMA.labels(frame))
    assert score == concordance(ends, cells < K, risk)
    assert f"test concordance  {score:.4f}" in out
    out, err = command("predict", "m.npz", "people.csv")
    np.testing.assert_array_equal(np.array(out.split(), dtype=float), risk)
    assert f"concordance of years {score:.4f} on 600 labelled records" in err
    out, _ = command("predict", "m.npz", "people.csv", "--probabilities")
    head, *rows = out.splitlines()
    assert head == "risk,survival_0,survival_1,survival_2,survival_4"
    table = np.array([row.split(",") for row in rows], dtype=float)
    np.testing.assert_array_equal(table[:, 1:], expected.predict_survival_function(frame))
    assert "logistic" in command(*fit, "--loss", "logistic").out
    out, _ = command("evaluate", "m.npz", "people.csv", "--epsilon", "9", "--delta", "1e-6")
    found = concordance_index(risk, time, event, budget=dpk.Budget(epsilon=9.0, delta=1e-6))
    assert abs(float(re.search(r"concordance  ([\d.]+)", out)[1]) - found.concordance) < 0.1


def test_what_has_no_meaning_for_times_is_refused(command):
    fit = ["fit", "people.csv", "--schema", "schema.json", *FIT]
    command(*fit, "--out", "m.npz")
    evaluate = ["evaluate", "m.npz", "people.csv", "--epsilon", "1", "--delta", "1e-6"]
    for words, said in (
        ([*fit, "--hidden", "3"], "--hidden must be left out for times to an event"),
        ([*fit, "--loss", "squared"], "--loss must be 'cloglog' or 'logistic', got 'squared'"),
        (["predict", "m.npz", "people.csv", "--decision-values"], "this model predicts risks"),
        ([*evaluate, "--bins", "4"], "--bins was given, and times to an event"),
        ([*evaluate, "--neighbours", "add_remove"], "--neighbours must be replace_one"),
        (["compare", *fit[1:4]], "several classes or times to an event"),
    ):
        assert said in command(*words, code=2).err
    linear = dpk.solve("auto", dpk.datasets.load_wisconsin(), budget=BUDGET, rounds=2)
    with pytest.raises(ValueError, match="model must be hazards of intervals, got 'logistic'"):
        linear.predict_survival_function(np.zeros((1, 30)))


def test_a_file_with_times_that_are_none_names_its_line(command, tmp_path):
    text = (tmp_path / "people.csv").read_text().splitlines()
    for bad, said in (
        ("5,-777,dead", "column 'years', the target, must hold times from 0 on"),
        ("5,1.5,moved", "column 'state', the event, must hold classes or aliases"),
    ):
        (tmp_path / "bad.csv").write_text("\n".join([*text[:3], bad, *text[3:]]))
        err = command("fit", "bad.csv", "--schema", "schema.json", *FIT, code=2).err
        assert f"bad.csv: {said}" in err
        assert "(the first is in line 4)" in err
        assert not re.search("777|moved", err)
    (tmp_path / "new.csv").write_text("age\n5\n70\n")
    command("fit", "people.csv", "--schema", "schema.json", *FIT, "--out", "m.npz")
    out, err = command("predict", "m.npz", "new.csv")
    assert (len(out.split()), err) == (2, "")
    (tmp_path / "new.csv").write_text("age,years,state\n5,1,alive\n70,2,dead\n")
    assert "no score: no event there" in command("predict", "m.npz", "new.csv").err


def test_drafts_and_code_books_have_times_and_events(command, tmp_path):
    out, err = command("schema", "people.csv", "--target", "years", "--event", "state")
    assert '{"name": "years", "kind": "target", "intervals": null}' in out
    assert '{"name": "state", "kind": "event", "classes": null, "aliases": {}}' in out
    assert "intervals of years; classes of state" in err
    err = command("schema", "people.csv", "--target", "age", "--event", "age", code=2).err
    assert "--target, --event, --silo-column and --ignore must name different columns" in err
    (tmp_path / "book.csv").write_text(
        "name,kind,lo,hi,categories,intervals\nage,,0,100,,\nyears,target,,,,0|1|2|4\n"
        "state,event,,,alive|dead,\n"
    )
    command("schema", "people.csv", "--code-book", "book.csv", "--out", "drafted.json")
    assert dpk.Schema.load("drafted.json") == SCHEMA
    out, _ = command("describe", "people.csv", "--schema", "schema.json", *FIT[:4])
    assert "years" not in out


# concordance


def test_a_person_moves_pairs_by_the_sensitivity_at_most():
    rng, n, ledger, largest = np.random.default_rng(0), 25, Ledger(None), 0.0
    channel = Channel(ledger, NoiseStream(1), SEEN_BY["central"], "replace_one")
    *_, std, of_pairs = release_comparable(channel, (0, 0), n, 1.0)
    charged, k = ledger.releases[0].sensitivity, std / of_pairs
    assert charged < 1.001 * 2 * (n - 1)

    def vector(people, person):
        agreeing, pairs = comparable_pairs(*map(np.append, people, person))
        return np.array([agreeing, k * pairs])

    persons = [(0.0, 1, -1.0), (0.0, 0, 1.0), (99.0, 1, 99.0), (0.0, 1, 99.0), (4.0, 1, 3.0)]
    for _ in range(300):
        levels = rng.integers(1, 30)
        t, s = rng.integers(1, 9, n - 1).astype(float), rng.integers(0, levels, n - 1).astype(float)
        e = rng.random(n - 1) < rng.random()
        vectors = [vector((t, e, s), person) for person in persons]
        moved = [np.linalg.norm(a - b) for a in vectors for b in vectors]
        largest = max(largest, *moved)
    assert 1.9 * (n - 1) < largest <= charged
    # Nobody else has an event: the person's pairs come and go.
    alone = np.arange(1.0, n), np.zeros(n - 1, dtype=bool), np.zeros(n - 1)
    come = np.linalg.norm(vector(alone, persons[0]) - vector(alone, persons[1]))
    assert 1.9 * (n - 1) < come <= charged


def test_concordance_is_released_with_its_interval(tmp_path):
    X, time, event = people(4000)
    risk, runs = X[:, 0] + 0.5 * X[:, 1], []
    exact = concordance(time, event, risk)
    for seed in range(60):
        runs.append(concordance_index(risk, time, event, budget=BUDGET, rng=seed))
    (score,) = {run.scores["concordance"].noise_std for run in runs[:1]}
    off = np.array([run.concordance - exact for run in runs])
    assert 0.75 < off.std() / score < 1.3
    assert abs(off.mean()) < 4 * score / math.sqrt(60)
    assert all(s.low < exact < s.high for run in runs for s in run.scores.values())
    privacy = runs[0].privacy
    assert privacy.releases[0].sensitivity >= 2 * 3999
    assert privacy.declared == {"concordance": "of times to an event", "size": 4000}
    privacy.save(tmp_path / "c.json")
    assert dpk.verify(tmp_path / "c.json")
    assert "concordance" in str(runs[0])
    nothing = concordance_index(risk, time, np.zeros(4000), budget=BUDGET, rng=1)
    assert nothing.privacy.releases == privacy.releases
    assert math.isnan(nothing.concordance)
    assert (nothing.scores["concordance"].low, nothing.scores["concordance"].high) == (0.0, 1.0)


@for_each("risk", [[1.0], [math.nan, 1.0], ["a", "b"]])
def test_wrong_risks_are_refused(risk):
    with pytest.raises(ValueError, match="risk must be finite numbers of shape"):
        concordance_index(risk, [1.0, 2.0], [True, False], budget=BUDGET)
    with pytest.raises(ValueError, match="time must hold 2 to"):
        concordance_index([1.0], [1.0], [True], budget=BUDGET)


@pytest.mark.statistical
def test_intervals_of_concordance_cover_that_of_the_population():
    rng, inside = np.random.default_rng(0), 0
    X, time, event = people(300_000, seed=9)
    population = concordance(time, event, X[:, 0])
    for r in range(200):
        drawn = rng.integers(0, 300_000, 1500)
        found = concordance_index(
            X[drawn, 0], time[drawn], event[drawn], budget=BUDGET, rng=r
        ).scores["concordance"]
        inside += found.low <= population <= found.high
    assert inside >= 190


@for_each("neighbours", ["replace_one", "add_remove"])
def test_verify_refuses_other_edges_groups_and_sizes(neighbours):
    _, time, event = people(300)
    how = {"neighbours": neighbours} | ({"public_size": 300} if neighbours == "add_remove" else {})
    curves = curves_of(time, event, groups=np.arange(300) % 2, levels=[0, 1], **how).privacy
    pairs = concordance_index(time, time, event, budget=BUDGET, rng=1).privacy
    for privacy, changes in (
        (curves, {"edges": (0.0, 1.0), "groups": ("0", "1", "2")}),
        (pairs, {"size": 301}),
    ):
        assert dpk.verify(privacy.to_dict())
        for key, value in changes.items():
            edited = replace(privacy, declared={**privacy.declared, key: value})
            assert not dpk.verify(edited.to_dict())


def test_the_number_of_people_shows_where_it_is_public_alone(monkeypatch):
    totals = []

    def curves(points, counts, *rest):
        totals.append(counts.sum())
        return genuine(points, counts, *rest)

    genuine = survival._curves
    monkeypatch.setattr(survival, "_curves", curves)
    _, time, event = people(301)
    curves_of(time, event)
    curves_of(time, event, neighbours="add_remove", public_size=300)
    assert totals[0] == pytest.approx(301.0)
    assert abs(totals[1] - 301.0) > 1e-3
