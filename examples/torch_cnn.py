"""A small convolutional network in PyTorch, trained by a solver of dpkern.

    python examples/torch_cnn.py [--epsilon E] [--rounds R]

MNIST is read from the folder in the environment variable DPKERN_DATA; without it scikit-learn's
8 x 8 digits take its place. Five silos trust an aggregator, and a coin decides for every record
whether it is in a batch: DP-SGD. The network gives the gradient of each record (torch.func); dpkern
clips them, adds them up on a grid, draws the noise, and states what the result certifies.
"""

import argparse
import gzip
import os
import sys
from pathlib import Path

import numpy as np

import dpkern as dpk

try:
    import torch
    from torch import nn
    from torch.func import functional_call, grad, vmap
except ImportError:
    sys.exit("torch_cnn.py needs PyTorch: pip install torch")

DELTA = 1e-5


class Network(dpk.Oracle):
    """Two convolutions and a linear layer for square images of `width` pixels a side.

    No batch normalisation: the gradient of a record must not depend on others. That PyTorch rounds
    it alike wherever it stands in a batch is taken as true here, and the certificate says so.
    """

    name = "convolutional network"

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)  # where it starts is public
        self.net = nn.Sequential(
            nn.Unflatten(1, (1, width, width)),
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * (width // 4) ** 2, 10),
        )
        self.shapes = {name: p.shape for name, p in self.net.named_parameters()}
        self.per_record = vmap(grad(self.loss), in_dims=(None, 0, 0))

    def scores(self, w: torch.Tensor, X: torch.Tensor) -> torch.Tensor:
        parts = w.split([shape.numel() for shape in self.shapes.values()])
        parameters = {
            name: part.view(shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }
        return functional_call(self.net, parameters, X)

    def loss(self, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.scores(w, x[None]), y[None])

    # What the solvers ask for: the parameters are one vector of doubles.

    def dim(self, data: dpk.SiloData) -> int:
        return sum(shape.numel() for shape in self.shapes.values())

    def start(self, data: dpk.SiloData) -> np.ndarray:
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().double().numpy()

    def gradients(self, w: np.ndarray, X: np.ndarray, y: np.ndarray) -> torch.Tensor:
        return self.per_record(single(w), single(X), torch.from_numpy(y).long())

    @torch.no_grad()
    def outputs(self, w: np.ndarray, X: np.ndarray) -> np.ndarray:
        return self.scores(single(w), single(X)).double().numpy()


def single(a: np.ndarray) -> torch.Tensor:
    return torch.tensor(a, dtype=torch.float32)


def images() -> tuple[np.ndarray, ...]:
    """Pixels in [0, 1] and digits, to train on and to test with."""
    folder = os.environ.get("DPKERN_DATA")
    if folder is None:
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return dpk.data.train_test_split(np.float32(X) / 16, y)
    parts = []
    for name in ("train", "t10k"):
        for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
            with gzip.open(Path(folder, "mnist", f"{name}-{kind}-ubyte.gz")) as file:
                parts.append(np.frombuffer(file.read(), np.uint8, offset=header))
    X, y, X_test, y_test = parts
    return (
        X.reshape(len(y), -1) / np.float32(255),
        y,
        X_test.reshape(len(y_test), -1) / np.float32(255),
        y_test,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()

    torch.set_num_threads(1)  # for few records at a time
    X, y, X_test, y_test = images()
    data = dpk.SiloData.split(X, y, 5, seed=0, task="multiclass", classes=range(10))
    result = dpk.solve(
        "minibatch_sgd",
        data,
        model=Network(width=round(X.shape[1] ** 0.5)),
        budget=dpk.Budget(epsilon=arguments.epsilon, delta=DELTA),
        clip=1.0,
        rounds=arguments.rounds,
        step_size=2.0,
        trust="central",
        sampling="poisson",
        batch_size=min(data.n // 10, 1000) // data.m,  # of a silo, on average
        neighbours="add_remove",
        public_size=[10 * (data.n // (10 * data.m))] * data.m,
        n_threads=1,
        progress=sys.stderr.isatty(),
    )
    print(f"accuracy on {len(y_test)} test records: {result.score(X_test, y_test):.3f}")
    print(result.privacy)


if __name__ == "__main__":
    main()
