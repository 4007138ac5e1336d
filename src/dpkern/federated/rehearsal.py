"""What a plan releases and costs, before any record is read."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern.data.parted import held_by
from dpkern.federated.plan import Plan
from dpkern.federated.study import Study
from dpkern.party import Party
from dpkern.privacy import Certificate
from dpkern.solvers import solve
from dpkern.solvers.base.learning import NothingLearntWarning
from dpkern.stream import NoiseStream


class _Alone(Party):
    """A party that reaches nobody, and takes every sum and every message for 0."""

    silo = None

    def __init__(self, colluding: int | None) -> None:
        self.colluding, self.public = colluding, NoiseStream()

    def total(self, steps: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        return steps

    def messages(self, rows: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        return np.zeros_like(rows)


def rehearsed(
    study: Study, plan: Plan, *, callback: Callable[[int, Any], None] | None = None
) -> Certificate:
    """Return the certificate of a plan, from the study's public numbers alone.

    Clip norms and noise that follow from models released before are those for sums of 0.

    Raises
    ------
    TypeError, ValueError
        As the run itself would.
    """
    data = held_by(_Alone(study.colluding), study.described, study.sizes)
    with warnings.catch_warnings(), NoiseStream() as unused:
        warnings.simplefilter("ignore", NothingLearntWarning)
        result = solve(
            plan.solver,
            data,
            budget=plan.budget,
            rng=unused,
            callback=callback,
            n_threads=1,
            **plan.arguments,
        )
    return result.privacy


def disclosure(study: Study, plan: Plan, certificate: Certificate) -> list[str]:
    """Return who is told what by a silo that takes part, a line each."""
    m, t = len(study.names), study.colluding
    sums = study.trust == "central"
    what = "the sum over all silos" if sums else "this silo's noisy message"
    lines = [
        f"{release.what}: {release.times} x {release.dim} numbers"
        for release in certificate.releases
    ]
    told = [f"to the coordinator and the other {m - 1} silos, of these records: {what} of"]
    told += [f"    {line}" for line in lines]
    if sums:
        told.append(
            "each with noise that the silos add before they send; what this silo sends is masked, "
            "and nobody sees it but in the sum"
        )
        told.append(
            f"the guarantee holds against the coordinator together with {t} silo{'s' * (t != 1)}, "
            + ("which the others are not: each knows its own noise" if t == 0 else "that follow it")
        )
    else:
        told.append("each with noise that this silo adds; the guarantee relies on nobody else")
    told.append("public: numbers of records of all silos, the study and the plan")
    return told
