"""Composition of guarantees of different kinds: `dpkern.privacy.accountant.profiles`."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
from cases import for_each
from scipy.special import comb

from dpkern.privacy import Certificate, gdp_delta, gdp_epsilon, zcdp_delta
from dpkern.privacy.accountant.profiles import Bound, Spending, _composed, _delta
from dpkern.privacy.guarantees.gdp import GaussianDP, gdp_delta_upper
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.selection import Selection
from dpkern.privacy.sampling.amplification import Sampled, sampled_delta

pytest.importorskip("dp_accounting")

LAW = ObjectivePerturbation(volume=0.05, shift=0.15, directions=2, mu=0.02)
SELECTION = Selection.of_mean(10.0, eta=5.0, mu=0.05)


@dataclass(frozen=True)
class Known:
    """A Gaussian that is composed by its profile, as what is not Gaussian is."""

    mu: float

    def delta(self, epsilon):
        return gdp_delta_upper(self.mu, epsilon)


def of(*bounds, neighbours="replace_one"):
    return Spending.of(bounds, neighbours)


@for_each("mus", [(0.3, 0.4), (1.0, 1.0), (0.01, 0.02), (3.0, 1.0), (0.2,) * 7])
def test_profiles_of_gaussians_compose_to_the_exact_gaussian_but_for_a_thousandth(mus):
    mu = math.sqrt(sum(m * m for m in mus))
    parts = frozenset((Known(m * (1.0 + 1e-12 * i)), 1) for i, m in enumerate(mus))
    total = _composed(parts)
    for epsilon in (0.5 * mu, mu, 2.0 * mu, 4.0 * mu, 5.0 * mu):
        exact, found = gdp_delta(mu, epsilon), total.get_delta_for_epsilon(epsilon)
        assert exact <= found * (1.0 + 1e-6) + 2.0**-44
        assert found <= exact * 1.002 + 2.0**-44


def test_a_repeated_profile_is_as_many_profiles():
    apart = _composed(frozenset({(Known(0.2 * (1.0 + 1e-12 * i)), 1) for i in range(5)}))
    repeated = _composed(frozenset({(Known(0.2), 5)}))
    assert repeated.get_delta_for_epsilon(1.0) == pytest.approx(
        apart.get_delta_for_epsilon(1.0), rel=1e-6
    )


def optimal(epsilon, delta, k, at):
    """delta of k (epsilon, delta) pairs: Kairouz, Oh, Viswanath 2015, Theorem 3.3."""
    total = sum(
        comb(k, i, exact=True) * max(0.0, math.exp((k - i) * epsilon) - math.exp(at + i * epsilon))
        for i in range(k + 1)
    )
    return 1.0 - (1.0 - delta) ** k * (1.0 - total / (1.0 + math.exp(epsilon)) ** k)


@for_each(("epsilon", "delta", "k"), [(0.1, 1e-7, 10), (1.0, 0.0, 3), (0.5, 1e-6, 5)])
def test_pairs_compose_optimally(epsilon, delta, k):
    total = of(*[Bound(epsilon=epsilon, delta=delta)] * k)
    # Losses are rounded up to multiples of an interval, k times.
    for at in np.array([0.2, 0.5, 0.8]) * k * epsilon + 1e-3:
        exact, found = optimal(epsilon, delta, k, at), total.delta(at)
        assert (
            exact <= found <= max(optimal(epsilon, delta, k, at - k * 1e-4), exact) * 1.001 + 1e-12
        )


def test_pairs_of_two_kinds_compose_as_their_randomised_responses_do():
    """The exact law of two randomised responses, by all of their outcomes."""
    pairs = [(0.3, 1e-6), (0.7, 1e-5)]
    total = of(*(Bound(epsilon=e, delta=d) for e, d in pairs))

    def outcomes(epsilon, delta):
        p = (1.0 - delta) / (1.0 + math.exp(-epsilon))
        q = (1.0 - delta) / (1.0 + math.exp(epsilon))
        return [(p, q), (q, p), (delta, 0.0), (0.0, delta)]

    for at in (0.1, 0.35, 0.95):
        exact = sum(
            max(0.0, a[0] * b[0] - math.exp(at) * a[1] * b[1])
            for a, b in itertools.product(outcomes(*pairs[0]), outcomes(*pairs[1]))
        )
        assert exact <= total.delta(at) <= exact + 1e-3


def test_one_guarantee_is_itself():
    assert of(Bound(mu=0.5)).epsilon(1e-6) == gdp_epsilon(0.5, 1e-6)
    assert of(Bound(epsilon=1.0, delta=1e-6)).epsilon(1e-6) == pytest.approx(1.0, rel=1e-9)
    assert of(Bound(rho=0.02)).delta(1.0) == zcdp_delta(0.02, 1.0)
    assert of(Bound(minimiser=LAW)).delta(0.5) == LAW.delta(0.5)
    assert of().epsilon(1e-6) == 0.0
    assert of().delta(0.0) == 0.0


def test_squares_of_mu_are_added_without_rounding():
    assert of(*[Bound(mu=0.1)] * 100).squares == 100 * of(Bound(mu=0.1)).squares
    assert of(Bound(mu=0.3), Bound(mu=0.4)).epsilon(1e-6) == pytest.approx(gdp_epsilon(0.5, 1e-6))


def test_minimisers_and_gaussians_have_the_law_of_both():
    mixed = of(Bound(minimiser=LAW), Bound(mu=0.1), Bound(minimiser=LAW))
    assert mixed.delta(0.7) == ObjectivePerturbation.sequential([LAW, LAW], 0.1).delta(0.7)


def test_concentrated_and_gaussian_parts_are_at_most_their_sum_of_rho():
    mixed = of(Bound(rho=0.02), Bound(mu=0.2))
    assert mixed.delta(1.0) <= zcdp_delta(math.nextafter(0.02 + 0.02, 1.0), 1.0)
    # It is not less than that of the Gaussian alone, and of a Gaussian of that rho.
    assert mixed.delta(1.0) >= gdp_delta(math.sqrt(0.08), 1.0)


KINDS = {
    "mu": Bound(mu=0.15),
    "rho": Bound(rho=0.01),
    "pair": Bound(epsilon=0.3, delta=1e-8),
    "minimiser": Bound(minimiser=LAW),
}


@for_each("kinds", list(itertools.combinations(KINDS, 2)))
def test_two_kinds_cost_more_than_one_and_less_than_the_sum(kinds):
    one, other = (KINDS[kind] for kind in kinds)
    both = of(one, other).epsilon(2e-6)
    assert both > max(of(one).epsilon(2e-6), of(other).epsilon(2e-6))
    assert both < of(one).epsilon(1e-6) + of(other).epsilon(1e-6)


@pytest.mark.proof
def test_every_further_guarantee_costs_more():
    guarantees, spent = [], 0.0
    for bound in [*KINDS.values(), *KINDS.values()]:
        guarantees.append(bound)
        more = of(*guarantees).epsilon(1e-5)
        assert more > spent
        spent = more


def test_the_order_does_not_matter():
    forward, backward = of(*KINDS.values()), of(*reversed(list(KINDS.values())))
    assert forward.delta(1.0) == pytest.approx(backward.delta(1.0), rel=1e-9)


def sampled(neighbours, multiplier=2.0, times=50):
    method = {"replace_one": "without_replacement", "add_remove": "poisson"}[neighbours]
    events = frozenset({(Sampled(method, 10, 200, multiplier), times)})
    return Bound(mu=math.sqrt(times) / multiplier, samples=frozenset({events})), events


@for_each("neighbours", ["replace_one", "add_remove"])
def test_secret_samples_of_several_runs_are_those_of_one_accountant(neighbours):
    bound, _ = sampled(neighbours)
    _, twice = sampled(neighbours, times=100)
    for epsilon in (0.2, 0.5):
        expected = sampled_delta(twice, epsilon, neighbours)
        found = of(bound, bound, neighbours=neighbours).delta(epsilon)
        assert found == pytest.approx(expected, rel=1e-9)


@for_each("neighbours", ["replace_one", "add_remove"])
def test_secret_samples_beside_gaussians_are_no_more_than_dp_accounting_has(neighbours):
    bound, events = sampled(neighbours)
    gaussian = Sampled(None, 1, 1, 5.0 * (1.0 - 2.0**-30))
    together = sampled_delta(frozenset({*events, (gaussian, 1)}), 1.0, neighbours)
    found = of(bound, Bound(mu=0.2), neighbours=neighbours).delta(1.0)
    assert gdp_delta(0.2, 1.0) < found <= together * (1.0 + 1e-6)


@pytest.mark.proof
def test_poisson_samples_beside_a_pair_are_near_their_exact_composition():
    from dp_accounting.pld import common, privacy_loss_distribution

    bound, _ = sampled("add_remove")
    exact = privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=0.05)
    pair = common.DifferentialPrivacyParameters(0.2, 1e-8)
    exact = exact.self_compose(50).compose(privacy_loss_distribution.from_privacy_parameters(pair))
    found = of(bound, Bound(epsilon=0.2, delta=1e-8), neighbours="add_remove").epsilon(1e-6)
    assert exact.get_epsilon_for_delta(1e-6) <= found * (1.0 + 1e-5)
    assert found <= exact.get_epsilon_for_delta(1e-6) * 1.03


def test_silos_of_several_runs_may_hold_the_same_record_in_any_combination():
    events = [frozenset({(Sampled("poisson", 10, size, 2.0), 20)}) for size in (100, 400)]
    bound = Bound(mu=math.sqrt(20) / 2.0, samples=frozenset(events))
    total = of(bound, bound, neighbours="add_remove")
    (silos,) = [part.silos for way in total.ways() for part in way if hasattr(part, "silos")]
    assert len(silos) == 3
    worst = sampled_delta(frozenset({(Sampled("poisson", 10, 100, 2.0), 40)}), 0.5, "add_remove")
    assert total.delta(0.5) == pytest.approx(worst, rel=1e-9)


def test_a_selection_composes_with_everything():
    figures = {"n_draws": 1000, "bound": "upper", "at_delta": 1e-6}
    chosen = Certificate(trust="central", noise="os", guarantee=SELECTION, **figures)
    alone = of(chosen).epsilon(1e-6)
    assert alone == pytest.approx(chosen.epsilon(1e-6), rel=1e-6)
    both = of(chosen, Bound(mu=0.1)).epsilon(1e-6)
    assert alone < both < chosen.epsilon(5e-7) + gdp_epsilon(0.1, 5e-7)


def test_draws_of_noise_are_charged():
    exact, drawn = of(Bound(mu=0.5)), of(Bound(mu=0.5, n_draws=1 << 60))
    assert drawn.delta(1.0) >= exact.delta(1.0) + (1.0 + math.e) * 2.0**-40


def test_a_profile_that_says_nothing_stays_at_one():
    nothing = of(
        Bound(mu=60.0, samples=frozenset({frozenset({(Sampled("poisson", 9, 10, 0.1), 9)})})),
        Bound(epsilon=0.1, delta=1e-6),
        neighbours="add_remove",
    )
    assert nothing.delta(1.0) > 0.99


def test_what_fits_is_what_the_delta_says():
    total = of(*KINDS.values())
    at = total.epsilon(1e-6)
    assert total.fits(at, 1e-6)
    assert not total.fits(0.999 * at, 1e-6)


def test_bounds_are_read_as_they_are_written():
    for bound in (*KINDS.values(), sampled("add_remove")[0], Bound(mu=1.0, n_draws=7)):
        assert Bound.from_dict(bound.to_dict()) == bound
    with pytest.raises(ValueError, match="must be exactly one of mu, rho"):
        Bound(mu=1.0, rho=1.0)
    with pytest.raises(TypeError):
        Bound.from_dict({"nu": 1.0})


def test_bounds_of_groups_are_those_of_certificates():
    assert Bound(mu=0.5).group(3) == Bound(mu=1.5)
    assert Bound(minimiser=LAW).group(2).minimiser == LAW.group(2)
    pair = Bound(epsilon=0.1, delta=1e-6).group(3)
    assert pair.epsilon == pytest.approx(0.3)
    assert pair.delta == pytest.approx(1e-6 * math.expm1(0.3) / math.expm1(0.1))
    assert pair.delta >= 1e-6 * math.expm1(0.3) / math.expm1(0.1)
    with pytest.raises(ValueError, match="concentrated DP"):
        Bound(rho=0.1).group(2)
    assert _delta((GaussianDP(mu=0.5),), 1.0) == gdp_delta_upper(0.5, 1.0)
