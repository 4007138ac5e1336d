"""Sums on a card, by the kernels of csrc/gpu, and the records that lie there.

A card computes integers, steps of the grid, with the bits of the CPU's kernels; these come back,
a number per coordinate, and everything else happens on the CPU.
"""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from dpkern import _core
from dpkern.kernels._arguments import FloatArray, IntArray, Rows
from dpkern.kernels._card import THREADS, Card
from dpkern.models.losses import Custom, Loss, get_loss

# As in gpu/lanes.h and gpu/sums.h.
_TEAM, _COLUMNS, _CHUNK = 16, 4, 4096
_FACTORS, _MARGINS, _LOSSES = 0, 1, 2
# Steps of sixteen columns, times models, whose sums a thread keeps in registers.
_STEPS, _STEPS_OF_SEVERAL = 16, 16
# Blocks that tasks are for, of which each has a multiple of so many records; and threads that
# columns are for, whose tasks have a multiple of so many records.
_BLOCKS, _LEAST, _COLUMN_THREADS, _COLUMN_RECORDS = 1056, 64, 1 << 18, 64

# Numbers that are multiplied by their grid on the CPU.
_FEW = 1 << 14


def require_grids(grids: FloatArray | None) -> FloatArray:
    """Return the grids of sums; without a clip norm there are none, and no sums on a card."""
    if grids is None:
        raise ValueError(
            "clip must be finite on a card, whose sums are exact, got inf: use the CPU for sums "
            "in floating point"
        )
    return grids


class Tasks(NamedTuple):
    """Runs of records of one silo each, on the card: (silo, begin, end)."""

    device: Any
    number: int


def tasks_of(card: Card, offsets: IntArray, blocks: int, least: int) -> Tasks:
    """Return about so many tasks, of a multiple of `least` records each, but for a silo's last."""
    length = -(-max(1, int(offsets[-1])) // (blocks * least)) * least
    return _tasks(card, offsets.tobytes(), length)


# Batches have the same few offsets, and a copy takes as long as a round of few records.
@functools.lru_cache(maxsize=64)
def _tasks(card: Card, bounds: bytes, length: int) -> Tasks:
    """Return the tasks of silos in runs of so many records, as the CPU's kernels divide them."""
    offsets = np.frombuffer(bounds, np.int64)
    counts = -(-np.diff(offsets) // length)
    silos = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    begin = offsets[silos] + (np.arange(len(silos)) - first[silos]) * length
    end = np.minimum(begin + length, offsets[silos + 1])
    return Tasks(card.put(np.stack([silos, begin, end], axis=1).astype(np.int64)), len(silos))


def _write_sums(own: Card, sums: Any, grids: FloatArray, there: Any, out: FloatArray) -> None:
    """Write sums (..., d), in steps, times the grids (...), which are `there` too, to `out`."""
    if sums.size < _FEW:  # a product on the card takes longer to start
        np.multiply(own.get(sums), grids[..., np.newaxis], out=out)
    else:
        own.get(sums * there[..., np.newaxis], out)


def clip_and_sum(
    own: Card, vectors: Any, offsets: IntArray, clip: float, grids: FloatArray, out: FloatArray
) -> None:
    """Write the sums of clipped vectors on a card to out (m, P)."""
    n, p = vectors.shape
    with own.in_use():
        chunks = -(-p // _CHUNK)
        columns = _column_tasks(own, offsets, p)
        tasks = tasks_of(own, offsets, _BLOCKS, _LEAST)
        m = len(offsets) - 1
        numbers = own.put(np.concatenate([[clip], grids]))
        constants = (int(vectors.dtype == np.float32), 0, 0, "logistic", 1, 1)
        squares, factors, sums = own.empty((n, chunks)), own.empty((n,)), own.zero_steps((m, p))

        def launch(name: str, work: Tasks, y_blocks: int, *more: Any) -> None:
            given = _records(vectors, None, None, None, None, p, 0, math.inf, work, m)
            given += [None, 0, 0, numbers[:1], numbers[1:], None, None, None, None, *more]
            own.launch(name, constants, (work.number, y_blocks), _typed(given))

        per_task = -(-n * chunks // (tasks.number * _TEAM))
        launch("chunk_squares", tasks, min(per_task, 1024), np.int64(chunks), squares)
        launch("clip_factors", tasks, 1, np.int64(chunks), squares, factors)
        launch("add_columns", columns, _column_blocks(p), np.int64(n), factors, sums)
        _write_sums(own, sums, grids, numbers[1:], out)


def _column_blocks(d: int) -> int:
    return min(-(-d // (THREADS * _COLUMNS)), 65535)


def _column_tasks(own: Card, offsets: IntArray, d: int) -> Tasks:
    blocks = max(1, _COLUMN_THREADS // (THREADS * _column_blocks(d)))
    return tasks_of(own, offsets, blocks, _COLUMN_RECORDS)


def _records(
    X: Any,
    y: Any,
    scale: Any,
    shift: Any,
    rows: Any,
    p: int,
    intercept: int,
    row_bound: float,
    tasks: Tasks,
    m: int,
) -> list[Any]:
    """Return the first arguments of every kernel (GLM in gpu/record.h)."""
    sizes = [np.int64(p), np.int64(intercept), np.float64(row_bound)]
    return [X, y, scale, shift, rows, *sizes, tasks.device, np.int64(tasks.number), np.int64(m)]


def _typed(given: list[Any]) -> list[Any]:
    """Return arguments as a kernel takes them: no pointer for None, 64 bits for an int."""
    return [
        np.uint64(0) if value is None else np.int64(value) if type(value) is int else value
        for value in given
    ]


class DeviceRows:
    """The records of a `SiloData` on a card."""

    def __init__(self, data: Any, own: Card) -> None:
        if hasattr(data.X, "indptr"):
            raise TypeError("X must be dense on a card, got a sparse matrix: use the CPU")
        needed = data.X.nbytes + 4 * data.y.nbytes
        with own.in_use():
            if needed > (free := own.free_bytes()):
                raise MemoryError(
                    f"the records need {needed / 2**30:.1f} GiB on the card, where "
                    f"{free / 2**30:.1f} GiB are free: use fewer, float32, or the CPU"
                )
            self.X, self.y = own.put(data.X), own.put(data.y)
            beside = (data.scale, data.shift, data.record_weight, data.margin_offset)
            self.scale, self.shift, self.record_weight, self.margin_offset = (
                None if numbers is None else own.put(numbers) for numbers in beside
            )
        self.card, self.n, self.p, self.d = own, data.n, data.n_features, data.d
        self.intercept, self.row_bound = int(data.intercept), float(data.row_bound)
        self.offsets = data.offsets
        weighted = data.record_weight is not None or data.margin_offset is not None
        self._kind = int(data.X.dtype == np.float32), int(data.scale is not None), int(weighted)
        self._task_rows = _core.task_rows(data)  # of the CPU's sums in floating point

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("records on a card cannot be pickled: pickle the SiloData before to_device")

    def glm_gradients(
        self,
        w: FloatArray,
        loss: Loss,
        clips: FloatArray,
        grids: FloatArray,
        silo_weight: FloatArray | None,
        rows: Rows | None,
        out: FloatArray,
    ) -> None:
        """Write the sums at k models (k, 1 or m, d), with grids (k, m), to out (k, m, d)."""
        k, m, d = out.shape
        offsets = self.offsets if rows is None else rows[1]
        with self.card.in_use():
            device = self._call(w, loss, clips, grids, silo_weight, rows)
            sums = self.card.zero_steps((k, m, d))
            steps = -(-d // _TEAM)
            most = 4 if steps > _STEPS else 1 if self._kind[0] else _STEPS_OF_SEVERAL // steps
            first = 0
            while first < k:
                models = next(size for size in (4, 2, 1) if size <= max(1, min(most, k - first)))
                part = device | {
                    "w": device["w"][first:],
                    "clip": device["clip"][first:],
                    "grid": device["grid"][first:],
                }
                to = sums[first:]
                if steps <= _STEPS:
                    tasks = tasks_of(self.card, offsets, _BLOCKS, _LEAST)
                    self._launch("glm_sums", part, loss, steps, models, tasks, 1, to)
                else:
                    n = int(offsets[-1])
                    factors = self.card.empty((models, n))
                    tasks = tasks_of(self.card, offsets, _BLOCKS, _LEAST)
                    more = (np.int64(_FACTORS), np.int64(n), factors)
                    self._launch("glm_factors", part, loss, 1, models, tasks, 1, *more)
                    tasks, more = _column_tasks(self.card, offsets, d), (np.int64(n), factors, to)
                    blocks = _column_blocks(d)
                    self._launch("add_columns", part, loss, 1, models, tasks, blocks, *more)
                first += models
            _write_sums(self.card, sums, grids, device["grid"], out)

    def glm_margins(self, w: FloatArray, out: FloatArray) -> None:
        """Write the margins at one model (1 or m, d) to out (n,)."""
        with self.card.in_use():
            self.card.get(self._values(w, get_loss("squared"), _MARGINS)[1], out)

    def _values(self, w: FloatArray, loss: Loss, wanted: int) -> tuple[dict[str, Any], Any]:
        """Return the arguments of a call at one model, and its numbers of all records."""
        m = len(self.offsets) - 1
        call = self._call(w[np.newaxis], loss, np.ones(1), np.ones((1, m)), None, None)
        values = self.card.empty((self.n,))
        tasks = tasks_of(self.card, self.offsets, _BLOCKS, _LEAST)
        more = (np.int64(wanted), np.int64(self.n), values)
        self._launch("glm_factors", call, loss, 1, 1, tasks, 1, *more)
        return call, values

    def glm_losses(self, w: FloatArray, loss: Loss, out: FloatArray) -> None:
        """Write the sums of losses at one model (1 or m, d) to out (m,)."""
        with self.card.in_use():
            device, values = self._values(w, loss, _LOSSES)
            tasks = _tasks(self.card, self.offsets.tobytes(), self._task_rows)
            sums = self.card.empty((tasks.number,))
            blocks = _column_blocks(tasks.number)
            self._launch("sum_values", device, loss, 1, 1, tasks, blocks, values, sums, x_blocks=1)
            found = self.card.get(sums)
        counts = -(-np.diff(self.offsets) // self._task_rows)
        for j, end in enumerate(np.cumsum(counts).tolist()):
            total = 0.0  # in the order of sum_piece (core/tasks.h)
            for value in found[end - counts[j] : end].tolist():
                total += value
            out[j] = total

    def _call(
        self,
        w: FloatArray,
        loss: Loss,
        clips: FloatArray,
        grids: FloatArray,
        weights: FloatArray | None,
        rows: Rows | None,
    ) -> dict[str, Any]:
        """Copy the numbers of a call to the card, at once."""
        if isinstance(loss, Custom):
            raise TypeError(
                f"loss must be one of the table on a card, got {loss.name!r}, a custom one: use "
                "the SiloData before to_device"
            )
        k, per_silo = len(w), w.shape[1] > 1
        parts = [w.ravel(), clips, grids.ravel(), np.array([*loss.params, 0.0])]
        parts += [] if weights is None else [weights]
        numbers = self.card.put(np.concatenate(parts))
        ends = np.cumsum([part.size for part in parts]).tolist()
        return {
            "w": numbers[: ends[0]].reshape(k, -1),
            "stride": w[0].size,
            "w_stride": self.d if per_silo else 0,
            "clip": numbers[ends[0] : ends[1]],
            "grid": numbers[ends[1] : ends[2]].reshape(k, -1),
            "params": numbers[ends[2] : ends[3]],
            "weight": None if weights is None else numbers[ends[3] :],
            "rows": None if rows is None else self.card.put(rows[0]),
            "m": grids.shape[1],
        }

    def _launch(
        self,
        name: str,
        call: dict[str, Any],
        loss: Loss,
        steps: int,
        models: int,
        tasks: Tasks,
        y_blocks: int,
        *more: Any,
        x_blocks: int | None = None,
    ) -> None:
        place = (self.p, self.intercept, self.row_bound, tasks, call["m"])
        given = _records(self.X, self.y, self.scale, self.shift, call["rows"], *place)
        names = ("w", "stride", "w_stride", "clip", "grid", "weight", "params")
        given += [*(call[key] for key in names), self.record_weight, self.margin_offset]
        grid = (tasks.number if x_blocks is None else x_blocks, y_blocks)
        constants = (*self._kind, loss.name, steps, models)
        self.card.launch(name, constants, grid, _typed([*given, *more]))
