"""The regulariser table states true names, parameters and bounds."""

import dataclasses
import math

import numpy as np
import pytest

from dpkern import kernels
from dpkern.regularizers import L1, REGULARIZERS, ElasticNet, L2Squared

FORMULAS = {
    "l1": lambda x: np.abs(x),
    "l2_squared": lambda x: x**2 / 2,
    "elastic_net": lambda x, l1_ratio: l1_ratio * np.abs(x) + (1 - l1_ratio) * x**2 / 2,
}
INSTANCES = [
    *(make() for make in REGULARIZERS.values()),
    ElasticNet(l1_ratio=0),
    ElasticNet(l1_ratio=0.9),
    ElasticNet(l1_ratio=1),
]


def test_every_row_has_a_formula_here():
    assert set(REGULARIZERS) == set(FORMULAS)


@pytest.mark.parametrize("regularizer", INSTANCES, ids=repr)
def test_bounds_are_the_extremes_of_the_second_difference_quotients(regularizer):
    x = np.linspace(-5.0, 5.0, 10_001)  # with a node at the kink
    step = x[1] - x[0]
    curvatures = np.diff(FORMULAS[regularizer.name](x, *regularizer.params), n=2) / step**2
    assert curvatures.min() == pytest.approx(regularizer.strong_convexity, abs=1e-6)
    assert regularizer.convex
    if math.isinf(regularizer.smoothness):
        assert curvatures.max() > 100.0
    else:
        assert curvatures.max() == pytest.approx(regularizer.smoothness, abs=1e-6)


@pytest.mark.parametrize("regularizer", INSTANCES, ids=repr)
def test_params_and_parameters_are_the_fields_as_floats(regularizer):
    assert regularizer.parameters == dataclasses.asdict(regularizer)
    assert regularizer.params == tuple(regularizer.parameters.values())
    assert all(type(value) is float for value in regularizer.params)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_a_name_stands_for_the_default_instance(name):
    assert REGULARIZERS[name]().name == name


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
