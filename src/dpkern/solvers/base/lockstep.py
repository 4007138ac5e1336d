"""Several runs at once, which all advance until each asks for a sum (backends.py)."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING

from dpkern._typing import FloatArray
from dpkern.solvers.base.backends import Request, answer

if TYPE_CHECKING:
    from dpkern.solvers.base.result import SolverResult
    from dpkern.solvers.base.run import Run


def finish_together(
    runs: "Sequence[tuple[Run, Coroutine[Request, FloatArray | None, SolverResult]]]",
) -> "list[SolverResult]":
    """Return the results of runs in lock-step; those with fewer rounds end earlier."""
    results: dict[int, SolverResult] = {}
    waiting: dict[int, Request] = {}

    def advance(i: int, found: FloatArray | None) -> None:
        run, algorithm = runs[i]
        try:
            if found is None:
                run.start_clock()
            waiting[i] = algorithm.send(found)
        except StopIteration as stop:
            results[i] = stop.value
        except Exception as error:
            results[i] = run.ended_by(error)

    def serve(batch: list[int]) -> None:
        requests = [waiting.pop(i) for i in batch]
        try:
            found = dict(zip(batch, answer(requests), strict=True))
        except Exception as error:
            if not all(runs[i][0].has_model for i in batch):
                raise  # and no run says that it returns a model
            results.update({i: runs[i][0].ended_by(error) for i in batch})
            return
        for i in batch:
            advance(i, found.pop(i))
        # The sums of a pass are used before the next one, which limits how many are in memory.
        own = {i: waiting[i] for i in batch if i in waiting and not waiting[i].reads_records}
        for part in _passes(own):
            serve(part)

    for i in range(len(runs)):
        advance(i, None)
    while waiting:
        for batch in _passes(waiting):
            serve(batch)
    return [results[i] for i in range(len(runs))]


def _passes(waiting: dict[int, Request]) -> list[list[int]]:
    """Return the requests of every pass over the records."""
    passes: list[list[int]] = []
    kinds: dict[object, list[int]] = {}
    for i, request in waiting.items():
        kind = request.kind
        if kind is None:
            passes.append([i])
            continue
        batch = kinds.get(kind, [])
        if not batch or len(batch) == request.most:
            batch = kinds[kind] = []
            passes.append(batch)
        batch.append(i)
    return passes
