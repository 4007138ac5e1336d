"""Opening of data files, plain or compressed."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open the decompressed bytes; errors of a damaged archive become ValueError."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        raise ValueError(f"{path} must be plain, .gz, .bz2 or .xz, got .zip")
    opener = OPENERS.get(suffix, open)
    path.stat()  # raises FileNotFoundError
    try:
        with cast(BinaryIO, opener(path, "rb")) as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # an error of the operating system
            raise
        raise ValueError(f"{path} is damaged or not a {suffix} file") from error
