"""Noisy gradient descent.

Central trust: Wang, Ye, Xu, "Differentially private empirical risk minimization revisited: faster
and more general", NeurIPS 2017. Silo trust: GDP-GD, Algorithm A1 of Cao, Guo, Zhang,
"Privacy-preserving distributed learning via Newton algorithm", Mathematics 2023.

    w = 0
    for t = 1..T:
        v = w + beta (w - previous w)
        central:  g = sum_j p_j grad L_j(v) + N(0, s^2 I)
        silo:     g = sum_j p_j (grad L_j(v) + N(0, s_j^2 I)),  every silo adds its own
        w = prox_{eta_t h}( v - eta_t (g + l2 v + grad r(v)) )
    return w, or the average of the last ones

L_j is the mean over silo j of the clipped losses; the noise is added to the exact sum. h is the
proximal penalty, and r the smooth penalty other than l2.
"""

from dpkern.papers import noise
from dpkern.solvers.base import (
    AUTO,
    BOTH,
    Count,
    Momentum,
    Returns,
    Run,
    SolverResult,
    StepSize,
    solver,
)
from dpkern.solvers.releases.gradient import NoisyMeanGradient, Returned


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("central", "silo"), person_sums=True,
    in_blocks=1, on_card=True, error=(0.19, 0.98), seconds=(0.74, 0.0),
)  # fmt: skip
async def gradient_descent(
    run: Run,
    *,
    rounds: Count = AUTO,
    step_size: StepSize = "auto",
    momentum: Momentum = AUTO,
    returns: Returns = "auto",
) -> SolverResult:
    """Noisy gradient descent on the clipped objective.

    Notes
    -----
    Every round releases, under central trust, V = sum_j om_j S_j + Z to whoever sees the aggregate;
    under silo trust, S_j + Z_j of every silo to whoever sees its messages. S_j is the exact sum on
    a grid of clipped per-record gradients at the public v, so that replacing one record changes V,
    or one S_j, by at most 2 C, and adding or removing one by C. Steps, penalties and prox are
    post-processing. T releases with mu_t = mu / sqrt(T) compose
    to mu: on the mean gradient s = max_j (2 C p_j / n_j) sqrt(T) / mu, s_j = (2 C / n_j) sqrt(T) /
    mu, with C for 2 C under "add_remove". A record belongs to one silo, so under silo trust the
    silos compose in parallel.

    Calibration "paper" takes the papers' formula and certifies its true guarantee. Central:
    s = sqrt(8 T ln(1/delta)) C / (N epsilon). Silo: GDP-GD's formula is the sound one.
    """
    objective, eta, claim = run.objective, run.plan.step_sizes[:, 0], run.plan.claimed
    if claim is not None and run.plan.trust == "central":
        s = noise.gradient_descent(claim, clip=run.plan.clip, n=objective.data.n, rounds=rounds)
        gradient = NoisyMeanGradient(run, sigma=s / objective.record_weight())
    else:
        gradient = NoisyMeanGradient(run, mu=run.plan.mu_of_one(rounds))

    returned, w = Returned(run, rounds), run.first_model()
    done = await gradient.compiled_rounds(w, eta, returned.extend, momentum)
    previous = w
    for t in run.numbered_rounds(done):
        v = w + momentum * (w - previous)
        previous, w = w, run.proximal_step(t, v, await gradient(v), eta[t])
        returned.add(w)
    return run.result(returned.model, returned.noise(eta * gradient.noise_std, momentum=momentum))
