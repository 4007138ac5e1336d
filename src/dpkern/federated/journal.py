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
from typing import NoReturn

from dpkern._files import write_new
from dpkern.federated.links import FederationError, Link, Star

_MAGIC, _NONCE, _HASH = b"dpkern journal 2", 32, 32
_LENGTH = struct.Struct("<Q")
_CURE = (
    "restore the file from a copy; without one this party cannot go on with the study, what silos "
    "have charged stands, and another study needs a new journal"
)
_END = bytes(_HASH)  # in place of a question: these silos have confirmed the last message


class JournalError(FederationError):
    """A journal of another study, of another plan, or damaged."""


class Journal:
    """A file of records, of which nothing is lost in silence.

    It is a head, 32 random bytes, and records: each its length, its kind in 32 bytes, parts with
    their lengths, and a hash of the record and of all before it. An append that was interrupted
    leaves a last record that runs past the end of the file, which counts as never written; any
    other difference is damage and raises.

    Parameters
    ----------
    path : path
        The file, made if there is none. Nobody else may write to it meanwhile.
    magic : bytes
        Its first 16 bytes.

    Attributes
    ----------
    nonce : bytes
        32 random bytes, the same whenever the file is opened.
    records : list of (bytes, list of bytes)
        Kinds and parts of the records that were there when it was opened.
    """

    def __init__(self, path: str | os.PathLike[str], magic: bytes = _MAGIC) -> None:
        self.path, self.records = Path(path), list[tuple[bytes, list[bytes]]]()
        make_journal(self.path, magic)
        text = self.path.read_bytes()
        start = len(magic) + _NONCE
        if len(text) < start or not text.startswith(magic):
            raise JournalError(
                f"{self.path} must be the journal of a study of this version of dpkern, got "
                f"another or a damaged file: {_CURE}"
            )
        self.nonce, self._check = text[len(magic) : start], hashlib.sha256(text[:start]).digest()
        while start + _LENGTH.size <= len(text):
            begin = start + _LENGTH.size
            end = begin + _LENGTH.unpack_from(text, start)[0]
            if end + _HASH > len(text):
                if _can_begin(text[begin:], end - begin):
                    break
                self._refuse_damage()
            check = _hash_record(self._check, text[begin:end])
            if text[end : end + _HASH] != check:
                self._refuse_damage()
            self.records.append(_parse_record(text[begin:end]))
            self._check, start = check, end + _HASH
        self._end, self._size = start, len(text)

    def _refuse_damage(self) -> NoReturn:
        number = len(self.records) + 1
        place = f"record {number}" if number > 1 else "the head or record 1"
        raise JournalError(
            f"{self.path}: {place} must be as it was written, but was edited or damaged: {_CURE}"
        )

    def append(self, kind: bytes, parts: Sequence[bytes]) -> None:
        """Append a record, which is on the disk when this returns."""
        body = kind + _LENGTH.pack(len(parts))
        body += b"".join(_LENGTH.pack(len(part)) + part for part in parts)
        check = _hash_record(self._check, body)
        record = _LENGTH.pack(len(body)) + body + check
        if self.path.stat().st_size != self._size:
            raise JournalError(
                f"{self.path} must be written to by one process alone, but another has: one "
                "of them has to end"
            )
        try:
            with open(self.path, "ab") as file:
                if self._size > self._end:  # an interrupted append has left something
                    file.truncate(self._end)
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
        finally:
            self._size = self.path.stat().st_size
        self._check, self._end = check, self._end + len(record)


def make_journal(path: str | os.PathLike[str], magic: bytes = _MAGIC) -> None:
    """Make a journal without records, unless there is a file."""
    if not os.path.exists(path):
        with suppress(FileExistsError):  # another process has been faster
            write_new(path, magic + secrets.token_bytes(_NONCE))


class RecordedStar(Star):
    """A star whose answers are in a journal before anything depends on them.

    A record's kind is the hash of the questions, and its parts are the answers.

    Parameters
    ----------
    silos : sequence of str
    connect : callable () -> Star
        Connects to the silos; called when an answer is not in the file.
    path : path
        Of the journal.

    Attributes
    ----------
    nonce : bytes
        The journal's.
    """

    def __init__(
        self, silos: Sequence[str], connect: Callable[[], Star], path: str | os.PathLike[str]
    ) -> None:
        self.silos, self._connect, self._journal = tuple(silos), connect, Journal(path)
        self._star: Star | None = None
        self._records = [record for record in self._journal.records if record[0] != _END]
        ended = [record for record in self._journal.records if record[0] == _END]
        self._confirmed = [name.decode() for _, names in ended for name in names]
        self._next, self.nonce = 0, self._journal.nonce
        for _, answers in self._records:
            if len(answers) != len(self.silos):
                raise JournalError(f"{path} is of a study with {len(answers)} silos")

    def exchange(self, messages: Sequence[bytes]) -> list[bytes]:
        asked = hashlib.sha256(b"".join(_LENGTH.pack(len(m)) + m for m in messages)).digest()
        if self._next < len(self._records):
            recorded, answers = self._records[self._next]
            if recorded != asked:
                raise JournalError(
                    f"{self._journal.path} is of another study, another plan or another version of "
                    "dpkern: go on with those, or name a new file"
                )
        else:
            if self._star is None:
                self._star = self._connect()
            answers = self._star.exchange(messages)
            self._journal.append(asked, answers)
        self._next += 1
        return answers

    def finish(self, last: bytes, silos: Sequence[str], seconds: float) -> list[str]:
        left = [name for name in silos if name not in self._confirmed]
        if left:
            if self._star is None:
                self._star = self._connect()
            if told := self._star.finish(last, left, seconds):
                self._journal.append(_END, [name.encode() for name in told])
                self._confirmed += told
        return [name for name in silos if name in self._confirmed]

    def close(self, why: str = "") -> None:
        if self._star is not None:
            self._star.close(why)


def _hash_record(before: bytes, body: bytes) -> bytes:
    """Return the hash of a record and, by the hash before it, of all of the file up to it."""
    return hashlib.sha256(before + _LENGTH.pack(len(body)) + body).digest()


def _parse_record(body: bytes) -> tuple[bytes, list[bytes]]:
    """Return the hash of the questions, and the answers that are whole."""
    answers, place = [], _HASH + _LENGTH.size
    while place + _LENGTH.size <= len(body):
        size = _LENGTH.unpack_from(body, place)[0]
        place += _LENGTH.size + size
        answers.append(body[place - size : place])
    return body[:_HASH], answers


def _can_begin(part: bytes, length: int) -> bool:
    """Return whether a record of this length can begin so; else its length is damaged.

    The answers' own lengths, as far as they are there, give the length a second time.
    """
    place = _HASH + _LENGTH.size
    if len(part) < place:
        return length >= place
    left = _LENGTH.unpack_from(part, _HASH)[0]
    while left and place + _LENGTH.size <= len(part):
        place, left = place + _LENGTH.size + _LENGTH.unpack_from(part, place)[0], left - 1
    return place + left * _LENGTH.size <= length if left else place == length


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
