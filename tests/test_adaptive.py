"""The filter of the accountant: what guarantees cost, and that no choice exceeds the budget."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from scipy import special

import dpkern as dpk
from dpkern import Accountant, BudgetSpentError
from dpkern.privacy import Certificate, gdp_delta, gdp_epsilon, gdp_mu
from dpkern.privacy.accountant import filter as adaptive
from dpkern.privacy.accountant.filter import Cost, gaussian_mu, pair_epsilon, pure_mu, splits_of
from dpkern.privacy.accountant.profiles import Bound, Pair, Spending, convex_hull
from dpkern.privacy.guarantees.gdp import GaussianDP
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation
from dpkern.privacy.guarantees.zcdp import ConcentratedDP, zcdp_delta

DELTA = 1e-6
BUDGETS = [(0.1, 1e-9), (1.0, 1e-6), (3.0, 1e-18), (8.0, 1e-5)]


def gaussian_profile(mu, x):
    return special.ndtr(-x / mu + mu / 2) - np.exp(x) * special.ndtr(-x / mu - mu / 2)


def response_profile(epsilon, x):
    """Randomised response, whose two directions are one."""
    inside = (math.exp(epsilon) - np.exp(x)) / (1.0 + math.exp(epsilon))
    return np.where(x >= epsilon, 0.0, np.where(x <= -epsilon, -np.expm1(x), inside))


MINIMISER = ObjectivePerturbation(volume=0.25, shift=0.16, directions=2, mu=0.015)


@for_each("delta", [1e-12, 1e-7])
@for_each(
    ("profile", "shift"),
    [
        (ConcentratedDP(rho=0.001), 0.0),
        (ConcentratedDP(rho=0.3), 0.0),
        (ConcentratedDP(rho=0.3), 0.2),
        (Pair(0.5, 1e-13), 0.0),
        (Pair(0.5, 1e-13), 0.3),
        (GaussianDP(mu=0.4), 0.0),
        (MINIMISER, 0.0),
        (MINIMISER, 0.6),
    ],
)
def test_a_profile_lies_below_what_it_costs(profile, shift, delta):
    """A divergence is convex in e^epsilon and 1 at 0: what counts is the convex hull."""
    mu = gaussian_mu(profile, delta, shift)
    x = np.concatenate([np.linspace(0.0, 1.5, 1500), np.linspace(1.5, 12.0, 300)[1:]])
    values = np.array([profile.delta(v) for v in x])

    def reflect(values):
        """At -x a divergence is at most 1 - e^-x + e^-x times what it is at x the other way."""
        return np.concatenate([-np.expm1(-x[:0:-1]) + np.exp(-x[:0:-1]) * values[:0:-1], values])

    both = np.concatenate([-x[:0:-1], x])
    u, points = np.append(0.0, np.exp(both)), np.append(1.0, reflect(values))
    kept = convex_hull(u, points)
    values, x = reflect(np.interp(np.exp(x), u[kept], points[kept])), both
    bound, less = (
        delta + (1.0 - delta) * gaussian_profile(share * mu, x - shift) for share in (1.0, 0.98)
    )
    assert np.all(values <= bound * (1.0 + 1e-4) + 1e-15)  # the hull of finitely many points
    if not shift:
        assert np.any(values > less)
    x, values = adaptive._points(profile, delta)  # to rounding at the points that are compared
    assert np.all(values <= (delta + (1 - delta) * gaussian_profile(mu, x - shift)) * (1 + 1e-9))


def test_a_gaussian_profile_costs_its_own_mu():
    for mu in (0.01, 0.3, 2.0):
        assert mu * (1.0 - 1e-6) < gaussian_mu(GaussianDP(mu=mu), 1e-12) < mu * (1.0 + 2e-3)


@for_each("epsilon", [1e-300, 1e-15, 1e-8])
def test_tiny_pure_epsilons_cost_their_first_order(epsilon):
    assert pure_mu(epsilon) == pytest.approx(math.sqrt(math.pi / 2) * epsilon, rel=1e-7)


def test_a_huge_pure_epsilon_is_refused_as_any_other(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    with pytest.raises(BudgetSpentError):
        accountant.charge("all", epsilon=800.0, delta=0.0)


@for_each("epsilon", [1e-6, 0.1, 1.0, 5.0, 30.0])
def test_pure_epsilon_costs_the_mu_that_touches_it(epsilon):
    mu = pure_mu(epsilon)
    x = np.linspace(0.0, epsilon, 200)
    assert np.all(response_profile(epsilon, x) <= gaussian_profile(mu, x) * (1 + 1e-6) + 1e-14)
    a = 1.0 / (1.0 + math.exp(epsilon))  # the corner of the trade-off function
    assert special.ndtr(special.ndtri(1.0 - a) - mu) == pytest.approx(a, rel=1e-6)


def test_pure_epsilon_beyond_its_room_costs_squares():
    pure = Spending.of([Bound(epsilon=0.3, delta=0.0)], "replace_one")
    for split in splits_of(1.0, DELTA):
        cost = split.cost(pure, Cost(epsilon=split.limit.epsilon))
        expected = {"pairs": 0.0, "concentrated": 0.3**2}.get(split.name, pure_mu(0.3) ** 2)
        assert expected <= cost.square <= expected * (1.0 + 1e-12)
        assert split.cost(pure, Cost()).epsilon == (0.3 if split.limit.epsilon >= 0.3 else 0.0)


def test_a_pair_of_a_profile_is_where_it_falls_to_delta():
    for law in (GaussianDP(mu=0.4), ConcentratedDP(rho=0.1)):
        epsilon = pair_epsilon(law, 1e-7)
        assert law.delta(epsilon) <= 1e-7 < law.delta(epsilon * (1.0 - 1e-6))


def test_what_has_room_counts_the_error_of_its_draws():
    budget, draws = adaptive.Filter(1.0, DELTA, pairs_first=False), 2**76
    nothing = budget.sums([])
    something = budget.costs(Spending.of([Bound(mu=0.1)], "replace_one"), nothing)
    left = DELTA - adaptive.draws_delta(draws, 1.0)
    assert 0.0 < left < 0.9 * DELTA
    assert budget.room(nothing, draws) == pytest.approx(gdp_mu(1.0, left), rel=1e-9)
    assert budget.room(something, draws) < budget.room(something, 0) < budget.room(nothing, 0)


def test_what_states_nothing_has_no_cost():
    nothing = Certificate(trust="central", noise="os", guarantee=GaussianDP(mu=math.inf), n_draws=0)
    for split in splits_of(1.0, DELTA):
        cost = split.cost(Spending.of([nothing], "replace_one"), Cost())
        assert not cost.within(split.limit)


@for_each("pairs_first", [False, True])
@for_each(("epsilon", "delta"), BUDGETS)
def test_limits_of_all_splits_add_up_to_the_budget(epsilon, delta, pairs_first):
    total = 0.0
    for split in splits_of(epsilon, delta, pairs_first=pairs_first):
        limit, rest = split.limit, epsilon - split.limit.epsilon
        total += limit.delta
        if split.name == "concentrated":
            total += zcdp_delta(0.5 * limit.square, rest)
        elif limit.square:
            total += gdp_delta(math.sqrt(limit.square), rest)
    assert 0.99 * delta < total <= delta


def test_sums_of_costs_are_rounded_up():
    costs = [Cost(0.1, 0.2, 0.3)] * 7 + [Cost(1e-20, 1e-20, 1e-20)]
    total = Cost.total(costs)
    for name in ("square", "epsilon", "delta"):
        exact = sum(Fraction(getattr(cost, name)) for cost in costs)
        assert exact <= Fraction(getattr(total, name)) <= exact * (1 + Fraction(2) ** -50)
    assert Cost.total([]) == Cost()
    assert Cost.total([Cost(0.1)]) == Cost(0.1)


def largest(admits, high):
    """The largest figure that is admitted."""
    low = 0.0
    for _ in range(18):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if admits(middle) else (low, middle)
    return low


def has_room(epsilon, delta, *bounds):
    """Whether the filter admits these guarantees, one after the other."""
    for split in splits_of(epsilon, delta):
        spent = Cost()
        for bound in bounds:
            cost = split.cost(Spending.of([bound], "replace_one"), spent)
            spent = Cost.total([spent, cost])
        if spent.within(split.limit):
            return True
    return False


@for_each("share", [0.01, 0.2, 0.4, 0.6, 0.8, 0.9])
@for_each(("epsilon", "delta"), [(1.0, 1e-6), (4.0, 1e-5)])
def test_a_choice_by_the_first_outcome_keeps_the_budget(tmp_path, epsilon, delta, share):
    """After a Gaussian charge its outcome chooses a further one, the worst of all kinds."""
    whole = gdp_mu(epsilon, delta)
    mu = math.sqrt(share) * whole * 0.99
    first = Bound(mu=mu)
    second = largest(lambda mu: has_room(epsilon, delta, first, Bound(mu=mu)), 2.0 * whole)
    pure = largest(lambda e: has_room(epsilon, delta, first, Bound(epsilon=e, delta=0.0)), epsilon)
    z = np.linspace(-12.0, 12.0, 40_001)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    left = epsilon - (mu * z + mu**2 / 2)
    after = [gaussian_profile(second, left)]
    if pure > 1e-4:
        after.append(response_profile(pure, left))
    assert float(density @ np.max(after, axis=0)) <= delta * (1.0 + 1e-6)

    for i, (figure, name) in enumerate([(second, "mu"), (pure, "epsilon")]):
        for j, factor in enumerate([0.999, 1.001]):
            accountant = Accountant(tmp_path / f"{i}{j}.json", epsilon=epsilon, delta=delta)
            accountant.charge("first", mu=mu)
            further = {name: factor * figure} | ({"delta": 0.0} if name == "epsilon" else {})
            if factor < 1.0:
                accountant.charge("second", **further)
            else:
                with pytest.raises(BudgetSpentError):
                    accountant.charge("second", **further)


def test_a_list_that_was_fixed_beforehand_composes_exactly(tmp_path):
    pytest.importorskip("dp_accounting")
    first, pure = Bound(mu=0.12), Bound(epsilon=0.5, delta=0.0)
    assert Spending.of([first, pure], "replace_one").fits(1.0, DELTA)
    together = Accountant(tmp_path / "together.json", epsilon=1.0, delta=DELTA)
    together.charge_together([("a mean", first, False), ("a count", pure, False)])
    assert 0.9 < together.spent <= 1.0
    assert together.remaining == 0.0
    with pytest.raises(BudgetSpentError):
        together.charge("one more", mu=1e-6)
    one_by_one = Accountant(tmp_path / "each.json", epsilon=1.0, delta=DELTA)
    one_by_one.charge("a mean", mu=0.12)
    with pytest.raises(BudgetSpentError):
        one_by_one.charge("a count", epsilon=0.5, delta=0.0)
    too_much = Accountant(tmp_path / "much.json", epsilon=1.0, delta=DELTA)
    with pytest.raises(BudgetSpentError):
        too_much.charge_together([("a", first, False), ("b", Bound(mu=0.25), False)])
    assert not too_much.entries


def test_a_list_that_takes_all_is_given_back_only_unused(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=1.0, delta=DELTA)
    whole = gdp_mu(1.0, DELTA) * (1.0 - 1e-9)
    number = accountant.charge("a run", mu=whole)
    assert accountant.remaining == 0.0
    stopped = Certificate(
        trust="central", noise="os", guarantee=GaussianDP(mu=0.5 * whole), n_draws=1
    )
    accountant.settle(number, stopped)
    assert accountant.remaining == 0.0
    assert accountant.spent < 0.6

    other = Accountant(tmp_path / "b.json", epsilon=1.0, delta=DELTA)
    number = other.charge("a run", mu=whole)
    other.settle(
        number, Certificate(trust="central", noise="os", guarantee=GaussianDP(mu=0.0), n_draws=0)
    )
    assert other.spent == 0.0
    assert other.remaining > 0.98


def gaussian_certificate(mu):
    return Certificate(trust="central", noise="os", guarantee=GaussianDP(mu=mu), n_draws=0)


@for_each("k", [1, 32, 63])
def test_a_run_that_its_outcomes_stop_gives_no_room_it_took(tmp_path, k):
    """Epsilon at a delta does not add up over steps: a stop chosen by losses would save both."""
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    accountant.charge("nothing", epsilon=0.0, delta=0.0)  # pairs come first
    (pairs,) = (s for s in splits_of(3.0, DELTA, pairs_first=True) if s.name == "pairs")
    delta = pairs.limit.delta / 16 * (1.0 - 1e-9)
    mu = gdp_mu(3.0 * (1.0 - 1e-6), delta)
    number = accountant.charge("a run of 64 steps", mu=mu)
    stopped = mu * math.sqrt(k / 64)
    accountant.settle(number, gaussian_certificate(stopped))
    with pytest.raises(BudgetSpentError):
        accountant.charge(
            "what is left",
            epsilon=(3.0 - gdp_epsilon(stopped, delta)) * (1.0 - 1e-6),
            delta=(pairs.limit.delta - delta) * (1.0 - 1e-5),
        )


def test_a_gaussian_run_that_is_stopped_gives_back_its_squares(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    number = accountant.charge("a run", mu=0.5)
    before = accountant.remaining_mu
    accountant.settle(number, gaussian_certificate(0.3))
    assert accountant.remaining_mu**2 == pytest.approx(before**2 + 0.5**2 - 0.3**2)


@for_each("law", [GaussianDP(mu=math.inf), ConcentratedDP(rho=100.0)])
def test_a_certificate_dearer_than_its_bound_leaves_nothing(tmp_path, law):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    number = accountant.charge("a run", mu=0.5)
    settled = {"trust": "central", "noise": "os", "guarantee": law, "n_draws": 0, "bound": "upper"}
    accountant.settle(number, Certificate(**settled))
    assert accountant.spent > 3.0
    assert accountant.remaining == 0.0
    with pytest.raises(BudgetSpentError):
        accountant.charge("again", mu=0.6)


def test_a_part_without_charges_may_take_all(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    a, b = accountant.part("a"), accountant.part("b")
    a.charge("a mean", mu=0.1)
    left = b.remaining_mu
    assert left > 0.999 * gdp_mu(3.0, DELTA)
    b.charge("a mean", mu=left)
    assert accountant.remaining == b.remaining == 0.0
    assert a.remaining > 2.0


def test_few_pure_charges_add_up_at_any_delta(tmp_path):
    for delta in (1e-6, 1e-12, 1e-18):
        accountant = Accountant(tmp_path / f"{delta}.json", epsilon=3.0, delta=delta)
        for what in "abcde":
            accountant.charge(what, epsilon=0.5, delta=0.0)
        assert accountant.spent <= 2.5 * (1.0 + 1e-9)
        accountant.charge("f", epsilon=0.49, delta=0.0)
        with pytest.raises(BudgetSpentError):
            accountant.charge("g", epsilon=0.5, delta=0.0)


def test_a_charge_of_nothing_blocks_nothing(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=1.0, delta=DELTA)
    accountant.charge("nothing", epsilon=0.0, delta=0.0)
    assert accountant.spent == 0.0
    accountant.charge("a mean", mu=0.1)
    accountant.charge("a count", epsilon=0.1, delta=1e-9)


@for_each("kind", [np.float64, np.float32, np.float16, np.longdouble, lambda v: Fraction(v)])
def test_numbers_of_any_type_are_charged(tmp_path, kind):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=0.5)
    for how in ({"mu": kind(0.125)}, {"rho": kind(0.125)}, {"epsilon": kind(0.125), "delta": 0.0}):
        accountant.charge("a mean", **how)
    assert accountant.entries[0].guarantee.mu == 0.125


def test_a_budget_that_rounding_of_noise_exceeds_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"epsilon must be at most 31\.92 at delta 1e-06, got 40"):
        Accountant(tmp_path / "a.json", epsilon=40.0, delta=DELTA)
    accountant = Accountant(tmp_path / "b.json", epsilon=30.0, delta=DELTA)
    assert accountant.remaining > 29.9


def test_rho_is_exhausted_without_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    accountant.charge("a run", mu=0.1)
    for i in range(5):
        accountant.charge(f"query {i}", rho=0.02)
    with pytest.raises(BudgetSpentError):
        accountant.charge("query 5", rho=0.2)
    assert "query 0" in str(accountant)


def test_what_is_left_is_arithmetic_on_the_file(tmp_path, monkeypatch):
    """Nothing is converted again: a thousand charges are read in a moment."""
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    kinds = ({"mu": 0.05}, {"rho": 1e-4}, {"epsilon": 0.01, "delta": 0.0})
    for i in range(6):
        accountant.charge("x", **kinds[i % 3])
    before = accountant.remaining, accountant.spent

    def never(*arguments):
        raise AssertionError("a guarantee was converted")

    monkeypatch.setattr(adaptive, "gaussian_mu", never)
    again = Accountant(tmp_path / "a.json")
    assert (again.remaining, again.spent) == before
    assert 0.0 < before[0] < 3.0


def test_runs_and_figures_by_hand_are_charged_beside_each_other(tmp_path):
    accountant = Accountant(tmp_path / "a.json", epsilon=3.0, delta=DELTA)
    data = dpk.datasets.load_wisconsin(m=2, intercept=True, row_bound=4.0)
    accountant.charge("a count", epsilon=0.5, delta=0.0)
    budget = dpk.Budget(epsilon=0.8, delta=1e-7)
    dpk.solve("gradient_descent", data, rounds=5, budget=budget, accountant=accountant, rng=0)
    assert 0.8 < accountant.spent < 1.4
    assert 0.0 < accountant.remaining < 3.0
