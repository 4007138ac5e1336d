"""Silos that die and go on from journals: one answer to a message, one charge, no new noise."""

import fcntl
import threading
from collections import defaultdict

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused, same

import dpkern as dpk

pytest.importorskip("cryptography")

from local_stars import QueueStar
from studies import identities, records_of, study_of, wisconsin

from dpkern.federated.federation import Federation
from dpkern.federated.journal import Journal, JournalError
from dpkern.federated.links import CoordinatorLostError, FederationError, Link
from dpkern.federated.silo import take_part
from dpkern.federated.silo_journal import _MAGIC, _SAID, RecordedLink, SiloJournal
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.accountant.charges import KeptCharge
from dpkern.privacy.accountant.profiles import Bound

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
ROUNDS = 3
EXCHANGES = 3 + 1 + ROUNDS  # hello, offers and confirmations, that all are ready, and releases


class Dies(BaseException):
    pass


class Mailbox(Link):
    """What a silo's processes have in common: the coordinator repeats what was not answered."""

    def __init__(self, link):
        self._link, self._last, self._answered = link, None, True
        self.answers = defaultdict(set)

    def exchange(self, answer):
        if answer is not None:
            self.answers[self._last].add(answer)
            if not self._answered:
                self._link.sent.put(answer)
            self._answered = True
        if self._answered:
            self._last, self._answered = self._link.exchange(None), False
        return self._last

    def close(self, error=None):
        self._link.close(error)


class Mortal(Link):
    """A silo's process, which dies at one of its exchanges, at one of three moments."""

    def __init__(self, mailbox, last, moment):
        self._mailbox, self._last, self._moment, self._n = mailbox, last, moment, 0

    def exchange(self, answer):
        self._n += 1
        if self._n == self._last and self._moment == "before it sends":
            raise Dies
        if self._n == self._last and self._moment == "when it has sent":
            self._mailbox.answers[self._mailbox._last].add(answer)
            if answer is not None and not self._mailbox._answered:
                self._mailbox._link.sent.put(answer)
                self._mailbox._answered = True
            raise Dies
        message = self._mailbox.exchange(answer)
        if self._n == self._last:
            raise Dies
        return message

    def close(self, error=None):
        pass


class Study:
    """A study of four silos in threads, of which s1 lives several times."""

    def __init__(self, folder, deaths, *, trust="central", seed=7, change=lambda data: data):
        self.data, self.seed, self.folder = wisconsin(), seed, folder
        self.study = study_of(self.data, trust)
        self.star = QueueStar(self.study.names, deadline=10.0)
        self.mailbox, self.change = Mailbox(self.star.links[1]), change
        for j in range(4):
            Accountant(folder / f"s{j}.json", epsilon=5.0, delta=1e-5)
        self.outcomes, self.deaths = [None] * 4, deaths
        self.threads = [threading.Thread(target=self._silo, args=(j,)) for j in range(4)]
        for thread in self.threads:
            thread.start()

    def take_part(self, j, link, records=None, **how):
        accountant = Accountant(self.folder / f"s{j}.json")
        records = records_of(self.study, self.data, j) if records is None else records
        how = {"accountant": accountant, "rng": self.seed, "n_threads": 1} | how
        return take_part(self.study, f"s{j}", records, link, identities(4)[j], **how)

    def _silo(self, j):
        link, journal = self.star.links[j], self.folder / "journal"
        try:
            if j != 1:
                self.outcomes[j] = self.take_part(j, link)
                return
            for death in self.deaths:
                with pytest.raises(Dies):
                    self.take_part(1, Mortal(self.mailbox, *death), journal=journal)
            records = self.change(records_of(self.study, self.data, 1))
            self.outcomes[1] = self.take_part(1, self.mailbox, records, journal=journal)
        except BaseException as error:
            self.outcomes[j] = error
            link.close(type(error).__name__)

    def run(self):
        with Federation(self.study, star=lambda: self.star)._connect() as star:
            federation = Federation(self.study, star=lambda: star)
            try:
                return dpk.solve("gradient_descent", federation, budget=BUDGET, rounds=ROUNDS)
            finally:
                for thread in self.threads:
                    thread.join(20.0)


MOMENTS = ("before it sends", "when it has sent", "when it has heard")


@for_each("moment", MOMENTS)
@for_each("last", range(1, EXCHANGES + 1))
def test_a_silo_that_died_goes_on_where_it_was(tmp_path, last, moment):
    study = Study(tmp_path, [(last, moment)])
    how = {"budget": BUDGET, "rng": 7, "colluding": 1, "rounds": ROUNDS}
    expected = dpk.solve("gradient_descent", study.data, **how)
    assert same(study.run(), expected)
    assert all(same(found, expected) for found in study.outcomes)
    assert all(len(answers) == 1 for message, answers in study.mailbox.answers.items() if message)
    assert_charged_once(tmp_path / "s1.json")


def assert_charged_once(ledger):
    """A charge that was withdrawn before anything was released may be before it."""
    *before, last = Accountant(ledger).entries
    assert last.ended
    assert last.guarantee.mu > 0.0
    assert all(entry.guarantee.mu == 0.0 for entry in before)


@for_each("trust", ["central", "silo"])
def test_a_silo_that_dies_often_draws_no_other_noise(tmp_path, trust):
    """Noise is the operating system's, and every message has one answer in all lives."""
    deaths = [(n, moment) for n, moment in zip((2, 4, 2, 1, 2, 2), MOMENTS * 2, strict=True)]
    study = Study(tmp_path, deaths, trust=trust, seed=None)
    result = study.run()
    assert all(np.array_equal(found.coef, result.coef) for found in study.outcomes)
    assert "os" in {found.privacy.noise for found in study.outcomes}
    assert all(len(answers) == 1 for message, answers in study.mailbox.answers.items() if message)
    assert_charged_once(tmp_path / "s1.json")
    # Once more, without the others: the model is in the journal.
    with pytest.warns(UserWarning, match="journal has this run as a whole, and nobody was asked"):
        again = study.take_part(1, None, journal=tmp_path / "journal")
    assert np.array_equal(again.coef, result.coef)
    assert_charged_once(tmp_path / "s1.json")


def other_records(records):
    X = records.X.copy()
    X[0] = X[1]
    return study_of(wisconsin()).silo_data("s1", X, np.where(records.y > 0, 1.0, 0.0))


@for_each("is_older", [False, True])
def test_other_records_after_a_restart_send_nothing(tmp_path, is_older):
    """Nor with a copy that lacks an answer, where noise and mask would be those of that answer."""
    journal = tmp_path / "journal"

    def change(records):
        if is_older:
            kept, whole = Journal(journal, _MAGIC).records, journal.read_bytes()
            assert kept[-1][0] == _SAID
            journal.write_bytes(whole[: -(len(kept[-1][1][0]) + 8 + 32 + 16 + 32)])
            assert len(Journal(journal, _MAGIC).records) == len(kept) - 1
        return other_records(records)

    study = Study(tmp_path, [(6, "when it has sent")], seed=None, change=change)
    with pytest.raises(Exception, match="s1"):
        study.run()
    assert isinstance(study.outcomes[1], JournalError)
    assert "or the records are not as they were" in str(study.outcomes[1])
    assert all(len(answers) == 1 for message, answers in study.mailbox.answers.items() if message)


def journal_of(path, j=0, about=b"study"):
    return SiloJournal(path, identities(4)[j], about, b"statement")


class Script(Link):
    """A coordinator that sends these messages, and what it was answered."""

    def __init__(self, *messages):
        self.messages, self.answers = list(messages), []

    def exchange(self, answer):
        self.answers.append(answer)
        if not self.messages:
            raise CoordinatorLostError("no more")
        return self.messages.pop(0)

    def close(self, error=None):
        pass


def test_an_older_copy_of_a_journal_repeats_its_noise_for_the_same_messages_alone(tmp_path):
    path, drawn = tmp_path / "journal", {}
    with journal_of(path) as journal:
        assert RecordedLink(Script(b"one"), journal, lambda: False).exchange(None) == b"one"
    old = path.read_bytes()
    for name, message in (("first", b"two"), ("same", b"two"), ("other", b"three")):
        path.write_bytes(old)
        with journal_of(path) as journal:
            link = RecordedLink(Script(b"one", message), journal, lambda: False)
            link.exchange(None)
            link.exchange(b"answer")
            with journal.stream.release() as key:
                drawn[name] = bytes(key.key)
    assert drawn["first"] == drawn["same"] != drawn["other"]


def test_what_was_asked_before_is_answered_by_what_is_recorded(tmp_path):
    path = tmp_path / "journal"
    with journal_of(path) as journal:
        link = RecordedLink(Script(b"one", b"two"), journal, lambda: False)
        assert [link.exchange(None), link.exchange(b"1")] == [b"one", b"two"]
        with pytest.raises(CoordinatorLostError):
            link.exchange(b"2")
    script = Script(b"one", b"two", b"three")
    with journal_of(path) as journal:
        link = RecordedLink(script, journal, lambda: False)
        assert [link.exchange(a) for a in (None, b"1", b"2")] == [b"one", b"two", b"three"]
    assert script.answers == [None, b"1", b"2"]
    with journal_of(path) as journal:
        link = RecordedLink(Script(), journal, lambda: False)
        link.exchange(None)
        with pytest.raises(JournalError, match="must compute what it has sent before the restart"):
            link.exchange(b"another")


def test_keys_that_begin_with_a_brace_are_no_other_study(tmp_path):
    path = tmp_path / "journal"
    with journal_of(path) as journal:
        RecordedLink(Script(b"one"), journal, lambda: False).exchange(None)
    with journal_of(path) as journal:
        link = RecordedLink(Script(b'{"random key'), journal, lambda: False)
        assert [link.exchange(a) for a in (None, b"1")] == [b"one", b'{"random key']


def test_a_journal_is_read_when_it_is_locked(tmp_path, monkeypatch):
    """What the process that had the lock before has appended meanwhile is not lost."""
    path, flock = tmp_path / "journal", fcntl.flock
    before = journal_of(path)

    def wait_for_it(file, how):
        before.add_heard(b"one")
        before.add_said(b"answer")
        before.__exit__()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", wait_for_it)
    with journal_of(path) as journal:
        assert (journal.heard, journal.said) == ([b"one"], [b"answer"])


def test_secrets_are_never_sealed_by_the_same_key_and_nonce(tmp_path):
    path = tmp_path / "journal"
    nonces = set()
    for _ in range(3):
        with journal_of(path) as journal:
            nonces.add(journal._journal.records[0][1][2])
        path.write_bytes(path.read_bytes()[:60])  # its first append was cut off
    assert len(nonces) == 3


def test_a_settled_run_and_another_study_send_nothing(tmp_path):
    path = tmp_path / "journal"
    with journal_of(path) as journal:
        RecordedLink(Script(b"one"), journal, lambda: False).exchange(None)
    for script, settled, why in (
        (Script(b'{"dpkern": "0"}'), False, "begins another study"),
        (Script(b"two"), True, "the ledger has the whole run"),
    ):
        with journal_of(path) as journal:
            link = RecordedLink(script, journal, lambda settled=settled: settled)
            link.exchange(None)
            with pytest.raises(JournalError, match=why):
                link.exchange(b"answer")
        assert b"answer" not in script.answers


def test_a_journal_is_of_one_identity_study_and_process(tmp_path):
    path = tmp_path / "journal"
    with journal_of(path), pytest.raises(JournalError, match="another process takes part"):
        journal_of(path)
    for other in ({"j": 1}, {"about": b"another"}):
        with pytest.raises(JournalError, match="another silo, study or identity, or the records"):
            journal_of(path, **other)
    with journal_of(path) as journal:
        assert journal.statement == b"statement"
        ephemeral = journal.ephemeral.private_bytes_raw()
    assert ephemeral not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600


def resumed(ledger, line, made, mu=0.2):
    """The charge of a run that goes on, as the solver makes it."""
    accountant = Accountant(ledger).resuming(KeptCharge(line, made.append))
    how = {"neighbours": "replace_one", "seeded": False}
    charge = accountant.begin("gradient_descent", Bound(mu=mu), **how)
    charge.make()
    return charge


def test_a_charge_is_taken_over_and_not_withdrawn(tmp_path):
    ledger, made = tmp_path / "ledger.json", []
    accountant = Accountant(ledger, epsilon=3.0, delta=1e-6)
    resumed(ledger, None, made)
    assert made == [accountant.last_line] == [accountant.entries[0].line]
    again = resumed(ledger, made[0], made)
    again.withdraw()
    assert [entry.ended for entry in accountant.entries] == [False]
    assert len(made) == 1


def test_a_charge_that_was_withdrawn_is_made_again(tmp_path):
    ledger, made = tmp_path / "ledger.json", []
    accountant = Accountant(ledger, epsilon=3.0, delta=1e-6)
    resumed(ledger, None, made).withdraw()
    resumed(ledger, made[0], made)
    assert made == [entry.line for entry in accountant.entries]
    assert [entry.ended for entry in accountant.entries] == [True, False]


def test_a_charge_that_the_ledger_lacks_ends_the_run(tmp_path, monkeypatch):
    """As does another one of the same number, solver and bound, after an older copy."""
    ledger, made = tmp_path / "ledger.json", []
    Accountant(ledger, epsilon=3.0, delta=1e-6)
    before = ledger.read_bytes()
    resumed(ledger, None, made)
    (_, check), *_ = made
    for line, mu in (((3, check), 0.2), ((2, check), 0.1)):
        with pytest.raises(ValueError, match=f"as line {line[0]}, with the check {check}, got"):
            resumed(ledger, line, made, mu)
    ledger.write_bytes(before)
    monkeypatch.setattr(
        "dpkern.privacy.accountant.accountant._now", lambda: "2026-01-01T00:00:00+00:00"
    )
    resumed(ledger, None, made)
    assert made[0][0] == made[1][0]
    assert_refused("replaced, by an older copy perhaps", resumed, ledger, made[0], made)
    assert len(made) == 2


@for_each("last", [3, 6])
def test_an_older_ledger_with_as_many_lines_is_refused(tmp_path, last):
    """Before its charge a silo has stated the ledger's last line, and after it has that line."""
    ledger = tmp_path / "s1.json"
    accountant = Accountant(ledger, epsilon=5.0, delta=1e-5)
    before = ledger.read_bytes()
    accountant.charge("a mean", mu=0.01)

    def change(records):
        lines = ledger.read_bytes().count(b"\n")
        ledger.write_bytes(before)
        for _ in range(lines - 1):
            Accountant(ledger).charge("another mean", mu=0.02)
        return records

    study = Study(tmp_path, [(last, "when it has heard")], change=change)
    with pytest.raises(Exception, match="s1"):
        study.run()
    assert isinstance(study.outcomes[1], ValueError)
    assert "is another ledger or an older copy" in str(study.outcomes[1])
    assert all(len(answers) == 1 for message, answers in study.mailbox.answers.items() if message)


def test_a_journal_of_another_plan_is_named(tmp_path):
    def refuse(plan):
        raise FederationError("rounds 3 proposed, 5 agreed")

    study = Study(tmp_path, [])
    study.run()
    with pytest.raises(JournalError, match=r"journal is of a run with another plan, name a new"):
        study.take_part(1, None, journal=tmp_path / "journal", accept=refuse)
