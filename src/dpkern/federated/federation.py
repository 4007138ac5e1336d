"""The analyst's side of a study: data that a solver takes, and that silos hold."""

import os
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import Any

from dpkern._json import canonical
from dpkern._numbers import positive
from dpkern._warn import warn
from dpkern.data import SiloData
from dpkern.data.parted import held_by
from dpkern.federated.journal import RecordedStar
from dpkern.federated.links import Star
from dpkern.federated.masking import digest, public_stream, session_id, statement_of
from dpkern.federated.party import CoordinatorParty, ProtocolError
from dpkern.federated.proposal import OWN, Proposal
from dpkern.federated.study import Study
from dpkern.party import Party, Remote
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.privacy.guarantees.gdp import check_budget
from dpkern.solvers import SolverResult
from dpkern.stream import NoiseStream

PROTOCOL, VERSION = 4, version("dpkern")
_LEDGERS = "last lines of the silos' ledgers before this run: "
_LINE = struct.Struct("<Q8s")
_PATIENCE = 10.0  # seconds that a run waits for silos to confirm its end


def agreed(study: Study, plan: str) -> bytes:
    """Return the digest of all that the parties of a study have agreed on."""
    return digest(
        "agreed", study.digest.encode(), str(PROTOCOL).encode(), VERSION.encode(), plan.encode()
    )


class Federation(Remote):
    """The silos of a study, in place of a `SiloData`.

    `dpkern.evaluate` takes it where the study states a model, and `dpkern.solve` any other. Every
    party runs the solver, this one without records. Silos add their noise before anything
    leaves them; what they send is masked where trust is "central", so that the coordinator learns
    the noisy sums and the silos' public numbers, and nothing else.

    Parameters
    ----------
    study : Study or path
        The study, or its file.
    keys : path, optional
        The folder of the coordinator's keys, where ``dpkern federation up`` runs.
    star : callable () -> Star, optional
        Connects to the silos, in the study's order, in place of the server that `keys` is for.
    journal : path, optional
        A file in which the silos' answers are kept. Killed in a run, the same call with the same
        journal goes on with it, as long as the silos wait.
    deadline : float, default=600.0
        Seconds that silos may take to join, and to answer.
    insecure : bool, default=False
        Connect without encryption, as ``dpkern federation up --insecure``.

    Raises
    ------
    TypeError, ValueError, OSError
        When the study cannot be read, or neither keys nor star is given.

    Examples
    --------
    >>> federation = dpkern.Federation("study.toml", keys="coordinator")
    >>> budget = dpkern.Budget(epsilon=1.0, delta=1e-6)
    >>> result = dpkern.solve("gradient_descent", federation, budget=budget)
    """

    def __init__(
        self,
        study: Study | str | os.PathLike[str],
        *,
        keys: str | os.PathLike[str] | None = None,
        star: Callable[[], Star] | None = None,
        journal: str | os.PathLike[str] | None = None,
        deadline: float = 600.0,
        insecure: bool = False,
    ) -> None:
        if (keys is None) == (star is None):
            raise ValueError("keys must be the folder of the coordinator's keys, or star be given")
        self.study = study if isinstance(study, Study) else Study.read(study)
        self._keys, self._star, self._journal = keys, star, journal
        self._deadline, self._insecure = positive("deadline", deadline), insecure
        self._last, self._untold = b"", list[str]()  # what silos have yet to hear, and which

    def _connect(self) -> Star:
        if self._star is not None:
            return self._star()
        from dpkern.federated.connections import coordinator_star

        assert self._keys is not None
        return coordinator_star(
            self.study, self._keys, insecure=self._insecure, deadline=self._deadline
        )

    @property
    def described(self) -> SiloData:
        return self.study.described

    @property
    def model(self) -> SolverResult | None:
        return self.study.model

    def _connected(self) -> tuple[Star, bytes]:
        """Return the star, connected when it is used, and the nonce of the session."""
        if self._journal is None:
            return self._connect(), secrets.token_bytes(32)
        recorded = RecordedStar(self.study.names, self._connect, self._journal)
        return recorded, recorded.nonce

    @contextmanager
    def opened(
        self, solver: str, budget: Any, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[SiloData, dict[str, Any]]]:
        study = self.study
        plan = proposed(study, solver, budget, arguments).to_json()
        hello = {
            "protocol": PROTOCOL,
            "dpkern": VERSION,
            "study": study.digest,
            "plan": plan,
        }
        connected, nonce = self._connected()
        with connected as star:
            silos = len(star.silos)
            first = canonical(hello | {"nonce": nonce.hex()}, spaces=True).encode()
            offers = star.exchange([first] * silos)
            session = session_id(study.roster, nonce, agreed(study, plan), offers)
            second = b"".join(offers)
            confirmations = b"".join(star.exchange([second] * silos))
            party = CoordinatorParty(
                star,
                colluding=study.colluding,
                opening=first + second + confirmations,
                told=confirmations,
                public=public_stream(session),
            )
            note_ledgers(party, study.names, map(statement_of, offers))
            with coordinated(study, party, arguments) as found:
                yield found
            self._last, self._untold = party.told, list(study.names)
            self._tell(star, min(self._deadline, _PATIENCE))
        if self._untold:
            warn(
                f"the study is complete, but {', '.join(self._untold)} did not confirm the last "
                "sum: `finish` goes on telling them, as does the same call with its journal",
                UserWarning,
            )

    def _tell(self, star: Star, seconds: float) -> None:
        told = star.finish(self._last, self._untold, seconds)
        self._untold = [name for name in self._untold if name not in told]

    def finish(self) -> tuple[str, ...]:
        """Tell the last sum to silos that have not confirmed it, until the deadline.

        A run returns its model when it has it, whether or not all silos, or the server, are there
        to hear the end.

        Returns
        -------
        tuple of str
            The silos that still have not confirmed it.
        """
        end = time.monotonic() + self._deadline
        while self._untold and (left := end - time.monotonic()) > 0.0:
            with suppress(ConnectionError), self._connected()[0] as star:
                self._tell(star, left)
            time.sleep(min(1.0, left) if self._untold else 0.0)
        return tuple(self._untold)


def refuse_other(who: str, told: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ProtocolError where a party has told something else than this one has."""
    show = "compare study files and schemas by `dpkern federation show`"
    cures = {"study": show, "threshold": "give the same to all"}
    for what, value in own.items():
        if told[what] != value:
            cure = cures.get(what, "all need the same version of dpkern")
            said = f"the {what} of {who} is {told[what]!r}, here it is {value!r}: {cure}"
            raise ProtocolError(said)


def state_ledger(accountant: Accountant | None) -> bytes:
    """Return what a silo tells the others of its ledger, the last line."""
    return state_line((0, "00" * 8) if accountant is None else accountant.last_line)


def state_line(line: tuple[int, str]) -> bytes:
    """Return number and check of a ledger's line in bytes."""
    return _LINE.pack(line[0], bytes.fromhex(line[1]))


def read_line(statement: bytes) -> tuple[int, str]:
    """Return number and check of a ledger's line, number 0 where there is no ledger."""
    number, check = _LINE.unpack(statement)
    return number, check.hex()


def note_ledgers(
    party: Party,
    names: Sequence[str],
    statements: Iterable[bytes],
    accountant: Accountant | None = None,
) -> None:
    """Let the certificate have the last lines of the silos' ledgers before the run, as they state.

    With an accountant, warn of silos whose ledgers end where they ended before a study that it has:
    they have charged that study since, unless their charges were undone.
    """
    lines = []
    for name, statement in zip(names, statements, strict=True):
        if len(statement) != _LINE.size:
            raise ProtocolError(f"silo {name!r} must state its ledger's last line, got another")
        number, check = read_line(statement)
        lines.append(f"{name} line {number} ({check})" if number else f"{name} none")
    party.ledgers = f"{_LEDGERS}{', '.join(lines)}"
    known = () if accountant is None else accountant.certificates
    notes = [note for one in known for note in one.notes]
    before = {line for note in notes for line in note.removeprefix(_LEDGERS).split(", ")}
    for line in [line for line in lines if line in before and not line.endswith(" none")]:
        warn(
            f"{line.split()[0]}: its ledger ends where it ended before an earlier study, so that "
            "what it has charged since is undone: ask its people before this one goes on",
            UserWarning,
        )


def proposed(study: Study, solver: str, budget: Any, arguments: Mapping[str, Any]) -> Proposal:
    """Return what the coordinator of a study proposes, without arguments of its own process."""
    check_budget(budget)
    if arguments.get("trust", study.trust) != study.trust:
        raise ValueError(f"trust must be that of the study, {study.trust!r}")
    study.check_solver(solver)
    shared = {name: value for name, value in arguments.items() if name not in OWN}
    return Proposal(solver, budget, {**shared, "trust": study.trust})


@contextmanager
def coordinated(
    study: Study, party: Party, arguments: Mapping[str, Any]
) -> Iterator[tuple[SiloData, dict[str, Any]]]:
    """Return the coordinator's data, and the arguments of its own run."""
    # Draws of its own are of silos that it does not have: nobody sees them.
    with NoiseStream() as unused:
        party.silos = study.names
        data = held_by(party, study.described, study.sizes)
        yield data, {**arguments, "trust": study.trust, "rng": unused}
