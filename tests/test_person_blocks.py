"""People whose records are read in blocks: the first ones count, as they do in memory."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

import dpkern as dpk
from dpkern.data import Column
from dpkern.data import blocks as module
from dpkern.solvers import SOLVERS

BUDGET = dpk.Budget(epsilon=2.0, delta=1e-5)
HOW = {"intercept": True, "row_bound": 2.0, "classes": [0, 1]}
NAMES = "X", "y", "groups", "person"
REFUSED = {"newton_inference", "objective_perturbation"}  # persons in memory too
PERSONS = [
    name for name, solver in SOLVERS.items() if solver.declaration.in_blocks and name not in REFUSED
]


def records(n=300, seed=0, text=False):
    """Records in silos that divide persons, of whom a third have more than three records."""
    rng = np.random.default_rng(seed)
    X = 0.6 * rng.standard_normal((n, 4))
    y = (X[:, 0] + 0.5 * rng.logistic(size=n) > 0.0).astype(int)
    person = rng.integers(0, n // 3, n)
    if text:
        person = np.array([f"{'0' * (k % 3)}{k}" for k in person.tolist()])
    return X, y, rng.integers(0, 3, n), person


def cut(rng, *arrays):
    """Blocks of the arrays in their order, empty ones and ones of a single row among them."""
    n = len(arrays[0])
    ends = np.sort([0, 0, 8, 8, 9, n, *rng.integers(0, n + 1, int(rng.integers(1, 30)))]).tolist()
    return [dict(zip(NAMES, (a[i:j] for a in arrays), strict=True)) for i, j in pairwise(ends)]


def both(rng, X, y, groups, person, most=2, **how):
    memory = dpk.SiloData.from_groups(X, y, groups, person=person, max_records=most, **HOW)
    blocks = cut(rng, X, y, groups, person)
    return memory, dpk.SiloData.from_blocks(blocks, max_records=most, **HOW)


def same(first, second):
    assert first.w.tobytes() == second.w.tobytes()
    assert first.calibration == second.calibration
    one, two = (result.privacy.to_dict() | {"started": None} for result in (first, second))
    assert one["releases"] == two["releases"]
    assert one["unit"] == two["unit"] == "one person with at most 2 records"
    assert first.privacy.declared == second.privacy.declared
    assert first.privacy.notes == second.privacy.notes
    assert first.privacy.mu == second.privacy.mu


@pytest.mark.parametrize(
    ("name", "neighbours", "trust"),
    [
        (name, neighbours, trust)
        for name in PERSONS
        for neighbours in SOLVERS[name].declaration.neighbours
        for trust in SOLVERS[name].declaration.trusts
        if trust != "shuffle"
    ],
)
def test_solvers_release_the_bits_of_memory(name, neighbours, trust):
    memory, blocks = both(np.random.default_rng(1), *records())
    assert memory.n < 250  # many records are left out
    how = {"budget": BUDGET, "trust": trust, "neighbours": neighbours, "rng": 5}
    if "rounds" in SOLVERS[name].declaration.own:
        how["rounds"] = 3
    if neighbours == "add_remove":
        how["public_size"] = [90, 80, 100]
    same(dpk.solve(name, memory, **how), dpk.solve(name, blocks, **how))


@pytest.mark.parametrize("text", [False, True])
def test_twenty_partitions_have_one_result(text, monkeypatch):
    rng, how = np.random.default_rng(2), {"rounds": 2, "clip": 0.5, "budget": BUDGET, "rng": 3}
    wanted = None
    for i in range(20):
        monkeypatch.setattr(module, "_BYTES", 1 << 24 if i % 2 else 8 * 4 * 10)
        memory, blocks = both(rng, *records(text=text))
        assert blocks.n == memory.n
        wanted = wanted or dpk.solve("gradient_descent", memory, **how)
        same(wanted, dpk.solve("gradient_descent", blocks, **how))
        assert "max_records=2" in repr(blocks)


def test_auto_takes_the_solver_of_memory():
    memory, blocks = both(np.random.default_rng(1), *records(900))
    same(*(dpk.solve("auto", data, budget=BUDGET, rng=1) for data in (memory, blocks)))


@pytest.mark.parametrize("kind", ["single", "sparse", "lists", "floats", "weights"])
def test_every_kind_of_rows_has_the_bits_of_memory(kind):
    X, y, groups, person = records()
    beside, more, blocks = {}, {}, cut(np.random.default_rng(3), X, y, groups, person)
    X = X.astype(np.float32) if kind == "single" else X
    if kind == "weights":
        rng, more = np.random.default_rng(4), {"max_weight": 2.5}
        beside = {"weight": 3.0 * rng.random(len(y)), "margin_offset": rng.normal(size=len(y))}
    X = sparse.csr_array(np.where(X > 0.5, X, 0.0)) if kind == "sparse" else X
    how = HOW | more | {"max_records": 2}
    memory = dpk.SiloData.from_groups(X, y, groups, person=person, **beside, **how)
    begin = 0
    for i, block in enumerate(blocks):
        part = slice(begin, begin := begin + len(block["y"]))
        block |= {"X": X[part]} | {name: values[part] for name, values in beside.items()}
        if kind == "lists":
            block |= {name: values.tolist() for name, values in block.items()}
        if kind == "floats" and i % 2:  # 3 and 3.0 are one person
            block["person"] = block["person"].astype(float)
    blocks = [block for block in blocks if len(block["y"]) or kind != "lists"]
    found = dpk.SiloData.from_blocks(blocks, **how)
    same(*(dpk.solve("local_newton", data, budget=BUDGET, rng=4) for data in (memory, found)))


def test_records_beyond_the_first_are_not_read():
    X, y = np.ones((6, 2)), np.array([0, 1, 0, 1, 0, 1])
    X[3:], person = np.nan, np.array([7, 7, 8, 7, 7, 7])
    blocks = [dict(X=X[i : i + 1], y=y[i : i + 1], person=person[i : i + 1]) for i in range(6)]
    data = dpk.SiloData.from_blocks(blocks, max_records=2, **HOW)
    assert data.n == 3
    assert dpk.SiloData(X, y, [0, 6], person=person, max_records=2, **HOW).n == 3
    with pytest.raises(ValueError, match=r"blocks\[3\]: X must be finite"):
        dpk.SiloData.from_blocks(blocks, max_records=3, **HOW)


def test_ids_are_forgotten():
    X, y, groups, _ = records(80)
    person = np.array([f"patient {k % 20}" for k in range(80)])
    rows = both(np.random.default_rng(1), X, y, groups, person)[1].blocks
    rows._source = None  # whose blocks are the caller's
    assert b"patient" not in pickle.dumps(rows)
    assert not rows._first.numbers


def test_ranges_have_the_bits_of_memory():
    memory, blocks = both(np.random.default_rng(1), *records())
    how = {"bounds": (-9.0, 9.0), "budget": BUDGET, "rng": 1}
    found = [dpk.private_range(data, **how) for data in (memory, blocks)]
    assert found[0].feature_range[0].tobytes() == found[1].feature_range[0].tobytes()
    assert found[0].privacy.unit == found[1].privacy.unit == "one person with at most 2 records"
    assert found[0].privacy.mu == found[1].privacy.mu


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_have_the_bits_of_memory(kind, tmp_path):
    pa, writers = pytest.importorskip("pyarrow"), pytest.importorskip(f"pyarrow.{kind}")
    X, y, groups, person = records(text=True)
    table = {"age": np.round(60 + 20 * X[:, 0]), "site": groups, "id": person, "ill": y}
    write = writers.write_table if kind == "parquet" else writers.write_csv
    for i in range(3):
        write(
            pa.table({name: c[100 * i :][:100] for name, c in table.items()}),
            tmp_path / f"{i}.{kind}",
        )
    columns = [
        Column("age", "number", lo=18, hi=110),
        Column("site", "silo"),
        Column("id", "person"),
        Column("ill", "target", classes=["0", "1"] if kind == "csv" else [0, 1]),
    ]
    schema, how = dpk.Schema(columns), {"budget": BUDGET, "rng": 2}
    of_schema = dpk.read_parquet(tmp_path, schema=schema, max_records=2)
    text = {name: c.astype(str) if kind == "csv" else c for name, c in table.items()}
    memory = schema.silo_data(text, max_records=2)
    same(*(dpk.solve("local_newton", data, **how) for data in (memory, of_schema)))
    first = dpk.describe(text, schema, max_records=2, **how)
    second = dpk.describe(of_schema, schema, **how)
    assert [s.value for s in first.rows] == [s.value for s in second.rows]
    assert first.privacy.mu == second.privacy.mu
    assert second.privacy.unit == "one person with at most 2 records"
    with pytest.raises(ValueError, match="max_records must be None for records in blocks"):
        dpk.describe(of_schema, schema, max_records=2, **how)
    for given, message in (
        ({"schema": schema}, "max_records must be given with person"),
        ({"schema": schema, "max_records": 0}, "max_records must be"),
        ({"schema": dpk.Schema([*columns[:2], columns[3]]), "max_records": 2}, "person must be in"),
        ({"schema": schema, "person": "id"}, "person must be absent beside a schema"),
        ({"target": "ill", "person": "ids", "max_records": 2}, "person must be a column of"),
    ):
        with pytest.raises(ValueError, match=message):
            dpk.read_parquet(tmp_path, **given)
    if kind == "parquet":
        named = {"target": "ill", "silo": "site", "person": "id", "max_records": 2}
        plain = dpk.read_parquet(tmp_path, **named, classes=[0, 1], feature_range=(18, 110))
        rows = table["age"][:, None]
        options = {"person": person, "max_records": 2, "feature_range": (18, 110)}
        memory = dpk.SiloData.from_groups(rows, y, groups, classes=[0, 1], **options)
        same(*(dpk.solve("local_newton", data, **how) for data in (memory, plain)))


def test_dask_arrays_have_the_bits_of_memory():
    arrays, estimators = (
        pytest.importorskip("dask.array"),
        pytest.importorskip("dpkern.estimators"),
    )
    X, y, _, person = records()
    how = {"epsilon": 2.0, "delta": 1e-5, "random_state": 1, "max_records": 2, "classes": [0, 1]}
    models = [estimators.DPLogisticRegression(**how) for _ in "ab"]
    parts = [arrays.from_array(c, chunks=(100, *c.shape[1:])) for c in (X, y, person)]
    models[0].fit(X, y, person=person)
    models[1].fit(parts[0], parts[1], person=parts[2])
    first, second = (model.result_ for model in models)
    assert first.w.tobytes() == second.w.tobytes()
    assert second.privacy.unit == "one person with at most 2 records"
    assert first.privacy.mu == second.privacy.mu
    with pytest.raises(ValueError, match="max_records must be given with person"):
        estimators.DPLogisticRegression(**how | {"max_records": None}).fit(
            parts[0], parts[1], person=parts[2]
        )


# --------------------------------------------------------------------------- what is refused


def test_what_persons_do_not_allow_is_refused_uncharged(tmp_path):
    _, blocks = both(np.random.default_rng(1), *records())
    accountant = dpk.Accountant(
        tmp_path / "book.json", epsilon=9.0, delta=1e-4, unit="one person with at most 2 records"
    )
    for name, how, message in (
        ("gradient_descent", {"person_clip": 1.0}, "silos that divide no person and records in"),
        ("newton_inference", {}, "data must be without persons"),
        ("objective_perturbation", {"l2": 0.5}, "data must be without person"),
        ("minibatch_sgd", {}, "in memory in minibatch_sgd"),
    ):
        with pytest.raises(ValueError, match=message):
            dpk.solve(name, blocks, budget=BUDGET, accountant=accountant, **how)
    assert not accountant.entries


def test_wrong_persons_of_blocks_are_refused():
    X, y, _, person = records(60)
    block = {"X": X, "y": y, "person": person}
    missing = person.astype(float)
    missing[3] = np.nan
    for blocks, most, error, message in (
        ([block], None, ValueError, r"blocks\[0\]: max_records must be given with person"),
        ([block, (X, y)], 2, ValueError, r"blocks\[1\]: person must be in every block"),
        ([(X, y)], 2, ValueError, r"blocks\[0\]: person must be in every block"),
        ([(X, y), block], None, ValueError, r"blocks\[1\]: max_records must be given"),
        ([block], 0, ValueError, "max_records must be"),
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
            dpk.SiloData.from_blocks(blocks, max_records=most, **HOW)


@pytest.mark.parametrize("change", ["order", "ids", "more"])
def test_other_persons_in_a_later_pass_end_the_run(change):
    X, y, _, person = records(100)
    passes = []

    def begin():
        passes.append(1)
        X1, y1, person1, late = X, y, person, len(passes) == 4
        if late and change == "order":
            X1, y1, person1 = X[::-1], y[::-1], person[::-1]
        if late and change == "ids":
            person1 = np.where(np.arange(100) == 57, -1, person)
        more = [{"X": X, "y": y, "person": person}] if late and change == "more" else []
        return [{"X": X1, "y": y1, "person": person1}, *more]

    blocks = dpk.SiloData.from_blocks(begin, max_records=2, **HOW)
    how = {"rounds": 4, "clip": 1.0, "rng": 1}
    with pytest.warns(UserWarning, match="same records in the same order in every pass"):
        result = dpk.solve("gradient_descent", blocks, budget=BUDGET, **how)
    assert result.n_rounds == 2
