"""Noisy gradient descent.

Central trust: Wang, Ye, Xu, "Differentially private empirical risk minimization revisited: faster
and more general", NeurIPS 2017. Silo trust: GDP-GD, Algorithm A1 of Cao, Guo, Zhang,
"Privacy-preserving distributed learning via Newton algorithm", Mathematics 2023.

    w = 0
    for t = 1..T:
        central:  g = sum_j p_j grad L_j(w) + N(0, s^2 I)
        silo:     g = sum_j p_j (grad L_j(w) + N(0, s_j^2 I)),  every silo adds its own
        w = prox_{eta_t h}( w - eta_t (g + l2 w + grad r(w)) )
    return w

L_j is the mean over silo j of the clipped losses; noise is drawn on the exact sum. h is l1 |w|_1 or
the regulariser, where that is not a smooth r.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream
from dpkern.solvers._docs import documented
from dpkern.solvers._gradient import NoisyMeanGradient
from dpkern.solvers._objective import Penalty, PublicSize, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run


@documented
def gradient_descent(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 300,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central", "silo"] = "central",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one", "add_remove"] = "replace_one",
    public_size: PublicSize = None,
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Noisy gradient descent on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of releases T.
    step_size : float, sequence of T floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L = phi''max row_bound^2; "theorem" = 2 / (l2 (t + gamma)).
    trust : {"central", "silo"}
        Whether the aggregator is believed or every silo adds its own noise.
    calibration : {"sound", "paper"}
        "paper" takes the papers' formula and certifies what it really gives. Central:
        s = sqrt(8 T ln(1/delta)) C / (N epsilon). Silo: GDP-GD's formula is the sound one.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released, once a round: under central trust V = sum_j om_j S_j + Z to whoever sees the
    aggregate; under silo trust S_j + Z_j of every silo to whoever sees its messages. S_j is the
    exact sum on a grid of clipped per-record gradients at the public w, so replacing one record
    moves V, or one S_j, by at most 2 C, and adding or removing one by C. Steps, penalties and prox
    act on released quantities and public numbers only. T releases with mu_t = mu / sqrt(T) compose
    to mu: on the mean gradient s = max_j (2 C p_j / n_j) sqrt(T) / mu, s_j = (2 C / n_j) sqrt(T) /
    mu, with C for 2 C under "add_remove". A record belongs to one silo, so under silo trust the
    silos compose in parallel.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("gradient_descent", data, parameters) as run:
        run.choose("trust", "central", "silo")
        run.choose("calibration", "sound", "paper")
        run.choose_neighbours()
        objective = run.objective
        eta = step_sizes(step_size, run.rounds, objective)[:, 0]
        claim = run.claimed
        if claim is not None and trust == "central":
            log_term = math.log(1.0 / claim["delta"])
            s = math.sqrt(8.0 * rounds * log_term) * run.clip / (data.n * claim["epsilon"])
            gradient = NoisyMeanGradient(run, trust=trust, sigma=s / objective.record_weight())
        else:
            gradient = NoisyMeanGradient(run, trust=trust, mu=run.mu_of_one(run.rounds))

        w = np.zeros(data.d)
        for t in run.numbered_rounds():
            g = gradient(w) + objective.penalty_gradient(w)
            w_next = objective.prox(w - eta[t] * g, eta[t])
            run.record(t, w_next, eta[t], (w - w_next) / eta[t])
            w = w_next
        return run.result(w, trust=trust)
