"""Noisy minibatch SGD across silos that trust nobody.

The baseline of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a
trusted server", AISTATS 2023 (Lowy, Razaviyayn 2021, Algorithm 1), with a prox:

    for r = 0..R-1:
        each silo j in S_r:   g_j = (1/K_j) sum over a batch of grad f(w, x) + N(0, s_j^2 I)
        w = prox_{eta h}( w - eta sum_{j in S_r} (m/M) p_j g_j )

Gradients of f are clipped per record; h is the proximal penalty.
"""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpkern.papers import noise
from dpkern.privacy.sampling.record_sampling import SAMPLERS
from dpkern.solvers.base import AUTO, BOTH, Count, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.plan import resolve_step_sizes
from dpkern.solvers.base.settings import batches
from dpkern.solvers.releases.gradient import Returned, what_is_summed
from dpkern.solvers.releases.means import Family, NoisyMeans, Participation, allocate, sampler_of
from dpkern.solvers.releases.record_sums import sums_of


@solver(
    trusts=("central", "silo", "shuffle"), neighbours=BOTH, paper=("silo",), settings=batches,
    samplers=SAMPLERS, models="any", starts_at_rates=True, person_sums=True, on_card=True,
    resolve=partial(resolve_step_sizes, theorem=1.0), error=(0.18, 0.97), seconds=(0.76, 0.0),
)  # fmt: skip
async def minibatch_sgd(
    run: Run,
    *,
    rounds: Count = AUTO,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy minibatch SGD on the clipped objective.

    Parameters
    ----------
    step_size : float, sequence of R floats or str
        "auto" follows from public numbers; "theorem" = 1 / (L + l2), L = phi''max row_bound^2, or
        the smoothness that a model declares.

    Notes
    -----
    Every round has one release. Silo trust: S_j + Z_j of every silo of the round, S_j the exact sum
    on a grid of its batch's clipped gradients at the public w, of sensitivity 2 C, or C where a
    record is added or removed. Central trust: sum_j om_j S_j + Z, om_j <= 1 on the records, of the
    same sensitivity. Shuffle trust: the counts of the batch's vectors with binomial noise
    (`BinomialSum`). Batches are secret, and so are the sizes of Poisson batches. The participation
    schedule is public, and silos are charged for the rounds in which they participate. Steps,
    penalties and prox are post-processing.

    Full batches: s_j = (2 C / n_j) sqrt(R') / mu, R' <= R the rounds of the busiest silo. Batches
    without replacement and Poisson batches: the least noise for which their pairs certify the
    budget, under shuffle trust as if they were full. One pass: a record is in one release, and
    s_j = 2 C / (K mu).

    Calibration "paper" draws s_j = sqrt(8 R ln(1/delta)) C / (n_j epsilon) and certifies its true
    guarantee.
    """
    return await descend(run, run.plan.step_sizes[:, 0], rounds)


async def descend(run: Run, eta: NDArray[np.float64], rounds_in_formula: int) -> SolverResult:
    """Run R proximal steps along noisy mean gradients; `rounds_in_formula` is R in the paper's."""
    objective = run.objective
    silos = Participation(run, np.ones(run.plan.rounds, dtype=np.int64))
    sampler, sigma, claim = sampler_of(run.plan, objective, run.plan.rounds), None, run.plan.claimed
    if claim is not None:
        sizes = objective.sizes if rounds_in_formula > 1 else np.array(sampler.batch_sizes)
        sigma = noise.minibatch_sgd(
            claim, clip=run.plan.clip, sizes=sizes.astype(np.float64), releases=rounds_in_formula
        )
    family = Family(what_is_summed(run), range(run.plan.rounds), sampler, sigma=sigma)
    gradient = NoisyMeans(run, sums_of(run), family, silos, *allocate(run, [family], silos))
    returned = Returned(run, run.plan.rounds)

    w = run.first_model()
    done = await gradient.compiled_rounds(w, eta, returned.extend)
    for r in run.numbered_rounds(done):
        w = run.proximal_step(r, w, await gradient.gradient(r, w), eta[r])
        returned.add(w)
    added = eta * gradient.noise_stds(run.plan.rounds)
    return run.result(returned.model, returned.noise(added, bounded=False))
