"""The noisy fixed-point iteration: instances, blocks, relaxations, declared operators."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import BUDGET, assert_refused, make_silos, spy_on_calls

import dpkern as dpk
from dpkern.models.penalties import L1, NonNegative, Simplex
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers import Declared, Objective

N, P = 60, 4


def make_data(seed=0, **options):
    return make_silos((20, N - 20), P, seed=seed, **({"row_bound": 3.0} | options))


@pytest.fixture(scope="module")
def data():
    return make_data()


def run(data, **more):
    options = {"budget": BUDGET, "clip": 0.7, "rounds": 9, "l2": 0.05}
    return dpk.solve("fixed_point", data, **(options | more))


def mean_of_rows(data):
    """A contraction towards the mean row, of sensitivity |x - x'| / (2 N) at most."""
    x = data.X * np.minimum(1.0, 1.0 / np.linalg.norm(data.X, axis=1, keepdims=True))

    def R(u):
        return 0.5 * u + 0.5 * x.mean(axis=0)

    return Declared(R, sensitivity=1.0 / N, name="mean of rows")


@for_each("noise", [None, BUDGET])
@for_each("penalty", [L1(0.02), NonNegative()], ids=lambda p: p.name)
def test_admm_is_the_iteration_of_its_operator_bit_by_bit(data, noise, penalty):
    options = {
        "budget": noise, "clip": 0.7, "rounds": 30, "l2": 0.05, "rng": 3, "prox_step": 0.6,
        "relaxation": 0.4, "penalty": penalty,
    }  # fmt: skip
    theirs = dpk.solve("admm", data, **options)
    ours = dpk.solve("fixed_point", data, operator="admm", **options)
    np.testing.assert_array_equal(ours.w, theirs.w)
    assert ours.privacy.releases == theirs.privacy.releases
    assert ours.history == theirs.history


@for_each("l1", [0.0, 0.02])
def test_gradient_descent_is_the_iteration_of_the_proximal_gradient(data, l1):
    options = {"budget": BUDGET, "clip": 0.7, "rounds": 30, "l2": 0.05, "l1": l1, "rng": 3}
    theirs = dpk.solve("gradient_descent", data, step_size=0.5, **options)
    ours = dpk.solve("fixed_point", data, step_size=0.5, **options)
    np.testing.assert_allclose(ours.w, theirs.w, rtol=1e-12)
    assert ours.privacy.releases == theirs.privacy.releases
    if l1 == 0.0:
        plain = dpk.solve("fixed_point", data, operator="gradient", step_size=0.5, **options)
        np.testing.assert_array_equal(plain.w, ours.w)


@for_each(
    "options",
    [
        {"operator": "gradient", "relaxation": 0.5},
        {"operator": "proximal_gradient", "l1": 0.02},
        {"operator": "coordinate", "l1": 0.02, "activation": 0.3},
        {"operator": "proximal_gradient", "blocks": 2, "activation": 0.5, "relaxation": 0.7},
        {"operator": "admm", "l1": 0.02},
        {"operator": "admm", "relaxation": np.linspace(1.0, 0.3, 3000)},
    ],
)
def test_without_noise_every_operator_reaches_the_optimum(data, options):
    result = run(data, budget=None, clip=None, rounds=3000, rng=0, **options)
    objective = Objective(data, dpk.losses.Logistic(), l2=0.05, l1=options.get("l1", 0.0))
    np.testing.assert_allclose(result.w, objective.minimum()[0], atol=1e-5)
    assert result.converged


def test_relaxation_and_blocks_follow_the_algorithm():
    """u_b + rho_kb lam_k (R_b(u) - u_b), by hand; rho is what was seen to move."""
    data, lam, sizes = make_data(), [0.9, 0.5, 0.25, 0.1, 1.0, 0.3], [2, 1, 1]
    R = mean_of_rows(data)
    seen = []

    def spy(u):
        seen.append(u)
        return R.function(u)

    result = run(
        data, operator=Declared(spy, sensitivity=1.0), budget=None, clip=None, rounds=6, rng=2,
        relaxation=lam, blocks=sizes, activation=0.6,
    )  # fmt: skip
    seen.append(result.w)
    steps = iter(result.history["step_size"])
    moves = set()
    for u, after in itertools.pairwise(seen):
        moved = np.array([np.any(part) for part in np.split(after != u, np.cumsum(sizes)[:-1])])
        rho = np.repeat(moved, sizes)
        assert moved.any()
        expected = np.where(rho, u + next(steps) * (R.function(u) - u), u)
        np.testing.assert_allclose(after, expected, rtol=1e-14, atol=0.0)
        moves |= {tuple(moved.tolist())}
    assert len(moves) > 1
    assert set(result.history["step_size"]) <= set(lam)


def test_rounds_without_an_active_block_cost_nothing(data):
    result = run(data, operator="coordinate", activation=0.05, rounds=40, rng=0)
    (release,) = result.privacy.releases
    assert 0 < release.times < 20
    assert result.privacy.epsilon(1e-5) == pytest.approx(1.0, rel=1e-6)
    idle = run(data, activation=1e-9, rounds=3, rng=0)
    assert idle.privacy.mu == 0.0
    assert not idle.w.any()
    assert not idle.converged


def test_what_is_declared_of_an_operator_is_on_the_certificate(data):
    certificate = run(data, operator=mean_of_rows(data), clip=None).privacy
    assert certificate.declared["operator"] == {"name": "mean of rows", "sensitivity": 1.0 / N}
    assert "declared by the caller" in " ".join(certificate.notes)
    (release,) = certificate.releases
    slack = Fraction(release.sensitivity) - Fraction(1.0 / N)
    assert 0 < slack <= Fraction(release.grid) * 2 * (1 + Fraction(1, 2**30))
    assert slack < Fraction(1.0 / N) / 1000
    assert "mean of rows" in release.what


def test_values_of_a_declared_operator_leave_on_the_noises_grid(monkeypatch, data):
    """round_q(clamp(R(u))) + Z: far values are clamped, what is no number counts as 0."""
    calls = spy_on_calls(monkeypatch, GaussianMessages, "release")
    wild = Declared(lambda u: np.array([math.nan, math.inf, -1e308, 0.1]), sensitivity=1e-3)
    with np.errstate(over="raise", invalid="raise"):  # nor is anybody warned of it
        result = run(data, operator=wild, clip=None, rounds=1)
    (V,) = [call.result for call in calls]
    (entry,) = result.privacy.releases
    assert np.all(np.rint(V / entry.grid) * entry.grid == V)
    assert abs(V[0]) < 15.0 * entry.std
    np.testing.assert_allclose(V[1:3], [2.0**50 * entry.grid, -(2.0**50) * entry.grid], rtol=1e-6)
    assert 2.0**50 * entry.grid > 1e6


@for_each(
    ("bad", "message"),
    [
        ({"operator": "newton"}, "operator"),
        ({"operator": lambda u: u}, "operator"),
        ({"operator": "gradient", "l1": 0.1}, "has no prox, by which 'l1'"),
        ({"operator": "gradient", "penalty": Simplex()}, "by which 'simpl"),
        ({"operator": "admm", "relaxation": 0.6}, "at most 1/2"),
        ({"operator": "admm", "relaxation": [0.5] * 8 + [0.6]}, "at most 1/2"),
        ({"operator": "admm", "blocks": 2}, "modes of solver admm"),
        ({"operator": "admm", "activation": 0.5}, "modes of solver admm"),
        ({"operator": "admm", "weights": "uniform"}, "weights"),
        ({"relaxation": 0.0}, "relaxation"),
        ({"relaxation": 1.5}, "relaxation"),
        ({"relaxation": [0.5, 0.5]}, "one a round"),
        ({"relaxation": "auto"}, "TypeError: relaxation"),
        ({"blocks": 0}, "blocks"),
        ({"blocks": P + 1}, "blocks"),
        ({"blocks": [1, 2]}, "must add up to d = 4"),
        ({"blocks": [4.0]}, "TypeError: block"),
        ({"activation": 0.0}, "activation"),
        ({"activation": 1.1}, "activation"),
        ({"step_size": "theorem"}, "step_size"),
    ],
)
def test_bad_argument_is_refused_by_name_before_any_release(data, bad, message):
    assert_refused(message, run, data, **bad)


@for_each(
    ("function", "how", "message"),
    [
        (3, {}, "TypeError: function"),
        (np.copy, {"sensitivity": 0.0}, "sensitivity"),
        (np.copy, {"sensitivity": math.inf}, "sensitivity"),
        (np.copy, {"name": ""}, "name"),
    ],
)
def test_bad_declaration_is_refused_by_name(function, how, message):
    assert_refused(message, Declared, function, **({"sensitivity": 1.0} | how))


def test_an_operator_that_returns_another_shape_is_refused(data):
    with pytest.raises(ValueError, match=r"must return shape \(4,\), got \(3,\)"):
        run(data, operator=Declared(lambda u: u[:3], sensitivity=1.0), clip=None)


def test_the_operator_of_admm_has_the_settings_of_admm(data):
    how = {"budget": dpk.Budget(mu=1.0), "rng": 0}
    ours = dpk.solve("fixed_point", data, operator="admm", relaxation=0.5, **how).parameters
    theirs = dpk.solve("admm", data, relaxation=0.5, **how).parameters
    for name in ("prox_step", "clip", "rounds"):
        assert ours[name] == theirs[name]
