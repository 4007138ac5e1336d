"""The recursions behind the sensitivity of hidden local steps, each an upper bound.

Steps of size eta_t on an objective with curvature between low and high change a distance by the
factor c_t = max(|1 - eta_t low|, |1 - eta_t high|) at most (`dpkern.privacy.local_runs`).
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from dpkern.privacy._exact import round_down, round_up, sqrt_up


def propagate(
    step_sizes: Sequence[float], low: Fraction, high: Fraction
) -> tuple[Fraction, Fraction, Fraction]:
    """Return (E_K, F_K, max_t c_t), each an upper bound.

    E <- c_t E + eta_t accumulates errors that are proportional to the step sizes, F <- c_t F + 1
    errors of constant size. Both are rounded up to a double after each step.
    """
    E = F = largest = Fraction(0)
    for step in step_sizes:
        eta, c = Fraction(step), expansion(step, low, high)
        e, f = round_up(c * E + eta), round_up(c * F + 1)
        E, F, largest = Fraction(_finite(e)), Fraction(_finite(f)), max(largest, c)
    return E, F, largest


def _finite(value: float) -> float:
    if value == math.inf:
        raise ValueError(
            "step_size or local_steps must be smaller, got a record's influence on the hidden "
            "local steps that exceeds every double"
        )
    return value


def expansion(step_size: float, low: Fraction, high: Fraction) -> Fraction:
    """Return c_t = max(|1 - eta low|, |1 - eta high|) exactly."""
    return max(abs(1 - Fraction(step_size) * low), abs(1 - Fraction(step_size) * high))


def propagate_batches(
    step_sizes: Sequence[float], low: Fraction, high: Fraction, *, n: int, batch: int
) -> Fraction:
    """Return an upper bound over records of the sum of eta_t prod_{u > t} c_u over their steps t.

    Step t uses the positions t b .. t b + b - 1 of an order of n records, modulo n; b <= n. The
    bound does not depend on the position of the first step. Products are rounded up to doubles.
    """
    # Differences of the sum between adjacent positions, where a batch begins or ends.
    changes: dict[int, Fraction] = defaultdict(Fraction)
    product = Fraction(1)
    for t, step in reversed(list(enumerate(step_sizes))):
        share = Fraction(_finite(round_up(Fraction(step) * product)))
        product = Fraction(_finite(round_up(expansion(step, low, high) * product)))
        first, end = t * batch % n, t * batch % n + batch
        changes[first] += share
        if end >= n:
            changes[0] += share
        changes[end % n] -= share
    return max(accumulate(changes[position] for position in sorted(changes)))


def last_iterate_factor(c: Fraction, steps: int) -> float:
    """Return sqrt((1 - c^K) / (1 + c^K) (1 + c) / (1 - c)), rounded up, for 0 <= c < 1.

    A run of K noisy steps, of which only the last iterate is seen, has this factor times the mu of
    one step (Bok, Su, Altschuler 2024, "Shifted interpolation for differential privacy").
    """
    c = Fraction(round_up(c))
    if c >= 1:
        raise ValueError(
            "accounting must be 'last_iterate' only with local steps that contract, got others: it "
            "takes a penalty on every coordinate and a step_size below 2 / (largest curvature)"
        )
    power, base, exponent = Fraction(1), c, steps
    while exponent:  # c^K rounded down, since the factor decreases in c^K
        if exponent & 1:
            power = Fraction(round_down(power * base))
        base = Fraction(round_down(base * base))
        exponent >>= 1
    return sqrt_up((1 - power) / (1 + power) * (1 + c) / (1 - c))
