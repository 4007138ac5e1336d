"""Sampling of the records that a release uses, and its description for the accountant.

A sampler draws the batches from the run's stream and describes them to the ledger, so that the
accounting matches the draws. Batches, and the sizes of Poisson batches, are secret.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from dpkern._numbers import count
from dpkern._typing import IntArray
from dpkern.privacy.sampling.amplification import POISSON, WITHOUT_REPLACEMENT
from dpkern.stream import NoiseStream, Purpose, ReleaseKey

Rows = tuple[IntArray, IntArray]


@dataclass(frozen=True)
class RecordSampler(ABC):
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

    @property
    def compiled(self) -> Mapping[str, Any] | None:
        """The keywords by which `kernels.glm_descent` draws the batches of all silos itself."""
        return None

    @abstractmethod
    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        """Return the records of release t, sorted by silo; None for all of the data.

        Silos that are not `active` have an empty batch.
        """


class FullBatch(RecordSampler):
    """Batches of all records."""

    method = "full"
    sampling = None
    compiled: ClassVar[Mapping[str, Any]] = {}

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

    @property
    def compiled(self) -> Mapping[str, Any]:
        return {"subset_sizes": np.array(self.batch_sizes)}

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        with stream.release() as key:
            return key.subsets(offsets, np.multiply(self.batch_sizes, active))


class Poisson(RecordSampler):
    """Batches that contain every record independently with probability batch size / size."""

    method = POISSON
    amplifies = True

    @cached_property
    def _last(self) -> NDArray[np.uint64]:
        # The accountant's rate is batch size / size rounded up; rate 1 draws every record.
        sizes = zip(self.batch_sizes, self.sizes, strict=True)
        return np.array([(k << 64) // n - 1 for k, n in sizes], dtype=np.uint64)

    @property
    def compiled(self) -> Mapping[str, Any]:
        return {"poisson_last": self._last}

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        with stream.release() as key:
            return key.poisson_samples(offsets, self._last * active)


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

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        batches = self._batches(stream, offsets, t, 1, np.flatnonzero(active))
        return batches.ravel(), np.append(0, np.cumsum(active * batches.shape[2]))

    def consecutive(
        self, stream: NoiseStream, offsets: IntArray, t: int, releases: int
    ) -> IntArray:
        """Return the records (m, releases, k) of releases from t on, for batches of one size k.

        Those of silos without records in `offsets` are 0: they are in other processes.
        """
        here = np.flatnonzero(np.diff(offsets))
        batches = np.zeros((len(self.sizes), releases, self.batch_sizes[0]), dtype=np.int64)
        batches[here] = self._batches(stream, offsets, t, releases, here)
        return batches

    def _batches(
        self, stream: NoiseStream, offsets: IntArray, t: int, releases: int, silos: IntArray
    ) -> IntArray:
        if t + releases > self.releases:
            raise ValueError(f"releases must be at most the {self.releases} charged, got more")
        k = self.batch_sizes[0]
        positions = np.arange(t * k, (t + releases) * k)
        batches = np.empty((len(silos), releases * k), dtype=np.int64)
        with stream.release() as key:
            for batch, j in zip(batches, silos.tolist(), strict=True):
                order = self._order(key, j, int(offsets[j + 1] - offsets[j]))
                batch[:] = order[positions % len(order)]
        batches += offsets[silos, np.newaxis]
        return np.sort(batches.reshape(len(silos), releases, k), axis=2)

    def _order(self, key: ReleaseKey, silo: int, size: int) -> NDArray[np.integer]:
        if silo not in self._orders:  # any order works that is independent of the records
            words = key.words(Purpose.SAMPLING, size, silo)
            small = np.int32 if size < 1 << 31 else np.int64
            self._orders[silo] = np.argsort(words, kind="stable").astype(small)
        return self._orders[silo]


@dataclass(frozen=True)
class Halves(Cyclic):
    """A part of every silo's records, which is the whole batch of each of its releases.

    Parts are consecutive in one random order of the records, and disjoint: `starts` are the
    positions at which they begin. A record is in the releases of its part, and in no other.
    """

    starts: tuple[int, ...] = field(kw_only=True)
    _batches_of: dict[int, IntArray] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parts(cls, sizes: IntArray, number: int, releases: int) -> list[Self]:
        """Return parts of n_j / 2^i records, the last of all that are left.

        No part has more than so many `releases`.

        Raises
        ------
        ValueError
            When a part of the smallest silo would be empty.
        """
        if (fewest := int(sizes.min())) >> (number - 1) == 0:
            raise ValueError(
                f"phases must be at most {fewest.bit_length()}, the smallest silo having {fewest} "
                f"records, got {number}"
            )
        starts, found, orders = np.zeros_like(sizes), list[Self](), dict[int, Any]()
        for i in range(1, number + 1):
            batch = sizes >> i if i < number else sizes - starts
            n, k, where = (tuple(a.tolist()) for a in (sizes, batch, starts))
            found.append(cls(n, k, releases=releases, starts=where, _orders=orders))
            starts = starts + batch
        return found

    @property
    def per_record(self) -> int:
        return self.releases

    def draw(
        self, stream: NoiseStream, offsets: IntArray, t: int, active: NDArray[np.bool_]
    ) -> Rows | None:
        silos = np.flatnonzero(active).tolist()
        with stream.release() as key:
            for j in silos:
                if j not in self._batches_of:
                    order = self._order(key, j, int(offsets[j + 1] - offsets[j]))
                    part = order[self.starts[j] : self.starts[j] + self.batch_sizes[j]]
                    self._batches_of[j] = np.sort(part) + offsets[j]
        chosen = [self._batches_of[j] for j in silos]
        batches = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
        return batches, np.append(0, np.cumsum(np.multiply(self.batch_sizes, active)))


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
