"""Parquet, Feather and CSV files in blocks: the bits of memory, and what is refused by name."""

import os

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern import _core
from dpkern.data import Column, OutsideWarning
from dpkern.models.losses import Poisson

pa = pytest.importorskip("pyarrow")
csv = pytest.importorskip("pyarrow.csv")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

BUDGET = dpk.Budget(epsilon=2.0, delta=1e-5)
SCHEMA = dpk.Schema(
    [
        Column("age", "number", lo=18, hi=90, missing=50),
        Column("sex", "category", categories=["f", "m"]),
        Column("note", "ignore"),
        Column("site", "silo"),
        Column("ill", "target", classes=["no", "yes"]),
    ]
)
CODES = [("01", "7", "1"), ("1", "08.5", "0"), ("01", "", "0"), ("1", "90", "1"), ("1", "?", "1")]


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    age = np.where(rng.random(n) < 0.1, np.nan, rng.integers(10, 95, n))
    return {
        "ill": rng.choice(["no", "yes"], n).tolist(),
        "age": [None if np.isnan(a) else float(a) for a in age],
        "sex": rng.choice(["f", "m", "x"], n).tolist(),
        "site": rng.choice(["A", "B"], n).tolist(),
        "note": ["private"] * n,
    }


def write(path, columns, rows=64):
    found = pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(found, path, row_group_size=rows)
    elif path.suffix == ".feather":
        feather.write_feather(found, path, chunksize=rows)
    else:
        csv.write_csv(found, path)


def numbers(n=300, p=4, dtype=np.float32):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, p)).astype(dtype)
    y = (X[:, 0] + 0.5 * rng.standard_normal(n) > 0.0).astype(np.int64)
    return X, y, {f"x{k}": X[:, k] for k in range(p)} | {"y": y}


def same(first, second):
    assert first.w.tobytes() == second.w.tobytes()
    assert first.privacy.declared == second.privacy.declared
    assert first.privacy.notes == second.privacy.notes


@for_each("suffix", [".parquet", ".feather", ".csv"])
def test_files_with_a_schema_have_the_bits_of_memory(suffix, tmp_path):
    whole = table()
    for i, rows in enumerate((slice(0, 1), slice(1, 150), slice(150, 200))):
        write(tmp_path / f"{i}{suffix}", {name: column[rows] for name, column in whole.items()})
    with pytest.warns(OutsideWarning):
        memory = SCHEMA.silo_data({k: v for k, v in whole.items() if k != "note"})
    with pytest.warns(OutsideWarning, match=r"the first in .*0\.") as told:
        blocks = dpk.read_parquet(tmp_path, schema=SCHEMA)
    text = str(told[0].message)
    assert "in column 'age'" in text
    assert "in column 'sex'" in text
    assert (".parquet, row group 0" in text) == (suffix == ".parquet")
    assert blocks.silo_names == memory.silo_names
    for name in ("local_newton", "gradient_descent"):
        how = {"budget": BUDGET, "rng": 2, "rounds": 3}
        same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


@for_each("header", [True, False])
def test_csv_with_a_schema_is_read_as_text(header, tmp_path):
    from dpkern.io import read_frame

    lines = ["code;age;ill", *(f"{c};{a};{i}" for c, a, i in CODES * 20)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines if header else lines[1:]) + "\n")
    columns = [
        Column("code", "category", categories=["01", "1"]),
        Column("age", "number", lo=0, hi=99, missing=50),
        Column("ill", "target", classes=["0", "1"]),
    ]
    schema = dpk.Schema(columns, sep=";", header=header)
    memory = schema.silo_data(read_frame(path, schema))
    blocks = dpk.read_parquet(path, schema=schema)
    found = [dpk.solve("ridge", data, budget=BUDGET, rng=1).w for data in (memory, blocks)]
    assert found[0].tobytes() == found[1].tobytes()
    with pytest.raises(ValueError, match="schema must have no comment"):
        dpk.read_parquet(path, schema=dpk.Schema(columns, sep=";", comment="#"))


@for_each("dtype", [np.float32, np.float64])
def test_columns_of_numbers_keep_their_dtype(dtype, tmp_path):
    X, y, columns = numbers(dtype=dtype)
    write(tmp_path / "a.parquet", columns)
    names = tuple(f"x{k}" for k in range(4))
    how = {"classes": [0, 1], "intercept": True, "feature_range": {k: (-3, 3) for k in names}}
    memory = dpk.SiloData(X, y, [0, len(y)], feature_names=names, **how)
    blocks = dpk.read_parquet(tmp_path / "a.parquet", target="y", **how)
    assert blocks.X.dtype == dtype
    same(*(dpk.solve("ridge", data, budget=BUDGET, rng=1) for data in (memory, blocks)))


def test_a_file_that_changes_ends_the_run_by_name(tmp_path):
    _, _, columns = numbers()
    write(tmp_path / "a.parquet", columns)
    blocks = dpk.read_parquet(tmp_path, target="y", classes=[0, 1], row_bound=2.0)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    os.utime(tmp_path / "a.parquet", ns=(1, 1))
    with pytest.raises(ValueError, match=r"a\.parquet must not change while"):
        dpk.solve("ridge", blocks, budget=BUDGET, accountant=accountant)
    assert not accountant.entries
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(ValueError, match=r"a\.parquet must not change while"):
        dpk.solve("ridge", blocks, budget=BUDGET)


@for_each(
    ("change", "error", "message"),
    [
        ({"x1": None}, ValueError, r"b\.parquet must have the columns that are read, .* 'x1'"),
        ({"x1": ["a"] * 70}, TypeError, r"b\.parquet, row group 0: column 'x1' must be numbers"),
        ({"x1": np.ones(70)}, TypeError, r"b\.parquet, row group 0: X must be dense float32"),
        (
            {"x1": np.r_[np.ones(66), np.full(4, np.nan)].astype(np.float32)},
            ValueError,
            r"b\.parquet, row group 1: X must be finite, got 4 .* in column 'x1'",
        ),
        ({"y": np.full(70, 7)}, ValueError, r"b\.parquet, row group 0: y must hold labels"),
        (
            {"z": np.ones(70)},
            ValueError,
            r"b\.parquet must have the columns of the first file, .*'z'",
        ),
    ],
)
def test_a_wrong_file_is_named(change, error, message, tmp_path):
    _, _, columns = numbers()
    write(tmp_path / "a.parquet", columns)
    other = {name: column[:70] for name, column in columns.items()} | change
    write(tmp_path / "b.parquet", {k: v for k, v in other.items() if v is not None})
    with pytest.raises(error, match=message):
        dpk.read_parquet(tmp_path, target="y", classes=[0, 1], row_bound=2.0)


def test_values_that_a_schema_refuses_are_placed(tmp_path):
    whole = table()
    write(tmp_path / "a.parquet", whole)
    write(tmp_path / "b.parquet", whole | {"ill": ["no"] * 150 + ["maybe"] * 50})
    message = r"b\.parquet, row group 2: column 'ill', the target, must hold classes"
    with pytest.raises(ValueError, match=message):
        dpk.read_parquet(tmp_path, schema=SCHEMA)
    write(tmp_path / "b.parquet", whole | {"age": [400.0] * 200})
    write(tmp_path / "a.parquet", whole | {"age": [50.0] * 200})
    with pytest.warns(OutsideWarning, match=r"200 of 400 in column 'age'.*b\.parquet"):
        dpk.read_parquet(tmp_path, schema=SCHEMA)
    write(tmp_path / "a.parquet", whole | {"age": [400.0] + [50.0] * 199})
    with pytest.raises(ValueError, match=r"a\.parquet, row group 0: column 'age' must be in its"):
        dpk.read_parquet(tmp_path, schema=SCHEMA)


def test_wrong_arguments_of_files_are_refused(tmp_path):
    _, _, columns = numbers()
    write(tmp_path / "a.parquet", columns)
    write(tmp_path / "a.csv", columns)
    (tmp_path / "empty").mkdir()
    for name in ("a.txt", "damaged.parquet"):
        (tmp_path / name).write_text("x")
    for paths, how, error, message in (
        ([*tmp_path.glob("a.[cp]*")], {}, ValueError, "one format, got csv and parquet"),
        (tmp_path / "empty", {}, ValueError, r"one format, got no file with \.parquet"),
        (tmp_path / "none", {}, FileNotFoundError, "paths must hold files or folders"),
        (tmp_path / "*.parquet", {}, FileNotFoundError, "which is none: pass a folder for a pat"),
        (tmp_path / "a.parquet", {"target": None}, ValueError, "; or pass a schema"),
        (tmp_path / "a.parquet", {"rowbound": 1.0}, TypeError, "did you mean 'row_bound'"),
        (tmp_path / "a.txt", {}, ValueError, "must end in .parquet"),
        (
            tmp_path / "damaged.parquet",
            {},
            ValueError,
            "damaged.parquet must be what its name ends in",
        ),
        (3, {}, TypeError, "paths must be names of files or folders, got int"),
        ([tmp_path, {}], {}, TypeError, "paths must be names of files or folders, got dict"),
        (tmp_path, {"schema": "s.json"}, TypeError, "schema must be a dpkern.Schema, got str"),
        (tmp_path / "a.csv", {"target": "z"}, ValueError, "target must be a column of"),
        (tmp_path / "a.csv", {"silo": "z"}, ValueError, "silo must be a column of"),
        (tmp_path / "a.csv", {"schema": SCHEMA}, ValueError, "target must be None beside"),
        (
            tmp_path / "a.csv",
            {"schema": SCHEMA, "target": None, "row_bound": 1.0},
            ValueError,
            "'row_bound' must be absent beside a schema",
        ),
    ):
        with pytest.raises(error, match=message):
            dpk.read_parquet(paths, **{"target": "y"} | how)


def test_damaged_bytes_are_placed(tmp_path):
    _, _, columns = numbers()
    write(tmp_path / "a.parquet", columns)
    held = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "b.parquet").write_bytes(held[:40] + 400 * b"x" + held[440:])
    with pytest.raises(ValueError, match=r"b\.parquet must be what its name ends in"):
        dpk.read_parquet(tmp_path, target="y", classes=[0, 1], row_bound=2.0)


def test_hidden_files_and_folders_are_not_read(tmp_path):
    _, _, columns = numbers(20)
    for name in ("a.parquet", "._a.parquet", "_temporary/0/b.parquet", "part.parquet/c.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, columns)
    how = {"target": "y", "classes": [0, 1], "row_bound": 2.0}
    assert dpk.read_parquet(tmp_path, **how).n == 40
    (tmp_path / "site=a").mkdir()
    (tmp_path / "a.parquet").rename(tmp_path / "site=a" / "a.parquet")
    with pytest.raises(ValueError, match="got 'site', but a folder of this name: write it into"):
        dpk.read_parquet(tmp_path / "site=a", silo="site", **how)


@for_each("kind", ["twice", "folder", "dot", "symlink", "hard link"])
def test_a_file_counts_once(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    _, _, columns = numbers(20)
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "1.parquet", columns)
    paths = {"folder": ["a", "a/1.parquet"], "dot": ["a/1.parquet", "./a/../a/1.parquet"]}
    if kind == "symlink":
        os.symlink("1.parquet", "a/2.parquet")
    elif kind == "hard link":
        os.link("a/1.parquet", "a/2.parquet")
    how = {"target": "y", "classes": [0, 1], "row_bound": 2.0}
    given = "a" if "link" in kind else paths.get(kind, ["a/1.parquet"] * 2)
    with pytest.raises(ValueError, match="paths must hold every file once"):
        dpk.read_parquet(given, **how)
    assert dpk.read_parquet("a/1.parquet", **how).n == 20


@for_each(
    ("text", "row"),
    [
        ("x,y\n" + "1.0,1\n" * 200_000 + "S3CRET,0\n", ", row 200002"),
        ("x,y\n1.0,1\nS3CRET,0,9\n", ", row 3"),
        ("x,y\n1.0,1\nS3CRET\n", ", row 3"),
    ],
)
def test_what_pyarrow_cannot_read_shows_no_values(tmp_path, text, row):
    path = tmp_path / "hospital.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="must be what its name ends in") as caught:
        dpk.read_parquet(path, target="y", classes=[0, 1], row_bound=2.0)
    assert str(caught.value).startswith(f"{path}{row} ")
    assert "S3CRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    empty = tmp_path / "empty.parquet"
    empty.touch()
    with pytest.raises(ValueError, match=r"empty\.parquet must be what its name ends in"):
        dpk.read_parquet(empty, target="y", classes=[0, 1])


@for_each("suffix", ["parquet", "feather"])
@for_each("neighbours", ["replace_one", "add_remove"])
@pytest.mark.filterwarnings("ignore::dpkern.data.OutsideWarning")
def test_descriptions_of_files_have_the_bits_of_memory(suffix, neighbours, tmp_path):
    columns = table(300)
    for i, rows in enumerate([slice(0, 1), slice(1, 1), slice(1, 170), slice(170, 300)]):
        part = {
            name: pa.array(values[rows], pa.array(values).type) for name, values in columns.items()
        }
        write(tmp_path / f"{i}.{suffix}", part, rows=50)
    data = dpk.read_parquet(tmp_path, schema=SCHEMA)
    how = {"budget": BUDGET, "rng": 3, "cross_tables": [("sex", "ill")], "neighbours": neighbours}
    if neighbours == "add_remove":
        how["public_size"] = 310
    first, second = (dpk.describe(given, SCHEMA, **how) for given in (columns, data))
    assert repr(first.rows) == repr(second.rows)
    assert repr(first.histograms) == repr(second.histograms)
    assert first.privacy.releases == second.privacy.releases
    assert first.privacy.declared == second.privacy.declared
    with pytest.raises(ValueError, match="columns must be numbers, categories"):
        dpk.describe(data, SCHEMA, budget=BUDGET, columns=["age", "note"])
    with pytest.raises(ValueError, match="schema must be that by which the files were read"):
        dpk.describe(data, dpk.Schema([SCHEMA.columns[0]]), budget=BUDGET)
    with pytest.raises(ValueError, match="max_records must be None for records in blocks"):
        dpk.describe(data, SCHEMA, budget=BUDGET, max_records=2)


def test_a_description_ends_where_a_file_has_changed(tmp_path):
    write(tmp_path / "a.parquet", {"age": [20.0, 30.0], "ill": ["no", "yes"]})
    schema = dpk.Schema([SCHEMA.columns[0], SCHEMA.columns[-1]])
    data = dpk.read_parquet(tmp_path, schema=schema)
    os.utime(tmp_path / "a.parquet", ns=(1, 1))
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    with pytest.raises(ValueError, match=r"a\.parquet must not change while"):
        dpk.describe(data, schema, budget=BUDGET, accountant=accountant)
    assert not accountant.entries


@for_each("suffix", ["parquet", "csv"])
def test_weights_and_exposures_of_files_have_the_bits_of_memory(suffix, tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.uniform(18.0, 90.0, 200).round(3),
        "visits": rng.integers(0, 9, 200).astype(float),
        "w": rng.uniform(0.0, 2.0, 200).round(3),
        "years": rng.uniform(0.5, 4.0, 200).round(3),
    }
    schema = dpk.Schema(
        [
            Column("age", "number", lo=18, hi=90),
            Column("visits", "target", lo=0, hi=8),
            Column("w", "weight", lo=0, hi=2.0),
            Column("years", "exposure", lo=0.1, hi=5.0),
        ]
    )
    for i, rows in enumerate([slice(0, 1), slice(1, 150), slice(150, 200)]):
        part = {name: values[rows] for name, values in columns.items()}
        write(tmp_path / f"{i}.{suffix}", part, rows=40)
    memory, blocks = schema.silo_data(columns), dpk.read_parquet(tmp_path, schema=schema)
    loss = Poisson(-3.0, 2.0, 8.0)
    how = {"budget": BUDGET, "rng": 1, "loss": loss, "rounds": 3}
    first, second = (dpk.solve("local_newton", data, **how) for data in (memory, blocks))
    assert first.w.tobytes() == second.w.tobytes()
    assert first.calibration == second.calibration
    if suffix == "csv":
        return
    named = {"target": "visits", "weight": "w", "max_weight": 2.0, "margin_offset": "years"}
    plain = {"task": "regression", "target_bound": 8.0, "row_bound": 90.0}
    first = dpk.read_parquet(tmp_path, **named, **plain)
    second = dpk.SiloData(
        columns["age"][:, np.newaxis], columns["visits"], [0, 200], feature_names=["age"],
        weight=columns["w"], max_weight=2.0, margin_offset=columns["years"], **plain,
    )  # fmt: skip
    same(*(dpk.solve("local_newton", data, **how) for data in (second, first)))
    with pytest.raises(ValueError, match=r"weight must be a column of .* got 'v'"):
        dpk.read_parquet(tmp_path, **(named | {"weight": "v"}), **plain)
    with pytest.raises(ValueError, match="'visits', 'w', 'w' must be distinct columns"):
        dpk.read_parquet(tmp_path, **(named | {"margin_offset": "w"}), **plain)
    with pytest.raises(ValueError, match="weight must be absent beside a schema"):
        dpk.read_parquet(tmp_path, schema=schema, weight="w")


@for_each("dtype", [np.float32, np.float64])
@for_each("n", [0, 1, 15, 16, 17, 1000])
def test_columns_are_placed_side_by_side(dtype, n):
    rng = np.random.default_rng(n)
    columns = [rng.standard_normal(n).astype(dtype) for _ in range(7)]
    out = np.full((n, 7), np.nan, dtype)
    _core.place_columns(columns, out)
    assert out.tobytes() == np.column_stack(columns).tobytes()


def test_columns_of_another_number_length_or_type_are_refused():
    columns, out = [np.zeros(20)] * 3, np.zeros((20, 3))
    for wrong, error in (
        (columns[:2], "columns must be as many as out has, 3, got 2"),
        ([*columns[:2], np.zeros(19)], "columns must have 20 values, got 19"),
        ([*columns[:2], np.zeros(20, np.float32)], "Buffer dtype mismatch"),
        ([*columns[:2], np.zeros(40)[::2]], "ndarray is not C-contiguous"),
    ):
        with pytest.raises(ValueError, match=error):
            _core.place_columns(wrong, out)
