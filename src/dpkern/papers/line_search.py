"""The line search of Cao, Guo, Zhang (2023), which reads un-noised quantities."""

import math

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.newton_steps import candidates, losses_along, penalty_decrease


class PaperSearch:
    """The line search of Cao, Guo, Zhang (2023), Equation (10), on un-noised quantities.

    The step is the largest candidate a with f(w - a p) <= f(w) - a p.g + a (1 - beta) p.H p,
    beta = 1/2, or else the smallest candidate. f, g and H are the silo's own without noise, so that
    the step is no function of the releases, and nothing is certified.
    """

    def __init__(self, run: Run, *, max_step: float) -> None:
        if not run.plan.paper:
            raise ValueError(
                "step_size='paper_search' needs calibration='paper': it reads un-noised losses"
            )
        m = run.objective.data.m
        self._run = run
        self._steps: FloatArray = candidates(max_step)
        self._channel = run.channel("silo")
        self._release = self._channel.describe(
            what="step sizes that Equation (10) chose by un-noised losses, gradients and Hessians",
            sensitivity=math.inf if m == 1 else (math.inf,) * m,
            std=None,
            grid=None,
            dim=1,
        )

    async def __call__(self, t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        run, objective = self._run, self._run.objective
        sizes, penalty = objective.data.sizes[:, np.newaxis], objective.l2 * objective.penalized
        losses = await losses_along(run, w, p, np.append(0.0, self._steps)) / sizes
        how = {"loss": objective.phi}
        slopes = await run.sums(kernels.glm_gradient, w, clip=run.plan.clip, **how)
        H = await run.sums(kernels.glm_hessian, w, hess_clip=run.plan.arguments["hess_clip"], **how)
        self._run.ledger.append(self._release)
        slope = np.sum(p * (slopes / sizes + penalty * w), axis=1, keepdims=True)
        curved = np.einsum("ki,kij,kj->k", p, H, p)[:, np.newaxis] / sizes
        curvature = curved + np.sum(penalty * p**2, axis=1, keepdims=True)
        decreases = losses[:, :1] - losses[:, 1:] + penalty_decrease(run, w, p, self._steps)
        enough = decreases >= self._steps * (slope - 0.5 * curvature)
        enough[:, -1] = True
        chosen = self._steps[np.argmax(enough, axis=1)]
        return self._channel.seen(chosen, chosen, None)
