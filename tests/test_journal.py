"""Journals of studies: damage is named, and no round is lost."""

import os
import random
from itertools import pairwise

import pytest

pytest.importorskip("cryptography")

from dpkern.federated.journal import Journal, JournalError, RecordedStar
from dpkern.federated.links import Star

SILOS = ("a", "b", "c")
ROUNDS = 12


class Echo(Star):
    """Silos that answer what they are asked, and of whom `there` confirm the end."""

    silos = SILOS

    def __init__(self, there=SILOS):
        self.there, self.asked, self.finished = there, [], []

    def exchange(self, messages):
        self.asked.append(messages)
        return [name.encode() + message for name, message in zip(SILOS, messages, strict=True)]

    def finish(self, last, silos, seconds):
        self.finished.append((last, tuple(silos)))
        return [name for name in silos if name in self.there]

    def close(self, why=""):
        pass


def questions(t):
    return [bytes([t]) * (8 * t + j) for j in range(3)]


def record(path, star, rounds=ROUNDS):
    recorded = RecordedStar(SILOS, lambda: star, path)
    return recorded, [recorded.exchange(questions(t)) for t in range(rounds)]


@pytest.fixture
def journal(tmp_path):
    """A journal of several rounds, whose end all silos have confirmed."""
    path = tmp_path / "journal"
    recorded, _ = record(path, Echo())
    recorded.finish(b"last", SILOS, 1.0)
    return path


def rounds_in(path):
    return len(RecordedStar(SILOS, pytest.fail, path)._records)


def test_any_damaged_byte_is_named_and_no_round_is_lost(journal):
    good, draws = journal.read_bytes(), random.Random(1)
    places = [draws.randrange(len(good)) for _ in range(100)] + list(range(140))
    for place in places:
        damaged = bytearray(good)
        damaged[place] ^= draws.randrange(1, 256)
        journal.write_bytes(damaged)
        with pytest.raises(JournalError, match=r"journal.* restore .*from a copy"):
            RecordedStar(SILOS, pytest.fail, journal)
        assert journal.read_bytes() == damaged


def test_an_append_that_was_cut_off_loses_its_round_alone(journal):
    good = journal.read_bytes()
    journal.unlink()
    record(journal, Echo(), ROUNDS - 1)
    before = journal.stat().st_size
    journal.unlink()
    record(journal, Echo())
    whole = journal.read_bytes()
    for end in range(before, len(whole)):
        journal.write_bytes(whole[:end])
        assert rounds_in(journal) == ROUNDS - 1
        assert journal.read_bytes() == whole[:end]  # until the next round is appended
    star = Echo()
    record(journal, star)
    assert len(star.asked) == 1
    assert rounds_in(journal) == ROUNDS
    assert len(good) > len(whole)


def test_missing_repeated_and_swapped_records_are_named(journal):
    text, starts = journal.read_bytes(), [48]
    while starts[-1] < len(text):
        size = int.from_bytes(text[starts[-1] : starts[-1] + 8], "little")
        starts.append(starts[-1] + 8 + size + 32)
    parts = [text[a:b] for a, b in pairwise(starts)]
    for damaged in (parts[1:], [*parts[:3], *parts[4:]], [parts[0], *parts], parts[::-1]):
        journal.write_bytes(text[:48] + b"".join(damaged))
        with pytest.raises(JournalError, match="was edited or damaged"):
            RecordedStar(SILOS, pytest.fail, journal)


def test_a_journal_is_read_by_its_owner_alone(journal):
    assert journal.stat().st_mode & 0o777 == 0o600


def test_the_end_is_recorded_of_silos_that_have_confirmed_it(tmp_path):
    path, silent, star = tmp_path / "journal", Echo(there=("b",)), Echo()
    recorded, answers = record(path, silent)
    assert recorded.finish(b"last", SILOS, 1.0) == ["b"]
    again, same = record(path, star)
    assert same == answers
    assert star.asked == []
    assert again.finish(b"last", SILOS, 1.0) == ["a", "b", "c"]
    assert star.finished == [(b"last", ("a", "c"))]
    nobody = RecordedStar(SILOS, pytest.fail, path)
    assert nobody.finish(b"last", SILOS, 1.0) == ["a", "b", "c"]


def test_a_journal_that_another_process_writes_to_is_left_alone(journal):
    first, second = Journal(journal), Journal(journal)
    second.append(bytes(32), [b"second"])
    whole = journal.read_bytes()
    with pytest.raises(JournalError, match="must be written to by one process alone"):
        first.append(bytes(32), [b"first"])
    assert journal.read_bytes() == whole
    journal.unlink()
    with pytest.raises(FileNotFoundError):
        second.append(bytes(32), [b"third"])
    assert not journal.exists()


def test_an_append_that_failed_may_be_made_again(journal, monkeypatch):
    opened, fsync = Journal(journal), os.fsync
    monkeypatch.setattr(os, "fsync", lambda _: os.close(-1))
    with pytest.raises(OSError, match="Bad file"):
        opened.append(bytes(32), [b"a part"])
    monkeypatch.setattr(os, "fsync", fsync)
    opened.append(bytes(32), [b"another"])
    assert Journal(journal).records[-1] == (bytes(32), [b"another"])
