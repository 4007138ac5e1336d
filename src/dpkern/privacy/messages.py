"""Noise on what is no exact grid sum: models after local steps, and their averages.

Messages v_j are rounded to a grid first, V = sum_j round_q(clamp(v_j)) + Z, so that V is again
round_q of an exact sum plus a Gaussian. Rounding is not non-expansive: with a proved bound D_v of
|v_j - v'_j| for the doubles computed, the sensitivity of V is D_v + q sqrt(d).
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern.privacy._exact import floor_log2, power_of_two, round_up, sqrt_up
from dpkern.privacy.ledger import Ledger, Release
from dpkern.privacy.local_runs import LocalRuns, last_iterate_factor
from dpkern.stream import NoiseStream

FloatArray = NDArray[np.float64]


def choose_message_grid(
    *, sensitivity: float, sigma: float, bound: float, dim: int, messages: int = 1
) -> float:
    """Choose the grid of noisy messages from public numbers.

    Parameters
    ----------
    sensitivity : float
        D_v > 0, finite.
    sigma : float
        Standard deviation of the noise, finite and above 0.
    bound : float
        Bound of every coordinate of every message.
    dim, messages : int
        Coordinates d of a message, and messages m in one sum.

    Returns
    -------
    float
        A power of two q, 2^-400 <= q <= 2^400: the coarsest with q sqrt(d) <= D_v 2^-12 and
        m q <= sigma 2^-9, made coarser where sigma <= 2^32 q or bound <= 2^50 q / m ask for it.

    Raises
    ------
    ValueError
        When no grid serves: it would add more than D_v / 32 to the sensitivity.
    """
    D, s = Fraction(sensitivity), Fraction(sigma)
    wanted = min(floor_log2(D**2 / (dim << 24)) // 2, floor_log2(s / (messages << 9)), 400)
    needs = [-400, -floor_log2(2**32 / s)]
    if bound > 0.0:
        needs.append(-floor_log2(2**50 / (messages * Fraction(bound))))
    exponent = max(wanted, *needs)
    grid = power_of_two(exponent)
    if exponent > 400 or grid**2 * dim * 1024 > D**2:
        raise ValueError(
            f"no grid serves a message of dim = {dim} coordinates up to {bound!r} with sensitivity "
            f"{sensitivity!r} and noise sigma = {sigma!r}: rounding to 2^{exponent} would add more "
            "than a 32nd to the sensitivity"
        )
    return float(grid)


class GaussianMessages:
    """Noisy messages, or their noisy sum: one release a call, recorded before it leaves.

    Parameters
    ----------
    what : str
        What is released, for the ledger.
    ledger : Ledger
        The run's ledger.
    rng : NoiseStream
        The run's noise stream.
    dim : int
        Coordinates d of a message.
    mu : float or None
        Budget of one release; None adds no noise.
    seen_by : str
        Who sees it, for the ledger.
    per_silo : bool
        Every message is released with noise of its own; else only their sum, with one noise.
    per_record : int, optional
        The most releases of this mechanism that any one record has a part in, fixed in advance
        without looking at the records; None means all. Releases then are one series: the first
        one's sensitivity and a 64th more is that of all, and what would need more is refused.
    """

    def __init__(
        self,
        *,
        what: str,
        ledger: Ledger,
        rng: NoiseStream,
        dim: int,
        mu: float | None,
        seen_by: str,
        per_silo: bool = False,
        per_record: int | None = None,
    ) -> None:
        self._what, self._ledger, self._rng, self._dim = what, ledger, rng, dim
        self._mu, self._seen_by, self._per_silo = mu, seen_by, per_silo
        self._per_record = per_record
        self._for: tuple[tuple[float, ...], float] | None = None  # what _columns was computed for
        self._columns: list[tuple[float, ...]] = []
        self._fixed: tuple[tuple[float, ...], float] | None = None
        self._series: Release | None = None

    def release(
        self,
        values: FloatArray,
        *,
        sensitivity: Sequence[float] | None = None,
        bound: float | None = None,
    ) -> FloatArray:
        """Add noise to the messages and record the release.

        Parameters
        ----------
        values : ndarray, shape (m, d)
            One message per silo, computed from its own records and public numbers. Not changed.
        sensitivity : sequence of m floats, optional
            Proved bounds of |v_j - v'_j| when a record of silo j is replaced, or added or removed
            where that is what neighbours differ in, each finite and above 0; needed with noise.
        bound : float, optional
            A public bound of every coordinate; needed with noise. Values beyond what the grid holds
            are clamped, and a NaN counts as 0.

        Returns
        -------
        ndarray, shape (m, d) per silo, else (d,)

        Raises
        ------
        ValueError
            When no grid serves, or a series has outgrown its sensitivity. Nothing is drawn or
            recorded then.
        """
        m = len(values)
        if self._mu is None:
            one = math.inf if not self._per_silo else (math.inf,) * m
            self._append(one, None, None)
            return values.copy() if self._per_silo else values.sum(axis=0)
        if sensitivity is None or bound is None:
            raise ValueError("sensitivity and bound are needed with noise")
        k = 1 if self._per_silo else m
        moved = tuple(sensitivity) if self._per_silo else (max(sensitivity),)
        if self._per_record is not None:
            moved, bound = self._of_series(moved, bound)
        if (moved, bound) != self._for:
            found = {D: self._calibrated(D, bound, k) for D in set(moved)}
            self._for = moved, bound
            self._columns = [tuple(c) for c in zip(*(found[v] for v in moved), strict=True)]
        D, sigma, grid = self._columns
        rounded = _on_grid(values, np.array(grid)[:, np.newaxis], 2.0**51 / k if k > 1 else 2.0**50)
        if self._per_silo:
            self._append(D, sigma, grid)
        else:
            rounded = rounded.sum(axis=0, keepdims=True)
            self._append(D[0], sigma[0], grid[0])
        noise = kernels.gaussian(rounded.shape, np.array(sigma), grid=np.array(grid), rng=self._rng)
        noisy: FloatArray = rounded + noise
        return noisy if self._per_silo else noisy[0]

    def _calibrated(self, moved: float, bound: float, messages: int) -> tuple[float, float, float]:
        """(D, sigma, q) of one message: D = D_v + q sqrt(d) and sigma = D / mu, both rounded up."""
        assert self._mu is not None
        guess = round_up(Fraction(moved) / Fraction(self._mu))
        if guess == math.inf:
            raise ValueError(f"mu is {self._mu!r}, too small: the noise exceeds every double")
        grid = choose_message_grid(
            # The grid adds a 32nd to the sensitivity at most, and so to the noise.
            sensitivity=moved,
            sigma=1.04 * guess,
            bound=bound,
            dim=self._dim,
            messages=messages,
        )
        D = round_up(Fraction(moved) + Fraction(grid) * Fraction(sqrt_up(Fraction(self._dim))))
        return D, round_up(Fraction(D) / Fraction(self._mu)), grid

    def _of_series(self, moved: tuple[float, ...], bound: float) -> tuple[tuple[float, ...], float]:
        """Sensitivities and bound that cover these, the same in every release of the series."""
        if self._fixed is None:
            self._fixed = tuple(round_up(Fraction(D) * Fraction(65, 64)) for D in moved), bound
        most, widest = self._fixed
        if bound > widest or any(a > b for a, b in zip(moved, most, strict=True)):
            raise ValueError(
                "floating-point errors of hidden local steps have outgrown the sensitivity that "
                "the first round fixed: the model has become too large"
            )
        return self._fixed

    def _append(
        self,
        sensitivity: float | tuple[float, ...],
        std: float | tuple[float, ...] | None,
        grid: float | tuple[float, ...] | None,
    ) -> None:
        release = Release(
            what=self._what,
            sensitivity=sensitivity,
            std=std,
            grid=grid,
            dim=self._dim,
            seen_by=self._seen_by,
            per_record=self._per_record,
        )
        if self._per_record is not None:  # one object, which is how the ledger knows a series
            release = self._series = self._series or release
        self._ledger.append(release)


class LastIterate:
    """The last of K noisy local iterates of every silo, its state kept on a grid.

        theta <- round_q(clamp(step(theta))) + round_q(sigma N),   K times,

    a round_q of step(theta) plus a real Gaussian. Two neighbours that start a step together are
    taken apart by s_j = eta (2 C / n_j + 2 tau_j) + 8 u W + 2 q sqrt(d) at most, two that start
    apart by c times their distance more: all that the proof of Bok, Su, Altschuler (2024) asks of a
    step. The last iterate alone then has mu = (s_j / sigma) f(c, K), with `last_iterate_factor`.

    Parameters
    ----------
    ledger, rng, mu, seen_by
        As for `GaussianMessages`; mu is the budget of one call.
    runs : LocalRuns
        What is public about the steps: equal ones, and every coordinate penalised.

    Raises
    ------
    ValueError
        When the steps differ or do not contract.
    """

    def __init__(
        self, *, ledger: Ledger, rng: NoiseStream, mu: float, seen_by: str, runs: LocalRuns
    ) -> None:
        if len(set(runs.step_sizes)) > 1:
            raise ValueError("accounting='last_iterate' needs equal steps: give step_size a number")
        self._ledger, self._rng, self._mu, self._seen_by = ledger, rng, mu, seen_by
        self._runs, self._factor = runs, last_iterate_factor(runs.contraction, len(runs.step_sizes))

    def release(
        self, w: FloatArray, start: float, step: Callable[[FloatArray, int], FloatArray]
    ) -> FloatArray:
        """Record the release, run K steps from the public w, and return the last iterates.

        Parameters
        ----------
        w : ndarray, shape (d,)
            The public start.
        start : float
            A bound of its norm.
        step : callable
            step(theta, t): one local step of every silo without noise, (m, d) -> (m, d).

        Returns
        -------
        theta : ndarray, shape (m, d)
        """
        runs, K = self._runs, len(self._runs.step_sizes)
        found = {n: self._calibrated(n, start) for n in set(runs.sizes)}
        columns = zip(*(found[n] for n in runs.sizes), strict=True)
        D, sigma, grid = (tuple(column) for column in columns)
        self._ledger.append(
            Release(
                what=f"last of {K} noisy local iterates (sensitivity includes the steps before)",
                sensitivity=D,
                std=sigma,
                grid=grid,
                dim=runs.dim,
                seen_by=self._seen_by,
                draws=K * runs.dim * len(runs.sizes),
            )
        )
        q, std = np.array(grid), np.array(sigma)
        theta = np.broadcast_to(w, (len(q), runs.dim))
        for t in range(K):
            moved = _on_grid(step(theta, t), q[:, np.newaxis], 2.0**50)
            theta = moved + kernels.gaussian(moved.shape, std, grid=q, rng=self._rng)
        return theta

    def _calibrated(self, n: int, start: float) -> tuple[float, float, float]:
        """(D, sigma, q) of a silo of n records: D = s f(c, K) and sigma = D / mu, rounded up."""
        runs = self._runs
        nominal = round_up(Fraction(runs.step_sizes[0]) * 2 * Fraction(runs.clip) / n)
        # `step_sensitivity` is at most 5/4 of the nominal one, so this is more than the noise.
        guess = 2.0 * nominal * self._factor / self._mu
        if guess == math.inf:
            raise ValueError(f"mu is {self._mu!r}, too small: the noise exceeds every double")
        reach = runs.noisy_reach(start, guess)
        grid = choose_message_grid(sensitivity=nominal, sigma=guess, bound=reach, dim=runs.dim)
        s = runs.step_sensitivity(n, reach, grid)
        D = round_up(s * Fraction(self._factor))
        return D, round_up(Fraction(D) / Fraction(self._mu)), grid


class UncertifiedLaplace:
    """Coordinate-wise Laplace noise in floating point, as papers print it: no guarantee.

    Parameters
    ----------
    what, ledger, rng, seen_by
        As for `GaussianMessages`.
    sensitivity : float
        The l2 sensitivity that the paper divides by epsilon.
    scale : float
        Scale b of the density exp(-|x| / b) / (2 b), finite and above 0.
    """

    def __init__(
        self,
        *,
        what: str,
        ledger: Ledger,
        rng: NoiseStream,
        sensitivity: float,
        scale: float,
        seen_by: str,
    ) -> None:
        self._what, self._ledger, self._rng, self._seen_by = what, ledger, rng, seen_by
        self._sensitivity, self._scale = sensitivity, scale

    def release(self, value: FloatArray) -> FloatArray:
        """The vector, shape (d,), with noise: a new array."""
        d = value.size
        self._ledger.append(
            Release(
                what=f"{self._what}, Laplace noise in floating point",
                sensitivity=self._sensitivity,
                std=math.sqrt(2.0) * self._scale,
                grid=None,
                dim=d,
                seen_by=self._seen_by,
                draws=4 * d,
            )
        )
        # The determinant of four independent standard normals has the density exp(-|x|) / 2.
        a, b, c, e = kernels.gaussian((4, d), 1.0, rng=self._rng)
        noisy: FloatArray = value + self._scale * (a * e - b * c)
        return noisy


class WeightNoise:
    """One normal number for the silos' weights, as Kang et al. (2021) print it.

    Replacing a record changes no weight: the noise protects nothing, and has no sensitivity.

    Parameters
    ----------
    ledger, rng
        As for `GaussianMessages`.
    sigma : float
        Its standard deviation, finite and above 0.
    """

    def __init__(self, *, ledger: Ledger, rng: NoiseStream, sigma: float) -> None:
        self._ledger, self._rng, self._sigma = ledger, rng, sigma

    def release(self) -> float:
        """The number, recorded before it is drawn."""
        grid = math.ldexp(1.0, math.frexp(self._sigma)[1] - 26)
        self._ledger.append(
            Release(
                what="noise on the weights, which protects nothing",
                sensitivity=0.0,
                std=self._sigma,
                grid=grid,
                dim=1,
                seen_by="nobody",
            )
        )
        return float(kernels.gaussian(1, self._sigma, grid=grid, rng=self._rng)[0])


def _on_grid(values: FloatArray, grid: FloatArray, steps: float) -> FloatArray:
    """round_q(clamp(v)), a NaN counted as 0: never raises on what the records have made of it."""
    with np.errstate(all="ignore"):  # a warning, or what a user makes of it, would tell too
        clamped = np.clip(values / grid, -steps, steps)
    rounded: FloatArray = np.rint(np.where(np.isnan(clamped), 0.0, clamped)) * grid
    return rounded


__all__ = [
    "GaussianMessages",
    "LastIterate",
    "UncertifiedLaplace",
    "WeightNoise",
    "choose_message_grid",
]
