"""The table of docs/audits.md: every solver, trust and neighbour relation, audited.

python -m bench.audits [--runs N] [--only SOLVER ...]
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from typing import Any

import dpkern as dpk
from dpkern.solvers import SOLVERS

BUDGET = dpk.Budget(epsilon=8.0, delta=1e-5)

# `audit` has 20 records and samples of 5 by default.
SUBSETS: dict[str, Any] = {"how": {"sampling": "without_replacement"}}
POISSON: dict[str, Any] = {"how": {"sampling": "poisson"}}
LAST: dict[str, Any] = {
    "how": {"local_steps": 4, "accounting": "last_iterate", "l2": 100.0, "step_size": 1e-4}
}
FOUR_STEPS: dict[str, Any] = {"how": {"local_steps": 4}}

# Beside what a solver does by default: solver, trust, name of the row, arguments of `audit`; of the
# replacement of a record, but Poisson samples of its addition or removal.
MORE: list[tuple[str, str, str, dict[str, Any]]] = [
    ("federated_gd", "central", "4 hidden local steps", FOUR_STEPS),
    ("federated_gd", "silo", "4 noisy local steps", FOUR_STEPS),
    ("federated_gd", "silo", "last of 4 local iterates", LAST),
    ("local_newton", "central", "private line search", {"how": {"step_size": "private_search"}}),
    ("local_newton", "silo", "2 local steps", {"how": {"local_steps": 2}}),
    ("double_noise_newton", "central", "variant clip", {"how": {"variant": "clip"}}),
    ("admm", "central", "2 of 4 users a round", {"how": {"mode": "federated", "participation": 2}}),
    ("admm", "local", "token", {"how": {"mode": "token"}}),
    ("minibatch_sgd", "central", "secret samples of 5 of 20", SUBSETS),
    ("minibatch_sgd", "central", "Poisson samples of 5 of 20", POISSON),
    (
        *("minibatch_sgd", "central", "batches in one pass"),
        {"how": {"sampling": "one_pass", "batch_size": 1}},
    ),
    (
        *("minibatch_sgd", "central", "cyclic batches"),
        {"how": {"sampling": "cyclic", "batch_size": 2}},
    ),
    ("prox_svrg", "central", "secret samples of 5 of 20", SUBSETS),
    ("spider", "central", "secret samples of 5 of 20", SUBSETS),
    ("local_sgd", "silo", "secret samples of 5 of 20", SUBSETS),
    ("local_sgd", "silo", "Poisson samples of 5 of 20", POISSON),
]


def offers() -> Iterator[tuple[str, str, str, str, dict[str, Any]]]:
    """Every solver with the trust models and neighbour relations that it has, and `MORE`."""
    refused = {("minibatch_sgd", "shuffle", "add_remove"), ("local_sgd", "central", "add_remove")}
    for name, solver in SOLVERS.items():
        for trust in solver.declaration.trusts:
            for neighbours in solver.declaration.neighbours:
                if (name, trust, neighbours) not in refused:
                    yield name, trust, neighbours, "", {}
        for solver_name, trust, what, how in MORE:
            if solver_name == name:
                neighbours = "add_remove" if how is POISSON else "replace_one"
                yield name, trust, neighbours, what, how


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description="Audits of every solver, as Markdown.")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    print("| solver | trust | neighbours | | certified mu | audited | tightness | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for name, trust, neighbours, what, how in offers():
        if arguments.only and name not in arguments.only:
            continue
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = dpk.audit(
                name,
                budget=BUDGET,
                trust=trust,
                neighbours=neighbours,
                silos=2 if trust == "silo" else 1,
                runs=arguments.runs,
                rng=20,
                **how,
            )
        seconds = time.perf_counter() - begin
        exceeded = " **exceeded**" if found.violated else ""
        print(
            f"| {name} | {trust} | {neighbours} | {what} | {found.mu_certified:.3f} "
            f"| {found.mu_lower:.3f}{exceeded} | {found.tightness:.3f} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
