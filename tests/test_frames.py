"""Data frames: their values become numbers or an error that helps, their names stay with models."""

import math

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused

import dpkern as dpk
from dpkern.data import SiloData, train_test_split
from dpkern.data.frames import column_names, frame_matrix

pandas = pytest.importorskip("pandas")


def numbers(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    return X, np.where(X[:, 0] - X[:, 2] > 0.0, "ill", "well")


def pandas_frame(X=None):
    X = numbers()[0] if X is None else X
    return pandas.DataFrame(X, columns=["age", "bmi", "pulse"])


def polars_frame(X=None):
    polars = pytest.importorskip("polars")
    X = numbers()[0] if X is None else X
    return polars.DataFrame(X, schema=["age", "bmi", "pulse"])


FRAMES = {"pandas": pandas_frame, "polars": polars_frame}


@pytest.fixture(params=FRAMES)
def make_frame(request):
    return FRAMES[request.param]


@for_each("dtype", ["float64", "float32", "int8", "bool", "Int64", "Float64", "boolean", "UInt8"])
def test_columns_of_numbers_of_any_kind_are_read(dtype):
    values = [1, 0, 1, 1]
    frame = pandas.DataFrame({"a": np.arange(4.0), "b": pandas.Series(values, dtype=dtype)})
    found = frame_matrix(frame)
    np.testing.assert_array_equal(found, np.column_stack([np.arange(4.0), values]))
    assert found.dtype == np.float64
    data = SiloData.split(frame, [0, 1, 0, 1], 2, seed=0)
    assert data.feature_names == ("a", "b")


@for_each("dtype", ["int64[pyarrow]", "bool[pyarrow]", "double[pyarrow]"])
def test_columns_in_arrow_memory_are_read(dtype):
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": pandas.Series([1, 0, 1], dtype=dtype)})
    np.testing.assert_array_equal(frame_matrix(frame), [[1.0], [0.0], [1.0]])
    frame.loc[1, "a"] = None
    assert_refused("column 'a' of X must have no missing values, got 1 in 3", frame_matrix, frame)


def test_columns_of_polars_are_read():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5]})
    np.testing.assert_array_equal(frame_matrix(frame), [[1.0, 1.0, 0.5], [2.0, 0.0, 1.5]])
    with pytest.raises(ValueError, match="column 'a' of X must have no missing values, got 1 in 2"):
        frame_matrix(polars.DataFrame({"a": [1, None]}))
    with pytest.raises(TypeError, match="column 'b' of X must be numbers, got dtype String"):
        frame_matrix(polars.DataFrame({"a": [1], "b": ["x"]}))


@for_each("dtype", ["float64", "float32", "Int64", "Float64", "boolean"])
def test_missing_values_name_the_column_and_the_cure(dtype):
    column = pandas.Series([1, 0, None, None], dtype=dtype)
    frame = pandas.DataFrame({"a": np.ones(4), "b": column})
    message = "column 'b' of X must have no missing values, got 2 in 4 rows: fill them or drop"
    assert_refused(message, SiloData.split, frame, [0, 1, 0, 1], 2)


@for_each("dtype", ["object", "string", "category", "datetime64[ns]"])
def test_text_names_the_column_and_the_cure_and_no_value(dtype):
    value = "2026-01-01" if "date" in dtype else "SECRET"
    frame = pandas.DataFrame({"a": np.ones(2), "b": pandas.Series([value] * 2, dtype=dtype)})
    with pytest.raises(TypeError, match=r"column 'b' of X must be numbers, got .*encode") as caught:
        SiloData.split(frame, [0, 1], 2)
    assert "SECRET" not in str(caught.value)
    assert "2026" not in str(caught.value)


def test_text_that_looks_like_numbers_is_text():
    frame = pandas.DataFrame({"a": ["1", "2"]}, dtype=object)
    assert_refused("TypeError: column 'a' of X must be numbers", frame_matrix, frame)


def test_a_frame_is_single_precision_where_all_columns_are(make_frame):
    X = numbers()[0].astype(np.float32)
    assert frame_matrix(make_frame(X)).dtype == np.float32
    np.testing.assert_array_equal(frame_matrix(make_frame(X)), X)


@for_each("dtype", ["Int64", "boolean", "string", "category", "Float64"])
def test_labels_of_any_kind_are_read(dtype):
    X = np.ones((4, 1))
    given = ["x", "z"] if dtype in ("string", "category") else [0, 1]
    y = pandas.Series([given[k] for k in (0, 1, 1, 0)], dtype=dtype)
    data = SiloData(X, y, [0, 4])
    assert data.y.tolist() == [-1.0, 1.0, 1.0, -1.0]
    if dtype != "category":
        y[2] = None
        with pytest.raises((TypeError, ValueError), match="y must be"):
            SiloData(X, y, [0, 4])


def test_parts_of_frames_are_frames(make_frame):
    X, y = numbers()
    X_train, y_train, X_test, _ = train_test_split(make_frame(X), y, seed=1)
    assert tuple(X_train.columns) == tuple(X_test.columns) == ("age", "bmi", "pulse")
    assert len(X_train) == len(y_train) == 32
    expected = train_test_split(X, y, seed=1)[0]
    np.testing.assert_array_equal(frame_matrix(X_train), expected)


def test_every_way_to_make_silo_data_keeps_the_names(make_frame):
    X, y = numbers()
    frame, names = make_frame(X), ("age", "bmi", "pulse")
    assert SiloData.split(frame, y, 3, seed=0).feature_names == names
    assert SiloData.from_groups(frame, y, np.arange(40) % 3).feature_names == names
    assert SiloData.from_silos([(frame, y), (frame, y)]).feature_names == names
    assert SiloData(X, y, [0, 40], feature_names=names).feature_names == names
    assert SiloData.split(X, y, 3, seed=0).feature_names is None
    assert SiloData.split(frame, y, 3, feature_names=["a", "b", "c"]).feature_names[0] == "a"
    assert SiloData.split(pandas.DataFrame(X), y, 3, seed=0).feature_names is None
    assert SiloData.split(frame, y, 3, seed=0).each_alone(np.array([1])).feature_names == names
    with pytest.raises(ValueError, match="X must have the same column names in every silo"):
        SiloData.from_silos([(frame, y), (frame[["bmi", "age", "pulse"]], y)])


@for_each(
    ("names", "error"),
    [
        ("abc", TypeError),
        ([1, 2, 3], TypeError),
        (["a", "b"], ValueError),
        (["a", "a", "b"], ValueError),
    ],
)
def test_names_must_be_distinct_and_one_per_column(names, error):
    X, y = numbers()
    with pytest.raises(error, match="feature_names must be"):
        SiloData(X, y, [0, 40], feature_names=names)


@pytest.fixture(scope="module")
def model():
    X, y = numbers()
    data = SiloData.split(pandas_frame(X), y, 2, seed=0, row_bound=3.0)
    return dpk.solve("gradient_descent", data, budget=None, rounds=100, step_size=1.0)


def test_models_keep_names_and_numbers_also_in_files(model, make_frame, tmp_path):
    X, y = numbers()
    model.save(tmp_path / "model.npz")
    for held in (model, dpk.load(tmp_path / "model.npz")):
        assert held.feature_names == ("age", "bmi", "pulse")
        frame = make_frame(X)
        assert held.score(frame, y) == held.score(X, y) > 0.9
        np.testing.assert_array_equal(held.decision_function(frame), held.decision_function(X))


CALLS = {
    "predict": lambda model, X, y: model.predict(X),
    "decision_function": lambda model, X, y: model.decision_function(X),
    "predict_proba": lambda model, X, y: model.predict_proba(X),
    "score": lambda model, X, y: model.score(X, y),
}


@for_each("call", CALLS)
def test_columns_in_another_order_are_refused(model, call, make_frame):
    """They scored 0.371 for 0.923, without a word."""
    X, y = numbers()
    frame = make_frame(X)
    swapped = frame[["age", "pulse", "bmi"]]
    with pytest.raises(ValueError, match="column 1 must be 'bmi', got 'pulse'; the order differs"):
        CALLS[call](model, swapped, y)
    other = pandas_frame(X).rename(columns={"pulse": "heart"})
    assert_refused(r"got 3; missing 'pulse'; unknown 'heart'$", CALLS[call], model, other, y)
    with pytest.raises(ValueError, match=r"the 3 columns of the model, got 2; missing 'bmi'$"):
        CALLS[call](model, frame[["age", "pulse"]], y)
    more = pandas_frame(X).assign(label=1.0)
    assert_refused(r"got all of them; unknown 'label': drop them$", CALLS[call], model, more, y)


@for_each("call", CALLS)
@for_each("p", [2, 4, 68])
def test_another_number_of_columns_is_refused_without_names_too(model, call, p):
    X = np.ones((40, p))
    for given in (X, X.tolist(), pandas.DataFrame(X)):
        with pytest.raises(ValueError, match=f"X must have the 3 features of the model, got {p}"):
            CALLS[call](model, given, np.array(["ill"] * 40))


def test_numbered_columns_are_no_names():
    assert column_names(pandas.DataFrame(np.ones((2, 2)))) is None
    assert column_names(np.ones((2, 2))) is None
    assert math.isfinite(frame_matrix(pandas.DataFrame(np.ones((2, 2)))).sum())


def test_ranges_by_name_are_those_of_their_columns(make_frame):
    X, y = numbers()
    ranges = {"pulse": (0, 3), "age": (18, 95), "bmi": (-4.0, 4.5)}
    expected = SiloData.split(
        make_frame(X), y, 1, seed=0, feature_range=([18, -4.0, 0], [95, 4.5, 3])
    )
    found = SiloData.split(make_frame(X), y, 1, seed=0, feature_range=ranges)
    np.testing.assert_array_equal(found.feature_range, expected.feature_range)
    named = SiloData(X, y, [0, len(y)], feature_range=ranges, feature_names=("age", "bmi", "pulse"))
    np.testing.assert_array_equal(named.feature_range, expected.feature_range)
    with pytest.raises(TypeError, match=r"feature_range must be a pair .* got a mapping: pass"):
        SiloData.split(X, y, 1, seed=0, feature_range=ranges)


@for_each(
    ("changed", "message"),
    [
        ({"bmi": None}, r"TypeError: feature_range of column 'bmi' must be \(lo, hi\)"),
        ({"bmi": (1, 2, 3)}, r"TypeError: feature_range of column 'bmi' must be \(lo, hi\)"),
        ({"bmi": "12"}, r"TypeError: feature_range of column 'bmi' must be \(lo, hi\)"),
        ({"bmi": (1, None)}, "TypeError: feature_range of column 'bmi' must be a real number"),
        ({"bmi": (2, 1)}, "feature_range must be .* for feature 'bmi'"),
        ({"BMI": (1, 2)}, "unknown key 'BMI'"),
        ({}, "feature_range must have every column, got none for 'bmi'"),
    ],
)
def test_wrong_ranges_by_name_are_named(changed, message):
    X, y = numbers()
    frame = pandas.DataFrame(X, columns=["age", "bmi", "pulse"])
    ranges = {"age": (18, 95), "pulse": (0, 3)} | changed
    assert_refused(message, SiloData.split, frame, y, 1, seed=0, feature_range=ranges)
