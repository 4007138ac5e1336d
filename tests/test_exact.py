"""Rational arithmetic that guarantees rest on, against fractions."""

import math
from fractions import Fraction

import numpy as np
from cases import for_each
from hypothesis import example, given
from hypothesis import strategies as st

from dpkern.privacy.guarantees.rounding import ceil_log2_of_multiple, floor_log2_of_part, total

counts = st.integers(1, 1 << 60) | st.integers(0, 59).map(lambda k: 1 << k)
near = st.tuples(st.integers(-300, 300), st.integers(1, 1 << 60), st.sampled_from([-1, 0, 1]))


def doubles_near_a_power_over(exponent, n, steps):
    """A double at 2^exponent / n, or next to it."""
    value = float(Fraction(2) ** exponent / n)
    return value if not steps else math.nextafter(value, steps * math.inf)


@given(n=counts, value=st.floats(1e-300, 1e280))
@example(n=3, value=5e-324)
@example(n=1 << 54, value=1.0 + 2.0**-52)
def test_powers_of_two_around_multiples_and_parts(n, value):
    above, below = ceil_log2_of_multiple(n, value), floor_log2_of_part(value, n)
    assert Fraction(2) ** (above - 1) < n * Fraction(value) <= Fraction(2) ** above
    assert Fraction(2) ** below <= Fraction(value) / n < Fraction(2) ** (below + 1)


@given(near)
def test_powers_of_two_are_exact_where_the_product_is_nearly_one(given_near):
    exponent, n, steps = given_near
    value = doubles_near_a_power_over(exponent, n, steps)
    above = ceil_log2_of_multiple(n, value)
    assert Fraction(2) ** (above - 1) < n * Fraction(value) <= Fraction(2) ** above
    value = math.ldexp(float(n), exponent)
    value = value if not steps else math.nextafter(value, steps * math.inf)
    below = floor_log2_of_part(value, n)
    assert Fraction(2) ** below <= Fraction(value) / n < Fraction(2) ** (below + 1)


@for_each("count", [0, 1, 2, 3, 7, 8, 61])
def test_a_total_is_the_sum(count):
    rng = np.random.default_rng(count)
    values = [Fraction(x) / Fraction(y) for x, y in rng.random((count, 2)).tolist()]
    assert total(values) == sum(values, Fraction(0))
