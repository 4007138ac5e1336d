"""Dask arrays and frames in estimators: the bits of memory, a part at a time, and clear errors."""

import subprocess
import sys

import numpy as np
import pytest
from cases import for_each

from dpkern import estimators

dask = pytest.importorskip("dask")
arrays = pytest.importorskip("dask.array")

PUBLIC = {"epsilon": 2.0, "delta": 1e-5, "feature_range": (-1.0, 1.0), "random_state": 3}
HOW = PUBLIC | {"solver": "gradient_descent", "solver_params": {"rounds": 3}}
NAMES = list("abcd")


def records(n=400):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    z = X[:, 0] + 0.3 * rng.logistic(size=n)
    return X, np.where(z > 0.0, "yes", "no"), z


def chunks(n, rng, k=9):
    """Sizes of k parts, one of them empty and one of a row."""
    ends = np.sort(rng.integers(0, n - 1, k - 3))
    return tuple(np.diff([0, *ends, n - 1, n - 1, n]).tolist())


def lazy(sizes, *columns):
    """Dask arrays of these chunks of rows."""
    return [
        arrays.from_array(c, chunks=(sizes, c.shape[1]) if c.ndim == 2 else (sizes,))
        for c in columns
    ]


def frames_of(X, y, sizes):
    """A frame of Dask with partitions of these sizes, and the one in memory."""
    frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    held = pandas.DataFrame(X, columns=NAMES).assign(target=y)
    ends = np.cumsum([0, *sizes])
    return frames.from_map(lambda i: held[ends[i] : ends[i + 1]], range(len(sizes)), meta=held[:0])


def same(first, second):
    """Whether two fits have the same bits and say the same of the labels."""
    assert first.result_.w.tobytes() == second.result_.w.tobytes()
    assert first.privacy_.notes == second.privacy_.notes
    assert first.privacy_.sources == second.privacy_.sources


@for_each("declared", [None, ["yes", "no"]])
@for_each("seed", range(3))
def test_fits_and_predictions_have_the_bits_of_memory(declared, seed):
    X, y, _ = records()
    how = HOW | {"classes": declared}
    memory = estimators.DPLogisticRegression(**how).fit(X, y)
    A, b = lazy(chunks(len(y), np.random.default_rng(seed)), X, y)
    model = estimators.DPLogisticRegression(**how).fit(A, b)
    same(model, memory)
    assert model.n_features_in_ == 4
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        found, wanted = getattr(model, name)(A), getattr(memory, name)(X)
        assert isinstance(found, arrays.Array)
        assert (found.shape, found.dtype, found.chunks[0]) == (
            wanted.shape,
            wanted.dtype,
            A.chunks[0],
        )
        assert found.compute().tobytes() == wanted.tobytes()
    assert model.score(A, b) == memory.score(X, y)


@for_each("dtype", [np.float32, np.int64, bool])
def test_rows_of_any_kind_of_numbers_have_the_bits_of_memory(dtype):
    X, y, _ = records()
    X = np.round(2.0 * X).astype(dtype) if dtype is not np.float32 else X.astype(dtype)
    A, b = lazy(chunks(len(y), np.random.default_rng(0)), X, y)
    models = [estimators.DPLinearSVC(**HOW) for _ in "ab"]
    same(models[0].fit(A, b), models[1].fit(X, y))


def test_sparse_rows_have_the_bits_of_memory():
    sparse = pytest.importorskip("scipy.sparse")
    X, y, _ = records()
    X = sparse.csr_array(np.where(X > 0.5, X, 0.0))
    A = arrays.from_array(X, chunks=((100, 300), 4), asarray=False)
    models = [estimators.DPLogisticRegression(**HOW) for _ in "ab"]
    b = arrays.from_array(y, chunks=((100, 300),))
    same(models[0].fit(A, b), models[1].fit(X, y))
    assert models[0].result_.transform.row_bound == 1.0
    assert models[0].predict(A).compute().tolist() == models[1].predict(X).tolist()


def test_regressions_and_values_beside_the_rows_have_the_bits_of_memory():
    X, _, z = records()
    rng = np.random.default_rng(1)
    sizes = chunks(len(z), rng)
    silos, weight, exposure = (
        rng.integers(0, 3, len(z)),
        rng.uniform(0, 3, len(z)),
        rng.uniform(1, 2, len(z)),
    )
    counts = rng.poisson(exposure)
    for kind, y, beside, how in (
        (estimators.DPRidge, z, {"silos": silos, "sample_weight": weight}, {"target_bound": 2.0}),
        (estimators.DPLasso, z, {}, {"target_bound": (0.0, 1.0)}),
        (estimators.DPPoissonRegressor, counts, {"exposure": exposure}, {"max_target": 5}),
        (estimators.DPGammaRegressor, 0.5 + counts, {}, {"max_target": 5}),
    ):
        how = HOW | how | ({"max_weight": 2.0} if "sample_weight" in beside else {})
        memory = kind(**how).fit(X, y, **beside)
        A, b, *more = lazy(sizes, X, y, *beside.values())
        model = kind(**how).fit(A, b, **dict(zip(beside, more, strict=True)))
        same(model, memory)
        assert model.predict(A).compute().tobytes() == memory.predict(X).tobytes()
        assert model.score(A, b) == memory.score(X, y)


@for_each("seed", range(2))
def test_frames_have_the_bits_of_memory(seed):
    X, y, _ = records()
    frame = frames_of(X, y, chunks(len(y), np.random.default_rng(seed)))
    held = frame.compute()
    how = HOW | {"feature_range": dict.fromkeys(NAMES, (-1.0, 1.0))}
    memory = estimators.DPLogisticRegression(**how).fit(held[NAMES], held["target"])
    model = estimators.DPLogisticRegression(**how).fit(frame[NAMES], frame["target"])
    same(model, memory)
    assert model.feature_names_in_.tolist() == NAMES
    for name in ("predict", "predict_proba"):
        found, wanted = getattr(model, name)(frame[NAMES]), getattr(memory, name)(held[NAMES])
        assert isinstance(found, arrays.Array)
        assert found.compute().tobytes() == wanted.tobytes()
    assert model.score(frame[NAMES], frame["target"]) == memory.score(held[NAMES], held["target"])
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a", "c", "d"]])
    with pytest.raises(TypeError, match="column 'target' of X must be numbers"):
        model.predict(frame)


@pytest.mark.filterwarnings("default")  # of Dask and pandas
def test_columns_of_files_keep_their_partitions(tmp_path):
    """Dask joins small partitions of a file where few of its columns are read."""
    frames = pytest.importorskip("dask.dataframe")
    X, y, _ = records()
    frame = frames_of(X, y, (100, 100, 100, 100))
    frame.assign(**{f"more{k}": frame["a"] for k in range(9)}).to_parquet(tmp_path)
    read = frames.read_parquet(tmp_path)
    how = HOW | {"feature_range": dict.fromkeys(NAMES, (-1.0, 1.0))}
    memory = estimators.DPLogisticRegression(**how).fit(frame[NAMES].compute(), y)
    same(estimators.DPLogisticRegression(**how).fit(read[NAMES], read["target"]), memory)


def test_chunks_of_unknown_sizes_are_counted():
    X, y, _ = records()
    A, b = lazy(chunks(len(y), np.random.default_rng(0)), X, y)
    some = X[:, 1] > 0.0
    memory = estimators.DPLogisticRegression(**HOW).fit(X[some], y[some])
    same(estimators.DPLogisticRegression(**HOW).fit(A[A[:, 1] > 0.0], b[A[:, 1] > 0.0]), memory)


def test_labels_are_those_of_all_parts():
    X, y, _ = records()
    order = np.argsort(y)
    A, b = lazy((100, 300), X[order], y[order])
    memory = estimators.DPLogisticRegression(**HOW).fit(X, y)
    same(estimators.DPLogisticRegression(**HOW).fit(A, b), memory)


def test_parts_are_computed_in_every_pass_and_predictions_later():
    X, y, _ = records()
    computed = []

    def part(i):
        computed.append(i)
        return X[40 * i : 40 * i + 40]

    rows = [arrays.from_delayed(dask.delayed(part)(i), (40, 4), float) for i in range(10)]
    how = HOW | {"solver_params": {"rounds": 2, "recalibrate": False}}
    A, b = arrays.concatenate(rows), arrays.from_array(y, chunks=40)
    model = estimators.DPLogisticRegression(**how, classes=["no", "yes"]).fit(A, b)
    assert computed == [*range(10)] * 3  # a pass that checks, and one for each of two steps
    predictions = model.predict(A)
    assert len(computed) == 30  # nothing is computed yet
    assert predictions.compute().tolist() == model.predict(X).tolist()


def cases():
    X, y, z = records()
    A, b, t = lazy((100, 300), X, y, z)
    dirty = X.copy()
    dirty[150, 2] = np.nan
    one, some = arrays.full_like(t, 1.0), A[A[:, 0] > 0.0]
    several = "^X must be in memory for more than two classes"
    absent = r"^y must be a Dask array or series, .* chunks=X\.chunks\[0\]"
    placed = "^partition 0: "
    kind = estimators.DPLogisticRegression
    network, ordered = estimators.DPMLPClassifier, estimators.DPOrdinalClassifier
    counts, hazards = estimators.DPPoissonRegressor, estimators.DPDiscreteHazards
    return {
        "labels in memory": (kind, {}, (A, y), TypeError, absent),
        "no labels": (kind, {}, (A, None), TypeError, absent),
        "chunks": (kind, {}, (A, b.rechunk(100)), ValueError, r"pass y\.rechunk\(X\.chunks\[0\]\)"),
        "length": (kind, {}, (A, b[:-1]), ValueError, "^y must .* row of X, got 399 for 400"),
        "columns": (kind, {}, (A.rechunk((400, 2)), b), ValueError, r"X\.rechunk\({1: -1}\)"),
        "two dimensions": (kind, {}, (A, b[:, None]), ValueError, "^y must have one dimension"),
        "one dimension": (kind, {}, (A[:, 0], b), ValueError, r"^X must have shape \(n, n_feat"),
        "text": (kind, {}, (A.astype(str), b), TypeError, "^X must be real numbers, got dtype <U"),
        "delayed": (kind, {}, (dask.delayed(X), b), TypeError, "^X must be a Dask array or frame"),
        "sizes": (kind, {}, (some, b), ValueError, placed + "y must have an entry for each"),
        "missing": (kind, {}, (arrays.from_array(dirty, chunks=(100, 4)), b.rechunk(100)),
                    ValueError, "^partition 1: Input X contains NaN"),
        "one class": (kind, {}, (A, one), ValueError, "^y must hold two classes at least, got 1"),
        "no class": (kind, {}, (A, t), ValueError, placed + "Unknown label type: continuous"),
        "other class": (kind, {"classes": ["no", "so"]}, (A, b), ValueError, placed + "y must"),
        "kind of class": (kind, {"classes": [0, 1]}, (A, b), TypeError, placed + "classes must be"),
        "three classes": (kind, {"classes": list("abc")}, (A, b), TypeError, several),
        "network": (network, {}, (A, b), TypeError, several),
        "ordered": (ordered, {}, (A, b), TypeError, several),
        "hazards": (hazards, {"intervals": (0, 1)}, (A, b), TypeError, several),
        "negative": (counts, {}, (A, t), ValueError, placed + "y must be at least 0"),
        "persons": (kind, {"max_records": 2}, (A, b), ValueError, placed + "person must be in"),
        "solver": (kind, {"solver": "minibatch_sgd"}, (A, b), ValueError, "^data must be in mem"),
    }  # fmt: skip


@for_each("name", cases())
def test_what_does_not_fit_is_refused(name):
    kind, how, given, error, message = cases()[name]
    with pytest.raises(error, match=message):
        kind(**PUBLIC | how).fit(*given)


def test_what_does_not_fit_of_frames_is_refused():
    X, y, _ = records()
    frame = frames_of(X, y, (100, 300))
    three, other = frames_of(X, y, (9, 9, 382)), frames_of(X, y, (9, 391))
    A, b = lazy((100, 300), X, y)
    model = estimators.DPLogisticRegression(**HOW)
    for given, error, message in (
        ((frame, frame["target"]), TypeError, "column 'target' of X must be numbers"),
        ((frame[NAMES], frame[["target"]]), ValueError, "y must have one dimension"),
        ((frame[NAMES], y), TypeError, "or a column of one frame with X"),
        ((frame[NAMES], three["target"]), ValueError, "got others, 3 for 2: take both from one"),
        ((frame[NAMES], other["target"]), ValueError, "partition 0: y must have an entry for each"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            model.fit(*given)
    with pytest.raises(ValueError, match="max_weight must be given with sample_weight"):
        model.fit(A, b, sample_weight=A[:, 0])
    with pytest.raises(ValueError, match="4 features"):
        model.fit(A, b).predict(A[:, :3])


def test_dask_is_imported_by_its_users_alone():
    code = "import sys, dpkern.estimators; print('dask' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
