"""Ctrl-C during compiled calls, which Python serves between them alone."""

import threading
from collections.abc import Callable
from typing import Any

from dpkern import kernels

# Products of an entry of a record that a compiled call makes in some tenth of a second.
CALL_ENTRIES = 1 << 28
_LONG = 4 * CALL_ENTRIES


def interruptible(kernel: Callable[..., Any], *given: Any, **how: Any) -> Any:
    """Return the result of a compiled call, for which the main thread waits if it takes long.

    A call that cannot be divided goes on after Ctrl-C in a thread of its own, until it or the
    process ends; its result is lost.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or _products(kernel, given, how.get("steps", 1)) < _LONG:
        return kernel(*given, **how)
    results: list[Any] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            results.append(kernel(*given, **how))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if errors:
        raise errors[0]
    return results[0]


def _products(kernel: Callable[..., Any], given: tuple[Any, ...], steps: int) -> int:
    """Return how many products a call on records makes, from public numbers; 0 for other calls."""
    data = given[0]
    if not hasattr(data, "offsets"):
        return 0
    parameters = given[1].shape[-1]  # of a perceptron, more than a row has entries
    return int(data.n * parameters * steps * (data.d if kernel is kernels.glm_hessian else 1))
