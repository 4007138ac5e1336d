"""What public numbers say of a run before it: sizes beyond doubles, steps that diverge, its time.

A run that failed later would have spent its budget.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import LARGEST
from dpkern._warn import warn
from dpkern.solvers.base.objective import Objective

# Squares and products of numbers of these sizes are doubles; penalties may be 0 or nearly so.
_LEAST = 1 / LARGEST
_DIVIDED_BY = (
    *("row_bound", "target_bound", "clip", "hess_clip", "person_clip"),
    *("step_size", "prox_step", "relaxation"),
)
# Largest norm of a model, as a power of two, without noise; that is far from doubling it so often.
_MOST_DOUBLINGS = 400.0
# Bytes of public history and of step sizes that a step keeps, and how many steps are refused.
_STEP_BYTES, _MOST_STEPS = 96, 1 << 26
# Entries of records that are read in a second, steps made in one, and hours that are warned of.
_ENTRIES, _STEPS, _HOURS = 2.0**29, 2.0**15, 1.0


class LongRunWarning(UserWarning):
    """A run will take hours, by its public numbers."""


def refuse_sizes(objective: Objective, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a number whose square or product with another is no double."""
    data, other = objective.data, objective.other
    sizes = {"row_bound": data.row_bound, "target_bound": data.target_bound}
    sizes |= {"l2": objective.l2, "l1": objective.l1}
    if other is not None:
        sizes["penalty"] = other.strength
    for name, value in {**given, **sizes}.items():
        if not isinstance(value, float) or value in (0.0, math.inf) or math.isnan(value):
            continue
        least = _LEAST if name in _DIVIDED_BY else 0.0
        if not least <= value <= LARGEST:
            raise ValueError(
                f"{name} must be between {least:g} and {LARGEST:g}, so that its square is a "
                f"double, got {value!r}: take other units"
            )


def within_doubles(
    eta: NDArray[np.float64],
    objective: Objective,
    settings: Mapping[str, Any],
    *,
    pull: float | None = None,
) -> NDArray[np.float64]:
    """Return step sizes (updates, local_steps) that models within doubles follow, or raise.

    The gradients of records are clipped, so that models grow with their sum, and geometrically by
    steps longer than 2 / c, c the `pull`, by default of the penalties. Without a clip norm nothing
    is known.
    """
    clip, beta = settings["clip"], settings.get("momentum", 0.0)
    if not isinstance(clip, float) or clip == math.inf:
        return eta
    c = objective.pull if pull is None else pull
    factors = np.abs(1.0 - eta * c)
    longer = factors > 1.0
    doublings = float(np.sum(np.log2(factors[longer] * (1.0 + 2.0 * beta))))
    doublings += max(0.0, math.log2(float(np.sum(eta)) * clip))
    if not doublings <= _MOST_DOUBLINGS:
        most = "smaller"
        if longer.any():
            most = f"at most 2 / {c:g}, beyond which far models grow"
        raise ValueError(
            f"step_size must be {most}, got {float(eta.max()):g}: {eta.size} steps could reach "
            f"models of norm 2^{doublings:.0f}"
        )
    return eta


def announce_length(objective: Objective, repeats: Mapping[str, int]) -> None:
    """Raise ValueError for more steps than memory holds, and warn of a run of hours."""
    steps = math.prod(repeats.values())
    hours = steps * (objective.n * objective.dim / _ENTRIES + 1.0 / _STEPS) / 3600.0
    said = " x ".join(f"{name}={value}" for name, value in repeats.items() if value > 1)
    if steps > _MOST_STEPS:
        raise ValueError(
            f"{' x '.join(repeats)} must be at most {_MOST_STEPS}, got {said}: that many steps "
            f"take about {steps * _STEP_BYTES / 2**30:.3g} GiB and {hours:.3g} hours"
        )
    if hours > _HOURS:
        warn(f"{said} may take about {hours:.3g} hours of one core", LongRunWarning)
