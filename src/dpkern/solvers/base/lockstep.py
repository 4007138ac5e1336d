"""Runs of solvers as coroutines, which wait for sums over the records: alone, or several at once.

A solver is an ``async def`` of a `Run`, and awaits every sum over the records. A run by itself
computes the sum at once, and never waits. Runs in lock-step all advance until each asks for a sum;
requests that differ in the model, the clip norm and the grid alone are then one pass over the
records. Every sum has the bits that it would have in a run by itself: a run knows nothing of
the others.
"""

import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.models.losses import Custom
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from dpkern.solvers.base.result import SolverResult
    from dpkern.solvers.base.run import Run

FloatArray = NDArray[np.float64]
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


@dataclass(eq=False)
class Request:
    """A sum over the records for which a run waits: a kernel with its arguments."""

    kernel: Callable[..., FloatArray]
    data: Any
    w: FloatArray
    how: dict[str, Any]
    seconds: float = 0.0  #: the request's share of the time of the pass

    def __await__(self) -> Generator["Request", FloatArray, FloatArray]:
        return (yield self)

    def alone(self) -> FloatArray:
        """Return the sum, by the kernel for one model."""
        return self.kernel(self.data, self.w, **self.how)

    @property
    def kind(self) -> object:
        """What requests of one pass have in common; None where a request is a pass of its own."""
        several, how = _SEVERAL.get(self.kernel), self.how
        if several is None or how["grid"] is None:
            return None
        if isinstance(how["loss"], Custom):  # what it returns may depend on its block
            return None
        kind: list[object] = [self.kernel, id(self.data), self.w.shape, how.get("sigma") is None]
        for name, value in how.items():
            if name == "step_size":
                kind.append(value.shape)
            elif name in _OWN_RECORDS and value is not None:
                return None
            elif name not in several.own:
                kind.append((name, value.tobytes() if isinstance(value, np.ndarray) else value))
        return tuple(kind)


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

    def advance(i: int, sums: FloatArray | None) -> None:
        run, algorithm = runs[i]
        try:
            if sums is None:
                run.start_clock()
            waiting[i] = algorithm.send(sums)
        except StopIteration as stop:
            results[i] = stop.value

    for i in range(len(runs)):
        advance(i, None)
    while waiting:
        # The sums of a pass are used before the next one, which limits how many are in memory.
        for batch in _passes(waiting):
            found = _compute([waiting.pop(i) for i in batch])
            for i, sums in zip(batch, found, strict=True):
                advance(i, sums)
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
        batch, data = kinds.get(kind, []), request.data
        size = data.m * data.d ** _SEVERAL[request.kernel].axes
        most = min(_MODELS, max(32, _CACHED // data.d), 1 + _SUMS // size)
        if not batch or len(batch) == most:
            batch = kinds[kind] = []
            passes.append(batch)
        batch.append(i)
    return passes


def _compute(requests: list[Request]) -> list[FloatArray]:
    """Return the sums of the requests of one pass."""
    begin, first = time.perf_counter(), requests[0]
    if len(requests) == 1:
        found = [first.alone()]
    else:
        several = _SEVERAL[first.kernel]
        own = {name: _together([r.how[name] for r in requests]) for name in several.own}
        models = np.array([request.w for request in requests])
        kernel = getattr(kernels, several.name)
        found = list(kernel(first.data, models, **(first.how | own)))
    seconds = (time.perf_counter() - begin) / len(requests)
    for request in requests:
        request.seconds = seconds
    return found


def _together(values: list[Any]) -> Any:
    """Return an argument of every model as the kernel for several models takes it."""
    if values[0] is None:
        return None
    return values if isinstance(values[0], NoiseStream) else np.array(values)
