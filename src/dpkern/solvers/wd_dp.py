"""WD-DP: one communication after T local steps.

Algorithm 1 of Kang, Liu, Niu, Wang, "Weighted distributed differential privacy ERM: convex and
non-convex", Computers & Security 2021:

    theta_j = 0 in every silo j
    for t = 0..T-1:
        theta_j = prox_{eta_t h}( theta_j - eta_t (grad J_j(theta_j) + z_tj) )
    return sum_j (p_j + z_w) theta_j + z                       the only release (central)

    sound, central:  z_tj = 0,  z ~ N(0, s^2 I),  z_w = 0
    sound, silo:     z_tj ~ N(0, s_j^2 I),  z = 0,  z_w = 0;  every theta_j is seen
    paper:           z_tj ~ N(0, s^2 I),  z = 0,  z_w ~ N(0, s_w^2), one number for all silos

J_j is the mean over silo j of the clipped losses plus the penalties, h the proximal penalty, and
p_j = n_j / N. The paper's proof evaluates every gradient at one public model. In the sound form the
sensitivity of p_j theta_j is p_j (2 C / n_j) E_T = (2 C / N) E_T, whatever its silo's size: uneven
silos need no more noise. Replacing a record changes no p_j, so that noise on the weights protects
nothing.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.papers import noise
from dpkern.papers.mechanisms import WeightNoise
from dpkern.solvers.base import AUTO, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.settings import hidden_descent
from dpkern.solvers.releases.local_runs import (
    NOT_HIDDEN,
    Advance,
    NoisySteps,
    average_runs,
    local_advance,
)


@solver(
    trusts=("central", "silo"), paper=("central",), settings=hidden_descent, error=(0.24, 0.87),
    seconds=(0.45, 0.0), audit={"local_steps": 4, "step_size": 1e-5}, sends_models=True,
    weights=False, penalizes_intercept=True,
)  # fmt: skip
async def wd_dp(
    run: Run,
    *,
    local_steps: Count = AUTO,
    step_size: StepSize = "auto",
    accounting: Literal["composition", "last_iterate"] = "composition",
) -> SolverResult:
    """Weighted distributed ERM with one communication.

    Parameters
    ----------
    local_steps : int
        Steps T of every silo.

    Notes
    -----
    Under central trust, the only release is V = sum_j round_q( p_j theta_j ) + Z to whoever sees
    the aggregate, of sensitivity D = max_j p_j (2 C / n_j) E_T plus rounding terms
    (`dpkern.privacy.sensitivity.local_runs`) and std D / mu. E_T is T eta for convex losses with
    eta <= 2 / (L + l2), (1 - (1 - eta l2)^T) / l2 with eta <= 2 / (L + 2 l2) and l2 on every
    coordinate, and grows geometrically with "pl". This needs a row bound and a loss of bounded
    curvature.

    Under silo trust, every silo adds N(0, (2 C)^2 T / mu^2) to its exact sum at every step and
    sends theta_j, a function of T noisy sums of sensitivity 2 C each.

    Calibration "paper" draws the paper's noise in every silo and on the weights, with half of
    epsilon and of delta each: mu <= max_j 2 C sqrt(T) / (n_j s), by composing each silo's own
    steps.
    """
    eta = run.plan.step_sizes
    if run.plan.claimed is None:
        return await average_runs(run, eta, *local_advance(run, eta, accounting))
    return await average_runs(run, eta, _paper(run), NOT_HIDDEN)


def _paper(run: Run) -> Advance:
    """The paper's algorithm, noise on the weights included."""
    data, claim = run.objective.data, run.plan.claimed
    assert claim is not None
    s, s_w = noise.wd_dp(claim, clip=run.plan.clip, n=data.n, steps=run.plan.local_steps)
    steps = NoisySteps(run, sigma=s * data.sizes.astype(np.float64))

    async def advance(w: NDArray[np.float64], eta: NDArray[np.float64]) -> NDArray[np.float64]:
        theta = steps.models(w, eta)
        z_w = WeightNoise(run.channel("central"), sigma=s_w).release()
        return (data.weights(run.objective.weights) + z_w) @ theta

    return advance
