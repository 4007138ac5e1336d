"""The Gaussian mechanism on concordant pairs, for the area under the ROC curve.

With n records, n a public number, let s_i be scores, each a function of its record, and

    S = sum over positive i and negative j of sign(s_i - s_j),    n_1 the number of positives,

so that the area, with ties counted half, is 1/2 + S / (2 n_1 (n - n_1)). Let one record be replaced
and N_1 + N_0 = n - 1 be the others, positive and negative. If it keeps its label, its signs sum to
a number within +-N_0, or +-N_1, before and after: S moves by at most 2 (n - 1), and n_1 does not.
If its label changes, S moves by at most N_0 + N_1 = n - 1, and n_1 by one. So the pair (S, k n_1),
k = floor(sqrt(3) (n - 1)), moves by at most

    max(2 (n - 1), sqrt((n - 1)^2 + k^2)) <= 2 (n - 1)

in l2 norm, and the number of positives costs nothing beside S.

Of times to events let (s, c) of a pair of people be (1, 1) if the earlier time is that of an event
and belongs to the higher risk, (-1, 1) if to the lower, (0, 1) if risks are equal, and (0, 0) if
the pair is not comparable. Replacing a person changes n - 1 pairs, and each of (s, k c) by at most
max(2, sqrt(1 + k^2)) = 2 for k = 55 / 32, so that (S, k D), the sums over pairs, moves by at most
2 (n - 1) too, and D costs nothing beside S.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum

WHAT = "concordant less discordant pairs, and positives"
COMPARABLE = "concordant less discordant pairs, and comparable ones"
#: Pairs of more records have sums beyond exact doubles.
MOST_RECORDS = 1 << 25
# Whole numbers are multiples of it, and such numbers of _COMPARABLE.
_FINEST = 2.0**-8
_COMPARABLE = 55.0 / 32.0


def count_pairs(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> int:
    """Return the number of concordant pairs of scores (n,) less that of discordant ones."""
    above, below = scores[positive], np.sort(scores[~positive])
    smaller = np.searchsorted(below, above, side="left").sum(dtype=np.int64)
    larger = len(below) * len(above) - np.searchsorted(below, above, side="right").sum(
        dtype=np.int64
    )
    return int(smaller - larger)


def release_pairs(
    channel: Channel,
    scores: NDArray[np.float64],
    positive: NDArray[np.bool_],
    mu: float,
    what: str = WHAT,
) -> tuple[float, float, float, float]:
    """Release (S, n_1) of scores (n,) with the budget mu; return them and the stds of their noise.

    Neighbours must differ in a record that is replaced, and 2 <= n <= 2^25. Sensitivity: 2 (n - 1)
    of (S, k n_1), rounding to the grid aside.
    """
    n, positives = len(scores), int(np.count_nonzero(positive))
    k = math.isqrt(3 * max(n - 1, 0) ** 2)
    return _release(channel, (count_pairs(scores, positive), positives), k, n, mu, what)


def release_comparable(
    channel: Channel, pairs: tuple[int, int], n: int, mu: float
) -> tuple[float, float, float, float]:
    """Release (S, D) of n people with the budget mu, as `release_pairs` does (S, n_1)."""
    return _release(channel, pairs, _COMPARABLE, n, mu, COMPARABLE)


def _release(
    channel: Channel, pair: tuple[int, int], k: float, n: int, mu: float, what: str
) -> tuple[float, float, float, float]:
    """Release (a, k b) of the sensitivity 2 (n - 1), as a and b with their stds."""
    if channel.add_remove:
        raise ValueError(
            "neighbours must be 'replace_one': pairs are of a public number of records"
        )
    if not 2 <= n <= MOST_RECORDS:
        raise ValueError(f"the number of records must be from 2 to {MOST_RECORDS}, got {n}")
    mechanism = GaussianSum(
        channel, what=what, clip=float(n - 1), dim=2, sizes=(2 * n,), mu=mu, finest=_FINEST
    )
    assert mechanism.grid is not None
    grid = float(mechanism.grid[0])
    exact = np.array([pair[0], k * pair[1]], dtype=float)
    released = mechanism.release(np.rint(exact / grid) * grid)
    std = float(mechanism.sigma[0])
    return float(released[0]), float(released[1]) / k, std, std / k
