"""One column of a raw table, as a schema describes it, and the encoding of its values.

A value is encoded from itself and the description alone: no other record has a part in it, and
nothing is learnt. Messages name the column, never a value.
"""

from __future__ import annotations  # help() then shows type aliases by name

import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import counted, did_you_mean, parse_number, real
from dpkern.data.frames import is_missing
from dpkern.data.labels import most_exact
from dpkern.data.validation import Float64Array, Matrix, csr_of
from dpkern.models.hazards import checked_edges

_LISTED = 10  # columns
FEWEST = 10  # of fewer values outside, as of a single record to predict, nothing is refused

Kind = Literal[
    "number", "category", "target", "event", "silo", "person", "weight", "exposure", "ignore"
]
Label = str | int | float

#: The keys of each kind beside name and kind.
KEYS: dict[str, tuple[str, ...]] = {
    "number": ("lo", "hi", "scale", "missing", "since"),
    "category": ("categories", "missing", "aliases"),
    "target": ("classes", "aliases", "lo", "hi", "intervals"),
    "event": ("classes", "aliases"),
    "silo": (),
    "person": (),
    "weight": ("lo", "hi"),
    "exposure": ("lo", "hi"),
    "ignore": (),
}
_SCALES = ("linear", "log1p")
_LEAST = {"weight": "at least 0", "exposure": "above 0"}
OTHER, MISSING = "other", "missing"
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")  # what `text_of` returns of whole numbers

#: The place of a feature and its value in every row; or the place of every row's indicator, and the
#: features of the categories, which equal parts of 1 stand in where that place is negative.
Entry = tuple[int, NDArray[Any]] | tuple[NDArray[np.intp], range]


class RowError(ValueError):
    """Values of a column are refused; `row` is the first that has one, from 0."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(message, row)
        self.row = row

    def __str__(self) -> str:
        return self.placed(f"row {self.row}, from 0")

    def placed(self, place: str) -> str:
        """Return the message with another name of the row's place."""
        return f"{self.args[0]} (the first is in {place})"


@dataclass(frozen=True, repr=False)
class Column:
    """The public description of one column of a raw table.

    Parameters
    ----------
    name : str
    kind : {"number", "category", "target", "event", "silo", "person", "weight", "exposure", ...}
        "number" and "category" are features. "event" says whether the time of a target with
        intervals is that of the event or of censoring. "person" holds the ids of people with
        several records; it is kept in the schema and is no feature, as "ignore" is none. "weight"
        and "exposure" are the weights of records, and what the mean of a log link is in proportion
        to.
    lo, hi : float
        Public range of a number, to which values are clamped; of a target, that of a regression;
        of weights at least 0, and of exposures above 0.
    scale : {"linear", "log1p"}, default="linear"
        How [lo, hi] is mapped to [-1, 1]: affinely, or log(1 + x - lo) is.
    categories : sequence of str
        Public values of a category, each with an indicator. All others have the indicator "other"
        where it is one of them; elsewhere they are coded as the average of the categories, 1/k in
        each of the k indicators.
    classes : sequence of str or of numbers
        Public labels of a classification, the negative one first; of an event, by default 0 and 1,
        or False and True.
    missing : float or str, optional
        For a number: what stands for a missing value, in [lo, hi]; a feature NAME_missing then says
        where it does. None: a missing value is an error. For a category: the indicator of a missing
        value, a category or "missing", which is added. None: the average of the categories.
    aliases : mapping of str to str, optional
        Other spellings in the data, and the category or class that each of them means.
    intervals : sequence of float, optional
        For a target that is the time to an event or of censoring: public edges of intervals, in the
        unit of the times, as for `dpkern.models.hazards.DiscreteHazards`.
    since : str, optional
        For a number: the values are dates, and the number is that of the days since this public
        one, in the form 2020-01-31. With `lo` and `hi` in days it is an age or a duration.
    """

    name: str
    kind: Kind
    lo: float | None = None
    hi: float | None = None
    scale: Literal["linear", "log1p"] = "linear"
    categories: Sequence[str] | None = None
    classes: Sequence[Label] | None = None
    missing: float | str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)
    since: str | None = None
    intervals: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(f"name of a column must be a string that is not blank: {self.name!r}")
        _one_of("kind", self.name, self.kind, KEYS)
        self._set(name=self.name.strip())
        for key in sorted(set().union(*KEYS.values()) - set(KEYS[self.kind])):
            if getattr(self, key) != _DEFAULTS[key]:
                raise ValueError(
                    f"{key} of column {self.name!r} must be absent, as its kind is {self.kind!r}: "
                    f"keys of that kind are {', '.join(KEYS[self.kind]) or 'none'}"
                )
        if self.kind == "event" and self.classes is None:
            self._set(classes=(0, 1))
            if isinstance(self.aliases, Mapping):
                self._set(aliases={"False": "0", "True": "1", **self.aliases})
        if self.blanks:
            raise ValueError(f"{self.blanks} of column {self.name!r} must be stated, got None")
        if self.lo is not None:
            self._check_range()
        if self.kind in ("weight", "exposure"):
            least = cast(float, self.lo)
            if least < 0.0 or (self.kind == "exposure" and least == 0.0):
                raise ValueError(
                    f"lo of column {self.name!r} must be {_LEAST[self.kind]}, got {least:g}"
                )
        if self.kind == "number":
            self._check_number()
        elif self.kind == "category":
            self._check_category()
        if self.intervals is not None:
            self._check_intervals()
        elif self.classes is not None:
            self._check_classes()

    def __repr__(self) -> str:
        values = {key: _json(getattr(self, key)) for key in KEYS[self.kind]}
        stated = [f", {k}={v!r}" for k, v in values.items() if v != _DEFAULTS[k]]
        return f"Column({self.name!r}, {self.kind!r}{''.join(stated)})"

    @property
    def blanks(self) -> str:
        """Names of the keys that must be stated and are not."""
        return blank_keys(self.kind, {key: getattr(self, key) for key in KEYS[self.kind]})

    def _set(self, **values: Any) -> None:
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def _check_range(self) -> None:
        lo, hi = (real(f"{key} of column {self.name!r}", getattr(self, key)) for key in RANGE)
        if not (lo < hi and math.isfinite(hi - lo)):
            raise ValueError(
                f"lo and hi of column {self.name!r} must be finite with lo < hi, got {lo!r} and "
                f"{hi!r}"
            )
        self._set(lo=lo, hi=hi)

    def _check_number(self) -> None:
        _one_of("scale", self.name, self.scale, _SCALES)
        if self.since is not None:
            try:
                date.fromisoformat(self.since)
            except (TypeError, ValueError):
                raise ValueError(
                    f"since of column {self.name!r} must be a date such as '2020-01-31', got "
                    f"{self.since!r}"
                ) from None
        if self.missing is not None:
            fill = real(f"missing of column {self.name!r}", self.missing)
            if not cast(float, self.lo) <= fill <= cast(float, self.hi):
                raise ValueError(
                    f"missing of column {self.name!r} must lie in its range, "
                    f"{self.lo:g} to {self.hi:g}, got {fill!r}"
                )
            self._set(missing=fill)

    def _check_category(self) -> None:
        texts = _texts("categories", self.name, self.categories)
        fill = None if self.missing is None else text_of(self.missing) or ""
        if fill == OTHER and OTHER not in texts:
            raise ValueError(
                f"missing of column {self.name!r} must be one of its categories, got {fill!r}: "
                f'list "{OTHER}" among the categories if such values occur, or leave missing out, '
                "and a missing value is coded as the average of the categories"
            )
        if fill is not None:
            _one_of("missing", self.name, fill, (*texts, MISSING))
        if len(texts) == 1 and fill != MISSING:
            raise ValueError(
                f"categories of column {self.name!r} must be at least two, got {list(texts)!r}, of "
                f'which all other values would have the code: list the others, or "{OTHER}"'
            )
        self._set(categories=texts, missing=fill, aliases=self._checked_aliases(texts))

    def _check_classes(self) -> None:
        if self.lo is not None:
            raise ValueError(
                f"classes of column {self.name!r} must be absent beside lo and hi, which are for a "
                "regression"
            )
        texts = _texts("classes", self.name, self.classes)
        classes = tuple(cast(Sequence[Label], self.classes))
        few = len(texts) != 2 if self.kind == "event" else len(texts) < 2
        if few or len({isinstance(label, str) for label in classes}) > 1:
            need = "at least two labels" if self.kind == "target" else "two, the event's last"
            raise ValueError(
                f"classes of column {self.name!r} must be {need}, all of them strings or all "
                f"numbers, got {list(classes)!r}"
            )
        if isinstance(classes[0], str):
            classes = texts
        self._set(classes=classes, aliases=self._checked_aliases(texts))

    def _check_intervals(self) -> None:
        if self.classes is not None or self.lo is not None or self.aliases:
            raise ValueError(
                f"intervals of column {self.name!r} must be absent beside classes, aliases, lo and "
                "hi, which are for other targets than times"
            )
        edges = checked_edges(f"intervals of column {self.name!r}", self.intervals)
        self._set(intervals=edges)

    def _checked_aliases(self, known: tuple[str, ...]) -> dict[str, str]:
        if not isinstance(self.aliases, Mapping):
            raise TypeError(
                f"aliases of column {self.name!r} must map spellings to categories or classes, got "
                f"{self.aliases!r}"
            )
        found = {str(k).strip(): text_of(v) or "" for k, v in self.aliases.items()}
        for spelling, meant in found.items():
            _one_of("aliases", self.name, meant, known)
            if spelling in known:
                raise ValueError(
                    f"aliases of column {self.name!r} must be other spellings, got {spelling!r}, "
                    "which is listed itself"
                )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON types with every key of the kind."""
        keys: Iterable[str] = KEYS[self.kind]
        if self.kind == "target":
            keys = ("classes", "aliases") if self.classes is not None else RANGE
            keys = keys if self.intervals is None else ("intervals",)
        found = {k: _json(getattr(self, k)) for k in keys}
        if self.since is None:  # of which the digests of other schemas know nothing
            found.pop("since", None)
        return {"name": self.name, "kind": self.kind} | found

    @property
    def indicators(self) -> tuple[str, ...]:
        """What the features of a category stand for: the categories, and "missing" if stated."""
        names = tuple(cast(Sequence[str], self.categories))
        return names if self.missing in (None, *names) else (*names, MISSING)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the column's features: of none, unless it is a number or a category."""
        if self.kind == "category":
            return tuple(f"{self.name}_{indicator}" for indicator in self.indicators)
        if self.kind != "number":
            return ()
        return (self.name,) if self.missing is None else (self.name, f"{self.name}_missing")

    @property
    def unit(self) -> tuple[str, float, float]:
        """A number's quantity u by name, with the a and b of its feature a u + b."""
        lo, width = cast(float, self.lo), cast(float, self.hi) - cast(float, self.lo)
        name = self.name if self.since is None else f"days from {self.since} to {self.name}"
        if self.scale == "linear":
            return name, 2.0 / width, -1.0 - 2.0 * lo / width
        shifted = f"{name} {'+' if lo < 0.0 else '-'} {abs(lo):g}" if lo else name
        return f"log1p({shifted})", 2.0 / math.log1p(width), -1.0

    @property
    def n_stored(self) -> int:
        """Number of entries that a row stores, but for averages of categories."""
        return min(len(self.feature_names), 1 if self.kind == "category" else 2)

    @property
    def square(self) -> float:
        """Bound of the squared norm of the column's features.

        It is 1 for a number in [-1, 1] and for one indicator, and 1/k for the average of k; where
        the flag is 1, the number is what stands for a missing value.
        """
        if self.n_stored < 2:
            return float(self.n_stored)
        return 1.0 + float(self.scaled(np.array([cast(float, self.missing)]))[0]) ** 2

    def entries(self, values: Any, missing: frozenset[str], start: int) -> list[Entry]:
        """Return the stored entries of the rows; the column's features begin at `start`."""
        if self.kind == "category":
            place = {name: start + k for k, name in enumerate(self.indicators)}
            others = (place.get(cast(str, name), -1) for name in (self.missing, OTHER))
            averaged = range(start, start + len(cast(Sequence[str], self.categories)))
            return [(self._coded(values, missing, place, *others), averaged)]
        x = self.to_numbers(values, missing)
        absent = np.isnan(x)
        if self.missing is not None:
            x[absent] = self.missing
            return [(start, self.scaled(x)), (start + 1, absent)]
        if absent.any():
            raise RowError(
                f"column {self.name!r} must have no missing values, got "
                f"{np.count_nonzero(absent)} in {counted(len(x), 'row')}: state the number that "
                f'stands for one under "missing" of the column',
                int(np.argmax(absent)),
            )
        return [(start, self.scaled(x))]

    def amounts(self, values: Any, missing: frozenset[str]) -> Float64Array:
        """Return the numbers of a column of weights or exposures, clamped to [lo, hi]."""
        x = self.to_numbers(values, missing)
        absent = np.isnan(x)
        if absent.any():
            raise RowError(
                f"column {self.name!r} must hold the {self.kind} of every record, got "
                f"{counted(int(absent.sum()), 'other value')} in {counted(len(x), 'row')}",
                int(np.argmax(absent)),
            )
        found: Float64Array = np.clip(x, self.lo, self.hi)
        return found

    def labels(self, values: Any, missing: frozenset[str]) -> NDArray[Any]:
        """Return the labels of a target or an event, or numbers, clamped to [lo, hi], or times."""
        if self.classes is not None:
            codes = self.to_codes(values, missing, [cast(str, text_of(c)) for c in self.classes])
            other = codes < 0
            found = np.asarray(self.classes)[codes]
        else:
            x = self.to_numbers(values, missing)
            other = np.isnan(x) if self.intervals is None else ~((x >= 0.0) & (x < math.inf))
            found = x if self.intervals is not None else np.clip(x, self.lo, self.hi)
        if other.any():
            what = "numbers" if self.intervals is None else "times from 0 on"
            what = what if self.classes is None else "classes or aliases of the schema"
            raise RowError(
                f"column {self.name!r}, the {self.kind}, must hold {what} only, got "
                f"{counted(int(other.sum()), 'other value')} in "
                f"{counted(len(found), 'row')}",
                int(np.argmax(other)),
            )
        return found

    def groups(self, values: Any, missing: frozenset[str]) -> NDArray[Any]:
        """Return the values of a column of silos or persons, as numbers or as text."""
        values = _plain(values)
        if isinstance(values, np.ndarray) and values.dtype.kind in "iu":
            codes = [int(text) for text in missing if _WHOLE.fullmatch(text)]
            absent = sum(int(np.count_nonzero(values == code)) for code in codes)
            self._require_named(absent, values)
            return values
        texts = [text_of(value, self.name) for value in values]
        floats = [np.asarray(v) for v in values if isinstance(v, float | np.floating)]
        joined = sum(bool(abs(v) >= most_exact(v.dtype)) for v in floats)
        if joined:
            raise ValueError(
                f"column {self.name!r} must name the {self.kind} by text or integers where floats "
                f"do not tell them apart, got {counted(joined, 'such float')} in "
                f"{counted(len(texts), 'row')}: read the column as text"
            )
        self._require_named(sum(text is None or text in missing for text in texts), texts)
        return np.array(texts)

    def _require_named(self, absent: int, values: Sized) -> None:
        if absent:
            raise ValueError(
                f"column {self.name!r} must name the {self.kind} of every record, got "
                f"{counted(absent, 'missing value')} in {counted(len(values), 'row')}"
            )

    def to_numbers(self, values: Any, missing: frozenset[str]) -> Float64Array:
        """Return new floats, NaN where a value is missing; of dates the days since `since`."""
        values, wanted = _plain(values), "numbers"
        parse: Callable[[str], float] = parse_number
        if self.since is not None:
            wanted, parse = "dates such as 2020-01-31", _DaysSince(self.since).parse
            if isinstance(values, np.ndarray) and values.dtype.kind == "M":
                values = values.astype("datetime64[D]").astype(object)
        elif isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            return values.astype(np.float64)

        def number(value: object) -> float:
            if isinstance(value, date) and not is_missing(value):
                text: str | None = value.isoformat()
            else:
                text = text_of(value, self.name)
            if text is None or text in missing:
                return math.nan
            try:
                return parse({"True": "1", "False": "0"}.get(text, text))
            except ValueError:
                raise ValueError(
                    f'column {self.name!r} must hold {wanted}, got text: list it under "missing" '
                    "of the schema if it means a missing value, or give the column another kind"
                ) from None

        def is_refused(value: object) -> bool:
            try:
                number(value)
            except ValueError:
                return True
            return False

        try:
            return self._each(values, number)
        except ValueError as error:
            row = next(k for k, value in enumerate(values) if is_refused(value))
            raise RowError(str(error), row) from None

    def to_codes(
        self, values: Any, missing: frozenset[str], names: Sequence[str], absent: int = -1
    ) -> NDArray[np.intp]:
        """Return the place of each value in `names`, `absent` for a missing one, else -1."""
        place = {name: k for k, name in enumerate(names)}
        return self._coded(values, missing, place, absent, -1)

    def _coded(
        self, values: Any, missing: frozenset[str], place: dict[str, int], absent: int, other: int
    ) -> NDArray[np.intp]:
        place = place | {spelling: place[meant] for spelling, meant in self.aliases.items()}

        def code(value: object) -> float:
            text = text_of(value, self.name)
            return absent if text is None or text in missing else place.get(text, other)

        values = _plain(values)
        if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
            distinct, inverse = np.unique(values, return_inverse=True)
            return np.array([code(value) for value in distinct.tolist()], np.intp)[inverse]
        return self._each(values, code).astype(np.intp)

    def _each(self, values: Any, resolve: Callable[[object], float]) -> Float64Array:
        try:
            return np.fromiter(map(_Memo(resolve).__getitem__, values), np.float64, len(values))
        except TypeError as error:
            raise TypeError(
                f"column {self.name!r} must hold numbers, text or missing values, got others"
            ) from error

    def scaled(self, x: Float64Array) -> Float64Array:
        """Return numbers, without NaN, clamped to [lo, hi] and mapped to [-1, 1]."""
        lo, hi = cast(float, self.lo), cast(float, self.hi)
        x = np.clip(x, lo, hi) - lo
        share = x / (hi - lo) if self.scale == "linear" else np.log1p(x) / math.log1p(hi - lo)
        return np.clip(2.0 * share - 1.0, -1.0, 1.0)


class _DaysSince:
    """Days from a public date to others."""

    def __init__(self, since: str) -> None:
        self._first = date.fromisoformat(since).toordinal()

    def parse(self, text: str) -> float:
        """Return the days to a date, with or without a time of the day; raise ValueError."""
        return float(datetime.fromisoformat(text).toordinal() - self._first)


class _Memo(dict[object, float]):
    """What each text stands for; other values, of which 1 == True, are resolved every time."""

    def __init__(self, resolve: Callable[[object], float]) -> None:
        super().__init__()
        self._resolve = resolve

    def __missing__(self, value: object) -> float:
        found = self._resolve(value)
        if isinstance(value, str):
            self[value] = found
        return found


def assembled(entries: Sequence[Entry], shape: tuple[int, int], *, sparse: bool) -> Matrix:
    """Return the rows of these entries, whose places increase."""
    n = shape[0]
    if not sparse:
        out = np.zeros(shape)
        for place, value in entries:
            if isinstance(value, range):
                coded = np.flatnonzero(np.greater_equal(place, 0))
                out[coded, np.asarray(place)[coded]] = 1.0
                out[np.less(place, 0), value.start : value.stop] = 1.0 / len(value)
            else:
                out[:, place] = value
        return out
    lengths = [np.where(p < 0, len(v), 1) if isinstance(v, range) else 1 for p, v in entries]
    indptr = np.append(0, np.cumsum(np.broadcast_to(sum(lengths), n), dtype=np.int64))
    indices, data = np.empty(indptr[-1], np.int32), np.ones(indptr[-1])
    at = indptr[:-1].copy()
    for (place, value), length in zip(entries, lengths, strict=True):
        indices[at] = place
        if isinstance(value, range):
            averaged = at[np.less(place, 0)][:, np.newaxis] + np.arange(len(value))
            indices[averaged], data[averaged] = value, 1.0 / len(value)
        else:
            data[at] = value
        at += length
    width = np.int32 if len(indices) <= np.iinfo(np.int32).max else np.int64
    return csr_of(data, indices, indptr.astype(width), shape)


RANGE = ("lo", "hi")
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("lo", "hi", "categories", "classes", "missing", "since", "intervals")),
    **{"scale": "linear", "aliases": {}},
}


def blank_keys(kind: str, stated: Mapping[str, Any]) -> str:
    """Return the keys that a column of the kind must state and that are absent or None."""
    if kind == "target" and stated.get("intervals") is not None:
        return ""
    if kind == "target" and all(stated.get(key) is None for key in ("classes", *RANGE)):
        if "intervals" in stated and "classes" not in stated:
            return "intervals"
        return "classes (or lo and hi)"
    if kind == "event":
        return "classes" if stated.get("classes", ()) is None else ""
    needs = ["categories"] if kind == "category" else []
    if kind in ("number", "weight", "exposure") or (
        kind == "target" and stated.get("classes") is None
    ):
        needs = list(RANGE)
    return " and ".join(key for key in needs if stated.get(key) is None)


def text_of(value: object, name: str = "") -> str | None:
    """Return a value as text without spaces around it, None if it is missing.

    Whole numbers have no decimal point; booleans are True and False.
    """
    if isinstance(value, str):
        return value.strip()
    if is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Integral):
        return str(int(value))
    try:
        number = float(cast(Any, value))
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"column {name!r} must hold numbers or text") from None
    if math.isnan(number):  # of another type than float
        return None
    return str(int(cast(Any, value))) if number.is_integer() else repr(number)


def _plain(values: Any) -> Any:
    """Return the values of a series, array or list as an array or a list."""
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    return values if isinstance(values, np.ndarray) else list(values)


def _texts(key: str, name: str, values: object) -> tuple[str, ...]:
    """Return listed categories or classes as distinct texts."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise TypeError(f"{key} of column {name!r} must be a list, got {values!r}")
    texts = tuple(text_of(value, name) or "" for value in values)
    if not texts or not all(texts) or len(set(texts)) < len(texts):
        raise ValueError(
            f"{key} of column {name!r} must be distinct and not blank, and at least one, got "
            f"{list(texts)!r}"
        )
    return texts


def _one_of(key: str, name: str, value: object, known: Iterable[str]) -> None:
    known = list(known)
    if value not in known:
        close = did_you_mean(str(value), known)
        raise ValueError(
            f"{key} of column {name!r} must be one of {', '.join(map(repr, known))}, got "
            f"{value!r}{close}"
        )


def _json(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, tuple):
        return [_json(entry) for entry in value]
    return dict(value) if isinstance(value, Mapping) else value


# --- Values outside what a column declares, for the holder of the records ------------------------


def count_outside(column: Column, values: Any, missing: frozenset[str]) -> tuple[int, int]:
    """Return how many values are out of range or not listed, and how many are not missing.

    Labels are not counted: one that is not listed is an error.
    """
    if column.lo is not None and column.hi is not None:
        x = column.to_numbers(values, missing)
        outside = (x < column.lo) | (x > column.hi)
        return int(np.count_nonzero(outside)), int(np.count_nonzero(~np.isnan(x)))
    if column.categories is None:
        return 0, 0
    codes = column.to_codes(values, missing, column.categories, absent=-2)
    return int(np.count_nonzero(codes == -1)), int(np.count_nonzero(codes != -2))


def count_averaged(column: Column, values: Any, missing: frozenset[str]) -> int:
    """Return how many missing values have the average of categories, as nothing else is stated."""
    if column.categories is None or column.missing is not None:
        return 0
    codes = column.to_codes(values, missing, column.categories, absent=-2)
    return int(np.count_nonzero(codes == -2))


def count_misspelt(column: Column, values: Any, missing: frozenset[str]) -> int:
    """Return how many values differ from a category or alias by case or spaces alone."""
    if column.categories is None:
        return 0
    known = {_folded(name) for name in (*column.categories, *column.aliases)}
    spelt = [
        value if isinstance(value, str) and _folded(value) in known else "" for value in values
    ]
    return count_outside(column, spelt, missing | {""})[0]


def _folded(text: str) -> str:
    return "".join(text.split()).casefold()


def outside_text(counts: Mapping[str, tuple[int, int]], averaged: Mapping[str, int]) -> str:
    """Return what the holder of the records is told of these counts, nothing where all are 0."""
    outside = [f"{bad} of {present} in column {name!r}" for name, (bad, present) in counts.items()]
    missing = [f"{counted(n, 'value')} in column {name!r}" for name, n in averaged.items()]
    parts = [
        f"values {text}: {', '.join(found[:_LISTED])}"
        + (f", and some in {len(found) - _LISTED} columns more" if len(found) > _LISTED else "")
        for text, found in (
            ("out of range or in no category", outside),
            ("missing that are coded as the average of the categories", missing),
        )
        if found
    ]
    note = "(counted without noise: for the holder of the records alone)"
    if outside:
        note += (
            "; those out of range count as its nearest end, and those in no category as the "
            'average of the categories, or as "other" where that is one'
        )
    return f"{'; '.join(parts)} {note}" if parts else ""


def refuse_outside(column: Column, outside: int, present: int, misspelt: int = 0) -> None:
    """Raise ValueError if most values of a column are outside, and not only a few are.

    So many as a few are too many of those that differ from a category by case or spaces alone.
    """
    if misspelt >= FEWEST:
        first = cast(Any, column.categories)[0]
        raise ValueError(
            f"column {column.name!r} must hold its categories or aliases, got {misspelt} of "
            f"{present} values that differ from one by case or spaces alone: state these spellings "
            f'in the aliases of the column, as in {{"SPELLING": "{first}"}}'
        )
    if outside < FEWEST or 2 * outside <= present:
        return
    if column.categories is None:
        raise ValueError(
            f"column {column.name!r} must be in its range, {column.lo:g} to {column.hi:g}, got "
            f"{outside} of {present} values outside: state the range in the unit of the records"
        )
    if OTHER not in column.categories:
        raise ValueError(
            f"column {column.name!r} must hold its categories or aliases, got {outside} of "
            f"{present} values that are neither: state the spellings of the records, or list "
            f'"{OTHER}" among the categories if most values are others'
        )
