"""Rational numbers to doubles, rounded in the direction that a guarantee needs.

A double is a rational number, so budgets and certificates compose in `fractions.Fraction` without
error; only the last step to a double rounds, and the caller says which way.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

_EXACT = 1 << 53  # whole numbers up to it are doubles

#: A numerator and a denominator, which need not be in lowest terms: that takes longer than all else
#: where a number is computed for every silo and round.
Ratio: TypeAlias = tuple[int, int]


def plus(a: Ratio, b: Ratio) -> Ratio:
    """Return a + b."""
    return a[0] * b[1] + b[0] * a[1], a[1] * b[1]


def times(a: Ratio, b: Ratio) -> Ratio:
    """Return a b."""
    return a[0] * b[0], a[1] * b[1]


def total(values: Sequence[Fraction]) -> Fraction:
    """Return the sum, in lowest terms at the end alone: sums of as many digits have long ones."""
    ratios = [value.as_integer_ratio() for value in values]
    while len(ratios) > 1:
        pairs = zip(ratios[::2], ratios[1::2], strict=False)
        ratios = [plus(a, b) for a, b in pairs] + ratios[len(ratios) & ~1 :]
    return Fraction(*ratios[0]) if ratios else Fraction(0)


def floor_log2(value: Fraction) -> int:
    """Return the largest integer e with 2**e <= value, for value > 0."""
    return floor_log2_of_ratio(value.numerator, value.denominator)


def floor_log2_of_ratio(numerator: int, denominator: int) -> int:
    """Return `floor_log2` of a ratio of whole numbers above 0, which need not be in lowest terms.

    Where a number is computed for every silo and round, fractions in lowest terms take long.
    """
    exponent = numerator.bit_length() - denominator.bit_length()
    return exponent - (numerator << max(-exponent, 0) < denominator << max(exponent, 0))


def ceil_log2_of_multiple(n: int, value: float) -> int:
    """Return the least integer e with n value <= 2^e, for n >= 1 and value > 0."""
    if n <= _EXACT:
        mantissa, exponent = math.frexp(value)
        part, more = math.frexp(n * mantissa)
        if part != 0.5:  # else the product may have been rounded to a power of two
            return exponent + more
    numerator, denominator = value.as_integer_ratio()
    floor = floor_log2_of_ratio(n * numerator, denominator)
    return floor + (n * numerator << max(-floor, 0) != denominator << max(floor, 0))


def floor_log2_of_part(value: float, n: int) -> int:
    """Return the largest integer e with 2^e <= value / n, for n >= 1 and value > 0."""
    if n > _EXACT:
        numerator, denominator = value.as_integer_ratio()
        return floor_log2_of_ratio(numerator, denominator * n)
    (mantissa, exponent), (other, more) = math.frexp(value), math.frexp(n)
    return exponent - more - (mantissa < other)


def _nearest(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf


def round_up(value: Fraction) -> float:
    """Return the smallest double >= value (infinity beyond the largest double), value >= 0."""
    return ratio_up(value.numerator, value.denominator)


def ratio_up(numerator: int, denominator: int) -> float:
    """Return `round_up` of a ratio of whole numbers, which need not be in lowest terms."""
    result = _nearest(numerator, denominator)
    if result < math.inf:
        n, d = result.as_integer_ratio()
        if n * denominator < numerator * d:
            result = math.nextafter(result, math.inf)
    return result


def round_down(value: Fraction) -> float:
    """Return the largest finite double <= value, value >= 0."""
    return ratio_down(value.numerator, value.denominator)


def ratio_down(numerator: int, denominator: int) -> float:
    """Return `round_down` of a ratio of whole numbers, which need not be in lowest terms."""
    result = _nearest(numerator, denominator)
    if result == math.inf:
        return math.nextafter(result, 0.0)
    n, d = result.as_integer_ratio()
    return math.nextafter(result, 0.0) if n * denominator > numerator * d else result


def _sqrt(value: Fraction) -> float:
    """Return sqrt(value) to less than one unit in the last place, for value >= 0.

    One step to the adjacent double then suffices for rounding in either direction.
    """
    if value == 0:
        return 0.0
    # Scaling the value to [1, 4) by an even power of two avoids under- and overflow, as in the
    # square 1e-400 of a mu of 1e-200.
    half = floor_log2(value) // 2
    root = math.sqrt(float(value / Fraction(4) ** half))
    try:
        return math.ldexp(root, half)
    except OverflowError:
        return math.inf


def sqrt_up(value: Fraction) -> float:
    """Return the smallest double whose square is >= value (infinity if none), value >= 0."""
    result = _sqrt(value)
    if result < math.inf and Fraction(result) ** 2 < value:
        result = math.nextafter(result, math.inf)
    return result


def sqrt_down(value: Fraction) -> float:
    """Return the largest finite double whose square is <= value, value >= 0."""
    result = _sqrt(value)
    if result == math.inf or Fraction(result) ** 2 > value:
        result = math.nextafter(result, 0.0)
    return result


def bisect(holds: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return adjacent doubles (a, b) with `holds` false at a and true at b, 0 <= low < high.

    The bisection is on the bit patterns, which have the order of the doubles, and so takes at most
    64 steps. `holds` is assumed to be false at `low` and true at `high`.
    """
    below, above = (int(np.float64(end).view(np.int64)) for end in (low, high))
    while above - below > 1:
        middle = (below + above) // 2
        value = float(np.int64(middle).view(np.float64))  # one call less than by a function
        if holds(value):
            above, high = middle, value
        else:
            below, low = middle, value
    return float(low), float(high)
