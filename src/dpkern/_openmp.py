"""Loads the extension module with OpenMP threads that spin only briefly.

GNU OpenMP's threads spin for milliseconds at the end of every parallel region. With other load on
the same cores this makes a run of many short regions tens of times slower. The spin time is read
from the environment when the library is loaded, and is therefore set during the import only, unless
the user has set it. If another package has loaded the same library before, its setting applies.
"""

import importlib
import os

# GNU: some tens of microseconds, the time between two regions of a run. LLVM: none.
_SETTINGS = {"GOMP_SPINCOUNT": "3000", "KMP_BLOCKTIME": "0"}

if not os.environ.keys() & {"OMP_WAIT_POLICY", *_SETTINGS}:
    os.environ.update(_SETTINGS)
    try:
        importlib.import_module("dpkern._core")
    finally:
        for _name in _SETTINGS:
            del os.environ[_name]
