"""SiloData keeps every record exactly once, copies nothing, and refuses bad input without leaks."""

import inspect
import json
import math
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest
import scipy.sparse
from adversarial import FLUSH
from cases import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import assert_refused, peak_memory
from pairwise import pairwise

import dpkern as dpk
from dpkern import _core, kernels
from dpkern._json import decode, encode
from dpkern.data import ScaleWarning, SiloData, Transform, train_test_split
from dpkern.data.labels import LABELS_READ, TASK_READ
from dpkern.data.validation import far_apart

HOWS = {
    "even": {},
    "random": {},
    "two_groups": {"ratio": 3.0},
    "by_label": {},
    "mixed": {"share": 0.4},
    "dirichlet": {"concentration": 0.3},
}
OF_LABELS = ("by_label", "mixed", "dirichlet")


csr = scipy.sparse.csr_array


def records(n=12, n_features=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, n_features)), np.where(np.arange(n) % 3 == 0, -1.0, 1.0)


# ---- every record in exactly one silo


def assert_same_records(data, X, y):
    """Column 0 of X is the record's number, so that rows and labels can be traced."""
    order = data.X[:, 0].astype(int)
    assert np.array_equal(np.sort(order), np.arange(len(X)))
    assert np.array_equal(data.X, X[order])
    assert np.array_equal(data.y > 0, np.asarray(y)[order] == data.classes[1])
    assert data.offsets[0] == 0
    assert data.offsets[-1] == data.n == len(data) == len(X)
    assert np.array_equal(data.sizes, np.diff(data.offsets))
    assert data.sizes.min() >= 1
    assert data.m == len(data.sizes)
    return order


@st.composite
def splits(draw):
    m = draw(st.integers(2, 7))
    min_size = draw(st.integers(1, 3))
    n = draw(st.integers(4 * m * min_size, 8 * m * min_size))
    minus = draw(st.integers(m * min_size, n - m * min_size))
    seed = draw(st.integers(0, 2**32 - 1))
    labels = np.random.default_rng(seed).permutation(np.repeat([0, 1], [minus, n - minus]))
    return np.column_stack([np.arange(n), np.ones(n)]), labels, m, min_size, seed


@for_each("how", HOWS)
@settings(max_examples=60, deadline=None)
@given(splits())
def test_split_puts_every_record_into_exactly_one_silo(how, case):
    X, y, m, min_size, seed = case
    if how in ("two_groups", "by_label", "mixed"):
        min_size = 1
    data = SiloData.split(X, y, m, how=how, seed=seed, min_size=min_size, **HOWS[how])
    assert_same_records(data, X, y)
    assert data.m == m
    assert data.sizes.min() >= min_size
    assert data.partition == how
    assert data.notes[0] == LABELS_READ
    assert len(data.notes) == 1 + (how in OF_LABELS)
    again = SiloData.split(X, y, m, how=how, seed=seed, min_size=min_size, **HOWS[how])
    assert np.array_equal(again.X, data.X)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 300), m=st.integers(1, 60), seed=st.integers(0, 99))
def test_even_sizes_differ_by_at_most_one(n, m, seed):
    m = min(n, m)
    data = SiloData.split(np.ones((n, 1)), np.ones(n), m, seed=seed, classes=[0, 1])
    assert data.sizes.max() - data.sizes.min() <= 1


@settings(max_examples=60, deadline=None)
@given(s=st.integers(1, 40), half=st.integers(1, 8), ratio=st.integers(1, 9))
def test_two_groups_have_the_stated_ratio(s, half, ratio):
    n = half * s * (1 + ratio)
    data = SiloData.split(
        np.ones((n, 1)), np.ones(n), 2 * half, how="two_groups", ratio=ratio, seed=0, classes=[0, 1]
    )
    assert np.array_equal(data.sizes, [ratio * s] * half + [s] * half)


@settings(max_examples=60, deadline=None)
@given(splits())
def test_by_label_gives_silos_of_one_label(case):
    X, y, m, _, seed = case
    data = SiloData.split(X, y, m, how="by_label", seed=seed)
    labels = [set(data.y[a:b]) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    assert all(len(found) == 1 for found in labels)


def test_a_share_of_every_silo_is_exchanged_between_one_label_and_random_records():
    """The rest stays; the labels' variance between silos falls by (1 - share)^2, in the mean."""
    X = np.arange(4000.0)[:, np.newaxis]
    y = np.where(np.random.default_rng(0).permutation(4000) < 1200, 0, 1)
    apart = SiloData.split(X, y, 10, how="by_label", seed=3)
    for share in (0.0, 0.25, 0.6, 1.0):
        data = SiloData.split(X, y, 10, how="mixed", share=share, seed=3)
        assert np.array_equal(data.sizes, apart.sizes)
        moved = data.X[:, 0] != apart.X[:, 0]
        left = np.add.reduceat(moved, data.offsets[:-1])
        assert np.all(left <= np.round(share * data.sizes))
        assert left.sum() >= 0.99 * np.round(share * data.sizes).sum() - 1
        means = np.add.reduceat(data.y, data.offsets[:-1]) / data.sizes
        between = data.weights() @ (means - data.y.mean()) ** 2 / np.var(data.y)
        assert between == pytest.approx((1.0 - share) ** 2, abs=0.02)
    assert np.array_equal(SiloData.split(X, y, 10, how="mixed", share=0, seed=3).X, apart.X)


def test_small_concentration_separates_labels_more_than_a_large_one():
    X, y = np.ones((4000, 1)), np.tile([0, 1], 2000)

    def separation(concentration):
        """Share of the label's variance that lies between silos, over 20 splits."""
        total = 0.0
        for seed in range(20):
            data = SiloData.split(X, y, 10, how="dirichlet", concentration=concentration, seed=seed)
            means = np.add.reduceat(data.y, data.offsets[:-1]) / data.sizes
            total += data.weights() @ means**2 / 20
        return total

    assert separation(0.2) > 0.55  # with labels and sizes in disagreement it is 0.44
    assert separation(1000.0) < 0.02


def test_random_sizes_are_random_and_reach_the_minimum():
    X, y = np.ones((30, 1)), np.tile([0, 1], 15)
    sizes = {
        tuple(SiloData.split(X, y, 3, how="random", min_size=8, seed=seed).sizes)
        for seed in range(200)
    }
    assert len(sizes) == 28  # every composition of the 6 spare records over 3 silos
    assert min(map(min, sizes)) == 8


@for_each("how", ["even", "random", "two_groups"])
def test_splits_that_are_not_by_label_do_not_look_at_labels(how):
    X = np.arange(40.0)[:, np.newaxis]
    orders = [
        SiloData.split(X, y, 4, how=how, seed=5, **HOWS[how]).X
        for y in (
            np.tile([0, 1], 20),
            np.repeat([0, 1], 20),
            np.random.default_rng(0).normal(size=40),
        )
    ]
    assert np.array_equal(orders[0], orders[1])
    assert np.array_equal(orders[0], orders[2])


def test_from_groups_makes_one_silo_per_group_in_sorted_order():
    groups = np.array(["b", "a", "c", "a", "b", "a"], dtype=object)
    X = np.column_stack([np.arange(6.0), np.ones(6)])
    y = np.array([0, 1, 0, 1, 1, 0])
    data = SiloData.from_groups(X, y, groups)
    order = assert_same_records(data, X, y)
    assert data.silo_names == ("a", "b", "c")
    assert order.tolist() == [1, 3, 5, 0, 4, 2]
    assert data.partition == "given"


def test_from_silos_keeps_silos_as_they_were():
    X = np.column_stack([np.arange(7.0), np.ones(7)])
    y = [3, 5, 5, 3, 5, 5, 5]
    data = SiloData.from_silos([(X[:2], y[:2]), (X[2:3], y[2:3]), (X[3:], y[3:])])
    assert assert_same_records(data, X, y).tolist() == list(range(7))
    assert data.sizes.tolist() == [2, 1, 4]


@for_each(
    ("dtypes", "expected"),
    [(("f4", "f4"), np.float32), (("f4", "f8"), np.float64), (("i1", "f4"), np.float64)],
)
def test_from_silos_is_single_precision_only_when_all_silos_are(dtypes, expected):
    X, y = records(4)
    data = SiloData.from_silos([(X.astype(dtype), y) for dtype in dtypes])
    assert data.X.dtype == expected


# ---- nothing is copied by the constructor


@for_each("dtype", [np.float32, np.float64])
def test_the_constructor_shares_the_memory_of_X(dtype):
    X, y = records()
    X = X.astype(dtype)
    data = SiloData(X, y, [0, 5, 12], intercept=True, row_bound=1.0, feature_range=(-9.0, 9.0))
    assert np.shares_memory(data.X, X)
    assert data.X.shape == X.shape
    assert data.X.strides == X.strides
    assert data.X.dtype == dtype


def test_the_constructor_shares_the_memory_of_a_memmap_and_reads_it_in_blocks(
    tmp_path, monkeypatch
):
    X, y = records(50)
    mapped = np.memmap(tmp_path / "X.dat", dtype=np.float64, mode="w+", shape=X.shape)
    mapped[:] = X
    mapped.flush()
    read_only = np.memmap(tmp_path / "X.dat", dtype=np.float64, mode="r", shape=X.shape)
    seen = []
    isfinite = np.isfinite

    def spy(values, *args, **kwargs):
        seen.append(np.size(values))
        return isfinite(values, *args, **kwargs)

    monkeypatch.setattr("dpkern.data.validation._BLOCK_BYTES", 10 * 8 * X.shape[1])
    monkeypatch.setattr(np, "isfinite", spy)
    data = SiloData(read_only, y, [0, 50])
    assert np.shares_memory(data.X, read_only)
    assert not np.shares_memory(data.y, y)
    assert seen.count(10 * X.shape[1]) == 5
    assert X.size not in seen


def test_arrays_are_read_only_and_attributes_fixed():
    X, y = records()
    data = SiloData(X, y, [0, 12], feature_range=(-9, 9))
    for array in (data.X, data.y, data.offsets, data.sizes, data.scale, data.shift):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        data.m = 2
    X[0, 0] = 7.0  # the caller's own array stays writeable
    y[0] = 7.0
    assert data.y[0] == -1.0


def test_y_offsets_and_sizes_have_the_dtypes_that_kernels_read():
    X, y = records()
    data = SiloData(X, y.astype(np.int8), np.array([0, 12], dtype=np.uint8))
    assert data.y.dtype == np.float64
    assert data.offsets.dtype == data.sizes.dtype == np.int64
    assert data.y.flags.c_contiguous
    assert data.offsets.flags.c_contiguous


def test_pickling_keeps_everything():
    X, y = records()
    data = SiloData.split(X, y, 3, how="by_label", seed=0, intercept=True, row_bound=2.0)
    back = pickle.loads(pickle.dumps(data))
    assert np.array_equal(back.X, data.X)
    assert (back.transform, back.notes) == (data.transform, data.notes)
    assert repr(back) == repr(data)


# ---- labels and tasks

LABELS = {
    "minus one and one": ([-1, 1], [-1, 1]),
    "zero and one": ([1, 0], [0, 1]),
    "floats": ([2.5, -7.0], [-7.0, 2.5]),
    "booleans": ([True, False], [False, True]),
    "unsigned": (np.array([2, 1], dtype=np.uint8), [1, 2]),
    "strings": (["M", "B"], ["B", "M"]),
    "object strings": (np.array(["M", "B"], dtype=object), ["B", "M"]),
    "bytes": ([b"M", b"B"], [b"B", b"M"]),
}


@for_each("name", LABELS)
def test_two_labels_are_mapped_and_the_map_is_kept(name):
    two, classes = LABELS[name]
    y = np.asarray(two)[[0, 1, 1, 0]]
    data = SiloData(np.ones((4, 1)), y, [0, 4])
    assert data.task == "classification"
    assert data.classes.tolist() == classes
    assert set(data.y) == {-1.0, 1.0}
    assert data.classes[(data.y > 0).astype(int)].tolist() == y.tolist()


def test_certificates_name_labels_and_tasks_that_were_read():
    X, y = records()
    real = y + 0.1 * np.arange(12)
    budget = dpk.Budget(epsilon=1.0, delta=1e-5)
    for data, read in (
        (SiloData(X, y, [0, 12]), (LABELS_READ,)),
        (SiloData.from_silos([(X, y), (X, y)]), (LABELS_READ,)),
        (SiloData(X, y, [0, 12], classes=[-1, 1]), ()),
        (SiloData(X, y, [0, 12], task="regression", target_bound=1.0), ()),
        (SiloData(X, real, [0, 12], target_bound=1.0), (TASK_READ,)),
        (SiloData.from_silos([(X, real), (X, real)]), (TASK_READ,)),
        (SiloData(X, real, [0, 12], task="regression", target_bound=1.0), ()),
    ):
        run = {"rounds": 2, "clip": 1.0, "step_size": 0.1, "rng": 0}
        assert data.notes == read
        loss = "squared" if data.task == "regression" else "logistic"
        released = dpk.solve("gradient_descent", data, loss=loss, budget=budget, **run)
        notes = released.privacy.notes
        assert tuple(n for n in notes if n in (LABELS_READ, TASK_READ)) == read


@for_each("value", [-1, 0, 1, -1.0, 0.0, 1.0, 3, True, "a"])
def test_one_label_is_refused_whichever_it_is(value):
    """Else what a run accepts would depend on which of the labels all records have."""
    X, y = np.ones((3, 1)), [value] * 3
    for task in (None, "classification"):
        with pytest.raises(ValueError, match=r"y must hold exactly two labels .* classes="):
            SiloData(X, y, [0, 3], task=task)


@for_each("task", [None, "classification"])
@for_each("classes", [[0, 1], [1, 0], [-1, 1], ["no", "yes"], [False, True]])
@for_each("both", [False, True])
def test_two_declared_labels_need_not_both_occur(classes, both, task):
    for which in (0, 1):
        y = [classes[which]] * 2 + [classes[1 - which if both else which]]
        data = SiloData(np.ones((3, 1)), y, [0, 3], task=task, classes=classes)
        assert data.task == "classification"
        assert data.classes.tolist() == classes
        assert data.classes[(data.y > 0).astype(int)].tolist() == y
        how = dict(how="dirichlet", concentration=1.0, task=task, classes=classes)
        data = SiloData.split(np.ones((3, 1)), y, 2, seed=0, **how)
        assert data.classes.tolist() == classes


@for_each(
    ("y", "task", "classes", "message"),
    [
        ([0, 0, 2], None, [0, 1], "y must hold labels of classes only, got 1 other$"),
        (
            [0, 1, 2],
            None,
            [0, 1, 2],
            "classes must be two labels unless task is 'multiclass', got 3",
        ),
        ([0, 1, 2], "regression", [0, 1], "classes must"),
        ([0, 1, 2], "multiclass", [0, 1, 2, 1], r"classes must hold every label once, got \[0, 1"),
        ([0, 1, 2], "multiclass", [0], "classes must have 2 to 16777216 entries, got 1"),
        ([0, 1, 2], "multiclass", 3, "classes must be the list of labels"),
        ([0, 1, 2], "multiclass", None, "classes must be the public labels"),
        ([0, 1, 3], "multiclass", [0, 1, 2], "^y must hold labels of classes only, got 1 other$"),
        ([*"abc"], "multiclass", [0, 1], "TypeError: classes must be strings as in y"),
    ],
)
def test_declared_labels_that_do_not_fit_are_refused(y, task, classes, message):
    assert_refused(message, SiloData, np.ones((3, 1)), y, [0, 3], task=task, classes=classes)


def test_labels_in_two_spellings_are_refused_unless_they_are_declared():
    X, y = np.ones((4, 1)), np.array(["Yes", "yes ", "Yes", "yes "])
    message = "^y must spell every label in one way, got 2 labels of which 1 differ"
    assert_refused(message, SiloData, X, y, [0, 4])
    assert SiloData(X, y, [0, 4], classes=["yes ", "Yes"]).y.tolist() == [1.0, -1.0, 1.0, -1.0]
    assert SiloData(X, np.array(["no", "yes", "no", "yes"]), [0, 4]).task == "classification"


@for_each(
    ("y", "task", "expected"),
    [
        ([0.5, 1.5, 2.5], None, "regression"),
        ([0, 1, 2], "regression", "regression"),
        ([0, 1, 1], "regression", "regression"),
        ([4, 4, 4], "regression", "regression"),
        (np.array([1, 2.5, True], dtype=object), None, "classification"),
        ([0.0, 1.0, 1.0], "classification", "classification"),
    ],
)
def test_the_task_is_inferred_or_as_passed(y, task, expected):
    data = SiloData(np.ones((3, 1)), y, [0, 3], task=task)
    assert data.task == expected
    if expected == "regression":
        assert data.classes is None
        assert data.y.tolist() == [float(value) for value in y]


@for_each(
    ("y", "found"),
    [
        ([3, 3, 3, 5, 5, 3, 5, 5, 3], (3, 5)),
        ([5, 5, 5, 5, 3, 3, 3, 3, 3], (3, 5)),
        ([1, 1, 1, 1, -1, 1, 1, 1, -1], (-1, 1)),
        ([1.0, 1, 1, 1, 1, 1, 1, 1, 2], (1, 2)),
        ([1.0, 2, 1, 1, 1, 1, 1, 1, 3], None),
        ([1.0, 1, 1, 1, 2, 2, 2, 2, 3], None),
        ([-1.0, 1, 1, 1, 1, 1, 1, 1, 3], None),
    ],
)
def test_labels_are_found_wherever_they_stand(y, found, monkeypatch):
    monkeypatch.setattr("dpkern.data.validation._BLOCK_BYTES", 16)
    data = SiloData(np.ones((9, 1)), y, [0, 9])
    assert data.task == ("regression" if found is None else "classification")
    if found is not None:
        assert tuple(data.classes) == found
        assert np.array_equal(data.classes[(data.y > 0).astype(int)], y)


# ---- the virtual rows


def effective_rows(X, lo, hi, intercept, row_bound):
    """The definition, one record at a time."""
    rows = []
    for x in np.asarray(X, dtype=np.float64):
        v = list(x)
        if lo is not None:
            v = [
                (2 * a - lo_k - hi_k) / (hi_k - lo_k)
                for a, lo_k, hi_k in zip(v, lo, hi, strict=True)
            ]
        v += [1.0] * intercept
        norm = math.sqrt(math.fsum(a * a for a in v))
        rows.append([a * min(1.0, row_bound / norm) if norm else a for a in v])
    return np.array(rows)


@pairwise(
    dtype=["float64", "float32", "int64"],
    intercept=[False, True],
    row_bound=[None, 0.5, 2.0],
    bounded=[False, True],
)
def test_transform_follows_the_formula(dtype, intercept, row_bound, bounded, monkeypatch):
    monkeypatch.setattr("dpkern.data.validation._BLOCK_BYTES", 100)
    X = (3 * records(40)[0]).astype(dtype)
    X[7] = 0
    lo, hi = (np.array([-4.0, -1.0, 0.0]), np.array([4.0, 5.0, 1e-3])) if bounded else (None, None)
    data = SiloData.from_silos(
        [(X, records(40)[1])],
        intercept=intercept,
        row_bound=math.inf if row_bound is None else row_bound,
        feature_range=(lo, hi) if bounded else None,
    )
    expected = effective_rows(X, lo, hi, intercept, data.row_bound)
    rows = data.transform.apply(X)
    assert rows.dtype == np.float64
    assert rows.shape == (40, data.d)
    assert data.d == data.n_features + intercept == data.transform.d
    np.testing.assert_allclose(rows, expected, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(rows, axis=1).max() <= data.row_bound * (1 + 1e-15)
    w = np.arange(1.0, data.d + 1)
    np.testing.assert_allclose(data.transform.margins(X, w), expected @ w, rtol=1e-12, atol=1e-12)


def test_scale_and_shift_map_the_range_to_minus_one_and_one():
    lo, hi = np.array([-4.0, 0.0, 7.0]), np.array([4.0, 0.1, 9.0])
    X, y = records()
    data = SiloData(X, y, [0, 12], feature_range=(lo, hi))
    np.testing.assert_allclose(data.scale * lo + data.shift, -1.0, rtol=1e-14)
    np.testing.assert_allclose(data.scale * hi + data.shift, 1.0, rtol=1e-14)
    assert np.array_equal(data.feature_range, (lo, hi))
    assert data.transform.scale == tuple(data.scale)
    assert data.transform.shift == tuple(data.shift)


@for_each(
    "transform",
    [
        Transform(3),
        Transform(2, True, 1.5),
        Transform(2, False, math.inf, (0.1, 1 / 3), (0.0, -0.5)),
    ],
)
def test_transform_survives_strict_json(transform):
    assert_survives_strict_json(transform)


def assert_survives_strict_json(transform):
    text = json.dumps(encode(asdict(transform)), allow_nan=False)
    assert Transform.of_fields(decode(json.loads(text))) == transform


@for_each(
    ("X", "message"),
    [
        (np.ones((2, 4)), "the 3 features of the model, got 4"),
        (np.ones(3), "shape"),
        ([["1", "2", "3"]], "TypeError: real numbers"),
        ([[1.0, math.nan, 2.0]], r"got 1 NaN or infinite value in 1 of 1 row \(1 in column 1\)"),
        (scipy.sparse.csr_array(np.ones((2, 4))), "the 3 features of the model, got 4"),
        (scipy.sparse.coo_array(np.ones((2, 3))), r"TypeError: coo_array: pass X\.tocsr\(\)"),
        (scipy.sparse.csr_array([[1.0, math.inf, 2.0]]), "got 1 NaN or infinite value in 1 of"),
        (np.ma.masked_equal(np.ones((2, 3)), 1), "TypeError: masked"),
    ],
)
def test_transform_refuses_rows_that_do_not_fit(X, message):
    assert_refused(message, Transform(3).apply, X)
    assert_refused(message, Transform(3).margins, X, np.ones(3))


def test_transform_refuses_a_model_of_another_size():
    margins = Transform(3, intercept=True).margins
    assert_refused(r"w must have shape \(4,\), got \(3,\)", margins, np.ones((2, 3)), np.ones(3))


# ---- sparse rows


@pytest.fixture
def few_entries_a_block(monkeypatch):
    monkeypatch.setattr("dpkern.data.validation._BLOCK_ENTRIES", 5)


def sparse_records(n=40, n_features=6, seed=0, dtype=np.float64):
    """Dense rows, a third of the entries stored, some rows empty; entries (0, 0) and (1, 0)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, n_features)) * (rng.random((n, n_features)) < 0.35)
    X[::7] = 0.0
    X[:2, 0] = 1.5
    return X.astype(dtype), np.where(rng.random(n) < 0.5, -1.0, 1.0)


def assert_stored_as_kernels_read(X, expected):
    assert isinstance(X, csr)
    assert X.shape == expected.shape
    assert (X.data.dtype, X.indices.dtype) == (expected.dtype, "i4")
    assert X.indptr.dtype in ("i4", "i8")
    for array in (X.data, X.indices, X.indptr):
        assert array.flags.c_contiguous
        assert array.flags.aligned
        assert not array.flags.writeable
    assert len(X.data) == len(X.indices) == X.indptr[-1]
    for a, b in zip(X.indptr[:-1], X.indptr[1:], strict=True):
        assert np.all(np.diff(X.indices[a:b]) > 0)
    np.testing.assert_array_equal(X.toarray(), expected)


@for_each("dtype", [np.float32, np.float64])
@for_each("make", [scipy.sparse.csr_array, scipy.sparse.csr_matrix])
def test_the_constructor_shares_values_and_indices_of_canonical_csr(make, dtype):
    X, y = sparse_records(dtype=dtype)
    given = make(X)
    given.data[-1] = X[X != 0][-1] = 0.0  # an explicit zero stays stored
    data = SiloData(given, y, [0, 5, 40], intercept=True, row_bound=1.0)
    assert_stored_as_kernels_read(data.X, given.toarray())
    assert data.X.nnz == given.nnz
    assert np.shares_memory(data.X.data, given.data)
    assert np.shares_memory(data.X.indices, given.indices)
    assert (data.n, data.n_features, data.d, data.m) == (40, 6, 7, 2)
    assert given.data.flags.writeable


def test_only_what_kernels_cannot_read_is_copied():
    X, y = sparse_records()
    sums = []
    for width in (np.int32, np.int64):
        given = csr(X)
        given.indices, given.indptr = given.indices.astype(np.int64), given.indptr.astype(width)
        data = SiloData(given, y, [0, 40])
        assert_stored_as_kernels_read(data.X, X)
        assert np.shares_memory(data.X.data, given.data)
        assert np.shares_memory(data.X.indptr, given.indptr)
        sums.append(kernels.glm_gradient(data, np.ones(6), clip=1.0))
    np.testing.assert_array_equal(*sums)
    spaced = csr(X)
    spaced.data = np.repeat(spaced.data, 2)[::2]
    spaced.indptr = np.repeat(spaced.indptr.astype(np.int64), 2)[::2]
    assert_stored_as_kernels_read(SiloData(spaced, y, [0, 40]).X, X)
    longer = csr(X)
    longer.data, longer.indices = np.append(longer.data, 9.0), np.append(longer.indices, 0)
    assert_stored_as_kernels_read(SiloData(longer, y, [0, 40]).X, X)


@st.composite
def stored_entries(draw):
    """Arrays of a CSR matrix in any order, with repeated columns and wrong flags."""
    n, p = draw(st.integers(1, 9)), draw(st.integers(1, 4))
    columns = draw(st.lists(st.lists(st.integers(0, p - 1), max_size=8), min_size=n, max_size=n))
    indices = np.array([k for row in columns for k in row], dtype=draw(st.sampled_from("iq")))
    data = np.random.default_rng(0).integers(-9, 9, len(indices)).astype(float)
    X = csr((data, indices, np.cumsum([0, *map(len, columns)])), shape=(n, p))
    X.has_canonical_format = True  # which is not believed
    return X


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(stored_entries())
@pytest.mark.usefixtures("few_entries_a_block")
def test_repeated_entries_are_added_and_rows_sorted_in_a_copy(X):
    before = [a.copy() for a in (X.data, X.indices, X.indptr)]
    dense = np.zeros(X.shape)
    np.add.at(dense, (np.repeat(np.arange(len(dense)), np.diff(X.indptr)), X.indices), X.data)
    n, y, known = len(dense), np.ones(len(dense)), {"classes": [0, 1]}
    order = np.random.default_rng(1).permutation(n)
    assert_stored_as_kernels_read(SiloData(X, y, [0, n], **known).X, dense)
    joined = SiloData.from_silos([(X, y), (X, y)], **known)
    assert_stored_as_kernels_read(joined.X, np.tile(dense, (2, 1)))
    grouped = SiloData.from_groups(X, y, order, **known)
    assert_stored_as_kernels_read(grouped.X, dense[np.argsort(order)])
    transform = Transform(X.shape[1], True, 2.0)
    np.testing.assert_allclose(transform.apply(X).toarray(), transform.apply(dense), rtol=1e-15)
    for array, copy in zip((X.data, X.indices, X.indptr), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@for_each("dtype", ["f4", "f8", "i2", "?"])
@for_each("how", HOWS)
@pytest.mark.usefixtures("few_entries_a_block")
def test_sparse_records_go_where_dense_ones_go(how, dtype):
    X, y = sparse_records(60)
    X = X.astype(dtype)
    options = dict(how=how, seed=3, **HOWS[how])
    dense, sparse = (SiloData.split(rows, y, 4, **options) for rows in (X, csr(X)))
    assert_stored_as_kernels_read(sparse.X, dense.X)
    assert np.array_equal(sparse.y, dense.y)
    assert np.array_equal(sparse.offsets, dense.offsets)
    groups = np.random.default_rng(0).integers(0, 5, 60)
    dense, sparse = (SiloData.from_groups(rows, y, groups) for rows in (X, csr(X)))
    assert_stored_as_kernels_read(sparse.X, dense.X)
    assert np.array_equal(sparse.offsets, dense.offsets)
    dense, sparse = (SiloData.from_silos([(a, y), (a, y)]) for a in (X, csr(X)))
    assert_stored_as_kernels_read(sparse.X, dense.X)


@for_each("form", [np.array, csr])
def test_from_groups_does_not_copy_what_is_in_order(form):
    X, y = sparse_records()
    given, groups = form(X), np.arange(40) // 9
    values = np.asarray(given.data)
    data = SiloData.from_groups(given, y, groups)
    assert np.shares_memory(data.X.data, values)
    assert data.sizes.tolist() == [9, 9, 9, 9, 4]
    assert data.silo_names == (0, 1, 2, 3, 4)
    assert not np.shares_memory(SiloData.from_groups(given, y, -groups).X.data, values)


def test_sparse_rows_cannot_be_assigned_to():
    X, y = sparse_records()
    for data in (SiloData(csr(X), y, [0, 40]), SiloData.split(csr(X), y, 3, seed=0)):
        back = pickle.loads(pickle.dumps(data))
        for held in (data, back):
            for k in (int(held.X.indices[0]), int(np.flatnonzero(held.X.toarray()[0] == 0)[0])):
                with pytest.raises(ValueError, match="read-only"):
                    held.X[0, k] = 9.0
            with pytest.raises(ValueError, match="read-only"):
                held.X.data[0] = 9.0
        assert_stored_as_kernels_read(back.X, data.X.toarray())
        part = data.X[:1]
        part[0, part.indices[0]] = 9.0  # a slice is the caller's
        assert part.data[0] == 9.0


SCALE, SHIFT = (0.5, 2.0, 1.0, 3.0, 0.1, 7.0), (0.5, 0.0, -1.0, 3.0, 0.1, 0.0)


@pairwise(
    dtype=["float64", "float32", "int64"],
    intercept=[False, True],
    row_bound=[math.inf, 0.5, 2.0],
    affine={"as stored": (None, None), "scaled": (SCALE, None), "moved": (SCALE, SHIFT)},
)
@pytest.mark.usefixtures("few_entries_a_block")
def test_dense_and_sparse_rows_have_the_same_effective_rows_and_margins(
    dtype, intercept, row_bound, affine
):
    scale, shift = affine
    X = (3 * sparse_records()[0]).astype(dtype)
    transform = Transform(6, intercept, row_bound, scale, shift)
    dense, sparse = transform.apply(X), transform.apply(csr(X))
    assert scipy.sparse.issparse(sparse) == (shift is None)
    if shift is None:
        assert sparse.nnz == np.count_nonzero(X) + 40 * intercept
        assert sparse.has_sorted_indices
        assert sparse.dtype == np.float64
        sparse = sparse.toarray()
    np.testing.assert_allclose(sparse, dense, rtol=1e-14)
    w = np.linspace(-1.0, 2.0, transform.d)
    np.testing.assert_allclose(
        transform.margins(csr(X), w), transform.margins(X, w), rtol=1e-13, atol=1e-14
    )


@for_each("intercept", [False, True])
def test_rows_within_the_feature_range_are_within_the_default_row_bound(intercept):
    X, y = records(40)
    how = {"feature_range": (-2.0, 3.0), "intercept": intercept}
    data = SiloData(X, y, [0, 40], **how)
    assert data.row_bound == math.sqrt(X.shape[1] + intercept)
    inside = np.array([[-2.0, 3.0, -2.0], [0.0, 1.0, 3.0], [-9.0, 0.0, 0.0]])
    mapped = np.array([[-1.0, 1.0, -1.0], [-0.2, 0.2, 1.0]])
    np.testing.assert_allclose(data.transform.apply(inside)[:2, :3], mapped, rtol=1e-15)
    assert np.linalg.norm(data.transform.apply(inside)[2]) <= data.row_bound * (1 + 1e-15)
    assert SiloData(X, y, [0, 40], intercept=intercept).row_bound == math.inf
    assert SiloData(csr(X), y, [0, 40], **how).row_bound == math.inf
    assert SiloData(X, y, [0, 40], row_bound=math.inf, **how).row_bound == math.inf


def test_the_feature_range_only_scales_sparse_rows():
    X, y = sparse_records()
    lo, hi = np.array([-4, 0, 7, 1, -1, 0.5]), np.array([4, 0.1, 9, 3, 1, 2.0])
    dense, sparse = (
        SiloData(rows, y, [0, 40], feature_range=(lo, hi), intercept=True, row_bound=math.inf)
        for rows in (X, csr(X))
    )
    np.testing.assert_array_equal(sparse.scale, 2 / (hi - lo))
    assert sparse.shift is None
    assert sparse.transform.shift is None
    assert np.array_equal(sparse.feature_range, (lo, hi))
    np.testing.assert_allclose(sparse.transform.apply(X)[:, :-1], X * 2 / (hi - lo))
    # The same models, written with another intercept.
    w = np.linspace(-1.0, 2.0, 7)
    v = np.append(w[:-1], w[-1] + dense.shift @ w[:-1])
    np.testing.assert_allclose(sparse.transform.margins(X, v), dense.transform.margins(X, w))
    assert_survives_strict_json(sparse.transform)


@for_each("scale", [1e200, 1e-200])
@for_each("intercept", [False, True])
def test_rows_at_the_ends_of_the_floating_point_range_stay_finite(scale, intercept):
    X = csr([[3 * scale, -4 * scale]])
    transform = Transform(2, intercept, 1.0)
    rows = transform.apply(X.toarray())
    assert np.all(np.isfinite(rows))
    assert np.linalg.norm(rows) <= 1.0
    np.testing.assert_array_equal(transform.apply(X).toarray(), rows)
    assert np.all(np.isfinite(transform.margins(X, np.full(2 + intercept, 1e200))))


def test_wide_sparse_rows_are_never_made_dense():
    p = 10_000_000
    rng = np.random.default_rng(0)
    X = scipy.sparse.coo_array(
        (rng.normal(size=50), (np.arange(50) % 10, rng.integers(0, p, 50))), shape=(10, p)
    ).tocsr()
    y = np.tile([-1.0, 1.0], 5)
    w = np.ones(p + 1)

    def use():
        data = SiloData.split(X, y, 3, seed=0, intercept=True, row_bound=1.0)
        return data, data.transform.margins(X, w), data.transform.apply(X)

    (data, margins, rows), peak = peak_memory(use)
    assert peak < 1e6
    assert data.d == p + 1
    np.testing.assert_allclose(margins, rows.sum(axis=1), rtol=1e-13, atol=1e-14)


def test_a_range_of_two_numbers_takes_few_bytes_a_feature():
    """16 are the scale for kernels and the references of the transform's tuple."""
    p = 1_000_000
    X = csr(([2.0, 3.0], [0, p - 1], [0, 1, 2]), shape=(2, p))
    data, peak = peak_memory(lambda: SiloData(X, [0, 1], [0, 2], feature_range=(0, 4.0)))
    assert peak < 18 * p
    assert data.feature_range[0].shape == data.feature_range[1].shape == data.scale.shape == (p,)
    assert data.scale[[0, -1]].tolist() == [0.5, 0.5]
    assert [data.transform.scale[k] for k in (0, -1)] == [0.5, 0.5]
    held = pickle.loads(pickle.dumps(SiloData(np.eye(2), [0, 1], [0, 2], feature_range=(0, 4.0))))
    assert [a.tolist() for a in held.feature_range] == [[0.0, 0.0], [4.0, 4.0]]
    with pytest.raises(ValueError, match=r"got \(4\.0, 2\.0\) for feature 1"):
        SiloData(np.eye(2), [0, 1], [0, 2], feature_range=(4, [5.0, 2.0]))


@for_each("kind", ["memmap", "dense", "csr", "unsorted groups", "split csr"])
def test_construction_needs_no_hidden_copy_of_the_records(tmp_path, kind):
    """Beyond X and y: 16 bytes a row where rows are in order, and one copy where they are not."""
    n, p = 400_000, 5
    X = np.ones((n, p))
    if kind == "memmap":
        X.tofile(tmp_path / "X.dat")
        X = np.memmap(tmp_path / "X.dat", dtype=np.float64, mode="r", shape=(n, p))
    size = X.nbytes
    if "csr" in kind:
        X = csr(X)
        size = X.data.nbytes + X.indices.nbytes
    y = np.tile([-1.0, 1.0, 0.5, 2.0], n // 4)
    groups = np.repeat(np.arange(8), n // 8)
    limit = 16 * n + 0.1 * (size + y.nbytes)
    if kind == "unsorted groups":
        _, peak = peak_memory(lambda: SiloData.from_groups(X, y, groups[::-1]))
        limit += size + 16 * n
    elif kind == "split csr":
        _, peak = peak_memory(lambda: SiloData.split(X, y, 8, seed=0))
        limit += size + 24 * n  # among them two times indptr
    else:
        _, peak = peak_memory(lambda: SiloData.from_groups(X, y, groups))
        _, other = peak_memory(lambda: SiloData(X, y, np.arange(0, n + 1, n // 8)))
        peak = max(peak, other)
    assert peak < limit


@for_each("dtype", [np.float64, np.float32])
@for_each("intercept", [False, True])
@for_each("row_bound", [None, 0.7])
@for_each("feature_range", [None, (-2.0, 5.0)])
def test_a_model_predicts_on_the_rows_that_kernels_trained_on(
    dtype, intercept, row_bound, feature_range
):
    X, y = sparse_records(dtype=dtype)
    options = dict(intercept=intercept, row_bound=row_bound, feature_range=feature_range)
    for rows_given in (X, csr(X)):
        data = SiloData.split(rows_given, y, 4, seed=0, **options)
        w = np.linspace(-1.0, 2.0, data.d)
        z = kernels.glm_margins(data, w)
        for rows in (data.X, csr(data.X), csr(data.X).toarray()):
            np.testing.assert_allclose(data.transform.margins(rows, w), z, rtol=1e-13, atol=1e-13)


@pytest.mark.filterwarnings("default:columns of X")
def test_columns_on_scales_far_apart_are_pointed_out_unless_a_range_is_stated():
    X, y = sparse_records(30)
    mixed = X * [1.0, 1.0, 1e4, 1.0, 1.0, 0.0]
    for make in (np.array, csr):
        with pytest.warns(ScaleWarning, match="no feature_range was stated"):
            SiloData(make(mixed), y, [0, 30])
        with pytest.warns(ScaleWarning):
            SiloData.split(make(mixed), y, 3, seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            SiloData(make(X), y, [0, 30])
            SiloData(make(0.0 * X), y, [0, 30])
            SiloData(make(mixed), y, [0, 30], feature_range=(-1e5, 1e5))
            warnings.simplefilter("ignore", ScaleWarning)
            SiloData(make(mixed), y, [0, 30])


# ---- row norms


@for_each("sparse", [False, True])
def test_row_norms_are_kept_where_nobody_else_can_write_to_X(sparse):
    X, y = sparse_records()
    given = csr(X) if sparse else X
    order = np.arange(40)
    options = {"intercept": True, "row_bound": 0.5, "feature_range": (-2.0, 3.0)}
    copied = [
        SiloData.split(given, y, 3, seed=0, **options),
        SiloData.from_silos([(given, y)], **options),
        SiloData.from_groups(given, y, order[::-1], **options),
        SiloData.split(given.astype(np.float32), y, 3, seed=0, **options),
    ]
    if sparse:
        twice = csr(
            (np.repeat(given.data, 2), np.repeat(given.indices, 2), 2 * given.indptr),
            shape=given.shape,
        )
        copied.append(SiloData(twice, y, [0, 40], **options))
        copied.append(SiloData.from_groups(twice, y, order, **options))
    for data in (*copied, *(pickle.loads(pickle.dumps(data)) for data in copied)):
        free = Transform(6, True, math.inf, data.transform.scale, data.transform.shift)
        rows = free.apply(data.X)
        rows = rows.toarray() if sparse else rows
        np.testing.assert_allclose(data.row_norms, np.linalg.norm(rows, axis=1), rtol=1e-14)
        assert not data.row_norms.flags.writeable
    for data in (
        SiloData(given, y, [0, 40], **options),
        SiloData.from_groups(given, y, order, **options),
        SiloData.split(given, y, 40, how="even", seed=FirstComeFirst(), **options),
    ):
        assert data.row_norms is None


@for_each(
    "change",
    [
        lambda X: setattr(X, "data", 1e6 * X.data),
        lambda X: setattr(X, "indices", 0 * X.indices),
        lambda X: setattr(X, "indptr", X.indptr[::-1]),
        lambda X: X.resize(40, 600),
        lambda X: X.resize(40, 2),
        lambda X: X.setdiag(1e6),
        lambda X: X.__init__(1e6 * X),
        lambda X: X.__imul__(1e6),
        lambda X: X.eliminate_zeros(),
    ],
)
def test_sparse_rows_with_kept_norms_cannot_be_changed_under_them(change):
    """Longer rows with the old norms would leave the clip bound, wider ones the arrays."""
    X, y = sparse_records()
    data = SiloData.split(csr(X), y, 3, seed=0)
    before = data.X.toarray()
    assert_refused(r"read-only|not compatible", change, data.X)
    np.testing.assert_array_equal(data.X.toarray(), before)
    sums = kernels.glm_gradient(data, np.ones(6), clip=1e-3)
    assert np.all(np.linalg.norm(sums, axis=1) <= 1e-3 * data.sizes)


def test_scipys_own_check_leaves_sparse_rows_as_kernels_read_them():
    X, y = sparse_records()
    data = SiloData.split(csr(X), y, 3, seed=0)
    data.X.check_format()
    assert data.X.indices.dtype == np.int32
    kernels.glm_gradient(data, np.ones(6), clip=1.0)


def test_norms_of_mapped_rows_are_those_of_the_machine_that_loads_them():
    """Where scale x and shift cancel, rows themselves depend on whether they are fused."""
    rng = np.random.default_rng(0)
    low = 1e15
    X = low + 3.0 * rng.random((200, 8))
    y = np.where(rng.random(200) < 0.5, -1.0, 1.0)
    in_use = _core.isa()
    try:
        _core._use_isa("base")
        silos = [(X[i : i + 1], y[i : i + 1]) for i in range(len(X))]
        data = SiloData.from_silos(silos, feature_range=(low, low + 3.0), task="classification")
        assert data.row_norms is not None
        pickled = pickle.dumps(data)
    finally:
        _core._use_isa(in_use)
    back = pickle.loads(pickled)
    sums = kernels.glm_gradient(back, np.full(8, 5.0), clip=1e-2)
    assert np.all(np.linalg.norm(sums, axis=1) <= 1e-2)


def denormal_records(shift):
    """A record whose floats are denormals, and far from 0 when mapped; others are normal."""
    X = np.full((4, 3), 1e-38, np.float32)
    X[0] = np.float32(1e-40 if shift else 3e-40)
    lo = np.float64(np.float32(1e-40)) - 0.5e-40 if shift else 0.0
    return X, (lo, lo + 1e-40)


@for_each("sparse", [False, True])
@for_each("cancel", [False, True])
@for_each(("built", "run"), [(FLUSH, 0), (0, FLUSH), (FLUSH, FLUSH), (0, 0)])
def test_a_thread_that_flushes_denormals_leaves_no_norm_behind(
    built, run, cancel, sparse, control_bits
):
    """Denormals that count are long rows here, and, where the map cancels them, short ones."""
    X, feature_range = denormal_records(cancel)
    y = np.array([1.0, 2.0, 3.0, 5.0])
    silos = [(csr(X[i : i + 1]) if sparse else X[i : i + 1], y[i : i + 1]) for i in range(4)]
    with control_bits(built):
        data = SiloData.from_silos(silos, feature_range=feature_range, task="regression")
        pickled = pickle.dumps(data)
    for held in (data, pickle.loads(pickled)):
        with control_bits(run):
            sums = kernels.glm_gradient(held, np.full(3, 5.0), loss="squared", clip=1.0)
            w = np.full((1, 3), 5.0).repeat(4, axis=0)
            steps = kernels.glm_local_descent(
                held, w, loss="squared", clip=1.0, steps=1, step_size=1.0
            )
        assert np.all(np.linalg.norm(sums, axis=1) <= 1.0)
        assert np.all(np.linalg.norm(steps - w, axis=1) <= 1.0 + 1e-9)


@for_each("kind", ["collapsed", "public"])
def test_prepared_sweeps_do_not_use_norms_of_another_mode(kind, control_bits):
    X, feature_range = denormal_records(shift=True)
    silos = [(X[i : i + 1], np.array([100.0])) for i in range(4)]
    data = SiloData.from_silos(silos, feature_range=feature_range, task="regression")
    assert data.row_norms is not None
    how = {"loss": "squared", "clip": 1e-3, "prox_step": 1.0}
    state = getattr(kernels.ProxState, kind)(data, np.zeros(3))
    prepared = kernels.PreparedSweep(data, state, **how)
    for bits in (0, FLUSH, 0):
        with control_bits(bits):
            sent = prepared(np.zeros(3), relaxation=0.5)
        sent = state.common if kind == "public" else sent
        assert np.all(np.linalg.norm(sent, axis=-1) <= 4 * 1e-3 * (1 + 1e-9))


@for_each("sparse", [False, True])
def test_row_norms_are_not_kept_in_memory_that_an_unpickler_was_lent(sparse):
    X, y = sparse_records()
    data = SiloData.split(csr(X) if sparse else X, y, 3, seed=0)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(data, protocol=protocol)).row_norms is not None
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    lent = [bytearray(buffer.raw()) for buffer in buffers]
    back = pickle.loads(pickled, buffers=lent)
    assert back.row_norms is None
    for buffer in lent:
        if len(buffer) == data.X.data.nbytes:
            np.frombuffer(buffer)[:] *= 1e6
    sums = kernels.glm_gradient(back, np.ones(6), clip=1e-3)
    assert np.all(np.linalg.norm(sums, axis=1) <= 1e-3 * data.sizes)


class FirstComeFirst(np.random.Generator):
    """A split that leaves the records where they are."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def permutation(self, n):
        return np.arange(n)


def test_weights_are_shares_of_records_or_equal():
    X, y = records()
    data = SiloData(X, y, [0, 3, 12])
    assert data.weights().tolist() == data.weights("size").tolist() == [0.25, 0.75]
    assert data.weights("uniform").tolist() == [0.5, 0.5]
    assert_refused("weights must be 'size' or 'uniform', got 'sizes'", data.weights, "sizes")


SECRET = 987654.25
GOOD_X, GOOD_Y = records()


def with_value(value, count=1):
    X = np.full((12, 3), SECRET)
    X.flat[:count] = value
    return X


def broken_csr(**last):
    """A CSR matrix whose arrays are spoilt after scipy has checked them."""
    X = csr(GOOD_X)
    for name, value in last.items():
        getattr(X, name)[-1] = value
    return X


def repeated_csr(value):
    """Every row stores column 0 twice."""
    return csr((np.full(24, value), np.zeros(24, int), np.arange(0, 25, 2)), shape=(12, 3))


BAD = [
    ({"X": [[SECRET]] * 12}, "TypeError: got a list: .*asarray"),
    ({"X": GOOD_X.astype(int)}, "TypeError: got dtype int64: .*astype"),
    ({"X": GOOD_X.astype("f2")}, "TypeError: got dtype float16"),
    ({"X": GOOD_X.astype(">f8")}, "TypeError: got dtype >f8"),
    ({"X": GOOD_X.astype(complex)}, "TypeError: got dtype complex128"),
    ({"X": scipy.sparse.csc_matrix(GOOD_X)}, r"TypeError: X\.tocsr\(\)"),
    ({"X": scipy.sparse.coo_array(GOOD_X)}, r"TypeError: X\.tocsr\(\)"),
    ({"X": csr(GOOD_X.astype(int))}, "TypeError: got dtype int64: .*astype"),
    ({"X": csr(GOOD_X * 1j)}, "TypeError: got dtype complex128"),
    ({"X": csr(GOOD_X[:, 0])}, r"X must have shape .* got \(12,\)"),
    ({"X": csr(GOOD_X[:0]), "y": []}, r"got \(0, 3\)"),
    ({"X": csr((12, 0))}, r"got \(12, 0\)"),
    ({"X": csr((12, 2**31))}, "at most 2147483647 features, got 2147483648"),
    ({"X": broken_csr(indices=3)}, "X must be valid CSR"),
    ({"X": broken_csr(indices=-1)}, "X must be valid CSR"),
    ({"X": broken_csr(indptr=0)}, "X must be valid CSR"),
    ({"X": broken_csr(indptr=98)}, "X must be valid CSR"),
    (
        {"X": csr(with_value(math.nan, 4))},
        "X must be finite, got 4 NaN or infinite values in 2 of 12",
    ),
    ({"X": repeated_csr(1.7e308)}, "X must be finite, got 12 NaN or infinite values in 12 of 12"),
    (
        {"X": csr(with_value(1e308)), "feature_range": (0.0, 1.0)},
        "finite when mapped by feature_range, got other values in 1 row",
    ),
    ({"X": np.ma.masked_less(GOOD_X, 0)}, "TypeError: got a MaskedArray"),
    ({"X": GOOD_X[:, 0].copy()}, r"X must have shape .* got \(12,\)"),
    ({"X": GOOD_X[:0], "y": []}, r"got \(0, 3\)"),
    ({"X": np.empty((12, 0))}, r"got \(12, 0\)"),
    ({"X": np.asfortranarray(GOOD_X)}, "C-contiguous and aligned"),
    ({"X": np.repeat(GOOD_X, 2, axis=0)[::2]}, "C-contiguous and aligned"),
    ({"X": with_value(math.nan)}, "X must be finite, got 1 NaN or infinite value in 1 of 12"),
    ({"X": with_value(-math.inf, 4)}, "X must be finite, got 4 NaN or infinite values in 2 of 12"),
    (
        {"X": with_value(1e308), "feature_range": (0.0, 1.0)},
        "finite when mapped by feature_range, got other values in 1 row",
    ),
    ({"y": GOOD_Y[:-1]}, "y must have 12 entries, got 11"),
    ({"y": GOOD_Y[:, np.newaxis]}, r"y must have shape \(12,\), .* got \(12, 1\)"),
    (
        {"y": np.where(GOOD_Y > 0, SECRET, math.nan)},
        "y must be finite, got 4 NaN or infinite values",
    ),
    (
        {"y": np.where(GOOD_Y > 0, SECRET, math.inf)},
        "y must be finite, got 4 NaN or infinite values",
    ),
    ({"y": GOOD_Y * 1j}, "TypeError: y must be .* got dtype complex128"),
    ({"y": np.zeros(12, "M8[D]")}, "TypeError: got dtype datetime64"),
    (
        {"y": np.array([str(SECRET), 1] * 6, dtype=object)},
        "TypeError: missing values, got both, or other objects",
    ),
    ({"y": [None] * 12}, "TypeError: missing values, got 12 missing values"),
    ({"y": np.ma.masked_less(GOOD_Y, 0)}, "TypeError: y must be an array without mask"),
    ({"y": [987654] * 12}, "y must hold exactly two labels .* one distinct value"),
    ({"y": np.ones(12, dtype=np.uint8)}, "y must hold exactly two labels .* one distinct value"),
    ({"y": ["a987654", "b", "c"] * 4}, "more than two distinct"),
    ({"y": [987654, 1, 2] * 4}, "task='regression'"),
    ({"y": np.arange(12) + SECRET, "task": "classification"}, "more than two distinct values"),
    ({"y": ["987654", "b"] * 6, "task": "regression"}, "TypeError: strings"),
    ({"task": "ranking"}, "task must be .* got 'ranking'"),
    ({"offsets": [0.0, 12.0]}, "TypeError: offsets must be integers, got dtype float64"),
    ({"offsets": [12]}, "offsets must have 2 to 13 entries, got 1"),
    ({"offsets": [[0, 12]]}, "offsets must have"),
    ({"offsets": [1, 12]}, "offsets must go from 0 .* got 1 to 12"),
    ({"offsets": [0, 11]}, "from 0 to the number of records, 12"),
    ({"offsets": [0, 8, 4, 12]}, "offsets must increase, got a fall after entry 1"),
    (
        {"offsets": np.array([0, 2**63 - 1, -5, 12])},
        "offsets must increase, got a fall after entry 1",
    ),
    ({"offsets": np.array([0, 2**64 - 1, 12], dtype=np.uint64)}, "offsets must increase"),
    ({"offsets": [0, 4, 4, 12]}, "got 1 of 3 silos that are empty.*silo 1"),
    ({"intercept": 1}, "TypeError: intercept must be True or False, got 1"),
    ({"row_bound": 0.0}, "row_bound must be positive, got 0.0"),
    ({"row_bound": -1.0}, "row_bound must be positive, got -1.0"),
    ({"row_bound": math.nan}, "row_bound must be .* got nan"),
    ({"row_bound": "1"}, "TypeError: row_bound must be .* got '1'"),
    ({"row_bound": True}, "TypeError: row_bound must be .* got True"),
    ({"feature_range": 1.0}, r"TypeError: pair \(lo, hi\)"),
    ({"feature_range": (0, 1, 2)}, r"TypeError: pair \(lo, hi\)"),
    ({"feature_range": ([0, 0], 1.0)}, "lo must have 3 entries, got 2"),
    ({"feature_range": (0.0, "1")}, "TypeError: hi must be numbers"),
    ({"feature_range": ([0, 1, 0], 1.0)}, "for feature 1"),
    ({"feature_range": (2.0, 1.0)}, "lo < hi"),
    ({"feature_range": (0.0, math.inf)}, "must be finite"),
    ({"feature_range": (math.nan, 1.0)}, "must be finite"),
    ({"feature_range": (-1.7e308, 1.7e308)}, "distance"),
    ({"feature_range": (0.0, 5e-324)}, "distance"),
]


@for_each(("wrong", "message"), BAD)
def test_bad_input_is_refused_naming_the_argument_and_no_data(wrong, message):
    arguments = {"X": GOOD_X, "y": GOOD_Y, "offsets": [0, 5, 12], **wrong}
    if len(arguments["X"] if isinstance(arguments["X"], list) else [0]) == 0:
        arguments["offsets"] = [0, 0]
    assert "987654" not in assert_refused(message, SiloData, **arguments)


@for_each("form", [np.array, csr])
@for_each("options", [{}, {"feature_range": (-1e9, 1e9)}])
def test_a_refusal_of_rows_depends_on_how_many_are_bad_where_and_on_no_value(form, options):
    messages = set()
    for value in (4321.75, -0.0625):
        for bad in (math.nan, math.inf, -math.inf):
            for place in (0, 18, 33):  # of one column
                X = np.full((12, 3), value)
                X.flat[place] = bad
                with pytest.raises(ValueError, match="X must be finite") as caught:
                    SiloData(form(X), GOOD_Y, [0, 12], **options)
                messages.add(str(caught.value))
    assert len(messages) == 1
    assert "4321" not in messages.pop()


@for_each("form", [np.array, csr])
def test_columns_that_are_not_finite_are_named_with_their_counts(form):
    X = np.ones((12, 5))
    X[3:6, 1] = X[4, 3] = math.nan
    names = ["age", "bmi", "pulse", "sugar", "height"]
    found = r"got 4 NaN or infinite values in 3 of 12 rows \(3 in column {}, 1 in column {}\)$"
    with pytest.raises(ValueError, match=found.format("'bmi'", "'sugar'")):
        SiloData(form(X), GOOD_Y, [0, 12], feature_names=names)
    assert_refused(found.format(1, 3), SiloData, form(X), GOOD_Y, [0, 12])
    X[4] = math.inf
    with pytest.raises(ValueError, match=r"1 in column 2 and others in 2 columns more\)$"):
        SiloData(form(X), GOOD_Y, [0, 12])


def test_a_range_that_is_none_names_the_feature():
    with pytest.raises(ValueError, match=r"got \(1\.0, 0\.0\) for feature 'bmi'$"):
        SiloData(
            GOOD_X, GOOD_Y, [0, 12], feature_range=([0, 1, 0], [1, 0, 1]),
            feature_names=["age", "bmi", "pulse"],
        )  # fmt: skip


@for_each(
    ("good", "bad", "options"),
    [
        ((1.25, 2.25), (math.nan, math.inf), {"task": "regression"}),
        ((0, 1), (86, 97), {"task": "multiclass", "classes": [0, 1]}),
        (("yes", "no"), ("maybe", "gone"), {"task": "multiclass", "classes": ["yes", "no"]}),
        ((0, 1), (86, 97), {"task": "classification"}),
    ],
)
def test_a_refusal_of_labels_depends_on_how_many_are_bad_and_on_no_value(good, bad, options):
    messages = set()
    for label in bad:
        for place in (0, 5, 11):
            for first in good:
                y = np.array([first, *good] * 4, dtype=object)
                y[place] = label
                with pytest.raises(ValueError, match="y must") as caught:
                    SiloData(GOOD_X, y, [0, 12], **options)
                messages.add(str(caught.value))
    assert len(messages) == 1
    assert not any(str(label) in messages.pop() for label in bad[:1])


BAD_SPLITS = [
    ({"m": 13}, "m must be at most .* got 13 with 12 records"),
    ({"m": 4, "min_size": 4}, "got 4 with 12 records and min_size 4"),
    ({"m": 0}, "m must be at least 1, got 0"),
    ({"m": 2.0}, "TypeError: m must be an integer, got 2.0"),
    ({"min_size": 0}, "min_size must be at least 1, got 0"),
    ({"how": "odd"}, "how must be one of 'even', .* got 'odd'"),
    ({"how": "two_groups"}, "ratio must be given .* got None"),
    ({"how": "two_groups", "ratio": 0.5}, "at least 1"),
    ({"how": "two_groups", "ratio": math.nan}, "ratio must be .* got nan"),
    ({"how": "even", "ratio": 2.0}, "ratio must be given with how='two_groups' and only there"),
    ({"how": "two_groups", "ratio": 99.0, "m": 6}, "0 records, got 1"),
    ({"how": "mixed"}, "share must be given .* got None"),
    ({"how": "mixed", "share": 1.01}, r"share must lie in \[0, 1\], got 1.01"),
    ({"how": "mixed", "share": -0.1}, "got -0.1"),
    ({"how": "mixed", "share": math.nan}, "share must .* got nan"),
    ({"how": "mixed", "share": "0.5"}, "TypeError: share must be a real number"),
    ({"how": "by_label", "share": 0.5}, "share must be given with how='mixed' and only there"),
    ({"how": "dirichlet"}, "concentration must be given .* got None"),
    ({"how": "dirichlet", "concentration": 0.0}, "positive"),
    ({"how": "by_label", "m": 1}, "m >= 2, got m 1"),
    ({"how": "by_label", "y": np.arange(12.0)}, "got regression"),
    ({"how": "by_label", "y": np.ones(12), "classes": [0, 1]}, "both labels"),
    ({"y": GOOD_Y[1:]}, "y must have 12 entries"),
    ({"X": scipy.sparse.csc_array(GOOD_X)}, r"TypeError: X\.tocsr\(\)"),
    ({"X": [["a"]] * 12}, "TypeError: X must be real numbers"),
]


@for_each(("wrong", "message"), BAD_SPLITS)
def test_bad_splits_are_refused(wrong, message):
    assert_refused(
        message, SiloData.split, **{"X": GOOD_X, "y": GOOD_Y, "m": 3, "seed": 0, **wrong}
    )


@for_each(
    ("silos", "message"),
    [
        ([], "got none"),
        ([GOOD_X], r"TypeError: silos\[0\] must be a pair .* got a ndarray"),
        ([(GOOD_X, GOOD_Y), (GOOD_X[:, :2], GOOD_Y)], r"features in every silo, got \[2, 3\]"),
        ([(GOOD_X, GOOD_Y), (GOOD_X[:0], [])], "got 1 of 2 silos that are empty"),
        ([(GOOD_X, GOOD_Y), (GOOD_X, ["a"] * 12)], "TypeError: strings in every silo"),
        ([(GOOD_X, GOOD_Y[1:])], "y must have"),
        ([(GOOD_X, GOOD_Y), (csr(GOOD_X), GOOD_Y)], "TypeError: sparse in every silo"),
    ],
)
def test_bad_silos_are_refused(silos, message):
    assert_refused(message, SiloData.from_silos, silos)


@for_each(
    ("groups", "message"),
    [
        (np.zeros(11), "groups must have 12 entries"),
        (np.full(12, math.nan), "groups must be finite, got 12"),
        ([None] * 12, "TypeError: groups must be .* got 12 missing values"),
    ],
)
def test_bad_groups_are_refused(groups, message):
    assert_refused(message, SiloData.from_groups, GOOD_X, GOOD_Y, groups)


@for_each(
    "function", [SiloData, SiloData.split, SiloData.from_silos, Transform.margins, train_test_split]
)
def test_signatures_are_readable(function):
    assert len(str(inspect.signature(function))) < 550


class Huge(Sequence):
    """A sequence that takes no memory until somebody reads it."""

    def __len__(self):
        return 10**12

    def __getitem__(self, k):
        raise AssertionError("read")


@for_each("huge", [Huge(), range(10**12)], ids=["sequence", "range"])
@for_each(
    "wrong",
    [
        lambda huge: {"feature_range": (huge, 1.0)},
        lambda huge: {"feature_range": (0.0, huge)},
        lambda huge: {"y": huge},
        lambda huge: {"classes": huge},
        lambda huge: {"classes": huge, "task": "multiclass"},
    ],
)
def test_sizes_are_checked_before_anything_is_allocated(wrong, huge):
    arguments = {"X": GOOD_X, "y": GOOD_Y, "seed": 0, **wrong(huge)}
    assert_refused("entries, got 1000000000000", SiloData.split, m=3, **arguments)
    assert_refused("groups must have 12 entries", SiloData.from_groups, GOOD_X, GOOD_Y, huge)
    assert_refused("offsets must have 2 to 13 entries", SiloData, GOOD_X, GOOD_Y, huge)


@for_each("feature_range", [([0.0] * 3, 1.0), (0.0, "1"), 5])
def test_a_bad_feature_range_is_refused_before_records_are_copied(feature_range):
    X = np.ones((100_000, 4))
    y = np.arange(len(X)) % 2

    def use():
        for make in (
            lambda **options: SiloData.split(X, y, 3, seed=0, **options),
            lambda **options: SiloData.from_groups(X, y, y, **options),
            lambda **options: SiloData.from_silos([(X, y), (X, y)], **options),
        ):
            with pytest.raises((TypeError, ValueError), match="feature_range"):
                make(feature_range=feature_range)

    _, peak = peak_memory(use)
    assert peak < X.nbytes


@for_each("convert", [np.asarray, scipy.sparse.csr_array])
def test_columns_of_negative_numbers_count_by_their_size(convert):
    assert far_apart(convert([[-1000.0, 1.0], [0.0, 0.5]]))
    assert not far_apart(convert([[-90.0, 1.0], [0.0, 0.5]]))
