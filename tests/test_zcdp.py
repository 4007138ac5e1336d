"""Concentrated DP: conversions beside the exact Gaussian ones and beside definitions."""

import math

import numpy as np
import pytest
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from dpkern.privacy import gdp_delta, zcdp_delta, zcdp_epsilon, zcdp_rho

rhos = st.floats(-8, 2).map(lambda e: 10.0**e)
deltas = st.floats(-30, -0.1).map(lambda e: 10.0**e)


@settings(max_examples=100, deadline=None)
@given(rho=rhos, epsilon=st.floats(0.0, 60.0))
def test_delta_is_above_the_gaussian_s_and_below_the_plain_moment_bound(rho, epsilon):
    delta = zcdp_delta(rho, epsilon)
    assert delta >= gdp_delta(math.sqrt(2 * rho), epsilon) * (1 - 1e-11)
    if epsilon > rho:
        assert delta <= math.exp(-((epsilon - rho) ** 2) / (4 * rho)) * (1 + 1e-9) + 5e-324


@settings(max_examples=100, deadline=None)
@given(rho=rhos, epsilon=st.floats(0.0, 30.0))
def test_delta_is_the_least_over_the_orders(rho, epsilon):
    a1 = np.exp(np.linspace(-20, 30, 3001))
    a = 1 + a1
    with np.errstate(over="ignore"):
        exponents = a1 * (a * rho - epsilon) + a1 * np.log1p(-1 / a) - np.log(a)
    assert (
        zcdp_delta(rho, epsilon)
        <= min(1.0, math.exp(min(exponents.min(), 0))) * (1 + 1e-9) + 5e-324
    )


@settings(max_examples=40, deadline=None)
@given(rho=rhos, delta=deltas)
def test_epsilon_is_the_least_that_reaches_delta(rho, delta):
    epsilon = zcdp_epsilon(rho, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    assert epsilon == 0.0 or zcdp_delta(rho, epsilon * (1 - 1e-6)) > delta


@settings(max_examples=40, deadline=None)
@given(epsilon=st.floats(-4, 1.5).map(lambda e: 10.0**e), delta=deltas)
def test_rho_is_the_largest_that_keeps_to_the_budget(epsilon, delta):
    rho = zcdp_rho(epsilon, delta)
    assert zcdp_delta(rho, epsilon) <= delta
    assert zcdp_delta(rho * (1 + 1e-6), epsilon) > delta


def test_ends_of_the_ranges():
    assert zcdp_delta(math.inf, 1.0) == 1.0
    assert zcdp_delta(1e300, 1.0) == 1.0
    assert zcdp_epsilon(math.inf, 0.5) == math.inf
    assert 0.0 < zcdp_delta(1e-300, 1.0) < 1e-300
    assert zcdp_epsilon(1e-12, 0.9) == 0.0


@for_each(
    ("function", "arguments", "message"),
    [
        (zcdp_delta, (0.0, 1.0), r"rho must .*got 0.0"),
        (zcdp_delta, (1.0, -1.0), r"epsilon must .*got -1.0"),
        (zcdp_delta, (1.0, math.inf), r"epsilon must .*got inf"),
        (zcdp_epsilon, (1.0, 0.0), r"delta must .*got 0.0"),
        (zcdp_rho, (1.0, 1.0), r"delta must .*got 1.0"),
        (zcdp_rho, (0.0, 0.5), r"epsilon must .*got 0.0"),
    ],
)
def test_arguments_are_refused_by_name(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)
