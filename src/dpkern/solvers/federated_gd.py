"""Federated gradient descent with an aggregation every K local steps.

Algorithm 1 of Huang, "A federated algorithm for privacy-preserving empirical risk minimization",
and for K = 1 the gradient method of Jayaraman, Wang, Evans, Gu, "Distributed learning without
distress: privacy-preserving empirical risk minimization", NeurIPS 2018:

    w = 0
    for r = 1..rounds:
        theta_j = w in every silo j
        K times:  theta_j = prox_{eta_t h}( theta_j - eta_t (grad J_j(theta_j) + z_tj) )
        w = sum_j p_j theta_j + z_r                                the only release (central)
    return w

    sound, central:  z_tj = 0,  z_r ~ N(0, s^2 I),  one noise in the aggregator
    sound, silo:     z_tj ~ N(0, s_j^2 I),  z_r = 0;  theta_j is seen too
    paper:           z_tj ~ N(0, s^2 I) with s of the aggregate,  z_r = 0

J_j is the mean over silo j of the clipped losses plus the penalties, h the proximal penalty.
The paper calibrates every silo's noise as if it were the aggregate's: for K = 1, averaging m of
them leaves 1/sqrt(m) of what is claimed; for K > 1 its proof does not cover iterates that differ
between silos.
"""

from typing import Literal

import numpy as np

from dpkern.papers import noise
from dpkern.solvers.base import (
    AUTO,
    BOTH,
    Count,
    Returns,
    Run,
    SolverResult,
    StepSize,
    solver,
)
from dpkern.solvers.base.settings import federated_descent
from dpkern.solvers.releases.local_runs import (
    NOT_HIDDEN,
    GradientStep,
    NoisySteps,
    average_runs,
    local_advance,
)


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("central",), settings=federated_descent,
    person_sums=True, in_blocks=1, on_card=True, error=(0.19, 0.98), seconds=(0.75, 0.0),
    audit={"rounds": 4, "local_steps": 1, "step_size": 1e-5}, sends_models=True,
)  # fmt: skip
async def federated_gd(
    run: Run,
    *,
    rounds: Count = AUTO,
    local_steps: Count = AUTO,
    step_size: StepSize = "auto",
    accounting: Literal["composition", "last_iterate"] = "composition",
    returns: Returns = "auto",
) -> SolverResult:
    """Federated gradient descent on the clipped objective, with one aggregation per round.

    Parameters
    ----------
    local_steps : int
        Steps K of every silo between two aggregations; T = rounds K. "auto" is 1, which has the
        least noise for its horizon; more of them save communication.

    Notes
    -----
    Central trust. K = 1: V = sum_j om_j S_j + Z is released once a round, S_j the exact sum on a
    grid of clipped per-record gradients at the public w, om_j = (p_j/n_j) / max_k (p_k/n_k) applied
    to every record before rounding. The sensitivity of V is 2 C, and s = max_j (2 C p_j / n_j)
    sqrt(T) / mu on the mean gradient. K > 1: the local steps are noiseless and hidden, and the
    release is V = sum_j round_q( p_j (theta_j - w) ) + Z, of sensitivity D = max_j p_j (2 C / n_j)
    E_K plus rounding terms (`sensitivity.local_runs`) and std D sqrt(rounds) / mu. This needs a
    row bound and a loss of bounded curvature.

    Silo trust. Every silo adds N(0, (2 C)^2 T / mu^2) to its exact sum at every local step and
    sends theta_j, a function of T noisy sums of sensitivity 2 C. With "last_iterate" its iterates
    are rounded to a grid and noised instead, and the last one has the sensitivity of
    `LastIterate`. Silos hold disjoint records and compose in parallel.

    Paper mode, K = 1: Z is the sum of m independent shares on one grid; with equal silos its true
    mu is sqrt(m) times the claimed one. K > 1: mu <= max_j 2 C sqrt(T) / (n_j s), by composing each
    silo's own steps.

    With "add_remove" and K = 1 the sensitivity of a sum is C instead of 2 C. That of hidden steps
    is not known, and K > 1 is refused.

    Everything else is post-processing.
    """
    if run.plan.sizes_are_hidden and (accounting == "last_iterate" or local_steps > 1):
        raise ValueError(
            "neighbours='add_remove' needs local_steps=1 and accounting='composition' in "
            "federated_gd: the effect of an added or removed record on hidden steps is not bounded"
        )
    eta, data, claim = run.plan.step_sizes, run.objective.data, run.plan.claimed
    if data.blocks is not None and (local_steps > 1 or accounting == "last_iterate"):
        raise ValueError(
            "local_steps must be 1, and accounting 'composition', for records in blocks, got "
            f"{local_steps} and {accounting!r}: local steps read single records"
        )
    sigma = None
    if claim is not None:
        n_min, T = int(data.sizes.min()), eta.size
        s = noise.federated_gd(claim, clip=run.plan.clip, smallest=n_min, m=data.m, steps=T)
        sigma = np.full(data.m, s)
    if local_steps > 1 and sigma is not None:
        return await average_runs(run, eta, NoisySteps(run, sigma=sigma * data.sizes), NOT_HIDDEN)
    if local_steps > 1 or accounting == "last_iterate":
        return await average_runs(run, eta, *local_advance(run, eta, accounting))
    return await average_runs(run, eta, GradientStep(run, sigma))
