"""What a run asks for while it goes on, and the process that answers.

A solver is an ``async def`` of a `Run`, and awaits sums over the records: a `Request` is a kernel
with its arguments. A run by itself has every request answered where it stands; runs in lock-step
(many.py) have requests that differ in the model, the clip norm and the grid alone answered by
one pass over the records. Newton directions, which read no records, are requests as well: those of
several runs are computed as those of more silos, in parallel. Every number has the bits that it
would have in a run by itself: a run knows nothing of the others.

Python serves Ctrl-C between compiled calls alone: the main thread waits for one that takes long.
"""

import math
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.models.losses import Custom
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from dpkern.solvers.base.result import SolverResult

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
        if several is None or how.get("grid") is None:
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
    """Return the result of a run by itself."""
    try:
        request = algorithm.send(None)
        while True:
            try:
                (found,) = answer([request])
            except BaseException as error:
                request = algorithm.throw(error)
            else:
                request = algorithm.send(found)
    except StopIteration as stop:
        return stop.value


def answer(requests: list[Request]) -> list[FloatArray]:
    """Return the results of requests of one kind, by one pass over the records."""
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


# Products of an entry of a record that a compiled call makes in some tenth of a second.
CALL_ENTRIES = 1 << 28
_LONG = 4 * CALL_ENTRIES


def interruptible(kernel: Callable[..., Any], *given: Any, **how: Any) -> Any:
    """Return the result of a compiled call, for which the main thread waits if it takes long."""
    return awaited(partial(kernel, *given, **how), products_of(kernel, given, how))


def awaited(compute: Callable[[], Any], products: float) -> Any:
    """Return the result of a computation of so many products, awaited if these are many.

    What cannot be divided goes on after Ctrl-C in a thread of its own, until it or the process
    ends; its result is lost.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or products < _LONG:
        return compute()
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(compute())
        except BaseException as error:
            errors.append(error)

    # With settings of the caller's context, such as numpy.errstate.
    thread = threading.Thread(target=copy_context().run, args=(call,), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if errors:
        raise errors[0]
    return results[0]


def products_of(
    kernel: Callable[..., Any], given: tuple[Any, ...], how: Mapping[str, Any]
) -> float:
    """Return how many products a call on records or matrices makes, from public numbers.

    A caller's own loss takes any time, and what is raised within it could be lost.
    """
    if isinstance(how.get("loss"), Custom):
        return math.inf
    data, steps = given[0], how.get("steps", how.get("step_size", 1))
    if getattr(data, "blocks", None) is not None:  # a signal is served between two blocks
        return 0.0
    steps = steps if isinstance(steps, int) else np.size(steps)
    if isinstance(data, np.ndarray):  # of which eigenvalues take about ten for an entry and row
        return 10 * data.size * data.shape[-1]
    parameters = given[1].shape[-1]  # of a perceptron, more than a row has entries
    squared = kernel in (kernels.glm_hessian, kernels.glm_products)
    return int(data.n * parameters * steps * (data.d if squared else 1))
