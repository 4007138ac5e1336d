"""Sizes of a model's derivatives, on which settings depend: public numbers, never a record."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpkern.kernels.glm import loss_derivatives
from dpkern.models.losses import LogLink, Loss, NegativeBinomial

if TYPE_CHECKING:
    from dpkern.data import SiloData


@dataclass(frozen=True)
class Scale:
    """How large the derivatives of a record's loss are: those by outputs, times rows.

    Attributes
    ----------
    row_bound : float
        Bound of the norm of rows, with the constant of a bias.
    slope : float
        Norm of the derivative by the outputs where all are 0, for the largest target; 1 if it is 0.
    smoothness : float
        Lipschitz constant of the gradient of a record's loss; of one layer, where there are more.
    dim : int
        Number of coefficients of one output.
    convex : bool
    hidden_layers : bool
    log_link : bool
        Whether outputs are logs of means, of which the slope is typical.
    ordered : bool
        Whether classes are ordered, with thresholds that clipping moves.
    several : bool
        Whether outputs are scores of several classes.
    information : float
        Mean second derivative by the output, at most 1, where bounds of means say of rare events
        that it is less.
    """

    row_bound: float
    slope: float
    smoothness: float
    dim: int
    convex: bool = True
    hidden_layers: bool = False
    log_link: bool = False
    ordered: bool = False
    several: bool = False
    information: float = 1.0


def curvature_of_rows(curvature: float, row_bound: float) -> float:
    """Return L = phi''max R^2 (1 + 2^-40), R bounding the rows up to rounding errors."""
    return curvature * row_bound**2 * (1.0 + 2.0**-40)


def largest_target(data: "SiloData") -> float:
    """Return the stated bound of targets, or 1 where there is none, as for labels."""
    return data.target_bound if math.isfinite(data.target_bound) else 1.0


def margin_scale(loss: Loss, row_bound: float, *, dim: int, target: float = 1.0) -> Scale:
    """Return the scale of a linear model with targets or labels of this size."""
    information = 1.0
    if isinstance(loss, LogLink):
        information = min(loss.information(math.exp(loss.middle)), 1.0)
    if isinstance(loss, LogLink | NegativeBinomial):
        slope = loss.typical_slope
    else:
        slope = float(abs(loss_derivatives([target], [0.0], loss=loss)[0]))
    smoothness = curvature_of_rows(loss.smoothness, row_bound)
    return Scale(
        row_bound,
        slope or 1.0,
        smoothness,
        dim,
        loss.convex,
        log_link=loss.log_link,
        information=information,
    )


def softmax_scale(classes: int, row_bound: float, *, dim: int) -> Scale:
    """Return the scale of softmax regression.

    With equal probabilities the derivative by the outputs has norm sqrt(1 - 1/K) for K classes, and
    the second derivative diag(p) - p p^T has norm 1/2 at most (Boehning 1992).
    """
    smoothness = curvature_of_rows(0.5, row_bound)
    return Scale(row_bound, math.sqrt(1.0 - 1.0 / classes), smoothness, dim, several=True)
