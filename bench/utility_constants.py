"""Accuracy as each constant of the rule of `gradient_descent` is moved, the others held.

The settings of a moved constant are those that the rule says with it, and are given to the solver
like any others. All factors of a set and budget have the same seed, so that their differences have
less noise than their means.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bench.utility_text import Row, table
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.objective import PublicNumbers
from dpkern.solvers.base.options import SHARED
from dpkern.solvers.base.settings import (
    _BOLD_STEP,
    _EVERY_ROUND,
    _MORE_ROUNDS,
    _more,
    _with_momentum,
    descent,
)

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
CONSTANTS = {
    "root": "noise in margins: 50 in min(9, 50 / sqrt(d))",
    "cap": "noise in margins: 9",
    "clip": "clip norm: 0.14",
    "growth": "noise up to which clip norms grow: 1/2",
    "step": "longest step: 16 / L",
    "memory": "1 / (1 - momentum): 20 to 50",
}
_SOLVER, _ROUNDS = "gradient_descent", 300


def moved(numbers: PublicNumbers, constant: str, factor: float) -> dict[str, Any]:
    """Settings of `gradient_descent` by its rule with one constant times a factor."""
    declaration = SOLVERS[_SOLVER].declaration
    given = {k: option.default for k, option in (SHARED | declaration.own).items()}
    least, spread, growth = _EVERY_ROUND
    cap = replace(numbers, dim=1).margin_noise
    root = replace(numbers, dim=10**6).margin_noise * 1e3
    of = {name: factor if name == constant else 1.0 for name in CONSTANTS}
    taken = min(of["cap"] * cap, of["root"] * root / math.sqrt(numbers.dim)) / numbers.margin_noise
    noise = (of["clip"] * least, spread * taken, growth * taken * of["growth"])
    bold = of["step"] * _BOLD_STEP
    rounds = round(_ROUNDS * _more(numbers, _MORE_ROUNDS))
    most, noise = _with_momentum(numbers, given, rounds, bold / numbers.smoothness, noise)
    given["momentum"] = max(1.0 - (1.0 - most) / of["memory"], 0.0)
    found = descent(numbers, given, rounds=rounds, bold=bold, noise=noise)
    # The rule's own momentum is the least for which a step is at most 1 / L.
    eta = found["step_size"] / (1.0 - given["momentum"])
    momentum = min(given["momentum"], max(0.0, 1.0 - 1.0 / (numbers.smoothness * eta)))
    names = ("clip", "rounds", "returns")
    chosen = {name: found[name] for name in names}
    return chosen | {"step_size": eta * (1.0 - momentum), "momentum": momentum}


def variations() -> Iterator[tuple[str, float]]:
    """Every constant with every factor; factor 1 is the same run for all of them."""
    yield next(iter(CONSTANTS)), 1.0
    for constant in CONSTANTS:
        for factor in FACTORS:
            if factor != 1.0:
                yield constant, factor


def sensitivity(rows: list[Row]) -> str:
    """Mean accuracy over sets and budgets, by constant and factor."""
    means: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        for constant in CONSTANTS if row["factor"] == 1.0 else [row["constant"]]:
            means.setdefault((constant, row["factor"]), []).append(row["accuracy"])
    head = ["constant", *(f"times {factor:g}" for factor in FACTORS)]
    body = [
        [label, *(_mean(means.get((constant, factor))) for factor in FACTORS)]
        for constant, label in CONSTANTS.items()
    ]
    return table(head, body)


def _mean(values: list[float] | None) -> str:
    return f"{100.0 * np.mean(values):.2f}" if values else ""
