"""``dpkern certificate``: the certificate of a model, for people, as a page, or signed."""

import argparse
import sys

from dpkern._files import replacing
from dpkern.cli._output import print_lines, refuse_output, remark, say_certificate
from dpkern.privacy import Certificate
from dpkern.privacy.certificate.page import page
from dpkern.privacy.certificate.serialization import json_text
from dpkern.solvers import load

HELP = "print a model's certificate, write it as a page of HTML, or sign it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("file", metavar="FILE", help="a model, or a certificate's JSON")
    add("--html", action="store_true", help="a page that answers a data-protection officer")
    what = "the certificate's JSON, signed by this Ed25519 key (PEM), for verify --signed-by"
    add("--sign", metavar="KEY", help=what)
    add("--out", metavar="FILE", help="where to write (default: standard output)")


def run(arguments: argparse.Namespace) -> None:
    """Print or write the certificate."""
    if arguments.html and arguments.sign is not None:
        raise ValueError("--html and --sign exclude each other: a page is not signed")
    if arguments.out is not None:
        refuse_output(arguments.out, arguments.file, arguments.sign)
    certificate, signer = _read(arguments.file), None
    if arguments.html:
        text = page(certificate)
    elif arguments.sign is not None:
        from dpkern.federated.keys import public_key, read_identity

        key = read_identity(arguments.sign)
        values, signer = certificate.to_dict(), public_key(key)
        signature = key.sign(f"{values['format']} {values['digest']}".encode()).hex()
        text = json_text(values | {"signature": signature})
    elif arguments.out is None:
        return say_certificate(certificate)
    else:
        text = f"{certificate}\n"
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        with replacing(arguments.out) as file:
            file.write(text.encode())
        print_lines([("certificate", arguments.out)])
    if signer is not None:
        remark(f"signed: dpkern verify FILE --signed-by {signer}")


def _read(path: str) -> Certificate:
    """Return the certificate of a file; only models are archives."""
    with open(path, "rb") as file:
        is_model = file.read(2) == b"PK"
    return load(path).privacy if is_model else Certificate.load(path)
