"""Temperatures: what is released, when, and what follows from it."""

import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from cases import for_each
from makers import fail_at_call, spy_on_calls
from parties import Study
from scipy import sparse
from scipy.optimize import minimize_scalar

import dpkern as dpk
from dpkern.privacy.mechanisms import gaussian_sum
from dpkern.solvers.base import recalibration as module
from dpkern.solvers.base.calibration import Temperature
from dpkern.solvers.base.outcome import NothingLearntWarning
from dpkern.solvers.base.recalibration import SIZES, TEMPERATURE

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
RELEASES = {SIZES: (0.5, 1, 1), TEMPERATURE: (1.04, 2, 2)}


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def rows_and_labels(n, K=3, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    z = 2.0 * X @ np.random.default_rng(7).normal(size=(d, K)) + rng.gumbel(size=(n, K))
    return X, z.argmax(axis=1)


def records(n=4000, m=1, K=3, seed=0, **options):
    X, y = rows_and_labels(n, K, seed=seed)
    how = {"feature_range": (-1.0, 1.0), "task": "multiclass", "classes": list(range(K)), "seed": 0}
    return dpk.SiloData.split(X, y, m=m, **(how | options))


def solve(data, solver="minibatch_sgd", **how):
    given = {"budget": BUDGET, "rng": 1, "model": dpk.MLP(hidden=())}
    return dpk.solve(solver, data, **(given | how))


def released(result):
    return {r.what: r for r in result.privacy.releases if r.what.startswith("recalibration")}


def scores(data, w, K=3):
    W = w.reshape(K, -1)
    return data.transform.apply(data.X) @ W[:, :-1].T + W[:, -1]


CASES = [
    (solver, neighbours, trust, m)
    for solver, neighbours in (
        ("minibatch_sgd", "replace_one"),
        ("minibatch_sgd", "add_remove"),
        ("spider", "replace_one"),
        ("prox_svrg", "replace_one"),
        ("local_sgd", "replace_one"),
    )
    for trust, m in (("central", 1), ("central", 3), ("silo", 3))
    if (solver, trust) != ("local_sgd", "central")
]


@for_each(("solver", "neighbours", "trust", "m"), CASES)
def test_releases_have_their_sensitivity_and_the_budget(solver, neighbours, trust, m):
    size = {} if neighbours == "replace_one" else {"public_size": [4000 // m] * m}
    how = {"trust": trust, "neighbours": neighbours, "rounds": 10, **size}
    result = solve(records(m=m), solver, **how)
    unit = 2.0 if neighbours == "replace_one" else 1.0
    found = released(result)
    assert tuple(found) == tuple(RELEASES)
    for what, (C, times, dim) in RELEASES.items():
        sensitivities = np.atleast_1d(found[what].sensitivity)
        assert np.array_equal(sensitivities, [unit * C] * (m if trust == "silo" else 1))
        assert (found[what].times, found[what].dim) == (times, dim)
    assert 1.0 - 1e-6 <= result.privacy.epsilon(1e-6) <= 1.0
    values = result.privacy.to_dict()
    assert dpk.verify(values)
    for what in RELEASES:
        left = [r for r in values["releases"] if r["what"] != what]
        assert not dpk.verify(values | {"releases": left})


def test_the_sums_are_the_score_and_the_information(monkeypatch):
    calls = spy_on_calls(monkeypatch, gaussian_sum, "sum_vectors")
    units, improve = [], module.Scale.improve
    monkeypatch.setattr(
        module.Scale, "improve", lambda s, *a: units.append((s.slope, s._unit)) or improve(s, *a)
    )
    data = records(n=20_000)
    result = solve(data, budget=dpk.Budget(mu=6.0))
    z = scores(data, result.w)
    half = 0.5 * np.ptp(z, axis=1)
    W = result.w.reshape(3, -1)
    largest = np.linalg.norm(W - W.mean(axis=0), axis=1).max() * np.hypot(data.row_bound, 1.0)
    assert half.max() <= largest
    first, *others = (call.result[0] for call in calls)
    assert first[0] == pytest.approx(np.sum(np.sqrt(half / largest) - 0.5), abs=1e-3)
    for (slope, unit), sums in zip(units, others, strict=True):
        p = softmax(slope * z)
        mean = (p * z).sum(axis=1)
        score = np.clip((mean - z[np.arange(data.n), data.y.astype(int)]) / unit, -1.0, 1.0)
        information = np.minimum(((p * z**2).sum(axis=1) - mean**2) / unit**2, 0.25)
        assert sums == pytest.approx([score.sum(), np.sum(2 * information - 0.25)], abs=0.01)


def test_a_softmax_of_two_classes_has_a_temperature_that_verifies():
    X, y = rows_and_labels(4000, 2)
    data = dpk.SiloData.split(X, y, m=1, feature_range=(-1.0, 1.0), classes=[0, 1], seed=0)
    assert data.task == "classification"
    result = solve(data)
    assert tuple(released(result)) == tuple(RELEASES)
    assert dpk.verify(result.privacy.to_dict())


@for_each("K", [3, 10])
def test_the_temperature_is_near_the_best(K):
    data = records(n=50_000, K=K)
    result = solve(data, budget=dpk.Budget(mu=5.0), rounds=20, step_size=0.2)
    z = scores(data, result.w, K)

    def loss(slope):
        p = softmax(slope * z)
        return -np.log(p[np.arange(data.n), data.y.astype(int)]).mean()

    best = minimize_scalar(loss, (0.1, 10.0))
    assert best.x > 1.3  # the model is far from the best scale
    assert loss(1.0 / result.calibration.temperature) < best.fun + 0.1 * (loss(1.0) - best.fun)
    assert result.calibration.slope_error < 0.1 * best.x


def test_no_label_changes_and_files_keep_the_temperature(tmp_path):
    data = records()
    result = solve(data)
    z = scores(data, result.w)
    logits = result.decision_function(data.X)
    assert np.allclose(logits, z / result.calibration.temperature)
    assert np.array_equal(result.predict(data.X), z.argmax(axis=1))
    assert np.allclose(result.predict_proba(data.X), softmax(logits))
    assert "logits     score / " in str(result)
    result.save(tmp_path / "model.npz")
    read = dpk.load(tmp_path / "model.npz")
    assert read == result
    assert np.array_equal(read.decision_function(data.X), logits)
    assert dpk.verify(tmp_path / "model.npz").ok


def test_coefficients_are_those_of_the_logits():
    data = records()
    result = solve(data)
    rows = {row.name: row for row in result.coefficients()}
    plain = {row.name: row for row in replace(result, calibration=None).coefficients()}
    for name, row in plain.items():
        for found, expected in zip(rows[name][1:], row[1:], strict=True):
            assert found == pytest.approx(expected / result.calibration.temperature)
    assert "logits" in result.coefficients().note


@for_each(
    "how",
    [
        {"clip": 1.0},
        {"recalibrate": False},
        {"model": dpk.MLP(hidden=(2,))},
        {"penalty": dpk.penalties.L2Ball(3.0)},
        {"monitor": "train"},
        {"trust": "shuffle"},
        {"sampling": "without_replacement"},
        {"calibration": "paper", "trust": "silo"},
        {"budget": None},
    ],
)
def test_other_runs_have_none_and_say_so(how):
    result = solve(records(5000), rounds=5, **how)
    assert result.calibration is None
    assert not released(result)
    assert result.parameters["recalibrate"] is False


def test_few_records_for_the_coefficients_have_none():
    assert released(solve(records(1300), rounds=5))  # n mu is 307
    assert not released(solve(records(1200), rounds=5))
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 4000)
    found = []
    for d in (50, 120):  # n mu is 946
        X = rng.uniform(-1.0, 1.0, (4000, d))
        data = dpk.SiloData(X, y, [0, 4000], row_bound=5.0, task="multiclass", classes=range(10))
        found.append(bool(released(solve(data, rounds=5))))
    assert found == [True, False]


def test_shares_depend_on_public_numbers_alone():
    first, second = (solve(records(seed=s)) for s in (0, 1))
    assert first.privacy.releases == second.privacy.releases
    assert first.calibration != second.calibration


def test_runs_in_lockstep_have_the_temperature_of_runs_alone():
    data = records(m=2)
    runs = dpk.solve_many("auto", data, budgets=BUDGET, draws=3, rng=[1, 2, 3])
    for seed, run in zip((1, 2, 3), runs, strict=True):
        assert run == dpk.solve("auto", data, budget=BUDGET, rng=seed)
        assert isinstance(run.calibration, Temperature)


@for_each("trust", ["central", "silo"])
def test_parties_have_the_temperature_of_one_process(trust):
    data = records(m=4)
    how = {"budget": BUDGET, "rounds": 3, "trust": trust, "model": dpk.MLP(hidden=())}
    colluding = 1 if trust == "central" else None
    expected = dpk.solve("minibatch_sgd", data, rng=7, colluding=colluding, **how)
    study = Study(data, colluding=1)
    study.run("minibatch_sgd", **how)
    assert study.failures == [None] * 5
    for found in study.results:
        assert found.calibration == expected.calibration is not None
        assert found.privacy.releases == expected.privacy.releases


def test_labels_without_any_relation_are_told():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (3000, 30)), rng.integers(0, 3, 3000)
    data = dpk.SiloData.split(X, y, 1, row_bound=5.5, task="multiclass", classes=[0, 1, 2], seed=0)
    with pytest.warns(NothingLearntWarning):
        assert "little learnt" in solve(data).message
    # Classes far from each other leave little information on a slope that is clear.
    X = 0.9 * np.eye(3, 30)[y] + 0.1 * X
    data = dpk.SiloData.split(X, y, 1, row_bound=5.5, task="multiclass", classes=[0, 1, 2], seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NothingLearntWarning)
        solve(data)


# --------------------------------------------------------------------------- whatever records are


def vectors_of(data, w, K, slope=1.0, unit=None):
    """The vectors of the releases at a model and a slope, without noise."""
    seen = {}

    def record(what, clip, vectors):
        ends = pairwise(data.offsets.tolist())
        seen[what] = np.vstack([vectors(slice(*e)) for e in ends]), clip

    W, unit = w.reshape(K, -1), 1.0 if unit is None else unit
    margins = tuple(module.Margins(row[:-1].copy(), None) for row in W)
    scores = module._ClassScores(margins, tuple(W[:, -1].tolist()))
    with np.errstate(all="ignore"):
        record(module.SIZES, 0.5, scores.sizes(unit, data))
        record(module.TEMPERATURE, module._SCORES_CLIP, scores.vectors(slope, unit, data))
    return seen


@for_each("K", [2, 3, 10, 17])
@for_each("kind", ["dense", "single", "sparse", "range"])
def test_vectors_are_of_one_record_wherever_it_lies(kind, K, monkeypatch):
    monkeypatch.setattr(module, "_NUMBERS", 50 * K)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (203, 37))
    X[:4] *= np.array([[1e-310], [1e-160], [0.0], [1e300 if kind == "dense" else 1.0]])
    y, order = rng.integers(0, K, 203), rng.permutation(203)[:150]
    X = X.astype(np.float32) if kind == "single" else X
    how = {"feature_range": (-1.0, 1.0)} if kind == "range" else {"row_bound": 2.0}
    w = 0.5 * rng.normal(size=K * 38)

    def of(rows, offsets):
        held = sparse.csr_array(X[rows]) if kind == "sparse" else X[rows]
        data = dpk.SiloData(held, y[rows], offsets, task="multiclass", classes=range(K), **how)
        return vectors_of(data, w, K, slope=1.7)

    first = of(np.arange(203), [0, 203])
    second = of(order, [*range(20), 60, 61, 150])  # of one record, whose sums NumPy takes apart
    for what, (V, clip) in first.items():
        assert V[order].tobytes() == second[what][0].tobytes()
        assert np.isfinite(V).all()
        assert np.linalg.norm(V, axis=1).max() <= clip


HUGE = (0.0, 1.0, 1e-300, 1e3, 1e150, 1e160, 1e307)


def far_moves(trials, seed=0):
    """The largest move of a sum over its bound, of pairs that differ in one record."""
    rng, worst = np.random.default_rng(seed), 0.0
    with np.errstate(all="ignore"):
        for _ in range(trials):
            K, n = int(rng.integers(2, 12)), 12
            X = rng.normal(size=(n + 1, 3)) * rng.choice([1e-8, 1.0, 1e8], (n + 1, 1))
            w = rng.normal(size=(K, 4)) * rng.choice(HUGE) * rng.choice([0.0, 1.0, 1.0], (K, 1))
            y, j = rng.integers(0, K, n + 1), int(rng.integers(n))
            slope, unit = np.exp(rng.uniform(-2.0, 2.0)), rng.choice([1e-300, 1e-3, 1.0, 1e3])
            others = np.delete(np.arange(n + 1), n), np.delete(np.arange(n + 1), j)
            sums = []
            for rows in (np.arange(n + 1), *others):
                data = dpk.SiloData(X[rows], y[rows], [0, len(rows)], row_bound=2.0,
                                    task="multiclass", classes=range(K))  # fmt: skip
                seen = vectors_of(data, w.ravel(), K, slope, unit)
                sums.append(
                    {
                        what: gaussian_sum.sum_vectors(
                            lambda s, V=V: V[s], V.shape[1], (0, len(V)), C, np.array([2.0**-31])
                        )[0]
                        for what, (V, C) in seen.items()
                    }
                )
            for what, (C, _, _) in RELEASES.items():
                all_of, one, two = (s[what] for s in sums)
                moves = (one, two, 2.0 * C), (all_of, one, C), (all_of, two, C)
                for a, b, bound in moves:
                    square = sum(
                        (Fraction(p) - Fraction(q)) ** 2
                        for p, q in zip(a.tolist(), b.tolist(), strict=True)
                    )
                    worst = max(worst, float(square / Fraction(bound) ** 2))
    return worst


def test_one_record_moves_no_sum_by_more_than_its_bound():
    worst = far_moves(150)
    assert 0.5 < worst <= 1.0  # and the search is one


@for_each("size", [1e-310, 1e-160, 0.0, 1e300])
def test_no_record_makes_numpy_raise(size):
    """An error would end the run, and tell that the record is there."""
    X, y = rows_and_labels(4000)
    X[0] = size
    data = dpk.SiloData(X, y, [0, 4000], row_bound=2.0, task="multiclass", classes=[0, 1, 2])
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solve(data, step_size=1.0)
    assert tuple(released(result)) == tuple(RELEASES)


@for_each("step_size", [1e-50, 1e50])
def test_models_of_any_size_have_a_finite_temperature(step_size):
    data = records()
    with np.errstate(all="ignore"):
        result = solve(data, rounds=2, step_size=step_size)
    assert 0.1 < result.calibration.temperature < 10.0
    assert np.isfinite(result.predict_proba(data.X)).all()


def test_any_sums_give_a_temperature_within_its_bounds():
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        for _ in range(1000):
            n, unit = 10.0 ** rng.uniform(1.0, 8.0), 10.0 ** rng.uniform(-300.0, 300.0)
            start = rng.choice([0.5, 1.0])
            scale = module.Scale(n, unit, start)
            for _ in range(2):
                sums = rng.choice([-1.0, 0.0, 1.0], 2) * 10.0 ** rng.uniform(-300.0, 300.0, 2)
                scale.improve(*sums, n * 10.0 ** rng.uniform(-20.0, 0.0))
            assert np.exp(-2.0) * 0.999 <= scale.slope / start <= np.exp(2.0) * 1.001
            assert scale.slope_error > 0.0  # infinite where no slope is seen
            assert scale.sampling_error > 0.0


@for_each("release", [1, 2, 3])
def test_a_run_that_fails_there_has_a_valid_certificate(monkeypatch, release):
    fail_at_call(monkeypatch, gaussian_sum, "sum_vectors", release)
    with pytest.warns(UserWarning, match="MemoryError"):
        result = solve(records())
    assert result.calibration is None
    assert sum(r.times for r in released(result).values()) == release - 1
    assert dpk.verify(result.privacy.to_dict())
