"""How the instruction set in use rounds; no tests here."""

import platform

from dpkern import _core


def is_fused():
    """Return whether kernels have a fused multiply-add, which aarch64 always has."""
    return _core.isa() != "base" or platform.machine() in ("aarch64", "arm64")
