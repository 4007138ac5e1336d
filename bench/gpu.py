"""Sums on a card beside PyTorch's, a run beside the CPU's, and steps of DP-SGD beside Opacus.

    python -m bench.gpu [--records N]

It needs an NVIDIA card with some 20 GB of memory, CuPy and PyTorch, and Opacus for its rows.
docs/gpu.md has what it printed on one.
"""

import argparse
import time
import warnings

import cupy as cp
import numpy as np
import torch
from torch.func import functional_call, grad, vmap

import dpkern as dpk
from dpkern import kernels


def seconds(function, repeat=15, warm=3):
    """Median time of a call, with all that it starts on the card."""
    times = []
    for i in range(warm + repeat):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times += [time.perf_counter() - begin] if i >= warm else []
    return float(np.median(times))


def say(what, function, beside=None):
    line = f"{what:<44} {1e3 * seconds(function):9.3f} ms"
    print(line if beside is None else f"{line}, beside {1e3 * seconds(beside):9.3f} ms", flush=True)


def gradients(n, d, dtype):
    """The sum of clipped gradients, beside two products with norms that are given."""
    X = cp.random.standard_normal((n, d), dtype=dtype)
    y = cp.where(cp.random.random(n) < 0.5, -1.0, 1.0)
    records = (X.get(), y.get(), [0, n // 4, n])
    data = dpk.SiloData(*records, classes=(-1.0, 1.0)).to_device()
    w = np.random.default_rng(0).standard_normal(d) * 0.05
    rows, labels = torch.from_dlpack(X), torch.from_dlpack(y.astype(dtype))
    norms, point = rows.norm(dim=1), torch.as_tensor(w, device="cuda", dtype=rows.dtype)

    def products():
        slope = -labels * torch.sigmoid(-labels * (rows @ point))
        return (rows.T @ torch.clamp(slope, -1.0 / norms, 1.0 / norms)).cpu()

    name = f"{n} x {d} {np.dtype(dtype).name}"
    say(f"gradient, {name}", lambda: kernels.glm_gradient(data, w, clip=1.0), products)
    say(f"losses, {name}", lambda: kernels.glm_losses(data, w, loss="logistic"))
    points = np.stack([w] * 8)
    say(f"eight models, {name}", lambda: kernels.glm_gradients(data, points, clip=1.0))
    del data
    beside = {"weight": np.linspace(0.0, 2.0, n), "margin_offset": np.linspace(-1.0, 1.0, n)}
    data = dpk.SiloData(*records, task="regression", max_weight=2.0, **beside).to_device()
    for loss in ("logistic", "poisson"):
        text = f"weights and offsets, {loss}, {name}"
        say(text, lambda loss=loss: kernels.glm_gradient(data, w, clip=1.0, loss=loss))


def rounds(n, d):
    """300 rounds on a card and on the CPU, with equal bits."""
    X = cp.random.standard_normal((n, d)).get()
    y = np.where(np.random.default_rng(0).random(n) < 0.5, -1.0, 1.0)
    data = dpk.SiloData(X, y, [0, n // 4, n], classes=(-1.0, 1.0))
    there, found = data.to_device(), []
    how = {"budget": dpk.Budget(epsilon=1.0, delta=1e-8), "clip": 1.0, "rng": 7, "step_size": 0.5}
    for name, records in (("card", there), ("CPU", data)):
        begin = time.perf_counter()
        found.append(dpk.solve("gradient_descent", records, rounds=300, **how).w)
        print(f"300 rounds, {n} x {d}, {name}: {time.perf_counter() - begin:.2f} s", flush=True)
    print("equal bits:", np.array_equal(*found))


def clipped(n, size):
    """The sum of clipped vectors, beside norm, scale and sum."""
    G = torch.randn(n, size, device="cuda")

    def plain():
        return (G * torch.clamp(1.0 / G.norm(dim=1), max=1.0)[:, None]).sum(0).cpu()

    say(f"clip_and_sum, {n} x {size}", lambda: kernels.clip_and_sum(G, clip=1.0), plain)


def perceptron():
    return torch.nn.Sequential(torch.nn.Linear(784, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))


def convolutions():
    return torch.nn.Sequential(
        *(torch.nn.Unflatten(-1, (1, 28, 28)), torch.nn.Conv2d(1, 16, 8, 2, padding=3)),
        *(torch.nn.ReLU(), torch.nn.MaxPool2d(2, 1), torch.nn.Conv2d(16, 32, 4, 2)),
        *(torch.nn.ReLU(), torch.nn.MaxPool2d(2, 1), torch.nn.Flatten(-3)),
        *(torch.nn.Linear(512, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)),
    )


def private_steps(make, batch=512, grid=2.0**-24):
    """A step of DP-SGD on one batch, beside those of Opacus."""
    X, y = torch.randn(batch, 784, device="cuda"), torch.randint(0, 10, (batch,), device="cuda")
    net = make().cuda()
    shapes = {name: p.shape for name, p in net.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    w, stream = np.zeros(sum(sizes)), dpk.NoiseStream()

    def loss(parameters, x, label):
        scores = functional_call(net, parameters, x.unsqueeze(0))
        return torch.nn.functional.cross_entropy(scores, label.unsqueeze(0))

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step():
        nonlocal w
        parts = torch.split(torch.from_numpy(w).cuda().float(), sizes)
        named = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        G = torch.cat([g.flatten(1) for g in each(named, X, y).values()], 1)
        sums = kernels.clip_and_sum(G, clip=1.0, grid=grid)[0]
        w = w - 0.1 / batch * (sums + kernels.gaussian(w.size, 1.0, grid=grid, rng=stream))

    say(f"{make.__name__}, {w.size} parameters", step)
    try:
        from opacus import PrivacyEngine
    except ImportError:
        return
    records = torch.utils.data.TensorDataset(X.cpu(), y.cpu())
    for mode in ("hooks", "functorch", "ghost"):
        model, criterion = make().cuda(), torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, *rest = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=torch.utils.data.DataLoader(records, batch_size=batch),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
        )
        criterion = rest[0] if mode == "ghost" else criterion

        def theirs(model=model, optimizer=optimizer, criterion=criterion):
            optimizer.zero_grad()
            criterion(model(X), y).backward()
            optimizer.step()

        say(f"  Opacus, {mode}", theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=4_000_000)
    n = parser.parse_args().records
    warnings.simplefilter("ignore")
    for d, dtype in ((128, np.float64), (16, np.float64), (128, np.float32)):
        gradients(n, d, dtype)
    rounds(n, 128)
    for size in ((10_000, 200_000), (512, 203_530)):
        clipped(*size)
    for make in (perceptron, convolutions):
        private_steps(make)


if __name__ == "__main__":
    main()
