"""Every proximal operator: twin, optimality, firm non-expansiveness, Moreau's identity."""

import numpy as np
import pytest

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.reference.prox import PROXES
from dpkern.regularizers import REGULARIZERS

CASES = [("l1", {}), ("l2_squared", {}), *(("elastic_net", {"l1_ratio": a}) for a in (0, 0.3, 1))]


def penalty(name, x, l1_ratio=0.5):
    a = {"l1": 1.0, "l2_squared": 0.0, "elastic_net": l1_ratio}[name]
    return a * np.abs(x) + (1 - a) * 0.5 * x**2


@pytest.fixture
def v():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(0, 3, 200), [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300]])


def test_compiled_proxes_twins_and_table_are_the_same_set():
    assert set(_core.prox_names()) == set(REGULARIZERS) == set(PROXES)
    assert {name for name, _ in CASES} == set(PROXES)


@pytest.mark.parametrize(("name", "parameters"), CASES)
@pytest.mark.parametrize("gamma", [0.0, 0.1, 1.0, 1e6])
@pytest.mark.usefixtures("isa")
def test_prox_agrees_with_its_twin(name, parameters, gamma, v):
    ours = kernels.prox(name, v, gamma, **parameters)
    np.testing.assert_allclose(ours, ref.prox(name, v, gamma, **parameters), rtol=1e-15)


@pytest.mark.parametrize(("name", "parameters"), CASES)
@pytest.mark.parametrize("gamma", [0.1, 1.0, 7.0])
def test_prox_minimises_its_objective(name, parameters, gamma):
    rng = np.random.default_rng(1)
    v = rng.normal(0, 3, 200)
    x = kernels.prox(name, v, gamma, **parameters)

    def objective(x):
        return gamma * penalty(name, x, **parameters) + 0.5 * (x - v) ** 2

    for step in (1e-1, 1e-4, -1e-4, -1e-1):
        assert np.all(objective(x) <= objective(x + step))


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_prox_is_firmly_non_expansive(name, parameters, v):
    v = v[np.abs(v) < 1e100]
    u = v[::-1]
    a, b = kernels.prox(name, u, 0.7, **parameters), kernels.prox(name, v, 0.7, **parameters)
    assert np.all((a - b) ** 2 <= (a - b) * (u - v) * (1 + 1e-12) + 1e-300)


def test_moreau_identity_of_the_l1_norm(v):
    gamma = 0.7
    np.testing.assert_allclose(
        kernels.prox("l1", v, gamma) + np.clip(v, -gamma, gamma), v, rtol=1e-15
    )


def test_shape_is_kept_and_input_untouched():
    v = np.arange(6.0).reshape(2, 3)
    out = kernels.prox("l1", v[:, ::-1], 1.0)
    np.testing.assert_array_equal(out, np.maximum(v[:, ::-1] - 1.0, 0))
    np.testing.assert_array_equal(v, np.arange(6.0).reshape(2, 3))
    assert kernels.prox("l1", np.empty((0, 3)), 1.0).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.prox("l3", [1.0], 1.0), "name is 'l3'"),
        (lambda: kernels.prox("l1", [1.0], -1.0), "gamma"),
        (lambda: kernels.prox("l1", [1.0], np.nan), "gamma"),
        (lambda: kernels.prox("elastic_net", [1.0], 1.0, l1_ratio=2.0), "l1_ratio"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
