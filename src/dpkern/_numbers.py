"""Validation of scalar arguments, and words of messages."""

import difflib
import math
import numbers
import re
from collections.abc import Collection, Iterable

# Largest number whose square and products with others are doubles.
LARGEST = 1e50


def real(name: str, value: object) -> float:
    """Return `value` as a float; raise TypeError if it is no real number, or a bool.

    Callers reject NaN by their ranges.
    """
    if type(value) is float:  # isinstance with an abstract class is slower
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must fit a double, got a number too large for one") from None


def positive(name: str, value: object, *, or_infinite: bool = False) -> float:
    """Return `value` as a float; raise ValueError unless it is above zero and finite."""
    number = real(name, value)
    if not 0.0 < number <= math.inf or (number == math.inf and not or_infinite):
        finite = "" if or_infinite else " and finite"
        raise ValueError(f"{name} must be positive{finite}, got {number!r}")
    return number


def not_negative(name: str, value: object, *, or_infinite: bool = False) -> float:
    """Return `value` as a float; raise ValueError unless it is at least zero and finite."""
    number = real(name, value)
    if not 0.0 <= number <= math.inf or (number == math.inf and not or_infinite):
        finite = "" if or_infinite else "finite and "
        raise ValueError(f"{name} must be {finite}at least 0, got {number!r}")
    return number


def probability(name: str, value: object) -> float:
    """Return `value` as a float; raise ValueError unless it lies strictly between 0 and 1."""
    number = real(name, value)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {number!r}")
    return number


def inner(name: str, value: object) -> float:
    """Return a probability that is not so near to 0 or 1 that a difference is no number."""
    number = probability(name, value)
    if not 1e-9 <= number <= 1.0 - 1e-9:
        raise ValueError(f"{name} must be from 1e-9 to 1 - 1e-9, got {number!r}")
    return number


def count(name: str, value: object, least: int = 1) -> int:
    """Return `value` as an int; raise unless it is an integer of at least `least`."""
    if type(value) is int and value >= least:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {int(value)}")
    return int(value)


def parse_number(text: str | bytes) -> float:
    """Return the number that a text spells; raise ValueError for any other text.

    Python's float also takes underscores between digits, and the digits of other scripts.
    """
    if not text.isascii() or (b"_" in text if isinstance(text, bytes) else "_" in text):
        raise ValueError("a number must be digits of ASCII without underscores")
    return float(text)


def parse_integer(text: str) -> int:
    """Return the whole number that a text spells by ASCII digits, or raise ValueError."""
    if not re.fullmatch(r"[+-]?[0-9]+", text.strip()):
        raise ValueError("a whole number must be digits of ASCII without underscores")
    return int(text)


def is_number(text: str | bytes) -> bool:
    """Return whether a text spells a number."""
    try:
        parse_number(text)
    except ValueError:
        return False
    return True


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question about the most similar known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def refuse_unknown(where: str, given: Iterable[object], known: Collection[str]) -> None:
    """Raise ValueError for a key that is not known, with the most similar one that is."""
    for key in given:
        if key not in known:
            close = did_you_mean(str(key), known) or f"; keys are {', '.join(known)}"
            raise ValueError(f"{where} has the unknown key {key!r}{close}")
