"""Noise that the silos add by shares, each to its own part of a sum (docs/design.md, section 4)."""

import math
from fractions import Fraction

from dpkern._numbers import positive
from dpkern.privacy.guarantees.rounding import sqrt_down, sqrt_up

# Below this many grid steps the rounded shares of several silos no longer add up to one rounded
# Gaussian within the sampler's own error.
LEAST_SHARE_STEPS = 8.0


def share_std(sensitivity: float, mu: float, honest: int) -> float:
    """Return the std of each of so many shares whose sum has the budget mu, rounded up."""
    least = Fraction(sensitivity) / Fraction(positive("mu", mu))
    std = sqrt_up(least**2 / honest)
    # total_std rounds down, and mu computed from it must not exceed the budget.
    while std < math.inf and Fraction(total_std(std, honest)) < least:
        std = math.nextafter(std, math.inf)
    if std == math.inf:
        raise ValueError(f"mu must be so large that the noise is a double, got {mu!r}")
    return std


def require_share(std: float, grid: float) -> None:
    """Raise ValueError for a share of noise that is too small for its grid."""
    if std < LEAST_SHARE_STEPS * grid:
        raise ValueError(
            f"sigma of a share must be at least {LEAST_SHARE_STEPS:.0f} grid steps, the common "
            f"grid being {grid!r}, got {std!r}"
        )


def total_std(std: float, honest: int) -> float:
    """Return the std of a sum of so many equal shares, rounded down."""
    return sqrt_down(honest * Fraction(std) ** 2)
