"""Sums of integers of several silos, of which whoever adds them up sees the total alone.

A session begins with two exchanges over any transport, which is not trusted:

1. Every silo sends an offer: a fresh X25519 key, signed by its Ed25519 identity together with the
   digest of study and plan, the coordinator's nonce, the roster and its name.
2. Every silo verifies the offers of all. The session's id is their hash; the key of a pair is
   HKDF-SHA256 of its shared secret, with the id as salt and both names. Every silo sends a
   confirmation, the signed id, and verifies those of all before it masks anything.

In a round, silo i sends its integers modulo 2^64 plus the masks of the pairs (i, k) with i before
k in the roster, minus those with k before i. Masks are words of ChaCha20 under a key that HKDF
derives from the pair's key, the number of the round, the number of words and a `binding`: the
caller's hash of all messages so far and of what is asked. They cancel in the sum over the roster.

Who learns what
---------------
- A curious coordinator, with t <= m - 2 silos that tell it all they know, learns the sum over the
  other silos and nothing else of their integers: each of the m - t >= 2 honest ones adds masks of
  every other honest one, which are indistinguishable from uniform words (Bonawitz et al., 2017,
  section 4, without double masks: a silo that is lost ends the session). With t = m - 1 nothing is
  hidden but by noise. A silo that sees the total and subtracts its own part is a coalition of one.
- A malicious coordinator, which may alter, replay, swap, withhold or invent messages, learns at
  most that too. It has no identity's signature. The id has a fresh key of every honest silo in it,
  hence silos that are shown different or old offers have different ids, and refuse each other's
  confirmation. Silos that are asked different things, or out of step, have different round keys,
  and their masks do not cancel. A round's masks are used once. It can end a session, and silos that
  collude can falsify the sum.
- The network learns less than the coordinator.

All of it holds against polynomial time, under the security of X25519, Ed25519, HKDF and ChaCha20:
a differential privacy guarantee of the sum is then a computational one.

References
----------
Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017.
RFC 5869 (HKDF), RFC 7748 (X25519), RFC 8032 (Ed25519), RFC 8439 (ChaCha20).
"""

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern.federated.links import FederationError
from dpkern.stream import NoiseStream, Purpose, ReleaseKey, Secret, this_process

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
except ImportError as error:
    raise ImportError(
        "silos across machines need the package cryptography: pip install 'dpkern[federated]'"
    ) from error

_BYTES, _SIGNATURE = 32, 64  # bytes of a key or a digest, and of a signature


class SessionError(FederationError):
    """A message of others does not belong to this session; nothing of the data was sent."""


def digest(what: str, *parts: bytes) -> bytes:
    """Return the SHA-256 of a purpose and of parts, with their lengths."""
    found = hashlib.sha256()
    for part in (f"dpkern federation 1: {what}".encode(), *parts):
        found.update(len(part).to_bytes(8, "little") + part)
    return found.digest()


@dataclass(frozen=True)
class Roster:
    """The silos of a session in their order, with the public keys of their identities.

    Parameters
    ----------
    keys : mapping of str to bytes
        The 32 bytes of an Ed25519 public key for the name of each of at least two silos. They come
        from a silo's own copy of the study, never from the coordinator.
    """

    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        keys = dict(self.keys)
        if len(keys) < 2:
            raise ValueError(f"keys must be those of at least 2 silos, got {len(keys)}")
        if any(not isinstance(key, bytes) or len(key) != _BYTES for key in keys.values()):
            raise ValueError(f"keys must be {_BYTES} bytes each, those of Ed25519 public keys")
        if len(set(keys.values())) < len(keys):
            raise ValueError("keys must be distinct, got two silos with one key")
        object.__setattr__(self, "keys", MappingProxyType(keys))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the silos."""
        return tuple(self.keys)

    @property
    def digest(self) -> bytes:
        """SHA-256 of names and keys in their order."""
        parts = (part for name, key in self.keys.items() for part in (name.encode(), key))
        return digest("roster", *parts)


def session_id(roster: Roster, nonce: bytes, agreed: bytes, offers: Sequence[bytes]) -> bytes:
    """Return the id of the session of these offers, in the roster's order.

    Raises
    ------
    SessionError
        When they are not one for each silo, or one is not signed by its silo for this.
    """
    _refuse_unsigned("offer", roster, (roster.digest, nonce, agreed), offers)
    return digest("session", roster.digest, nonce, agreed, *offers)


def public_stream(session: bytes) -> NoiseStream:
    """Return the stream of public draws, which all parties of a session have.

    Whoever sends its message last can choose among streams by trying: no guarantee may rest on it.
    """
    return NoiseStream(int.from_bytes(digest("public stream", session), "little"))


def _refuse_unsigned(
    what: str, roster: Roster, context: tuple[bytes, ...], messages: Sequence[bytes]
) -> None:
    m = len(roster.keys)
    if len(messages) != m:
        raise SessionError(f"{what}s must be one of each silo, {m}, got {len(messages)}")
    for (name, key), message in zip(roster.keys.items(), messages, strict=True):
        said, signature = message[:-_SIGNATURE], message[-_SIGNATURE:]
        if _is_signed(key, signature, digest(what, *context, name.encode(), said)):
            continue
        got = "another"
        for other, one in roster.keys.items():
            texts = [digest(what, *context, n.encode(), said) for n in (name, other)]
            if any(_is_signed(one, signature, text) for text in texts):
                got = f"that of silo {other!r}"
        raise SessionError(
            f"the {what} of silo {name!r} must be signed by its key in the study, for this "
            f"session, study and plan, got {got}: ask its people who has joined as {name!r}"
        )


def _is_signed(key: bytes, signature: bytes, text: bytes) -> bool:
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def statement_of(offer: bytes) -> bytes:
    """Return what a silo has signed in its offer beside its key."""
    return offer[_BYTES:-_SIGNATURE]


class Session(Secret):
    """One silo's keys with every other one, for the rounds of one session.

    The calls are, each with what the others have sent: `accept`, `confirm`, and `mask` for every
    round. Keys exist in the memory of one process alone, so that a silo that was restarted needs a
    new session, unless it has kept the ephemeral key in a journal (`silo_journal`). `wipe`, or
    leaving a `with` block, overwrites them; of the shared secrets that they are derived from,
    Python keeps copies until it uses the memory again.

    Parameters
    ----------
    identity : Ed25519PrivateKey
        The silo's own, whose public key the roster has.
    name : str
        The silo's.
    roster : Roster
    nonce : bytes
        32 bytes of the coordinator's, new for every session.
    agreed : bytes
        32 bytes, the digest of the study and of the plan as this silo has read and accepted them.
    statement : bytes
        What the silo signs together with its key, for all others to read (`statement_of`).
    ephemeral : X25519PrivateKey or None
        The session's own key, of a silo that goes on after a restart; None makes one.

    Attributes
    ----------
    offer : bytes
        A fresh X25519 public key and the statement with a signature, to be sent.
    id : bytes
        32 bytes, the same for all parties; empty before `accept`.
    """

    __slots__ = (
        *("_agreed", "_confirmed", "_ephemeral", "_identity", "_last", "_lock", "_name", "_nonce"),
        *("_process", "_rest", "_roster", "id", "offer"),
    )

    def __init__(
        self,
        identity: ed25519.Ed25519PrivateKey,
        name: str,
        roster: Roster,
        nonce: bytes,
        agreed: bytes,
        statement: bytes = b"",
        ephemeral: x25519.X25519PrivateKey | None = None,
    ) -> None:
        if roster.keys.get(name) != identity.public_key().public_bytes_raw():
            raise ValueError(
                f"identity must be the private key of silo {name!r} in the study, got another"
            )
        _refuse_no_digest("nonce", nonce)
        _refuse_no_digest("agreed", agreed)
        super().__init__(bytearray(_BYTES * (len(roster.keys) - 1)))
        self._identity, self._name, self._roster = identity, name, roster
        self._nonce, self._agreed, self._process = nonce, agreed, this_process()
        self._confirmed, self._last, self._lock = False, -1, threading.Lock()
        own = ephemeral or x25519.X25519PrivateKey.generate()
        self._ephemeral: x25519.X25519PrivateKey | None = own
        key = own.public_key().public_bytes_raw()
        self._rest = len(statement) + _SIGNATURE  # what follows a key
        self.offer = self._signed("offer", (roster.digest, nonce, agreed), key + statement)
        self.id = b""

    def __repr__(self) -> str:
        return f"Session(silo={self._name!r}, last_round={self._last})"

    def _signed(self, what: str, context: tuple[bytes, ...], said: bytes = b"") -> bytes:
        return said + self._identity.sign(digest(what, *context, self._name.encode(), said))

    def accept(self, offers: Sequence[bytes]) -> bytes:
        """Derive the keys from all offers, in the roster's order, and return a confirmation.

        Raises
        ------
        SessionError
            When an offer is missing, foreign, altered or old, or this silo's own was replaced.
        RuntimeError
            When called a second time, or in a forked child.
        """
        with self._lock:
            # Two sessions of one key and the same offers would use the same masks.
            ephemeral, self._ephemeral = self._ephemeral, None
            if ephemeral is None or self._process != this_process():
                raise RuntimeError("an offer makes one session, in the process that made the offer")
            session = session_id(self._roster, self._nonce, self._agreed, offers)
            if self.offer not in offers:
                raise SessionError(f"the offer of silo {self._name!r} must be the one it made")
            names = self._roster.names
            others = [pair for pair in zip(names, offers, strict=True) if pair[0] != self._name]
            for (name, offer), key in zip(others, self._pairs(), strict=True):
                try:
                    shared = ephemeral.exchange(
                        x25519.X25519PublicKey.from_public_bytes(offer[: -self._rest])
                    )
                except ValueError:  # a point of low order, which only its silo can have signed
                    raise SessionError(f"the offer of silo {name!r} must hold a key") from None
                first, second = sorted((self._name, name), key=names.index)
                info = digest("pair", first.encode(), second.encode())
                HKDF(SHA256(), _BYTES, salt=session, info=info).derive_into(shared, key)
            self.id = session
            return self._signed("confirmation", (session,))

    def confirm(self, confirmations: Sequence[bytes]) -> None:
        """Verify that all silos have this session, by their confirmations in the roster's order.

        Raises
        ------
        SessionError
            When one is missing, or is of another session.
        """
        _refuse_unsigned("confirmation", self._roster, (self.id,), confirmations)
        self._confirmed = True

    def mask(self, values: NDArray[np.int64], number: int, binding: bytes) -> NDArray[np.uint64]:
        """Return this silo's message of a round, its integers plus masks, modulo 2^64.

        Parameters
        ----------
        values : ndarray of shape (d,), int64
        number : int
            Of the round, below 2^64 and above those of all rounds before. It is used up even when
            this raises.
        binding : bytes
            32 bytes: digest of all messages of the session so far and of what is asked.

        Raises
        ------
        RuntimeError
            Before `confirm`, after `wipe`, in a forked child, or for a round that has been.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.int64 or values.ndim != 1:
            raise TypeError("values must be an array of int64 of shape (d,), got another")
        _refuse_no_digest("binding", binding)
        number = count("number", number, 0)
        with self._lock:
            self._use_up(number)
            total, place = values.astype(np.uint64), self._roster.names.index(self._name)
            size = len(total).to_bytes(8, "little")
            info = digest("mask", number.to_bytes(8, "little"), size, binding)
            for i in range(len(self._roster.keys) - 1):
                words = self._words(i, number, info, len(total))
                if i < place:  # the other silo is before this one
                    total -= words
                else:
                    total += words
                words.fill(0)
            return total

    def _words(self, i: int, number: int, info: bytes, size: int) -> NDArray[np.uint64]:
        """Return the mask of a round with the i-th other silo."""
        with ReleaseKey(number, bytearray(_BYTES)) as key:
            HKDFExpand(SHA256(), _BYTES, info).derive_into(self._pairs()[i], key.key)
            return key.words(Purpose.MASK, size)

    def _use_up(self, number: int) -> None:
        if not self._confirmed:
            raise RuntimeError("a session masks nothing before all silos have confirmed it")
        if self._process != this_process():
            raise RuntimeError("this Session was made in another process, which has its masks")
        if not self._last < number < 1 << 64:
            raise RuntimeError(
                f"number must be above {self._last}, the last round, and below 2^64, got {number}: "
                "masks are used once"
            )
        self._last = number

    def _pairs(self) -> list[memoryview]:
        keys = memoryview(self._not_wiped())
        return [keys[start : start + _BYTES] for start in range(0, len(keys), _BYTES)]

    def wipe(self) -> None:
        """Overwrite the keys; masking afterwards raises RuntimeError."""
        with self._lock:
            self._ephemeral = None
            super().wipe()


def _refuse_no_digest(name: str, value: object) -> None:
    if not isinstance(value, bytes) or len(value) != _BYTES:
        raise ValueError(f"{name} must be {_BYTES} bytes, such as a SHA-256")
