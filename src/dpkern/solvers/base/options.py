"""Options: the arguments of solvers, with their documentation and checks."""

import inspect
import numbers
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, not_negative, positive, probability, real

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
        Type and description, from the docstring's section Parameters.
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


UNDECLARED = Option(declared=False)
Count = Annotated[int, Option(count)]
Positive = Annotated[float, Option(positive)]
NotNegative = Annotated[float, Option(not_negative)]
CountOrNone = Annotated[int | None, Option(or_none(count))]
Momentum = Annotated[float, Option(below_one)]
Share = Annotated[float, Option(probability)]
UpToOne = Annotated[float, Option(up_to_one)]
Returns = Annotated[str | int | float, Option(check=iterates("auto", "last", "average", "tail"))]
StepSize = float | str | Sequence[float] | NDArray[np.float64]
