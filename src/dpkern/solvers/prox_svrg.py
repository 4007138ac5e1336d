"""Noisy proximal SVRG across silos that trust nobody.

Algorithms 1 and 8 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for e = 0..E-1:
        each silo j in S_e:   g_j = grad of silo j's mean loss at wbar + noise
        for t = 0..Q-1:
            each silo j in S_e:   v_j = g_j + mean over a batch of [grad f(w, x) - grad f(wbar, x)]
                                  + noise
            w = prox_{eta h}( w - eta sum_j (m/M) p_j v_j )
        wbar = w

At t = 0 all differences are 0, whatever the records are: nothing is released then. Gradients are
clipped to C and differences to min(2 C, beta |w - wbar|), with noise in proportion.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, FullBatch, NoiseStream, make_sampler
from dpkern.solvers._docs import documented
from dpkern.solvers._means import (
    Family,
    NoisyMeans,
    Participation,
    Returned,
    allocate,
    least_difference,
    steps,
)
from dpkern.solvers._objective import Penalty
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers._sums import sums_of

FloatArray = NDArray[np.float64]


@documented
def prox_svrg(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    epochs: int = 5,
    inner_steps: int = 10,
    batch_size: int | None = None,
    sampling: Literal["full", "without_replacement"] = "full",
    participation: int | None = None,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "theorem",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["silo", "central", "shuffle"] = "silo",
    calibration: Literal["sound", "paper"] = "sound",
    returns: Literal["last", "random", "average"] = "last",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Noisy proximal SVRG on the clipped objective.

    Parameters
    ----------
    epochs : int
        E, each begun by a gradient of all records.
    inner_steps : int
        Updates Q of an epoch; the paper has floor(n / K).
    step_size : float, sequence of E Q floats, "auto" or "theorem"
        "theorem" = min(1, K^(3/2) sqrt(M) / n) / (8 beta), beta the smoothness of the loss and the
        penalties, n and K of the largest silo; "auto" = 1 / beta.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws the noise of Theorem E.2 and certifies what it gives.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released: once an epoch the silos' sums of clipped gradients over all their records at the
    public wbar, and for each of the other Q - 1 updates their sums of clipped differences over a
    batch, with noise; under central and shuffle trust as in `minibatch_sgd`. Replacing a record
    moves them by at most 2 C, and 2 C_t. Half of mu^2 goes to each family: E mu_1^2 + E (Q - 1)
    mu_2^2 = mu^2, on the means s_j = 2 C / (n_j mu_1) and 2 C_t / (K mu_2); for secret batches both
    grow in proportion until dp-accounting's epsilon is the budget's.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    return variance_reduced("prox_svrg", data, parameters)


def variance_reduced(name: str, data: SiloData, parameters: dict[str, object]) -> SolverResult:
    """S runs of SVRG, each from what the one before returns; S = 1 without restarts."""
    restarts = count("restarts", parameters.get("restarts", 1))
    epochs = restarts * count("epochs", parameters["epochs"])
    Q = count("inner_steps", parameters["inner_steps"])
    parameters = parameters | {"neighbours": "replace_one", "rounds": epochs * Q}
    with Run(name, data, parameters, oracles=True) as run:
        trust = run.choose("trust", "silo", "central", "shuffle")
        run.choose("sampling", "full", "without_replacement")
        run.choose("calibration", "sound", "paper")
        run.only_under("silo", calibration="paper")
        R, objective = run.rounds, run.objective
        sizes = tuple(objective.sizes.tolist())
        sampler = make_sampler(
            run.parameters["sampling"],
            run.parameters["batch_size"],
            sizes=objective.sizes,
            releases=R,
            neighbours=run.neighbours,
            trust=trust,
        )
        silos = Participation(run, epochs, repeats=Q)
        n, K = max(sizes), max(sampler.batch_sizes)
        eta = steps(run, R, min(1.0, K**1.5 * math.sqrt(silos.M) / n) / 8.0)
        refresh, difference = _paper(run, restarts, epochs)
        begins, others = range(0, R, Q), [r for r in range(R) if r % Q]
        families = [
            Family("sum of clipped gradients", begins, FullBatch(sizes, sizes), sigma=refresh),
            Family("sum of clipped differences of gradients", others, sampler),
        ]
        if not others:
            families.pop()
        budgets, sums = allocate(run, families, silos), sums_of(run)
        means = [
            NoisyMeans(run, sums, family, silos, mu)
            for family, mu in zip(families, budgets, strict=True)
        ]
        returned = Returned(run, R // restarts)

        w = anchor = objective.start()
        g = np.zeros(objective.dim)
        for r in run.numbered_rounds():
            if r and r % (R // restarts) == 0:
                w, returned = returned.model, Returned(run, R // restarts)
            if r % Q == 0:
                anchor, v = w, means[0].gradient(r, w)
                g = v
            else:
                C_t = least_difference(run, float(np.linalg.norm(w - anchor)))
                v = g + means[1].difference(r, w, anchor, clip=C_t, sigma=difference)
            w_next = objective.prox(w - eta[r] * (v + objective.penalty_gradient(w)), eta[r])
            run.record(r, w_next, eta[r], (w - w_next) / eta[r])
            w = w_next
            returned.see(w)
        return run.result(returned.model, trust=trust)


def _paper(
    run: Run, restarts: int, epochs: int
) -> tuple[FloatArray, FloatArray] | tuple[None, None]:
    """Noise on the silos' means as Theorem E.2 prints it, for gradients and for differences."""
    claim = run.claimed
    if claim is None:
        return None, None
    delta, E, R = claim["delta"], epochs // restarts, run.rounds // restarts
    unit = run.clip / (claim["epsilon"] * run.objective.sizes.astype(np.float64))
    log_term = restarts * math.log(2.0 / delta)
    return (
        math.sqrt(256.0 * E * log_term * math.log(5.0 * E / delta)) * unit,
        math.sqrt(1024.0 * R * log_term * math.log(2.5 * R / delta)) * unit,
    )
