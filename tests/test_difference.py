"""Differences of clipped gradients: reference, margins kept, exact bound and sums, telescoping."""

import itertools
import math

import numpy as np
import pytest
from adversarial import (
    FLUSH,
    ROW_OPTIONS,
    anywhere,
    coarsest_grid,
    every_loss,
    one_record,
    random_cases,
    rows,
)
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from makers import assert_refused, options_of
from pairwise import pairwise

from dpkern import SiloData, kernels
from dpkern import reference as ref
from dpkern.kernels.grids import finest_grid

BOUNDS = [(0.3, 0.4), (0.3, math.inf), (math.inf, 0.4), (math.inf, math.inf)]


def points(data, seed=1, scale=0.5):
    rng = np.random.default_rng(seed)
    scale /= math.sqrt(data.d / 11)
    return scale * rng.standard_normal((2, data.m, data.d))


def batch_of(data, sizes, seed=4):
    rng = np.random.default_rng(seed)
    rows = [
        rng.integers(data.offsets[j], data.offsets[j + 1], size) for j, size in enumerate(sizes)
    ]
    return np.concatenate(rows), np.cumsum([0, *sizes])


@pairwise("isa", "layout", "loss")
def test_difference_agrees_with_its_reference(make, layout, loss):
    data = make(n=400, **layout)
    new, old = points(data)
    batch = batch_of(data, [5, 0, 295, 1])
    for clip, gradient_clip in BOUNDS:
        grid = None if math.isinf(clip) else 2.0**-35
        for a, b, some in ((new, old, None), (new[0], old, batch), (new, old[0], batch)):
            how = dict(loss=loss, clip=clip, gradient_clip=gradient_clip, grid=grid, rows=some)
            how["silo_weight"] = np.linspace(0.1, 1.0, data.m)
            np.testing.assert_allclose(
                kernels.glm_difference(data, a, b, **how),
                ref.glm_difference(data, a, b, **how),
                rtol=1e-12,
                atol=data.n * (grid or 1e-14),
            )


FORMS = {"plain": {}, "float32": {"dtype": np.float32}, "affine": {"affine": True}}
WIDTHS = {
    "by blocks": (9, 100),
    "one by one": (1024, 260),
    "one by one, not copied": (1100, 260),
    "one by one in any cache": (2200, 20),
}


@pairwise("isa", "loss", width=WIDTHS, form=FORMS)
def test_every_way_through_the_rows_gives_the_same_bits(make, loss, width, form):
    """Rows by blocks or one by one, which the share of a thread decides; margins and norms kept or
    not; on one thread or many."""
    p, n = width
    data = make(n=n, p=p, m=2, intercept=True, row_bound=20.0, **form)
    new, old = points(data)
    for clip, gradient_clip in BOUNDS[::3]:
        how = {"loss": loss, "clip": clip, "gradient_clip": gradient_clip}
        first = kernels.glm_difference(data, new, old, n_threads=1, **how)
        grid = None if math.isinf(clip) else finest_grid(n, clip)
        np.testing.assert_allclose(
            first, ref.glm_difference(data, new, old, grid=grid, **how), rtol=1e-12, atol=n * 1e-13
        )
        margins = kernels.glm_margins(data, old)
        data.row_norms = kernels.glm_norms(data)
        kept = np.empty(n)
        for n_threads in (1, 7):
            again = kernels.glm_difference(
                data, new, old, margins=margins, new_margins=kept, n_threads=n_threads, **how
            )
            np.testing.assert_array_equal(again, first)
            np.testing.assert_array_equal(kept, kernels.glm_margins(data, new))
        data.row_norms = None


@pairwise("isa", "layout", "loss")
def test_kept_margins_change_no_bit(make, layout, loss):
    """Read by record number, also in a minibatch where records occur more than once."""
    data = make(n=900, **layout)
    new, old = points(data)
    margins = kernels.glm_margins(data, old)
    for batch in (None, batch_of(data, [5, 0, 295, 1])):
        how = {"loss": loss, "clip": 0.3, "gradient_clip": 0.4, "rows": batch}
        fresh = kernels.glm_difference(data, new, old, **how)
        for n_threads in (1, 2, 3):
            kept = kernels.glm_difference(
                data, new, old, margins=margins, n_threads=n_threads, **how
            )
            np.testing.assert_array_equal(kept, fresh)
    np.testing.assert_array_equal(margins, kernels.glm_margins(data, old))


@pairwise("isa", "layout")
def test_margins_written_in_place_serve_the_next_call(make, layout):
    data = make(n=900, **layout)
    path = np.random.default_rng(2).standard_normal((4, data.m, data.d))
    margins = np.empty(data.n)
    how = {"loss": "logistic", "clip": 0.3, "gradient_clip": 0.4}
    kernels.glm_difference(data, path[1], path[0], new_margins=margins, **how)
    for old, new in itertools.pairwise(path[1:]):
        np.testing.assert_array_equal(margins, kernels.glm_margins(data, old))
        sums = kernels.glm_difference(data, new, old, margins=margins, new_margins=margins, **how)
        np.testing.assert_array_equal(sums, kernels.glm_difference(data, new, old, **how))
    np.testing.assert_array_equal(margins, kernels.glm_margins(data, path[-1]))


@pairwise("isa", "loss", p=[11, 1200])
def test_equal_points_differ_by_exactly_nothing(make, loss, p):
    data = make(n=200, p=p, intercept=True)
    w = points(data)[0]
    data.X[3] = 1e200  # its square, and its margin here or at 1e200 w, are infinite
    margins = kernels.glm_margins(data, w)
    for clip, gradient_clip in ((0.3, 0.4), (0.3, math.inf)):
        how = {"loss": loss, "clip": clip, "gradient_clip": gradient_clip}
        for v in (w, 1e200 * w):
            assert not np.any(kernels.glm_difference(data, v, v, **how))
        assert not np.any(kernels.glm_difference(data, w, w, margins=margins, **how))


@pairwise("isa", "layout", "loss")
def test_without_a_clip_it_is_the_difference_of_two_gradients(make, layout, loss):
    data = make(n=300, **layout)
    new, old = points(data)
    sums = kernels.glm_difference(data, new, old, loss=loss, clip=math.inf)
    a, b = (kernels.glm_gradient(data, w, loss=loss, clip=math.inf) for w in (new, old))
    np.testing.assert_allclose(sums, a - b, rtol=1e-10, atol=1e-11)


@pairwise("isa", "layout", "loss")
def test_differences_and_a_first_gradient_telescope_to_the_last_one(make, layout, loss):
    """What SPIDER and SVRG rest on; it fails where the gradients are not clipped first."""
    data = make(n=300, **layout)
    path = np.random.default_rng(5).standard_normal((5, data.m, data.d))
    B = 0.2

    def end(gradient_clip):
        total = kernels.glm_gradient(data, path[0], loss=loss, clip=B)
        for old, new in itertools.pairwise(path):
            total = total + kernels.glm_difference(
                data, new, old, loss=loss, clip=2 * B + 0.1, gradient_clip=gradient_clip
            )
        return total

    last = kernels.glm_gradient(data, path[-1], loss=loss, clip=B)
    np.testing.assert_allclose(end(B), last, rtol=1e-10, atol=1e-10)
    assert np.max(np.abs(end(math.inf) - last)) > 0.01


@pairwise("isa", "layout", "loss")
def test_each_record_adds_the_clamped_difference_of_its_clipped_gradients(
    make, layout, bare_records, loss
):
    data = make(n=120, m=1, **layout)
    new, old = points(data)[:, 0]
    each = bare_records(data.X, data.y, np.arange(data.n + 1), **options_of(data))
    free = kernels.glm_gradient(each, new, loss=loss, clip=1e3)
    B = 0.7 * np.max(np.linalg.norm(free, axis=1))
    a, b = (kernels.glm_gradient(each, w, loss=loss, clip=B) for w in (new, old))
    length = np.linalg.norm(a - b, axis=1)
    C = 0.5 * np.max(length)
    expected = (a - b) * np.minimum(1.0, C / np.maximum(length, 1e-300))[:, None]
    sums = kernels.glm_difference(each, new, old, loss=loss, clip=C, gradient_clip=B)
    np.testing.assert_allclose(sums, expected, rtol=1e-9, atol=1e-9)
    assert np.any((length > 0.0) & (length < 0.99 * C))


@pytest.mark.usefixtures("isa")
@every_loss
def test_differences_are_no_longer_than_the_smoothness_says(make, bare_records, loss):
    """Then C = smoothness R^2 |w_new - w_old| clips nothing, with or without clipped gradients."""
    data = make(n=200, m=1, row_bound=1.5, intercept=True)
    new, old = points(data)[:, 0]
    new = old + 0.1 * (new - old)
    C = loss.smoothness * 1.5**2 * np.linalg.norm(new - old)
    for gradient_clip in (math.inf, 0.3):
        how = {"loss": loss, "gradient_clip": gradient_clip}
        free = kernels.glm_difference(data, new, old, clip=math.inf, **how)
        np.testing.assert_allclose(
            kernels.glm_difference(data, new, old, clip=C, **how), free, rtol=1e-10, atol=1e-12
        )


ROWS = rows(equal=1024, long=5000)


@for_each("flush", [0, FLUSH])
@for_each("options", ROW_OPTIONS.values(), ids=ROW_OPTIONS)
@pytest.mark.usefixtures("isa")
def test_one_record_never_adds_more_than_the_clip(
    flush, options, bare_records, longer, control_bits
):
    """Whatever the gradients' own bound and the margins that are handed in."""
    labels = ((1.0, 0.1), (1e300, math.pi), (-1.0, 2.0**-300), (-1e300, 2.0**300))
    for name, (y, C) in itertools.product(ROWS, labels):
        data = one_record(bare_records, ROWS[name], y, **options)
        for grid in (finest_grid(1, C), coarsest_grid(C, data.d)):
            for loss, far, B in (
                ("squared", 1e200, math.inf),
                ("squared", 0.1, 1e3 * C),
                ("logistic", 1e200, 0.7 * C),
            ):
                w = np.full(data.d, far)
                for margins in (None, [1e300], [-math.inf], [math.nan]):
                    how = {"clip": C, "gradient_clip": B, "grid": grid, "margins": margins}
                    with control_bits(flush):
                        v = kernels.glm_difference(data, w, -w, loss=loss, **how)
                    assert not longer(v, grid, C), name


@st.composite
def random_differences(draw, n):
    """Records, a second point, and margins: any numbers."""
    X, y, options, new, clip, loss = draw(random_cases(n=n))
    big = st.floats(-1e300, 1e300)
    old = draw(st.just(new) | hnp.arrays(np.float64, new.shape, elements=big))
    fine, coarse = finest_grid(n, clip), coarsest_grid(clip, new.size)
    return (X, y, options, (new, old), draw(hnp.arrays(np.float64, n, elements=st.floats()))), {
        "clip": clip,
        "gradient_clip": clip * draw(st.sampled_from([1e-3, 0.5, 1.0, 1e9, math.inf])),
        "grid": fine * 2.0 ** round(draw(st.floats(0, 1)) * math.log2(coarse / fine)),
        "loss": loss,
    }


@given(case=random_differences(n=6), other=random_differences(n=1), keep=st.booleans())
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_the_sum_by_at_most_twice_the_clip(
    case, other, keep, bare_records, longer
):
    """Its margin too, where margins are handed in: any number."""
    (X, y, options, (new, old), margins), how = case

    def total():
        data = bare_records(X, y, [0, 6], **options)
        return kernels.glm_difference(data, new, old, margins=margins if keep else None, **how)

    before = total()
    X, y, margins = X.copy(), y.copy(), margins.copy()
    largest = np.finfo(X.dtype).max
    X[2] = np.clip(np.resize(other[0][0].astype(float), X.shape[1]), -largest, largest)
    y[2] = -y[2] if other[0][1][0] > 0 else other[0][1][0]
    margins[2] = other[0][4][0]
    assert not longer(total() - before, how["grid"], 2 * how["clip"])


@pytest.mark.usefixtures("isa")
def test_infinite_derivatives_of_one_sign_cancel_and_others_count_as_the_clip(bare_records):
    data = bare_records(np.array([[1e100, 0.0]]), np.array([1.0]), [0, 1])
    far = np.array([1e300, 0.0])
    for a, b, expected in ((far, -far, 2.0), (-far, far, -2.0), (far, far, 0.0), (far, 0 * far, 2)):
        v = kernels.glm_difference(data, a, b, loss="squared", clip=2.0)
        np.testing.assert_allclose(v, [[expected, 0.0]])


def test_a_silo_data_in_files_takes_no_longer_rows_than_its_bound(tmp_path):
    """The kernel reads a SiloData by its attributes: row bound, range and kept norms included."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-3.0, 5.0, (60, 4)), np.where(rng.random(60) < 0.5, -1.0, 1.0)
    np.save(tmp_path / "X.npy", X)
    stored = np.load(tmp_path / "X.npy", mmap_mode="r")
    new, old = rng.standard_normal((2, 5))
    options = {"intercept": True, "row_bound": 1.2, "feature_range": (-3.0, 5.0)}
    how = {"loss": "squared", "clip": 0.5, "gradient_clip": 0.6, "grid": 2.0**-40}
    data = SiloData(stored, y, [0, 20, 60], **options)
    np.testing.assert_allclose(
        kernels.glm_difference(data, new, old, **how),
        ref.glm_difference(data, new, old, **how),
        atol=60 * 2.0**-40,
    )


SPACE = np.zeros(400)
BATCH = (np.array([0]), np.array([0, 1, 1, 1, 1]))
BAD = [
    ({"w_new": np.zeros(10)}, "w_new must have shape"),
    ({"w_old": np.zeros(10)}, "w_old must have shape"),
    ({"w_old": np.full(11, np.nan)}, "w_old must be finite"),
    ({"w_old": "zeros"}, "TypeError: w_old must be real"),
    ({"gradient_clip": 0.0}, "gradient_clip must be"),
    ({"gradient_clip": math.nan}, "gradient_clip must be"),
    ({"gradient_clip": None}, "TypeError: gradient_clip must be"),
    ({"gradient_clip": (1.0, 1.0)}, "TypeError: gradient_clip must be"),
    ({"grid": 2.0**-5}, "grid must be at most"),
    ({"margins": np.zeros(299)}, r"margins must have shape \(300,\)"),
    ({"margins": np.zeros(1), "rows": BATCH}, r"margins must have shape \(300,\)"),
    ({"margins": "zeros"}, "TypeError: margins must be real"),
    ({"new_margins": np.zeros(299)}, "new_margins must be a"),
    ({"new_margins": np.zeros(300, np.float32)}, "new_margins must be a"),
    ({"new_margins": [0.0] * 300}, "new_margins must be a"),
    ({"new_margins": np.zeros(300), "rows": BATCH}, "new_margins must be None with rows"),
    (
        {"margins": SPACE[:300], "new_margins": SPACE[1:301]},
        "new_margins must be margins itself or",
    ),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(make, how, message):
    how = {"w_new": np.zeros(11), "w_old": np.ones(11), "loss": "logistic", "clip": 1.0} | how
    assert_refused(message, kernels.glm_difference, make(), **how)
