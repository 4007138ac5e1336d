"""Noise on models and averages: grid, sensitivity with rounding, ledger, last iterates."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused

import dpkern as dpk
from dpkern import kernels
from dpkern.privacy import Certificate, NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.last_iterate import LastIterate, last_iterate_factor
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.privacy.sensitivity import local_runs
from dpkern.privacy.sensitivity.grids import choose_message_grid
from dpkern.privacy.sensitivity.local_runs import LocalRuns

magnitudes = st.floats(-60, 60).map(lambda e: 10.0**e)


@settings(max_examples=300, deadline=None)
@given(
    D=magnitudes,
    ratio=st.floats(-12, 12).map(lambda e: 10.0**e),
    reach=st.floats(0, 18).map(lambda e: 10.0**e),
    dim=st.integers(1, 10**6),
    m=st.integers(1, 1000),
)
def test_message_grid_serves_all_its_conditions_exactly(D, ratio, reach, dim, m):
    sigma, bound = D * ratio, D * reach
    try:
        q = choose_message_grid(sensitivity=D, sigma=sigma, bound=bound, dim=dim, messages=m)
    except ValueError:
        # the coarsest that adds less than a 32nd cannot hold the noise or the messages
        q = Fraction(2) ** math.floor(math.log2(D / 32) - math.log2(dim) / 2 + 1e-9)
        assert Fraction(sigma) > 2**32 * q / 2 or m * Fraction(bound) > 2**50 * q / 2
        return
    assert math.frexp(q)[0] == 0.5
    q = Fraction(q)
    assert Fraction(sigma) <= 2**32 * q
    assert m * Fraction(bound) <= 2**50 * q
    assert q**2 * dim * 1024 <= Fraction(D) ** 2
    fine = q**2 * dim * 2**24 <= Fraction(D) ** 2 and m * q * 2**9 <= Fraction(sigma)
    assert fine or Fraction(sigma) > 2**32 * q / 2 or m * Fraction(bound) > 2**50 * q / 2


class Still:
    """Stands in for the noise kernel: no noise, and a list of the calls."""

    def __init__(self):
        self.calls = []

    def __call__(self, shape, sigma, *, grid, rng):
        self.calls.append((shape, np.array(sigma), np.array(grid)))
        return np.zeros(shape)


@pytest.fixture
def still(monkeypatch):
    still = Still()
    monkeypatch.setattr(kernels, "gaussian", still)
    return still


def messages(mu=1.0, dim=3, per_silo=False):
    ledger = Ledger()
    made = GaussianMessages(
        Channel(ledger, NoiseStream(0), "all"), what="models", dim=dim, mu=mu, per_silo=per_silo,
    )  # fmt: skip
    return made, ledger


def exact_distance(a, b):
    return sum((Fraction(float(x)) - Fraction(float(y))) ** 2 for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("per_silo", [False, True])
@pytest.mark.parametrize("moved", [1e-3, 1.0])
def test_rounding_of_messages_is_charged_and_needs_to_be(still, per_silo, moved):
    """|v - v'| = D_v, and every coordinate crosses half a grid step more: D_v + q sqrt(d)."""
    d, m = 16, 3
    mechanism, ledger = messages(dim=d, per_silo=per_silo)
    D_v = [moved] * m
    mechanism.release(np.zeros((m, d)), sensitivity=D_v, bound=10.0)
    q = float(np.ravel(next(iter(ledger)).grid)[0])
    # differences a little below D_v / sqrt(d), placed across rounding boundaries
    half = math.floor(moved / math.sqrt(d) / q) * q
    ours = np.zeros((m, d))
    theirs = np.zeros((m, d))
    ours[1], theirs[1] = q / 2 * (1 + 1e-9) + half, q / 2 * (1 - 1e-9)
    ours[2] = theirs[2] = 0.7
    assert exact_distance(ours[1], theirs[1]) <= Fraction(moved) ** 2 * Fraction(1001, 1000)
    a, b = (
        np.atleast_2d(mechanism.release(v, sensitivity=D_v, bound=10.0)) for v in (ours, theirs)
    )
    (release,) = ledger
    D = Fraction(float(np.ravel(release.sensitivity)[0]))
    apart = exact_distance(a.ravel(), b.ravel())
    assert apart > exact_distance(ours[1], theirs[1])
    assert apart <= D**2
    charged = (D - Fraction(moved)) / Fraction(q)
    assert charged >= math.isqrt(d)
    assert math.sqrt(apart) - half * math.sqrt(d) == pytest.approx(q * math.sqrt(d), rel=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    mu=st.floats(-3, 2).map(lambda e: 10.0**e), D=magnitudes, m=st.integers(1, 5),
    per_silo=st.booleans(),
)  # fmt: skip
def test_certified_mu_of_messages_never_exceeds_the_budget_and_wastes_little(mu, D, m, per_silo):
    mechanism, ledger = messages(mu, per_silo=per_silo)
    moved = [D * (1 + j) for j in range(m)]
    mechanism.release(np.zeros((m, 3)), sensitivity=moved, bound=D * 100)
    squared = ledger.mu_squared()
    assert Fraction(mu) ** 2 * (1 - Fraction(1, 2**40)) < squared <= Fraction(mu) ** 2
    (release,) = ledger
    charged = np.atleast_1d(release.sensitivity)
    excess = charged / (moved if per_silo else max(moved))
    assert np.all(excess >= 1.0)
    assert np.all(excess < 1.0 + 2.0**-11)


def test_sum_of_messages_has_one_noise_and_equals_the_exact_sum_of_rounded_ones(still):
    mechanism, ledger = messages()
    values = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.5]])
    released = mechanism.release(values, sensitivity=[0.01, 0.02], bound=2.0)
    ((shape, sigma, grid),) = still.calls
    assert shape == (1, 3)
    (release,) = ledger
    assert (release.std, release.grid) == (sigma[0], grid[0])
    np.testing.assert_array_equal(released, (np.rint(values / grid) * grid).sum(axis=0))
    assert release.sensitivity >= 0.02
    assert values[0, 0] == 0.1


@for_each("per_silo", [False, True])
def test_every_message_has_noise_of_its_own_and_of_the_stated_std(per_silo):
    d, m = 5000, 3
    mechanism, ledger = messages(0.5, dim=d, per_silo=per_silo)
    released = mechanism.release(np.zeros((m, d)), sensitivity=[0.1, 0.2, 0.4], bound=1.0)
    (release,) = ledger
    noise = released.reshape(-1, d) / np.reshape(release.std, (-1, 1))
    assert len(noise) == (m if per_silo else 1)
    # A mean square of 5000 draws is off by 2 %, a correlation by 1.4 %, one in a million by 5 times
    # as much.
    np.testing.assert_allclose(np.mean(noise**2, axis=1), 1.0, atol=0.1)
    assert np.all(np.abs(noise @ noise.T / d - np.eye(len(noise))) < 0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300, 1.7e308])
def test_values_that_no_grid_holds_are_clamped_and_never_raise(still, bad):
    for per_silo, most in ((True, 2.0**50), (False, 2.0**51)):
        mechanism, ledger = messages(per_silo=per_silo)
        values = np.array([[bad, 0.0, 1.0], [bad, 0.0, 1.0]])
        released = mechanism.release(values, sensitivity=[0.1, 0.1], bound=2.0)
        assert np.all(np.isfinite(released))
        q = float(np.ravel(next(iter(ledger)).grid)[0])
        reached = np.max(np.abs(released)) / q
        assert reached <= most
        assert (reached < 1e6) == math.isnan(bad)


@for_each("bad", [math.nan, math.inf, -math.inf, 1.7e308])
def test_values_that_no_grid_holds_raise_no_floating_point_error(bad):
    """A user may turn warnings into errors: whether one comes would tell of the records."""
    mechanism, _ = messages(per_silo=True)
    iterates, _ = last()
    values = np.array([[bad, 0.0, 1.0], [1.0, 0.0, 1.0]])
    with np.errstate(all="raise"):
        released = mechanism.release(values, sensitivity=[0.1, 0.1], bound=2.0)
        theta = iterates.release(np.zeros(4), 1.0, lambda theta, t: np.full((2, 4), bad))
    assert np.all(np.isfinite(released))
    assert np.all(np.isfinite(theta))


def test_starts_of_their_own_have_a_sensitivity_of_their_own():
    mechanism, ledger = messages()
    for D in (0.1, 0.2, 0.1):
        mechanism.release(np.zeros((2, 3)), sensitivity=[D, D / 2], bound=1.0)
    assert [release.times for release in ledger] == [2, 1]
    assert ledger.mu_squared() <= 3


@for_each("per_silo", [False, True])
def test_without_a_budget_the_ledger_says_that_nothing_protects(per_silo):
    mechanism, ledger = messages(None, per_silo=per_silo)
    values = np.array([[0.1, 0.2, 0.3], [1.0, -1.0, 0.5]])
    released = mechanism.release(values)
    np.testing.assert_array_equal(released, values if per_silo else values.sum(axis=0))
    assert Certificate.from_ledger(ledger, trust="central", noise="os").mu == math.inf


def test_a_release_is_recorded_before_its_noise_is_drawn(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no entropy")

    monkeypatch.setattr(kernels, "gaussian", fails)
    mechanism, ledger = messages()
    with pytest.raises(RuntimeError):
        mechanism.release(np.zeros((2, 3)), sensitivity=[1.0, 1.0], bound=1.0)
    assert len(ledger) == 1
    with pytest.raises(ValueError, match="no grid serves: a message"):
        mechanism.release(np.zeros((2, 3)), sensitivity=[1.0, 1.0], bound=1e300)
    assert len(ledger) == 1


def runs(**changes):
    numbers = {
        "clip": 0.5, "dim": 4, "sizes": (50, 200), "step_sizes": (0.5,) * 10,
        "loss_smoothness": 0.25, "loss_kappa": 5.0, "row_bound": 1.0, "l2": 0.2,
    }  # fmt: skip
    return LocalRuns(**(numbers | changes))


def last(mu=0.3, **changes):
    ledger = Ledger()
    made = LastIterate(Channel(ledger, NoiseStream(0), "all"), mu=mu, runs=runs(**changes))
    return made, ledger


def test_last_iterates_spend_their_budget_on_the_steps_and_two_roundings():
    mechanism, ledger = last()
    theta = mechanism.release(np.zeros(4), 1.0, lambda theta, t: 0.5 * theta)
    (release,) = ledger
    assert ledger.mu_squared() <= Fraction(0.3) ** 2
    assert ledger.mu_squared() >= Fraction(0.3) ** 2 * (1 - Fraction(1, 2**40))
    assert release.n_draws == 10 * 2 * 4
    c = max(abs(1 - 0.5 * 0.2), abs(1 - 0.5 * 0.45))
    factor = last_iterate_factor(Fraction(c), 10)
    assert factor < math.sqrt(10)
    for j, n in enumerate((50, 200)):
        nominal = 0.5 * 2 * 0.5 / n
        moved = release.sensitivity[j] / factor
        assert moved >= nominal + 2 * release.grid[j] * 2.0  # sqrt(4)
        assert moved <= nominal * (1 + 2.0**-10)
        assert np.all(np.rint(theta[j] / release.grid[j]) * release.grid[j] == theta[j])


def test_every_step_starts_on_the_grid_and_has_fresh_noise():
    mechanism, ledger = last()
    seen = []

    def step(theta, t):
        seen.append((t, theta.copy()))
        return np.full((2, 4), 0.1)

    seen.append((10, mechanism.release(np.full(4, 0.3), 1.0, step)))
    (release,) = ledger
    q = np.array(release.grid)[:, np.newaxis]
    assert [t for t, _ in seen] == list(range(11))
    np.testing.assert_array_equal(seen[0][1], np.full((2, 4), 0.3))
    noise = np.array([theta - np.rint(0.1 / q) * q for _, theta in seen[1:]])
    assert len(np.unique(noise / np.array(release.std)[:, np.newaxis])) == noise.size
    sizes = np.std(noise / np.array(release.std)[:, np.newaxis])
    assert 0.7 < sizes < 1.3
    assert np.all(noise / q == np.rint(noise / q))


@for_each(
    ("changes", "cause"),
    [
        ({"l2": 0.0}, "local steps that contract"),
        ({"all_penalized": False}, "local steps that contract"),
        ({"step_sizes": (4.5,) * 10}, "local steps that contract"),
        ({"step_sizes": (0.5, 0.4)}, "step_size must be one number"),
    ],
)
def test_last_iterates_refuse_what_their_bound_does_not_cover(changes, cause):
    assert_refused(cause, last, **changes)


def test_the_rounding_of_gradients_and_of_far_states_counts_in_every_step():
    """eta n_j q_j sqrt(d) / n_j of a coarse gradient grid, and the last places of a far state."""
    plain = Fraction(*runs().step_sensitivity(50, 1.0, 2.0**-40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_runs, "_finest", lambda *_: 2.0**-12)
        coarse = Fraction(*runs().step_sensitivity(50, 1.0, 2.0**-40))
    assert float(coarse - plain) == pytest.approx(0.5 * 2.0**-12 * 2.0, rel=1e-6)
    far = Fraction(*runs().step_sensitivity(50, 2.0**40, 2.0**-40))
    assert float(far - plain) > 8 * 2.0**-53 * 2.0**40
    assert_refused(r"above 1\.25", runs().step_sensitivity, 50, 2.0**50, 2.0**-40)


def test_noisy_iterates_stay_within_half_the_reach_and_need_their_noise_in_it():
    mechanism, ledger = last(mu=1e-4)
    seen = []

    def step(theta, t):
        seen.append(np.linalg.norm(theta, axis=1))
        return 0.95 * theta + 0.5 * 0.5 / 2.0

    seen.append(np.linalg.norm(mechanism.release(np.zeros(4), 1.0, step), axis=1))
    (release,) = ledger
    for norms, std in zip(np.array(seen).T, release.std, strict=True):
        assert norms.max() <= runs().noisy_iterate_bound(1.0, std) / 2
        assert norms.max() > runs().iterate_bound(1.0)


def test_last_iterate_bound_is_what_a_quadratic_run_really_spends():
    """theta <- c theta + shift + noise: the last iterate is Gaussian, its mu the bound at c."""
    c, K, s, sigma = 0.8, 7, 1.0, 2.0
    mean = s * sum(c**k for k in range(K))
    std = sigma * math.sqrt(sum(c ** (2 * k) for k in range(K)))
    assert mean / std == pytest.approx(s / sigma * last_iterate_factor(Fraction(c), K), rel=1e-12)


def test_laplace_noise_has_its_law_and_no_guarantee():
    """On rows of zeros the model is the noise, of scale 2 C / (m n_min l2 epsilon) = 1."""
    data = dpk.SiloData(np.zeros((8, 40_000)), np.arange(8) % 2, [0, 4, 8], row_bound=1.0)
    result = dpk.solvers.output_perturbation(
        data, budget=dpk.Budget(epsilon=0.5, delta=1e-6), clip=1.0, l2=0.5, rng=0, local_steps=1,
        calibration="paper", weights="uniform",
    )  # fmt: skip
    x = np.abs(result.coef)
    for t in (0.2, 1.0, 3.0, 8.0):
        expected = math.exp(-t)
        spread = math.sqrt(expected * (1 - expected) / x.size)
        assert abs(np.mean(x > t) - expected) < 5 * spread
    assert result.privacy.mu == math.inf
    assert result.privacy.arithmetic == "float"
    assert "no guarantee" in " ".join(result.privacy.notes)


@for_each("per_silo", [True, False])
def test_capped_releases_of_any_sensitivities_are_one_series(per_silo):
    """Every release has the noise of its own sensitivity, and a record pays for some of them."""
    ledger = Ledger()
    channel = Channel(ledger, NoiseStream(0), "all")
    made, other = (
        GaussianMessages(channel, what="changes", dim=3, mu=0.5, per_silo=per_silo, per_record=2)
        for _ in range(2)
    )
    for D in (1.0, 1.01, 0.5, 30.0, 1.0):
        made.release(np.zeros((2, 3)), sensitivity=[D, 0.5 * D], bound=1.0)
    assert [release.times for release in ledger.releases] == [2, 1, 1, 1]
    assert {(release.series, release.per_record) for release in ledger.releases} == {(1, 2)}
    for release, D in zip(ledger.releases, (1.0, 1.01, 0.5, 30.0), strict=True):
        assert D <= np.max(release.sensitivity) <= D * (1 + 2**-11)
        np.testing.assert_allclose(release.std, np.array(release.sensitivity) / 0.5, rtol=1e-15)
    certificate = Certificate.from_ledger(ledger, trust="silo", noise="os")
    assert certificate.mu == pytest.approx(math.sqrt(2.0) * 0.5, rel=1e-12)
    other.release(np.zeros((2, 3)), sensitivity=[1.0, 0.5], bound=1.0)
    both = Certificate.from_ledger(ledger, trust="silo", noise="os")
    assert both.mu == pytest.approx(math.sqrt(3.0) * 0.5, rel=1e-12)
