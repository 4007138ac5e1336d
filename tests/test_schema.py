"""Laws of public schemas and of the encoder: what is public, and that nothing is learnt."""

import json
import os
import pickle
import re
import shlex
import shutil
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st
from makers import assert_refused
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import dpkern as dpk
from dpkern.cli import main
from dpkern.data import Column, OutsideWarning
from dpkern.data.column import KEYS

pytestmark = pytest.mark.filterwarnings("ignore::dpkern.data.OutsideWarning")

ROOT = Path(__file__).resolve().parents[1]
ADULT = ROOT / "examples" / "adult" / "schema.json"

AGE = Column("age", "number", lo=17, hi=90)
GAIN = Column("gain", "number", lo=0, hi=99_999, scale="log1p", missing=0)
HOURS = Column("hours", "number", lo=0, hi=80, missing=40)
WORK = Column("work", "category", categories=["private", "state"], aliases={"State": "state"})
SEX = Column("sex", "category", categories=["F", "M"], missing="missing")
INCOME = Column("income", "target", classes=["low", "high"], aliases={"high.": "high"})
SCHEMA = dpk.Schema([AGE, GAIN, HOURS, WORK, SEX, INCOME])
FRAME = {
    "age": [17.0, 90.0, 53.5, 300.0],
    "gain": ["0", "99999", "?", "-5"],
    "hours": [0.0, 80.0, float("nan"), 41.0],
    "work": ["private", " State", "", "unheard of"],
    "sex": ["F", "M", None, "X"],
    "income": ["low", "high", "high.", "low"],
}
ENCODED = [
    # age, gain, flag, hours, flag, private, state, F, M, missing
    [-1.0, -1.0, 0.0, -1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
    [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0],
    [0.0, -1.0, 1.0, 0.0, 1.0, 0.5, 0.5, 0.0, 0.0, 1.0],
    [1.0, -1.0, 0.0, 0.025, 0.0, 0.5, 0.5, 0.5, 0.5, 0.0],
]
LAYOUT = {"dpkern_schema": 1}


def changed(**changes):
    """The dictionary of the schema, with another value of keys of its column age."""
    values = SCHEMA.to_dict()
    values["columns"][0] |= changes
    return values


# encoding


def test_numbers_are_clamped_and_scaled_categories_are_indicators_and_missing_is_flagged():
    np.testing.assert_allclose(SCHEMA.encode(FRAME), ENCODED, atol=1e-12)
    assert SCHEMA.labels(FRAME).tolist() == ["low", "high", "high", "low"]
    assert SCHEMA.feature_names == (
        *("age", "gain", "gain_missing", "hours", "hours_missing"),
        *("work_private", "work_state", "sex_F", "sex_M", "sex_missing"),
    )


def test_log1p_is_the_logarithm_from_the_lower_end():
    column = Column("x", "number", lo=-3.0, hi=97.0, scale="log1p")
    x = np.linspace(-3.0, 97.0, 9)
    expected = 2.0 * np.log1p(x + 3.0) / np.log1p(100.0) - 1.0
    np.testing.assert_allclose(dpk.Schema([column]).encode({"x": x})[:, 0], expected, atol=1e-15)


@for_each(
    "frame",
    [
        pd.DataFrame(FRAME),
        pd.DataFrame(FRAME)[["income", "sex", "work", "hours", "gain", "age"]],
        pd.DataFrame(FRAME).astype({"work": "category", "sex": "string"}),
        pl.DataFrame(FRAME),
        pl.DataFrame(FRAME).with_columns(pl.col("work").cast(pl.Categorical)),
        [dict(zip(FRAME, row, strict=True)) for row in zip(*FRAME.values(), strict=True)],
        {name: np.array(values, dtype=object) for name, values in FRAME.items()},
        {name: values for name, values in FRAME.items() if name != "income"},
    ],
)
def test_frames_of_every_kind_and_order_are_encoded_alike(frame):
    np.testing.assert_array_equal(SCHEMA.encode(frame), SCHEMA.encode(FRAME))


def test_sparse_rows_are_the_dense_ones_and_canonical():
    rows = SCHEMA.encode(FRAME, sparse_output=True)
    np.testing.assert_array_equal(rows.toarray(), SCHEMA.encode(FRAME))
    assert rows.nnz == 4 * 7 + 3  # three averages of two
    rows.check_format()
    assert rows.has_canonical_format


CODES = st.sampled_from([True, 1, "1", 1.0, False, 0, "0", None, 2, "2.0", float("nan"), "x"])


@given(st.lists(CODES, min_size=1, max_size=8), st.data())
def test_a_record_is_encoded_from_itself_alone(values, data):
    """Whatever the other records hold, and in whatever order: mixed types compare equal."""
    column = Column("c", "category", categories=["1", "True", "0", "2"], missing="missing")
    schema = dpk.Schema([column])
    whole = schema.encode({"c": values})
    i = data.draw(st.integers(0, len(values) - 1))
    np.testing.assert_array_equal(schema.encode({"c": [values[i]]})[0], whole[i])


def test_numbers_booleans_and_text_are_the_same_category_only_where_written_alike():
    schema = dpk.Schema([Column("c", "category", categories=[1, "True", "other"])])
    found = schema.encode({"c": [1, 1.0, "1", np.int32(1), True, "True", "1.0", 2]}).argmax(axis=1)
    assert found.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    assert schema.encode({"c": np.array([True, False])}).argmax(axis=1).tolist() == [1, 2]


@for_each("k", [2, 3, 7, 49])
@for_each("sparse", [False, True])
def test_values_of_no_category_are_the_average_of_all(k, sparse):
    levels = [f"v{i}" for i in range(k)]
    first = Column("c", "category", categories=levels)
    flagged = Column("d", "category", categories=levels, missing="missing")
    stated = Column("e", "category", categories=[*levels, "other"], missing="v1")
    schema = dpk.Schema([first, flagged, stated])
    values = ["unheard of", "", None, "v0"]
    rows = schema.encode(dict.fromkeys("cde", values), sparse_output=sparse)
    c, d, e = np.split(rows.toarray() if sparse else rows, [k, 2 * k + 1], axis=1)
    average, indicators = np.full(k, 1.0 / k), np.eye(k + 1)
    np.testing.assert_array_equal(c, [average, average, average, indicators[0, :k]])
    np.testing.assert_array_equal(d, [[*average, 0], indicators[k], indicators[k], indicators[0]])
    np.testing.assert_array_equal(e, indicators[[k, 1, 1, 0]])


def test_other_is_a_column_only_where_it_is_listed():
    with pytest.raises(ValueError, match="got 'other': list \"other\" among the categories if"):
        Column("c", "category", categories=["a", "b"], missing="other")
    stated = Column("c", "category", categories=["a", "other"], missing="other")
    np.testing.assert_array_equal(
        dpk.Schema([stated]).encode({"c": ["a", "", "b"]}), [[1, 0], [0, 1], [0, 1]]
    )


def test_a_single_category_needs_another_to_differ_from():
    with pytest.raises(ValueError, match=r"of column 'c' must be at least two, got \['yes'\]"):
        Column("c", "category", categories=["yes"])
    flagged = Column("c", "category", categories=["yes"], missing="missing")
    np.testing.assert_array_equal(dpk.Schema([flagged]).encode({"c": ["yes", ""]}), np.eye(2))


VALUES = st.one_of(
    st.floats(), st.integers(-(10**300), 10**300), st.sampled_from(["", "?", "7", "inf", "-1e400"])
)


@given(st.lists(st.tuples(VALUES, VALUES, st.text(max_size=3)), min_size=1, max_size=5))
def test_no_encoded_row_is_longer_than_the_proven_bound(rows):
    first = Column("a", "number", lo=-1.0, hi=3.0, missing=2.5)
    second = Column("b", "number", lo=0.0, hi=1e9, scale="log1p", missing=0.0)
    schema = dpk.Schema([first, second, Column("c", "category", categories=["?", "a"])])
    encoded = schema.encode([dict(zip("abc", row, strict=True)) for row in rows])
    norms = np.sqrt((encoded**2).sum(axis=1) + 1.0)
    assert norms.max() <= schema.proven_bound * (1.0 + 1e-15)
    assert schema.proven_bound == pytest.approx(np.sqrt(1.0 + 0.75**2 + 2.0 + 1.0 + 1.0))


def test_the_bound_is_attained_and_tight():
    frame = {"age": [17], "gain": ["?"], "hours": [80], "work": ["state"], "sex": [None]}
    norm = np.sqrt((SCHEMA.encode(frame) ** 2).sum() + 1.0)
    assert norm == pytest.approx(SCHEMA.proven_bound) == np.sqrt(1 + 2 + 1 + 1 + 1 + 1)


def test_messages_name_columns_and_counts_and_never_a_value():
    secret = "9173secret"
    wrong = {
        "age": FRAME | {"age": [1, 2, 3, secret]},
        "income": FRAME | {"income": ["low", "high", "low", secret]},
        "work": FRAME | {"work": ["private", "state", "state", [secret]]},
        "sex": FRAME | {"sex": ["F", "F", "F", {"a": secret}]},
        "hours": FRAME | {"hours": [1, 2, 3, Fraction(9173 * 10**400)]},
    }
    for name, frame in wrong.items():
        with pytest.raises((TypeError, ValueError), match=f"column '{name}'") as error:
            SCHEMA.silo_data(frame)
        cause = error.value
        while cause is not None:
            assert "9173" not in str(cause)
            cause = cause.__cause__
    with pytest.raises(ValueError, match="'age' must have no missing values, got 2 in 4 rows"):
        SCHEMA.encode(FRAME | {"age": [None, 2, "?", 4]})
    with pytest.raises(ValueError, match=r"'income', the target, .* got 1 other value in 4 rows"):
        SCHEMA.labels(FRAME | {"income": ["low", "?", "low", "low"]})


@for_each("text", ["4_2", "\uff14\uff12", "\u0664"])
def test_a_number_is_digits_of_ascii(text):
    with pytest.raises(ValueError, match=r"'age' must hold numbers, got text: .* in row 2, from 0"):
        SCHEMA.encode(FRAME | {"age": [20, 30, text, text]})


def test_columns_that_are_missing_or_unknown_are_refused_and_ignored_ones_are_not():
    with pytest.raises(ValueError, match=r"missing 'age'; unknown 'Age'.*\"ignore\" if need be"):
        SCHEMA.encode({"Age": FRAME["age"]} | {k: v for k, v in FRAME.items() if k != "age"})
    ignoring = dpk.Schema([AGE, Column("id", "ignore"), Column("who", "person")])
    assert ignoring.encode({"age": [20], "id": ["x"]}).shape == (1, 1)
    assert ignoring.person.name == "who"
    assert_refused("TypeError: finds columns by their names", SCHEMA.encode, np.zeros((3, 6)))
    with pytest.raises(ValueError, match="columns of one length, got \\[1, 2\\]"):
        dpk.Schema([AGE, HOURS]).encode({"age": [20], "hours": [1, 2]})


# values outside what is declared


def test_values_outside_are_counted_for_the_holder_of_the_records():
    expected = {"age": (1, 4), "gain": (1, 3), "work": (1, 3), "sex": (1, 3)}
    for frame in (FRAME, pd.DataFrame(FRAME), pl.DataFrame(FRAME)):
        assert SCHEMA.count_outside(frame) == expected
        assert dpk.PublicEncoder(SCHEMA).count_outside(frame) == expected
    assert SCHEMA.count_outside({k: v[:1] for k, v in FRAME.items()}) == {}
    regression = dpk.Schema([AGE, Column("y", "target", lo=-3, hi=2)])
    assert regression.count_outside({"age": [20, 20], "y": [3, None]}) == {"y": (1, 1)}
    assert regression.count_outside({"age": [20, 20]}) == {}


@pytest.mark.filterwarnings("error::dpkern.data.OutsideWarning")
def test_the_holder_is_warned_of_values_outside_wherever_records_are_read():
    inside, sexless = records(60, 0), dpk.Schema([AGE, WORK, INCOME])
    inside["age"], inside["hours"] = (np.clip(inside[k], 17, 79) for k in ("age", "hours"))
    inside["work"] = np.resize(["private", "State"], 60)
    model = dpk.solve("gradient_descent", SCHEMA.silo_data(inside), budget=None, rounds=2)
    encoder = dpk.PublicEncoder(SCHEMA)
    few = inside | {"work": ["x", "", None, *inside["work"][3:]], "sex": ["?", *inside["sex"][1:]]}
    few["age"] = [90.5, *few["age"][1:]]
    for use in (SCHEMA.silo_data, model.predict, encoder.transform):
        use(inside)
        said = r"category: 1 of 60 in column 'age', 1 of 58 in column 'work'; values missing that "
        said += r"are coded as the average of the categories: 2 values in column 'work' \(counted"
        with pytest.warns(OutsideWarning, match=said) as caught:
            use(few)
        assert len(caught) == 1
    with pytest.warns(OutsideWarning, match=r"X has values missing that .*: 1 value in column 'wo"):
        sexless.silo_data({"age": [20, 30], "work": ["", "State"], "income": ["low", "high"]})


WRONG_COLUMNS = {
    "months for years": ("age", lambda ages: ages * 12, "in its range, 17 to 90, got"),
    "another spelling": ("sex", lambda sex: np.where(sex == "F", "f", "m"), "60 of 60 values that"),
    "numbers for letters": ("sex", lambda sex: 1.0 * (sex == "F"), "60 of 60 values that are nei"),
    "numbers as text": ("sex", lambda sex: np.where(sex == "F", "0", "1"), "60 of 60 values that"),
    "missing ones": ("sex", lambda sex: np.where(np.arange(60) % 3 > 0, "?", "X"), "20 of 20 val"),
    "a rare word": ("hours", lambda hours: np.full(60, 168), "60 of 60 values outside"),
}


@for_each("name", WRONG_COLUMNS)
def test_a_column_that_is_mostly_outside_is_refused(name):
    column, change, message = WRONG_COLUMNS[name]
    frame = records(60, 0)
    model = dpk.solve("gradient_descent", SCHEMA.silo_data(frame), budget=None, rounds=2)
    frame[column] = change(frame[column])
    uses = [SCHEMA.silo_data, model.predict, lambda X: model.score(X, SCHEMA.labels(X))]
    for use in (*uses, dpk.PublicEncoder(SCHEMA).transform):
        assert_refused(f"column '{column}' must .*{message}", use, frame)
    few = {k: v[:9] for k, v in frame.items()}
    assert len(model.predict(few)) == 9  # of so few, it may be
    assert SCHEMA.encode(frame).shape == (60, 10)  # a record is encoded from itself alone


def test_half_of_a_column_may_be_outside_and_most_of_it_if_said():
    frame = records(60, 0)
    frame["sex"] = np.repeat(["F", "x"], 30)
    assert SCHEMA.silo_data(frame).n == 60
    frame["sex"] = np.repeat(["F", "x"], [29, 31])
    assert_refused(r'31 of 60 .* list "other" among the categories', SCHEMA.silo_data, frame)
    said = SCHEMA.to_dict()
    said["columns"][4]["categories"] = ["F", "M", "other"]
    assert dpk.Schema.from_dict(said).silo_data(frame).n == 60


@for_each("spelling", ["m", "  f", "F\t ", "f "])
def test_ten_values_that_differ_from_a_category_by_case_alone_are_refused(spelling):
    frame = records(200, 0)
    for misspelt in (9, 10):
        frame["sex"] = np.array(["M"] * (200 - misspelt) + [spelling] * misspelt, dtype=object)
        if spelling.strip() == "F" or misspelt < 10:
            assert SCHEMA.silo_data(frame).n == 200
        else:
            message = 'column \'sex\' must .* 10 of 200 values that differ .*"SPELLING": "F"'
            assert_refused(message, SCHEMA.silo_data, frame)
    said = SCHEMA.to_dict()
    said["columns"][4]["aliases"] = {"m": "M", "f": "F"}
    assert dpk.Schema.from_dict(said).silo_data(frame).n == 200


def test_the_holder_is_told_what_values_outside_count_as():
    with pytest.warns(OutsideWarning, match="those in no category as the average of the categor"):
        SCHEMA.check_values(FRAME)


def test_counts_of_values_outside_are_not_released():
    inside, outside = records(60, 0), records(60, 0)
    inside["age"], outside["age"] = (
        np.clip(inside["age"], 17, 90),
        np.where(inside["age"] >= 90, 999, inside["age"]),
    )
    assert SCHEMA.count_outside(inside) != SCHEMA.count_outside(outside)
    budget = dpk.Budget(epsilon=3.0, delta=1e-5)
    runs = [
        dpk.solve("gradient_descent", SCHEMA.silo_data(frame, seed=0), budget=budget, rng=0)
        for frame in (inside, outside)
    ]
    np.testing.assert_array_equal(runs[0].w, runs[1].w)
    assert runs[0].privacy == runs[1].privacy


# the description


def test_a_schema_survives_a_file_and_its_digest_says_its_content(tmp_path):
    path = tmp_path / "s.json"
    SCHEMA.save(path)
    loaded = dpk.Schema.load(path)
    assert loaded == SCHEMA
    assert loaded.digest == SCHEMA.digest
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA
    for values in (changed(hi=91), changed(scale="log1p"), SCHEMA.to_dict() | {"missing": ["-"]}):
        assert dpk.Schema.from_dict(values).digest != SCHEMA.digest
    assert len(path.read_text().splitlines()) == 8 + 6 + 3  # a line for each key and column


@for_each(
    ("values", "message"),
    [
        (changed(low=3), "column 'age' has the unknown key 'low'; did you mean 'lo'?"),
        (changed(lo=91), "lo and hi of column 'age' must be finite with lo < hi, got 91.0 and 90"),
        (changed(lo="a"), "lo of column 'age' must be a real number, got 'a'"),
        (changed(kind="numbr"), "got 'numbr'; did you mean 'number'?"),
        (changed(scale="log"), "scale of column 'age' must be one of 'linear', 'log1p', got 'log'"),
        (changed(missing=7), "missing of column 'age' must lie in its range, 17 to 90, got 7.0"),
        (changed(hi=None), "no blanks, got null or nothing for hi of age: fill them in from"),
        (changed(name="gain"), "distinct names, got 'gain' twice"),
        ({**SCHEMA.to_dict(), "row_bound": 9}, "row_bound must be at most 2.64575"),
        (
            {**SCHEMA.to_dict(), "rowbound": 2},
            "the unknown key 'rowbound'; did you mean 'row_bound'",
        ),
        ({**SCHEMA.to_dict(), "dpkern_schema": 2}, "dpkern_schema must be 1, got 2"),
        ({"columns": []}, 'must be an object with "dpkern_schema": 1'),
        ({**LAYOUT, "columns": [INCOME.to_dict()]}, "columns must hold a feature"),
        (
            {**LAYOUT, "columns": [{"name": "c", "kind": "category", "categories": ["a", "a"]}]},
            "categories of column 'c' must be distinct",
        ),
        (
            {**LAYOUT, "columns": [{**WORK.to_dict(), "aliases": {"P": "Private"}}]},
            "aliases of column 'work' must be one of 'private', 'state', got 'Private'; did you",
        ),
        (
            {**LAYOUT, "columns": [{"name": "t", "kind": "target", "classes": ["a", 1]}]},
            "classes of column 't' must be at least two labels, all of them strings or all numbers",
        ),
        ({**LAYOUT, "columns": [{"name": "t", "kind": "target"}]}, "classes (or lo and hi) of t"),
    ],
)
def test_errors_of_a_file_name_it_the_column_the_key_and_the_cure(tmp_path, values, message):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(values))
    with pytest.raises((TypeError, ValueError)) as error:
        dpk.Schema.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_file_that_is_no_json_is_refused_with_its_place(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"dpkern_schema": 1,\n  columns}')
    assert_refused(r"must be JSON, got .* at line 2, column 3", dpk.Schema.load, path)


# silos, models and certificates


def records(n, seed):
    rng = np.random.default_rng(seed)
    frame = {
        "age": rng.uniform(10, 100, n),
        "gain": rng.choice(["0", "5000", "?"], n),
        "hours": rng.uniform(0, 100, n),
        "work": rng.choice(["private", "State", "?", "none"], n),
        "sex": rng.choice(["F", "M"], n),
    }
    score = frame["age"] / 30 + 2 * (frame["gain"] == "5000") + (frame["sex"] == "M") - 3
    return frame | {"income": np.where(score > 0, "high.", "low")}


def test_silo_data_has_the_public_numbers_of_the_schema():
    data = SCHEMA.silo_data(records(60, 0), 3, seed=1)
    assert (data.m, data.n_features, data.intercept) == (3, 10, True)
    assert data.row_bound == SCHEMA.proven_bound
    assert data.classes.tolist() == ["low", "high"]
    assert data.feature_names == SCHEMA.feature_names
    assert data.schema is SCHEMA
    smaller = dpk.Schema.from_dict(SCHEMA.to_dict() | {"row_bound": 2.0})
    assert smaller.silo_data(records(60, 0)).row_bound == 2.0


def test_silo_data_refuses_the_schema_of_other_features():
    X, y = SCHEMA.encode(FRAME), SCHEMA.labels(FRAME)
    for schema, names in ((SCHEMA, None), (dpk.Schema([AGE]), SCHEMA.feature_names), ("s", None)):
        with pytest.raises(ValueError, match="schema must have the features of X"):
            dpk.SiloData(X, y, [0, 4], schema=schema, feature_names=names)


def test_a_silo_column_says_whose_record_it_is():
    schema = dpk.Schema([*SCHEMA.columns, Column("site", "silo")])
    frame = records(30, 0) | {"site": ["b", "a", "c"] * 10}
    data = schema.silo_data(frame)
    assert data.silo_names == ("a", "b", "c")
    with pytest.raises(ValueError, match="m must be None, as column 'site' says the silo, got 2"):
        schema.silo_data(frame, 2)
    with pytest.raises(ValueError, match="got 10 missing values in 30 rows"):
        schema.silo_data(frame | {"site": ["b", None, "c"] * 10})


def test_targets_of_a_regression_are_clamped_to_their_bound():
    schema = dpk.Schema([AGE, Column("y", "target", lo=-3, hi=2)])
    data = schema.silo_data({"age": [20, 30, 40], "y": ["-7", 1, 5.0]}, how="even", seed=0)
    assert (data.task, data.target_bound) == ("regression", 2.5)
    assert data.transform.target_middle == -0.5
    assert sorted(data.y.tolist()) == [-2.5, 1.5, 2.5]


TIMES = dpk.Schema(
    [
        Column("age", "number", lo=0, hi=100),
        Column("days", "target", intervals=[0, 30, 90, 365]),
        Column("death", "event"),
    ]
)


def test_times_and_events_are_cells_of_public_intervals(tmp_path):
    frame = {"age": [3.0, 4.0, 5.0, 6.0], "days": [1, "40", 400, 90.5], "death": [1, 0, 1, "True"]}
    assert TIMES.labels(frame).tolist() == [0, 4, 6, 2]
    data = TIMES.silo_data(frame)
    assert (data.task, data.intercept, len(data.classes)) == ("multiclass", False, 7)
    assert sorted(data.y.tolist()) == [0, 2, 4, 6]
    TIMES.save(tmp_path / "s.json")
    assert dpk.Schema.load(tmp_path / "s.json") == TIMES
    words = Column("death", "event", classes=["no", "yes"], aliases={"dead": "yes"})
    schema = dpk.Schema([*TIMES.columns[:2], words])
    frame["death"] = ["yes", "no", "dead", "yes"]
    assert schema.labels(frame).tolist() == [0, 4, 6, 2]
    assert schema.digest != TIMES.digest
    (tmp_path / "bare.csv").write_text("3\n4\n")  # of records to predict
    bare = dpk.io.read_frame(tmp_path / "bare.csv", dpk.Schema(TIMES.columns, header=False))
    assert bare == {"age": ["3", "4"]}


@for_each(
    ("column", "values", "said"),
    [
        ("days", [1.0, -5.5], "column 'days', the target, must hold times from 0 on only, got 1"),
        ("days", [1.0, np.inf], "column 'days', the target, must hold times from 0 on only, got 1"),
        ("days", [1.0, "?"], "column 'days', the target, must hold times from 0 on only, got 1"),
        ("days", [1.0, "soon"], "column 'days' must hold numbers, got text"),
        ("death", [0, 7], "column 'death', the event, must hold classes or aliases of the schema"),
        ("death", [0, None], "column 'death', the event, must hold classes or aliases"),
    ],
)
def test_other_times_and_events_are_refused_without_a_value(column, values, said):
    frame = {"age": [3.0, 4.0], "days": [1.0, 2.0], "death": [1, 0]} | {column: values}
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        TIMES.labels(frame)
    assert "the first is in row 1" in str(caught.value)
    assert not re.search("5.5|inf|soon|7", str(caught.value))


@for_each(
    ("columns", "said"),
    [
        ([("t", "target", {"intervals": [0, 1]})], "neither, got no event"),
        ([("t", "target", {"lo": 0, "hi": 1}), ("e", "event", {})], "neither, got only an event"),
        ([("t", "target", {"intervals": [0, 1], "lo": 0, "hi": 1})], "must be absent beside"),
        ([("t", "target", {"intervals": [1]})], "intervals of column 't' must be two or more"),
        ([("e", "event", {"classes": [0, 1, 2]})], "must be two, the event's last"),
        ([("e", "event", {"aliases": ["no"]})], "aliases of column 'e' must map spellings"),
        ([("t", "target", {"intervals": None}), ("e", "event", {"classes": None})],
         "null or nothing for intervals of t; classes of e"),
    ],
)  # fmt: skip
def test_times_without_events_are_no_schema(columns, said):
    given = [{"name": n, "kind": kind, **rest} for n, kind, rest in (("x", "ignore", {}), *columns)]
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        dpk.Schema.from_dict({"dpkern_schema": 1, "columns": given})


def test_several_classes_have_constants_of_their_own():
    schema = dpk.Schema([AGE, Column("y", "target", classes=[3, 1, 2])])
    data = schema.silo_data({"age": [20, 30, 40], "y": ["1", 2, 3.0]})
    assert (data.task, data.intercept, data.row_bound) == ("multiclass", False, 1.0)
    assert data.classes.tolist() == [3, 1, 2]


def test_a_model_keeps_the_schema_predicts_raw_records_and_its_certificate_names_it(tmp_path):
    train, test = records(400, 0), records(100, 1)
    budget = dpk.Budget(epsilon=3.0, delta=1e-5)
    result = dpk.solve("auto", SCHEMA.silo_data(train, seed=0), budget=budget, rng=0)
    assert result.privacy.declared["schema"] == SCHEMA.digest
    result.save(tmp_path / "m.npz")
    loaded = dpk.load(tmp_path / "m.npz")
    assert loaded.schema == SCHEMA
    labels = SCHEMA.labels(test)
    for model in (result, loaded):
        found = model.predict(test)
        np.testing.assert_array_equal(found, model.predict(pd.DataFrame(test)))
        np.testing.assert_array_equal(found, model.predict(SCHEMA.encode(test)))
        named = pd.DataFrame(SCHEMA.encode(test), columns=SCHEMA.feature_names)
        np.testing.assert_array_equal(found, model.predict(named))
        assert model.score(test, labels) == np.mean(found == labels) > 0.75
    assert_refused("missing 'age'", loaded.predict, {k: v for k, v in test.items() if k != "age"})


def test_a_run_without_a_schema_declares_none():
    X = np.linspace(-1.0, 1.0, 40)[:, np.newaxis]
    data = dpk.SiloData.split(X, np.tile([0, 1], 20), 1, row_bound=1.0)
    budget = dpk.Budget(epsilon=3.0, delta=1e-5)
    result = dpk.solve("gradient_descent", data, budget=budget, rng=0, rounds=2)
    assert "schema" not in result.privacy.declared
    assert result.schema is None


# the transformer


def test_the_encoder_learns_nothing():
    """Fitted on whatever, or not at all, it does the same; what it was fed is nowhere in it."""
    encoder = dpk.PublicEncoder(SCHEMA)
    fresh = encoder.transform(FRAME)
    for fed in (None, FRAME, records(50, 3), {"age": ["nonsense"]}, np.zeros((3, 3))):
        fitted = clone(encoder).fit(fed, [1, 0])
        np.testing.assert_array_equal(fitted.transform(FRAME), fresh)
        assert vars(fitted) == vars(encoder)


def test_the_encoder_follows_the_conventions_of_scikit_learn():
    encoder = dpk.PublicEncoder(SCHEMA)
    assert encoder.get_feature_names_out().tolist() == list(SCHEMA.feature_names)
    assert encoder.feature_names_in_.tolist() == ["age", "gain", "hours", "work", "sex"]
    assert encoder.n_features_in_ == 5
    frame = pd.DataFrame(FRAME, index=[5, 6, 7, 8])
    for kind in ("pandas", "polars"):
        out = dpk.PublicEncoder(SCHEMA).set_output(transform=kind).fit_transform(frame)
        assert list(out.columns) == list(SCHEMA.feature_names)
        np.testing.assert_array_equal(out.to_numpy(), SCHEMA.encode(FRAME))
    sparse = dpk.PublicEncoder(SCHEMA, sparse_output=True)
    np.testing.assert_array_equal(sparse.transform(frame).toarray(), SCHEMA.encode(FRAME))
    again = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(again.transform(FRAME), encoder.transform(FRAME))
    with pytest.raises(TypeError, match=r"schema must be a dpkern.Schema, got a dict"):
        dpk.PublicEncoder(SCHEMA.to_dict()).fit()


def test_the_encoder_works_in_pipelines_and_column_transformers():
    frame = pd.DataFrame(records(300, 0))
    X, y = frame.drop(columns="income"), SCHEMA.labels(frame)
    pipeline = make_pipeline(dpk.PublicEncoder(SCHEMA), LogisticRegression()).fit(X, y)
    assert pipeline.score(X, y) > 0.8
    features = [column.name for column in SCHEMA.features]
    columns = ColumnTransformer([("raw", dpk.PublicEncoder(SCHEMA), features)])
    inside = make_pipeline(columns, LogisticRegression()).fit(X[features[::-1]], y)
    np.testing.assert_array_equal(inside.predict(X), pipeline.predict(X))
    assert columns.fit(X).get_feature_names_out()[0] == "raw__age"


# the command line

RAW = "20,private,low\n63, State , high.\n41,?,low\n55,unheard,high.\n" * 30
SMALL = dpk.Schema([Column("age", "number", lo=0, hi=100), WORK, INCOME], header=False, comment="|")
BUDGET = ["--epsilon", "3", "--delta", "1e-5", "--noise-seed", "1", "--rounds", "30"]


def run(capsys, *arguments, code=0):
    assert main([str(a) for a in arguments]) == code, capsys.readouterr().err
    return capsys.readouterr()


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw.csv").write_text("|a comment, of two fields\n" + RAW)
    SMALL.save(tmp_path / "schema.json")
    return tmp_path


def test_columns_to_be_ignored_are_not_kept(tmp_path):
    (tmp_path / "named.csv").write_text("age,name,salary\n20,Ann,low\n63,Bo,high.\n")
    columns = [AGE, Column("name", "ignore"), Column("salary", "ignore")]
    frame = dpk.io.read_frame(tmp_path / "named.csv", dpk.Schema(columns))
    assert frame == {"age": ["20", "63"]}


def test_raw_text_becomes_a_model_that_predicts_raw_text(capsys, raw):
    schema, model = ["--schema", raw / "schema.json"], raw / "m.npz"
    out, _ = run(capsys, "fit", *schema, raw / "raw.csv", *BUDGET, "--out", model)
    assert "feature range and categories of the schema" in out
    data = SMALL.silo_data(dpk.io.read_frame(raw / "raw.csv", SMALL), seed=0)
    budget = dpk.Budget(epsilon=3.0, delta=1e-5)
    expected = dpk.solve("auto", data, budget=budget, rng=1, rounds=30)
    assert dpk.load(model) == expected
    out, err = run(capsys, "predict", model, raw / "raw.csv")
    assert out.splitlines() == ["low", "high", "low", "high"] * 30
    assert re.search("accuracy of income 1.0000, AUC 1.0000, log loss .* on 120 labelled rec", err)
    (raw / "without.csv").write_text("20,private\n63,state\n")
    out, err = run(capsys, "predict", model, raw / "without.csv")
    assert (out.splitlines(), err) == (["low", "high"], "")
    (raw / "other.csv").write_text("20,private,what\n63,state,low\n")
    out, err = run(capsys, "predict", model, raw / "other.csv")
    assert out.splitlines() == ["low", "high"]
    assert "no score" in err
    assert "what" not in err


def test_what_the_schema_says_is_not_said_twice(capsys, raw):
    fit = ["fit", "--schema", raw / "schema.json", raw / "raw.csv", *BUDGET]
    said = (["--target", "a"], ["--person", "age"], ["--row-bound", "2"], ["--no-intercept"])
    for option in (*said, ["--no-header"], ["--header"]):
        err = run(capsys, *fit, *option, code=2).err
        assert err == f"dpkern: error: {option[0]} was given, and --schema says it\n"
    run(capsys, *fit, "--out", raw / "m.npz")
    err = run(capsys, *fit, "--out", raw / "schema.json", code=2).err
    assert "is read by this command" in err
    err = run(capsys, "predict", raw / "m.npz", raw / "raw.csv", "--sep", ";", code=2).err
    assert "--sep was given, and the model's schema says it" in err


def test_errors_of_raw_text_name_the_file(capsys, raw):
    SCHEMA.save(raw / "schema.json")
    path = raw / "other.csv"
    path.write_text("age,gain,hour,work,sex,income\n17,0,1,state,F,low\n")
    err = run(capsys, "fit", "--schema", raw / "schema.json", path, *BUDGET, code=2).err
    assert err.startswith(f"dpkern: error: {path} must have the columns of the schema, got missing")
    assert "missing 'hours'; unknown 'hour'" in err
    path.write_text("age,gain,hours,work,sex,income\n17,0,1,state,F,low\n17,much,1,state,F,low\n")
    err = run(capsys, "fit", "--schema", raw / "schema.json", path, *BUDGET, code=2).err
    assert err.startswith(f"dpkern: error: {path}: column 'gain' must hold numbers, got text")
    assert "much" not in err
    path.write_text("age,gain,hours\n17,0\n")
    err = run(capsys, "fit", "--schema", raw / "schema.json", path, *BUDGET, code=2).err
    assert f"{path}, line 2 must have 3 fields, one for each column, got 2" in err


@for_each(
    ("options", "loss"),
    [
        (["--classes", "low,mid,high"], "softmax"),
        (["--classes", "low,mid,high", "--hidden", "6,4"], "softmax"),
        (["--task", "multiclass", "--classes", "high,mid,low", "--hidden", "6"], "softmax"),
        (["--hidden", "6", "--hidden-activation", "tanh", "--loss", "logistic"], "logistic"),
        (["--hidden", "6", "--target-bound", "9"], "squared"),
        (["--target-bound", "9"], "squared"),
    ],
)
def test_several_classes_perceptrons_and_real_targets_on_the_command_line(
    capsys, tmp_path, options, loss
):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 2))
    y = 3.0 * X[:, 0]
    if "--target-bound" not in options:
        cuts = [-1.0, 1.0] if "--classes" in options else [0.0]
        names = ["low", "mid", "high"] if "--classes" in options else ["low", "high"]
        y = np.array(names)[np.digitize(y, cuts)]
    path, model = tmp_path / "d.csv", tmp_path / "m.npz"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv(path, index=False)
    more = [
        "--target",
        "y",
        "--row-bound",
        "1.5",
        "--test",
        shutil.copy(path, tmp_path / "t.csv"),
        "--out",
        model,
    ]
    budget = ["--epsilon", "8", "--delta", "1e-5", "--noise-seed", "1"]
    out, _ = run(capsys, "fit", path, *options, *more, *budget)
    result = dpk.load(model)
    assert loss == (result.oracle or result).loss
    assert ("hidden layer" in out) == (result.oracle is not None)
    predicted, err = run(capsys, "predict", model, path, "--target", "y")
    np.testing.assert_array_equal(predicted.split(), result.predict(X).astype(str))
    if "--classes" in options:
        assert result.classes.tolist() == options[options.index("--classes") + 1].split(",")
        out, _ = run(capsys, "predict", model, path, "--target", "y", "--decision-values")
        head = ["label", *(f"decision_value_{label}" for label in result.classes)]
        assert out.splitlines()[0].split(",") == head
    if "--target-bound" in options:
        assert "MSE of y" in err
    else:
        assert float(re.search(r"accuracy of y ([\d.]+)", err)[1]) > 0.8


def test_the_first_of_two_classes_is_the_negative_one(capsys, tmp_path):
    path, model = tmp_path / "d.csv", tmp_path / "m.npz"
    path.write_text("a,y\n" + "0.5,yes\n-0.5,no\n" * 50)
    run(capsys, "fit", path, "--classes", "yes,no", *BUDGET, "--out", model)
    result = dpk.load(model)
    assert result.classes.tolist() == ["yes", "no"]
    assert result.coef[0] < 0.0
    err = run(capsys, "fit", path, "--hidden-activation", "tanh", *BUDGET, code=2).err
    assert "--hidden-activation needs --hidden" in err
    err = run(capsys, "fit", path, "--task", "multiclass", *BUDGET, code=2).err
    assert "--classes must be the public labels" in err


def test_compare_takes_a_schema(capsys, raw):
    small = [
        "--solvers",
        "gradient_descent",
        "--epsilons",
        "2",
        "--draws",
        "1",
        "--no-plot",
        "--all",
    ]
    out, _ = run(capsys, "compare", "--schema", raw / "schema.json", raw / "raw.csv", *small)
    assert "gradient_descent  central  2" in out


def test_a_draft_holds_no_value_of_a_record_and_says_what_it_holds(capsys, tmp_path):
    path = tmp_path / "d.csv"
    rows = "".join(f"{1234 + i},red{i % 3},site{i % 2},yes{i % 2}\n" for i in range(30))
    path.write_text("age,colour,place,state\n" + rows)
    out, err = run(capsys, "schema", path, "--silo-column", "place")
    draft = json.loads(out)
    assert [column["kind"] for column in draft["columns"]] == [
        *("number", "category", "silo", "target")
    ]
    for value in ("123", "124", "125", "red", "site", "yes"):
        assert value not in out + err
    assert "not private" in err
    assert "lo and hi of age; categories of colour; classes (or lo and hi) of state" in err
    (tmp_path / "draft.json").write_text(out)
    err = run(capsys, "fit", "--schema", tmp_path / "draft.json", path, *BUDGET, code=2).err
    assert "must have no blanks, got null or nothing for lo and hi of age; categories of" in err
    out, err = run(capsys, "schema", path, "--not-private-categories")
    assert json.loads(out)["columns"][1]["categories"] == ["red0", "red1", "red2"]
    assert "categories and labels are the records'" in err
    assert json.loads(out)["columns"][0]["lo"] is None


def test_a_draft_takes_codes_for_categories(capsys, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("code,a,b,state\n01,1,1_0,0\n1,2,2,1\n001,3.5,3,1\n")
    draft = json.loads(run(capsys, "schema", path).out)
    kinds = [column["kind"] for column in draft["columns"]]
    assert kinds == ["category", "number", "category", "target"]


def test_a_draft_that_is_filled_in_fits(capsys, tmp_path):
    path, out = tmp_path / "raw.csv", tmp_path / "s.json"
    path.write_text(RAW)
    run(capsys, "schema", path, "--names", "age,work,income", "--out", out)
    draft = json.loads(out.read_text())
    assert draft["header"] is False
    age, work, income = draft["columns"]
    age |= {"lo": 0, "hi": 100}
    work |= {"categories": ["private", "state"], "aliases": {"State": "state"}}
    income |= {"classes": ["low", "high"], "aliases": {"high.": "high"}}
    out.write_text(json.dumps(draft))
    run(capsys, "fit", "--schema", out, path, *BUDGET)


@for_each(
    ("text", "message"),
    [
        ("age;y\n1,5;a\n2,5;b\n", "column 'age' must have decimal points, got decimal commas in 2"),
        ('age,y\n"1,234.5",a\n7,b\n', "column 'age' must have digits alone, got thousands"),
        ("age;y\n1.234.567;a\n5;b\n", "column 'age' must have digits alone, got thousands"),
        ("age,y\n1 234 567,a\n5,b\n", "column 'age' must have digits alone, got thousands"),
        ("age,y\n7%,a\n23.4%,b\n", "line 2: column 'age' must have digits alone, got units in 2"),
        ("age,y\n\n3,b\n$ 234,a\n", "line 4: column 'age' must have digits alone, got units in 1"),
        (
            "age,y\n2020-01-31,a\n",
            "line 2: column 'age' must hold numbers or categories, got dates",
        ),
        ("age,y\n31.01.2020 07:30,a\n", "column 'age' must hold numbers or categories, got dates"),
        ("age,age,y\n1,2,a\n", "got 'age' twice: dpkern schema --rename 1=NAME renames the one in"),
    ],
)
def test_numbers_that_a_draft_would_take_for_text_are_explained(capsys, tmp_path, text, message):
    path = tmp_path / "raw.csv"
    path.write_text(text)
    err = run(capsys, "schema", path, "--target", "y", "--header", code=2).err
    assert message in err
    assert "234" not in err


def test_text_among_numbers_is_pointed_out(capsys, tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text('note,age,y\n"two\nlines",1,a\n\nx,2,b\nx,>90,a\n')
    out, err = run(capsys, "schema", path, "--target", "y")
    assert "line 6: column 'age' has text there and in 1 of 3 distinct values" in err
    assert ">90" not in err
    assert [c["kind"] for c in json.loads(out)["columns"]] == ["category", "category", "target"]


def test_ids_are_pointed_out(capsys, tmp_path):
    path = tmp_path / "raw.csv"
    rows = "".join(f"P{i:03},{i % 2}f,{i % 2}\n" for i in range(40))
    path.write_text(f"pid,sex,y\n{rows}")
    err = run(capsys, "schema", path, "--target", "y").err
    assert "column 'pid' has another text in every record: if it names them, leave it out by" in err
    assert "'sex'" not in err
    assert "another text" not in run(capsys, "schema", path, "--ignore", "0").err


def test_columns_are_renamed_by_name_or_by_place(capsys, tmp_path):
    path, out, model = tmp_path / "raw.csv", tmp_path / "s.json", tmp_path / "m.npz"
    rows = "".join(f"{i % 7},{i % 5},{'ab'[i % 2]}\n" for i in range(40))
    path.write_text(f"age,age,Who? (sex/y)\n{rows}")
    renamed = ["--rename", "1=bmi", "--rename", "Who? (sex/y)=y"]
    run(capsys, "schema", path, *renamed, "--target", "y", "--out", out)
    draft = json.loads(out.read_text())
    assert draft["rename"] == {"1": "bmi", "Who? (sex/y)": "y"}
    assert [column["name"] for column in draft["columns"]] == ["age", "bmi", "y"]
    for column, more in zip(
        draft["columns"], [{"lo": 0, "hi": 7}] * 2 + [{"classes": ["a", "b"]}], strict=True
    ):
        column |= more
    out.write_text(json.dumps(draft))
    run(capsys, "fit", "--schema", out, path, *BUDGET, "--out", model)
    assert dpk.load(model).schema == dpk.Schema.load(out)
    assert "accuracy of y" in run(capsys, "predict", model, path).err
    for option, message in [
        ("age=x", "got 'age': places 0, 1 have it"),
        ("sex=x", "rename must have names of single columns, or places from 0, got 'sex'"),
        ("9=x", "places from 0, got '9'"),
        ("x", "--rename: must be OLD=NEW, got 'x'"),
    ]:
        assert message in run(capsys, "schema", path, "--rename", option, code=2).err
    for names in ((), ("--names", "a,b,c")):
        err = run(capsys, "schema", path, "--no-header", *names, "--rename", "a=d", code=2).err
        assert "--rename is for a file with a header" in err


@for_each("rename", [{"1": "none"}, [], {"1": 2}])
def test_renamed_columns_must_be_those_of_the_schema(rename):
    with pytest.raises(ValueError, match="rename must map names or places in files to columns"):
        dpk.Schema([Column("age", "number", lo=0, hi=1)], rename=rename)
    with pytest.raises(ValueError, match="rename must be absent without a header"):
        dpk.Schema([Column("a", "number", lo=0, hi=1)], header=False, rename={"b": "a"})


@for_each(
    ("cells", "said"),
    [
        ("x,a", "column 'age' must hold numbers, got text"),
        (
            ",a",
            'got 1 in 3 rows: state the number that stands for one under "missing" of the column',
        ),
        ("5,c", "column 'y', the target, must hold classes or aliases of the schema only"),
    ],
)
def test_a_bad_cell_is_named_by_its_line(capsys, tmp_path, cells, said):
    path, out = tmp_path / "raw.csv", tmp_path / "s.json"
    y = Column("y", "target", classes=["a", "b"])
    dpk.Schema([Column("age", "number", lo=0, hi=9), y]).save(out)
    path.write_text(f"age,y\n1,a\n\n{cells}\n2,b\n")
    err = run(capsys, "fit", "--schema", out, path, *BUDGET, code=2).err
    assert said in err.replace("raw.csv: ", "")
    assert "(the first is in line 4)" in err


def test_words_for_missing_values_beside_numbers_are_listed(capsys, tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text("age,work,y\n1,NA,a\nNA,state,b\nnull,private,b\n")
    draft = json.loads(run(capsys, "schema", path, "--target", "y")[0])
    assert draft["missing"] == ["", "?", "NA", "null"]
    assert [column["kind"] for column in draft["columns"]] == ["number", "category", "target"]


def test_a_column_without_a_name_is_called_by_its_place(capsys, tmp_path):
    path, out = tmp_path / "raw.csv", tmp_path / "s.json"
    path.write_text(",age,y\n" + "".join(f"{i},{i % 7},{'ab'[i % 2]}\n" for i in range(40)))
    assert "leave it out by --ignore 0" in run(capsys, "schema", path).err
    assert "--ignore 0" not in run(capsys, "schema", path, "--ignore", "0", "--out", out).err
    draft = json.loads(out.read_text())
    index, age, y = draft["columns"]
    assert index == {"name": "column_0", "kind": "ignore"}
    age |= {"lo": 0, "hi": 7}
    y |= {"classes": ["a", "b"]}
    out.write_text(json.dumps(draft))
    run(capsys, "fit", "--schema", out, path, *BUDGET)


def test_a_first_record_is_never_taken_for_names(capsys, tmp_path):
    path = tmp_path / "raw.csv"
    path.write_text(RAW)
    err = run(capsys, "schema", path, code=2).err
    assert "--names A,B,C, or say --no-header" in err
    assert "private" not in err
    out, _ = run(capsys, "schema", path, "--no-header")
    assert [c["name"] for c in json.loads(out)["columns"]] == ["column_0", "column_1", "column_2"]


# the page on schemas

PAGE = (ROOT / "docs" / "schema.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_explains_every_key_and_its_example_is_a_schema():
    (example,) = blocks("json")
    schema = dpk.Schema.from_dict(json.loads(example))
    assert schema.row_bound is None
    assert schema.proven_bound == np.sqrt(1 + 2 + 1 + 1)
    columns = schema.to_dict()["columns"]
    for key in {*schema.to_dict(), *KEYS, *(key for column in columns for key in column)}:
        assert f"| `{key}`" in PAGE or f" `{key}` " in PAGE or f"`{key}`," in PAGE, key


@pytest.mark.docs
def test_the_code_of_the_page_runs_on_adult(capsys, tmp_path, monkeypatch):
    for name in ("adult.data.xz", "adult.test.xz"):
        (tmp_path / name).symlink_to(adult(name))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    python = "".join(blocks("python"))
    assert len(blocks("python")[0].strip().splitlines()) <= 15
    exec(compile(python, "docs/schema.md", "exec"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 0.84
    (shell,) = blocks("sh")
    commands = shell.replace("\\\n", "").splitlines()
    assert len(commands) <= 6
    names = commands[0].removeprefix("names=")
    for command in commands[1:]:
        if not command.startswith("dpkern"):
            shutil.copy(ADULT, "schema.json")
            continue
        words = shlex.split(command.replace("$names", names))
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert "accuracy of income 0.8" in capsys.readouterr().out


# adult: the schema of examples/adult is public knowledge


def adult(name):
    folder = Path(os.environ.get("DPKERN_DATA", "")) / "adult"
    if "DPKERN_DATA" not in os.environ or not (folder / name).exists():
        pytest.skip("the environment variable DPKERN_DATA names no folder with adult")
    return folder / name


def test_the_schema_of_adult_is_that_of_the_census_form():
    schema = dpk.Schema.load(ADULT)
    assert (len(schema.columns), schema.n_features) == (15, 107)
    assert schema.proven_bound == np.sqrt(5 + 8 + 1)
    assert schema.sparse


def test_adult_from_raw_text_is_within_a_point_and_a_half_of_no_privacy():
    schema = dpk.Schema.load(ADULT)
    train = dpk.io.read_frame(adult("adult.data.xz"), schema)
    test = dpk.io.read_frame(adult("adult.test.xz"), schema)
    data = schema.silo_data(train, seed=0)
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    scores = [
        dpk.solve("auto", data, budget=budget, rng=seed).score(test, schema.labels(test))
        for seed in range(5)
    ]
    assert np.mean(scores) >= 0.852 - 0.015
    assert schema.encode(test)[:, [n.endswith("_missing") for n in schema.feature_names]].any()
