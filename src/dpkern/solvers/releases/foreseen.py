"""What a run with standard errors is told before its first release, by public numbers."""

import math
from dataclasses import replace

import numpy as np

from dpkern._warn import warn
from dpkern.models.losses import Logistic
from dpkern.models.ordinal import AllThreshold, CumulativeLogit
from dpkern.privacy import BudgetWarning
from dpkern.solvers.base.objective import Objective, public_numbers
from dpkern.solvers.base.plan import RunPlan
from dpkern.solvers.releases.estimation import resolve_estimation
from dpkern.solvers.releases.forecast import assumed, forecast, is_answered, usual_rate

# Noise of losses at all thresholds, over that of two classes with as many coefficients, which that
# of the likelihood is like.
_ALL_THRESHOLDS = 1.5
_OF_CLASSES = "classes of like sizes were assumed: rare ones need more"


def resolve_foreseen(plan: RunPlan, objective: Objective) -> RunPlan:
    """Refuse what has no standard errors, and warn where none are to be expected."""
    plan = resolve_estimation(plan, objective)
    budget = plan.budget
    if budget is None or objective.l2:  # with which there is no forecast
        return plan
    numbers = public_numbers(objective, budget, plan.trust, plan.neighbours)
    assert numbers is not None
    n, held = objective.n, ""
    if plan.trust == "silo":
        n, held = int(np.max(objective.sizes)), " of a silo"
    mu, ordered = budget.mu, isinstance(objective.loss, AllThreshold)
    phi = Logistic() if ordered else objective.phi
    if ordered and not isinstance(objective.loss, CumulativeLogit):
        mu /= _ALL_THRESHOLDS
    if (shares := plan.shares) is not None:
        mu *= math.sqrt(1.0 - shares.colluding / shares.silos)
    unit = 1.0 if plan.sizes_are_hidden else 2.0
    numbers = replace(numbers, trust="central", noise=unit / n, mu=mu)
    rate = usual_rate(phi)
    if not is_answered(numbers, phi, n, rate):
        found = forecast(numbers, phi, n, rate, plan.arguments["budget"].delta)
        found = replace(found, least_mu=found.least_mu * budget.mu / mu)
        why = _OF_CLASSES if ordered else assumed(phi)
        warn(f"with {n} records{held}, {found}{why and f'; {why}'}", BudgetWarning)
    return plan
