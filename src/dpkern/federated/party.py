"""The two kinds of parties of a study, over a star of connections.

A silo sends its noisy sum, as integers modulo 2^64 with a mask that cancels in the sum over silos
(`dpkern.federated.masking`), or its noisy message; the coordinator sends the sum, or all messages,
to every silo. What a message belongs to, the study, the round, the release and all that the
coordinator has said so far, is hashed into its binding, which is part of the key of the mask: if
the coordinator tells two silos different things, it gets words that nobody can tell from random
ones, and nothing else.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpkern.federated.links import FederationError, Link, Star
from dpkern.party import Party
from dpkern.stream import NoiseStream

_HEAD = struct.Struct("<4sQ32s")
_READY, _TOTAL, _MESSAGES = b"DPKR", b"DPKT", b"DPKM"


class ProtocolError(FederationError):
    """A party that says what the protocol does not allow, so that the study ends."""


class Masks(Protocol):
    """The masks of a session."""

    def mask(self, values: NDArray[np.int64], number: int, binding: bytes) -> NDArray[np.uint64]:
        """Return the values with the masks of a round, modulo 2^64."""


class Transcript:
    """What the coordinator has told all silos, and the number of the round."""

    def __init__(self, opening: bytes) -> None:
        self.round, self._hash = 0, hashlib.sha256(b"dpkern study" + opening).digest()

    def binding(self, kind: bytes, shape: tuple[int, ...], what: str) -> bytes:
        """Return the binding of a release: the sum of integers, or messages, of a shape."""
        text = f"{kind.decode()} {self.round} {shape} {what}".encode()
        return hashlib.sha256(self._hash + text).digest()

    def add(self, said: bytes) -> None:
        """Add what the coordinator said at the end of a round."""
        self._hash = hashlib.sha256(self._hash + said).digest()
        self.round += 1


class SiloParty(Party):
    """A silo.

    `opening` is all that the coordinator has told every silo before the first round.
    """

    def __init__(
        self,
        link: Link,
        masks: Masks,
        *,
        silo: int,
        colluding: int | None,
        opening: bytes,
        public: NoiseStream,
    ) -> None:
        self._link, self._masks, self._transcript = link, masks, Transcript(opening)
        self.silo, self.colluding, self.public = silo, colluding, public

    def ready(self) -> None:
        self._exchange(_READY, self._transcript.binding(_READY, (), "charged"), b"", 0)

    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        binding = self._transcript.binding(_TOTAL, steps.shape, what)
        masked = self._masks.mask(steps.ravel(), self._transcript.round, binding)
        said = self._exchange(_TOTAL, binding, masked.astype("<u8").tobytes(), steps.size)
        return np.frombuffer(said, dtype="<i8").reshape(steps.shape).astype(np.int64)

    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        assert self.silo is not None
        binding = self._transcript.binding(_MESSAGES, rows.shape, what)
        own = rows[self.silo].astype("<f8").tobytes()
        said = self._exchange(_MESSAGES, binding, own, rows.size)
        found = np.frombuffer(said, dtype="<f8").reshape(rows.shape).astype(np.float64)
        if found[self.silo].astype("<f8").tobytes() != own:
            raise ProtocolError("the coordinator says that this silo sent another message")
        return found

    def _exchange(self, kind: bytes, binding: bytes, payload: bytes, size: int) -> bytes:
        """Send a message and return what the coordinator says to it, 8 bytes for each number."""
        transcript = self._transcript
        said = self._link.exchange(_HEAD.pack(kind, transcript.round, binding) + payload)
        expected = _HEAD.pack(kind, transcript.round, bytes(32))
        if said[: _HEAD.size] != expected or len(said) != _HEAD.size + 8 * size:
            raise ProtocolError("the coordinator's message is not that of this round")
        transcript.add(said)
        return said[_HEAD.size :]


class CoordinatorParty(Party):
    """The coordinator; `opening` is all that it has said, and `told` what silos have not heard yet.

    Attributes
    ----------
    told : bytes
        What the silos hear with the next round, or at the end of the study.
    """

    silo = None

    def __init__(
        self, star: Star, *, colluding: int | None, opening: bytes, told: bytes, public: NoiseStream
    ) -> None:
        self._star, self._transcript, self.told = star, Transcript(opening), told
        self.colluding, self.public = colluding, public

    def ready(self) -> None:
        self._collect(_READY, self._transcript.binding(_READY, (), "charged"), 0)
        self._tell(_READY, b"")

    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        binding = self._transcript.binding(_TOTAL, steps.shape, what)
        words = [
            np.frombuffer(payload, dtype="<u8")
            for payload in self._collect(_TOTAL, binding, 8 * steps.size)
        ]
        total = np.zeros(steps.size, dtype=np.uint64)
        for one in words:
            total += one
        self._tell(_TOTAL, total.astype("<u8").tobytes())
        return total.view(np.int64).reshape(steps.shape)

    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        binding = self._transcript.binding(_MESSAGES, rows.shape, what)
        found = self._collect(_MESSAGES, binding, 8 * rows[0].size)
        self._tell(_MESSAGES, b"".join(found))
        values = [np.frombuffer(payload, dtype="<f8") for payload in found]
        return np.array(values, dtype=np.float64).reshape(rows.shape)

    def _collect(self, kind: bytes, binding: bytes, size: int) -> list[bytes]:
        """Return the silos' payloads, of so many bytes each."""
        star, expected = self._star, _HEAD.pack(kind, self._transcript.round, binding)
        answers = star.exchange([self.told] * len(star.silos))
        _refuse_others(star.silos, answers, expected, size)
        return [answer[_HEAD.size :] for answer in answers]

    def _tell(self, kind: bytes, payload: bytes) -> None:
        self.told = _HEAD.pack(kind, self._transcript.round, bytes(32)) + payload
        self._transcript.add(self.told)


def _refuse_others(
    silos: Sequence[str], answers: Sequence[bytes], expected: bytes, size: int
) -> None:
    """Raise ProtocolError unless all answers are of the expected release."""
    for name, answer in zip(silos, answers, strict=True):
        if answer[: _HEAD.size] != expected or len(answer) != _HEAD.size + size:
            raise ProtocolError(
                f"{name} is not at the coordinator's release: it has another plan, another version "
                "of dpkern, or was told something else"
            )
