"""Binomial noise: each step of its proof, and exact privacy losses that it must not undercut."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from dpkern.papers.cpsgd import cpsgd_epsilon
from dpkern.privacy import Certificate, Release
from dpkern.privacy.ledger import Ledger
from dpkern.privacy.shuffle.binomial import binomial_rho, shuffle_sensitivity

EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


def certificate(coins, g, dim, times=1):
    ledger = Ledger()
    ledger.append(
        Release(
            what="counts",
            sensitivity=shuffle_sensitivity(g, dim),
            std=math.sqrt(coins) / 2,
            grid=1.0,
            dim=dim,
            times=times,
            seen_by="all",
            coins=coins,
        )
    )
    return Certificate.from_ledger(ledger, trust="shuffle", noise="os")


def exact_delta(p, q, epsilon):
    """sup over sets of P(S) - exp(epsilon) Q(S)."""
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def shifted(coins, shift, width):
    """Distribution of Bin(coins, 1/2) + shift on 0 .. width."""
    return stats.binom.pmf(np.arange(width + 1) - shift, coins, 0.5)


def product(laws):
    total = laws[0]
    for law in laws[1:]:
        total = np.multiply.outer(total, law)
    return total


# ---- the steps


@pytest.mark.parametrize("m", [7, 40, 1001])
def test_log_ratio_is_the_sum_of_inverse_hyperbolic_tangents(m):
    with mp.workdps(60):
        for k, s in itertools.product(range(0, m, max(1, m // 9)), (1, 2, 3)):
            if k + s > m:
                continue
            w = mp.mpf(k) - mp.mpf(m) / 2
            ratio = mp.log(mp.binomial(m, k) / mp.binomial(m, k + s))
            terms = [2 * mp.atanh((w + j - 0.5) / (mp.mpf(m + 1) / 2)) for j in range(1, s + 1)]
            assert mp.almosteq(ratio, mp.fsum(terms), abs_eps=mp.mpf(10) ** -50)


def test_inverse_hyperbolic_tangent_is_below_its_bound():
    x = np.linspace(-0.999, 0.999, 4001)
    assert np.all(2 * np.arctanh(x) <= 2 * x + 2 / 3 * np.abs(x) ** 3 / (1 - x * x) + 1e-12)


@pytest.mark.parametrize("m", [60, 1000, 4_116_350])
def test_event_that_is_left_out_has_probability_2_to_the_minus_100(m):
    tau = math.sqrt(m * 35.004)
    with mp.workprec(200):  # with the distance of the drawn counts from their distribution
        two_sided = 2 * mp.exp(-2 * mp.mpf(tau) ** 2 / m)
        assert two_sided + mp.mpf(2) ** -143 <= mp.mpf(2) ** -100 - mp.mpf(2) ** -113
    # Hoeffding's bound itself, where the tail can be added up
    if m <= 1000:
        with mp.workdps(60):
            first = math.ceil(m / 2 + tau)
            tail = 2 * mp.fsum(mp.binomial(m, k) for k in range(first, m + 1)) / mp.mpf(2) ** m
            assert tail <= two_sided


@pytest.mark.parametrize(("coins", "g", "dim"), [(2000, 3, 1), (9000, 5, 2), (30_000, 6, 4)])
def test_moments_of_the_loss_on_the_event_are_below_the_bound(coins, g, dim):
    """E[exp((alpha - 1) L); E] by adding up, for shifts of l2 norm up to the sensitivity."""
    rho = float(binomial_rho(coins, shuffle_sensitivity(g, dim), dim))
    D = shuffle_sensitivity(g, dim)
    tau = math.sqrt(coins * 35.004)
    k = np.arange(coins + 1)
    log_p = stats.binom.logpmf(k, coins, 0.5)
    live = np.abs(k - coins / 2) <= tau
    rng = np.random.default_rng(0)
    shifts = [np.eye(dim, dtype=int)[0] * math.floor(D), np.full(dim, math.floor(D / dim**0.5))]
    shifts += [
        np.rint(v / np.linalg.norm(v) * (D - dim**0.5 / 2)) for v in rng.normal(size=(20, dim))
    ]
    for shift, alpha in itertools.product(shifts, (1.01, 2.0, 10.0, 60.0)):
        s = np.asarray(shift, dtype=int)
        assert np.linalg.norm(s) <= D + 1e-9
        total = 0.0
        for part in s:
            inside = live & (k + part >= 0) & (k + part <= coins)
            assert np.array_equal(inside, live)
            at = k[inside]
            loss = log_p[at] - log_p[at + part]
            total += math.log(np.exp(log_p[at] + (alpha - 1) * loss).sum())
        assert total <= (alpha - 1) * alpha * rho


@pytest.mark.parametrize("coins", [3000, 10**5, 4_116_350, 10**12])
@pytest.mark.parametrize(("g", "dim"), [(1, 1), (6, 4), (20, 50)])
def test_rho_is_that_of_the_proof_with_an_event_of_2_to_the_minus_100(coins, g, dim):
    """2 D^2 / (m + 1) + xi, where Hoeffding's bound at tau is 2^-100."""
    D = shuffle_sensitivity(g, dim)
    with mp.workdps(50):
        tau = mp.sqrt(coins * 101 * mp.log(2) / 2)
        a = (tau + D) / (mp.mpf(coins + 1) / 2)
        xi = mp.sqrt(dim) * D * 2 / 3 * a**3 / (1 - a**2)
        exact = 2 * mp.mpf(D) ** 2 / (coins + 1) + xi
        found = binomial_rho(coins, D, dim)
        assert exact <= mp.mpf(found.numerator) / found.denominator <= exact * (1 + 1e-5)


def test_noise_that_is_too_small_for_the_proof_gives_nothing():
    assert binomial_rho(10, 3.0, 1) is None
    assert certificate(100, 20, 1).epsilon(1e-6) == math.inf


def test_more_coins_fewer_steps_and_fewer_coordinates_spend_less():
    spent = [float(binomial_rho(m, 10.0, 5)) for m in (3000, 10_000, 10**5, 10**7)]
    assert spent == sorted(spent, reverse=True)
    assert binomial_rho(10**5, 10.0, 5) < binomial_rho(10**5, 11.0, 5)
    assert binomial_rho(10**5, 10.0, 5) < binomial_rho(10**5, 10.0, 6)
    # for many coins it is the Gaussian's D^2 / (2 s^2), s^2 = (m + 1) / 4
    assert float(binomial_rho(10**12, 10.0, 5)) == pytest.approx(200 / (10**12 + 1), rel=1e-4)


# ---- the exact loss of the whole protocol


@pytest.mark.parametrize(("coins", "g"), [(400, 1), (900, 2), (2500, 4), (40_000, 12)])
def test_certified_delta_is_above_the_exact_one_in_one_dimension(coins, g):
    claim = certificate(coins, g, 1)
    for shift, epsilon in itertools.product(range(-g - 1, g + 2), EPSILONS):
        width = coins + abs(shift)
        p, q = shifted(coins, max(shift, 0), width), shifted(coins, max(-shift, 0), width)
        assert exact_delta(p, q, epsilon) <= claim.delta(epsilon)


@pytest.mark.parametrize("shift", [(3, 0), (2, 2), (-1, 3), (3, -2)])
def test_certified_delta_is_above_the_exact_one_in_two_dimensions(shift):
    coins, g = 500, 3
    claim = certificate(coins, g, 2)
    assert math.hypot(*shift) <= g + math.sqrt(2)
    width = coins + 6
    p = product([shifted(coins, 3, width)] * 2)
    q = product([shifted(coins, 3 + s, width) for s in shift])
    for epsilon in EPSILONS:
        assert exact_delta(p, q, epsilon) <= claim.delta(epsilon)
        assert exact_delta(q, p, epsilon) <= claim.delta(epsilon)


def law_of_rounding(t, g):
    law = np.zeros(g + 1)
    low = min(math.floor(t), g - 1)
    law[low], law[low + 1] = 1 - (t - low), t - low
    return law


@pytest.mark.parametrize("pair", [(0.0, 3.0), (0.5, 2.5), (0.0, 2.5), (1.5, 1.6), (0.01, 2.99)])
def test_rounding_with_its_own_randomness_stays_below_the_certified_delta(pair):
    """The replaced user's rounding and another's, mixed with the coins of both."""
    coins, g = 600, 3
    claim = certificate(coins, g, 1)
    noise = np.convolve(stats.binom.pmf(np.arange(coins + 1), coins, 0.5), law_of_rounding(1.4, g))
    p, q = (np.convolve(noise, law_of_rounding(t, g)) for t in pair)
    for epsilon in EPSILONS:
        assert exact_delta(p, q, epsilon) <= claim.delta(epsilon)
        assert exact_delta(q, p, epsilon) <= claim.delta(epsilon)


def test_certified_delta_of_two_rounds_is_above_the_exact_one():
    coins, g = 700, 2
    claim = certificate(coins, g, 1, times=2)
    width = coins + 3
    p = product([shifted(coins, 0, width)] * 2)
    q = product([shifted(coins, 3, width)] * 2)
    for epsilon in EPSILONS:
        assert exact_delta(p, q, epsilon) <= claim.delta(epsilon)


def test_certified_delta_is_of_the_order_of_the_exact_one():
    """A bound that is far from the truth would hide an error of the sensitivity."""
    coins, g = 40_000, 30
    width = coins + g + 1
    p, q = shifted(coins, 0, width), shifted(coins, g + 1, width)
    for epsilon in (0.5, 1.0):
        exact = exact_delta(p, q, epsilon)
        assert exact <= certificate(coins, g, 1).delta(epsilon) <= 8 * exact


# ---- the theorem of the literature


CASES = [(30_950, 176, 50), (10**4, 100, 10), (10**5, 320, 100), (400, 40, 25), (2000, 64, 1)]


@pytest.mark.parametrize(("n", "g", "dim"), CASES)
@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-9])
def test_theorem_of_the_literature_claims_no_less_than_is_proved_here(n, g, dim, delta):
    compared = 0
    for b in (1, 3, 10, 30, 100, 1000, 10_000):
        theirs = cpsgd_epsilon(n * b, g, dim, delta)
        if theirs < math.inf:
            assert certificate(n * b, g, dim).epsilon(delta) <= theirs
            compared += 1
    assert compared >= 2


def test_theorem_of_the_literature_has_its_printed_constants():
    """At p = 1/2: b_p = 1/3, c_p = 7 sqrt(2) / 4, d_p = 2/3."""
    p, delta, d, g, m = 0.5, 1e-6, 50, 176, 30_950 * 133
    b_p = 2 / 3 * (p**2 + (1 - p) ** 2) + 1 - 2 * p
    c_p = math.sqrt(2) * (3 * p**3 + 3 * (1 - p) ** 3 + 2 * p**2 + 2 * (1 - p) ** 2)
    d_p = 4 / 3 * (p**2 + (1 - p) ** 2)
    v = m * p * (1 - p)
    l1, l2, largest = math.sqrt(d) * g + d, g + math.sqrt(d), g + 1
    expected = l2 * math.sqrt(2 * math.log(1.25 / delta) / v)
    expected += (l2 * c_p * math.sqrt(math.log(10 / delta)) + l1 * b_p) / (v * (1 - delta / 10))
    expected += largest * 2 / 3 * math.log(1.25 / delta) / v
    expected += largest * d_p * math.log(20 * d / delta) * math.log(10 / delta) / v
    assert cpsgd_epsilon(m, g, d, delta) == pytest.approx(expected, rel=1e-12)
    assert 0.99 < expected <= 1.0
    assert cpsgd_epsilon(100, g, d, delta) == math.inf


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 1, 1e-6), r"coins must .*got 0"),
        ((9, 0, 1, 1e-6), r"g must .*got 0"),
        ((9, 1, 0, 1e-6), r"dim must .*got 0"),
        ((9, 1, 1, 1.0), r"delta must .*got 1.0"),
    ],
)
def test_arguments_of_the_theorem_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        cpsgd_epsilon(*arguments)
