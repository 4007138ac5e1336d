"""Choice and validation of grids, the powers of two of which exact sums and noise are multiples."""

import functools
import math
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from dpkern import _core
from dpkern.kernels._arguments import FloatArray, IntArray, aligned, per_silo, real_array


@functools.lru_cache(maxsize=256)
def finest_grid(n: int, clip: float, name: str = "clip") -> float:
    """Return the finest power of two q with max(n, 2) C <= 2^52 q, within 2^-400 .. 2^400.

    Sums of n vectors of norm C are exact in doubles on it, and on every coarser one.
    """
    mantissa, exponent = math.frexp(clip)
    numerator = max(n, 2) * int(mantissa * 2.0**53)
    # Smallest e with numerator 2^(exponent - 53) <= 2^(52 + e): a ceiling of log2, in integers.
    e = (numerator - 1).bit_length() + exponent - 53 - 52
    if e > 400:
        raise ValueError(f"{name} must be at most 2^452 / max(n, 2), got {clip!r}")
    return math.ldexp(1.0, max(e, -400))


def hessian_row_grid(n: int, hess_clip: float, dim: int) -> float:
    """Return the finest power of two q with n ceil(B / q^2) <= 2^52, within 2^-200 .. 2^200.

    Sums of n outer products q^2 k k^T of integer vectors k with |q k|^2 <= B are exact in doubles,
    on the grid q^2.

    Raises
    ------
    ValueError
        When q sqrt(d) > sqrt(B) / 32, for which rounding would change a row too much, or q would
        exceed 2^200.
    """
    return _factor_grid("hess_clip", n, hess_clip, dim)


def mlp_factor_grid(n: int, clip: float, sizes: Sequence[int], *, points: int = 1) -> float:
    """Return the power of two q to which an MLP's factors are rounded; q^2 is the grid of sums.

    It is for layers of n_0, ..., n_L = ``sizes`` and n records, and for `mlp_gradient` (``points``
    = 1) or `mlp_difference` (2).

    Raises
    ------
    ValueError
        When q would be outside 2^-200 .. 2^200, or too coarse for a record: q sqrt(n_l + 1) above
        sqrt(clip) / 32 for a layer, or q sqrt(8 clip) R above clip / 32 for a difference.
    """
    dim = max(sizes) + 1
    if points == 1:
        return _factor_grid("clip", n, clip, dim)
    fourth = sum(
        (math.sqrt(out) + math.sqrt(inputs + 1)) ** 4 for inputs, out in pairwise(sizes[1:])
    )
    dim = max(dim, math.ceil(32.0 * math.sqrt(fourth)))
    return _factor_grid("4 * clip", n, min(4.0 * clip, sys.float_info.max), dim)


def _factor_grid(name: str, n: int, bound: float, dim: int) -> float:
    clip, exponent = Fraction(bound), -200
    if n <= 1 << 52:
        # The least e with B <= 4^e floor(2^52 / n): half of a ceiling of log2, in integers.
        ratio = clip / ((1 << 52) // n)
        log2 = ratio.numerator.bit_length() - ratio.denominator.bit_length()
        log2 += ratio > Fraction(2) ** log2
        exponent = max(-(-log2 // 2), -200)
    q = Fraction(2) ** exponent
    if n > 1 << 52 or exponent > 200 or q * q * dim * 1024 > clip:
        raise ValueError(
            f"{name} must leave room for an exact sum over n = {n} records of d = {dim} "
            f"coordinates, got {bound!r}: rows would be rounded to a power of two q between 2^-200 "
            f"and 2^200 with n ceil({name} / q^2) <= 2^52 and q sqrt(d) <= sqrt({name}) / 32"
        )
    return float(q)


def on_grid(sums: FloatArray, grid: float | FloatArray) -> bool:
    """Return whether sums (k, ...) are multiples of their grid, one or (k,), within 2^52 steps."""
    grids = np.full(len(sums), grid) if isinstance(grid, float) else aligned(grid)
    return _core.on_grid(aligned(sums).reshape(len(sums), -1), grids)


def sum_grids(
    grid: ArrayLike | None, *, offsets: IntArray, dim: int, clip: float, saturate: bool = False
) -> FloatArray | None:
    """Return the grid of every silo's sum of vectors of norm `clip`; None for floating-point sums.

    A silo's own sum must be exact, which depends on its own number of records. A sum over silos
    needs max(N, 2) C <= 2^52 q on a common grid, which the default and mechanisms satisfy.
    """
    if math.isinf(clip):
        _require_bound(grid, "clip")
        return None
    m, n, root = len(offsets) - 1, int(offsets[-1]), math.sqrt(dim)
    if grid is None:
        q = finest_grid(n, clip)
        _require_exact(q, n, "clip", clip, root, saturate)
        return per_silo("grid", q, m)
    grids = per_silo("grid", grid, m)
    # There are few distinct pairs, for which Python numbers are faster than NumPy's.
    sizes = offsets[1:] - offsets[:-1]
    for q, n in set(zip(grids.tolist(), sizes.tolist(), strict=True)):
        _require_exact(q, n, "clip", clip, root, saturate)
    return grids


def candidate_grids(
    grid: ArrayLike | None, *, offsets: IntArray, bounds: FloatArray, saturate: bool = False
) -> FloatArray:
    """Return the grids (m, k) of the sums of candidates whose terms have the bounds (m, k)."""
    if grid is None:
        n = int(offsets[-1])
        finest = {b: finest_grid(n, b, "bound") for b in set(bounds.ravel().tolist())}
        grids = np.array([[finest[b] for b in row] for row in bounds.tolist()])
    else:
        m, k = bounds.shape
        grids = np.broadcast_to(real_array("grid", grid, (), (k,), (m, k)), (m, k)).copy()
    for n, own, limits in zip(np.diff(offsets).tolist(), grids, bounds, strict=True):
        for q, b in zip(own.tolist(), limits.tolist(), strict=True):
            _require_exact(q, n, "bound", b, 1.0, saturate)
    return grids


# Rounds have the same few grids, and a check takes as long as the noise of a round.
@functools.lru_cache(maxsize=256)
def _require_exact(q: float, n: int, name: str, bound: float, root: float, saturate: bool) -> None:
    """Raise if a sum of n vectors of `root`^2 coordinates would not be exact on a grid.

    A single record must stay within 2^51 steps (gridsum.h), and a sum that saturates afterwards
    within 2^62, which fits into 64-bit integers.
    """
    _require_power(q)
    # Both tests have one rounding, which is monotonic: they accept every valid grid, and others
    # only within one rounding error. Exactness needs 2^53, and the inner clip bound a positive C',
    # so that both bounds have this margin.
    if max(n / 1024 if saturate else n, 2) * bound > 2.0**52 * q:
        raise ValueError(
            f"grid must be at least {name} max(n, 2) / 2^52, n the number of a silo's records, got "
            f"{q!r} with {name} = {bound!r}"
        )
    if q * root > bound / 32.0:
        raise ValueError(f"grid must be at most {name} / {32.0 * root:g}, got {q!r}")


def product_grids(
    name: str, bound: float, grid: ArrayLike | None, m: int, choose: Callable[[], float]
) -> tuple[float, FloatArray | None]:
    """Return the step q of integer-valued factors and the grids of the sums of their products.

    A step of 0 means floating-point sums, and None the grid q^2, on which, as on coarser ones, the
    sum over all silos is exact, too.
    """
    if math.isinf(bound):
        _require_bound(grid, name)
        return 0.0, None
    q = choose()
    if grid is None:
        return q, None
    grids = per_silo("grid", grid, m)
    for step in set(grids.tolist()):
        _require_power(step)
        if step < q * q:
            raise ValueError(f"grid must be at least {q * q} with {name} = {bound!r}, got {step}")
    return q, grids


def saturated(sums: FloatArray, grids: FloatArray) -> FloatArray:
    """Clamp sums to 2^52 steps in place; sums above 2^53 steps were rounded before."""
    most = 2.0**52 * grids
    return np.clip(sums, -most, most, out=sums)


def noise_scale(sigma: ArrayLike, grid: ArrayLike | None, m: int) -> tuple[FloatArray, FloatArray]:
    """Return validated `sigma` and grid of every row."""
    sigmas = per_silo("sigma", sigma, m)
    if grid is None:
        grids = np.array([_fine_step(s) for s in sigmas.tolist()])
    else:
        grids = per_silo("grid", grid, m)
    pairs = list(zip(sigmas.tolist(), grids.tolist(), strict=True))
    for s, q in pairs if len(pairs) == 1 else set(pairs):
        if not 0.0 <= s < math.inf:
            raise ValueError(f"sigma must be finite and at least 0, got {s!r}")
        _require_power(q, "grid" if grid is not None else "sigma / 2^26, rounded up to one,")
        if s > 2.0**32 * q:
            raise ValueError(f"sigma must be at most 2^32 grid, got {s!r} with grid = {q!r}")
    return sigmas, grids


def added_noise(sigma: ArrayLike, grids: FloatArray | None, m: int) -> FloatArray:
    """Return the validated `sigma` of noise on sums, which have grids where the clip is finite."""
    if grids is None:
        raise ValueError("sigma must be None where clip is infinite, got one")
    return noise_scale(sigma, grids, m)[0]


def _fine_step(sigma: float) -> float:
    """Return the power of two q with 2^25 < sigma / q <= 2^26; 1 without noise."""
    if not 0.0 < sigma < math.inf:
        return 1.0
    # sigma = f 2^e, 1/2 <= f < 1; the smallest power of two >= sigma is 2^(e - (f == 1/2)).
    fraction, exponent = math.frexp(sigma)
    return math.ldexp(1.0, exponent - (fraction == 0.5) - 26)


def _require_bound(grid: ArrayLike | None, name: str) -> None:
    if grid is not None:
        raise ValueError(
            f"grid must be None where {name} is infinite, got one: unbounded sums are not exact"
        )


@functools.lru_cache(maxsize=256)
def _require_power(q: float, name: str = "grid") -> None:
    if not (2.0**-400 <= q <= 2.0**400 and math.frexp(q)[0] == 0.5):
        raise ValueError(f"{name} must be a power of two between 2^-400 and 2^400, got {q!r}")
