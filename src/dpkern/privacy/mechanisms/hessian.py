"""The Gaussian mechanism on exact sums of rank-one Hessians.

A record's clipped Hessian is positive semi-definite, of rank one and of Frobenius norm at most B,
so that replacing it changes the sum by at most sqrt(2) B: |A - A'|^2 = |A|^2 + |A'|^2 - 2 <A, A'>,
and <A, A'> >= 0. Adding or removing it changes the sum by at most B. The exact sum is rounded once
to the grid q of its noise, which changes each of the d^2 entries of a difference by at most q: the
sensitivity is D = sqrt(2) B + q d, or B + q d.

Beside the sum of gradients of the same records at the same models, of which one record's is s x
where its Hessian is h x x^T, a replaced record reaches the gradients' sensitivity 2 C with parallel
rows alone, and the Hessians' sqrt(2) B with orthogonal ones alone. With noise of std s_g and s_H
and (2 C / s_g)^2 >= 3 (B / s_H)^2 both together are at most (2 C / s_g)^2 + (D / s_H)^2 for
D = B + sqrt(B) q_h sqrt(d) + q d, q_h the grid of rows (docs/proofs/newton_joint.md): gradients are
charged as ever, and this D is what Hessians add.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from dpkern import kernels
from dpkern._numbers import count, positive
from dpkern._typing import FloatArray
from dpkern.kernels.grids import hessian_row_grid
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up
from dpkern.privacy.mechanisms.channel import (
    Channel,
    largest_norm,
    require_share,
    share_std,
    total_std,
)
from dpkern.privacy.sensitivity.grids import (
    choose_hessian_grid,
    grid_records,
    noise_std,
    require_sums,
)

# Rounding to the grid adds at most B / 32 to a sensitivity of B or more, and so to the noise.
_ROUNDING_FACTOR = 1.04
# Least ratio of the squared mu of gradients and of Hessians for which Hessians add B to them:
# 60/59 (8 - 4 sqrt(2)) < 2.39 is enough.
LEAST_RATIO = 3.0
#: What the description of Hessians that are charged so ends with.
BESIDE = ", beside gradients at the same models"


class GaussianHessian:
    """Noisy sums of clipped Hessians; every call records one release and returns it.

    `sizes`, and shares of the noise of a single message, are as for `GaussianSum`; with
    "add_remove" the kernel computes the sums with the argument `records` of this object. ONE
    release has the budget `mu` or the given `sigma`; neither means no noise, without which alone B
    may be infinite.

    `beside` is the budget of one release of `GaussianSum` of the gradients of the same records at
    the same models, seen by the same; it makes D the smaller one where it is large enough.

    Off the diagonal the noise has half the variance of the diagonal's, sigma^2 (GOE), for which mu
    is exactly |A - A'|_F / sigma. With `triangle` it has equal std on the packed upper triangle, as
    Cao, Guo, Zhang (2023) print it, at the same worst case: then D = sqrt(2) B +
    q sqrt(d (d + 1) / 2), in l2 norm of the triangle, which is at most the Frobenius norm.

    The attributes are `sensitivity` D and `sigma` = D/mu, both rounded up, `grid`, for the kernel,
    or None without noise, and `is_beside`: whether D is the one beside gradients.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        hess_clip: float,
        dim: int,
        sizes: Sequence[int],
        mu: float | None = None,
        sigma: float | None = None,
        triangle: bool = False,
        beside: float | None = None,
    ) -> None:
        if mu is not None and sigma is not None:
            raise ValueError("sigma must be None where mu is given, got both")
        if not len(sizes):
            raise ValueError("sizes must have one entry per message, got none")
        self._channel, self._triangle = channel, triangle
        self._dim = count("dim", dim)
        k = len(sizes)
        self._shares = channel.shares if k == 1 else None
        self._k = k if self._shares is None else self._shares.silos
        noisy = mu is not None or sigma is not None
        B = positive("hess_clip", hess_clip, or_infinite=not noisy)
        n, adding = sum(count("sizes", size) for size in sizes), channel.add_remove
        self.records = grid_records(n) if adding else None
        self.grid: float | None = None
        self.sigma, self.sensitivity, self.is_beside = 0.0, math.inf, False
        if noisy:
            if not (mu is None or beside is None or adding or triangle):
                least = Fraction(LEAST_RATIO) * Fraction(mu) ** 2
                self.is_beside = Fraction(beside) ** 2 >= least
            # The sensitivity of the exact sum.
            nominal = Fraction(B) if adding else Fraction(sqrt_up(2 * Fraction(B) ** 2))
            if self.is_beside:
                nominal, what = _beside_gradients(n, B, dim), what + BESIDE
            self.grid = self._choose_noise(nominal, self.records or n, B, mu, sigma)
            if self._shares is not None:
                self._share_noise(self._shares.silos - self._shares.colluding, mu, self.grid)
        # The largest norms of exact sums, by silo where each is released (`grid_records`).
        most = [size if self.records is None else self.records << 11 for size in sizes]
        self._bounds = [records * B for records in most]
        packed = dim * (dim + 1) // 2
        self._entry = channel.describe(
            what=what,
            sensitivity=self.sensitivity if k == 1 else (self.sensitivity,) * k,
            std=(self.sigma if k == 1 else (self.sigma,) * k) if noisy else None,
            grid=None if self.grid is None else self.grid if k == 1 else (self.grid,) * k,
            dim=packed,
            draws=None if self._shares is None else self._k * packed,
        )

    def _choose_noise(
        self, nominal: Fraction, n: int, B: float, mu: float | None, sigma: float | None
    ) -> float:
        """Fix sensitivity and noise for an exact sum of n records, and return their grid."""
        d = self._dim
        if mu is None:
            guess = self.sigma = positive("sigma", sigma)
        else:
            guess = _ROUNDING_FACTOR * noise_std(nominal, mu)
        if guess == math.inf:
            raise ValueError(f"mu must be so large that the noise is a double, got {mu!r}")
        grid = choose_hessian_grid(n=n, hess_clip=B, dim=d, sigma=guess)
        entries = Fraction(sqrt_up(Fraction(d * (d + 1), 2))) if self._triangle else Fraction(d)
        self.sensitivity = round_up(nominal + Fraction(grid) * entries)
        if mu is not None:
            self.sigma = noise_std(self.sensitivity, mu)
        return grid

    def _share_noise(self, honest: int, mu: float | None, grid: float) -> None:
        """Fix the std of a share, and that of the noise of so many of them."""
        if mu is None:
            raise ValueError("mu must be given where silos share the noise, got sigma")
        self._share = share_std(self.sensitivity, mu, honest)
        # The least std of an entry.
        require_share(self._share * (1.0 if self._triangle else math.sqrt(0.5)), grid)
        self.sigma = total_std(self._share, honest)

    @property
    def noise_std(self) -> float:
        """Std of the noise on the diagonal of one message, or of the total of all shares."""
        return self.sigma if self._shares is None else self._share * math.sqrt(self._k)

    @property
    def noise_norm(self) -> float:
        """Approximate spectral norm of one message's noise; public, as its std is."""
        return self.noise_std * math.sqrt((4.0 if self._triangle else 2.0) * self._dim)

    def release(self, total: FloatArray) -> FloatArray:
        """Record the release and return the exact sums (k, d, d) with symmetric noise.

        Nothing is drawn or recorded for sums that are not on the grid or not symmetric: the noise
        of an entry protects its mirror image only if both are equal. Where silos share the noise,
        the sums are those of all silos, and returned is their total, (1, d, d).
        """
        channel = self._channel
        sums = require_sums(total, [(self._k, self._dim, self._dim)], self.grid)
        if self.grid is None or (self._shares is None and self._k == 1):
            channel.require_aggregator(self._entry.what)
        if self.grid is None:
            noisy = sums.copy()
        else:
            if not np.array_equal(sums, sums.transpose(0, 2, 1)):
                raise ValueError("total must be symmetric, got entries that differ")
            noisy = self._noise(self.grid)
            noisy += sums
        channel.ledger.append(self._entry)
        if self._shares is not None and self.grid is not None:
            rows, columns = np.triu_indices(self._dim)
            packed = channel.total(
                noisy[:, rows, columns], self.grid, self._entry.what, sum(self._bounds), self._share
            )
            whole = np.empty((1, self._dim, self._dim))
            whole[0, rows, columns] = whole[0, columns, rows] = packed
            return channel.seen(whole, sums.sum(axis=0), self.sigma)
        released = noisy
        if self._k > 1:  # the noise of an entry off the diagonal is there twice
            std, packed_dim = math.sqrt(2.0) * self.sigma, self._entry.dim
            most = [largest_norm(bound, std, packed_dim) for bound in self._bounds]
            released = channel.messages(noisy, self._entry.what, most)
        return channel.seen(released, sums, self.sigma)

    def _noise(self, grid: float) -> FloatArray:
        k, d, stream = self._k, self._dim, self._channel.stream
        sigma = np.full(k, self.sigma if self._shares is None else self._share)
        sigma = self._channel.own(sigma) if k > 1 else sigma
        if not self._triangle:
            return kernels.goe(k, d, sigma, grid=grid, rng=stream)
        noise = np.empty((k, d, d))
        rows, columns = np.triu_indices(d)
        packed = kernels.gaussian((k, rows.size), sigma, grid=grid, rng=stream)
        noise[:, rows, columns] = noise[:, columns, rows] = packed
        return noise


def _beside_gradients(n: int, B: float, dim: int) -> Fraction:
    """Return what a record's Hessian adds to its gradient: B, and the rounding of its row."""
    rounding = Fraction(sqrt_up(Fraction(B) * dim)) * Fraction(hessian_row_grid(n, B, dim))
    return Fraction(B) * (1 + Fraction(1, 2**40)) + rounding * (1 + Fraction(1, 2**20))
