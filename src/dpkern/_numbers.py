"""Validation of scalar arguments, words of messages, and figures and tables of printed results."""

import difflib
import math
import numbers
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

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


def aligned(rows: Iterable[Sequence[str]], *, right: Collection[int] = ()) -> list[str]:
    """Return the lines of a table; columns are aligned to the left, those in `right` to the right.

    All rows have the same number of cells.
    """
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.rjust if i in right else str.ljust for i in range(len(widths))]
    return [
        "  ".join(side(cell, n) for side, cell, n in zip(sides, row, widths, strict=True)).rstrip()
        for row in cells
    ]


def fold(text: str, width: int = 88) -> str:
    """Fold long lines between words; they continue below the text that follows the line's name."""
    rows: list[str] = []
    for line in text.split("\n"):
        name = re.match(r"\s*(?:\S+(?: \S+)*\s{2,})?", line)
        indent = " " * min(name.end() if name else 0, width // 2)
        rows += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return "\n".join(rows)


def figure(value: object, digits: int = 6) -> str:
    """Return a float to so many digits, and the text of anything else."""
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)


def rounded_up(value: float | Decimal, digits: int = 4) -> str:
    """Return a few digits, rounded up so that the printed figure is valid too.

    A float stands for its shortest decimal, a Decimal for itself.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float) -> str:
    """Return four digits, rounded down, apart from the rounding errors of a decimal."""
    return _rounded(float(f"{value:.9g}"), 4, ROUND_FLOOR)


def _rounded(value: float | Decimal, digits: int, rounding: str) -> str:
    if not math.isfinite(value):
        return "infinite"
    decimal = Context(prec=digits, rounding=rounding).create_decimal(Decimal(str(value)))
    return f"{float(decimal):.{digits}g}"
