"""The channel of releases: ledger, noise stream, readers, neighbour relation and parties."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpkern.party import Party
from dpkern.privacy.ledger import Ledger, Release
from dpkern.stream import NoiseStream

#: Who sees a release, by the trust model.
SEEN_BY = {
    "central": "whoever sees the aggregate of a round",
    "silo": "whoever sees a silo's message",
    "shuffle": "whoever sees the shuffled messages of a round",
    "local": "everybody: a user is believed by itself alone",
}


@dataclass(frozen=True)
class Shares:
    """How silos add noise to their sum: each its own share, of which t silos may know theirs.

    The noise that counts is that of the others, so that a share has 1/(m - t) of its variance.
    """

    silos: int  #: m
    colluding: int  #: t, silos that may pool what they know with whoever sees the sum


@dataclass(frozen=True)
class Channel:
    """The common parameters of all mechanisms of a run that release to the same readers.

    The stream cannot be a seed, from which every mechanism would draw the same noise. With `shares`
    a sum over silos is the total of noisy ones; without them an aggregator adds the noise. With a
    `party`, other processes hold the other silos.
    """

    ledger: Ledger
    stream: NoiseStream
    seen_by: str
    neighbours: str = "replace_one"
    shares: Shares | None = None
    party: Party | None = None

    def __post_init__(self) -> None:
        for name, kind in (("ledger", Ledger), ("stream", NoiseStream)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {type(value).__name__}")
        if self.neighbours not in ("replace_one", "add_remove"):
            raise ValueError(
                f"neighbours must be 'replace_one' or 'add_remove', got {self.neighbours!r}"
            )

    @property
    def add_remove(self) -> bool:
        """Whether neighbours differ in one added record, so that numbers of records are private."""
        return self.neighbours == "add_remove"

    def describe(self, **fields: Any) -> Release:
        """Return the release with these fields that the readers of this channel see."""
        # Whoever believes the shuffler alone has no aggregator that adds noise.
        noised_by_aggregator = fields.get("std") is not None and fields.get("coins") is None
        if self.seen_by == SEEN_BY["shuffle"] and noised_by_aggregator:
            raise ValueError("trust must not be 'shuffle' for a sum with Gaussian noise")
        return Release(**{"seen_by": self.seen_by, **fields})

    def own(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one number per silo, such as a std, with 0 for silos in other processes."""
        if self.party is None:
            return numbers
        held = np.zeros_like(numbers)
        if self.party.silo is not None:
            held[self.party.silo] = numbers[self.party.silo]
        return held

    def total(self, noisy: NDArray[np.float64], grid: float, what: str) -> NDArray[np.float64]:
        """Return the sum of the noisy sums (m, ...) of silos, which are on the grid.

        Its readers see nothing else of these. It is recorded already, as all that is returned here.
        """
        steps = (noisy / grid).astype(np.int64).sum(axis=0)
        if self.party is not None:
            steps = self.party.total(steps, f"{what}, grid {grid!r}")
        return steps * grid

    def messages(self, noisy: NDArray[np.float64], what: str) -> NDArray[np.float64]:
        """Return the noisy message of every silo, shape (m, ...)."""
        return noisy if self.party is None else self.party.messages(noisy, what)

    def seen(
        self,
        released: NDArray[np.float64],
        exact: NDArray[np.float64] | None,
        std: ArrayLike | None,
        sampling: Any = None,
    ) -> NDArray[np.float64]:
        """Return what readers see; an audit has a transcript of it and of what noise was added to.

        `exact` is None where that is not known, and `std` one of all numbers or one per message.
        """
        transcript = self.stream.transcript
        if transcript is None:
            return released
        return transcript.passed(released, exact, std, dict(sampling or {}))

    def require_aggregator(self, what: str) -> None:
        """Raise RuntimeError where nobody has the records of all silos, to release what they say.

        That is so where silos are in several processes.
        """
        if self.party is not None:
            raise RuntimeError(f"nobody can release the {what}: no party has all records")
