"""Ctrl-C during compiled calls, which Python serves between them alone."""

import math
import threading
from collections.abc import Callable, Mapping
from contextvars import copy_context
from functools import partial
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern.models.losses import Custom

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
    data, steps = given[0], how.get("steps", np.size(how.get("step_size", 1)))
    if isinstance(data, np.ndarray):  # of which eigenvalues take about ten for an entry and row
        return 10 * data.size * data.shape[-1]
    parameters = given[1].shape[-1]  # of a perceptron, more than a row has entries
    return int(data.n * parameters * steps * (data.d if kernel is kernels.glm_hessian else 1))
