"""What binomial noise on integer sums gives: a proof of its own, and a theorem from the literature.

Counts S in Z^d plus W, independent Bin(m, 1/2) - m/2 per coordinate. Neighbours move S by s with
|s|_2 <= D, so |s|_1 <= sqrt(d) D and |s|_inf <= D. With A = (m + 1)/2, for s_k > 0,

    log P(W_k = w) / P(W_k = w + s_k) = sum_{j = 1}^{s_k} 2 atanh(c_j / A),   c_j = w + j - 1/2,

the ratios of neighbouring binomial coefficients being (A + c_j) / (A - c_j); s_k < 0 is the mirror
image. On the event E that all |W_k| <= tau every |c_j| <= a A, a = (tau + D - 1/2) / A < 1, and
2 atanh(x) <= 2 x + (2/3) |x|^3 / (1 - x^2), so the privacy loss is

    L <= (4 / (m + 1)) (s . W + |s|^2 / 2) + xi,   xi = sqrt(d) D (2/3) a^3 / (1 - a^2).

s . W is a sum of independent +-s_k / 2, m for each k: E exp(t s . W) = prod_k cosh(t s_k / 2)^m <=
exp(t^2 |s|^2 m / 8). With t = 4 (alpha - 1) / (m + 1),

    E[exp((alpha - 1) L); E] <= exp((alpha - 1) (alpha 2 |s|^2 / (m + 1) + xi)),

and xi <= alpha xi: the release is (rho, delta_0)-concentrated (zcdp.py) with
rho = 2 D^2 / (m + 1) + xi, what Gaussian noise of variance (m + 1) / 4 gives and xi. By Hoeffding
P(|W_k| > tau) <= 2 exp(-2 tau^2 / m); tau makes that 2^-100 - 2^-113, and the drawn counts follow
their law within 2^-143 (shuffle.h), so delta_0 = d 2^-100.
"""

import math
from fractions import Fraction

from dpkern._numbers import count, positive, real
from dpkern.privacy._exact import sqrt_up

# 2 exp(-2 tau^2 / m) <= 2^-100 where tau^2 >= m 101 log(2) / 2 = m 35.00393...
_TAU_SQUARED = Fraction(35004, 1000)


def binomial_rho(coins: int, sensitivity: float, dim: int) -> Fraction | None:
    """Return the rho of one release with binomial noise; None where this proof gives none.

    Parameters
    ----------
    coins : int
        m >= 1 fair coins in every coordinate.
    sensitivity : float
        D > 0: how far, in l2 norm, replacing a record moves the counts.
    dim : int
        Number of counts d.

    Returns
    -------
    Fraction or None
        2 D^2 / (m + 1) + xi of the module's proof, never below it. The event that the proof leaves
        out has probability at most d 2^-100.
    """
    m, D, d = count("coins", coins), Fraction(positive("sensitivity", sensitivity)), dim
    tau = Fraction(sqrt_up(_TAU_SQUARED * m))
    a = 2 * (tau + D) / (m + 1)
    if a >= 1:
        return None
    root = Fraction(sqrt_up(Fraction(count("dim", d))))
    return 2 * D**2 / (m + 1) + root * D * Fraction(2, 3) * a**3 / (1 - a**2)


def shuffle_sensitivity(g: int, dim: int) -> float:
    """Return g + sqrt(d), rounded up: the l2 sensitivity of counts of rounded vectors.

    Two vectors of norm L are at most 2 L apart, which is g on the grid; rounding both with the same
    uniform numbers moves a coordinate of their difference by less than 1 (shuffle.h).
    """
    root = Fraction(sqrt_up(Fraction(count("dim", dim))))
    total = count("g", g) + root
    nearest = float(total)
    return nearest if Fraction(nearest) >= total else math.nextafter(nearest, math.inf)


def cpsgd_epsilon(coins: int, g: int, dim: int, delta: float) -> float:
    """Return the epsilon of Theorem 1 of Agarwal et al. (2018), "cpSGD", for these counts.

    Parameters
    ----------
    coins : int
        m fair coins in every coordinate.
    g : int
        Steps of the grid on [-L, L]: the counts have the sensitivities g + sqrt(d) in l2,
        sqrt(d) g + d in l1 and g + 1 in the largest coordinate.
    dim : int
        Number of counts d.
    delta : float
        In (0, 1).

    Returns
    -------
    float
        Infinity where the theorem asks for more coins: m/4 >= max(23 log(10 d / delta), 2 (g + 1)).
        What `BinomialSum` certifies is smaller and rests on `binomial_rho` instead; this is the
        figure to compare with the literature. Nearest value, not rounded up.

    Raises
    ------
    TypeError, ValueError
        An argument is out of range.
    """
    m, g, d, delta = count("coins", coins), count("g", g), count("dim", dim), real("delta", delta)
    if not 0.0 < delta < 1.0:
        raise ValueError(f"delta is {delta!r}; it must lie strictly between 0 and 1")
    v, largest = m / 4.0, g + 1.0
    l2, l1 = g + math.sqrt(d), math.sqrt(d) * g + d
    if v < max(23.0 * math.log(10.0 * d / delta), 2.0 * largest):
        return math.inf
    log = math.log(1.25 / delta)
    first = l2 * math.sqrt(2.0 * log / v)
    second = l2 * 7.0 * math.sqrt(2.0) / 4.0 * math.sqrt(math.log(10.0 / delta)) + l1 / 3.0
    third = log + math.log(20.0 * d / delta) * math.log(10.0 / delta)
    return first + second / (v * (1.0 - delta / 10.0)) + 2.0 / 3.0 * largest * third / v


__all__ = ["binomial_rho", "cpsgd_epsilon", "shuffle_sensitivity"]
