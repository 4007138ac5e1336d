"""``dpkern silo``: take part in a study with the records of this silo."""

import argparse
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpkern.cli import _arguments, _data, _output
from dpkern.cli._arguments import Project
from dpkern.cli._federated import leave_at_sigterm, plan_lines, study_lines
from dpkern.cli._output import print_lines
from dpkern.cli.evaluate import say_scores
from dpkern.data import SiloData
from dpkern.evaluation import Evaluation
from dpkern.federated.links import FederationError
from dpkern.federated.proposal import Proposal
from dpkern.federated.rehearsal import disclosure, rehearsed
from dpkern.federated.study import Study
from dpkern.io import read_table
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers import SolverResult

HELP = "take part in a study with this silo's own records, which stay here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    add = parser.add_argument
    add("data", metavar="DATA", help="this silo's records: LIBSVM, CSV or .npz")
    add("--study", required=True, metavar="FILE.toml", help="this silo's copy of the study")
    add("--name", required=True, help="this silo's name in the study")
    what = "folder of this silo's keys (dpkern federation keys)"
    add("--keys", required=True, metavar="FOLDER", help=what)
    what = "accountant's file that is charged, and refuses what exceeds it (dpkern ledger)"
    add("--ledger", metavar="FILE", help=f"{what}; {_arguments.PROJECT} may name it")
    what = "seconds to wait for the coordinator (default: 3600)"
    add("--deadline", type=float, default=3600.0, metavar="S", help=what)
    what = "the plan that this silo has agreed to (dpkern fit --plan); it takes part in no other"
    add("--plan", metavar="FILE.json", help=what)
    what = "in place of --plan: take part in whatever is proposed and the ledger admits"
    add("--any-plan", action="store_true", help=what)
    what = "fingerprint that the silos' people have compared; another study is refused"
    add("--approve", metavar="FINGERPRINT", help=what)
    what = "say what --plan reveals to whom and costs the ledger, and stop: nobody is reached"
    add("--dry-run", action="store_true", help=what)
    what = "file that is kept of the run: the same command goes on with it if it was killed"
    add("--journal", metavar="FILE", help=what)
    add("--out", metavar="MODEL.npz", help="where to save the model, which all parties have")
    add("--certificate", metavar="FILE.json", help="where to save the certificate")
    _arguments.add_project(parser)
    what = "connect without encryption, which is for trying out on one machine"
    add("--insecure", action="store_true", help=what)
    _arguments.add_column_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    study, name, project = Study.read(arguments.study), arguments.name, Project.read()
    if name not in study.names:
        raise ValueError(f"--name must be one of {', '.join(study.names)}, got {name!r}")
    texts = project.texts_for(arguments.about, study=study.name)
    _refuse_other_study(study, arguments.approve)
    _refuse_outputs(study, arguments)
    if (arguments.plan is None) != arguments.any_plan:
        raise ValueError("give --plan FILE.json, what this silo has agreed to, or --any-plan")
    agreed = None if arguments.plan is None else Proposal.read(arguments.plan)
    ledger = _ledger(project, arguments)
    if arguments.dry_run:
        if agreed is None:
            raise ValueError("--dry-run needs --plan FILE.json")
        _dry_run(study, agreed, ledger)
        return _warn_of_keys(arguments.approve)
    accountant, data = Accountant(ledger), _records(study, arguments)
    others = ", ".join(silo for silo in study.names if silo != name)
    print_lines(
        [
            *project.lines,
            ("study", f"{study.name}: {name}, with {others}"),
            *study_lines(study)[1:],
            ("data", f"{Path(arguments.data).name}, {data.n} records, {data.n_features} features"),
            ("ledger", _output.ledger_text(accountant)),
            ("waiting", f"for the coordinator at {study.address}"),
        ]
    )
    _warn_of_keys(arguments.approve)
    result = _take_part(study, data, accountant, agreed, arguments)
    if isinstance(result, Evaluation):
        say_scores(result)
        return _output.say_release(arguments, result.privacy.with_names(**texts), [], ledger)
    result = result.with_names(**texts)
    lines = [("result", f"{result.message} in {result.timing['total']:.3g} s")]
    lines += _output.saved(arguments, result, result.privacy)
    print_lines([*lines, ("ledger", _output.ledger_text(accountant))])
    _output.say_certificate(result.privacy)


def _refuse_outputs(study: Study, arguments: argparse.Namespace) -> None:
    """Raise ValueError for files that cannot be written, or that there is nothing for."""
    for path in filter(None, (arguments.out, arguments.certificate)):
        _output.refuse_output(path, arguments.data, arguments.study)
    _output.refuse_same(arguments)
    if study.model is not None and arguments.out is not None:
        raise ValueError("--out has no use: the study evaluates its model, and makes no other")


def _ledger(project: Project, arguments: argparse.Namespace) -> str:
    """Return the path of the silo's ledger, which must exist."""
    ledger = project.ledger_for(arguments.ledger)
    if ledger is None:
        raise ValueError(f"give --ledger FILE, or a ledger in {_arguments.PROJECT}")
    if not Path(ledger).exists():
        raise ValueError(f"{ledger}: no such file; dpkern ledger creates one")
    return ledger


def _take_part(
    study: Study,
    data: SiloData,
    accountant: Accountant,
    agreed: Proposal | None,
    arguments: argparse.Namespace,
) -> SolverResult | Evaluation:
    """Return the result of the study, in which this silo takes part if the plan is agreed to."""

    def accept(plan: Proposal) -> None:
        if agreed is not None and plan.to_json() != agreed.to_json():
            differing = "; ".join(plan.differences_from(agreed))
            raise FederationError(f"the coordinator's plan is not the agreed one: {differing}")
        print_lines(plan_lines(plan, disclosure(study, plan, rehearsed(study, plan))))

    from dpkern.federated.connections import silo_link
    from dpkern.federated.keys import read_identity
    from dpkern.federated.silo import take_part

    leave_at_sigterm()
    name = arguments.name
    identity = read_identity(Path(arguments.keys) / f"{name}.key")
    link = silo_link(
        study,
        name,
        arguments.keys,
        insecure=arguments.insecure,
        deadline=arguments.deadline,
    )
    with link:
        try:
            return take_part(
                study,
                name,
                data,
                link,
                identity,
                accountant=accountant,
                accept=accept,
                journal=arguments.journal,
                progress=sys.stderr.isatty(),
            )
        except (KeyboardInterrupt, SystemExit):
            if arguments.journal is not None:
                link.close()  # in silence, so that the others wait for it to go on
                _output.remark(
                    f"stopped: the same command goes on from {arguments.journal}, while the others "
                    "wait until the coordinator's --deadline"
                )
            raise


def _refuse_other_study(study: Study, approved: str | None) -> None:
    """Raise ValueError for another study than the approved one."""
    if approved is not None and re.sub(r"[\s-]", "", approved.lower()) != study.fingerprint.replace(
        "-", ""
    ):
        raise ValueError(
            f"--approve must be the fingerprint of the study, {study.fingerprint}, got "
            f"{approved!r}: another study was approved; dpkern federation show prints what this "
            "one has"
        )


def _warn_of_keys(approved: str | None) -> None:
    if approved is None:
        _output.remark(
            "warning: nobody has said that the keys in the study are those of the other silos: "
            "compare its fingerprint with their people, by telephone, and give it by --approve"
        )


def _records(study: Study, arguments: argparse.Namespace) -> SiloData:
    """Return the records of the file as the study describes them."""
    schema = study.described.schema
    if schema is not None:
        _data.refuse_options(arguments, _data.COLUMN_OPTIONS, "the study says it")
        frame = _data.read_described(arguments.data, schema)[1]
        with _data.naming(arguments.data, schema):
            return study.silo_data(arguments.name, frame)
    for option in ("silo_column", "person"):
        if getattr(arguments, option) is not None:
            raise ValueError(
                f"--{option.replace('_', '-')} has no use: all records are of one silo"
            )
    layout: Any = {"n_features": study.n_features, "sparse": study.sparse}
    layout["classes"] = study.described.classes
    layout["feature_names"] = study.described.feature_names
    table = read_table(arguments.data, **_data.columns(arguments), **layout)
    if study.described.feature_range is not None:
        _data.check_range(arguments.data, table, *study.described.feature_range)
    with _data.naming(arguments.data):
        return study.silo_data(arguments.name, table.X, table.y)


def _dry_run(study: Study, plan: Proposal, ledger: str) -> None:
    """Say what a plan reveals, and what a copy of the ledger has left after it."""
    Accountant(ledger)  # what is wrong with the file is said of it, and not of the copy
    with TemporaryDirectory() as folder:
        copy = Accountant(shutil.copy(ledger, folder))
        certificate = rehearsed(study, plan, accountant=copy)
        print_lines(
            [
                *plan_lines(plan, disclosure(study, plan, certificate)),
                ("ledger after", _output.ledger_text(copy)),
            ]
        )
