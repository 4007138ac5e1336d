"""Noisy proximal SVRG with restarts, for objectives that satisfy a proximal PL inequality.

Algorithms 2 and 9 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for s = 1..S:  w_s = prox_svrg( w_{s-1} )
    return w_S

Every run of Algorithm 1 hands on one of its iterates: for the theorem a random one.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, NoiseStream
from dpkern.solvers._docs import documented
from dpkern.solvers._objective import Penalty
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor
from dpkern.solvers.prox_svrg import variance_reduced


@documented
def prox_pl_svrg(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 60,
    restarts: int = 3,
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
    r"""Noisy proximal SVRG with restarts.

    Parameters
    ----------
    rounds : int
        Number of updates R of all runs; each has ceil(R / S), the last what is left.
    restarts : int
        Runs S of SVRG, each from what the one before returns.
    refresh_every : int
        Q: every run begins with a gradient of all records, and has one every Q rounds.
    step_size : float, sequence of R floats, "auto" or "theorem"
        As in `prox_svrg`.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws the noise of Theorem E.2 and certifies what it gives.
    neighbours : {"replace_one"}
        What neighbouring data sets differ in.
    returns : {"last", "random", "average"}
        The iterate that every run hands on, and that of the last run the result holds.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released is what `prox_svrg` releases, by all runs together: R gradients and differences share
    mu^2.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    return variance_reduced("prox_pl_svrg", data, parameters)
