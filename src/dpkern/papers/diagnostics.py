"""Constants of a problem and errors of a model, as the papers' theorems name them. NOT PRIVATE.

Every function reads records without noise, and no certificate covers what it returns: it is for
public records and for analysis, and no setting of a private run may follow from it.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dpkern import kernels
from dpkern._numbers import positive
from dpkern._typing import FloatArray
from dpkern.models.losses import Squared
from dpkern.solvers.base.objective import Objective

__all__ = [
    "Constants",
    "measure_constants",
    "measure_heterogeneity",
    "measure_pl",
    "measure_prox_gradient",
]


class Constants(NamedTuple):
    """Bounds on all eigenvalues of Hessians: strength <= eigenvalue <= smoothness."""

    strength: float
    smoothness: float


def measure_heterogeneity(objective: Objective) -> float:
    """Return Gamma = J* - sum_j p_j J_j* of Huang's Theorem 4. NOT PRIVATE: reads records.

    J_j* is the minimum of silo j's objective, for a linear model. `Objective.heterogeneity` is
    another paper's measure.
    """
    whole = replace(objective, public_size=None)
    minima = [
        replace(whole, data=whole.data.part(np.arange(first, end), np.array([0, end - first])))
        .minimum()[1]
        for first, end in pairwise(whole.data.offsets.tolist())
    ]  # fmt: skip
    return whole.minimum()[1] - float(whole.shares() @ minima)


def measure_prox_gradient(objective: Objective, w: FloatArray, step_size: float) -> float:
    """Return |w - prox(w - eta grad F(w))| / eta, F the smooth part of J. NOT PRIVATE: reads
    records.

    It is the norm of the prox-gradient mapping, by which Lowy, Ghafelebashi, Razaviyayn (2023)
    measure the utility of SPIDER, and that of the gradient where no penalty has a prox.
    """
    positive("step_size", step_size)
    moved = objective.prox(w - step_size * _gradient(objective, w), step_size)
    return float(np.linalg.norm(w - moved)) / step_size


def measure_constants(objective: Objective, w: FloatArray | None = None) -> Constants:
    """Return bounds on the Hessian's eigenvalues of a linear model. NOT PRIVATE: reads records.

    Without w they hold for every model: the loss's curvature times the extreme eigenvalues of the
    records' second moments, plus the smooth penalties'. With w they are the extreme eigenvalues
    at w itself, except that a smooth penalty other than l2 enters by its bounds.
    """
    phi = objective.phi
    loss = Squared() if w is None else phi
    at = np.zeros(objective.dim) if w is None else w
    hessians = kernels.glm_hessian(
        objective.data, at, loss=loss, hess_clip=math.inf, n_threads=objective.n_threads
    )
    weights = (objective.shares() / objective.sizes)[:, np.newaxis, np.newaxis]
    H = np.sum(weights * hessians, axis=0)
    g, ridge = objective.smooth, objective.l2 * np.diag(objective.penalized)
    least, most = (0.0, 0.0) if g is None else (g.strong_convexity, g.smoothness)
    strength = 0.0 if g is None else g.strength
    # The least curvature of a loss other than the squared one is 0.
    flat = w is None and not isinstance(phi, Squared)
    low = np.linalg.eigvalsh((0.0 if flat else 1.0) * H + ridge)[0]
    high = np.linalg.eigvalsh((phi.smoothness if w is None else 1.0) * H + ridge)[-1]
    return Constants(float(low) + strength * least, float(high) + strength * most)


def measure_pl(objective: Objective, w: FloatArray) -> float:
    """Return |grad J(w)|^2 / (2 (J(w) - J*)), which is at least the constant mu of Polyak and
    Lojasiewicz, for a linear model with smooth penalties. NOT PRIVATE: reads records.
    """
    if objective.proximal is not None:
        raise ValueError(f"penalty must be smooth, got {objective.proximal.name!r}")
    gap = objective.value(w) - objective.minimum()[1]
    square = float(np.sum(_gradient(objective, w) ** 2))
    return square / (2.0 * gap) if gap > 0.0 else math.inf


def _gradient(objective: Objective, w: FloatArray) -> FloatArray:
    """Return the gradient of the smooth part of J at w."""
    mean = objective.shares() @ objective.silo_gradients(w)
    return mean + objective.penalty_gradient(w)
