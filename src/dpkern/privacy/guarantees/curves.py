"""Curves of a guarantee: epsilon over delta, and the trade-off of errors."""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from dpkern.privacy.certificate.certificate import Certificate

Points = list[tuple[float, float]]
_DELTAS = np.logspace(-2.0, -12.0, 41)
# Lines (epsilon, delta) of which the trade-off curve is the upper envelope.
_LINES = 49
_ERRORS = np.linspace(0.0, 1.0, 401)


def epsilon_curve(certificate: "Certificate") -> Points:
    """Return (delta, epsilon) for delta from 1e-2 to 1e-12, where epsilon is finite."""
    points = [(delta, certificate.epsilon(delta)) for delta in _DELTAS.tolist()]
    return [(delta, epsilon) for delta, epsilon in points if math.isfinite(epsilon)]


def trade_off(certificate: "Certificate") -> Points:
    """Return (a, b): who tells two neighbours apart with false alarms a misses b at least.

    Each (epsilon, delta) gives b >= 1 - delta - e^epsilon a and b >= e^-epsilon (1 - delta - a);
    the curve is the largest of these, a lower bound of the exact one (Dong, Roth, Su 2022).
    """
    misses = _least_misses(certificate, _ERRORS)
    return list(zip(_ERRORS.tolist(), misses.tolist(), strict=True))


def least_misses(certificate: "Certificate", false_alarms: float) -> float:
    """Return `trade_off` at one rate of false alarms."""
    return float(_least_misses(certificate, np.array([false_alarms]))[0])


def _least_misses(
    certificate: "Certificate", false_alarms: NDArray[np.float64]
) -> NDArray[np.float64]:
    finite = [certificate.epsilon(delta) for delta in (1e-2, 1e-4, 1e-6)]
    largest = max((e for e in finite if math.isfinite(e)), default=1.0)
    best: NDArray[np.float64] = np.zeros(false_alarms.shape)
    for epsilon in np.linspace(0.0, largest, _LINES).tolist():
        left = 1.0 - certificate.delta(epsilon)
        steep = left - math.exp(min(epsilon, 700.0)) * false_alarms
        flat = math.exp(-epsilon) * (left - false_alarms)
        best = np.maximum(best, np.maximum(steep, flat))
    return best
