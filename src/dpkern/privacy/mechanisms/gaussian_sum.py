"""The Gaussian mechanism on exact grid sums.

A sum S of clipped records is a multiple of q = 2^e, computed without rounding error, and the noise
Z = round_q(sigma N) is on the same grid. Then S + Z = round_q(S + sigma N): post-processing of the
textbook mechanism on the exact sum, with mu = sensitivity/sigma.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpkern import kernels
from dpkern._numbers import count, positive
from dpkern.kernels._arguments import in_blocks
from dpkern.kernels._blocks import MOST_STEPS, Reduced, Reduction, Request, totals
from dpkern.privacy.certificate.ledger import Release
from dpkern.privacy.guarantees.rounding import sqrt_down, sqrt_up
from dpkern.privacy.mechanisms.channel import Channel, largest_norm, require_share, share_std
from dpkern.privacy.sensitivity.grids import choose_grids, noise_std, require_sums

Result = TypeVar("Result")
Vectors = Callable[[slice], NDArray[np.float64]]
RecordVectors = Callable[[kernels.Data], Vectors]
_ENTRIES = 1 << 17  # of vectors of records that are in memory together, a cache full


class GaussianSum:
    """Noisy sums of clipped records; every call records one release and returns it.

    The k messages have the numbers of records `sizes`: (N,) under central trust, (n_1, ..., n_m)
    under silo trust and for shares. With "add_remove" these are public numbers, and the sums must
    saturate at 2^52 grid steps (`saturate` of the kernels, `total_on_grid` over silos).

    ONE release has the budget `mu` or the given noise `sigma`, one for all messages or one for
    each; neither means no noise, without which alone the clip norm C may be infinite. With `shares`
    the messages are shares of one sum, of which only the total is seen: they have a common grid for
    N records, and their noises add up. So do those of a single message where the channel says that
    silos share its noise (`Shares`): it is then released from the sums of all silos, and the noise
    of those that do not collude has the budget. `per_record` is the largest number of releases that
    depend on one record, fixed in advance independently of the records, of all mechanisms of one
    `series` together, and `draws` the number of draws of a kernel that sends more messages than
    `sizes` has.

    The l2 sensitivity D of every message is 2C when one record is replaced, C when one is added or
    removed. It grows by q sqrt(d) if the kernel's sums are exact on the grid `finest` and then
    rounded once to the coarser grid q of the release. `replaced` maps q to a smaller proved D where
    records are replaced, and `between` is what the ledger says of two models that D depends on. The
    attributes of shape (k,) are `sigma`, D/mu rounded up, so that the
    exact mu never exceeds the budget, and `grid`, for the kernel, or None when the clip norm is
    infinite.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        what: str,
        clip: float,
        dim: int,
        sizes: Sequence[int],
        mu: float | None = None,
        sigma: float | Sequence[float] | NDArray[np.float64] | None = None,
        shares: bool = False,
        sampling: Mapping[str, Any] | None = None,
        per_record: int | None = None,
        series: int | None = None,
        draws: int | None = None,
        finest: float | None = None,
        person_clip: float | None = None,
        replaced: Callable[[float], float] | None = None,
        between: tuple[float, float] | None = None,
    ) -> None:
        if mu is not None and sigma is not None:
            raise ValueError("sigma must be None where mu is given, got both")
        if not len(sizes):
            raise ValueError("sizes must have one entry per message, got none")
        counts = [count("sizes", n) for n in sizes]
        dim, k, colluding = count("dim", dim), len(counts), 0
        if channel.shares is not None and k == 1:
            shares, k, colluding = True, channel.shares.silos, channel.shares.colluding
        clip = positive("clip", clip, or_infinite=True)
        noisy = mu is not None or sigma is not None
        if noisy and 2.0 * clip == math.inf:
            raise ValueError(f"clip must be finite with noise, and 2 clip too, got {clip!r}")
        self._channel, self._noisy = channel, noisy
        self._dim, self._clip, self._shares = dim, clip, shares

        honest = k - colluding
        nominal = _sensitivity(clip, person_clip, replaced, add_remove=channel.add_remove)
        on_grid = replaced or functools.partial(_rounded, nominal, clip, dim, finest)
        noise = functools.partial(_stds, k, mu, sigma, honest if shares else None)
        self.sensitivity = on_grid(0.0)
        stds, grids = noise(self.sensitivity), cast(list[float] | None, None)
        while clip < math.inf:
            pairs = list(zip(counts, stds, strict=not shares))
            if shares:
                pairs = [(sum(counts), _total_std(stds, honest))] * k
            grids = _grids(pairs, finest, clip=clip, dim=dim, neighbours=channel.neighbours)
            if on_grid(max(grids)) <= self.sensitivity:
                break
            # More noise may need a coarser grid, up to a largest one.
            self.sensitivity = on_grid(max(grids))
            stds = noise(self.sensitivity)
        if shares and noisy and grids is not None:
            require_share(min(stds), grids[0])

        # The largest norms of exact sums; they saturate where numbers of records are private.
        self._bounds = [n * clip for n in counts]
        if grids is not None and channel.add_remove:
            self._bounds = [2.0**52 * max(grids) * math.sqrt(dim)] * k
        self.sigma = _read_only(stds)
        self.grid = None if grids is None else _read_only(grids)
        one = shares or k == 1
        std = _total_std(stds, honest) if shares else stds[0] if one else tuple(stds)
        self._entry = channel.describe(
            what=what,
            sensitivity=self.sensitivity if one else (self.sensitivity,) * k,
            std=std if noisy else None,
            grid=None if grids is None else grids[0] if one else tuple(grids),
            dim=dim,
            sampling=sampling,
            draws=None if not noisy else k * dim if shares else draws,
            per_record=per_record,
            series=series,
            between=between,
        )

    @property
    def noise_std(self) -> float:
        """Std of the noise on what is seen of a message, or of the total of all shares."""
        return float(self.sigma[0]) * (math.sqrt(len(self.sigma)) if self._shares else 1.0)

    def sums(
        self,
        vectors: Vectors,
        offsets: Sequence[int],
        n_threads: int | None = None,
    ) -> NDArray[np.float64]:
        """Return the exact sums over silos (m, d) of a vector of each record, saturated.

        Silo j has the records offsets[j] to offsets[j + 1]; `vectors` returns those of a slice of
        records, which are clipped. A single message is about all silos.
        """
        assert self.grid is not None
        grids = np.broadcast_to(self.grid, (len(offsets) - 1,))
        return sum_vectors(vectors, self._dim, offsets, self._clip, grids, n_threads)

    def sums_of_parts(
        self, parts: Iterable[tuple[Vectors, int]], n_threads: int | None = None
    ) -> NDArray[np.float64]:
        """Return the exact sum of all records as one, from parts: vectors, and their number."""
        assert self.grid is not None
        how, total = (self._clip, self.grid, n_threads), np.zeros((1, self._dim), np.int64)
        for vectors, n in parts:
            total += _steps(vectors, self._dim, (0, n), *how)
        return saturated(total, self.grid)

    def sums_of(
        self,
        data: kernels.Data,
        vectors: RecordVectors,
        n_threads: int | None = None,
        *,
        by: Reduction | None = None,
    ) -> NDArray[np.float64]:
        """Return the exact sums over silos (m, d) of records in memory or in blocks, saturated.

        `vectors` is a function of the data, or of a block of them, that returns that of a slice; it
        is picklable where the records are elsewhere. Blocks that are reduced `by` some function,
        which have the same vectors, may be kept for the next call.
        """
        assert self.grid is not None
        grids = np.broadcast_to(self.grid, (data.m,))
        how = self._dim, self._clip, grids, n_threads
        if in_blocks(data) is None:
            return sum_vectors(vectors(data), self._dim, data.offsets.tolist(), *how[1:])
        request: Request = functools.partial(vector_steps, vectors, *how)
        request = request if by is None else Reduced(by, request)
        return saturated(totals(data, request)[0], grids)

    def release(
        self,
        total: NDArray[np.float64],
        *,
        active: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.float64]:
        """Record the release and return the exact sums (k, d) with noise; with shares, their total.

        A single message may have the shape (d,). Messages that are not `active`, which is chosen
        independently of the records, are not sent and are returned as 0. Nothing is drawn or
        recorded if `require_sums` raises. Sums of silos in other processes count as 0.
        """
        k, d, channel = len(self.sigma), self._dim, self._channel
        sums = require_sums(total, [(k, d), (d,)] if k == 1 else [(k, d)], self.grid)
        by_silo = not self._shares and isinstance(self._entry.sensitivity, tuple)
        if self.grid is None or not (self._shares or by_silo):
            channel.require_aggregator(self._entry.what)
        noisy, entry = sums.copy(), self._entry
        if self._noisy:
            sigma = channel.own(self.sigma) if k > 1 else self.sigma
            noisy += kernels.gaussian(sums.shape, sigma, grid=self.grid, rng=channel.stream)
        if active is not None and not active.all():
            noisy[~active] = 0.0
            if entry.per_record is None:  # else every silo is charged for the whole series
                entry = self._active_entry(active)
        channel.ledger.append(entry)
        if self._shares:
            released = noisy.sum(axis=0)
            if self.grid is not None:
                bound, share = sum(self._bounds), float(self.sigma[0])
                released = channel.total(noisy, float(self.grid[0]), entry.what, bound, share)
            return channel.seen(released, sums.sum(axis=0), entry.std, entry.sampling)
        if by_silo:
            pairs = zip(self._bounds, self.sigma.tolist(), strict=True)
            most = [largest_norm(bound, std, d) for bound, std in pairs]
            released = channel.messages(noisy, entry.what, most)
        else:
            released = noisy.reshape(total.shape)
        return channel.seen(released, sums, entry.std, entry.sampling)

    def _active_entry(self, active: NDArray[np.bool_]) -> Release:
        """Return the ledger entry for the messages of the active silos alone."""
        once = self._entry
        if not isinstance(once.sensitivity, tuple):
            raise ValueError("active must be None for one message about all the data")

        def sent(values: Any) -> Any:
            return None if values is None else tuple(np.where(active, values, 0.0).tolist())

        return replace(once, sensitivity=sent(once.sensitivity), std=sent(once.std))

    def release_steps(self, steps: int, compute: Callable[..., Result]) -> Result:
        """Record `steps` releases and return the result of a kernel that adds the noise itself.

        compute(sigma=, grid=, rng=) must be a post-processing of as many sums on the grid, to each
        of which it adds this noise; sigma is None without noise, and 0 for silos in other
        processes.
        """
        channel = self._channel
        channel.ledger.append(self._entry, count("steps", steps))
        sigma = channel.own(self.sigma) if self._noisy else None
        result = compute(sigma=sigma, grid=self.grid, rng=channel.stream)
        if isinstance(result, np.ndarray):  # its noise is not on a sum that is known here
            channel.seen(result, None, self._entry.std)
        return result

    def release_results(
        self, steps: int, compute: Callable[..., NDArray[np.float64]], most: Sequence[float]
    ) -> NDArray[np.float64]:
        """Return the results of `release_steps` by silo, of those in other processes too.

        Every silo sends its result alone, which is less than what is recorded; `most` are the
        largest plausible norms of results.
        """
        return self._channel.messages(self.release_steps(steps, compute), self._entry.what, most)


def sum_vectors(
    vectors: Vectors,
    dim: int,
    offsets: Sequence[int],
    clip: float,
    grids: NDArray[np.float64],
    n_threads: int | None = None,
) -> NDArray[np.float64]:
    """Return sums over silos (m, d) of vectors as `GaussianSum.sums` does, on a grid (m,) each."""
    return saturated(_steps(vectors, dim, offsets, clip, grids, n_threads), grids)


def _steps(
    vectors: Vectors,
    dim: int,
    offsets: Sequence[int],
    clip: float,
    grids: NDArray[np.float64],
    n_threads: int | None,
) -> NDArray[np.int64]:
    """Return exact sums over silos (m, d) of vectors, in steps of their grids."""
    rows, sums = max(_ENTRIES // dim, 1), np.zeros((len(grids), dim), np.int64)
    for j, (first, last) in enumerate(itertools.pairwise(offsets)):
        q = float(grids[j])
        for i in range(first, last, rows):
            V = vectors(slice(i, min(i + rows, last)))
            part = kernels.clip_and_sum(V, clip=clip, grid=q, n_threads=n_threads)[0]
            sums[j] += (part / q).astype(np.int64)
    return sums


def vector_steps(
    vectors: RecordVectors,
    dim: int,
    clip: float,
    grids: NDArray[np.float64],
    n_threads: int | None,
    block: kernels.Data,
) -> NDArray[np.int64]:
    """Return exact sums (k, d) over a block, of every silo or of all as one, in steps of grids."""
    return _steps(vectors(block), dim, _offsets_of(block, len(grids)), clip, grids, n_threads)


def _offsets_of(data: kernels.Data, k: int) -> list[int]:
    """Return the offsets of all silos, or of all records as one."""
    offsets: list[int] = data.offsets.tolist()
    return offsets if k == data.m else [0, offsets[-1]]


def saturated(steps: NDArray[np.int64], grids: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of at most 2^52 steps of their grids."""
    return np.clip(steps, -MOST_STEPS, MOST_STEPS) * grids[:, np.newaxis]


def _sensitivity(
    clip: float,
    person_clip: float | None,
    replaced: Callable[[float], float] | None,
    *,
    add_remove: bool,
) -> float:
    """Return the sensitivity of an exact sum, where no smaller one is proved."""
    if add_remove and (person_clip is not None or replaced is not None):
        raise ValueError("neighbours must be 'replace_one' with person_clip or replaced")
    if person_clip is not None and replaced is not None:
        raise ValueError("replaced must be None with person_clip: it is about one record")
    if person_clip is not None:
        return 2.0 * positive("person_clip", person_clip)
    return clip if add_remove else 2.0 * clip


def _rounded(nominal: float, clip: float, dim: int, finest: float | None, q: float) -> float:
    """Return the sensitivity of a sum that is exact on `finest`, and rounded to the grid q."""
    rounding = q * sqrt_up(Fraction(dim)) * (1.0 + 2.0**-50)
    if finest is None or rounding == 0.0:
        return nominal
    if 32.0 * rounding > clip:
        raise ValueError(
            f"no grid serves: rounding a sum of dim = {dim} coordinates would add "
            f"{rounding!r} to the sensitivity, more than clip/32, clip = {clip!r}"
        )
    return math.nextafter(nominal + rounding, math.inf)


def _grids(pairs: Sequence[tuple[int, float]], finest: float | None, **bounds: Any) -> list[float]:
    """Return the grids of messages of (number of records, noise std), no finer than `finest`."""
    chosen = {
        std: choose_grids([n for n, s in pairs if s == std], sigma=std or None, **bounds)
        for std in {s for _, s in pairs}
    }
    return [max(chosen[std][n], finest or 0.0) for n, std in pairs]


def _stds(
    k: int,
    mu: float | None,
    sigma: float | Sequence[float] | NDArray[np.float64] | None,
    honest: int | None,
    sensitivity: float,
) -> list[float]:
    """Return the noise standard deviation of each of the k messages, 0 for none.

    Of shares, the noise of so many honest ones has the budget.
    """
    if mu is not None and honest is None:
        return [noise_std(sensitivity, mu)] * k
    if mu is not None and honest is not None:
        return [share_std(sensitivity, mu, honest)] * k
    if sigma is None:
        return [0.0] * k
    if np.ndim(sigma) == 0:
        return [positive("sigma", sigma)] * k
    values = [positive("sigma", value) for value in np.asarray(sigma).tolist()]
    if len(values) != k:
        raise ValueError(f"sigma must have {k} entries, one per message, got {len(values)}")
    return values


def _total_std(stds: Sequence[float], honest: int) -> float:
    """Return the std of a sum of the smallest of so many shares, rounded down."""
    return sqrt_down(sum((Fraction(std) ** 2 for std in sorted(stds)[:honest]), Fraction(0)))


def _read_only(values: Sequence[float]) -> NDArray[np.float64]:
    array = np.array(values, dtype=np.float64)
    array.setflags(write=False)
    return array
