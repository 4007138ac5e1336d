"""Options of commands that run a study, and its connections."""

import argparse
from typing import TYPE_CHECKING

from dpkern.cli import _data

if TYPE_CHECKING:
    from dpkern.federated.federation import Federation

_OWN = ("keys", "journal", "insecure", "deadline")
_OF_DATA = (
    *("data", "test", "ledger", "silos", "split", "schema", "task", "classes", "feature_range"),
    *("row_bound", "target_bound", "max_records", "no_intercept", "target", "silo_column"),
    *("person", "header", "sep", "noise_seed", "no_privacy"),
)
_DEADLINE = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a fit over silos on their own machines."""
    title = "silos on their own machines, in place of DATA and its options"
    add = parser.add_argument_group(title).add_argument
    what = "the study; `dpkern federation up` must be running, and `dpkern silo` at every silo"
    add("--federation", metavar="STUDY.toml", help=what)
    add("--keys", metavar="FOLDER", help="folder of the coordinator's keys")
    what = "file that is kept of the run: the same command goes on with it if it was killed"
    add("--journal", metavar="FILE", help=what)
    what = f"seconds that silos may take to join and to answer (default: {_DEADLINE:g})"
    add("--deadline", type=float, metavar="S", help=what)
    add("--insecure", action="store_true", help="without encryption, as dpkern federation up")


def refuse_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options of a study without one, or without data."""
    _data.refuse_options(arguments, _OWN, "it needs --federation")
    if arguments.data is None:
        raise ValueError("give DATA, or --federation STUDY.toml")


def federation(arguments: argparse.Namespace) -> "Federation":
    """Return the federation of the study."""
    _data.refuse_options(arguments, _OF_DATA, "the silos of --federation have the data")
    if arguments.draws > 1:
        raise ValueError("--draws must be 1 with --federation: a study is one run")
    if arguments.keys is None:
        raise ValueError("--federation needs --keys, the folder of the coordinator's keys")
    from dpkern.federated.federation import Federation

    return Federation(
        arguments.federation,
        keys=arguments.keys,
        journal=arguments.journal,
        deadline=_DEADLINE if arguments.deadline is None else arguments.deadline,
        insecure=arguments.insecure,
    )
