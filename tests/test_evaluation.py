"""Released scores: sums and pairs, their sensitivity, what is made of them, certificates."""

import itertools
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from cases import for_each
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import brier_score_loss, log_loss, r2_score, roc_auc_score
from sklearn.svm import LinearSVC

import dpkern as dpk
from dpkern.estimators import DPLogisticRegression
from dpkern.evaluation import figures
from dpkern.evaluation.sums import edges_of, of_several_classes, of_targets, of_two_classes
from dpkern.privacy import NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.concordance import count_pairs, release_pairs
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
with warnings.catch_warnings(action="ignore"):
    LARGE = dpk.Budget(mu=1e4)
NEIGHBOURS = ("replace_one", "add_remove")
TASKS = ("two", "several", "targets")


def risks(X):
    return X[:, 0]


def probabilities(X):
    return X


def scored(n=20_000, seed=0, slope=1.0):
    """Risks (n, 1) and labels, which are as the risks say for the slope 1."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1.5, 1.2, n)
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-slope * z))
    return (1.0 / (1.0 + np.exp(-z)))[:, np.newaxis], y.astype(int)


def of_task(task, n=400, seed=0):
    """A model, rows, labels, and arguments of an evaluation."""
    rng = np.random.default_rng(seed)
    if task == "two":
        return risks, *scored(n, seed), {"classes": [0, 1]}
    if task == "several":
        P = rng.dirichlet(np.ones(3), n)
        return probabilities, P, (P.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1), {
            "classes": [0, 1, 2]
        }  # fmt: skip
    x = rng.uniform(-1.0, 1.0, (n, 1))
    return risks, x, x[:, 0] + 0.3 * rng.standard_normal(n), {"target_bound": 2.0}


# ------------------------------------------------------------------------------ pairs


def naive_pairs(s, positive):
    pairs = itertools.product(s[positive], s[~positive])
    return sum(int(a > b) - int(a < b) for a, b in pairs)


@for_each("seed", range(20))
def test_pairs_are_those_of_a_double_loop_and_scikit_learns(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 60))
    s, positive = rng.integers(0, 8, n) / 8.0, rng.random(n) < 0.4
    found = count_pairs(s, positive)
    assert found == naive_pairs(s, positive)
    if 0 < positive.sum() < n:
        area = 0.5 + 0.5 * found / (positive.sum() * (~positive).sum())
        assert area == pytest.approx(roc_auc_score(positive, s))


def exact_pairs(s, positive, monkeypatch):
    """Return what is summed, in units of the sensitivity."""
    seen = []
    monkeypatch.setattr(GaussianSum, "release", lambda m, sums: (seen.append((m, sums)), sums)[1])
    release_pairs(Channel(Ledger(), NoiseStream(0), SEEN_BY["central"]), s, positive, 1.0)
    ((mechanism, sums),) = seen
    return sums / mechanism.sensitivity


def test_one_record_moves_pairs_by_their_sensitivity_at_most(monkeypatch):
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(3000):
        n = int(rng.integers(2, 9))
        s, positive = rng.integers(0, 4, n).astype(float), rng.random(n) < rng.random()
        other, label = s.copy(), positive.copy()
        other[0], label[0] = rng.integers(-1, 5), rng.random() < 0.5
        moved = exact_pairs(s, positive, monkeypatch) - exact_pairs(other, label, monkeypatch)
        worst = max(worst, float(np.linalg.norm(moved)))
    # A positive above all negatives that falls below all of them, with no other positive.
    s, positive = np.arange(9.0), np.arange(9) == 8
    other = np.where(positive, -1.0, s)
    moved = exact_pairs(s, positive, monkeypatch) - exact_pairs(other, positive, monkeypatch)
    assert worst <= 1.0
    assert 0.999 < float(np.linalg.norm(moved)) <= 1.0


def test_pairs_of_private_numbers_of_records_are_refused():
    channel = Channel(Ledger(), NoiseStream(0), SEEN_BY["central"], "add_remove")
    with pytest.raises(ValueError, match="replace_one"):
        release_pairs(channel, np.zeros(3), np.ones(3, bool), 1.0)


# ------------------------------------------------------------------------------ sums


def adversarial(task, rng, edges, n=40):
    """Sums of records at edges, centres and ends, with any labels."""
    of_edges = [*edges, *np.nextafter(edges, 0.5), *(0.5 * (edges[1:] + edges[:-1])), 0.0, 1.0]
    p = rng.choice(of_edges, n)
    if task == "two":
        return of_two_classes(p, rng.integers(0, 2, n), edges)
    if task == "targets":
        return of_targets(
            rng.normal(0.0, 3.0, n), rng.choice([-9.0, -2.0, 0.0, 2.0, 9.0], n), 0.5, 2.0
        )
    P = np.column_stack([p, 1.0 - p, np.zeros(n)])[:, rng.permutation(3)]
    return of_several_classes(P, rng.integers(0, 3, n), edges)


@for_each("task", TASKS)
def test_no_two_records_differ_by_more_than_is_stated(task):
    rng = np.random.default_rng(0)
    distance = norm = 0.0
    for _ in range(300):
        sums = adversarial(task, rng, edges_of(2 * int(rng.integers(1, 9)), 0.5))
        V = sums.vectors(slice(None))
        assert V.shape[1] == sums.dim
        norm = max(norm, np.linalg.norm(V, axis=1).max() / sums.clip)
        gaps = np.linalg.norm(V[:, np.newaxis] - V, axis=2)
        distance = max(distance, gaps.max() / sums.distance)
    assert 0.9 < norm <= 1.0
    assert 0.9 < distance <= 1.0


@for_each("neighbours", NEIGHBOURS)
@for_each("task", TASKS)
def test_released_sums_move_by_the_certified_sensitivity(task, neighbours, monkeypatch):
    seen = []
    monkeypatch.setattr(
        GaussianSum, "release", lambda m, sums: (seen.append((m.sensitivity, sums)), sums)[1]
    )
    adding = neighbours == "add_remove"
    rng = np.random.default_rng(1)
    for _ in range(30):
        seen.clear()
        sums = adversarial(task, rng, edges_of(8, 0.3))
        V = sums.vectors(slice(None))
        for rows in (V, np.delete(V, 0, axis=0) if adding else np.vstack([V[-1:], V[1:]])):
            given = type(sums)(lambda s, rows=rows: rows[s], sums.dim, sums.clip, sums.distance)
            channel = Channel(Ledger(), NoiseStream(0), SEEN_BY["central"], neighbours)
            given.release(channel, (0, len(rows)), (40,), 1.0)
        (D, one), (_, two) = seen
        assert np.linalg.norm(one - two) <= D


@for_each("threshold", [0.5, 0.3, 0.02, 0.999, 1e-4])
@for_each("bins", [1, 8, 64])
def test_the_threshold_is_an_edge(bins, threshold):
    edges = edges_of(bins, threshold)
    assert threshold in edges
    assert np.all(np.diff(edges) > 0.0)
    assert (edges[0], edges[-1]) == (0.0, 1.0)


# ------------------------------------------------------------------------------ scores


@for_each("neighbours", NEIGHBOURS)
def test_scores_without_noise_are_those_of_scikit_learn(neighbours):
    X, y = scored()
    p, how = X[:, 0], {"public_size": 20_000} if neighbours == "add_remove" else {}
    found = dpk.evaluate(
        risks, X, y, classes=[0, 1], budget=LARGE, threshold=0.3, neighbours=neighbours, **how
    )
    above = p >= 0.3
    assert found.accuracy == pytest.approx(np.mean(above == y), abs=1e-4)
    assert found.sensitivity == pytest.approx(above[y == 1].mean(), abs=1e-3)
    assert found.specificity == pytest.approx(1.0 - above[y == 0].mean(), abs=1e-3)
    assert found.rate == pytest.approx(y.mean(), abs=1e-4)
    assert found.mean_risk == pytest.approx(p.mean(), abs=1e-4)
    assert found.brier == pytest.approx(brier_score_loss(y, p), abs=1e-4)
    assert found.log_loss == pytest.approx(log_loss(y, p), abs=1e-3)
    # Bins alone do not order the records inside them.
    assert found.auc == pytest.approx(roc_auc_score(y, p), abs=3e-3 if how else 1e-5)
    assert found.calibration_error < 0.015
    confusion = [[np.sum((y == i) & (above == j)) for j in (0, 1)] for i in (0, 1)]
    assert np.allclose(found.confusion, confusion, atol=2.0)
    false, true = found.roc_curve
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
    risk, rate, n = found.calibration_curve
    assert n.sum() == pytest.approx(20_000, abs=2.0)
    assert np.abs(risk - rate)[n > 500].max() < 0.06


def test_risks_that_are_wrong_have_a_calibration_error():
    X, y = scored(slope=0.4)
    found = dpk.evaluate(risks, X, y, classes=[0, 1], budget=BUDGET, rng=0)
    edges = edges_of(len(found.calibration_curve[0]), 0.5)
    bins = np.searchsorted(edges[1:-1], X[:, 0], side="right")
    exact = np.abs(np.bincount(bins, X[:, 0]) - np.bincount(bins, y)).sum() / len(y)
    assert exact > 0.1
    assert found.calibration_error == pytest.approx(exact, abs=0.01)


def test_several_classes_have_their_scores_and_confusion():
    model, P, y, how = of_task("several", 5_000)
    found = dpk.evaluate(model, P, y, budget=LARGE, **how)
    right = P.argmax(axis=1)
    assert found.accuracy == pytest.approx(np.mean(right == y), abs=1e-4)
    assert found.mean_confidence == pytest.approx(P.max(axis=1).mean(), abs=1e-4)
    assert found.brier == pytest.approx(((P - np.eye(3)[y]) ** 2).sum(axis=1).mean(), abs=1e-3)
    assert found.scores["log_loss"].value == pytest.approx(log_loss(y, P), abs=5e-3)
    counts = [[np.sum((y == i) & (right == j)) for j in range(3)] for i in range(3)]
    assert np.allclose(found.confusion, counts, atol=1.0)


def test_targets_have_r2_error_and_bias_within_their_bounds():
    rng = np.random.default_rng(0)
    x = rng.uniform(10.0, 14.0, (5_000, 1))
    y = x[:, 0] - 0.5 + 0.3 * rng.standard_normal(5_000)
    found = dpk.evaluate(risks, x, y, target_bound=(9.0, 15.0), budget=LARGE)
    cut = np.clip(y, 9.0, 15.0)
    assert found.r2 == pytest.approx(r2_score(cut, x[:, 0]), abs=1e-3)
    assert found.rmse == pytest.approx(np.sqrt(np.mean((cut - x[:, 0]) ** 2)), abs=1e-3)
    assert found.bias == pytest.approx(np.mean(x[:, 0] - cut), abs=1e-3)
    wide = dpk.evaluate(risks, x, y, target_bound=1e4, budget=BUDGET, rng=0)
    assert math.isnan(wide.r2)
    assert wide.rmse <= wide.scores["rmse"].high


@for_each("neighbours", NEIGHBOURS)
@for_each("task", TASKS)
def test_scores_are_functions_of_what_is_released_alone(task, neighbours, monkeypatch):
    """Of other records, with the same releases, they are the same to the bit."""
    how = {"neighbours": neighbours} | ({"public_size": 400} if neighbours != "replace_one" else {})
    model, X, y, options = of_task(task, 4_000)
    kept, budget = [], dpk.Budget(mu=3.0)
    release = GaussianSum.release

    def again(mechanism, sums, **more):
        released = release(mechanism, sums, **more)
        if len(kept) < len(mechanisms):
            kept.append(released)
        return kept[mechanisms.index(mechanism._entry.what)]

    mechanisms = ["concordant less discordant pairs, and positives", "sums of an evaluation"]
    if task != "two" or neighbours == "add_remove":
        mechanisms = mechanisms[1:]
    monkeypatch.setattr(GaussianSum, "release", again)
    one = dpk.evaluate(model, X, y, budget=budget, rng=0, **options, **how)
    two = dpk.evaluate(model, X[::-1], y.max() - y, budget=budget, rng=0, **options, **how)
    assert str(one) == str(two)
    assert one.privacy == two.privacy
    assert len(kept) == len(mechanisms)


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
def test_models_of_this_package_and_of_others_are_taken():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (4_000, 3))
    y = (X[:, 0] + 0.3 * rng.standard_normal(4_000) > 0.0).astype(int)
    how = {"feature_range": (-1.0, 1.0), "classes": [0, 1]}
    data = dpk.SiloData(X, y, [0, 4_000], intercept=True, **how)
    result = dpk.solve("gradient_descent", data, budget=LARGE, rng=0)
    hinge = dpk.solve("gradient_descent", data, budget=LARGE, rng=0, loss="smoothed_hinge")
    ours = DPLogisticRegression(5.0, 1e-6, random_state=0, **how).fit(X, y)
    theirs = LogisticRegression().fit(X, y)
    frame = pd.DataFrame(X, columns=list("abc"))
    for model, rows in (
        *((result, X), (hinge, X), (ours, X), (theirs, X)),
        (lambda frame: theirs.predict_proba(frame.to_numpy()), frame),
    ):
        more = {"classes": [0, 1]} if rows is frame else {}
        found = dpk.evaluate(model, rows, y, budget=LARGE, **more)
        assert found.auc > 0.9
        assert ("log_loss" in found.scores) == (model is not hinge)
        if hasattr(model, "predict"):
            assert found.accuracy == pytest.approx(np.mean(model.predict(X) == y), abs=1e-3)
    line = Ridge().fit(X, X[:, 0])
    assert dpk.evaluate(line, X, X[:, 0], target_bound=1.0, budget=LARGE).r2 > 0.99
    row_wise = "taken as true of the evaluated model"
    assert not any(note.startswith(row_wise) for note in dpk.evaluate(
        result, X, y, budget=LARGE).privacy.notes)  # fmt: skip
    assert any(note.startswith(row_wise) for note in dpk.evaluate(
        theirs, X, y, budget=LARGE).privacy.notes)  # fmt: skip


@pytest.mark.statistical
@pytest.mark.parametrize(("n", "epsilon"), [(4_000, 1.0), (1_000, 3.0), (16_000, 0.3)])
def test_intervals_cover(n, epsilon):
    X, y = scored(400_000, seed=1, slope=0.8)
    p, rng, repeats = X[:, 0], np.random.default_rng(0), 400
    losses = -np.log(np.clip(np.where(y == 1, p, 1.0 - p), math.exp(-6.0), 1.0))
    above = p >= 0.5
    exact = {
        "accuracy": np.mean(above == y), "sensitivity": above[y == 1].mean(), "rate": y.mean(),
        "auc": roc_auc_score(y, p), "brier": np.mean((p - y) ** 2), "log_loss": losses.mean(),
        "mean_risk": p.mean(), "specificity": 1.0 - above[y == 0].mean(),
    }  # fmt: skip
    hits = dict.fromkeys(exact, 0)
    budget = dpk.Budget(epsilon=epsilon, delta=1e-6)
    for seed in range(repeats):
        rows = rng.integers(0, len(y), n)
        found = dpk.evaluate(risks, X[rows], y[rows], classes=[0, 1], budget=budget, rng=seed)
        for name, value in exact.items():
            score = found.scores[name]
            hits[name] += score.low <= value <= score.high
    # Three standard errors of 0.95 beside the two points that an interval may be off.
    assert all(0.90 <= count / repeats <= 0.995 for count in hits.values()), hits


@pytest.mark.statistical
@pytest.mark.parametrize("slope", [1.0, 0.92, 0.8])
def test_intervals_of_calibration_errors_cover(slope):
    """Of right risks, too, whose interval begins at 0."""
    X, y = scored(400_000, seed=1, slope=slope)
    p, rng, hits, repeats = X[:, 0], np.random.default_rng(0), 0, 400
    for seed in range(repeats):
        rows = rng.integers(0, len(y), 4_000)
        found = dpk.evaluate(risks, X[rows], y[rows], classes=[0, 1], budget=BUDGET, rng=seed)
        bins = np.searchsorted(edges_of(len(found.calibration_curve[0]), 0.5)[1:-1], p, "right")
        exact = np.abs(np.bincount(bins, p) - np.bincount(bins, y)).sum() / len(y)
        score = found.scores["calibration_error"]
        hits += score.low <= exact <= score.high
    assert 0.92 <= hits / repeats <= 0.995


def test_intervals_begin_at_zero_where_right_risks_may_show_the_error(monkeypatch):
    seen, bound = [], figures.Binned.error_of_right_risks

    def spy(binned, table, n, confidence):
        shown, found = (
            binned.scores(table)["calibration_error"],
            bound(binned, table, n, confidence),
        )
        seen.append((float(shown) <= found, float(shown) <= bound(binned, table, n, 0.8)))
        return found

    monkeypatch.setattr(figures.Binned, "error_of_right_risks", spy)
    for seed in range(60):
        X, y = scored(4_000, seed)
        evaluation = dpk.evaluate(risks, X, y, classes=[0, 1], budget=BUDGET, rng=seed)
        assert not seen[-1][0] or evaluation.scores["calibration_error"].low == 0.0
    often, less_often = np.mean(seen, axis=0)
    assert often >= 0.88
    assert 0.65 < less_often < 0.92


# ------------------------------------------------------------------------------ certificates


@for_each("neighbours", NEIGHBOURS)
@for_each("task", TASKS)
def test_the_certificate_is_the_budget_and_verifies(task, neighbours):
    model, X, y, options = of_task(task)
    how = {"neighbours": neighbours} | ({"public_size": 400} if neighbours != "replace_one" else {})
    found = dpk.evaluate(model, X, y, budget=BUDGET, **options, **how)
    privacy = found.privacy
    assert privacy.mu <= BUDGET.mu
    assert privacy.mu == pytest.approx(BUDGET.mu, rel=1e-9)
    assert privacy.epsilon(1e-6) <= 1.0 + 1e-9
    assert len(privacy.releases) == (2 if task == "two" and neighbours == "replace_one" else 1)
    assert dpk.verify(privacy.to_dict()).ok
    changed = {"two": {"size": 7}, "several": {"bins": 4}, "targets": {"evaluated": "multiclass"}}
    if len(privacy.releases) == 1 and task == "two":
        changed["two"] = {"evaluated": "regression"}
    other = replace(privacy, declared=privacy.declared | changed[task])
    assert not dpk.verify(other.to_dict()).ok


def test_the_certificate_names_the_model_and_verifies_beside_it(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (4_000, 3))
    y = (X[:, 0] + 0.3 * rng.standard_normal(4_000) > 0.0).astype(int)
    data = dpk.SiloData(X, y, [0, 4_000], feature_range=(-1.0, 1.0), classes=[0, 1])
    models = [dpk.solve("gradient_descent", data, budget=BUDGET, rng=seed) for seed in (0, 1)]
    assert models[0].calibration is not None
    for name, model in zip("ab", models, strict=True):
        model.save(tmp_path / name)
    found = dpk.evaluate(models[0], X, y, budget=BUDGET).privacy
    assert found.model == models[0].privacy.model
    assert found.started is not None
    found.save(tmp_path / "certificate")
    assert dpk.verify(tmp_path / "certificate", tmp_path / "a").ok
    assert not dpk.verify(tmp_path / "certificate", tmp_path / "b").ok


def test_an_accountant_is_charged_before_and_settled_after(tmp_path):
    model, X, y, options = of_task("two")
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=1.1, delta=1e-5)
    dpk.evaluate(model, X, y, budget=BUDGET, accountant=accountant, **options)
    spent = accountant.spent
    assert 0.5 < spent < 1.1
    with pytest.raises(dpk.BudgetSpentError):
        dpk.evaluate(model, X, y, budget=BUDGET, accountant=accountant, **options)
    with pytest.raises(ValueError, match="y must hold labels"):
        dpk.evaluate(model, X, y + 1, budget=BUDGET, accountant=accountant, **options)
    assert accountant.spent == spent


def test_a_person_has_the_budget_for_all_of_its_records():
    model, X, y, options = of_task("two")
    person = np.arange(400) // 4
    found = dpk.evaluate(model, X, y, budget=BUDGET, person=person, max_records=2, **options)
    assert found.privacy.unit == "one person with at most 2 records"
    assert found.privacy.declared["size"] == 200
    assert found.privacy.epsilon(1e-6) <= 1.0 + 1e-9
    (pairs, sums) = found.privacy.releases
    assert math.hypot(pairs.sensitivity / pairs.std, sums.sensitivity / sums.std) <= BUDGET.mu / 2


@for_each(
    ("change", "text"),
    [
        ({"budget": 1.0}, "budget must be"),
        ({"classes": None}, "classes must be given"),
        ({"threshold": 1.0}, "threshold must"),
        ({"bins": 0}, "bins must"),
        ({"neighbours": "add_remove"}, "public_size must be given"),
        ({"public_size": 5}, "public_size must be None"),
        ({"neighbours": "both"}, "neighbours must"),
        ({"max_records": 2}, "max_records must"),
        ({"accountant": "x"}, "accountant must"),
        ({"y": np.zeros(3)}, "y must"),
        ({"model": lambda X: X[:, 0] + 2.0}, "from 0 to 1"),
        ({"model": lambda X: X[:, 0] * np.nan}, "finite"),
        ({"model": lambda X: X[:, :1]}, ""),
        ({"model": 3}, "model must"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_wrong_calls_name_the_argument(change, text):
    model, X, y, options = of_task("two")
    given = {"model": model, "X": X, "y": y, "budget": BUDGET, **options} | change
    if text:
        with pytest.raises((TypeError, ValueError), match=text):
            dpk.evaluate(given.pop("model"), given.pop("X"), given.pop("y"), **given)
    else:  # one column of probabilities is that of the positive class
        assert dpk.evaluate(given.pop("model"), given.pop("X"), given.pop("y"), **given).scores


def test_probabilities_of_classes_must_add_up_to_one():
    """Ones for every class would be right each time."""
    _, P, y, options = of_task("several")
    with pytest.raises(ValueError, match="add up to 1"):
        dpk.evaluate(np.ones_like, P, y, budget=BUDGET, **options)


def test_it_prints_a_table_with_intervals():
    model, X, y, options = of_task("two")
    text = str(dpk.evaluate(model, X, y, budget=BUDGET, rng=0, **options))
    assert "95 % interval" in text
    assert "spent epsilon 1 at delta 1e-06" in text
    with pytest.raises(AttributeError, match="no 'aux', but accuracy"):
        _ = dpk.evaluate(model, X, y, budget=BUDGET, rng=0, **options).aux


@pytest.mark.statistical
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_an_audit_finds_no_more_and_hardly_less_than_is_certified(neighbours, monkeypatch):
    """The strongest attack on a positive record of the highest risk, against one of the lowest."""
    p = np.concatenate([[0.97], np.linspace(0.1, 0.9, 39)])[:, np.newaxis]
    y = np.concatenate([[1], np.zeros(39, int)])
    others = (p[1:], y[1:]) if neighbours == "add_remove" else (np.append(0.02, p[1:]), y)
    how = {"neighbours": neighbours, "classes": [0, 1], "bins": 8}
    how |= {"public_size": 40} if neighbours == "add_remove" else {}
    seen, release = [], GaussianSum.release

    def spy(mechanism, sums):
        released = release(mechanism, sums)
        seen.append((sums.ravel() / mechanism.sigma[0], released.ravel() / mechanism.sigma[0]))
        return released

    monkeypatch.setattr(GaussianSum, "release", spy)
    monkeypatch.setattr(figures, "_REPEATS", 2)
    runs = []
    for X, labels in ((p, y), (others[0].reshape(-1, 1), others[1])):
        for seed in range(4_000):
            seen.clear()
            found = dpk.evaluate(risks, X, labels, budget=dpk.Budget(mu=2.0), rng=seed, **how)
            runs.append([np.concatenate(vectors) for vectors in zip(*seen, strict=True)])
    exact, released = np.array([run[0] for run in runs]), np.array([run[1] for run in runs])
    scores = released @ (exact[0] - exact[-1])
    bound = dpk.audit_scores(scores[:4_000], scores[4_000:], method="gdp").mu
    assert 1.6 < bound <= found.privacy.mu


@for_each("task", TASKS)
def test_no_record_raises_between_the_releases(task):
    tiny = np.full(200, 1e-200)
    X, labels = tiny[:, np.newaxis], np.arange(200) % 2
    call = {
        "two": (risks, X, labels, {"classes": [0, 1]}),
        "several": (probabilities, np.hstack([X, X, 1.0 - X]), labels, {"classes": [0, 1, 2]}),
        "targets": (risks, X, tiny, {"target_bound": 1.0}),
    }
    model, rows, y, options = call[task]
    with np.errstate(all="raise"):
        dpk.evaluate(model, rows, y, budget=BUDGET, rng=0, **options)


def test_few_records_have_scores_within_their_ranges():
    X, y = scored(5)
    evaluation = dpk.evaluate(risks, X, y, budget=BUDGET, classes=[0, 1], rng=1)
    for name, score in evaluation.scores.items():
        assert 0.0 <= score.low <= score.value <= score.high <= (6.0 if name == "log_loss" else 1.0)


@for_each(
    ("model", "options", "text"),
    [
        (lambda X: np.full((len(X), 3), 0.3), {"classes": [0, 1]}, "model must predict probab"),
        (lambda X: ["high"] * len(X), {"classes": [0, 1]}, "model must predict an array of real"),
        (lambda X: None, {"classes": [0, 1]}, "model must predict an array of real"),
        (object(), {"target_bound": 1.0}, "model must be .* have predict,"),
        (
            LinearSVC().fit([[0], [1]], [0, 1]),
            {},
            "LinearSVC, which predicts labels: for",
        ),
        (risks, {"classes": "ab"}, "classes must be the list of labels"),
        (risks, {"target_bound": 1e200}, "target_bound must be from 1e-100 to 1e"),
        (risks, {"classes": [0, 1], "confidence": 1.0 - 2.0**-53}, "confidence must be from"),
        (risks, {"classes": [0, 1], "threshold": 5e-324}, "threshold must be from"),
        (risks, {"classes": [0, 1], "bins": 1001}, "bins must be at most 1000"),
    ],
)
def test_what_no_score_follows_from_is_refused_at_no_cost(model, options, text, tmp_path):
    X, y = scored(100)
    accountant = dpk.Accountant(tmp_path / "ledger", epsilon=1.1, delta=1e-5)
    with pytest.raises((TypeError, ValueError), match=text):
        dpk.evaluate(model, X, y, budget=BUDGET, accountant=accountant, **options)
    assert accountant.spent == 0.0


def test_no_records_are_refused():
    with pytest.raises(ValueError, match="X must hold at least one record"):
        dpk.evaluate(risks, np.empty((0, 1)), [], budget=BUDGET, classes=[0, 1])


def test_products_of_matrices_are_refused_where_records_are_added():
    """A record's prediction would be rounded by how many others there are."""
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (300, 3))
    y = np.argmax(X, axis=1)
    data = dpk.SiloData(X, y, [0, 300], feature_range=(-1, 1), classes=[0, 1, 2], task="multiclass")
    result = dpk.solve("auto", data, budget=dpk.Budget(epsilon=3.0, delta=1e-6), rng=0)
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match="neighbours must be 'replace_one' for the model 'mlp'"):
        dpk.evaluate(result, X, y, budget=budget, neighbours="add_remove", public_size=300)
    assert dpk.evaluate(result, X, y, budget=budget, rng=0).privacy.epsilon(1e-6) <= 1.0


def test_few_records_are_warned_of_before_the_charge_by_public_numbers_alone(tmp_path):
    budget, rng = dpk.Budget(epsilon=0.3, delta=1e-6), np.random.default_rng(0)
    accountant = dpk.Accountant(tmp_path / "l.json", epsilon=9.0, delta=1e-6)
    how = {"budget": budget, "classes": [0, 1], "accountant": accountant}
    enough = math.ceil(80 / budget.mu)

    def evaluated(n, labels):
        X = rng.random((n, 1))
        return dpk.evaluate(lambda X: X[:, 0], X, labels, **how)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for labels in (np.resize([0, 1], 39), np.zeros(39, int)):
            with pytest.raises(
                UserWarning, match=f"scores of 39 .* 0.5, and 0.06 with {enough} rec"
            ):
                evaluated(39, labels)
        assert accountant.spent == 0.0
        found = evaluated(enough, np.resize([0, 1], enough))
    assert found.scores["accuracy"].noise_std == pytest.approx(0.06, rel=0.15)


def test_the_cure_of_missing_labels_is_named():
    how = {"budget": dpk.Budget(mu=1.0)}
    data = dpk.SiloData(np.ones((9, 1)), [0, 1, 1] * 3, [0, 9])
    model = dpk.solve("ridge", data, budget=None)
    with pytest.raises(ValueError, match="y must be given, got None: pass the labels of the rec"):
        dpk.evaluate(model, data.X, **how)
    columns = [dpk.data.Column("a", "number", lo=0, hi=9)]
    columns += [dpk.data.Column("y", "target", classes=["n", "p"])]
    frame = {"a": range(9), "y": ["n", "p", "p"] * 3}
    model = dpk.solve("ridge", dpk.Schema(columns).silo_data(frame), budget=None)
    with pytest.raises(ValueError, match=r"y must be given, got None: pass model\.schema\.labels"):
        dpk.evaluate(model, frame, **how)


def test_bins_that_noise_hides_have_no_rate_and_intervals_of_the_others_cover():
    budget, inside, hidden = dpk.Budget(epsilon=0.5, delta=1e-6), [], 0
    bins = np.searchsorted(edges_of(8, 0.5)[1:-1], many := np.random.default_rng(9).random(10**6))
    right = np.bincount(bins, many) / np.bincount(bins)
    for k in range(60):
        rng = np.random.default_rng(k)
        X = rng.random((1500, 1))
        y = (rng.random(1500) < X[:, 0]).astype(int)
        found = dpk.evaluate(lambda X: X[:, 0], X, y, classes=[0, 1], bins=8, budget=budget, rng=k)
        (_, rate, n), (low, high) = found.calibration_curve, found.calibration_intervals
        few = n < 5.0 * math.sqrt(2.0 * 3.5) / (math.sqrt(0.55) * budget.mu)
        np.testing.assert_array_equal(np.isnan(rate), few)
        np.testing.assert_array_equal((low[few], high[few]), (0.0 * n[few], 0.0 * n[few] + 1.0))
        inside += ((low <= right) & (right <= high))[~few].tolist()
        hidden += few.sum()
    assert hidden > 60
    assert len(inside) > 100
    assert 0.92 < np.mean(inside) <= 1.0
    hidden = np.isnan(found.calibration_curve[1]).sum()
    axes = found.plot().axes[0]
    assert sum(line.get_marker() == "o" for line in axes.lines) == 8 - hidden
    with pytest.raises(ValueError, match="plot needs predicted risks"):
        replace(found, calibration_curve=None).plot()
