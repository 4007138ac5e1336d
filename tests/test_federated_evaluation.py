"""Scores over silos: the bits of one process, noisy sums alone, and what parties refuse."""

import base64
import threading
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each
from local_stars import QueueStar
from makers import assert_refused
from parties import NoMasks, own_records

import dpkern as dpk
from dpkern.data import Column, Schema
from dpkern.data.parted import held_by
from dpkern.evaluation.sums import of_two_classes
from dpkern.federated.links import SilosLostError
from dpkern.federated.party import CoordinatorParty, SiloParty
from dpkern.privacy import NoiseStream
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import SEEN_BY, Channel, Shares

pytest.importorskip("cryptography")

from studies import identities
from test_silo_journal import MOMENTS, Dies, Mailbox, Mortal

from dpkern.federated.federation import Federation, proposed
from dpkern.federated.party import ProtocolError
from dpkern.federated.proposal import Proposal
from dpkern.federated.rehearsal import rehearsed
from dpkern.federated.silo import take_part
from dpkern.federated.study import Study

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-6)
TRUSTS = ("central", "silo")
NEIGHBOURS = ("replace_one", "add_remove")
TASKS = ("two", "several", "targets")
LABELS = {"two": ["no", "yes"], "several": ["a", "b", "c"]}
HIDDEN = {"neighbours": "add_remove", "public_size": 2_200}
# Softmax regression predicts by products of matrices, which are refused where records are added.
PAIRS = [(task, n) for task in TASKS for n in NEIGHBOURS if (task, n) != ("several", "add_remove")]


def records_of(task, seed=0):
    """Held-out records of four silos."""
    rng, offsets = np.random.default_rng(seed), [0, 400, 900, 1200, 2000]
    how = {"intercept": task != "several", "feature_range": (-1.0, 1.0)}
    X = rng.uniform(-1.0, 1.0, (2_000, 3))
    z = 3.0 * X[:, 0] + rng.logistic(size=len(X))
    if task == "targets":
        return dpk.SiloData(X, z, offsets, target_bound=5.0, task="regression", **how)
    y = np.array(LABELS[task])[np.digitize(z, [0.0] if task == "two" else [-1.0, 1.0])]
    kind = "classification" if task == "two" else "multiclass"
    return dpk.SiloData(X, y, offsets, task=kind, classes=LABELS[task], **how)


@pytest.fixture(scope="module")
def models():
    found = {}
    for task in TASKS:
        data, budget = records_of(task, 1), dpk.Budget(epsilon=5.0, delta=1e-6)
        found[task] = dpk.solve("auto", data, budget=budget, rng=0)
    return found


def study_of(folder, model, data, trust="central", colluding=1):
    """The study of a model on held-out records, as its file says it."""
    model.save(folder / "model.npz")
    text = f'name = "held out"\ntrust = "{trust}"\n'
    text += f"colluding = {colluding}\n" if trust == "central" else ""
    text += '[data]\nmodel = "model.npz"\n'
    for j, key in enumerate(identities(data.m)):
        key = base64.b64encode(key.public_key().public_bytes_raw()).decode()
        text += f'[[silos]]\nname = "s{j}"\nrecords = {data.sizes[j]}\nkey = "{key}"\n'
    (folder / "study.toml").write_text(text)
    return Study.read(folder / "study.toml")


def labels_of(data):
    """Labels as they were given, or targets."""
    if data.classes is None:
        return np.array(data.y)
    y = 0.5 * (data.y + 1.0) if data.task == "classification" else data.y
    return data.classes[y.astype(int)]


def data_of(model, X, y, offsets):
    """Records that nothing is declared of but the model's classes."""
    classes = None if model.classes is None else list(model.classes)
    kind = "multiclass" if classes and len(classes) > 2 else None
    kind = "regression" if classes is None else kind
    return dpk.SiloData(X, y, offsets, task=kind, classes=classes)


def silo_data(study, data, j):
    first, last = data.offsets[j : j + 2]
    return study.silo_data(f"s{j}", data.X[first:last], labels_of(data)[first:last])


def run(study, data, *, of_silo=None, star=None, coordinator=None, **how):
    """Return what the coordinator has, and what the silos have, all with one seed."""
    star = star or QueueStar(study.names, deadline=20.0)
    outcomes, of_silo = [None] * data.m, of_silo or {}

    def take(j, link):
        try:
            with link:
                given = {"accountant": None, "rng": 7, "study": study} | of_silo.get(j, {})
                own, lives = given.pop("study"), given.pop("lives", [link])
                place = own, f"s{j}", silo_data(own, data, j)
                for life in lives[:-1]:
                    with pytest.raises(Dies):
                        take_part(*place, life, identities(4)[j], **given)
                outcomes[j] = take_part(*place, lives[-1], identities(4)[j], **given)
        except BaseException as error:
            outcomes[j] = error

    silos = [threading.Thread(target=take, args=pair) for pair in enumerate(star.links)]
    for silo in silos:
        silo.start()
    try:
        federation = coordinator or Federation(study, star=lambda: star)
        found = dpk.evaluate(study.model, federation, budget=BUDGET, **how)
    except Exception as error:
        found = error
    for silo in silos:
        silo.join(30.0)
        assert not silo.is_alive()
    return found, outcomes


def bits(evaluation):
    """All that an evaluation says, but for how its certificate came about."""
    parts = evaluation.calibration_curve, evaluation.roc_curve, evaluation.confusion
    shown = [None if x is None else np.concatenate([np.ravel(p) for p in x]) for x in parts]
    shown = [None if x is None else x.tobytes() for x in shown]
    privacy = evaluation.privacy
    return str(evaluation.scores), shown, privacy.releases, privacy.declared, privacy.model


@for_each("trust", TRUSTS)
@for_each(
    ("task", "how"),
    [
        (task, how)
        for task in TASKS
        for how in ({}, HIDDEN, {"bins": 5, "threshold": 0.3})
        if (task, how) != ("several", HIDDEN)
    ],
)
def test_a_study_has_the_bits_of_one_process(task, trust, how, models, tmp_path):
    data, t = records_of(task), 1 if trust == "central" else None
    expected = dpk.evaluate(
        models[task], data, budget=BUDGET, rng=7, trust=trust, colluding=t, **how
    )
    study = study_of(tmp_path, models[task], data, trust)
    found, outcomes = run(study, data, **how)
    assert [bits(one) for one in (found, *outcomes)] == [bits(expected)] * 5
    assert found.privacy.trust == trust
    assert found.privacy.model == models[task].privacy.model
    assert found.privacy.epsilon(1e-6) == pytest.approx(1.0, rel=1e-6)
    assert any("silos in processes of their own" in note for note in found.privacy.notes)
    stated = any("the study states the silos' numbers" in note for note in found.privacy.notes)
    assert stated == (how is HIDDEN)


@for_each("trust", TRUSTS)
@for_each(("task", "neighbours"), PAIRS)
def test_certificates_verify_and_edited_ones_do_not(task, neighbours, trust, models):
    how = HIDDEN if neighbours == "add_remove" else {}
    t = 1 if trust == "central" else None
    found = dpk.evaluate(
        models[task], records_of(task), budget=BUDGET, trust=trust, colluding=t, **how
    )
    values = found.privacy.to_dict()
    assert dpk.verify(values).ok
    for name, other in {"silos": 5, "bins": 3, "evaluated": "regression"}.items():
        if name in values["declared"] and values["declared"][name] != other:
            edited = replace(found.privacy, declared={**found.privacy.declared, name: other})
            assert not dpk.verify(edited.to_dict()).ok


def test_scores_with_little_noise_are_those_of_all_records(models):
    data = records_of("two")
    with pytest.warns(dpk.privacy.BudgetWarning):
        budget = dpk.Budget(mu=1e4)
    for trust, t in (("central", 1), ("silo", None)):
        found = dpk.evaluate(models["two"], data, budget=budget, trust=trust, colluding=t, bins=64)
        central = dpk.evaluate(models["two"], data, budget=budget, bins=64)
        for name, score in central.scores.items():
            near = 0.002 if name == "auc" else 1e-3
            assert found.scores[name].value == pytest.approx(score.value, abs=near)


# ------------------------------------------------------------------------------ what is sent


class Recorded(QueueStar):
    """A coordinator's end that keeps the silos' answers."""

    answers = ()

    def exchange(self, messages):
        found = super().exchange(messages)
        self.answers = [*self.answers, found]
        return found


def sent(model, data, neighbours):
    """What silos send without masks, as integers, and the release, all silos having one seed."""
    star, found = Recorded([f"s{j}" for j in range(data.m)], deadline=20.0), []

    def party_of(j, link):
        how = {"colluding": 1, "opening": b"opening", "public": NoiseStream(7)}
        party = SiloParty(link, NoMasks(), silo=j, **how)
        party.silos = star.silos
        return held_by(party, own_records(data, j), data.sizes)

    how = {"budget": BUDGET, "rng": 7, "bins": 8, "neighbours": neighbours}
    how |= {"public_size": 2_000} if neighbours == "add_remove" else {}

    def take(j, link):
        with link:
            link.exchange(None)
            found.append(dpk.evaluate(model, party_of(j, link), **how))

    silos = [threading.Thread(target=take, args=pair) for pair in enumerate(star.links)]
    for silo in silos:
        silo.start()
    public = {"colluding": 1, "opening": b"opening", "public": NoiseStream(7)}
    party = CoordinatorParty(star, told=b"opening", **public)
    dpk.evaluate(model, held_by(party, data, data.sizes), **how)
    star.finish(party.told, star.silos, 10.0)
    for silo in silos:
        silo.join(30.0)
    (release,) = found[0].privacy.releases
    return [np.frombuffer(one[44:], "<i8") for one in star.answers[-1]], release


@for_each(("task", "neighbours"), PAIRS)
def test_integers_of_neighbours_differ_by_the_sensitivity(task, neighbours, models):
    """One silo's record is replaced or removed: noise of one seed leaves the sums' difference."""
    model, worst = models[task], 0.0
    X, y = np.array(records_of(task).X), labels_of(records_of(task))
    # Records that the model is surest of, right and wrong: one is replaced by the other.
    X[[450, 1_300]] = [[-1.0, 0.3, 0.3], [1.0, 0.3, 0.3]]
    far = y[[450, 1_300]] = (-9.0, 9.0) if task == "targets" else model.classes[[0, -1]]
    data = data_of(model, X, y, [0, 400, 900, 1200, 2000])
    for i, row, label in ((450, [1.0, 0.3, 0.3], far[0]), (1_300, [-1.0, 0.0, 0.0], far[0])):
        rows, offsets, others, said = np.arange(data.n), data.offsets, X.copy(), y.copy()
        if neighbours == "replace_one":
            others[i], said[i] = row, label
        else:
            rows, offsets = np.delete(rows, i), offsets - (offsets > i)
        other = data_of(model, others[rows], said[rows], offsets)
        (one, release), (two, other_release) = (sent(model, d, neighbours) for d in (data, other))
        assert release == other_release
        moved = [np.linalg.norm((a - b) * release.grid) for a, b in zip(one, two, strict=True)]
        assert sum(norm > 0.0 for norm in moved) == 1
        worst = max(worst, *moved)
    assert 0.6 * release.sensitivity < worst <= release.sensitivity


@for_each("trust", TRUSTS)
def test_the_stated_noise_is_that_of_the_sum(trust):
    """All silos add noise, of which intervals must know, and not of the honest ones alone."""
    rng = np.random.default_rng(0)
    edges = np.linspace(0.0, 1.0, 5)
    sums = of_two_classes(rng.random(400), rng.integers(0, 2, 400), edges)
    shares, sizes = (Shares(4, 1), [400]) if trust == "central" else (None, [100] * 4)
    exact, drawn = sums.vectors(slice(None)).sum(axis=0), []
    for seed in range(500):
        channel = Channel(Ledger(), NoiseStream(seed), SEEN_BY[trust], shares=shares)
        released, std = sums.release(channel, [0, 50, 100, 200, 400], sizes, 0.5)
        drawn.append((released - exact) / std)
    assert np.std(drawn) == pytest.approx(1.0, abs=0.03)


def test_answers_hold_nothing_of_the_records_but_noisy_sums(models, tmp_path):
    """Of 64 bits that masks make uniform; and nothing of their number before."""
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    star = Recorded(study.names, deadline=20.0)
    found, outcomes = run(study, data, star=star, bins=8)
    assert [len(one) for one in star.answers] == [4] * 4  # offers, confirmations, ready, sums
    sums = [np.frombuffer(one[44:], "<u8") for one in star.answers[-1]]
    assert all(len(words) == found.privacy.releases[0].dim for words in sums)
    assert np.abs(np.mean([words / 2.0**64 for words in sums]) - 0.5) < 0.2
    assert all(len(one) == 44 for one in star.answers[-2])
    assert not any(isinstance(one, BaseException) for one in outcomes)


# ------------------------------------------------------------------------------ journals


def test_killed_parties_go_on_where_they_were(models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    ledger, kept = dpk.Accountant(tmp_path / "s1.json", epsilon=2.0, delta=1e-6), tmp_path / "s1"
    star, how = QueueStar(study.names, deadline=20.0), {"journal": tmp_path / "coordinator"}
    federation = Federation(study, star=lambda: star, **how)
    of_silo = {1: {"accountant": ledger, "journal": kept}}
    found, outcomes = run(study, data, star=star, coordinator=federation, of_silo=of_silo)
    assert 0.99 < ledger.spent <= 1.0
    # Once more, from the journals alone.
    nobody = Federation(study, star=lambda: pytest.fail("connected"), **how)
    assert bits(dpk.evaluate(study.model, nobody, budget=BUDGET)) == bits(found)
    with pytest.warns(UserWarning, match="has this run as a whole"):
        again = take_part(
            study,
            "s1",
            silo_data(study, data, 1),
            QueueStar(["s1"], deadline=1.0).links[0],
            identities(4)[1],
            accountant=ledger,
            rng=7,
            journal=kept,
        )
    assert bits(again) == bits(outcomes[1])
    assert len(ledger.entries) == 1


@for_each("moment", MOMENTS)
@for_each("last", range(1, 6))  # hello, offers, confirmations, ready, sums
def test_a_silo_that_died_goes_on_where_it_was(last, moment, models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    star = QueueStar(study.names, deadline=20.0)
    mailbox = Mailbox(star.links[1])
    ledger = dpk.Accountant(tmp_path / "s1.json", epsilon=2.0, delta=1e-6)
    of_silo = {"accountant": ledger, "journal": tmp_path / "s1"}
    of_silo["lives"] = [Mortal(mailbox, last, moment), mailbox]
    found, outcomes = run(study, data, star=star, of_silo={1: of_silo})
    expected = dpk.evaluate(models["two"], data, budget=BUDGET, rng=7, colluding=1)
    assert bits(found) == bits(outcomes[1]) == bits(expected)
    assert all(len(answers) == 1 for answers in mailbox.answers.values())
    # What is withdrawn at an error before anything is released is charged again.
    assert [entry.what for entry in ledger.entries] == ["evaluate"] * (1 + (last == 4))
    assert 0.99 < ledger.spent <= 1.0


# ------------------------------------------------------------------------------ what is refused


def test_a_silo_without_budget_answers_nothing_and_others_pay_nothing(models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    ledgers = [
        dpk.Accountant(tmp_path / f"s{j}.json", epsilon=epsilon, delta=1e-6)
        for j, epsilon in enumerate((1.5, 1.5, 0.5, 1.5))
    ]
    star = Recorded(study.names, deadline=20.0)
    of_silo = {j: {"accountant": one} for j, one in enumerate(ledgers)}
    found, outcomes = run(study, data, star=star, of_silo=of_silo)
    assert isinstance(found, SilosLostError)
    assert "s2: BudgetSpentError" in str(found)
    assert isinstance(outcomes[2], dpk.BudgetSpentError)
    assert len(star.answers) == 2  # offers and confirmations, no sum
    assert [one.spent for one in ledgers] == [0.0] * 4
    found, outcomes = run(study, data, of_silo={j: of_silo[j] for j in (0, 1, 3)})
    assert [one.spent > 0.99 for one in ledgers] == [True, True, False, True]
    assert [entry.what for entry in ledgers[0].entries] == ["evaluate", "evaluate"]


@for_each("party", [1, None])
def test_a_party_with_another_model_refuses(party, models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    other = replace(study, model=replace(study.model, intercept=study.model.intercept + 1e-9))
    assert other.digest != study.digest
    if party is None:
        given = Federation(study, star=lambda: pytest.fail("connected"))
        text = r"states another model: write it as \[data\] model = "
        assert_refused(text, dpk.evaluate, other.model, given, budget=BUDGET)
        return
    found, outcomes = run(study, data, of_silo={party: {"study": other}})
    assert isinstance(outcomes[party], ProtocolError)
    assert "the study of the coordinator is" in str(outcomes[party])
    assert "compare study files" in str(found)
    assert isinstance(found, SilosLostError)
    assert found.silos == ("s1",)


def test_other_labels_than_the_models_are_refused(models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    X, y = data.X[:400], np.where(data.y[:400] > 0.0, "yes", "perhaps")
    assert "perhaps" not in assert_refused("labels of classes only", study.silo_data, "s0", X, y)
    assert_refused("must have shape", study.silo_data, "s0", X[:, :2], y)


def test_a_study_of_a_model_takes_no_fit_and_one_of_fits_no_evaluation(models, tmp_path):
    data = records_of("two")
    study = study_of(tmp_path, models["two"], data)
    federation = Federation(study, star=lambda: pytest.fail("connected"))
    text = "the study states a model, got a plan of 'gradient_descent': evaluate it"
    assert_refused(text, dpk.solve, "gradient_descent", federation, budget=BUDGET)
    fits = replace(study, model=None)
    text = "the study states no model, got a plan of 'evaluate'"
    assert_refused(text, proposed, fits, "evaluate", BUDGET, {})
    federation = Federation(fits, star=lambda: pytest.fail("connected"))
    assert_refused("states no model", dpk.evaluate, study.model, federation, budget=BUDGET)
    # A silo believes nobody.
    plan = Proposal("gradient_descent", BUDGET, {"trust": "central", "rounds": 2})
    assert_refused("got a plan of 'gradient_descent'", rehearsed, study, plan)


@for_each(
    ("how", "text"),
    [
        ({"y": [0, 1]}, "y and classes must be None beside a Federation"),
        ({"classes": [0, 1]}, "y and classes must be None beside a Federation"),
        ({"person": [1, 2]}, "person must be None for silos"),
        ({"max_records": 2}, "max_records must be"),
        ({"bins": 1001}, "bins must be at most 1000"),
        ({"trust": "silo"}, "trust must be that of the study, 'central'"),
        ({"trust": "shuffle"}, "trust must be 'central' or 'silo'"),
        ({"neighbours": "add_remove"}, "public_size must be given"),
    ],
)
def test_wrong_calls_reach_nobody(how, text, models, tmp_path):
    study = study_of(tmp_path, models["two"], records_of("two"))
    federation = Federation(study, star=lambda: pytest.fail("connected"))
    with pytest.raises((TypeError, ValueError), match=text):
        dpk.evaluate(study.model, federation, budget=BUDGET, **how)


def test_targets_without_bounds_are_refused_before_silos_are_asked(tmp_path):
    rng = np.random.default_rng(0)
    data = dpk.SiloData.split(rng.uniform(-1.0, 1.0, (400, 2)), rng.random(400), 1, row_bound=2.0)
    how = {"loss": "squared", "rounds": 2, "clip": 1.0}
    model = dpk.solve("gradient_descent", data, budget=dpk.Budget(mu=1.0), rng=0, **how)
    study = study_of(tmp_path, model, records_of("two"))
    federation = Federation(study, star=lambda: pytest.fail("connected"))
    text = "target_bound must be given for a model that was fitted without one"
    assert_refused(text, dpk.evaluate, model, federation, budget=BUDGET)
    plan = proposed(study, "evaluate", BUDGET, {"target_bound": (0.0, 1.0)})
    assert rehearsed(study, plan).declared["target_middle"] == 0.5


def test_hazards_are_refused_before_silos_are_asked(tmp_path):
    from dpkern.estimators import DPDiscreteHazards

    rng = np.random.default_rng(0)
    X, years = rng.uniform(-1.0, 1.0, (2_000, 1)), rng.exponential(2.0, 2_000)
    dead = rng.random(2_000) < 0.7
    how = {"intervals": (0, 1, 2, 4), "feature_range": (-1.0, 1.0), "random_state": 0}
    fitted = DPDiscreteHazards(5.0, 1e-6, **how).fit(X, np.column_stack([years, dead]))
    schema = Schema(
        [
            Column("x", "number", lo=-1.0, hi=1.0),
            Column("years", "target", intervals=(0, 1, 2, 4)),
            Column("dead", "event", classes=[0, 1]),
        ]
    )
    frame = {"x": X[:, 0], "years": years, "dead": dead.astype(int)}
    data = schema.silo_data(frame, 4, seed=0)
    described = dpk.solve("auto", data, budget=dpk.Budget(mu=1.0), rng=0, rounds=2)
    text = "got hazards of intervals: .* dpkern.evaluation.concordance_index releases"
    assert_refused(text, dpk.evaluate, fitted, X, years, target_bound=9.0, budget=BUDGET)
    for model in (fitted.result_, described):
        study = study_of(tmp_path, model, data)
        federation = Federation(study, star=lambda: pytest.fail("connected"))
        assert_refused(text, dpk.evaluate, model, federation, budget=BUDGET)
        assert_refused(text, dpk.evaluate, model, data, budget=BUDGET, colluding=1)
        assert_refused(text, rehearsed, study, proposed(study, "evaluate", BUDGET, {}))


def test_no_record_of_an_evaluation_makes_numpy_raise(models):
    """An error would reach the coordinator, and tell that the record is there."""
    data, model = records_of("several"), models["several"]
    X, y = np.array(data.X), labels_of(data)
    X[0] = 1e-320
    data = data_of(model, X, y, data.offsets)
    expected = dpk.evaluate(model, data, budget=BUDGET, rng=7, colluding=1)
    with np.errstate(all="raise"):
        found = dpk.evaluate(model, data, budget=BUDGET, rng=7, colluding=1)
    assert bits(found) == bits(expected)


def test_silos_that_add_noise_are_those_of_data_in_memory(models):
    data, model = records_of("two"), models["two"]
    with pytest.raises(TypeError, match="X must be a SiloData in memory, whose silos add noise"):
        dpk.evaluate(model, data.X, data.y, budget=BUDGET, colluding=1)
    for how, text in (
        ({"colluding": 4}, "colluding must be below the 4 silos"),
        ({"colluding": -1}, "colluding must be at least 0"),
        ({"colluding": 1, "trust": "silo"}, "colluding needs trust='central'"),
    ):
        assert_refused(text, dpk.evaluate, model, data, budget=BUDGET, **how)


# ------------------------------------------------------------------------------ the study


def test_the_study_takes_rows_and_labels_from_the_model(models, tmp_path):
    for task in TASKS:
        study = study_of(tmp_path, models[task], records_of(task))
        described, model = study.described, models[task]
        assert (study.n_features, described.feature_names) == (3, model.feature_names)
        if model.classes is not None:
            assert described.classes.tolist() == model.classes.tolist()
        lo, hi = described.feature_range
        assert np.allclose([lo, hi], [[-1.0] * 3, [1.0] * 3], rtol=1e-8)
    text = (tmp_path / "study.toml").read_text()
    for more, said in (
        ('classes = ["no", "yes"]', r"\[data\]: a table with a model.* unknown key 'classes'"),
        ('schema = "schema.json"', r"\[data\]: .*(schema|model).* unknown key"),
    ):
        (tmp_path / "study.toml").write_text(text.replace("[data]", f"[data]\n{more}"))
        assert_refused(said, Study.read, tmp_path / "study.toml")
    (tmp_path / "study.toml").write_text(text.replace('"model.npz"', "3"))
    with pytest.raises(TypeError, match="model must be the path of a file, got 3"):
        Study.read(tmp_path / "study.toml")


def test_a_model_with_a_schema_takes_raw_records(tmp_path):
    schema = Schema(
        [
            Column("age", "number", lo=0, hi=100),
            Column("sex", "category", categories=["f", "m"]),
            Column("ill", "target", classes=["no", "yes"]),
        ]
    )
    rng = np.random.default_rng(0)
    ages, sexes = rng.uniform(0.0, 100.0, 2_000), rng.choice(["f", "m"], 2_000)
    ill = np.where(ages + 20.0 * rng.standard_normal(2_000) > 50.0, "yes", "no")
    frame = {"age": ages, "sex": sexes, "ill": ill}
    fitted = schema.silo_data(frame, 1)
    model = dpk.solve("gradient_descent", fitted, budget=dpk.Budget(mu=2.0), rng=0)
    study = study_of(tmp_path, model, records_of("two"))
    assert study.described.schema == schema
    here = study.silo_data("s0", {name: values[:400] for name, values in frame.items()})
    assert here.n == 400
    (tmp_path / "study.toml").write_text(
        (tmp_path / "study.toml").read_text().replace("[data]", "[data]\nsparse = true")
    )
    assert_refused("unknown key 'sparse'", Study.read, tmp_path / "study.toml")


def test_a_rehearsal_costs_what_the_run_does(models, tmp_path):
    data = records_of("several")
    study = study_of(tmp_path, models["several"], data)
    plan = proposed(study, "evaluate", BUDGET, {"threshold": 0.5, "neighbours": "replace_one"})
    assert Proposal.from_json(plan.to_json()) == plan
    expected = rehearsed(study, plan)
    found, _ = run(study, data)
    assert expected.releases == found.privacy.releases
    assert expected.model == found.privacy.model
