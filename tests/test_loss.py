"""Every compiled loss: twin, derivatives by finite differences, bounds, convexity."""

import numpy as np
import pytest

from dpkern import _core
from dpkern.losses import LOSSES, get_loss
from dpkern.reference.loss import LOSSES as TWINS
from dpkern.reference.loss import block as twin_block

# Every loss with its defaults, and away from them: a default of 1 hides a misplaced parameter.
EVERY_LOSS = [LOSSES[name]() for name in _core.loss_names()]
EVERY_LOSS += [type(loss)(*(0.7 for _ in loss.params)) for loss in EVERY_LOSS if loss.params]


def evaluate(loss, y, z):
    loss = get_loss(loss)
    y, z = np.broadcast_arrays(np.asarray(y, dtype=float), np.asarray(z, dtype=float))
    out = np.empty((3, y.size))
    number = _core.loss_names().index(loss.name)
    params = np.array([*loss.params, 0.0])
    _core.loss_block(_core.Loss(number, params), y.ravel().copy(), z.ravel().copy(), *out)
    return out


@pytest.fixture(params=EVERY_LOSS, ids=repr)
def loss(request):
    return request.param


@pytest.fixture
def points(loss):
    rng = np.random.default_rng(3)
    z = np.concatenate([np.linspace(-9, 9, 401), rng.normal(0, 300, 100), [0.0, 1.0, -1.0]])
    y = np.where(rng.random(z.size) < 0.5, -1.0, 1.0)
    return y, z


def test_compiled_losses_twins_and_table_are_the_same_set():
    assert set(_core.loss_names()) == set(LOSSES) == set(TWINS)


@pytest.mark.usefixtures("isa")
def test_loss_agrees_with_its_twin(loss, points):
    for ours, twin in zip(evaluate(loss, *points), twin_block(loss, *points), strict=True):
        np.testing.assert_allclose(ours, twin, rtol=1e-13, atol=1e-300)


def kinks(loss):
    """Values of the margin where a second derivative jumps, for labels -1 and 1."""
    h = loss.params[0] if loss.params else 0.0
    points = [s * t for s in (-1, 1) for t in (1.0, 1.0 - h, 1.0 + h)]
    return np.array(points)


def test_derivatives_are_those_of_the_value(loss, points):
    y, z = points
    away = np.min(np.abs(z[:, None] - kinks(loss)[None, :]), axis=1) > 1e-3
    y, z = y[away & (np.abs(z) < 30)], z[away & (np.abs(z) < 30)]
    step = 1e-5
    plus, minus, here = (
        evaluate(loss, y, z + step),
        evaluate(loss, y, z - step),
        evaluate(loss, y, z),
    )
    np.testing.assert_allclose((plus[0] - minus[0]) / (2 * step), here[1], rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose((plus[1] - minus[1]) / (2 * step), here[2], rtol=1e-8, atol=1e-8)


def test_declared_bounds_hold_and_are_reached(loss):
    z = np.linspace(-50, 50, 200_001)
    for y in (-1.0, 1.0):
        _, d1, d2 = evaluate(loss, y, z)
        assert np.all(np.abs(d1) <= loss.lipschitz * (1 + 1e-15))
        assert np.all(np.abs(d2) <= loss.smoothness * (1 + 1e-15))
        if np.isfinite(loss.lipschitz):
            assert np.max(np.abs(d1)) > 0.999 * loss.lipschitz
        if np.isfinite(loss.smoothness):
            assert np.max(np.abs(d2)) > 0.999 * loss.smoothness


def test_the_derivative_is_monotone_where_the_loss_is_convex_and_nowhere_else(loss):
    z = np.linspace(-50, 50, 200_001)
    for y in (-1.0, 1.0):
        _, d1, d2 = evaluate(loss, y, z)
        assert np.all(np.diff(d1) >= -1e-15) == loss.convex
        assert np.all(d2 >= 0) == loss.convex


def test_values_are_never_negative_and_large_margins_do_not_overflow():
    z = np.array([-1e300, -750.0, 750.0, 1e300])
    for y in (-1.0, 1.0):
        value, d1, d2 = evaluate("logistic", y, z)
        assert np.all(np.isfinite(value))
        assert np.all(value >= 0)
        assert np.all(np.isfinite(d1))
        assert np.all(np.isfinite(d2))
