"""Properties of ADMM with silos as users: optimum, hidden states, sensitivities, certificates."""

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy
from cases import for_each
from makers import BUDGET, assert_refused, make_silos, recomputed_mu, spy_on_calls, square
from pairwise import pairwise

import dpkern as dpk
from dpkern import kernels
from dpkern.models.penalties import Box
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.local_runs import LocalRuns
from dpkern.solvers import Objective

SIZES = (40, 9, 71)
CLIP = 0.7
TRUSTS = ("central", "silo")
U = Fraction(1, 2**53)


def make_data(task="classification", seed=0, sizes=SIZES, **options):
    return make_silos(sizes, 4, task, seed=seed, **{"row_bound": 3.0} | options)


@pytest.fixture(scope="module")
def data():
    return make_data()


def run(data, **options):
    parameters = {"budget": BUDGET, "clip": CLIP, "rounds": 12, "l2": 0.05, "users": "silos"}
    return dpk.solve("admm", data, **(parameters | options))


PENALTIES = {
    "l2": {"l2": 0.1},
    "l1": {"l2": 0.0, "l1": 0.05},
    "box": {"l2": 0.01, "penalty": Box(-0.1, 0.2)},
}


@pairwise(
    strength=3,
    trust=TRUSTS,
    weights=["size", "uniform"],
    penalty=PENALTIES,
    loss=["logistic", "squared"],
)
def test_noiseless_run_reaches_the_optimum_of_the_weighted_objective(trust, weights, penalty, loss):
    """Uneven silos of different records: only weighted means of right proxes get there."""
    task = "regression" if loss == "squared" else "classification"
    data, how = make_data(task, intercept=True), penalty
    result = run(
        data, budget=None, clip=None, loss=loss, trust=trust, weights=weights, rounds=2500,
        penalize_intercept=False, **how,
    )  # fmt: skip
    objective = Objective(
        data, dpk.losses.get_loss(loss), weights=weights, penalize_intercept=False, **how
    )
    w, value = objective.minimum()
    assert objective.value(result.w) == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(result.w, w, atol=1e-5)
    assert result.converged


@for_each("lam", [0.2, 0.5])
def test_hidden_and_public_states_give_the_same_iterates(data, lam):
    both = [run(data, budget=None, trust=trust, relaxation=lam).w for trust in TRUSTS]
    np.testing.assert_allclose(*both, rtol=1e-12, atol=1e-15)


@for_each("steps", [1, 3, 20])
def test_inner_solves_end_as_near_their_prox_as_the_certificate_says(data, steps, monkeypatch):
    descent, ends = kernels.glm_local_descent, []

    def spy(records, v, **how):
        x = descent(records, v, **how)
        prox = descent(records, v, **(how | {"steps": 400}))
        gamma = 1.0 / how["anchor"]
        ends.append(np.linalg.norm(x - prox, axis=1).max() / (gamma * CLIP))
        return x

    monkeypatch.setattr(kernels, "glm_local_descent", spy)
    result = run(data, local_steps=steps, budget=None)
    share = (1.0 / 3.0) ** steps  # gamma L = 1/2 but for l2
    assert 1e-3 * share < max(ends) <= 1.01 * share + 1e-14
    (note,) = [note for note in result.privacy.notes if "inner steps" in note]
    assert note.startswith(f"{steps} inner steps")
    noted = float(note.split("at most ")[1].split()[0])
    assert max(ends) <= noted + 1e-14
    assert noted == pytest.approx(share, rel=0.1 * steps)


# ------------------------------------------------------------------------ hidden states


def public(**changes):
    numbers = {
        "clip": 1.0, "dim": 3, "sizes": (10, 200), "step_sizes": (2.0,) * 6,
        "loss_smoothness": 0.25, "loss_kappa": 5.0, "row_bound": 1.0, "l2": 0.25,
    }  # fmt: skip
    return LocalRuns(**(numbers | changes))


@for_each("lam", [0.5, 0.25, 0.01])
@for_each("steps", [1, 3])
def test_states_part_by_no_more_than_the_recursion_allows_and_by_as_much_in_the_end(lam, steps):
    """e <- (1 - 2 lam) e + 2 lam (L E_K e + (2 C / n_j) E_K), round after round, in rationals."""
    runs = public(step_sizes=(1.5,) * steps, l2=0.3)
    keep, take = Fraction(1 - 2 * lam), Fraction(2 * lam)
    bounds = runs.hidden_states(8.0, keep=float(keep), take=float(take), weights=[1.0, 0.5])
    E = Fraction(0)
    for _ in range(steps):
        E = max(abs(1 - Fraction(3, 2) * Fraction(k)) for k in (0.3, 0.55)) * E + Fraction(3, 2)
    for n, p, bound in zip((10, 200), (1.0, 0.5), bounds, strict=True):
        e = Fraction(0)
        for _ in range(6000):
            e = Fraction(float(keep * e + take * E * (e / 4 + Fraction(2, n))))
        assert p * e <= bound
        assert bound == pytest.approx(float(p * e), rel=1e-9)


def test_rounding_errors_of_states_count_in_full():
    """Twice what every round may add, over the share of a distance that a round takes away."""
    runs = public(step_sizes=(2.0,) * 2)  # too few for the bound of proxes
    E, F, _ = runs._propagation
    W = {start: runs.iterate_bound(start + runs.state_bound) for start in (2.0**20, 2.0**30)}
    small, large = (
        runs.hidden_states(start, keep=0.75, take=0.25, weights=[1.0, 0.0])[0] for start in W
    )
    room = Fraction(1, 4) * (1 - Fraction(1, 4) * E)
    more = 8 * F * Fraction(1, 4) + 8 + 2 * Fraction(1, 4) * 19 * Fraction(1, 2) * E
    expected = (more / room + 2) * U * (W[2.0**30] - W[2.0**20])
    assert large - small == pytest.approx(float(expected), rel=1e-6)


@for_each("lam", [0.5, 0.25, 0.01])
@for_each("gamma", [0.2, 4.0, 400.0])
def test_states_that_end_near_proxes_part_by_no_more_than_proxes_of_them_do(lam, gamma):
    """e <- (1 - 2 lam) e + 2 lam (sqrt(rho^2 + phi e^2) + 2 c^K gamma C), and within a percent."""
    eta, keep, take = 1.0 / (0.25 + 1.0 / gamma), 1 - 2 * lam, 2 * lam
    steps = max(20, int(20 / -math.log1p(-eta / gamma)))
    runs = public(step_sizes=(eta,) * steps, l2=1.0 / gamma)
    bounds = runs.hidden_states(8.0, keep=keep, take=take, weights=[1.0, 0.5])
    ends, phi = 2.0 * (1.0 - eta / gamma) ** steps * gamma, gamma / 4.0 / (2.0 + gamma / 4.0)
    for n, p, bound in zip((10, 200), (1.0, 0.5), bounds, strict=True):
        e, rho = 0.0, gamma * 2.0 / n
        for _ in range(20000):
            e = keep * e + take * (math.hypot(rho, math.sqrt(phi) * e) + ends)
        assert p * e <= bound * (1.0 + 1e-12)
        assert bound == pytest.approx(p * e, rel=1e-3)
        assert bound == pytest.approx(p * rho * math.sqrt(1.0 + gamma / 8.0), rel=1e-2)


@for_each("kappa", [0.1, 0.5, 0.99])
def test_a_prox_takes_distances_of_start_and_of_gradient_no_further_than_their_hypotenuse(kappa):
    """|A e + (I - A) r|^2 <= |r|^2 + phi |e|^2 for 0 <= A <= kappa; a reflection attains it."""
    rng, phi, largest = np.random.default_rng(0), kappa / (2.0 - kappa), 0.0
    for _ in range(3000):
        e, r = rng.standard_normal((2, 2))
        half = 0.5 * kappa
        # A v is anywhere within half |v| of half v: farthest from 0 with the rest of the sum.
        rest = r + half * (e - r)
        farthest = np.linalg.norm(rest) + half * np.linalg.norm(e - r)
        allowed = math.sqrt(r @ r + phi * (e @ e))
        assert farthest <= allowed * (1.0 + 1e-12)
        u, v = rest / np.linalg.norm(rest), (e - r) / np.linalg.norm(e - r)
        axis = (u + v) / np.linalg.norm(u + v)
        A = half * (2.0 * np.outer(axis, axis))  # half (I + reflection of v to u)
        assert np.linalg.norm(A @ e + r - A @ r) == pytest.approx(farthest)
        largest = max(largest, farthest / allowed)
    assert largest > 0.999


def test_long_steps_that_end_far_from_their_prox_are_refused():
    with pytest.raises(ValueError, match=r"prox_step must be below 1 / L .* or local_steps larger"):
        public(l2=0.01, step_sizes=(3.0,) * 50).hidden_states(
            1.0, keep=0.0, take=1.0, weights=[1.0, 1.0]
        )


@for_each("factor", [1e12, 1e14])
def test_states_whose_rounding_errors_rival_a_record_are_refused(factor):
    with pytest.raises(ValueError, match="floating-point errors"):
        public().hidden_states(factor, keep=0.0, take=1.0, weights=[1.0, 1.0])


# ----------------------------------------------------------------------------- sensitivity


@pytest.fixture
def scripted(monkeypatch):
    """Releases are random numbers of a given size, whatever the values; these are kept."""
    seen, size, release = [], [1.0], GaussianMessages.release

    def spy(mechanism, values, **bounds):
        released = release(mechanism, values, **bounds)
        seen.append((values.copy(), bounds.get("sensitivity"), bounds.get("bound")))
        rng = np.random.default_rng(len(seen))
        return size[0] * rng.standard_normal(released.shape)

    monkeypatch.setattr(GaussianMessages, "release", spy)
    return seen, size


def neighbours(data, i, axis=0):
    """Data sets that differ in record i, which is long and has opposite labels."""
    for label in (1.0, -1.0):
        X, y = data.X.copy(), data.y.copy()
        X[i], y[i] = np.eye(X.shape[1])[axis] * 40.0, label
        yield dpk.SiloData(X, y, data.offsets, row_bound=data.row_bound)


@pairwise(
    strength=3,
    trust=TRUSTS,
    weights=["size", "uniform"],
    lam=[0.5, 0.13],
    i=[0, 45],
    steps=[1, 3, 20],
    size=[1e-3, 10.0, 1e7],
)
def test_values_of_neighbours_part_by_the_ledgers_sensitivity_at_most(
    scripted, data, trust, weights, lam, i, steps, size
):
    """After one and the same releases, which is what composition is about; in rational numbers."""
    seen, scripted_size = scripted
    scripted_size[0], runs = size, []
    options = {"trust": trust, "weights": weights, "relaxation": lam, "local_steps": steps}
    for neighbour in neighbours(data, i):
        result = run(neighbour, rng=5, loss=dpk.losses.SmoothedHinge(h=0.5), **options)
        runs.append(seen.copy())
        seen.clear()
    silo = int(np.searchsorted(data.offsets, i, side="right")) - 1
    largest = Fraction(0)
    for (a, D, bound), (b, D_other, _) in zip(*runs, strict=True):
        assert D_other == D
        apart = [square(x - y) for x, y in zip(a, b, strict=True)]
        assert np.flatnonzero(apart).tolist() in ([silo], [])
        largest = max(largest, apart[silo] / Fraction(D[silo]) ** 2)
        assert max(np.abs(a).max(), np.abs(b).max()) <= bound
    assert largest <= 1
    if size == 1e7:  # what rounding can do grows with the model, and is charged
        assert min(D) > min(runs[0][0][1])
    # Near 0 the hinge of the replaced record is linear, and the others' curvature only resists.
    if size == 1e-3:
        assert largest > Fraction(1, 10) ** 2
    assert max(np.max(r.sensitivity) for r in result.privacy.releases) >= max(D)


@pytest.mark.parametrize("lam", [0.05, 0.2])
def test_hidden_states_part_by_more_than_one_round_takes_them_apart(scripted, lam):
    """Linear losses: every round adds 2 lam gamma 2 C / n_j, of which it loses 2 lam of what was.

    A sensitivity of one round alone would be exceeded 1 / (2 lam) times; the bound is reached but
    for its factor 1 / (1 - L E_K) for curvature.
    """
    seen, size = scripted
    size[0], gamma, states = 0.0, 0.01, []
    for label in (1.0, -1.0):
        X = np.zeros((10, 2))
        X[:, 0], y = 1.0, np.ones(10)
        y[0] = label
        data = dpk.SiloData(X, y, [0, 10], row_bound=1.0, classes=[-1, 1])
        run(
            data, clip=1.0, loss=dpk.losses.SmoothedHinge(h=0.5), prox_step=gamma, l2=0.0,
            relaxation=lam, rounds=200, rng=0,
        )  # fmt: skip
        states.append([values[0] for values, _, _ in seen])
        D = seen[-1][1][0]
        seen.clear()
    apart = [np.linalg.norm(a - b) for a, b in zip(*states, strict=True)]
    one_round = 2.0 * lam * gamma * 2.0 / 10
    assert apart[0] == pytest.approx(one_round, rel=1e-6)
    assert apart[-1] == pytest.approx(one_round / (2.0 * lam), rel=1e-6)
    assert 0.97 * D < apart[-1] <= D


# -------------------------------------------------------------------------------- schedules

SCHEDULES = {
    "federated": {"mode": "federated", "participation": 2},
    "capped": {"mode": "federated", "participation": 2, "max_participations": 3},
    "messages": {"mode": "federated", "participation": 2, "trust": "silo", "relaxation": 0.8},
    "token": {"mode": "token", "trust": "silo", "max_participations": 3},
}


@pytest.fixture(params=SCHEDULES)
def scheduled(request):
    return SCHEDULES[request.param]


@for_each("weights", ["size", "uniform"])
@for_each("how", ["federated", "messages", "token"])
def test_silos_by_a_schedule_reach_the_optimum_too(how, weights):
    data, options = make_data(intercept=True), SCHEDULES[how] | {"max_participations": None}
    result = run(
        data, budget=None, clip=None, weights=weights, rounds=4000, l2=0.1, prox_step=0.4, rng=3,
        **options,
    )  # fmt: skip
    objective = Objective(data, dpk.losses.get_loss("logistic"), l2=0.1, weights=weights)
    w, _ = objective.minimum()
    np.testing.assert_allclose(result.w, w, atol=1e-5)


@pairwise(
    strength=3,
    scheduled=SCHEDULES,
    weights=["size", "uniform"],
    i=[0, 45],
    size=[1e-3, 10.0, 1e5],
    seed=[0, 1],
)
def test_values_of_scheduled_neighbours_part_by_their_sensitivity_and_only_in_their_rounds(
    scripted, data, scheduled, weights, i, size, seed
):
    seen, scripted_size = scripted
    scripted_size[0], runs = size, []
    for neighbour in neighbours(data, i):
        result = run(
            neighbour, rng=seed, weights=weights, loss=dpk.losses.SmoothedHinge(h=0.5), **scheduled
        )
        runs.append(seen.copy())
        seen.clear()
    silo = int(np.searchsorted(data.offsets, i, side="right")) - 1
    releases = result.privacy.releases
    assert len({(release.series, release.per_record) for release in releases}) == 1
    assert sum(release.times for release in releases) == len(runs[0])
    recorded = max(np.max(release.sensitivity) for release in releases)
    parted = 0
    for (a, D, bound), (b, *_) in zip(*runs, strict=True):
        apart = [square(x - y) for x, y in zip(a, b, strict=True)]
        assert np.flatnonzero(apart).tolist() in ([silo], [])
        assert apart[silo] <= Fraction(D[silo]) ** 2
        assert D[silo] < recorded
        assert max(np.abs(a).max(), np.abs(b).max()) <= bound
        # Who does not take part sends nothing.
        assert sum(bool(row.any()) for row in a) <= scheduled.get("participation", 1)
        parted += bool(apart[silo])
    assert 0 < parted <= releases[0].per_record


@pytest.mark.parametrize("seed", range(5))
def test_a_schedules_budget_is_that_of_its_busiest_silo(data, scheduled, seed):
    certificate = run(data, rng=seed, **scheduled).privacy
    most, releases = scheduled.get("max_participations", 12), certificate.releases
    assert releases[0].per_record <= min(most, sum(release.times for release in releases))
    assert certificate.mu == pytest.approx(recomputed_mu(certificate, 3), rel=1e-12)
    assert BUDGET.mu * (1.0 - 1e-9) <= certificate.mu <= BUDGET.mu * (1.0 + 1e-12)


def test_a_change_costs_twice_the_share_of_a_state_that_goes():
    """p_j 2 (2 lam) e: not more than states of any past can part by in a round."""
    runs = public(step_sizes=(0.2,) * 40, l2=4.0)
    how = {"keep": 0.6, "take": 0.4, "weights": [1.0, 0.5]}
    whole, changes = runs.hidden_states(8.0, **how), runs.hidden_states(8.0, changes=True, **how)
    np.testing.assert_allclose(changes, np.multiply(whole, 2.0 * 0.4), rtol=1e-9)


def test_a_change_can_be_twice_the_share_of_a_state_that_goes(monkeypatch):
    """Two records whose gradients' difference turns round with the model, as hidden states lag."""
    seen, release = [], GaussianMessages.release

    def spy(mechanism, values, **bounds):
        release(mechanism, values, **bounds)
        seen.append(values[0].copy())
        return np.array([0.0, {1: 1.0, 40: -100.0}.get(len(seen), 0.0)])

    monkeypatch.setattr(GaussianMessages, "release", spy)
    changes = []
    for tilt in (0.1, -0.1):
        data = dpk.SiloData(
            np.array([[1.0, tilt]]), [0.0], [0, 1], row_bound=1.1, task="regression"
        )
        result = run(
            data, loss="squared", clip=1e-3, l2=0.0, rounds=41, mode="federated", participation=1,
            prox_step=0.01, relaxation=0.3, rng=0,
        )  # fmt: skip
        changes.append(seen.copy())
        seen.clear()
    charged = max(release.sensitivity for release in result.privacy.releases)
    apart = np.linalg.norm(np.subtract(*changes), axis=1)
    assert apart.max() <= charged
    assert apart[-1] > 0.95 * charged


@pytest.mark.parametrize("mode", ["federated", "token"])
def test_models_that_outgrow_the_float_terms_are_refused_and_named(scripted, data, mode):
    """Nothing of them is released; nearer ones are charged for their own round's terms."""
    scripted[1][0] = 2.0**60
    with pytest.raises(ValueError, match=r"floating-point errors|no grid serves") as caught:
        run(data, rng=0, **SCHEDULES[mode])
    assert any("released before" in note for note in caught.value.__notes__)


# ------------------------------------------------------------------- what leaves, and its price


def test_the_model_is_a_function_of_the_silos_messages(data, monkeypatch):
    calls = spy_on_calls(monkeypatch, GaussianMessages, "release")
    lam, l2 = 0.8, 0.05
    result = run(data, trust="silo", relaxation=lam)
    gamma = result.parameters["prox_step"]
    states, z, p = np.zeros((3, 4)), np.zeros(4), np.array(SIZES) / sum(SIZES)
    for call in calls:
        states = (1.0 - 2.0 * lam) * states + 2.0 * lam * z + call.result
        z = p @ states / (1.0 + gamma * l2)
    np.testing.assert_allclose(result.w, z, rtol=1e-9, atol=1e-12)


def test_noise_is_that_of_one_record_of_the_silo_and_falls_with_its_size():
    """D_j to float terms: 2 lam (2 C / n_j) E_K; p_j (2 C / n_j) gamma sqrt(1 + gamma L / 2)."""
    data = make_data(sizes=(1000, 100, 10))
    gamma, L = 0.01, 0.25 * 9.0
    E = gamma * (1.0 - (gamma * L / (1.0 + gamma * L)) ** 20)
    sizes = np.array([1000.0, 100.0, 10.0])
    how = {"prox_step": gamma, "rounds": 1, "rng": 0}
    (silo,) = run(data, trust="silo", relaxation=0.3, **how).privacy.releases
    np.testing.assert_allclose(silo.sensitivity, 0.6 * 2.0 * CLIP / sizes * E, rtol=1e-3)
    for weights, p in (("size", sizes / 1110.0), ("uniform", 1.0 / 3.0)):
        (central,) = run(data, weights=weights, **how).privacy.releases
        expected = max(p * 2.0 * CLIP / sizes * gamma * math.sqrt(1.0 + gamma * L / 2.0))
        assert central.sensitivity == pytest.approx(expected, rel=1e-3)


@for_each(
    ("bad", "message"),
    [
        ({"users": "people"}, "users must be 'records' or 'silos'"),
        ({"users": "records", "local_steps": 5}, "local_steps needs users='silos'"),
        ({"users": "records", "weights": "uniform"}, "weights"),
        ({"users": "records", "trust": "silo"}, "trust"),
        ({"trust": "local"}, "trust='local' needs users='records'"),
        ({"mode": "federated"}, "needs participation"),
        (
            {"mode": "federated", "participation": 4},
            "participation must be at most the 3 users",
        ),
        ({"mode": "token"}, "mode='token' needs trust='silo'"),
        ({"calibration": "paper"}, "needs users='records'"),
        ({"relaxation": 0.51}, "at most 1/2"),
        ({"prox_step": 4.0}, r"prox_step must be below 1 / L .* or local_steps larger"),
    ],
)
def test_bad_argument_is_refused_by_name_before_any_release(data, bad, message):
    assert_refused(message, run, data, **bad)


@ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[ctypes.POINTER(ctypes.c_double)] * 5, ctypes.c_void_p)
def silent(n, y, z, value, d1, d2, params):
    pass


@for_each("trust", TRUSTS)
@for_each("budgeted", [True, False])
def test_inner_steps_need_a_row_bound_and_a_bounded_second_derivative(trust, budgeted):
    how = {"trust": trust, "prox_step": 0.1, **({} if budgeted else {"budget": None})}
    with pytest.raises(ValueError, match="row_bound"):
        run(make_data(row_bound=None), **how)
    with pytest.raises(ValueError, match="bounded second derivative"):
        run(make_data(), loss=dpk.losses.Custom(scipy.LowLevelCallable(silent)), **how)


def test_a_loss_without_convexity_has_no_prox(data):
    loss = dpk.losses.Custom(scipy.LowLevelCallable(silent), convex=False, smoothness=1.0)
    with pytest.raises(ValueError, match="loss must be convex"):
        run(data, loss=loss)


def test_long_prox_steps_need_inner_solves_that_end_near_their_prox(data):
    run(data, trust="silo", prox_step=4.0, relaxation=1.0)
    run(data, prox_step=4.0, local_steps=150)
