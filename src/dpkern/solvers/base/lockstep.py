"""Runs of solvers as coroutines, which wait for sums over the records: alone, or several at once.

A solver is an ``async def`` of a `Run`, and awaits every sum over the records. A run by itself
computes the sum at once, and never waits. Runs in lock-step all advance until each asks for a sum;
requests that differ in the model, the clip norm and the grid alone are then one pass over the
records. Newton directions, which read no records, are awaited as well: those of several runs are
computed as those of more silos, in parallel. Every number has the bits that it would have in a run
by itself: a run knows nothing of the others.
"""

import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.models.losses import Custom
from dpkern.solvers.base.interrupts import awaited, products_of
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from dpkern.solvers.base.result import SolverResult
    from dpkern.solvers.base.run import Run

Algorithm = Callable[..., "Coroutine[Request, FloatArray | None, SolverResult]"]

# Most models of one pass, and numbers of those that stay in the L2 cache beside their sums; 32
# models are faster than fewer also where they do not.
_MODELS, _CACHED = 128, 1 << 15
# Numbers in the sums of one pass, beyond those of one model: 128 MiB.
_SUMS = 1 << 24


@dataclass(frozen=True)
class Several:
    """A kernel for several models, and the arguments of which each model has its own."""

    name: str
    own: tuple[str, ...]
    axes: int  #: of the sum of a silo, as long as the model


# Arguments with which the records of a request are not all those of the run.
_OWN_RECORDS = ("rows", "subset_sizes", "poisson_last")
_OF_DESCENT = ("clip", "grid", "sigma", "step_size", "l2", "prox_step", "rng", "momentum", "before")
_SEVERAL: dict[object, Several] = {
    kernels.glm_gradient: Several("glm_gradients", ("clip", "grid"), 1),
    kernels.glm_hessian: Several("glm_hessians", ("hess_clip", "grid"), 2),
    kernels.glm_descent: Several("glm_descent", _OF_DESCENT, 1),
}
# Kernels of arrays with an entry per silo, each by itself, which take several runs as more silos.
_OF_SILOS = frozenset([kernels.newton_direction])


@dataclass(eq=False)
class Request:
    """A kernel with its arguments, for whose result a run waits.

    `given` are the records and the model of a sum over the records, or the arrays of a kernel that
    reads no records.
    """

    kernel: Callable[..., FloatArray]
    given: tuple[Any, ...]
    how: dict[str, Any]
    seconds: float = 0.0  #: the request's share of the time of the pass

    def __await__(self) -> Generator["Request", FloatArray, FloatArray]:
        return (yield self)

    def alone(self) -> FloatArray:
        """Return the result, by the kernel for one run."""
        return self.kernel(*self.given, **self.how)

    @property
    def reads_records(self) -> bool:
        """Whether the kernel is a sum over the records."""
        return self.kernel not in _OF_SILOS

    @property
    def kind(self) -> object:
        """What requests of one pass have in common; None where a request is a pass of its own."""
        several, how = _SEVERAL.get(self.kernel), self.how
        if not self.reads_records:
            return (self.kernel, *(array.shape for array in self.given), *how.items())
        if several is None or how["grid"] is None:
            return None
        if isinstance(how["loss"], Custom):  # what it returns may depend on its block
            return None
        data, w = self.given
        kind: list[object] = [self.kernel, id(data), w.shape, how.get("sigma") is None]
        for name, value in how.items():
            if name == "step_size":
                kind.append(value.shape)
            elif name in _OWN_RECORDS and value is not None:
                return None
            elif name not in several.own:
                kind.append((name, value.tobytes() if isinstance(value, np.ndarray) else value))
        return tuple(kind)

    @property
    def most(self) -> int:
        """Most requests of its kind in one pass."""
        if not self.reads_records:
            return 1 + _SUMS // sum(array.size for array in self.given)
        data = self.given[0]
        size = data.m * data.d ** _SEVERAL[self.kernel].axes
        return min(_MODELS, max(32, _CACHED // data.d), 1 + _SUMS // size)


def finish(algorithm: "Coroutine[Request, FloatArray | None, SolverResult]") -> "SolverResult":
    """Return the result of a run by itself, which never waits."""
    try:
        algorithm.send(None)
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("a solver must await the sums of its own run alone")


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
            found = dict(zip(batch, _compute(requests), strict=True))
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


def _compute(requests: list[Request]) -> list[FloatArray]:
    """Return the results of the requests of one pass."""
    begin, first = time.perf_counter(), requests[0]
    products = len(requests) * products_of(first.kernel, first.given, first.how)
    found = awaited(partial(_of_pass, requests), products)
    seconds = (time.perf_counter() - begin) / len(requests)
    for request in requests:
        request.seconds = seconds
    return list(found)


def _of_pass(requests: list[Request]) -> Iterable[FloatArray]:
    first = requests[0]
    if len(requests) == 1:
        return [first.alone()]
    if not first.reads_records:
        together = map(np.concatenate, zip(*(r.given for r in requests), strict=True))
        return np.split(first.kernel(*together, **first.how), len(requests))
    several = _SEVERAL[first.kernel]
    own = {name: _together([r.how[name] for r in requests]) for name in several.own}
    models = np.array([request.given[1] for request in requests])
    kernel = getattr(kernels, several.name)
    found: FloatArray = kernel(first.given[0], models, **(first.how | own))
    return found


def _together(values: list[Any]) -> Any:
    """Return an argument of every model as the kernel for several models takes it."""
    if values[0] is None:
        return None
    return values if isinstance(values[0], NoiseStream) else np.array(values)
