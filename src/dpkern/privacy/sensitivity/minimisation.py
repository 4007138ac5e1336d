"""How near the minimiser a public number of accelerated gradient steps ends, in doubles.

J(w) = sum_i l_i(w) + w' diag(penalty) w / 2 + b . w, of n convex C-Lipschitz losses of a margin
with curvature at most L: its curvature is between mu, the least penalty, and n L + the largest one.
With rho <= (mu / H)^(1/2), H at least that curvature, x = v = 0 and gradients g(y) with errors of
norm at most e, the constant-step method of Nesterov ("Introductory lectures on convex
optimization", 2004, section 2.2.1) makes K steps

    y = (x + rho v) / (1 + rho),   x = y - g(y) / H,   v = (1 - rho) v + rho y - g(y) / (rho H).

Its potential E = J(x) - J(w*) + rho^2 H |v - w*|^2 / 2 satisfies

    E_next <= (1 - rho) E - rho <error of g, v_next - w*>,

so that, in distances D = (2 E / mu)^(1/2) >= |x - w*|, |v - w*|, with mu = rho^2 H,

    D_K <= 2 e / mu + (1 - rho)^(K/2) D_0,   D_0 <= 2^(1/2) G / mu,   G = n C + |b| >= |grad J(0)|

(docs/objective_perturbation.md). Errors are not multiplied by the square root of the condition
number, as in the bound of Schmidt, Le Roux, Bach ("Convergence rates of inexact proximal-gradient
methods for convex optimization", NeurIPS 2011, Proposition 4). All points are within W = 2.5 G / mu
of 0. In doubles, u = 2^-53, with q the grid of the exact sums and kappa of
`dpkern.models.losses.Loss`,

    e = n [q sqrt(d) / 2 + u ((d + 16) L W + (16 + kappa) C)] + 4 u (G + W max penalty) + 5 u H W,

and rounding the three updates adds 64 u W H / mu to D_K. The random b is real; the steps use its
value on a grid q_b, whose minimiser is within q_b sqrt(d) / (2 mu) of w*.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from dpkern.privacy.sensitivity.grids import choose_grid

#: Most records, with fewer of which no sum on the finest grid is in single precision.
MOST_RECORDS = 1 << 23

_U = 2.0**-53
# Covers the rounding of these formulas, second-order terms, and underflow within _RANGE.
_SLACK = 1.0 + 2.0**-20
_RANGE = 2.0**100


@dataclass(frozen=True, kw_only=True)
class Minimisation:
    """The public description of K steps, and tau, the bound of |x_K - w*|.

    Parameters
    ----------
    clip : float
        C.
    dim, records : int
        d, and n or a larger public number, at most `MOST_RECORDS`.
    smoothness : float
        L of one record's clipped loss, rounded up.
    kappa : float
        Error bound of the loss's computed derivative.
    penalties : tuple of float
        The least and the largest entry of `penalty`, both positive.
    linear_bound, linear_grid : float
        Bound of |b|, and q_b; 0 without one.
    target : float
        A distance below which tau need not be.
    """

    clip: float
    dim: int
    records: int
    smoothness: float
    kappa: float
    penalties: tuple[float, float]
    linear_bound: float
    linear_grid: float
    target: float

    def __post_init__(self) -> None:
        if self.records > MOST_RECORDS:
            raise ValueError(
                f"data must have at most {MOST_RECORDS} records for the bound of rounding errors "
                f"of a minimiser, got room for {self.records}"
            )
        sizes = (self.clip, *self.penalties, self.target)
        if min(sizes) < 1.0 / _RANGE or max(*sizes, self.smoothness) > _RANGE:
            raise ValueError(
                "clip, added_l2 and the smoothness phi''max row_bound^2 must be between 2^-100 and "
                "2^100 for the bound of rounding errors of a minimiser, got others"
            )
        if self.iteration_error > 0.05 * self.gradient_bound / self.least_penalty:
            raise ValueError(
                "added_l2 or l2 must be larger for these records: in doubles no minimiser is known "
                f"to be near enough, got a condition number of {self.rho**-2.0:.3g}"
            )

    @cached_property
    def grid(self) -> float:
        """q, the finest grid on which sums of so many clipped gradients are exact."""
        return choose_grid(n=self.records, clip=self.clip, dim=self.dim)

    @property
    def curvature(self) -> float:
        """H, the largest curvature of J, rounded up."""
        return (self.records * self.smoothness + self.penalties[1]) * _SLACK

    @property
    def rho(self) -> float:
        """The share of the step from x to v, rounded down."""
        return math.sqrt(self.penalties[0] / self.curvature) / _SLACK

    @property
    def least_penalty(self) -> float:
        """rho^2 H, rounded down: the curvature that the steps rely on."""
        return self.rho**2 * self.curvature / _SLACK

    @property
    def gradient_bound(self) -> float:
        """G, the bound of |grad J(0)|."""
        return (self.records * self.clip + self.linear_bound) * _SLACK

    @property
    def iterate_bound(self) -> float:
        """W, the bound of the norm of every point."""
        return 2.5 * self.gradient_bound / self.least_penalty * _SLACK

    @property
    def gradient_error(self) -> float:
        """e, the bound of the error of a computed gradient of J."""
        d, W, L, C = self.dim, self.iterate_bound, self.smoothness, self.clip
        one = 0.5 * self.grid * math.sqrt(d) + _U * ((d + 16) * L * W + (16 + self.kappa) * C)
        others = 4.0 * (self.gradient_bound + self.penalties[1] * W) + 5.0 * self.curvature * W
        return (self.records * one + _U * others) * _SLACK

    @property
    def iteration_error(self) -> float:
        """The bound of |x_K - w*| after infinitely many steps."""
        rounding = 64.0 * _U * self.iterate_bound * self.curvature / self.least_penalty
        of_linear = 0.5 * self.linear_grid * math.sqrt(self.dim) / self.least_penalty
        return (2.0 * self.gradient_error / self.least_penalty + rounding + of_linear) * _SLACK

    @cached_property
    def steps(self) -> int:
        """K, for which what is left of D_0 is the error after infinitely many steps, or `target`.

        (1 - rho)^(K/2) <= exp(-rho K / 2).
        """
        left = max(self.iteration_error, self.target)
        start = math.sqrt(2.0) * self.gradient_bound / self.least_penalty * _SLACK
        return max(1, math.ceil(2.0 / self.rho * math.log(start / left) * _SLACK))

    @property
    def tau(self) -> float:
        """The bound of |x_K - w*|, rounded up."""
        return (self.iteration_error + max(self.iteration_error, self.target)) * _SLACK
