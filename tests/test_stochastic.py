"""Stochastic solvers: noise against the table of sensitivities, models of a user's own, limits."""

import math

import numpy as np
import pytest
from cases import for_each
from makers import Logistic, assert_refused, spy_on_calls

import dpkern as dpk
from dpkern.models.hazards import DiscreteHazards
from dpkern.privacy import gdp_epsilon, gdp_mu
from dpkern.privacy.guarantees.binomial import binomial_mu
from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.solvers import SOLVERS
from dpkern.solvers.releases import gradient, means

DELTA = 1e-6
BUDGET = dpk.Budget(epsilon=1.0, delta=DELTA)
MU = gdp_mu(1.0, DELTA)
C, SIZES = 0.7, (20, 33, 50)
DECLARED = {
    name: solver.declaration for name, solver in SOLVERS.items() if solver.declaration.samplers
}


def silos(sizes=SIZES, seed=0, **options):
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        X = rng.standard_normal((n, 4))
        parts.append((X, np.where(X @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(n) > 0, 1, -1)))
    return dpk.SiloData.from_silos(parts, **{"row_bound": 2.0} | options)


class Smooth(Logistic):
    smoothness = 0.25 * 4.0 * (1.0 + 2.0**-40)


class Several(dpk.Oracle):
    """Parameters in four tensors, the gradient of each of length 1: of all of them 2."""

    name = "several tensors"

    def dim(self, data):
        return 8

    def gradients(self, w, X, y):
        return np.tile(np.sign(X[:, :1]) / math.sqrt(2.0), (1, 8)).astype(np.float32)


def solve(name, data=None, **options):
    options = {"budget": BUDGET, "clip": C, "rounds": 6, "rng": 3, "trust": "silo"} | options
    return dpk.solve(name, silos() if data is None else data, **options)


# ----------------------------------------------------------------------------------- noise and cost


def stds(certificate, word):
    return [
        (np.array(r.std), np.array(r.sensitivity), r.times)
        for r in certificate.releases
        if word in r.what
    ]


def test_full_batches_of_minibatch_and_local_sgd_cost_the_square_root_of_their_number():
    for name, options, releases in (
        ("minibatch_sgd", {}, 6),
        ("local_sgd", {"local_steps": 3}, 18),
    ):
        ((std, D, times),) = stds(solve(name, **options).privacy, "gradients")
        assert times == releases
        np.testing.assert_array_equal(D, 2.0 * C)
        # On the mean (2 C / n_j) sqrt(T) / mu; drawn for the sum.
        np.testing.assert_allclose(std, 2.0 * C * math.sqrt(releases) / MU, rtol=1e-9)


def test_a_restart_begins_where_the_run_before_returns():
    """Runs of one round, whose average is that round's iterate, are gradient descent."""
    how = {"budget": None, "rounds": 4, "step_size": 0.2}
    restarted = solve("prox_svrg", restarts=4, returns="average", **how)
    descent = solve("gradient_descent", **how)
    np.testing.assert_allclose(restarted.coef, descent.coef, rtol=1e-12)


@for_each("trust", ["silo", "central"])
@for_each(
    ("name", "options", "refreshes", "share"),
    [
        ("prox_svrg", {"refresh_every": 3}, 2, 0.5),
        ("prox_svrg", {"refresh_every": 2, "restarts": 2, "rounds": 6}, 4, 0.5),
        ("spider", {"refresh_every": 3, "refresh_share": 0.3}, 2, 0.3),
        ("spider", {"variant": "alternate", "rounds": 4}, 3, 0.8),
    ],
)
def test_refreshes_and_differences_share_the_budget_in_advance(
    name, options, refreshes, share, trust
):
    certificate = solve(name, trust=trust, **options).privacy
    ((std, D, times),) = stds(certificate, "clipped gradients")
    assert times == refreshes
    np.testing.assert_allclose(std, 2.0 * C / (MU * math.sqrt(share / refreshes)), rtol=1e-9)
    differences = stds(certificate, "differences")
    assert sum(times for _, _, times in differences) == 6 - refreshes
    mu_2 = MU * math.sqrt((1.0 - share) / (6 - refreshes))
    for std, D, _ in differences:
        np.testing.assert_allclose(std, D / mu_2, rtol=1e-9)
        assert np.all(D <= 4.0 * C)
    assert certificate.mu == pytest.approx(MU, rel=1e-9)
    assert certificate.epsilon(DELTA) <= 1.0


@for_each("step", [0.5, 1e-3, 1e-9])
def test_a_difference_is_clipped_by_public_points_alone(spied, step):
    """C_r = min(2 C, max(beta |dw|, 2^-20 C)) of the models that anybody can compute.

    The sensitivity is C_r then, as the loss is convex and C_r so small that the clip adds nothing.
    """
    solve("spider", refresh_every=6, step_size=step, rounds=6)
    scale = np.array([n / sum(SIZES) / n for n in SIZES])
    w, h, before = np.zeros(4), 0.0, np.zeros(4)
    for r, (mechanism, _, released) in enumerate(spied):
        if r:
            C_r = min(2.0 * C, max(Smooth.smoothness * np.linalg.norm(w - before), C * 2.0**-20))
            assert C_r < 2.0 * C
            assert C_r < mechanism.sensitivity < C_r * (1.0 + 1e-3)
        h = h + scale @ released if r else scale @ released
        before, w = w, w - step * h


def test_a_round_of_the_alternate_variant_is_two_messages_and_two_steps_as_algorithm_11_has_it(
    spied,
):
    """R rounds with the silos S_0, ..., S_{R-1}, the first of which is a message alone."""
    R, eta = 5, 0.3
    how = {"variant": "alternate", "rounds": R, "step_size": eta, "participation": 2}
    result = solve("spider", weights="uniform", **how)
    messages = [released for *_, released in spied]
    silos_of = [tuple(np.any(message, axis=1)) for message in messages]
    assert [sum(silos) for silos in silos_of] == [2] * (2 * R - 2)
    assert all(silos_of[i] == silos_of[i + 1] for i in range(1, 2 * R - 3, 2))
    assert len(set(silos_of)) > 1
    means = iter([0.5 * np.sum(m / np.array(SIZES)[:, np.newaxis], axis=0) for m in messages])
    w2, v2 = np.zeros(4), next(means)
    for r in range(R - 1):
        w1 = w2 - eta * v2
        v1 = next(means) + v2
        w2 = w1 - eta * v1
        if r < R - 2:
            v2 = next(means)
    np.testing.assert_allclose(result.w, w2, rtol=1e-12)
    assert (result.n_rounds, len(result.history["step_size"])) == (2 * R - 2, 2 * R - 2)
    with pytest.raises(ValueError, match="rounds must be at least 2 with variant='alternate'"):
        solve("spider", **how | {"rounds": 1})


def test_silos_pay_for_the_rounds_in_which_they_take_part():
    result = solve("minibatch_sgd", participation=2, rounds=9)
    totals, counts = np.zeros(3), np.zeros(3)
    for release in result.privacy.releases:
        std = np.array(release.std)
        sent = std > 0.0
        assert sent.sum() == 2
        assert np.array_equal(sent, np.array(release.sensitivity) > 0.0)
        counts += release.times * sent
        totals[sent] += release.times * (2.0 * C / std[sent]) ** 2
    assert counts.sum() == 18
    assert 6 <= counts.max() < 9
    assert result.privacy.mu == pytest.approx(math.sqrt(totals.max()), rel=1e-12)
    assert result.privacy.mu == pytest.approx(MU, rel=1e-9)
    assert result.privacy.mu_of_silos == pytest.approx(np.sqrt(totals), rel=1e-12)
    # The aggregate of a round is about all silos' data: there everybody pays for every round.
    central = solve("minibatch_sgd", participation=2, rounds=9, trust="central").privacy
    assert [r.times for r in central.releases] == [9]


NUMBERS = (1, 3, 2, 2, 3, 1)


@for_each("trust", ["central", "silo", "shuffle"])
def test_numbers_of_silos_that_differ_by_round(trust, monkeypatch):
    """A round's mean is that of its M_r silos, and the budget is spent."""
    calls = spy_on_calls(monkeypatch, BinomialSum, "release")
    options = {"participation": NUMBERS, "rounds": 6, "weights": "uniform", "trust": trust}
    if trust != "shuffle":
        plain = solve("minibatch_sgd", **options | {"budget": None, "step_size": 0.1})
        fixed = solve("minibatch_sgd", **options | {"budget": None, "participation": None})
        assert not np.array_equal(plain.w, fixed.w)
    certificate = solve("minibatch_sgd", **options).privacy
    assert 0.99 * MU < certificate.mu <= MU
    assert certificate.declared["participation"] in (NUMBERS, list(NUMBERS))
    if trust == "silo":
        sent = [np.count_nonzero(r.std) for r in certificate.releases for _ in range(r.times)]
        assert sorted(sent) == sorted(NUMBERS)
    if trust == "shuffle":
        assert len({len(V) for (_, V), *_ in calls}) > 2


@for_each("trust", ["central", "silo"])
def test_the_mean_of_a_round_is_that_of_its_silos(trust):
    """All silos hold the same records, so that all means are the same."""
    X, y = np.array([[0.5, -0.2], [0.1, 0.3], [-0.4, 0.2]]), np.array([1, 0, 1])
    data = dpk.SiloData.from_silos([(X, y)] * 3, row_bound=1.0)
    how = {"rounds": 4, "step_size": 0.5, "clip": 1.0, "budget": None, "trust": trust}
    full = dpk.solve("minibatch_sgd", data, **how)
    some = dpk.solve("minibatch_sgd", data, participation=[1, 3, 2, 1], **how)
    np.testing.assert_allclose(some.w, full.w, rtol=1e-12)


def test_a_silent_silo_sends_nothing(spied):
    solve("minibatch_sgd", participation=1, rounds=5)
    for _, sums, released in spied:
        silent = ~np.any(released, axis=1)
        assert silent.sum() == 2
        assert not np.any(sums[silent])


NOISY_GRADIENTS = [
    (name, trust)
    for name, declared in DECLARED.items()
    for trust in declared.trusts
    if (name, trust) != ("local_sgd", "central")  # which hides its steps, of linear models alone
]


@for_each(("name", "trust"), NOISY_GRADIENTS)
def test_silos_that_come_and_go_spend_the_budget_and_no_more(name, trust):
    """The aggregate of a round is about all silos, active or not; a series is paid for once."""
    batches = {"prox_sgd": {"batch_size": 2}, "minibatch_sgd": {"sampling": "one_pass"}}
    options = {"batch_size": 2} | batches[name] if name in batches else {}
    certificate = solve(name, trust=trust, participation=1, rounds=9, **options).privacy
    assert certificate.epsilon(DELTA) <= 1.0
    if name in batches:
        (release,) = certificate.releases
        assert (release.times, release.charged) == (9, 1)
        assert certificate.epsilon(DELTA) > 0.95


def test_a_silos_weight_multiplies_vectors_that_are_clipped(monkeypatch):
    """om_j clip(g), no longer than om_j C: clipping om_j g instead would be another objective."""
    calls = spy_on_calls(monkeypatch, BinomialSum, "release")
    data, clip = silos((10, 40)), 0.05
    solve("minibatch_sgd", data, trust="shuffle", weights="uniform", rounds=1, clip=clip)
    (((_, V), how, _),) = calls
    g = -0.5 * data.y[:, np.newaxis] * data.transform.apply(data.X)
    norms = np.linalg.norm(g, axis=1)
    assert np.mean(norms > 4.0 * clip) > 0.9  # longer than the clip whatever their weight
    weights = np.repeat([1.0, 0.25], [10, 40])
    expected = weights * np.minimum(1.0, clip / norms)
    np.testing.assert_allclose(V, expected[:, np.newaxis] * g, rtol=1e-9, atol=1e-15)
    assert how["bound"] == clip


def test_certificate_of_the_shuffle_is_that_of_its_coins():
    certificate = solve("spider", trust="shuffle", refresh_every=2, rounds=4).privacy
    square = sum(r.charged * binomial_mu(r.coins, r.sensitivity) ** 2 for r in certificate.releases)
    assert certificate.mu == pytest.approx(math.sqrt(square), rel=1e-12)
    assert certificate.epsilon(DELTA) == pytest.approx(gdp_epsilon(certificate.mu, DELTA), rel=1e-6)
    assert 0.95 < certificate.epsilon(DELTA) <= 1.0
    for release in certificate.releases:
        g = release.sensitivity - math.sqrt(4)
        assert g == pytest.approx(round(g), abs=1e-9)
        assert release.std == pytest.approx(math.sqrt(release.coins) / 2.0, rel=1e-12)


# ----------------------------------------------------------------------------- papers' calibrations


@for_each("q", [1, 2, 5])
def test_paper_calibration_of_spider_spends_more_than_a_budget_for_q_above_one(q):
    """rho_0 [ceil(R/q) min(q/R, 1) + (R - ceil(R/q)) / R], rho_0 = epsilon^2 / (8 log(1/delta))."""
    R, n, epsilon = 20, 50, 1.0
    data = silos((n, n))
    result = solve(
        "spider", data, rounds=R, refresh_every=q, calibration="paper", step_size=1e6,
        trust="silo",
    )  # fmt: skip
    C_r = [D[0] / 2.0 for _, D, _ in stds(result.privacy, "differences")]
    assert all(c == 2.0 * C for c in C_r)  # far apart: sigma_2hat
    refreshes = -(-R // q)
    factor = refreshes * min(q / R, 1.0) + (R - refreshes) / R
    rho_0 = epsilon**2 / (8.0 * math.log(1.0 / DELTA))
    assert result.privacy.rho == pytest.approx(factor * rho_0, rel=1e-9)
    assert (factor > 1.0) == (q > 1)
    assert result.privacy.claimed == {"epsilon": 1.0, "delta": DELTA}
    true = gdp_epsilon(math.sqrt(2.0 * factor * rho_0), DELTA)
    assert result.privacy.epsilon(DELTA) == pytest.approx(true, rel=1e-6)


@for_each(("R", "epsilon", "true"), [(25, 12.0, 18.754), (50, 3.0, 3.699)])
def test_the_authors_noise_of_the_alternate_variant_is_worth_what_its_messages_are(
    R, epsilon, true
):
    """2 R - 2 messages, each of mu^2 = epsilon^2 / (2 R ln(2 / delta)), at any step size."""
    n, found = 1238, set()
    data, delta = silos((n, n)), n**-2.0
    for step in (1e-3, 30.0):
        certificate = solve(
            "spider", data, variant="alternate", rounds=R, calibration="paper", step_size=step,
            budget=dpk.Budget(epsilon=epsilon, delta=delta), weights="uniform",
        ).privacy  # fmt: skip
        for word, D, unit in (("clipped gradients", 2.0, 8.0), ("differences", 4.0, 32.0)):
            ((std, sensitivity, times),) = stds(certificate, word)
            root = math.sqrt(unit * R * math.log(2.0 / delta))
            np.testing.assert_allclose(std, root * C / epsilon, rtol=1e-12)
            np.testing.assert_array_equal(sensitivity, D * C)
            assert times == R - 1
        found.add(certificate.epsilon(delta))
    mu = epsilon * math.sqrt((2 * R - 2) / (2 * R * math.log(2.0 / delta)))
    (certified,) = found
    assert certified == pytest.approx(gdp_epsilon(mu, delta), rel=1e-6)
    assert certified == pytest.approx(true, abs=1e-3)


def test_paper_calibration_of_one_pass_and_of_minibatches_is_the_printed_one():
    one = solve("prox_sgd", rounds=4, batch_size=5, calibration="paper").privacy
    ((std, _, _),) = stds(one, "gradients")
    np.testing.assert_allclose(std, math.sqrt(8.0 * math.log(1.0 / DELTA)) * C, rtol=1e-12)
    assert one.mu == pytest.approx(1.0 / math.sqrt(2.0 * math.log(1.0 / DELTA)), rel=1e-9)
    many = solve("minibatch_sgd", calibration="paper").privacy
    ((std, _, _),) = stds(many, "gradients")
    np.testing.assert_allclose(std, math.sqrt(48.0 * math.log(1.0 / DELTA)) * C, rtol=1e-12)
    steps = solve("local_sgd", local_steps=2, calibration="paper").privacy
    ((std, _, _),) = stds(steps, "gradients")
    np.testing.assert_allclose(std, math.sqrt(96.0 * math.log(1.0 / DELTA)) * C, rtol=1e-12)
    svrg = solve("prox_svrg", calibration="paper", refresh_every=3, step_size=1.0).privacy
    log = math.log(2.0 / DELTA)
    ((std, _, _),) = stds(svrg, "clipped gradients")
    first = math.sqrt(256.0 * 2.0 * log * math.log(10.0 / DELTA)) * C
    np.testing.assert_allclose(std, first, rtol=1e-12)
    for std, _, _ in stds(svrg, "differences"):
        second = math.sqrt(1024.0 * 6.0 * log * math.log(15.0 / DELTA)) * C
        np.testing.assert_allclose(std, second, rtol=1e-12)


@for_each("name", ["prox_svrg", "spider"])
def test_paper_noise_far_above_a_small_difference_finds_a_grid(name):
    result = solve(name, calibration="paper", refresh_every=3, step_size=1e-9)
    assert math.isfinite(result.privacy.mu)


# -------------------------------------------------------------------------- models of a user's own


def both(name, **options):
    """The same run with the package's logistic loss and with the user's."""
    return [solve(name, **model, **options) for model in ({}, {"model": Smooth()})]


@for_each(("name", "trust"), NOISY_GRADIENTS)
def test_a_users_logistic_model_releases_what_the_linear_kernels_do(name, trust, monkeypatch):
    """But for what is known of differences of a convex loss's gradients, and of no other's."""
    monkeypatch.setattr(means, "convex_differences", lambda *_: None)
    for weights in ("size", "uniform"):
        options = {"trust": trust, "weights": weights, "step_size": 0.5, "rounds": 4}
        if name == "prox_sgd":
            options["batch_size"] = 4
        if name == "local_sgd":
            options["local_steps"] = 5
        kernels, oracle = both(name, **options)
        for a, b in zip(kernels.privacy.releases, oracle.privacy.releases, strict=True):
            assert (a.what, a.times, a.grid, a.coins) == (b.what, b.times, b.grid, b.coins)
            np.testing.assert_allclose(a.sensitivity, b.sensitivity, rtol=1e-4)
            np.testing.assert_allclose(a.std, b.std, rtol=1e-4)
        np.testing.assert_allclose(kernels.w, oracle.w, rtol=1e-4, atol=1e-4)
        assert kernels.privacy.rho == pytest.approx(oracle.privacy.rho, rel=1e-6)
        noiseless = both(name, budget=None, clip=1e3, **options)
        np.testing.assert_allclose(noiseless[0].w, noiseless[1].w, rtol=1e-6, atol=1e-9)


def test_one_norm_over_all_tensors_is_clipped(spied):
    """Each of four tensors alone has norm 1 and would pass a clip of 1: all of them have 2."""
    solve("minibatch_sgd", model=Several(), clip=1.0, rounds=2, step_size=0.1)
    for mechanism, sums, _ in spied:
        assert mechanism.sensitivity == 2.0
        for total, n in zip(sums, SIZES, strict=True):
            assert np.linalg.norm(total) <= n
    moved = []
    for sign in (1.0, -1.0):
        data = silos((5,))
        X = np.array(data.X)
        X[0, 0] = sign
        solve("minibatch_sgd", dpk.SiloData(X, data.y, data.offsets), model=Several(), clip=1.0,
              rounds=1, step_size=0.1)  # fmt: skip
        moved.append(spied[-1][1])
    distance = np.linalg.norm(moved[0] - moved[1])
    assert 1.99 < distance <= 2.0


@for_each("bad", [math.nan, math.inf, -math.inf, 1e200])
@for_each("name", ["minibatch_sgd", "spider"])
def test_records_without_a_finite_gradient_count_as_nothing_or_as_clipped_ones(name, bad, spied):
    class Broken(Smooth):
        def gradients(self, w, X, y):
            G = super().gradients(w, X, y)
            G[::3] = bad
            return G

    result = solve(name, model=Broken(), rounds=3, step_size=0.1)
    assert np.all(np.isfinite(result.w))
    for mechanism, sums, _ in spied:
        for total, n in zip(sums, SIZES, strict=True):
            assert np.linalg.norm(total) <= n * mechanism.sensitivity / 2.0


def test_any_layout_of_gradients_serves():
    class Other(Smooth):
        def gradients(self, w, X, y):
            return np.asfortranarray(super().gradients(w, X, y))

    one, other = (solve("spider", model=model, step_size=0.1) for model in (Smooth(), Other()))
    np.testing.assert_array_equal(one.w, other.w)


def test_chunks_change_no_bit():
    one = solve("spider", model=Smooth(), step_size=0.1, trust="central", weights="uniform")

    class Row(Smooth):
        """The gradient of a record wherever it stands."""

        chunk_bytes = 7 * 8 * 4

        def gradients(self, w, X, y):
            assert len(X) <= 7
            return super().gradients(w, X, y)

    other = solve("spider", model=Row(), step_size=0.1, trust="central", weights="uniform")
    np.testing.assert_allclose(one.w, other.w, rtol=1e-6)


def test_weights_far_apart_are_no_reason_to_refuse_a_model():
    data = silos((2, 3000))
    options = {"trust": "central", "weights": "uniform", "rounds": 2, "step_size": 0.1}
    budget = dpk.Budget(epsilon=0.001, delta=DELTA)
    result = solve("minibatch_sgd", data, model=Smooth(), budget=budget, **options)
    linear = solve("minibatch_sgd", data, budget=budget, **options)
    np.testing.assert_allclose(result.w, linear.w, rtol=1e-3)


def test_certificate_names_what_is_taken_as_true_of_a_users_model():
    place = solve("minibatch_sgd", model=Smooth(), step_size=0.1, rounds=2).privacy.notes
    assert any(
        "'my logistic'" in note and "this record, its place and public" in note for note in place
    )
    moved = solve(
        "minibatch_sgd", model=Smooth(), step_size=0.1, rounds=2, neighbours="add_remove",
        public_size=SIZES,
    ).privacy.notes  # fmt: skip
    assert any("'my logistic'" in note and "nor on its place" in note for note in moved)
    assert not any("taken as true" in note for note in solve("minibatch_sgd").privacy.notes)


# ------------------------------------------------------------------------------------ without noise


def optimum(data, l2):
    return dpk.solve("gradient_descent", data, budget=None, l2=l2, rounds=4000).w


def test_noiseless_spider_of_random_batches_and_silos_keeps_to_the_optimum():
    data = silos()
    best = optimum(data, 0.1)
    exact = dpk.solve("spider", data, budget=None, l2=0.1, rounds=400, refresh_every=7)
    np.testing.assert_allclose(exact.w, best, atol=1e-6)


def test_noiseless_pass_of_prox_sgd_approaches_the_optimum():
    data = silos((4000, 4000))
    best = optimum(data, 0.1)
    result = dpk.solve(
        "prox_sgd", data, budget=None, l2=0.1, rounds=40, rng=0, returns="last", step_size=0.5
    )
    assert np.linalg.norm(result.w - best) < 0.15 * np.linalg.norm(best)


@for_each("name", DECLARED)
def test_what_is_returned_is_an_iterate_or_their_mean(monkeypatch, name):
    more = {"restarts": 1} if "restarts" in DECLARED[name].options else {}
    seen, see = [], gradient.Returned.add
    monkeypatch.setattr(
        gradient.Returned, "add", lambda self, w: (seen.append(w.copy()), see(self, w))[1]
    )
    found = {}
    for returns in ("last", "random", "average"):
        seen.clear()
        found[returns] = solve(
            name, budget=None, clip=math.inf, returns=returns, step_size=0.3, rounds=5, **more
        ).w
        assert len(seen) == 5
        if returns == "last":
            np.testing.assert_array_equal(found[returns], seen[-1])
        elif returns == "random":
            assert any(np.array_equal(found[returns], w) for w in seen)
        else:
            np.testing.assert_allclose(found[returns], np.mean(seen, axis=0), rtol=1e-12)


def test_random_iterates_are_all_possible():
    seen = {
        tuple(solve("minibatch_sgd", budget=None, returns="random", rounds=3, rng=seed).w)
        for seed in range(30)
    }
    assert len(seen) == 3


@for_each(
    ("name", "options", "message"),
    [
        ("minibatch_sgd", {"batch_size": 3}, "batch_size must be None with sampling='full', got 3"),
        (
            "minibatch_sgd",
            {"sampling": "without_replacement", "batch_size": None},
            "batch_size must be given",
        ),
        ("minibatch_sgd", {"sampling": "without_replacement", "batch_size": 21},
         "batch_size must be at most 20, the smallest silo having 20 records, got 21"),
        ("prox_sgd", {"batch_size": 4}, "at most 3 for 6 disjoint batches"),
        ("minibatch_sgd", {"participation": 4}, "participation must be at most the 3 silos, got 4"),
        ("minibatch_sgd", {"participation": (1, 2), "rounds": 3},
         "participation must be one number, or one for each of the 3 draws of silos, got 2"),
        ("prox_svrg", {"participation": (1, 2, 3), "rounds": 3, "refresh_every": 2},
         "one for each of the 2 draws"),
        ("minibatch_sgd", {"participation": ()}, "participation must not be an empty sequence"),
        ("minibatch_sgd", {"participation": (1, 4), "rounds": 2}, "at most the 3 silos, got 4"),
        ("minibatch_sgd", {"participation": [1.5]}, "TypeError: participation must be an integer"),
        ("prox_sgd", {"participation": (1, 2), "rounds": 2, "trust": "shuffle"},
         "participation must be one number under trust='shuffle' with batches in turn"),
        ("minibatch_sgd", {"sampling": "without_replacement", "batch_size": 5,
                           "budget": dpk.Budget(mu=1.0)}, "needs a budget given as epsilon and"),
        ("spider", {"refresh_share": 1.0}, "refresh_share must lie strictly between 0 and 1"),
        ("spider", {"sampling": "poisson", "batch_size": 3}, "sampling must be"),
        ("spider", {"trust": "central", "calibration": "paper"}, "needs trust='silo'"),
        ("prox_sgd", {"rounds": None}, "TypeError: rounds"),
        ("local_sgd", {"noise": "step", "trust": "central"}, "noise='step' needs trust='silo'"),
        ("local_sgd", {"noise": "round", "participation": 2}, "noise='round' needs participation"),
        ("local_sgd", {"noise": "round", "model": Smooth(), "step_size": 0.1},
         "TypeError: must be linear"),
        ("minibatch_sgd", {"neighbours": "add_remove", "public_size": SIZES, "trust": "shuffle"},
         "neighbours must be 'replace_one' with trust='shuffle'"),
        ("minibatch_sgd", {"model": Several()}, "step_size='auto' needs a loss with a bounded"),
        ("minibatch_sgd", {"budget": None, "clip": None, "trust": "shuffle"}, "clip must be"),
    ],
)  # fmt: skip
def test_bad_choices_are_refused_by_name_before_anything_is_released(name, options, message):
    assert_refused(message, solve, name, **options)


@for_each("trust", ["central", "shuffle"])
def test_no_record_makes_products_with_silo_weights_raise(trust):
    """An error would end the run, and tell that the record is there."""
    X, kind, how = np.full((50, 2), 1e-310), "classification", {"trust": trust}
    if trust == "central":
        kind, how["model"] = "multiclass", DiscreteHazards((0.0, 1.0))
    y = np.arange(50) % (2 if kind == "classification" else 3)
    classes = np.unique(y).tolist()
    data = dpk.SiloData(X, y, [0, 20, 50], task=kind, classes=classes, row_bound=1.0)
    how |= {"budget": dpk.Budget(mu=1.0), "rng": 1, "weights": "uniform", "rounds": 3}
    expected = dpk.solve("minibatch_sgd", data, **how)
    with np.errstate(all="raise"):
        assert dpk.solve("minibatch_sgd", data, **how) == expected
