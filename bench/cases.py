"""What a benchmark is: one piece of work, done by several contenders."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

try:
    import numba
except ImportError:
    numba = None

Contenders = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Attributes
    ----------
    kernel, size : str
        What the table prints.
    setup : callable
        Makes the data and returns the contenders, "dpkern" first, and the array that the kernel
        must read once, or None where no input bounds it. Contenders return comparable arrays.
    amount : float
        Units of work in one call.
    unit : str
        "B" for bytes read, or what is made, such as "draws".
    tolerance : float or None
        Relative difference (in norm) between contenders that still counts as the same work; None
        where results are random.
    """

    kernel: str
    size: str
    setup: Callable[[], tuple[Contenders, np.ndarray | None]]
    amount: float
    unit: str = "B"
    tolerance: float | None = 1e-4

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.size}"


@dataclass
class Times:
    """Seconds of the single calls of each contender."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    def median(self, contender: str) -> float:
        return statistics.median(self.seconds[contender])


def refuse_other_work(case: Case, contenders: Contenders) -> None:
    """A contender that computes something else is no rival."""
    if case.tolerance is None:
        return
    ours = np.ravel(contenders["dpkern"]())
    for name, call in contenders.items():
        other = np.ravel(call())
        if not np.linalg.norm(ours - other) <= case.tolerance * np.linalg.norm(ours):
            raise RuntimeError(f"{case.name}: {name} does not compute what dpkern computes")


def measure(contenders: Contenders, seconds: float, rounds: int = 5) -> Times:
    """Times contenders for about `seconds`, in turn, so that a slow spell hits all of them.

    A turn is several calls, and its first is not counted: the thread pool of the contender before
    may still be spinning on the cores, and the caches hold that one's data.
    """
    times = Times({name: [] for name in contenders})
    turn = seconds / (rounds * len(contenders))
    for _ in range(rounds):
        for name, call in contenders.items():
            call()
            end = time.perf_counter() + turn
            while True:
                start = time.perf_counter()
                call()
                now = time.perf_counter()
                times.seconds[name].append(now - start)
                if now >= end:
                    break
    return times


if numba is not None:

    @numba.njit(parallel=True, fastmath=True)
    def _read(a: np.ndarray, n_parts: int) -> float:
        total = 0.0
        for part in numba.prange(n_parts):
            total += a[part * a.size // n_parts : (part + 1) * a.size // n_parts].sum()
        return total


def read_test(a: np.ndarray) -> Callable[[], Any]:
    """Reads every byte of `a` once, as fast as a plain sum can, with the threads numba has."""
    flat = a.reshape(-1)
    if numba is None:
        return flat.sum
    n_parts = 8 * numba.get_num_threads()
    return lambda: _read(flat, n_parts)
