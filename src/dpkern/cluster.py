"""Records on the workers of a Dask cluster, which answer requests for sums.

Every worker has one actor, which reads parts of the records in blocks. A round asks for the sums of
every part, once: an answer counts for its round and its part, whoever gives it and however late
another one comes. The part of a lost worker is asked of another. What is added are integers, so the
sum has the bits of the same records in memory, and noise is drawn by the coordinator, once.

Scheduler and workers see records and sums without noise: whoever runs them is trusted as the holder
of the records is.
"""

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.data import SiloData
from dpkern.data.blocks import (
    BESIDE,
    Batch,
    BlockRows,
    Source,
    assembled,
    batches_of,
    joined_passes,
    read_once,
    require_block_options,
)
from dpkern.data.dask_parts import empty_like, is_dask, is_dask_frame, parts_of
from dpkern.io.arrow import ArrowSource, source_of
from dpkern.kernels._blocks import Request

if TYPE_CHECKING:
    from dpkern.data import Schema

# Seconds between two looks at whether a worker is there, and until one must be; and how many
# workers are asked for a part in a round.
_LOOK, _WAIT, _ATTEMPTS = 0.25, 60.0, 5

TRUSTED = (
    "records are read by the workers of a Dask cluster: its scheduler and workers see records and "
    "sums without noise, and are trusted as the holder of the records is"
)


Arguments = Callable[[int, str], tuple[Any, ...]]  #: of a part and a worker


class Answer(NamedTuple):
    """What an actor returns for a part in a round: a value, or the error of reading the part."""

    round: int
    part: int
    value: Any
    error: Exception | None


class Holder:
    """The actor of a worker."""

    def __init__(self) -> None:
        self._rows: dict[int, BlockRows] = {}

    def arithmetic(self) -> tuple[str, bool]:
        """Return the version, and whether sums have fused multiply-adds."""
        return version("dpkern"), kernels.installation.info()["isa"] != "base"

    def first_pass(self, number: int, part: int, given: bytes) -> Answer:
        """Check the records of a part; return them counted, and values outside a schema."""
        source, options = pickle.loads(given)
        return _answer(
            number,
            part,
            lambda: (read_once(SiloData, source, options), getattr(source, "counts", None)),
        )

    def totals(self, number: int, part: int, requests: bytes, rows: bytes | None) -> Answer:
        """Return the sums of a part, whose rows come with the first request."""
        if rows is not None:
            self._rows[part] = pickle.loads(rows)
        if part not in self._rows:  # a new actor, of a worker that began again at its address
            return Answer(-1, part, None, None)
        with np.errstate(all="ignore"):  # no record ends a run that has released something
            return _answer(number, part, lambda: self._rows[part].totals(pickle.loads(requests)))


def _answer(number: int, part: int, compute: Callable[[], Any]) -> Answer:
    try:
        return Answer(number, part, compute(), None)
    except Exception as error:  # of the records, and not of the cluster
        return Answer(number, part, None, error)


class Cluster:
    """Records on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
    parts : str, path, sequence, or Dask array or frame
        Files and folders, as for `dpkern.read_parquet`, that all workers can read, a file being a
        part; or parts, each a sequence of blocks or a function that begins a new iteration of them,
        as for `SiloData.from_blocks`. The client keeps what it was given, for workers that take a
        part over. A Dask frame of numbers is computed once, and its partitions are the parts; an
        array of rows too, beside which `target`, `silo`, `weight`, `margin_offset` and `person` are
        arrays. A person's records must be in one part.
    schema, target, silo, **options
        As for `dpkern.read_parquet`; of Dask without `schema`, and of other parts than files the
        options alone.

    Attributes
    ----------
    data : SiloData
        What solvers take.

    Raises
    ------
    ImportError
        Without Dask (the extra ``dpkern[dask]``).
    TypeError, ValueError
        As for `dpkern.read_parquet` and `SiloData.from_blocks`.
    RuntimeError
        When workers have different versions or arithmetic, when none is left, or when a part was
        asked of five workers in vain; a run then ends without the sum.

    Examples
    --------
    >>> cluster = dpkern.Cluster(client, "visits/", schema=schema)
    >>> result = dpkern.solve("auto", cluster.data, budget=budget)
    """

    def __init__(
        self,
        client: Any,
        parts: Any,
        *,
        schema: "Schema | None" = None,
        target: Any = None,
        silo: Any = None,
        **options: Any,
    ) -> None:
        try:
            from distributed import Client
        except ImportError as error:
            raise ImportError("a cluster needs Dask: pip install 'dpkern[dask]'") from error
        if not isinstance(client, Client):
            raise TypeError(f"client must be a distributed.Client, got {type(client).__name__}")
        self._client, self._number = client, 0
        self._holders: dict[str, Any] = {}
        # The worker of each part, and the one that has its rows.
        self._where: dict[int, str] = {}
        self._held: dict[int, str] = {}
        self._lost: set[str] = set()  # those of the scheduler's workers that have failed
        self._arithmetic: tuple[str, bool] | None = None
        source: ArrowSource | None = None
        stated: Any = options
        self._sources: list[Source]
        if is_dask(parts):
            self._sources = _partitions(client, parts, schema, target, silo, options)
            self._places = [f"partition {i}" for i in range(len(self._sources))]
        else:
            source, stated = _files_of(parts, schema, target, silo, options)
            if source is None:
                self._sources = [batches_of(part) for part in parts]
                self._places = [f"parts[{i}]" for i in range(len(self._sources))]
            else:
                self._sources = [source.of_parts([part]) for part in source.parts]
                self._places = [part.path for part in source.parts]
        require_block_options(stated)
        found = self._ask(
            "first_pass", lambda part, at: (self._sent(part, at, (self._sources[part], stated)),)
        )
        if source is not None and source.counts is not None:
            for _, counts in found:
                source.add_counts(counts)
        first = joined_passes(list(zip(self._places, (pair[0] for pair in found), strict=True)))
        self._bound = stated.get("target_bound")
        self._first = [pair[0] for pair in found]
        self.data: SiloData = assembled(first, self._with_rows)
        self.data._set(**self.data._state() | {"notes": (*self.data.notes, TRUSTED)})
        if source is not None:
            source.tell_of_outside()

    def _with_rows(self, template: SiloData, names: NDArray[Any] | None) -> "Cluster":
        keys = [0] if names is None else names.tolist()
        self._rows = [
            BlockRows(
                template,
                source,
                names,
                np.array([found.sizes.get(key, 0) for key in keys], dtype=np.int64),
                self._bound,
                found.first,
            )
            for source, found in zip(self._sources, self._first, strict=True)
        ]
        return self

    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        """Return the sums over all parts of what each request returns."""
        try:
            asked = pickle.dumps(list(requests))
        except Exception as error:
            raise TypeError(
                "loss must be one of the table on a cluster, got one that cannot be sent: "
                f"{type(error).__name__}"
            ) from error

        def arguments(part: int, address: str) -> tuple[Any, ...]:
            if self._held.get(part) == address:
                return asked, None
            self._held[part] = address
            return asked, self._sent(part, address, self._rows[part])

        found = [sums for sums in self._ask("totals", arguments) if sums]  # not of empty parts
        return [sum(sums[1:], sums[0]) for sums in zip(*found, strict=True)]

    def _sent(self, part: int, address: str, given: Any) -> bytes:
        """Return what an actor is given of a part: Dask would say of no error, and wait."""
        from distributed.protocol.pickle import dumps

        if isinstance(source := self._sources[part], Partition):
            how = {"workers": [address], "allow_other_workers": False, "pure": False}
            source.copied = self._client.submit(_same, source.future, **how)
            self._awaited(self._client.submit(len, source.copied, **how), address)
        try:
            sent: bytes = dumps(given)
        except Exception as error:
            raise TypeError(
                f"{self._places[part]} must be what can be sent to a worker, got what cannot: "
                f"{type(error).__name__}"
            ) from error
        return sent

    def _ask(self, method: str, arguments: Arguments) -> list[Any]:
        """Return what the actors return for every part, in a new round."""
        if self._client.status == "closed":
            raise RuntimeError("client must be open while records are in use, got a closed one")
        self._number += 1
        self._spread()
        answers: dict[int, Any] = {}
        attempts: Counter[int] = Counter()
        waiting: dict[int, tuple[str, Any]] = {}
        for part in range(len(self._sources)):
            waiting[part] = self._begin(part, method, arguments, attempts)
        while waiting:
            for part, (address, future) in list(waiting.items()):
                try:
                    answer: Answer = future.result(timeout=_LOOK)
                except TimeoutError:
                    if address in self._client.nthreads():
                        continue
                except Exception:  # of the cluster: an actor answers with its errors
                    pass
                else:
                    if answer.error is not None:
                        raise answer.error
                    if (answer.round, answer.part) == (self._number, part):
                        answers[part] = answer.value
                        del waiting[part]
                        continue
                self._forget(address)
                waiting[part] = self._begin(part, method, arguments, attempts)
        return [answers[part] for part in sorted(answers)]

    def _begin(
        self, part: int, method: str, arguments: Arguments, attempts: "Counter[int]"
    ) -> tuple[str, Any]:
        """Ask a worker for a part; return its address and the future answer."""
        failed: Exception | None = None
        while attempts[part] < _ATTEMPTS:
            attempts[part] += 1
            address = self._worker_of(part)
            try:
                holder = self._holder_at(address)
                call = getattr(holder, method)
                return address, call(self._number, part, *arguments(part, address))
            except (DifferentWorkersError, ImportError, TypeError):
                raise
            except Exception as error:  # of the cluster, as above
                failed = error
                self._forget(address)
        raise RuntimeError(
            f"{self._places[part]} was asked of {_ATTEMPTS} workers in one round, and none has "
            "answered: look into the workers' logs (memory, for one), and run again"
        ) from failed

    def _workers(self) -> list[str]:
        """Return the addresses of the workers that are there, awaiting one where there is none."""
        end = time.monotonic() + _WAIT
        while not (workers := sorted(self._client.nthreads())):
            if time.monotonic() > end:
                raise RuntimeError(f"the cluster has had no worker for {_WAIT:g} seconds")
            time.sleep(_LOOK)
        return workers

    def _spread(self) -> None:
        """Give every part a worker, and none more parts than its share."""
        workers = self._workers()
        self._lost &= set(workers)
        workers = [address for address in workers if address not in self._lost] or workers
        load = Counter(address for address in self._where.values() if address in workers)
        most = -(-len(self._sources) // len(workers))
        for part in range(len(self._sources)):
            address = self._where.get(part, "")
            if address in workers and load[address] <= most:
                continue
            load[address] -= 1
            self._where[part] = min(workers, key=load.__getitem__)
            load[self._where[part]] += 1

    def _worker_of(self, part: int) -> str:
        """Return the worker of a part, another one where that is lost.

        The scheduler may still count a worker that is not there: one that has failed is asked again
        only where there is no other.
        """
        if part not in self._where:
            workers, load = self._workers(), Counter(self._where.values())
            self._where[part] = min(workers, key=lambda a: (a in self._lost, load[a]))
        return self._where[part]

    def _holder_at(self, address: str) -> Any:
        """Return the actor of a worker, which is made where there is none."""
        if address not in self._holders:
            made = self._client.submit(
                Holder, actor=True, workers=[address], allow_other_workers=False, pure=False
            )
            holder = self._awaited(made, address)
            found = self._awaited(holder.arithmetic(), address)
            self._arithmetic = self._arithmetic or found
            if found != self._arithmetic:
                raise DifferentWorkersError(
                    "workers must have one version of dpkern, and fused multiply-adds in all or in "
                    f"none, got {found} after {self._arithmetic}"
                )
            self._holders[address] = holder
        return self._holders[address]

    def _awaited(self, future: Any, address: str) -> Any:
        """Return what a worker answers; raise TimeoutError where it is lost, or takes too long."""
        end = time.monotonic() + _WAIT
        while True:
            try:
                return future.result(timeout=_LOOK)
            except TimeoutError:
                if time.monotonic() > end or address not in self._client.nthreads():
                    raise

    def _forget(self, address: str) -> None:
        """Take a worker for lost, with the parts that it had."""
        self._lost.add(address)
        self._holders.pop(address, None)
        for places in (self._where, self._held):
            for part in [part for part, where in places.items() if where == address]:
                del places[part]


class DifferentWorkersError(RuntimeError):
    """Workers whose sums could differ in their last bits."""


class Partition:
    """The source of a part of Dask, of which the worker that reads it has a copy."""

    def __init__(self, future: Any) -> None:
        self.future, self.copied = future, future

    def __reduce__(self) -> tuple[Any, ...]:
        return _held_here, (self.copied.key,)

    def __call__(self) -> Iterator[Batch]:
        """Yield the part, on a worker."""
        held = dict(self.future)
        X, y, groups = held.pop("X"), held.pop("target"), held.pop("silo", None)
        found = {name: np.asarray(values) for name, values in held.items()}
        groups = None if groups is None else np.asarray(groups)
        yield Batch(X, np.asarray(y), groups, "partition", beside=found)


def _held_here(key: Any) -> Partition:
    """Return the source of a part that this worker has, in the thread of an actor."""
    from distributed import get_worker

    return Partition(get_worker().data[key])


def _same(part: Any) -> Any:
    return part


def _partitions(
    client: Any, X: Any, schema: Any, target: Any, silo: Any, options: dict[str, Any]
) -> list[Source]:
    """Return the sources of the parts of a Dask array or frame, which the cluster then holds."""
    from dask import delayed

    if schema is not None:
        raise ValueError(
            "schema must be None for a Dask array or frame, of numbers: write it to Parquet"
        )
    more = {"silo": silo} | {name: options.pop(name, None) for name in BESIDE}
    if is_dask_frame(X):
        frame, given = X, {"target": target, **more}
        columns = {n: c for n, c in given.items() if c is not None or n == "target"}
        for name, column in columns.items():
            if is_dask(column) or column not in frame.columns:
                raise ValueError(f"{name} must be a column of the frame, got {column!r}")
        X = frame.drop(columns=list(columns.values()))
        more = {name: frame[column] for name, column in columns.items()}
        target = more.pop("target")
    empty_like(X)
    parts = parts_of(X, {"target": target}, more)
    return [Partition(future) for future in client.compute([delayed(part) for part in parts])]


def _files_of(
    parts: Any, schema: Any, target: str | None, silo: str | None, options: dict[str, Any]
) -> tuple[ArrowSource | None, Any]:
    """Return the source of files, None of other parts, and the options of rows."""
    listed = [parts] if isinstance(parts, str | os.PathLike) else parts
    if not isinstance(listed, list | tuple) or not listed:
        raise TypeError(
            f"parts must be files, or a list of parts of blocks, got a {type(parts).__name__}"
        )
    if all(isinstance(part, str | os.PathLike) for part in listed):
        return source_of(parts, schema, target, silo, options)
    for name, value in (("schema", schema), ("target", target), ("silo", silo)):
        if value is not None:
            raise ValueError(f"{name} must be None for parts that are no files, got one")
    return None, options
