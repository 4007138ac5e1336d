"""Compact HTML tables for notebooks, and documents of them."""

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


def document(title: str, parts: Iterable[str]) -> str:
    """Return a document that needs nothing else: its title is escaped, its parts are HTML."""
    style = (
        "body{font:16px/1.5 sans-serif;max-width:52em;margin:2em auto;padding:0 1em;color:#222}"
        "h1{font-size:1.5em}h2{font-size:1.1em;margin:1.5em 0 .2em;border-top:1px solid #bbb}"
        "table{width:100%}th{font-weight:normal;color:#555;width:8em}"
        "td{overflow-wrap:anywhere}"
    )
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{style}</style>'
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n'
        f"<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )
