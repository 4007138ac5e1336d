"""The Gaussian mechanism on exact grid sums.

A sum S of clipped records is a multiple of q = 2^e, computed without rounding error, and the noise
Z = round_q(sigma N) is on the same grid. Then S + Z = round_q(S + sigma N): post-processing of the
textbook mechanism on the exact sum, with mu = sensitivity/sigma.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count, positive, real
from dpkern.privacy._exact import (
    floor_log2,
    power_of_two,
    round_up,
    sqrt_down,
    sqrt_up,
)
from dpkern.privacy.ledger import Ledger, Release
from dpkern.stream import NoiseStream

_LEAST_EXPONENT, _LARGEST_EXPONENT = -400, 400

# Sums beyond 2^52 grid steps would leave no room for the noise below 2^53.
_LARGEST_STEPS = 2.0**52

# Data sets whose size is not public hold fewer records than this: their sums then fit into 64-bit
# integers, on a grid of clip 2^-31 or more.
MAX_RECORDS = 1 << 31

# Sums of up to so many times the public number of records stay as they are.
_MARGIN = 2

# Below this many grid steps the rounded shares of several silos no longer add up to one rounded
# Gaussian within the sampler's own error.
_LEAST_SHARE_STEPS = 8.0


def choose_grid(
    *,
    n: int,
    clip: float,
    dim: int,
    sigma: float | None = None,
    neighbours: str = "replace_one",
) -> float:
    """Choose the grid of one release from public numbers.

    Parameters
    ----------
    n : int
        Number of records in the sum, at least 1.
    clip : float
        Bound C on the l2 norm of one record's contribution, finite and above 0.
    dim : int
        Number of coordinates d of the sum, at least 1.
    sigma : float, optional
        Standard deviation of the noise on the sum, finite and above 0; None for no noise.
    neighbours : {"replace_one", "add_remove"}
        With "add_remove" n is not the number of records, but a public number in its place.

    Returns
    -------
    float
        A power of two q, 2^-400 <= q <= 2^400. With noise the coarsest with
        q sqrt(d) <= C 2^-12 and n q <= sigma 2^-9, then made coarser where max(n, 2) C <= 2^52 q or
        sigma <= 2^32 q ask for it; without noise the finest with max(n, 2) C <= 2^52 q. With
        "add_remove" that is 2 n C <= 2^52 q and, so that 64-bit integers hold the sum of any number
        of records below 2^31, C <= 2^31 q. All comparisons are exact.

    Raises
    ------
    TypeError, ValueError
        An argument is out of range, or no grid serves: the magnitudes exceed 2^400, or rounding a
        record to q would eat more than 1/32 of its clip norm; the message names the cause.
    """
    n, dim, adding = count("n", n), count("dim", dim), neighbours == "add_remove"
    exact_clip = Fraction(positive("clip", clip))
    exact_sigma = None if sigma is None else Fraction(positive("sigma", sigma))
    needs = {
        f"the sum of n = {n} records of norm up to clip = {clip!r} must be exact": (
            _ceil_log2(max(n * (_MARGIN if adding else 1), 2) * exact_clip) - 52
        ),
        f"a grid is at least 2^{_LEAST_EXPONENT}": _LEAST_EXPONENT,
    }
    if adding:
        needs[f"any number of records of norm up to clip = {clip!r} must have an exact sum"] = (
            _ceil_log2(exact_clip) - floor_log2(Fraction(MAX_RECORDS))
        )
    exponent = _LEAST_EXPONENT
    if exact_sigma is not None:
        needs[f"the noise, sigma = {sigma!r}, must stay below 2^32 grid steps"] = (
            _ceil_log2(exact_sigma) - 32
        )
        exponent = min(
            floor_log2(exact_clip**2 / (dim << 24)) // 2,
            floor_log2(exact_sigma / (n << 9)),
            _LARGEST_EXPONENT,
        )
    cause = max(needs, key=lambda reason: needs[reason])
    exponent = max(exponent, needs[cause])
    if exponent > _LARGEST_EXPONENT:
        raise ValueError(
            f"no grid serves: {cause}, which asks for 2^{exponent}, "
            f"and the coarsest is 2^{_LARGEST_EXPONENT}"
        )
    grid = power_of_two(exponent)
    if grid**2 * dim * 1024 > exact_clip**2:
        raise ValueError(
            f"no grid serves: {cause}, which asks for 2^{exponent}, and rounding a record of "
            f"dim = {dim} coordinates to it would exceed clip/32, clip = {clip!r}"
        )
    return float(grid)


def _ceil_log2(value: Fraction) -> int:
    return -floor_log2(1 / value)


class GaussianSum:
    """Noisy sums of clipped records: one release a call, written to the ledger before it leaves.

    Parameters
    ----------
    what : str
        What is released, for the ledger ("gradient").
    ledger : Ledger
        The run's ledger.
    rng : NoiseStream
        The run's noise stream. A seed is refused: every call and every mechanism would start it
        afresh and repeat the same noise.
    clip : float
        Bound C on the l2 norm of one record's contribution, above 0; infinity only without noise.
    dim : int
        Number of coordinates d of one message.
    sizes : sequence of int
        Number of records behind each of the k messages: (N,) under central trust, (n_1, ..., n_m)
        under silo trust and for shares. With "add_remove" public numbers in their place.
    mu : float, optional
        Budget of ONE release, finite and above 0. At most one of `mu` and `sigma`; neither means no
        noise.
    sigma : float or sequence of k floats, optional
        Given noise standard deviations, one of each message's sum.
    seen_by : str
        Who sees the release, for the ledger.
    shares : bool
        The k messages are shares of one sum and only their total is seen: one common grid chosen
        from N, and the noises add up.
    sampling : mapping, optional
        The sampling of records that precedes every release, for the ledger.
    neighbours : {"replace_one", "add_remove"}
        What neighbouring data sets differ in. With "add_remove" the sums must have been clamped to
        2^52 grid steps (`saturate` of the kernels, `total_on_grid` over silos).
    per_record : int, optional
        The most releases of this mechanism that any one record has a part in, fixed in advance
        without looking at the records; None means all.
    draws : int, optional
        Noise draws of one release where a kernel draws for more messages than `sizes` names.
    finest : float, optional
        The grid on which the kernel's sums are exact, where it rounds them once to the release's,
        which is no finer then; that moves each of the d coordinates of a difference by at most q.

    Attributes
    ----------
    sensitivity : float
        The l2 sensitivity D of every message: 2C when one record is replaced, C when one is added
        or removed; q sqrt(d) more with `finest`.
    sigma : ndarray, shape (k,), float64
        Noise standard deviations; D/mu rounded up, so that the exact mu never exceeds the budget;
        0 without noise. Read-only.
    grid : ndarray, shape (k,), float64, or None
        The grid of each message, to be passed to the sum kernel; None when `clip` is infinite.
        Read-only.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of its range, or `choose_grid` finds no grid.
    """

    def __init__(
        self,
        *,
        what: str,
        ledger: Ledger,
        rng: NoiseStream,
        clip: float,
        dim: int,
        sizes: Sequence[int],
        mu: float | None = None,
        sigma: float | Sequence[float] | NDArray[np.float64] | None = None,
        seen_by: str,
        shares: bool = False,
        sampling: Mapping[str, Any] | None = None,
        neighbours: str = "replace_one",
        per_record: int | None = None,
        draws: int | None = None,
        finest: float | None = None,
    ) -> None:
        if not isinstance(ledger, Ledger):
            raise TypeError(f"ledger is a {type(ledger).__name__}; it must be a Ledger")
        if not isinstance(rng, NoiseStream):
            raise TypeError(f"rng is a {type(rng).__name__}; it must be the run's NoiseStream")
        if mu is not None and sigma is not None:
            raise ValueError("mu and sigma were both given; give at most one of them")
        if not len(sizes):
            raise ValueError("sizes is empty; it must have one entry per message")
        counts = [count("sizes", n) for n in sizes]
        dim, k = count("dim", dim), len(counts)
        clip = real("clip", clip)
        if not clip > 0.0:
            raise ValueError(f"clip is {clip!r}; it must be above 0")
        noisy = mu is not None or sigma is not None
        if noisy and 2.0 * clip == math.inf:
            raise ValueError(f"clip is {clip!r}; with noise 2 clip must be finite")

        self._ledger, self._rng, self._noisy = ledger, rng, noisy
        self._dim, self._shares = dim, shares
        moved = clip if neighbours == "add_remove" else 2.0 * clip
        grid_of = functools.partial(choose_grid, clip=clip, dim=dim, neighbours=neighbours)

        stds: list[float] = []
        grids: list[float] | None = None

        def calibrated(room: float) -> float:
            """Set sensitivity, stds and grids where rounding adds `room` at most; what it adds."""
            nonlocal stds, grids
            self.sensitivity = math.nextafter(moved + room, math.inf) if room else moved
            stds = _stds(self.sensitivity, k, mu, sigma, shares)
            if clip == math.inf:
                return 0.0
            if shares:
                grids = [grid_of(n=sum(counts), sigma=_total_std(stds) or None)] * k
            else:
                pairs = [(n, s or None) for n, s in zip(counts, stds, strict=True)]
                chosen = {(n, s): grid_of(n=n, sigma=s) for n, s in set(pairs)}
                grids = [chosen[pair] for pair in pairs]
            if finest is None:
                return 0.0
            grids = [max(q, finest) for q in grids]
            return max(grids) * sqrt_up(Fraction(dim)) * (1.0 + 2.0**-50)

        room, needed = 0.0, calibrated(0.0)
        while needed > room:  # more noise may ask for a coarser grid, which `choose_grid` bounds
            room, needed = needed, calibrated(needed)
        if 32.0 * room > clip:
            raise ValueError(
                f"no grid serves: rounding a sum of dim = {dim} coordinates would add {room!r} to "
                f"the sensitivity, more than clip/32, clip = {clip!r}"
            )
        total_std = _total_std(stds) if shares else 0.0
        if shares and noisy and grids is not None and min(stds) < _LEAST_SHARE_STEPS * grids[0]:
            raise ValueError(
                f"sigma of a share is {min(stds)!r}; it must be at least "
                f"{_LEAST_SHARE_STEPS:.0f} grid steps, the common grid being {grids[0]!r}"
            )

        self.sigma = _read_only(stds)
        self.grid = None if grids is None else _read_only(grids)
        one = shares or k == 1
        self._release = Release(
            what=what,
            sensitivity=self.sensitivity if one else (self.sensitivity,) * k,
            std=None if not noisy else total_std if shares else stds[0] if one else tuple(stds),
            grid=None if grids is None else grids[0] if one else tuple(grids),
            dim=dim,
            seen_by=seen_by,
            sampling=sampling,
            draws=None if not noisy else k * dim if shares else draws,
            per_record=per_record,
        )

    def release(
        self, total: NDArray[np.float64], *, active: NDArray[np.bool_] | None = None
    ) -> NDArray[np.float64]:
        """Add noise to the exact sums and record the release.

        Parameters
        ----------
        total : ndarray, shape (k, dim) or, for k = 1, (dim,), float64
            The sums, computed on this mechanism's grid. Not changed.
        active : ndarray, shape (k,), bool, optional
            The messages that are sent, chosen without looking at the records; the others come back
            as 0. By default all.

        Returns
        -------
        ndarray, float64
            The noisy sums: a new array of the shape of `total`; with shares their sum, (dim,).

        Raises
        ------
        TypeError
            `total` is no float64 array.
        ValueError
            `total` has another shape, or an entry that is not on the noise's grid. Nothing is
            drawn, released or recorded then.
        """
        k = len(self.sigma)
        if not isinstance(total, np.ndarray) or total.dtype != np.float64:
            raise TypeError("total must be a float64 array")
        if total.shape != (k, self._dim) and (k > 1 or total.shape != (self._dim,)):
            raise ValueError(
                f"total has shape {total.shape}; it must have shape {(k, self._dim)}"
                + (f" or {(self._dim,)}" if k == 1 else "")
            )
        sums = total.reshape(k, self._dim)
        if self.grid is not None:
            require_grid(sums, self.grid)
        noisy = self._with_noise(sums)
        entry = self._release
        if active is not None and not active.all():
            noisy[~active] = 0.0
            if entry.per_record is None:  # else every silo pays for its share of the series
                entry = self._of_some(active)
        released = noisy.sum(axis=0) if self._shares else noisy.reshape(total.shape)
        self._ledger.append(entry)
        return released

    def _of_some(self, active: NDArray[np.bool_]) -> Release:
        """The release of the active silos' messages alone."""
        once = self._release
        if not isinstance(once.sensitivity, tuple):
            raise ValueError("active was given for one message about all the data")

        def sent(values: Any) -> Any:
            if not isinstance(values, tuple):
                return values
            return tuple(v if a else 0.0 for v, a in zip(values, active.tolist(), strict=True))

        return replace(once, sensitivity=sent(once.sensitivity), std=sent(once.std))

    def release_steps(
        self, steps: int, compute: Callable[..., NDArray[np.float64]]
    ) -> NDArray[np.float64]:
        """Record `steps` releases of the sums and return what a kernel makes of them.

        Parameters
        ----------
        steps : int
            How many noisy sums a message of `compute` is a function of, with public numbers.
        compute : callable
            compute(sigma=, grid=, rng=) draws the noise of this mechanism and adds it to each of
            its sums, on the given grid; sigma is None without noise.
        """
        once = self._release
        self._ledger.append(once if steps == 1 else replace(once, times=count("steps", steps)))
        sigma = self.sigma if self._noisy else None
        return compute(sigma=sigma, grid=self.grid, rng=self._rng)

    def _with_noise(self, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        if not self._noisy:
            return sums.copy()
        return sums + kernels.gaussian(sums.shape, self.sigma, grid=self.grid, rng=self._rng)


def total_on_grid(sums: NDArray[np.float64], grid: float) -> NDArray[np.float64]:
    """The exact sum over silos, clamped to 2^52 grid steps: for sums of any number of records.

    Parameters
    ----------
    sums : ndarray, shape (m, ...), float64
        Multiples of the grid within 2^52 steps.
    grid : float
        A power of two, common to all silos.

    Returns
    -------
    ndarray, shape (...), float64

    Notes
    -----
    A silo's sum is clamped to 2^62 / m steps before, which changes nothing up to 1024 silos: the
    integers cannot overflow. Both clamps keep distances within what they were, so a bound of what
    one record does to its silo's sum is one of what it does to the total.
    """
    most = min(_LARGEST_STEPS, 2.0**62 / len(sums))
    steps = np.clip(sums / grid, -most, most).astype(np.int64).sum(axis=0)
    total: NDArray[np.float64] = np.clip(steps, -_LARGEST_STEPS, _LARGEST_STEPS) * grid
    return total


def require_grid(sums: NDArray[np.float64], grid: float | NDArray[np.float64]) -> None:
    """Refuse sums that are not whole multiples of their grid within 2^52 steps.

    Noise coarser than a sum would leave the sum's low bits in the open.

    Parameters
    ----------
    sums : ndarray, shape (k, ...), float64
    grid : float or ndarray, shape (k,)
        Powers of two between 2^-400 and 2^400, one for all sums or one for each.

    Raises
    ------
    ValueError
        An entry is off its grid; the message does not show it.
    """
    if not kernels.on_grid(sums, grid):
        raise ValueError(
            "grid mismatch: total has an entry that is no finite multiple of the mechanism's "
            "grid within 2^52 steps; compute the sum with grid=mechanism.grid"
        )


def _stds(
    sensitivity: float,
    k: int,
    mu: float | None,
    sigma: float | Sequence[float] | NDArray[np.float64] | None,
    shares: bool,
) -> list[float]:
    """Return the noise standard deviation of each of the k messages, 0 for none."""
    if mu is not None:
        # k shares of one noise: each has its k-th part of the variance.
        least = Fraction(sensitivity) / Fraction(positive("mu", mu))
        std = sqrt_up(least**2 / k) if shares else round_up(least)
        # _total_std rounds down, which must not lift the recomputed mu above the budget.
        while shares and std < math.inf and Fraction(_total_std([std] * k)) < least:
            std = math.nextafter(std, math.inf)
        if std == math.inf:
            raise ValueError(f"mu is {mu!r}, too small: the noise exceeds every double")
        return [std] * k
    if sigma is None:
        return [0.0] * k
    if np.ndim(sigma) == 0:
        return [positive("sigma", sigma)] * k
    values = [positive("sigma", value) for value in np.asarray(sigma).tolist()]
    if len(values) != k:
        raise ValueError(f"sigma has {len(values)} entries; it must have {k}, one per message")
    return values


def _total_std(stds: Sequence[float]) -> float:
    """Return sqrt(sum of squares), rounded down."""
    return sqrt_down(sum((Fraction(std) ** 2 for std in stds), Fraction(0)))


def _read_only(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array


__all__ = ["MAX_RECORDS", "GaussianSum", "choose_grid", "require_grid", "total_on_grid"]
