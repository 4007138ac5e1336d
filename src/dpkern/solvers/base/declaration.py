"""A solver's declaration: its options and what it offers.

From the declaration follow the public signature, the documentation of arguments, the checks and
their errors, what the certificate declares, the command line's options and the cases of the tests.
A solver's file defines one coroutine function of a `Run` and of the solver's own options, which
awaits every sum over the records (backends.py):

    @solver(trusts=("central", "silo"), neighbours=BOTH)
    async def gradient_descent(run: Run, *, rounds: Count = 300) -> SolverResult:
        ...

Its docstring describes the options in the section Parameters and, in the section Notes, what is
released, to whom, its sensitivity and why. `solver` turns it into the public function
``gradient_descent(data, *, budget, clip, rounds, **shared)``.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from dpkern._numbers import did_you_mean
from dpkern.data import SiloData
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.party import Remote
from dpkern.solvers.base.backends import Algorithm, finish
from dpkern.solvers.base.options import (
    COMMON,
    SHARED,
    Option,
    batch_options,
    checked_values,
    entry,
    options_of,
    sections,
)
from dpkern.solvers.base.plan import Resolver, resolve_step_sizes
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import begin
from dpkern.solvers.base.settings import Rule, descent

_BUDGET = "budget=dpkern.Budget(epsilon=..., delta=...)"

REPLACE_ONE = ("replace_one",)
BOTH = ("replace_one", "add_remove")


@dataclass(frozen=True)
class Declaration:
    """The name, options and offers of one solver."""

    name: str
    options: Mapping[str, Option]  #: of the algorithm's function, with their defaults
    trusts: tuple[str, ...]
    neighbours: tuple[str, ...] = REPLACE_ONE
    paper: tuple[str, ...] = ()  #: trust models under which calibration="paper" is offered
    samplers: tuple[str, ...] = ()  #: values of `sampling`; empty unless batches are drawn
    models: Literal["linear", "ordered", "any"] = "linear"  #: "ordered": linear, and these
    penalties: Literal["any", "l2"] = "any"
    settings: Rule = descent  #: the rule for options that are "auto"
    resolve: Resolver = resolve_step_sizes  #: derives further arguments of a plan from others
    person_sums: bool = False  #: whether a person's summed gradient can be clipped
    on_card: bool = False  #: whether its sums over records with a copy on a card are taken there
    weights: bool = True  #: whether its sums have the weights and margin offsets of records
    starts_at_rates: bool = False  #: whether it starts at released rates of classes
    in_blocks: int = 0  #: passes of a step; 0 where more than sums over all records is taken
    federated: bool = True  #: whether all releases are sums over silos or messages of silos
    sends_models: bool = False  #: whether silos send a message after their local steps
    #: Arguments with which silos send messages, and those for which certificates are nearly tight.
    of_silos: Mapping[str, Any] = field(default_factory=dict)
    audit: Mapping[str, Any] = field(default_factory=lambda: {"rounds": 4, "step_size": 1e-5})
    hidden: tuple[str, ...] = ()  #: trust models under which its local steps are hidden
    differences: bool = False  #: whether differences of gradients are released
    hessians: bool = False  #: whether Hessians of records are summed
    error: tuple[float, float] | None = None  #: scale and power that planning.py takes
    seconds: tuple[float, float] | None = None  #: passes and microseconds of a step
    penalizes_intercept: bool = False  #: whether its noise is less where penalties act on all of w
    estimates: bool = False  #: whether its models have standard errors, and no line of margins
    gaussian: bool = True  #: whether a certificate of one run can have a mu
    loss: str = ""  #: its default loss, where that is not the one of all solvers
    summary: str = ""  #: the documentation of the algorithm
    notes: str = ""  #: its privacy argument

    @property
    def calibrations(self) -> tuple[str, ...]:
        """The values of `calibration` that the solver offers."""
        return ("sound", "paper") if self.paper else ("sound",)

    @property
    def offers(self) -> dict[str, tuple[str, ...]]:
        """The values of shared arguments that the solver offers."""
        neighbours, calibrations = self.neighbours, self.calibrations
        return {"trust": self.trusts, "neighbours": neighbours, "calibration": calibrations}

    @property
    def own(self) -> dict[str, Option]:
        """The solver's own options and, for a minibatch method, those of its batches."""
        return {**self.options, **batch_options(self.samplers)}

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments but data and budget, defaults filled in and every value checked.

        Raises
        ------
        TypeError
            When an argument is unknown; the message names the most similar one, or all.
        TypeError, ValueError
            When a value is not what the option documents, or not offered by this solver.
        """
        known = self.own | SHARED
        for name in arguments:
            if name not in known:
                hint = did_you_mean(name, known) or f"; there are {', '.join(known)}"
                if name in ("epsilon", "delta", "mu", "rho"):
                    hint = f"; give {_BUDGET}"
                raise TypeError(f"{self.name} has no argument {name!r}{hint}")
        given = {"loss": self.loss, **arguments} if self.loss else arguments
        values = checked_values(known, given, self.offers, self.name)
        if len(self.samplers) == 1:
            values["sampling"] = self.samplers[0]
        if values["calibration"] == "paper" and values["trust"] not in self.paper:
            trusts = " or ".join(f"trust={trust!r}" for trust in self.paper)
            raise ValueError(f"calibration='paper' needs {trusts} in {self.name}")
        ordered = self.models == "ordered" and isinstance(values["model"], AllThreshold)
        if self.models != "any" and values["model"] is not None and not ordered:
            other = " or AllThreshold()" if self.models == "ordered" else ""
            raise TypeError(
                f"model must be None{other} in {self.name}, which fits linear models: take 'auto' "
                "or minibatch_sgd for another"
            )
        if self.models == "any" and isinstance(values["model"], CumulativeLogit):
            raise TypeError(
                f"model must be AllThreshold() for ordered classes in {self.name}, got "
                "CumulativeLogit(), which newton_inference fits: take 'auto'"
            )
        if values["model"] is not None:
            if "loss" in arguments:
                raise TypeError("loss must be left out beside model, which has a loss of its own")
            values["loss"] = None
        return values


class Solver(Protocol):
    """A public solver: a function with its declaration, and the algorithm that it runs."""

    __name__: str
    declaration: Declaration
    algorithm: Algorithm

    def __call__(self, data: SiloData | Remote, *, budget: Any, **arguments: Any) -> SolverResult:
        """Run the solver."""


def solver(**offers: Any) -> Callable[[Algorithm], Solver]:
    """Turn a function of a `Run` and options into a public solver, by fields of `Declaration`."""

    def declare(function: Algorithm) -> Solver:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"{function.__name__} must be an async def, which awaits its releases")
        parts, options = sections(function), options_of(function, COMMON)
        declaration = Declaration(
            function.__name__, options, **offers, summary=parts[""], notes=parts.get("Notes", "")
        )
        return publish(declaration, function)

    return declare


def publish(declaration: Declaration, algorithm: Algorithm) -> Solver:
    """Return the public function of a declared solver."""

    def public(
        data: SiloData | Remote, *, budget: Any = inspect.Parameter.empty, **arguments: Any
    ) -> SolverResult:
        values = declaration.complete(arguments)
        if budget is inspect.Parameter.empty:
            raise TypeError(f"budget must be given: {_BUDGET}, or None for a run without privacy")
        if isinstance(data, Remote):
            with data.opened(declaration.name, budget, arguments) as (here, own):
                return public(here, budget=budget, **own)
        with begin(declaration, data, budget, values) as run:
            try:
                return finish(algorithm(run, **run.plan.options))
            except Exception as error:
                return run.ended_by(error)

    published = cast(Any, public)  # a function, to which attributes are added
    published.__name__ = published.__qualname__ = declaration.name
    published.__module__ = algorithm.__module__
    published.__doc__ = _documentation(declaration)
    own = {"clip": SHARED["clip"], **declaration.own}
    published.__signature__ = _keyword_signature(["data"], own, "shared")
    published.declaration, published.algorithm = declaration, algorithm
    return cast(Solver, published)


def renamed(
    public: Solver, name: str, summary: str, notes: str, defaults: Mapping[str, Any], **offers: Any
) -> Solver:
    """Return the same solver under another name, with other defaults and offers."""
    options = dict(public.declaration.options)
    for key, value in defaults.items():
        options[key] = replace(options[key], default=value)
    offers |= {"name": name, "options": options, "summary": summary, "notes": notes}
    return publish(replace(public.declaration, **offers), public.algorithm)


def _keyword_signature(
    first: list[str], options: Mapping[str, Option], rest: str
) -> inspect.Signature:
    """Return the signature (*first, *, budget, options with their defaults, **rest)."""
    positional, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [
            *(inspect.Parameter(name, positional) for name in first),
            inspect.Parameter("budget", keyword),
            *(inspect.Parameter(name, keyword, default=o.default) for name, o in options.items()),
            inspect.Parameter(rest, inspect.Parameter.VAR_KEYWORD),
        ]
    )


_RETURNS = """\
Returns
-------
result : SolverResult

Raises
------
TypeError, ValueError
    When an argument or a condition does not hold; the message names it.
"""

_NAME = (
    'The solver; "auto" takes the one that suits the trust model and, where neither loss nor model '
    "is given, the squared loss for real targets and softmax regression for several classes. "
    "Without a budget a linear model with an intercept and up to 128 coefficients has its "
    "minimiser, with standard errors."
)


_EXAMPLES = """

Examples
--------
>>> import dpkern as dpk
>>> data = dpk.datasets.load_wisconsin(m=4, intercept=True, row_bound=4.0)
>>> budget = dpk.Budget(epsilon=1.0, delta=1e-5)
>>> result = dpk.solve("gradient_descent", data, budget=budget, clip=1.0, rounds=100)
>>> print(result.message, result.privacy.epsilon(1e-5) <= 1.0)
ran its 100 rounds True
"""


def _documentation(declaration: Declaration) -> str:
    """Return the docstring of the public function."""
    own = {"clip": SHARED["clip"], **declaration.own}
    offers = [f"{name} {_list(values)}" for name, values in declaration.offers.items()]
    if declaration.paper and declaration.paper != declaration.trusts:
        offers[-1] += f' ("paper" under trust {_list(declaration.paper)})'
    if declaration.penalties == "l2":
        offers.append("the penalty l2")
    if declaration.loss:
        offers.append(f'loss "{declaration.loss}" by default')
    kinds = {"linear": "linear models", "ordered": "linear models and ordered classes"}
    offers.append(kinds.get(declaration.models, "every model"))
    shared = f"See `dpkern.solve`, which documents them. Offered here: {'; '.join(offers)}."
    entries = [
        entry("data", "SiloData", "The records, in silos."),
        entry("budget", "Budget or None", "Total privacy budget of the run; None adds no noise."),
        *_entries(own),
        entry("**shared", "", shared),
    ]
    head = f"{declaration.summary}\n\nParameters\n----------\n" + "\n".join(entries)
    return f"{head}\n\n{_RETURNS}\nNotes\n-----\n{declaration.notes}\n"


def _entries(options: Mapping[str, Option]) -> list[str]:
    return [entry(name, o.kind, o.doc, o.default) for name, o in options.items()]


def _list(values: Iterable[str]) -> str:
    return " or ".join(f'"{value}"' for value in values)


def shared_documentation(solvers: Iterable[str]) -> str:
    """Return the docstring of `dpkern.solve`, which documents the shared arguments."""
    names = textwrap.fill(", ".join(solvers), 92)
    entries = [
        entry("name", "str", _NAME),
        entry("data", "SiloData", "N records in m silos."),
        entry(
            "budget",
            "Budget or None",
            "Total budget of the run, for one record; None runs the same code without noise and "
            "certifies nothing.",
        ),
        *_entries(SHARED),
        entry(
            "inference",
            "bool",
            "Whether estimates have standard errors, for `SolverResult.summary`: the solver is "
            "`newton_inference`.",
            False,
        ),
        entry("**options", "", "The solver's own: see help(dpkern.solvers.NAME)."),
    ]
    common = [entry(name, option.kind, option.doc) for name, option in COMMON.items()]
    return (
        "Run a solver by name, or as the function of that name in `dpkern.solvers`.\n\n"
        f"Solvers:\n\n{textwrap.indent(names, '    ')}\n\n"
        "Parameters\n----------\n" + "\n".join(entries) + f"\n\n{_RETURNS}\n"
        "Other Parameters\n----------------\n"
        "Options that several solvers have, each with defaults of its own:\n\n"
        + "\n".join(common)
        + _EXAMPLES
    )


def shared_signature() -> inspect.Signature:
    """Return the signature of `dpkern.solve`."""
    inference = Option(kind="bool", default=False)
    return _keyword_signature(["name", "data"], {**SHARED, "inference": inference}, "options")
