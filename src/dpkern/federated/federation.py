"""The analyst's side of a study: data that a solver takes, and that silos hold."""

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from dpkern.data import SiloData
from dpkern.data.parted import held_by
from dpkern.federated.journal import RecordedStar
from dpkern.federated.links import Star
from dpkern.federated.masking import digest, public_stream, session_id
from dpkern.federated.party import CoordinatorParty
from dpkern.federated.plan import OWN, Plan
from dpkern.federated.study import Study
from dpkern.party import Remote
from dpkern.privacy import Budget
from dpkern.stream import NoiseStream

PROTOCOL, VERSION = 1, version("dpkern")


def agreed(study: Study, plan: str) -> bytes:
    """Return the digest of all that the parties of a study have agreed on."""
    return digest("agreed", study.digest.encode(), VERSION.encode(), plan.encode())


class Federation(Remote):
    """The silos of a study, in place of a `SiloData`.

    Every party runs the solver, this one without records. Silos add their noise before anything
    leaves them; what they send is masked where trust is "central", so that the coordinator learns
    the noisy sums and the silos' public numbers, and nothing else.

    Parameters
    ----------
    study : Study
    star : callable () -> Star
        Connects to the silos of the study, in its order.
    journal : path, optional
        A file in which the silos' answers are kept. Killed in a run, the same call with the same
        journal goes on with it, as long as the silos wait.
    """

    def __init__(
        self,
        study: Study,
        star: Callable[[], Star],
        *,
        journal: str | os.PathLike[str] | None = None,
    ) -> None:
        self.study, self._star, self._journal = study, star, journal

    @property
    def task(self) -> str:
        return self.study.described.task

    def _connected(self) -> tuple[Star, bytes]:
        """Return the star, connected when it is used, and the nonce of the session."""
        if self._journal is None:
            return self._star(), secrets.token_bytes(32)
        recorded = RecordedStar(self.study.names, self._star, self._journal)
        return recorded, recorded.nonce

    @contextmanager
    def opened(
        self, solver: str, budget: Any, arguments: Mapping[str, Any]
    ) -> Iterator[tuple[SiloData, dict[str, Any]]]:
        study = self.study
        if not isinstance(budget, Budget):
            raise TypeError(
                "budget must be dpkern.Budget(epsilon=..., delta=...) in a federation, where all "
                f"that is sent has noise, got {type(budget).__name__}"
            )
        if arguments.get("trust", study.trust) != study.trust:
            raise ValueError(f"trust must be that of the study, {study.trust!r}")
        shared = {name: value for name, value in arguments.items() if name not in OWN}
        plan = Plan(solver, budget, {**shared, "trust": study.trust}).to_json()
        hello = {
            "protocol": PROTOCOL,
            "dpkern": VERSION,
            "study": study.digest,
            "plan": plan,
        }
        connected, nonce = self._connected()
        with connected as star:
            silos = len(star.silos)
            first = json.dumps(hello | {"nonce": nonce.hex()}, sort_keys=True).encode()
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
            # Draws of its own are of silos that it does not have: nobody sees them.
            with NoiseStream() as unused:
                own = {name: arguments[name] for name in OWN if name in arguments and name != "rng"}
                data = held_by(party, study.described, study.sizes)
                yield data, {**shared, "trust": study.trust, "rng": unused, **own}
            star.close(party.told)
