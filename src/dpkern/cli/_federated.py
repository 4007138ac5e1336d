"""What commands that run a study have in common."""

import argparse
import signal
import sys
from typing import TYPE_CHECKING, Any

from dpkern._files import replacing
from dpkern.cli import _data
from dpkern.cli._arguments import DEADLINE
from dpkern.cli._output import Line, print_lines, refuse_output, remark, say_certificate
from dpkern.solvers import SOLVERS

if TYPE_CHECKING:
    from dpkern.federated.federation import Federation
    from dpkern.federated.proposal import Proposal
    from dpkern.federated.study import Study
    from dpkern.privacy import Certificate

_OF_DATA = (
    *("data", "test", "ledger", "silos", "split", "schema", "task", "classes", "feature_range"),
    *("row_bound", "target_bound", "max_records", "no_intercept", "target", "silo_column"),
    *("person", "header", "sep", "noise_seed", "no_privacy", "n_features", "sparse"),
)


def leave_at_sigterm() -> None:
    """Let SIGTERM end this process as an error does, so that servers are ended and others told."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def study(arguments: argparse.Namespace, takes: tuple[str, ...] = ()) -> "Study":
    """Return the study, for a command that takes some of the options of data."""
    refused = [name for name in _OF_DATA if name not in takes]
    _data.refuse_options(arguments, refused, "the silos of --federation have the data")
    from dpkern.federated.study import Study

    return Study.read(arguments.federation)


def propose(study: "Study", path: str, solver: str, budget: Any, given: dict[str, Any]) -> None:
    """Write what would be proposed, and say what it reveals."""
    from dpkern.federated.rehearsal import disclosure

    refuse_output(path)
    plan, expected = rehearse(study, solver, budget, given)
    with replacing(path) as file:
        file.write(f"{plan.to_json()}\n".encode())
    print_lines([("plan", path), *plan_lines(plan, disclosure(study, plan, expected))])
    say_certificate(expected)


def rehearse(
    study: "Study", solver: str, budget: Any, given: dict[str, Any]
) -> tuple["Proposal", "Certificate"]:
    """Return the plan and its certificate; raise before any silo is asked for what cannot be."""
    from dpkern.federated.federation import proposed
    from dpkern.federated.rehearsal import rehearsed

    plan = proposed(study, solver, budget, given)
    return plan, rehearsed(study, plan)


def plan_lines(plan: "Proposal", disclosed: list[str]) -> list[Line]:
    """Return a plan, and what it reveals, for people."""
    b = plan.budget
    budget = f"mu {b.mu:g}" if b.epsilon is None else f"epsilon {b.epsilon:g} at delta {b.delta:g}"
    kind = "solver" if plan.solver in SOLVERS else "task"
    arguments = ", ".join(f"{name} {value}" for name, value in plan.arguments.items())
    return [
        (kind, f"{plan.solver}, {budget}"),
        *([("", arguments)] if arguments else []),
        ("reveals", disclosed[0]),
        *(("", line) for line in disclosed[1:]),
    ]


def finish(silos: "Federation") -> None:
    """Tell the last sum to silos that have not confirmed it; say who has not by the deadline."""
    sys.stdout.flush()  # what follows may take long
    if missing := silos.finish():
        remark(f"warning: {', '.join(missing)} did not confirm the last sum by --deadline")


def study_lines(study: "Study") -> list[Line]:
    """Return the study, its fingerprint, and the model that it evaluates."""
    lines = [("study", f"{study.name}: {', '.join(study.names)}")]
    lines.append(("fingerprint", study.fingerprint))
    return lines if study.model is None else [*lines, ("model", study.model.digest)]


def federation(study: "Study", arguments: argparse.Namespace) -> "Federation":
    """Return the federation of the study."""
    if arguments.keys is None:
        raise ValueError("--federation needs --keys, the folder of the coordinator's keys")
    from dpkern.federated.federation import Federation

    deadline = DEADLINE if arguments.deadline is None else arguments.deadline
    remark(f"waiting for {', '.join(study.names)}, each of their answers for {deadline:g} s")
    return Federation(
        study,
        keys=arguments.keys,
        journal=arguments.journal,
        deadline=deadline,
        insecure=arguments.insecure,
    )
