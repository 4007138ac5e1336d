"""The public description of a raw table: `Schema`."""

from __future__ import annotations  # help() then shows type aliases by name

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from dpkern._json import digest
from dpkern._numbers import count, positive, refuse_unknown
from dpkern._warn import warn
from dpkern.data.column import (
    KEYS,
    Column,
    Entry,
    assembled,
    blank_keys,
    count_averaged,
    count_misspelt,
    count_outside,
    outside_text,
    refuse_outside,
)
from dpkern.data.derived import Derived
from dpkern.data.frames import listed, table_columns
from dpkern.data.partition import How, Seed
from dpkern.data.silo_data import SiloData
from dpkern.data.validation import Matrix, RowOptions, Task
from dpkern.models.hazards import cells_of

VERSION = 1
VERSION_KEY = "dpkern_schema"
MISSING = ("", "?")  #: texts of a missing value in every column


class OutsideWarning(UserWarning):
    """Raw records have values that their schema does not provide for, or only as an average."""


def _warn_of_outside(text: str) -> None:
    warn(f"X has {text}", OutsideWarning)


_KEYS = ("header", "sep", "comment", "rename", "missing", "intercept", "row_bound")
# Up to this share of stored entries, CSR takes less than half the memory, and kernels are faster.
_SPARSE_SHARE = 0.25


@dataclass(frozen=True, repr=False)
class Schema:
    """The public description of a raw table: columns, ranges, categories, classes and bounds.

    All of it is public, written down from a form, a handbook or the law and not from the records:
    certificates name it as such, by its digest. It encodes every record by itself; nothing is
    learnt from data. See docs/schema.md for the file.

    Parameters
    ----------
    columns : sequence of Column
        All columns, in the order of the file where that has no header; one target at most.
    missing : sequence of str, default=("", "?")
        Texts that mean a missing value in every column, beside None and NaN.
    header : bool, default=True
        Whether the first row of a file holds names; otherwise `columns` are those of the file.
    sep : str, optional
        The character between the fields of a file. By default the first two lines decide, which of
        a file without a header are records: state it there.
    comment : str, optional
        Lines of a file that begin with it are skipped.
    rename : mapping of str to str, optional
        Columns of a file with a header, by name or by place from 0, and their names here.
    intercept : bool, default=True
        Whether a constant 1 follows the features.
    row_bound : float, optional
        Rows of larger norm, constant included, are scaled down to it. By default it is the proven
        bound of an encoded row, and it is at most that.
    derived : sequence of Derived, optional
        Features of the encoded columns, which follow those of all columns.

    Attributes
    ----------
    feature_names : tuple of str
        Names of the encoded features: NAME and NAME_missing of numbers, NAME_CATEGORY of
        categories, and those of derived features.
    n_features : int
    target, event, silo, person : Column or None
    intervals : tuple of float, or None
        Public edges of a target that is a time to an event.
    task : {"classification", "multiclass", "regression"} or None
    classes : ndarray or None
    proven_bound : float
        sqrt(number of features' columns + intercept), and more where a missing number is flagged
        and with derived features.
    sparse : bool
        Whether at most a quarter of an encoded row is stored in CSR, which `silo_data` then takes.
    digest : str
        SHA-256 of the content.

    Examples
    --------
    >>> age = Column("age", "number", lo=17, hi=90)
    >>> sex = Column("sex", "category", categories=["Female", "Male"])
    >>> income = Column("income", "target", classes=["<=50K", ">50K"])
    >>> schema = Schema([age, sex, income])
    >>> schema.feature_names
    ('age', 'sex_Female', 'sex_Male')
    >>> schema.encode({"age": [17, "90", 120], "sex": ["Male", "?", " Female"]})
    array([[-1. ,  0. ,  1. ],
           [ 1. ,  0.5,  0.5],
           [ 1. ,  1. ,  0. ]])
    """

    columns: Sequence[Column]
    missing: Sequence[str] = MISSING
    header: bool = True
    sep: str | None = None
    comment: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)
    intercept: bool = True
    row_bound: float | None = None
    derived: Sequence[Derived] = ()

    def __post_init__(self) -> None:
        columns = tuple(self.columns)
        if not columns or not all(isinstance(column, Column) for column in columns):
            raise TypeError("columns must be a list of dpkern.data.Column, at least one")
        _refuse_twice("columns must have distinct names", [column.name for column in columns])
        for kind in ("target", "event", "silo", "person", "weight", "exposure"):
            names = [column.name for column in columns if column.kind == kind]
            if len(names) > 1:
                raise ValueError(f"columns must hold one {kind} at most, got {listed(names)}")
        if (self.event is None) != (self.intervals is None):
            raise ValueError(
                "columns must hold a target with intervals, the times, and an event beside it, or "
                f"neither, got {'no' if self.event is None else 'only an'} event"
            )
        if isinstance(self.missing, str) or not all(isinstance(t, str) for t in self.missing):
            raise TypeError(f"missing must be a list of texts, got {self.missing!r}")
        for key in ("header", "intercept"):
            if not isinstance(getattr(self, key), bool):
                raise TypeError(f"{key} must be true or false, got {getattr(self, key)!r}")
        for key in ("sep", "comment"):
            text = getattr(self, key)
            if text is not None and (not isinstance(text, str) or not text):
                raise ValueError(f"{key} must be a text that is not empty, or None, got {text!r}")
        self._check_rename()
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "missing", tuple(text.strip() for text in self.missing))
        object.__setattr__(self, "derived", tuple(self.derived))
        for derived in self.derived:
            if not isinstance(derived, Derived):
                raise TypeError(f"derived must be dpkern.data.Derived, got {derived!r}")
            derived.check(self._by_name)
        if not self.feature_names:
            raise ValueError(
                "columns must hold a feature, of kind 'number' or 'category', got none"
            )
        _refuse_twice("encoded features must have distinct names", list(self.feature_names))
        if self.row_bound is not None:
            bound = positive("row_bound", self.row_bound)
            if bound > self.proven_bound:
                raise ValueError(
                    f"row_bound must be at most {self.proven_bound:.6g}, which no encoded row "
                    f"exceeds, got {bound!r}"
                )
            object.__setattr__(self, "row_bound", bound)

    def _check_rename(self) -> None:
        """Check that file columns are renamed to columns of the schema, in files with a header."""
        known = {column.name for column in self.columns}
        if not isinstance(self.rename, Mapping) or not known.issuperset(self.rename.values()):
            raise ValueError(
                f"rename must map names or places in files to columns, got {self.rename!r}"
            )
        if self.rename and not self.header:
            raise ValueError("rename must be absent without a header, where columns name the file")

    def __repr__(self) -> str:
        parts = [f"{len(self.columns)} columns", f"{self.n_features} features"]
        parts += [
            f"{c.kind} {c.name!r}"
            for c in map(self._only, ("target", "event", "silo", "person"))
            if c
        ]
        return f"Schema({', '.join(parts)})"

    @cached_property
    def features(self) -> tuple[Column, ...]:
        """The columns that are encoded."""
        return tuple(column for column in self.columns if column.feature_names)

    @cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features."""
        own = [name for column in self.columns for name in column.feature_names]
        return (*own, *(name for d in self.derived for name in d.feature_names(self._by_name)))

    @property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.features}

    @property
    def n_features(self) -> int:
        """Number of encoded features."""
        return len(self.feature_names)

    @property
    def target(self) -> Column | None:
        """The target's column."""
        return self._only("target")

    @property
    def event(self) -> Column | None:
        """The column that says whether the target's time is that of the event."""
        return self._only("event")

    @property
    def intervals(self) -> tuple[float, ...] | None:
        """Public edges of intervals, where the target is the time to an event."""
        return None if self.target is None else cast(Any, self.target.intervals)

    @property
    def silo(self) -> Column | None:
        """The column that says whose record it is."""
        return self._only("silo")

    @property
    def person(self) -> Column | None:
        """The column with the ids of people."""
        return self._only("person")

    @property
    def weight(self) -> Column | None:
        """The column with the weights of records."""
        return self._only("weight")

    @property
    def exposure(self) -> Column | None:
        """The column with the exposures of records."""
        return self._only("exposure")

    def _only(self, kind: str) -> Column | None:
        return next((column for column in self.columns if column.kind == kind), None)

    @property
    def task(self) -> Task | None:
        """The task that the target says."""
        if self.target is None:
            return None
        if self.intervals is not None:
            return "multiclass"
        if self.target.classes is None:
            return "regression"
        return "classification" if len(self.target.classes) == 2 else "multiclass"

    @property
    def classes(self) -> NDArray[Any] | None:
        """The labels, the negative one first; of times to an event the numbers of their cells."""
        if self.intervals is not None:
            return np.arange(2 * len(self.intervals) - 1)
        known = None if self.target is None else self.target.classes
        return None if known is None else np.asarray(known)

    @property
    def proven_bound(self) -> float:
        """Bound of the norm of every encoded row, with the constant if there is one."""
        return self._proven(self.intercept)

    def _proven(self, intercept: bool) -> float:
        squares = sum(c.square for c in self.features) + sum(d.square for d in self.derived)
        return math.sqrt(squares + intercept)

    @property
    def sparse(self) -> bool:
        """Whether CSR is the smaller form of encoded rows."""
        derived = sum(len(d.feature_names(self._by_name)) for d in self.derived)
        stored = sum(c.n_stored for c in self.features) + derived
        return stored <= _SPARSE_SHARE * self.n_features

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content."""
        return digest(self.to_dict())

    def options(self, *, intercept: bool | None = None) -> RowOptions:
        """Return the arguments of `SiloData` for encoded rows.

        A model of several classes has constants of its own, so that `intercept` is False there by
        default; elsewhere the schema says it.
        """
        if self.target is None:
            raise ValueError('columns must hold a target, of kind "target", to fit a model')
        if intercept is None:
            intercept = self.intercept and self.task != "multiclass"
        bounds = None
        if self.task == "regression":
            bounds = cast(float, self.target.lo), cast(float, self.target.hi)
        return {
            "intercept": intercept,
            "row_bound": self._proven(intercept) if self.row_bound is None else self.row_bound,
            "target_bound": bounds,
            "task": self.task,
            "classes": self.classes,
            "feature_names": self.feature_names,
            "schema": self,
        }

    def encode(self, X: Any, *, sparse_output: bool = False) -> Matrix:
        """Return the encoded features of raw records.

        Parameters
        ----------
        X : data frame (pandas, polars), mapping of names to columns, or list of mappings
            The columns of the schema in any order; those that are no features may be absent.
        sparse_output : bool, default=False
            Whether to return CSR.

        Returns
        -------
        ndarray or csr_array of shape (n, n_features), float64
            Numbers in [-1, 1], flags 0 or 1, and indicators 0 or 1, or 1/k in all k categories of
            a column for a value that is none of them.

        Raises
        ------
        TypeError, ValueError
            When X has other columns, or a column holds what the schema does not provide for. No
            message contains a value.
        """
        columns, n = self._columns(X)
        missing, entries, start = frozenset(self.missing), list[Entry](), 0
        for column in self.features:
            entries += column.entries(columns[column.name], missing, start)
            start += len(column.feature_names)
        for derived in self.derived:
            used = {name: self._by_name[name] for name in derived.columns}
            encoded = {name: _encoded(c, columns[name], missing, n) for name, c in used.items()}
            block = derived.encode(encoded, used)
            entries += [(start + j, block[:, j]) for j in range(block.shape[1])]
            start += block.shape[1]
        return assembled(entries, (n, start), sparse=sparse_output)

    def count_outside(self, X: Any) -> dict[str, tuple[int, int]]:
        """Return how many values of raw records are outside what their columns declare.

        They are numbers out of range and values that are neither categories nor aliases. Counts are
        not private: they are for the holder of the records.

        Returns
        -------
        dict of str to (int, int)
            For each column with any, their number and that of all values that are not missing.
        """
        columns, _ = self._columns(X)
        missing = frozenset(self.missing)
        counts = {
            column.name: count_outside(column, columns[column.name], missing)
            for column in self.columns
            if column.name in columns
        }
        return {name: found for name, found in counts.items() if found[0]}

    def check_values(self, X: Any, tell: Callable[[str], None] = _warn_of_outside) -> None:
        """Tell the holder of the records how many values are outside, or refuse them.

        Told are the counts of `count_outside` and, of columns of categories that state nothing for
        a missing value, how many have their average.

        Parameters
        ----------
        X : as for `encode`
        tell : function of a str, optional
            Called if there is something to tell; by default it is warned of (`OutsideWarning`).

        Raises
        ------
        ValueError
            When ten values of a column differ from its categories by case or spaces alone, or more
            than half of a column, and ten values, are outside.
        """
        counts, (columns, _) = self.count_outside(X), self._columns(X)
        missing = frozenset(self.missing)
        averaged = {c.name: count_averaged(c, columns[c.name], missing) for c in self.features}
        if text := outside_text(counts, {name: n for name, n in averaged.items() if n}):
            tell(text)
        for column in self.columns:
            if column.name in counts:
                misspelt = count_misspelt(column, columns[column.name], missing)
                refuse_outside(column, *counts[column.name], misspelt)

    def labels(self, X: Any) -> NDArray[Any]:
        """Return the labels of raw records as the schema spells them, or clamped targets.

        Of times to an event they are the cells of `dpkern.models.hazards.cells_of`.
        """
        if self.intervals is not None:
            return cells_of(*self.times_and_events(X), self.intervals)
        return self._needed("target").labels(*self._values("target", X))

    def times_and_events(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return the times of raw records, and whether each is that of the event."""
        event = self._needed("event")
        time = self._needed("target").labels(*self._values("target", X))
        return time, event.labels(*self._values("event", X)) == cast(Any, event.classes)[1]

    def groups(self, X: Any) -> NDArray[Any]:
        """Return the silo of each raw record."""
        return self._needed("silo").groups(*self._values("silo", X))

    def persons(self, X: Any) -> NDArray[Any]:
        """Return the person of each raw record."""
        return self._needed("person").groups(*self._values("person", X))

    def beside(self, X: Any) -> dict[str, Any]:
        """Return weights, their bound, and logs of exposures, as options of `SiloData`."""
        options: dict[str, Any] = {}
        if self.weight is not None:
            options["weight"] = self.weight.amounts(*self._values("weight", X))
            options["max_weight"] = self.weight.hi
        if self.exposure is not None:
            amounts = self.exposure.amounts(*self._values("exposure", X))
            options["margin_offset"] = np.log(amounts)
        return options

    def _needed(self, kind: str) -> Column:
        column = self._only(kind)
        if column is None:
            raise ValueError(f'columns must hold a {kind}, of kind "{kind}", got none')
        return column

    def _values(self, kind: str, X: Any) -> tuple[Any, frozenset[str]]:
        name, (columns, _) = self._needed(kind).name, self._columns(X)
        if name not in columns:
            raise ValueError(f"X must have the column {name!r}, the schema's {kind}, got none")
        return columns[name], frozenset(self.missing)

    def silo_data(
        self,
        X: Any,
        m: int | None = None,
        *,
        how: How = "even",
        seed: Seed = None,
        intercept: bool | None = None,
        max_records: int | None = None,
        **split: Any,
    ) -> SiloData:
        """Return raw records as silos, with all public parameters of the schema.

        Parameters
        ----------
        X : data frame (pandas, polars), mapping of names to columns, or list of mappings
            With the target, and the columns of silos, persons, weights and exposures if the schema
            has them.
        m : int, optional
            Number of silos to split the records over at random, by default 1. Where the schema has
            a silo column, that says whose record it is.
        how, seed, **split
            As for `SiloData.split`.
        intercept : bool, optional
            By default what the schema says, and False for several classes: models with constants of
            their own, as perceptrons are, need False.
        max_records : int, optional
            As for `SiloData`, with a person column.

        Raises
        ------
        TypeError, ValueError
            As for `encode` and `SiloData`; also where more than half of a column (and ten values)
            are outside its range or its categories.

        Warns
        -----
        OutsideWarning
            Of fewer such values, and of missing values that are coded as an average: for the holder
            of the records, as the counts are not private.
        """
        self.check_values(X)
        options: dict[str, Any] = {**self.options(intercept=intercept), "max_records": max_records}
        options["person"] = None if self.person is None else self.persons(X)
        options |= self.beside(X)
        features, y = self.encode(X, sparse_output=self.sparse), self.labels(X)
        if self.silo is None:
            m = 1 if m is None else count("m", m)
            return SiloData.split(features, y, m, how=how, seed=seed, **split, **options)
        if m is not None:
            raise ValueError(f"m must be None, as column {self.silo.name!r} says the silo, got {m}")
        return SiloData.from_groups(features, y, self.groups(X), **options)

    def _columns(self, X: Any) -> tuple[dict[str, Any], int]:
        """Return the columns by name and the number of rows; refuse others than the schema's."""
        columns = table_columns(X)
        if columns is None:
            raise TypeError(
                "X must be a data frame, a mapping of names to columns or a list of mappings, got "
                f"a {type(X).__name__}: the schema finds columns by their names"
            )
        known = [column.name for column in self.columns]
        absent = [column.name for column in self.features if column.name not in columns]
        unknown = [name for name in columns if name not in known]
        if absent or unknown:
            found = [f"missing {listed(absent)}"] if absent else []
            cure = f'unknown {listed(unknown)}: add them to the schema, of kind "ignore" if need be'
            found += [cure] if unknown else []
            raise ValueError(f"X must have the columns of the schema, got {'; '.join(found)}")
        try:
            lengths = {len(values) for values in columns.values()}
        except TypeError:
            raise TypeError("X must have a list or an array for each column, got others") from None
        if len(lengths) > 1:
            raise ValueError(f"X must have columns of one length, got {sorted(lengths)}")
        return columns, lengths.pop()

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON types, with every key."""
        plain: dict[str, Any] = {VERSION_KEY: VERSION}
        for key in _KEYS:
            value = getattr(self, key)
            if value or key != "rename":  # of which the digests of other schemas know nothing
                plain[key] = list(value) if isinstance(value, tuple) else value
        if self.derived:
            plain["derived"] = [derived.to_dict() for derived in self.derived]
        return {**plain, "columns": [column.to_dict() for column in self.columns]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the schema of a dictionary such as `to_dict` returns.

        Raises
        ------
        TypeError, ValueError
            When a key is unknown, a value is not as documented, or something is still blank. The
            message names the column and the key.
        """
        if not isinstance(values, Mapping) or VERSION_KEY not in values:
            raise ValueError(f'a schema must be an object with "{VERSION_KEY}": {VERSION}')
        version = values[VERSION_KEY]
        if version != VERSION or isinstance(version, bool):
            raise ValueError(f"{VERSION_KEY} must be {VERSION}, got {version!r}")
        refuse_unknown(
            "the schema", [k for k in values if k != VERSION_KEY], (*_KEYS, "derived", "columns")
        )
        given = values.get("columns")
        if not isinstance(given, list | tuple) or not all(isinstance(c, Mapping) for c in given):
            raise TypeError("columns must be a list of objects with name and kind")
        for entry in given:
            where = f"column {entry.get('name')!r}"
            if entry.get("kind") in KEYS:
                refuse_unknown(where, entry, ("name", "kind", *KEYS[entry["kind"]]))
        if blanks := blanks_of(given):
            raise ValueError(
                f"a schema must have no blanks, got null or nothing for {blanks}: fill them in "
                "from public knowledge (a form, a handbook, the law), not from the records"
            )
        stated = [{k: v for k, v in entry.items() if v is not None} for entry in given]
        columns = [Column(**{"name": None, "kind": None} | entry) for entry in stated]
        rest = {k: v for k, v in values.items() if k in _KEYS}
        derived = values.get("derived", ())
        if not isinstance(derived, list | tuple):
            raise TypeError(f"derived must be a list of objects, got {derived!r}")
        return cls(columns, **rest, derived=[Derived.from_dict(entry) for entry in derived])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a schema from a JSON file.

        Raises
        ------
        ValueError
            When the file holds no schema, or one with blanks; the message names file, column, key.
        OSError
            When it cannot be read.
        """
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path} must be JSON, got {error.msg} at line {error.lineno}, column {error.colno}"
            ) from None
        except RecursionError:
            raise ValueError(
                f"{path} must be a schema, got JSON that is nested too deeply"
            ) from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schema as JSON, one column per line."""
        Path(path).write_text(schema_text(self.to_dict()), encoding="utf-8")


def _encoded(column: Column, values: Any, missing: frozenset[str], n: int) -> Any:
    """Return the features (n, k) of one column."""
    shape = n, len(column.feature_names)
    return assembled(column.entries(values, missing, 0), shape, sparse=False)


def _refuse_twice(rule: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{rule}, got {listed(twice)} twice")


def blanks_of(columns: Sequence[Mapping[str, Any]]) -> str:
    """Return the keys that are still blank, with the columns."""
    names: dict[str, list[str]] = {}
    for column in columns:
        if keys := blank_keys(column.get("kind", ""), column):
            names.setdefault(keys, []).append(str(column.get("name")))
    return "; ".join(f"{keys} of {', '.join(of)}" for keys, of in names.items())


def draft_of(columns: list[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    """Return the dictionary of a schema, in which columns may have blanks."""
    defaults = {"intercept": True, "row_bound": None}
    return {VERSION_KEY: VERSION, **layout, **defaults, "columns": columns}


def schema_text(values: Mapping[str, Any]) -> str:
    """Return a schema, or a draft of one, as JSON with a line for each column."""

    def lines() -> Iterator[str]:
        for key, value in values.items():
            if key != "columns":
                yield f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        columns = [json.dumps(c, ensure_ascii=False) for c in values["columns"]]
        yield '  "columns": [\n    ' + ",\n    ".join(columns) + "\n  ]"

    return "{\n" + ",\n".join(lines()) + "\n}\n"
