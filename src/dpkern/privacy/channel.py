"""Where releases go: into the run's ledger, with its stream's noise, to those who see them."""

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
    """What all mechanisms of a run that release to the same readers have in common.

    Parameters
    ----------
    ledger : Ledger
        The run's ledger.
    stream : NoiseStream
        The run's noise stream. A seed is refused: every call and every mechanism would start it
        afresh and repeat the same noise.
    seen_by : str
        Who sees the releases, for the ledger.
    neighbours : {"replace_one", "add_remove"}
        What neighbouring data sets differ in.
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
        """Whether neighbours differ in a record more, so that numbers of records are private."""
        return self.neighbours == "add_remove"

    def describe(self, **fields: Any) -> Release:
        """Return the release with these fields that the readers of this channel see.

        Raises
        ------
        ValueError
            When a sum with the aggregator's noise is said to be seen through a shuffler: whoever
            believes the shuffler alone has no such aggregator.
        """
        noised_by_aggregator = fields.get("std") is not None and fields.get("coins") is None
        if self.seen_by == SEEN_BY["shuffle"] and noised_by_aggregator:
            raise ValueError("trust must not be 'shuffle' for a sum with Gaussian noise")
        return Release(seen_by=self.seen_by, **fields)
