"""Studies over Flower: both ends of a star whose middle is a SuperLink (`flower_superlink`).

A silo is a node of the SuperLink and the coordinator a ServerApp, each in the process that runs
its solver: nobody fetches or runs code that another one sent, both only call out, and neither
keeps anything on disk. A silo says its name to the run that asks for it; who it is, and that
nothing was altered on the way, is proved by signatures inside the messages.

A message that the network loses once the SuperLink has handed it out is handed out to nobody again:
the coordinator therefore repeats what has no answer, and a silo answers that by what it has said.

The SuperLink takes messages of up to 2 GB, so none is cut: 100 000 numbers are 0.8 MB. The clock
of a silo must not be more than 5 s ahead of the SuperLink's, nor 5 minutes behind it.
"""

import io
import math
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from dpkern._warn import warn
from dpkern.federated import flower_wire
from dpkern.federated.flower_wire import GoneError, MessageError, Wire, pauses
from dpkern.federated.links import (
    CoordinatorLostError,
    Link,
    SilosLostError,
    Star,
    describe_claims,
    ended,
    readable_reason,
)

# isort: split
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Metadata
from flwr.proto import control_pb2, fleet_pb2, heartbeat_pb2, run_pb2, runtime_pb2
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import Node
from flwr.supercore import interceptors
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.primitives import asymmetric
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

_JOIN, _ROUND, _LAST = "query.join", "train.round", "query.last"  # types of messages
_BEAT = 30.0  # seconds between heartbeats; after twice that, a node has left
# A run needs an app. This one has no code, which nobody would run.
_APP = """
project = {name = "dpkern", version = "1.0.0"}
[tool.flwr.app]
publisher = "dpkern"
components = {serverapp = "dpkern:none", clientapp = "dpkern:none"}
"""
_REPEAT = 5.0  # seconds until a message without answer is repeated; then up to four times that
_REMARKED = 30.0  # seconds after which an answer is said to be missing
_IDLE = 8.0  # most seconds between two looks of a silo for messages
#: Seconds in which a silo that waits looks for messages, and a last one is confirmed.
FAREWELL = 1.5 * _IDLE
_PARTING = 3.0  # seconds that a silo waits until its last message is read
_GONE = "it left"
_WHY = {
    403: "the study has ended",
    412: "the SuperLink does not know this silo's node key, or it is in use: the analyst must have "
    "its NAME.node.pub when `dpkern federation up` starts, and one process alone may take part",
}


class FlowerLink(Link):
    """A silo's end: a node of the SuperLink at `superlink` (HOST:PORT), in this process.

    `certificates` are PEM, of the authority that signed the SuperLink's, and `node_key` is a PEM
    private key of a NIST curve, of which the SuperLink knows the public one; for trying out,
    `insecure` goes without encryption and as a node that anybody can be. The first message of the
    coordinator may take `join_deadline` seconds, and every other one `deadline`.
    """

    def __init__(
        self,
        name: str,
        superlink: str,
        *,
        certificates: bytes | None = None,
        node_key: bytes | None = None,
        insecure: bool = False,
        deadline: float = 600.0,
        join_deadline: float = 86400.0,
    ) -> None:
        context = flower_wire.encryption(certificates, insecure)
        if insecure != (node_key is None):
            raise ValueError("node_key must be a PEM private key, or None with insecure=True")
        key = asymmetric.bytes_to_private_key(node_key) if node_key else None
        private = key or ec.generate_private_key(ec.SECP256R1())
        proof = NodeAuthHttpInterceptor(private, private.public_key())
        self._public_key = asymmetric.public_key_to_bytes(private.public_key())
        self._wire = Wire(FleetHttpClient, superlink, context, proof)
        self._name, self._deadline, self._join_deadline = name, deadline, join_deadline
        self._is_known, self._heartbeat = node_key is not None, HeartbeatSender(self._beat)
        self._run: Any = None  # number of the run whose messages it takes, from the first one on
        self._round, self._started, self._ended, self._closed = 0, False, False, False
        self._is_asked = False  # for its name
        self._pending: Any = None  # metadata of the message that is to be answered
        self._heard, self._said = b"", dict[str, Any]()  # the last message, and its answer
        self._why: Any = ""  # what the coordinator said why it ended the study
        self._arriving: list[tuple[Any, Any]] = []

    def exchange(self, answer: bytes | None) -> bytes:
        if self._ended:
            raise ended(self._why)
        if (answer is None) == self._started:
            raise ValueError("answer must be None before the first message and bytes after it")
        allowed = self._join_deadline if answer is None else self._deadline
        self._wire.set_deadline(allowed)
        try:
            if answer is None:
                self._activate()
            elif self._pending is not None:
                self._said = {"silo": self._name, "round": self._round, "bytes": answer}
                self._answer(self._pending, self._said)
            message = self._next()
        except GoneError as error:
            raise CoordinatorLostError(_WHY.get(error.status, str(error))) from None
        if message is None:
            why = f"the coordinator sent nothing within {allowed:g} s"
            if self._is_asked and not self._started:
                why += f" but asked for names: a silo is missing, or two say to be {self._name}"
            raise CoordinatorLostError(why)
        if not message and self._ended:
            raise ended(self._why)
        return message

    def close(self, error: str | None = None) -> None:
        if self._closed:
            return
        self._closed, end = True, self._wire.set_deadline(_PARTING)
        with self._wire, suppress(GoneError):
            with suppress(GoneError):
                fails, pause = error is not None and self._pending is not None, pauses()
                if fails:
                    self._reply(self._pending, str(error))
                # Answers of nodes that have left are forgotten.
                while (fails or self._ended) and time.monotonic() < end:
                    self._check_run()
                    next(pause)
            if self._heartbeat.is_running:
                self._heartbeat.stop()
                self._wire.set_deadline(1.0)  # else its heartbeat is missed within a minute
                node = {"node_id": self._wire.node.node_id}
                self._wire.call("DeactivateNode", fleet_pb2.DeactivateNodeRequest(**node))
                if not self._is_known:
                    request = fleet_pb2.UnregisterNodeFleetRequest(**node)
                    self._wire.call("UnregisterNode", request)

    def _activate(self) -> None:
        """Become a node of the SuperLink, once it has missed the last process that was it."""
        end, key = time.monotonic() + 65.0, {"public_key": self._public_key}
        while True:
            try:
                if not self._is_known:
                    with suppress(GoneError):  # it is by now; or the next call tells why not
                        request = fleet_pb2.RegisterNodeFleetRequest(**key)
                        self._wire.call("RegisterNode", request)
                request = fleet_pb2.ActivateNodeRequest(**key, heartbeat_interval=_BEAT)
                found = self._wire.call("ActivateNode", request)
                break
            except GoneError as error:
                if error.status != 412 or time.monotonic() > min(end, self._wire.deadline):
                    raise
            time.sleep(0.5)
        self._wire.node = Node(node_id=found.node_id)
        if not self._heartbeat.is_running:
            self._heartbeat.start()

    def _beat(self) -> bool:
        node = self._wire.node
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=_BEAT)
        return self._wire.is_answered("SendNodeHeartbeat", request)

    def _check_run(self) -> None:
        """Raise GoneError when the run has ended."""
        self._wire.call("GetRun", run_pb2.GetRunRequest(node=self._wire.node, run_id=self._run))

    def _answer(self, to: Any, record: dict[str, Any]) -> None:
        """Answer a message, unless its run has ended: a coordinator that goes on asks again."""
        self._pending = None
        try:
            self._reply(to, record)
        except GoneError as error:
            self._forget_run(error)

    def _forget_run(self, error: GoneError) -> None:
        """Listen to the run of a coordinator that was started again; raise other errors."""
        if error.status == 401:  # it was the SuperLink too, which does not know this node
            self._activate()
        elif error.status != 403:
            raise error
        self._run, self._round, self._pending, self._said = None, 0, None, dict()
        self._arriving.clear()

    def _next(self) -> bytes | None:
        """Return the next message of the coordinator, None if there is none by the deadline."""
        pause, checked = pauses(_IDLE), time.monotonic()
        while (now := time.monotonic()) < self._wire.deadline:
            try:
                request = fleet_pb2.PullMessagesRequest(node=self._wire.node)
                found = self._wire.call("PullMessages", request)
                trees = found.message_object_trees
                if trees:  # more may follow soon
                    pause = pauses(_IDLE)
                self._arriving += zip(found.messages_list, trees, strict=True)
                for _ in range(len(self._arriving)):
                    message = self._accept(*self._arriving.pop(0))
                    if message is not None:
                        return message
                if self._run is not None and now > checked + 2.0:
                    self._check_run()
                    checked = now
            except GoneError as error:
                self._forget_run(error)
            next(pause)
        return None

    def _accept(self, head: Any, tree: Any) -> bytes | None:
        """Return what is in a message if it is the next one of the run, and refuse others."""
        kind, run = head.metadata.message_type, head.metadata.run_id
        with suppress(MessageError):
            record = self._wire.record(head, tree) if self._run in (None, run) else {}
            if record is None:
                self._arriving.append((head, tree))
                return None
            message, number = record.get("bytes"), record.get("round")
            is_next = self._run is None or number == self._round + 1  # it may have been restarted
            if kind == _ROUND and is_next and isinstance(message, bytes):
                self._run, self._round, self._pending = run, int(number or 0), head.metadata
                self._heard, self._started = message, True
                return message
            again = number == self._said.get("round") and message == self._heard
            if kind == _ROUND and self._run == run and again:
                self._reply(head.metadata, self._said)  # the first time, it was lost on the way
                return None
            if kind == _LAST and isinstance(message, bytes):
                self._ended, self._why, self._run = True, record.get("why"), run
                with suppress(GoneError):  # the run may end while the last part of it is sent
                    self._reply(head.metadata, {"silo": self._name})
                return message
            if kind == _JOIN and isinstance(message, bytes):
                self._is_asked = True
                self._reply(head.metadata, {"silo": self._name})
                return None
        with suppress(GoneError):
            self._reply(head.metadata, "RefusedMessage")
        return None

    def _reply(self, to: Any, record: dict[str, Any] | str) -> None:
        source, target, now = to.dst_node_id, to.src_node_id, time.time()
        ends = (to.run_id, "", source, target, to.message_id, "")
        metadata = Metadata(*ends, now, to.created_at + to.ttl - now, to.message_type)
        request = fleet_pb2.PushMessagesRequest(node=self._wire.node)
        self._wire.push(request, [(metadata, record)])


@dataclass
class _Asked:
    """Messages to nodes: those without answer, by id, and answers that are not whole yet."""

    waiting: dict[str, int] = field(default_factory=dict)
    arriving: list[tuple[int, Any, Any]] = field(default_factory=list)


class FlowerStar(Star):
    """The coordinator's end: a ServerApp of the SuperLink at `superlink`, in this process.

    It stops the runs of coordinators before it, which died, and starts one. The first exchange
    waits until every silo is there, for `join_deadline` seconds; nodes that say another name than
    that of their key, or one that is taken, are ignored, and named in the error. The answers of a
    round may take `deadline` seconds. `secret` is what the SuperLink wants to know of who runs its
    apps; `certificates` are PEM, of the authority that signed the SuperLink's, or None with
    `insecure`, for trying out. A ConnectionError is raised when the SuperLink is not there or
    refuses the secret.
    """

    def __init__(
        self,
        silos: Sequence[str],
        superlink: str,
        secret: bytes,
        *,
        certificates: bytes | None = None,
        insecure: bool = False,
        deadline: float = 600.0,
        join_deadline: float = 600.0,
    ) -> None:
        self.silos, self._deadline, self._round = tuple(silos), deadline, 0
        if len(set(self.silos)) != len(self.silos):
            raise ValueError(f"silos must be names that differ, got {self.silos}")
        context = flower_wire.encryption(certificates, insecure)
        self._nodes: dict[str, int] = {}
        self._claims: dict[int, tuple[str, str]] = {}  # names that nodes have, and say
        self._lost, self._closed, self._is_finishing = set[str](), False, False
        self._join_deadline = join_deadline
        try:
            token = self._start_run(superlink, secret, context)
            proof = interceptors.RuntimeTokenHttpInterceptor(token)
            self._wire = Wire(RuntimeHttpClient, superlink, context, proof)
            self._wire.set_deadline(20.0)
            self._wire.call("PullTaskInput", runtime_pb2.PullTaskInputRequest())
        except GoneError as error:
            raise ConnectionError(str(error)) from None
        request = runtime_pb2.SendTaskHeartbeatRequest()
        beat = partial(self._wire.is_answered, "SendTaskHeartbeat", request)
        self._heartbeat = HeartbeatSender(beat)
        self._heartbeat.start()

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        if self._round == 0:
            self._join(self._join_deadline)
        self._round += 1
        records = {
            self._nodes[name]: {"round": self._round, "bytes": message}
            for name, message in zip(self.silos, messages, strict=True)
        }
        try:
            found = self._ask(_ROUND, records, self._deadline)
        except GoneError as error:
            self._fail(self.silos, str(error))
        answers = {name: found.get(self._nodes[name]) for name in self.silos}
        for name, said in answers.items():
            if isinstance(said, str):
                self._fail([name], said)
        if late := [name for name, said in answers.items() if said is None]:
            self._fail(late, f"no answer within {self._deadline:g} s")
        return [self._answer(name, answers[name]) for name in self.silos]

    def finish(self, last: bytes, silos: Sequence[str], seconds: float) -> list[str]:
        end, looking = time.monotonic() + seconds, self._look_for_silos()
        self._is_finishing, confirmed = True, list[str]()
        with suppress(GoneError):
            while left := [name for name in silos if name not in confirmed]:
                nodes = {self._nodes[name]: name for name in left if name in self._nodes}
                if (rest := end - time.monotonic()) <= 0.0:
                    break
                records = {node: {"bytes": last} for node in nodes}
                found = self._ask(_LAST, records, min(rest, FAREWELL))
                answers = [(nodes[node], said) for node, said in found.items()]
                confirmed += [name for name, said in answers if isinstance(said, dict)]
                if len(confirmed) < len(silos):
                    self._wire.set_deadline(rest)
                    next(looking)
        return confirmed

    def close(self, why: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        with self._wire, suppress(GoneError):
            there = {node for name, node in self._nodes.items() if name not in self._lost}
            if self._round == 0:  # whoever waits for a name that another has
                there |= {n for n, names in self._claims.items() if {*names} & {*self.silos}}
            if not self._is_finishing:
                with suppress(GoneError):
                    records = {node: {"bytes": b"", "why": why} for node in there}
                    self._ask(_LAST, records, FAREWELL)
            if self._heartbeat.is_running:
                self._heartbeat.stop()
            request = runtime_pb2.PushTaskOutputRequest(sub_status="completed")
            self._wire.call("PushTaskOutput", request)

    def _start_run(self, superlink: str, secret: bytes, context: flower_wire.Encryption) -> str:
        """Start a run in place of those that have not ended; return the token of its ServerApp."""
        proof = interceptors.SuperExecAuthHttpInterceptor(
            master_secret=secret, protected_methods=["/flwr.proto.Runtime/AcquireTask"]
        )
        acquire = runtime_pb2.AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        app = io.BytesIO()
        with zipfile.ZipFile(app, "w") as files:
            files.writestr("pyproject.toml", _APP)
        start = control_pb2.StartRunRequest(fab=Fab(content=app.getvalue()))
        executor = Wire(RuntimeHttpClient, superlink, context, proof)
        with executor, Wire(ControlHttpClient, superlink, context) as control:
            end = executor.set_deadline(20.0)
            executor.call("AcquireTask", acquire)  # tells whether the secret is right
            control.set_deadline(20.0)
            runs = control.call("ListRuns", control_pb2.ListRunsRequest()).run_dict
            for run in [key for key, run in runs.items() if run.status.status != "finished"]:
                with suppress(GoneError):  # it may have ended by now
                    control.call("StopRun", control_pb2.StopRunRequest(run_id=run))
            self._run = control.call("StartRun", start).run_id
            while time.monotonic() < end:
                found = executor.call("AcquireTask", acquire)
                if found.token and found.task.run_id == self._run:  # others are never run
                    return str(found.token)
                time.sleep(0.05)
        raise GoneError("another process that knows the secret has taken the run")

    def _join(self, allowed: float) -> None:
        """Wait until all silos are there."""
        end, looking = self._wire.set_deadline(allowed), self._look_for_silos()
        while missing := [name for name in self.silos if name not in self._nodes]:
            if time.monotonic() > end:
                others = describe_claims(self.silos, self._claims.values())
                raise SilosLostError(missing, f"did not join within {allowed:g} s{others}")
            try:
                next(looking)
            except GoneError as error:
                self._fail(missing, str(error))

    def _look_for_silos(self) -> Iterator[None]:
        """Ask nodes for their names, a little longer in every step."""
        asked, pause = _Asked(), pauses(1.0)
        again: dict[int, float] = {}  # when a node is to be asked
        while True:
            found, now = (
                self._wire.call("GetNodes", runtime_pb2.GetNodesRequest()),
                time.monotonic(),
            )
            online = {node.node_id: node.name for node in found.nodes}
            self._nodes = {name: node for name, node in self._nodes.items() if node in online}
            self._claims = {
                node: (owner, name)
                for node, (owner, name) in self._claims.items()
                if node in online or owner  # a node without an owner may have been started again
            }
            again = {node: again.get(node, now) for node in online}
            for node in [node for node, when in again.items() if when <= now]:
                again[node] = now + _REPEAT  # it has yet to look, or its name is taken
                asked.waiting |= self._send(_JOIN, {node: {"bytes": b""}}, 30.0)
            for node, said in self._pull(asked):
                name = said.get("silo") if isinstance(said, dict) else None
                if isinstance(name, str):
                    self._claims[node] = online.get(node, ""), name
                is_own = name in self.silos and self._claims[node][0] in ("", name)
                if is_own and self._nodes.setdefault(str(name), node) == node:
                    again[node] = math.inf
                elif isinstance(said, str):  # it does not know yet that its run has ended
                    again[node] = now + 1.0
            yield
            next(pause)

    def _send(self, kind: str, records: Mapping[int, Any], ttl: float) -> dict[str, int]:
        """Send nodes a record each; return the node of every message that was taken."""
        request, now = runtime_pb2.PushAppMessagesRequest(), time.time()
        source = self._wire.node.node_id
        heads = [Metadata(self._run, "", source, node, "", "", now, ttl, kind) for node in records]
        found = self._wire.push(request, zip(heads, records.values(), strict=True))
        return {key: node for key, node in zip(found.message_ids, records, strict=True) if key}

    def _ask(
        self, kind: str, records: Mapping[int, Any], allowed: float
    ) -> dict[int, dict[str, Any] | str]:
        """Send nodes a record each; return the answers that come in time.

        A round ends with the first silo that fails. What is said last is for all the others too.
        """
        end, pause = self._wire.set_deadline(allowed), pauses(1.0)
        asked, found = _Asked(), dict[int, dict[str, Any] | str]()
        patience, again, remarked = _REPEAT, 0.0, end - allowed + _REMARKED
        while len(found) < len(records) and (now := time.monotonic()) < end:
            if now > again:
                rest = {node: record for node, record in records.items() if node not in found}
                asked.waiting |= self._send(kind, rest, end - now)
                again, patience = now + patience, min(2.0 * patience, 4.0 * _REPEAT)
                if kind == _ROUND and now > remarked:
                    late = [name for name in self.silos if self._nodes[name] in rest]
                    why = f"no answer yet, waiting for it for at most {allowed:g} s"
                    warn(f"{', '.join(late)}: {why}", UserWarning)
                    remarked = math.inf
            for node, said in self._pull(asked):
                if kind != _ROUND or said != _GONE:  # it may come back
                    found.setdefault(node, said)
            if kind == _ROUND and any(isinstance(said, str) for said in found.values()):
                break
            next(pause)
        return found

    def _pull(self, asked: "_Asked") -> list[tuple[int, dict[str, Any] | str]]:
        """Return the answers that have come whole: of a node its record, or why there is none."""
        request = runtime_pb2.PullAppMessagesRequest(message_ids=list(asked.waiting))
        found = self._wire.call("PullMessages", request)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            node = asked.waiting.pop(head.metadata.reply_to_message_id, 0)
            if node:  # else nobody asked for it
                asked.arriving.append((node, head, tree))
        arriving, asked.arriving, whole = asked.arriving, [], []
        for node, head, tree in arriving:
            if not head.HasField("error"):
                said = self._said(head, tree)
                if said is None:
                    asked.arriving.append((node, head, tree))
                else:
                    whole.append((node, said))
            elif head.error.code == flower_wire.RAISED:
                whole.append((node, f"it failed with {readable_reason(head.error.reason)}"))
            elif head.error.code == flower_wire.LEFT:
                whole.append((node, _GONE))
            # Else the SuperLink has handed the answer out, or it never came.
        return whole

    def _said(self, head: Any, tree: Any) -> dict[str, Any] | str | None:
        """Return the record of an answer, why there is none, or None while it is on its way."""
        try:
            return self._wire.record(head, tree)
        except MessageError as error:
            return f"it sent {error}"

    def _answer(self, name: str, record: Any) -> bytes:
        """Return what a silo answered in this round."""
        answer = record.get("bytes")
        said = record.get("silo"), record.get("round")
        if said != (name, self._round) or not isinstance(answer, bytes):
            self._fail([name], "its answer is of another silo or round, or is not bytes")
        return answer

    def _fail(self, names: Sequence[str], why: str) -> NoReturn:
        self._lost |= set(names)
        raise SilosLostError(names, why) from None
