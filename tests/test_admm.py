"""ADMM: optimum, states, sensitivities, schedules, certificates, the paper's noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from makers import BUDGET, assert_refused, make_silos, square

import dpkern as dpk
from dpkern import kernels
from dpkern.models.penalties import L1, L2, PL
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling.participation import Graph, sample_users, walk_graph
from dpkern.solvers import Objective

N, P = 60, 4
GAMMA = 0.1  # so short that a long record is clipped in its first round


def make_data(task="classification", n=N, p=P, seed=0, **options):
    known = {"row_bound": 3.0, "classes": [-1, 1] if task == "classification" else None}
    return make_silos((n,), p, task, seed=seed, **(known | options))


@pytest.fixture(scope="module")
def data():
    return make_data()


GRAPH = scipy.sparse.diags_array([1.0, 1.0, 1.0, 1.0], offsets=[-1, 1, N - 1, 1 - N], shape=(N, N))

#: (options, sensitivity of one release in units of gamma C, where a user is in K of them)
MODES = {
    "central": ({}, lambda lam, K: 2.0),
    "central, local": ({"trust": "local"}, lambda lam, K: 4.0 * lam),
    "federated": (
        {"mode": "federated", "participation": 7},
        lambda lam, K: 2.0 * lam / math.sqrt(K),
    ),
    "federated, capped": (
        {"mode": "federated", "participation": 30, "max_participations": 3},
        lambda lam, K: 2.0 * lam / math.sqrt(K),
    ),
    "federated, local": (
        {"mode": "federated", "participation": 7, "trust": "local"},
        lambda lam, K: 4.0 * lam,
    ),
    "token": ({"mode": "token", "trust": "local"}, lambda lam, K: 4.0 * lam),
    "token, capped": (
        {"mode": "token", "trust": "local", "max_participations": 1},
        lambda lam, K: 4.0 * lam,
    ),
    "token on a ring": (
        {"mode": "token", "trust": "local", "graph": GRAPH},
        lambda lam, K: 4.0 * lam,
    ),
}


def bound_of(D, lam, release):
    return D(lam, release.per_record or release.times) * GAMMA * 0.7


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


def run(data, options, **more):
    parameters = {"budget": BUDGET, "clip": 0.7, "rounds": 12, "prox_step": GAMMA, "l2": 0.05}
    return dpk.solve("admm", data, **(parameters | options | more))


def test_lasso_is_that_of_scikit_learn():
    from sklearn.linear_model import Lasso

    data = make_data("regression", n=80, p=10, row_bound=None)
    theirs = Lasso(alpha=0.1, fit_intercept=False, tol=1e-14, max_iter=100_000)
    ours = dpk.solve("admm", data, budget=None, loss="squared", l1=0.1, prox_step=1.0, rounds=3000)
    np.testing.assert_allclose(ours.coef, theirs.fit(data.X, data.y).coef_, atol=1e-6)
    assert np.any(ours.coef == 0.0)
    assert ours.converged


@for_each("mode", ["central", "federated", "token"])
@for_each("penalize_intercept", [True, False])
def test_logistic_regression_is_that_of_scikit_learn(mode, penalize_intercept):
    from sklearn.linear_model import LogisticRegression

    data = make_data(intercept=True, row_bound=None)
    X = data.X if not penalize_intercept else np.hstack([data.X, np.ones((N, 1))])
    theirs = LogisticRegression(
        C=1.0 / (N * 0.1), tol=1e-12, max_iter=10_000, fit_intercept=not penalize_intercept
    ).fit(X, data.y)
    expected = np.append(theirs.coef_, [] if penalize_intercept else theirs.intercept_)
    options = {
        "central": {"rounds": 600},
        "federated": {"mode": mode, "participation": 20, "rounds": 3000},
        "token": {"mode": mode, "trust": "local", "rounds": 30_000},
    }[mode]
    ours = dpk.solve(
        "admm", data, budget=None, l2=0.1, prox_step=3.0, rng=0, n_threads=1,
        penalize_intercept=penalize_intercept, **options,
    )  # fmt: skip
    np.testing.assert_allclose(ours.w, expected, atol=1e-6)
    assert ours.converged


def test_l1_and_a_penalty_of_the_norm_have_one_prox():
    """The sum of both, by its definition: no point nearby is better."""
    penalty = L2(0.3) + L1(0.2) + PL(0.4)
    objective = Objective(make_data(), dpk.losses.Logistic(), penalty=penalty)
    rng = np.random.default_rng(0)

    def value(x, v, step):
        penalty = objective.penalty_value(x) + 0.2 * np.sum(np.abs(x))
        return step * penalty + 0.5 * np.sum((x - v) ** 2)

    for _ in range(20):
        v, step = rng.standard_normal(P), rng.uniform(0.01, 0.6)
        x = objective.full_prox(v, step)
        near = x + 10.0 ** rng.uniform(-6, 0, (500, 1)) * rng.standard_normal((500, P))
        assert min(value(other, v, step) for other in near) >= value(x, v, step) - 1e-12


def federated_lasso(data, *, carried, lam=0.5, gamma=0.5, l1=0.05, rounds=4000, users=20):
    """Algorithm 9 without noise; as printed a round's zhat starts from z and is not carried on."""
    X, y = data.X, data.y
    rng, U, zhat, z = np.random.default_rng(0), np.zeros(X.shape), np.zeros(P), np.zeros(P)
    for _ in range(rounds):
        chosen = rng.choice(N, users, replace=False)
        rows, v = X[chosen], 2.0 * z - U[chosen]
        t = -gamma * (np.sum(rows * v, axis=1) - y[chosen]) / (1 + gamma * np.sum(rows**2, axis=1))
        moved = 2.0 * lam * (v + t[:, np.newaxis] * rows - z)
        U[chosen] += moved
        zhat = (zhat if carried else z) + moved.sum(axis=0) / N
        z = np.sign(zhat) * np.maximum(np.abs(zhat) - gamma * l1, 0.0)
    return z


def test_as_printed_the_federated_iteration_forgets_the_records_and_the_solver_does_not():
    """As printed z tends to the minimiser of r, here 0; with zhat carried on, to the optimum."""
    data = make_data("regression", row_bound=None)
    best = dpk.solve("admm", data, budget=None, loss="squared", l1=0.05, prox_step=0.5, rounds=2000)
    ours = dpk.solve(
        "admm", data, budget=None, loss="squared", l1=0.05, prox_step=0.5, rng=0,
        mode="federated", participation=20, rounds=4000,
    )  # fmt: skip
    np.testing.assert_allclose(ours.w, best.w, atol=1e-6)
    np.testing.assert_allclose(federated_lasso(data, carried=True), best.w, atol=1e-6)
    assert np.linalg.norm(best.w) > 1.0
    assert np.linalg.norm(federated_lasso(data, carried=False)) < 1e-3


# ---------------------------------------------------------------------------------- states


def full_state_lasso(data, *, lam, gamma, l1, rounds):
    """Algorithm 8 without noise, with a state per user and the closed form of the square's prox."""
    X, y = data.X, data.y
    U = np.zeros(X.shape)
    z = np.zeros(X.shape[1])
    for _ in range(rounds):
        v = 2.0 * z - U
        t = -gamma * (np.sum(X * v, axis=1) - y) / (1.0 + gamma * np.sum(X**2, axis=1))
        U = U + 2.0 * lam * (v + t[:, np.newaxis] * X - z)
        zhat = U.mean(axis=0)
        z = np.sign(zhat) * np.maximum(np.abs(zhat) - gamma * l1, 0.0)
    return z


@for_each("lam", [0.2, 0.5, 0.9])
@for_each(
    "options",
    [{}, {"trust": "local"}, {"mode": "federated", "participation": N}],
    ids=["collapsed", "public", "per user"],
)
def test_every_form_of_the_state_gives_the_iterates_of_the_algorithm(lam, options):
    data = make_data("regression", row_bound=None)
    how = {"l1": 0.05, "rounds": 40}
    ours = dpk.solve(
        "admm", data, budget=None, loss="squared", prox_step=0.7, relaxation=lam, **how, **options
    ).w
    np.testing.assert_allclose(
        ours, full_state_lasso(data, lam=lam, gamma=0.7, **how), rtol=1e-10, atol=1e-12
    )


@for_each("lam", [0.1, 0.25, 0.5])
@for_each("seed", range(5))
def test_hidden_states_of_neighbours_stay_within_the_drift_bound(lam, seed):
    """|u_i - u_i'| <= min(4 lam gamma C k, 2 gamma C) after k rounds, which is nearly reached."""
    rng = np.random.default_rng(seed)
    a, C = rng.standard_normal(3), 10.0 ** rng.uniform(-1, 0)
    a *= 2.0 * C / np.linalg.norm(a)
    gamma = 0.05 / (2.0 * C * C)
    pair = [dpk.SiloData(s * a[np.newaxis], [1.0], [0, 1], classes=[-1, 1]) for s in (1, -1)]
    states = [kernels.ProxState.collapsed(data, np.zeros(3)) for data in pair]
    # Margins stay far below the corner, where the hinge is linear: |b| = gamma C every time.
    z = np.zeros(3)
    largest = 0.0
    for k in range(1, 40):
        u = []
        for data, state in zip(pair, states, strict=True):
            kernels.prox_sweep(
                data, state, z, loss=dpk.losses.SmoothedHinge(h=0.5), clip=C, prox_step=gamma,
                relaxation=lam, grid=2.0**-45,
            )  # fmt: skip
            u.append(state.common + state.scale[0] * data.X[0])
        moved = np.linalg.norm(u[0] - u[1])
        most = min(4.0 * lam * gamma * C * k, 2.0 * gamma * C)
        assert moved <= most * (1.0 + 1e-12)
        largest = max(largest, moved / most)
        z = 0.02 / C * rng.uniform(-1.0, 1.0, 3)
    assert largest > 0.9


# ----------------------------------------------------------------------------- sensitivity


def neighbours(data, i):
    """Data sets that differ in record i, which is long and has opposite labels."""
    for label in (1.0, -1.0):
        X, y = data.X.copy(), data.y.copy()
        X[i], y[i] = np.eye(P)[0] * 40.0, label
        yield dpk.SiloData(X, y, data.offsets, row_bound=data.row_bound)


@pytest.fixture
def scripted(monkeypatch, round_by_round):
    """Releases are random numbers of a given size, whatever the sums; these are kept."""
    sums, size = [], [1.0]

    def release(mechanism, total):
        rng = np.random.default_rng(len(sums))
        sums.append(total.copy())
        mechanism._channel.ledger.append(mechanism._entry)
        return size[0] * rng.standard_normal(total.shape)

    monkeypatch.setattr(GaussianSum, "release", release)
    return sums, size


@pytest.mark.parametrize("name", ["central", "federated", "federated, capped"])
@pytest.mark.parametrize("lam", [0.5, 0.13])
@pytest.mark.parametrize("i", [0, 17])
@pytest.mark.parametrize("size", [1e-3, 300.0])
def test_sums_of_neighbours_part_by_the_ledgers_sensitivity_at_most(
    scripted, data, name, lam, i, size
):
    """After one and the same releases, which is what composition is about; in rational numbers."""
    options, D = MODES[name]
    sums, scripted_size = scripted
    scripted_size[0], seen = size, []
    for neighbour in neighbours(data, i):
        result = run(neighbour, options, relaxation=lam, rng=3)
        seen.append(sums.copy())
        sums.clear()
    (release,) = result.privacy.releases
    assert release.sensitivity == pytest.approx(bound_of(D, lam, release), rel=1e-12)
    parted = [
        square(a - b) / Fraction(release.sensitivity) ** 2 for a, b in zip(*seen, strict=True)
    ]
    assert len(parted) == 12
    assert max(parted) <= 1
    assert size > 1.0 or max(parted) > Fraction(9, 10)
    if name != "central":
        shares = np.count_nonzero(parted)
        assert shares <= release.per_record
        # Short as they are, changes have one direction in every round, and add up.
        assert size > 1.0 or sum(parted) > Fraction(9, 10) * shares


@pytest.mark.parametrize("seed", range(4))
def test_a_search_for_neighbours_reaches_the_charge_of_changes_and_never_passes_it(
    scripted, data, seed
):
    """Random records, losses and releases; all of a user's rounds together, in rational numbers."""
    rng = np.random.default_rng(seed)
    sums, size = scripted
    most = largest = Fraction(0)
    for _ in range(40):
        seen, size[0] = [], 10.0 ** rng.uniform(-4, 3)
        lam = rng.choice([0.5, 0.3, 0.05])
        loss = rng.choice(["logistic", "squared", "smoothed_hinge"])
        x = rng.standard_normal(P) * 10.0 ** rng.uniform(-1, 4)
        for sign in (1.0, rng.choice([-1.0, 1.0, 0.01])):
            X, y = data.X.copy(), data.y.copy()
            X[3], y[3] = sign * x, 1.0
            neighbour = dpk.SiloData(X, y, data.offsets)
            result = run(
                neighbour, {"mode": "federated", "participation": 20}, loss=str(loss),
                relaxation=lam, rng=seed,
            )  # fmt: skip
            seen.append(sums.copy())
            sums.clear()
        (release,) = result.privacy.releases
        parted = [square(a - b) for a, b in zip(*seen, strict=True)]
        D = Fraction(release.sensitivity) ** 2
        largest = max(largest, max(parted) / D)
        shares = np.count_nonzero(parted)
        assert shares <= release.per_record
        most = max(most, sum(parted) / D / max(shares, 1))
    assert largest <= 1
    assert most > Fraction(99, 100)


@pytest.mark.statistical
def test_an_audit_of_clipped_changes_stays_below_the_certificate_and_comes_near():
    """Where all users take part in every round, what a record does to the last model adds up."""
    data, options = make_data(n=12), {"mode": "federated", "participation": 12, "l2": 0.0}
    total, last = dpk.Budget(mu=1.0), []
    for neighbour in neighbours(data, 3):
        runs = [run(neighbour, options, budget=total, rounds=4, rng=seed) for seed in range(500)]
        last.append(np.array([result.w[0] for result in runs]))
    apart = abs(last[0].mean() - last[1].mean()) / math.sqrt((last[0].var() + last[1].var()) / 2)
    error = 5.0 * math.sqrt((2.0 + apart**2 / 4.0) / 500)
    certified = runs[0].privacy.mu
    assert certified == pytest.approx(1.0, rel=1e-9)
    assert 0.9 < apart / certified < 1.0 + error


def test_changes_that_are_clipped_at_first_are_no_gradients_that_grow():
    """They grow in a run that learns."""
    data = make_data(n=2000, row_bound=1.0)
    options = {"mode": "federated", "participation": 200, "rounds": 80, "prox_step": 1.0}
    result = run(data, options, clip=0.5, l2=0.0, budget=dpk.Budget(mu=4.0), rng=0)
    norms = np.array(result.history["gradient_norm"])
    assert np.mean(norms[-20:] ** 2) > 6.0 * np.mean(norms[:20] ** 2)
    assert "gradients" not in result.message
    assert np.mean(np.sign(data.X @ result.w) == data.y) > 0.9


@for_each("lam", [0.5, 0.2])
@for_each("gamma", [0.3, 4.0])
def test_changes_follow_how_far_the_public_part_has_moved(lam, gamma):
    """Lemma 2 of docs/proofs/changes.md, nearly reached; what clips little clips nothing then."""
    rng = np.random.default_rng(int(10 * (lam + gamma)))
    data = make_data(n=200, row_bound=1.0)
    state = kernels.ProxState.per_user(data, np.zeros(P))
    kappa, C = 0.25 * gamma / (1.0 + 0.25 * gamma), 5.0
    length = np.minimum(np.linalg.norm(data.X, axis=1), 1.0)  # of the effective rows
    largest, before, longest = 0.0, np.zeros((data.n, P)), None
    for _ in range(40):
        z = 10.0 ** rng.uniform(-3, 1) * rng.standard_normal(P)
        public, scale = 2.0 * z - state.common, state.scale.copy()
        kernels.prox_sweep(data, state, z, loss="logistic", clip=C, prox_step=gamma, relaxation=lam)
        change = np.abs(state.scale - scale) * length
        moved = np.linalg.norm(public - before, axis=1)
        if longest is None:
            most = np.full(data.n, 2.0 * lam * gamma * min(C, 1.0))
        else:
            most = (1.0 - 2.0 * lam * (1.0 - kappa)) * longest + 2.0 * lam * kappa * moved
        assert np.all(change <= most * (1.0 + 1e-9) + 1e-12)
        largest = max(largest, float(np.max(change / most)))
        before, longest = public, change
    assert largest > 0.9


@pytest.fixture
def sweeps(monkeypatch, round_by_round):
    """(state before, state after, z, arguments) of every sweep of noisy users."""
    seen = []

    class Spy(kernels.PreparedSweep):
        def __init__(self, data, state, **how):
            self.state = state
            super().__init__(data, state, **how)

        def __call__(self, z, **how):
            before = self.state.common.copy()
            moved = super().__call__(z, **how)
            seen.append((before, self.state.common.copy(), z.copy(), how))
            return moved

    monkeypatch.setattr(kernels, "PreparedSweep", Spy)
    return seen


@pytest.mark.parametrize("name", [name for name in MODES if "local" in name or "token" in name])
@pytest.mark.parametrize("lam", [0.5, 0.13, 1.0])
def test_messages_of_neighbours_with_equal_noise_part_by_the_ledgers_sensitivity(
    sweeps, data, name, lam
):
    """The first message of the replaced record; the others' are the same bits."""
    options, D = MODES[name]
    i = int(run(data, options, relaxation=lam, rng=5) and sweeps[0][3]["rows"][0]) if (
        name != "central, local"
    ) else 17  # fmt: skip
    states = []
    for neighbour in neighbours(data, i):
        sweeps.clear()
        result = run(neighbour, options, relaxation=lam, rng=5, rounds=1)
        states.append(sweeps[0][1])
    (release,) = result.privacy.releases
    assert release.sensitivity == pytest.approx(bound_of(D, lam, release), rel=1e-12)
    parted = [
        square(a - b) / Fraction(release.sensitivity) ** 2 for a, b in zip(*states, strict=True)
    ]
    assert Fraction(99, 100) < parted[i] <= 1
    assert np.count_nonzero(parted) == 1


def sparse_records(longest, n=1500, p=256):
    """Two entries a record, `longest` in one of them."""
    lengths = np.full(n, 2)
    lengths[7] = longest
    columns = np.concatenate([np.arange(k) * 11 for k in lengths])
    X = scipy.sparse.csr_array(
        (np.cos(np.arange(lengths.sum())), columns, np.append(0, np.cumsum(lengths))), shape=(n, p)
    )
    return dpk.SiloData(X, np.resize([1.0, -1.0], n), [0, n], task="classification")


@for_each("kind", ["per_user", "public"])
def test_order_of_public_sums_does_not_depend_on_how_many_entries_are_stored(kind):
    """Floating-point sums of what is known: their last bits must not tell of one record's length.

    Of the users' messages one record's differs, and where its coordinates are the same the sum is.
    """
    seen = []
    for longest in (2, 3):
        data = sparse_records(longest)
        state = getattr(kernels.ProxState, kind)(data, np.linspace(0.1, 0.9, data.d))
        noise = {"sigma": 3.0, "rng": 5} if kind == "public" else {}
        for z in np.random.default_rng(1).standard_normal((2, data.d)):
            moved = kernels.prox_sweep(
                data, state, z, loss="logistic", clip=1.0, prox_step=1.0, relaxation=0.3,
                grid=2.0**-20, **noise,
            )  # fmt: skip
        seen.append((moved[1] if kind == "per_user" else moved, state.common[7]))
    (sum_a, own_a), (sum_b, own_b) = seen
    same = own_a == own_b
    assert same.sum() >= 250
    np.testing.assert_array_equal(sum_a[same], sum_b[same])


@pytest.mark.parametrize("name", [name for name in MODES if "local" in name or "token" in name])
def test_the_model_is_a_function_of_the_users_messages(sweeps, data, name):
    """Rebuilt from what was sent, u_i' - (1 - 2 lam) u_i - 2 lam z, who sent, public numbers."""
    options, _ = MODES[name]
    lam, gamma, l2 = 0.4, GAMMA, 0.05
    result = run(data, options, relaxation=lam, rng=3)
    U, z = np.zeros((N, P)), np.zeros(P)
    for before, after, seen_z, how in sweeps:
        np.testing.assert_allclose(seen_z, z, rtol=1e-9, atol=1e-12)
        rows = np.arange(N) if how["rows"] is None else how["rows"]
        assert np.all((before != after).any(axis=1) == np.isin(np.arange(N), rows))
        message = after[rows] - (1.0 - 2.0 * lam) * before[rows] - 2.0 * lam * seen_z
        U[rows] = (1.0 - 2.0 * lam) * U[rows] + 2.0 * lam * z + message
        z = U.mean(axis=0) / (1.0 + gamma * l2)
    np.testing.assert_allclose(result.w, z, rtol=1e-9, atol=1e-12)


def test_noise_draws_of_every_user_are_counted(data):
    central, local, federated, token = (
        run(data, MODES[name][0]).privacy.n_draws
        for name in ("central", "central, local", "federated, local", "token")
    )
    assert (central, local, federated, token) == (12 * P, 12 * N * P, 12 * 7 * P, 12 * P)


@pytest.mark.statistical
@pytest.mark.filterwarnings("ignore:mu must be at most 6")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("central", lambda K: 2.0 / N),
        ("central, local", lambda K: 4.0 * 0.3 / math.sqrt(N)),
        ("federated", lambda K: 2.0 * 0.3 / N),
        ("federated, local", lambda K: 4.0 * 0.3 * math.sqrt(7) / N),
        ("token", lambda K: 4.0 * 0.3 / N),
    ],
)
def test_noise_of_one_round_has_the_calibrated_deviation(data, name, expected):
    options = MODES[name][0] | {"relaxation": 0.3, "rounds": 1, "l2": 0.0}
    total = dpk.Budget(mu=0.5)
    # No seed gives the users of the first round without its noise: the other run repeats both, with
    # 2e5 times less noise. Without a budget changes would not be clipped.
    noise = np.array(
        [
            run(data, options, budget=total, rng=seed).w
            - run(data, options, budget=dpk.Budget(mu=1e5), rng=seed).w
            for seed in range(200)
        ]
    )
    std = expected(1) * GAMMA * 0.7 / total.mu
    assert np.mean(noise**2) == pytest.approx(std**2, rel=5.0 * math.sqrt(2.0 / noise.size))
    assert np.all(np.abs(noise.mean(axis=0)) < 5.0 * std / math.sqrt(len(noise)))


def test_no_two_users_or_rounds_share_their_noise(sweeps, data):
    run(data, {"trust": "local"}, clip=1e-9, rounds=4, l2=0.0, rng=0)
    noise = np.concatenate([after - z for _, after, z, _ in sweeps])  # lam = 1/2: no old state
    noise = np.round(noise / noise.std(), 4)
    assert len({tuple(row) for row in noise.tolist()}) == 4 * N
    assert np.all(np.abs(noise) < 15.0)


# ------------------------------------------------------------------------------- schedules


def test_samples_are_uniform_without_replacement():
    for n, m in ((10, 3), (10, 8), (10, 10), (1, 1), (500, 100)):
        with dpk.NoiseStream(0) as stream:
            schedule = sample_users(stream, n=n, participants=m, rounds=400)
        assert schedule.users.shape == (400, m)
        assert all(len(set(row)) == m for row in schedule.users.tolist())
        assert np.all(np.diff(schedule.users) > 0)
        counts = np.bincount(schedule.users.ravel(), minlength=n)
        p = m / n
        chi2 = np.sum((counts - 400 * p) ** 2) / max(400 * p * (1.0 - p), 1e-300)
        assert chi2 == 0.0 if m == n else chi2 < n + 6.0 * math.sqrt(2.0 * n)
        assert schedule.most == counts.max()


@for_each("cap", [1, 2, 5])
def test_nobody_takes_part_more_often_than_the_cap(cap):
    with dpk.NoiseStream(1) as stream:
        sampled = sample_users(stream, n=40, participants=10, rounds=30, most=cap)
        walk = walk_graph(stream, Graph.of(None, 40), hops=300, most=cap)
    for schedule in (sampled, walk):
        parts = np.concatenate([schedule[t] for t in range(len(schedule.users))])
        assert np.bincount(parts).max() == cap == schedule.most
        # and whoever is below the cap does take part
        drawn = np.bincount(schedule.users.ravel(), minlength=40)
        np.testing.assert_array_equal(np.bincount(parts, minlength=40), np.minimum(drawn, cap))


def test_the_walk_stays_on_its_graph_and_visits_by_degree():
    rng = np.random.default_rng(0)
    A = rng.random((30, 30)) < 0.1
    A = np.triu(A, 1) | np.diag(np.ones(29, dtype=bool), 1)
    A = A | A.T
    with dpk.NoiseStream(0) as stream:
        graph = Graph.of(scipy.sparse.csr_array(A), 30)
        walk = walk_graph(stream, graph, hops=20_000).users[:, 0]
        free = walk_graph(stream, Graph.of(None, 30), hops=20_000).users[:, 0]
    assert A[walk[:-1], walk[1:]].all()
    share = np.bincount(walk, minlength=30) / len(walk)
    np.testing.assert_allclose(share, A.sum(axis=0) / A.sum(), atol=0.012)
    np.testing.assert_allclose(np.bincount(free) / len(free), 1 / 30, atol=0.006)
    assert np.any(free[:-1] == free[1:])


@for_each(
    ("graph", "message"),
    [
        (np.eye(N), "TypeError: scipy.sparse"),
        (scipy.sparse.eye_array(N), "connected"),
        (scipy.sparse.csr_array((N, N)), "connected"),
        (scipy.sparse.eye_array(3), "shape"),
        (scipy.sparse.diags_array([1.0], offsets=[1], shape=(N, N)), "symmetric"),
    ],
)
def test_a_graph_that_is_no_connected_graph_of_the_users_is_refused(data, graph, message):
    assert_refused(message, run, data, {"mode": "token", "trust": "local", "graph": graph})


def test_a_token_that_meets_only_silent_users_changes_and_costs_nothing():
    data = make_data(n=2)
    options = {"mode": "token", "trust": "local", "max_participations": 1, "rng": 0}
    long, short = (run(data, options, rounds=rounds) for rounds in (200, 40))
    assert {r.times for r in long.privacy.releases} == {2}
    np.testing.assert_array_equal(long.w, short.w)


# --------------------------------------------------------------------- the paper's calibration


def line(n, label=1.0):
    """Records whose smoothed hinge is linear near 0, with slope -1: f_i(x) = 1 - x_1."""
    X = np.zeros((n, 2))
    X[:, 0] = 1.0
    y = np.ones(n)
    X[0], y[-1] = label * X[0], -1.0
    X[-1] = -X[-1]
    return dpk.SiloData(X, y, [0, n], row_bound=1.0)


PAPER = {"loss": dpk.losses.SmoothedHinge(h=0.5), "clip": 1.0, "prox_step": 0.05}


@pytest.mark.statistical
@pytest.mark.parametrize("lam", [0.5, 0.2, 1.0])
def test_paper_noise_gives_n_times_the_claimed_rdp(lam):
    """Counter-example of one round: the mean moves by 4 lam gamma C / n under lam sigma/sqrt(n)."""
    n, options = 50, PAPER | {"rounds": 1, "relaxation": lam, "calibration": "paper"}
    clean = dpk.solve(
        "admm", line(n), budget=None, trust="local", rounds=1, relaxation=lam, **PAPER
    ).w
    moved, noise = [], []
    for seed in range(150):
        a, b = (
            dpk.solve("admm", line(n, label), budget=BUDGET, rng=seed, **options)
            for label in (1.0, -1.0)
        )
        moved.append(a.w - b.w)
        noise.append(a.w - clean)
    np.testing.assert_allclose(moved, [[4.0 * lam * 0.05 / n, 0.0]] * 150, rtol=1e-4, atol=1e-9)
    certificate = a.privacy
    claimed = certificate.claimed
    sigma = math.sqrt(8.0 * 0.05**2 / (claimed["rho"] * n**2))
    assert np.mean(np.square(noise)) == pytest.approx(
        (lam * sigma) ** 2 / n, rel=5.0 * math.sqrt(2.0 / 300)
    )
    assert certificate.rho == pytest.approx(n * claimed["rho"], rel=1e-9)
    assert certificate.bound == "exact"
    assert claimed["epsilon"] == 1.0
    rho = claimed["rho"]
    assert rho + 2.0 * math.sqrt(rho * math.log(1e5)) == pytest.approx(1.0, rel=1e-12)


@for_each(
    ("options", "mu_squared"),
    [
        # in units of the claimed rho; messages: 16 gamma^2 C^2 K / sigma^2
        ({}, lambda K: 2.0 * N**2),
        ({"mode": "federated", "participation": 7}, lambda K: 1.0 * N**2 * K / 12),
        ({"mode": "token", "trust": "local"}, lambda K: 2.0 * N / math.log(N)),
    ],
)
def test_paper_noise_of_several_rounds_is_charged_message_by_message(data, options, mu_squared):
    result = run(data, options | {"calibration": "paper"}, relaxation=0.9)
    certificate = result.privacy
    (release,) = certificate.releases
    K = release.per_record or release.times
    assert certificate.mu**2 == pytest.approx(mu_squared(K) * certificate.claimed["rho"], rel=1e-9)
    token = "mode" in options and options["mode"] == "token"
    assert certificate.bound == ("exact" if token else "upper")
    assert any("proved" in note for note in certificate.notes)


@for_each(
    ("bad", "message"),
    [
        ({"relaxation": 0.51}, "relaxation must be at most 1/2 .*got 0.51"),
        ({"relaxation": 0.51, "mode": "federated", "participation": 2}, "at most 1/2"),
        ({"relaxation": 0.51, "budget": None}, "at most 1/2"),
        ({"relaxation": 1.01, "budget": None}, r"must lie in \(0, 1\]"),
        ({"relaxation": 0.0}, "relaxation"),
        ({"prox_step": 0.0}, "prox_step"),
        ({"prox_step": "fast"}, "prox_step"),
        ({"mode": "ring"}, "mode"),
        ({"mode": "token"}, "mode='token' needs trust='local'"),
        ({"mode": "federated"}, "needs participation"),
        ({"mode": "federated", "participation": 0}, "participation"),
        ({"mode": "federated", "participation": N + 1}, "participation"),
        ({"mode": "federated", "participation": 2.0}, "TypeError: participation"),
        ({"participation": 3}, "participation needs mode='federated'"),
        ({"max_participations": 3}, "max_participations needs mode"),
        ({"mode": "federated", "participation": 2, "max_participations": 0}, "max_p"),
        ({"graph": GRAPH}, "graph needs mode='token'"),
        ({"weights": "uniform"}, "weights"),
        ({"trust": "silo"}, "trust"),
        ({"calibration": "paper", "trust": "local"}, "needs trust='central'"),
    ],
)
def test_bad_argument_is_refused_by_name_before_any_release(data, bad, message):
    assert_refused(message, run, data, bad)


def test_more_than_half_is_relaxed_without_a_clip_norm_and_under_local_trust(data):
    run(data, {"relaxation": 1.0, "budget": None, "clip": None})
    run(data, {"relaxation": 1.0, "trust": "local"})


def test_a_run_whose_last_users_have_nothing_to_say_does_not_call_itself_converged():
    """Without rows users send zeros: as long as the token is with them nothing moves."""
    X = np.zeros((400, 2))
    X[0] = (1.0, 0.0)
    data = dpk.SiloData(X, np.ones(400), [0, 400], row_bound=1.0, task="regression")
    options = {"mode": "token", "trust": "local", "loss": "squared", "l2": 0.0, "budget": None}
    result = dpk.solve("admm", data, prox_step=1.0, rounds=3, rng=1, **options)
    assert result.history["gradient_norm"][-1] == 0.0
    assert not result.w.any()
    assert not result.converged
