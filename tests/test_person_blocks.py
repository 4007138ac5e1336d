"""People whose records are read in blocks: the first ones count, as they do in memory."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from cases import for_each
from scipy import sparse

import dpkern as dpk
from dpkern.data import Column
from dpkern.data import blocks as module
from dpkern.solvers import SOLVERS

BUDGET, UNIT = dpk.Budget(epsilon=2.0, delta=1e-5), "one person with at most 2 records"
HOW = {"intercept": True, "row_bound": 2.0, "classes": [0, 1], "max_records": 2}
NAMES = "X", "y", "groups", "person"
REFUSED = {  # with persons in memory too
    "newton_inference": "data must be without persons",
    "objective_perturbation": "data must be without person",
}
CASES = [
    (name, neighbours, trust)
    for name, solver in SOLVERS.items()
    if solver.declaration.in_blocks and name not in REFUSED
    for neighbours in solver.declaration.neighbours
    for trust in solver.declaration.trusts
    if trust != "shuffle"
]


def records(n=300, text=False):
    """Records in silos that divide persons, of whom many have more than two records."""
    rng = np.random.default_rng(0)
    X = 0.6 * rng.standard_normal((n, 4))
    y = (X[:, 0] + 0.5 * rng.logistic(size=n) > 0.0).astype(int)
    person = rng.integers(0, n // 3, n)
    if text:
        person = np.array([f"{'0' * (k % 3)}{k}" for k in person.tolist()])
    return X, y, rng.integers(0, 3, n), person


def both(rng, *arrays):
    """The records in memory, and in blocks, empty ones and ones of a single row among them."""
    X, y, groups, person = arrays
    ends = np.sort([0, 0, 8, 8, 9, len(y), *rng.integers(0, len(y) + 1, rng.integers(1, 30))])
    parts = [slice(i, j) for i, j in pairwise(ends.tolist())]
    blocks = [dict(zip(NAMES, (a[part] for a in arrays), strict=True)) for part in parts]
    memory = dpk.SiloData.from_groups(X, y, groups, person=person, **HOW)
    return memory, dpk.SiloData.from_blocks(blocks, **HOW)


def same(first, second):
    assert first.w.tobytes() == second.w.tobytes()
    assert first.calibration == second.calibration
    one, two = first.privacy, second.privacy
    assert one.to_dict()["releases"] == two.to_dict()["releases"]
    assert (one.unit, one.mu, one.declared, one.notes) == (UNIT, two.mu, two.declared, two.notes)
    assert two.unit == UNIT


@for_each(("name", "neighbours", "trust"), CASES)
def test_solvers_release_the_bits_of_memory(name, neighbours, trust):
    memory, blocks = both(np.random.default_rng(1), *records())
    assert memory.n < 250  # many records are left out
    how = {"budget": BUDGET, "trust": trust, "neighbours": neighbours, "rng": 5}
    if "rounds" in SOLVERS[name].declaration.own:
        how["rounds"] = 3
    if neighbours == "add_remove":
        how["public_size"] = [90, 80, 100]
    same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


@for_each("text", [False, True])
def test_twenty_partitions_have_one_result(text, monkeypatch):
    rng, how = np.random.default_rng(2), {"rounds": 2, "clip": 0.5, "budget": BUDGET, "rng": 3}
    wanted = None
    for i in range(20):
        monkeypatch.setattr(module, "_BYTES", 1 << 24 if i % 2 else 8 * 4 * 10)
        memory, blocks = both(rng, *records(text=text))
        wanted = wanted or dpk.solve("gradient_descent", memory, **how)
        same(wanted, dpk.solve("gradient_descent", blocks, **how))


@for_each("kind", ["sparse", "lists", "floats", "weights"])
def test_every_kind_of_blocks_has_the_bits_of_memory(kind):
    (X, y, groups, person), rng, how, beside = records(), np.random.default_rng(4), HOW, {}
    X = sparse.csr_array(np.where(X > 0.5, X, 0.0)) if kind == "sparse" else X
    if kind == "weights":
        beside = {"weight": 3.0 * rng.random(len(y)), "margin_offset": rng.normal(size=len(y))}
        how = HOW | {"max_weight": 2.5}
    memory = dpk.SiloData.from_groups(X, y, groups, person=person, **beside, **how)
    columns = dict(zip(NAMES, (X, y, groups, person), strict=True)) | beside
    blocks = [{n: c[i : i + 60] for n, c in columns.items()} for i in range(0, 300, 60)]
    if kind == "lists":
        blocks = [{name: c.tolist() for name, c in block.items()} for block in blocks]
    if kind == "floats":  # 3 and 3.0 are one person
        blocks[1]["person"] = blocks[1]["person"].astype(float)
    found = dpk.SiloData.from_blocks(blocks, **how)
    same(*(dpk.solve("local_newton", data, budget=BUDGET, rng=4) for data in (memory, found)))


def test_records_beyond_the_first_are_not_read_and_ids_are_forgotten():
    X, y, person = np.ones((6, 2)), np.array([0, 1, 0, 1, 0, 1]), np.array(list("pppqpp"))
    X[2], person = np.nan, np.array([f"patient {one}" for one in person])
    blocks = [dict(X=X[i : i + 1], y=y[i : i + 1], person=person[i : i + 1]) for i in range(6)]
    data = dpk.SiloData.from_blocks(blocks, **HOW)
    assert data.n == dpk.SiloData(X, y, [0, 6], person=person, **HOW).n == 3
    with pytest.raises(ValueError, match=r"blocks\[2\]: X must be finite"):
        dpk.SiloData.from_blocks(blocks, **HOW | {"max_records": 3})
    data.blocks._source = None  # whose blocks are the caller's
    assert b"patient" not in pickle.dumps(data.blocks)


def test_ranges_have_the_bits_of_memory():
    data = both(np.random.default_rng(1), *records())
    found = [dpk.private_range(d, bounds=(-9.0, 9.0), budget=BUDGET, rng=1) for d in data]
    assert repr(found[0]) == repr(found[1])
    assert found[0].privacy.unit == found[1].privacy.unit == UNIT


@for_each("kind", ["parquet", "csv"])
def test_files_have_the_bits_of_memory(kind, tmp_path):
    pa, writers = pytest.importorskip("pyarrow"), pytest.importorskip(f"pyarrow.{kind}")
    X, y, groups, person = records(text=True)
    table = {"age": np.round(60 + 20 * X[:, 0]), "site": groups, "id": person, "ill": y}
    write = writers.write_table if kind == "parquet" else writers.write_csv
    for i in range(0, 300, 100):
        write(pa.table({n: c[i : i + 100] for n, c in table.items()}), tmp_path / f"{i}.{kind}")
    columns = [Column("age", "number", lo=18, hi=110), Column("site", "silo")]
    columns.append(Column("ill", "target", classes=["0", "1"] if kind == "csv" else [0, 1]))
    schema, how = dpk.Schema([*columns, Column("id", "person")]), {"budget": BUDGET, "rng": 2}
    files = dpk.read_parquet(tmp_path, schema=schema, max_records=2)
    text = {name: c.astype(str) if kind == "csv" else c for name, c in table.items()}
    memory = schema.silo_data(text, max_records=2)
    same(*(dpk.solve("local_newton", data, **how) for data in (memory, files)))
    first = dpk.describe(text, schema, max_records=2, **how)
    second = dpk.describe(files, schema, **how)
    assert first.rows == second.rows
    assert first.privacy.unit == second.privacy.unit == UNIT
    named = {"target": "ill", "person": "id", "max_records": 2, "row_bound": 9.0}
    plain = dpk.read_parquet(tmp_path, silo="site", classes=[0, 1], **named)
    rows = {"X": table["age"][:, None], "y": y, "groups": groups, "person": person}
    alone = dpk.SiloData.from_blocks([rows], **HOW | {"row_bound": 9.0, "intercept": False})
    same(*(dpk.solve("local_newton", data, **how) for data in (alone, plain)))
    with pytest.raises(ValueError, match="max_records must be None for records in blocks"):
        dpk.describe(files, schema, max_records=2, **how)
    for given, message in (
        ({"schema": schema}, "max_records must be given with person"),
        ({"schema": schema, "max_records": 0}, "max_records must be"),
        ({"schema": dpk.Schema(columns), "max_records": 2}, "person must be in"),
        ({"schema": schema, "person": "id"}, "person must be absent beside a schema"),
        (named | {"person": "ids"}, "person must be a column of .*, got 'ids'"),
        (named | {"person": person}, "person must be a column of .*, got ndarray"),
    ):
        with pytest.raises(ValueError, match=message):
            dpk.read_parquet(tmp_path, **given)


def test_dask_arrays_have_the_bits_of_memory():
    arrays, kinds = pytest.importorskip("dask.array"), pytest.importorskip("dpkern.estimators")
    X, y, _, person = records()
    how = {"epsilon": 2.0, "delta": 1e-5, "random_state": 1, "max_records": 2, "classes": [0, 1]}
    A, b, ids = (arrays.from_array(c, chunks=(100, *c.shape[1:])) for c in (X, y, person))
    first = kinds.DPLogisticRegression(**how).fit(X, y, person=person).result_
    second = kinds.DPLogisticRegression(**how).fit(A, b, person=ids).result_
    assert first.w.tobytes() == second.w.tobytes()
    assert (second.privacy.unit, second.privacy.mu) == (UNIT, first.privacy.mu)


# --------------------------------------------------------------------------- what is refused


def test_what_persons_do_not_allow_is_refused_uncharged(tmp_path):
    _, blocks = both(np.random.default_rng(1), *records())
    book = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4, unit=UNIT)
    for name, message in {**REFUSED, "gradient_descent": "divide no person and records in"}.items():
        how = {"person_clip": 1.0} if name == "gradient_descent" else {}
        with pytest.raises(ValueError, match=message):
            dpk.solve(name, blocks, budget=BUDGET, accountant=book, **how)
    assert not book.entries


def test_wrong_persons_of_blocks_are_refused():
    X, y, _, person = records(60)
    block, missing = {"X": X, "y": y, "person": person}, np.append(person[1:], np.nan)
    for blocks, most, error, message in (
        ([block], None, ValueError, r"blocks\[0\]: max_records must be given with person"),
        ([block, (X, y)], 2, ValueError, r"blocks\[1\]: person must be in every block"),
        ([(X, y), block], None, ValueError, r"blocks\[1\]: max_records must be given"),
        ([block], "two", TypeError, "max_records must be"),
        ([block | {"person": person[1:]}], 2, ValueError, r"blocks\[0\]: person must have 60"),
        (
            [block | {"person": missing}],
            2,
            ValueError,
            r"blocks\[0\]: person must be finite, got 1",
        ),
        ([block, block | {"person": person.astype(str)}], 2, TypeError, "text in all blocks, or"),
    ):
        with pytest.raises(error, match=message):
            dpk.SiloData.from_blocks(blocks, **HOW | {"max_records": most})


@for_each("text", [False, True])
@for_each("change", ["order", "ids", "more"])
def test_other_persons_in_a_later_pass_end_the_run(change, text):
    X, y, _, person = records(100, text)
    passes = []

    def begin():
        passes.append(1)
        rows, own, late = np.arange(100), person.copy(), len(passes) == 4
        if late and change == "order":
            rows = rows[::-1]
        if late and change == "ids":
            own[57] = own[own != own[57]][0]
        whole = {"X": X[rows], "y": y[rows], "person": own[rows]}
        return [whole] * (2 if late and change == "more" else 1)

    blocks = dpk.SiloData.from_blocks(begin, **HOW)
    with pytest.warns(UserWarning, match="same records in the same order in every pass"):
        result = dpk.solve("gradient_descent", blocks, budget=BUDGET, rounds=4, clip=1.0, rng=1)
    assert result.n_rounds == 2
