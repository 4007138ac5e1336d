"""``dpkern federation``: keys of a study's parties, and its coordinator."""

import argparse
from base64 import b64decode
from pathlib import Path

from dpkern.cli import _arguments
from dpkern.cli._federated import leave_at_sigterm, study_lines
from dpkern.cli._output import print_lines, remark, say

HELP = "keys for the parties of a study, and the coordinator that silos connect to"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the two actions and their options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    what = "make the keys of a party; existing files are never replaced"
    add = actions.add_parser("keys", help=what, description=what, allow_abbrev=False).add_argument
    add("folder", metavar="FOLDER", help="where to write them")
    what = "make those of the silo of this name, and print its part of study.toml"
    add("--silo", metavar="NAME", help=what)
    what = "with --silo: its number of records, which is public"
    add("--records", type=_arguments.count, metavar="N", help=what)
    what = "make those of a coordinator at these host names and IP addresses"
    add("--coordinator", nargs="+", metavar="HOST", help=what)
    what = "print the fingerprints of a study and of its keys, to be compared with the silos"
    add = actions.add_parser("show", help=what, description=what, allow_abbrev=False).add_argument
    add("study", metavar="STUDY.toml", help="this party's copy of the study")
    what = "start the coordinator's server (Flower's SuperLink), until Ctrl-C or SIGTERM"
    add = actions.add_parser("up", help=what, description=what, allow_abbrev=False).add_argument
    add("study", metavar="STUDY.toml", help="the coordinator's copy of the study")
    add("--keys", required=True, metavar="FOLDER", help="folder of the coordinator's keys")
    what = "folder of the silos' NAME.node.pub files (default: that of --keys)"
    add("--silos", metavar="FOLDER", help=what)
    what = "without encryption and node keys, which is for trying out on one machine"
    add("--insecure", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Make keys, or run the server."""
    if arguments.action != "keys":
        return (_up if arguments.action == "up" else _show)(arguments)
    if (arguments.silo is None) == (arguments.coordinator is None):
        raise ValueError("give either --silo NAME or --coordinator HOST ...")
    if (arguments.silo is None) != (arguments.records is None):
        raise ValueError("--silo needs --records N, its number of records, and nothing else does")
    folder = Path(arguments.folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (_keys_of_coordinator if arguments.silo is None else _keys_of_silo)(folder, arguments)


def _keys_of_silo(folder: Path, arguments: argparse.Namespace) -> None:
    from dpkern.federated.keys import new_identity, new_node_key
    from dpkern.federated.study import checked_name, fingerprint

    name = checked_name(arguments.silo)
    key = new_identity(folder / f"{name}.key")
    try:
        new_node_key(folder / f"{name}.node")
    except BaseException:  # else the next try would find the keys of this one
        (folder / f"{name}.key").unlink()
        raise
    remark(f"{folder}/{name}.key and {name}.node are private: they stay on this machine")
    remark(f"fingerprint of the key, to be read to the other silos: {fingerprint(b64decode(key))}")
    remark(f"{folder}/{name}.node.pub is for the coordinator, and what follows for study.toml")
    say(f'\n[[silos]]\nname = "{name}"\nrecords = {arguments.records}\nkey = "{key}"')


def _keys_of_coordinator(folder: Path, arguments: argparse.Namespace) -> None:
    from dpkern.federated.keys import DAYS, new_certificates

    new_certificates(folder, arguments.coordinator)
    remark(f"{folder}/server.key is private: it stays on this machine")
    remark(f"{folder}/ca.crt is for all silos, beside study.toml; valid for {DAYS} days")


def _show(arguments: argparse.Namespace) -> None:
    from dpkern.federated.study import Study

    study = Study.read(arguments.study)
    silos = "a silo's own messages" if study.colluding is None else "sums over all silos"
    print_lines(
        [
            ("study", study.name),
            ("fingerprint", study.fingerprint),
            ("trust", f"{study.trust}: {silos} are seen"),
            *([] if study.colluding is None else [("colluding", str(study.colluding))]),
            *study_lines(study)[2:],
            *(
                (silo.name, f"key {silo.fingerprint}, {silo.records} records")
                for silo in study.silos
            ),
        ]
    )


def _up(arguments: argparse.Namespace) -> None:
    from dpkern.federated.connections import superlink
    from dpkern.federated.study import Study

    study = Study.read(arguments.study)
    silos = arguments.keys if arguments.silos is None else arguments.silos
    leave_at_sigterm()
    with superlink(study, arguments.keys, silos, insecure=arguments.insecure) as server:
        print_lines(
            [
                ("study", f"{study.name}: {', '.join(study.names)}"),
                ("fingerprint", study.fingerprint),
                ("listening", f"at {study.address}; stop it with Ctrl-C"),
                ("log", str(Path(arguments.keys) / "superlink.log")),
            ]
        )
        server.wait()
