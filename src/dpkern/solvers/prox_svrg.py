"""Noisy proximal SVRG across silos that trust nobody.

Algorithms 1 and 8 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for r = 0..R-1:
        r mod Q = 0:  wbar = w
                      g = sum_{j in S} (m/M) p_j [ grad of silo j's mean loss at wbar + noise ]
                      v = g
        else:         v = g + sum_{j in S} (m/M) p_j [ mean over a batch of
                                                       grad f(w, x) - grad f(wbar, x) + noise ]
        w = prox_{eta h}( w - eta v )

The silos S are drawn with wbar. The paper releases a difference beside g too; there w = wbar, and
all differences are 0, whatever the records are. Gradients are
clipped to C and differences to min(2 C, beta |w - wbar|), with noise in proportion.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.record_sampling import FullBatch, make_record_sampler
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
    rounds: int = 50,
    refresh_every: int = 10,
    batch_size: int | None = None,
    sampling: Literal["full", "without_replacement"] = "full",
    participation: int | None = None,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "theorem",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["silo", "central", "shuffle"] = "silo",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
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
    rounds : int
        Number of updates R.
    refresh_every : int
        Q: every Q-th round releases a gradient of all records, the others differences. The paper
        has floor(n / K).
    step_size : float, sequence of R floats, "auto" or "theorem"
        "theorem" = min(1, K^(3/2) sqrt(M) / n) / (8 beta), beta the smoothness of the loss and the
        penalties, n and K of the largest silo; "auto" = 1 / beta.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws the noise of Theorem E.2 and certifies what it gives.
    neighbours : {"replace_one"}
        What neighbouring data sets differ in.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released, once a round: the silos' sums of clipped gradients over all their records at the
    public wbar, or their sums of clipped differences over a batch, with noise; under central and
    shuffle trust as in `minibatch_sgd`. Replacing a record moves them by at most 2 C, and 2 C_r.
    Half of mu^2 goes to each family: R1 = ceil(R/Q) and R2 = R - R1 releases spend R1 mu_1^2 +
    R2 mu_2^2 = mu^2, on the means s_j = 2 C / (n_j mu_1) and 2 C_r / (K mu_2); for secret batches
    both grow in proportion until dp-accounting's epsilon is the budget's.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    return variance_reduced("prox_svrg", data, parameters)


def variance_reduced(name: str, data: SiloData, parameters: dict[str, Any]) -> SolverResult:
    """R updates of SVRG in S runs, each from what the one before returns."""
    with Run(name, data, parameters, oracles=True) as run:
        trust = run.choose("trust", "silo", "central", "shuffle")
        run.choose("sampling", "full", "without_replacement")
        run.choose("calibration", "sound", "paper")
        run.choose("neighbours", "replace_one")
        run.only_under("silo", calibration="paper")
        R, Q = run.rounds, count("refresh_every", parameters["refresh_every"])
        S = count("restarts", parameters.get("restarts", 1))
        length = -(-R // S)  # of a run, the last maybe shorter
        objective = run.objective
        sizes = tuple(objective.sizes.tolist())
        sampler = make_record_sampler(
            parameters["sampling"],
            parameters["batch_size"],
            sizes=objective.sizes,
            releases=R,
            neighbours=run.neighbours,
            trust=trust,
        )
        begins = [r for r in range(R) if r % length % Q == 0]
        others = sorted(set(range(R)) - set(begins))
        silos = Participation(run, lengths=np.diff([*begins, R]))
        n, K = max(sizes), max(sampler.batch_sizes)
        eta = steps(run, R, min(1.0, K**1.5 * math.sqrt(silos.M) / n) / 8.0)
        refresh, difference = _paper(run, S, len(begins))
        families = [
            Family("sum of clipped gradients", begins, FullBatch(sizes, sizes), sigma=refresh),
            Family("sum of clipped differences of gradients", others, sampler),
        ][: 2 if others else 1]
        budgets, sums = allocate(run, families, silos), sums_of(run)
        means = [
            NoisyMeans(run, sums, family, silos, mu)
            for family, mu in zip(families, budgets, strict=True)
        ]

        w = anchor = objective.start()
        g, returned = np.zeros(objective.dim), Returned(run, length)
        for r in run.numbered_rounds():
            if r and r % length == 0:
                w, returned = returned.model, Returned(run, min(length, R - r))
            if r in begins:
                anchor, g = w, means[0].gradient(r, w)
                v = g
            else:
                C_r = least_difference(run, float(np.linalg.norm(w - anchor)))
                v = g + means[1].difference(r, w, anchor, clip=C_r, sigma=difference)
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
    delta, E, R = claim["delta"], epochs / restarts, -(-run.rounds // restarts)
    unit = run.clip / (claim["epsilon"] * run.objective.sizes.astype(np.float64))
    log_term = restarts * math.log(2.0 / delta)
    return (
        math.sqrt(256.0 * E * log_term * math.log(5.0 * E / delta)) * unit,
        math.sqrt(1024.0 * R * log_term * math.log(2.5 * R / delta)) * unit,
    )
