"""Reading Parquet, Feather and CSV files in blocks, by pyarrow."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

from numpy.typing import NDArray

from dpkern._warn import warn
from dpkern.data import Column, OutsideWarning, Schema, SiloData
from dpkern.data.blocks import BESIDE, Batch, data_in_blocks, read_ahead
from dpkern.data.column import (
    count_averaged,
    count_misspelt,
    count_outside,
    outside_text,
    refuse_outside,
)
from dpkern.data.frames import listed, side_by_side
from dpkern.data.validation import RowOptions

_FORMATS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "feather"),
    ".csv": "csv",
}
_ROWS = 1 << 17  # of a batch

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Part(NamedTuple):
    """A file as it was when it was first read."""

    path: str
    size: int
    modified: int  #: in nanoseconds

    @classmethod
    def of(cls, path: str) -> "Part":
        """Return the file as it is now."""
        found = os.stat(path)
        return cls(path, found.st_size, found.st_mtime_ns)


def read_parquet(
    paths: Paths,
    *,
    schema: Schema | None = None,
    target: str | None = None,
    silo: str | None = None,
    **options: Any,
) -> SiloData:
    """Return the records of files, which are read in blocks in every pass (docs/blocks.md).

    Parameters
    ----------
    paths : str, path, or sequence of them
        Files (.parquet, .feather, .arrow, .csv) of one format, and folders of such files, without
        those that begin with "." or "_", or are in such a folder.
    schema : Schema, optional
        Encodes the columns on the way, and says target and silo.
    target : str, optional
        Without a schema: the column of labels or targets. All columns but this and `silo` are
        features, which must be numbers: float32 if they all are.
    silo : str, optional
        Without a schema: the column that says the silo of a record.
    **options
        Without a schema: as for `SiloData`, from `intercept` on; `weight`, `margin_offset` and
        `person` are names of columns. With a schema that has a column of persons: `max_records`.

    Returns
    -------
    SiloData
        With sums of the bits of the same records in memory.

    Raises
    ------
    ImportError
        Without pyarrow (the extra ``dpkern[arrow]``).
    TypeError, ValueError
        When a file has other columns or values than stated; the message names it and the row group.

    Warns
    -----
    OutsideWarning
        Of values outside the schema, for the holder of the records.

    Examples
    --------
    >>> data = dpkern.read_parquet("visits/", schema=dpkern.Schema.load("visits.json"))
    >>> result = dpkern.solve("auto", data, budget=dpkern.Budget(epsilon=1.0, delta=1e-6))
    """
    source, stated = source_of(paths, schema, target, silo, options)
    data = data_in_blocks(SiloData, source, stated)
    source.tell_of_outside()
    return data


def source_of(
    paths: Paths,
    schema: Schema | None,
    target: str | None,
    silo: str | None,
    options: dict[str, Any],
) -> tuple["ArrowSource", RowOptions]:
    """Return the source of `read_parquet` and the options of its rows."""
    if not isinstance(schema, Schema | None):
        raise TypeError(
            f"schema must be a dpkern.Schema, got {type(schema).__name__}: Schema.load reads a file"
        )
    columns = {name: options.pop(name) for name in BESIDE if options.get(name) is not None}
    if schema is not None and columns:
        name = next(iter(columns))
        raise ValueError(f"{name} must be absent beside a schema, which says it")
    source = ArrowSource(paths, schema, target, silo, columns)
    if schema is None:
        return source, cast(RowOptions, options)
    stated = schema.options(intercept=options.pop("intercept", None))
    stated["max_records"] = options.pop("max_records", None)
    if schema.weight is not None:
        stated["max_weight"] = schema.weight.hi
    if options:
        raise ValueError(f"{listed(list(options))} must be absent beside a schema, which says it")
    source.counts = {}
    return source, stated


class ArrowSource:
    """Files whose batches are the blocks of a pass.

    Attributes
    ----------
    parts : tuple of Part
        The files, which must not change.
    counts : dict or None
        Numbers of values outside the schema, while they are counted.
    """

    def __init__(
        self,
        paths: Paths,
        schema: Schema | None,
        target: str | None,
        silo: str | None,
        beside: Mapping[str, str],
    ) -> None:
        for name, value in (("target", target), ("silo", silo)):
            if schema is not None and value is not None:
                raise ValueError(f"{name} must be None beside a schema, got {value!r}")
        files = list(_files(paths))
        formats = {_format_of(path) for path in files}
        if len(formats) != 1:
            found = " and ".join(sorted(formats)) or f"no file with {', '.join(_FORMATS)}"
            raise ValueError(f"paths must hold files of one format, got {found}")
        self._format = formats.pop()
        _require_once(files)
        self.parts = tuple(Part.of(path) for path in files)
        self._schema, self._target, self._silo = schema, target, silo
        self._beside = dict(beside)
        self.counts: dict[str, Outside] | None = None
        with _unreadable(files[0]):
            names = _arrow("dataset").dataset(files[0], format=self._format).schema.names
        if schema is None:
            if target not in names:
                raise ValueError(
                    f"target must be a column of {files[0]}, {listed(names)}, got {target!r}; or "
                    "pass a schema, which says it"
                )
            if silo is not None and silo not in names:
                folder = _in_folder(files[0], [silo])
                raise ValueError(f"silo must be a column of {files[0]}, got {silo!r}{folder}")
            for name, column in beside.items():
                if not isinstance(column, str) or column not in names:
                    got = repr(column) if isinstance(column, str) else type(column).__name__
                    raise ValueError(f"{name} must be a column of {files[0]}, got {got}")
            others = [cast(str, target), *([silo] if silo else []), *beside.values()]
            if len(set(others)) < len(others):
                raise ValueError(f"{listed(others)} must be distinct columns")
            self._features = [name for name in names if name not in others]
            self._columns = [*self._features, *others]
        else:
            if self._format == "csv" and schema.comment is not None:
                raise ValueError(
                    f"schema must have no comment for CSV in blocks, got {schema.comment!r}: "
                    "remove these lines from the files"
                )
            renamed = {new: old for old, new in schema.rename.items()}
            kinds = [c.name for c in schema.columns if c.kind != "ignore"]
            self._renamed = {renamed.get(name, name): name for name in kinds}
            self._columns = list(self._renamed)

    def __call__(self) -> Iterator[Batch]:
        """Yield the batches of a pass, of which a thread of its own reads the next."""
        for place, table in read_ahead(self._tables()):
            yield self._batch(place, table)

    def _tables(self) -> Iterator[tuple[str, Any]]:
        """Yield the places and record batches of all files, none of which has changed."""
        for part in self.parts:
            self._require_same(part)
            with _unreadable(part.path):
                yield from self._batches(part.path)
            self._require_same(part)

    def of_parts(self, parts: Sequence[Part]) -> "ArrowSource":
        """Return the source of some of the files."""
        some = object.__new__(type(self))
        counts: Any = None if self.counts is None else {}
        some.__dict__.update(self.__dict__ | {"parts": tuple(parts), "counts": counts})
        return some

    def _require_same(self, part: Part) -> None:
        try:
            same = Part.of(part.path) == part
        except FileNotFoundError:
            same = False
        if not same:
            raise ValueError(
                f"{part.path} must not change while its records are in use, got another size or "
                "time: read the files anew, for a new run"
            )

    def _batches(self, path: str) -> Iterator[tuple[str, Any]]:
        """Yield the places and record batches of a file."""
        if self._format != "parquet":
            dataset = _arrow("dataset").dataset(path, format=self._layout())
            self._require_columns(path, dataset.schema.names)
            how = {"columns": self._columns, "batch_size": _ROWS, "batch_readahead": 2}
            yield from ((path, table) for table in dataset.to_batches(**how))
            return
        with _arrow("parquet").ParquetFile(path) as file:
            self._require_columns(path, file.schema_arrow.names)
            for i in range(file.num_row_groups):
                how = {"columns": self._columns, "batch_size": _ROWS, "row_groups": [i]}
                for table in file.iter_batches(**how):
                    yield f"{path}, row group {i}", table

    def _layout(self) -> Any:
        """Return the format of files; CSV with a schema is text, in which 01 and 1 differ."""
        schema = self._schema
        if schema is None or self._format != "csv":
            return self._format
        csv, text = _arrow("csv"), _arrow("lib").string()
        names = None if schema.header else [column.name for column in schema.columns]
        return _arrow("dataset").CsvFileFormat(
            parse_options=csv.ParseOptions(delimiter=schema.sep or ","),
            read_options=csv.ReadOptions(column_names=names),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(self._columns, text)),
        )

    def _require_columns(self, path: str, names: Sequence[str]) -> None:
        if absent := [name for name in self._columns if name not in names]:
            raise ValueError(
                f"{path} must have the columns that are read, got none of {listed(absent)}"
                f"{_in_folder(path, absent)}"
            )
        if more := [name for name in names if name not in self._columns and not self._schema]:
            raise ValueError(
                f"{path} must have the columns of the first file, got {listed(more)} too: drop "
                "them, or describe the columns by a dpkern.Schema"
            )

    def tables(self, schema: Schema) -> Iterator[dict[str, Any]]:
        """Yield the raw columns of a pass, by their names in the schema of the files."""
        if self._schema is None or self._schema.digest != schema.digest:
            raise ValueError("schema must be that by which the files were read, got another")
        return (self._raw(table) for _, table in self._tables())

    def _raw(self, table: Any) -> dict[str, Any]:
        pairs = zip(table.schema.names, table.columns, strict=True)
        return {self._renamed[name]: _values(column) for name, column in pairs}

    def _batch(self, place: str, table: Any) -> Batch:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        if self._schema is not None:
            raw = self._raw(table)
            try:
                return self._encoded(self._schema, raw, place)
            except (TypeError, ValueError) as error:
                kind = TypeError if isinstance(error, TypeError) else ValueError
                raise kind(f"{place}: {error}") from None
        features = [columns[name] for name in self._features]
        groups = None if self._silo is None else _values(columns[self._silo])
        X, names = _matrix(self._features, features, place), tuple(self._features)
        beside = {name: _values(columns[column]) for name, column in self._beside.items()}
        return Batch(X, _values(columns[self._target]), groups, place, names, beside)

    def _encoded(self, schema: Schema, raw: dict[str, Any], place: str) -> Batch:
        missing = frozenset(schema.missing)
        for column in schema.columns if self.counts is not None else ():
            if column.name in raw:
                self._count(column, raw[column.name], missing, place)
        groups = None if schema.silo is None else schema.groups(raw)
        X = schema.encode(raw, sparse_output=schema.sparse)
        beside = {name: values for name, values in schema.beside(raw).items() if name in BESIDE}
        if schema.person is not None:
            beside["person"] = schema.persons(raw)
        return Batch(X, schema.labels(raw), groups, place, schema.feature_names, beside)

    def _count(self, column: Column, values: Any, missing: frozenset[str], place: str) -> None:
        outside, present = count_outside(column, values, missing)
        assert self.counts is not None
        total = self.counts.setdefault(column.name, Outside())
        total.place = total.place or (place if outside else "")
        total.outside += outside
        total.present += present
        total.averaged += count_averaged(column, values, missing)
        total.misspelt += count_misspelt(column, values, missing) if outside else 0

    def add_counts(self, others: "dict[str, Outside]") -> None:
        """Add the counts of a source of other files."""
        assert self.counts is not None
        for name, other in others.items():
            total = self.counts.setdefault(name, Outside())
            total.place = total.place or other.place
            total.outside += other.outside
            total.present += other.present
            total.averaged += other.averaged
            total.misspelt += other.misspelt

    def tell_of_outside(self) -> None:
        """Warn the holder of the records of values outside the schema, or refuse most of them."""
        counts, self.counts = self.counts or {}, None
        for column in self._schema.columns if self._schema is not None else ():
            if (found := counts.get(column.name)) is not None:
                try:
                    refuse_outside(column, found.outside, found.present, found.misspelt)
                except ValueError as error:
                    raise ValueError(f"{found.place}: {error}") from None
        outside = {name: (c.outside, c.present) for name, c in counts.items() if c.outside}
        averaged = {name: c.averaged for name, c in counts.items() if c.averaged}
        if text := outside_text(outside, averaged):
            first = f"; the first in {counts[next(iter(outside))].place}" if outside else ""
            warn(f"the files have {text}{first}", OutsideWarning)


@dataclass
class Outside:
    """Numbers of a column's values: outside, not missing, averaged; and the first place of one.

    Those that are misspelt are outside by case or spaces alone.
    """

    outside: int = 0
    present: int = 0
    averaged: int = 0
    misspelt: int = 0
    place: str = ""


def _arrow(module: str) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError("files in blocks need pyarrow: pip install 'dpkern[arrow]'") from error


def _files(paths: Paths) -> Iterator[str]:
    """Yield the files of paths, those of a folder by their names, none of which is hidden."""
    single = isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable)
    given: list[Any] = [paths] if single else list(cast(Iterable[Any], paths))
    if others := [path for path in given if not isinstance(path, str | os.PathLike)]:
        kind = type(others[0]).__name__
        raise TypeError(f"paths must be names of files or folders, got {kind}")
    for path in map(Path, given):
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                hidden = any(part[0] in "._" for part in file.relative_to(path).parts)
                if file.suffix.lower() in _FORMATS and not hidden and file.is_file():
                    yield str(file)
        elif path.exists():
            yield str(path)
        else:
            raise FileNotFoundError(
                f"paths must hold files or folders, got {path}, which is none: pass a folder for a "
                "pattern; Dask reads addresses such as s3:// (docs/blocks.md)"
            )


def _in_folder(path: str, names: Sequence[str]) -> str:
    """Return the cure for columns that are in the names of folders, such as site=a."""
    if not any(part.startswith(f"{name}=") for part in Path(path).parts for name in names):
        return ""
    return ", but a folder of this name: write it into the files as a column"


def _require_once(files: Sequence[str]) -> None:
    """Raise ValueError for a file that is named twice: its records would count twice."""
    seen: dict[tuple[int, int], str] = {}
    for path in files:
        found = os.stat(path)
        file = found.st_dev, found.st_ino
        if file in seen:
            raise ValueError(
                f"paths must hold every file once, got {path}, which is {seen[file]}: its records "
                "would count twice"
            )
        seen[file] = path


@contextmanager
def _unreadable(path: str) -> Iterator[None]:
    """Say what pyarrow cannot read without its words, which show values of records."""
    try:
        yield
    except (_arrow("lib").ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the system, and not of damaged bytes
            raise
        row = re.search(r"Row #(\d+)", str(error))
        place = f"{path}, row {row[1]}" if row else path
        raise ValueError(
            f"{place} must be what its name ends in, with columns of one type, got what pyarrow "
            f"cannot read ({type(error).__name__}): mend the file"
        ) from None


def _format_of(path: str) -> str:
    found = _FORMATS.get(Path(path).suffix.lower())
    if found is None:
        raise ValueError(f"{path} must end in {', '.join(_FORMATS)}")
    return found


def _values(column: Any) -> NDArray[Any]:
    """Return the values of a column, text and missing values as objects."""
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _matrix(names: Sequence[str], columns: Sequence[Any], place: str) -> NDArray[Any]:
    """Return columns of numbers side by side, float32 if they all are."""
    arrays = [_values(column) for column in columns]
    for name, array in zip(names, arrays, strict=True):
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"{place}: column {name!r} must be numbers, got {array.dtype}: describe the "
                "columns by a dpkern.Schema, or leave it out of the files"
            )
    return side_by_side(arrays)
