"""Newton's method with noisy gradients and Hessians, averaged every L local steps.

Algorithm 1 (GDP-LocalNewton) of Cao, Guo, Zhang, "Privacy-preserving distributed learning via
Newton algorithm", Mathematics 11 (2023) 3807; for L = 1 under central trust, Newton's method on
the aggregated gradient and Hessian:

    w_j = 0 in every silo j                                        (central: one w for all)
    for t = 0..T-1,  T = rounds L:
        g_j = (1/n_j) ( sum_i clip_C(grad phi_i(w_j)) + Z_tj ) + l2 w_j
        H_j = (1/n_j) ( sum_i clip_B(hess phi_i(w_j)) + U_tj ) + l2 I
        p_j = ( V max(Lambda, floor) V^T )^-1 g_j,  V Lambda V^T a mean of H_j in steps 0..t
        w_j = w_j - alpha_tj p_j
        every L-th step:  w_j = w = sum_k p_k w_k
    return w

    sound:  Z ~ N(0, (2 C)^2 5T/(4 mu^2)),  U ~ GOE of std D sqrt(5T)/mu, D = sqrt(2) B and rounding
    paper:  Z ~ N(0, (2 C)^2 2T/mu^2),  U of std 2 B sqrt(2T)/mu, independent on the upper triangle;
            the last H_j alone

The paper's bound of the Hessian's sensitivity is not tight for rank-one Hessians, and its line
search reads un-noised losses, gradients and Hessians, which no theorem covers.
"""

import numpy as np

from dpkern.papers.line_search import PaperSearch
from dpkern.solvers.base import AUTO, BOTH, Count, Positive, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.settings import newton
from dpkern.solvers.releases.hessian import NewtonSystem
from dpkern.solvers.releases.newton_steps import resolve_floor, step_rule

NOT_SEEN = (
    "upper bound: every noisy sum of a silo is charged as if it had been released; that only the "
    "model after its local steps leaves the silo is not used"
)


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("silo",), penalties="l2",
    settings=newton, resolve=resolve_floor, error=(0.23, 0.91), seconds=(0.98, 170.0),
    in_blocks=1, hessians=True,
)  # fmt: skip
async def local_newton(
    run: Run,
    *,
    hess_clip: float | None = AUTO,
    rounds: Count = AUTO,
    local_steps: Count = 1,
    step_size: StepSize = "damped",
    max_step: Positive = 1.0,
    floor: float | str = "auto",
) -> SolverResult:
    """Newton's method on the clipped objective, with noise on gradients and Hessians.

    Parameters
    ----------
    local_steps : int
        Steps L of every silo between two aggregations; T = rounds L. Central trust needs L = 1.
    step_size : float, sequence of T floats or str
        "damped" = min(max_step, 1 / (1 + sqrt(g^T H^-1 g) / Y)) for the released g and H, Y the
        bound of targets, or 1. A search
        chooses among max_step 2^-i, i = 0..7: "private_search" by the largest released decrease
        of the objective, for a third of the budget; "paper_search" (calibration "paper") takes
        the largest that satisfies Equation (10) without noise, which voids every guarantee.
    max_step : float
        Largest step of "damped" and of the searches.
    floor : float or "auto"
        Lower bound to which the eigenvalues of H are truncated. "auto" is the largest of l2, a
        quarter of the expected spectral norm of the noise on one mean Hessian, and what keeps the
        noise of one step in margins below a third of what `gradient_descent` takes.

    Notes
    -----
    Under silo trust, every local step releases to whoever sees a silo's message S_j + Z_j of the
    exact sum on a grid of clipped gradients, sensitivity 2 C, and of the sum of clipped Hessians,
    each positive semi-definite of rank one, rounded once to the grid q of its noise: sensitivity
    sqrt(2) B + q d in Frobenius norm. With "add_remove" these are C and B + q d. Silos hold
    disjoint records and compose in parallel; a silo's message after L steps is a function of its
    2 L noisy sums. Under central trust, every round releases sum_j om_j S_j + Z of both to whoever
    sees the aggregate, om_j = (p_j/n_j) / max_k (p_k/n_k) on the records before rounding.

    Of mu^2, gradients have four fifths and Hessians, of which a mean is taken, one fifth: public
    shares that do not depend on the scale of the rows. With "private_search" they share two thirds
    (`dpkern.solvers.releases.newton_steps.PrivateSearch`). Everything else is post-processing.

    Calibration "paper" draws the paper's noise and certifies its true guarantee: mu^2 =
    T ((2 C)^2 / s_g^2 + D^2 / s_H^2) is 3/4 of the claim's square.

    The history holds, for every round, the norm of the released mean gradient at its start and the
    mean step, summed over local steps.
    """
    L, silo = local_steps, run.plan.trust == "silo"
    if run.plan.budget is not None and L > 1:
        run.qualify(NOT_SEEN, upper=True)
    if run.plan.budget is not None and run.plan.paper:
        run.claim = {"mu": run.plan.budget.mu}
    system = NewtonSystem(run)
    searched = isinstance(step_size, str) and step_size == "paper_search"
    steps = PaperSearch(run, max_step=max_step) if searched else step_rule(run, system.search_mu)

    weight, w = run.objective.shares() if silo else np.ones(1), run.first_model()
    for r in run.numbered_rounds():
        w_local, total_step = np.tile(w, (len(weight), 1)), 0.0
        for t in range(r * L, (r + 1) * L):
            g, p = await system(w_local)
            alpha = await steps(t, w_local, g, p)
            if t == r * L:
                released = weight @ g
            total_step += float(weight @ alpha)
            w_local = w_local - alpha[:, np.newaxis] * p
        w = weight @ w_local
        run.record(r, w, total_step, released)
    return run.result(w)
