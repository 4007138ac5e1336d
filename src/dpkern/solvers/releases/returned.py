"""The iterate that a run returns."""

import numpy as np
from numpy.typing import NDArray

from dpkern.solvers.base.run import Run
from dpkern.stream import Purpose

FloatArray = NDArray[np.float64]


class Returned:
    """Selects the returned iterate: the last, an average, or a random one as in theorems."""

    def __init__(self, run: Run, iterates: int) -> None:
        self._kind = run.parameters.get("returns", "last")
        self._n, self._seen, self._model = iterates, 0, np.zeros(run.objective.dim)
        self._at, self._first = iterates - 1, iterates - -(-iterates // 3)
        if self._kind == "random":
            with run.public.release() as key:
                self._at = int(key.words(Purpose.SAMPLING, 1)[0]) * iterates >> 64

    def add(self, w: FloatArray) -> None:
        """Add the next iterate."""
        if self._kind == "average":
            self._model = self._model + w / self._n
        elif self._kind == "tail":
            if self._seen >= self._first:
                self._model = self._model + w / (self._n - self._first)
        elif self._seen == self._at:
            self._model = w
        self._seen += 1

    @property
    def model(self) -> FloatArray:
        return self._model
