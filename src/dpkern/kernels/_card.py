"""An NVIDIA card, by CuPy, and arrays of any library that lie on one."""

import functools
import math
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import _core
from dpkern.kernels._arguments import FloatArray, described

THREADS = 256  #: of a block, as in gpu/lanes.h

_CUDA, _CUDA_MANAGED = 2, 13  # device types of DLPack

# Nothing is contracted, and denormal numbers are kept, which CuPy's RawModule sets to zero.
_EXACT = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_OPTIONS = (*_EXACT, "-DDPK_GPU", "-std=c++17", "--device-as-default-execution-space")


class Card:
    """One NVIDIA card, by CuPy."""

    def __init__(self, number: int | None = None) -> None:
        try:
            import cupy
        except ImportError as error:
            raise ImportError(
                "sums on a card need CuPy: pip install 'dpkern[gpu]' for CUDA 13, or cupy-cuda12x"
            ) from error
        self._cupy = cupy
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise RuntimeError(
                f"sums on a card need an NVIDIA card and its driver, and CuPy found none: {error}"
            ) from error
        number = cupy.cuda.Device().id if number is None else number
        if not 0 <= number < count:
            raise ValueError(f"card must be below {count}, the number of cards, got {number}")
        self.number = number
        self._module, self._kernel = functools.cache(self._compiled), functools.cache(self._loaded)

    def in_use(self) -> AbstractContextManager[Any]:
        """Return a context in which this card is the current one."""
        device: AbstractContextManager[Any] = self._cupy.cuda.Device(self.number)
        return device

    def put(self, array: NDArray[Any]) -> Any:
        """Return a copy on the card."""
        return self._cupy.asarray(array)

    def view(self, array: Any) -> Any:
        """Return an array of another library on this card, copied only if it is strided."""
        return self._cupy.ascontiguousarray(self._cupy.from_dlpack(array))

    def empty(self, shape: tuple[int, ...]) -> Any:
        """Return space for float64 numbers on the card."""
        return self._cupy.empty(shape)

    def zero_steps(self, shape: tuple[int, ...]) -> Any:
        """Return int64 zeros on the card."""
        return self._cupy.zeros(shape, np.int64)

    def output(self, shape: tuple[int, ...]) -> FloatArray:
        """Return space in the memory of the CPU that the card writes to, and that is reused."""
        size = math.prod(shape)
        memory = self._cupy.cuda.alloc_pinned_memory(8 * size)
        found: FloatArray = np.frombuffer(memory, np.float64, size).reshape(shape)
        return found

    def get(self, array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return a copy in the memory of the CPU, or `out`, into which it is copied."""
        found: NDArray[Any] = array.get(out=out)
        return found

    def free_bytes(self) -> int:
        """Return the free memory of the card."""
        pool = self._cupy.get_default_memory_pool()
        return int(self._cupy.cuda.runtime.memGetInfo()[0]) + int(pool.free_bytes())

    def launch(
        self, name: str, constants: tuple[Any, ...], grid: tuple[int, int], given: list[Any]
    ) -> None:
        """Start a kernel, with the constants of gpu/lanes.h, in so many blocks or none."""
        if grid[0] == 0:
            return
        self._kernel(name, constants)(grid, (THREADS,), tuple(given))

    def _loaded(self, name: str, constants: tuple[Any, ...]) -> Any:
        return self._module(constants).get_function(name)

    def _compiled(self, constants: tuple[Any, ...]) -> Any:
        names = ("FLOAT32", "MAPPED", "WEIGHTED", "LOSS", "STEPS", "MODELS")
        chosen = [f"-D{name}={value}" for name, value in zip(names, constants, strict=True)]
        chosen.append(f"--gpu-architecture=sm_{self._cupy.cuda.Device().compute_capability}")
        nvrtc, module = self._cupy.cuda.nvrtc, self._cupy.cuda.function.Module()
        program = nvrtc.createProgram(_core.gpu_source(), "sums.cu", (), ())
        try:
            nvrtc.compileProgram(program, (*_OPTIONS, *chosen))
            module.load(nvrtc.getCUBIN(program))
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program)
            raise RuntimeError(f"the kernels could not be compiled for this card: {log}") from error
        finally:
            nvrtc.destroyProgram(program)
        return module


@functools.cache
def card_of(number: int | None = None) -> Card:
    """Return a card by its number, or the current one."""
    return Card(number)


def device_of(array: object) -> int | None:
    """Return the number of the card that an array of any library lies on; None for the CPU."""
    if isinstance(array, np.ndarray) or not hasattr(array, "__dlpack_device__"):
        return None
    kind, number = array.__dlpack_device__()
    return int(number) if int(kind) in (_CUDA, _CUDA_MANAGED) else None


def on_its_card(name: str, array: Any) -> Any:
    """Return an array on a card as CuPy's, contiguous, of float32 or float64."""
    own = card_of(device_of(array))
    try:
        with own.in_use():
            found = own.view(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be an array that CuPy reads and that requires no grad (PyTorch: detach() "
            f"and float()), got {described(array)}: {error}"
        ) from error
    if found.dtype not in (np.float32, np.float64):
        raise TypeError(f"{name} must be float32 or float64 on a card, got {found.dtype}")
    return found


def to_cpu(array: Any) -> NDArray[Any]:
    """Return a copy of CuPy's array in the memory of the CPU."""
    return card_of(device_of(array)).get(array)
