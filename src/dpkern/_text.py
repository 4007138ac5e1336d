"""Aligned tables, folded lines and rounded figures of printed results."""

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


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
