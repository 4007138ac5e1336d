"""clip_and_sum: reference, exact clip bound, exact sums, order, threads, bad input."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from adversarial import coarsest_grid
from cases import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from makers import assert_refused, misaligned, peak_memory, read_only
from pairwise import pairwise

from dpkern import kernels
from dpkern import reference as ref
from dpkern.kernels.grids import finest_grid

FLUSH = 0x8040  # flush-to-zero and denormals-are-zero


def grids(clip, dim, n=1):
    fine, coarse = finest_grid(n, clip), coarsest_grid(clip, dim)
    middle = 2.0 ** round((math.log2(fine) + math.log2(coarse)) / 2)
    return [fine, middle, coarse]


ROWS = {
    "one": [1.0],
    "zero": [0.0, -0.0],
    "computed norm zero": [3e-170, 4e-170],
    "squares denormal": [1e-160, 2e-161],
    "denormal": [5e-324, 2e-310],
    "smallest normal": [2.0**-1022] * 5,
    "squares overflow": [1e300, -1e300, 1.0],
    "largest": [1.7976931348623157e308] * 3,
    "square just finite": [1e154, 1e153],
    "all magnitudes": [10.0**e for e in range(-300, 150, 7)],
    "equal": [1.0] * 1024,
    "halves of a step": [1.0, 0.5, 0.25, 0.125] * 250,
    "long": np.random.default_rng(0).standard_normal(5000),
}
CLIPS = [2.0**-300, 1e-9, 0.1, 1.0, math.pi, 1e9, 2.0**300]


def norm_is_at_most(longer, row, clip, grid):
    out = kernels.clip_and_sum(np.asarray(row)[None, :], clip=clip, grid=grid)
    assert not longer(out, grid, clip)


@for_each("dtype", [np.float32, np.float64])
@for_each("clip", [0.5, math.inf])
@pytest.mark.usefixtures("isa")
def test_clip_and_sum_agrees_with_its_reference(dtype, clip):
    G = np.random.default_rng(0).standard_normal((300, 7)).astype(dtype)
    offsets = np.array([0, 10, 10, 300])
    grid = None if math.isinf(clip) else 2.0**-30
    ours = kernels.clip_and_sum(G, clip=clip, offsets=offsets, grid=grid)
    by_numpy = ref.clip_and_sum(G, clip=clip, offsets=offsets, grid=grid)
    np.testing.assert_allclose(ours, by_numpy, rtol=1e-12, atol=300 * (grid or 1e-15))


@for_each("flush", [0, FLUSH])
@pytest.mark.usefixtures("isa")
def test_a_clipped_row_is_never_longer_than_the_clip(flush, longer, control_bits):
    for name, clip in itertools.product(ROWS, CLIPS):
        row = np.array(ROWS[name])
        for grid in grids(clip, row.size):
            with control_bits(flush):
                out = kernels.clip_and_sum(row[None, :], clip=clip, grid=grid)
            assert not longer(out, grid, clip), name


@pytest.mark.usefixtures("isa")
def test_rounding_away_from_zero_stays_inside_the_clip(longer):
    """All coordinates equal and near half a step of a coarse grid: the worst rounding there is."""
    for dim in (1, 4, 64, 1024):
        for clip in np.linspace(1.0, 2.0, 97):
            norm_is_at_most(longer, np.ones(dim), clip, coarsest_grid(clip, dim))


@pytest.mark.usefixtures("isa")
def test_a_norm_that_rounds_down_at_every_step_stays_inside_the_clip(longer):
    """Every addition to the computed square loses almost half a unit: only the factor
    1 - (d + 16) 2^-52 of the inner clip bound covers it."""
    row = np.full(40_000, math.sqrt(0.9 * 2.0**-53))
    row[:8] = 1.0
    for clip in (1.0, 1.3, 1.7):
        norm_is_at_most(longer, row, clip, finest_grid(1, clip))


@given(
    row=hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        st.integers(1, 20),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    ),
    exponent=st.integers(-1000, 900),
    clip=st.floats(1.0, 2.0),
    clip_exponent=st.integers(-300, 300),
    depth=st.floats(0.0, 1.0),
)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@pytest.mark.usefixtures("isa")
def test_clip_bound_holds_for_random_rows(row, exponent, clip, clip_exponent, depth, longer):
    if row.dtype == np.float64:
        with np.errstate(over="ignore", under="ignore"):
            row = np.ldexp(row, exponent)
    clip = math.ldexp(clip, clip_exponent)
    fine, coarse = finest_grid(1, clip), coarsest_grid(clip, row.size)
    span = math.log2(coarse) - math.log2(fine)
    norm_is_at_most(longer, row, clip, fine * 2.0 ** round(depth * span))


@pairwise(
    "isa",
    dtype=["float32", "float64"],
    dim=[1, 7, 8, 15, 16, 31, 40, 1005, 3072, 3073, 4096, 4097, 5005],
)
def test_sum_is_that_of_rows_alone_for_any_length_and_wherever_rows_are_left_out(dim, dtype, steps):
    """Long rows are taken in twos, their squares in chunks, and rows are squared while others are
    added: a row's norm must not depend on that."""
    rng = np.random.default_rng(dim)
    n = 9 if dim > 100 else 100
    G = (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(0, 4, (n, 1))).astype(dtype)
    clip = 1.1
    q = finest_grid(n, clip)
    each = np.array([kernels.clip_and_sum(row[None, :], clip=clip, grid=q)[0] for row in G])
    for left_out in [[], [0], [1], [0, 1], [2, 5], [n - 1], [n - 2, n - 1], list(range(n))]:
        spoilt = G.copy()
        spoilt[left_out, -1] = math.nan
        whole = kernels.clip_and_sum(spoilt, clip=clip, grid=q)
        kept = np.array(steps(np.delete(each, left_out, axis=0), q), dtype=object)
        assert steps(whole, q) == (kept.reshape(-1, dim).sum(axis=0) + [0] * dim).tolist()


@for_each("dim", [40_960, 40_961, 60_005, 110_007])
@for_each("dtype", [np.float32, np.float64])
@pytest.mark.usefixtures("isa")
def test_wide_rows_shared_by_threads_give_the_sum_of_rows_alone(dim, dtype):
    """Neither the threads among which columns are divided, nor rows left out, nor where a silo
    begins may change the norm or the rounding of a row. Depending on width
    and threads rows are taken one by one, in twos or in larger groups."""
    rng = np.random.default_rng(dim)
    n = 15
    G = (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-3, 1, (n, 1))).astype(dtype)
    G[[2, 8], -1] = math.nan
    q = finest_grid(n, 1.1)
    each = np.array([kernels.clip_and_sum(g[None], clip=1.1, grid=q, n_threads=1)[0] for g in G])
    assert np.count_nonzero(np.any(each, axis=1)) == n - 2
    integers = (each / q).astype(np.int64)
    np.testing.assert_array_equal(integers * q, each)
    squares = (each.astype(np.longdouble) ** 2).sum(axis=1)
    assert np.all(squares <= np.longdouble(1.1) ** 2)
    for offsets in (np.array([0, n]), np.array([0, 1, 1, 3, 6, n])):
        expected = [integers[a:b].sum(axis=0) * q for a, b in itertools.pairwise(offsets)]
        for n_threads in (1, 2, 3, 7):
            out = kernels.clip_and_sum(G, clip=1.1, grid=q, offsets=offsets, n_threads=n_threads)
            np.testing.assert_array_equal(out, expected)


@for_each("dim", [9, 5005, 40_961])
@pytest.mark.usefixtures("isa")
def test_every_silo_is_clipped_for_its_own_grid(dim, longer):
    """The allowance for rounding is that of the silo's grid, whatever those of the others are."""
    clip, G = 1.0, np.ones((3, dim))
    fine, coarse = finest_grid(1, clip), coarsest_grid(clip, dim)
    for grids in ([fine, coarse, fine], [coarse, fine, coarse]):
        out = kernels.clip_and_sum(G, clip=clip, grid=grids, offsets=np.arange(4), n_threads=2)
        for v, q in zip(out, grids, strict=True):
            assert not longer(v, q, clip)
            np.testing.assert_array_equal(v, kernels.clip_and_sum(G[:1], clip=clip, grid=q)[0])


@pairwise("isa", bad=[math.nan, math.inf, -math.inf], dtype=["float32", "float64"])
def test_a_row_without_a_finite_norm_counts_as_zero(bad, dtype):
    G = np.random.default_rng(1).standard_normal((9, 5)).astype(dtype)
    G[4, 2] = bad
    rest = np.delete(G, 4, axis=0)
    q = 2.0**-40
    np.testing.assert_array_equal(
        kernels.clip_and_sum(G, clip=1.0, grid=q), kernels.clip_and_sum(rest, clip=1.0, grid=q)
    )
    np.testing.assert_allclose(
        ref.clip_and_sum(G, clip=1.0, grid=q), ref.clip_and_sum(rest, clip=1.0, grid=q), atol=9 * q
    )


@pytest.mark.usefixtures("isa")
def test_infinite_clip_sums_rows_whose_squares_overflow():
    G = np.array([[1e300, 2.0], [-3e299, 1.0]])
    np.testing.assert_array_equal(kernels.clip_and_sum(G, clip=math.inf), [[7e299, 3.0]])


@for_each("depth", [0, 10, 30])
@pytest.mark.usefixtures("isa")
def test_sum_is_that_of_rounded_rows_for_any_order_partition_and_threads(depth, steps):
    rng = np.random.default_rng(2)
    n, dim, clip = 3000, 9, 0.7
    G = rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-8, 8, (n, 1))
    q = finest_grid(n, clip) * 2.0**depth
    each = kernels.clip_and_sum(G, clip=clip, grid=q, offsets=np.arange(n + 1))
    whole = kernels.clip_and_sum(G, clip=clip, grid=q)
    exact = np.array(steps(each, q), dtype=object).reshape(n, dim).sum(axis=0)
    assert list(exact) == steps(whole, q)
    shuffled = G[rng.permutation(n)]
    for n_threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(
            kernels.clip_and_sum(shuffled, clip=clip, grid=q, n_threads=n_threads), whole
        )
    silos = kernels.clip_and_sum(G, clip=clip, grid=q, offsets=np.array([0, 1, 1, 600, n]))
    np.testing.assert_array_equal(silos.sum(axis=0), whole[0])


@pytest.mark.usefixtures("isa")
def test_grid_none_is_the_finest_that_holds_the_sum(steps):
    for n, clip in [(1, 1.0), (2, 1.0), (3, 1.0), (100, 0.3), (4097, 2.0**-200), (8, 1e30)]:
        q = finest_grid(n, clip)
        assert max(n, 2) * Fraction(clip) <= 2**52 * Fraction(q)
        assert max(n, 2) * Fraction(clip) > 2**51 * Fraction(q)
        G = np.random.default_rng(n).standard_normal((n, 3))
        given_grid = kernels.clip_and_sum(G, clip=clip, grid=q)
        np.testing.assert_array_equal(kernels.clip_and_sum(G, clip=clip), given_grid)
        steps(given_grid, q)
        with pytest.raises(ValueError, match="grid must be at least"):
            kernels.clip_and_sum(G, clip=clip, grid=q / 2)


def test_a_silo_s_grid_is_judged_by_that_silo_s_records(steps):
    """A double holds the silo's sum only where its own records fit, whatever the others hold."""
    G = np.ones((1001, 1))
    offsets = np.array([0, 1, 1001])
    fine, coarse = finest_grid(1, 1.0), finest_grid(1000, 1.0)
    out = kernels.clip_and_sum(G, clip=1.0, offsets=offsets, grid=[fine, coarse])
    steps(out[0], fine)
    steps(out[1], coarse)
    for wrong in ([fine, coarse / 2], [coarse, fine], fine, coarse / 2):
        with pytest.raises(ValueError, match="grid must be at least"):
            kernels.clip_and_sum(G, clip=1.0, offsets=offsets, grid=wrong)


def test_the_coarsest_grid_is_accepted_and_the_next_refused():
    for dim in (1, 4, 1024, 7):
        G = np.ones((1, dim))
        q = 2.0**-10
        edge = 32 * q * math.sqrt(dim)
        kernels.clip_and_sum(G, clip=edge, grid=q)
        with pytest.raises(ValueError, match="grid must be at most"):
            kernels.clip_and_sum(G, clip=edge * (1 - 2.0**-50), grid=q)


def test_clips_outside_the_range_of_grids_are_refused():
    with pytest.raises(ValueError, match="clip"):
        kernels.clip_and_sum(np.ones((1, 1)), clip=1e200)
    with pytest.raises(ValueError, match="grid must be at least"):
        kernels.clip_and_sum(np.ones((1, 1)), clip=1e308, grid=2.0**400)
    with pytest.raises(ValueError, match="grid"):
        kernels.clip_and_sum(np.ones((1, 1)), clip=1e-300)


@for_each("mode", [0x2000, 0x4000, 0x6000])
def test_directed_rounding_is_refused(mode, control_bits):
    G = np.ones((1, 2))
    with control_bits(mode), pytest.raises(RuntimeError, match="rounding mode"):
        kernels.clip_and_sum(G, clip=1.0, grid=2.0**-20)
    assert kernels.clip_and_sum(G, clip=1.0, grid=2.0**-20).shape == (1, 2)


class Foreign:
    """An array of a library that shares memory by DLPack and is no ndarray."""

    def __init__(self, array, device=None):
        self.array, self.device = array, device or array.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.device != self.array.__dlpack_device__():
            raise BufferError("memory of another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


G = np.ones((4, 3))
BAD = [
    ({"G": [[1.0]]}, "TypeError: G"),
    ({"G": G.astype(int)}, "TypeError: G"),
    ({"G": G.astype(">f8")}, "TypeError: G"),
    ({"G": G[0]}, "G"),
    ({"G": G[:0]}, "G"),
    ({"G": G[:, :0]}, "G"),
    ({"G": Foreign(G.astype(int))}, "TypeError: G must be a float32 or float64 array"),
    ({"G": Foreign(G, device=(4, 0))}, "G must lie in the memory of the CPU .* got Foreign"),
    *(({"offsets": o}, "offsets") for o in ([1, 4], [0, 3], [0, 3, 2, 4], [0], [0.0, 4.0])),
    *(({"clip": clip}, "clip must be positive") for clip in (0.0, -1.0, math.nan, -math.inf)),
    *(({"clip": clip}, "TypeError: clip must be") for clip in (None, "1", 1j, True, [1.0])),
    *(
        ({"grid": grid}, "grid must be a power of two")
        for grid in (0.0, -(2.0**-20), 3 * 2.0**-20, math.nan, math.inf, 2.0**-401, 2.0**401)
    ),
    ({"grid": [2.0**-20] * 2}, "grid must be a number or have shape"),
    ({"grid": "fine"}, "TypeError: grid"),
    ({"clip": math.inf, "grid": 2.0**-20}, "grid must be None where clip is infinite"),
    *(({"n_threads": count}, "n_threads must be") for count in (0, -1, True, 1.5, "2")),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(how, message):
    assert_refused(message, kernels.clip_and_sum, **{"G": G, "clip": 1.0, **how})


@for_each("dtype", [np.float32, np.float64])
@for_each("wrap", [lambda a: a, Foreign])
def test_any_memory_layout_gives_the_same_sum(dtype, wrap):
    rows = np.random.default_rng(6).standard_normal((50, 13)).astype(dtype)
    expected = kernels.clip_and_sum(rows, clip=0.5)
    layouts = [np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2], rows[::-1].copy()[::-1]]
    for layout in [rows, read_only(rows), misaligned(rows), *layouts]:
        np.testing.assert_array_equal(kernels.clip_and_sum(wrap(layout), clip=0.5), expected)


@for_each("dtype", [np.float32, np.float64])
@for_each("wrap", [lambda a: a, Foreign])
def test_contiguous_memory_is_not_copied(dtype, wrap):
    rows = wrap(np.ones((20_000, 50), dtype=dtype))
    out = np.empty((1, 50))
    _, peak = peak_memory(kernels.clip_and_sum, rows, clip=1.0, out=out)
    assert peak < 400_000


def test_tensors_are_read_where_they_are():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.float64):
        tensor = torch.randn((40, 9), dtype=dtype, generator=torch.Generator().manual_seed(0))
        expected = kernels.clip_and_sum(tensor.numpy(), clip=0.5)
        for same in (tensor, tensor.T.contiguous().T, torch.nn.Parameter(tensor).detach()):
            np.testing.assert_array_equal(kernels.clip_and_sum(same, clip=0.5), expected)
    for refused in (torch.nn.Parameter(tensor), tensor.to("meta")):
        with pytest.raises(ValueError, match="G must lie in the memory of the CPU"):
            kernels.clip_and_sum(refused, clip=0.5)
    for refused in (tensor.to(torch.bfloat16), tensor.to(torch.float16), tensor.long()):
        with pytest.raises((TypeError, ValueError), match="G"):
            kernels.clip_and_sum(refused, clip=0.5)
