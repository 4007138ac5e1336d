"""Validation of the arguments of bounds, by their names."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from dpkern._numbers import count, not_negative, positive, probability

P = ParamSpec("P")
R = TypeVar("R")

_COUNTS = ("dim", "iterations", "local_steps", "m", "n", "participation", "size", "steps")
_NOT_NEGATIVE = ("error", "gap", "heterogeneity", "square_distance", "std")


def _fraction(name: str, value: object) -> float:
    """Return `value` as a float; raise ValueError unless it is above 0 and at most 1."""
    number = positive(name, value)
    if number > 1.0:
        raise ValueError(f"{name} must be above 0 and at most 1, got {number!r}")
    return number


def _contraction(name: str, value: object) -> float:
    """Return `value` as a float; raise ValueError unless it is at least 0 and below 1."""
    number = not_negative(name, value)
    if number >= 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1, got {number!r}")
    return number


_RULES: dict[str, Callable[[str, Any], float]] = {
    **dict.fromkeys(_COUNTS, count),
    **dict.fromkeys(_NOT_NEGATIVE, not_negative),
    **dict.fromkeys(("beta", "delta", "hessian_error"), probability),
    **dict.fromkeys(("activation", "fraction"), _fraction),
    "contraction": _contraction,
}
# The first is at most the second.
_ORDERED = (("strength", "smoothness"), ("size", "n"), ("participation", "m"))
_CHOICES = {"mode": ("central", "federated", "token"), "trust": ("silo", "shuffle")}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse arguments outside of their ranges, by their names; the others are positive."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        for name, value in given.items():
            if name not in _CHOICES:
                _RULES.get(name, positive)(name, value)
            elif value not in _CHOICES[name]:
                raise ValueError(f"{name} must be one of {_CHOICES[name]}, got {value!r}")
        for less, more in _ORDERED:
            if {less, more} <= given.keys() and given[less] > given[more]:
                raise ValueError(
                    f"{less} must be at most {more} = {given[more]!r}, got {given[less]!r}"
                )
        return function(*args, **kwargs)

    return call
