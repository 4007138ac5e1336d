"""Sums by secret sharing (MPyC) for few silos and an analyst that can all reach each other.

Party 0 is the analyst, who has no records, and silo j is party j + 1. A sum takes two messages from
party to party: every silo gives every party a share of its integers (Shamir, threshold T), and the
parties open the sum of the shares that they hold. Up to T parties that pool what they see learn the
sum and nothing else of the others' integers. With the first message a party says where it is: the
round, the release and all that was opened before; nobody opens a sum unless all agree. This is
secure against semi-honest parties. One that falsifies shares can falsify a sum, which is refused
when it is not one of so many integers, or at the next message when parties opened different ones.
Nobody can drop out: a party that is lost or late ends the study.

An integer x of a silo is the slot x + 2^63, of 9 bytes, in an element of the field of order
2^1279 - 1, which has 17 of them. Slots of at most 255 silos add up without a carry into the next
slot. All of int64 is in range: what is opened is the sum over the integers, and what is returned is
that modulo 2^64, as with masks.

MPyC sends arrays by `pickle`, by which a party could run code at others. It sends elements in
lists, as here, as plain bytes.
"""

import asyncio
import ipaddress
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpkern import __version__
from dpkern._numbers import count
from dpkern.federated.masking import digest, public_stream
from dpkern.federated.mpyc_runtime import ANALYST, Certificates, Mesh, finfields
from dpkern.federated.party import ProtocolError, Transcript
from dpkern.federated.plan import Plan
from dpkern.party import Party

if TYPE_CHECKING:
    from dpkern.federated.study import Study

_BITS, _SLOT, _SLOTS = 1279, 9, 17
_ELEMENT = _SLOT * _SLOTS
_in_use = threading.Lock()  # MPyC has one runtime in a process


class MpycParty(Party):
    """A party of a study, which `join` connects with all others.

    Attributes
    ----------
    note : str
        What the certificate says of the sums.
    """

    def __init__(
        self, mesh: Mesh, silos: int, colluding: int | None, opening: bytes, session: bytes
    ) -> None:
        pid, self._silos, self._mesh = mesh.runtime.pid, silos, mesh
        self.silo, self.colluding = pid - 1 if pid else None, colluding
        self.public, self._transcript = public_stream(session), Transcript(opening)
        self._field = finfields.GF(2**_BITS - 1)
        self.note = (
            f"sums by Shamir shares among {silos + 1} parties, threshold {mesh.runtime.threshold}, "
            "against semi-honest parties"
        )

    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        binding = self._transcript.binding(b"sum", steps.shape, what)
        opened = self._mesh.run(lambda: self._sum(binding, steps.ravel()))
        total = unpacked(opened, steps.size, self._silos)
        self._transcript.add(total.astype("<i8").tobytes())
        return total.reshape(steps.shape)

    async def _sum(self, binding: bytes, steps: NDArray[np.int64]) -> list[int]:
        """Return the sum of silos' elements, if all parties are at this release."""
        mesh, field = self._mesh, self._field
        numbers = packed(steps)
        given = [field(0)] if self.silo is None else [field(number) for number in numbers]
        # Shares of an element say nothing of it, so they need not wait for the others' messages.
        at_this_release = mesh.exchange(binding)
        shares = mesh.runtime.input(given, senders=range(1, self._silos + 1))
        await at_this_release
        held = await shares
        if {len(one) for one in held} != {len(numbers)}:
            raise ProtocolError("a silo has shared more or fewer numbers than the sum has")
        sums = [field(sum(share.value for share in one)) for one in zip(*held, strict=True)]
        return [element.value for element in await mesh.runtime.output(sums)]

    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        binding = self._transcript.binding(b"messages", rows.shape, what)
        own = b"" if self.silo is None else rows[self.silo].astype("<f8").tobytes()
        found = self._mesh.run(lambda: self._mesh.exchange(binding, own)) | {
            self._mesh.runtime.pid: own
        }
        told = b"".join(found[pid] for pid in range(1, self._silos + 1))
        if any(len(found[pid]) != 8 * rows[0].size for pid in range(1, self._silos + 1)):
            raise ProtocolError("a silo has sent more or fewer numbers than a message has")
        self._transcript.add(told)
        return np.frombuffer(told, dtype="<f8").reshape(rows.shape).astype(np.float64)

    def end(self) -> None:
        """Make sure that all parties end here, having seen the same."""
        self._mesh.end(self._transcript.binding(b"end", (), "study"))


def packed(steps: NDArray[np.int64]) -> list[int]:
    """Return elements of the field that hold these integers, in at least one."""
    slots = np.zeros((max(1, -(-len(steps) // _SLOTS)) * _SLOTS, _SLOT), dtype=np.uint8)
    words = steps.astype("<i8").view("<u8") ^ np.uint64(1 << 63)
    slots[: len(steps), :8] = words.view(np.uint8).reshape(-1, 8)
    return [int.from_bytes(element.tobytes(), "little") for element in slots.reshape(-1, _ELEMENT)]


def unpacked(elements: Sequence[int], size: int, silos: int) -> NDArray[np.int64]:
    """Return the sum modulo 2^64, of so many integers of each silo, that elements hold."""
    try:
        text = b"".join(element.to_bytes(_ELEMENT, "little") for element in elements)
    except OverflowError:
        text = b""
    slots = np.frombuffer(text, dtype=np.uint8).reshape(-1, _SLOT)
    if len(slots) < size or slots[:size, 8].max(initial=0) >= silos or slots[size:].any():
        raise ProtocolError("what was opened is no sum of integers: a party has sent wrong shares")
    words = np.ascontiguousarray(slots[:size, :8]).view("<u8").ravel()
    return (words - np.uint64((silos << 63) % (1 << 64))).astype(np.int64)


@contextmanager
def join(
    study: "Study",
    name: str | None,
    addresses: Sequence[str],
    *,
    plan: Plan | None = None,
    accept: Callable[[Plan], None] = lambda plan: None,
    certificates: Certificates | None = None,
    threshold: int | None = None,
    deadline: float = 60.0,
) -> Iterator[tuple[MpycParty, Plan]]:
    """Connect to all parties of a study, and agree on a plan; yield the party and the plan.

    Every party then runs the solver of the plan on `dpkern.data.parted.held_by(party, ...)`, and
    leaves the context together with the others, or with an error, which ends the study for all.

    Parameters
    ----------
    study : Study
        The party's own copy.
    name : str or None
        The silo's; None for the analyst.
    addresses : sequence of str
        HOST:PORT of every silo, in the study's order; silos listen there. The analyst calls only.
    plan : Plan
        What the analyst proposes; None at a silo.
    accept : callable
        Is called with the plan at a silo, and raises where it does not take part.
    certificates : Certificates, optional
        Needed unless all silos are on this machine.
    threshold : int, optional
        T, below half of the m + 1 parties and above `colluding`, as the analyst may pool shares
        with the colluding silos. The largest by default.
    deadline : float, default=60.0
        Seconds to connect, and for every release, others' computations between releases included.

    Raises
    ------
    ValueError
        For a threshold or addresses that are not as above.
    ProtocolError
        When others have another study, threshold or version, are at another release, or a
        certificate is not theirs.
    SilosLostError, CoordinatorLostError
        When parties are lost or late. What was sent is charged.
    """
    silos = len(study.names)
    if name is not None and name not in study.names:
        raise ValueError(f"name must be one of {', '.join(study.names)}, or None, got {name!r}")
    if (plan is None) != (name is not None):
        raise TypeError("plan must be given at the analyst, and at no silo")
    chosen = _threshold(silos, study.colluding, threshold)
    places = _places(addresses, silos, certificates is not None)
    pid = 0 if name is None else study.names.index(name) + 1
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("join must be called where no event loop runs: not in a notebook")
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("join must be left before it is called again: one party in a process")
    try:
        names = (ANALYST, *study.names)
        mesh = Mesh(names, places, pid, chosen, certificates, deadline)
        try:
            mesh.run(mesh.connect)
            party, agreed = _agree(mesh, study, plan)
            if name is not None:
                accept(agreed)
            yield party, agreed
            party.end()
        finally:
            mesh.close()
    finally:
        _in_use.release()


def _agree(mesh: Mesh, study: "Study", plan: Plan | None) -> tuple[MpycParty, Plan]:
    """Exchange first messages, and return the party of a session and the plan."""
    own = {"dpkern": __version__, "study": study.digest, "threshold": mesh.runtime.threshold}
    text = None if plan is None else plan.to_json()
    hello = own | {"nonce": secrets.token_hex(32), "plan": text}
    said = json.dumps(hello, sort_keys=True).encode()
    found = mesh.run(lambda: mesh.exchange(digest("mpyc"), said)) | {mesh.runtime.pid: said}
    opening = b"".join(found[pid] for pid in sorted(found))
    for pid, message in found.items():
        who = mesh.names[pid]
        try:
            told = json.loads(message)
            differing = [what for what in own if told[what] != own[what]]
            text = str(told["plan"]) if pid == 0 else text
        except (KeyError, RecursionError, TypeError, ValueError):
            raise ProtocolError(f"the first message of {who} is none of this protocol") from None
        for what in differing:
            raise ProtocolError(f"the {what} of {who} is {told[what]!r}, here it is {own[what]!r}")
    agreed = Plan.from_json(str(text))
    if agreed.arguments.get("trust") != study.trust:
        raise ProtocolError(f"the plan's trust must be that of the study, {study.trust!r}")
    session = digest("mpyc session", *(found[pid] for pid in sorted(found)))
    return MpycParty(mesh, len(study.names), study.colluding, opening, session), agreed


def _threshold(silos: int, colluding: int | None, threshold: int | None) -> int:
    most, least = silos // 2, 1 + (colluding or 0)
    chosen = most if threshold is None else count("threshold", threshold)
    if silos > 255:
        raise ValueError(f"study must have at most 255 silos, got {silos}")
    if not least <= chosen <= most:
        raise ValueError(
            f"threshold must be at least {least}, for colluding={colluding or 0} silos and the "
            f"analyst, and at most {most}, below half of {silos + 1} parties, got {chosen}"
        )
    return chosen


def _places(addresses: Sequence[str], silos: int, encrypted: bool) -> list[tuple[str, int]]:
    parts = [address.rpartition(":") for address in addresses]
    if len(parts) != silos or not all(host and port.isdecimal() for host, _, port in parts):
        raise ValueError(f"addresses must be HOST:PORT of all {silos} silos, got {addresses!r}")
    places = [(host.strip("[]"), int(port)) for host, _, port in parts]
    for host, _ in places:
        if not (encrypted or host == "localhost" or _is_loopback(host)):
            raise ValueError(f"certificates must be given for other machines, got {host!r} without")
    return places


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
