"""The JSON form of a certificate, its version and its digest.

    format, version, package     what this is, and what made it
    guarantee                    kind ("law") and parameters; mu, rho, epsilon, delta as stated
    unit, group_size, neighbours, trust, trust_of_runs, adversary
    noise, n_draws, arithmetic
    releases                     of one run; for several, composition and parts in their place
    declared, claimed, notes     what is taken as public, what a paper claims, and assumptions
    model, started               SHA-256 of what predicts, and when the run began
    names, sources               what people call it, and where declared bounds are from
    digest                       SHA-256 of all else, with sorted keys and no spaces
    signature                    Ed25519, in hexadecimal, of format, space, digest, if it is signed

Everything but the figures and the adversary, which follow from the rest, is read again. Parts have
the same form without format, version and digest. Numbers that are not finite are
{"__float__": "inf"}; lists stand for tuples.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpkern._files import refuse_unwritable, replacing
from dpkern._json import decode, digest, encode
from dpkern.privacy.certificate.ledger import Release
from dpkern.privacy.guarantees.base import GUARANTEES

if TYPE_CHECKING:
    from dpkern.privacy.certificate.certificate import Certificate

FORMAT, VERSION = "dpkern certificate", 2

#: The deltas at which epsilon is stated beside that of the certificate.
STANDARD_DELTAS = (1e-5, 1e-6, 1e-8)

_ENVELOPE = ("format", "version", "digest", "signature")
_PLAIN = (
    *("unit", "group_size", "neighbours", "trust", "trust_of_runs", "adversary"),
    *("noise", "n_draws", "arithmetic"),
)
_LAST = ("declared", "claimed", "notes", "model", "started", "names", "sources")


def to_mapping(certificate: "Certificate") -> dict[str, Any]:
    """Return the JSON form of a certificate."""
    values = {"format": FORMAT, "version": VERSION, **_content(certificate)}
    return {**values, "digest": digest(values)}


def _content(certificate: "Certificate") -> dict[str, Any]:
    c = certificate
    values: dict[str, Any] = {"package": c.package, "guarantee": _guarantee(c)}
    values |= {name: getattr(c, name) for name in _PLAIN}
    if c.parts:
        values |= {"composition": c.composition, "parts": [_content(part) for part in c.parts]}
    else:
        values["releases"] = [release.to_dict() for release in c.releases]
    values |= {name: getattr(c, name) for name in _LAST}
    encoded: dict[str, Any] = encode(values)
    return encoded


def _guarantee(certificate: "Certificate") -> dict[str, Any]:
    c = certificate
    deltas = sorted({c.stated_delta or 1e-6, *STANDARD_DELTAS}, reverse=True)
    return {
        "law": {"name": c.guarantee.name, **asdict(c.guarantee)},
        "bound": c.bound,
        "amplified": c.amplified,
        "at_delta": c.at_delta,
        "mu": c.mu,
        "rho": c.rho,
        "epsilon": [{"delta": delta, "epsilon": c.epsilon(delta)} for delta in deltas],
        "delta": [{"epsilon": 1.0, "delta": c.delta(1.0)}],
    }


def json_text(values: Mapping[str, Any]) -> str:
    """Return a mapping as JSON, indented, with lists of numbers or names on one line."""
    text = json.dumps(values, indent=1, allow_nan=False)
    # A line break is in no string of JSON, so that these brackets are those of lists.
    text = re.sub(
        r"\[\n\s+([^\[\]{}]*?)\n\s*\]",
        lambda found: f"[{', '.join(line.strip().rstrip(',') for line in found[1].splitlines())}]",
        text,
    )
    return f"{text}\n"


def write_json(values: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a mapping atomically, as `json_text` has it."""
    refuse_unwritable(path)
    with replacing(path) as file:
        file.write(json_text(values).encode())


def from_mapping(kind: type["Certificate"], values: Mapping[str, Any]) -> "Certificate":
    """Return the certificate of a JSON form.

    Raises
    ------
    ValueError
        When it is none, of another version, damaged, or its digest is of other contents.
    """
    if not isinstance(values, Mapping) or values.get("format") != FORMAT:
        raise ValueError(f"values must be a certificate, with the format {FORMAT!r}")
    if values.get("version") != VERSION:
        raise ValueError(
            f"version must be {VERSION}, the one that this release of dpkern reads, got "
            f"{values.get('version')!r}"
        )
    signed = {name: value for name, value in values.items() if name != "signature"}
    if values.get("digest") != digest(signed):
        raise ValueError("digest must be that of the certificate, got another: it has been edited")
    return _decoded(kind, {k: v for k, v in values.items() if k not in _ENVELOPE})


def read_json(kind: type["Certificate"], path: str | os.PathLike[str]) -> "Certificate":
    """Return the certificate of a file; errors as `Certificate.load` says."""
    try:
        return from_mapping(kind, json.loads(Path(path).read_bytes()))
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not a dpkern certificate (no JSON text)") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: not a dpkern certificate ({error})") from error


def _decoded(kind: type["Certificate"], values: Mapping[str, Any]) -> "Certificate":
    held = ("composition", "parts") if "parts" in values else ("releases",)
    names = {"package", "guarantee", *_PLAIN, *held, *_LAST}
    if set(values) != names:
        raise ValueError(
            f"values must hold the fields of a certificate, got missing fields "
            f"{sorted(names - set(values))} and unknown fields {sorted(set(values) - names)}"
        )
    fields: dict[str, Any] = {
        name: decode(values[name])
        for name in names - {"guarantee", "adversary", "releases", "parts"}
    }
    stated = decode(values["guarantee"])
    of = dict(stated["law"])
    if of.get("name") not in GUARANTEES:
        kinds = " or ".join(map(repr, sorted(GUARANTEES)))
        raise ValueError(f"law must be {kinds}, got {of.get('name')!r}")
    fields["guarantee"] = GUARANTEES[of.pop("name")](**of)
    fields |= {name: stated[name] for name in ("bound", "amplified", "at_delta")}
    if "parts" in values:
        fields["parts"] = tuple(_decoded(kind, part) for part in values["parts"])
    else:
        fields["releases"] = tuple(map(Release.from_dict, values["releases"]))
    return kind(**fields)
