"""Noisy proximal SGD in one pass over the records, for silos that trust nobody.

Algorithms 6 and 7 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without
a trusted server", AISTATS 2023:

    for r = 0..R-1:
        each silo j in S_r:   K = floor(n / R) records that were in no round before,
                              g_j = (1/K) sum grad f(w, x) + N(0, s_j^2 I)
        w = prox_{h / (2 beta)}( w - (1 / (2 beta)) sum_{j in S_r} (m/M) p_j g_j )
    return w

A record is in one release, so the releases compose in parallel: s_j = 2 C / (K mu). (Algorithm 7
prints the step 1/beta; its analysis and Algorithm 6 have 1/(2 beta).)
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
from dpkern.solvers._means import steps
from dpkern.solvers._objective import Penalty
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers.minibatch_sgd import descend


@documented
def prox_sgd(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 20,
    batch_size: int | None = None,
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
    r"""Noisy proximal SGD on disjoint batches.

    Parameters
    ----------
    rounds : int
        Number of updates R.
    batch_size : int, optional
        Records K of a silo in a round; by default floor(n / R), n of the smallest silo.
    step_size : float, sequence of R floats, "auto" or "theorem"
        "theorem" = 1 / (2 beta), beta the smoothness of the loss and the penalties; "auto" is twice
        that.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws s_j = sqrt(8 ln(1/delta)) C / (epsilon K) and certifies what that
        gives.
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
    Released is what `minibatch_sgd` releases, in every round about other records: the batches cut a
    random order of a silo's records that does not depend on them. Replacing a record moves one
    release, by at most 2 C. Silos, and batches of one silo, compose in parallel, and the whole
    budget goes to every release.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    parameters |= {"sampling": "one_pass", "public_size": None}
    with Run("prox_sgd", data, parameters, oracles=True) as run:
        run.choose("neighbours", "replace_one")
        if batch_size is None:
            parameters["batch_size"] = max(1, int(data.sizes.min()) // run.rounds)
        return descend(run, eta=steps(run, run.rounds, 0.5), rounds_in_formula=1)
