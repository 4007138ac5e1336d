"""Opening of data files, plain or compressed."""

import bz2
import gzip
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
