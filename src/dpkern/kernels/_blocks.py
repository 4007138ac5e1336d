"""Sums over records that are never in memory together: in blocks, or on other machines.

A request is a function of a block, which returns integers, steps of the grid, or numbers in
floating point where a sum has no grid. Integers are added in any order, and multiplied by the grid
once, at the end: the bits are those of the same records in memory, whatever the blocks are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpkern import _core
from dpkern._threads import resolve_threads
from dpkern.kernels._arguments import Data, FloatArray, IntArray, Rows, compiled_loss, in_blocks
from dpkern.models.losses import Loss

#: A picklable function of a block.
Request = Callable[[Data], NDArray[Any]]

MOST_STEPS = 1 << 52  #: of a sum in doubles


class Reduction(Protocol):
    """A picklable function of a block: a block of the few numbers of each record that count."""

    key: bytes  #: of what the numbers are a function, beside the records

    def reduced(self, block: Any) -> Any:
        """Return a block of these numbers, with as many records in the silos."""


@dataclass(frozen=True)
class Reduced:
    """A request that reduced blocks answer as blocks do; they may be kept for the next one."""

    by: Reduction
    request: Request

    def __call__(self, block: Any) -> NDArray[Any]:
        return self.request(block)


class BlockSource(Protocol):
    """Where records are whose blocks answer requests."""

    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        """Return the sum over all blocks of what each request returns, by one pass.

        A single `Reduced` request is answered without a pass by blocks that one with the same key
        has left; another request, or none at all, ends what is kept.
        """


def totals(data: Data, *requests: Request) -> list[NDArray[Any]]:
    """Return the sum over all records that each request asks for."""
    blocks = in_blocks(data)
    return [request(data) for request in requests] if blocks is None else blocks.totals(requests)


def at_once(data: Data, calls: Sequence[Callable[[Any], FloatArray]]) -> list[FloatArray]:
    """Return the results of several kernels on `data`, by one pass over records in blocks.

    Every kernel is called up to its requests, and again with their answers.
    """
    blocks = in_blocks(data)
    if blocks is None:
        return [call(data) for call in calls]
    asked: list[list[Request]] = []
    for call in calls:
        try:
            call(_View(data, _Asking()))
        except _Asked as found:
            asked.append(found.requests)
    answers = iter(blocks.totals([request for requests in asked for request in requests]))
    known = [[next(answers) for _ in requests] for requests in asked]
    return [call(_View(data, _Known(sums))) for call, sums in zip(calls, known, strict=True)]


class _View:
    """Data with other blocks."""

    def __init__(self, data: Data, blocks: BlockSource) -> None:
        self._data, self.blocks = data, blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)


class _Asked(Exception):
    """What a kernel asks for."""

    def __init__(self, requests: list[Request]) -> None:
        super().__init__()
        self.requests = requests


class _Asking:
    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        raise _Asked(list(requests))


class _Known:
    def __init__(self, sums: list[NDArray[Any]]) -> None:
        self._sums = sums

    def totals(self, requests: Sequence[Request]) -> list[NDArray[Any]]:
        return self._sums


def on_grid(steps: NDArray[Any], grids: FloatArray | float) -> FloatArray:
    """Return whole numbers of steps, each rounded to a double, times their grids."""
    return steps.astype(np.float64) * grids


def add_gradients(
    blocks: BlockSource,
    w: FloatArray,
    loss: Loss,
    clips: Sequence[float],
    grids: Sequence[FloatArray | None],
    weights: FloatArray | None,
    rows: Rows | None,
    n_threads: int | None,
    out: FloatArray,
) -> None:
    """Write the sums of `glm_gradient` at k models (k, 1 or m, d) to out (k, m, d)."""
    if rows is not None:
        raise ValueError("rows must be None for records in blocks, which have no places")
    requests = [
        partial(gradient_steps, point, loss, clip, q, weights, n_threads)
        for point, clip, q in zip(w, clips, grids, strict=True)
    ]
    for i, sums in enumerate(blocks.totals(requests)):
        q = grids[i]
        out[i] = sums if q is None else on_grid(sums, q[:, np.newaxis])


def gradient_steps(
    w: FloatArray,
    loss: Loss,
    clip: float,
    grids: FloatArray | None,
    weights: FloatArray | None,
    n_threads: int | None,
    block: Data,
) -> NDArray[Any]:
    """Return the sums of `glm_gradient` over a block, (m, d), in steps."""
    threads = _light_threads(n_threads)
    most = MOST_STEPS if grids is None else int(MOST_STEPS * float(grids.min()) / clip)
    total: Any = 0
    for part in _parts(block, most):
        sums = np.empty((part.m, part.d))
        compiled = compiled_loss(loss)
        _core.glm_gradient(part, w, compiled, clip, grids, weights, None, sums, threads)
        total += sums if grids is None else (sums / grids[:, np.newaxis]).astype(np.int64)
    return np.asarray(total)


def hessian_steps(
    w: FloatArray,
    loss: Loss,
    majorant: bool,
    hess_clip: float,
    row_grid: float,
    weights: FloatArray | None,
    records: int,
    n_threads: int | None,
    block: Data,
) -> NDArray[Any]:
    """Return the sums of `glm_hessian` over a block, (m, d, d), in steps of `row_grid`^2."""
    threads = resolve_threads(n_threads, block.n * block.d * (1 + block.d // 16))
    total: Any = 0
    for part in _parts(block, records if row_grid else MOST_STEPS):
        sums, compiled = np.empty((part.m, part.d, part.d)), compiled_loss(loss)
        compiled = compiled.majorant() if majorant else compiled
        how = (hess_clip, row_grid, None, weights, records, sums, threads)
        _core.glm_hessian(part, w, compiled, *how)
        total += (sums / row_grid**2).astype(np.int64) if row_grid else sums
    return np.asarray(total)


def rounded_once(steps: NDArray[np.int64], row_grid: float, grids: FloatArray | None) -> FloatArray:
    """Return sums (m, d, d) in steps of `row_grid`^2, rounded to grids (m,) if there are any."""
    if grids is None:
        return on_grid(steps, row_grid**2)
    step, q = row_grid**2, grids[:, np.newaxis, np.newaxis]
    most = np.clip(steps, -MOST_STEPS, MOST_STEPS).astype(np.float64)
    return np.rint(most * (step / q)) * q


def decrease_steps(
    models: tuple[FloatArray, FloatArray],
    loss: Loss,
    steps: FloatArray,
    bounds: FloatArray | None,
    grids: FloatArray | None,
    n_threads: int | None,
    block: Data,
) -> NDArray[Any]:
    """Return the sums of `line_search` over a block, (m, k), in steps of their grids."""
    threads = _light_threads(n_threads)
    most = MOST_STEPS
    if bounds is not None and grids is not None:
        most = int(MOST_STEPS * float((grids / bounds).min()))
    total: Any = 0
    for part in _parts(block, most):
        sums = np.empty((part.m, steps.size))
        compiled = compiled_loss(loss)
        _core.line_search(part, *models, compiled, steps, bounds, grids, sums, threads)
        total += sums if grids is None else (sums / grids).astype(np.int64)
    return np.asarray(total)


def block_losses(w: FloatArray, loss: Loss, n_threads: int | None, block: Data) -> FloatArray:
    """Return the sums of `glm_losses` over a block, (m,), in floating point."""
    sums = np.empty(block.m)
    threads = _light_threads(n_threads)
    _core.glm_losses(block, w, compiled_loss(loss), sums, threads)
    return sums


def _light_threads(n_threads: int | None) -> int:
    """Return the threads of sums that take less time than reading: by default one.

    Others would wait busily for the next block, on cores that read it.
    """
    return resolve_threads(n_threads, 0)


def _parts(block: Any, most: int) -> Iterator[Any]:
    """Yield a block in parts of at most so many records, whose sums are exact in doubles."""
    if block.n <= most:
        yield block
        return
    for first in range(0, block.n, most):
        chosen: IntArray = np.arange(first, min(first + most, block.n))
        yield block.part(chosen, np.searchsorted(chosen, block.offsets))


def place_columns(columns: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return columns of n numbers side by side, as rows (n, d) of float32 or float64."""
    out = np.empty((len(columns[0]), len(columns)), dtype)
    _core.place_columns([np.require(column, dtype, ["C", "A"]) for column in columns], out)
    return out
