"""The iterate that a run returns."""

import math

import numpy as np

from dpkern._typing import FloatArray
from dpkern.models.oracles import Oracle
from dpkern.solvers.base.coefficients import CoefficientNoise, is_linear
from dpkern.solvers.base.run import Run
from dpkern.stream import Purpose


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
