"""Grids of sums and of their noise, chosen from public numbers, and operations on grids."""

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from dpkern._numbers import count, positive
from dpkern._typing import FloatArray
from dpkern.kernels.grids import hessian_row_grid, on_grid
from dpkern.privacy.guarantees.rounding import (
    ceil_log2_of_multiple,
    floor_log2,
    floor_log2_of_part,
    floor_log2_of_ratio,
    ratio_up,
)

#: Least exponents of a grid, with their reasons in words.
Needs: TypeAlias = list[tuple[int, Callable[[], str]]]
_NOISE = "the noise, sigma = {!r}, must stay below 2^32 grid steps"

_LEAST_EXPONENT, _LARGEST_EXPONENT = -400, 400

# Sums of up to 2^52 grid steps plus noise stay below 2^53 steps, and so are exact doubles.
_LARGEST_STEPS = 2.0**52

# Bound on the number of records where it is not public, for which sums on a grid of clip 2^-31 or
# more fit into 64-bit integers.
MAX_RECORDS = 1 << 31

# Sums of up to so many times the public number of records do not saturate.
_PUBLIC_SIZE_FACTOR = 2


def choose_grid(
    *, n: int, clip: float, dim: int, sigma: float | None = None, neighbours: str = "replace_one"
) -> float:
    """Choose the grid q of a sum of n records of norm `clip` = C from public numbers.

    With noise it is the coarsest with q sqrt(d) <= C 2^-12 and n q <= sigma 2^-9, made coarser
    where max(n, 2) C <= 2^52 q or sigma <= 2^32 q require it; without noise the finest with
    max(n, 2) C <= 2^52 q. With "add_remove" n is a public number instead of the true one; the
    condition is 2 n C <= 2^52 q and, so that sums of any number of records below 2^31 fit into
    64-bit integers, C <= 2^31 q.
    """
    n, dim, adding = count("n", n), count("dim", dim), neighbours == "add_remove"
    clip = positive("clip", clip)
    most = max(n * (_PUBLIC_SIZE_FACTOR if adding else 1), 2)
    needs: Needs = [
        (
            ceil_log2_of_multiple(most, clip) - 52,
            lambda: f"the sum of n = {n} records of norm up to clip = {clip!r} must be exact",
        )
    ]
    if adding:
        needs.append(
            (
                ceil_log2_of_multiple(1, clip) - floor_log2(Fraction(MAX_RECORDS)),
                lambda: (
                    f"any number of records of norm up to clip = {clip!r} must have an exact sum"
                ),
            )
        )
    return _coarsest("clip", clip, dim, n, sigma, needs)


def choose_grids(
    sizes: Iterable[int], *, clip: float, dim: int, sigma: float | None, neighbours: str
) -> dict[int, float]:
    """Return `choose_grid` for sums of so many records each, of one clip norm and one noise.

    It depends on n by the magnitudes of n C and sigma / n alone. Both are monotone in n, so that
    all numbers between two with the same ones have the same grid.
    """
    ordered, found = sorted(set(sizes)), {}
    clip, std = positive("clip", clip), sigma or 1.0

    def magnitudes(n: int) -> tuple[int, int]:
        return ceil_log2_of_multiple(n, clip), floor_log2_of_part(std, n)

    parts = [(0, len(ordered))]
    while parts:
        i, j = parts.pop()
        n, last = ordered[i], ordered[j - 1]
        if n == last or (n > 1 and magnitudes(n) == magnitudes(last)):
            q = choose_grid(n=n, clip=clip, dim=dim, sigma=sigma, neighbours=neighbours)
            found.update(dict.fromkeys(ordered[i:j], q))
        else:
            parts += [((i + j) // 2, j), (i, (i + j) // 2)]
    return found


def choose_message_grid(
    *, sensitivity: float, sigma: float, bound: float, dim: int, messages: int = 1
) -> float:
    """Choose the grid q of a sum of m noisy messages from public numbers.

    It is the coarsest with q sqrt(d) <= D_v 2^-12 and m q <= sigma 2^-9, made coarser where
    sigma <= 2^32 q or bound <= 2^50 q / m require it, for messages of sensitivity D_v before
    rounding with coordinates up to `bound`.
    """
    needs: Needs = []
    if bound > 0.0:
        needs.append(
            (
                ceil_log2_of_multiple(messages, positive("bound", bound)) - 50,
                lambda: f"a message with coordinates up to bound = {bound!r} must be held",
            )
        )
    return _coarsest("sensitivity", sensitivity, dim, messages, sigma, needs)


def choose_hessian_grid(*, n: int, hess_clip: float, dim: int, sigma: float) -> float:
    """Choose the grid q of a noisy sum of Hessians of norm `hess_clip` = B from public numbers.

    It is the coarsest with q d <= B 2^-10 and q <= sigma 2^-9, made coarser where sigma <= 2^32 q
    or q >= q_h^2 require it, q_h the grid of the kernel's rows (n ceil(B / q_h^2) <= 2^52, so that
    the sum is exact); n is the number of records of all silos, or the kernel's `records`.
    """
    norm = positive("hess_clip", hess_clip)
    rows = Fraction(hessian_row_grid(n, hess_clip, dim))
    needs: Needs = [
        (floor_log2(rows**2), lambda: f"the sum of n = {n} Hessians must be exact"),
    ]
    return _coarsest("hess_clip", norm, dim**2, 1, sigma, needs, slack=10)


def _coarsest(
    name: str,
    norm: float,
    dim: int,
    n: int,
    sigma: float | None,
    needs: Needs,
    *,
    slack: int = 12,
) -> float:
    """Return the coarsest power of two q with q sqrt(dim) <= norm 2^-slack, n q <= sigma 2^-9.

    It is made coarser where `needs` (minimal exponents with their reasons), sigma <= 2^32 q or
    q >= 2^-400 require it; without noise it is the finest that satisfies these. All comparisons are
    exact, by ratios of whole numbers, as there is a grid for every silo and round. No grid serves
    above 2^400, or if rounding `dim` coordinates may change more than norm / 32; the message names
    the cause, `name` being the caller's name of `norm`.
    """
    needs = [*needs, (_LEAST_EXPONENT, lambda: f"a grid is at least 2^{_LEAST_EXPONENT}")]
    numerator, denominator = norm.as_integer_ratio()
    exponent, square = _LEAST_EXPONENT, floor_log2_of_ratio(numerator**2, denominator**2 * dim)
    if sigma is not None:
        sigma = positive("sigma", sigma)
        needs.append((ceil_log2_of_multiple(1, sigma) - 32, lambda: _NOISE.format(sigma)))
        least = floor_log2_of_part(sigma, n)
        exponent = min(square // 2 - slack, least - 9, _LARGEST_EXPONENT)
    exponent = max(exponent, *(needed for needed, _ in needs))
    if exponent <= _LARGEST_EXPONENT and 2 * exponent <= square - 10:
        return math.ldexp(1.0, exponent)
    _, reason = max(needs, key=lambda need: need[0])
    if exponent > _LARGEST_EXPONENT:
        raise ValueError(
            f"no grid serves: {reason()}, which asks for 2^{exponent}, "
            f"and the coarsest is 2^{_LARGEST_EXPONENT}"
        )
    raise ValueError(
        f"no grid serves: {reason()}, which asks for 2^{exponent}, and rounding dim = {dim} "
        f"coordinates to it would exceed {name}/32, {name} = {float(norm)!r}"
    )


def grid_records(n: int) -> int:
    """Return the number of records for the grid of a Hessian's rows, for a public number n.

    It is at least 2^20, so that sums of any number of records below 2^31 are exact in the kernel,
    whose capacity is 2^11 times this number (`kernels.glm_hessian`).
    """
    return max(2 * n, MAX_RECORDS >> 11)


def total_on_grid(sums: FloatArray, grid: float) -> FloatArray:
    """Return the exact sum over silos, saturated at 2^52 steps of their common grid.

    A silo's sum, within 2^52 steps, is first clamped to 2^62 / m steps, which prevents overflow and
    changes nothing for up to 1024 silos. Both clamps are nonexpansive, so that the sensitivity of a
    silo's sum is also one of the total, for any number of records.
    """
    most = min(_LARGEST_STEPS, 2.0**62 / len(sums))
    steps = np.clip(sums / grid, -most, most).astype(np.int64).sum(axis=0)
    return np.clip(steps, -_LARGEST_STEPS, _LARGEST_STEPS) * grid


def require_sums(
    total: object, shapes: Sequence[tuple[int, ...]], grid: float | FloatArray | None
) -> FloatArray:
    """Return the sums in the first of the accepted shapes, or raise without showing an entry.

    Every entry must be a multiple of the grid, one for all sums or one for each, within 2^52 steps:
    noise on a coarser grid than the sum's would reveal the low bits of the sum.
    """
    if not isinstance(total, np.ndarray) or total.dtype != np.float64:
        raise TypeError(f"total must be a float64 array, got {type(total).__name__}")
    if total.shape not in shapes:
        raise ValueError(
            f"total must have shape {' or '.join(map(str, shapes))}, got {total.shape}"
        )
    sums = total.reshape(shapes[0])
    if grid is not None and not on_grid(sums, grid):
        raise ValueError(
            "total must hold finite multiples of the mechanism's grid within 2^52 steps, got an "
            "entry off this grid: compute the sum with grid=mechanism.grid"
        )
    return sums


def round_to_grid(values: FloatArray, grid: FloatArray, steps: float) -> FloatArray:
    """Return round_q(clamp(v)), with 0 for NaN; it never raises, whatever the records are."""
    with np.errstate(all="ignore"):  # a warning would depend on the records
        clamped = np.clip(values / grid, -steps, steps)
    return np.rint(np.where(np.isnan(clamped), 0.0, clamped)) * grid


def noise_std(sensitivity: Fraction | float, mu: float) -> float:
    """Return sensitivity / mu, rounded up; raise ValueError where that exceeds every double."""
    (n, d), (p, q) = sensitivity.as_integer_ratio(), positive("mu", mu).as_integer_ratio()
    std = ratio_up(n * q, d * p)
    if std == math.inf:
        raise ValueError(f"mu must be so large that the noise is a double, got {mu!r}: too small")
    return std
