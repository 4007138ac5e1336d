"""Multilayer perceptrons."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, positive
from dpkern.kernels.glm import loss_derivatives, loss_values
from dpkern.kernels.mlp import mlp_size
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.losses import LOSSES, get_loss
from dpkern.models.oracles import FloatArray, NotKept, Oracle
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.models.scale import Scale, largest_target, margin_scale, softmax_scale

if TYPE_CHECKING:
    from dpkern.data import SiloData


@dataclass(frozen=True)
class MLP(Oracle):
    """A multilayer perceptron: a_l = act(W_l [a_(l-1), 1]), the last layer without act.

    Parameters
    ----------
    hidden : sequence of int
        Sizes of the hidden layers; without any the model is linear, or softmax regression.
    activation : {"relu", "tanh"}
        Activation of the hidden layers.
    loss : str
        "softmax", the cross-entropy of one output per class, or a margin loss of one output.
    seed : int
        Seed of the start, whose entries are uniform in +-1 / sqrt(inputs), as in PyTorch.
    smoothness : float
        A public guess of the Lipschitz constant of a record's gradient. Solvers with variance
        reduction, such as "spider", clip differences of gradients to this times the distance of the
        models, with noise in proportion; without it this noise does not shrink with the steps. No
        guarantee relies on it.
    """

    hidden: tuple[int, ...] = (64,)
    activation: str = "relu"
    loss: str = "softmax"
    seed: int = 0
    smoothness: float = math.inf

    name = "mlp"
    compiled = True

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, Sequence):
            raise TypeError(f"hidden must be a sequence of sizes, got {self.hidden!r}")
        object.__setattr__(self, "hidden", tuple(count("hidden", n) for n in self.hidden))
        object.__setattr__(self, "seed", count("seed", self.seed, 0))
        smoothness = positive("smoothness", self.smoothness, or_infinite=True)
        object.__setattr__(self, "smoothness", smoothness)
        if self.activation not in ("relu", "tanh"):
            raise ValueError(f"activation must be 'relu' or 'tanh', got {self.activation!r}")
        if self.loss != "softmax" and self.loss not in LOSSES:
            raise ValueError(
                f"loss must be 'softmax' or one of {', '.join(LOSSES)}, got {self.loss!r}"
            )

    def layers(self, data: "SiloData") -> tuple[int, ...]:
        """Return the sizes of the hidden layers and of the output."""
        if self.loss == "softmax" and data.classes is None:
            raise ValueError("loss 'softmax' is for classes, and the data's task is regression")
        if self.loss != "softmax" and data.task == "multiclass":
            raise ValueError(f"loss {self.loss!r} has one output, the data have several classes")
        outputs = len(data.classes) if self.loss == "softmax" and data.classes is not None else 1
        return (*self.hidden, outputs)

    def dim(self, data: "SiloData") -> int:
        return mlp_size(data.n_features, self.layers(data))

    def scale(self, data: "SiloData") -> Scale:
        """Return the scale of the model without its hidden layers, which only guides settings."""
        bound, dim = math.hypot(data.row_bound, 1.0), data.n_features + 1
        if self.loss == "softmax":
            linear = softmax_scale(self.layers(data)[-1], bound, dim=dim)
        else:
            loss, target = get_loss(self.loss), largest_target(data)
            linear = margin_scale(loss, bound, dim=dim, target=target)
        deep = bool(self.hidden)
        several = linear.several and not deep
        return replace(
            linear, convex=linear.convex and not deep, hidden_layers=deep, several=several
        )

    def start(self, data: "SiloData") -> FloatArray:
        rng = np.random.default_rng(self.seed)
        sizes = (data.n_features, *self.layers(data))
        parts = [
            rng.uniform(-1.0, 1.0, out * (inputs + 1)) / math.sqrt(inputs)
            for inputs, out in pairwise(sizes)
        ]
        return np.concatenate(parts)

    def gradients(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        """Return the gradients by NumPy; the solvers use clipped sums of the kernels instead."""
        matrices, inputs, z = self._forward(w, X)
        if self.loss == "softmax":
            delta = np.exp(z - z.max(axis=1, keepdims=True))
            delta /= delta.sum(axis=1, keepdims=True)
            delta[np.arange(len(y)), np.maximum(y, 0.0).astype(np.intp)] -= 1.0
        else:
            delta = loss_derivatives(y, z[:, 0], loss=self.loss)[:, np.newaxis]
        parts: list[FloatArray] = []
        for W, a in zip(matrices[::-1], inputs[::-1], strict=True):
            a1 = np.column_stack([a, np.ones(len(a))])
            parts.insert(0, (delta[:, :, np.newaxis] * a1[:, np.newaxis]).reshape(len(a), W.size))
            delta = (delta @ W[:, :-1]) * (a > 0.0 if self.activation == "relu" else 1.0 - a * a)
        return np.hstack(parts)

    def losses(self, w: FloatArray, X: NDArray[Any], y: FloatArray) -> FloatArray:
        z = self.outputs(w, X)
        if self.loss != "softmax":
            return loss_values(y, z, loss=self.loss)
        top = z.max(axis=1)
        chosen = z[np.arange(len(y)), np.maximum(y, 0.0).astype(np.intp)]
        return np.log(np.exp(z - top[:, np.newaxis]).sum(axis=1)) + top - chosen

    def outputs(self, w: FloatArray, X: NDArray[Any]) -> FloatArray:
        z = self._forward(w, X)[-1]
        return z[:, 0] if self.loss != "softmax" else z

    def matrices(self, w: FloatArray, n_features: int) -> list[FloatArray]:
        """Return the matrices [W_l, bias] of the layers, shape (outputs, inputs + 1), as views."""
        found: list[FloatArray] = []
        remaining, inputs = [*self.hidden], n_features
        while w.size:
            outputs = remaining.pop(0) if remaining else w.size // (inputs + 1)
            found.append(w[: outputs * (inputs + 1)].reshape(outputs, inputs + 1))
            w, inputs = w[found[-1].size :], outputs
        return found

    def _forward(
        self, w: FloatArray, X: NDArray[Any]
    ) -> tuple[list[FloatArray], list[FloatArray], FloatArray]:
        """Return the matrices, the inputs a_(l-1) of the layers, and the last output."""
        a: list[Any] = [X if hasattr(X, "indptr") else np.asarray(X, dtype=np.float64)]
        matrices = self.matrices(w, a[0].shape[1])
        for W in matrices:
            z = a[-1] @ W[:, :-1].T + W[:, -1]
            a.append(np.maximum(z, 0.0) if self.activation == "relu" else np.tanh(z))
        return matrices, a[:-1], z

    @property
    def declaration(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


def load_oracle(declaration: dict[str, Any]) -> Oracle:
    """Return the oracle of a declaration from a file."""
    for kind in (AllThreshold, CumulativeLogit):
        if declaration.get("name") == kind.name:
            return kind(declaration["unit"])
    values = {key: value for key, value in declaration.items() if key != "name"}
    if declaration.get("name") == DiscreteHazards.name:
        return DiscreteHazards(**values)
    if declaration.get("name") != MLP.name:
        return NotKept(declaration)
    values["smoothness"] = float(values["smoothness"])  # JSON has no infinity
    return MLP(**values | {"hidden": tuple(values["hidden"])})
