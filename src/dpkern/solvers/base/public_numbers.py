"""The public numbers of a run, which is all that settings "auto" may depend on."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkern.models.scale import Scale
from dpkern.privacy import Budget
from dpkern.solvers.base.objective import Objective

# Shares of the noise in margins that a model with hidden layers takes, and one of real targets: a
# label is as right where its margin is too large, a real target is not.
_HIDDEN_LAYERS, _REAL_TARGETS = 0.4, 0.04


@dataclass(frozen=True)
class PublicNumbers:
    """What settings may depend on.

    Attributes
    ----------
    mu : float
        Budget; infinite without one.
    noise : float
        u, the std of the noise on the mean gradient of one release at C = mu = 1.
    row_bound : float
    curvature : float
        Largest norm of a record's Hessian.
    smoothness : float
        Lipschitz constant of the gradient of the smooth part of the objective.
    slope, dim, convex, hidden_layers, log_link, ordered
        Those of the model's `Scale`.
    smallest : int
        Number of records of the smallest silo.
    trust : str
    target_bound : float
        Bound of the targets: 1 for labels, infinite where none is stated.
    penalty : float
        Strength of the l2 penalty of all coordinates: 0 where the intercept has none.
    labels : bool
        Whether the targets are labels.
    pull : float
        The factor by which the gradient of the penalties is longer than a far model.
    weighted : bool
        Whether records have weights.
    """

    mu: float
    noise: float
    row_bound: float
    curvature: float
    smoothness: float
    slope: float
    dim: int
    convex: bool
    hidden_layers: bool
    smallest: int
    trust: str
    target_bound: float = 1.0
    penalty: float = 0.0
    labels: bool = True
    pull: float = 0.0
    log_link: bool = False
    ordered: bool = False
    weighted: bool = False

    @classmethod
    def of(
        cls,
        scale: Scale,
        budget: Budget | None,
        *,
        neighbours: str,
        weight: float,
        penalty_smoothness: float,
        **others: Any,
    ) -> "PublicNumbers":
        """Return the numbers of a run with a model of this scale.

        `weight` is that of a record in the mean gradient, or the norm of the silos' weights where
        each of them adds noise.
        """
        return cls(
            mu=math.inf if budget is None else budget.mu,
            noise=(2.0 if neighbours == "replace_one" else 1.0) * weight,
            row_bound=scale.row_bound,
            curvature=scale.smoothness,
            smoothness=scale.smoothness + penalty_smoothness,
            slope=scale.slope,
            dim=scale.dim,
            convex=scale.convex,
            hidden_layers=scale.hidden_layers,
            log_link=scale.log_link,
            ordered=scale.ordered,
            **others,
        )

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of gradients say what is fitted: a small clip norm makes them equal.

        Those of counts say how large means are, and those of weighted labels the weights.
        """
        return self.log_link or (self.weighted and self.labels)

    @property
    def power(self) -> float:
        """n mu, for neighbours that differ by a replaced record, or what equals it of others."""
        return 2.0 * self.mu / self.noise

    @property
    def reach(self) -> float:
        """Clip norm times horizon at which the std of the noise in margins is `margin_noise`."""
        return self.margin_noise * self.mu / (self.row_bound * self.noise)

    @property
    def margin_noise(self) -> float:
        """Std of the noise in margins that a run takes, in the unit of targets."""
        unit = self.target_bound if math.isfinite(self.target_bound) else 1.0
        of_model = _HIDDEN_LAYERS if self.hidden_layers else 1.0
        return of_model * unit * margin_noise(self.dim, labels=self.labels)


def margin_noise(dim: int, *, labels: bool) -> float:
    """Return the std of the noise in margins that a run takes; less in many dimensions."""
    return min(9.0, 50.0 / math.sqrt(dim)) * (1.0 if labels else _REAL_TARGETS)


def public_numbers(
    objective: Objective, budget: Budget | None, trust: str, neighbours: str
) -> PublicNumbers | None:
    """Return the public numbers of a run; None for a model that does not state its scale."""
    scale, data = objective.scale, objective.data
    if scale is None:
        return None
    weights = objective.record_weights() if trust == "silo" else objective.record_weight()
    return PublicNumbers.of(
        scale,
        budget,
        neighbours=neighbours,
        weight=float(np.linalg.norm(weights)),
        penalty_smoothness=objective.penalty_smoothness,
        smallest=smallest_silo(objective),
        trust=trust,
        target_bound=data.target_bound if objective.has_units else 1.0,
        penalty=objective.l2 * float(objective.penalized.min()),
        pull=objective.pull,
        labels=not objective.has_units,
        weighted=data.record_weight is not None,
    )


def smallest_silo(objective: Objective) -> int:
    """Return the public number of records of the smallest silo."""
    sizes = objective.public_size
    return int(np.min(objective.data.sizes if sizes is None else sizes))
