"""Exact sums of clipped gradients of perceptrons: reference, finite differences, one norm
over all layers in rational arithmetic, records that do not touch each other, threads, grids."""

import contextlib
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from cases import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from makers import FUSED, assert_refused, assert_same_on, peak_memory
from pairwise import pairwise

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.kernels.grids import mlp_factor_grid
from dpkern.kernels.mlp import mlp_size

FLUSH = 0x8040  # flush-to-zero and denormals-are-zero
anywhere = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NETWORKS = {
    f"{layers} {activation} {getattr(loss, 'name', loss)}": {
        "layers": layers,
        "activation": activation,
        "loss": loss,
    }
    for layers, loss in (
        ((5,), "softmax"),
        ((1,), "logistic"),
        ((7, 5), "softmax"),
        ((6, 9, 8, 5), "softmax"),
        ((7, 1), "logistic"),
        ((16, 3, 1), "squared"),
        ((4, 1), dpk.losses.Huber(0.7)),
    )
    for activation in ("relu", "tanh")[: len(layers)]
}


every_net = for_each("net", NETWORKS.values(), ids=NETWORKS)


def labelled(data, net, seed=3):
    """The records with labels that the network's loss is for."""
    rng = np.random.default_rng(seed)
    if net["loss"] == "softmax":
        outputs = net["layers"][-1]
        data.task, data.classes = "multiclass", np.arange(outputs)
        data.y = rng.integers(0, outputs, data.n).astype(float)
    elif net["loss"] != "logistic":
        data.y = rng.standard_normal(data.n)
    return data


@pytest.fixture
def records_of(make):
    def records_of(net, n=300, p=11, m=4, *, seed=0, **options):
        options.pop("intercept", None)
        return labelled(make(n, p, m, seed=seed, **options), net)

    return records_of


def parameters(data, net, seed=1, scale=0.5, rows=None):
    size = mlp_size(data.n_features, net["layers"])
    return scale * np.random.default_rng(seed).standard_normal((rows or data.m, size))


@pytest.fixture
def part(bare_records):
    """Some of the records, in silos of their own."""

    def part(data, chosen, offsets):
        kept = {k: getattr(data, k) for k in ("row_bound", "scale", "shift", "task", "classes")}
        return bare_records(data.X[chosen], data.y[chosen], offsets, **kept)

    return part


def unit(data, net, clip, n=None, points=1):
    """q^2, the grid of the sums."""
    sizes = [data.n_features, *net["layers"]]
    return mlp_factor_grid(n or data.n, clip, sizes, points=points) ** 2


def whole(sums, step, steps):
    """sums / step as integers, exactly; fails where an entry is no multiple."""
    return np.array(steps(sums, step), dtype=object).reshape(sums.shape)


def matrices(params, n_features, layers):
    found, begin = [], 0
    for inputs, out in itertools.pairwise([n_features, *layers]):
        found.append(params[begin : begin + out * (inputs + 1)].reshape(out, inputs + 1))
        begin += out * (inputs + 1)
    return found


def loss_of(x, y, params, net):
    """One record's loss, from the definition."""
    a = x
    for k, W in enumerate(matrices(params, len(x), net["layers"]), 1):
        z = W @ np.append(a, 1.0)
        if k < len(net["layers"]):
            a = np.tanh(z) if net["activation"] == "tanh" else np.maximum(z, 0.0)
    if net["loss"] == "softmax":
        return np.log(np.sum(np.exp(z - z.max()))) + z.max() - z[int(y)]
    return ref.loss.block(net["loss"], np.array([y]), z)[0][0]


def gradient_of(x, y, params, net, step=1e-6):
    each = step * np.eye(len(params))
    return np.array(
        [loss_of(x, y, params + e, net) - loss_of(x, y, params - e, net) for e in each]
    ) / (2 * step)


@pairwise("isa", "plain_layout", net=NETWORKS, clip=[0.3, 50.0, math.inf])
def test_sums_agree_with_their_references(layout, net, clip, records_of):
    data = records_of(net, **layout)
    weight = np.linspace(0.1, 1.0, data.m)
    how = dict(net, clip=clip, silo_weight=weight)
    q = 0.0 if math.isinf(clip) else math.sqrt(unit(data, net, clip, points=2))
    largest = 1.0 if math.isinf(clip) else math.sqrt(clip)
    # A factor may be truncated the other way: a step of q times the entries beside it.
    close = {"rtol": 1e-11, "atol": 1e-11 + 40 * q * largest}
    for w in (parameters(data, net), parameters(data, net)[0]):
        np.testing.assert_allclose(
            kernels.mlp_gradient(data, w, **how), ref.mlp_gradient(data, w, **how), **close
        )
        old = w + 0.01 * parameters(data, net, seed=2)[: len(np.atleast_2d(w))].reshape(w.shape)
        for bound in (math.inf, 0.4):
            np.testing.assert_allclose(
                kernels.mlp_difference(data, w, old, gradient_clip=bound, **how),
                ref.mlp_difference(data, w, old, gradient_clip=bound, **how),
                **close,
            )


@pairwise("isa", strength=1, net=NETWORKS)
def test_the_gradient_is_the_derivative_of_the_loss_clipped_to_one_norm_per_record(net, records_of):
    data = records_of(net, n=10, p=4, m=2)
    w = parameters(data, net)
    for clip in (0.2, 1.0, math.inf):
        total = np.zeros_like(w)
        for i in range(data.n):
            j = int(i >= data.offsets[1])
            g = gradient_of(data.X[i], data.y[i], w[j], net)
            total[j] += min(1.0, clip / np.linalg.norm(g)) * g
        sums = kernels.mlp_gradient(data, w, clip=clip, **net)
        np.testing.assert_allclose(sums, total, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("isa")
def test_every_width_and_number_of_records(steps, records_of):
    """Tiles, strips, padded rows, blocks and what is held of them, full and not."""
    sizes = (1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 31, 32, 33, 48, 65)
    for k, (p, n) in enumerate(itertools.product(sizes, (1, 5, 8, 63, 64, 65, 700))):
        net = {
            "layers": (sizes[(k + 3) % 15], sizes[(k + 7) % 15], 2 + k % 11),
            "activation": ("relu", "tanh")[k % 2],
            "loss": "softmax",
        }
        data = records_of(net, n, p, 1)
        w = parameters(data, net, scale=1.0 / math.sqrt(p))[0]
        sums = kernels.mlp_gradient(data, w, clip=1.0, **net)
        np.testing.assert_allclose(sums, ref.mlp_gradient(data, w, clip=1.0, **net), atol=1e-5)
        whole(sums, unit(data, net, 1.0), steps)


@pairwise("isa", net=NETWORKS, clip=[0.3, 1e3])
def test_a_sum_is_that_of_its_records_for_any_order_silos_and_threads(
    net, clip, steps, records_of, part
):
    """The bits of a record's part depend on no other record and on no place."""
    data = records_of(net, n=700, p=13, m=1)
    w, how = parameters(data, net)[0], dict(net, clip=clip)
    old = parameters(data, net, seed=2)[0]
    for points, kernel in (
        (1, lambda d, **more: kernels.mlp_gradient(d, w, **how, **more)),
        (2, lambda d, **more: kernels.mlp_difference(d, w, old, **how, **more)),
    ):
        step = unit(data, net, clip, points=points)
        together = kernel(data, n_threads=1)
        alone = whole(kernel(part(data, np.arange(700), np.arange(701))), step, steps)
        assert (alone.sum(axis=0) == whole(together[0], step, steps)).all()
        order = np.random.default_rng(8).permutation(data.n)
        shuffled = part(data, order, [0, 700])
        for n_threads in (1, 2, 3, 7):
            np.testing.assert_array_equal(kernel(shuffled, n_threads=n_threads), together)
        silos = kernel(part(data, order, [0, 1, 1, 513, 600, 700]))
        assert not np.any(silos[1])
        np.testing.assert_array_equal(silos.sum(axis=0), together[0])


@every_net
def test_one_records_part_is_an_integer_outer_product_in_every_layer(net, steps, records_of, part):
    data = records_of(net, n=40, p=6, m=1)
    w = parameters(data, net)[0]
    alone = part(data, np.arange(40), np.arange(41))
    sums = kernels.mlp_gradient(alone, w, clip=0.5, **net)
    for row in whole(sums, unit(data, net, 0.5), steps):
        for block in matrices(row, data.n_features, net["layers"]):
            assert (block[:, :1] * block[:1] == block * block[0, 0]).all()


@pairwise("isa", net=NETWORKS, clip=[0.3, math.inf])
def test_no_bit_depends_on_threads(net, clip, records_of):
    data = records_of(net, n=2500, p=21, m=3)
    w, old = parameters(data, net), parameters(data, net, seed=2)
    alone = kernels.mlp_gradient(data, w, clip=clip, n_threads=1, **net)
    moved = kernels.mlp_difference(data, w, old, clip=clip, n_threads=1, **net)
    for n_threads in (2, 3, 9):
        how = dict(net, clip=clip, n_threads=n_threads)
        np.testing.assert_array_equal(kernels.mlp_gradient(data, w, **how), alone)
        np.testing.assert_array_equal(kernels.mlp_difference(data, w, old, **how), moved)


@pytest.mark.isa
@every_net
def test_fused_instruction_sets_give_the_same_bits(net, records_of):
    data = records_of(net, n=700, p=77, affine=True)
    w = parameters(data, net, scale=0.1)
    assert_same_on(
        FUSED, lambda: [kernels.mlp_gradient(data, w, clip=C, **net) for C in (0.1, 5.0, math.inf)]
    )


ROWS = {
    "one": [1.0],
    "zero": [0.0, -0.0],
    "computed norm zero": [3e-170, 4e-170],
    "denormal": [5e-324, 2e-310, -1e-315],
    "squares overflow": [1e300, -1e300, 1.0],
    "square just finite": [1e154, 1e153],
    "all magnitudes": [10.0**e for e in range(-300, 150, 7)],
    "equal": [1.0] * 64,
    "long": np.random.default_rng(0).standard_normal(100),
}
ADVERSARIAL = [
    {"layers": (1,), "activation": "relu", "loss": "squared"},
    {"layers": (8, 3), "activation": "relu", "loss": "softmax"},
    {"layers": (5, 7, 6, 1), "activation": "relu", "loss": "squared"},
    {"layers": (9, 4, 1), "activation": "tanh", "loss": "squared"},
]
# The third is just below (5/8)^2: factors of norm sqrt(C) there are ties of coarse grids.
CLIPS = [2.0**-300, 0.1, math.nextafter(25 / 64, 0.0), math.pi, 2.0**300]


@for_each("flush", [0, FLUSH])
@for_each("net", ADVERSARIAL, ids=lambda net: f"{net['layers']}")
@pytest.mark.usefixtures("isa")
def test_one_record_never_adds_more_than_the_clip_over_all_layers(
    flush, net, longer, control_bits, bare_records
):
    softmax = net["loss"] == "softmax"
    labels = [0.0, 2.0] if softmax else [-1.0, 1e300]
    for name, y, bound in itertools.product(ROWS, labels, [math.inf, 0.7]):
        data = bare_records(
            np.array([ROWS[name]]),
            np.array([y]),
            [0, 1],
            row_bound=bound,
            task="multiclass" if softmax else "regression",
            classes=np.arange(3) if softmax else None,
        )
        for clip, scale in itertools.product(CLIPS, (1e-200, 1.0, 1e30)):
            w = parameters(data, net, scale=scale)[0]
            for point in (None, np.zeros_like(w), w * (1 + 1e-9)):
                with control_bits(flush):
                    v = (
                        kernels.mlp_gradient(data, w, clip=clip, **net)
                        if point is None
                        else kernels.mlp_difference(data, w, point, clip=clip, **net)
                    )
                points = 1 if point is None else 2
                assert not longer(v, unit(data, net, clip, points=points), clip), name


@pairwise("isa", strength=1, net=NETWORKS)
def test_a_long_gradient_reaches_the_clip_and_not_once_per_layer(net, longer, records_of):
    """Clipping every layer by itself would let a record of L layers add sqrt(L) C."""
    data = records_of(net, n=64, p=9, m=64, seed=5)
    w = parameters(data, net, scale=2.0)[0]
    free = kernels.mlp_gradient(data, w, clip=math.inf, **net)
    lengths = np.linalg.norm(free, axis=1)
    clip = float(np.median(lengths[lengths > 0.0])) / 10.0
    clipped = kernels.mlp_gradient(data, w, clip=clip, **net)
    for long, v in zip(lengths > 1.01 * clip, clipped, strict=True):
        assert not longer(v, unit(data, net, clip), clip)
        assert not long or np.linalg.norm(v) > 0.9999 * clip
    assert np.count_nonzero(lengths > clip) > 10


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def random_cases(draw, n=4):
    net = dict(draw(st.sampled_from(ADVERSARIAL)))
    p = draw(st.integers(1, 12))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    X = draw(hnp.arrays(dtype, (n, p), elements=finite))
    y = draw(hnp.arrays(np.float64, n, elements=st.floats(-1e300, 1e300)))
    options = {"row_bound": draw(st.sampled_from([math.inf, 1e-3, 1.0, 1e200]))}
    if net["loss"] == "softmax":
        y = draw(hnp.arrays(np.int64, n, elements=st.integers(0, 2))).astype(float)
        options |= {"task": "multiclass", "classes": np.arange(3)}
    size = mlp_size(p, net["layers"])
    scale = 10.0 ** draw(st.integers(-3, 30))
    points = scale * draw(hnp.arrays(np.float64, (2, size), elements=st.floats(-1.0, 1.0)))
    clip = math.ldexp(draw(st.floats(1.0, 2.0)), draw(st.integers(-300, 300)))
    return X, y, options, points, dict(net, clip=clip)


@given(
    case=random_cases(),
    coarser=st.integers(0, 60),
    relative=st.sampled_from([0.01, 0.6, 3.0, math.inf]),
)
@settings(anywhere, max_examples=100)
@pytest.mark.usefixtures("isa")
def test_replacing_one_record_moves_the_sum_by_at_most_the_stated_sensitivity(
    case, coarser, relative, steps, bare_records
):
    X, y, options, points, how = case
    clip, bound = how["clip"], how["clip"] * relative
    before, after = (bare_records(X[i], y[i], [0, 3], **options) for i in ([0, 1, 2], [0, 1, 3]))
    size = points.shape[1]
    # |moved| <= 2 C + grid sqrt(P), both sides squared with a root from above
    root = Fraction(math.isqrt(size << 100) + 1, 1 << 50)
    for count, kernel in (
        (1, lambda d, g: kernels.mlp_gradient(d, points[0], grid=g, **how)),
        (2, lambda d, g: kernels.mlp_difference(d, *points, gradient_clip=bound, grid=g, **how)),
    ):
        q2 = unit(before, how, clip, points=count)
        grid = min(q2 * 2.0**coarser, 2.0**400)
        for step, rounding in ((None, 0), (grid, Fraction(grid))):
            moved = whole((kernel(after, step) - kernel(before, step))[0], step or q2, steps)
            square = sum(moved * moved) * Fraction(step or q2) ** 2
            assert square <= (2 * Fraction(clip) + rounding * root) ** 2


@pytest.mark.usefixtures("isa")
def test_opposite_records_reach_the_sensitivity(bare_records):
    net = {"layers": (1,), "activation": "relu", "loss": "squared"}
    ends = [
        kernels.mlp_gradient(
            bare_records(np.ones((1, 3)), np.array([y]), [0, 1]), np.zeros(4), clip=0.7, **net
        )
        for y in (-1e9, 1e9)
    ]
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(1.4, rel=1e-6)


@pairwise("isa", strength=1, net=NETWORKS)
def test_records_without_a_finite_gradient_count_as_zero_and_change_no_other(net, records_of, part):
    data = records_of(net, n=130, p=6, m=2)
    w, old = parameters(data, net), parameters(data, net, seed=2)
    data.X = data.X.copy()
    bad = [0, 64, 65, 129]
    data.X[bad] = 1e200
    data.X[65, :2] = [1.7e308, -1.7e308]
    kept = np.setdiff1d(np.arange(130), bad)
    inside = np.searchsorted(kept, data.offsets)
    rest = part(data, kept, inside)
    for clip in (0.5, 1e3):
        how = dict(net, clip=clip, grid=max(unit(d, net, clip) for d in (data, rest)) * 16)
        for kernel, points in ((kernels.mlp_gradient, [w]), (kernels.mlp_difference, [w, old])):
            sums = kernel(data, *points, **how)
            assert np.all(np.isfinite(sums))
            if net["activation"] == "relu":  # tanh saturates, and the row's norm overflows alone
                np.testing.assert_allclose(sums, kernel(rest, *points, **how), atol=1e-3 * clip)


@pairwise("isa", strength=1, net=NETWORKS)
def test_a_difference_is_that_of_the_gradients_also_of_points_close_together(net, records_of):
    data = records_of(net, n=200, p=8)
    w, way = parameters(data, net), parameters(data, net, seed=4)
    # The bound is above what a record's gradient jumps by where an input of relu changes sign.
    for distance, bound in ((1.0, 1e3), (1e-3, 30.0), (1e-9, 1e-6)):
        old = w - distance * way
        new_sum, old_sum = (kernels.mlp_gradient(data, v, clip=math.inf, **net) for v in (w, old))
        free = kernels.mlp_difference(data, w, old, clip=math.inf, **net)
        np.testing.assert_allclose(free, new_sum - old_sum, atol=1e-10)
        # A clip that nothing reaches changes nothing but rounding, which is relative to it.
        loose = kernels.mlp_difference(data, w, old, clip=bound, **net)
        np.testing.assert_allclose(loose, free, atol=1e-4 * bound)
    np.testing.assert_array_equal(kernels.mlp_difference(data, w, w, clip=1e-3, **net), 0.0)


@pairwise("isa", net=NETWORKS, bound=[0.8, math.inf])
def test_a_record_adds_the_clipped_difference_of_its_clipped_gradients(
    net, bound, records_of, part
):
    data = records_of(net, n=60, p=6, m=1)
    alone = part(data, np.arange(60), np.arange(61))
    w, old = parameters(data, net)[0], parameters(data, net, seed=2)[0]
    ends = []
    for point in (w, old):
        g = kernels.mlp_gradient(alone, point, clip=math.inf, **net)
        norms = np.linalg.norm(g, axis=1, keepdims=True)
        ends.append(g * np.minimum(1.0, bound / np.maximum(norms, 1e-300)))
    steps = ends[0] - ends[1]
    lengths = np.linalg.norm(steps, axis=1, keepdims=True)
    for clip in (0.2, float(np.median(lengths)) + 0.01, 1e3):
        how = dict(net, clip=clip, gradient_clip=bound)
        wanted = steps * np.minimum(1.0, clip / np.maximum(lengths, 1e-300))
        moved = kernels.mlp_difference(alone, w, old, **how)
        np.testing.assert_allclose(moved, wanted, atol=1e-5 * clip + 1e-9)


@pairwise("isa", strength=1, net=NETWORKS)
def test_clipped_differences_telescope(net, records_of):
    data = records_of(net, n=200, p=8)
    path = [parameters(data, net, seed=seed) for seed in (1, 2, 3)]
    ends = [kernels.mlp_gradient(data, w, clip=0.5, **net) for w in path]
    how = dict(net, clip=1.0, gradient_clip=0.5)  # 2 B clips no difference
    moves = [kernels.mlp_difference(data, v, w, **how) for w, v in itertools.pairwise(path)]
    np.testing.assert_allclose(ends[0] + moves[0] + moves[1], ends[2], atol=1e-4)
    np.testing.assert_array_equal(kernels.mlp_difference(data, path[0], path[0], **how), 0.0)


@for_each("clip", [0.3, 10.0])
@pytest.mark.usefixtures("isa")
def test_a_gradient_that_is_not_finite_at_one_point_counts_as_zero_there(clip, make):
    net = {"layers": (16, 3, 1), "activation": "relu", "loss": "squared"}
    data = make(n=50, p=5, m=2, task="regression")
    w = np.abs(parameters(data, net))
    data.X = np.abs(data.X)
    over = w.copy()
    over[1] *= 1e290  # of the second silo
    how = dict(net, gradient_clip=2.0)
    left = kernels.mlp_gradient(data, w, clip=2.0, **net)[1]
    for sign, points in ((-1.0, (over, w)), (1.0, (w, over))):
        sums = kernels.mlp_difference(data, *points, clip=clip, **how)
        assert np.all(sums[0] == 0.0)
        wanted = sign * min(1.0, clip / 2.0) * left  # every gradient is longer than 2
        np.testing.assert_allclose(sums[1], wanted, atol=1e-4)
    assert not np.any(kernels.mlp_difference(data, over, 2.0 * over, clip=clip, **how)[1])


@for_each("hidden", [1, 2, 40])
@pytest.mark.usefixtures("isa")
def test_blocks_that_cancel_leave_a_difference_within_the_clip(hidden, longer, bare_records):
    """Truncation of two blocks may lengthen their sum; the step is as coarse as it may be. Half of
    the records have inputs c times as long and derivatives 1/c at the other point."""
    net = {"layers": (hidden, 1), "activation": "relu", "loss": "squared"}
    rng = np.random.default_rng(0)
    n, p = 400, 3
    X, y = rng.uniform(0.5, 1.5, (n, p)), np.zeros(n)
    one = np.hstack([X, np.ones((n, 1))])
    data = bare_records(X, y, np.arange(n + 1), task="regression")
    c, scaled = rng.uniform(0.3, 4.0, (n, 1)), np.arange(n)[:, None] % 2 == 0
    delta = rng.uniform(1.0, 2.0, (n, 1))
    near = c * delta * (1.0 + 10.0 ** rng.uniform(-6.0, 0.0, (n, 1)))
    delta_old = np.where(scaled, near, -delta * rng.uniform(0.5, 2.0, (n, 1)))
    firsts = 10.0 ** rng.uniform(0.0, 2.0, (2, n, 1, 1)) * rng.standard_normal(
        (2, n, hidden, p + 1)
    )
    firsts[1] = np.where(scaled[:, None], firsts[0] / c[:, None], firsts[1])
    points = []
    for first, slope in zip(firsts, (delta, delta_old), strict=True):
        a = np.maximum(np.einsum("nop,np->no", first, one), 0.0)
        second = 1e-4 * rng.standard_normal((n, hidden))
        bias = slope - np.sum(second * a, axis=1, keepdims=True)
        points.append(np.hstack([first.reshape(n, -1), second, bias]))
    ends = [kernels.mlp_gradient(data, w, clip=math.inf, **net) for w in points]
    lengths = np.linalg.norm(ends[0] - ends[1], axis=1)
    assert np.count_nonzero(lengths < np.linalg.norm(ends[0], axis=1) / 10.0) > 30
    for clip in (0.7, 1.0, 1.3, 2.0):
        records = 1
        with contextlib.suppress(ValueError):
            while True:
                unit(data, net, clip, 64 * records, points=2)
                records *= 2
        step = unit(data, net, clip, 32 * records, points=2)
        sums = kernels.mlp_difference(data, *points, clip=clip, records=records, **net)
        assert not any(longer(v, step, clip) for v in sums)
        assert np.all(np.linalg.norm(sums, axis=1)[lengths > clip] > 0.95 * clip)


@pytest.mark.usefixtures("isa")
def test_two_classes_are_logistic_regression_with_a_weight_vector_each(make):
    net = {"layers": (2,), "activation": "relu", "loss": "softmax"}
    data = make(n=90, p=5)
    data.classes = np.array([-1, 1])
    w = parameters(data, net)
    minus, plus = w[:, :6], w[:, 6:]
    both = kernels.mlp_gradient(data, w, clip=math.inf, **net)
    one = dict(net, layers=(1,), loss="logistic")
    alone = kernels.mlp_gradient(data, plus - minus, clip=math.inf, **one)
    np.testing.assert_allclose(both, np.hstack([-alone, alone]), atol=1e-12)
    data.intercept, data.d = True, 6
    glm = kernels.glm_gradient(data, plus - minus, loss="logistic", clip=math.inf)
    np.testing.assert_allclose(alone, glm, atol=1e-12)


@pairwise("isa", strength=1, net=NETWORKS)
def test_a_minibatch_sums_the_records_that_it_names(net, records_of, part):
    data = records_of(net, n=150, m=3)
    w = parameters(data, net)
    first, second, _ = data.offsets[:3]
    indices = np.array([*range(first, second, 2), second, second, 149], dtype=np.int64)
    count = len(range(first, second, 2))
    offsets = np.array([0, count, count + 2, count + 3])
    how = dict(net, clip=0.4, grid=4 * unit(data, net, 0.4))
    batch = kernels.mlp_gradient(data, w, rows=(indices, offsets), **how)
    chosen = part(data, indices, offsets)
    np.testing.assert_allclose(batch, kernels.mlp_gradient(chosen, w, **how), atol=1e-5)
    np.testing.assert_allclose(
        batch, ref.mlp_gradient(data, w, rows=(indices, offsets), **how), atol=1e-5
    )
    empty = (np.array([], dtype=np.int64), np.zeros(4, dtype=np.int64))
    assert not np.any(kernels.mlp_gradient(data, w, rows=empty, **how))


@pytest.mark.usefixtures("isa")
def test_more_records_than_are_held_at_a_time(records_of, steps):
    """Silos begin and end inside of what is held, and reach over several of it."""
    net = {"layers": (70, 5), "activation": "relu", "loss": "softmax"}
    data = records_of(net, n=7000, p=50, m=5)
    w, old = parameters(data, net, scale=0.1), parameters(data, net, seed=2, scale=0.1)
    for clip in (0.5, math.inf):
        how = dict(net, clip=clip)
        close = {"rtol": 1e-9, "atol": 1e-4}
        np.testing.assert_allclose(
            kernels.mlp_gradient(data, w, **how), ref.mlp_gradient(data, w, **how), **close
        )
        np.testing.assert_allclose(
            kernels.mlp_difference(data, w, old, **how),
            ref.mlp_difference(data, w, old, **how),
            **close,
        )
    whole(kernels.mlp_gradient(data, w, clip=0.5, **net), unit(data, net, 0.5), steps)


@every_net
def test_a_stated_number_of_records_chooses_the_grid_and_32_times_as_many_are_exact(
    net, records_of, part, steps
):
    data = records_of(net, n=320, m=1)
    w, how = parameters(data, net)[0], dict(net, clip=0.4, records=10)
    step = unit(data, net, 0.4, 320)
    alone = kernels.mlp_gradient(part(data, np.arange(320), np.arange(321)), w, **how)
    fewer = kernels.mlp_gradient(part(data, np.arange(319), [0, 319]), w, **how)
    together = kernels.mlp_gradient(data, w, **how)
    assert (whole(alone, step, steps).sum(axis=0) == whole(together[0], step, steps)).all()
    np.testing.assert_array_equal(together[0] - fewer[0], alone[-1])
    np.testing.assert_allclose(together, ref.mlp_gradient(data, w, **how), atol=1e-5)


@for_each("points", [1, 2])
@every_net
def test_sums_of_more_records_than_were_said_are_exact_until_they_are_clamped(
    points, net, records_of, part, steps
):
    """In the exact sum of all of them, whatever parts of it were added up before."""
    chosen = np.r_[np.zeros(1200, dtype=int), np.arange(100)]
    n, data = len(chosen), records_of(net, n=100, m=1)
    w, old = parameters(data, net)[0], parameters(data, net, seed=2)[0]
    kernel = (kernels.mlp_gradient, kernels.mlp_difference)[points - 1]
    at, how = (w, old)[:points], dict(net, clip=0.4, records=1)
    step = unit(data, net, 0.4, 32, points=points)
    alone = kernel(part(data, chosen, np.arange(n + 1)), *at, **how)
    terms = whole(alone, step, steps)
    assert np.abs(terms.sum(axis=0)).max() > 2**52

    def clamped(k):
        return [max(-(2**52), min(2**52, int(v))) for v in terms[:k].sum(axis=0)]

    for k in (32, 33, 64, 65, n - 1, n):
        for records, rows in (
            (part(data, chosen[:k], [0, k]), None),
            (data, (chosen[:k], np.array([0, k]))),
        ):
            got = kernel(records, *at, rows=rows, **how)
            assert list(whole(got, step, steps)[0]) == clamped(k)
            coarse = kernel(records, *at, rows=rows, grid=step * 2.0**20, **how)
            rounded = [round(Fraction(v, 1 << 20)) for v in clamped(k)]
            assert list(whole(coarse, step * 2.0**20, steps)[0]) == rounded
    by_numpy = getattr(ref, kernel.__name__)(records, *at, rows=rows, **how)
    np.testing.assert_allclose(got, by_numpy, rtol=1e-9, atol=1e-4)
    # What one record more may do, where the clamp acts.
    moved = whole(got, step, steps) - whole(
        kernel(part(data, chosen[:-1], [0, n - 1]), *at, **how), step, steps
    )
    assert sum(int(v) ** 2 for v in moved[0]) * Fraction(step) ** 2 <= Fraction(0.4) ** 2


@every_net
def test_the_size_of_a_minibatch_does_not_move_the_grid(net, steps, records_of):
    """Under Poisson sampling it is private."""
    data = records_of(net, n=150, m=1)
    w = parameters(data, net)
    for count in (1, 149):
        rows = (np.arange(count), np.array([0, count]))
        sums = kernels.mlp_gradient(data, w, rows=rows, clip=0.4, **net)
        alone = kernels.mlp_gradient(data, w, rows=(rows[0][:1], np.array([0, 1])), clip=0.4, **net)
        rest = (rows[0][1:], np.array([0, count - 1]))
        others = kernels.mlp_gradient(data, w, rows=rest, clip=0.4, **net)
        np.testing.assert_array_equal(sums, alone + others)


@pairwise("isa", strength=1, net=NETWORKS)
def test_a_coarser_grid_rounds_the_exact_sum_once_ties_to_even(net, steps, records_of):
    data = records_of(net, n=120, m=3)
    w, q2 = parameters(data, net), unit(data, net, 0.3)
    exact = whole(kernels.mlp_gradient(data, w, clip=0.3, **net), q2, steps)
    for shift in (np.array([0, 1, 2]), np.array([20, 3, 40])):
        grid = q2 * 2.0**shift
        rounded = kernels.mlp_gradient(data, w, clip=0.3, grid=grid, **net)
        for j in range(3):
            nearest = [round(Fraction(v, 1 << int(shift[j]))) for v in exact[j]]
            assert list(whole(rounded[j], grid[j], steps)) == nearest


@every_net
def test_a_weight_scales_every_record_of_its_silo(net, records_of):
    data = records_of(net, m=2)
    w, weight = parameters(data, net), np.array([0.25, 0.0])
    plain = kernels.mlp_gradient(data, w, clip=0.5, **net)
    scaled = kernels.mlp_gradient(data, w, clip=0.5, silo_weight=weight, **net)
    np.testing.assert_allclose(scaled, weight[:, None] * plain, atol=1e-4)


def test_memory_is_that_of_some_records_and_of_the_parameters():
    """Not of all records: ten times as many take no more."""
    rng = np.random.default_rng(0)
    layers, p = (128, 10), 200
    size = mlp_size(p, layers)
    peaks = []
    for n in (2_000, 20_000):
        data = dpk.SiloData(
            rng.standard_normal((n, p)),
            rng.integers(0, 10, n),
            [0, n],
            task="multiclass",
            classes=range(10),
        )
        how = {"layers": layers, "activation": "relu", "loss": "softmax", "clip": 1.0}
        w = 0.1 * rng.standard_normal(size)
        kernels.mlp_gradient(data, w, **how)
        peaks.append(peak_memory(kernels.mlp_gradient, data, w, **how)[1])
    held = 2048 * (p + 128 + 10 + 64) + 6 * size
    assert peaks[1] <= 1.01 * peaks[0]
    assert peaks[1] <= 8 * held + (1 << 18)


NET = {"layers": (3, 1), "activation": "relu", "loss": "logistic", "clip": 1.0}
BAD = [
    ({"layers": ()}, r"TypeError: layers must be a sequence .* got \(\)"),
    ({"layers": 3}, "TypeError: layers must be a sequence"),
    ({"layers": (0, 1)}, r"layers\[0\] must .* got 0"),
    ({"layers": (3, 1.0)}, r"TypeError: layers\[1\] must .* got 1.0"),
    ({"activation": "gelu"}, "activation must .* got 'gelu'"),
    ({"layers": (3, 2)}, r"params must have shape|layers must end with 1"),
    ({"layers": (2,), "w": 24}, "layers must end with 1 for loss = 'logistic', got 2"),
    ({"loss": "softmax"}, "layers must end with one output for each of .* got 1"),
    ({"clip": 1e-130}, "clip must leave room .* n = 300 .* got 1e-130"),
    ({"w": 39}, r"params must have shape \(40,\) or \(4, 40\)"),
]


@for_each(("how", "message"), BAD)
def test_bad_input_is_refused_by_name(how, message, make):
    data = make()
    data.classes = np.array([-1, 1])
    how = NET | how
    assert_refused(message, kernels.mlp_gradient, data, np.zeros(how.pop("w", 40)), **how)


def test_bad_points_and_data_are_refused_by_name(make):
    data = make()
    bad = np.full(40, np.nan)
    with pytest.raises(ValueError, match="params must be finite"):
        kernels.mlp_gradient(data, bad, **NET)
    with pytest.raises(ValueError, match="params_old must be finite"):
        kernels.mlp_difference(data, np.zeros(40), bad, **NET)
    with pytest.raises(ValueError, match=r"params_old must have shape \(40,\), got \(4, 40\)"):
        kernels.mlp_difference(data, np.zeros(40), np.zeros((4, 40)), **NET)
    with pytest.raises(ValueError, match="data must have no intercept"):
        kernels.mlp_gradient(make(intercept=True), np.zeros(43), **NET)
    with pytest.raises(ValueError, match="loss must be 'softmax' for several classes"):
        kernels.mlp_gradient(make(task="multiclass"), np.zeros(40), **NET)
    with pytest.raises(ValueError, match="loss must be one of real targets"):
        kernels.mlp_gradient(data, np.zeros(40), **NET | {"loss": "softmax"})


CLASSES = {"task": "multiclass", "classes": ["a", "b", "c"]}


def test_several_classes_are_numbered_in_the_stated_order_and_belong_to_softmax():
    X = np.arange(12.0).reshape(6, 2)
    y = np.array(["b", "c", "a", "a", "b", "c"])
    data = dpk.SiloData(X, y, [0, 6], **CLASSES | {"classes": ["c", "a", "b"]})
    np.testing.assert_array_equal(data.y, [2, 0, 1, 1, 2, 0])
    np.testing.assert_array_equal(data.classes, ["c", "a", "b"])
    sums = kernels.mlp_gradient(
        data, np.zeros(9), layers=(3,), activation="relu", loss="softmax", clip=math.inf
    )
    target = np.eye(3)[data.y.astype(int)]
    one = np.hstack([X, np.ones((6, 1))])
    np.testing.assert_allclose(sums[0], ((1 / 3 - target).T @ one).ravel(), atol=1e-12)
    with pytest.raises(ValueError, match="a linear model has one output"):
        dpk.solve("gradient_descent", data, loss="squared", budget=None, rounds=1, step_size=0.1)
    both = {"m": 2, "seed": 0, **CLASSES}
    for made in (
        dpk.SiloData.split(X, y, **both),
        dpk.SiloData.from_groups(X, y, [0, 0, 0, 1, 1, 1], **CLASSES),
        dpk.SiloData.from_silos([(X[:3], y[:3]), (X[3:], y[3:])], **CLASSES),
    ):
        assert made.task == "multiclass"
        assert sorted(made.y) == [0, 0, 1, 1, 2, 2]
    for how in ({"how": "by_label"}, {"how": "dirichlet", "concentration": 1.0}):
        with pytest.raises(ValueError, match="task must be classification for how="):
            dpk.SiloData.split(X, y, **both, **how)


def test_a_label_that_one_record_alone_has_numbers_no_other_record():
    """Replacing that record moves the sum by two clips, and not by every record's gradient."""
    X, y = np.ones((100, 2)), np.array(["a"] + 50 * ["b"] + 49 * ["c"])
    how = {"layers": (3,), "activation": "relu", "loss": "softmax", "clip": 0.1}
    sums = [
        kernels.mlp_gradient(dpk.SiloData(X, labels, [0, 100], **CLASSES), np.zeros(9), **how)
        for labels in (y, np.append(["b"], y[1:]))
    ]
    assert 0.0 < np.linalg.norm(sums[0] - sums[1]) <= 0.2
