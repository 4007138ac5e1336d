"""Options: the arguments of solvers, with their documentation and checks.

Those that all solvers share, and those that several have, are declared at the end.
"""

import copy
import inspect
import numbers
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, not_negative, positive, probability, real
from dpkern.data import SiloData
from dpkern.models.losses import Loss, get_loss
from dpkern.models.oracles import Oracle
from dpkern.models.terms import Penalty
from dpkern.privacy import NoiseStream, Release
from dpkern.privacy.accountant.accountant import Accountant

Check = Callable[[str, Any], Any]

#: The default of an option whose value follows from public numbers (settings.py).
AUTO: Any = "auto"


@dataclass(frozen=True)
class Option:
    """One argument of a solver.

    Parameters
    ----------
    check : callable, optional
        check(name, value) returns the validated value, or raises an error that names the argument.
        A Literal annotation needs none. The solver checks conditions on several arguments.
    declared : bool
        Whether the certificate lists the value among what the guarantee takes as public. False
        where the value does not concern privacy, or where the certificate has a field for it.
    default : object
        Default, from the signature.
    kind, doc : str
        Type and description, from the docstring's section Parameters; a type that is given wins.
    """

    check: Check | None = None
    declared: bool = True
    default: Any = inspect.Parameter.empty
    kind: str = ""
    doc: str = ""


def options_of(
    function: Callable[..., object], common: Mapping[str, Option] | None = None
) -> dict[str, Option]:
    """Read the options of a function from its keyword-only arguments and its docstring.

    What the docstring does not describe has the description of the common option of that name.

    Raises
    ------
    TypeError
        When an argument is not described, or the docstring describes an unknown one.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    described = entries(sections(function)["Parameters"])
    known = {name: (option.kind, option.doc) for name, option in (common or {}).items()}
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        hint = hints[name]
        extras = getattr(hint, "__metadata__", ())
        option = next((extra for extra in extras if isinstance(extra, Option)), Option())
        choices = _choices(hint.__origin__ if extras else hint)
        kind, doc = described.pop(name, known.get(name, ("", "")))
        if not doc and function.__doc__ is not None:  # None under python -OO
            raise TypeError(f"{function.__name__} does not describe its argument {name}")
        check = one_of(*choices) if choices else option.check
        if isinstance(parameter.default, str) and parameter.default == AUTO and check:
            check = or_auto(check)
        kind = option.kind or kind
        found[name] = replace(option, default=parameter.default, check=check, kind=kind, doc=doc)
    if described:
        raise TypeError(f"{function.__name__} has no argument {', '.join(described)}")
    return found


def sections(function: Callable[..., object]) -> dict[str, str]:
    """Split a numpydoc docstring by section titles; the text before the first has title ""."""
    text = inspect.cleandoc(function.__doc__ or "")
    parts = re.split(r"(?:^|\n\n)(\w+)\n-+\n", text)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {"Parameters": "", "": parts[0], **found}


def entries(text: str) -> dict[str, tuple[str, str]]:
    """Parse a section Parameters into types and descriptions by name."""
    found: dict[str, tuple[str, str]] = {}
    for head, body in re.findall(r"^(\S.*)((?:\n +.*)*)", text, re.MULTILINE):
        name, _, kind = head.partition(" : ")
        found[name] = kind, " ".join(body.split())
    return found


def entry(name: str, kind: str, doc: str, default: object = inspect.Parameter.empty) -> str:
    """Return the numpydoc entry of a parameter."""
    head = f"{name} : {kind}" if kind else name
    if default is not inspect.Parameter.empty:
        head += f", default={default!r}"
    body = textwrap.fill(" ".join(doc.split()), 96, initial_indent="    ", subsequent_indent="    ")
    return f"{head}\n{body}"


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values that a Literal, or a union of one and None, allows."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    members = typing.get_args(annotation)
    literals = [m for m in members if typing.get_origin(m) is typing.Literal]
    if literals and len(members) == 2 and type(None) in members:
        return (*typing.get_args(literals[0]), None)
    return ()


def kind_of(choices: Iterable[str]) -> str:
    """Return the type of an argument with these values, as numpydoc writes it."""
    return "{" + ", ".join(f'"{choice}"' for choice in choices) + "}"


def check_choice(name: str, value: object, choices: Iterable[str], where: str = "") -> None:
    """Raise ValueError unless the value is one of the choices."""
    choices = tuple(choices)
    if not any(type(value) is type(c) and value == c for c in choices):
        where = f" in {where}" if where else ""
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}{where}, got {value!r}")


def checked_values(
    options: Mapping[str, Option],
    arguments: Mapping[str, Any],
    offered: Mapping[str, tuple[str, ...]],
    where: str,
) -> dict[str, Any]:
    """Return the values of all options, checked, those that are not given by their defaults."""
    values = {}
    for name, option in options.items():
        value = arguments.get(name, option.default)
        if isinstance(value, np.ndarray | list):
            value = copy.copy(value)  # callbacks may change the caller's
        if name in offered:
            check_choice(name, value, offered[name], where)
        elif option.check is not None:
            value = option.check(name, value)
        values[name] = value
    return values


def or_none(check: Check) -> Check:
    """Return the check that a value is None or passes another check."""

    def checked(name: str, value: object) -> object:
        return None if value is None else check(name, value)

    return checked


def or_auto(check: Check) -> Check:
    """Return the check that a value is "auto" or passes another check."""

    def checked(name: str, value: object) -> object:
        return value if isinstance(value, str) and value == AUTO else check(name, value)

    return checked


def up_to_one(name: str, value: object) -> float:
    """Check that a number lies in (0, 1]."""
    number = real(name, value)
    if not 0.0 < number <= 1.0:
        raise ValueError(f"{name} must lie in (0, 1], got {number!r}")
    return number


def below_one(name: str, value: object) -> float:
    """Check that a number lies in [0, 1)."""
    number = real(name, value)
    if not 0.0 <= number < 1.0:
        raise ValueError(f"{name} must lie in [0, 1), got {number!r}")
    return number


def one_of(*choices: Any) -> Check:
    """Return the check that a value is one of the choices."""

    def check(name: str, value: object) -> object:
        check_choice(name, value, choices)
        return value

    return check


def iterates(*names: str) -> Check:
    """Return the check that a value is one of the names, or a number or a share of iterates."""

    def check(name: str, value: object) -> object:
        if isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return count(name, value)
        if isinstance(value, numbers.Real) and not isinstance(value, bool):
            return probability(name, value)
        choices = " or ".join(map(repr, names))
        if not isinstance(value, str) or value not in names:
            numbered = "a number or a share of the last iterates"
            raise ValueError(f"{name} must be {choices} or {numbered}, got {value!r}")
        return value

    return check


def counts(name: str, value: object) -> int | tuple[int, ...]:
    """Check that a value is a positive integer or a sequence of some."""
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str):
        return count(name, value)
    if len(value) == 0:
        raise ValueError(f"{name} must not be an empty sequence")
    return tuple(count(name, number) for number in value)


UNDECLARED = Option(declared=False)
Count = Annotated[int, Option(count)]
Positive = Annotated[float, Option(positive)]
NotNegative = Annotated[float, Option(not_negative)]
CountOrNone = Annotated[int | None, Option(or_none(count))]
Momentum = Annotated[float, Option(below_one)]
Share = Annotated[float, Option(probability)]
UpToOne = Annotated[float, Option(up_to_one)]
Returns = Annotated[
    str | int | float,
    Option(
        iterates("auto", "last", "average", "tail"),
        kind='{"auto", "last", "average", "tail"}, int or float',
    ),
]
StepSize = float | str | Sequence[float] | NDArray[np.float64]

_from_0 = partial(count, least=0)
Callback = Callable[[int, Release], object]
Monitor = SiloData | Literal["train"] | None
PublicSize = int | Sequence[int] | NDArray[np.integer] | None


def _loss(name: str, value: Any) -> Loss:
    if isinstance(value, Oracle):
        raise TypeError(f"{name} must be a loss, got the model {value.name!r}: give it as model=")
    return get_loss(value)


def _model(name: str, value: object) -> Oracle | None:
    if value is not None and not isinstance(value, Oracle):
        raise TypeError(f"{name} must be None or an Oracle, got {type(value).__name__}")
    return value


def _penalty(name: str, value: object) -> Penalty | None:
    if value is not None and not isinstance(value, Penalty):
        raise TypeError(
            f"{name} must be None or a Penalty, such as dpkern.penalties.L1(0.1), got {value!r}"
        )
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def _accountant(name: str, value: object) -> Accountant | None:
    if value is not None and not isinstance(value, Accountant):
        hint = f": dpkern.Accountant({value!r})" if isinstance(value, str) else ""
        raise TypeError(f"{name} must be None or an Accountant, got {type(value).__name__}{hint}")
    return value


def _callback(name: str, value: object) -> object:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be None or callable, got {type(value).__name__}")
    return value


def _shared(
    *,
    clip: Annotated[float | None, Option(or_none(partial(positive, or_infinite=True)))] = AUTO,
    loss: Annotated[str | Loss, Option(check=_loss)] = "logistic",
    model: Annotated[Oracle | None, Option(check=_model)] = None,
    penalty: Annotated[Penalty | None, Option(check=_penalty)] = None,
    l2: NotNegative = 0.0,
    l1: NotNegative = 0.0,
    trust: Annotated[str, UNDECLARED] = "central",
    neighbours: Annotated[str, UNDECLARED] = "replace_one",
    public_size: Annotated[PublicSize, UNDECLARED] = None,
    person_clip: Annotated[float | None, Option(or_none(positive), declared=False)] = AUTO,
    weights: Literal["size", "uniform"] = "size",
    calibration: str = "sound",
    recalibrate: Annotated[bool, Option(check=_flag)] = True,
    colluding: Annotated[int | None, Option(or_none(_from_0), declared=False)] = None,
    penalize_intercept: Annotated[bool, Option(check=_flag)] = AUTO,
    accountant: Annotated[Accountant | None, Option(check=_accountant, declared=False)] = None,
    rng: Annotated[int | NoiseStream | None, UNDECLARED] = None,
    n_threads: Annotated[int | None, UNDECLARED] = None,
    progress: Annotated[bool, UNDECLARED] = False,
    callback: Annotated[Callback | None, Option(check=_callback, declared=False)] = None,
    monitor: Annotated[Monitor, UNDECLARED] = None,
) -> None:
    """Declare the arguments; this function is never called.

    Parameters
    ----------
    clip : float, None or "auto"
        Clip norm: per-record gradients of larger l2 norm are scaled down to it. "auto" follows
        from the budget, the row bound and public numbers, and is none without a budget; None is
        none.
    loss : str or Loss
        Loss of a linear model: a name or an object of `dpkern.models.losses`.
    model : Oracle or None
        A model that is not linear, such as dpkern.MLP(hidden=(64,)) or a subclass of
        `dpkern.Oracle`; it has its own loss.
    penalty : Penalty or None
        A penalty with its strength, a sum of penalties, or a constraint, of `dpkern.penalties`:
        L1(0.1), L2(1e-3) + L1(1e-4), Simplex(). L2 and PL enter through their gradient, the
        others through their prox. With a budget, hidden local steps support the prox of L1 alone.
    l2 : float
        Shorthand for the penalty L2(l2): (l2/2) |w|^2.
    l1 : float
        Shorthand for the penalty L1(l1): l1 |w|_1.
    trust : {"central", "silo", "shuffle", "local"}
        The trust model. "central": a trusted aggregator adds the noise to sums over silos;
        "silo": every silo trusts only itself, and adds noise to each of its messages;
        "shuffle": a trusted shuffler permutes the records' messages; "local": every record's
        owner trusts nobody else.
    neighbours : {"replace_one", "add_remove"}
        The neighbour relation. "replace_one": the values of one record are replaced, and the
        numbers of records are public. "add_remove": one record is added or removed, which
        halves sensitivities and hides those numbers.
    public_size : int, sequence of m ints or None
        With "add_remove", a public number of records per silo. One in total suffices under
        central trust with weights "size", but not for minibatch methods. It replaces the true
        sizes in weights, means, noise, grids and everything reported. It need not be exact:
        sums of up to twice as many records are exact, and larger ones may be clamped.
    person_clip : float, "auto" or None
        For data with `person`, in clip norms: the norm c to which the sum of a person's clipped
        gradients is clipped, so that noise is for c records instead of max_records. "auto" is the
        median number of records of a person where that is less, and the solver's releases are
        sums of gradients over all records; None is the bound for groups of records, which every
        solver offers (docs/people.md).
    weights : {"size", "uniform"}
        Silo weights p_j = n_j / N or 1 / m.
    calibration : {"sound", "paper"}
        "sound" calibrates the noise by this package's proofs; "paper" takes the formula that
        the solver's paper prints, and certifies the guarantee that it really gives.
    recalibrate : bool
        Whether a share of the budget, fixed by public numbers, releases a line from margins to log
        odds, or a temperature, of softmax regression, or before the first step the mean of targets
        within a bound (docs/settings.md). With few records nothing is released for labels, and the
        temperature follows from their number and the budget. There is none where `clip` is given,
        nor for other losses and hidden layers; for constraints, monitors, secret samples, shuffle
        and local trust, a `person_clip` or calibration="paper".
    colluding : int or None
        Under central trust, the number t of silos that may pool what they know with whoever sees
        the aggregate. Every silo then adds a share of the noise to its own sum, so that the noise
        of the m - t others has the budget: std sqrt(m / (m - t)) times the aggregator's, which
        None is for.
    penalize_intercept : bool or "auto"
        Whether penalties act on the intercept too. "auto" is False for l2 and l1 beside real
        targets, which need not be around 0, and True elsewhere, and where noise is less beside a
        penalty of all coordinates: with accounting "last_iterate", and in `wd_dp`,
        `output_perturbation` and `objective_perturbation`, which draw the intercept of targets to
        their released mean, the first two with the squared and Huber losses.
    accountant : Accountant or None
        What is charged, before the first release, for what the run may spend, and refuses a run
        that its budget does not admit.
    rng : int or NoiseStream or None
        Source of the noise: None is the operating system's entropy; an int is a seed, which
        makes the run reproducible and not private.
    n_threads : int or None
        Number of threads; None means the cores available to the process. Results do not
        depend on it.
    progress : bool
        Show a progress bar.
    callback : callable or None
        Function callback(round, release), called after every round.
    monitor : SiloData, "train" or None
        Public records on which the objective and the accuracy are evaluated every round for
        the history, or "train" for a non-private diagnostic.
    """


SHARED = options_of(_shared)


_RETURNS = ("auto", "last", "random", "average", "tail")


def _common(
    *,
    rounds: Count = AUTO,
    local_steps: Count = AUTO,
    step_size: StepSize = "auto",
    momentum: Momentum = AUTO,
    accounting: Literal["composition", "last_iterate"] = "composition",
    hess_clip: float | None = AUTO,
    sampling: str = "full",
    batch_size: int | None = AUTO,
    participation: Annotated[int | Sequence[int] | None, Option(or_none(counts))] = None,
    returns: Annotated[str | int | float, Option(check=iterates(*_RETURNS))] = "auto",
) -> None:
    """Declare options that several solvers have; this function is never called.

    Parameters
    ----------
    rounds : int
        Number of rounds, each of which ends with a public model.
    local_steps : int
        Steps of every silo in a round.
    step_size : float, sequence of floats or str
        One step size, or one for every step of all rounds. "auto" follows from public numbers,
        with the clip norm and the number of rounds (docs/settings.md), or is 1 / beta for a user's
        own model, beta the smoothness that it declares; "theorem" = 2 / (l2 (t + gamma)) at step t,
        gamma = max(8 (L + l2) / l2 - 1, local_steps), L = sup phi'' row_bound^2.
    momentum : float or "auto"
        beta in [0, 1): the gradient is taken at w_t + beta (w_t - w_{t-1}), and the step from
        there. "auto" follows from public numbers where step_size does, and is 0 otherwise.
    accounting : {"composition", "last_iterate"}
        Under trust "silo", "last_iterate" charges a silo for the last of the noisy iterates of
        a round instead of for all of them: it needs steps that contract, equal within a round.
    hess_clip : float, "auto" or None
        Clip norm B of one record's Hessian phi'' x x^T in Frobenius norm. None is sup phi''
        row_bound^2, which clips nothing; "auto" is less where noise would hide the curvature. A
        number is required with a budget where that maximum is infinite.
    sampling : str
        How every silo draws its batches. "full": all records. "without_replacement" and, with
        neighbours "add_remove", "poisson": secret samples, charged by their dominating pairs,
        for a budget of epsilon and delta. "one_pass": disjoint
        consecutive batches of a random order of the records; "cyclic" starts over at its end,
        and charges a record for every batch that it is in.
    batch_size : int, None or "auto"
        Records per batch and silo, on average for Poisson batches; None with sampling "full".
        "auto" uses every record once with "one_pass" and "cyclic", and is the number beyond which
        secret samples have hardly less noise.
    participation : int, sequence of int or None
        Number M of the m silos that participate in a round, or one for each draw of silos: a round,
        in `prox_svrg` those from one full gradient to the next. The participation schedule is
        drawn in advance and public; None means all.
    returns : {"auto", "last", "random", "average", "tail"}, int or float
        Which iterate is returned. A whole number is the average of so many last ones, of all where
        there are fewer; one below 1 the average of this share of them, and "tail" of a third.
        "auto" is "tail" with a budget and step_size "auto", else "last".
    """


COMMON = options_of(_common)


def batch_options(samplers: tuple[str, ...]) -> dict[str, Option]:
    """Return the options of a minibatch method that offers these samplers."""
    options = {name: COMMON[name] for name in ("batch_size", "participation", "returns")}
    if len(samplers) < 2:
        return options if samplers else {}
    kind, check = kind_of(samplers), one_of(*samplers)
    sampling = replace(COMMON["sampling"], kind=kind, check=check, default=samplers[0])
    return {"sampling": sampling, **options}
