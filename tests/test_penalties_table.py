"""The penalty table states true names, parameters and bounds."""

import dataclasses
import math

import numpy as np
import pytest
from cases import for_each

from dpkern import kernels
from dpkern.models.penalties import (
    FEASIBLE,
    L1,
    L2,
    PENALTIES,
    PL,
    SMOOTH,
    Box,
    Constraint,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    Simplex,
    get_penalty,
)
from dpkern.reference.local_descent import COEFFICIENTS


def zero_where(holds):
    return np.where(holds, 0.0, np.inf)


FORMULAS = {
    "l1": lambda x: np.abs(x),
    "l2_squared": lambda x: x**2 / 2,
    "elastic_net": lambda x, l1_ratio: l1_ratio * np.abs(x) + (1 - l1_ratio) * x**2 / 2,
    "group_lasso": lambda x, groups, weights: weights[0] * np.abs(x),
    "pl": lambda x: x**2 + 3 * np.sin(x) ** 2,
    "l2_ball": lambda x, radius: zero_where(np.abs(x) <= radius),
    "box": lambda x, lower, upper: zero_where((lower <= x) & (x <= upper)),
    "non_negative": lambda x: zero_where(x >= 0.0),
    "simplex": lambda x, total: zero_where(x == total),
}
TABLE = PENALTIES | SMOOTH
DEFAULTS = [make() for make in TABLE.values() if make is not GroupLasso]
INSTANCES = [
    *DEFAULTS,
    GroupLasso(groups=[1]),
    GroupLasso(groups=[1], weights=[2.5]),
    L2Ball(2.0),
    Box(-1.0, 3.0),
    Box([-1.0], [math.inf]),
    ElasticNet(l1_ratio=0),
    ElasticNet(l1_ratio=0.9),
    ElasticNet(l1_ratio=1),
]


@for_each(
    ("penalty", "text"),
    [
        (L2(1e-3) + L1(0.01), "L2(0.001) + L1(0.01)"),
        (ElasticNet(0.1, l1_ratio=0.25), "ElasticNet(0.1, l1_ratio=0.25)"),
        (GroupLasso(2.0, groups=[1, 2]), "GroupLasso(2, groups=[1 2], weights=[1. 1.])"),
        (L2Ball(2.0), "L2Ball(radius=2.)"),
        (NonNegative(), "NonNegative()"),
    ],
)
def test_penalties_are_printed_as_they_are_written(penalty, text):
    assert str(penalty) == text


def test_every_row_has_a_formula_here():
    assert set(TABLE) == set(FORMULAS)


@for_each("penalty", INSTANCES, ids=repr)
def test_bounds_are_the_extremes_of_the_second_difference_quotients(penalty):
    x = np.linspace(-5.0, 5.0, 10_001)  # with a node at the kink
    step = x[1] - x[0]
    values = FORMULAS[penalty.name](x, **penalty.parameters)
    if isinstance(penalty, Constraint):
        assert np.all(np.diff(values[np.isfinite(values)]) == 0.0)
        assert math.isinf(values.max())
        assert (penalty.convex, penalty.strong_convexity) == (True, 0.0)
        assert math.isinf(penalty.smoothness)
        return
    curvatures = np.diff(values, n=2) / step**2
    assert curvatures.min() == pytest.approx(penalty.strong_convexity, abs=1e-5)
    assert penalty.convex == (penalty.strong_convexity >= 0.0)
    if math.isinf(penalty.smoothness):
        assert curvatures.max() > 100.0
    else:
        assert curvatures.max() == pytest.approx(penalty.smoothness, abs=1e-5)


@for_each("penalty", INSTANCES, ids=repr)
def test_params_and_parameters_are_the_fields_but_the_strength_as_floats(penalty):
    names = [f.name for f in dataclasses.fields(penalty)]
    assert ["strength", *penalty.parameters] == names
    assert type(penalty)(**penalty.parameters) == penalty
    assert penalty.params.dtype == np.float64
    scalars = [value for value in penalty.parameters.values() if np.ndim(value) == 0]
    assert all(type(value) is float for value in scalars)
    if scalars and penalty.name != "box":
        assert penalty.params.tolist() == scalars


def test_parameters_of_any_length_reach_c_as_their_number_and_then_themselves():
    assert Box(0.0, 2.0).params.tolist() == [1.0, 0.0, 2.0]
    assert Box([1.0, 2.0], 3.0).params.tolist() == [2.0, 1.0, 2.0, 3.0, 3.0]
    assert Box(0.0, 1.0).size is None
    assert Box([0.0], 1.0).size == 1
    with pytest.raises(ValueError, match="groups must be below 2"):
        GroupLasso(groups=[1 << 62] * 4 + [5])  # of size 5, if sums were modulo 2^64
    assert GroupLasso(groups=[2, 3]).params.tolist() == [2.0, 2.0, 3.0, 1.0, 1.0]
    assert GroupLasso(groups=[2, 3], weights=[0.5, 4]).params.tolist() == [2.0, 2.0, 3.0, 0.5, 4.0]
    assert GroupLasso(groups=[2, 3]).size == 5


def test_arrays_of_parameters_are_read_only_copies():
    lower, groups = np.zeros(3), np.array([1, 2])
    box, lasso = Box(lower, 1.0), GroupLasso(groups=groups)
    lower[:], groups[:] = 0.5, 7
    assert box == Box(np.zeros(3), 1.0)
    assert lasso == GroupLasso(groups=[1, 2])
    for array in (box.lower, box.upper, lasso.groups, lasso.weights):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_equal_means_the_same_class_and_parameters():
    assert len({Box([0.0, 1.0], 2.0), Box([0.0, 1.0], [2.0, 2.0]), Box([0.0, 1.0], 3.0)}) == 2
    assert L2Ball(1.0) != Simplex(1.0)
    assert L1() == L1() != NonNegative()


@for_each("penalty", DEFAULTS, ids=repr)
def test_a_name_stands_for_the_default_instance(penalty):
    assert get_penalty(penalty.name) == penalty


def test_a_name_whose_parameters_have_no_default_is_refused():
    with pytest.raises(TypeError, match="group_lasso needs the parameter groups"):
        get_penalty("group_lasso")


@for_each("penalty", INSTANCES, ids=repr)
def test_the_value_of_a_point_is_the_formula(penalty):
    for x in (-7.0, -1.0, -0.3, 0.0, 0.25, 1.0, 2.0, 5.0):
        formula = float(FORMULAS[penalty.name](np.array([x]), **penalty.parameters)[0])
        assert penalty(np.array([x])) == pytest.approx(formula, rel=1e-14)


def test_the_value_of_a_vector_is_the_formula():
    x = np.array([3.0, -4.0, 12.0, 0.0])
    values = {
        L1(): 19.0,
        L2(): 84.5,
        ElasticNet(l1_ratio=0.25): 0.25 * 19.0 + 0.75 * 84.5,
        GroupLasso(groups=[2, 2]): 17.0,
        GroupLasso(groups=[1, 3], weights=[2.0, 0.5]): 6.0 + 0.5 * math.sqrt(160.0),
        PL(): 169.0 + 3.0 * math.sin(13.0) ** 2,
        L2Ball(13.0): 0.0,
        L2Ball(12.9): math.inf,
        Box(-4.0, 12.0): 0.0,
        Box([3.0, -4.0, 12.0, 0.0], 12.0): 0.0,
        Box([3.0, -4.0, 12.0, 0.1], 12.0): math.inf,
        NonNegative(): math.inf,
        Simplex(11.0): math.inf,
    }
    for penalty, value in values.items():
        assert penalty(x) == pytest.approx(value, rel=1e-14)
    assert Simplex(19.0)(np.abs(x)) == 0.0


@for_each(
    ("constraint", "edge"),
    [
        (L2Ball(5e3), np.array([3e3, 4e3])),
        (Box(-1.0, 2e6), np.array([2e6, 0.0])),
        (NonNegative(), np.array([0.0, 1.0])),
        (Simplex(3e-5), np.array([1e-5, 2e-5])),
    ],
    ids=repr,
)
def test_a_constraint_forgives_what_rounding_does_and_no_more(constraint, edge):
    size = max(1.0, np.abs(edge).max()) if constraint.name != "simplex" else 3e-5
    assert constraint(edge) == 0.0
    outwards = (
        np.array([-1.0, 0.0]) if constraint.name == "non_negative" else edge / np.abs(edge[0])
    )
    assert constraint(edge + 0.5 * FEASIBLE * size * outwards / 2) == 0.0
    assert constraint(edge + 4.0 * FEASIBLE * size * outwards) == math.inf


def test_the_largest_gamma_is_infinite_with_convexity_and_else_the_inverse_curvature():
    assert {r.largest_gamma for r in INSTANCES if r.convex} == {math.inf}
    assert PL().largest_gamma == 0.25


def test_an_unknown_name_is_refused_and_the_names_are_listed():
    with pytest.raises(ValueError, match="'ridge'") as caught:
        kernels.prox("ridge", [1.0], 1.0)
    assert all(name in str(caught.value) for name in PENALTIES)


@for_each("value", [-0.1, 1.1, math.nan, math.inf])
def test_the_share_must_be_between_0_and_1(value):
    with pytest.raises(ValueError, match=r"l1_ratio must lie in .0, 1., got"):
        ElasticNet(l1_ratio=value)


@for_each("value", ["1", None, True])
def test_the_share_must_be_a_real_number(value):
    with pytest.raises(TypeError, match=r"l1_ratio must be a real number"):
        ElasticNet(l1_ratio=value)


def test_the_ends_of_the_elastic_net_are_the_plain_penalties():
    ends = {1.0: L1(), 0.0: L2()}
    for share, plain in ends.items():
        net = ElasticNet(l1_ratio=share)
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


def test_what_is_no_penalty_is_refused():
    assert get_penalty("pl") == get_penalty(PL()) == PL()
    with pytest.raises(ValueError, match=r"must be one of .*l1, .*, simplex, got 'ridge'"):
        get_penalty("ridge")
    with pytest.raises(TypeError, match="a name or a Term"):
        get_penalty(3)
