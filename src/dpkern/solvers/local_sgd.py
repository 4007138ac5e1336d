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

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpkern.papers import noise as printed
from dpkern.privacy import OnePass
from dpkern.solvers.base.declaration import BOTH, solver
from dpkern.solvers.base.options import Count
from dpkern.solvers.base.result import SolverResult
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.steps import StepSize
from dpkern.solvers.minibatch_sgd import SAMPLERS
from dpkern.solvers.releases.local_runs import HIDDEN, IN_TURN, HiddenBatches, HiddenSteps
from dpkern.solvers.releases.means import (
    Family,
    NoisyMeans,
    Participation,
    Returned,
    allocate,
    sampler_of,
)
from dpkern.solvers.releases.record_sums import sums_of

FloatArray = NDArray[np.float64]


@solver(
    trusts=("central", "silo"), neighbours=BOTH, paper=("silo",), samplers=SAMPLERS, models="any"
)
def local_sgd(
    run: Run,
    *,
    rounds: Count = 25,
    local_steps: Count = 5,
    noise: Literal["step", "round"] | None = None,
    step_size: StepSize = "auto",
) -> SolverResult:
    """Noisy local SGD on the clipped objective.

    Parameters
    ----------
    rounds : int
        Number of averages R.
    local_steps : int
        Steps K of every silo between two averages.
    noise : {"step", "round"} or None
        On every local step, which is the default under trust "silo" and needs it, or once a
        round on what steps without noise have made of the model: for linear models with a row
        bound and a loss of bounded curvature, and full, "one_pass" or "cyclic" batches.
    step_size : float, sequence of R K floats or str
        "auto" = 1 / (L + l2), L = phi''max row_bound^2, or the smoothness that a model
        declares; "theorem" = 2 / (l2 (t + gamma)), gamma = max(8 (L + l2) / l2 - 1,
        local_steps).

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

    Calibration "paper" (noise="step") draws sqrt(8 K R ln(1/delta)) C / (n_j epsilon) on the silo's
    mean and certifies what that gives.
    """
    if noise is None:
        noise = run.parameters["noise"] = "step" if run.trust == "silo" else "round"
    eta = run.step_sizes()
    notes: tuple[str, ...] = ()
    if noise == "round":
        advance: HiddenSteps | _NoisySteps = _hidden_steps(run, eta)
        if run.budget is not None:
            notes = (HIDDEN,) if run.parameters["sampling"] == "full" else (HIDDEN, IN_TURN)
    else:
        if run.trust != "silo":
            raise ValueError("noise='step' needs trust='silo' in local_sgd")
        advance = _NoisySteps(run)
    returned = Returned(run, rounds)

    w = run.objective.start()
    for r in run.numbered_rounds():
        w_next = advance(w, eta[r])
        step = float(np.sum(eta[r]))
        run.record(r, w_next, step, (w - w_next) / step)
        w = w_next
        returned.see(w)
    return run.result(returned.model, notes=notes)


def _hidden_steps(run: Run, eta: FloatArray) -> HiddenSteps:
    allowed = {"participation": None, "calibration": "sound", "neighbours": "replace_one"}
    for name, value in allowed.items():
        if run.parameters[name] != value:
            raise ValueError(f"noise='round' needs {name}={value!r}")
    sampler, mu = sampler_of(run, eta.size), run.mu_of_one(run.rounds)
    if not isinstance(sampler, OnePass):
        if sampler.method != "full":
            raise ValueError(
                "noise='round' needs sampling='full', 'one_pass' or 'cyclic', got "
                f"{sampler.method!r}: take trust='silo' and noise='step'"
            )
        return HiddenSteps(run, mu=mu)
    if sampler.per_record < run.rounds:
        return HiddenBatches(run, sampler=sampler, per_record=sampler.per_record, eta=eta)
    return HiddenSteps(run, mu=mu, sampler=sampler)


class _NoisySteps:
    """K steps of every silo along noisy means of its batches; their weighted mean."""

    def __init__(self, run: Run) -> None:
        self._objective, self._K, self._round = run.objective, run.local_steps, 0
        T = run.rounds * run.local_steps
        sampler = sampler_of(run, T)
        silos = Participation(run, np.full(run.rounds, run.local_steps))
        sigma, claim = None, run.claimed
        if claim is not None:
            sizes = run.objective.sizes.astype(np.float64)
            sigma = printed.minibatch_sgd(claim, clip=run.clip, sizes=sizes, releases=T)
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
