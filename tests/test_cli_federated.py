"""Commands of a study that reach nobody: what a plan costs, and what is refused before that."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")

from test_cli import refused, shown

import dpkern as dpk
from dpkern.data import Column, Schema
from dpkern.federated.keys import new_identity, public_key, read_identity
from dpkern.federated.proposal import Proposal
from dpkern.models.hazards import DiscreteHazards

FIT = ["--epsilon", "1", "--delta", "1e-6"]


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A folder with study.toml, and the keys and a ledger of silo "north"."""
    monkeypatch.chdir(tmp_path)
    Schema(
        [
            Column("age", "number", lo=0, hi=100),
            Column("person", "ignore"),
            Column("ill", "target", classes=["no", "yes"]),
        ]
    ).save("schema.json")
    silos = ""
    for name in ("north", "south"):
        (tmp_path / name).mkdir()
        key = new_identity(tmp_path / name / f"{name}.key")
        silos += f'[[silos]]\nname = "{name}"\nrecords = 300\nkey = "{key}"\n'
    (tmp_path / "study.toml").write_text(
        'name = "two"\ntrust = "central"\ncolluding = 0\n[data]\nschema = "schema.json"\n'
        f'[coordinator]\naddress = "127.0.0.1:1"\ncertificates = "ca.crt"\n{silos}'
    )
    (tmp_path / "north.csv").write_text("age,person,ill\n" + "30,a,no\n40,b,yes\n" * 150)
    dpk.Accountant("north.json", epsilon=1.5, delta=1e-6)
    return tmp_path


def silo(ledger, *more):
    place = ["--study", "study.toml", "--name", "north", "--keys", "north", "--ledger", ledger]
    return ["silo", "north.csv", *place, *more]


def plan(capsys, name, *more):
    out, _ = shown(capsys, ["fit", "--federation", "study.toml", *FIT, "--plan", name, *more])
    assert "Privacy certificate" in out
    assert "\n  model " not in out  # of which there is none yet
    return ["--plan", name]


def test_a_dry_run_says_what_the_ledger_has_left_and_charges_nothing(capsys, study):
    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent", "--rounds", "5")
    before = (study / "north.json").read_bytes()
    out, _ = shown(capsys, silo("north.json", *agreed, "--dry-run"))
    assert "5 x sum of clipped gradients, 2 numbers with noise" in out
    assert "ledger after   north.json: 1 of epsilon 1.5" in out
    assert "is spent, 1.047 is left" in out
    assert (study / "north.json").read_bytes() == before


def test_a_plan_with_standard_errors_is_of_their_solver(capsys, study):
    plan(capsys, "plan.json", "--inference")
    assert Proposal.read(study / "plan.json").solver == "newton_inference"
    fit = ["fit", "--federation", "study.toml", *FIT, "--inference"]
    assert "--solver" in refused(capsys, [*fit, "--solver", "ridge"])


def test_a_study_of_times_names_its_model_in_the_plan(capsys, study):
    text = (study / "schema.json").read_text()
    ill = '{"name": "ill", "kind": "target", "classes": ["no", "yes"], "aliases": {}}'
    assert ill in text
    times = '{"name": "years", "kind": "target", "intervals": [0, 1, 5]},'
    times += '{"name": "ill", "kind": "event", "classes": ["no", "yes"]}'
    (study / "schema.json").write_text(text.replace(ill, times))
    (study / "north.csv").write_text("age,person,years,ill\n" + "30,a,3,no\n40,b,1,yes\n" * 150)
    agreed = plan(capsys, "plan.json", "--loss", "logistic", "--rounds", "5")
    model = Proposal.read(study / "plan.json").arguments["model"]
    assert model == DiscreteHazards((0, 1, 5), "logistic")
    out, _ = shown(capsys, silo("north.json", *agreed, "--dry-run"))
    assert "5 x sum of clipped gradients, 3 numbers with noise" in out
    assert "DiscreteHazards(edges=(0.0, 1.0, 5.0), link='logistic')" in out


def test_a_silo_takes_the_ledger_of_its_project(capsys, study):
    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent", "--rounds", "5")
    command = [word for word in silo("", *agreed, "--dry-run") if word not in ("--ledger", "")]
    assert "give --ledger FILE, or a ledger in dpkern.toml" in refused(capsys, *command)
    (study / "dpkern.toml").write_text('ledger = "north.json"')
    assert "ledger after   north.json: 1 of epsilon 1.5" in shown(capsys, command)[0]


def test_a_dry_run_refuses_as_the_run_would(capsys, study):
    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent", "--rounds", "5")
    dpk.Accountant("small.json", epsilon=0.5, delta=1e-6)
    assert "the budget in small.json has no room for gradient_descent, which asked for" in refused(
        capsys, *silo("small.json", *agreed, "--dry-run")
    )
    assert "none.json: no such file; dpkern ledger creates one" in refused(
        capsys, *silo("none.json", *agreed, "--dry-run")
    )
    assert dpk.Accountant("small.json").spent == 0.0


def test_a_person_beside_the_schema_of_a_study_is_refused(capsys, study):
    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent")
    assert "--person was given, and the study says it" in refused(
        capsys, *silo("north.json", *agreed, "--person", "person")
    )


def test_what_cannot_be_federated_is_refused_before_silos_are_asked(capsys, study):
    fit = ["fit", "--federation", "study.toml", *FIT, "--keys", "analyst"]
    assert "a solver whose releases" in refused(
        capsys, *fit, "--solver", "objective_perturbation", "--set", "l2=0.1"
    )
    assert "--draws must be 1 with --federation" in refused(capsys, *fit, "--draws", "2")
    Path("paid.model").write_text("paid for")
    assert "paid.model is there already" in refused(capsys, *fit, "--out", "paid.model")
    drawn = ["--inference", "--plan", "plan.json", "--plot", "forest.png"]
    assert "--plot must be left out with --plan" in refused(capsys, *fit, *drawn)


def test_plans_that_differ_name_what_does():
    plans = [
        dpk.federated.proposal.Proposal("gradient_descent", dpk.Budget(mu=mu), arguments)
        for mu, arguments in (
            (0.5, {"rounds": 5, "l2": 0.1, "step_size": 1}),
            (1.0, {"rounds": 5, "clip": 2.0, "step_size": 1.0}),
        )
    ]
    found = plans[0].differences_from(plans[1])
    assert found == [
        '"clip" absent proposed, 2.0 agreed',
        '"l2" 0.1 proposed, absent agreed',
        '"step_size" 1 proposed, 1.0 agreed',
        'budget {"mu": 0.5} proposed, {"mu": 1.0} agreed',
    ]
    assert plans[0].differences_from(plans[0]) == []


def test_a_silo_takes_part_in_the_agreed_plan_alone(capsys, study, monkeypatch):
    from dpkern.federated import silo as silo_module
    from dpkern.federated.proposal import Proposal

    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent", "--rounds", "5")
    own = Proposal.read("plan.json")
    other = Proposal(own.solver, own.budget, {**own.arguments, "rounds": 6})
    approved = ["--approve", dpk.federated.study.Study.read("study.toml").fingerprint]
    proposed = []

    def take_part(*_, accept, **__):
        accept(proposed[-1])
        raise ValueError("it was accepted")

    reached = SimpleNamespace(silo_link=lambda *_, **__: nullcontext())
    monkeypatch.setitem(sys.modules, "dpkern.federated.connections", reached)
    monkeypatch.setattr(silo_module, "take_part", take_part)
    for given, said in (
        (own, "it was accepted"),
        (other, 'is not the agreed one: "rounds" 6 proposed, 5 agreed'),
    ):
        proposed.append(given)
        assert said in refused(capsys, *silo("north.json", *agreed, *approved))


def test_what_a_coordinator_proposes_cannot_act_on_a_terminal():
    budget = dpk.Budget(mu=1.0)
    own, other = (
        dpk.federated.proposal.Proposal("gradient_descent", budget, arguments)
        for arguments in ({"\x1b[2J\nledger": 1, "solver": "x"}, {})
    )
    assert own.differences_from(other) == [
        '"\\u001b[2J\\nledger" 1 proposed, absent agreed',
        '"solver" "x" proposed, absent agreed',
    ]


def test_fingerprints_are_those_of_the_study_and_its_keys(capsys, study):
    out, _ = shown(capsys, ["federation", "show", "study.toml"])
    read = dpk.federated.study.Study.read("study.toml")
    assert f"fingerprint    {read.fingerprint}" in out
    for silo in read.silos:
        assert f"{silo.name:<14} key {silo.fingerprint}, 300 records" in out
    assert re.fullmatch("([a-z2-7]{5}-){4}[a-z2-7]{5}", read.fingerprint)
    _, err = shown(capsys, ["federation", "keys", "west", "--silo", "west", "--records", "300"])
    key = re.search(r"silos:\s+(\S+)", err)[1]
    assert (study / "west").stat().st_mode & 0o077 == 0
    text = (study / "study.toml").read_text()
    foreign = text.replace(re.findall('key = "(.*)"', text)[1], key_of("west/west.key"))
    (study / "foreign.toml").write_text(foreign)
    out, _ = shown(capsys, ["federation", "show", "foreign.toml"])
    assert f"south          key {key}" in out
    assert read.fingerprint not in out


def key_of(path):
    return public_key(read_identity(path))


def test_another_study_than_the_approved_one_is_refused(capsys, study):
    agreed = plan(capsys, "plan.json", "--solver", "gradient_descent")
    own = dpk.federated.study.Study.read("study.toml").fingerprint
    for given in (own, own.upper().replace("-", " ")):
        _, err = shown(capsys, silo("north.json", *agreed, "--dry-run", "--approve", given))
        assert "by telephone" not in err
    for given in (own[:-1], "aaaaa" + own[5:], ""):
        assert f"--approve must be the fingerprint of the study, {own}, got" in refused(
            capsys, *silo("north.json", *agreed, "--dry-run", "--approve", given)
        )
    _, err = shown(capsys, silo("north.json", *agreed, "--dry-run"))
    assert "compare its fingerprint with their people, by telephone" in " ".join(err.split())


def test_keys_that_cannot_all_be_written_leave_nothing(capsys, study):
    (study / "west").mkdir()
    (study / "west" / "west.node").write_text("of somebody else")
    assert "west.node must not exist yet" in refused(
        capsys, "federation", "keys", "west", "--silo", "west", "--records", "300"
    )
    assert [path.name for path in (study / "west").iterdir()] == ["west.node"]


@pytest.fixture
def held_out(study):
    """The study of a model on held-out records of the same silos."""
    frame = {"age": [30.0, 40.0] * 150, "ill": ["no", "yes"] * 150}
    data = Schema.load("schema.json").silo_data(frame, 1)
    dpk.solve("auto", data, budget=dpk.Budget(mu=0.5), rng=0).save("model.npz")
    text = (study / "study.toml").read_text()
    (study / "held_out.toml").write_text(
        text.replace('schema = "schema.json"', 'model = "model.npz"')
    )
    return study


@pytest.mark.filterwarnings("ignore::dpkern.privacy.BudgetWarning")
def test_scores_over_silos_are_planned_rehearsed_and_refused(capsys, held_out):
    evaluate = ["evaluate", "--federation", "held_out.toml", *FIT]
    out, _ = shown(capsys, [*evaluate, "--plan", "plan.json", "--threshold", "0.3"])
    model = dpk.load("model.npz")
    assert f"model       {model.digest[:20]}" in out
    assert "task           evaluate, epsilon 1 at delta 1e-06" in out
    assert "threshold 0.3, neighbours replace_one, trust central" in out
    assert (
        f"model          {model.digest}"
        in shown(capsys, ["federation", "show", "held_out.toml"])[0]
    )
    take = [word.replace("study.toml", "held_out.toml") for word in silo("north.json")]
    out, _ = shown(capsys, [*take, "--plan", "plan.json", "--dry-run"])
    assert "1 x sums of an evaluation, 29 numbers with noise" in out
    assert "ledger after   north.json: 1 of epsilon 1.5" in out
    assert dpk.Accountant("north.json").spent == 0.0
    dpk.Accountant("small.json", epsilon=0.5, delta=1e-6)
    small = [word.replace("north.json", "small.json") for word in take]
    assert "has no room for evaluate" in refused(capsys, *small, "--plan", "plan.json", "--dry-run")
    plan = ["--plan", "plan.json"]
    assert "--out has no use" in refused(capsys, *take, *plan, "--out", "m.npz")
    fit = ["fit", "--federation", "held_out.toml", *FIT, "--keys", "analyst"]
    assert "states a model, got a plan of 'gradient_descent'" in refused(capsys, *fit)
    for more, text in (
        (["model.npz"], "MODEL was given, and the study of --federation states it"),
        (["--ledger", "north.json"], "--ledger was given, and the silos of --federation have"),
        (["--max-records", "2"], "--max-records was given, and the silos of --federation have"),
        ([], "--federation needs --keys"),
    ):
        assert text in refused(capsys, *evaluate, *more)
    assert "states no model" in refused(
        capsys, "evaluate", "--federation", "study.toml", *FIT, "--plan", "other.json"
    )
    assert "give MODEL and DATA, or --federation" in refused(capsys, "evaluate", "model.npz", *FIT)
    needs = refused(capsys, "evaluate", "model.npz", "north.csv", *FIT, "--plan", "plan.json")
    assert "--plan was given, and it needs --federation" in needs
