"""The digest of a model file, computed from what the file holds, for `dpkern verify`.

Nothing of what writes models is imported (`dpkern.verification`). The digest is the SHA-256 of all
that predicts: the mapping of the entries in `HEADER`, and of the arrays, to bytes. None, false and
true are n, f and t; a text is s, the number of its bytes and its UTF-8; bytes are b, their number
and they; a number is d and its float64, or i and its text where float64 does not hold it; an array
is a, its number of numbers and these; a list is l, its length and its entries; a mapping is m, its
length, and its names in sorted order, each before its entry. Lengths are 64 bits; all is
little-endian, and -0.0 is 0.0.
"""

import hashlib
import io
import math
import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpkern.verification.checks import TAKEN, Check
from dpkern.verification.declared_solvers import LEVEL, RESIDUALS, TEMPERATURE

#: What of a model's header predicts.
HEADER = ("intercept", "transform", "loss", "oracle", "feature_names", "schema", "calibration")
_SHORT = 19  # characters of a digest that are shown


def read_model(
    path: str | os.PathLike[str], parse: Callable[[str], Any]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the header of a model, which an .npz archive holds as it is, and its arrays.

    Raises
    ------
    ValueError
        When the file is no model.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            held, most = archive.namelist(), os.path.getsize(path)
            names = [name for name in ("header", "coef", "classes") if f"{name}.npy" in held]
            arrays = {name: _array(archive, f"{name}.npy", most) for name in names}
        header: Mapping[str, Any] = parse(str(arrays.pop("header")))
        coef = arrays["coef"]
        if not {"privacy", *HEADER} <= header.keys() or (coef.ndim, coef.dtype.str) != (1, "<f8"):
            raise ValueError("an entry or an array is missing or of another kind")
    except Exception as error:  # of zipfile, and of Python's own parser for headers
        raise ValueError(f"{path} is no dpkern model") from error
    return header, arrays


def _array(archive: zipfile.ZipFile, name: str, most: int) -> Any:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > most:
        raise ValueError(f"{name} must be stored as it is")
    return np.lib.format.read_array(io.BytesIO(archive.read(info)), allow_pickle=False)


def predicting(header: Mapping[str, Any], arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a model file that predictions follow from; infinities are floats."""
    classes = arrays.get("classes")
    return {
        **{name: header[name] for name in HEADER},
        "coef": arrays["coef"],
        "classes": None if classes is None else classes.tolist(),
    }


def digest(model: Mapping[str, Any]) -> str:
    """Return the digest; raise ValueError where a number is NaN."""
    return f"sha256:{hashlib.sha256(_content(model)).hexdigest()}"


def _content(value: Any) -> bytes:
    match value:
        case None:
            return b"n"
        case bool():
            return b"t" if value else b"f"
        case str():
            text = value.encode(errors="surrogatepass")
            return _counted(b"s", text, text)
        case bytes():
            return _counted(b"b", value, value)
        case np.ndarray():
            return _counted(b"a", value, b"".join(map(_number, value.tolist())))
        case dict():
            pairs = ((_content(name), _content(value[name])) for name in sorted(value))
            return _counted(b"m", value, b"".join(a + b for a, b in pairs))
        case list():
            return _counted(b"l", value, b"".join(map(_content, value)))
        case int() if abs(value) > 2**53 and not _is_exact(value):
            return b"i" + _content(str(value))
        case _:
            return b"d" + _number(value)


def _counted(kind: bytes, entries: Any, content: bytes) -> bytes:
    return kind + len(entries).to_bytes(8, "little") + content


def _number(value: float) -> bytes:
    if math.isnan(value):
        raise ValueError("a model that holds nan has no digest")
    return struct.pack("<d", value if value != 0.0 else 0.0)


def _is_exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def compare(certificates: Sequence[Mapping[str, Any]], model: Mapping[str, Any]) -> list[Check]:
    """Compare a model with the certificates that name it, its line to log odds too."""
    runs = [run for certificate in certificates for run in _runs(certificate)]
    stated = _named(runs)
    try:
        computed = digest(model)
    except ValueError:
        computed = "nan"
    named = [run for run in runs if run.get("model") == computed]
    shown = computed if named else next(iter(stated), "none")
    more = f" or {len(stated) - 1} others" if len(stated) > 1 and not named else ""
    checks = [Check("model", shown[:_SHORT] + more, computed[:_SHORT], bool(named))]
    others = {"evaluated", "described", "edges", "concordance"}
    fits = [run for run in named or runs if not others & set(run["declared"])]
    if model["calibration"] is not None and fits:
        line = model["calibration"]
        last = RESIDUALS
        if isinstance(line, Mapping) and "temperature" in line:
            last = TEMPERATURE
            if line.get("slope_error") == 0.0:  # of public numbers
                own, public = line["temperature"], fits[0]["declared"].get("temperature")
                return [*checks, Check("temperature", str(public), str(own), public == own)]
        if isinstance(line, Mapping) and "level" in line:
            last = LEVEL
            if line["level"] == 0.0:  # which says nothing of records
                return checks
        is_released = any(r["what"] == last for run in fits for r in run["releases"])
        stated_line = "released" if is_released else "not released"
        checks.append(Check("calibration", stated_line, "in the model", is_released))
    return checks


def take_as_stated(certificates: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Return a line for each model that is named, with which nothing is compared."""
    stated = _named([run for certificate in certificates for run in _runs(certificate)])
    return [Check("model", digest[:_SHORT], TAKEN, True) for digest in dict.fromkeys(stated)]


def _named(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    return [str(run["model"]) for run in runs if run.get("model") is not None]


def _runs(certificate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the certificates of the single runs that one is of."""
    if "parts" not in certificate:
        return [certificate]
    return [run for part in certificate["parts"] for run in _runs(part)]
