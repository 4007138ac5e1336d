"""What the parties of a study run: solver, budget and arguments, as they tell one another."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dpkern._json import canonical, decode, digest, encode
from dpkern.data import SiloData
from dpkern.evaluation import Evaluation
from dpkern.evaluation.evaluate import EVALUATE, evaluate
from dpkern.models import losses, penalties
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.losses import Loss
from dpkern.models.networks import MLP
from dpkern.models.oracles import Oracle
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.models.terms import Penalty, PenaltySum
from dpkern.privacy import Budget
from dpkern.solvers import SOLVERS, SolverResult, solve

if TYPE_CHECKING:
    from dpkern.federated.study import Study

_OBJECT = "__object__"
_KINDS: tuple[type[Any], ...] = (
    *losses.LOSSES.values(),
    *penalties.PENALTIES.values(),
    *penalties.SMOOTH.values(),
    *(MLP, AllThreshold, CumulativeLogit, DiscreteHazards, PenaltySum),
)
_CLASSES = {kind.__name__: kind for kind in _KINDS}
# More would keep a silo busy for days: it looks at a plan before it takes part.
_MOST_STEPS = 1_000_000
#: Arguments of the coordinator's process alone.
OWN = ("rng", "n_threads", "progress", "callback", "monitor", "accountant")


@dataclass(frozen=True)
class Proposal:
    """A solver, or "evaluate", the budget of one record, and arguments.

    Raises
    ------
    TypeError, ValueError
        When an argument cannot be told to others, or a value is not what it should be.
    """

    solver: str
    budget: Budget
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        if self.solver not in (known := (*SOLVERS, EVALUATE)):
            raise ValueError(f"solver must be one of {', '.join(known)}, got {self.solver!r}")
        steps = 1
        for name in ("rounds", "local_steps"):
            given = self.arguments.get(name)
            steps *= max(given, 1) if isinstance(given, int) else 1
        if steps > _MOST_STEPS:
            raise ValueError(f"rounds must have at most {_MOST_STEPS} steps together, got {steps}")
        for name in OWN:
            if name in self.arguments:
                raise ValueError(f"{name} must be left out of a plan: it is every party's own")

    def run(self, study: "Study", data: SiloData, **own: Any) -> SolverResult | Evaluation:
        """Run the solver on a party's data, or evaluate the study's model on them.

        `own` are arguments of the party's process, of which an evaluation has two.
        """
        study.check_solver(self.solver)
        if self.solver != EVALUATE:
            return solve(self.solver, data, budget=self.budget, **own, **self.arguments)
        own = {name: own[name] for name in ("accountant", "rng")}
        return evaluate(study.model, data, budget=self.budget, **own, **self.arguments)

    def to_json(self) -> str:
        """Return the plan as canonical JSON."""
        b = self.budget
        given = {"mu": b.mu} if b.epsilon is None else {"epsilon": b.epsilon, "delta": b.delta}
        arguments = {name: _told(name, value) for name, value in self.arguments.items()}
        values = encode({"solver": self.solver, "budget": given, "arguments": arguments})
        values["digest"] = _digest(values)
        return canonical(values, spaces=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read the plan of a file; raise ValueError, which names the file, for what is none."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def differences_from(self, agreed: "Proposal") -> list[str]:
        """Return what of this plan is not as it was agreed, for people."""
        own, others = _written(self), _written(agreed)
        return [
            f"{name} {own.get(name, 'absent')} proposed, {others.get(name, 'absent')} agreed"
            for name in sorted(own.keys() | others.keys())
            if own.get(name) != others.get(name)
        ]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that others told; raise ValueError for what is none."""
        try:
            stated = json.loads(text)
            if stated.pop("digest") != _digest(stated):
                raise ValueError("a plan must have its own digest: it was edited or damaged")
            values = decode(stated)
            arguments = {str(k): _understood(v) for k, v in values["arguments"].items()}
            return cls(str(values["solver"]), Budget(**values["budget"]), arguments)
        except (AttributeError, KeyError, TypeError, RecursionError, JSONDecodeError) as error:
            raise ValueError(
                f"a plan must hold solver, budget, arguments and digest: {error}"
            ) from error


def _digest(values: Mapping[str, Any]) -> str:
    return digest(values, spaces=True)[: len("sha256:") + 32]


def _written(plan: Proposal) -> dict[str, str]:
    """Return the parts of a plan as JSON, in which no text of others can act on a screen."""
    values = json.loads(plan.to_json())
    del values["digest"]
    parts = {json.dumps(name): value for name, value in values.pop("arguments").items()} | values
    return {name: json.dumps(value) for name, value in parts.items()}


def _told(name: str, value: Any) -> Any:
    """Return a value of JSON for an argument."""
    if isinstance(value, Loss | Oracle | Penalty):
        kind = type(value).__name__
        if _CLASSES.get(kind) is not type(value):
            raise TypeError(f"{name} must be of this package in a federation, got {kind}")
        return {_OBJECT: kind} | {
            f.name: _told(name, getattr(value, f.name)) for f in fields(_CLASSES[kind]) if f.init
        }
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_told(name, entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{name} must be numbers, strings, a loss, a penalty or a network in a federation, got "
        f"{type(value).__name__}"
    )


def _understood(value: Any) -> Any:
    """Return the argument for a value of JSON."""
    if isinstance(value, list):
        return tuple(_understood(entry) for entry in value)
    if isinstance(value, dict):
        given = {key: _understood(entry) for key, entry in value.items()}
        return _CLASSES[given.pop(_OBJECT)](**given)
    return value
