"""The step sizes of Newton's method, from public or released numbers, or paid for."""

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.solvers.base.run import Run
from dpkern.solvers.base.steps import StepSize
from dpkern.solvers.releases.gradient import over_silos

FloatArray = NDArray[np.float64]

# (step number, models, gradients, directions), each (k, d) -> steps (k,)
Steps = Callable[[int, FloatArray, FloatArray, FloatArray], FloatArray]

# Steps tried by a search: max_step 2^-i, i = 0, 1, ..., 7.
_CANDIDATES = 8

# Above 2 / sqrt(3) >= |(1, 1/2, 1/4, ...)| by more than the roundings of its product.
_CANDIDATES_NORM = 1.15470054


def step_rule(
    run: Run,
    step_size: StepSize,
    *,
    mu: float | None,
    max_step: float,
) -> Steps:
    """What an argument step_size stands for; mu is the budget of one private search."""
    if not isinstance(step_size, str):
        eta = run.step_sizes().ravel()
        return lambda t, w, g, p: np.full(len(p), eta[t])
    if step_size == "damped":
        return functools.partial(damped_steps, max_step)
    if step_size == "private_search":
        return PrivateSearch(run, mu=mu, max_step=max_step)
    raise ValueError(
        "step_size must be a number, a sequence, 'damped', 'private_search' or 'paper_search' "
        f"in {run.solver}, got {step_size!r}"
    )


def candidates(max_step: float) -> FloatArray:
    """The steps that a search tries, from the largest on."""
    return max_step * np.ldexp(1.0, -np.arange(_CANDIDATES))


def damped_steps(
    max_step: float, t: int, w: FloatArray, g: FloatArray, p: FloatArray
) -> FloatArray:
    """min(max_step, 1 / (1 + sqrt(g^T H^-1 g))) of the released g and H: free post-processing."""
    decrement = np.sqrt(np.maximum(np.sum(g * p, axis=1), 0.0))
    return np.minimum(max_step, 1.0 / (1.0 + decrement))


class PrivateSearch:
    """The candidate with the largest released decrease of the objective.

    v_a = sum_i round_q(clamp(phi(z_i) - phi(z_i - a dz_i), +-a s)), dz_i = x_i . p, is released for
    all candidates a at once with N(0, s_v^2) on each; s is the power of two above C |p| (2^300 at
    most), p the released direction. In units of s replacing a record moves the vector by at most
    2 sqrt(sum a^2), adding or removing one by half of that, the same at every step.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm, ledger and stream.
    mu : float or None
        Budget of one search.
    max_step : float
        The largest candidate; the others are its halves, quarters and so on.

    Raises
    ------
    ValueError
        Under central trust with silo weights that differ from the sizes: the sums of losses of
        several silos are added as they are.
    """

    def __init__(self, run: Run, *, mu: float | None, max_step: float) -> None:
        objective = run.objective
        self._run, self._per_silo = run, run.trust == "silo"
        weight = objective.silo_weight()
        if not self._per_silo and weight is not None and np.any(weight != 1.0):
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
            clip=max_step * _CANDIDATES_NORM if run.clip < math.inf else math.inf,
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

    def __call__(self, t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        unit = np.ones(len(p))
        if self._run.clip < math.inf:
            # frexp: C |p| < 2^e; the limits keep what overflows for the kernel to refuse.
            exponent = np.frexp(self._run.clip * np.linalg.norm(p, axis=1))[1]
            unit = np.ldexp(unit, np.clip(exponent, -300, 300))
        decreases = self._decreases(w, p, unit)
        with self._run.clock("noise"):
            released = self._mechanism.release(decreases / unit[:, np.newaxis])
        mean = released * (unit * self._scale)[:, np.newaxis]
        return self._steps[np.argmax(mean + penalty_decrease(self._run, w, p, self._steps), axis=1)]

    def _decreases(self, w: FloatArray, p: FloatArray, unit: FloatArray) -> FloatArray:
        run, objective, grid = self._run, self._run.objective, self._mechanism.grid
        if grid is None:
            losses = losses_along(run, w, p, np.append(0.0, self._steps))
            sums = losses[:, :1] - losses[:, 1:]
        else:
            grid = unit * grid
            bound = unit[:, np.newaxis] * self._steps
            steps_of_grid = np.broadcast_to(grid[:, np.newaxis], bound.shape)
            one = (lambda a: a) if self._per_silo else (lambda a: a[0])
            with run.clock("kernels"):
                sums = kernels.line_search(
                    objective.data,
                    one(w),
                    one(p),
                    loss=objective.phi,
                    steps=self._steps,
                    bound=one(bound),
                    grid=one(steps_of_grid),
                    saturate=run.sizes_are_hidden,
                    n_threads=objective.n_threads,
                )
        return sums if self._per_silo else over_silos(run, sums, grid, keepdims=True)


def losses_along(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
    """Un-noised sums of losses along w - a p, shape (m, len(steps)). Not private."""
    objective = run.objective
    alone = len(w) == objective.data.m
    with run.clock("kernels"):
        return kernels.line_search(
            objective.data,
            w if alone else w[0],
            p if alone else p[0],
            loss=objective.phi,
            steps=steps,
            n_threads=objective.n_threads,
        )


def penalty_decrease(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
    """(l2/2) (|w|^2 - |w - a p|^2) on the penalised coordinates, shape (k, len(steps))."""
    mask = run.objective.penalized
    along, square = np.sum(mask * w * p, axis=1), np.sum(mask * p**2, axis=1)
    return run.objective.l2 * (np.outer(along, steps) - 0.5 * np.outer(square, steps**2))
