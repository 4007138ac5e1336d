"""Keys of silos and certificates of the coordinator, in files that are never overwritten.

- A silo's identity signs its offers of sessions (Ed25519, RFC 8032; PEM, PKCS 8). The study has its
  public key. It does not expire: a study with another key replaces it.
- A node key is what Flower's SuperLink knows a silo by (EC P-384, OpenSSH's formats).
- The coordinator proves by a certificate that its address is its own (TLS, X.509). The key of the
  authority that has signed it is not kept, so that nobody can sign another.

Private keys are not encrypted: their files can be read by their owner alone.
"""

import base64
import datetime
import ipaddress
import os
import ssl
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from dpkern._files import write_new
from dpkern._numbers import count

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA384
except ImportError as error:
    raise ImportError(
        "silos across machines need the package cryptography: pip install 'dpkern[federated]'"
    ) from error

DAYS = 730
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_PEM, _SSH = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
_PKCS8, _PLAIN = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()

PathLike = str | os.PathLike[str]


def new_identity(path: PathLike) -> str:
    """Make a silo's identity, write its private key, and return the public one for the study.

    Raises
    ------
    OSError
        When the file exists already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    _write({Path(path): key.private_bytes(_PEM, _PKCS8, _PLAIN)})
    return public_key(key)


def public_key(identity: Ed25519PrivateKey) -> str:
    """Return the public key of an identity in base64, as `key` of a silo in study.toml."""
    return base64.b64encode(identity.public_key().public_bytes_raw()).decode("ascii")


def read_identity(path: PathLike) -> Ed25519PrivateKey:
    """Read a silo's identity.

    Raises
    ------
    ValueError
        When the file holds no such key.
    OSError
        When it cannot be read, or others than its owner could.
    """
    try:
        key = serialization.load_pem_private_key(read_private(path), None)
    except (TypeError, ValueError, UnsupportedAlgorithm):  # encrypted, or anything else
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(
            f"{path} must be an Ed25519 private key (PEM, not encrypted), such as "
            "`dpkern federation keys` makes, got another or a damaged file: copy it again; with "
            "a new key it needs a new study"
        )
    return key


def read_private(path: PathLike) -> bytes:
    """Read a private file; raise PermissionError if others than its owner could."""
    _refuse_missing(path)
    with open(path, "rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if os.name == "posix" and mode & 0o077:
            raise PermissionError(
                f"{path} must be readable by its owner alone, got mode {mode:04o}: chmod 600 it, "
                "and make a new key if others may have read it"
            )
        return file.read()


def _refuse_missing(path: PathLike) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{path}: no such file; `dpkern federation keys` makes it: name the folder of these "
            "keys, or copy it from who has made them"
        )


def read_node_key(path: PathLike) -> bytes:
    """Return a silo's private key for Flower, as PEM; errors are as those of `read_identity`."""
    try:
        key = serialization.load_ssh_private_key(read_private(path), None)
        return key.private_bytes(_PEM, _PKCS8, _PLAIN)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise _no_node_key(path) from None


def read_node_public(path: PathLike) -> bytes:
    """Return a silo's public key for Flower, as PEM.

    Raises
    ------
    ValueError
        When the file holds no such key.
    OSError
        When it cannot be read.
    """
    _refuse_missing(path)
    try:
        key = serialization.load_ssh_public_key(Path(path).read_bytes())
        return key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise _no_node_key(path) from None


def _no_node_key(path: PathLike) -> ValueError:
    return ValueError(
        f"{path} must be a node key (EC, OpenSSH), such as `dpkern federation keys` makes, got "
        "another or a damaged file: copy it again, or make new keys for this silo"
    )


def read_certificates(path: PathLike) -> bytes:
    """Return certificates in PEM, whole ones; errors are as those of `read_node_public`."""
    _refuse_missing(path)
    text = Path(path).read_bytes()
    try:
        x509.load_pem_x509_certificates(text)
        text.decode("ascii")
    except ValueError:
        raise ValueError(
            f"{path} must be certificates (PEM), such as the ca.crt that `dpkern federation keys` "
            "makes for the coordinator, got another or a damaged file: copy it again"
        ) from None
    return text


def check_key(certificate: PathLike, key: PathLike) -> None:
    """Raise ValueError unless a file has the private key of a certificate; both are PEM."""
    read_private(key)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: b"")
    except (ssl.SSLError, ValueError):
        raise ValueError(
            f"{key} must be the private key of {certificate} (PEM, not encrypted), got another or "
            "a damaged file: copy it again, or make new keys and give all silos the new ca.crt"
        ) from None


def new_node_key(path: PathLike) -> None:
    """Write a silo's key for Flower: PATH, and PATH.pub for `flwr supernode register`."""
    key, openssh = ec.generate_private_key(ec.SECP384R1()), serialization.PublicFormat.OpenSSH
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, openssh)
    files = {Path(path): key.private_bytes(_PEM, _SSH, _PLAIN)}
    _write(files, {Path(f"{os.fspath(path)}.pub"): public + b"\n"})


def new_certificates(folder: PathLike, hosts: Sequence[str], *, days: int = DAYS) -> None:
    """Write ca.crt, which every silo needs, and the coordinator's server.pem and server.key.

    Parameters
    ----------
    folder : path
    hosts : sequence of str
        Host names and IP addresses at which silos reach the coordinator, at least one.
    days : int, default=730
        Both certificates are valid so long, from an hour ago on for clocks that are behind.

    Raises
    ------
    ValueError
        When `hosts` has none.
    OSError
        When one of the files exists already, or cannot be written.
    """
    if isinstance(hosts, str) or not hosts or not all(hosts):
        raise ValueError(f"hosts must be a list of host names or IP addresses, got {hosts!r}")
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    ca, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer, subject = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        for name in ("dpkern federation", "dpkern coordinator")
    )

    def signed(
        name: x509.Name, key: ec.EllipticCurvePrivateKey, *rest: tuple[x509.ExtensionType, bool]
    ) -> bytes:
        builder = x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=start,
            not_valid_after=start + datetime.timedelta(days=count("days", days)),
        )
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        for extension, critical in ((known, False), (own, False), *rest):
            builder = builder.add_extension(extension, critical)
        return builder.sign(ca, SHA384()).public_bytes(_PEM)

    of_ca = (x509.BasicConstraints(ca=True, path_length=0), True), (_usage("key_cert_sign"), True)
    of_server = (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
    )
    pem = {"ca.crt": signed(issuer, ca, *of_ca), "server.pem": signed(subject, server, *of_server)}
    private = {Path(folder) / "server.key": server.private_bytes(_PEM, _PKCS8, _PLAIN)}
    _write(private, {Path(folder) / name: text for name, text in pem.items()})


def _usage(allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage == allowed for usage in _USAGES})


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(private: dict[Path, bytes], public: dict[Path, bytes] | None = None) -> None:
    """Write new files, all of them or none."""
    modes = dict.fromkeys(private, 0o600) | dict.fromkeys(public or {}, 0o644)
    for path in modes:
        if os.path.lexists(path):
            raise FileExistsError(f"{path} must not exist yet: keys are never overwritten")
    with ExitStack() as written:
        for path, content in (private | (public or {})).items():
            write_new(path, content, modes[path])
            written.callback(path.unlink)
        written.pop_all()
