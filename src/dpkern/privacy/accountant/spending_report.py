"""What an accountant has spent and has left, after every charge: as text, HTML and a picture."""

import html
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from dpkern.privacy.accountant.charges import Entry

#: A charge, its own epsilon, and what is spent and left after it.
Row: TypeAlias = tuple[Entry, float, float, float]

_COLUMNS = ("when (UTC)", "what", "part", "epsilon", "spent", "left")


def as_text(state: str, rows: Sequence[Row], left: float) -> str:
    """Return the table of all charges; `left` is what an empty budget has left."""
    lines = [f"Accountant {state}"]
    if rows:
        table = [_COLUMNS, *map(_cells, rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for cells in table:
            texts = [
                cell.ljust(width) if i < 3 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
            ]
            lines.append("  " + "  ".join(texts))
    return "\n".join([*lines, _total(rows, left)])


def as_html(state: str, rows: Sequence[Row], left: float) -> str:
    """Return the same for notebooks."""

    def row(cells: Sequence[str], tag: str) -> str:
        found = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr>{found}</tr>"

    body = "".join(row(_cells(one), "td") for one in rows)
    return (
        f"<table><caption>Accountant {html.escape(state)}</caption>"
        f"<thead>{row(_COLUMNS, 'th')}</thead><tbody>{body}</tbody></table>"
        f"<p>{'<br>'.join(_total(rows, left).splitlines())}</p>"
    )


def plot(
    state: str,
    rows: Sequence[Row],
    left: float,
    path: str | os.PathLike[str] | None,
    *,
    budget: float,
) -> Any:
    """Draw it as a PNG."""
    from dpkern.plotting import plot_spending

    labels = [f"{entry.number}  {_what(entry)}" for entry, _, _, _ in rows]
    figures = [(0.0, left), *((spent, rest) for _, _, spent, rest in rows)]
    return plot_spending(labels, figures, path, budget=budget, title=state)


def _total(rows: Sequence[Row], left: float) -> str:
    spent, left = rows[-1][2:] if rows else (0.0, left)
    return (
        f"spent: epsilon {rounded_up(spent)}; left for one more Gaussian run: epsilon "
        f"{rounded_down(left)}\n(what is spent is stated for charges that were fixed beforehand; "
        "the budget holds for any)"
    )


def _cells(row: Row) -> tuple[str, ...]:
    entry, own, spent, left = row
    when = entry.time.strftime("%Y-%m-%d %H:%M:%S")
    figures = rounded_up(own), rounded_up(spent), rounded_down(left)
    return when, _what(entry), entry.part or "all", *figures


def _what(entry: Entry) -> str:
    remarks = ["bound"] * (not entry.ended) + ["seeded"] * entry.seeded
    return entry.what + (f" ({', '.join(remarks)})" if remarks else "")


def rounded_up(value: float) -> str:
    """Return four digits, rounded up so that the printed figure is valid too."""
    return _digits(value, math.ceil)


def rounded_down(value: float) -> str:
    """Return four digits, rounded down, but for what is a decimal up to rounding errors."""
    return _digits(value, lambda x: round(x) if abs(x - round(x)) < 1e-5 else math.floor(x))


def _digits(value: float, rounded: Callable[[float], int]) -> str:
    if value == 0.0 or not math.isfinite(value):
        return "infinite" if value else "0"
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    return f"{rounded(value * scale) / scale:.4g}"
