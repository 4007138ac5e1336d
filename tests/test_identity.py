"""A certificate names its model, its start, what people call it, and where bounds are from."""

import hashlib
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused
from parties import Study
from released_data import data

import dpkern as dpk
from dpkern import estimators, selection
from dpkern._json import model_digest
from dpkern.cli import main
from dpkern.data import Column, Schema
from dpkern.data.labels import LABELS_READ
from dpkern.privacy import charged
from dpkern.privacy.certificate import report
from dpkern.privacy.certificate.certificate import NOT_STATED, READ, start_time
from dpkern.privacy.certificate.page import page
from dpkern.solvers.base import run as run_module
from dpkern.solvers.base.calibration import Calibration, Temperature
from dpkern.solvers.base.outcome import stored_model
from dpkern.verification import models as verified

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
FEW = {"rounds": 2, "clip": 1.0, "step_size": 0.5}


def fitted(records="dense", solver="gradient_descent", **options):
    held = data(records) if isinstance(records, str) else records
    return dpk.solve(solver, held, **{"budget": BUDGET, "rng": 1, **FEW, **options})


def raw(n=60):
    return {"age": [float(20 + i % 60) for i in range(n)], "sex": ["f", "m"] * (n // 2),
            "out": ["ill", "well", "well"] * (n // 3)}  # fmt: skip


def described(**age):
    columns = [
        Column("age", "number", lo=18, hi=90, **age),
        Column("sex", "category", categories=["f", "m"]),
        Column("out", "target", classes=["well", "ill"]),
    ]
    return Schema(columns)


def calibrated():
    """A run with a line to log odds, which was released."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (3000, 3))
    y = np.where(X[:, 0] + 0.3 * rng.standard_normal(3000) > 0.0, "ill", "well")
    held = dpk.SiloData.split(X, y, 1, classes=["well", "ill"], feature_range=(-1, 1),
                              intercept=True, seed=0)  # fmt: skip
    result = dpk.solve("gradient_descent", held, budget=BUDGET, rng=1)
    assert result.calibration is not None
    return result


def network(**options):
    how = {"solver": "minibatch_sgd", "model": dpk.MLP(hidden=(3, 2), **options)}
    return fitted("dense-multiclass", **how)


class Own(dpk.Oracle):
    """A linear model of the user's own."""

    name = "own"

    def dim(self, data):
        return data.n_features

    def gradients(self, w, X, y):
        return (X @ w - y)[:, np.newaxis] * X

    def outputs(self, w, X):
        return X @ w


def of_labels(*labels):
    held = data("dense")
    y = np.where(held.y > 0.0, labels[1], labels[0])
    return fitted(dpk.SiloData(held.X, y, [0, 60], classes=labels))


MODELS = {
    "linear": fitted,
    "range": lambda: fitted("range"),
    "sparse": lambda: fitted("csr"),
    "regression": lambda: fitted("dense-regression", loss="squared"),
    "network": network,
    "own": lambda: fitted("dense-model", "minibatch_sgd", model=Own()),
    "schema": lambda: fitted(described().silo_data(raw())),
    "calibrated": calibrated,
    "integers": lambda: of_labels(0, 1),
    "large integers": lambda: of_labels(2**60, 2**60 + 1),
    "texts": lambda: of_labels("né", "0"),
    "truths": lambda: of_labels(False, True),
    "bytes": lambda: of_labels(b"a", b"b"),
    "halves of characters": lambda: of_labels("\ud800", "b"),
}


def failed(*given, **how):
    """What verify finds wrong."""
    return [check.what for check in dpk.verify(*given, **how).checks if not check.ok]


# ---------------------------------------------------------------- the model


@for_each("kind", MODELS)
def test_verify_computes_the_digest_of_a_model_file(kind, tmp_path):
    result = MODELS[kind]()
    path = tmp_path / "model.npz"
    result.save(path)
    found = dpk.verify(path)
    assert found.ok, str(found)
    (check,) = (check for check in found.checks if check.what == "model")
    assert check.stated == result.privacy.model[:19]
    assert verified.digest(verified.predicting(*read(path))) == result.privacy.model
    assert dpk.load(path).privacy.model == result.privacy.model


def read(path):
    header, arrays = verified.read_model(path, json.loads)
    return dpk.verification._numbers(header), arrays


def test_fits_of_other_records_have_other_certificates():
    held = data("dense")
    other = dpk.SiloData(-held.X, held.y, held.offsets, intercept=True, row_bound=2.0)
    first, second = fitted(rng=None).privacy, fitted(other, rng=None).privacy
    assert first != second
    assert replace(first, model=second.model) == second


def flipped(value):
    """Equal but for the last bit."""
    return np.nextafter(value, math.inf)


def of_transform(**changes):
    return lambda result: {"transform": replace(result.transform, **changes)}


def of_schema(**changes):
    return lambda result: {"schema": described(**changes)}


def of_line(name):
    def change(result):
        line = result.calibration
        return {"calibration": replace(line, **{name: float(flipped(getattr(line, name)))})}

    return change


def coefficient(place):
    def change(result):
        coef = result.coef.copy()
        coef[place] = flipped(coef[place])
        return {"coef": coef}

    return change


CHANGES = [
    ("linear", "the first coefficient", coefficient(0)),
    ("linear", "the last coefficient", coefficient(-1)),
    ("linear", "intercept", lambda r: {"intercept": float(flipped(r.intercept))}),
    ("linear", "classes", lambda r: {"classes": r.classes[::-1]}),
    ("texts", "a label", lambda r: {"classes": np.array(["ne", "0"])}),
    ("large integers", "a large label", lambda r: {"classes": r.classes + np.arange(2)}),
    ("linear", "loss", lambda r: {"loss": "huber"}),
    ("linear", "names", lambda r: {"feature_names": ("a", "b", "c", "d")}),
    ("linear", "row bound", of_transform(row_bound=float(flipped(2.0)))),
    ("linear", "no intercept", of_transform(intercept=False)),
    ("linear", "target's middle", of_transform(target_middle=1e-300)),
    ("range", "scale", lambda r: of_transform(scale=(*r.transform.scale[:-1], 0.25))(r)),
    ("range", "shift", lambda r: of_transform(shift=(0.25, *r.transform.shift[1:]))(r)),
    ("linear", "a schema", of_schema()),
    ("schema", "its missing values", of_schema(missing=20.0)),
    ("schema", "no schema", lambda r: {"schema": None}),
    *(("network", f"weight {place}", coefficient(place)) for place in (0, 16, 24, 31)),
    ("network", "activation", lambda r: {"oracle": dpk.MLP(hidden=(3, 2), activation="tanh")}),
    ("network", "layers", lambda r: {"oracle": dpk.MLP(hidden=(2, 3))}),
    ("network", "linear", lambda r: {"oracle": None}),
    *(("calibrated", name, of_line(name)) for name in ("slope", "offset", "unit")),
    ("calibrated", "no line", lambda r: {"calibration": None}),
]


@for_each(("kind", "what", "change"), CHANGES, ids=lambda x: x if x else None)
def test_a_changed_field_that_predicts_is_noticed(kind, what, change, tmp_path):
    result = MODELS[kind]()
    assert result.coef.size == 32 or kind != "network"  # of three layers
    changed = replace(result, **change(result))
    changed.save(tmp_path / "model.npz")
    assert failed(tmp_path / "model.npz") == ["model"]
    result.privacy.save(tmp_path / "certificate.json")
    assert not dpk.verify(tmp_path / "certificate.json", tmp_path / "model.npz").ok


def test_another_model_is_refused_with_status_1(tmp_path, capsys):
    certificate, *paths = (str(tmp_path / name) for name in ("c.json", "1.npz", "2.npz"))
    first, second = fitted(), fitted(rng=2)
    first.privacy.save(certificate)
    first.save(paths[0])
    second.save(paths[1])
    assert main(["verify", certificate, paths[0]]) == 0
    assert "every figure follows" in capsys.readouterr().out
    assert main(["verify", certificate, paths[1]]) == 1
    out = capsys.readouterr().out
    assert re.search(r"model +sha256:\w{12} +sha256:\w{12} +MISMATCH", out)
    assert main(["verify", *paths]) == 1  # and a model whose certificate names itself
    assert main(["verify", certificate, certificate]) == 2
    assert "is no dpkern model" in capsys.readouterr().err


def test_coefficients_of_another_kind_are_no_model(tmp_path, capsys):
    fitted().save(tmp_path / "model.npz")
    with np.load(tmp_path / "model.npz") as arrays:
        held = dict(arrays)
    for coef in (held["coef"].astype(str), held["coef"][np.newaxis], held["coef"].astype(">f8")):
        np.savez(tmp_path / "other.npz", **held | {"coef": coef})
        assert main(["verify", str(tmp_path / "other.npz")]) == 2
        assert "other.npz is no dpkern model" in capsys.readouterr().err


def test_negative_zero_is_zero_and_numbers_are_one_kind():
    for digest in (model_digest, verified.digest):
        assert digest({"a": -0.0}) == digest({"a": 0.0}) == digest({"a": 0})
        assert digest({"a": np.array([-0.0, 1.0])}) == digest({"a": np.array([0.0, 1.0])})
        assert digest({"a": 1}) == digest({"a": 1.0})
        assert digest({"a": 2**60}) != digest({"a": 2**60 + 1})
        texts = [{"a": "1"}, {"a": [1.0]}, {"a": True}, {"a": None}, {"a": [[]]}, {"a": 10**400}]
        assert len({digest(values) for values in ({"a": 1}, *texts)}) == 7


def test_both_digests_are_those_of_the_documented_bytes():
    values = {"b": [None, True, "é"], "a": np.array([1.0])}
    assert model_digest(values) == verified.digest(values) == (
        "sha256:" + hashlib.sha256(
            b"m" + (2).to_bytes(8, "little")
            + b"s" + (1).to_bytes(8, "little") + b"a"
            + b"a" + (1).to_bytes(8, "little") + b"\0\0\0\0\0\0\xf0\x3f"
            + b"s" + (1).to_bytes(8, "little") + b"b"
            + b"l" + (3).to_bytes(8, "little") + b"nt"
            + b"s" + (2).to_bytes(8, "little") + b"\xc3\xa9"
        ).hexdigest()
    )  # fmt: skip


def test_nan_has_no_digest(tmp_path):
    for digest in (model_digest, verified.digest):
        for value in (math.nan, np.array([1.0, math.nan])):
            assert_refused("nan", digest, {"a": value})
    result = fitted()
    replace(result, coef=result.coef * math.nan).save(tmp_path / "model.npz")
    found = dpk.verify(tmp_path / "model.npz")
    assert [c.recomputed for c in found.checks if not c.ok] == ["nan"]


def test_a_run_that_ends_without_numbers_names_no_model(tmp_path):
    with np.errstate(all="ignore"):
        result = fitted("dense-regression", loss="squared", budget=None, clip=None, rounds=7,
                        step_size=1e50)  # fmt: skip
    assert not np.isfinite(result.w).all()
    assert result.privacy.model is None
    result.save(tmp_path / "model.npz")
    assert not dpk.verify(tmp_path / "model.npz").ok


def test_a_line_that_was_not_released_is_refused(tmp_path):
    result = fitted()
    line = Calibration(slope=1.0, offset=0.0, centre=0.0, unit=1.0, slope_error=0.1)
    changed = replace(result, calibration=line)
    named = replace(result.privacy, model=digest_of(changed))
    replace(changed, privacy=named).save(tmp_path / "model.npz")
    assert failed(tmp_path / "model.npz") == ["calibration"]
    result = fitted("dense-multiclass", solver="minibatch_sgd", model=dpk.MLP(hidden=()))
    changed = replace(result, calibration=Temperature(temperature=2.0, slope_error=0.1))
    named = replace(result.privacy, model=digest_of(changed))
    replace(changed, privacy=named).save(tmp_path / "model.npz")
    assert failed(tmp_path / "model.npz") == ["calibration"]
    result = calibrated()
    result.save(tmp_path / "model.npz")
    assert "calibration" in [check.what for check in dpk.verify(tmp_path / "model.npz").checks]


def digest_of(result):
    fields = ("coef", "intercept", "classes", "transform", "loss", "oracle", "feature_names")
    fields += ("schema", "calibration")
    return model_digest(stored_model(**{name: getattr(result, name) for name in fields}))


def test_all_parties_of_a_study_name_the_same_model():
    held = data("dense")
    study = Study(held, colluding=1)
    found, failures = study.run("gradient_descent", budget=BUDGET, **FEW), study.failures
    assert found is not None
    assert failures == [None] * 4
    assert len({result.privacy.model for result in study.results}) == 1
    assert study.results[0].privacy.model is not None


def test_runs_in_lockstep_name_their_own_models():
    how = {"budgets": BUDGET, "draws": 3, **FEW}
    many = dpk.solve_many("gradient_descent", data("dense"), **how)
    named = [result.privacy.model for result in many.results]
    assert named == [digest_of(result) for result in many.results]
    assert [run.model for run in many.privacy.runs] == named
    assert many.privacy.model is None


def test_a_composition_is_verified_with_each_of_its_models(tmp_path):
    results = [fitted(rng=seed) for seed in (1, 2)]
    together = dpk.privacy.compose_sequential(*(result.privacy for result in results))
    together.save(tmp_path / "c.json")
    for result in results:
        result.save(tmp_path / "model.npz")
        assert dpk.verify(tmp_path / "c.json", tmp_path / "model.npz").ok
    fitted(rng=3).save(tmp_path / "model.npz")
    assert not dpk.verify(tmp_path / "c.json", tmp_path / "model.npz").ok


# ---------------------------------------------------------------- the start


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by a second with every look at it; returns all of its times."""
    times = []

    def now():
        times.append(f"2026-01-01T00:{len(times) // 60:02d}:{len(times) % 60:02d}Z")
        return times[-1]

    for module in (run_module, charged):
        monkeypatch.setattr(module, "start_time", now)
    return times


def test_the_start_is_in_whole_seconds_and_no_part_of_equality():
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", fitted().privacy.started)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", start_time())
    one = replace(fitted().privacy, started="2026-01-01T00:00:00Z")
    other = replace(one, started="2026-01-01T00:00:01Z")
    assert one == other
    assert one.to_dict()["digest"] != other.to_dict()["digest"]
    assert_refused("started must be a time such as", replace, one, started="2026-01-01T00:00:00.5Z")
    assert_refused("model must be 'sha256:'", replace, one, model="sha256:0")


def test_the_start_of_a_selection_does_not_tell_which_run_won(clock, monkeypatch):
    monkeypatch.setattr(selection, "start_time", lambda: "2025-12-31T23:59:59Z")
    chosen = dpk.select([{"clip": 0.5}, {"clip": 1.0}], data("dense"), solver="gradient_descent",
                        budget=BUDGET, rng=1, rounds=2, step_size=0.5)  # fmt: skip
    assert len(clock) > 2
    assert chosen.privacy.started == "2025-12-31T23:59:59Z"
    assert chosen.privacy.model == digest_of(chosen.result)


def test_ranges_have_a_start_and_no_model(clock):
    found = dpk.private_range(np.ones((9, 2)), bounds=(-4, 4), budget=BUDGET, rng=1).privacy
    assert (found.model, found.started) == (None, clock[0])
    assert found.sources == {"bounds": NOT_STATED}


# ---------------------------------------------------------------- names and sources


def test_names_are_kept_and_checked(tmp_path):
    result = fitted().with_names(data="a register", study="s", purpose="p", controller="c")
    assert result.privacy.names == {"data": "a register", "study": "s", "purpose": "p",
                                    "controller": "c"}  # fmt: skip
    result.privacy.save(tmp_path / "c.json")
    assert dpk.Certificate.load(tmp_path / "c.json") == result.privacy
    assert result.with_names(purpose="q").privacy.names["purpose"] == "q"
    for wrong in ("", " ", "two\nlines", 3, "\x1b[2J"):
        with pytest.raises(ValueError, match="purpose must be a text of one line, not empty"):
            result.with_names(purpose=wrong)
    with pytest.raises(ValueError, match="names has the unknown key 'studies'"):
        replace(result.privacy, names={"studies": "s"})
    both = dpk.privacy.compose_sequential(result.privacy, result.with_names(study="t").privacy)
    assert both.names["study"] == "s; t"
    assert both.names["purpose"] == "p"


def test_sources_say_where_bounds_are_from():
    assert fitted("range").privacy.sources == {
        "feature_range": NOT_STATED, "row_bound": NOT_STATED, "labels": READ,
    }  # fmt: skip
    stated = fitted("range").with_names(bounds="handbook").privacy
    assert stated.sources == {
        "feature_range": "handbook", "row_bound": "handbook", "labels": READ,
    }  # fmt: skip
    assert LABELS_READ in stated.notes
    by_schema = fitted(described().silo_data(raw())).with_names(bounds="handbook").privacy
    schema = f"schema {described().digest[:19]}"
    assert by_schema.sources == dict.fromkeys(("feature_range", "row_bound", "labels"), schema)
    assert READ not in str(by_schema)
    people = described().silo_data(raw())
    people = dpk.SiloData(people.X, people.y, [0, 60], feature_names=people.feature_names,
                          schema=people.schema, person=np.arange(60), max_records=2,
                          classes=[-1.0, 1.0])  # fmt: skip
    assert fitted(people).privacy.sources["max_records"] == NOT_STATED
    assert READ in " ".join(str(stated).split())


def test_estimators_say_that_labels_were_read():
    X = np.linspace(-1.0, 1.0, 60)[:, np.newaxis]
    y = np.where(X[:, 0] > 0.0, 1, 0)
    options = {"epsilon": 1.0, "delta": 1e-6, "feature_range": (-1, 1), "random_state": 1}
    model = estimators.DPLogisticRegression(**options)
    assert model.fit(X, y).privacy_.sources["labels"] == READ
    model.set_params(classes=[0, 1])
    assert model.fit(X, y).privacy_.sources["labels"] == NOT_STATED


@for_each(("neighbours", "words"), [
    ("replace_one", "whether a record or another was used"),
    ("add_remove", "whether a record was used at all"),
])  # fmt: skip
def test_the_sentence_for_people_bounds_a_guess(neighbours, words):
    how = {} if neighbours == "replace_one" else {"public_size": (10, 20, 30)}
    c = replace(fitted(neighbours=neighbours, **how).privacy, noise="os")
    said = report.in_words(c)
    assert words in said
    stated = float(re.search(r"at most ([\d.]+) of 100", said)[1])
    # Two normal distributions, whose means are mu deviations apart, by their likelihood ratio.
    exact = 50.0 * (1.0 + math.erf(c.mu / math.sqrt(8.0)))
    assert exact <= stated <= exact + 0.02
    assert "the data of one person with 3 records" in report.in_words(c.group(3))
    assert report.in_words(replace(c, noise="seeded: not private")).startswith("nothing holds")
    assert "may tell anything" in report.in_words(fitted(budget=None).privacy)


def test_the_sentence_for_people_takes_the_best_of_upper_bounds():
    X = np.random.default_rng(0).uniform(-1.0, 1.0, (200, 2))
    data = dpk.SiloData(X, np.sign(X[:, 0]), [0, 200], row_bound=2.0)
    budget = dpk.Budget(epsilon=1.0, delta=1e-6)
    chosen = dpk.select({"rounds": [1, 2]}, data, solver="gradient_descent", budget=budget)
    stated = re.search(r"at most ([\d.]+) of 100", report.in_words(chosen.privacy))[1]
    assert chosen.privacy.delta(0.0) == 1.0  # a bound that says nothing
    # A run alone, which has less budget than the selection, and (1, 1e-6)-DP.
    alone = 50.0 * (1.0 + math.erf(chosen.privacy.guarantee.mu / math.sqrt(8.0)))
    assert alone < float(stated) < 100.0 / (1.0 + math.exp(-1.0))


# ---------------------------------------------------------------- nothing of the file


def test_nothing_of_the_data_file_is_in_the_certificate(tmp_path, monkeypatch, clock):
    """Two files of other names, sizes, times and texts, with the same records."""
    rng = np.random.default_rng(0)
    rows = [(f"{a:.3f}", f"{b:.3f}", "ill" if a + b > 0 else "well")
            for a, b in rng.uniform(-1.0, 1.0, (60, 2))]  # fmt: skip
    texts = ["a,b,out\n" + "".join(f"{x},{y},{z}\n" for x, y, z in rows),
             "a,b,out\n" + "".join(f"{x}0,{y}00,{z}\n" for x, y, z in rows)]  # fmt: skip
    found = []
    for text, name in zip(texts, ("secret-clinic.csv", "b.csv"), strict=True):
        folder = tmp_path / f"of-{len(found)}"
        folder.mkdir()
        (folder / name).write_text(text)
        os.utime(folder / name, (1e9, 1e9 + len(found)))
        fit = ["fit", str(folder / name), "--epsilon", "1", "--delta", "1e-6", "--noise-seed", "1"]
        fit += ["--classes", "well,ill", "--certificate", str(folder / "c.json")]
        assert main(fit) == 0
        values = json.loads((folder / "c.json").read_text())
        found.append({k: v for k, v in values.items() if k not in ("started", "digest")})
        assert "secret" not in json.dumps(values)
        assert str(tmp_path) not in json.dumps(values)
    assert found[0] == found[1]


# ---------------------------------------------------------------- pages and signatures


def texts_of(html):
    """All text of a document whose elements are closed in order; fails at others."""
    open_tags, texts = [], []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            assert not {name for name, _ in attributes} & {"src", "href", "onload"}
            assert tag not in ("script", "link", "img", "iframe")
            if tag != "meta":
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

        def handle_data(self, text):
            if open_tags and open_tags[-1] != "style":
                texts.append(text)

    Reader().feed(html)
    assert not open_tags
    return " ".join(" ".join(texts).split())


def several():
    first, second = fitted(), fitted(rng=2, rounds=3)
    return dpk.privacy.compose_sequential(first.privacy, second.privacy)


PAGES = {
    "run": lambda: fitted().privacy,
    "no noise": lambda: fitted(budget=None).privacy,
    "one more": lambda: fitted(neighbours="add_remove", public_size=(10, 20, 30)).privacy,
    "several": several,
    "ranges": lambda: dpk.private_range(np.ones((9, 2)), bounds=(-4, 4), budget=BUDGET).privacy,
    "group": lambda: fitted().privacy.group(2),
}
QUESTIONS = ("What was released?", "About whom?", "To whom?", "How much does it tell?",
             "What is not covered?", "Which model?", "Who answers for it?",
             "How is it checked?")  # fmt: skip


@for_each("kind", PAGES)
def test_a_page_answers_all_questions_and_needs_nothing_else(kind):
    c = PAGES[kind]().with_names(study="a <b>study</b> & more")
    html = page(c)
    assert "<b>study" not in html
    assert "http" not in html
    assert "url(" not in html
    text = texts_of(html)
    places = [text.index(question) for question in QUESTIONS]
    assert places == sorted(places)
    assert ("whether they are in the data" in text) == (c.neighbours == "add_remove")
    assert (report.report_entries(c)["noise"] == "none") == (c.n_draws == 0)
    for run in c.runs:
        assert (run.model or "none: no model was released") in text
        assert run.started in text
    for part in ("a <b>study</b> & more", c.adversary, c.unit, *c.notes, c.to_dict()["digest"]):
        assert part in text


def test_the_command_prints_certificates_and_writes_pages(tmp_path, capsys):
    result = fitted(rng=None)
    model, out = str(tmp_path / "model.npz"), str(tmp_path / "page.html")
    result.save(model)
    assert main(["certificate", model]) == 0
    assert capsys.readouterr().out == f"{result.privacy}\n"
    assert main(["certificate", model, "--html"]) == 0
    assert capsys.readouterr().out == page(result.privacy)
    assert main(["certificate", model, "--html", "--out", out]) == 0
    assert (tmp_path / "page.html").read_text() == page(result.privacy)
    assert main(["certificate", model, "--html", "--out", model]) == 2
    assert "is read by this command" in capsys.readouterr().err
    assert main(["certificate", out]) == 2
    assert "not a dpkern certificate" in capsys.readouterr().err


def test_a_signature_is_of_a_key_and_a_certificate(tmp_path, capsys):
    keys = pytest.importorskip("dpkern.federated.keys")
    names = ("1.key", "2.key", "model.npz", "signed.json", "plain.json")
    key, other, model, signed, plain = (str(tmp_path / name) for name in names)
    public, stranger = keys.new_identity(key), keys.new_identity(other)
    result = fitted(rng=None)
    result.save(model)
    result.privacy.save(plain)
    assert main(["certificate", model, "--sign", key, "--out", signed]) == 0
    assert f"--signed-by {public}" in capsys.readouterr().err
    assert dpk.Certificate.load(signed) == result.privacy
    assert "signature: of an unknown key" in str(dpk.verify(signed))
    assert dpk.verify(signed).ok
    assert main(["verify", signed, model, "--signed-by", public]) == 0
    assert main(["verify", signed, model, "--signed-by", stranger]) == 1
    assert main(["verify", plain, model, "--signed-by", public]) == 1
    values = json.loads((tmp_path / "signed.json").read_text())
    edited = values | {"names": {"purpose": "another"}}
    edited["digest"] = "sha256:" + hashlib.sha256(
        json.dumps({k: v for k, v in edited.items() if k not in ("digest", "signature")},
                   sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()  # fmt: skip
    for wrong in (edited, values | {"signature": "00"}, values | {"signature": 3}):
        assert failed(wrong, signed_by=public) == ["signature"]
    capsys.readouterr()
    assert main(["verify", signed, "--signed-by", "key"]) == 2
    assert "signed_by must be an Ed25519 public key" in capsys.readouterr().err
    assert main(["certificate", model, "--html", "--sign", key]) == 2
    assert "--html and --sign exclude each other" in capsys.readouterr().err
