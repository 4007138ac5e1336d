"""Candidates of a private selection: public settings, from which those of every run are drawn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np

from dpkern.data import SiloData
from dpkern.models.networks import MLP
from dpkern.privacy import Budget
from dpkern.solvers import SOLVERS, Declared, SolverResult
from dpkern.solvers.base.options import check_choice
from dpkern.solvers.base.outcome import plain
from dpkern.solvers.base.run import begin

Settings: TypeAlias = dict[str, Any]
Given: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any]

# Settings drawn from distributions to check that solvers take them.
_PROBES = 16
# Arguments that would show losing runs, and monitors, which might hold records.
_NOT_TAKEN = ("budget", "rng", "callback", "progress", "monitor", "accountant")
_TOO_GOOD = (
    "intervals of the best of several fits do not cover; select on other records, and fit one "
    "model with inference=True"
)
# What leaves a run exactly Gaussian DP, and only its result to be seen.
_EXACT = {
    "trust": ("central",),
    "neighbours": ("replace_one",),
    "calibration": ("sound",),
    "sampling": ("full", "one_pass", "cyclic"),
}


@dataclass(frozen=True)
class Candidates:
    """Public settings and how they are drawn; see `dpkern.select`.

    Attributes
    ----------
    draw : callable
        Function of a numpy.random.Generator that returns settings, with their solver.
    checked : list of dict
        Settings to check before any record is read: all of a list, or some that were drawn.
    declared : str or dict
        What the certificate declares.
    shared : dict
        Arguments of all candidates.
    models : bool
        Whether candidates may be models other than linear ones.
    """

    draw: Callable[[np.random.Generator], Settings]
    checked: list[Settings]
    declared: Any
    shared: Settings
    models: bool

    @classmethod
    def of(cls, given: Given, solver: str | None, shared: Settings, models: bool) -> Self:
        """Return the candidates of the arguments of `dpkern.select`."""

        def named(settings: Mapping[str, Any]) -> Settings:
            if not isinstance(settings, Mapping):
                raise TypeError(f"candidates must hold a dict each, got {type(settings).__name__}")
            for name in settings:
                if name in shared or (name == "solver" and solver is not None):
                    raise TypeError(f"{name} must be given once, by the candidates or beside them")
            if "solver" not in settings and solver is None:
                raise TypeError("solver must be given, by the candidates or beside them")
            return {**({} if solver is None else {"solver": solver}), **settings}

        if isinstance(given, Mapping):
            space = {name: v if name in given else [v] for name, v in named(given).items()}
            for name, values in given.items():
                if not hasattr(values, "rvs") and not (isinstance(values, list) and values):
                    raise TypeError(
                        f"candidates[{name!r}] must be a list of values or a distribution with "
                        f"rvs, got {values!r}"
                    )

            def drawn(generator: np.random.Generator) -> Settings:
                return {name: _value(values, generator) for name, values in space.items()}

            probe = np.random.default_rng(0)
            distributions = {
                name: plain(v) if isinstance(v, list) else _text(v) for name, v in given.items()
            }
            return cls(drawn, [drawn(probe) for _ in range(_PROBES)], distributions, shared, models)
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise TypeError(
                "candidates must be a list of dicts, or a dict of lists and distributions, got "
                f"{given!r}"
            )
        every = [named(settings) for settings in given]
        many = f"{len(every)} settings"
        return cls(lambda g: every[int(g.integers(len(every)))], every, many, shared, models)

    def values(self, settings: Settings, data: SiloData, mu: float) -> Settings:
        """Return all arguments of a candidate, or raise by what is public about it."""
        arguments = {**self.shared, **settings}
        name = arguments.pop("solver")
        if arguments.pop("inference", False):
            raise ValueError(f"inference must be False in a selection: {_TOO_GOOD}")
        check_choice("solver", name, SOLVERS)
        for argument in _NOT_TAKEN:
            if argument in arguments:
                raise TypeError(f"{argument} must be left out of the candidates of a selection")
        declaration = SOLVERS[name].declaration
        if declaration.estimates:
            raise ValueError(f"solver must not be {name!r} in a selection: {_TOO_GOOD}")
        if not declaration.gaussian:
            raise ValueError(f"solver must be one of Gaussian DP in a selection, got {name!r}")
        values = declaration.complete(arguments)
        for option, allowed in _EXACT.items():
            if option in values:
                where = f"{name} as a candidate, exactly Gaussian DP and seen by nobody"
                check_choice(option, values[option], allowed, where)
        model = values["model"]
        if model is not None and (type(model) is not MLP or not self.models):
            raise TypeError(
                "model must be None, or an MLP with score 'accuracy', in a selection, got "
                f"{type(model).__name__}"
            )
        if isinstance(values.get("operator"), Declared):
            raise TypeError(
                "operator must be a name in a selection: a Declared reads records of its own, "
                "which are not divided into those that train and those that score"
            )
        with begin(declaration, data, Budget.part(mu), values) as run:
            float(run.plan.clip)  # raises where there is none
        return values

    def solve(self, settings: Settings, data: SiloData, mu: float, rng: Any) -> SolverResult:
        """Return the run of a candidate."""
        arguments = {**self.shared, **settings}
        return SOLVERS[arguments.pop("solver")](data, budget=Budget.part(mu), rng=rng, **arguments)


def _value(values: Any, generator: np.random.Generator) -> Any:
    if isinstance(values, list):
        return values[int(generator.integers(len(values)))]
    return np.asarray(values.rvs(random_state=generator)).item()


def _text(distribution: Any) -> str:
    """Return a frozen distribution of SciPy as text."""
    name = getattr(getattr(distribution, "dist", None), "name", type(distribution).__name__)
    given = [*map(str, getattr(distribution, "args", ()))]
    given += [f"{key}={value}" for key, value in getattr(distribution, "kwds", {}).items()]
    return f"{name}({', '.join(given)})"
