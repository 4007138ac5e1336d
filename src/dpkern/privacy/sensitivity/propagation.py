"""How steps carry a difference of iterates, and errors, on: bounds rounded up to doubles.

A step of size eta multiplies a distance by at most c = max(|1 - eta low|, |1 - eta high|), low <=
curvature <= high (`sensitivity.local_runs`). Ratios of whole numbers take a tenth of the time of
fractions, which counts where every round of every silo has steps of its own.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import TypeAlias

from dpkern.privacy.guarantees.rounding import Ratio, ratio_up

Ratios: TypeAlias = list[Ratio]


def propagate(steps: Ratios, factors: Ratios) -> tuple[Fraction, Fraction, Fraction]:
    """Return (E_K, F_K, max_t c_t), each an upper bound, from the eta_t and c_t of `expansions`.

    E <- c_t E + eta_t accumulates errors that are proportional to the step sizes, F <- c_t F + 1
    errors of constant size. Both are rounded up to a double after each step.
    """
    E = F = 0.0
    largest = (0, 1)
    for (n, d), (a, b) in zip(steps, factors, strict=True):
        # c_t = a / b, and E <- c_t E + n / d: whole numbers take a tenth of the time of fractions.
        (e, i), (f, j), common = E.as_integer_ratio(), F.as_integer_ratio(), b // d
        E = _finite(ratio_up(a * e + n * common * i, b * i))
        F = _finite(ratio_up(a * f + b * j, b * j))
        largest = (a, b) if a * largest[1] > largest[0] * b else largest
    return Fraction(E), Fraction(F), Fraction(*largest)


def expansions(step_sizes: Sequence[float], low: Fraction, high: Fraction) -> tuple[Ratios, Ratios]:
    """Return the step sizes, and c_t = max(|1 - eta low|, |1 - eta high|), as exact ratios.

    The denominator of a c_t is a multiple of that of its step size.
    """
    common = math.lcm(low.denominator, high.denominator)
    p, q = (end.numerator * (common // end.denominator) for end in (low, high))
    steps = [step.as_integer_ratio() for step in step_sizes]
    return steps, [
        (max(abs(d * common - n * p), abs(d * common - n * q)), d * common) for n, d in steps
    ]


def product_of(factors: Ratios) -> Fraction:
    """Return the product of all c_t, rounded up."""
    product = 1.0
    for factor in factors:
        product = _multiplied(factor, product)
    return Fraction(product)


def _multiplied(ratio: Ratio, value: float) -> float:
    """Return a ratio times value, rounded up."""
    n, d = value.as_integer_ratio()
    return _finite(ratio_up(ratio[0] * n, ratio[1] * d))


def _finite(value: float) -> float:
    if value == math.inf:
        raise ValueError(
            "step_size or local_steps must be smaller, got a record's influence on the hidden "
            "local steps that exceeds every double"
        )
    return value


def propagate_batches(
    steps: Ratios, factors: Ratios, *, sizes: Iterable[int], batch: int
) -> dict[int, Ratio]:
    """Return upper bounds over records of the sum of eta_t prod_{u > t} c_u over their steps t.

    They are for silos of n records, by n. Step t uses the positions t b .. t b + b - 1 of an order
    of these, modulo n; b <= n. A bound does not depend on the position of the first step. Products
    are rounded up to doubles.
    """
    product, found = 1.0, []
    for step, factor in zip(reversed(steps), reversed(factors), strict=True):
        found.append(_multiplied(step, product).as_integer_ratio())
        product = _multiplied(factor, product)
    unit = max(d for _, d in found)  # powers of two
    shares = [n * (unit // d) for n, d in reversed(found)]
    return {n: (_largest_share(shares, n, batch), unit) for n in sizes}


def _largest_share(shares: Sequence[int], n: int, batch: int) -> int:
    """Return the largest sum of the shares of the steps that use one of n positions."""
    if len(shares) * batch <= n:
        return max(shares)  # no position is used twice
    # Differences of the sum between adjacent positions, where a batch begins or ends.
    changes: dict[int, int] = defaultdict(int)
    for t, share in enumerate(shares):
        first, end = t * batch % n, t * batch % n + batch
        changes[first] += share
        if end >= n:
            changes[0] += share
        changes[end % n] -= share
    return max(accumulate(changes[position] for position in sorted(changes)))
