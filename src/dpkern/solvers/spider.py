"""Noisy proximal SPIDER across silos that trust nobody.

Algorithms 3, 10 and 11 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning
without a trusted server", AISTATS 2023:

    for r = 0..R-1:
        r mod q = 0:  h = sum_{j in S_r} (m/M) p_j [ mean over a batch of grad f(w_r, x) + noise ]
        else:         h = h + sum_{j in S_r} (m/M) p_j [ mean of grad f(w_r, x) - grad f(w_{r-1}, x)
                                                         + noise ]
        w_{r+1} = prox_{eta g}( w_r - eta h )

Gradients are clipped to C and differences to C_r = min(2 C, beta |w_r - w_{r-1}|), with noise in
proportion. Round R of the paper, whose iterate is not used, is omitted. Algorithm 11, "alternate",
is this with q = 2 and C_r = 2 C. A round of it is two messages and two steps, the first one a
message alone; the message that ends the last one is not used and omitted.
"""

from typing import Literal

import numpy as np

from dpkern.papers import noise
from dpkern.solvers.base import AUTO, Count, Run, Share, SolverResult, StepSize, solver
from dpkern.solvers.base.settings import variance_reduced
from dpkern.solvers.releases.gradient import Returned
from dpkern.solvers.releases.means import (
    Family,
    Participation,
    difference_clip,
    noisy_means,
    resolve_updates,
    sampler_of,
)


@solver(
    trusts=("central", "silo", "shuffle"), paper=("silo",), settings=variance_reduced,
    samplers=("full", "without_replacement"), models="any", resolve=resolve_updates,
    error=(0.23, 0.92), seconds=(1.3, 33.0), differences=True, weights=False,
)  # fmt: skip
async def spider(
    run: Run,
    *,
    rounds: Count = AUTO,
    refresh_every: Count = 2,
    variant: Literal["spider", "alternate"] = "spider",
    refresh_share: Share = 0.8,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy proximal SPIDER on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of updates R; "alternate" takes 2 R - 2.
    refresh_every : int
        q: every q-th update is by a release of gradients, the others by one of differences.
    variant : {"spider", "alternate"}
        "alternate" is Algorithm 11: q = 2, and differences clipped to 2 C at every step.
    refresh_share : float
        Share of mu^2 for the releases of gradients; all of it if q = 1 or R = 1.
    step_size : float, sequence of floats, one an update, or str
        "theorem" = 1 / (2 beta), beta the smoothness of the loss and the penalties; "auto"
        follows from public numbers.

    Notes
    -----
    Every update has a release, the silos' noisy sums of clipped gradients or of clipped differences
    over their batches; under central trust their weighted sum, under shuffle trust counts, as in
    `minibatch_sgd`. The sensitivity is 2 C for gradients and D for differences at public w_r and
    w_{r-1}: 2 C_r whatever beta is, and beta |w_r - w_{r-1}| at most for linear models with a
    convex loss (`sensitivity.differences`). R1 = ceil(T/q) and R2 = T - R1 of T releases spend
    R1 mu_1^2 + R2 mu_2^2 = mu^2, fixed in advance, with std s_j = 2 C / (n_j mu_1) and
    D / (n_j mu_2) on the means; for secret batches mu_1 and mu_2 grow in proportion until the
    epsilon that they cost equals that of the budget.

    Calibration "paper" draws the noise of Theorem F.1, for "alternate" that of the authors' code,
    and certifies its true guarantee: a larger epsilon than claimed if q > 1.
    """
    objective, alternate = run.objective, variant == "alternate"
    T, eta = run.plan.updates, run.plan.step_sizes[:, 0]
    q, draws = refresh_every, range(T)  # draws: where silos are drawn anew
    if alternate:
        q, draws = 2, range(-1, T, 2)
    sampler = sampler_of(run.plan, objective, T)
    silos = Participation(run, np.diff([*np.maximum(draws, 0), T]))
    printed = noise.Spider(
        run.plan.claimed,
        clip=run.plan.clip,
        sizes=objective.sizes.astype(np.float64),
        rounds=rounds,
        refresh_every=q,
        alternate=alternate,
    )
    fresh, others = range(0, T, q), [r for r in range(T) if r % q]
    gradients, differences = noisy_means(
        run,
        silos,
        Family("sum of clipped gradients", fresh, sampler, refresh_share, printed.refresh),
        Family("sum of clipped differences of gradients", others, sampler, 1.0 - refresh_share),
    )
    returned = Returned(run, T)

    w = previous = run.first_model()
    h = np.zeros(objective.dim)
    for r in run.numbered_rounds():
        if r % q == 0:
            h = await gradients.gradient(r, w)
        else:
            C_r = 2.0 * run.plan.clip if alternate else difference_clip(run, w - previous)
            h = h + await differences.difference(
                r, w, previous, clip=C_r, sigma=printed.difference(C_r)
            )
        previous, w = w, run.proximal_step(r, w, h, eta[r])
        returned.add(w)
    return run.result(returned.model)
