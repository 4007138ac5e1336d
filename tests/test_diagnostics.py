"""Diagnostics against direct computation on small records."""

import numpy as np
import pytest
from cases import for_each
from makers import make_silos, make_table

import dpkern as dpk
from dpkern.models.penalties import PL
from dpkern.papers import diagnostics
from dpkern.solvers import Objective

LOGISTIC = dpk.losses.Logistic()
W = np.array([0.3, -1.0, 0.2, 0.5])


def gradient(X, y, w, weights):
    return ((-y / (1.0 + np.exp(y * (X @ w)))) * weights) @ X


def curvature(X, w, weights):
    p = 1.0 / (1.0 + np.exp(-X @ w))
    return (X.T * (p * (1 - p) * weights)) @ X


@for_each("weights", ["size", "uniform"])
def test_gamma_of_squared_losses_is_that_of_closed_forms(weights):
    data = make_silos([40, 90], 3, "regression")
    X, y, p = data.X, data.y, data.weights(weights)
    parts = [(X[:40], y[:40]), (X[40:], y[40:])]

    def least(tables, shares):
        H = sum(s * A.T @ A / len(b) for s, (A, b) in zip(shares, tables, strict=True))
        g = sum(s * A.T @ b / len(b) for s, (A, b) in zip(shares, tables, strict=True))
        c = sum(s * b @ b / len(b) for s, (A, b) in zip(shares, tables, strict=True))
        return 0.5 * (c - g @ np.linalg.solve(H + 0.2 * np.eye(3), g))

    expected = least(parts, p) - sum(p[j] * least([parts[j]], [1.0]) for j in range(2))
    objective = Objective(data, dpk.losses.Squared(), l2=0.2, weights=weights)
    result = diagnostics.measure_heterogeneity(objective)
    assert result == pytest.approx(expected, rel=1e-6)


def test_gamma_is_zero_for_equal_silos_and_never_negative():
    X, y = make_table(50, 3)
    twice = dpk.SiloData(np.vstack([X, X]), np.append(y, y), [0, 50, 100])
    same = Objective(twice, LOGISTIC, l2=0.1)
    assert diagnostics.measure_heterogeneity(same) == pytest.approx(0.0, abs=1e-9)
    apart = Objective(make_silos([50, 60], 3), LOGISTIC, l2=0.1)
    assert diagnostics.measure_heterogeneity(apart) > 1e-6


def test_the_prox_gradient_of_l1_is_that_of_soft_thresholds():
    data = make_silos([50, 60], 4)
    objective = Objective(data, LOGISTIC, l2=0.1, l1=0.05)
    g = gradient(data.X, data.y, W, np.full(110, 1 / 110)) + 0.1 * W
    v = W - 0.7 * g
    moved = np.sign(v) * np.maximum(np.abs(v) - 0.7 * 0.05, 0.0)
    expected = np.linalg.norm(W - moved) / 0.7
    assert diagnostics.measure_prox_gradient(objective, W, 0.7) == pytest.approx(expected, rel=1e-9)
    minimiser = objective.minimum()[0]
    assert diagnostics.measure_prox_gradient(objective, minimiser, 0.7) < 1e-4
    smooth = Objective(data, LOGISTIC, l2=0.1)
    norm = diagnostics.measure_prox_gradient(smooth, W, 0.7)
    assert norm == pytest.approx(np.linalg.norm(g), rel=1e-9)
    with pytest.raises(ValueError, match="step_size must be positive"):
        diagnostics.measure_prox_gradient(smooth, W, 0.0)


def test_the_prox_gradient_of_a_network_is_measured_too():
    X, y = make_table(60, 4)
    network = dpk.MLP(hidden=(3,), loss="logistic")
    data = dpk.SiloData(X, y, [0, 20, 60])
    objective = Objective(data, network, weights="uniform")
    w = objective.start()
    g = network.gradients(w, X, y)
    mean = 0.5 * (g[:20].mean(axis=0) + g[20:].mean(axis=0))
    result = diagnostics.measure_prox_gradient(objective, w, 0.1)
    assert result == pytest.approx(np.linalg.norm(mean), rel=1e-9)
    for measure in (diagnostics.measure_constants, diagnostics.measure_heterogeneity):
        with pytest.raises(TypeError, match="the model must be linear, got 'mlp'"):
            measure(objective)


@for_each("weights", ["size", "uniform"])
def test_constants_are_the_extreme_eigenvalues(weights):
    data = make_silos([50, 60], 4)
    objective = Objective(data, LOGISTIC, l2=0.1, weights=weights)
    share = np.repeat(data.weights(weights) / data.sizes, data.sizes)
    everywhere = diagnostics.measure_constants(objective)
    most = np.linalg.eigvalsh((data.X.T * share) @ data.X)[-1] / 4 + 0.1
    assert everywhere == pytest.approx((0.1, most), rel=1e-12)
    values = np.linalg.eigvalsh(curvature(data.X, W, share) + 0.1 * np.eye(4))
    local = diagnostics.measure_constants(objective, W)
    assert local == pytest.approx((values[0], values[-1]), rel=1e-9)
    assert everywhere.strength <= local.strength
    assert local.smoothness <= everywhere.smoothness


def test_constants_of_squared_losses_and_of_pl_penalties():
    data = make_silos([50, 60], 4, "regression")
    values = np.linalg.eigvalsh(data.X.T @ data.X / 110)
    squared = diagnostics.measure_constants(Objective(data, dpk.losses.Squared(), l2=0.1))
    assert squared == pytest.approx((values[0] + 0.1, values[-1] + 0.1), rel=1e-12)
    penalty = Objective(data, dpk.losses.Squared(), penalty=PL(0.5))
    bounds = diagnostics.measure_constants(penalty)
    assert bounds == pytest.approx((values[0] - 2.0, values[-1] + 4.0), rel=1e-12)


def test_the_pl_constant_is_between_strength_and_smoothness():
    data = make_silos([50, 60], 4)
    objective = Objective(data, LOGISTIC, l2=0.1)
    constants = diagnostics.measure_constants(objective)
    for w in (W, 5.0 * W, np.zeros(4)):
        ratio = diagnostics.measure_pl(objective, w)
        assert constants.strength <= ratio <= constants.smoothness
        square = diagnostics.measure_prox_gradient(objective, w, 1.0) ** 2
        gap = objective.value(w) - objective.minimum()[1]
        assert ratio == pytest.approx(square / (2.0 * gap), rel=1e-12)
    with pytest.raises(ValueError, match="penalty must be smooth, got 'l1'"):
        diagnostics.measure_pl(Objective(data, LOGISTIC, l1=0.1), W)


def test_every_diagnostic_says_that_it_is_not_private():
    public = [v for k, v in vars(diagnostics).items() if k.startswith("measure_")]
    assert len(public) == 4
    for function in (diagnostics, *public):
        assert "NOT PRIVATE" in function.__doc__
