"""Noisy local SGD across silos that trust nobody.

The baseline of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a
trusted server", AISTATS 2023:

    for r = 0..R-1:
        each silo j in S_r:   theta_j = w
            K times:          theta_j = prox_{eta h}( theta_j - eta (g + noise) ),
                              g the mean over a batch of grad f(theta_j, x)
        w = weighted mean of theta_j over S_r
    return w

A silo sends theta_j once per round, a function of K noisy sums; with noise="round" the noise is on
theta_j - w instead of the local steps. The paper's steps use one record each, and its noise,
sqrt(8 K R ln(1/delta)) C / (n epsilon), relies on an amplification theorem whose condition does not
hold: calibration="paper" certifies its true guarantee.
"""

from typing import Literal

import numpy as np

from dpkern.papers import noise as printed
from dpkern.privacy.sampling.record_sampling import SAMPLERS
from dpkern.solvers.base import AUTO, BOTH, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan, resolve_step_sizes
from dpkern.solvers.base.settings import local_descent
from dpkern.solvers.releases.local_runs import (
    HIDDEN,
    IN_TURN,
    NoisyBatchSteps,
    average_runs,
    hidden_batch_steps,
)


def _resolve_noise(plan: RunPlan, objective: Objective) -> RunPlan:
    if plan.arguments["noise"] is None:
        plan = plan.replace_arguments(noise="step" if plan.trust == "silo" else "round")
    return resolve_step_sizes(plan, objective)


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("silo",), samplers=SAMPLERS,
    models="any", settings=local_descent, resolve=_resolve_noise, error=(0.12, 0.76),
    seconds=(0.91, 0.0), hidden=("central",),
    audit={"rounds": 4, "local_steps": 1, "step_size": 1e-5},
)  # fmt: skip
async def local_sgd(
    run: Run,
    *,
    rounds: Count = AUTO,
    local_steps: Count = AUTO,
    noise: Literal["step", "round"] | None = None,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy local SGD on the clipped objective.

    Parameters
    ----------
    noise : {"step", "round"} or None
        "step", the default under trust "silo" and offered there only, adds noise to every local
        step; "round" adds it once to the result of noiseless steps, for linear models with a
        row bound and a loss of bounded curvature, and full, "one_pass" or "cyclic" batches.

    Notes
    -----
    noise="step": every participating silo sends theta_j, a function of public numbers and of K
    noisy sums of clipped gradients over its batches. The sensitivity of such a sum, at a model that
    is public or a function of earlier noisy sums, is 2 C, or C where a record is added or removed.
    R K releases are charged, or those of the rounds in which the silo participates, though only
    every K-th iterate is seen. Silos hold disjoint records. Batches are those of `minibatch_sgd`.

    noise="round": theta_j - w, or the weighted sum of these under central trust, is rounded to a
    grid and released with noise. For full-batch steps the sensitivity is (2 C / n_j) E_K plus
    rounding terms (`LocalRuns`), in R releases. With sampling="one_pass" or "cyclic" the steps use
    consecutive batches of b records in an order that is independent of the records. A step
    multiplies the distance of iterates on neighbouring data sets by at most c_t, and adds
    eta_t 2 C / b if its batch contains the replaced record. So the sensitivity is (2 C / b) sum of
    eta_t prod_{u > t} c_u over the steps t of the round that use the record, at most
    ceil(K b / n_j) of them, for the worst position in the order. A record is charged for the rounds
    that use it: min(R, ceil(R K b / n)) releases, n the smallest n_j. The secrecy of the order is
    not used.

    Calibration "paper" (noise="step") draws sqrt(8 K R ln(1/delta)) C / (n_j epsilon) on the silo's
    mean and certifies its true guarantee.
    """
    eta = run.plan.step_sizes
    if noise == "round" and (model := run.plan.arguments["model"]) is not None:
        raise TypeError(f"model must be linear, got {model.name!r}; others need trust='silo' here")
    if noise == "round":
        notes = (HIDDEN,) if run.plan.arguments["sampling"] == "full" else (HIDDEN, IN_TURN)
        return await average_runs(run, eta, hidden_batch_steps(run, eta), *notes)
    if run.plan.trust != "silo":
        raise ValueError("noise='step' needs trust='silo' in local_sgd")
    sigma, sizes = None, run.objective.sizes.astype(np.float64)
    if (claim := run.plan.claimed) is not None:
        clip, releases = run.plan.clip, eta.size
        sigma = printed.minibatch_sgd(claim, clip=clip, sizes=sizes, releases=releases)
    return await average_runs(run, eta, NoisyBatchSteps(run, sigma))
