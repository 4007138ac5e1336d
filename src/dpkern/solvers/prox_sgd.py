"""Noisy proximal SGD in one pass over the records, for silos that trust nobody.

Algorithms 6 and 7 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for r = 0..R-1:
        each silo j in S_r:   K = floor(n / R) records that no earlier round has used,
                              g_j = (1/K) sum grad f(w, x) + N(0, s_j^2 I)
        w = prox_{h / (2 beta)}( w - (1 / (2 beta)) sum_{j in S_r} (m/M) p_j g_j )
    return w

A record is in one release, so the releases compose in parallel: s_j = 2 C / (K mu). (Algorithm 7
prints the step 1/beta; its analysis and Algorithm 6 have 1/(2 beta).)
"""

from functools import partial

from dpkern.solvers.base import AUTO, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.plan import resolve_step_sizes
from dpkern.solvers.base.settings import one_pass
from dpkern.solvers.minibatch_sgd import descend


@solver(
    trusts=("central", "silo", "shuffle"), paper=("silo",), samplers=("one_pass",), models="any",
    settings=one_pass, on_card=True, starts_at_rates=True,
    resolve=partial(resolve_step_sizes, theorem=0.5),
    error=(0.25, 0.66), seconds=(0.0, 150.0), audit={"rounds": 2, "step_size": 1e-5},
)  # fmt: skip
async def prox_sgd(
    run: Run,
    *,
    rounds: Count = AUTO,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy proximal SGD on disjoint batches.

    Parameters
    ----------
    step_size : float, sequence of R floats or str
        "theorem" = 1 / (2 beta), beta the smoothness of the loss and the penalties; "auto"
        follows from public numbers.

    Notes
    -----
    The releases are those of `minibatch_sgd` on disjoint batches, consecutive ones in a random
    order of a silo's records that is independent of them. Replacing a record changes one release,
    by at most 2 C. Silos, and batches of one silo, compose in parallel, and the whole budget goes
    to every release.

    By default batches have floor(n / R) records, n of the smallest silo. Calibration "paper" draws
    s_j = sqrt(8 ln(1/delta)) C / (epsilon K) and certifies its true guarantee.
    """
    return await descend(run, run.plan.step_sizes[:, 0], 1)
