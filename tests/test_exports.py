"""What a model becomes for others: tables of coefficients, ONNX graphs, a paragraph of methods."""

import csv
import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.cli import main
from dpkern.data import Column
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.methods import _citation

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
SCHEMA = dpk.Schema(
    [
        Column("age", "number", lo=20, hi=90),
        Column("pay", "number", lo=0, hi=1000, scale="log1p", missing=40),
        Column("ward", "category", categories=["a", "b", "c"]),
        Column("ill", "target", classes=["no", "yes"]),
    ],
    row_bound=1.6,
)


def described(n=3000, seed=0):
    rng = np.random.default_rng(seed)
    frame = {
        "age": rng.uniform(20, 90, n),
        "pay": np.where(rng.random(n) < 0.1, np.nan, rng.uniform(0, 1000, n)),
        "ward": rng.choice(["a", "b", "c"], n),
    }
    return frame | {"ill": np.where(frame["age"] + rng.normal(0, 20, n) > 55, "yes", "no")}


@pytest.fixture(scope="module")
def model():
    return dpk.solve("auto", SCHEMA.silo_data(described()), budget=BUDGET, rng=1)


# ------------------------------------------------------------------------------ coefficients


def test_saved_coefficients_are_those_of_the_table(model, tmp_path):
    table = model.coefficients()
    table.save(tmp_path / "c.csv")
    table.save(tmp_path / "c.json")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    values = json.loads((tmp_path / "c.json").read_text())
    assert values["note"] == table.note
    for row, entry, own in zip(rows, values["coefficients"], table, strict=True):
        assert (row["name"], row["unit"]) == (own.name, "log odds")
        assert float(row["coefficient"]) == entry["coefficient"] == own.coefficient
        assert float(row["noise_std"]) == entry["noise_std"] == own.noise_std


@for_each("trust", ["central", "silo"])
def test_saved_estimates_are_those_of_the_summary(trust, tmp_path, capsys):
    """The numbers, units and contrasts of `summary`, in a frame, a CSV file and a JSON file."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (4000, 2))
    X = np.column_stack([X, X[:, 0]])  # of which two coefficients are hidden
    y = np.where(X[:, 0] + rng.logistic(size=4000) > 0.0, 1, 0)
    data = dpk.SiloData.split(X, y, 2, feature_range=(-1.0, 1.0), classes=[0, 1], intercept=True)
    budget = dpk.Budget(epsilon=8.0, delta=1e-6)
    result = dpk.solve("auto", data, budget=budget, inference=True, trust=trust, rng=0)
    result.save(tmp_path / "m.npz")
    for name in ("e.csv", "e.json"):
        assert main(["export", str(tmp_path / "m.npz"), str(tmp_path / name)]) == 0
    assert "estimates, standard errors and intervals" in capsys.readouterr().out
    summary, frame = result.summary(), result.summary().to_frame()
    rows = list(csv.DictReader((tmp_path / "e.csv").read_text().splitlines()))
    values = json.loads((tmp_path / "e.json").read_text())
    assert values["notes"] == list(summary.notes)
    assert list(rows[0]) == list(values["estimates"][0]) == list(frame.columns)
    assert list(frame.columns)[: len(summary[0])] == list(summary[0]._fields)
    for row, entry, own in zip(rows, values["estimates"], summary, strict=True):
        assert row["name"] == entry["name"] == own.name
        assert float(row["level"]) == entry["level"] == 0.95
        for column in ("estimate", "std_error", "noise_std", "z", "p_value", "low", "high"):
            known = math.isfinite(getattr(own, column))
            assert entry[column] == (getattr(own, column) if known else None)
            assert row[column] == (repr(getattr(own, column)) if known else "")
        if math.isfinite(own.low):
            assert entry["odds_ratio_low"] == math.exp(own.low)
            assert entry["odds_ratio_high"] == math.exp(own.high)
    assert any(math.isnan(row.std_error) for row in summary)
    assert any(math.isfinite(row.std_error) for row in summary[1:])


def test_other_endings_are_refused_and_nothing_is_written(model, tmp_path):
    with pytest.raises(ValueError, match=r"path must end in \.csv or \.json, got"):
        model.coefficients().save(tmp_path / "c.txt")
    assert not list(tmp_path.iterdir())


def test_units_are_those_of_the_task():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (500, 2)), rng.uniform(-1, 1, 500)
    data = dpk.SiloData(X, y, [0, 500], row_bound=2.0, task="regression", target_bound=1.0)
    assert dpk.solve("ridge", data, budget=BUDGET).coefficients().unit == "target"
    data = dpk.SiloData(X, np.sign(y), [0, 500], row_bound=2.0)
    result = dpk.solve("gradient_descent", data, budget=None, loss="smoothed_hinge", rounds=3)
    assert result.coefficients().unit == "margin"
    result, _ = of_task("counts")
    assert result.coefficients().unit == "log mean"
    assert "multiplied by exp(coefficient)" in result.coefficients().note
    assert "odds" not in str(result)


def test_methods_of_counts_speak_of_means_that_were_released():
    result, _ = of_task("counts")
    text = result.methods()
    assert "We fitted Poisson regression" in text
    assert "level of the predicted means was estimated" in text
    assert "robabilities" not in text
    unreleased = replace(result, calibration=replace(result.calibration, level=0.0))
    assert "level" not in unreleased.methods()


# ------------------------------------------------------------------------------ ONNX


def of_task(task):
    rng = np.random.default_rng(0)
    X = rng.normal(0.0, 1.5, (600, 4))  # longer than the row bound, some of them
    z = X @ [1.0, -1.0, 0.5, 0.0]
    how, labels = {"row_bound": 2.0}, np.sign(z)
    solver = {"rounds": 20, "budget": BUDGET, "rng": 0}
    if task == "regression":
        labels, solver["loss"] = 3.0 + z, "squared"
        how |= {"task": "regression", "target_bound": (-5.0, 11.0), "intercept": True}
    elif task == "counts":
        labels, solver["loss"] = rng.poisson(np.exp(0.3 * z)), dpk.losses.Poisson(-2.0, 1.0, 5.0)
        solver |= {"solver": "gradient_descent", "rounds": "auto"}
        how |= {"task": "regression", "intercept": True}
    elif task == "probit":
        solver["loss"] = "probit"
        how |= {"intercept": True}
    elif task == "hinge":
        solver["loss"] = "smoothed_hinge"
        how |= {"feature_range": (-1.0, 1.0), "intercept": True}
    elif task in ("relu", "tanh"):
        labels = np.digitize(z, [-1.0, 1.0]) + 7
        how |= {"task": "multiclass", "classes": [7, 8, 9], "feature_range": (-2.0, 2.0)}
        solver["model"] = dpk.MLP(hidden=(6, 5), activation=task, loss="softmax")
    elif task == "softmax":
        labels = np.digitize(z, [-1.0, 1.0])
        how |= {"task": "multiclass", "classes": [0, 1, 2]}
        solver |= {"model": dpk.MLP(hidden=()), "budget": dpk.Budget(epsilon=4.0, delta=1e-6)}
    elif task == "margin":
        labels = np.where(z > 0, "ill", "well")
        solver["model"] = dpk.MLP(hidden=(3,), loss="logistic")
    data = dpk.SiloData(X, labels, [0, 600], **how)
    return dpk.solve(solver.pop("solver", "minibatch_sgd"), data, **solver), X


@for_each(
    "task",
    [
        *("regression", "counts", "hinge", "probit", "plain"),
        *("relu", "tanh", "softmax", "margin", "schema"),
    ],
)
def test_onnx_graphs_predict_as_the_model(task, tmp_path, model):
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    if task == "schema":
        result, X = model, SCHEMA.encode(described(200, 1))
        assert result.calibration is not None
    else:
        result, X = of_task(task)
        assert (result.calibration is not None) == (task in ("softmax", "counts", "plain"))
    made = result.to_onnx(tmp_path / "m.onnx")
    onnx.checker.check_model(made, full_check=True)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": np.asarray(X, float)}), strict=True))
    if result.classes is None:
        assert names == ["prediction"]
        np.testing.assert_allclose(found["prediction"], result.predict(X), rtol=1e-6, atol=1e-6)
        return
    np.testing.assert_allclose(found["decision"], result.decision_function(X), atol=1e-6)
    assert found["label"].tolist() == result.predict(X).tolist()
    assert ("probabilities" in names) == result.predicts_probabilities
    if result.predicts_probabilities:
        np.testing.assert_allclose(found["probabilities"], result.predict_proba(X), atol=1e-6)
    assert session.run(None, {"X": np.zeros((1, X.shape[1]))})[0].shape == (1,)
    props = session.get_modelmeta().custom_metadata_map
    assert len(json.loads(props["feature_names"])) == X.shape[1]
    assert props["model"] == str(result.privacy.model)


def test_without_onnx_the_cure_is_said(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'dpkern\[onnx\]'"):
        model.to_onnx(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------ methods


def test_the_paragraph_has_the_numbers_of_the_run(model):
    text = model.methods()
    paragraph, *references = text.split("\n")
    for part in (
        "We fitted logistic regression on 6 features of 3000 records with the solver",
        f"in {model.n_rounds} rounds",
        f"clipped to the norm {model.privacy.declared['clip']:.4g}",
        "epsilon 1 at delta 1e-06, mu 0.2367",
        "for one record",
        "under central trust",
        f"schema {SCHEMA.digest[:19]}",
        "recalibrated within the same budget",
        "nothing holds, as this noise can be computed again".capitalize(),  # rng was given
    ):
        assert part in paragraph
    assert references[0].startswith("[1] Central trust: Wang, Ye, Xu")
    assert references[1].startswith("[2] Dong, Roth, Su")


def test_a_run_without_noise_claims_nothing():
    rng = np.random.default_rng(0)
    data = dpk.SiloData(
        rng.uniform(-1, 1, (90, 2)), np.resize([-1, 1], 90), [0, 30, 60, 90], row_bound=2
    )
    text = dpk.solve("gradient_descent", data, budget=None, rounds=3).methods()
    assert "90 records in 3 silos" in text
    assert "no privacy guarantee" in text
    assert "differentially private" not in text.replace('"Differentially', "").split("[1] ")[0]


@for_each("solver", SOLVERS)
def test_every_solver_cites_its_papers(solver):
    text = _citation(solver)
    assert re.search(r", [\"A-Z].*(19|20)\d\d", text) or "Huang" in text
    assert "\n" not in text


# ------------------------------------------------------------------------------ the command


def test_the_command_writes_what_the_ending_says(model, tmp_path, capsys):
    model.save(tmp_path / "m.npz")
    for name, start in (("c.csv", "name,coefficient"), ("c.json", "{"), ("p.txt", "We fitted")):
        assert main(["export", str(tmp_path / "m.npz"), str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(start)
    assert main(["export", str(tmp_path / "m.npz"), str(tmp_path / "c.pdf")]) == 2
    assert "FILE must end in .csv, .json, .onnx, .txt" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "m.npz"), str(tmp_path / "m.npz")]) == 2
