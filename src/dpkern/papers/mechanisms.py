"""Mechanisms that papers print and that have no guarantee."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy.channel import Channel

FloatArray = NDArray[np.float64]


class UncertifiedLaplace:
    """Coordinate-wise Laplace noise in floating point, without a guarantee.

    Parameters
    ----------
    channel : Channel
        Ledger, stream and readers.
    what : str
        Description of the release, for the ledger.
    sensitivity : float
        The l2 sensitivity that the paper divides by epsilon.
    scale : float
        Scale b of the density exp(-|x| / b) / (2 b), finite and above 0.
    """

    def __init__(self, channel: Channel, *, what: str, sensitivity: float, scale: float) -> None:
        self._channel, self._what = channel, what
        self._sensitivity, self._scale = sensitivity, scale

    def release(self, value: FloatArray) -> FloatArray:
        """Record the release and return the vector, shape (d,), with noise."""
        d = value.size
        self._channel.ledger.append(
            self._channel.describe(
                what=f"{self._what}, Laplace noise in floating point",
                sensitivity=self._sensitivity,
                std=math.sqrt(2.0) * self._scale,
                grid=None,
                dim=d,
                draws=4 * d,
            )
        )
        # The determinant of four independent standard normals has the density exp(-|x|) / 2.
        a, b, c, e = kernels.gaussian((4, d), 1.0, rng=self._channel.stream)
        noisy: FloatArray = value + self._scale * (a * e - b * c)
        return noisy


class WeightNoise:
    """One normal draw on the silos' weights, as in Kang et al. (2021).

    Replacing a record changes no weight, so that the sensitivity is 0 and the noise protects
    nothing.

    Parameters
    ----------
    channel : Channel
        Ledger and stream; nobody sees the number itself.
    sigma : float
        Standard deviation of the draw, finite and above 0.
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
