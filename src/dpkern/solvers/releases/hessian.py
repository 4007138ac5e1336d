"""The noisy Hessian, its eigenvalue floor, and the direction of Newton's method."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._numbers import positive
from dpkern._typing import FloatArray
from dpkern.papers import noise
from dpkern.privacy import split_budget
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan, require_convex_loss
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.settings import newton_floor
from dpkern.solvers.releases.gradient import NoisyMeanGradient, over_silos

# The eigenvalue floor where neither penalty nor noise gives a scale.
_LEAST_FLOOR = 1e-8
# The floor as a share of the noise's spectral norm, fitted on public sets (docs/settings.md).
_NOISE_SHARE = 0.25
# Shares of mu^2 of gradients, Hessians, of which the mean is taken, and decreases in a search.
_SHARES = (8.0, 2.0, 5.0)


class NoisyMeanHessian:
    """sum_j p_j (1/n_j) (sum_i H_i + noise), H_i the clipped Hessian of one record.

    Central trust: V = sum_j om_j S_j + Z, om_j = (p_j/n_j) / max_k (p_k/n_k) on the records before
    rounding. Silo trust: V_j = S_j + Z_j of every silo. The sensitivity of V or V_j in Frobenius
    norm is sqrt(2) B + q d, or B + q d where a record is added or removed (`GaussianHessian`).
    `mu` is the budget of one release, `sigma` a std on the packed upper triangles in its place;
    `beside` that of the gradients' release at the same models, beside which Hessians add less.
    """

    def __init__(
        self,
        run: Run,
        *,
        mu: float | None = None,
        sigma: float | None = None,
        beside: float | None = None,
    ) -> None:
        objective, data = run.objective, run.objective.data
        self._run, self._per_silo = run, run.plan.trust == "silo"
        self._clip: float = run.plan.arguments["hess_clip"]
        self._mechanism = GaussianHessian(
            run.channel(),
            what="sum of clipped Hessians",
            hess_clip=self._clip,
            dim=data.d,
            sizes=tuple(objective.sizes.tolist()) if self._per_silo else (objective.n,),
            mu=mu,
            sigma=sigma,
            triangle=sigma is not None,
            beside=beside if run.plan.person_clip is None else None,
        )
        self._silo_weight = None if self._per_silo else objective.silo_weight()
        self._scale = (
            1.0 / objective.sizes if self._per_silo else np.array([objective.record_weight()])
        )

    @property
    def noise_norm(self) -> FloatArray:
        """Approximate spectral norm of the noise on each message's mean, shape (k,); public."""
        return self._mechanism.noise_norm * self._scale

    @property
    def is_beside(self) -> bool:
        """Whether Hessians are charged what they add to the gradients at the same models."""
        return self._mechanism.is_beside

    async def means(self, w: FloatArray, sums: FloatArray | None = None) -> FloatArray:
        """Release the mean Hessians of the data part at the models w (k, d); shape (k, d, d).

        `sums` are those of `kernel`, where they are known.
        """
        run, w = self._run, w if self._per_silo else w[0]
        if sums is None:
            sums = await run.sums(kernels.glm_hessian, w, **self._how)
        if not self._per_silo:
            sums = over_silos(run, sums, self._mechanism.grid, keepdims=True)
        with run.clock("noise"):
            released = self._mechanism.release(sums)
        released *= self._scale[:, np.newaxis, np.newaxis]
        return released

    def kernel(self, w: FloatArray) -> Callable[..., FloatArray]:
        """Return the function of data that returns the sums at w, shape (k, d)."""
        return partial(kernels.glm_hessian, w=w if self._per_silo else w[0], **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        return {
            "loss": self._run.objective.phi,
            "hess_clip": self._clip,
            "grid": self._mechanism.grid,
            "silo_weight": self._silo_weight,
            "records": self._mechanism.records,
        }


async def sums_of_one_pass(
    run: Run, gradient: NoisyMeanGradient, hessian: NoisyMeanHessian, w: FloatArray
) -> list[Any]:
    """Return the sums of both at w (k, d) for a run on blocks by itself; None, None for others."""
    if run.objective.data.blocks is None or run.in_lockstep:
        return [None, None]
    return list(await run.sums_at_once([gradient.kernel(w), hessian.kernel(w)]))


def resolve_hess_clip(plan: RunPlan, objective: Objective) -> RunPlan:
    """Resolve B: None is phi''max R^2, which clips nothing, or infinity without a budget."""
    require_convex_loss(plan, objective, "the Hessian of a record must be positive semi-definite")
    bound = math.inf if plan.budget is None else objective.data_smoothness
    if (hess_clip := plan.arguments["hess_clip"]) is not None:
        bound = positive("hess_clip", hess_clip, or_infinite=plan.budget is None)
    elif plan.budget is not None and not math.isfinite(bound):
        raise ValueError(
            "hess_clip is needed with a budget, the bound of a record's Hessian in Frobenius norm: "
            "give the data a row_bound=R, or hess_clip=NUMBER where the curvature has no bound"
        )
    return plan.replace_arguments(hess_clip=bound)


class NewtonSystem:
    """Noisy gradients and Hessians of the penalised objective, and the Newton directions.

    The direction of a message is ( V max(Lambda, floor) V^T )^-1 g, its released Hessian being
    V Lambda V^T, with the public `floors`, shape (k,). With noise, calibration "sound" takes the
    mean of all that a message has released, round t with weight t + 1: it has less noise, and the
    Hessian changes little from round to round. `search_mu` is the budget of one private search.

    The floor "auto" is the largest of l2, a quarter of the expected spectral norm of the noise that
    the mean Hessian needs alone, sqrt(2 d) times its std (2 sqrt(d) with calibration "paper"), and,
    with calibration "sound", the curvature below which the noise of the mean gradient would move
    margins too far; or 1e-8 where all are 0.
    """

    def __init__(self, run: Run) -> None:
        self._run, plan, objective = run, run.plan, run.objective
        mu_g = mu_H = s_g = s_H = self.search_mu = None
        if plan.budget is not None:
            searched = str(plan.arguments["step_size"]) == "private_search"
            shares, steps = _SHARES[: 3 if searched else 2], plan.rounds * plan.local_steps
            mu_g, mu_H, *rest = split_budget(plan.budget.mu, shares, (steps,) * len(shares))
            self.search_mu = rest[0] if searched else None
            if plan.paper:
                mu, B = plan.budget.mu, plan.arguments["hess_clip"]
                releases, mu_g, mu_H = len(shares) * steps, None, None
                s_g, s_H = noise.newton(mu, clip=plan.clip, hess_clip=B, releases=releases)
        self._gradient = NoisyMeanGradient(run, mu=mu_g, sigma=s_g)
        self._hessian = NoisyMeanHessian(run, mu=mu_H, sigma=s_H, beside=mu_g)
        self._penalty = objective.l2 * objective.penalized
        noise_norm = self._hessian.noise_norm
        if self._hessian.is_beside:
            # Noise smaller by this beside gradients, whose own noise asks for the same floor.
            noise_norm = math.sqrt(2.0) * noise_norm
        if isinstance(floor := plan.arguments["floor"], str):
            least = 0.0 if plan.paper else newton_floor(objective, self._gradient.noise_std)
            floor = np.maximum(_NOISE_SHARE * noise_norm, max(objective.l2, least))
            floor = np.where(floor > 0.0, floor, _LEAST_FLOOR)
        self.floors = np.broadcast_to(np.asarray(floor, dtype=np.float64), noise_norm.shape)
        self._averaged, self._released, self._mean = mu_H is not None, 0, np.zeros(())

    async def __call__(self, w: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Release at w (k, d) and return the mean gradients and the directions, (k, d) each."""
        run, floors = self._run, self.floors
        sums = await sums_of_one_pass(run, self._gradient, self._hessian, w)
        g = await self._gradient.means(w, sums[0]) + self._penalty * w
        H = await self._hessian.means(w, sums[1])
        if self._averaged:  # in place, since a copy takes as long as an operation
            self._released += 1
            H -= self._mean
            H *= 2.0 / (self._released + 1.0)
            H += self._mean
            self._mean = H
        # Scaling H and g by the floors does not change the directions.
        scale = floors[:, np.newaxis]
        A = H + np.diag(self._penalty)
        A /= scale[..., np.newaxis]
        p = await run.computed(kernels.newton_direction, A, g / scale, floor=1.0)
        return g, p
