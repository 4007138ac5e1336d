"""Options: the arguments of solvers, with their documentation and checks."""

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from dpkern._numbers import positive

Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Option:
    """One argument of a solver.

    Parameters
    ----------
    doc : str
        What it means, in plain text.
    check : callable, optional
        check(name, value) returns the value to use, or raises an error that names the argument. A
        Literal annotation checks itself. Conditions that involve other arguments are the solver's.
    kind : str
        The type as documentation prints it; by default it is derived from the annotation.
    declared : bool
        Whether the certificate lists the value among what the guarantee takes as public. False
        where the value does not concern privacy, or where the certificate has a field for it.
    default : object
        Filled in from the signature.
    """

    doc: str
    check: Check | None = None
    kind: str = ""
    declared: bool = True
    default: Any = inspect.Parameter.empty


def options_of(function: Callable[..., object]) -> dict[str, Option]:
    """The options of a function's keyword-only arguments, from their annotations."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        annotation = hints[name]
        extras = getattr(annotation, "__metadata__", ())
        option = next((extra for extra in extras if isinstance(extra, Option)), None)
        if option is None:
            raise TypeError(f"option {name} of {function.__name__} must be Annotated by an Option")
        bare = annotation.__origin__
        choices = typing.get_args(bare) if typing.get_origin(bare) is typing.Literal else None
        found[name] = replace(
            option,
            default=parameter.default,
            kind=option.kind or _kind(bare),
            check=option.check if choices is None else one_of(*choices),
        )
    return found


def check_choice(name: str, value: object, choices: Iterable[str], where: str = "") -> None:
    """Refuse a value that is none of the choices."""
    choices = tuple(choices)
    if not any(type(value) is type(c) and value == c for c in choices):
        where = f" in {where}" if where else ""
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}{where}, got {value!r}")


def or_none(check: Check) -> Check:
    """The check that a value is None or passes another check."""

    def checked(name: str, value: object) -> object:
        return None if value is None else check(name, value)

    return checked


def share(name: str, value: object) -> float:
    """Check a part of a whole: above 0 and below 1."""
    number = positive(name, value)
    if number >= 1.0:
        raise ValueError(f"{name} must be below 1, got {number!r}")
    return number


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the most similar known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def one_of(*choices: Any) -> Check:
    """The check that a value is one of the choices."""

    def check(name: str, value: object) -> object:
        check_choice(name, value, choices)
        return value

    return check


def _kind(annotation: Any) -> str:
    """The type of an argument as documentation prints it."""
    if typing.get_origin(annotation) is typing.Literal:
        return "{" + ", ".join(f'"{c}"' for c in typing.get_args(annotation)) + "}"
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return " or ".join(map(_kind, typing.get_args(annotation)))
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))
