"""Every solver over Flower, with a process for each silo: the same bits as in one process."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
from makers import same

import dpkern as dpk

pytest.importorskip("cryptography")
pytest.importorskip("flwr")

from forks import FORKS
from kills import Kills, accountant_of
from network import Network
from studies import SEED, identities, records_of, study_of, wisconsin

from dpkern.federated.federation import Federation
from dpkern.federated.flower import FlowerLink, FlowerStar
from dpkern.federated.flower_superlink import Certificates, SuperLink
from dpkern.federated.keys import (
    new_certificates,
    new_node_key,
    public_key,
    read_node_key,
    read_node_public,
)
from dpkern.federated.silo import take_part

pytestmark = pytest.mark.processes

BUDGET = dpk.Budget(epsilon=1.0, delta=1e-5)
HOSPITAL = Path(__file__).with_name("flower_hospital.py")
RUNS = [
    ("gradient_descent", {"rounds": 3}),
    ("federated_gd", {"rounds": 2, "local_steps": 3}),
    ("wd_dp", {"local_steps": 5}),
    ("output_perturbation", {"local_steps": 5}),
    ("local_newton", {"rounds": 2}),
    ("newton_inference", {"rounds": 4}),
    ("admm", {"rounds": 2, "users": "silos"}),
    ("minibatch_sgd", {"rounds": 2, "sampling": "one_pass"}),
    ("local_sgd", {"rounds": 2, "local_steps": 2}),
    ("spider", {"rounds": 2}),
    ("prox_svrg", {"rounds": 2}),
]


@contextmanager
def hospitals(m, trusts, folder, between=nullcontext):
    """Start a SuperLink and the silos, which take part in a study for each trust.

    `between` is given the SuperLink's address, and is a context of the one that silos call.
    """
    with SuperLink(insecure=True) as superlink, between(superlink.address) as network:
        address = superlink.address if between is nullcontext else network.address
        command = [sys.executable, str(HOSPITAL), address]
        silos = [
            subprocess.Popen(
                [*command, str(j), str(m), ",".join(trusts), str(folder / f"s{j}.npy")]
            )
            for j in range(m)
        ]
        try:
            yield superlink
            assert [silo.wait(30.0) for silo in silos] == [0] * m
        finally:
            for silo in silos:
                silo.kill()
                silo.wait()


def federation_of(study, address, secret, journal=None, deadline=90.0):
    def connect():
        how = {"insecure": True, "deadline": deadline, "join_deadline": deadline}
        return FlowerStar(study.names, address, secret, **how)

    return Federation(study, star=connect, journal=journal)


def over_flower(m, runs, folder):
    """Run studies, each (solver, arguments, trust), one after the other; compare all parties."""
    data, found = wisconsin(m), []
    with hospitals(m, [trust for _, _, trust in runs], folder) as superlink:
        for name, how, trust in runs:
            federation = federation_of(study_of(data, trust), superlink.address, superlink.secret)
            found.append(dpk.solve(name, federation, budget=BUDGET, **how))
    outputs = [folder / f"s{j}.npy" for j in range(m)]
    for i, (name, how, trust) in enumerate(runs):
        t = 1 if trust == "central" else None
        expected = dpk.solve(name, data, budget=BUDGET, rng=SEED, trust=trust, colluding=t, **how)
        assert same(found[i], expected), (name, trust)
        model = np.append(expected.coef, expected.intercept)
        assert all(np.array_equal(np.load(out)[i], model) for out in outputs), (name, trust)


def cases(trust):
    return [(name, how, trust) for name, how in RUNS]


@pytest.mark.parametrize("trust", ["central", "silo"])
def test_solvers_over_flower_have_the_bits_of_one_process(trust, tmp_path):
    runs = cases(trust)
    if trust == "central":  # local steps are hidden there
        runs = [(n, {**h, "noise": "round"} if n == "local_sgd" else h, t) for n, h, t in runs]
    over_flower(4, runs, tmp_path)


def test_eight_silos(tmp_path):
    runs = [("gradient_descent", {"rounds": 2}, "central"), ("wd_dp", {"local_steps": 3}, "silo")]
    over_flower(8, runs, tmp_path)


def analyst(address, secret, journal, out, rounds=20, deadline=90.0):
    federation = federation_of(study_of(wisconsin()), address, secret, journal, deadline)
    result = dpk.solve("gradient_descent", federation, budget=BUDGET, rounds=rounds)
    np.save(out, np.append(result.coef, result.intercept))


def test_a_coordinator_that_is_killed_goes_on_with_the_same_silos(tmp_path):
    data, spawn = wisconsin(), multiprocessing.get_context("spawn")
    expected = dpk.solve("gradient_descent", data, budget=BUDGET, rng=SEED, colluding=1, rounds=20)
    model = np.append(expected.coef, expected.intercept)
    journal, out = tmp_path / "journal", tmp_path / "analyst.npy"
    with hospitals(4, ["central"], tmp_path) as superlink:
        start = superlink.address, superlink.secret, journal, out
        for size in (0, 4_000, 12_000, None):  # bytes of the journal at which it is killed
            coordinator = spawn.Process(target=analyst, args=start)
            coordinator.start()
            end = time.monotonic() + 60.0
            while size is not None and time.monotonic() < end:
                if journal.exists() and journal.stat().st_size > size:
                    os.kill(coordinator.pid, signal.SIGKILL)
                    break
                time.sleep(0.01)
            coordinator.join(60.0)
        assert coordinator.exitcode == 0
    assert np.array_equal(np.load(out), model)
    assert all(np.array_equal(np.load(tmp_path / f"s{j}.npy")[0], model) for j in range(4))


@pytest.mark.filterwarnings("ignore:the study is complete, but")  # silos are told late
def test_a_network_that_loses_connections_delays_a_study_and_changes_nothing(tmp_path):
    """Questions and answers are lost on the way, and arrive twice because they are repeated."""
    data, how = wisconsin(), {"budget": BUDGET, "rounds": 12}
    expected = dpk.solve("gradient_descent", data, rng=SEED, colluding=1, **how)

    def between(address):
        return Network(address, life=25_000, delay=0.01, seed=1)

    with (
        hospitals(4, ["central"], tmp_path, between) as superlink,
        between(superlink.address) as network,
    ):
        federation = federation_of(study_of(data), network.address, superlink.secret)
        found = dpk.solve("gradient_descent", federation, **how)
        federation.finish()
        assert network.lost > 5
    assert same(found, expected)
    model = np.append(expected.coef, expected.intercept)
    assert all(np.array_equal(np.load(tmp_path / f"s{j}.npy")[0], model) for j in range(4))


class Server:
    """`dpkern federation up --insecure` of a study in a folder, as a process."""

    def __init__(self, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        key = [public_key(identity) for identity in identities(2)]
        silos = "".join(
            f'[[silos]]\nname = "s{j}"\nrecords = 10\nkey = "{key[j]}"\n' for j in range(2)
        )
        (folder / "study.toml").write_text(
            'name = "two"\ntrust = "central"\ncolluding = 0\n[data]\ntask = "classification"\n'
            f'n_features = 2\nclasses = [0, 1]\n[coordinator]\naddress = "{address}"\n{silos}'
        )
        command = [sys.executable, "-m", "dpkern", "federation", "up", "study.toml"]
        self.process = subprocess.Popen(
            [*command, "--keys", "keys", "--insecure"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.secret = folder / "keys" / "superlink.secret"
        shown = [self.process.stdout.readline() for _ in range(4)]
        assert shown[2].startswith("listening")
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        (self.pid,) = map(int, Path(children).read_text().split())


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc for processes that are left"
)
@pytest.mark.parametrize("end", ["server dies", "SIGTERM", "SIGINT"])
def test_a_server_and_its_command_end_together(tmp_path, end):
    server = Server(tmp_path)
    if end == "server dies":
        os.kill(server.pid, signal.SIGKILL)
    else:
        server.process.send_signal(getattr(signal, end))
    _, said = server.process.communicate(timeout=15.0)
    expected = {"server dies": 2, "SIGTERM": 143, "SIGINT": 130}
    assert server.process.returncode == expected[end]
    assert ("has ended by itself, with status -9: see the end of" in said) == (end == "server dies")
    assert not server.secret.exists()
    assert not Path(f"/proc/{server.pid}").exists()


def hospital(address, j, out, keys=None, journal=None, deadline=40.0):
    data, study = wisconsin(), study_of(wisconsin())
    how = {"deadline": deadline, "join_deadline": deadline} | (keys or {"insecure": True})
    with FlowerLink(f"s{j}", address, **how) as link:
        own, accountant = records_of(study, data, j), accountant_of(out, j)
        how = {"accountant": accountant, "journal": journal, "rng": SEED, "n_threads": 1}
        result = take_part(study, f"s{j}", own, link, identities(4)[j], **how)
    np.save(out / f"s{j}.npy", np.append(result.coef, result.intercept))


@pytest.mark.parametrize("trials", [8])  # a hundred take half an hour
def test_parties_killed_over_flower(tmp_path, trials):
    rounds, data = 10, wisconsin()
    how = {"budget": BUDGET, "rng": SEED, "colluding": 1, "rounds": rounds}
    expected = dpk.solve("gradient_descent", data, **how)
    model = np.append(expected.coef, expected.intercept)
    with SuperLink(insecure=True) as superlink:

        def silo(j, folder):
            return FORKS.Process(target=hospital, args=(superlink.address, j, folder))

        def coordinator(folder):
            start = superlink.address, superlink.secret, folder / "journal", folder / "analyst.npy"
            return FORKS.Process(target=analyst, args=(*start, rounds, 12.0))

        kills = Kills(silo, coordinator, model, rounds, patience=60.0)
        kills.trials(tmp_path, trials, 6.0)


def test_a_silo_that_is_killed_goes_on_from_its_journal(tmp_path):
    """Its node's keys are known, so that the server takes it for the same one."""
    rounds, data, folder = 10, wisconsin(), tmp_path / "keys"
    folder.mkdir()
    new_certificates(folder, ["127.0.0.1"])
    how = {"budget": BUDGET, "rng": SEED, "colluding": 1, "rounds": rounds}
    expected = dpk.solve("gradient_descent", data, **how)
    keys, public, authority = [], {}, (folder / "ca.crt").read_bytes()
    for j in range(4):
        new_node_key(folder / f"s{j}.node")
        node_key = read_node_key(folder / f"s{j}.node")
        keys.append({"certificates": authority, "node_key": node_key})
        public[f"s{j}"] = read_node_public(folder / f"s{j}.node.pub")
        dpk.Accountant(tmp_path / f"s{j}.json", epsilon=1.5, delta=1e-5)
    files = Certificates(*(folder / name for name in ("ca.crt", "server.pem", "server.key")))
    with SuperLink(certificates=files, node_keys=public) as superlink:

        def start(j):
            journal = tmp_path / f"s{j}.journal"
            arguments = superlink.address, j, tmp_path, keys[j], journal, 150.0
            silo = FORKS.Process(target=hospital, args=arguments)
            silo.start()
            return silo

        def restart(t, release):
            if t == 4:
                silos[2].kill()
                silos[2].join()
                silos[2] = start(2)

        silos = [start(j) for j in range(4)]
        star = FlowerStar(
            study_of(data).names,
            superlink.address,
            superlink.secret,
            certificates=authority,
            deadline=100.0,
        )
        federation = Federation(study_of(data), star=lambda: star)
        how = {"budget": BUDGET, "rounds": rounds}
        with pytest.warns(UserWarning, match="s2: no answer yet, waiting for it for at most 100 s"):
            found = dpk.solve("gradient_descent", federation, callback=restart, **how)
        for silo in silos:
            silo.join(60.0)
            assert silo.exitcode == 0
    assert same(found, expected)
    model = np.append(expected.coef, expected.intercept)
    assert all(np.array_equal(np.load(tmp_path / f"s{j}.npy"), model) for j in range(4))
    assert [len(accountant_of(tmp_path, j).entries) for j in range(4)] == [1] * 4


def test_a_server_that_dies_at_the_end_costs_nobody_the_model(tmp_path):
    rounds, data = 3, wisconsin()
    how = {"budget": BUDGET, "rounds": rounds, "recalibrate": False}
    expected = dpk.solve("gradient_descent", data, rng=SEED, colluding=1, **how)
    for j in range(4):
        dpk.Accountant(tmp_path / f"s{j}.json", epsilon=1.5, delta=1e-5)
    servers = [SuperLink(insecure=True)]
    port = int(servers[0].address.split(":")[1])

    def connect():
        server, names = servers[-1], study_of(data).names
        return FlowerStar(names, server.address, server.secret, insecure=True, deadline=60.0)

    def kill(t, release):
        if t == rounds - 1:  # the last answers are in
            servers[0]._process.kill()
            servers[0]._process.wait()

    with servers[0]:
        arguments = [(servers[0].address, j, tmp_path) for j in range(4)]
        silos = [FORKS.Process(target=hospital, args=given) for given in arguments]
        for silo in silos:
            silo.start()
        federation = Federation(study_of(data), star=connect, deadline=60.0)
        with pytest.warns(UserWarning, match="complete, but s0, s1, s2, s3 did not confirm"):
            found = dpk.solve("gradient_descent", federation, callback=kill, **how)
    assert same(found, expected)
    servers.append(SuperLink(insecure=True, port=port))
    with servers[1]:
        assert federation.finish() == ()
        for silo in silos:
            silo.join(30.0)
            assert silo.exitcode == 0
    model = np.append(expected.coef, expected.intercept)
    assert all(np.array_equal(np.load(tmp_path / f"s{j}.npy"), model) for j in range(4))
