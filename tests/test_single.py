"""Sums of float32 rows in single precision: exact clip bound, exact sums, when they are chosen."""

import itertools
import math

import numpy as np
import pytest
from adversarial import EVERY_LOSS, FLUSH, anywhere, coarsest_grid, models, one_record
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from makers import FUSED, assert_same_on

from dpkern import kernels
from dpkern import reference as ref

TINY, LARGEST = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
ROWS = {
    "one": [1.0],
    "zero": [0.0, -0.0],
    "denormal": [TINY, 3e-40, -1e-42],
    "squares denormal": [1e-20, 2e-21, 1e-23],
    "squares below 2^-60": [1e-10, 3e-11],
    "squares overflow": [1e30, -1e30, 1.0],
    "largest": [LARGEST] * 3,
    "square just finite": [1e15, 1e14],
    "all magnitudes": [10.0**e for e in range(-44, 38)],
    "equal": [1.0] * 1024,
    "longest": np.random.default_rng(0).standard_normal(4096),
    "too long": np.random.default_rng(0).standard_normal(4097),
}
SHORTEST = 64  # rows of fewer columns are summed in double precision


def padded(row):
    return np.pad(np.array(row, np.float32), (0, max(0, SHORTEST - len(row))))


def finest_single(clip):
    """The finest grid on which float32 rows are summed in single precision."""
    return 2.0 ** math.ceil(math.log2(clip * 8 / (2**31 - 1)))


def sums_of(data, w, **how):
    """One record's gradient, the same by the kernel for several models, a difference, a row."""
    one = kernels.glm_gradient(data, w, **how)
    clip, grid = how.pop("clip"), how.pop("grid")
    several = kernels.glm_gradients(data, [w, w], clip=clip, grid=grid, **how)
    np.testing.assert_array_equal(several, [one, one])
    yield one
    yield kernels.glm_difference(data, w, np.zeros_like(w), clip=clip, grid=grid, **how)
    yield kernels.clip_and_sum(data.X, clip=clip, grid=grid)


@pytest.mark.parametrize("flush", [0, FLUSH])
@pytest.mark.usefixtures("isa")
def test_one_record_never_adds_more_than_the_clip(flush, bare_records, longer, control_bits):
    """Of rows, labels, clips and options all pairs."""
    options = ({}, {"intercept": True}, {"row_bound": 1e-3}, {"row_bound": 1e10})
    labels, clips = (-1.0, 1e300, 1e37, 1e-30), (2.0**-300, 0.1, math.pi, 2.0**300)
    for (name, row), i, k in itertools.product(ROWS.items(), range(4), range(4)):
        y, clip = labels[i], clips[k]
        data = one_record(bare_records, padded(row), y, **options[(i + k) % 4])
        w = np.full(data.d, 1e200 if y == 1e37 else 0.1)
        for grid in (finest_single(clip), coarsest_grid(clip, data.d)):
            for loss, weight in (("squared", None), ("logistic", 0.7)):
                how = {"loss": loss, "clip": clip, "grid": grid, "silo_weight": weight}
                with control_bits(flush):
                    found = list(sums_of(data, w, **how))
                for v in found:
                    assert not longer(v, grid, clip), name


@pytest.mark.usefixtures("isa")
def test_factors_and_products_that_are_rounded_up_stay_inside_the_clip(bare_records, longer):
    """Each of them lengthens a record by up to 2^-24, which 1 - 2^-22 covers; on coarse grids the
    rounding of every coordinate adds half a step."""
    rng = np.random.default_rng(1)
    for dim in (1, 2, 64, 1024):
        for clip in np.linspace(1.0, 2.0, 97):
            x = padded([rng.uniform(1.0, 2.0)] * dim)
            data = one_record(bare_records, x, 1e9)
            for grid in (finest_single(clip), coarsest_grid(clip, x.size)):
                for v in sums_of(data, np.zeros(x.size), loss="squared", clip=clip, grid=grid):
                    assert not longer(v, grid, clip)


@pytest.mark.usefixtures("isa")
def test_a_norm_that_rounds_down_at_every_step_stays_inside_the_clip(bare_records, longer):
    """Every addition to a lane of the computed square loses almost half a unit."""
    x = np.full(4096, math.sqrt(0.9 * 2.0**-24), np.float32)
    x[:32] = 1.0
    for clip, own in itertools.product((1.0, 1.3, 1.7), ({}, {"intercept": True})):
        data, grid = one_record(bare_records, x, 1e9, **own), finest_single(clip)
        for v in sums_of(data, np.zeros(data.d), loss="squared", clip=clip, grid=grid):
            assert not longer(v, grid, clip)


@st.composite
def cases(draw, n=1):
    """Float32 records, labels, options, a model, and a clip norm with a grid."""
    p = draw(st.integers(SHORTEST, 90))
    finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
    X = draw(hnp.arrays(np.float32, (n, p), elements=finite))
    big = st.floats(-1e300, 1e300)
    y = draw(hnp.arrays(np.float64, n, elements=big))
    options = {
        "intercept": draw(st.booleans()),
        "row_bound": draw(st.sampled_from([math.inf, 1e-3, 1.0, 1e20])),
    }
    w = draw(hnp.arrays(np.float64, p + options["intercept"], elements=big))
    clip = math.ldexp(draw(st.floats(1.0, 2.0)), draw(st.integers(-300, 300)))
    fine, coarse = finest_single(clip), coarsest_grid(clip, len(w))
    grid = fine * 2.0 ** round(draw(st.floats(0, 1)) * math.log2(coarse / fine))
    how = {"clip": clip, "grid": grid, "loss": draw(st.sampled_from(EVERY_LOSS))}
    return X, y, options, w, how


@given(case=cases(n=6), other=cases())
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_the_sum_by_at_most_twice_the_clip(
    case, other, bare_records, longer
):
    X, y, options, w, how = case
    before = kernels.glm_gradient(bare_records(X, y, [0, 6], **options), w, **how)
    for i in range(6):
        alone = bare_records(X[i : i + 1], y[i : i + 1], [0, 1], **options)
        for v in sums_of(alone, w, **how):
            assert not longer(v, how["grid"], how["clip"])
    X, y = X.copy(), y.copy()
    X[2] = np.resize(other[0], X.shape[1])
    y[2] = other[1][0]
    after = kernels.glm_gradient(bare_records(X, y, [0, 6], **options), w, **how)
    assert not longer(after - before, how["grid"], 2 * how["clip"])


@pytest.mark.usefixtures("isa")
def test_precision_is_chosen_by_clip_grid_length_and_kind_of_row(make):
    """Single precision rounds the norm, and so a clipped record, in another way than double
    precision; the rows make no difference."""
    for p, options, clip in itertools.product(
        (63, 64, 4096, 4097), ({}, {"affine": True}, {"csr": True}), (0.7, 1e-3)
    ):
        data, wide = (make(n=9, p=p, m=1, dtype=d, **options) for d in (np.float32, np.float64))
        if options.get("csr"):
            wide.X.data[:] = data.X.data
        else:
            wide.X[:] = data.X
        w = 10.0 * models(data)[0]
        for depth in (-1, 0, 3):
            grid = finest_single(clip) * 2.0**depth
            how = {"clip": clip, "grid": grid, "loss": "squared"}
            same = [
                np.array_equal(kernel(data, w), kernel(wide, w))
                for kernel in (
                    lambda data, w, how=how: kernels.glm_gradient(data, w, **how),
                    lambda data, w, how=how: kernels.glm_difference(data, w, -w, **how),
                )
            ]
            single = SHORTEST <= p <= 4096 and not options and depth >= 0
            assert same == [not single] * 2, (p, options, depth)
            if not options:
                one, other = (kernels.clip_and_sum(r.X, clip=clip, grid=grid) for r in (data, wide))
                assert np.array_equal(one, other) == (not single)


@pytest.mark.usefixtures("isa")
def test_sum_is_that_of_rounded_records_for_any_order_and_threads(make, bare_records, steps):
    for p, depth, own in itertools.product(
        (64, 79, 80, 97, 164), (0, 3, 12), ({}, {"intercept": True, "row_bound": 3.0})
    ):
        data = make(n=700, p=p, m=1, dtype=np.float32, **own)
        data.X[::50, 0] = np.inf
        w, q = models(data)[0], finest_single(0.6) * 2.0**depth
        how = {"loss": "logistic", "clip": 0.6, "grid": q}
        each = bare_records(data.X, data.y, np.arange(data.n + 1), **own)
        if not own:
            G = np.repeat(data.X, 2, axis=0)
            parts = kernels.clip_and_sum(G, clip=0.6, grid=q, offsets=np.arange(len(G) + 1))
            assert not np.any(parts[::100])
            parts = np.array(steps(parts, q), dtype=object).reshape(G.shape).sum(axis=0)
            for n_threads in (1, 2, 5):
                whole = kernels.clip_and_sum(G[::-1], clip=0.6, grid=q, n_threads=n_threads)
                assert list(parts) == steps(whole, q)
        for kernel in (
            lambda data, w=w, how=how, **more: kernels.glm_gradient(data, w, **how, **more),
            lambda data, w=w, how=how, **more: kernels.glm_gradients(data, [w], **how, **more)[0],
            lambda data, w=w, how=how, **more: kernels.glm_difference(data, w, -w, **how, **more),
        ):
            parts = np.array(steps(kernel(each), q), dtype=object).reshape(data.n, -1)
            assert not np.any(parts[::50])
            whole = kernel(data)
            assert list(parts.sum(axis=0)) == steps(whole, q)
            order = np.random.default_rng(8).permutation(data.n)
            shuffled = bare_records(data.X[order], data.y[order], data.offsets, **own)
            for n_threads in (1, 2, 5):
                np.testing.assert_array_equal(kernel(shuffled, n_threads=n_threads), whole)
            batch = kernel(data, rows=(order[:300], np.array([0, 300])))
            assert list(parts[order[:300]].sum(axis=0)) == steps(batch, q)


@pytest.mark.usefixtures("isa")
def test_records_of_full_length_in_one_coordinate_never_overflow(bare_records):
    """Sums of a block have 32 bits, and every record adds as many steps as any record may."""
    n = 1000
    for clip, depth, p in itertools.product((1.0, 1.999, 1.5), (0, 1, 2, 5, 10), (64, 65, 100)):
        X = np.zeros((n, p), np.float32)
        X[:, 0] = 3.0
        data = bare_records(X, np.full(n, 1e9), [0, n])
        how = {"loss": "squared", "clip": clip, "grid": finest_single(clip) * 2.0**depth}
        first, w, far = bare_records(X[:1], data.y[:1], [0, 1]), np.zeros(p), 1e9 * np.eye(p)[0]
        for kernel in (
            lambda data, w=w, how=how: kernels.glm_gradient(data, w, **how),
            lambda data, w=w, how=how: kernels.glm_gradients(data, [w, w, w], **how)[1],
            lambda data, w=w, far=far, how=how: kernels.glm_difference(data, w, far, **how),
            lambda data, how=how: kernels.clip_and_sum(data.X, clip=how["clip"], grid=how["grid"]),
        ):
            one = kernel(first)
            assert abs(one[0, 0]) > 0.9 * clip
            np.testing.assert_array_equal(kernel(data), n * one)


@pytest.mark.usefixtures("isa")
def test_models_on_grids_of_every_kind_have_the_bits_of_each(make):
    """Some models are summed in single precision and some in double precision, silo by silo."""
    rng = np.random.default_rng(3)
    for k, p, own in itertools.product(
        (1, 2, 5, 9), (63, 64, 71, 80, 95, 300), ({}, {"intercept": True, "row_bound": 2.0})
    ):
        data = make(n=200, p=p, m=3, dtype=np.float32, **own)
        w, clip = rng.standard_normal((k, data.d)), rng.uniform(0.5, 2.0, k)
        grid = 2.0 ** rng.integers(-30, -18, (k, data.m))
        weight = [0.5, 1.0, 0.7]
        how = {"loss": "logistic", "silo_weight": weight}
        for n_threads in (1, 3):
            found = kernels.glm_gradients(data, w, clip=clip, grid=grid, n_threads=n_threads, **how)
            for i in range(k):
                one = kernels.glm_gradient(data, w[i], clip=clip[i], grid=grid[i], **how)
                np.testing.assert_array_equal(found[i], one)


@pytest.mark.usefixtures("isa")
def test_kernels_agree_with_their_references(make):
    for p, own, clip, loss in itertools.product(
        (64, 75, 114), ({}, {"intercept": True, "row_bound": 2.0}), (0.3, 3.0), EVERY_LOSS
    ):
        data = make(n=300, p=p, dtype=np.float32, **own)
        w = models(data)
        how = {"loss": loss, "clip": clip, "grid": 2.0**-18, "silo_weight": [0.1, 0.4, 0.7, 1.0]}
        close = {"rtol": 0.0, "atol": data.n * (2.0**-18 + 2.0**-20 * clip)}
        G, offsets = data.X, data.offsets
        exact = {"clip": clip, "grid": 2.0**-18, "offsets": offsets}
        by_numpy = ref.clip_and_sum(G, **exact)
        np.testing.assert_allclose(kernels.clip_and_sum(G, **exact), by_numpy, **close)
        for name, points in (("glm_gradient", (w,)), ("glm_difference", (w, -w))):
            found = getattr(kernels, name)(data, *points, **how)
            np.testing.assert_allclose(found, getattr(ref, name)(data, *points, **how), **close)


@pytest.mark.usefixtures("isa")
def test_differences_have_margins_in_double_precision(make):
    """What they subtract may be at margins that another kernel computed."""
    data = make(n=200, p=85, dtype=np.float32, intercept=True)
    w = models(data)
    how = {"loss": "squared", "clip": 1.0, "grid": 2.0**-20}
    stored = kernels.glm_margins(data, w)
    assert not np.any(kernels.glm_difference(data, w, w, margins=stored, **how))
    near = w * (1.0 + 1e-9)
    finer = {"loss": "squared", "clip": 1e-8, "grid": 2.0**-45}
    found = kernels.glm_difference(data, near, w, margins=stored, **finer)
    np.testing.assert_allclose(found, 1e-9 * np.ones_like(found), atol=1e-5)
    by_numpy = ref.glm_difference(data, near, w, **finer)
    np.testing.assert_allclose(found, by_numpy, atol=0.02 * np.abs(by_numpy).max())


@pytest.mark.isa
@pytest.mark.parametrize("p", [64, 77, 80, 200])
@pytest.mark.parametrize("own", [{}, {"intercept": True}], ids=str)
def test_fused_instruction_sets_give_the_same_bits(make, p, own):
    data = make(n=400, p=p, dtype=np.float32, **own)
    w, how = models(data), {"loss": "logistic", "clip": 0.5, "grid": 2.0**-22}
    assert_same_on(
        FUSED,
        lambda: [
            kernels.glm_gradient(data, w, **how),
            kernels.glm_gradients(data, [w, w], **how),
            kernels.glm_difference(data, w, -w, **how),
            kernels.clip_and_sum(data.X, clip=0.5, grid=2.0**-22, offsets=data.offsets),
        ],
    )
