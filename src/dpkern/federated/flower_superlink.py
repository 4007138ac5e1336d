"""Flower's SuperLink, the middle of the star, as a process that ends with this one.

It is Flower's own program, told to run no apps (`--isolation process`): otherwise everybody who
reaches its port could start a run, whose code it would run on this machine, and everybody could
take the place of a run's ServerApp. Only who knows the secret can, see `FlowerStar`.

Flower asks nobody who controls it for an account: who reaches the port can register a node's key,
see and stop runs, and a node can send messages in another's name. That disturbs a study; that it
gives wrong results to nobody rests on what is inside the messages. Let in the silos alone.
"""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

from dpkern.federated.flower_wire import Wire, encryption
from dpkern.federated.links import FederationError

# isort: split
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient

_ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_ENVIRONMENT |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
# On Linux, the SuperLink gets SIGTERM when the thread that started it ends, however that happens.
_START = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Certificates(NamedTuple):
    """PEM files of a SuperLink: the authority's certificate, its own and the key of that."""

    authority: Path
    certificate: Path
    key: Path


class SuperLink(AbstractContextManager["SuperLink"]):
    """A SuperLink while the context lasts.

    Parameters
    ----------
    certificates : Certificates or None
        Files for encryption.
    node_keys : mapping of str to bytes
        PEM public keys of the silos' nodes by the silos' names; no other node is let in.
    insecure : bool, default=False
        Whether to have neither, for trying out: no encryption, and every node is let in.
    host, port : str and int, default="127.0.0.1" and 0
        Where to listen; host 0.0.0.0 is all addresses of this machine, port 0 a free one.
    folder : path or None
        Where the secret and the log are written; None is a temporary one.
    timeout : float, default=60.0
        Seconds that the start may take.

    Attributes
    ----------
    address : str
        HOST:PORT for callers on this machine.
    secret : bytes
        What `FlowerStar` needs; also in the folder, as superlink.secret.
    folder : path
        Where the secret and the log are, from the start on.
    """

    def __init__(
        self,
        *,
        certificates: Certificates | None = None,
        node_keys: Mapping[str, bytes] | None = None,
        insecure: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        folder: Path | None = None,
        timeout: float = 60.0,
    ) -> None:
        authority = None if certificates is None else Path(certificates.authority).read_bytes()
        self._encryption = encryption(authority, insecure)
        if self._encryption:  # the addresses in the certificate are those that silos call
            self._encryption.check_hostname = False
        if insecure == bool(node_keys):
            raise ValueError("node_keys must be the silos' public ones, or none with insecure=True")
        self._node_keys: Mapping[str, bytes] = node_keys or {}
        for name, key in self._node_keys.items():
            same = [other for other, one in self._node_keys.items() if one == key]
            if same != [name]:
                raise ValueError(f"node_keys must be distinct, got one for {' and '.join(same)}")
        self._certificates, self._timeout = certificates, timeout
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                why = f"{error.strerror}: another server may be running there, end it first"
                raise OSError(error.errno, why, f"{host}:{port}") from None
            self._listen = host, probe.getsockname()[1]
        local = "127.0.0.1" if host == "0.0.0.0" else host
        self.address, self.secret = f"{local}:{self._listen[1]}", secrets.token_bytes(32)
        self._exit, self._given = ExitStack(), folder

    def __enter__(self) -> Self:
        try:
            home = Path(self._exit.enter_context(tempfile.TemporaryDirectory()))
            self.folder = Path(self._given or home)
            self._start(home, time.monotonic() + self._timeout)
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _start(self, home: Path, deadline: float) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret, log = self.folder / "superlink.secret", self.folder / "superlink.log"
        command = [str(Path(sysconfig.get_path("scripts")) / "flower-superlink")]
        command += ["--host", self._listen[0], "--port", str(self._listen[1])]
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        options = ("--ssl-ca-certfile", "--ssl-certfile", "--ssl-keyfile")
        for option, path in zip(options, self._certificates or (), strict=False):
            command += [option, str(path)]
        command += ["--enable-supernode-auth" if self._certificates else "--insecure"]
        with open(log, "ab") as output:
            try:
                fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as long as the server lives
            except BlockingIOError:
                why = f"{log}: another server with these keys is running, end it first"
                raise FederationError(why) from None
            self._write_secret(secret)
            process = subprocess.Popen(
                [sys.executable, "-c", _START, str(os.getpid()), *command],
                env=os.environ | _ENVIRONMENT | {"FLWR_HOME": str(home)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._exit.callback(_stop, process)
        self._process = process
        while not self._is_healthy():
            if process.poll() is not None:
                said = log.read_text(errors="replace")[-2000:]
                raise FederationError(f"the SuperLink ended at its start; its log ends in:\n{said}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the SuperLink did not start within {self._timeout:g} s")
            time.sleep(0.05)
        with Wire(ControlHttpClient, self.address, self._encryption) as control:
            for name, key in self._node_keys.items():
                control.call("RegisterNode", RegisterNodeRequest(public_key=key, name=name))

    def _write_secret(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._exit.callback(path.unlink, missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(self.secret)

    def wait(self) -> NoReturn:
        """Wait until the SuperLink ends, which is an accident, and raise FederationError."""
        status = self._process.wait()
        raise FederationError(
            f"the SuperLink has ended by itself, with status {status}: see the end of "
            f"{self.folder / 'superlink.log'}, and start it again; a run that had a journal goes "
            "on with it"
        )

    def _is_healthy(self) -> bool:
        url = f"{'https' if self._encryption else 'http'}://{self.address}/health"
        try:
            with urllib.request.urlopen(url, timeout=1.0, context=self._encryption):
                return True
        except OSError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ConnectionError(f"the SuperLink's certificate is refused: {error}") from None
            return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, and what it started, in any case."""
    try:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
