"""What a plan releases and costs, before any record is read."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import counted
from dpkern.data.parted import held_by
from dpkern.federated.proposal import Proposal
from dpkern.federated.study import Study
from dpkern.party import Party
from dpkern.privacy import Certificate
from dpkern.privacy.accountant.accountant import Accountant
from dpkern.solvers.base.outcome import NothingLearntWarning
from dpkern.stream import NoiseStream


class _Alone(Party):
    """A party that reaches nobody, and takes every sum and every message for 0."""

    silo = None

    def __init__(self, colluding: int | None) -> None:
        self.colluding, self.public = colluding, NoiseStream()

    def ready(self) -> None:
        pass

    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        return steps

    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        return np.zeros_like(rows)


def rehearsed(
    study: Study,
    plan: Proposal,
    *,
    callback: Callable[[int, Any], None] | None = None,
    accountant: Accountant | None = None,
) -> Certificate:
    """Return the certificate of a plan, from the study's public numbers alone.

    Clip norms and noise that follow from models released before are those for sums of 0. An
    accountant is charged as by the run itself: give the one of a copy.

    Raises
    ------
    TypeError, ValueError, BudgetSpentError
        As the run itself would.
    """
    data = held_by(_Alone(study.colluding), study.described, study.sizes)
    with warnings.catch_warnings(), NoiseStream() as unused:
        warnings.simplefilter("ignore", NothingLearntWarning)
        own = {"rng": unused, "callback": callback, "accountant": accountant, "n_threads": 1}
        result = plan.run(study, data, **own)
    model = None if study.model is None else study.model.digest
    return replace(result.privacy, model=model, started=None)


def disclosure(study: Study, plan: Proposal, certificate: Certificate) -> list[str]:
    """Return who is told what of the records of a silo that takes part, a line each."""
    m, t = len(study.names), study.colluding
    told = [
        f"to the coordinator and the other {m - 1} silos, "
        + ("sums over all silos:" if study.trust == "central" else "this silo's own messages:"),
        *(
            f"    {release.times} x {release.what}, {counted(release.dim, 'number')} with noise"
            for release in certificate.releases
        ),
    ]
    if study.trust == "silo":
        return [*told, "all of the noise is this silo's: the guarantee relies on nobody else"]
    told.append("this silo adds its share of the noise, and a mask, before it sends")
    if t == 0:
        told.append(
            "the guarantee holds against the coordinator alone, and not against a silo: each knows "
            "its own share of the noise"
        )
    else:
        told.append(
            f"the guarantee holds against the coordinator together with up to {t} of the others"
        )
    return told
