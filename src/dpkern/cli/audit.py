"""``dpkern audit``: try to refute a solver's certificate by thousands of runs."""

import argparse

from dpkern.cli import _arguments, _output
from dpkern.privacy import Budget
from dpkern.solvers import SOLVERS
from dpkern.solvers.base.options import SHARED

HELP = "try to refute a solver's certificate by thousands of runs on neighbouring data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("solver", metavar="SOLVER", choices=tuple(SOLVERS), help=", ".join(SOLVERS))
    add("--epsilon", type=float, default=4.0, help="budget of one run (default: 4)")
    add("--delta", type=float, default=1e-5, help="of the budget (default: 1e-5)")
    add("--trust", help=f"trust model (default: {SHARED['trust'].default})")
    relation = ("replace_one", "add_remove")
    add("--neighbours", choices=relation, default=relation[0], help=f"default: {relation[0]}")
    _arguments.add_option_arguments(parser)
    add("--runs", type=int, default=20_000, metavar="N", help="default: 20000")
    add("--confidence", type=float, default=0.95, help="of the bound (default: 0.95)")
    sizes = "records of every silo that are made (default: 4; 400 where they are shuffled, 20 where"
    add("--records", type=int, metavar="N", help=f"{sizes} samples are secret)")
    add("--silos", type=_arguments.count, default=1, metavar="M", help="default: 1")
    add("--jobs", type=int, default=-1, metavar="N", help="processes (default: one per core)")
    add("--seed", type=int, metavar="N", help="of the runs' noise")
    add("--plot", metavar="FILE.png", help="the attack's errors beside those that are certified")


def run(arguments: argparse.Namespace) -> int:
    """Print the audit; the exit status is 1 if it refutes the certificate."""
    from dpkern.auditing import audit  # scipy.stats takes a second to import

    solver = arguments.solver
    if arguments.plot is not None:
        _output.refuse_picture(arguments.plot)
    how = _arguments.given_parameters(arguments, _arguments.settable(solver), solver)
    trust = how.pop("trust", SOLVERS[solver].declaration.trusts[0])
    found = audit(
        solver,
        budget=Budget(epsilon=arguments.epsilon, delta=arguments.delta),
        trust=trust,
        neighbours=how.pop("neighbours", arguments.neighbours),
        how=how,
        runs=arguments.runs,
        confidence=arguments.confidence,
        records=arguments.records,
        silos=arguments.silos,
        n_jobs=arguments.jobs,
        rng=arguments.seed,
    )
    print(found)
    if arguments.plot is not None:
        found.plot(arguments.plot)
        print(f"  picture    {arguments.plot}")
    return 1 if found.violated else 0
