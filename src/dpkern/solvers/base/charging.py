"""What an accountant charges a run before its first release."""

from typing import TYPE_CHECKING

from dpkern.privacy import NoiseStream
from dpkern.privacy.accountant.accountant import Charge
from dpkern.privacy.accountant.profiles import Bound
from dpkern.privacy.certificate.persons import unit_of
from dpkern.privacy.sampling.amplification import AMPLIFIES

if TYPE_CHECKING:  # run imports this module
    from dpkern.solvers.base.run import Run


def charge_of(run: "Run") -> Charge | None:
    """Return the charge of a run, to be made before its first release; None without accountant.

    Raises
    ------
    ValueError
        When the run would release something that its certificate does not count.
    """
    if run.accountant is None:
        return None
    if run.budget is None:
        raise ValueError("budget must be given with an accountant, got None: nothing is certified")
    if run.paper:
        raise ValueError("calibration must be 'sound' with an accountant, got 'paper'")
    if run.monitor is run.objective:
        raise ValueError(
            "monitor must be None or public records with an accountant, got 'train', whose history "
            "no certificate counts"
        )
    rng = run.parameters["rng"]
    seeded = rng.kind != "os" if isinstance(rng, NoiseStream) else rng is not None
    bound = _bound(run, run.accountant.assumed_draws)
    unit = "one record" if run.persons is None else unit_of(run.persons.max_records)
    relation = run.neighbours
    return run.accountant.begin(run.solver, bound, neighbours=relation, seeded=seeded, unit=unit)


def _bound(run: "Run", n_draws: int) -> Bound:
    """Return what the run may spend: mu where it is Gaussian DP, else its budget as it stands."""
    # Of a person, where the run's own is that of a record.
    budget, sampling = run.parameters["budget"], run.parameters.get("sampling")
    assert budget is not None
    secret = sampling == AMPLIFIES[run.neighbours] and run.trust != "shuffle"
    if run.declaration.gaussian and not secret:
        return Bound(mu=budget.mu, n_draws=n_draws)
    if budget.epsilon is not None:
        return Bound(epsilon=budget.epsilon, delta=budget.delta)
    if not run.declaration.gaussian:
        raise ValueError(f"budget must be given as epsilon and delta in {run.solver}")
    return Bound(mu=budget.mu, n_draws=n_draws)  # as if every record had been used
