"""Silos in threads of this process, or in processes of this machine, without encryption."""

import queue
import socket
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    answer_challenge,
    deliver_challenge,
    wait,
)
from time import monotonic, sleep

from dpkern.federated.links import (
    CoordinatorLostError,
    Link,
    SilosLostError,
    Star,
    describe_claims,
    ended,
)


class QueueStar(Star):
    """Silos in threads of this process; `links` are their ends."""

    def __init__(self, silos: Sequence[str], *, deadline: float = 60.0) -> None:
        self.silos, self._deadline, self._is_finishing = tuple(silos), deadline, False
        self.links = tuple(QueueLink(deadline) for _ in silos)

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        end, answers = monotonic() + self._deadline, []
        for link, message in zip(self.links, messages, strict=True):
            link.received.put(message)
        for name, link in zip(self.silos, self.links, strict=True):
            try:
                answer = link.sent.get(timeout=max(0.0, end - monotonic()))
            except queue.Empty:
                raise SilosLostError([name], "no answer by the deadline") from None
            if isinstance(answer, str):
                raise SilosLostError([name], answer)
            answers.append(answer)
        return answers

    def finish(self, last: bytes, silos: Sequence[str], seconds: float) -> list[str]:
        self._is_finishing = True
        for name, link in zip(self.silos, self.links, strict=True):
            if name in silos:
                link.received.put(last)
        return list(silos)

    def close(self, why: str = "") -> None:
        if not self._is_finishing:
            for link in self.links:
                link.received.put(why)


class QueueLink(Link):
    """A silo's end of a `QueueStar`."""

    def __init__(self, deadline: float) -> None:
        self.received: queue.Queue[bytes | str] = queue.Queue()
        self.sent: queue.Queue[bytes | str] = queue.Queue()
        self._deadline = deadline

    def exchange(self, answer: bytes | None) -> bytes:
        if answer is not None:
            self.sent.put(answer)
        try:
            message = self.received.get(timeout=self._deadline)
        except queue.Empty:
            raise CoordinatorLostError("no message by the deadline") from None
        if isinstance(message, str):
            raise ended(message)
        return message

    def close(self, error: str | None = None) -> None:
        if error is not None:
            self.sent.put(error)


class ProcessStar(Star):
    """Silos in processes of this machine, which connect to `address` by a `ProcessLink`."""

    def __init__(
        self, silos: Sequence[str], key: bytes, *, port: int = 0, deadline: float = 60.0
    ) -> None:
        self.silos, self._key, self._deadline = tuple(silos), key, deadline
        self._server = socket.create_server(("127.0.0.1", port), backlog=len(silos))
        self._connections: dict[str, Connection] = {}
        self._is_finishing, self._claims = False, list[tuple[str, str]]()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self._server.getsockname()
        return str(host), int(port)

    def accept(self) -> None:
        """Wait until every silo has connected and said its name.

        Raises
        ------
        SilosLostError
            When one has not by the deadline.
        """
        self._accept(self.silos, self._deadline)

    def _accept(self, silos: Sequence[str], seconds: float) -> None:
        end = monotonic() + seconds
        while missing := [name for name in silos if name not in self._connections]:
            self._server.settimeout(max(end - monotonic(), 1e-3))
            try:
                accepted, _ = self._server.accept()
            except TimeoutError:
                why = f"no connection by the deadline{describe_claims(self.silos, self._claims)}"
                raise SilosLostError(missing, why) from None
            accepted.setblocking(True)
            connection = Connection(accepted.detach())
            try:
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                name = connection.recv_bytes(256).decode("ascii", "replace")
            except (AuthenticationError, EOFError, OSError):
                name = ""
            self._claims += [("", name)] if name else []
            if name in missing:
                self._connections[name] = connection
            else:
                connection.close()

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        self.accept()
        end, lost = monotonic() + self._deadline, []
        for name, message in zip(self.silos, messages, strict=True):
            try:
                self._connections[name].send_bytes(message)
            except OSError:
                lost.append(name)
        if lost:
            raise SilosLostError(lost, "the connection is closed")
        names = {id(connection): name for name, connection in self._connections.items()}
        answers: dict[str, bytes] = {}
        while len(answers) < len(self.silos):
            waiting = [c for name, c in self._connections.items() if name not in answers]
            ready = wait(waiting, timeout=max(0.0, end - monotonic()))
            if not ready:
                late = [name for name in self.silos if name not in answers]
                raise SilosLostError(late, "no answer by the deadline")
            for connection in ready:
                name = names[id(connection)]
                try:
                    answers[name] = self._connections[name].recv_bytes()
                except (EOFError, OSError):
                    raise SilosLostError([name], "the connection is closed") from None
        return [answers[name] for name in self.silos]

    def finish(self, last: bytes, silos: Sequence[str], seconds: float) -> list[str]:
        self._is_finishing = True
        with suppress(SilosLostError):
            self._accept(silos, seconds)
        return self._send(last, silos)

    def _send(self, last: bytes, silos: Sequence[str]) -> list[str]:
        """Send silos a message and close their connections; return those that have taken it."""
        told = []
        for name in [name for name in silos if name in self._connections]:
            with self._connections.pop(name) as connection, suppress(OSError):
                connection.send_bytes(last)
                told.append(name)
        return told

    def close(self, why: str = "") -> None:
        self._send(b"", () if self._is_finishing else self.silos)
        self._server.close()


class ProcessLink(Link):
    """A silo's end of a `ProcessStar`; it connects again to a coordinator that was restarted."""

    def __init__(
        self, name: str, address: tuple[str, int], key: bytes, *, deadline: float = 60.0
    ) -> None:
        self._name, self._address, self._key, self._deadline = name, address, key, deadline
        self._connection: Connection | None = None

    def exchange(self, answer: bytes | None) -> bytes:
        end = monotonic() + self._deadline
        while (left := end - monotonic()) > 0.0:
            try:
                if self._connection is None:
                    self._connection = Client(self._address, authkey=self._key)
                    self._connection.send_bytes(self._name.encode("ascii"))
                if answer is not None:
                    self._connection.send_bytes(answer)
                    answer = None  # a coordinator that lost it asks again
                if self._connection.poll(left):
                    said = self._connection.recv_bytes()
                    if said:
                        return said
                    raise ended()
            except (EOFError, OSError):
                self.close()
                sleep(0.05)
        raise CoordinatorLostError("no message by the deadline")

    def close(self, error: str | None = None) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
