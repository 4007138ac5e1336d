"""The pairs that secret samples are charged by, against enumeration, integration and attacks."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from cases import for_each
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy.special import ndtr
from scipy.stats import beta

from dpkern.privacy import NoiseStream
from dpkern.privacy.guarantees.gdp import gdp_delta, gdp_mu
from dpkern.privacy.sampling import loss_distributions
from dpkern.privacy.sampling.amplification import (
    Sampled,
    sampled_delta,
    sampled_epsilon,
    sampled_scale,
)
from dpkern.privacy.sampling.record_sampling import make_record_sampler

WOR, POISSON = "without_replacement", "poisson"
RELATION = {WOR: "replace_one", POISSON: "add_remove"}


def exact(rate, mu, epsilon):
    """The profile of one batch of fixed size, at any epsilon, in high precision."""
    with mpmath.workdps(40):
        g, mu, epsilon = mpmath.mpf(rate), mpmath.mpf(mu), mpmath.mpf(epsilon)
        if epsilon < 0:
            return -mpmath.expm1(epsilon) + mpmath.exp(epsilon) * exact(g, mu, -epsilon)
        z = mu / 2 + mpmath.log1p(mpmath.expm1(epsilon) / g) / mu
        return g * (mpmath.ncdf(mu - z) - (1 + mpmath.expm1(epsilon) / g) * mpmath.ncdf(-z))


def distribution(method, rate, mu, interval):
    """dp-accounting's loss distribution, without replacement of the profile on a fine grid."""
    if method == POISSON:
        return privacy_loss_distribution.from_gaussian_mechanism(
            1.0 / mu, value_discretization_interval=interval, sampling_prob=rate
        )
    last = math.ceil(math.log1p(rate * math.expm1(mu * (8.0 + 0.5 * mu))) / interval)
    loss = np.arange(last + 1) * interval
    z = 0.5 * mu + np.log1p(np.expm1(loss) / rate) / mu
    h = np.maximum(rate * ndtr(mu - z) + (1.0 - rate - np.exp(loss)) * ndtr(-z), 0.0)
    mirrored = 1.0 - np.exp(-loss) + np.exp(-loss) * h
    deltas = np.minimum.accumulate(np.concatenate([mirrored[:0:-1], h]))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def test_the_normal_laws_tails_are_as_exact_as_is_relied_on():
    rng = np.random.default_rng(0)
    for t in rng.uniform(-24.0, 24.0, 400):
        true = mpmath.ncdf(mpmath.mpf(t))
        assert abs(mpmath.mpf(float(ndtr(t))) / true - 1) < loss_distributions._TAIL_ERROR


@for_each("rate", [1e-4, 0.01, 0.2, 0.9])
@for_each("mu", [1e-3, 0.1, 1.0, 3.9])
def test_a_pair_dominates_its_profile_at_every_loss(rate, mu):
    """Its own delta, by sums of its masses, at multiples of the interval and between them."""
    square = loss_distributions.Pair(rate, mu).square(positive=True)
    interval = loss_distributions.interval_of([(2.0 * square, 1)], 1)
    losses = loss_distributions.symmetric(rate, mu, interval, 1)
    largest = 0.9 * losses.losses[-1]
    for epsilon in [*np.linspace(-largest, largest, 31), *losses.losses[::97]]:
        above = losses.losses > epsilon
        found = losses.infinite - np.dot(
            np.expm1(epsilon - losses.losses[above]), losses.masses[above]
        )
        true = exact(rate, mu, epsilon)
        assert found >= true * (1 - mpmath.mpf(2) ** -40)
        if true > 1e-12:
            assert found <= true * 1.01 + 1e-4 * mu * rate


def test_the_two_halves_of_the_profile_are_convex_together():
    """The slopes at 1 are those of the atom at loss 0, which has (1 - g) P(|Z| < mu / 2)."""
    for rate, mu in ((0.05, 0.42), (0.5, 2.0), (0.001, 1.0)):
        below, middle, above = (exact(rate, mu, mpmath.log1p(s)) for s in (-1e-9, 0, 1e-9))
        left, right = (middle - below) * 10**9, (above - middle) * 10**9
        assert right - left == pytest.approx((1.0 - rate) * (1.0 - 2.0 * ndtr(-0.5 * mu)), rel=1e-4)
        losses = loss_distributions.symmetric(rate, mu, 1e-5 * mu * rate, 1)
        (atom,) = losses.masses[losses.places == 0]
        assert atom == pytest.approx(float(right - left), rel=1e-3)


@for_each("seed", range(20))
def test_the_theorem_holds_for_random_mechanisms_on_few_records(seed):
    """n records, batches of K, any law of the outcome for every batch: all by enumeration."""
    rng = np.random.default_rng(seed)
    n, K = int(rng.integers(2, 6)), 1
    K = int(rng.integers(1, n))
    law = {}

    def of(batch):  # contents, in which 0 and n stand for the record and what replaces it
        key = tuple(sorted(batch))
        if key not in law:
            law[key] = rng.dirichlet(np.full(5, 0.7))
        return law[key]

    def mixture(record):
        records = [record, *range(1, n)]
        return np.mean([of(c) for c in itertools.combinations(records, K)], axis=0)

    M, N = mixture(0), mixture(n)

    def H(P, Q, alpha):
        return np.maximum(P - alpha * Q, 0.0).sum()

    everything = [tuple(sorted(c)) for c in itertools.combinations(range(n + 1), K)]
    near = [(of(a), of(b)) for a in everything for b in everything if len(set(a) & set(b)) == K - 1]

    def base(alpha):
        return max(H(P, Q, alpha) for P, Q in near)

    g = K / n
    for alpha in (1.0, 1.02, 1.2, 1.5, 2.0, 4.0):
        bound = g * base(1.0 + (alpha - 1.0) / g)
        assert max(H(M, N, alpha), H(N, M, alpha)) <= bound + 1e-12
        mirrored = 1.0 - 1.0 / alpha + bound / alpha
        assert max(H(M, N, 1.0 / alpha), H(N, M, 1.0 / alpha)) <= mirrored + 1e-12


@for_each(("n", "K"), [(2, 1), (3, 2), (4, 1), (4, 2)])
@for_each("noise", [0.7, 2.0])
def test_certified_deltas_bound_those_of_few_records_by_integration(n, K, noise):
    x = np.linspace(-25.0, 25.0, 20_001)
    one = frozenset({(Sampled(WOR, K, n, noise / 2.0), 1)})
    best = 0.0
    for others in itertools.product((-1.0, 0.0, 1.0), repeat=n - 1):
        P, Q = (
            np.mean(
                [
                    np.exp(-0.5 * ((x - sum(b)) / noise) ** 2)
                    for b in itertools.combinations((first, *others), K)
                ],
                axis=0,
            )
            / (noise * math.sqrt(2.0 * math.pi))
            for first in (1.0, -1.0)
        )
        for epsilon in (0.01, 0.3, 1.0):
            certified = sampled_delta(one, epsilon, "replace_one")
            for a, b in ((P, Q), (Q, P)):
                true = np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * (x[1] - x[0])
                assert true <= certified * (1.0 + 1e-9)
                best = max(best, true / certified)
    assert best > (0.9 if n == 2 else 0.3)


def test_two_batches_by_integration_in_two_dimensions():
    rate, noise = 0.5, 1.5
    x = np.linspace(-14.0, 14.0, 1401)
    density = {m: np.exp(-0.5 * ((x - m) / noise) ** 2) / (noise * math.sqrt(2.0 * math.pi))
               for m in (-1.0, 0.0, 1.0)}  # fmt: skip
    two = frozenset({(Sampled(WOR, 1, 2, noise / 2.0), 2)})
    for other in (-1.0, 0.0, 1.0):
        P = rate * density[1.0] + (1.0 - rate) * density[other]
        Q = rate * density[-1.0] + (1.0 - rate) * density[other]
        both = np.outer(P, P), np.outer(Q, Q)
        for epsilon in (0.1, 0.5, 1.5):
            certified = sampled_delta(two, epsilon, "replace_one")
            for a, b in (both, both[::-1]):
                true = np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * (x[1] - x[0]) ** 2
                assert true <= certified * (1.0 + 1e-9)


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(24))
def test_compositions_are_dp_accountings_from_above(seed):
    rng = np.random.default_rng(1000 + seed)
    method = (WOR, POISSON)[seed % 2]
    size = int(10.0 ** rng.uniform(1.0, 4.0))
    times = int(10.0 ** rng.uniform(0.0, 3.0))
    delta = 10.0 ** rng.uniform(-8.0, -3.0)
    rows = [(max(1, int(size * rng.uniform(0.001, 0.6))), float(rng.uniform(0.7, 8.0)), times)]
    if seed % 3 == 0:
        rows.append((max(1, size // 5), 2.0 * rows[0][1], int(rng.integers(1, 20))))
    events = {(Sampled(method, k, size, s), t) for k, s, t in rows}
    full = float(rng.uniform(3.0, 30.0))
    if seed % 4 == 0:
        events.add((Sampled(None, 1, 1, full), 3))
    found = sampled_epsilon(frozenset(events), delta, RELATION[method])
    if found == math.inf:
        assert sum(t * (k / size / s) ** 2 for k, s, t in rows) > 8.0
        return
    deviation = math.sqrt(sum(t * (k / size) ** 2 * math.expm1(s**-2) for k, s, t in rows))
    interval = min(deviation / 4000.0, deviation / math.sqrt(sum(t for *_, t in rows)) / 40.0)
    total = None
    for k, s, t in rows:
        one = distribution(method, k / size, 1.0 / s, interval).self_compose(t)
        total = one if total is None else total.compose(one)
    if seed % 4 == 0:
        total = total.compose(
            privacy_loss_distribution.from_gaussian_mechanism(
                full / math.sqrt(3.0), value_discretization_interval=interval
            )
        )
    true = total.get_epsilon_for_delta(delta)
    assert true * (1.0 - 1e-6) <= found <= true * (1.0 + 1e-3) + 1e-6


@pytest.mark.statistical
@pytest.mark.parametrize("other", [0.0, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_an_attack_on_mixtures_stays_below_the_certified_delta(other, seed):
    """The likelihood ratio of all rounds, mixture against mixture, on 200 000 runs each."""
    rng = np.random.default_rng(seed)
    rate, noise, times, runs = 0.05, 2.373, 100, 200_000
    events = frozenset({(Sampled(WOR, 50, 1000, noise), times)})
    losses = np.zeros(runs)
    for _ in range(times):
        centre = np.where(rng.random(runs) < rate, 0.5, 0.5 * other)
        y = centre + noise * rng.standard_normal(runs)
        with_it, without = (
            rate * np.exp(-0.5 * ((y - first) / noise) ** 2)
            + (1.0 - rate) * np.exp(-0.5 * ((y - 0.5 * other) / noise) ** 2)
            for first in (0.5, -0.5)
        )
        losses += np.log(with_it / without)
    for epsilon in (0.0, 0.1, 0.3):
        certified = sampled_delta(events, epsilon, "replace_one")
        gain = np.maximum(-np.expm1(epsilon - losses), 0.0)
        least = gain.mean() - 4.0 * gain.std() / math.sqrt(runs)
        assert least <= certified
        if epsilon == 0.0 and other == 1.0:
            assert gain.mean() > 0.7 * certified


@pytest.mark.statistical
def test_an_audit_of_the_drawn_batches_stays_below_the_certificate():
    """Batches by the sampler itself, noise as released; a lower bound by Clopper and Pearson."""
    sampler = make_record_sampler(
        WOR, 2, sizes=np.array([8]), releases=4, neighbours="replace_one", trust="silo"
    )
    offsets, active = np.array([0, 8]), np.array([True])
    rng, scores = np.random.default_rng(3), {}
    for sign in (1.0, -1.0):
        values = np.full(8, 1.0)
        values[0] = sign
        found = []
        for run in range(1500):
            stream, total = NoiseStream(run), 0.0
            for r in range(4):
                chosen, _ = sampler.draw(stream, offsets, r, active)
                total += values[chosen].sum() + rng.standard_normal()
            found.append(total)
        scores[sign] = np.array(found)
    events = frozenset({(Sampled(WOR, 2, 8, 0.5), 4)})
    threshold = float(np.median(scores[1.0]))
    hits, false = (int((scores[s] > threshold).sum()) for s in (1.0, -1.0))
    low, high = beta.ppf(0.001, hits, 1501 - hits), beta.ppf(0.999, false + 1, 1500 - false)
    for epsilon in (0.0, 0.2, 0.5):
        assert low - math.exp(epsilon) * high <= sampled_delta(events, epsilon, "replace_one")
    assert low - high > 0.05


def test_the_figures_of_an_outside_check():
    """1 000 records, batches of 50, 100 rounds: 2.00 by Renyi DP, 0.77 by the best attack known.

    The pair of one direction alone gives 0.874, and does not bound compositions (Lebeda, Regehr,
    Kamath, Steinke 2024).
    """
    events = frozenset({(Sampled(WOR, 50, 1000, 2.373), 100)})
    assert 0.946 < sampled_epsilon(events, 1e-5, "replace_one") < 0.948
    one_sided = frozenset({(Sampled(POISSON, 50, 1000, 2.373), 100)})
    assert 0.874 < sampled_epsilon(one_sided, 1e-5, "add_remove") < 0.875


@for_each(("method", "k", "n", "times"), [
    (WOR, 50, 1000, 100), (WOR, 1, 2000, 10_000), (WOR, 10, 40, 7), (POISSON, 50, 1000, 100),
    (POISSON, 1, 10_000, 1), (WOR, 10, 100_000, 2000),
])  # fmt: skip
@for_each(("epsilon", "delta"), [(0.3, 1e-7), (4.0, 1e-5)])
def test_a_calibration_spends_the_budget_and_no_more(method, k, n, times, epsilon, delta):
    multiplier = math.sqrt(times) / gdp_mu(epsilon, delta)
    scale = sampled_scale(
        frozenset({(Sampled(method, k, n, multiplier), times)}), epsilon, delta, RELATION[method]
    )
    spent = frozenset({(Sampled(method, k, n, multiplier * scale), times)})
    found = sampled_epsilon(spent, delta, RELATION[method])
    least = 0.999 if multiplier * scale > 0.2501 else 0.0
    assert least * epsilon <= found <= epsilon * (1.0 + 1e-6)


@for_each("times", [1, 100, 10_000])
def test_rates_near_one_cost_what_full_batches_do(times):
    mu = 0.5 / math.sqrt(times)
    events = frozenset({(Sampled(WOR, 10**7 - 1, 10**7, 1.0 / mu), times)})
    for epsilon in (0.1, 0.5, 2.0):
        assert sampled_delta(events, epsilon, "replace_one") == pytest.approx(
            gdp_delta(0.5, epsilon), rel=0.01
        )
