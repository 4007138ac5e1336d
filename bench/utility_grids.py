"""The grids over which bench.utility tunes every solver, in units of public numbers.

Clip norms are shares of row_bound |phi'(0)|, above which nothing is clipped at the start; step
sizes and clip norms of Hessians are in units of the smoothness L = sup phi'' row_bound^2: step / L,
and share L. So are the strengths of the penalty of ridge, whose targets are -1 and 1. The penalty
of objective perturbation is in units of that with which the curvature of a record costs a quarter
of epsilon.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

CLIPS = (0.03, 0.07, 0.2, 0.5, 1.0)
ROUNDS = (30, 100, 300)
STEPS = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)
LONGER = (*STEPS, 1024.0)  # for methods without momentum

Grid = Mapping[str, Sequence[Any]]

_DESCENT: Grid = {"clip": CLIPS, "rounds": ROUNDS, "step_size": LONGER}
_HIDDEN: Grid = {
    "clip": (0.03, 0.07, 0.15, 0.3, 0.5, 0.7, 1.0),
    "local_steps": (10, 50, 250),
    "step_size": (0.02, 0.06, 0.2, 0.6, 2.0),  # longer ones are refused
}
_NEWTON: Grid = {
    "clip": (0.1, 0.25, 0.5, 0.7, 1.0),
    "hess_clip": (0.1, 0.3, 1.0),
    "rounds": (3, 6, 10, 20),
}
_TAIL: Grid = {"returns": ("tail",)}

GRIDS: dict[str, Grid] = {
    "gradient_descent": {
        "clip": CLIPS,
        "rounds": ROUNDS,
        "step_size": STEPS,
        "momentum": (0.0, 0.9),
        **_TAIL,
    },
    "federated_gd": _DESCENT | _TAIL,
    "fixed_point": _DESCENT,
    "minibatch_sgd": _DESCENT | _TAIL,
    "prox_svrg": _DESCENT | _TAIL,
    "prox_pl_svrg": _DESCENT | _TAIL,
    "spider": _DESCENT | _TAIL,
    "prox_sgd": _DESCENT | {"rounds": (1, 3, 10, 30, 100)} | _TAIL,
    "admm": {"clip": CLIPS, "rounds": ROUNDS, "prox_step": LONGER},
    "output_perturbation": _HIDDEN,
    "objective_perturbation": {
        "clip": (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0),
        "added_l2": (0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
    },
    "wd_dp": _HIDDEN,
    "local_sgd": {
        "clip": CLIPS,
        "rounds": (10, 60),
        "local_steps": (1, 5, 20),
        "step_size": (0.05, 0.2, 0.6, 2.0),
    },
    "localized_sgd": {
        "clip": CLIPS,
        "rounds": (10, 30, 100),
        "step_size": (1.0, 4.0, 16.0),
        "prox_step": (64.0, 256.0, 1024.0, 4096.0),
    },
    "ridge": {
        "clip": (0.25, 0.5, 1.0, 1.5, 2.0),
        "hess_clip": (0.25, 0.5, 1.0, 2.0, 4.0),
        "l2": (0.0, 0.001, 0.01, 0.1, 1.0),
    },
    "local_newton": _NEWTON | {"max_step": (0.3, 1.0)},
    "double_noise_newton": _NEWTON | {"variant": ("add", "clip")},
}


def in_units(
    grid: Grid, *, gradient: float, smoothness: float, record: float, epsilon: float
) -> dict[str, list[Any]]:
    """Return the grid's numbers for a set with these public numbers; `record` is 1 / n."""
    units = {
        "clip": gradient,
        "hess_clip": smoothness,
        "l2": smoothness,
        "added_l2": record * smoothness / math.expm1(epsilon / 4.0),
        "step_size": 1.0 / smoothness,
        "prox_step": 1.0 / smoothness,
    }
    return {
        name: [value * units[name] for value in values] if name in units else list(values)
        for name, values in grid.items()
    }


def settings(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All settings of a grid, in the order of `dpkern.solve_many`: the last name fastest."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
