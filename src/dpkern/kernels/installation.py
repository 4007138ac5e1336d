"""What the kernels run on: the instruction set, the threads and the libraries of this process."""

import os
from typing import Any

from dpkern import _core
from dpkern._threads import usable_cores

_core._use_isa(os.environ.get("DPKERN_ISA") or None)


def info() -> dict[str, Any]:
    """What this installation runs on.

    Returns
    -------
    info : dict
        version, isa (in use), isas (usable here, best first), openmp, n_threads, blas.
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


def flushes_denormals() -> bool:
    """Whether the calling thread takes denormals for zeros, or returns zeros for them.

    Norms of rows that were computed so do not bound the rows that other threads see.
    """
    return _core.flushes_denormals()
