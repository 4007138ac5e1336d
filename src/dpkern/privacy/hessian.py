"""The Gaussian mechanism on exact sums of rank-one Hessians.

A record's clipped Hessian is positive semi-definite, of rank one and of Frobenius norm at most B,
so replacing it moves the sum by at most sqrt(2) B: |A - A'|^2 = |A|^2 + |A'|^2 - 2 <A, A'>, and
<A, A'> >= 0. Adding or removing it moves the sum by at most B. The exact sum is rounded once to the
grid q of its noise, which moves each of the d^2 entries of a difference by at most q:
D = sqrt(2) B + q d, or B + q d.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count, positive, real
from dpkern.privacy._exact import floor_log2, power_of_two, round_up, sqrt_up
from dpkern.privacy.ledger import Ledger, Release
from dpkern.privacy.mechanisms import MAX_RECORDS, require_grid
from dpkern.stream import NoiseStream

FloatArray = NDArray[np.float64]

# Rounding to the grid adds a 32nd of B to a sensitivity of B or more, and so to the noise.
_ROOM = 1.04


def records_of(n: int) -> int:
    """How many records a Hessian's rows are rounded for, n a public number in their place.

    At least 2^20: then sums of any number of records below 2^31 are exact in the kernel, which
    takes fewer than 2^11 times as many (`kernels.glm_hessian`).
    """
    return max(2 * n, MAX_RECORDS >> 11)


def choose_hessian_grid(*, n: int, hess_clip: float, dim: int, sigma: float) -> float:
    """Choose the grid of a noisy sum of Hessians from public numbers.

    Parameters
    ----------
    n : int
        Number of records of all silos, as the kernel counts them or is told.
    hess_clip : float
        Bound B on the Frobenius norm of one record's Hessian, finite and above 0.
    dim : int
        d, for d x d matrices.
    sigma : float
        Standard deviation of the noise, finite and above 0.

    Returns
    -------
    float
        A power of two q, 2^-400 <= q <= 2^400: the coarsest with q d <= B 2^-10 and
        q <= sigma 2^-9, made coarser where sigma <= 2^32 q or q >= q_h^2 ask for it, q_h the step
        of the kernel's rows (n ceil(B / q_h^2) <= 2^52, so that the sum is exact).

    Raises
    ------
    ValueError
        When no grid serves: it would add more than B / 32 to the sensitivity.
    """
    B, s = Fraction(positive("hess_clip", hess_clip)), Fraction(positive("sigma", sigma))
    wanted = min(floor_log2(B / (dim << 10)), floor_log2(s / (1 << 9)), 400)
    rows = Fraction(kernels.hessian_row_grid(n, hess_clip, dim))
    exponent = max(wanted, -400, -floor_log2(2**32 / s), floor_log2(rows**2))
    grid = power_of_two(exponent)
    if exponent > 400 or 32 * dim * grid > B:
        raise ValueError(
            f"no grid serves: sums of n = {n} Hessians with hess_clip = {hess_clip!r} and noise "
            f"sigma = {sigma!r} ask for 2^{exponent}, which in dim = {dim} would add more than "
            "hess_clip / 32 to the sensitivity"
        )
    return float(grid)


class GaussianHessian:
    """Noisy sums of clipped Hessians: one release a call, recorded before it leaves.

    Parameters
    ----------
    what : str
        What is released, for the ledger.
    ledger : Ledger
        The run's ledger.
    rng : NoiseStream
        The run's noise stream.
    hess_clip : float
        Bound B on one record's Hessian in Frobenius norm, above 0; infinity only without noise.
    dim : int
        d, for d x d matrices.
    sizes : sequence of int
        Number of records behind each of the k messages: (N,) under central trust, (n_1, ..., n_m)
        under silo trust. With "add_remove" public numbers in their place.
    mu : float, optional
        Budget of ONE release, finite and above 0. At most one of `mu` and `sigma`; neither means no
        noise.
    sigma : float, optional
        A given standard deviation of the noise on every sum.
    seen_by : str
        Who sees the release, for the ledger.
    triangle : bool
        Independent noise of one deviation on the packed upper triangle, mirrored, as Cao, Guo,
        Zhang (2023) print it. By default the off-diagonal entries have half the variance of the
        diagonal ones (GOE): the privacy loss then is |A - A'|_F / sigma exactly, at the same
        worst case.
    neighbours : {"replace_one", "add_remove"}
        What neighbouring data sets differ in. With "add_remove" the sums must have been computed
        with `records`.

    Attributes
    ----------
    records : int or None
        To be passed to the kernel: what it rounds rows for; None is the number of records.
    sensitivity : float
        D = sqrt(2) B + q d, rounded up; with `triangle` sqrt(2) B + q sqrt(d (d + 1) / 2), in l2
        norm of the triangle, which is at most the Frobenius norm. Without the root of 2 where a
        record is added or removed.
    sigma : float
        Standard deviation of the diagonal's noise; D/mu rounded up, 0 without noise.
    grid : float or None
        The grid of all messages, to be passed to the kernel; None without noise.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of its range, or no grid serves.
    """

    def __init__(
        self,
        *,
        what: str,
        ledger: Ledger,
        rng: NoiseStream,
        hess_clip: float,
        dim: int,
        sizes: Sequence[int],
        mu: float | None = None,
        sigma: float | None = None,
        seen_by: str,
        triangle: bool = False,
        neighbours: str = "replace_one",
    ) -> None:
        if not isinstance(rng, NoiseStream):
            raise TypeError(f"rng is a {type(rng).__name__}; it must be the run's NoiseStream")
        if mu is not None and sigma is not None:
            raise ValueError("mu and sigma were both given; give at most one of them")
        if not len(sizes):
            raise ValueError("sizes is empty; it must have one entry per message")
        self._ledger, self._rng, self._triangle = ledger, rng, triangle
        self._dim, self._k = count("dim", dim), len(sizes)
        hess_clip = real("hess_clip", hess_clip)
        if not hess_clip > 0.0:
            raise ValueError(f"hess_clip is {hess_clip!r}; it must be above 0")
        self.grid: float | None = None
        self.sigma, self.sensitivity = 0.0, math.inf
        n, adding = sum(count("sizes", size) for size in sizes), neighbours == "add_remove"
        self.records = records_of(n) if adding else None
        if mu is not None or sigma is not None:
            B = positive("hess_clip", hess_clip)
            moved = Fraction(B) if adding else Fraction(sqrt_up(2 * Fraction(B) ** 2))
            self._calibrate(self.records or n, B, moved, mu, sigma)
        k, noisy = self._k, self.grid is not None
        self._release = Release(
            what=what,
            sensitivity=self.sensitivity if k == 1 else (self.sensitivity,) * k,
            std=(self.sigma if k == 1 else (self.sigma,) * k) if noisy else None,
            grid=None if self.grid is None else self.grid if k == 1 else (self.grid,) * k,
            dim=dim * (dim + 1) // 2,
            seen_by=seen_by,
        )

    def _calibrate(
        self, n: int, B: float, moved: Fraction, mu: float | None, sigma: float | None
    ) -> None:
        """Grid, sensitivity and noise; moved: what one record does to the exact sum."""
        d = self._dim
        if sigma is not None:
            guess = self.sigma = positive("sigma", sigma)
        else:
            assert mu is not None
            guess = _ROOM * round_up(moved / Fraction(positive("mu", mu)))
            if guess == math.inf:
                raise ValueError(f"mu is {mu!r}, too small: the noise exceeds every double")
        self.grid = choose_hessian_grid(n=n, hess_clip=B, dim=d, sigma=guess)
        entries = Fraction(sqrt_up(Fraction(d * (d + 1), 2))) if self._triangle else Fraction(d)
        self.sensitivity = round_up(moved + Fraction(self.grid) * entries)
        if mu is not None:
            self.sigma = round_up(Fraction(self.sensitivity) / Fraction(mu))

    @property
    def noise_norm(self) -> float:
        """About the spectral norm of one message's noise; public, as its deviation is."""
        return self.sigma * math.sqrt((4.0 if self._triangle else 2.0) * self._dim)

    def release(self, total: FloatArray) -> FloatArray:
        """Add symmetric noise to the exact sums and record the release.

        Parameters
        ----------
        total : ndarray, shape (k, d, d), float64
            The sums, computed on this mechanism's grid. Not changed.

        Returns
        -------
        ndarray, shape (k, d, d), float64
            The noisy sums, symmetric: a new array.

        Raises
        ------
        TypeError
            `total` is no float64 array.
        ValueError
            `total` has another shape, an entry that is not on the noise's grid, or is not
            symmetric: an entry's noise hides its mirror image only where both are one number.
            Nothing is drawn, released or recorded then.
        """
        shape = (self._k, self._dim, self._dim)
        if not isinstance(total, np.ndarray) or total.dtype != np.float64:
            raise TypeError("total must be a float64 array")
        if total.shape != shape:
            raise ValueError(f"total has shape {total.shape}; it must have shape {shape}")
        if self.grid is None:
            released = total.copy()
        else:
            require_grid(total, self.grid)
            if not np.array_equal(total, total.transpose(0, 2, 1)):
                raise ValueError("total is not symmetric; it must be")
            released = self._noise(self.grid)
            released += total
        self._ledger.append(self._release)
        return released

    def _noise(self, grid: float) -> FloatArray:
        k, d = self._k, self._dim
        if not self._triangle:
            return kernels.goe(k, d, self.sigma, grid=grid, rng=self._rng)
        noise = np.empty((k, d, d))
        rows, columns = np.triu_indices(d)
        packed = kernels.gaussian((k, rows.size), self.sigma, grid=grid, rng=self._rng)
        noise[:, rows, columns] = noise[:, columns, rows] = packed
        return noise


__all__ = ["GaussianHessian", "choose_hessian_grid", "records_of"]
