"""What an evaluation sums over held-out records, and how far one record moves the sums.

Every record has a vector, a function of itself, the model and public numbers. Of two classes, with
p the predicted risk, b its bin of centre c_b and half width h_b, and l the log loss cut to L,

    e_{y, b},  (p - c_b) / (4 h_b) e_b,  ((p - y)^2 - 1/2) / 2,  l / L - 1/2.

Two records in different bins differ by sqrt(2 + 2 / 16) at most in the first two, in one bin with
different labels by sqrt(2 + 1/4), and by 1/2 and 1 in the others: together by sqrt(3.5). The norm
of one vector is at most sqrt(1 + 1/16 + 1/16 + 1/4). Of several classes, y says above whether the
likeliest class is right, p is its probability, half of the Brier score takes the place of
(p - y)^2, and the place of (class, likeliest class) is counted as well, which adds 2 to the square
of the distance, and 1 to that of the norm.

Of real targets, with r and y the residual and the target less the middle of the bounds, over half
of their distance T and cut to +-1,

    r / 2,  r^2 - 1/2,  y / 2,  y^2 - 1/2.

With d = |r - r'|, |r^2 - r'^2| <= d (2 - d), and (d / 2)^2 + d^2 (2 - d)^2 <= 1.29: together
sqrt(2.58). r^4 - 3 r^2 / 4 + 1/4 <= 1/2, so that the norm is at most 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpkern._typing import FloatArray, IntArray
from dpkern.privacy.mechanisms.channel import Channel
from dpkern.privacy.mechanisms.gaussian_sum import GaussianSum, Vectors

#: Losses are cut to it: a risk of 0.0025 of what happens.
LARGEST_LOG_LOSS = 6.0
WHAT = "sums of an evaluation"
#: Norms are enlarged, so that a vector is never scaled, whatever its rounding.
LARGER = 1.0 + 2.0**-20


@dataclass(frozen=True)
class Sums:
    """Vectors of records, of norm at most `clip`, two of which differ by at most `distance`."""

    vectors: Vectors
    dim: int
    clip: float
    distance: float
    what: str = WHAT

    def release(
        self,
        channel: Channel,
        offsets: Sequence[int],
        sizes: Sequence[int],
        mu: float,
        n_threads: int | None = None,
        blocks: Iterable[tuple[Vectors, int]] | None = None,
    ) -> tuple[FloatArray, float]:
        """Release the sums (dim,) of all records with the budget mu; return them and their std.

        The records are those of `vectors`, in the silos of these offsets, or of blocks: vectors,
        and numbers of records. `sizes` are public numbers of records, of all silos together, or of
        each where it sends a message. The sensitivity is `distance`, of vectors rounded to the
        grid, or `clip` where a record is added or removed.
        """
        root = math.sqrt(self.dim) * (1.0 + 2.0**-40)
        mechanism = GaussianSum(
            channel,
            what=self.what,
            clip=self.clip,
            dim=self.dim,
            sizes=sizes,
            mu=mu,
            replaced=None if channel.add_remove else lambda q: self.distance + 2.0 * q * root,
        )
        if blocks is None:
            exact = mechanism.sums(self.vectors, offsets, n_threads)
        else:
            exact = mechanism.sums_of_parts(blocks, n_threads)
        released = mechanism.release(exact).reshape(-1, self.dim)
        return released.sum(axis=0), math.hypot(*mechanism.sigma.tolist())


def edges_of(bins: int, threshold: float) -> FloatArray:
    """Return the edges of bins of risks, the threshold among them.

    They are sin^2 of equal angles: narrower near 0 and 1, where a difference matters more.
    """
    edges = np.sin(np.linspace(0.0, 0.5 * math.pi, bins + 1)) ** 2
    edges[-1] = 1.0
    nearest = int(np.argmin(np.abs(edges - threshold)))
    if 0 < nearest < bins and abs(edges[nearest] - threshold) < 0.25 / bins**2:
        edges[nearest] = threshold
        return edges
    return np.sort(np.append(edges, threshold))


def of_two_classes(risks: FloatArray, positive: IntArray, edges: FloatArray) -> Sums:
    """Return the sums for risks (n,) of a positive class, and labels 0 and 1."""

    def vectors(rows: slice) -> FloatArray:
        p, y = risks[rows], positive[rows]
        losses = np.where(y == 1, p, 1.0 - p)
        return _binned(p, y, edges, (p - y) ** 2, losses)

    return Sums(vectors, 3 * _bins(edges) + 2, math.sqrt(1.375) * LARGER, math.sqrt(3.5))


def of_several_classes(probabilities: FloatArray, labels: IntArray, edges: FloatArray) -> Sums:
    """Return the sums for probabilities (n, K) of classes, and labels 0 to K - 1."""
    K = probabilities.shape[1]

    def vectors(rows: slice) -> FloatArray:
        P, y = probabilities[rows], labels[rows]
        place, likeliest = np.arange(len(P)), P.argmax(axis=1)
        of_label = P[place, y]
        brier = 0.5 * ((P**2).sum(axis=1) - 2.0 * of_label + 1.0)
        right = (likeliest == y).astype(np.int64)
        binned = _binned(P[place, likeliest], right, edges, brier, of_label)
        counted = np.zeros((len(P), K * K))
        counted[place, y * K + likeliest] = 1.0
        return np.hstack([binned, counted])

    dim = 3 * _bins(edges) + 2 + K * K
    return Sums(vectors, dim, math.sqrt(2.375) * LARGER, math.sqrt(5.5))


def of_targets(predicted: FloatArray, y: FloatArray, middle: float, bound: float) -> Sums:
    """Return the sums for predicted and true targets (n,), within `bound` of the middle."""

    def vectors(rows: slice) -> FloatArray:
        target = _cut((y[rows] - middle) / bound)
        r = _cut(target - _cut((predicted[rows] - middle) / bound))
        return np.column_stack([0.5 * r, r * r - 0.5, 0.5 * target, target * target - 0.5])

    return Sums(vectors, 4, LARGER, math.sqrt(2.58))


def _binned(
    p: FloatArray, y: IntArray, edges: FloatArray, brier: FloatArray, of_label: FloatArray
) -> FloatArray:
    """Return the vectors for risks, 0 or 1, scores from 0 to 1 and probabilities of the labels."""
    B, place = _bins(edges), np.arange(len(p))
    b = np.searchsorted(edges[1:-1], p, side="right")
    half = 0.5 * np.diff(edges)
    V = np.zeros((len(p), 3 * B + 2))
    V[place, y * B + b] = 1.0
    V[place, 2 * B + b] = 0.25 * _cut((p - edges[:-1][b] - half[b]) / half[b])
    V[:, -2] = 0.5 * (np.clip(brier, 0.0, 1.0) - 0.5)
    losses = -np.log(np.clip(of_label, math.exp(-LARGEST_LOG_LOSS), 1.0))
    V[:, -1] = losses / LARGEST_LOG_LOSS - 0.5
    return V


def _bins(edges: FloatArray) -> int:
    return len(edges) - 1


def _cut(values: FloatArray) -> FloatArray:
    return np.clip(values, -1.0, 1.0)
