"""Studies by secret sharing (MPyC), for few silos and an analyst that can all reach each other.

What parties tell each other is in `dpkern.federated.mpyc_sums`. Every party knows the addresses of
all silos, and has a certificate by which the others know it.
"""

import asyncio
import ipaddress
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpkern._json import canonical
from dpkern._numbers import count, positive
from dpkern.data import SiloData
from dpkern.data.parted import held_by
from dpkern.evaluation import Evaluation
from dpkern.federated.federation import (
    PROTOCOL,
    VERSION,
    coordinated,
    note_ledgers,
    proposed,
    refuse_other,
    state_ledger,
)
from dpkern.federated.masking import digest
from dpkern.federated.mpyc_runtime import ANALYST, Certificates, Mesh
from dpkern.federated.mpyc_sums import MpycParty
from dpkern.federated.party import ProtocolError
from dpkern.federated.proposal import Proposal
from dpkern.federated.study import Study
from dpkern.party import Remote
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers import SolverResult
from dpkern.stream import NoiseStream

_in_use = threading.Lock()  # MPyC has one runtime in a process


class MpycFederation(Remote):
    """The silos of a study, in place of a `SiloData`, with sums by secret sharing.

    Parameters
    ----------
    study : Study
    addresses, certificates, threshold, deadline
        As for `join`.

    Examples
    --------
    >>> study = Study.read("study.toml")
    >>> files = Certificates("analyst.crt", "analyst.key", "ca.crt")
    >>> silos = MpycFederation(study, ["a.example:9000", "b.example:9000"], certificates=files)
    >>> result = dpkern.solve("federated_gd", silos, budget=dpkern.Budget(epsilon=1, delta=1e-6))
    """

    def __init__(
        self,
        study: Study,
        addresses: Sequence[str],
        *,
        certificates: Certificates | None = None,
        threshold: int | None = None,
        deadline: float = 60.0,
    ) -> None:
        self.study = study
        self._how: dict[str, Any] = {"addresses": addresses, "certificates": certificates}
        self._how |= {"threshold": threshold, "deadline": deadline}

    @property
    def described(self) -> SiloData:
        return self.study.described

    @property
    def model(self) -> SolverResult | None:
        return self.study.model

    @contextmanager
    def opened(
        self, solver: str, budget: Any, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[SiloData, dict[str, Any]]]:
        plan = proposed(self.study, solver, budget, arguments)
        with (
            join(self.study, None, plan=plan, **self._how) as (party, _),
            coordinated(self.study, party, arguments) as found,
        ):
            yield found


def take_part(
    study: Study,
    name: str,
    data: SiloData,
    addresses: Sequence[str],
    *,
    accountant: Accountant | None,
    accept: Callable[[Proposal], None] = lambda plan: None,
    certificates: Certificates | None = None,
    threshold: int | None = None,
    deadline: float = 60.0,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
) -> SolverResult | Evaluation:
    """Take part as a silo in one run of a study, and return its result.

    The silo runs the solver on its own records, as in `dpkern.federated.silo.take_part`. What it
    sends are shares of its noisy sums, or its noisy messages, each charged before it is sent.

    Parameters
    ----------
    study, name, addresses, accept, certificates, threshold, deadline
        As for `join`.
    data : SiloData
        The silo's records, made by `Study.silo_data`.
    accountant : Accountant or None
        What is charged for the run before anything of its records is sent, and refuses it
        beyond its budget.
    rng, n_threads, progress
        As for `dpkern.solve`.
    """
    joined = join(
        study,
        name,
        addresses,
        accountant=accountant,
        accept=accept,
        certificates=certificates,
        threshold=threshold,
        deadline=deadline,
    )
    with joined as (party, plan):
        own = {"rng": rng, "n_threads": n_threads, "progress": progress}
        party.silos = study.names
        here = held_by(party, data, study.sizes)
        return plan.run(study, here, accountant=accountant, **own)


@contextmanager
def join(
    study: Study,
    name: str | None,
    addresses: Sequence[str],
    *,
    plan: Proposal | None = None,
    accountant: Accountant | None = None,
    accept: Callable[[Proposal], None] = lambda plan: None,
    certificates: Certificates | None = None,
    threshold: int | None = None,
    deadline: float = 60.0,
) -> Iterator[tuple[MpycParty, Proposal]]:
    """Connect to all parties of a study, and agree on a plan; yield the party and the plan.

    Every party then runs the solver of the plan on `dpkern.data.parted.held_by(party, ...)`, and
    leaves the context together with the others, or with an error, which ends the study for all.

    Parameters
    ----------
    study : Study
        The party's own copy.
    name : str or None
        The silo's; None for the analyst.
    addresses : sequence of str
        HOST:PORT of every silo, in the study's order; silos listen there. The analyst calls only.
    plan : Proposal
        What the analyst proposes; None at a silo.
    accountant : Accountant or None
        Of a silo, which tells the others its last line.
    accept : callable
        Is called with the plan at a silo, and raises where it does not take part.
    certificates : Certificates, optional
        Needed unless all silos are on this machine.
    threshold : int, optional
        T, below half of the m + 1 parties and above `colluding`, as the analyst may pool shares
        with the colluding silos. The largest by default.
    deadline : float, default=60.0
        Seconds to connect, and for every release, others' computations between releases included.

    Raises
    ------
    ValueError
        For a threshold or addresses that are not as above.
    ProtocolError
        When others have another study, threshold or version, are at another release, or a
        certificate is not theirs.
    SilosLostError, CoordinatorLostError
        When parties are lost or late. What was sent is charged.
    """
    silos = len(study.names)
    if name is not None and name not in study.names:
        raise ValueError(f"name must be one of {', '.join(study.names)}, or None, got {name!r}")
    if (plan is None) != (name is not None):
        raise TypeError("plan must be given at the analyst, and at no silo")
    seconds = positive("deadline", deadline)
    chosen = _threshold(silos, study.colluding, threshold)
    places = _places(addresses, silos, certificates is not None)
    pid = 0 if name is None else study.names.index(name) + 1
    if asyncio._get_running_loop() is not None:
        raise RuntimeError("join must be called where no event loop runs: not in a notebook")
    if not _in_use.acquire(blocking=False):
        raise RuntimeError("join must be left before it is called again: one party in a process")
    try:
        names = (ANALYST, *study.names)
        mesh = Mesh(names, places, pid, chosen, certificates, seconds)
        try:
            mesh.run(mesh.connect)
            party, agreed = _agree(mesh, study, plan, accountant)
            if name is not None:
                accept(agreed)
            yield party, agreed
            party.end()
        finally:
            mesh.close()
    finally:
        _in_use.release()


def _agree(
    mesh: Mesh, study: Study, plan: Proposal | None, accountant: Accountant | None
) -> tuple[MpycParty, Proposal]:
    """Exchange first messages, and return the party of a session and the plan."""
    own = {
        "protocol": PROTOCOL,
        "dpkern": VERSION,
        "study": study.digest,
        "threshold": mesh.runtime.threshold,
    }
    text = None if plan is None else plan.to_json()
    hello = own | {"nonce": secrets.token_hex(32), "plan": text}
    hello["ledger"] = state_ledger(accountant).hex()
    said = canonical(hello, spaces=True).encode()
    found = mesh.run(lambda: mesh.exchange(digest("mpyc"), said)) | {mesh.runtime.pid: said}
    opening, statements = [found[pid] for pid in sorted(found)], list[bytes]()
    for pid, message in sorted(found.items()):
        who = mesh.names[pid]
        try:
            told = json.loads(message)
            values = {what: told[what] for what in own}
            text = str(told["plan"]) if pid == 0 else text
            statements += [bytes.fromhex(told.get("ledger", ""))] if pid else []
        except (KeyError, RecursionError, TypeError, ValueError):
            raise ProtocolError(f"the first message of {who} is none of this protocol") from None
        refuse_other(who, values, own)
    agreed = Proposal.from_json(str(text))
    if agreed.arguments.get("trust") != study.trust:
        raise ProtocolError(f"the plan's trust must be that of the study, {study.trust!r}")
    session = digest("mpyc session", *opening)
    party = MpycParty(mesh, len(study.names), study.colluding, session)
    note_ledgers(party, study.names, statements, accountant)
    return party, agreed


def _threshold(silos: int, colluding: int | None, threshold: int | None) -> int:
    most, least = silos // 2, 1 + (colluding or 0)
    chosen = most if threshold is None else count("threshold", threshold)
    if silos > 255:
        raise ValueError(f"study must have at most 255 silos, got {silos}")
    if not least <= chosen <= most:
        raise ValueError(
            f"threshold must be at least {least}, for colluding={colluding or 0} silos and the "
            f"analyst, and at most {most}, below half of {silos + 1} parties, got {chosen}"
        )
    return chosen


def _places(addresses: Sequence[str], silos: int, encrypted: bool) -> list[tuple[str, int]]:
    parts = [address.rpartition(":") for address in addresses]
    if len(parts) != silos or not all(
        host and port.isascii() and port.isdecimal() for host, _, port in parts
    ):
        raise ValueError(f"addresses must be HOST:PORT of all {silos} silos, got {addresses!r}")
    places = [(host.strip("[]"), int(port)) for host, _, port in parts]
    for host, _ in places:
        if not (encrypted or host == "localhost" or _is_loopback(host)):
            raise ValueError(f"certificates must be given for other machines, got {host!r} without")
    return places


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
