"""What a silo keeps so that, killed and started again, it goes on where it was.

The journal holds, sealed to the silo's identity, the secrets of the session, and every message of
the coordinator and every answer to it, each on the disk before anything depends on it: a message
before it is used, an answer before it is sent. A silo that was restarted runs the solver again on
these messages and sends an answer that it has recorded, or the first one after them.

- An answer that may have been sent is in the journal, and only that one is sent in its place. The
  run has to compute the same bytes again, or it ends: arguments are as they were.
- The secrets are sealed to the records too: with others they are not opened, even if the file were
  an older copy that lacks an answer, which other records would change and the noise would not.
- Noise is drawn from a key of the journal which every message of the coordinator changes. Thus the
  same messages have the same noise, and others have noise that is independent of it, even if the
  file were an older copy: no noise and no mask serves two answers.
- The charge of the ledger is the one that was made before the first release: its line, with the
  check of all lines before it. Another ledger, or an older copy, is refused; a run that is settled
  there sends nothing more.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpkern.federated.journal import Journal, JournalError, make_journal
from dpkern.federated.links import Link
from dpkern.federated.masking import digest
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAGIC = b"dpkern silo's  2"
_HELLO = b'{"dpkern": '  # of keys and signatures, which are random, none begins so
_SECRETS, _HEARD, _SAID, _CHARGED = (
    kind.ljust(32, b"\0") for kind in (b"secrets", b"heard", b"said", b"charged")
)


class SiloJournal(AbstractContextManager["SiloJournal"]):
    """A silo's journal of one study, locked while it is open.

    Parameters
    ----------
    path : path
        Made if there is no file.
    identity : Ed25519PrivateKey
        The silo's own, to which the secrets are sealed.
    about : bytes
        Digest of the study, the silo's name and its records.
    statement : bytes
        What the offer of a new journal states of the ledger.

    Attributes
    ----------
    ephemeral : X25519PrivateKey
        The session's.
    stream : NoiseStream
        The session's noise.
    statement : bytes
        What the session's offer states of the ledger.
    charge : bytes
        The line of the run's charge in the ledger, as a statement; empty before it.
    heard, said : list of bytes
        Messages of the coordinator, and answers, that were there when it was opened.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        identity: "Ed25519PrivateKey",
        about: bytes,
        statement: bytes,
    ) -> None:
        import fcntl  # Unix alone has it

        make_journal(path, _MAGIC)
        self._lock = open(path, "rb")  # noqa: SIM115, held until it is closed
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Not before: the process that had the lock may have appended to it.
            self._journal = journal = Journal(path, _MAGIC)
            hkdf = HKDF(SHA256(), 32, salt=journal.nonce, info=digest("silo's journal", about))
            cipher = ChaCha20Poly1305(hkdf.derive(identity.private_bytes_raw()))
            if not journal.records:
                unique = secrets.token_bytes(12)
                sealed = cipher.encrypt(unique, secrets.token_bytes(64), statement)
                journal.append(_SECRETS, [sealed, statement, unique])
                journal.records.append((_SECRETS, [sealed, statement, unique]))
            sealed, self.statement, unique = journal.records[0][1]
            opened = cipher.decrypt(unique, sealed, self.statement)
        except BaseException as error:
            self._lock.close()
            if isinstance(error, BlockingIOError):
                why = f"{path}: another process takes part with this journal"
            elif isinstance(error, InvalidTag):
                why = (
                    f"{path} is the journal of another silo, study or identity, or the records are "
                    "not as they were: give those back, or name a new file for another study"
                )
            else:
                raise
            raise JournalError(why) from None
        self.ephemeral = X25519PrivateKey.from_private_bytes(opened[:32])
        self.stream = NoiseStream.of_key(opened[32:])
        self.heard, self.said = self._parts(_HEARD), self._parts(_SAID)
        self.charge = (self._parts(_CHARGED) or [b""])[-1]

    def _parts(self, kind: bytes) -> list[bytes]:
        return [parts[0] for found, parts in self._journal.records if found == kind]

    def __exit__(self, *_: object) -> None:
        self.stream.wipe()
        self._lock.close()

    def add_charge(self, line: bytes) -> None:
        """Record the line of the run's charge."""
        self._journal.append(_CHARGED, [line])

    def add_heard(self, message: bytes) -> None:
        """Record a message of the coordinator, before it is used."""
        self._journal.append(_HEARD, [message])

    def add_said(self, answer: bytes) -> None:
        """Record an answer, before it is sent."""
        self._journal.append(_SAID, [answer])


class RecordedLink(Link):
    """A link whose messages and answers are in a journal, and are taken from it after a restart.

    `is_settled` tells whether the ledger has the whole run, which then sends nothing;
    `is_connected` whether the coordinator was asked for anything that the journal has not.
    """

    def __init__(self, link: Link, journal: SiloJournal, is_settled: Callable[[], bool]) -> None:
        self._link, self._journal, self._is_settled = link, journal, is_settled
        self._place, self.is_connected = 0, False  # messages that the run has

    def exchange(self, answer: bytes | None) -> bytes:
        journal, place = self._journal, self._place
        if answer is not None and place > len(journal.said):
            journal.add_said(answer)
        elif answer is not None and journal.said[place - 1] != answer:
            raise JournalError(
                "the run must compute what it has sent before the restart, got another answer: the "
                "records, an argument or dpkern are not as they were; nothing was sent"
            )
        if place < len(journal.heard):
            message = journal.heard[place]
        else:
            message = self._next(answer)
            journal.add_heard(message)
        self._place += 1
        journal.stream.ratchet(message)
        return message

    def _next(self, answer: bytes | None) -> bytes:
        """Return the coordinator's next message."""
        journal, is_connected = self._journal, self.is_connected
        self.is_connected = True
        if is_connected or answer is None:
            return self._link.exchange(answer)
        if self._is_settled():
            raise JournalError(
                "the ledger has the whole run, but the journal is an older copy: the model is with "
                "the others, and another study needs a new file"
            )
        message, answers = self._link.exchange(None), [*journal.said, answer]
        while message in journal.heard:  # asked again
            message = self._link.exchange(answers[journal.heard.index(message)])
        if message.startswith(_HELLO):
            raise JournalError(
                "the coordinator begins another study than that of the journal: name a new file"
            )
        return message

    def close(self, error: str | None = None) -> None:
        self._link.close(error)
