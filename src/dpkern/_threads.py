"""Number of threads of kernels and of BLAS."""

import functools
import math
import numbers
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SERIAL_WORK = 1 << 18
_forked = False
_blas_lock = threading.Lock()
_blas_users = 0
_blas_before: list[tuple[Any, int]] = []


def _after_fork_in_child() -> None:
    global _forked, _blas_lock
    _forked = True
    _blas_lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@functools.cache
def _cgroup_quota() -> float:
    """Return the quota of cores of the process's control group; infinity without a quota."""
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota = (folder / "cpu/cpu.cfs_quota_us").read_text()
        period = (folder / "cpu/cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def _openmp_limit() -> float:
    """Return the first entry of OMP_NUM_THREADS; infinity if it is no positive integer."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else math.inf


def usable_cores() -> int:
    """Return the cores available by affinity mask, control group quota and OMP_NUM_THREADS."""
    has_mask = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _cgroup_quota(), _openmp_limit())))


def resolve_threads(n_threads: int | None, work: int) -> int:
    """Return the number of threads for one kernel call on `work` array entries.

    None means the cores available to the process, or one for small work. In a forked child it is
    always 1, since libgomp's threads do not survive a fork and a parallel region in the child would
    deadlock.
    """
    # isinstance with an abstract class takes a quarter of a microsecond.
    is_count = type(n_threads) is int or (
        isinstance(n_threads, numbers.Integral) and not isinstance(n_threads, bool)
    )
    if n_threads is not None and not (is_count and n_threads >= 1):
        raise ValueError(f"n_threads must be None or an integer >= 1, got {n_threads!r}")
    if _forked:
        return 1
    if n_threads is not None:
        return int(n_threads)
    return usable_cores() if work >= SERIAL_WORK else 1


@functools.cache
def _blas_libraries() -> list[Any]:
    """Return the loaded BLAS libraries, including scipy's; finding them takes milliseconds."""
    import scipy.linalg.cython_lapack  # noqa: F401
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, for kernels that call it from several threads.

    The limit is that of the process: the first of several overlapping users sets it, and the last
    one restores the previous value.
    """
    global _blas_users
    with _blas_lock:
        if _blas_users == 0:
            for lib in _blas_libraries():
                _blas_before.append((lib, lib.get_num_threads()))
                lib.set_num_threads(1)
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            while _blas_users == 0 and _blas_before:
                lib, threads = _blas_before.pop()
                lib.set_num_threads(threads)
