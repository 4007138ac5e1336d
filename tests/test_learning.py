"""The warning that a run has learnt little: it reads releases, and says so where due."""

import warnings

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.solvers.base import outcome
from dpkern.solvers.base.outcome import LearningWatch, NothingLearntWarning


def finding(gradients):
    watch = LearningWatch(len(gradients))
    for g in gradients:
        watch.add(g[np.newaxis])
    return watch.finding()


@for_each("at_once", [1, 100, 10_000])
def test_rounds_may_be_added_in_any_parts(at_once, monkeypatch):
    gradients = np.array(noisy(np.exp(-np.arange(100) / 400), 0.01))
    whole, parts = LearningWatch(100), LearningWatch(100)
    monkeypatch.setattr(outcome, "_AT_ONCE", 1)
    whole.add(gradients)
    monkeypatch.setattr(outcome, "_AT_ONCE", at_once)
    for part in np.split(gradients, [1, 20, 30, 70, 80]):
        parts.add(part)
        part[:] = np.nan  # the caller's again
    assert parts.finding() == whole.finding() != ""
    for name in ("_first", "_last", "_variance"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12)


def noisy(lengths, deviation, seed=0):
    """Gradients of these lengths in one direction, with noise."""
    rng = np.random.default_rng(seed)
    return [np.eye(5)[0] * length + deviation * rng.standard_normal(5) for length in lengths]


@for_each("deviation", [0.0, 0.5])
def test_gradients_that_stay_as_long_are_pointed_out(deviation):
    assert "did not shrink" in finding(noisy(np.ones(400), deviation))


@for_each("deviation", [0.0, 0.5])
def test_gradients_that_shrink_are_not(deviation):
    assert finding(noisy(np.exp(-np.arange(400) / 40), deviation)) == ""


@for_each("deviation", [0.0, 0.3])
@for_each("rounds", [10, 20, 300])
def test_gradients_that_grow_are_told(rounds, deviation):
    shrinking = np.exp(-np.arange(rounds // 2) / 2)
    growing = np.linspace(0.1, 6.0, rounds - rounds // 2)
    assert "grew" in finding(noisy([*shrinking, *growing], deviation))


@for_each("deviation", [0.0, 0.02])
@for_each("rounds", [12, 40, 300])
@for_each("first", [1, 2, 5])
def test_gradients_that_jump_in_the_first_rounds_and_stay_are_told(rounds, first, deviation):
    """As at the clip norm, which bounds them."""
    before, jump = min(first, rounds // 4 - 1), np.array([0.5, 2.0, 6.0])
    lengths = np.concatenate([np.full(before, 0.2), jump, np.full(rounds - before - 3, 6.0)])
    assert "grew" in finding(noisy(lengths, deviation))


def test_gradients_that_jump_and_fall_again_are_not():
    lengths = np.concatenate([[0.2, 2.0, 6.0], 6.0 * np.exp(-np.arange(97) / 10.0)])
    assert finding(noisy(lengths, 0.02)) == ""


@for_each("seed", range(30))
def test_rounds_of_different_users_do_not_grow(seed):
    """Lengths that differ by factors from round to round, as of a token's holders."""
    rng = np.random.default_rng(seed)
    lengths = rng.choice([0.2, 1.0, 3.0], 80)
    lengths[:2] = 0.2
    assert "grew" not in finding(noisy(lengths, 0.01, seed))


@pytest.mark.statistical
@pytest.mark.parametrize("rounds", [8, 10, 20, 60])
@pytest.mark.parametrize("dim", [1, 3, 30])
def test_noise_alone_does_not_grow(rounds, dim):
    rng = np.random.default_rng(dim)
    for _ in range(2000):
        watch = LearningWatch(rounds)
        watch.add(rng.standard_normal((rounds, dim)))
        assert "grew" not in watch.finding()


def test_noise_alone_is_no_finding():
    assert {finding(noisy(np.zeros(40), 1.0, seed)) for seed in range(20)} == {""}


def test_few_rounds_tell_nothing():
    assert finding(noisy(np.ones(11), 0.0)) == ""


def records(scale):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3)) * [scale, 1.0, 1.0]
    y = np.where(X[:, 1] > 0.3, 1, -1)
    return dpk.SiloData.split(X, y, 2, seed=0, row_bound=2.0 * scale, intercept=True)


def test_a_run_on_columns_of_very_different_scales_warns_and_one_on_equal_scales_does_not():
    how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-6), "clip": 1.0, "rounds": 60, "rng": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = dpk.solve("gradient_descent", records(1.0), **how)
        assert "learnt" not in fine.message
    with pytest.warns(
        NothingLearntWarning,
        match="gradient_descent under central trust at epsilon 5: little learnt",
    ):
        stuck = dpk.solve("gradient_descent", records(1000.0), **how)
    assert "did not shrink" in stuck.message
    assert "larger steps (step_size)" in stuck.message
    with warnings.catch_warnings():
        warnings.simplefilter("error", NothingLearntWarning)
        free = dpk.solve("gradient_descent", records(1000.0), **how | {"budget": None})
    assert "learnt" not in free.message


def test_the_warning_names_the_steps_that_the_solver_has():
    how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-6), "clip": 1.0, "rounds": 60, "rng": 0}
    for solver, named in (("admm", "(prox_step)"), ("fixed_point", "(step_size or prox_step)")):
        data = records(1000.0)
        with pytest.warns(NothingLearntWarning) as found:
            dpk.solve(solver, data, **how)
        assert named in str(found[0].message)


def test_warnings_point_to_the_line_of_the_user():
    how = {"clip": 1.0, "rounds": 60, "rng": 0}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        data = records(1000.0)
        budget = dpk.Budget(epsilon=50.0, delta=1e-6)
        dpk.solve("gradient_descent", data, budget=budget, **how)
        dpk.solvers.gradient_descent(data, budget=budget, **how)
    kinds = {warning.category.__name__ for warning in found}
    assert kinds == {"ScaleWarning", "BudgetWarning", "NothingLearntWarning"}
    assert {warning.filename for warning in found} == {__file__}


@for_each(("epsilon", "more"), [(21.0, False), (45.0, True), (50.0, True)])
def test_a_certificate_above_the_budget_is_named(epsilon, more):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        budget = dpk.Budget(epsilon=epsilon, delta=1e-5)
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(200, 3)), np.arange(200) % 2
        data = dpk.SiloData.split(X, y, 2, row_bound=2.0, classes=[0, 1])
        result = dpk.solve("gradient_descent", data, budget=budget, clip=1.0, rounds=20)
    said = [str(one.message) for one in caught if "more than the budget's" in str(one.message)]
    assert len(said) == more
    assert (result.privacy.epsilon(1e-5) > epsilon * (1.0 + 1e-6)) == more
