"""Losses along a line: reference, losses at points, exact clamped sums, threads, bad input."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from adversarial import every_loss
from cases import for_each
from makers import assert_refused
from pairwise import pairwise
from rounding import is_fused

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.kernels.grids import finest_grid

STEPS = np.array([0.0, 1.0, -0.5, 0.25, 2.0, 1e-3, 40.0])
BOUNDS = np.array([1.0, 0.3, 0.3, 5.0, 1e-3, 1e-3, 77.0])


def models(data, seed=1, scale=0.5):
    rng = np.random.default_rng(seed)
    return scale * rng.standard_normal((2, data.m, data.d))


@pairwise("isa", "layout", "loss")
def test_sums_agree_with_their_twin_for_any_threads(make, layout, loss):
    data = make(n=3000, **layout)
    w, p = models(data)
    for model, direction in ((w, p), (w[0], p), (w, p[0])):
        by_numpy = ref.line_search(data, model, direction, loss=loss, steps=STEPS)
        alone = kernels.line_search(data, model, direction, loss=loss, steps=STEPS, n_threads=1)
        np.testing.assert_allclose(alone, by_numpy, rtol=1e-12)
        for n_threads in (2, 3, 7):
            again = kernels.line_search(
                data, model, direction, loss=loss, steps=STEPS, n_threads=n_threads
            )
            np.testing.assert_array_equal(again, alone)


@pairwise("isa", "layout", "loss")
def test_sums_are_the_losses_at_the_points_of_the_line(make, layout, loss):
    data = make(n=700, **layout)
    w, p = models(data)
    sums = kernels.line_search(data, w, p, loss=loss, steps=STEPS)
    for k, a in enumerate(STEPS):
        there = kernels.glm_losses(data, w - a * p, loss=loss)
        np.testing.assert_allclose(sums[:, k], there, rtol=1e-12)


@pairwise("isa", n=[1, 31, 33, 127, 300], p=[1, 9, 130, 1200, 9000])
def test_every_width_and_remainder(make, bare_records, n, p):
    """Rows by eights, one by one, asked for ahead or not; blocks and strips that are not full."""
    data = make(n=n, p=p, m=1, row_bound=2.0)
    w, direction = models(data, scale=1 / math.sqrt(p))[:, 0]
    for loss in ("logistic", "squared"):
        for kept in (None, kernels.glm_norms(data)):
            data.row_norms = kept
            sums = kernels.line_search(data, w, direction, loss=loss, steps=STEPS)
            by_numpy = ref.line_search(data, w, direction, loss=loss, steps=STEPS)
            np.testing.assert_allclose(sums, by_numpy, rtol=1e-12)


@pytest.mark.usefixtures("isa")
def test_small_logistic_losses_keep_their_relative_precision(bare_records):
    """Sums are logarithms of products of 1 + exp(-z): those of tiny factors must not be lost."""
    for margin in (30.0, 300.0, 700.0):
        data = bare_records(np.full((500, 1), margin), np.ones(500), [0, 500])
        sums = kernels.line_search(data, [1.0], [1.0], loss="logistic", steps=[0.0, 0.01])
        exact = [500 * math.exp(-margin * t) for t in (1.0, 0.99)]
        np.testing.assert_allclose(sums[0], exact, rtol=1e-11)
    data = bare_records(np.full((500, 1), 1e5), -np.ones(500), [0, 500])
    sums = kernels.line_search(data, [1.0], [1.0], loss="logistic", steps=[0.0, 2.0])
    np.testing.assert_array_equal(sums[0, 0], 500 * 1e5)
    assert 0.0 <= sums[0, 1] < 1e-300


@pytest.mark.usefixtures("isa")
def test_infinite_and_undefined_losses_show_in_plain_sums(bare_records):
    data = bare_records(np.array([[1e200, 1e200], [1.0, 1.0]]), np.ones(2), [0, 1, 2])
    p = np.array([1e200, -1e200])
    sums = kernels.line_search(data, [0.0, 0.0], p, loss="squared", steps=[0.0, 1.0])
    assert np.isnan(sums[0]).all()
    assert sums[1, 1] == 0.5
    far = kernels.line_search(data, [1.0, 0.0], [1.0, 0.0], loss="squared", steps=[0.0, 2.0])
    np.testing.assert_array_equal(far[0], math.inf)


def exact_decrease(here, there, weight, bound, q):
    """round_q(clamp(weight (here - there), -bound, bound)) as the kernel defines it."""
    v = weight * (here - there)  # two roundings, before the clamp
    if math.isnan(v):
        return 0
    inner = Fraction(bound) // Fraction(q)
    if math.isinf(v):
        return int(math.copysign(inner, v))
    return round(max(-inner, min(inner, Fraction(v) / Fraction(q))))


def values_at(loss, data, w, p, a):
    """The compiled losses at z - a dz, record by record."""
    z, dz = kernels.glm_margins(data, w), kernels.glm_margins(replace(data, margin_offset=None), p)
    if not is_fused():
        at = np.array([z_i + (-a) * dz_i for z_i, dz_i in zip(z, dz, strict=True)])
    else:
        exact = [
            Fraction(z_i) - Fraction(a) * Fraction(dz_i) for z_i, dz_i in zip(z, dz, strict=True)
        ]
        at = np.array([float(t) for t in exact])  # one rounding, as a fused operation has
    out = np.empty((3, data.n))
    number = _core.loss_names().index(loss.name)
    _core.loss_block(_core.Loss(number, np.array([*loss.params, 0.0])), data.y, at, *out)
    return out[0]


@pairwise("isa", "layout", "loss", depth=[0, 20, 36])
def test_clamped_sums_are_those_of_exact_arithmetic(make, layout, loss, depth, steps):
    data = make(n=400, m=3, **layout)
    w, p = models(data)[:, 0]
    grids = np.array([finest_grid(data.n, b) * 2.0**depth for b in BOUNDS])
    given = None if depth == 0 else grids
    sums = kernels.line_search(data, w, p, loss=loss, steps=STEPS, bound=BOUNDS, grid=given)
    here = values_at(loss, data, w, p, 0.0)
    weight = np.ones(data.n) if data.record_weight is None else data.record_weight
    for k, (a, bound, q) in enumerate(zip(STEPS, BOUNDS, grids, strict=True)):
        there = values_at(loss, data, w, p, a)
        terms = [exact_decrease(*own, bound, q) for own in zip(here, there, weight, strict=True)]
        exact = [sum(terms[data.offsets[j] : data.offsets[j + 1]]) for j in range(data.m)]
        assert steps(sums[:, k], q) == exact


@pairwise("isa", "layout", "loss")
def test_clamped_sums_agree_with_their_twin(make, layout, loss):
    data = make(n=3000, m=1, **layout)
    w, p = models(data)[:, 0]
    how = {"loss": loss, "steps": STEPS, "bound": BOUNDS, "grid": BOUNDS.min() * 2.0**-20}
    how["grid"] = 2.0 ** math.floor(math.log2(how["grid"]))
    np.testing.assert_allclose(
        kernels.line_search(data, w, p, **how),
        ref.line_search(data, w, p, **how),
        rtol=1e-12,
        atol=data.n * how["grid"],
    )


EXTREME = [0.0, -0.0, 1.0, 5e-324, 1e-160, 1e154, -1e200, 1.7976931348623157e308]


@pytest.mark.usefixtures("isa")
@every_loss
def test_one_record_never_adds_more_than_its_bound(bare_records, loss, steps):
    """Bounds that are no multiples of the grid, on fine and coarse grids; records that overflow."""
    candidates = np.array([-1e3, -1.0, 1e-9, 1.0, 1e300])
    for x in EXTREME:
        for y in (-1.0, 1.0, 1e300):
            data = bare_records(np.array([[x, 1.0]]), np.array([y]), [0, 1])
            for w, p in (([1.0, 1.0], [1.0, -1.0]), ([1e200, 0.0], [-1e200, 1e200])):
                for bound in (0.1, math.pi, 2.0**-300, 1.0, 1 + 2.0**-52):
                    for depth in (0, 21, 45):
                        q = finest_grid(1, bound) * 2.0**depth
                        v = kernels.line_search(
                            data, w, p, loss=loss, steps=candidates, bound=[bound] * 5, grid=q
                        )
                        for k in steps(v, q):
                            assert abs(k) * Fraction(q) <= Fraction(bound)


@pytest.mark.usefixtures("isa")
def test_the_clamp_is_reached(bare_records):
    data = bare_records(np.array([[1.0]]), np.array([0.0]), [0, 1])
    how = {"loss": "squared", "steps": [1.0, -1.0], "bound": [0.7, 0.7], "grid": 2.0**-10}
    v = kernels.line_search(data, [100.0], [100.0], **how)
    inner = math.floor(0.7 * 2**10) / 2**10
    np.testing.assert_array_equal(v, [[inner, -inner]])


@pytest.mark.usefixtures("isa")
def test_a_nan_counts_as_zero_and_infinities_as_the_bound(bare_records):
    X = np.array([[1e200, 1e200], [1e200, 0.0]])
    data = bare_records(X, np.ones(2), [0, 1, 2])
    how = {"loss": "squared", "steps": [1.0], "bound": [2.0], "grid": 2.0**-10}
    v = kernels.line_search(data, [0.0, 0.0], [1e200, -1e200], **how)
    np.testing.assert_array_equal(v, [[0.0], [-2.0]])


@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_a_candidate_by_at_most_twice_its_bound(make, steps):
    data = make(n=40, m=1)
    w, p = models(data)[:, 0]
    how = {"loss": "squared", "steps": STEPS, "bound": BOUNDS}
    before = kernels.line_search(data, w, p, **how)
    for x, y in ((1e9, 1e9), (-1e300, 1.0), (0.0, -1e200)):
        X, labels = data.X.copy(), data.y.copy()
        data.X[7], data.y[7] = x, y
        after = kernels.line_search(data, w, p, **how)
        data.X, data.y = X, labels
        for k, bound in enumerate(BOUNDS):
            q = finest_grid(40, bound)
            moved = abs(steps(after[:, k], q)[0] - steps(before[:, k], q)[0])
            assert moved * Fraction(q) <= 2 * Fraction(bound)


BAD_INPUT = [
    ({"w": np.zeros(10)}, "w must have shape"),
    ({"p": np.zeros(10)}, "p must have shape"),
    ({"p": np.full(11, math.nan)}, "p must be finite"),
    ({"p": "down"}, "TypeError: p must be real"),
    ({"steps": 1.0}, "steps must have shape"),
    ({"steps": []}, "steps must have shape"),
    ({"steps": np.ones((1, 3))}, "steps must have shape"),
    ({"steps": [1.0, math.nan, 2.0]}, "steps must be finite"),
    ({"steps": ["a"]}, "TypeError: steps must be real"),
    ({"bound": 1.0}, "bound must have shape"),
    ({"bound": [1.0, 1.0]}, "bound must have shape"),
    ({"bound": [1.0, 0.0, 1.0]}, "bound must be positive"),
    ({"bound": [1.0, math.nan, 1.0]}, "bound must be positive"),
    ({"bound": [math.inf] * 3}, "bound must be positive"),
    ({"bound": [1e300] * 3}, "bound must be at most 2\\^452"),
    ({"grid": 2.0**-20}, "grid must be None without bound"),
    ({"bound": [1.0] * 3, "grid": math.nan}, "grid must be a power"),
    ({"bound": [1.0, 1.0, 2.0**20], "grid": 2.0**-30}, "grid must be at least"),
    ({"bound": [1.0] * 3, "grid": 2.0**-4}, "at most bound / 32"),
]


@for_each(("how", "message"), BAD_INPUT)
def test_bad_input_is_refused_by_name(make, how, message):
    given = {"w": np.zeros(11), "p": np.ones(11), "loss": "logistic", "steps": [1.0, 2.0, 3.0]}
    assert_refused(message, kernels.line_search, make(), **(given | how))
