"""Local steps on batches, with noise on every step or once per round."""

import numpy as np

from dpkern._typing import FloatArray
from dpkern.privacy.sampling.record_sampling import Cyclic
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.local_runs import HiddenSteps
from dpkern.solvers.releases.means import Family, NoisyMeans, Participation, allocate, sampler_of
from dpkern.solvers.releases.record_sums import sums_of


def hidden_batch_steps(run: Run, eta: FloatArray) -> HiddenSteps:
    """Return K hidden local steps on batches, with noise once per round on their result."""
    allowed = {"participation": None, "calibration": "sound", "neighbours": "replace_one"}
    for name, value in allowed.items():
        if run.plan.arguments[name] != value:
            raise ValueError(f"noise='round' needs {name}={value!r}")
    sampler = sampler_of(run.plan, run.objective, eta.size)
    if not isinstance(sampler, Cyclic):
        if sampler.method != "full":
            raise ValueError(
                "noise='round' needs sampling='full', 'one_pass' or 'cyclic', got "
                f"{sampler.method!r}: take trust='silo' and noise='step'"
            )
        return HiddenSteps(run, mu=run.plan.mu_of_one(run.plan.rounds))
    charged = min(sampler.per_record, run.plan.rounds)
    return HiddenSteps(
        run,
        mu=run.plan.mu_of_one(charged),
        sampler=sampler,
        per_record=charged if charged < run.plan.rounds else None,
    )


class NoisyBatchSteps:
    """K local steps along noisy mean gradients of batches, under silo trust, then averaged.

    `sigma`, shape (m,), is a paper's noise std on the silos' means, in place of the budget.
    """

    def __init__(self, run: Run, sigma: FloatArray | None = None) -> None:
        self._objective, self._K, self._round = run.objective, run.plan.local_steps, 0
        T = run.plan.rounds * run.plan.local_steps
        sampler = sampler_of(run.plan, run.objective, T)
        silos = Participation(run, np.full(run.plan.rounds, run.plan.local_steps))
        family = Family("sum of clipped gradients of a local step", range(T), sampler, sigma=sigma)
        (mu,) = allocate(run, [family], silos)
        self._means = NoisyMeans(run, sums_of(run), family, silos, mu)
        self._weights = silos.active[:: run.plan.local_steps] * run.objective.shares()
        self._weights /= self._weights.sum(axis=1, keepdims=True)

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        objective, t = self._objective, self._round * self._K
        theta = np.tile(w, (objective.data.m, 1))
        for k, step in enumerate(eta.tolist()):
            g = await self._means.of_silos(t + k, theta)
            theta = objective.prox(theta - step * (g + objective.penalty_gradient(theta)), step)
        weights = self._weights[self._round]
        self._round += 1
        return weights @ theta
