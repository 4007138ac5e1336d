"""The noisy Hessian, the floor of its eigenvalues, and the step sizes of Newton's method."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import positive
from dpkern.privacy import Release
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.mechanisms.hessian import GaussianHessian
from dpkern.solvers._gradient import over_silos
from dpkern.solvers._objective import step_sizes
from dpkern.solvers._run import Run

FloatArray = NDArray[np.float64]

# (step number, models, gradients, directions), each (k, d) -> steps (k,)
Steps = Callable[[int, FloatArray, FloatArray, FloatArray], FloatArray]

# Steps tried by a search: max_step 2^-i, i = 0, 1, ..., 7.
_CANDIDATES = 8

# Above 2 / sqrt(3) >= |(1, 1/2, 1/4, ...)| by more than the roundings of its product.
_CANDIDATES_NORM = 1.15470054

# What stands under the eigenvalues where neither penalty nor noise gives a scale.
_LEAST_FLOOR = 1e-8


class NoisyMeanHessian:
    """sum_j p_j (1/n_j) (sum_i H_i + noise), H_i the clipped Hessian of one record.

    Central trust: V = sum_j om_j S_j + Z, om_j = (p_j/n_j) / max_k (p_k/n_k) on the records before
    rounding. Silo trust: V_j = S_j + Z_j of every silo. Replacing a record moves V, or one V_j, by
    at most sqrt(2) B + q d in Frobenius norm, adding or removing one by B + q d
    (`dpkern.privacy.GaussianHessian`).

    Parameters
    ----------
    run : Run
        Gives objective, ledger and stream.
    trust : {"central", "silo"}
        Who is believed.
    hess_clip : float
        Bound B of one record's Hessian in Frobenius norm.
    mu : float or None
        Budget of one release.
    sigma : float or None
        In its place, the noise on every sum, on the packed upper triangle.
    """

    def __init__(
        self,
        run: Run,
        *,
        trust: str,
        hess_clip: float,
        mu: float | None = None,
        sigma: float | None = None,
    ) -> None:
        objective, data = run.objective, run.objective.data
        self._run, self._per_silo, self._clip = run, trust == "silo", hess_clip
        self._mechanism = GaussianHessian(
            run.channel(trust),
            what="sum of clipped Hessians",
            hess_clip=hess_clip,
            dim=data.d,
            sizes=tuple(objective.sizes.tolist()) if self._per_silo else (objective.n,),
            mu=mu,
            sigma=sigma,
            triangle=sigma is not None,
        )
        self._silo_weight = None if self._per_silo else objective.silo_weight()
        self._scale = (
            1.0 / objective.sizes if self._per_silo else np.array([objective.record_weight()])
        )

    @property
    def noise_norm(self) -> FloatArray:
        """About the spectral norm of the noise on each message's mean, shape (k,); public."""
        return self._mechanism.noise_norm * self._scale

    def means(self, w: FloatArray) -> FloatArray:
        """Release the mean Hessians of the data part at the models w (k, d); shape (k, d, d)."""
        run, objective = self._run, self._run.objective
        with run.clock("kernels"):
            sums = kernels.glm_hessian(
                objective.data,
                w if self._per_silo else w[0],
                loss=objective.phi,
                hess_clip=self._clip,
                grid=self._mechanism.grid,
                silo_weight=self._silo_weight,
                records=self._mechanism.records,
                n_threads=objective.n_threads,
            )
            if not self._per_silo:
                sums = over_silos(run, sums, self._mechanism.grid, keepdims=True)
        with run.clock("noise"):
            released = self._mechanism.release(sums)
        released *= self._scale[:, np.newaxis, np.newaxis]
        return released


def hessian_bound(run: Run, hess_clip: float | None) -> float:
    """B: as given; else phi''max R^2, which clips nothing, or infinity without a budget."""
    if hess_clip is not None:
        return positive("hess_clip", hess_clip, or_infinite=run.budget is None)
    if run.budget is None:
        return math.inf
    bound = run.objective.data_smoothness
    if not math.isfinite(bound):
        raise ValueError(
            "hess_clip is needed with a budget where the data have no row_bound, or the loss no "
            "bounded second derivative: the bound of one record's Hessian in Frobenius norm"
        )
    return bound


def eigenvalue_floors(run: Run, floor: float | str, noise_norm: FloatArray) -> FloatArray:
    """The floor of every message, shape (k,): public numbers all."""
    if not isinstance(floor, str):
        return np.full(len(noise_norm), positive("floor", floor))
    if floor != "auto":
        raise ValueError(f"floor must be a number or 'auto', got {floor!r}")
    floors = np.maximum(noise_norm, run.objective.l2)
    return np.where(floors > 0.0, floors, _LEAST_FLOOR)


def step_rule(
    run: Run,
    step_size: float | str | Sequence[float] | FloatArray,
    *,
    trust: str,
    mu: float | None,
    hess_clip: float,
    max_step: float,
) -> Steps:
    """What an argument step_size stands for; mu is the budget of one private search."""
    if not isinstance(step_size, str):
        eta = step_sizes(step_size, run.rounds, run.objective, run.local_steps).ravel()
        return lambda t, w, g, p: np.full(len(p), eta[t])
    if step_size == "damped":
        return functools.partial(damped_steps, max_step)
    if step_size == "private_search":
        return PrivateSearch(run, trust=trust, mu=mu, max_step=max_step)
    if step_size != "paper_search":
        raise ValueError(
            "step_size must be a number, a sequence, 'damped', 'private_search' or 'paper_search' "
            f"in {run.solver}, got {step_size!r}"
        )
    if run.parameters["calibration"] != "paper":
        raise ValueError(
            "step_size='paper_search' needs calibration='paper': it reads un-noised losses"
        )
    return PaperSearch(run, hess_clip=hess_clip, max_step=max_step)


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
    trust : {"central", "silo"}
        Who is believed.
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

    def __init__(self, run: Run, *, trust: str, mu: float | None, max_step: float) -> None:
        objective = run.objective
        self._run, self._per_silo = run, trust == "silo"
        weight = objective.silo_weight()
        if not self._per_silo and weight is not None and np.any(weight != 1.0):
            raise ValueError(
                "step_size='private_search' needs weights='size' under central trust where silos "
                "differ in size"
            )
        self._steps: FloatArray = max_step * np.ldexp(1.0, -np.arange(_CANDIDATES))
        sizes = objective.sizes if self._per_silo else np.array([objective.n])
        self._scale = 1.0 / sizes
        self._mechanism = GaussianSum(
            run.channel(trust),
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
        return self._steps[
            np.argmax(mean + _penalty_decrease(self._run, w, p, self._steps), axis=1)
        ]

    def _decreases(self, w: FloatArray, p: FloatArray, unit: FloatArray) -> FloatArray:
        run, objective, grid = self._run, self._run.objective, self._mechanism.grid
        if grid is None:
            losses = _losses(run, w, p, np.append(0.0, self._steps))
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


class PaperSearch:
    """The line search of Cao, Guo, Zhang (2023), Equation (10), on un-noised quantities.

    The largest candidate a, or the least, with
    f(w - a p) <= f(w) - a p.g + a (1 - beta) p.H p, beta = 1/2; f, g and H are the silo's own,
    without noise: the step is no function of the releases, and nothing is certified.

    Parameters
    ----------
    run : Run
        Gives objective, clip norm and ledger.
    hess_clip : float
        Bound of one record's Hessian.
    max_step : float
        The largest candidate; the others are its halves, quarters and so on.
    """

    def __init__(self, run: Run, *, hess_clip: float, max_step: float) -> None:
        m = run.objective.data.m
        self._run, self._hess_clip = run, hess_clip
        self._steps: FloatArray = max_step * np.ldexp(1.0, -np.arange(_CANDIDATES))
        self._release = Release(
            what="step sizes that Equation (10) chose by un-noised losses, gradients and Hessians",
            sensitivity=math.inf if m == 1 else (math.inf,) * m,
            std=None,
            grid=None,
            dim=1,
            seen_by=run.channel("silo").seen_by,
        )

    def __call__(self, t: int, w: FloatArray, g: FloatArray, p: FloatArray) -> FloatArray:
        run, objective = self._run, self._run.objective
        sizes, penalty = objective.data.sizes[:, np.newaxis], objective.l2 * objective.penalized
        losses = _losses(run, w, p, np.append(0.0, self._steps)) / sizes
        with run.clock("kernels"):
            slopes = kernels.glm_gradient(
                objective.data,
                w,
                loss=objective.phi,
                clip=run.clip,
                n_threads=objective.n_threads,
            )
            H = kernels.glm_hessian(
                objective.data,
                w,
                loss=objective.phi,
                hess_clip=self._hess_clip,
                n_threads=objective.n_threads,
            )
        self._run.ledger.append(self._release)
        slope = np.sum(p * (slopes / sizes + penalty * w), axis=1, keepdims=True)
        curved = np.einsum("ki,kij,kj->k", p, H, p)[:, np.newaxis] / sizes
        curvature = curved + np.sum(penalty * p**2, axis=1, keepdims=True)
        decreases = losses[:, :1] - losses[:, 1:] + _penalty_decrease(run, w, p, self._steps)
        enough = decreases >= self._steps * (slope - 0.5 * curvature)
        enough[:, -1] = True
        return self._steps[np.argmax(enough, axis=1)]


def _losses(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
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


def _penalty_decrease(run: Run, w: FloatArray, p: FloatArray, steps: FloatArray) -> FloatArray:
    """(l2/2) (|w|^2 - |w - a p|^2) on the penalised coordinates, shape (k, len(steps))."""
    mask = run.objective.penalized
    along, square = np.sum(mask * w * p, axis=1), np.sum(mask * p**2, axis=1)
    return run.objective.l2 * (np.outer(along, steps) - 0.5 * np.outer(square, steps**2))
