"""Output perturbation of averaged local models.

Pathak, Rane, Raj, "Multiparty differential privacy via aggregation of locally trained classifiers",
NeurIPS 2010; output method of Jayaraman, Wang, Evans, Gu, "Distributed learning without distress:
privacy-preserving empirical risk minimization", NeurIPS 2018:

    theta_j = 0 in every silo j
    for t = 1..T:  theta_j = prox_{eta_t l1}( theta_j - eta_t grad J_j(theta_j) )
    return sum_j p_j theta_j + z                               the only thing seen (central)

    sound, central:  z ~ N(0, s^2 I)
    sound, silo:     every silo sends theta_j + z_j, z_j ~ N(0, s_j^2 I)
    paper:           z Laplace in every coordinate, of scale 2 C / (m n_min l2 epsilon)

J_j is the mean over silo j of the clipped losses, with the penalties; p_j = 1/m. The papers divide
an l2 sensitivity by epsilon and draw every coordinate by itself, which needs an l1 sensitivity, up
to sqrt(d) times larger; and they take the exact minimisers for what T steps give. Here the number
of steps is public, and the sensitivity is that of the steps.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.privacy import Budget, NoiseStream
from dpkern.solvers._docs import documented
from dpkern.solvers._local import HIDDEN, HiddenSteps, LaplaceAverage
from dpkern.solvers._objective import Penalty, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run


@documented
def output_perturbation(
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
    weights: Literal["size", "uniform"] = "uniform",
    trust: Literal["central", "silo"] = "central",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one"] = "replace_one",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Average of local models with noise on the result.

    Parameters
    ----------
    local_steps : int
        Steps T of every silo: exactly so many, there is no tolerance.
    step_size : float, sequence of T floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L = phi''max row_bound^2; "theorem" as in `federated_gd`.
    weights : {"uniform", "size"}
        Silo weights p_j = 1 / m, the papers', or n_j / N.
    trust : {"central", "silo"}
        Whether only the average is seen, or every silo's model with noise of its own.
    calibration : {"sound", "paper"}
        "paper" (central) draws the Laplace noise of Jayaraman et al., of scale
        2 C / (m n_min l2 epsilon), Pathak's divided by m; no guarantee is certified.
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
    (`dpkern.privacy.local_runs`), std D / mu. Silo trust: round_q( theta_j ) + Z_j of every silo,
    with p_j = 1 in D_j; silos hold disjoint records and compose in parallel. Both need a row bound
    and a loss of bounded curvature.

    Paper mode: floating-point Laplace noise from the key stream, arithmetic "float", mu infinite.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("output_perturbation", data, parameters) as run:
        run.choose("trust", "central", "silo")
        run.choose("calibration", "sound", "paper")
        run.choose("neighbours", "replace_one")
        run.only_under("central", calibration="paper")
        (eta,) = step_sizes(step_size, 1, run.objective, run.local_steps)
        claim = run.claimed
        notes: tuple[str, ...] = ()
        if claim is None:
            perturbed: HiddenSteps | LaplaceAverage = HiddenSteps(
                run, trust=trust, mu=run.mu_of_one(1)
            )
            notes = (HIDDEN,)
        else:
            if run.objective.l2 == 0.0:
                raise ValueError("l2 is 0; calibration='paper' divides by it")
            sensitivity = 2.0 * run.clip / (data.m * int(data.sizes.min()) * run.objective.l2)
            perturbed = LaplaceAverage(run, sensitivity=sensitivity, epsilon=claim["epsilon"])

        w = np.zeros(data.d)
        for r in run.numbered_rounds():
            w_next = perturbed(w, eta)
            step = float(np.sum(eta))
            run.record(r, w_next, step, (w - w_next) / step)
            w = w_next
        return run.result(w, trust=trust, notes=notes if run.budget else ())
