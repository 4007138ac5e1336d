"""Derived features and dates are functions of one record, with a proved bound and true names."""

import json
import math
from datetime import date, datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest
from cases import for_each
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import BSpline

import dpkern as dpk
from dpkern.cli import main
from dpkern.data import Column, Derived, Schema

pytestmark = pytest.mark.filterwarnings("ignore::dpkern.data.OutsideWarning")
AGE = Column("age", "number", lo=20, hi=80)
PAY = Column("pay", "number", lo=0, hi=99_999, scale="log1p", missing=0)
SEX = Column("sex", "category", categories=["F", "M"], missing="missing")
WARD = Column("ward", "category", categories=["a", "b", "c"])
ILL = Column("ill", "target", classes=["no", "yes"])
COLUMNS = [AGE, PAY, SEX, WARD, ILL]
DERIVED = [
    Derived("product", ["age", "pay"]),
    Derived("product", ["ward", "age"]),
    Derived("product", ["sex", "ward"]),
    Derived("power", "age", degree=3),
    Derived("spline", "pay", knots=[10, 1_000, 20_000]),
]
SCHEMA = Schema(COLUMNS, derived=DERIVED)
ROWS = st.fixed_dictionaries(
    {
        "age": st.floats(-1e3, 1e3),
        "pay": st.one_of(st.floats(-1e6, 1e6), st.none()),
        "sex": st.sampled_from(["F", "M", "", "x"]),
        "ward": st.sampled_from(["a", "b", "c", "", "z"]),
    }
)


def frame(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    pay = [None if rng.random() < 0.1 else float(x) for x in rng.uniform(0.0, 1e5, n)]
    return {
        "age": rng.uniform(10.0, 90.0, n),
        "pay": pay,
        "sex": rng.choice(["F", "M", ""], n),
        "ward": rng.choice(["a", "b", "c", "?"], n),
        "ill": rng.choice(["no", "yes"], n),
    }


def test_derived_features_are_what_their_names_say():
    records = frame()
    plain, E = Schema(COLUMNS).encode(records), SCHEMA.encode(records)
    k, names = plain.shape[1], SCHEMA.feature_names
    np.testing.assert_array_equal(E[:, :k], plain)
    values = dict(zip(names, plain.T, strict=False)) | {"[age]": plain[:, 0], "[pay]": plain[:, 1]}
    products = ["[age]*[pay]", "ward_b*[age]", "ward_c*[age]"]
    products += [f"{a}*{b}" for a in ("sex_M", "sex_missing") for b in ("ward_b", "ward_c")]
    assert list(names[k : k + 7]) == products
    for j, name in enumerate(products):
        a, b = name.split("*")
        np.testing.assert_array_equal(E[:, k + j], values[a] * values[b])
    assert names[k + 7 : k + 9] == ("[age]^2", "[age]^3")
    u = values["[age]"][:, np.newaxis]
    np.testing.assert_allclose(E[:, k + 7 : k + 9], np.hstack([u**2, u**3]), rtol=1e-15)
    knots = 2.0 * np.log1p([10.0, 1e3, 2e4]) / np.log1p(99_999.0) - 1.0
    t = np.concatenate([[-1.0] * 4, knots, [1.0] * 4])
    splines = BSpline.design_matrix(values["[pay]"], t, 3).toarray()
    np.testing.assert_allclose(E[:, k + 9 :], splines[:, 1:-1], atol=1e-14)
    # With a constant and the number itself they make every cubic spline.
    made = np.column_stack([np.ones(len(E)), values["[pay]"], E[:, k + 9 :]])
    assert np.linalg.matrix_rank(made) == splines.shape[1]
    assert np.linalg.matrix_rank(np.hstack([made, splines])) == splines.shape[1]


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_rows_are_their_own_and_within_the_bound(rows):
    E = SCHEMA.encode(rows)
    assert np.linalg.norm(E, axis=1).max() <= np.sqrt(SCHEMA.proven_bound**2 - 1.0) * (1 + 1e-14)
    start = len(Schema(COLUMNS).feature_names)
    for derived in DERIVED:
        names = derived.feature_names({c.name: c for c in COLUMNS})
        block = E[:, start : start + len(names)]
        assert np.all((block**2).sum(axis=1) <= derived.square * (1 + 1e-14))
        start += len(names)
    np.testing.assert_array_equal(SCHEMA.encode(rows[-1:]), E[-1:])
    sparse = SCHEMA.encode(rows, sparse_output=True)
    assert sparse.has_canonical_format
    np.testing.assert_array_equal(sparse.toarray(), E)


def test_derived_features_survive_a_file(tmp_path):
    path = tmp_path / "schema.json"
    SCHEMA.save(path)
    loaded = Schema.load(path)
    assert (loaded, loaded.digest) == (SCHEMA, SCHEMA.digest)
    assert loaded.digest != Schema(COLUMNS).digest
    assert "derived" not in Schema(COLUMNS).to_dict()
    assert json.loads(path.read_text())["derived"][3] == {
        "kind": "power",
        "columns": ["age"],
        "degree": 3,
    }


@for_each("inference", [False, True])
def test_named_quantities_make_the_decision_function(inference):
    records = frame()
    how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-6), "rng": 1, "recalibrate": False}
    if inference:
        how = {"budget": dpk.Budget(epsilon=5.0, delta=1e-6), "rng": 1, "inference": True}
    result = dpk.solve("auto", SCHEMA.silo_data(records), **how)
    E = dict(zip(SCHEMA.feature_names, SCHEMA.encode(records).T, strict=True))
    quantities = dict(E)
    quantities["intercept"] = np.ones(len(records["age"]))
    quantities["age"] = np.clip(records["age"], 20.0, 80.0)
    pay = np.array([0.0 if x is None else x for x in records["pay"]])
    quantities["log1p(pay)"] = np.log1p(np.clip(pay, 0.0, 99_999.0))
    if inference:
        rows = [(row.name, row.estimate) for row in result.summary()]
        for name, first in (("sex", "F"), ("ward", "a")):
            for column in ("sex_M", "sex_missing", "ward_b", "ward_c"):
                if column.startswith(name):
                    quantities[f"{name}: {column.split('_')[1]}, for {first}"] = E[column]
    else:
        rows = [(row.name, row.coefficient) for row in result.coefficients()]
    total = sum(value * quantities[name] for name, value in rows)
    np.testing.assert_allclose(total, result.decision_function(records), atol=1e-9)


def test_models_with_derived_features_predict_raw_text(tmp_path, capsys):
    records = frame()
    names = list(records)
    rows = zip(*records.values(), strict=True)
    lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
    (tmp_path / "d.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    SCHEMA.save(tmp_path / "s.json")
    fit = ["fit", "--schema", tmp_path / "s.json", tmp_path / "d.csv", "--epsilon", "1"]
    fit += ["--delta", "1e-6", "--noise-seed", "0", "--out", tmp_path / "m.npz"]
    assert main([str(a) for a in fit]) == 0
    predict = ["predict", tmp_path / "m.npz", tmp_path / "d.csv", "--out", tmp_path / "p.txt"]
    assert main([str(a) for a in predict]) == 0
    capsys.readouterr()
    labels = (tmp_path / "p.txt").read_text().split()
    assert labels == dpk.load(tmp_path / "m.npz").predict(records).tolist()


@for_each(
    ("values", "text"),
    [
        ({"kind": "sum", "columns": ["age"]}, "kind must be one of product, power, spline"),
        ({"kind": "product", "columns": ["age"]}, "columns of a product must be 2 names"),
        ({"kind": "product", "columns": ["age", "age"]}, "columns of a product must be distinct"),
        ({"kind": "product", "columns": ["age", "ill"]}, "numbers or categories of the schema"),
        ({"kind": "product", "columns": ["age", "pay"], "degree": 2}, "derived"),
        ({"kind": "power", "columns": ["age"]}, "degree of a power must be given"),
        ({"kind": "power", "columns": ["age"], "degree": 11}, "degree must be from 2 to 10"),
        ({"kind": "power", "columns": ["sex"], "degree": 2}, "'sex' of a power must be a number"),
        ({"kind": "spline", "columns": ["age"], "knots": []}, "knots must be 1 to 100 increasing"),
        ({"kind": "spline", "columns": ["age"], "knots": [50, 40]}, "increasing numbers"),
        ({"kind": "spline", "columns": ["age"], "knots": [20]}, "must lie within its range, 20 to"),
        ({"columns": ["age"]}, "derived must be objects with kind and columns"),
    ],
)
def test_wrong_derived_features_are_refused(values, text):
    given = Schema(COLUMNS).to_dict() | {"derived": [values]}
    with pytest.raises((TypeError, ValueError), match=text):
        Schema.from_dict(given)


def test_features_of_one_name_are_refused():
    with pytest.raises(ValueError, match="distinct names"):
        Schema(COLUMNS, derived=[DERIVED[3], DERIVED[3]])
    with pytest.raises(TypeError, match=r"derived must be dpkern\.data\.Derived"):
        Schema(COLUMNS, derived=["age"])


# dates


BORN = Column("born", "number", lo=0, hi=36_525, since="1900-01-01", missing=18_000)


@for_each(
    "values",
    [
        ["1900-01-02", "1999-12-31", ""],
        ["1900-01-02T23:59", " 1999-12-31 ", None],
        [date(1900, 1, 2), datetime(1999, 12, 31, 12), math.nan],
        np.array(["1900-01-02", "1999-12-31", "NaT"], dtype="datetime64[D]"),
        pd.Series(pd.to_datetime(["1900-01-02", "1999-12-31", None])),
        pd.Series([pd.Timestamp(1900, 1, 2), pd.Timestamp(1999, 12, 31), pd.NaT], dtype=object),
        pl.Series([date(1900, 1, 2), date(1999, 12, 31), None]),
    ],
    ids=lambda values: type(values).__name__,
)
def test_dates_are_days_since_a_public_one(values):
    schema = Schema([BORN, SEX])
    E = schema.encode({"born": values, "sex": ["F", "M", "F"]})
    expected = [2.0 / 36_525 - 1.0, 2.0 * 36_523 / 36_525 - 1.0, 2.0 * 18_000 / 36_525 - 1.0]
    np.testing.assert_allclose(E[:, 0], expected, rtol=1e-15)
    assert E[:, 1].tolist() == [0.0, 0.0, 1.0]
    assert Schema.from_dict(schema.to_dict()) == schema
    assert "since" not in AGE.to_dict()
    assert BORN.unit[0] == "days from 1900-01-01 to born"


def test_what_is_no_date_is_refused_with_its_row():
    schema = Schema([BORN, SEX])
    for value in ("31.12.1999", "1999-13-01", 7.5, "soon"):
        with pytest.raises((TypeError, ValueError), match="must hold dates such as") as caught:
            schema.encode({"born": ["1950-01-01", value], "sex": ["F", "M"]})
        assert str(value) not in str(caught.value).replace("2020-01-31", "")
        assert "row 1" in str(caught.value)
    with pytest.raises(ValueError, match="since of column 'born' must be a date such as"):
        Column("born", "number", lo=0, hi=1, since="1.1.1900")
    with pytest.raises(ValueError, match="since of column 'x' must be absent"):
        Column("x", "category", categories=["a", "b"], since="1900-01-01")


def test_a_code_book_states_dates(tmp_path, capsys):
    book, data = tmp_path / "book.csv", tmp_path / "data.csv"
    book.write_text("name,kind,lo,hi,since\nborn,number,0,36525,1900-01-01\nage,number,,,\n")
    data.write_text("born,age\n1950-01-01,70\n1960-01-01,60\n")
    assert main(["schema", str(data), "--code-book", str(book)]) == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert columns[0]["since"] == "1900-01-01"
    assert "since" not in columns[1]
