"""Every compiled loss: reference, derivatives by finite differences, bounds, convexity."""

import math
from fractions import Fraction

import adversarial
import mpmath
import numpy as np
import pytest
from cases import for_each
from test_losses_table import labels_of

from dpkern import _core
from dpkern.models.losses import LOSSES, LogLink, get_loss
from dpkern.reference.loss import LOSSES as REFERENCES
from dpkern.reference.loss import block as reference_block

# Every loss with its defaults, and away from them: a default of 1 hides a misplaced parameter.
EVERY_LOSS = [LOSSES[name]() for name in _core.loss_names()]
EVERY_LOSS += [loss for loss in adversarial.EVERY_LOSS if loss.params]


def evaluate(loss, y, z):
    loss = get_loss(loss)
    y, z = np.broadcast_arrays(np.asarray(y, dtype=float), np.asarray(z, dtype=float))
    out = np.empty((3, y.size))
    number = _core.loss_names().index(loss.name)
    params = np.array([*loss.params, 0.0])
    _core.loss_block(_core.Loss(number, params), y.ravel().copy(), z.ravel().copy(), *out)
    return out


every_loss = for_each("loss", EVERY_LOSS, ids=repr)


def points_of(loss):
    rng = np.random.default_rng(3)
    z = np.concatenate([np.linspace(-9, 9, 401), rng.normal(0, 300, 100), [0.0, 1.0, -1.0]])
    return np.where(rng.random(z.size) < 0.5, *labels_of(loss)), z


def test_compiled_losses_twins_and_table_are_the_same_set():
    assert set(_core.loss_names()) == set(LOSSES) == set(REFERENCES)


@pytest.mark.usefixtures("isa")
@every_loss
def test_loss_agrees_with_its_reference(loss):
    points = points_of(loss)
    for ours, by_numpy in zip(evaluate(loss, *points), reference_block(loss, *points), strict=True):
        np.testing.assert_allclose(ours, by_numpy, rtol=1e-13, atol=1e-300)


def kinks(loss):
    """Values of the margin where a second derivative jumps, for labels -1 and 1."""
    if isinstance(loss, LogLink):
        return np.array([loss.low, loss.high])
    if loss.name == "cloglog":
        return np.array([loss.high, 4.0])
    if loss.name == "probit":
        return np.array([-loss.high, loss.high])
    h = loss.params[0] if loss.params else 0.0
    points = [s * t for s in (-1, 1) for t in (1.0, 1.0 - h, 1.0 + h)]
    return np.array(points)


@every_loss
def test_derivatives_are_those_of_the_value(loss):
    y, z = points_of(loss)
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


@every_loss
def test_declared_bounds_hold_and_are_reached(loss):
    z = np.linspace(-50, 50, 200_001)
    _, d1, d2 = np.array([evaluate(loss, y, z) for y in labels_of(loss)]).swapaxes(0, 1)
    for derivative, bound in ((d1, loss.lipschitz), (d2, loss.smoothness)):
        assert np.all(np.abs(derivative) <= bound * (1 + 1e-15))
        if np.isfinite(bound):
            assert np.max(np.abs(derivative)) > 0.999 * bound


@every_loss
def test_the_derivative_is_monotone_where_the_loss_is_convex_and_nowhere_else(loss):
    z = np.linspace(-50, 50, 200_001)
    for y in labels_of(loss):
        _, d1, d2 = evaluate(loss, y, z)
        assert np.all(np.diff(d1) >= -1e-15 * (1.0 + np.abs(d1[1:]))) == loss.convex
        assert np.all(d2 >= 0) == loss.convex


def test_values_are_never_negative_and_large_margins_do_not_overflow():
    z = np.array([-1e300, -750.0, 750.0, 1e300])
    for y in (-1.0, 1.0):
        value, d1, d2 = evaluate("logistic", y, z)
        assert np.all(np.isfinite(value))
        assert np.all(value >= 0)
        assert np.all(np.isfinite(d1))
        assert np.all(np.isfinite(d2))


U = Fraction(1, 2**53)
TINY = Fraction(1, 2**1020)


def exact_logistic(y, z):
    t = mpmath.mpmathify(y * z)
    e = mpmath.exp(-abs(t))
    p = (1 if t < 0 else e) / (1 + e)
    return mpmath.log1p(e) + max(-t, 0), -y * p, e / (1 + e) ** 2


def exact_huber(y, z, delta):
    r = z - y
    inside = abs(r) <= delta
    value = r**2 / 2 if inside else delta * (abs(r) - delta / 2)
    return value, min(max(r, -delta), delta), Fraction(int(inside))


def exact_smoothed_hinge(y, z, h):
    a = 1 - y * z
    inside = min(max(a, Fraction(0)), h)
    value = inside**2 / (2 * h) if a <= h else a - h / 2
    return value, -y * inside / h, 1 / h if 0 < a < h else Fraction(0)


def exact_squared_hinge(y, z):
    a = max(1 - y * z, Fraction(0))
    return a**2 / 2, -y * a, Fraction(int(a > 0))


def exact_poisson(y, z, low, high, most):
    inside = low < z < high
    return None, None, mpmath.exp(mpmath.mpmathify(z)) if inside else Fraction(0)


def exact_gamma(y, z, low, high, most):
    inside, count = low < z < high, min(max(y, Fraction(0)), most)
    return None, None, count * mpmath.exp(-mpmath.mpmathify(z)) if inside else Fraction(0)


def exact_negative_binomial(y, z, a, most):
    e, count = mpmath.exp(mpmath.mpmathify(-min(abs(z), 708))), min(max(y, Fraction(0)), most)
    scale = a + e if z > 0 else 1 + a * e
    return None, None, (1 + a * count) * e / scale**2


def exact_cloglog(y, z, high):
    if y < 0:
        at = min(max(z, -500), high)
        h = mpmath.exp(mpmath.mpmathify(at))
        return h + h * (z - at), h, h if -500 < z < high else Fraction(0)
    h = mpmath.exp(mpmath.mpmathify(min(max(z, -500), 4)))
    return None, -h / mpmath.expm1(h), None


def exact_probit(y, z, high):
    t = mpmath.mpmathify(max(y * z, -high))
    density = mpmath.exp(-t * t / 2) / mpmath.sqrt(2 * mpmath.pi)
    return None, -y * density / (mpmath.erfc(-t / mpmath.sqrt(2)) / 2), None


# In rational arithmetic, or to 200 bits. None stands for an output whose relative error has no
# bound, as its terms cancel. A loss without a line here has its error stated only.
EXACT = {
    "logistic": exact_logistic,
    "squared": lambda y, z: ((z - y) ** 2 / 2, z - y, Fraction(1)),
    "huber": exact_huber,
    "smoothed_hinge": exact_smoothed_hinge,
    "squared_hinge": exact_squared_hinge,
    "poisson": exact_poisson,
    "gamma": exact_gamma,
    "negative_binomial": exact_negative_binomial,
    "cloglog": exact_cloglog,
    "probit": exact_probit,
}


def rational(x):
    if not isinstance(x, mpmath.mpf):
        return Fraction(x)
    sign, mantissa, exponent, _ = x._mpf_
    if exponent < -10_000:  # exp(-1e100): no number of digits to write out
        return Fraction(0)
    return (-1) ** sign * mantissa * Fraction(2) ** min(exponent, 10_000)


def adversarial(loss):
    """Labels and margins: dense, around the kinks, cancelling, tiny and large."""
    rng = np.random.default_rng(11)
    k = kinks(loss)
    near = (k[:, None] * (1 + np.array([-4, -2, -1, 0, 1, 2, 4]) * 2.0**-53)).ravel()
    close = (k[:, None] + 10.0 ** -rng.uniform(0, 16, 60)).ravel()
    powers = 2.0 ** np.arange(-1074, 400, 11)
    steps = (np.arange(1, 1000, 9) - 0.5) * np.log(2.0)  # where exp changes its power of two
    steep = np.linspace(3.9, 4.0, 400)  # where cloglog multiplies the error of exp
    z = np.concatenate([rng.normal(0, 2, 700), np.linspace(-40, 40, 401), near, close, steep])
    z = np.concatenate([z, powers, -powers, steps, -steps, [0.0, -0.0, 708.0, -709.0, 745.0]])
    if loss.task == "regression":
        y = np.concatenate([rng.normal(0, 2, z.size // 2), z[z.size // 2 :] * (1 + 1e-9)])
        return y, z
    return np.where(rng.random(z.size) < 0.5, -1.0, 1.0), z


def jumps_near(loss, y, z):
    """Whether rounding the argument can change the side of a jump of the second derivative."""
    if loss.log_link or loss.name == "cloglog":
        return any(z == Fraction(k) for k in kinks(loss).tolist())
    a = abs(z - y) if loss.task == "regression" else 1 - y * z
    return any(abs(a - k) <= 4 * U * max(abs(k), abs(a)) for k in (0, *map(Fraction, loss.params)))


@pytest.mark.proof
@pytest.mark.usefixtures("isa")
@every_loss
def test_errors_are_within_kappa_and_those_of_value_and_curvature_within_eight_roundings(loss):
    if loss.name not in EXACT:
        pytest.skip(f"no exact form of {loss.name}")
    y, z = adversarial(loss)
    computed = evaluate(loss, y, z)
    largest = [Fraction(0)] * 3
    with mpmath.workprec(200):
        for label, margin, *ours in zip(*map(np.ndarray.tolist, (y, z, *computed)), strict=True):
            params = (Fraction(min(value, 1e300)) for value in loss.params)
            point = [Fraction(label), Fraction(margin), *params]
            exact = [x if x is None else rational(x) for x in EXACT[loss.name](*point)]
            for i in range(3):
                if exact[i] is None:
                    assert i != 1 or math.isinf(loss.kappa)
                elif math.isinf(ours[i]):
                    assert abs(exact[i]) > Fraction(2) ** 1023
                elif exact[i] and not (
                    i == 2 and jumps_near(loss, *map(Fraction, (label, margin)))
                ):
                    error = abs(Fraction(ours[i]) - exact[i]) - TINY
                    largest[i] = max(largest[i], error / abs(exact[i]) / U)
                elif i != 2:
                    assert abs(ours[i]) <= TINY
    value, first, second = map(float, largest)
    assert math.isinf(loss.kappa) or 0.25 * loss.kappa < first <= loss.kappa
    assert value <= 8
    assert second <= 8
