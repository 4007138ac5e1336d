"""Atomic writing of files."""

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without error.

    Raises
    ------
    OSError
        When `path` exists and is no regular file, at the start or at the end of the block, or its
        folder is not writable. `path` is unchanged then, as after any other error.
    ValueError
        When `path` is "-".
    """
    _refuse_all_but_regular(path)
    path = Path(path)
    # Not tempfile, whose files are readable by their owner only.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _refuse_all_but_regular(path)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_new(path: str | os.PathLike[str], content: bytes, mode: int = 0o600) -> None:
    """Write a new file, which appears when it is whole; raise FileExistsError if there is one."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike renaming, this fails if there is a file by now
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Raise what `replacing` would raise for `path`, before any work or budget is spent."""
    _refuse_all_but_regular(path)
    folder = Path(path).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{path}: the folder {folder} cannot be written to")


def _refuse_all_but_regular(path: str | os.PathLike[str]) -> None:
    if os.fspath(path) == "-":
        raise ValueError("path must be a file to write, got '-', which does not stand for a stream")
    try:
        mode = os.lstat(Path(path)).st_mode  # Path("") is the folder "."
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO"}
        kinds |= {stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFSOCK: "socket"}
        kind = kinds.get(stat.S_IFMT(mode), "special file")
        error = IsADirectoryError if stat.S_ISDIR(mode) else FileExistsError
        raise error(f"{path} must be a regular file, or not be there, got a {kind}")
