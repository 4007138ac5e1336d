"""Defaults of counts and hazards where there are few records."""

import numpy as np
from cases import for_each

from bench.families import broken, share


@for_each("family", ["poisson", "hazards"])
def test_few_records_are_explained_better_than_by_the_constant(family):
    """At n mu of 240, where the noise of more rounds would be far from the constant."""
    shares = [share(family, "one_hot", 1000, 1.0, seed)[0] for seed in range(4)]
    assert np.mean(shares) > 0.3


def test_cells_that_break_a_requirement_are_named():
    found = {
        ("gamma", "skewed", 100, 1.0): (-5.0, 0.1, 0.0),  # n mu below 150
        ("gamma", "skewed", 1000, 1.0): (-0.4, 0.1, 0.0),
        ("gamma", "skewed", 1000, 3.0): (0.9, 0.1, 0.0),
        ("gamma", "skewed", 10_000, 3.0): (0.4, 0.1, 0.0),
        ("ordinal", "skewed", 1000, 1.0): (-0.4, 0.1, 0.2),
    }
    assert broken(found) == [
        "gamma, skewed, n 1000, epsilon 1: -0.400 is worse than the constant",
        "gamma, skewed, n 10000, epsilon 3: 0.400 is worse than n 1000, epsilon 3: 0.900",
    ]
