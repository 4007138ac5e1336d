"""Noisy minibatch SGD across silos that trust nobody.

The baseline of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a
trusted server", AISTATS 2023 (Lowy, Razaviyayn 2021, Algorithm 1), with a prox:

    for r = 0..R-1:
        each silo j in S_r:   g_j = (1/K_j) sum over a batch of grad f(w, x) + N(0, s_j^2 I)
        w = prox_{eta h}( w - eta sum_{j in S_r} (m/M) p_j g_j )

f is clipped record by record; h is what acts by its prox.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.record_sampling import make_record_sampler
from dpkern.solvers._docs import documented
from dpkern.solvers._means import Family, NoisyMeans, Participation, Returned, allocate, steps
from dpkern.solvers._objective import Penalty, PublicSize
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers._sums import sums_of


@documented
def minibatch_sgd(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 50,
    batch_size: int | None = None,
    sampling: Literal["full", "without_replacement", "poisson", "one_pass", "cyclic"] = "full",
    participation: int | None = None,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["silo", "central", "shuffle"] = "silo",
    calibration: Literal["sound", "paper"] = "sound",
    neighbours: Literal["replace_one", "add_remove"] = "replace_one",
    public_size: PublicSize = None,
    returns: Literal["last", "random", "average"] = "last",
    penalize_intercept: bool = True,
    rng: int | NoiseStream | None = None,
    n_threads: int | None = None,
    progress: bool = False,
    callback: Callback | None = None,
    monitor: Monitor = None,
) -> SolverResult:
    r"""Noisy minibatch SGD on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of updates R.
    step_size : float, sequence of R floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L the smoothness of the loss; "theorem" is the same here.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws s_j = sqrt(8 R ln(1/delta)) C / (n_j epsilon) and certifies what
        that gives.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    Released, once a round. Silo trust: S_j + Z_j of every silo of the round, S_j the exact sum on a
    grid of its batch's clipped gradients at the public w: replacing a record moves it by at most
    2 C, adding or removing one by C. Central trust: the same of sum_j om_j S_j, om_j <= 1 on the
    records. Shuffle trust: the counts of the batch's vectors with binomial noise
    (`dpkern.privacy.BinomialSum`). Batches are secret, and so are the sizes of Poisson ones; silos
    of a round are public and pay for the rounds in which they take part. Steps, penalties and prox
    act on what was released.

    Full batches: s_j = (2 C / n_j) sqrt(R') / mu, R' <= R the rounds of the busiest silo. Fixed
    batches or Poisson ones: the least noise for which dp-accounting certifies the budget, under
    shuffle trust as if they were full. One pass: a record is in one release, s_j = 2 C / (K mu).
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("minibatch_sgd", data, parameters, oracles=True) as run:
        return descend(run, eta=steps(run, run.rounds, 1.0), rounds_in_formula=run.rounds)


def descend(run: Run, *, eta: NDArray[np.float64], rounds_in_formula: int) -> SolverResult:
    """R proximal steps along noisy means of gradients; the paper's noise is for so many rounds."""
    parameters, objective = run.parameters, run.objective
    trust = run.choose("trust", "silo", "central", "shuffle")
    run.choose("calibration", "sound", "paper")
    run.only_under("silo", calibration="paper")
    run.choose_neighbours()
    silos = Participation(run, np.ones(run.rounds, dtype=np.int64))
    sampler = make_record_sampler(
        parameters["sampling"],
        parameters["batch_size"],
        sizes=objective.sizes,
        releases=run.rounds,
        neighbours=run.neighbours,
        trust=trust,
    )
    sigma: NDArray[np.float64] | None = None
    claim = run.claimed
    if claim is not None:
        numbers = objective.sizes if rounds_in_formula > 1 else np.array(sampler.batch_sizes)
        root = math.sqrt(8.0 * rounds_in_formula * math.log(1.0 / claim["delta"]))
        sigma = root * run.clip / (claim["epsilon"] * numbers.astype(np.float64))
    family = Family("sum of clipped gradients", range(run.rounds), sampler, sigma=sigma)
    gradient = NoisyMeans(run, sums_of(run), family, silos, *allocate(run, [family], silos))
    returned = Returned(run, run.rounds)

    w = objective.start()
    for r in run.numbered_rounds():
        g = gradient.gradient(r, w) + objective.penalty_gradient(w)
        w_next = objective.prox(w - eta[r] * g, eta[r])
        run.record(r, w_next, eta[r], (w - w_next) / eta[r])
        w = w_next
        returned.see(w)
    return run.result(returned.model, trust=trust)
