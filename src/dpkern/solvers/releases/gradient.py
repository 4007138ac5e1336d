"""The noisy mean gradient that gradient solvers release once per round, and what they return."""

import dataclasses
import math
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.kernels.persons import glm_person_gradient
from dpkern.models.oracles import Oracle
from dpkern.models.penalties import Constraint
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum
from dpkern.privacy.sensitivity.grids import total_on_grid
from dpkern.solvers.base.coefficients import CoefficientNoise, is_linear
from dpkern.solvers.base.run import Run
from dpkern.stream import Purpose

AddModels = Callable[[FloatArray], None]

# Numbers of gradients that are recorded at once: arrays that fit in the cache, and whose memory is
# not asked of the system, and cleared, every time.
_RECORDED_NUMBERS = 1 << 13


class NoisyMeanGradient:
    """sum_j p_j (1/n_j) (sum_i g_i + noise), g_i the clipped gradient of one record.

    Central trust: the release is V = sum_j om_j S_j + Z, with om_j = (p_j/n_j) / max_k (p_k/n_k) on
    the records before rounding, and is multiplied by max_k (p_k/n_k) afterwards.
    Silo trust: every silo releases V_j = S_j + Z_j; silos hold disjoint records.
    The sensitivity of V or V_j is 2 C, or C where a record is added or removed; and 2 C_p for a
    person whose records' sum is clipped to C_p (`run.plan.person_clip`).

    `mu` is the budget of one release, `sigma` a std on V, or on each silo's message, in its place.
    With `shares` every silo adds its own noise under central trust, of std sigma[j] on V's scale,
    and only the total is seen (secure aggregation).
    """

    def __init__(
        self,
        run: Run,
        *,
        mu: float | None = None,
        sigma: float | FloatArray | None = None,
        shares: bool = False,
    ) -> None:
        objective, data = run.objective, run.objective.data
        per_silo = run.plan.trust == "silo"
        self._run, self._per_silo, self._shares = run, per_silo, shares
        self._mechanism = GaussianSum(
            run.channel(),
            what=what_is_summed(run),
            clip=run.plan.clip,
            dim=data.d,
            sizes=tuple(objective.sizes.tolist()) if per_silo or shares else (objective.n,),
            mu=mu,
            sigma=sigma,
            shares=shares,
            person_clip=run.plan.person_clip,
        )
        grid = self._mechanism.grid
        self._grid = None if grid is None else np.broadcast_to(grid, (data.m,)).copy()
        self._silo_weight = None if per_silo else objective.silo_weight()
        self._scale = objective.record_weights() if per_silo else objective.record_weight()

    @property
    def noise_std(self) -> float:
        """Std of the noise on every coordinate of the mean gradient; public."""
        return float(np.linalg.norm(self._mechanism.sigma * self._scale))

    async def __call__(self, w: FloatArray, sums: FloatArray | None = None) -> FloatArray:
        """Release the mean gradient of the data part at the public model w; shape (d,)."""
        released = await self._release(w, sums)
        return self._scale @ released if self._per_silo else self._scale * released

    async def means(self, w: FloatArray, sums: FloatArray | None = None) -> FloatArray:
        """Release the mean gradient of each message at its own public model.

        w and the means have shape (k, d): k = m under silo trust, else 1. `sums` are those of
        `kernel`, where they are known.
        """
        if self._per_silo:
            return await self._release(w, sums) / self._run.objective.sizes[:, np.newaxis]
        return self._scale * (await self._release(w[0], sums))[np.newaxis]

    def kernel(self, w: FloatArray) -> Callable[..., FloatArray]:
        """Return the function of data that returns the sums at w, shape (k, d)."""
        how: dict[str, Any] = {"loss": self._run.objective.phi}
        how["saturate"] = self._run.plan.sizes_are_hidden
        w = w if self._per_silo else w[0]
        return partial(kernels.glm_gradient, w=w, **how, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        clip = self._run.plan.clip
        return {"clip": clip, "grid": self._grid, "silo_weight": self._silo_weight}

    async def compiled_rounds(
        self, w: FloatArray, eta: FloatArray, add: AddModels, momentum: float = 0.0
    ) -> int:
        """Run the rounds of proximal gradient descent as `compiled_rounds`, if they can be."""
        run = self._run
        if self._per_silo or self._shares or run.plan.shares or run.plan.person_clip is not None:
            return 0
        how = {"scale": self._scale, "silo_weight": self._silo_weight}
        return await compiled_rounds(run, self._mechanism, w, eta, add, momentum, **how)

    async def _release(self, w: FloatArray, sums: FloatArray | None = None) -> FloatArray:
        """Release the noisy sums, (m, d) under silo trust, else (d,)."""
        run = self._run
        if sums is None:
            sums = await gradient_sums(run, w, **self._how)
        if not (self._per_silo or self._shares):
            sums = over_silos(run, sums, self._mechanism.grid)
        with run.clock("noise"):
            return self._mechanism.release(sums)


def what_is_summed(run: Run) -> str:
    """Return the description of `gradient_sums` for the ledger."""
    of_persons = "" if run.plan.person_clip is None else ", clipped for each person"
    return f"sum of clipped gradients{of_persons}"


async def gradient_sums(run: Run, w: FloatArray, **how: Any) -> FloatArray:
    """Return the sums of clipped gradients of records, or of persons by their clipped sums."""
    how["loss"] = run.objective.phi
    persons, clip = run.objective.data.persons, run.plan.person_clip
    if persons is None or clip is None:
        return await run.sums(kernels.glm_gradient, w, saturate=run.plan.sizes_are_hidden, **how)
    if how.pop("rows", None) is not None:
        raise ValueError("rows must be None with person_clip: persons are whole")
    how |= {"persons": persons.offsets, "person_clip": clip}
    return await run.sums(glm_person_gradient, w, **how)


async def compiled_rounds(
    run: Run,
    mechanism: GaussianSum,
    w: FloatArray,
    eta: FloatArray,
    add: AddModels,
    momentum: float,
    **how: Any,
) -> int:
    """Run the rounds of proximal gradient descent without Python between them.

    Returns the number of rounds that were run: all, with the bits of the loop in the solver's
    module; or none, where a callback or monitor looks at every round, a penalty is smooth, or the
    records are on a card or in blocks. `add` is called with the models of some rounds at a time,
    (T, d); further keywords are the kernel's.
    """
    objective, prox = run.objective, run.objective.proximal
    data = objective.data
    if objective.smooth is not None or run.is_watched or data.device is not None or data.blocks:
        return 0
    strength = 1.0 if prox is None else prox.strength
    if prox is not None and not isinstance(prox, Constraint):
        prox = dataclasses.replace(prox, strength=1.0)  # the same one for runs in lock-step
    how |= {
        "loss": objective.phi,
        "clip": run.plan.clip,
        "l2": objective.l2,
        "prox": prox,
        "penalize_intercept": objective.penalize_intercept,
        "saturate": run.plan.sizes_are_hidden,
    }

    def descend(
        *, sigma: FloatArray | None, grid: FloatArray | None, **more: Any
    ) -> Coroutine[Any, Any, FloatArray]:
        std, q = (None if numbers is None else float(numbers[0]) for numbers in (sigma, grid))
        return run.sums(kernels.glm_descent, w, sigma=std, grid=q, **how, **more)

    before = w
    for steps in run.chunks(eta):
        compute = partial(
            descend,
            step_size=steps,
            prox_step=strength * steps,
            momentum=momentum,
            before=before,
        )
        models = await mechanism.release_steps(len(steps), compute)
        path = np.vstack([before, w, models])
        starts = path[1:-1]
        if momentum:
            starts = starts + momentum * np.diff(path[:-1], axis=0)
        some = max(1, _RECORDED_NUMBERS // models.shape[1])
        for part in (slice(t, t + some) for t in range(0, len(steps), some)):
            run.record_rounds(starts[part], models[part], steps[part])
        run.keep(models[-1])
        add(models)
        before, w = path[-2:]
    return run.plan.rounds


def over_silos(
    run: Run, sums: FloatArray, grid: FloatArray | float | None, *, keepdims: bool = False
) -> FloatArray:
    """Return the sum over silos, on their common grid, or those of all silos that add noise."""
    if run.plan.shares is not None:
        return sums
    if run.plan.sizes_are_hidden and grid is not None:
        total = total_on_grid(sums, float(np.max(grid)))
        return total[np.newaxis] if keepdims else total
    return sums.sum(axis=0, keepdims=keepdims)


class Returned:
    """Selects what is returned of public iterates: the last, a random one, or an average.

    An average is of all, of the last third ("tail"), or of a number or a share of the last ones,
    which is rounded; it is post-processing, as every iterate that is added follows from releases.
    """

    def __init__(self, run: Run, iterates: int) -> None:
        self._run, self._iterates = run, iterates
        kind = run.plan.arguments.get("returns", "last")
        self._one, self._seen = kind in ("last", "random"), 0
        averaged = {"average": iterates, "tail": -(-iterates // 3)}.get(kind, 1)
        if not isinstance(kind, str):
            averaged = min(kind if kind >= 1 else max(1, round(kind * iterates)), iterates)
        self._first, self._averaged = iterates - averaged, averaged
        self._model = np.zeros(run.objective.dim)
        if kind == "random":
            with run.public.release() as key:
                self._first = int(key.words(Purpose.SAMPLING, 1)[0]) * iterates >> 64

    def add(self, w: FloatArray) -> None:
        """Add the next iterate."""
        if self._first <= self._seen < self._first + self._averaged:
            self._model = w if self._one else self._model + w / self._averaged
        self._seen += 1

    def extend(self, models: FloatArray) -> None:
        """Add the next iterates, shape (T, d)."""
        if not self._one:
            for w in models:
                self.add(w)
            return
        at = self._first - self._seen
        if 0 <= at < len(models):
            self._model = models[at].copy()
        self._seen += len(models)

    def noise(
        self, added: FloatArray, *, momentum: float = 0.0, bounded: bool = True
    ) -> CoefficientNoise | None:
        """Return the std of the noise in the coefficients of the returned model.

        Each update adds independent Gaussian noise of std `added`, shape (iterates,), to every
        coordinate of the model, and else is a map of the last model, which the records determine.

        Gradient steps of at most 2 / L without momentum are nonexpansive, L the smoothness of a
        convex objective, and so is the prox of a convex penalty. Then the returned model changes by
        at most a_t |dz| with the noise z of update t, a_t the share of the iterates from t on in
        what is returned, so that its variance in every direction is at most sum_t (a_t added_t)^2:
        `proved` (docs/proofs/noise.md). Otherwise it is the std of a coefficient that nothing but
        l2 pulls back, with momentum: nominal. `bounded` is False where the maps may not be such
        steps. None for models with hidden layers or of the user's own, and without noise.
        """
        run, objective = self._run, self._run.objective
        linear = not isinstance(objective.loss, Oracle)
        if not (added.any() and (linear or is_linear(objective.loss))):
            return None
        steps, l2 = run.plan.step_sizes, objective.l2
        bounded = bounded and linear and momentum == 0.0 and not run.plan.sizes_are_hidden
        bounded = bounded and run.plan.person_clip is None and objective.phi.convex
        bounded = bounded and (objective.other is None or objective.other.convex)
        longest, pulls = float(steps.max()), l2 * objective.penalized
        bounded = bounded and longest * objective.smoothness <= 2.0
        contracts = objective.penalized.all() and longest * (objective.smoothness + l2) <= 2.0
        if bounded and not contracts:
            pulls = np.zeros(1)

        def std(pull: float) -> float:
            shrink = [*np.prod(1.0 - pull * steps, axis=1).tolist(), 0.0, 0.0]
            gains, sooner, later = np.zeros(self._iterates), 0.0, 0.0
            for t in reversed(range(self._iterates)):
                is_averaged = self._first <= t < self._first + self._averaged
                gain = shrink[t + 1] * (1.0 + momentum) * sooner + is_averaged / self._averaged
                gain -= shrink[t + 2] * momentum * later
                gains[t], sooner, later = gain, gain, sooner
            return float(np.linalg.norm(gains * added))

        found = std(float(pulls[0])), std(float(pulls[-1]))
        return CoefficientNoise(*found, bounded) if math.isfinite(sum(found)) else None

    @property
    def model(self) -> FloatArray:
        return self._model
