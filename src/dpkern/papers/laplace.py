"""The coordinate-wise Laplace noise that papers print for an average of models: no guarantee."""

import numpy as np
from numpy.typing import NDArray

from dpkern.papers.mechanisms import UncertifiedLaplace
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.local_runs import LocalSteps

FloatArray = NDArray[np.float64]


class LaplaceAverage:
    """The average model with the coordinate-wise Laplace noise that papers print: no guarantee.

    Parameters
    ----------
    run : Run
        Gives objective, ledger and stream.
    sensitivity, epsilon : float
        The printed l2 sensitivity and the claim: the scale is their quotient.
    """

    def __init__(self, run: Run, *, sensitivity: float, epsilon: float) -> None:
        self._run, self._steps = run, LocalSteps(run)
        self._mechanism = UncertifiedLaplace(
            run.channel("central"),
            what="average model",
            sensitivity=sensitivity,
            scale=sensitivity / epsilon,
        )

    def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        average = self._steps.weights @ self._steps(w, eta, grid=None)
        with self._run.clock("noise"):
            return self._mechanism.release(average)
