"""The loss table states true names, parameters and bounds."""

import dataclasses
import math

import numpy as np
import pytest
from adversarial import EVERY_LOSS
from cases import for_each
from scipy.stats import norm

from dpkern.models.losses import (
    LOSSES,
    BinaryLikelihood,
    ComplementaryLogLog,
    Gamma,
    Huber,
    Likelihood,
    Logistic,
    NegativeBinomial,
    Poisson,
    Probit,
    SmoothedHinge,
    get_loss,
)
from dpkern.reference.loss import block as reference_block
from dpkern.reference.loss import majorant

# Written from the definitions in the documentation, apart from the package's own references. A loss
# without a line here is measured by its reference.
FORMULAS = {
    "logistic": lambda y, z: np.logaddexp(0.0, -y * z),
    "squared": lambda y, z: (z - y) ** 2 / 2,
    "huber": lambda y, z, delta: np.where(
        np.abs(z - y) <= delta, (z - y) ** 2 / 2, delta * (np.abs(z - y) - delta / 2)
    ),
    "smoothed_hinge": lambda y, z, h: np.where(
        y * z >= 1, 0.0, np.where(y * z > 1 - h, (1 - y * z) ** 2 / (2 * h), 1 - y * z - h / 2)
    ),
    "squared_hinge": lambda y, z: np.maximum(0.0, 1 - y * z) ** 2 / 2,
    "negative_binomial": lambda y, z, a, most: (
        (np.clip(y, 0, most) + 1 / a) * np.logaddexp(0, z + np.log(a)) - np.clip(y, 0, most) * z
    ),
    "probit": lambda y, z, high: (
        np.exp(norm.logpdf(high) - norm.logcdf(-high)) * np.maximum(-high - y * z, 0)
        - norm.logcdf(np.maximum(y * z, -high))
    ),
}
INSTANCES = [
    *(get_loss(name) for name in LOSSES),
    Huber(delta=0.3),
    SmoothedHinge(h=0.25),
    SmoothedHinge(h=3),
]
INSTANCES += [loss for loss in EVERY_LOSS if loss.params]
PARAMETERS = [(make, field.name) for make in LOSSES.values() for field in dataclasses.fields(make)]
POSITIVE = [(make, name) for make, name in PARAMETERS if name in ("delta", "h", "dispersion")]


def labels_of(loss):
    """The labels at which a loss is steepest and most curved."""
    if not loss.log_link:
        return -1.0, 1.0
    return 0.0, loss.max_target if math.isfinite(loss.max_target) else 60.0


def value(loss, y, z):
    if loss.name in FORMULAS:
        return FORMULAS[loss.name](y, z, *loss.params)
    return reference_block(loss, y, z)[0]


@for_each("loss", [a for a in INSTANCES if a.name in FORMULAS], ids=repr)
@for_each("y", [-1.0, 1.0])
def test_references_are_the_definitions(loss, y):
    z = np.linspace(-30.0, 30.0, 6_001)
    by_numpy = reference_block(loss, y, z)[0]
    np.testing.assert_allclose(by_numpy, value(loss, y, z), rtol=1e-12, atol=1e-12)


@for_each("loss", INSTANCES, ids=repr)
def test_bounds_are_the_suprema_of_the_difference_quotients(loss):
    z = np.linspace(-30.0, 30.0, 60_001)
    step = z[1] - z[0]
    slopes = np.array([np.diff(value(loss, y, z)) / step for y in labels_of(loss)])
    curvatures = np.diff(slopes) / step
    # By rounding, differences of large values are less exact.
    relative = 1e-3 if loss.log_link or loss.name in ("cloglog", "probit") else 0.0
    assert (curvatures.min() > -1e-5 - relative * np.abs(curvatures).max()) == loss.convex
    for quotients, bound, error in (
        (slopes, loss.lipschitz, 1e-6),
        (curvatures, loss.smoothness, 1e-5),
    ):
        largest = np.abs(quotients).max()
        if math.isinf(bound):
            assert largest > 14.0
        else:
            assert largest == pytest.approx(bound, rel=relative, abs=error)


@for_each("loss", INSTANCES, ids=repr)
@for_each("which", [0, 1])
def test_majorants_lie_above_the_loss_and_touch_it_elsewhere_too(loss, which):
    y = labels_of(loss)[which]
    z = np.linspace(-12.0, 12.0, 49)[:, np.newaxis]
    t = np.geomspace(1e-3, 4000.0, 20_000)
    t = np.concatenate([-t[::-1], t])[np.newaxis]
    phi, slope, second = reference_block(loss, y, z)
    h = majorant(loss, y, z)
    if math.isinf(loss.smoothness) and np.all(np.isinf(h)):
        return  # no parabola lies above it
    above = phi + slope * t + 0.5 * h * t**2 - value(loss, y, z + t)
    assert np.all(above >= -1e-9 * (1.0 + h * t**2))
    assert np.all(h >= second * (1.0 - 1e-12))
    if loss.log_link or loss.name in ("cloglog", "probit"):
        return  # a bound of the second derivative
    # the least: with a smaller curvature some t lies above it
    assert np.all(np.min(above - 0.01 * h * t**2, axis=1) < 0.0)


@for_each("loss", INSTANCES, ids=repr)
def test_params_are_the_fields_in_order_as_floats(loss):
    assert loss.params == tuple(dataclasses.astuple(loss))
    assert all(type(value) is float for value in loss.params)


@for_each("name", LOSSES)
def test_a_name_stands_for_the_default_instance(name):
    assert get_loss(name) == LOSSES[name]()
    assert get_loss(name).name == name
    assert get_loss(name).task in ("classification", "regression")


def test_an_instance_is_returned_as_it_is():
    loss = Huber(delta=2.0)
    assert get_loss(loss) is loss


def test_losses_are_immutable_and_comparable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Huber().delta = 2.0
    assert Huber(2) == Huber(2.0) != Huber(3.0)
    assert len({Huber(2), Huber(2.0), Logistic()}) == 2


@for_each(("bad", "error"), [("hinge", ValueError), (Logistic, TypeError), (None, TypeError)])
def test_an_unknown_loss_is_refused_and_names_are_listed(bad, error):
    with pytest.raises(error) as caught:
        get_loss(bad)
    assert error is TypeError or all(name in str(caught.value) for name in LOSSES)


@for_each(("make", "name"), POSITIVE)
@for_each("value", [0.0, -1.0, math.inf, -math.inf, math.nan])
def test_parameters_must_be_positive_and_finite(make, name, value):
    with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
        make(**{name: value})


@for_each(("make", "name"), PARAMETERS)
@for_each("value", ["1", None, True, 1j])
def test_parameters_must_be_real_numbers(make, name, value):
    with pytest.raises(TypeError, match=f"{name} must be a real number"):
        make(**{name: value})


@for_each(
    ("make", "given"),
    [
        *((Poisson, {"low": 1.0, "high": high}) for high in (1.0, 0.0, math.inf, math.nan)),
        (Gamma, {"low": -301.0}),
        (Gamma, {"max_target": 0.0}),
        (NegativeBinomial, {"max_target": -1.0}),
        (NegativeBinomial, {"dispersion": 1e-7}),
        (ComplementaryLogLog, {"high": 4.5}),
        (ComplementaryLogLog, {"high": math.nan}),
        *((Probit, {"high": high}) for high in (0.0, 8.5, math.inf)),
    ],
)
def test_bounds_of_means_targets_and_hazards_are_checked(make, given):
    with pytest.raises(ValueError, match=f"{list(given)[-1]} must|low and high must"):
        make(**given)


@for_each("make", [Poisson, Gamma, NegativeBinomial])
def test_a_target_beyond_its_bounds_counts_as_the_bound(make):
    z = np.linspace(-9.0, 9.0, 101)
    loss = make(max_target=5.0)
    for beyond, bound in ((50.0, 5.0), (-3.0, 0.0)):
        by_numpy = reference_block(loss, np.full_like(z, beyond), z)
        np.testing.assert_array_equal(by_numpy, reference_block(loss, np.full_like(z, bound), z))


@for_each("loss", [one for one in INSTANCES if isinstance(one, Likelihood)])
def test_probabilities_and_information_are_those_of_the_likelihood(loss):
    z = np.linspace(-2.5, 0.9, 35)
    if not isinstance(loss, BinaryLikelihood):  # its curvature is linear in the target
        z = z[(z > loss.low) & (z < loss.high) & (np.exp(z) < loss.max_target)]
        (_, _, expected), rates = reference_block(loss, np.exp(z), z), np.exp(z)
    else:
        high = getattr(loss, "high", 9.0)
        z = z[(z < high) & ((z > -high) | (loss.name != "probit"))]
        (v, _, q), (_, _, other) = (reference_block(loss, np.full_like(z, y), z) for y in (1, -1))
        rates = loss.probability(z)
        np.testing.assert_allclose(rates, np.exp(-v), rtol=1e-6)
        expected = rates * q + (1.0 - rates) * other
    found = [loss.information(float(rate)) for rate in rates]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_width_whose_curvature_overflows_is_refused():
    with pytest.raises(ValueError, match="1/h to be finite"):
        SmoothedHinge(1e-310)
