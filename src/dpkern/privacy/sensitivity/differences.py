"""The sensitivity of sums of differences of clipped gradients of a convex loss.

The clipped loss of a record is convex and as smooth as the loss, beta = phi''max R^2. So its
gradients are co-coercive: the difference v of two, at public points a distance u apart, has
|v|^2 <= beta <v, u>, and lies in the ball of diameter b = beta |u| around beta u / 2. It is also
clipped to C_r. Replacing a record moves the sum by the diameter of what the two balls have in
common,

    b  where b <= sqrt(2) C_r,    else 2 C_r sqrt(1 - (C_r / b)^2),

which is less than 2 C_r. docs/proofs/differences.md proves it, and the terms of rounding below.
"""

import math
from dataclasses import dataclass

#: Of the certificate, where the bound is used.
COCOERCIVE = (
    "a record's difference of gradients lies in a ball of diameter beta |dw|, by co-coercivity of "
    "the convex loss, which the sums enforce; beta rests on the declared row bound"
)

# Within these magnitudes, what underflows is covered by the slack.
_LARGEST, _LARGEST_DIM = 2.0**100, 1 << 28
# Of the roundings in proportion to b: of norms, of products, of factors as floats.
_SLACK = 1.0 + 2.0**-19


@dataclass(frozen=True)
class ConvexDifferences:
    """Differences of a convex loss's gradients, each clipped to `clip`, between two public points.

    `diameter` is b >= beta |u|, at least 2^-20 times the clip norm of gradients; `reach` is a bound
    of beta (|w| + |w'|), of which rounding the margins takes a part.
    """

    clip: float
    diameter: float
    reach: float
    dim: int

    def sensitivity(self, grid: float) -> float:
        """Return the sensitivity, rounded up, of the sum of rounded vectors on the grid."""
        rounding = 0.5 * grid * math.sqrt(self.dim) + self.reach * (self.dim + 16) * 2.0**-52
        radius = (0.5 * self.diameter + rounding) * _SLACK
        return min(2.0 * self.clip, common_diameter(self.clip, 0.5 * self.diameter, radius))


def common_diameter(clip: float, centre: float, radius: float) -> float:
    """Return the diameter of what two balls have in common, rounded up, for centre <= radius.

    One has the radius `clip` around 0, the other `radius` around a point so far from 0 as `centre`.
    """
    # Where the plane through the intersection of the spheres is.
    plane = (clip * clip - (radius - centre) * (radius + centre)) / (2.0 * centre)
    half = radius if plane >= centre else clip if plane <= 0.0 else math.sqrt(clip**2 - plane**2)
    return 2.0 * half * (1.0 + 2.0**-40)


def covered(
    *, clip: float, curvature: float, row_bound: float, reach: float, norms: float, dim: int
) -> bool:
    """Return whether the proof covers these public numbers.

    `clip` is that of gradients, `curvature` phi''max, and `norms` the sum of the norms of the two
    points.
    """
    numbers = (curvature, row_bound, reach, norms, clip, 1.0 / clip)
    return dim <= _LARGEST_DIM and all(number <= _LARGEST for number in numbers)  # NaN is not
