"""Federated gradient descent with an aggregation every K local steps.

Algorithm 1 of Huang, "A federated algorithm for privacy-preserving empirical risk minimization",
and for K = 1 the gradient method of Jayaraman, Wang, Evans, Gu, "Distributed learning without
distress: privacy-preserving empirical risk minimization", NeurIPS 2018:

    w = 0
    for r = 1..rounds:
        theta_j = w in every silo j
        K times:  theta_j = prox_{eta_t h}( theta_j - eta_t (grad J_j(theta_j) + z_tj) )
        w = sum_j p_j theta_j + z_r                                the only thing seen (central)
    return w

    sound, central:  z_tj = 0,  z_r ~ N(0, s^2 I),  one noise in the aggregator
    sound, silo:     z_tj ~ N(0, s_j^2 I),  z_r = 0;  theta_j is seen too
    paper:           z_tj ~ N(0, s^2 I) with s of the aggregate,  z_r = 0

J_j is the mean over silo j of the clipped losses, with the penalties, of which h, l1 |w|_1 or a
regulariser that is not smooth, acts by its prox. The paper calibrates every
silo's noise as if it were the aggregate's: for K = 1, averaging m of them leaves 1/sqrt(m) of what
is claimed; for K > 1 its proof does not cover iterates that differ between silos.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream, split_budget
from dpkern.solvers._docs import documented
from dpkern.solvers._gradient import NoisyMeanGradient
from dpkern.solvers._local import (
    HIDDEN,
    HIDDEN_ITERATES,
    NOT_HIDDEN,
    HiddenSteps,
    LastIterates,
    NoisySteps,
)
from dpkern.solvers._objective import Penalty, PublicSize, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run

FloatArray = NDArray[np.float64]
Advance = Callable[[FloatArray, FloatArray], FloatArray]


@documented
def federated_gd(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 300,
    local_steps: int = 1,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central", "silo"] = "central",
    accounting: Literal["composition", "last_iterate"] = "composition",
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
    r"""Federated gradient descent on the clipped objective, one aggregate a round.

    Parameters
    ----------
    rounds : int
        Number of aggregations.
    local_steps : int
        Steps K of every silo between two of them; T = rounds K.
    step_size : float, sequence of T floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L = phi''max row_bound^2; "theorem" = 2 / (l2 (t + gamma)), gamma =
        max(8 (L + l2) / l2 - 1, K).
    trust : {"central", "silo"}
        Whether only the aggregate is seen, or every silo's message.
    accounting : {"composition", "last_iterate"}
        Under silo trust, "last_iterate" charges a silo for the last of its K noisy iterates
        instead of for all: it needs steps that contract, equal within a round.
    calibration : {"sound", "paper"}
        "paper" (central) draws Huang's noise in every silo at every step,
        s = sqrt(8 T ln(1/delta)) C / (m n_min epsilon) on the silo's mean gradient, and certifies
        what the aggregate really gives; for K > 1 an upper bound.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Central trust. K = 1: V = sum_j om_j S_j + Z is released once a round, S_j the exact sum on a
    grid of clipped per-record gradients at the public w, om_j = (p_j/n_j) / max_k (p_k/n_k) applied
    to every record before rounding; replacing a record moves V by at most 2 C, and
    s = max_j (2 C p_j / n_j) sqrt(T) / mu on the mean gradient. K > 1: the silos' steps have no
    noise and stay hidden, V = sum_j round_q( p_j (theta_j - w) ) + Z is released, of sensitivity
    max_j p_j (2 C / n_j) E_K and float terms (`dpkern.privacy.local_runs`), std D sqrt(rounds)/mu.
    It needs a row bound and a loss of bounded curvature.

    Silo trust. Every silo adds N(0, (2 C)^2 T / mu^2) to its exact sum at every local step and
    sends theta_j, a function of T noisy sums of sensitivity 2 C. With "last_iterate" its iterates
    are rounded to a grid and noised instead, and the last one has the sensitivity of
    `dpkern.privacy.LastIterate`. Silos hold disjoint records and compose in parallel.

    Paper mode, K = 1: Z is the sum of m independent shares on one grid; with equal silos its true
    mu is sqrt(m) times the claimed one. K > 1: mu <= max_j 2 C sqrt(T) / (n_j s), by composing each
    silo's own steps.

    Adding or removing a record moves a sum by at most C: with K = 1 that stands for 2 C. What
    hidden steps make of such a record is not bounded, and K > 1 is refused.

    Everything else is a function of the releases and of public numbers.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("federated_gd", data, parameters) as run:
        run.choose("trust", "central", "silo")
        run.choose("calibration", "sound", "paper")
        run.choose_neighbours()
        last = run.choose("accounting", "composition", "last_iterate") == "last_iterate"
        run.only_under("silo", accounting="last_iterate")
        run.only_under("central", calibration="paper")
        if run.sizes_are_hidden and (last or run.local_steps > 1):
            raise ValueError(
                "neighbours='add_remove' needs local_steps=1 and accounting='composition' in "
                "federated_gd: what hidden steps make of a record that comes or goes is not bounded"
            )
        eta = step_sizes(step_size, run.rounds, run.objective, run.local_steps)
        T, claim = eta.size, run.claimed
        sigma = None
        if claim is not None:
            log_term = math.log(1.0 / claim["delta"])
            smallest = data.m * int(data.sizes.min()) * claim["epsilon"]
            sigma = np.full(data.m, math.sqrt(8.0 * T * log_term) * run.clip / smallest)

        notes: tuple[str, ...] = ()
        if run.budget is not None and last:
            mu = split_budget(run.budget.mu, (1.0,), (run.rounds,))[0]
            advance: Advance = LastIterates(run, mu=mu, eta=eta)
            notes = (HIDDEN_ITERATES,)
        elif run.local_steps == 1:
            advance = _gradient_step(run, trust, sigma)
        elif sigma is not None:
            advance = NoisySteps(run, trust=trust, sigma=sigma * data.sizes)
            notes = (NOT_HIDDEN,)
        elif trust == "silo":
            advance = NoisySteps(run, trust=trust, mu=run.mu_of_one(T))
        else:
            advance = HiddenSteps(run, trust=trust, mu=run.mu_of_one(run.rounds))
            notes = (HIDDEN,)

        w = np.zeros(data.d)
        for r in run.numbered_rounds():
            w_next = advance(w, eta[r])
            step = float(np.sum(eta[r]))
            run.record(r, w_next, step, (w - w_next) / step)
            w = w_next
        bound = "upper" if NOT_HIDDEN in notes else "exact"
        return run.result(w, trust=trust, bound=bound, notes=notes if run.budget else ())


def _gradient_step(run: Run, trust: str, sigma: FloatArray | None) -> Advance:
    """K = 1: a step along one noisy mean gradient at the public model."""
    objective = run.objective
    if sigma is None:
        gradient = NoisyMeanGradient(run, trust=trust, mu=run.mu_of_one(run.rounds))
    else:
        shares = sigma * objective.data.weights(objective.weights) / objective.record_weight()
        gradient = NoisyMeanGradient(run, trust=trust, sigma=shares, shares=True)

    def advance(w: FloatArray, eta: FloatArray) -> FloatArray:
        step = float(eta[0])
        return objective.prox(w - step * (gradient(w) + objective.penalty_gradient(w)), step)

    return advance
