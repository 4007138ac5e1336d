"""Solvers with local steps: calibration, what one record moves, what is refused."""

import dataclasses
import math
import signal
import sys
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import BUDGET, assert_refused, make_silos, spy_on, spy_on_calls, square

import dpkern as dpk
from dpkern.models.penalties import PL
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.last_iterate import LastIterate, last_iterate_factor
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity.grids import choose_grid
from dpkern.privacy.sensitivity.local_runs import LocalRuns
from dpkern.solvers import Objective
from dpkern.solvers.base.backends import interruptible

SIZES = (20, 60, 80)
CLIP, DELTA = 0.7, 1e-5


def silos(seed=0, sizes=SIZES, **options):
    options = {"row_bound": 1.0, "intercept": True} | options
    return make_silos(sizes, 3, seed=seed, noise=0.0, **options)


def run(name, data, **options):
    options = {"budget": BUDGET, "clip": CLIP, "l2": 0.1} | options
    return dpk.solve(name, data, **options)


def weights_of(options, sizes=SIZES):
    if options.get("weights", "size") == "size":
        return np.array(sizes) / sum(sizes)
    return np.full(len(sizes), 1 / len(sizes))


def carried(eta, K, l2=0.1, L=0.25):
    """E_K of equal steps, in floating point and by its definition."""
    c, E = max(abs(1 - eta * l2), abs(1 - eta * (L + l2))), 0.0
    for _ in range(K):
        E = c * E + eta
    return E, c


# (solver, options, releases): hidden steps, noisy steps, last iterates
HIDDEN = [
    ("federated_gd", {"rounds": 4, "local_steps": 5}, 4),
    ("federated_gd", {"rounds": 4, "local_steps": 5, "weights": "uniform"}, 4),
    ("wd_dp", {"local_steps": 20}, 1),
    ("wd_dp", {"local_steps": 20, "weights": "uniform"}, 1),
    ("output_perturbation", {"local_steps": 20}, 1),
    ("output_perturbation", {"local_steps": 20, "weights": "uniform"}, 1),
]
MODELS = [("output_perturbation", {"local_steps": 20, "trust": "silo"}, 1)]
NOISY = [
    ("federated_gd", {"rounds": 4, "local_steps": 5, "trust": "silo"}, 20),
    ("federated_gd", {"rounds": 4, "trust": "silo"}, 4),
    ("wd_dp", {"local_steps": 20, "trust": "silo", "weights": "uniform"}, 20),
]
LAST = [
    ("federated_gd", {"rounds": 4, "local_steps": 5, "trust": "silo",
                      "accounting": "last_iterate"}, 4),
    ("federated_gd", {"rounds": 4, "trust": "silo", "accounting": "last_iterate"}, 4),
    ("wd_dp", {"local_steps": 20, "trust": "silo", "accounting": "last_iterate"}, 1),
]  # fmt: skip


@for_each("eta", [0.5, 5.0, 6.5])
@for_each(("name", "options", "releases"), HIDDEN + MODELS)
def test_noise_on_hidden_steps_is_that_of_the_largest_weighted_silo(name, options, releases, eta):
    """D = max_j p_j (2C/n_j) E_K, std D sqrt(releases)/mu; 6.5 is beyond 2/(L + l2)."""
    certificate = run(name, silos(), step_size=eta, **options).privacy
    p = weights_of(options) if (name, options, releases) in HIDDEN else np.ones(3)
    E, _ = carried(eta, options["local_steps"])
    nominal = p * 2 * CLIP / np.array(SIZES) * E
    for release in certificate.releases:
        charged, std = np.array(release.sensitivity), np.array(release.std)
        nominal = nominal if charged.ndim else nominal.max()
        assert np.all(charged >= nominal)
        np.testing.assert_allclose(charged, nominal, rtol=1e-3)
        np.testing.assert_allclose(std, charged * math.sqrt(releases) / BUDGET.mu, rtol=1e-9)
    assert "hidden" in " ".join(certificate.notes)


@for_each(("name", "options", "releases"), NOISY)
def test_noise_of_every_local_step_composes_over_all_of_them(name, options, releases):
    (release,) = run(name, silos(), **options).privacy.releases
    assert release.sensitivity == (2 * CLIP,) * 3
    np.testing.assert_allclose(release.std, 2 * CLIP * math.sqrt(releases) / BUDGET.mu, rtol=1e-9)
    assert release.n_draws == releases * 3 * 4


@for_each(("name", "options", "releases"), LAST)
def test_last_iterates_need_less_noise_than_all_of_them(name, options, releases):
    ledger = run(name, silos(), step_size=1.0, **options).privacy.releases
    K = options.get("local_steps", 1)
    mu = BUDGET.mu / math.sqrt(releases)
    _, c = carried(1.0, K)
    factor = last_iterate_factor(Fraction(c), K)
    nominal = 2 * CLIP / np.array(SIZES) * factor
    for release in ledger:
        charged = np.array(release.sensitivity)
        assert np.all(charged >= nominal)
        np.testing.assert_allclose(charged, nominal, rtol=2e-3)
        np.testing.assert_allclose(release.std, charged / mu, rtol=1e-9)
    assert sum(release.n_draws for release in ledger) == releases * K * 3 * 4
    assert K == 1 or factor < 0.995 * math.sqrt(K)


def test_every_round_of_last_iterates_is_charged_for_its_own_steps():
    """Steps that grow from round to round, with the certificate of the first, would move more."""
    options = {"rounds": 2, "local_steps": 2, "trust": "silo", "accounting": "last_iterate"}
    for etas in ([0.1, 0.1, 2.0, 2.0], [2.0, 2.0, 0.1, 0.1]):
        ledger = run("federated_gd", silos(), step_size=etas, **options).privacy.releases
        assert len(ledger) == 2
        for release, eta in zip(ledger, etas[::2], strict=True):
            factor = last_iterate_factor(Fraction(carried(eta, 2)[1]), 2)
            nominal = eta * 2 * CLIP / np.array(SIZES) * factor
            assert np.all(np.array(release.sensitivity) >= nominal)
            np.testing.assert_allclose(release.sensitivity, nominal, rtol=1e-3)


def test_steps_of_the_theorem_count_local_steps_and_their_period():
    for K in (1, 4, 100):
        result = run("federated_gd", silos(), budget=None, rounds=3, local_steps=K,
                     step_size="theorem")  # fmt: skip
        L = 0.25 * (1 + 2.0**-40) + 0.1
        gamma = max(8 * L / 0.1 - 1, K)
        steps = 2 / (0.1 * (np.arange(1, 3 * K + 1) + gamma))
        np.testing.assert_allclose(
            result.history["step_size"], steps.reshape(3, K).sum(axis=1), rtol=1e-12
        )
        assert steps[0] <= 1 / (4 * L)


# --------------------------------------------------------------------------- the papers' noise


@for_each("K", [2, 10])
def test_paper_noise_of_hidden_steps_certifies_the_composition_of_every_silo(K):
    options = {"rounds": 3, "local_steps": K, "calibration": "paper", "weights": "uniform"}
    certificate = run("federated_gd", silos(), **options).privacy
    s = math.sqrt(8 * 3 * K * math.log(1 / DELTA)) * CLIP / (3 * 20)
    assert certificate.mu == pytest.approx(2 * CLIP * math.sqrt(3 * K) / (20 * s), rel=1e-9)
    assert certificate.bound == "upper"
    assert certificate.claimed == {"epsilon": 1.0, "delta": DELTA}
    assert "at most" in str(certificate)


def test_paper_noise_of_wd_dp_certifies_the_composition_of_every_silo():
    certificate = run("wd_dp", silos(), local_steps=30, calibration="paper").privacy
    N, half = sum(SIZES), 0.5
    s = math.sqrt(8 * 30 * math.log(2 / DELTA)) * CLIP / (N * half)
    assert certificate.mu == pytest.approx(2 * CLIP * math.sqrt(30) / (20 * s), rel=1e-9)
    assert certificate.bound == "upper"
    steps, weight = certificate.releases
    np.testing.assert_allclose(steps.std, np.array(SIZES) * s, rtol=1e-12)
    assert weight.sensitivity == 0.0
    assert weight.std == pytest.approx(math.sqrt(8 * math.log(2 / DELTA)) / (N * half))


def test_paper_weight_noise_is_one_number_for_all_silos(monkeypatch):
    """sum_j (p_j + z_w) theta_j."""
    theta = np.arange(12.0).reshape(3, 4)
    monkeypatch.setattr(GaussianSum, "release_steps", lambda *_: theta)
    w = run("wd_dp", silos(), calibration="paper", rng=0).w
    z = (w - np.array(SIZES) / sum(SIZES) @ theta) / theta.sum(axis=0)
    np.testing.assert_allclose(z, z[0], rtol=1e-9)
    assert z[0] != 0.0


def test_paper_noise_of_output_perturbation_is_laplace_and_certifies_nothing():
    options = {"calibration": "paper", "local_steps": 10, "weights": "uniform"}
    certificate = run("output_perturbation", silos(), **options).privacy
    assert certificate.mu == math.inf
    assert (certificate.arithmetic, certificate.claimed["epsilon"]) == ("float", 1.0)
    scale = 2 * CLIP / (3 * 20 * 0.1)
    assert certificate.releases[0].std == pytest.approx(math.sqrt(2) * scale)
    clean = run("output_perturbation", silos(), budget=None, local_steps=10, weights="uniform").w
    draws = np.array([
        run("output_perturbation", silos(), rng=seed, **options).w - clean for seed in range(200)
    ])  # fmt: skip
    spread = np.mean(np.abs(draws)) / scale
    assert abs(spread - 1.0) < 5 / math.sqrt(draws.size)
    kurtosis = np.mean(draws**4) / np.mean(draws**2) ** 2
    assert kurtosis > 4.0  # 6 of the Laplace distribution, 3 of the normal one


# --------------------------------------------------------------------- noise of the result


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "options", "releases"), [HIDDEN[2], HIDDEN[4], *MODELS])
def test_noise_of_the_model_has_the_calibrated_deviation(name, options, releases):
    data, eta, total = silos(), 1.0, dpk.Budget(mu=2.0)
    options = {**options, "step_size": eta}
    clean = run(name, data, budget=None, **options).w
    p = weights_of(options)
    moved = 2 * CLIP / np.array(SIZES) * carried(eta, 20)[0]
    if options.get("trust") == "silo":
        std = np.sqrt(np.sum((p * moved) ** 2)) / total.mu
    else:
        std = np.max(p * moved) / total.mu
    draws = np.array([
        run(name, data, budget=total, rng=seed, **options).w - clean for seed in range(200)
    ])  # fmt: skip
    assert np.mean(draws**2) == pytest.approx(std**2, rel=5 * math.sqrt(2 / draws.size))
    assert np.all(np.abs(np.mean(draws, axis=0)) < 5 * std / math.sqrt(len(draws)))


@pytest.mark.statistical
def test_noise_of_steps_has_the_deviation_that_steps_carry():
    """On flat losses the model's noise is the sum of the steps', the last iterate's likewise."""
    X = np.zeros((60, 3))
    data = dpk.SiloData(X, np.tile([1.0, -1.0], 30), [0, 20, 60], row_bound=1.0)
    total, eta, K, c = dpk.Budget(mu=1.0), 0.5, 8, 0.95
    carried = math.sqrt(sum(c ** (2 * k) for k in range(K)))
    p, n = np.array([1 / 3, 2 / 3]), np.array([20.0, 40.0])
    steps = eta * 2 * CLIP * math.sqrt(K) / n
    last = eta * 2 * CLIP / n * last_iterate_factor(Fraction(c), K)
    for accounting, unit in (("composition", steps), ("last_iterate", last)):
        draws = np.array([
            run("wd_dp", data, budget=total, local_steps=K, step_size=eta, trust="silo",
                accounting=accounting, rng=seed).w
            for seed in range(150)
        ])  # fmt: skip
        std = carried * np.sqrt(np.sum((p * unit) ** 2))
        assert np.mean(draws**2) == pytest.approx(std**2, rel=5 * math.sqrt(2 / draws.size))


def test_last_iterates_are_within_the_bound_that_they_are_charged_for(monkeypatch):
    """W bounds the iterates of every silo with its own noise."""
    used = {}
    original = LocalRuns.step_sensitivity

    def step_sensitivity(self, n, W, grid):
        used[n] = self, W
        return original(self, n, W, grid)

    monkeypatch.setattr(LocalRuns, "step_sensitivity", step_sensitivity)
    options = {"rounds": 1, "local_steps": 4, "trust": "silo", "accounting": "last_iterate"}
    result = run("federated_gd", silos(), step_size=1.0, rng=1, **options)
    (release,) = result.privacy.releases
    for n, sigma in zip(SIZES, release.std, strict=True):
        runs, W = used[n]
        assert runs.noisy_iterate_bound(0.0, sigma) <= W


def test_a_small_silo_changes_nothing_of_a_large_ones_last_iterates():
    how = {"clip": 1.0, "dim": 200, "step_sizes": (0.01,) * 100, "loss_smoothness": 0.25}
    how |= {"loss_kappa": 8.0, "row_bound": 1.0, "l2": 0.1, "curvature": (0.0, 0.0)}
    channel = Channel(Ledger(), dpk.NoiseStream(1), SEEN_BY["silo"])
    both, alone = (
        LastIterate(channel, mu=0.01, runs=LocalRuns(sizes=sizes, **how))
        for sizes in ((10, 5_000_000), (5_000_000,))
    )
    assert both._calibrated(5_000_000, 1.0) == alone._calibrated(5_000_000, 1.0)


def test_local_steps_of_one_silo_are_gradient_descent():
    data = silos(sizes=(160,))
    how = {"budget": None, "l1": 0.01, "penalty": PL(0.02)}
    plain = run("gradient_descent", data, rounds=60, momentum=0.0, **how)
    for name, options in (
        ("federated_gd", {"rounds": 6, "local_steps": 10}),
        ("wd_dp", {"local_steps": 60}),
        ("output_perturbation", {"local_steps": 60}),
    ):
        for trust in ("central", "silo"):
            result = run(name, data, trust=trust, **how, **options)
            np.testing.assert_allclose(result.w, plain.w, rtol=1e-9, atol=1e-12)


def test_falling_steps_of_different_silos_reach_the_common_optimum():
    data = silos()
    result = run("federated_gd", data, budget=None, clip=None, rounds=3000, local_steps=5,
                 step_size="theorem")  # fmt: skip
    objective = Objective(data, dpk.losses.Logistic(), l2=0.1)
    w, _ = objective.minimum()
    np.testing.assert_allclose(result.w, w, atol=2e-3)
    one = run("wd_dp", data, budget=None, clip=None, local_steps=3000)
    assert np.max(np.abs(one.w - w)) > 5e-3  # the price of one communication


# ---------------------------------------------------------------- what one record moves


@for_each(("name", "options", "releases"), HIDDEN + MODELS)
@for_each("extra", [{}, {"l1": 0.05}, {"penalty": PL(0.05)}])
def test_neighbours_with_equal_noise_release_bits_within_the_ledgers_sensitivity(
    name, options, releases, extra
):
    """Opposite records that saturate the clip, in every silo in turn; same seed, same noise."""
    options = options | {"rounds": 1} if name == "federated_gd" else options
    plain, largest = extra == {}, Fraction(0)
    for j, i in enumerate((0, 20, 80)):
        models = []
        for sign in (1.0, -1.0):
            data = silos(intercept=False, task="regression")
            X, y = data.X.copy(), data.y.copy()
            X[i], y[i] = (50.0, 0.0, 0.0), sign * 1e6
            if plain:  # nobody else has curvature along it
                X[:i, 0] = X[i + 1 :, 0] = 0.0
            other = dpk.SiloData(X, y, data.offsets, row_bound=1.0, task="regression")
            result = run(name, other, rng=3, loss="squared", step_size=0.3, **options, **extra)
            models.append(result.w)
        (release,) = result.privacy.releases
        most = release.sensitivity
        p = weights_of(options)[j]
        most = Fraction(most[j]) * Fraction(p) if isinstance(most, tuple) else Fraction(most)
        moved = square(*models)
        assert moved <= most**2 * (1 + Fraction(1, 10**9))
        largest = max(largest, moved / most**2)
    assert not plain or largest > Fraction(99, 100)


def test_messages_of_the_sum_carry_their_weights_and_those_of_silos_do_not(monkeypatch):
    data, spied = silos(), spy_on(monkeypatch, GaussianMessages)
    for trust, weights in (("central", weights_of({})), ("silo", np.ones(3))):
        for name in ("wd_dp", "output_perturbation"):
            if (name, trust) == ("wd_dp", "silo"):
                continue
            spied.clear()
            how = {"local_steps": 50, "step_size": 2.5}
            run(name, data, trust=trust, weights="size", **how)
            ((_, values, _),) = spied
            theta = dpk.kernels.glm_local_descent(
                data, np.zeros(4), loss="logistic", clip=CLIP, steps=50, l2=0.1, step_size=2.5
            )
            np.testing.assert_allclose(values, weights[:, np.newaxis] * theta, rtol=1e-9)


# ------------------------------------------------------- what the kernel is asked to compute


@pytest.fixture
def descents(monkeypatch):
    """Every local run."""
    return spy_on_calls(monkeypatch, dpk.kernels, "glm_local_descent")


@pytest.mark.parametrize(("name", "options", "releases"), HIDDEN + MODELS + LAST)
def test_steps_and_grids_are_those_that_the_sensitivity_was_proved_for(
    descents, name, options, releases
):
    """One grid for each silo from its own size: a common or default one rounds more."""
    data = silos()
    run(name, data, step_size=0.5, **options)
    grids = [choose_grid(n=n, clip=CLIP, dim=4) for n in SIZES]
    K = options.get("local_steps", 1)
    last = options.get("accounting") == "last_iterate"
    assert len(descents) == releases * (K if last else 1)
    for call in descents:
        np.testing.assert_array_equal(call.how["grid"], grids)
        np.testing.assert_array_equal(call.how["step_size"], [0.5] * (1 if last else K))
        assert call.how["steps"] == len(call.how["step_size"])
        assert call.how.get("sigma") is None


@pytest.mark.parametrize(("name", "options", "releases"), NOISY)
def test_noise_of_local_steps_is_on_the_grid_of_their_sums(descents, name, options, releases):
    result = run(name, silos(), **options)
    (release,) = result.privacy.releases
    for call in descents:
        np.testing.assert_array_equal(call.how["grid"], release.grid)
        np.testing.assert_array_equal(call.how["sigma"], release.std)
        assert isinstance(call.how["rng"], dpk.NoiseStream)


@dataclasses.dataclass(frozen=True)
class NotConvex(dpk.losses.Logistic):
    """The logistic loss, said not to be convex."""

    convex = False


def test_losses_without_convexity_are_charged_their_expansion_and_never_contract():
    eta, L, l2 = 0.5, 0.25, 0.1
    (release,) = run("wd_dp", silos(), loss=NotConvex(), step_size=eta, local_steps=20,
                     weights="size").privacy.releases  # fmt: skip
    c = 1 + eta * (L - l2)
    E = eta * (c**20 - 1) / (c - 1)
    assert release.sensitivity == pytest.approx(2 * CLIP / sum(SIZES) * E, rel=1e-3)
    assert release.sensitivity > 2 * CLIP / sum(SIZES) * E
    with pytest.raises(ValueError, match="local steps that contract"):
        run("wd_dp", silos(), loss=NotConvex(), trust="silo", accounting="last_iterate")


@for_each(("name", "options", "releases"), HIDDEN + MODELS + LAST)
def test_hidden_steps_without_a_row_bound_are_refused_before_anything_is_released(
    name, options, releases
):
    assert_refused(
        "give the data a row_bound", run, name, silos(row_bound=None), step_size=0.1, **options
    )


@for_each(("name", "options", "releases"), NOISY)
def test_noise_at_every_step_needs_no_row_bound(name, options, releases):
    result = run(name, silos(row_bound=None), step_size=0.1, **options)
    assert result.privacy.epsilon(DELTA) <= 1.0


STEPS = {"local_steps": 5}
SILO = {"trust": "silo", "accounting": "last_iterate"}
REFUSED = [
    ("federated_gd", {"neighbours": "add_remove", **STEPS}, "neighbours"),
    ("federated_gd", {"accounting": "last_iterate", **STEPS}, "needs trust='silo'"),
    ("federated_gd", {"accounting": "both", **STEPS}, "accounting must be 'composition' or"),
    ("federated_gd", {"calibration": "paper", "trust": "silo"}, "needs trust='central'"),
    ("wd_dp", {"calibration": "paper", "trust": "silo"}, "needs trust='central'"),
    ("output_perturbation", {"calibration": "paper", "l2": 0.0}, "l2 must be"),
    ("federated_gd", SILO | STEPS | {"l2": 0.0}, "local steps that contract"),
    ("federated_gd", SILO | STEPS | {"penalize_intercept": False}, "local steps that contract"),
    ("federated_gd", SILO | STEPS | {"step_size": "theorem"}, "step_size must be one number"),
    ("federated_gd", SILO | {"rounds": 2, "local_steps": 2, "step_size": [0.1, 0.1, 0.1, 0.2]},
     "step_size must be one number"),
    ("federated_gd", SILO | {"rounds": 2, "step_size": [0.1, 19.9]}, "local steps that contract"),
    ("wd_dp", SILO | {"penalty": PL(0.1)}, "local steps that contract"),
    ("wd_dp", {"step_size": 30.0}, r"at most 2 / 0.1, "),
    ("wd_dp", {"step_size": [0.1, 0.2]}, "one number or 600, one a step"),
    ("wd_dp", {"penalty": PL(1.0), "step_size": 0.2, "local_steps": 5000},
     "exceeds every double"),
]  # fmt: skip


@for_each(("name", "options", "cause"), REFUSED)
def test_what_no_bound_covers_is_refused_by_name_before_anything_is_released(name, options, cause):
    assert_refused(cause, run, name, silos(), **options)


@for_each("calibration", ["sound", "paper"])
@for_each("name", ["federated_gd", "wd_dp"])
def test_last_iterates_are_refused_where_they_would_not_be_charged(name, calibration):
    with pytest.raises(ValueError, match="accounting='last_iterate' needs trust='silo'"):
        run(name, silos(), accounting="last_iterate", calibration=calibration, local_steps=2)


@for_each("accounting", ["composition", "last_iterate"])
def test_an_intercept_of_targets_is_penalised_where_steps_must_contract(accounting):
    data = silos(task="regression", target_bound=3.0)
    how = {"trust": "silo", "rounds": 2, "local_steps": 3, "accounting": accounting}
    result = run("federated_gd", data, loss="squared", **how)
    assert result.parameters["penalize_intercept"] is (accounting == "last_iterate")
    assert result.privacy.declared["penalize_intercept"] is (accounting == "last_iterate")
    assert dpk.verify(result.privacy.to_dict()).ok


# ------------------------------------------------------------------ Ctrl-C during compiled calls


@for_each(
    ("name", "options"),
    [
        ("wd_dp", {"local_steps": 7}),
        ("wd_dp", {"local_steps": 7, "trust": "silo"}),
        ("output_perturbation", {}),
        ("federated_gd", {"rounds": 2, "local_steps": 5}),
        ("local_sgd", {"rounds": 2, "local_steps": 3, "sampling": "cyclic", "batch_size": 4}),
        ("admm", {"users": "silos", "rounds": 2, "local_steps": 3}),
        ("local_newton", {"rounds": 2, "clip": 1.0, "hess_clip": 1.0}),
    ],
)
def test_divided_and_awaited_calls_have_the_bits_of_one(monkeypatch, name, options):
    expected = run(name, silos(), rng=3, **options)
    module = "dpkern.solvers.base.backends"
    monkeypatch.setattr(f"{module}._LONG", 0)
    monkeypatch.setattr("dpkern.solvers.releases.local_runs.CALL_ENTRIES", 2 * 4 * sum(SIZES))
    assert run(name, silos(), rng=3, **options) == expected
    how = {"budgets": BUDGET, "clip": 1.0, "rng": [3, 3], "draws": 2, **options}
    awaited = dpk.solve_many(name, silos(), **how)
    monkeypatch.undo()
    assert list(awaited) == list(dpk.solve_many(name, silos(), **how))


@pytest.fixture
def ctrl_c():
    """A function that sends SIGINT in a moment; workers of pytest-xdist ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    yield timer.start
    timer.cancel()  # of a test that failed before
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_passes_of_runs_in_lockstep(monkeypatch, ctrl_c):
    """By their number together, where one run alone would not be awaited."""
    ended = []

    def slow(requests):
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(10.0)
        ended.append(True)

    monkeypatch.setattr("dpkern.solvers.base.backends._of_pass", slow)
    monkeypatch.setattr("dpkern.solvers.base.backends._LONG", 20 * 4 * sum(SIZES))
    ctrl_c()
    how = {"budgets": BUDGET, "draws": 20, "clip": 1.0, "rounds": 1}
    with pytest.raises(KeyboardInterrupt):
        dpk.solve_many("gradient_descent", silos(), **how)
    assert not ended


class Slow(dpk.Oracle):
    """A model whose gradients are one call that looks at no signals."""

    name = "slow"
    ended = False

    def dim(self, data):
        return data.n_features

    def gradients(self, w, X, y):
        assert threading.current_thread() is not threading.main_thread()
        time.sleep(10.0)
        self.ended = True

    def outputs(self, w, X):
        return X @ w


def test_ctrl_c_ends_gradients_of_a_users_model(ctrl_c):
    ctrl_c()
    model, how = Slow(), {"rounds": 1, "step_size": 0.1}
    with pytest.raises(KeyboardInterrupt):
        run("minibatch_sgd", silos(intercept=False), model=model, **how)
    assert not model.ended


@for_each(("d", "long"), [(100, False), (700, True)])
def test_eigenvalues_of_large_matrices_are_awaited(d, long):
    def where(H):
        return threading.current_thread() is not threading.main_thread()

    assert interruptible(where, np.ones((1, d, d))) == long


def test_a_progress_bar_needs_no_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    run("gradient_descent", silos(), rounds=2, progress=True)


@pytest.mark.parametrize("steps", [None, 100])
def test_ctrl_c_ends_a_run_within_long_calls(monkeypatch, ctrl_c, steps):
    """Also one that cannot be divided, by a kernel that takes ten seconds here."""
    kernel, calls, ended = dpk.kernels.glm_local_descent, [], []

    def slow(data, w, *, steps, **how):
        calls.append(steps)
        time.sleep(0.1 * steps)
        ended.append(steps)
        return kernel(data, w, steps=steps, **how)

    monkeypatch.setattr(dpk.kernels, "glm_local_descent", slow)
    if steps is None:
        monkeypatch.setattr("dpkern.solvers.releases.local_runs.CALL_ENTRIES", 1)
    else:
        monkeypatch.setattr("dpkern.solvers.base.backends._LONG", 0)
    ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        run("wd_dp", silos(), local_steps=steps or 100, trust="silo" if steps else "central")
    assert max(calls) == (steps or 1)
    assert len(ended) < (1 if steps else 50)
