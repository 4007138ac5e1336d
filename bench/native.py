"""Time in C: what calls of dpkern's compiled module take, of all that a call in Python takes."""

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from dpkern import _core

COMPILED = type(_core.isa)


class _Total:
    """Seconds inside the functions and methods that `timed` has wrapped."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.seconds, self._clock, self._inside = 0.0, clock, False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return function(*args, **kwargs)
            self._inside, begin = True, self._clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += self._clock() - begin
                self._inside = False

        return wrapper

    def timed_class(self, kind: type) -> type:
        own = {name: f for name, f in vars(kind).items() if isinstance(f, COMPILED)}
        own["__init__"] = kind.__init__
        return type(kind.__name__, (kind,), {name: self.timed(f) for name, f in own.items()})


def _has_methods(entry: object) -> bool:
    return isinstance(entry, type) and any(isinstance(f, COMPILED) for f in vars(entry).values())


@contextmanager
def _counted(clock: Callable[[], float]) -> Iterator[_Total]:
    total = _Total(clock)
    entries = {name: e for name, e in vars(_core).items() if not name.startswith("_")}
    wrapped = {name: total.timed(e) for name, e in entries.items() if isinstance(e, COMPILED)}
    wrapped |= {name: total.timed_class(e) for name, e in entries.items() if _has_methods(e)}
    with mock.patch.multiple(_core, **wrapped):
        yield total


def seconds_in_c(call: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Median over some calls of the time in compiled code, its argument checks included.

    Calls are made for about `seconds`, apart from those whose time is in the table: counting takes
    a fraction of a microsecond at every entry of the module.
    """
    found: list[float] = []
    end = time.perf_counter() + seconds
    with _counted(clock) as total:
        while not found or time.perf_counter() < end:
            before = total.seconds
            call()
            found.append(total.seconds - before)
    return statistics.median(found)
