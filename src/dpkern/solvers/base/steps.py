"""Public step sizes."""

import math

import numpy as np

from dpkern._typing import FloatArray
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import StepSize


def auto_step(objective: Objective, name: str, value: str = "auto") -> float:
    """Return 1 / (L + l2), L including the curvature of a smooth penalty, for argument `name`."""
    unbounded = math.isinf(objective.data.row_bound)
    if math.isinf(objective.loss.smoothness) and not (unbounded and objective.scale):
        raise ValueError(
            f"{name}={value!r} needs a loss with a bounded second derivative, which "
            f"{objective.loss.name!r} is not: give {name} a number"
        )
    if not math.isfinite(objective.smoothness):
        raise ValueError(
            f"{name}={value!r} needs a bound of the rows: give the data a row_bound=R, or "
            f"{name}=NUMBER"
        )
    return 1.0 / objective.smoothness


def step_sizes(
    step_size: StepSize, rounds: int, objective: Objective, local_steps: int = 1
) -> FloatArray:
    """Return the public step sizes of all rounds, shape (rounds, local_steps).

    "auto", where no rule has replaced it (settings.py), is 1 / (L + l2), L including the curvature
    of a smooth penalty; "theorem" is
    2 / (l2 (t + gamma)), t = 1, 2, ..., gamma = max(8 (L + l2) / l2 - 1, local_steps) (Huang,
    utility theorem).
    """
    shape = (rounds, local_steps)
    if isinstance(step_size, str):
        smoothness = objective.smoothness
        if step_size not in ("auto", "theorem"):
            raise ValueError(
                f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
            )
        auto = auto_step(objective, "step_size", step_size)
        if step_size == "auto":
            return np.full(shape, auto)
        if objective.l2 == 0.0 or not objective.penalized.all():
            raise ValueError("step_size='theorem' needs l2 > 0 on every coordinate")
        if not objective.phi.convex:
            raise ValueError(
                f"step_size='theorem' needs a convex loss, which {objective.phi.name!r} is not"
            )
        if objective.smooth is not None and not objective.smooth.convex:
            raise ValueError(
                f"step_size='theorem' needs a convex penalty, which {objective.smooth.name!r} is "
                "not"
            )
        gamma = max(8.0 * smoothness / objective.l2 - 1.0, float(local_steps))
        t = np.arange(1.0, rounds * local_steps + 1.0)
        return (2.0 / (objective.l2 * (t + gamma))).reshape(shape)
    if step_size is None or isinstance(step_size, bool):
        raise TypeError(
            f"step_size must be a number, a sequence, 'auto' or 'theorem', got {step_size!r}"
        )
    try:
        eta = np.asarray(step_size, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError("step_size holds an entry that is no number") from None
    steps = rounds * local_steps
    if eta.shape not in ((), (steps,)):
        raise ValueError(f"step_size must be one number or {steps}, one a step, got {eta.shape}")
    if not (np.all(np.isfinite(eta)) and np.all(eta > 0.0)):
        raise ValueError(f"step_size must be positive and finite, got {step_size!r}")
    return np.broadcast_to(eta, (steps,)).reshape(shape).copy()
