"""The keyed random stream of all noise and samples of a run.

A run has one 256-bit key, which is used only to derive the subkey of its release number r,

    first 32 bytes of ChaCha20(run key, counter = r, nonce = KEY_NONCE).

Within a release the nonce is purpose (16 bits) and silo (48 bits) and the counter is the
coordinate's block, so that no two draws of a run share a block. See Bernstein, "ChaCha, a variant
of Salsa20" (2008), and RFC 8439 section 2.3 for the block function.
"""

import enum
import hashlib
import numbers
import os
import secrets
import threading
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from dpkern import _core
from dpkern.transcript import Transcript

KEY_NONCE = 0x7FFF << 48
MAX_SILOS = 1 << 48
_MAX_RELEASES = 1 << 64
_CHUNK_WORDS = 128

_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """Return a key that no other process has, forked children included."""
    # Neither suffices alone: a child can have its parent's process id (1 in a new namespace), and
    # forks from C are not counted.
    return os.getpid(), _forks


class Purpose(enum.IntEnum):
    """The purpose of a draw within a release, which is the upper 16 bits of the nonce.

    The kernels set bit 15 for blocks with further bits of a Gaussian draw.
    """

    GAUSSIAN = 1
    GOE_DIAGONAL = 2
    GOE_OFF_DIAGONAL = 3
    SAMPLING = 4
    WALK = 5
    BINOMIAL = 6
    USER = 7  # the silo is a record
    ROUNDING = 8
    SHUFFLE = 9
    SPLIT = 10
    SELECTION = 11
    CHILD = 12
    MASK = 13  # of a pair of silos


class Secret:
    """A key of 32 bytes that cannot be printed, copied or pickled, and can be wiped."""

    __slots__ = ("_key",)

    def __init__(self, key: bytearray) -> None:
        self._key = key

    def wipe(self) -> None:
        """Overwrite the key; using it afterwards raises RuntimeError."""
        key, self._key = self._key, bytearray()
        key[:] = bytes(len(key))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a key: it cannot be pickled or copied")

    def _not_wiped(self) -> bytearray:
        if not self._key:
            raise RuntimeError(f"{type(self).__name__} was wiped and cannot be used again")
        return self._key


class ReleaseKey(Secret):
    """The subkey of the release `number` of a stream, to be used once."""

    __slots__ = ("number",)

    def __init__(self, number: int, key: bytearray) -> None:
        self._key, self.number = key, number

    @property
    def key(self) -> bytearray:
        """The key's 32 bytes, for the kernels; not a copy, so that `wipe` overwrites them."""
        return self._not_wiped()

    def words(self, purpose: Purpose, count: int, index: int = 0) -> NDArray[np.uint64]:
        """Return the first `count` 64-bit words of this release for a purpose.

        A longer call begins with the words of a shorter one. The index, in place of the silo, is
        below 2^48; each has different words.
        """
        words = np.empty(-(-count // _CHUNK_WORDS) * _CHUNK_WORDS, dtype=np.uint64)
        if count:
            _core.chacha20_chunks(self.key, (purpose << 48) | index, 0, words)
        return words[:count]

    def subsets(
        self,
        offsets: NDArray[np.int64],
        counts: NDArray[np.int64],
        purpose: Purpose = Purpose.SAMPLING,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for every silo counts[j] of the numbers offsets[j] .. offsets[j + 1] - 1.

        A silo's numbers are sorted, and every set of so many is equally likely. The subset of silo
        j is between the entries j and j + 1 of the second array. Each silo has its own words.
        """
        return _core.subsets(self.key, purpose, offsets, counts)

    def poisson_samples(
        self, offsets: NDArray[np.int64], last: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return samples that have each number of silo j with probability (last[j] + 1) / 2^64.

        Silos with last[j] = 0 have an empty one. Numbers and results are as those of `subsets`.
        """
        return _core.poisson_samples(self.key, Purpose.SAMPLING, offsets, last)

    def __repr__(self) -> str:
        return f"ReleaseKey(number={self.number})"


class ReleaseKeys(Secret):
    """The subkeys of consecutive releases of a stream, each to be used once."""

    __slots__ = ()

    @property
    def keys(self) -> bytearray:
        """The keys' 32 bytes each, for the kernels; not a copy, so that `wipe` overwrites them."""
        return self._not_wiped()

    def __len__(self) -> int:
        return len(self.keys) // 32

    def __repr__(self) -> str:
        return "ReleaseKeys()"


class NoiseStream(Secret):
    """Private randomness of one run, in numbered releases.

    Parameters
    ----------
    seed : int, optional
        None draws the key from the operating system. An int >= 0 derives it from the seed: runs are
        reproducible, by anybody who guesses the seed.

    Attributes
    ----------
    kind : str
        "os", or "seeded: not private".
    transcript, public : Transcript and NoiseStream, or None
        Of an audit: see `audit`.

    Raises
    ------
    TypeError, ValueError
        When `seed` is neither None nor an int >= 0.

    Notes
    -----
    - Release numbers increase and are never reused, also across threads.
    - Use in a forked child, which would repeat its parent's noise, raises RuntimeError.
    - The key is never printed or pickled; `wipe`, or leaving a `with` block, overwrites it.
    """

    __slots__ = ("_lock", "_next", "_process", "kind", "public", "transcript")

    def __init__(self, seed: int | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, numbers.Integral)):
            raise TypeError(
                f"seed must be None or an int >= 0, got {type(seed).__name__} (an argument rng is "
                "such a seed, or a NoiseStream)"
            )
        if seed is not None and seed < 0:
            raise ValueError(f"seed must be None or an int >= 0, got {seed}")
        key = secrets.token_bytes(32) if seed is None else _seed_key(int(seed))
        super().__init__(bytearray(key))
        self.kind = "os" if seed is None else "seeded: not private"
        self.transcript: Transcript | None = None
        self.public: NoiseStream | None = None
        self._process = this_process()
        self._next = 0
        self._lock = threading.Lock()

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        """Return the stream of a key of 32 bytes that the operating system has drawn."""
        stream = cls()
        stream._key[:] = key
        return stream

    def ratchet(self, content: bytes) -> None:
        """Replace the key by a hash of it and of the content: later releases depend on both."""
        with self._lock:
            key = self._not_wiped()
            key[:] = hashlib.sha256(b"dpkern noise stream ratchet:" + key + content).digest()

    def release(self) -> ReleaseKey:
        """Return the key of the next release.

        Raises
        ------
        RuntimeError
            In a forked child, or after `wipe`.
        OverflowError
            After 2^64 releases.
        """
        number, key = self._reserve(1)
        return ReleaseKey(number, key)

    def releases(self, count: int) -> ReleaseKeys:
        """Return the keys of the next `count` releases; raise as `release` does."""
        return ReleaseKeys(self._reserve(count)[1])

    def numbered(self, number: int) -> ReleaseKey:
        """Return the key of a later release; those before it can no longer be made."""
        with self._lock:
            if number < self._next:
                raise RuntimeError("a release of a NoiseStream is made once")
            self._next = number
        return self.release()

    def audit(self, transcript: Transcript, public: "NoiseStream | None" = None) -> None:
        """Let an audit see all releases, or show others in their place: no longer private.

        What is drawn at random and public is from `public` then, if that is given.
        """
        self.transcript, self.public, self.kind = transcript, public, "seeded: not private"

    def child(self) -> "NoiseStream":
        """Return a new stream whose key this one's next release determines.

        How many releases the new one makes cannot be told from this one.
        """
        with self.release() as key:
            words = key.words(Purpose.CHILD, 4)
        made = NoiseStream(int.from_bytes(words.tobytes(), "little"))
        made.kind = self.kind
        return made

    def _reserve(self, count: int) -> tuple[int, bytearray]:
        """Return number of the first of the next releases, and their keys."""
        if this_process() != self._process:
            raise RuntimeError(
                "this NoiseStream was made in another process: a forked child would repeat its "
                "parent's noise; make a new stream in the child"
            )
        keys = bytearray(32 * count)
        with self._lock:
            first = self._next
            if first + count > _MAX_RELEASES:
                raise OverflowError("a NoiseStream has at most 2^64 releases")
            _core.chacha20_keys(self._not_wiped(), first, KEY_NONCE, keys)
            self._next = first + count
        return first, keys

    def wipe(self) -> None:
        """Overwrite the key; using the stream afterwards raises RuntimeError."""
        with self._lock:
            super().wipe()

    def __repr__(self) -> str:
        return f"NoiseStream(kind={self.kind!r}, releases={self._next})"


class PublicDraws:
    """Releases of a public stream, numbered as those of a private one, which skips them.

    Parties with private streams of their own then draw the same, at the same place of their runs,
    wherever these streams were at the start.
    """

    def __init__(self, public: NoiseStream, private: NoiseStream) -> None:
        self._public, self._private, self._first = public, private, private._next

    def release(self) -> ReleaseKey:
        """Return the key of the next release of both."""
        with self._private.release() as skipped:
            return self._public.numbered(skipped.number - self._first)


def _seed_key(seed: int) -> bytes:
    number = seed.to_bytes((seed.bit_length() + 7) // 8, "little")
    return hashlib.sha256(b"dpkern noise stream seed:" + number).digest()
