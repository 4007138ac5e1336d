"""Noise on sums of Hessians: grid, sensitivity, distribution of the noise, and what is recorded."""

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
from dpkern.kernels.grids import hessian_row_grid
from dpkern.privacy import Certificate, NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.privacy.sensitivity.grids import choose_hessian_grid


def mechanism(**changes):
    arguments = {"what": "Hessian", "hess_clip": 0.25, "dim": 4, "sizes": (100,), "mu": 0.5}
    channel = Channel(Ledger(), changes.pop("stream", NoiseStream(0)), "everyone")
    return GaussianHessian(channel, **(arguments | changes)), channel.ledger


def zeros(made):
    return np.zeros((made._k, made._dim, made._dim))


@settings(max_examples=200, deadline=None)
@given(
    n=st.floats(0, 7).map(lambda e: int(10.0**e)),
    clip=st.floats(-40, 40).map(lambda e: 10.0**e),
    dim=st.integers(1, 500),
    ratio=st.floats(-10, 5).map(lambda e: 10.0**e),
)
def test_grid_is_the_coarsest_that_costs_a_promille_unless_noise_or_rows_ask_for_more(
    n, clip, dim, ratio
):
    sigma = clip * ratio
    rows = Fraction(hessian_row_grid(n, clip, dim)) ** 2

    def serves(q):
        return Fraction(sigma) <= 2**32 * Fraction(q) and Fraction(q) >= rows

    def fine(q):
        q = Fraction(q)
        return q * dim <= Fraction(clip) / 2**10 and q <= Fraction(sigma) / 2**9

    q = choose_hessian_grid(n=n, hess_clip=clip, dim=dim, sigma=sigma)
    assert math.frexp(q)[0] == 0.5
    assert serves(q)
    assert n * Fraction(clip) <= 2**52 * Fraction(q)
    assert 32 * Fraction(q) * dim <= Fraction(clip)
    assert not (fine(2 * q) if fine(q) else serves(q / 2))


@for_each(
    ("arguments", "cause"),
    [
        ({"sigma": 1e12}, r"no grid serves.* hess_clip/32"),
        ({"hess_clip": 0.0}, r"hess_clip must .*got 0"),
        ({"hess_clip": math.inf}, r"hess_clip must .*got inf"),
        ({"sigma": math.nan}, r"sigma must .*got nan"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_cause(arguments, cause):
    with pytest.raises(ValueError, match=cause):
        choose_hessian_grid(**({"n": 10, "hess_clip": 1.0, "dim": 3, "sigma": 1.0} | arguments))


@for_each("triangle", [False, True])
@for_each("dim", [1, 3, 120])
def test_sensitivity_covers_two_rank_one_matrices_and_the_rounding_and_little_more(triangle, dim):
    made, _ = mechanism(dim=dim, triangle=triangle)
    entries = Fraction(dim * (dim + 1), 2) if triangle else Fraction(dim) ** 2
    # D - q sqrt(entries) >= sqrt(2) B, compared by squares
    rounding = Fraction(made.grid) * Fraction(math.sqrt(entries))
    assert (Fraction(made.sensitivity) - rounding) ** 2 >= 2 * Fraction(0.25) ** 2 * (1 - 2**-50)
    assert made.sensitivity >= math.sqrt(2.0) * 0.25 + made.grid * math.sqrt(entries)
    assert made.sensitivity <= math.sqrt(2.0) * 0.25 * 1.001


@for_each("triangle", [False, True])
@for_each("seed", range(3))
def test_replacing_a_record_moves_the_sum_within_the_ledgers_sensitivity_and_nearly_reaches_it(
    triangle, seed
):
    """In rational arithmetic; orthogonal rows of full length are the worst neighbours."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 3)) * 10.0 ** rng.uniform(-2, 2, (40, 1))
    made, ledger = mechanism(dim=3, sizes=(40,), triangle=triangle)
    sums = []
    for axis in (0, 1):
        X[7] = 1e3 * np.eye(3)[axis]
        data = dpk.SiloData(X.copy(), np.where(np.arange(40) % 2 == 0, 1.0, -1.0), [0, 40])
        sums.append(
            kernels.glm_hessian(data, np.zeros(3), loss="logistic", hess_clip=0.25, grid=made.grid)[
                0
            ]
        )
        made.release(sums[-1][np.newaxis])
    moved = [[Fraction(float(a)) - Fraction(float(b)) for a, b in zip(*rows, strict=True)]
             for rows in zip(*sums, strict=True)]  # fmt: skip
    counted = [
        (2 if i != j and not triangle else 1) * moved[i][j] ** 2
        for i in range(3)
        for j in range(i + 1)
    ]
    (release,) = ledger
    assert sum(counted) <= Fraction(release.sensitivity) ** 2
    assert sum(counted) >= Fraction(release.sensitivity) ** 2 * Fraction(99, 100)


@settings(max_examples=100, deadline=None)
@given(
    mu=st.floats(-3, 2).map(lambda e: 10.0**e),
    clip=st.floats(-20, 20).map(lambda e: 10.0**e),
    dim=st.integers(1, 200),
)
def test_sigma_is_the_smallest_double_within_the_budget(mu, clip, dim):
    made, _ = mechanism(mu=mu, hess_clip=clip, dim=dim)
    D = Fraction(made.sensitivity)
    assert D / Fraction(made.sigma) <= Fraction(mu)
    assert D / Fraction(math.nextafter(made.sigma, 0.0)) > Fraction(mu)


@for_each("triangle", [False, True])
def test_noise_is_symmetric_of_the_calibrated_deviations_and_on_the_grid(triangle):
    made, _ = mechanism(sizes=(50,) * 2000, dim=3, triangle=triangle)
    noise = made.release(zeros(made))
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    np.testing.assert_array_equal(noise, np.rint(noise / made.grid) * made.grid)
    off = made.sigma if triangle else made.sigma * math.sqrt(0.5)
    for i in range(3):
        for j in range(i + 1):
            std = made.sigma if i == j else off
            entries = noise[:, i, j]
            assert np.mean(entries**2) == pytest.approx(std**2, rel=5 * math.sqrt(2 / 2000))
            assert abs(np.mean(entries)) < 5 * std / math.sqrt(2000)
    upper = np.corrcoef(noise[:, *np.triu_indices(3)].T)
    assert np.max(np.abs(upper - np.eye(6))) < 5 / math.sqrt(2000)


@pytest.mark.statistical
@pytest.mark.parametrize("triangle", [False, True])
def test_the_stated_norm_of_the_noise_is_that_of_large_matrices(triangle):
    made, _ = mechanism(dim=200, triangle=triangle)
    norm = np.max(np.abs(np.linalg.eigvalsh(made.release(zeros(made))[0])))
    assert norm == pytest.approx(made.noise_norm, rel=0.1)


def test_release_adds_noise_to_the_sum_and_leaves_the_sum_alone():
    total = np.arange(16.0).reshape(1, 4, 4)
    total += total.transpose(0, 2, 1)
    a, _ = mechanism()
    b, _ = mechanism()
    before = total * a.grid
    released = a.release(before)
    np.testing.assert_array_equal(before, total * a.grid)
    np.testing.assert_array_equal(released - before, b.release(zeros(b)))


def test_each_release_is_recorded_with_what_it_costs():
    made, ledger = mechanism(sizes=(10, 2000, 30))
    for _ in range(3):
        made.release(zeros(made))
    (release,) = ledger
    assert release.times == 3
    assert release.sensitivity == (made.sensitivity,) * 3
    assert (release.std, release.grid) == ((made.sigma,) * 3, (made.grid,) * 3)
    assert ledger.n_draws == 3 * 3 * 10
    certificate = Certificate.from_ledger(ledger, trust="silo", noise="os")
    assert certificate.mu <= 0.5 * math.sqrt(3.0) * (1 + 2.0**-50)
    assert certificate.mu == pytest.approx(0.5 * math.sqrt(3.0), rel=1e-12)


def test_a_given_deviation_is_charged_as_it_is():
    made, ledger = mechanism(mu=None, sigma=2.0, triangle=True)
    made.release(zeros(made))
    assert made.sigma == 2.0
    assert ledger.mu_squared() == (Fraction(made.sensitivity) / 2) ** 2


def test_without_noise_the_sum_leaves_unchanged_and_unguaranteed():
    made, ledger = mechanism(mu=None, hess_clip=math.inf)
    total = np.full((1, 4, 4), 0.1)
    released = made.release(total)
    np.testing.assert_array_equal(released, total)
    assert not np.shares_memory(released, total)
    assert (made.grid, made.sigma) == (None, 0.0)
    assert ledger.mu_squared() is None


def off_the_grid(total, made):
    total[0, 1, 2] = total[0, 2, 1] = 0.5 * made.grid


def one_sided(total, made):
    total[0, 1, 2] = made.grid


def not_a_number(total, made):
    total[0, 1, 1] = math.nan


@for_each(
    ("spoil", "message"),
    [(off_the_grid, "off this grid"), (one_sided, "must be symmetric"), (not_a_number, "grid")],
)
def test_a_sum_that_the_noise_would_not_hide_is_refused_and_nothing_is_drawn(
    monkeypatch, spoil, message
):
    made, ledger = mechanism()
    total = zeros(made)
    spoil(total, made)
    monkeypatch.setattr(kernels, "goe", lambda *_, **__: pytest.fail("noise was drawn"))
    assert_refused(message, made.release, total)
    assert len(ledger) == 0


def test_a_sum_of_the_kernel_on_a_finer_grid_is_caught():
    rng = np.random.default_rng(0)
    data = dpk.SiloData(rng.standard_normal((30, 4)), np.arange(30) % 2, [0, 30])
    made, _ = mechanism(sizes=(30,))
    how = {"loss": "logistic", "hess_clip": 0.25}
    with pytest.raises(ValueError, match="off this grid"):
        made.release(kernels.glm_hessian(data, np.zeros(4), grid=made.grid / 4, **how))
    made.release(kernels.glm_hessian(data, np.zeros(4), grid=made.grid, **how))


def test_a_failure_of_the_ledger_lets_nothing_leave(monkeypatch):
    made, ledger = mechanism()
    monkeypatch.setattr(ledger, "append", lambda release: 1 // 0)
    released = None
    with pytest.raises(ZeroDivisionError):
        released = made.release(zeros(made))
    assert released is None


@for_each(
    ("changes", "message"),
    [
        ({"sigma": 1.0}, "sigma must be None where mu is given"),
        ({"rng": 3}, "TypeError: rng"),
        ({"sizes": ()}, "sizes"),
        ({"hess_clip": math.inf}, "hess_clip"),
        ({"hess_clip": -1.0}, "hess_clip"),
        ({"hess_clip": "1"}, "TypeError: hess_clip"),
        ({"mu": 0.0}, "mu"),
        ({"dim": 0}, "dim"),
    ],
)
def test_a_bad_argument_is_refused_by_name(changes, message):
    assert_refused(message, mechanism, **changes)


@for_each(
    ("total", "error"),
    [
        (np.zeros((1, 4, 4), dtype=np.float32), TypeError),
        (np.zeros((1, 4, 5)), ValueError),
        (np.zeros((4, 4)), ValueError),
        ([[0.0]], TypeError),
    ],
)
def test_a_total_of_another_form_is_refused(total, error):
    with pytest.raises(error, match="total"):
        mechanism()[0].release(total)
