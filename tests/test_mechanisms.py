"""The grid of a release, and noisy sums that are recorded before they leave."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused

from dpkern import kernels
from dpkern.kernels.grids import finest_grid, on_grid
from dpkern.privacy import Certificate, NoiseStream, split_budget
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sensitivity.grids import choose_grid, choose_grids

magnitudes = st.floats(-110, 110).map(lambda e: 10.0**e)
sizes = st.floats(0, 12).map(lambda e: int(10.0**e))
dims = st.floats(0, 6).map(lambda e: int(10.0**e))


def serves(q, n, clip, sigma):
    """What a grid has to satisfy whatever else it costs, in rational arithmetic."""
    exact = max(n, 2) * Fraction(clip) <= 2**52 * Fraction(q)
    return exact and (sigma is None or Fraction(sigma) <= 2**32 * Fraction(q))


def fine_enough(q, n, clip, dim, sigma):
    q = Fraction(q)
    return q**2 * dim <= (Fraction(clip) / 2**12) ** 2 and n * q <= Fraction(sigma) / 2**9


@settings(max_examples=400, deadline=None)
@given(n=sizes, clip=magnitudes, dim=dims, ratio=st.floats(-12, 9).map(lambda e: 10.0**e))
def test_noisy_grid_is_the_coarsest_that_is_fine_enough_unless_more_is_asked(n, clip, dim, ratio):
    sigma = clip * ratio
    try:
        q = choose_grid(n=n, clip=clip, dim=dim, sigma=sigma)
    except ValueError:
        # no grid satisfies both the needs and the 1/32 of the clip norm
        tolerable = 2.0 ** math.floor(math.log2(clip / 32) - math.log2(dim) / 2 + 1e-9)
        assert not serves(min(tolerable, 2.0**400) / 2, n, clip, sigma) or tolerable <= 2.0**-400
        return
    assert math.frexp(q)[0] == 0.5
    assert 2.0**-400 <= q <= 2.0**400
    assert serves(q, n, clip, sigma)
    assert Fraction(q) ** 2 * dim <= (Fraction(clip) / 32) ** 2
    if fine_enough(q, n, clip, dim, sigma):
        assert q == 2.0**400 or not fine_enough(2 * q, n, clip, dim, sigma)
    else:
        assert q == 2.0**-400 or not serves(q / 2, n, clip, sigma)


@settings(max_examples=300, deadline=None)
@given(n=sizes, clip=magnitudes, dim=st.just(1))
def test_noiseless_grid_is_the_finest_whose_sums_are_exact(n, clip, dim):
    q = choose_grid(n=n, clip=clip, dim=dim)
    assert serves(q, n, clip, None)
    assert q == 2.0**-400 or not serves(q / 2, n, clip, None)
    assert q == finest_grid(n, clip)


@for_each("exponent", [-300, -12, 0, 7, 300])
@for_each("dim", [1, 4, 1024])
def test_grid_comparisons_are_exact_at_their_boundaries(exponent, dim):
    # q sqrt(d) = C 2^-12 is allowed, one unit in the last place less of C is not
    clip = 2.0**exponent
    q = clip / 2**12 / math.sqrt(dim)
    assert choose_grid(n=1, clip=clip, dim=dim, sigma=clip) == q
    assert choose_grid(n=1, clip=math.nextafter(clip, 0.0), dim=dim, sigma=clip) == q / 2
    # the same for n q = sigma 2^-9
    sigma = 1000 * q * 2**9
    assert choose_grid(n=1000, clip=clip, dim=dim, sigma=sigma) == q
    assert choose_grid(n=1000, clip=clip, dim=dim, sigma=math.nextafter(sigma, 0.0)) == q / 2
    # and for max(n, 2) C = 2^52 q, without noise
    assert choose_grid(n=1, clip=clip, dim=1) == clip * 2.0**-51
    assert choose_grid(n=2, clip=math.nextafter(clip, math.inf), dim=1) == clip * 2.0**-50
    # and for sigma = 2^32 q
    assert choose_grid(n=1, clip=clip, dim=1, sigma=clip * 2.0**20) == clip * 2.0**-12
    assert choose_grid(n=1, clip=clip, dim=1, sigma=clip * (2.0**20 + 1)) == clip * 2.0**-11


def test_the_largest_tolerable_grid_is_allowed_and_the_next_refused():
    assert choose_grid(n=1, clip=1.0, dim=1, sigma=2.0**27) == 1 / 32
    with pytest.raises(ValueError, match=r"sigma = .* below 2\^32 grid steps.* clip/32"):
        choose_grid(n=1, clip=1.0, dim=1, sigma=math.nextafter(2.0**27, math.inf))
    with pytest.raises(ValueError, match=r"dim = 2 coordinates"):
        choose_grid(n=1, clip=1.0, dim=2, sigma=2.0**27)


@for_each(
    ("arguments", "cause"),
    [
        ({"n": 2**48, "clip": 1.0, "dim": 1}, "the sum of n = "),
        ({"n": 10, "clip": 1.0, "dim": 1, "sigma": 1e30}, "the noise, sigma = "),
        ({"n": 10, "clip": 1e-130, "dim": 1}, r"a grid is at least 2\^-400"),
        ({"n": 10, "clip": 1e300, "dim": 1}, r"coarsest is 2\^400"),
        ({"n": 10, "clip": 1.0, "dim": 2**100}, "dim = "),
        ({"n": 0, "clip": 1.0, "dim": 1}, r"n must .*got 0"),
        ({"n": 1, "clip": 0.0, "dim": 1}, r"clip must .*got 0"),
        ({"n": 1, "clip": math.inf, "dim": 1}, r"clip must .*got inf"),
        ({"n": 1, "clip": math.nan, "dim": 1}, r"clip must .*got nan"),
        ({"n": 1, "clip": 1.0, "dim": 0}, r"dim must .*got 0"),
        ({"n": 1, "clip": 1.0, "dim": 1, "sigma": 0.0}, r"sigma must .*got 0"),
        ({"n": 1, "clip": 1.0, "dim": 1, "sigma": -1.0}, r"sigma must .*got -1"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_cause(arguments, cause):
    assert_refused(cause, choose_grid, **arguments)


class Source:
    """Stands in for the noise kernel: known multiples of the grids, and a list of its calls."""

    def __init__(self):
        self.calls = []
        self.fails = False

    def gaussian(self, shape, sigma, *, grid, rng):
        if self.fails:
            raise RuntimeError("no entropy")
        self.calls.append((shape, np.array(sigma), np.array(grid), rng))
        steps = np.random.default_rng(len(self.calls)).integers(-1000, 1000, shape)
        return np.array(grid)[:, np.newaxis] * steps


@pytest.fixture
def source(monkeypatch):
    source = Source()
    monkeypatch.setattr(kernels, "gaussian", source.gaussian)
    return source


def a_sum(**changes):
    arguments = {"what": "gradient", "clip": 1.0, "dim": 3, "sizes": (100,), "mu": 0.5}
    parts = {
        "ledger": Ledger(),
        "stream": NoiseStream(),
        "seen_by": "everyone",
        "neighbours": "replace_one",
    }
    channel = Channel(**{name: changes.pop(name, value) for name, value in parts.items()})
    return GaussianSum(channel, **(arguments | changes)), channel.ledger


def mu_of(ledger):
    return Certificate.from_ledger(ledger, trust="central", noise="os").mu


def test_release_adds_noise_of_its_own_grid_to_the_sum(source):
    stream = NoiseStream()
    mechanism, _ = a_sum(stream=stream)
    total = mechanism.grid[0] * np.array([5.0, -7.0, 0.0])
    before = total.copy()
    released = mechanism.release(total)
    ((shape, sigma, grid, rng),) = source.calls
    assert (shape, sigma, grid) == ((1, 3), mechanism.sigma, mechanism.grid)
    assert rng is stream
    noise = Source().gaussian((1, 3), mechanism.sigma, grid=mechanism.grid, rng=None)
    np.testing.assert_array_equal(released, total + noise[0])
    np.testing.assert_array_equal(total, before)
    assert released.shape == (3,)
    assert mechanism.release(total[np.newaxis]).shape == (1, 3)


@settings(max_examples=150, deadline=None)
@given(
    mu=st.floats(-3, 2).map(lambda e: 10.0**e),
    clip=st.floats(-20, 20).map(lambda e: 10.0**e),
    rounds=st.integers(1, 10**4),
    shares=st.booleans(),
    silos=st.integers(1, 4),
)
def test_certified_mu_never_exceeds_the_budget_and_wastes_nothing(mu, clip, rounds, shares, silos):
    (per_release,) = split_budget(mu, [2 * clip], [rounds])
    mechanism, ledger = a_sum(clip=clip, mu=per_release, shares=shares, sizes=(50,) * silos)
    for _ in range(rounds if rounds < 10 else 1):
        ledger.append(mechanism._entry)
    squared = ledger.mu_squared() * (1 if rounds < 10 else rounds)
    assert squared <= Fraction(mu) ** 2
    assert float(squared / Fraction(mu) ** 2) > 1 - 1e-14
    if rounds < 10:
        assert mu_of(ledger) <= mu


def test_sigma_is_the_smallest_double_within_the_budget():
    mechanism, _ = a_sum(mu=0.3, clip=0.7)
    sigma = float(mechanism.sigma[0])
    assert 2 * Fraction(0.7) / Fraction(sigma) <= Fraction(0.3)
    assert 2 * Fraction(0.7) / Fraction(math.nextafter(sigma, 0.0)) > Fraction(0.3)


def test_repeated_rounds_are_recorded_once_with_their_number(source):
    mechanism, ledger = a_sum()
    for _ in range(7):
        mechanism.release(np.zeros(3))
    (release,) = ledger
    assert (release.times, release.what, release.dim) == (7, "gradient", 3)
    assert (release.sensitivity, release.std) == (2.0, float(mechanism.sigma[0]))
    assert release.grid == mechanism.grid[0]
    assert ledger.n_draws == 21
    assert len(source.calls) == 7


def test_each_silo_has_its_own_grid_and_the_silos_cost_the_largest(source):
    counts = (10, 10**6, 10, 1000)
    mechanism, ledger = a_sum(sizes=counts)
    expected = [choose_grid(n=n, clip=1.0, dim=3, sigma=4.0) for n in counts]
    assert mechanism.grid.tolist() == expected
    assert mechanism.grid[0] != mechanism.grid[1]
    total = np.arange(12.0).reshape(4, 3) * mechanism.grid[:, None]
    released = mechanism.release(total)
    ((shape, sigma, grid, _),) = source.calls
    assert shape == (4, 3)
    assert sigma.tolist() == [4.0] * 4
    assert grid.tolist() == expected
    noise = Source().gaussian((4, 3), sigma, grid=grid, rng=None)
    np.testing.assert_array_equal(released, total + noise)
    (release,) = ledger
    assert release.sensitivity == (2.0,) * 4
    assert release.grid == tuple(expected)
    assert ledger.mu_squared() == Fraction(1, 4)
    assert ledger.n_draws == 12


def test_given_stds_are_charged_as_they_are(source):
    mechanism, ledger = a_sum(mu=None, sigma=[4.0, 8.0], sizes=(10, 20))
    mechanism.release(np.zeros((2, 3)))
    assert mechanism.sigma.tolist() == [4.0, 8.0]
    assert ledger.mu_squared() == Fraction(1, 4)
    scalar, _ = a_sum(mu=None, sigma=4.0, sizes=(10, 20))
    assert scalar.sigma.tolist() == [4.0, 4.0]


def test_shares_have_one_grid_add_up_and_are_recorded_as_one_release(source):
    mechanism, ledger = a_sum(mu=None, sigma=[3.0, 4.0, 12.0], sizes=(10, 20, 30), shares=True)
    q = choose_grid(n=60, clip=1.0, dim=3, sigma=13.0)
    assert mechanism.grid.tolist() == [q] * 3
    total = q * np.arange(9.0).reshape(3, 3)
    released = mechanism.release(total)
    assert released.shape == (3,)
    noise = Source().gaussian((3, 3), mechanism.sigma, grid=mechanism.grid, rng=None)
    np.testing.assert_array_equal(released, (total + noise).sum(axis=0))
    (release,) = ledger
    assert (release.sensitivity, release.std, release.n_messages) == (2.0, 13.0, None)
    assert ledger.n_draws == 9


@settings(max_examples=100, deadline=None)
@given(stds=st.lists(st.floats(0.5, 1e3), min_size=1, max_size=5))
def test_the_total_std_of_shares_is_rounded_down(stds):
    mechanism, _ = a_sum(mu=None, sigma=stds, sizes=(5,) * len(stds), shares=True)
    std = mechanism._entry.std
    exact = sum(Fraction(s) ** 2 for s in stds)
    assert Fraction(std) ** 2 <= exact < Fraction(math.nextafter(std, math.inf)) ** 2


def test_a_share_below_eight_grid_steps_is_refused():
    # the common grid follows from the sum's noise, 1.0; the small share is far below it
    q = choose_grid(n=20, clip=1.0, dim=3, sigma=1.0)
    arguments = {"mu": None, "sizes": (10, 10), "shares": True}
    a_sum(sigma=[1.0, 8 * q], **arguments)
    with pytest.raises(ValueError, match="at least 8 grid steps"):
        a_sum(sigma=[1.0, math.nextafter(8 * q, 0.0)], **arguments)


def test_without_noise_the_sum_leaves_unchanged_and_unguaranteed(source):
    mechanism, ledger = a_sum(mu=None)
    assert mechanism.grid.tolist() == [choose_grid(n=100, clip=1.0, dim=3)]
    assert mechanism.sigma.tolist() == [0.0]
    total = np.array([1.0, 2.0, 3.0])
    released = mechanism.release(total)
    np.testing.assert_array_equal(released, total)
    assert not np.shares_memory(released, total)
    assert source.calls == []
    assert mu_of(ledger) == math.inf
    assert ledger.n_draws == 0


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each("exponent", [-60, -20, -12])
def test_sums_that_are_rounded_once_are_charged_for_the_rounding(exponent, neighbours):
    """Each coordinate of a difference moves by up to q: q sqrt(d) in norm, for the grid of the
    release, which is the kernel's own or a coarser one."""
    finest, dim, mu = 2.0**exponent, 50, 0.5
    mechanism, ledger = a_sum(clip=1.0, dim=dim, mu=mu, finest=finest, neighbours=neighbours)
    (q,) = mechanism.grid
    assert q >= finest
    assert (q == finest) == (exponent > -20)
    D, moved = Fraction(mechanism.sensitivity), 1 if neighbours == "add_remove" else 2
    assert (D - moved) ** 2 >= Fraction(q) ** 2 * dim
    assert (D - moved) ** 2 <= Fraction(q) ** 2 * dim * Fraction(101, 100)
    assert D / Fraction(float(mechanism.sigma[0])) <= Fraction(mu)
    mechanism.release(np.zeros(dim))
    assert ledger.releases[0].sensitivity == mechanism.sensitivity


def test_without_noise_and_clip_float_sums_pass(source):
    mechanism, ledger = a_sum(mu=None, clip=math.inf, sizes=(5, 6))
    assert mechanism.grid is None
    total = np.full((2, 3), 0.1)
    np.testing.assert_array_equal(mechanism.release(total), total)
    assert ledger.releases[0].std is None
    assert mu_of(ledger) == math.inf


# The fault: a sum computed on a finer grid than the noise's.
@pytest.mark.parametrize("sizes", [(1000,), (1000, 10)])
def test_a_sum_on_another_grid_than_the_noise_is_caught(source, sizes):
    mechanism, ledger = a_sum(sizes=sizes, mu=0.01)
    G = np.random.default_rng(0).standard_normal((sum(sizes), 3))
    offsets = np.cumsum([0, *sizes])
    good = kernels.clip_and_sum(G, clip=1.0, offsets=offsets, grid=mechanism.grid)
    finer = kernels.clip_and_sum(G, clip=1.0, offsets=offsets, grid=mechanism.grid / 4)
    with pytest.raises(ValueError, match="off this grid"):
        mechanism.release(finer)
    assert len(ledger) == 0
    assert source.calls == []
    mechanism.release(good)
    assert ledger.n_draws == 3 * len(sizes)


@pytest.mark.parametrize("mu", [0.5, None])
@pytest.mark.parametrize(
    "steps", [0.5, 1.0 + 2.0**-52, 2.0**52 + 1.0, -(2.0**53), math.nan, math.inf, -math.inf, 1e-300]
)
def test_entries_off_the_grid_are_refused_without_showing_them(source, mu, steps):
    mechanism, ledger = a_sum(mu=mu)
    total = np.array([0.0, 1.0, steps]) * mechanism.grid[0]
    assert total[2] != 0.0
    with pytest.raises(ValueError, match="off this grid") as caught:
        mechanism.release(total)
    assert repr(float(total[2])) not in str(caught.value)
    assert len(ledger) == 0
    assert source.calls == []


@settings(max_examples=200, deadline=None)
@given(
    exponent=st.integers(-100, 100),
    steps=st.lists(st.integers(-(2**52), 2**52), min_size=3, max_size=3),
)
def test_every_sum_on_the_grid_is_accepted(exponent, steps):
    mechanism, _ = a_sum(mu=None, clip=2.0**exponent)
    total = np.array(steps, dtype=float) * mechanism.grid[0]
    np.testing.assert_array_equal(mechanism.release(total), total)


@settings(max_examples=200, deadline=None)
@given(exponent=st.integers(-100, 100), value=st.floats(allow_nan=True, allow_infinity=True))
def test_a_value_is_accepted_exactly_when_it_is_a_multiple_of_the_grid(exponent, value):
    mechanism, _ = a_sum(mu=None, clip=2.0**exponent, dim=1)
    q = Fraction(float(mechanism.grid[0]))
    on_grid = (
        math.isfinite(value)
        and (Fraction(value) / q).denominator == 1
        and abs(Fraction(value)) <= 2**52 * q
    )
    total = np.array([value])
    if on_grid:
        assert mechanism.release(total)[0] == value
    else:
        with pytest.raises(ValueError, match="off this grid"):
            mechanism.release(total)


def test_a_failure_of_the_noise_leaves_nothing_recorded(source):
    mechanism, ledger = a_sum()
    source.fails = True
    with pytest.raises(RuntimeError, match="no entropy"):
        mechanism.release(np.zeros(3))
    assert len(ledger) == 0


def test_a_failure_of_the_ledger_lets_nothing_leave(source, monkeypatch):
    mechanism, ledger = a_sum()

    def full(release):
        raise RuntimeError("full")

    monkeypatch.setattr(ledger, "append", full)
    released = None
    with pytest.raises(RuntimeError, match="full"):
        released = mechanism.release(np.zeros(3))
    assert released is None


@pytest.mark.parametrize(
    ("total", "message"),
    [
        (np.zeros(4), r"shape \(1, 3\) or \(3,\), got \(4,\)"),
        (np.zeros((2, 3)), r"got \(2, 3\)"),
        (np.zeros(3, dtype=np.float32), "TypeError: float64"),
        ([0.0, 0.0, 0.0], "TypeError: float64"),
    ],
)
def test_totals_of_the_wrong_form_are_refused(source, total, message):
    mechanism, ledger = a_sum()
    assert_refused(message, mechanism.release, total)
    assert len(ledger) == 0


@for_each(
    ("changes", "message"),
    [
        ({"mu": 0.0}, r"mu must .*got 0"),
        ({"mu": math.inf}, r"mu must .*got inf"),
        ({"mu": math.nan}, r"mu must .*got nan"),
        ({"mu": 1e-320}, r"mu must .*got 1e-320"),
        ({"mu": 1e-320, "shares": True}, r"mu must .*got 1e-320"),
        ({"mu": 1e-9}, "the noise, sigma"),
        ({"sigma": 1.0}, "sigma must be None where mu is given"),
        ({"mu": None, "sigma": 0.0}, r"sigma must .*got 0"),
        ({"mu": None, "sigma": [1.0, 1.0]}, "sigma must have 1 entries.* got 2"),
        ({"clip": 0.0}, r"clip must .*got 0"),
        ({"clip": -1.0}, r"clip must .*got -1"),
        ({"clip": math.nan}, r"clip must .*got nan"),
        ({"clip": math.inf}, "clip must be finite with noise"),
        ({"clip": 1e308}, "clip must be finite with noise"),
        ({"dim": 0}, r"dim must .*got 0"),
        ({"dim": 2.0}, r"TypeError: dim must .*got 2.0"),
        ({"sizes": ()}, r"sizes must .*got"),
        ({"sizes": (0,)}, r"sizes must .*got 0"),
        ({"sizes": (1.5,)}, r"TypeError: sizes must .*got 1.5"),
        ({"ledger": []}, r"TypeError: ledger must .*got list"),
        ({"what": ""}, r"what must .*got"),
        ({"stream": 0}, r"TypeError: stream must .*got int"),
        ({"seen_by": None}, r"TypeError: seen_by must .*got NoneType"),
        ({"neighbours": "both"}, r"neighbours must .*got 'both'"),
        ({"stream": None}, r"TypeError: stream must .*got NoneType"),
    ],
)
def test_mechanisms_refuse_what_they_cannot_calibrate(changes, message):
    assert_refused(message, a_sum, **changes)


def test_noise_of_the_real_kernel_is_fresh_each_round_and_has_the_stated_std():
    mechanism, ledger = a_sum(
        mu=None, sigma=[4.0, 40.0], sizes=(100, 100), dim=4000, stream=NoiseStream(7)
    )
    first, second = (mechanism.release(np.zeros((2, 4000))) for _ in range(2))
    assert not np.any(first == second)
    # the mean square of 4000 draws has a relative std of 2.2 %
    np.testing.assert_allclose(first.std(axis=1), [4.0, 40.0], rtol=0.07)
    np.testing.assert_allclose(
        (first - second).std(axis=1), [4.0 * 2**0.5, 40.0 * 2**0.5], rtol=0.07
    )
    assert on_grid(first, mechanism.grid)
    assert ledger.n_draws == 16000


@for_each("exponent", [-400, -20, 0, 400])
def test_on_grid_accepts_whole_steps_up_to_2_to_the_52_and_nothing_else(exponent):
    q = 2.0**exponent
    whole = np.array([0.0, -0.0, 1.0, -1.0, 2.0**52, -(2.0**52), 12345.0]) * q
    assert on_grid(np.array([whole, 2.0 * whole[::-1]])[:1], q)
    assert on_grid(np.array([whole, 2.0 * whole]), np.array([q, 2.0 * q]))
    assert on_grid(np.array([whole, whole]).T.copy().T, q)  # any layout
    assert on_grid(np.full((2, 3, 3), 7.0 * q), q)
    off = [0.5 * q, q * (1.0 + 2.0**-52), 5e-324, 2.0**-500, (2.0**52 + 1.0) * q, 2.0**53 * q]
    for bad in [*off, -off[0], math.nan, math.inf, -math.inf, 2.0**1000]:
        for at in [(0, 0), (0, 6), (1, 3)]:
            sums = np.array([whole, whole])
            sums[at] = bad
            assert not on_grid(sums, q)
            assert not on_grid(sums, np.array([q, q]))


def test_a_wiped_stream_releases_and_records_nothing():
    stream = NoiseStream()
    mechanism, ledger = a_sum(stream=stream)
    stream.wipe()
    with pytest.raises(RuntimeError, match="wiped"):
        mechanism.release(np.zeros(3))
    assert len(ledger) == 0


def test_no_gaussian_sum_is_released_under_the_trust_in_a_shuffler():
    channel = Channel(Ledger(), NoiseStream(0), SEEN_BY["shuffle"])
    with pytest.raises(ValueError, match="trust must not be 'shuffle'"):
        GaussianSum(channel, what="sum", clip=1.0, dim=2, sizes=(10,), mu=1.0).release(
            np.zeros((1, 2))
        )


@for_each("seed", range(40))
def test_grids_of_many_sizes_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 2 ** rng.integers(2, 20), 50).tolist() if seed % 2 else range(1, 300)
    how = {
        "clip": 2.0 ** int(rng.integers(-20, 20)) if seed % 3 else float(rng.uniform(0.1, 9.0)),
        "dim": int(rng.integers(1, 900)),
        "sigma": [None, 2.0 ** int(rng.integers(-9, 30)), float(rng.lognormal(3.0, 4.0))][seed % 3],
        "neighbours": ["replace_one", "add_remove"][seed % 2],
    }
    try:
        each = {n: choose_grid(n=n, **how) for n in sizes}
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)[:14]):
            choose_grids(sizes, **how)
    else:
        assert choose_grids(sizes, **how) == each
