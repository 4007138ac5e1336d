"""Local runs: the compiled kernel, its twin, and one step at a time."""

import math

import numpy as np
import pytest

from dpkern import _core, kernels
from dpkern import reference as ref
from dpkern.losses import LOSSES
from dpkern.regularizers import PL, ElasticNet

CLIP, GRID = 0.7, 2.0**-30

OPTIONS = [
    {},
    {"l2": 0.3},
    {"l2": 0.1, "regularizer": ("pl", 0.05)},
    {"regularizer": (PL(), 0.05), "prox": ("l1", 0.02), "penalize_intercept": False},
    {"l2": 0.1, "prox": (ElasticNet(0.3), 0.1)},
    {"l2": 0.1, "state_grid": 2.0**-10},
    {"sigma": 0.5},
    {"sigma": np.array([0.1, 0.0, 2.0, 0.3]), "prox": ("l1", 0.02)},
]


def run(descent, data, w, **options):
    eta = np.array([0.5, 0.25, 0.5, 0.1])
    rng = {"rng": 5} if "sigma" in options else {}
    defaults = {"loss": "logistic", "clip": CLIP, "steps": 4, "step_size": eta, "grid": GRID}
    return descent(data, w, **(defaults | rng | options))


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_kernel_agrees_with_its_twin_on_every_kind_of_rows(make, layout, options):
    data = make(n=60, p=9, **layout)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    # A margin that rounds the other way may move a record by one step of the grid, and a
    # coordinate beside a boundary of the state's grid by one of those.
    off = {"atol": max(60 * GRID, 2 * options.get("state_grid", 0.0)), "rtol": 1e-9}
    np.testing.assert_allclose(
        run(kernels.glm_local_descent, data, w, **options),
        run(ref.glm_local_descent, data, w, **options),
        **off,
    )


@pytest.mark.parametrize("loss", [make() for make in LOSSES.values()], ids=repr)
def test_kernel_agrees_with_its_twin_for_every_loss_and_for_float_sums(make, loss):
    data = make(n=80, p=5, intercept=True)
    w = np.random.default_rng(0).normal(0, 0.3, (data.m, data.d))
    for options in ({}, {"clip": math.inf, "grid": None}, {"steps": 7, "step_size": 0.3}):
        ours = run(kernels.glm_local_descent, data, w, loss=loss, **options)
        twin = run(ref.glm_local_descent, data, w, loss=loss, **options)
        np.testing.assert_allclose(ours, twin, rtol=1e-9, atol=80 * GRID)


@pytest.mark.parametrize("options", OPTIONS[:6], ids=str)
def test_steps_one_at_a_time_have_the_same_bits(make, options):
    data = make(n=200, p=11, intercept=True)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    whole = run(kernels.glm_local_descent, data, w, **options)
    for eta in (0.5, 0.25, 0.5, 0.1):
        w = run(kernels.glm_local_descent, data, w, steps=1, step_size=eta, **options)
    np.testing.assert_array_equal(w, whole)


def test_one_plain_step_is_a_step_along_the_gradient_kernels_sum(make):
    data = make(n=200, p=11)
    w = np.random.default_rng(0).normal(0, 0.3, data.d)
    sums = kernels.glm_gradient(data, w, clip=CLIP, grid=GRID)
    stepped = run(kernels.glm_local_descent, data, w, steps=1, step_size=0.5)
    expected = w - 0.5 * sums / np.diff(data.offsets)[:, np.newaxis]
    np.testing.assert_allclose(stepped, expected, rtol=1e-15)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_bits_for_any_number_of_threads_and_instruction_set_with_fma(make, options):
    data = make(n=500, p=40, intercept=True)
    w, before = np.zeros(data.d), _core.isa()
    results = []
    for isa in (name for name in _core.isa_names() if name != "base"):
        _core._use_isa(isa)
        results += [
            run(kernels.glm_local_descent, data, w, n_threads=k, **options) for k in (1, 2, 3)
        ]
    _core._use_isa(before)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"step_size": -1.0}, "step_size"),
        ({"step_size": [0.1, 0.2]}, "step_size"),
        ({"l2": -1.0}, "l2 is -1"),
        ({"regularizer": ("l1", 0.1)}, "regularizer is 'l1'; it must be one of pl"),
        ({"prox": ("pl", 0.1)}, "prox is 'pl'; it must be one of l1"),
        ({"prox": ("l1", -0.1)}, "prox"),
        ({"state_grid": 0.3}, "state_grid must be a power of two"),
        ({"sigma": 1.0, "clip": math.inf, "grid": None}, "sigma needs a finite clip"),
        ({"grid": 0.3}, "grid must be a power of two"),
    ],
)
def test_bad_arguments_are_refused_by_name(make, bad, message):
    data = make(n=60, p=3)
    with pytest.raises(ValueError, match=message):
        run(kernels.glm_local_descent, data, np.zeros(3), **bad)
