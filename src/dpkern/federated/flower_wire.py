"""Records of bytes over the HTTP API of Flower's SuperLink, which both ends of a study use.

Flower's own connection of a node and its grid end the process that uses them when the SuperLink
refuses a call, and sleep a second or more before they look again; its HTTP clients do neither.
"""

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any

from dpkern.federated.links import FederationError

try:
    if version("flwr").split(".")[:2] != ["1", "41"]:
        raise ImportError(f"flwr is {version('flwr')}")
    import httpx
    from flwr.app import ConfigRecord, Error, Metadata, RecordDict
    from flwr.app.message import make_message, remove_content_from_message
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
    from flwr.common.serde import message_to_proto
    from flwr.proto import message_pb2
    from flwr.proto.node_pb2 import Node
    from flwr.supercore.inflatable import inflatable_object as objects
    from google.protobuf.message import DecodeError
except ImportError as error:
    raise ImportError(
        f"studies over Flower need flwr 1.41: pip install 'dpkern[federated]' ({error})"
    ) from error

RAISED, LEFT = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.NODE_UNAVAILABLE


class GoneError(FederationError):
    """The SuperLink is not reached by the deadline, or refuses a call by an HTTP status."""

    def __init__(self, message: str, status: int = 0) -> None:
        self.status = status
        super().__init__(message)


class MessageError(ValueError):
    """A message that is not what it must be."""


def pauses(longest: float = 1.0) -> Iterator[None]:
    """Sleep before every step, from 20 ms to 100 ms, then a tenth of all the time that has passed.

    `longest` are the most seconds of one step.
    """
    begin, seconds = time.monotonic(), 0.02
    while True:
        time.sleep(min(seconds, longest))
        yield
        seconds = max(min(1.3 * seconds, 0.1), 0.1 * (time.monotonic() - begin))


def _clock_error(response: httpx.Response) -> str:
    """Return what is wrong with this machine's clock by a response that refuses a node, if it is.

    The SuperLink takes the time of a call from 5 s ahead of its own to 305 s behind.
    """
    with suppress(TypeError, ValueError):
        server = parsedate_to_datetime(response.headers.get("date", ""))
        ahead = time.time() - server.timestamp()
        if not -303.0 < ahead < 3.0:
            side = "ahead of" if ahead > 0.0 else "behind"
            return f"this machine's clock is {abs(ahead):.0f} s {side} the server's: set it right"
    return ""


Encryption = ssl.SSLContext | None


def encryption(certificates: bytes | None, insecure: bool) -> Encryption:
    """Return what the SuperLink's certificate is checked by; none only if that is asked for."""
    if insecure != (certificates is None):
        got = "none" if certificates is None else "some"
        raise ValueError(
            "certificates must be the PEM certificates of the study's authority, or None with "
            f"insecure=True, got {got} with {insecure=}"
        )
    text = None if certificates is None else certificates.decode("ascii")
    return None if text is None else ssl.create_default_context(cadata=text)


class Wire(AbstractContextManager["Wire"]):
    """A client of one of the SuperLink's APIs, and the messages of a node or a ServerApp over it.

    `proofs` are interceptors that tell the SuperLink who calls. Calls are repeated after errors of
    the network until `deadline`, a time of the monotonic clock.
    """

    def __init__(self, client: Any, superlink: str, encryption: Encryption, *proofs: Any) -> None:
        url = f"{'https' if encryption else 'http'}://{superlink}"
        self._client = client(url, interceptors=proofs, verify=encryption or False, timeout=10.0)
        self._superlink, self.node, self.deadline = superlink, Node(node_id=SUPERLINK_NODE_ID), 0.0

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def set_deadline(self, seconds: float) -> float:
        """Let calls of the next seconds be repeated until their end, and return that."""
        self.deadline = time.monotonic() + seconds
        return self.deadline

    def call(self, method: str, request: Any) -> Any:
        """Call the API."""
        pause = pauses()
        while True:
            try:
                return getattr(self._client, method)(request)
            except httpx.HTTPStatusError as error:
                status, why = error.response.status_code, error.response.text[:200]
                if status not in (502, 503, 504):
                    clock = _clock_error(error.response) if status == 401 else ""
                    said = f"{status} {clock or repr(why)}"
                    message = f"the SuperLink {self._superlink} refused {method}: {said}"
                    raise GoneError(message, status) from None
            except httpx.TransportError as error:
                why = f"{type(error).__name__}: {error}"
            if time.monotonic() > self.deadline or "CERTIFICATE_VERIFY_FAILED" in why:
                if "expired" in why or "not yet valid" in why:
                    why += " (or this machine's clock is wrong)"
                elif "CERTIFICATE_VERIFY_FAILED" in why:
                    why += " (the study's certificates must be the ca.crt of this coordinator)"
                elif "refused" in why:
                    why += " (`dpkern federation up` must be running there)"
                raise GoneError(f"the SuperLink {self._superlink} is not reached: {why}")
            next(pause)

    def is_answered(self, method: str, request: Any) -> bool:
        """Call the API and return whether that was of use, for heartbeats."""
        with suppress(GoneError):
            self.call(method, request)
            return True
        return False

    def push(
        self, request: Any, messages: Iterable[tuple[Metadata, Mapping[str, Any] | str]]
    ) -> Any:
        """Send messages by a request: of each its record, or the reason of an error."""
        parts: dict[str, bytes] = {}
        for metadata, record in messages:
            with objects.no_object_id_recompute():
                if isinstance(record, str):
                    message = make_message(metadata, error=Error(RAISED, record))
                else:
                    content = RecordDict({"dpkern": ConfigRecord(dict(record))})
                    message = make_message(metadata, content=content)
                nested = objects.get_all_nested_objects(message)
                parts |= {key: part.deflate() for key, part in nested.items()}
                request.message_object_trees.append(objects.get_object_tree(message))
                head = message_to_proto(remove_content_from_message(message))
                head.metadata.message_id = message.object_id
            request.messages_list.append(head)
        found = self.call("PushMessages", request)
        names = {"node": self.node, "run_id": metadata.run_id, "session_id": found.session_id}
        for key in found.objects_to_push:  # those that the SuperLink has not got
            part = {"object_id": key, "object_content": parts[key]}
            self.call("PushObject", message_pb2.PushObjectRequest(**names, **part))
        return found

    def record(self, head: Any, tree: Any) -> dict[str, Any] | None:
        """Return the record of a message, None while the SuperLink does not have it whole.

        A message is three objects: itself, which is `head`, a dictionary that names records, and
        the record, which alone is fetched.
        """
        while tree.children:
            tree = tree.children[0]
        names = {"node": self.node, "run_id": head.metadata.run_id}
        request = message_pb2.PullObjectRequest(**names, object_id=tree.object_id)
        found = self.call("PullObject", request)
        if found.object_found and not found.object_available:
            return None
        received = {"message_object_id": head.metadata.message_id}
        request = message_pb2.ConfirmMessageReceivedRequest(**names, **received)
        with suppress(GoneError):  # it was confirmed, and the answer to that was lost
            self.call("ConfirmMessageReceived", request)
        with suppress(ValueError, TypeError, DecodeError):
            if objects.get_object_id(found.object_content) == tree.object_id:
                return dict(ConfigRecord.inflate(found.object_content))
        raise MessageError("a message that is no record")
