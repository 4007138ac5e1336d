"""The papers' bounds: independent evaluations, and measured errors below them."""

import inspect
import math

import numpy as np
import pytest
from cases import for_each
from makers import make_silos
from mpmath import ceil, exp, floor, log, mp, mpf, sqrt

import dpkern as dpk
from dpkern.papers import bounds, diagnostics, noise
from dpkern.privacy.guarantees.gdp import gdp_epsilon
from dpkern.privacy.sampling.amplification import Sampled, sampled_epsilon
from dpkern.solvers import Objective

mp.dps = 30
DELTA = 1e-5


def sum_of(terms):
    return sum(terms, mpf(0))


# What the papers print, in another form than the module's: recursions, sums and quotients.


def drift(step_size, local_steps, gradient_norm):
    return (2 * mpf(step_size) * gradient_norm * (local_steps - 1)) ** 2


def theorem_4(smoothness, strength, clip, dim, steps, local_steps, square_distance, Gamma, std):
    L, lam, K = mpf(smoothness), mpf(strength), local_steps
    gamma = max(8 * L / lam - 1, K)
    B = 6 * L * Gamma + 8 * (K - 1) ** 2 * mpf(clip) ** 2 + dim * mpf(std) ** 2
    total = 2 * L * B / lam**2 + 4 * L**2 * square_distance / lam
    return total / (gamma + steps)


def wd_dp(smoothness, strength, clip, dim, n, epsilon, delta, steps, gap):
    """The recursion that (15) sums."""
    variance = 8 * mpf(clip) ** 2 * steps * log(1 / mpf(delta)) / (n * mpf(epsilon)) ** 2
    value = mpf(gap)
    for _ in range(steps):
        value -= mpf(strength) / smoothness * value
        value += dim * variance / 2 / smoothness
    return value


def fixed_point(k, tau, p, sigma, D, q, zeta):
    q, rest = mpf(q), 1 - mpf(tau)
    noise = 8 * (sqrt(p) * sigma + zeta) / sqrt(q) / rest
    noise += 8 * (p * mpf(sigma) ** 2 + mpf(zeta) ** 2) / q**3 / rest**3
    return exp(k * log(1 - q * q * rest / 8)) * D + noise


PROBLEM = {"clip": 1.0, "smoothness": 2.0, "strength": 0.25, "dim": 30}
LOWY = {"n": 1238, "epsilon": 0.75, "delta": 1e-6}
LN = log(1 / mpf(1e-6))
SPIDER_Q, SPIDER_Q_OF_12 = (
    floor((mpf(0.75) * 1238 * 3 * sqrt(M) / sqrt(30 * LN * mpf(0.69) * 2)) ** (mpf(2) / 3))
    for M in (25, 12)
)
SGD_R = ceil(
    16 * log(mpf(0.25) * mpf(0.69) * min(12 * 1238, (mpf(0.75) * 1238) ** 2 * 12 / (30 * LN)))
)
CASES = {
    "bound_local_drift": (
        [{"step_size": 0.1, "local_steps": 5, "gradient_norm": 3.0}],
        [drift(0.1, 5, 3.0)],
    ),
    "bound_federated_step": (
        [PROBLEM | {"step_size": 0.1, "local_steps": 5, "square_distance": 2.0,
                    "heterogeneity": 0.3, "std": 0.2}],
        [2 - mpf(0.1) * mpf(0.25) * 2 + mpf(0.1) ** 2 * (mpf(0.3) * 12 + mpf(0.2) ** 2 * 30)
         + 2 * drift(0.1, 5, 1)],
    ),
    "bound_federated_gd": (
        [PROBLEM | {"steps": 60, "local_steps": K, "square_distance": 2.0, "heterogeneity": 0.3,
                    "std": 0.2} for K in (1, 5, 80)],
        [theorem_4(2, 0.25, 1, 30, 60, K, 2, mpf(0.3), 0.2) for K in (1, 5, 80)],
    ),
    "bound_fixed_point": (
        [{"iterations": 50, "contraction": 0.9, "dim": 7, "std": 0.1, "square_distance": 3.0},
         {"iterations": 50, "contraction": 0.9, "dim": 7, "std": 0.1, "square_distance": 3.0,
          "activation": 0.5, "error": 0.2}],
        [fixed_point(50, 0.9, 7, 0.1, 3, 1, 0), fixed_point(50, 0.9, 7, 0.1, 3, 0.5, mpf(0.2))],
    ),
    "bound_admm": (
        [{"mode": mode, "dim": 7, "order": 3.0, "epsilon": 0.5, "clip": 2.0, "prox_step": 0.3,
          "contraction": 0.9, "n": 400, "fraction": 0.25} for mode in ("central", "federated",
                                                                      "token")],
        [sqrt(7 * 3) * 2 * mpf(0.3) / sqrt(mpf(0.5) * 400 * r) / (1 - mpf(0.9))
         + 21 * mpf(0.6) ** 2 / (mpf(0.5) * square * (1 - mpf(0.9)) ** 3)
         for r, square in ((1, 400**2), (mpf(0.25), 100**2), (1, 400))],
    ),
    "claim_dp_sgd": (
        [{"steps": 1000, "n": 500, "noise_multiplier": 1.5}],
        [1 / (mpf(2.25) * 500)],
    ),
    "bound_dp_sgd": (
        [{"diameter": 2.0, "n": 100, "clip": 0.5, "steps": 900}],
        [100 * log(900) / 30],
    ),
    "bound_wd_dp": (
        [PROBLEM | {"n": 8000, "epsilon": 0.5, "delta": DELTA, "steps": T, "gap": 0.69}
         for T in (1, 14)],
        [wd_dp(2, 0.25, 1, 30, 8000, 0.5, DELTA, T, 0.69) for T in (1, 14)],
    ),
    "bound_risk_wd_dp": (
        [{"clip": 2.0, "dim": 30, "n": 8000, "epsilon": 0.5, "delta": DELTA}],
        [30 * log(8000) * log(1 / mpf(DELTA)) / mpf(2000) ** 2],
    ),
    "bound_risk_federated_gd": (
        [PROBLEM | {"m": 8, "size": 500, "epsilon": 0.5, "delta": DELTA}],
        [60 * (log(8) + log(500)) ** 2 * log(1 / mpf(DELTA)) / mpf(500) ** 2],
    ),
    "choose_wd_dp": (
        [{"smoothness": 2.0, "clip": 1.0, "dim": 30, "n": n, "epsilon": 0.5, "delta": DELTA}
         for n in (8000, 2)],
        [(ceil(2 * log(8000 * mpf(0.5)) - log(30) - log(log(1 / mpf(DELTA)))), mpf(1) / 2),
         (1, mpf(1) / 2)],
    ),
    "claim_of_silo": (
        [{"epsilon": 0.5, "delta": DELTA, "n": 1000, "size": 50}], [(10, mpf(DELTA))],
    ),
    "choose_newton_step": (
        [{"smoothness": 0.5, "strength": 0.1, "hessian_lipschitz": L, "hessian_error": 0.25,
          "beta": 0.25} for L in (1e-3, 0.1)],
        [mpf(3) / 2 * mpf(0.1) / mpf(0.5) * mpf(0.75) / mpf(1.25),
         mpf(0.1) ** 2 / 2 / (mpf(1.5) * (mpf(0.5) - mpf(0.1) / 4) * mpf(0.1))],
    ),
    "convert_zcdp": ([{"rho": 0.1, "delta": DELTA}],
                     [(sqrt(mpf(0.1)) + sqrt(-log(mpf(DELTA)))) ** 2 + log(mpf(DELTA))]),
    "choose_zcdp": ([{"epsilon": 2.0, "delta": DELTA}], [-1 / (2 * log(mpf(DELTA)))]),
    "convert_to_user_level": ([{"epsilon": 0.5, "delta": DELTA, "n": 7},
                               {"epsilon": 9.0, "delta": DELTA, "n": 7000}],
                              [(mpf(3.5), 7 * exp(3) * mpf(DELTA)), (63000, math.inf)]),
    "bound_prox_sgd": (
        [PROBLEM | LOWY | {"trust": trust, "m": 25, "participation": 12}
         for trust in ("silo", "shuffle")],
        [(64 * 30 * LN / (mpf(0.75) * 1238) ** 2 / 12 + mpf(8) / (12 * 1238)) * 4,
         (64 * 30 * (log(30) + LN) ** 2 / (mpf(0.75) * 1238 * 25) ** 2 + mpf(8) / (12 * 1238)) * 4],
    ),
    "choose_prox_sgd": (
        [PROBLEM | LOWY | {"participation": 12, "gap": gap} for gap in (0.69, 1e-9)],
        [(SGD_R, floor(1238 / SGD_R)),
         (1, 1238)],
    ),
    "bound_prox_svrg": (
        [PROBLEM | LOWY | {"m": m, "participation": M, "heterogeneity": 0.2}
         for m, M in ((25, 12), (1, 1))],
        [8 * 30 * LN / (mpf(0.25) * (mpf(0.75) * 1238) ** 2 * M) + v
         for M, v in ((12, mpf(13) * mpf(0.2) / (12 * 24)), (1, 0))],
    ),
    "choose_prox_svrg": (
        [PROBLEM | LOWY | {"participation": 12, "gap": 0.69}],
        [(96, 51, ceil(log(mpf(0.69) / 4 * 12 * (mpf(0.75) * 1238) ** 2 / (8 * 30), 2)),
          mpf(1) / 16)],
    ),
    "bound_spider": (
        [{"clip": 3.0, "smoothness": 2.0, "dim": 30, "m": 25, "gap": 0.69} | LOWY],
        [(sqrt(3 * 2 * mpf(0.69) * 30 * LN) / (mpf(0.75) * 1238 * 5)) ** (mpf(4) / 3)
         + 9 * 30 * LN / ((mpf(0.75) * 1238) ** 2 * 25)],
    ),
    "choose_spider": (
        [{"clip": 3.0, "smoothness": 2.0, "dim": 30, "m": 25, "gap": 0.69} | LOWY | more
         for more in ({}, {"participation": 12}, {"n": 2, "participation": 2, "gap": 1e-12})],
        [(q, floor(mpf(0.75) * n * sqrt(M * q * mpf(gap) * 2) / (3 * sqrt(30 * LN))), mpf(1) / 4)
         for q, n, M, gap in ((SPIDER_Q, 1238, 25, 0.69), (SPIDER_Q_OF_12, 1238, 12, 0.69),
                              (4, 2, 2, 1e-12))],
    ),
    "bound_shuffled_sum": (
        [{"clip": 3.0, "dim": 30, "epsilon": 0.75, "delta": DELTA}],
        [480 * (log(30) - log(mpf(DELTA))) ** 2],
    ),
    "bound_gradient_below": (
        [{"trust": trust, "clip": 3.0, "dim": d, "m": 25, "n": 1238, "epsilon": 0.75}
         for trust, d in (("silo", 30), ("shuffle", 30), ("silo", 10**9))],
        [9 * 30 / (mpf(0.75) * 1238) ** 2 / N for N in (25, 625)] + [9],
    ),
}  # fmt: skip


def test_every_bound_has_an_independent_evaluation():
    assert sorted(CASES) == sorted(bounds.__all__)


@for_each("name", CASES)
def test_a_bound_is_the_printed_expression(name):
    arguments, expected = CASES[name]
    for given, values in zip(arguments, expected, strict=True):
        results = getattr(bounds, name)(**given)
        pairs = zip(results, values, strict=True) if isinstance(values, tuple) else [
            (results, values)
        ]  # fmt: skip
        for result, value in pairs:
            assert result == pytest.approx(float(value), rel=1e-12)


def test_the_step_of_lemma_2_leads_to_theorem_4():
    """By induction: L / 2 times the recursion of the steps stays below the theorem's bound."""
    L, lam, K = 2.0, 0.25, 5
    how = {"smoothness": L, "strength": lam, "clip": 1.0, "dim": 30, "local_steps": K}
    how |= {"heterogeneity": 0.3, "std": 0.2}
    gamma, distance = max(8 * L / lam - 1, K), 2.0
    for t in range(1, 400):
        step = 2.0 / (lam * (t + gamma))
        distance = bounds.bound_federated_step(step_size=step, square_distance=distance, **how)
        bound = bounds.bound_federated_gd(steps=t, square_distance=2.0, **how)
        assert L / 2 * distance <= bound


@for_each("name", CASES)
def test_a_bound_names_the_argument_that_it_refuses(name):
    call, given = getattr(bounds, name), CASES[name][0][0]
    assert set(given) >= {
        p.name for p in inspect.signature(call).parameters.values() if p.default is p.empty
    }
    for argument in given:
        for wrong in (-1, float("nan"), "x"):
            with pytest.raises((ValueError, TypeError), match=f"^{argument} must "):
                call(**given | {argument: wrong})


@for_each(
    ("name", "changes", "message"),
    [
        ("bound_wd_dp", {"strength": 3.0}, "strength must be at most smoothness = 2.0, got 3.0"),
        ("claim_of_silo", {"size": 2000}, "size must be at most n = 1000, got 2000"),
        ("bound_prox_sgd", {"participation": 26}, "participation must be at most m = 25, got 26"),
        ("bound_fixed_point", {"contraction": 1.0}, "contraction must be at least 0 and below 1"),
        ("bound_fixed_point", {"activation": 1.5}, "activation must be above 0 and at most 1"),
        ("choose_zcdp", {"epsilon": 30.0}, "epsilon must be at most 2 ln"),
        ("choose_spider", {"gap": 0.0}, "gap must be positive"),
        ("bound_shuffled_sum", {"epsilon": 15.5}, "epsilon must be at most 15, got 15.5"),
        ("bound_shuffled_sum", {"delta": 0.5}, "delta must be below 1/2, got 0.5"),
    ],
)
def test_values_beyond_the_theorems_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        getattr(bounds, name)(**CASES[name][0][0] | changes)


# ------------------------------------------------------------------- what is measured is below


def test_the_claim_for_dp_sgd_is_below_what_its_samples_cost():
    """At a noise multiplier of 1, by the dominating pairs of secret samples."""
    samples = frozenset({(Sampled("without_replacement", 1, 1000, 1.0), 1000)})
    rho = bounds.claim_dp_sgd(steps=1000, n=1000, noise_multiplier=1.0)
    claimed = bounds.convert_zcdp(rho=rho, delta=DELTA)
    assert 1.1 * claimed < sampled_epsilon(samples, DELTA, "replace_one") < 1.3 * claimed


@pytest.fixture(scope="module")
def problem():
    data = make_silos([250] * 4, 5, row_bound=1.0)
    objective = Objective(data, dpk.losses.Logistic(), l2=0.1)
    w, least = objective.minimum()
    return data, objective, w, least


CLAIM = {"epsilon": 1.0, "delta": DELTA}


def mean_of(function, problem, name, **options):
    """The mean over runs with the paper's noise, clip 1 and l2 0.1."""
    data = problem[0]
    budget = dpk.Budget(**CLAIM)
    runs = [
        dpk.solve(name, data, budget=budget, clip=1.0, l2=0.1, rng=seed, **options)
        for seed in range(8)
    ]
    return float(np.mean([function(run.w) for run in runs]))


@for_each("local_steps", [1, 5])
def test_huangs_gap_is_below_theorem_4(problem, local_steps):
    _, objective, w, least = problem
    measured = mean_of(
        lambda v: objective.value(v) - least, problem, "federated_gd", weights="uniform",
        rounds=60 // local_steps, local_steps=local_steps, step_size="theorem",
        calibration="paper",
    )  # fmt: skip
    std = noise.federated_gd(CLAIM, clip=1.0, smallest=250, m=4, steps=60)
    bound = bounds.bound_federated_gd(
        smoothness=objective.smoothness, strength=0.1, clip=1.0, dim=5, steps=60,
        local_steps=local_steps, square_distance=float(w @ w), std=std,
        heterogeneity=diagnostics.measure_heterogeneity(objective),
    )  # fmt: skip
    assert 0.0 < measured <= bound


def test_the_drift_of_silos_is_below_lemma_3():
    """Mean squared distance from the average, K steps from one model, silos of one label each."""
    rng = np.random.default_rng(0)
    for step_size, K in ((0.1, 5), (1.0, 3), (1.0, 20)):
        silos = [rng.standard_normal((50, 4)) for _ in range(4)]
        silos = [X / np.linalg.norm(X, axis=1, keepdims=True) for X in silos]
        models = np.zeros((4, 4))
        for _ in range(K - 1):  # Lemma 3 is of the model before the K-th step
            for j, (X, y) in enumerate(zip(silos, (1, -1, 1, -1), strict=True)):
                models[j] += step_size * y * (X.T @ (1.0 / (1.0 + np.exp(y * X @ models[j])))) / 50
        drift = float(np.mean(np.sum((models - models.mean(axis=0)) ** 2, axis=1)))
        bound = bounds.bound_local_drift(step_size=step_size, local_steps=K, gradient_norm=1.0)
        assert 0.0 < drift <= bound


def test_the_gap_of_one_noise_is_below_equation_15(problem):
    _, objective, _, least = problem
    how = {"smoothness": objective.smoothness, "clip": 1.0, "dim": 5, "n": 1000, **CLAIM}
    steps, step_size = bounds.choose_wd_dp(**how)
    measured = mean_of(
        lambda v: objective.value(v) - least, problem, "gradient_descent", rounds=steps,
        step_size=step_size, momentum=0.0, returns="last", calibration="paper",
    )  # fmt: skip
    gap = objective.value(np.zeros(5)) - least
    bound = bounds.bound_wd_dp(**how, strength=0.1, steps=steps, gap=gap)
    assert 0.0 < measured <= bound


def test_the_distance_of_a_fixed_point_is_below_equation_1(problem):
    data, objective, w, _ = problem
    step = 1.0 / objective.smoothness
    result = dpk.solve(
        "fixed_point", data, budget=dpk.Budget(**CLAIM), clip=1.0, l2=0.1, rng=0, rounds=60,
        operator="gradient", step_size=step, relaxation=1.0,
    )  # fmt: skip
    (release,) = {r.std for r in result.privacy.releases}
    bound = bounds.bound_fixed_point(
        iterations=60, contraction=1.0 - 0.1 * step, dim=5, std=step * release / 1000,
        square_distance=float(w @ w),
    )  # fmt: skip
    assert 0.0 < float(np.sum((result.w - w) ** 2)) <= bound


def test_the_exact_guarantee_is_below_the_papers_conversions():
    for rho in (0.01, 0.1, 1.0):
        exact = gdp_epsilon(math.sqrt(2 * rho), DELTA)
        assert exact <= bounds.convert_zcdp(rho=rho, delta=DELTA)
        epsilon = bounds.convert_zcdp(rho=rho, delta=DELTA)
        assert bounds.choose_zcdp(epsilon=epsilon, delta=DELTA) <= rho
