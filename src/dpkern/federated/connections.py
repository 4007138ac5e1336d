"""The connections of a study on Flower, from the files that its parties have.

A silo's folder has its identity, NAME.key, and its node's keys, NAME.node and NAME.node.pub, of
which the coordinator needs the last. The coordinator's folder has ca.crt, which all silos need,
server.pem and server.key, and superlink.secret while a SuperLink runs.
"""

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dpkern.federated.flower import FAREWELL, FlowerLink, FlowerStar
from dpkern.federated.flower_superlink import Certificates, SuperLink
from dpkern.federated.keys import check_key, read_certificates, read_node_key, read_node_public
from dpkern.federated.links import FederationError
from dpkern.federated.study import Study

PathLike = str | os.PathLike[str]


def silo_link(
    study: Study, name: str, keys: PathLike, *, insecure: bool, deadline: float
) -> FlowerLink:
    """Return a silo's connection, with the keys in its folder.

    `deadline` is how many seconds the coordinator may take for a message.
    """
    node_key = None
    if not insecure:
        node_key = read_node_key(Path(keys) / f"{name}.node")
    return FlowerLink(
        name,
        _address(study),
        certificates=_authority(study, insecure),
        node_key=node_key,
        insecure=insecure,
        deadline=deadline,
        join_deadline=deadline,
    )


def coordinator_star(
    study: Study, keys: PathLike, *, insecure: bool, deadline: float
) -> FlowerStar:
    """Return the coordinator's connections, by the SuperLink that runs on this machine.

    `deadline` is how many seconds the silos may take to be there, and to answer. One that has
    waited long is given the time until it looks for messages, however short that is.
    """
    path = Path(keys) / "superlink.secret"
    try:
        secret = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: no such file; `dpkern federation up` makes it, and must be running"
        ) from None
    return _OnlyStar(
        Path(keys) / "coordinator.lock",
        study.names,
        _address(study),
        secret,
        certificates=_authority(study, insecure),
        insecure=insecure,
        deadline=deadline,
        join_deadline=max(deadline, FAREWELL),
    )


class _OnlyStar(FlowerStar):
    """Connections that no other process with the same lock has: a second run would stop this one.

    The lock is held until the connections are closed, or the process is killed.
    """

    def __init__(self, lock: Path, *arguments: Any, **options: Any) -> None:
        self._held = ExitStack()
        with ExitStack() as held:
            file = held.enter_context(open(lock, "wb"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FederationError(
                    f"{lock}: another run with these keys is in progress"
                ) from None
            super().__init__(*arguments, **options)
            self._held = held.pop_all()

    def close(self, why: str = "") -> None:
        try:
            super().close(why)
        finally:
            self._held.close()


def superlink(study: Study, keys: PathLike, silos: PathLike, *, insecure: bool) -> SuperLink:
    """Return the SuperLink of a study, with the coordinator's keys and the silos' public ones."""
    folder, node_keys, certificates = Path(keys), dict[str, bytes](), None
    if not insecure:
        certificates = Certificates(*(folder / n for n in ("ca.crt", "server.pem", "server.key")))
        for name in study.names:
            node_keys[name] = read_node_public(Path(silos) / f"{name}.node.pub")
        for path in certificates[:2]:
            read_certificates(path)
        check_key(*certificates[1:])
    host, _, port = _address(study).rpartition(":")
    return SuperLink(
        certificates=certificates,
        node_keys=node_keys,
        insecure=insecure,
        host="127.0.0.1" if host in ("localhost", "127.0.0.1") else "0.0.0.0",
        port=int(port),
        folder=folder,
    )


def _address(study: Study) -> str:
    if study.address is None:
        raise ValueError('the study must have a table [coordinator] with address = "HOST:PORT"')
    return study.address


def _authority(study: Study, insecure: bool) -> bytes | None:
    if insecure:
        return None
    if study.certificates is None:
        raise ValueError('the table [coordinator] must have certificates = "ca.crt", got none')
    return read_certificates(study.certificates)
