"""Records as the command line reads them, and their public parameters."""

import argparse
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import datasets
from dpkern._numbers import parse_number, positive
from dpkern.cli._output import Line, remark
from dpkern.data import Column, Schema, SiloData, is_sparse
from dpkern.data.column import RowError, outside_text, refuse_outside
from dpkern.data.partition import NUMBERS
from dpkern.data.validation import Matrix, far_apart, has_width_read
from dpkern.io import Table, read_feature_range, read_frame, read_table
from dpkern.io.csv_text import Frame, layout_of, line_of
from dpkern.io.table import parse_labels
from dpkern.solvers import SolverResult

ROW_BOUND = 1.0
SPLIT = "even"
_LISTED_NAMES = 3
COLUMN_OPTIONS = ("target", "silo_column", "person", "header", "sep")
_SAID_BY_SCHEMA = (
    *(*COLUMN_OPTIONS, "feature_range", "task", "classes"),
    *("row_bound", "target_bound", "no_intercept", "n_features", "sparse"),
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Source:
    """Records as read, and the public parameters of their columns."""

    name: str
    table: Table
    feature_range: tuple[Array, Array] | None = None
    schema: Schema | None = None
    #: weights and margin offsets of the records, as options of `SiloData`, and their bound
    beside: Mapping[str, Any] = field(default_factory=dict)


def read_source(arguments: argparse.Namespace) -> Source:
    """Return the records of the file, or of the Wisconsin set without a file."""
    if arguments.schema is not None:
        return _described_source(arguments)
    if arguments.data is None:
        given = ("feature_range", "target", "silo_column", "person", "n_features", "sparse")
        if any(getattr(arguments, name) is not None for name in given):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"{options} need DATA")
        table, known = datasets.wisconsin_table(), datasets.wisconsin_feature_range()
        return Source("Wisconsin diagnostic set", table, known)
    layout = {"n_features": arguments.n_features, "sparse": arguments.sparse}
    classes = None if arguments.classes is None else parse_labels(arguments.classes)
    table = read_table(arguments.data, **columns(arguments), **layout, classes=classes)
    if has_width_read(table.X):
        remark(
            "no --n-features was given: the largest index in the records, "
            f"{table.X.shape[1]}, is taken as the number of features"
        )
    if arguments.target is None and table.target is not None:
        remark(f"no --target was given: the last column, {table.target!r}, is taken as the target")
    bounds: tuple[Array, Array] | None = None
    if arguments.feature_range is not None:
        bounds = read_feature_range(arguments.feature_range, feature_names=table.feature_names)
        if len(bounds[0]) != table.X.shape[1]:
            raise ValueError(
                f"{arguments.feature_range} has {len(bounds[0])} rows, and {arguments.data} "
                f"{table.X.shape[1]} features; each needs a row"
            )
        check_range(arguments.data, table, *bounds)
    if bounds is None and far_apart(table.X):
        # A bit of the records without noise: it goes to their holder, not beside the certificate.
        remark(f"WARNING: {_scale_hint(table)}")
    return Source(Path(arguments.data).name, table, bounds)


def _described_source(arguments: argparse.Namespace) -> Source:
    """Return the records of the file, encoded by the schema."""
    refuse_options(arguments, _SAID_BY_SCHEMA, "--schema says it")
    if arguments.data is None:
        raise ValueError("--schema needs DATA")
    schema = Schema.load(arguments.schema)
    if schema.target is None:
        raise ValueError(f'{arguments.schema} must hold a column of kind "target", got none')
    X, frame = read_described(arguments.data, schema)
    with naming(arguments.data, schema):
        y = schema.labels(frame)
        groups = None if schema.silo is None else schema.groups(frame)
        person = None if schema.person is None else schema.persons(frame)
        beside = schema.beside(frame)
    table = Table(X, y, groups, schema.feature_names, schema.target.name, person)
    return Source(Path(arguments.data).name, table, schema=schema, beside=beside)


def read_described(path: str, schema: Schema) -> tuple[Matrix, Frame]:
    """Return the encoded features of a file, and its columns; say what is outside the schema."""
    frame = read_frame(path, schema)
    with naming(path, schema):
        schema.check_values(frame, lambda text: remark(f"{path} has {text}"))
        return schema.encode(frame, sparse_output=schema.sparse), frame


def check_range(path: str, table: Table, lo: Array, hi: Array) -> None:
    """Say which columns have values out of their range; raise where most of one are.

    Of sparse features these are among the values that are stored.
    """
    X: Any = table.X
    if is_sparse(X):
        stored = np.bincount(X.indices, minlength=X.shape[1])
        bad = (X.data < lo[X.indices]) | (X.data > hi[X.indices])
        outside = np.bincount(X.indices[bad], minlength=X.shape[1])
    else:
        stored = np.full(X.shape[1], X.shape[0])
        columns_of = zip(X.T, lo, hi, strict=True)
        outside = np.array([np.count_nonzero((x < a) | (x > b)) for x, a, b in columns_of])
    names = table.feature_names or tuple(map(str, range(X.shape[1])))
    counts = {names[k]: (int(outside[k]), int(stored[k])) for k in np.flatnonzero(outside)}
    if text := outside_text(counts, {}):
        remark(f"{path} has {text}")
    with naming(path):
        for name, (found, of) in counts.items():
            k = names.index(name)
            refuse_outside(Column(name, "number", lo=lo[k], hi=hi[k]), found, of)


@contextmanager
def naming(path: str, schema: Schema | None = None) -> Iterator[None]:
    """Name the file in what is said of its records, and lines for rows, by the schema's layout."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if schema is not None and isinstance(error, RowError):
            text = error.placed(f"line {line_of(path, layout_of(schema), error.row)}")
        raise ValueError(f"{path}{text[1:] if text.startswith('X ') else f': {text}'}") from error


def refuse_options(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        given = getattr(arguments, name, None)  # commands have some of them
        if given is not None and (given is not False or name in ("header", "sparse")):
            flag = f"--{'no-' if given is False else ''}{name.replace('_', '-')}"
            option = name.upper() if name in ("model", "data") else flag
            raise ValueError(f"{option} was given, and {why}")


def columns(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the reader's arguments that the user has given."""
    given = {name: getattr(arguments, name) for name in COLUMN_OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def _scale_hint(table: Table) -> str:
    names, n_features = table.feature_names, table.X.shape[1]
    rows = ["lo,hi", "LO,HI"] if names is None else ["name,lo,hi"]
    rows += [f"{name},LO,HI" for name in (names or ())[:_LISTED_NAMES]]
    if n_features >= len(rows):
        rows.append(f"... and {n_features + 1 - len(rows)} rows more")
    return (
        "the largest values of the columns differ by more than 100 x, and no range was stated: "
        "small columns will hardly count, and the model may learn nothing. State public bounds "
        "(from a handbook or the form, not from these records) in a file and pass it:\n"
        "    --feature-range ranges.csv\n"
        "which holds a row for each feature:\n"
        + "\n".join(f"    {row}" for row in rows)
        + "\n(this check read the records without noise: a non-private diagnostic)"
    )


def silo_data(source: Source, rows: Array | None, arguments: argparse.Namespace) -> SiloData:
    """The given rows of the source, all of them by default, held by silos."""
    X, y, groups = source.table.X, source.table.y, source.table.groups
    person = source.table.person
    if rows is not None:
        X, y = X[rows], y[rows]
        groups = None if groups is None else groups[rows]
        person = None if person is None else person[rows]
    options: Any
    if source.schema is not None:
        intercept = False if _has_constants(arguments, source.schema.task) else None
        options = dict(source.schema.options(intercept=intercept))
    else:
        classes, task = arguments.classes, arguments.task
        if classes is not None and len(classes) > 2 and task is None:
            task = "multiclass"
        if classes is not None and y.dtype.kind not in "US":
            classes = parse_labels(classes)
        options = {
            "intercept": not (arguments.no_intercept or _has_constants(arguments, task)),
            "row_bound": _row_bound(source, arguments),
            "target_bound": arguments.target_bound,
            "feature_range": source.feature_range,
            "task": task,
            "classes": classes,
            "feature_names": source.table.feature_names,
        }
    options |= {"person": person, "max_records": arguments.max_records}
    options |= {
        name: value[rows] if rows is not None and isinstance(value, np.ndarray) else value
        for name, value in source.beside.items()
    }
    if groups is not None:
        for option, given in (("--silos", arguments.silos), ("--split", arguments.split)):
            if given is not None:
                raise ValueError(f"{option} was given, and the data say whose record it is")
        return SiloData.from_groups(X, y, groups, **options)
    how: Any
    how, equals, number = (arguments.split or SPLIT).partition("=")
    if bool(equals) != (how in NUMBERS):
        takes = "takes no number"
        if how in NUMBERS:
            takes = f"needs its {NUMBERS[how]}, as in {how}={0.5 if how == 'mixed' else 2}"
        raise ValueError(f"--split is {arguments.split!r}; {how!r} {takes}")
    if equals:
        try:
            options[NUMBERS[how]] = parse_number(number)
        except ValueError:
            raise ValueError(f"--split is {arguments.split!r}; {number!r} is no number") from None
    m = arguments.silos or arguments.default_silos
    if m > len(y):
        raise ValueError(f"--silos must be at most the {len(y)} training records, got {m}")
    return SiloData.split(X, y, m, how=how, seed=arguments.seed, **options)


def _has_constants(arguments: argparse.Namespace, task: str | None) -> bool:
    """Return whether the model has constants of its own, beside which there is no intercept."""
    return task == "multiclass" or getattr(arguments, "hidden", None) is not None


def _row_bound(source: Source, arguments: argparse.Namespace) -> float | None:
    if arguments.row_bound is not None:
        return positive("row_bound", arguments.row_bound, or_infinite=True)
    ranged = source.feature_range is not None and not is_sparse(source.table.X)
    return None if ranged else ROW_BOUND  # None is the bound of rows within the range


def read_test(arguments: argparse.Namespace, table: Table, data: SiloData) -> tuple[Matrix, Array]:
    """Return the records of `--test`, which must be another file than the training records."""
    if arguments.data is not None and os.path.samefile(arguments.test, arguments.data):
        raise ValueError(
            f"--test must be other records than DATA, got {arguments.test} for both: a score on "
            "the records of the fit is too good, and has no noise"
        )
    if data.schema is not None:
        X, frame = read_described(arguments.test, data.schema)
        with naming(arguments.test, data.schema):
            return X, data.schema.labels(frame)
    test = read_labelled(
        arguments.test,
        arguments,
        n_features=table.X.shape[1],
        classes=data.classes,
        feature_names=table.feature_names,
    )
    if data.feature_range is not None:
        check_range(arguments.test, test, *data.feature_range)
    return test.X, test.y


def read_labelled(
    path: str, arguments: argparse.Namespace, *, classes: Array | None, **layout: Any
) -> Table:
    """Return records whose labels must be those of a model, or numbers."""
    table = read_table(path, **columns(arguments), classes=classes, **layout)
    if not labels_fit(table.y, classes):
        kind = "numbers" if classes is None else "labels of the training data"
        raise ValueError(f"{path}: its target holds other values than {kind}")
    return table


def check_model_range(path: str, X: Matrix, model: SolverResult) -> None:
    """Check values by the range that a model's map has, with room for its rounding."""
    scale, shift = model.transform.scale, model.transform.shift
    if scale is not None and shift is not None:
        centre, half = -np.divide(shift, scale), (1.0 + 1e-9) / np.asarray(scale)
        table = Table(X, np.empty(0), feature_names=model.feature_names)
        check_range(path, table, centre - half, centre + half)


def labels_fit(y: Array, classes: Array | None) -> bool:
    """Return whether y has real numbers (regression), or the two labels only."""
    if classes is None:
        return y.dtype.kind in "fiu"
    same_kind = (y.dtype.kind in "US") == (classes.dtype.kind in "US")
    return same_kind and bool(np.isin(y, classes).all())


def data_lines(source: Source, data: SiloData, arguments: argparse.Namespace) -> list[Line]:
    least, most = int(data.sizes.min()), int(data.sizes.max())
    sizes = f"{least}" if least == most else f"{least} to {most}"
    origin = "as the data say"
    if data.silo_names is None:
        origin = f"{arguments.split or SPLIT} split, seed {arguments.seed}"
    sparse = data.is_sparse
    features = f"{data.n_features} {'sparse ' if sparse else ''}features"
    features += " and an intercept" if data.intercept else ""
    labels, edges = f": {data.task}", None if data.schema is None else data.schema.intervals
    if edges is not None:
        times = f"{len(edges) - 1} intervals from {edges[0]:g} to {edges[-1]:g}"
        labels = f": times to an event, {times}"
    elif data.classes is not None:
        shown = [str(label) for label in data.classes[:_LISTED_NAMES]]
        more = len(data.classes) - len(shown)
        labels += f", labels {', '.join(shown[:-1])} and {shown[-1]}"
        if more:
            labels = f": {data.task}, labels {', '.join(shown)} and {more} more"
    bound = f"row bound {data.row_bound:g}"
    if math.isfinite(data.target_bound):
        bound += f", target bound {data.target_bound:g}"
        if data.transform.target_middle:
            bound += f" around {data.transform.target_middle:g}"
    ranged = "none stated" if data.feature_range is None else "stated"
    if data.schema is not None:
        ranged = "and categories of the schema"
    if sparse and data.feature_range is not None:
        ranged += " (scale only, so that 0 stays 0: the data are sparse)"
    lines = [
        ("data", f"{source.name}, {data.n} training records, {features}"),
        ("silos", f"{data.m} of {sizes} records ({origin})"),
        ("target", f"{source.table.target or 'y'}{labels}"),
        ("bounds", f"{bound}, feature range {ranged}"),
    ]
    if data.persons is not None:
        what = f"at most {data.persons.max_records} records of a person, the first in the file"
        lines.insert(1, ("persons", what))
    return lines
