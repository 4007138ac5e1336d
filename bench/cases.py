"""What a benchmark is: one piece of work, done by several contenders."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

try:
    import numba
except ImportError:
    numba = None

Contenders = dict[str, Callable[[], Any]]
PRODUCT = 1024  # rows of the square matrices whose product is the limit of arithmetic
DGEMM = {"dgemm": 2.0 * PRODUCT**3}  # as limits of a case
OUT_OF_CACHE = 2**27  # doubles of the array that the bandwidth of memory is measured on
SLOW = 2.0  # seconds: a longer call is counted from the first on
TURNS = 6  # an even number, as every other one is in the opposite order
PATIENCE = 1.0  # seconds a turn: most that a contender's counted calls may take, but for the last
COLD = 0.2  # seconds: a shorter call is slower while caches and threads are another's


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Attributes
    ----------
    kernel, size : str
        What the table prints.
    setup : callable
        Makes the data and returns the contenders, "dpkern" first, and an array to measure the read
        bandwidth on, or None where no reading bounds the work. Contenders return comparable arrays.
    amount : float
        Units of work in one call.
    unit : str
        "B" for bytes read, "F" for floating-point operations, or what is made, such as "draws".
    tolerance : float or None
        Relative difference (in norm) between contenders that still counts as the same work; None
        where results are random.
    goals : mapping
        Least ratio wanted: a contender's time to dpkern's, or for "read" the rate to the read
        bandwidth; and for "seconds" the longest time of a call.
    other_work : tuple of str
        Contenders that do something else on purpose: their results are not compared.
    limits : mapping
        Contenders whose rate no kernel of this kind exceeds by much, and their units of work in one
        call. Their results are not compared; of them the share of their rate is reported, and goals
        are least shares.
    parts : mapping
        Contenders that do this share of the work only, as all of it would take too long. Their
        times are divided by it.
    turns : int
        How often contenders are called in turn; more where a ratio must be known well.
    """

    kernel: str
    size: str
    setup: Callable[[], tuple[Contenders, np.ndarray | None]]
    amount: float
    unit: str = "B"
    tolerance: float | None = 1e-4
    goals: Mapping[str, float] = field(default_factory=dict)
    other_work: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, float] = field(default_factory=dict)
    turns: int = TURNS

    @property
    def name(self) -> str:
        return f"{self.kernel} {self.size}"


@dataclass
class Times:
    """Seconds of the single calls of each contender, turn by turn; none in some turns."""

    turns: dict[str, list[list[float]]] = field(default_factory=dict)

    def seconds(self, contender: str) -> list[float]:
        return [seconds for turn in self.turns[contender] for seconds in turn]

    def quartiles(self, contender: str) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile."""
        low, median, high = np.quantile(self.seconds(contender), (0.25, 0.5, 0.75)).tolist()
        return low, median, high

    def ratio(self, contender: str, other: str) -> float:
        """Time of a contender to that of another: the median over the turns that both took.

        A slow turn hits both. First calls are no turn, and with fewer than three turns it is the
        ratio of the medians of all calls.
        """
        both = zip(self.turns[contender][1:], self.turns[other][1:], strict=True)
        ratios = [np.median(mine) / np.median(others) for mine, others in both if mine and others]
        if len(ratios) < 3:
            return self.quartiles(contender)[1] / self.quartiles(other)[1]
        return float(np.median(ratios))


def refuse_other_work(case: Case, ours: np.ndarray, name: str, other: np.ndarray) -> None:
    """A contender that computes something else is no rival."""
    if case.tolerance is None or name in case.other_work or name in case.limits:
        return
    ours, other = np.ravel(ours), np.ravel(other)
    if not np.linalg.norm(ours - other) <= case.tolerance * np.linalg.norm(ours):
        raise RuntimeError(f"{case.name}: {name} does not compute what dpkern computes")


def measure(
    case: Case,
    contenders: Contenders,
    read: np.ndarray | None,
    seconds: float,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Times contenders and readers for about `seconds`, in turn: a slow spell hits all of them.

    A turn is several calls, and its first is not counted where calls are short: the caches hold the
    data of the contender before, and its thread pool may still be spinning for a moment. Every
    other turn is in the opposite order, the readers first in all of them, so that of two contenders
    each follows the readers as often.
    """
    turns: dict[str, list[list[float]]] = {}
    again = {}
    first: dict[str, float] = {}
    ours = None
    for name, call in contenders.items():
        start = clock()
        result = np.array(call())
        first[name] = clock() - start
        ours = result if ours is None else ours
        refuse_other_work(case, ours, name, result)
        turns[name] = [[first[name]] if first[name] > SLOW else []]
        again[name] = call
    reading = {} if read is None else readers(read)
    turn = seconds / (case.turns * (len(again) + len(reading)))
    patience = PATIENCE * case.turns
    order = list(again.items())
    for _ in range(case.turns):
        for name, call in (*reading.items(), *order):
            spent = sum(map(sum, turns.setdefault(name, [[]])))
            turns[name].append(counted := [])
            if spent and spent + first.get(name, 0.0) > patience:
                continue
            if first.get(name, 0.0) < COLD:
                call()
            end = time.perf_counter() + turn
            while True:
                start = clock()
                call()
                counted.append(clock() - start)
                if time.perf_counter() >= end:
                    break
        order.reverse()
    for name, part in case.parts.items():
        turns[name] = [[t / part for t in turn] for turn in turns[name]]
    return Times(turns)


if numba is not None:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    @intrinsic
    def _ask_for(context, a, i):
        """Ask for the cache line of a[i], which may lie past the end."""

        def codegen(context, builder, signature, args):
            data = cgutils.create_struct_proxy(signature.args[0])(context, builder, args[0]).data
            byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
            prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            place = builder.bitcast(builder.gep(data, [args[1]]), byte)
            builder.call(prefetch, [place, number(0), number(3), number(1)])
            return context.get_dummy_value()

        return types.void(a, i), codegen

    @numba.njit(fastmath=True, cache=True)
    def _sum(a: np.ndarray) -> float:
        total = 0.0
        for k in range(a.size):
            total += a[k]
        return total

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def _read(a: np.ndarray, n_parts: int) -> float:
        total = 0.0
        for part in numba.prange(n_parts):
            total += _sum(a[part * a.size // n_parts : (part + 1) * a.size // n_parts])
        return total

    @numba.njit(parallel=True, fastmath=True, cache=True)
    def _read_ahead(a: np.ndarray, n_parts: int) -> float:
        total = 0.0
        for part in numba.prange(n_parts):
            begin, end = part * a.size // n_parts, (part + 1) * a.size // n_parts
            for i in range(begin, end, 256):
                for k in range(0, 256, 8):
                    _ask_for(a, i + k + 256)
                total += _sum(a[i : min(i + 256, end)])
        return total


def readers(a: np.ndarray) -> Contenders:
    """Sums that read every byte of `a` once with the threads numba has, the fastest to be taken.

    One asks for what lies 2 KiB ahead: on some machines this alone keeps memory busy, and a kernel
    that does so would pass a plain sum.
    """
    flat = a.reshape(-1).view(np.float64)
    if numba is None:
        return {"read": flat.sum}
    n_parts = 8 * numba.get_num_threads()
    return {
        "read": lambda: _read(flat, n_parts),
        "read ahead": lambda: _read_ahead(flat, n_parts),
    }


READERS = ("read", "read ahead")


@cache
def dgemm() -> Callable[[], np.ndarray]:
    """A product of matrices in doubles, with the threads that BLAS has."""
    A = np.random.default_rng(0).standard_normal((PRODUCT, PRODUCT))
    return partial(np.matmul, A, A)


@cache
def out_of_cache(size: int = OUT_OF_CACHE) -> np.ndarray:
    """An array to measure the bandwidth of memory on, made once."""
    return np.ones(size)
