"""Verification of certificates: figures recomputed from the releases alone.

Nothing of the ledger, the certificate and the guarantees is imported: the JSON form is read as
plain numbers, and figures are recomputed by mpmath and dp-accounting (`recomputation`). A
certificate that states less than what is recomputed is refused, and so is one that states more than
dpkern would, in the last digits for Gaussian DP.

Releases are compared with those of a run that declares the same (`declared_solvers`).
What no arithmetic can tell is whether they were made, and whether noise was drawn from the
operating system: only the digest notices that such an entry was edited, and whoever edits
can compute a digest. It guards against carelessness, not against forgery.
"""

import hashlib
import json
import os
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpkern.verification.checks import ALWAYS, TAKEN, Check, Verifier
from dpkern.verification.models import compare, predicting, read_model, take_as_stated
from dpkern.verification.recomputation import DIGITS, multiprecision
from dpkern.verification.signatures import Signer, read_key

FORMAT, VERSION = "dpkern certificate", 2
# mpmath's precision, and its tables of constants, are those of the process.
_one_at_a_time = threading.Lock()
# What numbers of another kind or size than a certificate's raise, in dp-accounting too.
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError)


@dataclass(frozen=True)
class Verification:
    """The checks of one file; true if all agree. Printed as a table."""

    name: str
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every stated figure follows from the releases."""
        return all(check.ok for check in self.checks)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        told = [c for c in self.checks if not c.ok or not c.what.startswith("part ")]
        shown = [c for c in told if c.recomputed != TAKEN]
        rows = [("", "stated", "recomputed", "")]
        rows += [(c.what, c.stated, c.recomputed, "ok" if c.ok else "MISMATCH") for c in shown]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            "  " + "  ".join([*(f"{row[i]:<{widths[i]}}" for i in range(3)), row[3]]).rstrip()
            for row in rows
        ]
        wrong = sum(not check.ok for check in self.checks)
        end = "every figure follows from the releases"
        if wrong:
            end = f"MISMATCH in {wrong} of {len(self.checks)} checks: do not rely on it"
        taken = dict.fromkeys(
            c.stated if c.what.endswith(ALWAYS) else f"{c.what}: {c.stated}"
            for c in self.checks
            if c.recomputed == TAKEN
        )
        text = f"{TAKEN}: {'; '.join(taken)}"
        more = textwrap.wrap(text, 88, initial_indent="  ", subsequent_indent="  ") if taken else []
        within = sum(c.recomputed != TAKEN for c in self.checks) - len(shown)
        more += [f"  {within} checks of the parts agree"] if within else []
        return "\n".join([self.name, *lines, *more, end])


def verify(
    source: str | os.PathLike[str] | Mapping[str, Any],
    model: str | os.PathLike[str] | None = None,
    *,
    signed_by: str | None = None,
) -> Verification:
    """Recompute the figures of a certificate from its releases alone, and the digest of a model.

    Parameters
    ----------
    source : path or mapping
        A certificate's JSON file, a model file, a file of JSON lines with a "certificate" each, or
        what `Certificate.to_dict` returns.
    model : path, optional
        The model file that the certificate must name; one that is the source is compared too.
    signed_by : str, optional
        The Ed25519 public key, in base64, of whom every certificate must be signed by.

    Returns
    -------
    Verification
        All checks; `ok`, and the truth value, tell whether all agree.

    Raises
    ------
    ValueError
        When the source or the model is none of these, or the certificate is of a version that this
        release does not know.
    ModuleNotFoundError
        Without mpmath, or dp-accounting where samples are secret: `pip install 'dpkern[verify]'`;
        without cryptography for a signature: `pip install 'dpkern[federated]'`.

    Notes
    -----
    No record is read and nothing is released. The releases must be those that follow from what the
    run declares, which is taken as public; what nothing is compared with is "taken as stated".
    """
    models = [] if model is None else [_model(model)[1]]
    if isinstance(source, Mapping):
        name, certificates = "certificate", [source]
    elif isinstance(source, str | os.PathLike):
        name = os.path.basename(os.fspath(source))
        certificates, held = _read(source)
        models = held + models
    else:
        raise TypeError(
            "source must be a path or a mapping such as result.privacy.to_dict(), got "
            f"{type(source).__name__}"
        )
    signer = None if signed_by is None else read_key(signed_by)
    found = [verify_certificate(values, name, signer) for values in certificates]
    of_models = [check for values in models for check in compare(certificates, values)]
    of_models = of_models or take_as_stated(certificates)
    if len(found) == 1:
        return Verification(found[0].name, (*found[0].checks, *of_models))
    checks = [
        Check(f"{i}: {check.what}", check.stated, check.recomputed, check.ok)
        for i, one in enumerate(found, 1)
        for check in one.checks
    ]
    return Verification(f"{name}: {len(found)} certificates", (*checks, *of_models))


def verify_certificate(
    values: Mapping[str, Any], name: str = "certificate", signer: Signer | None = None
) -> Verification:
    """Recompute the figures of one certificate in the form of `Certificate.to_dict`.

    Parameters, result and errors are those of `verify`; `signer` is of `read_key`.
    """
    if values.get("format") != FORMAT or "guarantee" not in values:
        raise ValueError(f"{name} is no certificate: its format is not {FORMAT!r}")
    if values.get("version") != VERSION:
        raise ValueError(
            f"{name} has version {values.get('version')!r} of the format, and this release of "
            f"dpkern verifies version {VERSION}"
        )
    content = {key: value for key, value in values.items() if key not in ("digest", "signature")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    found = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    stated = str(values.get("digest"))
    checks = [Check("digest", stated[:19], found[:19], stated == found)]
    if signer is not None:
        checks.append(signer.check(values))
    elif "signature" in values:
        checks.append(Check("signature", "of an unknown key", TAKEN, True))
    try:
        plain = _numbers(content)
        with _one_at_a_time, multiprecision().workdps(DIGITS):
            checks += Verifier(plain).checks()
    except _DAMAGED as error:
        raise ValueError(f"{name} is damaged: {type(error).__name__} {error}") from error
    made = f"{name}, made by {plain['package']}"
    return Verification(made, tuple(checks))


def _read(
    path: str | os.PathLike[str],
) -> tuple[list[Mapping[str, Any]], list[dict[str, Any]]]:
    """Return the certificates of a file, and its model if it is one."""
    with open(path, "rb") as file:
        content = file.read()
    if content[:2] == b"PK":
        certificate, model = _model(path)
        return [certificate], [model]
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is neither JSON nor a dpkern model") from error
    try:
        found = [_json(text)]
    except json.JSONDecodeError as whole:
        try:
            found = [_json(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError as error:
            said = error if whole.msg == "Extra data" else whole
            raise ValueError(f"{path} is not JSON ({said})") from error
    if any(not isinstance(values, Mapping) for values in found):
        raise ValueError(f"{path} holds no certificate, but JSON of another kind")
    if len(found) != 1 or "certificate" in found[0]:
        found = [values["certificate"] for values in found if values.get("certificate")]
    if not found:
        raise ValueError(f"{path} holds no certificate")
    return found, []


def _json(text: str) -> Any:
    """Return JSON; of a key that is there twice a reader would see the first, a parser the last."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise json.JSONDecodeError("a key is there twice", text, 0)
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", text, 0) from None


def _model(path: str | os.PathLike[str]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the certificate of a model file, and what the model predicts by."""
    header, arrays = read_model(path, _json)
    return header["privacy"], predicting(_numbers(header), arrays)


def _numbers(value: Any) -> Any:
    """Return JSON with the encoded infinities as floats."""
    if isinstance(value, Mapping):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _numbers(entry) for key, entry in value.items()}
    return [_numbers(entry) for entry in value] if isinstance(value, list) else value
