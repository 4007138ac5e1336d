"""Noise on what is no exact grid sum: models after local steps, and their averages.

Messages v_j are rounded to a grid first, V = sum_j round_q(clamp(v_j)) + Z, so that V is again
round_q of an exact sum plus a Gaussian. Rounding is not non-expansive: with a proved bound D_v of
|v_j - v'_j| for the doubles computed, the sensitivity of V is D_v + q sqrt(d).
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy._exact import round_up, sqrt_up
from dpkern.privacy.channel import Channel
from dpkern.privacy.ledger import Release
from dpkern.privacy.mechanisms.grids import choose_message_grid, noise_std, round_to_grid

FloatArray = NDArray[np.float64]


class GaussianMessages:
    """Noisy messages, or their noisy sum: one release a call, recorded before it leaves.

    Parameters
    ----------
    channel : Channel
        Ledger, stream and readers.
    what : str
        What is released, for the ledger.
    dim : int
        Coordinates d of a message.
    mu : float or None
        Budget of one release; None adds no noise.
    per_silo : bool
        Every message is released with noise of its own; else only their sum, with one noise.
    per_record : int, optional
        The most releases of this mechanism that any one record has a part in, fixed in advance
        without looking at the records; None means all. Releases then are one series: the first
        one's sensitivity and a 64th more is that of all, and what would need more is refused.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        dim: int,
        mu: float | None,
        per_silo: bool = False,
        per_record: int | None = None,
    ) -> None:
        self._channel, self._what, self._dim = channel, what, dim
        self._mu, self._per_silo = mu, per_silo
        self._per_record = per_record
        self._for: tuple[tuple[float, ...], float] | None = None  # what _columns was computed for
        self._columns: list[tuple[float, ...]] = []
        self._fixed: tuple[tuple[float, ...], float] | None = None
        self._series: Release | None = None

    def release(
        self,
        values: FloatArray,
        *,
        sensitivity: Sequence[float] | None = None,
        bound: float | None = None,
    ) -> FloatArray:
        """Add noise to the messages and record the release.

        Parameters
        ----------
        values : ndarray, shape (m, d)
            One message per silo, computed from its own records and public numbers. Not changed.
        sensitivity : sequence of m floats, optional
            Proved bounds of |v_j - v'_j| when a record of silo j is replaced, or added or removed
            where that is what neighbours differ in, each finite and above 0; needed with noise.
        bound : float, optional
            A public bound of every coordinate; needed with noise. Values beyond what the grid holds
            are clamped, and a NaN counts as 0.

        Returns
        -------
        ndarray, shape (m, d) per silo, else (d,)

        Raises
        ------
        ValueError
            When no grid serves, or a series has outgrown its sensitivity. Nothing is drawn or
            recorded then.
        """
        m = len(values)
        if self._mu is None:
            one = math.inf if not self._per_silo else (math.inf,) * m
            self._append(one, None, None)
            return values.copy() if self._per_silo else values.sum(axis=0)
        if sensitivity is None or bound is None:
            raise ValueError("sensitivity and bound must be given with noise, got None")
        k = 1 if self._per_silo else m
        moved = tuple(sensitivity) if self._per_silo else (max(sensitivity),)
        if self._per_record is not None:
            moved, bound = self._of_series(moved, bound)
        if (moved, bound) != self._for:
            found = {D: self._calibrated(D, bound, k) for D in set(moved)}
            self._for = moved, bound
            self._columns = [tuple(c) for c in zip(*(found[v] for v in moved), strict=True)]
        D, sigma, grid = self._columns
        steps = 2.0**51 / k if k > 1 else 2.0**50
        rounded = round_to_grid(values, np.array(grid)[:, np.newaxis], steps)
        if self._per_silo:
            self._append(D, sigma, grid)
        else:
            rounded = rounded.sum(axis=0, keepdims=True)
            self._append(D[0], sigma[0], grid[0])
        noisy: FloatArray = rounded + kernels.gaussian(
            rounded.shape, np.array(sigma), grid=np.array(grid), rng=self._channel.stream
        )
        return noisy if self._per_silo else noisy[0]

    def _calibrated(self, moved: float, bound: float, messages: int) -> tuple[float, float, float]:
        """Return D = D_v + q sqrt(d), sigma = D / mu, both rounded up, and q of one message."""
        assert self._mu is not None
        grid = choose_message_grid(
            # The grid adds a 32nd to the sensitivity at most, and so to the noise.
            sensitivity=moved,
            sigma=1.04 * noise_std(moved, self._mu),
            bound=bound,
            dim=self._dim,
            messages=messages,
        )
        D = round_up(Fraction(moved) + Fraction(grid) * Fraction(sqrt_up(Fraction(self._dim))))
        return D, noise_std(D, self._mu), grid

    def _of_series(self, moved: tuple[float, ...], bound: float) -> tuple[tuple[float, ...], float]:
        """Return sensitivities and bound that cover these, one for the whole series."""
        if self._fixed is None:
            self._fixed = tuple(round_up(Fraction(D) * Fraction(65, 64)) for D in moved), bound
        most, widest = self._fixed
        if bound > widest or any(a > b for a, b in zip(moved, most, strict=True)):
            raise ValueError(
                "floating-point errors of hidden local steps have outgrown the sensitivity that "
                "the first round fixed: the model has become too large"
            )
        return self._fixed

    def _append(
        self,
        sensitivity: float | tuple[float, ...],
        std: float | tuple[float, ...] | None,
        grid: float | tuple[float, ...] | None,
    ) -> None:
        release = self._channel.describe(
            what=self._what,
            sensitivity=sensitivity,
            std=std,
            grid=grid,
            dim=self._dim,
            per_record=self._per_record,
        )
        if self._per_record is not None:  # one object, which is how the ledger knows a series
            release = self._series = self._series or release
        self._channel.ledger.append(release)
