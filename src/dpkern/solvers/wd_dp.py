"""WD-DP: one communication after T local steps.

Algorithm 1 of Kang, Liu, Niu, Wang, "Weighted distributed differential privacy ERM: convex and
non-convex", Computers & Security 2021:

    theta_j = 0 in every silo j
    for t = 0..T-1:
        theta_j = prox_{eta_t l1}( theta_j - eta_t (grad J_j(theta_j) + z_tj) )
    return sum_j (p_j + z_w) theta_j + z                       the only thing seen (central)

    sound, central:  z_tj = 0,  z ~ N(0, s^2 I),  z_w = 0
    sound, silo:     z_tj ~ N(0, s_j^2 I),  z = 0,  z_w = 0;  every theta_j is seen
    paper:           z_tj ~ N(0, s^2 I),  z = 0,  z_w ~ N(0, s_w^2), one number for all silos

J_j is the mean over silo j of the clipped losses, with the penalties; p_j = n_j / N. The paper's
proof takes every gradient at one public model. In the sound form one record moves p_j theta_j by
p_j (2 C / n_j) E_T = (2 C / N) E_T, whatever its silo's size: uneven silos cost nothing. Replacing
a record changes no p_j, so that noise on the weights protects nothing.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.papers.mechanisms import WeightNoise
from dpkern.privacy import Budget, NoiseStream
from dpkern.solvers._docs import documented
from dpkern.solvers._local import (
    HIDDEN,
    HIDDEN_ITERATES,
    NOT_HIDDEN,
    HiddenSteps,
    LastIterates,
    NoisySteps,
)
from dpkern.solvers._objective import Penalty, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run

# The paper leaves its constant open; 8 is that of the works it compares with.
_PAPER_CONSTANT = 8.0


@documented
def wd_dp(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    local_steps: int = 50,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["central", "silo"] = "central",
    accounting: Literal["composition", "last_iterate"] = "composition",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Weighted distributed ERM with one communication.

    Parameters
    ----------
    regularizer : (name or Regularizer, strength) or None
        A smooth penalty, such as ("pl", 0.01), the paper's non-convex one. Others act by their
        prox, not beside l1; under central trust they are for runs without a budget.
    local_steps : int
        Steps T of every silo.
    step_size : float, sequence of T floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L = phi''max row_bound^2; "theorem" as in `federated_gd`.
    trust : {"central", "silo"}
        Whether only the average is seen, or every silo's model.
    accounting : {"composition", "last_iterate"}
        Under silo trust, "last_iterate" charges a silo for the last of its noisy iterates instead
        of for all: it needs equal steps that contract.
    calibration : {"sound", "paper"}
        "paper" (central) draws the paper's noise in every silo and on the weights, with half of
        epsilon and delta each, and certifies an upper bound of what that gives.
    neighbours : {"replace_one"}
        The sensitivity of hidden local steps is not known for added or removed records.
    callback : callable or None
        callback(0, release) at the end.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Central trust: V = sum_j round_q( p_j theta_j ) + Z is released once, to whoever sees the
    aggregate, of sensitivity D = max_j p_j (2 C / n_j) E_T and float terms
    (`dpkern.privacy.local_runs`), std D / mu. E_T is T eta for convex losses with
    eta <= 2 / (L + l2), (1 - (1 - eta l2)^T) / l2 with eta <= 2 / (L + 2 l2) and l2 on every
    coordinate, and grows like a power with "pl". It needs a row bound and a loss of bounded
    curvature.

    Silo trust: every silo adds N(0, (2 C)^2 T / mu^2) to its exact sum at every step and sends
    theta_j, a function of T noisy sums of sensitivity 2 C each.

    Paper mode: mu <= max_j 2 C sqrt(T) / (n_j s), by composing each silo's own steps.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("wd_dp", data, parameters) as run:
        run.choose("trust", "central", "silo")
        run.choose("calibration", "sound", "paper")
        run.choose("neighbours", "replace_one")
        last = run.choose("accounting", "composition", "last_iterate") == "last_iterate"
        run.only_under("silo", accounting="last_iterate")
        run.only_under("central", calibration="paper")
        (eta,) = step_sizes(step_size, 1, run.objective, run.local_steps)
        T, w, claim = run.local_steps, np.zeros(data.d), run.claimed
        bound = "exact"
        notes: tuple[str, ...] = ()

        for r in run.numbered_rounds():
            if claim is not None:
                half_epsilon, log_term = claim["epsilon"] / 2, math.log(2.0 / claim["delta"])
                unit = math.sqrt(_PAPER_CONSTANT * log_term) / (data.n * half_epsilon)
                s = run.clip * math.sqrt(T) * unit
                sigma = s * data.sizes.astype(np.float64)
                theta = NoisySteps(run, trust=trust, sigma=sigma).models(w, eta)
                z_w = WeightNoise(run.channel("central"), sigma=unit).release()
                w_next = (data.weights(weights) + z_w) @ theta
                bound, notes = "upper", (NOT_HIDDEN,)
            elif last and run.budget is not None:
                w_next = LastIterates(run, mu=run.budget.mu, eta=eta[np.newaxis])(w, eta)
                notes = (HIDDEN_ITERATES,)
            elif trust == "silo":
                w_next = NoisySteps(run, trust=trust, mu=run.mu_of_one(T))(w, eta)
            else:
                w_next = HiddenSteps(run, trust=trust, mu=run.mu_of_one(1))(w, eta)
                notes = (HIDDEN,)
            step = float(np.sum(eta))
            run.record(r, w_next, step, (w - w_next) / step)
            w = w_next
        return run.result(w, trust=trust, bound=bound, notes=notes if run.budget else ())
