"""What a certificate is of: its model, its maker, the start of the run, its names and bounds.

The digest of a model is a function of what is released, of which the guarantee speaks, and of
public numbers. Nothing here is computed from the records or from the file that they are in.
"""

import functools
import hashlib
import importlib.metadata
import math
import re
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from dpkern._json import plain_mapping
from dpkern._numbers import refuse_unknown

#: What people may call a run, as they are printed.
NAMES = ("data", "study", "purpose", "controller")
#: Where a declared bound is from, as long as nobody says it.
NOT_STATED = "not stated"
READ = "read from the records: not covered"

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@functools.cache
def package() -> str:
    """Return the name and the version of this package."""
    return f"dpkern {importlib.metadata.version('dpkern')}"


def start_time() -> str:
    """Return the time in whole seconds, UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def model_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values and arrays, in one form for equal numbers.

    Numbers are float64, little-endian, -0.0 as 0.0; integers that float64 does not hold are text.

    Raises
    ------
    ValueError
        When a number is NaN.
    """
    content = hashlib.sha256()
    for part in _parts(values):
        content.update(part)
    return f"sha256:{content.hexdigest()}"


def _parts(value: Any) -> Iterator[bytes]:
    """Return the bytes of a value: its kind, the length of what has one, and the content."""
    if value is None or isinstance(value, bool):
        yield {None: b"n", False: b"f", True: b"t"}[value]
    elif isinstance(value, str | bytes):
        kind, text = b"b", value
        if isinstance(text, str):
            kind, text = b"s", text.encode(errors="surrogatepass")
        yield kind + _length(text) + text
    elif isinstance(value, np.ndarray):
        numbers = value.astype("<f8") + 0.0
        if np.isnan(numbers).any():
            raise ValueError("a model must hold numbers to have a digest, got nan")
        yield b"a" + _length(numbers.ravel()) + numbers.tobytes()
    elif isinstance(value, Mapping):
        yield b"m" + _length(value)
        for name in sorted(value):
            yield from _parts(name)
            yield from _parts(value[name])
    elif isinstance(value, list | tuple):
        yield b"l" + _length(value)
        for entry in value:
            yield from _parts(entry)
    elif isinstance(value, int) and (abs(value) > 2**1000 or int(float(value)) != value):
        yield from (b"i", *_parts(str(value)))
    else:
        number = float(value) + 0.0
        if math.isnan(number):
            raise ValueError("a model must hold numbers to have a digest, got nan")
        yield b"d" + struct.pack("<d", number)


def _length(value: Any) -> bytes:
    return struct.pack("<Q", len(value))


def checked_model(model: object) -> None:
    """Raise ValueError unless this is a digest, or None."""
    if model is not None and not (isinstance(model, str) and _DIGEST.fullmatch(model)):
        raise ValueError(f"model must be 'sha256:' and 64 hexadecimal digits, got {model!r}")


def checked_start(started: object) -> None:
    """Raise ValueError unless this is a time in whole seconds, UTC, or None."""
    if started is not None and not (isinstance(started, str) and _TIME.fullmatch(started)):
        raise ValueError(f"started must be a time such as '2026-11-27T09:30:00Z', got {started!r}")


def checked_texts(name: str, texts: object, known: Iterable[str] | None = None) -> dict[str, str]:
    """Return a mapping of texts that a line can hold; of `known` names alone if these are given."""
    found = plain_mapping(name, texts)
    if known is not None:
        refuse_unknown(name, found, tuple(known))
    for key, entry in found.items():
        if not isinstance(entry, str) or not entry.strip() or not entry.isprintable():
            raise ValueError(f"{key} must be a text of one line, not empty, got {entry!r}")
    return found


def merged_texts(several: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the texts of several runs, with those that differ one after another."""
    texts: dict[str, dict[str, None]] = {}
    for one in several:
        for name, entry in one.items():
            texts.setdefault(name, {})[entry] = None
    return {name: "; ".join(entries) for name, entries in texts.items()}
