"""mlp_gradient beside NumPy's backward pass without privacy, and other ways to clip per record.

The non-private pass is what a skilled user writes for a batch: float64, in place where that helps,
with as many BLAS threads as dpkern has. "per record" holds every record's gradient, as hooks on a
model do; "ghost" finds the norms from factors and runs a second, weighted product. They clip to the
same norm and do not round. torch and Opacus, where both are installed, do the same in float64 on
the processor, with hooks and with ghost clipping.
"""

import itertools
from collections.abc import Callable
from functools import partial

import numpy as np

from bench.cases import DGEMM, Case, Contenders, dgemm
from bench.speed import speed_test
from dpkern import SiloData, kernels, reference
from dpkern.kernels import installation

try:
    import torch
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
except ImportError:
    torch = None

CLIP = 1.0
Pairs = list[tuple[np.ndarray, np.ndarray]]


def backward(X: np.ndarray, target: np.ndarray, weights: list[np.ndarray]) -> Pairs:
    """(delta, a) of every layer, of relu networks under softmax; weights hold the bias last."""
    inputs = [X]
    for W in weights[:-1]:
        z = inputs[-1] @ W[:, :-1].T
        z += W[:, -1]
        inputs.append(np.maximum(z, 0.0, out=z))
    delta = inputs[-1] @ weights[-1][:, :-1].T
    delta += weights[-1][:, -1]
    delta -= delta.max(axis=1, keepdims=True)
    np.exp(delta, out=delta)
    delta /= delta.sum(axis=1, keepdims=True)
    delta -= target
    pairs = [(delta, inputs[-1])]
    for W, a in zip(weights[:0:-1], inputs[-2::-1], strict=True):
        delta = delta @ W[:, :-1]
        delta *= pairs[0][1] > 0.0
        pairs.insert(0, (delta, a))
    return pairs


def joined(pairs: Pairs, s: np.ndarray | None = None) -> np.ndarray:
    parts = []
    for delta, a in pairs:
        d = delta if s is None else delta * s
        parts.append(np.hstack([d.T @ a, d.sum(axis=0)[:, np.newaxis]]).ravel())
    return np.concatenate(parts)


def plain(X: np.ndarray, target: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    return joined(backward(X, target, weights))


def ghost(X: np.ndarray, target: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    pairs = backward(X, target, weights)
    square = sum(
        np.einsum("ij,ij->i", d, d) * (np.einsum("ij,ij->i", a, a) + 1.0) for d, a in pairs
    )
    return joined(pairs, np.minimum(1.0, CLIP / np.sqrt(square))[:, np.newaxis])


def per_record(X: np.ndarray, target: np.ndarray, weights: list[np.ndarray]) -> np.ndarray:
    one = np.ones((len(X), 1))
    gradients = [
        (d[:, :, np.newaxis] * np.hstack([a, one])[:, np.newaxis]).reshape(len(X), -1)
        for d, a in backward(X, target, weights)
    ]
    square = sum(np.einsum("ij,ij->i", g, g) for g in gradients)
    s = np.minimum(1.0, CLIP / np.sqrt(square))
    return np.concatenate([s @ g for g in gradients])


def opacus(
    X: np.ndarray, y: np.ndarray, weights: list[np.ndarray], with_ghosts: bool
) -> Callable[[], np.ndarray]:
    """One clipped sum by Opacus, by hooks or by its ghost clipping."""
    layers = []
    for k, W in enumerate(weights):
        layer = torch.nn.Linear(W.shape[1] - 1, W.shape[0], dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(W[:, :-1]))
            layer.bias.copy_(torch.from_numpy(W[:, -1]))
        layers += [layer] if k == len(weights) - 1 else [layer, torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers)
    records, labels = torch.from_numpy(X), torch.from_numpy(y.astype(np.int64))
    losses = torch.nn.CrossEntropyLoss(reduction="none")

    def total() -> np.ndarray:
        gradients = [p.grad for p in model.parameters()]
        return np.concatenate(
            [
                np.hstack([w.numpy(), b.numpy()[:, np.newaxis]]).ravel()
                for w, b in zip(gradients[::2], gradients[1::2], strict=True)
            ]
        )

    def hooks() -> np.ndarray:
        model.zero_grad()
        losses(hooked(records), labels).sum().backward()
        each = [p.grad_sample for p in model.parameters()]
        square = sum(g.flatten(1).square().sum(1) for g in each)
        s = (CLIP / square.sqrt()).clamp(max=1.0)
        for p, g in zip(model.parameters(), each, strict=True):
            p.grad = torch.einsum("i,i...", s, g)
            p.grad_sample = None
        return total()

    def ghosts() -> np.ndarray:
        model.zero_grad()
        each = losses(hooked(records), labels)
        each.sum().backward(retain_graph=True)
        s = hooked.get_clipping_coef().detach()
        model.zero_grad()
        hooked.disable_hooks()
        (s * each).sum().backward()
        hooked.enable_hooks()
        return total()

    if with_ghosts:
        hooked = GradSampleModuleFastGradientClipping(
            model, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
        )
        return ghosts
    hooked = GradSampleModule(model, loss_reduction="sum")
    return hooks


def setup(n: int, p: int, layers: tuple[int, ...]) -> tuple[Contenders, None]:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((n, p)), rng.integers(0, layers[-1], n)
    weights = [
        rng.standard_normal((out, inputs + 1)) / np.sqrt(inputs)
        for inputs, out in itertools.pairwise([p, *layers])
    ]
    params = np.concatenate([W.ravel() for W in weights])
    data = SiloData(X, y, [0, n], task="multiclass", classes=range(layers[-1]))
    target = np.eye(layers[-1])[y]
    how = {"layers": layers, "activation": "relu", "loss": "softmax", "clip": CLIP}
    ours = partial(kernels.mlp_gradient, data, params, **how)
    contenders: Contenders = {
        "dpkern": ours,
        "dgemm": dgemm(),
        "numpy": partial(plain, X, target, weights),
        "ghost": partial(ghost, X, target, weights),
        "tanh": partial(ours, activation="tanh"),
        "difference": partial(kernels.mlp_difference, data, 1.001 * params, params, **how),
        "twin": partial(reference.mlp_gradient, data, params, **how),
    }
    if n * params.size <= 2**28:
        contenders["per record"] = partial(per_record, X, target, weights)
    if torch is not None:
        contenders["opacus"] = opacus(X, y, weights, False)
        contenders["opacus ghost"] = opacus(X, y, weights, True)
    if installation.info()["n_threads"] > 1:
        contenders["1 thread"] = partial(ours, n_threads=1)
    return contenders, None


def cases(quick: bool) -> list[Case]:
    found = []
    for size, p, layers in [(1024, 50, (64, 2)), (1024, 784, (256, 10)), (10_000, 50, (64, 2))]:
        n = size // 8 if quick else size
        sizes = (p, *layers)
        products = [inputs * out for inputs, out in itertools.pairwise(sizes)]
        goal = {"numpy": 1 / 1.25, "opacus": 5.0, "opacus ghost": 2.0}
        found.append(
            Case(
                "mlp_gradient",
                f"{n}, {'-'.join(map(str, sizes))}",
                partial(setup, n, p, layers),
                # Forward and gradient of every layer, and the way back through all but the first.
                2.0 * n * (3 * sum(products) - products[0]),
                unit="F",
                goals=goal if size == 1024 else {},
                other_work=("numpy", "tanh", "difference"),
                limits=DGEMM,
            )
        )
    return found


test_speed = speed_test(
    cases,
    ["dpkern", "numpy", "ghost", "per record", "twin", "opacus", "opacus ghost", "difference"],
)
