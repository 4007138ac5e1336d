"""The guarantee of binomial noise on integer sums, with its proof.

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
their distribution within 2^-143 (shuffle.h), so delta_0 = d 2^-100.
"""

from fractions import Fraction

from dpkern._numbers import count, positive
from dpkern.privacy._exact import round_up, sqrt_up

# 2 exp(-2 tau^2 / m) <= 2^-100 where tau^2 >= m 101 log(2) / 2 = m 35.00393...
_TAU_SQUARED = Fraction(35004, 1000)


def binomial_rho(coins: int, sensitivity: float, dim: int) -> Fraction | None:
    """Return the rho of one release, 2 D^2 / (m + 1) + xi of the module's proof, rounded up.

    There are m >= 1 fair coins in each of the d counts, whose l2 sensitivity is D > 0. None means
    that the proof does not apply.
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

    The distance of two vectors of norm L is at most 2 L, which is g grid steps; rounding both with
    the same uniform numbers changes a coordinate of their difference by less than 1 (shuffle.h).
    """
    root = Fraction(sqrt_up(Fraction(count("dim", dim))))
    return round_up(count("g", g) + root)
