"""Instruction set, threads and libraries of this process."""

import os
from typing import Any

from dpkern import _core
from dpkern._threads import usable_cores

# Whether the calling thread flushes denormals: row norms of then are no bounds in other threads.
flushes_denormals = _core.flushes_denormals
_core._use_isa(os.environ.get("DPKERN_ISA") or None)


def info() -> dict[str, Any]:
    """Return the version, the instruction sets, the threads and the libraries in use.

    Returns
    -------
    info : dict
        version, isa (in use), isas (supported here, best first), openmp, n_threads, blas.
    """
    from importlib.metadata import version

    from threadpoolctl import threadpool_info

    blas = [lib["internal_api"] for lib in threadpool_info() if lib["user_api"] == "blas"]
    return {
        "version": version("dpkern"),
        "isa": _core.isa(),
        "isas": _core.isa_names(),
        "openmp": _core.openmp,
        "n_threads": usable_cores() if _core.openmp else 1,
        "blas": sorted(set(blas)),
    }
