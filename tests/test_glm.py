"""Generalised linear kernels: reference, derivatives, clip bound, exact sums, threads, forks."""

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from adversarial import (
    FLUSH,
    ROW_OPTIONS,
    anywhere,
    coarsest_grid,
    models,
    one_record,
    random_cases,
    rows,
)
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused
from pairwise import pairwise

from dpkern import kernels
from dpkern import reference as ref
from dpkern.data import SiloData
from dpkern.kernels.grids import finest_grid
from dpkern.kernels.mlp import mlp_size


@pairwise("isa", "layout", strength=3)
def test_margins_agree_with_their_reference(make, layout):
    data = make(n=3000, **layout)
    for w in (models(data), models(data)[0]):
        by_numpy = ref.glm_margins(data, w)
        for n_threads in (1, 2, 3, 7):
            z = kernels.glm_margins(data, w, n_threads=n_threads)
            np.testing.assert_allclose(z, by_numpy, rtol=1e-12, atol=1e-13)


NOT_READ = {"record_weight": None, "margin_offset": None}  # of products


def products_alone(data, W):
    """The products of every row with every column, each computed by itself."""
    each = np.empty((data.n, W.shape[1]))
    for i, k in np.ndindex(each.shape):
        record = replace(data, X=data.X[[i]], y=data.y[[i]], offsets=[0, 1], **NOT_READ)
        each[i, k] = kernels.glm_products(record, W[:, [k]])[0, 0]
    return each


@pairwise("isa", "layout", k=[1, 3, 5, 12, 25, 37])
def test_products_agree_with_their_reference(make, layout, k):
    data = make(n=1500, **layout)
    W = np.random.default_rng(k).standard_normal((data.d, k))
    found = kernels.glm_products(data, W)
    for n_threads in (1, 2, 5):
        np.testing.assert_array_equal(kernels.glm_products(data, W, n_threads=n_threads), found)
    np.testing.assert_allclose(found, ref.glm_products(data, W), rtol=1e-11, atol=1e-12)
    data.row_norms = kernels.glm_norms(data)
    np.testing.assert_array_equal(kernels.glm_products(data, W), found)


@pairwise("isa", "layout", k=[1, 9, 24])
def test_products_depend_on_their_row_and_column_alone(make, layout, k):
    data = make(n=60, **layout)
    W = np.random.default_rng(k).standard_normal((data.d, k))
    np.testing.assert_array_equal(kernels.glm_products(data, W), products_alone(data, W))


@pytest.mark.usefixtures("isa")
def test_products_take_rows_of_any_length(bare_records):
    """Also those whose norm overflows, beside which others are what they are alone."""
    rng = np.random.default_rng(3)
    for p in (1, 7, 8, 9, 15, 16, 17, 24, 31, 33, 70):
        for k in (1, 2, 8, 9):
            X = rng.standard_normal((21, p))
            X[4], X[9], X[20] = 1e200, 0.0, -1e300
            W = rng.standard_normal((p, k))
            for w in (W, 1e-200 * W, 1e100 * W):
                for bound in (math.inf, 2.0):
                    data = bare_records(X, np.ones(21), [0, 2, 21], row_bound=bound)
                    found = kernels.glm_products(data, w)
                    np.testing.assert_array_equal(found, products_alone(data, w))
                    if bound == math.inf:
                        np.testing.assert_allclose(found[:4], X[:4] @ w, rtol=1e-11, atol=0.0)


def test_products_refuse_other_matrices(make):
    data = make()
    for W in (np.ones(data.d), np.ones((data.d + 1, 2)), np.ones((data.d, 0)), np.ones((2, 2, 2))):
        assert_refused("W must have shape .* with k >= 1, got", kernels.glm_products, data, W)
    assert_refused("W must be finite", kernels.glm_products, data, np.full((data.d, 1), math.nan))


@pairwise("isa", "layout", strength=3)
def test_norms_agree_with_their_reference(make, layout):
    data = make(n=3000, **layout)
    by_numpy = ref.glm_norms(data)
    for n_threads in (1, 2, 3, 7):
        norms = kernels.glm_norms(data, n_threads=n_threads)
        np.testing.assert_allclose(norms, by_numpy, rtol=1e-13)


@for_each("sparse", [False, True])
def test_kernels_read_nothing_of_records_but_data(sparse):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), np.where(rng.random(60) < 0.5, -1.0, 1.0)
    records = SiloData(
        scipy.sparse.csr_array(X) if sparse else X,
        y,
        [0, 20, 60],
        row_bound=1.0,
        classes=[-1.0, 1.0],
    )
    names = kernels.Data.__dataclass_fields__
    read = SimpleNamespace(**{name: getattr(records, name) for name in names})
    k = mlp_size(3, (2, 1))
    w, how = np.full(records.d, 0.1), {"clip": 0.5, "loss": "logistic"}
    for compute in (
        lambda data: kernels.glm_losses(data, w, loss="logistic"),
        lambda data: kernels.glm_gradient(data, w, **how),
        lambda data: kernels.glm_hessian(data, w, hess_clip=0.5, loss="logistic"),
        lambda data: kernels.glm_local_descent(data, w, steps=3, step_size=0.1, **how),
        lambda data: kernels.mlp_gradient(
            data, np.ones(k), layers=(2, 1), activation="relu", **how
        ),
    ):
        np.testing.assert_array_equal(compute(read), compute(records))


@pairwise("isa", "layout", "loss")
def test_losses_agree_with_their_twin_for_any_threads(make, layout, loss):
    data = make(n=3000, **layout)
    for w in (models(data), models(data)[0]):
        sums = kernels.glm_losses(data, w, loss=loss, n_threads=1)
        np.testing.assert_allclose(sums, ref.glm_losses(data, w, loss=loss), rtol=1e-12)
        for n_threads in (2, 3, 7):
            again = kernels.glm_losses(data, w, loss=loss, n_threads=n_threads)
            np.testing.assert_array_equal(again, sums)


@pairwise("isa", "layout", "loss", strength=3, clip=[0.3, 3.0, math.inf])
def test_gradient_agrees_with_its_reference(make, layout, loss, clip):
    data = make(n=3000, **layout)
    grid = None if math.isinf(clip) else 2.0**-35
    weight = np.linspace(0.1, 1.0, data.m)
    rng = np.random.default_rng(4)
    offsets = np.array([0, 5, 5, 300, 301])
    rows = np.concatenate(
        [
            rng.integers(data.offsets[j], data.offsets[j + 1], k)
            for j, k in enumerate(np.diff(offsets))
        ]
    )
    for w in (models(data), models(data)[0]):
        for batch in (None, (rows, offsets)):
            options = dict(loss=loss, clip=clip, grid=grid, silo_weight=weight, rows=batch)
            np.testing.assert_allclose(
                kernels.glm_gradient(data, w, **options),
                ref.glm_gradient(data, w, **options),
                rtol=1e-12,
                atol=data.n * (grid or 1e-15),
            )


def assert_each(data, w, clip, grid=None, *, n_threads=(None,), **how):
    """Gradients of several models have the bits of each by itself; returns them."""
    grids = [None] * len(w) if grid is None else np.broadcast_to(grid, (len(w), data.m))
    clips = np.broadcast_to(clip, len(w))
    each = [
        kernels.glm_gradient(data, model, clip=C, grid=q, **how)
        for model, C, q in zip(w, clips, grids, strict=True)
    ]
    for k in n_threads:
        found = kernels.glm_gradients(data, w, clip=clip, grid=grid, n_threads=k, **how)
        np.testing.assert_array_equal(found, each)
    return found


@pairwise("isa", "layout", "loss", k=[2, 5, 16])
def test_gradients_of_several_models_have_the_bits_of_each(make, layout, loss, k):
    data = make(n=1500, **layout)
    rng = np.random.default_rng(k)
    clip = rng.uniform(0.1, 3.0, k)
    grid = 2.0 ** rng.integers(-38, -30, (k, data.m))
    weight = np.linspace(0.1, 1.0, data.m)
    offsets = np.array([0, 5, 5, 300, 301])
    rows = np.concatenate(
        [
            rng.integers(data.offsets[j], data.offsets[j + 1], size)
            for j, size in enumerate(np.diff(offsets))
        ]
    )
    for w in (rng.standard_normal((k, data.d)), rng.standard_normal((k, data.m, data.d))):
        for batch in (None, (rows, offsets)):
            how = dict(loss=loss, silo_weight=weight, rows=batch)
            found = assert_each(data, w, clip, grid, n_threads=(1, 2, 5), **how)
            data.row_norms = kernels.glm_norms(data)
            np.testing.assert_array_equal(assert_each(data, w, clip, grid, **how), found)
            data.row_norms = None


def test_gradients_of_several_models_agree_with_their_reference(make):
    data = make(n=300, affine=True, intercept=True)
    w = np.random.default_rng(5).standard_normal((3, data.d))
    for how in ({"clip": [0.3, 1.0, 3.0], "grid": 2.0**-35}, {"clip": math.inf}):
        by_numpy = ref.glm_gradients(data, w, **how)
        found = kernels.glm_gradients(data, w, **how)
        np.testing.assert_allclose(found, by_numpy, rtol=1e-12, atol=data.n * 2.0**-35)


@pytest.mark.usefixtures("isa")
def test_gradients_of_several_models_take_rows_of_any_length(bare_records):
    """Tiles and vectors are filled up; a row of infinite norm counts for no model. Few records have
    fine grids, on which every rounding of a margin is seen."""
    rng = np.random.default_rng(6)
    for p in (1, 7, 8, 9, 16, 17, 31, 500, 3000):
        X = rng.standard_normal((13, p))
        X[3], X[5], X[7] = 1e200, math.inf, math.nan
        y, offsets = np.where(np.arange(13) % 3, 1.0, -1.0), [0, 4, 4, 13]
        for stored in (X, scipy.sparse.csr_array(X)):
            data = bare_records(stored, y, offsets, intercept=p % 8 < 2)
            for k in (1, 2, 3, 4, 7, 9):
                w, clip = rng.standard_normal((k, data.d)), rng.uniform(0.5, 2.0, k)
                found = assert_each(data, w, clip, silo_weight=[0.5, 1.0, 0.7])
                assert np.all(np.isfinite(found))


@pytest.mark.usefixtures("isa")
@for_each("k", [24, 33, 40, 72])
def test_gradients_of_many_sparse_models_have_the_bits_of_each(k, make):
    """They are taken 32 at a time, each with clip norm, grid, bias and sums of its own."""
    rng = np.random.default_rng(k)
    for affine in (False, True):
        data = make(n=150, csr=True, affine=affine, intercept=True)
        w, clip = rng.standard_normal((k, data.d)), rng.uniform(0.1, 3.0, k)
        grid = 2.0 ** rng.integers(-38, -30, (k, data.m))
        assert_each(data, w, clip, grid)


@pytest.mark.usefixtures("isa")
@for_each("dtype", [np.float32, np.float64])
def test_sparse_rows_of_one_number_but_for_an_entry(dtype, bare_records):
    """Rows of one number are rounded once at several models; wherever another stands is seen."""
    rows, p = [], 33
    for length in (1, 2, 3, 7, 8, 9, 15, 16, 17, 31):
        for number in (1.0, -0.25):
            row = np.zeros(p)
            row[2 : 2 + length] = number
            rows.append(row)
            for other in range(2, 2 + length):
                rows.append(row.copy())
                rows[-1][other] += 0.5
    rng = np.random.default_rng(7)
    X, n = scipy.sparse.csr_array(np.array(rows, dtype=dtype)), len(rows)
    for intercept in (False, True):
        data = bare_records(X, rng.choice([-1.0, 1.0], n), [0, n], intercept=intercept)
        for k in (3, 16, 32):
            w, clip = rng.standard_normal((k, data.d)), rng.uniform(0.1, 3.0, k)
            assert_each(data, w, clip, 2.0**-35)


@pytest.mark.usefixtures("isa")
@for_each("k", [3, 8, 16])
def test_limits_of_several_models_are_rounded_as_quotients(k, bare_records):
    """Every silo has one clipped record, on a grid that shows the last bits of its limit."""
    rng = np.random.default_rng(k)
    m = 4000
    ones = rng.integers(0, 2, m) * (2.0**-52 * rng.integers(-40, 40, m))
    X = np.column_stack([1.0 + np.where(ones, ones, rng.random(m)), np.zeros(m)])
    y, offsets = np.where(rng.random(m) < 0.5, -1.0, 1.0), np.arange(m + 1)
    clip = np.r_[0.3, 2.0**-3 * (1.0 - 2.0**-53), rng.uniform(0.05, 0.4, k - 2)]
    for scale in (1.0, 2.0**-420, 2.0**420):
        data = bare_records(scale * X, y, offsets)
        w = np.full((k, 2), 1e-9 / scale)
        grid = 2.0 ** np.ceil(np.log2(clip * 2.0**-51))
        how = {"loss": "logistic", "silo_weight": np.ones(m)}
        found = assert_each(data, w, clip, grid[:, None] * np.ones(m), **how)
        if scale >= 1.0:
            assert np.abs(np.abs(found[:, :, 0]) / clip[:, None] - 1.0).max() < 1e-12


@pytest.mark.usefixtures("isa")
@for_each("k", [2, 4, 11])
def test_products_in_the_middle_of_two_points_go_to_the_even_one(k, bare_records):
    """Sums of several models may be chains of fused multiply-adds, which would round such products
    by what was added before. With the squared loss and w = 0 a factor is -y, in any number of
    digits."""
    rng = np.random.default_rng(k)
    n, clip = 301, 8.0

    def check(X, y, q):
        data, w = bare_records(X, y, [0, n, 2 * n]), np.zeros((k, X.shape[1]))
        # Which factors are chained is decided by the model whose grid is the finest, silo by silo.
        for last, silo in ((0.25, 1.0), (8.0, 1.0), (1.0, min(64.0, 2.0**-5 / q))):
            grids = np.full((k, 2), q)
            grids[-1] *= last
            grids[:, 0] *= silo
            found = assert_each(data, w, clip, grids, n_threads=(1,), loss="squared")
        return found[0, 1, 0]

    for q in (2.0**-36, 2.0**-30, 2.0**-8):
        # All factors are odd multiples of q / 2 near the clip norm, and then one of 61.
        odd = 2 * rng.integers(int(4.0 / q), int(7.9 / q), 2 * n) + 1
        middles = q / 2.0 * rng.choice([-1.0, 1.0], 2 * n) * odd
        rare = np.where(np.arange(2 * n) % 61 == 7, middles, rng.uniform(3.0, 7.9, 2 * n))
        for y in (middles, rare):
            even = sum(round(Fraction(-number) / Fraction(q)) for number in y[n:].tolist())
            assert check(np.ones((2 * n, 1)), y, q) == even * q
        # Factors and entries of any number of digits, whose last ones often make q / 2.
        digits = rng.integers(0, 40, 2 * n)
        y = (2 * rng.integers(0, 2**digits) + 1) / 2.0 ** (digits + 1)
        last = np.minimum(q * 2.0**digits, 1.0)
        check(np.column_stack([last, rng.uniform(-1.0, 1.0, (2 * n, 16))]), y, q)


@pytest.mark.usefixtures("isa")
def test_sums_of_several_models_may_be_as_long_as_those_of_one(bare_records):
    """Chains keep the exponent of M, which few records on the finest grid would leave."""
    clip, factor = 8.0, np.nextafter(7.5, 8.0)  # its last digit is 1
    for n in (2, 3, 5, 8, 40, 64, 200, 1000):
        data = bare_records(np.ones((n, 1)), np.full(n, -factor), [0, n])
        found = assert_each(data, np.zeros((3, 1)), clip, finest_grid(n, clip), loss="squared")
        assert found[0, 0, 0] / n == pytest.approx(7.5, rel=1e-9)


def test_gradients_of_several_models_refuse_what_one_does(make):
    data = make(n=60, p=5, m=3)
    w, d = np.zeros((4, data.d)), data.d
    for bad, message in (
        ({"w": np.zeros(d)}, "w must have shape"),
        ({"w": np.zeros((4, 2, d))}, "w must have shape"),
        ({"w": np.full((4, d), np.nan)}, "w must be finite"),
        ({"clip": [1.0, 1.0, 1.0]}, "clip must be a number or have shape"),
        ({"clip": [1.0, 1.0, 1.0, math.inf]}, "clip must be finite for all models or for none"),
        ({"clip": [1.0, 1.0, 1.0, -1.0]}, "clip must be positive"),
        ({"clip": [1.0, 1.0, 1.0, math.nan]}, "clip must be"),
        ({"grid": 2.0**-80}, "grid must be at least"),
        ({"grid": np.ones((3, 3))}, "grid must be a number or have shape"),
        ({"out": np.zeros((4, 3, 2))}, "out must be"),
    ):
        how = {"w": w, "clip": 1.0} | bad
        assert_refused(message, kernels.glm_gradients, data, how.pop("w"), **how)


def test_gradients_of_several_models_saturate(make):
    data = make(n=200, p=3, m=2)
    w, q = np.random.default_rng(0).standard_normal((2, data.d)), 200 / 2.0**59
    q = 2.0 ** math.ceil(math.log2(q))
    found = assert_each(data, 1e3 * w, [1.0, 0.5], q, loss="squared", saturate=True)
    assert np.any(np.abs(found) == 2.0**52 * q)


@pairwise("isa", "layout", "loss")
def test_unclipped_gradient_is_the_derivative_of_the_losses(make, layout, loss):
    data = make(n=40, m=2, seed=7, **layout)
    w = models(data, scale=0.2)
    gradient = kernels.glm_gradient(data, w, loss=loss, clip=math.inf)
    step = 1e-6
    for k in range(data.d):
        e = np.eye(data.d)[k] * step
        plus, minus = (kernels.glm_losses(data, v, loss=loss) for v in (w + e, w - e))
        np.testing.assert_allclose(
            (plus - minus) / (2 * step), gradient[:, k], rtol=1e-4, atol=1e-4
        )


@pytest.mark.usefixtures("isa")
def test_effective_rows_respect_the_row_bound(make, bare_records):
    """The margin of the model along a row is the row's effective norm."""
    for options in (
        {"row_bound": 1.5},
        {"row_bound": 1.5, "intercept": True},
        {"row_bound": 0.3, "affine": True, "dtype": np.float32},
        {"row_bound": 1e-170},
        {"row_bound": 1e150},
    ):
        data = make(n=50, p=300, m=1, **options)
        features = data.X.astype(float)
        if data.scale is not None:
            features = data.scale * features + data.shift
        for i in range(0, 50, 7):
            x = np.append(features[i], 1.0) if data.intercept else features[i]
            norm = math.sqrt(math.fsum(x**2))
            z = kernels.glm_margins(data, x / norm)[i]
            bound = min(norm, data.row_bound)
            assert z == pytest.approx(bound, rel=1e-13)
    huge = bare_records(np.full((1, 3), 1e200), np.ones(1), [0, 1], row_bound=1.0)
    gradient = kernels.glm_gradient(huge, np.zeros(3), loss="logistic", clip=2.0)
    assert not np.any(gradient)


ROWS = rows(equal=1024, long=5000)
LABELS = [-1.0, 1.0, 1e300, -1e-300]
CLIPS = [2.0**-300, 0.1, math.pi, 2.0**300]


@for_each("flush", [0, FLUSH])
@for_each("options", ROW_OPTIONS.values(), ids=ROW_OPTIONS)
@pytest.mark.usefixtures("isa")
def test_one_record_never_adds_more_than_the_clip(
    flush, options, bare_records, longer, control_bits
):
    for name, y, clip in itertools.product(ROWS, LABELS, CLIPS):
        data = one_record(bare_records, ROWS[name], y, **options)
        w = np.full(data.d, 1e200 if y == 1e300 else 0.1)
        for grid in (finest_grid(1, clip), coarsest_grid(clip, data.d)):
            for loss, weight in (("squared", None), ("logistic", None), ("squared", 0.7)):
                with control_bits(flush):
                    v = kernels.glm_gradient(
                        data, w, loss=loss, clip=clip, grid=grid, silo_weight=weight
                    )
                assert not longer(v, grid, clip), name


@pytest.mark.usefixtures("isa")
def test_threads_take_denormals_as_the_calling_thread_does(bare_records, control_bits):
    """Else what a record adds would depend on whose turn it was, and so on the other records."""
    n, p = 200_000, 4
    X = np.full((n, p), 1e-38, np.float32)  # a denormal, and no double's
    data = bare_records(X, np.full(n, 1e300), [0, n])

    def total(n_threads):
        how = {"loss": "squared", "clip": 1.0, "grid": 2.0**-30, "n_threads": n_threads}
        return kernels.glm_gradient(data, np.zeros(p), **how)

    before = total(2)  # now there are two threads
    assert np.all(before < 0.0)
    with control_bits(FLUSH):
        for _ in range(5):
            assert not np.any(total(2))
    np.testing.assert_array_equal(total(2), before)


@for_each("intercept", [False, True])
@pytest.mark.usefixtures("isa")
def test_a_norm_that_rounds_down_at_every_step_stays_inside_the_clip(
    intercept, bare_records, longer
):
    """Every addition to the computed square loses almost half a unit: only the factor
    1 - (d + 16) 2^-52 of the inner clip bound covers it."""
    x = np.full(40_000, math.sqrt(0.9 * 2.0**-53))
    x[:8] = 1.0
    data = one_record(bare_records, x, 1e9, intercept=intercept)
    for clip in (1.0, 1.3, 1.7):
        v = kernels.glm_gradient(data, np.zeros(data.d), loss="squared", clip=clip)
        assert not longer(v, finest_grid(1, clip), clip)


@pytest.mark.usefixtures("isa")
def test_rounding_away_from_zero_stays_inside_the_clip(bare_records, longer):
    for dim in (1, 4, 64, 1024):
        data = one_record(bare_records, np.ones(dim), 1e9)
        for clip in np.linspace(1.0, 2.0, 97):
            grid = coarsest_grid(clip, dim)
            v = kernels.glm_gradient(data, np.zeros(dim), loss="squared", clip=clip, grid=grid)
            assert not longer(v, grid, clip)


@st.composite
def gradient_cases(draw, n=1):
    """Records, labels, options and model, and a clip norm with a grid between its bounds."""
    *case, clip, loss = draw(random_cases(n))
    fine, coarse = finest_grid(n, clip), coarsest_grid(clip, len(case[-1]))
    grid = fine * 2.0 ** round(draw(st.floats(0, 1)) * math.log2(coarse / fine))
    return *case, {"clip": clip, "grid": grid, "loss": loss}


@given(case=gradient_cases())
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_clip_bound_holds_for_random_records(case, bare_records, longer):
    X, y, options, w, how = case
    v = kernels.glm_gradient(bare_records(X, y, [0, 1], **options), w, **how)
    assert not longer(v, how["grid"], how["clip"])


@given(case=gradient_cases(n=6), others=gradient_cases())
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_the_sum_by_at_most_twice_the_clip(
    case, others, bare_records, longer
):
    X, y, options, w, how = case
    before = kernels.glm_gradient(bare_records(X, y, [0, 6], **options), w, **how)
    X, y = X.copy(), y.copy()
    largest = np.finfo(X.dtype).max
    X[2] = np.clip(np.resize(others[0].astype(float), X.shape[1]), -largest, largest)
    y[2] = -y[2] if others[1][0] > 0 else others[1][0]
    after = kernels.glm_gradient(bare_records(X, y, [0, 6], **options), w, **how)
    assert not longer(after - before, how["grid"], 2 * how["clip"])


@pairwise("isa", "loss", p=[1500, 3000], dtype=["float32", "float64"])
def test_wide_records_without_a_finite_derivative_count_as_nothing(bare_records, loss, p, dtype):
    """Rows that are taken one by one: a NaN margin (inf - inf) of finite rows."""
    X = np.zeros((3, p), dtype=dtype)
    X[:, :2] = [[1.0, 2.0], [0.5, -1.0], [1e10, -1e10]]
    w = np.zeros(p)
    w[:2] = 1e300
    y = np.array([1.0, -1.0, 1.0])
    how = {"loss": loss, "clip": 1.0, "grid": 2.0**-40}
    assert np.isnan(kernels.glm_margins(bare_records(X, y, [0, 3]), w)[2])
    alone = kernels.glm_gradient(bare_records(X[:2], y[:2], [0, 2]), w, **how)
    np.testing.assert_array_equal(kernels.glm_gradient(bare_records(X, y, [0, 3]), w, **how), alone)


@pytest.mark.usefixtures("isa")
def test_an_infinite_derivative_counts_as_the_clip(bare_records):
    data = bare_records(np.array([[1e100, 0.0]]), np.array([1.0]), [0, 1])
    for sign in (-1.0, 1.0):
        v = kernels.glm_gradient(data, np.array([sign * 1e300, 0.0]), loss="squared", clip=2.0)
        np.testing.assert_allclose(v, [[sign * 2.0, 0.0]])


def test_an_empty_minibatch_is_zero(make):
    data = make()
    nothing = (np.empty(0, dtype=np.int64), np.zeros(data.m + 1, dtype=np.int64))
    out = np.full((data.m, data.d), np.nan)
    for clip in (1.0, math.inf):
        kernels.glm_gradient(data, models(data), clip=clip, rows=nothing, out=out)
        assert not np.any(out)


def test_more_silos_than_records_in_the_minibatch(make):
    data = make(n=40, m=39)
    j = 17
    rows = (data.offsets[[j]], (np.arange(data.m + 1) > j).astype(np.int64))
    out = kernels.glm_gradient(data, models(data), clip=1.0, rows=rows, n_threads=7)
    assert np.any(out[j])
    assert not np.any(np.delete(out, j, axis=0))


def test_concurrent_calls_do_not_disturb_each_other(make):
    sets = [make(n=4000, seed=s) for s in range(4)]
    alone = [kernels.glm_gradient(data, models(data), clip=0.5, n_threads=1) for data in sets]

    def work(k):
        for n_threads in (2, 3, 2, 3, 2):
            again = kernels.glm_gradient(sets[k], models(sets[k]), clip=0.5, n_threads=n_threads)
            np.testing.assert_array_equal(again, alone[k])
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_one_record_of_one_feature(bare_records):
    data = bare_records(np.array([[2.0]]), np.array([1.0]), [0, 1])
    w = np.array([0.25])
    np.testing.assert_array_equal(kernels.glm_margins(data, w), [0.5])
    np.testing.assert_array_equal(kernels.glm_losses(data, w, loss="squared"), [0.125])
    np.testing.assert_array_equal(kernels.glm_gradient(data, w, loss="squared", clip=8.0), [[-1.0]])


BAD_MODELS = [
    (np.zeros(10), "w must have shape"),
    (np.zeros((3, 11)), "w must have shape"),
    (np.zeros((11, 4)), "w must have shape"),
    (np.full(11, np.nan), "w must be finite"),
    (np.full(11, np.inf), "w must be finite"),
    (np.zeros(11, dtype=complex), "TypeError: w must be real"),
    ("zeros", "TypeError: w must be real"),
    ([[0.0], [0.0, 1.0]], "w must be a rectangular"),
]


@for_each(("w", "message"), BAD_MODELS)
def test_bad_models_are_refused_by_name(make, w, message):
    data = make()
    for kernel, how in (
        (kernels.glm_margins, {}),
        (kernels.glm_losses, {"loss": "logistic"}),
        (kernels.glm_gradient, {"clip": 1.0}),
    ):
        assert_refused(message, kernel, data, w, **how)


def pair(rows, offsets):
    return np.asarray(rows), np.asarray(offsets)


BAD_GRADIENTS = [
    *(({"clip": c}, "clip must be") for c in (0.0, -1.0, math.nan)),
    ({"clip": None}, "TypeError: clip must be"),
    ({"silo_weight": 1 + 1e-15}, "silo_weight must lie"),
    ({"silo_weight": math.nan}, "silo_weight must lie"),
    ({"silo_weight": [1.0] * 3}, "silo_weight must be a number or"),
    ({"silo_weight": "one"}, "TypeError: silo_weight must be real"),
    ({"grid": 2.0**-5}, "grid must be at most"),
    ({"rows": pair(np.zeros(1, np.int32), [0, 1, 1, 1, 1])}, r"rows\[0\] must be int64"),
    ({"rows": pair([0.0], [0, 1, 1, 1, 1])}, r"rows\[0\] must be int64"),
    ({"rows": pair([True] * 300, [0, 300, 300, 300, 300])}, r"rows\[0\] must be int64"),
    ({"rows": pair([[0]], [0, 1, 1, 1, 1])}, r"rows\[0\] must be int64"),
    ({"rows": pair([0], [0, 0, 1, 1, 1])}, r"rows\[0\] must hold"),
    ({"rows": pair([-1], [0, 1, 1, 1, 1])}, r"rows\[0\] must hold"),
    ({"rows": pair([300], [0, 0, 0, 0, 1])}, r"rows\[0\] must hold"),
    ({"rows": pair([0], [0, 1, 1, 1])}, r"rows\[1\] must be integers of shape \(5,\)"),
    ({"rows": pair([0], [0, 0, 0, 0, 0])}, r"rows\[1\] must rise"),
    ({"rows": pair([0], [0, 1, 0, 1, 1])}, r"rows\[1\] must rise"),
    ({"rows": pair([0], [0.0, 1, 1, 1, 1])}, r"rows\[1\] must be integers"),
]


@for_each(("how", "message"), BAD_GRADIENTS)
def test_bad_gradient_input_is_refused_by_name(make, how, message):
    assert_refused(message, kernels.glm_gradient, make(), np.zeros(11), **({"clip": 1.0} | how))


def test_non_contiguous_minibatches_and_models_are_taken(make):
    data = make()
    k = int(data.offsets[1] + 1) // 2
    rows, offsets = np.arange(data.offsets[1])[::2], np.array([0, k, k, k, k])
    w = np.asfortranarray(models(data))
    np.testing.assert_array_equal(
        kernels.glm_gradient(data, w, clip=1.0, rows=(rows, offsets)),
        kernels.glm_gradient(data, w.copy("C"), clip=1.0, rows=(rows.copy(), offsets)),
    )
