"""What a description sums over records, and how far one record moves the sums.

Every record has a vector, a function of itself and of the schema, with a block for every column
and every pair of columns (docs/proofs/description.md). A category is an indicator of its cell. A
number x in the declared range, with u = 2 (x - middle) / (hi - lo) in [-1, 1] and the bin b, is

    u / 2,  u^2 - 1/2,  e_b / 2,

and where the schema allows it to be missing, one coordinate is 1 where it is and all others are 0.
The squared distance of two records is at most 2 in a block of categories and 1.29 + 1/2 in one of a
number; the squared norm is at most 1, and 1/2 + 1/4 of a number that is never missing. Where the
number of records is not public, one further coordinate is 1.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dpkern._typing import FloatArray, IntArray
from dpkern.data import Column
from dpkern.data.column import text_of
from dpkern.evaluation.sums import LARGER, Sums

WHAT = "sums of a description"
_DISTANCE = {"category": 2.0, "number": 1.79}  # squared, of two records
_NORM = {"category": 1.0, "number": 0.75}
_BINS, _MOST_EDGES = 20, 40
#: The cell of values that are neither listed nor stated to be missing.
NOT_LISTED, MISSING = "not listed", "missing"


@dataclass(frozen=True)
class Block:
    """The part of the sums that is about a column, or about a pair of columns of categories.

    Attributes
    ----------
    names : tuple of one or two str
    cells : tuple of tuple of str
        Labels of the cells of each column; of a number one per bin.
    column : Column or None
        That of a number.
    edges : ndarray or None
        Of the bins of a number.
    """

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    column: Column | None = None
    edges: FloatArray | None = None

    @property
    def kind(self) -> str:
        return "category" if self.column is None else "number"

    @property
    def title(self) -> str:
        return self.names[0] if len(self.names) == 1 else f"{self.names[1]} by {self.names[0]}"

    @property
    def can_be_missing(self) -> bool:
        return self.column is not None and self.column.missing is not None

    @property
    def dim(self) -> int:
        cells = math.prod(map(len, self.cells))
        return cells if self.column is None else cells + 2 + self.can_be_missing

    @property
    def declared(self) -> list[Any]:
        """What the certificate says of the block: its kind, and the number of its cells."""
        kind = f"{self.kind} or missing" if self.can_be_missing else self.kind
        return [kind, math.prod(map(len, self.cells))]


@dataclass(frozen=True)
class Coded:
    """A column's values: cells of categories (n,), or numbers (n,), NaN where one is missing."""

    block: Block
    values: IntArray | FloatArray

    def fill(self, V: FloatArray, rows: slice) -> None:
        """Write the vectors of rows into zeros."""
        values, place = self.values[rows], np.arange(len(V))
        if self.block.column is None:
            V[place, values.astype(np.intp)] = 1.0
            return
        edges = cast(FloatArray, self.block.edges)
        middle, half = unit_of(edges)
        known = ~np.isnan(values)
        x = np.clip(values[known], edges[0], edges[-1])
        u = np.clip((x - middle) / half, -1.0, 1.0)
        V[known, 0], V[known, 1] = 0.5 * u, u * u - 0.5
        V[place[known], 2 + np.searchsorted(edges[1:-1], x, side="right")] = 0.5
        if self.block.can_be_missing:
            V[~known, -1] = 1.0


def unit_of(edges: FloatArray) -> tuple[float, float]:
    """Return the middle and half of the width of a range."""
    lo, hi = float(edges[0]), float(edges[-1])
    return 0.5 * lo + 0.5 * hi, 0.5 * hi - 0.5 * lo


def coded(column: Column, values: Any, missing: frozenset[str]) -> Coded:
    """Return the values of a column, for the holder of the records refusing what fits do."""
    if column.kind != "category" and column.classes is None:
        if column.kind == "target":
            column.labels(values, missing)  # none may be missing
        elif column.missing is None:
            column.entries(values, missing, 0)
        edges = edges_of(column)
        cells = tuple(f"{a:g} to {b:g}" for a, b in itertools.pairwise(edges))
        block = Block((column.name,), (cells,), column, edges)
        return Coded(block, column.to_numbers(values, missing))
    if column.kind == "target":
        column.labels(values, missing)  # none may be another
        labels = tuple(str(text_of(label)) for label in column.classes or ())
        return Coded(Block((column.name,), (labels,)), column.to_codes(values, missing, labels))
    (codes, _), cells = column.entries(values, missing, 0)[0], (*column.indicators, NOT_LISTED)
    return Coded(Block((column.name,), (cells,)), np.where(codes < 0, len(cells) - 1, codes))


def crossed(first: Coded, second: Coded) -> Coded:
    """Return the cells of two columns of categories together."""
    a, b = first.block, second.block
    block = Block((*a.names, *b.names), (*a.cells, *b.cells))
    return Coded(block, first.values * len(b.cells[0]) + second.values)


def edges_of(column: Column) -> FloatArray:
    """Return the edges of the bins of a declared range, round numbers inside it.

    They are about 20 of equal width, or 1, 2, 5, 10, ... above the lower end of a log1p scale.
    """
    lo, hi = cast(float, column.lo), cast(float, column.hi)
    width = hi - lo
    if column.scale == "log1p" and width > 10.0:
        above = np.outer(10.0 ** np.arange(math.ceil(math.log10(width)) + 1), (1.0, 2.0, 5.0))
        inner: Any = lo + above.ravel()
        inner = inner[:: -(-len(inner) // _MOST_EDGES)]
    else:
        power = 10.0 ** math.floor(math.log10(width / _BINS)) if width > 1e-290 else 0.0
        step = next((m * power for m in (1.0, 2.0, 5.0) if m * power * _BINS >= width), 10 * power)
        if step and max(abs(lo), abs(hi)) / step < 2.0**40:
            first = math.floor(lo / step)
            inner = np.arange(first, first + 2 * _BINS + 3) * step
        else:
            inner = np.linspace(lo, hi, _BINS + 1)
    return np.unique([lo, *inner[(inner > lo) & (inner < hi)], hi])


def sums_of(parts: Sequence[Coded], *, with_size: bool) -> Sums:
    """Return the sums of all blocks; `with_size` adds the number of records."""
    ends = np.cumsum([part.block.dim for part in parts])
    dim = int(ends[-1]) + with_size

    def vectors(rows: slice) -> FloatArray:
        V = np.zeros((len(parts[0].values[rows]), dim))
        for part, end in zip(parts, ends.tolist(), strict=True):
            part.fill(V[:, end - part.block.dim : end], rows)
        if with_size:
            V[:, -1] = 1.0
        return V

    norm = math.fsum(1.0 if p.block.can_be_missing else _NORM[p.block.kind] for p in parts)
    distance = math.fsum(_DISTANCE[part.block.kind] for part in parts)
    clip, distance = math.sqrt(norm + with_size) * LARGER, math.nextafter(distance**0.5, math.inf)
    return Sums(vectors, dim, clip, distance, WHAT)
