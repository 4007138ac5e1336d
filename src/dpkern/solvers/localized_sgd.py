"""Localized accelerated minibatch SGD across silos that trust nobody.

After Gao, Lowy, Zhou, Wright, "Private heterogeneous federated learning without a trusted server
revisited: error-optimal and communication-efficient algorithms for convex losses", ICML 2024:

    for i = 1..P:
        silo j:  n_ij = floor(n_j / 2^i) records that no other phase uses; all others in phase P
        lambda = 8^(i-1) / prox_step,  c = x = v = w_(i-1),  D = (C + |grad r(c)|) / lambda
        for t = 1..T_i:
            a, b = 2 / (t + 1), 4 (1 / step_size + lambda) / (t (t + 1))
            u = ( (1-a) (lambda + b) v + a ((1-a) lambda + b) x ) / (b + (1 - a^2) lambda)
            g = sum_{j in S} (m/M) p_j [ mean of silo j's grad f(u, .) + noise ] + grad r(u)
            x = ( a lambda c + ((1-a) lambda + b) x - a g ) / (lambda + b), within D of c
            v = a x + (1-a) v
        w_i = v

A phase minimises the mean loss of its records plus r + lambda/2 |w - c|^2, r the penalty l2, by the
accelerated stochastic approximation of Ghadimi, Lan, SIAM J. Optim. 2012. Constants are not those
of the paper, of which we have read the abstract alone.
"""

import numpy as np

from dpkern.privacy.sampling.record_sampling import Halves
from dpkern.solvers.base import AUTO, Count, Positive, Run, SolverResult, StepSize, solver
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.options import CountOrNone
from dpkern.solvers.base.plan import RunPlan, resolve_number, resolve_step_sizes
from dpkern.solvers.base.settings import localized
from dpkern.solvers.releases.gradient import what_is_summed
from dpkern.solvers.releases.means import Family, NoisyMeans, Participation, allocate, norm
from dpkern.solvers.releases.record_sums import sums_of


def _resolve(plan: RunPlan, objective: Objective) -> RunPlan:
    phases, most = plan.arguments["phases"], int(objective.sizes.min()).bit_length()
    if phases == AUTO:
        phases = min(2, plan.rounds, most)
        plan = plan.replace_arguments(phases=phases)
    if plan.rounds < phases:
        raise ValueError(f"rounds must be at least the {phases} phases, got {plan.rounds}")
    _parts(plan.rounds, phases, objective)  # raises where there are too few records
    plan = resolve_number(plan, objective, "prox_step")
    return resolve_step_sizes(plan, objective, theorem=1.0)


def _parts(rounds: int, phases: int, objective: Objective) -> list[Halves]:
    return Halves.parts(objective.sizes, phases, -(-rounds // phases))


@solver(
    trusts=("central", "silo"), models="linear", penalties="l2", settings=localized,
    resolve=_resolve, audit={"rounds": 4, "step_size": 1e-5, "prox_step": 1e-5},
    error=(0.2, 0.51), seconds=(1.5, 320.0),
)  # fmt: skip
async def localized_sgd(
    run: Run,
    *,
    rounds: Count = AUTO,
    phases: Count = AUTO,
    step_size: StepSize = "auto",
    prox_step: Positive = AUTO,
    participation: CountOrNone = None,
) -> SolverResult:
    """Localized accelerated minibatch SGD on the clipped objective.

    Parameters
    ----------
    rounds : int
        Total number of rounds R, which the phases share equally, at least one each.
    phases : int or "auto"
        Number of phases P, "auto" is 2. With 1 all records are in every round. 2^P is at most twice
        the number of records of the smallest silo.
    step_size : float, sequence of R floats or str
        "theorem" = 1 / (L + l2), L = phi''max row_bound^2; "auto" follows from public numbers.
    prox_step : float or "auto"
        1 / lambda of the first phase; every further phase has an eighth of it. "auto" follows from
        public numbers.

    Notes
    -----
    Every round has one release, that of `minibatch_sgd` with the records of its phase: under silo
    trust S_j + Z_j of every silo of the round, S_j the exact sum on a grid of clipped gradients at
    the public u, of sensitivity 2 C; under central trust sum_j om_j S_j + Z, of the same. Centres,
    balls, steps and averages are post-processing.

    Which phase uses a record depends on its position alone: a silo's records are put into a random
    order that is independent of them, once, and the phases take consecutive parts of public sizes.
    So a replaced record changes the releases of one phase. Phases, and silos under silo trust,
    compose in parallel, and the rounds of a phase in sequence (docs/proofs/series.md): s_j =
    2 C sqrt(ceil(R/P)) / mu on S_j. The secrecy of the order is not used. A record that is added or
    removed would change all sizes, and is not protected: neighbours are "replace_one".
    """
    objective, C, eta = run.objective, run.plan.clip, run.plan.step_sizes[:, 0]
    silos = Participation(run, np.ones(rounds, dtype=np.int64))
    # A record is charged for the rounds of one phase, the longest, whichever it is in.
    what, parts = what_is_summed(run), _parts(rounds, phases, objective)
    families = [Family(what, range(rounds), part) for part in parts]
    mu, sums, series = allocate(run, families[:1], silos)[0], sums_of(run), run.ledger.new_series()
    begins = [i * rounds // phases for i in range(phases)]

    v = run.first_model()
    for r in run.numbered_rounds():
        if r in begins:
            i = begins.index(r)
            gradient = NoisyMeans(run, sums, families[i], silos, mu, series=series)
            center, x, lam = v, v, 8.0**i / prox_step
            radius = (C + norm(objective.penalty_gradient(center))) / lam
        t = r - begins[i] + 1.0
        a, b = 2.0 / (t + 1.0), 4.0 * (1.0 / eta[r] + lam) / (t * (t + 1.0))
        c = (1.0 - a) * lam + b
        u = ((1.0 - a) * (lam + b) * v + a * c * x) / (b + (1.0 - a**2) * lam)
        g = await gradient.gradient(r, u) + objective.penalty_gradient(u)
        x = (a * lam * center + c * x - a * g) / (lam + b)
        if (moved := norm(x - center)) > radius:
            x = center + (radius / moved) * (x - center)
        v = a * x + (1.0 - a) * v
        run.record(r, v, eta[r], g)
    return run.result(v)
