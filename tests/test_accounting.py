"""Certificates of secret samples, against dp-accounting itself and against exact results."""

import ctypes
import functools
import itertools
import math
from collections import Counter
from fractions import Fraction

import dp_accounting as dp
import numpy as np
import pytest
from cases import for_each
from dp_accounting import pld
from scipy import LowLevelCallable
from scipy.stats import norm

import dpkern as dpk
from dpkern.models.losses import Custom
from dpkern.privacy import (
    Certificate,
    NoiseStream,
    Release,
    compose_sequential,
    gdp_delta,
    gdp_epsilon,
)
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.certificate.serialization import digest
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sampling import amplification
from dpkern.privacy.sampling.amplification import Sampled, sampled_delta, sampled_epsilon

REPLACE, ADD = "replace_one", "add_remove"
WOR, POISSON = "without_replacement", "poisson"
SIZES, K = (40, 40, 90), 10
DELTA = 1e-6


def events(*pairs):
    return frozenset(pairs)


def silos(sizes=SIZES, seed=0):
    rng = np.random.default_rng(seed)
    parts = []
    for n in sizes:
        X = rng.standard_normal((n, 3))
        parts.append((X, np.where(X @ [1.0, -1.0, 0.5] + rng.standard_normal(n) > 0, 1.0, -1.0)))
    return dpk.SiloData.from_silos(parts, row_bound=2.0)


# ------------------------------------------------------------------------ the accountants as pinned


def test_a_multiplier_is_rounded_down():
    given = np.random.default_rng(0).lognormal(0.0, 3.0, 200)
    charged = [Sampled.of(None, 0, multiplier).multiplier for multiplier in given]
    assert np.all(charged <= given)
    np.testing.assert_allclose(charged, given, rtol=2.0**-39)


@for_each("neighbours", [REPLACE, ADD])
@for_each("times", [1, 30])
def test_at_rate_one_both_are_exact_gdp(times, neighbours):
    one = events((Sampled(None, 1, 1, 8.0), times))
    mu = math.sqrt(times) / 8.0
    for delta in (1e-3, 1e-6, 1e-9):
        exact = gdp_epsilon(mu, delta)
        assert exact <= sampled_epsilon(one, delta, neighbours) <= exact * (1.0 + 1e-12)
    assert sampled_delta(one, 0.5, neighbours) == pytest.approx(gdp_delta(mu, 0.5), rel=1e-9)


def test_the_other_accountant_would_double_a_replaced_record():
    """What must not be used: PLD for replace-one takes s / D for adding, and doubles it."""
    doubled = pld.PLDAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    doubled.compose(dp.GaussianDpEvent(8.0), 30)
    mu = math.sqrt(30) / 8.0
    assert doubled.get_epsilon(DELTA) == pytest.approx(gdp_epsilon(2.0 * mu, DELTA), rel=1e-4)
    ours = sampled_epsilon(events((Sampled(None, 1, 1, 8.0), 30)), DELTA, REPLACE)
    assert ours < 0.7 * doubled.get_epsilon(DELTA)


@for_each(("method", "neighbours"), [(WOR, ADD), (POISSON, REPLACE)])
def test_other_pairs_raise(method, neighbours):
    wrong = events((Sampled(method, 5, 100, 4.0), 3))
    for what in (
        lambda: sampled_epsilon(wrong, DELTA, neighbours),
        lambda: sampled_delta(wrong, 1.0, neighbours),
    ):
        with pytest.raises(ValueError, match=f"for {neighbours!r} neighbours, got {method!r}"):
            what()
    with pytest.raises(ValueError, match=f"got {method!r} with {neighbours!r}"):
        dpk.solve(
            "minibatch_sgd", silos(), budget=dpk.Budget(epsilon=1.0, delta=DELTA), clip=1.0,
            neighbours=neighbours, sampling=method, batch_size=K,
            public_size=SIZES if neighbours == ADD else None,
        )  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("noise", [0.7, 1.0, 2.0, 4.0])
def test_the_certified_delta_bounds_the_true_one_of_one_record_of_three(noise):
    """n = 3, K = 1, clip 1: mixtures of three Gaussians, neighbours as far apart as they can be."""
    x = np.linspace(-30.0, 30.0, 60_001)
    one = events((Sampled(WOR, 1, 3, noise / 2.0), 1))
    for epsilon in (0.01, 0.3, 1.0, 2.0):
        certified = sampled_delta(one, epsilon, REPLACE)
        for others in itertools.product((-1.0, 0.0, 1.0), repeat=2):
            P, Q = (
                np.mean([norm.pdf(x, c, noise) for c in (first, *others)], axis=0)
                for first in (1.0, -1.0)
            )
            for a, b in ((P, Q), (Q, P)):
                true = np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * (x[1] - x[0])
                assert true <= certified


def test_the_certified_delta_of_a_poisson_batch_is_the_true_one():
    noise, rate = 1.5, 0.25
    x = np.linspace(-40.0, 40.0, 400_001)
    Q = norm.pdf(x, 0.0, noise)
    P = (1.0 - rate) * Q + rate * norm.pdf(x, 1.0, noise)
    for epsilon in (0.05, 0.2, 0.5):
        true = max(
            np.maximum(a - math.exp(epsilon) * b, 0.0).sum() * (x[1] - x[0])
            for a, b in ((P, Q), (Q, P))
        )
        found = sampled_delta(events((Sampled(POISSON, 1, 4, noise), 1)), epsilon, ADD)
        assert true * (1.0 - 1e-9) <= found <= true * 1.001


@for_each(("method", "neighbours"), [(WOR, REPLACE), (POISSON, ADD)])
def test_the_rate_that_is_charged_is_never_below_the_samplers(method, neighbours, monkeypatch):
    """A record is in a Poisson batch when 64 random bits are below floor(2^64 k / n)."""
    rates, made = [], amplification.Pair

    def spy(rate, mu):
        rates.append(rate)
        return made(rate, mu)

    monkeypatch.setattr(amplification, "Pair", spy)
    for k, n in ((1, 3), (2, 3), (1, 7), (10, 1000), (10**6, 10**6 + 1)):
        rates.clear()
        sampled_epsilon(events((Sampled(method, k, n, 5.0 + k / n), 1)), DELTA, neighbours)
        drawn = Fraction((k << 64) // n, 1 << 64)
        assert drawn <= Fraction(k, n) <= Fraction(min(rates)) <= drawn * (1 + Fraction(1, 2**50))


@functools.cache
def accountants_epsilon(neighbours, composed):
    """epsilon at DELTA of events, each with the number of times that it is composed.

    By dp-accounting's own composition, of its own pair for Poisson batches, and without replacement
    of the profile by its definition.
    """
    total = None
    for (method, n, multiplier), times in sorted(composed, key=str):
        rate = 1.0 if method is None else K / n
        if method == WOR:
            one = fixed_size(rate, multiplier)
        else:
            one = pld.privacy_loss_distribution.from_gaussian_mechanism(
                multiplier, value_discretization_interval=INTERVAL, sampling_prob=rate
            )
        one = one.self_compose(times)
        total = one if total is None else total.compose(one)
    return 0.0 if total is None else total.get_epsilon_for_delta(DELTA)


def independent(certificate, sizes, clips, shares_in, neighbours, sampled):
    """epsilon at DELTA from clip norms and noise, releases charged as this test knows them.

    shares_in(j, release): how often a record of silo j takes part.
    """
    worst = 0.0
    for j, n in enumerate(sizes):
        composed = Counter()
        for release, clip in zip(certificate.releases, clips, strict=True):
            std = release.std[j] if isinstance(release.std, tuple) else release.std
            D = clip if neighbours == ADD else 2.0 * clip
            times = shares_in(j, release)
            if not std or not times:
                continue
            method = (POISSON if neighbours == ADD else WOR) if sampled(release) else None
            composed[method, n, std / D] += times
        worst = max(worst, accountants_epsilon(neighbours, frozenset(composed.items())))
    return worst


INTERVAL = 1e-4


def fixed_size(rate, multiplier):
    """h(alpha) = H_alpha(g P + (1 - g) Q, Q), and 1 - alpha + alpha h(1 / alpha) below 1."""
    x = np.linspace(0.0, 12.0 / multiplier + 1.0, 10**5)
    loss = np.arange(0, int(np.log1p(rate * np.expm1(x[-1])) / INTERVAL) + 2) * INTERVAL
    threshold = multiplier * np.log1p(np.expm1(loss) / rate) + 0.5 / multiplier
    P = norm.sf(threshold - 1.0 / multiplier)
    Q = norm.sf(threshold)
    h = np.maximum(rate * P + (1.0 - rate) * Q - np.exp(loss) * Q, 0.0)
    mirrored = 1.0 - np.exp(-loss) + np.exp(-loss) * h
    deltas = np.minimum.accumulate(np.concatenate([mirrored[:0:-1], h]))
    last = len(loss) - 1
    return pld.privacy_loss_distribution.PrivacyLossDistribution(
        pld.pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(INTERVAL, -last, last, deltas)
    )


def all_of_them(j, release):
    return release.times


CASES = [
    ("minibatch_sgd", {"sampling": WOR}),
    ("minibatch_sgd", {"sampling": WOR, "trust": "central", "weights": "uniform"}),
    ("minibatch_sgd", {"sampling": WOR, "participation": 2, "rounds": 6}),
    ("minibatch_sgd", {"sampling": POISSON, "neighbours": ADD, "public_size": SIZES}),
    ("minibatch_sgd", {"sampling": POISSON, "neighbours": ADD, "public_size": SIZES,
                       "trust": "central"}),
    ("local_sgd", {"sampling": WOR, "local_steps": 2}),
    ("local_sgd", {"sampling": POISSON, "neighbours": ADD, "public_size": SIZES}),
    ("spider", {"sampling": WOR, "refresh_every": 2, "step_size": 10.0}),
    ("spider", {"sampling": WOR, "variant": "alternate", "trust": "central"}),
    ("prox_svrg", {"sampling": WOR, "refresh_every": 2}),
    ("prox_svrg", {"sampling": WOR, "refresh_every": 2, "restarts": 2}),
]  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_certificate_is_what_dp_accounting_says_when_asked_directly(name, options):
    neighbours = options.get("neighbours", REPLACE)
    options = {"rounds": 4, "batch_size": K, "rng": 1, "trust": "silo"} | options
    budget = dpk.Budget(epsilon=1.5, delta=DELTA)
    result = dpk.solve(name, silos(), budget=budget, clip=0.7, **options)
    certificate = result.privacy
    clips = [
        max(s if isinstance(s, tuple) else (s,)) / (1.0 if neighbours == ADD else 2.0)
        for s in (release.sensitivity for release in certificate.releases)
    ]
    for release, clip in zip(certificate.releases, clips, strict=True):
        if "difference" not in release.what:
            assert clip == 0.7
        else:
            assert clip <= 1.4
    refreshed_in_full = name == "prox_svrg"

    def sampled(release):
        return not (refreshed_in_full and "difference" not in release.what)

    found = independent(certificate, SIZES, clips, all_of_them, neighbours, sampled)
    assert certificate.amplified
    accounted = min(found, gdp_epsilon(certificate.mu, DELTA))
    assert certificate.epsilon(DELTA) == pytest.approx(accounted, rel=1e-3)
    assert 0.99 * budget.epsilon < certificate.epsilon(DELTA) <= budget.epsilon
    assert certificate.mu > budget.mu
    assert certificate.bound == "upper"
    # Of the file the same can be read.
    again = Certificate.from_dict(certificate.to_dict())
    assert again == certificate
    assert again.epsilon(DELTA) == certificate.epsilon(DELTA)
    assert certificate.delta(certificate.epsilon(DELTA)) <= DELTA * (1.0 + 1e-6)


@for_each("trust", ["silo", "central", "shuffle"])
@for_each("name", ["prox_sgd", "minibatch_sgd"])
def test_disjoint_batches_cost_what_one_release_costs(name, trust):
    options = {"sampling": "one_pass"} if name == "minibatch_sgd" else {}
    budget = dpk.Budget(epsilon=1.5, delta=DELTA)
    certificate = dpk.solve(
        name, silos(), budget=budget, clip=0.7, rounds=4, batch_size=K, rng=1, trust=trust,
        **options,
    ).privacy  # fmt: skip
    (release,) = certificate.releases
    assert (release.times, release.charged, release.sampling) == (4, 1, None)
    assert not certificate.amplified
    if trust == "shuffle":
        assert certificate.epsilon(DELTA) == pytest.approx(1.5, rel=0.01)
        return
    std = max(release.std) if trust == "silo" else release.std
    assert certificate.mu == pytest.approx(1.4 / std, rel=1e-12)
    assert certificate.epsilon(DELTA) == pytest.approx(1.5, rel=1e-6)


def test_a_batch_of_all_records_is_charged_as_the_full_one():
    budget = dpk.Budget(epsilon=1.5, delta=DELTA)
    options = {"budget": budget, "clip": 0.7, "rounds": 3, "rng": 1, "trust": "silo"}
    data = silos((30, 30))
    for more in (
        {"sampling": WOR},
        {"sampling": POISSON, "neighbours": ADD, "public_size": (30, 30)},
    ):
        own = {k: v for k, v in more.items() if k != "sampling"}
        full = dpk.solve("minibatch_sgd", data, **options, **own)
        all_in = dpk.solve("minibatch_sgd", data, batch_size=30, **options, **more)
        assert all_in.privacy.mu == pytest.approx(full.privacy.mu, rel=1e-3)
        assert all_in.privacy.epsilon(DELTA) <= 1.5
        assert all_in.privacy.epsilon(DELTA) == pytest.approx(1.5, rel=1e-3)


def test_silos_with_other_shares_in_the_rounds_pay_for_their_own():
    """The smallest silo has the largest rate and the cost of the run only if it takes part."""
    data, budget = silos((11, 400)), dpk.Budget(epsilon=2.0, delta=DELTA)
    certificate = dpk.solve(
        "minibatch_sgd", data, budget=budget, clip=0.7, rounds=8, sampling=WOR, batch_size=K,
        participation=1, rng=5, trust="silo",
    ).privacy  # fmt: skip
    in_rounds = [0, 0]
    for release in certificate.releases:
        for j in range(2):
            in_rounds[j] += release.times * (release.std[j] > 0.0)
    assert sum(in_rounds) == 8
    assert min(in_rounds) >= 1
    each = []
    for j, n in enumerate((11, 400)):
        (multiplier,) = {r.std[j] / 1.4 for r in certificate.releases if r.std[j] > 0.0}
        each.append(accountants_epsilon(REPLACE, frozenset({((WOR, n, multiplier), in_rounds[j])})))
    expected = min(max(each), gdp_epsilon(certificate.mu, DELTA))
    assert certificate.epsilon(DELTA) == pytest.approx(expected, rel=1e-3)


def test_secret_samples_are_charged_in_full_where_they_are_composed_or_grouped():
    budget = dpk.Budget(epsilon=1.5, delta=DELTA)
    one = dpk.solve(
        "minibatch_sgd",
        silos(),
        budget=budget,
        clip=0.7,
        rounds=3,
        sampling=WOR,
        batch_size=K,
        trust="silo",
    ).privacy
    both = compose_sequential(one, one)
    assert both.mu == pytest.approx(math.sqrt(2.0) * one.mu, rel=1e-12)
    assert both.epsilon(DELTA) >= gdp_epsilon(both.mu, DELTA) > 2.0 * one.epsilon(DELTA)
    assert one.group(2).epsilon(DELTA) >= gdp_epsilon(2.0 * one.mu, DELTA)


def test_noise_that_is_not_gaussian_or_missing_is_not_amplified():
    ledger = Ledger()
    sampling = {"method": WOR, "batch_sizes": (5,), "sizes": (50,)}
    ledger.append(
        Release(what="a", sensitivity=1.0, std=2.0, grid=1.0, dim=1, seen_by="x", sampling=sampling)
    )
    first = Certificate.from_ledger(ledger, trust="central", noise="os")
    assert first.amplified
    assert not Certificate.from_ledger(
        ledger, trust="central", noise="os", neighbours=ADD
    ).amplified
    ledger.append(Release(what="b", sensitivity=9.0, std=20.0, grid=1.0, dim=1, seen_by="x",
                          coins=1600))  # fmt: skip
    second = Certificate.from_ledger(ledger, trust="central", noise="os")
    assert not second.amplified
    assert second.epsilon(1e-6) > first.epsilon(1e-6)


POINTER = ctypes.POINTER(ctypes.c_double)


@ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[POINTER] * 5, ctypes.c_void_p)
def half_square(n, y, z, value, d1, d2, params):
    for i in range(n):
        for out, number in ((value, (z[i] - y[i]) ** 2 / 2.0), (d1, z[i] - y[i]), (d2, 1.0)):
            if out:
                out[i] = number


def test_a_custom_loss_is_refused_where_samples_are_secret():
    """Two samples that differ in one record have the others in other places, and its last bit may
    depend on the place."""

    loss = Custom(LowLevelCallable(half_square), convex=True, smoothness=1.0)
    options = {"loss": loss, "clip": 1.0, "rounds": 2, "step_size": 0.1}
    budget = dpk.Budget(epsilon=1.0, delta=DELTA)
    with pytest.raises(ValueError, match="sampling='without_replacement' needs a loss of the tab"):
        dpk.solve("minibatch_sgd", silos(), budget=budget, sampling=WOR, batch_size=K, **options)
    dpk.solve("minibatch_sgd", silos(), budget=budget, sampling="one_pass", batch_size=K, **options)
    dpk.solve(
        "minibatch_sgd", silos(), budget=budget, sampling=WOR, batch_size=K, trust="shuffle",
        **options,
    )  # fmt: skip


def test_the_ledger_reads_the_mechanisms_own_sensitivity():
    ledger = Ledger()
    mechanism = GaussianSum(
        Channel(ledger, NoiseStream(0), "x"), what="s", clip=0.5, dim=2, sizes=(5, 5), mu=0.25,
        sampling={"method": WOR, "batch_sizes": (5, 5), "sizes": (50, 20)},
    )  # fmt: skip
    mechanism.release(np.zeros((2, 2)), active=np.array([True, False]))
    (release,) = ledger.releases
    assert release.sampled(0) == (Sampled(WOR, 5, 50, 4.0), 1)
    assert release.sampled(1) is None


def test_larger_figures_of_earlier_accounting_verify_and_smaller_ones_do_not():
    """Renyi DP once stated up to four times the epsilon; nothing above full batches was stated."""
    budget = dpk.Budget(epsilon=1.5, delta=DELTA)
    certificate = dpk.solve(
        "minibatch_sgd", silos(), budget=budget, clip=0.7, rounds=4, batch_size=K, sampling=WOR,
        trust="silo",
    ).privacy  # fmt: skip

    def stated(factor):
        values = certificate.to_dict()
        for figure in values["guarantee"]["epsilon"]:
            figure["epsilon"] *= factor
        values["digest"] = digest(values)
        return dpk.verify(values).ok

    full = gdp_epsilon(certificate.mu, DELTA) / certificate.epsilon(DELTA)
    assert full > 3.0
    assert [stated(f) for f in (0.98, 1.0, 1.5, 2.5, 2.0 * full)] == [
        False,
        True,
        True,
        True,
        False,
    ]
