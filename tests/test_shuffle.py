"""The shuffle protocol: simulated sums beside messages, their distribution, and certificates."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cases import for_each
from scipy import stats

import dpkern as dpk
from dpkern import NoiseStream, _core, kernels, reference
from dpkern.kernels.shuffle import coins_together
from dpkern.papers.cpsgd import cpsgd_epsilon
from dpkern.privacy import (
    Certificate,
    Release,
    compose_parallel,
    compose_sequential,
    gdp_epsilon,
    gdp_mu,
)
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.guarantees.gdp import GaussianDP
from dpkern.privacy.guarantees.zcdp import ConcentratedDP
from dpkern.privacy.mechanisms.binomial_sum import BinomialSum
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.shuffle_protocol import analyze, randomize, shuffle
from dpkern.reference.shuffle import encoded
from dpkern.stream import Purpose
from dpkern.verification.recomputation import binomial_mu

# A seeded test statistic fails a right sampler once in a million seeds.
P_VALUE = 1e-6

SIZES = [
    *((1, 1, 1, 0), (1, 1, 3, 1), (5, 3, 4, 7), (40, 50, 6, 5), (129, 1, 2, 9), (7, 129, 5, 3)),
    *((3, 700, 2, 2), (300, 17, 3, 4), (2047, 1, 2, 2)),
]
# Coins of a coordinate around a word, what is tossed together, and chunks and tiles of its words.
COINS = [
    *(1, 63, 64, 65, 4095, 4096, 4097, 262143, 262144, 270336, (1 << 20) - 1, 1 << 20),
    *((1 << 20) + 4097, 64 << 20, 65 << 20, 1984 << 20, (1985 << 20) + (255 << 12) + 4095),
]


def vectors(n, d, bound=1.0, seed=0):
    """Rows on both sides of the bound."""
    rng = np.random.default_rng(seed)
    V = rng.standard_normal((n, d))
    return V * (bound * rng.uniform(0.1, 1.5, (n, 1)) / np.linalg.norm(V, axis=1, keepdims=True))


def by_messages(V, bound, g, b, rng):
    n, d = V.shape
    bits = randomize(V, bound=bound, g=g, b=b, rng=rng)
    labels, moved = shuffle(bits, rng=99)
    return analyze(labels, moved, n=n, dim=d, bound=bound, g=g, b=b)


@for_each(("n", "d", "g", "b"), SIZES)
def test_sum_is_that_of_the_shuffled_messages_to_the_bit(isa, n, d, g, b):
    V = vectors(n, d, bound=0.7, seed=n)
    ours = kernels.shuffle_sum(V, bound=0.7, g=g, b=b, rng=n + d)
    assert np.array_equal(ours, reference.shuffle_sum(V, bound=0.7, g=g, b=b, rng=n + d))
    assert np.array_equal(ours, by_messages(V, 0.7, g, b, n + d))


def test_no_coin_is_left_out_or_counted_twice(isa):
    V = np.zeros((1, 2))
    for b in COINS:
        ours = kernels.shuffle_sum(V, bound=1.0, g=2, b=b, rng=b)
        assert np.array_equal(ours, reference.shuffle_sum(V, bound=1.0, g=2, b=b, rng=b))


@for_each(("n", "d", "b"), [(1, 1, 5), (2, 3, 100_000), (700, 33, 40), (5000, 2, 3)])
def test_sum_does_not_depend_on_threads(n, d, b):
    V = vectors(n, d)
    one = kernels.shuffle_sum(V, bound=1.0, g=9, b=b, rng=4, n_threads=1)
    for threads in (2, 3, 5, 16):
        more = kernels.shuffle_sum(V, bound=1.0, g=9, b=b, rng=4, n_threads=threads)
        assert np.array_equal(one, more)


# ---------------------------------------------------------------------------- coins tossed together


@for_each("k", [12, 20])
def test_law_of_coins_tossed_together_is_the_binomial_one_to_176_bits(k):
    """Against probabilities of 700 bits, the first by the gamma function."""
    mpmath.mp.prec = 700
    top, rest, guide = coins_together(k)
    n, half = 1 << k, 1 << (k - 1)
    T = [
        int(t) << 128 | int(a) << 64 | int(b)
        for t, (a, b) in zip(top, rest.reshape(-1, 2).tolist(), strict=True)
    ]
    assert sorted(T) == T
    assert T[-1] == 1 << 191
    assert len(T) < 1 << 14
    p = mpmath.binomial(n, half) / mpmath.mpf(2) ** n
    law, apart, before = [], mpmath.mpf(0), 0
    for y, t in enumerate(T):
        law.append(p if y == 0 else 2 * p)
        apart += abs(mpmath.mpf(t - before) / 2**191 - law[-1])
        p, before = p * (half - y) / (half + y + 1), t
    left_out = 1 - mpmath.fsum(law)
    assert 0 < left_out < mpmath.mpf(2) ** -200
    assert apart / 2 + left_out < mpmath.mpf(2) ** -176
    for i in range(1024):
        assert top[guide[i]] >= np.uint64(i << 53)
        assert guide[i] == 0 or top[guide[i] - 1] < np.uint64(i << 53)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("m", "draws"), [(4096, 40_000), (3 * 4096 + 5, 40_000), (1 << 20, 40_000)]
)
def test_coins_tossed_together_have_the_law_of_single_ones(m, draws):
    sums = kernels.shuffle_sum(np.zeros((1, draws)), bound=1.0, g=2, b=m, rng=m)
    ones = np.rint(sums + m / 2).astype(int)
    # Twenty cells of equal probability, nearly, and the ends of the tails.
    edges = stats.binom.ppf(np.r_[1e-4, np.linspace(0, 1, 21)[1:-1], 1 - 1e-4], m, 0.5)
    law = np.diff(np.r_[0.0, stats.binom.cdf(edges, m, 0.5), 1.0])
    seen = np.bincount(np.searchsorted(edges, ones), minlength=len(law))
    assert stats.chisquare(seen, law * draws).pvalue > P_VALUE
    parity = stats.binomtest(int((ones % 2).sum()), draws).pvalue  # also of odd and even
    assert parity > P_VALUE


def test_words_that_begin_like_a_threshold_are_decided_by_128_more_bits(isa, monkeypatch):
    """With thresholds that all begin alike: 2^190 + i 2^128 / 200, i = 0 .. 199, then the end.

    No word begins like them (one in 2^63): they are put where a word of the stream is.
    """
    b, rng = 4096, 11
    with NoiseStream(rng).release() as release:
        word = int(release.words(Purpose.BINOMIAL, 65)[64])
        block = np.empty(64, dtype=np.uint8)
        number = (Purpose.BINOMIAL | 0x8000) << 48
        _core.chacha20_block(release.key, 64, number, block)
    high, low = block.view("<u8")[:2].tolist()
    for steps, index in ((200, None), (3, 1), (3, 2)):
        rests = [(i << 128) // steps for i in range(steps)]
        if index is not None:  # one that is the word's own, or one more
            rests = sorted([0, high << 64 | low, (high << 64 | low) + 1])
        top = np.array([word >> 1] * len(rests) + [1 << 63], dtype=np.uint64)
        rest = [[r >> 64, r & (1 << 64) - 1] for r in rests] + [[0, 0]]
        guide = np.searchsorted(top, np.arange(1024, dtype=np.uint64) << np.uint64(53))
        law = top, np.array(rest, dtype=np.uint64).ravel(), guide.astype(np.int64)
        monkeypatch.setattr("dpkern.kernels.shuffle.coins_together", lambda k, law=law: law)
        (total,) = kernels.shuffle_sum(np.zeros((1, 1)), bound=1.0, g=2, b=b, rng=rng)
        y = sum(r <= (high << 64 | low) for r in rests)
        assert total == (-y if word & 1 else y)


def test_a_symmetric_law_has_both_signs_equally_often():
    draws = 20_000
    sums = kernels.shuffle_sum(np.zeros((1, draws)), bound=1.0, g=2, b=1 << 20, rng=5)
    left, right = int((sums < 0).sum()), int((sums > 0).sum())
    assert stats.binomtest(left, left + right).pvalue > P_VALUE


# ----------------------------------------------------------------------------------- all of a count


def law_of_count(x, bound, g, b):
    """Probabilities of the ones of one coordinate, for users with the numbers x."""
    law = stats.binom.pmf(np.arange(len(x) * b + 1), len(x) * b, 0.5)
    for value in x:
        t = (value + bound) * g / (2.0 * bound)
        shift = np.zeros(g + 1)
        shift[math.floor(t)] += 1.0 - (t - math.floor(t))
        shift[min(math.floor(t) + 1, g)] += t - math.floor(t)
        law = np.convolve(law, shift)
    return law


@pytest.mark.statistical
@pytest.mark.parametrize("path", ["simulated", "messages"])
@pytest.mark.parametrize("x", [[0.0], [-0.9, 0.3, 0.77], [0.1] * 6])
def test_counts_follow_the_law_of_the_protocol(path, x):
    bound, g, b, draws = 1.0, 3, 2, 3000
    n, V = len(x), np.array(x)[:, np.newaxis]
    stream = NoiseStream(5)
    if path == "simulated":
        sums = [kernels.shuffle_sum(V, bound=bound, g=g, b=b, rng=stream) for _ in range(draws)]
    else:
        sums = [by_messages(V, bound, g, b, stream) for _ in range(draws)]
    ones = np.rint((np.ravel(sums) * g / bound + n * (g + b)) / 2).astype(int)
    expected = draws * law_of_count(x, bound, g, b)
    seen = np.bincount(ones, minlength=len(expected))
    assert seen[expected == 0.0].sum() == 0
    many = expected > 5.0
    seen = np.append(seen[many], seen[~many].sum())
    expected = np.append(expected[many], expected[~many].sum() + 1e-9)
    p = stats.chi2.sf(((seen - expected) ** 2 / np.maximum(expected, 0.5)).sum(), len(seen) - 1)
    assert p > P_VALUE


def test_a_fraction_is_rounded_up_by_the_words_below_it_and_no_others(isa):
    """f 2^52 of the 2^52 words: the word that is f itself rounds down, the one before it up."""
    n, seed = 60, 4
    with NoiseStream(seed).release() as release:
        u = (release.words(Purpose.ROUNDING, n) >> np.uint64(12)) * 2.0**-52
    assert u.max() < 0.99  # within the clip: t = 1 + x exactly
    for x, ones in ((u, n), (u + 2.0**-52, 2 * n)):
        total = kernels.shuffle_sum(x[:, np.newaxis], bound=1.0, g=2, b=0, rng=seed)
        assert total == ones - n


@pytest.mark.statistical
def test_sum_is_unbiased_with_the_variance_of_coins_and_rounding():
    n, d, bound, g, b, draws = 30, 3, 2.5, 7, 6, 4000
    V = vectors(n, d, bound=0.9 * bound)
    norms = np.linalg.norm(V, axis=1, keepdims=True)
    V = V * np.minimum(1.0, 0.99 * bound / norms)
    stream = NoiseStream(17)
    sums = np.array(
        [kernels.shuffle_sum(V, bound=bound, g=g, b=b, rng=stream) for _ in range(draws)]
    )
    t = (V + bound) * g / (2 * bound)
    f = t - np.floor(t)
    variance = (2 * bound / g) ** 2 * (n * b / 4 + (f * (1 - f)).sum(axis=0))
    z = (sums.mean(axis=0) - V.sum(axis=0)) / np.sqrt(variance / draws)
    assert np.all(stats.norm.sf(np.abs(z)) > P_VALUE)
    ratio = sums.var(axis=0, ddof=1) / variance
    slack = stats.norm.isf(P_VALUE) * math.sqrt(2 / draws)
    assert np.all(np.abs(ratio - 1) < slack)
    # the coordinates are independent
    assert np.all(np.abs(np.corrcoef(sums.T) - np.eye(d)) < stats.norm.isf(P_VALUE) / draws**0.5)


@pytest.mark.statistical
def test_coins_of_all_coordinates_are_fair_and_independent():
    d, b = 4000, 10_000
    sums = kernels.shuffle_sum(np.zeros((1, d)), bound=1.0, g=2, b=b, rng=8)
    ones = (sums * 2 + 2 + b) / 2 - 1  # g = 2: the vector 0 is one step of its own
    statistic = ((ones - b / 2) ** 2 / (b / 4)).sum()
    assert min(stats.chi2.cdf(statistic, d), stats.chi2.sf(statistic, d)) > P_VALUE


def test_vectors_on_the_grid_add_up_exactly_without_coins():
    rng = np.random.default_rng(3)
    V = rng.integers(-3, 4, (500, 5)) / 16.0
    total = kernels.shuffle_sum(V, bound=4.0, g=128, b=0, rng=1)
    assert np.array_equal(total, V.sum(axis=0))


def test_no_draw_repeats_across_releases_purposes_and_coordinates():
    stream, seen = NoiseStream(2), set()
    for _ in range(3):
        with stream.release() as release:
            for purpose in (Purpose.BINOMIAL, Purpose.ROUNDING, Purpose.SHUFFLE):
                for index in range(3):
                    seen.update(release.words(purpose, 300, index).tolist())
    assert len(seen) == 3 * 3 * 3 * 300
    V, stream = np.full((50, 4), 0.2), NoiseStream(3)
    sums = [tuple(kernels.shuffle_sum(V, bound=1.0, g=50, b=50, rng=stream)) for _ in range(20)]
    assert len(set(sums)) == 20


def test_long_vectors_are_scaled_to_the_bound_and_bad_ones_count_as_zero():
    g, bound = 1 << 40, 2.0
    V = np.array([[3e5, 4e5], [np.nan, 1.0], [np.inf, 0.0], [1e300, 1e300], [0.0, 0.0]])
    one_by_one = [kernels.shuffle_sum(v[np.newaxis], bound=bound, g=g, b=0, rng=1) for v in V]
    assert np.allclose(one_by_one[0], [1.2, 1.6], atol=1e-11)
    assert np.allclose(one_by_one[1:], 0.0, atol=1e-11)


@for_each("bound", [2.0**-100, 1e-20, 1e50, 2.0**400])
def test_vectors_within_a_small_or_large_bound_are_not_shortened(bound):
    V = np.array([[0.6, -0.79]]) * bound
    total = kernels.shuffle_sum(V, bound=bound, g=1 << 40, b=0, rng=1)
    assert np.allclose(total, V[0], rtol=1e-9)


def adversarial_pairs():
    rng = np.random.default_rng(11)
    for d in (1, 2, 3, 17, 400):
        flat = np.full(d, 1.0)
        axis = np.eye(d)[0]
        for x in (
            flat,
            axis,
            rng.standard_normal(d),
            rng.uniform(0.1, 10, d) * 1e200,
            flat * 1e-150,
        ):
            for scale in (1.0, math.nextafter(1.0, 0.0), math.nextafter(1.0, 2.0), 7.0):
                yield d, x / np.linalg.norm(x / x.max()) / x.max() * scale


@for_each("g", [1, 176, 1 << 30])
@for_each("bound", [1.0, 0.3, 1e-30, 1e120])
def test_two_encoded_vectors_are_at_most_g_apart_exactly(g, bound):
    for _, x in adversarial_pairs():
        with np.errstate(all="ignore"):
            t = encoded(np.stack([x * bound, -x * bound]), bound, g)
        assert np.all(t >= 0.0)
        assert np.all(t <= g)
        square = sum((Fraction(a) - Fraction(c)) ** 2 for a, c in t.T.tolist())
        assert square <= g * g


def test_kernel_rounds_the_numbers_whose_distance_is_bounded(isa):
    """On steps so fine that the allowance for floating point is many of them."""
    g = 1 << 50
    for d, x in adversarial_pairs():
        with np.errstate(all="ignore"):
            t = encoded(x[np.newaxis], 1.0, g)[0]
        rounded = (kernels.shuffle_sum(x[np.newaxis], bound=1.0, g=g, b=0, rng=1) * g + g) / 2
        assert np.all(np.abs(rounded - t) <= 4)
        if np.abs(x).max() >= 1.0:
            assert g - np.abs(2 * rounded - g).max() > d


@for_each("d", [1, 2, 5, 50])
def test_replacing_a_vector_moves_the_counts_by_less_than_the_charged_sensitivity(d):
    g, others = 5, vectors(3, d, seed=1)
    rng = np.random.default_rng(d)
    worst = 0.0
    for seed in range(200):
        x = rng.standard_normal(d)
        pair = [np.vstack([others, s * x / np.linalg.norm(x)]) for s in (1.0, -1.0)]
        a, c = (kernels.shuffle_sum(V, bound=1.0, g=g, b=3, rng=seed) * g / 2 for V in pair)
        assert np.abs(a - c).max() <= g + 1e-9
        worst = max(worst, float(np.linalg.norm(a - c)))
    assert worst < g + math.sqrt(d)
    assert worst > 0.8 * g


def mechanism(ledger=None, rng=None, **changes):
    fields = {"what": "gradient", "dim": 50, "n": 30_950, "mu": 0.2}
    channel = Channel(
        Ledger() if ledger is None else ledger,
        NoiseStream(1) if rng is None else rng,
        "the analyser",
    )
    return BinomialSum(channel, **(fields | changes))


def small(ledger=None, rng=None, **changes):
    return mechanism(ledger, rng, **({"dim": 3, "n": 20, "mu": 1.0} | changes))


@for_each("changes", [{}, {"mu": None, "b": 1}, {"honest": 7}, {"mu": None}])
def test_what_leaves_has_the_steps_and_coins_that_are_charged(changes):
    ledger = Ledger()
    found = small(ledger, NoiseStream(6), **changes)
    V = vectors(20, 3)
    released = found.release(V, bound=1.0)
    (entry,) = ledger.releases
    b = 0 if entry.coins is None else entry.coins // changes.get("honest", 20)
    g = round(entry.sensitivity - math.sqrt(3))
    assert np.array_equal(released, reference.shuffle_sum(V, bound=1.0, g=g, b=b, rng=6))


def test_the_least_number_of_coins_is_taken():
    for mu in (0.04, 0.2, 1.0):
        found = mechanism(mu=mu)
        assert found.mu <= mu
        fewer = mechanism(mu=None, b=found.b - 1, g=found.g)
        assert fewer.mu > mu


def test_coins_fall_with_the_budget_and_grow_with_dishonest_owners():
    b = [mechanism(mu=mu).b for mu in (0.04, 0.14, 0.4, 1.4)]
    assert b == sorted(b, reverse=True)
    assert len(set(b)) == 4
    half = mechanism(honest=15_475)
    assert mechanism().b * 2 - 1 <= half.b <= mechanism().b * 2
    assert half.coins == 15_475 * half.b


@for_each("mu", [0.04, 0.4, 3.0, 20.0])
def test_rounding_adds_little_to_sensitivity_and_variance_by_default(mu):
    for n, dim in ((30_950, 50), (10, 1), (100, 10_000)):
        found = mechanism(n=n, dim=dim, mu=mu)
        assert found.b >= 16
        assert found.sensitivity <= 9 / 8 * found.g
        assert found.g >= math.sqrt(n)


def test_calibration_beats_the_theorem_of_the_literature():
    epsilon, delta = 1.0, 1e-6
    ours = mechanism(mu=gdp_mu(epsilon, delta), g=176)
    theirs = next(b for b in range(50, 500) if cpsgd_epsilon(30_950 * b, 176, 50, delta) <= epsilon)
    assert theirs == 133
    assert ours.b < 0.6 * theirs


@for_each("rounds", [1, 25])
def test_certificate_is_that_of_g_b_and_n_recomputed(rounds):
    ledger, n, d, honest = Ledger(), 20, 3, 18
    release = small(ledger, honest=honest)
    for t in range(rounds):
        release.release(vectors(n, d), bound=1.0 + t)
    (entry,) = ledger
    assert entry.times == rounds
    certificate = Certificate.from_ledger(ledger, trust="shuffle", noise="os", at_delta=1e-6)
    step = float(binomial_mu(honest * release.b, release.g + math.sqrt(d)))
    mu = math.sqrt(rounds) * step
    assert certificate.bound == "upper"
    assert mu * (1 - 1e-9) <= certificate.mu <= 1.01 * mu
    assert certificate.epsilon(1e-6) == pytest.approx(gdp_epsilon(certificate.mu, 1e-6), rel=1e-7)
    assert certificate.delta(certificate.epsilon(1e-6)) <= 1e-6
    assert certificate.n_draws == rounds * d


def test_noise_variance_is_the_calibrated_one():
    release = small()
    V = np.zeros((20, 3))
    stds = np.std([release.release(V, bound=2.0) for _ in range(2000)], axis=0)
    t = release.g / 2
    f = t - math.floor(t)
    expected = 4.0 / release.g * math.sqrt(20 * release.b / 4 + 20 * f * (1 - f))
    assert np.all(np.abs(stds / expected - 1) < stats.norm.isf(P_VALUE) / math.sqrt(4000))


def test_without_noise_there_is_no_guarantee():
    ledger = Ledger()
    release = small(ledger, mu=None)
    assert release.b == 0
    assert release.mu == math.inf
    release.release(np.zeros((20, 3)), bound=1.0)
    certificate = Certificate.from_ledger(ledger, trust="shuffle", noise="os")
    assert certificate.epsilon(1e-6) == math.inf
    assert "guarantee   none" in str(certificate)


def test_release_is_recorded_only_when_it_is_made():
    ledger = Ledger()
    release = small(ledger)
    for V, bound in ((np.zeros((19, 3)), 1.0), (np.zeros((20, 3)), 0.0)):
        with pytest.raises(ValueError, match=r"V must have shape|bound "):
            release.release(V, bound=bound)
    assert len(ledger) == 0


def both_kinds():
    """Certificates of a binomial and of a Gaussian run, and of one with both releases."""
    ledgers = Ledger(), Ledger(), Ledger()
    for ledger in (ledgers[0], ledgers[2]):
        small(ledger).release(np.zeros((20, 3)), bound=1.0)
    for ledger in (ledgers[1], ledgers[2]):
        channel = Channel(ledger, NoiseStream(1), "all")
        gaussian = GaussianSum(channel, what="mean", clip=1.0, dim=3, sizes=[20], mu=0.5)
        gaussian.release(np.zeros(3))
    return [Certificate.from_ledger(ledger, trust="shuffle", noise="os") for ledger in ledgers]


def test_binomial_and_gaussian_releases_compose_in_one_run_as_in_two():
    binomial, gaussian, both = both_kinds()
    assert both.mu == pytest.approx(math.hypot(binomial.mu, gaussian.mu), rel=1e-12)
    two = compose_sequential(binomial, gaussian)
    assert two.mu == pytest.approx(both.mu, rel=1e-12)
    assert two.n_draws == both.n_draws == 6
    assert two.epsilon(1e-6) > max(binomial.epsilon(1e-6), gaussian.epsilon(1e-6))
    apart = compose_parallel(binomial, gaussian)
    assert apart.mu == max(binomial.mu, gaussian.mu)


def seen(certificate):
    """The certificate as a solver's run has it."""
    name = "whoever sees the shuffled messages of a round"
    return replace(certificate, releases=[replace(r, seen_by=name) for r in certificate.releases])


def test_a_certificate_of_coins_has_a_mu_and_survives_json():
    binomial, _, both = both_kinds()
    for certificate in (binomial, both):
        assert Certificate.from_dict(certificate.to_dict()) == certificate
        assert certificate.zcdp is None
        assert "binomial noise is Gaussian DP but for" in str(certificate)
    assert dpk.verify(seen(binomial).to_dict())
    assert "binomial noise of" in str(binomial)
    assert binomial.group(2).mu == pytest.approx(2.0 * binomial.mu, rel=1e-12)


def test_a_certificate_of_coins_with_another_figure_is_refused():
    binomial = seen(both_kinds()[0])
    assert not dpk.verify(replace(binomial, guarantee=ConcentratedDP(rho=binomial.rho)).to_dict())
    for factor in (0.98, 1.08):
        wrong = replace(binomial, guarantee=GaussianDP(mu=binomial.mu * factor))
        assert not dpk.verify(wrong.to_dict())


def test_delta_falls_with_epsilon_down_to_what_draws_allow():
    certificate = both_kinds()[0]
    deltas = [certificate.delta(e) for e in np.linspace(0.0, 80.0, 161)]
    assert all(a >= b for a, b in itertools.pairwise(deltas))
    assert deltas[-1] > 0.0
    assert certificate.epsilon(1e-20) < math.inf
    assert certificate.epsilon(1e-30) == math.inf


def test_float_arithmetic_takes_the_guarantee_away():
    ledger = Ledger()
    small(ledger).release(np.zeros((20, 3)), bound=1.0)
    certificate = Certificate.from_ledger(ledger, trust="shuffle", noise="os", arithmetic="float")
    assert certificate.rho == math.inf
    with pytest.raises(ValueError, match="with arithmetic 'float'"):
        replace(certificate, guarantee=ConcentratedDP(rho=0.5))


@for_each(
    ("changes", "message"),
    [
        ({"bound": 0.0}, r"bound must .*got 0.0"),
        ({"bound": 1e-31}, r"bound must .*got 1e-31"),
        ({"g": 0}, r"g must .*got 0"),
        ({"g": 2.0}, r"g must .*got 2.0"),
        ({"b": -1}, r"b must .*got -1"),
        ({"b": 1 << 52}, "n .g . b. must be at most"),
        ({"V": np.zeros(3)}, "V must have shape"),
        ({"V": np.zeros((0, 3))}, "V must have shape"),
        ({"V": [["a"]]}, "V must be real"),
        ({"n_threads": 0}, "n_threads must be"),
    ],
)
def test_arguments_of_a_sum_are_refused_by_name(changes, message):
    arguments = {"V": np.zeros((2, 3)), "bound": 1.0, "g": 4, "b": 3, "rng": 0} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        kernels.shuffle_sum(arguments.pop("V"), **arguments)


@for_each(
    ("changes", "message"),
    [
        ({"b": 3}, "b must be None where mu is given"),
        ({"mu": 0.0}, r"mu must .*got 0.0"),
        ({"mu": 4e-8}, r"mu must .*got 4e-08"),
        ({"honest": 30_951}, r"honest must .*got 30951"),
        ({"honest": 0}, r"honest must .*got 0"),
        ({"g": 0}, r"g must .*got 0"),
        ({"n": 0}, r"n must .*got 0"),
        ({"dim": 0}, r"dim must .*got 0"),
        ({"ledger": []}, r"ledger must .*got list"),
        ({"rng": 3}, r"stream must .*got int"),
    ],
)
def test_arguments_of_the_mechanism_are_refused_by_name(changes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        mechanism(**changes)


def test_wrong_messages_are_refused():
    bits = randomize(np.zeros((2, 3)), bound=1.0, g=2, b=1, rng=0)
    assert bits.shape == (2, 3, 3)
    labels, moved = shuffle(bits, rng=0)
    with pytest.raises(ValueError, match=r"labels and bits must be 27 each, .* got 18 and 18"):
        analyze(labels, moved, n=3, dim=3, bound=1.0, g=2, b=1)
    with pytest.raises(ValueError, match="coins must be None but for one noisy sum"):
        Release(
            what="x", sensitivity=(1.0,), std=(1.0,), grid=(1.0,), dim=1, seen_by="all", coins=4
        )


def test_shuffled_messages_keep_their_labels_and_lose_their_order():
    bits = randomize(vectors(30, 4), bound=1.0, g=5, b=6, rng=1)
    labels, moved = shuffle(bits, rng=NoiseStream(2))
    for k in range(4):
        assert moved[labels == k].sum() == bits[:, k].sum()
    again = shuffle(bits, rng=NoiseStream(3))
    assert not np.array_equal(labels, again[0])
    # sorted labels would be a shuffle that is none
    assert (np.diff(labels) < 0).sum() > bits.size / 4
