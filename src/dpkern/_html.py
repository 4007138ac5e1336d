"""Compact HTML tables for notebooks."""

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:left;vertical-align:top;padding:2px 10px 2px 0"


def table(
    title: str, rows: Iterable[Sequence[str]], *, head: Sequence[str] = (), note: str = ""
) -> str:
    """Return a table with a title, an optional row of column names and a note below.

    Without column names the first cell of a row is its name. All text is escaped.
    """
    cells = [[f'<th style="{_CELL}">{escape(name)}</th>' for name in head]] if head else []
    for row in rows:
        tag = "td" if head else "th"
        first = f'<{tag} style="{_CELL}">{escape(row[0])}</{tag}>'
        cells.append([first, *(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row[1:])])
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    below = f'<div style="font-size:smaller">{escape(note)}</div>' if note else ""
    return f"<div><b>{escape(title)}</b><table>{body}</table>{below}</div>"


def folded(summary: str, html: str) -> str:
    """Return HTML that shows when the reader unfolds its summary."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"
