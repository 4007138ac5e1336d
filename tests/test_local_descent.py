"""Local runs: the compiled kernel, its reference, and one step at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from makers import FUSED, assert_refused, assert_same_on
from pairwise import pairwise
from rounding import is_fused

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.models.losses import LOSSES
from dpkern.models.penalties import L1, PL, Box, ElasticNet, L2Ball, Simplex
from dpkern.privacy import NoiseStream

CLIP, GRID = 0.7, 2.0**-30

OPTIONS = [
    {},
    {"l2": 0.3},
    {"l2": 0.1, "smooth": PL(0.05)},
    {"smooth": PL(0.05), "prox": L1(0.02), "penalize_intercept": False},
    {"l2": 0.1, "prox": ElasticNet(0.1, l1_ratio=0.3)},
    {"l2": 0.1, "prox": L2Ball(0.3), "penalize_intercept": False},
    {"prox": Simplex()},
    {"sigma": 0.5},
    {"sigma": np.array([0.1, 0.0, 2.0, 0.3]), "prox": L1(0.02)},
    {"anchor": 1.3},
    {"anchor": 0.4, "l2": 0.1, "prox": L1(0.02), "penalize_intercept": False},
]


def run(descent, data, w, **options):
    eta = np.array([0.5, 0.25, 0.5, 0.1])
    rng = {"rng": 5} if "sigma" in options else {}
    defaults = {"loss": "logistic", "clip": CLIP, "steps": 4, "step_size": eta, "grid": GRID}
    return descent(data, w, **(defaults | rng | options))


def finite_run(loss, w, options):
    """Start and options with which iterates stay finite, also without clip and curvature bound."""
    if "clip" in options and math.isinf(loss.smoothness):
        return w / np.linalg.norm(w), options | {"step_size": 1e-3}
    return w, options


@pairwise("isa", "layout", options=OPTIONS)
def test_kernel_agrees_with_its_twin_on_every_kind_of_rows(make, layout, options):
    data = make(n=60, p=9, **layout)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    # A margin that rounds the other way may move a record by one step of the grid.
    off = {"atol": 60 * GRID, "rtol": 1e-9}
    np.testing.assert_allclose(
        run(kernels.glm_local_descent, data, w, **options),
        run(ref.glm_local_descent, data, w, **options),
        **off,
    )


@pairwise("isa", options=[{}, {"sigma": 0.5}, {"anchor": 1.3}], chosen=[[0], [1, 3], [0, 1, 2, 3]])
def test_chosen_silos_run_as_with_all_and_the_others_stay_where_they_start(make, options, chosen):
    data, chosen = make(n=60, p=9), np.array(chosen)
    w = np.random.default_rng(0).normal(0, 0.3, (data.m, data.d))
    expected = w.copy()
    expected[chosen] = run(kernels.glm_local_descent, data, w, **options)[chosen]
    ours = run(kernels.glm_local_descent, data, w, silos=chosen, **options)
    np.testing.assert_array_equal(ours, expected)
    by_numpy = run(ref.glm_local_descent, data, w, silos=chosen, **options)
    np.testing.assert_allclose(ours, by_numpy, rtol=1e-9, atol=60 * GRID)


def batches_of(data, steps, n, seed=0):
    """n records of every silo for every step, shape (m, steps, n)."""
    rng = np.random.default_rng(seed)
    return np.array([
        [np.sort(rng.choice(np.arange(a, b), n, replace=False)) for _ in range(steps)]
        for a, b in zip(data.offsets, data.offsets[1:], strict=False)
    ])  # fmt: skip


@pairwise("isa", "layout", options=OPTIONS)
def test_steps_on_batches_agree_with_the_twin_on_every_kind_of_rows(make, layout, options):
    data = make(n=60, p=9, **layout)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    own = batches_of(data, 4, min(5, int(np.diff(data.offsets).min())))
    np.testing.assert_allclose(
        run(kernels.glm_local_descent, data, w, batches=own, **options),
        run(ref.glm_local_descent, data, w, batches=own, **options),
        atol=60 * GRID, rtol=1e-9,
    )  # fmt: skip


def test_batches_of_all_records_change_no_bit(make):
    data = make(n=80, p=7)
    equal = type(data)(data.X, data.y, np.arange(0, 81, 20))
    own = np.tile(np.arange(80).reshape(4, 1, 20), (1, 4, 1))
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    for options in ({}, {"sigma": 0.5}, {"clip": math.inf, "grid": None}):
        np.testing.assert_array_equal(
            run(kernels.glm_local_descent, equal, w, batches=own, **options),
            run(kernels.glm_local_descent, equal, w, **options),
        )


@for_each("loss", [make() for make in LOSSES.values()], ids=repr)
def test_kernel_agrees_with_its_twin_for_every_loss_and_for_float_sums(make, loss):
    data = make(n=80, p=5, intercept=True)
    w = np.random.default_rng(0).normal(0, 0.3, (data.m, data.d))
    for options in ({}, {"clip": math.inf, "grid": None}, {"steps": 7, "step_size": 0.3}):
        start, options = finite_run(loss, w, options)
        ours = run(kernels.glm_local_descent, data, start, loss=loss, **options)
        by_numpy = run(ref.glm_local_descent, data, start, loss=loss, **options)
        np.testing.assert_allclose(ours, by_numpy, rtol=1e-9, atol=80 * GRID)


@for_each("options", OPTIONS[:7], ids=str)
def test_steps_one_at_a_time_have_the_same_bits(make, options):
    data = make(n=200, p=11, intercept=True)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    whole = run(kernels.glm_local_descent, data, w, **options)
    for eta in (0.5, 0.25, 0.5, 0.1):
        w = run(kernels.glm_local_descent, data, w, steps=1, step_size=eta, **options)
    np.testing.assert_array_equal(w, whole)


def test_one_plain_step_is_a_step_along_the_gradient_kernels_sum(make):
    data = make(n=200, p=11)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    sums = kernels.glm_gradient(data, w, clip=CLIP, grid=GRID)
    stepped = run(kernels.glm_local_descent, data, w, steps=1, step_size=0.5)
    expected = w - 0.5 * sums / np.diff(data.offsets)[:, np.newaxis]
    np.testing.assert_allclose(stepped, expected, rtol=1e-15)


def test_anchored_steps_end_at_the_prox_of_the_mean_loss(make):
    """Where the mean clipped gradient is anchor (w_j - x), the intercept's entry included."""
    data = make(n=60, p=5, intercept=True)
    v = np.random.default_rng(0).normal(0, 1.0, (data.m, data.d))
    exact = {"clip": 0.3, "grid": 2.0**-45, "penalize_intercept": False}
    x = run(kernels.glm_local_descent, data, v, anchor=4.0, steps=200, step_size=0.1, **exact)
    sums = kernels.glm_gradient(data, x, clip=0.3, grid=2.0**-45)
    np.testing.assert_allclose(
        sums / np.diff(data.offsets)[:, np.newaxis], 4.0 * (v - x), atol=1e-12
    )


@pytest.mark.isa
@pairwise("layout", options=OPTIONS)
def test_same_bits_for_any_number_of_threads_and_instruction_set_with_fma(make, layout, options):
    data = make(n=500, p=40, **layout)
    w = np.zeros(data.d)
    one, *more = [
        run(kernels.glm_local_descent, data, w, n_threads=k, **options) for k in (1, 2, 3, 7)
    ]
    assert all(np.array_equal(one, other) for other in more)
    assert_same_on(FUSED, lambda: [run(kernels.glm_local_descent, data, w, **options)])


def fma(a, b, c):
    """a b + c as the instruction set in use rounds it: once where it has a fused multiply-add."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if not is_fused():
        return a * b + c
    flat = zip(*(v.ravel().tolist() for v in (a, b, c)), strict=True)
    return np.reshape([float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in flat], a.shape)


def loop(
    data, w, *, loss, clip, steps, step_size, l2=0.0, smooth=None, prox=None,
    penalize_intercept=True, sigma=None, grid=None, rng=None, bare_records=None, anchor=0.0,
    batches=None,
):  # fmt: skip
    """The formula, one kernel call after the other: one for the gradient, one for all noise."""
    m, d = data.m, data.d
    theta = start = np.array(np.broadcast_to(w, (m, d)))
    noise = np.zeros((m, steps * d))
    if sigma is not None:
        noise = kernels.gaussian((m, steps * d), sigma, grid=grid, rng=rng)
    p = d - (data.intercept and not penalize_intercept)
    offsets = data.offsets if batches is None else batches.shape[2] * np.arange(m + 1)
    n = np.diff(offsets)[:, np.newaxis]
    for t, eta in enumerate(np.broadcast_to(step_size, (steps,)).tolist()):
        rows = None if batches is None else (batches[:, t].ravel(), offsets)
        g = kernels.glm_gradient(data, theta, loss=loss, clip=clip, grid=grid, rows=rows)
        g = (g + noise[:, t * d : t * d + d]) / n
        pull = np.full((m, 1), l2)
        if smooth is not None:
            number = _core.smooth_names().index("pl")
            norms = kernels.glm_norms(bare_records(theta[:, :p].copy(), np.ones(m), [0, m]))
            factors = [_core.smooth_factor(number, norm) for norm in norms]
            pull += smooth.strength * np.array(factors)[:, np.newaxis]
        g = fma(np.where(np.arange(d) < p, pull, 0.0), theta, g)
        theta = fma(-eta, fma(anchor, theta - start, g), theta)
        if prox is not None:
            theta[:, :p] = kernels.prox(prox, theta[:, :p], eta)
    return theta


@pairwise(
    "isa",
    "layout",
    options=[*OPTIONS, {"loss": "squared"}, {"clip": math.inf, "grid": None, "l2": 0.1}],
)
def test_steps_have_the_bits_of_one_kernel_call_after_the_other(
    make, bare_records, layout, options
):
    data = make(n=90, p=9, **layout)
    own = batches_of(data, 4, min(7, int(np.diff(data.offsets).min())))
    for w in np.random.default_rng(0).normal(0, 0.3, (2, data.m, data.d)):
        for more in ({}, {"batches": own}):
            np.testing.assert_array_equal(
                run(kernels.glm_local_descent, data, w, **options, **more),
                run(loop, data, w, bare_records=bare_records, **options, **more),
            )


@for_each("p", [1, 8, 77, 600], ids="{} features".format)
@for_each("loss", [make() for make in LOSSES.values()], ids=repr)
def test_every_loss_and_width_has_the_bits_of_one_kernel_call_after_the_other(make, loss, p):
    for options in ({}, {"clip": math.inf, "grid": None}):
        data = make(n=60, p=p, row_bound=1.5)
        data.row_norms = kernels.glm_norms(data) if options else None
        w, options = finite_run(loss, np.random.default_rng(0).normal(0, 0.3, data.d), options)
        np.testing.assert_array_equal(
            run(kernels.glm_local_descent, data, w, loss=loss, **options),
            run(loop, data, w, loss=loss, **options),
        )


@pytest.mark.usefixtures("isa")
@for_each(
    ("d", "steps"),
    [(1, 7000), (5, 1300), (127, 60), (128, 60), (129, 60), (1023, 9), (1024, 9), (3000, 7)],
)
def test_noise_of_every_step_is_that_of_one_call(bare_records, d, steps):
    """Rows of zeros leave the noise alone: w_K = -sum_t eta_t z_t, exactly for powers of two."""
    m, grid, sigma = 3, 2.0**-20, np.array([2.0**-12, 0.0, 2.0**-11])
    data = bare_records(np.zeros((m, d)), np.ones(m), np.arange(m + 1))
    eta = 2.0 ** np.random.default_rng(0).integers(0, 12, steps)
    z = kernels.gaussian((m, steps * d), sigma, grid=grid, rng=9).reshape(m, steps, d)
    assert np.any(z[2, -1])
    for n_threads in (1, 2):
        w = kernels.glm_local_descent(
            data, np.zeros(d), loss="squared", clip=1.0, steps=steps, step_size=eta, sigma=sigma,
            grid=grid, rng=9, n_threads=n_threads,
        )  # fmt: skip
        np.testing.assert_array_equal(w, -np.einsum("t,mtd->md", eta, z))


def test_a_call_takes_one_release_of_a_stream_where_it_needs_noise(make):
    data = make(n=60, p=3)
    stream, same = NoiseStream(4), NoiseStream(4)
    for options in ({}, {"sigma": 0.5}, {"sigma": 0.25}):
        ours = run(kernels.glm_local_descent, data, np.zeros(3), **options, rng=stream)
        np.testing.assert_array_equal(ours, run(loop, data, np.zeros(3), **options, rng=same))
    np.testing.assert_array_equal(
        kernels.gaussian(3, 1.0, rng=stream), kernels.gaussian(3, 1.0, rng=same)
    )


BAD = [
    ({"w": np.zeros(4)}, r"w must have shape \(3,\) or \(4, 3\)"),
    ({"w": np.full(3, math.nan)}, "w must be finite"),
    ({"steps": 0}, "steps must .* got 0"),
    ({"step_size": -1.0}, "step_size must be positive"),
    ({"step_size": math.nan}, "step_size must be positive and finite"),
    ({"step_size": math.inf}, "step_size must be positive and finite"),
    ({"step_size": [0.1, 0.2]}, "step_size must be a number or have shape"),
    ({"l2": -1.0}, "l2 must .* got -1"),
    ({"l2": math.inf}, "l2 must .* got inf"),
    ({"smooth": L1(0.1)}, "smooth must be one of pl, got 'l1'"),
    ({"prox": PL(0.6)}, "step_size times the strength of prox must .* got 0.3"),
    ({"prox": Box([0.0] * 4, 1.0)}, "the part of w that prox acts on must .* got 3"),
    ({"prox": "l3"}, "must be one of .*got 'l3'"),
    ({"sigma": 1.0, "clip": math.inf, "grid": None}, "sigma must be None where clip is infinite"),
    ({"sigma": -1.0}, "sigma must be finite and at least 0"),
    ({"sigma": math.nan}, "sigma must be finite and at least 0"),
    ({"sigma": 8.0}, "sigma must be at most 2\\^32 grid"),
    ({"sigma": [1.0, 2.0]}, "sigma must be a number or have shape"),
    ({"grid": 0.5}, "grid must be at most"),
    ({"silos": [0, 1]}, "silos must be an int64 array"),
    ({"silos": np.array([1, 0])}, "silos must be distinct and increasing in 0 .. 3, got others"),
    ({"silos": np.array([3, 4])}, "silos must be distinct and increasing in 0 .. 3, got others"),
    ({"silos": np.empty(0, dtype=np.int64)}, "silos must hold at least one"),
]


def test_bad_arguments_are_refused_by_name(make):
    data = make(n=60, p=3)
    for bad, message in BAD:
        w = bad.get("w", np.zeros(3))
        options = {name: value for name, value in bad.items() if name != "w"}
        assert_refused(message, run, kernels.glm_local_descent, data, w, **options)


def test_batches_that_are_not_records_of_their_silo_are_refused_by_name(make):
    data = make(n=60, p=3)
    good = batches_of(data, 4, 5)
    outside, other, twice, falling = (good.copy() for _ in range(4))
    outside[-1, 2, -1] = 60
    other[1, 0, 0] = data.offsets[1] - 1
    twice[0, 0, 1] = twice[0, 0, 0]
    falling[2, 3] = falling[2, 3, ::-1]
    run(kernels.glm_local_descent, data, np.zeros(3), batches=good)
    for bad, message in (
        (outside, "batches must hold distinct records of the silo"),
        (other, "batches must hold distinct records of the silo"),
        (twice, "batches must hold distinct records of the silo"),
        (falling, "in increasing order"),
        (
            good[:, :3],
            r"batches must be .* of shape \(4, 4, n\), n >= 1, got int64 of shape \(4, 3, 5\)",
        ),
        (good[..., :0], "n >= 1, got int64 of shape"),
        (good.astype(np.int32), "batches must be an int64 array"),
        (good[0], "batches must be an int64 array"),
    ):
        assert_refused(message, run, kernels.glm_local_descent, data, np.zeros(3), batches=bad)
    with pytest.raises(ValueError, match="grid must be at least"):
        run(kernels.glm_local_descent, data, np.zeros(3), batches=good, grid=2.0**-51)


@for_each(
    ("bad", "message"),
    [
        ({"steps": 1.5}, "steps must .* got 1.5"),
        ({"steps": True}, "steps must .* got True"),
        ({"step_size": "auto"}, "step_size must be real"),
        ({"l2": None}, "l2 must .* got None"),
        ({"smooth": 0.1}, "smooth must be a name or a Term, got 0.1"),
        ({"prox": (L1(), 0.1)}, "prox must be a name or a Term"),
        ({"penalize_intercept": 1}, "penalize_intercept must be True or False"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused_by_name(make, bad, message):
    with pytest.raises(TypeError, match=message):
        run(kernels.glm_local_descent, make(n=60, p=3), np.zeros(3), **bad)
