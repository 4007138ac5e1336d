"""A card that is none: the kernels of csrc/gpu, compiled by a C compiler, on NumPy's arrays."""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from dpkern import _core
from dpkern.kernels import _card

ROOT = Path(__file__).resolve().parents[1]
CC = os.environ.get("CC", "cc").split()


@functools.cache
def library():
    """The compiled kernels; the test is skipped where there is no C compiler."""
    if shutil.which(CC[0]) is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "gpu.so")
        flags = ["-std=c17", "-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
        paths = [f"-I{ROOT / 'src/csrc'}", str(ROOT / "tests/gpu_card.c"), "-o", str(path), "-lm"]
        subprocess.run([*CC, *flags, "-shared", "-fPIC", *paths], check=True, timeout=120)
        return ctypes.CDLL(str(path))


class DeviceArray:
    """A NumPy array that says that it lies on a card."""

    def __init__(self, array, requires_grad=False):
        self.array, self.requires_grad = array, requires_grad
        self.dtype, self.shape, self.ndim = array.dtype, array.shape, array.ndim

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        raise BufferError("not in the memory of the CPU")


class CpuCard:
    """`dpkern.kernels._card.Card` on the CPU."""

    number = 0
    free = 1 << 40

    def __init__(self):
        self.launched = []
        self.received = 0  # bytes that came back

    def in_use(self):
        return nullcontext()

    def put(self, array):
        return np.array(array)

    def view(self, array):
        if array.requires_grad:
            raise BufferError("it requires grad")
        return DeviceArray(np.ascontiguousarray(array.array))

    def empty(self, shape):
        return np.full(shape, np.nan)

    def zero_steps(self, shape):
        return np.zeros(shape, np.int64)

    def output(self, shape):
        return np.full(shape, np.nan)

    def get(self, array, out=None):
        found = np.array(getattr(array, "array", array))
        self.received += found.nbytes
        if out is None:
            return found
        out[:] = found
        return out

    def free_bytes(self):
        return self.free

    def launch(self, name, constants, grid, given):
        float32, mapped, weighted, loss, steps, models = constants
        if grid[0] == 0:
            return
        self.launched.append((name, steps, models))
        assert grid[0] < 1 << 31
        assert 0 < grid[1] < 1 << 16
        number = _core.loss_names().index(loss)
        library().set_launch(float32, mapped, weighted, number, steps, models)
        getattr(library(), name)(*map(as_c, given))


def as_c(value):
    if isinstance(value, DeviceArray):
        value = value.array
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_double(value) if isinstance(value, np.float64) else ctypes.c_int64(int(value))


def use_cpu_card(monkeypatch):
    """Let all cards be one on the CPU, and return it."""
    card = CpuCard()
    monkeypatch.setattr(_card, "card_of", lambda number=None: card)
    library()
    return card


def has_card():
    """Whether CuPy finds an NVIDIA card."""
    try:
        _card.Card()
    except (ImportError, RuntimeError):
        return False
    return True


def kernel_names():
    return re.findall(r"^KERNEL (\w+)", (ROOT / "src/csrc/gpu/sums.h").read_text(), re.MULTILINE)
