# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: freethreading_compatible=True
"""The only interface to C: work space, calls without the GIL, status codes.

Arguments are validated by `dpkern.kernels`; here only addresses are checked.
"""

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetName, PyCapsule_GetPointer
from libc.math cimport INFINITY, fabs
from libc.stdint cimport int32_t, int64_t, intptr_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memset


cdef extern from *:
    """
    #ifdef _OPENMP
    enum { HAVE_OPENMP = 1 };
    #else
    enum { HAVE_OPENMP = 0 };
    #endif
    """
    int HAVE_OPENMP


cdef const dpk_kernels *kernels = NULL


openmp = bool(HAVE_OPENMP)


def flushes_denormals():
    """Return whether the calling thread is in denormals-are-zero or flush-to-zero mode."""
    return bool(dpk_flushes_denormals())


def isa_names():
    """Return the instruction sets that this build and this processor support, best first."""
    names = []
    while dpk_isa(len(names)) != NULL:
        names.append(dpk_isa(len(names)).name.decode())
    return names


def isa():
    """The instruction set in use."""
    return kernels.name.decode()


def _use_isa(name):
    """Select the kernels of instruction set `name`; None selects the best."""
    global kernels
    names = isa_names()
    if name is not None and name not in names:
        raise ValueError(f"DPKERN_ISA={name!r} is not one of {names}, which this machine runs")
    kernels = dpk_isa(0 if name is None else names.index(name))


cdef list names_of(const void *table, size_t size):
    """Return the names of a table's entries, which begin with their name and end with a NULL."""
    cdef const char *entry = <const char *> table
    names = []
    while (<const char *const *> entry)[0] != NULL:
        names.append((<const char *const *> entry)[0].decode())
        entry += size
    return names


def loss_names():
    """Return the names of the compiled losses, by index."""
    return names_of(kernels.losses, sizeof(dpk_loss))


def prox_names():
    """Return the names of the compiled proximal operators, by index."""
    return names_of(kernels.proxes, sizeof(dpk_named_prox))


def smooth_names():
    """Return the names of the compiled smooth penalties, by index."""
    return names_of(kernels.smooths, sizeof(dpk_named_smooth))


def vmath_names():
    """Return the names of the compiled elementary functions, by index."""
    return names_of(kernels.vmath, sizeof(dpk_named_vmath))


ctypedef fused number:
    float
    double
    int32_t
    int64_t
    intptr_t
    uint64_t


cdef inline number *at(const number *address) except? NULL nogil:
    """Return the address of a caller's array; raise if it is misaligned, which is undefined
    behaviour in C."""
    if <uintptr_t> address % sizeof(number) != 0:
        with gil:
            raise ValueError(
                "every array must be aligned to its elements, got one that is not; "
                "np.require(array, requirements='A') makes a copy that is")
    return <number *> address


cdef inline number *first(const number[::1] array) except? NULL nogil:
    """As `at`, of an array's first element; NULL for None and for an array without elements."""
    return NULL if array is None or array.shape[0] == 0 else at(&array[0])


cdef int check(dpk_status status, const char *argument="") except -1 nogil:
    """Raise the error of a kernel's status; `argument` names what is not finite."""
    if status == DPK_OK:
        return 0
    with gil:
        if status == DPK_ERR_ROUNDING_MODE:
            raise RuntimeError(
                "the processor's rounding mode must be 'to nearest', which exact sums rely on")
        if status == DPK_ERR_NO_CONVERGENCE:
            raise RuntimeError("LAPACK's eigenvalue iteration did not converge")
        if status == DPK_ERR_NOT_FINITE:
            raise ValueError(f"{argument.decode()} must be finite")
        raise RuntimeError(f"kernel failed with status {<int> status}")


include "_core_data.pxi"
include "_core_glm.pxi"
include "_core_mlp.pxi"
include "_core_noise.pxi"
include "_core_admm.pxi"


def gpu_source():
    """Return the source of the kernels of a GPU (csrc/gpu)."""
    return gpu_source_text.decode()


def all_finite(const double[::1] values):
    """Return whether no entry is NaN or infinite."""
    return kernels.all_finite(values.shape[0], first(values)) == DPK_OK


def on_grid(const double[:, ::1] sums, const double[::1] grid):
    """Return whether sums[j] are multiples of grid[j], a power of two, within 2^52 steps."""
    cdef intptr_t j, k
    cdef double inverse, steps
    at(&sums[0, 0])
    first(grid)
    for j in range(sums.shape[0]):
        inverse = 1.0 / grid[j]
        for k in range(sums.shape[1]):
            steps = sums[j, k] * inverse  # exact; over- and underflow fail a comparison
            if not fabs(steps) <= 4503599627370496.0:
                return False
            if <double> (<int64_t> steps) * grid[j] != sums[j, k]:
                return False
    return True


def loss_block(Loss loss, const double[::1] y, const double[::1] z, double[::1] value,
               double[::1] d1, double[::1] d2):
    cdef intptr_t n = y.shape[0]
    loss.c.block(n, first(y), first(z), first(value), first(d1), first(d2), loss.c.params)


def smooth_factor(int smooth, double norm):
    return kernels.smooths[smooth].factor(norm)


def vmath(int number, const double[::1] x, double[::1] out):
    """For tests: out = f(x) for elementary function `number`."""
    kernels.vmath[number].apply(x.shape[0], first(x), first(out))


_use_isa(None)
