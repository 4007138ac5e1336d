"""Atomic writing of files, and opening of data files, plain or compressed."""

import bz2
import gzip
import lzma
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

_IN_PYTHON = "dpkern.read_parquet reads it in Python (docs/blocks.md)"
# How files of other kinds begin, and what makes text of them.
_BEGINS = {
    b"PK": "it is an Excel workbook or a ZIP archive: save the sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "it is an Excel workbook: save the sheet as CSV (UTF-8)",
    b"\x1f\x8b": "it is gzip's: let its name end with .gz",
    b"BZh": "it is bzip2's: let its name end with .bz2",
    b"\xfd7zXZ": "it is xz's: let its name end with .xz",
    b"PAR1": f"it is Parquet: {_IN_PYTHON}",
    b"\xff\xfe": "it is UTF-16: save it as CSV UTF-8",
    b"\xfe\xff": "it is UTF-16: save it as CSV UTF-8",
}
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


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


def refuse_folder(path: Path) -> None:
    """Raise IsADirectoryError for a folder, and FileNotFoundError where there is nothing."""
    if stat.S_ISDIR(path.stat().st_mode):
        raise IsADirectoryError(f"{path} must be a file, got a folder: {_IN_PYTHON}")


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open the decompressed bytes; errors of a damaged archive become ValueError."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        raise ValueError(f"{path} must be plain, .gz, .bz2 or .xz, got .zip")
    opener = OPENERS.get(suffix, open)
    refuse_folder(path)
    try:
        with cast(BinaryIO, opener(path, "rb")) as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # an error of the operating system
            raise
        raise ValueError(f"{path} is damaged or not a {suffix} file") from error


def other_format(path: Path) -> str:
    """Return what a file that is no UTF-8 text holds, by its first bytes, and the cure."""
    with opened(path) as stream:
        begin = stream.read(8)
    found = (format_ for bytes_, format_ in _BEGINS.items() if begin.startswith(bytes_))
    return next(found, "in Latin-1, say: save it as CSV UTF-8")
