"""Laws of masked sums: they are exact, nothing else is readable, nothing forged gets through."""

import copy
import hashlib
import hmac
import itertools
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused

from dpkern.reference import noise
from dpkern.stream import Purpose

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from parties import unmask

from dpkern.federated import masking
from dpkern.federated.masking import Roster, Session, SessionError, public_stream

NONCE, AGREED, BINDING = (bytes([i]) * 32 for i in range(3))
D = 4096
LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def secret(*parts):
    """32 bytes that are the same in every run of the tests."""
    return hashlib.sha256(repr(parts).encode()).digest()


class Keys:
    """In place of X25519PrivateKey: keys that are the same in every run of the tests."""

    def __init__(self, world=0):
        self.made, self.world = 0, world

    def generate(self):
        self.made += 1
        return X25519PrivateKey.from_private_bytes(secret("ephemeral", self.world, self.made))


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    """Statistical tests of secret random words would fail once in a while."""
    monkeypatch.setattr(masking.x25519, "X25519PrivateKey", Keys())


def identities(m):
    return {f"silo{j}": Ed25519PrivateKey.from_private_bytes(secret(j)) for j in range(m)}


def roster_of(people):
    return Roster({name: key.public_key().public_bytes_raw() for name, key in people.items()})


def offered(m, make=Session, nonce=NONCE, agreed=AGREED):
    people = identities(m)
    roster = roster_of(people)
    return [make(key, name, roster, nonce, agreed) for name, key in people.items()]


def opened(m, make=Session, nonce=NONCE):
    """Sessions of m silos, ready to mask."""
    sessions = offered(m, make, nonce)
    offers = [session.offer for session in sessions]
    confirmations = [session.accept(offers) for session in sessions]
    for session in sessions:
        session.confirm(confirmations)
    return sessions


def masked(sessions, values, number=0, binding=BINDING):
    return [s.mask(v, number, binding) for s, v in zip(sessions, values, strict=True)]


def integers(m, d=D):
    """Values as those of gradients: small beside 2^64, one silo's alike, another's constant."""
    rng = np.random.default_rng(1)
    found = [np.round(rng.normal(0.0, 1000.0 * (j + 1), d)).astype(np.int64) for j in range(m)]
    found[0] = np.arange(d) % 7
    found[-1] = np.full(d, 12345)
    return found


# ------------------------------------------------------------------------- sums


@for_each("m", [2, 3, 4, 9])
@for_each("d", [0, 1, 127, 128, 129, 1000])
def test_sums_are_exact(m, d):
    values = integers(m, d)
    total = unmask(masked(opened(m), values))
    assert total.dtype == np.int64
    np.testing.assert_array_equal(total, np.sum(values, axis=0))


def test_sums_of_extreme_integers_are_modulo_2_to_the_64():
    rng = np.random.default_rng(0)
    values = [rng.choice([LOWEST, HIGHEST, -1, 0, 1, LOWEST + 1], 500) for _ in range(5)]
    exact = [sum(int(v[i]) for v in values) for i in range(500)]
    wrapped = [(x + (1 << 63)) % (1 << 64) - (1 << 63) for x in exact]
    np.testing.assert_array_equal(unmask(masked(opened(5), values)), wrapped)


def test_values_are_only_read():
    values = integers(2)
    before = [v.copy() for v in values]
    for v in values:
        v.flags.writeable = False
    masked(opened(2), values)
    np.testing.assert_array_equal(values, before)


def test_sums_of_any_increasing_rounds_are_exact():
    sessions, values = opened(3), integers(3)
    for number in (0, 1, 5, 1 << 40, (1 << 64) - 1):
        total = unmask(masked(sessions, values, number, secret(number)))
        np.testing.assert_array_equal(total, np.sum(values, axis=0))


# ------------------------------------------------------- what can be read, and what cannot


def z_of(words, values):
    """Largest deviation of words from uniform ones that say nothing of values, in std."""
    n = len(words)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(n, 8), axis=1)
    monobit = np.abs(bits.sum(axis=0) - n / 2).max() / np.sqrt(n / 4)
    counts = np.bincount(words.astype("<u8").view(np.uint8), minlength=256)
    chi_square = ((counts - n / 32) ** 2 / (n / 32)).sum()
    found = [monobit, abs(chi_square - 255) / np.sqrt(510)]
    for shift in (0, 32):  # as numbers, and the lower half of the bits as such
        numbers = (words << np.uint64(shift)).view(np.int64).astype(float)
        for v in values:
            if np.ptp(v):
                found.append(abs(np.corrcoef(numbers, v)[0, 1]) * np.sqrt(n))
    return max(found)


def readable(words, values):
    """Whether words are told from uniform ones; for 10 000 tests of uniform ones, never by far."""
    return len(np.unique(words)) < len(words) or z_of(words, values) > 6.5


def leaks(rounds, values):
    """Sums and differences of messages that can be read, of rounds and between them.

    Of one round: those of fewer than all silos, with any signs; with all they are the total less
    twice such a sum. Between rounds: differences of a silo's messages. The total must be right.
    """
    found, m = [], len(values)
    for number, messages in enumerate(rounds):
        for signs in itertools.product((0, 1, -1), repeat=m):
            if 0 in signs and any(signs):
                terms = [
                    -w if sign < 0 else w for sign, w in zip(signs, messages, strict=True) if sign
                ]
                if readable(np.sum(terms, axis=0, dtype=np.uint64), values):
                    found.append((number, signs))
        if not np.array_equal(unmask(messages), np.sum(values, axis=0)):
            found.append((number, "wrong sum"))
    for a, b in itertools.combinations(range(len(rounds)), 2):
        for j in range(m):
            if readable(rounds[a][j] - rounds[b][j], values):
                found.append((a, b, j))
    return found


def hkdf(key, salt, info):
    """RFC 5869 for 32 bytes."""
    return expand(hmac.digest(salt, key, "sha256"), info)


def expand(key, info):
    return hmac.digest(key, info + b"\x01", "sha256")


def chain(what, *parts):
    parts = (b"dpkern federation 1: " + what.encode(), *parts)
    return hashlib.sha256(b"".join(len(p).to_bytes(8, "little") + p for p in parts)).digest()


def mask_of(pair_key, number, d, binding):
    info = chain("mask", number.to_bytes(8, "little"), d.to_bytes(8, "little"), binding)
    return noise.stream_words(expand(pair_key, info), Purpose.MASK << 48, d)


def coalition_view(sessions, messages, colluding, number=0, binding=BINDING):
    """Messages of honest silos less all masks that colluding ones share with them."""
    view = {}
    for j in set(range(len(sessions))) - set(colluding):
        view[j] = messages[j].copy()
        for k in colluding:
            key = bytes(sessions[k]._pairs()[j if j < k else j - 1])
            mask = mask_of(key, number, len(messages[j]), binding)
            view[j] += -mask if j < k else mask
    return view


def leaks_to_coalitions(sessions, messages, values):
    """Coalitions of at most m - 2 silos that can read a message of a silo outside."""
    m = len(sessions)
    return [
        (colluding, j)
        for t in range(m - 1)
        for colluding in itertools.combinations(range(m), t)
        for j, words in coalition_view(sessions, messages, colluding).items()
        if readable(words, values)
    ]


def three_rounds(m, make=Session):
    sessions, values = opened(m, make), integers(m)
    rounds = [masked(sessions, values, number) for number in range(3)]
    return leaks(rounds, values) + leaks_to_coalitions(sessions, rounds[0], values)


@for_each("m", [2, 3, 4])
def test_nothing_but_the_sum_is_readable(m):
    assert three_rounds(m) == []


def test_messages_of_two_runs_on_different_data_are_uniform_words():
    values = [np.zeros(D, dtype=np.int64), np.full(D, HIGHEST), np.arange(D)]
    first = masked(opened(3), values)
    second = masked(opened(3), values[::-1])
    for a, b in zip(first, second, strict=True):
        assert not any(readable(words, values[2:]) for words in (a, b, a - b))


def first_pair(session, i):
    return i == 0 and session._name in ("silo0", "silo1")


def is_later(session, i):
    return i < session._roster.names.index(session._name)


# What is made of the words of a session's mask with its i-th partner.
BROKEN = {
    "forgets a pair": lambda self, i, words, info: words * (not first_pair(self, i)),
    "has no other words in another round": None,
    "adds on both sides": lambda self, i, words, info: -words if is_later(self, i) else words,
    "swaps a sign": lambda self, i, words, info: -words if self._name == "silo0" else words,
    "has the same words for all pairs": lambda self, i, words, info: noise.stream_words(
        hashlib.sha256(info).digest(), Purpose.MASK << 48, len(words)
    ),
    "masks the lower halves": lambda self, i, words, info: words & np.uint64(0xFFFFFFFF),
    "masks whole blocks alone": lambda self, i, words, info: np.append(
        words[:-600], np.zeros(600, np.uint64)
    ),
}


def broken_session(kind):
    """The class of sessions whose masks are broken in this way."""

    class Broken(Session):
        def _words(self, i, number, info, size):
            if BROKEN[kind] is None:
                return super()._words(i, 0, bytes(32), size)
            return BROKEN[kind](self, i, super()._words(i, number, info, size), info)

    return Broken


# Of two silos there is one pair, for which the same mask for all pairs is no fault.
CASES = [(kind, m) for kind in BROKEN for m in (2, 3, 4) if "all pairs" not in kind or m > 2]


@for_each(("kind", "m"), CASES)
def test_broken_masks_are_caught(kind, m):
    assert three_rounds(m, broken_session(kind))


def test_a_pair_without_a_mask_is_seen_by_coalitions_alone():
    """Tests of sums and differences cannot see it."""
    sessions, values = opened(3, broken_session("forgets a pair")), integers(3)
    messages = masked(sessions, values)
    assert leaks([messages], values) == []
    assert ((2,), 0) in leaks_to_coalitions(sessions, messages, values)


def test_keys_that_are_used_in_two_sessions_are_caught(monkeypatch):
    values, rounds = integers(2), []
    for _ in range(2):
        monkeypatch.setattr(masking.x25519, "X25519PrivateKey", Keys())
        rounds.append(masked(opened(2), values))
    assert (0, 1, 0) in leaks(rounds, values)
    fresh = [masked(opened(2), values) for _ in range(2)]
    assert leaks(fresh, values) == []


# ------------------------------------------------------------------ what a coordinator can do


def test_silos_that_are_asked_different_things_send_nothing_readable():
    for told in itertools.product((0, 1), repeat=4):
        if len(set(told)) == 2:
            sessions, values = opened(4), integers(4, 1024)
            messages = [
                s.mask(v, 0, secret(b)) for s, v, b in zip(sessions, values, told, strict=True)
            ]
            assert leaks([messages], values) == [(0, "wrong sum")]
            assert not readable(unmask(messages).view(np.uint64), values)


def test_silos_that_are_out_of_step_send_nothing_readable():
    sessions, values = opened(3), integers(3)
    messages = [s.mask(v, n, BINDING) for s, v, n in zip(sessions, values, (4, 5, 5), strict=True)]
    assert leaks([messages], values) == [(0, "wrong sum")]


def test_silos_that_send_different_lengths_send_nothing_readable():
    sessions, values = opened(2), integers(2)
    long = sessions[0].mask(values[0], 0, BINDING)
    short = sessions[1].mask(values[1][:99], 0, BINDING)
    assert not readable(long[:99] + short, [])
    assert np.abs(unmask([long[:99], short]).astype(float)).max() > 2.0**60


def test_a_lost_silo_leaves_nothing_readable():
    sessions, values = opened(4), integers(4)
    messages = masked(sessions, values)
    for some in itertools.combinations(messages, 3):
        assert not readable(unmask(some).view(np.uint64), values)


def flipped(message, byte):
    return message[:byte] + bytes([message[byte] ^ 1]) + message[byte + 1 :]


def of_another_session(**changes):
    return [session.offer for session in offered(3, **changes)]


def signed_by_coordinator(offers):
    """An offer of the coordinator's in the place of silo 1's."""
    people = identities(3)
    people["silo1"] = Ed25519PrivateKey.from_private_bytes(secret("coordinator"))
    session = Session(people["silo1"], "silo1", roster_of(people), NONCE, AGREED)
    return [offers[0], session.offer, offers[2]]


FORGED = {
    "one is dropped": lambda o: o[:2],
    "one is doubled": lambda o: [*o, o[2]],
    "one is sent for another": lambda o: [o[0], o[0], o[2]],
    "two are swapped": lambda o: [o[0], o[2], o[1]],
    "all are turned": lambda o: [*o[1:], o[0]],
    "none": lambda o: [],
    "empty": lambda o: [o[0], b"", o[2]],
    "cut": lambda o: [o[0], o[1][:-1], o[2]],
    "longer": lambda o: [o[0], o[1] + b"\0", o[2]],
    "another key": lambda o: [o[0], flipped(o[1], 3), o[2]],
    "another signature": lambda o: [o[0], flipped(o[1], 40), o[2]],
    "another key with the signature": lambda o: [o[0], o[2][:32] + o[1][32:], o[2]],
    "of an old session": lambda o: [o[0], of_another_session(nonce=secret(1))[1], o[2]],
    "of another plan": lambda o: [o[0], of_another_session(agreed=secret(1))[1], o[2]],
    "all of an old session": lambda o: of_another_session(nonce=secret(1)),
    "all of an old session with this nonce": lambda o: of_another_session(),
    "own one replaced": lambda o: [of_another_session()[0], *o[1:]],
    "signed by the coordinator": signed_by_coordinator,
}


@for_each("forged", FORGED.values(), ids=FORGED)
def test_forged_offers_are_refused(forged):
    sessions = offered(3)
    with pytest.raises(SessionError, match=r"must be|must hold"):
        sessions[0].accept(forged([session.offer for session in sessions]))
    with pytest.raises(RuntimeError, match="one session"):
        sessions[0].accept([session.offer for session in sessions])
    with pytest.raises(RuntimeError, match="confirmed"):
        sessions[0].mask(integers(3)[0], 0, BINDING)


@for_each(
    ("forged", "signer"),
    [
        ("two are swapped", "silo 'silo2'"),
        ("signed by the coordinator", "another"),
        ("in another's name", "silo 'silo2'"),
    ],
)
def test_whose_key_has_signed_in_anothers_name_is_named(forged, signer):
    sessions, keys = offered(3), dict(roster_of(identities(3)).keys)
    third = identities(3)["silo2"]
    roster = Roster({**keys, "silo1": third.public_key().public_bytes_raw(), "silo2": b"2" * 32})
    taker = Session(third, "silo1", roster, NONCE, AGREED)
    key = taker.offer[:32]
    context = roster_of(identities(3)).digest, NONCE, AGREED
    offers = [session.offer for session in sessions]
    made = [offers[0], taker._signed("offer", context, key), offers[2]]
    made = FORGED[forged](offers) if forged in FORGED else made
    with pytest.raises(SessionError, match=f"offer of silo 'silo1'.*got (that of )?{signer}: ask"):
        sessions[0].accept(made)


@for_each(
    "change",
    [lambda p: dict(reversed(p.items())), lambda p: {**p, "silo3": identities(4)["silo3"]}],
)
def test_offers_for_another_roster_are_refused(change):
    """A silo takes its roster from its own study: the coordinator can neither add nor drop one."""
    people = identities(3)
    sessions, other = offered(3), roster_of(change(people))
    foreign = Session(people["silo1"], "silo1", other, NONCE, AGREED)
    with pytest.raises(SessionError, match="offer of silo 'silo1'"):
        sessions[0].accept([sessions[0].offer, foreign.offer, sessions[2].offer])


def test_an_old_offer_with_an_old_nonce_ends_at_the_confirmations():
    """The coordinator repeats its nonce and replays silo 1's last offer to silos 0 and 2."""
    old, new = opened(3), offered(3)
    shown = [new[0].offer, old[1].offer, new[2].offer]
    confirmations = [new[0].accept(shown), old[1]._identity.sign(bytes(32)), new[2].accept(shown)]
    confirmations[1] = new[1].accept([session.offer for session in new])
    for silo in (0, 2):
        with pytest.raises(SessionError, match="confirmation of silo 'silo1'"):
            new[silo].confirm(confirmations)
        with pytest.raises(RuntimeError, match="confirmed"):
            new[silo].mask(integers(3)[silo], 0, BINDING)


class BelievesAll(Session):
    """Does not verify confirmations."""

    def confirm(self, confirmations):
        self._confirmed = True


def test_silos_that_see_different_offers_refuse_and_would_send_nothing_readable():
    """Silo 3 makes two offers, one for each half of the others."""
    first, twice = offered(4, BelievesAll), offered(4, BelievesAll)[3]
    offers = [session.offer for session in first]
    forked = [*offers[:3], twice.offer]
    sessions = [*first[:3], twice]
    confirmations = [s.accept(forked if j > 1 else offers) for j, s in enumerate(sessions)]
    for session in sessions:
        with pytest.raises(SessionError, match="confirmation"):
            Session.confirm(session, confirmations)
        session.confirm(confirmations)
    values = integers(4)
    assert leaks([masked(sessions, values)], values) == [(0, "wrong sum")]


CONFIRMED = {
    "one is dropped": lambda c: c[:2],
    "two are swapped": lambda c: [c[0], c[2], c[1]],
    "one is altered": lambda c: [c[0], flipped(c[1], 7), c[2]],
    "one is empty": lambda c: [c[0], b"", c[2]],
    "one is of another session": lambda c: [c[0], c[1], old_confirmations()[2]],
    "one is longer": lambda c: [c[0], b"\0" + c[1], c[2]],
    "an offer": lambda c: [c[0], c[1], offered(3)[2].offer],
    "an offer's signature": lambda c: [c[0], c[1], offered(3)[2].offer[-64:]],
}


def old_confirmations():
    sessions = offered(3)
    return [session.accept([s.offer for s in sessions]) for session in sessions]


@for_each("forged", CONFIRMED.values(), ids=CONFIRMED)
def test_forged_confirmations_are_refused(forged):
    sessions = offered(3)
    offers = [session.offer for session in sessions]
    confirmations = [session.accept(offers) for session in sessions]
    with pytest.raises(SessionError, match="confirmation"):
        sessions[0].confirm(forged(confirmations))
    with pytest.raises(RuntimeError, match="confirmed"):
        sessions[0].mask(integers(3)[0], 0, BINDING)


def test_confirmations_before_the_offers_are_refused():
    with pytest.raises(SessionError, match="confirmation"):
        offered(3)[0].confirm([b"", b"", b""])


@for_each("point", [bytes(32), bytes([1]) + bytes(31), b"", b"x" * 33])
def test_keys_of_low_order_and_other_lengths_are_refused(point):
    sessions = offered(2)
    context = (sessions[0]._roster.digest, NONCE, AGREED)
    dishonest = sessions[1]._signed("offer", context, point)
    with pytest.raises(SessionError, match="must hold a key"):
        sessions[0].accept([sessions[0].offer, dishonest])


# ------------------------------------------------------------------------------- rounds


@for_each("number", [3, 2, 0, 1 << 64, 1 << 200])
def test_a_round_is_masked_once(number):
    session = opened(2)[0]
    session.mask(integers(2)[0], 3, BINDING)
    with pytest.raises(RuntimeError, match="masks are used once"):
        session.mask(integers(2)[0], number, BINDING)
    session.mask(integers(2)[0], 4, BINDING)


def test_a_round_is_used_up_before_anything_is_returned(monkeypatch):
    session, values = opened(2)[0], integers(2)[0]
    with monkeypatch.context() as patched:
        patched.setattr(Session, "_words", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.mask(values, 0, BINDING)
    with pytest.raises(RuntimeError, match="masks are used once"):
        session.mask(values, 0, BINDING)


def test_threads_that_ask_for_one_round_get_one_message():
    session, values, got = opened(2)[0], integers(2)[0], []

    def ask():
        try:
            got.append(session.mask(values, 0, BINDING))
        except RuntimeError:
            got.append(None)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert sum(message is not None for message in got) == 1


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_no_session():
    code = """
import os, sys
sys.path.insert(0, sys.argv[1])
from test_masking import *
session, other = opened(2)[0], offered(2)
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: session.mask(np.zeros(3, dtype=np.int64), 0, BINDING),
        lambda: other[0].accept([s.offer for s in other]),
    ):
        try:
            call()
        except RuntimeError:
            refused += 1
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    folder = os.path.dirname(__file__)
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


def test_wrong_arguments_are_named():
    people = identities(2)
    session, roster = opened(2)[0], roster_of(people)
    for values in ([1], np.ones(3), np.ones((2, 2), dtype=np.int64), np.ones(3, dtype=np.int32)):
        with pytest.raises(TypeError, match="values must be an array of int64"):
            session.mask(values, 0, BINDING)
    for number in (-1, 1.0, True, None):
        with pytest.raises((TypeError, ValueError), match="number must be"):
            session.mask(integers(2)[0], number, BINDING)
    for binding in (b"", "x" * 32, bytes(31), None):
        assert_refused("binding must be 32 bytes", session.mask, integers(2)[0], 0, binding)
    for nonce, agreed, name in ((b"", AGREED, "nonce"), (NONCE, b"short", "agreed")):
        with pytest.raises(ValueError, match=f"{name} must be 32 bytes"):
            Session(people["silo0"], "silo0", roster, nonce, agreed)
    for name in ("silo1", "elsewhere"):
        with pytest.raises(ValueError, match="identity must be the private key of silo"):
            Session(people["silo0"], name, roster, NONCE, AGREED)


def test_a_roster_has_distinct_keys_of_at_least_two_silos():
    key = roster_of(identities(2)).keys["silo0"]
    for wrong in (
        {},
        {"a": key},
        {"a": key, "b": key},
        {"a": key, "b": key[:31]},
        {"a": key, "b": "x"},
    ):
        assert_refused("keys must be", Roster, wrong)


# ------------------------------------------------------------------------------ secrets


@for_each("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sessions_are_not_copied_or_pickled(duplicate):
    for session in (offered(2)[0], opened(2)[0]):
        assert_refused("TypeError: pickled or copied", duplicate, session)


def test_representations_do_not_show_keys():
    session = opened(3)[0]
    text = repr(session) + str(session) + f"{session}"
    assert text.startswith("Session(silo='silo0', last_round=-1)")
    for key in session._pairs():
        assert bytes(key).hex() not in text
        assert repr(bytes(key))[2:-1] not in text
    assert not hasattr(session, "__dict__")


def test_wiped_sessions_have_no_keys():
    session, waiting = opened(3)[0], offered(2)
    memory = session._key
    assert any(memory)
    with session, waiting[0]:
        pass
    assert not any(memory)
    with pytest.raises(RuntimeError, match="wiped"):
        session.mask(integers(3)[0], 0, BINDING)
    with pytest.raises(RuntimeError, match="one session"):
        waiting[0].accept([s.offer for s in waiting])


def test_round_keys_and_masks_are_overwritten(monkeypatch):
    kept, words = [], Session._words

    class Kept(masking.ReleaseKey):
        def __init__(self, number, key):
            kept.append(key)
            super().__init__(number, key)

    def remembered(self, *arguments):
        kept.append(words(self, *arguments))
        return kept[-1]

    monkeypatch.setattr(masking, "ReleaseKey", Kept)
    monkeypatch.setattr(Session, "_words", remembered)
    opened(3)[0].mask(integers(3)[0], 0, BINDING)
    assert len(kept) == 4
    assert not any(np.any(np.frombuffer(memory, np.uint8)) for memory in kept)


def test_cryptography_is_imported_when_it_is_needed_and_named_when_it_is_missing():
    code = """
import sys
sys.modules["cryptography"] = None
import dpkern, dpkern.federated.study
for name in ("masking", "keys"):
    try:
        __import__(f"dpkern.federated.{name}")
    except ImportError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("pip install 'dpkern[federated]'") == 2, done.stderr


# ----------------------------------------------------------------------- known answers


def curve25519(scalar, u):
    """X25519 by the Montgomery ladder of RFC 7748 section 5."""
    p = 2**255 - 19
    k = (int.from_bytes(scalar, "little") & ~7 & ~(1 << 255)) | 1 << 254
    x1 = int.from_bytes(u, "little") % (1 << 255)
    x2, z2, x3, z3 = 1, 0, x1, 1
    for t in range(254, -1, -1):
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        e = a * a - b * b
        x3, z3 = (d * a + c * b) ** 2 % p, x1 * (d * a - c * b) ** 2 % p
        x2, z2 = a * a * b * b % p, e * (a * a + 121665 * e) % p
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def test_the_tests_own_curve_and_hkdf_are_those_of_the_standards():
    scalar = "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"
    u = "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"
    out = "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert curve25519(bytes.fromhex(scalar), bytes.fromhex(u)).hex() == out  # RFC 7748, 5.2
    info = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9")
    found = hkdf(b"\x0b" * 22, bytes(range(13)), info)  # RFC 5869, A.1
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"


def test_messages_are_those_of_the_documented_derivation():
    """From the private keys on, without the package cryptography but for signatures."""
    m, number, d = 3, 7, 300
    sessions, values = opened(m), integers(m, d)
    private = [secret("ephemeral", 0, j + 1) for j in range(m)]
    public = [curve25519(key, (9).to_bytes(32, "little")) for key in private]
    people = {name: key.public_key().public_bytes_raw() for name, key in identities(m).items()}
    roster = chain("roster", *(x for name, key in people.items() for x in (name.encode(), key)))
    offers = [
        key + identity.sign(chain("offer", roster, NONCE, AGREED, name.encode(), key))
        for key, (name, identity) in zip(public, identities(m).items(), strict=True)
    ]
    session = chain("session", roster, NONCE, AGREED, *offers)
    expected = [v.astype(np.uint64) for v in values]
    for i, k in itertools.combinations(range(m), 2):
        info = chain("pair", f"silo{i}".encode(), f"silo{k}".encode())
        mask = mask_of(hkdf(curve25519(private[i], public[k]), session, info), number, d, BINDING)
        expected[i] += mask
        expected[k] -= mask
    assert [s.offer for s in sessions] == offers
    assert {s.id for s in sessions} == {session}
    np.testing.assert_array_equal(masked(sessions, values, number), expected)


def test_messages_are_those_of_the_first_version():
    """A change of the protocol needs another number in the purposes of all digests."""
    messages = masked(opened(2), integers(2, 64))
    found = hashlib.sha256(b"".join(m.astype("<u8").tobytes() for m in messages)).hexdigest()
    assert found == "97e1f7d84631b85269e13029967e247579c2bf4d8a350577a0487a1cba0fbdb5"


def test_the_public_stream_is_that_of_the_session():
    first, second = opened(3), opened(3)
    words = [public_stream(s.id).release().words(Purpose.SAMPLING, 4).tolist() for s in first]
    assert words == words[:1] * 3
    assert words[0] != public_stream(second[0].id).release().words(Purpose.SAMPLING, 4).tolist()
    offers = [session.offer for session in first]
    assert masking.session_id(first[0]._roster, NONCE, AGREED, offers) == first[0].id
