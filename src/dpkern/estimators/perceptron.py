"""Multilayer perceptrons."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dpkern._numbers import LARGEST, count
from dpkern.estimators.base import WithProbabilities, documented, strength
from dpkern.models.networks import MLP
from dpkern.solvers import SolverResult
from dpkern.solvers.base.coefficients import layers


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class DPMLPClassifier(WithProbabilities):
    """A differentially private multilayer perceptron with one output per class.

    Minimises the mean cross-entropy plus alpha |w|^2 / (2 n), with clipped per-record gradients.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int
        Sizes of the hidden layers.
    activation : {"relu", "tanh"}
        Activation of the hidden layers.
    alpha : float
        Strength of the penalty.

    Attributes
    ----------
    coefs_ : list of ndarray of shape (inputs, outputs)
        Matrices of the layers, the first for the features as given. Rows beyond the row bound are
        shortened before the product, in `predict` too.
    intercepts_ : list of ndarray of shape (outputs,)

    Notes
    -----
    The start of the iteration is random but public, and the same for every fit.
    """

    hidden_layer_sizes: Sequence[int] = (100,)
    activation: str = "relu"
    alpha: float = 0.0001

    _two_as_several: ClassVar[bool] = True

    def _model(self, n: int) -> dict[str, Any]:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, str) or not hasattr(sizes, "__iter__"):
            raise TypeError(
                f"hidden_layer_sizes must be a sequence of integers such as (100,), got {sizes!r}"
            )
        hidden = tuple(count("hidden_layer_sizes", size) for size in sizes)
        model = MLP(hidden=hidden, activation=self.activation)
        return {"model": model, "l2": strength("alpha", self.alpha, most=LARGEST * n) / n}

    def _set_fitted(self, result: SolverResult) -> None:
        found = layers(result)
        self.coefs_ = [W.T for W, _ in found]
        self.intercepts_ = [constants for _, constants in found]
