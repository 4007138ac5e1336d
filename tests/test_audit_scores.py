"""Bounds from scores: against JAX Privacy's values, their definitions, and known mechanisms."""

import math

import numpy as np
import pytest
from cases import for_each
from scipy import stats

import dpkern as dpk
from dpkern.auditing.audits import separation, separation_error
from dpkern.auditing.bounds import METHODS, Counts, error_curves, error_rates, mu_lower
from dpkern.privacy.guarantees.gdp import gdp_epsilon


def case(seed, n_in, n_out, shift):
    rng = np.random.default_rng(seed)
    return np.round(rng.normal(shift, 1, n_in), 3), np.round(rng.normal(0, 1, n_out), 3)


# By CanaryScoreAuditor of jax-privacy 2.0.0 with an Explicit threshold: what `case` takes, the
# threshold, confidence and delta; epsilon by clopper_pearson (two-sided), one_run, one_run_fdp.
JAX = [
    ((0, 1000, 1000, 1.5), 0.7, 0.95, 1e-05, (1.11708101, 1.0326738, 1.7265867)),
    ((1, 400, 500, 3.0), 1.5, 0.99, 0.001, (2.18378772, 0.130115564, 2.04045329)),
    ((2, 50, 60, 2.0), 1.0, 0.9, 0.01, (0.958725837, 0, 0.808692756)),
    ((3, 5000, 5000, 0.5), 2.0, 0.95, 1e-06, (0.867247188, 0.972445002, 1.42291859)),
    ((4, 200, 200, 4.0), 2.0, 0.95, 0.05, (2.88167393, 0, 2.26208399)),
    ((5, 100, 300, 0.0), 0.5, 0.95, 0.001, (0, 0, 0)),
    ((6, 2000, 100, 2.5), -1.0, 0.95, 1e-05, (3.28045843, 2.92031003, 5.34970195)),
]


@for_each(("made", "threshold", "confidence", "delta", "expected"), JAX)
def test_bounds_are_those_of_jax_privacy(made, threshold, confidence, delta, expected):
    how = {"confidence": confidence, "delta": delta, "threshold": threshold}
    for method, value in zip(("clopper_pearson", "one_run", "one_run_fdp"), expected, strict=True):
        found = dpk.audit_scores(*case(*made), method=method, **how)
        assert found.epsilon == pytest.approx(value, rel=1e-6, abs=2e-6)
        assert (found.threshold, found.mu) == (threshold, None)


@pytest.mark.statistical
def test_gdp_is_that_of_jax_privacy_which_pays_for_all_its_thresholds():
    """epsilon_from_gdp(0.05, 1e-5), over the 29 thresholds of the hull of errors."""
    inside, outside = case(0, 1000, 1000, 1.5)
    best = max(
        dpk.audit_scores(
            *(inside, outside), method="gdp", confidence=1 - 0.05 / 29, threshold=t
        ).epsilon
        for t in np.concatenate([inside, outside])
    )
    assert best == pytest.approx(5.777003565, rel=1e-6)


def test_rates_are_those_of_clopper_and_pearson():
    missed, false = error_rates(Counts(1000, 500, 900, 20), 0.9)
    assert stats.binom.cdf(100, 1000, missed) == pytest.approx(0.05)
    assert stats.binom.cdf(20, 500, false) == pytest.approx(0.05)
    assert error_rates(Counts(10, 10, 0, 10), 0.9) == (1.0, 1.0)
    expected = -stats.norm.ppf(false) - stats.norm.ppf(missed)
    assert mu_lower(Counts(1000, 500, 900, 20), 0.9) == pytest.approx(expected)
    assert mu_lower(Counts(10, 10, 0, 10), 0.9) == 0.0


@pytest.mark.statistical
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_bounds_of_a_gaussian_pair_fail_as_rarely_as_they_say(mu):
    rng, trials, wrong = np.random.default_rng(3), 300, 0
    epsilons = []
    for _ in range(trials):
        inside, outside = rng.normal(mu, 1, 600), rng.normal(0, 1, 600)
        found = dpk.audit_scores(inside, outside, method="gdp", confidence=0.9, delta=1e-3)
        wrong += found.mu > mu
        epsilons.append(
            dpk.audit_scores(
                *(inside, outside), method="clopper_pearson", confidence=0.9, delta=1e-3
            ).epsilon
        )
        if found.mu:
            assert found.epsilon == gdp_epsilon(found.mu, 1e-3)
    assert wrong <= stats.binom.ppf(0.999, trials, 0.1)
    assert np.mean(np.array(epsilons) > gdp_epsilon(mu, 1e-3)) <= 0.1
    if mu > 0.5:
        assert wrong > 0  # nor more rarely: the bound is not slack


def test_some_scores_choose_the_threshold_and_others_are_counted():
    inside, outside = case(10, 1000, 800, 1.0)
    found = dpk.audit_scores(inside, outside)
    assert (found.counts.n_in, found.counts.n_out) == (500, 400)
    assert found.counts.positives == np.count_nonzero(inside[1::2] >= found.threshold)
    assert found.counts.false == np.count_nonzero(outside[1::2] >= found.threshold)
    inside[1::2], outside[1::2] = 9.0, -9.0
    assert dpk.audit_scores(inside, outside).threshold == found.threshold


def test_a_tail_that_is_empty_by_chance_is_not_chosen():
    inside, outside = case(8, 2000, 2000, 1.0)
    assert dpk.audit_scores(inside, outside, method="gdp").mu > 0.6


@pytest.mark.statistical
@pytest.mark.parametrize("method", ["one_run", "one_run_fdp"])
@pytest.mark.parametrize("canaries", [200, 1000])
def test_canaries_of_one_run_do_not_refute_a_true_guarantee(method, canaries):
    """Randomised response, or Gaussian noise, on every canary's own coin."""
    rng, epsilon, found = np.random.default_rng(4), 1.0, []
    for _ in range(400):
        coins = rng.random(canaries) < 0.5
        told = np.where(rng.random(canaries) < 1 / (1 + math.exp(-epsilon)), coins, ~coins)
        scores = told + 0.0
        if method == "one_run_fdp":  # mu-GDP on every coin
            scores = 1.0 * coins + rng.standard_normal(canaries)
        how = {"method": method, "delta": 1e-9, "confidence": 0.95}
        found.append(dpk.audit_scores(scores[coins], scores[~coins], **how))
    true = epsilon if method == "one_run" else gdp_epsilon(1.0, 1e-9)
    wrong = sum(bound.epsilon > true for bound in found)
    assert wrong <= stats.binom.ppf(1 - 1e-6, 400, 0.05)
    assert np.median([bound.epsilon for bound in found]) > 0.2
    # The coins of the half that is counted are fair, whatever its size.
    heads, tails = np.sum([(bound.counts.n_in, bound.counts.n_out) for bound in found], axis=0)
    assert abs(heads - tails) < 5 * math.sqrt(heads + tails)


def test_few_canaries_bound_nothing_and_do_not_fail():
    for _ in range(100):
        assert dpk.audit_scores([1.0, 1.0], [0.0, 0.0], method="one_run").epsilon == 0.0


@for_each("threshold", [None, 0.0])
@for_each("method", METHODS)
def test_equal_scores_bound_nothing(method, threshold):
    scores, how = np.zeros(50), {"method": method, "threshold": threshold, "delta": 1e-4}
    found = [dpk.audit_scores(scores, scores, **how) for _ in range(200)]
    wrong = sum(bound.epsilon > 0.0 for bound in found)
    if threshold is None and method in ("one_run", "one_run_fdp"):
        # Which coins are counted is drawn anew: a bound may be wrong as often as it says.
        assert wrong <= stats.binom.ppf(1 - 1e-6, 200, 0.05)
    else:
        assert wrong == 0
        assert "epsilon at least 0 " in str(found[0])


def test_bounds_of_more_confidence_or_fewer_scores_are_smaller():
    inside, outside = case(9, 4000, 4000, 2.0)
    for method in METHODS:
        how = {"method": method, "delta": 1e-8, "threshold": 2.5}
        sure = dpk.audit_scores(inside, outside, confidence=0.999, **how).epsilon
        few = dpk.audit_scores(inside[:400], outside[:400], **how).epsilon
        usual = dpk.audit_scores(inside, outside, **how).epsilon
        assert 0.0 < sure < usual
        assert few < usual


@for_each(
    ("change", "match"),
    [
        ({"in_scores": []}, "in_scores must have one dimension and an entry"),
        ({"out_scores": [[1.0]]}, "out_scores must have one dimension"),
        ({"out_scores": [0.0, math.nan]}, "out_scores must not be NaN, got 1"),
        ({"in_scores": [1.0]}, "2 entries each, without threshold"),
        ({"method": "best"}, "method must be 'clopper_pearson' or"),
        ({"threshold": math.nan}, "threshold must be a number, got nan"),
        ({"confidence": 1.0}, "confidence must be in"),
        ({"confidence": 0.4}, "confidence must be in"),
        ({"delta": 0.0, "method": "gdp"}, "delta must be in"),
        ({"delta": 1.5}, "delta must be in"),
    ],
)
def test_bad_arguments(change, match):
    arguments = {"in_scores": [1.0, 2.0], "out_scores": [0.0, 1.0]} | change
    with pytest.raises(ValueError, match=match):
        dpk.audit_scores(arguments.pop("in_scores"), arguments.pop("out_scores"), **arguments)


@pytest.mark.statistical
def test_the_default_refutes_no_honest_laplace_mechanism_and_says_what_gdp_assumes():
    rng = np.random.default_rng(0)
    inside, outside = rng.laplace(1.0, 1.0, 10_000), rng.laplace(0.0, 1.0, 10_000)
    assert 0.8 < dpk.audit_scores(inside, outside).epsilon < 1.0
    found = dpk.audit_scores(inside, outside, method="gdp")
    assert found.epsilon > 2.0
    assert "if its trade-off is Gaussian" in str(found)


def test_complex_scores_are_refused():
    with pytest.raises(TypeError, match="in_scores must be real numbers"):
        dpk.audit_scores([1j, 2.0], [0.0, 1.0])


def test_the_upper_limits_are_above_the_rates_that_were_counted():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1.0, 1.0, 500), rng.normal(size=500)
    errors, limits = error_curves(inside, outside, 0.95)
    assert len(errors) == len(limits) == 201
    # They are those of `error_rates`, in the order of the picture: false alarms, then misses.
    false, missed = errors[100]
    counts = Counts(500, 500, round(500 * (1.0 - missed)), round(500 * false))
    assert limits[100] == error_rates(counts, 0.95)[::-1]
    assert np.all(np.array(errors) <= np.array(limits))


def test_what_is_no_number_is_named():
    with pytest.raises(TypeError, match="in_scores must be a list of real numbers"):
        dpk.audit_scores(["a", "b"], [0.0, 1.0])
    with pytest.raises(TypeError, match="delta must be a real number"):
        dpk.audit_scores([0.0, 1.0], [0.0, 1.0], delta="a")


@pytest.mark.statistical
def test_the_standard_error_is_that_of_many_draws():
    rng = np.random.default_rng(0)
    draws = [(rng.normal(1.0, 1.0, 100), rng.normal(size=100)) for _ in range(2000)]
    spread = np.std([separation(*draw) for draw in draws])
    found = np.median([separation_error(*draw) for draw in draws])
    assert abs(found - spread) < 0.08 * spread
