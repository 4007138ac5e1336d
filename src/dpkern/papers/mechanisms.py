"""Mechanisms that papers print and that have no guarantee."""

import math
from dataclasses import replace

from dpkern import kernels
from dpkern._typing import FloatArray
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.solvers.base.run import Run
from dpkern.solvers.releases.local_runs import LocalSteps


class LaplaceAverage:
    """The average model with coordinate-wise Laplace noise in floating point.

    `sensitivity` is the printed l2 sensitivity, which the paper divides by epsilon for the scale b
    of the density exp(-|x| / b) / (2 b).
    """

    def __init__(self, run: Run, *, sensitivity: float, epsilon: float) -> None:
        self._run, self._steps, self._channel = run, LocalSteps(run), run.channel("central")
        self._sensitivity, self._scale = sensitivity, sensitivity / epsilon

    async def __call__(self, w: FloatArray, eta: FloatArray) -> FloatArray:
        """Release the next model, shape (d,), after steps eta (K,) from the public w."""
        average, d = self._steps.weights @ self._steps(w, eta, grid=None), w.size
        with self._run.clock("noise"):
            self._channel.ledger.append(
                self._channel.describe(
                    what="average model, Laplace noise in floating point",
                    sensitivity=self._sensitivity,
                    std=math.sqrt(2.0) * self._scale,
                    grid=None,
                    dim=d,
                    draws=4 * d,
                )
            )
            # The determinant of four independent standard normals has the density exp(-|x|) / 2.
            a, b, c, e = kernels.gaussian((4, d), 1.0, rng=self._channel.stream)
            noisy: FloatArray = average + self._scale * (a * e - b * c)
            return self._channel.seen(noisy, average, math.sqrt(2.0) * self._scale)


class WeightNoise:
    """One normal draw on the silos' weights, as in Kang et al. (2021).

    Replacing a record changes no weight, so that the sensitivity is 0 and the noise protects
    nothing. Nobody sees the number itself.
    """

    def __init__(self, channel: Channel, *, sigma: float) -> None:
        self._channel, self._sigma = replace(channel, seen_by="nobody"), sigma

    def release(self) -> float:
        """Record the release and return the number."""
        grid = math.ldexp(1.0, math.frexp(self._sigma)[1] - 26)
        self._channel.ledger.append(
            self._channel.describe(
                what="noise on the weights, which protects nothing",
                sensitivity=0.0,
                std=self._sigma,
                grid=grid,
                dim=1,
            )
        )
        return float(kernels.gaussian(1, self._sigma, grid=grid, rng=self._channel.stream)[0])
