"""Silos of a whole study, and a coordinator that keeps to no protocol: it reads nothing."""

import itertools
import json
import secrets
import threading

import numpy as np
import pytest
from cases import for_each

import dpkern as dpk

pytest.importorskip("cryptography")

from local_stars import QueueStar
from test_masking import identities, readable

from dpkern.federated.federation import PROTOCOL
from dpkern.federated.links import SilosLostError
from dpkern.federated.masking import Session
from dpkern.federated.party import _HEAD
from dpkern.federated.proposal import Proposal
from dpkern.federated.silo import take_part
from dpkern.federated.study import Silo, Study

M, D, N = 4, 3000, 40
PEOPLE = identities(M)
PLAN = Proposal(
    "gradient_descent",
    dpk.Budget(epsilon=1.0, delta=1e-5),
    {"rounds": 3, "clip": 1.0, "trust": "central", "step_size": 0.1},
)


@pytest.fixture(scope="module")
def study():
    silos = tuple(Silo(n, N, k.public_key().public_bytes_raw()) for n, k in PEOPLE.items())
    options = {"task": "classification", "classes": [0, 1], "row_bound": 1.0}
    return Study("attacked", silos, "central", 1, options, D)


class Attack:
    """All silos of a study in threads, and what a coordinator can say to them."""

    def __init__(self, study):
        self.study, self.failures = study, [None] * M
        self.star = QueueStar(study.names, deadline=20.0)
        self.threads = [threading.Thread(target=self._silo, args=(j,)) for j in range(M)]
        for thread in self.threads:
            thread.start()

    def _silo(self, j):
        name, rng = self.study.names[j], np.random.default_rng(j)
        try:
            data = self.study.silo_data(name, rng.normal(size=(N, D)), np.arange(N) % 2)
            with self.star.links[j] as link:
                take_part(self.study, name, data, link, PEOPLE[name], accountant=None, n_threads=1)
        except Exception as error:
            self.failures[j] = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.star.close()
        for thread in self.threads:
            thread.join()

    def hello(self, nonce):
        said = {"protocol": PROTOCOL, "dpkern": dpk.__version__, "study": self.study.digest}
        said |= {"plan": PLAN.to_json(), "nonce": nonce.hex()}
        return [json.dumps(said, sort_keys=True).encode()] * M

    def open(self, nonce, offers=lambda o: [o] * M, confirmations=lambda c: [c] * M):
        """Offers, confirmations and the messages of the first round."""
        offered = self.star.exchange(self.hello(nonce))
        confirmed = self.star.exchange([b"".join(shown) for shown in offers(offered)])
        shown = [b"".join(shown) for shown in confirmations(confirmed)]
        ready = self.star.exchange(shown)
        return offered, confirmed, self.star.exchange([told(ready, np.zeros(0))] * M)


def words(message):
    return np.frombuffer(message[_HEAD.size :], dtype="<u8")


def total(messages):
    return np.sum([words(message) for message in messages], axis=0, dtype=np.uint64)


def told(messages, sum_):
    """What a coordinator says after a round."""
    return messages[0][: _HEAD.size - 32] + bytes(32) + sum_.tobytes()


def readable_parts(messages):
    signs = itertools.product((0, 1, -1), repeat=M)
    for some in (s for s in signs if 0 in s and any(s)):
        terms = [
            words(m) if sign > 0 else -words(m)
            for sign, m in zip(some, messages, strict=True)
            if sign
        ]
        if readable(np.sum(terms, axis=0, dtype=np.uint64), []):
            yield some


def test_a_round_shows_the_noisy_sum_alone(study):
    with Attack(study) as attack:
        *_, messages = attack.open(secrets.token_bytes(32))
    assert list(readable_parts(messages)) == []
    assert readable(total(messages), [])


@for_each("halves", [(0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 2, 3)])
def test_silos_that_are_told_different_sums_send_nothing_readable(study, halves):
    with Attack(study) as attack:
        *_, messages = attack.open(secrets.token_bytes(32))
        sums = [total(messages) + np.uint64(k) * (np.arange(D) == 7).astype("<u8") for k in halves]
        answers = attack.star.exchange([told(messages, one) for one in sums])
    assert list(readable_parts(answers)) == []
    assert not readable(total(answers), [])


def test_a_message_that_is_asked_for_again_is_the_same(study):
    with Attack(study) as attack:
        *_, messages = attack.open(secrets.token_bytes(32))
        said = [told(messages, total(messages))] * M
        first = attack.star.exchange(said)
        assert attack.star.exchange(said) == first


ATTACKS = {
    "an old offer": {"offers": lambda o: [[*o[:3], OLD["offers"][3]]] * M},
    "an old offer for one silo": {"offers": lambda o: [[*o[:3], OLD["offers"][3]], o, o, o]},
    "all old offers": {"offers": lambda o: [OLD["offers"]] * M},
    "swapped offers": {"offers": lambda o: [[o[1], o[0], *o[2:]]] * M},
    "a dropped offer": {"offers": lambda o: [o[:3]] * M},
    "another silo's own offer": {"offers": lambda o: [[o[0], o[0], *o[2:]]] * M},
    "an old confirmation": {"confirmations": lambda c: [[*c[:3], OLD["confirmations"][3]]] * M},
    "swapped confirmations": {"confirmations": lambda c: [[c[1], c[0], *c[2:]]] * M},
    "a dropped confirmation": {"confirmations": lambda c: [c[:3]] * M},
}
OLD = {}


@for_each("same_nonce", [True, False])
@for_each("attack", ATTACKS.values(), ids=ATTACKS)
def test_forged_openings_end_the_study_before_anything_is_sent(
    study, attack, same_nonce, monkeypatch
):
    nonce = bytes(32)
    if not OLD:
        with Attack(study) as old:
            OLD["offers"], OLD["confirmations"], _ = old.open(nonce)
    masked = []
    monkeypatch.setattr(Session, "mask", lambda self, *_: masked.append(self))
    with Attack(study) as now, pytest.raises(SilosLostError, match=r"SessionError|ProtocolError"):
        now.open(nonce if same_nonce else secrets.token_bytes(32), **attack)
    assert all(now.failures)
    assert not masked
