"""The table of docs/audits.md: every solver, trust and neighbour relation, audited.

    python -m bench.audits [--runs N] [--only SOLVER ...] [--json FILE]

It is made of a file of numbers, docs/figures/audits.json unless --json names another.
"""

import argparse
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dpkern as dpk
from bench.utility_text import table
from dpkern.solvers import SOLVERS

NUMBERS = Path(__file__).parents[1] / "docs" / "figures" / "audits.json"
BUDGET = dpk.Budget(epsilon=8.0, delta=1e-5)
TRUSTS = ("central", "silo", "shuffle", "local")

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
        for solver_name, trust, variant, how in MORE:
            if solver_name == name:
                neighbours = "add_remove" if how is POISSON else "replace_one"
                yield name, trust, neighbours, variant, how


def audit(name: str, trust: str, neighbours: str, variant: str, runs: int, how: Any) -> Any:
    """Audit one of the offers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = dpk.audit(
            name,
            budget=BUDGET,
            trust=trust,
            neighbours=neighbours,
            silos=2 if trust == "silo" else 1,
            runs=runs,
            rng=20,
            **how,
        )
    row = {"solver": name, "variant": variant, "trust": trust, "neighbours": neighbours}
    row |= {"certified": round(result.mu_certified, 3), "audited": round(result.mu_lower, 3)}
    return row | {"tightness": round(result.tightness, 3), "exceeded": bool(result.violated)}


def page_table(rows: list[dict[str, Any]]) -> str:
    """A line for every solver and variant, of the tightness under each trust model."""
    body = []
    for solver, variant in dict.fromkeys((row["solver"], row["variant"]) for row in rows):
        cells = []
        for trust in TRUSTS:
            here = {
                row["neighbours"]: f"{row['tightness']:.3f}" + " **exceeded**" * row["exceeded"]
                for row in rows
                if (row["solver"], row["variant"], row["trust"]) == (solver, variant, trust)
            }
            both = [here.get(neighbours, "-") for neighbours in ("replace_one", "add_remove")]
            cells.append(" / ".join(both) if here else "")
        body.append([f"`{solver}`" + (f", {variant}" if variant else ""), *cells])
    return table(["solver", *TRUSTS], body)


def main() -> None:
    """Audit, write the numbers, and print the table as Markdown."""
    parser = argparse.ArgumentParser(description="Audits of every solver, as Markdown.")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path, default=NUMBERS)
    arguments = parser.parse_args()
    rows = []
    for name, trust, neighbours, variant, how in offers():
        if not arguments.only or name in arguments.only:
            rows.append(audit(name, trust, neighbours, variant, arguments.runs, how))
            print(json.dumps(rows[-1]), flush=True)
    write(arguments.json, rows)
    print(page_table(rows))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the file of numbers, an audit a line."""
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
