"""Records that are read in blocks, of which a few are in memory at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, counted, did_you_mean
from dpkern.data.frames import column_names
from dpkern.data.labels import (
    clip_targets,
    ids,
    margin_offsets,
    record_weights,
    records,
    targets,
    values_of_records,
)
from dpkern.data.partition import GROUPS_READ, gathered
from dpkern.data.persons import FirstRecords, Persons, refuse_mixed
from dpkern.data.validation import RowOptions, checked_options, frozen, frozen_matrix, is_sparse
from dpkern.data.validation import refuse_non_finite as refuse_bad

if TYPE_CHECKING:
    from dpkern.data.schema import Schema
    from dpkern.data.silo_data import SiloData
    from dpkern.kernels._blocks import BlockSource, Reduction, Request

T = TypeVar("T")

# Bytes of the rows of a block, and how many blocks are read ahead of the one that is summed.
_BYTES, _AHEAD = 1 << 24, 2


# What blocks hold beside rows and labels, and what a mapping of them may hold.
BESIDE = ("weight", "margin_offset", "person")
_NAMES = {"X", "y", "groups", *BESIDE}

_IN_MEMORY = (
    "data must be in memory for this, got records in blocks, of which sums over all records are "
    "taken (docs/blocks.md): use SiloData(X, y, offsets) of records that fit"
)


NO_TABLE = (
    "data must be a table, or what dpkern.read_parquet returns of files with a schema, got other "
    "records in blocks, whose columns have been encoded"
)


class Batch(NamedTuple):
    """Records as they are read: features, labels, silos, and what errors call their place."""

    X: Any
    y: Any
    groups: Any = None
    place: str = "block"
    names: tuple[str, ...] | None = None  #: of the columns
    beside: Mapping[str, Any] = MappingProxyType({})  #: weights, offsets, ids of persons


#: Begins a new pass over the records.
Source = Callable[[], Iterable[Batch]]


class AbsentRows:
    """What stands for X or y of records that are in blocks: their shape and dtype.

    Attributes
    ----------
    shape, dtype, ndim, size
        As of an array.
    sparse : bool
        Whether blocks are CSR.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, sparse: bool) -> None:
        self.shape, self.dtype, self.sparse = shape, dtype, sparse
        self.ndim, self.size = len(shape), int(np.prod(shape))

    def __len__(self) -> int:
        return self.shape[0]

    def _refuse(self, *given: Any, **how: Any) -> NoReturn:
        raise TypeError(_IN_MEMORY)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(_IN_MEMORY)

    __array__ = __getitem__ = reshape = _refuse


class BlockRows:
    """Records that are read anew in every pass, and answer requests for sums.

    Parameters
    ----------
    template : SiloData
        Data with the public parameters of all records.
    source : callable
    names : ndarray of shape (m,), or None
        Sorted names of the silos; None for one silo.
    sizes : ndarray of shape (m,)
        Numbers of records, which every pass must have.
    target_bound : float, pair or None
    first : FirstRecords or None
        Which records are used, where these are of persons.
    """

    def __init__(
        self,
        template: SiloData,
        source: Source,
        names: NDArray[Any] | None,
        sizes: NDArray[np.int64],
        target_bound: Any,
        first: FirstRecords | None,
    ) -> None:
        self._kind, self._state, self._source = type(template), template._state(), source
        self._names, self._sizes, self._target_bound = names, sizes, target_bound
        self._first = first
        self._kept: tuple[bytes, list[Any]] | None = None  # blocks that a request has reduced

    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        """Return the sum over all blocks of what each request returns, by one pass at most."""
        by = getattr(requests[0], "by", None) if len(requests) == 1 else None
        kept = self._kept  # which another thread may replace
        if by is None or kept is None or kept[0] != by.key:
            kept = self._kept = None
        if not requests:
            return []
        sums: list[NDArray[Any]] = []
        seen = np.zeros(len(self._sizes), dtype=np.int64)
        if kept is not None:
            blocks: Iterator[Any] = iter(kept[1])
        else:
            blocks = self.blocks() if by is None else self._reduced(by)
        for block in blocks:
            found = [request(block) for request in requests]
            for total, part in zip(sums, found, strict=False):
                total += part
            sums = sums or found
            seen += block.sizes
        if not np.array_equal(seen, self._sizes):
            raise ValueError(
                f"blocks must hold the same records in every pass, got {int(seen.sum())} after "
                f"{int(self._sizes.sum())} in the first one"
            )
        return sums

    def _reduced(self, by: Reduction) -> Iterator[Any]:
        """Yield reduced blocks, which are kept after the last one."""
        kept = []
        for block in self.blocks():
            kept.append(by.reduced(block))
            yield kept[-1]
        self._kept = by.key, kept

    def tables(self, schema: Schema) -> Iterator[Mapping[str, Any]]:
        """Yield the raw columns of all records in use once, before they are encoded."""
        if (found := getattr(self._source, "tables", None)) is None:
            raise TypeError(NO_TABLE)
        if self._first is None:
            return read_ahead(found(schema))
        parts = self._first.of((raw, schema.persons(raw)) for raw in found(schema))
        return read_ahead({n: values[used] for n, values in raw.items()} for raw, used in parts)

    def blocks(self) -> Iterator[SiloData]:
        """Yield all records once, in blocks that are read ahead."""
        batches = _used(_cut(self._source()), self._first)
        return read_ahead(self._block(batch) for batch in batches if len(batch.y))

    def _block(self, batch: Batch) -> SiloData:
        with placed(batch.place):
            return self._encoded(batch)

    def _encoded(self, batch: Batch) -> SiloData:
        state = self._state
        rows, y = _checked(batch, state["feature_names"], state["X"])
        y, _, _ = targets(y, state["task"], state["classes"])
        clip_targets(y, state["task"], self._target_bound)
        weight, offset = _beside(batch, state)
        offsets, order = np.array([0, len(y)]), None
        if self._names is not None:
            silo = _places(batch, self._names)
            offsets = np.append(0, np.cumsum(np.bincount(silo, minlength=len(self._names))))
            if np.any(silo[1:] < silo[:-1]):
                order = np.argsort(silo, kind="stable")
        block = object.__new__(self._kind)
        block._set(
            **state
            | {
                "X": frozen_matrix(gathered(rows, order)[0]),
                "y": frozen(y if order is None else y[order]),
                "record_weight": _frozen_in(order, weight),
                "margin_offset": _frozen_in(order, offset),
                "offsets": frozen(offsets),
                "sizes": frozen(np.diff(offsets)),
                "m": len(offsets) - 1,
                "n": len(y),
            }
        )
        return block


class GivenTargets:
    """Blocks whose targets have no middle of bounds subtracted."""

    def __init__(self, blocks: BlockSource) -> None:
        self._blocks = blocks

    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        """Return the sums of requests of blocks with these targets."""
        return self._blocks.totals([partial(_of_given_targets, request) for request in requests])


def _of_given_targets(request: Request, block: Any) -> NDArray[Any]:
    return request(block.with_given_targets())


class FirstPass(NamedTuple):
    """What a pass has found that checked all records.

    Attributes
    ----------
    template : SiloData or None
        Data with the public parameters and without records; None where there are no records.
    sizes : dict
        Numbers of records by silo.
    grouped : bool
        Whether blocks name silos.
    first : FirstRecords or None
        Which records are used, where these are of persons.
    """

    template: SiloData | None
    sizes: dict[Any, int]
    grouped: bool
    first: FirstRecords | None


def data_in_blocks(make: type[SiloData], source: Source, options: RowOptions) -> SiloData:
    """Return the data whose records a source yields in every pass, after a first, checking pass."""
    bound, found = options.get("target_bound"), read_once(make, source, options)
    if (first := found.first) is not None:
        first.forget()
    return assembled(
        found,
        lambda template, names: BlockRows(template, source, names, template.sizes, bound, first),
    )


def require_block_options(options: RowOptions) -> None:
    """Raise ValueError for options that records in blocks do not have, or lack."""
    for name in options.keys() - RowOptions.__annotations__.keys():
        close = did_you_mean(name, RowOptions.__annotations__)
        raise TypeError(f"{name} is no argument of records in blocks{close}")
    if options.get("max_records") is not None:
        count("max_records", options["max_records"])
    for name in BESIDE:
        if options.get(name) is not None:
            raise ValueError(
                f"{name} must be None for records in blocks, which have their own: give blocks as "
                f'{{"X": X, "y": y, "{name}": ...}}, or files by dpkern.read_parquet'
            )
    if options.get("classes") is None and options.get("task") != "regression":
        raise ValueError(
            "classes must be the public labels, or task 'regression', for records in blocks: "
            "those of one block are not those of all"
        )
    if options.get("task") == "regression" and options.get("classes") is not None:
        raise ValueError("classes must be None where task is 'regression', got labels")


def read_once(make: type[SiloData], source: Source, options: RowOptions) -> FirstPass:
    """Check all records of a source, and count them."""
    require_block_options(options)
    template: SiloData | None = None
    sizes: dict[Any, int] = {}
    grouped, most = False, options.get("max_records")
    persons = None if most is None else Persons(int(most))
    first = None if most is None else FirstRecords(most)
    options = {**options, "max_records": None}
    for batch in read_ahead(_used(_cut(source()), first)):
        if not len(batch.y):
            continue
        with placed(batch.place):
            if template is None:
                X, y = records(batch.X, batch.y)
                rows, grouped = _rows(X), batch.groups is not None
                options = checked_options(options, _names(batch), rows.shape[1])
                template = make(rows, y, [0, len(y)], **cast(Any, {**options, **batch.beside}))
                template = _without_records(template, np.array([len(y)]), {"persons": persons})
            rows, y = _checked(batch, template.feature_names, template.X)
            targets(y, template.task, template.classes)
            _beside(batch, template._state())
            refuse_bad(rows, template.scale, template.shift, template.feature_names)
            if grouped != (batch.groups is not None):
                raise ValueError("blocks must have silos in all of them or in none, got both")
            silos = ids(batch.groups, len(y), "groups") if grouped else np.zeros(len(y), np.int8)
            found = zip(*np.unique(silos, return_counts=True), strict=True)
            _add_sizes(sizes, {silo: int(n) for silo, n in found})
    return FirstPass(template, sizes, grouped, first)


def joined_passes(passes: Sequence[tuple[str, FirstPass]]) -> FirstPass:
    """Return the first pass over parts, by their names, which must agree."""
    held = [(place, found) for place, found in passes if found.template is not None]
    sizes: dict[Any, int] = {}
    persons: set[Any] = set()
    for place, found in held:
        template, like = cast("SiloData", found.template), cast("SiloData", held[0][1].template)
        with placed(place):
            if found.grouped != held[0][1].grouped:
                raise ValueError("parts must have silos in all of them or in none, got both")
            if _form(template) != _form(like):
                raise ValueError(
                    "parts must have the columns and dtype of the first, and weights and offsets "
                    "if it has them, got others"
                )
            _add_sizes(sizes, found.sizes)
            if found.first is not None:
                refuse_mixed(persons, numbers := found.first.numbers)
                if not persons.isdisjoint(numbers):
                    raise ValueError(
                        "parts must hold persons with all their records, got one with records in "
                        "two parts: divide the records by person, or read them in one process"
                    )
                persons.update(numbers)
                found.first.forget()
    return held[0][1]._replace(sizes=sizes) if held else FirstPass(None, sizes, False, None)


def assembled(
    first: FirstPass, rows: Callable[[SiloData, NDArray[Any] | None], BlockSource]
) -> SiloData:
    """Return the data of a first pass; `rows` are their blocks, of a template and silos' names."""
    if first.template is None:
        raise ValueError("blocks must hold records, got none")
    names = np.array(sorted(first.sizes)) if first.grouped else None
    sizes = np.array([first.sizes[name] for name in sorted(first.sizes)], dtype=np.int64)
    more: dict[str, Any] = {}
    if names is not None:
        more["silo_names"] = tuple(names.tolist())
        more["notes"] = (*first.template.notes, GROUPS_READ)
    data = _without_records(first.template, sizes, more)
    data._set(**data._state() | {"blocks": rows(data, names)})
    return data


def _without_records(like: SiloData, sizes: NDArray[np.int64], more: dict[str, Any]) -> SiloData:
    """Return data of these sizes with the public parameters of others, and no records."""
    shape = int(sizes.sum()), like.n_features
    data = object.__new__(type(like))
    data._set(
        **like._state()
        | {
            "X": AbsentRows(shape, like.X.dtype, sparse=_is_sparse(like.X)),
            "y": AbsentRows(shape[:1], np.dtype(np.float64), sparse=False),
            "offsets": frozen(np.append(0, np.cumsum(sizes))),
            "sizes": frozen(sizes),
            "m": len(sizes),
            "n": shape[0],
            "row_norms": None,
        }
        | {
            name: None
            if getattr(like, name) is None
            else AbsentRows(shape[:1], np.dtype(np.float64), sparse=False)
            for name in ("record_weight", "margin_offset")
        }
        | more
    )
    return data


def _form(data: SiloData) -> tuple[Any, ...]:
    beside = data.record_weight is None, data.margin_offset is None
    return data.n_features, data.X.dtype, _is_sparse(data.X), data.feature_names, beside


def _add_sizes(sizes: dict[Any, int], more: dict[Any, int]) -> None:
    for silo, n in more.items():
        if sizes and isinstance(next(iter(sizes)), str) != isinstance(silo, str):
            raise TypeError("groups must be text in all blocks, or numbers in all, got both")
        sizes[silo] = sizes.get(silo, 0) + n


def _is_sparse(X: Any) -> bool:
    return X.sparse if isinstance(X, AbsentRows) else is_sparse(X)


def batches_of(blocks: Any) -> Source:
    """Return the source of blocks (X, y) or (X, y, groups), which can be iterated again."""
    if not callable(blocks) and not isinstance(blocks, Iterable):
        raise TypeError(
            "blocks must be a sequence of (X, y), or a function that begins a new iteration of "
            f"them, got a {type(blocks).__name__}"
        )
    if not callable(blocks) and iter(blocks) is blocks:
        raise TypeError(
            "blocks must be iterable anew in every pass, got a generator or another iterator: "
            "pass a list, or a function that begins a new one"
        )

    def source() -> Iterator[Batch]:
        for i, block in enumerate(blocks() if callable(blocks) else blocks):
            beside: dict[str, Any] = {}
            if isinstance(block, Mapping) and {"X", "y"} <= block.keys() <= _NAMES:
                beside = {name: block[name] for name in BESIDE if name in block}
                block = [block[name] for name in ("X", "y", "groups") if name in block]
            if not isinstance(block, tuple | list) or len(block) not in (2, 3):
                raise TypeError(
                    f"blocks[{i}] must be (X, y) or (X, y, groups), or a mapping of "
                    f"{', '.join(sorted(_NAMES))}, got a {type(block).__name__}"
                )
            X, y, *groups = block
            if len(y) != (X.shape[0] if hasattr(X, "shape") else len(X)):
                raise ValueError(f"blocks[{i}] must have as many labels as rows, got {len(y)}")
            with placed(f"blocks[{i}]"):
                values = {
                    name: (
                        ids(given, len(y), name)
                        if name == "person"
                        else values_of_records(name, given, len(y))
                    )
                    for name, given in beside.items()
                }
            yield Batch(X, y, groups[0] if groups else None, f"blocks[{i}]", beside=values)

    return source


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield what an iterator yields, which a thread reads a few items ahead."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(_AHEAD)
    stopped = threading.Event()

    def put(item: T | None, error: BaseException | None = None) -> bool:
        while not stopped.is_set():
            try:
                ready.put((item, error), timeout=0.05)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            if all(put(item) for item in items):
                put(None)
        except BaseException as error:
            put(None, error)

    thread = threading.Thread(target=copy_context().run, args=(read,), daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        stopped.set()
        thread.join()


class placed:
    """Errors of a block begin with its place."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TypeError | ValueError):
            again = TypeError if isinstance(error, TypeError) else ValueError
            raise again(f"{self._place}: {error}") from None


def _cut(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield batches of bounded size."""
    for batch in batches:
        n, width = batch.X.shape if hasattr(batch.X, "shape") else (len(batch.X), 1)
        most = max(
            1, _BYTES // (8 * max(1, batch.X.nnz // n if is_sparse(batch.X) and n else width))
        )
        if n <= 2 * most:
            yield batch
            continue
        X = batch.X.iloc if hasattr(batch.X, "iloc") else batch.X
        for first in range(0, n, most):
            part = slice(first, min(first + most, n))
            groups = None if batch.groups is None else batch.groups[part]
            beside = {name: values[part] for name, values in batch.beside.items()}
            yield Batch(X[part], batch.y[part], groups, batch.place, batch.names, beside)


def _used(batches: Iterable[Batch], first: FirstRecords | None) -> Iterator[Batch]:
    """Yield batches of the records that are used, without the ids of persons."""
    given = (_with_ids(batch, needed=first is not None) for batch in batches)
    if first is None:
        yield from (batch for batch, _ in given)
        return
    for batch, used in first.of(given):
        if used.all():
            yield batch
            continue
        with placed(batch.place):
            X, y = records(batch.X, batch.y)
            groups = None if batch.groups is None else ids(batch.groups, len(y), "groups")[used]
        beside = {name: np.asarray(values)[used] for name, values in batch.beside.items()}
        rows = gathered(X, np.flatnonzero(used))[0]
        yield Batch(rows, y[used], groups, batch.place, _names(batch), beside)


def _with_ids(batch: Batch, *, needed: bool) -> tuple[Batch, NDArray[Any]]:
    """Return a batch without the ids of its persons, and these."""
    beside = dict(batch.beside)
    person, n = beside.pop("person", None), len(batch.y)
    with placed(batch.place):
        if person is not None and not needed:
            raise ValueError("max_records must be given with person: how many rows of one are used")
        if person is None and needed and n:
            raise ValueError(
                "person must be in every block where max_records is given, got none: name the "
                'column of files, or give blocks {"X": X, "y": y, "person": ids}'
            )
        found = np.empty(0) if person is None else ids(person, n, "person")
    return batch._replace(beside=beside), found


def _checked(batch: Batch, names: Any, like: Any) -> tuple[Any, NDArray[Any]]:
    """Return rows and labels of a batch with the columns and the dtype of the first one."""
    if (found := _names(batch)) is not None and found != names:
        raise ValueError("X must have the columns of the first block, in its order, got others")
    given, y = records(batch.X, batch.y)
    rows = _rows(given)
    if rows.shape[1] != like.shape[1]:
        wanted = counted(like.shape[1], "column")
        raise ValueError(f"X must have {wanted} as the first block, got {rows.shape[1]}")
    sparse = _is_sparse(like)
    if rows.dtype != like.dtype or is_sparse(rows) != sparse:
        form = "CSR" if sparse else "dense"
        raise TypeError(
            f"X must be {form} {like.dtype} as the first block, got "
            f"{'CSR' if is_sparse(rows) else 'dense'} {rows.dtype}: give all one kind"
        )
    return rows, y


def _rows(X: Any) -> Any:
    """Return rows as kernels read them; those that come from elsewhere may not be aligned."""
    rows = gathered(X, None)[0]
    return rows if is_sparse(rows) else np.require(rows, None, ["C", "A"])


def _beside(batch: Batch, like: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return weights and margin offsets of a batch, which has those of the first one."""
    given, n = dict(batch.beside), len(batch.y)
    held = {"weight": like["record_weight"], "margin_offset": like["margin_offset"]}
    for name, values in held.items():
        if (name in given) != (values is not None):
            raise ValueError(f"blocks must have {name} in all of them or in none, got both")
    return (
        record_weights(given.get("weight"), like["max_weight"], n),
        margin_offsets(given.get("margin_offset"), n),
    )


def _frozen_in(order: NDArray[np.int64] | None, values: Any) -> Any:
    """Return the values of records in an order, or None without values."""
    if values is None:
        return None
    return frozen(values if order is None else values[order])


def _names(batch: Batch) -> tuple[str, ...] | None:
    return column_names(batch.X) if batch.names is None else batch.names


def _places(batch: Batch, names: NDArray[Any]) -> NDArray[np.int64]:
    """Return the place of each record's silo."""
    groups = ids(batch.groups, len(batch.y), "groups")
    silo = np.minimum(np.searchsorted(names, groups), len(names) - 1)
    if np.any(names[silo] != groups):
        raise ValueError("groups must hold the silos of the first pass, got others")
    return silo
