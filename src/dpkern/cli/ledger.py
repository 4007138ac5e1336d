"""``dpkern ledger``: what an accountant has spent and has left."""

import argparse

from dpkern.cli import _output
from dpkern.privacy.accountant.accountant import Accountant

HELP = "what a budget in a file has spent and has left; --epsilon and --delta create one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the file that fit --ledger charges")
    add("--epsilon", type=float, help="budget of everything together, of a new file")
    add("--delta", type=float, help="of the budget, well below 1 / (number of records)")
    relation = ("replace_one", "add_remove")
    add("--neighbours", choices=relation, help=f"of a new file (default: {relation[0]})")
    add("--unit", metavar="TEXT", help="of a new file (default: one record)")
    add("--plot", metavar="FILE.png", help="what is spent and left after every charge")


def run(arguments: argparse.Namespace) -> None:
    if arguments.plot is not None:
        _output.refuse_picture(arguments.plot, arguments.file)
    names = ("epsilon", "delta", "neighbours", "unit")
    given = {name: getattr(arguments, name) for name in names}
    accountant = Accountant(arguments.file, **given)
    print(accountant)
    if arguments.plot is not None:
        accountant.plot(arguments.plot)
        print(f"\npicture: {arguments.plot}")
