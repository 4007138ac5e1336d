"""The channel of releases: ledger, noise stream, readers and neighbour relation."""

from dataclasses import dataclass
from typing import Any

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
class Channel:
    """The common parameters of all mechanisms of a run that release to the same readers.

    The stream cannot be a seed, from which every mechanism would draw the same noise.
    """

    ledger: Ledger
    stream: NoiseStream
    seen_by: str
    neighbours: str = "replace_one"

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
