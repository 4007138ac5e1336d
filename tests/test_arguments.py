"""What the kernels hand over to C: contiguous and aligned arrays of the right type, or nothing."""

import numpy as np
import pytest
from makers import misaligned

from dpkern import kernels
from dpkern.kernels import _arguments


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
    parts = _arguments.increasing_parts("a", (misaligned([1, 0]), misaligned([0, 1, 2])), 3, 2)
    assert all(part.flags.carray for part in parts)
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


def test_a_minibatch_holds_records_of_its_silos_alone(make):
    data = make(n=60, p=5, m=3)
    begins, ends = data.offsets[:-1], data.offsets[1:]
    bounds = np.array([0, 2, 4, 6])
    inside = np.stack([begins, ends - 1], axis=1).ravel()
    kept, offsets = _arguments.minibatch(data, (inside, bounds))
    assert kept[0] is inside
    assert kept[1] is offsets is bounds
    for i in range(6):
        for value in (begins[i // 2] - 1, ends[i // 2], -1, data.n, -(2**63), 2**63 - 1):
            outside = inside.copy()
            outside[i] = value
            with pytest.raises(ValueError, match=r"rows\[0\] must hold records of the silos"):
                _arguments.minibatch(data, (outside, bounds))
    for wrong in ([1, 2, 4, 6], [0, 2, 4, 5], [0, 2, 4, 7], [0, 4, 2, 6], [0, -1, 4, 6]):
        with pytest.raises(ValueError, match=r"rows\[1\] must rise from 0"):
            _arguments.minibatch(data, (inside, np.array(wrong)))
    with pytest.raises(ValueError, match=r"rows\[0\] must hold records of the silos"):
        _arguments.minibatch(data, (inside, np.array([0, 1, 4, 6])))
    nothing = np.empty(0, dtype=np.int64), np.zeros(4, dtype=np.int64)
    assert _arguments.minibatch(data, nothing)[0][0].size == 0
