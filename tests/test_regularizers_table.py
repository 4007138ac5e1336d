"""The regulariser table states true names, parameters and bounds."""

import dataclasses
import math

import numpy as np
import pytest

from dpkern import kernels
from dpkern.reference.local_descent import COEFFICIENTS
from dpkern.regularizers import L1, PL, REGULARIZERS, SMOOTH, ElasticNet, L2Squared, get_smooth

FORMULAS = {
    "l1": lambda x: np.abs(x),
    "l2_squared": lambda x: x**2 / 2,
    "elastic_net": lambda x, l1_ratio: l1_ratio * np.abs(x) + (1 - l1_ratio) * x**2 / 2,
    "pl": lambda x: x**2 + 3 * np.sin(x) ** 2,
}
TABLE = REGULARIZERS | SMOOTH
INSTANCES = [
    *(make() for make in TABLE.values()),
    ElasticNet(l1_ratio=0),
    ElasticNet(l1_ratio=0.9),
    ElasticNet(l1_ratio=1),
]


def test_every_row_has_a_formula_here():
    assert set(TABLE) == set(FORMULAS)


@pytest.mark.parametrize("regularizer", INSTANCES, ids=repr)
def test_bounds_are_the_extremes_of_the_second_difference_quotients(regularizer):
    x = np.linspace(-5.0, 5.0, 10_001)  # with a node at the kink
    step = x[1] - x[0]
    curvatures = np.diff(FORMULAS[regularizer.name](x, *regularizer.params), n=2) / step**2
    assert curvatures.min() == pytest.approx(regularizer.strong_convexity, abs=1e-5)
    assert regularizer.convex == (regularizer.strong_convexity >= 0.0)
    if math.isinf(regularizer.smoothness):
        assert curvatures.max() > 100.0
    else:
        assert curvatures.max() == pytest.approx(regularizer.smoothness, abs=1e-5)


@pytest.mark.parametrize("regularizer", INSTANCES, ids=repr)
def test_params_and_parameters_are_the_fields_as_floats(regularizer):
    assert regularizer.parameters == dataclasses.asdict(regularizer)
    assert regularizer.params == tuple(regularizer.parameters.values())
    assert all(type(value) is float for value in regularizer.params)


@pytest.mark.parametrize("name", TABLE)
def test_a_name_stands_for_the_default_instance(name):
    assert TABLE[name]().name == name


def test_an_unknown_name_is_refused_and_the_names_are_listed():
    with pytest.raises(ValueError, match="'ridge'") as caught:
        kernels.prox("ridge", [1.0], 1.0)
    assert all(name in str(caught.value) for name in REGULARIZERS)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf])
def test_the_share_must_be_between_0_and_1(value):
    with pytest.raises(ValueError, match=r"l1_ratio is .* must be between 0 and 1"):
        ElasticNet(value)


@pytest.mark.parametrize("value", ["1", None, True])
def test_the_share_must_be_a_real_number(value):
    with pytest.raises(TypeError, match=r"l1_ratio is .* must be a real number"):
        ElasticNet(value)


def test_the_ends_of_the_elastic_net_are_the_plain_penalties():
    ends = {1.0: L1(), 0.0: L2Squared()}
    for share, plain in ends.items():
        net = ElasticNet(share)
        assert net.strong_convexity == plain.strong_convexity
        assert net.smoothness == plain.smoothness


RADII = np.concatenate([10.0 ** np.linspace(-320, 8, 4000), np.linspace(1e-3, 60.0, 40_001)])


@pytest.mark.parametrize("name", SMOOTH)
def test_values_are_the_formulas_and_coefficients_their_derivatives_over_r(name):
    g, r = SMOOTH[name](), np.linspace(0.01, 20.0, 2001)
    np.testing.assert_allclose([g.value(x) for x in r], FORMULAS[name](r), rtol=1e-14)
    slope = (FORMULAS[name](r + 1e-5) - FORMULAS[name](r - 1e-5)) / 2e-5
    np.testing.assert_allclose([g.coefficient(x) * x for x in r], slope, atol=1e-6)


@pytest.mark.parametrize("name", SMOOTH)
def test_coefficients_stay_between_0_and_the_smoothness_also_at_tiny_radii(name):
    g = SMOOTH[name]()
    ours = np.array([g.coefficient(r) for r in (0.0, *RADII)])
    assert np.all((ours >= 0.0) & (ours <= g.smoothness))
    tiny = ours[: np.searchsorted(RADII[:4000], 1e-9)]
    np.testing.assert_allclose(tiny, g.smoothness, rtol=4e-16)
    np.testing.assert_allclose(COEFFICIENTS[name](np.array([0.0, *RADII])), ours, rtol=1e-15)


def test_the_hessian_of_pl_reaches_both_ends_of_its_range():
    """Eigenvalues f'' along x and f'/r across it, so that -4 and 8 are needed and enough."""
    r = np.linspace(1e-3, 20.0, 200_001)
    along, across = 2 + 6 * np.cos(2 * r), 2 + 3 * np.sin(2 * r) / r
    assert min(along.min(), across.min()) == pytest.approx(PL().strong_convexity, abs=1e-6)
    assert max(along.max(), across.max()) == pytest.approx(PL().smoothness, abs=1e-4)


def test_what_has_no_gradient_is_no_smooth_regulariser():
    assert get_smooth("pl") == get_smooth(PL()) == PL()
    for given in ("l1", L1()):
        with pytest.raises(ValueError, match=r"'l1', which acts by its prox.*must be .*: pl"):
            get_smooth(given)
    with pytest.raises(ValueError, match=r"'ridge'; it must be one of l1, .*, pl"):
        get_smooth("ridge")
    with pytest.raises(TypeError, match="a name or a Regularizer"):
        get_smooth(3)
    with pytest.raises(ValueError, match="name is 'pl'; it must be one of l1"):
        kernels.prox("pl", [1.0], 1.0)
