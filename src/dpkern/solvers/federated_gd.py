"""Federated gradient descent with an aggregation every step.

The gradient method of Jayaraman, Wang, Evans, Gu, "Distributed learning without distress:
privacy-preserving empirical risk minimization", NeurIPS 2018, and, in paper mode, Algorithm 1 with
K = 1 of Huang, "A federated algorithm for privacy-preserving empirical risk minimization":

    w = 0
    for t = 1..T:
        sound:  g = sum_j p_j grad L_j(w) + N(0, s^2 I)              one noise, in the aggregator
        paper:  g = sum_j p_j (grad L_j(w) + N(0, s_j^2 I))          one noise per silo, summed
        w = prox_{eta_t l1}( w - eta_t (g + l2 w + grad r(w)) )
    return w

Only the aggregate is seen (secure aggregation or a trusted aggregator). Huang calibrates every
silo's noise as if it were the aggregate's: averaging m of them leaves 1/sqrt(m) of what is claimed.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream
from dpkern.solvers._gradient import NoisyMeanGradient
from dpkern.solvers._objective import Smooth, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run


def federated_gd(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Smooth = None,
    rounds: int = 300,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central"] = "central",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Federated gradient descent on the clipped objective, one noisy aggregate a round.

    Parameters
    ----------
    data : SiloData
        N records in m silos.
    budget : Budget or None
        Total budget of the run under replacement of one record; None runs the same code without
        noise and certifies nothing.
    clip : float
        Bound C of one record's gradient in l2 norm; needed with a budget, else infinite.
    loss : str or Loss
        See `dpkern.losses`.
    l2, l1 : float
        Penalties (l2/2) |w|^2 and l1 |w|_1.
    regularizer : (name or Regularizer, strength) or None
        A smooth penalty, such as ("pl", 0.01).
    rounds : int
        Number of releases T.
    step_size : float, sequence of T floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L = phi''max row_bound^2; "theorem" = 2 / (l2 (t + gamma)).
    weights : {"size", "uniform"}
        Silo weights p_j = n_j / N or 1 / m.
    trust : {"central"}
        Only the aggregate is seen; `gradient_descent` offers silo trust.
    calibration : {"sound", "paper"}
        "paper" draws Huang's noise in every silo, s_j = sqrt(8 T ln(1/delta)) C / (m n_min epsilon)
        on the silo's mean gradient, and certifies what the aggregate really gives.
    neighbours : {"replace_one"}
        Adding or removing a record is not offered here.
    penalize_intercept : bool
        Whether the penalties act on the intercept too.
    rng : None, int or NoiseStream
        None is the operating system's entropy; an int is reproducible and not private.
    n_threads : int or None
        None means the cores that the process may use. Results do not depend on it.
    progress : bool
        Show a progress bar.
    callback : callable or None
        callback(round, release) after every round.
    monitor : SiloData, "train" or None
        Public records on which the objective is kept in the history, or "train" as a non-private
        diagnostic.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released, once a round, to whoever sees the aggregate: V = sum_j om_j S_j + Z, S_j the exact sum
    on a grid of clipped per-record gradients at the public w, om_j = (p_j/n_j) / max_k (p_k/n_k)
    applied to every record before rounding. Replacing a record moves V by at most 2 C. Steps,
    penalties and prox act on released quantities and public numbers only. T releases with
    mu_t = mu / sqrt(T) compose to mu: s = max_j (2 C p_j / n_j) sqrt(T) / mu on the mean gradient.
    In paper mode Z is the sum of m independent shares on one grid; with equal silos its true mu is
    sqrt(m) times the claimed one.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("federated_gd", data, parameters) as run:
        run.choose("trust", "central")
        run.choose("calibration", "sound", "paper")
        run.choose("neighbours", "replace_one")
        objective = run.objective
        eta = step_sizes(step_size, run.rounds, objective)[:, 0]
        claim = run.claimed
        if claim is None:
            gradient = NoisyMeanGradient(run, trust=trust, mu=run.mu_of_one(run.rounds))
        else:
            log_term = math.log(1.0 / claim["delta"])
            smallest = data.m * int(data.sizes.min()) * claim["epsilon"]
            s = math.sqrt(8.0 * rounds * log_term) * run.clip / smallest
            sigma = s * data.weights(weights) / objective.record_weight()
            gradient = NoisyMeanGradient(run, trust=trust, sigma=sigma, shares=True)

        w = np.zeros(data.d)
        for t in run.numbered_rounds():
            g = gradient(w) + objective.penalty_gradient(w)
            w_next = objective.prox(w - eta[t] * g, eta[t])
            run.record(t, w_next, eta[t], (w - w_next) / eta[t])
            w = w_next
        return run.result(w, trust=trust)
