"""Records on the workers of a Dask cluster: the bits of memory, lost workers, and clear ends."""

import os
import signal
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern import cluster as module

distributed = pytest.importorskip("distributed")
parquet = pytest.importorskip("pyarrow.parquet")

BUDGET = dpk.Budget(epsilon=2.0, delta=1e-5)
HOW = {"intercept": True, "row_bound": 2.0, "classes": [0, 1]}


def records(n=300, p=5):
    rng = np.random.default_rng(0)
    X = 0.6 * rng.standard_normal((n, p))
    return X, (X[:, 0] + 0.4 * rng.standard_normal(n) > 0.0).astype(int)


def parts_of(X, y, k=4):
    ends = np.linspace(0, len(y), k + 1).astype(int).tolist()
    found = []
    for a, b in pairwise(ends):
        middle = (a + b) // 2
        found.append([(X[a:middle], y[a:middle]), (X[middle:b], y[middle:b])])
    return [*found, [(X[:0], y[:0])]]  # and a part without records


class Later:
    """A future answer, which comes when it is asked for, or never."""

    def __init__(self, compute):
        self.compute = compute

    def result(self, timeout=None):
        return self.compute()


class Worker:
    """A holder in this process, whose calls `fail` may change."""

    def __init__(self, client, address):
        self.client, self.address, self.holder = client, address, module.Holder()

    def __getattr__(self, name):
        def call(*given):
            compute = lambda: getattr(self.holder, name)(*given)  # noqa: E731
            return Later(lambda: self.client.fail(self, name, given, compute))

        return call


class Client(distributed.Client):
    """A client of workers in this process."""

    status = "running"

    def __init__(self, workers, fail=lambda worker, name, given, compute: compute()):
        self.workers, self.fail = dict.fromkeys(workers, 1), fail

    def __del__(self):
        pass

    def nthreads(self):
        return self.workers

    def submit(self, kind, *, workers, **how):
        return Later(lambda: Worker(self, workers[0]))


def solved(data, name="local_newton", **how):
    return dpk.solve(name, data, budget=BUDGET, rng=3, **({"rounds": 3} | how))


def memory():
    X, y = records()
    return dpk.SiloData(X, y, [0, len(y)], **HOW)


@for_each(
    ("name", "how"),
    [
        ("local_newton", {"rounds": 3}),
        ("gradient_descent", {"rounds": 3}),
        ("newton_inference", {"rounds": 4}),
        ("newton_inference", {"rounds": 4, "trust": "silo"}),
        ("ridge", {}),
    ],
)
def test_runs_on_workers_have_the_bits_of_memory(name, how):
    cluster = dpk.Cluster(Client("ab"), parts_of(*records()), **HOW)
    first, second = (
        dpk.solve(name, data, budget=BUDGET, rng=3, **how) for data in (memory(), cluster.data)
    )
    assert first.w.tobytes() == second.w.tobytes()
    assert first.calibration == second.calibration
    assert module.TRUSTED in second.privacy.notes


@for_each("late", [False, True])
def test_the_part_of_a_lost_worker_counts_once(late):
    asked = []

    def fail(worker, name, given, compute):
        if name == "totals" and worker.address == "a":
            asked.append(given[:2])
        if len(asked) < 5 or worker.address == "b":
            return compute()
        worker.client.workers.pop("a", None)
        if late:
            compute()  # and its answer comes when nobody waits for it
        raise TimeoutError

    client = Client("ab", fail)
    cluster = dpk.Cluster(client, parts_of(*records()), **HOW)
    assert solved(cluster.data).w.tobytes() == solved(memory()).w.tobytes()
    assert list(client.workers) == ["b"]


def test_an_answer_of_another_round_or_part_does_not_count():
    kept = []

    def fail(worker, name, given, compute):
        if name != "totals":
            return compute()
        kept.append(compute())
        # The second round is first answered by what the first one was answered, and so on.
        stale = len(kept) in (7, 9) and kept[-3]
        return stale or kept[-1]

    cluster = dpk.Cluster(Client("ab", fail), parts_of(*records()), **HOW)
    assert solved(cluster.data).w.tobytes() == solved(memory()).w.tobytes()


def test_a_part_is_asked_of_few_workers():
    asked = []

    def fail(worker, name, given, compute):
        if name == "totals" and given[1] == 1:
            asked.append(worker.address)
            raise OSError("lost")
        return compute()

    cluster = dpk.Cluster(Client("abc", fail), parts_of(*records()), **HOW)
    with pytest.raises(RuntimeError, match=r"parts\[1\] was asked of 5 workers in one round"):
        solved(cluster.data)
    assert len(asked) == module._ATTEMPTS


def test_a_dead_worker_that_is_still_listed_is_left_out():
    failed = []

    def fail(worker, name, given, compute):
        if worker.address == "a" and (failed or name == "totals"):
            failed.append(name)
            raise OSError
        return compute()

    client = Client("ab", fail)
    cluster = dpk.Cluster(client, parts_of(*records()), **HOW)
    assert solved(cluster.data).w.tobytes() == solved(memory()).w.tobytes()
    assert failed == ["totals"] * 3  # its parts in the first round, and nothing is waited for


def test_a_worker_that_begins_again_at_its_address_is_given_its_parts():
    asked = []

    def fail(worker, name, given, compute):
        asked.append(name)
        if asked.count("totals") == 8 and name == "totals":
            worker.holder = module.Holder()
        return compute()

    cluster = dpk.Cluster(Client("ab", fail), parts_of(*records()), **HOW)
    assert solved(cluster.data).w.tobytes() == solved(memory()).w.tobytes()


def test_parts_go_to_a_worker_that_joins():
    asked = []

    def fail(worker, name, given, compute):
        if name == "totals":
            asked.append(worker.address)
        return compute()

    client = Client("a", fail)
    cluster = dpk.Cluster(client, parts_of(*records()), **HOW)
    solved(cluster.data, rounds=1, recalibrate=False)
    assert set(asked) == {"a"}
    client.workers["b"] = 1
    asked.clear()
    solved(cluster.data, rounds=1, recalibrate=False)
    assert sorted(asked) == [*"aaabb"]


def test_an_error_of_a_part_ends_the_run_uncharged(tmp_path):
    X, y = records()
    calls = tmp_path / "calls"  # a worker has a copy of the function

    def begin():
        with calls.open("a") as file:
            file.write("x")
        return [(X, y)] if calls.stat().st_size == 1 else [(X[1:], y[1:])]

    cluster = dpk.Cluster(Client("ab"), [begin], **HOW)
    accountant = dpk.Accountant(tmp_path / "book.json", epsilon=9.0, delta=1e-4)
    with pytest.raises(ValueError, match="same records in every pass"):
        solved(cluster.data, accountant=accountant)
    assert calls.stat().st_size == 2
    assert not accountant.entries


def test_workers_of_several_kinds_are_refused():
    def fail(worker, name, given, compute):
        return ("0.0", True) if name == "arithmetic" and worker.address == "b" else compute()

    with pytest.raises(RuntimeError, match="workers must have one version of dpkern"):
        dpk.Cluster(Client("ab", fail), parts_of(*records()), **HOW)


def test_a_cluster_without_workers_ends(monkeypatch):
    monkeypatch.setattr(module, "_WAIT", 0.0)
    with pytest.raises(RuntimeError, match="the cluster has had no worker"):
        dpk.Cluster(Client(""), parts_of(*records()), **HOW)


def test_values_outside_a_schema_are_counted_over_parts(tmp_path):
    import pyarrow

    columns = [
        dpk.data.Column("age", "number", lo=0, hi=9),
        dpk.data.Column("ill", "target", classes=["no", "yes"]),
    ]
    schema = dpk.Schema(columns)
    for i in range(3):
        found = {"age": [1.0, 5.0, 7.0, 10.0 * i], "ill": ["no", "yes", "no", "yes"]}
        parquet.write_table(pyarrow.table(found), tmp_path / f"{i}.parquet")
    message = r"2 of 12 in column 'age' .* the first in .*1\.parquet, row group 0"
    with pytest.warns(dpk.data.OutsideWarning, match=message):
        cluster = dpk.Cluster(Client("ab"), tmp_path, schema=schema)
    with pytest.warns(dpk.data.OutsideWarning, match=message):
        alone = dpk.read_parquet(tmp_path, schema=schema)
    assert cluster.data.n == alone.n == 12
    how = {"budget": BUDGET, "rng": 1}
    found = [dpk.solve("ridge", data, **how).w for data in (cluster.data, alone)]
    assert found[0].tobytes() == found[1].tobytes()


def test_weighted_parts_have_the_bits_of_memory():
    X, y = records()
    weight = np.linspace(0.0, 2.0, len(y))
    how = HOW | {"max_weight": 2.0}
    parts = [[{"X": x, "y": t, "weight": w}] for x, t, w in zip(
        np.split(X, 3), np.split(y, 3), np.split(weight, 3), strict=True)]  # fmt: skip
    cluster = dpk.Cluster(Client("ab"), parts, **how)
    alone = dpk.SiloData(X, y, [0, len(y)], weight=weight, **how)
    assert solved(cluster.data).w.tobytes() == solved(alone).w.tobytes()
    parts[1] = [(X, y)]
    with pytest.raises(ValueError, match="max_weight must be left out without weight"):
        dpk.Cluster(Client("ab"), parts, **how)


def test_persons_who_are_whole_in_parts_have_the_bits_of_memory():
    X, y = records()
    rng, how = np.random.default_rng(1), HOW | {"max_records": 2}
    person = np.concatenate([10 * k + rng.integers(0, 9, 75) for k in range(4)])
    alone = dpk.SiloData(X, y, [0, len(y)], person=person, **how)
    assert alone.n < 100

    def parts(person):
        found = [np.split(array, 4) for array in (X, y, person)]
        rows = [(slice(0, 30), slice(30, 30), slice(30, 75))] * 4
        return [
            [{"X": x[at], "y": t[at], "person": p[at]} for at in cuts]
            for x, t, p, cuts in zip(*found, rows, strict=True)
        ]

    cluster = dpk.Cluster(Client("ab"), parts(person), **how)
    for name in ("local_newton", "gradient_descent"):
        first, second = (solved(data, name, person_clip=None) for data in (alone, cluster.data))
        assert first.w.tobytes() == second.w.tobytes()
        assert first.privacy.unit == second.privacy.unit == "one person with at most 2 records"
    assert not any(rows._first.numbers for rows in cluster._rows)
    with pytest.raises(ValueError, match=r"parts\[1\]: parts must hold persons with all their"):
        dpk.Cluster(Client("ab"), parts(person % 10), **how)
    other = parts(person)
    for block in other[2]:
        block["person"] = block["person"].astype(str)
    with pytest.raises(TypeError, match=r"parts\[2\]: person must be text in all blocks, or"):
        dpk.Cluster(Client("ab"), other, **how)


def test_ranges_on_workers_have_the_bits_of_memory():
    cluster = dpk.Cluster(Client("ab"), parts_of(*records()), **HOW)
    how = {"bounds": (-100.0, 100.0), "budget": BUDGET, "rng": 2}
    first, second = (dpk.private_range(data, **how) for data in (memory(), cluster.data))
    assert repr(first) == repr(second)
    model = solved(memory())
    with pytest.raises(TypeError, match="X must be read in this process for this"):
        dpk.evaluate(model, cluster.data, budget=BUDGET)
    schema = dpk.Schema([dpk.data.Column("age", "number", lo=0, hi=9)])
    with pytest.raises(TypeError, match="data must be a table, or what"):
        dpk.describe(cluster.data, schema, budget=BUDGET)


def test_wrong_arguments_of_a_cluster_are_refused(tmp_path):
    X, y = records()
    client = Client("a")
    for parts, how, error, message in (
        (iter([[(X, y)]]), HOW, TypeError, "parts must be files, or a list"),
        ([], HOW, TypeError, "parts must be files, or a list"),
        ([[(X, y)]], {"row_bound": 1.0}, ValueError, "classes must be the public labels"),
        ([[(X, y)]], HOW | {"target": "y"}, ValueError, "target must be None for parts"),
        ([[(X, y)], [(X[:, :2], y)]], HOW, ValueError, r"parts\[1\]: parts must have the columns"),
        ([[(X[:0], y[:0])]], HOW, ValueError, "blocks must hold records, got none"),
        ([[(X, y + 1)]], HOW, ValueError, "y must hold labels of classes only"),
    ):
        with pytest.raises(error, match=message):
            dpk.Cluster(client, parts, **how)
    with pytest.raises(TypeError, match=r"client must be a distributed\.Client"):
        dpk.Cluster(None, [[(X, y)]], **HOW)
    cluster = dpk.Cluster(client, [[(X, y)]], **HOW)
    client.status = "closed"
    with pytest.raises(RuntimeError, match="client must be open while records are in use"):
        solved(cluster.data)


# --------------------------------------------------------------------------- worker processes


@pytest.fixture(scope="module")
def client():
    dask = pytest.importorskip("dask")
    with (
        # By default a worker that begins again 15 s after one of its name was lost is given up.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as workers,
        distributed.Client(workers) as found,
    ):
        yield found


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_files_on_worker_processes_have_the_bits_of_memory(client, tmp_path):
    import pyarrow

    X, y = records(2_000)
    X = X.astype(np.float32)
    memory = dpk.SiloData(X, y, [0, len(y)], **HOW)
    for i in range(5):
        rows = slice(400 * i, 400 * (i + 1))
        columns = {f"x{k}": X[rows, k] for k in range(5)} | {"y": y[rows]}
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{i}.parquet", row_group_size=100)
    cluster = dpk.Cluster(client, tmp_path, target="y", **HOW)
    for name in ("local_newton", "newton_inference"):
        how = {"rounds": 4}
        first, second = (solved(data, name, **how) for data in (memory, cluster.data))
        assert first.w.tobytes() == second.w.tobytes()
        assert first.calibration == second.calibration
    os.utime(tmp_path / "3.parquet", ns=(1, 1))
    with pytest.raises(ValueError, match=r"3\.parquet must not change while"):
        solved(cluster.data)


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_workers_killed_at_random_moments_change_no_bit(client, tmp_path):
    X, y = records(3_000)
    memory = dpk.SiloData(X, y, [0, len(y)], **HOW)
    cluster = dpk.Cluster(client, parts_of(X, y, 6), **HOW)
    wanted = solved(memory, "gradient_descent", rounds=150)
    released = wanted.privacy.releases
    rng = np.random.default_rng(5)
    for i in range(int(os.environ.get("DPKERN_KILLS", "4"))):
        accountant = dpk.Accountant(tmp_path / f"{i}.json", epsilon=9.0, delta=1e-4)
        client.wait_for_workers(2, timeout=60)
        pid = rng.choice(list(client.run(os.getpid).values()))
        thread = threading.Timer(rng.uniform(0.0, 0.8), os.kill, (pid, signal.SIGKILL))
        begin = time.monotonic()
        thread.start()
        found = solved(cluster.data, "gradient_descent", rounds=150, accountant=accountant)
        thread.join()
        print(f"kill {i + 1}: {time.monotonic() - begin:.1f} s", flush=True)
        assert found.w.tobytes() == wanted.w.tobytes()
        assert time.monotonic() - begin < 60.0
        # What was released was charged, and nothing else.
        assert [entry.guarantee.releases for entry in accountant.entries] == [released]


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_partitions_of_a_frame_have_the_bits_of_memory(client):
    frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    X, y = records(600)
    silo, weight = np.arange(600) % 3, np.linspace(0.0, 1.0, 600)
    columns = {f"x{k}": X[:, k] for k in range(5)} | {"w": weight, "y": y, "site": silo}
    held = pandas.DataFrame(columns)
    parts = [held[:1], held[1:1], held[1:250], held[250:]]
    frame = frames.from_map(lambda i: parts[i], range(4), meta=held[:0])
    how = HOW | {"max_weight": 1.0}
    memory = dpk.SiloData.from_groups(held.filter(like="x"), y, silo, weight=weight, **how)
    cluster = dpk.Cluster(client, frame, target="y", silo="site", weight="w", **how)
    assert cluster.data.feature_names == memory.feature_names
    wanted = solved(memory).w.tobytes()
    assert solved(cluster.data).w.tobytes() == wanted
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    assert solved(cluster.data).w.tobytes() == wanted  # of partitions that were computed again
    for given, message in (
        ({"target": "z"}, "target must be a column of the frame, got 'z'"),
        ({"target": None}, "target must be a column of the frame, got None"),
        ({"target": "y", "silo": "z"}, "silo must be a column of the frame"),
        ({"target": "y", "person": "site", "max_records": 2}, "got one with records in two parts"),
        ({"target": "y", "schema": 1}, "schema must be None for a Dask array or frame"),
    ):
        with pytest.raises(ValueError, match=message):
            dpk.Cluster(client, frame, **given, **HOW)


@pytest.mark.processes
@pytest.mark.filterwarnings("default")
def test_chunks_of_arrays_have_the_bits_of_memory(client):
    arrays = pytest.importorskip("dask.array")
    X, y = records(600)
    silo, weight = np.arange(600) % 3, np.linspace(0.0, 1.0, 600)
    sizes = (1, 0, 249, 350)
    A = arrays.from_array(X, chunks=(sizes, 5))
    b, s, w = (arrays.from_array(a, chunks=(sizes,)) for a in (y, silo, weight))
    how = HOW | {"max_weight": 1.0}
    memory = dpk.SiloData.from_groups(X, y, silo, weight=weight, **how)
    cluster = dpk.Cluster(client, A, target=b, silo=s, weight=w, **how)
    assert solved(cluster.data).w.tobytes() == solved(memory).w.tobytes()
    for given, error, message in (
        ({}, TypeError, "target must be a Dask array or series, as X is of Dask, got a NoneType"),
        ({"target": b.rechunk(100)}, ValueError, "target must have the chunks or partitions of X"),
        ({"target": b, "schema": 1}, ValueError, "schema must be None for a Dask array or frame"),
    ):
        with pytest.raises(error, match=message):
            dpk.Cluster(client, A, **given, **HOW)


@pytest.mark.processes
def test_parts_that_cannot_be_sent_are_refused(client):
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"parts\[1\] must be what can be sent to a worker"):
        dpk.Cluster(client, [[records()], lambda: [records(), lock]], **HOW)


def test_no_record_makes_a_worker_raise():
    """A target far beyond the loss's, and rows, weights and offsets of any size."""

    def strict(worker, name, given, compute):
        with np.errstate(all="raise"):
            return compute()

    rows = np.array([[1e300, -1e300], [1.0, 5e-324], [0.0, 0.0], [0.3, -0.7]])
    block = {"X": rows, "y": [1e300, 0.0, -1e300, 2.0], "margin_offset": [1e300, -1e300, 0.0, 1.0]}
    how = {"task": "regression", "row_bound": 1.5, "intercept": True, "max_weight": 1.0}
    parts = [[block | {"weight": [1e-320, 1.0, 0.0, 0.5]}]]
    data = module.Cluster(Client(["a"], strict), parts, **how).data
    loss = dpk.losses.Poisson(-2.0, 2.0, max_target=1e-10)
    assert solved(data, "newton_inference", rounds=4, loss=loss).inference is not None
