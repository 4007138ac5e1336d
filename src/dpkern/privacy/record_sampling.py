"""Sampling of the records that a release uses, and its description for the accountant.

A sampler draws the batches from the run's stream and describes them to the ledger, so that the
accounting matches the draws. Batches, and the sizes of Poisson batches, are secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern.privacy.accounting import POISSON, WITHOUT_REPLACEMENT
from dpkern.stream import NoiseStream, Purpose, ReleaseKey

IntArray = NDArray[np.int64]
Rows = tuple[IntArray, IntArray]


@dataclass(frozen=True)
class RecordSampler:
    """Base class of samplers of batches.

    `sizes` are the numbers of records n_j of the silos, or public numbers in place of these, and
    `batch_sizes` those of a batch (expected for Poisson batches), by which means divide.
    """

    sizes: tuple[int, ...]
    batch_sizes: tuple[int, ...]

    method: ClassVar[str]
    amplifies: ClassVar[bool] = False  # whether the accountant uses the secrecy of the samples

    @property
    def per_record(self) -> int | None:
        """Largest number of releases that use one record; None means all."""
        return None

    @property
    def sampling(self) -> Mapping[str, Any] | None:
        """Description of the sampling for the ledger."""
        return {"method": self.method, "batch_sizes": self.batch_sizes, "sizes": self.sizes}

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        """Return the records of release t, sorted by silo; None for all of the data.

        Silos that are not `active` have an empty batch.
        """
        drawn = [np.empty(0, dtype=np.int64)] * len(active)
        with stream.release() as key:
            for j, size in enumerate(np.diff(offsets).tolist()):
                if active[j]:
                    drawn[j] = offsets[j] + self._batch(key, j, size, t)
        return np.concatenate(drawn), np.cumsum([0, *map(len, drawn)])

    def _batch(self, key: ReleaseKey, silo: int, size: int, t: int) -> IntArray:
        """Return the batch of one silo, sorted numbers below `size`: by default all of them."""
        return np.arange(size)


class FullBatch(RecordSampler):
    """Batches of all records."""

    method = "full"
    sampling = None

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        if active.all():
            return None
        chosen = np.repeat(active, np.diff(offsets))
        return np.flatnonzero(chosen), np.append(0, np.cumsum(np.diff(offsets) * active))


class WithoutReplacement(RecordSampler):
    """Batches of fixed size, drawn uniformly without replacement."""

    method = WITHOUT_REPLACEMENT
    amplifies = True

    def _batch(self, key: ReleaseKey, silo: int, size: int, t: int) -> IntArray:
        return key.subset(silo, size, self.batch_sizes[silo])


class Poisson(RecordSampler):
    """Batches that contain every record independently with probability batch size / size."""

    method = POISSON
    amplifies = True

    def _batch(self, key: ReleaseKey, silo: int, size: int, t: int) -> IntArray:
        if self.batch_sizes[silo] == self.sizes[silo]:
            return super()._batch(key, silo, size, t)
        # The accountant's rate is batch size / size rounded up.
        least = np.uint64((self.batch_sizes[silo] << 64) // self.sizes[silo])
        return np.flatnonzero(key.words(Purpose.SAMPLING, size, silo) < least)


@dataclass(frozen=True)
class Cyclic(RecordSampler):
    """Batches of consecutive records in a random order that is repeated cyclically.

    As k <= n_j no record is twice in a batch, and T batches contain it at most ceil(T k / n_j)
    times: once, in disjoint batches, where T k <= n_j.
    """

    method = "cyclic"
    sampling = None

    releases: int = field(kw_only=True)
    _orders: dict[int, NDArray[np.integer]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def per_record(self) -> int:
        sizes = zip(self.batch_sizes, self.sizes, strict=True)
        return max(-(-self.releases * k // n) for k, n in sizes)

    def consecutive(
        self, stream: NoiseStream, offsets: IntArray, t: int, releases: int
    ) -> IntArray:
        """Return the records (m, releases, k) of releases from t on, for batches of one size k."""
        sizes = enumerate(np.diff(offsets).tolist())
        with stream.release() as key:
            batches = [offsets[j] + self._batches(key, j, n, t, releases) for j, n in sizes]
        return np.stack(batches)

    def _batch(self, key: ReleaseKey, silo: int, size: int, t: int) -> IntArray:
        return self._batches(key, silo, size, t, 1)[0]

    def _batches(self, key: ReleaseKey, silo: int, size: int, t: int, releases: int) -> IntArray:
        if t + releases > self.releases:
            raise ValueError(f"releases must be at most the {self.releases} charged, got more")
        if silo not in self._orders:  # any order works that is independent of the records
            words = key.words(Purpose.SAMPLING, size, silo)
            small = np.int32 if size < 1 << 31 else np.int64
            self._orders[silo] = np.argsort(words, kind="stable").astype(small)
        k = self.batch_sizes[silo]
        positions = np.arange(t * k, (t + releases) * k) % size
        batches = self._orders[silo][positions].reshape(releases, k)
        return np.sort(batches, axis=1).astype(np.int64)


SAMPLERS = ("full", WITHOUT_REPLACEMENT, POISSON, "one_pass", "cyclic")


def make_record_sampler(
    sampling: str,
    batch_size: int | None,
    *,
    sizes: IntArray,
    releases: int,
    neighbours: str,
    trust: str,
) -> RecordSampler:
    """Return the sampler for the arguments of a solver, `sizes` being public under add_remove."""
    if sampling not in SAMPLERS:
        raise ValueError(f"sampling must be {' or '.join(map(repr, SAMPLERS))}, got {sampling!r}")
    if trust == "shuffle" and neighbours != "replace_one":
        raise ValueError(
            f"neighbours must be 'replace_one' with trust='shuffle', got {neighbours!r}"
        )
    numbers = tuple(sizes.tolist())
    if sampling == "full":
        if batch_size is not None:
            raise ValueError(f"batch_size must be None with sampling='full', got {batch_size!r}")
        return FullBatch(numbers, numbers)
    if (sampling == POISSON) != (neighbours == "add_remove"):
        raise ValueError(
            "sampling must be 'poisson' with neighbours='add_remove' and of fixed size with "
            f"'replace_one', got {sampling!r} with {neighbours!r}"
        )
    if batch_size is None:
        raise ValueError(f"batch_size must be given with sampling={sampling!r}, got None")
    k, fewest = count("batch_size", batch_size), min(numbers)
    most = fewest // releases if sampling == "one_pass" else fewest
    if k > most:
        disjoint = f" for {releases} disjoint batches" if sampling == "one_pass" else ""
        raise ValueError(
            f"batch_size must be at most {most}{disjoint}, the smallest silo having {fewest} "
            f"records, got {k}"
        )
    batch_sizes = (k,) * len(numbers)
    if sampling in ("one_pass", "cyclic"):
        return Cyclic(numbers, batch_sizes, releases=releases)
    return (Poisson if sampling == POISSON else WithoutReplacement)(numbers, batch_sizes)
