"""The Gaussian mechanism on counts of features' values in public bins.

A record has at most one value in the bins of a feature, so that replacing it changes at most two
counts of a feature by one: the l2 sensitivity for f features together is sqrt(2 f), and sqrt(f)
where a record is added or removed. Counts are integers, and so is the noise: the grid is 1,
whatever the number of records.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count
from dpkern.privacy.guarantees.rounding import sqrt_up
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.sensitivity.grids import noise_std, require_sums

_GRID = 1.0
_LARGEST_STD = 2.0**32  # in steps of the grid, for exact noise


class GaussianCounts:
    """Noisy counts of f features in `bins` bins altogether; one release of the budget `mu`.

    The attributes are `sensitivity` and `sigma` = sensitivity / mu, both rounded up.
    """

    def __init__(self, channel: Channel, *, what: str, features: int, bins: int, mu: float) -> None:
        changed = count("features", features) * (1 if channel.add_remove else 2)
        self._channel, self._bins = channel, count("bins", bins)
        self.sensitivity = sqrt_up(Fraction(changed))
        self.sigma = noise_std(self.sensitivity, mu)
        if self.sigma > _LARGEST_STD:
            raise ValueError(f"mu must be so large that the noise is at most 2^32, got {mu!r}")
        self._entry = channel.describe(
            what=what,
            sensitivity=self.sensitivity,
            std=self.sigma,
            grid=_GRID,
            dim=self._bins,
        )

    def release(self, counts: NDArray[np.int64]) -> NDArray[np.float64]:
        """Record the release and return the counts with noise, which are integers too."""
        sums = require_sums(counts.astype(np.float64), [(self._bins,)], _GRID)
        noise = kernels.gaussian(self._bins, self.sigma, grid=_GRID, rng=self._channel.stream)
        self._channel.ledger.append(self._entry)
        return self._channel.seen(sums + noise, sums, self.sigma)
