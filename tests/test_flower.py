"""Studies over Flower: processes of this machine, and the names of Flower that are used."""

import datetime
import ipaddress
import os
import runpy
import socket
import time
from contextlib import suppress
from importlib import metadata
from itertools import count
from types import SimpleNamespace

import pytest

from dpkern.federated.links import CoordinatorLostError, FederationError, SilosLostError

pytest.importorskip("flwr")

import flower_silo
from flwr.proto import fleet_pb2
from forks import FORKS

from dpkern.federated import connections, flower, flower_wire
from dpkern.federated.flower import FlowerLink, FlowerStar
from dpkern.federated.flower_superlink import Certificates, SuperLink

pytestmark = pytest.mark.processes

NUMBERS = count()


def wait_until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Silos:
    """Silos as processes, and what they said at their end."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}

    def start(self, name, superlink, fault=None, *, deadline=20.0, **keys):
        said = self.folder / f"{next(NUMBERS)}-{name}"
        options = {"insecure": not keys, "deadline": deadline, **keys}
        arguments = (name, superlink, said, options, fault)
        process = FORKS.Process(target=flower_silo.silo, args=arguments)
        process.start()
        self.processes[name] = process, said

    def end(self, name, within=10.0):
        process, said = self.processes.pop(name)
        process.join(within)
        assert process.exitcode is not None, f"{name} is still running"
        return said.read_text()

    def stop(self):
        for process, _ in self.processes.values():
            process.kill()
            process.join()


@pytest.fixture
def silos(tmp_path):
    silos = Silos(tmp_path)
    yield silos
    silos.stop()


@pytest.fixture(scope="module")
def superlink():
    with SuperLink(insecure=True) as superlink:
        yield superlink


def star(superlink, *names, certificates=None, deadline=10.0, join_deadline=30.0):
    return FlowerStar(
        names,
        superlink.address,
        superlink.secret,
        certificates=certificates,
        insecure=certificates is None,
        deadline=deadline,
        join_deadline=join_deadline,
    )


def answers(names, messages):
    return [name.encode() + message[::-1] for name, message in zip(names, messages, strict=True)]


def check_rounds(study, sizes):
    for size in sizes:
        messages = [os.urandom(size) for _ in study.silos]
        assert study.exchange(messages) == answers(study.silos, messages)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Certificates of a SuperLink at 127.0.0.1, and of a second authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("keys")
    pem = serialization.Encoding.PEM
    now = datetime.datetime.now(datetime.UTC)

    def sign(name, key, issuer, issuer_key, is_authority):
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(address, critical=False)
            .sign(issuer_key, hashes.SHA256())
        )
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))
        return certificate

    key, server_key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    root = sign("authority", key, None, key, True)
    sign("other", other, None, other, True)
    sign("superlink", server_key, root, key, False)
    private = server_key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "superlink.key").write_bytes(private)
    return folder


def node_key():
    from flwr.supercore.primitives import asymmetric

    private, public = asymmetric.generate_key_pairs()
    return asymmetric.private_key_to_bytes(private), asymmetric.public_key_to_bytes(public)


SIZES = (1_000, 1_000_000, 0, 1, 1_000, 1_000, 1_000_000, 1_000, 17, 1_000)
FOUR = ("silo0", "silo1", "silo2", "silo3")


def test_answers_come_in_the_order_of_silos_whole_and_unaltered(superlink, silos):
    for name in reversed(FOUR):
        silos.start(name, superlink.address)
    with star(superlink, *FOUR) as study:
        check_rounds(study, SIZES)
    for name in FOUR:
        assert silos.end(name) == "CoordinatorLostError: the coordinator ended the study"


def test_encryption_and_node_keys(authority, silos):
    files = [authority / name for name in ("authority.crt", "superlink.crt", "superlink.key")]
    keys = {name: node_key() for name in FOUR}
    public, ours = {name: key for name, (_, key) in keys.items()}, files[0].read_bytes()
    with SuperLink(certificates=Certificates(*files), node_keys=public) as superlink:
        for name in FOUR:
            silos.start(name, superlink.address, certificates=ours, node_key=keys[name][0])
        with star(superlink, *FOUR, certificates=ours) as study:
            check_rounds(study, SIZES[:4])
        for name in FOUR:
            silos.end(name)

        other = (authority / "other.crt").read_bytes()
        stranger, known = node_key()[0], keys["silo0"][0]
        for options, error in [
            (
                {"certificates": ours, "node_key": stranger},
                "does not know this silo's node key, or",
            ),
            ({"certificates": other, "node_key": known}, "CERTIFICATE_VERIFY_FAILED"),
            ({"insecure": True}, "is not reached"),
        ]:
            link = FlowerLink("silo0", superlink.address, join_deadline=0.5, **options)
            link._is_known = False  # so that it tries to register its key itself
            with link, pytest.raises(CoordinatorLostError, match=error):
                link.exchange(None)


@pytest.mark.parametrize(("seconds", "side"), [(60.0, "ahead of"), (-600.0, "behind")])
def test_a_wrong_clock_is_named(authority, monkeypatch, seconds, side):
    from flwr.supernode import node_auth_http_interceptor

    files = [authority / name for name in ("authority.crt", "superlink.crt", "superlink.key")]
    private, public = node_key()
    real, now = time.time, node_auth_http_interceptor.now
    shift = datetime.timedelta(seconds=seconds)
    with SuperLink(certificates=Certificates(*files), node_keys={"silo0": public}) as superlink:
        monkeypatch.setattr(flower_wire.time, "time", lambda: real() + seconds)
        monkeypatch.setattr(node_auth_http_interceptor, "now", lambda: now() + shift)
        keys = {"certificates": files[0].read_bytes(), "node_key": private}
        with FlowerLink("silo0", superlink.address, join_deadline=5.0, **keys) as link:
            said = rf"this machine's clock is \d+ s {side} the server's: set it right"
            with pytest.raises(CoordinatorLostError, match=said):
                link.exchange(None)


def test_a_second_run_with_the_same_keys_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(FlowerStar, "__init__", lambda *_: None)
    monkeypatch.setattr(FlowerStar, "close", lambda *_: None)
    first = connections._OnlyStar(tmp_path / "coordinator.lock")
    with pytest.raises(FederationError, match="another run with these keys is in progress"):
        connections._OnlyStar(tmp_path / "coordinator.lock")
    first.close()
    connections._OnlyStar(tmp_path / "coordinator.lock").close()


def test_encryption_is_left_out_only_if_asked_for():
    with pytest.raises(ValueError, match=r"certificates must .* or None with insecure=True"):
        FlowerLink("silo0", "127.0.0.1:1")
    with pytest.raises(ValueError, match=r"certificates must .* got some with insecure=True"):
        FlowerStar(["silo0"], "127.0.0.1:1", b"secret", certificates=b"", insecure=True)
    with pytest.raises(ValueError, match=r"node_key must .* or None with insecure=True"):
        FlowerLink("silo0", "127.0.0.1:1", node_key=b"key", insecure=True)
    with pytest.raises(ValueError, match=r"certificates must .* or None with insecure=True"):
        SuperLink()


def test_questions_that_are_lost_are_asked_again(superlink, silos, monkeypatch):
    monkeypatch.setattr(flower, "_REPEAT", 0.5)
    for name in FOUR[:2]:
        silos.start(name, superlink.address)
    with star(superlink, *FOUR[:2]) as study:
        check_rounds(study, [10])
        push, lost = study._wire.push, []

        def loses_the_first(request, messages):
            if lost:
                return push(request, messages)
            lost.extend(messages)
            return SimpleNamespace(message_ids=["" for _ in lost])

        monkeypatch.setattr(study._wire, "push", loses_the_first)
        check_rounds(study, [10, 10])
        assert len(lost) == 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("is killed", "silo1: no answer within 2 s"),
        ("is told to end", "silo1: it failed with SystemExit"),
        ("raises", "silo1: it failed with KeyError"),
        ("raises a strange class", "silo1: it failed with an error"),
    ],
)
def test_a_silo_that_fails_is_named_by_the_deadline_and_tells_no_more_than_a_class(
    superlink, silos, fault, why
):
    silos.start("silo0", superlink.address)
    silos.start("silo1", superlink.address, (fault, 2))
    with star(superlink, "silo0", "silo1", deadline=2.0) as study:
        check_rounds(study, [10])
        began = time.monotonic()
        with pytest.raises(SilosLostError) as lost:
            check_rounds(study, [10])
        assert time.monotonic() - began < 4.0
    assert lost.value.silos == ("silo1",)
    assert str(lost.value) == why
    assert silos.end("silo0") == "CoordinatorLostError: the coordinator ended the study"
    assert "12345" not in (superlink.folder / "superlink.log").read_text()


def test_a_late_answer_is_not_taken_for_one_of_the_next_round(superlink, silos):
    silos.start("silo0", superlink.address)
    silos.start("silo1", superlink.address, ("sleeps", 2))
    with star(superlink, "silo0", "silo1", deadline=1.0) as study:
        check_rounds(study, [10])
        with pytest.raises(SilosLostError, match="silo1: no answer within 1 s"):
            check_rounds(study, [10])
        study._deadline = 10.0
        check_rounds(study, [10, 10])


def test_a_round_is_answered_once_and_repeated_but_never_answered_anew(superlink, silos):
    silos.start("silo0", superlink.address)
    with star(superlink, "silo0") as study:
        check_rounds(study, [10])
        for _ in range(3):  # the same message, as when its answer was lost
            assert study.exchange([b"again"]) == answers(["silo0"], [b"again"])
            study._round -= 1
        study._round += 1
        check_rounds(study, [10])
        study._round -= 1
        with pytest.raises(SilosLostError, match="silo0: it failed with RefusedMessage"):
            check_rounds(study, [10])


def test_nodes_of_other_names_and_of_names_that_are_taken_are_ignored(superlink, silos, tmp_path):
    copies = Silos(tmp_path)
    for group, name in [(silos, "silo0"), (copies, "silo0"), (silos, "stranger")]:
        group.start(name, superlink.address)
    with star(superlink, "silo0") as study:
        check_rounds(study, [10, 10])
        study.close()
        processes = [group.processes["silo0"][0] for group in (silos, copies)]
        wait_until(lambda: any(process.exitcode is not None for process in processes))
    assert sorted(process.exitcode is None for process in processes) == [False, True]
    assert silos.processes["stranger"][0].exitcode is None
    with (
        star(superlink, "silo1", "silo2", join_deadline=1.0) as study,
        pytest.raises(SilosLostError, match=r"silo1, silo2: did not join within 1 s"),
    ):
        check_rounds(study, [10])
    copies.stop()


def test_who_says_a_name_that_is_not_its_own_is_named(superlink, silos, authority, tmp_path):
    twins = Silos(tmp_path)
    for group, name in [(silos, "silo0"), (twins, "silo0"), (silos, "stranger")]:
        group.start(name, superlink.address)
    why = (
        "silo1: did not join within 3 s, while stranger says to be there, which the study does not "
        "have, more than one says to be silo0: start each with its own name and keys"
    )
    with (
        pytest.raises(SilosLostError, match=why),
        star(superlink, "silo0", "silo1", join_deadline=3.0) as study,
    ):
        study.exchange([b"", b""])
    assert all(why in group.end("silo0") for group in (silos, twins))
    files = [authority / name for name in ("authority.crt", "superlink.crt", "superlink.key")]
    keys, ours = {name: node_key() for name in FOUR[:2]}, files[0].read_bytes()
    public = {name: key for name, (_, key) in keys.items()}
    with SuperLink(certificates=Certificates(*files), node_keys=public) as second:
        options = {"certificates": ours, "node_key": keys["silo1"][0]}
        silos.start("silo0", second.address, **options)
        why = "silo0, silo1: did not join within 3 s, while silo1 says to be silo0: start each"
        with (
            pytest.raises(SilosLostError, match=why),
            star(second, *FOUR[:2], certificates=ours, join_deadline=3.0) as study,
        ):
            study.exchange([b"", b""])
        assert why in silos.end("silo0")


def test_what_a_node_sends_unasked_is_ignored_or_refused(superlink, silos):
    silos.start("silo0", superlink.address)
    with (
        star(superlink, "silo0") as study,
        FlowerLink("x", superlink.address, insecure=True) as link,
    ):
        check_rounds(study, [10])
        link._activate()
        for target in (flower_wire.SUPERLINK_NODE_ID, study._nodes["silo0"]):
            ends = (study._run, "", flower_wire.SUPERLINK_NODE_ID, target, "", "")
            metadata = flower_wire.Metadata(*ends, time.time(), 30.0, "train.round")
            request = fleet_pb2.PushMessagesRequest(node=link._wire.node)
            link._wire.push(request, [(metadata, {"round": 1, "bytes": b"as the coordinator"})])
        check_rounds(study, [10, 10])


def test_a_study_ends_the_one_in_progress_and_has_its_silos(superlink, silos):
    silos.start("silo0", superlink.address)
    with star(superlink, "silo0") as study:
        check_rounds(study, [10])
        with star(superlink, "silo0") as later:
            check_rounds(later, [10])
            with pytest.raises(SilosLostError, match=r"silo0: the SuperLink .* refused"):
                check_rounds(study, [10])
            check_rounds(later, [10])
    silos.end("silo0")
    silos.start("silo0", superlink.address)
    with star(superlink, "silo0") as study:
        check_rounds(study, [10])


def test_nobody_without_the_secret_runs_a_study_or_ends_one(superlink, silos):
    silos.start("silo0", superlink.address)
    with star(superlink, "silo0") as study:
        check_rounds(study, [10])
        with pytest.raises(ConnectionError, match="AcquireTask: 401"):
            FlowerStar(["silo0"], superlink.address, b"guessed", insecure=True, join_deadline=1.0)
        check_rounds(study, [10])


def test_a_coordinator_that_is_killed_is_missed_by_the_deadline_and_leaves_nothing(silos):
    said = silos.folder / "coordinator"
    process = FORKS.Process(target=flower_silo.coordinator, args=(said, ["silo0"]))
    process.start()
    wait_until(lambda: said.exists() and said.read_text())
    address, pid = said.read_text().split()
    silos.start("silo0", address, deadline=3.0)
    time.sleep(1.0)
    process.kill()
    process.join()
    wait_until(lambda: not is_running(int(pid)))
    assert "is not reached" in silos.end("silo0", within=6.0)


def test_a_run_whose_coordinator_is_gone_ends_by_the_deadline(superlink, silos):
    silos.start("silo0", superlink.address, deadline=3.0)
    study = star(superlink, "silo0")
    check_rounds(study, [10])
    assert "the coordinator sent nothing within 3 s" in silos.end("silo0", within=6.0)
    study.close()


def test_a_superlink_that_is_started_again_ends_the_study_and_has_its_silos_for_another(silos):
    with SuperLink(insecure=True) as first:
        port = int(first.address.split(":")[1])
        silos.start("silo0", first.address)
        silos.start("silo1", first.address)  # it is in no study
        with star(first, "silo0") as study:
            check_rounds(study, [10])
            first._process.kill()
            first._process.wait()
            with SuperLink(insecure=True, port=port) as second:
                with pytest.raises(SilosLostError, match=r"silo0: the SuperLink .* refused"):
                    check_rounds(study, [10])
                with star(second, "silo0", "silo1") as study:
                    check_rounds(study, [10])


def test_a_superlink_that_cannot_start_says_why(authority, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"already in use: another server may.*{port}"):
            SuperLink(insecure=True, port=port)
    files = [authority / name for name in ("authority.crt", "superlink.crt", "superlink.crt")]
    how = {"certificates": Certificates(*files), "folder": tmp_path}
    superlink = SuperLink(node_keys={"silo0": b"key"}, **how)
    with pytest.raises(RuntimeError, match="ended at its start; its log ends in"):
        superlink.__enter__()
    with pytest.raises(ValueError, match="node_keys must be distinct, got one for silo0 and silo1"):
        SuperLink(node_keys=dict.fromkeys(("silo0", "silo1"), b"key"), **how)


def test_a_second_superlink_with_the_same_keys_is_refused(tmp_path):
    with SuperLink(insecure=True, folder=tmp_path) as first:
        with pytest.raises(FederationError, match="another server with these keys is running"):
            SuperLink(insecure=True, folder=tmp_path).__enter__()
        assert (tmp_path / "superlink.secret").read_bytes() == first.secret
    with SuperLink(insecure=True, folder=tmp_path):
        pass


def test_a_superlink_leaves_nothing_behind():
    with suppress(KeyboardInterrupt), SuperLink(insecure=True) as superlink:
        pid, folder = superlink._process.pid, superlink.folder
        assert (folder / "superlink.secret").stat().st_mode & 0o777 == 0o600
        raise KeyboardInterrupt
    assert not is_running(pid)
    assert not folder.exists()


def test_a_superlink_that_is_stopped_leaves_its_log_only_in_a_folder_that_was_given(tmp_path):
    with SuperLink(insecure=True, folder=tmp_path / "keys") as superlink:
        assert (tmp_path / "keys" / "superlink.secret").read_bytes() == superlink.secret
    assert [path.name for path in (tmp_path / "keys").iterdir()] == ["superlink.log"]


def test_another_version_of_flower_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "1.42.0")
    with pytest.raises(ImportError, match=r"pip install 'dpkern\[federated\]' \(flwr is 1.42.0"):
        runpy.run_path(flower_wire.__file__)
