"""What a coordinator keeps so that, killed and started again, it goes on where it was.

The journal holds every round's answers as the silos sent them. A new coordinator with the same
study and plan runs the solver again on these, to the same bits, and asks the silos from the first
round on that is not there; a silo that has answered this round already sends the same answer.
"""

import hashlib
import os
import secrets
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from dpkern.federated.links import FederationError, Link, SilosLostError, Star

_MAGIC, _NONCE = b"dpkern journal 1", 32
_LENGTH = struct.Struct("<Q")
_END = bytes(32)  # in place of what was asked: the silos have heard the last message


class JournalError(FederationError):
    """A journal of another study, of another plan, or damaged."""


class RecordedStar(Star):
    """A star whose answers are in a file before anything depends on them.

    Parameters
    ----------
    silos : sequence of str
    connect : callable () -> Star
        Connects to the silos; called when an answer is not in the file.
    path : path
        The file, made if there is none. Nobody else may write to it meanwhile.

    Attributes
    ----------
    nonce : bytes
        32 random bytes, the same whenever the file is opened.
    """

    def __init__(
        self, silos: Sequence[str], connect: Callable[[], Star], path: str | os.PathLike[str]
    ) -> None:
        self.silos, self._connect, self._path = tuple(silos), connect, Path(path)
        self._star: Star | None = None
        self._records: list[tuple[bytes, list[bytes]]] = []
        self._next, self._told_last = 0, False
        if self._path.exists():
            self._read()
        else:
            self.nonce = secrets.token_bytes(_NONCE)
            self._write(_MAGIC + self.nonce, "xb")

    def _read(self) -> None:
        """Read all whole records; what was written when the coordinator died is dropped."""
        text = self._path.read_bytes()
        start = len(_MAGIC) + _NONCE
        if len(text) < start or not text.startswith(_MAGIC):
            raise JournalError(f"{self._path} is no journal of a study")
        self.nonce = text[len(_MAGIC) : start]
        while (record := _record(text, start)) is not None:
            asked, answers, start = record
            if asked == _END:
                self._told_last = True
                continue
            if len(answers) != len(self.silos):
                raise JournalError(f"{self._path} is of a study with {len(answers)} silos")
            self._records.append((asked, answers))
        os.truncate(self._path, start)

    def _write(self, text: bytes, mode: str) -> None:
        with open(self._path, mode) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        asked = hashlib.sha256(b"".join(_LENGTH.pack(len(m)) + m for m in messages)).digest()
        if self._next < len(self._records):
            recorded, answers = self._records[self._next]
            if recorded != asked:
                raise JournalError(
                    f"{self._path} is of another study, another plan or another version of dpkern"
                )
        else:
            if self._star is None:
                self._star = self._connect()
            answers = self._star.exchange(messages)
            self._write(_record_of(asked, answers), "ab")
        self._next += 1
        return answers

    def close(self, last: bytes) -> None:
        if last and self._told_last:
            return
        if last and self._star is None:  # it died before the silos had heard the last message
            with suppress(SilosLostError):
                self._star = self._connect()
        if self._star is not None:
            self._star.close(last)
            if last:
                self._write(_record_of(_END, []), "ab")


def _record_of(asked: bytes, answers: Sequence[bytes]) -> bytes:
    """Return what is written of an exchange."""
    parts = b"".join(_LENGTH.pack(len(part)) + part for part in answers)
    text = asked + _LENGTH.pack(len(answers)) + parts
    return _LENGTH.pack(len(text)) + text + hashlib.sha256(text).digest()


def _record(text: bytes, start: int) -> tuple[bytes, list[bytes], int] | None:
    """Return what was asked, the answers and the end of the record at a place, if it is whole."""
    begin = start + _LENGTH.size
    if len(text) < begin:
        return None
    end = begin + _LENGTH.unpack_from(text, start)[0]
    body = text[begin:end]
    if text[end : end + 32] != hashlib.sha256(body).digest():
        return None
    answers, place = [], 32 + _LENGTH.size
    for _ in range(_LENGTH.unpack_from(body, 32)[0]):
        size = _LENGTH.unpack_from(body, place)[0]
        place += _LENGTH.size + size
        answers.append(body[place - size : place])
    return body[:32], answers, end + 32


class SteadyLink(Link):
    """A link that answers a repeated message by the same bytes as before.

    A silo's masks and noise are then used once, whatever a coordinator asks again.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._said: bytes | None = None

    def exchange(self, answer: bytes | None) -> bytes:
        said = self._link.exchange(answer)
        while said == self._said:
            said = self._link.exchange(answer)
        self._said = said
        return said

    def close(self, error: str | None = None) -> None:
        self._link.close(error)
