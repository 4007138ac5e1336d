"""Audits by one run: what canaries reach, what they are hidden from, and what they find."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import assert_refused
from scipy import stats

import dpkern as dpk
from dpkern import kernels
from dpkern.auditing import CertificateViolatedWarning
from dpkern.auditing.bounds import audit_scores
from dpkern.auditing.canaries import Canaries, Projections, WithCanaries, scores
from dpkern.auditing.one_run import _refuted
from dpkern.models.oracles import effective_rows
from dpkern.privacy.guarantees.gdp import NO_GUARANTEE

BUDGET = dpk.Budget(epsilon=8.0, delta=1e-5)


class Softmax(dpk.Oracle):
    """Softmax regression, which refuses rows that it does not know."""

    name = "my softmax"

    def __init__(self, data=None):
        self.known = None if data is None else {row.tobytes() for row in data.X}

    def dim(self, data):
        return data.n_features * len(data.classes)

    def gradients(self, w, X, y):
        assert self.known is None or all(row.tobytes() in self.known for row in X)
        z = X @ w.reshape(X.shape[1], -1)
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y.astype(int)] -= 1.0
        return (X[:, :, np.newaxis] * p[:, np.newaxis, :]).reshape(len(y), -1)

    def losses(self, w, X, y):
        assert self.known is None or all(row.tobytes() in self.known for row in X)
        return np.ones(len(y))

    def outputs(self, w, X):
        return X @ w.reshape(X.shape[1], -1)


def make_data(n=600, p=80, m=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = np.argmax(X[:, :5], axis=1)
    return dpk.SiloData.split(X, y, m, seed=seed, task="multiclass", classes=range(5), **options)


DATA, WIDE = make_data(), make_data(p=200)
ADD_REMOVE = {"neighbours": "add_remove", "public_size": [200] * 3}
POISSON = ADD_REMOVE | {"sampling": "poisson", "batch_size": 60}


def audited(solver="minibatch_sgd", data=DATA, model=None, **how):
    how = {"budget": BUDGET, "canaries": 400, "clip": 1.0, "rounds": 20, "step_size": 0.3} | how
    return dpk.audit_one_run(solver, data, model or Softmax(), **{"rng": 1} | how)


# The std of an estimate is sqrt((4 + mu^2 / 2) / 200) = 0.16.
TIGHT = [
    ("minibatch_sgd", {}),
    ("minibatch_sgd", {"trust": "silo"}),
    ("minibatch_sgd", ADD_REMOVE),
    ("minibatch_sgd", ADD_REMOVE | {"trust": "silo"}),
    ("minibatch_sgd", {"trust": "shuffle", "rounds": 4}),
    ("local_sgd", {"trust": "silo", "local_steps": 3, "rounds": 6}),
]


@pytest.mark.statistical
@pytest.mark.parametrize(("solver", "how"), TIGHT)
def test_canaries_reach_the_certified_mu_and_refute_nothing_true(solver, how):
    found = audited(solver, **how)
    assert not found.violated
    assert 0.7 * found.certificate.mu < found.mu_estimate < 1.35 * found.certificate.mu
    assert found.epsilon_lower > 0.5
    assert found.one_run_fdp.epsilon > 1.5
    assert len(found.in_scores) + len(found.out_scores) == 200


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("solver", "how"),
    [
        ("minibatch_sgd", POISSON),
        ("minibatch_sgd", {"sampling": "without_replacement", "batch_size": 60}),
        ("prox_sgd", {"rounds": 4, "batch_size": 50}),
        ("prox_svrg", {}),
        ("spider", {}),
    ],
)
def test_the_others_stand_too_and_something_is_seen(solver, how):
    found = audited(solver, **how)
    assert not found.violated
    assert 0.3 < found.mu_estimate < 1.35 * dpk.Budget(epsilon=8.0, delta=1e-5).mu


@pytest.mark.statistical
@pytest.mark.parametrize("how", [{}, {"trust": "silo"}, POISSON | {"batch_size": 150}])
def test_half_the_noise_is_found(monkeypatch, how):
    drawn = kernels.gaussian
    monkeypatch.setattr(kernels, "gaussian", lambda *a, **given: 0.5 * drawn(*a, **given))
    budget = dpk.Budget(epsilon=4.0, delta=1e-5)
    with pytest.warns(CertificateViolatedWarning, match="VIOLATED"):
        assert audited(data=WIDE, canaries=1000, budget=budget, **how).violated


@pytest.mark.statistical
@pytest.mark.parametrize("how", [{}, POISSON])
def test_records_that_are_clipped_too_late_are_found(monkeypatch, how):
    """Gradients far above the clip norm count four times."""
    summed = kernels.clip_and_sum

    def late(G, *, clip, **given):
        long = np.linalg.norm(G, axis=1) > 1e3
        total = summed(G, clip=clip, **given)
        return total + 3.0 * summed(G[long], clip=clip, **given) if long.any() else total

    monkeypatch.setattr(kernels, "clip_and_sum", late)
    with pytest.warns(CertificateViolatedWarning, match="VIOLATED"):
        assert audited(data=WIDE, canaries=1000, weights="size", **how).violated


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("solver", "how"),
    [
        ("minibatch_sgd", {}),
        ("minibatch_sgd", POISSON),
        ("minibatch_sgd", ADD_REMOVE),
        ("prox_sgd", {"rounds": 4, "batch_size": 20}),
    ],
)
def test_coins_are_seen_through_the_noise_alone(solver, how):
    """Where the budget is nothing, scores say nothing."""
    budget = dpk.Budget(epsilon=1e-3, delta=1e-5)
    found = [audited(solver, budget=budget, rng=seed, **how).mu_estimate for seed in range(4)]
    assert abs(np.mean(found)) < 3.5 * math.sqrt(4 / 200 / 4)


@pytest.mark.statistical
def test_bounds_of_true_certificates_fail_as_rarely_as_they_say():
    data, wrong = make_data(n=60, p=30, m=1), 0
    for seed in range(60):
        how = {"canaries": 150, "rounds": 2, "confidence": 0.8, "budget": dpk.Budget(mu=1.0)}
        found = audited(data=data, rng=seed, **how)
        wrong += found.one_run_fdp.epsilon > found.epsilon_certified
    assert wrong <= stats.binom.ppf(0.999, 60, 0.2)


def test_the_users_model_sees_its_own_records_alone_and_is_returned():
    model = Softmax(DATA)
    for how in ({}, POISSON):
        found = audited(model=model, monitor="train", **how)
        assert found.result.oracle is model
        assert found.result.predict(DATA.X).shape == (600,)
    for rng in (None, 1):  # an audit sees what nobody may
        assert audited(rng=rng).certificate.noise == "seeded: not private"


def test_one_seed_gives_one_audit():
    a, b, c = (audited(rng=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(a.in_scores, b.in_scores)
    np.testing.assert_array_equal(a.result.w, b.result.w)
    assert len(a.in_scores) != len(c.in_scores) or not np.array_equal(a.in_scores, c.in_scores)


KINDS = [
    {},
    {"row_bound": 2.0},
    {"feature_range": (-6.0, 6.0)},
    {"dtype": np.float32},
    {"sparse": True},
    {"sparse": True, "row_bound": 2.0},
    {"labels": 2},
    {"labels": 0, "target_bound": 1.0},
    {"labels": 0, "target_bound": (0.0, 1.0)},
]


@for_each("kind", KINDS, ids=str)
@for_each("add_remove", [False, True])
def test_canaries_join_the_records_and_are_known_by_their_rows(kind, add_remove):
    kind, rng = dict(kind), np.random.default_rng(0)
    X = rng.standard_normal((50, 20)).astype(kind.pop("dtype", np.float64))
    X = scipy.sparse.csr_array(X * (X > 0.5)) if kind.pop("sparse", False) else X
    labels = kind.pop("labels", 5)
    y = rng.integers(labels, size=50) if labels else rng.standard_normal(50)
    options = {"task": "multiclass", "classes": range(5)} if labels == 5 else {}
    data = dpk.SiloData(X, y, [0, 5, 20, 50], **options, **kind)
    drawn = Canaries.drawn(data, 70, 100, rng)
    chosen = np.flatnonzero(drawn.coins) if add_remove else np.arange(70)
    joined = drawn.joined(data, chosen)
    assert joined.n == 50 + len(chosen)
    assert (joined.transform, joined.task) == (data.transform, data.task)
    places = drawn.places[chosen] + np.arange(len(chosen))
    own = np.setdiff1d(np.arange(joined.n), places)
    there, here = joined.X[own], data.X
    if scipy.sparse.issparse(data.X):
        there, here = there.toarray(), here.toarray()
    np.testing.assert_array_equal(there, here)
    np.testing.assert_array_equal(joined.y[own], data.y)
    silos = drawn.silos(data)
    np.testing.assert_array_equal(
        joined.sizes, data.sizes + np.bincount(silos[chosen], minlength=3)
    )
    np.testing.assert_array_equal(np.bincount(silos), [7, 21, 42])
    rows = effective_rows(joined, places)
    model = WithCanaries(Softmax(), drawn, rows, chosen, None)
    found = model.found(effective_rows(joined, np.arange(joined.n)))
    np.testing.assert_array_equal(found[places], chosen)
    assert (found[own] == -1).all()


def test_gradients_of_canaries_are_orthogonal_and_their_products_are_seen():
    rng = np.random.default_rng(0)
    drawn = Canaries.drawn(DATA, 60, 400, rng)
    G = np.zeros((60, 400))
    for i in range(60):
        columns, entries = drawn.gradient(i)
        G[i, columns] = entries
    norms = np.linalg.norm(G, axis=1)
    np.testing.assert_allclose(G @ G.T, np.diag(norms**2))
    U = G / norms[:, np.newaxis] * np.where(drawn.coins, 1.0, -1.0)[:, np.newaxis]
    V = rng.standard_normal((3, 400))
    np.testing.assert_allclose(drawn.seen(V), V @ U.T, atol=1e-12)
    assert norms.min() > 1e3


def test_weights_are_learnt_from_the_known_coins_and_what_is_common_goes():
    rng, K, T = np.random.default_rng(0), 2000, 30
    coins, known = rng.random(K) < 0.5, np.arange(K) % 2 == 0
    signs = np.where(coins, 1.0, -1.0)
    common = np.outer(np.sin(np.arange(T)), 20.0 * rng.standard_normal(K))
    D = 0.2 * signs + common + rng.standard_normal((T, K))
    D[20:] = 3.0 * rng.standard_normal((10, K))  # of another kind, which says nothing
    seen = SimpleNamespace(
        products=list(D),
        kinds=[(1, 1.0 + (t >= 20), False) for t in range(T)],
        used=[np.ones(K, dtype=bool)] * T,
    )
    other = np.where(known, coins, rng.random(K) < 0.5)  # nothing follows from the unknown ones
    found, again = (scores(seen, which, known, hidden=False)[~known] for which in (coins, other))
    np.testing.assert_array_equal(found, again)
    of = coins[~known]
    distance = (found[of].mean() - found[~of].mean()) / found[of].std()
    assert distance == pytest.approx(0.4 * math.sqrt(20), abs=0.2)


def test_a_release_of_public_batches_counts_for_its_own_canaries():
    rng, K, T = np.random.default_rng(0), 2000, 10
    coins, known = rng.random(K) < 0.5, np.arange(K) % 2 == 0
    used = rng.integers(T, size=K) == np.arange(T)[:, np.newaxis]
    D = used * np.where(coins, 0.75, -0.75) + rng.standard_normal((T, K))
    for secret, hidden in itertools.product((False, True), repeat=2):
        seen = SimpleNamespace(products=list(D), kinds=[(1, 1.0, secret)] * T, used=list(used))
        found = scores(seen, coins, known, hidden=hidden)[~known]
        of = coins[~known]
        distance = (found[of].mean() - found[~of].mean()) / found[of].std()
        expected = 1.5 / (math.sqrt(T) if secret or hidden else 1.0)
        assert distance == pytest.approx(expected, abs=0.15)


def test_the_sign_of_canaries_is_followed_by_its_opposite():
    drawn = Canaries.drawn(DATA, 60, 400, np.random.default_rng(0))
    seen = Projections(drawn, drawn.silos(DATA), 400, np.random.default_rng(1))
    signs = []
    for _ in range(100):
        signs.append(seen.sign)
        seen.passed(np.zeros(7), None, 1.0, {})  # of something else
        released = np.zeros(400)
        columns, entries = drawn.gradient(5)
        released[columns] = signs[-1] * entries
        np.testing.assert_array_equal(seen.passed(released, None, 2.0, {}), released)
        of = np.linalg.norm(entries) * (1.0 if drawn.coins[5] else -1.0)
        assert seen.products[-1][5] == pytest.approx(of / 2.0)
    assert {first + second for first, second in zip(signs[::2], signs[1::2], strict=True)} == {0.0}
    assert 30 <= sum(sign > 0 for sign in signs[::2]) * 2 <= 70


@pytest.mark.statistical
@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_a_gaussian_certificate_is_refuted_where_the_bound_of_epsilon_exceeds_it(mu):
    how = {"budget": dpk.Budget(mu=mu), "clip": 1.0, "rounds": 1, "step_size": 0.1}
    certificate, seen = dpk.solve("minibatch_sgd", DATA, model=Softmax(), **how).privacy, set()
    for right in range(90, 181, 6):
        bound = audit_scores(
            np.ones(right),
            np.r_[np.ones(180 - right), np.zeros(20)],
            method="one_run_fdp",
            threshold=0.5,
        )
        more = bound.epsilon - certificate.epsilon(1e-5)
        if abs(more) > 0.15:
            assert _refuted(certificate, bound.counts, 0.95) == (more > 0.0)
            seen.add(more > 0.0)
    assert seen == {False, True}


def test_the_text_and_the_picture(tmp_path):
    found = audited()
    assert "minibatch_sgd under central trust, replace_one: 200 guesses at most" in str(found)
    assert "certified  epsilon 8 at delta 1e-05" in str(found)
    assert "VIOLATED" not in str(found)
    assert "not refuted" in str(found)
    right, wrong = found.one_run.counts.positives, found.one_run.counts.false
    assert f"{right} of {found.one_run.counts.n_in} right guesses" in str(found.one_run)
    assert f"{wrong} of {found.one_run.counts.n_out} wrong guesses" in str(found.one_run)
    figure = found.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    labels = [line.get_label() for line in figure.axes[0].lines[1:]]
    assert labels == ["certified", "the scores"]


def test_nothing_certified_is_not_refuted(monkeypatch):
    drawn = kernels.gaussian
    monkeypatch.setattr(kernels, "gaussian", lambda *a, **given: 0.1 * drawn(*a, **given))
    nothing = dpk.privacy.Certificate(
        trust="central", noise="os", guarantee=NO_GUARANTEE, n_draws=1, bound="exact"
    )
    with pytest.warns(CertificateViolatedWarning):
        found = audited()
    found = replace(found, result=replace(found.result, privacy=nothing))
    assert not found.violated
    assert found.epsilon_certified == math.inf
    assert "certified  nothing" in str(found)


@for_each(
    ("change", "message"),
    [
        ({"model": dpk.MLP((5,))}, "TypeError: model must be an Oracle of your own, got MLP"),
        ({"data": DATA.X}, "TypeError: data must be SiloData"),
        ({"budget": None}, "TypeError: budget must be dpkern.Budget"),
        ({"canaries": 40}, "canaries must be at least 50"),
        ({"canaries": 401}, "canaries must be at most the 400 parameters"),
        ({"confidence": 0.4}, "confidence must be in"),
        ({"delta": 1.5}, "delta must lie"),
        ({"rng": -1}, "rng must be"),
        ({"clips": 1.0}, "TypeError: clips"),
        ({"solver": "ridge"}, "TypeError: model"),
        (
            {"data": make_data(person=np.arange(600), max_records=1)},
            "data must be without persons",
        ),
    ],
)
def test_bad_arguments(change, message):
    assert_refused(message, audited, **change)


def test_rows_that_are_equal_to_those_of_records_are_refused(monkeypatch):
    drawn = Canaries.drawn.__func__

    def equal(cls, data, *given):
        made = drawn(cls, data, *given)
        made.rows[7] = data.X[11]
        return made

    monkeypatch.setattr(Canaries, "drawn", classmethod(equal))
    with pytest.raises(ValueError, match="data must have enough features for canaries"):
        audited()
