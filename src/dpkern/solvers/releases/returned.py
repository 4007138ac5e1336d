"""The iterate that a run returns."""

import numpy as np

from dpkern._typing import FloatArray
from dpkern.solvers.base.run import Run
from dpkern.stream import Purpose


class Returned:
    """Selects what is returned of public iterates: the last, a random one, or an average.

    An average is of all, of the last third ("tail"), or of a number or a share of the last ones,
    which is rounded; it is post-processing, as every iterate that is added follows from releases.
    """

    def __init__(self, run: Run, iterates: int) -> None:
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

    @property
    def model(self) -> FloatArray:
        return self._model
