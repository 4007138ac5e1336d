"""dpkern.toml says what fits are called, and which ledger they charge; --about says more."""

import json

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk
from dpkern.cli import main

BUDGET = ["--epsilon", "1", "--delta", "1e-5"]
QUICK = ["--solver", "gradient_descent", "--rounds", "3", "--target", "out"]
CLASSES = ["--classes", "well,ill", "--certificate", "c.json"]
PLAN = ["plan", "--records", "400", "--features", "3", *BUDGET]
PROJECT = 'study = "a study"\npurpose = "a purpose"\ncontroller = "a clinic"\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, below that of the project file, with records."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    values = np.random.default_rng(0).uniform(-1.0, 1.0, (40, 2))
    rows = [f"{a:.3f},{b:.3f},{'ill' if a > 0.0 else 'well'}" for a, b in values]
    (folder / "d.csv").write_text("\n".join(["a,b,out", *rows]))
    return folder


def write(folder, text):
    (folder.parent / "dpkern.toml").write_text(text)


def fit(*more):
    return main(["fit", "d.csv", *QUICK, *CLASSES, *more])


def certificate(folder):
    return dpk.Certificate.load(folder / "c.json")


def test_a_fit_is_called_as_the_nearest_project_says(folder, capsys):
    write(folder, f'{PROJECT}bounds = "handbook"\n')
    assert fit(*BUDGET) == 0
    assert certificate(folder).names == {
        "study": "a study", "purpose": "a purpose", "controller": "a clinic",
    }  # fmt: skip
    assert set(certificate(folder).sources.values()) == {"handbook"}
    assert f"project        {folder.parent / 'dpkern.toml'}" in capsys.readouterr().out
    (folder / "dpkern.toml").write_text('study = "another"')
    assert fit(*BUDGET) == 0
    assert certificate(folder).names == {"study": "another"}


def test_about_goes_before_the_project(folder):
    write(folder, PROJECT)
    assert fit(*BUDGET, "--about", "purpose=b=c", "--about", "data=a register") == 0
    names = certificate(folder).names
    assert (names["purpose"], names["data"], names["study"]) == ("b=c", "a register", "a study")


def test_every_draw_and_their_composition_are_named(folder):
    assert fit(*BUDGET, "--about", "study=s", "--draws", "2", "--out", "m.npz") == 0
    composed = certificate(folder)
    assert [run.names for run in (composed, *composed.parts)] == [{"study": "s"}] * 3
    assert dpk.load(folder / "m.npz").privacy.names == {"study": "s"}
    assert main(["verify", "c.json", "m.npz"]) == 0


def test_the_ledger_of_the_project_is_charged(folder, capsys):
    write(folder, 'ledger = "study.ledger"')
    assert fit(*BUDGET) == 2
    assert "ledger must be an accountant's file, got" in capsys.readouterr().err
    assert not (folder / "c.json").exists()
    dpk.Accountant(folder.parent / "study.ledger", epsilon=2.0, delta=1e-5)
    assert fit(*BUDGET) == 0
    assert len(dpk.Accountant(folder.parent / "study.ledger").entries) == 1
    assert main(PLAN) == 0
    assert "study.ledger: 1 of epsilon 2 at delta 1e-05 is spent" in capsys.readouterr().out
    assert fit("--no-privacy") == 0  # which an accountant has no use for
    dpk.Accountant(folder / "own.ledger", epsilon=2.0, delta=1e-5)
    assert fit(*BUDGET, "--ledger", "own.ledger") == 0
    assert len(dpk.Accountant(folder.parent / "study.ledger").entries) == 1


def test_a_project_may_require_a_ledger(folder, capsys):
    write(folder, "require_ledger = true")
    for command in (["fit", *QUICK, *BUDGET], ["fit", *QUICK, "--no-privacy"],
                    ["compare", "--no-plot", "--epsilons", "1"]):  # fmt: skip
        assert main([command[0], "d.csv", *command[1:]]) == 2
        err = capsys.readouterr().err
        assert f"{folder.parent / 'dpkern.toml'}: require_ledger is true" in err
    dpk.Accountant(folder / "own.ledger", epsilon=2.0, delta=1e-5)
    assert fit(*BUDGET, "--ledger", "own.ledger") == 0


@for_each(("text", "message"), [
    ("studdy = 'x'", "the unknown key 'studdy'; did you mean 'study'?"),
    ("study = 3", "study must be a text of one line, not empty, got 3"),
    ("study = ''", "study must be a text of one line, not empty, got ''"),
    ("ledger = ['a']", "ledger must be a text of one line"),
    ("require_ledger = 'yes'", "require_ledger must be true or false, got 'yes'"),
    ("study = x", "Invalid value (at line 1, column 9)"),
    ("study = '\xe9'", "codec can't decode"),
])  # fmt: skip
def test_what_is_wrong_in_a_project_names_file_and_key(folder, capsys, text, message):
    (folder / "dpkern.toml").write_bytes(text.encode("latin-1"))
    assert main(PLAN) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"dpkern: error: {folder / 'dpkern.toml'}: ")
    assert message in err


@for_each(("given", "message"), [
    (["study"], "--about must be KEY=TEXT, got 'study'"),
    (["model=x"], "--about has the unknown key 'model'"),
    (["study="], "--about study must be a text of one line, not empty, got ''"),
    (["study=a", "study=b"], "--about study was given twice; give it once"),
])  # fmt: skip
def test_what_is_wrong_in_about_is_said_before_a_run(folder, capsys, given, message):
    dpk.Accountant(folder / "own.ledger", epsilon=2.0, delta=1e-5)
    about = [word for text in given for word in ("--about", text)]
    assert fit(*BUDGET, "--ledger", "own.ledger", *about) == 2
    assert message in capsys.readouterr().err
    assert not dpk.Accountant(folder / "own.ledger").entries
    assert not (folder / "c.json").exists()


def test_names_are_of_the_users_alone(folder):
    """Nothing of the project's path, and of the data's, is in the certificate."""
    write(folder, PROJECT)
    assert fit(*BUDGET) == 0
    text = (folder / "c.json").read_text()
    assert str(folder.parent) not in text
    assert "d.csv" not in text
    assert "toml" not in text
    assert json.loads(text)["names"]["study"] == "a study"
