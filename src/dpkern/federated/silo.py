"""A silo's side of a study: it runs the solver on its own records, and believes nobody."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkern._warn import warn
from dpkern.data import SiloData
from dpkern.data.parted import held_by
from dpkern.evaluation import Evaluation
from dpkern.federated.federation import (
    PROTOCOL,
    VERSION,
    agreed,
    note_ledgers,
    read_line,
    refuse_other,
    state_ledger,
    state_line,
)
from dpkern.federated.journal import JournalError, SteadyLink
from dpkern.federated.links import FederationError, Link
from dpkern.federated.masking import Session, digest, public_stream, statement_of
from dpkern.federated.party import ProtocolError, SiloParty
from dpkern.federated.proposal import Proposal
from dpkern.federated.silo_journal import RecordedLink, SiloJournal
from dpkern.federated.study import Study
from dpkern.privacy import Certificate
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.accountant.charges import KeptCharge
from dpkern.solvers import SolverResult
from dpkern.stream import NoiseStream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_OFFER, _CONFIRMATION = 112, 64


def take_part(
    study: Study,
    name: str,
    data: SiloData,
    link: Link,
    identity: "Ed25519PrivateKey",
    *,
    accountant: Accountant | None,
    accept: Callable[[Proposal], None] = lambda plan: None,
    journal: str | os.PathLike[str] | None = None,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
) -> SolverResult | Evaluation:
    """Take part in one run of a study, and return its result.

    The silo runs the solver of the plan on its own records, with all checks of a run in one
    process: what it sends are its noisy sums, masked under trust "central", with clip norm, grid,
    noise and number of rounds that it computes itself, each recorded in its own ledger before it is
    sent. What comes from the coordinator, the sums over all silos, is used as public numbers alone.

    Parameters
    ----------
    study : Study
        The silo's own copy.
    name : str
        The silo's.
    data : SiloData
        Its records as a single silo, made by `Study.silo_data`.
    link : Link
    identity : Ed25519PrivateKey
    accountant : Accountant or None
        What is charged for the run before anything of its records is sent, and refuses it
        beyond its budget.
    accept : callable
        Is called with the plan, and raises where the silo does not take part.
    journal : path, optional
        A file in which the messages are kept. Killed in a run, the same call with the same journal
        goes on with it (`dpkern.federated.silo_journal`), as long as the coordinator waits.
    rng : int, NoiseStream or None
        As for `dpkern.solve`; a seed is not private. No stream with a journal, which has its own.
    n_threads, progress
        As for `dpkern.solve`.

    Raises
    ------
    ProtocolError, SessionError
        When the coordinator or a silo has another study, another version of dpkern, or breaks the
        protocol. Nothing more is sent.
    BudgetSpentError
        When the accountant refuses; nothing was sent.
    CoordinatorLostError
        When the coordinator is gone. What was sent is charged.
    """
    place = study.names.index(name)
    if journal is not None and isinstance(rng, NoiseStream):
        raise ValueError("rng must be None or a seed with a journal, got a NoiseStream")
    _check_identity(study, place, identity)
    begun = _Begun(SteadyLink(link), state_ledger(accountant), accountant, rng)
    with ExitStack() as stack:
        if journal is not None:
            about = digest("silo", study.digest.encode(), name.encode(), _digest_records(data))
            kept = SiloJournal(journal, identity, about, begun.statement)
            begun = begun.resumed(stack.enter_context(kept), journal)
        first = begun.link.exchange(None)
        plan, nonce = _understood(study, first)
        try:
            accept(plan)
        except FederationError as error:
            if not begun.resumes:
                raise
            why = f"{journal} is of a run with another plan, name a new file: {error}"
            raise JournalError(why) from None
        whole, own = agreed(study, plan.to_json()), (begun.statement, begun.ephemeral)
        session = Session(identity, name, study.roster, nonce, whole, *own)
        party, offers = _joined(study, place, begun.link, stack.enter_context(session), first)
        known = None if begun.resumes else begun.accountant
        note_ledgers(party, study.names, map(statement_of, offers), known)
        party.silos = study.names
        here = held_by(party, data, study.sizes)
        how: dict[str, Any] = {"n_threads": n_threads, "progress": progress}
        result = plan.run(study, here, accountant=begun.accountant, rng=begun.rng, **how)
        if isinstance(begun.link, RecordedLink) and not begun.link.is_connected:
            why = "has this run as a whole, and nobody was asked: another run needs a new file"
            warn(f"{journal} {why}", UserWarning)
        return result


def _check_identity(study: Study, place: int, identity: "Ed25519PrivateKey") -> None:
    """Raise ValueError unless the key is that of the silo."""
    key = identity.public_key().public_bytes_raw()
    if study.silos[place].key != key:
        names = [f"that of silo {one.name!r}" for one in study.silos if one.key == key]
        got = names[0] if names else "another"
        raise ValueError(
            f"identity must be the private key of silo {study.names[place]!r} in the study, got "
            f"{got}: compare the study's key with the one that `dpkern federation keys` has printed"
        )


@dataclass(frozen=True)
class _Begun:
    """What a silo begins a run with, or goes on with where its journal has heard something."""

    link: Link
    statement: bytes
    accountant: Accountant | None
    rng: int | NoiseStream | None
    ephemeral: "X25519PrivateKey | None" = None
    resumes: bool = False

    def resumed(self, kept: SiloJournal, journal: str | os.PathLike[str]) -> "_Begun":
        """Return what a journal has of it."""
        accountant, charge = self.accountant, read_line(kept.charge) if kept.charge else None
        link = RecordedLink(self.link, kept, partial(_is_settled, accountant, charge))
        if accountant is not None:
            _refuse_older_ledger(accountant, charge or read_line(kept.statement), journal)
            made = KeptCharge(charge, lambda line: kept.add_charge(state_line(line)))
            accountant = accountant.resuming(made)
        rng = kept.stream if self.rng is None else self.rng
        return _Begun(link, kept.statement, accountant, rng, kept.ephemeral, bool(kept.heard))


def _joined(
    study: Study, place: int, link: Link, session: Session, first: bytes
) -> tuple[SiloParty, list[bytes]]:
    """Return the silo's party in a session that all have confirmed, and the silos' offers."""
    m = len(study.names)
    second = link.exchange(session.offer)
    offers = _parts(second, m, _OFFER)
    third = link.exchange(session.accept(offers))
    session.confirm(_parts(third, m, _CONFIRMATION))
    party = SiloParty(
        link,
        session,
        silo=place,
        colluding=study.colluding,
        opening=first + second + third,
        public=public_stream(session.id),
    )
    return party, offers


def _digest_records(data: SiloData) -> bytes:
    """Return the SHA-256 of all numbers of the records, in their order."""
    X = [data.X] if isinstance(data.X, np.ndarray) else [data.X.data, data.X.indices, data.X.indptr]
    found = hashlib.sha256()
    for part in (*X, data.y):
        found.update(np.ascontiguousarray(part).data)
    return found.digest()


def _refuse_older_ledger(
    accountant: Accountant, line: tuple[int, str], journal: str | os.PathLike[str]
) -> None:
    """Raise ValueError unless a ledger has the line that a journal knows of it, if it knows one."""
    if line[0] and not accountant.has_line(line):
        raise ValueError(
            f"{accountant.path} must have line {line[0]} with the check {line[1]}, as it had when "
            f"{journal} was written: it is another ledger or an older copy; put the newest one "
            "back, or what was charged since is lost"
        )


def _is_settled(accountant: Accountant | None, charge: tuple[int, str] | None) -> bool:
    """Return whether a ledger has the certificate of a charge whose run has released something."""
    if accountant is None or charge is None:
        return False
    certificates = (one.guarantee for one in accountant.entries if one.line == charge)
    return any(isinstance(one, Certificate) and one.releases for one in certificates)


def _understood(study: Study, said: bytes) -> tuple[Proposal, bytes]:
    """Return the plan and the nonce of the coordinator's first message."""
    try:
        hello: dict[str, Any] = json.loads(said)
        own = {"protocol": PROTOCOL, "dpkern": VERSION, "study": study.digest}
        told = {name: hello[name] for name in own}
        nonce, text = bytes.fromhex(hello["nonce"]), str(hello["plan"])
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise ProtocolError(
            "the coordinator's first message proposes no plan: it may go on with a run that this "
            "silo has left, or has another journal of, which ends there: start another one"
        ) from None
    refuse_other("the coordinator", told, own)
    plan = Proposal.from_json(text)
    if plan.arguments.get("trust") != study.trust:
        raise ProtocolError(f"the plan's trust must be that of the study, {study.trust!r}")
    return plan, nonce


def _parts(message: bytes, m: int, size: int) -> list[bytes]:
    if len(message) != m * size:
        raise ProtocolError("the coordinator's message is not one part of every silo")
    return [message[i : i + size] for i in range(0, m * size, size)]
