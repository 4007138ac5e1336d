"""Gaussian and GOE noise: rounded exactly, distributed as stated, the same on every machine."""

import itertools
import math
import subprocess
import sys
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from cases import for_each
from pairwise import pairwise
from scipy import special, stats

from dpkern import NoiseStream, _core, kernels, reference
from dpkern.kernels import grids as kernel_grids
from dpkern.reference import noise

FAST, AMBIGUOUS, EXACT = range(3)
COARSE, FINE, MIDDLE, FIXED_POINT = range(4)
RATIOS = [0.1, 0.3, 1.0, 12.5, 2.0**20 * 0.77, 2.0**26, 2.0**32 * 0.9, 2.0**32]
# gaussian_table.h
COARSE_ERROR = 3740 * 2.0**-53
FINE_ERROR, FINE_ERROR_PER_X = 11 * 2.0**-53, 34 * 2.0**-53
SPLIT, LAST = 2.0**-7, 2.0**-30  # smaller sides of U down to which the fits hold

# A seeded test statistic fails a right sampler once in a million seeds.
P_VALUE = 1e-6


def draws_of(u, ratio, path=FAST):
    """K and how it was decided for U = u 2^-192, u Python integers."""
    words = np.array([v >> 128 for v in u], dtype=np.uint64)
    extra = np.array([[v >> 64 & (1 << 64) - 1, v & (1 << 64) - 1] for v in u], dtype=np.uint64)
    k, by = np.empty(len(words)), np.empty(len(words), dtype=np.uint8)
    _core.gaussian_words(bytes(32), 0, words, extra, ratio, path, k, by)
    return k, by


def upper_tail(x):
    """Q(x); 0 beyond 14, as the kernel defines it: Q(14) < 2^-146."""
    return mp.erfc(x / mp.sqrt(2)) / 2 if float(x) <= 14.0 else mp.mpf(0)


def boundary(k, ratio):
    return (k - mp.mpf(1) / 2) / ratio


def assert_rounds_exactly(u, k, ratio):
    """Q((|k| + 1/2) / ratio) <= p < Q((|k| - 1/2) / ratio) by mpmath, p the smaller side of U."""
    for value, signed in zip(u, k.tolist(), strict=True):
        negative = value >> 191 == 0
        p = mp.mpf(value if negative else (1 << 192) - 1 - value) / mp.mpf(2) ** 192
        size = -signed if negative else signed
        assert size >= 0, (value, signed)
        assert upper_tail(boundary(size + 1, ratio)) <= p, (hex(value), signed)
        assert size == 0 or p < upper_tail(boundary(size, ratio)), (hex(value), signed)


def uniform(rng, count):
    return [int.from_bytes(rng.bytes(24), "little") for _ in range(count)]


def in_the_tail(rng, count, depth=150):
    """Both tails, p log-uniform down to about 2^-depth."""
    u = [v >> int(rng.integers(1, depth)) for v in uniform(rng, count)]
    return [v if rng.random() < 0.5 else (1 << 192) - 1 - v for v in u]


def random_boundaries(rng, ratio, count):
    """Boundary numbers k >= 1 with boundaries up to 12 standard deviations, most of them near 0."""
    x = np.abs(rng.standard_normal(count)) * rng.choice([1.0, 2.0, 4.0], count)
    return [max(1, int(v)) for v in np.minimum(x, 12.0) * ratio]


def at_probability(p, rng):
    """U with the smaller side p, p a multiple of 2^-192 after rounding down, on a random side."""
    value = int(mp.floor(p * mp.mpf(2) ** 192))
    value = min(max(value, 0), (1 << 191) - 1)
    return value if rng.random() < 0.5 else (1 << 192) - 1 - value


def on_boundaries(rng, ratio, count):
    """U whose rounding is decided by bit 64, by bit 152, or anywhere between."""
    u = []
    for k in random_boundaries(rng, ratio, count):
        distance = mp.mpf(2) ** -int(rng.integers(64, 153)) * rng.choice([-1, 1])
        u.append(at_probability(upper_tail(boundary(k, ratio)) + distance, rng))
    return u


def at_the_error_bound(rng, ratio, count):
    """U whose x lies about as far from a boundary as one of the fits may be wrong."""
    u = []
    for k in random_boundaries(rng, ratio, count):
        fine = FINE_ERROR + FINE_ERROR_PER_X * float(boundary(k, ratio))
        distance = rng.choice([COARSE_ERROR, fine]) * 2.0 ** rng.uniform(-6.0, 0.5)
        distance *= rng.choice([-1, 1])
        u.append(at_probability(upper_tail(boundary(k, ratio) + distance), rng))
    return u


def at_the_splits(rng, ratio, count):
    """U next to where one fit hands over to the next, and next to 1/2."""
    u = []
    for place in rng.choice([SPLIT, LAST, 0.5], count):
        p = mp.mpf(place) * (1 + mp.mpf(2.0 ** rng.uniform(-56.0, -3.0)) * rng.choice([-1, 1]))
        u.append(at_probability(min(p, 1 - p), rng))
    return u


SAMPLES = {
    "uniform": lambda rng, ratio, count: uniform(rng, count),
    "tail": lambda rng, ratio, count: in_the_tail(rng, count),
    "boundary": on_boundaries,
    "error bound": at_the_error_bound,
    "split": at_the_splits,
}


@pytest.fixture(autouse=True)
def enough_digits():
    with mp.workdps(75):
        yield


@pairwise("isa", sample=SAMPLES, ratio=RATIOS)
def test_draw_is_the_rounded_quantile(sample, ratio):
    u = sample(np.random.default_rng(1), ratio, 200)
    k, _ = draws_of(u, ratio)
    assert_rounds_exactly(u, k, ratio)


@pytest.mark.proof
@pytest.mark.parametrize("ratio", [1.0, 2.0**26 * 0.6, 2.0**32])
def test_draw_is_the_rounded_quantile_at_a_million_points(ratio):
    """A third of a million for each ratio. Quantiles in doubles decide where they are far from a
    boundary, a thousand times what they may be wrong by; mpmath decides the others."""
    rng = np.random.default_rng(2)
    hard = on_boundaries(rng, ratio, 2000) + at_the_error_bound(rng, ratio, 2000)
    hard += at_the_splits(rng, ratio, 2000)
    u = hard + in_the_tail(rng, 6000, depth=40) + uniform(rng, 322_000)
    k, _ = draws_of(u, ratio)
    sides = [v if v >> 191 == 0 else (1 << 192) - 1 - v for v in u]
    p = np.array([math.ldexp(v >> 64, -128) for v in sides])
    x = -special.ndtri(np.clip(p, 2.0**-60, 0.5)) * ratio
    error = 1e3 * (4.0 * 2.0**-53 * x + ratio * 2.0**-53)
    clear = (p > 2.0**-60) & (np.abs(x - np.floor(x) - 0.5) > error) & (error < 0.4)
    negative = np.array([v >> 191 == 0 for v in u])
    expected = np.where(negative, -np.rint(x), np.rint(x))
    assert np.array_equal(k[clear], expected[clear])
    assert np.mean(clear) > 0.9
    assert_rounds_exactly([v for v, c in zip(u, clear, strict=True) if not c], k[~clear], ratio)


@pairwise("isa", sample=SAMPLES, ratio=RATIOS)
def test_fast_and_exact_paths_agree(sample, ratio):
    u = sample(np.random.default_rng(3), ratio, 60)
    fast, _ = draws_of(u, ratio)
    for path in (AMBIGUOUS, EXACT):
        slow, by = draws_of(u, ratio, path)
        assert np.array_equal(fast, slow)
        assert set(by) <= {MIDDLE, FIXED_POINT} if path == AMBIGUOUS else {FIXED_POINT}


def test_each_step_decides_where_it_should():
    rng = np.random.default_rng(4)
    ratio = 2.0**32
    _, by = draws_of(uniform(rng, 20_000), ratio)
    share = np.bincount(by, minlength=4) / len(by)
    open_share = 2.0 * SPLIT + 2.0 * ratio * COARSE_ERROR
    assert share[FINE] == pytest.approx(open_share, rel=0.2)
    assert share[MIDDLE] < 1e-3
    assert share[FIXED_POINT] == 0.0
    near = [v for v in on_boundaries(rng, ratio, 600) if 2 < (v >> 187) < 29]
    _, by = draws_of(near, ratio)
    assert set(by) == {MIDDLE, FIXED_POINT}
    assert np.mean(by == FIXED_POINT) > 0.5  # 88 of the 89 distances are below 2^-64


def test_bits_beyond_the_word_decide_where_the_word_cannot(isa):
    for k, ratio in itertools.product([1, 1000], [1.0, 2.0**20, 2.0**32]):
        if boundary(k, ratio) > 12:
            continue
        p = int(mp.floor(upper_tail(boundary(k, ratio)) * mp.mpf(2) ** 192))
        below, above = p - (1 << 40), p + (1 << 40)
        assert below >> 128 == above >> 128  # the same word
        u = [below, above, (1 << 192) - 1 - below, (1 << 192) - 1 - above]
        drawn, by = draws_of(u, ratio)
        assert drawn.tolist() == [-k, -(k - 1), k, k - 1]
        assert set(by) == {FIXED_POINT}


def test_law_is_symmetric_to_the_bit(isa):
    for ratio in RATIOS:
        rng = np.random.default_rng(5)
        u = uniform(rng, 400) + in_the_tail(rng, 40)
        k, _ = draws_of(u, ratio)
        mirrored, _ = draws_of([(1 << 192) - 1 - v for v in u], ratio)
        assert np.array_equal(mirrored, -k)
        assert not np.signbit(k[k == 0.0]).any()


def test_extreme_words_are_bounded(isa):
    u = [0, 1, (1 << 128) - 1, (1 << 191) - 1, 1 << 191, (1 << 192) - 1]
    for ratio in RATIOS:
        k, _ = draws_of(u, ratio)
        assert_ends = np.abs(k[[0, 5]])
        assert np.all(assert_ends <= 14.0 * ratio + 1.0)
        assert np.all(np.abs(k[[3, 4]]) == 0.0)
        assert np.array_equal(k, draws_of(u, ratio, EXACT)[0])


@for_each("ratio", [2.0**26, 2.0**32, 1.5])
def test_stream_of_draws_equals_its_reference(ratio, isa):
    got = kernels.gaussian((3, 1500), ratio * 0.25, grid=0.25, rng=21)
    assert np.array_equal(got, reference.gaussian((3, 1500), ratio * 0.25, grid=0.25, rng=21))


def test_draws_beyond_a_tile_and_a_task_are_those_of_their_coordinates(isa):
    """Tiles are of 2048 draws and tasks of four tiles."""
    for n_threads in (1, 2):
        got = kernels.gaussian(10_500, 0.3, grid=1.0, rng=22, n_threads=n_threads)
        assert np.array_equal(got, reference.gaussian(10_500, 0.3, grid=1.0, rng=22))


def test_rows_have_their_own_sigma_and_grid_as_in_numpy(isa):
    sigma, grid = [0.0, 1e-3, 5.0, 7e9], [1.0, 2.0**-30, 8.0, 2.0]
    for g in (None, grid):
        got = kernels.gaussian((2, 2, 200), sigma, grid=g, rng=2)
        assert np.array_equal(got, reference.gaussian((2, 2, 200), sigma, grid=g, rng=2))
        assert not got[0, 0].any()


def test_stream_object_gives_the_twins_draws_release_by_release():
    ours, theirs = NoiseStream(8), NoiseStream(8)
    for _ in range(3):
        got = kernels.gaussian((2, 50), 1.0, rng=ours)
        assert np.array_equal(got, reference.gaussian((2, 50), 1.0, rng=theirs))


@for_each("path", [AMBIGUOUS, EXACT])
def test_slow_paths_of_the_stream_read_the_right_bits(path, isa):
    m, n = 2, 200
    key, sigma, grid = bytes(range(32)), np.full(m, 2.0**32), np.ones(m)
    fast, slow = np.empty((m, n)), np.empty((m, n))
    _core.gaussian(key, 1, sigma, grid, fast, 1)
    _core.gaussian(key, 1, sigma, grid, slow, 1, path)
    assert np.array_equal(fast, slow)


@for_each("silos", [None, [7, 3, 1 << 40, 8]])
def test_extra_bits_come_from_the_coordinates_own_block(isa, silos):
    """Also where silos of few draws share a tile, as the messages of ADMM's users do."""
    key, nonce, n, k, ratio = bytes(range(7, 39)), 1 << 48, 200, 5_000_000_000, 2.0**32
    p = int(mp.floor(upper_tail(boundary(k, ratio)) * mp.mpf(2) ** 192))
    of = [(j, i) for j in silos or [0] for i in range(n // len(silos or [0]))]
    rest = [
        noise.chacha20_blocks(key, [i], nonce | j | noise.EXTRA << 48)[0, :4].view("<u8").tolist()
        for j, i in of
    ]
    expected = [-k if p >> 128 << 128 | f[0] << 64 | f[1] < p else 1 - k for f in rest]
    assert 20 < expected.count(-k) < 180
    words = np.full(n, p >> 128, dtype=np.uint64)  # all on the same boundary
    out, by = np.empty(n), np.empty(n, dtype=np.uint8)
    silo = None if silos is None else np.array(silos)
    _core.gaussian_words(key, nonce, words, None, ratio, FAST, out, by, silo)
    assert out.tolist() == expected


def test_bits_do_not_depend_on_the_number_of_threads(isa):
    for shape in ((3, 40_000), (70, 500)):
        expected = kernels.gaussian(shape, 2.5, rng=1, n_threads=1)
        for n_threads in (2, 3, 7):
            assert np.array_equal(
                expected, kernels.gaussian(shape, 2.5, rng=1, n_threads=n_threads)
            )
    expected = kernels.goe(3, 150, 2.5, rng=1, n_threads=1)
    for n_threads in (2, 3, 7):
        assert np.array_equal(expected, kernels.goe(3, 150, 2.5, rng=1, n_threads=n_threads))


@pytest.mark.isa
def test_bits_do_not_depend_on_the_instruction_set():
    before, seen = _core.isa(), []
    for name in _core.isa_names():
        _core._use_isa(name)
        seen.append(
            [kernels.gaussian((3, 30_011), s, grid=1.0, rng=1) for s in (0.7, 2.0**26, 2.0**32)]
        )
    _core._use_isa(before)
    for other in seen[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_draws_depend_on_silo_and_coordinate_only():
    full = kernels.gaussian((5, 9000), 3.0, rng=4)
    for m, n in ((1, 1), (2, 127), (3, 128), (4, 1025), (5, 8192)):
        assert np.array_equal(kernels.gaussian((m, n), 3.0, rng=4), full[:m, :n])
    assert np.array_equal(kernels.gaussian(9000, 3.0, rng=4), full[0])
    assert np.array_equal(kernels.gaussian((5, 3, 3000), 3.0, rng=4).shape, (5, 3, 3000))


def test_no_draw_repeats_across_releases_silos_and_purposes():
    # Pairs of neighbouring draws at 2^32 steps per sigma carry about 68 bits: a repetition of any
    # stretch of any stream would show, an accident would not (2^-35).
    stream, d = NoiseStream(6), 90
    rows = [*kernels.gaussian((40, 4096), 2.0**32, grid=1.0, rng=stream)]
    rows += [*kernels.gaussian((40, 4096), 2.0**32, grid=1.0, rng=stream)]
    rows += [*kernels.gaussian((2, 4096), 2.0**32, grid=1.0, rng=NoiseStream(7))]
    for matrix in kernels.goe(2, d, 2.0**32, grid=1.0, rng=stream):
        rows += [np.diag(matrix), matrix[np.triu_indices(d, 1)]]
    pairs = np.concatenate([np.column_stack([row[:-1], row[1:]]) for row in rows])
    assert len(np.unique(np.ascontiguousarray(pairs).view("V16"))) == len(pairs)


@pytest.mark.statistical
def test_goodness_of_fit_of_ten_million_draws():
    n, sigma, bins = 10_000_000, 3.0, 1000
    z = kernels.gaussian(n, sigma, grid=2.0**-24, rng=12345) / sigma
    counts = np.bincount((special.ndtr(z) * bins).astype(np.int64), minlength=bins)
    assert stats.chisquare(counts).pvalue > P_VALUE
    for x in (3.0, 4.0, 5.0):
        for tail in (np.count_nonzero(z > x), np.count_nonzero(z < -x)):
            assert stats.binomtest(tail, n, special.ndtr(-x)).pvalue > P_VALUE
    # Standard errors of the first four moments of n standard Gaussians.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(z**power) - moment) < 5.0 * math.sqrt(variance / n)
    lag = np.mean(z[:-1] * z[1:])
    assert abs(lag) < 5.0 / math.sqrt(n)


@for_each("ratio", [0.08, 0.5, 1.0, 8.0])
def test_small_ratios_have_the_exact_discrete_law(ratio):
    n, grid = 2_000_000, 0.125
    k = (kernels.gaussian(n, ratio * grid, grid=grid, rng=99) / grid).astype(np.int64)
    largest = int(max(1, 4 * ratio))
    edges = (np.arange(-largest, largest) + 0.5) / ratio
    probability = np.diff(np.concatenate([[0.0], special.ndtr(edges), [1.0]]))
    counts = np.bincount(np.clip(k, -largest, largest) + largest, minlength=2 * largest + 1)
    frequent = probability * n > 5.0
    assert counts[~frequent].sum() < 10
    probability, counts = probability[frequent], counts[frequent]
    expected = probability / probability.sum() * counts.sum()
    if len(counts) > 1:
        assert stats.chisquare(counts, expected).pvalue > P_VALUE


def test_default_grid_holds_between_2_25_and_2_26_steps_per_sigma():
    for sigma in (1.0, np.nextafter(1.0, 2.0), 1.999, 2.0, 3e-5, 2.0**100, 7e77):
        # The finest step seen in 2000 draws is the grid itself.
        draws = [Fraction(z) for z in kernels.gaussian(2000, sigma, rng=1)]
        denominator = max(z.denominator for z in draws)
        steps = [int(z * denominator) for z in draws if z]
        grid = Fraction(min(k & -k for k in steps), denominator)
        assert 2**25 < Fraction(sigma) / grid <= 2**26


def test_draws_are_multiples_of_the_grid():
    for sigma, grid in ((3.7, 2.0**-20), (1e100, None), (2.0**-380, 2.0**-400)):
        grids = kernel_grids.noise_scale(sigma, grid, 1)[1]
        k = kernels.gaussian(3000, sigma, grid=grid, rng=3) / grids[0]
        assert np.array_equal(k, np.rint(k))
        assert np.std(k) == pytest.approx(sigma / grids[0], rel=0.1)


def test_noise_without_seed_differs_from_call_to_call():
    assert not np.array_equal(kernels.gaussian(10, 1.0), kernels.gaussian(10, 1.0))


def test_output_array_is_filled_and_returned():
    out = np.empty((2, 3))
    assert kernels.gaussian((2, 3), 1.0, rng=1, out=out) is out
    assert np.array_equal(out, kernels.gaussian((2, 3), 1.0, rng=1))
    out = np.empty((2, 3, 3))
    assert kernels.goe(2, 3, 1.0, rng=1, out=out) is out


def test_empty_shapes_give_empty_arrays():
    assert kernels.gaussian((0, 3), 1.0).shape == (0, 3)
    assert kernels.gaussian((3, 0), 1.0).shape == (3, 0)
    assert kernels.goe(0, 3, 1.0).shape == (0, 3, 3)
    assert kernels.goe(2, 0, 1.0).shape == (2, 0, 0)


@for_each(
    ("arguments", "options", "message"),
    [
        ((3, -1.0), {}, "sigma must be finite and at least 0"),
        ((3, math.inf), {}, "sigma must be finite and at least 0"),
        ((3, math.nan), {}, "sigma must be finite and at least 0"),
        (((2, 3), [1.0, 2.0, 3.0]), {}, "sigma must be a number or have shape"),
        ((3, 1.0), {"grid": 0.3}, "grid must be a power of two"),
        ((3, 1.0), {"grid": -1.0}, "grid must be a power of two"),
        ((3, 1.0), {"grid": 0.0}, "grid must be a power of two"),
        ((3, 1.0), {"grid": 2.0**401}, "grid must be a power of two"),
        ((3, 2.0**-390), {"grid": 2.0**-401}, "grid must be a power of two"),
        ((3, 1e-300), {}, "sigma / 2\\^26"),
        ((3, 4.1), {"grid": 2.0**-30}, "at most 2\\^32 grid"),
        ((-3, 1.0), {}, "sizes >= 0"),
        (((), 1.0), {}, "at least one axis"),
        ((3, 1.0), {"out": np.empty(4)}, "out must be"),
        ((3, 1.0), {"n_threads": 0}, "n_threads must be"),
        ((3, 1.0), {"rng": -1}, "seed must be"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kernels.gaussian(*arguments, **options)


def test_wrong_types_are_refused_by_name():
    with pytest.raises(TypeError, match="shape must be"):
        kernels.gaussian(2.5, 1.0)
    with pytest.raises(TypeError, match="seed must be"):
        kernels.gaussian(3, 1.0, rng=np.random.default_rng(0))


def test_more_silos_than_the_nonce_holds_overflow():
    with pytest.raises(OverflowError, match="2\\^48"):
        kernels.gaussian(((1 << 48) + 1, 0), 1.0)


def test_goe_equals_its_reference(isa):
    for sigma, grid in ((1.5, None), ([1.0, 2.0**32, 0.0], 1.0)):
        m = np.size(sigma)
        got = kernels.goe(m, 37, sigma, grid=grid, rng=5)
        assert np.array_equal(got, reference.goe(m, 37, sigma, grid=grid, rng=5))


def test_goe_is_symmetric_on_the_grid_with_the_stated_variances():
    m, d, sigma, grid = 60, 70, 6.0, 2.0**-20
    H = kernels.goe(m, d, sigma, grid=grid, rng=77)
    assert np.array_equal(H, np.swapaxes(H, 1, 2))
    assert np.array_equal(H / grid, np.rint(H / grid))
    above = H[:, *np.triu_indices(d, 1)]
    for values, variance in ((H[:, range(d), range(d)], sigma**2), (above, sigma**2 / 2)):
        squares = np.sum(values**2) / variance
        assert 2 * min(
            stats.chi2.cdf(squares, values.size), stats.chi2.sf(squares, values.size)
        ) > (P_VALUE)
    assert len(np.unique(above.view(np.int64))) > 0.99 * above.size


def test_goe_off_diagonal_sigma_is_never_below_sigma_over_root_two(monkeypatch):
    seen = []
    real = _core.gaussian
    monkeypatch.setattr(_core, "gaussian", lambda *a: (seen.append(a[2].copy()), real(*a))[1])
    sigma = np.random.default_rng(0).uniform(0.5, 2.0, 300)
    kernels.goe(300, 2, sigma, rng=1)
    assert np.array_equal(seen[0], sigma)
    for s, above in zip(sigma, seen[1], strict=True):
        assert (
            Fraction(s) ** 2
            <= 2 * Fraction(above) ** 2
            <= Fraction(s) ** 2 * (1 + Fraction(2) ** -50)
        )


@pytest.mark.proof
def test_table_is_what_its_program_makes(source_tree):
    folder = source_tree / "src" / "csrc" / "noise"
    made = subprocess.run(
        [sys.executable, folder / "gaussian_table.py"], capture_output=True, text=True, check=True
    )
    assert made.stdout == (folder / "gaussian_table.h").read_text()
