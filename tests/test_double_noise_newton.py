"""Double-noise Newton: the sensitivity of its direction, its releases, its noiseless limit."""

import math
import sys
import warnings

import mpmath
import numpy as np
import pytest
from cases import for_each
from makers import spy_on_calls

import dpkern as dpk
from dpkern.privacy import Budget
from dpkern.privacy.mechanisms.messages import GaussianMessages
from dpkern.solvers import Objective, double_noise_newton
from dpkern.solvers.base.outcome import NothingLearntWarning

BUDGET = Budget(epsilon=1.0, delta=1e-6)


def records(n=400, d=5, m=4, seed=0, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) / math.sqrt(d)
    y = np.where(X @ rng.normal(size=d) + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)
    return dpk.SiloData.split(X, y, m=m, how="random", seed=0, row_bound=1.0, **options)


def objective(data, l2):
    return Objective(data, dpk.losses.Logistic(), l2=l2, n_threads=1)


def of(M, f):
    """f on the eigenvalues of a symmetric matrix, times a vector, in 100 digits."""
    values, vectors = mpmath.eigsy(mpmath.matrix(M.tolist()))
    return lambda g: (
        vectors * (mpmath.diag([f(v) for v in values]) * (vectors.T * mpmath.matrix(g.tolist())))
    )


@for_each("variant", ["add", "clip"])
def test_without_noise_it_reaches_the_optimum(variant):
    data = records(intercept=True)
    run = double_noise_newton(data, budget=None, l2=1e-2, rounds=12, variant=variant)
    w, _ = objective(data, 1e-2).minimum()
    np.testing.assert_allclose(np.append(run.coef, run.intercept), w, atol=1e-6)
    assert run.privacy.mu == math.inf


@for_each("variant", ["add", "clip"])
@for_each("d", [1, 2, 6])
def test_replacing_a_record_moves_the_direction_by_no_more_than_is_charged(variant, d):
    rng = np.random.default_rng(d)
    n, B, l0, l2 = 7, 0.25, 0.02, 0.003
    f = (lambda x: 1 / (x + l0)) if variant == "add" else (lambda x: 1 / max(x, mpmath.mpf(l0)))
    reached = 0.0
    with mpmath.workdps(60):
        for trial in range(60):
            rows = rng.normal(size=(n, d)) * rng.choice([0.0, 1e-3, 1.0], size=(n, 1))
            two = rng.normal(size=(2, d))
            two *= (math.sqrt(B) / np.linalg.norm(two, axis=1))[:, None]
            if trial % 3 == 0:
                two[1] = 0.0
            rows *= np.minimum(1.0, math.sqrt(B) / np.maximum(np.linalg.norm(rows, axis=1), 1e-9))[
                :, None
            ]
            g = two[0] if trial % 2 else rng.normal(size=d)
            moved = []
            for row in two:
                rows[0] = row
                moved.append(of(rows.T @ rows / n + l2 * np.eye(d), f)(g))
            apart = mpmath.norm(moved[0] - moved[1])
            b = B / n
            low = l0 + l2 if variant == "add" else max(l0, l2)
            factor = b / (low * (low + b)) if variant == "add" else math.sqrt(2.0) * b / low**2
            reached = max(reached, float(apart / (factor * np.linalg.norm(g))))
    assert reached <= 1.0 + 1e-12
    assert reached > 0.05


@for_each("variant", ["add", "clip"])
def test_its_releases_are_those_of_the_docstring_and_compose_to_the_budget(variant):
    data = records()
    released = []
    run = double_noise_newton(
        data,
        budget=BUDGET,
        clip=1.0,
        rounds=3,
        variant=variant,
        rng=1,
        callback=lambda t, r: released.append(r),
    )
    releases = run.privacy.releases
    assert [(r.what, r.times) for r in releases] == [
        ("sum of clipped gradients", 3),
        ("trace of the summed Hessian", 3),
        *[("Newton direction", 1)] * 3,
    ]
    assert [r.what for r in released] == ["Newton direction"] * 3
    squares = sum(r.times * (r.sensitivity / r.std) ** 2 for r in releases)
    assert math.sqrt(squares) <= BUDGET.mu * (1 + 1e-12)
    assert math.sqrt(squares) >= BUDGET.mu * (1 - 1e-9)
    assert run.privacy.mu == pytest.approx(BUDGET.mu, rel=1e-9)
    traces = [r for r in releases if r.what.startswith("trace")]
    assert all(0.25 <= r.sensitivity <= 0.25 * 1.001 for r in traces)
    assert any("eigensolver" in note for note in run.privacy.notes) == (variant == "clip")


@for_each("neighbours", ["replace_one", "add_remove"])
@for_each("variant", ["add", "clip"])
def test_what_the_direction_is_charged_follows_from_earlier_releases(
    monkeypatch, variant, neighbours
):
    """D_p = |g| b / (l0 (l0 + b)) or |g| f / l0^2, b = B / N, f = sqrt(2) b where a record is
    replaced and b where it is added or removed: nothing of the records but through g and l0."""
    calls = spy_on_calls(monkeypatch, GaussianMessages, "release")
    data = records()
    adding = neighbours == "add_remove"
    run = double_noise_newton(
        data, budget=BUDGET, clip=1.0, rounds=2, rng=3, variant=variant, neighbours=neighbours,
        public_size=tuple(data.sizes.tolist()) if adding else None,
    )  # fmt: skip
    for t in range(2):
        trace, known = calls[2 * t].result, calls[2 * t + 1].how
        norm = run.history["gradient_norm"][t]
        direction = run.privacy.releases[2 + t]
        mu = direction.sensitivity / direction.std
        b = 0.25 / data.n
        f = math.sqrt(2.0) * b if variant == "clip" and not adding else b
        l0 = max((32 * f**2 * max(trace[0], 0) / data.n / mu**2) ** (1 / 3), 4 * b)
        D = norm * b / (l0 * (l0 + b)) if variant == "add" else norm * f / l0**2
        assert known["sensitivity"][0] == pytest.approx(D, rel=1e-6)


@for_each(
    ("options", "message"),
    [
        ({"neighbours": "add_remove"}, "neighbours"),
        ({"hess_clip": 1e200}, "hess_clip"),
        ({"l2": 1e200}, "l2"),
        ({"loss": "squared_hinge", "clip": None}, "clip"),
    ],
)
def test_errors_name_the_argument_and_come_before_any_release(options, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        double_noise_newton(records(), **{"budget": BUDGET, "clip": 1.0, "rounds": 2, **options})
    assert not getattr(caught.value, "__notes__", [])


@for_each("variant", ["add", "clip"])
def test_a_hessian_of_zeros_is_no_error(variant):
    data = dpk.SiloData(np.zeros((4, 2)), [-1, 1, -1, 1], [0, 4], row_bound=1.0)
    run = double_noise_newton(data, budget=None, rounds=2, variant=variant)
    assert not run.coef.any()


def test_a_released_gradient_of_zero_releases_no_direction(monkeypatch):
    module = sys.modules["dpkern.solvers.double_noise_newton"]

    class Zero:
        noise_std = 1.0

        def __init__(self, *_, **__):
            pass

        async def __call__(self, w):
            return np.zeros_like(w)

    monkeypatch.setattr(module, "NoisyMeanGradient", Zero)
    run = double_noise_newton(records(), budget=BUDGET, clip=1.0, rounds=2)
    assert not run.coef.any()
    assert [r.what for r in run.privacy.releases] == ["trace of the summed Hessian"]


def test_without_a_row_bound_the_hessians_clip_must_be_given():
    rng = np.random.default_rng(0)
    data = dpk.SiloData(
        rng.normal(size=(50, 3)), np.where(rng.random(50) < 0.5, -1.0, 1.0), [0, 50]
    )
    with pytest.raises(ValueError, match="hess_clip"):
        double_noise_newton(data, budget=BUDGET, clip=1.0)
    run = double_noise_newton(data, budget=BUDGET, clip=1.0, hess_clip=0.5, rounds=2)
    assert run.privacy.mu <= BUDGET.mu * (1 + 1e-12)


@pytest.mark.statistical
@pytest.mark.parametrize("variant", ["add", "clip"])
@pytest.mark.parametrize("mu", [0.1, 1.0, 6.0])
def test_no_draw_diverges_without_a_penalty(variant, mu):
    """With curvature "hessian" and without the noise's floors some do at mu 0.1 and at mu 1."""
    data = dpk.datasets.load_wisconsin()
    the_objective = objective(data, 0.0)
    zero = the_objective.value(np.zeros(data.d))
    for seed in range(40):
        run = double_noise_newton(data, budget=Budget(mu=mu), variant=variant, rng=seed)
        w = np.append(run.coef, run.intercept)[: data.d]
        assert the_objective.value(w) < zero
        assert "grew" not in run.message


@for_each(("rounds", "clip"), [(24, 50.0), (100, 5.0)])
@for_each("B", [1.2, 4.0])
def test_gradients_that_grew_are_told(B, rounds, clip):
    """Clipped Hessians of 0.3 times the curvature make steps that are three times too long.

    Of 100 rounds the gradients of all but the first are as long as clipped ones can be.
    """
    rng = np.random.default_rng(0)
    X = rng.choice([-1.0, 1.0], size=(20_000, 4))
    y = X @ [0.3, -0.2, 0.1, 0.0] + 0.1 * rng.standard_normal(20_000)
    data = dpk.SiloData(X, y, [0, 20_000], row_bound=2.0, task="regression", target_bound=1.0)
    how = {"budget": Budget(mu=5.0), "loss": "squared", "clip": clip, "rng": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NothingLearntWarning)
        run = double_noise_newton(data, hess_clip=B, trace_coeff=1e-3, rounds=rounds, **how)
    assert ("released gradients grew" in run.message) == (B < 2.0)
    assert bool(caught) == (B < 2.0)


@for_each(("mu", "B"), [(0.01, 0.0025), (5.0, 0.25)])
def test_floors_bound_the_noise_in_margins(monkeypatch, mu, B):
    """Noise of the direction below a 20th, of the gradient below a third of 50 / sqrt(d) or 9; the
    latter less by 1 + 4 (noise's norm / C)^2."""
    calls = spy_on_calls(monkeypatch, GaussianMessages, "release")
    data = records(n=4000, d=20, m=1)
    R, C = data.row_bound, 0.5
    run = double_noise_newton(
        data, budget=Budget(mu=mu), clip=C, rounds=2, rng=3, trace_coeff=1e-9, hess_clip=B
    )
    gradients = run.privacy.releases[0]
    s = gradients.std / data.n
    rho = math.sqrt(data.d) * s / C
    for call, g in zip(calls[1::2], run.history["gradient_norm"], strict=True):
        b = B / data.n
        l0 = max(3 * R * s * (1 + 4 * rho**2) / 9, 4 * b)
        share = mu * math.sqrt(0.45 / 2)
        l0 = max(l0, math.sqrt(R * g * b / (share * 0.05 * 9)))
        assert call.how["sensitivity"][0] == pytest.approx(g * b / (l0 * (l0 + b)), rel=1e-6)


def test_the_shares_are_those_of_the_budget():
    how = {"budget": Budget(mu=2.0), "clip": 1.0, "rounds": 3, "rng": 0}
    run = double_noise_newton(records(), gradient_share=0.2, trace_share=0.1, **how)
    mu = {r.what.split()[0]: r.sensitivity / r.std for r in run.privacy.releases}
    for what, share in (("sum", 0.2), ("trace", 0.1), ("Newton", 0.7)):
        assert mu[what] == pytest.approx(2.0 * math.sqrt(share / 3), rel=1e-6)
    with pytest.raises(ValueError, match="gradient_share and trace_share"):
        double_noise_newton(records(), gradient_share=0.7, trace_share=0.3, **how)


def test_a_custom_loss_has_no_upper_bound_of_its_curvature():
    run = double_noise_newton(records(), budget=BUDGET, clip=1.0, rounds=2)
    assert run.parameters["curvature"] == "upper_bound"
    free = double_noise_newton(records(), budget=None, rounds=2)
    assert free.parameters["curvature"] == "hessian"


@for_each("loss", ["logistic", "smoothed_hinge", "squared_hinge"])
def test_full_steps_with_the_upper_bound_never_increase_the_objective(loss):
    rng = np.random.default_rng(5)
    X = np.vstack([rng.normal(size=(30, 2)), 20.0 * rng.normal(size=(3, 2))])
    y = np.where(X @ [1.0, -2.0] + rng.normal(size=33) > 0, 1.0, -1.0)
    data = dpk.SiloData(X, y, [0, 33])
    values = [math.inf]
    goal = Objective(data, dpk.models.losses.get_loss(loss), l2=1e-6, n_threads=1)
    for rounds in range(1, 12):
        run = double_noise_newton(
            data, loss=loss, budget=None, l2=1e-6, rounds=rounds, curvature="upper_bound"
        )
        values.append(goal.value(run.coef))
    assert np.all(np.diff(values) <= 1e-12)
    assert values[-1] < values[1]
