"""``dpkern verify``: the figures of a certificate, recomputed from its releases."""

import argparse

from dpkern.cli._output import say
from dpkern.verification import verify

HELP = "recompute a certificate's figures from its releases, and the digest of its model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    what = "a certificate's JSON, a model, or lines of JSON with a certificate each"
    parser.add_argument("file", metavar="FILE", help=what)
    what = "the model that the certificate must name, as a model file names its own"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=what)
    what = "the public key of whom the certificate must be signed by (dpkern certificate --sign)"
    parser.add_argument("--signed-by", metavar="KEY", help=what)


def run(arguments: argparse.Namespace) -> int:
    """Print all checks; the exit status is 1 if one of them fails."""
    found = verify(arguments.file, arguments.model, signed_by=arguments.signed_by)
    say(str(found))
    return 0 if found.ok else 1
