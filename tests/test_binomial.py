"""Binomial noise: each step of its proof, and exact privacy losses that it must not undercut."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from cases import for_each
from scipy import stats

from dpkern.papers.cpsgd import cpsgd_epsilon
from dpkern.privacy import Certificate, Release, gdp_delta
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.guarantees.binomial import _mills, binomial_mu, shuffle_sensitivity

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


def thresholds(m, first, last):
    """z(t) = -Phi^-1(P(X >= t)) of Bin(m, 1/2) at every t, from whole numbers."""
    counts, total, tails = 1, 0, {}
    for t in range(m, first - 1, -1):
        total += counts
        tails[t] = total
        counts = counts * t // (m - t + 1)
    found = {}
    with mp.workdps(120):
        z = mp.mpf(0)
        for t in range(first, last + 1):
            target = mp.log(mp.mpf(tails[t])) - m * mp.log(2)
            for _ in range(60):  # Newton's method on a concave function
                log_tail = mp.log(mp.erfc(z / mp.sqrt(2)) / 2)
                step = (log_tail - target) * mp.exp(log_tail) / mp.npdf(z)
                z += step
                if abs(step) < mp.mpf(10) ** -30:
                    break
            found[t] = z
    return found


@pytest.mark.proof
@pytest.mark.parametrize("m", [199, 400, 1501, 4097, 9000])
def test_no_step_between_thresholds_exceeds_the_bound(m):
    """All of them up to the end, and the largest is at the end."""
    D = 0.2 * math.sqrt(m)
    bound = float(binomial_mu(m, D) / Fraction(D))
    last = math.floor(m / 2 + math.sqrt(35.004 * m) + D) + 2
    first = m // 2 if m < 2000 else last - 60
    z = thresholds(m, first, last)
    steps = [float(z[t] - z[t - 1]) for t in range(first + 1, last + 1)]
    assert max(steps) <= bound <= 1.02 * max(steps)
    assert steps[-1] == max(steps)


@for_each("m", [4096, 10**6, 2**40, 2**52])
def test_the_step_is_nearly_that_of_gaussian_noise_of_the_same_variance(m):
    D = 0.3 * math.sqrt(m)
    excess = float(binomial_mu(m, D)) / (2.0 * D / math.sqrt(m)) - 1.0
    assert 0.0 < excess <= 1e-4 + 50.0 / m + 0.2 / math.sqrt(m)


def test_second_differences_of_gaussian_masses_are_those_of_the_proof():
    """log of I(c - w) I(c + w) / I(c)^2 is at most -w^2 (1 - w^2 / 4)."""
    with mp.workdps(40):
        for w, c in itertools.product((0.001, 0.1, 0.7, 1.4), (0.0, 0.5, 3.0, 12.0)):
            mass = [mp.ncdf(x + mp.mpf(w) / 2) - mp.ncdf(x - mp.mpf(w) / 2) for x in
                 (mp.mpf(-c) - w, mp.mpf(-c), mp.mpf(-c) + w)]  # fmt: skip
            assert mp.log(mass[0] * mass[2] / mass[1] ** 2) <= -(mp.mpf(w) ** 2) * (
                1 - mp.mpf(w) ** 2 / 4
            )


def test_mills_ratio_is_between_the_bounds():
    with mp.workdps(40):
        for z in (0.0, 0.3, 1.0, 5.0, 12.5, 30.0):
            mills = mp.ncdf(-z) / mp.npdf(z)
            assert mp.mpf(_mills(z)) <= mills * (1 + mp.mpf(2) ** -50)
            assert 1 / mills >= (3 * z + math.sqrt(z * z + 8.0)) / 4.0 - 1e-12


@pytest.mark.proof
@pytest.mark.parametrize(("coins", "g", "dim"), [(2000, 3, 1), (5000, 5, 2), (1500, 2, 3)])
def test_exact_profiles_stay_below_and_come_close(coins, g, dim):
    """Shifts in all directions, by the law of the loss of all coordinates."""
    D = shuffle_sensitivity(g, dim)
    mu, k = float(binomial_mu(coins, D)), np.arange(coins + 1)
    p = stats.binom.pmf(k, coins, 0.5)
    live = p > 1e-16
    rng = np.random.default_rng(0)
    shifts = [np.eye(dim)[0] * math.floor(D), np.full(dim, math.floor(D / math.sqrt(dim)))]
    shifts += [np.trunc(v / np.linalg.norm(v) * D) for v in rng.normal(size=(6, dim))]
    best = 0.0
    for shift in shifts:
        s = np.abs(shift).astype(int)
        assert np.linalg.norm(s) <= D
        losses, weights = np.zeros(1), np.ones(1)
        for part in s:  # losses on a grid, rounded down: a lower bound of delta
            q = np.where(k >= part, np.roll(p, part), 0.0)
            one = np.log(p[live] / np.maximum(q[live], 1e-300))
            losses = np.add.outer(losses, one).ravel()
            weights = np.multiply.outer(weights, p[live]).ravel()
            bins = np.floor(losses / 1e-4).astype(np.int64)
            low = bins.min()
            weights = np.bincount(bins - low, weights)
            losses = (np.arange(len(weights)) + low) * 1e-4
            losses, weights = losses[weights > 0.0], weights[weights > 0.0]
        for epsilon in EPSILONS[1:4]:
            above = losses > epsilon
            true = -np.dot(np.expm1(epsilon - losses[above]), weights[above])
            assert true <= gdp_delta(mu, epsilon)
            if true > 1e-9:
                longest = gdp_delta(mu * np.linalg.norm(s) / D, epsilon)
                best = max(best, true / longest)
    assert best > 0.85


@for_each("m", [60, 1000, 4_116_350])
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


def test_noise_that_is_too_small_for_the_proof_gives_nothing():
    assert binomial_mu(10, 3.0) is None
    assert binomial_mu(10**6, 2e5) is None
    assert certificate(100, 20, 1).epsilon(1e-6) == math.inf


def test_more_coins_and_fewer_steps_spend_less():
    spent = [float(binomial_mu(m, 10.0)) for m in (400, 3000, 10_000, 10**5, 10**7)]
    assert spent == sorted(spent, reverse=True)
    assert binomial_mu(10**5, 10.0) < binomial_mu(10**5, 11.0)
    # for many coins it is the Gaussian's D / s, s^2 = m / 4
    assert float(binomial_mu(10**12, 10.0)) == pytest.approx(2e-5, rel=1e-4)


@pytest.mark.proof
@pytest.mark.parametrize(("coins", "g"), [(400, 1), (900, 2), (2500, 4), (40_000, 12)])
def test_certified_delta_is_above_the_exact_one_in_one_dimension(coins, g):
    claim = certificate(coins, g, 1)
    for shift, epsilon in itertools.product(range(-g - 1, g + 2), EPSILONS):
        width = coins + abs(shift)
        p, q = shifted(coins, max(shift, 0), width), shifted(coins, max(-shift, 0), width)
        assert exact_delta(p, q, epsilon) <= claim.delta(epsilon)


@for_each("shift", [(3, 0), (2, 2), (-1, 3), (3, -2)])
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


@for_each("pair", [(0.0, 3.0), (0.5, 2.5), (0.0, 2.5), (1.5, 1.6), (0.01, 2.99)])
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


CASES = [(30_950, 176, 50), (10**4, 100, 10), (10**5, 320, 100), (400, 40, 25), (2000, 64, 1)]


@for_each(("n", "g", "dim"), CASES)
@for_each("delta", [1e-4, 1e-6, 1e-9])
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


@for_each(
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
