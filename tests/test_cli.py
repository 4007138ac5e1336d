"""Properties of the command line, run in process on small files."""

import csv
import functools
import itertools
import json
import math
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import warnings
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from cases import for_each
from sklearn.metrics import log_loss, roc_auc_score
from tqdm import tqdm

import dpkern as dpk
from dpkern import datasets, io
from dpkern.cli import (
    _arguments,
    _comparison,
    _data,
    _output,
    _parsed,
    compare,
    example,
    fit,
    main,
    predict,
)
from dpkern.kernels import installation
from dpkern.plotting import CompareRow
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.automatic import compared

BUDGET = ["--epsilon", "2", "--delta", "1e-5"]
QUICK = ["--rounds", "20", "--noise-seed", "1"]


def records(n, seed, p=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, p))
    return X, np.where(X @ np.arange(1.0, p + 1) > 0.2, "ill", "well")


def write_csv(path, X, y=None, *, extra=(), header=True):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        names = [f"f{k}" for k in range(X.shape[1])]
        columns = [X, *extra] if y is None else [X, *extra, y]
        if header:
            writer.writerow(names + ["silo"] * len(extra) + ["state"] * (y is not None))
        for i in range(len(X)):
            tail = [column[i] for column in columns[1:]]
            writer.writerow([*(repr(float(v)) for v in X[i]), *tail])
    return str(path)


@pytest.fixture
def train(tmp_path):
    return write_csv(tmp_path / "train.csv", *records(300, 0))


@pytest.fixture
def test(tmp_path):
    return write_csv(tmp_path / "test.csv", *records(80, 1))


@contextmanager
def without_model_of_before(arguments):
    """Take away a model that a fit would refuse to overwrite; it is back where none is new."""
    fits = arguments[:1] == ["fit"] and "--out" in arguments
    path = Path(arguments[arguments.index("--out") + 1]) if fits else None
    model = path.read_bytes() if fits and path.suffix == ".npz" and path.is_file() else None
    if model is not None:
        path.unlink()
    yield
    if model is not None and not path.exists():
        path.write_bytes(model)


def shown(capsys, arguments, code=0):
    """Standard output and error of one run, which must end with the given status."""
    arguments = [str(a) for a in arguments]
    with without_model_of_before(arguments):
        assert main(arguments) == code, capsys.readouterr().err
    out, err = capsys.readouterr()
    out = re.sub(r"\n {14}(?=\S)", " ", out)  # a certificate's folded lines as one again
    err = re.sub("dpkern: no --target was given: the last .* as the target\n", "", err)
    err = re.sub("dpkern: no --out was given: the model is not kept.*\n", "", err)
    return (out, err) if code == 0 else err


def refused(capsys, *arguments):
    """The message of a run that must fail as a user's error: one line, nothing else."""
    err = shown(capsys, arguments, code=2)
    assert err.count("\n") == 1
    assert err.startswith("dpkern: error: ")
    return err


# fit


def test_fit_reports_data_result_score_and_certificate(capsys, train, test):
    out, _ = shown(capsys, ["fit", train, "--silos", "4", "--test", test, *BUDGET, *QUICK])
    assert "300 training records, 3 features and an intercept" in out
    assert "4 of 75 records (even split, seed 0)" in out
    assert "labels ill and well" in out
    for score in ("accuracy", "AUC", "log loss"):
        assert re.search(rf"test {score}\s+0\.\d{{4}}\n", out)
    assert re.search(r"epsilon\s+(2|1\.9999\d*) at delta 1e-05", out)
    assert "seeded: not private" in out


def test_fit_says_that_sizes_and_seconds_are_not_public_where_a_record_comes_or_goes(capsys, train):
    sets = ["--set", "neighbours=add_remove", "--set", "public_size=500"]
    out, _ = shown(capsys, ["fit", train, *sets, *BUDGET, *QUICK])
    assert "numbers of records and seconds above are the data's own: keep them" in out
    out, _ = shown(capsys, ["fit", train, *BUDGET, *QUICK])
    assert "keep them" not in out


def test_fit_is_the_library_call_with_the_stated_parameters(capsys, tmp_path, train):
    model = tmp_path / "m.npz"
    flags = ["--silos", "5", "--split", "random", "--seed", "3", "--clip", "0.5", "--l2", "0.01"]
    sets = ["--set", "step_size=0.7", "--set", "weights=uniform", "--trust", "silo"]
    shown(capsys, ["fit", train, *flags, *sets, *BUDGET, *QUICK, "--out", model])
    table = io.read_table(train)
    of_data = dict(how="random", seed=3, intercept=True, row_bound=1.0)
    of_data |= {"feature_names": table.feature_names}
    data = dpk.SiloData.split(table.X, table.y, 5, **of_data)
    how = dict(clip=0.5, l2=0.01, rounds=20, step_size=0.7, weights="uniform", trust="silo", rng=1)
    budget = dpk.Budget(epsilon=2.0, delta=1e-5)
    expected = dpk.solve("gradient_descent", data, budget=budget, **how)
    saved = dpk.load(model)
    np.testing.assert_array_equal(saved.w, expected.w)
    assert saved.privacy == expected.privacy


def test_noise_is_fresh_unless_seeded(capsys, tmp_path, train):
    def fitted(*more):
        shown(capsys, ["fit", train, *BUDGET, "--rounds", 5, *more, "--out", tmp_path / "m.npz"])
        return dpk.load(tmp_path / "m.npz")

    assert not np.array_equal(fitted("--seed", 7).w, fitted("--seed", 7).w)
    assert fitted().privacy.noise == "os"
    np.testing.assert_array_equal(fitted("--noise-seed", 7).w, fitted("--noise-seed", 7).w)


def test_draws_differ_and_compose_and_the_first_is_saved(capsys, tmp_path, train, test):
    run = ["fit", train, "--test", test, *BUDGET, *QUICK, "--out"]
    out, _ = shown(capsys, [*run, tmp_path / "three.npz", "--draws", "3"])
    one, _ = shown(capsys, [*run, tmp_path / "one.npz"])
    three, single = dpk.load(tmp_path / "three.npz"), dpk.load(tmp_path / "one.npz")
    np.testing.assert_array_equal(three.w, single.w)
    spread = float(re.search(r"test accuracy\s+[\d.]+ \+- ([\d.]+)", out)[1])
    assert spread > 0.0
    assert "+-" not in one
    together = dpk.privacy.compose_sequential(*[single.privacy] * 3)
    assert "3 draws read the same data and compose" in out
    assert f"epsilon     {together.epsilon(1e-5):.3f}"[:-1] in out
    assert re.search(r"20 x 4 coordinates[^;]*\(3\s+runs\)", out)
    assert "(the first of the 3 draws)" in out
    assert three.privacy.mu == single.privacy.mu
    assert "the first of 3 draws on the same data, which compose to" in three.privacy.notes[-1]


@for_each("how", [["--epsilon", "inf"], ["--no-privacy"]])
def test_a_run_without_noise_says_that_it_guarantees_nothing(capsys, train, test, how):
    out, err = shown(capsys, ["fit", train, "--test", test, *how, "--draws", "4"])
    assert "NONE: this run added no noise" in out
    assert re.search(r"guarantee\s+none", out)
    assert "without noise they are all the same" in err
    accuracy = float(re.search(r"test accuracy\s+([\d.]+)\n", out)[1])
    assert accuracy > 0.9


def test_a_run_without_noise_says_what_it_is_short_of(capsys, train):
    short = ["fit", train, "--no-privacy", "--l2", 0.1, "--rounds"]
    assert "--rounds 50 comes nearer to the minimiser" in shown(capsys, [*short, 5])[0]
    assert "comes nearer" not in shown(capsys, [*short, 3000])[0]


def test_regression_reports_the_mean_squared_error(capsys, tmp_path):
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (200, 2))
    y = X @ [0.5, -0.25]
    train = write_csv(tmp_path / "r.csv", X, y)
    model = tmp_path / "r.npz"
    how = ["--no-privacy", "--l2", 0, "--row-bound", 2, "--out", model]
    out, _ = shown(capsys, ["fit", train, "--test", write_csv(tmp_path / "t.csv", X, y), *how])
    assert "squared loss" in out
    assert float(re.search(r"test MSE\s+([\d.]+)", out)[1]) < 1e-3
    assert float(re.search(r"test R2\s+([\d.]+)", out)[1]) > 0.99
    out, err = shown(capsys, ["predict", model, train])
    np.testing.assert_allclose([float(line) for line in out.split()], y, atol=0.1)
    assert "MSE 0.000" in err
    for option in ("--probabilities", "--decision-values"):
        said = f"{option} is for classification; this model predicts numbers"
        assert said in refused(capsys, "predict", model, train, option)


def test_silos_of_the_data_are_kept(capsys, tmp_path):
    X, y = records(60, 0)
    path = write_csv(tmp_path / "s.csv", X, y, extra=[np.repeat(["a", "b", "c"], 20)])
    out, _ = shown(capsys, ["fit", path, "--silo-column", "silo", *BUDGET, *QUICK])
    assert "3 of 20 records (as the data say)" in out
    assert "--silos was given" in refused(
        capsys, "fit", path, "--silo-column", "silo", "--silos", "3", *BUDGET
    )


def test_a_separator_is_passed_to_the_reader(capsys, train, model, monkeypatch):
    seen = []

    def reader(path, **columns):
        seen.append(columns)
        raise ValueError("enough")

    for module, name in ((_data, "read_table"), (predict, "read_records")):
        monkeypatch.setattr(module, name, reader)
    for command in (["fit", train, *BUDGET], ["compare", train], ["predict", model, train]):
        refused(capsys, *command, "--sep", ";")
        refused(capsys, *command)
    assert [columns.get("sep") for columns in seen] == [";", None] * 3


def test_columns_far_apart_are_hinted_at_unless_a_range_is_given(capsys, tmp_path):
    X, y = records(60, 0)
    path = write_csv(tmp_path / "wide.csv", X * [1.0, 1.0, 1000.0], y)
    out, err = shown(capsys, ["fit", path, *BUDGET, *QUICK])
    assert "WARNING: the largest values of the columns differ by more than 100 x" in err
    assert "    --feature-range ranges.csv\n" in err
    assert "    name,lo,hi\n    f0,LO,HI\n    f1,LO,HI\n    f2,LO,HI\n(" in err
    assert "non-private diagnostic" in err
    assert "far apart" not in out  # which holds the certificate
    assert "WARNING" not in out
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("name,lo,hi\nf2,-1000,1000\nf0,-1,1\nf1,-1,1\n")
    out, err = shown(capsys, ["fit", path, "--feature-range", ranges, *BUDGET, *QUICK])
    assert err == ""
    assert "row bound 2, feature range stated" in out  # sqrt(3 features and the intercept)
    path = write_csv(tmp_path / "near.csv", X * [1.0, 0.0, 90.0], y)
    assert shown(capsys, ["fit", path, *BUDGET, *QUICK])[1] == ""


def test_a_hint_at_columns_without_names_shows_rows_without_names(capsys, tmp_path):
    X, y = records(60, 0)
    path = write_csv(tmp_path / "wide.csv", X * [1.0, 1.0, 1000.0], y, header=False)
    _, err = shown(capsys, ["fit", path, *BUDGET, *QUICK])
    assert "    lo,hi\n    LO,HI\n    ... and 2 rows more\n(" in err


def test_ranges_of_fewer_columns_are_refused(capsys, tmp_path, train):
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("-1,1\n-1,1\n")
    assert "has 2 rows, and" in refused(capsys, "fit", train, "--feature-range", ranges, *BUDGET)


def test_ranges_with_names_need_records_with_names(capsys, tmp_path):
    """By position they would be the ranges of other columns."""
    X, y = records(60, 0)
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("name,lo,hi\nf2,-1,1\nf0,-1,1\nf1,-1,1\n")
    (tmp_path / "a.svm").write_text("1 1:1 3:1\n-1 2:1\n")
    for path in (write_csv(tmp_path / "a.csv", X, y, header=False), tmp_path / "a.svm"):
        err = shown(capsys, ["fit", path, "--feature-range", ranges, *BUDGET], code=2)
        assert "must hold rows lo,hi in the order of the columns" in err


def test_values_out_of_the_range_are_counted_and_refused(capsys, tmp_path):
    X, y = records(60, 0)
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("name,lo,hi\nf0,-1,1\nf1,-1,1\nf2,-1,1\n")
    few, most = X.copy(), X.copy()
    few[:30, 1], most[:31, 1] = 12.0, -12.0
    model = tmp_path / "m.npz"
    fit = ["fit", "--feature-range", ranges, *BUDGET, *QUICK, "--out", model]
    fine = write_csv(tmp_path / "fine.csv", X, y)
    assert shown(capsys, [*fit, fine])[1] == ""
    assert "values out of" not in shown(capsys, ["predict", model, fine])[1]
    path = write_csv(tmp_path / "few.csv", few, y)
    for command in ([*fit, path], [*fit, fine, "--test", path], ["predict", model, path]):
        out, err = shown(capsys, command)
        assert "few.csv has values out of range or in no category: 30 of 60 in column 'f1'" in err
        assert "out of range" not in out  # which has the certificate
    path = write_csv(tmp_path / "most.csv", most, y)
    for command in ([*fit, path], [*fit, fine, "--test", path], ["predict", model, path]):
        err = shown(capsys, command, code=2)
        assert "most.csv: column 'f1' must be in its range, -1 to 1, got 31 of 60 values" in err
    most_of_few = write_csv(tmp_path / "one.csv", most[:1], y[:1])
    assert "1 of 1 in column 'f1'" in shown(capsys, ["predict", model, most_of_few])[1]


def test_sparse_values_out_of_the_range_are_counted(capsys, tmp_path, sparse_files):
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("0,4\n" * 39 + "0,0.1\n")
    err = shown(capsys, ["fit", sparse_files[0], "--feature-range", ranges, *BUDGET], code=2)
    assert re.search(r"(\d+) of \1 in column '39'", err)
    assert "column '39' must be in its range, 0 to 0.1" in err


def test_columns_of_other_codes_are_refused_by_the_schema(capsys, tmp_path):
    rng = np.random.default_rng(0)
    age, sex = rng.integers(20, 80, 200), rng.integers(0, 2, 200)
    state = np.where(age + 12 * sex > 56, "ill", "well")
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"dpkern_schema": 1, "columns": [{"name": "age", "kind": "number", "lo": 18, "hi": 90},'
        '{"name": "sex", "kind": "category", "categories": ["F", "M"]},'
        '{"name": "state", "kind": "target", "classes": ["well", "ill"]}]}'
    )

    def written(name, ages, codes):
        rows = zip(ages, codes, state, strict=True)
        (tmp_path / name).write_text(
            "age,sex,state\n" + "".join(f"{a},{s},{t}\n" for a, s, t in rows)
        )
        return tmp_path / name

    fine = written("fine.csv", age, np.array(["F", "M"])[sex])
    model = tmp_path / "m.npz"
    fit = ["fit", "--schema", schema, *BUDGET, *QUICK, "--out", model]
    assert shown(capsys, [*fit, fine])[1] == ""
    for path, said in (
        (written("codes.csv", age, sex), "column 'sex' must hold its categories or aliases, got"),
        (written("months.csv", 12 * age, ["F"] * 200), "column 'age' must be in its range, 18 to"),
    ):
        for command in ([*fit, path], [*fit, fine, "--test", path], ["predict", model, path]):
            err = shown(capsys, command, code=2)
            assert f"{path}: {said}" in err
            assert f"{path} has values out of range or in no category: 200 of 200 in" in err
    some = written("some.csv", age, np.where(np.arange(200) < 7, "f", "M"))
    for command in ([*fit, some], ["predict", model, some]):
        err = shown(capsys, command)[1]
        assert "some.csv has values out of range or in no category: 7 of 200 in column 'sex'" in err


@for_each(
    ("classes", "labels"),
    [("0,1", ["0", "1.0"]), ("01,1", ["01", "1"]), ("1,A", ["1", "A"]), ("-1,+1", ["-1", "+1"])],
)
def test_labels_are_numbers_or_text_as_the_classes_say(capsys, tmp_path, classes, labels):
    X, y = records(60, 0)
    labels = np.array(labels)[(y == "ill").astype(int)]
    model = tmp_path / "m.npz"
    path = write_csv(tmp_path / "a.csv", X, labels)
    one = write_csv(tmp_path / "one.csv", X[:20], np.full(20, classes.split(",")[0]))
    fit = ["fit", f"--classes={classes}", "--no-privacy", "--out", model, "--test", one]
    out, _ = shown(capsys, [*fit, path])
    assert "one.csv, 20 records" in out
    assert "accuracy" in shown(capsys, ["predict", model, one])[1]
    shown(capsys, [*fit[:-2], one])


def test_the_wisconsin_set_as_a_file_is_learnt_once_the_hint_is_followed(capsys, tmp_path):
    table, (lo, hi) = datasets.wisconsin_table(), datasets.wisconsin_feature_range()
    path = tmp_path / "train.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*table.feature_names, "diagnosis"])
        writer.writerows([*x, label] for x, label in zip(table.X.tolist(), table.y, strict=True))
    fit = ["fit", path, "--target", "diagnosis", "--silos", 8, "--epsilon", 1, "--delta", 1e-6]
    fit += ["--test", shutil.copy(path, tmp_path / "t.csv"), "--noise-seed", 1, "--draws", 5]
    out, err = shown(capsys, fit)
    assert "WARNING" in err
    assert "--feature-range" in err
    ranges = tmp_path / "ranges.csv"
    rows = zip(table.feature_names, lo, hi, strict=True)
    ranges.write_text("".join(f"{name},{a},{b}\n" for name, a, b in rows))
    out, err = shown(capsys, [*fit, "--feature-range", ranges])
    assert "WARNING" not in out + err
    assert "row bound 5.56776," in out  # sqrt(31): no row inside the range is shortened
    assert float(re.search(r"test accuracy\s+([\d.]+)", out)[1]) > 0.88  # majority: 0.63


def test_test_files_of_libsvm_text_are_padded(capsys, tmp_path):
    (tmp_path / "a").write_text("".join(f"{2 * (i % 2) - 1:+d} {i % 3 + 1}:1\n" for i in range(30)))
    (tmp_path / "b").write_text("+1 1:1\n-1 2:1\n")
    out, _ = shown(capsys, ["fit", tmp_path / "a", "--test", tmp_path / "b", *BUDGET, *QUICK])
    assert "3 sparse features" in out
    assert "b, 2 records" in out


def test_the_width_of_libsvm_text_is_stated_or_noted(capsys, tmp_path):
    (tmp_path / "a").write_text("".join(f"{2 * (i % 2) - 1:+d} {i % 3 + 1}:1\n" for i in range(30)))
    fit = ["fit", tmp_path / "a", "--classes=-1,1", *BUDGET, *QUICK, "--out", tmp_path / "m.npz"]
    out, err = shown(capsys, fit)
    assert "the largest index in the records, 3, is taken as the number of features" in err
    assert "the number of features was read from the records" in out
    for options, sparse in (([], True), (["--no-sparse"], False)):
        out, err = shown(capsys, [*fit, "--n-features", 8, *options])
        assert err == ""
        assert "was read" not in out
        declared = dpk.load(tmp_path / "m.npz").privacy.declared
        assert (declared["n_features"], declared["sparse"]) == (8, sparse)
    assert "--n-features must be" in refused(capsys, *fit, "--no-sparse")
    assert "must have 2 features, got 3" in refused(capsys, *fit, "--n-features", 2)


def write_libsvm(path, X, y):
    with open(path, "w") as file:
        for x, label in zip(X, y, strict=True):
            entries = (f"{k + 1}:{v!r}" for k, v in enumerate(x.tolist()) if v)
            print(label, *entries, file=file)
    return str(path)


@pytest.fixture
def sparse_files(tmp_path):
    """The same records as LIBSVM text and as a CSR archive, and their dense form."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.5, 1.0, (200, 40)) * (rng.random((200, 40)) < 0.1)
    y = np.where(X[:, :20].sum(axis=1) > X[:, 20:].sum(axis=1), 1, -1)
    stored = scipy.sparse.csr_array(X)
    arrays = {name: getattr(stored, name) for name in ("shape", "data", "indices", "indptr")}
    np.savez(tmp_path / "a.npz", y=y, format="csr", **arrays)
    return write_libsvm(tmp_path / "a.svm", X, y), str(tmp_path / "a.npz"), X, y


def test_fit_and_predict_take_sparse_files(capsys, tmp_path, sparse_files):
    text, archive, X, y = sparse_files
    models = []
    for path in (text, archive):
        out = tmp_path / "m.npz"
        shown_text, _ = shown(capsys, ["fit", path, "--silos", 4, *BUDGET, *QUICK, "--out", out])
        assert "200 training records, 40 sparse features and an intercept" in shown_text
        models.append(dpk.load(out))
        assert models[-1].privacy.declared["sparse"] is True
        for records_path in (text, archive):
            labels, err = shown(capsys, ["predict", out, records_path])
            assert labels.split() == [str(label) for label in models[-1].predict(X)]
            assert f"accuracy {models[-1].score(X, y):.4f}, " in err
    np.testing.assert_array_equal(models[0].w, models[1].w)


def test_a_feature_range_scales_sparse_files_only(capsys, tmp_path, sparse_files):
    ranges = tmp_path / "ranges.csv"
    ranges.write_text("0,4\n" * 40)
    model = tmp_path / "m.npz"
    run = ["fit", sparse_files[0], "--feature-range", ranges, *BUDGET, *QUICK, "--out", model]
    out, _ = shown(capsys, run)
    assert "feature range stated (scale only, so that 0 stays 0: the data are sparse)" in out
    transform = dpk.load(model).transform
    assert transform.scale == (0.5,) * 40
    assert transform.shift is None


def test_sparse_columns_far_apart_are_hinted_at(capsys, tmp_path, sparse_files):
    _, _, X, y = sparse_files
    for factor, hinted in ((1.0, False), (-1e3, True)):
        X[:, 3] *= factor
        path = write_libsvm(tmp_path / "b.svm", X, y)
        _, err = shown(capsys, ["fit", path, *BUDGET, *QUICK])
        assert ("WARNING: " in err) == hinted


@for_each("given", [[], ["--test"]])
def test_compare_takes_sparse_files(capsys, sparse_files, given):
    held_out = [*given, sparse_files[1]] if given else []
    run = ["compare", sparse_files[0], *held_out, *SMALL, "--no-plot"]
    rows = table_of(shown(capsys, run)[0])
    assert len(rows) > 4
    assert rows[0][2] == "no noise"
    assert float(rows[0][3]) > 0.7


# predict


def test_what_was_paid_for_is_kept_and_not_overwritten(capsys, tmp_path, train):
    model, ledger = (str(tmp_path / name) for name in ("m.npz", "l.json"))
    dpk.Accountant(ledger, epsilon=9.0, delta=1e-5)
    fit = ["fit", train, *BUDGET, *QUICK, "--ledger", ledger]
    assert main(fit) == 0
    err = capsys.readouterr().err
    assert "no --out was given: the model is not kept, and fitting it again costs again" in err
    assert main(["fit", train, "--no-privacy", *QUICK]) == 0
    assert "no --out" not in capsys.readouterr().err
    spent = Path(ledger).read_bytes()
    Path(model).write_text("paid for")
    assert main([*fit, "--out", model]) == 2
    assert f"{model} is there already, and a budget may have been" in capsys.readouterr().err
    assert Path(model).read_text() == "paid for"
    assert Path(ledger).read_bytes() == spent


def test_records_of_the_fit_are_no_test_records(capsys, tmp_path, train, test):
    ledger, again = tmp_path / "l.json", tmp_path / "again.csv"
    dpk.Accountant(ledger, epsilon=9.0, delta=1e-5)
    again.hardlink_to(train)
    before = ledger.read_bytes()
    for path in (train, again):
        fit = ["fit", train, *BUDGET, *QUICK, "--ledger", ledger, "--test", path]
        assert "--test must be other records than DATA, got" in refused(capsys, *fit)
        assert "--test must be other" in refused(capsys, "compare", train, "--test", path)
    assert ledger.read_bytes() == before
    out, _ = shown(capsys, ["fit", train, *BUDGET, *QUICK, "--test", test])
    assert "they are for the holder of these records alone, and no certificate covers them" in out


@pytest.fixture
def model(capsys, tmp_path, train):
    path = tmp_path / "model.npz"
    shown(capsys, ["fit", train, "--no-privacy", "--rounds", "50", "--out", path])
    return path


@for_each("labelled", [True, False])
def test_predictions_are_those_of_the_saved_model(capsys, tmp_path, model, labelled):
    X, y = records(50, 2)
    path = write_csv(tmp_path / "new.csv", X, y if labelled else None)
    saved = dpk.load(model)
    out, err = shown(capsys, ["predict", model, path])
    assert out.split() == saved.predict(X).tolist()
    area = roc_auc_score(y, saved.decision_function(X))
    loss = log_loss(y, saved.predict_proba(X), labels=list(saved.classes))
    scores = f"accuracy {saved.score(X, y):.4f}, AUC {area:.4f}, log loss {loss:.4f}"
    said = f"{scores} on 50 labelled records\n({_output.EXACT_SCORE})\n"
    assert err == (said if labelled else "")

    target = tmp_path / "p.txt"
    written, _ = shown(capsys, ["predict", model, path, "--out", target])
    assert target.read_text() == out
    assert written == f"50 predictions in {target}\n" + (said if labelled else "")


def test_decision_values_are_exact_in_csv(capsys, tmp_path, model):
    X, _ = records(20, 3)
    path = write_csv(tmp_path / "new.csv", X)
    out, _ = shown(capsys, ["predict", model, path, "--decision-values"])
    rows = list(csv.DictReader(out.splitlines()))
    saved = dpk.load(model)
    assert [row["label"] for row in rows] == saved.predict(X).tolist()
    values = [float(row["decision_value"]) for row in rows]
    assert values == saved.decision_function(X).tolist()


def test_probabilities_are_those_of_the_model_in_csv(capsys, tmp_path, model):
    X, _ = records(20, 3)
    path = write_csv(tmp_path / "new.csv", X)
    out, _ = shown(capsys, ["predict", model, path, "--probabilities", "--decision-values"])
    saved, rows = dpk.load(model), list(csv.DictReader(out.splitlines()))
    names = [f"probability_{label}" for label in saved.classes.tolist()]
    assert list(rows[0]) == ["label", "decision_value", *names]
    found = [[float(row[name]) for name in names] for row in rows]
    assert found == saved.predict_proba(X).tolist()


def test_evaluate_is_the_library_call_on_the_files_records(capsys, tmp_path, model, test):
    saved, ledger = str(tmp_path / "scores.json"), str(tmp_path / "ledger")
    dpk.Accountant(ledger, epsilon=3.0, delta=1e-4)
    how = [*BUDGET, "--threshold", "0.4", "--noise-seed", "3", "--ledger", ledger]
    out, _ = shown(capsys, ["evaluate", model, test, *how, "--certificate", saved])
    X, y = records(80, 1)
    budget = dpk.Budget(epsilon=2.0, delta=1e-5)
    expected = dpk.evaluate(dpk.load(model), X, y, budget=budget, threshold=0.4, rng=3)
    assert "\n".join(str(expected).split("\n")[:-1]) in out
    assert "of epsilon 3 at delta 0.0001 is spent" in out
    assert dpk.verify(saved).ok
    assert dpk.Accountant(ledger).spent > 0.9


def test_evaluate_draws_the_calibration_curve_of_risks(capsys, tmp_path, train, model, test):
    picture, ledger, hinge = (tmp_path / name for name in ("c.png", "ledger", "h.npz"))
    dpk.Accountant(ledger, epsilon=3.0, delta=1e-4)
    shown(capsys, ["evaluate", model, test, *BUDGET, "--plot", picture])
    assert picture.read_bytes().startswith(b"\x89PNG")
    fit = ["fit", train, "--no-privacy", "--loss", "smoothed_hinge", "--rounds", 5, "--out", hinge]
    shown(capsys, fit)
    for name, path, said in (
        (hinge, picture, "--plot must be left out for a model that has no risks of classes"),
        (model, tmp_path / "c.pdf", "--plot must end in .png"),
        (model, tmp_path / "none" / "c.png", "there is no folder"),
    ):
        call = ["evaluate", name, test, *BUDGET, "--ledger", ledger, "--plot", path]
        assert said in refused(capsys, *call)
    assert dpk.Accountant(ledger).spent == 0.0


def test_evaluate_refuses_other_records_and_spends_nothing(capsys, tmp_path, model, test):
    ledger, X, y = str(tmp_path / "ledger"), *records(80, 1)
    dpk.Accountant(ledger, epsilon=3.0, delta=1e-4)
    other = write_csv(tmp_path / "other.csv", X, np.where(y == "ill", "sick", y))
    wide = write_csv(tmp_path / "wide.csv", np.column_stack([X, X]), y)
    for path in (other, wide, str(tmp_path / "none.csv")):
        assert path in refused(capsys, "evaluate", model, path, *BUDGET, "--ledger", ledger)
    assert "--public-size" in refused(
        capsys, "evaluate", model, test, *BUDGET, "--neighbours", "add_remove"
    )
    assert dpk.Accountant(ledger).spent == 0.0


def test_describe_is_the_library_call_on_the_files_records(capsys, tmp_path):
    records = tmp_path / "raw.csv"
    records.write_text("age,sex\n" + "".join(f"{20 + k % 60},{'FM'[k % 2]}\n" for k in range(900)))
    columns = [dpk.data.Column("age", "number", lo=18, hi=90)]
    columns += [dpk.data.Column("sex", "category", categories=["F", "M"])]
    schema = dpk.Schema(columns)
    schema.save(tmp_path / "schema.json")
    names = ("schema.json", "ledger", "table.csv", "certificate.json")
    described, ledger, table, saved = (str(tmp_path / name) for name in names)
    dpk.Accountant(ledger, epsilon=3.0, delta=1e-4)
    call = ["describe", records, "--schema", described, *BUDGET, "--ledger", ledger]
    out, _ = shown(capsys, [*call, "--noise-seed", "3", "--out", table, "--certificate", saved])
    budget, frame = dpk.Budget(epsilon=2.0, delta=1e-5), dpk.io.read_frame(records, schema)
    expected = dpk.describe(frame, schema, budget=budget, rng=3)
    assert str(expected) in out
    rows = list(csv.DictReader(Path(table).read_text().splitlines()))
    assert [float(row["low"]) for row in rows] == [row.low for row in expected.shown]
    assert len(rows) == len(expected.rows) - 1  # no row of values that are not listed
    assert not [row for row in rows if "not listed" in row["level"]]
    assert math.isnan(expected["sex", "share", "not listed"].value)
    assert dpk.verify(saved).ok
    spent = dpk.Accountant(ledger).spent
    assert spent > 0.9
    assert "--cross must" in refused(capsys, *call, "--cross", "sex:seks")
    assert "A:B" in refused(capsys, *call, "--cross", "sex")
    assert dpk.Accountant(ledger).spent == spent


def test_unknown_labels_give_predictions_without_a_score(capsys, tmp_path, model):
    X, _ = records(20, 3)
    path = write_csv(tmp_path / "new.csv", X, np.zeros(20, int))
    out, err = shown(capsys, ["predict", model, path])
    assert len(out.split()) == 20
    assert err.startswith("no score")


# compare

# Under shuffle trust, and with silos as users of ADMM, runs are for those who ask for them.
VARIANTS = [
    (name, trust)
    for name in compared(SOLVERS)
    for trust in SOLVERS[name].declaration.trusts
    if trust != "shuffle" and (name, trust) != ("admm", "silo")
]
SMALL = ["--rounds", "10", "--draws", "2", "--epsilons", "1,4", "--noise-seed", "5", "--all"]


def table_of(out):
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("solver "))
    rows = [re.split(r"\s{2,}", line) for line in lines[start + 1 : lines.index("", start)]]
    return [row for row in rows if row[0] != "majority class"]


def test_compare_shows_every_solver_trust_and_budget_and_one_run_without_noise(
    capsys, tmp_path, train
):
    out, err = shown(capsys, ["compare", train, *SMALL, "--plot", tmp_path / "c.png"])
    rows = table_of(out)
    assert rows[0][:3] == ["gradient_descent", "-", "no noise"]
    assert [row[:3] for row in rows[1:]] == [
        [*variant, epsilon] for variant in VARIANTS for epsilon in ("1", "4")
    ]
    assert all(float(row[4]) >= 0.0 for row in rows)
    assert "60 of 300 records held out at random (seed 0)" in out
    noisy = 2 * 2 * len(VARIANTS)  # budgets and draws
    assert f"the {noisy} noisy runs read the same training records and compose" in out
    assert "non-private diagnostics" in out
    assert f"{noisy + 1}/{noisy + 1}" in err or "run/s" in err
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_compare_ends_with_a_few_rows_and_an_answer(capsys, tmp_path, train):
    run = ["compare", train, *SMALL[:-1], "--rounds", "auto", "--draws", "3"]
    out, _ = shown(capsys, [*run, "--plot", tmp_path / "c.png"])
    rows = table_of(out)
    assert [row[0] for row in rows[8:]][:1] == ["no privacy"]
    scores = [float(row[2].split()[0]) for row in rows[:8]]
    assert scores == sorted(scores, reverse=True)
    assert {row[1] for row in rows[:8]} == {"central"}
    assert "gradient_descent" in [row[0] for row in rows[:8]]
    assert "mean +- its standard error over the draws; 9 solvers more by --all" in out
    assert "infinite" not in out
    answer = out.splitlines()[-1]
    assert re.fullmatch(
        r"answer +\w+; at epsilon 1 it costs \d+\.\d points against no privacy "
        r"\(test accuracy [\d.]+ in place of [\d.]+\)",
        answer,
    )


def compared(solver, score, se=0.01, epsilon=1.0, trust="central"):
    return CompareRow(solver, trust, epsilon, score, se, gap=0.0, seconds=0.0)


@for_each(
    ("others", "majority", "answer"),
    [
        ([("ridge", 0.9)], 0.5, "gradient_descent; at epsilon 1 it costs 8.0 points against no"),
        ([("ridge", 0.96)], 0.5, "ridge; at epsilon 1 it costs nothing that shows"),
        ([], 0.9, "none; at epsilon 1 no solver is better than the larger class"),
        ([("ridge", 0.9)], None, "gradient_descent; at epsilon 1 it has the MSE 0.88 in place of"),
    ],
)
def test_the_answer_is_the_default_unless_another_is_better(others, majority, answer):
    rows = [compared("spider", 0.96, math.nan, math.inf, "-")]
    rows += [compared("gradient_descent", 0.88), *(compared(*other) for other in others)]
    rows += [compared("spider", 0.99, epsilon=4.0)]
    judged = compare._Judged("MSE", majority and ("majority class", majority))
    assert compare._answer(rows, judged).startswith(answer)


def test_solvers_are_judged_by_area_where_one_class_is_rare(capsys, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (900, 3))
    y = np.where(rng.random(900) < 1 / (1 + np.exp(4.0 - 3.0 * X[:, 0])), "ill", "well")
    assert np.mean(y == "well") > 0.85  # hardly any risk is above 1/2
    path = write_csv(tmp_path / "rare.csv", X, y)
    pictures = []
    monkeypatch.setattr(compare, "plot_compare", lambda rows, *a, **k: pictures.append((rows, k)))
    run = ["compare", path, *SMALL[:-1], "--rounds", "auto", "--draws", "2", "--epsilons", "8"]
    out, _ = shown(capsys, [*run, "--solvers", "gradient_descent,ridge"])
    assert re.search(
        r"\nscore +area under the ROC curve \(AUC\), as the larger class has \d\d %", out
    )
    assert re.search(r"\nchance +- +0\.5000\n", out)
    assert re.search(r"\nanswer +\w+; at epsilon 8 it cost[^\n]*\(test AUC 0\.\d+ in place of", out)
    ((rows, how),) = pictures
    assert (how["metric"], how["level"]) == ("test AUC", ("chance", 0.5))
    assert rows[0].score > 0.7  # without noise
    names = list(dict.fromkeys((row.solver, row.trust) for row in rows[1:]))
    assert names == [tuple(row[:2]) for row in table_of(out)[:4]]


def test_the_default_is_drawn_and_listed_however_poor_it_is():
    rows = [compared(f"s{k}", 0.9 - 0.01 * k) for k in range(9)]
    rows = [compared("s0", 0.96, math.nan, math.inf, "-"), *rows, compared("gradient_descent", 0.5)]
    judged = compare._Judged("test accuracy", ("majority class", 0.7))
    drawn = compare._drawn(rows, judged, 8)
    assert [row.solver for row in drawn] == ["s0", *(f"s{k}" for k in range(7)), "gradient_descent"]


def test_draws_of_sampled_users_compose_as_each_of_them_does_alone(capsys, train):
    fit = ["fit", train, *BUDGET, "--solver", "admm", "--rounds", "6", "--draws", "3"]
    out, _ = shown(capsys, [*fit, "--set", "mode=federated", "--set", "participation=240"])
    assert re.search(r"6 x [^;]*each record in at most 6,[^;]*\(3\s+runs\)", out)


def test_draws_with_schedules_of_their_own_are_listed_as_they_were(capsys, train):
    fit = ["fit", train, *BUDGET, "--solver", "admm", "--rounds", "6", "--noise-seed", "1"]
    more = ["--set", "mode=federated", "--set", "participation=30", "--set", "recalibrate=False"]
    found = []  # the sensitivity follows the most participations of a user
    for draws in ("1", "4"):
        out, _ = shown(capsys, [*fit, *more, "--draws", draws])
        found.append(set(re.findall(r"sensitivity ([\d.]+)", out)))
    assert len(found[0]) == 1
    assert len(found[1]) > 1


def test_newtons_method_keeps_its_own_rounds_and_steps_unless_they_are_given(
    capsys, train, monkeypatch
):
    seen = []

    def kept(data, *, budget, loss, rounds=10, step_size="damped", trust="silo", **others):
        seen.append((rounds, step_size))
        raise ValueError("enough")

    kept.declaration = SOLVERS["local_newton"].declaration
    monkeypatch.setitem(SOLVERS, "local_newton", kept)
    for given in ([], ["--rounds", "7", "--set", "step_size=0.5"]):
        assert main(["fit", train, "--solver", "local_newton", *BUDGET, *given]) == 2
        assert main(["compare", train, "--solvers", "local_newton", "--no-plot", *given]) == 2
    assert seen == [(10, "damped")] * 3 + [(7, 0.5)] * 3  # compare tries two kinds of trust


def test_compare_composes_what_it_spent(capsys, train):
    run = ["compare", train, *SMALL, "--solvers", "gradient_descent:central", "--no-plot"]
    out, _ = shown(capsys, run)
    mu = (2 * sum(dpk.Budget(epsilon=e, delta=1e-5).mu ** 2 for e in (1.0, 4.0))) ** 0.5
    stated = re.search(r"together mu ([\d.]+), epsilon ([\d.]+) at delta 1e-05", out)
    assert mu <= float(stated[1]) <= mu + 1e-3
    assert 0.0 <= float(stated[2]) - dpk.Budget(mu=mu).epsilon_at(1e-5) < 2e-3
    assert len(table_of(out)) == 3


def test_gap_of_a_long_run_without_noise_is_small_and_not_negative(capsys, train):
    run = ["compare", train, "--rounds", "2000", "--l2", "0.1", "--epsilons", "1", "--draws", "1"]
    run.append("--all")
    out, _ = shown(capsys, [*run, "--solvers", "gradient_descent:central", "--no-plot"])
    assert float(table_of(out)[0][6]) == 0.0


def test_compare_shows_area_and_log_loss_where_there_are_any(capsys, train, test):
    how = ["compare", train, "--test", test, "--rounds", "50", "--epsilons", "1", "--draws", "1"]
    how += ["--solvers", "gradient_descent:central", "--no-plot", "--noise-seed", "0", "--all"]
    out, _ = shown(capsys, how)
    (exact, _), (X, y) = table_of(out)[:2], records(80, 1)
    data = dpk.SiloData.split(*records(300, 0), m=4, seed=0, row_bound=1.0, intercept=True)
    result = dpk.solve("gradient_descent", data, budget=None, rounds=50)
    p = result.predict_proba(X)[np.arange(80), (y == "well").astype(int)]
    assert float(exact[4]) == pytest.approx(roc_auc_score(y, result.decision_function(X)), abs=1e-4)
    assert float(exact[5]) == pytest.approx(-np.log(p).mean(), abs=1e-4)
    # A loss with a parameter, whose models predict no probabilities.
    out, _ = shown(capsys, [*how, "--loss", "smoothed_hinge"])
    assert [row[5] for row in table_of(out)[:2]] == ["-", "-"]


def test_compare_without_data_learns_the_wisconsin_set(capsys):
    flags = ["--epsilons", "1", "--draws", "5", "--solvers", "gradient_descent:central"]
    out, _ = shown(capsys, ["compare", *flags, "--noise-seed", "0", "--no-plot", "--all"])
    noiseless, noisy = (float(row[3].split()[0]) for row in table_of(out))
    assert noiseless > 0.9
    assert noisy > 0.85


def test_compare_leaves_out_a_solver_that_refuses_unless_it_was_named(capsys, train, monkeypatch):
    def refusing(data, *, budget, trust="central", **others):
        raise ValueError("needs other data")

    refusing.declaration = SOLVERS["double_noise_newton"].declaration
    monkeypatch.setitem(SOLVERS, "refusing", refusing)
    out, err = shown(capsys, ["compare", train, *SMALL, "--no-plot"])
    assert len(table_of(out)) == 1 + 2 * len(VARIANTS)
    assert "left out: refusing under central trust: needs other data" in err
    run = ["compare", train, "--no-plot", "--solvers", "refusing"]
    assert main(run) == 2
    assert "dpkern: error: --solvers refusing: needs other data" in capsys.readouterr().err


def test_what_cannot_run_is_left_out_before_anything_runs(capsys, train, monkeypatch):
    events = []
    solve_many = _comparison.solve_many

    def recorded(solver, *arguments, **parameters):
        events.append(solver)
        return solve_many(solver, *arguments, **parameters)

    monkeypatch.setattr(_comparison, "solve_many", recorded)
    monkeypatch.setattr(_output, "remark", events.append)
    out, _ = shown(capsys, ["compare", train, *SMALL, "--solvers", "admm", "--no-plot"])
    assert events == [
        "left out: admm under silo trust: --solvers NAME:silo needs --set users=silos in admm: "
        "what noises is a user",
        *["admm"] * 3,  # without noise, and with noise under two kinds of trust
    ]
    assert {row[1] for row in table_of(out)} == {"-", "central", "local"}


def test_the_check_before_a_comparison_reads_no_record(train):
    table = io.read_table(train)
    bounds = -np.ones(3), 3 * np.ones(3)
    for task, y in (("classification", table.y), ("regression", table.X[:, 0])):
        data = dpk.SiloData.split(
            *(table.X, y, 7), seed=0, how="random", row_bound=2.0, intercept=True,
            feature_range=bounds, task=task,
        )  # fmt: skip
        empty = _comparison.without_records(data)
        assert empty.X.nnz == 0
        assert set(empty.y.tolist()) <= {-1.0, 0.0, 1.0}
        for name in ("n", "m", "d", "n_features", "row_bound", "intercept", "task"):
            assert getattr(empty, name) == getattr(data, name)
        np.testing.assert_array_equal(empty.sizes, data.sizes)
        np.testing.assert_array_equal(empty.feature_range, data.feature_range)


@pytest.mark.processes
def test_solvers_in_several_processes_give_the_table_of_one(capsys, train, monkeypatch):
    command = ["compare", train, *SMALL, "--no-plot", "--noise-seed", "3"]
    tables, said = [], []
    for cores in (1, 2):
        monkeypatch.setattr(_comparison, "usable_cores", lambda cores=cores: cores)
        out, err = shown(capsys, command)
        tables.append([row[:-1] for row in table_of(out)])  # all but the seconds
        said.append(sorted(line for line in err.splitlines() if "warning" in line))
    assert len({(solver, trust) for solver, trust, *_ in tables[0]}) > _comparison._FEW
    assert tables[0] == tables[1]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("stop", "status"), [(KeyboardInterrupt(), 130), (ValueError("too small a row_bound"), 2)]
)
def test_rows_that_have_run_are_printed_whatever_happens_next(
    capsys, train, monkeypatch, stop, status
):
    solve_many, runs = _comparison.solve_many, []

    def fails(solver, data, **parameters):
        runs.append(solver)
        if len(runs) == 2:  # with noise
            stop.add_note("released before the failure: a sum")
            raise stop
        return solve_many(solver, data, **parameters)

    monkeypatch.setattr(_comparison, "solve_many", fails)
    flags = ["--solvers", "wd_dp:central,gradient_descent:central,output_perturbation:central"]
    assert main(["compare", train, *SMALL, *flags, "--no-plot"]) == status
    out, err = capsys.readouterr()
    rows = [["wd_dp", "-", "no noise"]]
    if status == 2:  # the others go on
        for name in ("gradient_descent", "output_perturbation"):
            rows += [[name, "central", "1"], [name, "central", "4"]]
        failed = "wd_dp under central trust: too small a --row-bound"
        assert f"dpkern: error: 1 of the solvers failed: {failed}; released before" in err
        assert "the 8 noisy runs read the same training records" in out
    else:
        assert err.endswith("dpkern: interrupted\ndpkern: released before the failure: a sum\n")
        assert "no noisy run has ended" in out
    assert [row[:3] for row in table_of(out)] == rows


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@for_each("cores", [1, 2])
def test_models_that_cannot_be_scored_have_spent_their_budget(capsys, tmp_path, monkeypatch, cores):
    """A solver whose scores overflow fails alone, and its runs count."""
    rng = np.random.default_rng(0)
    X = rng.random((300, 3))
    path = tmp_path / "big.csv"
    table = np.column_stack([X, 1e160 * X.sum(axis=1)])
    np.savetxt(path, table, delimiter=",", header="a,b,c,y", comments="")
    monkeypatch.setattr(_comparison, "usable_cores", lambda: cores)
    monkeypatch.setattr(_comparison, "_FEW", 1)
    solvers = "gradient_descent:central,local_newton:central,objective_perturbation"
    run = ["compare", path, "--target", "y", "--no-plot", "--draws", "1", "--epsilons", "1"]
    assert main([*map(str, run), "--solvers", solvers, "--noise-seed", "5"]) == 2
    out, err = capsys.readouterr()
    assert "of the solvers failed" in err
    assert "the 3 noisy runs read the same training records" in out


FITS = [
    ("--silos 4 --split two_groups=2", ["4 of 50 to 100 records (two_groups=2 split, seed 0)"]),
    ("--clip auto --rounds auto", ["rounds 300"]),
    ("ADMM --set prox_step=0.5", ["mode central", "prox_step 0.5", "relaxation 0.5"]),
    ("ADMM --set mode=federated --set participation=9", ["mode federated", "in at most"]),
    ("ADMM --trust local --set mode=token", ["mode token", "message of a user"]),
    ("ADMM --set penalty=non_negative", ["penalty NonNegative()"]),
    ("ADMM --set penalty=l2_squared:0.001+l1:0.01", ["penalty L2(0.001) + L1(0.01)"]),
    (
        "--solver federated_gd --set local_steps=3 --set penalty=pl:0.01 --rounds 20",
        ["rounds 20, local_steps 3", "ran its 20 rounds of 3 local steps"],
    ),
]


@for_each(("text", "texts"), FITS)
def test_fit_states_what_it_was_given(capsys, train, text, texts):
    more = text.replace("ADMM", "--solver admm --rounds 6").split()
    out, _ = shown(capsys, ["fit", train, *BUDGET, "--noise-seed", "1", *more])
    out = " ".join(out.split())
    for part in texts:
        assert part in out


def test_compare_sets_and_states_local_steps_and_penalties(capsys, train):
    sets = ["--set", "local_steps=3", "--set", "penalty=pl:0.01"]
    one_shot = ["--solvers", "wd_dp,output_perturbation:silo", "--no-plot"]
    out, _ = shown(capsys, ["compare", train, *SMALL[2:], *one_shot, *sets])
    assert "local_steps 3, penalty PL(0.01)" in out
    assert [row[:2] for row in table_of(out)[1::2]] == [
        ["wd_dp", "central"], ["wd_dp", "silo"], ["output_perturbation", "silo"]
    ]  # fmt: skip


def test_compare_without_matplotlib_says_how_to_get_it(capsys, tmp_path, train, monkeypatch):
    for name in ("matplotlib", "matplotlib.backends.backend_agg", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "c.png"
    out, _ = shown(capsys, ["compare", train, *SMALL, "--plot", path])
    assert out.splitlines()[-2].endswith("pip install 'dpkern[plot]'")
    assert not path.exists()


# info, version, help


def test_info_says_when_kernels_run_serially(capsys, monkeypatch):
    facts = installation.info()
    out, _ = shown(capsys, ["info"])
    assert facts["version"] in out
    assert ("serially" in out) == (not facts["openmp"])
    monkeypatch.setattr(installation, "info", lambda: facts | {"openmp": False, "n_threads": 1})
    assert "serially" in shown(capsys, ["info"])[0]


@for_each("arguments", [["--help"], ["fit", "--help"], ["compare", "--help"]])
def test_help_is_printed_with_status_0(capsys, arguments):
    assert "usage: dpkern" in shown(capsys, arguments)[0]


def test_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "dpkern", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"dpkern {version('dpkern')}\n"


def test_import_is_cheap():
    heavy = ("sklearn", "tqdm", "matplotlib", "scipy.optimize", "scipy.special", "scipy.sparse")
    code = f"import dpkern.cli, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# errors


ERRORS = [
    ("", "required: COMMAND"),
    ("fly", "choose from fit, predict, evaluate, compare, plan, describe, schema, ledger"),
    ("comapre", "invalid choice: 'comapre'; did you mean 'compare'?"),
    ("fit TRAIN --epsilom 1", "unrecognized argument --epsilom; did you mean '--eps"),
    ("fit TRAIN --sead=1 BUDGET", "argument --sead=1; did you mean '--seed'?"),
    ("predict m.npz TRAIN --schema s.json", "--schema: a model has its schema, if there is one"),
    ("fit TRAIN BUDGET surplus", "unrecognized argument surplus (see dpkern fit"),
    ("compare TRAIN --solvers spidre", "no 'spidre'; did you mean 'spider'?"),
    ("fit TRAIN BUDGET --set step-size=1", "did you mean 'step_size'?"),
    ("compare TRAIN --set prox_steps=1", "did you mean 'prox_step'?"),
    ("fit --solver", "argument --solver: expected one argument"),
    ("fit TRAIN --epsilon 1 --no-privacy", "exclude each other"),
    ("fit TRAIN BUDGET --draws 0", "at least 1"),
    ("fit TRAIN BUDGET --solver magic", "invalid choice: 'magic'"),
    ("fit TRAIN BUDGET --trust nobody", "--trust must be 'central' or 'silo'"),
    (
        "fit TRAIN BUDGET --set colour=red",
        "'colour' is no option of auto; there are clip, loss, penalty, l2, l1",
    ),
    ("fit TRAIN BUDGET --set budget=3", "it has options of its own"),
    ("fit TRAIN BUDGET --set rounds", "must be key=value"),
    ("fit TRAIN BUDGET --l2 1 --set l2=2", "l2 was given twice, by --l2 and --set l2; give"),
    ("fit TRAIN --epsilon 1_0 --delta 1e-5", "invalid float value: '1_0'"),
    ("fit TRAIN BUDGET --seed 1_0", "invalid int value: '1_0'"),
    ("fit TRAIN BUDGET --silos ２", "invalid count value"),
    ("fit TRAIN BUDGET --rounds 1_0", "invalid int value: '1_0'"),
    ("fit TRAIN BUDGET --hidden 1_0", "must be a comma-separated list, got '1_0'"),
    ("fit TRAIN BUDGET --set rounds=1_0", "must be an integer, got '1_0'"),
    ("fit TRAIN BUDGET --split mixed=0_5", "'0_5' is no number"),
    ("compare TRAIN --epsilons 1,2_0", "must be a comma-separated list"),
    ("fit TRAIN BUDGET --set rounds=0.5", "rounds must be an integer, got 0.5"),
    ("fit TRAIN BUDGET --row-bound inf", "--row-bound"),
    ("fit TRAIN BUDGET --split odd", "--split must be one of"),
    ("fit TRAIN BUDGET --split even=2", "'even' takes no number"),
    ("fit TRAIN BUDGET --split mixed", "needs its share, as in mixed=0.5"),
    ("fit TRAIN BUDGET --silos 2 --split mixed=2", "share must lie in [0, 1], got 2.0"),
    ("fit TRAIN BUDGET --split two_groups", "needs its ratio, as in two_groups=2"),
    ("fit TRAIN BUDGET --split two_groups=x", "--split is 'two_groups=x'"),
    ("predict TRAIN OTHER --out OTHER", "is read by this command"),
    ("compare TRAIN --plot TRAIN", "is read by this command"),
    ("fit FOLDER BUDGET", "must be a file, got a folder"),
    ("predict FOLDER/none.npz TRAIN", "No such file"),
    ("compare TRAIN --solvers magic", "there is no 'magic'"),
    ("compare TRAIN --solvers federated_gd:local", "must be central or silo"),
    ("compare TRAIN --solvers admm:silo", "NAME:silo needs --set users=silos"),
    (
        "compare TRAIN --solvers spider,admm --row-bound inf",
        "--solvers spider: --set step_size=auto needs a bound of the rows",
    ),
    ("compare TRAIN --set trust=silo", "--solvers"),
    ("compare TRAIN --set colour=red", "'colour' is no option of these solvers"),
    ("compare TRAIN --epsilons ,", "comma-separated list"),
    ("compare TRAIN --epsilons 1,inf", "--epsilons must be positive and finite, got inf"),
    ("compare TRAIN --test-share 2", "between 0 and 1"),
    ("compare TRAIN --plot FOLDER/none/c.png", "there is no folder"),
    ("compare TRAIN --plot FOLDER/c.pdf", "--plot must end in .png"),
    ("audit ridge --plot FOLDER/c.txt", "--plot must end in .png"),
    ("audit ridge --runs 10", "--runs must be at least 100, got 10"),
    ("audit ridge --confidence 2", "--confidence must be in (0.5, 1), got 2.0"),
    ("audit ridge --jobs 0", "--jobs must be a number of processes"),
    ("compare --target x", "need DATA"),
    ("fit TRAIN BUDGET --step-size 1", "argument --step-size; give it as --set step_size=1 (see"),
    ("fit TRAIN BUDGET --prox-step=1", "give it as --set prox_step=1 (see"),
    ("fit TRAIN BUDGET --sampling full", "give it as --set sampling=full (see"),
    ("fit TRAIN BUDGET --batch-size", "give it as --set batch_size=VALUE (see"),
    ("fit TRAIN BUDGET --solver local_newton --l1 1", "--l1 is no option of local_newton"),
    ("fit TRAIN BUDGET --rounds 1 --set rounds=2", "twice, by --rounds and --set rounds; give"),
    ("fit TRAIN BUDGET --set rounds=1 --set rounds=2", "rounds was given twice, by --set rounds;"),
    (
        "fit TRAIN BUDGET --set penalty=box:-1,1",
        "l2_ball or box or non_negative or simplex on the command",
    ),
    (
        "fit TRAIN BUDGET --set penalty=l1:much",
        "must be l1:STRENGTH or l2_squared:STRENGTH or elastic_net",
    ),
    (
        "fit TRAIN BUDGET --set penalty=group_lasso:1",
        "with +, got 'group_lasso:1'; others need Python",
    ),
    ("fit TRAIN BUDGET --row-bound 0", "--row-bound must be positive, got 0.0"),
    (
        "fit TRAIN BUDGET --row-bound inf",
        "give the data a --row-bound R, or --set step_size=NUMBER",
    ),
    ("fit TRAIN BUDGET --l1 0.1 --set penalty=box", "L1 beside"),
    ("fit TRAIN BUDGET --split by_label --silos 1", "--split must be another than 'by_label'"),
    ("fit TRAIN BUDGET --clip much", "argument --clip: invalid float value: 'much'"),
    ("fit TRAIN BUDGET --clip -1", "--clip must be positive, got -1.0"),
    ("fit TRAIN BUDGET --set calibration=paper --set neighbours=add_remove", "--set public_size"),
]


@for_each(("text", "message"), ERRORS)
def test_a_users_error_is_one_line_and_status_2(capsys, tmp_path, train, text, message):
    X, y = records(10, 5)
    other = write_csv(tmp_path / "other.csv", X, np.where(y == "ill", "sick", "fine"))
    words = {"TRAIN": [train], "OTHER": [other], "BUDGET": BUDGET}
    before = sorted(tmp_path.iterdir())
    arguments = [words.get(w, [w.replace("FOLDER", str(tmp_path))]) for w in text.split()]
    assert message in refused(capsys, *itertools.chain(*arguments))
    assert sorted(tmp_path.iterdir()) == before


def test_columns_in_another_order_are_refused(capsys, tmp_path, train, model):
    path = Path(write_csv(tmp_path / "t.csv", *records(10, 5)))
    path.write_text(path.read_text().replace("f0,f1", "f1,f0"))
    for command in (["fit", train, *BUDGET, "--test", path], ["predict", model, path]):
        err = refused(capsys, *command)
        assert "column 0 must be 'f0', got 'f1'; the order differs" in err


def test_records_with_other_numbers_of_features_are_refused(capsys, tmp_path, model):
    X, y = records(10, 5, p=5)
    for path in (
        write_csv(tmp_path / "wide.csv", X, y),
        write_libsvm(tmp_path / "wide.svm", X, np.where(y == "ill", 1, -1)),
    ):
        err = refused(capsys, "predict", model, path, "--out", tmp_path / "labels")
        assert re.search("must have (3 features, got 5|the 3 columns of the model, got all)", err)
        assert ("got all of them; unknown 'f3', 'f4': labels are" in err) == ("wide.csv" in path)
    np.savez(tmp_path / "wide.npz", X=X)
    err = refused(capsys, "predict", model, tmp_path / "wide.npz")
    assert "must have 3 features, got 5" in err
    assert not (tmp_path / "labels").exists()


@pytest.mark.skipif(os.name != "posix", reason="FIFOs and links are POSIX's")
@pytest.mark.parametrize("kind", ["FIFO", "symbolic link", "device", "folder", "-"])
def test_outputs_are_regular_files_and_nothing_is_computed_otherwise(
    capsys, tmp_path, train, model, monkeypatch, kind
):
    monkeypatch.chdir(tmp_path)
    path = "-" if kind == "-" else "x"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "symbolic link":
        os.symlink(model, path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "device":
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    monkeypatch.setattr(io.reading, "_read", None)  # no file may be read
    before = {p: p.lstat().st_mode for p in tmp_path.iterdir()}
    for command in (
        ["fit", train, *BUDGET, "--out", path],
        ["predict", model, train, "--out", path],
        ["compare", train, "--plot", path],
    ):
        dash = f"{command[-2]} must be a file to write, got '-'"
        assert (f"got a {kind}" if kind != "-" else dash) in refused(capsys, *command)
    assert {p: p.lstat().st_mode for p in tmp_path.iterdir()} == before


def test_a_failing_write_leaves_nothing(capsys, tmp_path, train, monkeypatch):
    model = tmp_path / "m.npz"

    def full(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device", str(model))

    monkeypatch.setattr(np, "savez", full)
    before = sorted(tmp_path.iterdir())
    err = refused(capsys, "fit", train, *BUDGET, *QUICK, "--out", model)
    assert "No space left" in err
    assert not model.exists()
    assert sorted(tmp_path.iterdir()) == before


def test_interrupt_ends_with_130_and_writes_nothing(capsys, tmp_path, train, monkeypatch):
    def interrupted(*arguments, **parameters):
        raise KeyboardInterrupt

    monkeypatch.setattr(fit, "solve", interrupted)
    before = sorted(tmp_path.iterdir())
    run = ["fit", train, "--target", "state", *BUDGET, "--out", str(tmp_path / "m.npz")]
    assert main(run) == 130
    assert capsys.readouterr().err == "dpkern: interrupted\n"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.usefixtures("round_by_round")
def test_an_interrupted_fit_says_what_was_released(capsys, train, monkeypatch):
    stream, noise = [], dpk.NoiseStream.release

    def interrupted(self, *arguments):
        stream.append(self)
        if len(stream) == 20 + 5 + 7:  # rounds and a line, and seven
            raise KeyboardInterrupt
        return noise(self, *arguments)

    monkeypatch.setattr(dpk.NoiseStream, "release", interrupted)
    assert main(["fit", train, "--target", "state", *BUDGET, *QUICK, "--draws", "3"]) == 130
    _, *err = capsys.readouterr().err.splitlines()  # without --out, which is said
    assert err[0] == "dpkern: interrupted"
    assert re.match("dpkern: released before the failure: sum of clipped gradients: 6 x", err[1])
    assert err[2] == "dpkern: released before that: all of 1 finished draws"


def test_every_option_of_a_solver_that_is_no_flag_is_named_with_set(capsys, train):
    for name in {name for solver in SOLVERS.values() for name in solver.declaration.own}:
        if name != "rounds":
            flag = f"--{name.replace('_', '-')}"
            err = refused(capsys, "fit", train, *BUDGET, flag, "1")
            assert f"{flag}; give it as --set {name}=1" in err


def test_the_target_is_named_and_said_where_the_last_column_was_taken(capsys, train, model, test):
    for command in (["fit", train, *BUDGET], ["compare", train, *SMALL, "--no-plot"]):
        run = [*command, "--solvers" if command[0] == "compare" else "--solver", "federated_gd"]
        assert main(run) == 0
        out, err = capsys.readouterr()
        assert "\ntarget         state: classification, labels ill and well\n" in out
        taken = "no --target was given: the last column, 'state', is taken as the target\n"
        assert err.startswith(f"dpkern: {taken}")
        assert main([*run, "--target", "3"]) == 0
        out, err = capsys.readouterr()
        assert "\ntarget         state: classification" in out
        assert "no --target" not in err
    out, err = shown(capsys, ["predict", model, test, "--target", "state"])
    assert err.startswith("accuracy of state ")


def test_targets_without_a_name_are_numbered(capsys, tmp_path):
    X, y = records(60, 0)
    path = write_csv(tmp_path / "bare.csv", X, y, header=False)
    assert main(["fit", path, *BUDGET, *QUICK]) == 0
    out, err = capsys.readouterr()
    assert "target         3: classification" in out
    assert "the last column, '3', is taken" in err


def test_columns_go_by_place_only_where_that_is_stated(capsys, tmp_path, train, model):
    X, y = records(20, 3)
    bare, named = tmp_path / "bare.csv", tmp_path / "named.csv"
    write_csv(bare, X, header=False)
    err = refused(capsys, "predict", model, bare)
    assert "got none: add it, or say --no-header if the features are, in order, 'f0', 'f1'" in err
    by_place = shown(capsys, ["predict", model, bare, "--no-header"])
    assert by_place == shown(capsys, ["predict", model, write_csv(named, X)])
    write_csv(bare, X, y, header=False)
    assert "--no-header" in refused(capsys, "fit", train, *BUDGET, *QUICK, "--test", bare)


def test_columns_that_the_model_does_not_know_are_named_with_the_cure(capsys, tmp_path, model):
    X, y = records(10, 5)
    header, *rows = Path(write_csv(tmp_path / "t.csv", X)).read_text().splitlines()
    other = tmp_path / "other.csv"
    cure = "labels are named by --target NAME, other columns must leave the file"
    other.write_text("\n".join([f"id,{header}", *(f"7,{row}" for row in rows)]))
    assert f"got all of them; unknown 'id': {cure}" in refused(capsys, "predict", model, other)
    labelled = zip(y, rows, strict=True)
    other.write_text("\n".join([f"id,what,{header}", *(f"7,{label},{r}" for label, r in labelled)]))
    assert f"unknown 'id', 'what': {cure}" in refused(capsys, "predict", model, other)
    with_target = refused(capsys, "predict", model, other, "--target", "what")
    assert f"got all of them; unknown 'id': {cure}" in with_target
    other.write_text("\n".join([header.replace("f1", "g1"), *rows]))
    assert refused(capsys, "predict", model, other).endswith(
        "the 3 columns of the model, got 3; missing 'f1'; unknown 'g1'\n"
    )


def test_the_time_is_said_before_the_warning(capsys, train, monkeypatch):
    stuck = "ran its 20 rounds; little learnt; take larger step_size"
    solve = fit.solve
    monkeypatch.setattr(fit, "solve", lambda *a, **k: replace(solve(*a, **k), message=stuck))
    assert main(["fit", train, *BUDGET, *QUICK]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("result "))
    assert re.fullmatch(r"result +ran its 20 rounds in \S+ s", lines[at])
    assert lines[at + 1].strip() == "little learnt; take larger --set step_size"


def test_bounds_in_the_wrong_order_name_the_file_and_the_feature(capsys, tmp_path, train):
    ranges = tmp_path / "ranges.csv"
    for rows in ("name,lo,hi\nf0,-1,1\nf1,1,-1\nf2,-1,1\n", "lo,hi\n-1,1\n1,-1\n-1,1\n"):
        ranges.write_text(rows)
        err = refused(capsys, "fit", train, "--feature-range", ranges, *BUDGET)
        assert "ranges.csv, line 3 must have lo < hi, both finite, got 1.0 and -1.0 for " in err
        assert err.endswith("feature 'f1'\n")


def test_a_tab_is_named_by_its_word(capsys, tmp_path):
    X, y = records(60, 0)
    path = Path(write_csv(tmp_path / "t.csv", X, y))
    path.write_text(path.read_text().replace(",", "\t"))
    out, _ = shown(capsys, ["fit", path, "--sep", "tab", *BUDGET, *QUICK])
    assert "3 features" in out


def test_compare_shows_the_accuracy_of_the_largest_class(
    capsys, tmp_path, train, test, monkeypatch
):
    drawn = []
    monkeypatch.setattr(compare, "plot_compare", lambda *a, level, **k: drawn.append(level))
    out, _ = shown(capsys, ["compare", train, *SMALL, "--solvers", "spider", "--test", test])
    _, y = records(80, 1)
    share = max(np.mean(y == "ill"), np.mean(y == "well"))
    assert re.search(rf"\nmajority class +- +- +{share:.4f} +- +- +- +-\n", out)
    assert drawn == [("majority class", share)]
    assert "300 training records" in out
    assert "80 records of test.csv" in out
    X, _ = records(60, 0)
    numbers = write_csv(tmp_path / "n.csv", X, X[:, 0] + 0.25)
    out, _ = shown(capsys, ["compare", numbers, *SMALL, "--solvers", "spider"])
    assert "majority" not in out
    assert drawn == [("majority class", share), None]


# the command line's words


@for_each(
    ("message", "said"),
    [
        ("clip is -1.0; it must be positive", "--clip is -1.0; it must be positive"),
        ("step_size='auto' needs row_bound", "--set step_size=auto needs --row-bound"),
        ("l1 beside the regularizer 'pl'", "--l1 beside the regularizer 'pl'"),
        ("how='by_label' needs two labels", "--split by_label needs two labels"),
        ("trust must be 'silo' in x, got 'y'", "--trust must be 'silo' in x, got 'y'"),
        ("the data's task is 'regression'", "the data's task is 'regression'"),
        ("commas (or what sep says), got 1", "commas (or what --sep says), got 1"),
        ("the clip norm and a loss of the table", "the clip norm and a loss of the table"),
        ("/a/row_bound/prox_step.csv: column 'row_bound'",) * 2,
        ("m.npz: No such file or directory",) * 2,
        ("path.csv, line 2: a blank line",) * 2,
        ("with task='regression' silo_column", "with --task regression --silo-column"),
        ("X must be finite, got 2", "the features must be finite, got 2"),
        ("public_size goes with neighbours='add_remove'",
         "--set public_size goes with --set neighbours=add_remove"),
    ],
)  # fmt: skip
def test_messages_name_options_and_not_arguments(message, said):
    fit = _parsed(["fit", "DATA"])
    assert _arguments.in_options(message, fit) == said
    assert _arguments.in_options(said, fit) == said


def test_compare_names_its_own_options():
    words = functools.partial(_arguments.in_options, arguments=_parsed(["compare"]))
    assert words("epsilon is 0") == "--epsilons is 0"
    assert words("needs trust='local'") == "needs --solvers NAME:local"


def test_more_than_two_labels_are_explained_without_options_that_do_not_exist(capsys, tmp_path):
    X, _ = records(30, 0)
    path = write_csv(tmp_path / "three.csv", X, np.resize(["a", "b", "c"], 30))
    err = refused(capsys, "fit", path, *BUDGET)
    assert "task=" not in err
    assert err.endswith("more labels need --classes A,B,C\n")
    assert "classes=" not in err
    path = write_csv(tmp_path / "three.csv", X, np.resize([1, 2, 3], 30))
    assert "targets need --task regression" in refused(capsys, "fit", path, *BUDGET)
    path = write_csv(tmp_path / "one.csv", X, np.resize(["a"], 30))
    assert "name both by --classes NEGATIVE,POSITIVE" in refused(capsys, "fit", path, *BUDGET)
    shown(capsys, ["fit", path, *BUDGET, *QUICK, "--classes", "b,a"])


def test_solvers_get_nothing_but_what_was_given_and_a_loss(capsys, train, monkeypatch):
    """The command line has no defaults of its own, but where the library asks for a value."""
    seen = []

    def recorded(name, data, **parameters):
        seen.append((name, parameters, data.row_bound, data.intercept))
        raise ValueError("enough")

    for module in (fit, _comparison):
        monkeypatch.setattr(module, "solve", recorded)
    for solver in SOLVERS:
        for budget in (BUDGET, ["--no-privacy"]):
            assert main(["fit", train, "--solver", solver, *budget]) == 2
            name, parameters, row_bound, intercept = seen.pop()
            fixed = {k: parameters.pop(k) for k in ("budget", "rng", "progress")}
            assert (name, parameters) == (solver, {"loss": "logistic"})
            assert fixed["rng"] is None
            assert (row_bound, intercept) == (1.0, True)
        assert main(["compare", train, "--solvers", solver, "--no-plot"]) == 2
        for name, parameters, *_ in seen:
            assert name == solver
            assert parameters.keys() == {"budget", "rng", "callback", "loss", "trust"}
        seen.clear()


def test_a_remark_stands_above_a_progress_bar(capsys):
    with tqdm(total=3, desc="gradient_descent, central"):
        _output.remark("warning: little learnt")
    before, rest = capsys.readouterr().err.split("dpkern: warning: little learnt\n")
    assert before.endswith("\r")
    assert before.split("\r")[-2].strip() == ""  # the bar is cleared
    assert "gradient_descent, central:" in rest


def test_warnings_of_the_library_are_said(capsys, train, monkeypatch):
    solve = fit.solve

    def warns(*arguments, **parameters):
        warnings.warn("nothing was learnt: step_size is too small", UserWarning, stacklevel=2)
        return solve(*arguments, **parameters)

    monkeypatch.setattr(fit, "solve", warns)
    _, err = shown(capsys, ["fit", train, *BUDGET, *QUICK])
    assert err == "dpkern: warning: nothing was learnt: --set step_size is too small\n"


@for_each("columns", [60, 100])
def test_long_lines_fold_at_the_width_of_a_terminal(capsys, train, monkeypatch, columns):
    fit = ["fit", train, *BUDGET, *QUICK]
    assert main(fit) == 0
    plain = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(fit) == 0
    folded = capsys.readouterr().out
    assert max(map(len, folded.splitlines())) <= columns
    seconds = re.compile("in [^ ]* s|started \\S*")
    assert seconds.sub("", " ".join(folded.split())) == seconds.sub("", " ".join(plain.split()))
    start = folded.splitlines().index("Privacy certificate")
    rows = folded.splitlines()[start + 1 :]
    assert all(re.match(r"  \w|              \S", row) for row in rows)  # names, or continued


@for_each("solver", SOLVERS)
def test_help_and_info_list_the_options_of_a_solver(capsys, solver):
    listed, _ = shown(capsys, ["info", solver])
    assert max(map(len, listed.splitlines())) <= 88
    listed = re.sub(r"\n {22}(?=\S)", " ", listed)
    helped, _ = shown(capsys, ["fit", "--help", "--solver", solver])
    assert f"Options of {solver}" in helped
    assert re.search(r"--trust TRUST .*\(default:\s+central\)", helped)
    declared = SOLVERS[solver].declaration
    for name, option in declared.own.items():
        found = re.search(rf"^  {name} +(\S.*); default: (.*)$", listed, re.MULTILINE)
        assert found[2] == str(option.default)
        assert re.match(r"\S.*\. \S", found[1])  # a sentence and a type
        assert f"  {name} " in helped
    for name in ("data", "budget", "model", "rng", "progress", "callback"):
        assert re.search(rf"^  {name} ", listed, re.MULTILINE) is None


def test_a_reader_that_goes_away_is_no_traceback(tmp_path, model):
    path = tmp_path / "many.npz"
    np.savez(path, X=np.zeros((400_000, 3)))  # far more labels than a pipe holds
    command = [sys.executable, "-m", "dpkern", "predict", str(model), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        assert process.wait() == 141
    assert err == b""


@for_each(
    ("text", "value"),
    [
        *(("3", 3), ("-2", -2), ("1e-3", 1e-3), ("True", True), ("false", False)),
        *(("None", None), ("0.1,2,auto", [0.1, 2, "auto"]), ("auto", "auto")),
    ],
)
def test_values_of_set(text, value):
    found = _arguments.value(text)
    assert found == value
    assert type(found) is type(value)


@for_each("closed", [("stdout",), ("stderr",), ("stdin", "stdout", "stderr")])
@for_each("command", ["info", "plan", "fit"])
def test_closed_streams_cost_only_what_is_printed(tmp_path, monkeypatch, closed, command):
    rows = "".join(f"{i / 50 - 1},{i % 2}\n" for i in range(100))
    (tmp_path / "a.csv").write_text(f"a,y\n{rows}")
    model = tmp_path / "m.npz"
    options = {
        "info": "",
        "plan": "--records 100 --features 2 --epsilon 1 --delta 1e-4",
        "fit": f"{tmp_path / 'a.csv'} --out {model} --target y --classes 0,1 --epsilon 3 "
        "--delta 1e-4 --row-bound 2 --rounds 3",
    }
    arguments = [command, *options[command].split()]
    opened = []
    with monkeypatch.context() as patched:
        for name in closed:
            patched.setattr(sys, name, None)
        assert main(arguments) == 0
        opened = [getattr(sys, name) for name in closed]
    for stream in opened:
        stream.close()
    assert model.exists() == (command == "fit")


def test_plan_forecasts_standard_errors(capsys):
    sizes = ["--records", "50000", "--features", "4", "--epsilon", "1", "--delta", "1e-6"]
    assert main(["plan", *sizes, "--inference"]) == 0
    assert "standard errors grow by about 1." in capsys.readouterr().out
    assert main(["plan", *sizes, "--inference", "--rate", "0.01"]) == 0
    assert "no standard errors are to be expected" in capsys.readouterr().out
    assert main(["plan", *sizes, "--rate", "0.01"]) != 0
    assert "--rate must be left out without --inference" in capsys.readouterr().err


@for_each(
    ("target", "inference"),
    [("two", False), ("several", False), ("real", False), ("two", True), ("real", True)],
)
def test_a_plan_of_a_schema_has_the_settings_of_its_fits(capsys, tmp_path, target, inference):
    rng, n = np.random.default_rng(0), 3000
    kinds = {"two": ["no", "yes"], "several": ["a", "b", "c"], "real": None}
    labels = kinds[target]
    y = rng.uniform(0.0, 9.0, n) if labels is None else rng.choice(labels, n)
    last = {"lo": 0, "hi": 9} if labels is None else {"classes": labels}
    columns = [
        {"name": "age", "kind": "number", "lo": 20, "hi": 90, "missing": 50},
        {"name": "sex", "kind": "category", "categories": ["f", "m"]},
        {"name": "y", "kind": "target", **last},
    ]
    schema = dpk.Schema.from_dict({"dpkern_schema": 1, "columns": columns})
    schema.save(tmp_path / "schema.json")
    raw = {"age": rng.uniform(20.0, 90.0, n), "sex": rng.choice(["f", "m"], n), "y": y}
    sizes = ["plan", "--records", str(n), "--epsilon", "1", "--delta", "1e-6"]
    seen = []
    with pytest.MonkeyPatch.context() as patched:
        module = sys.modules["dpkern.cli.plan"]
        patched.setattr(module, "plan", lambda *a, **how: seen.append(dpk.plan(*a, **how)))
        how = ["--inference"] if inference else []
        out, _ = shown(capsys, [*sizes, "--schema", tmp_path / "schema.json", *how])
    assert "schema.json, 4 encoded features, every level of a category being one" in out
    assert "and the constant: 5 coefficients" in out
    (found,) = seen
    budget, data = dpk.Budget(epsilon=1.0, delta=1e-6), schema.silo_data(raw)
    if inference:
        settings, solver, how = found.forecast.settings, "newton_inference", {"inference": True}
    else:
        settings, solver, how = found.best.settings, found.best.solver, {}
    result = dpk.solve("auto", data, budget=budget, rng=0, **how)
    assert result.solver == solver
    for name, value in settings.items():
        expected = value if isinstance(value, str) else pytest.approx(value, rel=1e-12)
        assert result.parameters[name] == expected, name


def test_a_plan_takes_a_schema_or_a_number_of_features(capsys, tmp_path):
    columns = [
        {"name": "age", "kind": "number", "lo": 20, "hi": 90},
        {"name": "id", "kind": "person"},
        {"name": "ill", "kind": "target", "classes": ["no", "yes"]},
    ]
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"dpkern_schema": 1, "columns": columns}))
    sizes = ["plan", "--records", "3000", "--epsilon", "1", "--delta", "1e-6"]
    assert "give --schema FILE.json, or --features P" in refused(capsys, *sizes)
    for option in (["--features", "3"], ["--row-bound", "2"], ["--classes", "2"]):
        said = refused(capsys, *sizes, "--schema", path, *option)
        assert f"{option[0]} was given, and --schema says it" in said
    said = refused(capsys, *sizes, "--schema", path, "--inference")
    assert "--inference must be left out with a column of kind person" in said
    path.write_text(json.dumps({"dpkern_schema": 1, "columns": columns[:2]}))
    assert 'must hold a column of kind "target"' in refused(capsys, *sizes, "--schema", path)
    columns[2:] = [
        {"name": "t", "kind": "target", "intervals": [0, 1, 2]},
        {"name": "died", "kind": "event", "classes": ["no", "yes"]},
    ]
    path.write_text(json.dumps({"dpkern_schema": 1, "columns": columns}))
    assert "times to an event" in refused(capsys, *sizes, "--schema", path)


def test_a_fit_draws_the_forest_plot_of_its_estimates(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    age = rng.uniform(20.0, 90.0, 4000)
    ill = np.where(rng.logistic(size=4000) < (age - 55.0) / 20.0, "yes", "no")
    rows = "\n".join(f"{a:.1f},{y}" for a, y in zip(age, ill, strict=True))
    (tmp_path / "ill.csv").write_text(f"age,ill\n{rows}\n")
    columns = [
        {"name": "age", "kind": "number", "lo": 20, "hi": 90},
        {"name": "ill", "kind": "target", "classes": ["no", "yes"]},
    ]
    schema, picture = tmp_path / "schema.json", tmp_path / "forest.png"
    schema.write_text(json.dumps({"dpkern_schema": 1, "columns": columns}))
    file = ["fit", tmp_path / "ill.csv", "--schema", schema, "--noise-seed", "0", "--plot", picture]
    budget = ["--epsilon", "4", "--delta", "1e-6"]
    assert "--plot needs --inference" in refused(capsys, *file, *budget)
    path = tmp_path / "forest.pdf"
    assert "png" in refused(capsys, *file[:-1], path, *budget, "--inference")
    few = ["--epsilon", "0.001", "--delta", "1e-6"]
    out, err = shown(capsys, [*file, *few, "--inference"])
    assert "none was drawn: no coefficient has an interval" in out
    assert "no standard errors are to be expected" in err
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
        out, _ = shown(capsys, [*file, *budget, "--inference"])
        assert "odds ratio" in out
        assert "none was drawn: matplotlib is missing" in out
    assert not picture.exists()
    out, _ = shown(capsys, [*file, *budget, "--inference"])
    assert f"picture        {picture}" in out
    assert picture.stat().st_size > 1000


def test_counts_of_a_file_have_rate_ratios(capsys, tmp_path):
    rng = np.random.default_rng(0)
    age, years = rng.uniform(20.0, 90.0, 20_000), rng.uniform(0.3, 1.0, 20_000)
    claims = rng.poisson(0.4 * years * np.exp((age - 55.0) / 70.0))
    rows = "\n".join(f"{a:.1f},{t:.3f},{y}" for a, t, y in zip(age, years, claims, strict=True))
    (tmp_path / "claims.csv").write_text(f"age,years,claims\n{rows}\n")
    columns = [
        {"name": "age", "kind": "number", "lo": 20, "hi": 90},
        {"name": "years", "kind": "exposure", "lo": 0.1, "hi": 1},
        {"name": "claims", "kind": "target", "lo": 0, "hi": 4},
    ]
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"dpkern_schema": 1, "columns": columns}))
    file = ["fit", tmp_path / "claims.csv", "--schema", schema, "--epsilon", "2", "--delta", "1e-6"]
    means = ["--loss", "poisson", "--mean-range", "0.01,1"]
    out, _ = shown(capsys, [*file, *means, "--inference", "--noise-seed", "0"])
    assert "rate ratio" in out
    (line,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["age"]]
    assert abs(float(line[1]) - 1.0 / 70.0) < 4.0 * float(line[2])
    assert "--mean-range must be left out without" in refused(capsys, *file, *means[2:])
    assert "--mean-range must have 0 < lo" in refused(capsys, *file, *means[:3], "1,0.5")
    plan = ["plan", "--records", "20000", "--features", "1", *file[4:], *means, "--inference"]
    out, _ = shown(capsys, [*plan, "--target-bound", "0,4", "--rate", "0.2"])
    assert "grow by about" in out
    assert "a bound of targets (--target-bound 0,Y)" in refused(capsys, *plan)
    plan[plan.index("--loss") :] = ["--loss", "negative_binomial", "--inference"]
    assert "a bound of targets (--target-bound 0,Y)" in refused(capsys, *plan)
    out, _ = shown(capsys, [*plan, "--target-bound", "0,4", "--rate", "0.2"])
    assert "grow by about" in out


def test_costs_and_events_of_a_file_have_ratios(capsys, tmp_path):
    rng = np.random.default_rng(0)
    age = rng.uniform(20.0, 90.0, 20_000)
    days = rng.gamma(4.0, 0.5 * np.exp((age - 55.0) / 70.0))
    hazards = 0.2 * np.exp((age - 55.0) / 70.0)
    dead = np.where(rng.random(len(age)) < -np.expm1(-hazards), "yes", "no")
    rows = "\n".join(f"{a:.1f},{t:.3f},{e}" for a, t, e in zip(age, days, dead, strict=True))
    (tmp_path / "stays.csv").write_text(f"age,days,dead\n{rows}\n")
    number = {"name": "age", "kind": "number", "lo": 20, "hi": 90}
    targets = {
        "days": ({"kind": "target", "lo": 0, "hi": 10}, ["gamma", "--mean-range", "1,4"]),
        "dead": ({"kind": "target", "classes": ["no", "yes"]}, ["cloglog"]),
    }
    for (name, (kind, loss)), head in zip(
        targets.items(), ("ratio of means", "hazard ratio"), strict=True
    ):
        schema = tmp_path / f"{name}.json"
        other = {"name": "dead" if name == "days" else "days", "kind": "ignore"}
        columns = [number, {"name": name} | kind, other]
        schema.write_text(json.dumps({"dpkern_schema": 1, "columns": columns}))
        budget = ["--epsilon", "4", "--delta", "1e-6", "--noise-seed", "0", "--inference"]
        file = ["fit", tmp_path / "stays.csv", "--schema", schema, *budget, "--loss", *loss]
        out, _ = shown(capsys, file)
        assert head in out
        (line,) = [line.split() for line in out.splitlines() if line.split()[:1] == ["age"]]
        assert abs(float(line[1]) - 1.0 / 70.0) < 4.0 * float(line[2])


def test_a_remark_that_nobody_reads_ends_no_run(monkeypatch):
    class Broken(StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    _output.remark("the released gradients did not shrink")


# example, and schemas from code books


def test_the_commands_of_the_example_run_in_its_folder(capsys, tmp_path, monkeypatch, source_tree):
    shown(capsys, ["example", tmp_path / "study"])
    monkeypatch.chdir(tmp_path / "study")
    schema = Path("schema.json").read_text()
    commands = Path("commands.sh").read_text().replace("\\\n", " ").splitlines()[1:]
    assert example.COMMANDS in (source_tree / "docs" / "start" / "first.md").read_text()
    with warnings.catch_warnings(action="ignore"):
        for command in commands:
            assert main(shlex.split(command)[1:]) == 0, command
    assert Path("schema.json").read_text() == schema
    assert "sex" in Path("table.csv").read_text()
    assert len(Path("predictions.csv").read_text().splitlines()) == 11
    assert dpk.Accountant("study.ledger").spent > 0.9
    assert "FOLDER must be new or empty" in refused(capsys, "example", tmp_path / "study")


def code_book(tmp_path, *rows, records="age,sex,ill\n20,F,no\n30,M,yes\n"):
    header = "name,kind,lo,hi,scale,categories,missing\n"
    (tmp_path / "book.csv").write_text(header + "".join(f"{row}\n" for row in rows))
    (tmp_path / "raw.csv").write_text(records)
    return ["schema", tmp_path / "raw.csv", "--code-book", tmp_path / "book.csv"]


BOOK = ("age,number,18,90,,,", "sex,,,,,F | M,missing", "ill,target,,,,no|yes,")


def test_a_code_book_gives_a_schema_that_says_nothing_of_records(capsys, tmp_path):
    out, err = shown(capsys, [*code_book(tmp_path, *BOOK), "--out", tmp_path / "s.json"])
    schema = dpk.Schema.load(tmp_path / "s.json")
    expected = dpk.Schema(
        [
            dpk.data.Column("age", "number", lo=18, hi=90),
            dpk.data.Column("sex", "category", categories=["F", "M"], missing="missing"),
            dpk.data.Column("ill", "target", classes=["no", "yes"]),
        ]
    )
    assert schema.digest == expected.digest
    assert err == ""
    assert "draft of 3 columns" in out


def test_what_a_code_book_does_not_provide_for_is_said_without_values(capsys, tmp_path):
    records = "age,sex,ill,ward\nancient,F,perhaps,7731\n30,Q5,yes,7732\n500,M,no,7733\n"
    book = [*BOOK, "weight,number,30,200,,,"]
    _, err = shown(capsys, code_book(tmp_path, *book, records=records))
    for text in (
        "not in the code book, and drafted to be ignored: ward",
        "in the code book and not in the file, and left out: weight",
        "column 'age' must hold numbers, got text",
        "(the first is in line 2)",
        "column 'ill', the target, must hold classes",
        "1 of 3 in column 'sex'",
    ):
        assert text in err
    assert not re.search("ancient|perhaps|773|Q5|500", err)


@for_each(
    ("row", "text"),
    [
        ("age,numbr,18,90,,,", "line 2: kind of column 'age' must be one of .*'number'?"),
        ("age,number,18,x,,,", "line 2: hi of column 'age' must be a number, got 'x'"),
        ("age,number,90,18,,,", "line 2: lo and hi of column 'age' must be finite with lo < hi"),
        ("age,number,18,90,,a|b,", "line 2: categories of column 'age' must be blank"),
        ("age,number,18,90", "line 2: a row must have as many fields as the header"),
        ("age,number,18,90,,,,x", "line 2: a row must have as many fields as the header"),
    ],
)
def test_rows_that_describe_no_column_are_named(capsys, tmp_path, row, text):
    assert re.search(text, refused(capsys, *code_book(tmp_path, row)))


def test_other_books_and_options_are_refused(capsys, tmp_path):
    call = code_book(tmp_path, *BOOK)
    assert "--target was given" in refused(capsys, *call, "--target", "ill")
    (tmp_path / "book.csv").write_text("column,kind\nage,number\n")
    assert "line 1 must hold the column 'name'" in refused(capsys, *call)
    (tmp_path / "book.csv").write_text("name,min\nage,3\n")
    assert "line 1" in refused(capsys, *call)
    blank, err = shown(capsys, code_book(tmp_path, "age,number,,,,,", *BOOK[1:]))
    assert "fill in the blanks" in err
    assert '"lo": null' in blank
