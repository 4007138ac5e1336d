"""Loads the compiled part with OpenMP threads that sleep soon when they wait.

GNU OpenMP's threads spin for milliseconds at the end of every parallel region. Beside other work on
the same cores they take the time that the work they wait for needs, and a run of many short regions
becomes tens of times slower. How long they spin is read from the environment when the library is
loaded, so it is set for this moment alone: nothing that is loaded or started later sees it, and
what a user has set stays. Where another package has loaded the same library before, its setting
holds.
"""

import os

# GNU: some microseconds of spinning. LLVM: none.
_SETTINGS = {"GOMP_SPINCOUNT": "300", "KMP_BLOCKTIME": "0"}
_USERS = ("OMP_WAIT_POLICY", *_SETTINGS)


def _load() -> None:
    if any(name in os.environ for name in _USERS):
        return
    os.environ.update(_SETTINGS)
    try:
        from dpkern import _core  # noqa: F401
    finally:
        for name in _SETTINGS:
            del os.environ[name]


_load()
