"""The direct calls of kernels whose bits are recorded."""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from released_data import data, numbers

import dpkern as dpk
from dpkern import kernels
from dpkern.kernels.glm import loss_derivatives, loss_values
from dpkern.kernels.mlp import mlp_size
from dpkern.kernels.persons import glm_person_gradient
from dpkern.models.losses import Huber, SmoothedHinge
from dpkern.models.penalties import L1, PL, Box, ElasticNet, GroupLasso, L2Ball, Simplex
from dpkern.stream import Purpose

SEED = 7
LOSSES = {
    "dense": "logistic",
    "plain": "squared",
    "float32": Huber(0.75),
    "csr": SmoothedHinge(0.5),
    "range": "squared_hinge",
}

Call = Callable[..., Any]  # takes n_threads


def of_linear_models() -> Iterator[tuple[str, Call]]:
    for layout, loss in LOSSES.items():
        d = data(f"{layout}-large")
        w, v = 0.25 * numbers("w", d.m, d.d), 0.25 * numbers("v", d.m, d.d)
        chosen = np.arange(1, d.n, 7)
        rows = chosen, np.searchsorted(chosen, d.offsets)
        gradient = partial(kernels.glm_gradient, d, loss=loss, clip=0.5)
        difference = partial(kernels.glm_difference, d, w, v, loss=loss, clip=0.25)
        hessian = partial(kernels.glm_hessian, d, loss=loss, hess_clip=0.25)
        search = partial(kernels.line_search, d, w, v, loss=loss, steps=[1.0, 0.5, 0.25])
        steps = {"steps": 3, "step_size": [0.5, 0.25, 0.125], "l2": 0.125}
        descent = partial(kernels.glm_local_descent, d, loss=loss, clip=0.5, **steps)
        penalties = {"prox": L1(0.0625), "smooth": PL(0.125)}
        noise = {"sigma": 4.0, "grid": 2.0**-20, "rng": SEED}
        weights = {"silo_weight": [1.0, 0.5, 0.3, 0.0], "grid": 2.0**-30}
        yield f"glm/margins/{layout}", partial(kernels.glm_margins, d, w)
        yield f"glm/norms/{layout}", partial(kernels.glm_norms, d)
        yield f"glm/products/{layout}", partial(kernels.glm_products, d, w.T)
        yield f"glm/losses/{layout}", partial(kernels.glm_losses, d, w, loss=loss)
        yield f"glm/gradient/{layout}", partial(gradient, w)
        yield f"glm/gradient/{layout}/one model", partial(gradient, w[0], **weights)
        yield f"glm/gradient/{layout}/rows", partial(gradient, w, rows=rows, saturate=True)
        several = {"clip": [0.5, 0.25, 2.0], "loss": loss, "rows": rows}
        yield f"glm/gradients/{layout}", partial(kernels.glm_gradients, d, w[:3], **several)
        people = np.unique(np.concatenate([d.offsets, np.arange(0, d.n, 5), [d.n]]))
        of_people = {"loss": loss, "clip": 0.5, "persons": people, "person_clip": 1.0}
        yield f"glm/persons/{layout}", partial(glm_person_gradient, d, w, **of_people)
        yield f"glm/difference/{layout}", partial(difference, gradient_clip=0.5)
        yield f"hessian/{layout}", partial(hessian, w)
        bounds = {"hess_clip": [0.25, 0.5, 0.125], "loss": loss, "grid": 2.0**-26}
        yield f"hessians/{layout}", partial(kernels.glm_hessians, d, w[:3], **bounds)
        yield f"hessian/{layout}/grid", partial(hessian, w[0], grid=2.0**-26)
        yield f"line_search/{layout}", partial(search, bound=[2.0, 1.0, 0.5])
        yield f"line_search/{layout}/float", search
        yield f"local_descent/{layout}", partial(descent, w)
        yield f"local_descent/{layout}/noise", partial(descent, w[0], **penalties, **noise)
        for kind in ("collapsed", "per_user", "public"):
            yield f"prox_sweep/{layout}/{kind}", partial(sweeps, d, kind, loss)
        clipped = partial(sweeps, d, "per_user", loss, change_clip=0.0625)
        yield f"prox_sweep/{layout}/change_clip", clipped
        V = 0.25 * numbers("V", d.n, d.d)
        yield f"loss_prox/{layout}", partial(kernels.loss_prox, d, V, 1.5, loss=loss, clip=0.5)
        y, z = np.sign(numbers("y", 100) + 2.0**-10), 8.0 * numbers("z", 100)
        yield f"loss/{loss if isinstance(loss, str) else loss.name}", partial(of_loss, y, z, loss)


def of_wide_floats() -> Iterator[tuple[str, Call]]:
    """Sums in single precision."""
    d = data("float32-wide")
    w, v = 0.25 * numbers("w", d.m, d.d), 0.25 * numbers("v", d.m, d.d)
    chosen = np.arange(1, d.n, 3)
    rows = chosen, np.searchsorted(chosen, d.offsets)
    how: dict[str, Any] = {"loss": "logistic", "grid": 2.0**-20}
    gradient = partial(kernels.glm_gradient, d, clip=0.5, **how)
    difference = partial(kernels.glm_difference, d, clip=0.25, gradient_clip=1.0, **how)
    several = partial(kernels.glm_gradients, d, w, clip=[0.5, 0.25, 2.0], **how)
    yield "glm/gradient/float32/wide", partial(gradient, w)
    yield "glm/gradient/float32/wide/rows", partial(gradient, w, rows=rows)
    yield "glm/gradients/float32/wide", several
    yield "glm/difference/float32/wide", partial(difference, w, v)
    yield (
        "glm/difference/float32/wide/margins",
        partial(difference, w, v, margins=kernels.glm_margins(d, v)),
    )
    bounds: dict[str, Any] = {"clip": 1.5, "grid": 2.0**-20, "offsets": d.offsets}
    yield "clip_and_sum/float32/wide", partial(kernels.clip_and_sum, d.X, **bounds)


def sweeps(
    d: Any, kind: str, loss: Any, *, n_threads: int, change_clip: float | None = None
) -> Any:
    """What two sweeps release, and the state after them."""
    state = getattr(kernels.ProxState, kind)(d, 0.25 * numbers("u", d.d))
    how: dict[str, Any] = {"loss": loss, "clip": 0.5, "prox_step": 1.5, "relaxation": 0.375}
    how["change_clip"] = change_clip
    if kind == "public":
        how |= {"sigma": 0.5, "grid": 2.0**-20, "rng": SEED}
    points = 0.25 * numbers("z", 2, d.d)
    sums = [kernels.prox_sweep(d, state, z, n_threads=n_threads, **how) for z in points]
    return sums, state.common, state.scale


def of_loss(y: Any, z: Any, loss: Any, *, n_threads: int) -> Any:
    return loss_values(y, z, loss=loss), loss_derivatives(y, z, loss=loss)


def of_networks() -> Iterator[tuple[str, Call]]:
    for key, layers, activation, loss in (
        ("dense-multiclass-large", (5, 3), "tanh", "softmax"),
        ("float32-model-large", (4, 3, 1), "relu", "logistic"),
        ("csr-regression-model-large", (6, 1), "tanh", "squared"),
        ("range-regression-model-large", (6, 1), "tanh", Huber(0.75)),
    ):
        d, size = data(key), mlp_size(11, layers)
        a, b = 0.25 * numbers("a", size), 0.25 * numbers("b", size)
        how = {"layers": layers, "activation": activation, "loss": loss, "clip": 0.5}
        name = loss if isinstance(loss, str) else loss.name
        yield f"mlp/gradient/{name}", partial(kernels.mlp_gradient, d, a, **how)
        yield (
            f"mlp/difference/{loss}",
            partial(kernels.mlp_difference, d, a, b, gradient_clip=0.5, **how),
        )


def of_ordered_classes() -> Iterator[tuple[str, Call]]:
    for key in ("dense-multiclass-large", "plain-multiclass-large"):
        d = data(key)
        w, how = 0.25 * numbers("w", d.m, 13), {"classes": 3, "unit": 1.5, "clip": 0.5}
        yield f"ordinal/{key}", partial(kernels.ordinal_gradient, d, w, **how)


def of_vectors() -> Iterator[tuple[str, Call]]:
    for dtype in ("float64", "float32"):
        G = numbers("G", 301, 13).astype(dtype)
        yield (
            f"clip_and_sum/{dtype}",
            partial(kernels.clip_and_sum, G, clip=1.5, offsets=[0, 1, 120, 301]),
        )
    H, g = numbers("A", 3, 8, 8), numbers("g", 3, 8)
    H = 0.25 * (H + H.transpose(0, 2, 1))
    yield "newton_direction/indefinite", partial(kernels.newton_direction, H, g, floor=0.5)
    definite = H @ H + np.eye(8)
    yield "newton_direction/definite", partial(kernels.newton_direction, definite, g, floor=0.5)
    for penalty in (
        *("l1", "l2_squared", "pl", "non_negative"),
        *(
            ElasticNet(l1_ratio=0.4),
            GroupLasso(groups=[2, 4, 6]),
            L2Ball(0.5),
            Box(-0.125, 0.25),
            Simplex(0.75),
        ),
    ):
        name = penalty if isinstance(penalty, str) else penalty.name
        yield f"prox/{name}", partial(kernels.prox, penalty, numbers("v", 12), 0.25)


def of_noise() -> Iterator[tuple[str, Call]]:
    gaussian = partial(kernels.gaussian, rng=SEED)
    yield "noise/gaussian", partial(gaussian, (3, 70), 1.0)
    yield "noise/gaussian/scales", partial(gaussian, (2, 5), [3.0, 0.25], grid=[1.0, 2.0**-20])
    yield "noise/goe", partial(kernels.goe, 3, 9, [1.0, 2.0, 0.5], rng=SEED)
    yield "noise/stream", stream_words
    V = 0.125 * numbers("shuffle", 200, 6) / 6.0
    for b in (3, 40, 100_000):
        yield (
            f"noise/shuffle_sum/{b}",
            partial(kernels.shuffle_sum, V, bound=1.0, g=9, b=b, rng=SEED),
        )


def stream_words(*, n_threads: int) -> Any:
    """The first words for every purpose of a stream's second release."""
    with dpk.NoiseStream(SEED) as stream:
        stream.release()
        with stream.release() as release:
            words = [release.words(purpose, 5, index=2) for purpose in Purpose]
            return [np.stack([some >> 32, some & 0xFFFFFFFF]) for some in words]


@functools.cache
def calls() -> dict[str, Call]:
    """All direct calls of kernels by id."""
    sources = (
        *(of_linear_models, of_wide_floats, of_networks, of_ordered_classes),
        *(of_vectors, of_noise),
    )
    found = [(f"kernels/{name}", call) for source in sources for name, call in source()]
    assert len(dict(found)) == len(found), "two calls have one id"
    return dict(found)
