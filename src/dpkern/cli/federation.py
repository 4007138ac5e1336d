"""``dpkern federation``: keys of a study's parties, and its coordinator."""

import argparse

HELP = "keys for the silos of a study, and the coordinator that they connect to"
_STUDY = """\
name = "{name}"
trust = "central"       # sums over the silos; "silo": every silo's message has all of its noise
colluding = {colluding}           # silos that may pool what they know with the coordinator

[data]
schema = "schema.json"  # or features, task, classes, row_bound, ...: see the documentation

[coordinator]
address = "{address}"
certificates = "ca.crt"
"""
_SILO = """
[[silos]]
name = "{name}"
records = 0             # its number of records, which is public
key = "{key}"
"""


def add_arguments(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """Add the commands and their options."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "make the keys of one party, in a folder of its own"
    keys = commands.add_parser("keys", help=what, description=what, allow_abbrev=False)
    add = keys.add_argument
    add("folder", metavar="FOLDER", help="where to write them; existing files are never replaced")
    party = keys.add_mutually_exclusive_group(required=True)
    party.add_argument("--silo", metavar="NAME", help="those of this silo")
    what = "those of the coordinator, at these host names and IP addresses"
    party.add_argument("--coordinator", nargs="+", metavar="HOST", help=what)
    what = "start the coordinator of a study, and stop it with Ctrl-C"
    up = commands.add_parser("up", help=what, description=what, allow_abbrev=False)
    add = up.add_argument
    add("study", metavar="STUDY.toml")
    add("--keys", required=True, metavar="FOLDER", help="the coordinator's keys")
    what = "folder with the .pub files of the silos (default: that of the coordinator's keys)"
    add("--silos", metavar="FOLDER", help=what)
    what = "without encryption and node keys, which is for trying out on one machine"
    add("--insecure", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> None:
    (_keys if arguments.action == "keys" else _up)(arguments)
