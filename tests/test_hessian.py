"""Exact sums of clipped Hessians: reference, rationals, Frobenius bound, threads, grids."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
from adversarial import (
    FLUSH,
    ROW_OPTIONS,
    anywhere,
    every_loss,
    models,
    one_record,
    random_cases,
    rows,
)
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import assert_refused, spy_on_calls
from pairwise import pairwise
from rounding import is_fused

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.kernels import hessian
from dpkern.kernels.grids import hessian_row_grid


def row_grid(data, hess_clip):
    return hessian_row_grid(data.n, hess_clip, data.d)


def coarsest_row_grid(hess_clip, dim):
    """The coarsest power of two q with q sqrt(d) <= sqrt(B) / 32."""
    q = 2.0 ** math.floor(math.log2(math.sqrt(hess_clip / dim) / 32))
    while Fraction(q) ** 2 * dim * 1024 > Fraction(hess_clip):
        q /= 2.0
    return q


def whole(H, step, steps):
    """H / step as integers, exactly; fails where an entry is no multiple."""
    return np.array(steps(H, step), dtype=object).reshape(H.shape)


def on_row_grid(data, w, loss, hess_clip, q, silo_weight=None):
    """The kernel with a row grid of the caller's choice."""
    out = np.empty((data.m, data.d, data.d))
    number, params = _core.loss_names().index(loss), np.array([0.7, 0.0])
    w = np.asarray(w, dtype=float).reshape(-1, data.d)
    compiled = _core.Loss(number, params)
    _core.glm_hessian(data, w, compiled, hess_clip, q, None, silo_weight, data.n, out, 1)
    return out


@pairwise("isa", "layout", "loss", hess_clip=[0.05, 3.0, math.inf])
def test_sums_agree_with_their_reference(make, layout, loss, hess_clip):
    for n, p in ((3000, 11), (500, 40), (200, 8)):
        data = make(n=n, p=p, **layout)
        weight = np.linspace(0.1, 1.0, data.m)
        q = 0.0 if math.isinf(hess_clip) else row_grid(data, hess_clip)
        for w in (models(data, scale=0.2), models(data)[0]):
            how = dict(loss=loss, hess_clip=hess_clip, silo_weight=weight)
            by_numpy = ref.glm_hessian(data, w, **how)
            # A row's entry may round the other way: a step of q times the entries beside it.
            largest = 1.0 if math.isinf(hess_clip) else math.sqrt(hess_clip)
            np.testing.assert_allclose(
                kernels.glm_hessian(data, w, **how),
                by_numpy,
                rtol=1e-12,
                atol=1e-11 + 20 * q * largest,
            )


@pairwise("isa", "layout", "loss", hess_clip=[0.05, math.inf])
def test_sums_of_majorants_agree_with_their_reference(make, layout, loss, hess_clip):
    data = make(n=500, p=11, **layout)
    how = dict(loss=loss, hess_clip=hess_clip, curvature="upper_bound")
    w = models(data)
    q = 0.0 if math.isinf(hess_clip) else row_grid(data, hess_clip)
    largest = 1.0 if math.isinf(hess_clip) else math.sqrt(hess_clip)
    np.testing.assert_allclose(
        kernels.glm_hessian(data, w, **how),
        ref.glm_hessian(data, w, **how),
        rtol=1e-12,
        atol=1e-11 + 20 * q * largest,
    )


def test_a_curvature_that_a_loss_does_not_have_is_refused(make):
    data = make()
    with pytest.raises(ValueError, match="curvature"):
        kernels.glm_hessian(
            data, np.zeros(data.d), loss="logistic", hess_clip=1.0, curvature="upper"
        )


@pairwise("isa", "layout", "loss", k=[2, 8, 13])
def test_sums_at_several_models_have_the_bits_of_each(make, layout, loss, k):
    data = make(n=700, **layout)
    rng = np.random.default_rng(k)
    hess_clip = rng.uniform(0.05, 3.0, k)
    steps = 2.0 ** rng.integers(-20, -10, (k, data.m))
    for w in (rng.standard_normal((k, data.d)), rng.standard_normal((k, data.m, data.d))):
        for grid, weight in ((None, None), (steps, np.linspace(0.1, 1.0, data.m))):
            how = dict(loss=loss, silo_weight=weight)
            each = [
                kernels.glm_hessian(
                    data,
                    w[i],
                    hess_clip=hess_clip[i],
                    grid=None if grid is None else grid[i],
                    **how,
                )
                for i in range(k)
            ]
            for n_threads in (1, 3):
                found = kernels.glm_hessians(
                    data, w, hess_clip=hess_clip, grid=grid, n_threads=n_threads, **how
                )
                np.testing.assert_array_equal(found, each)


def test_long_models_are_passes_of_their_own(make, monkeypatch):
    """The sums of a shared pass are in memory for every thread."""
    data = make(n=50, csr=True)
    w = np.random.default_rng(5).standard_normal((2, data.d))
    passes, found = spy_on_calls(monkeypatch, _core, "glm_hessians"), []
    for most in (data.d, data.d - 1):
        monkeypatch.setattr(hessian, "_SHARED_DIM", most)
        found.append(kernels.glm_hessians(data, w, loss="logistic", hess_clip=1.0))
    assert [len(call.given[1]) for call in passes] == [2]
    np.testing.assert_array_equal(*found)


def test_sums_at_several_models_agree_with_their_reference(make):
    data = make(n=300, csr=True, affine=True, intercept=True)
    w = 0.2 * np.random.default_rng(5).standard_normal((3, data.d))
    for how in ({"hess_clip": [0.3, 1.0, 3.0], "grid": 2.0**-10}, {"hess_clip": math.inf}):
        found = kernels.glm_hessians(data, w, loss="logistic", **how)
        by_numpy = ref.glm_hessians(data, w, loss="logistic", **how)
        np.testing.assert_allclose(found, by_numpy, rtol=1e-12, atol=2.0**-9)


@pytest.mark.usefixtures("isa")
def test_sums_at_several_models_saturate_and_leave_out_infinite_rows(bare_records):
    X = scipy.sparse.csr_array(np.random.default_rng(0).standard_normal((40, 5)))
    X.data[7] = 1e200
    data = bare_records(X, np.where(np.arange(40) % 2, 1.0, -1.0), [0, 13, 40])
    w = np.random.default_rng(1).standard_normal((3, 5))
    for how in ({"records": 1, "grid": 2.0**-40}, {"records": 1}, {}):
        found = kernels.glm_hessians(data, w, loss="squared", hess_clip=[1.0, 0.5, 0.1], **how)
        for i, B in enumerate((1.0, 0.5, 0.1)):
            one = kernels.glm_hessian(data, w[i], loss="squared", hess_clip=B, **how)
            np.testing.assert_array_equal(found[i], one)


@pairwise("isa", "layout")
def test_unclipped_sum_is_the_derivative_of_the_gradient(make, layout):
    data = make(n=40, m=2, seed=7, **layout)
    w = models(data, scale=0.2)
    H = kernels.glm_hessian(data, w, loss="logistic", hess_clip=math.inf)
    step = 1e-5
    for k in range(data.d):
        e = np.eye(data.d)[k] * step
        plus, minus = (kernels.glm_gradient(data, v, clip=math.inf) for v in (w + e, w - e))
        np.testing.assert_allclose((plus - minus) / (2 * step), H[:, k], rtol=1e-6, atol=1e-7)


def rounded_rows(data, w, loss, hess_clip, q):
    """The integer rows of one silo from the definition: products rounded in rational arithmetic."""
    fused = is_fused()
    z, norms = kernels.glm_margins(data, w), kernels.glm_norms(data)
    h = np.empty(data.n)
    compiled = _core.Loss(_core.loss_names().index(loss.name), np.array([*loss.params, 0.0]))
    _core.loss_block(compiled, data.y, z, np.empty(data.n), np.empty(data.n), h)
    h = h if data.record_weight is None else h * data.record_weight
    inner = (math.sqrt(hess_clip) - 0.5 * q * math.sqrt(data.d)) * (1 - (data.d + 16) * 2.0**-52)
    X = np.asarray(data.X.toarray() if hasattr(data.X, "toarray") else data.X, dtype=float)
    rows = []
    for x, hi, norm in zip(X, h, norms, strict=True):
        ratio = data.row_bound / norm if norm > data.row_bound else 1.0
        t = min(math.sqrt(max(hi, 0.0)) * ratio, inner / norm) / q
        if data.scale is not None and (data.shift is None or not fused):
            x = data.scale * x + (0.0 if data.shift is None else data.shift)
        elif data.scale is not None:
            terms = zip(data.scale, x, data.shift, strict=True)
            x = [float(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in terms]
        x = np.append(x, np.ones(int(data.intercept)))
        rows.append(
            [round(Fraction(t) * Fraction(v)) if fused else round(Fraction(t * v)) for v in x]
        )
    return np.array(rows, dtype=object)


@pairwise("isa", "layout", "loss")
def test_sum_is_the_exact_one_of_rounded_outer_products(make, layout, loss, steps):
    for hess_clip in (0.1, 1e3):
        data = make(n=150, p=9, m=1, **layout)
        w = models(data)
        q = row_grid(data, hess_clip)
        rows = rounded_rows(data, w, loss, hess_clip, q)
        H = kernels.glm_hessian(data, w, loss=loss, hess_clip=hess_clip)[0]
        assert (whole(H, q * q, steps) == rows.T @ rows).all()


@pairwise("isa", "layout", "loss", hess_clip=[0.3, math.inf])
def test_no_bit_depends_on_threads(make, layout, loss, hess_clip):
    data = make(n=3000, p=21, m=3, **layout)
    how = {"loss": loss, "hess_clip": hess_clip}
    alone = kernels.glm_hessian(data, models(data), n_threads=1, **how)
    np.testing.assert_array_equal(alone, alone.transpose(0, 2, 1))
    for n_threads in (2, 3, 7):
        again = kernels.glm_hessian(data, models(data), n_threads=n_threads, **how)
        np.testing.assert_array_equal(again, alone)


@pytest.mark.usefixtures("isa")
@every_loss
def test_every_width_and_number_of_records(make, loss, steps):
    """Tiles, panels, packed blocks and tasks, full and not."""
    for p in (1, 2, 3, 4, 5, 7, 8, 9, 16, 23, 24, 25, 31, 32, 33, 40, 48, 57, 130):
        for n in (1, 2, 31, 64, 127, 128, 129, 300):
            data = make(n=n, p=p, m=1)
            w = models(data, scale=1 / math.sqrt(p))
            H = kernels.glm_hessian(data, w, loss=loss, hess_clip=1.0)[0]
            by_numpy = ref.glm_hessian(data, w, loss=loss, hess_clip=1.0)[0]
            np.testing.assert_allclose(H, by_numpy, atol=1e-6)
    wide = make(n=40, p=1300, m=1)
    H = kernels.glm_hessian(wide, np.zeros(1300), loss=loss, hess_clip=1.0)
    by_numpy = ref.glm_hessian(wide, np.zeros(1300), loss=loss, hess_clip=1.0)
    np.testing.assert_allclose(H, by_numpy, atol=1e-6)


ROWS = rows(equal=64, long=100)
# The third is just below (5/8)^2: its root rounds to 5/8, (5/8 - q / 2) / q is a tie that rounds up
# to an even number. Only the factor 1 - (d + 16) 2^-52 of the inner bound prevents it.
CLIPS = [2.0**-300, 0.1, math.nextafter(25 / 64, 0.0), math.pi, 2.0**300]


def refuse_more_than(H, q, hess_clip, steps):
    """Fails unless H = q^2 k k^T of an integer k with q^2 |k|^2, its Frobenius norm, within B."""
    k2 = whole(H, q * q, steps)
    square = [math.isqrt(v) for v in np.diag(k2)]
    assert np.all(np.abs(k2) == np.outer(square, square))
    assert sum(np.diag(k2)) * Fraction(q) ** 2 <= Fraction(hess_clip)


@for_each("flush", [0, FLUSH])
@for_each("options", ROW_OPTIONS.values(), ids=ROW_OPTIONS)
@pytest.mark.usefixtures("isa")
def test_one_record_never_adds_more_than_the_clip(
    flush, options, bare_records, steps, control_bits
):
    for name, y, hess_clip in itertools.product(ROWS, [-1.0, 1e300], CLIPS):
        data = one_record(bare_records, ROWS[name], y, **options)
        w = np.full(data.d, 1e200 if y == 1e300 else 0.1)
        fine, coarse = row_grid(data, hess_clip), coarsest_row_grid(hess_clip, data.d)
        for q, loss, weight in (
            (fine, "squared", None),
            (fine, "squared", np.array([0.7])),
            (coarse, "squared", None),
            (coarse, "logistic", None),
        ):
            with control_bits(flush):
                H = on_row_grid(data, w, loss, hess_clip, q, weight)
            refuse_more_than(H[0], q, hess_clip, steps)


@pytest.mark.usefixtures("isa")
def test_rounding_away_from_zero_stays_inside_the_clip(bare_records, steps):
    for dim in (1, 4, 64):
        data = bare_records(np.ones((1, dim)), np.ones(1), [0, 1])
        reached = []
        for hess_clip in np.linspace(0.5, 0.99, 97):
            q = coarsest_row_grid(hess_clip, dim)
            H = on_row_grid(data, np.zeros(dim), "squared", hess_clip, q)[0]
            refuse_more_than(H, q, hess_clip, steps)
            reached.append(np.trace(H) / hess_clip)
        assert max(reached) > 0.99


@given(case=random_cases(n=4), coarser=st.integers(0, 60))
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_the_sum_by_at_most_the_stated_sensitivity(
    case, coarser, bare_records, steps
):
    X, y, options, w, hess_clip, loss = case
    how, d = {"hess_clip": hess_clip, "loss": loss}, len(w)
    q2 = hessian_row_grid(3, hess_clip, d) ** 2
    grid = min(q2 * 2.0**coarser, 2.0**400)
    other = [0, 1, 3]
    before, after = (bare_records(X[i], y[i], [0, 3], **options) for i in ([0, 1, 2], other))
    for step, rounding in ((None, 0), (grid, Fraction(grid) * d)):
        H, G = (kernels.glm_hessian(data, w, grid=step, **how)[0] for data in (before, after))
        moved = whole(H - G, step or q2, steps) * Fraction(step or q2)
        root = Fraction(math.isqrt(2 << 200) + 1, 1 << 100)  # just above sqrt(2)
        assert np.sum(moved * moved) <= (root * Fraction(hess_clip) + rounding) ** 2


@pytest.mark.usefixtures("isa")
def test_orthogonal_records_reach_the_sensitivity(bare_records):
    for hess_clip in (0.01, 1 / 3, 1.0):
        H, G = (
            kernels.glm_hessian(
                bare_records(x, np.ones(1), [0, 1]),
                np.zeros(2),
                loss="squared",
                hess_clip=hess_clip,
            )
            for x in (np.array([[3e9, 0.0]]), np.array([[0.0, 4e9]]))
        )
        distance = np.linalg.norm(H - G)
        assert distance == pytest.approx(math.sqrt(2) * hess_clip, rel=1e-6)


@pytest.mark.usefixtures("isa")
def test_a_coarser_grid_rounds_the_exact_sum_once_ties_to_even(make, steps):
    data = make(n=500, p=10, m=3)
    w, q = models(data), row_grid(data, 0.3)
    how = {"loss": "logistic", "hess_clip": 0.3}
    exact = whole(kernels.glm_hessian(data, w, **how), q * q, steps)
    for shift in (np.array([0, 1, 2]), np.array([20, 3, 40])):
        grid = q * q * 2.0**shift
        rounded = kernels.glm_hessian(data, w, grid=grid, **how)
        for j in range(3):
            factor = 1 << int(shift[j])
            nearest = [round(Fraction(v, factor)) for v in exact[j].ravel()]
            assert list(whole(rounded[j], grid[j], steps).ravel()) == nearest


@pytest.mark.usefixtures("isa")
@every_loss
def test_records_without_a_finite_curvature_or_norm_never_raise(bare_records, loss):
    """A NaN margin (inf - inf), a row that the feature map makes infinite."""
    rest = np.array([[1.0, 2.0], [0.5, -1.0]])
    w = np.array([1e300, 1e300])
    how = {"loss": loss, "hess_clip": 1.0}
    X = np.vstack([rest, [[1e200, 1.0]]])
    unit = {"scale": np.array([1e200, 1.0]), "shift": np.array([1.0, 0.0])}
    X[:2, 0] = 0.0
    X0 = np.vstack([X[:2], np.zeros((1, 2))])
    labels = np.array([1.0, -1.0, 1.0])
    overflow, zero = (
        kernels.glm_hessian(bare_records(rows, labels, [0, 2, 3], **unit), w, **how)
        for rows in (X, X0)
    )
    assert not np.any(overflow[1])
    np.testing.assert_array_equal(overflow[0], zero[0])
    for bad in ([1e150, -1e150], [-1e150, 1e150]):
        data = bare_records(np.array([bad]), np.ones(1), [0, 1])
        assert np.isnan(kernels.glm_margins(data, w)[0])
        H = kernels.glm_hessian(data, w, **how)
        assert np.all(np.isfinite(H))
        assert np.trace(H[0]) <= 1.0
        if loss.name in ("logistic", "huber", "smoothed_hinge", "squared_hinge"):
            assert not np.any(H)


@given(
    n=st.one_of(st.integers(1, 10**6), st.integers(1, 2**40)),
    mantissa=st.floats(1.0, 2.0),
    exponent=st.integers(-420, 420),
)
def test_row_grid_is_the_finest_that_keeps_sums_exact(n, mantissa, exponent):
    hess_clip = math.ldexp(mantissa, exponent)
    try:
        q = Fraction(hessian_row_grid(n, hess_clip, 1))
    except ValueError:
        too_fine = Fraction(hess_clip) < 1024 * Fraction(2) ** -400
        assert too_fine or n * math.ceil(Fraction(hess_clip) / Fraction(2) ** 400) > 2**52
        return
    assert n * math.ceil(Fraction(hess_clip) / q**2) <= 2**52
    assert q == Fraction(2) ** -200 or n * math.ceil(4 * Fraction(hess_clip) / q**2) > 2**52
    assert float(q) == max(ref.hessian.row_grid(n, hess_clip), 2.0**-200)


BAD = [
    ({"hess_clip": 0.0}, "hess_clip must .* got 0.0"),
    ({"hess_clip": math.nan}, "hess_clip must .* got nan"),
    ({"hess_clip": math.inf, "grid": 1.0}, "grid must be None where hess_clip is infinite"),
    ({"hess_clip": "1"}, "TypeError: hess_clip must .* got '1'"),
    ({"hess_clip": 1e-130}, "hess_clip must leave room .* n = 300 .* d = 11 .* got 1e-130"),
    ({"hess_clip": 1e140}, "hess_clip must leave room .* n = 300 .* got 1e.140"),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(make, how, message):
    assert_refused(
        message,
        kernels.glm_hessian,
        make(),
        np.zeros(11),
        **({"loss": "logistic", "hess_clip": 1.0} | how),
    )


def test_far_more_records_than_declared_are_refused(bare_records):
    n = 1 << 12
    data = bare_records(np.ones((n, 1)), np.ones(n), [0, n])
    kernels.glm_hessian(data, np.zeros(1), loss="logistic", hess_clip=1.0, records=3)
    with pytest.raises(ValueError, match=r"records must be above a 2\^11-th .*, got 2"):
        kernels.glm_hessian(data, np.zeros(1), loss="logistic", hess_clip=1.0, records=2)


def test_too_many_records_for_their_dimension_are_refused():
    hessian_row_grid(2**30, 1.0, 2**10)
    with pytest.raises(ValueError, match=f"n = {2**36} records of d = {2**10} coordinates"):
        hessian_row_grid(2**36, 1.0, 2**10)
