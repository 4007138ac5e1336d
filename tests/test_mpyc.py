"""Runs by secret sharing: the bits of one process, exact sums, and a clear end of all else."""

import asyncio
import base64
import contextlib
import datetime
import itertools
import json
import pickle
import random
import re
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import for_each
from makers import assert_refused

import dpkern as dpk

pytest.importorskip("dpkern.federated.mpyc", exc_type=ImportError)  # MPyC, and cryptography

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from mpyc_party import BUDGET, data_of_all, integers, model_of, study_of
from parties import unmask

from dpkern.federated import mpyc_runtime
from dpkern.federated.links import SilosLostError
from dpkern.federated.masking import Roster, Session
from dpkern.federated.mpyc import join
from dpkern.federated.mpyc_runtime import ANALYST, Certificates, Mesh
from dpkern.federated.mpyc_sums import MpycParty, packed, unpacked
from dpkern.federated.party import ProtocolError
from dpkern.federated.proposal import Proposal

from mpyc import thresha  # isort: skip  # no earlier: dpkern keeps it from starting itself

SILOS, PARTIES = 4, 5
RUNS = {
    "gradient_descent": {"rounds": 6},
    "federated_gd": {"rounds": 3, "local_steps": 3},  # Huang
    "output_perturbation": {"local_steps": 5},  # Jayaraman et al., method 1
    "local_newton": {"rounds": 3},
    "newton_inference": {"rounds": 4},
    "prox_sgd": {"rounds": 3, "trust": "silo"},
}
PLAIN = {"solver": "gradient_descent", "arguments": {"rounds": 4}}
SUMS = (1, 6, 17, 18, 123, 4000)
STUDIES = {
    **{name: {"solver": name, "arguments": how} for name, how in RUNS.items()},
    "as users do": {**PLAIN, "as users do": "ledger", "epsilon": 3.0},
    "evaluation": {
        "solver": "evaluate",
        "arguments": {},
        "as users do": "scores",
        "epsilon": 3.0,
    },
    "older ledger": {
        **PLAIN,
        "as users do": "ledger",
        "of": {"2": {"older": True}},
        "epsilon": 3.0,
        "warnings": True,
    },
    "budget is spent": {
        **PLAIN,
        "as users do": "small",
        "of": {"2": {"epsilon": 0.5}},
        "epsilon": 1.0,
    },
    "sums": {**PLAIN, "sums": SUMS},
    "other plan": {**PLAIN, "of": {"3": {"arguments": {"rounds": 5}}}},
    "other sum": {**PLAIN, "of": {"3": {"arguments": {"rounds": 4, "clip": 3.0}}}},
    "other trust": {
        **PLAIN,
        "of": {"3": {"arguments": {"rounds": 4, "trust": "silo"}}},
        "trust": "central",
    },
    "other opened sum": {**PLAIN, "of": {"3": {"fault": [4, "see another sum"]}}},
    "other threshold": {**PLAIN, "t": 0, "of": {"2": {"threshold": 1}}},
    "other study": {**PLAIN, "of": {"2": {"t": 0}}},
    "other certificate": {**PLAIN, "of": {"2": {"certificate_of": "party3"}}, "deadline": 4.0},
    "fails": {**PLAIN, "of": {"0": {"fault": [3, "raise"]}}},
    "is late": {**PLAIN, "deadline": 3.0, "of": {"4": {"fault": [3, "sleep"]}}},
    "is killed": {**PLAIN, "of": {"2": {"fault": [3, "die"]}}},  # the last one: it is gone
}


def addresses():
    """Free ports of this machine, none of which is given to whoever asks for any."""
    found = []
    for port in random.SystemRandom().sample(range(15000, 32000), 100):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(f"127.0.0.1:{port}")
    return found[:SILOS]


def new_certificates(folder):
    """An authority, and a certificate of every party, as a study's people would make them."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    names = [f"s{j}" for j in range(SILOS)]
    for file, name in zip(
        ("ca", *(f"party{i}" for i in range(PARTIES))), ("authority", ANALYST, *names), strict=True
    ):
        key = authority if file == "ca" else ec.generate_private_key(ec.SECP256R1())
        certificate = x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=start,
            not_valid_after=start + datetime.timedelta(days=1),
        ).add_extension(x509.BasicConstraints(ca=file == "ca", path_length=None), critical=True)
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        (folder / f"{file}.crt").write_bytes(
            certificate.sign(authority, SHA256()).public_bytes(pem)
        )
        (folder / f"{file}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    new_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, certificates):
    """What every party of every study returned or raised, and in how many seconds."""
    folder = tmp_path_factory.mktemp("parties")
    studies = [
        {"certificates": None if name == "sums" else str(certificates), **study}
        for name, study in STUDIES.items()
    ]
    told = json.dumps(studies), json.dumps([addresses() for _ in studies])
    script = Path(__file__).with_name("mpyc_party.py")
    parties = [
        subprocess.Popen([sys.executable, script, str(i), *told, folder / str(i)])
        for i in range(PARTIES)
    ]
    try:
        codes = [party.wait(timeout=100) for party in parties]
    finally:
        for party in parties:
            party.kill()
            party.wait()
    assert codes == [0, 0, -9, 0, 0]
    found = [pickle.loads((folder / str(i)).read_bytes()) for i in range(PARTIES)]
    return {
        name: [of_party[k] for of_party in found if k < len(of_party)]
        for k, name in enumerate(STUDIES)
    }


def results(outcomes, name):
    return [outcome for outcome, _ in outcomes[name]]


# ------------------------------------------------------------------------------------------ results


@pytest.mark.processes
@pytest.mark.parametrize("name", RUNS)
def test_parties_have_the_bits_of_one_process(outcomes, name):
    how = {"l2": 1e-3, "trust": "central"} | RUNS[name]
    t = 1 if how["trust"] == "central" else None
    expected = dpk.solve(name, data_of_all(), budget=BUDGET, rng=7, colluding=t, **how)
    found = results(outcomes, name)
    assert len(found) == PARTIES
    for result in found:
        assert not isinstance(result, str), result
        assert np.array_equal(result.coef, expected.coef)
        assert result.intercept == expected.intercept
        assert result.history == expected.history
        assert result.privacy.releases == expected.privacy.releases
        assert result.privacy.mu == expected.privacy.mu


@pytest.mark.processes
def test_a_federation_and_silos_have_the_bits_of_one_process(outcomes):
    how = PLAIN["arguments"] | {"l2": 1e-3}
    expected = dpk.solve(
        "gradient_descent", data_of_all(), budget=BUDGET, rng=7, colluding=1, **how
    )
    for result in results(outcomes, "as users do"):
        assert not isinstance(result, str), result
        assert np.array_equal(result.coef, expected.coef)
        assert result.privacy.releases == expected.privacy.releases


@pytest.mark.processes
def test_scores_have_the_bits_of_one_process(outcomes):
    data = data_of_all()
    expected = dpk.evaluate(model_of(data), data, budget=BUDGET, rng=7, colluding=1)
    for found in results(outcomes, "evaluation"):
        assert not isinstance(found, str), found
        assert found.scores == expected.scores
        assert found.privacy.releases == expected.privacy.releases
        assert any("sums by Shamir shares" in note for note in found.privacy.notes)


@pytest.mark.processes
def test_certificates_have_the_lines_of_ledgers_and_silos_see_one_twice(outcomes):
    notes = {
        tuple(note for note in result.privacy.notes if note.startswith("last lines of the silos'"))
        for result in results(outcomes, "as users do")
    }
    ((note,),) = notes
    assert re.findall(r"s(\d) line 1 \([0-9a-f]{16}\)", note) == ["0", "1", "2", "3"]
    _, *silos = results(outcomes, "older ledger")
    seen = [[text for text in texts if "its ledger ends where" in text] for texts in silos]
    assert [len(texts) for texts in seen] == [1, 0, 1, 1]  # s1 has lost its certificate
    assert all(text.startswith("s1: ") for texts in seen for text in texts)


@pytest.mark.processes
def test_a_silo_whose_accountant_refuses_ends_the_study(outcomes):
    messages = results(outcomes, "budget is spent")
    assert messages[2].startswith("BudgetSpentError")
    assert all("s1: left the study" in m for i, m in enumerate(messages) if i != 2)


@pytest.mark.processes
def test_the_certificate_names_engine_and_threshold(outcomes):
    note = "sums by Shamir shares among 5 parties, threshold 2, against semi-honest parties"
    assert all(note in result.privacy.notes for result in results(outcomes, "federated_gd"))
    assert not any(note in result.privacy.notes for result in results(outcomes, "prox_sgd"))


@pytest.mark.processes
def test_sums_are_those_of_numpy_and_of_masks(outcomes):
    *sums, rows, shaped = results(outcomes, "sums")[0]
    for found in results(outcomes, "sums"):
        assert all(map(np.array_equal, found, (*sums, rows, shaped)))
    for size, found in zip(SUMS, sums, strict=True):
        values = [integers(silo, size) for silo in range(SILOS)]
        assert np.array_equal(found, np.sum(values, axis=0))  # modulo 2^64, too
        assert np.array_equal(found, masked_sum(values))
    assert np.array_equal(rows[:, 1, 1], np.arange(SILOS) + 0.5)
    assert np.array_equal(shaped, np.full((2, 3), 6))


def masked_sum(values):
    keys = {f"s{j}": Ed25519PrivateKey.generate() for j in range(SILOS)}
    roster = Roster({name: key.public_key().public_bytes_raw() for name, key in keys.items()})
    nonce = agreed = binding = bytes(32)
    sessions = [Session(key, name, roster, nonce, agreed) for name, key in keys.items()]
    offers = [session.offer for session in sessions]
    confirmations = [session.accept(offers) for session in sessions]
    for session in sessions:
        session.confirm(confirmations)
    return unmask([s.mask(v, 0, binding) for s, v in zip(sessions, values, strict=True)])


# --------------------------------------------------------------------------------- faults of others


@pytest.mark.processes
@pytest.mark.parametrize("name", ["other plan", "other sum", "other trust", "other opened sum"])
def test_a_party_with_another_plan_ends_the_study_for_all(outcomes, name):
    for pid, message in enumerate(results(outcomes, name)):
        who = "s2" if pid != 3 else f"{ANALYST}, s0, s1, s3"
        assert message.startswith(f"ProtocolError: {who}: not at this party's release")


@pytest.mark.processes
def test_a_party_with_another_threshold_or_study_ends_it_before_anything_is_sent(outcomes):
    for what in ("threshold", "study"):
        messages = results(outcomes, f"other {what}")
        for pid, message in enumerate(messages):
            who = ANALYST if pid == 2 else "s1"
            assert message.startswith(f"ProtocolError: the {what} of {who} is ")


@pytest.mark.processes
def test_a_party_with_the_certificate_of_another_is_not_let_in(outcomes):
    messages = results(outcomes, "other certificate")
    why = "while s2 says to be s1: start each with its own name and keys and the same study"
    assert f"ProtocolError: s1 has the certificate of another party, {why}" in messages
    assert all(isinstance(message, str) for message in messages)


@pytest.mark.processes
def test_a_party_that_fails_is_late_or_is_killed_ends_the_study_for_all(outcomes):
    first, *others = results(outcomes, "fails")
    assert first.startswith("ZeroDivisionError")
    assert all(ANALYST in message for message in others)
    *others, late = results(outcomes, "is late")
    assert all("s3" in message for message in others)
    assert "left the study" in late
    killed = results(outcomes, "is killed")
    assert len(killed) == 4
    assert all(message.startswith("SilosLostError: s1: left") for message in killed)


@pytest.mark.processes
def test_all_end_within_the_deadline(outcomes):
    assert all(seconds < 3.0 + 6.0 for _, seconds in outcomes["is late"])
    assert all(seconds < 20.0 for _, seconds in outcomes["is killed"])


# ---------------------------------------------------------------------------------- one party alone


class Peer:
    """In place of the connection with another party: keeps what is sent, and answers as told."""

    def __init__(self, answers=()):
        self.sent, self.buffers, self.transport = [], {}, self
        self.close, self._answers = None, list(answers)

    def send(self, label, payload):
        self.sent.append(payload)

    def receive(self, label):
        if self._answers:
            return self._answers.pop(0)
        return self.buffers.setdefault(label, asyncio.get_running_loop().create_future())

    def get_write_buffer_size(self):
        return 0

    def abort(self):
        """It is closed."""


def sent_by_silo_1(steps, answers, threshold=2):
    """What others receive of the sum, and the error that ended it."""
    names = (ANALYST, *(f"s{j}" for j in range(SILOS)))
    mesh = Mesh(names, [("localhost", 1)] * SILOS, 2, threshold, None, 0.2)
    peers = {pid: Peer(answers) for pid in (0, 1, 3, 4)}
    for pid, peer in peers.items():
        mesh.runtime.parties[pid].protocol = peer
        peer.close = partial(mesh.lose, pid)
    party = MpycParty(mesh, SILOS, 1, bytes(32))
    try:
        party.total(steps, "sum")
    except (ProtocolError, SilosLostError) as error:
        return {pid: peer.sent for pid, peer in peers.items()}, error
    finally:
        mesh.close()


@for_each("others", [[], [0]])
def test_whoever_left_first_or_since_then_is_named(others):
    """A silo may see that another has left before it sees why: that the analyst has."""
    names = (ANALYST, *(f"s{j}" for j in range(SILOS)))
    mesh = Mesh(names, [("localhost", 1)] * SILOS, 2, 2, None, 0.2)
    for pid in (0, 1, 3, 4):
        peer = mesh.runtime.parties[pid].protocol = Peer([b""] if pid in (3, 4) else [])
        if pid in (0, 1):
            peer.buffers[0] = None  # nothing was received
        peer.close = partial(mesh.lose, pid)
    mesh._connected = True
    for pid in [1, *others]:
        mesh.lose(pid)
    message = str(mesh._left([1]))
    mesh.close()
    assert message == f"s0: left the study, while {ANALYST} sent nothing"


@for_each(
    ("owners", "told"),
    [(["s2"], "s2 says to be s0"), (["s0", "s0"], "more than one says to be s0")],
)
def test_a_caller_that_says_anothers_name_is_named(owners, told):
    mesh = Mesh((ANALYST, "s0", "s1", "s2"), [("localhost", 1)] * 3, 2, 1, object(), 0.2)
    for owner in owners:
        caller = mpyc_runtime._Connection(mesh)
        caller.connection_made(
            SimpleNamespace(
                abort=lambda: None,
                get_extra_info=lambda _, name=owner: {"subject": [[("commonName", name)]]},
            )
        )
        caller.data_received(b"\1\0")
    message = str(mesh._left([]))
    mesh.runtime.parties[1].protocol = None
    mesh.close()
    assert f"no message within 0.2 s, while {told}: start each with its own name" in message


@for_each("told", [b"\1", b"\1\xff\2", b"\2", b""])
def test_whoever_left_since_others_did_is_not_named(told):
    """Silo 3 says whom it lost before it leaves; names of nobody, or of this party, say nothing."""
    names = (ANALYST, *(f"s{j}" for j in range(SILOS)))
    mesh = Mesh(names, [("localhost", 1)] * SILOS, 2, 2, None, 0.2)
    for pid in (0, 1, 3, 4):
        peer = mesh.runtime.parties[pid].protocol = Peer()
        peer.close = partial(mesh.lose, pid)
    mesh.runtime.parties[4].protocol.buffers[-1] = told
    mesh._connected = True
    mesh.lose(4)
    message = str(mesh._left([4]))
    sent = [mesh.runtime.parties[pid].protocol.sent for pid in (0, 1, 3, 4)]
    mesh.close()
    first = 1 if told[:1] == b"\1" else 4
    assert message == f"s{first - 1}: left the study"
    assert sent == [[bytes([first])]] * 3 + [[]]


@pytest.mark.processes
def test_what_a_silo_sends_is_shares_of_its_threshold_and_fresh():
    steps = integers(1, 40)
    field = mpyc_runtime.finfields.GF(2**1279 - 1)
    secret, seen = packed(steps), []
    for _ in range(2):
        sent, error = sent_by_silo_1(steps, [])
        assert isinstance(error, SilosLostError)
        assert {len(messages) for messages in sent.values()} == {2}  # nothing is opened
        assert len({messages[0] for messages in sent.values()}) == 1
        shares = {pid + 1: field.from_bytes(messages[1]) for pid, messages in sent.items()}
        for some in itertools.combinations(shares.items(), 3):
            assert [v % field.modulus for v in thresha.recombine(field, list(some))] == secret
        for some in itertools.combinations(shares.items(), 2):
            found = [v % field.modulus for v in thresha.recombine(field, list(some))]
            assert all(v != w for v, w in zip(found, secret, strict=True))
        seen += [number for share in shares.values() for number in share]
    assert len(set(seen)) == len(seen)


def test_nobody_opens_a_sum_before_all_are_at_it():
    steps = integers(1, 5)
    field = mpyc_runtime.finfields.GF(2**1279 - 1)
    share = field.to_bytes([5])
    sent, error = sent_by_silo_1(steps, [b"\1" * 32, share])
    assert isinstance(error, ProtocolError)
    assert "not at this party's release" in str(error)
    assert {len(messages) for messages in sent.values()} == {2}
    binding = next(iter(sent.values()))[0]
    sent, error = sent_by_silo_1(steps, [binding, share])
    assert isinstance(error, SilosLostError)
    assert sorted(len(messages) for messages in sent.values()) == [2, 2, 3, 3]  # T others


@for_each(
    ("shares", "message"),
    [
        ([b""], "more or fewer numbers than the sum"),
        ([bytes(320)], "more or fewer numbers than the sum"),
        ([bytes(160), b""], "that MPyC cannot read"),
        ([bytes(160), bytes(160)], "no sum of integers"),
    ],
)
def test_shares_that_cannot_be_read_are_refused(shares, message):
    sent, _ = sent_by_silo_1(integers(1, 5), [])
    binding = sent[0][0]
    _, error = sent_by_silo_1(integers(1, 5), [binding, *shares])
    assert isinstance(error, ProtocolError)
    assert message in str(error)


@for_each("size", [0, 1, 16, 17, 18, 1000])
def test_integers_of_all_silos_fit_into_elements(size):
    for silos in (1, 4, 255):
        for value in (-(2**63), 2**63 - 1):
            elements = packed(np.full(size, value, np.int64))
            total = unpacked([silos * element for element in elements], size, silos)
            assert np.array_equal(total, np.full(size, value, np.int64) * np.int64(silos))
    assert max(elements) * 255 < 2**1279 - 1


def test_what_is_no_sum_is_refused():
    element = packed(integers(0, 17))[0]
    (good,) = [unpacked([element * 4], 17, 4)]
    assert np.array_equal(good, integers(0, 17) * 4)
    rng = np.random.default_rng(0)
    for wrong in (
        element * 5 + (3 << (8 * 8)),  # more than four silos have given
        1 << 1278,
        int.from_bytes(rng.bytes(159), "little"),
    ):
        with pytest.raises(ProtocolError, match="no sum of integers"):
            unpacked([wrong], 17, 4)
    with pytest.raises(ProtocolError, match="no sum of integers"):
        unpacked([element * 4], 16, 4)  # something where nothing belongs
    with pytest.raises(ProtocolError, match="no sum of integers"):
        unpacked([], 17, 4)


# -------------------------------------------------------------------------------------- wrong calls


def joined(name="s0", places=None, **arguments):
    study = study_of(data_of_all())
    places = places or ["127.0.0.1:1"] * SILOS
    with join(study, name, places, **{"deadline": 0.3, **arguments}):
        raise AssertionError


def test_a_threshold_is_above_those_that_collude_and_below_half():
    for threshold in (1, 3):
        with pytest.raises(ValueError, match=r"colluding=1 silos and the analyst.*half of 5 part"):
            joined(threshold=threshold)
    assert_refused("TypeError: threshold", joined, threshold=2.0)


def test_addresses_are_of_all_silos_and_other_machines_need_certificates():
    assert_refused("addresses must be HOST:PORT of all 4 silos", joined, places=["127.0.0.1:1"])
    assert_refused("addresses must be HOST:PORT", joined, places=["localhost"] * SILOS)
    for host in ("hospital.example", "10.0.0.1", "0.0.0.0"):
        with pytest.raises(ValueError, match="certificates must be given for other machines"):
            joined(places=["localhost:1", "[::1]:2", "127.0.0.1:3", f"{host}:4"])


def test_names_and_plans_are_those_of_the_study():
    plan = Proposal("gradient_descent", BUDGET, {"trust": "central"})
    assert_refused("name must be one of s0, s1, s2, s3, or None", joined, "s4")
    for name, given in (("s0", plan), (None, None)):
        assert_refused("TypeError: plan must be given at the analyst", joined, name, plan=given)


@pytest.mark.processes
def test_parties_that_never_come_are_named_and_the_next_one_can_start(certificates):
    for _ in range(2):
        with pytest.raises(SilosLostError, match=r"s1, s2, s3: no message within 0\.3 s"):
            joined(places=addresses())
    crt, key = certificates / "party1.crt", certificates / "party2.key"
    with pytest.raises(FileNotFoundError):
        joined(certificates=Certificates(certificates / "none", "none", "none"))
    with pytest.raises(ValueError, match="certificates must be files"):
        joined(certificates=Certificates(crt, key, certificates / "ca.crt"))


def test_a_running_event_loop_is_refused():
    async def notebook():
        joined()

    with pytest.raises(RuntimeError, match="where no event loop runs"):
        asyncio.run(notebook())


def test_mpyc_is_what_this_was_written_for():
    """The contract: what is used of the inside of MPyC, without effects on a program."""
    code = """
import logging, os, sys
import dpkern.federated.mpyc
from dpkern.federated import mpyc_runtime as used
assert sys.argv == ["-c", "-M3", "--VERSION"], sys.argv
assert not logging.root.handlers and "READTHEDOCS" not in os.environ
import mpyc, mpyc.runtime, asyncio
assert mpyc.__version__ == "0.11", mpyc.__version__
assert not hasattr(mpyc.runtime, "mpc")
asyncio.run(asyncio.sleep(0))
mesh = used.Mesh(["a", "b", "c"], [("localhost", 1), ("localhost", 2)], 1, 1, None, 1.0)
runtime = mesh.runtime
assert (runtime.pid, runtime.threshold, len(runtime.parties)) == (1, 1, 3)
assert runtime.options.no_prss and runtime.options.no_async is False
assert runtime._program_counter == [0, 0] and not runtime.options.mix32_64bit
assert [(p.pid, p.host, p.port, p.protocol) for p in runtime.parties][2] == (
    2, "localhost", 2, None)
mesh.close()
assert not logging.root.handlers
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "-M3", "--VERSION"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


HOSPITALS = {"north": 60, "south": 50, "west": 40}
RECORDS = """
import numpy as np
rng = np.random.default_rng({0})
X = rng.standard_normal(({0}, 3))
y = np.where(X[:, 0] > 0.0, 1, 0)
"""


def key_of(number):
    return base64.b64encode(bytes([number] * 32)).decode()


def study_file():
    head = 'name = "three hospitals"\ntrust = "central"\ncolluding = 0\n[data]\nn_features = 3\n'
    head += 'task = "classification"\nclasses = [0, 1]\nrow_bound = 2.0\n'
    silos = [
        f'[[silos]]\nname = "{name}"\nrecords = {n}\nkey = "{key_of(n)}"\n'
        for name, n in HOSPITALS.items()
    ]
    return head + "".join(silos)


@pytest.mark.docs
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_pages_commands_run_as_printed(tmp_path, source_tree):
    page = (source_tree / "docs" / "federation.md").read_text()
    text = page.partition("## Sums by secret sharing")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    silo, analyst = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for name, port in zip(HOSPITALS, addresses(), strict=False):
        silo, analyst = (code.replace(f"{name}.example:9000", port) for code in (silo, analyst))
    first, *others = commands.split("# at ")
    shell = {"shell": True, "check": True, "cwd": tmp_path, "stderr": subprocess.DEVNULL}
    subprocess.run(first, **shell)
    for name in (*HOSPITALS, "analyst"):
        one = "".join(f"# {command}" for command in others).replace("north", name)
        subprocess.run(one.replace("CN=analyst", f"CN={ANALYST}"), **shell)
    (tmp_path / "study.toml").write_text(study_file())
    programs = [
        RECORDS.format(n) + silo.replace('"north', f'"{name}') for name, n in HOSPITALS.items()
    ]
    running = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
        for code in (*programs, analyst + "print(result)\n")
    ]
    try:
        assert [one.wait(timeout=60) for one in running] == [0] * 4
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert {f"{name}.budget" for name in HOSPITALS} <= {f.name for f in tmp_path.iterdir()}
