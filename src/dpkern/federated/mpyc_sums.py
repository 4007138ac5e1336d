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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpkern.federated.masking import public_stream
from dpkern.federated.mpyc_runtime import Mesh, finfields
from dpkern.federated.party import ProtocolError, Transcript
from dpkern.party import Party

_BITS, _SLOT, _SLOTS = 1279, 9, 17
_ELEMENT = _SLOT * _SLOTS


class MpycParty(Party):
    """A party of a study, which `dpkern.federated.mpyc.join` connects with all others.

    Attributes
    ----------
    note : str
        What the certificate says of the sums.
    """

    def __init__(self, mesh: Mesh, silos: int, colluding: int | None, session: bytes) -> None:
        pid, self._silos, self._mesh = mesh.runtime.pid, silos, mesh
        self.silo, self.colluding = pid - 1 if pid else None, colluding
        self.public, self._transcript = public_stream(session), Transcript(session)
        self._field = finfields.GF(2**_BITS - 1)
        self.note = (
            f"sums by Shamir shares among {silos + 1} parties, threshold {mesh.runtime.threshold}, "
            "against semi-honest parties"
        )

    def ready(self) -> None:
        binding = self._transcript.binding(b"ready", (), "charged")
        self._mesh.run(lambda: self._mesh.exchange(binding))
        self._transcript.add(b"")

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
