"""Objective perturbation: its guarantee, the distance to the minimiser in doubles, the solver."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from cases import for_each

import dpkern as dpk
from dpkern import kernels
from dpkern.models.losses import Huber, Logistic, get_loss
from dpkern.privacy import Certificate, NoiseStream, compose_parallel, compose_sequential
from dpkern.privacy.certificate.ledger import Ledger, entries
from dpkern.privacy.guarantees.gdp import gdp_delta
from dpkern.privacy.guarantees.objective_perturbation import ObjectivePerturbation, _delta
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.perturbed_minimiser import PerturbedMinimiser
from dpkern.privacy.sensitivity.minimisation import MOST_RECORDS, Minimisation

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)


def records(n=60, p=3, m=2, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    options = {"row_bound": 2.0, "intercept": True} | options
    return dpk.SiloData(X, y, np.linspace(0, n, m + 1).astype(int), **options)


def run(data, **options):
    options = {"budget": BUDGET, "clip": 0.5, "rng": 1} | options
    return dpk.solve("objective_perturbation", data, **options)


def law(**changes):
    values = {"volume": 0.2, "shift": 0.15, "directions": 2, "mu": 0.02} | changes
    return ObjectivePerturbation(**values)


def mechanism(budget=BUDGET, neighbours="replace_one", **changes):
    channel = Channel(Ledger(), NoiseStream(0), "everybody", neighbours)
    values = {"clip": 1.0, "dim": 1, "records": 1, "smoothness": 1.0, "kappa": 1.0} | changes
    return PerturbedMinimiser(channel, budget, **{"penalties": (5.0, 5.0)} | values)


# ---------------------------------------------------------------------------------- the guarantee


@for_each("mu", [1e-3, 0.03, 0.3, 2.0, 30.0])
def test_delta_of_gaussian_dp_is_an_upper_bound_for_any_argument(mu):
    with mp.workdps(60):
        for x in (-30.0, -1.0, -0.01, -1e-9, 0.0, 1e-9, 1e-3, 0.01, 0.1, 1.0, 5.0):
            a, b = mp.mpf(x) / mu - mp.mpf(mu) / 2, mp.mpf(x) / mu + mp.mpf(mu) / 2
            exact = mp.ncdf(-a) - mp.exp(x) * mp.ncdf(-b)
            found = float(_delta(np.array([x]), mu)[0])
            assert found + 2.0**-1000 >= exact
            assert found <= exact * (1 + mp.mpf(2) ** -30) + mp.mpf(2) ** -46
    assert _delta(np.array([-math.inf]), mu)[0] == 1.0


@for_each("directions", [1, 2, 6])
def test_tail_of_chi_is_within_the_error_that_is_counted(directions):
    ends = np.linspace(0.1, 38.0, 60)
    found = scipy.special.gammaincc(0.5 * directions, 0.5 * ends**2)
    with mp.workdps(40):
        for x, tail in zip(ends.tolist(), found.tolist(), strict=True):
            exact = mp.gammainc(mp.mpf(directions) / 2, mp.mpf(x) ** 2 / 2, regularized=True)
            assert abs(tail - exact) <= exact * mp.mpf(2) ** -36 + mp.mpf(10) ** -307


@for_each("directions", [1, 2, 6])
@for_each("epsilon", [0.1, 0.5, 1.0, 2.0])
def test_delta_is_the_stated_expectation_rounded_up(directions, epsilon):
    one = law(directions=directions)

    def integrand(r):
        x = epsilon - one.volume - one.shift * (r + 0.5 * one.shift)
        z = x / one.mu
        value = scipy.stats.norm.cdf(-z + one.mu / 2)
        value -= math.exp(x) * scipy.stats.norm.cdf(-z - one.mu / 2)
        return value * scipy.stats.chi.pdf(r, directions)

    middle = (epsilon - one.volume) / one.shift
    points = [min(max(middle, 0.0), 12.0), min(max(middle + 1.0, 0.0), 12.0)]
    exact = scipy.integrate.quad(integrand, 0.0, 14.0, points=points, limit=400, epsrel=1e-9)[0]
    assert exact <= one.delta(epsilon) + 1e-13
    larger = law(directions=directions, shift=one.shift, volume=one.volume + 0.0052 * one.shift)
    assert one.delta(epsilon) <= larger.delta(epsilon)
    if exact > 1e-9:
        assert one.delta(epsilon) <= 1.04 * exact


def clamped_huber(w, x, y, C, delta):
    """Derivative in w and curvature of the clipped Huber loss of a record in one dimension."""
    r = np.clip(w * x - y, -delta, delta)
    limit = C / abs(x)
    inside = np.abs(w * x - y) < min(delta, limit)
    return np.clip(r, -limit, limit) * x, x * x * inside


def exact_profile(density, other, epsilons, ends, points):
    """The hockey-stick divergence of two densities on the line, by the trapezoidal rule."""
    w = np.linspace(*ends, points)
    p, q = density(w), other(w)
    step = w[1] - w[0]
    assert abs(p.sum() * step - 1.0) < 1e-4
    return [float(np.maximum(p - math.exp(e) * q, 0.0).sum() * step) for e in epsilons]


def density_of(records, s, penalty, C):
    """The law of the exact minimiser for records (x, y, delta) in one dimension."""

    def density(w):
        b, A = penalty * w, np.full_like(w, penalty)
        for x, y, delta in records:
            g, h = clamped_huber(w, x, y, C, delta)
            b, A = b + g, A + h
        return scipy.stats.norm.pdf(b, scale=s) * A

    return density


def sets_of_records(neighbours, R, C):
    """Neighbouring sets: gradients as far apart as they can be, and a record's curvature alone."""
    steep, other = (R, 1e3, 1e4), (R, -1e3, 1e4)
    for y in (0.0, 0.3 * C / R):
        curved = (R, y, 1e4)
        if neighbours == "add_remove":
            yield (steep,), ()
            yield (), (steep,)
            yield (curved,), ()
            yield (), (curved,)
        else:
            yield (steep,), (other,)
            yield (curved,), (steep,)
            yield (steep,), (curved,)


@pytest.mark.proof
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove"])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-4), (1.0, 1e-5), (2.0, 1e-3)])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_exact_law_of_the_minimiser_keeps_the_budget(neighbours, epsilon, delta, share):
    """For one record in one dimension, by integration of the exact density."""
    C, R = 1.0, 1.0
    penalty = R * R / math.expm1(share * epsilon)
    budget = dpk.Budget(epsilon=epsilon, delta=delta)
    found = mechanism(budget, neighbours, clip=C, penalties=(penalty, penalty))
    reach = (9.0 * found.std + 3.0 * C) / penalty
    for first, second in sets_of_records(neighbours, R, C):
        p, q = (density_of(r, found.std, penalty, C) for r in (first, second))
        profile = exact_profile(p, q, (epsilon, 0.5 * epsilon), (-reach, reach), 400_001)
        assert profile[0] <= delta
        assert profile[1] <= found.guarantee.delta(0.5 * epsilon)


def test_curvature_of_a_record_is_needed():
    """Without its term the exact law would not keep the guarantee."""
    C, R, share, epsilon, delta = 1.0, 1.0, 0.9, 1.0, 1e-5
    penalty = R * R / math.expm1(share * epsilon)
    found = mechanism(dpk.Budget(epsilon=epsilon, delta=delta), penalties=(penalty, penalty))
    reach = (9.0 * found.std + 3.0 * C) / penalty
    p, q = (density_of(r, found.std, penalty, C) for r in (((R, 0.0, 1e4),), ((R, 1e3, 1e4),)))
    exact = exact_profile(p, q, (0.6,), (-reach, reach), 400_001)[0]
    without = ObjectivePerturbation(
        volume=0.0, shift=found.guarantee.shift, directions=2, mu=found.guarantee.mu
    )
    assert without.delta(0.6) < exact <= found.guarantee.delta(0.6)


@pytest.mark.proof
def test_exact_law_in_two_dimensions_is_below_the_guarantee():
    """Two rows at an angle, one record replaced, beside one that both sets have."""
    C, penalty, s, epsilons = 1.0, 3.0, 8.0, (0.2, 0.4, 0.6, 0.8)
    rows = np.array([[1.0, 0.0], [math.cos(1.2), math.sin(1.2)], [0.6, -0.8]])
    axis = np.linspace(-16.0, 16.0, 1601)
    W = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    area = (axis[1] - axis[0]) ** 2

    def density(which):
        b, A = penalty * W, np.zeros((*W.shape, 2)) + penalty * np.eye(2)
        for x, y in which:
            r = W @ x - y
            b = b + np.clip(r, -C, C)[..., None] * x
            A = A + (np.abs(r) < C)[..., None, None] * np.outer(x, x)
        normal = np.exp(-0.5 * np.sum(b**2, axis=-1) / s**2) / (2.0 * math.pi * s**2)
        return normal * np.linalg.det(A)

    both = (rows[2], 0.2)
    for first, second in (((rows[0], 0.0), (rows[1], 0.0)), ((rows[0], 9.0), (rows[1], -9.0))):
        p, q = density((both, first)), density((both, second))
        assert abs(p.sum() * area - 1.0) < 2e-3
        stated = ObjectivePerturbation(
            volume=math.log1p(1.0 / penalty), shift=2.0 * C / s, directions=2, mu=1e-9
        )
        for epsilon in epsilons:
            exact = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * area)
            assert exact <= stated.delta(epsilon)


def test_largest_shift_keeps_the_budget_and_no_larger_one_does():
    how = {"volume": 0.25, "directions": 2, "mu": 0.01}
    found = ObjectivePerturbation.within(1.0, 1e-6, **how)
    assert found.delta(1.0) <= 1e-6
    assert law(**how, shift=found.shift * (1.0 + 1e-12)).delta(1.0) > 1e-6
    with pytest.raises(ValueError, match="added_l2 must be larger for this budget, got one with"):
        ObjectivePerturbation.within(1.0, 1e-6, volume=1.0, directions=2, mu=0.01)


def test_noise_is_at_least_that_of_a_gaussian_release_of_the_same_sensitivity():
    assert mechanism(penalties=(3.0, 9.0)).guarantee.volume >= math.log1p(1.0 / 3.0)
    for neighbours in ("replace_one", "add_remove"):
        found = mechanism(neighbours=neighbours)
        moved = 2.0 if neighbours == "replace_one" else 1.0
        assert found.guarantee.shift >= moved / found.std
        assert gdp_delta(moved / found.std, 1.0) <= 1e-5
        assert found.guarantee.directions == moved


def test_guarantee_of_a_group_multiplies_what_its_records_do():
    one, three = law(), law().group(3)
    assert (three.volume, three.shift) == pytest.approx((3 * one.volume, 3 * one.shift), rel=1e-14)
    assert three.directions == 6
    assert three.mu == pytest.approx(3 * one.mu, rel=1e-14)
    assert Fraction(three.mu) >= 3 * Fraction(one.mu)
    assert three.volume >= 3 * one.volume
    assert three.delta(1.0) > one.delta(1.0)
    assert one.group(1).delta(0.5) >= one.delta(0.5)


# --------------------------------------------------------------- the distance to the minimiser


def gradient(w, X, y, C, grid, loss, penalties, b):
    """The gradient of the clipped objective at the doubles w, in extended precision."""
    mp.mp.dps = 40
    total = [mp.mpf(float(p)) * mp.mpf(float(v)) + mp.mpf(float(k))
             for p, v, k in zip(penalties, w, b, strict=True)]  # fmt: skip
    d = len(w)
    inner = (mp.mpf(C) - mp.mpf(grid) * mp.sqrt(d) / 2) * (1 - (d + 16) * mp.mpf(2) ** -52)
    for x, label in zip(X.tolist(), y.tolist(), strict=True):
        z = mp.fsum(mp.mpf(a) * mp.mpf(float(v)) for a, v in zip(x, w, strict=True))
        slope = -label / (1 + mp.exp(label * z)) if loss == "logistic" else z - label
        norm = mp.sqrt(mp.fsum(mp.mpf(a) ** 2 for a in x) + d * mp.mpf(2) ** -240)
        slope = max(min(slope, inner / norm), -inner / norm)
        total = [t + slope * a for t, a in zip(total, x, strict=True)]
    return mp.sqrt(mp.fsum(t**2 for t in total))


HARD = [
    ("logistic", {}, {"clip": 0.3}),
    ("logistic", {"scale": 50.0}, {"clip": 0.3, "added_l2": 1e-3}),
    ("logistic", {"same": True}, {"clip": 1.0, "added_l2": 1e-4}),
    ("squared", {"task": "regression"}, {"clip": 0.2, "added_l2": 3e-3}),
    ("squared", {"task": "regression", "same": True}, {"clip": 2.0, "added_l2": 3e-3}),
    ("logistic", {"m": 4}, {"clip": 0.3, "weights": "uniform", "l2": 0.01}),
]


@pytest.fixture
def internals(monkeypatch):
    """(b, the point that the steps end at, the mechanism) of a run."""
    seen = {}
    linear, release = PerturbedMinimiser.linear_term, PerturbedMinimiser.release

    def spied_linear(self):
        seen["b"] = linear(self)
        return seen["b"].copy()

    def spied_release(self, w):
        seen["w"], seen["mechanism"] = w.copy(), self
        seen["V"] = release(self, w)
        return seen["V"]

    monkeypatch.setattr(PerturbedMinimiser, "linear_term", spied_linear)
    monkeypatch.setattr(PerturbedMinimiser, "release", spied_release)
    return seen


@pytest.mark.parametrize(("loss", "of_records", "options"), HARD)
def test_steps_end_within_tau_of_the_minimiser_for_hard_records(
    internals, loss, of_records, options
):
    of_records = dict(of_records)
    rng = np.random.default_rng(3)
    n, p, same = 40, 4, of_records.pop("same", False)
    X = rng.standard_normal((n, p)) * np.array([1.0, 1e-3, 10.0, 1e-6])
    X *= of_records.pop("scale", 1.0)
    if same:
        X[:] = X[0]
    y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
    if of_records.get("task") == "regression":
        y = 1e3 * rng.standard_normal(n)
    X *= np.minimum(1.0, 0.999 / np.linalg.norm(X, axis=1))[:, None]
    m = of_records.pop("m", 1)
    offsets = [0, 3, 10, 22, 40] if m == 4 else [0, 40]
    data = dpk.SiloData(X, y, offsets, row_bound=1.0, **of_records)
    # An epsilon for which the least penalties above suffice.
    run(data, loss=loss, budget=dpk.Budget(epsilon=15.0, delta=1e-5), **options)
    found = internals["mechanism"].minimisation
    om = np.repeat(3.0 / data.sizes if m == 4 else np.ones(1), data.sizes)
    scale = 1.0 / 12.0 if m == 4 else 1.0 / 40.0
    penalty = np.full(4, options.get("l2", 0.0) + result_l2(internals, data, options, scale))
    assert float(penalty.min()) / scale == pytest.approx(found.penalties[0])
    if m == 4:  # weights multiply the derivative, and so the record's row of a gradient
        norm = weighted_gradient(internals, data, om, options["clip"], found)
    else:
        norm = gradient(internals["w"], X, y, options["clip"], found.grid, loss,
                        penalty / scale, internals["b"])  # fmt: skip
    # The real b is within half a grid step of its rounded value in every coordinate.
    off = 0.5 * found.linear_grid * 2.0
    assert float(norm) + off <= found.tau * found.penalties[0]


def result_l2(internals, data, options, scale):
    return internals["mechanism"].minimisation.penalties[0] * scale - options.get("l2", 0.0)


def weighted_gradient(internals, data, om, C, found):
    """The norm of the gradient where records have weights om, in extended precision."""
    w, d = internals["w"], data.d
    total = [mp.mpf(found.penalties[0]) * mp.mpf(float(v)) + mp.mpf(float(k))
             for v, k in zip(w, internals["b"], strict=True)]  # fmt: skip
    inner = (mp.mpf(C) - mp.mpf(found.grid) * mp.sqrt(d) / 2) * (1 - (d + 16) * mp.mpf(2) ** -52)
    for x, label, weight in zip(data.X.tolist(), data.y.tolist(), om.tolist(), strict=True):
        z = mp.fsum(mp.mpf(a) * mp.mpf(float(v)) for a, v in zip(x, w, strict=True))
        norm = mp.sqrt(mp.fsum(mp.mpf(a) ** 2 for a in x) + d * mp.mpf(2) ** -240)
        slope = -label / (1 + mp.exp(label * z))
        slope = max(min(slope, inner / norm), -inner / norm) * mp.mpf(weight)
        total = [t + slope * a for t, a in zip(total, x, strict=True)]
    return mp.sqrt(mp.fsum(t**2 for t in total))


def test_half_the_steps_would_not_suffice_for_a_flat_direction(monkeypatch, internals):
    """A quadratic with one steep and one flat direction, b as long as it can be along the flat
    one: the public number of steps is needed up to a factor."""

    def along_the_flat_axis(self):
        return np.array([0.0, self.minimisation.linear_bound])

    monkeypatch.setattr(PerturbedMinimiser, "linear_term", along_the_flat_axis)
    data = dpk.SiloData(np.tile([1.0, 0.0], (200, 1)), np.zeros(200), [0, 200], row_bound=1.0,
                        task="regression")  # fmt: skip
    how = {"loss": "squared", "clip": 5e-4, "added_l2": 1e-3, "budget": None}
    how["budget"] = dpk.Budget(epsilon=4.0, delta=1e-9)

    def distance():
        run(data, **how)
        found = internals["mechanism"].minimisation
        exact = np.array([0.0, -found.linear_bound / found.penalties[0]])
        return float(np.linalg.norm(internals["w"] - exact)) / found.tau

    assert distance() <= 1.0
    whole = Minimisation.steps.func
    monkeypatch.setattr(Minimisation, "steps", property(lambda self: whole(self) // 2))
    assert distance() > 1.0


def minimisation(**changes):
    values = {
        "clip": 0.5, "dim": 20, "records": 1000, "smoothness": 4.0, "kappa": 5.0,
        "penalties": (3.0, 4.0), "linear_bound": 70.0, "linear_grid": 2.0**-30, "target": 1e-12,
    }  # fmt: skip
    return Minimisation(**values | changes)


def test_tau_is_the_stated_formula_rounded_up():
    """In rational numbers, from what docs/objective_perturbation.md says."""
    found, F = minimisation(), Fraction
    u, d, n, L, C = F(2) ** -53, 20, 1000, F(4), F(1, 2)
    H, G = n * L + 4, n * C + 70
    W = F(5, 2) * G / 3
    root = F(math.isqrt(20 * 10**30), 10**15)
    e = n * (F(found.grid) * root / 2 + u * ((d + 16) * L * W + (16 + 5) * C))
    e += 4 * u * (G + 4 * W) + 5 * u * H * W
    error = 2 * e / 3 + 64 * u * W * H / 3 + F(2) ** -30 * root / 6
    assert error <= F(found.iteration_error) <= error * (1 + F(2) ** -15)
    assert 2 * error <= F(found.tau) <= 2 * error * (1 + F(2) ** -15)
    rho = math.sqrt(3 / 4004)
    start = math.sqrt(2) * 570 / 3
    assert start * (1.0 - rho) ** (found.steps / 2) <= float(error)
    assert found.steps <= 1.01 * 2 / rho * math.log(start / float(error)) + 1
    coarse = minimisation(target=1e-3)
    assert coarse.tau >= coarse.iteration_error + 1e-3
    assert coarse.steps < found.steps


def distance(A, target, mu, x, v):
    """(2 E / mu)^(1/2) of the potential of a quadratic."""
    E = 0.5 * (x - target) @ A @ (x - target) + 0.5 * mu * (v - target) @ (v - target)
    return math.sqrt(2.0 * E / mu)


def test_recursion_of_the_potential_holds_with_errors_that_are_as_bad_as_they_can_be():
    """Random quadratics, and errors of a given norm in the worst direction of every step."""
    rng = np.random.default_rng(0)
    for trial in range(20):
        d, mu, H = 5, 0.01, 1.0
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        A = (Q * np.concatenate([[mu, H], rng.uniform(mu, H, d - 2)])) @ Q.T
        target, e = rng.standard_normal(d), 1e-3
        rho = math.sqrt(mu / H)
        x = v = np.zeros(d)
        start = distance(A, target, mu, x, v)
        for k in range(1, 400):
            y = (x + rho * v) / (1.0 + rho)
            plain = (1.0 - rho) * v + rho * y - A @ (y - target) / (rho * H)
            away = plain - target if trial % 2 else rng.standard_normal(d)
            g = A @ (y - target) - e * away / np.linalg.norm(away)
            x, v = y - g / H, (1.0 - rho) * v + rho * y - g / (rho * H)
            bound = 2.0 * e / mu + (1.0 - rho) ** (k / 2) * start
            assert distance(A, target, mu, x, v) <= bound * (1.0 + 1e-9)
            assert np.linalg.norm(x - target) <= bound * (1.0 + 1e-9)


def test_single_precision_is_never_used():
    """So many float32 records that the finest grid would allow it are refused."""
    with pytest.raises(ValueError, match=f"data must have at most {MOST_RECORDS} records"):
        minimisation(records=MOST_RECORDS + 1)
    most = minimisation(records=MOST_RECORDS, penalties=(1e5, 1e5))
    assert 0x7FFFFFFF * most.grid / most.clip < 8.0


# --------------------------------------------------------------------------------------- the run


def test_release_is_on_the_grid_and_charged_for_both_distances(internals):
    result = run(records())
    point, linear = result.privacy.releases
    tau = internals["mechanism"].minimisation.tau
    assert Fraction(point.sensitivity) >= 2 * Fraction(tau) + Fraction(point.grid) * 2
    assert point.sensitivity <= 2.1 * tau
    mu = internals["mechanism"].guarantee.mu
    assert Fraction(point.sensitivity) / Fraction(point.std) <= Fraction(mu)
    assert (result.w / point.grid == np.rint(result.w / point.grid)).all()
    assert linear.sensitivity == 1.0
    assert linear.minimiser == result.privacy.minimiser
    assert linear.std >= linear.sensitivity / result.privacy.minimiser.shift
    assert (internals["b"] / linear.grid == np.rint(internals["b"] / linear.grid)).all()
    assert np.linalg.norm(internals["b"]) <= internals["mechanism"].minimisation.linear_bound
    assert result.privacy.n_draws == 8
    assert 0.0 < np.linalg.norm(result.w - internals["w"]) < 30.0 * point.std


def test_linear_term_is_nowhere_in_the_result(internals):
    result = run(records())
    text = json.dumps(result.privacy.to_dict()) + str(result.parameters) + str(result.history)
    for value in (*internals["b"], *internals["w"]):
        assert repr(float(value)) not in text


def test_runs_in_lock_step_are_the_runs_by_themselves():
    data, how = records(), {"clip": [0.3, 0.5], "rng": 3, "draws": 2}
    runs = dpk.solve_many("objective_perturbation", data, budgets=[BUDGET], **how)
    for row, result in zip(runs.settings, runs, strict=True):
        one = run(data, clip=row["clip"], rng=row["rng"])
        np.testing.assert_array_equal(result.w, one.w)
        assert result.privacy == one.privacy
    assert runs.privacy.minimiser.directions == 8
    assert "releasing all of them costs at most epsilon" in str(runs)


def test_without_a_budget_the_model_is_the_minimiser():
    data = records(n=300)
    for options in ({}, {"l2": 0.1}, {"l2": 0.1, "penalize_intercept": False}):
        result = run(data, budget=None, clip=None, **options)
        added, own = result.parameters["added_l2"], options.get("l2", 0.0)
        mask = np.ones(4)
        mask[3] = options.get("penalize_intercept", True)
        sums = kernels.glm_gradient(data, result.w, loss="logistic", clip=math.inf).sum(axis=0)
        assert np.linalg.norm(sums / 300 + (own * mask + added) * result.w) <= 1e-7


def test_a_large_budget_gives_the_minimiser_of_the_clipped_objective():
    data = records(n=3000, m=3)
    result = run(data, budget=dpk.Budget(epsilon=19.0, delta=1e-3), clip=2.0, added_l2=0.05)
    plain = run(data, budget=None, clip=2.0, added_l2=0.05)
    assert np.linalg.norm(result.w - plain.w) <= 0.05 * np.linalg.norm(plain.w)


def test_certificate_gives_the_budget_back_and_any_other_delta():
    for options in ({}, {"neighbours": "add_remove", "public_size": 55}):
        certificate = run(records(), **options).privacy
        assert 0.99 < certificate.epsilon(1e-5) <= 1.0
        assert (certificate.mu, certificate.rho, certificate.zcdp) == (math.inf, math.inf, None)
        assert certificate.bound == "upper"
        assert any("twice" in note for note in certificate.notes) == bool(options)
        assert certificate.delta(1.0) <= 1e-5 < certificate.delta(0.99)
        assert certificate.epsilon(1e-3) < certificate.epsilon(1e-7) < 2.0
        assert certificate.epsilon(1e-200) == math.inf  # the error of the draws
        assert Certificate.from_dict(json.loads(json.dumps(certificate.to_dict()))) == certificate
        assert "perturbed objective" in str(certificate)
        assert "Gaussian" not in certificate.adversary
        people = certificate.group(2)
        assert people.minimiser == certificate.minimiser.group(2)
        assert people.epsilon(1e-5) > 2.0 * certificate.epsilon(1e-5)


@for_each("compose", [compose_sequential, compose_parallel])
def test_a_group_moves_gaussian_releases_beside_a_minimiser_too(compose):
    """A group of r records changes a mu-GDP release as r mu would, whatever it is composed with."""
    gaussian = dpk.solve(
        "gradient_descent", records(), budget=dpk.Budget(mu=1.0), clip=1.0, rounds=3, rng=1
    ).privacy
    people = compose(run(records()).privacy, gaussian)
    for r in (2, 5):
        for epsilon in (0.5, 2.0, 10.0):
            assert people.group(r).delta(epsilon) >= gdp_delta(r * 1.0, epsilon) * (1 - 1e-9)


def test_a_ledger_takes_no_other_release_for_that_of_the_minimiser():
    good = run(records()).privacy.releases
    linear = next(release for release in good if release.minimiser is not None)
    point = next(release for release in good if release.minimiser is None)

    def law_of(*releases):
        ledger = Ledger()
        for release in releases:
            ledger.append(release)
        return ledger.minimiser

    assert law_of(point, linear) == law_of(linear, point) == linear.minimiser
    assert law_of(linear) is None
    assert law_of(point) is None
    assert law_of(linear, replace(point, std=None)) is None
    assert law_of(linear, replace(point, std=0.99 * entries(point.std)[0])) is None
    assert law_of(linear, replace(point, times=2)) is None
    assert law_of(linear, point, linear) is None
    other = replace(point, what="another")
    assert law_of(linear, other) is None
    assert law_of(linear, point, replace(other, std=None)) is None
    beside = ObjectivePerturbation.sequential([linear.minimiser], math.sqrt(other.mu_squared()[0]))
    assert law_of(linear, point, other).mu == pytest.approx(beside.mu, rel=1e-12)
    assert law_of(linear, point, other).shift == beside.shift
    with pytest.raises(TypeError, match="minimiser must be an ObjectivePerturbation or None"):
        replace(linear, minimiser={"mu": 1.0})


def test_guarantees_of_runs_on_the_same_records_compose():
    """With what quadrature of the sum of independent losses gives, and with Gaussian releases."""
    one, other = law(), law(volume=0.1, shift=0.3, mu=0.05)
    both = ObjectivePerturbation.sequential([one, other], 0.04)
    assert both.volume >= one.volume + other.volume
    assert Fraction(both.shift) ** 2 >= Fraction(one.shift) ** 2 + Fraction(other.shift) ** 2
    assert both.directions == 4
    assert Fraction(both.mu) ** 2 >= sum(Fraction(mu) ** 2 for mu in (0.02, 0.05, 0.04))
    r = np.linspace(0.0, 12.0, 1201)
    weight = scipy.stats.chi.pdf(r, 2) * (r[1] - r[0])
    for epsilon in (0.7, 1.2, 2.0):
        Z = sum(o.volume + o.shift * (r.reshape(shape) + 0.5 * o.shift)
                for o, shape in ((one, (-1, 1)), (other, (1, -1))))  # fmt: skip
        exact = float(weight @ _delta(epsilon - Z, math.sqrt(0.0045)) @ weight)
        assert exact <= both.delta(epsilon) * (1.0 + 1e-6)
        assert one.delta(epsilon) < both.delta(epsilon)
    apart = ObjectivePerturbation.parallel([one, other], 0.04)
    assert (apart.volume, apart.shift, apart.directions, apart.mu) == (0.2, 0.3, 2, 0.05)


def test_certificates_compose_with_each_other_and_with_gaussian_ones():
    data = records()
    certificate = run(data).privacy
    gaussian = dpk.solve("ridge", data, budget=BUDGET, rng=0).privacy
    for compose, law_of in (
        (compose_sequential, ObjectivePerturbation.sequential),
        (compose_parallel, ObjectivePerturbation.parallel),
    ):
        together = compose(gaussian, certificate, certificate)
        assert together.minimiser == law_of([certificate.minimiser] * 2, gaussian.mu)
        assert together.epsilon(1e-5) > certificate.epsilon(1e-5)
        assert compose(certificate).minimiser == law_of([certificate.minimiser], 0.0)
        plain = run(data, budget=None).privacy
        assert not compose(plain, certificate).states_something
        # What is composed at length is stated as nothing, never as less.
        assert compose(*[gaussian] * 3, certificate).n_draws >= certificate.n_draws
    most = run(data, budget=dpk.Budget(epsilon=19.0, delta=1e-3)).privacy
    assert compose_sequential(*[most] * 3000).epsilon(1e-5) == math.inf
    shuffled = dpk.solve(
        "minibatch_sgd", data, budget=BUDGET, trust="shuffle", clip=1.0, rounds=1, rng=0
    ).privacy
    together = compose_sequential(shuffled, certificate)
    assert together.minimiser == ObjectivePerturbation.sequential(
        [certificate.minimiser], shuffled.mu
    )
    best = dpk.select({"clip": [0.5, 1.0]}, data, solver="ridge", budget=BUDGET, rng=0).privacy
    with pytest.raises(
        ValueError, match="must have a mu or a rho to compose, got that of a selection"
    ):
        compose_sequential(best, certificate)
    with pytest.raises(ValueError, match="solver must be one of Gaussian DP in a selection, got"):
        dpk.select({"clip": [0.5, 1.0]}, data, solver="objective_perturbation", budget=BUDGET)
    ledger = Ledger()
    for release in (*certificate.releases, *gaussian.releases):
        ledger.append(release)
    assert ledger.mu_squared() is None
    one = Certificate.from_ledger(ledger, trust="central", noise="os")
    assert one.epsilon(1e-5) == compose_sequential(gaussian, certificate).epsilon(1e-5)


class NotConvex(Logistic):
    convex = False


class Unbounded(Logistic):
    smoothness = math.inf


class Unknown(Logistic):
    kappa = math.inf


@for_each(
    ("options", "of_records", "message"),
    [
        ({"budget": dpk.Budget(mu=0.5)}, {}, "budget must be given as epsilon and delta"),
        ({"loss": NotConvex()}, {}, "loss must be convex in objective_perturbation"),
        ({"loss": Unbounded()}, {}, "loss.smoothness must be finite for a minimiser"),
        ({"loss": Unknown()}, {}, "loss.kappa must be finite for a minimiser"),
        ({}, {"row_bound": None}, "row_bound must be finite for a minimiser"),
        ({"added_l2": 0.0}, {}, "added_l2 must be positive where l2 is 0"),
        ({"added_l2": 0.0, "l2": 1.0, "penalize_intercept": False}, {}, "added_l2 must be posit"),
        ({"added_l2": 1e-6}, {}, "added_l2 must be larger for this budget"),
        (
            {"neighbours": "add_remove", "public_size": 29},
            {},
            "public_size must be at least half of the number of records",
        ),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused(options, of_records, message):
    with pytest.raises(ValueError, match=message):
        run(records(**of_records), **options)


def test_settings_do_not_depend_on_how_many_records_there_are_under_add_remove():
    how = {"neighbours": "add_remove", "public_size": 60}
    first, second = (run(records(n=n), **how) for n in (60, 61))
    assert first.parameters == second.parameters
    assert first.privacy.releases == second.privacy.releases
    assert replace(first.privacy, model=second.privacy.model) == second.privacy


@pytest.mark.statistical
@pytest.mark.parametrize("neighbours", ["replace_one", "add_remove"])
def test_audit_of_released_models_finds_less_than_the_certificate(neighbours):
    """Clopper-Pearson lower bounds of epsilon from thresholds on the released model."""
    draws, delta, confidence = 3000, 1e-3, 0.999
    budget, huber = dpk.Budget(epsilon=1.0, delta=delta), Huber(1e4)
    how = {"loss": huber, "clip": 1.0, "budget": budget, "added_l2": 3.0}
    if neighbours == "add_remove":
        how |= {"neighbours": neighbours, "public_size": 1}
    sets = {"replace_one": ([1e3], [-1e3]), "add_remove": ([1e3], [1e3, 1e3])}[neighbours]
    values = []
    for i, y in enumerate(sets):
        X = np.ones((len(y), 1))
        data = dpk.SiloData(X, y, [0, len(y)], row_bound=1.0, task="regression")
        values.append([run(data, rng=2 * seed + i, **how).w[0] for seed in range(draws)])
    low, high = sorted(map(np.array, values), key=np.mean)
    certificate = run(data, **how).privacy
    best = 0.0
    for t in np.quantile(np.concatenate([low, high]), np.linspace(0.05, 0.95, 19)):
        hits, misses = int((high > t).sum()), int((low > t).sum())
        least = scipy.stats.beta.ppf(1.0 - confidence, hits, draws - hits + 1)
        most = scipy.stats.beta.ppf(confidence, misses + 1, draws - misses)
        if least > delta:
            best = max(best, math.log((least - delta) / most))
    assert 0.05 < best < certificate.epsilon(delta)


def test_kappa_and_smoothness_of_the_loss_are_those_that_are_counted(internals):
    run(records())
    found = internals["mechanism"].minimisation
    assert found.kappa == get_loss("logistic").kappa
    assert 1.0 <= found.smoothness <= 1.0 + 1e-9  # phi'' <= 1/4, rows of norm 2 at most
    assert found.records == 60
