"""Who adds the noise of a run's sums over silos: an aggregator, or the silos by shares."""

from typing import TYPE_CHECKING

from dpkern.privacy.mechanisms.channel import Shares

if TYPE_CHECKING:  # run imports this module
    from dpkern.solvers.base.run import Run


def shares_of(run: "Run") -> Shares | None:
    """Return how silos share the noise, and complete the argument `colluding`.

    Raises
    ------
    ValueError
        When the solver, its trust model or calibration has no shares, or a federation lacks what
        it needs.
    """
    data, party, t = run.objective.data, run.objective.data.party, run.parameters["colluding"]
    if party is None and t is None:
        return None
    where = "colluding" if party is None else "a federation"
    if not run.declaration.federated:
        raise ValueError(
            f"{where} needs a solver whose releases are sums over silos or messages of silos, "
            f"which those of {run.solver} are not"
        )
    if party is not None and run.budget is None:
        raise ValueError("budget must be given in a federation, where all that is sent has noise")
    if party is not None and run.parameters["monitor"] == "train":
        raise ValueError("monitor must be None or public records in a federation, got 'train'")
    if run.paper:
        raise ValueError(f"{where} needs calibration='sound'")
    if run.trust == "silo":
        if t is not None:
            raise ValueError("colluding needs trust='central': a silo's message has its own noise")
        return None
    if run.trust != "central":
        raise ValueError(f"{where} needs trust 'central' or 'silo', got {run.trust!r}")
    if party is not None and t not in (None, party.colluding):
        raise ValueError(f"colluding must be that of the study, {party.colluding}, got {t}")
    t = t if party is None else party.colluding
    if t is None:
        raise ValueError("colluding must be a number in a study with trust 'central', got None")
    if t >= data.m:
        raise ValueError(f"colluding must be below the {data.m} silos, got {t}")
    run.parameters["colluding"] = t
    return None if run.budget is None else Shares(data.m, t)
