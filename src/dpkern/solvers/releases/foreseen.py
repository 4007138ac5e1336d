"""What a run with standard errors is told before its first release, by public numbers."""

import math
from dataclasses import replace

import numpy as np

from dpkern._warn import warn
from dpkern.models.ordinal import AllThreshold
from dpkern.privacy import BudgetWarning
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan
from dpkern.solvers.base.public_numbers import public_numbers
from dpkern.solvers.releases.estimation import resolve_estimation
from dpkern.solvers.releases.forecast import assumed, forecast, usual_rate


def resolve_foreseen(plan: RunPlan, objective: Objective) -> RunPlan:
    """Refuse what has no standard errors, and warn where none are to be expected."""
    plan = resolve_estimation(plan, objective)
    budget = plan.budget
    # With these there is no forecast.
    if budget is None or objective.l2 or isinstance(objective.loss, AllThreshold):
        return plan
    numbers = public_numbers(objective, budget, plan.trust, plan.neighbours)
    assert numbers is not None
    n, held = objective.n, ""
    if plan.trust == "silo":
        n, held = int(np.max(objective.sizes)), " of a silo"
    mu, phi = budget.mu, objective.phi
    if (shares := plan.shares) is not None:
        mu *= math.sqrt(1.0 - shares.colluding / shares.silos)
    unit = 1.0 if plan.sizes_are_hidden else 2.0
    numbers = replace(numbers, trust="central", noise=unit / n, mu=mu)
    found = forecast(numbers, phi, n, usual_rate(phi), plan.arguments["budget"].delta)
    if not found.is_answered:
        found = replace(found, least_mu=found.least_mu * budget.mu / mu)
        why = assumed(phi)
        warn(f"with {n} records{held}, {found}{why and f'; {why}'}", BudgetWarning)
    return plan
