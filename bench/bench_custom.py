"""glm_gradient with the logistic loss compiled by numba, beside the built-in one.

What a user's loss costs is the call once a block, through a pointer that the kernel cannot look
into, and what numba makes of the function.
"""

from functools import partial

import numpy as np
from scipy import LowLevelCallable

from bench.bench_glm import CLIP, records
from bench.cases import Case, Contenders, numba
from bench.speed import speed_test
from dpkern import SiloData, kernels
from dpkern.models.losses import Custom

if numba is not None:
    from numba import carray, types

    _numbers = types.CPointer(types.double)

    @numba.cfunc(
        types.void(types.intp, *[_numbers] * 5, types.voidptr), fastmath=True, error_model="numpy"
    )
    def _logistic(n, y, z, value, d1, d2, params):
        labels, margins = carray(y, n), carray(z, n)
        values, derivatives = carray(value, n), carray(d1, n)
        if values.ctypes.data:
            for i in range(n):
                values[i] = np.log1p(np.exp(-labels[i] * margins[i]))
        if derivatives.ctypes.data:
            for i in range(n):
                derivatives[i] = -labels[i] / (1.0 + np.exp(labels[i] * margins[i]))


def setup(n: int, d: int) -> tuple[Contenders, np.ndarray]:
    X, y, w = records(n, d)
    data = SiloData(X, y, [0, n])
    loss = Custom(LowLevelCallable(_logistic.ctypes), smoothness=0.25, lipschitz=1.0)
    gradient = partial(kernels.glm_gradient, data, w, clip=CLIP)
    return {"dpkern": partial(gradient, loss=loss), "built in": gradient}, X


def cases(quick: bool) -> list[Case]:
    if numba is None:
        return []
    sizes = [(4_000, 128)] if quick else [(1_000_000, 128), (50_000, 10)]
    return [Case("custom loss", f"{n} x {d}", partial(setup, n, d), 8 * n * d) for n, d in sizes]


test_speed = speed_test(cases, ["dpkern", "built in"])
