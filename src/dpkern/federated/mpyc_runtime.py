"""MPyC's runtime in a program that is not started by MPyC's command line.

The runtime is made of addresses and a threshold. Connections have a certificate of the party at
both ends, a deadline, and an end: MPyC itself trusts the number that a caller sends, and waits for
a lost party for ever. All that depends on what is inside MPyC is here.
"""

import asyncio
import logging
import os
import ssl
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dpkern.federated.links import CoordinatorLostError, SilosLostError, describe_claims
from dpkern.federated.party import ProtocolError

ANALYST = "dpkern coordinator"  # no silo's name has a space
_GRACE = 1.0  # seconds, for what is under way when a party has left
_FAREWELL = -1  # label of a party's last message, when it leaves since others have left


def _load() -> tuple[Any, ...]:
    """Import MPyC without effects: it would parse sys.argv, configure logging, and start itself."""
    name = "READTHEDOCS"  # whose builders need the same
    before, os.environ[name] = os.environ.get(name), "True"
    handlers = logging.root.handlers[:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy's, in MPyC 0.11
            import mpyc
            from mpyc import asyncoro, finfields, runtime
    except ImportError as error:
        raise ImportError("the package mpyc is needed: pip install 'dpkern[federated]'") from error
    finally:
        logging.root.handlers[:] = handlers
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
    return mpyc._get_arg_parser(), asyncoro, finfields, runtime


_options, _asyncoro, finfields, _runtime = _load()
_Exchanger: Any = _asyncoro.MessageExchanger


@dataclass(frozen=True)
class Certificates:
    """Files (PEM) by which the parties of a study know each other (TLS 1.3).

    The common name in a silo's certificate is its name, in the analyst's "dpkern coordinator". The
    authority signs certificates for the parties of this study alone.
    """

    certificate: str | os.PathLike[str]
    key: str | os.PathLike[str]
    authority: str | os.PathLike[str]

    def context(self, side: int) -> ssl.SSLContext:
        """Return a context that demands a certificate of the other side."""
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # but the name of the party
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except ssl.SSLError as error:
            raise ValueError(
                "certificates must be files (PEM) of a certificate, its private key and its "
                f"authority, got {error.reason}"
            ) from None
        return context


class _Connection(_Exchanger):
    """A connection with a peer, which must have the certificate of the party it says it is."""

    def __init__(self, mesh: "Mesh", peer: int | None = None) -> None:
        super().__init__(mesh.runtime, peer)
        self._mesh = mesh

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        if self.peer_pid is None or self._admits(self.peer_pid):
            super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.peer_pid is None and len(first := bytes(self.bytes) + data) >= 2:
            peer = int.from_bytes(first[:2], "little")
            if peer >= self.runtime.pid or not self._admits(peer):
                self.transport.abort()
                return
        super().data_received(data)

    def _admits(self, peer: int) -> bool:
        subject = (self.transport.get_extra_info("peercert") or {}).get("subject", ())
        names = [value for part in subject for key, value in part if key == "commonName"]
        owner, said = ",".join(names), self._mesh.names[peer]
        known = self._mesh.certificates is None or owner == said
        self._mesh.claims.append(("" if known else owner or "?", said))
        return known and self.runtime.parties[peer].protocol is None

    def connection_lost(self, _: Exception | None) -> None:
        if self.peer_pid is not None and self.runtime.parties[self.peer_pid].protocol is self:
            self._mesh.lose(self.peer_pid)


class Mesh:
    """MPyC's runtime of one party, and its connections with all others."""

    def __init__(
        self,
        names: Sequence[str],
        addresses: Sequence[tuple[str, int]],
        pid: int,
        threshold: int,
        certificates: Certificates | None,
        deadline: float,
    ) -> None:
        self.names, self.certificates, self._deadline = names, certificates, deadline
        self._waiting: dict[int, Any] = {}
        self._trouble: dict[int, OSError] = {}
        self._gone, self._closed = list[int](), set[int]()
        self.claims = list[tuple[str, str]]()  # names of certificates, and those that were said
        self._connected = self._ending = False
        self._runner = asyncio.Runner()
        self._runner.run(self._start(addresses, pid, threshold))

    async def _start(self, addresses: Sequence[tuple[str, int]], pid: int, threshold: int) -> None:
        """Make the runtime, which MPyC itself makes of the command line."""
        options = _options.parse_args(["--no-log", "--no-prss", f"-T{threshold}"])
        parties = [_runtime.Party(0), *(_runtime.Party(j, *a) for j, a in enumerate(addresses, 1))]
        self.runtime = _asyncoro.runtime = _runtime.Runtime(pid, parties, options)
        self.others = [party for party in parties if party.pid != pid]
        loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(lambda *_: None)  # the default logs what was received

    async def connect(self) -> None:
        """Listen to the parties before this one, and call those after it until they answer."""
        own, files = self.runtime.parties[self.runtime.pid], self.certificates
        loop, tls, server = asyncio.get_running_loop(), None, None
        own.protocol = loop.create_future()  # done when all others are connected
        try:
            if own.pid:
                if files is not None:
                    tls = files.context(ssl.PROTOCOL_TLS_SERVER)
                host = own.host if files is None else None  # or all interfaces
                server = await loop.create_server(
                    lambda: _Connection(self), host, own.port, ssl=tls
                )
            if files is not None:
                tls = files.context(ssl.PROTOCOL_TLS_CLIENT)
            for peer in self.others[own.pid :]:
                while not peer.protocol:
                    await self._call(peer, tls)
            await own.protocol
            self._connected = True
        finally:
            if server is not None:
                server.close()

    async def _call(self, peer: Any, tls: ssl.SSLContext | None) -> None:
        loop, name = asyncio.get_running_loop(), self.names[peer.pid]
        try:
            made = partial(_Connection, self, peer.pid)
            await loop.create_connection(made, peer.host, peer.port, ssl=tls)
        except ssl.SSLError as error:
            raise ProtocolError(f"{name} has no certificate of the study: {error}") from None
        except OSError as error:  # it may not be there yet
            self._trouble[peer.pid] = error
            await asyncio.sleep(0.05)
        else:
            self._trouble.pop(peer.pid, None)
            if not peer.protocol:
                others = describe_claims(self.names, self.claims)
                raise ProtocolError(f"{name} has the certificate of another party{others}")

    def exchange(
        self, binding: bytes, payload: bytes = b""
    ) -> Coroutine[Any, Any, dict[int, bytes]]:
        """Send all others a message that belongs to a release; theirs are to be awaited."""
        label = self.runtime._program_counter
        label[0] += 1
        for peer in self.others:
            peer.protocol.send(label[0], binding + payload)
        self._waiting = {peer.pid: peer.protocol.receive(label[0]) for peer in self.others}
        return self._received(binding)

    async def _received(self, binding: bytes) -> dict[int, bytes]:
        found = {i: w if isinstance(w, bytes) else await w for i, w in self._waiting.items()}
        astray = [self.names[i] for i, message in found.items() if message[:32] != binding]
        if astray:
            raise ProtocolError(
                f"{', '.join(astray)}: not at this party's release, for they have another plan or "
                "version of dpkern, or were told something else"
            )
        return {i: message[32:] for i, message in found.items()}

    def run(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Return what is done with all others, unless one is lost, or not there in time."""
        try:
            return self._runner.run(self._guarded(work))
        except RuntimeError as error:
            if str(error).startswith("Event loop stopped"):  # by MPyC, at an error of its own
                raise ProtocolError("a party has sent shares that MPyC cannot read") from None
            raise

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._gone:
            raise self._left(self._gone)
        task = asyncio.ensure_future(self._sent(work))
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({task, self._failed}, timeout=self._deadline, return_when=first)
        if self._gone and not task.done():
            await asyncio.wait({task}, timeout=_GRACE)  # others' messages may say why it left
        if task.done():
            return task.result()
        raise self._left(self._gone[:])  # with those that have left since, such as the first to go

    def _left(self, lost: Sequence[int]) -> Exception:
        """Return the error of lost or late parties, and tell all others whom this one lost."""
        gone, lost = lost, self._first_to_leave(lost)
        late = [pid for pid in self._late() if pid not in {*gone, *lost}]
        named = [self.names[pid] for pid in late]
        if not lost:
            who, why = named, f"no message within {self._deadline:g} s"
            refused = {str(self._trouble[pid]) for pid in late if pid in self._trouble}
            why += f" ({'; '.join(sorted(refused))})" if refused else ""
        else:
            who, why = [self.names[pid] for pid in lost], "left the study"
            if not self._connected:
                why += ", or does not accept this party's certificate or has another of its name"
            why += f", while {', '.join(named)} sent nothing" if named else ""
            for peer in self.others:
                if peer.protocol and peer.pid not in self._closed:
                    peer.protocol.send(_FAREWELL, bytes(lost))
        why += "" if self._connected else describe_claims(self.names, self.claims)
        if who == [ANALYST]:
            return CoordinatorLostError(f"{ANALYST}: {why}")
        return SilosLostError(who, why)

    def _first_to_leave(self, lost: Sequence[int]) -> list[int]:
        """Return those of the lost that named nobody, and those whom the others have named."""
        first: dict[int, None] = {}
        for pid in lost:
            protocol = self.runtime.parties[pid].protocol
            named = protocol.buffers.get(_FAREWELL, b"") if protocol else b""
            known = [i for i in named if i < len(self.names) and i != self.runtime.pid]
            first |= dict.fromkeys(known or [pid])
        return list(first)

    async def _sent(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do it, and wait until all is sent, as nothing is while a solver computes."""
        result = await work()
        while any(peer.protocol.transport.get_write_buffer_size() for peer in self.others):
            await asyncio.sleep(0.001)
        return result

    def _late(self) -> list[int]:
        """Return the parties of whom a message is missing."""
        connected = {peer.pid: peer.protocol for peer in self.others}
        return [
            pid
            for pid, peer in connected.items()
            if peer is None or not all(isinstance(w, bytes) for w in peer.buffers.values())
        ]

    def lose(self, pid: int) -> None:
        """Take note that a party has left, as it may when it has sent its last message."""
        self._closed.add(pid)
        last = self._waiting.get(pid) if self._ending else None
        if not (isinstance(last, bytes) or (last is not None and last.done())):
            self._gone.append(pid)
            if not self._failed.done():
                self._failed.set_result(None)

    def end(self, binding: bytes) -> None:
        """Exchange last messages, so that nobody leaves while others wait for it."""
        self._ending = True
        self.run(lambda: self.exchange(binding))

    def close(self) -> None:
        """Close the connections, and send what is on its way if that takes no longer than 1 s."""
        self._ending = True
        self._runner.run(self._close())
        self._runner.close()

    async def _close(self) -> None:
        connected = {peer.pid: peer.protocol.transport for peer in self.others if peer.protocol}
        for transport in connected.values():
            transport.close()
        end = time.monotonic() + _GRACE
        while not self._closed >= connected.keys() and time.monotonic() < end:
            await asyncio.sleep(0.002)
        for transport in connected.values():
            transport.abort()
