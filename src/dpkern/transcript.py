"""Transcripts of what the readers of a run's releases see, for audits.

Given all earlier releases, a release of a solver is a function of the records, which noise is added
to. A run on other records that is shown the same releases therefore gives, release by release, what
the noise would have been added to there: together with the first run's the likelihood ratio.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dpkern._typing import FloatArray


class Complete(Exception):
    """Ends a run whose transcript has all the releases that it was made for."""


@dataclass(frozen=True)
class Entry:
    """One release, flattened: P numbers."""

    released: FloatArray  #: what is seen
    exact: FloatArray | None  #: what noise was added to; None where no step of Python knows it
    std: FloatArray  #: of the noise on every number, 0 for none
    rate: float  #: share of the records that a secret sample has; 1 for all


@dataclass
class Transcript:
    """The releases of one run, in order, and what their noise was added to.

    Parameters
    ----------
    shown : sequence of Entry or None
        The releases of another run, which this one takes for its own: it must make the same ones in
        the same order. Secret samples of its records are then all of them.
    last : int or None
        Number of releases after which `Complete` ends the run; None lets it end by itself.

    Attributes
    ----------
    entries : list of Entry
    """

    shown: Sequence[Entry] | None = None
    last: int | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def is_replay(self) -> bool:
        """Whether the run is shown the releases of another."""
        return self.shown is not None

    def passed(
        self,
        released: FloatArray,
        exact: FloatArray | None,
        std: ArrayLike | None,
        sampling: Mapping[str, Any],
    ) -> FloatArray:
        """Record a release and return it, or the one that is shown in its place.

        `std` is one number for all, or one for each message: the first axis.
        """
        i, shape = len(self.entries), released.shape
        if self.shown is not None:
            if i >= len(self.shown) or self.shown[i].released.size != released.size:
                raise ValueError("the runs must make the same releases, of the same sizes")
            released = self.shown[i].released.reshape(shape)
        stds = np.asarray(0.0 if std is None else std, dtype=np.float64)
        if stds.size > 1:
            stds = stds.reshape(-1, *(1,) * (len(shape) - 1))
        sizes = zip(sampling.get("batch_sizes", (1,)), sampling.get("sizes", (1,)), strict=True)
        self.entries.append(
            Entry(
                released.ravel().copy(),
                None if exact is None else exact.ravel().copy(),
                np.broadcast_to(stds, shape).ravel(),
                max(k / n for k, n in sizes),
            )
        )
        if len(self.entries) == self.last:
            raise Complete
        return released.copy()
