"""The published guarantee of binomial noise by Agarwal et al. (2018), "cpSGD", for comparison."""

import math

from dpkern._numbers import count, probability


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
        The nearest value, not rounded up; infinity unless m/4 >= max(23 log(10 d / delta),
        2 (g + 1)), which the theorem requires. `BinomialSum` certifies a smaller epsilon by its own
        proof.
    """
    m, g, d = count("coins", coins), count("g", g), count("dim", dim)
    delta = probability("delta", delta)
    v, largest = m / 4.0, g + 1.0
    l2, l1 = g + math.sqrt(d), math.sqrt(d) * g + d
    if v < max(23.0 * math.log(10.0 * d / delta), 2.0 * largest):
        return math.inf
    log = math.log(1.25 / delta)
    first = l2 * math.sqrt(2.0 * log / v)
    second = l2 * 7.0 * math.sqrt(2.0) / 4.0 * math.sqrt(math.log(10.0 / delta)) + l1 / 3.0
    third = log + math.log(20.0 * d / delta) * math.log(10.0 / delta)
    return first + second / (v * (1.0 - delta / 10.0)) + 2.0 / 3.0 * largest * third / v
