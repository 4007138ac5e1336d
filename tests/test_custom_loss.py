"""Losses computed by a user's compiled function: same sums as built in, signature, declaration."""

import ctypes
import dataclasses
import gc
import math
import re
import threading

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused
from pairwise import pairwise
from scipy import LowLevelCallable

import dpkern as dpk
from dpkern import kernels
from dpkern import reference as ref
from dpkern.models.losses import Custom, Huber, Logistic

DELTA = 0.7
POINTER = ctypes.POINTER(ctypes.c_double)
PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[POINTER] * 5, ctypes.c_void_p)
CYTHON = "void (intptr_t, double const *, double const *, double *, double *, double *, void *)"


def c_function(formula):
    """A function pointer that computes (y, z, params) -> (value, first, second)."""

    def block(n, y, z, *outputs_and_params):
        *outputs, params = outputs_and_params
        values = formula(*(np.ctypeslib.as_array(a, (n,)) for a in (y, z)), params)
        for out, value in zip(outputs, values, strict=True):
            if out:
                np.ctypeslib.as_array(out, (n,))[:] = value

    return PROTOTYPE(block)


def user_data(*numbers):
    return ctypes.cast((ctypes.c_double * len(numbers))(*numbers), ctypes.c_void_p)


def capsule(name, address, context=None):
    """What Cython exports for a function: an address named by its signature."""
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    names.append(ctypes.create_string_buffer(name.encode()))  # which the capsule does not copy
    return new(address, ctypes.cast(names[-1], ctypes.c_char_p), None)


names = []


def huber(y, z, params):
    delta = ctypes.cast(params, POINTER)[0]
    r = z - y
    small = np.abs(r) <= delta
    value = np.where(small, 0.5 * r * r, delta * (np.abs(r) - 0.5 * delta))
    return value, np.clip(r, -delta, delta), np.where(small, 1.0, 0.0)


def by_ctypes():
    return LowLevelCallable(c_function(huber), user_data(DELTA))


HUBER = c_function(huber)


def by_capsule():
    address = ctypes.cast(HUBER, ctypes.c_void_p).value
    return LowLevelCallable(capsule(CYTHON, address), user_data(DELTA))


def by_numba():
    numba = pytest.importorskip("numba")
    double = numba.types.CPointer(numba.types.float64)

    @numba.cfunc(numba.void(numba.types.intp, *[double] * 5, numba.types.voidptr))
    def function(n, y, z, value, d1, d2, params):
        y, z = numba.carray(y, n), numba.carray(z, n)
        value, d1, d2 = numba.carray(value, n), numba.carray(d1, n), numba.carray(d2, n)
        delta = numba.carray(params, 1, np.float64)[0]
        for i in range(n):
            r = z[i] - y[i]
            small = abs(r) <= delta
            if value.ctypes.data:
                value[i] = 0.5 * r * r if small else delta * (abs(r) - 0.5 * delta)
            if d1.ctypes.data:
                d1[i] = r if small else math.copysign(delta, r)
            if d2.ctypes.data:
                d2[i] = 1.0 if small else 0.0

    return LowLevelCallable(function.ctypes, user_data(DELTA))


MAKERS = [by_ctypes, by_capsule, by_numba]


def custom_huber(make):
    """The Huber loss, whose own parameter is `DELTA`."""
    return Custom(make(), smoothness=1.0, lipschitz=DELTA, task="regression", name="my huber")


@pytest.fixture(params=MAKERS, ids=lambda make: make.__name__)
def custom(request):
    """The Huber loss made in one way after the other."""
    return custom_huber(request.param)


def formula_loss(formula, **declared):
    return Custom(LowLevelCallable(c_function(lambda y, z, params: formula(y, z))), **declared)


@pairwise("isa", "layout", how_made=MAKERS)
def test_a_custom_loss_gives_the_sums_of_the_built_in_one(how_made, make, layout):
    custom = custom_huber(how_made)
    data = make(n=200, **layout)
    w = np.random.default_rng(1).standard_normal((data.m, data.d))
    for clip in (0.5, math.inf):
        how = {"clip": clip}
        ours = kernels.glm_gradient(data, w, loss=custom, **how)
        built_in = kernels.glm_gradient(data, w, loss=Huber(DELTA), **how)
        np.testing.assert_array_equal(ours, built_in)
    for n_threads in (1, 2, 3, 7):
        again = kernels.glm_gradient(data, w, loss=custom, clip=math.inf, n_threads=n_threads)
        np.testing.assert_array_equal(again, ours)
    np.testing.assert_allclose(
        kernels.glm_losses(data, w, loss=custom),
        kernels.glm_losses(data, w, loss=Huber(DELTA)),
        rtol=1e-12,
    )


@for_each("p", [3, 40, 1500])
def test_a_custom_loss_has_the_same_blocks_at_one_model_and_at_several(make, p):
    """What a function that ignores its contract does to records of other blocks is no worse."""

    def of_its_place(y, z):
        place = np.arange(len(z)) + z[-1]  # and of the last record of its block
        return z, np.cos(place), np.cos(place)

    data, loss = make(n=300, p=p, m=3), formula_loss(of_its_place)
    w = np.random.default_rng(2).standard_normal((3, data.d))
    how = {"loss": loss, "grid": 2.0**-30}
    each = [kernels.glm_gradient(data, point, clip=1.0, **how) for point in w]
    for n_threads in (1, 2):
        found = kernels.glm_gradients(data, w, clip=1.0, n_threads=n_threads, **how)
        np.testing.assert_array_equal(found, each)


def test_a_custom_loss_runs_beside_the_main_thread(make):
    """There Ctrl-C would be raised within the function, and lost with its values."""
    threads = set()

    def looks(y, z):
        if len(y) == 20:  # settings look at a few public margins, before any release
            threads.add(threading.current_thread())
        return z, np.cos(z), np.cos(z)

    records = make(n=20, p=3, m=1)
    data = dpk.SiloData(records.X, records.y, records.offsets, row_bound=2.0)
    how = {"loss": formula_loss(looks, smoothness=1.0), "clip": 1.0, "rounds": 1, "n_threads": 1}
    dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=1.0), **how)
    dpk.solve_many("gradient_descent", data, budgets=dpk.Budget(mu=1.0), draws=2, **how)
    assert threads
    assert threading.main_thread() not in threads


def test_runs_of_a_custom_loss_in_lock_step_are_those_by_themselves(make):
    records = make(n=100, p=4, m=2)
    data = dpk.SiloData(records.X, records.y, records.offsets, row_bound=2.0)
    loss = Custom(LowLevelCallable(c_function(huber), user_data(DELTA)), smoothness=1.0)
    budgets = [dpk.Budget(mu=0.5), dpk.Budget(mu=1.0)]
    how = {"loss": loss, "clip": 1.0, "rounds": 3}
    runs = dpk.solve_many("gradient_descent", data, budgets=budgets, rng=[1, 2], **how)
    for run, budget, seed in zip(runs, budgets, (1, 2), strict=True):
        assert run == dpk.solve("gradient_descent", data, budget=budget, rng=seed, **how)


@pytest.mark.parametrize("p", [3, 700], ids=["block", "row by row"])
def test_local_descent_runs_a_custom_loss(custom, make, p):
    data = make(n=90, p=p)
    how = {"clip": 0.5, "steps": 3, "step_size": 0.1, "sigma": 0.1, "grid": 2.0**-20, "rng": 3}
    ours, built_in = (
        kernels.glm_local_descent(data, np.zeros(data.d), loss=loss, **how)
        for loss in (custom, Huber(DELTA))
    )
    np.testing.assert_array_equal(ours, built_in)


@pairwise("isa", "layout", how_made=MAKERS)
def test_line_search_runs_a_custom_loss(how_made, make, layout):
    """Plain sums up to rounding (built-in ones share logarithms), decreases to the last bit."""
    custom = custom_huber(how_made)
    data = make(n=200, **layout)
    w, p = np.random.default_rng(1).standard_normal((2, data.m, data.d))
    steps, bound = np.array([0.0, 1.0, -0.5, 30.0]), np.array([1e-3, 1.0, 0.3, 5.0])
    for how in ({}, {"bound": bound}, {"bound": bound, "grid": 2.0**-30}):
        ours, built_in = (
            kernels.line_search(data, w, p, loss=loss, steps=steps, n_threads=k, **how)
            for loss, k in ((custom, 3), (Huber(DELTA), 1))
        )
        np.testing.assert_allclose(ours, built_in, rtol=0.0 if how else 1e-12)


@for_each("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.usefixtures("isa")
def test_values_of_a_custom_loss_that_are_not_finite_stay_within_the_bound_of_a_search(make, bad):
    """NaN and infinity less infinity are no decrease; infinities are the bound, never more."""

    def spoil(y, z):
        return np.where(z > 0.0, bad, 0.0), z, z

    data = make(n=300, p=3, m=1)
    z = kernels.glm_margins(data, np.ones(3))
    (sums,) = kernels.line_search(
        data, np.ones(3), np.ones(3), loss=formula_loss(spoil), steps=[0.0, 2.0], bound=[0.25, 0.25]
    )
    one = 0.0 if math.isnan(bad) else math.copysign(0.25, bad)
    assert sums[0] == 0.0
    assert sums[1] == one * (np.sum(z > 0.0) - np.sum(z < 0.0))


def test_a_custom_loss_that_writes_nothing_has_no_decrease(make):
    """What another record left in the same memory must not become this one's value."""
    data = make(n=300, p=3, m=1)
    silent = Custom(LowLevelCallable(PROTOTYPE(lambda *_: None)), task="regression")
    sums = kernels.line_search(
        data, np.ones(3), np.ones(3), loss=silent, steps=[0.0, 2.0], bound=[0.25, 0.25]
    )
    np.testing.assert_array_equal(sums, 0.0)


def cauchy(y, z):
    r = z - y
    square = r**2
    return 0.5 * np.log1p(square), r / (1 + square), (1 - square) / (1 + square) ** 2


def poisson(y, z):
    return np.exp(z) - y * z, np.exp(z) - y, np.exp(z)


def broken(y, z):
    """The squared loss with a derivative of NaN, inf or -inf right of 0.1."""
    bad = np.array([math.nan, math.inf, -math.inf])[np.arange(len(z)) % 3]
    return 0.5 * (z - y) ** 2, np.where(z > 0.1, bad, z - y), np.ones(len(z))


@for_each("p", [5, 700], ids=["block", "row by row"])
@for_each("formula", [cauchy, poisson, broken])
@pytest.mark.usefixtures("isa")
def test_a_formula_agrees_with_its_numpy_form(make, formula, p):
    for options in ({}, {"csr": True}, {"dtype": np.float32, "intercept": True}):
        data = make(n=300, p=p, **options)
        w = np.random.default_rng(1).standard_normal(data.d) / math.sqrt(p)
        loss = formula_loss(formula)
        for clip, grid in ((0.5, 2.0**-35), (math.inf, None)):
            how = {"clip": clip, "grid": grid}
            np.testing.assert_allclose(
                kernels.glm_gradient(data, w, loss=loss, **how),
                ref.glm_gradient(data, w, loss=formula, **how),
                rtol=1e-12,
                atol=300 * (grid or 1e-14),
            )
        np.testing.assert_allclose(
            kernels.glm_losses(data, w, loss=loss),
            ref.glm_losses(data, w, loss=formula),
            rtol=1e-12,
        )


@pairwise(
    "isa",
    bad=[math.nan, math.inf, -math.inf],
    p={"block": 5, "row by row": 700},
    clip=[0.5, math.inf],
)
def test_derivatives_that_are_not_finite_count_as_zero(make, bare_records, p, clip, bad):
    def mend(y, z):
        return z**2, np.where(z > 0.0, 0.0, z - y), z

    def spoil(y, z):
        return z**2, np.where(z > 0.0, bad, z - y), z

    for csr in (False, True):
        data = make(n=300, p=p, csr=csr)
        w = np.random.default_rng(1).standard_normal(data.d)
        spoilt, mended = (
            kernels.glm_gradient(data, w, loss=formula_loss(f), clip=clip) for f in (spoil, mend)
        )
        np.testing.assert_array_equal(spoilt, mended)
        assert np.any(spoilt)


@pytest.mark.parametrize("p", [5, 2200], ids=["block", "row by row"])
@pytest.mark.usefixtures("isa")
def test_differences_call_a_custom_loss_as_gradients_do(custom, make, p):
    """The bits of the built-in loss; what is not finite, or not written, counts as 0 at its point
    alone."""

    def spoil(y, z):
        return z**2, np.where(z > 0.0, np.where(z > 0.1, math.nan, -math.inf), z - y), z

    def mend(y, z):
        return z**2, np.where(z > 0.0, 0.0, z - y), z

    silent = Custom(LowLevelCallable(PROTOTYPE(lambda *arguments: None)))
    for csr in (False, True):
        data = make(n=300, p=p, csr=csr)
        points = np.random.default_rng(1).standard_normal((2, data.d)) / math.sqrt(p)
        for clip in (0.5, math.inf):
            losses = (custom, Huber(DELTA), *(formula_loss(f) for f in (spoil, mend)), silent)
            sums = [kernels.glm_difference(data, *points, loss=f, clip=clip) for f in losses]
            np.testing.assert_array_equal(sums[0], sums[1])
            np.testing.assert_array_equal(sums[2], sums[3])
            assert np.any(sums[1])
            assert np.any(sums[3])
            assert not np.any(sums[4])


@for_each("p", [5, 700], ids=["block", "row by row"])
@for_each("clip", [0.5, math.inf])
def test_a_derivative_that_is_not_written_is_nobody_elses(make, p, clip):
    data = make(n=300, p=p)
    w = np.random.default_rng(1).standard_normal(data.d)
    silent = Custom(LowLevelCallable(PROTOTYPE(lambda *arguments: None)))
    kernels.glm_gradient(data, w, clip=clip)  # leaves derivatives on the stack
    assert not np.any(kernels.glm_gradient(data, w, loss=silent, clip=clip))


@pairwise("isa", bad=[math.nan, math.inf, -math.inf, -1.0], hess_clip=[0.5, math.inf])
def test_curvatures_that_are_not_finite_or_negative_count_as_zero(make, hess_clip, bad):
    def mend(y, z):
        return z**2, z - y, np.where(z > 0.0, 0.0, 1.0)

    def spoil(y, z):
        return z**2, z - y, np.where(z > 0.0, bad, 1.0)

    for csr in (False, True):
        data = make(n=300, p=9, csr=csr)
        w = np.random.default_rng(1).standard_normal(data.d)
        spoilt, mended = (
            kernels.glm_hessian(data, w, loss=formula_loss(f), hess_clip=hess_clip)
            for f in (spoil, mend)
        )
        np.testing.assert_array_equal(spoilt, mended)
        assert np.any(spoilt)


@for_each("hess_clip", [0.5, math.inf])
def test_a_curvature_that_is_not_written_is_nobody_elses(make, hess_clip):
    data = make(n=300)
    w = np.random.default_rng(1).standard_normal(data.d)
    silent = Custom(LowLevelCallable(PROTOTYPE(lambda *arguments: None)))
    kernels.glm_hessian(data, w, loss="logistic", hess_clip=hess_clip)
    assert not np.any(kernels.glm_hessian(data, w, loss=silent, hess_clip=hess_clip))


def test_function_and_user_data_live_as_long_as_the_loss(make):
    data = make()
    w = np.ones(data.d)
    loss = Custom(by_ctypes())
    gc.collect()
    scratch = [user_data(*np.zeros(1000)) for _ in range(100)]
    gradient = kernels.glm_gradient(data, w, loss=loss, clip=1.0)
    del scratch
    np.testing.assert_array_equal(
        gradient, kernels.glm_gradient(data, w, loss=Huber(DELTA), clip=1.0)
    )


# The first six as found in the exports of Cython 3.3 and, for the typedefs of a fixed width and
# long, of numba 0.68 and ctypes on 64-bit Linux.
TAIL = "double *, double *, double *, double *, double *, void *"
SIGNATURES = {
    CYTHON: True,
    f"void (Py_ssize_t, {TAIL})": True,
    f"void (ptrdiff_t, {TAIL})": True,
    f"void (__pyx_t_5numpy_intp_t, {TAIL})": True,
    f"void (long, {TAIL})": ctypes.sizeof(ctypes.c_long) == ctypes.sizeof(ctypes.c_void_p),
    f"void (PY_LONG_LONG, {TAIL})": ctypes.sizeof(ctypes.c_void_p) == 8,
    f"void (int64_t, {TAIL})": ctypes.sizeof(ctypes.c_void_p) == 8,
    "void(intptr_t,const double*,const double*,double*,double*,double*,void*)": True,
    f"void (int, {TAIL})": ctypes.sizeof(ctypes.c_void_p) == 4,
    f"void (ulong, {TAIL})": False,
    f"void (size_t, {TAIL})": False,
    f"int (intptr_t, {TAIL})": False,
    f"void (intptr_t, {TAIL}, void *)": False,
    "void (intptr_t, double *, double *, double *, double *, void *)": False,
    f"void (intptr_t, {TAIL.replace('void', 'double')})": False,
    f"void (intptr_t, {TAIL.replace('double', 'float')})": False,
    f"void (intptr_t, {TAIL.replace('double *', 'double', 1)})": False,
    f"void (intptr_t, {TAIL.replace('double *', 'double **', 1)})": False,
    f"void (intptr_t *, {TAIL})": False,
    "void ()": False,
    "double (double, void *)": False,
}


@for_each("signature", SIGNATURES)
def test_the_signature_decides_whether_a_callable_is_taken(signature):
    function = LowLevelCallable(capsule(signature, 4096))
    if SIGNATURES[signature]:
        assert Custom(function).callable is function
    else:
        with pytest.raises(ValueError, match=r"callable must have signature 'void \(.*got "):
            Custom(function)


@for_each("function", [None, huber, HUBER, math.sin], ids=["None", "Python", "ctypes", "built-in"])
def test_what_is_no_low_level_callable_is_refused(function):
    with pytest.raises(TypeError, match=r"callable must be a scipy.LowLevelCallable, got "):
        Custom(function)


@for_each(
    ("bad", "message"),
    [
        ({"smoothness": 0.0}, "smoothness must be positive, got 0.0"),
        ({"smoothness": math.nan}, "smoothness must be positive, got nan"),
        ({"smoothness": None}, "TypeError: smoothness must be a real number, got None"),
        ({"lipschitz": -1.0}, "lipschitz must be positive, got -1.0"),
        ({"lipschitz": "1"}, "TypeError: lipschitz must be a real number, got '1'"),
        ({"kappa": -1}, "kappa must be finite and at least 0, got -1.0"),
        ({"kappa": math.inf}, "kappa must be finite and at least 0, got inf"),
        ({"convex": 1}, "TypeError: convex must be True or False, got 1"),
        ({"task": "ranking"}, "got 'ranking'"),
        ({"name": "logistic"}, "built-in loss, got 'logistic'"),
        ({"name": ""}, "built-in loss, got ''"),
        ({"name": 3}, "TypeError: name must be a string, got 3"),
    ],
)
def test_bad_declarations_are_refused_by_name(bad, message):
    assert_refused(message, Custom, by_ctypes(), **bad)


def test_declarations_are_keywords_and_cannot_change():
    with pytest.raises(TypeError, match="positional"):
        Custom(by_ctypes(), 1.0)
    loss = Custom(by_ctypes())
    with pytest.raises(dataclasses.FrozenInstanceError):
        loss.smoothness = 2.0


def test_a_run_declares_the_function_and_keeps_a_model_that_can_be_loaded(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 4))
    y = np.where(X[:, 0] > 0, "yes", "no")
    data = dpk.SiloData.split(X, y, m=4, how="even", seed=0, row_bound=1.0)
    seen = set()

    def hinge(labels, z):
        seen.update(labels.tolist())
        a = np.maximum(1 - labels * z, 0.0)
        return 0.5 * a**2, -labels * a, (a > 0) * 1.0

    loss = formula_loss(hinge, smoothness=1.0, name="my hinge")
    how = {"budget": dpk.Budget(mu=1.0), "clip": 0.5, "rounds": 5, "rng": 1, "n_threads": 1}
    result = dpk.solve("gradient_descent", data, loss=loss, **how)
    assert seen == {-1.0, 1.0}
    built_in = dpk.solve("gradient_descent", data, loss="squared_hinge", **how)
    np.testing.assert_array_equal(result.w, built_in.w)
    assert result.privacy.mu == built_in.privacy.mu

    declared = result.privacy.declared["loss"]
    assert declared["name"] == "my hinge"
    assert declared["smoothness"] == 1.0
    assert declared["convex"] is True
    assert "own label and margin only" in declared["custom"]
    assert "own label and margin only" in str(result.privacy)

    result.save(tmp_path / "model.npz")
    loaded = dpk.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(X), result.predict(X))
    assert loaded.loss == "my hinge"
    assert loaded.privacy.declared["loss"]["custom"] == declared["custom"]
    with pytest.raises(
        ValueError, match="predict_proba needs the loss 'logistic', 'probit' or 'softmax'"
    ):
        loaded.predict_proba(X)


def test_what_is_not_declared_is_refused_where_it_is_needed():
    X, y = np.ones((6, 1)), np.arange(6.0)
    how = {"budget": None, "rounds": 2}
    regression = dpk.SiloData.split(X, y, m=2, how="even", seed=0, row_bound=1.0)
    with pytest.raises(ValueError, match="loss 'custom' is for classification"):
        dpk.solve("gradient_descent", regression, loss=Custom(by_ctypes()), **how)
    with pytest.raises(ValueError, match="bounded second derivative, which 'custom' is not"):
        dpk.solve(
            "gradient_descent", regression, loss=Custom(by_ctypes(), task="regression"), **how
        )


def test_the_documented_example_is_the_logistic_loss(source_tree, make):
    pytest.importorskip("numba")
    text = (source_tree / "docs" / "custom_loss.md").read_text()
    program = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1]
    names = {}
    exec(program, names)
    data = make(n=400)
    w = np.random.default_rng(2).standard_normal(data.d)
    for kernel, how in ((kernels.glm_gradient, {"clip": 1.0}), (kernels.glm_losses, {})):
        np.testing.assert_allclose(
            kernel(data, w, loss=names["loss"], **how),
            kernel(data, w, loss=Logistic(), **how),
            rtol=1e-12,
            atol=1e-10,
        )


@pairwise("isa", "plain_layout", p=[11, 1200])
def test_differences_are_bounded_as_for_a_convex_loss_whatever_the_loss_is(make, layout, p):
    """So that the guarantee rests on no declaration: a concave loss has no differences left."""
    data = make(n=80, p=p, **layout)
    new, old = 0.1 * np.random.default_rng(1).standard_normal((2, data.m, data.d))
    how = {"clip": 0.5, "curvature": 0.25}
    concave = formula_loss(lambda y, z: (-z * z, -2.0 * z, -2.0))
    assert np.any(kernels.glm_difference(data, new, old, loss=concave, clip=0.5))
    assert not np.any(kernels.glm_difference(data, new, old, loss=concave, **how))
    steep = formula_loss(lambda y, z: (4.0 * z * z, 8.0 * z, 8.0))
    allowed = formula_loss(lambda y, z: (z * z / 8.0, z / 4.0, 0.25))
    found, expected = (
        kernels.glm_difference(data, new, old, loss=loss, **how) for loss in (steep, allowed)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
