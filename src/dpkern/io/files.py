"""Files that appear whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path` that takes its place when the block ends without error.

    Raises
    ------
    OSError
        When the folder cannot be written to. `path` is as it was then, as after any other error.
    """
    path = Path(path)
    # Not tempfile, whose files only their owner may read.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Find out that `path` cannot be written before any work, or budget, is spent on it.

    Raises
    ------
    OSError
        When its folder is not there or not writable, or `path` is a folder itself.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; it must be a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path}: the folder {path.parent} cannot be written to")
