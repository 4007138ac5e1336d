"""Features that are functions of a record's encoded columns: products, powers and splines."""

from __future__ import annotations  # help() then shows type aliases by name

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dpkern._numbers import count, real, refuse_unknown
from dpkern.data.column import Column
from dpkern.data.validation import Float64Array

#: The keys of each kind beside kind and columns, all of which must be stated.
_KEYS: dict[str, tuple[str, ...]] = {"product": (), "power": ("degree",), "spline": ("knots",)}
_MOST_DEGREE, _MOST_KNOTS = 10, 100
_CUBIC = 3


@dataclass(frozen=True)
class Derived:
    """Features of one or two columns of a schema, beside those of the columns themselves.

    Numbers enter as they are encoded, mapped to [-1, 1], and categories by their indicators. All
    features of one `Derived` together have a norm of at most 1, or sqrt(degree - 1) for powers.

    Parameters
    ----------
    kind : {"product", "power", "spline"}
        "product" of two columns: of two numbers one feature, of a category one for each indicator
        but the first, whose slope or level is that of the columns themselves. "power" of a number:
        from the square up to `degree`. "spline" of a number: cubic B-splines, but the first and the
        last, which with the number itself and a constant make every cubic spline.
    columns : sequence of str
        Names of the columns, two for a product and one else.
    degree : int, optional
        Of a power, from 2 to 10.
    knots : sequence of float, optional
        Public, within the range of the number, increasing; the ends of the range are knots too.
    """

    kind: str
    columns: Sequence[str]
    degree: int | None = None
    knots: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KEYS:
            raise ValueError(f"kind must be one of {', '.join(_KEYS)}, got {self.kind!r}")
        names = [self.columns] if isinstance(self.columns, str) else list(self.columns)
        wanted = 2 if self.kind == "product" else 1
        if len(names) != wanted or not all(isinstance(name, str) for name in names):
            raise ValueError(f"columns of a {self.kind} must be {wanted} names, got {names!r}")
        if len(set(names)) < len(names):
            raise ValueError(f"columns of a {self.kind} must be distinct, got {names!r}")
        object.__setattr__(self, "columns", tuple(names))
        for key in ("degree", "knots"):
            if (getattr(self, key) is not None) != (key in _KEYS[self.kind]):
                need = "given" if key in _KEYS[self.kind] else "absent"
                raise ValueError(f"{key} of a {self.kind} must be {need}, got {getattr(self, key)}")
        if self.degree is not None and not 2 <= count("degree", self.degree) <= _MOST_DEGREE:
            raise ValueError(f"degree must be from 2 to {_MOST_DEGREE}, got {self.degree}")
        if self.knots is not None:
            listed = isinstance(self.knots, Sequence | np.ndarray) and not isinstance(
                self.knots, str
            )
            knots = tuple(real("knots", x) for x in self.knots) if listed else ()
            if not 1 <= len(knots) <= _MOST_KNOTS or any(np.diff(knots) <= 0.0):
                raise ValueError(
                    f"knots must be 1 to {_MOST_KNOTS} increasing numbers, got {self.knots!r}"
                )
            object.__setattr__(self, "knots", knots)

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the derived column of a JSON object; raise if it is wrong."""
        if not isinstance(values, Mapping) or not {"kind", "columns"} <= values.keys():
            raise TypeError(f"derived must be objects with kind and columns, got {values!r}")
        if values["kind"] in _KEYS:
            refuse_unknown("derived", values, ("kind", "columns", *_KEYS[values["kind"]]))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of JSON types."""
        own = {key: getattr(self, key) for key in _KEYS[self.kind]}
        found = {"kind": self.kind, "columns": self.columns, **own}
        return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}

    def check(self, features: Mapping[str, Column]) -> None:
        """Raise ValueError if the columns are no features, or no numbers where these are needed."""
        for name in self.columns:
            if name not in features:
                raise ValueError(
                    f"columns of a {self.kind} must be numbers or categories of the schema, got "
                    f"{name!r}"
                )
            if self.kind != "product" and features[name].kind != "number":
                raise ValueError(f"column {name!r} of a {self.kind} must be a number")
        if self.knots is not None:
            column = features[self.columns[0]]
            lo, hi = real("lo", column.lo), real("hi", column.hi)
            if not (lo < self.knots[0] and self.knots[-1] < hi):
                raise ValueError(
                    f"knots of column {column.name!r} must lie within its range, {lo:g} to {hi:g}, "
                    f"got {list(self.knots)!r}"
                )

    def feature_names(self, features: Mapping[str, Column]) -> tuple[str, ...]:
        """Return the names of the features; [NAME] is a number as mapped to [-1, 1]."""
        first = features[self.columns[0]]
        if self.degree is not None:
            return tuple(f"[{first.name}]^{k}" for k in range(2, self.degree + 1))
        if self.knots is not None:
            return tuple(f"[{first.name}]_spline{k + 1}" for k in range(len(self.knots) + 2))
        of_each = [_names(features[name]) for name in self.columns]
        return tuple(f"{a}*{b}" for a in of_each[0] for b in of_each[1])

    @property
    def square(self) -> float:
        """Bound of the squared norm of the features.

        Indicators and their averages have a sum of at most 1 and no negative one, as B-splines.
        """
        return 1.0 if self.degree is None else self.degree - 1.0

    def encode(self, encoded: Mapping[str, Float64Array], features: Mapping[str, Column]) -> Any:
        """Return the features (n, k) from those of the columns, each row from that row alone."""
        parts = [_factors(encoded[name], features[name]) for name in self.columns]
        if self.degree is not None:
            return np.hstack([parts[0] ** k for k in range(2, self.degree + 1)])
        if self.knots is not None:
            column = features[self.columns[0]]
            return _splines(parts[0][:, 0], column.scaled(np.array(self.knots)))
        a, b = parts
        return (a[:, :, np.newaxis] * b[:, np.newaxis, :]).reshape(len(a), -1)


def _names(column: Column) -> tuple[str, ...]:
    return column.feature_names[1:] if column.kind == "category" else (f"[{column.name}]",)


def _factors(encoded: Float64Array, column: Column) -> Float64Array:
    """Return the number without its flag, or all indicators but the first."""
    return encoded[:, 1:] if column.kind == "category" else encoded[:, :1]


def _splines(u: Float64Array, knots: Float64Array) -> Float64Array:
    """Return the inner cubic B-splines (n, k + 2) of u (n,) in [-1, 1] with k knots within."""
    t = np.concatenate([np.full(_CUBIC + 1, -1.0), knots, np.full(_CUBIC + 1, 1.0)])
    last = _CUBIC + len(knots)  # of the intervals that are not empty
    interval = np.clip(np.searchsorted(t, u, side="right") - 1, _CUBIC, last)
    B = (interval[:, np.newaxis] == np.arange(len(t) - 1)).astype(np.float64)
    for p in range(1, _CUBIC + 1):  # de Boor's recursion; 0 / 0 counts 0
        widths = t[p:] - t[:-p]
        inverse = np.divide(1.0, widths, out=np.zeros(len(widths)), where=widths > 0.0)
        rising = (u[:, np.newaxis] - t[: -p - 1]) * inverse[:-1] * B[:, :-1]
        B = rising + (t[p + 1 :] - u[:, np.newaxis]) * inverse[1:] * B[:, 1:]
    return np.clip(B[:, 1:-1], 0.0, 1.0)
