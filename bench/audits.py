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

# Beside what a solver does by default: (solver, trust, neighbours, name, arguments of `audit`).
MORE: list[tuple[str, str, str, str, dict[str, Any]]] = [
    ("federated_gd", "central", "replace_one", "4 hidden local steps", {"how": {"local_steps": 4}}),
    ("federated_gd", "silo", "replace_one", "4 noisy local steps", {"how": {"local_steps": 4}}),
    (
        *("federated_gd", "silo", "replace_one", "last of 4 local iterates"),
        {
            "how": {
                "local_steps": 4,
                "accounting": "last_iterate",
                "l2": 100.0,
                "step_size": 1e-4,
            }
        },
    ),
    (
        *("local_newton", "central", "replace_one", "private line search"),
        {"how": {"step_size": "private_search"}},
    ),
    (
        *("local_newton", "silo", "replace_one", "2 local steps"),
        {"how": {"local_steps": 2}},
    ),
    (
        *("double_noise_newton", "central", "replace_one", "variant clip"),
        {"how": {"variant": "clip"}},
    ),
    (
        *("admm", "central", "replace_one", "2 of 4 users a round"),
        {"how": {"mode": "federated", "participation": 2}},
    ),
    ("admm", "local", "replace_one", "token", {"how": {"mode": "token"}}),
    (
        *("minibatch_sgd", "central", "replace_one", "secret samples of 5 of 20"),
        {"how": {"sampling": "without_replacement", "batch_size": 5}, "records": 20},
    ),
    (
        *("minibatch_sgd", "central", "add_remove", "Poisson samples of 5 of 20"),
        {"how": {"sampling": "poisson", "batch_size": 5}, "records": 20},
    ),
    (
        *("minibatch_sgd", "central", "replace_one", "batches in one pass"),
        {"how": {"sampling": "one_pass", "batch_size": 1}},
    ),
    (
        *("minibatch_sgd", "central", "replace_one", "cyclic batches"),
        {"how": {"sampling": "cyclic", "batch_size": 2}},
    ),
    (
        *("prox_svrg", "central", "replace_one", "secret samples of 5 of 20"),
        {"how": {"sampling": "without_replacement", "batch_size": 5}, "records": 20},
    ),
    (
        *("spider", "central", "replace_one", "secret samples of 5 of 20"),
        {"how": {"sampling": "without_replacement", "batch_size": 5}, "records": 20},
    ),
    (
        *("local_sgd", "silo", "replace_one", "secret samples of 5 of 20"),
        {"how": {"sampling": "without_replacement", "batch_size": 5}, "records": 20},
    ),
    (
        *("local_sgd", "silo", "add_remove", "Poisson samples of 5 of 20"),
        {"how": {"sampling": "poisson", "batch_size": 5}, "records": 20},
    ),
]


def offers() -> Iterator[tuple[str, str, str, str, dict[str, Any]]]:
    """Every solver with the trust models and neighbour relations that it has, and `MORE`."""
    refused = {("minibatch_sgd", "shuffle", "add_remove"), ("local_sgd", "central", "add_remove")}
    for name, solver in SOLVERS.items():
        for trust in solver.declaration.trusts:
            for neighbours in solver.declaration.neighbours:
                if (name, trust, neighbours) not in refused:
                    yield name, trust, neighbours, "", {}
        yield from (row for row in MORE if row[0] == name)


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
