"""Cells of bench.utility, and the Markdown that shows them."""

import textwrap
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]
Cells = dict[tuple[str, str, float], Row]


def latest(rows: Iterable[Row]) -> Cells:
    """The cell of most draws of every set, solver and budget."""
    found: Cells = {}
    for row in sorted(rows, key=lambda row: row["draws"]):
        found[row["set"], row["solver"], row["epsilon"]] = row
    return found


def wrapped(text: str, bullet: str = "") -> str:
    """A paragraph, or an item of a list, in lines of 88 columns."""
    words = " ".join(text.split())
    indent = {"initial_indent": bullet, "subsequent_indent": " " * len(bullet)}
    return textwrap.fill(words, 88, break_on_hyphens=False, **indent) + "\n"


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def percent(x: float) -> str:
    return f"{100.0 * x:.1f}"
