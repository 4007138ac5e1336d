"""Summary statistics of a table, released by one noisy vector of sums."""

from __future__ import annotations  # help() then shows type aliases by name

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from dpkern._html import table
from dpkern._numbers import aligned, inner, rounded_up
from dpkern._typing import FloatArray
from dpkern.data import Schema, SiloData
from dpkern.data.blocks import NO_TABLE, BlockRows
from dpkern.data.frames import listed, table_columns
from dpkern.data.persons import kept_rows
from dpkern.evaluation.columns import NOT_LISTED, Coded, coded, crossed, sums_of
from dpkern.evaluation.estimates import Estimator, Statistic, Total
from dpkern.privacy import Budget, Certificate, NoiseStream
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.charged import ChargedReleases, size_notes, stated_size
from dpkern.privacy.mechanisms.gaussian_sum import Vectors

_KINDS = ("number", "category", "target")
_HEAD = ("column", "statistic", "records", "value", "interval", "noise std")


class Histogram(NamedTuple):
    """Noisy counts (B,) of a column's values between edges (B + 1,), and their noise's std."""

    edges: FloatArray
    counts: FloatArray
    noise_std: float


@dataclass(frozen=True, eq=False)
class Description:
    """Released summary statistics of a table.

    ``description["age", "mean"]`` and ``description["sex", "share", "Female"]`` are rows of it.

    Attributes
    ----------
    rows : tuple of Statistic
        Of numbers "mean", "standard deviation" and "25 %", "50 %" and "75 % quantile"; of
        categories "share" of every level, of values that are "not listed" (or missing, where the
        schema states nothing for that) too; of missing numbers the share of "missing". Of a pair of
        columns, called "B by A", the share of B's level among the records of A's, with the level
        "a: b".
    histograms : dict of str to Histogram
        Of numbers.
    size : float
        Number of records, noisy where it is not public.
    confidence : float
        Of the intervals, which hold the noise and the sampling of the records.
    noise_std : float
        Of the count of a category.
    privacy : Certificate
    """

    rows: tuple[Statistic, ...]
    histograms: dict[str, Histogram]
    size: float
    confidence: float
    noise_std: float
    privacy: Certificate = field(repr=False)

    def __getitem__(self, names: tuple[str, ...]) -> Statistic:
        row = next((row for row in self.rows if names in (row[:3], row[:2])), None)
        if row is None:
            raise KeyError(names)
        return row

    def to_frame(self) -> Any:
        """Return the rows as a data frame of pandas, which must be installed."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        return pandas.DataFrame(self.rows, columns=list(Statistic._fields))

    @property
    def shown(self) -> tuple[Statistic, ...]:
        """The rows that are printed: values that are not listed only where there are some."""
        return tuple(
            row
            for row in self.rows
            if not (math.isnan(row.value) and NOT_LISTED in row.level.split(": "))
        )

    def _cells(self) -> list[tuple[str, ...]]:
        """Return the printed rows; counts that noise makes negative are printed as 0."""
        cells, last = list[tuple[str, ...]](), ""
        for row in self.shown:
            name, what, count = "" if row.column == last else row.column, row.statistic, ""
            is_share = row.statistic == "share"
            if is_share and row.records is not None:
                what, count = row.level, f"{max(row.records, 0.0):.0f}"
            figures = _figures(row, percent=is_share)
            cells.append((name, what, count, *figures))
            last = row.column
        return cells

    def _note(self) -> str:
        at = self.privacy.stated_delta or 1e-6
        noisy = "" if self.privacy.neighbours == "replace_one" else "about "
        return (
            f"{noisy}{self.size:.0f} records; {100.0 * self.confidence:g} % intervals of noise and "
            f"sampling; counts of categories have noise of std {self.noise_std:.3g}; spent epsilon "
            f"{rounded_up(self.privacy.epsilon(at))} at delta {at:g}"
        )

    def __str__(self) -> str:
        return "\n".join([*aligned([_HEAD, *self._cells()], right=(2, 3, 5)), self._note()])

    def _repr_html_(self) -> str:
        shown = table("Description", self._cells(), head=_HEAD, note=self._note())
        return shown + self.privacy._repr_html_()


def _figures(row: Statistic, *, percent: bool) -> tuple[str, str, str]:
    """Return value, interval and noise, to two digits of half of the interval's width."""
    times, unit = (100.0, " %") if percent else (1.0, "")
    width = 0.5 * times * (row.high - row.low)
    digits = max(1 - math.floor(math.log10(width)), 0) if width > 0.0 else 2
    value, low, high = (f"{times * x:.{digits}f}" for x in (row.value, row.low, row.high))
    shown = "-" if math.isnan(row.value) else f"{value}{unit}"
    noise = "-" if math.isinf(row.noise_std) else f"{times * row.noise_std:.2g}{unit}"
    return shown, f"{low} to {high}{unit}", noise


def describe(
    data: Any,
    schema: Schema,
    *,
    budget: Budget,
    columns: Sequence[str] | None = None,
    cross_tables: Sequence[tuple[str, str]] = (),
    neighbours: str = "replace_one",
    public_size: int | None = None,
    max_records: int | None = None,
    confidence: float = 0.95,
    accountant: Accountant | None = None,
    rng: int | NoiseStream | None = None,
) -> Description:
    """Release summary statistics of the records of a table.

    Parameters
    ----------
    data : data frame (pandas, polars), mapping of names to columns, list of mappings, or SiloData
        Raw records, with the columns that the schema describes; or what `dpkern.read_parquet`
        returns of files with this schema, which are read once more.
    schema : Schema
        Public ranges and categories. Values out of range count as the ends of it.
    budget : Budget
        Of all that is released, for a person where the schema has a column of persons.
    columns : sequence of str, optional
        The columns that are described; by default all numbers and categories, and the target where
        the data have it. Fewer columns have less noise.
    cross_tables : sequence of pairs (A, B) of str, optional
        Columns of categories or classes, for the shares of B's levels among the records of A's.
    neighbours : {"replace_one", "add_remove"}, default="replace_one"
        As for `dpkern.solve`.
    public_size : int, optional
        With "add_remove", a public number that stands for that of the records, which is released
        with noise.
    max_records : int, optional
        With a column of persons: so many records of each at most are used, the first ones. Records
        in blocks have their own.
    confidence : float, default=0.95
        Of the intervals, which hold the noise and the sampling of the records.
    accountant : Accountant, optional
        What is charged before the release.
    rng : int, NoiseStream or None
        As for `dpkern.solve`.

    Returns
    -------
    Description

    Raises
    ------
    TypeError, ValueError
        When an argument is not as described, or a column holds what fits refuse, for the holder of
        the records; nothing is released.

    Warns
    -----
    OutsideWarning
        Of values outside the schema, for the holder of the records.

    Notes
    -----
    One vector of sums is released to whoever sees the statistics, whose sensitivity is the root of
    2 for every column of categories and every pair and 1.79 for every number together; with
    "add_remove" of 1, and 0.75 for a number that is never missing, and 1 for the number of records
    (docs/proofs/description.md). The records of all silos are taken together: central trust alone.

    Examples
    --------
    >>> description = dpkern.describe(frame, schema, budget=dpkern.Budget(epsilon=0.5, delta=1e-6))
    >>> description["age", "mean"].value
    """
    rows = _rows_in_blocks(data, max_records)
    if rows is not None and data.persons is not None:
        max_records = data.persons.max_records
    run = ChargedReleases(budget, accountant, neighbours=neighbours, max_records=max_records)
    if not isinstance(schema, Schema):
        raise TypeError(f"schema must be a dpkern.Schema, got {type(schema).__name__}")
    confidence, stated = inner("confidence", confidence), stated_size(public_size, neighbours)
    add_remove = stated is not None
    described = schema, columns, cross_tables, max_records
    with np.errstate(all="ignore"):
        if rows is None:
            schema.check_values(data)
            parts = _coded(data, *described)
            n = len(parts[0].values)
        else:
            n = data.n
            with closing(_coded_blocks(rows, n, *described)) as found:
                parts = next(found)
    sums, mu = sums_of(parts, with_size=add_remove), run.record_mu
    with run.charged("describe", sums.dim, rng) as channel:
        read: Iterator[tuple[Vectors, int]] | None = None
        if rows is not None:
            read = (
                (sums_of(found, with_size=add_remove).vectors, len(found[0].values))
                for found in _coded_blocks(rows, n, *described)
            )
        released, std = sums.release(channel, (0, n), (stated or n,), mu, blocks=read)
    of_parts = [part.block for part in parts]
    privacy = run.certificate(
        {
            "described": {b.names[0]: b.declared for b in of_parts if len(b.names) == 1},
            "cross_tables": {b.title: b.dim for b in of_parts if len(b.names) == 2},
            "size": stated or n,
            "schema": schema.digest,
        },
        sources={"described": f"schema {schema.digest[:19]}"},
        notes=size_notes(stated),
    )
    total = Total(float(released[-1]), std**2) if add_remove else Total(float(n), 0.0)
    estimator = Estimator(std**2, NormalDist().inv_cdf(0.5 + 0.5 * confidence), total)
    blocks = np.split(released[: sums.dim - add_remove], np.cumsum([b.dim for b in of_parts])[:-1])
    statistics, histograms = list[Statistic](), dict[str, Histogram]()
    for block, own in zip(of_parts, blocks, strict=True):
        with np.errstate(all="ignore"):
            statistics += estimator.of_block(block, own)
        if block.edges is not None:
            counts = estimator.bins(block, own)
            histograms[block.names[0]] = Histogram(block.edges, counts, 2.0 * std)
    return Description(tuple(statistics), histograms, total.n, confidence, std, privacy)


def _rows_in_blocks(data: Any, max_records: int | None) -> BlockRows | None:
    """Return where the tables of records in blocks are, or None for a table."""
    if not isinstance(data, SiloData):
        return None
    if not isinstance(data.blocks, BlockRows):
        raise TypeError(NO_TABLE)
    if max_records is not None:
        raise ValueError("max_records must be None for records in blocks, which have their own")
    return data.blocks


def _coded_blocks(
    rows: BlockRows,
    n: int,
    schema: Schema,
    columns: Sequence[str] | None,
    cross_tables: Sequence[tuple[str, str]],
    max_records: int | None,
) -> Generator[list[Coded]]:
    """Yield what `_coded` returns of every block; they must have n records."""
    for columns_of in rows.tables(schema):
        if size := len(next(iter(columns_of.values()))):
            n -= size
            yield _coded(columns_of, schema, columns, cross_tables, max_records)
    if n:
        raise ValueError("blocks must hold the same records in every pass, got others")


def _coded(
    data: Any,
    schema: Schema,
    columns: Sequence[str] | None,
    cross_tables: Sequence[tuple[str, str]],
    max_records: int | None,
) -> list[Coded]:
    """Return the values of all columns and pairs of the records that are used."""
    table, missing = table_columns(data) or {}, frozenset(schema.missing)
    shown = [c for c in schema.columns if c.kind in _KINDS and c.intervals is None]
    known = {c.name: c for c in shown if c.name in table}  # times have survival_curve
    pairs = _pairs(cross_tables)
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, got {columns!r}")
    wanted = list(known) if columns is None else list(columns)
    for argument, names in (("columns", wanted), ("cross_tables", [x for p in pairs for x in p])):
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(
                f"{argument} must be numbers, categories or the target of the schema that the data "
                f"have, {', '.join(known)}, got {listed(unknown)}"
            )
    if not (wanted or pairs) or len(set(wanted)) < len(wanted):
        raise ValueError(f"columns must be distinct names, at least one, got {listed(wanted)}")
    used = dict.fromkeys([*wanted, *(name for pair in pairs for name in pair)])
    values = {name: coded(known[name], table[name], missing) for name in used}
    for pair in pairs:
        for name in pair:
            if values[name].block.column is not None:
                raise ValueError(f"cross_tables must hold columns of categories, got {name!r}")
    parts = [values[name] for name in wanted] + [crossed(*(values[x] for x in p)) for p in pairs]
    n = len(parts[0].values)
    if not n:
        raise ValueError("data must hold at least one record, got none")
    person = None if schema.person is None else schema.persons(data)
    if (kept := kept_rows(person, max_records, n)) is not None:
        parts = [Coded(part.block, part.values[kept[0]]) for part in parts]
    return parts


def _pairs(cross_tables: Any) -> list[tuple[str, str]]:
    pairs = [tuple(pair) if isinstance(pair, list | tuple) else () for pair in cross_tables]
    if not all(len(pair) == 2 and pair[0] != pair[1] for pair in pairs):
        raise ValueError("cross_tables must be pairs of two names of columns")
    if len(set(pairs)) < len(pairs):
        raise ValueError("cross_tables must be distinct pairs of columns")
    return pairs
