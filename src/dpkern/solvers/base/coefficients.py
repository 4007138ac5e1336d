"""The coefficients of a model in the units of its records, and the noise in them."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpkern import _html
from dpkern._files import refuse_unwritable, replacing
from dpkern._numbers import aligned
from dpkern._typing import FloatArray
from dpkern.models.hazards import DiscreteHazards
from dpkern.models.networks import MLP
from dpkern.models.ordinal import AllThreshold
from dpkern.solvers.base.calibration import LogMeans

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.result import SolverResult

INTERCEPT = "intercept"
LISTED = 12  #: coefficients that are shown of a model
PROVED = "the standard deviation of the noise in a coefficient is at most its noise_std"
NOMINAL = (
    "noise_std is nominal: that of a coefficient which no record and no prox pulls back, as one of "
    "a column of zeros"
)
UNKNOWN = "the noise in the coefficients of this solver is not known"
LOG_ODDS = "coefficients are those of the log odds, cut off where margins exceed the unit"
LOGITS = "coefficients are those of the logits, which of two classes are log odds"
LOG_MEANS = (
    "coefficients are those of the log of means: a mean is multiplied by exp(coefficient) for one "
    "unit, within the bounds of the means"
)
LOG_HAZARDS = "coefficients are logs of {}, and the intercept is that of the sum over all intervals"


@dataclass(frozen=True)
class CoefficientNoise:
    """The standard deviation of the noise in the weights of a linear model, by public numbers.

    Attributes
    ----------
    std : float
        Of the weight of a feature as transformed by the data's feature range.
    intercept_std : float
        Of the weight of the constant.
    proved : bool
        Whether these are upper bounds, whatever the records are (docs/proofs/noise.md). Otherwise
        they are nominal, exact where no record and no prox pulls a weight back.
    """

    std: float
    intercept_std: float
    proved: bool


class Coefficient(NamedTuple):
    """A coefficient in the units of the records."""

    name: str
    coefficient: float
    noise_std: float | None  #: None where it is not known


def save_table(
    path: str | os.PathLike[str],
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    name: str,
    **beside: Any,
) -> None:
    """Write rows as CSV, or as JSON under `name` with what is `beside` them; None is blank."""
    refuse_unwritable(path)
    kind, text = Path(path).suffix.lower(), io.StringIO()
    if kind == ".json":
        each = [dict(zip(head, row, strict=True)) for row in rows]
        text.write(json.dumps({name: each, **beside}, indent=1) + "\n")
    elif kind == ".csv":
        table = csv.writer(text, lineterminator="\n")
        table.writerows([head, *rows])
    else:
        raise ValueError(f"path must end in .csv or .json, got {os.fspath(path)!r}")
    with replacing(path) as file:
        file.write(text.getvalue().encode())


class Coefficients(tuple[Coefficient, ...]):
    """The intercept and the coefficients of a model, the largest in their noise first.

    ``pandas.DataFrame(result.coefficients())`` has the columns name, coefficient and noise_std.

    Attributes
    ----------
    note : str
        What the numbers are.
    unit : str
        What they change: "log odds", "log mean", "log hazard", "target" or "margin", by one unit of
        the named quantity, or of a category against the average of its column.
    n_more : int
        Number of coefficients that were left out of the tuple.
    """

    note: str
    unit: str
    n_more: int

    def __new__(
        cls, rows: Iterable[Coefficient], note: str, unit: str, n_more: int = 0
    ) -> "Coefficients":
        self = super().__new__(cls, rows)
        self.note, self.unit, self.n_more = note, unit, n_more
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return Coefficients, (tuple(self), self.note, self.unit, self.n_more)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write name, coefficient, noise_std and unit of all, as CSV or JSON by the path's suffix.

        A standard deviation that is not known is blank, or null.
        """
        head = [*Coefficient._fields, "unit"]
        save_table(path, head, [[*row, self.unit] for row in self], "coefficients", note=self.note)

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"({self.note})"])

    def _repr_html_(self) -> str:
        rest = [(f"... and {self.n_more} more", "", "")] if self.n_more else []
        rows = [*map(_cells, self), *rest]
        return _html.table("Coefficients", rows, head=Coefficient._fields, note=self.note)

    def lines(self) -> list[str]:
        """Return the lines of the table."""
        lines = aligned([Coefficient._fields, *map(_cells, self)], right=(1, 2))
        return [*lines, f"... and {self.n_more} more"] if self.n_more else lines


def _cells(row: Coefficient) -> tuple[str, str, str]:
    noise = "unknown" if row.noise_std is None else f"{row.noise_std:.2g}"
    return row.name, f"{row.coefficient:.4g}", noise


def layers(result: "SolverResult") -> list[tuple[FloatArray, FloatArray]]:
    """Return the matrix (outputs, inputs) and the constants of every layer.

    The first are for features as given; a row beyond the row bound is shortened before all of them.
    Ordered classes have one row with a constant for each threshold, which is minus that.
    """
    transform = result.transform
    if isinstance(result.oracle, MLP):
        matrices = result.oracle.matrices(result.w, transform.n_features)
        (first, constants), *others = [(W[:, :-1], W[:, -1]) for W in matrices]
    elif isinstance(result.oracle, DiscreteHazards):
        first, others = result.w[np.newaxis, : transform.n_features], []
        constants = np.array([result.oracle.level(result.w)])
    elif isinstance(result.oracle, AllThreshold):
        own, thresholds = result.oracle.parts(result.w, transform.n_features)
        first, others, constants = own[np.newaxis], [], -thresholds
    else:
        first, others = result.coef[np.newaxis], []
        constants = np.array([result.intercept + transform.target_middle])
    if transform.shift is not None:
        constants = constants + first @ np.asarray(transform.shift)
    if transform.scale is not None:
        first = first * np.asarray(transform.scale)
    return [(first.copy(), constants.copy()), *others]


def is_linear(oracle: object) -> bool:
    """Return whether a model has coefficients: neither hidden layers nor a user's own form."""
    linear = isinstance(oracle, MLP) and not oracle.hidden
    return oracle is None or linear or isinstance(oracle, DiscreteHazards)


def has_coefficients(oracle: object) -> bool:
    """Return whether `coefficients` has those of a model."""
    return is_linear(oracle) or isinstance(oracle, AllThreshold)


def _by_columns(
    result: "SolverResult", W: FloatArray, scale: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, dict[int, str]]:
    """Return coefficients (K, n) in the units of a schema's columns, from W (K, n) of the features.

    Also the norm of each as a function of w, what the intercept takes of each of W, and the names
    of features whose unit has one.
    """
    values, norms, taken, start = W.copy(), scale.copy(), np.zeros(len(scale)), 0
    units = dict[int, str]()
    for column in () if result.schema is None else result.schema.features:
        block = slice(start, start + len(column.feature_names))
        if column.categories is None:
            units[start], gain, taken[start] = column.unit
            values[:, start] *= gain
            norms[start] *= gain
        else:
            share = np.zeros(len(column.indicators))
            share[: len(column.categories)] = 1.0 / len(column.categories)
            taken[block] = share
            values[:, block] -= (W[:, block] @ share)[:, np.newaxis]
            squares = scale[block] ** 2
            norms[block] = np.sqrt((1.0 - 2.0 * share) * squares + share**2 @ squares)
        start = block.stop
    return values, norms, taken, units


def _unit(result: "SolverResult") -> tuple[str, str]:
    """Return the unit of the coefficients of a model, and the note on them."""
    noise, line = result.noise, result.calibration
    note = UNKNOWN if noise is None else PROVED if noise.proved else NOMINAL
    if line is not None:
        named = {"log odds": LOG_ODDS, "logits": LOGITS, "log mean": LOG_MEANS}
        note = f"{named[line.name]}; {note}"
    unit = "target" if result.classes is None else "margin"
    unit = "log odds" if result.predicts_probabilities and result.output_loss != "probit" else unit
    unit = line.name if isinstance(line, LogMeans) else unit
    if isinstance(result.oracle, DiscreteHazards):
        unit, ratios = result.oracle.unit
        note = f"{LOG_HAZARDS.format(ratios)}; {note}"
    return unit, note


def coefficients(result: "SolverResult", most: int | None = None) -> Coefficients:
    """Return the coefficients of a model as `SolverResult.coefficients` describes them.

    There are at most so many for each class, beside its intercept.
    """
    oracle, transform = result.oracle, result.transform
    if oracle is not None and not has_coefficients(oracle):
        raise ValueError(f"model must be linear to have coefficients, got {oracle.name!r}")
    ((W, constants),) = layers(result)
    n = transform.n_features
    scale = np.ones(n) if transform.scale is None else np.asarray(transform.scale)
    values, norms, taken, units = _by_columns(result, W, scale)
    constants = constants + W @ taken
    shift = np.zeros(n) if transform.shift is None else np.asarray(transform.shift)
    of_constant = float(np.linalg.norm(taken * scale + shift))
    noise, line = result.noise, result.calibration
    odds = 1.0
    if line is not None:
        odds, constants = line.factor, line.uncut(constants)
    size = np.abs(values).max(axis=0)
    ratio = np.divide(size, norms, out=np.zeros(n), where=norms > 0.0)
    order = np.argsort(-ratio, kind="stable")[:most].tolist()
    names = result.feature_names
    shown = [units.get(j, f"x{j}" if names is None else names[j]) for j in order]
    prefixes = [""] if len(W) == 1 else [f"{label}: " for label in np.asarray(result.classes)]
    rows = []
    if isinstance(oracle, AllThreshold):
        between = zip(pairwise(np.asarray(result.classes).tolist()), -constants, strict=True)
        rows = [Coefficient(f"{low} | {high}", float(at), None) for (low, high), at in between]
        constants = np.zeros(1)
    for prefix, row, constant in zip(prefixes, values, constants.tolist(), strict=True):
        std = None
        if noise is not None:
            std = odds * math.hypot(noise.intercept_std, noise.std * of_constant)
        if constant or std or transform.intercept:
            rows.append(Coefficient(f"{prefix}{INTERCEPT}", constant, std))
        for j, name in zip(order, shown, strict=True):
            std = None if noise is None else odds * noise.std * float(norms[j])
            rows.append(Coefficient(f"{prefix}{name}", odds * float(row[j]), std))
    unit, note = _unit(result)
    return Coefficients(rows, note, unit, len(W) * (n - len(order)))
