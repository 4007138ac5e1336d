"""Standard errors of a released model: its covariance, and the table of its coefficients."""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Union

import numpy as np
import scipy

from dpkern import _html
from dpkern._numbers import aligned, did_you_mean, probability, real
from dpkern._typing import FloatArray
from dpkern.data import Schema, SiloData, Transform
from dpkern.models.losses import LOSSES, Likelihood, Logistic
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.privacy.guarantees.selection import Selection
from dpkern.solvers.base.coefficients import INTERCEPT, save_table

if TYPE_CHECKING:  # which imports this module
    from dpkern.solvers.base.result import SolverResult

#: Arrays of a file with standard errors, beside whether records had weights; those of silos.
ARRAYS = (
    *("covariance", "noise", "lost"),
    *("silo_models", "silo_covariance", "silo_noise", "silo_lost"),
)
# The share of a variance from directions that the noise hides beyond which there is none.
_LARGEST_LOST = 0.5
#: What weights of records mean for estimates.
WEIGHTED = (
    "records far from the others have weights below 1, by their features alone: where the model is "
    "wrong, what is estimated is that of the weighted records"
)
#: What the exponential of a coefficient is, by the loss.
RATIOS = {name: kind.ratio for name, kind in LOSSES.items() if issubclass(kind, Likelihood)}
RATIOS |= dict.fromkeys((AllThreshold.name, CumulativeLogit.name), Logistic.ratio)
_ORDERED = (
    "estimates minimise the sum of logistic losses at all thresholds, not the likelihood of "
    "proportional odds, whose coefficients they are where these hold"
)
_BELOW = "the ratio of a threshold is the odds of a class below it"
_PENALISED = "l2 draws estimates towards 0: intervals are for the penalised coefficients"
_REFUSED = (
    "no standard error where noise hides in which direction the records differ, or where the last "
    "step was long: take more records, a larger budget or more rounds, such as rounds=8, and leave "
    "out columns that others determine or hardly anybody has, such as NAME_missing of a column "
    "with hardly a gap"
)

_UNCERTAIN_FIRST = (
    "differences of {column} are from {first}, of which little is known, by few records or few "
    "events: list another level first in the schema, such as {other}, and the standard errors are "
    "smaller"
)
# How many times the standard errors of differences from the best level are those from the first.
_MUCH_LARGER = 2.0


@dataclass(frozen=True, eq=False)
class Inference:
    """The covariance of a model w, released with it.

    Attributes
    ----------
    covariance : ndarray, shape (d, d)
        Of w, by the sampling of records and by the noise.
    noise : ndarray, shape (d, d)
        The noise's part.
    lost : ndarray, shape (d, d)
        The part of directions of w of which the noise lets nothing be known.
    weighted : bool
        Whether a record may have a weight below 1.
    silos : tuple of (ndarray, Inference)
        The models of silos, of which w is a mean, with their covariances; empty for one of all
        records.
    """

    covariance: FloatArray
    noise: FloatArray
    lost: FloatArray
    weighted: bool
    silos: tuple[tuple[FloatArray, "Inference"], ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Inference) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The covariances."""
        return self.covariance, self.noise, self.lost

    @property
    def _identity(self) -> tuple[object, ...]:
        silos = ((w.tobytes(), found) for w, found in self.silos)
        return *(part.tobytes() for part in self.parts), self.weighted, *silos

    @property
    def arrays(self) -> dict[str, FloatArray]:
        """All but `weighted`, for a file."""
        found = dict(zip(ARRAYS, self.parts, strict=False))
        if self.silos:
            models, each = zip(*self.silos, strict=True)
            stacks = zip(*(one.parts for one in each), strict=True)
            found |= zip(ARRAYS[3:], map(np.array, (models, *stacks)), strict=True)
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any], weighted: bool) -> Self:
        """Return the covariances that `arrays` hold."""
        V, noise, lost, *of_silos = [arrays[name] for name in ARRAYS if name in arrays]
        each = tuple((w, cls(A, B, C, weighted)) for w, A, B, C in zip(*of_silos, strict=True))
        return cls(V, noise, lost, weighted, each)

    def variances(self, M: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the variances of M w, and of the noise in it; NaN where there are none."""
        total, noise, lost = (np.maximum(np.sum((M @ A) * M, axis=1), 0.0) for A in self.parts)
        hidden = ~(lost <= _LARGEST_LOST * total)
        return np.where(hidden, np.nan, total), np.where(hidden, np.nan, noise)


class Estimate(NamedTuple):
    """A coefficient, or a contrast of several, with its interval."""

    name: str
    estimate: float
    std_error: float  #: NaN, as what follows, where the noise hides it
    noise_std: float
    z: float
    p_value: float
    low: float
    high: float


class Summary(tuple[Estimate, ...]):
    """Estimates in the units of the records, with standard errors and intervals.

    Attributes
    ----------
    level : float
        Probability of the intervals.
    ratios : str
        What exp(estimate) is, such as "odds ratio"; empty where it is none.
    notes : tuple of str
    steps : dict
        By how much a number changes in a forest plot, by its name: a power of ten in the unit of
        the records, up to a quarter of its declared range. Empty for contrasts.
    constants : tuple of str
        Names of the intercept, or of the thresholds of ordered classes.
    """

    level: float
    ratios: str
    notes: tuple[str, ...]
    steps: Mapping[str, float]
    constants: tuple[str, ...]
    _fields: tuple[str, ...] = Estimate._fields

    def __new__(
        cls,
        rows: Iterable[Estimate],
        level: float,
        ratios: str,
        notes: tuple[str, ...],
        steps: Mapping[str, float],
        constants: tuple[str, ...] = (INTERCEPT,),
    ) -> "Summary":
        self = super().__new__(cls, rows)
        self.level, self.ratios, self.notes, self.steps = level, ratios, notes, steps
        self.constants = constants
        return self

    def __reduce__(self) -> tuple[object, ...]:
        given = self.level, self.ratios, self.notes, self.steps, self.constants
        return type(self), (tuple(self), *given)

    @property
    def has_intervals(self) -> bool:
        """Whether a coefficient beside the constants has an interval."""
        return any(math.isfinite(row.std_error) for row in self if row.name not in self.constants)

    def to_frame(self) -> Any:
        """Return the table as a pandas frame, with ratios and their intervals where there are any.

        The columns are name, estimate, std_error, noise_std, z, p_value, low and high, for models
        of silos also silos, q, q_p_value, i_squared and tau, then odds_ratio, odds_ratio_low and
        odds_ratio_high, or rate_ratio and so on, and the level of the intervals. Raises ImportError
        where pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self._rows(), columns=self._columns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the columns of `to_frame`, as CSV or JSON by the path's suffix.

        What is hidden by the noise is blank, or null. JSON has the notes too.
        """
        rows = [[*row[:1], *map(_finite, row[1:])] for row in self._rows()]
        save_table(path, self._columns(), rows, "estimates", notes=list(self.notes))

    def _columns(self) -> list[str]:
        name = self.ratios.replace(" ", "_")
        return [*self._fields, *([name, f"{name}_low", f"{name}_high"] if name else []), "level"]

    def _rows(self) -> list[list[Any]]:
        rows = []
        for row in self:
            ratios = map(_exp, (row.estimate, row.low, row.high)) if self.ratios else ()
            rows.append([*row, *ratios, self.level])
        return rows

    def __str__(self) -> str:
        lines = aligned([self._head(), *map(self._cells, self)], right=range(1, 12))
        return "\n".join([*lines, *(f"({note})" for note in self.notes)])

    def _repr_html_(self) -> str:
        rows = map(self._cells, self)
        return _html.table("Estimates", rows, head=self._head(), note="; ".join(self.notes))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Return a forest plot, in which what the noise adds to an interval is drawn apart.

        Ratios, where there are any, are on a logarithmic axis. Constants are left out, and
        coefficients of numbers are for `steps`, which their labels say. It is written as a PNG
        where a path is given.

        Raises
        ------
        ValueError
            When no coefficient has an interval.
        ImportError
            Where matplotlib is not installed.
        """
        from dpkern.plotting import ForestRow, plot_forest

        def ratio(value: float) -> float:
            return _exp(value) if self.ratios else value

        if len(self) and not self.has_intervals:
            raise ValueError(f"a forest plot needs a coefficient with an interval: {_REFUSED}")
        rows = []
        for row in self:
            if row.name not in self.constants:
                step = self.steps.get(row.name)
                name, by = (row.name, 1.0) if step is None else (f"{row.name}, per {step:g}", step)
                without = math.sqrt(max(row.std_error**2 - row.noise_std**2, 0.0))
                half = 0.5 * (row.high - row.low) * without / row.std_error
                shown = [ratio(by * value) for value in (row.estimate, row.low, row.high)]
                known = math.isfinite(row.std_error)
                text = f"{shown[0]:.3g} ({shown[1]:.3g} to {shown[2]:.3g})" if known else "-"
                rows.append(
                    ForestRow(
                        name,
                        shown[0],
                        whole=(shown[1], shown[2]),
                        without=(
                            ratio(by * (row.estimate - half)),
                            ratio(by * (row.estimate + half)),
                        ),
                        text=text,
                    )
                )
        axis, ratios = self.ratios or "coefficient", bool(self.ratios)
        return plot_forest(rows, path, axis=axis, level=self.level, ratios=ratios)

    def _head(self) -> tuple[str, ...]:
        interval = f"{100 * self.level:g} % interval"
        ratio = (self.ratios,) if self.ratios else ()
        return "", "estimate", "std. error", "of noise", "z", "p", *ratio, interval

    def _cells(self, row: Estimate) -> tuple[str, ...]:
        low, high = row.low, row.high
        shown = [f"{row.estimate:.4g}", f"{row.std_error:.3g}", f"{row.noise_std:.2g}"]
        shown += [f"{row.z:.2f}", "< .0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"]
        if self.ratios:
            low, high = _exp(low), _exp(high)
            shown.append(f"{_exp(row.estimate):.4g}")
        shown.append(f"{low:.4g} to {high:.4g}")
        if math.isnan(row.std_error):
            shown[1:5] = ["-"] * 4
            shown[-1] = "-"
        return row.name, *shown


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _exp(value: float) -> float:
    return math.inf if value >= 700.0 else math.exp(value)


def public_combinations(data: SiloData) -> FloatArray:
    """Return combinations of columns that are 0 in every row by the schema, shape (d, k).

    The indicators of a category sum to the constant.
    """
    columns, constants = constant_combinations(data)
    columns = columns / constants
    if data.intercept:
        columns[-1] = -1.0
    else:  # then the sums of two categories are the same
        columns = columns[:, 1:] - columns[:, :1]
    return columns


def constant_combinations(data: SiloData) -> tuple[FloatArray, FloatArray]:
    """Return combinations of features that are constant by the schema, (d, k), and constants."""
    blocks, (scale, shift) = _categories(data.schema), _affine(data.transform)
    columns, constants = np.zeros((data.d, len(blocks))), np.ones(len(blocks))
    for k, block in enumerate(blocks):
        columns[block, k] = 1.0 / scale[block]
        constants[k] += float(np.sum(shift[block] / scale[block]))
    return columns, constants


def _categories(schema: Schema | None) -> list[slice]:
    """Return the places of the features of categories."""
    blocks, start = [], 0
    for column in () if schema is None else schema.features:
        stop = start + len(column.feature_names)
        if column.categories is not None:
            blocks.append(slice(start, stop))
        start = stop
    return blocks


def _affine(transform: Transform) -> tuple[FloatArray, FloatArray]:
    n = transform.n_features
    scale = np.ones(n) if transform.scale is None else np.asarray(transform.scale)
    shift = np.zeros(n) if transform.shift is None else np.asarray(transform.shift)
    return scale, shift


def in_units(result: Union["SolverResult", SiloData]) -> tuple[list[str], FloatArray]:
    """Return names and M, with which M w are the coefficients in the data's units.

    The coefficient of a category is its difference from the first one, and the intercept is that of
    a record with the first of every category, to which the middle of targets is to be added.
    Ordered classes have thresholds in its place, the log odds of such a record for a class below.
    """
    n, schema = result.transform.n_features, result.schema
    scale, shift = _affine(result.transform)
    names = [f"x{j}" for j in range(n)]
    names = names if result.feature_names is None else list(result.feature_names)
    M = np.eye(result.transform.d)[:n] * scale[:, np.newaxis]
    constant, start, left_out = np.append(shift, [1.0] * result.transform.intercept), 0, []
    for column in () if schema is None else schema.features:
        block = slice(start, start + len(column.feature_names))
        if column.categories is None:
            names[start], gain, taken = column.unit
            constant = constant + taken * M[start]
            M[start] *= gain
        else:
            constant = constant + M[start]
            M[block] -= M[start].copy()
            first = column.indicators[0]
            names[block] = [f"{column.name}: {one}, for {first}" for one in column.indicators]
            left_out.append(start)
        start = block.stop
    kept = np.setdiff1d(np.arange(n), left_out)
    constants = constants_of(result)
    if constants == (INTERCEPT,):
        M = np.vstack([constant, M[kept]])
    else:
        T = len(constants)
        thresholds = np.hstack([np.tile(-constant, (T, 1)), _unit_of(result) * np.eye(T)])
        M = np.vstack([thresholds, np.hstack([M[kept], np.zeros((len(kept), T))])])
    return [*constants, *(names[j] for j in kept)], M


def constants_of(result: Union["SolverResult", SiloData]) -> tuple[str, ...]:
    """Return the name of the intercept, or those of the thresholds of ordered classes."""
    if not isinstance(getattr(result, "oracle", None), AllThreshold):
        return (INTERCEPT,)
    assert result.classes is not None
    return tuple(f"{low} | {high}" for low, high in pairwise(result.classes.tolist()))


def _unit_of(result: Any) -> float:
    unit: float = result.oracle.stated_unit
    return unit


def in_rows(
    result: "SolverResult", contrasts: Mapping[str, Mapping[str, float]] | None
) -> tuple[list[str], FloatArray, FloatArray, FloatArray]:
    """Return names, estimates, variances and those of the noise, of coefficients or contrasts."""
    found = result.inference
    if found is None and isinstance(result.privacy.guarantee, Selection):
        raise ValueError(
            "a model of a selection has no standard errors: intervals after a selection are not "
            "covered; choose the settings before, by public facts, and fit with inference=True"
        )
    if found is None:
        raise ValueError(
            f"a model of {result.solver} has no standard errors: fit with inference=True "
            "(dpkern fit --inference)"
        )
    names, M = in_units(result)
    offset = np.zeros(len(names))
    offset[0] = result.transform.target_middle
    if contrasts is not None:
        if not isinstance(contrasts, Mapping):
            raise TypeError(f"contrasts must map labels to coefficients, got {contrasts!r}")
        rows = np.zeros((len(contrasts), len(names)))
        for i, (label, factors) in enumerate(contrasts.items()):
            if not isinstance(label, str):
                raise TypeError(f"contrasts must have text as labels, got {label!r}")
            if not isinstance(factors, Mapping) or not factors:
                raise TypeError(
                    f"contrasts[{label!r}] must map names of coefficients to factors, "
                    f"got {factors!r}"
                )
            for name, factor in factors.items():
                if name not in names:
                    close = did_you_mean(str(name), names) or f"; there are {', '.join(names)}"
                    raise ValueError(f"contrasts[{label!r}] names no coefficient {name!r}{close}")
                where = f"contrasts[{label!r}][{name!r}]"
                if not math.isfinite(value := real(where, factor)):
                    raise ValueError(f"{where} must be finite, got {value!r}")
                rows[i, names.index(name)] = value
        names, M, offset = list(contrasts), rows @ M, rows @ offset
    return names, M @ result.w + offset, *found.variances(M)


def with_intervals(
    names: Iterable[str],
    estimates: FloatArray,
    variances: FloatArray,
    noises: FloatArray,
    level: float,
) -> list[Estimate]:
    """Return estimates with their z, p-values and intervals of this level."""
    errors = np.sqrt(variances)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = estimates / errors
    p = 2.0 * scipy.special.ndtr(-np.abs(z))
    half = float(scipy.special.ndtri(0.5 + 0.5 * level)) * errors
    columns = (estimates, errors, np.sqrt(noises), z, p, estimates - half, estimates + half)
    each = zip(names, *(column.tolist() for column in columns), strict=True)
    return [Estimate(*row) for row in each]


def notes_on(results: Iterable["SolverResult"], rows: Iterable[Estimate]) -> tuple[str, ...]:
    """Return what a reader of the estimates needs to know."""
    results = list(results)
    notes = [_ORDERED] if results[0].loss == AllThreshold.name else []
    notes += [_BELOW] if isinstance(results[0].oracle, AllThreshold) else []
    notes += [_PENALISED] if any(one.parameters.get("l2") for one in results) else []
    weighted = (one.inference is not None and one.inference.weighted for one in results)
    notes += [WEIGHTED] if any(weighted) else []
    notes += [_REFUSED] if any(math.isnan(row.std_error) for row in rows) else []
    return tuple(notes)


def _of_differences(A: FloatArray) -> FloatArray:
    """Return the variances of the differences of what has this covariance, of each pair."""
    diagonal = np.diag(A)
    variances: FloatArray = np.maximum(diagonal[:, np.newaxis] + diagonal - 2.0 * A, 0.0)
    return variances


def _notes_on_levels(result: "SolverResult") -> list[str]:
    """Return what to do about categories of whose first level too little is known."""
    found, notes, start = result.inference, list[str](), 0
    assert found is not None  # of which there are rows
    scale, _ = _affine(result.transform)
    for column in () if result.schema is None else result.schema.features:
        k, first = len(column.feature_names), start
        start += k
        if column.categories is None or k < 3:
            continue
        own = np.zeros((k, len(result.w)))
        own[:, first:start] = np.diag(scale[first:start])
        total, _, lost = (_of_differences(own @ A @ own.T) for A in found.parts)
        V = np.where(lost <= _LARGEST_LOST * total, total, math.inf)
        np.fill_diagonal(V, math.inf)
        # The lower median: where one level of three is rare, one of two differences is uncertain.
        typical = np.sort(V, axis=1)[:, (k - 2) // 2]
        best = int(np.argmin(typical))
        if V[0].min() > _MUCH_LARGER**2 * typical[best]:  # all differences from it are uncertain
            levels = {"first": column.indicators[0], "other": column.indicators[best]}
            notes.append(_UNCERTAIN_FIRST.format(column=column.name, **levels))
    return notes


def summary(
    result: "SolverResult", level: float, contrasts: Mapping[str, Mapping[str, float]] | None
) -> Summary:
    """Return the estimates as `SolverResult.summary` describes them."""
    level = probability("level", level)
    rows = with_intervals(*in_rows(result, contrasts), level)
    steps = plot_steps(result) if contrasts is None else {}
    notes, constants = notes_on([result], rows), constants_of(result)
    notes += tuple(_notes_on_levels(result)) if contrasts is None else ()
    return Summary(rows, level, RATIOS.get(result.loss, ""), notes, steps, constants)


def plot_steps(result: "SolverResult") -> dict[str, float]:
    """Return by how much numbers change in a plot; 1 where no range was declared, or of a log."""
    if result.schema is None:
        return dict.fromkeys(in_units(result)[0][len(constants_of(result)) :], 1.0)
    steps = {}
    for column in result.schema.features:
        if column.categories is None:
            name, gain, _ = column.unit
            quarter = 0.5 / gain  # of a range that is mapped to [-1, 1]
            steps[name] = (
                10.0 ** math.floor(math.log10(quarter)) if column.scale == "linear" else 1.0
            )
    return steps
