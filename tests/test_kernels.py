"""What holds of several kernels alike: instruction sets, order, batches, outputs, forks."""

import inspect
import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from adversarial import every_loss
from cases import for_each
from makers import (
    FUSED,
    assert_refused,
    assert_same_on,
    beside,
    misaligned,
    options_of,
    read_only,
)
from pairwise import pairwise

from dpkern import _core, kernels
from dpkern.kernels import ProxState
from dpkern.kernels.grids import finest_grid, hessian_row_grid
from dpkern.models.losses import Logistic, Squared

STEPS, BOUNDS = np.array([0.0, 1.0, -0.5, 40.0]), np.array([1.0, 0.3, 5.0, 77.0])


def points(data, seed=1):
    """Two models for each silo."""
    scale = 0.5 / math.sqrt(data.d / 11)
    return scale * np.random.default_rng(seed).standard_normal((2, data.m, data.d))


def sweep(kind, data, w, loss):
    state = getattr(ProxState, kind)(data, np.full(data.d, 0.1))
    how = {"loss": loss, "clip": 0.5, "prox_step": 2.0, "relaxation": 0.4, "grid": 2.0**-25}
    if kind == "public":
        how |= {"sigma": 0.3, "rng": 5}
    sums = [kernels.prox_sweep(data, state, z, **how) for z in w[:, 0]]
    return [*sums, *(a for a in (state.common, state.scale) if a is not None)]


def rows_of(data, w, loss):
    dense = isinstance(data.X, np.ndarray)
    return [kernels.clip_and_sum(data.X, clip=0.1)] if dense else []


def of_convex(compute):
    """A result of kernels that read neither weights nor offsets, and convex losses only."""

    def computed(data, w, loss):
        fits = loss.convex and data.record_weight is None
        return compute(data, w, loss) if fits else []

    return computed


# All arrays that a kernel gives of records, two points and a loss.
RESULTS = {
    "rows": rows_of,
    "margins": lambda data, w, loss: [kernels.glm_margins(data, w[0])],
    "products": lambda data, w, loss: [kernels.glm_products(data, w[0].T)],
    "gradients": lambda data, w, loss: [kernels.glm_gradient(data, w[0], loss=loss, clip=0.5)],
    "differences": lambda data, w, loss: [
        kernels.glm_difference(data, *w, loss=loss, clip=0.3, gradient_clip=0.4)
    ],
    "Hessians": lambda data, w, loss: [
        kernels.glm_hessian(data, w[0], loss=loss, hess_clip=clip) for clip in (0.1, math.inf)
    ],
    "lines": lambda data, w, loss: [
        kernels.line_search(data, *w, loss=loss, steps=STEPS, bound=bound)
        for bound in (None, BOUNDS)
    ],
    "proxes": of_convex(
        lambda data, w, loss: kernels.loss_prox(
            data, np.resize(w, (data.n, data.d)), 4.0, loss=loss, clip=0.5
        )
    ),
    **{
        f"sweeps, {kind}": of_convex(lambda data, w, loss, kind=kind: sweep(kind, data, w, loss))
        for kind in ("collapsed", "per_user", "public")
    },
}


@pytest.mark.isa
@pairwise("layout", "loss", kernel=RESULTS)
def test_fused_instruction_sets_give_the_same_bits(make, layout, loss, kernel):
    data = make(n=700, p=77, **layout)
    assert_same_on(FUSED, lambda: kernel(data, points(data), loss))


@pytest.mark.isa
@pytest.mark.parametrize("options", [{}, {"csr": True}, {"affine": True, "dtype": np.float32}])
@every_loss
def test_wide_rows_have_the_same_bits_on_fused_instruction_sets(make, loss, options):
    data = make(n=300, p=1200, row_bound=12.0, **options)
    assert_same_on(FUSED, lambda: RESULTS["differences"](data, points(data), loss))


@pairwise("layout", "loss", kernel=["gradient", "difference"])
def test_the_baseline_differs_by_roundings_only(make, layout, loss, kernel):
    data = make(n=700, p=77, **layout)
    (new, old), how = points(data), {"loss": loss, "clip": 0.5, "grid": 2.0**-35}
    assert_same_on(
        list(dict.fromkeys((_core.isa(), "base"))),
        lambda: [
            kernels.glm_gradient(data, new, **how)
            if kernel == "gradient"
            else kernels.glm_difference(data, new, old, **how)
        ],
        atol=data.n * 2.0**-35,
    )


# A kernel, and the step of its sums for n records of d coordinates: a power of two times `depth`.
SUMS = {
    "gradients": (
        lambda data, w, **how: kernels.glm_gradient(data, w[0], clip=0.6, **how),
        lambda n, d: finest_grid(n, 0.6),
    ),
    "differences": (
        lambda data, w, **how: kernels.glm_difference(data, *w, clip=0.3, gradient_clip=0.5, **how),
        lambda n, d: finest_grid(n, 0.3),
    ),
    "Hessians": (
        lambda data, w, **how: kernels.glm_hessian(data, w[0], hess_clip=0.3, **how),
        lambda n, d: hessian_row_grid(n, 0.3, d) ** 2,
    ),
    "lines": (
        lambda data, w, **how: kernels.line_search(data, *w, steps=STEPS, bound=BOUNDS, **how),
        lambda n, d: finest_grid(n, 77.0),
    ),
}


@pairwise("isa", "layout", "loss", kernel=SUMS, depth=[0, 12, 24])
def test_a_sum_is_that_of_rounded_records_for_any_order_silos_and_threads(
    make, bare_records, layout, loss, kernel, depth, steps
):
    compute, step_of = kernel
    data = make(n=1100, p=13, m=1, **layout)
    w, q = points(data)[:, 0], step_of(data.n, data.d) * 2.0**depth
    how = {"loss": loss, "grid": None if kernel is SUMS["Hessians"] else q}
    q = step_of(data.n, data.d) if how["grid"] is None else q
    whole = compute(data, w, n_threads=1, **how)
    each = bare_records(data.X, data.y, np.arange(data.n + 1), **options_of(data), **beside(data))
    parts = np.array(steps(compute(each, w, **how), q), dtype=object).reshape(data.n, -1)
    assert list(parts.sum(axis=0)) == steps(whole, q)
    order = np.random.default_rng(8).permutation(data.n)
    how_mapped = options_of(data) | beside(data, order)
    shuffled = bare_records(data.X[order], data.y[order], data.offsets, **how_mapped)
    for n_threads in (1, 2, 3, 7):
        np.testing.assert_array_equal(compute(shuffled, w, n_threads=n_threads, **how), whole)
    how_mapped = options_of(data) | beside(data)
    split = bare_records(data.X, data.y, [0, 1, 1, 513, 1000, data.n], **how_mapped)
    silos = compute(split, w, **how)
    assert not np.any(silos[1])
    np.testing.assert_array_equal(silos.sum(axis=0), whole[0])


@pairwise("isa", "layout", "loss", kernel=["gradients", "differences"])
def test_a_minibatch_is_the_full_kernel_on_gathered_records(
    make, layout, bare_records, loss, kernel
):
    """In any order, with records twice and silos without any."""
    data, (compute, _) = make(n=1500, **layout), SUMS[kernel]
    rng, first = np.random.default_rng(6), np.arange(*data.offsets[:2])[::-1]
    rows = [first, [], data.offsets[2:3], rng.integers(*data.offsets[3:], 900)]
    offsets = np.cumsum([0, *map(len, rows)])
    rows = np.concatenate(rows).astype(np.int64)
    how_mapped = options_of(data) | beside(data, rows)
    gathered = bare_records(data.X[rows], data.y[rows], offsets, **how_mapped)
    how = {"loss": loss, "silo_weight": np.array([1.0, 0.5, 0.0, 0.25])}
    margins = [None, rng.standard_normal(data.n)] if kernel == "differences" else [None]
    for kept in margins:
        more = {} if kept is None else {"margins": kept}
        whole = {} if kept is None else {"margins": kept[rows]}
        np.testing.assert_array_equal(
            compute(data, points(data), rows=(rows, offsets), **more, **how),
            compute(gathered, points(data), **whole, **how),
        )


@for_each("p", [1, 33, 1200])
@for_each("kernel", ["gradient", "difference", "rows"])
@pytest.mark.usefixtures("isa")
def test_opposite_records_are_exactly_twice_the_clip_apart_at_most(bare_records, longer, p, kernel):
    """And not less: the bound is what one record can reach, up to the allowance for rounding."""
    x = np.random.default_rng(3).standard_normal((1, p))
    for clip in (0.01, 1 / 3, 1.0):
        grid, ends = finest_grid(2, clip), []
        how = {"loss": "squared", "clip": clip, "grid": grid}
        for sign in (1.0, -1.0):
            if kernel == "gradient":
                data, w = bare_records(x, np.array([1e9 * sign]), [0, 1]), np.zeros(p)
                ends.append(kernels.glm_gradient(data, w, **how))
            elif kernel == "rows":
                ends.append(kernels.clip_and_sum(1e9 * sign * x, clip=clip, grid=grid))
            else:
                data, w = bare_records(x, np.zeros(1), [0, 1]), 1e9 * sign * x[0]
                ends.append(kernels.glm_difference(data, w, -w, gradient_clip=clip, **how))
        np.testing.assert_array_equal(ends[0], -ends[1])
        assert not longer(ends[0] - ends[1], grid, 2 * clip)
        assert longer(ends[0] - ends[1], grid, 2 * clip * (1 - 1e-11))


@for_each("kernel", ["gradients", "differences"])
@pytest.mark.usefixtures("isa")
@every_loss
def test_records_without_a_finite_derivative_or_norm_count_as_nothing(bare_records, loss, kernel):
    """A NaN margin (inf - inf), an infinite one, a row that the feature map makes infinite."""
    compute, _ = SUMS[kernel]
    rest, labels = np.array([[1.0, 2.0], [0.5, -1.0]]), np.array([1.0, -1.0, 1.0])
    far, near = np.full(2, 1e300), np.array([0.1, -0.2])
    how = {"loss": loss, "grid": 2.0**-40}
    alone = compute(bare_records(rest, labels[:2], [0, 2]), (far, -far), **how)
    for bad in ([1e150, -1e150], [-1e150, 1e150]):
        data = bare_records(np.vstack([rest, [bad]]), labels, [0, 3])
        assert np.isnan(kernels.glm_margins(data, far)[2])
        np.testing.assert_array_equal(compute(data, (far, -far), **how), alone)
    unit = {"scale": np.array([1e200, 1.0]), "shift": np.array([1.0, 0.0])}
    X = np.vstack([rest * [0.0, 1.0], [1e200, 1.0]])
    with_overflow, without = (
        compute(bare_records(X[:n], labels[:n], [0, n], **unit), (far, near), **how) for n in (3, 2)
    )
    np.testing.assert_array_equal(with_overflow, without)


@pairwise("isa", "layout", kernel=["margins", "gradients", "Hessians"])
def test_kept_norms_change_no_bit(make, layout, kernel):
    data, compute = make(n=900, **layout), RESULTS[kernel]
    fresh = compute(data, points(data), "logistic")
    data.row_norms = kernels.glm_norms(data)
    for a, b in zip(fresh, compute(data, points(data), "logistic"), strict=True):
        np.testing.assert_array_equal(a, b)


@pairwise("isa", "layout", "loss", kernel=["gradient", "Hessian"])
def test_an_inactive_clip_changes_nothing_but_rounding(make, layout, loss, kernel):
    data = make(n=60, m=2, **layout)
    w = 0.2 * points(data)[0]
    if kernel == "gradient":
        free, loose = (kernels.glm_gradient(data, w, loss=loss, clip=c) for c in (math.inf, 1e6))
    else:
        free, loose = (
            kernels.glm_hessian(data, w, loss=loss, hess_clip=c) for c in (math.inf, 1e6)
        )
    off = {"rtol": 1e-7, "atol": 1e-5} if kernel == "gradient" else {"rtol": 1e-4, "atol": 1e-2}
    np.testing.assert_allclose(loose, free, **off)


CALLS = {
    "margins": lambda data, w, **how: kernels.glm_margins(data, w[0], **how),
    "products": lambda data, w, **how: kernels.glm_products(data, w[0].T, **how),
    "losses": lambda data, w, **how: kernels.glm_losses(data, w[0], loss="logistic", **how),
    "gradients": lambda data, w, **how: kernels.glm_gradient(data, w[0], clip=1.0, **how),
    "differences": lambda data, w, **how: kernels.glm_difference(
        data, *w, loss="logistic", clip=1.0, **how
    ),
    "Hessians": lambda data, w, **how: kernels.glm_hessian(
        data, w[0], loss="logistic", hess_clip=1.0, **how
    ),
    "lines": lambda data, w, **how: kernels.line_search(
        data, *w, loss="logistic", steps=STEPS, **how
    ),
    "bounded lines": lambda data, w, **how: kernels.line_search(
        data, *w, loss="logistic", steps=STEPS, bound=BOUNDS, **how
    ),
    "local runs": lambda data, w, **how: kernels.glm_local_descent(
        data, w[0], loss="logistic", clip=0.7, steps=3, step_size=0.1, **how
    ),
    "perceptrons": lambda data, w, **how: kernels.mlp_gradient(
        data, np.ones(12), layers=(1,), activation="relu", loss="squared", clip=1.0, **how
    ),
    "rows": lambda data, w, **how: kernels.clip_and_sum(data.X, clip=1.0, **how),
}


@for_each("kernel", CALLS)
def test_out_is_written_and_returned(make, kernel):
    data, compute = make(), CALLS[kernel]
    expected = compute(data, points(data))
    out = np.full(expected.shape, np.nan)
    assert compute(data, points(data), out=out) is out
    np.testing.assert_array_equal(out, expected)
    other = [out.tolist(), *map(out.astype, ("f4", ">f8")), out[..., :-1], out[..., np.newaxis]]
    for bad in (*other, np.repeat(out, 2, axis=-1)[..., ::2], read_only(out), misaligned(out)):
        with pytest.raises(ValueError, match="out must be"):
            compute(data, points(data), out=bad)


# What is wrong for every kernel that has the arguments; where there are weights, rows are a pair.
WRONG = [
    ({"loss": "hinge"}, "loss must be one of .* got 'hinge'"),
    ({"loss": None}, "TypeError: loss must be .* got None"),
    ({"clip": 0.0}, "clip must .* got 0.0"),
    ({"clip": math.inf, "grid": 1.0}, "grid must be None where clip is infinite"),
    ({"grid": 3 * 2.0**-20}, "grid must be a power of two"),
    ({"grid": 2.0**-51}, "grid must be at least"),
    ({"grid": [2.0**-20] * 3}, "grid must be a number"),
    ({"silo_weight": 1.5}, "silo_weight must lie"),
    ({"silo_weight": -0.1}, "silo_weight must lie"),
    ({"silo_weight": None, "rows": np.arange(4)}, "TypeError: rows must be a pair"),
    *(({"n_threads": count}, "n_threads must be") for count in (0, -1, True, 1.5, "2")),
]
W, NET = np.zeros(11), {"layers": (1,), "activation": "relu"}
GIVEN = {
    kernels.glm_margins: {"w": W},
    kernels.glm_products: {"W": W[:, np.newaxis]},
    kernels.glm_losses: {"w": W},
    kernels.glm_gradient: {"w": W, "clip": 1.0},
    kernels.glm_difference: {"w_new": W, "w_old": W, "clip": 1.0},
    kernels.glm_hessian: {"w": W, "hess_clip": 1.0},
    kernels.line_search: {"w": W, "p": W, "steps": STEPS, "bound": BOUNDS},
    kernels.glm_local_descent: {"w": W, "clip": 1.0, "steps": 3, "step_size": 0.1},
    kernels.mlp_gradient: {"params": np.zeros(12), "clip": 1.0, **NET},
    kernels.loss_prox: {"V": np.zeros((300, 11)), "gamma": 1.0, "clip": 1.0},
    kernels.prox_sweep: {
        "state": ProxState(W, np.zeros(300)), "z": W, "clip": 1.0, "prox_step": 1.0,
        "relaxation": 0.5,
    },
}  # fmt: skip


@for_each("kernel", GIVEN, ids=lambda kernel: kernel.__name__)
def test_wrong_arguments_are_refused_by_name(make, kernel):
    own, good = inspect.signature(kernel).parameters, GIVEN[kernel]
    good = good | {"loss": "squared"} if "loss" in own else good
    for wrong, message in WRONG:
        if own.keys() >= wrong.keys():
            assert_refused(message, kernel, make(), **good | wrong)


def test_losses_are_taken_by_name_and_by_object(make):
    data = make()
    new, old = points(data)
    for name, loss in (("logistic", Logistic()), ("squared", Squared())):
        for one, other in (
            [kernels.line_search(data, new, old, loss=v, steps=STEPS) for v in (name, loss)],
            [
                kernels.loss_prox(data, np.ones((data.n, data.d)), 1.0, loss=v, clip=1.0)[1]
                for v in (name, loss)
            ],
        ):
            np.testing.assert_array_equal(one, other)


FORKED = {
    "rows": "dpk.kernels.clip_and_sum(X, clip=1.0, n_threads=2)",
    "local runs": "dpk.kernels.glm_local_descent(data, np.zeros(10), loss='logistic', clip=1.0, "
    "steps=3, step_size=0.1, sigma=1.0, grid=2.0**-20, rng=1, n_threads=2)",
    "directions": "dpk.kernels.newton_direction(H, np.ones((4, 90)), floor=0.5, n_threads=2)",
    "a run": "dpk.solve('gradient_descent', data, budget=dpk.Budget(mu=1.0), clip=1.0, rounds=3, "
    "step_size=0.1, rng=5, n_threads=2).w",
}


@pytest.mark.processes
@pytest.mark.parametrize("call", FORKED.values(), ids=FORKED)
def test_a_forked_child_finishes_after_a_parallel_region_in_the_parent(call):
    program = f"""
        import os, sys
        import numpy as np
        import dpkern as dpk
        X = np.random.default_rng(0).standard_normal((20_000, 10))
        data = dpk.SiloData(X, np.sign(X[:, 0]), np.arange(0, 20_001, 5_000))
        H = np.random.default_rng(0).standard_normal((4, 90, 90))
        parent = {call}
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal({call}, parent) else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, timeout=60)
