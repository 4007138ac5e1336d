"""Step sizes of Newton's method: public, from releases, or by a private line search."""

import math
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._numbers import positive
from dpkern._typing import FloatArray
from dpkern.models.scale import largest_target
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.solvers.base.objective import Objective
from dpkern.solvers.base.plan import RunPlan, step_sizes, within_doubles
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.gradient import over_silos
from dpkern.solvers.releases.hessian import NewtonSystem, resolve_hess_clip

# (step number, models, gradients, directions), each (k, d) -> steps (k,)
Steps = Callable[[int, FloatArray, FloatArray, FloatArray], Coroutine[Any, Any, FloatArray]]

# A search chooses among max_step 2^-i, i = 0, 1, ..., 7.
_CANDIDATES = 8

# 2 / sqrt(3) >= |(1, 1/2, 1/4, ...)|, rounded up by more than the rounding error of a product.
_CANDIDATES_NORM = 1.15470054


def resolve_floor(plan: RunPlan, objective: Objective) -> RunPlan:
    """Return the plan with given step sizes, the bound of Hessians and the eigenvalue floor."""
    if plan.trust != "silo" and plan.local_steps > 1:
        raise ValueError(
            f"local_steps must be 1 under trust='central' in {plan.solver}, got {plan.local_steps}"
        )
    step_size, floor = plan.arguments["step_size"], plan.arguments["floor"]
    if not isinstance(step_size, str):
        # A step along a Newton direction shrinks what the penalties do by at most its size.
        eta = within_doubles(step_sizes(plan, objective), objective, plan.arguments, pull=1.0)
        plan = replace(plan, step_sizes=eta)
    plan = resolve_hess_clip(plan, objective)
    if not isinstance(floor, str):
        return plan.replace_arguments(floor=positive("floor", floor))
    if floor != "auto":
        raise ValueError(f"floor must be a number or 'auto', got {floor!r}")
    with Run(plan, objective) as trial:  # which releases nothing
        return plan.replace_arguments(floor=NewtonSystem(trial).floors)


def step_rule(run: Run, mu: float | None) -> Steps:
    """Return the rule of the argument step_size; mu is the budget of one private search."""
    step_size, max_step = run.plan.arguments["step_size"], run.plan.arguments["max_step"]
    eta, unit = run.plan.step_sizes.ravel(), largest_target(run.objective.data)

    async def given(t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        return np.full(len(p), eta[t])

    async def damped(t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        # By the bound of targets, so that their unit does not matter, and 1 for labels.
        decrement = np.sqrt(np.maximum(np.sum(g * p, axis=1), 0.0)) / unit
        return np.minimum(max_step, 1.0 / (1.0 + decrement))

    if not isinstance(step_size, str):
        return given
    if step_size == "damped":
        return damped
    if step_size == "private_search":
        return PrivateSearch(run, mu=mu, max_step=max_step)
    raise ValueError(
        "step_size must be a number, a sequence, 'damped', 'private_search' or 'paper_search' "
        f"in {run.plan.solver}, got {step_size!r}"
    )


def candidates(max_step: float) -> FloatArray:
    """Return the step sizes among which a search chooses, in decreasing order."""
    return max_step * np.ldexp(1.0, -np.arange(_CANDIDATES))


class PrivateSearch:
    """Private line search: the candidate with the largest released decrease of the objective.

    It releases v_a = sum_i round_q(clamp(phi(z_i) - phi(z_i - a dz_i), +-a s)), dz_i = x_i . p, for
    all candidates a at once, with N(0, s_v^2) on each; s is the power of two above C |p| (2^300 at
    most), p the released direction. In units of s the sensitivity is 2 sqrt(sum a^2), or half of
    that where a record is added or removed, at every step.
    """

    def __init__(self, run: Run, *, mu: float | None, max_step: float) -> None:
        objective = run.objective
        self._run, self._per_silo = run, run.plan.trust == "silo"
        weight = objective.silo_weight()
        if not self._per_silo and weight is not None and np.any(weight != 1.0):
            # The silos' sums of losses are added without weights.
            raise ValueError(
                "step_size='private_search' needs weights='size' under central trust where silos "
                "differ in size"
            )
        self._steps: FloatArray = candidates(max_step)
        sizes = objective.sizes if self._per_silo else np.array([objective.n])
        self._scale = 1.0 / sizes
        self._mechanism = GaussianSum(
            run.channel(),
            what="decreases of the loss along the released direction p, in units of a power of two "
            "above C |p|",
            clip=max_step * _CANDIDATES_NORM if run.plan.clip < math.inf else math.inf,
            dim=_CANDIDATES,
            sizes=tuple(sizes.tolist()),
            mu=mu,
        )
        grid = self._mechanism.grid
        if grid is not None and 32.0 * float(grid.max()) > self._steps[-1]:
            raise ValueError(
                f"step_size='private_search' has no grid for its smallest candidate "
                f"{self._steps[-1]!r}: the budget is too small, or the records are too many"
            )

    async def __call__(self, t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        unit = np.ones(len(p))
        if self._run.plan.clip < math.inf:
            # frexp: C |p| < 2^e; clipped, so that the kernel raises the error of an overflow.
            exponent = np.frexp(self._run.plan.clip * np.linalg.norm(p, axis=1))[1]
            unit = np.ldexp(unit, np.clip(exponent, -300, 300))
        decreases = await self._decreases(w, p, unit)
        with self._run.clock("noise"):
            released = self._mechanism.release(decreases / unit[:, np.newaxis])
        mean = released * (unit * self._scale)[:, np.newaxis]
        return self._steps[np.argmax(mean + penalty_decrease(self._run, w, p, self._steps), axis=1)]

    async def _decreases(self, w: FloatArray, p: FloatArray, unit: FloatArray) -> FloatArray:
        run, objective, grid = self._run, self._run.objective, self._mechanism.grid
        if grid is None:
            losses = await losses_along(run, w, p, np.append(0.0, self._steps))
            sums = losses[:, :1] - losses[:, 1:]
        else:
            grid = unit * grid[: len(p)]  # shares of one sum have a common one
            bound = unit[:, np.newaxis] * self._steps
            steps_of_grid = np.broadcast_to(grid[:, np.newaxis], bound.shape)
            shaped = (lambda a: a) if self._per_silo else (lambda a: a[0])
            sums = await run.sums(
                kernels.line_search,
                shaped(w),
                shaped(p),
                loss=objective.phi,
                steps=self._steps,
                bound=shaped(bound),
                grid=shaped(steps_of_grid),
                saturate=run.plan.sizes_are_hidden,
            )
        return sums if self._per_silo else over_silos(run, sums, grid, keepdims=True)


async def losses_along(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
    """Return the sums of losses along w - a p without noise, shape (m, len(steps)); not private."""
    models = (w, p) if len(w) == run.objective.data.m else (w[0], p[0])
    return await run.sums(kernels.line_search, *models, loss=run.objective.phi, steps=steps)


def penalty_decrease(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
    """Return (l2/2) (|w|^2 - |w - a p|^2) on penalised coordinates, shape (k, len(steps))."""
    mask = run.objective.penalized
    along, square = np.sum(mask * w * p, axis=1), np.sum(mask * p**2, axis=1)
    return run.objective.l2 * (np.outer(along, steps) - 0.5 * np.outer(square, steps**2))
