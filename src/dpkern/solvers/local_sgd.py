"""Noisy local SGD across silos that trust nobody.

The baseline of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a
trusted server", AISTATS 2023:

    for r = 0..R-1:
        each silo j in S_r:   theta_j = w
            K times:          theta_j = prox_{eta h}( theta_j - eta (g + noise) ),
                              g the mean over a batch of grad f(theta_j, x)
        w = weighted mean of theta_j over S_r
    return w

A silo sends theta_j once a round, a function of K noisy sums; with noise="round" the local steps
have none, and theta_j - w has it instead. The paper's steps are about one record each, and its
noise, sqrt(8 K R ln(1/delta)) C / (n epsilon), counts on an amplification that fails its own
condition: what it gives is certified with calibration="paper".
"""

from typing import Literal

import numpy as np

from dpkern.papers import noise as printed
from dpkern.solvers.base.declaration import BOTH, solver
from dpkern.solvers.base.options import Count
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.steps import StepSize
from dpkern.solvers.minibatch_sgd import SAMPLERS
from dpkern.solvers.releases.local_batches import NoisyBatchSteps, hidden_batch_steps
from dpkern.solvers.releases.local_runs import HIDDEN, IN_TURN, Advance
from dpkern.solvers.releases.means import Returned


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("silo",), samplers=SAMPLERS, models="any"
)
def local_sgd(
    run: Run,
    *,
    rounds: Count = 25,
    local_steps: Count = 5,
    noise: Literal["step", "round"] | None = None,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy local SGD on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of averages R.
    local_steps : int
        Steps K of every silo between two averages.
    noise : {"step", "round"} or None
        On every local step, which is the default under trust "silo" and needs it, or once a
        round on what steps without noise have made of the model: for linear models with a row
        bound and a loss of bounded curvature, and full, "one_pass" or "cyclic" batches.
    step_size : float, sequence of R K floats or str
        "auto" = 1 / (L + l2), L = phi''max row_bound^2, or the smoothness that a model
        declares; "theorem" = 2 / (l2 (t + gamma)), gamma = max(8 (L + l2) / l2 - 1,
        local_steps).

    Notes
    -----
    noise="step": every silo of a round sends theta_j, a function of public numbers and of K noisy
    sums of clipped gradients over its batches. Replacing a record moves one such sum, at models
    that are public or functions of noisy sums before it, by at most 2 C, adding or removing one by
    C: R K releases are charged, or those of the rounds in which the silo takes part, though only
    every K-th iterate is seen. Silos hold disjoint records. Batches as in `minibatch_sgd`.

    noise="round": theta_j - w is rounded to a grid and released with noise; under central trust
    their weighted sum. For full-batch steps its sensitivity is (2 C / n_j) E_K and float terms
    (`LocalRuns`), R releases. With sampling="one_pass" or "cyclic" the steps take
    batches of b records in turn from an order in which the records have no say. A step carries the
    distance of neighbours on with a factor of at most c_t, and adds eta_t 2 C / b where its batch
    holds the replaced record. So the sensitivity is (2 C / b) sum of eta_t prod_{u > t} c_u over
    the steps t of the round that use the record, at most ceil(K b / n_j) of them, at the costliest
    place in the order. A record pays for the rounds that use it: min(R, ceil(R K b / n)) releases,
    n the smallest n_j. That the order is secret is not used.

    Calibration "paper" (noise="step") draws sqrt(8 K R ln(1/delta)) C / (n_j epsilon) on the silo's
    mean and certifies what that gives.
    """
    if noise is None:
        noise = run.parameters["noise"] = "step" if run.trust == "silo" else "round"
    eta = run.step_sizes()
    notes: tuple[str, ...] = ()
    if noise == "round":
        advance: Advance = hidden_batch_steps(run, eta)
        if run.budget is not None:
            notes = (HIDDEN,) if run.parameters["sampling"] == "full" else (HIDDEN, IN_TURN)
    elif run.trust != "silo":
        raise ValueError("noise='step' needs trust='silo' in local_sgd")
    else:
        sigma, sizes = None, run.objective.sizes.astype(np.float64)
        if run.claimed is not None:
            sigma = printed.minibatch_sgd(
                run.claimed, clip=run.clip, sizes=sizes, releases=eta.size
            )
        advance = NoisyBatchSteps(run, sigma)
    returned = Returned(run, rounds)

    w = run.objective.start()
    for r in run.numbered_rounds():
        w_next = advance(w, eta[r])
        step = float(np.sum(eta[r]))
        run.record(r, w_next, step, (w - w_next) / step)
        w = w_next
        returned.see(w)
    return run.result(returned.model, notes=notes)
