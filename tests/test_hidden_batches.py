"""local_sgd(noise="round") on batches: what is charged, and what one record can do to it."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import spy_on_calls, square

import dpkern as dpk
from dpkern.models.penalties import L2Ball
from dpkern.privacy import gdp_mu
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.propagation import expansions, propagate_batches
from dpkern.solvers.releases import local_runs

DELTA = 1e-6
MU = gdp_mu(1.0, DELTA)
C, SIZES = 0.7, (20, 33, 50)


def silos(seed=0, sizes=SIZES, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((sum(sizes), 4))
    y = np.where(X[:, 0] + rng.standard_normal(len(X)) > 0, 1.0, -1.0)
    return dpk.SiloData(X, y, np.cumsum([0, *sizes]), **{"row_bound": 1.0} | options)


def solve(data=None, **options):
    defaults = {
        "budget": dpk.Budget(epsilon=1.0, delta=DELTA), "clip": C, "noise": "round", "rng": 3,
        "rounds": 6, "local_steps": 4, "sampling": "cyclic", "batch_size": 3, "step_size": 0.5,
        "trust": "silo",
    }  # fmt: skip
    return dpk.solve("local_sgd", silos() if data is None else data, **defaults | options)


@pytest.fixture
def messages(monkeypatch):
    """(values, sensitivity, bound) of every round; what is released does not depend on them."""
    seen, release = [], GaussianMessages.release

    def deaf(mechanism, values, **bounds):
        seen.append((values.copy(), bounds.get("sensitivity"), bounds.get("bound")))
        released = release(mechanism, values, **bounds)
        return np.linspace(-0.3, 0.4, released.size).reshape(released.shape)

    monkeypatch.setattr(GaussianMessages, "release", deaf)
    return seen


def carried(n, b, K, eta, l2=0.0):
    """By hand: the largest sum over the steps that use a record, of eta c^(steps after)."""
    low, high = l2, l2 + 0.25 * (1 + 2.0**-40)
    c = max(abs(1 - eta * low), abs(1 - eta * high))
    used = np.zeros(n)
    for t in range(K):
        used[np.arange(t * b, t * b + b) % n] += eta * c ** (K - 1 - t)
    return used.max()


@for_each("trust", ["silo", "central"])
@for_each("b", [1, 3, 5, 13, 20])
@for_each("l2", [0.0, 0.4])
def test_noise_is_for_the_steps_and_the_rounds_that_use_a_record(trust, b, l2):
    """D = max_j p_j (2 C / b) sum over its steps; std D sqrt(rounds that it is in) / mu."""
    certificate = solve(trust=trust, batch_size=b, l2=l2).privacy
    p = np.array(SIZES) / sum(SIZES) if trust == "central" else np.ones(3)
    D = p * 2 * C / b * np.array([carried(n, b, 4, 0.5, l2) for n in SIZES])
    rounds = min(6, -(-6 * 4 * b // min(SIZES)))
    assert sum(release.times for release in certificate.releases) == 6
    for release in certificate.releases:
        charged = np.array(release.sensitivity)
        nominal = D if trust == "silo" else D.max()
        assert np.all(charged >= nominal)
        np.testing.assert_allclose(charged, nominal, rtol=1e-3)
        np.testing.assert_allclose(release.std, charged * math.sqrt(rounds) / MU, rtol=1e-9)
        assert release.per_record == (rounds if rounds < 6 else None)
        assert f"4 hidden local steps on batches of {b}" in release.what
        assert release.sampling is None
    assert certificate.mu == pytest.approx(MU, rel=1e-9)
    assert certificate.epsilon(DELTA) <= 1.0
    assert not certificate.amplified
    assert {local_runs.HIDDEN, local_runs.IN_TURN} <= set(certificate.notes)
    assert certificate.declared["batch_size"] == b


def test_one_pass_pays_for_one_round():
    certificate = solve(sampling="one_pass", rounds=2, local_steps=3).privacy
    (release,) = certificate.releases
    assert (release.times, release.per_record) == (2, 1)
    np.testing.assert_allclose(release.sensitivity, 2 * C / 3 * 0.5, rtol=1e-3)
    np.testing.assert_allclose(release.std, np.array(release.sensitivity) / MU, rtol=1e-9)
    with pytest.raises(ValueError, match="batch_size must be at most 0 for 24 disjoint batches"):
        solve(sampling="one_pass")


def test_a_model_that_has_outgrown_doubles_is_refused(monkeypatch):
    """Its float terms would be more than the sensitivity is."""
    release = GaussianMessages.release

    def far(mechanism, values, **bounds):
        return release(mechanism, values, **bounds) + 1e12

    monkeypatch.setattr(GaussianMessages, "release", far)
    with pytest.raises(ValueError, match=r"floating-point|no grid serves"):
        solve()


@for_each("participation", [1, 2])
@for_each("how", [{"noise": "step"}, {"solver": "minibatch_sgd"}], ids=str)
def test_noisy_steps_of_absent_silos_spend_the_budget_and_no_more(how, participation):
    """A record pays for the rounds of its silo that may use it, whichever are fewer."""
    options = {
        "budget": dpk.Budget(mu=1.0), "clip": C, "rounds": 6, "sampling": "cyclic", "rng": 3,
        "batch_size": 20, "participation": participation, "step_size": 0.1, "trust": "silo",
    }  # fmt: skip
    data = silos(sizes=(20, 20, 20, 20))
    solver = how.get("solver", "local_sgd")
    more = {} if solver == "minibatch_sgd" else {"noise": "step", "local_steps": 3}
    certificate = dpk.solve(solver, data, **options, **more).privacy
    assert 1.0 - 1e-9 < certificate.mu <= 1.0


def test_rounds_of_unequal_steps_have_the_noise_of_their_own_steps():
    """Each has the budget of one of the rounds that use a record, whichever these are."""
    for of_round in ([0.1, 0.6, 0.3, 0.2, 0.2, 0.2], [0.6, 0.6, 0.6, 0.1, 0.1, 0.1]):
        certificate = solve(step_size=np.repeat(of_round, 4)).privacy
        found = {}
        for release in certificate.releases:
            assert (release.per_record, release.series) == (4, 1)
            eta = release.sensitivity[0] / (2 * C / 3)
            found[round(eta, 3)] = found.get(round(eta, 3), 0) + release.times
            np.testing.assert_allclose(
                release.std, np.array(release.sensitivity) * 2.0 / MU, rtol=1e-9
            )
        assert found == {eta: of_round.count(eta) for eta in of_round}
        assert MU * (1.0 - 1e-9) <= certificate.mu <= MU


def test_rounds_that_use_every_record_have_sensitivities_of_their_own():
    releases = solve(step_size=np.repeat([0.1, 0.6], 12), batch_size=20).privacy.releases
    assert len(releases) == 2
    for release, eta in zip(releases, (0.1, 0.6), strict=True):
        assert release.per_record is None
        np.testing.assert_allclose(release.sensitivity[0], 2 * C / 20 * eta * 4, rtol=1e-3)


def test_far_models_are_charged_for_their_float_terms():
    """With noise far above the model, and a pull that turns it round at every step."""
    for l2 in (0.0, 3.9):
        options = {"rounds": 200, "local_steps": 1, "batch_size": 1, "l2": l2}
        budget = dpk.Budget(epsilon=0.01, delta=DELTA)
        result = solve(budget=budget, **options)
        releases = result.privacy.releases
        assert sum(release.times for release in releases) == 200
        assert {release.series for release in releases} == {1}
        assert l2 > 0.0 or np.linalg.norm(result.w) > 10 * 200 * C * 0.5


def test_noisy_steps_on_batches_in_turn_pay_for_those_that_use_a_record():
    for name, options, T in (("local_sgd", {"noise": "step"}, 24), ("minibatch_sgd", {}, 6)):
        for b in (3, 20):
            result = dpk.solve(
                name, silos(), budget=dpk.Budget(epsilon=1.0, delta=DELTA), clip=C, rounds=6,
                sampling="cyclic", batch_size=b, rng=0, trust="silo", **options,
                **({"local_steps": 4} if T == 24 else {}),
            )  # fmt: skip
            (release,) = result.privacy.releases
            uses = -(-T * b // min(SIZES))
            assert release.charged == uses
            np.testing.assert_allclose(release.std, 2 * C * math.sqrt(uses) / MU, rtol=1e-9)
            assert result.privacy.mu == pytest.approx(MU, rel=1e-9)


def neighbours(i, sizes):
    """Opposite saturated values of record i; nobody else has curvature or slope along them."""
    X = np.random.default_rng(0).standard_normal((sum(sizes), 3))
    X[:, 0] = 0.0
    X[i] = 50.0, 0.0, 0.0
    for sign in (1.0, -1.0):
        y = np.zeros(len(X))
        y[i] = sign * 1e6
        yield dpk.SiloData(X, y, np.cumsum([0, *sizes]), row_bound=1.0, task="regression")


@pytest.mark.parametrize("trust", ["silo", "central"])
@pytest.mark.parametrize(("b", "K"), [(3, 2), (3, 3), (4, 5), (7, 1)])
def test_no_record_does_more_than_is_charged_and_one_does_nearly_as_much(messages, trust, b, K):
    """Neighbours on the same releases: how far their messages part, and in how many rounds.

    2 batches of 3 do not use the record in every round, 5 of 4 use some of 9 thrice.
    """
    sizes, rounds, l2 = (9, 14), 7, 0.3
    most = [Fraction(0)] * 2
    for i in range(sum(sizes)):
        j, runs = int(i >= sizes[0]), []
        for data in neighbours(i, sizes):
            messages.clear()
            result = solve(
                data, loss="squared", trust=trust, batch_size=b, local_steps=K, rounds=rounds,
                l2=l2, weights="uniform",
            )  # fmt: skip
            runs.append(list(messages))
        releases, times = result.privacy.releases, 0
        per_record = releases[0].per_record or rounds
        charged = max(np.max(release.sensitivity) for release in releases)
        for (ours, D, _), (theirs, _, _) in zip(*runs, strict=True):
            np.testing.assert_array_equal(ours[1 - j], theirs[1 - j])
            moved = square(ours[j], theirs[j])
            assert moved <= Fraction(D[j]) ** 2
            assert D[j] < charged
            times += moved > 0
            most[j] = max(most[j], moved / Fraction(D[j]) ** 2)
        assert times <= per_record
        assert j == 1 or times >= per_record - 1
    assert min(most) > Fraction(98, 100)


def test_an_order_that_looked_at_the_records_would_not_be_seen_here(messages, monkeypatch):
    """The batches of a run are the same for all records, and all steps of a round get theirs."""
    calls = spy_on_calls(monkeypatch, dpk.kernels, "glm_local_descent")
    for seed in (0, 1):
        solve(silos(seed))
    batches = [call.how["batches"] for call in calls]
    for ours, theirs in zip(batches[:6], batches[6:], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert batches[0].shape == (3, 4, 3)
    for j, n in enumerate(SIZES):
        taken = np.concatenate([c[j].ravel() for c in batches[:6]]) - sum(SIZES[:j])
        assert np.bincount(taken, minlength=n).max() == -(-6 * 4 * 3 // n)


def test_one_step_on_all_records_is_the_full_batch_run_to_the_bit(messages):
    data = silos(sizes=(20, 20, 20))
    full = {"sampling": "full", "batch_size": None}
    for options in ({"local_steps": 1}, {"local_steps": 3, "l2": 0.3}, {"budget": None}):
        for trust in ("silo", "central"):
            runs, certificates = [], []
            for more in ({"batch_size": 20}, full):
                messages.clear()
                certificates.append(solve(data, trust=trust, **options | more).privacy)
                runs.append(list(messages))
            for ours, theirs in zip(*runs, strict=True):
                np.testing.assert_array_equal(ours[0], theirs[0])
                assert ours[1:] == theirs[1:]
            for a, b in zip(*(c.releases for c in certificates), strict=True):
                assert (a.sensitivity, a.std, a.grid) == (b.sensitivity, b.std, b.grid)


def test_noiseless_batches_in_turn_reach_the_optimum_of_falling_steps():
    data = silos(sizes=(40, 40))
    best = dpk.solve("gradient_descent", data, budget=None, l2=0.3, rounds=2000).w
    result = solve(
        data, budget=None, clip=None, l2=0.3, rounds=3000, local_steps=2, batch_size=10,
        step_size="theorem",
    )  # fmt: skip
    np.testing.assert_allclose(result.w, best, atol=0.02)


@for_each(
    ("data", "options", "message"),
    [
        ({"row_bound": None}, {}, "give the data a row_bound"),
        ({}, {"model": dpk.MLP(hidden=(3,)), "step_size": 0.1}, "model must be linear, got 'mlp'"),
        ({}, {"neighbours": "add_remove", "public_size": SIZES}, "needs neighbours='replace_one'"),
        ({}, {"sampling": "poisson"}, "got 'poisson' with 'replace_one'"),
        ({}, {"sampling": "without_replacement"}, "needs sampling='full', 'one_pass' or 'cyclic'"),
        ({}, {"sampling": "full"}, "batch_size must be None with sampling='full'"),
        ({}, {"batch_size": None}, "batch_size must be given with sampling='cyclic'"),
        ({}, {"batch_size": 21}, "batch_size must be at most 20, the smallest silo having 20"),
        ({}, {"participation": 2}, "noise='round' needs participation=None"),
        ({}, {"penalty": L2Ball()}, "acts by its prox"),
        ({}, {"l2": 5.0}, "at most 2 / 5.0"),
    ],
)
def test_what_has_no_proof_is_refused_before_anything_is_released(data, options, message):
    with pytest.raises((TypeError, ValueError), match=message) as error:
        solve(silos(**data), **options)
    assert not getattr(error.value, "__notes__", None)


def test_carried_batches_are_what_is_said_of_them_here():
    for b, K in ((3, 4), (7, 6), (20, 2)):
        c = (Fraction(1, 10), Fraction(0.25 * (1 + 2.0**-40)) + Fraction(1, 10))
        ours = float(
            Fraction(*propagate_batches(*expansions((0.5,) * K, *c), sizes=[20], batch=b)[20])
        )
        assert ours == pytest.approx(carried(20, b, K, 0.5, 0.1), rel=1e-12)
