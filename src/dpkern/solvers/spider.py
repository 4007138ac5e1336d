"""Noisy proximal SPIDER across silos that trust nobody.

Algorithms 3, 10 and 11 of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning
without a trusted server", AISTATS 2023:

    for r = 0..R-1:
        r mod q = 0:  h = sum_{j in S_r} (m/M) p_j [ mean over a batch of grad f(w_r, x) + noise ]
        else:         h = h + sum_{j in S_r} (m/M) p_j [ mean of grad f(w_r, x) - grad f(w_{r-1}, x)
                                                         + noise ]
        w_{r+1} = prox_{eta g}( w_r - eta h )

Gradients are clipped to C and differences to C_r = min(2 C, beta |w_r - w_{r-1}|), with noise in
proportion. Round R of the paper, whose iterate nobody uses, is left out. Algorithm 11, "alternate",
is this with q = 2 and C_r = 2 C; of its last estimate nobody makes use either.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count, positive
from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.record_sampling import make_record_sampler
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
def spider(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 50,
    refresh_every: int = 2,
    variant: Literal["spider", "alternate"] = "spider",
    refresh_share: float = 0.5,
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
    r"""Noisy proximal SPIDER on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of updates R.
    refresh_every : int
        q: every q-th round releases gradients, the others differences.
    variant : {"spider", "alternate"}
        "alternate" is Algorithm 11: q = 2, and differences clipped to 2 C whatever the step.
    refresh_share : float
        The part of the budget, in mu^2, that goes to the rounds that release gradients; all of it
        where q = 1 or R = 1.
    step_size : float, sequence of R floats, "auto" or "theorem"
        "theorem" = 1 / (2 beta), beta the smoothness of the loss and the penalties; "auto" is twice
        that.
    calibration : {"sound", "paper"}
        "paper" (silo trust) draws the noise of Theorem F.1, for "alternate" that of the paper's
        experiments, and certifies what it gives: more than is claimed where q > 1.
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
    Released, once a round: the silos' sums of clipped gradients, or of clipped differences, of
    their batches, with noise; under central trust their weighted sum, under shuffle trust counts,
    as in `minibatch_sgd`. Replacing a record moves a sum of gradients by at most 2 C and one of
    differences by at most 2 C_r, at public w_r and w_{r-1}, whatever beta is. R1 = ceil(R/q) and
    R2 = R - R1 releases spend R1 mu_1^2 + R2 mu_2^2 = mu^2, fixed in advance: on the means
    s_j = 2 C / (n_j mu_1) and 2 C_r / (n_j mu_2); for secret batches mu_1 and mu_2 grow in
    proportion until dp-accounting's epsilon is the budget's. The printed Algorithm 10 has
    sqrt(q/R) where its proof needs sqrt(R/q).
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("spider", data, parameters, oracles=True) as run:
        believed = run.choose("trust", "silo", "central", "shuffle")
        alternate = run.choose("variant", "spider", "alternate") == "alternate"
        run.choose("sampling", "full", "without_replacement")
        run.choose("calibration", "sound", "paper")
        run.choose("neighbours", "replace_one")
        run.only_under("silo", calibration="paper")
        R, q = run.rounds, 2 if alternate else count("refresh_every", refresh_every)
        share = positive("refresh_share", refresh_share)
        if share >= 1.0:
            raise ValueError(f"refresh_share must be below 1, got {share!r}")
        eta, objective = steps(run, R, 0.5), run.objective
        sampler = make_record_sampler(
            sampling,
            batch_size,
            sizes=objective.sizes,
            releases=R,
            neighbours=run.neighbours,
            trust=believed,
        )
        silos = Participation(run, np.ones(R, dtype=np.int64))
        fresh = [r for r in range(R) if r % q == 0]
        others = [r for r in range(R) if r % q]
        paper = _Paper(run, q, alternate)
        families = [
            Family("sum of clipped gradients", fresh, sampler, share, paper.refresh),
            Family("sum of clipped differences of gradients", others, sampler, 1.0 - share),
        ]
        if not others:
            families.pop()
        budgets, sums = allocate(run, families, silos), sums_of(run)
        means = [
            NoisyMeans(run, sums, family, silos, mu)
            for family, mu in zip(families, budgets, strict=True)
        ]
        returned = Returned(run, R)

        w = before = objective.start()
        h = np.zeros(objective.dim)
        for r in run.numbered_rounds():
            if r % q == 0:
                h = means[0].gradient(r, w)
            else:
                moved = float(np.linalg.norm(w - before))
                C_r = 2.0 * run.clip if alternate else least_difference(run, moved)
                h = h + means[1].difference(r, w, before, clip=C_r, sigma=paper.difference(C_r))
            w_next = objective.prox(w - eta[r] * (h + objective.penalty_gradient(w)), eta[r])
            run.record(r, w_next, eta[r], (w - w_next) / eta[r])
            before, w = w, w_next
            returned.see(w)
        return run.result(returned.model, trust=believed)


class _Paper:
    """Noise on the silos' means as printed: Theorem F.1, and Appendix H for "alternate"."""

    refresh: FloatArray | None = None

    def __init__(self, run: Run, q: int, alternate: bool) -> None:
        claim, C, R = run.claimed, run.clip, run.rounds
        if claim is None:
            return
        delta = claim["delta"] / (2.0 if alternate else 1.0)
        unit = math.sqrt(-math.log(delta)) / (
            claim["epsilon"] * run.objective.sizes.astype(np.float64)
        )
        first, second = (8.0 * R, 32.0 * R) if alternate else (16.0 * max(R / q, 1.0), 64.0 * R)
        self.refresh = math.sqrt(first) * C * unit
        self._most = math.sqrt(second) * C * unit
        self._per_length = math.sqrt(16.0 * R) * unit

    def difference(self, C_r: float) -> FloatArray | None:
        """min(sigma_2 |dw|, sigma_2hat), C_r for beta |dw|; without a known beta the second."""
        if self.refresh is None:
            return None
        return np.minimum(C_r * self._per_length, self._most)
