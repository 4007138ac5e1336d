"""What the kernels hand over to C: contiguous and aligned arrays of the right type, or nothing."""

import numpy as np
import pytest

from dpkern import kernels
from dpkern.kernels import _arguments


def misaligned(array):
    """The same numbers, one byte off."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + 1, dtype=np.uint8)[1:]
    found = memory.view(array.dtype).reshape(array.shape)
    found[...] = array
    assert not found.flags.aligned
    return found


def test_arrays_are_aligned_and_contiguous_and_copied_only_where_they_are_not():
    good = np.arange(6.0).reshape(2, 3)
    assert _arguments.real_array("a", good) is good
    for given in (misaligned(good), good[:, ::-1], good.astype(">f8"), good.tolist()):
        found = _arguments.real_array("a", given)
        assert found.flags.carray
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, given)
    for given in (misaligned([0, 3]), [0, 3]):
        assert _arguments.offsets_of("a", given, 3).flags.carray
    assert _arguments.increasing("a", misaligned([0, 2]), 3).flags.aligned
    with pytest.raises(ValueError, match=r"out must be a float64 array, .* aligned"):
        _arguments.output(misaligned(good), (2, 3))


def test_misaligned_arguments_give_what_aligned_ones_do(make):
    data = make(n=60, p=5, m=3)
    rng = np.random.default_rng(0)
    w, p, q = rng.standard_normal((3, data.d)), rng.standard_normal(data.d), np.full(3, 2.0**-30)
    rows = np.arange(0, 60, 3), np.searchsorted(np.arange(0, 60, 3), data.offsets)
    for kernel, args, how in (
        (kernels.glm_gradient, (w,), {"clip": 0.5, "grid": q, "silo_weight": q}),
        (kernels.line_search, (w, p), {"loss": "logistic", "steps": p, "bound": abs(p)}),
        (kernels.glm_hessian, (w,), {"loss": "logistic", "hess_clip": 0.5, "silo_weight": q}),
    ):
        odd = {k: misaligned(v) if isinstance(v, np.ndarray) else v for k, v in how.items()}
        found = kernel(data, *map(misaligned, args), **odd)
        np.testing.assert_array_equal(found, kernel(data, *args, **how))
    found = kernels.glm_gradient(data, w, clip=0.5, rows=tuple(map(misaligned, rows)))
    np.testing.assert_array_equal(found, kernels.glm_gradient(data, w, clip=0.5, rows=rows))
