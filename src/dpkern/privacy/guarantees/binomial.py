"""The guarantee of binomial noise on integer sums, as Gaussian DP.

Counts S in Z^d plus W, independent Bin(m, 1/2) per coordinate, on neighbours that move S by at most
D in l2 norm, are (mu_1 D)-GDP up to 2^-100 for each coordinate, with mu_1 within a few percent of 2
/ sqrt(m), which is what Gaussian noise of the same variance gives. docs/proofs/shuffle.md has the
proof. With S(t) = P(W >= t) and z(t) = -Phi^-1(S(t)), mu_1 bounds

    z(t) - z(t - 1)    for all thresholds with |t - m / 2| <= tau + D,

and clipping to the thresholds changes the distribution by 2^-100 at most. For m coins above `_FEW`
the largest of these is inside, where it is at most a bound of the second differences of log
probabilities, or at the end, where Mills ratios bound it; for fewer they are computed.
"""

import functools
import math
from fractions import Fraction

import numpy as np
import scipy  # submodules load lazily, which keeps the import of dpkern cheap

from dpkern._numbers import count, positive
from dpkern.privacy.guarantees.rounding import round_up, sqrt_up

# 2 exp(-2 tau^2 / m) <= 2^-100 - 2^-113 where tau^2 >= m 35.004: 101 log(2) / 2 = 35.00393...
_TAU_SQUARED = Fraction(35004, 1000)
# Up to so many coins all thresholds are computed.
_FEW = 4096
# Relative error bound of what is computed in doubles: for few coins, and by formulas.
_ERROR_FEW, _ERROR = 2.0**-20, 2.0**-24


def binomial_mu(coins: int, sensitivity: float) -> Fraction | None:
    """Return the mu of one release, mu_1 D of the module's text, rounded up.

    There are m >= 1 fair coins in each of the counts, whose l2 sensitivity is D > 0. None means
    that the proof does not apply: there are too few coins.
    """
    m, D = count("coins", coins), Fraction(positive("sensitivity", sensitivity))
    last = math.floor(Fraction(m, 2) + Fraction(sqrt_up(_TAU_SQUARED * m)) + D) + 2
    found = _largest_step(m, last)
    return None if found is None else Fraction(found) * D


@functools.lru_cache(maxsize=1024)
def _largest_step(m: int, last: int) -> float | None:
    """Return mu_1 for the thresholds from m + 2 - last to last."""
    if m <= _FEW:
        return _of_few(m, last)
    # p(t) / p(t - 1) >= 1/2 at the end makes every difference smaller than sqrt(2).
    if 2 * (m - last + 1) < last:
        return None
    curvature = _curvature(m, last)
    inside = math.sqrt(2.0 * curvature / (1.0 + math.sqrt(1.0 - curvature)))
    return max(inside, _at_the_end(m, last)) * (1.0 + _ERROR)


def _curvature(m: int, t: int) -> float:
    """Return -log(p(t) p(t - 2) / p(t - 1)^2), which increases with t > m / 2 + 1."""
    return math.log1p((m + 1) / ((t - 1) * (m - t + 1)))


def _at_the_end(m: int, t: int) -> float:
    """Return an upper bound of z(t) - z(t - 1): log(S(t - 1) / S(t)) over the least hazard rate."""
    ratio = (m - t + 1) / t  # p(t) / p(t - 1)
    # log p(t - 1 + j) / p(t - 1) >= -fall j - bend j (j - 1) / 2 for j <= number.
    number = 2 * math.isqrt(m)
    fall, bend = -math.log1p((m + 1 - 2 * t) / t), _curvature(m, min(t + number + 1, m))
    root = math.sqrt(bend)
    least = 0.5 + _mills((fall + 0.5 * bend) / root) / root
    beyond = math.exp(-fall * (number - 1) - 0.5 * bend * number * (number - 1))
    least -= beyond / (fall + bend * (number - 0.5))
    # S(t - 1) <= p(t - 1) / (1 - ratio), and p by Stirling's formula and a series of the exponent.
    j, u = t - 1, (2 * t - 2 - m) / m
    log_p = 0.5 * math.log(m / (2.0 * math.pi * j * (m - j))) + 1.0 / (12.0 * m)
    log_p -= m * (u**2 / 2.0 + u**4 / 12.0 + u**6 / 30.0)
    log_tail = log_p - math.log((2 * t - 1 - m) / t)
    low, high = 0.0, 40.0
    for _ in range(60):
        z = 0.5 * (low + high)
        below = math.log(_mills(z)) - 0.5 * (z * z + math.log(2.0 * math.pi)) >= log_tail
        low, high = (z, high) if below else (low, z)
    hazard = 0.25 * (3.0 * low + math.sqrt(low * low + 8.0))
    return math.log1p(1.0 / (ratio * least)) / hazard


def _mills(y: float) -> float:
    """Return a lower bound of Phi(-y) / phi(y) (Birnbaum 1942)."""
    return 2.0 / (y + math.sqrt(4.0 + y * y))


def _of_few(m: int, last: int) -> float | None:
    if last > m:
        return None
    k = np.arange(m // 2, m + 1)
    gamma = scipy.special.gammaln
    log_p = gamma(m + 1.0) - gamma(k + 1.0) - gamma(m - k + 1.0) - m * math.log(2.0)
    tails = np.cumsum(np.exp(log_p)[::-1])[::-1]
    z = -scipy.special.ndtri(tails[: last - m // 2 + 1])
    return float(np.max(np.diff(z))) * (1.0 + _ERROR_FEW)


def shuffle_sensitivity(g: int, dim: int) -> float:
    """Return g + sqrt(d), rounded up: the l2 sensitivity of counts of rounded vectors.

    The distance of two vectors of norm L is at most 2 L, which is g grid steps; rounding both with
    the same uniform numbers changes a coordinate of their difference by less than 1 (shuffle.h).
    """
    root = Fraction(sqrt_up(Fraction(count("dim", dim))))
    return round_up(count("g", g) + root)
