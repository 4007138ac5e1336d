"""Sums on a card have the bits of the CPU's kernels: by a CPU's compiler, and on a card if any."""

import copy
import ctypes
import importlib.util
import itertools
import math
import pickle

import numpy as np
import pytest
import scipy
import scipy.sparse
from adversarial import EVERY_LOSS, ROW_OPTIONS, anywhere, models, one_record, random_cases, rows
from cases import for_each
from gpu_card import DeviceArray, has_card, kernel_names, use_cpu_card
from hypothesis import given, settings
from makers import assert_refused
from rounding import is_fused

import dpkern as dpk
from dpkern import _core, kernels
from dpkern.kernels import _card, _gpu
from dpkern.kernels.grids import finest_grid
from dpkern.models.oracles import Oracle
from dpkern.solvers import SOLVERS

pytestmark = pytest.mark.skipif(not is_fused(), reason="a card fuses what this CPU does not")
on_a_card = pytest.mark.skipif(not has_card(), reason="there is no card")


@pytest.fixture(params=["cpu", pytest.param("card", marks=on_a_card)])
def card(request, monkeypatch):
    """The kernels by the CPU's compiler, and those on a card if there is one."""
    return use_cpu_card(monkeypatch) if request.param == "cpu" else _card.card_of(None)


@pytest.fixture
def cpu_card(monkeypatch):
    return use_cpu_card(monkeypatch)


def moved(data, card):
    """The records with a copy on the card."""
    other = copy.copy(data)
    other.device = _gpu.DeviceRows(data, card)
    return other


def on_card(card, G):
    """An array on the card."""
    return DeviceArray(G) if isinstance(card.put(G), np.ndarray) else card.put(G)


LAYOUTS = {
    "double": {},
    "float": {"dtype": np.float32},
    "double mapped": {"affine": True, "row_bound": 2.0},
    "float mapped": {"affine": True, "dtype": np.float32, "intercept": True},
    "double bounded": {"row_bound": 1.5, "intercept": True},
    "float bounded": {"row_bound": 2.0, "intercept": True, "dtype": np.float32},
    "double weighted": {"weighted": True, "intercept": True},
    "float weighted": {"weighted": True, "row_bound": 2.0, "dtype": np.float32},
}
WIDTHS = (1, 7, 8, 15, 16, 17, 31, 63, 64, 79, 100, 128, 240, 255, 256, 257, 300, 1000, 4096, 4500)


@pytest.mark.parametrize("layout", LAYOUTS)
@for_each("p", WIDTHS)
def test_gradients_have_the_bits_of_the_cpu(make, card, layout, p):
    """Grids from so fine that each rounding of a margin is seen to single precision."""
    n = 203 if p < 300 else 43
    data = make(n=n, p=p, m=3, seed=p, **LAYOUTS[layout])
    data.X[5], data.X[17] = np.inf, np.nan
    data.X[7] = 0.0
    there, rng = moved(data, card), np.random.default_rng(p)
    loss = EVERY_LOSS[p % len(EVERY_LOSS)]
    batches = None, (rng.integers(0, data.offsets[1], 40), np.array([0, 40, 40, 40]))
    for clip, depth, w, batch in itertools.product(
        (0.7, 30.0), (52, 30, 20), (models(data), models(data)[0]), batches
    ):
        grid = 2.0 ** (math.ceil(math.log2(256 * clip)) - depth)
        how = {"clip": clip, "grid": grid, "loss": loss, "rows": batch}
        how["silo_weight"] = [0.5, 1.0, 0.3]
        there_sums = kernels.glm_gradient(there, w, **how)
        np.testing.assert_array_equal(there_sums, kernels.glm_gradient(data, w, **how))
        assert np.any(there_sums)


@for_each("loss", EVERY_LOSS, ids=lambda loss: loss.name)
def test_every_loss_has_the_bits_of_the_cpu(make, card, loss):
    for layout, p in itertools.product(LAYOUTS.values(), (11, 130, 270)):
        data = make(n=500, p=p, m=4, **layout)
        there = moved(data, card)
        for size in (1e-9, 0.3, 40.0):
            w = size * models(data)
            how = {"loss": loss, "clip": 2.0, "grid": 2.0**-41}
            sums = kernels.glm_gradient(there, w, **how)
            np.testing.assert_array_equal(sums, kernels.glm_gradient(data, w, **how))
            values = kernels.glm_losses(there, w, loss=loss)
            np.testing.assert_array_equal(values, kernels.glm_losses(data, w, loss=loss))


def test_sums_of_losses_have_the_order_of_the_cpu(make, card):
    data = make(n=20000, p=200, m=3)
    there, w = moved(data, card), models(data)
    values = kernels.glm_losses(there, w, loss="logistic")
    np.testing.assert_array_equal(values, kernels.glm_losses(data, w, loss="logistic"))


@for_each("k", [2, 3, 7, 9])
def test_several_models_have_the_bits_of_each(make, card, k):
    rng = np.random.default_rng(k)
    for layout, p in itertools.product(LAYOUTS.values(), (5, 40, 128, 200, 300)):
        data = make(n=90, p=p, m=3, **layout)
        there = moved(data, card)
        clip, grid = rng.uniform(0.5, 2.0, k), 2.0 ** rng.integers(-33, -18, (k, data.m))
        how = {"loss": "logistic", "clip": clip, "grid": grid, "silo_weight": [0.5, 1.0, 0.7]}
        for w in (rng.standard_normal((k, data.d)), rng.standard_normal((k, data.m, data.d))):
            sums = kernels.glm_gradients(there, w, **how)
            np.testing.assert_array_equal(sums, kernels.glm_gradients(data, w, **how))


def test_rows_of_any_magnitude_have_the_bits_of_the_cpu(bare_records, card):
    rng = np.random.default_rng(0)
    for trial, p in enumerate((3, 16, 100, 128, 150, 300)):
        for dtype, spread in ((np.float64, 300), (np.float32, 40)):
            sizes = 10.0 ** rng.uniform(-spread, 0.5 * spread, (150, 1))
            with np.errstate(over="ignore", under="ignore"):
                X = (rng.standard_normal((150, p)) * sizes).astype(dtype)
            X[::11] *= dtype(1e-30)
            X[13], X[14, 0], X[15] = np.inf, np.nan, 0.0
            y = np.where(rng.random(150) < 0.5, 1.0, -1.0)
            options = [{}, {"row_bound": 1e-3}, {"intercept": True}][trial % 3]
            data = bare_records(X, y, [0, 70, 70, 150], **options)
            there = moved(data, card)
            for loss, clip in itertools.product(("logistic", "squared"), (1.0, 1e-100, 1e100)):
                w, depth = rng.standard_normal(data.d), int(rng.integers(20, 44))
                grid = 2.0 ** (math.ceil(math.log2(clip)) - depth)
                how = {"loss": loss, "clip": clip, "grid": grid}
                sums = kernels.glm_gradient(there, w, **how)
                np.testing.assert_array_equal(sums, kernels.glm_gradient(data, w, **how))


@given(case=random_cases(n=5))
@settings(anywhere, max_examples=60)
def test_random_records_have_the_bits_of_the_cpu(case, bare_records, cpu_card):
    X, y, options, w, clip, loss = case
    data = bare_records(X, y, [0, 2, 5], **options)
    how = {"loss": loss, "clip": clip}
    sums = kernels.glm_gradient(moved(data, cpu_card), w, **how)
    np.testing.assert_array_equal(sums, kernels.glm_gradient(data, w, **how))


@for_each("dtype", [np.float32, np.float64])
def test_clipped_vectors_have_the_bits_of_the_cpu(card, dtype):
    rng = np.random.default_rng(1)
    for p in (1, 9, 63, 64, 100, 4096, 4097, 9000, 45000):
        G = (rng.standard_normal((37, p)) * 10.0 ** rng.uniform(-20, 15, (37, 1))).astype(dtype)
        G[3], G[5], G[6, 0], G[7] = np.inf, 0.0, np.nan, 1e-42
        G[8] = 1.0 / math.sqrt(p)  # at the clip norm
        for clip, depth in ((1.0, 46), (1.0, 28), (3.0, 20), (1e-6, 30)):
            grid = 2.0 ** (math.ceil(math.log2(clip)) - depth)
            for offsets in (None, [0, 20, 20, 37]):
                how = {"clip": clip, "grid": grid, "offsets": offsets}
                sums = kernels.clip_and_sum(on_card(card, G), **how)
                np.testing.assert_array_equal(sums, kernels.clip_and_sum(G, **how))


@pytest.mark.proof
def test_no_record_adds_more_than_the_clip(bare_records, longer, cpu_card):
    for (name, row), y, clip in itertools.product(
        rows(700, 300).items(), [-1.0, 1e300, 1e-30], [2.0**-300, 0.1, math.pi, 2.0**300]
    ):
        for own in ROW_OPTIONS.values():
            data = one_record(bare_records, row, y, **own)
            there, w = moved(data, cpu_card), np.full(data.d, 0.1)
            for grid in (None, 2.0 ** math.floor(math.log2(clip / 32 / math.sqrt(data.d)))):
                how = {"loss": "squared", "clip": clip, "grid": grid, "silo_weight": 0.7}
                step = finest_grid(1, clip) if grid is None else grid
                assert not longer(kernels.glm_gradient(there, w, **how), step, clip), name
                G = np.asarray(row, dtype=float).reshape(1, -1)
                sums = kernels.clip_and_sum(DeviceArray(G), clip=clip, grid=grid)
                assert not longer(sums, step, clip), name


@pytest.mark.proof
def test_no_record_in_single_precision_adds_more_than_the_clip(bare_records, longer, cpu_card):
    rng = np.random.default_rng(2)
    for dim, clip in itertools.product((64, 100, 255, 1024), np.linspace(1.0, 2.0, 23)):
        x = np.full(dim, rng.uniform(1.0, 2.0), np.float32)
        data = one_record(bare_records, x, 1e9)
        fine = 2.0 ** math.ceil(math.log2(clip * 8 / (2**31 - 1)))
        for grid in (fine, 2.0 ** math.floor(math.log2(clip / 32 / math.sqrt(dim)))):
            how = {"clip": clip, "grid": grid}
            sums = kernels.glm_gradient(moved(data, cpu_card), np.zeros(dim), loss="squared", **how)
            assert not longer(sums, grid, clip)
            sums = kernels.clip_and_sum(DeviceArray(x.reshape(1, -1)), **how)
            assert not longer(sums, grid, clip)


def test_an_empty_batch_has_sum_zero(make, card):
    for p in (20, 300):
        data = make(n=50, p=p, m=3)
        batch = np.empty(0, np.int64), np.zeros(4, np.int64)
        sums = kernels.glm_gradient(moved(data, card), models(data), clip=1.0, rows=batch)
        np.testing.assert_array_equal(sums, np.zeros((3, data.d)))


def test_every_kernel_of_the_card_is_used(make, cpu_card):
    for p in (10, 300):
        there = moved(make(n=50, p=p), cpu_card)
        kernels.glm_gradient(there, np.zeros(there.d), clip=1.0)
        kernels.glm_losses(there, np.zeros(there.d), loss="logistic")
    kernels.clip_and_sum(DeviceArray(np.ones((3, 5))), clip=1.0)
    assert {name for name, *_ in cpu_card.launched} == set(kernel_names())


def test_a_row_of_few_columns_is_read_once_by_one_kernel(make, cpu_card):
    there = moved(make(n=50, p=128), cpu_card)
    kernels.glm_gradient(there, np.zeros(there.d), clip=1.0)
    assert cpu_card.launched == [("glm_sums", 8, 1)]


def test_a_round_brings_back_a_number_per_coordinate(make, cpu_card):
    there = moved(make(n=500, p=128, m=1), cpu_card)
    kernels.glm_gradient(there, np.zeros(there.d), clip=1.0)
    assert cpu_card.received == 8 * there.d


# ------------------------------------------------------------------------------ solvers


def make_records(**options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6))
    y = np.where(X[:, 0] + rng.standard_normal(400) > 0, "yes", "no")
    return dpk.SiloData.split(X, y, 3, how="random", seed=0, min_size=50, row_bound=3.0, **options)


@pytest.fixture(scope="module")
def records():
    return make_records(intercept=True)


def runs(name, trust):
    own = SOLVERS[name].declaration.own
    short = {option: 3 for option in ("rounds", "local_steps") if option in own}
    users = {"users": "silos"} if (name, trust) == ("admm", "silo") else {}
    budget = dpk.Budget(epsilon=5.0, delta=1e-5)
    return {"budget": budget, "clip": 1.0, "trust": trust, "rng": 1, **short, **users}


OFFERED = [(name, trust) for name, s in SOLVERS.items() for trust in s.declaration.trusts]


@for_each(("name", "trust"), OFFERED)
def test_solvers_release_the_bits_of_the_cpu_or_refuse(records, cpu_card, tmp_path, name, trust):
    solver, how = SOLVERS[name], runs(name, trust)
    if "local_steps" in how:
        how["local_steps"] = 1
    there = records.to_device()
    if solver.declaration.on_card:
        released = solver(there, **how)
        np.testing.assert_array_equal(released.w, solver(records, **how).w)
        assert cpu_card.launched or trust == "shuffle"  # messages of records, one by one
        return
    book = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    with pytest.raises(ValueError, match=rf"data must be .* {name}, got records on a card"):
        solver(there, accountant=book, **how)
    assert not book.entries


def test_add_remove_and_penalties_release_the_bits_of_the_cpu(records, cpu_card):
    how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-5), "clip": 1.0, "rounds": 4, "rng": 2}
    how |= {"neighbours": "add_remove", "public_size": 390, "l1": 0.01, "weights": "size"}
    here, there = (
        dpk.solve("gradient_descent", data, **how) for data in (records, records.to_device())
    )
    np.testing.assert_array_equal(here.w, there.w)
    assert here.privacy == there.privacy


def test_what_a_card_does_not_have_is_refused_before_any_release(records, cpu_card):
    there, budget = records.to_device(), dpk.Budget(epsilon=5.0, delta=1e-5)
    how = {"budget": budget, "clip": 1.0, "rounds": 3, "rng": 0}
    with pytest.raises(TypeError, match="data must be in the memory of the CPU") as refused:
        dpk.solve("federated_gd", there, local_steps=3, **how)
    assert not getattr(refused.value, "__notes__", [])
    with pytest.raises(ValueError, match="clip must be finite on a card"):
        dpk.solve("gradient_descent", there, **how | {"clip": None, "budget": None})
    assert_refused("TypeError: use the SiloData before to_device", kernels.glm_norms, there)
    assert_refused("TypeError: cannot be pickled", pickle.dumps, there)


def test_runs_in_lockstep_on_a_card_have_the_bits_of_each(records, cpu_card):
    budgets = [dpk.Budget(epsilon=e, delta=1e-5) for e in (1.0, 2.0, 4.0)]
    how = {"clip": 1.0, "rounds": 4, "budgets": budgets, "rng": [0, 1, 2]}
    here, there = (
        dpk.solve_many("gradient_descent", data, **how) for data in (records, records.to_device())
    )
    assert ("glm_sums", 1, 2) in cpu_card.launched
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one.w, other.w)


@pytest.mark.usefixtures("cpu_card")
def test_auto_on_a_card_is_a_solver_that_runs_there():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1.0, 1.0, (3000, 1)), rng.uniform(-1.0, 1.0, 3000)
    data = dpk.SiloData(X, y, [0, 3000], task="regression", row_bound=1.0, target_bound=1.0)
    how = {"budget": dpk.Budget(mu=4.0), "rng": 0}
    assert dpk.solve("auto", data, **how).solver == "ridge"
    assert dpk.solve("auto", data.to_device(), **how).solver == "gradient_descent"


def test_a_monitor_on_a_card_sees_the_numbers_of_the_cpu(records, cpu_card):
    how = {"budget": None, "clip": 1.0, "rounds": 3, "monitor": "train"}
    here, there = (
        dpk.solve("gradient_descent", data, **how) for data in (records, records.to_device())
    )
    assert here.history == there.history


class Linear(Oracle):
    """Gradients of the logistic loss, on a card."""

    name = "linear"

    def __init__(self, on_card):
        self.on_card = on_card

    def dim(self, data):
        return data.n_features

    def gradients(self, w, X, y):
        G = (-y / (1.0 + np.exp(y * (X @ w))))[:, np.newaxis] * X
        return DeviceArray(G) if self.on_card else G


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_gradients_of_a_model_on_a_card_are_summed_there(cpu_card, weights):
    records = make_records()
    how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-5), "clip": 1.0, "rounds": 3, "rng": 0}
    how |= {"step_size": 0.1, "weights": weights}
    here, there = (
        dpk.solve("minibatch_sgd", records, model=Linear(on_card), **how)
        for on_card in (False, True)
    )
    np.testing.assert_array_equal(here.w, there.w)
    assert bool(cpu_card.launched) == (weights == "size")


def test_bad_arrays_on_a_card_are_refused_by_name(cpu_card):
    G = np.ones((3, 4))
    for array, error, message in (
        (DeviceArray(G, requires_grad=True), ValueError, "G must be .* no grad"),
        (DeviceArray(G.astype(np.float16)), TypeError, "G must be float32 or float64 on a card"),
        (DeviceArray(G[0]), ValueError, r"G must have shape \(n, P\)"),
    ):
        with pytest.raises(error, match=message):
            kernels.clip_and_sum(array, clip=1.0)
    with pytest.raises(ValueError, match="clip must be finite on a card"):
        kernels.clip_and_sum(DeviceArray(G), clip=math.inf)


def test_records_that_cannot_lie_on_a_card_are_refused(records, cpu_card):
    cpu_card.free = 100
    with pytest.raises(MemoryError, match=r"need .* GiB on the card, where .* are free"):
        records.to_device()
    sparse = dpk.SiloData(scipy.sparse.csr_array(np.eye(4)), [0.0, 1.0, 0.0, 1.0], [0, 4])
    assert_refused("TypeError: X must be dense on a card", sparse.to_device)


def half_square():
    doubles = ctypes.POINTER(ctypes.c_double)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_ssize_t, *[doubles] * 5, ctypes.c_void_p)
    return scipy.LowLevelCallable(prototype(lambda *_: None))


def test_a_custom_loss_is_refused_on_a_card(records, cpu_card):
    loss = dpk.losses.Custom(half_square(), smoothness=1.0)
    with pytest.raises(TypeError, match="loss must be one of the table on a card"):
        kernels.glm_gradient(records.to_device(), np.zeros(7), loss=loss, clip=1.0)


@pytest.mark.skipif(has_card(), reason="there is a card")
def test_without_cupy_or_a_card_the_error_names_the_cure(records):
    cupy = importlib.util.find_spec("cupy")
    error, message = (RuntimeError, "NVIDIA card") if cupy else (ImportError, r"dpkern\[gpu\]")
    for call in (records.to_device, lambda: kernels.clip_and_sum(DeviceArray(np.eye(2)), clip=1.0)):
        with pytest.raises(error, match=message):
            call()


def test_each_loss_of_the_table_is_in_the_source_of_the_card():
    """A loss that is added by its rows in loss.h and losses.py needs no other on a card."""
    source = _core.gpu_source()
    for name in _core.loss_names():
        assert f"{name}_point(double y, double z" in source
    assert '#include "' not in source


def test_the_compiler_keeps_every_rounding_and_denormal_numbers():
    assert {"--fmad=false", "--ftz=false"} < set(_card._OPTIONS)
