"""The compiled module; what its functions take is said in _core.pyx and its parts."""

from typing import Any

def __getattr__(name: str) -> Any: ...
