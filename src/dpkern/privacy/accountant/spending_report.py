"""What an accountant has spent and has left, after every charge: as text, HTML and a picture."""

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

from dpkern._html import table
from dpkern._numbers import aligned, rounded_down, rounded_up
from dpkern.privacy.accountant.charges import Entry

#: A charge, its own epsilon, and what is spent and left after it.
Row: TypeAlias = tuple[Entry, float, float, float]

_COLUMNS = ("when (UTC)", "what", "part", "epsilon", "spent", "left")


def as_text(state: str, rows: Sequence[Row], left: float) -> str:
    """Return the table of all charges; `left` is what an empty budget has left."""
    lines = aligned([_COLUMNS, *map(_cells, rows)], right=(3, 4, 5)) if rows else []
    return "\n".join([f"Accountant {state}", *(f"  {line}" for line in lines), _total(rows, left)])


def as_html(state: str, rows: Sequence[Row], left: float) -> str:
    """Return the table of all charges for notebooks."""
    note = _total(rows, left)
    return table(f"Accountant {state}", map(_cells, rows), head=_COLUMNS, note=note)


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
