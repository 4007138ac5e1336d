"""Ed25519 signatures of certificates, for `dpkern verify --signed-by`."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpkern.verification.checks import Check


@dataclass(frozen=True)
class Signer:
    """Whose signature is expected: a public key, and what shows of it."""

    key: Any
    name: str

    def check(self, values: Mapping[str, Any]) -> Check:
        """Compare the signature with the digest, which is compared with the content elsewhere."""
        from cryptography.exceptions import InvalidSignature

        signature = values.get("signature")
        if signature is None:
            return Check("signature", "none", self.name, False)
        try:
            signed = f"{values['format']} {values.get('digest')}"
            self.key.verify(bytes.fromhex(signature), signed.encode())
        except (InvalidSignature, TypeError, ValueError):
            return Check("signature", "another's", self.name, False)
        return Check("signature", self.name, self.name, True)


def read_key(text: str) -> Signer:
    """Return the signer of a public key in base64; raise ValueError for what is none."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "signatures are verified by cryptography, which is not installed: "
            "pip install 'dpkern[federated]'"
        ) from error
    try:
        return Signer(Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True)),
                      f"{text[:16]}...")  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ValueError(
            "signed_by must be an Ed25519 public key, the 44 characters of base64 that "
            f"`dpkern certificate --sign` prints, got {text!r}"
        ) from error
