"""Noisy proximal SVRG across silos that trust nobody.

Algorithms 1 and 8, with restarts 2 and 9, of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex
federated learning without a trusted server", AISTATS 2023:

    for r = 0..R-1:
        r mod Q = 0:  wbar = w
                      g = sum_{j in S} (m/M) p_j [ grad of silo j's mean loss at wbar + noise ]
                      v = g
        else:         v = g + sum_{j in S} (m/M) p_j [ mean over a batch of
                                                       grad f(w, x) - grad f(wbar, x) + noise ]
        w = prox_{eta h}( w - eta v )

With restarts s = 1..S:  w_s = prox_svrg( w_{s-1} ), where each run returns one of its iterates. The
silos S are drawn together with wbar. The paper also releases a difference in the round of g, where
w = wbar and all differences are 0 for any records. Gradients are clipped to C and differences to
min(2 C, beta |w - wbar|), with noise in proportion.
"""

import numpy as np

from dpkern.papers import noise
from dpkern.privacy.sampling.record_sampling import FullBatch
from dpkern.solvers.base import AUTO, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.settings import anchored
from dpkern.solvers.releases.gradient import Returned
from dpkern.solvers.releases.means import (
    Family,
    Participation,
    difference_clip,
    noisy_means,
    resolve_anchored_steps,
    sampler_of,
)


@solver(
    trusts=("central", "silo", "shuffle"), paper=("silo",), settings=anchored,
    samplers=("full", "without_replacement"), models="any", resolve=resolve_anchored_steps,
    error=(0.24, 0.89), seconds=(1.2, 91.0), differences=True, weights=False,
)  # fmt: skip
async def prox_svrg(
    run: Run,
    *,
    rounds: Count = AUTO,
    restarts: Count = 1,
    refresh_every: Count = 5,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy proximal SVRG on the clipped objective.

    Parameters
    ----------
    rounds : int
        Total number of updates R; each run has ceil(R / S), the last one the remainder.
    restarts : int
        Number of runs S of SVRG, each starting from the iterate that the previous one returned.
    refresh_every : int
        Q: every run releases a full gradient in its first round and every Q rounds, and
        differences in the others. The paper has floor(n / K).
    step_size : float, sequence of R floats or str
        "theorem" = min(1, K^(3/2) sqrt(M) / n) / (8 beta), beta the smoothness of the loss and
        the penalties, n and K of the largest silo; "auto" follows from public
        numbers.

    Notes
    -----
    Every round releases the silos' noisy sums of clipped gradients over all their records at the
    public wbar, or of clipped differences over a batch; under central and shuffle trust as in
    `minibatch_sgd`. The sensitivities are 2 C and D, as in `spider`: 2 C_r, and beta |w - wbar| at
    most for linear models with a convex loss. Half of mu^2 goes to each kind of release: R1 =
    ceil(R/Q) gradients and R2 = R - R1 differences spend R1 mu_1^2 + R2 mu_2^2 = mu^2, with std
    s_j = 2 C / (n_j mu_1) and D / (K mu_2) on the means; for secret batches both mu grow in
    proportion until the epsilon that they cost equals that of the budget.

    Calibration "paper" draws the noise of Theorem E.2 and certifies its true guarantee.
    """
    objective, R, Q = run.objective, rounds, refresh_every
    length = -(-R // restarts)  # of a run; the last may be shorter
    sizes = tuple(objective.sizes.tolist())
    sampler = sampler_of(run.plan, objective, R)
    begins = [r for r in range(R) if r % length % Q == 0]
    others = sorted(set(range(R)) - set(begins))
    silos = Participation(run, lengths=np.diff([*begins, R]))
    eta = run.plan.step_sizes[:, 0]
    refresh = difference = None
    if (claim := run.plan.claimed) is not None:
        refresh, difference = noise.prox_svrg(
            claim, run.plan.clip, objective.sizes, rounds=R, epochs=len(begins), restarts=restarts
        )
    gradients, differences = noisy_means(
        run,
        silos,
        Family("sum of clipped gradients", begins, FullBatch(sizes, sizes), sigma=refresh),
        Family("sum of clipped differences of gradients", others, sampler),
    )

    w = anchor = run.first_model()
    g, returned = np.zeros(objective.dim), Returned(run, length)
    for r in run.numbered_rounds():
        if r and r % length == 0:
            w, returned = returned.model, Returned(run, min(length, R - r))
        if r in begins:
            anchor, g = w, await gradients.gradient(r, w)
            v = g
        else:
            C_r = difference_clip(run, w - anchor)
            if difference is not None:  # the printed noise is the same in every round
                C_r = 2.0 * run.plan.clip
            v = g + await differences.difference(r, w, anchor, clip=C_r, sigma=difference)
        w = run.proximal_step(r, w, v, eta[r])
        returned.add(w)
    return run.result(returned.model)
