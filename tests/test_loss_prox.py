"""The prox of a record's loss: reference, optimality, precision, extremes, clip, independence."""

import ctypes
import itertools
import math

import mpmath
import numpy as np
import pytest
from cases import for_each
from makers import assert_refused
from pairwise import pairwise
from scipy import LowLevelCallable

from dpkern import kernels
from dpkern import reference as ref
from dpkern.models.losses import Custom, Huber
from dpkern.reference.admm import effective_rows as reference_rows
from dpkern.reference.loss import block

POINTER = ctypes.POINTER(ctypes.c_double)
PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[POINTER] * 5, ctypes.c_void_p)


def points(data, seed=1, scale=0.5):
    return scale * np.random.default_rng(seed).standard_normal((data.n, data.d))


def effective_rows(data):
    V, square, ratio, *_ = reference_rows(data)
    return ratio[:, np.newaxis] * V, ratio * np.sqrt(square)


def custom(formula, **declared):
    """A user's loss from a formula (y, z) -> (value, first, second) in NumPy."""

    def fill(n, y, z, *outputs_and_params):
        values = formula(*(np.ctypeslib.as_array(a, (n,)) for a in (y, z)))
        for out, value in zip(outputs_and_params[:3], values, strict=True):
            if out and value is not None:
                np.ctypeslib.as_array(out, (n,))[:] = value

    function = PROTOTYPE(fill)
    return Custom(LowLevelCallable(function), **declared), function


@pairwise("isa", "plain_layout", "convex", clip=[0.05, math.inf])
def test_points_agree_with_their_twin_for_any_threads(make, layout, loss, clip):
    data = make(n=900, **layout)
    V = points(data)
    for gamma in (0.1, 40.0):
        X, t = kernels.loss_prox(data, V, gamma, loss=loss, clip=clip, n_threads=1)
        X_by_numpy, t_by_numpy = ref.loss_prox(data, V, gamma, loss=loss, clip=clip)
        # Around its root t + gamma phi' can be steep: a margin's rounding is magnified.
        np.testing.assert_allclose(t, t_by_numpy, rtol=1e-11, atol=1e-13 * (1.0 + gamma))
        np.testing.assert_allclose(X, X_by_numpy, rtol=1e-11, atol=1e-12 * (1.0 + gamma))
        for n_threads in (2, 7):
            again = kernels.loss_prox(data, V, gamma, loss=loss, clip=clip, n_threads=n_threads)
            np.testing.assert_array_equal(again[0], X)
            np.testing.assert_array_equal(again[1], t)


@for_each("p", [1, 7, 8, 9, 64, 130, 300, 1100, 9000])
@pytest.mark.usefixtures("isa")
def test_every_width_and_remainder(make, p):
    for n in (2, 9, 67):
        data = make(n=n, p=p, m=1, intercept=True)
        V = points(data)
        X, t = kernels.loss_prox(data, V, 2.0, loss="logistic", clip=1.0)
        X_by_numpy, t_by_numpy = ref.loss_prox(data, V, 2.0, loss="logistic", clip=1.0)
        np.testing.assert_allclose(t, t_by_numpy, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(X, X_by_numpy, rtol=1e-11, atol=1e-12)


@pairwise("isa", "plain_layout", "convex")
def test_unclipped_points_solve_the_optimality_condition(make, layout, loss):
    data = make(n=300, **layout)
    V = points(data)
    A, _ = effective_rows(data)
    for gamma in (0.01, 1.0, 1e3):
        X, t = kernels.loss_prox(data, V, gamma, loss=loss, clip=math.inf)
        np.testing.assert_allclose(X, V + t[:, np.newaxis] * A, rtol=1e-12, atol=1e-13)
        slope = block(loss, data.y, np.sum(A * X, axis=1))[1]
        scale = 1.0 + gamma * np.sum(A * A, axis=1) * 1.5 * loss.smoothness
        assert np.all(np.abs(t + gamma * slope) <= 1e-13 * scale * (1.0 + np.abs(t)))


@pytest.mark.usefixtures("isa")
def test_the_logistic_root_has_a_relative_error_below_1e_12(bare_records):
    """Rows of one feature at v = 0, where the margin is exact, from gamma |a|^2 = 1e-9 to 1e11."""
    cases = list(itertools.product(10.0 ** np.arange(-4, 5, 2), 10.0 ** np.arange(-1, 4), (-1, 1)))
    for gamma in {g for g, *_ in cases}:
        rows = [(a, y) for g, a, y in cases if g == gamma]
        X, y = (np.array(v, dtype=float) for v in zip(*rows, strict=True))
        data = bare_records(X.reshape(-1, 1), y, [0, len(y)])
        t = kernels.loss_prox(data, np.zeros((len(y), 1)), gamma, loss="logistic", clip=math.inf)[1]
        with mpmath.workdps(40):
            for one, (a, label) in zip(t, rows, strict=True):
                a, g = mpmath.mpf(a), mpmath.mpf(gamma)

                low, high = mpmath.mpf(0), g
                for _ in range(150):
                    middle = (low + high) / 2
                    if middle < g / (1 + mpmath.exp(middle * a * a)):
                        low = middle
                    else:
                        high = middle
                assert abs(one - label * low) <= 1e-12 * low


@pytest.mark.usefixtures("isa")
def test_the_squared_loss_has_its_closed_form(make):
    data = make(n=200, p=5)
    V = points(data)
    A, _ = effective_rows(data)
    t = kernels.loss_prox(data, V, 3.0, loss="squared", clip=math.inf)[1]
    closed = 3.0 * (data.y - np.sum(A * V, axis=1)) / (1.0 + 3.0 * np.sum(A * A, axis=1))
    np.testing.assert_allclose(t, closed, rtol=1e-13, atol=1e-15)


@pairwise("isa", "plain_layout", "convex")
def test_displacements_stay_within_the_clip_and_points_move_no_further_apart(make, layout, loss):
    data = make(n=400, **layout)
    V, W = points(data), points(data, seed=2)
    for gamma, clip in ((0.3, 0.2), (20.0, 1.0)):
        X, Y = (kernels.loss_prox(data, v, gamma, loss=loss, clip=clip)[0] for v in (V, W))
        moved = np.linalg.norm(X - V, axis=1)
        assert np.all(moved <= gamma * clip * (1.0 + 1e-14))
        apart = np.linalg.norm(X - Y, axis=1)
        assert np.all(apart <= np.linalg.norm(V - W, axis=1) * (1.0 + 1e-12))


@pairwise("isa", "convex")
def test_every_clamped_displacement_is_the_clamped_root(make, loss):
    data = make(n=300)
    V = points(data, scale=3.0)
    free = kernels.loss_prox(data, V, 2.0, loss=loss, clip=math.inf)[1]
    clipped = kernels.loss_prox(data, V, 2.0, loss=loss, clip=0.3)[1]
    lim = 0.6 / effective_rows(data)[1]
    np.testing.assert_allclose(clipped, np.clip(free, -lim, lim), rtol=1e-12)
    assert np.any(np.abs(free) > lim)


@pairwise("isa", "convex", gamma=[5e-324, 1e-300, 1.0, 1e300, 1e308])
def test_extreme_records_end_and_stay_within_the_clip(bare_records, loss, gamma):
    rows = [0.0, 5e-324, 1e-170, 1e-3, 1.0, 1e9, 1e153, 1e154, 1e160, 1e300, 1.7e308]
    starts = [0.0, -1e-300, 1.0, -1e9, 1e150, -1e308]
    cases = np.array(list(itertools.product(rows, starts, (-1.0, 1.0))))
    data = bare_records(cases[:, :1].copy(), cases[:, 2].copy(), [0, len(cases)])
    V = cases[:, 1:2].copy()
    for clip in (1e-3 / gamma, 1.0, math.inf):
        if not gamma * clip >= 2.0**-1000 or (gamma * clip > 1e308 and clip < math.inf):
            continue
        _, t = kernels.loss_prox(data, V, gamma, loss=loss, clip=clip)
        assert not np.any(np.isnan(t))
        with np.errstate(over="ignore"):
            assert np.all(np.abs(t) * cases[:, 0] <= gamma * clip)


@pairwise("isa", "convex")
def test_a_record_has_the_same_bits_whoever_its_neighbours_are(make, loss):
    """Lanes that are solved wait for the others, unchanged."""
    data = make(n=64, p=3, m=1)
    V = points(data, scale=2.0)
    calm = kernels.loss_prox(data, V, 5.0, loss=loss, clip=0.5)[1]
    wild = data.X.copy()
    wild[1::2] *= 10.0 ** np.linspace(-150, 150, 32)[:, np.newaxis]
    data.X = wild
    np.testing.assert_array_equal(
        kernels.loss_prox(data, V, 5.0, loss=loss, clip=0.5)[1][::2], calm[::2]
    )


def huber(y, z):
    r = z - y
    small = np.abs(r) <= 0.7
    return 0.0, np.clip(r, -0.7, 0.7), np.where(small, 1.0, 0.0)


SECOND = {
    "right": None,
    "zero": 0.0,
    "much too small": 1e-9,
    "much too large": 1e30,
    "negative": -1.0,
    "infinite": math.inf,
    "not a number": math.nan,
    "not written": "nothing",
}


@for_each("second", SECOND.values(), ids=SECOND)
@for_each("clip", [0.4, math.inf])
def test_a_custom_loss_needs_its_first_derivative_only(make, second, clip):
    def formula(y, z):
        value, first, right = huber(y, z)
        return value, first, right if second is None else None if second == "nothing" else second

    loss, _ = custom(formula, task="regression")
    data = make(n=70, p=4)
    V = points(data, scale=2.0)
    for gamma in (0.5, 30.0):
        ours = kernels.loss_prox(data, V, gamma, loss=loss, clip=clip)[1]
        built_in = kernels.loss_prox(data, V, gamma, loss=Huber(0.7), clip=clip)[1]
        np.testing.assert_allclose(ours, built_in, rtol=1e-11, atol=1e-13)


@for_each("bad", [math.nan, math.inf, -math.inf, None])
def test_a_derivative_that_is_not_finite_moves_nothing(make, bad):
    loss, _ = custom(lambda y, z: (0.0, bad, 1.0))
    data = make(n=70)
    V = points(data)
    X, t = kernels.loss_prox(data, V, 2.0, loss=loss, clip=1.0)
    np.testing.assert_array_equal(t, 0.0)
    np.testing.assert_array_equal(X, V)


def test_a_decreasing_derivative_ends_within_the_clip(make):
    """Declared convex and not: nothing can be said of the point, but the clip holds."""
    loss, _ = custom(lambda y, z: (0.0, -np.sign(z) * 1e3 + np.sin(1e6 * z), 1.0))
    data = make(n=70)
    t = kernels.loss_prox(data, points(data), 2.0, loss=loss, clip=1.0)[1]
    assert np.all(np.abs(t) * np.linalg.norm(data.X, axis=1) <= 2.0)


@pairwise("plain_layout")
def test_out_is_written_and_may_be_the_points(make, layout):
    data = make(n=100, **layout)
    V = points(data)
    X, t = kernels.loss_prox(data, V, 1.0, loss="logistic", clip=1.0)
    out = np.empty_like(V)
    assert kernels.loss_prox(data, V, 1.0, loss="logistic", clip=1.0, out=out)[0] is out
    np.testing.assert_array_equal(out, X)
    again, t_again = kernels.loss_prox(data, V, 1.0, loss="logistic", clip=1.0, out=V)
    assert again is V
    np.testing.assert_array_equal(V, X)
    np.testing.assert_array_equal(t_again, t)


def not_convex():
    return custom(huber, convex=False)[0]


BAD = [
    ({"V": np.zeros((3, 11))}, r"V must have shape \(300, 11\)"),
    ({"V": np.full((300, 11), np.inf)}, "V must be finite"),
    ({"V": "zeros"}, "TypeError: V must be real"),
    ({"gamma": 0.0}, "gamma must .* got 0.0"),
    ({"gamma": math.inf}, "gamma must .* got inf"),
    ({"gamma": "1"}, "TypeError: gamma must .* got '1'"),
    ({"clip": -1.0}, "clip must .* got -1.0"),
    ({"gamma": 1e-200, "clip": 1e-200}, "gamma times clip must .* got 0.0"),
    ({"gamma": 1e200, "clip": 1e200}, "gamma times clip must .* got inf"),
    ({"loss": not_convex()}, "loss must be convex, got 'custom'"),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(make, how, message):
    good = {"V": np.zeros((300, 11)), "gamma": 1.0, "loss": "logistic", "clip": 1.0}
    assert_refused(message, kernels.loss_prox, make(), **(good | how))


def test_an_out_that_overlaps_the_points_is_refused(make):
    data = make()
    memory = np.zeros((301, 11))
    with pytest.raises(ValueError, match="out must be V itself or share no memory with it"):
        kernels.loss_prox(data, memory[:-1], 1.0, loss="logistic", clip=1.0, out=memory[1:])
