"""Append-only files of JSON lines that several processes write, and that survive a crash.

Every line has a check, of itself and of all lines before it, which shows edited and missing lines;
whoever edits on purpose can compute it. Rows that were read or written have it as `check`. A writer
has the file locked, by flock or, on Windows, by a locked byte far beyond its end: the operating
system unlocks the file of a process that dies. Lines are appended by one write, and are on the disk
before the writer goes on. A line that is cut off is of an append that was interrupted; the next
writer removes it.
"""

import contextlib
import errno
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

_CHECK = ', "check": "'
_LOCKED_BYTE = 1 << 40


class AppendOnlyFile:
    """A file of JSON objects, one a line, of which the first begins with {"format": `kind`."""

    def __init__(self, path: str | os.PathLike[str], kind: str) -> None:
        self.path, self._head = os.path.abspath(path), f'{{"format": {json.dumps(kind)}'.encode()
        if os.path.exists(path) and not os.path.isfile(path):
            raise ValueError(f"{path} must be a regular file")
        self._known: tuple[bytes, list[Row]] = b"", []  # complete lines that were read, and rows

    def rows(self) -> list[Row]:
        """Return all complete rows, without a lock; none where there is no file."""
        try:
            with open(self.path, "rb") as file:
                return self._parsed(file.read())[0]
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def writer(self, *, create: bool) -> Iterator["Writer"]:
        """Lock the file, and create it if that is asked for."""
        descriptor = self._locked(create)
        try:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                content = file.read()
            rows, complete = self._parsed(content)
            if complete > len(content):
                os.lseek(descriptor, 0, os.SEEK_END)
                os.write(descriptor, b"\n")
            elif len(content) > complete:  # nothing had been released by whom the line is
                self._remove_end(descriptor, complete)
            yield Writer(descriptor, rows)
            if create and not complete and os.name == "posix":  # the folder has a new entry
                folder = os.open(os.path.dirname(self.path), os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        finally:
            try:
                _unlock(descriptor)
            finally:  # Ctrl-C may come before it has unlocked
                os.close(descriptor)

    def _remove_end(self, descriptor: int, complete: int) -> None:
        try:
            os.ftruncate(descriptor, complete)
        except PermissionError as error:  # an attribute of the file allows appending alone
            raise PermissionError(
                error.errno,
                "its last line was cut off when a charge was interrupted, and has to be removed: "
                "allow that for the next charge (chattr -a)",
                self.path,
            ) from None

    def _locked(self, create: bool) -> int:
        # Only appended to, so that the file may have the attribute that allows nothing else.
        flags = os.O_RDWR | os.O_APPEND | (os.O_CREAT if create else 0)
        flags |= getattr(os, "O_BINARY", 0)
        while True:
            descriptor = os.open(self.path, flags, 0o600)
            try:
                _lock(descriptor)
                there = os.stat(self.path)
                if os.path.samestat(os.fstat(descriptor), there):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # another file has taken its place while this waited

    def _parsed(self, content: bytes) -> tuple[list[Row], int]:
        """Return the rows, and the number of bytes of complete lines.

        A last line that lacks its end alone, which editors remove, is complete: it may be the
        charge of something that was released.
        """
        if _is_whole(content[content.rfind(b"\n") + 1 :]):
            content += b"\n"
        complete = content.rfind(b"\n") + 1
        begin = content[: len(self._head)]
        if begin != self._head[: len(begin)]:
            raise ValueError(
                f"{self.path} is another kind of file: its first line is not its own; restore it "
                "from a copy if it was"
            )
        known, before = self._known
        if content[: len(known)] != known:
            known, before = b"", []
        rows, check = list(before), before[-1]["check"] if before else ""
        lines = content[len(known) : complete].split(b"\n")[:-1]
        for number, line in enumerate(lines, len(before) + 1):
            try:
                body, _, rest = line.decode().rpartition(_CHECK)
                check = _check(check, body)
                if rest != f'{check}"}}':
                    raise ValueError("the check is wrong")
                rows.append(json.loads(line))
            except (ValueError, RecursionError) as error:
                raise ValueError(
                    f"{self.path} must be as it was written: line {number} was edited or damaged, "
                    f"or a line before it is missing ({error}); restore the file from a copy"
                ) from None
        self._known = content[:complete], list(rows)
        return rows, complete


class Writer:
    """A locked file: its rows so far, to which more are appended."""

    def __init__(self, descriptor: int, rows: list[Row]) -> None:
        self.rows, self._descriptor = rows, descriptor

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows all at once; if this raises, none is there, as far as the disk obeys."""
        end = os.lseek(self._descriptor, 0, os.SEEK_END)
        check = _last_check(self._descriptor, end)
        lines, written = [], []
        for row in rows:
            body = json.dumps(row, ensure_ascii=False, allow_nan=False)[:-1]
            check = _check(check, body)
            lines.append(f'{body}{_CHECK}{check}"}}\n')
            written.append(json.loads(lines[-1]))  # as it will be read
        data = "".join(lines).encode()
        try:
            if os.write(self._descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, end)
            raise
        self.rows += written


def _is_whole(line: bytes) -> bool:
    """Return whether a line without an end has its check; that is checked like others."""
    _, found, rest = line.rpartition(_CHECK.encode())
    return bool(found) and len(rest) == len(_check("", "")) + 2 and rest.endswith(b'"}')


def _last_check(descriptor: int, end: int) -> str:
    """Return the check of the last line, the characters before its closing quote."""
    if end == 0:
        return ""
    os.lseek(descriptor, end - len(_check("", "")) - 3, os.SEEK_SET)
    return os.read(descriptor, len(_check("", ""))).decode()


def _check(before: str, body: str) -> str:
    return hashlib.sha256(f"{before}{body}".encode()).hexdigest()[:16]


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        while True:
            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    raise
                time.sleep(0.01)
        os.lseek(descriptor, 0, os.SEEK_SET)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
