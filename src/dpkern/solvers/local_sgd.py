"""Noisy local SGD across silos that trust nobody.

The baseline of Lowy, Ghafelebashi, Razaviyayn, "Private non-convex federated learning without a
trusted server", AISTATS 2023:

    for r = 0..R-1:
        each silo j in S_r:   theta_j = w
            K times:          theta_j = prox_{eta h}( theta_j - eta (g + noise) ),
                              g the mean over a batch of grad f(theta_j, x)
        w = weighted mean of theta_j over S_r
    return w

A silo sends theta_j once a round, a function of K noisy sums; with noise="round" the local steps
have none, and theta_j - w has it instead. The paper's steps are about one record each, and its
noise, sqrt(8 K R ln(1/delta)) C / (n epsilon), counts on an amplification that fails its own
condition: what it gives is certified with calibration="paper".
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.data import SiloData
from dpkern.losses import Loss
from dpkern.oracles import Oracle
from dpkern.privacy import Budget, NoiseStream
from dpkern.privacy.record_sampling import OnePass, RecordSampler, make_record_sampler
from dpkern.solvers._docs import documented
from dpkern.solvers._local import HIDDEN, IN_TURN, HiddenBatches, HiddenSteps
from dpkern.solvers._means import Family, NoisyMeans, Participation, Returned, allocate
from dpkern.solvers._objective import Penalty, PublicSize, step_sizes
from dpkern.solvers._result import SolverResult
from dpkern.solvers._run import Callback, Monitor, Run
from dpkern.solvers._sums import sums_of

FloatArray = NDArray[np.float64]

Advance = Callable[[FloatArray, FloatArray], FloatArray]


@documented
def local_sgd(
    data: SiloData,
    *,
    budget: Budget | None,
    clip: float | None = None,
    loss: str | Loss | Oracle = "logistic",
    l2: float = 0.0,
    l1: float = 0.0,
    regularizer: Penalty = None,
    rounds: int = 25,
    local_steps: int = 5,
    noise: Literal["step", "round"] | None = None,
    batch_size: int | None = None,
    sampling: Literal["full", "without_replacement", "poisson", "one_pass", "cyclic"] = "full",
    participation: int | None = None,
    step_size: float | str | Sequence[float] | NDArray[np.float64] = "auto",
    weights: Literal["size", "uniform"] = "size",
    trust: Literal["silo", "central"] = "silo",
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
    r"""Noisy local SGD on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of averages R.
    local_steps : int
        Steps K of every silo between two of them.
    noise : {"step", "round"}
        On every local step, which is the default under silo trust, or once a round on what steps
        without noise have made of the model: for linear models with a row bound and a loss of
        bounded curvature, and full, "one_pass" or "cyclic" batches.
    step_size : float, sequence of R K floats, "auto" or "theorem"
        "auto" = 1 / (L + l2), L the smoothness of the loss; "theorem" as in `federated_gd`.
    trust : {"silo", "central"}
        "central", where only the average is seen, goes with noise="round".
    calibration : {"sound", "paper"}
        "paper" (noise="step") draws sqrt(8 K R ln(1/delta)) C / (n_j epsilon) on the silo's mean
        and certifies what that gives.

    Returns
    -------
    result : SolverResult

    Raises
    ------
    TypeError, ValueError
        When an argument or a condition does not hold; the message names it.

    Notes
    -----
    noise="step": every silo of a round sends theta_j, a function of public numbers and of K noisy
    sums of clipped gradients over its batches. Replacing a record moves one such sum, at models
    that are public or functions of noisy sums before it, by at most 2 C, adding or removing one by
    C: R K releases are charged, or those of the rounds in which the silo takes part, though only
    every K-th iterate is seen. Silos hold disjoint records. Batches as in `minibatch_sgd`.

    noise="round": theta_j - w is rounded to a grid and released with noise; under central trust
    their weighted sum. For full-batch steps its sensitivity is (2 C / n_j) E_K and float terms
    (`dpkern.privacy.LocalRuns`), R releases. With sampling="one_pass" or "cyclic" the steps take
    batches of b records in turn from an order in which the records have no say. A step carries the
    distance of neighbours on with a factor of at most c_t, and adds eta_t 2 C / b where its batch
    holds the replaced record. So the sensitivity is (2 C / b) sum of eta_t prod_{u > t} c_u over
    the steps t of the round that use the record, at most ceil(K b / n_j) of them, at the costliest
    place in the order. A record pays for the rounds that use it: min(R, ceil(R K b / n)) releases,
    n the smallest n_j. That the order is secret is not used.
    """
    parameters = {name: value for name, value in locals().items() if name != "data"}
    with Run("local_sgd", data, parameters, oracles=True) as run:
        run.choose("trust", "silo", "central")
        run.choose("calibration", "sound", "paper")
        run.choose_neighbours()
        if noise is None:
            run.parameters["noise"] = "step" if trust == "silo" else "round"
        hidden = run.choose("noise", "step", "round") == "round"
        eta = step_sizes(step_size, run.rounds, run.objective, run.local_steps)
        notes: tuple[str, ...] = ()
        if hidden:
            advance: Advance = _hidden_steps(run, eta)
            if run.budget is not None:
                notes = (HIDDEN,) if sampling == "full" else (HIDDEN, IN_TURN)
        else:
            run.only_under("silo", noise="step")
            advance = _NoisySteps(run)
        returned = Returned(run, run.rounds)

        w = run.objective.start()
        for r in run.numbered_rounds():
            w_next = advance(w, eta[r])
            step = float(np.sum(eta[r]))
            run.record(r, w_next, step, (w - w_next) / step)
            w = w_next
            returned.see(w)
        return run.result(returned.model, trust=trust, notes=notes)


def _sampler(run: Run) -> RecordSampler:
    return make_record_sampler(
        run.parameters["sampling"],
        run.parameters["batch_size"],
        sizes=run.objective.sizes,
        releases=run.rounds * run.local_steps,
        neighbours=run.neighbours,
        trust=run.parameters["trust"],
    )


def _hidden_steps(run: Run, eta: FloatArray) -> HiddenSteps:
    allowed = {"participation": None, "calibration": "sound", "neighbours": "replace_one"}
    for name, value in allowed.items():
        if run.parameters[name] != value:
            raise ValueError(f"noise='round' needs {name}={value!r}")
    sampler, trust = _sampler(run), run.parameters["trust"]
    mu = run.mu_of_one(run.rounds)
    if not isinstance(sampler, OnePass):
        if sampler.method != "full":
            raise ValueError(
                f"sampling={sampler.method!r} needs noise='step': noise='round' is for 'full', "
                "'one_pass' or 'cyclic'"
            )
        return HiddenSteps(run, trust=trust, mu=mu)
    if sampler.per_record < run.rounds:
        return HiddenBatches(
            run, trust=trust, sampler=sampler, per_record=sampler.per_record, eta=eta
        )
    return HiddenSteps(run, trust=trust, mu=mu, sampler=sampler)


class _NoisySteps:
    """K steps of every silo along noisy means of its batches; their weighted mean."""

    def __init__(self, run: Run) -> None:
        self._objective, self._K, self._round = run.objective, run.local_steps, 0
        T = run.rounds * run.local_steps
        sizes, sampler = run.objective.sizes, _sampler(run)
        silos = Participation(run, np.full(run.rounds, run.local_steps))
        sigma, claim = None, run.claimed
        if claim is not None:
            root = math.sqrt(8.0 * T * math.log(1.0 / claim["delta"]))
            sigma = root * run.clip / (claim["epsilon"] * sizes.astype(np.float64))
        family = Family("sum of clipped gradients of a local step", range(T), sampler, sigma=sigma)
        (mu,) = allocate(run, [family], silos)
        self._means = NoisyMeans(run, sums_of(run), family, silos, mu)
        self._weights = silos.active[:: run.local_steps] * run.objective.shares()
        self._weights /= self._weights.sum(axis=1, keepdims=True)

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        objective, t = self._objective, self._round * self._K
        theta = np.tile(w, (objective.data.m, 1))
        for k, step in enumerate(eta.tolist()):
            g = self._means.of_silos(t + k, theta)
            for j, model in enumerate(theta):
                moved = model - step * (g[j] + objective.penalty_gradient(model))
                theta[j] = objective.prox(moved, step)
        weights = self._weights[self._round]
        self._round += 1
        return weights @ theta
