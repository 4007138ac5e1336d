"""Every proximal operator: reference, optimality, nonexpansiveness, Moreau, feasibility."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import FUSED, assert_refused, assert_same_on

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.models.penalties import (
    L1,
    L2,
    PENALTIES,
    PL,
    Box,
    Constraint,
    ElasticNet,
    GroupLasso,
    L2Ball,
    NonNegative,
    Simplex,
)
from dpkern.reference.prox import PROXES

D = 37
EDGES = np.random.default_rng(5).normal(0, 2, (2, D))
LOWER, UPPER = np.sort(EDGES, axis=0)
LOWER[:3], UPPER[2:5], LOWER[6] = -math.inf, math.inf, UPPER[6]
CASES = [
    L1(),
    L2(),
    *(ElasticNet(l1_ratio=share) for share in (0, 0.3, 1)),
    GroupLasso(groups=[1, 5, 16, 15]),
    GroupLasso(groups=[30, 7], weights=[0.0, 2.5]),
    PL(),
    L2Ball(2.0),
    L2Ball(1e-3),
    Box(-0.5, 1.5),
    Box(LOWER, UPPER),
    Box(LOWER, math.inf),
    NonNegative(),
    Simplex(),
    Simplex(40.0),
]
every_case = for_each("case", CASES, ids=lambda case: f"{case.name}")
LENGTHS = [1, 2, 7, 8, 9, 16, 31, 100, 4097]
ANY_LENGTH = [case for case in CASES if case.size is None]


def gammas(case, *values):
    return [gamma for gamma in values if gamma <= case.largest_gamma]


def points(m=60, d=D, seed=0):
    """Rows from short to long, with zeros and ties among their entries."""
    rng = np.random.default_rng(seed)
    v = rng.normal(0, 1, (m, d)) * 10.0 ** rng.uniform(-3, 3, (m, 1))
    v[0], v[1], v[2] = 0.0, -0.0, 1.0
    v[3, ::2] = v[3, 0]
    return v


def inside(case, m, seed=0):
    """Random points of a constraint's set, made without any prox."""
    rng = np.random.default_rng(seed)
    if isinstance(case, L2Ball):
        u = rng.normal(size=(m, D))
        return case.radius * rng.uniform(0, 1, (m, 1)) * u / np.linalg.norm(u, axis=1)[:, None]
    if isinstance(case, Simplex):
        return case.total * rng.dirichlet(np.full(D, 0.2), m)
    if isinstance(case, NonNegative):
        return rng.exponential(5, (m, D))
    low, high = np.maximum(case.lower, -50.0), np.minimum(case.upper, 50.0)
    return low + rng.uniform(0, 1, (m, D)) * (high - low)


def test_compiled_proxes_twins_and_table_are_the_same_set():
    assert set(_core.prox_names()) == set(PENALTIES) == set(PROXES)
    assert {case.name for case in CASES} == set(PROXES)


@every_case
@pytest.mark.usefixtures("isa")
def test_prox_agrees_with_its_reference(case):
    v = points()
    for gamma in gammas(case, 0.0, 0.1, 0.25, 1.0, 7.0, 1e6):
        ours = kernels.prox(case.name, v, gamma, n_threads=1, **case.parameters)
        again = kernels.prox(case.name, v, gamma, n_threads=3, **case.parameters)
        np.testing.assert_array_equal(again, ours)
        by_numpy = ref.prox(case.name, v, gamma, **case.parameters)
        # At gamma = 1/4 the curvature of pl's problem vanishes at |x| = pi / 2.
        off = 1e-5 if case.name == "pl" and gamma == 0.25 else 1e-13
        np.testing.assert_allclose(ours, by_numpy, rtol=off, atol=1e-13)
        np.testing.assert_array_equal(kernels.prox(case, v, gamma), ours)


@pytest.mark.usefixtures("isa")
def test_prox_agrees_with_its_twin_at_every_length():
    for case, d in itertools.product(ANY_LENGTH, LENGTHS):
        v = points(m=5, d=d)
        np.testing.assert_allclose(
            kernels.prox(case, v, 0.2), ref.prox(case, v, 0.2), rtol=1e-12, atol=1e-12
        )


@pytest.mark.isa
@every_case
def test_same_bits_for_any_number_of_threads_and_instruction_set_with_fma(case):
    for shape in ((3000, D), (D,)):
        v = np.random.default_rng(1).normal(0, 3, shape)
        one, *more = [kernels.prox(case, v, 0.2, n_threads=k) for k in (1, 2, 3, 7)]
        assert all(np.array_equal(one, other) for other in more)
        assert_same_on(FUSED, lambda v=v: [kernels.prox(case, v, 0.2)])


@for_each("case", ANY_LENGTH, ids=lambda case: case.name)
def test_threads_share_a_long_vector_and_leave_no_coordinate_out(case):
    v = np.random.default_rng(1).normal(0, 3, 100_003)
    expected = kernels.prox(case, v, 0.2, n_threads=1)
    for n_threads in (2, 3, 7):
        out = np.full(v.shape, np.nan)
        assert kernels.prox(case, v, 0.2, n_threads=n_threads, out=out) is out
        np.testing.assert_array_equal(out, expected)


@for_each("n_threads", [1, 3])
@pytest.mark.usefixtures("isa")
def test_every_coordinate_of_a_long_vector_meets_its_own_bounds(n_threads):
    rng = np.random.default_rng(7)
    v, bounds = rng.normal(0, 3, 5003), np.sort(rng.normal(0, 2, (2, 5003)), axis=0)
    x = kernels.prox(Box(*bounds), v, 1.0, n_threads=n_threads)
    np.testing.assert_array_equal(x, np.clip(v, *bounds))


@for_each("case", [L1(), Box(LOWER, UPPER)], ids=lambda case: case.name)
@pytest.mark.usefixtures("isa")
def test_results_that_are_written_past_the_caches_are_the_same(case):
    """From 2^23 numbers on; in place they are written as others are."""
    m = 2**23 // D + 1
    v = np.resize(np.random.default_rng(6).normal(0, 3, 10_007), m * D + 1)[1:].reshape(m, D)
    expected = np.concatenate([kernels.prox(case, part, 0.2) for part in np.array_split(v, 3)])
    for n_threads in (1, 2):
        out = np.full(m * D + 3, np.nan)
        kernels.prox(case, v, 0.2, n_threads=n_threads, out=out[3:].reshape(m, D))
        np.testing.assert_array_equal(out[3:].reshape(m, D), expected)
        assert np.all(np.isnan(out[:3]))
    v[-1, -1] = np.nan
    with pytest.raises(ValueError, match="v must be finite"):
        kernels.prox(case, v, 0.2, out=out[3:].reshape(m, D))
    v[-1, -1] = 0.0
    kernels.prox(case, v, 0.2, out=v)
    np.testing.assert_array_equal(v[:-1], expected[:-1])


@every_case
def test_rows_are_independent_and_a_vector_is_one_row(case):
    v = points()
    rows = kernels.prox(case, v, 0.2)
    for x, row in zip(rows, v, strict=True):
        np.testing.assert_array_equal(kernels.prox(case, row, 0.2), x)


def test_a_separable_prox_takes_coordinates_one_by_one_and_no_other_does():
    for case in ANY_LENGTH:
        v = np.random.default_rng(2).normal(0, 5, D)
        alone = [kernels.prox(case, [x], 0.2)[0] for x in v.tolist()]
        assert np.array_equal(alone, kernels.prox(case, v, 0.2)) == case.separable
    v = np.random.default_rng(2).normal(0, 5, D)
    bounds = zip(LOWER.tolist(), UPPER.tolist(), v.tolist(), strict=True)
    alone = [kernels.prox("box", [x], 0.2, lower=low, upper=high)[0] for low, high, x in bounds]
    np.testing.assert_array_equal(kernels.prox(Box(LOWER, UPPER), v, 0.2), alone)


@for_each(
    "case", [case for case in CASES if not isinstance(case, Constraint)], ids=lambda case: case.name
)
def test_prox_minimises_its_objective_among_points_near_and_far(case):
    rng = np.random.default_rng(1)
    v = np.concatenate([points()[:, :D], rng.normal(0, 0.3, (20, D))])
    for gamma in gammas(case, 0.1, 0.2, 1.0, 7.0):
        for own, x in zip(v, kernels.prox(case, v, gamma), strict=True):
            others = [own, 0 * own, -x, 0.999 * x, 1.001 * x, 2 * x]
            for size in (1e-4, 1e-2, 1.0):
                others += [x + size * rng.normal(size=D), x * (1 + size * rng.normal(size=D))]
            # Differences of the objective in a form that does not cancel.
            for y in others:
                rise = gamma * (case(y) - case(x)) + 0.5 * (y - x) @ (y + x - 2 * own)
                assert rise >= -1e-13 * (1.0 + own @ own + gamma * case(x))


@for_each(
    "case", [case for case in CASES if isinstance(case, Constraint)], ids=lambda case: case.name
)
def test_projection_makes_an_obtuse_angle_with_every_feasible_point(case):
    """(v - x) . (y - x) <= 0 for all y of the set: x is the nearest of its points."""
    v = points()
    for own, x in zip(v, kernels.prox(case, v, 1.0), strict=True):
        assert case(x) == 0.0
        angles = (inside(case, 200) - x) @ (own - x)
        assert np.all(angles <= 1e-11 * (1.0 + own @ own))


@every_case
def test_prox_is_as_lipschitz_as_the_curvature_says(case):
    """1 / (1 + gamma c), and firmly so where r is convex."""
    v, u = points(seed=0), points(seed=1) * 0.5
    v[30:], u[30:] = v[30:] % 3.0, u[30:] % 3.0
    for gamma in gammas(case, 0.1, 0.24, 3.0):
        a, b = kernels.prox(case, u, gamma), kernels.prox(case, v, gamma)
        moved = np.sum((a - b) ** 2, axis=1)
        off = 1e-9 * (1.0 + np.sum(u**2 + v**2, axis=1)) * 1e-5
        factor = 1.0 / (1.0 + gamma * case.strong_convexity)
        assert np.all(moved <= factor**2 * np.sum((u - v) ** 2, axis=1) + off)
        if case.convex:
            assert np.all(moved <= np.sum((a - b) * (u - v), axis=1) + off)


def test_moreau_identity_of_the_l1_norm_and_the_box():
    """prox of gamma |x|_1 and projection on the dual norm's ball sum to v."""
    v, gamma = points(), 0.7
    dual = kernels.prox("box", v, 1.0, lower=-gamma, upper=gamma)
    np.testing.assert_allclose(kernels.prox("l1", v, gamma) + dual, v, rtol=1e-15)


def test_moreau_identity_of_group_norms_and_balls():
    v, gamma, sizes, weights = points(), 0.7, [1, 5, 16, 15], [1.0, 2.0, 0.5, 3.0]
    x = kernels.prox("group_lasso", v, gamma, groups=sizes, weights=weights)
    start = 0
    for size, weight in zip(sizes, weights, strict=True):
        part = slice(start, start + size)
        dual = kernels.prox("l2_ball", v[:, part], 1.0, radius=gamma * weight)
        np.testing.assert_allclose(x[:, part] + dual, v[:, part], rtol=1e-14, atol=1e-14)
        start += size


def test_moreau_identity_of_the_largest_entry_and_the_simplex():
    """v - x is prox of total max(x): all entries above one bar brought down to it."""
    v = points(seed=3)
    rest = v - kernels.prox("simplex", v, 1.0, total=5.0)
    bar = np.max(rest, axis=1, keepdims=True)
    np.testing.assert_allclose(rest, np.minimum(v, bar), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(np.sum(v - rest, axis=1), 5.0, rtol=1e-11)


def test_moreau_identity_of_the_two_orthants():
    v = points()
    np.testing.assert_array_equal(
        kernels.prox("non_negative", v, 1.0) - kernels.prox("non_negative", -v, 1.0), v
    )


def test_a_group_of_one_coordinate_is_the_l1_norm_and_the_ends_of_the_net_its_parts():
    v = points()
    l1 = kernels.prox("l1", v, 0.3)
    singles = kernels.prox("group_lasso", v, 0.3, groups=[1] * D)
    np.testing.assert_allclose(singles, l1, rtol=1e-14, atol=1e-15)
    np.testing.assert_array_equal(kernels.prox("elastic_net", v, 0.3, l1_ratio=1.0), l1)
    np.testing.assert_array_equal(
        kernels.prox("elastic_net", v, 0.3, l1_ratio=0.0), kernels.prox("l2_squared", v, 0.3)
    )


HOMOGENEOUS = [
    lambda s: (L1(), 0.7 * s),
    lambda s: (GroupLasso(groups=[1, 5, 16, 15], weights=[1.0, 2.0, 0.0, 3.0]), 0.7 * s),
    lambda s: (L2Ball(3.0 * s), 1.0),
    lambda s: (Box(-0.5 * s, 1.5 * s), 1.0),
    lambda s: (NonNegative(), 1.0),
    lambda s: (Simplex(2.5 * s), 1.0),
]


@for_each("scaled", HOMOGENEOUS)
@pytest.mark.usefixtures("isa")
def test_norms_neither_overflow_nor_vanish_a_power_of_two_only_moves_the_exponent(scaled):
    v = np.random.default_rng(4).normal(0, 1, (50, D)) * 4.0
    for exponent in (-890, -530, -460, -440, 495, 515, 890):
        s = 2.0**exponent
        (plain, gamma), (other, other_gamma) = scaled(1.0), scaled(s)
        np.testing.assert_array_equal(
            kernels.prox(other, v * s, other_gamma), kernels.prox(plain, v, gamma) * s
        )


@pytest.mark.usefixtures("isa")
def test_the_ends_of_the_doubles_give_finite_results_without_a_warning():
    top, least = np.finfo(float).max, 5e-324
    v = np.tile([top, -top, least, -least, 0.0, 1.0], (4, D))[:, :D]
    v[1], v[2, 1:], v[3] = top, least, least
    for case in CASES:
        for gamma in gammas(case, 0.0, 0.25, top):
            x = kernels.prox(case, v, gamma)
            assert np.all(np.isfinite(x))
            if isinstance(case, Constraint):
                assert all(case(row) == 0.0 for row in x)
            else:
                assert np.all(np.abs(x) <= np.abs(v))
                assert np.all(x * np.sign(v) >= 0.0)


@pytest.mark.proof
@pytest.mark.parametrize("d", LENGTHS)
@pytest.mark.usefixtures("isa")
def test_projections_are_feasible_up_to_the_stated_roundings_in_rational_arithmetic(d):
    rng = np.random.default_rng(d)
    rows = [rng.normal(size=d) * s for s in (0.01, 1.0, 1e5, 1e300)] + [np.full(d, 1 / 3)]
    rows += [rng.choice([-1.0, 1.0], d) * (1 + rng.random(d) * 2.0**-40), rng.exponential(size=d)]
    for v in rows:
        for radius in (1.0, 0.3, 1e-200):
            x = kernels.prox("l2_ball", v, 1.0, radius=radius)
            room = 1 + (Fraction(d, 32) + 8) / 2**53
            assert sum(Fraction(t) ** 2 for t in x.tolist()) <= (Fraction(radius) * room) ** 2
        for total in (1.0, 0.3, 1e-200, 1e9):
            x = kernels.prox("simplex", v, 1.0, total=total)
            assert np.all(x >= 0.0)
            off = abs(sum(Fraction(t) for t in x.tolist()) - Fraction(total))
            assert off <= Fraction(d, 2**52) * Fraction(total)
        x = kernels.prox("box", v, 1.0, lower=-0.1, upper=1 / 3)
        assert np.all((x >= -0.1) & (x <= 1 / 3))


@for_each("d", [10, 1000, 20_000])
def test_simplex_keeps_the_largest_also_where_newton_removes_few_entries_a_step(d):
    k = np.arange(d, dtype=float)
    slow = [-(0.5 ** np.minimum(k, 1000)), -(1.01**-k), -1.0 / (1.0 + k), -(k**0.5), 1e-9 * k]
    for v in slow:
        x = kernels.prox("simplex", v, 1.0)
        np.testing.assert_allclose(x, ref.prox("simplex", v, 1.0), rtol=1e-9, atol=1e-12)


@every_case
def test_gamma_0_changes_nothing_but_what_breaks_a_constraint(case):
    v = points()
    x = kernels.prox(case, v, 0.0)
    if isinstance(case, Constraint):
        for gamma in (1.0, 1e300):
            np.testing.assert_array_equal(x, kernels.prox(case, v, gamma))
        kept = kernels.prox(case, inside(case, 50), 0.0)
        np.testing.assert_allclose(kept, inside(case, 50), rtol=1e-12, atol=1e-12)
    elif case.name == "pl":
        np.testing.assert_allclose(x, v, rtol=4e-16)
    else:
        np.testing.assert_array_equal(x, v)


@for_each("gamma", [1e-9, 0.1, 0.249, 0.25])
@pytest.mark.usefixtures("isa")
def test_pl_solves_its_scalar_equation_along_v(gamma):
    """s + gamma f'(s) = |v| with f' = 2 s + 3 sin 2s; relative for short v, to rounding for all."""
    r = np.concatenate([10.0 ** np.linspace(-300, 300, 601), np.linspace(1e-3, 20, 4001)])
    s = kernels.prox("pl", r[:, np.newaxis], gamma)[:, 0]
    usual = r < 1e15  # beyond, the sine of a double says nothing
    np.testing.assert_allclose(
        (s + gamma * (2 * s + 3 * np.sin(2 * s)))[usual], r[usual], rtol=2e-15
    )
    np.testing.assert_allclose(s[~usual] * (1 + 2 * gamma), r[~usual], rtol=1e-14)
    assert np.all(np.diff(s[601:]) > 0.0)


def test_pl_has_one_minimiser_up_to_its_largest_gamma_and_two_beyond():
    """|v| = (1 + 2 gamma) pi / 2 makes the objective symmetric about |x| = pi / 2."""
    bound = PL().largest_gamma
    assert bound == 0.25
    s = np.linspace(0.0, np.pi, 100_001)  # node 50 000 is pi / 2

    def objective(gamma):
        return gamma * (s**2 + 3 * np.sin(s) ** 2) + 0.5 * (s - (1 + 2 * gamma) * np.pi / 2) ** 2

    np.testing.assert_allclose(objective(0.3), objective(0.3)[::-1], rtol=1e-12)
    assert objective(0.3).min() < objective(0.3)[50_000] - 1e-3
    assert objective(0.26).min() < objective(0.26)[50_000] - 1e-5
    assert abs(np.argmin(objective(0.25)) - 50_000) < 100
    x = kernels.prox("pl", [(1 + 2 * bound) * np.pi / 2], bound)
    np.testing.assert_allclose(x, np.pi / 2, rtol=1e-4)


@every_case
def test_the_result_may_take_the_place_of_v_and_v_is_untouched_else(case):
    v = points()
    expected, before = kernels.prox(case, v, 0.2), v.copy()
    np.testing.assert_array_equal(v, before)
    assert kernels.prox(case, v, 0.2, out=v, n_threads=2) is v
    np.testing.assert_array_equal(v, expected)


def test_shapes_layouts_and_number_types_of_v():
    v = np.arange(6.0).reshape(2, 3)
    out = kernels.prox("l1", v[:, ::-1], 1.0)
    np.testing.assert_array_equal(out, np.maximum(v[:, ::-1] - 1.0, 0))
    np.testing.assert_array_equal(kernels.prox("l1", v.astype(np.float32), 1.0), out[:, ::-1])
    np.testing.assert_array_equal(kernels.prox("l1", [2, -3], 1.0), [1.0, -2.0])
    for name in PENALTIES:
        if name != "group_lasso":
            assert kernels.prox(name, np.empty((0, 3)), 0.1).shape == (0, 3)
            assert kernels.prox(name, np.empty((3, 0)), 0.1).shape == (3, 0)
            assert kernels.prox(name, [], 0.1).shape == (0,)


@pytest.mark.usefixtures("isa")
def test_v_that_is_not_finite_is_refused():
    values = (math.nan, math.inf, -math.inf)
    for case, value, at in itertools.product(CASES, values, (0, 20, D - 1)):
        v = points()
        v[7, at] = value
        for n_threads in (1, 2):
            with pytest.raises(ValueError, match="v must be finite"):
                kernels.prox(case, v, 0.2, n_threads=n_threads)


WIDE = np.zeros(20)


BOX = {"name": "box", "upper": 1.0}
TWO_GROUPS = {"name": "group_lasso", "v": [1.0, 1.0], "groups": [1, 1]}
BAD = [
    ({"name": "l3"}, "name must .* got 'l3'"),
    ({"name": 3}, "name must .* got 3"),
    ({"gamma": -1.0}, "gamma must .* got -1.0"),
    ({"gamma": math.nan}, "gamma must .* got nan"),
    ({"gamma": math.inf}, "gamma must .* got inf"),
    ({"gamma": "1"}, "TypeError: gamma must .* got '1'"),
    ({"name": "pl", "gamma": 0.26}, "gamma must be at most 0.25 for pl, got 0.26"),
    ({"v": 1.0}, "v must have shape"),
    ({"v": np.zeros((2, 2, 2))}, "v must have shape"),
    ({"v": ["a"]}, "TypeError: v must be real numbers"),
    ({"v": [[1.0], [1.0, 2.0]]}, "v must be a rect"),
    ({"out": np.zeros(2)}, "out must be"),
    ({"v": WIDE[1:], "out": WIDE[:-1]}, "out must be v itself"),
    ({"n_threads": 0}, "n_threads must be"),
    ({"l2": 1.0}, "TypeError: l1 has no parameter 'l2'"),
    ({"name": L1(), "l2": 1.0}, "TypeError: parameters must be none .* got l2"),
    ({"name": "elastic_net", "l1_ratio": 2.0}, "l1_ratio must lie in .0, 1., got 2.0"),
    ({"name": "l2_ball", "radius": 0.0}, "radius must .* got 0.0"),
    ({"name": "l2_ball", "radius": math.nan}, "radius must .* got nan"),
    ({"name": "simplex", "total": 0.0}, "total must lie .* got 0.0"),
    ({"name": "simplex", "total": math.nan}, "total must lie .* got nan"),
    (BOX | {"lower": 2.0}, "lower must be at most"),
    (BOX | {"lower": math.nan}, "lower must not be"),
    (BOX | {"upper": "x"}, "TypeError: upper must be a number"),
    (BOX | {"lower": math.inf, "upper": math.inf}, "at most upper, lower below inf"),
    (BOX | {"lower": [0.0, 0.0], "upper": [1.0] * 3}, "numbers or have one length, got 2 and 3"),
    (BOX | {"lower": [0.0, 0.0]}, "v must have 2 coordinates, as many as the .* of box, got 1"),
    ({"name": "group_lasso"}, "TypeError: group_lasso needs .* groups"),
    ({"name": "group_lasso", "groups": [1, 1]}, "v must .* got 1"),
    *(
        ({"name": "group_lasso", "groups": groups}, "groups must be the sizes")
        for groups in ([], 1, [0, 1], [1.0], [[1]], [-1, 2])
    ),
    *(
        (TWO_GROUPS | {"weights": weights}, "weights must")
        for weights in ([1.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf])
    ),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(how, message):
    given = {"name": "l1", "v": [1.0], "gamma": 1.0} | how
    assert_refused(message, kernels.prox, *map(given.pop, ("name", "v", "gamma")), **given)
