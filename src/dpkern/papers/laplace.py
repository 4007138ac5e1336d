"""The average model with the coordinate-wise Laplace noise of papers, which has no guarantee."""

import numpy as np
from numpy.typing import NDArray

from dpkern.papers.mechanisms import UncertifiedLaplace
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.local_runs import LocalSteps

FloatArray = NDArray[np.float64]


class LaplaceAverage:
    """The average model with coordinate-wise Laplace noise, without a guarantee.

    Parameters
    ----------
    run : Run
        The run.
    sensitivity, epsilon : float
        The printed l2 sensitivity and the claimed epsilon, whose quotient is the scale.
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
