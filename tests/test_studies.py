"""Whole studies: identities, sessions and masks, in threads and in processes of this machine."""

import functools
import multiprocessing
import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each
from local_stars import ProcessLink, ProcessStar, QueueStar
from makers import assert_refused, same

import dpkern as dpk
from dpkern.federated.journal import JournalError, RecordedStar, SteadyLink
from dpkern.federated.links import (
    CoordinatorLostError,
    FederationError,
    Link,
    SilosLostError,
    Star,
    public_reason,
    readable_reason,
)
from dpkern.federated.proposal import Proposal
from dpkern.federated.rehearsal import disclosure, rehearsed
from dpkern.models.hazards import DiscreteHazards, cells_of
from dpkern.models.penalties import L1, L2, Box, ElasticNet
from dpkern.party import ImplausibleError, Party
from dpkern.privacy.accountant.accountant import BudgetSpentError
from dpkern.privacy.certificate.ledger import Ledger
from dpkern.privacy.mechanisms.channel import Channel, Shares, largest_norm
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.stream import NoiseStream, PublicDraws

pytest.importorskip("cryptography")

from forks import FORKS
from kills import Kills, accountant_of, models_in
from network import free_port
from studies import identities, records_of, study_of, wisconsin

from dpkern.federated.federation import Federation, proposed
from dpkern.federated.party import ProtocolError
from dpkern.federated.silo import take_part
from dpkern.federated.study import Silo, Study

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
KEY = b"of this test"


class Hospitals:
    """The silos of a study in threads; `outcomes` are their results or errors."""

    def __init__(self, study, data, links, of_silo=None, records=records_of, **how):
        self.study, self.data, self.how = study, data, {"accountant": None, "rng": 7} | how
        self.records = records
        self.of_silo = of_silo or {}
        self.outcomes = [None] * data.m
        self.threads = [
            threading.Thread(target=self._take_part, args=(j, link)) for j, link in enumerate(links)
        ]
        for thread in self.threads:
            thread.start()

    def _take_part(self, j, link):
        try:
            with link:
                self.outcomes[j] = take_part(
                    self.study,
                    f"s{j}",
                    self.records(self.study, self.data, j),
                    link,
                    identities(self.data.m)[j],
                    n_threads=1,
                    **self.how | self.of_silo.get(j, {}),
                )
        except BaseException as error:
            self.outcomes[j] = error

    def join(self):
        for thread in self.threads:
            thread.join(30.0)
            assert not thread.is_alive()
        return self.outcomes


def run(data, name="gradient_descent", *, study=None, of_silos=None, **arguments):
    """Return the coordinator's result, and the silos' outcomes."""
    study = study or study_of(data)
    star = QueueStar(study.names, deadline=20.0)
    silos = Hospitals(study, data, star.links, **(of_silos or {}))
    try:
        result = dpk.solve(name, Federation(study, star=lambda: star), budget=BUDGET, **arguments)
    except Exception as error:
        result = error
    return result, silos.join()


@for_each("trust", ["central", "silo"])
@for_each(
    ("name", "how"),
    [
        ("gradient_descent", {"rounds": 5, "penalty": L1(0.01) + L2(0.001)}),
        ("federated_gd", {"rounds": 3, "local_steps": 4}),
        ("local_newton", {"rounds": 2}),
        ("newton_inference", {}),
        ("spider", {"rounds": 4, "returns": 3}),
        ("spider", {"rounds": 3, "variant": "alternate"}),
    ],
)
def test_a_study_has_the_bits_of_one_process_where_all_have_one_seed(name, how, trust):
    """Masks cancel, and offers, plans and sessions change nothing."""
    data = wisconsin()
    t = 1 if trust == "central" else None
    expected = dpk.solve(name, data, budget=BUDGET, rng=7, trust=trust, colluding=t, **how)
    study = study_of(data, trust)
    result, outcomes = run(data, name, study=study, **how)
    assert same(result, expected)
    assert all(same(found, expected) for found in outcomes)
    assert result.privacy.trust == trust
    # Everything of the data that the model needs to predict comes from the study.
    assert np.array_equal(result.predict(data.X), expected.predict(data.X))


def cohorts(n):
    """A schema of times to an event, and raw columns."""
    rng = np.random.default_rng(0)
    age, late = rng.uniform(20.0, 90.0, n), 8.0 * rng.exponential(size=n)
    time = 2.5 * rng.exponential(np.exp((55.0 - age) / 35.0))
    event = np.where(time <= late, "dead", "alive")
    schema = dpk.Schema(
        [
            dpk.data.Column("age", "number", lo=20, hi=90),
            dpk.data.Column("years", "target", intervals=(0, 1, 2, 4)),
            dpk.data.Column("state", "event", classes=["alive", "dead"]),
        ]
    )
    return schema, {"age": age, "years": np.minimum(time, late), "state": event}


def study_of_times(trust, sizes):
    schema, frame = cohorts(sum(sizes))
    keys = [key.public_key().public_bytes_raw() for key in identities(len(sizes))]
    silos = [Silo(f"s{j}", n, key) for j, (n, key) in enumerate(zip(sizes, keys, strict=True))]
    t = 1 if trust == "central" else None
    study = Study("times", tuple(silos), trust, t, schema.options(), schema.n_features)
    first = np.cumsum([0, *sizes])

    def raw(j):
        return {name: column[first[j] : first[j + 1]] for name, column in frame.items()}

    return study, schema, frame, raw


@for_each("trust", ["central", "silo"])
@for_each("link", ["cloglog", "logistic"])
def test_times_to_events_have_the_bits_of_one_process(trust, link):
    sizes = (130, 70, 100)
    study, schema, frame, raw = study_of_times(trust, sizes)
    model = DiscreteHazards(schema.intervals, link)
    y = cells_of(frame["years"], frame["state"] == "dead", (0, 1, 2, 4))
    bounds = {"row_bound": 1.0, "task": "multiclass", "classes": range(7), "schema": schema}
    offsets, names = np.cumsum([0, *sizes]), schema.feature_names
    data = dpk.SiloData(schema.encode(frame), y, offsets, **bounds, feature_names=names)
    how = {"model": model, "budget": BUDGET, "trust": trust, "rounds": 4}
    t = 1 if trust == "central" else None
    expected = dpk.solve("minibatch_sgd", data, rng=7, colluding=t, **how)
    result, outcomes = run(
        data,
        "minibatch_sgd",
        study=study,
        of_silos={"records": lambda study, _, j: study.silo_data(f"s{j}", raw(j))},
        model=model,
        rounds=4,
    )
    assert same(result, expected)
    assert all(same(found, expected) for found in outcomes)
    assert result.oracle == model


def test_follow_up_is_in_nothing_that_a_study_writes(tmp_path):
    sizes, texts = (60, 50, 40), []
    for exits in (lambda t: t, lambda t: np.full(len(t), 0.734251)):
        study, schema, _, raw = study_of_times("central", sizes)
        folder = tmp_path / str(len(texts))
        folder.mkdir()
        books = {j: {"accountant": dpk.Accountant(folder / f"{j}.json", epsilon=3, delta=1e-4),
                     "journal": folder / f"{j}.journal"} for j in range(3)}  # fmt: skip

        def records(study, _, j, raw=raw, exits=exits):
            own = raw(j)
            return study.silo_data(f"s{j}", own | {"years": exits(own["years"])})

        data = study.described.each_alone(np.zeros(3, np.int64))  # a silo each
        result, _ = run(
            data,
            "minibatch_sgd",
            study=study,
            of_silos={"records": records, "of_silo": books},
            model=DiscreteHazards(schema.intervals),
            rounds=3,
        )
        texts.append(str((result.parameters, result.privacy.declared, result.privacy.releases)))
        files = (folder / f"{j}.{kind}" for j in range(3) for kind in ("json", "journal"))
        written = [path.read_bytes() for path in files]
        assert not any(b"0.734251" in content for content in written)
        assert not any(np.float64(0.734251).tobytes() in content for content in written)
    assert texts[0] == texts[1]


def test_a_silos_error_about_follow_up_names_no_value():
    study, _, _, raw = study_of_times("central", (60, 50, 40))
    for column, bad in (("years", "-777.0"), ("state", "moved")):
        own = {name: list(values) for name, values in raw(0).items()}
        own[column][7] = bad
        with pytest.raises(ValueError, match=f"column '{column}'.*the first is in row 7") as caught:
            study.silo_data("s0", own)
        assert bad not in str(caught.value)


def test_a_study_of_times_has_hazards_where_no_model_is_named():
    study, schema, _, raw = study_of_times("central", (60, 50, 40))
    data = study.described.each_alone(np.zeros(3, np.int64))  # a silo each
    records = {"records": lambda study, _, j: study.silo_data(f"s{j}", raw(j))}
    result, outcomes = run(data, "auto", study=study, of_silos=records, rounds=2)
    assert result.oracle == DiscreteHazards(schema.intervals)
    assert all(same(found, result) for found in outcomes)


def test_intervals_of_a_plan_must_be_those_of_the_study():
    study, *_ = study_of_times("central", (60, 50, 40))
    plan = proposed(study, "minibatch_sgd", BUDGET, {"model": DiscreteHazards((0, 2, 4, 9))})
    with pytest.raises(ValueError, match=r"edges must be the intervals of the schema, \(0.0, 1.0"):
        rehearsed(study, plan)


def test_parties_without_seeds_agree_on_a_model_that_differs_every_time():
    data, study = wisconsin(), study_of(wisconsin())
    models = []
    for _ in range(2):
        result, outcomes = run(data, of_silos={"rng": None}, rounds=3, study=study)
        assert all(np.array_equal(found.coef, result.coef) for found in outcomes)
        assert result.privacy.noise == "os"
        models.append(result.coef)
    assert not np.array_equal(*models)


def test_what_is_drawn_in_public_is_the_same_for_all():
    data = wisconsin()
    result, outcomes = run(
        data, "minibatch_sgd", rounds=6, participation=2, of_silos={"rng": None}, returns="random"
    )
    assert all(np.array_equal(found.coef, result.coef) for found in outcomes)


def test_public_draws_do_not_depend_on_what_a_private_stream_was_used_for():
    """Else silos would take part in different rounds, and the sum would be of none of them."""
    used = dpk.NoiseStream()
    used.releases(3)
    fresh, seed = PublicDraws(dpk.NoiseStream(1), dpk.NoiseStream()), dpk.NoiseStream(1)
    after = PublicDraws(dpk.NoiseStream(1), used)
    for _ in range(3):
        assert fresh.release().key == after.release().key == seed.release().key


def test_a_silo_with_another_study_takes_no_part():
    data = wisconsin()
    study = study_of(data)
    star = QueueStar(study.names, deadline=10.0)
    silos = Hospitals(replace(study, name="another"), data, star.links)
    with pytest.raises(SilosLostError, match="s0: ProtocolError"):
        dpk.solve("gradient_descent", Federation(study, star=lambda: star), budget=BUDGET)
    for outcome in silos.join():
        assert isinstance(outcome, ProtocolError)
        assert "the study of the coordinator is" in str(outcome)
        assert "compare study files and schemas by `dpkern federation show`" in str(outcome)


def test_a_refused_plan_reveals_nothing_and_charges_nothing(tmp_path):
    data = wisconsin()

    def refuse(plan):
        raise ValueError("not with us")

    path = tmp_path / "budget.json"
    accountant = dpk.Accountant(path, epsilon=2.0, delta=1e-5)
    result, outcomes = run(data, of_silos={"accept": refuse, "accountant": accountant})
    assert isinstance(result, SilosLostError)
    assert "ValueError" in str(result)
    assert "not with us" not in str(result)
    assert accountant.spent == 0.0
    assert all(isinstance(o, ValueError) for o in outcomes)


def test_a_silos_accountant_is_charged_before_it_sends_and_refuses_beyond_its_budget(tmp_path):
    data = wisconsin()
    accountant = dpk.Accountant(tmp_path / "s.json", epsilon=5.0, delta=1e-5)
    # All four silos charge one file, sequentially: some of them find it spent.
    result, outcomes = run(data, of_silos={"accountant": accountant}, rounds=3)
    assert all(not isinstance(outcome, Exception) for outcome in outcomes)
    assert 1.9 < accountant.spent < 2.5  # four charges of epsilon 1
    spent = dpk.Accountant(tmp_path / "t.json", epsilon=0.5, delta=1e-5)
    result, outcomes = run(data, of_silos={"accountant": spent}, rounds=3)
    assert all(isinstance(outcome, BudgetSpentError) for outcome in outcomes)
    assert "BudgetSpentError" in str(result)
    assert spent.spent == 0.0


@for_each(
    ("arguments", "kind", "match"),
    [
        ({"budget": None}, TypeError, "budget must be"),
        ({"trust": "silo"}, ValueError, "trust must be that of the study"),
        ({"loss": dpk.losses.Custom}, TypeError, "loss must be"),
    ],
)
def test_plans_that_cannot_be_told_are_refused_at_the_coordinator(arguments, kind, match):
    federation = Federation(study_of(wisconsin()), star=lambda: pytest.fail("connected"))
    with pytest.raises(kind, match=match):
        dpk.solve("gradient_descent", federation, **({"budget": BUDGET} | arguments))


def test_plans_survive_the_journey():
    arguments = {
        "clip": 1.5,
        "loss": dpk.losses.Huber(0.25),
        "penalty": L1(0.1) + ElasticNet(0.2, l1_ratio=0.25),
        "step_size": [0.1, 0.2],
        "trust": "central",
        "momentum": None,
    }
    plan = Proposal("gradient_descent", BUDGET, arguments)
    found = Proposal.from_json(plan.to_json())
    assert found.to_json() == plan.to_json()
    assert found.budget == BUDGET
    assert found.solver == plan.solver
    assert str(found.arguments["penalty"]) == str(arguments["penalty"])
    assert found.arguments["loss"] == arguments["loss"]
    for network in (dpk.MLP(hidden=(3, 2)), DiscreteHazards((0, 0.1, 7), "logistic")):
        model = Proposal("minibatch_sgd", dpk.Budget(mu=0.3), {"model": network})
        assert Proposal.from_json(model.to_json()).arguments["model"] == network
    constraint = Proposal("prox_sgd", BUDGET, {"penalty": Box(-1.0, np.array([1.0, 2.0]))})
    assert Proposal.from_json(constraint.to_json()).to_json() == constraint.to_json()


@for_each(
    "text",
    [
        "",
        "[]",
        "3",
        '{"solver": "gradient_descent"}',
        '{"solver": "no", "budget": {"mu": 1}, "arguments": {}}',
        '{"solver": "gradient_descent", "budget": {"mu": -1}, "arguments": {}}',
        '{"solver": "gradient_descent", "budget": {"mu": 1}, "arguments": {"rng": 3}}',
        '{"solver": "wd_dp", "budget": {"mu": 1}, "arguments": {"x": {"__object__": "int"}}}',
        '{"solver": "gradient_descent", "budget": {"mu": 1}, "arguments": {"x": {"a": 1}}}',
        # Sizes whose sum is 5 modulo 2^64, which a kernel would follow beyond its arrays.
        '{"solver": "gradient_descent", "budget": {"mu": 1}, "arguments": {"penalty": '
        '{"__object__": "GroupLasso", "groups": [4611686018427387904, 4611686018427387904, '
        "4611686018427387904, 4611686018427387904, 5]}}}",
    ],
)
def test_what_is_no_plan_is_refused(text):
    assert_refused(r"must|plan", Proposal.from_json, text)


@for_each(
    "said",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"protocol": 1}',
        b'{"protocol":1,"dpkern":"0","study":"x","nonce":"zz","plan":""}',
    ],
)
def test_what_is_no_proposal_is_refused(said):
    class Says(Link):
        def exchange(self, answer):
            assert answer is None
            return said

        def close(self, error=None):
            pass

    data = wisconsin()
    study = study_of(data)
    with pytest.raises(ProtocolError):
        take_part(
            study, "s0", records_of(study, data, 0), Says(), identities(4)[0], accountant=None
        )


def test_a_rehearsal_states_the_guarantee_before_any_record_is_read():
    data = wisconsin()
    study = study_of(data)
    for name, how in (
        ("gradient_descent", {"rounds": 5}),
        ("local_newton", {"rounds": 2}),
        ("newton_inference", {}),
        ("federated_gd", {"rounds": 3, "local_steps": 4}),
    ):
        plan = Proposal(name, BUDGET, {"trust": "central", **how})
        expected = rehearsed(study, plan)
        result, _ = run(data, name, study=study, **how)
        assert expected.mu == pytest.approx(result.privacy.mu, rel=1e-9)
        assert [r.what for r in expected.releases] == [r.what for r in result.privacy.releases]
        text = "\n".join(disclosure(study, plan, expected))
        assert "to the coordinator and the other 3 silos, sums over all silos" in text
        assert "together with up to 1 of the others" in text


def test_certificates_have_the_lines_of_ledgers_and_silos_see_one_twice(tmp_path, recwarn):
    data = wisconsin()
    paths = [tmp_path / f"s{j}.json" for j in range(4)]
    ledgers = [dpk.Accountant(path, epsilon=5.0, delta=1e-5) for path in paths[:3]]
    ends = [ledger.last_line for ledger in ledgers]
    before = paths[1].read_bytes()
    of_silo = {j: {"accountant": ledger} for j, ledger in enumerate(ledgers)}
    stated = ", ".join(f"s{j} line {n} ({check})" for j, (n, check) in enumerate(ends))
    note = f"last lines of the silos' ledgers before this run: {stated}, s3 none"
    for trust in ("central", "silo"):
        how = {"study": study_of(data, trust), "rounds": 2, "of_silos": {"of_silo": of_silo}}
        result, found = run(data, **how)
        assert all(set(result.privacy.notes) <= set(one.privacy.notes) for one in found)
        assert (note in result.privacy.notes) == (trust == "central")  # the first of both
    assert not [w for w in recwarn if "where it ended" in str(w.message)]
    paths[1].write_bytes(before)  # an older copy, and a process that knows nothing of the newer
    of_silo[1] = {"accountant": dpk.Accountant(paths[1])}
    run(data, rounds=2, of_silos={"of_silo": of_silo})
    seen = [str(w.message) for w in recwarn if "where it ended" in str(w.message)]
    assert seen
    assert all(text.startswith("s1: its ledger ends where it ended before") for text in seen)


# ---------------------------------------------------------------------------- implausible sums

FALSE = {
    "random words": lambda message: message[:44] + os.urandom(len(message) - 44),
    "1e300": lambda message: message[:44] + np.full((len(message) - 44) // 8, 1e300).tobytes(),
    "NaN": lambda message: message[:44] + np.full((len(message) - 44) // 8, np.nan).tobytes(),
    "a large number": lambda message: message[:-8] + np.float64(1e9).tobytes(),
}


class FalseSilo(QueueStar):
    """A star whose silo s1 sends something else in one round."""

    def __init__(self, names, change):
        super().__init__(names, deadline=20.0)
        self.change, self.rounds = change, 0

    def exchange(self, messages):
        answers, self.rounds = super().exchange(messages), self.rounds + 1
        if self.rounds == 5:
            answers[1] = self.change(answers[1])
        return answers


@for_each("change", FALSE.values(), ids=FALSE)
@for_each(
    ("name", "trust", "how"),
    [
        ("gradient_descent", "central", {"rounds": 4, "clip": 0.5}),
        ("federated_gd", "central", {"rounds": 4, "local_steps": 2}),
        ("federated_gd", "silo", {"rounds": 4, "local_steps": 2}),
        ("local_newton", "silo", {"rounds": 2}),
        ("newton_inference", "silo", {}),
        ("newton_inference", "central", {}),
        ("local_sgd", "silo", {"rounds": 3, "local_steps": 2, "noise": "step"}),
    ],
)
def test_no_party_takes_an_implausible_sum(name, trust, how, change):
    data = wisconsin()
    study = study_of(data, trust)
    star = FalseSilo(study.names, change)
    silos = Hospitals(study, data, star.links)
    # Under silo trust the silo itself misses its message first, and masked words are no floats.
    who = "s1: its .* must have a norm" if trust == "silo" else "all silos must have a norm"
    with pytest.raises(ImplausibleError, match=who):
        dpk.solve(name, Federation(study, star=lambda: star), budget=BUDGET, **how)
    for outcome in silos.join():
        assert isinstance(outcome, CoordinatorLostError | ImplausibleError | ProtocolError)


def test_no_true_release_is_implausible():
    """The norm of d normal draws exceeds sqrt(d) + 9 with probability below 1e-17."""
    from scipy.stats import chi

    for d in (1, 2, 10, 123, 10_000, 10**6):
        assert chi.sf(largest_norm(0.0, 1.0, d) / 1.05, d) < 3e-18


def test_sums_that_saturate_in_every_coordinate_are_plausible():
    """Numbers of records are private there, and may be far from the stated ones."""

    class Alone(Party):
        silo, colluding, public = None, 0, None

        def ready(self):
            pass

        def total(self, steps, what):
            return steps

        def messages(self, rows, what):
            return rows

    shares = Shares(silos=2, colluding=0)
    with NoiseStream(1) as stream:
        channel = Channel(Ledger(), stream, "nobody", "add_remove", shares, Alone())
        mechanism = GaussianSum(channel, what="sum", clip=1.0, dim=50, sizes=[9], mu=1.0)
        total = np.full((2, 50), 2.0**52 * mechanism.grid[0])
        assert mechanism.release(total).min() > total.max()


def test_a_silo_that_waits_is_found_within_any_deadline(tmp_path, monkeypatch):
    """It may look for messages only every 8 seconds."""
    pytest.importorskip("flwr")
    from dpkern.federated import connections, flower

    found = {}
    (tmp_path / "superlink.secret").write_bytes(b"secret")
    monkeypatch.setattr(flower.FlowerStar, "__init__", lambda star, *_, **how: found.update(how))
    study = replace(study_of(wisconsin()), address="127.0.0.1:1")
    connections.coordinator_star(study, tmp_path, insecure=True, deadline=2.0)._held.close()
    assert found["deadline"] == 2.0
    assert found["join_deadline"] > flower._IDLE


# ----------------------------------------------------------------------------------- journals


class Dies(Exception):
    pass


class Mortal(Star):
    """A star whose coordinator dies at one of its exchanges, before or after the silos answer."""

    def __init__(self, star, last, after):
        self.silos, self._star, self._last, self._after, self._n = star.silos, star, last, after, 0

    def exchange(self, messages):
        self._n += 1
        if self._n == self._last and not self._after:
            raise Dies
        answers = self._star.exchange(messages)
        if self._n == self._last:
            raise Dies
        return answers

    def finish(self, last, silos, seconds):
        if self._n + 1 == self._last:
            raise Dies
        return self._star.finish(last, silos, seconds)

    def close(self, why=""):
        pass  # a coordinator that dies says nothing


@for_each("after", [False, True])
@for_each("last", [1, 2, 3, 4, 6, 7, 8])
def test_a_coordinator_that_died_goes_on_where_it_was(tmp_path, last, after):
    data = wisconsin()
    study, path = study_of(data), tmp_path / "study.journal"
    expected = dpk.solve("gradient_descent", data, budget=BUDGET, rng=7, colluding=1, rounds=5)
    star = QueueStar(study.names, deadline=20.0)
    silos = Hospitals(study, data, star.links)
    mortal = Federation(study, star=lambda: Mortal(star, last, after), journal=path)
    with pytest.raises(Dies):
        dpk.solve("gradient_descent", mortal, budget=BUDGET, rounds=5)
    with open(path, "ab") as file:
        file.write(b"half a record")  # as when it died while writing
    federation = Federation(study, star=lambda: star, journal=path)
    result = dpk.solve("gradient_descent", federation, budget=BUDGET, rounds=5)
    assert same(result, expected)
    assert all(same(found, expected) for found in silos.join())
    # Once more, without the silos.
    nobody = Federation(study, star=lambda: pytest.fail("connected"), journal=path)
    assert same(dpk.solve("gradient_descent", nobody, budget=BUDGET, rounds=5), expected)
    with pytest.raises(JournalError, match="of another study, another plan"):
        dpk.solve("gradient_descent", nobody, budget=BUDGET, rounds=6)


class LosesTheEnd(Mortal):
    """A star whose server dies when the last answers are in."""

    def __init__(self, star):
        super().__init__(star, 0, False)

    def finish(self, last, silos, seconds):
        return []


@for_each("journal", [None, "study.journal"])
def test_a_model_is_returned_before_silos_hear_the_end(tmp_path, journal):
    data = wisconsin()
    study, path = study_of(data), journal and tmp_path / journal
    expected = dpk.solve("gradient_descent", data, budget=BUDGET, rng=7, colluding=1, rounds=3)
    star = QueueStar(study.names, deadline=20.0)
    silos, stars = Hospitals(study, data, star.links), [star, LosesTheEnd(star)]
    federation = Federation(study, star=lambda: stars.pop(), journal=path)
    with pytest.warns(UserWarning, match="complete, but s0, s1, s2, s3 did not confirm the last"):
        result = dpk.solve("gradient_descent", federation, budget=BUDGET, rounds=3)
    assert same(result, expected)
    assert all(thread.is_alive() for thread in silos.threads)
    assert federation.finish() == ()
    assert all(same(found, expected) for found in silos.join())
    assert federation.finish() == ()


def test_silos_are_told_why_a_study_ended():
    error, outcomes = run(wisconsin(), of_silos={"of_silo": {1: {"accept": refuse}}})
    assert isinstance(error, SilosLostError)
    assert str(error).endswith("s1: FederationError: no such plans here")
    why = "ended the study: SilosLostError: s1: FederationError: no such plans here$"
    for j in (0, 2, 3):
        with pytest.raises(CoordinatorLostError, match=why):
            raise outcomes[j]


def refuse(plan):
    raise FederationError("no such plans here")


def test_reasons_of_errors_are_public_and_harmless_on_a_terminal():
    assert public_reason(ValueError("12345")) == "ValueError"
    assert public_reason(FederationError("a\nb \x1b[2J \u202e")) == (
        "FederationError: a b \\x1b[2J \\u202e"
    )
    assert len(public_reason(FederationError("x" * 10_000))) < 600
    spent = dpk.BudgetSpentError("0.123 is left")
    assert public_reason(spent) == "BudgetSpentError: its ledger has no room for this plan"
    for said in ("\x1b[2J", "Error: \n", "", None, 7, "x" * 1000, "no class"):
        assert readable_reason(said) == "an error"
    assert readable_reason("KeyError: text") == "KeyError: text"


def test_a_journal_of_something_else_is_refused(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b"notes of a meeting, which are long enough to hold any nonce of a study")
    with pytest.raises(JournalError, match="must be the journal of a study of this version"):
        RecordedStar(["a", "b"], QueueStar, path)
    assert path.read_bytes().startswith(b"notes")


def test_a_repeated_question_is_answered_by_the_same_bytes():
    asked, heard = [b"one", b"one", b"two", b"two", b"two", b"three"], []

    class Repeats(Link):
        def exchange(self, answer):
            heard.append(answer)
            return asked.pop(0)

        def close(self, error=None):
            pass

    link = SteadyLink(Repeats())
    assert link.exchange(None) == b"one"
    assert link.exchange(b"1") == b"two"
    assert link.exchange(b"2") == b"three"
    assert heard == [None, b"1", b"1", b"2", b"2", b"2"]


# ----------------------------------------------------------------------------------- processes


def hospital(address, j, out, deadline=20.0):
    data = wisconsin()
    study = study_of(data)
    accountant = accountant_of(out, j) if (out / f"s{j}.json").exists() else None
    with ProcessLink(f"s{j}", address, KEY, deadline=deadline) as link:
        result = take_part(
            study,
            f"s{j}",
            records_of(study, data, j),
            link,
            identities(4)[j],
            accountant=accountant,
            rng=7,
            n_threads=1,
        )
    np.save(out / f"s{j}.npy", np.append(result.coef, result.intercept))


def analyst(port, out, journal, rounds, deadline=20.0):
    data = wisconsin()
    study = study_of(data)

    def connect():
        star = ProcessStar(study.names, KEY, port=port, deadline=deadline)
        star.accept()
        return star

    federation = Federation(study, star=connect, journal=journal)
    result = dpk.solve("gradient_descent", federation, budget=BUDGET, rounds=rounds)
    np.save(out / "analyst.npy", np.append(result.coef, result.intercept))


def one_process(rounds):
    how = {"budget": BUDGET, "rng": 7, "colluding": 1, "rounds": rounds}
    result = dpk.solve("gradient_descent", wisconsin(), **how)
    return np.append(result.coef, result.intercept)


@pytest.mark.processes
def test_processes_have_the_bits_of_one(tmp_path):
    spawn, port = multiprocessing.get_context("spawn"), free_port()
    parties = [
        spawn.Process(target=hospital, args=(("127.0.0.1", port), j, tmp_path)) for j in range(4)
    ]
    parties.append(spawn.Process(target=analyst, args=(port, tmp_path, None, 40)))
    for process in parties:
        process.start()
    for process in parties:
        process.join(60.0)
        assert process.exitcode == 0
    found = models_in(tmp_path)
    assert len(found) == 5
    assert all(np.array_equal(model, one_process(40)) for model in found)


@pytest.mark.processes
def test_parties_killed_at_a_hundred_moments(tmp_path):
    rounds, port = 150, functools.cache(lambda folder: free_port())

    def silo(j, folder):
        return FORKS.Process(target=hospital, args=(("127.0.0.1", port(folder)), j, folder, 24.0))

    def coordinator(folder):
        start = (port(folder), folder, folder / "journal", rounds, 6.0)
        return FORKS.Process(target=analyst, args=start)

    kills = Kills(silo, coordinator, one_process(rounds), rounds, patience=36.0)
    kills.trials(tmp_path, 100, 0.6, at_once=4)


def test_processes_that_say_a_name_of_another_are_named():
    star = ProcessStar(["s0", "s1"], KEY, deadline=1.0)

    def joins(name):
        with pytest.raises(CoordinatorLostError):
            ProcessLink(name, star.address, KEY, deadline=1.0).exchange(None)

    threads = [threading.Thread(target=joins, args=(name,)) for name in ("s0", "s0", "s\x1b")]
    for thread in threads:
        thread.start()
    with pytest.raises(SilosLostError) as caught:
        star.accept()
    star.close()
    for thread in threads:
        thread.join()
    said = str(caught.value)
    assert said.startswith("s1: no connection by the deadline, while ")
    assert "another party says to be there, which the study does not have" in said
    assert "more than one says to be s0: start each with its own name" in said


@pytest.mark.processes
def test_a_killed_silo_ends_the_study(tmp_path):
    data = wisconsin()
    study = study_of(data)
    spawn = multiprocessing.get_context("spawn")
    star = ProcessStar(study.names, KEY, deadline=60.0)
    silos = [
        spawn.Process(target=hospital, args=(star.address, j, tmp_path, 60.0)) for j in range(4)
    ]
    for process in silos:
        process.start()
    star.accept()
    first = []

    def kill(t, release):
        if not first:
            first.append(t)
            os.kill(silos[2].pid, signal.SIGKILL)

    with pytest.raises(SilosLostError, match="s2"):
        dpk.solve(
            "gradient_descent",
            Federation(study, star=lambda: star),
            budget=BUDGET,
            rounds=200,
            callback=kill,
        )
    for process in silos:
        process.kill()
        process.join()
