"""Plain values of results and certificates, their standard JSON, and digests.

JSON has neither infinities nor NaN, which are encoded as {"__float__": "inf"}.
"""

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

_NOT_FINITE = "__float__"
_NAN = "a model must hold numbers to have a digest, got nan"


def plain_mapping(name: str, value: object) -> dict[str, Any]:
    """Return a copy of a mapping in plain Python values, with tuples instead of lists.

    NaN is refused, since it would break equality.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(value).__name__}")
    for key in value:
        if not isinstance(key, str) or key == _NOT_FINITE:
            raise ValueError(
                f"{name} must have strings other than {_NOT_FINITE!r} as keys, got {key!r}"
            )
    return {key: _plain(f"{name}[{key!r}]", entry) for key, entry in value.items()}


def _plain(name: str, value: object) -> Any:
    if value is None or type(value) in (bool, int, str):  # most are
        return value
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return plain_mapping(name, value)
    if isinstance(value, list | tuple):
        return tuple(_plain(name, entry) for entry in value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} must be a number, got nan")
    if isinstance(value, int | float | str):
        return value
    raise TypeError(
        f"{name} must be None, a number, a string, or a list or mapping of these, got "
        f"{type(value).__name__}"
    )


def encode(value: Any) -> Any:
    """Return a value for `json.dumps(..., allow_nan=False)` without loss, tuples as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return {_NOT_FINITE: repr(value)}
    if isinstance(value, list | tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: encode(entry) for key, entry in value.items()}
    return value


def decode(value: Any) -> Any:
    """Return the inverse of `encode`, with lists instead of tuples."""
    if isinstance(value, Mapping):
        if set(value) == {_NOT_FINITE}:
            return float(value[_NOT_FINITE])
        return {key: decode(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    return value


def with_lists(value: Any) -> Any:
    """Return what `decode` returns of an encoded value: with lists instead of tuples and arrays."""
    if type(value) in (float, str):  # most values are
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [with_lists(entry) for entry in value]
    if isinstance(value, Mapping):
        return {key: with_lists(entry) for key, entry in value.items()}
    return value


def canonical(values: Mapping[str, Any], *, spaces: bool = False) -> str:
    """Return the one JSON text of a mapping in plain values: sorted keys, and no spaces.

    Messages of federations have a space behind every comma and colon.
    """
    separators = (", ", ": ") if spaces else (",", ":")
    return json.dumps(values, sort_keys=True, separators=separators, allow_nan=False)


def digest(values: Mapping[str, Any], *, spaces: bool = False) -> str:
    """Return the SHA-256 of a mapping's canonical JSON, without an entry of that name."""
    content = {name: value for name, value in values.items() if name != "digest"}
    return f"sha256:{hashlib.sha256(canonical(content, spaces=spaces).encode()).hexdigest()}"


def model_digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of plain values and arrays, in one form for equal numbers.

    Numbers are float64, little-endian, -0.0 as 0.0; integers that float64 does not hold are text.

    Raises
    ------
    ValueError
        When a number is NaN.
    """
    content = bytearray()
    _add(content, values)
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _add(to: bytearray, value: Any) -> None:
    """Add the bytes of a value: its kind, the length of what has one, and the content."""
    if type(value) is float:  # most values are
        _add_number(to, value)
    elif value is None or isinstance(value, bool):
        to += {None: b"n", False: b"f", True: b"t"}[value]
    elif isinstance(value, str | bytes):
        kind, text = b"b", value
        if isinstance(text, str):
            kind, text = b"s", text.encode(errors="surrogatepass")
        to += kind + _length(text) + text
    elif isinstance(value, np.ndarray):
        numbers = value.astype("<f8") + 0.0
        if np.isnan(numbers).any():
            raise ValueError(_NAN)
        to += b"a" + _length(numbers.ravel()) + numbers.tobytes()
    elif isinstance(value, list | tuple):
        to += b"l" + _length(value)
        for entry in value:
            _add(to, entry)
    elif isinstance(value, Mapping):
        to += b"m" + _length(value)
        for name in sorted(value):
            _add(to, name)
            _add(to, value[name])
    elif isinstance(value, int) and (abs(value) > 2**1000 or int(float(value)) != value):
        to += b"i"
        _add(to, str(value))
    else:
        _add_number(to, float(value))


def _add_number(to: bytearray, number: float) -> None:
    if math.isnan(number):
        raise ValueError(_NAN)
    to += b"d" + struct.pack("<d", number + 0.0)


def _length(value: Any) -> bytes:
    return struct.pack("<Q", len(value))
